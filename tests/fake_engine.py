"""An engine for tests of the verbs: records of the right shape, at a speed that the test chooses."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from whole_records import whole

LATENCY = {
    "min": 80.0,
    "mean": 512.0,
    "p50": 480.0,
    "p90": 700.0,
    "p99": 1800.0,
    "p999": 2500.0,
    "max": 4100.0,
}
CPU = {
    "user_s": 0.2,
    "system_s": 0.6,
    "cores_busy": 0.4,
    "user_pct": 5.0,
    "system_pct": 15.0,
    "cpu_s_per_gib": 0.2,
    "ns_per_io": 195000.0,
    "machine_cores_busy": 0.5,
    "others_cores_busy": 0.1,
}
RECORD: dict[str, Any] = {
    "schema": "forebay.run/1",
    "id": "00112233aabbccdd",
    "started": "2026-01-02T03:04:05Z",
    "command": ["forebay", "bench"],
    "origin": "measured",
    "forebay": {"version": "0.1.0", "commit": None, "features": ["uring"]},
    "environment": {
        "host": "testhost",
        "os": "Debian 12",
        "kernel": "6.18.1",
        "cpu": "Test CPU",
        "cores": 2,
        "numa_nodes": 1,
        "memory_bytes": 24 << 30,
        "virtualization": "kvm",
        "gpus": [],
        "drives": [{"name": "vda", "kind": "virtio"}],
        "filesystem": {"kind": "ext4", "mount_point": "/", "device": "/dev/vda", "options": []},
    },
    "job": {
        "source": "/data/t",
        "pattern": "sequential",
        "direct": True,
        "data_bytes": 1 << 30,
        "queues": 1,
        "sources": ["/data/t"],
        "path": "host",
        "op": "read",
        "read_pct": None,
        "io_bytes": 1 << 20,
        "workers": 1,
        "depth": 8,
        "seed": 7,
        "verify": False,
    },
    "path": {
        "requested": "host",
        "ran": "host",
        "reason": None,
        "engine": "uring",
        "engine_features": ["fixed_files", "fixed_buffers"],
        "direct_bytes": 0,
        "staged_bytes": 0,
        "mapped_bytes": 0,
        "destination": "host",
        "slot_pages": "thp",
        "slot_bytes": 8 << 20,
        "slots_pinned": False,
    },
    "cache": {"policy": "bypass", "resident_before": 0.0, "resident_after": 0.0, "device_bytes": 4 << 30},
    "result": {
        "seconds": 2.0,
        "bytes": 4 << 30,
        "ios": 4096,
        "read_bytes": 4 << 30,
        "write_bytes": 0,
        "throughput_gib_s": 2.0,
        "iops": 2048.0,
        "latency_us": LATENCY,
        "histogram": "",
        "copy_latency_us": None,
        "cpu": CPU,
        "power": [],
        "errors": {
            "short": 0,
            "retried": 0,
            "failed": 0,
            "timed_out": 0,
            "misaligned": 0,
            "verify_failed": 0,
            "examples": [],
        },
        "noise": {},
        "verified_bytes": 0,
        "repeats": [{"throughput_gib_s": 2.0}],
        "summary": {
            "throughput_gib_s_median": 2.0,
            "throughput_gib_s_min": 2.0,
            "throughput_gib_s_max": 2.0,
            "throughput_gib_s_sd": None,
            "throughput_gib_s_ci95": None,
            "cpu_s_per_gib_median": 0.2,
        },
        "series": [{"t_s": 0.5 * i, "gib_s": 0.5 * i, "warmup": i < 3, "repeat": 0} for i in range(1, 9)],
        "workers": [],
        "targets": [],
        "hosts": [],
        "interrupted": False,
        "steady_after_s": None,
    },
    "missing": {"result.power": "no RAPL in /sys/class/powercap, no NVML"},
    "warnings": [{"id": "too_short", "text": "measured for 2 s only", "next": "--duration 10"}],
}

RECORD = whole(RECORD)


def record(**result: Any) -> dict[str, Any]:
    """A record whose `result` has these fields changed."""
    made = copy.deepcopy(RECORD)
    made["result"].update(result)
    return made


def progress(**changed: Any) -> dict[str, Any]:
    """One Progress."""
    base = {
        "phase": "measure",
        "repeat": 0,
        "repeats": 1,
        "t_s": 1.0,
        "duration_s": 10.0,
        "gib_s": 2.0,
        "iops": 2048.0,
        "bytes": 2 << 30,
        "ios": 2048,
        "latency_us_mean": 512.0,
        "latency_us_p50": 480.0,
        "latency_us_p99": 1800.0,
        "latency_us_p999": 2500.0,
        "cores_busy": 0.4,
        "workers": [{"gib_s": 1.5, "iops": 1536.0}, {"gib_s": 0.5, "iops": 512.0}],
        "targets": [
            {"target": "/data/a", "gib_s": 1.5, "iops": 1536.0},
            {"target": "/data/b", "gib_s": 0.5, "iops": 512.0},
        ],
        "message": None,
    }
    return {**base, **changed}


def slow_run(
    seconds: float,
    tick_s: float = 0.05,
    begun: Callable[[], object] = lambda: None,
    over: Callable[[], object] = lambda: False,
) -> Any:
    """A `forebay.run.run` that takes its time, unless it is `over` before, reports, and honours an exception of its
    observer."""

    def run(job: dict[str, Any], *, observer: Any = None, command: Any = None) -> dict[str, Any]:
        made = record()
        made["job"].update(job)
        started = time.monotonic()
        begun()
        while True:
            elapsed = time.monotonic() - started
            try:
                if observer is not None:
                    observer(progress(t_s=elapsed, duration_s=seconds))
                if elapsed >= seconds or over():
                    return made
                time.sleep(tick_s)
            except KeyboardInterrupt:
                made["result"].update(interrupted=True, seconds=elapsed)
                return made

    return run
