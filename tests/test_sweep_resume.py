"""`forebay sweep`: what survives a crash, how the same command goes on, and what points that fail leave."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
from fake_machine import FakeMachine, typed
from forebay.errors import MachineError, RunError
from forebay.sweep import results as results_file
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from properties import examples, parametrized
from sweep_support import SWEEP, machine, points_of, ran, sweep  # noqa: F401 - fixtures


def test_a_foreign_file_is_moved_by_no_restart_and_an_empty_one_survives_a_sweep_that_cannot_be_planned(
    machine: FakeMachine, capsys: Any, tmp_path: Path
) -> None:
    thesis, empty = tmp_path / "thesis.txt", tmp_path / "empty.jsonl"
    thesis.write_text("years of work")
    empty.touch()
    code, _, err = typed(capsys, "sweep", "micron-4k", tmp_path, "--restart", "-o", thesis)
    assert code == 2 and "is not a file of sweep results" in err
    assert thesis.read_text() == "years of work" and not list(tmp_path.glob("thesis.txt.*"))
    for path, stays in ((empty, True), (tmp_path / "new.jsonl", False)):
        with pytest.raises(MachineError), results_file.Results(path):
            raise MachineError("/nowhere", "there is no such file", "another")
        assert path.exists() == stays


@pytest.mark.promise("SWP-1")
def test_after_ctrl_c_the_same_command_goes_on(machine: FakeMachine, sweep: Path, capsys: Any) -> None:
    machine.interrupt_at = 2
    code, out, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 130 and "-o o" in err and "4 are left" in out
    kept = Path("o").read_bytes()
    assert [line.get("partial", False) for line in points_of(Path("o"))] == [False, False, True]
    machine.interrupt_at, machine.jobs = None, []
    code, out, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 0 and ran(machine) == [("host", 64), ("bounce", 1), ("bounce", 8), ("bounce", 64)]
    assert Path("o").read_bytes().startswith(kept), "what was there stays as it was"
    assert "2 of them finished before" in err
    machine.jobs = []
    code, out, _ = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 0 and not machine.jobs and "6 of 6" in out


@pytest.mark.promise("FLT-8")
@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines[:3], lines[3][: len(lines[3]) // 2], *lines[4:]],
        lambda lines: [*lines[:3], b"\x00" * 40, *lines[4:]],
        lambda lines: [*lines[:3], b"\xff\xfe{", *lines[4:]],
        lambda lines: [*lines[:3], b'{"schema":"forebay.point/1"}', *lines[4:]],
        lambda lines: [
            *lines[:3],
            b'{"schema":"forebay.point/1","key":"k","round":0,"point":{},"record":3}',
            *lines[4:],
        ],
        lambda lines: [*lines[:3], b"[" * 3000, *lines[4:]],
    ],
    ids=["torn", "zeros", "no text", "no key", "no record", "deep"],
)
def test_a_damaged_line_is_named_kept_aside_and_run_again(
    machine: FakeMachine, sweep: Path, capsys: Any, damage: Any
) -> None:
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    lines = Path("o").read_bytes().splitlines()
    damaged = damage(lines)
    Path("o").write_bytes(b"\n".join(damaged) + b"\n")
    machine.jobs = []
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 0 and ran(machine) == [("host", 64)] and "o:4 is" in err
    assert Path("o.damaged").read_bytes() == damaged[3] + b"\n"
    after = Path("o").read_bytes().splitlines()
    assert after[:-1] == [*lines[:3], *lines[4:]], "the good lines are as they were"
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 0 and "damaged" not in err


@pytest.mark.promise("FLT-8")
@pytest.mark.parametrize(
    "line", [{}, [1, 2], {"schema": "forebay.run/99"}, {"schema": "forebay.point/1", "key": "k", "point": {}}], ids=str
)
def test_a_line_that_is_no_point_is_put_aside_whatever_spaces_the_other_lines_have(
    machine: FakeMachine, sweep: Path, capsys: Any, line: Any
) -> None:
    """As after `jq -c` or a script of the user's: JSON, in another form."""
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    lines = [json.loads(each) for each in Path("o").read_bytes().splitlines()]
    machine.jobs = []
    Path("o").write_text("".join(json.dumps(each) + "\n" for each in [*lines[:3], line, *lines[4:]]))
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 0 and ran(machine) == [("host", 64)] and "o:4 is" in err and "kept in o.damaged" in err
    assert json.loads(Path("o.damaged").read_text()) == line


