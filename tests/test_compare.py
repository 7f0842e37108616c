"""`forebay compare`: the order of the runs, the verdicts, what an interruption keeps, and the gate over files."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_machine import FakeMachine, other_build, record_of, typed
from forebay import run as engine
from forebay.compare.jobs import Limits, PairRun, _line, orders
from forebay.compare.verdict import judge, span
from forebay.errors import RunError
from forebay.metrics import METRICS
from forebay.stats import Interval

RATE, LATENCY = METRICS["throughput"], METRICS["latency_p99"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = FakeMachine(noise=0.005, drift=0.003)
    made.ratio_of = lambda job: 1.08 if job.get("path") == "mapped" else 1.0
    # One interval in twenty may miss the truth: not by chance, from test to test.
    seeded = SimpleNamespace(SystemRandom=lambda: random.Random(1), Random=random.Random)
    monkeypatch.setattr("forebay.compare.jobs.random", seeded)
    return made.install(monkeypatch)


def compare(capsys: Any, *arguments: Any) -> tuple[int, dict[str, Any]]:
    code, out, _ = typed(capsys, "compare", *arguments, "--json")
    return code, json.loads(out)


# Two jobs ----------------------------------------------------------------------------------------------


def test_a_real_difference_is_found_through_noise_and_drift(machine: FakeMachine, capsys: Any) -> None:
    code, found = compare(capsys, "--a", "path=mapped", "--b", "path=bounce", "/data/x")
    assert code == 0 and found["verdict"]["kind"] == "differs"
    low, high = found["ratios"]["throughput"]["ci95"]
    assert low <= 1.08 <= high and found["verdict"]["text"].startswith("A is 1.0")


@pytest.mark.promise("SWP-3")
def test_pairs_run_in_an_order_that_the_seed_draws_after_one_of_each_that_does_not_count(
    machine: FakeMachine, capsys: Any
) -> None:
    asked = ["--a", "path=mapped", "--b", "path=bounce", "/data/x", "--pairs-max", 8]
    _, found = compare(capsys, *asked)
    sides = "".join("A" if job["path"] == "mapped" else "B" for job in machine.jobs)
    order = [p["order"] for p in found["pairs"]]
    assert sides == "AB" + "".join(order) and {"AB", "BA"} == set(order)
    assert machine.jobs[0]["duration_s"] == 1.0 and machine.jobs[2]["duration_s"] == 2.0
    again = compare(capsys, *asked, "--order-seed", found["order_seed"])[1]
    assert [p["order"] for p in again["pairs"]] == order and again["order_seed"] == found["order_seed"]
    others = {tuple(itertools.islice(orders(seed, 8), 12)) for seed in range(50)}
    assert len(others) > 40 and all(3 <= sum(each[:8]) <= 5 for each in others)


def test_a_run_in_which_no_io_finished_is_repeated_and_counted(machine: FakeMachine, capsys: Any) -> None:
    machine.empty = {0, 3, 6, 7}  # one of the two short runs, and three of the pairs'
    asked = ["--a", "path=mapped", "--b", "path=bounce", "/data/x", "--pairs-max", 8, "--json"]
    code, out, err = typed(capsys, "compare", *asked)
    found = json.loads(out)
    assert code == 0 and len(machine.jobs) == 2 + 2 * 8 + 4
    assert sum(found["runs_without_io"].values()) == 3
    assert all(run["result"]["ios"] for side in "ab" for run in found["runs"][side])
    assert err.count("no I/O finished; the run is repeated and doesn't count") == 4


def test_settings_lie_over_the_common_flags(machine: FakeMachine, capsys: Any) -> None:
    _, found = compare(
        capsys,
        "--a",
        "depth=64 io-size=4k",
        "--b",
        "source=/data/y",
        "/data/x",
        "--depth",
        2,
        "--duration",
        0.5,
    )
    assert found["a"]["job"] == {"sources": ["/data/x"], "depth": 64, "io_bytes": 4096, "duration_s": 0.5}
    assert found["b"]["job"] == {"sources": ["/data/y"], "depth": 2, "duration_s": 0.5}


def test_equal_jobs_are_called_equal_and_the_bound_is_true(machine: FakeMachine, capsys: Any) -> None:
    code, out, err = typed(capsys, "compare", "--a", "path=host", "--b", "path=bounce", "/data/x")
    assert code == 0 and "no difference above" in out
    machine.ratio_of = lambda job: 1.0
    _, _, err = typed(capsys, "compare", "--a", "", "--b", "", "/data/x")
    assert "same job" in err


def test_noise_beyond_the_limit_is_called_noise_and_says_what_to_do(
    machine: FakeMachine, capsys: Any
) -> None:
    machine.noise = 0.3
    code, out, _ = typed(
        capsys, "compare", "--a", "path=host", "--b", "path=bounce", "/data/x", "--pairs-max", 8
    )
    assert code == 0 and "too noisy" in out and "--until-ci" in out
    asked = ["--a", "path=host", "--b", "path=bounce", "/data/x", "--pairs-max", 8, "--strict"]
    assert typed(capsys, "compare", *asked)[0] == 1


@pytest.mark.promise("CMD-7")
def test_cpu_and_power_stand_beside_the_verdict(machine: FakeMachine, capsys: Any) -> None:
    machine.watts = {"host": 400.0, "bounce": 500.0}
    _, found = compare(
        capsys, "--a", "path=host io-size=1m", "--b", "path=bounce io-size=4k depth=2048", "/data/x"
    )
    assert found["ratios"]["cpu"]["estimate"] == pytest.approx(
        machine.true_cpu_s_per_gib({"io_bytes": 1 << 20}) / machine.true_cpu_s_per_gib({"io_bytes": 4096})
    )
    assert found["ratios"]["power"]["estimate"] == pytest.approx(0.8)


def test_what_was_not_measured_is_null_with_its_reason(machine: FakeMachine, capsys: Any) -> None:
    _, found = compare(capsys, "--a", "path=host", "--b", "path=bounce", "/data/x")
    assert found["ratios"]["power"] is None and found["a"]["missing"]["power"] == "no meter answered"
    machine.cpu = False
    code, _, err = typed(capsys, "compare", "--a", "", "--b", "path=bounce", "/data/x", "--metric", "cpu")
    assert code == 3 and "--metric cpu" in err and len(machine.jobs) < 20


def test_latency_is_judged_the_other_way_round(machine: FakeMachine, capsys: Any) -> None:
    _, found = compare(
        capsys, "--a", "path=bounce", "--b", "path=mapped", "/data/x", "--metric", "latency_p99"
    )
    assert found["verdict"]["text"].startswith("A's 99th-percentile latency is 1.0")


def test_ctrl_c_keeps_the_pairs_so_far(machine: FakeMachine, capsys: Any, tmp_path: Path) -> None:
    machine.interrupt_at = 2 + 2 * 4 + 1
    target = tmp_path / "c.json"
    code, found = compare(capsys, "--a", "path=mapped", "--b", "path=bounce", "/data/x", "-o", target)
    assert code == 130 and found["interrupted"] and len(found["pairs"]) == 4
    assert found["verdict"]["kind"] == "differs"
    saved = json.loads(target.read_text())
    assert saved["pairs"] == found["pairs"] and len(saved["runs"]["a"]) == 4


def test_ctrl_c_before_the_first_pair_gives_no_verdict(machine: FakeMachine, capsys: Any) -> None:
    machine.interrupt_at = 0
    code, found = compare(capsys, "--a", "path=mapped", "--b", "path=bounce", "/data/x")
    assert code == 130 and found["verdict"]["kind"] == "none" and found["pairs"] == []


def test_a_run_that_breaks_midway_keeps_the_pairs_before_it(
    machine: FakeMachine, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay import run as engine

    def breaking(job: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if len(machine.jobs) == 9:
            raise RunError("/data/x", "input/output error", "smartctl -a")
        return machine.run(job, **kwargs)

    monkeypatch.setattr(engine, "run", breaking)
    code, found = compare(capsys, "--a", "path=mapped", "--b", "path=bounce", "/data/x")
    assert code == 4 and len(found["pairs"]) == 3
    assert "input/output error" in found["error"]["found"] and found["error"]["asked"].startswith(
        ("A (path=mapped)", "B (path=bounce)")
    )


def test_max_time_ends_it(machine: FakeMachine, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.noise = 0.2
    clock = iter(range(0, 100_000, 5))
    monkeypatch.setattr("forebay.compare.jobs.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    _, found = compare(capsys, "--a", "", "--b", "path=bounce", "/data/x", "--max-time", "60s")
    assert 2 <= len(found["pairs"]) <= 6


def test_the_time_that_is_left_is_no_longer_than_there_is() -> None:
    runs = [
        PairRun(record_of({}, 1 + 0.3 * (n % 3), 1.0, 0.1), record_of({}, 1.2, 1.0, 0.1), n % 2 == 0) for n in range(4)
    ]
    assert "about 1 min 20 s left" in _line(runs, RATE, Limits(pairs_max=20), 20.0)
    assert "about 5 s left" in _line(runs, RATE, Limits(pairs_max=20, seconds_max=25.0), 20.0)
    assert "left" not in _line(runs, RATE, Limits(pairs_max=20, seconds_max=15.0), 20.0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--a", "dept=3", "--b", "", "/x"], "dept"),
        (["--a", "depth", "--b", "", "/x"], "depth"),
        (["--a", "", "--b", ""], "SOURCE"),
        (["--a", "", "--b", "", "/x", "--metric", "speed"], "--metric"),
        (["--a", "", "--b", "", "/x", "--repeat", "3"], "--repeat"),
        (["--a", "", "--b", "", "/x", "--until-ci", "0"], "--until-ci"),
        (["--a", "", "--b", "", "/x", "--pairs-min", "9", "--pairs-max", "5"], "--pairs-max 5"),
        (["--a", "", "--b", "", "/x", "--tolerance", "500%"], "--tolerance"),
        (["one.json"], "two files"),
        (["a.json", "--limit", "p99 = 3us"], "--limit 'p99 = 3us'"),
        (["a.json", "--limit", "p98 < 3us"], "p98 is not one of"),
        (["a.json", "--limit", "p99 < 500"], "needs a unit"),
        (["a.json", "--limit", "rate > 3 parsecs"], "is not a number of GiB/s"),
        (["a.json", "--limit", "iops > 2x"], "x is not a unit"),
        (["a.json", "--limit", "power < 0"], "above 0"),
        (["/no/such/a.json", "/no/such/b.json"], "/no/such/a.json"),
    ],
)
def test_a_wrong_request_is_named_and_nothing_runs(
    machine: FakeMachine, capsys: Any, arguments: list[str], named: str
) -> None:
    code, out, err = typed(capsys, "compare", *arguments)
    assert code == 2 and named in err and not machine.jobs and not out


def test_an_error_names_a_sides_own_settings_by_key_and_common_ones_by_flag(capsys: Any, tmp_path: Path) -> None:
    """By the engine itself, which counts the files of directories alone."""
    (source := tmp_path / "f").write_bytes(bytes(1 << 20))
    code, _, err = typed(capsys, "compare", "--a", "files=3", "--b", "", source)
    assert code == 2 and f"A (files=3): files 3 of {source}: it is one file, and files counts" in err
    assert "try: no files" in err and "--files" not in err
    code, _, err = typed(capsys, "compare", "--a", "op=randread", "--b", "", source, "--files", 3)
    assert code == 2 and f"A (op=randread): --files 3 of {source}: it is one file, and --files counts" in err


def test_a_file_that_is_not_ours_is_not_overwritten(
    machine: FakeMachine, capsys: Any, tmp_path: Path
) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    code, _, _ = typed(capsys, "compare", "--a", "", "--b", "path=bounce", "/x", "-o", thesis)
    assert code == 2 and thesis.read_text() == "years of work" and not machine.jobs


def test_another_build_runs_as_a_process_of_its_own_with_the_same_job(
    machine: FakeMachine, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.noise = machine.drift = 0.0
    log = tmp_path / "log"
    record = record_of({"sources": ["/data/x"], "depth": 8}, 2.0, 1.0, 0.1)
    python = other_build(
        tmp_path,
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        f"assert 'PYTHONPATH' not in os.environ\nprint({json.dumps(record)!r})",
    )
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    code, found = compare(
        capsys, "--a", "depth=8", "--b", "depth=8", "--b-python", python, "/data/x", "--io-size", "64k:1m"
    )
    assert code == 0 and found["ratios"]["throughput"]["estimate"] == pytest.approx(machine.true_gib_s(
        {"depth": 8, "io_bytes": 65536}) / 2.0)  # fmt: skip
    words = json.loads(log.read_text().splitlines()[-1])
    assert words[:4] == ["-m", "forebay.cli", "bench", "/data/x"] and words[-1] == "--json"
    assert words[words.index("--io-size") + 1] == "64k:1m"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("sys.exit('no module named forebay')", 4, "no module named forebay"),
        ("print('{}')", 4, "no record"),
        ("print('x' * 100)", 4, "no record"),
        ("sys.stderr.write('libcuda is absent'); sys.exit(3)", 3, "libcuda is absent"),
    ],
)
def test_another_build_that_fails_is_quoted(
    machine: FakeMachine, capsys: Any, tmp_path: Path, body: str, code: int, said: str
) -> None:
    python = other_build(tmp_path, body)
    found, _, err = typed(capsys, "compare", "--a", "", "--b", "", "--a-python", python, "/data/x")
    # sys.exit with a text ends with code 1, as does a build whose checks fail: either way there is no record.
    assert found == code and said in err


def test_an_interpreter_that_is_not_there_is_named(machine: FakeMachine, capsys: Any) -> None:
    code, _, err = typed(capsys, "compare", "--a", "", "--b", "", "--a-python", "/no/python", "/data/x")
    assert code == 2 and "/no/python" in err


# Verdicts ----------------------------------------------------------------------------------------------


@pytest.mark.promise("SWP-3")
@pytest.mark.parametrize(
    ("low", "high", "kind", "text"),
    [
        (1.072, 1.108, "differs", "A is 1.07–1.11 × B"),
        (1 / 1.11, 1 / 1.07, "differs", "A is 0.90–0.93 × B"),
        (1.004, 1.012, "differs", "A is 1.004–1.012 × B (a real difference, but below 2 %)"),
        (0.992, 1.013, "same", "no difference above 1.3 %"),
        (1.0, 1.0, "same", "no difference above 0.1 %"),
        (0.95, 1.07, "too_noisy", "no difference above 7 % in throughput; too noisy to rule out 2 %"),
        (0.81, 1.3, "too_noisy", "too noisy: A is 0.81–1.30 × B"),
        (2.4, 4.1, "differs", "wider than the 2 % requested"),
        (None, None, "none", "no verdict"),
    ],
)
def test_verdicts_say_what_the_interval_says(
    low: float | None, high: float | None, kind: str, text: str
) -> None:
    estimate = math.sqrt(low * high) if low and high else 1.0
    found = judge(Interval(estimate, low, high, 8), RATE, 2.0)
    assert found.kind == kind and text in found.text


def test_a_span_never_rounds_a_difference_away() -> None:
    assert span(1.0004, 1.0009) == "1.0004–1.0009"
    assert span(1.004, 1.05) == "1.004–1.050"
    assert span(3.0, 3.0) == "3"
    assert span(311.77, 341.24) == "312–341" and span(12.31, 12.74) == "12.3–12.7"


def test_noise_is_blamed_where_the_guard_saw_it() -> None:
    noisy = {"steal_pct": 12.0, "others_cores_busy": 1.4, "throttled": 3}
    said = judge(Interval(1.0, 0.8, 1.25, 8), LATENCY, 2.0, noisy).next
    assert "12 %" in said and "1.4 cores" in said and "throttled" in said and "--until-ci 23%" in said
    # No percentage that would be refused is advised.
    assert "--until-ci" not in judge(Interval(1.0, 0.02, 24, 3), LATENCY, 2.0, noisy).next


# Two files ---------------------------------------------------------------------------------------------


def write_runs(path: Path, rates: dict[int, list[float]], schema: str = "point", **extra: Any) -> Path:
    """A sweep's results: for each depth, one record per rate."""
    lines = []
    for depth, values in rates.items():
        for n, rate in enumerate(values):
            job = {"sources": [f"/data/{path.stem}"], "depth": depth, "duration_s": 1.0, "label": path.stem}
            record = record_of(job, rate, 1.0, 0.1, n)
            line = {
                "schema": "forebay.point/1",
                "key": f"k{depth}",
                "round": n,
                "point": job,
                "record": record,
            }
            lines.append(json.dumps(line if schema == "point" else record))
    path.write_text("\n".join(lines) + "\n")
    return path


