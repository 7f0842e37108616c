"""The engine's input: a scenario's hosts and drives, with the planner's own parameters.

How fast a host reads is tabled by the drives' time that it gets: for plain reads by the law of throughput, so that k
hosts on D drives are k times one host on D/k of them; for emulated accelerators by the supply of the AU formula, times
what the fabric takes of plain reads (of which that formula knows the DPU's queues alone). Requests in flight, DPU, links
and cores are each host's own; drives, and the link of shared storage, are everybody's. DLRM goes by the rates of its
formula, without the bend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay.emulate import request, workloads
from forebay.errors import RequestError
from forebay.plan import answer, catalogue, checkpoint, dlrm, flow, limits, training
from forebay.plan.jobs import LEAST_PCT
from forebay.plan.planner import Planner
from forebay.plan.simulation.scenario import SHARED, TRACE, Fault, Job, Scenario
from forebay.plan.system import IO, JOB, System
from forebay.units import GIB

POINTS = 193
# The first entry of a table: so small a part of a host's even share is proportional to it.
LEAST_SHARE = 64.0
PLENTY = 1e6
STEPS_LEAST = 500
STEPS_PER_S = 4
# Batches that DLRM's loader is ahead: its reads are asynchronous and never what a step waits for by themselves.
DLRM_AHEAD = 16
SERIES_POINTS = 60
FILES_MAX = 2**32 - 1


@dataclass(frozen=True)
class Saving:
    """A checkpoint as all hosts write it. `write_way`, `write_stations`: as a class has them of reads."""

    workload: workloads.Checkpoint
    gib: float
    write_way: dict[str, Any]
    write_stations: dict[str, float]


@dataclass(frozen=True)
class Class:
    """A job as it is simulated. `accelerators`: of each host. `stations`: GiB/s at which all of its hosts together keep
    each one busy, drives and shared links as if alone. `harness`: the overhead of a step, as a share of computing.
    """

    job: Job
    accelerators: int
    stations: dict[str, float]
    way: dict[str, Any]
    harness: float = 0.0
    slots: float = math.inf
    workload: Any = None
    saving: Saving | None = None


def even_share(scenario: Scenario, job: Job) -> float:
    """Drives for each host of a job that has the storage to itself."""
    return job.system.drives / (job.hosts if scenario.storage == SHARED else 1)


def class_of(planner: Planner, scenario: Scenario, job: Job) -> Class:
    """A job with its way to the drives. RequestError where the planner can't know it."""
    if job.system.workload == IO:
        loads = [load_at(planner, scenario, job, d) for d in _drives(scenario, job)]
        rates = [e.value for e in planner.flow.predict(loads)]
        way = _way([float(x.drives) for x in loads], rates, _pressure(planner, job.system))
        return Class(job, 0, _stations(planner, scenario, job), way)
    if job.system.saves:
        return _checkpoint(planner, scenario, job)
    return _dlrm(planner, scenario, job) if job.system.in_minutes else _training(planner, scenario, job)


def _drives(scenario: Scenario, job: Job) -> list[float]:
    """From a small part of a host's even share to all drives."""
    low, high = even_share(scenario, job) / LEAST_SHARE, float(job.system.drives)
    hosts = sum(j.hosts for j in scenario.jobs)
    low /= max(1.0, hosts / job.hosts)
    return [low * (high / low) ** (i / (POINTS - 1)) for i in range(POINTS)]


def _host_caps(planner: Planner, scenario: Scenario, system: System) -> dict[str, float]:
    """GiB/s of the links and cores that a host has to itself."""
    own = limits.limits(planner, system)
    return {n: v for n, v in own.items() if not (n == "link" and scenario.storage == SHARED)}


def cap_at(planner: Planner, scenario: Scenario, job: Job, drives: float) -> tuple[float | None, str]:
    """Returns the rate that a host's links and cores, and its part of a shared link, let through with so many drives; and
    which of them bounds it."""
    here = _host_caps(planner, scenario, job.system)
    if scenario.storage == SHARED and job.system.link is not None:
        here["link"] = job.system.link / job.system.sharers * drives / job.system.drives
    name = min(here, key=lambda n: here[n]) if here else "link"
    return here.get(name), name


def load_at(planner: Planner, scenario: Scenario, job: Job, drives: float) -> flow.Load:
    """One host's load with so many drives' time, and as much of the shared link."""
    cap, name = cap_at(planner, scenario, job, drives)
    return replace(job.system.load(), drives=drives, cap_gibps=cap, cap_name=name)


