"""A file → the GPU by `--path auto`, beside every fixed path with its settings: `python bench/gpu_auto.py --dir DIR`.

Auto calibrates before its warm-up, as whoever types it would have it do, so that the seconds that are measured are those of
what it chose. Files are cached, or dropped from the page cache before each run. Exit: 0 if auto reaches 0.95 of the best of
the others in every cell, 1 if it does not in one, 3 where nothing can be measured.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from child import drop
from gpu import arguments, cached, data_file, fastest, ours, ready, run_main
from side_by_side import Bound, Cell, Contender, Figure, compare

AUTO, BOUNCE, MAPPED = "auto", "bounce", "mapped"
LEAST = 0.95
# Long enough for a first pass of `mapped`, which registers.
WARMUP_S = 1.2
# Each cell: what it is called, the I/Os, and whether the file is cached.
CELLS: dict[str, tuple[str, bool]] = {
    "cached, 4 MiB in turn": ("--op read --io-size 4m", True),
    "cached, 64 KiB at random": ("--op randread --io-size 64k", True),
    "cached, 4 KiB at random": ("--op randread --io-size 4k", True),
    "not cached, 1 MiB in turn": ("--op read --io-size 1m", False),
}
# What a user who knows the machine would type, best first for most.
BOUNCE_CACHED = ["--workers 8 --depth 3", "--workers 16 --depth 16"]
MAPPED_CACHED = ["--workers 1 --depth 8", "--workers 4 --depth 64"]
COLD = ["--workers 2 --depth 16", "--workers 8 --depth 4"]


def prepared(contender: Contender, before: Callable[[], None]) -> Contender:
    """The same, after `before` was called for each run."""

    def measure(seconds: float) -> Figure:
        before()
        return contender.measure(seconds)

    return replace(contender, measure=measure)


def cell(options: argparse.Namespace, file: Path, name: str, ios: str, warm: bool) -> Cell:
    bound = Bound("rate", (BOUNCE, MAPPED) if warm else (BOUNCE,), at_least=LEAST, pick="fastest")
    made = Cell(name, [], [bound], ours=AUTO)
    before = functools.partial(cached if warm else drop, file)
    cache = "--cache allow" if warm else "--cache bypass"

    def by(path: str, setting: str) -> Contender:
        # What is left open, auto settles: workers, depth and the use of the page cache.
        flags = f"{ios} --path {path} {setting}" if path == AUTO else f"{ios} --path {path} {cache} {setting}"
        return prepared(ours(path, file, options, flags, warmup_s=WARMUP_S), before)

    def contender(path: str, settings: list[str]) -> None:
        make: Callable[[Any], Contender] = functools.partial(by, path)
        fastest(made, options, path, make, settings)

    contender(AUTO, [""])
    contender(BOUNCE, BOUNCE_CACHED if warm else COLD)
    if warm:
        contender(MAPPED, MAPPED_CACHED)
    return made


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.set_defaults(file_gib=8)
    options = ready(parser)
    file = data_file(options)
    cells = [functools.partial(cell, options, file, name, *how) for name, how in CELLS.items()]
    return compare("Into the GPU, the path left open", options, cells)


if __name__ == "__main__":
    run_main(main)
