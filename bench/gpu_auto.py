"""A file → the GPU by `--path auto --prefer rate`, beside every fixed path: `python bench/gpu_auto.py --dir DIR`.

Auto calibrates before its warm-up, as whoever types it would have it do, so that the seconds that are measured are those of
what it chose. Files are cached, or dropped from the page cache before each run. Exit: 0 if auto reaches 0.95 of the best of
the others in every cell, 1 if it does not in one, 3 where nothing can be measured.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from child import drop
from gpu import arguments, cached, data_file, fastest, ours, ready, run_main
from side_by_side import Bound, Cell, Contender, Figure, compare

PROMISES = ("GPU-10",)

AUTO, BOUNCE, MAPPED = "auto", "bounce", "mapped"
LEAST = 0.95
# Long enough for a first pass of `mapped`, which registers.
WARMUP_S = 1.2


@dataclass(frozen=True)
class Work:
    """The I/Os, and what a user who knows the machine would type for each path, best first for most: workers × depth."""

    ios: str
    bounce: tuple[str, ...]
    #: Where the file is cached.
    mapped: tuple[str, ...] = ()


CELLS = {
    "cached, 4 MiB in turn": Work("--op read --io-size 4m", ("8 x 3", "16 x 16"), ("1 x 8", "4 x 64")),
    "cached, 64 KiB at random": Work(
        "--op randread --io-size 64k", ("12 x 64", "16 x 32"), ("4 x 64", "4 x 512")
    ),
    "cached, 4 KiB at random": Work(
        "--op randread --io-size 4k", ("16 x 512", "16 x 4096"), ("4 x 4096", "8 x 512")
    ),
    "cached, 512 bytes at random": Work(
        "--op randread --io-size 512", ("16 x 4096", "16 x 512"), ("4 x 4096", "8 x 512")
    ),
    "cached, 256 KiB at random": Work(
        "--op randread --io-size 256k", ("8 x 32", "16 x 16"), ("4 x 64", "4 x 512")
    ),
    "cached, 512 KiB at random": Work(
        "--op randread --io-size 512k", ("8 x 16", "16 x 8"), ("4 x 32", "2 x 32")
    ),
    "cached, 1 MiB at random": Work("--op randread --io-size 1m", ("8 x 8", "16 x 4"), ("4 x 16", "2 x 16")),
    "cached, 64 KiB in turn": Work("--op read --io-size 64k", ("12 x 64", "16 x 32"), ("1 x 512", "4 x 512")),
    "cached, 4 KiB in turn": Work("--op read --io-size 4k", ("16 x 512", "16 x 4096"), ("4 x 4096", "8 x 512")),
    "not cached, 1 MiB in turn": Work("--op read --io-size 1m", ("2 x 16", "8 x 4")),
    "not cached, 4 KiB at random": Work("--op randread --io-size 4k", ("2 x 64", "16 x 8", "1 x 128")),
}


def prepared(contender: Contender, before: Callable[[], None]) -> Contender:
    """The same, after `before` was called for each run."""

    def measure(seconds: float) -> Figure:
        before()
        return contender.measure(seconds)

    return replace(contender, measure=measure)


def cell(options: argparse.Namespace, file: Path, name: str, work: Work) -> Cell:
    warm = bool(work.mapped)
    bound = Bound("rate", (BOUNCE, MAPPED) if warm else (BOUNCE,), at_least=LEAST, pick="fastest")
    made = Cell(name, [], [bound], ours=AUTO)
    before = functools.partial(cached if warm else drop, file)
    cache = "--cache allow" if warm else "--cache bypass"

    def by(path: str, setting: str) -> Contender:
        # What is left open, auto settles: workers, depth and the use of the page cache.
        how = "--prefer rate" if path == AUTO else cache
        flags = f"{work.ios} --path {path} {how} {setting}"
        return prepared(ours(path, file, options, flags, warmup_s=WARMUP_S), before)

    def contender(path: str, settings: Sequence[str]) -> None:
        make: Callable[[Any], Contender] = functools.partial(by, path)
        typed = ["--workers {} --depth {}".format(*setting.split(" x ")) for setting in settings]
        fastest(made, options, path, make, typed or [""])

    contender(AUTO, ())
    contender(BOUNCE, work.bounce)
    if warm:
        contender(MAPPED, work.mapped)
    return made


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.set_defaults(file_gib=8)
    options = ready(parser)
    file = data_file(options)
    cells = [functools.partial(cell, options, file, name, work) for name, work in CELLS.items() if (options.only or "") in name]
    return compare("Into the GPU, the path left open", options, cells)


if __name__ == "__main__":
    run_main(main)
