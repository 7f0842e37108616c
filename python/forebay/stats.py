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


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 400):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 + term * d
            c = 1.0 + term / c
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def student_t_tails(t: float, df: float) -> float:
    """The probability of |T| > t ≥ 0 under Student's t with `df` degrees of freedom."""
    a, b, x = df / 2, 0.5, df / (df + t * t)
    if x >= 1.0:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1 - x) / b


@lru_cache(maxsize=1024)
def student_t(df: float, confidence: float = 0.95) -> float:
    """The t with P(|T| ≤ t) = confidence. `df` may be fractional (Welch), above 0."""
    low, high = 0.0, 1.0
    while student_t_tails(high, df) > 1 - confidence:
        high *= 2
        if high > 1e12:
            return high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_tails(middle, df) > 1 - confidence else (low, middle)
    return (low + high) / 2


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
