"""Hugging Face's Trainer with forebay.torch.Loader: `get_train_dataloader` returns it, and nothing else changes.

    pip install transformers accelerate
    python examples/training/with_trainer.py --dir /mnt/data

A small BERT learns to tell which half of its vocabulary a text's tokens are of; texts are rows of token ids in one file. The
loader's state is kept beside each checkpoint of the Trainer's, and read back before it is continued.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from forebay.torch import Loader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

TOKENS, VOCABULARY = 32, 64


class FromForebay(Trainer):
    """A Trainer whose batches a loader hands out."""

    def __init__(self, *args: Any, loader: Loader, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        return self.loader


class KeepsLoader(TrainerCallback):
    """The loader's state in a file of its own, in the folder of each checkpoint."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        (folder / "loader.json").write_text(json.dumps(self.loader.state_dict()))


def written(path: Path, rows: int) -> Path:
    """Token ids, all of one half of the vocabulary, and the number of that half."""
    draw = np.random.default_rng(1)
    made = np.zeros(rows, [("input_ids", "<i8", TOKENS), ("labels", "<i8")])
    made["labels"] = draw.integers(0, 2, rows)
    made["input_ids"] = draw.integers(0, VOCABULARY // 2, (rows, TOKENS)) + VOCABULARY // 2 * made["labels"][:, None]
    np.save(path, made)
    return path


def run(options: argparse.Namespace, folder: Path) -> None:
    file = written(folder / "texts.npy", options.rows)
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    steps = options.rows // options.batch
    settings = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=steps,
        save_steps=steps // 2,
        per_device_train_batch_size=options.batch,
        learning_rate=1e-2,
        report_to=[],
        logging_steps=steps,
        disable_tqdm=True,
        use_cpu=options.device == "cpu",
    )
    loader = Loader(file, options.batch, seed=options.seed, device=options.device, drop_last=True)
    model = BertForSequenceClassification(config)
    trainer = FromForebay(model, settings, loader=loader, callbacks=[KeepsLoader(loader)])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    half = json.loads((folder / "out" / f"checkpoint-{steps // 2}" / "loader.json").read_text())
    if half["position"] != steps // 2 * options.batch:
        raise SystemExit(f"the checkpoint's loader stands at sample {half['position']}")
    again = Loader(file, options.batch, seed=options.seed, device=options.device, drop_last=True)
    again.load_state_dict(half)
    left = sum(1 for _ in again)
    print(f"{steps} steps, mean loss {losses[-1]:.3f}; from the checkpoint in the middle {left} batches are left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 (cpu)")
    parser.add_argument("--dir", type=Path, help="a folder for the files (a temporary one)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
