"""What the tests of faults share: the command in a directory of its own, held to its manners."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
MIB = 1 << 20
BENCH = ("bench", "-q", "--workers", "1", "--io-size", "64k", "--warmup", "0", "--duration", "0.3")


@pytest.fixture
def run(forebay: Run, tmp_path: Path) -> Run:
    """Runs the command in a directory of its own; whatever it does, it ends in time and never with a traceback."""

    def go(*arguments: object, within: float = 30, cwd: Path = tmp_path, **more: Any) -> Done:
        began = time.monotonic()
        done = forebay(*map(str, arguments), timeout=within + 30, cwd=cwd, **more)
        took = time.monotonic() - began
        check_manners(done)
        assert took < within, f"took {took:.1f} s\n{done.stderr}"
        return done

    return go


def check_manners(done: Done) -> None:
    said = (done.stdout or "") + (done.stderr or "")
    assert "Traceback" not in said and "panicked" not in said, said
    assert done.returncode in (0, 1, 2, 3, 4, 130), f"{done.returncode}\n{said}"


def refused(done: Done, code: int, *words: str) -> None:
    """It ended with `code`, said all the `words`, and what to type next."""
    assert done.returncode == code, f"{done.returncode}\n{done.stderr}"
    for word in (*words, "\n  try: "):
        assert word in done.stderr, f"{word!r} isn't in\n{done.stderr}"


def made(path: Path, size: int = 4 * MIB) -> Path:
    path.write_bytes(os.urandom(size))
    return path


def content(path: Path) -> dict[str, bytes]:
    """Every file below `path` that isn't a record of a broken run."""
    return {
        p.name: p.read_bytes() for p in path.rglob("*") if p.is_file() and not p.name.startswith("forebay-")
    }


def rescued(path: Path) -> dict[str, Any]:
    """The one record that a broken run left in `path`."""
    (record,) = path.glob("forebay-*.json")
    return json.loads(record.read_text())


class started:
    """A command under way; at the end of the block it has ended, or is killed and the test fails."""

    def __init__(self, cwd: Path, *arguments: object) -> None:
        command = [sys.executable, "-m", "forebay.cli", *map(str, arguments)]
        self.process = subprocess.Popen(
            [c for c in command if c != "-q"],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> started:
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.stdout, self.stderr = self.process.communicate()
            pytest.fail(f"hangs\n{self.stderr}")
        self.returncode = self.process.returncode
        check_manners(subprocess.CompletedProcess([], self.returncode, self.stdout, self.stderr))


def wait_for_progress(run: started) -> None:
    """Until the engine has its threads: the run is under way."""
    tasks = Path(f"/proc/{run.process.pid}/task")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and run.process.poll() is None:
        names = {(t / "comm").read_text() for t in tasks.iterdir() if (t / "comm").exists()}
        if any(name.startswith("worker-") for name in names):
            time.sleep(0.2)
            return
        time.sleep(0.02)
    pytest.fail("the run never began")
