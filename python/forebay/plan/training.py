"""Emulated accelerators: accelerator utilisation (AU) at a given number, and the greatest number that passes.

AU is a smooth minimum of two shares: 1 / (1 + o + j·N), what the benchmark and its barriers leave of the time, and
supply ÷ demand. A host also runs out of room for reader processes, whatever the bytes: so many per hardware thread, of
which an accelerator takes what its workload's readers need. Supply is the drives' specification times an efficiency of the
workload's reads, and more where part of the data set stays in the page cache. It is less where files are small and
readers few: a reader is at one file, and a small file lies on one drive or two, so that some drives have nothing to do.
Of k drives that n readers ask at random, n ÷ (n + k − 1) are busy (a closed network of equal servers). Where a user's own
runs say what the drives deliver, that is the supply. Several hosts share accelerators, readers and barriers evenly.

What passed in a published run passes on any system that has no less of anything, and more drives never carry fewer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from forebay.plan import catalogue
from forebay.plan.estimate import FAR_SD, Z80, Estimate, bottleneck, capped, far, from_logit
from forebay.plan.fit import Data, Posterior, Prior, fit, many
from forebay.plan.frozen import replace

if TYPE_CHECKING:
    from forebay.plan.fit import Array

WORKLOADS = ("resnet50", "unet3d", "cosmoflow")
# Whatever else is asked for: no run of it was measured, so what is usual of the others stands in, and is unsure.
OTHER = "other"
KINDS = (*WORKLOADS, OTHER)
# MiB/s of one accelerator that never waits: MLPerf Storage v1.0, by accelerator.
DEMAND_MIBPS = {
    ("unet3d", "h100"): 3029.92,
    ("unet3d", "a100"): 1538.78,
    ("resnet50", "h100"): 195.26,
    ("resnet50", "a100"): 100.55,
    ("cosmoflow", "h100"): 770.70,
    ("cosmoflow", "a100"): 489.56,
}
# The rules ask for a data set of so many times the memory.
RULE_OF_FIVE = 5.0
# Files of less lie on a drive or two of a RAID0; of larger ones a reader has all drives at work, by reading ahead.
SMALL_FILE = 16 << 20
# Readers of one accelerator, where their files are that small: MLPerf Storage v1.0.
READERS = {"cosmoflow": 4.0}
# Time that accelerators stand still is a sum of many waits, whose variance grows as their number: an AU is unsure by so
# much of itself, times the square root of what is missing of 1 (1.4 points at 90 %, 0.5 at 99 %).
NOISE_IDLE = 0.05
IDLE_LEAST = 0.002
HARNESS, READERS_OF_HOST, STORAGE, COMPUTE = "benchmark overhead", "reader processes", "storage", "compute"
# Noise of a greatest number, besides its being whole.
NOISE_COUNT = 0.05
# Efficiency of a workload's reads differs between drives by so much.
NOISE_SUPPLY = 0.03
SHARP = 16.0
# Numbers of drives up to which an answer is compared with those of fewer.
DRIVES_MOST = 1024
ENDS = ("value", "p10", "p90")
# The overhead of a job that the benchmark's client doesn't run.
NEXT_TO_NONE = 1e-9
# An AU that doesn't pass where the law alone would let it is this share of what it must be.
SHORT = 0.999
NEWTON_STEPS, NEWTON_DONE = 8, 1e-12


@dataclass(frozen=True)
class Ask:
    """Demand of one accelerator that never waits, in MiB/s, and the AU that it must reach, in per cent.

    `benchmark`: whether MLPerf Storage's client runs it, whose steps have an overhead and whose readers are processes that a
    host can run out of. `readers`: how many it has at small files, each at one; infinitely many where files are large.
    """

    mibps: float
    least_pct: float
    benchmark: bool = True
    readers: float = math.inf


@cache
def pass_pct(workload: str) -> float | None:
    """The AU that an accelerator must reach by the rules of MLPerf Storage v1.0, as `emulate` has it; None for what it hasn't."""
    from forebay.emulate import workloads

    return workloads.load(workload, rules="v1.0", accelerator="h100")[0].au_pct_min if workload in WORKLOADS else None


