"""`forebay sweep inference-drives`: models over drives in memory and, as a control, not; by arithmetic, and once by the toy."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_machine import typed
from forebay.infer import command, data, rules, scaling, search, toy
from forebay.sweep import inference, models
from forebay.train import supply
from forebay.units import GIB

PEAK, BYTES, NOISE = 11_500.0, 150_528, 0.0003
SMALL = """
title = "one kind of drive, twice"
drives = [1, 2]
rounds = 1
[[system]]
name = "MINE"
gpus = 8
drives = ["D7-PS1010"]
"""


class Ideal:
    """A model at its peak in memory, and at the lesser of that and its supply from storage."""

    runs: list[tuple[str, str, float | None]] = []
    template: dict[str, Any] = {}
    peak_of, fail_at, stop_at, part_at, slow_memory = PEAK, 0, 0, 0, False

    def __init__(self, asked: Any, model: str) -> None:
        self.asked, self.model, self.device = asked, model, "cuda:0"
        self.about = SimpleNamespace(row_bytes=BYTES, weights_bytes=GIB)
        self._draw = random.Random(5)

    begin, _own = inference.Subject.begin, inference.Subject._own

    def run(
        self, mode: str, scenario: str, of: supply.Supply, seconds: float, target: float | None = None,
        peak: float | None = None, expected: float | None = None, effort: search.Effort | None = None, trials: Path | None = None,
    ) -> Any:  # fmt: skip
        from forebay.errors import RunError

        Ideal.runs.append((mode, f"{scenario} highest" if effort else scenario, of.gib_s))
        if len(Ideal.runs) == self.fail_at:
            raise RunError("the system under test", "broke", "another run")
        if len(Ideal.runs) == self.stop_at:
            raise KeyboardInterrupt
        most = self.peak_of * self._draw.uniform(1 - NOISE, 1 + NOISE)
        if of.gib_s is not None and (mode == scaling.COLD or self.slow_memory):
            most = min(most, of.gib_s * GIB / BYTES)
        rate = min(most, target or most)
        part = {
            "model": self.model, "mode": mode, "scenario": scenario, "device": self.device, "queries_per_s": rate,
            "samples_per_s": rate, "expected_per_s": target or rate, "latency_ms": {"p99": 4.0}, "seconds": seconds, "batch": 64,
            "load_s": 1024 * BYTES / GIB / of.gib_s if of.gib_s and mode == scaling.RAM else None,
            "timed_storage_bytes": 0 if mode == scaling.RAM else 5,
        }  # fmt: skip
        record: dict[str, Any] = json.loads(json.dumps(self.template))
        record["id"] = None
        record["infer"].update(part)
        if effort:
            # Server passes up to 0.9 of what it answers, and never where that is less than the hundredth of its peak.
            low = 0.9 * rate
            tried = [{"queries_per_s": low * step, "passed": step <= 1, "p99_ms": 4.0} for step in (1.02, 1.0, 1.25, 1.05)]
            record["infer"].update(expected_per_s=low, search=tried, valid=rate > self.peak_of / 100)
        return SimpleNamespace(interrupted=len(Ideal.runs) == self.part_at), record

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of a real cold start."""
    folder = tmp_path_factory.mktemp("inference") / "toy"
    about = data.generate(folder, data.About("toy", 0, 8, data.row_bytes("toy"), 0), toy.weights(0))
    run = command.Run(command.Request("toy", "coldstart", "Offline", folder, about, supply.Supply(None)))
    assert run.measure() is None
    record = run.record()
    run.close()
    return record


@pytest.fixture
def ideal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: dict[str, Any]) -> type[Ideal]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Ideal, "template", template)
    monkeypatch.setattr(inference, "Subject", Ideal)
    monkeypatch.setattr(rules, "loadgen", lambda: None)
    for name in ("fail_at", "stop_at", "part_at"):
        monkeypatch.setattr(Ideal, name, 0)
    monkeypatch.setattr(Ideal, "runs", [])
    return Ideal


def swept(capsys: Any, *words: Any, expected: int = 0) -> dict[str, Any]:
    code, out, err = typed(capsys, "sweep", "inference-drives", "models", *words, "-o", "out.jsonl", "--json")
    assert code == expected, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.promise("INF-15")
