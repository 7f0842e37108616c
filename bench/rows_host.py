"""Random rows of a cached file into host memory, beside NumPy: `python bench/rows_host.py --dir DIR`.

`gather` of `forebay.open(…, "host")` and numpy.take of a memory map and of arrays that hold the file, in turn in one process,
into the same memory. Compared is the CPU time of the whole process a row. The page cache's pages are small; what huge ones would
gain is seen by two arrays, one in either kind. Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from child import Child, asked, closing
from feed import samples
from side_by_side import GIB, Bound, Cell, Contender, arguments, compare

PROMISES = ("PYT-28",)
TITLE = "Rows into host memory"
GATHER, MEMMAP, ARRAY = "gather", "numpy.take, memmap", "numpy.take, array in small pages"
HUGE = "numpy.take, array in huge pages"
WAYS = {GATHER: "gather", MEMMAP: "memmap", ARRAY: "array", HUGE: "huge"}
ROW_BYTES = (128, 512, 912, 2048, 4096)
BATCHES = (128, 512, 2048, 8192)
FILE_BYTES = GIB


def cell(name: str, child: Child, row_bytes: int, at_once: int) -> Cell:
    made: list[Contender] = [asked(tool, child, way=way, row_bytes=row_bytes, at_once=at_once) for tool, way in WAYS.items()]
    bounds = [Bound("cost", (peer,), at_most=1.0) for peer in (MEMMAP, ARRAY)]
    return Cell(name, made, bounds, per="I/O", ours=GATHER)


def main() -> int:
    parser = arguments(__doc__ or "", 0.3)
    parser.add_argument("--file-mib", type=int, default=FILE_BYTES >> 20, help="size of the file (1024)")
    options = parser.parse_args()
    file: Path = samples(options.dir / "rows-host.bin", options.file_mib << 20)
    child = Child("child_rows_host.py", os.fspath(file))
    cells = {
        f"{at_once} rows of {row_bytes} bytes": functools.partial(cell, child=child, row_bytes=row_bytes, at_once=at_once)
        for row_bytes in ROW_BYTES
        for at_once in BATCHES
    }
    chosen = [functools.partial(build, name) for name, build in cells.items() if not options.only or options.only in name]
    with closing(child):
        return compare(TITLE, options, chosen)


if __name__ == "__main__":
    sys.exit(main())
