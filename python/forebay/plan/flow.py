"""Throughput of reads: a closed network of requests in flight, local or through a DPU.

A worker's request travels as commands of at most 128 KiB. A command waits out a delay (the drive's latency, the host's
software, and a part that grows with its size), and passes stations that serve one command after another: the drive's
bandwidth and, remotely, the DPU's queues. With n commands in flight, nothing can be faster than n ÷ delay nor than any
station. The seconds per command of these bounds are combined by a p-norm, a smooth maximum: a bottleneck law that
bends at the knee, where n and the bandwidth meet, and lets a station that is fast not matter elsewhere.

Why the delay grows with size: with one delay for all sizes, 32 workers at 128 KiB would saturate every drive that
does 4.3 GiB/s at 64 KiB, and the published curves bend later than that. Split requests keep several commands in
flight per worker, and are at the plateau by 512 KiB.

Part of that growth is waiting for others at the drive's channels. Where a drive has fewer commands than any published run
gave it, as each of many drives does, they wait less, in proportion: more drives shorten what is waited for inside of them.

The DPU: a queue moves bytes one command after another, and q queues together are q**gamma as fast as one, gamma far
below 1: a station, combined with the drive by the same kind of law. A remote command is also under way for a time that
more queues shorten likewise; a worker can't use that time otherwise, so it is added, divided by what is in flight. Of it
a drive feels less, the more of its own delay is waiting for its channels: fewer commands at the drive wait less there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from forebay.errors import RequestError
from forebay.paths import GDS
from forebay.plan import catalogue
from forebay.plan.estimate import FAR_SD, Estimate, bottleneck, capped, far, from_sides
from forebay.plan.fit import Data, Posterior, Prior, fit, likelihood, many, weights
from forebay.plan.frozen import replace

if TYPE_CHECKING:
    from forebay.plan.fit import Array

COMMAND_KIB = 128.0
QUEUES_MAX = 31
UNIT_KIB = 64.0
PLATEAU_KIB = 4096.0
# A drive's delay grows with size by its flash, however slow the link in front of it (SATA): a PCIe 4.0 drive's rate.
FLASH_GIBPS = 6.5
US_GIB = 2**20 / 1e6  # KiB per microsecond in one GiB/s
# What a worker spends outside of the drive per request. Micron's 116 us at 16 workers, less 85 us of such a drive.
HOST_US = 35.0
# The smooth deviation from the law: its size, and how fast it is forgotten over block size (in doublings); other paths of the
# same drive share this much of it.
DEVIATION, OCTAVES, PATHS_ALIKE = 0.02, 2.0, 0.6
# How large it is few cells tell: half as large, as large or twice as large; across a fabric, one to three times as large and
# forgotten over so many e-folds of queues. A power of the number of queues is a rigid law, whose exponent may differ between
# few and many: in each e-fold it is half as unsure, as unsure or twice as unsure as it is as a whole (GAMMA_SPREAD), apart from
# the others.
GAMMA, GAMMA_SPREAD = 0.25, 0.25
FOLDS = (0.75, 1.5)
LOCAL_SCALES = (0.5 * DEVIATION, DEVIATION, 2 * DEVIATION)
SCALES = tuple(
    (size * DEVIATION, folds, exponent * GAMMA * GAMMA_SPREAD)
    for size in (1.0, 2.0, 3.0)
    for folds in FOLDS
    for exponent in (0.5, 1.0, 2.0)
)
# Of more measurements the scales aren't weighed: so many pin the curve down, whatever is taken to lie between them.
WEIGHED_MOST = 100
# One cell measured again: the papers print the same remote set-up twice, 1 to 3 % apart.
NOISE, NOISE_REMOTE = 0.01, 0.018
NEW_DRIVE = 0.03
# For each doubling of drives beyond (or short of) what was measured: a stripe gives about what its members do, and no
# published throughput is of several. It counts as far as drives are what limits.
STRIPE, STRIPE_SHARP = 0.02, 4
# Of what a drive's own transfers take longer by size, the part that leaves room for others, so that a longer way there
# costs throughput. Drives that wait for their own channels hide the way, others don't; no cell tells, so: half.
FELT = 0.5
# Commands in flight at one drive below which fewer of them wait less: the fewest of any published run.
CROWD = 12.0
# Published drives read within 2 % of their sheets. A user's may sit in a slower slot, or behind something that the sheet
# doesn't know: then the runs say it, and the sheet hardly anything.
SHEET, SHEET_OF_OWN = 0.02, 0.5
# Numbers of drives up to which an answer is compared with those of fewer.
DRIVES_MOST = 1024


@dataclass(frozen=True)
class Load:
    """Load on a system: who reads, and what. `io_kib` per request; `workers` × `depth` requests in flight; `drives` as RAID0.

    `queues`: of each of `dpus` DPUs, remote only; None means as many as there can be. `cap_gibps`: what a link or a host on the
    way lets through, whose name is `cap_name`; None: nothing but the drives and the DPU.
    """

    drive: str
    io_kib: float
    workers: float
    path: str = GDS
    remote: bool = False
    drives: float = 1
    depth: float = 1
    queues: float | None = None
    cap_gibps: float | None = None
    cap_name: str = "link"
    dpus: float = 1


@dataclass(frozen=True)
class Measured:
    """A load with what was measured: GiB/s, and the noise of it as a share of it (None: what is usual)."""

    load: Load
    gibps: float
    noise: float | None = None


class Rows:
    """Loads as columns: one array per quantity, in the order of the loads. `drive` indexes `names`."""

    def __init__(self, loads: Sequence[Load], names: Sequence[str], more: Sequence[catalogue.Drive] = ()) -> None:
        import numpy as np

        index = {name: i for i, name in enumerate(names)}
        self.drive = np.array([index[x.drive.lower()] for x in loads], dtype=int)
        self.kib = np.array([x.io_kib for x in loads], dtype=float)
        self.command = np.minimum(self.kib, COMMAND_KIB)
        flight = np.array([x.workers * x.depth for x in loads], dtype=float)
        self.flight = flight * self.kib / self.command
        self.drives = np.array([x.drives for x in loads], dtype=float)
        self.remote = np.array([x.remote for x in loads], dtype=bool)
        self.queues = np.array([QUEUES_MAX if x.queues is None else x.queues for x in loads], dtype=float)
        self.dpus = np.array([x.dpus for x in loads], dtype=float)
        self.cpu_path = np.array([x.path not in (GDS,) for x in loads], dtype=bool)
        self.cap = np.array([math.inf if x.cap_gibps is None else x.cap_gibps for x in loads], dtype=float)
        sheets = {name: catalogue.drive(name, more) for name in dict.fromkeys(x.drive for x in loads)}
        medians = [p.median for p in SHARED] + [p.median for n in names for p in drive_priors(catalogue.drive(n, more))]
        self._medians = np.log(medians)
        self.iops_us = 1e6 / np.array([sheets[x.drive].iops for x in loads]) / self.drives

    def uses(self, parameters: int) -> Array:
        """Returns which parameters the rows depend on: the shared ones, and those of their drives."""
        import numpy as np

        found = np.zeros(parameters, dtype=bool)
        found[: len(SHARED)] = True
        found[len(SHARED) :].reshape(-1, PER_DRIVE)[self.drive] = True
        return found

    @cached_property
    def by_queues(self) -> Array:
        """Change of the logarithm of each rate with that of the DPU's times, by what is usual, whatever was measured."""
        import numpy as np

        if not self.remote.any():
            return np.zeros(len(self.kib))
        step = np.zeros(len(self._medians))
        step[[i for i, p in enumerate(SHARED) if p.name in ("fabric_residence", "queue_64k")]] = 1e-3
        return (law(self._medians - step, self) - law(self._medians + step, self)) / 2e-3


