"""`forebay emulate search`: that it finds the greatest number that passes, where the truth is known."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from fake_storage import FakeStorage
from forebay.emulate import datasize
from forebay.emulate.greatest import MARGIN, WARM_UP, Greatest, Trial, curve
from forebay.emulate.workloads import Training, builtin
from forebay.errors import RequestError, RunError
from hypothesis import given
from hypothesis import strategies as st
from properties import examples


def builtin_workload(name: str, accelerator: str) -> Training:
    return next(w for w in builtin()[name] if isinstance(w, Training) and w.accelerator == accelerator)


def workload_mib_s(name: str, accelerator: str) -> float:
    return builtin_workload(name, accelerator).mib_s


UNET = ("--workload", "unet3d", "--accelerator", "h100", "--steps", "50", "--epochs", "1")
# GiB/s that an H100 of 3D U-Net takes at 90 %.
NEEDED = 0.9 * 3029.92 / 1024


class Truth:
    """`capacity` accelerators are kept busy wholly; more of them share it. `noise`: points, twice that for probes."""

    def __init__(self, capacity: float, needed: float, noise: float = 0.0, seed: int = 0, too_few: int = 1 << 30) -> None:
        self.capacity, self.needed, self.noise, self.too_few = capacity, needed, noise, too_few
        self.random = random.Random(seed)
        self.played: list[Trial] = []

    def run(self, n: int, full: bool, turn: int) -> Trial:
        assert (n, full, turn) not in {(t.accelerators, t.full, t.turn) for t in self.played}, "a run was made twice"
        au = min(99.5, 100 * self.capacity / n) + self.random.gauss(0, self.noise * (1 if full else 2))
        trial = Trial(n, full, turn, au, au >= self.needed) if n < self.too_few else Trial(n, full, turn, None, False)
        self.played.append(trial)
        return trial


@pytest.mark.promise("EMU-7")
@examples(400)
@given(
    capacity=st.floats(0.05, 3000),
    needed=st.sampled_from([90.0, 85.0, 70.0]),
    start=st.integers(1, 64),
    most=st.sampled_from([1, 5, 64, 1 << 20]),
)
def test_without_noise_the_answer_is_the_arithmetic(capacity: float, needed: float, start: int, most: int) -> None:
    truth = Truth(capacity, needed)
    found = Greatest(truth.run, needed, most)
    number = found.search(start)
    assert number == min(most, int(100 * capacity / needed))
    assert found.confirmed and all(t.accelerators <= most for t in truth.played)
    passing = [t for t in truth.played if t.full and t.accelerators == number]
    assert not number or len(passing) == 5 and all(t.passes for t in passing)
    if number < most:
        assert any(t.full and not t.passes and t.accelerators == number + 1 for t in truth.played)
    assert len([t for t in truth.played if not t.full]) <= 24


@pytest.mark.promise("EMU-7")
@examples(300)
@given(capacity=st.floats(0.3, 60), noise=st.floats(0.1, 3), seed=st.integers(0, 1 << 30))
def test_with_noise_it_ends_and_every_full_run_of_the_answer_passed(capacity: float, noise: float, seed: int) -> None:
    truth = Truth(capacity, 90.0, noise, seed)
    found = Greatest(truth.run, 90.0, 1 << 20)
    number = found.search()
    mine = [t for t in truth.played if t.full and t.accelerators == number]
    assert not number or len(mine) == 5 and all(t.passes for t in mine)
    true = int(capacity / 0.9)
    assert abs(number - true) <= 2 + 0.06 * noise * true, (number, true)
    assert len(truth.played) < 250


def test_a_probe_near_the_threshold_is_decided_by_a_full_run() -> None:
    def run(n: int, full: bool, turn: int) -> Trial:
        au = 95.0 if n < 4 else (89.5 if full else 90.0 + 0.9 * MARGIN) if n == 4 else 40.0
        return Trial(n, full, turn, au, au >= 90)

    found = Greatest(run, 90.0, 100)
    assert found.search() == 3 and found.confirmed
    assert [t.full for t in found.trials if t.accelerators == 4] == [False, True]


def test_a_full_run_that_passes_overrules_the_probe_that_failed() -> None:
    def run(n: int, full: bool, turn: int) -> Trial:
        au = 95.0 if n <= 2 or (n == 3 and full) else 50.0
        return Trial(n, full, turn, au, au >= 90)

    assert Greatest(run, 90.0, 100).search() == 3


@pytest.mark.promise("EMU-7")
@examples(200)
@given(capacity=st.floats(0.05, 300), noise=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 1 << 30))
def test_a_run_that_warms_up_comes_right_before_those_that_count(capacity: float, noise: float, seed: int) -> None:
    truth = Truth(capacity, 90.0, noise, seed)
    found = Greatest(truth.run, 90.0, 1 << 20, warm_up=True)
    number = found.search()
    runs = [(t.accelerators, t.full, t.turn) for t in truth.played]
    assert found.confirmed and all(run[2] != WARM_UP or run[1] for run in runs)
    if number:
        begin = runs.index((number, True, WARM_UP))
        assert runs[begin + 1 : begin + 6] == [(number, True, turn) for turn in range(1, 6)], runs
        assert all(t.passes for t in truth.played[begin + 1 : begin + 6])


@pytest.mark.promise("EMU-7")
def test_a_run_that_warms_up_decides_nothing() -> None:
    def run(n: int, full: bool, turn: int) -> Trial:
        au = 10.0 if turn == WARM_UP else 95.0 if n <= 4 else 50.0
        return Trial(n, full, turn, au, au >= 90)

    found = Greatest(run, 90.0, 100, warm_up=True)
    assert found.search() == 4 and found.confirmed and found.first_failing == 5
    assert {p["accelerators"]: p["au_pct"] for p in curve(found.trials)}[4] == 95.0


@pytest.mark.promise("EMU-7")
def test_one_failed_confirmation_of_five_is_a_failure() -> None:
    def run(n: int, full: bool, turn: int) -> Trial:
        au = 89.0 if n == 7 and full and turn == 3 else 95.0 if n <= 7 else 50.0
        return Trial(n, full, turn, au, au >= 90)

    assert Greatest(run, 90.0, 100).search() == 6


def test_too_few_steps_to_tell_are_no_verdict_on_the_storage() -> None:
    truth = Truth(1e6, 90.0, too_few=20)
    found = Greatest(truth.run, 90.0, 1 << 20)
    assert found.search() == 19 and found.too_few_steps(20) and found.confirmed


def test_the_curve_is_the_mean_of_full_runs_else_the_probe() -> None:
    trials = [Trial(2, False, 0, 99.0, True), Trial(1, False, 0, 99.5, True)]
    trials += [Trial(2, True, 0, 91.0, True), Trial(2, True, 1, 93.0, True), Trial(3, False, 0, None, False)]
    assert curve(trials) == [
        {"accelerators": 1, "au_pct": 99.5, "passes": True},
        {"accelerators": 2, "au_pct": 92.0, "passes": True},
        {"accelerators": 3, "au_pct": None, "passes": False},
    ]


# The verb -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of a thousand files, which no test changes."""
    data = tmp_path_factory.mktemp("thousand")
    (data / "train").mkdir()
    for n in range(1000):
        (data / "train" / f"img_{n:04d}.npz").touch()
    return data


