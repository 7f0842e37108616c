"""`forebay plan run`: what one system gives, what limits it, what would limit it next, and what it doesn't need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from forebay.plan import assume, checkpoint, cpu, decide, dlrm, flow, limits, models, training
from forebay.plan.estimate import Z80, Estimate, capped, from_log
from forebay.plan.frozen import replace
from forebay.plan.planner import Planner
from forebay.plan.system import System
from forebay.units import GIB

SIZES = tuple(4096 << i for i in range(0, 13))
PLATEAU = (0.95, 0.99)
ELASTIC_STEP = 0.1
# A station at half of what it can do hardly bounds.
SHARP = 4
IDLE = 0.5
# A station that is less busy isn't worth a word.
LEAST_SHARE = 0.005


def answer(planner: Planner, system: System) -> dict[str, Any]:
    """forebay.plan/1: what was assumed, the decision, the estimates with intervals, and what follows from them."""
    system = assume.with_requests(planner, system)
    reads = rates(planner, [system])[0]
    of_job = job_estimates(planner, system)
    estimates = estimated(planner, system, reads, of_job)
    row = flat(system, estimates)
    limits_it = limiting(system, estimates)
    row["bottleneck"] = limits_it.bottleneck
    row["utilisation"] = utilisation(planner, system, estimates["throughput_gib_s"], limits_it)
    row["elasticity"] = elasticities(planner, system)
    row["next"] = next_of_job(system, limits_it) if of_job else headroom(planner, system, reads)
    row["enough"] = enough(planner, system)
    notes = [e.note for e in estimates.values() if e.note]
    row["warnings"] = planner.notes + models.doubts(planner) + warnings(system) + of_page_cache(system) + notes
    row["parameters"] = [p.document() for p in parameters(planner, system)]
    own = planner.own_of(system.drive)
    from_memory = (OF_MEMORY,) if system.loads else ()
    row["own_runs"] = own.said([n for n in estimates if n not in (*NOT_OF_RUNS, *from_memory)]) if own else None
    row["of_rate"] = of_rate(system)
    row["need"] = models.document(planner, system) if system.modelled else None
    row["assumed"] = [a.document() for a in assume.listed(planner, system)]
    row["decision"] = decide.decision(planner, system, row)
    row["schema"] = "forebay.plan/1"
    row["origin"] = "predicted"
    return row


def of_rate(system: System) -> bool:
    """Returns whether `au_pct` is a share of the rate of a training that is no benchmark's."""
    return system.emulated and not system.ask.benchmark


# Figures that no run of reads says anything of.
NOT_OF_RUNS = ("cpu_user_pct", "checkpoint_write_s", "write_gib_s")
# Nor of a rate from memory.
OF_MEMORY = "samples_per_s"


def estimated(planner: Planner, system: System, reads: Estimate, of_job: dict[str, Estimate]) -> dict[str, Estimate]:
    """All figures of a settled system. `throughput_gib_s` is what its workload moves; `storage_gib_s`, where that is another,
    what plain reads would get."""
    moved = moved_gibps(planner, system, of_job) if of_job else reads
    found = {"throughput_gib_s": moved}
    if of_job:
        found["storage_gib_s"] = reads
    else:
        found["latency_us"] = latency(system, reads)
    found["cpu_user_pct"] = user_cpu(planner, system, moved)
    return found | busy_cores(planner, system, moved) | of_job


