"""`forebay plan recommend`: the cheapest complete system that meets a target, what each alternative lacks, and what else to know.

A system is complete with drives, hosts, requests in flight and, across a fabric, the DPU's queues. Hosts cost more than drives,
so of each drive the fewest hosts are taken on which any number of drives meets the target, then the fewest drives there. A
choice meets the target if its 10 % bound does: nine times in ten it is enough. Prices, watts and endurance are the
catalogue's or the user's; what has none can't be ranked by it, and the answer says so.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.errors import RequestError
from forebay.numbers import figure
from forebay.paths import GDS
from forebay.plan import answer, assume, catalogue, decide, flow, models
from forebay.plan.decide import OF_DRIVES, READERS, words
from forebay.plan.estimate import Estimate
from forebay.plan.frozen import replace
from forebay.plan.jobs import DLRM, H100, IO
from forebay.plan.planner import Planner
from forebay.plan.system import System
from forebay.units import format_bytes

BY = ("drives", "price", "watts")
# Drives in all, hosts, and drives that fit into a host where nobody says how many.
DRIVES_MAX, HOSTS_MAX, BAYS = 1024, 256, 24
TARGET_MAX = 1e12
IN_FLIGHT, QUEUES, CORES = "requests in flight", "DPU queues", "host cores"
DOUBLINGS = 12
# A station busier than this limits; one below SPARE has room to give back.
BUSY, SPARE = 0.9, 0.5
WORKERS_LEAST = 16
DAYS, YEARS = 365.0, 5.0


@dataclass(frozen=True)
class Target:
    """One of: accelerators that pass, GiB/s, minutes to train, seconds to load, to start, or for a checkpoint."""

    accelerators: int | None = None
    gibps: float | None = None
    minutes: float | None = None
    seconds: float | None = None

    @property
    def longest(self) -> float | None:
        """Returns the time that it may take at most, where a time is asked for."""
        return self.seconds if self.minutes is None else self.minutes

    def check(self) -> None:
        given = [v for v in (self.accelerators, self.gibps, self.minutes, self.seconds) if v is not None]
        if len(given) != 1:
            next_ = "one of --accelerators 8, --gib-s 20, --minutes 6, --seconds 30, --kv-users 50"
            raise RequestError("the target", f"{len(given)} were given", next_)
        if not 0 < given[0] < TARGET_MAX:
            raise RequestError(f"the target {str(given[0])[:60]}", "must be a number above 0", "a target above 0")

    def met(self, estimate: Estimate) -> bool:
        """Returns whether it is met nine times in ten."""
        if self.longest is not None:
            return estimate.p90 <= self.longest
        wanted = self.gibps if self.gibps is not None else self.accelerators
        assert wanted is not None
        return estimate.p10 >= wanted


# Needs whose flags have shorter names.
FLAGS = {"capacity_tb": "capacity", "writes_tb_day": "writes"}


@dataclass(frozen=True)
class Needs:
    """Requirements of a purchase besides the target. `capacity_tb` without parity; `parity`: drives of each RAID that may fail;
    `writes_tb_day` over `years`; `bays`: drives that fit into a host; `host_price`: of a host without drives."""

    capacity_tb: float | None = None
    parity: int = 0
    writes_tb_day: float | None = None
    years: float = YEARS
    bays: int = BAYS
    host_price: float | None = None

    def check(self) -> None:
        for name, value in self.__dict__.items():
            least = 0 if name == "parity" else 1e-9
            if value is not None and not least <= value < TARGET_MAX:
                flag = "--" + FLAGS.get(name, name).replace("_", "-")
                raise RequestError(f"{flag} {value:g}", "must be a number above 0", f"{flag} {max(1, int(least))}")
        if self.parity > 2:
            raise RequestError(f"--parity {self.parity}", "at most two drives of a RAID may fail", "--parity 1, or 2")
        if self.bays <= self.parity:
            said = f"leaves no room for data beside {self.parity} of parity"
            raise RequestError(f"--bays {self.bays:g}", said, f"--bays {self.parity + 1}, or more")

    def least(self, drive: catalogue.Drive) -> tuple[int, str]:
        """Data drives for capacity and endurance; and what the data sheet lacks to say so, or ""."""
        count = 1
        if self.capacity_tb is not None:
            if drive.capacity_tb is None:
                return 1, "no capacity_tb given"
            count = max(count, math.ceil(self.capacity_tb / drive.capacity_tb - 1e-9))
        if self.writes_tb_day is not None:
            if drive.endurance_pbw is None:
                return 1, "no endurance_pbw given"
            count = max(count, math.ceil(self.writes_tb_day * DAYS * self.years / (drive.endurance_pbw * 1000) - 1e-9))
        return count, ""


@dataclass(frozen=True)
class Choice:
    """A complete system: `system` with its data drives, `spare` drives of parity beside them. `sources`: see `command`."""

    system: System
    sheet: catalogue.Drive
    spare: int
    estimate: Estimate
    needs: Needs
    lacks: list[str] = field(default_factory=list)
    sources: Sequence[str] = ()

    @property
    def drives(self) -> int:
        return self.system.drives + self.spare

    @property
    def price(self) -> float | None:
        if self.sheet.price is None:
            return None
        return self.drives * self.sheet.price + self.system.hosts * (self.needs.host_price or 0.0)

    @property
    def watts(self) -> float | None:
        return None if self.sheet.watts is None else self.drives * self.sheet.watts

    def cost(self, by: str) -> float:
        found = {"drives": float(self.drives), "price": self.price, "watts": self.watts}[by]
        return math.inf if found is None else found

    def document(self, by: str) -> dict[str, Any]:
        system, sheet = self.system, self.sheet
        remote = system.location == "remote"
        return {
            "drive": system.drive,
            "drives": self.drives,
            "parity_drives": self.spare,
            "drives_per_host": None if remote else self.drives // system.hosts,
            "hosts": system.hosts,
            "threads": system.threads,
            "memory_gib": system.memory,
            "requests": system.workers * system.depth,
            "queues": (system.queues or flow.QUEUES_MAX) if remote else None,
            "price": self.price,
            "watts": self.watts,
            "capacity_tb": None if sheet.capacity_tb is None else sheet.capacity_tb * system.drives,
            "endurance_pbw": None if sheet.endurance_pbw is None else sheet.endurance_pbw * system.drives,
            "cost": self.cost(by) if math.isfinite(self.cost(by)) else None,
            "estimate": self.estimate.document(),
            "limit": words(self.estimate.bottleneck),
            "lacks": self.lacks,
            "command": command(system, self.drives, self.sources),
        }


def command(system: System, drives: int, sources: Sequence[str] = ()) -> str:
    """The plan of a choice, to type. `sources`: what no setting of a system says, as a user's runs, catalogue or PCIe tree."""
    said = {**system.settings, "drive": system.drive, "drives": drives, "hosts": system.hosts, "workers": system.workers}
    said |= {"depth": system.depth} if system.depth > 1 else {}
    said |= {"queues": system.queues} if system.queues else {}
    said |= {"workload": system.workload} if system.workload != "io" else {}
    flags = [part for key, value in said.items() if key != "pcie" for part in (f"--{key.replace('_', '-')}", _typed(key, value))]
    return shlex.join(["forebay", "plan", "run", *sources, *flags])


