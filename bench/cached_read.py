"""Reads of data that is in memory already, from tmpfs and from the page cache, on one thread and on two.

Each thread reads a file of its own, over and over. memcpy runs in the same rounds as the floor: from as much memory
as the files hold, into buffers that are used again, as a reader's buffers are; and, for comparison, into as much memory
again.

All of it takes about 25 minutes. Part of it: `--threads 2 --sizes 64k,256k --rounds 3`, or `--only tmpfs`.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from peers import available, fio, forebay, made, memcpy
from side_by_side import Bound, Cell, Contender, arguments, compare, existing_folder

PROMISES = ("MSR-3",)

SIZES = {"64k": 64 << 10, "256k": 256 << 10, "1m": 1 << 20, "4m": 4 << 20}
DEPTH = 4
PSYNC, MMAP = "fio psync", "fio mmap"
SLOTS, MEMORY = "memcpy into reused buffers", "memcpy into memory"


def bounds(threads: int) -> list[Bound]:
    if threads == 1:
        return [
            Bound("rate", (PSYNC,), at_least=1.3),
            Bound("rate", (SLOTS,), at_least=0.85),
            Bound("rate", (MEMORY,), at_least=0.85),
        ]
    return [Bound("rate", (PSYNC, MMAP), at_least=1.05, pick="fastest")]


def cached(name: str, engine: str, folder: Path, block: int, threads: int) -> Contender:
    # invalidate=0: fio would drop the file from the page cache first
    flags = (
        f"--ioengine={engine} --rw=read --bs={block} --direct=0 --invalidate=0 --numjobs={threads}".split()
    )
    return fio(name, f"--directory={folder}", "--filename_format=forebay.$jobnum", *flags)


def cell(name: str, folder: Path, file_bytes: int, block: int, threads: int) -> Cell:
    for number in range(threads):
        warm(made(folder / f"forebay.{number}", file_bytes))
    flags = (
        f"--path host --op read --io-size {block} --cache allow --workers {threads} --depth {DEPTH}".split()
    )
    flags += ["--files", str(threads), "--file-size", str(file_bytes)]
    contenders = available(
        lambda: forebay(str(folder), *flags),
        lambda: cached(PSYNC, "psync", folder, block, threads),
        lambda: cached(MMAP, "mmap", folder, block, threads),
        lambda: memcpy(SLOTS, file_bytes, block, DEPTH, threads),
        lambda: memcpy(MEMORY, file_bytes, block, 0, threads),
    )
    return Cell(name, contenders, bounds(threads))


def sizes(text: str) -> list[str]:
    asked = text.split(",")
    if not set(asked) <= set(SIZES):
        raise argparse.ArgumentTypeError(f"{text}: of {', '.join(SIZES)}")
    return asked


def warm(file: Path) -> None:
    with open(file, "rb", buffering=0) as handle:
        while handle.read(8 << 20):
            pass


def main() -> int:
    parser = arguments(__doc__ or "", seconds=3)
    parser.add_argument("--tmpfs", type=existing_folder, default=Path("/dev/shm"), help="a folder in memory (/dev/shm)")
    parser.add_argument("--file-mib", type=int, default=1024, help="size of each thread's file (1024)")
    parser.add_argument("--sizes", type=sizes, default=list(SIZES), help=f"block sizes, of {','.join(SIZES)}; all by default")
    parser.add_argument("--threads", type=int, choices=(1, 2), help="on so many threads; on one and on two by default")
    options = parser.parse_args()
    cells = []
    for where, folder in (("tmpfs", options.tmpfs / "forebay-bench"), ("page cache", options.dir / "cached")):
        folder.mkdir(parents=True, exist_ok=True)
        for threads in (options.threads,) if options.threads else (1, 2):
            for label, block in ((label, SIZES[label]) for label in options.sizes):
                name = f"{where} {label}, {threads} thread{'s' * (threads > 1)}"
                if not options.only or options.only in name:
                    cells.append(
                        functools.partial(cell, name, folder, options.file_mib << 20, block, threads)
                    )
    try:
        return compare("Cached reads", options, cells)
    finally:
        for file in (options.tmpfs / "forebay-bench").glob("forebay.*"):
            file.unlink()
        (options.tmpfs / "forebay-bench").rmdir()


if __name__ == "__main__":
    sys.exit(main())
