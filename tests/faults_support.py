"""What the tests of faults share: the command in a directory of its own, held to its manners."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
MIB = 1 << 20
LONG_S = 600.0
JOB = ("bench", "-q", "--workers", "1", "--io-size", "64k", "--warmup", "0")
# Ends when the data is covered, however fast that is.
BENCH = (*JOB, "--passes", "1")
# Ends by what the test does to it: of itself, long after a test has given up on it.
LONG = (*JOB, "--duration", str(LONG_S))


@pytest.fixture
def run(forebay: Run, tmp_path: Path) -> Run:
    """Runs the command in a directory of its own; whatever it does, it ends, and never with a traceback."""

    def go(*arguments: object, cwd: Path = tmp_path, **more: Any) -> Done:
        done = forebay(*map(str, arguments), cwd=cwd, **more)
        check_manners(done)
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
        self.process = processes.start([*processes.FOREBAY, *(a for a in arguments if a != "-q")], cwd=cwd)

    def __enter__(self) -> started:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        if kind is not None:
            processes.kill(self.process)
        done = processes.finish(self.process)
        self.returncode, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        if kind is None:
            check_manners(done)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)


def wait_for_progress(run: started) -> None:
    """Until I/Os have finished since now: its workers have burnt more CPU than anything but I/O takes them."""
    before = _busy_s(run.process)
    processes.wait_until(
        lambda: processes.has_workers(run.process) and _busy_s(run.process) > before + 0.03,
        "I/Os finish",
        run.process,
    )


def _busy_s(process: subprocess.Popen[Any]) -> float:
    """CPU time of its workers."""
    ticks = 0
    for task in Path(f"/proc/{process.pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().startswith("worker-"):
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
