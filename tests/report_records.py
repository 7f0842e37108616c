"""Test data: records as the engine reads and judges them, with made-up numbers.

Nothing here was measured. The host is called `test-data` so that no page made of it can be taken for a result.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from typing import Any

import whole_records

_ids = itertools.count(1)
JOB = {
    "read_pct": None,
    "io_bytes_max": None,
    "io_bytes_step": None,
    "files": None,
    "file_name": "forebay.%d",
    "start_bytes": 0,
    "align_bytes": None,
    "passes": None,
    "warmup_s": None,
    "distribution": "uniform",
    "no_repeat": False,
    "seed": 7,
    "until_ci_pct": None,
    "repeat_max": 20,
    "until_steady": False,
    "rate_gib_s": None,
    "rate_iops": None,
    "cpus": None,
    "numa": None,
    "cache": "bypass",
    "engine": "auto",
    "pages": "auto",
    "sqpoll": False,
    "iopoll": False,
    "sync": "none",
    "verify": False,
    "refill": False,
    "timeout_s": 30.0,
    "overwrite": [],
    "overwrite_devices": [],
    "gpus": [],
    "require_direct": False,
    "allow_compat": False,
    "power": [],
    "interval_ms": 500,
    "faults": None,
}
ENVIRONMENT = {
    "host": "test-data",
    "os": "Debian GNU/Linux 12 (bookworm)",
    "kernel": "6.1.0-test",
    "cpu": "Imagined CPU 9000",
    "cores": 16,
    "numa_nodes": 1,
    "memory_bytes": 64 << 30,
    "virtualization": None,
    "gpus": [],
    "drives": [
        {
            "name": "nvme0n1",
            "model": "Imagined Drive",
            "serial": None,
            "firmware": "1.0",
            "size_bytes": 2 << 40,
            "kind": "nvme",
            "rotational": False,
            "pci": "0000:01:00.0",
            "pcie_gen": 4,
            "pcie_gen_max": 4,
            "pcie_width": 4,
            "pcie_width_max": 4,
            "numa_node": 0,
            "scheduler": "none",
            "max_transfer_bytes": 512 << 10,
            "queue_requests": 1023,
            "temperature_c": 41.0,
        }
    ],
    "filesystem": {
        "kind": "ext4",
        "mount_point": "/data",
        "device": "/dev/nvme0n1p1",
        "options": ["rw", "noatime"],
        "block_bytes": 4096,
        "direct_memory_align": 512,
        "direct_offset_align": 512,
        "free_bytes": 1 << 40,
    },
}


def record(
    path: str = "host",
    io_bytes: int = 1 << 20,
    gib_s: float = 3.0,
    *,
    op: str = "read",
    workers: int = 4,
    depth: int = 8,
    repeats: int = 3,
    seconds: float = 10.0,
    cpu_s_per_gib: float = 0.12,
    user_share: float = 0.35,
    ran: str | None = None,
    origin: str = "measured",
    label: str | None = None,
    watts: float | None = None,
    source: str = "/data/set",
    cv: float = 0.02,
    warnings: list[dict[str, str]] | None = None,
    missing: dict[str, str] | None = None,
    histogram: str = "",
) -> dict[str, Any]:
    """One RunRecord whose fields agree with one another."""
    rng = random.Random(f"{path}{io_bytes}{workers}{depth}{op}{gib_s}")
    rates = [gib_s * (1 + cv * rng.uniform(-1, 1)) for _ in range(repeats)]
    whole = _result(
        sum(rates) / repeats, seconds * repeats, io_bytes, cpu_s_per_gib, user_share, watts, workers, depth
    )
    parts = [
        _result(
            rate,
            seconds,
            io_bytes,
            cpu_s_per_gib * (1 + rng.uniform(-cv, cv)),
            user_share,
            watts,
            workers,
            depth,
        )
        for rate in rates
    ]
    write = "write" in op
    whole |= {
        "read_bytes": 0 if write else whole["bytes"],
        "write_bytes": whole["bytes"] if write else 0,
        "histogram": histogram,
        "copy_latency_us": None,
        "errors": {n: 0 for n in ("short", "retried", "failed", "timed_out", "misaligned", "verify_failed")}
        | {"examples": []},
        "verified_bytes": 0,
        "repeats": parts,
        "summary": _summary(rates, cpu_s_per_gib),
        "series": _series(rates, seconds, io_bytes, rng),
        "workers": [],
        "targets": [{"target": source, "bytes": whole["bytes"], "ios": whole["ios"]}],
        "hosts": [],
        "interrupted": False,
        "steady_after_s": None,
    }
    job = JOB | {
        "source": source,
        "pattern": "random" if op.startswith("rand") else "sequential",
        "direct": True,
        "data_bytes": 4 << 30,
        "queues": workers,
        "sources": [source],
        "path": path,
        "op": op,
        "io_bytes": io_bytes,
        "file_bytes": 1 << 30,
        "workers": workers,
        "depth": depth,
        "duration_s": seconds,
        "repeat": repeats,
        "label": label,
    }
    went = ran or path
    made = copy.deepcopy(
        {
            "schema": "forebay.run/1",
            "id": f"{next(_ids):016x}",
            "started": "2026-01-02T03:04:05Z",
            "command": ["forebay", "bench", source, "--path", path, "--op", op, "--io-size", str(io_bytes)],
            "origin": origin,
            "forebay": {"version": "0.0.0-test", "commit": None, "features": ["uring"]},
            "environment": ENVIRONMENT,
            "job": job,
            "path": {
                "requested": path,
                "ran": went,
                "reason": None if went == path else "made up for a test",
                "engine": "uring",
                "engine_features": ["fixed_files", "fixed_buffers"],
                "direct_bytes": whole["bytes"] if went == "gds" else 0,
                "staged_bytes": whole["bytes"] if went in ("bounce", "gds-compat") else 0,
                "mapped_bytes": whole["bytes"] if went == "mapped" else 0,
                "destination": "host",
                "slot_pages": "thp",
                "slot_bytes": io_bytes,
                "slots_pinned": False,
            },
            "cache": {
                "policy": "bypass",
                "resident_before": 0.0,
                "resident_after": 0.0,
                "device_bytes": whole["bytes"],
            },
            "result": whole,
            "missing": {
                "result.power": "no power meter answers here",
                **({} if missing is None else missing),
            },
        }
    )
    return whole_records.judged(made) if warnings is None else whole_records.whole({**made, "warnings": warnings})


def _result(
    gib_s: float,
    seconds: float,
    io_bytes: int,
    cost: float,
    user: float,
    watts: float | None,
    workers: int,
    depth: int,
) -> dict[str, Any]:
    count = gib_s * seconds * (1 << 30)
    iops = gib_s * (1 << 30) / io_bytes
    mean = workers * depth / iops * 1e6
    busy = cost * gib_s
    return {
        "seconds": seconds,
        "bytes": int(count),
        "ios": int(count / io_bytes),
        "throughput_gib_s": gib_s,
        "iops": iops,
        "latency_us": {
            "min": mean * 0.3,
            "mean": mean,
            "p50": mean * 0.92,
            "p90": mean * 1.5,
            "p99": mean * 2.6,
            "p999": mean * 5.1,
            "max": mean * 9,
        },
        "cpu": {
            "user_s": busy * user * seconds,
            "system_s": busy * (1 - user) * seconds,
            "cores_busy": busy,
            "user_pct": busy * user / 16 * 100,
            "system_pct": busy * (1 - user) / 16 * 100,
            "cpu_s_per_gib": cost,
            "ns_per_io": busy / iops * 1e9,
            "machine_cores_busy": busy + 0.1,
            "others_cores_busy": 0.1,
        },
        "power": []
        if watts is None
        else [
            {
                "source": "rapl",
                "scope": "package-0",
                "watts_mean": watts,
                "joules_per_gib": watts / gib_s,
                "samples": 100,
            }
        ],
        "noise": {"steal_pct": 0.0, "others_cores_busy": 0.1, "throttled": 0, "series_cv_pct": 1.5},
    }


def _summary(rates: list[float], cost: float) -> dict[str, Any]:
    mean, ordered = sum(rates) / len(rates), sorted(rates)
    sd = math.sqrt(sum((r - mean) ** 2 for r in rates) / (len(rates) - 1)) if len(rates) > 1 else None
    half = 4.3 * sd / math.sqrt(len(rates)) if sd is not None else None
    return {
        "throughput_gib_s_median": ordered[len(ordered) // 2],
        "throughput_gib_s_min": ordered[0],
        "throughput_gib_s_max": ordered[-1],
        "throughput_gib_s_sd": sd,
        "throughput_gib_s_ci95": None if half is None else [mean - half, mean + half],
        "cpu_s_per_gib_median": cost,
    }


def _series(rates: list[float], seconds: float, io_bytes: int, rng: random.Random) -> list[dict[str, Any]]:
    points = []
    for repeat, rate in enumerate(rates):
        for i in range(int(seconds * 2)):
            now = rate * (1 + 0.03 * rng.uniform(-1, 1)) * (0.6 + 0.2 * i if i < 2 else 1)
            points.append(
                {
                    "t_s": (i + 1) / 2,
                    "gib_s": now,
                    "iops": now * (1 << 30) / io_bytes,
                    "latency_us_mean": None,
                    "latency_us_p99": None,
                    "cores_busy": None,
                    "warmup": i < 2,
                    "repeat": repeat,
                }
            )
    return points


def point(preset: str | None, made: dict[str, Any]) -> dict[str, Any]:
    """A sweep's line."""
    return {
        "schema": "forebay.point/1",
        "preset": preset,
        "point": {"path": made["path"]["requested"], "io_bytes": made["job"]["io_bytes"]},
        "record": made,
    }


SIZES = {64 << 10: 1.9, 128 << 10: 2.6, 512 << 10: 3.1, 1 << 20: 3.2, 4 << 20: 3.25}


def sweep(
    preset: str | None = "solidigm-gds", paths: tuple[str, ...] = ("host", "bounce"), **changes: Any
) -> list[dict[str, Any]]:
    """Both paths over the papers' block sizes."""
    worth = {"host": 1.0, "bounce": 0.98, "mapped": 1.08, "gds": 1.01}
    cost = {"host": 1.0, "bounce": 1.35, "mapped": 0.6, "gds": 0.4}
    lines = []
    for size, rate in SIZES.items():
        workers = 32 if size <= 128 << 10 else 24
        for path in paths:
            made = record(
                path,
                size,
                rate * worth[path],
                workers=workers,
                depth=1,
                cpu_s_per_gib=0.08 * cost[path] * (1 + (64 << 10) * 6 / size),
                **changes,
            )
            lines.append(point(preset, made))
    return lines
