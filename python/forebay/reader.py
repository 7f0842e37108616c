"""Reading files into memory of the host or of GPUs: `forebay.open`, `forebay.read_files`."""

from __future__ import annotations

import io
import operator
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from forebay import _core, staging
from forebay.buffers import Memory, memory_of, stream_handle, streams_before
from forebay.errors import ForebayError, RequestError
from forebay.names import Path, file_name, opened
from forebay.paths import abilities
from forebay.rows import (
    begins_of,
    check_inside,
    check_row,
    check_rows,
    check_signs,
    check_whole,
    integers,
    on_gpu,
    stream_of,
    whole_numbers,
    words_of,
)
from forebay.units import GIB

if TYPE_CHECKING:
    from forebay.tables import Table


# Of `File.read`, kept between calls: new memory would cost more than the reading, page by page.
SPARE_BYTES = 4 << 20


@dataclass(frozen=True)
class Report:
    """Report on the path that the bytes of a read took.

    bytes           total
    staged_bytes    copied by a CPU, or through a pinned buffer
    mapped_bytes    by DMA from the page cache's own pages
    direct_bytes    from storage to their destination without a copy
    uncached_bytes  read with the page cache bypassed (O_DIRECT), whatever path they took from there
    seconds         from the call to the last byte's arrival
    repeated_bytes  of rows that the same call had fetched, copied by the GPU from there
    """

    bytes: int
    staged_bytes: int
    mapped_bytes: int
    direct_bytes: int
    uncached_bytes: int
    seconds: float
    repeated_bytes: int = 0

    @property
    def gib_s(self) -> float | None:
        """GiB/s; None if nothing was read."""
        return self.bytes / self.seconds / GIB if self.bytes and self.seconds else None


@dataclass(frozen=True)
class FilesRead:
    """Result of `read_files`: the start of each file in the one buffer (0 for a buffer of its own), its bytes, and how they
    went."""

    offsets: list[int]
    sizes: list[int]
    report: Report


class Future:
    """A read in flight. `await` it, or call `result()`."""

    def __init__(
        self,
        pending: _core.Pending | Sequence[_core.Pending],
        memories: Sequence[Memory],
        of: File | Table | None,
    ) -> None:
        self._pending = [pending] if isinstance(pending, _core.Pending) else list(pending)
        self._gpus = sorted({m.gpu for m in memories if m.gpu is not None})
        self._of = of
        self._cancelled = False

    def done(self) -> bool:
        """Returns whether it has finished: successfully, with an error, or cancelled."""
        return all(pending.done() for pending in self._pending)

    def cancelled(self) -> bool:
        return self._cancelled

    def result(self, timeout: float | None = None) -> int:
        """Waits until the bytes are in place, for work on any stream to see, and returns how many.

        Raises TimeoutError after `timeout` seconds (the read continues), or the failure as forebay.errors.*.
        """
        return self.report(timeout).bytes

    def report(self, timeout: float | None = None) -> Report:
        """Like `result`, but returns the whole Report."""
        left = time_left(timeout)
        for pending in self._pending:
            if not pending.wait(left()):
                raise TimeoutError(f"the read has not ended within {timeout} s")
        report = together([Report(*pending.report()) for pending in self._pending])
        if self._of is not None:
            self._of.last_report = report
        return report

    def exception(self, timeout: float | None = None) -> ForebayError | None:
        """The failure; None if the read succeeded."""
        try:
            self.result(timeout)
        except ForebayError as error:
            return error
        return None

    def cancel(self) -> bool:
        """Ends the read. Once this has returned, nothing writes to the buffers any more; their content is undefined. False
        if the read had already finished."""
        ended = [pending.cancel() for pending in self._pending]
        self._cancelled = any(ended) or self._cancelled
        return self._cancelled

    def wait_on_stream(self, stream: Any, timeout: float | None = None) -> None:
        """Work queued on `stream` after this returns sees the bytes.

        Waits on the host until the files are read and the last copy to the GPU is queued, not until it has finished.
        Raises like `result` for failures up to then; a copy that fails later is reported by `result`.
        """
        handle = stream_handle(stream)
        if not self._gpus:
            self.result(timeout)
            return
        left = time_left(timeout)
        for gpu in self._gpus:
            for pending in self._pending:
                if not pending.order(gpu, handle, left()):
                    raise TimeoutError(f"the read has not been queued within {timeout} s")

    def __await__(self) -> Generator[Any, None, int]:
        for pending in self._pending:
            if not pending.done():
                yield from self._arrival(pending).__await__()
        return self.result()

    async def _arrival(self, pending: _core.Pending) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        wakeup = pending.wakeup()
        rung: asyncio.Future[None] = loop.create_future()
        loop.add_reader(wakeup, lambda: None if rung.done() else rung.set_result(None))
        try:
            await rung
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            loop.remove_reader(wakeup)
            os.close(wakeup)


