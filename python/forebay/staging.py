"""Memory of the host that a GPU fills by itself, for what is written to storage from there."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator

from forebay import _core
from forebay.errors import MachineError

HUGE_BYTES = 2 << 20
# So many of a GPU are kept: one is written from while the other is filled.
KEPT = 2


class Stage:
    """Pinned memory, shared with processes that are forked, so that its pages stay the GPU's. It begins on a huge page: where the
    kernel gives shared memory huge pages (shmem_enabled), a write is few pieces to a device; else it is as many as its pages."""

    def __init__(self, gpu: int, size: int) -> None:
        """MachineError where that GPU doesn't write to the host's memory, or where there is none left."""
        import numpy as np

        size = -(-size // HUGE_BYTES) * HUGE_BYTES
        try:
            held = mmap.mmap(-1, size + HUGE_BYTES)
        except OSError as error:
            asked = f"{size} bytes of host memory for GPU {gpu}"
            raise MachineError(asked, error.strerror or str(error), "ulimit -v unlimited") from None
        with contextlib.suppress(OSError):
            held.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(held, np.uint8)
        skip = -int(whole.__array_interface__["data"][0]) % HUGE_BYTES
        self.bytes = whole[skip : skip + size]
        self.bytes[:: mmap.PAGESIZE] = 0
        self.lent = _core.Lent(gpu, int(self.bytes.__array_interface__["data"][0]), size)


# By GPU, those that nobody writes from. Zeroing and pinning one takes as long as a disk takes to write most of it.
_free: dict[int, list[Stage]] = {}
_lock = threading.Lock()


def _forget() -> None:
    """In a process that was forked: the GPU knows its parent's."""
    global _lock
    _lock = threading.Lock()
    _free.clear()


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def stages(gpu: int, size: int, count: int) -> Iterator[list[Stage]]:
    """Borrows `count` stages of `size` bytes at least, or fewer where memory for more can't be pinned, of which nothing is in
    flight any more when this ends."""
    with _lock:
        free = _free.setdefault(gpu, [])
        fit = [stage for stage in free if stage.bytes.size >= size][:count]
        _free[gpu] = [stage for stage in free if stage not in fit]
    try:
        try:
            # One by one: where the second fails, the first isn't lost.
            while len(fit) < count:
                fit.append(Stage(gpu, size))
        except MachineError:
            if not fit:
                raise
        yield fit
    finally:
        with _lock:
            # The larger ones fit more of those who come next.
            kept = sorted(_free.setdefault(gpu, []) + fit, key=lambda stage: -stage.bytes.size)
            _free[gpu] = kept[:KEPT]
        for stage in kept[KEPT:]:
            stage.lent.close()


def release() -> None:
    """Unpins those that nobody writes from."""
    with _lock:
        gone = [stage for free in _free.values() for stage in free]
        _free.clear()
    for stage in gone:
        stage.lent.close()
