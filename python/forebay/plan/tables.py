"""The published tables' forms: how each is recognised, what of it is measured, and how its blanks are predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.errors import RequestError
from forebay.plan import cpu, flow, identity, random_reads, runs, training
from forebay.plan.estimate import Z80, Estimate, from_log
from forebay.plan.frozen import replace
from forebay.plan.planner import (
    AU_COLUMNS,
    SYSTEMS,
    THREADS_SD,
    Planner,
    finite_positive,
    job_of,
    load_of,
    mean_au,
    point_of,
    setup_of,
    system_of,
)  # fmt: skip
from forebay.plan.published import Row, number

Estimates = dict[str, Estimate]


@dataclass(frozen=True)
class Form:
    """`needs`: the columns by which it is known. `fills`: those that are measured. `key`: what makes rows the same."""

    name: str
    needs: frozenset[str]
    fills: tuple[str, ...]
    key: tuple[str, ...]
    predict: Callable[[Planner, Sequence[Row], Sequence[str]], list[Estimates]]

    def key_of(self, row: Row) -> tuple[str, ...]:
        return tuple(row.get(c, "").lower() for c in self.key)


def _choice(row: Row, column: str, allowed: Sequence[str], where: str) -> None:
    if row.get(column, "") not in allowed:
        found = f"'{row.get(column, '')}' is not known"
        raise RequestError(f"{where}, column {column}", found, "one of " + ", ".join(allowed))


def _named_drive(row: Row, planner: Planner, where: str) -> None:
    from forebay.plan import catalogue

    try:
        catalogue.drive(row.get("drive", ""), planner.more)
    except RequestError as error:
        raise RequestError(f"{where}: {error.asked}", error.found, error.next) from None


def _throughput(planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[Estimates]:
    for row, at in zip(rows, where, strict=True):
        _named_drive(row, planner, at)
        _choice(row, "path", cpu.PATHS, at)
        if "location" in row:
            _choice(row, "location", ("local", "remote"), at)
    loads = [load_of(row, at) for row, at in zip(rows, where, strict=True)]
    made = planner.flow.predict(loads)
    return [{"throughput_gibps": _marked(e, flow.outside(load))} for e, load in zip(made, loads, strict=True)]


def _marked(estimate: Estimate, far: Sequence[str]) -> Estimate:
    """Beyond ten times what was measured the bottleneck says so; the interval is widened already."""
    return replace(estimate, bottleneck=f"{estimate.bottleneck}; extrapolated") if far else estimate


def _with_cpu(planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[Estimates]:
    """Throughput, and user CPU at the throughput that is given, or else predicted."""
    found = _throughput(planner, rows, where)
    work, spread = [], []
    for row, estimates, at in zip(rows, found, where, strict=True):
        rate = estimates["throughput_gibps"]
        given = number(row, "throughput_gibps", at)
        kib = number(row, "io_size_kib", at)
        assert kib is not None
        work.append(cpu.Work(row["path"], kib, given or rate.value))
        spread.append(0.0 if given else math.log(rate.p90 / rate.p10) / (2 * Z80))
    for estimates, pct in zip(found, planner.user_cpu.predict(work, spread), strict=True):
        estimates["cpu_usr_pct"] = Estimate(
            pct.value, pct.p10, pct.p90, pct.unit, estimates["throughput_gibps"].bottleneck
        )
    return found


def _training(planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[Estimates]:
    """A blank number of accelerators asks for the greatest; a given one for its AU."""
    for row, at in zip(rows, where, strict=True):
        _named_drive(row, planner, at)
        _choice(row, "workload", training.WORKLOADS, at)
    setups = [setup_of(row, at) for row, at in zip(rows, where, strict=True)]
    greatest = planner.training.greatest(setups)
    greatest = [_of_host(row, g) for row, g in zip(rows, greatest, strict=True)]
    greatest = [_as_measured(row, s, g) for row, s, g in zip(rows, setups, greatest, strict=True)]
    numbers = [s.accelerators or max(1.0, g.value) for s, g in zip(setups, greatest, strict=True)]
    at_number = [replace(s, accelerators=n) for s, n in zip(setups, numbers, strict=True)]
    found: list[Estimates] = []
    for row, setup, count, au in zip(rows, at_number, greatest, planner.training.au(at_number), strict=True):
        out = training.outside(setup)
        count, au = _marked(count, out), _marked(au, out)
        found.append({"accelerators_h100_emulated": count, **_run_columns(row, setup, au)})
    return found


def _of_host(row: Row, count: Estimate) -> Estimate:
    """As unsure as the threads of a host that nobody knows, as far as its process slots limit."""
    slots, name = count.stations.get(training.READERS_OF_HOST, 0.0), row.get("system", "")
    sd = THREADS_SD * slots**training.SHARP
    if not name or name in SYSTEMS or count.value < 1 or sd < 0.01:
        return count
    # With as many slots as one likes, what else limits does.
    others = [share for station, share in count.stations.items() if station != training.READERS_OF_HOST and share > 0]
    most = math.floor(count.value / max(others)) if others else math.inf
    low = math.floor(count.value * math.exp(-math.hypot(Z80 * sd, math.log(count.value / max(count.p10, 0.5)))))
    high = count.value * math.exp(math.hypot(Z80 * sd, math.log(count.p90 / count.value)))
    return replace(count, p10=float(low), p90=max(count.p90, float(math.floor(min(high, most)))))


def _as_measured(row: Row, setup: training.Setup, foretold: Estimate) -> Estimate:
    """The greatest number, as far as what was measured of the row leaves it open."""
    rate, au = number(row, "throughput_mibps"), mean_au(row)
    if not rate:
        return foretold
    if au:
        return identity.number(rate, setup.asks.mibps, au, foretold.bottleneck)
    return identity.passing(foretold, rate, setup.asks.mibps, setup.asks.least_pct)


def _run_columns(row: Row, setup: training.Setup, au: Estimate) -> Estimates:
    """AU of each of five runs, and the throughput that follows from it by the benchmark's own identity."""
    known, measured = mean_au(row), number(row, "throughput_mibps")
    count, each = setup.accelerators or 1.0, setup.asks.mibps
    if known is not None:
        au = identity.other_run(known, au.bottleneck)
    elif measured is not None:
        au = identity.share(measured, count, each, au.bottleneck)
    demand = each * count / 100
    low, high = ((known, known) if known is not None else (au.p10, au.p90))
    rate = Estimate(
        au.value * demand, low * demand * (1 - identity.APART), high * demand * (1 + identity.APART), "MiB/s", au.bottleneck
    )
    passes = Estimate(float(au.value >= setup.asks.least_pct), 0, 1, "pass", au.bottleneck)
    return {**{c: au for c in AU_COLUMNS}, "throughput_mibps": rate, "valid": passes}


