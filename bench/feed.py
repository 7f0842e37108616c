"""Batches for training, on the host and into a GPU: `python bench/feed.py --dir DIR --ml PYTHON [--gpu]`.

forebay.torch.Loader beside a bare pread loop, PyTorch's DataLoader without and with workers, SPDL, WebDataset, MosaicML Streaming
and Grain, over the same samples in the page cache. --ml names a Python that has forebay, torch and the peers; who isn't
installed there is left out and named. `--only 'by number'` has what is asked for whole batches by number: Rows and FeatureStore
beside the loader, and Rows under DataLoader beside what that reaches itself; `--only 'from the disk'`, first epochs of samples
that aren't cached, beside fio's O_DIRECT on the same file, in 4 min with `--rounds 3 --seconds 3`. With --gpu, shuffled samples
go into the first GPU, beside PyTorch's DataLoader and a loop of index_select with two pinned buffers; `--only cost:` has what
surrounds that: two cores alone, samples that come from the disk, batches without anything to read, and the time to the first
batch; `--only ranks:`, of two GPUs, both beside one, on shares of a file and on a file each. Exit: 0 if every bound holds, 1 if
one does not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from child import HERE, Child, asked, closing, together
from gpu import count as gpu_count
from peers import available, disk_rows, fio_uring
from side_by_side import GIB, Bound, Cell, Contender, arguments, compare, say

PROMISES = ("MSR-26", "MSR-27")
TITLE = "Batches for training, on the host"
TITLE_GPU = "Batches for training, into a GPU"
# Bytes of a sample, samples of a batch, and bytes of the file: a peer's format of short samples takes minutes to make.
SAMPLES = ((150_528, 256, 2 * GIB), (912, 8192, GIB))
GPU_FILE_BYTES = 12 * GIB
# Of the file that is read from a disk: long enough for what an epoch's end takes, with nothing left to read, to weigh little.
DISK_FILE_BYTES = 4 * GIB
# Into a GPU: bytes of a sample, samples of a batch; least GiB/s or samples/s, and most CPU ms/GiB or ns a sample.
GPU_SAMPLES = ((150_528, 256, 40.0, 100.0), (912, 8192, 27e6, 100.0), (2048, 8192, 22e6, 100.0), (128, 65536, 100e6, None))
# Of first epochs, in GiB/s.
GPU_FIRST = 30.0
# What the disk gives by O_DIRECT, with few reads under way and with many.
DISK = ("direct", "direct-deep")
# On two cores, times the tuned loop's rate, and of the rate of kernels alone. From the disk, of what reads by O_DIRECT reach.
GPU_FEW, GPU_OF_KERNEL, COLD = 5.0, 0.95, 0.97
FEW_FLOORS = ("gather-2-cores", "torch-kernel-2-cores")
# CPU ms/GiB of samples from the disk: 0.06 s/GB.
COLD_COST = 64.4
# Orders of samples that come from the disk. Of short ones each anywhere, each is a read of its own.
COLD_ORDERS = {150_528: ("none", "blocks", "rows"), 912: ("none", "blocks")}
ORDERS = {"none": "in order", "blocks": "in blocks", "rows": "shuffled"}
# fio's, registered, in small pages and in huge ones: as many reads under way as keep a disk busy, and their bytes.
DIRECT, DIRECT_DEPTH, DIRECT_BYTES = ("fio-direct", "fio-direct-huge"), 16, 2 << 20
# The same of reads of a sample each, anywhere: with the least CPU, begun and waited for half of those under way at a time.
OF_SAMPLES, OF_SAMPLES_DEPTH = ("fio-direct-samples", "fio-direct-samples-huge"), 32
# What long rows of a disk reach with no copy, each at a place of its own in a batch: reads of 2 MiB of rows that lie next to each
# other, by so many threads, or of a row each. Where that is less than what fio reaches, the machine forbids it.
ROWS_ALONE, RUN_DEPTH, ROW_DEPTH, BATCHES_ALONE = "rows-alone", 16, 64, 4
# Times one GPU's rate.
TWO_GPUS = 1.8
# CPU ns to hand over a batch of nothing; first batches of 10⁸ rows a second.
HAND_OVER_NS, STARTS = 20_000.0, 2.0
START_ROWS, START_ROW = 100_000_000, 16
MIB = 1 << 20
# A multiple of each length.
GPU_UNIT = 150_528 * 912 * 128 // 48
# Made of Python for each sample: what they reach is bounded by that.
WITH_WORKERS = ("torch-2", "webdataset-2", "streaming-2", "grain-2")
# PyTorch's, as it is, and with a C library that was told to keep its memory.
IN_ORDER = ("torch-in-order", "torch-in-order-kept")
FLOOR = "copies-alone"
# What reading ahead by two threads, which share one memory, costs by nothing but the reads.
READS_FLOOR = "reads-by-two"
# What a processor pays for blocks of short samples, besides the reads: where that is more than may be, the machine forbids it.
BLOCKS_FLOOR = "copies-of-blocks"
# Of a loader's rate, by whatever reads whole batches by number.
BY_NUMBER = {"rows": "loader", "rows-lists": "loader", "rows-numpy": "loader-numpy", "features": "loader"}
BY_NUMBER_OF_LOADER = 0.9
# DataLoader's own Python bounds what a data set reaches under it: of the loader's rate, or where that is lower, of DataLoader's
# over a data set that does nothing but the engine's copies.
UNDER_DATA_LOADER = {"rows-arrays": "copied-arrays", "rows-collated": "copied-collated", "rows-shuffled": "copied-shuffled"}
UNDER_DATA_LOADER_OF = 0.95
ALONE = ("torch-0", "spdl", "webdataset-0", "streaming-0", "grain-0")


def interpreter(name: str) -> str:
    """One that is there, for argparse."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"{name} is no program: give the path of a Python, VENV/bin/python")
    return found


