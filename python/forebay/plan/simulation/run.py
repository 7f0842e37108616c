"""Simulates a scenario seed by seed, and reports the results next to those of the formulas."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from forebay.plan import checkpoint, dlrm, training
from forebay.plan.estimate import bottleneck
from forebay.plan.planner import Planner
from forebay.plan.simulation import fleet as fleets
from forebay.plan.simulation.fleet import Class
from forebay.plan.simulation.scenario import SHARED, TRACE, Scenario
from forebay.units import GIB

SCHEMA = "forebay.simulation/1"
INTERVAL = 0.8
# A station below this has time to spare.
FULL = 0.93
WAITS = {"waiting for data": "reads that come late", "waiting for others": "barriers"}

Play = Callable[[dict[str, Any], Callable[[float], None]], dict[str, Any]]


def simulate(
    planner: Planner,
    scenario: Scenario,
    play: Play,
    reported: Callable[[float], None] = lambda share: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """forebay.simulation/1. `play` is the engine's; `reported` is given the share that is done; `stopped` ends it between
    seeds, with what came until then. RequestError for what can't be; KeyboardInterrupt if nothing came."""
    classes = [fleets.class_of(planner, scenario, job) for job in scenario.jobs]
    began, outcomes = time.monotonic(), []
    for turn in range(scenario.seeds):
        if stopped():
            break
        fleet = fleets.fleet_of(scenario, classes, scenario.seed + turn)
        outcomes.append(play(fleet, lambda share, turn=turn: reported((turn + share) / scenario.seeds)))  # type: ignore[misc]
        if outcomes[-1]["interrupted"]:
            break
    wall = time.monotonic() - began
    return _document(planner, scenario, classes, outcomes, wall)


