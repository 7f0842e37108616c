"""Many small cached files → the GPU: forebay.read_files beside KvikIO and torch's DataLoader.

Each run reads every file once. KvikIO opens a CuFile per file from a pool of Python threads; DataLoader has worker
processes and pinned batches. Each at the better of its settings, found on a part of the files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path
from typing import Any

from child import Child, asked, closing
from gpu import KVIKIO, MIB, arguments, fastest, ready, run_main
from side_by_side import Bound, Cell, Contender, compare, say
from small_files import make

PROMISES = ("MSR-10",)

OURS, LOADER = "forebay.read_files", "torch DataLoader"
PEERS = (KVIKIO, LOADER)
SCANNED = 10_000


def cell(options: argparse.Namespace, folder: Path, children: dict[str, Child]) -> Cell:
    bounds = [Bound("rate", PEERS, at_least=5.0, pick="fastest")]
    made = Cell(f"{options.files:,} × {options.file_kib} KiB, cached", [], bounds, ours=OURS)

    def peer(settings: dict[str, Any]) -> Contender:
        return asked(KVIKIO, children["kvikio"], mode="files", task=4 * MIB, **settings)

    def loader(settings: dict[str, Any]) -> Contender:
        return asked(LOADER, children[f"torch {settings['workers']}"], **settings)

    part = {"files": min(SCANNED, options.files)}
    fastest(made, options, OURS, lambda _: asked(OURS, children["forebay"]))
    for name, build, key, counts in ((KVIKIO, peer, "threads", (8, 16, 4)), (LOADER, loader, "workers", (16, 8))):
        fastest(made, options, name, build, [{key: n} | part for n in counts], lambda s: str(s))
        if name not in made.lost:
            # The scan read a part of the files; a round reads them all.
            best = {key: made.chosen[name]["depth"][key]}
            made.contenders[-1] = build(best)
            made.chosen[name]["shown"] = f"{best[key]} {key}"
    return made


def main() -> int:
    parser = arguments(__doc__ or "", only=False)
    parser.add_argument("--files", type=int, default=100_000, help="how many (100000)")
    parser.add_argument("--file-kib", type=int, default=64, help="bytes of each, in KiB (64)")
    parser.add_argument("--keep", action="store_true", help="leave the files")
    options = ready(parser)
    folder = options.dir / "forebay-small"
    began = time.monotonic()
    make(folder, options.files, options.file_kib << 10)
    os.sync()  # so that nothing is written back while it is measured
    say(f"{options.files} files ready after {time.monotonic() - began:.1f} s")
    children = {
        "forebay": Child("child_forebay.py", "files", "0", str(folder)),
        "kvikio": Child("child_kvikio.py", "-", str(folder)),
        **{f"torch {n}": Child("child_torch.py", str(folder), str(n)) for n in (8, 16)},
    }
    try:
        with closing(*children.values()):
            return compare("Into the GPU, small files", options, [lambda: cell(options, folder, children)])
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    run_main(main)
