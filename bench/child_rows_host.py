"""Random rows of a cached file into host memory, as bench/child.py asks it: `child_rows_host.py WAY PATH`.

WAY is `gather` (`forebay.open(…, "host").gather`), or numpy.take at its fastest, into memory that is there and without a look at
each number: `memmap` of a numpy.memmap, `array` of an array that holds the file in pages as large as the page cache's, `huge` of
one in huge pages. A request says `row_bytes` and `at_once`, the
rows of a batch. Batches are drawn beforehand, as many as touch far more than a processor's caches hold.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from child import Answer, Stopwatch, serve

# Where huge pages begin.
ALIGNED = 2 << 20
TOUCHED_BYTES = 256 << 20
BATCHES = (8, 2048)
# Between two looks at the clock.
CALLS = 8

Take = Callable[[Any], object]


def by_gather(path: str) -> Callable[[int, Any], Take]:
    import forebay

    file = forebay.open(path, "host")

    def of(row_bytes: int, out: Any) -> Take:
        return lambda rows: file.gather(rows, row_bytes, out)

    return of


def by_take(flat: Any) -> Callable[[int, Any], Take]:
    def of(row_bytes: int, out: Any) -> Take:
        table = flat[: flat.size // row_bytes * row_bytes].reshape(-1, row_bytes)
        return lambda rows: numpy.take(table, rows, axis=0, out=out, mode="clip")

    return of


def held(flat: Any, huge: bool) -> Any:
    """A copy in pages of that kind."""
    memory = mmap.mmap(-1, flat.size + ALIGNED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    copy = numpy.frombuffer(memory, numpy.uint8)
    copy = copy[-copy.ctypes.data % ALIGNED :][: flat.size]
    copy[:] = flat
    return copy


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], Answer]:
    way, path = arguments
    flat = numpy.memmap(path, numpy.uint8, "r")
    size = flat.size
    of = by_gather(path) if way == "gather" else by_take(flat if way == "memmap" else held(flat, way == "huge"))

    def run(request: dict[str, Any]) -> Answer:
        row_bytes, at_once = request["row_bytes"], request["at_once"]
        least, most = BATCHES
        count = min(max(least, TOUCHED_BYTES // (row_bytes * at_once)), most)
        batches = list(numpy.random.default_rng(7).integers(size // row_bytes, size=(count, at_once)))
        out = numpy.empty((at_once, row_bytes), numpy.uint8)
        take = of(row_bytes, out)
        # The file is mapped, and its page tables filled, once enough rows were asked for.
        for batch in batches:
            take(batch)
        expected = flat[int(batches[-1][-1]) * row_bytes :][:row_bytes]
        if not numpy.array_equal(out[-1], expected):
            raise ValueError("its last row isn't the file's")
        watch = Stopwatch()
        calls = 0
        while watch.seconds() < request["seconds"]:
            for _ in range(CALLS):
                take(batches[calls % count])
                calls += 1
        rows = calls * at_once
        return watch.answer(rows * row_bytes, rows)

    return run


if __name__ == "__main__":
    sys.exit(serve(prepare))