def must_reach_pct(workload: str) -> float:
    """As `pass_pct`, of one of `WORKLOADS`."""
    least = pass_pct(workload)
    assert least is not None, workload
    return least


def usual_ask(workload: str, accelerator: str) -> Ask:
    """By the rules of MLPerf Storage v1.0."""
    return Ask(DEMAND_MIBPS[workload, accelerator], must_reach_pct(workload), readers=READERS.get(workload, math.inf))


@dataclass(frozen=True)
class Setup:
    """Hosts with drives. `accelerators`, of all hosts, may be None where the greatest number is asked for.

    `memory_gib` and `dataset_gib` decide what the page cache gives; `threads` of each host how many processes fit.
    `supply_cap_mibps`: what lies between drives and host lets through, whose name is `supply_cap_name`, and whose
    logarithm is unsure by `supply_cap_sd`.
    `ask`: of a workload that isn't one of WORKLOADS. `own_mibps`: what the user's own runs say that all the drives deliver,
    its logarithm unsure by `own_sd`.
    """

    workload: str
    drive: str
    drives: float
    accelerators: float | None
    dataset_gib: float
    memory_gib: float = 2048.0
    threads: float = 208.0
    accelerator: str = "h100"
    supply_cap_mibps: float | None = None
    supply_cap_name: str = "link"
    supply_cap_sd: float = 0.0
    ask: Ask | None = None
    hosts: float = 1.0
    own_mibps: float | None = None
    own_sd: float = 0.0

    @property
    def asks(self) -> Ask:
        if self.ask is not None:
            return self.ask
        return usual_ask(self.workload, self.accelerator)

    @property
    def kind(self) -> str:
        return self.workload if self.workload in WORKLOADS else OTHER


@dataclass(frozen=True)
class Run:
    """A measured set-up: mean AU in per cent, and whether the number of accelerators was the greatest that passed."""

    setup: Setup
    au_pct: float
    greatest: bool


class Rows:
    """Columns of set-ups. `count` rows predict the greatest number, the others AU at `number`."""

    def __init__(
        self, setups: Sequence[Setup], count: Sequence[bool], drives: Sequence[str], more: Sequence[catalogue.Drive] = ()
    ) -> None:
        import numpy as np

        index = {name: i for i, name in enumerate(drives)}
        # One past the last: a drive that no run is of.
        self.drive = np.array([index.get(s.drive.lower(), len(drives)) for s in setups], dtype=int)
        self.workload = np.array([KINDS.index(s.kind) for s in setups], dtype=int)
        self.count = np.array(count, dtype=bool)
        self.number = np.array([s.accelerators or 1.0 for s in setups], dtype=float)
        asks = [s.asks for s in setups]
        self.demand = np.array([a.mibps for a in asks])
        self.least = np.array([a.least_pct / 100 for a in asks])
        sheets = [catalogue.drive(s.drive, more).seq_read_mbps for s in setups]
        self.spec = np.array([m * s.drives * 1e6 / 2**20 for m, s in zip(sheets, setups, strict=True)])
        # Accelerators whose readers would make up for the drives that others leave without work.
        self.idle = np.array([max(0.0, s.drives - 1) / a.readers for s, a in zip(setups, asks, strict=True)])
        self.cached = np.array([cached_share(s) for s in setups])
        self.hosts = np.array([s.hosts for s in setups], dtype=float)
        self.benchmark = np.array([a.benchmark for a in asks], dtype=bool)
        self.threads = np.where(self.benchmark, np.array([s.threads * s.hosts for s in setups], dtype=float), math.inf)
        # 0: the data sheet says what the drives deliver.
        self.own = np.array([s.own_mibps or 0.0 for s in setups], dtype=float)
        self.cap = np.array([s.supply_cap_mibps or math.inf for s in setups])
        self.cap_most = self.cap * np.exp(Z80 * np.array([s.supply_cap_sd for s in setups]))