def moved_gibps(planner: Planner, system: System, of_job: dict[str, Estimate]) -> Estimate:
    """GiB/s that a training or a checkpoint reads, while it does: at the greatest number of accelerators where none is given."""
    if system.in_minutes:
        minutes = of_job["training_time_min"]
        model = planner.training_time([system.gpus])
        value, low, high = (
            model.samples_per_s(system.gpus, m) * system.sample_bytes / GIB for m in (minutes.value, minutes.p90, minutes.p10)
        )
        return Estimate(value, min(low, value), max(high, value), "GiB/s", minutes.bottleneck, minutes.stations)
    if system.saves:
        size, read = checkpoint.gib(system.workload), of_job["checkpoint_read_s"]
        return Estimate(size / read.value, size / read.p90, size / read.p10, "GiB/s", read.bottleneck, read.stations)
    if system.loads:
        took = of_job.get("load_s") or of_job["start_s"]
        size = models.load_bytes(planner, system) / GIB
        rest = models.rest_s(planner, system)
        value, low, high = (size / (seconds - rest) for seconds in (took.value, took.p90, took.p10))
        return Estimate(value, low, high, "GiB/s", took.bottleneck, took.stations)
    au, greatest = of_job["au_pct"], of_job["accelerators_max"]
    each = system.ask.mibps / 1024 / 100
    full = numbered(system, greatest) * each
    value, low = au.value * full, au.p10 * full
    if system.accelerators is None:
        low = min(value, _sure_pct(planner, system, greatest) * each)
    return Estimate(value, low, au.p90 * full, "GiB/s", au.bottleneck, au.stations)


def _sure_pct(planner: Planner, system: System, greatest: Estimate) -> float:
    """Returns how many accelerators are busy at the lower end, in per cent of one: those that surely pass. Of the greatest
    number, of which more drives make more, the less sure one would say less the more drives there are."""
    if greatest.p10 >= 1:
        return greatest.p10 * system.ask.least_pct
    return planner.training.au([setup_of(planner, system, 1)])[0].p10


def numbered(system: System, greatest: Estimate) -> float:
    """The number of accelerators that an AU is of: the one that was asked for, else the greatest that passes, or one."""
    return float(system.accelerators or max(1.0, greatest.value))


def utilisation(planner: Planner, system: System, moved: Estimate, limits_it: Estimate) -> dict[str, float]:
    """Share of its limit that each station is at while the workload moves what it does."""
    busy = {**limits_it.stations}
    for name, most in limits.limits(planner, system).items():
        if (share := min(1.0, moved.value / most)) > LEAST_SHARE:
            busy.setdefault(name, share)
    return busy


def parameters(planner: Planner, system: System) -> list[Any]:
    """Returns the parameters that the answer rests on: shared ones and this drive's."""
    found = [p for p in planner.flow.posterior.parameters() if "[" not in p.name or f"[{system.drive}]" in p.name]
    of_cpu = [*planner.cores.posterior.parameters(), *planner.user_cpu.posterior.parameters()]
    found += [p for p in of_cpu if "[" not in p.name or p.name.endswith(f"[{system.path}]")]
    if system.emulated:
        setup = setup_of(planner, system, None)
        drive = setup.drive.lower() if setup.drive.lower() in planner.training.drives else training.NO_RUNS
        tags = (f"[{setup.kind}]", f"[{drive}]")
        found += [p for p in planner.training.posterior.parameters() if "[" not in p.name or p.name.endswith(tags)]
    if system.in_minutes:
        of_gpus = planner.training_time([system.gpus]).posterior.parameters()
        found += [p for p in of_gpus if "[" not in p.name or p.name.endswith(f"[{system.gpus}]")]
    return found


def limiting(system: System, estimates: dict[str, Estimate]) -> Estimate:
    """The estimate whose bottleneck is the plan's: that of its job, at the number of accelerators that was asked for."""
    number = "accelerators_max" if system.accelerators is None else "au_pct"
    for name in ("training_time_min", "checkpoint_write_s", "load_s", "start_s", number):
        if name in estimates:
            return estimates[name]
    return estimates["throughput_gib_s"]


def flat(system: System, estimates: dict[str, Estimate]) -> dict[str, Any]:
    row: dict[str, Any] = {"query": {k: v for k, v in system.__dict__.items() if v is not None and k not in ("pcie", "given")}}
    if system.pcie:
        row["query"]["pcie"] = [s.document() for s in system.pcie]
    for name, e in estimates.items():
        row |= {name: e.value, f"{name}_p10": e.p10, f"{name}_p90": e.p90}
    return row


