"""Assumptions of a plan: settings that nobody gave become the best that is known, and every one is told with its flag.

Requests in flight that aren't given are the fewest that bring nearly what any number would: a plan isn't limited by a
number that nobody chose.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.numbers import figure
from forebay.plan import flow, jobs, limits, models, training
from forebay.plan.cpu import PATH_WORDS
from forebay.plan.estimate import Z80
from forebay.plan.frozen import replace
from forebay.plan.planner import Planner
from forebay.plan.system import System
from forebay.units import GIB, format_bytes

GIVEN, DEFAULT, DERIVED = "given", "default", "derived"
# The share of its rate that a training keeps, where no rules say; no flag of its own changes it.
USUAL = "usual; another by au_pct_min in a workload file"
# Requests in flight at each drive that are tried: up to 96 were measured, and small ones need more; one alone never was.
EACH = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
# Systems whose requests are looked for at once: more need more memory, and are no faster.
AT_ONCE = 128
# Of what the most of them bring, so much is enough.
ENOUGH = 0.98
# Numbers of drives in each host, or of remote ones, at which requests are looked for: each of the first, then sixteen to each
# doubling, since a purchase tries a thousand.
FIRST, DOUBLED = 32, 5
COUNTS = (*range(1, FIRST + 1), *(round(FIRST * 2 ** (i / 16)) for i in range(1, 16 * DOUBLED + 1)))


@dataclass(frozen=True)
class Assumption:
    """One thing that an answer rests on: its words, the flags that change it, and whether it was given, is a default, or
    was derived (`why` says from what)."""

    name: str
    text: str
    flags: tuple[str, ...]
    source: str
    why: str = ""

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "text": self.text, "flags": list(self.flags), "source": self.source, "why": self.why}


def with_requests(planner: Planner, system: System) -> System:
    """The system with as many requests in flight as it needs, where nobody said how many."""
    return settle_all(planner, [system])[0]


def settle_all(planner: Planner, systems: Sequence[System]) -> list[System]:
    """As `with_requests`, many at once: one evaluation of the law for all that have the same drive."""
    systems = [
        replace(s, accelerators=models.gpus(s)) if s.modelled and s.workload != models.GNN else s for s in systems
    ]
    found: list[System | tuple[System, dict[int, int], list[int]]] = []
    missing: dict[str, list[tuple[dict[int, int], int, System]]] = {}
    asked: set[tuple[int, int]] = set()
    for system in systems:
        if system.caches or system.given & {"workers", "depth"}:
            found.append(system)
            continue
        # More drives may do with fewer, and would then be said to bring less than fewer drives, by what isn't quite enough.
        numbers = _looked_at(system)
        of_any = planner.fewest.setdefault(replace(system, drives=0, given=frozenset()), {})
        for n in numbers:
            if n not in of_any and (id(of_any), n) not in asked:
                asked.add((id(of_any), n))
                missing.setdefault(system.drive, []).append((of_any, n, replace(system, drives=n)))
        found.append((system, of_any, numbers))
    for of_drive in missing.values():
        for begin in range(0, len(of_drive), AT_ONCE):
            part = of_drive[begin : begin + AT_ONCE]
            for (of_any, n, _), workers in zip(part, _fewest(planner, [system for *_, system in part]), strict=True):
                of_any[n] = workers
    return [
        one if isinstance(one, System) else replace(one[0], workers=max(one[1][n] for n in one[2]), depth=1) for one in found
    ]


def _looked_at(system: System) -> list[int]:
    """Numbers of drives, each asked how many requests it needs: those of `COUNTS` below and the next above, so that more drives
    never have fewer requests; beyond all of them, the system's own as well."""
    each = system.hosts if system.location == "local" else 1
    count = system.drives // each
    known = COUNTS[: bisect.bisect_left(COUNTS, count) + 1]
    return [*(n * each for n in known), *([system.drives] if count > COUNTS[-1] else [])]