def check_texts(path: object, prefer: object) -> None:
    """Raises RequestError where one is no text."""
    for what, value, example in (("path", path, "auto"), ("prefer", prefer, "balance")):
        if not isinstance(value, str):
            raise RequestError(f"{what}={value!r:.80}", f"is of type {type(value).__name__}", f'{what}="{example}"')


def time_left(timeout: float | None) -> Callable[[], float | None]:
    """Seconds until the timeout, whenever asked; None stands for ever."""
    until = None if timeout is None else time.monotonic() + timeout
    return lambda: None if until is None else max(0.0, until - time.monotonic())


def together(reports: Sequence[Report]) -> Report:
    """One report for several concurrent reads."""
    if len(reports) < 2:
        return reports[0] if reports else Report(0, 0, 0, 0, 0, 0.0)
    def total(count: Callable[[Report], int]) -> int:
        return sum(map(count, reports))

    return Report(
        total(lambda r: r.bytes),
        total(lambda r: r.staged_bytes),
        total(lambda r: r.mapped_bytes),
        total(lambda r: r.direct_bytes),
        total(lambda r: r.uncached_bytes),
        max(report.seconds for report in reports),
        total(lambda r: r.repeated_bytes),
    )


class File(io.RawIOBase):
    """An open file, or an open source of any kind. Any number of threads may read at the same time, each from offsets of its own.

    It is also a stream of Python's, for libraries that take one: `read`, `readinto`, `seek` and `tell` share one position,
    which the other methods neither use nor move.
    """

    def __init__(
        self,
        name: Path,
        path: str = "auto",
        direct: bool | None = None,
        *,
        prefer: str = "balance",
        once: bool = False,
    ) -> None:
        """`once`: it is read only once; `close` then releases it in the background, and `release` waits for that."""
        self.name = file_name(name)
        check_texts(path, prefer)
        self._hold(_core.Reader(self.name, path, direct, once, prefer), path)

    @classmethod
    def _of_source(cls, uri: str, path: str, direct: bool | None, prefer: str) -> File:
        check_texts(path, prefer)
        file = cls.__new__(cls)
        file.name = uri
        file._hold(_core.Reader.of_source(uri, path, direct, prefer), path)
        return file

    def _hold(self, reader: _core.Reader, path: str) -> None:
        self._reader, self._path = reader, path
        self._position = 0
        self._spare: Any = None
        # Its report, or what one is made of.
        self._last: Report | tuple[int, int, int, int, int, float, int] | None = None

    @property
    def last_report(self) -> Report | None:
        """Report of the read that ended last; None before the first one."""
        if isinstance(self._last, tuple):
            self._last = Report(*self._last)
        return self._last

    @last_report.setter
    def last_report(self, report: Report | None) -> None:
        self._last = report

    def __del__(self) -> None:
        """Nothing, in place of a stream's close: who drops it doesn't wait, and the reader lets go by itself."""

    def __repr__(self) -> str:
        return f"<forebay.File {self.name!r}>"

    @property
    def mode(self) -> str:
        """As of a file that `open` of Python returns."""
        return "rb"

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        """TypeError, as of an open file of Python: two objects would close one reader."""
        raise TypeError(f"cannot pickle or copy the open file {self.name!r}: pass its name, and forebay.open it there")

    @property
    def size(self) -> int:
        """Current size of the file in bytes; of a source, when it was opened."""
        return self._reader.bytes()

    def close(self) -> None:
        """Waits for the reads in flight and closes the file."""
        self._reader.close()
        self._spare = None
        super().close()

    def readable(self) -> bool:
        self._refuse_closed()
        return True

    def seekable(self) -> bool:
        self._refuse_closed()
        return True

    def write(self, data: Any, /) -> int:
        raise io.UnsupportedOperation(f"{self.name} is open for reading")

    def tell(self) -> int:
        self._refuse_closed()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the stream's position, which may lie beyond the end, and returns it."""
        self._refuse_closed()
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"whence={whence} isn't 0 (from the start), 1 (from the position) or 2 (from the end)")
        start = 0 if whence == os.SEEK_SET else self._position if whence == os.SEEK_CUR else self.size
        position = start + operator.index(offset)
        if position < 0:
            raise ValueError(f"seek to {position}: before the start of {self.name}")
        self._position = position
        return position

    def readinto(self, buffer: Any, /) -> int:
        """Fills `buffer`, which may be on a GPU, from the stream's position on; returns how many bytes, less only at the end."""
        self._refuse_closed()
        if self._position >= self.size:
            return 0
        count = self.read_into(buffer, self._position)
        self._position += count
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        """As many bytes from the stream's position on, less only at the end; all of them for -1."""
        self._refuse_closed()
        left = max(0, self.size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        piece = min(wanted, SPARE_BYTES)
        # Taken while it is in use: a thread that reads at the same time makes its own.
        spare, self._spare = self._spare, None
        into = memoryview(spare if spare is not None and len(spare) >= piece else bytearray(piece))
        parts = []
        while wanted and (count := self.readinto(into[: min(wanted, piece)])):
            parts.append(bytes(into[:count]))
            wanted -= count
        self._spare = into.obj
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readall(self) -> bytes:
        return self.read()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")

    def read_into(
        self, buffer: Any, offset: int = 0, size: int | None = None, *, stream: Any = None
    ) -> int:
        """Reads `size` bytes (default: as many as file and buffer hold) from `offset` into `buffer`; returns how many.

        They are in place when it returns. See `read_async` for `stream`.
        """
        return self.read_async(buffer, offset, size, stream).result()

    def read_async(
        self, buffer: Any, offset: int = 0, size: int | None = None, stream: Any = None
    ) -> Future:
        """`read_into`, returning a Future instead of waiting. The Future keeps the buffer alive.

        A buffer on a GPU is written to only after the work queued on `stream` before this call has finished. None
        stands for the buffer's own stream: PyTorch's current one, the one that CuPy names, else the default stream.
        -1 doesn't wait. Work after `Future.result()` or `Future.wait_on_stream()` sees the bytes.
        """
        return self.read_ranges_async([(offset, size, buffer)], stream)

    def read_ranges(self, ranges: Iterable[tuple[int, int | None, Any]], *, stream: Any = None) -> int:
        """Reads all (offset, size, buffer) at the same time; returns the total number of bytes."""
        return self.read_ranges_async(ranges, stream).result()

    def read_ranges_async(self, ranges: Iterable[tuple[int, int | None, Any]], stream: Any = None) -> Future:
        """`read_ranges`, returning a Future instead of waiting."""
        asked: list[tuple[int, int, int | None, int]] = []
        memories: list[Memory] = []
        for number, one in enumerate(ranges):
            try:
                offset, size, buffer = one
            except (TypeError, ValueError):
                raise RequestError(f"ranges[{number}]", "isn't (offset, size, buffer)", "(0, 4096, buffer)") from None
            memory = memory_of(buffer)
            self._check_place(memory)
            asked.append((offset, self._fitting(memory, offset, size), memory.gpu, memory.address))
            memories.append(memory)
        return self._start(asked, memories, stream)

    def gather(
        self,
        rows: Any,
        row_bytes: int,
        out: Any,
        *,
        start: int = 0,
        offsets: Any = None,
        stream: Any = None,
    ) -> int:
        """Reads rows of a table into `out`, packed one after another; returns the total number of bytes.

        rows       their numbers: one-dimensional integers, in memory of the host or of a GPU, in any order, duplicates
                   allowed
        row_bytes  size of each; row n begins at byte `start` + n × `row_bytes` of the file
        out        memory for len(rows) × row_bytes. On a GPU it is filled in one of two ways: CPUs copy cached rows into
                   pinned memory (path="bounce"), which is faster for short rows where many CPUs are idle; or one launch
                   for thousands of rows fetches each of them once from the registered page cache, for next to no CPU
                   time (path="mapped"). path="auto" begins with the first, and takes the second where `prefer` has it so
                   and as much time was spent as registering the file takes, which goes on in the background
        offsets    in place of `start`: row n begins at byte offsets[n]

        Raises RequestError for a row that the file doesn't have; nothing is written then. Numbers on a GPU are checked, once
        the work is done that their stream was given before, and stay there where the GPU fetches the rows itself. See
        `read_async` for `stream`.
        """
        if offsets is None and stream is None:
            # Few rows are copied in less time than a Future, or a Report, would take to make.
            begun = self._reader.gather_arrays(rows, row_bytes, start, out, True)
            if isinstance(begun, tuple):
                self._last = begun
                return begun[0]
            if begun is not None:
                return Future(begun, [], self).result()
        return self._gather(rows, row_bytes, out, start, offsets, stream, waits=True).result()

    def gather_async(
        self, rows: Any, row_bytes: int, out: Any, start: int = 0, offsets: Any = None, stream: Any = None
    ) -> Future:
        """`gather`, returning a Future instead of waiting."""
        if offsets is None and stream is None:
            pending = self._reader.gather_arrays(rows, row_bytes, start, out, False)
            if isinstance(pending, _core.Pending):
                return Future(pending, [], self)
        return self._gather(rows, row_bytes, out, start, offsets, stream, waits=False)

    def _gather(
        self, rows: Any, row_bytes: int, out: Any, start: int, offsets: Any, stream: Any, *, waits: bool
    ) -> Future:
        check_row(row_bytes, start)
        if offsets is None:
            ours = self._gather_there(rows, row_bytes, out, start, stream)
            if ours is not None:
                return ours
        if offsets is not None:
            numbers = whole_numbers(rows, "rows")
            begins = begins_of(numbers, offsets, self.name, start)
            check_inside(numbers, begins, row_bytes, self.size, self.name)
            return self._read_each(begins, 0, 1, row_bytes, out, stream, waits=waits)
        there = max(0, self.size - start) // row_bytes
        found = integers(rows, "rows")
        try:
            # They are checked while they are copied: a look of its own takes as long as processors have for some of the rows.
            return self._read_each(words_of(found), start, row_bytes, row_bytes, out, stream, there, waits=waits)
        except RequestError:
            check_signs(found, "rows")
            check_rows(found, there, self.name, f"{there} rows of {row_bytes} bytes from byte {start} on")
            raise

    def _gather_there(self, rows: Any, row_bytes: int, out: Any, start: int, stream: Any) -> Future | None:
        """`gather_async` by numbers that stay on the GPU. None where they must come to the host: they lie there already, not
        all of the file may be read by the GPU yet, or one of them is wrong."""
        there = on_gpu(rows, "rows") if abilities(self._path).may_map else None
        if there is None:
            return None
        given, kind = there
        count = given.bytes // kind.itemsize
        if given.gpu is None or given.address % kind.itemsize or kind.itemsize > 8 or not kind.isnative:
            return None
        memory = memory_of(out)
        if memory.gpu != given.gpu:
            return None
        self._fitting(memory, 0, row_bytes * count)
        limit = max(0, self.size - start) // row_bytes
        pending = self._reader.gather_there(
            given.gpu, stream_of(given), given.address, kind.itemsize, kind.kind == "i", count, limit,
            start, row_bytes, memory.address, [memory, given], streams_before([memory], stream),
        )  # fmt: skip
        return None if pending is None else Future(pending, [memory], self)

    def read_at(self, offsets: Any, size: int, buffer: Any, *, stream: Any = None) -> int:
        """Reads `size` bytes from each of `offsets` into `buffer`, packed one after another; returns the total.

        Like `gather`, for data that isn't in rows: `offsets` is an array of integers, and no Python object is created for
        each.
        """
        return self._read_at(offsets, size, buffer, stream, waits=True).result()

    def read_at_async(self, offsets: Any, size: int, buffer: Any, stream: Any = None) -> Future:
        """`read_at`, returning a Future instead of waiting."""
        return self._read_at(offsets, size, buffer, stream, waits=False)

    def _read_at(self, offsets: Any, size: int, buffer: Any, stream: Any, *, waits: bool) -> Future:
        begins = whole_numbers(offsets, "offsets")
        if check_whole(size, "size") < 0:
            raise RequestError(f"size={size}", "it is negative", "0 or more")
        return self._read_each(begins, 0, 1, size, buffer, stream, waits=waits)

    def _read_each(
        self,
        numbers: Any,
        begin: int,
        step: int,
        size: int,
        buffer: Any,
        stream: Any,
        limit: int | None = None,
        *,
        waits: bool,
    ) -> Future:
        memory = memory_of(buffer)
        self._check_place(memory)
        self._fitting(memory, 0, int(size) * numbers.size)
        after = streams_before([memory], stream)
        pending = self._begin(numbers, begin, step, size, memory, after, limit, waits=waits)
        return Future(pending, [memory], self)

    def _begin(
        self,
        numbers: Any,
        begin: int,
        step: int,
        size: int,
        memory: Memory,
        after: Any,
        limit: int | None = None,
        *,
        waits: bool,
    ) -> _core.Pending:
        words = words_of(numbers)
        (address, _), at = words.__array_interface__["data"], memory.address
        return self._reader.gather(
            address, words.size, begin, step, size, limit, memory.gpu, at, [memory], after, waits
        )  # fmt: skip

    def _start(
        self, asked: list[tuple[int, int, int | None, int]], memories: list[Memory], stream: Any
    ) -> Future:
        after = streams_before(memories, stream)
        return Future(self._reader.start(asked, memories, after), memories, self)

    def _check_place(self, memory: Memory) -> None:
        if memory.gpu is not None and not abilities(self._path).reaches_gpu:
            raise RequestError(
                f"read {self.name} into memory of GPU {memory.gpu}",
                f'it was opened with path="{self._path}"',
                'forebay.open(…, path="auto")',
            )

    def _fitting(self, memory: Memory, offset: int, size: int | None) -> int:
        if check_whole(offset, "offset") < 0 or (size is not None and check_whole(size, "size") < 0):
            raise RequestError(f"offset={offset}, size={size}", "must not be negative", "0 or more")
        if size is None:
            return max(0, min(memory.bytes, self.size - offset)) if memory.bytes else 0
        if size > memory.bytes:
            raise RequestError(
                f"read {size} bytes of {self.name}", f"the buffer holds {memory.bytes}", "a larger buffer"
            )
        return size


def read_files(
    paths: Sequence[Path],
    into: Any,
    *,
    sizes: Sequence[int] | None = None,
    align: int = 1,
    stream: Any = None,
) -> FilesRead:
    """Reads many files whole: into one buffer, side by side in the order of `paths`, each beginning on a multiple of
    `align` bytes; or each into its own, where `into` is a list or tuple of buffers.

    `sizes`, where known, saves asking the system for them; a file of another size is an error. `stream` as for
    `File.read_async`. Raises RequestError where a buffer is too small or a file is missing.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise RequestError(f"read_files({paths!r}, …)", "it is one path", f"a list of paths: [{paths!r}]")
    names = [file_name(p) for p in paths]
    lengths = _core.sizes_of(names) if sizes is None else [check_whole(n, "sizes") for n in sizes]
    if len(lengths) != len(names) or any(n < 0 for n in lengths):
        raise RequestError(f"read {len(names)} files", f"there are {len(lengths)} sizes", "one size for each")
    if check_whole(align, "align") < 1:
        raise RequestError(f"align={align}", "it must be 1 or more", "align=1")
    if isinstance(into, (list, tuple)):
        memories, offsets = own_buffers(names, lengths, into), [0] * len(names)
        gpus: list[int | None] = [m.gpu for m in memories]
        addresses = [m.address for m in memories]
    else:
        memories = [memory_of(into)]
        offsets, end = side_by_side(lengths, align)
        if end > memories[0].bytes:
            raise RequestError(
                f"read {len(names)} files into one buffer",
                f"they need {end} bytes and it holds {memories[0].bytes}",
                "a larger buffer",
            )
        gpus = [memories[0].gpu]
        addresses = [memories[0].address + at for at in offsets]
    if not names:
        return FilesRead([], [], Report(0, 0, 0, 0, 0, 0.0))
    after = streams_before(memories, stream)
    pending = _core.read_files(names, lengths, gpus, addresses, memories, after)
    return FilesRead(offsets, lengths, Future(pending, memories, None).report())


def side_by_side(sizes: Sequence[int], align: int) -> tuple[list[int], int]:
    """Returns the start of each, and the end of the last."""
    offsets, end = [], 0
    for size in sizes:
        begin = -(-end // align) * align
        offsets.append(begin)
        end = begin + size
    return offsets, end


def own_buffers(names: list[str], sizes: list[int], into: Sequence[Any]) -> list[Memory]:
    if len(into) != len(names):
        raise RequestError(
            f"read {len(names)} files", f"there are {len(into)} buffers", "one buffer for each, or one for all"
        )
    memories = [memory_of(buffer) for buffer in into]
    for name, size, memory in zip(names, sizes, memories, strict=True):
        if size > memory.bytes:
            raise RequestError(
                f"read {size} bytes of {name}", f"its buffer holds {memory.bytes}", "a larger buffer"
            )
    return memories


def release() -> None:
    """Ends the reading threads, and frees pinned memory and what is kept for the next; the next read starts them again."""
    _core.release()
    staging.release()


@overload
def open(name: Path, path: str = "auto", direct: bool | None = None, *, prefer: str = "balance") -> File: ...


@overload
def open(
    name: list[Any] | tuple[Path, ...],
    path: str = "auto",
    direct: bool | None = None,
    *,
    prefer: str = "balance",
    stripe_bytes: int | None = None,
) -> Table: ...


def open(
    name: Path | list[Any] | tuple[Path, ...],
    path: str = "auto",
    direct: bool | None = None,
    *,
    prefer: str = "balance",
    stripe_bytes: int | None = None,
) -> File | Table:
    """Opens a file or block device for reading; a list of them as one `Table`; a source by its URI, which takes no `direct` and
    no `prefer`.

    path          "auto": chosen for each range; "bounce": through pinned buffers; "mapped": read by the GPU from the page
                  cache, data that isn't cached through pinned buffers; "host": no GPU
    direct        None: O_DIRECT for data that isn't in the page cache; True: for everything; False: for nothing
    prefer        what "auto" favours for cached data and a GPU. "balance": the way that takes the least CPU time, of those
                  that reach two thirds of the fastest's rate; "rate": the fastest; "cpu": the least CPU time
    stripe_bytes  for several files: stripe unit of the table, which is distributed over the files in turn.
                  None: the files' rows are concatenated
    """
    if isinstance(name, (str, bytes, os.PathLike, io.IOBase)) or not isinstance(name, Iterable):
        if stripe_bytes is not None:
            raise RequestError(f"stripe_bytes={stripe_bytes}", "there is one file", "a list of files")
        text, is_source = opened(name)
        return File._of_source(text, path, direct, prefer) if is_source else File(text, path, direct, prefer=prefer)
    from forebay.tables import Table

    return Table(name, path, direct, stripe_bytes, prefer)
