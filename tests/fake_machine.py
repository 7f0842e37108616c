"""A machine whose truth is known: a deterministic model of throughput and CPU, with seeded noise and drift.

It stands in for the engine (forebay.run.run) in tests of what is built on top of it. Throughput rises
with depth × workers and saturates; each I/O costs a fixed CPU time and each byte another.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import whole_records
from forebay.errors import MachineError, RequestError

GIB = 1 << 30


class FakeMachine:
    """`ratio_of(job)` multiplies the throughput; `drift` is the relative change from each run to the next."""

    def __init__(
        self, seed: int = 1, noise: float = 0.0, drift: float = 0.0, peak_gib_s: float = 4.0
    ) -> None:
        self.random = random.Random(seed)
        self.noise, self.drift, self.peak_gib_s = noise, drift, peak_gib_s
        self.jobs: list[dict[str, Any]] = []
        self.ratio_of = lambda job: 1.0
        self.interrupt_at: int | None = None
        self.paths = ("host", "bounce", "mapped")
        self.watts: dict[str, float] = {}
        self.cpu = True
        # Runs, counted from 0, in which no I/O finishes.
        self.empty: set[int] = set()

    def install(self, monkeypatch: Any) -> FakeMachine:
        from forebay import run as engine

        for name in ("run", "plan", "check"):
            monkeypatch.setattr(engine, name, getattr(self, name))
        monkeypatch.setattr(engine, "lacks", lambda job: None)  # what is missing, `plan` says
        return self

    def check(self, job: dict[str, Any]) -> dict[str, Any]:
        if job.get("workers", 1) < 1:
            error = RequestError(f"--workers {job['workers']}", "must be 1 to 4096", "--workers 4")
            error.marked = (f"‹workers› {job['workers']}", "must be 1 to 4096", "‹workers› 4")
            raise error
        return job

    def plan(self, job: dict[str, Any]) -> dict[str, Any]:
        if job.get("path", "host") not in self.paths:
            raise MachineError(f"--path {job['path']}", "libcufile isn't here", "--path bounce")
        return {}

    def true_gib_s(self, job: dict[str, Any]) -> float:
        in_flight = job.get("depth", 8) * job.get("workers", 1) * job.get("io_bytes", 1 << 20)
        return self.peak_gib_s * (1 - math.exp(-in_flight / (2 << 20))) * self.ratio_of(job)

    def true_cpu_s_per_gib(self, job: dict[str, Any]) -> float:
        """More workers cost more (contention), small I/Os cost more (per-I/O work)."""
        per_io = 4e-6 * GIB / job.get("io_bytes", 1 << 20)
        return (0.01 + per_io) * (1 + 0.2 * (job.get("workers", 1) - 1))

    def run(self, job: dict[str, Any], *, observer: Any = None, command: Any = None) -> dict[str, Any]:
        self.plan(job)
        self.check(job)
        number = len(self.jobs)
        self.jobs.append(dict(job))
        interrupted = self.interrupt_at is not None and number >= self.interrupt_at
        wobble = math.exp(self.drift * number + self.random.gauss(0, self.noise))
        rate = self.true_gib_s(job) * wobble
        seconds = job.get("duration_s") or 10.0
        if observer is not None:
            observer(
                {"phase": "measure", "t_s": seconds / 2, "duration_s": seconds, "gib_s": rate, "iops": 1.0}
            )
        cpu = self.true_cpu_s_per_gib(job) if self.cpu else None
        record = record_of(job, rate, seconds, cpu, number, interrupted, self._power(job, rate))
        if number in self.empty:
            record["result"] |= {"ios": 0, "gib_s": 0.0, "iops": 0.0}
        return record

    def _power(self, job: dict[str, Any], rate: float) -> list[dict[str, Any]]:
        watts = self.watts.get(job.get("path", "host"))
        if watts is None:
            return []
        return [
            {
                "source": "ipmi",
                "scope": "server",
                "watts_mean": watts,
                "joules_per_gib": watts / rate,
                "samples": 9,
            }
        ]


def record_of(
    job: dict[str, Any],
    rate: float,
    seconds: float,
    cpu: float | None,
    number: int = 0,
    interrupted: bool = False,
    power: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A record with the fields that are read here."""
    iops = rate * GIB / job.get("io_bytes", 1 << 20)
    latency = 1e6 * job.get("depth", 8) * job.get("workers", 1) / iops
    figures = {
        "seconds": seconds,
        "bytes": int(rate * seconds * GIB),
        "ios": int(iops * seconds),
        "throughput_gib_s": rate,
        "iops": iops,
        "latency_us": {"mean": latency, "p50": latency, "p99": latency * 2},
        "cpu": {"cpu_s_per_gib": cpu},
        "power": power or [],
        "noise": {"steal_pct": 0.0, "others_cores_busy": 0.1, "throttled": 0},
    }
    made = {
        "schema": "forebay.run/1",
        "id": f"{number:016x}",
        "started": "2026-01-01T00:00:00Z",
        "command": ["forebay"],
        "origin": "measured",
        "job": {"source": " ".join(job.get("sources", [])), "direct": True, **job},
        "path": {
            "requested": job.get("path", "host"),
            "ran": job.get("path", "host"),
            "engine": "uring",
            "destination": "host",
        },
        "cache": {"policy": job.get("cache", "bypass")},
        "result": {**figures, "repeats": [dict(figures)], "interrupted": interrupted},
        "missing": {"result.power": "no meter answered"} if not power else {},
        "warnings": [],
    }
    return whole_records.whole(made)


def typed(capsys: Any, *arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `forebay ARGUMENTS…`, in this process, so that the engine can be replaced."""
    import pytest
    from forebay.cli import main

    with pytest.raises(SystemExit) as done:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return int(done.value.code or 0), out, err


def other_build(tmp_path: Path, body: str) -> Path:
    """A 'python' that is asked to run `-m forebay.cli …`."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    script.chmod(0o755)
    return script
