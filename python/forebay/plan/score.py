"""Scores of predictions: errors, how often intervals hold, and whether they are better than a constant width."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from forebay.plan.estimate import Z80

# Of the 80 % intervals, what falls outside.
OUTSIDE = 0.2
# What such intervals must hold of a group of cells, where the number of cells lets them.
LEAST, MOST = 0.7, 0.9
DRAWS = 4000


@dataclass(frozen=True)
class Cell:
    """One published value with its prediction. `measure`: errors in per cent, in points, or in whole units.

    `left_out`: the group that the calibration did without. `least`: what the value must reach to pass, where it must.
    """

    label: str
    left_out: str
    published: float
    predicted: float
    p10: float
    p90: float
    baseline: float | None
    measure: str
    least: float | None = None

    @property
    def error(self) -> float:
        """In per cent of the published value; in points or units where `measure` says so."""
        return _error(self.predicted, self.published, self.measure)

    @property
    def baseline_error(self) -> float | None:
        return None if self.baseline is None else _error(self.baseline, self.published, self.measure)

    @property
    def inside(self) -> bool:
        return self.p10 <= self.published <= self.p90

    @property
    def at_an_end(self) -> bool:
        """Returns whether a whole number is an end of its interval: on average half of what it stands for lies beyond."""
        return self.measure == "count" and self.p10 < self.p90 and self.published in (self.p10, self.p90)

    @property
    def good_count(self) -> bool:
        """Within max(1, 10 %)."""
        return abs(self.predicted - self.published) <= max(1.0, 0.1 * self.published)

    @property
    def right(self) -> bool:
        """Returns whether it was foretold rightly that the value passes, or that it doesn't."""
        return self.least is not None and (self.predicted >= self.least) == (self.published >= self.least)


def _error(value: float, published: float, measure: str) -> float:
    return 100 * (value / published - 1) if measure == "pct" else value - published


def _scale(value: float, measure: str) -> float:
    """Returns the scale on which an interval's width is judged: logarithms for ratios, as they are for points."""
    return value if measure == "points" else math.log(max(value, 0.0) + (0.5 if measure == "count" else 1e-12))


def interval_score(low: float, high: float, value: float) -> float:
    """Width plus what falls outside, 2 ÷ 0.2 fold (Gneiting and Raftery 2007): smaller is better."""
    return high - low + 2 / OUTSIDE * (max(0.0, low - value) + max(0.0, value - high))


def possible(n: int) -> range:
    """Returns the counts of `n` cells that are 70 to 90 % of them; for few cells there may be none."""
    return range(math.ceil(LEAST * n - 1e-9), math.floor(MOST * n + 1e-9) + 1)


def by_chance(count: float, trials: int) -> float:
    """The chance that intervals which hold four in five would hold so many of so many trials, or more; or so few, or fewer,
    where it is less than four in five. Half counts are those of the next whole number towards four in five."""
    share = 1 - OUTSIDE
    few = count < share * trials
    least, most = (0, math.ceil(count - 1e-9)) if few else (math.floor(count + 1e-9), trials)
    return sum(math.comb(trials, k) * share**k * OUTSIDE ** (trials - k) for k in range(least, most + 1))


@dataclass(frozen=True)
class Conformal:
    """Intervals stretched to what left-out groups show: cells inside, and their interval score ÷ that of those as they are."""

    inside: int
    score: float


def stretch(groups: Sequence[Sequence[float]]) -> float:
    """Half-widths' factor by conformal prediction over groups (Dunn, Wasserman and Ramdas 2023): of cells' misses, each in its
    own half-width, what four in five stay below, groups alike, and one more group beyond all. Infinite of fewer than four."""
    wanted, share = (1 - OUTSIDE) * (len(groups) + 1) - 1e-9, 0.0
    for miss, weight in sorted((miss, 1 / len(group)) for group in groups for miss in group):
        share += weight
        if share >= wanted:
            return miss
    return math.inf