def _document(
    planner: Planner, scenario: Scenario, classes: Sequence[Class], outcomes: Sequence[dict[str, Any]], wall: float
) -> dict[str, Any]:
    # A play that was cut short tells little beside whole ones.
    whole = [o for o in outcomes if not o["interrupted"]] or [o for o in outcomes if o["seconds"] > 0]
    if not whole:
        raise KeyboardInterrupt
    simulated = sum(o["seconds"] for o in outcomes)
    busy = utilisation(scenario, classes, whole)
    jobs = [_job(planner, scenario, entry, i, whole) for i, entry in enumerate(classes)]
    return {
        "schema": SCHEMA,
        "origin": "simulated",
        "seed": scenario.seed,
        "seeds": len(whole),
        "interrupted": any(o["interrupted"] for o in outcomes) or len(outcomes) < scenario.seeds,
        "hours": whole[0]["seconds"] / 3600,
        "hours_asked": scenario.hours,
        "storage": scenario.storage,
        "copies": scenario.copies,
        "sizes": scenario.sizes,
        "jitter": {what: {"shape": shape, "cv": cv} for what, (shape, cv) in scenario.jitter.items()},
        "faults": [fault.document() for fault in scenario.faults],
        "jobs": jobs,
        "utilisation": busy,
        "bottleneck": limit(busy, jobs),
        "series": _series(classes, whole[0]),
        "wall_s": wall,
        "simulated_s_per_wall_s": simulated / max(wall, 1e-9),
        "warnings": _warnings(scenario, classes),
    }


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean of the seeds, and the 80 % interval of one more. No interval of a single seed."""
    from forebay.stats import student_t

    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"value": mean, "p10": None, "p90": None}
    half = student_t(len(values) - 1, INTERVAL) * statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
    return {"value": mean, "p10": mean - half, "p90": mean + half}


def _job(planner: Planner, scenario: Scenario, entry: Class, index: int, outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    job, runs = entry.job, [o["jobs"][index] for o in outcomes]
    seconds = max(runs[0]["seconds"], 1e-9)
    rates = [run["bytes"] / GIB / max(run["seconds"], 1e-9) for run in runs]
    found: dict[str, Any] = {
        "name": job.name,
        "workload": job.system.workload,
        "hosts": job.hosts,
        "seconds": runs[0]["seconds"],
        "throughput_gib_s": interval(rates),
        "per_hour": {"tib": statistics.fmean(rates) * 3600 / 1024},
        "latency_us": _latency(entry, runs),
        "formula": formula(planner, scenario, entry),
        "runs": [{"seed": scenario.seed + i, "throughput_gib_s": rate} for i, rate in enumerate(rates)],
    }
    if entry.saving is not None:
        return found | _saved(entry, runs)
    if entry.workload is None:
        return found
    trained = [run["training"] for run in runs]
    if any(t is None for t in trained):
        return found
    first, hourly = trained[0], 3600 / seconds
    # Hosts that lack reader processes aren't played: AU and throughput fall as in the formula.
    most = found["formula"]["au_pct"] if entry.accelerators > entry.slots else math.inf
    for t in trained:
        t["au_pct"] = None if t["au_pct"] is None else min(t["au_pct"], most)
    if math.isfinite(most):
        found["throughput_gib_s"] = interval([min(rate, found["formula"]["throughput_gib_s"]) for rate in rates])
    au = [t["au_pct"] for t in trained if t["au_pct"] is not None]
    found |= {
        "accelerator": job.system.accelerator,
        "accelerators": entry.accelerators * job.hosts,
        "accelerators_per_host": entry.accelerators,
        "au_pct": interval(au) if au else None,
        "step_us": first["step_us"],
        "time_pct": _time(first, seconds, entry.harness),
        "stalled_s": statistics.fmean(t["stalled_s"] for t in trained),
    }
    for what in ("steps", "samples", "epochs"):
        found["per_hour"][what] = statistics.fmean(t[what] for t in trained) * hourly
    for run, t in zip(found["runs"], trained, strict=True):
        run["au_pct"] = t["au_pct"]
    if job.system.in_minutes:
        model = planner.training_time([job.system.gpus])
        # Each host trains a model of its own: more of them don't end sooner.
        rates = [max(t["samples"], 1) / job.hosts / max(run["seconds"], 1e-9) for t, run in zip(trained, runs, strict=True)]
        found["training_time_min"] = interval([model.minutes(job.system.gpus, rate) for rate in rates])
    return found


CHECKPOINT = {"checkpoint_write_s": "write_s", "checkpoint_read_s": "read_s"}


def _saved(entry: Class, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean seconds of the checkpoints that became whole, and how many did."""
    saving, reported = entry.saving, [run["checkpoint"] for run in runs]
    assert saving is not None
    found: dict[str, Any] = {"checkpoint_gib": saving.gib, "latency_us": None}
    for name, key in CHECKPOINT.items():
        means = [statistics.fmean(t[key]) for t in reported if t[key]]
        found[name] = interval(means) if means else None
        found[f"{name}_all"] = reported[0][key]
    found["written"], found["read"] = (len(reported[0][key]) for key in CHECKPOINT.values())
    found["asked"] = {"written": saving.workload.writes, "read": saving.workload.reads}
    return found


def _time(trained: dict[str, Any], seconds: float, harness: float) -> dict[str, float]:
    """Per cent of an accelerator's time by where it went, on the mean over hosts."""
    computing = 100 * trained["computing_s"] / seconds
    between = 100 * trained["barrier_s"] / seconds
    return {
        "computing": computing,
        "benchmark overhead": min(between, computing * harness),
        "waiting for data": 100 * trained["waiting_s"] / seconds,
        "waiting for others": max(0.0, between - computing * harness),
    }


def limit(busy: dict[str, float], jobs: Sequence[dict[str, Any]]) -> str:
    """The busiest station; where none is full, what the first job waits for. Slots limit once there are too few."""
    full = {name: share for name, share in busy.items() if name != training.READERS_OF_HOST or share >= 1}
    waits = jobs[0].get("time_pct")
    if waits is None or max(full.values(), default=0.0) >= FULL:
        return bottleneck(full)
    longest = max(WAITS, key=lambda name: waits[name])
    return WAITS[longest] if waits[longest] > waits["benchmark overhead"] else bottleneck(full)