def cached_share(setup: Setup) -> float:
    """Returns the share of the data set that memory could hold at most."""
    return min(0.9, setup.memory_gib / setup.dataset_gib)


# Of what nothing was measured: the middle of those that were, as far apart as they are.
UNSEEN = "no run of this workload was measured: the values of the others, with their spread"
PRIORS = (
    *(
        Prior(f"overhead[{w}]", o, 0.3, "", "prior", "o of AU = 1/(1 + o + j N): single accelerators of other submitters")
        for w, o in (("resnet50", 0.006), ("unet3d", 0.012), ("cosmoflow", 0.24))
    ),
    Prior("overhead[other]", 0.015, 0.8, "", "prior", UNSEEN),
    *(
        Prior(f"barrier[{w}]", j, 0.6, "", "prior", "j of AU = 1/(1 + o + j N): results of other submitters")
        for w, j in (("resnet50", 0.0009), ("unet3d", 0.002), ("cosmoflow", 0.005))
    ),
    Prior("barrier[other]", 0.001, 0.8, "", "prior", UNSEEN),
    *(
        Prior(f"read_efficiency[{w}]", 0.95, 0.1, "", "prior", "share of the drives' specification that its reads reach")
        for w in WORKLOADS
    ),
    Prior("read_efficiency[other]", 0.9, 0.15, "", "prior", UNSEEN),
    *(
        Prior(f"slots[{w}]", s, 0.7, "1/thread", "prior", "accelerators per hardware thread: results of other submitters")
        for w, s in (("resnet50", 0.6), ("unet3d", 0.08), ("cosmoflow", 0.15))
    ),
    Prior("slots[other]", 0.15, 1.0, "1/thread", "prior", UNSEEN),
    Prior("cache_use", 0.4, 0.5, "", "prior", "share of what memory could hold that an epoch in random order finds there"),
)
CACHE_USE = len(PRIORS) - 1


# Drives of the published tables read within 1 % of their sheets, and of others nothing is known.
GAIN_SPREAD = 0.05
NO_RUNS = "a drive without runs"


def gain_prior(drive: str) -> Prior:
    return Prior(f"gain[{drive}]", 1.0, GAIN_SPREAD, "", "prior", "this drive's real rate over its specification")


def _bounds(log: Array, rows: Rows, number: Array | None = None) -> dict[str, Array]:
    """Returns the bounds of each row at `number` accelerators, or at its own. `full`: drives that all have work."""
    import numpy as np

    number = rows.number if number is None else number
    value = np.exp(log)
    of_kinds = value[..., :CACHE_USE].reshape(*log.shape[:-1], 4, len(KINDS))[..., rows.workload]
    overhead, barrier, efficiency, slots = np.moveaxis(of_kinds, -2, 0)
    overhead, barrier = (np.where(rows.benchmark, share, NEXT_TO_NONE) for share in (overhead, barrier / rows.hosts))
    hit = np.minimum(0.95, value[..., CACHE_USE, None] * rows.cached)
    gain = value[..., len(PRIORS) :][..., rows.drive]
    full = np.where(rows.own > 0, rows.own, rows.spec * gain * efficiency / (1 - hit))
    drives = full * number / (number + rows.idle)
    supply = np.minimum(drives, rows.cap)
    return {
        "overhead": overhead, "barrier": barrier, "full": full, "drives": drives, "supply": supply, "slots": slots * rows.threads
    }  # fmt: skip


def _smooth_least(one: Array, other: Array) -> Array:
    import numpy as np

    least = np.minimum(one, other)
    return least * ((one / least) ** -SHARP + (other / least) ** -SHARP) ** (-1 / SHARP)


