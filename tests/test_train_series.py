"""`forebay train --seeds` and `forebay train check`: runs over seeds, their spread, and reference points of convergence."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from forebay.bench import save
from forebay.errors import MachineError, RequestError, RunError
from forebay.train import command, data, reference, run, series, spread, supply, toy

ROWS, EVALUATION, CAP = 20_000, 2_000, 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("series") / "clicks"
    data.generate(made, 5, ROWS, EVALUATION, CAP)
    return made


def made_up(seed: int, reached: int | None = 70_000, rate: float | None = 8e4, **more: Any) -> dict[str, Any]:
    """A record with what is read here of it."""
    part = {
        "model": "toy", "device": "cpu", "seed": seed, "batch": 512, "order": "none", "learning_rate": 0.02,
        "data": {"folder": "/d", "seed": 0, "rows": 131_072, "table_rows": 100}, "cache": "any",
        "supply": {"asked": None, "gpus": 1},
        "samples": reached or 131_072, "samples_per_s": rate, "samples_to_target": reached, "quality": 0.77,
        "quality_target": 0.77, "seconds_to_target": reached / rate if reached and rate else None, "evaluate_every": 1024,
        "evaluations": [{"samples": 1024, "auc": 0.6, "seconds": 0.1}], **more,
    }  # fmt: skip
    found = {"result": {}, "environment": {"host": os.uname().nodename}, "missing": {"train.samples_to_target": "it ended"}}
    return {"schema": "forebay.run/1", "id": f"{seed}", "train": part, **found}


class FakeRun:
    """A run that takes no time. `ends`: seed → how it ends, where it doesn't end well."""

    ends: dict[int, BaseException] = {}

    def __init__(self, request: command.Request, model: Any, torch: bool, say: Any) -> None:
        self.request, self.model, self.interrupted, self.holds = request, model, False, True

    def measure(self) -> Any:
        end = self.ends.get(self.request.seed)
        if isinstance(end, RunError) and end.found == run.NO_NUMBER:
            return end
        if end is not None:
            raise end
        return None

    def record(self) -> dict[str, Any]:
        same = series.asked(self.request, self.model)
        own = {key: value for key, value in same.items() if key not in ("data", "supply", "target", "host")}
        own["data"] = dict(zip(("seed", "rows", "table_rows"), same["data"], strict=True))
        own["supply"] = dict(zip(("asked", "gpus"), same["supply"], strict=True))
        failed = {"failed": run.NO_NUMBER, "samples_to_target": None} if self.request.seed in self.ends else {}
        return made_up(self.request.seed, **own, quality_target=same["target"], **failed)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeRun]:
    monkeypatch.setattr(command, "Run", FakeRun)
    monkeypatch.setattr(FakeRun, "ends", {})
    return FakeRun


def ran(folder: Path, seeds: int, out: Path | None, **more: Any) -> tuple[series.Series, list[str]]:
    settings = {"samples": 4096, **more}
    request = command.Request(data.open_folder(folder), supply.parse(None), 256, **settings)
    reported: list[str] = []
    made = series.Series(request, lambda seed: toy.Model(request.about.tables, seed), False, seeds, out and str(out))
    made.measure(save.Output(str(out), save.RUN) if out else None, lambda text: None, reported.append)
    return made, reported


# Spread --------------------------------------------------------------------------------------------------


@pytest.mark.promise("TRN-43")
def test_a_spread_has_the_seeds_part_and_the_machines_apart_and_none_of_what_did_not_converge() -> None:
    source = random.Random(4)
    drawn = [(math.exp(source.gauss(0, 0.05)), math.exp(source.gauss(0, 0.01))) for _ in range(200)]
    records = [made_up(n, round(70_000 * samples), 8e4 * rate) for n, (samples, rate) in enumerate(drawn)]
    records.append(made_up(200, None, 8e4))
    found = spread.document(records)
    samples, rate, whole = (found["spread"][name] for name in spread.PARTS)
    assert (samples["runs"], rate["runs"], whole["runs"]) == (200, 201, 200)
    for part, truth in ((samples, 5.0), (rate, 1.0), (whole, math.hypot(5, 1))):
        low, high = part["rsd_pct_ci95"]
        assert low < truth < high < 1.3 * low
    assert found["parts_pct"] == pytest.approx(whole["rsd_pct"], rel=0.15)
    assert [row["why"] for row in found["rows"] if row["converged"] is False] == ["it ended"]
    assert "seed 200 did not converge: it ended" in spread.text(found) and "by the seed" in spread.text(found)
    few = spread.document([made_up(1), made_up(2, quality_target=None, samples_to_target=None)])
    assert few["spread"]["samples_to_target"]["rsd_pct"] is None and few["rows"][1]["converged"] is None


