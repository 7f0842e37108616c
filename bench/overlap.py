"""Whether `bounce` overlaps its two stages: reading and copying together against each of them alone.

Reading alone is the same job under `host`; copying alone is `bounce` from `nil:`, whose reads complete at once. With
no GPU the destination is host memory. memcpy into memory is shown as the floor of the copy.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from peers import available, forebay, made, memcpy
from side_by_side import Bound, Cell, arguments, compare

PROMISES = ("ENG-8", "MSR-4")

BOTH, READ, COPY = "bounce", "the read alone", "the copy alone"


def cell(file: Path, block: int, depth: int) -> Cell:
    flags = f"--op read --io-size {block} --workers 1 --depth {depth}".split()
    contenders = available(
        lambda: forebay(str(file), "--path", "bounce", *flags, name=BOTH),
        lambda: forebay(str(file), "--path", "host", *flags, name=READ),
        lambda: forebay("nil:", "--path", "bounce", *flags, name=COPY),
        lambda: memcpy("memcpy into memory", 1 << 30, block, 0, 1),
    )
    return Cell(f"1m, depth {depth}", contenders, [Bound("rate", (READ, COPY), at_least=0.95)], ours=BOTH)


def main() -> int:
    parser = arguments(__doc__ or "", seconds=4, only=False)
    parser.add_argument("--file-mib", type=int, default=2048, help="size of the test file (2048)")
    parser.add_argument("--depth", type=int, default=16, help="I/Os in flight (16)")
    options = parser.parse_args()
    file = made(options.dir / "forebay-bench.dat", options.file_mib << 20)
    return compare(
        "Read and copy overlapped", options, [functools.partial(cell, file, 1 << 20, options.depth)]
    )


if __name__ == "__main__":
    sys.exit(main())