def _latency(entry: Class, runs: Sequence[dict[str, Any]]) -> float | None:
    """Mean microseconds of a request while its host reads, by Little's law."""
    system = entry.job.system
    bytes_, reading = sum(r["bytes"] for r in runs), sum(r["reading_s"] for r in runs)
    return system.workers * system.depth * system.io_size * reading / bytes_ * 1e6 if bytes_ else None


def formula(planner: Planner, scenario: Scenario, entry: Class) -> dict[str, Any]:
    """Returns the planner's figures for this job alone on the storage, without jitter and faults."""
    job, share = entry.job, fleets.even_share(scenario, entry.job)
    if entry.saving is not None:
        return _seconds(planner, scenario, entry, share)
    if entry.workload is None:
        found = planner.flow.predict([fleets.load_at(planner, scenario, job, share)])[0]
        rate = found.value * job.hosts
        return {"throughput_gib_s": rate, "bottleneck": found.bottleneck}
    if job.system.in_minutes:
        return _minutes(planner, scenario, entry, share)
    setup = fleets.setups(planner, scenario, job, [share], entry.accelerators)[0]
    if job.system.location == "remote":
        queues, sd = planner.flow.queues_gibps(job.system.queues)
        if queues * 1024 < (setup.supply_cap_mibps or math.inf):
            setup = replace(setup, supply_cap_mibps=queues * 1024, supply_cap_name="DPU queues", supply_cap_sd=sd)
    greatest = planner.training.greatest([setup])[0]
    au = training.consistent(planner.training.au([setup])[0], greatest, float(entry.accelerators), setup.asks.least_pct)
    rate = au.value / 100 * entry.workload.mib_s / 1024 * entry.accelerators * job.hosts
    return {"au_pct": au.value, "throughput_gib_s": rate, "bottleneck": au.bottleneck}


def _seconds(planner: Planner, scenario: Scenario, entry: Class, share: float) -> dict[str, Any]:
    """Returns the seconds of each host's part of a checkpoint on its even share of the drives."""
    assert entry.saving is not None
    part = entry.saving.gib / entry.job.hosts
    cap, name = fleets.cap_of_host(planner, scenario, entry.job, share)
    drives = [each * share for each in checkpoint.drive_gibps(planner, entry.job.system)]
    rates = [min(rate, cap) for rate in drives]
    found: dict[str, Any] = {what: part / rate for what, rate in zip(CHECKPOINT, rates, strict=True)}
    limits_it = bottleneck({"drive bandwidth": rates[0] / drives[0], name: rates[0] / cap})
    return {**found, "throughput_gib_s": rates[0] * entry.job.hosts, "bottleneck": limits_it}


def _minutes(planner: Planner, scenario: Scenario, entry: Class, share: float) -> dict[str, Any]:
    """Returns the minutes of DLRM on one host alone, with its even share of the drives."""
    system, entered = entry.job.system, entry.workload
    cap, name = fleets.cap_of_host(planner, scenario, entry.job, share)
    model = planner.training_time([system.gpus])
    found = model.predict([dlrm.Job(system.gpus, system.drive, share, system.sample_bytes, cap, name)])[0]
    rate = model.samples_per_s(system.gpus, found.value)
    return {
        "training_time_min": found.value,
        "au_pct": min(100.0, 100 * rate / (entered.samples_per_s * entry.accelerators)),
        "throughput_gib_s": rate * system.sample_bytes / GIB * entry.job.hosts,
        "bottleneck": found.bottleneck,
    }