@many
def law(log: Array, rows: Rows) -> Array:
    """log(1/AU - 1) negated (the logit of AU), or the log of the greatest number, row by row."""
    import numpy as np

    b = _bounds(log, rows)
    if rows.count.all():
        return _log_greatest(b, rows)
    harness = 1 / (1 + b["overhead"] + b["barrier"] * rows.number)
    au = np.minimum(_smooth_least(harness, b["supply"] / (rows.number * rows.demand)), 1 - 1e-9)
    logit = np.log(au / (1 - au))
    return np.where(rows.count, _log_greatest(b, rows), logit) if rows.count.any() else logit


def _log_greatest(b: dict[str, Array], rows: Rows) -> Array:
    """Log of the N at which AU falls to what it must be, or for which there are reader processes, the smaller (smoothly).

    Newton's method in log N. Both shares fall with N, so log AU does, and its slope is known.
    """
    import numpy as np

    counts = _counts(b, rows)
    log_n = np.log(np.minimum(counts[HARNESS], counts[STORAGE]))
    for _ in range(NEWTON_STEPS):
        n = np.exp(log_n)
        harness = 1 / (1 + b["overhead"] + b["barrier"] * n)
        of_drives, of_way = b["full"] / (n + rows.idle), rows.cap / n
        feed = np.minimum(of_drives, of_way) / rows.demand
        falls = np.where(of_drives < of_way, n / (n + rows.idle), 1.0)
        least = np.minimum(harness, feed)
        weights = [(least / share) ** SHARP for share in (harness, feed)]
        of_feed = weights[1] / (weights[0] + weights[1])
        log_au = np.log(least) - np.log(weights[0] + weights[1]) / SHARP
        slope = of_feed * falls + (1 - of_feed) * b["barrier"] * n * harness
        step = np.clip((log_au - np.log(rows.least)) / np.maximum(slope, 1e-3), -2.0, 0.5)
        log_n = log_n + step
        if float(np.abs(step).max()) < NEWTON_DONE:
            break
    return np.log(_smooth_least(np.exp(log_n), counts[READERS_OF_HOST]))


def _counts(b: dict[str, Array], rows: Rows) -> dict[str, Array]:
    """The greatest number that each bound allows; never quite 0, for its logarithm."""
    import numpy as np

    harness = np.maximum((1 / rows.least - 1 - b["overhead"]) / b["barrier"], 0.1)
    of_drives = np.maximum(b["full"] / (rows.demand * rows.least) - rows.idle, 1e-3)
    return {
        HARNESS: harness,
        STORAGE: np.minimum(of_drives, rows.cap / (rows.demand * rows.least)),
        READERS_OF_HOST: b["slots"],
    }


def outside(setup: Setup) -> list[str]:
    """Returns what lies more than ten times outside of what the law was calibrated on."""
    return far([("drives", setup.drives, 1.0, 8.0), ("accelerators", setup.accelerators or 1.0, 1.0, 112.0)])


def _far_sd(setup: Setup, low: bool) -> float:
    """Spread of what lies far outside. More drives than any run had don't pull down the lower end: some may stay unused."""
    return FAR_SD * len(outside(replace(setup, drives=min(setup.drives, 1.0)) if low else setup))