def _way(drives: Sequence[float], gibps: Sequence[float], pressure: float) -> dict[str, Any]:
    return {"drives": list(drives), "bytes_s": [r * GIB for r in gibps], "pressure": pressure}


def _parts(planner: Planner, load: flow.Load) -> dict[str, float]:
    """GiB/s at which each station of a load would be full; `total` is the rate."""
    rows = planner.flow.rows([load])
    times = flow.parts(planner.flow.posterior.log, rows)
    kib = float(rows.command[0])
    return {name: kib / 1024**2 / float(t[0]) * 1e6 for name, t in times.items() if float(t[0]) > 0}


def _pressure(planner: Planner, system: System) -> float:
    """Drives that one host would keep busy if there were any number of them."""
    load = replace(system.load(), cap_gibps=None)
    one = _parts(planner, replace(load, drives=1.0))["drive bandwidth"]
    return _parts(planner, replace(load, drives=PLENTY))["total"] / one


def _stations(planner: Planner, scenario: Scenario, job: Job) -> dict[str, float]:
    """Returns the rate that all hosts of a job together could take at each station."""
    system, hosts = job.system, job.hosts
    full = _parts(planner, replace(system.load(), cap_gibps=None))
    own = 1 if scenario.storage == SHARED else hosts
    found = {"drive bandwidth": full["drive bandwidth"] * own, "requests in flight": full["requests in flight"] * hosts}
    if "DPU queues" in full:
        found["DPU queues"] = full["DPU queues"] * hosts
    found |= {name: cap * hosts for name, cap in _host_caps(planner, scenario, system).items()}
    if scenario.storage == SHARED and system.link is not None:
        found["link"] = system.link / system.sharers
    return found


def setups(
    planner: Planner, scenario: Scenario, job: Job, drives: Sequence[float], number: int
) -> list[training.Setup]:
    links = limits.links(job.system)
    name = min(links, key=lambda n: links[n]) if links else "link"
    base = answer.training_setup(job.system, number, links.get(name), name)
    link = limits.links(job.system).get("link")
    own, own_sd = answer.delivered(planner, job.system)
    found = []
    for d in drives:
        cap = base.supply_cap_mibps
        if scenario.storage == SHARED and link is not None:
            others = [v for n, v in limits.links(job.system).items() if n != "link"]
            cap = min([link * d / job.system.drives, *others]) * 1024
        rate = own * d / job.system.drives * 1024 or None
        found.append(replace(base, drives=d, supply_cap_mibps=cap, own_mibps=rate, own_sd=own_sd))
    return found


def _fabric(planner: Planner, system: System, drives: Sequence[float]) -> list[float]:
    """Remote over local throughput of plain reads, at most 1."""
    if system.location == "local":
        return [1.0] * len(drives)
    remote = [replace(system.load(), drives=d, cap_gibps=None) for d in drives]
    local = [replace(load, remote=False, queues=None) for load in remote]
    rates = [[e.value for e in planner.flow.predict(loads)] for loads in (remote, local)]
    return [min(1.0, r / x) for r, x in zip(*rates, strict=True)]


def _bounds(planner: Planner, setups: list[training.Setup]) -> dict[str, Any]:
    model = planner.training
    return training._bounds(model.posterior.log, training.Rows(setups, [False] * len(setups), model.drives, model.more))


def _training(planner: Planner, scenario: Scenario, job: Job) -> Class:
    system, drives = job.system, _drives(scenario, job)
    number = system.accelerators or _greatest(planner, scenario, job)
    found_setups = setups(planner, scenario, job, drives, number)
    bounds, fabric = _bounds(planner, found_setups), _fabric(planner, system, drives)
    rates = [float(s) / 1024 * f for s, f in zip(bounds["supply"], fabric, strict=True)]
    uncapped = _bounds(planner, [replace(found_setups[-1], supply_cap_mibps=None)])["full"][0]
    own = 1 if scenario.storage == SHARED else job.hosts
    stations = {"drive bandwidth": float(uncapped) / 1024 * own}
    others = _stations(planner, scenario, replace(job, system=replace(system, cores=None)))
    stations |= {n: v for n, v in others.items() if n not in ("drive bandwidth", "requests in flight")}
    harness = float(bounds["overhead"][0] + bounds["barrier"][0] * number)
    own_job = system.workload == JOB or system.modelled
    found = _own(system) if own_job else workloads.load(system.workload, system.accelerator, system.rules)[0]
    way = _way(drives, rates, _pressure(planner, system))
    return Class(job, number, stations, way, harness, float(bounds["slots"][0]), found)


