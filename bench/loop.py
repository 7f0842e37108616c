"""What our own loop costs: `nil:` completes every I/O at once, as fio's null engine does.

Both count every latency. fio without its clock readings (gtod_reduce) measures no latency; it is shown, and not what
is compared with. With `--before PROGRAM` (the `forebay` of another installation) two builds take turns instead: the
95 % interval of their CPU per I/O must reach 1.02 or less.
"""

from __future__ import annotations

import functools
import sys

from peers import BEFORE, available, fio, forebay, program
from side_by_side import Bound, Cell, Contender, arguments, compare

PROMISES = ("MSR-5",)

NULL, UNTIMED = "fio null", "fio null, no latencies"
BEFORE_MOST = 1.02


def null(name: str, depth: int, *flags: str) -> Contender:
    job = f"--ioengine=null --filename=null --size=1t --rw=read --bs=4k --iodepth={depth}"
    return fio(name, *job.split(), *flags)


def cell(depth: int, before: str | None) -> Cell:
    flags = f"--path host --op read --io-size 4k --workers 1 --depth {depth}".split()
    if before:
        pair = [forebay("nil:", *flags), forebay("nil:", *flags, name=BEFORE, program=before)]
        return Cell(f"4k, depth {depth}", pair, [Bound("cost", (BEFORE,), at_most=BEFORE_MOST, sure=True)], per="I/O")
    contenders = available(
        lambda: forebay("nil:", *flags),
        lambda: null(NULL, depth),
        lambda: null(UNTIMED, depth, "--gtod_reduce=1"),
    )
    return Cell(f"4k, depth {depth}", contenders, [Bound("cost", (NULL,), at_most=1.0)], per="I/O")


def main() -> int:
    parser = arguments(__doc__ or "", seconds=3)
    parser.add_argument("--before", type=program, help="`forebay` of another build, to compare this one's CPU per I/O with")
    options = parser.parse_args()
    cells = [
        functools.partial(cell, depth, options.before)
        for depth in (1, 32)
        if not options.only or options.only in f"depth {depth}"
    ]
    return compare("Our own loop, two builds" if options.before else "Our own loop", options, cells)


if __name__ == "__main__":
    sys.exit(main())
