"""A serving engine's KV cache on modelled drives: MLPerf Storage v3.0's options, played in virtual time.

Drives are taken at their data sheet, and no constant is fitted. What was published for the same options says how far off that
is: the lower end of the interval is the same run on drives that are slower by so much. No drive is faster than its data sheet,
so rates whose limit is the drive have nothing above the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.errors import RequestError
from forebay.numbers import figure
from forebay.plan import answer, assume, catalogue, decide, limits
from forebay.plan.estimate import Z80, Estimate
from forebay.plan.fit import Parameter
from forebay.plan.frozen import replace
from forebay.plan.planner import Planner
from forebay.plan.system import System
from forebay.stats import student_t
from forebay.units import GIB

Spec = dict[str, Any]
Part = dict[str, Any]
Play = Callable[[Spec], Part]

DRIVES_MAX = 1024
# A drive whose every figure is replaced by those of the data sheet.
BASE = "gen5-ideal"
# Microseconds of a write on an idle drive, by kind: it ends in the drive's power-safe buffer.
WRITE_LATENCY_US = {"nvme-tlc": 15.0, "nvme-qlc": 30.0, "sata-tlc": 50.0}
# Options whose published rates are a drive's; option 2's are those of its client, which virtual time leaves out.
OF_DRIVES = (1, 3)
# Of the requests that came: if more are never taken up, the queue grows.
LEFT_MOST = 0.01
OF_CLIENT = (
    "option 2: its memory tier is served by the client, which costs no time here; the one published result reads a third of "
    "what is predicted"
)
NO_RUNS = "your runs are of another drive: this one is planned from its data sheet"
READS_ALONE = "your runs say how fast this drive reads; writes and delays are the data sheet's"


@dataclass(frozen=True)
class Compared:
    """A published rate, and the one predicted from the data sheet: GiB/s as the reference publishes it, reads and writes."""

    option: int
    of: str
    predicted: tuple[float, float | None]
    published: tuple[float, float | None]

    def log_off(self, way: int) -> float | None:
        ours, theirs = self.predicted[way], self.published[way]
        return None if ours is None or theirs is None else math.log(ours / theirs)


# Solidigm's results of MLPerf Storage v3.0, one client; the last is of one trial, and its drive's writes are another capacity's.
COMPARED = (
    Compared(1, "one D7-PS1010", (15.23, 3.29), (14.53, 3.09)),
    Compared(2, "one D7-PS1010", (14.01, 4.72), (4.51, 3.53)),
    Compared(3, "one D7-PS1010", (14.85, 2.87), (14.29, 2.61)),
    Compared(1, "one D5-P5336", (8.13, None), (7.86, None)),
)


def spread(way: int) -> tuple[float, int]:
    """Root mean square of the logarithms of predicted ÷ published, and how many there are: 0 reads, 1 writes."""
    found = [off for one in COMPARED if one.option in OF_DRIVES and (off := one.log_off(way)) is not None]
    return math.sqrt(sum(off * off for off in found) / len(found)), len(found)


def slower(option: int) -> tuple[float, float]:
    """Factors of the bandwidths, reads and writes, at the lower end of the 80 % interval."""
    if option not in OF_DRIVES:
        one = next(c for c in COMPARED if c.option == option)
        return tuple(math.exp(-(one.log_off(way) or 0.0)) for way in (0, 1))  # type: ignore[return-value]
    ends = (math.exp(-student_t(count, 0.8) * sd) for sd, count in map(spread, (0, 1)))
    return tuple(ends)  # type: ignore[return-value]


@dataclass(frozen=True)
class Storage:
    """What a run is played on: drives, and what lies between them and the host (`cap`, GiB/s each way)."""

    drive: catalogue.Drive
    drives: int
    cap: float
    cap_name: str
    cap_sd: float

    def gib_s(self, factors: tuple[float, float] = (1.0, 1.0), low: bool = False) -> tuple[float, float]:
        """Reads and writes of all drives together, as far as the way to the host lets them."""
        cap = self.cap * math.exp(-Z80 * self.cap_sd) if low else self.cap
        write = (self.drive.seq_write_mbps or 0.0) * 1e6 / GIB
        each = (self.drive.read_gibps * factors[0], write * factors[1])
        return min(each[0] * self.drives, cap), min(each[1] * self.drives, cap)

    def latency_us(self) -> tuple[float, float]:
        return self.drive.latency()[0], WRITE_LATENCY_US[self.drive.kind]

    def source(self, factors: tuple[float, float] = (1.0, 1.0), low: bool = False) -> str:
        read, write = (rate * GIB / 1e6 / self.drives for rate in self.gib_s(factors, low))
        delay = self.latency_us()
        iops = f"&read_iops={self.drive.rand_read_4k_iops:g}" if self.drive.rand_read_4k_iops else ""
        return (
            f"model:{BASE}?drives={self.drives}&read_mb_s={read:.6f}&write_mb_s={write:.6f}"
            f"&latency_us={delay[0]:g}&write_latency_us={delay[1]:g}{iops}"
        )

    def in_flight_gib_s(self, spec: Spec) -> float:
        """Reads by Little's law: no more than what is in flight can arrive in the time that one takes."""
        seconds = self.latency_us()[0] / 1e6 + spec["io_bytes"] / GIB / self.drive.read_gibps
        return spec["depth"] * spec["workers"] * spec["io_bytes"] / GIB / seconds

    def limit(self, part: Part, spec: Spec) -> str:
        """The engine's word; where that is the drive, which of those that it stands for."""
        if part["limit"] != "drive":
            return part["limit"] or "nothing"
        most = self.stations(spec)
        return min(most, key=lambda name: most[name])

    def stations(self, spec: Spec) -> dict[str, float]:
        """GiB/s of reads at most, by each."""
        found = {"drive bandwidth": self.drive.read_gibps * self.drives, "requests in flight": self.in_flight_gib_s(spec)}
        return found | {self.cap_name: self.cap}