def warnings(system: System) -> list[str]:
    """Returns warnings about extrapolations so far that intervals are widened."""
    found = flow.outside(system.load())
    if system.emulated:
        found += training.outside(training_setup(system, system.accelerators))
    return [f"extrapolated: {text}" for text in dict.fromkeys(found)]


def of_page_cache(system: System) -> list[str]:
    """Warns if memory would answer for the drives."""
    memory = system.memory * system.hosts
    least = training.RULE_OF_FIVE * memory
    if system.dataset is None or system.dataset >= least:
        return []
    return [
        f"data set of {system.dataset:g} GiB under five times the memory ({memory:g} GiB): part would come "
        f"from the page cache; take {least:g} GiB"
    ]


def rates(planner: Planner, systems: list[System]) -> list[Estimate]:
    """GiB/s of each, bounded by its links and cores."""
    found = planner.flow.predict([limits.load(planner, s) for s in systems])
    # However unsure the cost of a request is, no link lets more through than it can.
    return [
        capped(_widened(rate, _of_cores(planner, s, rate)), min(limits.links(s).values(), default=math.inf))
        for s, rate in zip(systems, found, strict=True)
    ]


def _of_cores(planner: Planner, system: System, rate: Estimate) -> float:
    """Returns the uncertainty of a request's cost, as far as cores may be what bounds the rate: a link hardly narrower than
    they are may be the wider one."""
    cores = limits.cores_of(system)
    share = min(1.0, rate.value / planner.cores.most_gibps(system.path, system.io_size / 1024, cores))
    if share < IDLE:
        return 0.0
    cost = busy_cores(planner, system, rate)["cpu_cores"]
    return math.log(cost.p90 / cost.p10) / (2 * Z80) * share**SHARP


def _widened(rate: Estimate, *more: float) -> Estimate:
    """With further standard deviations of the logarithm."""
    if not any(more):
        return rate
    sd = math.hypot(rate.log_sd, *more)
    return from_log(math.log(rate.value), sd, rate.unit, bottleneck=rate.bottleneck, stations=rate.stations)


def latency(system: System, rate: Estimate) -> Estimate:
    """Mean microseconds of a request, by Little's law: requests in flight over requests per second."""
    in_flight = system.workers * system.depth * system.io_size / GIB * 1e6
    return Estimate(in_flight / rate.value, in_flight / rate.p90, in_flight / rate.p10, "us", rate.bottleneck)


def user_cpu(planner: Planner, system: System, rate: Estimate) -> Estimate:
    """Per cent of the machine in user mode, at the predicted rate, on the machine that the costs were measured on."""
    sd = rate.log_sd
    work = cpu.Work(system.path, system.io_size / 1024, rate.value)
    found = planner.user_cpu.predict([work], [sd])[0]
    note = "user CPU refers to the published 72-core machine, without kernel time; calibrate with runs on yours"
    return replace(found, note=note)


def busy_cores(planner: Planner, system: System, rate: Estimate) -> dict[str, Estimate]:
    """Cores busy with I/O at the predicted rate: in user mode, in the kernel, both."""
    sd = rate.log_sd
    return planner.cores.predict(cpu.Work(system.path, system.io_size / 1024, rate.value), sd)


def training_setup(
    system: System, accelerators: int | None, cap: float | None = None, name: str = "link", sd: float = 0.0
) -> training.Setup:
    """`cap`: GiB/s of what lies between the drives and the host, whose name is `name`, its logarithm unsure by `sd`."""
    memory = system.memory * system.hosts
    return training.Setup(
        system.workload, system.drive, system.drives, accelerators, system.dataset or training.RULE_OF_FIVE * memory, memory,
        system.threads, system.accelerator, None if cap is None else cap * 1024, name, sd, system.ask, system.hosts,
    )  # fmt: skip


