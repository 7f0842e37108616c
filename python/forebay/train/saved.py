"""Weights of a training as a safetensors file, and what they are worth: the run's quality stands in the file's header."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forebay import safetensors
from forebay.errors import RequestError

Record = dict[str, Any]
# The format's names of the types that networks have.
KINDS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64"}
# Bytes of a tensor that pass through host memory at once.
PIECE = 64 << 20


class Weights:
    """Destination of a run's weights. Refuses, before anything runs, what something has already."""

    def __init__(self, path: str, seeds: int | None = None) -> None:
        from forebay import pipes

        self.path, self._flag = Path(path), f"--weights {path}"
        if seeds is not None:
            raise RequestError(self._flag, "is one run's, and --seeds asks for several", "no --seeds")
        pipes.refuse_dash(path, self._flag, "a file")
        pipes.refuse_to_write(path, self._flag)
        if os.path.lexists(path):
            raise RequestError(self._flag, "is there already, and isn't overwritten", "another file")
        if not self.path.parent.is_dir():
            raise RequestError(self._flag, f"there is no folder {self.path.parent}", f"mkdir -p {self.path.parent}")

    def write(self, state: Mapping[str, Any], record: Record) -> None:
        """The network's tensors, of NumPy or of PyTorch wherever they lie. Raises RunError."""
        from forebay.train.data import files_together

        listed = {name: (kind(values), tuple(values.shape), values.nbytes) for name, values in state.items()}
        with files_together(self.path.parent, (self.path.name,)) as (file,):
            file.write(safetensors.header(listed, reported(record)))
            for values in state.values():
                for part in parts(values):
                    file.write(part)


def kind(values: Any) -> str:
    return KINDS[str(values.dtype).removeprefix("torch.")]


def reported(record: Record) -> dict[str, str]:
    """What the header says beside the tensors: of which training these are the weights."""
    part = record["train"]
    found = {"forebay": "train", "model": part["model"], "seed": part["seed"], "samples": part["samples"]}
    found |= {"data_seed": part["data"]["seed"], "data_rows": part["data"]["rows"]}
    if part["quality"] is not None:
        found |= {"quality_name": part["quality_name"], "quality": f"{part['quality']:.6f}"}
    return {name: str(value) for name, value in found.items()}


def parts(values: Any) -> Iterator[Any]:
    """A tensor's bytes, piece by piece."""
    import numpy as np

    if isinstance(values, np.ndarray):
        yield np.ascontiguousarray(values).data
        return
    import torch

    flat = values.detach().contiguous().view(-1)
    each = max(1, PIECE // flat.element_size())
    for at in range(0, flat.numel(), each):
        yield flat[at : at + each].cpu().view(torch.uint8).numpy().data
