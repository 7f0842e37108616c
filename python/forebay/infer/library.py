"""A model's samples: loaded into memory by our loader before the clock starts, or read out of their file inside each query.

Both count what storage delivered, so that a test can say how much of it fell into its timed part. A supply of bytes is
simulated: real bytes, handed over when a link of that rate would have brought them.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from forebay.errors import ForebayError, MachineError, RequestError, RunError
from forebay.infer import data
from forebay.model_runs import available_bytes
from forebay.numbers import bytes_, whole
from forebay.units import GIB

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

# Bytes of a batch of the load, of what it takes as one row, and the share of free memory that samples may take.
LOADED_BYTES, PIECE_BYTES, MEMORY_SHARE = 4 << 20, 1 << 20, 0.7
# Batches of a query's samples that are fetched ahead of the one that is computed.
AHEAD = 3
RESTORE = "restore it, or forebay infer datagen into another --dir; then run again"


class Link:
    """A link of `bytes_per_s`, which brings one request after the other, each once it was asked for."""

    def __init__(
        self, bytes_per_s: float, now: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.bytes_per_s, self._now, self._sleep = bytes_per_s, now, sleep
        self._there = 0.0

    def hold(self, count: int, asked_at: float) -> None:
        """Waits until so many bytes, asked for then, would be there."""
        self._there = max(self._there, asked_at) + count / self.bytes_per_s
        left = self._there - self._now()
        if left > 0:
            self._sleep(left)


class Memory(Protocol):
    """Where samples lie for a model: the host's memory, or a GPU's."""

    device: str

    def empty(self, rows: int, row_bytes: int) -> Any: ...
    def select(self, store: Any, numbers: Sequence[int]) -> Any: ...
    def take(self, loader: Any) -> Any: ...
    def free_bytes(self) -> int: ...


class HostMemory:
    device = "cpu"

    def empty(self, rows: int, row_bytes: int) -> Array:
        import numpy as np

        return np.empty((rows, row_bytes), np.uint8)

    def select(self, store: Array, numbers: Sequence[int]) -> Array:
        if len(numbers) == 1:
            at = numbers[0]
            return store[at : at + 1]
        return store[numbers]

    def take(self, loader: Any) -> Any:
        import numpy as np

        batch = loader.take()
        return None if batch is None else np.asarray(batch["row"])

    def free_bytes(self) -> int:
        return available_bytes()


class GpuMemory:
    """Memory of a GPU, through PyTorch."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self.device = torch, device

    def empty(self, rows: int, row_bytes: int) -> Any:
        return self._torch.empty((rows, row_bytes), dtype=self._torch.uint8, device=self.device)

    def select(self, store: Any, numbers: Sequence[int]) -> Any:
        torch = self._torch
        there = torch.tensor(numbers, dtype=torch.int64, pin_memory=True).to(self.device, non_blocking=True)
        return store.index_select(0, there)

    def take(self, loader: Any) -> Any:
        batch = loader.take()
        return None if batch is None else batch["row"]

    def free_bytes(self) -> int:
        free: int = self._torch.cuda.mem_get_info(self.device)[0]
        return free


