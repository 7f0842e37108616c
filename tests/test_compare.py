"""`forebay compare`: the order of the runs, the verdicts, what an interruption keeps, and the gate over files."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest
from fake_machine import FakeMachine, record_of, typed
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
    assert code == 1 and "too noisy" in out and "--until-ci" in out


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
        (["--a", "", "--b", "", "/x", "--tolerance", "5%"], "--tolerance"),
        (["one.json"], "two files"),
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


def other_build(tmp_path: Path, body: str) -> Path:
    """A 'python' that is asked to run `-m forebay.cli bench … --json`."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    script.chmod(0o755)
    return script


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


# Commands ----------------------------------------------------------------------------------------------


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Words of the runs, each of which trains at a rate that its supply decides, within half a per cent."""
    ran: list[list[str]] = []
    source = random.Random(2)
    seeded = SimpleNamespace(SystemRandom=lambda: random.Random(1), Random=random.Random)
    monkeypatch.setattr("forebay.compare.jobs.random", seeded)

    def run(python: str, words: list[str], whole: bool = False) -> dict[str, Any]:
        ran.append(list(words))
        flags = dict(zip(words, words[1:], strict=False))
        rate = 1e6 * float(flags.get("--supply", 1)) * math.exp(source.gauss(0, 0.005))
        record = record_of({"sources": ["/d/train.bin"]}, 1.0, 1.0, 0.1, len(ran))
        record["result"] |= {"ios": 0} if whole else {}
        marks = [{"samples": 512, "hash": "a"}, {"samples": 1024, "hash": flags.get("--seed", "0")}]
        cost = {"user": 0.5, "system": 0.25}
        record["train"] = {"samples_per_s": rate, "seconds_to_target": None, "cpu_s_per_gib": cost, "batch_hash_at": marks}
        record["missing"] = {"train.seconds_to_target": "the run ended"}
        return record

    monkeypatch.setattr("forebay.compare.typed.run_elsewhere", run)
    return ran


@pytest.mark.promise("TRN-42")
def test_a_training_command_is_compared_by_the_figures_of_its_part(trainings: list[list[str]], capsys: Any) -> None:
    asked = ["--a", "supply=0.02", "--b", "supply=0.04", "--", "train", "toy", "--seconds", "3", "--seed", "7"]
    code, out, _ = typed(capsys, "compare", "--json", *asked)
    found = json.loads(out)
    low, high = found["ratios"]["train.samples_per_s"]["ci95"]
    assert code == 0 and low < 0.5 < high < 0.51 and found["metric"] == "train.samples_per_s"
    assert found["verdict"]["text"].startswith("B trains at 1.9") or found["verdict"]["text"].startswith("B trains at 2.0")
    assert found["a"]["missing"]["train.seconds_to_target"] == "the run ended" and found["same_batches"] is True
    assert found["a"]["medians"]["train.cpu"] == 0.75 and found["a"]["job"]["command"][-2:] == ["--supply", "0.02"]
    # One brief run of each that doesn't count, then as many of A as of B, each whole.
    brief, whole = trainings[:2], trainings[2:]
    tail = ["--seconds", "1", "--peak-seconds", "0.2", "--json", "--quiet"]
    assert all(words[-6:] == tail for words in brief) and len(whole) == 2 * len(found["pairs"])
    assert whole[0][:-4] == ["train", "toy", "--seconds", "3", "--seed", "7"] and "--peak-seconds" not in whole[0]
    assert sum("0.02" in words for words in whole) == len(found["pairs"])
    page = typed(capsys, "compare", "--a", "seed=1", "--b", "seed=2", "--metric", "cpu", "--", "train", "toy")[1]
    assert "different samples, or in another order" in page and "no difference above" in page and "samples/s" in page


@pytest.mark.promise("TRN-42")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--a", "supplx=1", "--", "train", "toy"], "forebay train toy has no --supplx"),
        (["--a", "supply", "--", "train", "toy"], "has no value"),
        (["--a", "out=x", "--", "train", "toy"], "has no --out"),
        (["--a", "seed=1", "--", "train"], "names no model"),
        (["--a", "seed=1", "--", "train", "datagen", "dlrm"], "datagen measures nothing that is compared"),
        (["--a", "seed=1", "--", "train", "toy", "--json"], "--json: each run's record goes to compare"),
        (["--a", "seed=1", "--depth", "3", "--", "train", "toy"], "--depth: is of a job"),
        (["--a", "seed=1", "x", "--", "train", "toy"], "x: is of a job"),
        (["--a", "seed=1", "--metrics", "0", "--", "train", "toy"], "processes of their own"),
        (["--a", "seed=1", "--metric", "iops", "--", "train", "toy"], "is not one of train.samples_per_s"),
        (["--a", "path=host", "--metric", "train.cpu", "/data/x"], "is not one of throughput"),
    ],
)
def test_what_of_a_command_cannot_be_compared_is_refused(
    trainings: list[list[str]], capsys: Any, arguments: list[str], said: str
) -> None:
    code, _, err = typed(capsys, "compare", *arguments)
    assert code == 2 and said in err and "try: " in err and not trainings


@pytest.mark.promise("TRN-42")
def test_a_command_that_fails_says_so_in_its_own_words(capsys: Any, tmp_path: Path) -> None:
    python = other_build(tmp_path, "import sys; sys.exit('forebay: --supply 9: is too much\\n  try: --supply 1')")
    asked = ["--a", "supply=9", "--b", "supply=1", "--a-python", python, "--", "train", "toy", "--dir", tmp_path]
    code, _, err = typed(capsys, "compare", *asked)
    assert code == 4 and "A (supply=9, by " in err and ": forebay train toy: --supply 9: is too much\n  try: --supply 1" in err


@pytest.mark.promise("TRN-42")
def test_two_files_of_training_runs_are_a_gate_by_its_figures(tmp_path: Path, trainings: list[list[str]], capsys: Any) -> None:
    from forebay.compare import typed as side

    for name, supply in (("a", "0.04"), ("b", "0.03")):
        made = [side.run_elsewhere("", ["train", "toy", "--supply", supply]) for _ in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in made))
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    code, out, _ = typed(capsys, "compare", *files, "--metric", "train.samples_per_s")
    assert code == 1 and "B is worse than A by more than 2 % in training rate" in out


@pytest.mark.long
@pytest.mark.promise("TRN-42")
def test_the_toy_is_compared_at_two_supplies_as_it_is_typed(tmp_path: Path) -> None:
    few = ["--rows", "8192", "--samples", "4096", "--peak-seconds", "0.1", "--target-auc", "none"]
    asked = ["--a", "supply=0.01", "--b", "supply=0.02", "--pairs-max", "3", "-o", tmp_path / "c.json"]
    done = processes.run([*processes.FOREBAY, "compare", *asked, "--", "train", "toy", *few], cwd=tmp_path)
    found = json.loads((tmp_path / "c.json").read_text())
    assert done.returncode in (0, 1), done.stderr
    assert len(found["pairs"]) == 3 and found["same_batches"] is True and found["ratios"]["train.samples_per_s"]
    assert {r["train"]["supply"]["asked"] for side in "ab" for r in found["runs"][side]} == {"0.01", "0.02"}


# Verdicts ----------------------------------------------------------------------------------------------


@pytest.mark.promise("SWP-3")
@pytest.mark.parametrize(
    ("low", "high", "kind", "text"),
    [
        (1.072, 1.108, "differs", "A is 1.07–1.11 × B"),
        (1 / 1.11, 1 / 1.07, "differs", "B is 1.07–1.11 × A"),
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
    assert "12 %" in said and "1.4 cores" in said and "throttled" in said


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
        alarms += compare_files(str(a), str(b), RATE, 0.0)["verdict"]["kind"] == "worse"
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
            line["record"].setdefault("environment", {})["drives"] = [{"name": "nvme0n1", "firmware": firmware}]
        Path(path).write_text("\n".join(json.dumps(line) for line in lines))
    assert {"what": "firmware", "a": ["1.0"], "b": ["1.1"]} in compare(capsys, a, b)[1]["differs"]
    assert typed(capsys, "compare", a, b)[0] == 0