def noisy(mean: float, n: int, seed: int, noise: float = 0.005) -> list[float]:
    rng = random.Random(seed)
    return [mean * math.exp(rng.gauss(0, noise)) for _ in range(n)]


@pytest.mark.promise("SWP-4")
@pytest.mark.parametrize("schema", ["point", "record"])
def test_a_regression_ends_with_code_1_and_names_the_point(capsys: Any, tmp_path: Path, schema: str) -> None:
    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 5, 1), 8: noisy(4, 5, 2)}, schema)
    b = write_runs(tmp_path / "b.jsonl", {1: noisy(1, 5, 3), 8: noisy(3.6, 5, 4)}, schema)
    code, found = compare(capsys, a, b)
    assert code == 1 and found["verdict"]["kind"] == "worse"
    assert [p["verdict"] for p in found["points"]] == ["ok", "worse"]
    # A ÷ B, as of two jobs.
    low, high = found["points"][1]["ratio"]["ci95"]
    assert found["ratio"] == "A ÷ B" and low < 4 / 3.6 < high
    assert "depth=8" in found["verdict"]["text"] and "depth=1" not in found["verdict"]["text"]


def test_better_is_no_regression_and_neither_is_within_the_tolerance(capsys: Any, tmp_path: Path) -> None:
    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 6, 1), 8: noisy(4, 6, 2)})
    b = write_runs(tmp_path / "b.jsonl", {1: noisy(1.2, 6, 3), 8: noisy(3.9, 6, 4)})
    code, found = compare(capsys, a, b, "--tolerance", "10%")
    assert code == 0 and [p["verdict"] for p in found["points"]] == ["better", "ok"]
    assert compare(capsys, a, b, "--tolerance", "1%")[0] == 1


