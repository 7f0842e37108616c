"""Memory of batches, used again for the next ones: new memory takes the system a fault a page, which costs more than the copy."""

from __future__ import annotations

import mmap
from collections import deque
from typing import Any

# Of so many bytes on memory is kept: below, the C library keeps its own.
BYTES_MIN = 1 << 20
# A consumer has one batch while the next is made.
SPARE_MAX = 2
HUGE_PAGE = 2 << 20


class Spare:
    """Memory that nobody refers to any more. Arrays of it keep it, and so do tensors of those."""

    def __init__(self) -> None:
        self._free: deque[Any] = deque(maxlen=SPARE_MAX)

    def take(self, bytes: int) -> Any:
        """An array of so many bytes, of any content."""
        import numpy as np

        if bytes < BYTES_MIN:
            return np.empty(bytes, np.uint8)
        return np.asarray(Lease(self._free, self._memory(bytes)))[:bytes]

    def clear(self) -> None:
        self._free.clear()

    def _memory(self, bytes: int) -> Any:
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # another thread has it
                break
            if bytes <= memory.size <= 2 * max(bytes, HUGE_PAGE):
                return memory
        return new(bytes)


class Lease:
    """Memory in use; it goes back with the last array that refers to it."""

    def __init__(self, free: deque[Any], memory: Any) -> None:
        self._free, self._memory = free, memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


def new(bytes: int) -> Any:
    import numpy as np

    whole = -(-bytes // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, whole + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            pass
    array = np.frombuffer(memory, np.uint8)
    return array[-array.ctypes.data % HUGE_PAGE :][:whole]
