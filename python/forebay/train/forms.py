"""Forms of the models that are trained for speed: the fields of a row, the sizes of the network, and the usual batch.

Pure. A row has as many bytes as the benchmark's sample, and every one of them reaches the network. `small` and `real` forms are
of the same networks, narrow and shallow: for a CPU, and never a figure of the large ones. Rows of `real` forms are made of texts
and images that were there before, and have a quality that can be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

FULL, SMALL, REAL = "full", "small", "real"
SIZES = (FULL, SMALL, REAL)


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
class Quality:
    """Measure of what was learnt, from 0 to 1, by name, and the target where none is given. `rows`: those it is measured on."""

    name: str
    target: float
    rows: int = 1024


@dataclass(frozen=True)
class Form:
    """A model in one size, with its usual batch, data set and optimizer."""

    model: str
    size: str
    fields: tuple[Field, ...]
    net: dict[str, Any] = field(compare=False)
    batch: int
    rows: int
    optimizer: str
    rate: float
    # Of a weight that is trained, its gradient and the optimizer's state.
    state_bytes: int = 16
    quality: Quality | None = None

    @property
    def row_bytes(self) -> int:
        return sum(each.bytes for each in self.fields)

    @property
    def words(self) -> int:
        return self.row_bytes // 4

    @property
    def flag(self) -> str:
        """Flag of `datagen` that asks for it."""
        return {FULL: "", SMALL: " --small", REAL: " --quality"}[self.size]

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
# Words of a text of bytes: each of them, and what stands for a masked one.
BYTES, MASK = 257, 256
# The boxes of an image at most; a label of -1 has none.
BOXES, CLASSES = 16, 264
DIGITS = 10


def bert(size: str) -> Form:
    """Two segments of word pieces, of which some are masked; does the second follow the first?"""
    tokens, masked, words = {FULL: (512, MASKED, VOCABULARY), SMALL: (32, 4, 200), REAL: (64, 10, BYTES)}[size]
    layers, width, heads = {FULL: (24, 1024, 16), SMALL: (2, 32, 2), REAL: (3, 128, 4)}[size]
    fields = (
        Field("input", "i4", (tokens,), 0, words),
        Field("segment", "i4", (tokens,), 0, 2),
        Field("position", "i4", (masked,), 0, tokens),
        Field("masked", "i4", (masked,), 0, words),
        Field("length", "i4", (1,), 1, tokens + 1),
        Field("next", "i4", (1,), 0, 2),
    )
    net: dict[str, Any] = {"layers": layers, "width": width, "heads": heads, "vocabulary": words, "tokens": tokens}
    if size == REAL:
        net["spread"] = 0.05
    rate = {FULL: 1e-4, SMALL: 1e-3, REAL: 1e-3}[size]
    quality = Quality("accuracy of masked bytes", 0.35) if size == REAL else None
    return Form("bert", size, fields, net, 32, 65_536, "AdamW", rate, quality=quality)


def lora(size: str) -> Form:
    """A text of tokens, each of which is to be told from those before it."""
    tokens, words = {FULL: (8192, 32_000), SMALL: (32, 200), REAL: (128, BYTES)}[size]
    net: dict[str, Any]
    width, heads, inner = {FULL: (4096, 32, 11_008), SMALL: (32, 2, 64), REAL: (128, 4, 256)}[size]
    layers, rank = {FULL: (16, 16), SMALL: (2, 4), REAL: (2, 32)}[size]
    net = {
        "width": width, "heads": heads, "inner": inner, "layers": layers, "vocabulary": words, "rank": rank, "alpha": 2 * rank,
    }  # fmt: skip
    if size == REAL:
        # Frozen weights of the usual spread would leave no token a high score, whatever the adapters do.
        net["spread"] = 0.1
    rate, batch, rows = {FULL: (4e-4, 1, 4096), SMALL: (5e-3, 1, 4096), REAL: (5e-3, 16, 65_536)}[size]
    quality = Quality("accuracy of the next byte", 0.40, 256) if size == REAL else None
    return Form("lora", size, (Field("tokens", "i4", (tokens,), 0, words),), net, batch, rows, "AdamW", rate, quality=quality)


def diffusion(size: str) -> Form:
    """Mean and logarithm of the variance of an image's latents, and the states of a text encoder."""
    side, words, text = {FULL: (64, 77, 1024), SMALL: (8, 4, 16), REAL: (16, 2, 16)}[size]
    net = {
        "widths": (320, 640, 1280, 1280) if size == FULL else (32, 64), "heads": (5, 10, 20, 20) if size == FULL else (2, 4),
        "blocks": 2 if size == FULL else 1, "text": text,
    }  # fmt: skip
    fields = (Field("moments", "f4", (8, side, side)), Field("text", "f4", (words, text)))
    rate, rows = (1e-4, 4096) if size == FULL else (1e-3, 32_768 if size == REAL else 4096)
    quality = Quality("explained share of the velocity", 0.75, 512) if size == REAL else None
    return Form("diffusion", size, fields, net, 32, rows, "AdamW", rate, quality=quality)


def ssd(size: str) -> Form:
    """An image that the device enlarges, as the benchmark resizes its own; boxes and labels of what it shows."""
    stored, side, classes = {FULL: (320, 800, CLASSES), SMALL: (32, 64, 5), REAL: (64, 128, DIGITS)}[size]
    width, depths, inner = {FULL: (64, (3, 4, 6, 3), 256), SMALL: (8, (1, 1, 1, 1), 32), REAL: (16, (1, 1, 1, 1), 64)}[size]
    net = {"side": side, "classes": classes, "width": width, "depths": depths, "inner": inner}
    fields = (
        Field("image", "u1", (stored, stored, 3)),
        Field("boxes", "f4", (BOXES, 4)),
        Field("labels", "i4", (BOXES,), -1, classes),
    )
    rate, rows = (1e-4, 4096) if size == FULL else (1e-3, 16_384 if size == REAL else 4096)
    quality = Quality("mean average precision", 0.40, 256) if size == REAL else None
    return Form("ssd", size, fields, net, 16, rows, "Adam", rate, quality=quality)


def resnet(size: str) -> Form:
    """An image and its class."""
    side, classes = {FULL: (224, 1000), SMALL: (32, 10), REAL: (32, DIGITS)}[size]
    width, depths = {FULL: (64, (3, 4, 6, 3)), SMALL: (8, (1, 1, 1, 1)), REAL: (16, (1, 1, 1, 1))}[size]
    net = {"width": width, "depths": depths, "classes": classes}
    # Two words, so that a row is a whole number of 64-bit words: the label, and its complement.
    fields = (Field("image", "u1", (side, side, 3)), Field("label", "i4", (1,), 0, classes), Field("check", "i4", (1,)))
    batch, rows = {FULL: (256, 8192), SMALL: (256, 8192), REAL: (64, 65_536)}[size]
    quality = Quality("accuracy", 0.90) if size == REAL else None
    return Form("resnet", size, fields, net, batch, rows, "SGD", 0.1 if size == FULL else 0.05, 12, quality)


MAKERS = {make.__name__: make for make in (bert, lora, diffusion, ssd, resnet)}
NAMES = tuple(MAKERS)


def form(model: str, size: str = FULL) -> Form:
    return MAKERS[model](size)