@pytest.mark.promise("SWP-1")
def test_a_write_torn_at_any_byte_loses_at_most_its_own_point(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    sweep.write_text(SWEEP.replace("[1, 8, 64]", "[1]"))
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    whole = Path("o").read_bytes()
    begin = whole[:-1].rindex(b"\n") + 1
    for cut in range(begin, len(whole), 97):
        Path("o").write_bytes(whole[:cut])
        machine.jobs = []
        code, _, _ = typed(capsys, "sweep", sweep, "/x", "-o", "o")
        assert code == 0 and ran(machine) == [("bounce", 1)] and len(points_of(Path("o"))) == 2
    Path("o").write_bytes(whole[:-1])
    machine.jobs = []
    assert typed(capsys, "sweep", sweep, "/x", "-o", "o")[0] == 0
    assert not machine.jobs, "a line that only lacks its newline is whole"


def test_a_changed_sweep_is_refused_and_the_change_is_said(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    before = Path("o").read_bytes()
    machine.jobs = []
    sweep.write_text(SWEEP.replace("64]", "128]").replace("duration = 1", "duration = 2"))
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 2 and "duration_s of all points: 1.0 → 2.0" in err
    assert "2 points added, as path=bounce depth=128" in err and "2 points removed" in err
    code, _, err = typed(capsys, "sweep", sweep, "/y", "-o", "o")
    assert code == 2 and "sources of all points" in err
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o", "--rounds", 2)
    assert code == 2 and "rounds: 1 → 2" in err
    assert Path("o").read_bytes() == before and not machine.jobs


def test_extend_keeps_the_points_that_match(machine: FakeMachine, sweep: Path, capsys: Any) -> None:
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    machine.jobs = []
    sweep.write_text(SWEEP.replace("64]", "64, 128]"))
    code, out, _ = typed(capsys, "sweep", sweep, "/x", "-o", "o", "--extend")
    assert code == 0 and ran(machine) == [("host", 128), ("bounce", 128)] and "8 of 8" in out
    machine.jobs = []
    assert typed(capsys, "sweep", sweep, "/x", "-o", "o")[0] == 0 and not machine.jobs


def test_restart_moves_the_old_results_aside(machine: FakeMachine, sweep: Path, capsys: Any) -> None:
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    before = Path("o").read_bytes()
    typed(capsys, "sweep", sweep, "/x", "-o", "o", "--restart")
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o", "--restart")
    assert code == 0 and len(machine.jobs) == 18
    assert Path("o.1").read_bytes() == before and Path("o.2").exists() and "o.2" in err


def test_results_of_other_sources_do_not_count(machine: FakeMachine, sweep: Path, capsys: Any) -> None:
    """The key leaves sources out, so that machines can be compared; going on does not."""
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    machine.jobs = []
    code, _, _ = typed(capsys, "sweep", sweep, "/y", "-o", "o", "--extend")
    assert code == 0 and len(machine.jobs) == 6


@pytest.mark.parametrize("content", [b"my thesis\n", b'{"schema": "forebay.run/1"}\n', b"\x00" * 100, b"{}\n[1, 2]\n"])
def test_a_file_that_is_not_ours_is_left_alone(
    machine: FakeMachine, sweep: Path, capsys: Any, content: bytes
) -> None:
    Path("o").write_bytes(content)
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 2 and "is not a file of sweep results" in err
    assert Path("o").read_bytes() == content and not machine.jobs and not Path("o.damaged").exists()


@pytest.mark.promise("FLT-10")
def test_two_sweeps_into_one_file_are_refused(machine: FakeMachine, sweep: Path, capsys: Any) -> None:
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    machine.jobs = []
    with open("o", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 2 and "another sweep is writing it" in err and not machine.jobs


def test_a_header_that_was_lost_does_not_cost_the_points(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    typed(capsys, "sweep", sweep, "/x", "-o", "o")
    lines = Path("o").read_bytes().splitlines(keepends=True)
    Path("o").write_bytes(b'{"schema":"forebay.sweep/1","torn\n' + b"".join(lines[1:]))
    machine.jobs = []
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 0 and not machine.jobs and "o:1 is not JSON" in err


# Run number HELD lasts until a signal ends it.
DRIVER = """
import sys, time
sys.path.insert(0, {tests!r})
from fake_machine import FakeMachine
from forebay import run as engine
machine, held = FakeMachine(), int(sys.argv[1])
def run(job, *, observer=None, **kept):
    if len(machine.jobs) == held:
        open("begun", "w").close()
        while True:
            observer({{"phase": "measure", "t_s": 1.0, "duration_s": 3600.0, "gib_s": 1.0, "iops": 1.0}})
            time.sleep(0.01)
    return machine.run(job, observer=observer, **kept)
engine.run, engine.plan, engine.check = run, machine.plan, machine.check
from forebay.cli import main
main(["sweep", "mine.toml", "/x", "-o", "o"])
"""


def driver(folder: Path, kill: signal.Signals | None, held: int) -> int:
    """A sweep in a process of its own, which gets a signal once run number `held` has begun."""
    code = DRIVER.format(tests=str(Path(__file__).parent))
    with processes.running([sys.executable, "-c", code, held], cwd=folder) as child:
        if kill is not None:
            processes.wait_until((folder / "begun").exists, f"run {held} began", child)
            child.send_signal(kill)
        return processes.finish(child).returncode


@pytest.mark.promise("SWP-1")
@parametrized("kill", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], kept=(0,))
def test_whatever_ends_the_process_finished_points_are_kept(sweep: Path, kill: signal.Signals) -> None:
    code = driver(sweep.parent, kill, 3)
    assert code == (-9 if kill == signal.SIGKILL else 130)
    kept = points_of(Path("o"))
    assert [line["name"] for line in kept] == [f"path=host depth={d}" for d in (1, 8, 64)]
    assert driver(sweep.parent, None, -1) == 0
    assert points_of(Path("o"))[:3] == kept and len(points_of(Path("o"))) == 6


def test_a_full_disk_keeps_every_whole_line(
    machine: FakeMachine, sweep: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, calls = os.fsync, [0]

    def full(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(results_file.os, "fsync", full)
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 4 and "No space left on device" in err
    assert len(points_of(Path("o"))) == 2, "the header and two points; the third line left nothing behind"
    monkeypatch.undo()
    machine.install(monkeypatch)
    monkeypatch.chdir(sweep.parent)
    assert typed(capsys, "sweep", sweep, "/x", "-o", "o")[0] == 0 and len(points_of(Path("o"))) == 6


# Failing points ----------------------------------------------------------------------------------------


def failing(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, errors: dict[int, Exception]) -> None:
    from forebay import run as engine

    def run(job: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if job["depth"] in errors:
            raise errors[job["depth"]]
        return machine.run(job, **kwargs)

    monkeypatch.setattr(engine, "run", run)


def test_a_failing_point_is_recorded_and_the_sweep_goes_on(
    machine: FakeMachine, sweep: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(machine, monkeypatch, {8: RunError("/x", "input/output error", "smartctl")})
    code, out, _ = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 4 and "failed: /x: input/output error" in out
    lines = points_of(Path("o"))
    assert [("error" in line, "record" in line) for line in lines].count((True, False)) == 2 and len(
        lines
    ) == 6
    machine.install(monkeypatch)
    machine.jobs = []
    assert typed(capsys, "sweep", sweep, "/x", "-o", "o")[0] == 0
    assert ran(machine) == [("host", 8), ("bounce", 8)], "failed points are tried again"


def test_an_error_of_a_run_names_the_keys_of_the_file(sweep: Path, capsys: Any) -> None:
    """By the engine itself, which counts the files of directories alone."""
    Path("data").write_bytes(bytes(1 << 20))
    sweep.write_text("[job]\nfiles = 3\n[matrix]\ndepth = [1]")
    Path("o").touch()  # which keeps it: a new file in which every point was refused goes
    code, out, err = typed(capsys, "sweep", sweep, "data", "-o", "o")
    (line,) = points_of(Path("o"))
    found = "it is one file, and files counts those of a directory"
    assert line["error"] == {"exit_code": 2, "asked": "files 3 of data", "found": found, "next": "no files"}
    assert code == 2 and f"failed: files 3 of data: {found}" in out and "--files" not in out + err


@pytest.mark.promise("SWP-32")
def test_a_refused_sweep_is_in_the_way_of_no_other(sweep: Path, capsys: Any) -> None:
    """By the engine itself: what every point was refused for leaves no file, and a file without a result takes any sweep."""
    Path("data").write_bytes(bytes(1 << 20))
    sweep.write_text("[job]\nfiles = 3\n[matrix]\ndepth = [1, 2]")
    code, out, _ = typed(capsys, "sweep", sweep, "data", "-o", "o")
    assert code == 2 and not Path("o").exists() and "no file is kept" in out and "(2 runs)" in out
    Path("o").touch()
    assert typed(capsys, "sweep", sweep, "data", "-o", "o")[0] == 2
    sweep.write_text('[job]\nduration = 0.01\ncache = "allow"\n[matrix]\ndepth = [1, 2]')
    code, out, err = typed(capsys, "sweep", sweep, "data", "-o", "o")
    assert code == 0, err
    assert "2 of 2 runs" in out
    sweep.write_text("[job]\nduration = 0.02\n[matrix]\ndepth = [1, 2]")
    assert typed(capsys, "sweep", sweep, "data", "-o", "o")[0] == 2, "what was measured isn't mixed with another sweep"


def test_a_machine_that_can_do_none_of_it_ends_with_3(
    machine: FakeMachine, sweep: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(machine, monkeypatch, {d: MachineError("/x", "no such thing", "doctor") for d in (1, 8, 64)})
    assert typed(capsys, "sweep", sweep, "/x", "-o", "o")[0] == 3


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_no_bytes_in_a_results_file_are_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(content)
    found = results_file.read(path)
    assert len(found.damaged) + len(found.lines) + len(found.headers) <= content.count(b"\n") + 1