def usual_noise(load: Load) -> float:
    """As a share of what is measured."""
    return NOISE_REMOTE if load.remote else NOISE


SHARED = (
    Prior("sharpness", 4.0, 0.4, "", "prior", "p-norm of the drive's delay and bandwidth: 1 adds times, large is a hard minimum"),
    Prior("fabric_residence", 80.0, 0.7, "us", "prior", "a command's transit there and back, with one queue"),
    Prior("fabric_gain", 1.0, 0.02, "", "prior", "drive bandwidth remote ÷ local; published runs differ by 1 to 3 %"),
    Prior("queue_64k", 5.0, 0.5, "us", "prior", "a DPU queue's time per 64 KiB: about 100 Gb/s"),
    Prior("queue_gamma", GAMMA, GAMMA_SPREAD, "", "prior", "q queues are as fast as q**gamma: twice as many, a fifth more"),
    Prior("fabric_sharpness", 4.0, 0.4, "", "prior", "p-norm of the drive and the DPU"),
)
PER_DRIVE = 3


def drive_priors(drive: catalogue.Drive, bandwidth_spread: float = SHEET) -> list[Prior]:
    """Bandwidth from the data sheet, delay from the kind of drive, its growth hardly known."""
    latency, spread, source, why = drive.latency()
    per_64k = 12 * UNIT_KIB / (max(drive.read_gibps, FLASH_GIBPS) * US_GIB)
    idle = f"idle read ({why}) + {HOST_US:.0f} us of host software"
    return [
        Prior(f"bandwidth[{drive.name}]", drive.read_gibps, bandwidth_spread, "GiB/s", "spec", drive.source),
        Prior(f"delay[{drive.name}]", latency + HOST_US, spread + 0.05, "us", source, idle),
        Prior(f"delay_64k[{drive.name}]", per_64k, 1.0, "us", "prior", "12 times an NVMe transfer, within a factor of 3"),
    ]


