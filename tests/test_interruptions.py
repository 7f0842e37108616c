"""SIGINT and SIGTERM at random moments: the command ends soon with 130, says what it kept, and leaves nothing half made.

FOREBAY_TEST_SEED=N brings the same moments again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from faults_support import MIB, check_manners

SEED = int(os.environ.get("FOREBAY_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
MOMENTS = 2
MADE = 96 * MIB

# what happens → (flags, seconds in which the signal comes)
PHASES: dict[str, tuple[tuple[str, ...], float]] = {
    "files are made": ((".", "--file-size", str(MADE), "--files", "3", "--passes", "1"), 1.5),
    "a stripe is made": (
        ("stripe:?chunk=64k&m=a&m=b", "--file-size", str(2 * MADE), "--passes", "1"),
        1.5,
    ),
    "warm-up": (("f", "--warmup", "5", "--duration", "5"), 2.0),
    "measure": (("f", "--duration", "6"), 2.0),
    "drain": (("f", "--duration", "0.3", "--faults", "delay_us=900000"), 1.2),
    "repeats": (("f", "--duration", "0.05", "--repeat", "200"), 2.0),
    "write": (("w", "--op", "write", "--file-size", "32m", "--sync", "end", "--duration", "5"), 2.0),
    "verified write": (("w", "--op", "randwrite", "--file-size", "8m", "--verify"), 2.0),
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_at_any_moment_keeps_what_was_measured_and_leaves_nothing_half_made(
    tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    flags, seconds = PHASES[phase]
    source = random.Random(f"{SEED} {phase} {number}")
    for moment in range(MOMENTS):
        home = tmp_path / str(moment)
        home.mkdir()
        (home / "f").write_bytes(os.urandom(2 * MIB))
        before = (home / "f").read_bytes()
        delay = source.uniform(0, seconds)
        where = f"seed {SEED}, {phase}, {number.name} after {delay:.3f} s"
        done = interrupted(home, flags, number, delay, where)
        check_kept(done, home, where)
        assert (home / "f").read_bytes() == before, where
        check_whole(home, flags, where)


def interrupted(
    home: Path, flags: tuple[str, ...], number: signal.Signals, delay: float, where: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forebay.cli", "bench", "--json", "--io-size", "64k", *flags]
    process = subprocess.Popen(
        command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for_handlers(process)
    time.sleep(delay)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"{where}: hangs\n{err}")
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    check_manners(done)
    return done


def wait_for_handlers(process: subprocess.Popen[str]) -> None:
    """Until the command has taken over SIGTERM; before that it has done nothing, and the default is right."""
    status = Path(f"/proc/{process.pid}/status")
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.005)


def check_kept(done: subprocess.CompletedProcess[str], home: Path, where: str) -> None:
    """130 with the record or the word that there is none; 0 only for a run that was over already."""
    said = f"{where}\n{done.stderr}"
    if done.returncode == 0:
        assert not json.loads(done.stdout)["result"]["interrupted"], said
        return
    assert done.returncode == 130, f"{done.returncode}, {said}"
    if not done.stdout:
        assert "interrupted" in done.stderr, said
        return
    record: dict[str, Any] = json.loads(done.stdout)
    result = record["result"]
    assert result["errors"]["failed"] == result["errors"]["timed_out"] == 0, said
    named = done.stderr.split("what was measured is in ")[1].splitlines()[0]
    assert json.loads((home / named).read_text())["id"] == record["id"], said


def check_whole(home: Path, flags: tuple[str, ...], where: str) -> None:
    """What the manifest lists is there as it says; what it doesn't list isn't there."""
    manifest = home / ".forebay.json"
    listed = json.loads(manifest.read_text())["files"] if manifest.exists() else {}
    there = {p.name for p in home.iterdir() if p.name not in (".forebay.json", "f")}
    there = {name for name in there if not name.endswith(".json")}
    assert there == set(listed), f"{where}: files {there}, manifest {set(listed)}"
    for name, entry in listed.items():
        stat = (home / name).stat()
        assert (stat.st_size, stat.st_ino) == (entry["bytes"], entry["inode"]), f"{where}: {name}"
        # A file with a seed holds seeded content in each block: the next --verify would find out.
        if entry["seed"] is not None:
            assert stat.st_blocks * 512 >= stat.st_size, f"{where}: {name} has holes"
    if listed and "--file-size" in flags:
        check_usable(home, flags, where)


def check_usable(home: Path, flags: tuple[str, ...], where: str) -> None:
    """The same files serve the next run, and verify where the manifest says what they hold."""
    known = all(e["seed"] is not None for e in json.loads((home / ".forebay.json").read_text())["files"].values())
    command = [sys.executable, "-m", "forebay.cli", "bench", "-q", flags[0], "--passes", "1", "--io-size", "1m"]
    done = subprocess.run(
        [*command, *(["--verify"] if known else [])], cwd=home, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{where}: the next run says\n{done.stderr}"


def test_a_sweep_that_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        '[job]\nsource = "nil:"\nduration = 0.4\n[matrix]\ndepth = [1, 2, 4, 8]\n'
    )
    command = [sys.executable, "-m", "forebay.cli", "sweep", "s.toml", "-o", "runs.jsonl"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    out = tmp_path / "runs.jsonl"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (out.exists() and out.read_text().count("\n") >= 1):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=20)
    check_manners(subprocess.CompletedProcess(command, process.returncode, said, err))
    assert process.returncode == 130, err
    finished = out.read_text().splitlines()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    assert set(finished) <= set(lines) and len(lines) >= 4
