"""Lightning with forebay.torch.Loader in place of a DataLoader: its checkpoints hold where the loader stood.

    pip install lightning
    python examples/training/with_lightning.py --dir /mnt/data

Lightning saves the `state_dict()` of a loader that has one. A fit that was stopped in the middle of an epoch is continued from
its checkpoint; each sample of the epoch is seen once by both together, which is checked.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from forebay.torch import Loader
from lightning.pytorch.callbacks import ModelCheckpoint

WIDTH = 8


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 1)
        self.seen: list[int] = []

    def training_step(self, batch: dict[str, Any], _: int) -> Any:
        self.seen += batch["number"].tolist()
        return (self.layer(batch["x"]).squeeze(1) - batch["y"]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def written(path: Path, rows: int) -> Path:
    made = np.zeros(rows, [("x", "<f4", WIDTH), ("y", "<f4"), ("number", "<i8")])
    made["x"] = np.random.default_rng(1).standard_normal((rows, WIDTH), np.float32)
    made["y"], made["number"] = made["x"].sum(axis=1), np.arange(rows)
    np.save(path, made)
    return path


def fitted(folder: Path, file: Path, options: argparse.Namespace, checkpoint: Path | None = None) -> Line:
    keeps = ModelCheckpoint(folder, "half", every_n_train_steps=options.stop, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        callbacks=[] if checkpoint else [keeps],
        enable_checkpointing=checkpoint is None,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        max_epochs=1,
    )
    model = Line()
    trainer.fit(model, Loader(file, options.batch, seed=options.seed), ckpt_path=checkpoint)
    return model


def run(options: argparse.Namespace, folder: Path) -> None:
    file = written(folder / "rows.npy", options.rows)
    seen = fitted(folder, file, options).seen[: options.stop * options.batch]
    left = fitted(folder, file, options, folder / "half.ckpt").seen
    if sorted(seen + left) != list(range(options.rows)):
        raise SystemExit(f"{len(seen)} and {len(left)} samples were seen, not each of {options.rows} once")
    print(f"{len(seen)} samples before the checkpoint, {len(left)} after it: each of {options.rows} once")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--stop", type=int, default=100, help="steps before the checkpoint, more than half of an epoch's (100)")
    parser.add_argument("--dir", type=Path, help="a folder for the files (a temporary one)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
