"""Blocks of a key-value cache into paged memory, as bench/child.py asks it.

`child_kv.py WHO DEVICE FILE BLOCKS BLOCK_PAGES PAGES`: WHO is `forebay [PATH]`, `threads` (preadv of a pool; on a GPU torch's two
pinned buffers, the usual tuned loop), `direct` (O_DIRECT by a pool into host memory: what the disk gives), `floor THREADS`
(bench/pinned_floor.c: copies out of the page cache by way of pinned memory, to no page: what a bounce takes), `kvikio`, or
`nixl PLUGIN[:PARAMETER]`. All read the same file at the same places, drawn from the same seed, into pages drawn alike. A request:
  op       load (whole blocks), layers (one layer of all blocks after another), first (open, load, close), cold (first, of a file
           that the page cache has let go of), trace (a load for each request of a trace of Mooncake's), store, or durable (store,
           until all of it has reached the device)
  count    blocks of a call
  trace, share, requests   of a trace: its file, the share of loads that take no longer than what is answered, and how many
  measured                 number of an earlier replay, for another share of its loads
  is_new                   of durable: to a new store, whose room is set aside, rather than over blocks that are there
After the time is over, the pages of the last call are compared with the file, byte by byte.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from child import HERE, Answer, Stopwatch, drop, serve

LAYERS, PAGE = 32, 64 << 10
THREADS = 16
STAGE = 64 << 20
# Pages of a piece that one thread reads: 4 MiB at most.
PIECE = 64
# Pages that one of so many threads compares with the file's at a time; and those that are drawn for the others.
CHECKED, CHECKERS, DRAWN = 32, 8, 256
# Writes that show what a disk gives.
WRITE_BYTES, WRITE_DEPTH = 1 << 20, 32
# Buffers that bench/pinned_floor.c pins are so many of these.
HUGE_BYTES = 2 << 20


def mapped(size: int) -> mmap.mmap:
    """Memory on pages, huge ones where there are, as pinned memory is."""
    made = mmap.mmap(-1, size)
    made.madvise(mmap.MADV_HUGEPAGE)
    return made


class Paged:
    """The memory, and what every contender is asked for."""

    def __init__(self, device: str, name: str, blocks: int, each: int, pages: int) -> None:
        self.name, self.blocks, self.each, self.pages = name, blocks, each, pages
        self.data_at = os.path.getsize(name) - blocks * LAYERS * each * PAGE
        self.device = device
        if device == "cpu":
            self.tensor: Any = np.frombuffer(mapped(LAYERS * pages * PAGE), np.uint8).reshape(LAYERS, pages, PAGE)
            self.rows = self.tensor.reshape(LAYERS * pages, PAGE)
        else:
            import torch

            self.torch = torch
            self.tensor = torch.zeros((LAYERS, pages, PAGE), dtype=torch.uint8, device=device)
            self.rows = self.tensor.view(LAYERS * pages, PAGE)
        self.draw = np.random.default_rng(11)

    def drawn(self, count: int) -> tuple[Any, Any]:
        slots = self.draw.permutation(self.blocks)[:count]
        return slots, self.draw.permutation(self.pages)[: count * self.each].reshape(count, self.each)

    def moves(self, slots: Any, table: Any, layers: range) -> tuple[Any, Any]:
        """Rows of the file's data, and of the memory."""
        first, each = np.arange(layers.start, layers.stop), np.arange(self.each)
        rows = (slots[:, None, None] * LAYERS + first[None, :, None]) * self.each + each[None, None, :]
        return rows.ravel(), (first[None, :, None] * self.pages + table[:, None, :]).ravel()

    def check(self, slots: Any, table: Any, name: str = "") -> int:
        """Bytes that were compared. Raises where one differs."""
        rows, places = self.moves(slots, table, range(LAYERS))
        # In the order of the file, some at a time: what isn't in the page cache comes from the disk as fast as that gives it.
        order = np.argsort(rows)
        rows, places = rows[order], places[order]
        file = os.open(name or self.name, os.O_RDONLY)
        own = threading.local()

        def compare(begin: int, got: Any) -> None:
            """With the file's rows; `got`: the same of the memory, where that isn't this process's."""
            if not hasattr(own, "held"):
                own.held = np.empty((CHECKED, PAGE), np.uint8)
            end = min(begin + CHECKED, rows.size)
            ends = [*(np.flatnonzero(np.diff(rows[begin:end]) != 1) + begin + 1).tolist(), end]
            for one, last in itertools.pairwise([begin, *ends]):
                into = own.held[one - begin : last - begin]
                if os.preadv(file, [into], self.data_at + int(rows[one]) * PAGE) != into.nbytes:
                    raise AssertionError("the file ends before its blocks")
            for n in range(end - begin):
                page = self.rows[places[begin + n]] if got is None else got[n]
                if not np.array_equal(page.view(np.uint64), own.held[n].view(np.uint64)):
                    raise AssertionError("the pages don't hold what the file does")

        try:
            with ThreadPoolExecutor(CHECKERS) as pool:
                jobs = []
                for begin in range(0, rows.size, CHECKED):
                    got = None
                    if self.device != "cpu":
                        part = self.torch.from_numpy(places[begin : begin + CHECKED]).to(self.device)
                        got = self.rows.index_select(0, part).cpu().numpy()
                    jobs.append(pool.submit(compare, begin, got))
                    if len(jobs) > 2 * CHECKERS:
                        jobs.pop(0).result()
                for job in jobs:
                    job.result()
        finally:
            os.close(file)
        return int(rows.size) * PAGE

    def fill(self) -> None:
        """Every page with bytes of its own, which nothing on the way can compress."""
        if self.device == "cpu":
            # Drawing all of them would take longer than measuring: each page is one that was drawn, in a mask of its own.
            draw = np.random.Generator(np.random.SFC64(7))
            pages = self.rows.view(np.uint64)
            drawn = draw.integers(0, 1 << 64, pages[:DRAWN].shape, np.uint64)
            for begin in range(0, len(pages), DRAWN):
                some = pages[begin : begin + DRAWN]
                masks = draw.integers(0, 1 << 64, (len(some), 1), np.uint64)
                np.bitwise_xor(drawn[: len(some)], masks, out=some)
        else:
            for layer in self.tensor:
                layer.random_(0, 256)

    @contextlib.contextmanager
    def new_file(self, blocks: int) -> Iterator[None]:
        """A new store with room for so many blocks, in the place of the file, for as long as this lasts."""
        from forebay import kv

        before = self.name, self.blocks, self.data_at
        self.name, self.blocks = f"{self.name}.{os.getpid()}", blocks
        try:
            with kv.create(self.name, layers=LAYERS, page_bytes=PAGE, block_pages=self.each, blocks=blocks) as store:
                self.data_at = store.shape.data_at
            yield
        finally:
            Path(self.name).unlink(missing_ok=True)
            self.name, self.blocks, self.data_at = before

    def synchronize(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def block_bytes(self) -> int:
        return LAYERS * self.each * PAGE

    def asked_for(self, trace: str, requests: int) -> list[Any]:
        """The slots that each request of a trace loads: blocks at the begin of its prompt that an earlier one has computed."""
        seen: set[int] = set()
        made = []
        with open(trace) as lines:
            for _, line in zip(range(requests), lines, strict=False):
                ids = json.loads(line)["hash_ids"]
                known = list(itertools.takewhile(seen.__contains__, ids))
                seen.update(ids)
                # A store holds fewer blocks than all requests together: ids share slots, of which none is asked for twice.
                if slots := list(dict.fromkeys(number % self.blocks for number in known)):
                    made.append(np.array(slots[: self.pages // self.each]))
        return made


class Ours:
    def __init__(self, paged: Paged, path: str = "auto") -> None:
        from forebay import kv

        self.paged, self.kv, self.path = paged, kv, path
        self.memory = kv.Pages(paged.tensor)
        self.store: Any = None

    def open(self) -> None:
        self.store = self.kv.open(self.paged.name, path=self.path)

    def close(self) -> None:
        self.store.close()

    def released(self) -> None:
        """Waits until nothing holds the file's pages any more."""
        import forebay

        forebay.release()

    def load(self, slots: Any, table: Any) -> None:
        self.last = self.store.load(slots.tolist(), table, self.memory)

    def layers(self, slots: Any, table: Any) -> None:
        loads = self.store.load_layers(slots.tolist(), table, self.memory, ahead=4)
        for _ in loads:
            pass
        self.last = loads.report

    def write(self, slots: Any, table: Any) -> None:
        self.store.store(slots.tolist(), table, self.memory)

    def write_durably(self, slots: Any, table: Any) -> None:
        self.store.store(slots.tolist(), table, self.memory, sync=True)

    def proof(self) -> dict[str, Any]:
        from dataclasses import asdict

        return asdict(self.last) if hasattr(self, "last") else {}


class Threads:
    """A pool of threads. On the host preadv straight into the pages; towards a GPU two pinned buffers in turn."""

    def __init__(self, paged: Paged) -> None:
        self.paged = paged
        self.pool = ThreadPoolExecutor(min(THREADS, 4 * (os.cpu_count() or 1)))
        if paged.device != "cpu":
            torch = paged.torch
            self.pinned = [torch.empty(STAGE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            self.staged = [torch.empty(STAGE, dtype=torch.uint8, device=paged.device) for _ in range(2)]
            self.done = [torch.cuda.Event() for _ in range(2)]

    def open(self) -> None:
        self.file = os.open(self.paged.name, os.O_RDWR)

    def close(self) -> None:
        os.close(self.file)

    def proof(self) -> dict[str, Any]:
        return {}

    def load(self, slots: Any, table: Any) -> None:
        self.move(slots, table, range(LAYERS))

    def layers(self, slots: Any, table: Any) -> None:
        for layer in range(LAYERS):
            self.move(slots, table, range(layer, layer + 1))

    def write(self, slots: Any, table: Any) -> None:
        self.move(slots, table, range(LAYERS), is_write=True)

    def move(self, slots: Any, table: Any, layers: range, is_write: bool = False) -> None:
        rows, places = self.paged.moves(slots, table, layers)
        if self.paged.device == "cpu":
            begins = np.flatnonzero(np.r_[True, np.diff(rows) != 1])
            jobs = []
            for run, at in zip(np.split(rows, begins[1:]), np.split(places, begins[1:]), strict=True):
                for part in range(0, run.size, 32):
                    views = [self.paged.rows[place] for place in at[part : part + 32]]
                    offset = self.paged.data_at + int(run[part]) * PAGE
                    jobs.append(self.pool.submit(os.pwritev if is_write else os.preadv, self.file, views, offset))
            [job.result() for job in jobs]
            return
        self.through_pinned(rows, places, is_write)

    def through_pinned(self, rows: Any, places: Any, is_write: bool) -> None:
        torch, each = self.paged.torch, STAGE // PAGE
        waiting: list[Any] = [[], []]
        for number, begin in enumerate(range(0, rows.size, each)):
            turn, part = number % 2, rows[begin : begin + each]
            to = torch.from_numpy(places[begin : begin + each]).to(self.paged.device)
            [job.result() for job in waiting[turn]]
            self.done[turn].synchronize()
            host = self.pinned[turn]
            if is_write:
                host[: part.size * PAGE].copy_(self.paged.rows.index_select(0, to).view(-1), non_blocking=True)
                self.done[turn].record()
                self.done[turn].synchronize()
            view = memoryview(host.numpy())
            begins = np.r_[np.flatnonzero(np.r_[True, np.diff(part) != 1]), part.size]
            jobs = []
            for a, b in zip(begins[:-1], begins[1:], strict=True):
                for i in range(int(a), int(b), PIECE):
                    some = view[i * PAGE : min(i + PIECE, int(b)) * PAGE]
                    offset = self.paged.data_at + int(part[i]) * PAGE
                    jobs.append(self.pool.submit(os.pwritev if is_write else os.preadv, self.file, [some], offset))
            if is_write:
                waiting[turn] = jobs
                continue
            [job.result() for job in jobs]
            staged = self.staged[turn][: part.size * PAGE]
            staged.copy_(host[: part.size * PAGE], non_blocking=True)
            self.paged.rows.index_copy_(0, to, staged.view(-1, PAGE))
            self.done[turn].record()
        [job.result() for jobs in waiting for job in jobs]
        self.paged.synchronize()


class Direct:
    """Whole blocks past the page cache into memory of the host, and no further."""

    fills_pages = False

    def __init__(self, paged: Paged) -> None:
        self.paged, self.pool = paged, ThreadPoolExecutor(THREADS)
        self.writers = ThreadPoolExecutor(WRITE_DEPTH)
        self.held = mapped(paged.pages // paged.each * paged.block_bytes())
        self.is_filled = False

    def open(self) -> None:
        self.file = os.open(self.paged.name, os.O_RDWR | os.O_DIRECT)

    def close(self) -> None:
        os.close(self.file)

    def proof(self) -> dict[str, Any]:
        return {"direct": True}

    def load(self, slots: Any, table: Any) -> None:
        block, view, jobs = self.paged.block_bytes(), memoryview(self.held), []
        for number, slot in enumerate(slots.tolist()):
            for begin in range(0, block, PIECE * PAGE):
                end = min(begin + PIECE * PAGE, block)
                part = [view[number * block + begin : number * block + end]]
                jobs.append(self.pool.submit(os.preadv, self.file, part, self.paged.data_at + slot * block + begin))
        if sum(job.result() for job in jobs) != len(slots) * block:
            raise AssertionError("a read was short")

    def prepare(self) -> None:
        if not self.is_filled:
            np.frombuffer(self.held, np.uint8)[:] = np.frombuffer(
                np.random.Generator(np.random.SFC64(7)).bytes(len(self.held)), np.uint8
            )
            self.is_filled = True

    def write_durably(self, slots: Any, table: Any) -> None:
        block, view, jobs = self.paged.block_bytes(), memoryview(self.held), []
        for number, slot in enumerate(slots.tolist()):
            for begin in range(0, block, WRITE_BYTES):
                part = view[number * block + begin : number * block + begin + WRITE_BYTES]
                jobs.append(self.writers.submit(os.pwrite, self.file, part, self.paged.data_at + slot * block + begin))
        if sum(job.result() for job in jobs) != len(slots) * block:
            raise AssertionError("a write was short")
        os.fsync(self.file)

    def check(self, slots: Any) -> int:
        """Bytes of the file that were compared with what was written."""
        block = self.paged.block_bytes()
        held = np.memmap(self.paged.name, np.uint8, "r", self.paged.data_at, (self.paged.blocks, block))
        mine = np.frombuffer(self.held, np.uint8).reshape(-1, block)
        if not all(np.array_equal(held[slot], mine[number]) for number, slot in enumerate(slots.tolist())):
            raise AssertionError("the file doesn't hold what was written")
        return len(slots) * block


class Floor:
    """bench/pinned_floor.c: the least that a bounce of so many threads does."""

    fills_pages = False

    def __init__(self, paged: Paged, threads: str) -> None:
        if paged.device == "cpu":
            raise RuntimeError("it is compared on a GPU")
        self.paged, self.threads = paged, int(threads)
        room = (paged.pages // paged.each, paged.block_bytes())
        self.to = paged.torch.empty(room, dtype=paged.torch.uint8, device=paged.device)
        self.library = ctypes.CDLL(str(floor_library()))
        bytes_each = -(-paged.block_bytes() // HUGE_BYTES) * HUGE_BYTES
        self.said(self.library.floor_open(self.threads, ctypes.c_size_t(bytes_each)))

    def said(self, error: int) -> None:
        if error:
            raise RuntimeError(f"CUDA error {error} of bench/pinned_floor.c")

    def open(self) -> None:
        shape = (self.paged.blocks, self.paged.block_bytes())
        self.file = np.memmap(self.paged.name, np.uint8, "r", self.paged.data_at, shape)
        self.file[:, ::4096].max()  # page tables are filled

    def close(self) -> None:
        del self.file

    def proof(self) -> dict[str, Any]:
        return {"threads": self.threads}

    def load(self, slots: Any, table: Any) -> None:
        offsets = np.asarray(slots, np.uint64) * np.uint64(self.paged.block_bytes())
        self.said(self.library.floor_load(
            ctypes.c_void_p(self.file.ctypes.data), ctypes.c_void_p(offsets.ctypes.data), ctypes.c_size_t(offsets.size),
            ctypes.c_size_t(self.paged.block_bytes()), ctypes.c_uint64(self.to.data_ptr()),
        ))  # fmt: skip


def floor_library() -> Path:
    source = HERE / "pinned_floor.c"
    library = HERE.parent / "target/bench-tools/pinned_floor.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-O2", "-Wall", "-shared", "-fPIC", "-pthread", "-o", f"{library}.{os.getpid()}", source, "-ldl"]
        subprocess.run(command, check=True)
        Path(f"{library}.{os.getpid()}").rename(library)
    return library


class KvikIO:
    """A future for each piece that lies in one run, in the file and in memory."""

    def __init__(self, paged: Paged) -> None:
        import kvikio
        import kvikio.defaults

        if paged.device == "cpu":
            raise RuntimeError("it is compared on a GPU")
        self.paged, self.kvikio = paged, kvikio
        kvikio.defaults.set({"num_threads": THREADS})

    def open(self) -> None:
        self.file = self.kvikio.CuFile(self.paged.name, "r+")

    def close(self) -> None:
        self.file.close()

    def proof(self) -> dict[str, Any]:
        return {"compat_mode": str(self.kvikio.defaults.get("compat_mode"))}

    def load(self, slots: Any, table: Any) -> None:
        self.move(slots, table, range(LAYERS), self.file.pread)

    def layers(self, slots: Any, table: Any) -> None:
        for layer in range(LAYERS):
            self.move(slots, table, range(layer, layer + 1), self.file.pread)

    def write(self, slots: Any, table: Any) -> None:
        self.paged.synchronize()
        self.move(slots, table, range(LAYERS), self.file.pwrite)

    def move(self, slots: Any, table: Any, layers: range, go: Any) -> None:
        rows, places = self.paged.moves(slots, table, layers)
        view, at = self.paged.rows, self.paged.data_at
        futures = [go(view[p], PAGE, at + r * PAGE) for r, p in zip(rows.tolist(), places.tolist(), strict=True)]
        [future.get() for future in futures]


class Nixl:
    """Both sides prepared once, page by page; a call names them by their indices. A plug-in that knows no memory of a GPU reads
    to pinned memory, and the GPU copies from there."""

    def __init__(self, paged: Paged, plugin: str) -> None:
        import importlib

        for module in ("nixl._api", "nixl_cu13._api", "nixl_cu12._api"):
            try:
                api = importlib.import_module(module)
                break
            except ImportError as error:
                missing = error
        else:
            raise missing
        self.paged = paged
        self.plugin, _, parameter = plugin.partition(":")
        self.agent = api.nixl_agent("bench", api.nixl_agent_config(backends=[]))
        parameters = {parameter: "true"} if parameter else {}
        if self.plugin == "GDS_MT":
            parameters["thread_count"] = str(THREADS)
        self.agent.create_backend(self.plugin, parameters)
        self.kinds = self.agent.get_backend_mem_types(self.plugin)
        self.bounces = paged.device != "cpu" and not any("VRAM" in str(kind) for kind in self.kinds)
        rows = LAYERS * paged.pages
        if self.bounces:
            self.rows_staged = 16 * STAGE // PAGE
            self.pinned = paged.torch.empty((self.rows_staged, PAGE), dtype=paged.torch.uint8, pin_memory=True)
            address, rows, kind = self.pinned.data_ptr(), self.rows_staged, "DRAM"
        elif paged.device == "cpu":
            address, kind = paged.tensor.ctypes.data, "DRAM"
        else:
            address, kind = paged.tensor.data_ptr(), "VRAM"
        self.agent.register_memory([(address, rows * PAGE, 0, "")], kind, [self.plugin])
        mine = np.array([[address, PAGE, 0, PAGE, rows]], np.uint64)
        try:
            self.local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", mine, kind, [self.plugin])
        except Exception:
            each = np.stack([address + np.arange(rows) * PAGE, np.full(rows, PAGE), np.zeros(rows, int)], 1).astype(np.uint64)
            self.local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", each, kind, [self.plugin])

    def open(self) -> None:
        paged = self.paged
        self.file = os.open(paged.name, os.O_RDWR)
        self.registered = self.agent.register_memory([(0, os.path.getsize(paged.name), self.file, "")], "FILE", [self.plugin])
        count = paged.blocks * LAYERS * paged.each
        each = np.stack([paged.data_at + np.arange(count) * PAGE, np.full(count, PAGE), np.full(count, self.file)], 1)
        self.remote = self.agent.prep_xfer_dlist("bench", each.astype(np.uint64), "FILE", [self.plugin])

    def close(self) -> None:
        self.remote.release()
        self.agent.deregister_memory(self.registered, [self.plugin])
        os.close(self.file)

    def proof(self) -> dict[str, Any]:
        return {"plugin": self.plugin, "memory": [str(kind) for kind in self.kinds]}

    def load(self, slots: Any, table: Any) -> None:
        self.move(slots, table, range(LAYERS), "READ")

    def layers(self, slots: Any, table: Any) -> None:
        for layer in range(LAYERS):
            self.move(slots, table, range(layer, layer + 1), "READ")

    def write(self, slots: Any, table: Any) -> None:
        self.paged.synchronize()
        self.move(slots, table, range(LAYERS), "WRITE")

    def move(self, slots: Any, table: Any, layers: range, way: str) -> None:
        rows, places = self.paged.moves(slots, table, layers)
        if not self.bounces:
            return self.transfer(way, places, rows)
        torch = self.paged.torch
        for begin in range(0, rows.size, self.rows_staged):
            part = rows[begin : begin + self.rows_staged]
            to = torch.from_numpy(places[begin : begin + self.rows_staged]).to(self.paged.device)
            mine = np.arange(part.size)
            if way == "WRITE":
                self.pinned[: part.size].copy_(self.paged.rows.index_select(0, to))
            self.transfer(way, mine, part)
            if way == "READ":
                self.paged.rows.index_copy_(0, to, self.pinned[: part.size].to(self.paged.device, non_blocking=True))
            self.paged.synchronize()

    def transfer(self, way: str, mine: Any, theirs: Any) -> None:
        handle = self.agent.make_prepped_xfer(
            way, self.local, mine.astype(np.int32), self.remote, theirs.astype(np.int32), b"", [self.plugin]
        )
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL says {state}")


def flush(name: str) -> None:
    file = os.open(name, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def made(who: str, paged: Paged) -> Any:
    name, _, more = who.partition(" ")
    kinds = {"forebay": Ours, "threads": Threads, "direct": Direct, "floor": Floor, "kvikio": KvikIO, "nixl": Nixl}
    return kinds[name](paged, *([more] if more else []))


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], Answer]:
    who, device, name, *numbers = arguments
    paged = Paged(device, name, *map(int, numbers))
    contender = made(who, paged)
    contender.open()
    contender.load(*paged.drawn(min(4, paged.blocks)))

    fills_pages = getattr(contender, "fills_pages", True)
    filled: list[bool] = []
    replays: list[tuple[list[float], Answer]] = []

    def run(request: dict[str, Any]) -> Answer:
        op = request["op"]
        if op == "trace":
            return replayed(request)
        if op == "cold":
            return cold(request)
        if op == "durable":
            return durable(request)
        count = request["count"]
        moved = compared = 0
        if op == "first":
            contender.close()
        watch = Stopwatch()
        while not moved or watch.seconds() < request["seconds"]:
            slots, table = paged.drawn(count)
            if op == "first":
                contender.open()
                contender.load(slots, table)
                contender.close()
            elif op == "store":
                contender.write(slots, table)
            else:
                getattr(contender, op)(slots, table)
            moved += count * paged.block_bytes()
        paged.synchronize()
        answer = watch.answer(moved, moved // PAGE)
        if op == "first":
            contender.open()
        if fills_pages and (op != "store" or not isinstance(contender, Ours)):
            compared = paged.check(slots, table)
        answer["proof"] = contender.proof() | {"compared_bytes": compared}
        return answer

    def cold(request: dict[str, Any]) -> Answer:
        """Loads of a file that was just opened, and of which the page cache has nothing."""
        moved, took, cpu = 0, 0.0, 0.0
        while not moved or took < request["seconds"]:
            contender.close()
            if isinstance(contender, Ours):
                contender.released()
            drop(name)
            contender.open()
            slots, table = paged.drawn(request["count"])
            watch = Stopwatch()
            contender.load(slots, table)
            paged.synchronize()
            one = watch.answer(request["count"] * paged.block_bytes(), 0)
            moved, took, cpu = moved + one["bytes"], took + one["seconds"], cpu + one["cpu_s"]
        compared = paged.check(slots, table) if fills_pages else 0
        proof = contender.proof() | {"compared_bytes": compared}
        return {"seconds": took, "bytes": moved, "ios": moved // PAGE, "cpu_s": cpu, "proof": proof}

    def durable(request: dict[str, Any]) -> Answer:
        """Stores with a flush at their end, each to a new file or over blocks of which the page cache has nothing."""
        if not filled:
            paged.fill()
            filled.append(True)
            if isinstance(contender, Ours):
                # What was loaded first is registered still; nothing is loaded any more.
                contender.close()
                contender.released()
                contender.open()
        count, is_new = request["count"], request["is_new"]
        moved, compared, took, cpu = 0, 0, 0.0, 0.0
        while not moved or took < request["seconds"]:
            contender.close()
            with paged.new_file(count) if is_new else contextlib.nullcontext():
                drop(paged.name)
                contender.open()
                slots, table = paged.drawn(count)
                if is_new:
                    slots = np.arange(count)
                if isinstance(contender, Direct):
                    contender.prepare()
                paged.synchronize()
                watch = Stopwatch()
                if hasattr(contender, "write_durably"):
                    contender.write_durably(slots, table)
                else:
                    contender.write(slots, table)
                    flush(paged.name)
                one = watch.answer(count * paged.block_bytes(), 0)
                moved, took, cpu = moved + one["bytes"], took + one["seconds"], cpu + one["cpu_s"]
                if took >= request["seconds"]:
                    compared = contender.check(slots) if isinstance(contender, Direct) else paged.check(slots, table)
                if is_new:
                    contender.close()
            if is_new:
                contender.open()
        proof = contender.proof() | {"compared_bytes": compared}
        return {"seconds": took, "bytes": moved, "ios": moved // PAGE, "cpu_s": cpu, "proof": proof}

    def replayed(request: dict[str, Any]) -> Answer:
        """One load after another; what is answered is the time of the one that so many take no longer than, as that of so many
        bytes as so many loads have at most."""
        asked = paged.asked_for(request["trace"], request["requests"])
        if "measured" not in request:
            places = np.random.default_rng(13)
            times, moved = [], 0
            watch = Stopwatch()
            for slots in asked:
                table = places.permutation(paged.pages)[: slots.size * paged.each].reshape(slots.size, paged.each)
                began = time.perf_counter()
                contender.load(slots, table)
                paged.synchronize()
                times.append(time.perf_counter() - began)
                moved += slots.size * paged.block_bytes()
            answer = watch.answer(moved, moved // PAGE)
            proof = {"loads": len(times), "bytes": moved, "compared_bytes": paged.check(slots, table)}
            answer["proof"] = contender.proof() | proof
            replays.append((times, answer))
        times, answer = replays[request.get("measured", -1)]
        size = int(np.quantile([slots.size for slots in asked], request["share"])) * paged.block_bytes()
        cpu = answer["cpu_s"] * size / answer["bytes"]
        at = float(np.quantile(times, request["share"]))
        return {"seconds": at, "bytes": size, "ios": size // PAGE, "cpu_s": cpu, "proof": answer["proof"]}

    return run


if __name__ == "__main__":
    sys.exit(serve(prepare))