def test_memory_is_flat_over_drives_where_the_control_isnt(ideal: type[Ideal], capsys: Any) -> None:
    found = swept(capsys, "--models", "toy", "--rounds", "2", "--drives-of", "d7-ps1010,d3-s4520")
    # Two kinds of drives, four numbers of them, Offline in both modes, Server's highest too, Server's other in one; two rounds.
    assert len(found["rows"]) == 40 and found["finished"] == 80 and not found["failed"]
    assert all(row["rounds"] == 2 for row in found["rows"])
    assert len(found["flat"]) == 4 and all(row["holds"] and row["bound"] == 0.01 for row in found["flat"])
    assert len(found["control"]) == 2 and all(row["shows"] and row["ratio"] > 10 for row in found["control"])
    (said,) = found["advice"]
    assert said["text"].startswith("drives: no effect on queries; start-up: ") and "spend on GPUs" in said["text"]
    slow = next(r for r in found["rows"] if (r["mode"], r["drive"], r["drives"]) == ("ram", "D3-S4520", 1))
    assert slow["load_s"] == pytest.approx(1024 * BYTES / GIB / slow["supply_gib_s"])
    # Random order, another one in each round; each point once in each.
    order = [run for run in ideal.runs[2:]]
    assert sorted(map(str, order[:40])) == sorted(map(str, order[40:])) and order[:40] != order[40:]
    code, _, err = typed(capsys, "report", "out.jsonl", "-o", "page.html")
    page = Path("page.html").read_text()
    assert code == 0 and "within their bound in 4 of 4 cases" in page and "no effect on queries" in page, err
    # Server's highest rate: one in memory, a curve where samples are read; on the page beside its p99, with its interval.
    memory, cold = found["highest"]
    assert (memory["mode"], memory["same"], memory["rises"]) == ("ram", True, False)
    assert (cold["mode"], cold["monotonic"], cold["rises"], cold["same"]) == ("cold", True, True, False)
    assert all(p["low_per_s"] <= p["queries_per_s"] <= p["high_per_s"] and p["p99_ms"] for p in cold["points"])
    assert "Server, highest rate" in page and "monotonic within its intervals" in page


@pytest.mark.promise("INF-15")
def test_an_interval_of_two_rounds_that_differ_ends_above_0() -> None:
    def measured(number: int, drives: int, rate: float) -> scaling.Measured:
        point = {
            "model": "toy", "mode": "ram", "scenario": "Offline", "drive": "D3-S4520", "drives": drives, "supply_gib_s": drives,
        }  # fmt: skip
        return point, number, {"queries_per_s": rate}

    made = scaling.rows([measured(n, d, r) for n, d, r in ((0, 1, 10.0), (0, 2, 20.0), (1, 1, 20.0), (1, 2, 10.0))])
    # Twice as many in one round and half in the other: either way round the same, and 1 on average.
    assert made[1]["ratio"] == pytest.approx(1.0) and 0 < made[1]["low"] == pytest.approx(1 / made[1]["high"])
    assert "does not hold" in scaling.sentence(scaling.flat(made)[0])


@pytest.mark.promise("INF-15")
def test_a_curve_is_judged_by_its_intervals() -> None:
    """A fall beyond them, an end that isn't known, and supplies at which nothing passes."""

    def curve(*rates: float, valid: float = 1.0, rounds: int = 2, failed: float = 1.05) -> dict[str, Any]:
        measured = []
        for at, rate in enumerate(rates):
            point = {"model": "toy", "mode": "cold", "scenario": "Server", "highest": True, "drive": "d", "drives": 1 << at}
            for number in range(rounds):
                passed = rate * (1 + 0.001 * number)
                trials = [{"queries_per_s": passed * failed, "passed": False, "p99_ms": None}] if failed else []
                part = {"queries_per_s": passed, "expected_per_s": passed, "valid": passed >= valid, "search": trials}
                measured.append(({**point, "supply_gib_s": 1.0 + at}, number, part))
        (found,) = scaling.curves(scaling.rows(measured))
        return found

    assert curve(100, 200, 190)["monotonic"] and not curve(100, 200, 150)["monotonic"]
    assert "not monotonic" in scaling.curve_sentence(curve(100, 200, 150))
    assert curve(100, 101)["same"] and not curve(100, 101)["rises"]
    open_end = curve(100, 200, failed=0)
    assert open_end["monotonic"] is None and open_end["points"][0]["high_per_s"] is None
    assert "has an open end" in scaling.curve_sentence(open_end) and "(at least " in scaling.curve_sentence(open_end)
    # Intervals that hold whatever comes don't pass for a flat curve.
    assert (apart := curve(100, 1000, failed=2))["rises"] and apart["monotonic"] and "and grows" in scaling.curve_sentence(apart)
    wide = curve(100, 100, failed=2)
    assert wide["same"] is None and "too wide to tell" in scaling.curve_sentence(wide)
    assert "none passes at 1 of the supplies" in scaling.curve_sentence(curve(100, 200, valid=150))
    assert "no rate of Server's passes" in scaling.curve_sentence(curve(100, 200, valid=500))
    # Of one round the search's own bounds.
    assert [curve(100, rounds=1)["points"][0][end] for end in ("low_per_s", "high_per_s")] == [100, 105]


