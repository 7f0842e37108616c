"""The search behind `tune`: climb to the peak, descend to cheaper settings, confirm, and compare with challengers.

It knows nothing of the engine: `measure` is handed in, and so is the clock. A probe is short and may
mislead; so probes only propose, and the choice is made from repeats that are interleaved, there and back,
which a drift of the machine leaves alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay.stats import Interval, mean_interval

# A step must gain this much to count; two steps without it end a walk.
GAIN = 1.02
PATIENCE = 2
# Probes within this share of the best one seen are worth a closer look.
NEAR = 0.94
CANDIDATES = 6
# Settings that are confirmed beside the choice at a time.
CHALLENGERS = 3
# Of each finalist.
ROUNDS = 8
# Two costs within this factor are the same; then the smaller buffers win.
SAME_COST = 1.03


class Setting(NamedTuple):
    """Setting that is tuned. `io_bytes` in bytes; `depth` per worker."""

    io_bytes: int
    workers: int
    depth: int

    @property
    def buffer_bytes(self) -> int:
        """Returns the buffers of all workers together: slots are whole pages of 4 KiB."""
        return -(-self.io_bytes // 4096) * 4096 * self.workers * self.depth


@dataclass(frozen=True)
class Probe:
    """One run: GiB/s, CPU-seconds per GiB and watts, None where not measured."""

    gib_s: float
    cpu_s_per_gib: float | None
    watts: float | None = None


@dataclass(frozen=True)
class Choice:
    """`share`: of the peak's throughput, with its 95 % interval where there were repeats enough."""

    pick: Setting
    peak: Setting
    share: Interval
    confirmed: bool


Axes = dict[str, list[int]]


class OutOfTime(Exception):
    """The time for this part of the search is used up."""


