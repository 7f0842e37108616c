"""Rows of real data for the models that are trained for speed, where a quality is to be measured: texts and images that were
there before.

Texts are the sources of Python's own library; digits are the 1,797 that scikit-learn brings, 8 × 8, drawn on canvases;
photographs are the two that it brings. What is trained on and what is evaluated on are made of different files, writers and
parts of a photograph. The same sources and seed make the same rows; what they were stands in the data set.
"""

from __future__ import annotations

import functools
import hashlib
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import MachineError
from forebay.train import forms

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

TRAINING, EVALUATION = 0, 1
# Of every so many sources in turn the last is for the evaluation.
EVERY = 10
TEXT_BYTES_MAX = 32 << 20
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
# Sides of what a latent is made of, in pixels of a photograph; the model's own scale of latents undone.
PIXELS, LATENT_SCALE = 4, 0.18215
LOG_VARIANCE = -12.0


@functools.cache
def texts() -> tuple[Array, Array]:
    """Sources of Python's library, one behind the other: for the training, and for the evaluation. Raises MachineError."""
    import numpy as np

    place = Path(sysconfig.get_path("stdlib"))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    size = number = 0
    for path in sorted(place.rglob("*.py")):
        if {"site-packages", "dist-packages", "test", "tests"} & set(path.parts) or size >= TEXT_BYTES_MAX:
            continue
        try:
            text = path.read_bytes()
        except OSError:
            continue
        parts[number % EVERY == EVERY - 1].append(text)
        number, size = number + 1, size + len(text)
    train, rest = (np.frombuffer(b"\n".join(part), np.uint8) for part in parts)
    if min(len(train), len(rest)) < 1 << 16:
        raise MachineError("--quality", f"Python's library at {place} has too few sources", "a Python with its library")
    return train, rest


def _scikit(what: str) -> Any:
    try:
        import sklearn.datasets
    except ImportError as error:
        raise MachineError("--quality", f"{what} come from scikit-learn: {error}", "pip install scikit-learn pillow") from None
    return sklearn.datasets


@functools.cache
def digits() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Images of digits, (n, 8, 8) of bytes, and what they show: for the training, and of other writers for the evaluation."""
    import numpy as np

    found = _scikit("the digits").load_digits()
    images, labels = np.minimum(found.images * 16, 255).astype(np.uint8), found.target.astype(np.int32)
    # They lie writer by writer.
    cut = len(images) - len(images) // 5
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


@functools.cache
def photographs() -> tuple[list[Array], list[Array]]:
    """Photographs in planes of red, green, blue and brightness from -1 to 1, a cell for 4 × 4 pixels: left part, and right."""
    import numpy as np

    load = _scikit("the photographs").load_sample_image
    left, right = [], []
    for name in PHOTOGRAPHS:
        try:
            image = load(name).astype(np.float32) / 127.5 - 1
        except ImportError as error:
            raise MachineError("--quality", f"photographs can't be read: {error}", "pip install pillow") from None
        high, wide = (size // PIXELS * PIXELS for size in image.shape[:2])
        cells = image[:high, :wide].reshape(high // PIXELS, PIXELS, wide // PIXELS, PIXELS, 3).mean((1, 3))
        planes = np.concatenate([cells, cells.mean(2, keepdims=True)], 2).transpose(2, 0, 1)
        cut = planes.shape[2] * 7 // 10
        left.append(planes[:, :, :cut])
        right.append(planes[:, :, cut:])
    return left, right


def sources(model: str) -> dict[str, Any]:
    """Sources of a model's rows, and a digest of them. Raises MachineError."""
    if model in ("bert", "lora"):
        name, parts = "the sources of Python's library", [*texts()]
    elif model == "diffusion":
        name, parts = f"photographs of scikit-learn: {', '.join(PHOTOGRAPHS)}", [*photographs()[0], *photographs()[1]]
    else:
        name, parts = "digits of scikit-learn", [array for part in digits() for array in part]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes())
    return {"name": name, "bytes": sum(part.nbytes for part in parts), "sha256": digest.hexdigest()}


