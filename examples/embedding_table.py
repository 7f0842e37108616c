"""A recommender's embedding table, larger than a GPU's memory, in a file: lookups of a batch are one gather.

    python examples/embedding_table.py                    # 200,000 rows, in a temporary folder
    python examples/embedding_table.py --rows 40000000 --device cuda:0 --dir /mnt/data

Rows are 128 × float32, as DLRM has them; ids follow Zipf's law, so that a batch asks for popular ones many times, and each
sample sums a bag of them. Into a GPU, forebay fetches a row that comes twice once. Beside it torch at its best (index_select
of a memory-mapped tensor into reused pinned memory, where torch is installed) and NumPy, over the same batches; sums are
compared. Needs NumPy; torch only for a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import forebay
import numpy as np

WIDTH = 128


class ByForebay:
    name = "forebay gather"

    def __init__(self, path: Path, lookups: int, device: str) -> None:
        self.file = forebay.open(path, "auto" if device == "cpu" else "mapped")
        if device == "cpu":
            self.out: Any = np.empty((lookups, WIDTH), np.float32)
        else:
            import torch

            self.out = torch.empty((lookups, WIDTH), dtype=torch.float32, device=device)

    def sums(self, ids: np.ndarray) -> Any:
        self.file.gather(ids.reshape(-1), 4 * WIDTH, self.out)
        return self.out.reshape(*ids.shape, WIDTH).sum(1)

    def close(self) -> None:
        report = self.file.last_report
        assert report is not None
        by_gpu = f"{report.mapped_bytes} bytes fetched by the GPU, {report.repeated_bytes} repeated there"
        print(f"{'':20} of the last batch: {by_gpu}, {report.staged_bytes} copied by processors")
        self.file.close()


class ByTorch:
    name = "torch index_select"

    def __init__(self, path: Path, lookups: int, device: str) -> None:
        import torch

        rows = path.stat().st_size // (4 * WIDTH)
        self.torch, self.device = torch, device
        self.table = torch.from_file(str(path), shared=True, size=rows * WIDTH, dtype=torch.float32).view(rows, WIDTH)
        self.out = torch.empty((lookups, WIDTH), pin_memory=device != "cpu")

    def sums(self, ids: np.ndarray) -> Any:
        self.torch.index_select(self.table, 0, self.torch.from_numpy(ids.reshape(-1)), out=self.out)
        there = self.out if self.device == "cpu" else self.out.to(self.device, non_blocking=True)
        summed = there.view(*ids.shape, WIDTH).sum(1)
        if self.device != "cpu":
            # The pinned memory is used again, so the copy must have ended.
            self.torch.cuda.synchronize()
        return summed

    def close(self) -> None: ...


class ByNumpy:
    name = "numpy take"

    def __init__(self, path: Path, lookups: int, device: str) -> None:
        self.table = np.memmap(path, np.float32, "r").reshape(-1, WIDTH)

    def sums(self, ids: np.ndarray) -> Any:
        return np.take(self.table, ids, axis=0).sum(1)

    def close(self) -> None: ...


def written(path: Path, rows: int, seed: int) -> None:
    """Small whole numbers, whose sums are exact in whatever order they are taken."""
    with path.open("wb") as out:
        for first in range(0, rows, 1 << 17):
            count = min(1 << 17, rows - first)
            out.write(np.random.default_rng([seed, first]).integers(-64, 64, (count, WIDTH)).astype(np.float32).tobytes())


def drawn(options: argparse.Namespace) -> list[np.ndarray]:
    """Ids of each batch by Zipf's law, popular ones spread over the table as hashing does."""
    draw = np.random.default_rng(options.seed)
    spread = np.int64(2_654_435_761)
    shape = (options.batch, options.bag)
    return [(draw.zipf(options.zipf, shape) % options.rows * spread) % options.rows for _ in range(options.batches)]


def run(path: Path, options: argparse.Namespace) -> None:
    written(path, options.rows, options.seed)
    batches = drawn(options)
    lookups = options.batch * options.bag
    once = np.mean([np.unique(ids).size / lookups for ids in batches])
    shape = f"{len(batches)} batches of {options.batch} × {options.bag}"
    print(f"{options.rows} rows × {WIDTH} float32, {shape}, {once:.0%} of a batch's ids differ")
    wanted = [ByNumpy(path, lookups, "cpu").sums(ids) for ids in batches]
    kinds: list[Any] = [ByForebay, ByTorch] + ([ByNumpy] if options.device == "cpu" else [])
    for kind in kinds:
        try:
            way = kind(path, lookups, options.device)
        except ImportError:
            print(f"{kind.name:20} torch isn't installed; left out")
            continue
        for ids, sums in zip(batches, wanted, strict=True):
            found = way.sums(ids)
            if not ((found if isinstance(found, np.ndarray) else found.cpu().numpy()) == sums).all():
                sys.exit(f"{kind.name}: wrong sums")
        began, cpu = time.perf_counter(), time.process_time()
        for ids in batches:
            way.sums(ids)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        rows = lookups * len(batches)
        print(f"{kind.name:20} {rows / took / 1e6:8.3f} million rows/s  {cpu / rows * 1e9:8.0f} ns of CPU a row")
        way.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=2048, help="samples (2048)")
    parser.add_argument("--bag", type=int, default=26, help="ids of a sample (26)")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--zipf", type=float, default=1.2, help="exponent, above 1 (1.2)")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 (cpu)")
    parser.add_argument("--dir", type=Path, help="a folder for the file (a temporary one)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if min(options.rows, options.batch, options.bag, options.batches) < 1 or options.zipf <= 1:
        parser.error("--rows, --batch, --bag and --batches are 1 or more, --zipf is above 1")
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        run(Path(folder) / "embeddings.bin", options)


if __name__ == "__main__":
    main()