@pytest.mark.promise("INF-15")
def test_an_effect_is_told_and_a_flat_control_proves_nothing(
    ideal: type[Ideal], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ideal, "slow_memory", True)
    found = swept(capsys, "--models", "toy", "--scenarios", "Offline", "--drives-of", "d3-s4520", "--rounds", "2")
    assert not found["flat"][0]["holds"] and found["advice"][0]["text"].startswith("drives: an effect")
    monkeypatch.setattr(ideal, "slow_memory", False)
    monkeypatch.setattr(ideal, "peak_of", 100.0)
    found = swept(capsys, "--models", "toy", "--scenarios", "Offline", "--drives-of", "d7-ps1010", "--rounds", "2", "--restart")
    assert found["flat"][0]["holds"] and not found["control"][0]["shows"]
    assert "proves nothing" in scaling.control_sentence(found["control"][0])
    assert "nor has the control" in found["advice"][0]["text"]
    # Supplies that stand to this need as the drives' do to ResNet-50's: the control shows again.
    found = swept(capsys, "--models", "toy", "--scenarios", "Offline", "--scale-to-peak", "--rounds", "1", "--restart")
    assert found["control"][0]["shows"]


@pytest.mark.promise("INF-15")
def test_a_broken_off_sweep_goes_on_where_it_was(ideal: type[Ideal], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    some = ("--models", "toy", "--scenarios", "Offline", "--drives-of", "d7-ps1010", "--rounds", "2")
    monkeypatch.setattr(ideal, "fail_at", 4)
    monkeypatch.setattr(ideal, "stop_at", 9)
    found = swept(capsys, *some, expected=130)
    assert found["interrupted"] and found["finished"] == 6 and len(found["failed"]) == 1
    found = swept(capsys, *some)
    # The model's own peak is known; what failed runs again.
    assert found["finished_before"] == 6 and found["finished"] == 16 and len(ideal.runs) == 9 + 10
    code, _, err = typed(capsys, "sweep", "inference-drives", "models", *some, "--seconds", "1", "-o", "out.jsonl")
    assert code == 2 and "seconds: 2.0 → 1" in err


@pytest.mark.promise("INF-15")
@pytest.mark.parametrize("at", [1, 2])
def test_what_an_interrupt_left_of_the_models_own_rate_scales_nothing(
    ideal: type[Ideal], capsys: Any, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    some = ("--models", "toy", "--drives-of", "d7-ps1010", "--rounds", "1")
    monkeypatch.setattr(ideal, "part_at", at)
    found = swept(capsys, *some, expected=130)
    assert found["interrupted"] and found["finished"] == 0 and len(ideal.runs) == at
    monkeypatch.setattr(ideal, "part_at", 0)
    found = swept(capsys, *some)
    # Measured anew, of which the first time nothing was kept.
    assert found["finished_before"] == 0 and found["finished"] == 20 and len(ideal.runs) == at + 2 + 20


@pytest.mark.promise("INF-15")
@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--models", "toy"], "names no folder"),
        (["d", "--models", "llama"], "infer datagen llama --dir d/llama"),
        (["d", "--models", "gpt2"], "is no model of forebay infer"),
        (["d", "--scenarios", "SingleStream"], "isn't of Server and Offline"),
        (["d", "--drives-of", "d8"], "--supply model:d8"),
        (["d", "--system", "mine"], "--system D74H-7U"),
        (["d", "--vary", "workers=1"], "--vary"),
        (["d", "--seconds", "0.01"], "50 ms"),
    ],
)
def test_what_cant_be_is_refused(words: list[str], reported: str, ideal: type[Ideal], capsys: Any) -> None:
    code, _, err = typed(capsys, "sweep", "inference-drives", *words)
    assert code == 2 and reported in err
    assert not list(Path.cwd().iterdir())


