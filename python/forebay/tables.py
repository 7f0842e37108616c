"""Several files as one table of rows: concatenated, striped, or by tables of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay import _core
from forebay.buffers import memory_of, streams_before
from forebay.errors import ForebayError, RequestError
from forebay.names import Path, file_name
from forebay.reader import File, Future, Report
from forebay.rows import check_inside, check_row, check_rows, check_whole, whole_numbers

# In place of an offset: the row lies in another file.
ELSEWHERE = 2**64 - 1


class Table:
    """Open files whose rows are numbered consecutively. Any number of threads may gather at the same time."""

    def __init__(
        self,
        names: Sequence[Path],
        path: str = "auto",
        direct: bool | None = None,
        stripe_bytes: int | None = None,
        prefer: str = "balance",
    ) -> None:
        self.names = [file_name(name) for name in names]
        self.stripe_bytes = stripe_bytes
        self.last_report: Report | None = None
        if not self.names:
            raise RequestError("forebay.open([])", "there is no file in the list", "one file or more")
        if stripe_bytes is not None and check_whole(stripe_bytes, "stripe_bytes") < 1:
            raise RequestError(f"stripe_bytes={stripe_bytes}", "it must be 1 or more", "stripe_bytes=65536")
        self.files: list[File] = []
        try:
            for name in self.names:
                self.files.append(File(name, path, direct, prefer=prefer))
        except ForebayError:
            self.close()
            raise

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<forebay.Table of {len(self.names)} files, {self.names[0]!r} the first>"

    @property
    def size(self) -> int:
        """Current size of all files together, in bytes."""
        return sum(file.size for file in self.files)

    def close(self) -> None:
        """Waits for the reads in flight and closes the files."""
        for file in self.files:
            file.close()

    def gather(
        self,
        rows: Any,
        row_bytes: int,
        out: Any,
        *,
        start: int = 0,
        offsets: Sequence[Any] | None = None,
        stream: Any = None,
    ) -> int:
        """`File.gather` over all files; returns the total number of bytes.

        Each file holds as many whole rows as fit between its byte `start` and its end, and rows are numbered consecutively
        in the order of the files. If striped, row n begins at byte n × `row_bytes` of the stripe, whose unit is a multiple
        of `row_bytes`. `offsets`: one array per file, with the offset in that file of each of its rows.
        """
        return self.gather_async(rows, row_bytes, out, start, offsets, stream).result()

    def gather_async(
        self,
        rows: Any,
        row_bytes: int,
        out: Any,
        start: int = 0,
        offsets: Sequence[Any] | None = None,
        stream: Any = None,
    ) -> Future:
        """`gather`, returning a Future instead of waiting."""
        import numpy as np

        numbers = whole_numbers(rows, "rows")
        check_row(row_bytes, start)
        which, begins = self._places(numbers, row_bytes, start, offsets)
        used = [file for file in range(len(self.files)) if bool((which == file).any())]
        for file in used:
            own = which == file
            check_inside(numbers[own], begins[own], row_bytes, self.files[file].size, self.names[file])
        memory = memory_of(out)
        self.files[0]._check_place(memory)
        if numbers.size * row_bytes > memory.bytes:
            asked = f"{numbers.size} rows of {row_bytes} bytes"
            raise RequestError(asked, f"the buffer holds {memory.bytes}", "a larger buffer")
        after = streams_before([memory], stream)
        begun: list[_core.Pending] = []
        try:
            for file in used:
                there = np.where(which == file, begins, np.uint64(ELSEWHERE))
                begun.append(self.files[file]._begin(there, 0, 1, row_bytes, memory, after, waits=False))
        except ForebayError:
            Future(begun, [memory], None).cancel()
            raise
        return Future(begun, [memory], self)

    def _places(
        self, numbers: Any, row_bytes: int, start: int, offsets: Sequence[Any] | None
    ) -> tuple[Any, Any]:
        """Returns the file of each row, and the byte where it begins there."""
        import numpy as np

        if self.stripe_bytes is not None:
            return self._striped(numbers, row_bytes, start, offsets)
        if offsets is None:
            counts = [max(0, file.size - start) // row_bytes for file in self.files]
            begins = None
        else:
            tables = self._tables(start, offsets)
            counts = [table.size for table in tables]
            begins = np.concatenate(tables)
        what = f"{sum(counts)} rows of {row_bytes} bytes"
        check_rows(numbers, sum(counts), repr(self), what)
        ends = np.cumsum(np.array(counts, np.uint64))
        places = numbers.astype(np.uint64, copy=False)
        which = np.searchsorted(ends, places, side="right")
        if begins is not None:
            return which, begins[numbers.astype(np.int64, copy=False)]
        firsts = ends - np.array(counts, np.uint64)
        return which, (places - firsts[which]) * np.uint64(row_bytes) + np.uint64(start)

    def _tables(self, start: int, offsets: Sequence[Any]) -> list[Any]:
        import numpy as np

        if start:
            raise RequestError(f"start={start} with offsets", "offsets count from each file's first byte", "one of them")
        if len(offsets) != len(self.files):
            found = f"there are {len(self.files)} files and {len(offsets)} arrays"
            raise RequestError("offsets", found, "an array for each file")
        return [whole_numbers(table, "offsets").astype(np.uint64, copy=False) for table in offsets]

    def _striped(
        self, numbers: Any, row_bytes: int, start: int, offsets: Sequence[Any] | None
    ) -> tuple[Any, Any]:
        import numpy as np

        unit = self.stripe_bytes or 0
        if start or offsets is not None:
            raise RequestError("start or offsets of a stripe", "its rows begin at its first byte", "neither of them")
        if unit % row_bytes:
            found = f"a unit of the stripe has {unit}, and a row would lie in two files"
            raise RequestError(f"rows of {row_bytes} bytes", found, "a stripe_bytes that is a multiple of row_bytes")
        # Every unit that any file has; what a shorter one lacks is told row by row.
        there = max(file.size for file in self.files) // row_bytes * len(self.files)
        check_rows(numbers, there, repr(self), f"less than {there} rows of {row_bytes} bytes")
        each = np.uint64(unit // row_bytes)
        units, within = np.divmod(numbers.astype(np.uint64, copy=False), each)
        rounds, which = np.divmod(units, np.uint64(len(self.files)))
        return which, rounds * np.uint64(unit) + within * np.uint64(row_bytes)