@dataclass
class Search:
    """`measure(setting, long)` runs one probe; None where the setting can't run. `elapsed` in seconds."""

    axes: Axes
    measure: Callable[[Setting, bool], Probe | None]
    elapsed: Callable[[], float]
    seconds: float
    allowed: Callable[[Setting], bool] = lambda setting: True
    share: float = 0.98
    probes: dict[Setting, list[Probe]] = field(default_factory=dict)
    # By round, so that a share is taken between runs of the same round.
    confirmed: dict[Setting, dict[int, Probe]] = field(default_factory=dict)
    rounds: int = 0
    # Part of every confirming round, so that each setting has a round in common with it.
    anchor: Setting | None = None
    stopped: str = "done"

    def run(self, start: Setting) -> None:
        """Every part within its share of the time. Ctrl-C passes through; what was measured stays."""
        parts = (
            (0.35, lambda: self._climb(start)),
            (0.48, self._descend),
            # Before the choice, so that a neighbour that turns out higher is among those it is made from.
            (0.56, self._complete),
            (0.78, self._confirm),
            (0.84, self._complete),
            (1.0, self._challenge),
            (1.0, self._complete_rounds),
        )
        for until, part in parts:
            self._until = until * self.seconds
            try:
                part()
            except OutOfTime:
                self.stopped = "time"

    def _probe(self, setting: Setting) -> float:
        """GiB/s of a setting, from its first probe if it has one; 0 where it can't run."""
        if setting not in self.probes:
            if not self.allowed(setting):
                return 0.0
            # The first probe runs whatever the clock says: without it there is nothing to choose.
            if self.probes and self.elapsed() > self._until:
                raise OutOfTime
            found = self.measure(setting, False)
            self.probes[setting] = [found] if found else []
        runs = self.probes[setting]
        return statistics.fmean(p.gib_s for p in runs) if runs else 0.0

    def _best(self) -> Setting:
        return max(self.probes, key=self._probe)

    def _climb(self, start: Setting) -> None:
        """Along one axis after the other, up, and down where up gains nothing, until no axis gains."""
        best = start
        self._probe(best)
        while True:
            before = best
            for axis in ("depth", "workers", "io_bytes"):
                climbed = self._walk(best, axis, 1)
                best = climbed if climbed != best else self._walk(best, axis, -1)
            if best == before:
                return

    def _walk(self, setting: Setting, axis: str, step: int) -> Setting:
        best, idle = setting, 0
        for further in self._along(setting, axis, step):
            if self._probe(further) > GAIN * self._probe(best):
                best, idle = further, 0
            else:
                idle += 1
            if idle == PATIENCE:
                break
        return best

    def _along(self, setting: Setting, axis: str, step: int) -> Iterator[Setting]:
        """The settings from here on along one axis, nearest first."""
        values = self.axes[axis]
        i = values.index(getattr(setting, axis)) + step
        while 0 <= i < len(values):
            yield setting._replace(**{axis: values[i]})
            i += step

    def _descend(self) -> None:
        """From the peak to what is cheaper: fewer workers, less depth, in either order; then other sizes."""
        peak = self._best()
        for order in (("workers", "depth"), ("depth", "workers")):
            here = peak
            for axis in order:
                here = self._shed(here, axis)
        for setting in self._candidates():
            for step in (1, -1):
                for other in self._along(setting, "io_bytes", step):
                    if self._probe(other) < NEAR * self._probe(self._best()):
                        break

    def _shed(self, setting: Setting, axis: str) -> Setting:
        """As far down an axis as throughput stays near the peak."""
        kept = setting
        for lower in self._along(setting, axis, -1):
            if self._probe(lower) < NEAR * self._probe(self._best()):
                break
            kept = lower
        return kept

    def _candidates(self) -> list[Setting]:
        """The cheapest settings near the peak, cheapest first, the peak always among them."""
        peak = self._best()
        near = [s for s in self.probes if self._probe(s) >= NEAR * self._probe(peak)]
        near.sort(key=lambda s: self._cost(s, self.probes[s]))
        kept = near[:CANDIDATES]
        return kept if peak in kept else [*kept[: CANDIDATES - 1], peak]

    @staticmethod
    def _cost(setting: Setting, runs: list[Probe]) -> tuple[float, int, int]:
        costs = [p.cpu_s_per_gib for p in runs if p.cpu_s_per_gib is not None]
        return (statistics.fmean(costs) if costs else math.inf, setting.buffer_bytes, setting.workers)

    def _confirm(self) -> None:
        """Longer runs in turn, there and back; after two rounds the worse half leaves. The peak stays."""
        field = self._candidates()
        peak = self.anchor = self._best()
        while True:
            for turn in (field, field[::-1]):
                self._round(turn)
            if len(field) <= 2:
                if self.rounds >= 10 or len(self.confirmed.get(peak, {})) >= 8:
                    return
                continue
            ranked = sorted((s for s in field if s != peak), key=self._rank)
            field = [*ranked[: max(1, len(field) // 2)], peak]

    def _round(self, turn: list[Setting]) -> None:
        """One run of each. A round that the clock or Ctrl-C cuts short doesn't count."""
        found: dict[Setting, Probe] = {}
        for setting in turn:
            if self.elapsed() > self._until:
                raise OutOfTime
            probe = self.measure(setting, True)
            if probe:
                found[setting] = probe
        self.rounds += 1
        for setting, probe in found.items():
            self.confirmed.setdefault(setting, {})[self.rounds] = probe

    def _rank(self, setting: Setting) -> tuple[bool, tuple[float, int, int]]:
        """Ranks settings: those that reach the share first, by cost."""
        runs = self.runs(setting)
        if not self.confirmed.get(setting):
            return (True, self._cost(setting, runs))
        reached = self.share_of(setting, self.anchor or self._best()).estimate >= self.share
        return (not reached, self._cost(setting, runs))

    def _challenge(self) -> None:
        """Runs settings beside the choice that were probed and never confirmed, and look better than it, until none does."""
        while self.anchor in self.confirmed and (challengers := self._challengers()):
            choice = self.choose()
            field = list(dict.fromkeys([choice.pick, *challengers, choice.peak, self.anchor]))
            for turn in (field, field[::-1], field, field[::-1]):
                self._round(turn)
            self._complete()

    def _complete_rounds(self) -> None:
        """The choice, the peak and the cheapest that just miss the share, there and back, until each has rounds enough:
        of many settings the highest is partly luck, and what is measured against it then falls short."""
        while self.anchor in self.confirmed:
            choice = self.choose()
            cost = self._cost(choice.pick, self.runs(choice.pick))
            missed = [s for s in self.confirmed if self.share_of(s, choice.peak).estimate >= NEAR]
            missed = [s for s in missed if self._cost(s, self.runs(s)) < cost]
            missed.sort(key=lambda s: self._cost(s, self.runs(s)))
            field = list(dict.fromkeys([choice.pick, *missed[:2], choice.peak, self.anchor]))
            if all(len(self.confirmed[s]) >= ROUNDS for s in field):
                return
            for turn in (field, field[::-1]):
                self._round(turn)

    def _challengers(self) -> list[Setting]:
        """The cheapest of those near the peak that are cheaper than the pick, or as cheap with smaller buffers; then
        of those above the peak."""
        choice = self.choose()
        peak = self.figures(choice.peak)
        assert peak is not None
        new = [s for s in self.probes if s not in self.confirmed and self.runs(s)]
        new.sort(key=lambda s: self._cost(s, self.probes[s]))
        least = self._cost(choice.pick, self.runs(choice.pick))[0]

        def is_cheaper(setting: Setting) -> bool:
            cost = self._cost(setting, self.probes[setting])[0]
            smaller = setting.buffer_bytes < choice.pick.buffer_bytes
            return cost < least / SAME_COST or (smaller and cost <= least * SAME_COST)

        cheaper = [s for s in new if is_cheaper(s) and self._probe(s) >= NEAR * peak.gib_s]
        higher = [s for s in new if self._probe(s) > GAIN * peak.gib_s]
        return list(dict.fromkeys([*cheaper, *higher]))[:CHALLENGERS]

    def _complete(self) -> None:
        """The curve through the pick: its neighbours along each axis that no probe has met yet."""
        pick = self.choose().pick
        for distance in (1, 2, 3):
            for axis in self.axes:
                for step in (1, -1):
                    along = list(self._along(pick, axis, step))
                    if len(along) >= distance:
                        self._probe(along[distance - 1])

    def share_of(self, setting: Setting, peak: Setting) -> Interval:
        """Throughput of `setting` ÷ that of `peak`, round by round where both were confirmed."""
        ours, theirs = self.confirmed.get(setting, {}), self.confirmed.get(peak, {})
        rounds = sorted(ours.keys() & theirs.keys())
        if setting == peak:
            return Interval(1.0, 1.0, 1.0, len(rounds))
        if not rounds:
            return Interval(self._probe(setting) / (self._probe(peak) or math.inf), None, None, 1)
        logs = [math.log(ours[r].gib_s / theirs[r].gib_s) for r in rounds]
        found = mean_interval(logs)
        if found.low is None or found.high is None:
            return Interval(math.exp(found.estimate), None, None, 1)
        return Interval(math.exp(found.estimate), math.exp(found.low), math.exp(found.high), found.n)

    def choose(self) -> Choice:
        """The cheapest setting that reaches the share of the peak. Raises ValueError where nothing ran."""
        pool = {s: self.runs(s) for s in self.confirmed or self.probes if self.runs(s)}
        if not pool:
            raise ValueError("nothing was measured")
        rate = {s: statistics.fmean(p.gib_s for p in runs) for s, runs in pool.items()}
        known = self.anchor if self.anchor in pool else self._best()
        peak = known if known in pool else max(rate, key=rate.__getitem__)
        shares = {s: self.share_of(s, peak) for s in pool}
        # The probes' favourite may not be the peak once measured again.
        peak = max(pool, key=lambda s: shares[s].estimate)
        shares = {s: self.share_of(s, peak) for s in pool}
        reached = [s for s in pool if shares[s].estimate >= self.share]
        least = min(self._cost(s, pool[s])[0] for s in reached)
        alike = [s for s in reached if self._cost(s, pool[s])[0] <= least * SAME_COST]
        pick = min(alike, key=lambda s: (s.buffer_bytes, s.workers, self._cost(s, pool[s])))
        return Choice(pick, peak, shares[pick], bool(self.confirmed))

    def unconfirmed_higher(self, peak: Setting) -> Setting | None:
        """The best setting that there was no time to confirm, where its probe was clearly above the peak."""
        others = [s for s in self.probes if s not in self.confirmed and self.runs(s)]
        best = max(others, key=self._probe, default=None)
        found = self.figures(peak)
        return best if best is not None and found and self._probe(best) > 1.03 * found.gib_s else None

    def runs(self, setting: Setting) -> list[Probe]:
        """The confirming runs of a setting where there are any, else its probes."""
        return list(self.confirmed.get(setting, {}).values()) or self.probes.get(setting) or []

    def probed_gib_s(self, setting: Setting) -> float:
        """GiB/s of a setting as its probes have it; of its confirming runs where it wasn't probed."""
        runs = self.probes.get(setting) or self.runs(setting)
        return statistics.fmean(p.gib_s for p in runs)

    def figures(self, setting: Setting, beside: Setting | None = None) -> Probe | None:
        """The mean of a setting's runs; with `beside`, of the rounds that it shares with that one."""
        runs = self.runs(setting)
        rounds = self.confirmed.get(setting, {})
        shared = [rounds[r] for r in rounds.keys() & self.confirmed.get(beside or setting, {}).keys()]
        runs = shared or runs
        if not runs:
            return None
        cpu = [p.cpu_s_per_gib for p in runs if p.cpu_s_per_gib is not None]
        watts = [p.watts for p in runs if p.watts is not None]
        return Probe(
            statistics.fmean(p.gib_s for p in runs),
            statistics.fmean(cpu) if cpu else None,
            statistics.fmean(watts) if watts else None,
        )

    def curve(self, axis: str, through: Setting) -> list[Setting]:
        """The measured settings that differ from `through` in one field only, in order."""
        settings = (through._replace(**{axis: v}) for v in self.axes[axis])
        return [s for s in settings if self.runs(s)]