@pytest.fixture
def folder(tmp_path: Path, thousand: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return thousand


def search(capsys: Any, *arguments: Any) -> tuple[int, str, str]:
    return typed(capsys, "emulate", "search", *arguments)


@pytest.mark.promise("EMU-7")
def test_the_number_is_found_confirmed_and_what_limits_is_named(
    capsys: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeStorage(5.6 * NEEDED, noise=0.05).install(monkeypatch)
    code, out, err = search(capsys, *UNET, "--data", folder, "--results", tmp_path / "r", "--json")
    document = json.loads(out)
    found, training = document["search"], document["training"]
    assert code == 0 and found["accelerators"] == 5 == training["accelerators"] and found["confirmed"]
    assert found["limit"]["id"] == "storage" and found["limit"]["accelerators"] == 6
    full = [r for r in found["runs"] if r["full"] and r["accelerators"] == 5]
    assert len(full) == 5 and found["au_pct"] == pytest.approx(sum(r["au_pct"] for r in full) / 5)
    assert sorted(r["au_pct"] for r in full)[2] == training["au_pct"], "the record is the median's"
    numbers = [p["accelerators"] for p in training["curve"]]
    assert numbers == sorted(set(numbers)) and {5, 6} <= set(numbers)
    assert json.loads((tmp_path / "r" / "result.json").read_text()) == document
    assert "5 × H100 of unet3d pass by v1.0" in err and "with 6: the storage" in err and "MLPerf-style, unverified" in err


def test_where_not_even_one_passes_the_answer_is_0_and_the_code_1(
    capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeStorage(0.5 * NEEDED).install(monkeypatch)
    code, out, err = search(capsys, *UNET, "--data", folder, "--json")
    assert code == 1 and json.loads(out)["search"]["accelerators"] == 0 and "not even one H100" in err


def test_the_client_is_named_where_it_is_what_limits(
    capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeStorage(100.0, client_gib_s=3.5 * NEEDED).install(monkeypatch)
    code, out, _ = search(capsys, *UNET, "--data", folder, "--json")
    found = json.loads(out)["search"]
    assert code == 0 and found["accelerators"] == 3 and found["limit"]["id"] == "client"
    assert "both cores are busy" in found["limit"]["text"]


def test_bounds_are_kept_and_named(capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeStorage(1e6).install(monkeypatch)
    code, out, _ = search(capsys, *UNET, "--data", folder, "--json")
    found = json.loads(out)["search"]
    # 1,000 samples are three steps of 47 accelerators with batches of 7.
    assert code == 0 and found["accelerators"] == 47 and found["limit"]["id"] == "data"
    assert max(s["accelerators"] for s in fake.specs) == 47
    code, out, _ = search(capsys, *UNET, "--data", folder, "--max", 10, "--results", "other", "--json")
    found = json.loads(out)["search"]
    assert code == 0 and found["accelerators"] == 10 and found["limit"]["id"] == "max"


def test_a_submission_needs_500_steps_with_the_number_that_is_found(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.emulate.data.memory_of_this_host", lambda: 1 << 30)
    monkeypatch.setattr("forebay.emulate.data.found_files", lambda request: 7 * 500 * 6)
    fake = FakeStorage(1e6).install(monkeypatch)
    flags = ("--workload", "unet3d", "--accelerator", "h100", "--data", tmp_path, "--closed", "--results", tmp_path / "r")
    code, out, _ = search(capsys, *flags, "--json")
    assert code == 0 and json.loads(out)["search"]["accelerators"] == 6 and all(s["closed"] for s in fake.specs)
    assert "fewer than 500 steps" in json.loads(out)["search"]["limit"]["text"]


@pytest.mark.promise("EMU-7")
@pytest.mark.parametrize(
    ("rules", "accelerator", "flags", "warms"),
    [("v3.0", "b200", (), True), ("v2.0", "h100", (), False), ("v2.0", "h100", ("--warmup-run",), True)],
)
def test_a_submissions_search_warms_up_as_its_rules_say(
    rules: str,
    accelerator: str,
    flags: tuple[str, ...],
    warms: bool,
    capsys: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.emulate.data.memory_of_this_host", lambda: 1 << 30)
    monkeypatch.setattr("forebay.emulate.data.found_files", lambda request: 7 * 500 * 2)
    fake = FakeStorage(1e6).install(monkeypatch)
    words = ("--workload", "unet3d", "--accelerator", accelerator, "--rules", rules, "--data", tmp_path, "--open", *flags)
    code, out, err = search(capsys, *words, "--results", tmp_path / "r", "--json")
    found = json.loads(out)["search"]
    assert code == 0 and found["accelerators"] == 2 and found["confirmed"]
    full = [r for r in found["runs"] if r["full"]]
    assert [r["warm_up"] for r in full] == [True] * warms + [False] * 5
    assert len({s["seed"] for s in fake.specs[-6:]}) == 6, "each has a seed of its own"
    assert "on average over 5 full runs" in err and ("warm-up" in err) == warms
    # It is kept and found like the others, and belongs to the search.
    before = len(fake.specs)
    assert search(capsys, *words, "--results", tmp_path / "r")[0] == 0 and len(fake.specs) == before
    code, _, err = search(capsys, *words, "--confirm", "5", "--results", tmp_path / "r", *(() if warms else ("--warmup-run",)))
    assert (code == 0) == warms and (warms or "differs in warm_up" in err)


@pytest.mark.promise("EMU-7", "EMU-10")
def test_a_closed_search_of_v3_reads_as_many_files_as_each_number_may_and_its_answer_is_checked(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = 50 << 30
    monkeypatch.setattr("forebay.emulate.data.memory_of_this_host", lambda: memory)
    monkeypatch.setattr("forebay.emulate.data.found_files", lambda request: 7 * 500 * 6)
    fake = FakeStorage(3.5 * 0.9 * workload_mib_s("unet3d", "b200") / 1024).install(monkeypatch)
    words = ("--workload", "unet3d", "--accelerator", "b200", "--rules", "v3.0", "--data", tmp_path, "--results", tmp_path / "r")
    code, out, err = search(capsys, *words, "--closed", "--json")
    assert code == 0 and json.loads(out)["search"]["accelerators"] == 3, err
    for spec in fake.specs:
        right = datasize.size(builtin_workload("unet3d", "b200"), "v3.0", spec["accelerators"], memory)
        assert spec["workload"]["files"] == right.files
    assert len({spec["workload"]["files"] for spec in fake.specs}) > 1
    code, out, _ = typed(capsys, "emulate", "check", tmp_path / "r", "--json")
    document = json.loads(out)
    verdicts = {v["id"]: v["ok"] for v in document["verdicts"]}
    for rule in ("readable", "runs", "same", "au", "seed", "epochs", "workload", "parameters", "spread"):
        assert verdicts[rule], document["verdicts"]
    places = [run["place"] for run in document["runs"]]
    assert places == ["search.jsonl, warm-up", *(f"search.jsonl, full {n}" for n in range(1, 6))]
    assert {run["accelerators"] for run in document["runs"]} == {3}
    # In the open division, and by other rules, all files are read.
    before = len(fake.specs)
    assert search(capsys, *words[:-1], tmp_path / "open", "--open")[0] == 0
    assert {spec["workload"]["files"] for spec in fake.specs[before:]} == {0}
    assert search(capsys, *words, "--open")[0] == 2, "it is another search"


@pytest.mark.promise("EMU-10")
def test_a_search_whose_answer_no_full_run_confirms_is_not_judged_by_others(
    capsys: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeStorage(5.6 * NEEDED).install(monkeypatch)
    kept = tmp_path / "r"
    assert search(capsys, *UNET, "--data", folder, "--results", kept, "--confirm", "0")[0] == 0
    code, out, _ = typed(capsys, "emulate", "check", kept)
    assert code == 1 and "NO  readable" in out and "5 accelerators pass by probes alone" in out
    code, _, err = typed(capsys, "emulate", "export", kept, tmp_path / "out")
    assert code == 2 and "no confirmed number" in err and not (tmp_path / "out").exists()
    # A line that is lost is named; the runs that are left are judged.
    assert search(capsys, *UNET, "--data", folder, "--results", kept)[0] == 0
    lines = (kept / "search.jsonl").read_text().splitlines()
    last = max(n for n, line in enumerate(lines) if '"full-5"' in line)
    (kept / "search.jsonl").write_text("\n".join([*lines[:last], lines[last][:200], *lines[last + 1 :]]) + "\n")
    code, out, _ = typed(capsys, "emulate", "check", kept, "--json")
    document = json.loads(out)
    assert code == 1 and len(document["runs"]) == 4 and f"line {last + 1} is not JSON" in document["damaged"][0]["why"]


def test_a_source_that_only_the_engine_can_count_ends_the_search_where_it_has_too_little(
    capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeStorage(1e6).install(monkeypatch)
    run = fake.run

    def refuse(spec: dict[str, Any], **more: Any) -> dict[str, Any]:
        if spec["accelerators"] > 12:
            raise RequestError("--accelerators", "too few samples for a step", "fewer")
        return run(spec, **more)

    monkeypatch.setattr("forebay.emulate.engine.run", refuse)
    flags = ("--data", "model:d7-ps1010", "--json")
    code, out, err = search(capsys, *UNET, *flags)
    found = json.loads(out)["search"]
    assert code == 0 and found["accelerators"] == 12 and found["confirmed"] and found["limit"]["id"] == "data"
    assert "too few samples for a step" in found["limit"]["text"] and "can't run" in err
    monkeypatch.setattr("forebay.emulate.engine.run", lambda *_, **__: refuse({"accelerators": 99}))
    assert search(capsys, *UNET, *flags, "--results", "other")[0] == 2


@pytest.mark.promise("EMU-8")
def test_after_ctrl_c_the_same_command_goes_on(
    capsys: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted again and again, at each run in turn, it plays no run twice but those that were cut off."""
    flags = (*UNET, "--data", folder, "--results", tmp_path / "r", "--json")
    fake = FakeStorage(5.6 * NEEDED).install(monkeypatch)
    fake.interrupt_at = 3
    code, out, err = search(capsys, *flags)
    assert code == 130 and "the same command continues" in err and not json.loads(out)["search"]["finished"]
    done = len(fake.specs) - 1
    fake.interrupt_at = None
    code, out, err = search(capsys, *flags)
    found = json.loads(out)["search"]
    assert code == 0 and found["accelerators"] == 5 and found["confirmed"] and found["found_before"] == done
    whole = len(found["runs"])
    assert len(fake.specs) == whole + 1, "one was cut off"
    code, out, _ = search(capsys, *flags)
    assert code == 0 and json.loads(out)["search"]["found_before"] == whole and len(fake.specs) == whole + 1


@pytest.mark.promise("EMU-8")
def test_a_run_that_breaks_ends_the_search_and_what_was_found_stays(
    capsys: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeStorage(5.6 * NEEDED).install(monkeypatch)
    fake.fail_at[2] = RunError("img_0001.npz", "is gone", "forebay emulate datagen")
    code, out, err = search(capsys, *UNET, "--data", folder, "--results", tmp_path / "r", "--json")
    assert code == 4 and "is gone" in err and json.loads(out)["search"]["finished"] is False
    fake.fail_at.clear()
    code, out, _ = search(capsys, *UNET, "--data", folder, "--results", tmp_path / "r", "--json")
    assert code == 0 and json.loads(out)["search"]["found_before"] == 2


@pytest.mark.promise("EMU-8")
def test_another_search_in_the_same_folder_is_refused(
    capsys: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeStorage(2.6 * NEEDED).install(monkeypatch)
    flags = ("--data", folder, "--results", tmp_path / "r")
    assert search(capsys, *UNET, *flags)[0] == 0
    code, _, err = search(capsys, *UNET, *flags, "--level", "bytes")
    assert code == 2 and "differs in level" in err and "--restart" in err
    before = len(fake.specs)
    code, _, err = search(capsys, *UNET, *flags, "--level", "bytes", "--restart")
    assert code == 0 and len(fake.specs) > before and (tmp_path / "r" / "search.jsonl.1").is_file()


@pytest.mark.promise("EMU-8")
def test_a_damaged_line_is_put_aside_and_its_run_is_made_again(
    capsys: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeStorage(2.6 * NEEDED).install(monkeypatch)
    flags = (*UNET, "--data", folder, "--results", tmp_path / "r")
    assert search(capsys, *flags)[0] == 0
    file, before = tmp_path / "r" / "search.jsonl", len(fake.specs)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], lines[2][:100] + b"\n", *lines[3:]]))
    code, _, err = search(capsys, *flags)
    assert code == 0 and "damaged lines" in err and len(fake.specs) == before + 1


@pytest.mark.promise("EMU-8")
def test_it_begins_with_the_number_that_is_given(capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeStorage(5.6 * NEEDED).install(monkeypatch)
    code, out, _ = search(capsys, *UNET, "--data", folder, "--accelerators", 8, "--json")
    assert code == 0 and fake.specs[0]["accelerators"] == 8 and json.loads(out)["search"]["accelerators"] == 5


def test_probes_are_short_and_full_runs_as_asked(capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeStorage(1.6 * NEEDED).install(monkeypatch)
    flags = ("--workload", "unet3d", "--accelerator", "h100", "--data", folder, "--probe", "10s", "--confirm", 2)
    assert search(capsys, *flags)[0] == 0
    shapes = {(s["epochs"], s.get("steps_max")) for s in fake.specs}
    assert shapes == {(1, 31), (5, None)}, "10 s of 0.323 s each, and the workload's five epochs"


@pytest.mark.promise("EMU-8")
@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (["--max", "0"], "--max 0"),
        (["--accelerators", "9", "--max", "4"], "starts above its maximum"),
        (["--probe", "0"], "--probe 0"),
        (["--probe", "soon"], "--probe soon"),
        (["--confirm", "-1"], "--confirm -1"),
        (["--closed", "--confirm", "3"], "five runs [runs]"),
        (["--accelerators", "0"], "--accelerators 0"),
        (["--files", "6"], "fewer than 3 batches"),
    ],
)
def test_nonsense_is_refused(
    flags: list[str], reported: str, capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeStorage(10.0).install(monkeypatch)
    code, _, err = search(capsys, *UNET, "--data", folder, *flags)
    assert code == 2 and reported in err and not fake.specs


@pytest.mark.promise("EMU-7")
def test_v1_has_no_run_that_warms_up(capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeStorage(10.0).install(monkeypatch)
    words = ("--workload", "unet3d", "--accelerator", "h100", "--data", folder, "--closed", "--warmup-run")
    code, _, err = search(capsys, *words)
    assert code == 2 and "a run that warms caches [runs]" in err and "try: without --warmup-run" in err and not fake.specs


def test_an_empty_folder_is_refused(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    code, _, err = search(capsys, *UNET, "--data", tmp_path)
    assert code == 2 and "holds no .npz files" in err and "datagen" in err
