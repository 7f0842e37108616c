"""Emulated accelerators: accelerator utilisation (AU) at a given number, and the greatest number that passes.

AU is a smooth minimum of two shares: 1 / (1 + o + j·N), what the harness and its barriers leave of the time, and
supply ÷ demand. A host also runs out of process slots, whatever the bytes: so many per hardware thread, of which an
accelerator takes what its workload's readers need. Supply is the drives' specification times an efficiency of the
workload's reads, and more where part of the data set stays in the page cache. It is less where files are small and
readers few: a reader is at one file, and a small file lies on one drive or two, so that some drives have nothing to do.
Of k drives that n readers ask at random, n ÷ (n + k − 1) are busy (a closed network of equal servers).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forebay.plan import catalogue
from forebay.plan.estimate import FAR_SD, Z80, Estimate, bottleneck, capped, far, from_logit
from forebay.plan.fit import Data, Posterior, Prior, fit

if TYPE_CHECKING:
    from forebay.plan.fit import Array

WORKLOADS = ("resnet50", "unet3d", "cosmoflow")
# Whatever else is asked for: no run of it was measured, so what is usual of the others stands in, and is unsure.
OTHER = "other"
KINDS = (*WORKLOADS, OTHER)
# MiB/s of one accelerator that never waits, and the AU it must reach: MLPerf Storage v1.0, by accelerator.
DEMAND_MIBPS = {
    ("unet3d", "h100"): 3029.92,
    ("unet3d", "a100"): 1538.78,
    ("resnet50", "h100"): 195.26,
    ("resnet50", "a100"): 100.55,
    ("cosmoflow", "h100"): 770.70,
    ("cosmoflow", "a100"): 489.56,
}
PASS_PCT = {"unet3d": 90.0, "resnet50": 90.0, "cosmoflow": 70.0}
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
# Noise of a greatest number, besides its being whole.
NOISE_COUNT = 0.05
# Efficiency of a workload's reads differs between drives by so much.
NOISE_SUPPLY = 0.03
SHARP = 16.0
NEWTON_STEPS, NEWTON_DONE = 8, 1e-12


@dataclass(frozen=True)
class Ask:
    """Demand of one accelerator that never waits, in MiB/s, and the AU that it must reach, in per cent.

    `slots`: whether its readers are processes that a host can run out of, as in emulation. `readers`: how many it has at
    small files, each at one; infinitely many where files are large.
    """

    mibps: float
    least_pct: float
    slots: bool = True
    readers: float = math.inf


def usual_ask(workload: str, accelerator: str) -> Ask:
    """By the rules of MLPerf Storage v1.0."""
    return Ask(DEMAND_MIBPS[workload, accelerator], PASS_PCT[workload], readers=READERS.get(workload, math.inf))


@dataclass(frozen=True)
class Setup:
    """A host with drives. `accelerators` may be None where the greatest number is asked for.

    `memory_gib` and `dataset_gib` decide what the page cache gives; `threads` how many processes fit.
    `supply_cap_mibps`: what lies between drives and host lets through, whose name is `supply_cap_name`, and whose
    logarithm is unsure by `supply_cap_sd`.
    `ask`: of a workload that isn't one of WORKLOADS.
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
        self.threads = np.array([s.threads if a.slots else math.inf for s, a in zip(setups, asks, strict=True)])
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
    overhead, barrier, efficiency, slots = value[:CACHE_USE].reshape(4, len(KINDS))[:, rows.workload]
    hit = np.minimum(0.95, value[CACHE_USE] * rows.cached)
    gain = value[len(PRIORS) :][rows.drive]
    full = rows.spec * gain * efficiency / (1 - hit)
    drives = full * number / (number + rows.idle)
    supply = np.minimum(drives, rows.cap)
    return {
        "overhead": overhead, "barrier": barrier, "full": full, "drives": drives, "supply": supply, "slots": slots * rows.threads
    }  # fmt: skip


def _smooth_least(*values: Array) -> Array:
    import numpy as np

    least = np.minimum.reduce(values)
    return least * sum((v / least) ** -SHARP for v in values) ** (-1 / SHARP)


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
    """Log of the N at which AU falls to what it must be, or of the process slots, the smaller (smoothly).

    Newton's method in log N. Both shares fall with N, so log AU does, and its slope is known.
    """
    import numpy as np

    counts = _counts(b, rows)
    log_n = np.log(np.minimum(counts["harness"], counts["storage"]))
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
    return np.log(_smooth_least(np.exp(log_n), counts["process slots"]))