class Training:
    """Calibrated by runs on systems of drives from the catalogue."""

    def __init__(
        self, runs: Sequence[Run], more: Sequence[catalogue.Drive] = (), start: Mapping[str, float] | None = None
    ) -> None:
        import numpy as np

        self.more = list(more)
        setups, count, y, noise = [], [], [], []
        for run in runs:
            share = min(max(run.au_pct / 100, 1e-3), 1 - 1e-3)
            setups.append(run.setup)
            count.append(False)
            y.append(math.log(share / (1 - share)))
            noise.append(math.hypot(_noise(share), NOISE_SUPPLY / max(1 - share, 0.02) if share < 0.6 else 0.0))
            if run.greatest:
                number = run.setup.accelerators or 1.0
                setups.append(run.setup)
                count.append(True)
                # A whole number stands for anything up to the next.
                y.append(math.log(number + 0.5))
                noise.append(math.hypot(NOISE_COUNT, math.sqrt(1 / 12) / (number + 0.5)))
        self.passed = [run for run in runs if run.au_pct >= run.setup.asks.least_pct]
        self.drives = list(dict.fromkeys(run.setup.drive.lower() for run in runs))
        rows = Rows(setups, count, self.drives, more)
        priors = [*PRIORS, *(gain_prior(d) for d in [*self.drives, NO_RUNS])]
        self.posterior: Posterior = fit(law, priors, Data(rows, np.array(y), np.array(noise)), start)
        every = self.posterior.width()
        self.width = {counts: self.posterior.width(rows.count == counts, every) for counts in (False, True)}

    def with_drives(self, more: Sequence[catalogue.Drive]) -> Training:
        """The same, that finds these drives too: they had no part in calibrating it."""
        made = copy.copy(self)
        made.more = list(more)
        return made

    def au(self, setups: Sequence[Setup]) -> list[Estimate]:
        """Mean AU in per cent of each set-up at its number of accelerators."""

        rows = Rows(setups, [False] * len(setups), self.drives, self.more)
        mean, below, above = self.posterior.spreads(rows)
        b = _bounds(self.posterior.log, rows)
        slots_sd = self._slots_sd(rows)
        found = []
        for i, setup in enumerate(setups):
            harness = 1 / float(1 + b["overhead"][i] + b["barrier"][i] * rows.number[i])
            feed = float(b["supply"][i] / (rows.number[i] * rows.demand[i]))
            share = 1 / (1 + math.exp(-float(mean[i])))
            whose = HARNESS if setup.asks.benchmark else COMPUTE
            stations = {whose: min(1.0, share / harness), _supplier(b, rows, setup, i): min(1.0, share / feed)}
            # Where storage limits, AU is as unsure as supply; in the link that is 1 ÷ (1 - AU) as much.
            of_supply = _supply_sd(b, rows, setup, i) / max(1 - share, 0.05) * (min(1.0, share / feed) ** SHARP)
            low, high = (
                math.hypot(self.width[False] * math.hypot(float(sd[i]), _noise(share), of_supply), _far_sd(setup, least))
                for sd, least in ((below, True), (above, False))
            )
            one = from_logit(float(mean[i]), high, "%", bottleneck=bottleneck(stations), stations=stations)
            one = replace(one, p10=from_logit(float(mean[i]), low, "%").p10)
            full = float(rows.cap_most[i] / (rows.number[i] * rows.demand[i]))
            found.append(_crowded(capped(one, 100 * full), setup, float(b["slots"][i]), float(slots_sd[i])))
        return found

    def _slots_sd(self, rows: Rows) -> Array:
        """Returns the spread of the logarithm of the number for which each row has reader processes."""
        import numpy as np

        cov = np.diag(self.posterior.cov)[:CACHE_USE].reshape(4, len(KINDS))[3][rows.workload]
        return np.sqrt(np.maximum(cov, 0.0) + NOISE_COUNT**2)

    def law(self, setups: Sequence[Setup]) -> list[float]:
        """The greatest number by the law alone, before it is made whole: for how it changes."""
        import numpy as np

        rows = Rows(setups, [True] * len(setups), self.drives, self.more)
        return [float(v) for v in np.exp(law(self.posterior.log, rows))]

    def greatest(self, setups: Sequence[Setup]) -> list[Estimate]:
        """The greatest number of accelerators that passes, a whole number; 0 where not even one does.

        Neither it nor its ends are below those of fewer drives, or below what passed on less in a published run.
        """
        asked = [replace(setup, accelerators=None) for setup in setups]
        ways = {setup: _up_to(setup) for setup in dict.fromkeys(asked)}
        every = list(dict.fromkeys(fewer for way in ways.values() for fewer in way))
        single = dict(zip(every, self._greatest(every), strict=True))
        found = {}
        for setup, way in ways.items():
            of_fewer = [single[fewer] for fewer in way]
            value, low, high = (max(getattr(e, end) for e in of_fewer) for end in ENDS)
            found[setup] = self._at_least_measured(setup, replace(of_fewer[-1], value=value, p10=low, p90=high))
        return [found[setup] for setup in asked]

    def _at_least_measured(self, setup: Setup, estimate: Estimate) -> Estimate:
        """Raised to what passed in a run on no more than this."""
        best = max((run for run in self.passed if self._no_less(setup, run.setup)), key=_number, default=None)
        if best is None or _number(best) <= estimate.p10:
            return estimate
        number, low = _number(best), max(estimate.p10, _held(best))
        reported = f"{number:g} passed in a published run, on {best.setup.drives:g} × {best.setup.drive}"
        return replace(estimate, value=max(estimate.value, number), p10=low, p90=max(estimate.p90, number), note=reported)

    def _no_less(self, setup: Setup, seen: Setup) -> bool:
        """Returns whether a set-up has at least as much of everything as the one of a run, which asked as much of it."""
        number = seen.accelerators or 1.0
        asked, known = setup.asks, seen.asks
        if setup.workload != seen.workload or setup.own_mibps or (asked.mibps, asked.least_pct) != (known.mibps, known.least_pct):
            return False
        each, each_seen = (catalogue.drive(s.drive, self.more).seq_read_mbps for s in (setup, seen))
        idle, idle_seen = (max(0.0, s.drives - 1) / known.readers for s in (setup, seen))
        # Whatever memory gave to the run and doesn't give here, the drives must.
        missing = (1 - cached_share(setup)) / (1 - cached_share(seen))
        enough = each * setup.drives / (number + idle) >= each_seen * seen.drives / (number + idle_seen) * max(1.0, missing)
        same = setup.drive.lower() == seen.drive.lower()
        return (
            enough and (same or each >= each_seen) and setup.threads * setup.hosts >= seen.threads
            and (setup.supply_cap_mibps or math.inf) * math.exp(-Z80 * setup.supply_cap_sd) >= number * known.mibps
        )  # fmt: skip

    def _greatest(self, setups: Sequence[Setup]) -> list[Estimate]:
        """As `greatest`, each set-up by its own law."""
        import numpy as np

        rows = Rows(setups, [True] * len(setups), self.drives, self.more)
        mean, *sides = self.posterior.spreads(rows)
        b = _bounds(self.posterior.log, rows, np.exp(mean))
        counts = _counts(b, rows)
        found = []
        for i, setup in enumerate(setups):
            middle = float(mean[i])
            by_way = float(rows.cap[i]) < float(b["drives"][i])
            supply_sd = setup.supply_cap_sd if by_way else setup.own_sd if setup.own_mibps else 0.0
            of_way = supply_sd * min(1.0, math.exp(middle) / float(counts[STORAGE][i])) ** SHARP
            below, above = (
                math.hypot(self.width[True] * math.hypot(float(sd[i]), NOISE_COUNT), _far_sd(setup, low))
                for sd, low in zip(sides, (True, False), strict=True)
            )
            names = {STORAGE: _supplier(b, rows, setup, i)}
            allowed = {names.get(name, name): float(v[i]) for name, v in counts.items()}
            stations = {
                name: min(1.0, math.exp(middle) / v)
                for name, v in allowed.items()
                if math.isfinite(v) and (setup.asks.benchmark or name != HARNESS)
            }
            most = float(rows.cap_most[i] / (rows.demand[i] * rows.least[i]))
            value, low, high = (
                float(math.floor(min(math.exp(middle + k * Z80), most))) for k in (0.0, -below, math.hypot(above, of_way))
            )
            # However many the drives would feed: the way there may let as few through as at its own lower end.
            by_cap = float(rows.cap[i] / (rows.demand[i] * rows.least[i])) * math.exp(-Z80 * setup.supply_cap_sd)
            low = min(low, float(math.floor(by_cap))) if math.isfinite(by_cap) else low
            if setup.own_mibps:
                low = min(low, float(math.floor(math.exp(middle - math.hypot(below, of_way) * Z80))))
            found.append(
                Estimate(value, low, high, "accelerators", bottleneck(stations), stations)
            )
        return found