def _steps(name: str, accelerator: str, batch: int, rate: float, sample_bytes: float, prefetch: int) -> workloads.Training:
    """A workload whose accelerators take `rate` samples a second, `batch` a step, out of files of about a GiB."""
    return workloads.Training(
        name, accelerator, ("v1.0",), "own", name, "raw", "pytorch", batch, batch / rate, sample_bytes,
        max(1, round(GIB / sample_bytes)), 1, 4, 1, LEAST_PCT, prefetch=prefetch,
    )  # fmt: skip


def _own(system: System) -> workloads.Training:
    """A job by its bytes per sample and its rate, which say nothing of its steps: four a second."""
    rate, size = system.samples_per_s, system.sample_bytes
    if system.modelled:
        rate, size = system.need.samples_per_s, system.need.sample_bytes
    assert rate is not None
    return _steps(JOB, system.accelerator, max(1, round(rate / STEPS_PER_S)), rate, size, 2)


def cap_of_host(planner: Planner, scenario: Scenario, job: Job, drives: float) -> tuple[float, str]:
    """GiB/s between one host and so many drives' time at most, whatever the drives give; and by what."""
    cap, name = cap_at(planner, scenario, job, drives)
    found = {name: math.inf if cap is None else cap}
    if job.system.location == "remote":
        found["DPU queues"] = planner.flow.queues_gibps(job.system.queues)[0]
    name = min(found, key=lambda n: found[n])
    return found[name], name


