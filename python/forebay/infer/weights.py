"""A model's weights out of a safetensors file: into one allocation, which its tensors are views of."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from forebay.errors import RequestError, RunError
from forebay.infer.forms import KINDS
from forebay.infer.library import Link, Memory
from forebay.reader import Report
from forebay.safetensors import SafetensorsFile, gaps

# Bytes of a read where a supply holds them back.
PIECE = 4 << 20


@dataclass
class Read:
    """Weights in memory, by name, as the memory's arrays; and what reading them took."""

    tensors: dict[str, Any]
    blob: Any
    begin: int
    bytes: int
    allocate_s: float
    read_s: float
    report: Report


def read(
    path: Path, memory: Memory, shapes: dict[str, tuple[int, ...]], link: Link | None = None, way: str = "auto",
    kind: str = "F32", without: str | None = None,
) -> Read:  # fmt: skip
    """All weights, which have to be of these shapes and of this kind. Raises RequestError for others, or a header that lies.

    `without`: a tensor that stays in the file, where it is the first. Of bfloat16, which NumPy hasn't got, host memory has
    the words.
    """
    from forebay.reader import together

    began = time.perf_counter()
    with SafetensorsFile(path, way if memory.device != "cpu" else "auto", once=True) as file:
        refuse_others(path, file, shapes, kind)
        wanted = sorted((t for t in file.tensors.values() if t.name != without), key=lambda t: t.offset)
        begin, total = wanted[0].offset, sum(t.bytes for t in wanted)
        allocating = time.perf_counter()
        blob = memory.empty(1, total)[0]
        allocated = time.perf_counter()
        step = total if link is None else PIECE
        reads = [
            file.file.read_async(blob[at : at + step], begin + at, min(step, total - at)) for at in range(0, total, step)
        ]
        # Meanwhile: hundreds of names take milliseconds.
        tensors = {}
        for tensor in wanted:
            at = tensor.offset - begin
            tensors[tensor.name] = _typed(blob[at : at + tensor.bytes], kind).reshape(tensor.shape)
        done = []
        for each in reads:
            done.append(each.report())
            if link is not None:
                link.hold(done[-1].bytes, began)
        report = together(done)
    ended = time.perf_counter()
    return Read(tensors, blob, begin, total, allocated - allocating, ended - began - (allocated - allocating), report)


def place_of(path: Path, name: str) -> int:
    """The byte of the file at which a tensor begins."""
    with SafetensorsFile(path) as file:
        return file._named(name).offset


def _typed(part: Any, kind: str) -> Any:
    import numpy as np

    if isinstance(part, np.ndarray):
        return part.view(np.uint16 if kind == "BF16" else np.float32)
    import torch

    return part.view(torch.bfloat16 if kind == "BF16" else torch.float32)


def refuse_others(path: Path, file: SafetensorsFile, shapes: dict[str, tuple[int, ...]], kind: str) -> None:
    """Raises RequestError where a file's tensors aren't a model's, by name, shape and type."""
    asked, next = f"the weights {path}", "forebay infer datagen into another --dir"
    for name, shape in shapes.items():
        found = file.tensors.get(name)
        if found is None:
            raise RequestError(asked, f"have no tensor {name!r}, which the model has", next)
        if tuple(found.shape) != tuple(shape) or found.dtype != kind:
            reported = f"{name!r} is {found.dtype} of shape {list(found.shape)}; the model's is {kind} of shape {list(shape)}"
            raise RequestError(asked, reported, next)
    more = [name for name in file.tensors if name not in shapes]
    if more:
        raise RequestError(asked, f"have a tensor {more[0]!r}, which the model hasn't", next)
    listed = sorted(file.tensors.values(), key=lambda t: t.offset)
    if gaps(listed) or any(t.bytes != KINDS[kind] * prod(t.shape) for t in listed):
        raise RequestError(asked, "their tensors don't lie one behind the other", next)


def intact(path: Path, loaded: Read) -> bool:
    """True where memory holds what the file has, read once more by other means. Raises RunError where it has it no more."""
    import numpy as np

    there = loaded.blob if isinstance(loaded.blob, np.ndarray) else loaded.blob.cpu().numpy()
    try:
        file = np.memmap(path, np.uint8, "r", offset=loaded.begin, shape=(loaded.bytes,))
    except (OSError, ValueError) as error:  # gone, or shorter by now
        found = f"it can't be read again, to compare it with memory ({error})"
        raise RunError(f"the weights {path}", found, "restore it; then run again") from None
    return all(
        bool((there[at : at + (64 << 20)] == file[at : at + (64 << 20)]).all()) for at in range(0, loaded.bytes, 64 << 20)
    )