@pytest.mark.long
@pytest.mark.promise("INF-15")
def test_the_toy_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("mlperf_loadgen", reason="MLCommons' LoadGen has no wheel for this machine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "PEAK_S", 0.05)
    monkeypatch.setattr(search, "PROBE_S", 0.05)
    Path("inference-drives.toml").write_text(SMALL)
    code, out, err = typed(
        capsys, "sweep", "inference-drives.toml", "here", "--scenarios", "Offline", "--seconds", "0.05", "--scale-to-peak",
        "--json", "-o", "out.jsonl",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert found["finished"] == 4 and {(r["mode"], r["drives"]) for r in found["rows"]} == {
        (mode, count) for mode in ("ram", "cold") for count in (1, 2)
    }
    assert all(row["timed_storage_bytes"] == 0 for row in found["rows"] if row["mode"] == "ram")
    assert found["flat"][0]["holds"] is None and "one round" in scaling.sentence(found["flat"][0])


class Nothing:
    """A model that answers at once."""

    name, device, batch, width, checked_batch = "nothing", "cpu", 512, 1, 1

    def launch(self, rows: Any) -> Any:
        return np.zeros((len(rows), 1), np.float32)

    def finish(self, launched: Any) -> Any:
        return launched

    def sizes(self) -> tuple[int, ...]:
        return (1,)

    def prepare(self, sizes: Any) -> None:
        """Nothing is to be made ready."""

    def problem(self) -> None:
        """No sample is wrong to it."""

    close = problem


class AtOnce(inference.Subject):
    def __init__(self, asked: Any, model: str) -> None:
        super().__init__(asked, model)
        self._model = Nothing()


@pytest.mark.long
@pytest.mark.promise("INF-15")
@pytest.mark.parametrize("subject", [inference.Subject, AtOnce])
def test_the_highest_rate_of_a_real_server_grows_with_the_supply_of_its_samples(
    subject: type[inference.Subject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The toy, and a system that answers at once, both of them held back to 1 and 16 drives; broken off in a search."""
    pytest.importorskip("mlperf_loadgen", reason="MLCommons' LoadGen has no wheel for this machine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "PEAK_S", 0.05)
    monkeypatch.setattr(search, "PROBE_S", 0.05)
    monkeypatch.setattr(inference, "Subject", subject)
    small = SMALL.replace("[1, 2]", "[1, 16]").replace("gpus = 8", "gpus = 64").replace("D7-PS1010", "D3-S4520")
    Path("inference-drives.toml").write_text(small)
    add, tried = search.Search.add, list[search.Trial]()

    def twice(self: search.Search, trial: search.Trial) -> None:
        add(self, trial)
        if self.file is not None:
            tried.append(trial)
            if len(tried) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(search.Search, "add", twice)
    words = ("sweep", "inference-drives.toml", "here", "--scenarios", "Server", "--seconds", "0.4", "--json", "-o", "out.jsonl")
    code, out, err = typed(capsys, *words)
    assert code == 130 and json.loads(out)["interrupted"] and Path("out.jsonl.trials").exists(), err
    code, out, err = typed(capsys, *words)
    found = json.loads(out)
    assert code == 0 and found["finished"] == 6, err
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    ended = [line for line in lines if line.get("point", {}).get("highest") and not line.get("partial")]
    searches = [line["record"]["infer"]["search"] for line in ended]
    # No trial was made twice or lost, and none is left for another search.
    assert sum(map(len, searches)) == len(tried) and not Path("out.jsonl.trials").exists()
    memory, cold = found["highest"]
    assert memory["mode"] == "ram" and cold["points"][1]["low_per_s"] > cold["points"][0]["high_per_s"]
    size = data.row_bytes("toy")
    for point in cold["points"]:
        assert point["low_per_s"] < 1.1 * point["supply_gib_s"] * GIB / size
    # What samples read inside their queries can't reach, samples in memory can.
    assert memory["points"][0]["queries_per_s"] > cold["points"][0]["high_per_s"]


@pytest.mark.promise("INF-15")
def test_a_peak_is_of_batches_enough() -> None:
    """Of two seconds a large network computes a few."""
    assert models.peak_s(64, 11_500.0) < 0.1
    assert models.peak_s(4, 1.6) == pytest.approx(30.0) == models.PEAK_MOST_S
    assert models.peak_s(1, 4.0) == models.BATCHES_MIN / 4
