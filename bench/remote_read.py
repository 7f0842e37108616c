"""NVMe/TCP over loopback: our host reading from our target, beside SPDK's pair and TCP with nothing above it.

The target serves `nil:` (SPDK's: its null device), so that neither touches data: what is measured is the protocol.
SPDK's two ends poll on a processor each; ours do as well where the name says `spinning`. Otherwise they poll for a
moment before they sleep, where that pays, and not at all where the name says `asleep`. All ends have the same congestion
control. Each contender runs at its own best number of queues and depth.

With `--before PROGRAM` (the `forebay` of another installation) two builds take turns instead, each at both ends: the 95 %
interval of their rates' ratio must contain 1.00 and lie within 5 % of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from peers import BEFORE, available, program
from remote import forebay, iperf3, raw, spdk
from side_by_side import Bound, Cell, Contender, arguments, compare, find_depth, say

PROMISES = ("MSR-13", "MSR-14")

RAW1, RAW2, IPERF1, IPERF2, SPDK = "tcp, 1 connection", "tcp, 2 connections", "iperf3 -P 1", "iperf3 -P 2", "SPDK null"
PINGPONG, SPINNING, ASLEEP = "tcp ping-pong", "forebay, spinning", "forebay, asleep"
NIL = "nil:?size=64g"
QUEUES = (1, 7, 15, 31)
# Processors of the two ends where both stay where they are; SPDK's do so everywhere.
APART = (0, 1)
# workers, queues of all of them, depth of each worker
SHAPES = ((1, 1, 2), (1, 1, 4), (1, 1, 8), (1, 1, 16), (2, 2, 2), (2, 2, 4), (2, 2, 8))
SPDK_SHAPES = ((1, 8), (1, 16), (2, 8), (4, 16))


def read(
    name: str, block: int, shape: tuple[int, ...], more: str = "", cpus: tuple[int, int] | None = None
) -> Contender:
    workers, queues, depth = shape
    flags = f"--op read --io-size {block} --workers {workers} --depth {depth}".split()
    spin_us = {SPINNING: "1000", ASLEEP: "0"}.get(name)
    if spin_us is None:
        return forebay(name, NIL, f"?queues={queues}{more}", *flags, cpus=cpus)
    spins = ("--spin-us", spin_us)
    return forebay(name, NIL, f"?queues={queues}&spin_us={spin_us}{more}", *flags, serve_flags=spins, cpus=cpus)


def best(
    make: Callable[[tuple[int, ...]], Contender], shapes: tuple[tuple[int, ...], ...], scan_s: float
) -> tuple[Contender, dict[str, Any]]:
    contender, how = find_depth(make, shapes, scan_s, say)
    names = ("workers", "queues", "depth")[-len(how["depth"]) :]
    how["shown"] = ", ".join(f"{n} {v}" for n, v in zip(names, how["depth"], strict=True))
    return contender, how


def ceiling(block: int, scan_s: float) -> Cell:
    """As fast as TCP goes here, and as SPDK goes."""
    raws = available(
        lambda: raw(RAW1, "stream", str(block), "1"),
        lambda: raw(RAW2, "stream", str(block), "2"),
        lambda: iperf3(IPERF1, block, 1),
        lambda: iperf3(IPERF2, block, 2),
    )
    tuned = available(
        lambda: best(lambda s: spdk(SPDK, block, s[1], s[0]), SPDK_SHAPES, scan_s),
        lambda: best(lambda s: read(SPINNING, block, s), SHAPES, scan_s),
        lambda: best(lambda s: read("forebay", block, s), SHAPES, scan_s),
    )
    bounds = [
        Bound("rate", tuple(c.name for c in raws), at_least=0.85, pick="fastest"),
        Bound("rate", (SPDK,), at_least=1.0),
    ]
    chosen = {c.name: how for c, how in tuned}
    return Cell(f"{block >> 10}k", [*raws, *(c for c, _ in tuned)], bounds, chosen=chosen)


def latency() -> Cell:
    """One 4 KiB read at a time. The ping-pong moves what NVMe/TCP moves: a capsule there, a header and 4 KiB back.

    All of them have their two ends on the same two processors: what a wake-up costs depends on which those are.
    """
    contenders = available(
        lambda: raw(PINGPONG, "pingpong", "72", str(24 + 4096), f"{APART[0]},{APART[1]}"),
        lambda: spdk(SPDK, 4096, 1),
        lambda: read(SPINNING, 4096, (1, 1, 1), cpus=APART),
        lambda: read(ASLEEP, 4096, (1, 1, 1), cpus=APART),
        lambda: read("forebay", 4096, (1, 1, 1), cpus=APART),
    )
    bounds = [
        Bound("time", (PINGPONG,), at_most=8.0, of=ASLEEP),
        Bound("time", (), at_most=40.0),
        Bound("time", (SPDK,), at_most=0.0, of=SPINNING),
    ]
    return Cell("4k, depth 1", contenders, bounds, per="I/O")


def small() -> Cell:
    contenders = available(
        lambda: spdk(SPDK, 4096, 32),
        lambda: read(SPINNING, 4096, (1, 1, 32), cpus=APART),
        lambda: read("forebay", 4096, (1, 1, 32), cpus=APART),
    )
    bounds = [
        Bound("rate", (SPDK,), at_least=1.0, of=SPINNING),
        Bound("cost", (SPDK,), at_most=1.0, of=SPINNING),
        Bound("rate", (SPDK,), at_least=1.0),
    ]
    return Cell("4k, depth 32, one queue", contenders, bounds, per="I/O")


def queues(block: int) -> Cell:
    """The same 32 commands in flight, spread over more connections."""

    def named(n: int) -> str:
        return f"{n} queue{'s' * (n > 1)}"

    contenders = available(*(functools.partial(read, named(n), block, (1, n, 32)) for n in QUEUES))
    bounds = [
        Bound("rate", tuple(named(m) for m in QUEUES[:i]), at_least=0.90, pick="fastest", of=named(n))
        for i, n in enumerate(QUEUES)
        if i
    ]
    return Cell(f"{block >> 10}k, queues", contenders, bounds, ours=named(QUEUES[-1]))


def digests(block: int, at_least: float) -> Cell:
    on = "&hdgst=1&ddgst=1"
    off_name, spdk_on = "no digests", "SPDK null, both digests"
    contenders = available(
        lambda: read(off_name, block, (1, 1, 8)),
        lambda: spdk(SPDK, block, 8),
        lambda: spdk(spdk_on, block, 8, digests=True),
        lambda: read("forebay", block, (1, 1, 8), on),
    )
    bounds = [
        Bound("rate", (off_name,), at_least=at_least),
        Bound("rate", (SPDK,), at_least=1.0, of=off_name),
        Bound("rate", (spdk_on,), at_least=1.0),
    ]
    return Cell(f"{block >> 10}k, both digests", contenders, bounds)


def builds(block: int, depth: int, before: str) -> Cell:
    """This build and another one, by one queue."""
    flags = f"--op read --io-size {block} --workers 1 --depth {depth}".split()
    pair = [
        forebay(name, NIL, "?queues=1", *flags, cpus=APART, program=other)
        for name, other in (("forebay", None), (BEFORE, before))
    ]
    return Cell(f"{block >> 10}k, depth {depth}", pair, [Bound("rate", (BEFORE,), at_least=0.95, at_most=1.05, same=True)])


def main() -> int:
    parser = arguments(__doc__ or "", seconds=3, scan=True)
    parser.add_argument("--before", type=program, help="`forebay` of another build, to compare this one's rates with")
    options = parser.parse_args()
    if options.before:
        pairs = [
            functools.partial(builds, block << 10, depth, options.before)
            for block, depth in ((128, 8), (1024, 8), (4, 1), (4, 32))
            if not options.only or options.only in f"{block}k, depth {depth}"
        ]
        return compare("NVMe/TCP over loopback, two builds", options, pairs)
    cells: dict[str, Callable[[], Cell]] = {
        "128k": functools.partial(ceiling, 128 << 10, options.scan_seconds),
        "1024k": functools.partial(ceiling, 1 << 20, options.scan_seconds),
        "4k, depth 1": latency,
        "4k, depth 32": small,
        "64k, queues": functools.partial(queues, 64 << 10),
        "1024k, queues": functools.partial(queues, 1 << 20),
        "128k, both digests": functools.partial(digests, 128 << 10, 0.87),
        "1024k, both digests": functools.partial(digests, 1 << 20, 0.95),
    }
    wanted = [build for name, build in cells.items() if not options.only or options.only in name]
    return compare("NVMe/TCP over loopback", options, wanted)


if __name__ == "__main__":
    sys.exit(main())
