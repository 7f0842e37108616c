"""fio's JSON of runs: its fields, units and buckets, for programs that read what fio prints.

What isn't measured here is 0 as fio has it without that measurement: submission latencies (`slat_ns`, whose N is 0), and how many
I/Os were submitted and reaped at once. The latency of a completion is that of the whole I/O.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.units import GIB

# The version whose document this is.
VERSION = "fio-3.33"
PERCENTILES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)
NS_BOUNDS = (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000)
MS_BOUNDS = (*NS_BOUNDS, 2000)
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
BATCHES = ("0", "4", "8", "16", "32", "64", ">=64")
EIO, EILSEQ = 5, 84
Bins = dict[int, int]


@dataclass
class Side:
    """The I/Os of one direction."""

    bytes: int = 0
    ios: int = 0
    seconds: float = 0.0
    bins: Bins = field(default_factory=dict)
    # Of each run: samples, min, max, mean and standard deviation in ns.
    spreads: list[tuple[int, float, float, float, float]] = field(default_factory=list)
    # Of each run: KiB/s and IOPS of the points of its series.
    points: list[list[tuple[float, float]]] = field(default_factory=list)

    def add(self, part: dict[str, Any], histogram: str, seconds: float, points: list[tuple[float, float]]) -> None:
        """Adds a direction's part of a record. `histogram`: its own."""
        from forebay import _core

        self.bytes += part["bytes"]
        self.ios += part["ios"]
        self.seconds = max(self.seconds, seconds)
        found = _core.buckets(histogram) if histogram else []
        for ns, count in found:
            self.bins[ns] = self.bins.get(ns, 0) + count
        spread = part["latency_us"]
        n = sum(count for _, count in found)
        if n:
            self.spreads.append((n, *(1e3 * spread[key] for key in ("min", "max", "mean", "stdev"))))
        self.points.append(points)

    def joined(self, other: Side) -> Side:
        bins = {ns: self.bins.get(ns, 0) + other.bins.get(ns, 0) for ns in {**self.bins, **other.bins}}
        points = [
            [(a[0] + b[0], a[1] + b[1]) for a, b in zip(ours, theirs, strict=False)] or ours or theirs
            for ours, theirs in zip(self.points, other.points, strict=True)
        ] if self.points and other.points else self.points or other.points  # fmt: skip
        seconds = max(self.seconds, other.seconds)
        return Side(self.bytes + other.bytes, self.ios + other.ios, seconds, bins, self.spreads + other.spreads, points)

    def spread(self) -> dict[str, Any]:
        """`min`, `max`, `mean`, `stddev`, `N` of all samples."""
        n = sum(each[0] for each in self.spreads)
        if not n:
            return {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}
        mean = sum(count * mean for count, _, _, mean, _ in self.spreads) / n
        square = sum(count * (sd * sd + (mean_ - mean) ** 2) for count, _, _, mean_, sd in self.spreads) / n
        least, most = min(each[1] for each in self.spreads), max(each[2] for each in self.spreads)
        return {"min": round(least), "max": round(most), "mean": round(mean, 6), "stddev": round(math.sqrt(square), 6), "N": n}

    def percentiles(self, asked: Sequence[float]) -> dict[str, int]:
        """The values below which the shares of the samples lie."""
        ordered, total, found = sorted(self.bins.items()), sum(self.bins.values()), {}
        for share in sorted(asked):
            least, seen = math.ceil(share / 100 * total), 0
            for ns, count in ordered:
                seen += count
                if seen >= least:
                    found[f"{share:.6f}"] = ns
                    break
        return found


@dataclass(frozen=True)
class Asked:
    """Settings of a job that are about its output."""

    percentiles: tuple[float, ...] = PERCENTILES
    of_clat: bool = True
    of_lat: bool = False
    with_bins: bool = False
    # `none`, `mixed` or `both`.
    unified: str = "none"


@dataclass
class Entry:
    """One entry of `jobs`: a section's run, or those of a reporting group."""

    name: str
    group: int
    options: dict[str, str]
    asked: Asked
    description: str = ""
    # The rule of a steady state, as typed; empty where none ends the run.
    steady: str = ""
    records: list[dict[str, Any]] = field(default_factory=list)
    error: int = 0
    elapsed_s: float = 0.0
    # Context switches, major and minor faults.
    usage: tuple[int, int, int] = (0, 0, 0)


def bin_of(ns: int) -> int:
    """The middle of fio's bucket: 64 of equal width between powers of two; below 128 ns each value."""
    width = 1 << max(ns.bit_length() - 7, 0)
    return ns // width * width + width // 2


