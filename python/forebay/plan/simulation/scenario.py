"""Scenario of a simulation: hosts, hours, jitter, faults and jobs beside the plan's own. What can't happen is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.errors import RequestError
from forebay.plan.simulation.options import FLAGS
from forebay.plan.system import IO, System, make

OWN, SHARED = "own", "shared"
MEAN, TRACE = "mean", "trace"
NUMBER_MAX = 1e15
SHAPES = ("lognormal", "pareto", "exponential")
JITTERED = ("compute", "requests")
# Of a system's settings, those that another job may have otherwise.
OF_SAMPLES = ("mode", "sample_bytes", "samples_per_s")
OF_JOB = ("workload", "accelerator", "accelerators", "workers", "depth", "io_size", "path", "dataset")
JOB_KEYS = ("name", "hosts", "start", "stop", *OF_JOB)
FAULT_KEYS = {
    "drive": ("at", "slow", "until", "drive", "host"),
    "host": ("at", "back", "without", "host", "job"),
}
HOSTS_MAX, SEEDS_MAX, HOURS_MAX, JOBS_MAX = 65_536, 100, 8760.0, 64
SEED, SEEDS = 7, 5


@dataclass(frozen=True)
class Job:
    """A workload on `hosts` hosts from `start` to `stop` (seconds; None: to the end). `system`: as one host has it."""

    name: str
    system: System
    hosts: int
    start: float = 0.0
    stop: float | None = None


@dataclass(frozen=True)
class Fault:
    """`kind` drive: number `drive` of `host`'s storage is `slow` times as fast (0: gone) from `at` to `until`.

    `kind` host: host number `host` of job number `job` goes `at`, and comes `back`, or its job goes on `without` it.
    All in seconds; None: never.
    """

    kind: str
    at: float
    host: int = 0
    drive: int = 0
    slow: float = 0.0
    until: float | None = None
    job: int = 0
    back: float | None = None
    without: float | None = None

    def document(self) -> dict[str, Any]:
        keys = ("kind", *FAULT_KEYS[self.kind])
        return {k: v for k, v in self.__dict__.items() if k in keys and v is not None}


@dataclass(frozen=True)
class Scenario:
    """`jitter`: what differs → (shape, coefficient of variation). `copies`: reads go to drives that have them. `sizes`:
    samples are all of their mean, or each of its own, in the order that the trace reads them."""

    jobs: tuple[Job, ...]
    hours: float = 1.0
    storage: str = OWN
    copies: bool = False
    sizes: str = MEAN
    seed: int = SEED
    seeds: int = 1
    jitter: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    @property
    def seconds(self) -> float:
        return self.hours * 3600.0


def make_scenario(system: System, of_file: Mapping[str, Any], flags: Mapping[str, Any], more: list[Any], where: str) -> Scenario:
    """Out of the file's [simulate] and the flags, which win. RequestError names what can't be."""
    unknown = sorted(set(of_file) - set(FLAGS))
    if unknown:
        raise RequestError(f"{where}: [simulate] {unknown[0]}", "is not a setting of a simulation", "one of " + ", ".join(FLAGS))
    given = {**of_file, **flags}
    hours = _number("hours", given.get("hours", 1.0), 0.0, HOURS_MAX)
    remote = system.location == "remote"
    storage = _one_of("storage", given.get("storage", SHARED if remote else OWN), (OWN, SHARED))
    if storage == SHARED and not remote:
        raise RequestError("--storage shared", "contradicts location local, whose drives belong to one host", "--location remote")
    if storage == SHARED and system.pcie and any(s.drives for s in system.pcie):
        raise RequestError("--storage shared", "contradicts drives in the PCIe tree of one host", "nics in the tree")
    hosts = _whole("hosts", given.get("hosts", 1), 1, HOSTS_MAX)
    first = Job(system.workload, system, hosts)
    _refuse_loads(system, "--simulate")
    others = [_job(t, system, hours * 3600.0, more) for t in _tables("job", given.get("job", ()), _settings)]
    jobs = _named((first, *others))
    jitter = _jitter(given.get("jitter", ()))
    faults = tuple(_fault(t, jobs, storage, hours * 3600.0) for t in _tables("fault", given.get("fault", ()), _fault_text))
    sizes = _one_of("sizes", given.get("sizes", MEAN), (MEAN, TRACE))
    seeds = _whole("seeds", given.get("seeds", SEEDS if jitter or sizes == TRACE else 1), 1, SEEDS_MAX)
    seed = _whole("seed", given.get("seed", SEED), 0, 2**53)
    copies = given.get("copies", False)
    if not isinstance(copies, bool):
        raise RequestError(f"copies {copies}", "is neither true nor false", "copies = true")
    return Scenario(jobs, hours, storage, copies, sizes, seed, seeds, jitter, faults)


def _named(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Each with a name of its own."""
    if len(jobs) > JOBS_MAX:
        raise RequestError(f"{len(jobs)} jobs", f"are more than {JOBS_MAX}", "fewer --job")
    found: list[Job] = []
    for job in jobs:
        name, number = job.name, 2
        while name in [j.name for j in found]:
            name, number = f"{job.name} {number}", number + 1
        found.append(Job(name, job.system, job.hosts, job.start, job.stop))
    return tuple(found)


