"""A source of any kind read into an array, as bench/child.py asks it: `child_open_uri.py ARRAY_BYTES KIND`.

KIND is `numpy`, as numpy.empty makes it, 16 bytes after a page's begin, or `page`, at its begin. A request says `uri` and `pids`,
the processes at its other end, whose CPU is counted, too. The source is opened, and the array filled once, before anything is
measured; then `forebay.open(URI).read_into` of the source, one array's length behind another.
"""

from __future__ import annotations

import itertools
import mmap
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy
from child import Answer, Stopwatch, serve

IO_BYTES = 1 << 20


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], Answer]:
    import forebay

    size, kind = int(arguments[0]), arguments[1]
    array = numpy.empty(size, numpy.uint8) if kind == "numpy" else numpy.frombuffer(mmap.mmap(-1, size), numpy.uint8)
    # Memory is there before anything is measured, or copied by the way that is the fastest while pages are made.
    array[:] = 0

    def run(request: dict[str, Any]) -> Answer:
        with forebay.open(request["uri"]) as source:
            begins = itertools.cycle(range(0, source.size - array.nbytes + 1, array.nbytes))
            source.read_into(array, next(begins))
            watch, moved = Stopwatch(request["pids"]), 0
            while watch.seconds() < request["seconds"]:
                moved += source.read_into(array, next(begins))
            return watch.answer(moved, moved // IO_BYTES, **asdict(source.last_report) if source.last_report else {})

    return run


if __name__ == "__main__":
    sys.exit(serve(prepare))