def test_a_cost_regresses_upwards(capsys: Any, tmp_path: Path) -> None:
    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 6, 1)})
    b = write_runs(tmp_path / "b.jsonl", {1: noisy(0.9, 6, 2)})
    assert compare(capsys, a, b, "--metric", "latency_p99")[0] == 1
    assert compare(capsys, b, a, "--metric", "latency_p99")[0] == 0


def test_noise_is_no_regression(capsys: Any, tmp_path: Path) -> None:
    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 4, 1, 0.3)})
    b = write_runs(tmp_path / "b.jsonl", {1: noisy(0.9, 4, 2, 0.3)})
    code, found = compare(capsys, a, b)
    assert code == 0 and found["verdict"]["kind"] == "unsure" and found["verdict"]["next"]
    assert compare(capsys, a, b, "--strict")[0] == 1
    assert compare(capsys, a, a, "--strict", "--tolerance", "50%")[0] == 0


@pytest.mark.promise("SWP-4")
@pytest.mark.long
def test_false_alarms_stay_rare_over_many_points(tmp_path: Path) -> None:
    """The same machine twice, 8 points each, 60 times, no tolerance: alarms in 5 % at most, give or take."""
    from forebay.compare.files import compare_files

    alarms = 0
    for seed in range(60):
        a = write_runs(
            tmp_path / "a.jsonl", {d: noisy(d, 4, 1000 + seed * 20 + d, 0.02) for d in range(1, 9)}
        )
        b = write_runs(
            tmp_path / "b.jsonl", {d: noisy(d, 4, 5000 + seed * 20 + d, 0.02) for d in range(1, 9)}
        )
        alarms += compare_files(str(a), str(b), [RATE], 0.0)["verdict"]["kind"] == "worse"
    assert alarms <= 8


