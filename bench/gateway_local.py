"""Our driver reading from a drive that our gateway emulates, with nothing behind it but `nil:` or memory.

What is measured is the way between the two: queues in shared memory, doorbells and interrupts. Where both look for
work instead of sleeping (`polling`), 4 KiB at a time must take 4 us at most; where both sleep, what two processes take
that wake each other by eventfds, and 8 us. 128 KiB, 32 at a time, come out of a file in memory, which takes one copy.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from gateway import emulated, pingpong
from peers import available, made, memcpy
from side_by_side import Bound, Cell, arguments, compare, existing_folder

PROMISES = ("MSR-23",)

NIL = "nil:?size=64g"
PINGPONG, POLLING, MEMCPY = "eventfd ping-pong", "forebay, polling", "memcpy"
SPIN_US = 100_000
# Processors of the two ends that sleep: what a wake-up costs depends on which those are.
APART = (0, 1)
POLLING_US = 4.0
SLEEPING_US = 8.0
COPIED_SHARE = 0.9
BLOCK, DEPTH = 128 << 10, 32


def latency() -> Cell:
    flags = "--op read --io-size 4096 --workers 1 --depth 1".split()
    contenders = available(
        lambda: pingpong(PINGPONG, APART),
        lambda: emulated(POLLING, NIL, *flags, spin_us=SPIN_US),
        lambda: emulated("forebay", NIL, *flags, cpus=APART),
    )
    bounds = [
        Bound("time", (PINGPONG,), at_most=SLEEPING_US),
        Bound("rate", (), at_least=1e6 / POLLING_US, of=POLLING),
    ]
    return Cell("4k, depth 1", contenders, bounds, per="I/O")


def small() -> Cell:
    flags = "--op read --io-size 4096 --workers 1 --depth 32".split()
    contenders = available(
        lambda: emulated(POLLING, NIL, *flags, spin_us=SPIN_US), lambda: emulated("forebay", NIL, *flags)
    )
    return Cell("4k, depth 32", contenders, [], per="I/O")


def nothing_copied() -> Cell:
    flags = f"--op read --io-size {BLOCK} --workers 1 --depth {DEPTH}".split()
    contenders = available(
        lambda: emulated(POLLING, NIL, *flags, spin_us=SPIN_US), lambda: emulated("forebay", NIL, *flags)
    )
    return Cell("128k, depth 32, nothing copied", contenders, [])


def copied(name: str, block: int, depth: int, folder: Path, size: int) -> Cell:
    """From a file in memory: the kernel's copy into the slots, beside memcpy of as much into as many."""
    file = str(made(folder / "forebay-bench.dat", size))
    flags = f"--op read --io-size {block} --workers 1 --depth {depth}".split()
    contenders = available(
        lambda: memcpy(MEMCPY, size, block, depth, 1),
        lambda: emulated(POLLING, file, *flags, spin_us=SPIN_US),
        lambda: emulated("forebay", file, *flags),
    )
    bounds = [Bound("rate", (MEMCPY,), at_least=COPIED_SHARE, of=of) for of in (POLLING, "forebay")]
    return Cell(name, contenders, bounds)


def main() -> int:
    parser = arguments(__doc__ or "", seconds=3)
    parser.add_argument("--file-mib", type=int, default=512, help="size of the file in memory (512)")
    parser.add_argument("--memory", type=existing_folder, default=Path("/dev/shm"), help="a folder in memory (/dev/shm)")
    options = parser.parse_args()
    cells = {
        "4k, depth 1": latency,
        "4k, depth 32": small,
        "128k, depth 32, nothing copied": nothing_copied,
    }
    for name, block, depth in (("128k, depth 32, one copy", BLOCK, DEPTH), ("1m, depth 8, one copy", 1 << 20, 8)):
        cells[name] = functools.partial(copied, name, block, depth, options.memory, options.file_mib << 20)
    try:
        wanted = [build for name, build in cells.items() if not options.only or options.only in name]
        return compare("An emulated drive, locally", options, wanted)
    finally:
        (options.memory / "forebay-bench.dat").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
