"""An engine for tests of emulation: a storage that supplies so many GiB/s, and a client that could do so many.

Records have the shape of the engine's (crates/model/src/training/record.rs), utilisation is the arithmetic of supply and demand.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import fake_engine
from forebay.errors import ForebayError
from whole_records import judged

LATENCY = {"latency_us": {**fake_engine.LATENCY}, "histogram": ""}
LABEL = "MLPerf-style, unverified"


class FakeStorage:
    """`gib_s` of the storage, `client_gib_s` of this host; `noise`: points of AU. `specs`: what was asked for."""

    def __init__(self, gib_s: float, client_gib_s: float = 1e9, noise: float = 0.0, seed: int = 1) -> None:
        self.gib_s, self.client_gib_s, self.noise = gib_s, client_gib_s, noise
        self.random = random.Random(seed)
        self.specs: list[dict[str, Any]] = []
        self.interrupt_at: int | None = None
        self.fail_at: dict[int, ForebayError] = {}
        self.progress: list[dict[str, Any]] = []

    def install(self, monkeypatch: Any) -> FakeStorage:
        from forebay.emulate import engine

        monkeypatch.setattr(engine, "run", self.run)
        monkeypatch.setattr(engine, "check", lambda spec: spec)
        return self

    def au_pct(self, spec: dict[str, Any]) -> float:
        """What the supply allows, of a loop that leaves half a point."""
        w = spec["workload"]
        demand = spec["accelerators"] * w["batch"] / w["compute_s"] * w["record_bytes"] / 2**30
        supply = min(self.gib_s, self.client_gib_s, spec.get("supply_gib_s") or 1e9)
        return min(99.5, 100 * supply / demand)

    def run(self, spec: dict[str, Any], *, observer: Any = None, command: Any = None) -> dict[str, Any]:
        turn = len(self.specs)
        self.specs.append(copy.deepcopy(spec))
        if turn in self.fail_at:
            raise self.fail_at[turn]
        made = self.record(spec, turn)
        if observer is not None:
            observer(progress(au_pct=made["training"]["au_pct"]))
        if self.interrupt_at == turn:
            made["result"]["interrupted"] = True
        return made

    def record(self, spec: dict[str, Any], turn: int) -> dict[str, Any]:
        w, n = spec["workload"], spec["accelerators"]
        au = self.au_pct(spec) + self.random.gauss(0, self.noise)
        whole = w["files"] * w["samples_per_file"] // (n * w["batch"]) or 100
        steps = spec.get("steps_max") or whole
        seconds = spec["epochs"] * steps * w["compute_s"] / (au / 100)
        samples = n * w["batch"] * steps * spec["epochs"]
        limited = self.client_gib_s < self.gib_s and au < 99
        waited = n * seconds * (1 - au / 100)
        read = int(samples * w["record_bytes"])
        ios = max(1, read >> 17)
        made = fake_engine.record(
            seconds=seconds, bytes=read, read_bytes=read, throughput_gib_s=read / seconds / 2**30, ios=ios, iops=ios / seconds,
            interrupted=False,
        )  # fmt: skip
        made["id"] = f"{turn:016x}"
        made["job"].update(source=spec["data"][0], sources=spec["data"])
        epochs = [
            {"epoch": e + 1, "steps": steps, "seconds": seconds / spec["epochs"], "au_pct": au,
             "samples_per_s": samples / seconds, "read_bytes": read // spec["epochs"], "by_rules": []}
            for e in range(spec["epochs"])
        ]  # fmt: skip
        made["training"] = {
            "label": LABEL,
            "workload": w["name"],
            "version": w["version"],
            "accelerator": w["accelerator"],
            "accelerators": n,
            "hosts": 1,
            "rule_set": spec["rules"],
            "level": spec["level"],
            "loader": w["loader"],
            "format": w["format"],
            "batch": w["batch"],
            "compute_s": w["compute_s"],
            "record_bytes": w["record_bytes"],
            "files": w["files"] or 10,
            "samples_per_file": w["samples_per_file"],
            "seed": spec["seed"],
            "prefetch": spec["prefetch"],
            "read_threads": spec["read_threads"],
            "destination": "drop",
            "au_pct": au,
            "au_pct_min": w["au_pct_min"],
            "passes": au >= w["au_pct_min"],
            "samples_per_s": samples / seconds,
            "throughput_mib_s": samples / seconds * w["record_bytes"] / 2**20,
            "steps": steps,
            "epochs": epochs,
            "by_rules": [
                {"rule_set": r, "au_pct": au, "samples_per_s": samples / seconds, "busy_s": 1.0, "counted_s": 1.0}
                for r in ("v1.0", "v2.0", "v3.0", "text")
            ],
            "rules": [{"id": "au", "ok": au >= w["au_pct_min"], "why": f"AU {au:.2f} % by {spec['rules']}"}],
            "read_bytes": read,
            "payload_bytes": read,
            "samples": samples,
            "skipped": {"count": 0, "examples": []},
            "latency": {key: copy.deepcopy(LATENCY) for key in ("read", "sample", "step")},
            **bottleneck(limited, waited),
            "memory_bytes": {"per_accelerator": 1 << 20, "rss": 64 << 20},
            "start_to_first_step_s": 0.1,
            "curve": [],
        }  # fmt: skip
        return judged(made)


def bottleneck(limited: bool, waited: float) -> dict[str, Any]:
    """What the accelerators waited for, `waited` seconds in all: the client's processors if it is limited, else storage."""
    return {
        "waited": {"storage_s": 0.0 if limited else waited, "parse_s": 0.0, "cpu_s": waited if limited else 0.0,
                   "barrier_s": 0.0},
        "headroom": {"cores_busy": 2.0 if limited else 0.5, "workers_busy_pct": 99.0 if limited else 20.0,
                     "client_limited": limited, "why": "both cores are busy" if limited else ""},
    }  # fmt: skip


def progress(**changed: Any) -> dict[str, Any]:
    """One Progress of an emulated run."""
    base = {"phase": "run", "epoch": 2, "epochs": 5, "step": 34, "steps": 100, "t_s": 12.0, "au_pct": 93.1, "gib_s": 4.2}
    return {**base, "waiting_ranks": [3, 7], "cores_busy": 1.3, **changed}
