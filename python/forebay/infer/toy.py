"""A classifier of small images in NumPy: three layers, 3072-256-256-10. Its need for bytes two processors can feel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay.infer.data import TOY_PIXELS, digests

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

HIDDEN, ANSWERS = 256, 10
# Batches before the first that counts.
PREPARED = 32
SIZES = (TOY_PIXELS, HIDDEN, HIDDEN, ANSWERS)


def weights(seed: int) -> dict[str, Array]:
    """Random weights of a seed, by name."""
    import numpy as np

    draw = np.random.default_rng([seed, 61])
    made = {}
    for n, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:], strict=False)):
        made[f"layer{n}.weight"] = (draw.standard_normal((inputs, outputs)) * (2 / inputs) ** 0.5).astype(np.float32)
        made[f"layer{n}.bias"] = (draw.standard_normal(outputs) * 0.1).astype(np.float32)
    return made


def shapes() -> dict[str, tuple[int, ...]]:
    """Of each weight."""
    listed: dict[str, tuple[int, ...]] = {}
    for n, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:], strict=False)):
        listed |= {f"layer{n}.weight": (inputs, outputs), f"layer{n}.bias": (outputs,)}
    return listed


class Model:
    """Answers batches of rows in host memory: (n, 3072) bytes → (n, 10) float32."""

    name, device, batch, width = "toy", "cpu", 64, ANSWERS
    # In larger ones a row's sums are rounded by its place.
    checked_batch = 1

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._layers = [(weights[f"layer{n}.weight"], weights[f"layer{n}.bias"]) for n in range(len(SIZES) - 1)]

    def prepare(self, sizes: tuple[int, ...]) -> None:
        """Computes for a moment: a processor that has waited for samples begins slowly."""
        import numpy as np

        rows = np.zeros((self.batch, TOY_PIXELS), np.uint8)
        for _ in range(PREPARED):
            self.launch(rows)

    def sizes(self) -> tuple[int, ...]:
        return (self.batch,)

    def launch(self, rows: Array) -> Array:
        import numpy as np

        x = rows * np.float32(1 / 128) - np.float32(1)
        for weight, bias in self._layers[:-1]:
            x = np.maximum(x @ weight + bias, 0)
        weight, bias = self._layers[-1]
        answers: Array = x @ weight + bias
        return answers

    def finish(self, launched: Array) -> Array:
        return launched

    reference = launch

    def decisions(self, answers: Array) -> Array:
        """What an answer says, rounding aside: the likeliest class."""
        return answers.argmax(1)[:, None]

    def digests(self, rows: Array) -> Array:
        return digests(rows)

    def problem(self) -> str | None:
        """A fault of the samples: any byte is a pixel."""
        return None

    def close(self) -> None:
        """Nothing is held outside this process."""