def document(entries: Iterable[Entry], shared: Mapping[str, str], disks: list[dict[str, Any]], began: float) -> dict[str, Any]:
    """The whole of `--output-format=json`. `shared`: the settings of `[global]`; `began`: a UNIX time."""
    now = round(began * 1000)
    found: dict[str, Any] = {
        "fio version": VERSION, "timestamp": now // 1000, "timestamp_ms": now,
        "time": time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(began)),
    }  # fmt: skip
    if shared:
        found["global options"] = dict(shared)
    return {**found, "jobs": [_job(entry) for entry in entries], **({"disk_util": disks} if disks else {})}


def _job(entry: Entry) -> dict[str, Any]:
    sides = {way: _side(entry.records, way) for way in ("read", "write")}
    both = sides["read"].joined(sides["write"])
    results = [record["result"] for record in entry.records]
    found: dict[str, Any] = {
        "jobname": entry.name, "groupid": entry.group, "error": entry.error, "eta": 0,
        "elapsed": math.ceil(entry.elapsed_s), "job options": dict(entry.options),
    }  # fmt: skip
    shown = {"read": sides["read"], "write": sides["write"], "trim": Side(), "mixed": both}
    for way, side in shown.items():
        if entry.asked.unified == "both" or (way == "mixed") == (entry.asked.unified == "mixed"):
            found[way] = _direction(side, both, entry.asked)
    last = {"mixed": found.pop("mixed")} if entry.asked.unified == "both" else {}
    if entry.asked.unified != "mixed":
        # The flush at the end isn't one of these in fio, and a write that is synced by itself is one I/O here.
        found["sync"] = {"total_ios": 0, "lat_ns": Side().spread()}
    found |= last
    spent = [result.get("cpu") or {} for result in results]
    # Of all clones together, as their time is.
    clones_s = sum(result["seconds"] * record["job"]["workers"] for result, record in zip(results, entry.records, strict=True))
    user, system = (sum(cpu.get(key) or 0.0 for cpu in spent) for key in ("user_s", "system_s"))
    per_s = 100 / clones_s if clones_s else 0.0
    depth = max((record["job"]["depth"] for record in entry.records), default=0)
    return found | {
        "job_runtime": round(1000 * clones_s),
        "usr_cpu": round(user * per_s, 6), "sys_cpu": round(system * per_s, 6),
        "ctx": entry.usage[0], "majf": entry.usage[1], "minf": entry.usage[2],
        "iodepth_level": _levels(depth), "iodepth_submit": _batches(), "iodepth_complete": _batches(),
        **_latencies(both.bins),
        "latency_depth": depth, "latency_target": 0, "latency_percentile": 100.0, "latency_window": 0,
        **({"desc": entry.description} if entry.description else {}),
        **({"steadystate": _steady(entry.steady, entry.records)} if entry.steady and entry.records else {}),
    }  # fmt: skip


