"""The baselines that each module must beat: interpolation, data sheets, remote treated as local, means of similar
cells."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from forebay.plan import catalogue, dlrm, training
from forebay.plan.planner import MICRON_DRIVE, job_of, load_of, mean_au, setup_of, system_of
from forebay.plan.published import Row, number

if TYPE_CHECKING:
    from forebay.plan.planner import Planner

FLOW_TABLES = ("gds_vs_cpu", "remote_vs_local", "snap_queues")


def interpolated(planner: Planner, table: str, row: Row) -> float | None:
    """Linear in log size between the nearest measured sizes of the same drive, place, path and (nearest) queues."""
    load = load_of(row)
    points: dict[float, list[tuple[float, float]]] = {}
    for name in FLOW_TABLES:
        for other in planner.rows(name):
            value, there = number(other, "throughput_gibps"), load_of(other)
            if value and (there.drive, there.remote, there.path) == (load.drive, load.remote, load.path):
                apart = abs(math.log((there.queues or 31.0) / (load.queues or 31.0)))
                points.setdefault(there.io_kib, []).append((apart, value))
    curve = {}
    for kib, found in points.items():
        nearest = min(apart for apart, _ in found)
        curve[kib] = statistics.fmean(v for apart, v in found if apart == nearest)
    return along(curve, load.io_kib)


def interpolated_cpu(planner: Planner, table: str, row: Row) -> float | None:
    curve = {}
    for other in planner.rows("gds_vs_cpu"):
        value = number(other, "cpu_usr_pct")
        if value and (other["drive"], other["path"]) == (row["drive"], row["path"]):
            curve[float(other["io_size_kib"])] = math.log(value)
    found = along(curve, float(row["io_size_kib"]))
    return None if found is None else math.exp(found)


def along(curve: dict[float, float], kib: float) -> float | None:
    """Linear in log size; the nearest end's value outside of what is known. None without any point."""
    if not curve:
        return None
    sizes = sorted(curve)
    if kib <= sizes[0] or kib >= sizes[-1]:
        return curve[sizes[0] if kib <= sizes[0] else sizes[-1]]
    high = next(i for i, s in enumerate(sizes) if s >= kib)
    a, b = sizes[high - 1], sizes[high]
    share = math.log(kib / a) / math.log(b / a)
    return curve[a] + share * (curve[b] - curve[a])


def as_local(planner: Planner, table: str, row: Row) -> float | None:
    return interpolated(planner, table, {**row, "location": "local", "snap_queues": ""})


def sheet_count(planner: Planner, table: str, row: Row) -> float:
    """As many as the drives' specification can feed at the AU that must be reached."""
    setup = setup_of(row)
    spec = catalogue.drive(setup.drive, planner.more).seq_read_mbps * setup.drives * 1e6 / 2**20
    demand = training.DEMAND_MIBPS[setup.workload, setup.accelerator] * training.must_reach_pct(setup.workload) / 100
    return float(math.floor(spec / demand))


def mean_of_workload(planner: Planner, table: str, row: Row) -> float | None:
    found = [v for r in planner.rows("mlperf_storage") if r["workload"] == row["workload"] and (v := mean_au(r)) is not None]
    return statistics.fmean(found) if found else None


def sheet_random(planner: Planner, table: str, row: Row) -> float | None:
    """Throughput and latency as the data sheet's IOPS and bandwidth would give them; it says nothing of cores."""
    drive = catalogue.drive(MICRON_DRIVE, planner.more)
    kib, workers = float(row["io_size_kib"]), float(row["workers_per_gpu_drive_pair"])
    iops = min(drive.rand_read_4k_iops or math.inf, drive.seq_read_mbps * 1e6 / (kib * 1024))
    pairs = number(row, "gpu_drive_pairs") or 8.0
    return {"throughput_gbps": pairs * iops * kib * 1024 / 1e9, "latency_us_mean": workers / iops * 1e6}.get(row["metric"])


def sheet_minutes(planner: Planner, table: str, row: Row) -> float:
    """The longer of compute and reading at the specification, with no overlap lost, and the evaluations."""
    job = job_of(row)
    rate, _, seconds, _, _ = dlrm.SYSTEMS.get(job.system, dlrm.UNKNOWN)
    samples = dlrm.EPOCHS * dlrm.SAMPLES
    feed = catalogue.drive(job.drive, planner.more).seq_read_mbps * 1e6 * job.drives / job.sample_bytes
    return (max(samples / (rate * 1e6), samples / feed) + dlrm.EPOCHS * dlrm.EVALS_PER_EPOCH * seconds) / 60


def _others(planner: Planner, row: Row, column: str) -> list[float]:
    rows = planner.rows("ext_mlperf_storage_v1.0")
    return [v for r in rows if r["workload"] == row["workload"] and (v := number(r, column)) is not None]


def mean_of_others(planner: Planner, table: str, row: Row) -> float:
    return statistics.fmean(_others(planner, row, "au_mean_pct"))


def demand_of_others(planner: Planner, table: str, row: Row) -> float:
    system = system_of(row)
    demand = training.DEMAND_MIBPS[system.workload, system.accelerator]
    return (system.accelerators or 1.0) * demand * training.must_reach_pct(system.workload) / 100


def count_of_others(planner: Planner, table: str, row: Row) -> float:
    rows = [r for r in planner.rows("ext_mlperf_storage_v1.0") if r["workload"] == row["workload"]]
    each = [float(r["num_accelerators"]) / float(r["num_hosts"]) for r in rows if r["num_accelerators"]]
    return round(statistics.median(each) * system_of(row).hosts)


def minutes_of_others(planner: Planner, table: str, row: Row) -> float:
    found = [v for r in planner.rows("ext_mlperf_training_v4.1_dlrm_runs") if (v := number(r, "run_min"))]
    return statistics.median(found)
