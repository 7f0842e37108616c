"""How wide intervals are: learnt from the measurements that calibrate, and judged against one constant width."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from forebay.plan import catalogue, cores, cpu, flow, page, score, training
from forebay.plan.estimate import Z80
from forebay.plan.fit import Data, Prior, each, fit, prior_only
from forebay.plan.planner import FLOW_TABLES, flow_cells, load_of, published
from forebay.plan.published import table

ROWS = [r for name in FLOW_TABLES for r in table(name)]


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
def test_how_often_intervals_hold_so_many_by_chance_is_the_binomial_tail() -> None:
    assert score.by_chance(9, 9) == pytest.approx(0.8**9) and score.by_chance(18, 18) < 0.02
    assert score.by_chance(0, 3) == pytest.approx(0.2**3) and score.by_chance(14, 18) > 0.4
    draw = random.Random(5)
    drawn = [sum(draw.random() < 0.8 for _ in range(17)) for _ in range(20_000)]
    for count in (10, 12, 15, 16):
        few = count < 0.8 * 17
        seen = sum(n <= count if few else n >= count for n in drawn) / len(drawn)
        assert score.by_chance(count, 17) == pytest.approx(seen, abs=0.015)
    cells = [score.Cell(str(i), f"g{i % 2}", 1.0, 1.0, 0.5, 1.5, None, "pct") for i in range(18)]
    # Were cells trials it would be one in fifty; of two groups nobody can tell.
    assert page.held(score.summarise(cells)) == "18 of 18: too few to tell"
    apart = [score.Cell(str(i), str(i), 1.0, 1.0, 0.5, 1.5, None, "pct") for i in range(18)]
    assert page.held(score.summarise(apart)) == "18 of 18: wide"


@pytest.mark.promise("PLN-4")
def test_conformal_widths_hold_four_in_five_of_groups_that_miss_together() -> None:
    draw = random.Random(11)

    def drawn(groups: int, spread: float) -> list[score.Cell]:
        made = []
        for g in range(groups):
            together = draw.gauss(0, 0.8)
            for _ in range(3):
                at = spread * (together + 0.6 * draw.gauss(0, 1))
                made.append(score.Cell("", str(g), at, 0.0, -Z80, Z80, None, "points"))
        return made

    # Of intervals that are half as wide as they should be, and of such as are twice as wide: 80 % of a new group, and some more.
    for spread in (2.0, 0.5):
        found = [score.conformal(drawn(12, spread)) for _ in range(60)]
        inside = sum(f.inside for f in found if f) / (60 * 36)
        assert 0.76 < inside < 0.92
    # Where the spread is known already, learning it costs.
    ratios = [f.score for _ in range(60) if (f := score.conformal(drawn(6, 1.0)))]
    assert len(ratios) == 60 and sum(ratios) / 60 > 1.02
    assert score.stretch([[1.0], [2.0], [3.0]]) == math.inf and score.stretch([[1.0], [2.0], [3.0], [9.0]]) == 9.0
    assert score.conformal(drawn(4, 1.0)) is None
    # Groups count alike, however many cells they have.
    assert score.stretch([[0.1] * 50, [1.0], [2.0], [3.0], [4.0], [5.0]]) == 5.0


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


@pytest.mark.promise("PLN-10")
def test_a_law_says_the_same_of_many_parameters_at_once() -> None:
    draw, planner = np.random.default_rng(3), published()
    trained = training.Setup("cosmoflow", "D7-PS1010", 4, 40, 9000.0)
    work = [cpu.Work(path, 64, 4.0) for path in cpu.PATHS]
    minutes = planner.training_time(["D74H-7U"])
    for posterior, rows in (
        (planner.flow.posterior, planner.flow.rows([flow.Load("D7-PS1010", k, 8, remote=k > 64) for k in (4, 64, 512)])),
        (planner.training.posterior, training.Rows([trained, trained], [True, False], planner.training.drives)),
        (planner.user_cpu.posterior, cpu.Rows(work)),
        (planner.cores.posterior, cores.Rows(work, [cores.USER, cores.BOTH])),
        (minutes.posterior, minutes.posterior.data.rows),
    ):
        logs = posterior.log + 0.3 * draw.normal(size=(5, len(posterior.log)))
        alone = [posterior.model(log, rows) for log in logs]
        assert np.allclose(each(posterior.model, logs, rows), alone, rtol=1e-12, atol=1e-12)
        assert np.array_equal(each(posterior.model, logs, rows, size=10**9), alone)


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
    cells = flow_cells(ROWS)

    def width(out: float, kib: float) -> float:
        kept = [m for m in cells if not m.load.remote or (m.load.queues or flow.QUEUES_MAX) != out]
        e = flow.Flow(kept).predict([flow.Load("D7-PS1010", kib, 32, remote=True, queues=out)])[0]
        return e.p90 / e.p10

    known = flow.Flow(cells)
    for kib in (64, 512):
        e = known.predict([flow.Load("D7-PS1010", kib, 32, remote=True, queues=15)])[0]
        assert 1 < e.p90 / e.p10 < width(15, kib) < width(1, kib)


@pytest.mark.long
@pytest.mark.promise("PLN-4")
def test_blanks_of_tables_drawn_from_the_law_itself_lie_in_their_intervals() -> None:
    """Machines drawn from the priors, measured where the published ones were: what the blanks would read, with noise."""
    draw = np.random.default_rng(11)
    seen = [m.load for m in flow_cells(ROWS)]
    blank = list(dict.fromkeys(load_of(r) for r in ROWS if not r["throughput_gibps"]))
    names = list(dict.fromkeys(load.drive.lower() for load in seen))
    rows = flow.Rows([*seen, *blank], names)
    priors = [*flow.SHARED, *(p for n in names for p in flow.drive_priors(catalogue.drive(n)))]
    middle, spread = np.log([p.median for p in priors]), np.array([p.spread for p in priors])
    noise = np.array([flow.usual_noise(load) for load in [*seen, *blank]])
    inside, cells = Counter[str](), Counter[str]()
    for _ in range(30):
        local, remote = draw.integers(len(flow.LOCAL_SCALES)), draw.integers(len(flow.SCALES))
        law = flow.Deviation(list(np.eye(len(flow.LOCAL_SCALES))[local]), list(np.eye(len(flow.SCALES))[remote]))
        root = np.linalg.cholesky(law(rows, rows) + 1e-12 * np.eye(len(noise)))
        off = root @ draw.normal(size=len(noise)) + noise * draw.normal(size=len(noise))
        rates = np.exp(flow.law(middle + spread * draw.normal(size=len(middle)), rows) + off)
        made = flow.Flow([flow.Measured(load, float(r)) for load, r in zip(seen, rates, strict=False)])
        for load, rate, e in zip(blank, rates[len(seen) :], made.predict(blank), strict=True):
            # A drive none of whose remote cells is known is given more than the law says: no table tells how such differ.
            place = "beyond" if load.remote and load.drive == "D7-P5520" else "remote" if load.remote else "local"
            cells[place] += 1
            inside[place] += e.p10 <= rate <= e.p90
    shares = {place: inside[place] / n for place, n in cells.items()}
    assert 0.7 <= shares["local"] <= 0.9 and 0.7 <= shares["remote"] <= 0.9 and 0.75 <= shares["beyond"] <= 0.97, shares