def _up_to(setup: Setup) -> list[Setup]:
    """The set-up, and the same on each whole number of drives below, as far as plans go; own runs scale with the drives."""
    most, own = min(math.ceil(setup.drives) - 1, DRIVES_MOST), (setup.own_mibps or 0.0) / setup.drives
    return [*(replace(setup, drives=float(n), own_mibps=own * n or None) for n in range(1, most + 1)), setup]


def _number(run: Run) -> float:
    return run.setup.accelerators or 1.0


def _held(run: Run) -> float:
    """Accelerators that pass again on what has no less of anything than a run that passed: as many but for the noise of a
    greatest number (published: 112 on four drives, 111 on eight that are each twice as fast)."""
    return float(math.ceil(_number(run) * math.exp(-Z80 * NOISE_COUNT)))


def needed(setup: Setup, most: float) -> int:
    """Returns the hosts that the accelerators need, where those of the set-up suffice for `most` of them."""
    return max(1, math.ceil((setup.accelerators or 1.0) / max(most / setup.hosts, 1e-3)))


def consistent(au: Estimate, greatest: Estimate, number: float, least_pct: float) -> Estimate:
    """An AU at `number` accelerators that agrees with the greatest number that passes: it reaches what it must up to there,
    and not beyond. More drives lower neither: just short of what it must reach is no less than anything that failed."""

    def agreed(share: float, most: float) -> float:
        return max(share, least_pct) if number <= most else min(share, SHORT * least_pct)

    value, low, high = (agreed(getattr(au, end), getattr(greatest, end)) for end in ENDS)
    if value >= au.value:
        return replace(au, value=value, p10=low, p90=high)
    limit, scale = greatest.bottleneck, value / au.value
    stations = {name: share * scale for name, share in au.stations.items()}
    if limit and "balanced" not in limit:
        stations[limit] = 1.0
    return replace(au, value=value, p10=low, p90=high, stations=stations, bottleneck=limit or au.bottleneck)


