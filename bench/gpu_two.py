"""Two GPUs at once against one: the same cached file, the same path, twice the workers."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from gpu import arguments, count, data_file, fastest, ours, ready, run_main
from side_by_side import Bound, Cell, compare, say

TWO, ONE = "two GPUs", "one GPU"
BOUNDS = [Bound("rate", (ONE,), at_least=1.9)]


def cell(options: argparse.Namespace, file: Path, path: str) -> Cell:
    made = Cell(f"{path}, cached", [], BOUNDS, ours=TWO)

    def gpus(name: str, list_: str, workers: int) -> Any:
        flags = f"--path {path} --cache allow"
        flags += f" --io-size 4m --depth 3 --workers {workers}" if path == "bounce" else ""
        pinned = f" --pin-limit {int(options.file_gib) + 4}g --io-size 16m --depth 16 --workers {workers // 8}"
        flags += pinned if path == "mapped" else ""
        # The warm-up holds the first pass of mapped, which registers.
        return lambda _: ours(name, file, options, flags, gpus=list_, destination=None, warmup_s=1.5)

    fastest(made, options, TWO, gpus(TWO, "0,1", 16))
    fastest(made, options, ONE, gpus(ONE, "0", 8))
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
