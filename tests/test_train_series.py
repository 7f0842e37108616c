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
from forebay.train import command, data, run, series, spread, supply, toy

ROWS, EVALUATION, CAP = 20_000, 2_000, 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("series") / "clicks"
    data.generate(made, 5, ROWS, EVALUATION, CAP)
    return made


def made_up(seed: int, samples: int | None = 70_000, rate: float | None = 8e4, **more: Any) -> dict[str, Any]:
    """A record with what is read here of it."""
    part = {
        "model": "toy", "device": "cpu", "seed": seed, "batch": 512, "order": "none", "learning_rate": 0.02,
        "data": {"folder": "/d", "seed": 0, "rows": 131_072, "table_rows": 100}, "cache": "any",
        "supply": {"asked": None, "gpus": 1},
        "samples": samples or 131_072, "samples_per_s": rate, "samples_to_target": samples, "quality": 0.77,
        "quality_target": 0.77, "seconds_to_target": samples / rate if samples and rate else None, "evaluate_every": 1024,
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
    monkeypatch.setattr(series, "Run", FakeRun)
    monkeypatch.setattr(FakeRun, "ends", {})
    return FakeRun


def ran(folder: Path, seeds: int, out: Path | None, **more: Any) -> tuple[series.Series, list[str]]:
    settings = {"samples": 4096, **more}
    request = command.Request(data.open_folder(folder), supply.parse(None), 256, **settings)
    told: list[str] = []
    made = series.Series(request, lambda seed: toy.Model(request.about.tables, seed), False, seeds, out and str(out))
    made.measure(save.Output(str(out), save.RUN) if out else None, lambda text: None, told.append)
    return made, told


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
    first, told = ran(folder, 2, out)
    lines = out.read_text().splitlines()
    assert [json.loads(line)["train"]["seed"] for line in lines] == [0, 1] and len(told) == 2 and first.found == 0
    # A third seed alone is run; an interrupted run, one of other settings or another machine and a cut line count for nothing.
    other = json.loads(lines[1])
    other["train"]["seed"] = 2
    strange = [{**other, "result": {**other["result"], "interrupted": True}}]
    strange += [{**other, "train": {**other["train"], key: value}} for key, value in (("batch", 512), ("failed", "no room"))]
    strange += [{**other, "environment": {**other["environment"], "host": "another"}}]
    out.write_text("".join(line + "\n" for line in [*lines, *map(json.dumps, strange), lines[0][:99]]))
    again, told = ran(folder, 3, out)
    assert again.found == 2 and len(told) == 1 and told[0].startswith("seed 2: ") and list(again.records) == [0, 1, 2]
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