def test_many_points_of_one_run_each_are_judged_together(capsys: Any, tmp_path: Path) -> None:
    a = write_runs(tmp_path / "a.jsonl", {d: noisy(d, 1, d) for d in range(1, 9)})
    b = write_runs(tmp_path / "b.jsonl", {d: noisy(0.9 * d, 1, 50 + d) for d in range(1, 9)})
    code, found = compare(capsys, a, b)
    assert code == 1 and "all points together" in found["verdict"]["text"]
    code, found = compare(capsys, a, a)
    assert code == 0 and found["verdict"]["kind"] == "not_worse"


def test_a_gate_that_cannot_judge_does_not_pass(capsys: Any, tmp_path: Path) -> None:
    a = write_runs(tmp_path / "a.jsonl", {1: [1.0]})
    code, _, err = typed(capsys, "compare", a, a)
    assert code == 2 and "--repeat" in err
    code, _, err = typed(capsys, "compare", a, a, "--metric", "power")
    assert code == 2 and "not measured" in err


def test_repeats_within_one_record_count_where_it_is_alone(capsys: Any, tmp_path: Path) -> None:
    job = {"sources": ["/x"], "depth": 8}
    files = []
    for name, rates in (("a", noisy(4, 5, 1)), ("b", noisy(3, 5, 2))):
        record = record_of(job, rates[0], 1.0, 0.1)
        record["result"]["repeats"] = [record_of(job, r, 1.0, 0.1)["result"] for r in rates]
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(record, indent=2))
    code, found = compare(capsys, *files)
    assert code == 1 and found["points"][0]["runs"] == [5, 5]