def setup_of(planner: Planner, system: System, accelerators: int | None) -> training.Setup:
    """Accelerators that drives feed through links, cores and DPU queues: at the rate of the user's runs where there are any."""
    made = training_setup(system, accelerators, *limits.way(planner, system))
    rate, sd = delivered(planner, system)
    return replace(made, own_mibps=rate * 1024 or None, own_sd=sd)


def delivered(planner: Planner, system: System) -> tuple[float, float]:
    """GiB/s that the user's own runs say of these drives, and the standard deviation of its logarithm; 0 without runs."""
    if models.of_training(planner, system):
        return models.fed(planner, system)
    own = planner.own_of(system.drive)
    if own is None:
        return 0.0, 0.0
    found = own.delivers(system.drives, system.location == "remote", system.queues)
    return found.value, found.log_sd


def job_estimates(planner: Planner, system: System) -> dict[str, Estimate]:
    """AU and the greatest number of accelerators, minutes for DLRM, seconds of a checkpoint, nothing for plain I/O."""
    return jobs_estimates(planner, [system])[0]


def jobs_estimates(planner: Planner, systems: Sequence[System]) -> list[dict[str, Estimate]]:
    """The same for many systems at once."""
    found: list[dict[str, Estimate]] = [{} for _ in systems]
    timed = [i for i, s in enumerate(systems) if s.in_minutes]
    for i, estimate in zip(timed, minutes(planner, [systems[i] for i in timed]), strict=True):
        found[i] = {"training_time_min": estimate}
    for i in (i for i, s in enumerate(systems) if s.saves):
        found[i] = checkpoint.seconds(planner, systems[i])
    for i in (i for i, s in enumerate(systems) if s.loads):
        found[i] = models.seconds(planner, systems[i])
    emulated = [i for i, s in enumerate(systems) if s.emulated]
    if emulated:
        setups = [setup_of(planner, systems[i], systems[i].accelerators) for i in emulated]
        greatest = planner.training.greatest(setups)
        at = [
            replace(setup, accelerators=numbered(systems[i], most))
            for i, setup, most in zip(emulated, setups, greatest, strict=True)
        ]
        for i, most, au, setup in zip(emulated, greatest, planner.training.au(at), at, strict=True):
            agreed = training.consistent(au, most, setup.accelerators or 1.0, setup.asks.least_pct)
            found[i] = {"accelerators_max": most, "au_pct": agreed}
            if models.infers(systems[i].workload):
                found[i]["samples_per_s"] = models.answers(systems[i], setup.accelerators or 1.0, agreed)
    return found


def minutes(planner: Planner, systems: Sequence[System]) -> list[Estimate]:
    """To train DLRM, of each system."""
    if not systems:
        return []
    made = []
    for s in systems:
        made.append(dlrm.Job(s.gpus, s.drive, s.drives, s.sample_bytes, *limits.way(planner, s), *delivered(planner, s)))
    return planner.training_time([j.system for j in made]).predict(made)


def elasticities(planner: Planner, system: System) -> dict[str, float]:
    """Per cent more for one per cent more of each thing, by the law: of accelerators where they are asked for, else of
    throughput."""
    if system.emulated:
        return _of_accelerators(planner, system)
    base = limits.load(planner, system)
    more = {
        "drives": replace(base, drives=base.drives * (1 + ELASTIC_STEP)),
        "requests in flight": replace(base, workers=base.workers * (1 + ELASTIC_STEP)),
    }
    if base.remote:
        queues = base.queues or flow.QUEUES_MAX
        less = queues / (1 + ELASTIC_STEP)
        more["DPU queues"] = replace(base, queues=less)
    if base.cap_gibps is not None and (base.cap_name != "host cores" or system.cores is not None):
        more[base.cap_name] = replace(base, cap_gibps=base.cap_gibps * (1 + ELASTIC_STEP))
    rows = planner.flow.rows([base, *more.values()])
    log = flow.law(planner.flow.posterior.log, rows)
    step = math.log(1 + ELASTIC_STEP)
    return {
        name: round(float((log[i] - log[0]) * (-1 if name == "DPU queues" else 1)) / step, 3) for i, name in enumerate(more, 1)
    }


