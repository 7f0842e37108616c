"""sweep, compare and tune over the real engine: short runs of `nil:` and of small files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import watched
from properties import parametrized

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SWEEP = """
[job]
io-size = "64k"
duration = 0.5
warmup = 0
cache = "allow"
[matrix]
path = ["host", "bounce"]
depth = [1, 8]
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(4 << 20))
    return path


@pytest.mark.long
def test_a_sweep_of_a_file_writes_records_that_read_back(forebay: Run, tmp_path: Path, data: Path) -> None:
    from forebay import _core

    (tmp_path / "mine.toml").write_text(SWEEP)
    done = forebay("sweep", "mine.toml", data, "-o", "out.jsonl", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["finished"] == 4 and {p["ran"][0] for p in summary["points"]} == {"host", "bounce"}
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["schema"] for line in lines] == ["forebay.sweep/1", *["forebay.point/1"] * 4]
    for line in lines[1:]:
        record = json.loads(_core.read_record(json.dumps(line["record"])))
        assert record["result"]["bytes"] > 0 and record["job"]["depth"] == line["point"]["depth"]
    again = forebay("sweep", "mine.toml", data, "-o", "out.jsonl", cwd=tmp_path)
    assert again.returncode == 0 and "4 of them finished before" in again.stderr
    gate = forebay("compare", "out.jsonl", "out.jsonl", cwd=tmp_path)
    assert gate.returncode == 0 and "not worse" in gate.stdout, gate.stderr


@pytest.mark.long
@pytest.mark.promise("CMD-10")
@parametrized("number", [signal.SIGINT, signal.SIGTERM], kept=(0,))
def test_a_signal_within_a_run_keeps_it_as_partial_and_the_sweep_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "mine.toml").write_text(SWEEP)
    words = ["sweep", "mine.toml", "nil:", "-o", "out.jsonl", "--set", "duration=3600", "--set", "path=host"]
    witness = tmp_path / "witness"
    with watched.running(witness, *words, cwd=tmp_path) as child:
        watched.wait_until_measured(witness, child)
        child.send_signal(number)
        done = processes.finish(child)
    assert done.returncode == 130 and "continues" in done.stderr, done.stderr
    points = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()][1:]
    assert [p["partial"] for p in points] == [True] and points[0]["record"]["result"]["bytes"] > 0


def test_a_preset_without_its_hardware_says_what_it_runs_instead(forebay: Run, tmp_path: Path) -> None:
    done = forebay("sweep", "solidigm-gds", "nil:", "--scale", "0.005", "-o", "o", cwd=tmp_path)
    if "path gds can't run here" not in done.stderr:
        pytest.skip("gds runs here")
    assert done.returncode == 0 and "10 of 10 runs" in done.stdout, done.stderr


@pytest.mark.long
def test_two_engines_are_compared_on_one_file(forebay: Run, data: Path) -> None:
    flags = ["--io-size", "64k", "--cache", "allow", "--duration", "0.5", "--pairs-min", "6"]
    flags += ["--pairs-max", "6", "--json"]
    done = forebay("compare", "--a", "engine=inline", "--b", "engine=pread", data, *flags)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert len(found["pairs"]) == 6 and found["ratios"]["throughput"]["ci95"]
    assert "inline" in found["a"]["ran"][0] and "pread" in found["b"]["ran"][0]


@pytest.mark.long
def test_another_interpreter_is_compared_with_this_one(forebay: Run, tmp_path: Path) -> None:
    """A script stands for the other interpreter, so that it finds this build however the tests are run."""
    import forebay as package

    python = tmp_path / "python"
    folder = Path(package.__file__).parent.parent
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    flags = ["--duration", "0.5", "--pairs-min", "3", "--pairs-max", "3", "--json"]
    done = forebay("compare", "--a", "", "--b", "", "--b-python", python, "nil:", *flags)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert len(found["pairs"]) == 3 and found["b"]["python"] == str(python) and found["runs"]["b"][0]["id"]


@pytest.mark.promise("FLT-2")
def test_a_missing_file_is_named_before_any_pair(forebay: Run, tmp_path: Path) -> None:
    done = forebay("compare", "--a", "depth=1", "--b", "depth=2", tmp_path / "no" / "such")
    assert done.returncode in (2, 3) and "A (depth=1)" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
def test_a_file_is_tuned_and_the_printed_command_runs(forebay: Run, data: Path) -> None:
    import shlex

    done = forebay("tune", data, "--cache", "allow", "--fix", "workers=1", "--max-time", "4s", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["pick"]["throughput_gib_s"] > 0 and found["probes"]
    again = forebay(*shlex.split(found["bench"])[1:], "--duration", "0.1", "--json")
    assert again.returncode == 0, again.stderr
    job = json.loads(again.stdout)["job"]
    assert {k: job[k] for k in ("io_bytes", "workers", "depth")} == {
        k: found["pick"][k] for k in ("io_bytes", "workers", "depth")
    }
