"""A stripe of four files against one file of the same size, on the same disk: what striping itself costs."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from peers import available, forebay, made
from side_by_side import Bound, Cell, arguments, compare

PROMISES = ("MSR-6",)

MEMBERS, CHUNK = 4, "512k"
STRIPE, ONE = "stripe", "one file"


def cell(name: str, folder: Path, size: int, block: int, depth: int) -> Cell:
    one = made(folder / "forebay-bench.dat", size)
    members = [made(folder / f"member.{n}", size // MEMBERS) for n in range(MEMBERS)]
    stripe = f"stripe:?chunk={CHUNK}&" + "&".join(f"m={m.resolve()}" for m in members)
    flags = f"--path host --op read --io-size {block} --workers 1 --depth {depth}".split()
    contenders = available(
        lambda: forebay(stripe, *flags, name=STRIPE), lambda: forebay(str(one), *flags, name=ONE)
    )
    return Cell(name, contenders, [Bound("rate", (ONE,), at_least=0.95)], ours=STRIPE)


def main() -> int:
    parser = arguments(__doc__ or "", seconds=4)
    parser.add_argument(
        "--file-mib", type=int, default=2048, help="size of the file, and of the stripe (2048)"
    )
    parser.add_argument("--depth", type=int, default=16, help="I/Os in flight (16)")
    options = parser.parse_args()
    sizes = {"512k": 512 << 10, "1m": 1 << 20, "4m": 4 << 20}
    cells = [
        functools.partial(cell, label, options.dir, options.file_mib << 20, block, options.depth)
        for label, block in sizes.items()
        if not options.only or options.only in label
    ]
    return compare("A stripe against one file", options, cells)


if __name__ == "__main__":
    sys.exit(main())
