"""A terminal that takes nothing (Ctrl-S, a stuck ssh, tmux's copy mode) holds up no run and falsifies no figure."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
import watched
from processes import has_workers, wait_until
from properties import parametrized

pytest.importorskip("forebay._core")


class Terminal:
    """A pseudo-terminal that is full: who writes to it waits until `read_on`."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        # A description of its own, or the command's would not wait either.
        full = os.open(os.ttyname(self.slave), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        with contextlib.suppress(BlockingIOError):
            while os.write(full, b"." * 4096):
                pass
        os.close(full)
        # The kernel may still find room for a part of a line or of a frame, as it does before a stuck ssh.
        self._reader = threading.Thread(target=self._read)

    def read_on(self) -> None:
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._master, 65536):
                pass

    def close(self) -> None:
        os.close(self.slave)
        if self._reader.ident is not None:
            self._reader.join()
        os.close(self._master)


@pytest.fixture
def blocked() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def measured(blocked: Terminal, folder: Path, *arguments: Any, code: int, during: Callable[[Any], None]) -> Any:
    """The record of a run that is over, and saved, before anybody reads its terminal."""
    witness, job = folder / "witness", ["nil:", "--io-size", "4k", "--interval", "50", *arguments, "--json", "-o", "run.json"]
    env = {**os.environ, "TERM": "xterm"}
    with watched.running(witness, "bench", *job, stderr=blocked.slave, cwd=folder, env=env) as process:
        wait_until(witness.exists, "the run", process)
        during(process)
        wait_until(lambda: not has_workers(process), "the end of the run")
        wait_until((folder / "run.json").exists, "its record", process)
        blocked.read_on()
        done = processes.finish(process)
    assert done.returncode == code
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.promise("REC-8")
@parametrized("view", [[], ["--live"]], kept=(0,))
def test_cpu_is_of_the_run_whatever_becomes_of_its_terminal(blocked: Terminal, tmp_path: Path, view: list[str]) -> None:
    job = ("--warmup", 0.3, "--duration", 0.3, "--repeat", 2, *view)
    record = measured(blocked, tmp_path, *job, code=0, during=lambda _: None)
    for repeat in record["result"]["repeats"]:
        # Meters that began when all was over would find next to no time for millions of I/Os: less than a ns for each.
        reported = repeat["cpu"]["ns_per_io"]
        assert reported > 1 if reported is not None else "result.cpu" in record["missing"]
    assert len(record["result"]["repeats"]) == 2


@pytest.mark.promise("REC-8")
def test_a_signal_ends_a_run_whose_terminal_is_blocked(blocked: Terminal, tmp_path: Path) -> None:
    job = ("--duration", 3600, "--warmup", 0)
    record = measured(blocked, tmp_path, *job, code=130, during=lambda p: p.send_signal(signal.SIGTERM))
    assert record["result"]["interrupted"] and record["result"]["bytes"] > 0
