"""Small random reads by many synchronous workers, one GPU and drive per pair: GDS against the path through the CPU.

GDS is a closed network: a delay, a station per pair that serves one request after another (the GPU's end), and the
drive's bandwidth. The path through the CPU peaks and then falls: each further worker slows all others (coherence in
the driver's locks), and workers that wait for a lock burn processor time, until the processors are used up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.paths import GDS
from forebay.plan import catalogue
from forebay.plan.estimate import Estimate, bottleneck, capped, from_sides
from forebay.plan.fit import Data, Posterior, Prior, fit

if TYPE_CHECKING:
    from forebay.plan.fit import Array

METRICS = ("throughput_gbps", "latency_us_mean", "cpu_cores_busy")
SHARP = 4.0
NOISE = {"throughput_gbps": 0.03, "latency_us_mean": 0.03, "cpu_cores_busy": 0.1}
# What a model of four numbers may be off by, where sizes and metrics weren't measured.
NEW = {"throughput_gbps": 0.05, "latency_us_mean": 0.1, "cpu_cores_busy": 0.15}
UNIT_KIB = 28.0  # what 32 KiB has more than 4 KiB
# Cores of the machine of the published runs: two of 28.
MACHINE_CORES = 56.0
# A bound such as "<6" is read as somewhat below it.
BELOW = 0.9
SCALE_PEAK = 12.0


@dataclass(frozen=True)
class Point:
    """One metric of `pairs` pairs, each with `workers` workers that read `io_kib` at random by `path`."""

    metric: str
    path: str
    io_kib: float
    workers: float
    pairs: float = 8
    cores: float = MACHINE_CORES


class Rows:
    def __init__(self, points: Sequence[Point]) -> None:
        import numpy as np

        self.metric = np.array([METRICS.index(p.metric) for p in points], dtype=int)
        self.gds = np.array([p.path == GDS for p in points], dtype=bool)
        self.kib = np.array([p.io_kib for p in points], dtype=float)
        self.workers = np.array([p.workers for p in points], dtype=float)
        self.pairs = np.array([p.pairs for p in points], dtype=float)
        self.cores = np.array([p.cores for p in points], dtype=float)


def priors(drive: catalogue.Drive) -> list[Prior]:
    latency, spread, source, why = drive.latency()
    return [
        Prior("gds_delay", latency + 35, spread + 0.1, "us", source, f"idle read ({why}) + 35 us of host software"),
        Prior("gds_growth", 35.0, 0.6, "us per 28 KiB", "prior", "a larger read's time beyond its transfer"),
        Prior("gds_request", 3.0, 0.7, "us", "prior", "the GPU's end of a pair, per request"),
        Prior("bandwidth", drive.read_gibps, 0.05, "GiB/s", "spec", drive.source),
        Prior("cpu_delay", latency + 25, spread + 0.1, "us", source, f"idle read ({why}) + 25 us of host software"),
        Prior("cpu_coherence", 1 / SCALE_PEAK**2, 0.3, "", "prior", "a pair of workers slows all: peak at coherence**-0.5"),
        Prior("gds_cost", 2.5, 0.3, "us", "prior", "processor time per request, user and system"),
        Prior("cpu_cost", 12.0, 0.5, "us", "prior", "processor time per request without waiting for locks"),
        Prior("cores_usable", 0.85, 0.15, "", "prior", "share of all cores used by workers that wait for one lock"),
    ]


def law(log: Array, rows: Rows) -> Array:
    """Log of each row's metric: GB/s of all pairs, mean microseconds, or cores busy."""
    import numpy as np

    times = parts(log, rows)
    residence = times["total"]
    rate = rows.workers / residence * 1e6 * rows.pairs
    gb = rate * rows.kib * 1024 / 1e9
    cores = _cores(np.exp(log), rows, times["locks of the driver"], rate)
    return np.log(np.choose(rows.metric, [gb, residence, cores]))


def parts(log: Array, rows: Rows) -> dict[str, Array]:
    """Microseconds of residence that each bound alone would give, and `total`."""
    import numpy as np

    value = np.exp(log)
    delay, growth, request, bandwidth, cpu_delay, coherence = value[:6]
    larger = growth * np.maximum(rows.kib - 4, 0) / UNIT_KIB
    first = delay + larger
    served = rows.workers * request
    moved = rows.workers * rows.kib / 1024**2 / bandwidth * 1e6
    most = np.maximum(np.maximum(first, served), moved)
    direct = most * sum((t / most) ** SHARP for t in (first, served, moved)) ** (1 / SHARP)
    locks = np.where(rows.gds, 0.0, cpu_delay * coherence * rows.workers * (rows.workers - 1))
    through = cpu_delay + larger + locks
    return {
        "requests in flight": np.where(rows.gds, first, cpu_delay + larger),
        "GPU's end": np.where(rows.gds, served, 0.0),
        "drive bandwidth": moved,
        "locks of the driver": locks,
        "total": np.where(rows.gds, direct, np.maximum(through, moved)),
    }


def _cores(value: Array, rows: Rows, locks: Array, rate: Array) -> Array:
    """Processor time per request times the rate; waiting for locks is spent spinning, as far as there are cores."""
    import numpy as np

    plain = np.where(rows.gds, value[6], value[7]) * rate / 1e6
    spun = locks * rate / 1e6
    wanted, most = plain + spun, value[8] * rows.cores
    return (wanted**-SHARP + most**-SHARP) ** (-1 / SHARP)


class RandomReads:
    """Calibrated by (point, value)."""

    def __init__(self, measured: Sequence[tuple[Point, float]], drive: catalogue.Drive) -> None:
        import numpy as np

        rows = Rows([p for p, _ in measured])
        noise = np.array([NOISE[p.metric] for p, _ in measured])
        self.measured = {p for p, _ in measured}
        y = np.log([v for _, v in measured])
        self.posterior: Posterior = fit(law, priors(drive), Data(rows, y, noise))
        self.width = self.posterior.width()

    def predict(self, points: Sequence[Point]) -> list[Estimate]:
        units = dict(zip(METRICS, ("GB/s", "us", "cores"), strict=True))
        rows = Rows(points)
        mean, *sides = self.posterior.spreads(rows)
        times = parts(self.posterior.log, rows)
        total = times.pop("total")
        found = []
        for i, point in enumerate(points):
            extra = 0.0 if point in self.measured else NEW[point.metric]
            low, high = (self.width * math.hypot(float(sd[i]), NOISE[point.metric], extra) for sd in sides)
            stations = {n: min(1.0, float(t[i] / total[i])) for n, t in times.items() if t[i] > 0}
            limit = bottleneck(stations)
            one = from_sides(float(mean[i]), low, high, units[point.metric], bottleneck=limit, stations=stations)
            found.append(capped(one, point.cores) if point.metric == "cpu_cores_busy" else one)
        return found