def _tables(what: str, given: Any, parse: Any) -> list[dict[str, Any]]:
    """Tables of a file as they are, texts of flags parsed."""
    if not isinstance(given, (list, tuple)):
        raise RequestError(f"[simulate] {what}", "is not a list of tables", f"[[simulate.{what}]]")
    return [t if isinstance(t, dict) else parse(f"--{what} {t}", str(t)) for t in given]


def _settings(asked: str, text: str) -> dict[str, Any]:
    """`workers=64,start=600` → numbers where they are numbers."""
    found: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key in found:
            raise RequestError(asked, f"'{pair}' is not a setting, or is given twice", "workload=io,workers=64")
        found[key] = _scalar(value.strip()) if key != "io_size" else value.strip()
    return found


def _scalar(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _fault_text(asked: str, text: str) -> dict[str, Any]:
    """`drive@600:slow=0.5,until=1200` as its table."""
    head, _, rest = text.partition(":")
    kind, at, when = head.partition("@")
    if not at:
        raise RequestError(asked, "has no time", "drive@600:slow=0.5,until=1200 (seconds)")
    return {"kind": kind.strip(), "at": _scalar(when.strip()), **_settings(asked, rest)}


def _job(table: dict[str, Any], system: System, seconds: float, more: list[Any]) -> Job:
    where = f"job {table.get('name', table.get('workload', IO))}"
    unknown = sorted(set(table) - set(JOB_KEYS))
    if unknown:
        raise RequestError(f"{where}: {unknown[0]}", "is not a setting of a job", "one of " + ", ".join(JOB_KEYS))
    skipped = ["accelerators", "hosts", "given", *(("sharers",) if system.link is None else ())]
    # What a sample is belongs to a workload; of another one nothing was said.
    skipped += [key for key in OF_SAMPLES if key not in system.given or table.get("workload", IO) != system.workload]
    base = {k: v for k, v in system.__dict__.items() if v is not None and k not in skipped}
    own = make({**base, "workload": IO, **{k: v for k, v in table.items() if k in OF_JOB}}, more, where)
    if own.caches:
        raise RequestError(f"{where}: workload kvcache", "can't be one job among others", "plan run --workload kvcache")
    _refuse_loads(own, where)
    start = _number(f"{where}: start", table.get("start", 0.0), -1.0, seconds)
    stop = table.get("stop")
    if start < 0 or stop is not None and _number(f"{where}: stop", stop, 0.0, math.inf) <= start:
        raise RequestError(f"{where}: start {start:g}, stop {stop}", "stops before it starts", "start = 600, stop = 1200")
    name = table.get("name", own.workload)
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}: name {name}", "is not text", 'name = "scan"')
    hosts = _whole(f"{where}: hosts", table.get("hosts", 1), 1, HOSTS_MAX)
    return Job(name, own, hosts, start, None if stop is None else float(stop))


def _refuse_loads(system: System, where: str) -> None:
    """RequestError for a model that loads first: it is one read of so many bytes, of which a plan tells all."""
    if system.loads:
        said = f"{system.workload} loads first and then needs no storage"
        raise RequestError(where, said, "no --simulate" if system.workload == "gnn" else "--mode cold, or no --simulate")