def _dlrm(planner: Planner, scenario: Scenario, job: Job) -> Class:
    """MLPerf Training's DLRM on the GPUs of its system: the formula's rates, without its bend, step by step."""
    system, drives = job.system, _drives(scenario, job)
    model = planner.training_time([system.gpus]).posterior
    each = model.value("efficiency") * catalogue.drive(system.drive, planner.more).read_gibps
    gpus = dlrm.GPUS.get(system.gpus, dlrm.GPUS_USUAL)
    rates = [min(each * d, cap_of_host(planner, scenario, job, d)[0]) for d in drives]
    others = {n: v for n, v in _stations(planner, scenario, job).items() if n not in ("drive bandwidth", "requests in flight")}
    if system.location == "remote":
        others["DPU queues"] = planner.flow.queues_gibps(system.queues)[0] * job.hosts
    own = 1 if scenario.storage == SHARED else job.hosts
    rate = model.value(f"compute[{system.gpus}]") * 1e6 / gpus
    found = _steps("dlrm", system.accelerator, dlrm.GLOBAL_BATCH // gpus, rate, system.sample_bytes, DLRM_AHEAD)
    stations = {"drive bandwidth": each * system.drives * own, **others}
    return Class(job, gpus, stations, _way(drives, rates, _pressure(planner, system)), 0.0, math.inf, found)


def _checkpoint(planner: Planner, scenario: Scenario, job: Job) -> Class:
    """The formula's rates of a drive, through what each host has between itself and the drives."""
    drives, own = _drives(scenario, job), 1 if scenario.storage == SHARED else job.hosts
    caps = [cap_of_host(planner, scenario, job, d)[0] for d in drives]
    alone = _stations(planner, scenario, job)
    others = {n: v for n, v in alone.items() if n not in ("drive bandwidth", "requests in flight", "DPU queues")}
    if job.system.location == "remote":
        others["DPU queues"] = planner.flow.queues_gibps(job.system.queues)[0] * job.hosts
    made = []
    for each in checkpoint.drive_gibps(planner, job.system):
        rates = [min(each * d, cap) for d, cap in zip(drives, caps, strict=True)]
        # Beside other jobs it has as many requests under way as the plan says.
        stations = {"drive bandwidth": each * job.system.drives * own, **others}
        made.append((_way(drives, rates, _pressure(planner, job.system)), stations))
    (write_way, write_stations), (way, stations) = made
    size = checkpoint.gib(job.system.workload)
    saving = Saving(workloads.load_checkpoint(job.system.workload), size, write_way, write_stations)
    return Class(job, 0, stations, way, saving=saving)


def _greatest(planner: Planner, scenario: Scenario, job: Job) -> int:
    """The formula's, of each host with its even share of the drives."""
    setup = setups(planner, scenario, job, [even_share(scenario, job)], 1)[0]
    return int(max(1, planner.training.greatest([replace(setup, accelerators=None)])[0].value))


def files_of(entry: Class) -> int:
    """Returns the files of the data set: as the plan says, else five times all memory, or 500 steps if that is more."""
    job, workload = entry.job, entry.workload
    each = workload.record_bytes * workload.samples_per_file
    step = workload.batch * entry.accelerators * job.hosts
    least = STEPS_LEAST * step / workload.samples_per_file
    if job.system.dataset is not None:
        least = 0.0
    gib = job.system.dataset or training.RULE_OF_FIVE * job.system.memory * job.hosts
    files = math.ceil(max(gib * GIB / each, least))
    if files > FILES_MAX:
        raise RequestError(f"dataset {gib:g} GiB", f"is {files:,} files, which is too many", "--dataset with fewer GiB")
    if files * workload.samples_per_file < step:
        asked = f"dataset {gib:g} GiB for {step:,} samples a step"
        raise RequestError(asked, "doesn't fill one step", f"--dataset {STEPS_LEAST * step * workload.record_bytes / GIB:.0f}")
    return files


def fleet_of(scenario: Scenario, classes: Sequence[Class], seed: int) -> dict[str, Any]:
    """Returns the fleet that the engine plays, by one seed."""
    first = scenario.jobs[0].system
    pools = 1 if scenario.storage == SHARED else max(job.hosts for job in scenario.jobs)
    return {
        "seed": seed,
        "duration_s": scenario.seconds,
        "interval_s": scenario.seconds / SERIES_POINTS,
        "pools": [float(first.drives)] * pools,
        "jobs": [_job(scenario, entry) for entry in classes],
        "faults": [f for fault in _faults(scenario) for f in fault],
    }


def _job(scenario: Scenario, entry: Class) -> dict[str, Any]:
    job = entry.job
    hosts = [0] * job.hosts if scenario.storage == SHARED else list(range(job.hosts))
    work: Any = "reads"
    if entry.saving is not None:
        of = entry.saving.workload
        work = {
            "checkpoint": {
                "bytes": entry.saving.gib * GIB / job.hosts,
                "writes": of.writes,
                "reads": of.reads,
                "pause_s": of.pause_s,
                "write_way": entry.saving.write_way,
            }
        }
    if entry.workload is not None:
        files = files_of(entry)
        jitter = {what: _shape(*spread) for what, spread in scenario.jitter.items()}
        inside = {"in_flight": float(job.system.workers * job.system.depth), "bytes": float(job.system.io_size)}
        work = {
            "training": {
                "workload": request.workload_spec(entry.workload, entry.workload.rules[0], files),
                "accelerators": entry.accelerators,
                "files": files,
                "overhead_s": entry.workload.compute_s * entry.harness,
                "compute": jitter.get("compute"),
                "requests": {"shape": jitter["requests"], **inside} if "requests" in jitter else None,
                "sizes": scenario.sizes == TRACE,
            }
        }
    return {"name": job.name, "hosts": hosts, "way": entry.way, "start_s": job.start, "stop_s": job.stop, "work": work}


def _shape(shape: str, cv: float) -> dict[str, Any]:
    return {"shape": shape} if shape == "exponential" else {"shape": shape, "cv": cv}


def _faults(scenario: Scenario) -> list[list[dict[str, Any]]]:
    """Hosts that go, and what each pool's drives are good for whenever that changes."""
    found = [[_host_fault(f)] for f in scenario.faults if f.kind == "host"]
    drives = scenario.jobs[0].system.drives
    hurt = [f for f in scenario.faults if f.kind == "drive"]
    for pool in sorted({f.host for f in hurt}):
        here = [f for f in hurt if f.host == pool]
        times = sorted({t for f in here for t in (f.at, f.until) if t is not None and t < scenario.seconds})
        found.append(
            [{"drives": {"at_s": t, "pool": pool, "drives": good_for(here, drives, t, scenario.copies)}} for t in times]
        )
    return found


def good_for(faults: Sequence[Fault], drives: int, t: float, copies: bool) -> float:
    """Drives' worth of what is left at a time: RAID0 is as fast as its slowest, times all; copies are read where they can be."""
    speed = [1.0] * drives
    for fault in faults:
        if fault.at <= t and (fault.until is None or t < fault.until):
            speed[fault.drive] = min(speed[fault.drive], fault.slow)
    return sum(speed) if copies else drives * min(speed)


def _host_fault(fault: Fault) -> dict[str, Any]:
    return {
        "host": {"at_s": fault.at, "job": fault.job, "host": fault.host, "back_s": fault.back, "without_s": fault.without}
    }
