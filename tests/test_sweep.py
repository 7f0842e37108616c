"""`forebay sweep`: what runs, in which order, and which requests are wrong."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine, typed
from forebay.sweep.file import line_of, parse
from forebay.sweep.plan import Asks, differences, make
from forebay.sweep.points import point_key
from forebay.sweep.vary import axes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from properties import any_text
from sweep_support import machine, points_of, ran, sweep  # noqa: F401 - fixtures

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


@pytest.mark.promise("SWP-32")
def test_lists_on_the_command_line_are_a_sweep(machine: FakeMachine, sweep: Path, capsys: Any) -> None:
    asked = ("sweep", "/data/big", "--vary", "workers=1:6", "--vary", "io-size=4k,64k", "--set", "duration=1")
    code, out, _ = typed(capsys, *asked, "-o", "o")
    assert code == 0 and "8 of 8 runs in o" in out
    assert [(j["workers"], j["io_bytes"]) for j in machine.jobs] == [(w, s) for w in (1, 2, 4, 6) for s in (4096, 65536)]
    assert machine.jobs[0]["sources"] == ["/data/big"]
    assert "8 of them finished before" in typed(capsys, *asked, "-o", "o")[2]
    machine.jobs = []
    # Over a sweep's own values of the field, and beside its other axes.
    typed(capsys, "sweep", sweep, "/x", "--vary", "depth=2,3", "-o", "p")
    assert ran(machine) == [("host", 2), ("host", 3), ("bounce", 2), ("bounce", 3)]


@pytest.mark.promise("SWP-32")
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("depth=1:96", [1, 2, 4, 8, 16, 32, 64, 96]),
        ("depth=8:32:8", [8, 16, 24, 32]),
        ("workers=1:4,12,auto", [1, 2, 4, 12, "auto"]),
        ("io-size=4k:24k", [4096, 8192, 16384, 24576]),
        ("--file-size=1m,2g", [1 << 20, 2 << 30]),
        ("gpu=0,1", [[0], [1]]),
        ("source=/a,nvme+tcp://h:4420/n", [["/a"], ["nvme+tcp://h:4420/n"]]),
        ("path=host,bounce", ["host", "bounce"]),
        ("rate-iops=1e3,2000", [1000.0, 2000.0]),
    ],
)
def test_values_are_a_list_or_a_range_that_doubles_or_steps(text: str, values: list[Any]) -> None:
    [axis] = axes([text])
    assert [next(iter(setting.values())) for setting in axis] == values


@pytest.mark.promise("SWP-32")
def test_a_study_of_latency_shows_latency_first(machine: FakeMachine, sweep: Path, capsys: Any) -> None:
    _, out, err = typed(capsys, "sweep", "/x", "--vary", "io-size=4k,64k", "--set", "depth=1", "-o", "o")
    head = next(line for line in out.splitlines() if "latency" in line)
    assert head.index("mean latency") < head.index("p99 latency") < head.index("throughput") and "mean latency" in err
    _, out, _ = typed(capsys, "sweep", "/x", "--vary", "io-size=4k,64k", "-o", "p")
    head = next(line for line in out.splitlines() if "latency" in line)
    assert head.index("throughput") < head.index("latency")


@pytest.mark.promise("SWP-32")
def test_what_a_machine_lacks_is_known_before_the_first_run_and_said_once(
    machine: FakeMachine, sweep: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"gds": "there is no GPU", "mapped": "there is no GPU"}
    monkeypatch.setattr("forebay.run.lacks", lambda job: missing.get(job.get("path")))
    code, out, err = typed(capsys, "sweep", "/x", "--vary", "path=gds,host", "--vary", "depth=1:4", "-o", "o")
    assert code == 3 and {job["path"] for job in machine.jobs} == {"host"} and "3 of 3 runs" in out
    assert (out + err).count("there is no GPU") == 2  # ahead of the runs on stderr, and with the table on stdout
    document = json.loads(typed(capsys, "sweep", "/x", "--vary", "path=gds,host", "-o", "q", "--json")[1])
    assert document["refused"] == {"gds": "there is no GPU"}
    machine.jobs = []
    code, _, err = typed(capsys, "sweep", "/x", "--vary", "path=gds,mapped", "-o", "p")
    assert code == 3 and "there is no GPU" in err and not machine.jobs and not Path("p").exists()
    code, out, _ = typed(capsys, "sweep", "solidigm-gds", "nil:", "--dry-run")
    assert code == 0 and out.count("path gds can't run here") == 1 and "path=bounce" in out and "path=gds" not in out


def test_a_dry_run_lists_the_runs_and_the_time_and_touches_nothing(
    machine: FakeMachine, sweep: Path, capsys: Any
) -> None:
    code, out, _ = typed(capsys, "sweep", sweep, "/x", "--dry-run")
    assert code == 0 and "path=bounce depth=64" in out and "6 runs, about 10 s" in out
    _, out, _ = typed(capsys, "sweep", sweep, "/x", "--dry-run", "--json")
    assert len(json.loads(out)["points"]) == 6
    assert not machine.jobs and os.listdir(".") == ["mine.toml"]


@pytest.mark.promise("CMD-7")
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
        (["/x", "--vary", "dept=3"], "--vary dept=3"),
        (["/x", "--vary", "depth="], "has no values"),
        (["/x", "--vary", "depth=3:1"], "3:1 is not a range"),
        (["/x", "--vary", "depth=1:x"], "is not a range of whole numbers"),
        (["/x", "--vary", "depth=1:99999:1"], "more than 10,000 values"),
        (["/x", "--vary", "depth=1", "--vary", "depth=2"], "varied twice"),
        (["/x", "--vary", "depth=1", "--set", "depth=2"], "contradict each other"),
        (["--vary", "depth=1"], "names no sweep"),
        (["mine.toml", "/x", "--scale", "soon"], "--scale soon"),
        (["mine.toml", "/x", "--max-time", "1s"], "--max-time"),
        (["mine.toml", "/x", "--max-time", "0"], "--max-time 0"),
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_text(max_size=200))
def test_no_text_is_a_traceback_as_a_sweep(text: str) -> None:
    from forebay.errors import RequestError

    try:
        parse(text, "t", "t.toml")
    except RequestError as error:
        assert "t.toml" in str(error)
