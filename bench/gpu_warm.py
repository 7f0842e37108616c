"""A file in the page cache → the GPU: Forebay's bounce and mapped beside KvikIO and the copy rate of the link.

KvikIO and bounce run at their best setting, found by a scan just before. `mapped, first pass` is a new process each
time, so that nothing is registered yet, with and without processors that copy a part; `later passes` measures after a first one
that isn't counted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from child import Child, asked, closing
from gpu import COPY, KVIKIO, MIB, arguments, copy_rate, data_file, fastest, kvikio, ours, ready, run_main
from side_by_side import Bound, Cell, compare

PROMISES = ("MSR-8",)

BOUNCE, FIRST, LATER = "bounce", "mapped, first pass", "mapped, later passes"
# Its one worker has one processor, so that none copies beside it.
LEAN = "mapped, first pass, --cpus 2"
LIMITED = "mapped, first pass, --pin-limit 1g"
API = "forebay.open().read_into"
BOUNCE_SETTINGS = [(8, "4m"), (6, "4m"), (10, "4m"), (6, "8m"), (8, "8m"), (6, "16m")]
# One thread keeps several windows' copies queued ahead of the window that is being registered.
MAPPED_SETTINGS = [(1, "64m", 8), (1, "64m", 4), (1, "16m", 16), (1, "16m", 32)]
KVIKIO_THREADS = [8, 12, 16]
BOUNDS = [
    Bound("rate", (KVIKIO,), at_least=1.14, of=BOUNCE),
    Bound("cost", (KVIKIO,), at_most=0.65, of=BOUNCE),
    Bound("rate", (), at_least=45.0, of=FIRST),
    Bound("cost", (), at_most=90.0, of=FIRST),
    Bound("rate", (), at_least=30.0, of=LEAN),
    Bound("cost", (), at_most=35.0, of=LEAN),
    Bound("rate", (COPY,), at_least=0.98, of=LATER),
    Bound("cost", (), at_most=10.0, of=LATER),
]


def cell(options: argparse.Namespace, file: Path, peer: Child, link: Child, api: Child) -> Cell:
    made = Cell(f"{options.file_gib:g} GiB, cached", [], BOUNDS, ours=BOUNCE)

    def bounce(setting: tuple[int, str]) -> Any:
        workers, size = setting
        flags = f"--path bounce --cache allow --io-size {size} --workers {workers} --depth 3"
        return ours(BOUNCE, file, options, flags)

    def mapped(name: str, more: str = "", **how: Any) -> Any:
        def make(setting: tuple[int, str, int]) -> Any:
            workers, size, depth = setting
            flags = f"--path mapped --cache allow --io-size {size} --workers {workers} --depth {depth} {more}"
            return ours(name, file, options, flags, **how)

        return make

    def threads(count: int) -> Any:
        return kvikio(peer, threads=count, task=4 * MIB)

    fastest(made, options, BOUNCE, bounce, BOUNCE_SETTINGS, lambda s: f"{s[0]} workers, {s[1]}")
    fastest(made, options, KVIKIO, threads, KVIKIO_THREADS, lambda n: f"{n} threads")
    several = lambda s: f"{s[0]} workers, {s[1]}, depth {s[2]}"  # noqa: E731
    fastest(made, options, FIRST, mapped(FIRST, passes=1), MAPPED_SETTINGS, several)
    fastest(made, options, LEAN, mapped(LEAN, "--cpus 2", passes=1), MAPPED_SETTINGS, several)
    fastest(made, options, LIMITED, mapped(LIMITED, "--pin-limit 1g", passes=1), MAPPED_SETTINGS, several)
    # The warm-up is long enough for the first pass, which registers.
    later = mapped(LATER, f"--pin-limit {int(options.file_gib) + 4}g", warmup_s=1.2)
    fastest(made, options, LATER, later, MAPPED_SETTINGS[:1], several)
    fastest(made, options, API, lambda _: asked(API, api))
    fastest(made, options, COPY, lambda _: copy_rate(link))
    return made


def main() -> int:
    options = ready(arguments(__doc__ or "", only=False))
    file = data_file(options)
    gpu = str(options.gpu)
    peer, link = Child("child_kvikio.py", str(file)), Child("child_copy.py", gpu)
    api = Child("child_forebay.py", "file", gpu, str(file))
    with closing(peer, link, api):
        return compare("Into the GPU, cached", options, [lambda: cell(options, file, peer, link, api)])


if __name__ == "__main__":
    run_main(main)
