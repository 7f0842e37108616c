"""DLRMv2 on several GPUs beside one: `python bench/train_ranks.py --dir DIR [--gpus 2]`, all on one machine.

Each run is a `forebay train dlrm` of its own, on several GPUs by torchrun, from the page cache, and its rate is that of training
alone. Batches are the same for both, or as large for each GPU. Runs on the same batches must have the same hash.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from typing import Any

from side_by_side import GIB, Cell, Contender, Figure, Unavailable, arguments, compare, say

TITLE = "DLRMv2 on several GPUs"
ROWS, TABLE_ROWS, EVALUATION = 2_097_152, 4_000_000, 8192
BATCHES = (6912, 55_296)
NAMES = {1: "one GPU", 2: "two GPUs", 4: "four GPUs", 8: "eight GPUs"}
# Of a machine on its own: what torch would look up the machine's name for.
LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "4"}

# Batch → samples handed out → the hash of them.
Hashes = dict[int, dict[int, str]]


def name_of(gpus: int) -> str:
    return NAMES.get(gpus, f"{gpus} GPUs")


def command(options: argparse.Namespace, folder: str, gpus: int, batch: int, seconds: float) -> list[str]:
    """A run on so many GPUs, with batches of so many samples in all."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)] if gpus > 1 else []
    words = ["train", "dlrm", "--dir", folder, "--batch-size", str(batch), "--target-auc", "none", "--cache", "warm", "--json"]
    limits = ["--seconds", f"{seconds:g}", "--peak-seconds", f"{seconds / 2:g}", "--quiet"]
    device = ["--device", options.device] if options.device else []
    return [sys.executable, *launch, "-m", "forebay", *words, *limits, *device]


def measure(options: argparse.Namespace, folder: str, gpus: int, batch: int, hashes: Hashes, seconds: float) -> Figure:
    asked = command(options, folder, gpus, batch, seconds)
    # One of several would share what the host has with none.
    own = {"CUDA_VISIBLE_DEVICES": "0"} if gpus == 1 else {}
    done = subprocess.run(asked, capture_output=True, text=True, env={**LOCAL, **os.environ, **own}, check=False, timeout=300)
    if done.returncode != 0:
        raise Unavailable(f"{name_of(gpus)}: {done.stderr.strip()[-2000:]}")
    part: dict[str, Any] = json.loads(done.stdout)["train"]
    if not part["samples_per_s"]:
        raise Unavailable(f"{name_of(gpus)}: too short a run for a rate")
    known = hashes.setdefault(batch, {})
    for mark in part["batch_hash_at"]:
        if known.setdefault(mark["samples"], mark["hash"]) != mark["hash"]:
            raise SystemExit(f"{name_of(gpus)}: another hash of {mark['samples']:,} samples than an earlier run's")
    keys = ("samples_per_s", "peak_samples_per_s", "input_wait_pct", "gpu_idle_pct", "optimizer", "batch", "batch_hash", "ranks")
    say(f"{name_of(gpus)}, batches of {batch:,}: {part['samples_per_s']:,.0f} samples/s, peak {part['peak_samples_per_s']:,.0f}")
    moved = round(part["rate_gib_s"] * GIB * seconds)
    return Figure(seconds, moved, part["steps"], None, None, {key: part.get(key) for key in keys})


def title_of(gpus: int, batch: int, each: bool) -> str:
    return f"{name_of(gpus)}, batches of {batch:,} {'a GPU' if each else 'in all'}"


def cell(options: argparse.Namespace, folder: str, batch: int, each: bool, hashes: Hashes) -> Cell:
    """One GPU and several; `each`: the batch is that of each GPU."""
    found = []
    for gpus in (1, options.gpus):
        own = batch * gpus if each else batch
        shown = command(options, folder, gpus, own, options.seconds)
        found.append(Contender(name_of(gpus), functools.partial(measure, options, folder, gpus, own, hashes), shown))
    return Cell(title_of(options.gpus, batch, each), found, [], ours=name_of(options.gpus))


def data_of(options: argparse.Namespace) -> str:
    from forebay.train import data

    folder = options.dir / f"train-ranks-{options.rows}"
    if not (folder / data.ABOUT).exists():
        say(f"writing {folder}")
        data.generate(folder, 0, options.rows, EVALUATION, options.table_rows)
    return str(folder)


def main() -> int:
    parser = arguments(__doc__ or "", 6.0)
    parser.add_argument("--gpus", type=int, default=2, help="how many beside one (2)")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the data set")
    parser.add_argument("--table-rows", type=int, default=TABLE_ROWS, help="to which its large tables are cut")
    parser.add_argument("--batches", help="samples of a batch, separated by commas")
    parser.add_argument("--device", help="of all runs: cpu, to try it")
    options = parser.parse_args()
    folder, hashes = data_of(options), Hashes()
    batches = [int(n) for n in options.batches.split(",")] if options.batches else BATCHES
    # A GPU with the batch of one of several has half the work of a step: both are told, as neither is wrong.
    every = [(batch, each) for batch in batches for each in (False, True)]
    asked = [one for one in every if not options.only or options.only in title_of(options.gpus, *one)]
    return compare(TITLE, options, [functools.partial(cell, options, folder, *one, hashes) for one in asked])


if __name__ == "__main__":
    raise SystemExit(main())
