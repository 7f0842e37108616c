"""`forebay emulate` as a user runs it: the installed command, real files, the real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
FILES, SIDE = 60, 256
COMPUTE_S = 0.005
# One sample a file, two a batch: what an accelerator takes at full utilisation, in GiB/s of nominal records.
DEMAND = 2 * SIDE * SIDE / COMPUTE_S / 2**30
# A busy machine is slow: what passes here passes at 1 %, what fails is held back far below the 90 %.
WORKLOAD = f"""
title = "small npz files"
format = "npz"
loader = "pytorch"
record_bytes = {SIDE * SIDE}
samples_per_file = 1
files = {FILES}
batch = 2
compute_s = {COMPUTE_S}
read_threads = 2
prefetch = 2
file_shuffle = true
sample_shuffle = true
epochs = 2
au_pct_min = MIN
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as numpy writes it, and two workloads that read it, in the working directory: small.toml and hard.toml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(WORKLOAD.replace("MIN", "1"))
    (tmp_path / "hard.toml").write_text(WORKLOAD.replace("MIN", "90"))
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    for n in range(FILES):
        x = random.integers(0, 255, (SIDE, SIDE, 1), dtype=np.uint8)
        np.savez(folder / f"img_{n:02d}_of_{FILES}.npz", x=x, y=np.zeros(1, np.int64))
    return tmp_path / "data"


def record(done: subprocess.CompletedProcess[str], code: int) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


@pytest.mark.promise("EMU-30")
def test_a_run_reads_every_sample_and_says_how_busy_the_accelerators_were(forebay: Run, data: Path) -> None:
    done = forebay("emulate", "run", "--workload", "small.toml", "--accelerators", "3", "--data", data, "--json")
    found = record(done, 0)
    training = found["training"]
    assert training["label"] == "MLPerf-style, unverified" and training["passes"]
    assert (training["accelerators"], training["files"], training["steps"], len(training["epochs"])) == (3, FILES, 10, 2)
    assert training["samples"] == 2 * 10 * 2 * 3 and training["payload_bytes"] >= 120 * SIDE * SIDE
    assert {f["rule_set"] for f in training["by_rules"]} == {"v1.0", "v2.0", "v3.0", "text"}
    assert "passes, 1 % is needed" in done.stderr and found["result"]["seconds"] >= 2 * 10 * COMPUTE_S * 0.95


@pytest.mark.promise("EMU-30")
def test_the_rule_set_and_the_level_that_were_asked_for_are_in_the_record(forebay: Run, data: Path) -> None:
    flags = ("--workload", "small.toml", "--data", data, "--rules", "v2.0", "--level", "bytes", "--epochs", "1", "--steps", "8")
    training = record(forebay("emulate", "run", *flags, "--json"), 0)["training"]
    assert (training["rule_set"], training["level"], training["steps"]) == ("v2.0", "bytes", 8)
    chosen = next(f for f in training["by_rules"] if f["rule_set"] == "v2.0")
    assert training["au_pct"] == chosen["au_pct"] and training["samples_per_s"] == chosen["samples_per_s"]


@pytest.mark.promise("EMU-30")
def test_accelerators_that_a_known_supply_cannot_feed_fail(forebay: Run, data: Path) -> None:
    """Two accelerators on what feeds one: half of the time each waits."""
    flags = ("--workload", "hard.toml", "--accelerators", "2", "--data", data, "--supply", f"{DEMAND:.9f}", "--epochs", "4")
    done = forebay("emulate", "run", *flags, "--json")
    training = record(done, 1)["training"]
    assert training["au_pct"] < 80 and not training["passes"]
    assert "fails, 90 % is needed" in done.stderr


@pytest.mark.long
@pytest.mark.promise("EMU-30", "TRA-42")
def test_a_damaged_record_is_named_or_passed_over(forebay: Run, data: Path) -> None:
    victim = data / "train" / f"img_33_of_{FILES}.npz"
    raw = bytearray(victim.read_bytes())
    raw[20_000] ^= 0xFF
    victim.write_bytes(raw)
    flags = ("--workload", "small.toml", "--data", data, "--json")
    done = forebay("emulate", "run", *flags)
    assert done.returncode == 4 and victim.name in done.stderr and "try:" in done.stderr and "Traceback" not in done.stderr
    assert "passes" not in done.stderr, "it broke off"
    skipping = record(forebay("emulate", "run", *flags, "--on-error", "skip"), 1)["training"]
    assert skipping["skipped"]["count"] >= 1 and victim.name in skipping["skipped"]["examples"][0]
    assert not skipping["passes"] and "delivered" in {rule["id"] for rule in skipping["rules"] if not rule["ok"]}
    assert record(forebay("emulate", "run", *flags, "--level", "bytes"), 0)["training"]["skipped"]["count"] == 0
    for n in range(FILES):
        (data / "train" / f"img_{n:02}_of_{FILES}.npz").write_bytes(b"")
    nothing = record(forebay("emulate", "run", *flags, "--on-error", "skip"), 1)["training"]
    assert (nothing["au_pct"], nothing["samples_per_s"], nothing["samples"], nothing["passes"]) == (None, 0.0, 0, False)


