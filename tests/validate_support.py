"""A machine with GPUs, drives, meters and every path, for tests of `forebay validate`: the engine and the doctor
replaced, each run's truth (direct, compatibility mode, broken) chosen by the test; and how its file is read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from fake_machine import typed
from forebay import doctor
from forebay import run as engine
from forebay.errors import MachineError
from forebay.validate import promises

HOST = {"path": "host"}
QUICK = ("--seconds", "0.1", "--file-size", "16m")


class Server:
    """`compat`: gds runs in compatibility mode. `break_at`: label → what the engine raises there."""

    def __init__(self, monkeypatch: Any, *, gpus: int = 2, direct: bool = True) -> None:
        self.gpus, self.compat = gpus, not direct
        self.verified_on = "gpu:0"
        self.break_at: dict[str, BaseException] = {}
        self.interrupt_at: int | None = None
        self.gpu_lies = self.blind = False
        # Whether --require-direct refuses what isn't; a validation doesn't rely on it.
        self.honest = True
        self.rates: dict[str, float] = {"host": 6.0, "bounce": 5.0, "mapped": 40.0, "gds": 6.5, "auto": 6.4}
        self.jobs: list[dict[str, Any]] = []
        self._examined = doctor.examine()
        monkeypatch.setattr(doctor, "examine", lambda source=None, cufile_json=None: self.report())
        monkeypatch.setattr(engine, "run", self.run)
        monkeypatch.setattr(engine, "plan", lambda job: {})
        monkeypatch.setattr(engine, "lacks", lambda job: None)

    def report(self) -> dict[str, Any]:
        made = copy.deepcopy(self._examined)
        made["gpu"]["gpus"] = [{"index": n, "name": "NVIDIA L40S"} for n in range(self.gpus)]
        made["drives"] = [{"name": "nvme0n1", "kind": "nvme"}]
        made["topology"] = [{"gpu": 0, "to": "nvme0n1", "relation": "same_switch"}]
        made["environment"]["numa_nodes"] = 2
        for check in made["checks"]:
            if check["area"] == "power" or check["id"] == "hugetlb":
                check.update(state="works", why=None)
        made["verdicts"] = {
            "gds": {
                "answer": "compat_only" if self.compat else "direct",
                "through": None if self.compat else "p2pdma",
                "nvidia_fs": [{"id": "nvidia_fs", "because": "nvidia-fs isn't loaded", "next": "x"}],
                "p2pdma": [{"id": "p2pdma_raid", "because": "P2PDMA refuses md", "next": "x"}]
                if self.compat
                else [],
                "both": [],
                "doubts": [],
                "compat_allowed": True,
            },
            "mapped": {"runs": True, "because": None},
            "bounce": {"runs": True, "because": None},
        }
        return made

    def run(self, job: dict[str, Any], *, observer: Any = None, command: Any = None) -> dict[str, Any]:
        engine.check(dict(job))
        number = len(self.jobs)
        self.jobs.append(dict(job))
        label = str(job.get("label"))
        if label in self.break_at:
            raise self.break_at[label]
        if job.get("require_direct") and self.compat and self.honest:
            raise MachineError("--require-direct", "cuFile is in its compatibility mode", "--allow-compat")
        record = self._record(job)
        if self.interrupt_at is not None and number >= self.interrupt_at:
            record["result"]["interrupted"] = True
        return record

    def _record(self, job: dict[str, Any]) -> dict[str, Any]:
        path = job.get("path", "host")
        width = job.get("sources", [""])[0].count("m=") or len(job.get("pairs", ())) or 1
        bytes_ = 1 << 30
        made = fake_engine.record(
            bytes=bytes_,
            throughput_gib_s=self.rates[path] * width,
            verified_bytes=bytes_ if job.get("verify") else 0,
            verified_on=self.verified_on if path != "host" else "host",
            power=[{"source": "ipmi", "scope": "server", "watts_mean": 700.0}],
        )
        made["job"].update(job)
        ran = {"auto": "bounce", "gds": "gds-compat" if self.compat else "gds"}.get(path, path)
        made["path"].update(
            requested=path,
            ran=ran,
            destination="host" if path == "host" or self.gpu_lies else "gpu:0",
            direct_bytes=bytes_ if ran == "gds" else 0,
            compat_bytes=bytes_ if ran == "gds-compat" else 0,
            mapped_bytes=bytes_ if ran == "mapped" else 0,
            slot_pages=job.get("pages", "thp"),
        )
        made["cache"]["device_bytes"] = None if self.blind else bytes_
        if path == "gds":
            calls = {"bytes": bytes_, "total": 8, "p2p": 8, "nvfs": 0, "posix": 0, "rerouted": 0}
            if self.compat:
                calls.update(p2p=0, posix=8)
            made["cufile"] = {"gpus": [{"reads": calls, "writes": dict.fromkeys(calls, 0)}]}
        return made

    def labels(self) -> list[str]:
        return [str(j.get("label")) for j in self.jobs]


def four_directories(folder: Path) -> list[Path]:
    """Four drives, as directories."""
    made = [folder / f"nvme{n}" for n in range(4)]
    for each in made:
        each.mkdir()
    return made


def states(path):
    return {s["name"]: s["state"] for s in json.loads(path.read_text())["steps"]}


def validate(capsys, *arguments):
    return typed(capsys, "validate", *arguments)


@pytest.fixture
def server(monkeypatch):
    return Server(monkeypatch)


@pytest.fixture
def drives(tmp_path):
    return four_directories(tmp_path)


def judged_of(document, step):
    return {r["promise"]: r for r in promises.judge(document) if r["step"] == step}


def judged(output, step):
    return judged_of(json.loads(output.read_text()), step)


GDSIO = """#!/bin/sh
echo "IoType: READ XferType: GPUD Threads: 4 DataSetSize: 1/2(KiB) IOSize: 1024(KiB) Throughput: {rate} GiB/sec, \\
Avg_Latency: 1.0 usecs ops: 2 total_time 1.0 secs"
"""
