"""What our own loop costs: `nil:` completes every I/O at once, as fio's null engine does.

Both count every latency. fio without its clock readings (gtod_reduce) measures no latency; it is shown, and not what
is compared with.
"""

from __future__ import annotations

import functools
import sys

from peers import available, fio, forebay
from side_by_side import Bound, Cell, Contender, arguments, compare

NULL, UNTIMED = "fio null", "fio null, no latencies"


def null(name: str, depth: int, *flags: str) -> Contender:
    job = f"--ioengine=null --filename=null --size=1t --rw=read --bs=4k --iodepth={depth}"
    return fio(name, *job.split(), *flags)


def cell(depth: int) -> Cell:
    flags = f"--op read --io-size 4k --workers 1 --depth {depth}".split()
    contenders = available(
        lambda: forebay("nil:", "--path", "host", *flags),
        lambda: null(NULL, depth),
        lambda: null(UNTIMED, depth, "--gtod_reduce=1"),
    )
    return Cell(f"4k, depth {depth}", contenders, [Bound("cost", (NULL,), at_most=1.0)], per="I/O")


def main() -> int:
    options = arguments(__doc__ or "", seconds=3).parse_args()
    cells = [
        functools.partial(cell, depth)
        for depth in (1, 32)
        if not options.only or options.only in f"depth {depth}"
    ]
    return compare("Our own loop", options, cells)


if __name__ == "__main__":
    sys.exit(main())
