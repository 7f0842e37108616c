"""Processes that a test starts: each leads a group of its own, is waited for with patience, and is gone afterwards.

Every process of a test carries MARK in its environment, and hands it on to whatever it starts. By that mark a test's
processes are found again even where they have left its group and have been orphaned.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import preloaded
import pytest

FOREBAY = [sys.executable, "-m", "forebay.cli"]
MARK = "FOREBAY_TEST_ID"
# The mark of what outlives the test that is the first to want it, as a guest does: `make test` over, it must be gone.
SESSION = "FOREBAY_TEST_SESSION"
# A busy machine is slow, not wrong: only what hangs takes this long.
PATIENCE_S = 120.0
# How long what a test started may take to end by itself once the test is over.
GRACE_S = 20.0


def start(command: list[Any], **options: Any) -> subprocess.Popen[str]:
    """The command under way, its output as text in pipes unless `options` say otherwise.

    Give it to `finish`, or use `running`: they end its whole group, whatever happens.
    """
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen(list(map(os.fspath, map(_word, command))), **{**piped, **options})


def _word(value: Any) -> str | os.PathLike[str]:
    return value if isinstance(value, (str, bytes, os.PathLike)) else str(value)


def finish(
    process: subprocess.Popen[str], within_s: float = PATIENCE_S, said: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Waits for its end; `said` goes to its standard input. One that hangs is killed with its group, and fails the test."""
    try:
        out, err = process.communicate(said, timeout=within_s)
    except subprocess.TimeoutExpired:
        kill(process)
        out, err = process.communicate()
        pytest.fail(f"hangs: {process.args}\n{out or ''}\n{err or ''}")
    except BaseException:
        kill(process)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(
    command: list[Any], within_s: float = PATIENCE_S, said: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with output captured as text, which ends the whole group of what hangs.

    `forebay` is run by a process that has loaded it before, where `options` name nothing that this can't give.
    """
    words = list(map(os.fspath, map(_word, command)))
    if words[:3] == FOREBAY and said is None and options.keys() <= {"cwd", "env"}:
        try:
            done = preloaded.run([os.fsdecode(word) for word in words[3:]], within_s, **options)
        except TimeoutError as hangs:
            pytest.fail(f"hangs: {words}\n{hangs}")
        if done is not None:
            return done
    piped = {"stdin": subprocess.PIPE} if said is not None else {}
    return finish(start(command, **{**piped, **options}), within_s, said)


@contextlib.contextmanager
def running(command: list[Any], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The command under way, which a failure within the block ends."""
    process = start(command, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill(process)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def kill(process: subprocess.Popen[Any]) -> None:
    """The process, and all of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def wait_until(
    met: Callable[[], Any],
    what: str,
    process: subprocess.Popen[Any] | None = None,
    within_s: float = PATIENCE_S,
) -> Any:
    """What `met` returns, once that is true; fails the test when `process` ends before, or after a long time."""
    end = time.monotonic() + within_s
    while True:
        ended = process is not None and process.poll() is not None
        if found := met():
            return found
        if ended:
            assert process is not None
            said = process.stderr.read() if process.stderr is not None else ""
            pytest.fail(f"ended with {process.returncode} before {what}\n{said}")
        if time.monotonic() > end:
            if process is not None:
                kill(process)
            pytest.fail(f"not seen within {within_s:.0f} s: {what}")
        time.sleep(0.01)


def catches(process: subprocess.Popen[Any], number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


def has_workers(process: subprocess.Popen[Any]) -> bool:
    """Whether the engine under it has started its threads: a run is under way."""
    names = set()
    for task in Path(f"/proc/{process.pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            names.add(task.read_text())
    return any(name.startswith("worker-") for name in names)


# What a test leaves behind ---------------------------------------------------------------------------------


def newest() -> int:
    """The last number that was given to a process or thread; they are given in turn."""
    return int(Path("/proc/loadavg").read_text().split()[-1])


def marked(mark: str, after: int = 0) -> list[int]:
    """Processes that carry the mark, but for this one; `after`: only those that have been started since `newest` said so."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    began_anew = after and newest() < after
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid() or (int(entry.name) <= after and not began_anew):
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry.name))
    return found


def leftovers(mark: str, folder: Path | None, after: int = 0) -> list[str]:
    """What the marked test left: processes (ended here, after a grace), and mounts or loop devices in its folder."""
    end = time.monotonic() + GRACE_S
    while (alive := marked(mark, after)) and time.monotonic() < end:
        time.sleep(0.02)
    found = [f"process {_process_line(pid)}" for pid in alive]
    for pid in alive:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if folder is not None:
        found += [f"mount {line.split()[4]}" for line in _lines("/proc/self/mountinfo") if f"{folder}/" in line.split()[4]]
        found += [f"loop device over {p}" for p in _backing_files() if p.startswith(f"{folder}/")]
    found += [f"network namespace {name}" for name in _namespaces() if name.startswith(f"fb{os.getpid()}-")]
    return found


def rescued() -> set[str]:
    """Records that runs which failed saved where these tests were started; a test gives such a run a folder of its own."""
    return {f"record {path.resolve()}" for path in Path().glob("forebay-" + "?" * 16 + ".json")}


def _process_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid}: " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return str(pid)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _backing_files() -> list[str]:
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.append(file.read_text().strip())
    return found


def _namespaces() -> list[str]:
    return os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
