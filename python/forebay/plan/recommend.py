"""`forebay plan recommend`: the least cost, power or number of drives that meets a target, and what else to know.

A choice meets the target if its 10 % bound does: nine times in ten it is enough. Prices and watts are the user's; a
drive without them can't be ranked by them, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay.errors import RequestError
from forebay.plan import answer, catalogue
from forebay.plan.estimate import Estimate
from forebay.plan.jobs import DLRM, H100
from forebay.plan.planner import Planner
from forebay.plan.system import System

BY = ("drives", "price", "watts")
DRIVES_MAX = 128
TARGET_MAX = 1e12
# Stations that more drives relieve, and the one that more workers do.
OF_DRIVES, IN_FLIGHT = ("storage", "drive bandwidth", "drive IOPS"), "requests in flight"
DOUBLINGS = 12
# A station busier than this limits; one below SPARE has room to give back.
BUSY, SPARE = 0.9, 0.5
WORKERS_LEAST = 16


@dataclass(frozen=True)
class Target:
    """One of: accelerators that pass, GiB/s, minutes to train."""

    accelerators: int | None = None
    gibps: float | None = None
    minutes: float | None = None

    def check(self) -> None:
        given = [v for v in (self.accelerators, self.gibps, self.minutes) if v is not None]
        if len(given) != 1:
            raise RequestError("the target", f"{len(given)} were given", "one of --accelerators 8, --gib-s 20, --minutes 6")
        if not 0 < given[0] < TARGET_MAX:
            raise RequestError(f"the target {str(given[0])[:60]}", "must be a number above 0", "a target above 0")


@dataclass(frozen=True)
class Choice:
    drive: str
    drives: int
    estimate: Estimate
    cost: float | None

    def document(self) -> dict[str, Any]:
        return {"drive": self.drive, "drives": self.drives, "cost": self.cost, "estimate": self.estimate.document()}


def recommend(
    planner: Planner, system: System, target: Target, by: str, drives: Sequence[catalogue.Drive]
) -> dict[str, Any]:
    """forebay.recommend/1. RequestError where the ranking lacks every price; no choice is an answer, with the reason."""
    target.check()
    if by != "drives" and not any(getattr(d, by) for d in drives):
        raise RequestError(f"--by {by}", f"no drive of the catalogue has {by}", f"a catalogue with {by} = 123, or --by drives")
    best: list[Choice] = []
    short: list[Choice] = []
    for drive in drives:
        each = 1.0 if by == "drives" else getattr(drive, by)
        if each is None:
            continue
        choice = _least(planner, replace(system, drive=drive.name), target, each)
        (best if choice[1] else short).append(choice[0])
    best.sort(key=lambda c: c.cost if c.cost is not None else float("inf"))
    short.sort(key=lambda c: c.drive)
    if target.minutes is not None:
        system = replace(system, workload=DLRM, accelerator=H100, accelerators=None)
    advice = _advice(planner, replace(system, drive=best[0].drive, drives=best[0].drives), target) if best else []
    if not best:
        advice = [_why_not(planner, system, target, short)]
    left = [d.name for d in drives if by != "drives" and getattr(d, by) is None]
    return {
        "schema": "forebay.recommend/1",
        "target": {k: v for k, v in target.__dict__.items() if v is not None},
        "by": by,
        "choices": [c.document() for c in best],
        "not_enough": [c.document() for c in short],
        "advice": advice,
        "left_out": [f"{name}: no {by} given" for name in left],
        "warnings": warnings(system),
    }


def _least(planner: Planner, system: System, target: Target, each: float) -> tuple[Choice, bool]:
    """The fewest drives that meet the target; the most that were tried, and False, where none does."""
    least = max(1, sum(switch.drives for switch in system.pcie))
    systems = [replace(system, drives=n) for n in range(least, max(DRIVES_MAX, least) + 1)]
    found = estimates(planner, systems, target)
    for one, estimate in zip(systems, found, strict=True):
        if _met(estimate, target):
            return Choice(one.drive, one.drives, estimate, each * one.drives), True
    return Choice(system.drive, systems[-1].drives, found[-1], each * systems[-1].drives), False


def estimates(planner: Planner, systems: Sequence[System], target: Target) -> list[Estimate]:
    """Returns the estimates that the target asks for, of each system."""
    if target.gibps is not None:
        return answer.rates(planner, list(systems))
    if target.minutes is not None:
        return answer.minutes(planner, [replace(s, workload=DLRM, accelerator=H100) for s in systems])
    if not systems[0].emulated:
        raise RequestError(
            f"--accelerators with workload {systems[0].workload}", "isn't emulated", "--workload unet3d, resnet50 or cosmoflow"
        )
    return planner.training.greatest([answer.setup_of(planner, s, None) for s in systems])


def _met(estimate: Estimate, target: Target) -> bool:
    if target.minutes is not None:
        return estimate.p90 <= target.minutes
    wanted = target.gibps if target.gibps is not None else target.accelerators
    assert wanted is not None
    return estimate.p10 >= wanted


def _why_not(planner: Planner, system: System, target: Target, short: Sequence[Choice]) -> str:
    if not short:
        return "no drive of the catalogue could be tried"
    best = max(short, key=lambda c: c.estimate.p10 if target.minutes is None else -c.estimate.p90)
    limit = best.estimate.bottleneck
    said = f"no drive meets it with {best.drives}: the limit is {limit}"
    if any(name in limit for name in OF_DRIVES):
        return f"{said}; {best.drives} drives of a kind are the most that are tried"
    more = _more_workers(planner, replace(system, drive=best.drive, drives=best.drives), target) if IN_FLIGHT in limit else ""
    return f"{said}, and more drives don't change that{more}"


def _more_workers(planner: Planner, system: System, target: Target) -> str:
    """Describes how many workers would bring the target with these drives; "" where no number does."""
    workers = [system.workers << i for i in range(1, DOUBLINGS)]
    found = estimates(planner, [replace(system, workers=w) for w in workers], target)
    enough = next((w for w, e in zip(workers, found, strict=True) if _met(e, target)), None)
    return f"; --workers {enough} does" if enough else ""


def _advice(planner: Planner, system: System, target: Target) -> list[str]:
    """Storage is chosen; GDS or not; balance."""
    base, other = (replace(system, path=p) for p in ("cpu", "gds"))
    plain, direct = answer.rates(planner, [base, other])
    change = 100 * (direct.value / plain.value - 1)
    saved = answer.user_cpu(planner, base, plain).value - answer.user_cpu(planner, other, direct).value
    said = [_gds(planner, system, change, saved)]
    shares = _stations(planner, system, target)
    busy = max(shares, key=lambda n: shares[n]) if shares else ""
    spare = [f"{n} at {100 * v:.0f} %" for n, v in shares.items() if v < SPARE]
    if busy:
        said.append(f"balance: {busy} limits" + (f"; over-provisioned: {', '.join(spare)}" if spare else ""))
    if busy == IN_FLIGHT:
        more = replace(system, workers=2 * system.workers)
        now, then = (answer.rates(planner, [s])[0].value for s in (system, more))
        said.append(f"workers: {more.workers} instead of {system.workers} give {100 * (then / now - 1):+.0f} % throughput")
    return said


def _gds(planner: Planner, system: System, change: float, saved: float) -> str:
    if system.workload != "io":
        limit = answer.limiting(system, answer.job_estimates(planner, system)).bottleneck
        if "storage" not in limit and "drive" not in limit:
            word = "compute-bound" if "compute" in limit else f"bound by {limit}"
            return f"GDS: no effect on the result: {word}; it would free {saved:.2f} % of user CPU (published machine)"
    return f"GDS: {change:+.1f} % throughput, {saved:.2f} % of the machine's user CPU freed (kernel time isn't known)"


def _stations(planner: Planner, system: System, target: Target) -> dict[str, float]:
    return dict(estimates(planner, [system], target)[0].stations)


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
