"""What tests of `forebay sweep` share: a sweep in a file, a machine that runs its jobs, and the points that were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine

SWEEP = """
title = "depth by path"
[job]
op = "read"
duration = 1
[matrix]
path = ["host", "bounce"]
depth = [1, 8, 64]
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(noise=0.01).install(monkeypatch)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(SWEEP)
    return path


def points_of(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["schema"] == "forebay.point/1"]


def ran(machine: FakeMachine) -> list[tuple[Any, ...]]:
    return [(job.get("path"), job.get("depth")) for job in machine.jobs]
