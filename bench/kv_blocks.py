"""Blocks of a key-value cache, loaded into paged memory and stored from it: `python bench/kv_blocks.py --dir DIR [--gpu]`.

Cached blocks of a file go to pages drawn at random. On the host: pages of 64 KiB by `forebay.kv` beside NIXL's POSIX plug-in
(io_uring, Linux AIO) and preadv by a pool of threads; and stores until all has reached the disk, to a new file and over blocks
that are there, beside O_DIRECT writes of 1 MiB, 32 in flight. With --gpu: these from a GPU's pages; blocks of 2 MiB and of 32
MiB, 64 KiB layer after layer, the first load after opening, and stores to memory, beside torch with two pinned buffers, KvikIO
and NIXL where they are installed; what isn't cached, beside O_DIRECT reads into host memory; and with --trace the loads of
Mooncake's requests. Every contender's last call is compared with the file, byte by byte. Exit: 0 if every bound holds, 1 if one
does not.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from child import Child, asked
from child_kv import LAYERS, PAGE
from side_by_side import (
    GIB,
    Bound,
    Cell,
    Contender,
    Figure,
    Unavailable,
    arguments,
    compare,
    existing_file,
    only_with_gpu,
    say,
)

TITLE = "Blocks of a key-value cache"
OURS, THREADS, TORCH, KVIKIO = "forebay.kv", "preadv, threads", "torch, two pinned buffers", "KvikIO"
URING, AIO, GDS = "NIXL POSIX, io_uring", "NIXL POSIX, aio", "NIXL GDS_MT"
BOUNCE, DISK = "forebay.kv, bounce", "O_DIRECT, host memory"
# Nothing but copies by way of pinned memory: a bound is the machine's where these don't hold it.
FLOORS = {f"copies alone, {threads} threads": f"floor {threads}" for threads in (6, 7, 8)}
WHO = {
    OURS: "forebay", BOUNCE: "forebay bounce", DISK: "direct", **FLOORS,
    THREADS: "threads", TORCH: "threads", KVIKIO: "kvikio",
    URING: "nixl POSIX:use_uring", AIO: "nixl POSIX:use_aio", GDS: "nixl GDS_MT",
}  # fmt: skip
ON_HOST, ON_GPU = (OURS, URING, AIO, THREADS), (OURS, TORCH, KVIKIO, GDS, URING)
# Those that load blocks of 2 MiB fastest: the others need minutes for a trace.
ON_TRACE = (OURS, TORCH, URING)
NIXL = (URING, AIO)
# Bytes of a call.
CALL = 512 << 20
REQUESTS = 10_000


def laid(folder: Path, block_pages: int, gib: float) -> tuple[Path, int]:
    """A store full of bytes, in the page cache and on the disk, and how many blocks it has."""
    import numpy as np
    from forebay import kv

    block = LAYERS * block_pages * PAGE
    blocks = max(8, int(gib * GIB) // block)
    name = folder / f"forebay-kv-{block >> 10}k-{blocks}.kv"
    if name.exists():
        name.unlink()
    at_once = min(blocks, max(1, (256 << 20) // block))
    # Full entropy, so that nothing on the way compresses it; every batch of blocks differs in each page.
    held = np.frombuffer(np.random.Generator(np.random.SFC64(5)).bytes(at_once * block), np.uint8).copy()
    held = held.reshape(LAYERS, at_once * block_pages, PAGE)
    pages = kv.Pages(held)
    table = np.arange(at_once * block_pages).reshape(at_once, block_pages)
    with kv.create(name, layers=LAYERS, page_bytes=PAGE, block_pages=block_pages, blocks=blocks) as store:
        for begin in range(0, blocks, at_once):
            some = range(begin, min(blocks, begin + at_once))
            held[:, :, :8] = np.frombuffer(np.int64(begin).tobytes(), np.uint8)
            # The key is the place that the block gets: peers find it there.
            store.store(list(some), table[: len(some)], pages)
        assert all(store.offset(n) == store.shape.data_at + n * block for n in (0, blocks // 2, blocks - 1))
    os.sync()
    return name, blocks


def children(options: argparse.Namespace, who: Sequence[str], folder: Path, block_pages: int) -> tuple[dict[str, Child], int]:
    """One for each contender, kept while cells ask for the same file; they start at the same time."""
    if (folder, block_pages, *who) == options.kept:
        return options.children, options.blocks
    closed(options)
    options.file, options.blocks = laid(folder, block_pages, options.gib)
    options.kept = (folder, block_pages, *who)
    device = f"cuda:{options.device}" if options.gpu else "cpu"
    pages = 2 * max(1, CALL // (LAYERS * block_pages * PAGE)) * block_pages
    words = (device, str(options.file), str(options.blocks), str(block_pages), str(pages))
    options.children = {each: Child("child_kv.py", WHO[each], *words) for each in who}
    with ThreadPoolExecutor(len(who)) as pool:
        list(pool.map(_started, options.children.values()))
    return options.children, options.blocks


def _started(child: Child) -> None:
    # It says why, once it is asked.
    with contextlib.suppress(Unavailable):
        child.start()


def closed(options: argparse.Namespace) -> None:
    for child in options.children.values():
        child.close()
    options.children = {}
    if options.file is not None:
        options.file.unlink(missing_ok=True)


def cell(
    options: argparse.Namespace, name: str, who: Sequence[str], op: str, block_pages: int, bounds: list[Bound], **more: Any
) -> Cell:
    folder = Path("/dev/shm") if op == "store" and options.gpu and os.path.isdir("/dev/shm") else options.dir
    there, blocks = children(options, who, folder, block_pages)
    made = Cell(name, [], bounds, ours=who[0])
    for each, child in there.items():
        # Of what is flushed, as much as the memory holds.
        count = min(blocks, max(1, (2 if op == "durable" else 1) * CALL // (LAYERS * block_pages * PAGE)))
        contender = asked(each, child, op=op, count=count, **more)
        if op == "trace":
            contender = replayed(contender, child, options.replays, more)
        try:
            # Once before it counts; of what is flushed, a part: its threads and its pinned memory are there then, too.
            part = max(1, count // 8) if op == "durable" else count
            tried = {"op": "load", "count": count} if op == "trace" else {"op": op, "count": part, **more}
            asked(each, child, **tried).measure(0.2)
        except Unavailable as reason:
            say(f"{name}: left out: {each}: {reason}")
            made.lost[each] = str(reason)
            child.close()
            continue
        made.contenders.append(contender)
    names = {contender.name for contender in made.contenders}
    kept = [bound for bound in bounds if not bound.against or names & set(bound.against)]
    kept = [replace(bound, against=tuple(n for n in bound.against if n in names)) for bound in kept]
    return Cell(name, made.contenders, kept, ours=who[0], lost=made.lost)


def replayed(contender: Contender, child: Child, replays: dict[str, int], asked_for: dict[str, Any]) -> Contender:
    """A contender that replays a trace once a round; other shares of the same loads are answered from what was measured then.
    `replays`: how many each contender has kept the times of."""
    rounds = itertools.count()

    def measure(seconds: float) -> Figure:
        number, had = next(rounds), replays.get(contender.name, 0)
        more = {"measured": number} if number < had else {}
        figure = asked(contender.name, child, op="trace", **asked_for, **more).measure(seconds)
        replays[contender.name] = max(had, number + 1)
        return figure

    return replace(contender, measure=measure)


def to_disk(options: argparse.Namespace) -> list[Any]:
    who = (OURS, DISK, TORCH, KVIKIO, GDS, URING) if options.gpu else (OURS, DISK, THREADS, URING)
    return [
        functools.partial(cell, options, name, who, "durable", 1, [Bound("rate", (DISK,), at_least=0.95)], is_new=is_new)
        for name, is_new in (("first fill of a store, to the disk", True), ("blocks written over, to the disk", False))
        if not options.only or options.only in name
    ]


def cells(options: argparse.Namespace) -> list[Any]:
    if not options.gpu:
        against = [Bound("rate", NIXL, at_least=1.0, pick="fastest"), Bound("cost", NIXL, at_most=0.5, pick="fastest")]
        name = "64 KiB to host, warm"
        one = functools.partial(cell, options, name, ON_HOST, "load", 1, against)
        return ([one] if not options.only or options.only in name else []) + to_disk(options)
    peers = ON_GPU[1:]

    def bound(rate: float, cost_ms: float, times: float, share: float) -> list[Bound]:
        return [
            Bound("rate", (), at_least=rate), Bound("cost", (), at_most=cost_ms),
            Bound("rate", peers, at_least=times, pick="fastest"), Bound("cost", peers, at_most=share, pick="fastest"),
        ]  # fmt: skip

    made: list[tuple[str, Sequence[str], str, int, list[Bound], dict[str, Any]]] = [
        ("2 MiB blocks", ON_GPU, "load", 1, bound(46, 50, 1.15, 0.25), {}),
        ("64 KiB, layer after layer", ON_GPU, "layers", 1, bound(45, 10, 4.0, 0.25), {}),
        ("first load after opening", ON_GPU, "first", 1, [Bound("rate", (), at_least=20)], {}),
        ("32 MiB blocks", ON_GPU, "load", 16, bound(46, 50, 1.15, 0.25), {}),
        ("store to memory", ON_GPU, "store", 1, [Bound("rate", (), at_least=20)], {}),
        ("2 MiB blocks, by bounce", (BOUNCE, *FLOORS), "load", 1, [Bound("cost", (), at_most=130)], {}),
        ("2 MiB blocks, cold", (OURS, DISK), "cold", 1, [Bound("rate", (DISK,), at_least=0.97)], {}),
    ]
    for percent in (95, 99) if options.trace else ():
        name, of = f"{REQUESTS:,} requests of a trace, P{percent} of a load", [Bound("rate", peers, at_least=1.0, pick="fastest")]
        more: dict[str, Any] = {"trace": str(options.trace), "share": percent / 100, "requests": REQUESTS}
        made.append((name, ON_TRACE, "trace", 1, of, more))
    chosen = [each for each in made if not options.only or options.only in each[0]]
    return [functools.partial(cell, options, *each[:5], **each[5]) for each in chosen] + to_disk(options)


def main() -> int:
    parser = arguments(__doc__ or "", 1.0)
    parser.add_argument("--gpu", action="store_true", help="into a GPU, with PyTorch")
    parser.add_argument("--device", type=int, default=0, help="with --gpu: which (0)")
    parser.add_argument("--trace", type=existing_file, help="with --gpu: also the loads of Mooncake's requests (JSON lines)")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the store (1)")
    options = parser.parse_args()
    only_with_gpu(parser, options, "device", "trace")
    options.children, options.file, options.kept, options.blocks, options.replays = {}, None, None, 0, {}
    try:
        return compare(TITLE, options, cells(options))
    finally:
        closed(options)


if __name__ == "__main__":
    sys.exit(main())
