"""What a row of emulated accelerators says of its own blanks: MiB/s are accelerators × demand × AU.

That is how the benchmark computes them, so where two of the three stand in a row the third isn't foretold but known, to
about a per cent: the first reads of an epoch count in one and not in the other.
"""

from __future__ import annotations

import math

from forebay.plan.estimate import Estimate

APART = 0.01
# Points by which five runs of one system differ.
RUNS_APART = 0.3


def share(rate: float, number: float, demand: float, limit: str) -> Estimate:
    """AU in per cent, of so many accelerators that take `demand` MiB/s each and had `rate` together."""
    middle = 100 * rate / (number * demand)
    low, value, high = (min(100.0, middle * (1 + by)) for by in (-APART, 0.0, APART))
    return Estimate(value, low, high, "%", limit)


def number(rate: float, demand: float, au_pct: float, limit: str) -> Estimate:
    """Accelerators that had `rate` at that AU."""
    middle = 100 * rate / (demand * max(au_pct, 1e-3))
    low, value, high = (float(max(1, round(middle * (1 + by)))) for by in (-APART, 0.0, APART))
    return Estimate(value, low, high, "accelerators", limit)


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