def main() -> int:
    parser = arguments(__doc__ or "", 4.0)
    parser.add_argument("--ml", type=interpreter, default=sys.executable, metavar="PYTHON", help="that has torch and the peers")
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
    several = RANKS if gpu_count() > 1 else ()
    for name, build in (*COSTS, *several) if options.gpu else ():
        if not options.only or options.only in name:
            cells.append(lambda n=name, b=build: b(options, children, n))  # type: ignore[misc]
    for row, batch, size in () if options.gpu else SAMPLES:
        for order in ("none", "rows"):
            name = f"{row:,}-byte samples, {ORDERS[order]}"
            if not options.only or options.only in name:
                case = (row, batch, size)
                cells.append(lambda n=name, c=case, o=order: cell(options, children, n, c, o))  # type: ignore[misc]
        for order in COLD_ORDERS[row]:
            name = f"{row:,}-byte samples from the disk, {ORDERS[order]}"
            if not options.only or options.only in name:
                cells.append(lambda n=name, c=(row, batch), o=order: from_disk_cell(options, children, n, c, o))  # type: ignore[misc]
    row, batch, size = SAMPLES[-1]
    name = f"{row:,}-byte rows by number, {batch:,} at a time"
    if not options.gpu and (not options.only or options.only in name):
        cells.append(lambda n=name: by_number_cell(options, children, n, (row, batch, size)))  # type: ignore[misc]
    with closing(*children):
        try:
            return compare(TITLE_GPU if options.gpu else TITLE, options, cells)
        finally:
            for child in children:
                child.close()