def storage(planner: Planner, system: System) -> Storage:
    """RequestError for a drive whose data sheet doesn't suffice, and for more drives than can be played."""
    drive = catalogue.drive(system.drive, planner.more)
    if drive.seq_write_mbps is None:
        said = "has no seq_write_mbps in its data sheet, and a KV cache writes"
        raise RequestError(f"drive {drive.name}", said, "--catalogue with seq_write_mbps = 4000")
    if system.drives > DRIVES_MAX:
        raise RequestError(f"drives {system.drives}", f"at most {DRIVES_MAX} can be played", f"drives {DRIVES_MAX}")
    own = planner.own_of(drive.name)
    if own is not None:
        each = own.delivers(system.drives).value / system.drives
        drive = replace(drive, seq_read_mbps=each * GIB / 1e6, source=f"{len(own.runs)} runs of yours")
    return Storage(drive, system.drives, *limits.way(planner, system))


def spec_of(system: System, option: Callable[[int], Spec]) -> Spec:
    """The engine's KvSpec, but for its `dir`."""
    asked = {key: getattr(system, key) for key in ("users", "model", "ranks", "admission")}
    moved = {"io_bytes": system.io_size, "workers": system.workers, "depth": system.depth}
    return option(system.option or 1) | moved | {k: v for k, v in asked.items() if v is not None}


# Figures that rest on how fast the drives read.
OF_READS = ("throughput_gib_s", "read_as_published_gib_s", "read_drained_gib_s", "entry_read_p95_ms", "request_p95_ms")
FIGURES = (
    ("throughput_gib_s", ("read_gib_s", "window")),
    ("read_as_published_gib_s", ("read_gib_s", "as_published")),
    ("read_drained_gib_s", ("read_gib_s", "drained")),
    ("write_gib_s", ("write_gib_s", "window")),
    ("write_as_published_gib_s", ("write_gib_s", "as_published")),
    ("write_drained_gib_s", ("write_gib_s", "drained")),
    ("storage_tokens_per_s", ("storage_tokens_per_s",)),
    ("entry_read_p95_ms", ("latency_ms", "entry_read", "p95")),
    ("entry_write_p95_ms", ("latency_ms", "entry_write", "p95")),
    ("request_p95_ms", ("latency_ms", "request", "p95")),
)


def figure_of(part: Part, path: tuple[str, ...]) -> float | None:
    value: Any = part
    for key in path:
        value = value[key]
    return value