def _bert(form: forms.Form, part: int, draw: Any, rows: Array) -> None:
    """Two pieces of text, of which the second follows the first or comes from anywhere."""
    import numpy as np

    text = texts()[part]
    n, tokens = rows["input"].shape
    half, masked = tokens // 2, rows["position"].shape[1]
    first = draw.integers(0, len(text) - tokens, n)
    follows = draw.integers(0, 2, n).astype(np.int32)
    second = np.where(follows, first + half, draw.integers(0, len(text) - tokens, n))
    place = np.arange(half)
    rows["input"] = np.concatenate([text[first[:, None] + place], text[second[:, None] + place]], 1)
    rows["segment"] = np.arange(tokens) >= half
    rows["length"], rows["next"][:, 0] = tokens, follows
    rows["position"] = np.sort(draw.permuted(np.tile(np.arange(tokens, dtype=np.int32), (n, 1)), axis=1)[:, :masked], axis=1)
    each = np.arange(n)[:, None]
    rows["masked"] = rows["input"][each, rows["position"]]
    rows["input"][each, rows["position"]] = forms.MASK


def _lora(form: forms.Form, part: int, draw: Any, rows: Array) -> None:
    import numpy as np

    text = texts()[part]
    n, tokens = rows["tokens"].shape
    rows["tokens"] = text[draw.integers(0, len(text) - tokens, n)[:, None] + np.arange(tokens)]


def _diffusion(form: forms.Form, part: int, draw: Any, rows: Array) -> None:
    """Pieces of photographs, mirrored or not. The text says which photograph it is."""
    import numpy as np

    n, _, side, _ = rows["moments"].shape
    planes = photographs()[part]
    words = np.random.default_rng(0).standard_normal((len(planes), *rows["text"].shape[1:]), np.float32)
    which = draw.integers(0, len(planes), n)
    rows["text"] = words[which]
    for row, photograph in enumerate(which):
        image = planes[photograph]
        y, x = (int(draw.integers(0, size - side + 1)) for size in image.shape[1:])
        piece = image[:, y : y + side, x : x + side]
        rows["moments"][row, :4] = piece[:, :, ::-1] if draw.integers(0, 2) else piece
    rows["moments"][:, :4] /= LATENT_SCALE
    rows["moments"][:, 4:] = LOG_VARIANCE


def _drawn(draw: Any, canvas: Array, image: Array, zoom: int, corner: tuple[int, int]) -> None:
    """Draws a digit on a canvas in a colour of its own, over what is there."""
    import numpy as np

    y, x = corner
    large = image.repeat(zoom, 0).repeat(zoom, 1).astype(np.float32)[:, :, None] / 255
    colour = draw.integers(128, 256, 3).astype(np.float32)
    part = canvas[y : y + large.shape[0], x : x + large.shape[1]]
    part[:] = (part * (1 - large) + colour * large).astype(np.uint8)


def _canvas(draw: Any, rows: Array) -> None:
    import numpy as np

    shape = rows["image"].shape
    rows["image"] = np.frombuffer(draw.bytes(int(np.prod(shape))), np.uint8).reshape(shape) >> 2


def _resnet(form: forms.Form, part: int, draw: Any, rows: Array) -> None:
    """A digit somewhere on a noisy canvas."""
    images, labels = digits()[part]
    side = rows["image"].shape[1]
    which = draw.integers(0, len(images), len(rows))
    rows["label"][:, 0], rows["check"][:, 0] = labels[which], ~labels[which]
    _canvas(draw, rows)
    for row, number in enumerate(which):
        zoom = int(draw.integers(2, 4))
        corner = tuple(int(draw.integers(0, side - 8 * zoom + 1)) for _ in range(2))
        _drawn(draw, rows["image"][row], images[number], zoom, corner)  # type: ignore[arg-type]


def _ssd(form: forms.Form, part: int, draw: Any, rows: Array) -> None:
    """Up to four digits, each in a quarter of a noisy canvas."""
    images, labels = digits()[part]
    side = rows["image"].shape[1]
    scale, quarter = form.net["side"] / side, side // 2
    rows["labels"] = -1
    _canvas(draw, rows)
    for row in range(len(rows)):
        for box, place in enumerate(draw.permutation(4)[: draw.integers(1, 5)]):
            number, zoom = int(draw.integers(0, len(images))), int(draw.integers(2, 5))
            size = 8 * zoom
            y, x = (
                int(base * quarter + draw.integers(0, quarter - size + 1)) for base in divmod(int(place), 2)
            )
            _drawn(draw, rows["image"][row], images[number], zoom, (y, x))
            rows["labels"][row, box] = labels[number]
            rows["boxes"][row, box] = [x * scale, y * scale, (x + size) * scale, (y + size) * scale]


FILLERS: dict[str, Callable[[forms.Form, int, Any, Array], None]] = {
    "bert": _bert, "lora": _lora, "diffusion": _diffusion, "ssd": _ssd, "resnet": _resnet
}  # fmt: skip
