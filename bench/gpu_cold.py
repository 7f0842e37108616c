"""A file on the disk → the GPU, O_DIRECT: Forebay's bounce beside fio's best host-only rate and KvikIO.

fio reads into host memory and no further, so its rate is what the disk gives. KvikIO reads through the page cache
(dropped before each run), or with its own O_DIRECT, whichever a scan finds better.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from child import Child, closing
from gpu import KVIKIO, MIB, arguments, data_file, fastest, kvikio, ours, ready, run_main
from peers import fio_uring
from side_by_side import Bound, Cell, compare

PROMISES = ("ENG-8", "MSR-9")

BOUNCE, FIO = "bounce", "fio, host only"
BOUNDS = [Bound("rate", (FIO,), at_least=0.98), Bound("cost", (KVIKIO,), at_most=0.5)]
# workers (jobs), bytes, depth
SETTINGS = [(1, MIB, 16), (1, 4 * MIB, 4), (2, MIB, 8), (4, MIB, 8)]
PEER = [(8, False), (16, False), (8, True), (16, True)]


def cell(options: argparse.Namespace, file: Path, peer: Child) -> Cell:
    made = Cell("O_DIRECT", [], BOUNDS, ours=BOUNCE)

    def bounce(setting: tuple[int, int, int]) -> Any:
        workers, size, depth = setting
        flags = f"--path bounce --cache bypass --io-size {size} --workers {workers} --depth {depth}"
        return ours(BOUNCE, file, options, flags)

    def fio(setting: tuple[int, int, int]) -> Any:
        jobs, size, depth = setting
        return fio_uring(FIO, file, "read", size, depth, jobs=jobs)

    def threads(setting: tuple[int, bool]) -> Any:
        return kvikio(peer, threads=setting[0], task=4 * MIB, cold=True, direct=setting[1])

    fastest(made, options, FIO, fio, SETTINGS, lambda s: f"{s[0]} jobs, {s[1] >> 10}k, depth {s[2]}")
    fastest(made, options, BOUNCE, bounce, SETTINGS, lambda s: f"{s[0]} workers, {s[1] >> 10}k, depth {s[2]}")
    fastest(made, options, KVIKIO, threads, PEER, lambda s: f"{s[0]} threads{', O_DIRECT' if s[1] else ''}")
    return made


def main() -> int:
    options = ready(arguments(__doc__ or "", seconds=1.2, only=False))
    file = data_file(options)
    peer = Child("child_kvikio.py", str(file))
    with closing(peer):
        return compare("Into the GPU, from the disk", options, [lambda: cell(options, file, peer)])


if __name__ == "__main__":
    run_main(main)