def _jitter(given: Any) -> dict[str, tuple[str, float]]:
    """`compute=0.05`, `requests=pareto:0.5`, or the same as a table."""
    pairs = list(given.items()) if isinstance(given, dict) else [str(t).partition("=")[::2] for t in given]
    found: dict[str, tuple[str, float]] = {}
    for what, value in pairs:
        asked, next_ = f"--jitter {what}={value}", "compute=0.05, or requests=pareto:0.5"
        if what not in JITTERED or what in found:
            raise RequestError(asked, "is neither compute nor requests, or is given twice", next_)
        shape, colon, cv = str(value).rpartition(":")
        if not colon and cv in SHAPES:
            shape, cv = cv, "1"
        shape = shape or SHAPES[0]
        number = _scalar(cv)
        if shape not in SHAPES or not isinstance(number, (int, float)) or not 0 < number <= 10:
            raise RequestError(asked, "is not a distribution with a coefficient of variation from 0 to 10", next_)
        if shape == "exponential" and number != 1:
            raise RequestError(asked, "an exponential time's coefficient of variation is 1", "exponential, or lognormal:0.5")
        found[what] = (shape, float(number))
    return found


def _fault(table: dict[str, Any], jobs: Sequence[Job], storage: str, seconds: float) -> Fault:
    kind = table.get("kind")
    where = f"fault {kind}@{table.get('at')}"
    if kind not in FAULT_KEYS:
        raise RequestError(where, "is not a kind of fault", "drive@600 or host@600")
    unknown = sorted(set(table) - {"kind", *FAULT_KEYS[kind]})
    if unknown:
        raise RequestError(f"{where}: {unknown[0]}", f"isn't a setting of {kind} faults", "one of " + ", ".join(FAULT_KEYS[kind]))
    at = _number(f"{where}: at", table.get("at"), -1.0, math.inf)
    if not 0 <= at < seconds:
        raise RequestError(where, f"is outside the {seconds:g} simulated seconds", "an earlier second, or more --hours")
    later = {k: _later(where, k, table[k], at) for k in ("until", "back", "without") if table.get(k) is not None}
    if "back" in later and "without" in later:
        raise RequestError(where, "has both back and without", "one of them")
    if kind == "drive":
        return _drive_fault(table, Fault(kind, at, until=later.get("until")), jobs, storage, where)
    job = _which(where, "job", table.get("job", 0), len(jobs))
    if "without" in later and jobs[job].system.saves:
        said = "a checkpoint without one of its hosts is never complete"
        raise RequestError(f"{where}: without {later['without']:g}", said, f"back={at + 60:g}, or neither")
    host = _which(where, "host", table.get("host", 0), jobs[job].hosts)
    return Fault(kind, at, host, job=job, back=later.get("back"), without=later.get("without"))


def _drive_fault(table: dict[str, Any], fault: Fault, jobs: Sequence[Job], storage: str, where: str) -> Fault:
    hosts = 1 if storage == SHARED else max(job.hosts for job in jobs)
    host = _which(where, "host", table.get("host", 0), hosts)
    drive = _which(where, "drive", table.get("drive", 0), jobs[0].system.drives)
    slow = _number(f"{where}: slow", table["slow"], 0.0, 1.0) if "slow" in table else 0.0
    return Fault("drive", fault.at, host, drive, slow, fault.until)


def _later(where: str, key: str, value: Any, at: float) -> float:
    number = _number(f"{where}: {key}", value, 0.0, math.inf)
    if number <= at:
        raise RequestError(f"{where}: {key} {number:g}", "is not after it", f"{key}={at + 60:g}")
    return number


def _which(where: str, key: str, value: Any, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise RequestError(f"{where}: {key} {value}", f"doesn't exist: there are {count}, counted from 0", f"{key}={count - 1}")
    return value


def _number(asked: str, value: Any, above: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value <= min(most, NUMBER_MAX):
        least = f"above {above:g}" if above >= 0 else "from 0"
        shown = "" if math.isinf(most) else f" and at most {most:g}"
        raise RequestError(f"{asked} {str(value)[:60]}", f"is not a number {least}{shown}", f"{asked.split()[-1]} 1")
    return float(value)


def _whole(key: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{key} {value}", f"is not a whole number from {low} to {high:,}", f"{key} {max(low, 1)}")
    return value


def _one_of(key: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise RequestError(f"{key} {value}", "is not known", "one of " + ", ".join(choices))
    return str(value)
