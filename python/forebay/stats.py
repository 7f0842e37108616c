"""Intervals that `compare`, `sweep` and `tune` decide by; docs/compare.md has the method.

Ratios are analysed as logarithms, so that "A over B" and "B over A" give the same answer and a slow
minute of the machine, which multiplies, becomes an addition that pairing removes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, in the estimate's own unit.

    `low` and `high` are None where there are too few values for an interval.
    """

    estimate: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width_pct(self) -> float | None:
        """Half the interval's width, in per cent of the estimate. None without an interval."""
        if self.low is None or self.high is None or self.estimate == 0:
            return None
        return 50.0 * (self.high - self.low) / abs(self.estimate)

    def inverse(self) -> Interval:
        """The interval of 1 ÷ the quantity. Positive quantities only."""
        if self.low is None or self.high is None:
            return Interval(1 / self.estimate, None, None, self.n)
        return Interval(1 / self.estimate, 1 / self.high, 1 / self.low, self.n)


@dataclass(frozen=True)
class Pair:
    """One run of A and one of B, back to back; both positive and finite."""

    a: float
    b: float
    a_first: bool

    @property
    def log_ratio(self) -> float:
        return math.log(self.a / self.b)


@lru_cache(maxsize=1024)
def student_t(df: int, confidence: float = 0.95) -> float:
    """The t with P(|T| ≤ t) = confidence, under Student's t with `df` degrees of freedom, above 0."""
    from forebay import _core

    return _core.student_t(df, confidence)


def exp(value: float) -> float:
    """e to that power, held to what a float can be: an interval of wild values ends somewhere."""
    return math.exp(min(max(value, -700.0), 700.0))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean and its t interval; no interval under two values. Raises ValueError on none."""
    n = len(values)
    if n == 0:
        raise ValueError("no values")
    mean = statistics.fmean(values)
    if n < 2:
        return Interval(mean, None, None, n)
    half = student_t(n - 1, confidence) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def paired_ratio(pairs: Sequence[Pair], confidence: float = 0.95) -> Interval:
    """A ÷ B out of pairs of which some ran A first and some B: the analysis of a two-period crossover.

    The pairs that began with A and those that began with B get equal weight, so whatever favours the
    first or the second of a pair (a linear drift of the machine, say) cancels exactly, however many
    pairs there are; their spread is pooled over both orders, with n − 2 degrees of freedom. With pairs
    of one order only, and under three pairs, there is no interval.
    """
    if not pairs:
        raise ValueError("no pairs")
    orders = [[p.log_ratio for p in pairs if p.a_first is first] for first in (True, False)]
    n = len(pairs)
    if not orders[0] or not orders[1]:
        return Interval(exp(statistics.fmean([p.log_ratio for p in pairs])), None, None, n)
    means = [statistics.fmean(o) for o in orders]
    centre = sum(means) / 2
    if n < 3:
        return Interval(exp(centre), None, None, n)
    squares = sum((v - m) ** 2 for o, m in zip(orders, means, strict=True) for v in o)
    error = math.sqrt(squares / (n - 2) * (1 / len(orders[0]) + 1 / len(orders[1]))) / 2
    half = student_t(n - 2, confidence) * error
    return Interval(exp(centre), exp(centre - half), exp(centre + half), n)


def pairs_for(half_pct: float, ratio: Interval, confidence: float, most: int) -> int | None:
    """Number of pairs, as noisy as those of `ratio` and half of them in either order, that give so narrow an interval; None
    where more than `most` would."""
    wanted = math.asinh(half_pct / 100)
    return next((n for n in range(ratio.n + 1, most + 1) if _log_half(ratio, n, confidence) <= wanted), None)


def half_width_of(pairs: int, ratio: Interval, confidence: float) -> float:
    """Half the width, in per cent, that the interval of so many pairs would have."""
    return 100 * math.sinh(min(_log_half(ratio, pairs, confidence), 700.0))


def _log_half(ratio: Interval, pairs: int, confidence: float) -> float:
    """It shrinks with the root of their number, and Student's t, which is large for few, with it."""
    half = math.asinh((ratio.half_width_pct or 0.0) / 100)
    return half * student_t(pairs - 2, confidence) / student_t(ratio.n - 2, confidence) * math.sqrt(ratio.n / pairs)


def unpaired_ratio(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Interval:
    """A ÷ B of two independent sets of runs: Welch's t interval of the difference of the mean logarithms.

    No interval where either set has fewer than two values. `n` is the size of the smaller set.
    """
    logs = [[math.log(v) for v in values] for values in (a, b)]
    if not logs[0] or not logs[1]:
        raise ValueError("no values")
    centre = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    n = min(len(logs[0]), len(logs[1]))
    if n < 2:
        return Interval(exp(centre), None, None, n)
    parts = [statistics.variance(v) / len(v) for v in logs]
    total = sum(parts)
    if total == 0:
        return Interval(exp(centre), exp(centre), exp(centre), n)
    df = total**2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, logs, strict=True))
    # Rounded down: with three runs a side, as Welch gives it, it holds the truth a little less often than it says.
    half = student_t(max(1, math.floor(df)), confidence) * math.sqrt(total)
    return Interval(exp(centre), exp(centre - half), exp(centre + half), n)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = statistics.median,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 7,
) -> Interval:
    """The percentile bootstrap of `statistic`: assumes no shape of the noise; too narrow under ~8 values.

    The same values and seed give the same interval. No interval under two values.
    """
    import numpy as np

    data = np.asarray(values, dtype=float)
    if data.size == 0:
        raise ValueError("no values")
    estimate = float(statistic(list(data)))
    if data.size < 2:
        return Interval(estimate, None, None, int(data.size))
    drawn = data[np.random.default_rng(seed).integers(0, data.size, (resamples, data.size))]
    found = (
        np.median(drawn, axis=1)
        if statistic is statistics.median
        else np.array([statistic(list(r)) for r in drawn])
    )
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(found, [tail, 100 - tail])
    return Interval(estimate, float(low), float(high), int(data.size))
