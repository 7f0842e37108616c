"""Our Python interface, as bench/child.py asks it: `child_forebay.py WHAT GPU PATH`.

WHAT is `file` (one file into one tensor: whole, or in random ranges where a request holds `block` and `at_once`),
`files` (a folder of small files into one tensor) or `safetensors`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from child import Answer, Stopwatch, repeated, serve
from small_files import names

Run = Callable[[dict[str, Any]], Answer]


def one_file(gpu: int, path: str) -> Run:
    import forebay
    import torch

    tensor = torch.empty(os.path.getsize(path), dtype=torch.uint8, device=f"cuda:{gpu}")
    file = forebay.open(path)
    file.read_into(tensor)

    def run(request: dict[str, Any]) -> Answer:
        if "block" in request:
            return ranges(file, tensor, request)
        answer = repeated(lambda: file.read_into(tensor), request["seconds"])
        return answer | {"proof": asdict(file.last_report) if file.last_report else {}}

    return run


def ranges(file: Any, tensor: Any, request: dict[str, Any]) -> Answer:
    """Random reads of `block` bytes, `at_once` in one call, one behind the other."""
    import numpy

    block, at_once = request["block"], request["at_once"]
    draw = numpy.random.default_rng(7).integers
    blocks = file.size // block
    watch = Stopwatch()
    calls = 0
    while watch.seconds() < request["seconds"]:
        file.read_at(draw(blocks, size=at_once) * block, block, tensor)
        calls += 1
    return watch.answer(calls * at_once * block, calls * at_once)


def small_files(gpu: int, folder: str) -> Run:
    import forebay
    import torch

    paths = names(folder)
    sizes = [os.path.getsize(p) for p in paths]
    tensor = torch.empty(sum(sizes), dtype=torch.uint8, device=f"cuda:{gpu}")
    forebay.read_files(paths[:1000], tensor)

    def run(request: dict[str, Any]) -> Answer:
        count = request.get("files", len(paths))
        watch = Stopwatch()
        read = forebay.read_files(paths[:count], tensor, sizes=sizes[:count])
        return watch.answer(read.report.bytes, len(read.sizes), **asdict(read.report))

    return run


def tensors(gpu: int, path: str) -> Run:
    import forebay.safetensors
    import torch

    def once(prefer: str) -> int:
        loaded = forebay.safetensors.load(path, device=f"cuda:{gpu}", prefer=prefer)
        return sum(t.numel() * t.element_size() for t in loaded.values())

    torch.empty(1, device=f"cuda:{gpu}")
    # Loads return before the pages are unregistered; that is done before the CPU is read.
    return lambda request: repeated(lambda: once(request.get("prefer", "rate")), request["seconds"], forebay.release)


def prepare(arguments: Sequence[str]) -> Run:
    what, gpu, path = arguments
    return {"file": one_file, "files": small_files, "safetensors": tensors}[what](int(gpu), path)


if __name__ == "__main__":
    sys.exit(serve(prepare))