def _noise(share: float) -> float:
    """Returns the spread of log(share ÷ (1 − share)), for an AU that is `share`."""
    return NOISE_IDLE / math.sqrt(max(1 - share, IDLE_LEAST))


def _supplier(b: dict[str, Array], rows: Rows, setup: Setup, i: int) -> str:
    """Names the limit of supply: the drives, or what lies between them and the host."""
    return setup.supply_cap_name if float(rows.cap[i]) < float(b["drives"][i]) else STORAGE


def _supply_sd(b: dict[str, Array], rows: Rows, setup: Setup, i: int) -> float:
    """Returns the spread of the logarithm of supply: drives differ by workload, and a limit is as unsure as it is."""
    if float(rows.cap[i]) < float(b["drives"][i]):
        return setup.supply_cap_sd
    return setup.own_sd if setup.own_mibps else NOISE_SUPPLY


def _crowded(au: Estimate, setup: Setup, slots: float, sd: float) -> Estimate:
    """Beyond the most that reader processes suffice for (`slots`, its logarithm unsure by `sd`), AU falls below what it must
    be, whatever the bytes; where the bytes are fewer still, they limit.
    """
    number, most = setup.accelerators or 1.0, slots * math.exp(Z80 * sd)
    if number <= most:
        return au
    low, middle, high = (setup.asks.least_pct * slots * math.exp(k * Z80 * sd) / number for k in (-1, 0, 1))
    held = replace(au, value=min(au.value, middle), p10=min(au.p10, low), p90=min(au.p90, high))
    # Each station is as busy as what is had is of what it would allow.
    scale = held.value / au.value
    stations = {name: share * scale for name, share in au.stations.items()} | {READERS_OF_HOST: min(1.0, held.value / middle)}
    host = "this host's" if setup.hosts == 1 else f"{setup.hosts:g} hosts'"
    note = f"{number:g} accelerators: {host} reader processes suffice for about {most:.0f} at most; --hosts {needed(setup, most)}"
    return replace(held, bottleneck=bottleneck(stations), stations=stations, note=note)
