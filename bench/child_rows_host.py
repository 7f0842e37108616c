"""Random rows of a cached file into host memory, as bench/child.py asks it: `child_rows_host.py PATH`.

A request says `row_bytes`, `at_once`, the rows of a batch, and `way`: `gather` (`forebay.open(…, "host").gather`), or numpy.take
at its fastest, into memory that is there and without a look at each number: `memmap` of a numpy.memmap, `array` of an array that
holds the file in pages as large as the page cache's, `huge` of one in huge pages. All of them fill the same memory, with the same
batches: where that lies decides a tenth. Batches are drawn beforehand, as many as touch far more than a processor's caches hold.
"""

from __future__ import annotations

import functools
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
    (path,) = arguments
    flat = numpy.memmap(path, numpy.uint8, "r")
    ways = {
        "gather": by_gather(path), "memmap": by_take(flat),
        "array": by_take(held(flat, huge=False)), "huge": by_take(held(flat, huge=True)),
    }  # fmt: skip

    @functools.lru_cache(maxsize=1)
    def drawn(row_bytes: int, at_once: int) -> tuple[list[Any], Any]:
        least, most = BATCHES
        count = min(max(least, TOUCHED_BYTES // (row_bytes * at_once)), most)
        batches = list(numpy.random.default_rng(7).integers(flat.size // row_bytes, size=(count, at_once)))
        return batches, numpy.empty((at_once, row_bytes), numpy.uint8)

    def run(request: dict[str, Any]) -> Answer:
        row_bytes, at_once = request["row_bytes"], request["at_once"]
        batches, out = drawn(row_bytes, at_once)
        take = ways[request["way"]](row_bytes, out)
        # The file is mapped, and its page tables filled, once enough rows were asked for.
        for batch in batches:
            take(batch)
        expected = flat[int(batches[-1][-1]) * row_bytes :][:row_bytes]
        if not numpy.array_equal(out[-1], expected):
            raise ValueError("its last row isn't the file's")
        watch, done = Stopwatch(), 0
        while watch.seconds() < request["seconds"]:
            for n in range(CALLS):
                take(batches[(done + n) % len(batches)])
            done += CALLS
        return watch.answer(done * at_once * row_bytes, done * at_once)

    return run


if __name__ == "__main__":
    sys.exit(serve(prepare))
