"""Processor cores of a path, in user mode and in the kernel: a cost per request and a cost per MiB of each.

No published figure has the kernel's part, so without runs of one's own it is a guess within a factor of three, and says
so. Records of `bench` and `sweep` hold both parts, and calibrate them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.paths import GDS
from forebay.plan.cpu import PATHS, Work
from forebay.plan.estimate import Estimate, from_log
from forebay.plan.fit import Data, Posterior, Prior, fit, many

if TYPE_CHECKING:
    from forebay.plan.fit import Array

USER, SYSTEM, BOTH = 0, 1, 2
NOISE = 0.08
GUESS = 1.0
TABLE = "published user time of a 72-core machine"
ANY = "usual of Linux; no published figure has kernel time"


def _priors() -> tuple[Prior, ...]:
    found = []
    for path, request, mib, kernel_request, kernel_mib in ((GDS, 1.8, 0.5, 3.0, 5.0), ("cpu", 11.0, 7.0, 6.0, 20.0)):
        found += [
            Prior(f"user_core_request[{path}]", request, 0.7, "core-us per request", "prior", TABLE),
            Prior(f"user_core_mib[{path}]", mib, 0.7, "core-us per MiB", "prior", TABLE),
            Prior(f"system_core_request[{path}]", kernel_request, GUESS, "core-us per request", "prior", ANY),
            Prior(f"system_core_mib[{path}]", kernel_mib, GUESS, "core-us per MiB", "prior", ANY),
        ]
    return tuple(found)


PRIORS = _priors()
PER_PATH = 4


@dataclass(frozen=True)
class Spent:
    """A run's work with the cores that it kept busy, in user mode and in the kernel. None: not measured."""

    work: Work
    user: float | None
    system: float | None


class Rows:
    """One row per work and part: USER, SYSTEM, or BOTH."""

    def __init__(self, work: Sequence[Work], part: Sequence[int]) -> None:
        import numpy as np

        self.path = np.array([PATHS.index(w.path) for w in work], dtype=int)
        self.mib = np.array([w.gibps * 1024 for w in work], dtype=float)
        self.requests = self.mib * 1024 / np.array([w.io_kib for w in work], dtype=float)
        self.part = np.array(part, dtype=int)


@many
def law(log: Array, rows: Rows) -> Array:
    """Log of cores busy."""
    import numpy as np

    of_paths = np.exp(log).reshape(*log.shape[:-1], -1, PER_PATH)[..., rows.path, :]
    user_request, user_mib, request, mib = np.moveaxis(of_paths, -1, 0)
    user = user_request * rows.requests + user_mib * rows.mib
    kernel = request * rows.requests + mib * rows.mib
    return np.log(np.choose(rows.part, [user, kernel, user + kernel]) / 1e6)


class Cores:
    """Calibrated by runs of one machine; without any, the priors alone."""

    def __init__(self, spent: Sequence[Spent] = ()) -> None:
        import numpy as np

        cells = [
            (s.work, part, value)
            for s in spent
            for part, value in ((USER, s.user), (SYSTEM, s.system))
            if value is not None and value > 0
        ]
        self.measured = {w.path for w, _, _ in cells}
        self._log_sd: dict[tuple[str, float], float] = {}
        rows = Rows([w for w, _, _ in cells], [p for _, p, _ in cells])
        y = np.log([v for _, _, v in cells])
        self.posterior: Posterior = fit(law, PRIORS, Data(rows, y, np.full(len(cells), NOISE)))

    def predict(self, work: Work, rate_sd: float = 0.0) -> dict[str, Estimate]:
        """Cores busy in user mode, in the kernel, and both. `rate_sd`: of the rate's logarithm, where it is predicted."""
        mean, sd = self.posterior.predict(Rows([work] * 3, [USER, SYSTEM, BOTH]))
        note = "" if work.path in self.measured else f"cores of the {work.path} path are a guess; calibrate with --runs"
        found = {}
        for i, name in enumerate(("cpu_user_cores", "cpu_system_cores", "cpu_cores")):
            spread = math.sqrt(float(sd[i]) ** 2 + NOISE**2 + rate_sd**2)
            found[name] = from_log(float(mean[i]), spread, "cores", note=note if i == BOTH else "")
        return found

    def log_sd(self, path: str, io_kib: float) -> float:
        """Returns the spread of the logarithm of the cores that a rate takes, and so of the rate that cores allow."""
        if (path, io_kib) not in self._log_sd:
            self._log_sd[path, io_kib] = float(self.posterior.predict(Rows([Work(path, io_kib, 1.0)], [BOTH]))[1][0])
        return self._log_sd[path, io_kib]

    def most_gibps(self, path: str, io_kib: float, cores: float) -> float:
        """GiB/s at which so many cores are busy with nothing but I/O."""
        value = self.posterior.value
        request, mib = (value(f"user_core_{x}[{path}]") + value(f"system_core_{x}[{path}]") for x in ("request", "mib"))
        return cores * 1e6 / (request * 1024 / io_kib * 1024 + mib * 1024)