@pytest.mark.promise("TRN-43")
@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_the_interval_of_a_deviation_holds_the_true_one(n: int) -> None:
    source, held = random.Random(n), 0
    for _ in range(400):
        part = spread._spread([100 + source.gauss(0, 1) for _ in range(n)])
        held += part["rsd_pct_ci95"][0] <= 1.0 <= part["rsd_pct_ci95"][1]
    assert held >= 0.92 * 400


# Runs ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("TRN-43")
def test_runs_that_are_there_are_not_repeated_and_others_are(fake: type[FakeRun], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    first, reported = ran(folder, 2, out)
    lines = out.read_text().splitlines()
    assert [json.loads(line)["train"]["seed"] for line in lines] == [0, 1] and len(reported) == 2 and first.found == 0
    # A third seed alone is run; an interrupted run, one of other settings or another machine and a cut line count for nothing.
    other = json.loads(lines[1])
    other["train"]["seed"] = 2
    strange = [{**other, "result": {**other["result"], "interrupted": True}}]
    strange += [{**other, "train": {**other["train"], key: value}} for key, value in (("batch", 512), ("failed", "no room"))]
    strange += [{**other, "environment": {**other["environment"], "host": "another"}}]
    out.write_text("".join(line + "\n" for line in [*lines, *map(json.dumps, strange), lines[0][:99]]))
    again, reported = ran(folder, 3, out)
    assert again.found == 2 and len(reported) == 1 and reported[0].startswith("seed 2: ") and list(again.records) == [0, 1, 2]
    assert again.records[0] == json.loads(lines[0]) and again.exit_code == 0
    assert json.loads(out.read_text().splitlines()[-1])["train"]["seed"] == 2
    assert ran(folder, 3, out)[0].found == 3 and ran(folder, 2, out, samples=2048)[0].found == 0
    document = again.document()
    assert len(document["runs"]) == 3 and document["spread"]["rows"][2]["samples_per_s"]


@pytest.mark.promise("TRN-43")
def test_an_interrupt_keeps_the_runs_before_it_and_a_loss_that_is_no_number_is_a_row(
    fake: type[FakeRun], folder: Path, tmp_path: Path
) -> None:
    fake.ends = {1: RunError("step 3", run.NO_NUMBER)}
    made, _ = ran(folder, 3, None)
    assert [row["why"] for row in made.document()["spread"]["rows"]] == [None, run.NO_NUMBER, None]
    assert made.exit_code == 0 and made.failure is None and made.document()["spread"]["spread"]["samples_to_target"]["runs"] == 2
    fake.ends, out = {1: KeyboardInterrupt()}, tmp_path / "s.jsonl"
    made, _ = ran(folder, 3, out)
    assert made.interrupted and made.exit_code == 130 and list(made.records) == [0] and len(out.read_text().splitlines()) == 1
    fake.ends = {1: MachineError("--supply 9", "the loader brings 1")}
    made, _ = ran(folder, 3, out)
    assert made.failure is fake.ends[1] and list(made.records) == [0] and made.found == 1
    fake.ends = {0: MachineError("--supply 9", "the loader brings 1")}
    with pytest.raises(MachineError):
        ran(folder, 3, None)


@pytest.mark.long
@pytest.mark.promise("TRN-43")
def test_the_command_prints_a_table_and_one_document(folder: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "s.jsonl"
    few = ("train", "toy", "--dir", folder, "--samples", 1024, "--peak-seconds", 0.04, "--batch-size", 256, "--seed", 7)
    code, said, err = typed(capsys, *few, "--seeds", 1, "-o", out)
    assert code == 0 and "relative standard deviation" in said and "seed 7: ended after 1,024 samples" in err
    code, said, err = typed(capsys, *few, "--seeds", 2, "-o", out, "--json")
    runs = json.loads(said)["runs"]
    assert code == 0 and [r["train"]["seed"] for r in runs] == [7, 8] and "1 of 2 runs were in" in err
    assert len({r["train"]["evaluations"][0]["auc"] for r in runs}) == 2 and len({r["train"]["batch_hash"] for r in runs}) == 1
    for words, named in (((0,), "not between 1"), ((2, "-o", tmp_path / "s.json"), f"-o {out}")):
        code, _, err = typed(capsys, *few, "--seeds", *words)
        assert code == 2 and named in err
    with pytest.raises(RequestError, match="not between"):
        ran(folder, 5000, None)


# Reference points ----------------------------------------------------------------------------------------

TASK = reference.Task("toy", 0, 131_072, 100, "none", 0.7742)


def converged(seed: int, reached: int | None = 70_000, **more: Any) -> dict[str, Any]:
    return made_up(seed, reached, **{"quality_target": 0.7742, **more})


def drawn(source: random.Random, mean: float, sd: float, n: int, **more: Any) -> list[dict[str, Any]]:
    """Runs that pass the target where it is drawn, and see it at their next evaluation."""
    return [converged(seed, 1024 * math.ceil(mean * math.exp(source.gauss(0, sd)) / 1024), **more) for seed in range(n)]


def points_of(records: list[dict[str, Any]]) -> list[reference.Point]:
    return reference.points([reference.Run.from_record(record) for record in records])


@pytest.fixture(scope="module")
def known() -> list[reference.Point]:
    source = random.Random(5)
    grid = [(512, 0.02, 70_000), (512, 0.005, 240_000), (512, 0.04, 80_000), (2048, 0.04, 120_000)]
    return points_of([r for batch, rate, mean in grid for r in drawn(source, mean, 0.05, 10, batch=batch, learning_rate=rate)])


def judged(records: list[dict[str, Any]], known: list[reference.Point]) -> list[dict[str, Any]]:
    return reference.judge([reference.Run.from_record(record) for record in records], known)


@pytest.mark.promise("TRN-44")
def test_runs_like_the_references_pass_and_slower_ones_do_not() -> None:
    source, passed, noticed = random.Random(6), 0, 0
    for _ in range(200):
        points = points_of(drawn(source, 70_000, 0.05, 10))
        passed += all(f["passes"] for f in judged(drawn(source, 70_000, 0.05, 4), points))
        noticed += not all(f["passes"] for f in judged(drawn(source, 70_000 * 1.25, 0.05, 4), points))
    assert passed >= 0.91 * 200 and noticed >= 0.9 * 200


@pytest.mark.promise("TRN-44")
@pytest.mark.parametrize(
    ("records", "verdict", "change"),
    [
        ([converged(1)], "passes", ""),
        ([converged(1, 150_000, batch=1024)], "slower", "--learning-rate 0.0283, not 0.02"),
        ([converged(1, 240_000, learning_rate=0.005)], "slower", "--learning-rate 0.02, not 0.005: the reference took"),
        ([converged(1, 30_000)], "faster", "another data set"),
        ([converged(1, None, samples=40_000)], "ended early", "--samples "),
        ([converged(1, None, samples=400_000)], "never", "another --seed; if several"),
        ([converged(1, None, samples=400_000), *(converged(n) for n in (2, 3, 4))], "never", "--seed: the mean over seeds"),
        ([converged(1, None, samples=512, failed=run.NO_NUMBER, learning_rate=5.0)], "never", "--learning-rate 0.02, not 5"),
        ([converged(1, None, samples=512, failed=run.NO_NUMBER)], "never", "--learning-rate 0.005: the loss is not a number"),
        ([converged(1, 200_000, batch=2048, learning_rate=0.04)], "slower", "--batch-size 512: the reference takes"),
        ([converged(1, batch=4096)], "no reference at batches of 4,096: 512 to 2,048 have one", "--seeds 10 -o points.jsonl"),
    ],
)  # fmt: skip
def test_a_run_that_fails_is_told_what_to_change(
    known: list[reference.Point], records: list[dict[str, Any]], verdict: str, change: str
) -> None:
    found = judged(records, known)[0]
    assert found["verdict"] == verdict and change in found["change"] and bool(change) == bool(found["change"])
    assert found["passes"] is (None if verdict.startswith("no reference") else verdict == "passes")


@pytest.mark.promise("TRN-44")
def test_several_runs_that_each_pass_may_fail_together(known: list[reference.Point]) -> None:
    found = judged([converged(n, 79_000) for n in range(8)], known)
    assert {f["verdict"] for f in found} == {"slower on average"} and not any(f["passes"] for f in found)


@pytest.mark.promise("TRN-44")
def test_points_are_read_as_they_were_written_and_damage_is_named(known: list[reference.Point]) -> None:
    again = reference.read(json.loads(json.dumps(reference.document(known))), "x")
    for a, b in zip(again, known, strict=True):
        assert (a.task, a.batch, a.learning_rate, a.never) == (b.task, b.batch, b.learning_rate, b.never)
    assert all(a.mean == pytest.approx(b.mean, abs=1e-4) for a, b in zip(again, known, strict=True))
    for damage in ({}, {"schema": reference.SCHEMA}, {"schema": reference.SCHEMA, "points": [{"model": "x"}]}):
        with pytest.raises(RequestError):
            reference.read(damage, "x")
    for key, value in (("batch", 0), ("quality_target", None), ("data", {}), ("evaluate_every", "x"), ("learning_rate", -1)):
        with pytest.raises((ValueError, KeyError, TypeError)):
            reference.Run.from_record(converged(1, **{key: value}))


@pytest.mark.promise("TRN-44")
def test_our_own_points_are_of_the_toy_as_it_is() -> None:
    ours = reference.ours()
    assert {p.task for p in ours} == {TASK} and {512, 2048} <= {p.batch for p in ours}
    own = reference.level(ours, 512)
    assert own is not None and own.seeds == 10 and 40_000 < math.exp(own.mean) < 100_000 and own.sd < 0.15
    slow = [p for p in ours if p.batch == 512 and p.learning_rate < 0.01]
    assert slow and all(p.mean > own.mean + 0.5 for p in slow)


@pytest.mark.promise("TRN-43")
def test_a_report_has_a_row_for_each_training_from_several_seeds(tmp_path: Path, capsys: Any) -> None:
    rest = {"cache": {}, "path": {"ran": "host"}, "job": {"io_bytes": 912}, "result": {"throughput_gib_s": 1.0}}
    runs = [made_up(n, 70_000 + 2000 * n) for n in range(4)] + [made_up(4, None), made_up(0, batch=1024)]
    strange = [made_up(n, samples_per_s="x", batch=7) for n in range(2)]
    whole = [{**r, **rest, "id": str(n)} for n, r in enumerate([*runs, *strange])]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in whole))
    assert typed(capsys, "report", tmp_path / "runs.jsonl", "-o", tmp_path / "page.html", "--no-charts")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "Over seeds" in page and "4 of 5" in page and "it ended" in page and "73,000" in page


