"""Loaders of safetensors, as bench/child.py asks them: `child_safetensors.py LOADER FILE`, of LOADERS.

A run loads every tensor of the file into the GPU and lets go of them afterwards; `disk` reads the file past the page cache into
host memory, and no further. A request to fastsafetensors may hold `threads` and `gds` (0: its own bounce; 1: cuFile), one to
InstantTensor `buffered` (1: through the page cache), one to `disk` `threads` and `mib` of each read.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from child import Answer, repeated, serve

Run = Callable[[dict[str, Any]], Answer]
# Reads of the disk at a time, and MiB of each.
DISK_THREADS, DISK_MIB = 16, 4
# Memory whose pages are there before the clock runs.
PRESENT = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE


def total(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def plain(path: str) -> Run:
    import torch
    from safetensors.torch import load_file

    def once() -> int:
        loaded = load_file(path, device="cuda:0")
        torch.cuda.synchronize()
        return total(loaded.values())

    return lambda request: repeated(once, request["seconds"])


def fast(path: str) -> Run:
    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def once(threads: int, gds: int) -> int:
        loader = SafeTensorsFileLoader(SingleGroup(), "cuda:0", max_threads=threads, nogds=not gds)
        loader.add_filenames({0: [path]})
        buffers = loader.copy_files_to_device()
        moved = total([buffers.get_tensor(name) for name in loader.get_keys()])
        torch.cuda.synchronize()
        buffers.close()
        loader.close()
        return moved

    def run(request: dict[str, Any]) -> Answer:
        return repeated(lambda: once(request.get("threads", 16), request.get("gds", 0)), request["seconds"])

    return run


def instant(path: str) -> Run:
    import torch
    from instanttensor import BackendPolicy, safe_open

    def once(buffered: int) -> int:
        with safe_open(path, framework="pt", device=0, backend=BackendPolicy.BUFFERED if buffered else None) as file:
            loaded = dict(file.tensors())
        torch.cuda.synchronize()
        return total(loaded.values())

    return lambda request: repeated(lambda: once(request.get("buffered", 0)), request["seconds"])


def streamed(path: str) -> Run:
    import torch
    from runai_model_streamer import SafetensorsStreamer

    def once() -> int:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path, device="cuda:0")
            loaded = dict(streamer.get_tensors())
        torch.cuda.synchronize()
        return total(loaded.values())

    return lambda request: repeated(once, request["seconds"])


def disk(path: str) -> Run:
    size = os.path.getsize(path)

    def part(fd: int, held: mmap.mmap, threads: int, each: int, thread: int) -> int:
        to = memoryview(held)[thread * each : (thread + 1) * each]
        return sum(os.preadv(fd, [to], at) for at in range(thread * each, size, threads * each))

    def once(pool: ThreadPoolExecutor, held: mmap.mmap, threads: int, each: int) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            return sum(pool.map(functools.partial(part, fd, held, threads, each), range(threads)))
        finally:
            os.close(fd)

    def run(request: dict[str, Any]) -> Answer:
        threads, each = request.get("threads", DISK_THREADS), request.get("mib", DISK_MIB) << 20
        with ThreadPoolExecutor(threads) as pool, mmap.mmap(-1, threads * each, PRESENT) as held:
            return repeated(lambda: once(pool, held, threads, each), request["seconds"])

    return run


LOADERS = {"safetensors": plain, "fastsafetensors": fast, "instanttensor": instant, "runai": streamed, "disk": disk}


def prepare(arguments: Sequence[str]) -> Run:
    if arguments[0] != "disk":
        import torch

        torch.empty(1, device="cuda:0")
    run = LOADERS[arguments[0]](arguments[1])
    run({"seconds": 0.0})
    return run


if __name__ == "__main__":
    sys.exit(serve(prepare))