def test_what_does_not_match_is_named(capsys: Any, tmp_path: Path) -> None:
    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 3, 1), 2: noisy(2, 3, 1), 8: noisy(4, 3, 2)})
    b = write_runs(tmp_path / "b.jsonl", {1: noisy(1, 3, 3), 2: noisy(2, 3, 1), 16: noisy(4, 3, 4)})
    with b.open("a") as file:
        file.write('{"schema":"forebay.point/1","key":"torn","poi\n')
        file.write(
            json.dumps({"schema": "forebay.point/1", "key": "k9", "name": "depth=9", "error": {}}) + "\n"
        )
        file.write(json.dumps({"schema": "forebay.run/99"}) + "\n")
    code, out, _ = typed(capsys, "compare", a, b)
    assert "only in A: depth=8" in out and "only in B: depth=16" in out
    assert f"skipped: {b}:10: not a record" in out and "depth=9 failed" in out and f"{b}:12" in out
    other = write_runs(tmp_path / "c.jsonl", {3: [1.0, 1.0], 4: [1.0, 1.0]})
    code, _, err = typed(capsys, "compare", a, other)
    assert code == 2 and "no point" in err


def test_two_files_of_one_job_each_are_compared_whatever_the_jobs(capsys: Any, tmp_path: Path) -> None:
    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 4, 1)})
    b = write_runs(tmp_path / "b.jsonl", {32: noisy(2, 4, 2)})
    code, found = compare(capsys, a, b)
    assert code == 0 and found["points"][0]["name"] == "source=/data/a depth=1 → source=/data/b depth=32"


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe", b"[[[[", b'{"schema": 3}', b'{"schema":"forebay.run/1"}', b"[1,2]"]
)
def test_files_without_records_are_refused(capsys: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    code, _, err = typed(capsys, "compare", tmp_path / "a", tmp_path / "a")
    assert code == 2 and "holds no record" in err


def test_what_differs_between_two_environments_is_said(capsys: Any, tmp_path: Path) -> None:
    """Another firmware, a week later: the verdict stands, and says what it compares."""
    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 6, 1)})
    b = write_runs(tmp_path / "b.jsonl", {1: noisy(1, 6, 2)})
    assert compare(capsys, a, a)[1]["differs"] == []
    for path, firmware in ((a, "1.0"), (b, "1.1")):
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        for line in lines:
            environment = line["record"].setdefault("environment", {})
            environment |= {"drives": [{"name": "nvme0n1", "firmware": firmware}], "numa_nodes": 1}
            environment |= {"governor": "powersave" if firmware == "1.0" else "performance", "smt": firmware == "1.0"}
        Path(path).write_text("\n".join(json.dumps(line) for line in lines))
    assert compare(capsys, a, b)[1]["differs"] == [
        {"what": "governor", "a": ["powersave"], "b": ["performance"]}, {"what": "SMT", "a": ["on"], "b": ["off"]},
        {"what": "firmware", "a": ["1.0"], "b": ["1.1"]},
    ]  # fmt: skip
    assert typed(capsys, "compare", a, b)[0] == 0


# Gates -------------------------------------------------------------------------------------------------


@pytest.mark.promise("SWP-31")
@pytest.mark.parametrize(
    ("limit", "verdict", "codes"),
    [
        ("rate > 3GiB/s", "kept", (0, 0)),
        ("rate > 4GiB/s", "unsure", (0, 1)),
        ("rate >= 4.5", "broken", (1, 1)),
        ("rate < 3GiB/s", "broken", (1, 1)),
        ("p99 < 500ms", "kept", (0, 0)),
        ("p99 <= 100us", "broken", (1, 1)),
        ("iops > 1k", "kept", (0, 0)),
    ],
)
def test_limits_hold_one_file_to_what_it_must_reach(
    capsys: Any, tmp_path: Path, limit: str, verdict: str, codes: tuple[int, int]
) -> None:
    runs = write_runs(tmp_path / "a.jsonl", {8: noisy(4, 6, 2)})
    code, found = compare(capsys, runs, "--limit", limit)
    [row] = found["limits"][0]["points"]
    assert (found["kind"], row["verdict"], code) == ("file", verdict, codes[0])
    assert compare(capsys, runs, "--limit", limit, "--strict")[0] == codes[1]


@pytest.mark.promise("SWP-31")
def test_one_run_keeps_a_limit_and_strictly_speaking_shows_nothing(capsys: Any, tmp_path: Path) -> None:
    run = write_runs(tmp_path / "a.jsonl", {8: [4.0]})
    code, out, _ = typed(capsys, "compare", run, "--limit", "rate > 3GiB/s", "--limit", "mean < 1s")
    assert code == 0 and "rate > 3GiB/s" in out and "one run" in out
    assert typed(capsys, "compare", run, "--limit", "rate > 3GiB/s", "--strict")[0] == 1
    assert typed(capsys, "compare", run, "--limit", "rate > 5GiB/s")[0] == 1
    code, _, err = typed(capsys, "compare", run, "--limit", "power < 900W")
    assert code == 2 and "not measured" in err


def mixed(record: dict[str, Any], also: float = 1.0) -> dict[str, Any]:
    """The record as of a mix: two reads for each write, whose latency is 10 × that of the reads."""
    result = record["result"]
    for way, share, longer in (("read", 2 / 3, 1.0), ("write", 1 / 3, 10.0 * also)):
        result[way] = {
            "bytes": result["bytes"] * share, "ios": result["ios"] * share, "iops": result["iops"] * share,
            "throughput_gib_s": result["throughput_gib_s"] * share,
            "latency_us": {name: us * longer for name, us in result["latency_us"].items()},
        }  # fmt: skip
    return record


@pytest.mark.promise("REC-46")
def test_a_direction_is_judged_in_files_and_shown_of_two_mixed_jobs(
    machine: FakeMachine, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (write_runs(tmp_path / f"{name}.jsonl", {1: noisy(1, 6, 1)}) for name in "ab")
    for path, also in ((a, 1.0), (b, 1.5)):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            mixed(line["record"], also)
        path.write_text("\n".join(json.dumps(line) for line in lines))
    asked = ["--metric", "read.p99,write.p99", "--junit", tmp_path / "g.xml", "--github"]
    code, out, err = typed(capsys, "compare", a, b, *asked)
    assert code == 1 and "B is worse than A by more than 2 % in write p99 latency" in out and "in read p99 latency" in out
    assert "::error title=forebay compare" in err and "write p99 latency" in (tmp_path / "g.xml").read_text()
    run = machine.run
    monkeypatch.setattr(engine, "run", lambda job, **more: mixed(run(job, **more), 1.5 if job["depth"] == 2 else 1.0))
    asked = ["--a", "depth=1", "--b", "depth=2", "/data/x", "--metric", "write.p99", "--tolerance", "2%", "--pairs-max", "8"]
    code, out, _ = typed(capsys, "compare", *asked)
    assert code == 1 and "read I/O rate, IOPS" in out and "write mean latency, µs" in out and "flush" not in out
    assert "gate: B is worse than A by more than 2 % in write p99 latency" in out


@pytest.mark.promise("SWP-31")
def test_several_figures_and_limits_are_one_gate(capsys: Any, tmp_path: Path) -> None:
    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 6, 1), 8: noisy(4, 6, 2)})
    b = write_runs(tmp_path / "b.jsonl", {1: noisy(1, 6, 3), 8: noisy(3.6, 6, 4)})
    code, found = compare(capsys, a, b, "--metric", "cpu,p99", "--metric", "rate")
    assert [found["metric"], *(m["metric"] for m in found["also"])] == ["cpu", "latency_p99", "throughput"]
    assert code == 1 and found["also"][1]["verdict"]["kind"] == "worse"
    page = tmp_path / "c.json"
    page.write_text(json.dumps(compare(capsys, a, b, "--metric", "cpu,p99", "--limit", "rate > 2GiB/s")[1]))
    assert typed(capsys, "report", page, a, "-o", tmp_path / "c.html", "--no-charts")[0] == 0
    text = (tmp_path / "c.html").read_text()
    assert "p99 latency, point by point" in text and "rate &gt; 2GiB/s" in text
    # 95 % for all points and figures together.
    alone = compare(capsys, a, b)[1]["points"][0]["ratio"]["ci95"]
    shared = found["also"][1]["points"][0]["ratio"]["ci95"]
    assert shared[0] < alone[0] and shared[1] > alone[1]
    assert compare(capsys, a, a, "--tolerance", "5%")[0] == 0
    assert compare(capsys, a, a, "--tolerance", "5%", "--limit", "rate > 2GiB/s")[0] == 1  # of depth 1