@many
def law(log: Array, rows: Rows) -> Array:
    """Log of GiB/s of each row."""
    import numpy as np

    return np.log(rows.command / 1024**2) - np.log(np.maximum(parts(log, rows)["total"], 1e-12) / 1e6)


def parts(log: Array, rows: Rows) -> dict[str, Array]:
    """Microseconds per command: of each station, and `total` by which throughput goes."""
    import numpy as np

    value = np.exp(log)
    shared, own = value[..., : len(SHARED), None], value[..., len(SHARED) :].reshape(*log.shape[:-1], -1, PER_DRIVE)
    sharp, residence, gain, per_64k, gamma, fabric_sharp = np.moveaxis(shared, -2, 0)
    # Below 1 a drive would take longer than delay and transfer one after the other; runs that fit nothing ask for it.
    sharp, fabric_sharp = np.maximum(sharp, 1.0), np.maximum(fabric_sharp, 1.0)
    bandwidth, idle, growth = np.moveaxis(own[..., rows.drive, :], -1, 0)
    size = rows.command / UNIT_KIB
    slower = np.where(rows.remote, rows.queues**-gamma, 0.0)
    # What isn't felt from afar is waiting for others' commands: the fewer a drive has, the less.
    waiting = (1 - FELT) * np.minimum(1.0, rows.flight / rows.drives / CROWD)
    delay = (idle + growth * size * (FELT + waiting)) / rows.flight
    felt = (idle + FELT * growth * size) / (idle + growth * size)
    way = residence * slower * felt / rows.flight
    rate = bandwidth * rows.drives * np.where(rows.remote, gain, 1.0)
    drive = np.maximum(rows.command / 1024**2 / rate * 1e6, rows.iops_us)
    dpu = per_64k * size * slower / rows.dpus
    cap = rows.command / 1024**2 / rows.cap * 1e6
    # What waits for the slowest station waits for its bytes; a command's way comes on top, but not of a full link.
    total = _norm(fabric_sharp, _norm(fabric_sharp, _norm(sharp, delay, drive), dpu) + way, cap)
    return {"requests in flight": delay + way, "drive bandwidth": drive, "DPU queues": dpu, "link": cap, "total": total}


def _norm(p: Array, one: Array, other: Array) -> Array:
    """A smooth maximum; scaled by the larger, so that no power overflows."""
    import numpy as np

    most, least = np.maximum(one, other), np.minimum(one, other)
    safe = np.where(most > 0, most, 1.0)
    return safe * ((most / safe) ** p + (least / safe) ** p) ** (1 / p)


