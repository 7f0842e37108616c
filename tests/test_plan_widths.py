"""How wide intervals are: learnt from the measurements that calibrate, and judged against one constant width."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from forebay.plan import flow, score
from forebay.plan.estimate import Z80
from forebay.plan.fit import Data, Prior, fit, prior_only


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


@pytest.mark.promise("PLN-4")
def test_where_a_law_bends_its_two_sides_differ_as_its_draws_do() -> None:
    """y = min(a, 1), smoothly: below 1 it goes with a, above it doesn't. A slope at the middle would be half of one side."""
    priors = [Prior("a", 1.2, 0.5, "", "prior", ""), Prior("b", 1.0, 0.1, "", "prior", "")]

    def bend(log, rows):
        return -np.log1p(np.exp(-8 * log[0])) / 8 + 0 * rows + log[1]

    found = prior_only(bend, priors)
    mean, low, high = found.spreads(np.zeros(1))
    draws = np.random.default_rng(5).normal(size=(20_000, 2)) * [0.5, 0.1] + found.log
    ends = np.quantile([bend(d, np.zeros(1))[0] for d in draws], [0.1, 0.9])
    assert mean[0] - Z80 * low[0] == pytest.approx(ends[0], abs=0.05)
    assert mean[0] + Z80 * high[0] == pytest.approx(ends[1], abs=0.05)
    assert low[0] > 2 * high[0]


@pytest.mark.promise("PLN-4")
def test_what_is_known_of_other_drives_changes_no_interval() -> None:
    """A drive's own parameters have an axis of their own, whichever drives are known beside it."""
    alone, beside = (flow.Flow([]) for _ in range(2))
    beside.know(["D7-P5520", "D3-S4520", "D7-PS1010"])
    load = flow.Load("D5-P5336", 64, 8, remote=True, queues=3)
    one, other = (f.predict([load])[0] for f in (alone, beside))
    assert (one.p10, one.p90) == pytest.approx((other.p10, other.p90), rel=1e-9)


@pytest.mark.promise("PLN-4")
def test_queues_between_known_ones_are_surer_than_queues_beyond() -> None:
    """With one and 31 queues known, 15 are interpolated; with 15 and 31, one is not. Cells that agree don't make it sure."""
    from forebay.plan.planner import flow_cells
    from forebay.plan.published import table

    cells = flow_cells([r for name in ("gds_vs_cpu", "remote_vs_local", "snap_queues") for r in table(name)])

    def width(out: float, kib: float) -> float:
        kept = [m for m in cells if not m.load.remote or (m.load.queues or flow.QUEUES_MAX) != out]
        e = flow.Flow(kept).predict([flow.Load("D7-PS1010", kib, 32, remote=True, queues=out)])[0]
        return e.p90 / e.p10

    known = flow.Flow(cells)
    for kib in (64, 512):
        e = known.predict([flow.Load("D7-PS1010", kib, 32, remote=True, queues=15)])[0]
        assert 1 < e.p90 / e.p10 < width(15, kib) < width(1, kib)
