"""Derives the blanks of a row of emulated accelerators from its other cells: MiB/s are accelerators × demand × AU.

That is how the benchmark computes them, so where two of the three stand in a row the third isn't foretold but known, to
about a per cent: the first reads of an epoch count in one and not in the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from forebay.plan.estimate import Estimate

APART = 0.01
# Points by which five runs of one system differ.
RUNS_APART = 0.3
# Points by which the lowest of a few runs lies below their mean and the highest above it: of other submitters' results,
# what a tenth, half and nine tenths stay within.
LOWEST, HIGHEST = (0.05, 0.2, 1.0), (0.05, 0.17, 0.8)
# MiB/s and samples a second of one run agree to so much, and a ratio is printed to four decimals.
PRINTED, RATIO_PRINTED = 2e-5, 5e-5


def share(rate: float, number: float, demand: float, limit: str, apart: float = APART) -> Estimate:
    """AU in per cent, of so many accelerators that take `demand` MiB/s each and had `rate` together.

    `apart`: half the 80 % interval of the identity, as a share.
    """
    middle = 100 * rate / (number * demand)
    low, value, high = (min(100.0, middle * (1 + by)) for by in (-apart, 0.0, apart))
    return Estimate(value, low, high, "%", limit)


def number(rate: float, demand: float, au_pct: float, limit: str, apart: float = APART) -> Estimate:
    """Accelerators that had `rate` at that AU."""
    middle = 100 * rate / (demand * max(au_pct, 1e-3))
    low, value, high = (float(max(1, round(middle * (1 + by)))) for by in (-apart, 0.0, apart))
    return Estimate(value, low, high, "accelerators", limit)


def printed(value: float, unit: str, limit: str, apart: float = PRINTED) -> Estimate:
    """Returns an estimate that follows from another figure of the same run but for its digits."""
    return Estimate(value, value * (1 - apart), value * (1 + apart), unit, limit)


def lowest(mean: Estimate, limit: str) -> Estimate:
    """AU of the lowest of a few runs of this mean."""
    return _beside(mean, [-by for by in LOWEST], limit)


def highest(mean: Estimate, limit: str) -> Estimate:
    """AU of the highest of a few runs of this mean."""
    return _beside(mean, HIGHEST, limit)


def mean_of(lowest_pct: float | None, highest_pct: float | None, limit: str) -> Estimate | None:
    """The mean of runs of which the lowest, the highest or both are known; None where neither is."""
    if lowest_pct is not None and highest_pct is not None:
        middle, half = (lowest_pct + highest_pct) / 2, max(0.0, highest_pct - lowest_pct) / 6
        return Estimate(middle, middle - half, middle + half, "%", limit)
    if lowest_pct is not None:
        return _beside(Estimate(lowest_pct, lowest_pct, lowest_pct, "%"), LOWEST, limit)
    if highest_pct is not None:
        return _beside(Estimate(highest_pct, highest_pct, highest_pct, "%"), [-by for by in HIGHEST], limit)
    return None


def _beside(share: Estimate, points: Sequence[float], limit: str) -> Estimate:
    """An AU that is so many points off (a tenth, half and nine tenths within), and stays one.

    The spreads are added: runs that differ much to one side differ much to the other.
    """
    least, usual, most = sorted(points)
    low, value, high = (min(100.0, max(0.0, v)) for v in (share.p10 + least, share.value + usual, share.p90 + most))
    return Estimate(value, low, high, "%", limit)


def passing(foretold: Estimate, rate: float, demand: float, least_pct: float) -> Estimate:
    """The greatest number that passes, of those that `rate` lets pass: at an AU from the least to all."""
    low = max(1.0, math.ceil((1 - APART) * rate / demand))
    high = max(low, math.floor((1 + APART) * 100 * rate / (demand * least_pct)))
    value, p10, p90 = (min(high, max(low, v)) for v in (foretold.value, foretold.p10, foretold.p90))
    return Estimate(value, p10, p90, "accelerators", foretold.bottleneck, foretold.stations)


def other_run(mean_pct: float, limit: str) -> Estimate:
    """AU of one more run where others of the same system had this mean."""
    low, value, high = (min(100.0, max(0.0, mean_pct + by)) for by in (-RUNS_APART, 0.0, RUNS_APART))
    return Estimate(value, low, high, "%", limit)
