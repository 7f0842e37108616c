"""Training with forebay.torch.Loader and nothing else of PyTorch's data tools, interrupted in the middle of an epoch.

    python examples/training/plain.py
    python examples/training/plain.py --device cuda:0 --rows 4000000 --dir /mnt/data
    torchrun --nproc-per-node 2 examples/training/plain.py --dir /mnt/data

Two runs fit the same line: one goes through, the other ends after some steps, with its state in a file, and is gone on with
by a new loader, model and optimiser. Their weights are compared: they are equal. Under torchrun each rank takes its share.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forebay.torch import Loader

WIDTH = 16


def written(path: Path, rows: int) -> Path:
    """Samples of a line: 16 numbers, and their sum with weights 1 to 16."""
    made = np.zeros(rows, [("x", "<f4", WIDTH), ("y", "<f4")])
    made["x"] = np.random.default_rng(1).standard_normal((rows, WIDTH), np.float32)
    made["y"] = made["x"] @ np.arange(1, WIDTH + 1, dtype=np.float32)
    np.save(path, made)
    return path


def begun(options: argparse.Namespace, file: Path) -> tuple[Any, Any, Loader]:
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 1).to(options.device)
    if torch.distributed.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    loader = Loader(file, options.batch, shuffle="rows", seed=options.seed, device=options.device, drop_last=True)
    return model, torch.optim.SGD(model.parameters(), lr=0.05), loader


def trained(model: Any, optimiser: Any, loader: Loader, epochs: int, steps: int | None = None) -> float:
    """Goes on to the end of so many epochs, or for so many steps; the last loss."""
    loss = torch.zeros(())
    while loader.epoch < epochs:
        for batch in loader:
            optimiser.zero_grad()
            loss = (model(batch["x"]).squeeze(1) - batch["y"]).square().mean()
            loss.backward()
            optimiser.step()
            if steps is not None:
                steps -= 1
                if not steps:
                    return float(loss.detach())
    return float(loss.detach())


def run(options: argparse.Namespace, folder: Path) -> None:
    file, rank = folder / "rows.npy", int(os.environ.get("RANK", "0"))
    if rank == 0:
        written(file, options.rows)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("nccl" if options.device.startswith("cuda") else "gloo")
        torch.distributed.barrier()
    model, optimiser, loader = begun(options, file)
    loss = trained(model, optimiser, loader, options.epochs)
    weights = model.state_dict()

    model, optimiser, loader = begun(options, file)
    trained(model, optimiser, loader, options.epochs, options.stop)
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "loader": loader.state_dict()}
    kept = folder / f"step-{rank}.pt"
    torch.save(state, kept)

    model, optimiser, loader = begun(options, file)
    state = torch.load(kept)
    for part, name in ((model, "model"), (optimiser, "optimiser"), (loader, "loader")):
        part.load_state_dict(state[name])
    trained(model, optimiser, loader, options.epochs)
    same = all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    if not same:
        raise SystemExit("the weights differ")
    if rank == 0:
        print(f"loss {loss:.4f}; ended after {options.stop} steps and gone on with: the same weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256, help="samples of a rank's batch (256)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop", type=int, default=100, help="steps after which the second run ends (100)")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 (cpu)")
    parser.add_argument("--dir", type=Path, help="a folder that all ranks see (a temporary one)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if options.dir is not None:
        run(options, options.dir)
        return
    if "RANK" in os.environ:
        parser.error("--dir is needed under torchrun: a folder that all ranks see")
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
