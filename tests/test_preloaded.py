"""`preloaded`, which runs `forebay` for the other tests: what its children are, how they end, and what it declines."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import preloaded
import processes
import pytest

# Runs for minutes, at almost no CPU time.
LONG = ["bench", "nil:", "--rate-iops", "10", "--duration", "600", "--json"]


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(preloaded.ANEW, raising=False)


def children() -> list[int]:
    """Commands under way, of this process's `preloaded`, zombies included."""
    assert preloaded._loaded is not None
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == preloaded._loaded.process.pid:
                found.append(int(entry.parent.name))
    return found


def test_a_command_is_a_process_of_its_own_and_a_signal_ends_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(preloaded.run, LONG, processes.PATIENCE_S, tmp_path, os.environ)
        try:
            # By the environment that /proc shows, as what a test leaves behind is found.
            [pid] = processes.wait_until(lambda: processes.marked(os.environ[processes.MARK]), "its mark")
            assert os.getpgid(pid) == os.getsid(pid) == pid
            assert Path(f"/proc/{pid}/cwd").samefile(tmp_path)
            assert not os.path.samefile(f"/proc/{pid}/fd/1", f"/proc/{pid}/fd/2")
            command: Any = SimpleNamespace(pid=pid)
            processes.wait_until(lambda: asked.done() or processes.has_workers(command), "a run under way")
            os.kill(pid, signal.SIGTERM)
            done = asked.result()
        finally:
            for left in children():
                preloaded._kill(left)
    assert done is not None and done.returncode == 130, done
    assert '"interrupted":true' in re.sub(r"\s", "", done.stdout)
    assert done.args == ["forebay", *LONG]


def test_it_says_what_a_command_started_anew_says(tmp_path: Path) -> None:
    for arguments in (["export", "missing.jsonl", "--csv"], ["--version"]):
        done = preloaded.run(arguments, processes.PATIENCE_S, tmp_path)
        anew = processes.finish(processes.start([*processes.FOREBAY, *arguments], cwd=tmp_path))
        assert done is not None
        assert (done.returncode, done.stdout, done.stderr) == (anew.returncode, anew.stdout, anew.stderr)
        assert (done.returncode, bool(done.stdout)) == ((0, True) if arguments == ["--version"] else (2, False))


def test_one_that_hangs_is_ended_however_soon(tmp_path: Path) -> None:
    for within_s in (0.0, 0.05):
        with pytest.raises(TimeoutError):
            preloaded.run(LONG, within_s, tmp_path)
        processes.wait_until(lambda: not children(), "its end")


@pytest.mark.parametrize("case", ["asked for", "read at start", "no mark", "no folder", "a NUL", "too long", "umask"])
def test_what_it_cannot_give_is_started_anew(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, folder, word = dict(os.environ), tmp_path, "--version"
    # What a command is compared with is the state in which the package was loaded.
    assert preloaded.run([word], processes.PATIENCE_S) is not None
    if case == "asked for":
        monkeypatch.setenv(preloaded.ANEW, "1")
    elif case == "read at start":
        environment["LC_ALL"] = "C.UTF-8" if environment.get("LC_ALL") == "C" else "C"
    elif case == "no mark":
        del environment[processes.MARK]
    elif case == "no folder":
        folder /= "missing"
    elif case == "a NUL":
        word = "\0"
    elif case == "too long":
        word = "x" * preloaded.MOST_BYTES
    before = os.umask(0o27)
    os.umask(0o26 if case == "umask" else before)
    try:
        assert preloaded.run([word], processes.PATIENCE_S, folder, environment) is None
    finally:
        os.umask(before)


@pytest.mark.long
def test_where_a_library_begins_threads_commands_are_started_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv(preloaded.ANEW, "")  # which is taken back then
    preloaded.end()
    assert preloaded.run(["--version"], 120) is None
    assert os.environ[preloaded.ANEW] == "1"