def plan(
    planner: Planner, system: System, play: Play, option: Callable[[int], Spec], calibrated: bool = False
) -> dict[str, Any]:
    """forebay.plan/1 of a KV cache. `calibrated`: runs were given. RequestError for what can't be."""
    spec, drives = spec_of(system, option), storage(planner, system)
    factors = slower(spec["option"])
    part = play(spec | {"dir": drives.source()})
    low = play(spec | {"dir": drives.source(factors, low=True)})
    row = answer.flat(system, {})
    for name, path in FIGURES:
        value, other = figure_of(part, path), figure_of(low, path)
        if value is not None and other is not None:
            one = Estimate(value, min(value, other), max(value, other), "")
            row |= {name: one.value, f"{name}_p10": one.p10, f"{name}_p90": one.p90}
    row["bottleneck"] = drives.limit(part, spec)
    row["limit"], row["limit_reason"] = part["limit"], part["limit_reason"]
    row["utilisation"] = utilisation(part, drives, spec)
    asked = ("option", "model", "users", "ranks", "admission", "host_tier_bytes", "duration_s", "seed")
    row["kvcache"] = {key: spec[key] for key in asked} | {"requests": part["requests"], "hits": part["hits"]}
    row["assumptions"] = part["assumptions"]
    row["interval"] = basis(spec["option"])
    own = planner.own_of(system.drive)
    row["warnings"] = warnings(spec, part) + ([READS_ALONE if own else NO_RUNS] if calibrated else [])
    row["own_runs"] = own.said(OF_READS) if own else None
    row["assumed"] = [a.document() for a in assume.listed(planner, system)]
    row["decision"] = decision(system, spec, row)
    row["parameters"] = [p.document() for p in parameters(drives, spec["option"])]
    return row | {"schema": "forebay.plan/1", "origin": "predicted"}


def decision(system: System, spec: Spec, row: dict[str, Any]) -> str:
    """Returns what the drives bring to these users, in words."""
    rate, low, high = (figure(row[f"throughput_gib_s{end}"]) for end in ("", "_p10", "_p90"))
    left = row["kvcache"]["requests"]["left_queued"] / max(1, row["kvcache"]["requests"]["offered"])
    served = "every request is taken up" if left <= LEFT_MOST else f"{100 * left:.0f} % of their requests are never taken up"
    for_whom = f"{spec['users']} users of option {spec['option']}"
    said = f"{system.drives} × {system.drive} read {rate} ({low} to {high}) GiB/s for {for_whom}"
    return f"{said}; {served}; what limits it is {decide.words(row['bottleneck'])}."


def utilisation(part: Part, drives: Storage, spec: Spec) -> dict[str, float]:
    """Share of its limit that each station was at in the window."""
    rate, places = part["read_gib_s"]["window"], part["served_at_once"] * part["ranks"]
    found = {name: rate / most for name, most in drives.stations(spec).items()}
    found |= {"admission": part["occupied"]["admission_full"], "places to serve a request": part["occupied"]["serving"] / places}
    return {name: min(1.0, share) for name, share in found.items() if share > answer.LEAST_SHARE}


def basis(option: int) -> str:
    """Origin of the interval, in words."""
    rows = [c for c in COMPARED if (c.option in OF_DRIVES) == (option in OF_DRIVES)]
    reported = "; ".join(
        f"option {c.option} on {c.of}: {c.predicted[0]:.2f} GiB/s as published is predicted, {c.published[0]:.2f} was published"
        for c in rows
    )
    if option not in OF_DRIVES:
        return f"down to as much below the value as the one published result was ({reported}); nothing lies above the data sheet"
    return f"the lower end by the {len(rows)} comparisons that there are ({reported}); nothing lies above the data sheet"


def warnings(spec: Spec, part: Part) -> list[str]:
    """Remarks to know before relying on it."""
    found = []
    if spec["option"] not in OF_DRIVES:
        found.append(OF_CLIENT)
    left, offered = part["requests"]["left_queued"], part["requests"]["offered"]
    if left > LEFT_MOST * offered:
        found.append(
            f"users ask for more than is served: {100 * left / offered:.0f} % of {offered:,} requests were never taken up; "
            "plan recommend --kv-users says what serves them all"
        )
    return found


def parameters(drives: Storage, option: int) -> list[Parameter]:
    """Sources that the answer rests on."""
    sheet, name = drives.drive, drives.drive.name
    latency, of_log, source, why = sheet.latency()
    found = []
    for way, (word, rate) in enumerate((("read", sheet.read_gibps), ("write", (sheet.seq_write_mbps or 0) * 1e6 / GIB))):
        sd, count = spread(way)
        if option not in OF_DRIVES:
            sd, count = abs(next(c for c in COMPARED if c.option == option).log_off(way) or 0.0), 1
        because = f"data sheet: {sheet.source}; spread of {count} published result{'s' if count > 1 else ''} about the prediction"
        found.append(Parameter(f"{word} bandwidth[{name}]", rate, "GiB/s", "spec", rate * sd, because, True))
    found.append(Parameter(f"read latency[{name}]", latency, "us", source, latency * of_log, why, False))
    write = WRITE_LATENCY_US[sheet.kind]
    found.append(Parameter(f"write latency[{name}]", write, "us", "prior", 0.2 * write, f"usual for {sheet.kind}", False))
    return found