@pytest.mark.promise("TRN-44")
def test_the_command_checks_files_against_ours_or_others(tmp_path: Path, capsys: Any) -> None:
    def written(name: str, records: list[dict[str, Any]]) -> Path:
        rest = {"cache": {}, "path": {"ran": "host"}, "job": {"io_bytes": 912}, "result": {"throughput_gib_s": 1.0}}
        whole = [{**r, **rest, "id": f"{name} {number}"} for number, r in enumerate(records)]
        (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in whole))
        return tmp_path / name

    good = written("good.jsonl", [converged(n) for n in range(3)])
    bad = written("bad.jsonl", [converged(1), converged(2, 250_000, learning_rate=0.005), converged(3, quality_target=None)])
    code, out, _ = typed(capsys, "train", "check", good)
    assert code == 0 and "3 of 3 runs converge as the reference does" in out
    code, out, _ = typed(capsys, "train", "check", bad, good)
    assert code == 1 and "try: --learning-rate 0.02, not 0.005" in out and "left out: " in out and "had no target" in out
    code, out, _ = typed(capsys, "train", "check", bad, "--json")
    document = json.loads(out)
    assert code == 1 and [r["passes"] for r in document["runs"]] == [True, False] and document["schema"].endswith("check/1")
    runs = [json.loads(line) for line in good.read_text().splitlines()]
    (tmp_path / "series.json").write_text(json.dumps({"schema": series.SCHEMA, "runs": runs, "spread": {}}, indent=1))
    code, out, _ = typed(capsys, "train", "check", tmp_path / "series.json")
    assert code == 0 and "3 of 3 runs converge as the reference does" in out
    other = {"model": "dlrm", "batch": 6912}
    ours = written("dlrm.jsonl", drawn(random.Random(1), 70_000, 0.05, 5, **other))
    code, _, err = typed(capsys, "train", "check", ours)
    assert code == 2 and "no reference for dlrm on 131,072 rows of seed 0" in err and "--seeds 10" in err
    code, out, _ = typed(capsys, "train", "check", ours, "--reference", ours)
    assert code == 0 and "5 of 5" in out
    for file, said in ((written("few.jsonl", [converged(1)]), "no 3 seeds"), (tmp_path / "none", "no such file or directory")):
        code, _, err = typed(capsys, "train", "check", good, "--reference", file)
        assert code == 2 and said in err.lower()