@pytest.mark.promise("SWP-31")
def test_two_jobs_are_a_gate_where_a_tolerance_is_given(machine: FakeMachine, capsys: Any) -> None:
    jobs = ["--a", "path=mapped", "--b", "path=bounce", "/data/x"]
    assert compare(capsys, *jobs)[0] == 0
    code, found = compare(capsys, *jobs, "--tolerance", "2%", "--metric", "rate,p99")
    assert code == 1 and found["verdict"]["gate"] == "worse" and found["also"][0]["metric"] == "latency_p99"
    code, out, _ = typed(capsys, "compare", *jobs, "--tolerance", "20%")
    assert code == 0 and "gate: B is not worse than A by more than 20 % in throughput" in out
    code, found = compare(capsys, *jobs, "--limit", "rate > 1000GiB/s")
    assert code == 1 and found["limits"][0]["points"][0]["verdict"] == "broken"
    code, _, err = typed(capsys, "compare", *jobs, "--limit", "power < 900W")
    assert code == 3 and "--limit 'power < 900W'" in err


@pytest.mark.promise("SWP-31")
def test_a_verdict_points_the_way_of_its_table(machine: FakeMachine, capsys: Any) -> None:
    _, found = compare(capsys, "--a", "path=bounce", "--b", "path=mapped", "/data/x")
    low, high = found["ratios"]["throughput"]["ci95"]
    assert high < 1 and found["verdict"]["text"].startswith(f"A is {low:.2f}")
    assert span(1 / 1.05, 1 / 1.004) == "0.952–0.996" and span(1 / 1.0009, 1 / 1.0004) == "0.9991–0.9996"
    assert span(0.00311, 0.00329) == "0.0031–0.0033"


