"""Reference points of convergence: `python bench/train_reference.py --dir DIR`.

Trains the toy from ten seeds at each batch and learning rate, and writes samples to the target into the package, where
`forebay train check` reads them. Runs that DIR/runs.jsonl has aren't repeated. They say nothing of a machine: the number of
samples is the model's, the data's and the seed's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from forebay.train import reference, series

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "python/forebay/data/train/reference.json"
SEEDS = 10
# (batch, learning rates): at the usual batch also those that are too low and too high.
GRID = ((128, (0.02,)), (256, (0.02,)), (512, (0.005, 0.01, 0.02, 0.04, 0.08)), (1024, (0.02, 0.04)), (2048, (0.02, 0.04)))


def trained(folder: Path, batch: int, rate: float) -> None:
    flags = ["--batch-size", str(batch), "--learning-rate", str(rate), "--evaluate-every", "1024", "--samples", "524288"]
    runs = ["--seeds", str(SEEDS), "--peak-seconds", "0.1", "-o", str(folder / "runs.jsonl")]
    words = [sys.executable, "-m", "forebay.cli", "train", "toy", "--dir", str(folder / "toy"), *flags, *runs]
    subprocess.run(words, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, type=Path, help="folder for the data and the runs")
    folder = parser.parse_args().dir
    folder.mkdir(parents=True, exist_ok=True)
    for batch, rates in GRID:
        for rate in rates:
            trained(folder, batch, rate)
    found = reference.points([reference.Run.from_record(record) for record in series.kept(str(folder / "runs.jsonl"))])
    lines = [json.dumps(row) for row in reference.document(found)["points"]]
    OUT.write_text(f'{{"schema": "{reference.SCHEMA}", "points": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{OUT}: {len(lines)} points")


if __name__ == "__main__":
    main()
