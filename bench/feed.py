"""Batches for training, on the host and into a GPU: `python bench/feed.py --dir DIR --ml PYTHON [--gpu]`.

forebay.torch.Loader beside a bare pread loop, PyTorch's DataLoader without and with workers, SPDL, WebDataset, MosaicML Streaming
and Grain, over the same samples in the page cache. --ml names a Python that has forebay, torch and the peers; who isn't
installed there is left out and named. With --gpu, shuffled samples go into the first GPU, beside PyTorch's DataLoader and a
loop of index_select with two pinned buffers. Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from child import HERE, Child, asked, closing
from side_by_side import GIB, Bound, Cell, arguments, compare, say

PROMISES = ("MSR-26", "MSR-27")
TITLE = "Batches for training, on the host"
TITLE_GPU = "Batches for training, into a GPU"
# Bytes of a sample, and samples of a batch.
SAMPLES = ((150_528, 256), (912, 8192))
FILE_BYTES = 2 * GIB
GPU_FILE_BYTES = 12 * GIB
# Into a GPU: bytes of a sample, samples of a batch; least GiB/s or samples/s, and most CPU ms/GiB or ns a sample.
GPU_SAMPLES = ((150_528, 256, 40.0, 100.0), (912, 8192, 27e6, 100.0), (2048, 8192, 22e6, 100.0), (128, 65536, 100e6, None))
# Of first epochs, in GiB/s.
GPU_FIRST = 30.0
MIB = 1 << 20
# A multiple of each length.
GPU_UNIT = 150_528 * 912 * 128 // 48
# Made of Python for each sample: what they reach is bounded by that.
WITH_WORKERS = ("torch-2", "webdataset-2", "streaming-2", "grain-2")
ALONE = ("torch-0", "spdl", "webdataset-0", "streaming-0", "grain-0")


def main() -> int:
    parser = arguments(__doc__ or "", 4.0)
    parser.add_argument("--ml", default=sys.executable, metavar="PYTHON", help="a Python with forebay, torch and the peers")
    parser.add_argument("--gpu", action="store_true", help="into the first GPU")
    options = parser.parse_args()
    cells: list[Callable[[], Cell]] = []
    children: list[Child] = []
    for row, batch, least, most in GPU_SAMPLES if options.gpu else ():
        name = f"{row:,}-byte samples into a GPU, shuffled"
        if not options.only or options.only in name:
            cells.append(
                lambda n=name, r=row, b=batch, at_least=least, at_most=most: gpu_cell(  # type: ignore[misc]
                    options, children, n, (r, b), at_least, at_most
                )
            )
    for row, batch in () if options.gpu else SAMPLES:
        for order in ("none", "rows"):
            name = f"{row:,}-byte samples, {'shuffled' if order == 'rows' else 'in order'}"
            if not options.only or options.only in name:
                cells.append(lambda n=name, r=row, b=batch, o=order: cell(options, children, n, r, b, o))  # type: ignore[misc]
    with closing(*children):
        try:
            return compare(TITLE_GPU if options.gpu else TITLE, options, cells)
        finally:
            for child in children:
                child.close()


def cell(options: argparse.Namespace, children: list[Child], name: str, row: int, batch: int, order: str) -> Cell:
    file = samples(options.dir / f"feed-{row}.bin", FILE_BYTES // row * row)
    folder = options.dir / f"feed-{row}"
    if order == "rows":
        folder.mkdir(exist_ok=True)
        say(f"{name}: makes the peers' formats in {folder}")
        subprocess.run(
            [options.ml, str(HERE / "child_feed.py"), "make", str(file), str(row), str(batch), order, str(folder)], check=True
        )
    sides = ("forebay", "pread", "torch-in-order") if order == "none" else ("forebay", *ALONE, *WITH_WORKERS)
    contenders = []
    for old in children:
        old.close()
    children.clear()
    for side in sides:
        child = Child("child_feed.py", side, str(file), str(row), str(batch), order, str(folder), python=options.ml)
        children.append(child)
        contenders.append(asked(side, child))
    return Cell(name, contenders, bounds(order))


def gpu_cell(
    options: argparse.Namespace,
    children: list[Child],
    name: str,
    case: tuple[int, int],
    least: float,
    most: float | None,
) -> Cell:
    row, batch = case
    # Whole samples of every length.
    file = samples(options.dir / "feed-gpu.bin", GPU_FILE_BYTES // GPU_UNIT * GPU_UNIT)
    contenders = []
    for old in children:
        old.close()
    children.clear()
    for side in ("forebay-gpu", "forebay-mapped", "forebay-first", "torch-tuned", "torch-loader"):
        child = Child("child_feed.py", side, str(file), str(row), str(batch), "rows", str(options.dir), python=options.ml)
        children.append(child)
        contenders.append(asked(side, child))
    per = "GiB" if least < 1e6 else "I/O"
    bounds = [Bound("rate", (), at_least=least)]
    bounds += [Bound("cost", (), at_most=most)] if most is not None else []
    bounds += [Bound("rate", (), at_least=GPU_FIRST, of="forebay-first")] if per == "GiB" else []
    return Cell(name, contenders, bounds, per=per, ours="forebay-gpu")


def samples(file: Path, size: int) -> Path:
    """A file of random bytes in the page cache, made once."""
    if not file.exists() or file.stat().st_size != size:
        say(f"writing {file} ({size >> 20} MiB)")
        with open(file, "wb") as handle:
            for at in range(0, size, MIB):
                handle.write(os.urandom(min(MIB, size - at)))
            handle.flush()
            os.fsync(handle.fileno())
    with open(file, "rb", buffering=0) as handle:
        while handle.read(8 * MIB):
            pass
    return file


def bounds(order: str) -> list[Bound]:
    if order == "none":
        return [
            Bound("rate", ("torch-in-order",), at_least=1.0),
            Bound("cost", ("torch-in-order",), at_most=1.0),
            Bound("cost", ("pread",), at_most=1.15),
        ]
    return [
        Bound("rate", (*ALONE, *WITH_WORKERS), at_least=3.0, pick="fastest"),
        Bound("cost", WITH_WORKERS, at_most=1 / 7),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
