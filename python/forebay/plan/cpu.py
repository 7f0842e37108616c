"""User CPU of a path: a cost per request and a cost per MiB, each by path, times the rate at which requests go.

The published figure is user time in per cent of the machine, to two decimals: what is printed as 0.01 may be anything
from 0.005 to 0.015, and is weighed so. Costs belong to one system and its count of processors; on another they must be
calibrated again, and time in the kernel is not one of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.paths import GDS
from forebay.plan.estimate import Z80, Estimate, capped, from_log
from forebay.plan.fit import Data, Posterior, Prior, fit, many
from forebay.plan.frozen import replace

if TYPE_CHECKING:
    from forebay.plan.fit import Array

# Paths that plans know, and what an answer calls them.
PATH_WORDS = {GDS: "GPUDirect Storage", "cpu": "through CPU memory"}
PATHS = tuple(PATH_WORDS)
NOISE = 0.05
# Two decimals of a per cent: uniform within half a unit of the last.
ROUNDING_PCT = 0.01 / math.sqrt(12)
WIDEN = 1.0
REFERENCE_IOPS = 1e5


@dataclass(frozen=True)
class Work:
    """`gibps` of requests of `io_kib` by `path` (gds or cpu)."""

    path: str
    io_kib: float
    gibps: float


class Rows:
    def __init__(self, work: Sequence[Work]) -> None:
        import numpy as np

        self.path = np.array([PATHS.index(w.path) for w in work], dtype=int)
        self.mib = np.array([w.io_kib for w in work]) / 1024
        self.rate = np.array([w.gibps for w in work]) * 1024 / self.mib


PRIORS = (
    Prior("user_request[gds]", 2.0, 1.0, "us of the machine per 100 requests", "prior", "unknown system"),
    Prior("user_request[cpu]", 12.0, 1.0, "us of the machine per 100 requests", "prior", "unknown system"),
    Prior("user_mib[gds]", 0.5, 1.0, "us of the machine per 100 MiB", "prior", "unknown system"),
    Prior("user_mib[cpu]", 6.0, 1.0, "us of the machine per 100 MiB", "prior", "unknown system"),
    Prior("user_crowding", 1.1, 0.1, "", "prior", "CPU grows with the rate to this power: concurrent requests cost more"),
)


@many
def law(log: Array, rows: Rows) -> Array:
    """Log of user CPU in per cent of the machine."""
    import numpy as np

    value = np.exp(log)
    cost = value[..., 0:2][..., rows.path] + value[..., 2:4][..., rows.path] * rows.mib
    crowd = (rows.rate / REFERENCE_IOPS) ** (value[..., 4, None] - 1)
    return np.log(cost * 1e-6 * rows.rate * crowd)


class UserCpu:
    """Calibrated by (work, per cent of the machine in user mode)."""

    def __init__(self, measured: Sequence[tuple[Work, float]], start: Mapping[str, float] | None = None) -> None:
        import numpy as np

        noise = np.array([math.hypot(NOISE, ROUNDING_PCT / pct) for _, pct in measured])
        y = np.log([pct for _, pct in measured])
        self.posterior: Posterior = fit(law, PRIORS, Data(Rows([w for w, _ in measured]), y, noise), start)

    def predict(self, work: Sequence[Work], rate_sd: Sequence[float] | None = None) -> list[Estimate]:
        """Per cent of the machine, user mode. `rate_sd`: standard deviation of each rate's logarithm, where predicted."""
        mean, sd = self.posterior.predict(Rows(work))
        found = []
        for i, _ in enumerate(work):
            pct = math.exp(float(mean[i]))
            of_rate = rate_sd[i] if rate_sd is not None else 0.0
            one = from_log(float(mean[i]), WIDEN * math.sqrt(float(sd[i]) ** 2 + NOISE**2 + of_rate**2), "% of the machine")
            # Rounding is of the printed figure, as much of a small one: it may well be printed as 0.
            low, high = (math.hypot(end - pct, Z80 * ROUNDING_PCT) for end in (one.p10, one.p90))
            found.append(capped(replace(one, p10=max(0.0, pct - low), p90=pct + high), 100.0))
        return found