class Deviation:
    """Covariance of what the law leaves out. Smooth: within a drive, local or remote, near in size, queues and path. And that
    of the DPU, whose exponent wanders from one number of queues to the next, for all sizes alike, as far as queues matter.

    How large and how smooth it is, few cells can't tell. What those that calibrate make likely of SCALES is their weight here,
    and the mean is used: `local` is its variance beside the processor, `folds` that across a fabric by how fast it is forgotten.
    """

    def __init__(self, local: Sequence[float] = (), remote: Sequence[float] = ()) -> None:
        self.of_local, self.of_remote = local, remote
        self.local = _mean([size**2 for size in LOCAL_SCALES], local)
        self.walk = _mean([exponent**2 for _, _, exponent in SCALES], remote)
        self.folds = {at: _mean([size**2 * (folds == at) for size, folds, _ in SCALES], remote) for at in FOLDS}

    def __call__(self, a: Rows, b: Rows) -> Array:
        import numpy as np

        smooth, queues, walk = _alike(a, b)
        if not a.remote.any():
            return self.local * smooth
        far = sum(size2 * np.exp(-0.5 * (queues / folds) ** 2) for folds, size2 in self.folds.items())
        return smooth * np.where(a.remote[:, None], far, self.local) + self.walk * walk

    def of_each(self, rows: Rows) -> Array:
        """Returns the variance of each row."""
        import numpy as np

        return np.where(rows.remote, sum(self.folds.values()), self.local) + self.walk * rows.by_queues**2 * np.log(rows.queues)

    def learnt(self, posterior: Posterior) -> Deviation:
        """With the scales weighed by how likely each makes the measurements that calibrated, the law taken as linear."""
        import numpy as np

        assert posterior.data is not None
        rows, (off, of_law) = posterior.data.rows, posterior.marginal()
        smooth, queues, walk = _alike(rows, rows)
        near, far = (smooth * place[:, None] for place in (~rows.remote, rows.remote))

        of_far = self(rows, rows) * rows.remote[:, None]
        local = weights([likelihood(of_law + size**2 * near + of_far, off) for size in LOCAL_SCALES])
        if not rows.remote.any():
            return Deviation(local)
        of_near = of_law + Deviation(local).local * near
        overs = [size**2 * far * np.exp(-0.5 * (queues / folds) ** 2) + exponent**2 * walk for size, folds, exponent in SCALES]
        return Deviation(local, weights([likelihood(of_near + over, off) for over in overs]))


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """By the weights, or plain where there are none."""
    if not weights:
        return math.fsum(values) / len(values)
    return math.fsum(w * v for w, v in zip(weights, values, strict=True))


def _alike(a: Rows, b: Rows) -> tuple[Array, Array, Array]:
    """Likeness of deviations by drive, place, path and size; e-folds of queues between them; and the walk over those."""
    import numpy as np

    same = (a.drive[:, None] == b.drive[None]) & (a.remote[:, None] == b.remote[None])
    # Past PLATEAU_KIB a larger request changes nothing, so what is known there holds for all of them.
    octaves = [np.log2(np.minimum(r.kib, PLATEAU_KIB)) for r in (a, b)]
    sizes = (octaves[0][:, None] - octaves[1][None]) / OCTAVES
    paths = np.where(a.cpu_path[:, None] == b.cpu_path[None], 1.0, PATHS_ALIKE)
    logs = [np.log(r.queues) for r in (a, b)]
    walk = np.outer(a.by_queues, b.by_queues) * np.minimum.outer(*logs)
    return same * paths * np.exp(-0.5 * sizes**2), logs[0][:, None] - logs[1][None], walk


def _fitted(priors: Sequence[Prior], rows: Rows, y: Array, noise: Array, start: Mapping[str, float] | None) -> Posterior:
    """The law fitted; and once more where the measurements tell how large its deviations across a fabric are."""
    usual = Deviation()
    found = fit(law, priors, Data(rows, y, noise, usual, usual.of_each), start)
    if not 1 < len(y) <= WEIGHED_MOST:
        return found
    learnt = usual.learnt(found)
    return fit(law, priors, Data(rows, y, noise, learnt, learnt.of_each), found.values())