def _fewest(planner: Planner, systems: list[System]) -> list[int]:
    """Requests in flight that each needs."""
    import numpy as np

    # At the fewest an even share for each host.
    counts = [[max(system.hosts, n * system.drives) for n in EACH] for system in systems]
    # No link or core allows more for more requests.
    single = [limits.load(planner, replace(system, workers=1, depth=1)) for system in systems]
    loads = [replace(one, workers=n) for one, tried in zip(single, counts, strict=True) for n in tried]
    # Asked first: a drive that is new to the law adds its parameters.
    rows = planner.flow.rows(loads)
    middle, below, _ = planner.flow.posterior.spreads(rows)
    # By the lower end: how many requests a drive needs is itself unsure, and too few are dearer than too many.
    rates = np.exp(middle - Z80 * below).reshape(len(systems), len(EACH))
    enough = (rates >= ENOUGH * rates.max(axis=1, keepdims=True)).argmax(axis=1)
    return [tried[int(at)] for tried, at in zip(counts, enough, strict=True)]


def listed(planner: Planner, system: System) -> list[Assumption]:
    """Assumptions of an answer about a settled system, in the order of a purchase: drives, their place, load, hosts."""
    found = [_drives(planner, system), _place(system), *([] if system.caches else [_path(system)]), _requests(system)]
    if system.link is not None:
        shared = f", shared by {system.sharers}" if system.sharers > 1 else ""
        found.append(Assumption("link", f"a link of {figure(system.link)} GiB/s{shared}", ("--link", "--sharers"), GIVEN))
    if system.workload != jobs.IO:
        found += _model(planner, system) if system.modelled else _workload(planner, system)
    return [*found, *_hosts(system)]


def _source(system: System, *keys: str) -> str:
    return GIVEN if system.given & set(keys) else DEFAULT


def _drives(planner: Planner, system: System) -> Assumption:
    own = planner.own_of(system.drive)
    each = "" if system.hosts == 1 or system.location == "remote" else f", {system.drives // system.hosts} in each host"
    raid = " as RAID 0" if system.drives > system.hosts else ""
    text = f"{system.drives} × {system.drive}{raid}{each}"
    if own is not None:
        return Assumption("drives", text, ("--drive", "--drives"), GIVEN, f"as fast as in {len(own.runs)} runs of yours")
    if models.of_training(planner, system):
        share, _ = models.efficiency()
        seen = f"at {share:.2f} of the sheet's rate, which training got"
        return Assumption("drives", text, ("--drive", "--drives", "--runs"), GIVEN, seen)
    seen = "as published" if system.drive.lower() in planner.flow.measured_drives else "by the data sheet"
    return Assumption("drives", text, ("--drive", "--drives"), GIVEN, seen)


def _place(system: System) -> Assumption:
    if system.location == "local":
        return Assumption("location", "local", ("--location",), _source(system, "location"))
    queues = system.queues or flow.QUEUES_MAX
    text = f"remote through a DPU with {queues} queue{'s' if queues > 1 else ''}"
    if system.queues is not None and "queues" not in system.given:
        return Assumption("location", text, ("--location", "--queues"), DERIVED, "the fewest that meet the target")
    return Assumption("location", text, ("--location", "--queues"), _source(system, "queues"))


def _path(system: System) -> Assumption:
    return Assumption("path", PATH_WORDS[system.path], ("--path",), _source(system, "path"))


def _requests(system: System) -> Assumption:
    count = system.workers * system.depth
    text = f"{count} request{'s' if count > 1 else ''} of {format_bytes(system.io_size)} in flight"
    flags = ("--workers", "--depth", "--io-size")
    if system.caches or system.given & {"workers", "depth"}:
        return Assumption("requests", text, flags, _source(system, "workers", "depth"))
    why = f"the fewest that bring {100 * ENOUGH:.0f} % of what {EACH[-1]} a drive do, at the low end"
    return Assumption("requests", text, flags, DERIVED, why)