@pytest.mark.promise("SWP-31")
def test_build_servers_get_the_cases(capsys: Any, tmp_path: Path) -> None:
    from xml.etree import ElementTree

    a = write_runs(tmp_path / "a.jsonl", {1: noisy(1, 4, 1, 0.3), 8: noisy(4, 5, 2)})
    b = write_runs(tmp_path / "b.jsonl", {1: noisy(0.9, 4, 3, 0.3), 8: noisy(3.6, 5, 4)})
    xml = tmp_path / "gate.xml"
    asked = ["compare", a, b, "--limit", "rate > 0.1GiB/s", "--junit", xml, "--github"]
    code, _, err = typed(capsys, *asked)
    root = ElementTree.fromstring(xml.read_text())
    assert code == 1 and dict(root.attrib).items() >= {"tests": "4", "failures": "1", "skipped": "1"}.items()
    [bad] = [case for case in root.iter("testcase") if case.find("failure") is not None]
    assert bad.get("classname") == "forebay.compare.throughput" and bad.get("name") == "depth=8"
    assert "A ÷ B 1.1" in (bad.find("failure").get("message") or "")  # type: ignore[union-attr]
    assert "::error title=forebay compare%3A depth=8::throughput: A 4" in err
    assert "::warning title=forebay compare%3A depth=1::" in err and "2 of 4 cases passed" in err
    # A later build replaces it, and nothing else is replaced.
    assert typed(capsys, *asked, "--strict")[0] == 1
    assert ElementTree.fromstring(xml.read_text()).get("failures") == "2"
    other = tmp_path / "pom.xml"
    other.write_text("<project/>")
    code, _, err = typed(capsys, "compare", a, b, "--junit", other)
    assert code == 2 and "isn't overwritten" in err and other.read_text() == "<project/>"
