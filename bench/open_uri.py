"""`forebay.open` of a URI into an array, beside `forebay bench` of the same URI: `python bench/open_uri.py --dir DIR`.

A stripe of two files, a namespace of `forebay serve` and a drive of `forebay snap`; the other end stays while the contenders
take turns. Each reads 1 MiB at a time, 16 in flight, by one worker. What a drive of `snap` has is moved into memory that has a
descriptor, which an array hasn't: it is copied once more, on another processor where there is one. CPU is that of both ends. A
folder in memory shows the software alone. Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from child import Child, asked, closing
from feed import samples
from gateway import gateway
from remote import NQN, host_run, ours
from side_by_side import Bound, Cell, Contender, Figure, arguments, compare

TITLE = "Sources by their URI, into arrays"
BENCH = "forebay bench"
FLAGS = ("--op", "read", "--io-size", "1m", "--depth", "16", "--workers", "1", "--cache", "auto")
ARRAYS = {"numpy.empty": "numpy", "array at a page": "page"}
# Of bench's rate.
SHARE = 0.95


def stripe(files: list[Path]) -> Iterator[tuple[str, list[int]]]:
    members = "".join(f"&m={file}" for file in files)
    yield f"stripe:?chunk=1m{members}", []


def namespace(files: list[Path]) -> Iterator[tuple[str, list[int]]]:
    with ours(os.fspath(files[0])) as (pid, port):
        yield f"nvme+tcp://127.0.0.1:{port}/{NQN}", [pid]


def drive(files: list[Path]) -> Iterator[tuple[str, list[int]]]:
    with gateway(os.fspath(files[0])) as (pid, socket):
        yield f"vfio-user:{socket}", [pid]


SOURCES: dict[str, Callable[[list[Path]], Iterator[tuple[str, list[int]]]]] = {
    "stripe": stripe,
    "nvme+tcp": namespace,
    "vfio-user": drive,
}


def by_bench(uri: str, pids: list[int]) -> Contender:
    def measure(seconds: float) -> Figure:
        return host_run(BENCH, uri, FLAGS, seconds, pids[0] if pids else None)

    return Contender(BENCH, measure, ["forebay", "bench", uri, *FLAGS])


def cell(name: str, uri: str, pids: list[int], children: dict[str, Child]) -> Cell:
    arrays = {kind: asked(kind, child, uri=uri, pids=pids) for kind, child in children.items()}
    bounds = [Bound("rate", (BENCH,), at_least=SHARE, of=array) for array in arrays]
    return Cell(name, [by_bench(uri, pids), *arrays.values()], bounds, ours=next(iter(arrays)))


def main() -> int:
    parser = arguments(__doc__ or "", seconds=1)
    parser.add_argument("--file-mib", type=int, default=512, help="size of each of two files (512)")
    options = parser.parse_args()
    files = [samples(options.dir / f"open-uri-{n}.bin", options.file_mib << 20) for n in range(2)]
    children = {name: Child("child_open_uri.py", str(options.file_mib << 20), kind) for name, kind in ARRAYS.items()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(closing(*children.values()))

        def build(name: str) -> Cell:
            uri, pids = stack.enter_context(contextlib.contextmanager(SOURCES[name])(files))
            return cell(name, uri, pids, children)

        chosen: list[Any] = [functools.partial(build, name) for name in SOURCES if not options.only or options.only in name]
        return compare(TITLE, options, chosen)


if __name__ == "__main__":
    sys.exit(main())
