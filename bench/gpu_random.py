"""Random reads of 4 KiB and 64 KiB → the GPU: Forebay beside KvikIO, from the page cache and from the disk (with fio).

KvikIO is asked through its Python interface, in the better of two ways: reads in its own pool, 256 at a time, or
Python threads with a blocking read each. fio reads into host memory only.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from child import Child, asked, closing
from gpu import KVIKIO, MIB, arguments, data_file, fastest, kvikio, ours, ready, run_main
from peers import fio_uring
from side_by_side import Bound, Cell, Contender, compare

PROMISES = ("MSR-9", "MSR-10")

OURS, FIO, RANGES = "forebay", "fio, host only", "forebay.open().read_at"
# name, cached, block
CELLS = [("4k cached", True, 4 << 10), ("64k cached", True, 64 << 10), ("4k disk", False, 4 << 10), ("64k disk", False, 64 << 10)]
# workers and depth of ours
WARM = {4 << 10: [(8, 256), (12, 256), (8, 128)], 64 << 10: [(8, 64), (8, 32), (12, 64)]}
COLD = [(1, 128), (2, 64), (4, 32)]
PEER_WARM = [("futures", 4), ("futures", 8), ("threads", 4), ("threads", 8)]
PEER_COLD = [("futures", 16), ("futures", 64)]
WARM_BOUNDS = [Bound("rate", (KVIKIO,), at_least=3.0)]
COLD_BOUNDS = [Bound("rate", (FIO,), at_least=0.98), Bound("cost", (KVIKIO,), at_most=0.5)]


def shown(setting: tuple[Any, int]) -> str:
    return f"{setting[0]} workers, depth {setting[1]}"


def forebay_at(options: argparse.Namespace, file: Path, block: int, cache: str) -> Callable[[Any], Contender]:
    def make(setting: tuple[int, int]) -> Contender:
        flags = f"--path bounce --op randread --io-size {block} --cache {cache}"
        return ours(OURS, file, options, f"{flags} --workers {setting[0]} --depth {setting[1]}")

    return make


def peer_at(peer: Child, block: int, **more: Any) -> Callable[[Any], Contender]:
    return lambda s: kvikio(peer, mode=s[0], threads=s[1], task=4 * MIB, block=block, **more)


def cell(
    options: argparse.Namespace, file: Path, peer: Child, api: Child, name: str, cached: bool, block: int
) -> Cell:
    made = Cell(name, [], WARM_BOUNDS if cached else COLD_BOUNDS, per="I/O", ours=OURS)
    add = functools.partial(fastest, made, options)
    pool = lambda s: f"{s[0]}, {s[1]} threads"  # noqa: E731
    if cached:
        add(OURS, forebay_at(options, file, block, "allow"), WARM[block], shown)
        add(KVIKIO, peer_at(peer, block), PEER_WARM, pool)
        add(RANGES, lambda n: asked(RANGES, api, block=block, at_once=n), [1024, 4096], lambda n: f"{n} at once")
        return made
    add(OURS, forebay_at(options, file, block, "bypass"), COLD, shown)
    host = lambda s: fio_uring(FIO, file, "randread", block, s[1], jobs=s[0])  # noqa: E731
    add(FIO, host, COLD, lambda s: f"{s[0]} jobs, depth {s[1]}")
    add(KVIKIO, peer_at(peer, block, cold=True), PEER_COLD, pool)
    return made


def main() -> int:
    options = ready(arguments(__doc__ or ""))
    file = data_file(options)
    peer, api = Child("child_kvikio.py", str(file)), Child("child_forebay.py", "file", "0", str(file))
    cells = [
        functools.partial(cell, options, file, peer, api, name, cached, block)
        for name, cached, block in CELLS
        if not options.only or options.only in name
    ]
    with closing(peer, api):
        return compare("Into the GPU, random", options, cells)


if __name__ == "__main__":
    run_main(main)