def cell(options: argparse.Namespace, children: list[Child], name: str, case: tuple[int, int, int], order: str) -> Cell:
    row, batch, size = case
    file = samples(options.dir / f"feed-{row}.bin", size // row * row)
    folder = options.dir / f"feed-{row}"
    if order == "rows":
        folder.mkdir(exist_ok=True)
        say(f"{name}: makes the peers' formats in {folder}")
        subprocess.run(
            [options.ml, str(HERE / "child_feed.py"), "make", str(file), str(row), str(batch), order, str(folder)], check=True
        )
    sides = ("forebay", "pread", *IN_ORDER, READS_FLOOR) if order == "none" else ("forebay", FLOOR, *ALONE, *WITH_WORKERS)
    contenders = taking_turns(options, children, sides, file, (row, batch), order, folder)
    return Cell(name, contenders, bounds(order))


def from_disk_cell(
    options: argparse.Namespace, children: list[Child], name: str, case: tuple[int, int], order: str
) -> Cell:
    """Beside reads as long as fio makes them, or, where rows go to places apart, beside those alone. CPU: 0.06 s/GB, or what the
    machine takes, where that is more: these reads, and the copies that mixing short samples needs."""
    row, batch = case
    file = samples(options.dir / f"feed-{row}-disk.bin", DISK_FILE_BYTES // row * row)
    copies = (BLOCKS_FLOOR,) if (row, order) == (SAMPLES[-1][0], "blocks") else ()
    contenders = taking_turns(options, children, ("forebay-from-disk", *copies), file, case, order)
    reads = DIRECT
    contenders += [fio_uring(side, file, "read", DIRECT_BYTES, DIRECT_DEPTH, huge=side.endswith("huge")) for side in DIRECT]
    rate = Bound("rate", DIRECT, at_least=COLD, pick="fastest")
    if order != "none" and not copies:
        run, depth = (DIRECT_BYTES // row, RUN_DEPTH) if order == "blocks" else (1, ROW_DEPTH)
        contenders += available(lambda: disk_rows(ROWS_ALONE, file, row, run, BATCHES_ALONE * batch * row, depth))
        rate = Bound("rate", (DIRECT[-1], ROWS_ALONE), at_least=COLD)
    if order == "rows":
        reads, depth = OF_SAMPLES, OF_SAMPLES_DEPTH
        contenders += [
            fio_uring(side, file, "randread", row, depth, huge=side.endswith("huge"), batch=depth // 2) for side in reads
        ]
    bounds = [rate, Bound("cost", reads, at_most=1.0, enough=COLD_COST, plus=copies)]
    return Cell(name, contenders, bounds, ours="forebay-from-disk")


def by_number_cell(options: argparse.Namespace, children: list[Child], name: str, case: tuple[int, int, int]) -> Cell:
    row, batch, size = case
    file = samples(options.dir / f"feed-{row}.bin", size // row * row)
    sides = ("loader", "loader-numpy", *BY_NUMBER, *UNDER_DATA_LOADER, "gather-alone", *UNDER_DATA_LOADER.values())
    contenders = taking_turns(options, children, sides, file, (row, batch))
    bounds = [Bound("rate", (loader,), at_least=BY_NUMBER_OF_LOADER, of=side) for side, loader in BY_NUMBER.items()]
    for side, floor in UNDER_DATA_LOADER.items():
        bounds.append(Bound("rate", ("loader", floor), at_least=UNDER_DATA_LOADER_OF, of=side))
    return Cell(name, contenders, bounds, per="I/O", ours="loader")


def gpu_cell(
    options: argparse.Namespace,
    children: list[Child],
    name: str,
    case: tuple[int, int],
    least: float,
    most: float | None,
) -> Cell:
    row, batch = case
    sides = ("forebay-gpu", "forebay-mapped", "forebay-first", "torch-tuned", "torch-loader")
    contenders = taking_turns(options, children, sides, gpu_file(options), case)
    per = "GiB" if least < 1e6 else "I/O"
    bounds = [Bound("rate", (), at_least=least)]
    bounds += [Bound("cost", (), at_most=most)] if most is not None else []
    bounds += [Bound("rate", (), at_least=GPU_FIRST, of="forebay-first")] if per == "GiB" else []
    return Cell(name, contenders, bounds, per=per, ours="forebay-gpu")


def gpu_file(options: argparse.Namespace) -> Path:
    """Whole samples of every length."""
    return samples(options.dir / "feed-gpu.bin", GPU_FILE_BYTES // GPU_UNIT * GPU_UNIT)


def taking_turns(
    options: argparse.Namespace,
    children: list[Child],
    sides: Sequence[str],
    file: Path,
    case: tuple[int, int],
    order: str = "rows",
    made: Path | None = None,
) -> list[Contender]:
    """Contenders of one cell. Those of the cell before are ended: their memory is needed."""
    for old in children:
        old.close()
    children.clear()
    for side in sides:
        given = [str(part) for part in (file, *case, order, made or options.dir)]
        children.append(Child("child_feed.py", side, *given, python=options.ml, rests=True))
    return [asked(side, child) for side, child in zip(sides, children, strict=True)]


def few_cell(options: argparse.Namespace, children: list[Child], name: str) -> Cell:
    """Beside PyTorch on as few cores, and kernels that do nothing but fetch rows over the link, which is the most there is."""
    sides = ("forebay-gpu-2-cores", "torch-tuned-2-cores", *FEW_FLOORS)
    contenders = taking_turns(options, children, sides, gpu_file(options), (912, 8192))
    bounds = [Bound("rate", (side,), at_least=GPU_OF_KERNEL) for side in FEW_FLOORS]
    return Cell(name, contenders, [Bound("rate", sides[1:2], at_least=GPU_FEW), *bounds], per="I/O", ours=sides[0])


def cold_cell(options: argparse.Namespace, children: list[Child], name: str) -> Cell:
    sides = ("forebay-cold", *DISK)
    contenders = taking_turns(options, children, sides, gpu_file(options), (150_528, 256), "blocks")
    return Cell(name, contenders, [Bound("rate", DISK, at_least=COLD, pick="fastest")], ours=sides[0])


def cold_blocks_cell(
    options: argparse.Namespace, children: list[Child], name: str, side: str = "forebay-cold", most: float | None = COLD_COST
) -> Cell:
    """Blocks of short samples beside the disk. What another side has mapped would stay in the page cache: there is none."""
    contenders = taking_turns(options, children, (side, *DISK), gpu_file(options), (912, 8192), "blocks")
    bounds = [Bound("rate", DISK, at_least=COLD, pick="fastest")]
    bounds += [Bound("cost", (), at_most=most)] if most is not None else []
    return Cell(name, contenders, bounds, ours=side)


def cold_filling_cell(options: argparse.Namespace, children: list[Child], name: str) -> Cell:
    return cold_blocks_cell(options, children, name, "forebay-cold-filling", None)


def shared_cell(options: argparse.Namespace, children: list[Child], name: str) -> Cell:
    return ranks_cell(options, children, name, {"forebay-rank-0": gpu_file(options), "forebay-rank-1": gpu_file(options)})


def paired_cell(options: argparse.Namespace, children: list[Child], name: str) -> Cell:
    other = samples(options.dir / "feed-gpu-1.bin", GPU_FILE_BYTES // GPU_UNIT * GPU_UNIT)
    return ranks_cell(options, children, name, {"forebay-gpu": gpu_file(options), "forebay-gpu-1": other})


def ranks_cell(options: argparse.Namespace, children: list[Child], name: str, sides: dict[str, Path]) -> Cell:
    """Two processes, each on a GPU of its own, at the same time, beside one alone."""
    case = GPU_SAMPLES[0][:2]
    (one,) = taking_turns(options, children, ["forebay-gpu"], gpu_file(options), case)
    given = [*map(str, case), "rows", str(options.dir)]
    two = [Child("child_feed.py", side, str(file), *given, python=options.ml, rests=True) for side, file in sides.items()]
    children += two
    bounds = [Bound("rate", (one.name,), at_least=TWO_GPUS)]
    return Cell(name, [together("forebay-two-gpus", two), one], bounds, ours="forebay-two-gpus")


def nothing_cell(options: argparse.Namespace, children: list[Child], name: str) -> Cell:
    contenders = taking_turns(options, children, ("forebay-nothing",), gpu_file(options), (912, 8192), "none")
    return Cell(name, contenders, [Bound("cost", (), at_most=HAND_OVER_NS)], per="I/O", ours="forebay-nothing")


def start_cell(options: argparse.Namespace, children: list[Child], name: str) -> Cell:
    file = options.dir / "feed-rows.bin"
    with open(file, "wb") as handle:
        handle.truncate(START_ROWS * START_ROW)
    contenders = taking_turns(options, children, ("forebay-start", "torch-start"), file, (START_ROW, 8192))
    return Cell(name, contenders, [Bound("rate", (), at_least=STARTS)], per="I/O", ours="forebay-start")


COSTS: tuple[tuple[str, Callable[[argparse.Namespace, list[Child], str], Cell]], ...] = (
    ("cost: 912-byte samples into a GPU by two cores, shuffled", few_cell),
    ("cost: 150,528-byte samples into a GPU, from the disk", cold_cell),
    ("cost: 912-byte samples in blocks into a GPU, from the disk past the page cache", cold_blocks_cell),
    ("cost: 912-byte samples in blocks into a GPU, from the disk into the page cache", cold_filling_cell),
    ("cost: a batch handed over on a GPU, in order, nothing read", nothing_cell),
    (f"cost: the first batch of {START_ROWS:,} rows on a GPU", start_cell),
)
RANKS = (
    ("ranks: 150,528-byte samples, shuffled, shares of one file", shared_cell),
    ("ranks: 150,528-byte samples, shuffled, a file each", paired_cell),
)


def samples(file: Path, size: int) -> Path:
    """A file of random bytes in the page cache, made once."""
    if not file.exists() or file.stat().st_size != size:
        import numpy as np

        say(f"writing {file} ({size >> 20} MiB)")
        draw = np.random.Generator(np.random.SFC64(1))
        with open(file, "wb") as handle:
            for at in range(0, size, 16 * MIB):
                handle.write(draw.bytes(min(16 * MIB, size - at)))
            handle.flush()
            os.fsync(handle.fileno())
    with open(file, "rb", buffering=0) as handle:
        while handle.read(8 * MIB):
            pass
    return file


def bounds(order: str) -> list[Bound]:
    if order == "none":
        return [
            Bound("rate", IN_ORDER, at_least=1.0, pick="fastest"),
            Bound("cost", IN_ORDER, at_most=1.0, floor=(READS_FLOOR,)),
            Bound("cost", ("pread",), at_most=1.15),
        ]
    return [
        Bound("rate", (*ALONE, *WITH_WORKERS), at_least=3.0, pick="fastest"),
        Bound("cost", WITH_WORKERS, at_most=1 / 7),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