@pytest.mark.promise("EMU-30")
@pytest.mark.parametrize(
    ("flags", "code", "reported"),
    [
        (("--data", "nowhere"), 2, "nowhere"),
        (("--data", "DATA", "--files", "61"), 2, "too few files"),
        (("--data", "DATA", "--engine", "map"), 2, "--engine uring, inline or auto"),
        (("--data", "DATA", "--accelerators", "100"), 2, "--accelerators"),
    ],
)
def test_a_data_set_that_cannot_serve_is_refused(
    forebay: Run, data: Path, flags: tuple[str, ...], code: int, reported: str
) -> None:
    asked = [f.replace("DATA", str(data)) for f in flags]
    done = forebay("emulate", "run", "--workload", "small.toml", *asked)
    assert done.returncode == code and reported in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.promise("EMU-30")
def test_files_of_another_format_are_refused(forebay: Run, data: Path) -> None:
    done = forebay("emulate", "run", "--workload", "cosmoflow", "--accelerator", "h100", "--data", data)
    assert done.returncode == 2 and "tfrecord" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("EMU-30")
def test_ctrl_c_ends_a_run_and_keeps_its_part(data: Path) -> None:
    words = ("emulate", "run", "--workload", "small.toml", "--data", data, "--epochs", "5000", "--results", "kept", "--json")
    with processes.running([*processes.FOREBAY, *words]) as child:
        processes.wait_until(lambda: processes.has_workers(child), "its workers", child)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=processes.PATIENCE_S)
    assert child.returncode == 130 and "Traceback" not in err, err
    found = json.loads(out)
    assert found["result"]["interrupted"] and found["training"]["steps"] == 30
    assert len(found["training"]["epochs"]) < 5000
    assert len(os.listdir("kept")) == 1


@pytest.mark.promise("EMU-30")
def test_a_search_finds_no_more_than_a_known_supply_feeds_and_goes_on(forebay: Run, data: Path) -> None:
    """Supply for 3.5 accelerators at the 90 % that they need: a busy machine feeds fewer, none feeds four."""
    supply = 3.5 * 0.9 * DEMAND
    flags = ("--workload", "hard.toml", "--data", data, "--supply", f"{supply:.9f}", "--epochs", "2", "--probe", "0.1")
    asked = ("emulate", "search", *flags, "--confirm", "1", "--results", "found", "--json")
    done = forebay(*asked)
    number = json.loads(done.stdout)["search"]["accelerators"]
    found = record(done, 0 if number else 1)
    assert number <= 4 and found["search"]["finished"], done.stderr
    assert found["training"]["accelerators"] == max(number, 1)
    curve = [p["accelerators"] for p in found["training"]["curve"]]
    assert curve == sorted(curve)
    again = record(forebay(*asked), 0 if number else 1)
    assert again["search"]["accelerators"] == number
    assert again["search"]["found_before"] == len(again["search"]["runs"])


@pytest.mark.long
@pytest.mark.promise("EMU-30")
def test_the_calls_that_scripts_make_for_resnet50(forebay: Run, tmp_path: Path) -> None:
    workload = ("--workload", "resnet50", "--data", tmp_path)
    made = forebay("emulate", "datagen", *workload, "--files", "1")
    assert made.returncode == 0 and "1 tfrecord files, 1,251 samples" in made.stdout, made.stderr
    flags = ("--accelerator", "h100", "--accelerators", "1", "--epochs", "1", "--rules", "v1.0")
    done = forebay("emulate", "run", *workload, *flags, "--json")
    training = json.loads(done.stdout)["training"]
    # 1,251 samples are three batches of 400, whatever the machine.
    assert (training["steps"], training["samples"], training["files"]) == (3, 1200, 1)
    assert (training["workload"], training["accelerator"], training["rule_set"]) == ("resnet50", "h100", "v1.0")
    assert done.returncode == (0 if training["passes"] else 1), done.stderr


def test_a_dry_run_reads_nothing_and_tells_the_demand(forebay: Run, tmp_path: Path) -> None:
    flags = ("--workload", "unet3d", "--accelerator", "h100", "--accelerators", "4", "--data", tmp_path)
    done = forebay("emulate", "run", *flags, "--dry-run")
    assert done.returncode == 0 and "11.8 GiB/s" in done.stdout, done.stderr
