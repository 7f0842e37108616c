"""How wide intervals are: learnt from the measurements that calibrate, and judged against one constant width."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from forebay.plan import score
from forebay.plan.estimate import Z80
from forebay.plan.fit import Data, Prior, fit


def test_chance_is_what_forecasters_with_the_true_spread_reach() -> None:
    """Drawn once more with the cells of the back-test itself: a tenth of perfect forecasters lie above."""
    draw = random.Random(3)
    above = 0
    for _ in range(400):
        cells = [score.Cell("", "", draw.gauss(0, 1), 0.0, -Z80, Z80, None, "points") for _ in range(7)]
        found = score.summarise(cells)
        above += found.score / found.constant_score > score.chance(7)
    assert 20 <= above <= 62
    assert score.chance(3) > score.chance(9) > score.chance(40) > 1


@pytest.mark.promise("PLN-4")
def test_widths_are_what_leaving_measurements_out_shows() -> None:
    """Closed form against refitting, on a law that is linear in its logarithms."""
    priors = [Prior("a", 1.0, 1.0, "", "prior", ""), Prior("b", 1.0, 1.0, "", "prior", "")]
    x = np.array([0.0, 1.0, 2.0, 3.0])
    y, sd = np.array([0.1, 0.9, 2.3, 2.8]), np.full(4, 0.2)

    def line(log, rows):
        return log[0] + log[1] * rows

    found = fit(line, priors, Data(x, y, sd)).left_out()
    for i in range(4):
        kept = np.arange(4) != i
        mean, spread = fit(line, priors, Data(x[kept], y[kept], sd[kept])).predict(x[[i]])
        assert found[i] == pytest.approx((y[i] - mean[0]) / math.hypot(spread[0], 0.2), rel=1e-4)
    wide = fit(line, priors, Data(x, y + np.array([1, -1, 1, -1]), sd)).width()
    assert wide > 2 > fit(line, priors, Data(x, y, sd)).width()
