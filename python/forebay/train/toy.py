"""A model of DLRMv2's shape in NumPy: the same rows and look-ups, one narrow layer of each kind, Adagrad.

Bottom: 13-16-8. Each feature's looked-up vectors of 8 are added up; the 27 vectors meet in one low-rank cross layer of
rank 8; top: 32-1. It is a real model, whose need for bytes two processors can feel; it says nothing about a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forebay.train import data
from forebay.train.run import NO_NUMBER

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

WIDTH, BOTTOM, RANK, TOP = 8, 16, 8, 32
LEARNING_RATE = 0.02
EPSILON = 1e-8


class Model:
    """Trains on batches of rows: (n, 228) words in host memory."""

    name, device, optimizer = "toy", "cpu", "numpy"
    queued = False

    def __init__(self, counts: Sequence[int], seed: int, learning_rate: float = LEARNING_RATE) -> None:
        self.counts, self.seed, self.rate = tuple(counts), seed, learning_rate
        self.reset()

    def reset(self) -> None:
        """Weights of the seed, as before the first step."""
        import numpy as np

        draw = np.random.default_rng([self.seed, 11])
        vectors = (len(data.LOOKUPS) + 1) * WIDTH

        def layer(inputs: int, outputs: int) -> Array:
            return (draw.standard_normal((inputs, outputs)) * (2 / (inputs + outputs)) ** 0.5).astype(
                np.float32
            )

        zeros = [np.zeros(n, np.float32) for n in (BOTTOM, WIDTH, vectors, TOP, 1)]
        self.weights: dict[str, Array] = {
            "vectors": (draw.standard_normal((sum(self.counts), WIDTH)) * 0.05).astype(np.float32),
            "bottom1": layer(data.DENSE, BOTTOM), "bottom1_bias": zeros[0],
            "bottom2": layer(BOTTOM, WIDTH), "bottom2_bias": zeros[1],
            "cross_in": layer(vectors, RANK), "cross_out": layer(RANK, vectors), "cross_bias": zeros[2],
            "top1": layer(vectors, TOP), "top1_bias": zeros[3],
            "top2": layer(TOP, 1), "top2_bias": zeros[4],
        }  # fmt: skip
        self.sums = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self._offset = np.repeat(np.asarray(data.starts(self.counts)), data.LOOKUPS)
        self._limit = np.repeat(np.asarray(self.counts), data.LOOKUPS)
        self._starts = data.starts(data.LOOKUPS)
        self.loss = 0.0
        self.wrong: str | None = None

    def close(self) -> None:
        """Nothing is held outside this process."""

    def state(self) -> dict[str, Array]:
        """The network's tensors by name."""
        return self.weights

    def wait(self) -> None:
        """Every step is done when it returns."""

    def problem(self) -> str | None:
        """A reason why the model didn't learn in the last steps, if there is one."""
        return self.wrong

    def step(self, rows: Array) -> None:
        """One step of Adagrad. Rows that can't be looked up, or a loss that is no number, change no weight."""
        import numpy as np

        if not len(rows):
            return
        lookups = rows[:, data.FIRST_LOOKUP :]
        labels = rows[:, data.LABEL]
        if (lookups < 0).any() or (lookups >= self._limit).any() or (labels >> 1).any():
            self.wrong = data.faults(rows, self.counts)
            return
        with np.errstate(over="ignore", invalid="ignore"):
            state = self._forward(rows)
            chance = state["chance"]
            likely = np.where(labels == 1, chance, 1 - chance)
            self.loss = (
                float(-np.log(np.maximum(likely, 1e-12)).mean())
                if np.isfinite(chance).all()
                else float("nan")
            )
            if self.loss != self.loss:
                self.wrong = NO_NUMBER
                return
            for name, gradient in self._gradients(rows, state).items():
                self.sums[name] += gradient * gradient
                self.weights[name] -= self.rate * gradient / (np.sqrt(self.sums[name]) + EPSILON)

    def scores(self, rows: Array) -> Array:
        """The chance of each row's label being 1."""
        chance: Array = self._forward(rows)["chance"]
        return chance

    def _forward(self, rows: Array) -> dict[str, Array]:
        import numpy as np

        w, n = self.weights, len(rows)
        dense = rows[:, data.FIRST_DENSE : data.FIRST_LOOKUP].view(np.float32)
        numbers = rows[:, data.FIRST_LOOKUP :] + self._offset
        hidden = np.maximum(dense @ w["bottom1"] + w["bottom1_bias"], 0)
        below = np.maximum(hidden @ w["bottom2"] + w["bottom2_bias"], 0)
        found = np.take(w["vectors"], numbers, axis=0, mode="clip")
        vectors = np.empty((n, len(data.LOOKUPS) + 1, WIDTH), w["vectors"].dtype)
        vectors[:, 0] = below
        for feature, (start, lookups) in enumerate(zip(self._starts, data.LOOKUPS, strict=True), 1):
            np.matmul(
                np.ones((1, lookups), np.float32),
                found[:, start : start + lookups],
                out=vectors[:, feature : feature + 1],
            )
        x = vectors.reshape(n, -1)
        narrow = x @ w["cross_in"]
        crossed = narrow @ w["cross_out"] + w["cross_bias"]
        out = x * crossed + x
        top = np.maximum(out @ w["top1"] + w["top1_bias"], 0)
        logit = (top @ w["top2"] + w["top2_bias"])[:, 0]
        # Too high a learning rate takes it far below: a chance of 0, and no warning of NumPy's among the user's lines.
        with np.errstate(over="ignore"):
            chance = 1 / (1 + np.exp(-logit))
        return {
            "dense": dense, "numbers": numbers, "hidden": hidden, "below": below, "x": x, "narrow": narrow,
            "crossed": crossed, "out": out, "top": top, "chance": chance,
        }  # fmt: skip

    def _gradients(self, rows: Array, s: dict[str, Array]) -> dict[str, Array]:
        """Of the mean loss, by each weight."""
        import numpy as np

        w, n = self.weights, len(rows)
        logit = ((s["chance"] - rows[:, data.LABEL]) / n).astype(np.float32)[:, None]
        top = (logit @ w["top2"].T) * (s["top"] > 0)
        out = top @ w["top1"].T
        crossed = out * s["x"]
        narrow = crossed @ w["cross_out"].T
        x = out * (s["crossed"] + 1) + narrow @ w["cross_in"].T
        below = x[:, :WIDTH] * (s["below"] > 0)
        hidden = (below @ w["bottom2"].T) * (s["hidden"] > 0)
        added = x[:, WIDTH:].reshape(n, len(data.LOOKUPS), WIDTH)
        each = np.repeat(added, data.LOOKUPS, axis=1).reshape(-1, WIDTH)
        flat = s["numbers"].ravel()
        total = len(w["vectors"])
        vectors = np.stack([np.bincount(flat, each[:, d], total) for d in range(WIDTH)], axis=1).astype(
            np.float32
        )
        return {
            "vectors": vectors,
            "bottom1": s["dense"].T @ hidden, "bottom1_bias": hidden.sum(0),
            "bottom2": s["hidden"].T @ below, "bottom2_bias": below.sum(0),
            "cross_in": s["x"].T @ narrow, "cross_out": s["narrow"].T @ crossed, "cross_bias": crossed.sum(0),
            "top1": s["out"].T @ top, "top1_bias": top.sum(0),
            "top2": s["top"].T @ logit, "top2_bias": logit.sum(0),
        }  # fmt: skip
