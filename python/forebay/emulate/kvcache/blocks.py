"""`forebay emulate kvcache run`: blocks of a serving engine, stored in a folder and loaded into paged memory."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import resource
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay import flags, kv, model_runs
from forebay.bench.interrupt import Interrupt
from forebay.emulate.kvcache import replay, verb
from forebay.errors import DONE, INTERRUPTED, MachineError, RequestError, RunError
from forebay.numbers import bytes_, significant
from forebay.reader import Report, together
from forebay.units import GIB, parse_bytes, parse_seconds

if TYPE_CHECKING:
    import numpy

SCHEMA = "forebay.kvcache-blocks/1"
PAGE_TOKENS = 16
EXAMPLES = """\b
Examples:
  forebay emulate kvcache run --dir /data/kv --blocks 2m
  forebay emulate kvcache run --dir /data/kv --blocks 64k --layer-time 1ms --verify
  forebay emulate kvcache run --dir /data/kv --blocks 32m --gpu 0 --path mapped --json"""


@click.command("run", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.option("--dir", "folder", metavar="DIR", help="The folder that blocks are kept in.")
@click.option("--blocks", default="2m", show_default=True, metavar="SIZE", help="64k: layer after layer; 2m, 32m: whole blocks.")
@click.option("--model", default="llama3.1-8b", show_default=True, metavar="NAME", help="As for emulate kvcache.")
@click.option("--layers", default="32", show_default=True, metavar="N", help="Layers of the model.")
@click.option("--tokens", default="4096", show_default=True, metavar="N", help="Tokens of a request's prompt that are loaded.")
@click.option("--requests", default="20", show_default=True, metavar="N", help="Requests, one after another.")
@click.option("--size", default="1g", show_default=True, metavar="SIZE", help="Of all blocks that are stored before.")
@click.option("--layer-time", metavar="SECONDS", help="Calculation of a layer, while the next are loaded. Default: none.")
@click.option("--ahead", default="2", show_default=True, metavar="N", help="Layers in flight beside the one that is waited for.")
@click.option("--gpu", metavar="N", help="Pages in this GPU's memory (PyTorch). Default: the host's.")
@click.option("--path", default="auto", show_default=True, metavar="PATH", help="auto, bounce, mapped or host.")
@click.option("--cold", is_flag=True, help="Drop the blocks from the page cache before each request.")
@click.option("--seed", default="42", show_default=True, metavar="N", help="Of content, and of what is drawn.")
@click.option("--verify", is_flag=True, help="Compare a CRC32C of each block that is loaded.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(as_json: bool, **options: Any) -> int:
    """Blocks of a serving engine: how fast they reach their pages, and how much of that is hidden.

    Blocks are stored in a file of the folder, then requests load theirs into pages drawn at random. With --blocks of one page a
    request is loaded layer after layer, and each layer is calculated while the next are on their way: what isn't hidden is in
    its time to first token.
    """
    asked = Asked(options)
    with Interrupt() as interrupt:
        found = measure(asked, interrupt)
    click.echo(json.dumps(found, indent=1, allow_nan=False) if as_json else "\n".join(lines(found)))
    return INTERRUPTED if found["interrupted"] else DONE


class Asked:
    """The settings, understood. Raises RequestError for what can't be."""

    def __init__(self, options: dict[str, Any]) -> None:
        if options["folder"] is None:
            raise RequestError("--dir", "no folder was given", "--dir DIR")
        self.folder = Path(options["folder"])
        if not self.folder.is_dir():
            if ":" in options["folder"]:
                found = "is no folder: blocks go to memory from a file system"
                raise RequestError(f"--dir {options['folder']}", found, "--dir DIR")
            raise RequestError(f"--dir {self.folder}", "is no folder that is there", f"mkdir -p {self.folder}")
        self.model, self.path = options["model"], options["path"]
        self.layers, self.tokens, self.requests, self.ahead = (
            flags._integer(options[key], f"--{key}", 1 << 31) for key in ("layers", "tokens", "requests", "ahead")
        )
        self.seed = flags._seed(options["seed"], "--seed")
        self.gpu = flags._integer(options["gpu"], "--gpu", 1 << 16) if options["gpu"] is not None else None
        self.layer_s = parse_seconds(options["layer_time"], "--layer-time") if options["layer_time"] is not None else 0.0
        self.verify, self.cold = options["verify"], options["cold"]
        for name in ("layers", "tokens", "requests", "ahead"):
            if getattr(self, name) < 1:
                raise RequestError(f"--{name} {options[name]}", "must be 1 or more", f"--{name} {16 if name == 'tokens' else 1}")
        plan = verb.engine_plan(verb.option_of(1) | {"dir": "model:d7-ps1010", "model": self.model})
        self.token_bytes = int(plan["bytes_per_token"])
        whole = PAGE_TOKENS * self.token_bytes
        if whole % self.layers:
            reported = f"{whole} bytes of {PAGE_TOKENS} tokens don't divide by that"
            raise RequestError(f"--layers {self.layers}", reported, "--layers 32")
        self.page_bytes = whole // self.layers
        block = parse_bytes(options["blocks"], "--blocks")
        self.by_layer = block == self.page_bytes
        if not self.by_layer and (not block or block % whole):
            reported = f"a page of {PAGE_TOKENS} tokens has {self.page_bytes} bytes, and a block {whole} or a multiple"
            raise RequestError(f"--blocks {options['blocks']}", reported, f"--blocks {self.page_bytes}, or --blocks {whole}")
        self.block_pages = 1 if self.by_layer else block // whole
        self.block_bytes = self.block_pages * whole
        self.each = -(-self.tokens // (PAGE_TOKENS * self.block_pages))
        size = parse_bytes(options["size"], "--size")
        self.blocks = max(1, size // self.block_bytes)
        if self.each > self.blocks:
            reported = f"a request loads {self.each} blocks of {self.block_bytes} bytes"
            raise RequestError(f"--size {options['size']}", reported, f"--size {self.each * self.block_bytes}")


@dataclass
class Sums:
    """Figures while they are gathered; times in seconds."""

    loads: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    load_cpu_s: float = 0.0
    stored_bytes: int = 0
    store_s: float = 0.0
    store_cpu_s: float = 0.0


def measure(asked: Asked, interrupt: Interrupt) -> dict[str, Any]:
    import numpy as np

    draw = np.random.default_rng(asked.seed)
    # Pages for two requests, so that those of one don't lie side by side.
    count = 2 * asked.each * asked.block_pages
    pages, synchronize = paged(asked, count, draw)
    sums = Sums()
    with kept(asked, sums) as store:
        stored(asked, store, pages, draw, sums, interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            for _ in range(asked.requests):
                interrupt.raise_if_requested()
                keys = draw.permutation(len(store))[: asked.each]
                if keys.size < asked.each:
                    break
                table = draw.permutation(count)[: asked.each * asked.block_pages].reshape(asked.each, asked.block_pages)
                if asked.cold:
                    drop(store.name)
                synchronize()
                loaded(asked, store, [int(key) for key in keys], table, pages, sums)
    return document(asked, sums, interrupt.requested)


def paged(asked: Asked, count: int, draw: numpy.random.Generator) -> tuple[kv.Pages, Any]:
    """The memory, filled, and what waits for its device."""
    import numpy as np

    size, there = asked.layers * count * asked.page_bytes, model_runs.available_bytes()
    if size > there:
        found = f"paged memory, which holds two requests, takes {bytes_(size)}, and {bytes_(there)} are to be had"
        raise MachineError(f"--tokens {asked.tokens}", found, f"--tokens {max(1, asked.tokens * there // size // 2)}")
    content = draw.integers(0, 1 << 64, size // 8 + 1, np.uint64).view(np.uint8)
    content = content[:size].reshape(asked.layers, count, asked.page_bytes)
    if asked.gpu is None:
        return kv.Pages(content), int
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise MachineError(f"--gpu {asked.gpu}", "PyTorch isn't installed for this Python", "pip install torch") from None
    if not torch.cuda.is_available() or asked.gpu >= torch.cuda.device_count():
        raise MachineError(f"--gpu {asked.gpu}", "PyTorch sees no such GPU", "forebay doctor")
    return kv.Pages(torch.from_numpy(content).to(f"cuda:{asked.gpu}")), torch.cuda.synchronize


@contextlib.contextmanager
def kept(asked: Asked, sums: Sums) -> Iterator[kv.Store]:
    """A store of its own in the folder, gone afterwards. Another run there is refused: each would measure the other."""
    sums.left = others(asked.folder)
    name = asked.folder / f"forebay-kv-{uuid.uuid4().hex[:16]}.kv"
    try:
        with made_store(asked, name) as store:
            yield store
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def made_store(asked: Asked, name: Path) -> kv.Store:
    shape = {"layers": asked.layers, "page_bytes": asked.page_bytes, "block_pages": asked.block_pages, "blocks": asked.blocks}
    try:
        return kv.create(name, **shape, sums=asked.verify, path=asked.path)
    except RunError as error:
        size = asked.blocks * asked.block_bytes
        raise RunError(f"--size {size} in {asked.folder}", error.found, f"df -h {asked.folder}; a smaller --size") from None


def others(folder: Path) -> list[str]:
    """Stores that runs left which were killed. MachineError where a run has its own, or entries of `emulate kvcache`."""
    left = []
    for name in sorted((*folder.glob("forebay-kv-*.kv"), *folder.glob("forebay-kv-*/.forebay.json"))):
        own = name if name.suffix == ".kv" else name.parent
        try:
            with open(name, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found = f"another run keeps its blocks there, in {own.name}"
            raise MachineError(f"--dir {folder}", found, "another --dir") from None
        except OSError:  # gone, or not to be read by us
            continue
        left.append(str(own))
    return left


def stored(asked: Asked, store: kv.Store, pages: kv.Pages, draw: Any, sums: Sums, interrupt: Interrupt) -> None:
    """Fills the store, so many blocks at a time as a request has. Where it was stopped, there are fewer."""
    begun = used_s()
    for begin in range(0, asked.blocks, asked.each):
        if interrupt.requested:
            break
        keys = list(range(begin, min(begin + asked.each, asked.blocks)))
        table = draw.permutation(pages.pages)[: len(keys) * asked.block_pages].reshape(len(keys), asked.block_pages)
        # What is read from the device needn't pass the page cache on its way there.
        done = store.store(keys, table, pages, sync=asked.cold)
        sums.stored_bytes += done.bytes
        sums.store_s += done.seconds
    began = time.monotonic()
    file = os.open(store.name, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        raise RunError(f"flush {store.name}", error.strerror or str(error), "df -h; dmesg | tail") from None
    finally:
        os.close(file)
    sums.store_s += time.monotonic() - began
    sums.store_cpu_s = used_s() - begun


def loaded(asked: Asked, store: kv.Store, keys: list[kv.Key], table: Any, pages: kv.Pages, sums: Sums) -> None:
    """A request: its blocks are loaded and its layers calculated."""
    begun, began = used_s(), time.monotonic()
    if asked.by_layer:
        layers = store.load_layers(keys, table, pages, ahead=asked.ahead)
        for _ in layers:
            calculate(asked.layer_s)
        load_s, exposed, report = layers.seconds, layers.exposed_s, layers.report
    else:
        report = store.load(keys, table, pages)
        load_s = exposed = time.monotonic() - began
        calculate(asked.layer_s * asked.layers)
    sums.ttft.append(time.monotonic() - began)
    sums.load_cpu_s += used_s() - begun
    sums.loads.append(load_s)
    sums.exposed.append(exposed)
    sums.reports.append(report)
    if asked.verify:
        store.verify(keys, table, pages)


def calculate(seconds: float) -> None:
    """An accelerator is busy so long; nobody else is."""
    if seconds:
        time.sleep(seconds)


def used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drop(name: str) -> None:
    file = os.open(name, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def document(asked: Asked, sums: Sums, interrupted: bool) -> dict[str, Any]:
    moved = together(sums.reports)
    seconds = sum(sums.loads)

    def rate(amount: float, over_s: float) -> float | None:
        return amount / GIB / over_s if over_s else None

    counts = {key: value for key, value in asdict(moved).items() if key.endswith("bytes")}
    return {
        "schema": SCHEMA,
        "dir": str(asked.folder), "model": asked.model, "layers": asked.layers, "token_bytes": asked.token_bytes,
        "page_bytes": asked.page_bytes, "block_bytes": asked.block_bytes, "by_layer": asked.by_layer,
        "io": "layer after layer" if asked.by_layer else "whole blocks", "gpu": asked.gpu, "path": asked.path,
        "cold": asked.cold, "seed": asked.seed, "blocks": asked.blocks, "blocks_of_request": asked.each,
        "requests": len(sums.loads), "layer_s": asked.layer_s,
        "load": counts | {
            "gib_s": rate(moved.bytes, seconds), "seconds": seconds,
            "cpu_s_per_gib": sums.load_cpu_s / moved.bytes * GIB if moved.bytes else None,
        },
        "store": {
            "bytes": sums.stored_bytes, "seconds": sums.store_s, "gib_s": rate(sums.stored_bytes, sums.store_s),
            "cpu_s_per_gib": sums.store_cpu_s / sums.stored_bytes * GIB if sums.stored_bytes else None,
        },
        "load_s": replay.spread(sums.loads),
        "ttft_s": replay.spread(sums.ttft),
        "exposed_s": replay.spread(sums.exposed),
        "verified_bytes": moved.bytes if asked.verify else 0,
        "interrupted": interrupted,
        "left": sums.left,
    }  # fmt: skip


def lines(found: dict[str, Any]) -> list[str]:
    load, store = found["load"], found["store"]
    where = "the host's memory" if found["gpu"] is None else f"GPU {found['gpu']}"
    ways = " · ".join(
        f"{name} {100 * load[f'{name}_bytes'] / load['bytes']:.0f} %"
        for name in ("mapped", "direct", "staged", "uncached") if load["bytes"] and load[f"{name}_bytes"]
    )  # fmt: skip
    return [
        f"model     {found['model']}: {found['layers']} layers, pages of {bytes_(found['page_bytes'])}, "
        f"blocks of {bytes_(found['block_bytes'])}, {found['io']}",
        f"pages     in {where}, drawn at random",
        f"store     {_rate(store)}, flushed",
        f"load      {_rate(load)} · {ways or 'nothing'}" + (", cold" if found["cold"] else ""),
        f"request   {found['blocks_of_request']} blocks: {replay._spread(found['load_s'])}",
        f"TTFT      {replay._spread(found['ttft_s'])} · {significant(found['layer_s'])} s of calculation a layer",
        f"exposed   {replay._spread(found['exposed_s'])}",
        f"verified  {bytes_(found['verified_bytes'])}" if found["verified_bytes"] else "verified  nothing: --verify",
        *(f"left      {name}, by a run that was killed: rm -r {name}" for name in found["left"]),
    ]


def _rate(found: dict[str, Any]) -> str:
    if not found["bytes"]:
        return "nothing was moved"
    cost = significant(found["cpu_s_per_gib"])
    return f"{bytes_(found['bytes'])} in {significant(found['seconds'])} s: {significant(found['gib_s'])} GiB/s, {cost} CPU-s/GiB"