def _random(planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[Estimates]:
    for row, at in zip(rows, where, strict=True):
        if "write" in row.get("workload", "").lower():
            asked = f"{at}, column workload"
            raise RequestError(asked, f"'{row['workload']}': no write of this kind was measured", "rand read, or a blank cell")
        _choice(row, "metric", random_reads.METRICS, at)
        _choice(row, "path", cpu.PATHS, at)
    points = [point_of(row, at) for row, at in zip(rows, where, strict=True)]
    return [{"value": e} for e in planner.random_reads.predict(points)]


def _minutes(planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[Estimates]:
    for row, at in zip(rows, where, strict=True):
        _named_drive(row, planner, at)
    jobs = [job_of(row, at) for row, at in zip(rows, where, strict=True)]
    return [{"training_time_min": e} for e in planner.training_time([j.system for j in jobs]).predict(jobs)]


def _others(planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[Estimates]:
    found = []
    for row, at in zip(rows, where, strict=True):
        _choice(row, "workload", training.WORKLOADS, at)
        _choice(row, "accel_type", ("h100", "a100"), at)
        found.append(_other(planner, row, at))
    return found


def _other(planner: Planner, row: Row, where: str) -> Estimates:
    from forebay.plan.others import RECORD_BYTES

    system = system_of(row, where)
    scale = 2**20 / RECORD_BYTES[system.workload]
    known_rate = number(row, "throughput_mibps", where) or (number(row, "samples_per_s", where) or 0.0) / scale or None
    ratio, sd = planner.others.ratio[system.workload].predict([1.0])
    # What its bytes would be at the benchmark's identity, which its own figures miss by this ratio.
    each = training.DEMAND_MIBPS[system.workload, system.accelerator]
    demand, apart = each * math.exp(ratio), Z80 * sd
    count = planner.others.count(system)
    given = _mean_given(row, where, count.bottleneck)
    if known_rate and given:
        count = identity.number(known_rate, demand, given.value, count.bottleneck, apart)
    full = system if finite_positive(system.accelerators) else replace(system, accelerators=count.value)
    au = given or planner.others.au(full)
    if known_rate and not given and full is system and system.accelerators:
        au = identity.share(known_rate, system.accelerators, demand, au.bottleneck, apart)
    rate = planner.others.throughput(full, au, given is not None and given.p10 == given.p90)
    if full is not system:  # the number itself is a guess, and throughput is proportional to it
        wide = math.hypot(math.log(rate.p90 / rate.p10), math.log(count.p90 / count.p10)) / (2 * Z80)
        rate = from_log(math.log(rate.value), wide, rate.unit, bottleneck=rate.bottleneck)
    if known_rate:
        rate = identity.printed(known_rate, rate.unit, rate.bottleneck)
    samples = Estimate(rate.value * scale, rate.p10 * scale, rate.p90 * scale, "samples/s", au.bottleneck)
    miss = from_log(ratio, sd, "", bottleneck=au.bottleneck)
    if known_rate and number(row, "au_mean_pct", where) and system.accelerators:
        found = 100 * known_rate / (system.accelerators * each * au.value)
        miss = identity.printed(found, "", au.bottleneck, identity.RATIO_PRINTED)
    return {
        "num_accelerators": count,
        "au_mean_pct": au,
        "au_min_pct": identity.lowest(au, au.bottleneck),
        "au_max_pct": identity.highest(au, au.bottleneck),
        "throughput_mibps": rate,
        "samples_per_s": samples,
        "identity_ratio": miss,
    }


def _mean_given(row: Row, where: str, limit: str) -> Estimate | None:
    """The row's mean AU, or what its lowest and highest run say of it; None where it says nothing."""
    mean = number(row, "au_mean_pct", where) or None
    if mean is not None:
        return Estimate(mean, mean, mean, "%", limit)
    return identity.mean_of(number(row, "au_min_pct", where) or None, number(row, "au_max_pct", where) or None, limit)


FORMS = (
    Form(
        "mlperf_storage",
        frozenset({"workload", "drive", "n_drives", "accelerators_h100_emulated"}),
        ("accelerators_h100_emulated", *AU_COLUMNS, "throughput_mibps", "valid"),
        ("workload", "drive", "n_drives", "system", "dataset_gib"),
        _training,
    ),
    Form(
        "ext_mlperf_storage_v1.0",
        frozenset({"org", "workload", "accel_type", "num_accelerators"}),
        (
            "num_accelerators", "au_mean_pct", "au_min_pct", "au_max_pct", "throughput_mibps", "samples_per_s",
            "identity_ratio",
        ),  # fmt: skip
        ("org", "system"),
        _others,
    ),
    Form(
        "ext_mlperf_training_v4.1_dlrm_runs",
        frozenset({"org", "system", "run_min"}),
        runs.FILLS,
        ("org", "system", "file"),
        runs.predict,
    ),
    Form(
        "micron_gds",
        frozenset({"metric", "value", "path", "io_size_kib", "workers_per_gpu_drive_pair"}),
        ("value",),
        ("metric", "path", "io_size_kib", "workers_per_gpu_drive_pair"),
        _random,
    ),
    Form(
        "dlrm_training_time",
        frozenset({"system", "drive", "n_drives", "training_time_min"}),
        ("training_time_min",),
        ("system", "drive", "n_drives"),
        _minutes,
    ),
    Form(
        "gds_vs_cpu",
        frozenset({"drive", "path", "io_size_kib", "cpu_usr_pct"}),
        ("throughput_gibps", "cpu_usr_pct"),
        ("drive", "path", "io_size_kib", "gdsio_workers"),
        _with_cpu,
    ),
    Form(
        "remote_vs_local",
        frozenset({"drive", "path", "io_size_kib", "throughput_gibps"}),
        ("throughput_gibps",),
        ("drive", "location", "path", "io_size_kib", "snap_queues"),
        _throughput,
    ),
)


def recognise(columns: Sequence[str], where: str) -> Form:
    """The form that a table of these columns has. RequestError says which columns each known table has."""
    for form in FORMS:
        if form.needs <= set(columns):
            return form
    known = "; ".join(f"{f.name}: {', '.join(sorted(f.needs))}" for f in FORMS)
    found = "has the columns of no known table: " + ", ".join(columns[:12])
    raise RequestError(where, found, f"the columns of one of these (blank cells are predicted): {known}")