class Flow:
    """Throughput, calibrated by measurements of any of these drives; drives without any go by their data sheets.

    `sheet`: how far a measured drive's bandwidth may be from its data sheet, as the spread of its logarithm.
    """

    def __init__(
        self,
        measured: Sequence[Measured],
        more: Sequence[catalogue.Drive] = (),
        start: Mapping[str, float] | None = None,
        sheet: float = SHEET,
    ) -> None:
        import numpy as np

        self.more = list(more)
        self.measured = list(measured)
        self.names = list(dict.fromkeys(m.load.drive.lower() for m in measured))
        self._known = set(self.names)
        self._best: dict[tuple[str, bool], float] = {}
        for m in measured:
            place = (m.load.drive.lower(), m.load.remote)
            self._best[place] = max(self._best.get(place, 0.0), m.gibps / m.load.drives)
        self._remote = {m.load.drive.lower() for m in measured if m.load.remote}
        self._striped = {m.load.drives for m in measured} or {1.0}
        priors = list(SHARED)
        for name in self.names:
            priors += drive_priors(catalogue.drive(name, self.more), sheet)
        rows = Rows([m.load for m in measured], self.names, self.more)
        y = np.log([m.gibps for m in measured])
        noise = np.array([m.noise if m.noise is not None else usual_noise(m.load) for m in measured])
        self.posterior = _fitted(priors, rows, y, noise, start)
        every = self.posterior.width()
        self.width = {far: self.posterior.width(rows.remote == far, every) for far in (False, True)}

    def with_drives(self, more: Sequence[catalogue.Drive]) -> Flow:
        """The same, that finds these drives too: they had no part in calibrating it."""
        made = copy.copy(self)
        made.more, made.names = list(more), list(self.names)
        return made

    @property
    def measured_drives(self) -> set[str]:
        """Returns the drives, in lower case, that the calibrating measurements are of."""
        return self._known

    def know(self, names: Sequence[str]) -> None:
        """Adds drives that no measurement is of, by their priors. RequestError for one in no catalogue."""
        import numpy as np

        for name in dict.fromkeys(n.lower() for n in names):
            if name in self.names:
                continue
            priors = drive_priors(catalogue.drive(name, self.more))
            old = self.posterior
            size = len(old.priors)
            cov = np.zeros((size + PER_DRIVE, size + PER_DRIVE))
            cov[:size, :size] = old.cov
            cov[size:, size:] = np.diag([p.spread**2 for p in priors])
            log = np.concatenate([old.log, np.log([p.median for p in priors])])
            self.names.append(name)
            data = old.data
            self.posterior = Posterior(law, [*old.priors, *priors], data, log, cov)

    def rows(self, loads: Sequence[Load]) -> Rows:
        check(loads)
        self.know([x.drive for x in loads])
        return Rows(loads, self.names, self.more)

    def predict(self, loads: Sequence[Load]) -> list[Estimate]:
        """GiB/s of each load, as it would be measured.

        Neither the rate nor its ends are below those of fewer drives: who has more may leave some unused.
        """
        # By everything but drives: the number of drives, and its place among those that are asked for.
        of_any: dict[Load, dict[float, int]] = {}
        every: list[Load] = []
        asked: list[list[int]] = []
        for load in loads:
            places = of_any.setdefault(replace(load, drives=0), {})
            numbers = _up_to(load)
            for n in numbers:
                if n not in places:
                    places[n] = len(every)
                    every.append(replace(load, drives=n))
            asked.append([places[n] for n in numbers])
        single = self.alone(every)
        return [_least_of([single[at] for at in places]) for places in asked]

    def alone(self, loads: Sequence[Load]) -> list[Estimate]:
        """As `predict`, each load by itself, whatever fewer drives would do."""
        rows = self.rows(loads)
        mean, below, above = self.posterior.spreads(rows)
        shares, by_requests = self.utilisation(rows), parts(self.posterior.log, rows)["drive bandwidth"] <= rows.iops_us
        found = []
        for i, load in enumerate(loads):
            beyond = math.hypot(
                self._doublings(load) * STRIPE * shares["drive bandwidth"][i] ** STRIPE_SHARP, FAR_SD * len(outside(load))
            )
            width = self.width[load.remote]
            # Measurements that agree make sure of what is near them, not of what the law says beyond.
            of_law, noise = max(1.0, width), width * usual_noise(load)
            low, high = (math.hypot(of_law * math.hypot(float(sd[i]), self._extra(load)), noise, beyond) for sd in (below, above))
            names = {"link": load.cap_name, "drive bandwidth": "drive IOPS" if by_requests[i] else "drive bandwidth"}
            stations = {names.get(name, name): share[i] for name, share in shares.items() if share[i] > 0.005}
            limit = bottleneck(stations)
            # What the drives were measured to do beyond the law can't pass a link or a drive that is full.
            middle = min(float(mean[i]), math.log(rows.cap[i]), math.log(self._most(load)))
            one = from_sides(middle, low, high, "GiB/s", bottleneck=limit, stations=stations)
            found.append(capped(one, float(rows.cap[i])))
        return found

    def _most(self, load: Load) -> float:
        """GiB/s of full drives: their bandwidth, or what was measured of them there where that is more; or their IOPS."""
        value, drive = self.posterior.value, catalogue.drive(load.drive, self.more)
        bandwidth = value(f"bandwidth[{drive.name}]") * (value("fabric_gain") if load.remote else 1.0)
        seen = self._best.get((load.drive.lower(), load.remote), 0.0)
        by_requests = drive.iops * min(load.io_kib, COMMAND_KIB) / 1024**2
        return min(max(bandwidth, seen), by_requests) * load.drives

    def _extra(self, load: Load) -> float:
        """A drive, or a drive across a fabric, of which nothing was measured."""
        known = self._remote if load.remote else self._known
        return 0.0 if load.drive.lower() in known else NEW_DRIVE

    def _doublings(self, load: Load) -> float:
        """Returns the doublings of drives from the nearest number that was measured."""
        return min(abs(math.log2(load.drives / n)) for n in self._striped)

    def queues_gibps(self, queues: float | None) -> tuple[float, float]:
        """Returns the rate that so many of a DPU's queues let through, whatever stands behind them; and how unsure its
        logarithm is."""
        import numpy as np

        count, names = queues or QUEUES_MAX, [p.name for p in self.posterior.priors]
        at = [names.index("queue_64k"), names.index("queue_gamma")]
        each, gamma = np.exp(self.posterior.log[at])
        rate = UNIT_KIB / 1024**2 / float(each) * 1e6 * count ** float(gamma)
        slope = np.array([-1.0, float(gamma) * math.log(count)])
        return rate, float(np.sqrt(slope @ self.posterior.cov[np.ix_(at, at)] @ slope))

    def utilisation(self, rows: Rows) -> dict[str, list[float]]:
        """Share of its limit that each station is at, by the law alone: the busiest is the bottleneck."""
        times = parts(self.posterior.log, rows)
        total = times.pop("total")
        return {name: [min(1.0, float(v)) for v in t / total] for name, t in times.items()}