def _steady(rule: str, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How steady the last points were that the rule (`iops:10%`) looks at."""
    name, _, limit = rule.partition(":")
    # The rule of the record is `iops=10,window=30,skip=0`.
    window_s = float(dict(part.split("=") for part in records[-1]["job"]["steady"].split(","))["window"])
    points = [p for p in records[-1]["result"].get("series") or [] if not p.get("warmup")]
    last = points[-max(round(1000 * window_s / records[-1]["job"]["interval_ms"]), 1):]
    figures = {
        "bw": [p["gib_s"] * GIB for p in last], "iops": [p["iops"] for p in last],
        "lat": [1e3 * (p.get("latency_us_mean") or 0.0) for p in last],
    }  # fmt: skip
    values = figures[name.removesuffix("_slope")]
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values) if values else 0.0
    along = sum((n - middle) ** 2 for n in range(len(values)))
    slope = sum((n - middle) * (value - mean) for n, value in enumerate(values)) / along if along else 0.0
    off = max((abs(value - mean) for value in values), default=0.0)
    by_slope = name.endswith("_slope")
    return {
        "ss": f"{name}:{float(limit.rstrip('%')):f}%", "duration": round(window_s),
        "attained": int(any(record["result"].get("steady_after_s") is not None for record in records)),
        "criterion": f"{100 * (slope if by_slope else off) / mean if mean else 0.0:f}%",
        "max_deviation": 0.0 if by_slope else round(off, 6), "slope": round(slope, 6) if by_slope else 0.0,
        "data": {
            **{f"{key}_mean": round(sum(figures[key]) / max(len(last), 1)) for key in ("bw", "iops")},
            "iops": [round(value) for value in figures["iops"]], "bw": [round(value) for value in figures["bw"]],
        },
    }  # fmt: skip


def _side(records: Iterable[dict[str, Any]], way: str) -> Side:
    side = Side()
    for record in records:
        result = record["result"]
        part = result.get(way)
        if part is None:
            continue
        alone = ("write" if way == "read" else "read") not in result
        points = [_point(p, way, alone) for p in result.get("series") or [] if not p.get("warmup")]
        side.add(part, part.get("histogram") or result["histogram"], result["seconds"], [p for p in points if p])
    return side


def _point(point: dict[str, Any], way: str, alone: bool) -> tuple[float, float] | None:
    own = point if alone else point.get(way)
    return (own["gib_s"] * GIB / 1024, own["iops"]) if own else None


def _direction(side: Side, both: Side, asked: Asked) -> dict[str, Any]:
    per_s = 1 / side.seconds if side.seconds else 0.0
    lat = {**side.spread()}
    clat = dict(lat)
    if side.bins:
        lat |= _percentiles(side, asked) if asked.of_lat else {}
        clat |= _percentiles(side, asked) if asked.of_clat else {}
    rates, of_all = _samples(side.points), side.bytes * per_s / 1024
    bw, iops = _spread([kib for kib, _ in rates]), _spread([ios for _, ios in rates])
    return {
        "io_bytes": side.bytes, "io_kbytes": side.bytes >> 10, "bw_bytes": int(side.bytes * per_s),
        "bw": int(side.bytes * per_s / 1024), "iops": round(side.ios * per_s, 6), "runtime": round(1000 * side.seconds),
        "total_ios": side.ios, "short_ios": 0, "drop_ios": 0,
        "slat_ns": {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}, "clat_ns": clat, "lat_ns": lat,
        "bw_min": round(bw[0]), "bw_max": round(bw[1]),
        "bw_agg": round(min(100 * bw[2] / of_all, 100.0), 6) if of_all else 0.0,
        "bw_mean": round(bw[2], 6), "bw_dev": round(bw[3], 6), "bw_samples": len(rates),
        "iops_min": round(iops[0]), "iops_max": round(iops[1]), "iops_mean": round(iops[2], 6),
        "iops_stddev": round(iops[3], 6), "iops_samples": len(rates),
    }  # fmt: skip


def _percentiles(side: Side, asked: Asked) -> dict[str, Any]:
    found: dict[str, Any] = {"percentile": side.percentiles(asked.percentiles)}
    if asked.with_bins:
        bins: Bins = {}
        for ns, count in sorted(side.bins.items()):
            bins[bin_of(ns)] = bins.get(bin_of(ns), 0) + count
        found["bins"] = {str(ns): count for ns, count in bins.items()}
    return found


def _samples(points: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The series of runs that went at the same time, as one."""
    most = max((len(each) for each in points), default=0)
    return [
        (sum(each[n][0] for each in points if n < len(each)), sum(each[n][1] for each in points if n < len(each)))
        for n in range(most)
    ]


def _spread(values: list[float]) -> tuple[float, float, float, float]:
    if not values:
        return 0.0, 0.0, 0.0, 0.0
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    return min(values), max(values), mean, math.sqrt(variance)


def _levels(depth: int) -> dict[str, float]:
    """All I/Os at the depth that was asked for."""
    level = max((d for d in DEPTHS if d <= depth), default=0)
    return {(f">={d}" if d == 64 else str(d)): 100.0 if d == level else 0.0 for d in DEPTHS}


def _batches() -> dict[str, float]:
    return dict.fromkeys(BATCHES, 0.0)


def _latencies(bins: Bins) -> dict[str, dict[str, float]]:
    """Per cent of the I/Os between fio's bounds: below a microsecond, below a millisecond, above."""
    total = sum(bins.values())
    tables = {
        unit: {str(bound): 0 for bound in bounds} for unit, bounds in (("ns", NS_BOUNDS), ("us", NS_BOUNDS), ("ms", MS_BOUNDS))
    }
    tables["ms"][">=2000"] = 0
    for ns, count in bins.items():
        unit, value = ("ns", ns) if ns < 1000 else ("us", ns // 1000) if ns < 1_000_000 else ("ms", ns // 1_000_000)
        bound = next((str(b) for b in (MS_BOUNDS if unit == "ms" else NS_BOUNDS) if value < b), ">=2000")
        tables[unit][bound] += count
    return {
        f"latency_{unit}": {bound: round(100 * count / total, 6) if total else 0.0 for bound, count in table.items()}
        for unit, table in tables.items()
    }