def conformal(cells: Sequence[Cell]) -> Conformal | None:
    """Each group's intervals by the factor that the *other* groups show; None where those are too few, or no interval has a
    width."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.left_out, []).append(cell)
    inside, theirs, ours = 0, 0.0, 0.0
    for out, group in groups.items():
        factor = stretch([[_miss(c) for c in others] for name, others in groups.items() if name != out])
        if not math.isfinite(factor):
            return None
        for cell in group:
            low, middle, high, value = (_scale(v, cell.measure) for v in (cell.p10, cell.predicted, cell.p90, cell.published))
            ends = middle - factor * (middle - low), middle + factor * (high - middle)
            inside += ends[0] - 1e-12 <= value <= ends[1] + 1e-12
            theirs += interval_score(*ends, value)
            ours += interval_score(low, high, value)
    return Conformal(inside, theirs / ours) if ours else None


def _miss(cell: Cell) -> float:
    """Distance of what was published, in half-widths of that side of its interval."""
    low, middle, high, value = (_scale(v, cell.measure) for v in (cell.p10, cell.predicted, cell.p90, cell.published))
    half = high - middle if value > middle else middle - low
    off = abs(value - middle)
    return off / half if half > 0 else 0.0 if off < 1e-12 else math.inf


@dataclass(frozen=True)
class Summary:
    n: int
    groups: int
    mean: float
    median: float
    worst: float
    inside: float
    ends: int
    good_counts: int
    judged: int
    right: int
    baseline_mean: float | None
    baseline_worst: float | None
    score: float
    constant_score: float | None
    conformal: Conformal | None


def summarise(cells: Sequence[Cell]) -> Summary:
    """Summarises at least one cell."""
    errors = [abs(c.error) for c in cells]
    theirs = [abs(e) for c in cells if (e := c.baseline_error) is not None]
    scores = [interval_score(*(_scale(v, c.measure) for v in (c.p10, c.p90, c.published))) for c in cells]
    constant = constant_scores(cells)
    return Summary(
        n=len(cells),
        groups=len({c.left_out for c in cells}),
        mean=statistics.fmean(errors),
        median=statistics.median(errors),
        worst=max(errors),
        inside=statistics.fmean([float(c.inside) for c in cells]),
        ends=sum(c.at_an_end for c in cells),
        good_counts=sum(c.good_count for c in cells),
        judged=sum(c.least is not None for c in cells),
        right=sum(c.right for c in cells),
        baseline_mean=statistics.fmean(theirs) if theirs else None,
        baseline_worst=max(theirs) if theirs else None,
        score=statistics.fmean(scores),
        constant_score=statistics.fmean(constant) if constant else None,
        conformal=conformal(cells),
    )


@lru_cache(maxsize=64)
def chance(n: int) -> float:
    """Returns the bound on score ÷ constant width's, over `n` cells, below which nine in ten perfect forecasters stay.

    Perfect: misses are normal and their spread is known. So few cells are no proof against intervals below this.
    """
    import numpy as np

    misses = np.abs(np.random.default_rng(1).standard_normal((DRAWS, n)))
    ordered = np.sort(misses, axis=1)
    place = min(n - 2, math.ceil((1 - OUTSIDE) * (n - 1)) - 1)
    # Of the others, the one at `place`: one further up for whoever stands before it.
    half = np.where(misses <= ordered[:, [place]], ordered[:, [place + 1]], ordered[:, [place]])

    def scores(width: Any) -> Any:
        return (2 * width + 2 / OUTSIDE * np.maximum(0.0, misses - width)).mean(axis=1)

    return float(np.quantile(scores(np.full_like(misses, Z80)) / scores(half), 0.9))


def constant_scores(cells: Sequence[Cell]) -> list[float]:
    """Scores of intervals of one width about the same predictions; the width is what held 80 % of the other cells."""
    misses = [abs(_scale(c.published, c.measure) - _scale(c.predicted, c.measure)) for c in cells]
    if len(cells) < 3:
        return []
    found = []
    for i, cell in enumerate(cells):
        others = sorted(misses[:i] + misses[i + 1 :])
        half = others[min(len(others) - 1, math.ceil((1 - OUTSIDE) * len(others)) - 1)]
        middle = _scale(cell.predicted, cell.measure)
        found.append(interval_score(middle - half, middle + half, _scale(cell.published, cell.measure)))
    return found
