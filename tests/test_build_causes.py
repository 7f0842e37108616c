"""What `.ci/cause` says of a step of a build that fails: no space, no network, or nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FREE = "echo Avail; echo 5000M"
UNRESOLVED = "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution"
# Cargo's own words for crates that aren't here, and for a lock file that isn't up to date.
ABSENT = "As a reminder, you're using offline mode (--offline) which can sometimes cause surprising resolution failures"
OUTDATED = "help: to generate the lock file without accessing the network, remove the --locked flag and use --offline instead."


@pytest.mark.parametrize(
    ("programs", "command", "last"),
    [
        ({"df": FREE, "python": f"echo '{UNRESOLVED}' >&2; exit 1"}, "python -m pip install x", "no network: pip"),
        ({"df": FREE, "python": "echo 'no such version' >&2; exit 1"}, "python -m pip install x", "no such version"),
        ({"df": "echo Avail; echo 12M", "maturin": "echo broke >&2; exit 1"}, "maturin build", "no space: 12 MB are free"),
        ({"df": FREE, "cargo": f'echo "{ABSENT}" >&2; exit 1'}, "cargo build", "no network: crates that Cargo.lock names"),
        ({"df": FREE, "cargo": f'echo "{OUTDATED}" >&2; exit 1'}, "cargo build", "help: to generate"),
        ({"df": FREE, "cargo": "exit 0", "maturin": "echo broke >&2; exit 1"}, "maturin build", "broke"),
    ],
)
def test_a_failed_step_says_in_its_last_line_what_it_lacked(
    programs: dict[str, str], command: str, last: str, tmp_path: Path
) -> None:
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci/cause", *command.split()], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(last)


def test_a_step_that_succeeds_is_left_alone() -> None:
    done = subprocess.run([ROOT / ".ci/cause", "echo", "pip"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "pip\n", "")


@pytest.mark.parametrize(
    ("without", "programs", "said"),
    [
        ("cargo", {}, "cargo: not found; a build needs Rust 1.85 or newer: https://rustup.rs"),
        ("cargo", {"cargo": "echo cargo 1.63.0"}, "is older than 1.85, which a build needs; try: rustup update stable"),
        ("gcc", {"cargo": "echo cargo 1.90.0"}, "gcc: not found; try: apt install gcc"),
        ("python3", {"cargo": "echo cargo 1.90.0", "python3": "exit 1"}, "try: apt install python3-venv"),
    ],
)
def test_what_a_build_lacks_is_named_before_it_begins(without: str, programs: dict[str, str], said: str, tmp_path: Path) -> None:
    """On a system that has nothing else, and no way to install it."""
    for name in {"bash", "cut", "sed", "sort", "gcc", "make", "python3"} - {without}:
        (tmp_path / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name}"))
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    command = [shutil.which("bash") or "bash", ROOT / ".ci/prepare", "build"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 3 and said in done.stderr.splitlines()[-1], done
