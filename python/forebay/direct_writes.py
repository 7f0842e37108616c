"""Rows of an array written to a file, many at a time, from wherever they lie in memory: through the page cache, past it, or into
the file's own memory."""

from __future__ import annotations

import errno
import math
import mmap
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

# Of offsets, sizes and addresses: every device takes that.
ALIGN = 4096
PIECE_BYTES = 1 << 20
DEPTH = 32
# Of smaller rows, copies cost less than what the kernel does for each of them.
ROW_BYTES = 16 << 10


class NotWritten(Exception):
    """A write at offset `at` that failed, and what the kernel said of it."""

    def __init__(self, at: int, why: OSError) -> None:
        super().__init__(at, why)
        self.at, self.why = at, why


class _Threads:
    """Those that write, of all files of a process: starting them, and touching their memory first, takes as long as many MiB."""

    def __init__(self, count: int, name: str) -> None:
        self.pool = ThreadPoolExecutor(count, name)
        self.own = threading.local()


_threads: dict[str, _Threads] = {}
# A process that was forked has none of them.
os.register_at_fork(after_in_child=_threads.clear)


class RowWriter:
    """Writes to a file through the page cache: many rows in one call, and by no more threads than there are processors."""

    # Where each piece of a file begins, but for the first of those that `write` makes.
    ALIGN = 1

    def __init__(self, file: int) -> None:
        self._file = file
        self._threads = self._threads_of("forebay-write", min(8, os.cpu_count() or 1))
        self._jobs: list[Future[None]] = []

    @staticmethod
    def _threads_of(name: str, count: int) -> _Threads:
        if name not in _threads:
            _threads[name] = _Threads(count, name)
        return _threads[name]

    def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Waits for what is in flight, and gives up what isn't yet."""
        for job in self._jobs:
            job.cancel()
        wait(self._jobs)
        self._jobs.clear()

    def write(self, at: int, rows: numpy.ndarray, places: numpy.ndarray) -> list[Future[None]]:
        """Begins to write these rows of an array of bytes, one behind the other from `at` on. They end with NotWritten."""
        import numpy as np

        size = rows.shape[1]
        if size > PIECE_BYTES and size % ALIGN == 0:
            # In equal parts: each is the larger row of a narrower array.
            parts = next(size // ALIGN // n for n in range(PIECE_BYTES // ALIGN, 0, -1) if size // ALIGN % n == 0)
            rows, size = rows.reshape(-1, size // parts), size // parts
            places = (places[:, None] * parts + np.arange(parts)).ravel()
        # So many rows that a piece ends where the next may begin.
        least = self.ALIGN // math.gcd(self.ALIGN, size)
        each = max(1, PIECE_BYTES // size // least) * least
        made = []
        for n in range(0, places.size, each):
            made.append(self._threads.pool.submit(self._gather, at + n * size, rows, places[n : n + each]))
            self._jobs.append(made[-1])
        return made

    def _may_lie(self, rows: numpy.ndarray) -> bool:
        """True where rows may be written from where they lie."""
        return rows.shape[1] >= ROW_BYTES

    def _gather(self, at: int, rows: numpy.ndarray, places: numpy.ndarray) -> None:
        if self._may_lie(rows):
            return self._put(at, [rows[place] for place in places.tolist()])
        size = rows.shape[1]
        stage = self._stage(places.size * size)
        _take(rows, places, stage)
        self._put(at, [stage])

    def _stage(self, size: int) -> numpy.ndarray:
        """Memory of this thread, on a page."""
        import numpy as np

        held = getattr(self._threads.own, "stage", None)
        if held is None or held.size < size:
            held = self._threads.own.stage = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        return held[:size]

    def _put(self, at: int, parts: list[Any]) -> None:
        left = [memoryview(part) for part in parts]
        try:
            while left:
                wrote = self._written(left, at)
                at += wrote
                while left and wrote >= len(left[0]):
                    wrote -= len(left.pop(0))
                if wrote:
                    left[0] = left[0][wrote:]
        except OSError as error:
            raise NotWritten(at, error) from None

    def _written(self, parts: list[memoryview], at: int) -> int:
        """Number of bytes that the kernel took."""
        return os.pwritev(self._file, parts, at)


class DirectWriter(RowWriter):
    """Writes to a file by O_DIRECT, 32 at a time. OSError where its file system has none."""

    ALIGN = ALIGN

    def __init__(self, file: int) -> None:
        """`file`: how it is open already; it takes what O_DIRECT refuses."""
        super().__init__(file)
        self._through_cache = file
        # The same file, even where its name means another by now.
        self._file = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        self._threads = self._threads_of("forebay-direct", DEPTH)

    @staticmethod
    def takes(row_bytes: int) -> bool:
        """True for rows of so many bytes that pieces of a few MiB at most begin and end where they must."""
        return row_bytes % (ALIGN if row_bytes > PIECE_BYTES else 512) == 0

    def close(self) -> None:
        super().close()
        os.close(self._file)

    def _may_lie(self, rows: numpy.ndarray) -> bool:
        return super()._may_lie(rows) and rows.shape[1] % ALIGN == 0 and rows.__array_interface__["data"][0] % ALIGN == 0

    def _written(self, parts: list[memoryview], at: int) -> int:
        try:
            return os.pwritev(self._file, parts, at)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return os.pwritev(self._through_cache, parts, at)


class MappedWriter(RowWriter):
    """Writes to a file that lies in memory, where it is mapped: a write would keep all other threads out of it."""

    def __init__(self, file: int, mapped: numpy.ndarray) -> None:
        super().__init__(file)
        self._mapped = mapped

    def _gather(self, at: int, rows: numpy.ndarray, places: numpy.ndarray) -> None:
        _take(rows, places, self._mapped[at : at + places.size * rows.shape[1]])


def _take(rows: numpy.ndarray, places: numpy.ndarray, to: numpy.ndarray) -> None:
    import numpy as np

    # With "raise", what is gathered would be copied twice.
    np.take(rows, places, axis=0, out=to.reshape(-1, rows.shape[1]), mode="clip")