def _typed(key: str, value: Any) -> str:
    """A setting as its flag takes it, to the last digit: a target may be met exactly."""
    if key == "io_size":
        size = format_bytes(value)
        return f"{size}b" if size.isdigit() else size
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Search:
    """The fewest hosts, drives and queues of one drive that meet a target."""

    planner: Planner
    system: System
    target: Target
    needs: Needs

    def at(self, hosts: int, drives: int, queues: int | None = None) -> tuple[System, Estimate]:
        """A settled system of so many data drives, and what the target asks for of it."""
        given = self.system.given | {"drives", "hosts"}
        made = replace(self.system, hosts=hosts, drives=drives, queues=queues or self.system.queues, given=given)
        if made.modelled and self.target.accelerators is not None:
            # Of as many GPUs as are asked for, which the plan of a choice then says, too.
            made = replace(made, accelerators=self.target.accelerators, given=given | {"accelerators"})
        made = assume.with_requests(self.planner, made)
        return made, estimates(self.planner, [made], self.target)[0]

    def meets(self, hosts: int, drives: int, queues: int | None = None) -> bool:
        return self.target.met(self.at(hosts, drives, queues)[1])

    @property
    def local(self) -> bool:
        return self.system.location == "local"

    def room(self, hosts: int) -> int:
        """Data drives that so many hosts hold; of remote ones as many as are tried."""
        return (self.needs.bays - self.needs.parity) * hosts if self.local else DRIVES_MAX

    def choice(self, sheet: catalogue.Drive, least: int) -> tuple[Choice, bool]:
        """The choice; where nothing meets the target the most that was tried, and False."""
        # Further hosts would have GPUs that start, too.
        fixed = "hosts" in self.system.given or self.target.minutes is not None or models.infers(self.system.workload)
        low, high = (self.system.hosts, self.system.hosts) if fixed else (1, HOSTS_MAX)
        if self.system.modelled and not fixed:
            low = min(high, max(low, math.ceil((self.target.accelerators or 1) / models.GPUS)))
        if self.local:
            low = max(low, math.ceil(least / max(1, self.needs.bays - self.needs.parity))) if not fixed else low
        hosts = fewest(lambda n: self.room(n) >= least and self.meets(n, self._most(n)), low, high)
        if hosts is None:
            most = self._worth(high)
            system, estimate = self.at(most, self._enough(most))
            return Choice(system, sheet, self._spare(most), estimate, self.needs), False
        # Whole hosts: local drives are the same number in each.
        step = hosts if self.local else 1
        first = max(math.ceil(least / step), sum(switch.drives for switch in self.system.pcie), 1)
        count = fewest(lambda n: self.meets(hosts, n * step), first, max(first, self._most(hosts) // step))
        assert count is not None
        queues = self._queues(hosts, count * step)
        system, estimate = self.at(hosts, count * step, queues)
        return Choice(system, sheet, self._spare(hosts), estimate, self.needs), True

    def _most(self, hosts: int) -> int:
        step = hosts if self.local else 1
        return max(1, min(self.room(hosts), DRIVES_MAX) // step) * step

    def _worth(self, high: int) -> int:
        """Returns the hosts beyond which more change next to nothing."""
        tried = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= high] or [high]
        if high not in tried:
            tried = [high]
        found = [self.at(n, self._most(n))[1] for n in tried]
        ends = [1 / e.p90 if self.target.longest is not None else e.p10 for e in found]
        return next(n for n, end in zip(tried, ends, strict=True) if end >= 0.99 * max(ends))

    def _enough(self, hosts: int) -> int:
        """Returns the drives beyond which more change next to nothing."""
        step, most = hosts if self.local else 1, self._most(hosts)

        def end(drives: int) -> float:
            estimate = self.at(hosts, drives)[1]
            return 1 / estimate.p90 if self.target.longest is not None else estimate.p10

        best = end(most)
        return (fewest(lambda n: end(n * step) >= 0.99 * best, 1, most // step) or most // step) * step

    def _spare(self, hosts: int) -> int:
        return self.needs.parity * (hosts if self.local else 1)

    def _queues(self, hosts: int, drives: int) -> int | None:
        if self.local or self.system.queues is not None:
            return self.system.queues
        return fewest(lambda n: self.meets(hosts, drives, n), 1, flow.QUEUES_MAX) or flow.QUEUES_MAX


def fewest(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The least whole number from `low` to `high` for which it holds, as it does for all above; None where it never does.

    By doubling steps, then bisection: what is asked of large numbers may be dear.
    """
    below, step, at = low - 1, 1, low
    while at <= high and not holds(at):
        below, at, step = at, min(at + step, high) if at < high else high + 1, 2 * step
    if at > high:
        return None
    while at - below > 1:
        middle = (below + at) // 2
        below, at = (below, middle) if holds(middle) else (middle, at)
    return at


def recommend(
    planner: Planner, system: System, target: Target, by: str, drives: Sequence[catalogue.Drive], needs: Needs | None = None,
    sources: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """forebay.recommend/1. RequestError where the ranking lacks every price; no choice is an answer, with the reason.
    `sources`: see `command`."""
    target.check()
    needs = needs or Needs()
    needs.check()
    ranked(by, drives)
    if target.gibps is not None and system.workload != IO:
        said = f"are of plain reads, and {system.workload} is planned in {_measure(system)}"
        asked = f"--gib-s {target.gibps:g} with --workload {system.workload}"
        raise RequestError(asked, said, "no --workload, or another target")
    if target.seconds is not None and not (system.loads or system.saves):
        said = f"{system.workload} isn't planned in seconds"
        raise RequestError(f"--seconds {target.seconds:g}", said, "--workload gnn, infer-bert --mode coldstart, or llama3-8b")
    if target.minutes is not None:
        system = replace(system, workload=DLRM, accelerator=H100, accelerators=None)
    best: list[Choice] = []
    short: list[Choice] = []
    left: list[str] = []
    for drive in drives:
        least, lacking = needs.least(drive)
        lacking = lacking or (f"no {by} given" if by != "drives" and getattr(drive, by) is None else "")
        if lacking:
            left.append(f"{drive.name}: {lacking}")
            continue
        choice, met = Search(planner, replace(system, drive=drive.name), target, needs).choice(drive, least)
        (best if met else short).append(choice)
    best.sort(key=lambda c: (c.cost(by), c.system.hosts, c.estimate.p10 * (-1 if target.longest is None else 1)))
    short.sort(key=lambda c: c.system.drive)
    best = [replace(c, lacks=_beside(best[0], c), sources=sources) for c in best]
    short = [replace(c, lacks=[_lacking(planner, c, target)], sources=sources) for c in short]
    first = best[0] if best else _nearest(target, short) if short else None
    given = system.given | ({"accelerators"} if system.modelled and target.accelerators is not None else set())
    reported = replace(first.system, given=given) if first else system
    return {
        "schema": "forebay.recommend/1",
        "target": {k: v for k, v in target.__dict__.items() if v is not None},
        "by": by,
        "needs": {k: v for k, v in needs.__dict__.items() if v is not None},
        "decision": _decision(planner, target, best, short),
        "assumed": [a.document() for a in assume.listed(planner, reported)] if first else [],
        "choices": [c.document(by) for c in best],
        "not_enough": [c.document(by) for c in short],
        "advice": _advice(planner, best[0].system, target) if best else [_why_not(target, short)],
        "left_out": left,
        "warnings": warnings(system),
        "demand": None,
        "rests_on_runs": [],
    }


def _measure(system: System) -> str:
    return "minutes" if system.in_minutes else "accelerators" if system.emulated else "seconds"


def ranked(by: str, drives: Sequence[catalogue.Drive]) -> None:
    """RequestError where nothing tells what the drives are ranked by."""
    if by != "drives" and not any(getattr(d, by) for d in drives):
        raise RequestError(f"--by {by}", f"no drive of the catalogue has {by}", f"a catalogue with {by} = 123, or --by drives")


def estimates(planner: Planner, systems: Sequence[System], target: Target) -> list[Estimate]:
    """Returns the estimates that the target asks for, of each system."""
    if target.gibps is not None:
        return answer.rates(planner, list(systems))
    if target.minutes is not None:
        return answer.minutes(planner, list(systems))
    if target.seconds is not None:
        return [_seconds(found) for found in answer.jobs_estimates(planner, systems)]
    if not systems[0].emulated:
        asked = f"--accelerators with workload {systems[0].workload}"
        if systems[0].loads or systems[0].saves:
            raise RequestError(asked, "is planned in seconds", "--seconds 30")
        raise RequestError(asked, "isn't emulated", "--workload unet3d, resnet50 or cosmoflow")
    return planner.training.greatest([answer.setup_of(planner, s, None) for s in systems])


def _seconds(found: dict[str, Estimate]) -> Estimate:
    """To load or to start; of a checkpoint the longer of writing and reading it."""
    return max((e for key, e in found.items() if key.endswith("_s") and e.unit == "s"), key=lambda e: e.p90)


def wanted(target: Target, system: System) -> str:
    """The target in words."""
    if target.gibps is not None:
        return f"{figure(target.gibps)} GiB/s"
    if target.minutes is not None:
        return f"DLRM in {figure(target.minutes)} minute{'' if target.minutes == 1 else 's'}"
    if target.seconds is not None:
        return f"{system.workload} in {figure(target.seconds)} s"
    name = f"× {system.trains_on}" if system.trains_on else "accelerators"
    return f"{target.accelerators} {name}"


def _decision(planner: Planner, target: Target, best: Sequence[Choice], short: Sequence[Choice]) -> str:
    """The first choice in a sentence; without one, what comes nearest."""
    if not best:
        return _why_not(target, short) + "."
    one = best[0]
    system = one.system
    count = "one host" if system.hosts == 1 else f"{system.hosts} hosts"
    parity = f" ({one.spare} of them for parity)" if one.spare else ""
    place = f"on {count} of {system.threads} threads"
    if system.location == "remote":
        place = f"remote, through {system.queues or flow.QUEUES_MAX} DPU queues, for {count}"
    said = f"{wanted(target, system)}: {one.drives} × {system.drive}{parity} {place}"
    said += f", {system.workers * system.depth} requests in flight" if target.gibps is not None else ""
    row = answer.answer(planner, replace(system, accelerators=target.accelerators))
    return "; ".join([said, *decide.busy_and_limits(row)]) + "."


def _beside(first: Choice, other: Choice) -> list[str]:
    """Returns what a further choice needs more of than the first, or isn't known of it."""
    found = []
    for what, ours, theirs in (
        ("drives", first.drives, other.drives), ("hosts", first.system.hosts, other.system.hosts),
        ("in price", first.price, other.price), ("watts", first.watts, other.watts),
    ):  # fmt: skip
        if ours is not None and theirs is not None and theirs > ours:
            more = theirs - ours
            found.append(f"{figure(more)} more {what[:-1] if more == 1 and what in ('drives', 'hosts') else what}")
    for name in ("price", "watts"):
        if getattr(first, name) is not None and getattr(other, name) is None:
            found.append(f"no {name} given")
    return found


def _lacking(planner: Planner, choice: Choice, target: Target) -> str:
    """Returns why a system doesn't meet the target, and what to type where that is a setting."""
    e, system = choice.estimate, choice.system
    unit = "minutes" if target.minutes is not None else "s"
    got = f"{figure(e.p90)} {unit} at the high end" if target.longest is not None else f"{figure(e.p10)} at the low end"
    fixed = models.rest_s(planner, system) if system.loads else 0.0
    if target.seconds is not None and target.seconds <= fixed:
        return f"{got}; {figure(fixed)} s of it depend on no drive"
    return f"{got}; what limits it is {words(e.bottleneck)}{remedy(planner, system, target, e.bottleneck)}"


def remedy(planner: Planner, system: System, target: Target, limit: str) -> str:
    """The setting that would change it; "" where none of those that are limited here does."""
    if IN_FLIGHT in limit and system.given & {"workers", "depth"}:
        counts = [system.workers << i for i in range(1, DOUBLINGS)]
        found = estimates(planner, [replace(system, workers=w) for w in counts], target)
        enough = next((w for w, e in zip(counts, found, strict=True) if target.met(e)), None)
        return f": --workers {enough} does it" if enough else ""
    if any(name in limit for name in OF_DRIVES) and system.location == "local" and ("hosts" in system.given or target.minutes):
        return ": more --bays, or --location remote"
    if any(name in limit for name in (READERS, CORES)) and "hosts" in system.given:
        return ": more --hosts"
    if QUEUES in limit and system.queues is not None and system.queues < flow.QUEUES_MAX:
        return ": more --queues"
    if "link" in limit:
        return ": a wider --link"
    return ""


def _nearest(target: Target, short: Sequence[Choice]) -> Choice:
    return max(short, key=lambda c: c.estimate.p10 if target.longest is None else -c.estimate.p90)


def _why_not(target: Target, short: Sequence[Choice]) -> str:
    if not short:
        return "no drive of the catalogue could be tried"
    best = _nearest(target, short)
    count = "one host" if best.system.hosts == 1 else f"{best.system.hosts} hosts"
    limit = best.estimate.bottleneck
    nearest = f"{best.drives} × {best.system.drive} on {count} come nearest: {best.lacks[0]}"
    said = f"nothing meets {wanted(target, best.system)}; {nearest}"
    if any(name in limit for name in OF_DRIVES) and "depend on no drive" not in nearest:
        return f"{said}; more drives or hosts than {best.drives} and {best.system.hosts} aren't tried"
    return f"{said}; more drives don't change that"


def _advice(planner: Planner, system: System, target: Target) -> list[str]:
    """GDS or not; balance, at what was asked for, as the decision has it."""
    system = replace(system, accelerators=target.accelerators)
    base, other = (replace(system, path=p) for p in ("cpu", GDS))
    plain, direct = answer.rates(planner, [base, other])
    change = 100 * (direct.value / plain.value - 1)
    saved = answer.user_cpu(planner, base, plain).value - answer.user_cpu(planner, other, direct).value
    said = [_gds(planner, system, change, saved)]
    row = answer.answer(planner, system)
    shares, busy = row["utilisation"], row["bottleneck"]
    spare = [f"{words(n)} at {100 * v:.0f} %" for n, v in shares.items() if v < SPARE]
    if busy:
        said.append(f"balance: {decide.limits(row)[0]}" + (f"; over-provisioned: {', '.join(spare)}" if spare else ""))
    if busy == IN_FLIGHT:
        more = replace(system, workers=2 * system.workers)
        now, then = (answer.rates(planner, [s])[0].value for s in (system, more))
        said.append(f"workers: {more.workers} instead of {system.workers} give {100 * (then / now - 1):+.0f} % throughput")
    return said


def _gds(planner: Planner, system: System, change: float, saved: float) -> str:
    if system.workload != "io":
        limit = answer.limiting(system, answer.job_estimates(planner, system)).bottleneck
        if "storage" not in limit and "drive" not in limit:
            word = "compute-bound" if "compute" in limit else f"bound by {words(limit)}"
            return f"GDS: no effect on the result: {word}; it would free {saved:.2f} % of user CPU (published machine)"
    freed = f"{saved:.2f} % of the machine's user CPU freed (kernel time isn't known)"
    return f"GDS: {change:+.1f} % throughput of plain reads, {freed}"


def warnings(system: System) -> list[str]:
    """Returns why a planned measurement would not measure the storage."""
    found = answer.of_page_cache(system)
    if system.workers * system.depth < WORKERS_LEAST:
        found.append(f"{system.workers * system.depth} requests in flight may be too few: {WORKERS_LEAST} or more")
    return found


def doubtful(
    drive: catalogue.Drive, drives: float, gibps: float, au_pct: float | None = None, remote: bool = False
) -> list[str]:
    """Why a measurement can't be right, or isn't what it seems. Empty where nothing speaks against it."""
    found = []
    sheet = drive.read_gibps * drives
    if gibps > 1.02 * sheet:
        place = "across the fabric " if remote else ""
        of = f"the specification of {drives:g} × {drive.name} ({sheet:.2f})"
        found.append(f"{gibps:.2f} GiB/s {place}is above {of}: page cache?")
    if au_pct is not None and au_pct > 97:
        found.append(f"AU of {au_pct:.1f} %: storage has slack, so this says nothing about its limit; add accelerators")
    return found
