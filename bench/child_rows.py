"""Rows of a table in a file into the GPU, as bench/child.py asks it: `child_rows.py WAY GPU PATH`.

WAY is `gather` (`forebay.open(…, path).gather`; a request may say `path`, "mapped" unless it does, and whether row `numbers`
lie on the host or the "gpu") or `torch`: the file mapped as a tensor, `index_select` into pinned memory that is used again,
and a copy to the GPU that overlaps with the next one, which is the fastest of PyTorch's own ways. A request says `row_bytes`
and `at_once`, the rows of a batch, and to `gather` how many batches are `in_flight` (two unless it does). One that says
`calls` is answered with the time of each of so many calls, on a file opened for them. Row numbers are drawn beforehand:
whoever trains has them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from child import Answer, Stopwatch, serve

BATCHES = 8
ROOM = 1 << 30
# Longer ones are pieces that `read_at` reads.
ROW_BYTES_MAX = 1 << 20

Run = Callable[[dict[str, Any]], Answer]


def drawn(size: int, request: dict[str, Any]) -> list[Any]:
    import numpy

    rows = size // request["row_bytes"]
    draw = numpy.random.default_rng(7).integers
    return [draw(rows, size=request["at_once"]) for _ in range(BATCHES)]


def by_gather(gpu: int, path: str) -> Run:
    import forebay
    import torch

    outs: list[Any] = []
    files: dict[str, forebay.File] = {}

    def run(request: dict[str, Any]) -> Answer:
        if "calls" in request:
            return call_by_call(gpu, path, request)
        way = request.get("path", "mapped")
        if way not in files:
            files[way] = forebay.open(path, way)
        file = files[way]
        batches, row_bytes = drawn(file.size, request), request["row_bytes"]
        in_flight = request.get("in_flight", 2)
        outs.extend(torch.empty(ROOM, dtype=torch.uint8, device=f"cuda:{gpu}") for _ in range(in_flight - len(outs)))
        if request.get("numbers") == "gpu":
            batches = [torch.from_numpy(batch).to(f"cuda:{gpu}") for batch in batches]
        # Whatever is registered or mapped at first is there before the clock starts: a table is only mapped for processors that
        # copy rows once so many were asked for that filling its page tables pays.
        for _ in range(2 + file.size // ROOM // 8):
            file.gather(batches[0], row_bytes, outs[0])
        watch = Stopwatch()
        futures: list[Any] = []
        calls = 0
        # One batch is asked for while the others come.
        while watch.seconds() < request["seconds"]:
            if len(futures) == in_flight:
                futures.pop(0).result()
            futures.append(file.gather_async(batches[calls % BATCHES], row_bytes, outs[calls % in_flight], stream=-1))
            calls += 1
        for future in futures:
            future.result()
        rows = calls * request["at_once"]
        return watch.answer(rows * row_bytes, rows) | {"proof": asdict(file.last_report)}

    return run


def call_by_call(gpu: int, path: str, request: dict[str, Any]) -> Answer:
    """Seconds and CPU seconds of each call on a file that is opened for them; threads, slots and kernels are there before."""
    import forebay
    import torch

    row_bytes, at_once = request["row_bytes"], request["at_once"]
    out = torch.empty(row_bytes * at_once, dtype=torch.uint8, device=f"cuda:{gpu}")
    batches = drawn(os.path.getsize(path), request)
    with forebay.open(path, "bounce") as file:
        file.gather(batches[0], row_bytes, out)
    call_s, call_cpu_s = [], []
    total = Stopwatch()
    with forebay.open(path, request["path"]) as file:
        for number in range(request["calls"]):
            watch = Stopwatch()
            if row_bytes > ROW_BYTES_MAX:
                file.read_at(batches[number % BATCHES] * row_bytes, row_bytes, out)
            else:
                file.gather(batches[number % BATCHES], row_bytes, out)
            one = watch.answer(row_bytes * at_once, at_once)
            call_s.append(one["seconds"])
            call_cpu_s.append(one["cpu_s"])
    rows = at_once * request["calls"]
    return total.answer(rows * row_bytes, rows) | {"call_s": call_s, "call_cpu_s": call_cpu_s}


def by_torch(gpu: int, path: str) -> Run:
    import torch

    size = os.path.getsize(path)
    table = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    pinned = [torch.empty(ROOM, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    out = torch.empty(ROOM, dtype=torch.uint8, device=f"cuda:{gpu}")

    def run(request: dict[str, Any]) -> Answer:
        row_bytes, at_once = request["row_bytes"], request["at_once"]
        # Of whole words, which index_select moves faster than bytes.
        word = next(t for t in (torch.float64, torch.float32, torch.uint8) if row_bytes % t.itemsize == 0)
        rows_of = table[: size // row_bytes * row_bytes].view(word).view(-1, row_bytes // word.itemsize)
        batches = [torch.from_numpy(batch) for batch in drawn(size, request)]
        slots = [p[: at_once * row_bytes].view(word).view(at_once, -1) for p in pinned]
        target = out[: at_once * row_bytes].view(word).view(at_once, -1)
        events = [torch.cuda.Event() for _ in slots]
        torch.index_select(rows_of, 0, batches[0], out=slots[0])
        watch = Stopwatch()
        calls = 0
        while watch.seconds() < request["seconds"]:
            slot = calls % 2
            events[slot].synchronize()
            torch.index_select(rows_of, 0, batches[calls % BATCHES], out=slots[slot])
            target.copy_(slots[slot], non_blocking=True)
            events[slot].record()
            calls += 1
        torch.cuda.synchronize()
        rows = calls * at_once
        return watch.answer(rows * row_bytes, rows)

    return run


def prepare(arguments: Sequence[str]) -> Run:
    way, gpu, path = arguments
    return {"gather": by_gather, "torch": by_torch}[way](int(gpu), path)


if __name__ == "__main__":
    sys.exit(serve(prepare))
