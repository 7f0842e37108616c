"""Two GPUs at once against one: the same cached file, the same path, each at its best setting, found by a scan just before."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from gpu import arguments, count, data_file, fastest, ours, ready, run_main
from side_by_side import Bound, Cell, compare, say

PROMISES = ("MSR-12",)

TWO, ONE = "two GPUs", "one GPU"
BOUNDS = [Bound("rate", (ONE,), at_least=1.9)]
# Workers and sizes: what all of them keep under way should stay in the last-level cache.
BOUNCE = {
    ONE: [(8, "4m"), (10, "4m"), (12, "2m")],
    TWO: [(16, "4m"), (20, "2m"), (24, "2m"), (28, "2m"), (24, "1m")],
}
MAPPED = {ONE: [(1, "16m")], TWO: [(2, "16m")]}
GPUS = {ONE: "0", TWO: "0,1"}


def cell(options: argparse.Namespace, file: Path, path: str) -> Cell:
    made = Cell(f"{path}, cached", [], BOUNDS, ours=TWO)
    more = "--depth 3" if path == "bounce" else f"--depth 16 --pin-limit {int(options.file_gib) + 4}g"

    def at(name: str, setting: tuple[int, str]) -> Any:
        workers, size = setting
        flags = f"--path {path} --cache allow --io-size {size} --workers {workers} {more}"
        # The warm-up holds the first pass of mapped, which registers.
        warmup_s = 1.5 if path == "mapped" else 0.3
        return ours(name, file, options, flags, gpus=GPUS[name], destination=None, warmup_s=warmup_s)

    for name in (TWO, ONE):
        settings = (BOUNCE if path == "bounce" else MAPPED)[name]
        fastest(made, options, name, functools.partial(at, name), settings, lambda s: f"{s[0]} workers, {s[1]}")
    return made


def main() -> int:
    options = ready(arguments(__doc__ or ""))
    if count() < 2:
        say(f"this machine has {count()} GPU; two are needed, so nothing was measured")
        return 0
    file = data_file(options)
    cells = [
        functools.partial(cell, options, file, path)
        for path in ("bounce", "mapped")
        if not options.only or options.only in path
    ]
    return compare("Two GPUs", options, cells)


if __name__ == "__main__":
    run_main(main)
