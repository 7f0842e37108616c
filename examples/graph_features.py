"""Features of a graph's nodes, in a file: each batch of a training step is a gather.

    python examples/graph_features.py                     # 100,000 nodes, in a temporary folder
    python examples/graph_features.py --nodes 20000000 --features 256 --device cuda:0 --dir /mnt/data

A power-law graph is made up, neighbours are sampled two hops deep as GNN loaders do, and the same batches' features are
read three ways: by forebay's gather, by torch.index_select of a memory-mapped tensor into reused pinned memory (where torch
is installed), and by NumPy. Every batch is compared. Needs NumPy; torch only for a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay
import numpy as np

FANOUT = (15, 10)


def power_law_graph(nodes: int, edges_each: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours of each node, one behind the other, and where each node's begin: few nodes are everybody's neighbours."""
    degrees = np.minimum(draw.zipf(2.0, nodes) + edges_each // 2, 50 * edges_each)
    begins = np.concatenate([[0], np.cumsum(degrees)])
    popular = (nodes * draw.random(int(begins[-1])) ** 3).astype(np.int64)
    return popular, begins


def sampled(
    neighbours: np.ndarray, begins: np.ndarray, seeds: np.ndarray, draw: np.random.Generator
) -> np.ndarray:
    """The nodes of a batch: the seeds, and at each hop so many neighbours of those before, each node once."""
    found = last = seeds
    for fanout in FANOUT:
        degrees = begins[last + 1] - begins[last]
        picks = (draw.random((last.size, fanout)) * degrees[:, None]).astype(np.int64)
        last = np.unique(neighbours[begins[last][:, None] + picks])
        found = np.union1d(found, last)
    return found


def written(path: Path, nodes: int, features: int) -> None:
    """Feature j of node n is n + j / 1000, so that every row can be told."""
    per_piece = max(1, (64 << 20) // (4 * features))
    with path.open("wb") as out:
        for first in range(0, nodes, per_piece):
            rows = np.arange(first, min(nodes, first + per_piece)).astype(np.float32)[:, None]
            out.write((rows + np.arange(features, dtype=np.float32) / 1000).tobytes())


def by_forebay(path: Path, features: int, device: str) -> Iterator[Callable[[np.ndarray], Any]]:
    with forebay.open(path, "auto" if device == "cpu" else "mapped") as file:

        def read(nodes: np.ndarray) -> Any:
            out = empty((nodes.size, features), device)
            file.gather(nodes, 4 * features, out)
            return out

        yield read


def by_torch(path: Path, nodes: int, features: int, device: str) -> Iterator[Callable[[np.ndarray], Any]]:
    """torch at its best: one gather by all its threads into pinned memory that is used again, and one copy."""
    import torch

    table = torch.from_file(str(path), shared=True, size=nodes * features, dtype=torch.float32).view(nodes, features)
    room = torch.empty((0, features))

    def read(batch: np.ndarray) -> Any:
        nonlocal room
        if room.shape[0] < batch.size:
            room = torch.empty((2 * batch.size, features), pin_memory=device != "cpu")
        out = room[: batch.size]
        torch.index_select(table, 0, torch.from_numpy(batch), out=out)
        if device == "cpu":
            return out
        # The pinned memory is used again, so the copy must have ended.
        there = out.to(device, non_blocking=True)
        torch.cuda.synchronize()
        return there

    yield read


def by_numpy(path: Path, features: int) -> Iterator[Callable[[np.ndarray], Any]]:
    table = np.memmap(path, np.float32, "r").reshape(-1, features)
    yield lambda batch: np.take(table, batch, axis=0)


def empty(shape: tuple[int, ...], device: str) -> Any:
    if device == "cpu":
        return np.empty(shape, np.float32)
    import torch

    return torch.empty(shape, dtype=torch.float32, device=device)


def on_host(batch: Any) -> np.ndarray:
    return batch if isinstance(batch, np.ndarray) else batch.cpu().numpy()


def ways(path: Path, options: argparse.Namespace) -> dict[str, Iterator[Callable[[np.ndarray], Any]]]:
    found = {"forebay gather": by_forebay(path, options.features, options.device)}
    try:
        import torch  # noqa: F401

        found["torch index_select"] = by_torch(path, options.nodes, options.features, options.device)
    except ImportError:
        print("torch isn't installed; left out")
    if options.device == "cpu":
        found["numpy take"] = by_numpy(path, options.features)
    return found


def run(path: Path, options: argparse.Namespace) -> None:
    draw = np.random.default_rng(options.seed)
    written(path, options.nodes, options.features)
    neighbours, begins = power_law_graph(options.nodes, 16, draw)
    seeds = [draw.integers(options.nodes, size=options.seeds) for _ in range(options.batches)]
    batches = [sampled(neighbours, begins, some, draw) for some in seeds]
    rows = sum(batch.size for batch in batches)
    print(f"{options.nodes} nodes × {options.features} float32, {neighbours.size} edges, {len(batches)} batches, {rows} rows")
    wanted = np.arange(options.features, dtype=np.float32) / 1000
    for name, opened in ways(path, options).items():
        read = next(opened)
        # Once through: caches and registered memory are there before the clock starts, and every row is looked at.
        for batch in batches:
            if not (on_host(read(batch)) == batch.astype(np.float32)[:, None] + wanted).all():
                sys.exit(f"{name}: wrong rows")
        began, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            read(batch)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        print(f"{name:20} {rows / took / 1e6:8.3f} million rows/s  {cpu / rows * 1e9:8.0f} ns of CPU a row")
        opened.close()  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=128, help="float32 each (128)")
    parser.add_argument("--seeds", type=int, default=1024, help="nodes that a batch begins with (1024)")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 (cpu)")
    parser.add_argument("--dir", type=Path, help="a folder for the file (a temporary one)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if min(options.nodes, options.features, options.seeds, options.batches) < 1:
        parser.error("--nodes, --features, --seeds and --batches are 1 or more")
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        run(Path(folder) / "features.bin", options)


if __name__ == "__main__":
    main()
