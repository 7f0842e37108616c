"""What more queues to the target are worth where the way is long: 64 KiB and 1 ms, by 1 to 31 queues.

Each queue carries one command at a time, so that a queue gives 64 KiB each millisecond, and n queues n times that until
something else is the limit. The millisecond is the link's, made by netem between two network namespaces, which needs
root and a kernel that has it (sch_netem); or with `--delay-in drive` the drive's, a model that answers after it. Either
is simulated; target, gateway and driver are real.
"""

from __future__ import annotations

import functools
import sys

from gateway import spread
from peers import available
from side_by_side import Bound, Cell, arguments, compare

PROMISES = ("MSR-19",)

QUEUES = (1, 7, 15, 23, 31)
NIL = "nil:?size=64g"
LINEAR = 0.9


def named(queues: int) -> str:
    return f"{queues} queue{'s' * (queues > 1)}"


def scaling(block: int, delay_us: int, where: str) -> Cell:
    flags = f"--op read --io-size {block} --workers 1".split()
    link_us = delay_us if where == "link" else None
    source = NIL if where == "link" else f"model:gen5-ideal?latency_us={delay_us}&channels=64&read_mb_s=100000"
    contenders = available(*(functools.partial(spread, named(n), source, n, link_us, *flags) for n in QUEUES))
    bounds = [Bound("rate", (named(1),), at_least=round(LINEAR * n, 1), of=named(n)) for n in QUEUES[1:]]
    return Cell(f"{block >> 10}k, {delay_us} us in the {where}", contenders, bounds, ours=named(QUEUES[-1]))


def main() -> int:
    parser = arguments(__doc__ or "", seconds=3, only=False)
    parser.add_argument("--delay-us", type=int, default=1000, help="what a command waits besides (1000)")
    parser.add_argument("--delay-in", choices=("link", "drive"), default="link", help="who makes it wait (link)")
    options = parser.parse_args()
    cell = functools.partial(scaling, 64 << 10, options.delay_us, options.delay_in)
    return compare("Queues over a long way", options, [cell])


if __name__ == "__main__":
    sys.exit(main())
