"""The user's own runs: the rate at which drives deliver in them outranks every table and data sheet, for every figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forebay.plan.estimate import Estimate, from_log
from forebay.plan.frozen import replace

if TYPE_CHECKING:
    from forebay.plan.calibrate import Found
    from forebay.plan.flow import Flow

# Of the runs, the fastest so many are asked: the others read with fewer requests, or smaller ones.
ASKED = 8
# Settings that the law puts so near to the fastest differ by chance.
NEAR = 0.93


class Own:
    """Runs of one machine on drives of one kind (`drive`), and the law of throughput that is fitted to them."""

    def __init__(self, drive: str, runs: Sequence[Found], flow: Flow) -> None:
        self.drive, self.runs, self._flow = drive, tuple(runs), flow
        ordered = sorted(self.runs, key=lambda r: -r.measured.gibps / r.measured.load.drives)
        self._fastest = list(dict.fromkeys(r.measured.load for r in ordered))[:ASKED]
        self._made: dict[tuple[float, bool, float | None], Estimate] = {}

    def is_for(self, drive: str) -> bool:
        return drive.lower() == self.drive.lower()

    def delivers(self, drives: float, remote: bool = False, queues: float | None = None) -> Estimate:
        """GiB/s of so many drives, each with as many requests as in the runs: the best of their settings, as the law has it
        that is fitted to all of them, and no more than the fastest runs on average."""
        key = (drives, remote, queues)
        if key not in self._made:
            best = self._at(drives, remote, queues) if remote else self._local(drives)
            most = self._plateau(remote) * drives
            self._made[key] = replace(best, value=min(best.value, most), p10=min(best.p10, most), p90=min(best.p90, most))
        return self._made[key]

    def _plateau(self, remote: bool) -> float:
        """GiB/s a drive: the mean of the runs whose settings the law says to be as fast as any, which differ by chance, less
        its standard error: one accelerator too many fails."""
        here = [r.measured for r in self.runs if r.measured.load.remote == remote]
        if not here:
            return math.inf
        foretold = [e.value / m.load.drives for e, m in zip(self._flow.alone([m.load for m in here]), here, strict=True)]
        near = [m.gibps / m.load.drives for e, m in zip(foretold, here, strict=True) if e >= NEAR * max(foretold)]
        error = statistics.stdev(near) / math.sqrt(len(near)) if len(near) > 1 else 0.0
        return statistics.fmean(near) - error

    def _local(self, drives: float) -> Estimate:
        """By the law, k drives with k times the requests are k times as fast, each doubling a little less surely."""
        from forebay.plan.flow import STRIPE

        one = self._at(1.0, False, None)
        known = {r.measured.load.drives for r in self.runs}
        sd = STRIPE * min(abs(math.log2(drives / n)) for n in known)
        return from_log(math.log(one.value * drives), math.hypot(one.log_sd, sd), "GiB/s", bottleneck=one.bottleneck)

    def _at(self, drives: float, remote: bool, queues: float | None) -> Estimate:
        loads = [
            replace(
                load, drives=drives, workers=load.workers * drives / load.drives, remote=remote,
                queues=(queues or load.queues) if remote else None,
            )
            for load in self._fastest
        ]  # fmt: skip
        return max(self._flow.predict(loads), key=lambda e: e.value)

    def said(self, figures: Sequence[str]) -> dict[str, Any]:
        """Returns what an answer tells of them: `figures` are those that rest on them."""
        hosts = sorted({r.host for r in self.runs if r.host})
        rates = [r.measured.gibps / r.measured.load.drives for r in self.runs]
        return {
            "drive": self.drive,
            "runs": len(self.runs),
            "simulated": sum(r.simulated for r in self.runs),
            "host": hosts[0] if hosts else None,
            "gib_s_least": min(rates),
            "gib_s_most": max(rates),
            "figures": list(figures),
        }