def _of_accelerators(planner: Planner, system: System) -> dict[str, float]:
    """Returns the limits of the number that passes: drives, threads, and what lies between the drives and the host."""
    base = setup_of(planner, system, None)
    up = 1 + ELASTIC_STEP
    more = {"drives": replace(base, drives=base.drives * up), "threads": replace(base, threads=base.threads * up)}
    if base.supply_cap_mibps is not None and (base.supply_cap_name != "host cores" or system.cores is not None):
        more[base.supply_cap_name] = replace(base, supply_cap_mibps=base.supply_cap_mibps * up)
    first, *others = planner.training.law([base, *more.values()])
    return {name: round(math.log(n / first) / math.log(up), 3) for name, n in zip(more, others, strict=True)}


def next_of_job(system: System, found: Estimate) -> dict[str, Any]:
    """With the busiest station of a job taken away: what limits then, and how much more that is."""
    order = sorted(found.stations, key=lambda name: -found.stations[name])
    if len(order) < 2:
        return {}
    first, second = order[:2]
    # A station is as busy as what is had is of what it allows: without the first there is so much more.
    gain = found.stations[first] / max(found.stations[second], 1e-9)
    # Until accelerators compute all the time, which then limits.
    if found.unit == "%" and first != training.COMPUTE and gain > 100 / found.value:
        second, gain = training.COMPUTE, 100 / found.value
    return {"without": first, "limit": second, "gain": gain}


def headroom(planner: Planner, system: System, rate: Estimate) -> dict[str, Any]:
    """With the busiest station taken away: what limits then, and how much more there would be."""
    order = sorted(rate.stations, key=lambda name: -rate.stations[name])
    if len(order) < 2:
        return {}
    base = limits.load(planner, system)
    cap, cap_name = limits.next_cap(planner, system, base.cap_name)
    relieved = {
        "drive bandwidth": replace(base, drives=base.drives * 1000),
        "drive IOPS": replace(base, drives=base.drives * 1000),
        "requests in flight": replace(base, workers=base.workers * 1000),
        base.cap_name: replace(base, cap_gibps=cap, cap_name=cap_name),
        "DPU queues": replace(base, remote=False, queues=None),
    }[order[0]]
    # The law's middle, which fewer drives don't exceed: a thousand times as many needn't be compared with each number below.
    then = planner.flow.alone([relieved])[0]
    left = {name: share for name, share in then.stations.items() if name != order[0]}
    follows = max(left, key=lambda name: left[name]) if left else ""
    return {"without": order[0], "limit": follows, "throughput_gib_s": then.value, "gain": then.value / rate.value}


def enough(planner: Planner, system: System) -> dict[str, Any]:
    """The smallest block size, and number of queues, that reach 95 and 99 % of the plateau, all else as it is."""
    base = limits.load(planner, system)
    found: dict[str, Any] = {}
    sizes = [limits.load(planner, replace(system, io_size=s)) for s in SIZES]
    rates = [e.value for e in planner.flow.alone(sizes)]
    for share in PLATEAU:
        found[f"io_size_{share:.0%}"] = next(s for s, r in zip(SIZES, rates, strict=True) if r >= share * max(rates))
    if base.remote:
        counts = range(1, flow.QUEUES_MAX + 1)
        rates = [e.value for e in planner.flow.alone([replace(base, queues=float(q)) for q in counts])]
        for share in PLATEAU:
            found[f"queues_{share:.0%}"] = next(q for q, r in zip(counts, rates, strict=True) if r >= share * max(rates))
    return found
