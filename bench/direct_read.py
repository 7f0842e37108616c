"""O_DIRECT reads of one file: Forebay beside fio (registered buffers and files; the same in huge pages) and elbencho.

Each contender runs at its own best depth, found by a short scan in the same minute. CPU per GiB falls with the depth,
whoever reads, and a disk's noise moves the depth that a scan finds: of long reads it is compared at fio's depth.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path

from peers import Unavailable, available, elbencho, fio_uring, forebay, made, registered
from side_by_side import Bound, Cell, Contender, arguments, compare, find_depth, say

PROMISES = ("MSR-1", "MSR-2")

# name, bytes, random, depths tried
CELLS = [
    ("512k", 512 << 10, False, (1, 4, 8, 16, 32, 64)),
    ("1m", 1 << 20, False, (1, 4, 8, 16, 32)),
    ("4m", 4 << 20, False, (1, 2, 4, 8, 16)),
    ("64k", 64 << 10, False, (4, 8, 16, 32, 64, 128)),
    ("128k", 128 << 10, False, (4, 8, 16, 32, 64)),
    ("4k random", 4 << 10, True, (16, 32, 64, 128)),
]
FIO, HUGE, ELBENCHO = "fio registered", "fio registered, huge pages", "elbencho"
OURS, AS_DEEP = "forebay", "forebay as deep as fio in huge pages"
LONG = 512 << 10


def bounds(block: int, equally_deep: str) -> list[Bound]:
    """What must hold; `equally_deep` names the contender of ours at the depth of fio in huge pages."""
    if block >= LONG:
        return [
            Bound("rate", (FIO,), at_least=1.6),
            Bound("rate", (ELBENCHO,), at_least=2.0),
            Bound("rate", (HUGE,), at_least=0.97),
            Bound("cost", (HUGE,), at_most=1.0, of=equally_deep),
        ]
    peers = (FIO, HUGE, ELBENCHO)
    return [
        Bound("rate", peers, at_least=1.0, pick="fastest"),
        Bound("cost", peers, at_most=1.0, pick="fastest"),
    ]


def makers(file: Path, block: int, random: bool) -> list[Callable[[int], Contender]]:
    op = "randread" if random else "read"
    flags = f"--path host --op {op} --io-size {block} --workers 1".split()
    return [
        lambda depth: fio_uring(FIO, file, op, block, depth),
        lambda depth: fio_uring(HUGE, file, op, block, depth, huge=True),
        lambda depth: elbencho(ELBENCHO, file, block, depth, random),
        lambda depth: forebay(str(file), *flags, "--depth", str(depth)),
    ]


def cell(name: str, file: Path, block: int, random: bool, depths: tuple[int, ...], scan_s: float) -> Cell:
    made_by = makers(file, block, random)
    found = available(*(functools.partial(find_depth, make, depths, scan_s, say) for make in made_by))
    contenders, chosen = [], {}
    for contender, how in found:
        if contender.name.startswith("fio"):
            how["asked_of_the_kernel"] = registered(contender)
            if how["asked_of_the_kernel"].get("registered_buffers") is False:
                raise Unavailable(f"{contender.name} registered no buffers; the comparison would be unfair")
        contenders.append(contender)
        chosen[contender.name] = how
    equally_deep = OURS
    if block >= LONG and HUGE in chosen and chosen[HUGE]["depth"] != chosen[OURS]["depth"]:
        depth, equally_deep = chosen[HUGE]["depth"], AS_DEEP
        contenders.append(dataclasses.replace(made_by[-1](depth), name=AS_DEEP))
        chosen[AS_DEEP] = {"depth": depth}
    return Cell(name, contenders, bounds(block, equally_deep), per="GiB", chosen=chosen)


def main() -> int:
    parser = arguments(__doc__ or "", seconds=4, scan=True)
    parser.add_argument("--file-mib", type=int, default=2048, help="size of the test file (2048)")
    options = parser.parse_args()
    file = made(options.dir / "forebay-bench.dat", options.file_mib << 20)
    cells = [
        functools.partial(cell, name, file, block, random, depths, options.scan_seconds)
        for name, block, random, depths in CELLS
        if not options.only or options.only in name
    ]
    return compare("Direct reads", options, cells)


if __name__ == "__main__":
    sys.exit(main())