def _workload(planner: Planner, system: System) -> list[Assumption]:
    name = "a job" if system.workload == jobs.JOB else system.workload
    if system.caches or system.saves:
        return [Assumption("workload", name, ("--workload",), GIVEN)]
    if system.in_minutes:
        return [Assumption("workload", f"{name} on the GPUs of {system.gpus}", ("--workload", "--gpus"), GIVEN)]
    ask = system.ask
    each = f"{name}, {figure(ask.mibps / 1024)} GiB/s for each accelerator"
    flags: tuple[str, ...] = ("--workload", "--accelerator", "--rules")
    source = _source(system, "accelerator", "samples_per_s")
    if system.trains_on:
        each = f"{name} on {system.trains_on}, {figure(ask.mibps / 1024)} GiB/s each"
    elif system.workload == jobs.JOB:
        flags = ("--workload", "--sample-bytes", "--samples-per-s")
    else:
        flags, source = ("--workload",), GIVEN
    own = models.source(planner, system) if system.workload == jobs.JOB and planner.demand else ""
    return [Assumption("workload", each, flags, source, own), _target(system)]


def _target(system: System) -> Assumption:
    """The share that accelerators must keep: the rules', a file's own, or the usual one."""
    ask = system.ask
    if ask.benchmark:
        why = f"the rules of {system.rules}" if system.rules else "the rules, in the first edition that has it"
        text = f"at least {ask.least_pct:g} % accelerator utilisation"
        return Assumption("target", text, ("--rules",), _source(system, "rules"), why)
    source, why = (DEFAULT, USUAL) if system.workload == jobs.JOB else (GIVEN, "au_pct_min of the file")
    return Assumption("target", f"at least {ask.least_pct:g} % of its rate", ("--workload",), source, why)


def _model(planner: Planner, system: System) -> list[Assumption]:
    """Bytes that a model takes or loads, who says so, and of how many GPUs."""
    model, why = system.need, models.source(planner, system)
    own = system.given & {"samples_per_s", "sample_bytes", "dataset"}
    source = GIVEN if own and planner.demand is None else DERIVED
    gib = figure(models.load_bytes(planner, system) / GIB)
    if system.workload == models.GNN:
        text = f"gnn, which loads {gib} GiB of features"
        return [Assumption("workload", text, ("--workload", "--dataset", "--runs"), source, why)]
    flags: tuple[str, ...] = ("--workload", "--samples-per-s", "--sample-bytes", "--runs")
    each = f"{figure(model.mb_s)} MB/s a GPU, {figure(model.samples_per_s)} samples/s of {figure(model.sample_bytes)} bytes"
    if system.loads:
        what = "weights" if system.mode == models.COLDSTART else "samples"
        each = f"{gib} GiB of {what} for all GPUs together"
        flags = ("--workload", "--runs") if what == "weights" else flags
    of_mode, flags = (f", {system.mode}", (*flags, "--mode")) if models.infers(system.workload) else ("", flags)
    text = f"{system.workload}{of_mode}, {each}"
    counted = DERIVED if "accelerators" not in system.given else GIVEN
    found = [Assumption("workload", text, flags, source, why)]
    usual = "" if counted == GIVEN else f"{models.GPUS} in a host"
    found.append(Assumption("accelerators", models.of_gpus(planner, system), ("--accelerators", "--accelerator"), counted, usual))
    if not system.loads:
        found.append(Assumption("target", f"at least {system.ask.least_pct:g} % of its rate", ("--workload",), DERIVED, USUAL))
    return found


def _hosts(system: System) -> list[Assumption]:
    count = "one host" if system.hosts == 1 else f"{system.hosts} hosts"
    each = "" if system.hosts == 1 else " each"
    text = f"{count} of {system.threads} threads and {figure(system.memory)} GiB{each}"
    source = _source(system, "hosts", "threads", "memory")
    why = "" if source == GIVEN else "like the published ones"
    found = [Assumption("hosts", text, ("--hosts", "--threads", "--memory"), source, why)]
    if system.emulated and not system.modelled:
        gib = system.dataset or training.RULE_OF_FIVE * system.memory * system.hosts
        why = "" if system.dataset else "five times the memory"
        source = _source(system, "dataset") if system.dataset else DERIVED
        found.append(Assumption("dataset", f"a data set of {figure(gib)} GiB", ("--dataset",), source, why))
    return found