class Library:
    """The first `count` samples of a folder. `delivered`: bytes that storage has brought so far."""

    def __init__(
        self, folder: Path, about: data.About, count: int, memory: Memory, way: str = "auto", bytes_per_s: float | None = None
    ) -> None:
        if not 1 <= count <= about.samples:
            raise RequestError(f"--samples {count}", f"the folder has {about.samples}", f"--samples {about.samples}")
        self.folder, self.about, self.count, self.memory, self.way = folder, about, count, memory, way
        self.row_bytes = about.row_bytes
        self.delivered = 0
        self.link = None if bytes_per_s is None else Link(bytes_per_s)

    @property
    def path(self) -> Path:
        return self.folder / data.SAMPLES

    def refuse_cut(self) -> os.stat_result:
        """Raises RunError where the file, which was whole as the run began, isn't there or isn't whole any more."""
        wanted, next = self.about.samples * self.row_bytes, RESTORE
        try:
            there = os.stat(self.path)
        except OSError as error:
            raise RunError(f"the samples {self.path}", f"{error.strerror}; it was there as the run began", next) from None
        if there.st_size < wanted:
            found = f"the file had {whole(wanted)} bytes as the run began, and has {whole(there.st_size)} now"
            raise RunError(f"the samples {self.path}", found, next)
        return there

    def together(self) -> int:
        """Samples that the loader takes as one row: in their order nothing is gained by short ones."""
        most = max(1, PIECE_BYTES // self.row_bytes)
        return next(n for n in range(min(most, self.count), 0, -1) if self.count % n == 0 and self.about.samples % n == 0)

    def loader(self) -> Any:
        """Our loader over the samples as they lie, closed by who asked for it."""
        self.refuse_cut()
        bytes_ = self.together() * self.row_bytes
        from forebay.feed import rows
        from forebay.feed.verb import in_flags

        if self.memory.device == "cpu":
            from forebay.feed import Loader
        else:
            from forebay.torch import Loader
        with warnings.catch_warnings(), in_flags():
            warnings.simplefilter("ignore")
            return Loader(
                rows(self.path, {"row": ("u1", (bytes_,))}),
                max(1, min(self.count * self.row_bytes, LOADED_BYTES) // bytes_),
                shuffle="none",
                device=self.memory.device,
                path=self.way,
                # Read once: another copy in the page cache would take memory, and copying it time.
                cache="bypass",
            )


class InMemory(Library):
    """Samples that `load` brings into memory, from where queries take them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._store: Any = None
        self.load_s = self.prepare_s = 0.0
        self.load_bytes = 0
        self.record: dict[str, Any] | None = None

    def load(self) -> None:
        """Fills memory, once. Raises MachineError where it doesn't fit, and what broke while reading."""
        if self._store is not None:
            return
        wanted, free = self.count * self.row_bytes, self.memory.free_bytes()
        if wanted > MEMORY_SHARE * free:
            fits = int(MEMORY_SHARE * free / self.row_bytes)
            found = f"they take {bytes_(wanted)} of memory, and {bytes_(free)} are free"
            raise MachineError(f"load {self.count} samples", found, f"--samples {max(1, fits)}")
        store = self.memory.empty(self.count, self.row_bytes)
        preparing = time.perf_counter()
        loader = self.loader()
        try:
            # With the first batch it gets its memory, pinned for a GPU, which takes longer than a small library.
            self.memory.take(loader)
            loader._loader.seek(0, 0)
            self.wait()
            began, at = time.perf_counter(), 0
            self.prepare_s = began - preparing
            while at < self.count:
                rows = self.memory.take(loader).reshape(-1, self.row_bytes)[: self.count - at]
                if self.link is not None:
                    self.link.hold(len(rows) * self.row_bytes, began)
                store[at : at + len(rows)] = rows
                at += len(rows)
                del rows
            self.wait()
            self.load_s = time.perf_counter() - began
            self.record = loader.record()
        finally:
            loader.close()
        self.load_bytes = wanted
        self.delivered += wanted
        self._store = store
        moved: dict[str, int] = {way: self.record["path"][f"{way}_bytes"] for way in ("direct", "staged", "mapped")}
        # Without the first batch's first time.
        most = max(moved, key=lambda way: moved[way])
        self.ways = {**moved, most: moved[most] - (sum(moved.values()) - wanted)}

    def wait(self) -> None:
        """All that was copied is in place when it returns."""
        if self.memory.device != "cpu":
            self.memory._torch.cuda.synchronize(self.memory.device)  # type: ignore[attr-defined]

    def changed(self) -> RunError | None:
        """None: queries take samples from memory, whatever becomes of their file."""
        return None

    def ask(self, numbers: Sequence[int]) -> Sequence[int]:
        return numbers

    def rows(self, asked: Sequence[int]) -> Any:
        """The rows of these samples, in the memory of the model."""
        return self.memory.select(self._store, asked)

    def close(self) -> None:
        self._store = None


class FromStorage(Library):
    """Samples that each query reads out of the file. `record` is that of nothing read: what was, stands in `reports`."""

    def __init__(self, *arguments: Any, batch: int, direct: bool | None = None) -> None:
        import forebay

        super().__init__(*arguments)
        self.load_s = 0.0
        self.load_bytes = 0
        self._batch = batch
        self._stamp = stamped(self.refuse_cut())
        # By the GPU where it may: how long a read takes counts for nothing, as it is asked for ahead, and what processors copy
        # they copy beside LoadGen and the model's launches.
        way = self.way if self.memory.device != "cpu" else "auto"
        self.file = forebay.open(self.path, way, direct, prefer="cpu")
        self._free = [self.memory.empty(batch, self.row_bytes) for _ in range(AHEAD + 2)]
        self.ways = {"direct": 0, "staged": 0, "mapped": 0}
        self.reads = 0

    def load(self) -> None:
        """Nothing is loaded: that is what this mode is about."""

    def changed(self) -> RunError | None:
        """The error of a file that isn't the one that was opened, or was written to since."""
        return changed(self.path, self._stamp, "samples")

    def ask(self, numbers: Sequence[int]) -> tuple[Any, Any, Sequence[int], float]:
        """Begins to read these samples, of which there are no more than a batch."""
        import numpy as np

        place = self._free.pop()
        asked_at = time.perf_counter()
        try:
            pending = self.file.gather_async(np.asarray(numbers, np.int64), self.row_bytes, place[: len(numbers)])
        except ForebayError as error:
            raise self._broken(error, numbers) from error
        return pending, place, numbers, asked_at

    def _broken(self, error: ForebayError, numbers: Sequence[int]) -> ForebayError:
        last = max(numbers)
        wanted = self.about.samples * self.row_bytes
        return cut_short(error, self.path, self.file, f"sample {whole(last)}", last * self.row_bytes, wanted)

    def rows(self, asked: tuple[Any, Any, Sequence[int], float]) -> Any:
        """The rows, once they are there; their memory is used again three batches later. Raises what broke."""
        pending, place, numbers, asked_at = asked
        count = len(numbers)
        try:
            report = pending.report()
        except ForebayError as error:
            raise self._broken(error, numbers) from error
        self._free.insert(0, place)
        self.delivered += report.bytes
        self.reads += count
        self.ways["direct"] += report.direct_bytes
        self.ways["mapped"] += report.mapped_bytes
        self.ways["staged"] += report.bytes - report.direct_bytes - report.mapped_bytes
        if self.link is not None:
            self.link.hold(report.bytes, asked_at)
        return place[:count]

    def close(self) -> None:
        self.file.close()


def stamped(there: os.stat_result) -> tuple[int, int, int, int]:
    """A file's identity, and what changes as it is written to."""
    return there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns


def changed(path: Path, stamp: tuple[int, int, int, int], what: str) -> RunError | None:
    """The error of a file that isn't the one that had this stamp, or was written to since."""
    try:
        same = stamped(os.stat(path)) == stamp
        found = None if same else "it was written to, or replaced, while queries read it"
    except OSError as error:
        found = f"it was taken away while queries read it ({error.strerror})"
    return RunError(f"the {what} {path}", found, "run again once nothing writes to it") if found else None


def cut_short(error: ForebayError, path: Path, file: Any, what: str, at: int, wanted: int) -> ForebayError:
    """The error of a read whose file has fewer bytes than it had when it was opened: the run failed, as nothing that was asked of
    it was wrong. Any other error is what it was."""
    try:
        there: int = file.size
    except (ForebayError, OSError):
        return error
    if there >= wanted:
        return error
    found = f"begins at byte {whole(at)}; the file had {whole(wanted)} bytes as the run began, and has {whole(there)} now"
    return RunError(f"{what} of {path}", found, RESTORE)


def gib_s(count: float, seconds: float) -> float | None:
    return count / GIB / seconds if seconds > 0 else None