def utilisation(scenario: Scenario, classes: Sequence[Class], outcomes: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean share of its limit that each station was at. Drives, and a shared link, are everybody's; the rest is the
    busiest job's."""
    found: dict[str, float] = {}
    for outcome in outcomes:
        here: dict[str, float] = {}
        there = sum([float(scenario.jobs[0].system.drives)] * _pools(scenario)) * outcome["seconds"]
        left = max(outcome["drive_s"] / there, 1e-9)
        for entry, reported in zip(classes, outcome["jobs"], strict=True):
            for name, busy in _stations(entry, reported, outcome["seconds"]).items():
                together = name == "drive bandwidth" or name == "link" and scenario.storage == SHARED
                here[name] = here.get(name, 0.0) + busy if together else max(here.get(name, 0.0), busy)
        here["drive bandwidth"] = here.get("drive bandwidth", 0.0) / left
        for name, busy in here.items():
            found[name] = found.get(name, 0.0) + min(1.0, busy) / len(outcomes)
    return {name: busy for name, busy in sorted(found.items(), key=lambda item: -item[1]) if busy > 0.005}


def _pools(scenario: Scenario) -> int:
    return 1 if scenario.storage == SHARED else max(job.hosts for job in scenario.jobs)


def _stations(entry: Class, reported: dict[str, Any], seconds: float) -> dict[str, float]:
    rate = reported["bytes"] / GIB / seconds
    found = {name: rate / full for name, full in entry.stations.items()}
    if entry.saving is not None:
        written = reported["checkpoint"]["written_bytes"] / GIB / seconds
        found = {n: (rate - written) / full + written / entry.saving.write_stations[n] for n, full in entry.stations.items()}
    trained = reported["training"]
    if entry.workload is not None and trained is not None and trained["au_pct"] is not None:
        benchmark = entry.job.system.emulated and entry.job.system.ask.benchmark
        whose = training.HARNESS if benchmark else training.COMPUTE
        found[whose] = trained["au_pct"] / 100 * (1 + entry.harness)
        found[training.READERS_OF_HOST] = entry.accelerators / entry.slots
    return found


def _series(classes: Sequence[Class], outcome: dict[str, Any]) -> list[dict[str, Any]]:
    """GiB/s and steps of each job between points, of the first seed."""
    found = []
    before: dict[str, Any] = {"t_s": 0.0, "bytes": [0.0] * len(classes), "steps": [0] * len(classes)}
    for point in outcome["series"]:
        span = point["t_s"] - before["t_s"]
        rates = [(b - a) / GIB / span for a, b in zip(before["bytes"], point["bytes"], strict=True)]
        steps = [(b - a) / span for a, b in zip(before["steps"], point["steps"], strict=True)]
        found.append({"t_s": point["t_s"], "gib_s": rates, "steps_per_s": steps})
        before = point
    return found


def _warnings(scenario: Scenario, classes: Sequence[Class]) -> list[str]:
    found = []
    for entry in classes:
        if entry.accelerators > entry.slots:
            found.append(
                f"{entry.job.name}: {entry.accelerators} accelerators on a host with reader processes for {entry.slots:.0f}: "
                "AU is the formula's, not simulated"
            )
        if entry.workload is not None and entry.job.system.location == "remote":
            what = "of the fabric, the formula for AU includes only the DPU's queues; the simulation also what plain reads lose"
            found.append(f"{entry.job.name}: {what}")
        if entry.saving is not None and scenario.jitter:
            found.append(f"{entry.job.name}: jitter isn't simulated in checkpoints, which consist of long reads and writes")
    hurt = any(f.kind == "drive" for f in scenario.faults)
    if hurt and scenario.storage == SHARED and scenario.jobs[0].system.link is not None:
        found.append("a shared link is divided like the drives: while one is slow or gone, the link seems narrower, too")
    if (scenario.jitter or scenario.sizes == TRACE) and scenario.seeds == 1:
        found.append("one seed gives no interval: --seeds 5")
    dead = [f for f in scenario.faults if f.kind == "drive" and f.slow == 0 and f.until is None and not scenario.copies]
    if dead:
        found.append("RAID 0 doesn't survive the loss of a drive: its readers stop from then on (--copies, or until=)")
    return found
