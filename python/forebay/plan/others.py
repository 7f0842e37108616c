"""Other submitters' systems, from what their data sheets and names say: workload, accelerators, hosts.

What a stranger's system does can't be calibrated, so this module learns how such systems spread: AU in points, linear in
the logs of accelerators per host and of hosts, per workload, with intervals as wide as submitters who were left out
showed them to be. That width is one for all workloads: a dozen submitters of each don't tell three apart. Results are of
runs that passed; for a system that wouldn't, they are too hopeful.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.plan.estimate import Z80, Estimate, from_log
from forebay.plan.fit import weighed
from forebay.plan.training import DEMAND_MIBPS, WORKLOADS

RECORD_BYTES = {"unet3d": 146600628, "resnet50": 114660.07, "cosmoflow": 2828486}
# Coefficients are drawn towards zero as if by so many rows' worth of evidence: which, the results of a line say.
RIDGES = (1.0, 4.0, 16.0)
# The variance of a line's level beside that of its rows: nothing is known of it before.
LEVEL = 1e6
AU_LEAST, AU_MOST = 0.01, 99.9


@dataclass(frozen=True)
class System:
    """A submission: `accelerators` None asks how many there would be. `threads` of all hosts, None where unknown."""

    org: str
    workload: str
    accelerator: str
    accelerators: float | None
    hosts: float
    threads: float | None = None


@dataclass(frozen=True)
class Result:
    system: System
    au_pct: float
    ratio: float


class Line:
    """A ridge regression with its covariance: y ≈ x·w, spread by what leaving groups out showed."""

    def __init__(self, x: Sequence[Sequence[float]], y: Sequence[float], groups: Sequence[str]) -> None:
        import numpy as np

        self.rows = len(y)
        self._x, self._y = np.array(x, dtype=float), np.array(y, dtype=float)
        self.ridge = _ridge(self._x, self._y) if len(y) else RIDGES[0]
        self.weights, self.cov = self._solve(np.ones(len(y), dtype=bool))
        held = np.empty(len(y))
        for group in set(groups):
            out = np.array([g == group for g in groups])
            weights = self._solve(~out)[0] if (~out).any() else self.weights
            held[out] = self._y[out] - self._x[out] @ weights
        # What holds 80 % of them, as a normal's standard deviation: a few far ones don't widen all.
        self.sd = float(np.quantile(np.abs(held), 0.8)) / Z80 if len(y) else 1.0

    def _solve(self, keep: Any) -> tuple[Any, Any]:
        import numpy as np

        x, y = self._x[keep], self._y[keep]
        pull = np.diag([0.0] + [self.ridge] * (x.shape[1] - 1)) + 1e-9 * np.eye(x.shape[1])
        inverse = np.linalg.inv(x.T @ x + pull)
        return inverse @ x.T @ y, inverse

    def predict(self, x: Sequence[float]) -> tuple[float, float]:
        import numpy as np

        row = np.array(x, dtype=float)
        return float(row @ self.weights), self.sd * math.sqrt(1 + float(row @ self.cov @ row))


def _ridge(x: Any, y: Any) -> float:
    """The mean of RIDGES, by how likely each makes the results, whatever the noise of them is."""
    import numpy as np

    logs = []
    for ridge in RIDGES:
        cov = np.eye(len(y)) + x @ np.diag([LEVEL] + [1 / ridge] * (x.shape[1] - 1)) @ x.T
        fit, size = float(y @ np.linalg.solve(cov, y)), float(np.linalg.slogdet(cov)[1])
        logs.append(-0.5 * (len(y) * math.log(max(fit, 1e-12)) + size))
    return math.exp(weighed([math.log(ridge) for ridge in RIDGES], logs))


def _au_features(system: System) -> list[float]:
    number = system.accelerators or 1.0
    return [1.0, math.log(number / system.hosts), math.log(system.hosts), float(system.accelerator == "a100")]


def _count_features(system: System) -> list[float]:
    threads = (system.threads or 128.0 * system.hosts) / system.hosts
    return [1.0, math.log(system.hosts), float(system.accelerator == "a100"), math.log(threads / 128.0)]


def _share_spread(lines: Sequence[Line]) -> None:
    """The mean variance of all lines, by their rows, becomes that of each."""
    rows = sum(line.rows for line in lines)
    sd = math.sqrt(sum(line.rows * line.sd**2 for line in lines) / rows) if rows else 1.0
    for line in lines:
        line.sd = sd


class Others:
    """Calibrated by results of any submitters; per workload."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.au_line, self.count_line, self.ratio = {}, {}, {}
        for workload in WORKLOADS:
            here = [r for r in results if r.system.workload == workload]
            groups = [r.system.org for r in here]
            points = [r.au_pct for r in here]
            self.au_line[workload] = Line([_au_features(r.system) for r in here], points, groups)
            counts = [math.log(r.system.accelerators / r.system.hosts) for r in here if r.system.accelerators]
            counted = [r for r in here if r.system.accelerators]
            features = [_count_features(r.system) for r in counted]
            self.count_line[workload] = Line(features, counts, [r.system.org for r in counted])
            ratios = [math.log(r.ratio) for r in here]
            self.ratio[workload] = Line([[1.0]] * len(here), ratios, groups)
        _share_spread(list(self.au_line.values()))
        _share_spread(list(self.count_line.values()))

    def au(self, system: System) -> Estimate:
        """Mean AU in per cent."""
        if system.accelerators is None:
            raise ValueError("AU needs a number of accelerators")
        mean, sd = self.au_line[system.workload].predict(_au_features(system))
        low, middle, high = (min(AU_MOST, max(0.0, mean + k * Z80 * sd)) for k in (-1, 0, 1))
        return Estimate(middle, low, high, "%", "not known from a data sheet")

    def count(self, system: System) -> Estimate:
        """Accelerators in all, a whole number."""
        mean, sd = self.count_line[system.workload].predict(_count_features(system))
        mean += math.log(system.hosts)
        low, middle, high = (max(1, round(math.exp(mean + k * Z80 * sd))) for k in (-1, 0, 1))
        return Estimate(middle, low, high, "accelerators", "not known from a data sheet")

    def throughput(self, system: System, au: Estimate, known_au: bool) -> Estimate:
        """MiB/s: an identity of accelerators, demand and AU, but for the start of each epoch."""
        mean, sd = self.ratio[system.workload].predict([1.0])
        demand = DEMAND_MIBPS[system.workload, system.accelerator] * (system.accelerators or 1.0)
        low, share, high = (math.log(max(v, AU_LEAST)) for v in (au.p10, au.value, au.p90))
        of_au = 0.0 if known_au else (high - low) / (2 * Z80)
        middle = math.log(demand / 100) + share + mean
        return from_log(middle, math.hypot(sd, of_au), "MiB/s", bottleneck="not known from a data sheet")
