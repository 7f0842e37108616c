"""Forms of the models that are trained for speed: the fields of a row, the sizes of the network, and the usual batch.

Pure. A row has as many bytes as the benchmark's sample, and every one of them reaches the network. `small` forms are of the
same networks, narrow and shallow: for a CPU, and never a figure of the large ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Field:
    """Part of a row. Numbers below `low` or from `high` on can't be read; None: any can."""

    name: str
    kind: str
    shape: tuple[int, ...]
    low: int | None = None
    high: int | None = None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * {"u1": 1, "i4": 4, "f4": 4}[self.kind]


@dataclass(frozen=True)
class Form:
    """A model in one size, with its usual batch, data set and optimizer."""

    model: str
    small: bool
    fields: tuple[Field, ...]
    net: dict[str, Any] = field(compare=False)
    batch: int
    rows: int
    optimizer: str
    rate: float
    # Of a weight that is trained, its gradient and the optimizer's state.
    state_bytes: int = 16

    @property
    def row_bytes(self) -> int:
        return sum(each.bytes for each in self.fields)

    @property
    def words(self) -> int:
        return self.row_bytes // 4

    @property
    def name(self) -> str:
        return "small" if self.small else "full"

    @property
    def chunk(self) -> int:
        """Rows made at once: what a seed makes depends on it, and on no number of threads."""
        return max(1, min(8192, (4 << 20) // self.row_bytes))

    def begins(self) -> dict[str, int]:
        """Byte of a row at which each field begins."""
        found, at = {}, 0
        for each in self.fields:
            found[each.name] = at
            at += each.bytes
        return found

    def document(self) -> dict[str, Any]:
        kinds = {"u1": "uint8", "i4": "int32", "f4": "float32"}
        return {each.name: [kinds[each.kind], list(each.shape)] for each in self.fields}

    def row(self) -> list[tuple[Any, ...]]:
        """For numpy.dtype, as the loader takes it."""
        return [(each.name, each.kind if each.kind == "u1" else f"<{each.kind}", each.shape) for each in self.fields]


VOCABULARY, MASKED = 30_522, 76
# The boxes of an image at most; a label of -1 has none.
BOXES, CLASSES = 16, 264


def bert(small: bool) -> Form:
    """Two segments of word pieces, of which some are masked; does the second follow the first?"""
    tokens, masked = (32, 4) if small else (512, MASKED)
    words = 200 if small else VOCABULARY
    net = {"layers": 2, "width": 32, "heads": 2} if small else {"layers": 24, "width": 1024, "heads": 16}
    fields = (
        Field("input", "i4", (tokens,), 0, words),
        Field("segment", "i4", (tokens,), 0, 2),
        Field("position", "i4", (masked,), 0, tokens),
        Field("masked", "i4", (masked,), 0, words),
        Field("length", "i4", (1,), 1, tokens + 1),
        Field("next", "i4", (1,), 0, 2),
    )
    sizes = {**net, "vocabulary": words, "tokens": tokens}
    return Form("bert", small, fields, sizes, 32, 65_536, "AdamW", 1e-3 if small else 1e-4)


def lora(small: bool) -> Form:
    """A text of tokens, each of which is to be told from those before it."""
    tokens, words = (32, 200) if small else (8192, 32_000)
    net = {"width": 32, "heads": 2, "inner": 64} if small else {"width": 4096, "heads": 32, "inner": 11_008}
    layers, rank = (2, 4) if small else (16, 16)
    sizes = {**net, "layers": layers, "vocabulary": words, "rank": rank, "alpha": 2 * rank}
    return Form("lora", small, (Field("tokens", "i4", (tokens,), 0, words),), sizes, 1, 4096, "AdamW", 5e-3 if small else 4e-4)


def diffusion(small: bool) -> Form:
    """Mean and logarithm of the variance of an image's latents, and the states of a text encoder."""
    side, words, width = (8, 4, 16) if small else (64, 77, 1024)
    net = {
        "widths": (32, 64) if small else (320, 640, 1280, 1280), "heads": (2, 4) if small else (5, 10, 20, 20),
        "blocks": 1 if small else 2, "text": width,
    }  # fmt: skip
    fields = (Field("moments", "f4", (8, side, side)), Field("text", "f4", (words, width)))
    return Form("diffusion", small, fields, net, 32, 4096, "AdamW", 1e-3 if small else 1e-4)


def ssd(small: bool) -> Form:
    """An image that the device enlarges, as the benchmark resizes its own; boxes and labels of what it shows."""
    stored, side, classes = (32, 64, 5) if small else (320, 800, CLASSES)
    net = {
        "side": side, "classes": classes, "width": 8 if small else 64, "depths": (1, 1, 1, 1) if small else (3, 4, 6, 3),
        "inner": 32 if small else 256,
    }  # fmt: skip
    fields = (
        Field("image", "u1", (stored, stored, 3)),
        Field("boxes", "f4", (BOXES, 4)),
        Field("labels", "i4", (BOXES,), -1, classes),
    )
    return Form("ssd", small, fields, net, 16, 4096, "Adam", 1e-3 if small else 1e-4)


def resnet(small: bool) -> Form:
    """An image and its class."""
    side, classes = (32, 10) if small else (224, 1000)
    net = {"width": 8 if small else 64, "depths": (1, 1, 1, 1) if small else (3, 4, 6, 3), "classes": classes}
    # Two words, so that a row is a whole number of 64-bit words: the label, and its complement.
    fields = (Field("image", "u1", (side, side, 3)), Field("label", "i4", (1,), 0, classes), Field("check", "i4", (1,)))
    return Form("resnet", small, fields, net, 256, 8192, "SGD", 0.05 if small else 0.1, 12)


MAKERS = {make.__name__: make for make in (bert, lora, diffusion, ssd, resnet)}
NAMES = tuple(MAKERS)


def form(model: str, small: bool = False) -> Form:
    return MAKERS[model](small)
