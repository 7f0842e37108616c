"""`forebay sweep`: what runs, in which order, what survives a crash, and what is said about it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import processes
import pytest
from fake_machine import FakeMachine, typed
from forebay.errors import MachineError, RunError
from forebay.sweep import results as results_file
from forebay.sweep.file import line_of, parse, presets
from forebay.sweep.plan import Asks, differences, make
from forebay.sweep.points import point_key
from forebay.sweep.scale import folder_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SWEEP = """
title = "depth by path"
[job]
op = "read"
duration = 1
[matrix]
path = ["host", "bounce"]
depth = [1, 8, 64]
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(noise=0.01).install(monkeypatch)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(SWEEP)
    return path


def points_of(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["schema"] == "forebay.point/1"]


def ran(machine: FakeMachine) -> list[tuple[Any, ...]]:
    return [(job.get("path"), job.get("depth")) for job in machine.jobs]


# What runs ---------------------------------------------------------------------------------------------


def test_the_matrix_is_run_as_written_and_each_point_is_a_line(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    code, out, err = typed(capsys, "sweep", sweep, "/data/x", "-o", "out.jsonl")
    assert code == 0
    assert ran(machine) == [(p, d) for p in ("host", "bounce") for d in (1, 8, 64)]
    lines = points_of(Path("out.jsonl"))
    assert [line["name"] for line in lines][:2] == ["path=host depth=1", "path=host depth=8"]
    assert all(line["record"]["schema"] == "forebay.run/1" and line["preset"] == "mine" for line in lines)
    assert len({line["key"] for line in lines}) == 6
    assert "[6/6]" in err and "left" in err and "6 of 6 runs" in out


def test_groups_bind_fields_together_and_the_matrix_multiplies_each() -> None:
    text = """
[[point]]
io-size = ["64k", "128k"]
workers = 32
[[point]]
io-size = "1m"
workers = 24
[matrix]
path = ["host", "bounce"]
"""
    plan = make_plan(text)
    found = [(p.job["io_bytes"] >> 10, p.job["workers"], p.job["path"]) for p in plan.points]
    assert found == [
        (64, 32, "host"),
        (64, 32, "bounce"),
        (128, 32, "host"),
        (128, 32, "bounce"),
        (1024, 24, "host"),
        (1024, 24, "bounce"),
    ]


def make_plan(text: str, **asks: Any) -> Any:
    machine = FakeMachine()
    with pytest.MonkeyPatch.context() as patch:
        machine.install(patch)
        return make(parse(text, "t", "t.toml"), Asks(sources=("nil:",), **asks))


@pytest.mark.parametrize(
    ("head", "order"),
    [
        ("rounds = 2", "a0 a1 b0 b1"),
        ('rounds = 2\norder = "interleaved"', "a0 b0 a1 b1"),
        ('rounds = 2\nalternate = "depth"', "a0 b0 a1 b1"),
    ],
)
def test_rounds_run_in_the_order_that_is_asked_for(head: str, order: str) -> None:
    plan = make_plan(f"{head}\n[matrix]\ndepth = [1, 2]")
    assert " ".join(f"{'ab'[p.job['depth'] - 1]}{p.round}" for p in plan.points) == order


def test_random_order_is_the_same_for_the_same_seed_and_differs_between_rounds() -> None:
    text = 'order = "random"\nseed = {}\nrounds = 2\n[matrix]\ndepth = [1, 2, 3, 4, 5, 6, 7, 8]'
    orders = [[(p.job["depth"], p.round) for p in make_plan(text.format(s)).points] for s in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert [d for d, _ in orders[0][:8]] != [d for d, _ in orders[0][8:]]
    assert sorted(d for d, r in orders[0] if r == 1) == list(range(1, 9))


def test_alternation_takes_one_setting_of_the_rest_after_the_other() -> None:
    plan = make_plan('alternate = "path"\nrounds = 2\n[matrix]\npath = ["host", "bounce"]\ndepth = [1, 2]')
    assert [(p.job["depth"], p.job["path"], p.round) for p in plan.points[:5]] == [
        (1, "host", 0),
        (1, "bounce", 0),
        (1, "host", 1),
        (1, "bounce", 1),
        (2, "host", 0),
    ]


def test_set_overrides_every_point_and_makes_equal_points_one(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    typed(capsys, "sweep", sweep, "/x", "-o", "o", "--set", "depth=4", "--set", "duration=0.5")
    assert ran(machine) == [("host", 4), ("bounce", 4)] and machine.jobs[0]["duration_s"] == 0.5


def test_a_dry_run_lists_the_runs_and_the_time_and_touches_nothing(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    code, out, _ = typed(capsys, "sweep", sweep, "/x", "--dry-run")
    assert code == 0 and "path=bounce depth=64" in out and "6 runs, about 10 s" in out
    _, out, _ = typed(capsys, "sweep", sweep, "/x", "--dry-run", "--json")
    assert len(json.loads(out)["points"]) == 6
    assert not machine.jobs and os.listdir(".") == ["mine.toml"]


def test_the_json_document_has_medians_over_the_rounds(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    code, out, _ = typed(capsys, "sweep", sweep, "/x", "-o", "o", "--rounds", 3, "--json")
    found = json.loads(out)
    assert code == 0 and found["finished"] == 18 and len(found["points"]) == 6
    rates = sorted(
        line["record"]["result"]["throughput_gib_s"]
        for line in points_of(Path("o"))
        if line["key"] == found["points"][0]["key"]
    )
    assert found["points"][0]["throughput"] == rates[1] and found["points"][0]["rounds"] == 3


# Wrong requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[job]\n\ndept = 3", "t.toml:3: field 'dept'"),
        ("rouns = 3", "t.toml:1: key 'rouns'"),
        ("[[point]]\ndepth = 1\n[[point]]\nqueue = 1", "t.toml:4: field 'queue'"),
        ("[matrix]\nio-size = ['64k', '12q']", "t.toml:2: --io-size 12q"),
        ("[matrix]\ndepth = []", "t.toml:2: key 'depth'"),
        ("[job]\ndepth = [1, 2]", "[matrix] for lists"),
        ("[matrix]\ndepth = [{a = 1}]", "has a dict for a value"),
        ("order = 'sideways'", "t.toml:1: key 'order': is \"sideways\""),
        ("rounds = 0", "rounds"),
        ("rounds = true", "rounds"),
        ("alternate = 'speed'", "speed"),
        ("alternate = 'path'\norder = 'random'", "alternate"),
        ("matrix = 3", "is not a table"),
        ("point = 3", "is not a list of tables"),
        ("[fallback]\ngds = ['teleport']", "teleport"),
        ("[job\n", "is not TOML"),
        ("a = " + "[" * 5000, "t.toml"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line_and_key(text: str, named: str) -> None:
    from forebay.errors import RequestError

    with pytest.raises(RequestError) as error:
        parse(text, "t", "t.toml")
    assert named in str(error.value)


def test_a_line_is_found_in_its_own_table() -> None:
    text = "[job]\ndepth = 1\n[[point]]\ndepth = 2\n[[point]]\n'depth' = 3\n"
    assert [line_of(text, w, "depth") for w in ("job", "point 1", "point 2", "matrix")] == [2, 4, 6, None]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nosuch"], "neither a preset"),
        (["mine.toml"], "names none"),
        (["mine.toml", "/x", "--set", "dept=3"], "dept"),
        (["mine.toml", "/x", "--set", "depth"], "has no value"),
        (["mine.toml", "/x", "--scale", "7"], "--scale 7"),
        (["mine.toml", "/x", "--scale", "soon"], "--scale soon"),
        (["mine.toml", "/x", "--max-time", "1s"], "--max-time"),
        (["mine.toml", "/x", "--set", "workers=0"], ": workers 0: must be"),
        (["mine.toml", "/x", "--restart", "--extend"], "--restart with --extend"),
        (["mine.toml", "/x", "-o", "/no/such/folder/o"], "/no/such/folder/o"),
        ([], "names no sweep"),
    ],
)
def test_a_wrong_request_is_named_and_leaves_nothing_behind(
    machine: FakeMachine, sweep: Path, capsys: Any, arguments: list[str], named: str
) -> None:
    code, _, err = typed(capsys, "sweep", *arguments)
    assert code == 2 and named in err and not machine.jobs
    assert os.listdir(".") == ["mine.toml"]


def test_sources_may_vary_point_by_point_but_not_twice(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    sweep.write_text('[job]\nduration = 1\n[matrix]\nsource = ["/a", "/b"]')
    code, _, _ = typed(capsys, "sweep", sweep, "-o", "o")
    assert code == 0 and [j["sources"] for j in machine.jobs] == [["/a"], ["/b"]]
    assert len({line["key"] for line in points_of(Path("o"))}) == 2
    code, _, err = typed(capsys, "sweep", sweep, "/c", "-o", "o2")
    assert code == 2 and "point by point" in err


# Going on ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("content", [b"my thesis\n", b'{"schema": "forebay.run/1"}\n', b"\x00" * 100])
def test_a_file_that_is_not_ours_is_left_alone(
    machine: FakeMachine, sweep: Path, capsys: Any, content: bytes
) -> None:
    Path("o").write_bytes(content)
    code, _, err = typed(capsys, "sweep", sweep, "/x", "-o", "o")
    assert code == 2 and "is not a file of sweep results" in err
    assert Path("o").read_bytes() == content and not machine.jobs and not Path("o.damaged").exists()


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


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
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


def test_a_machine_that_can_do_none_of_it_ends_with_3(
    machine: FakeMachine, sweep: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(machine, monkeypatch, {d: MachineError("/x", "no such thing", "doctor") for d in (1, 8, 64)})
    assert typed(capsys, "sweep", sweep, "/x", "-o", "o")[0] == 3


# Presets and scale -------------------------------------------------------------------------------------


def test_solidigm_gds_is_the_published_method(machine: FakeMachine, tmp_path: Path, capsys: Any) -> None:
    machine.paths = ("host", "bounce", "gds")
    _, out, _ = typed(capsys, "sweep", "solidigm-gds", "nil:", "--dry-run", "--json", "--scale", 1)
    jobs = [p["point"] for p in json.loads(out)["points"]]
    assert {(j["io_bytes"] >> 10, j["workers"], j["file_bytes"] >> 20) for j in jobs} == {
        (64, 32, 512),
        (128, 32, 512),
        (512, 24, 2048),
        (1024, 24, 2048),
        (4096, 24, 2048),
    }
    assert {j["path"] for j in jobs} == {"gds", "host"} and len(jobs) == 10
    assert all(j["duration_s"] == 45 and j["op"] == "read" and j["depth"] == 1 for j in jobs)


def test_the_other_presets_are_the_published_methods(machine: FakeMachine, capsys: Any) -> None:
    machine.paths = ("host", "bounce", "mapped", "gds")

    def jobs(name: str) -> list[dict[str, Any]]:
        _, out, _ = typed(capsys, "sweep", name, "nil:", "--dry-run", "--json", "--scale", 1)
        return [p["point"] for p in json.loads(out)["points"]]

    four_k = jobs("micron-4k")
    assert {j["workers"] for j in four_k} == {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96}
    assert {(j["op"], j["io_bytes"]) for j in four_k} == {("randread", 4096)}
    sizes = jobs("micron-io-size")
    assert {j["io_bytes"] for j in sizes} == {4096 << i for i in range(9)} and {
        j["workers"] for j in sizes
    } == {16}
    rows = jobs("rows")
    assert {j["io_bytes"] for j in rows} == {128 << i for i in range(8)} and {j["cache"] for j in rows} == {"warm"}
    assert {j["io_bytes"] for j in rows if j["path"] == "gds"} == {4096, 8192, 16384}
    power = jobs("solidigm-power")
    assert len(power) == 200 and [j["path"] for j in power[:4]] == ["gds", "host", "gds", "host"]


def test_pairs_run_at_once_each_with_the_workers_of_the_paper(machine: FakeMachine, capsys: Any) -> None:
    machine.paths = ("host", "bounce", "gds")
    pairs = ["--pair", "0=/dev/nvme0n1", "--pair", "1=stripe:?m=/a&m=/b"]

    def points(*more: Any) -> list[dict[str, Any]]:
        code, out, err = typed(capsys, "sweep", "micron-4k", *pairs, "--dry-run", "--json", *more)
        assert code == 0, err
        return [p["point"] for p in json.loads(out)["points"]]

    full = points("--scale", 1)
    assert {j["workers"] for j in full} == {2 * n for n in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)}
    assert all(j["pairs"] == [pairs[1], pairs[3]] and "sources" not in j for j in full)
    assert all(j["workers"] % 2 == 0 for j in points("--scale", 0.1)), "each pair has as many"
    code, _, err = typed(capsys, "sweep", "micron-4k", "nil:", *pairs, "--dry-run")
    assert code == 2 and "each --pair names its own source" in err


def test_every_preset_says_where_its_method_comes_from(capsys: Any) -> None:
    code, out, _ = typed(capsys, "sweep", "--list", "--json")
    found = json.loads(out)["presets"]
    assert code == 0 and {p["name"] for p in found} == set(presets())
    assert all(p["cites"] and p["method"] and p["title"] for p in found)


def test_without_gds_the_preset_says_so_and_runs_what_is_there(
    machine: FakeMachine, tmp_path: Path, capsys: Any
) -> None:
    target = tmp_path / "o"
    code, _, err = typed(capsys, "sweep", "solidigm-gds", "nil:", "-o", target, "--scale", "0.01")
    assert code == 0 and "path gds can't run here" in err and "libcufile isn't here" in err
    lines = points_of(target)
    assert {line["point"]["path"] for line in lines} == {"bounce", "host"} and len(lines) == 10
    bounced = next(line for line in lines if line["point"]["path"] == "bounce")
    warning = bounced["record"]["warnings"][-1]
    assert warning["id"] == "scaled" and "path gds → bounce" in warning["text"]
    assert "duration 45 s → 0.45 s" in warning["text"] and "file-size" in warning["text"]
    header = json.loads(target.read_text().splitlines()[0])
    assert header["schema"] == "forebay.sweep/1" and header["cites"] and header["frozen"]["fallbacks"]["gds"]


def test_points_that_scaling_makes_equal_run_once_and_are_named(machine: FakeMachine, capsys: Any) -> None:
    machine.paths = ("host", "bounce", "gds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forebay.sweep.scale.os.sched_getaffinity", lambda pid: {0, 1})
        _, out, _ = typed(capsys, "sweep", "micron-4k", "nil:", "--dry-run", "--json", "--scale", "auto")
    found = json.loads(out)
    assert sorted({p["point"]["workers"] for p in found["points"]}) == [1, 2, 4, 8, 12, 16]
    assert len(found["dropped"]) == 15 and "workers 24 → 16" in found["dropped"][0]


def test_scale_1_changes_nothing_and_auto_fits_the_disk(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[job]\nfile-size = "1g"\nworkers = 4\nduration = 5\n[matrix]\ndepth = [1, 2]'
    sweep = parse(text, "t", "t.toml")
    monkeypatch.setattr("forebay.sweep.scale.room_in", lambda folder, name: 2 << 30)
    whole = make(sweep, Asks(sources=(str(tmp_path),), scale=1.0))
    assert not whole.changes and whole.points[0].job["file_bytes"] == 1 << 30
    fitted = make(sweep, Asks(sources=(str(tmp_path),), scale=None))
    assert fitted.points[0].job["file_bytes"] == 256 << 20, "four of them fill half of the room"
    assert fitted.changes == ["file-size 1g → 256m (all points)"] and fitted.points[0].job["duration_s"] == 5


def test_max_time_shortens_all_durations_alike(machine: FakeMachine) -> None:
    plan = make(parse(SWEEP, "t", "t.toml"), Asks(sources=("nil:",), seconds_max=6.0))
    assert (
        plan.seconds == pytest.approx(6.0, abs=0.1) and len({p.job["duration_s"] for p in plan.points}) == 1
    )


def test_a_continued_sweep_keeps_the_scale_it_began_with(
    machine: FakeMachine, sweep: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Free space shrinks while a sweep fills it; its points must stay the same points."""
    sweep.write_text('[job]\nfile-size = "1g"\nduration = 1\n[matrix]\ndepth = [1, 2, 4]')
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setattr("forebay.sweep.scale.room_in", lambda folder, name: 1 << 30)
    machine.interrupt_at = 1
    typed(capsys, "sweep", sweep, data, "-o", "o", "--scale", "auto")
    machine.interrupt_at, machine.jobs = None, []
    monkeypatch.setattr("forebay.sweep.scale.room_in", lambda folder, name: 1 << 28)
    assert typed(capsys, "sweep", sweep, data, "-o", "o", "--scale", "auto")[0] == 0
    assert [j["file_bytes"] for j in machine.jobs] == [512 << 20] * 2


def test_the_power_of_two_paths_is_told_with_its_ratio(
    machine: FakeMachine, tmp_path: Path, capsys: Any
) -> None:
    machine.watts = {"host": 400.0, "bounce": 440.0}
    _, out, _ = typed(
        capsys, "sweep", "solidigm-power", "nil:", "-o", tmp_path / "o", "--rounds", 8, "--json"
    )
    found = json.loads(out)
    assert [p["power"] for p in found["points"]] == [440.0, 400.0]
    assert found["alternate"][0]["ratios"]["power"] == {
        "estimate": pytest.approx(1.1), "ci95": [pytest.approx(1.1), pytest.approx(1.1)], "rounds": 8
    }  # fmt: skip


def test_sources_that_make_files_are_known(tmp_path: Path) -> None:
    assert folder_of(str(tmp_path)) == tmp_path and folder_of(f"file:{tmp_path}") == tmp_path
    assert folder_of(f"stripe:?chunk=64k&m={tmp_path}&m=/y") == tmp_path
    for source in ("nil:", "model:x", f"{tmp_path}/file", "/dev/nvme0n1", "nvme+rdma://h:1/nqn.x", f"model:x?over={tmp_path}"):
        assert folder_of(source) is None


def test_names_are_read_as_the_engine_reads_them(tmp_path: Path) -> None:
    odd = tmp_path / "why?m=not"
    odd.mkdir()
    assert folder_of(str(odd)) == odd and folder_of(f"file://{odd}") == odd
    inner = quote(f"stripe:?m={quote(str(odd))}", safe="")
    assert folder_of(f"stripe:?m=nil:&m={inner}") == odd


# Properties --------------------------------------------------------------------------------------------

FIELD = st.sampled_from(["depth", "workers", "io_bytes", "seed"])
JOBS = st.dictionaries(FIELD, st.integers(1, 1 << 40), min_size=1)


@given(JOBS, JOBS)
def test_keys_are_equal_exactly_where_the_work_is(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (point_key(a) == point_key(b)) == (a == b)
    assert point_key({**a, "label": "x", "sources": ["/p"]}) == point_key(
        {**a, "label": "y", "sources": ["/q"]}
    )
    assert point_key(dict(reversed(a.items()))) == point_key(a)


@given(st.lists(JOBS, min_size=1, max_size=5), st.lists(JOBS, min_size=1, max_size=5))
def test_any_change_of_the_points_is_noticed(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    old, new = {"points": before}, {"points": after}
    assert bool(differences(old, new)) == (before != after)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=400))
def test_no_bytes_in_a_results_file_are_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(content)
    found = results_file.read(path)
    assert len(found.damaged) + len(found.lines) + len(found.headers) <= content.count(b"\n") + 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=200))
def test_no_text_is_a_traceback_as_a_sweep(text: str) -> None:
    from forebay.errors import RequestError

    try:
        parse(text, "t", "t.toml")
    except RequestError as error:
        assert "t.toml" in str(error)
