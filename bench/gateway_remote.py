"""The gateway over NVMe/TCP, beside the same target used directly, and beside the same drive read locally.

Driver, gateway and target are three processes on one machine. What the gateway adds must be little: 12 us at 4 KiB one
at a time, a tenth of the throughput at 64 KiB, a twentieth from 128 KiB on. Latency is measured twice: on one processor,
which shows what the gateway's work costs, and wherever the kernel puts the three, where each wake-up of another processor
counts. Throughput against the target is measured twice, too: with the threads of all three pinned to the same processors,
so that each queue stays on one from end to end, and where the kernel puts them. The paced drive is a model with content in
memory, at half of what TCP carries here, so that neither the link nor the memory is what limits it. The disk of `--dir`
stands beside it.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from gateway import through
from peers import available, made
from remote import forebay
from remote_local import LOCAL, local, paced
from side_by_side import Bound, Cell, arguments, compare, existing_folder

PROMISES = ("MSR-18",)

DIRECT = "nvme+tcp: directly"
NIL = "nil:?size=64g"
ADDED_US = 12.0
# block, depth of each worker, least ratio against the same target used directly
SIZES = ((64 << 10, 32, 0.90), (128 << 10, 32, 0.95), (512 << 10, 16, 0.95), (1 << 20, 8, 0.95), (4 << 20, 4, 0.95))
# block, depth of each worker, least ratio against the drive read locally, as the lower end of the interval
PACED = ((64 << 10, 32, 0.84), (128 << 10, 16, 0.97), (512 << 10, 8, 0.99), (1 << 20, 8, 0.99), (4 << 20, 4, 0.99))
# A worker, a thread of the gateway and a fabric queue for each of two processors.
SIDES = 2


def latency(name: str, cpu: int | None) -> Cell:
    """`cpu`: the processor that everybody stays on."""
    flags = "--op read --io-size 4096 --workers 1 --depth 1".split()
    contenders = available(
        lambda: forebay(DIRECT, NIL, "", *flags, cpus=None if cpu is None else (cpu, cpu)),
        lambda: through("forebay", NIL, "", *flags, cpu=cpu),
    )
    return Cell(name, contenders, [Bound("time", (DIRECT,), at_most=ADDED_US)], per="I/O")


def beside_direct(name: str, pins: str, block: int, depth: int, at_least: float) -> Cell:
    """`pins`: the processors that the threads of each process are pinned to, in turn; empty: none."""
    flags = f"--op read --io-size {block} --workers {SIDES} --depth {depth}".split()
    pinned = ("--cpus", pins) if pins else ()
    contenders = available(
        lambda: forebay(DIRECT, NIL, "?queues=2", *flags, *pinned, serve_flags=pinned),
        lambda: through("forebay", NIL, "?queues=2", *flags, threads=SIDES, pins=pins),
    )
    return Cell(f"{name}, {block >> 10}k", contenders, [Bound("rate", (DIRECT,), at_least=at_least)])


def beside_local(kind: str, drive: str, block: int, depth: int, at_least: float | None) -> Cell:
    """`at_least`: None where the figures only stand beside the others."""
    flags = f"--op read --io-size {block} --workers {SIDES} --depth {depth}".split()
    contenders = available(
        lambda: local(drive, *flags), lambda: through("forebay", drive, "?queues=2", *flags, threads=SIDES)
    )
    bounds = [] if at_least is None else [Bound("rate", (LOCAL,), at_least=at_least, sure=True)]
    return Cell(f"{kind}, {block >> 10}k", contenders, bounds)


def main() -> int:
    parser = arguments(__doc__ or "", seconds=3)
    parser.add_argument("--file-mib", type=int, default=512, help="size of the drive's content (512)")
    parser.add_argument("--memory", type=existing_folder, default=Path("/dev/shm"), help="a folder in memory (/dev/shm)")
    options = parser.parse_args()
    wants = lambda name: not options.only or options.only in name  # noqa: E731
    allowed = min(os.sched_getaffinity(0))
    spots = (("4k, depth 1, one processor", allowed), ("4k, depth 1", None))
    cells = [functools.partial(latency, *spot) for spot in spots if wants(spot[0])]
    same = ",".join(map(str, sorted(os.sched_getaffinity(0))[:SIDES]))
    for kind, pins in (("pinned", same), ("direct", "")):
        cells += [functools.partial(beside_direct, kind, pins, *size) for size in SIZES if wants(f"{kind}, {size[0] >> 10}k")]
    try:
        size = options.file_mib << 20
        if chosen := [one for one in PACED if wants(f"paced drive, {one[0] >> 10}k")]:
            drive = paced(options.memory, size)
            cells += [functools.partial(beside_local, "paced drive", drive, *one) for one in chosen]
        if chosen := [one for one in PACED if wants(f"disk, {one[0] >> 10}k")]:
            disk = str(made(options.dir / "forebay-bench.dat", size))
            cells += [functools.partial(beside_local, "disk", disk, *one[:2], None) for one in chosen]
        return compare("The gateway over NVMe/TCP", options, cells)
    finally:
        (options.memory / "forebay-bench.dat").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