def _up_to(load: Load) -> list[float]:
    """Its number of drives, and each whole number below, as far as plans go."""
    return [*range(1, min(math.ceil(load.drives) - 1, DRIVES_MOST) + 1), load.drives]


def _least_of(found: Sequence[Estimate]) -> Estimate:
    """The last estimate, with no end below one of the others."""
    last = found[-1]
    ends = {end: max(getattr(e, end) for e in found) for end in ("value", "p10", "p90")}
    return replace(last, **ends)


def outside(load: Load) -> list[str]:
    """Returns what lies more than ten times outside of what the law was calibrated on."""
    flight = load.workers * load.depth / load.drives
    return far(
        [
            ("block size (KiB)", load.io_kib, 4.0, 4096.0),
            ("requests in flight", flight, 12.0, 96.0),
            ("drives", float(load.drives), 1.0, 8.0),
        ]
    )


def check(loads: Sequence[Load]) -> None:
    """Refuses a load that can't exist."""
    for load in loads:
        for what in ("io_kib", "workers", "drives", "depth", "queues", "cap_gibps"):
            value = getattr(load, what)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise RequestError(f"{what} {value}", "must be above 0", f"{what} 1 or more")
        if load.remote and load.queues is not None and load.queues > QUEUES_MAX:
            raise RequestError(f"queues {load.queues:g}", f"a DPU offers at most {QUEUES_MAX}", f"queues 1 to {QUEUES_MAX}")
        if not load.remote and load.queues is not None:
            raise RequestError(f"queues {load.queues:g}", "a local drive has no DPU queues", "location remote, or no queues")
