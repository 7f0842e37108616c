"""Random rows of a cached file → the GPU: `gather` beside PyTorch at its best, KvikIO, and what the link carries.

Rows of 4 KiB to 128 bytes, 256 MiB of them a batch. `gather` is one launch for thousands of rows, which a kernel
fetches out of the page cache by itself; PyTorch gathers them by all processors into pinned memory and copies; KvikIO
reads each.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from child import Child, asked, closing
from gpu import COPY, KVIKIO, MIB, arguments, copy_rate, data_file, fastest, kvikio, ready, run_main
from side_by_side import Bound, Cell, compare

OURS, TORCH = "forebay.open().gather", "torch index_select"
# Row bytes, and how many times PyTorch's rate is asked for.
ROWS = [(4096, 2.1), (2048, 2.2), (912, 1.5), (512, None), (128, None)]
BATCH_BYTES = 256 * MIB
NS_PER_ROW_MAX = 50.0


def cell(options: argparse.Namespace, children: Sequence[Child], row_bytes: int, times: float | None) -> Cell:
    gather, torch, peer, link = children
    bounds = [Bound("cost", (), at_most=NS_PER_ROW_MAX)]
    if times is not None:
        bounds.append(Bound("rate", (TORCH,), at_least=times))
    if row_bytes == 4096:
        bounds.append(Bound("rate", (KVIKIO,), at_least=200.0))
    made = Cell(f"{row_bytes} bytes", [], bounds, per="I/O", ours=OURS)
    at_once = BATCH_BYTES // row_bytes
    add = functools.partial(fastest, made, options)
    add(OURS, lambda _: asked(OURS, gather, row_bytes=row_bytes, at_once=at_once))
    add(TORCH, lambda _: asked(TORCH, torch, row_bytes=row_bytes, at_once=at_once))
    if row_bytes == 4096:
        read = lambda s: kvikio(peer, mode=s[0], threads=s[1], task=4 * MIB, block=row_bytes)  # noqa: E731
        add(KVIKIO, read, [("futures", 16), ("threads", 8)], lambda s: f"{s[0]}, {s[1]} threads")
        add(COPY, lambda _: copy_rate(link))
    return made


def main() -> int:
    options = ready(arguments(__doc__ or ""))
    file = data_file(options)
    gpu = str(options.gpu)
    gather, torch = (Child("child_rows.py", way, gpu, str(file)) for way in ("gather", "torch"))
    peer, link = Child("child_kvikio.py", str(file)), Child("child_copy.py", gpu)
    cells = [
        functools.partial(cell, options, (gather, torch, peer, link), row_bytes, times)
        for row_bytes, times in ROWS
        if not options.only or options.only in f"{row_bytes} bytes"
    ]
    with closing(gather, torch, peer, link):
        return compare("Into the GPU, rows", options, cells)


if __name__ == "__main__":
    run_main(main)