def _counts(b: dict[str, Array], rows: Rows) -> dict[str, Array]:
    """The greatest number that each bound allows; never quite 0, for its logarithm."""
    import numpy as np

    harness = np.maximum((1 / rows.least - 1 - b["overhead"]) / b["barrier"], 0.1)
    of_drives = np.maximum(b["full"] / (rows.demand * rows.least) - rows.idle, 1e-3)
    return {
        "harness": harness,
        "storage": np.minimum(of_drives, rows.cap / (rows.demand * rows.least)),
        "process slots": b["slots"],
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
        mean, sd = self.posterior.predict(rows)
        b = _bounds(self.posterior.log, rows)
        slots_sd = self._slots_sd(rows)
        found = []
        for i, setup in enumerate(setups):
            harness = 1 / float(1 + b["overhead"][i] + b["barrier"][i] * rows.number[i])
            feed = float(b["supply"][i] / (rows.number[i] * rows.demand[i]))
            share = 1 / (1 + math.exp(-float(mean[i])))
            stations = {"harness": min(1.0, share / harness), _supplier(b, rows, setup, i): min(1.0, share / feed)}
            # Where storage limits, AU is as unsure as supply; in the link that is 1 ÷ (1 - AU) as much.
            of_supply = _supply_sd(b, rows, setup, i) / max(1 - share, 0.05) * (min(1.0, share / feed) ** SHARP)
            within = self.width[False] * math.hypot(float(sd[i]), _noise(share), of_supply)
            low, spread = (math.hypot(within, _far_sd(setup, least)) for least in (True, False))
            one = from_logit(float(mean[i]), spread, "%", bottleneck=bottleneck(stations), stations=stations)
            one = replace(one, p10=from_logit(float(mean[i]), low, "%").p10)
            full = float(rows.cap_most[i] / (rows.number[i] * rows.demand[i]))
            found.append(_crowded(capped(one, 100 * full), setup, float(b["slots"][i]), float(slots_sd[i])))
        return found

    def _slots_sd(self, rows: Rows) -> Array:
        """Returns the spread of the logarithm of the process slots that each row has, as a greatest number."""
        import numpy as np

        cov = np.diag(self.posterior.cov)[:CACHE_USE].reshape(4, len(KINDS))[3][rows.workload]
        return np.sqrt(np.maximum(cov, 0.0) + NOISE_COUNT**2)

    def law(self, setups: Sequence[Setup]) -> list[float]:
        """The greatest number by the law alone, before it is made whole: for how it changes."""
        import numpy as np

        rows = Rows(setups, [True] * len(setups), self.drives, self.more)
        return [float(v) for v in np.exp(law(self.posterior.log, rows))]

    def greatest(self, setups: Sequence[Setup]) -> list[Estimate]:
        """The greatest number of accelerators that passes, a whole number; 0 where not even one does."""
        import numpy as np

        rows = Rows(setups, [True] * len(setups), self.drives, self.more)
        mean, sd = self.posterior.predict(rows)
        b = _bounds(self.posterior.log, rows, np.exp(mean))
        counts = _counts(b, rows)
        found = []
        for i, setup in enumerate(setups):
            middle = float(mean[i])
            by_way = float(rows.cap[i]) < float(b["drives"][i])
            of_way = setup.supply_cap_sd * min(1.0, math.exp(middle) / float(counts["storage"][i])) ** SHARP if by_way else 0.0
            spread = self.width[True] * math.hypot(float(sd[i]), NOISE_COUNT)
            below, above = (math.hypot(spread, _far_sd(setup, low)) for low in (True, False))
            names = {"storage": _supplier(b, rows, setup, i)}
            allowed = {names.get(name, name): float(v[i]) for name, v in counts.items()}
            stations = {name: min(1.0, math.exp(middle) / v) for name, v in allowed.items() if math.isfinite(v)}
            most = float(rows.cap_most[i] / (rows.demand[i] * rows.least[i]))
            value, low, high = (
                float(math.floor(min(math.exp(middle + k * Z80), most))) for k in (0.0, -below, math.hypot(above, of_way))
            )
            # However many the drives would feed: the way there may let as few through as at its own lower end.
            by_cap = float(rows.cap[i] / (rows.demand[i] * rows.least[i])) * math.exp(-Z80 * setup.supply_cap_sd)
            low = min(low, float(math.floor(by_cap))) if math.isfinite(by_cap) else low
            found.append(
                Estimate(value, low, high, "accelerators", bottleneck(stations), stations)
            )
        return found


def _noise(share: float) -> float:
    """Returns the spread of log(share ÷ (1 − share)), for an AU that is `share`."""
    return NOISE_IDLE / math.sqrt(max(1 - share, IDLE_LEAST))


def _supplier(b: dict[str, Array], rows: Rows, setup: Setup, i: int) -> str:
    """Names the limit of supply: the drives, or what lies between them and the host."""
    return setup.supply_cap_name if float(rows.cap[i]) < float(b["drives"][i]) else "storage"


def _supply_sd(b: dict[str, Array], rows: Rows, setup: Setup, i: int) -> float:
    """Returns the spread of the logarithm of supply: drives differ by workload, and a limit is as unsure as it is."""
    return setup.supply_cap_sd if float(rows.cap[i]) < float(b["drives"][i]) else NOISE_SUPPLY


def _crowded(au: Estimate, setup: Setup, slots: float, sd: float) -> Estimate:
    """Beyond the most process slots that there may be (`slots`, their logarithm unsure by `sd`), AU falls below what it
    must be, whatever the bytes; where the bytes are fewer still, they limit.
    """
    number, most = setup.accelerators or 1.0, slots * math.exp(Z80 * sd)
    if number <= most:
        return au
    low, middle, high = (setup.asks.least_pct * slots * math.exp(k * Z80 * sd) / number for k in (-1, 0, 1))
    held = replace(au, value=min(au.value, middle), p10=min(au.p10, low), p90=min(au.p90, high))
    # Each station is as busy as what is had is of what it would allow.
    scale = held.value / au.value
    stations = {name: share * scale for name, share in au.stations.items()} | {"process slots": min(1.0, held.value / middle)}
    note = f"{number:g} accelerators: this host has process slots for about {most:.0f} at most"
    return replace(held, bottleneck=bottleneck(stations), stations=stations, note=note)
