"""`forebay sweep drive-scaling`: trainings over drives, by models of arithmetic and by the toy. Without PyTorch."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_machine import typed
from forebay.errors import MachineError
from forebay.plan.planner import published
from forebay.plan.published import table
from forebay.sweep import drives
from forebay.sweep.file import parse, presets
from forebay.train import advice, scaling, supply
from forebay.units import GIB
from properties import parametrized

PEAK = 400_000.0
# Of one GPU at full size, and the bytes of a sample, of models that aren't DLRM.
PEAKS = {"resnet": 3976.0, "bert": 249.0}
BYTES = {"resnet": 150_536, "bert": 4712}
SMALL = """
title = "one drive, twice"
drives = [1, 2]
[[system]]
name = "MINE"
gpus = 2
drives = ["D3-S4520"]
"""


class Ideal:
    """A training that goes at the lesser of its supply and `peak`, in no time."""

    peak_of = PEAK

    def __init__(self, of: supply.Supply, output: Path, template: dict[str, Any], row_bytes: int, name: str) -> None:
        self._of, self._output, self._template, self._row_bytes, self._name = of, output, template, row_bytes, name
        self.peak_of = PEAKS.get(name, self.peak_of)
        self.peak: Any = None
        self.no_peak = ""
        self.interrupted = False

    def measure_peak(self) -> None:
        # What is predicted is there before anything is measured.
        header = json.loads(self._output.read_text().splitlines()[0])
        assert header["frozen"]["prediction"] and not header["frozen"]["peaks"]
        self.peak = SimpleNamespace(samples_per_s=self.peak_of)

    def measure(self) -> None:
        return None

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(json.dumps(self._template))
        rate = min(self.peak_of, (self._of.gib_s or 0.0) * GIB / self._row_bytes)
        part = record["train"]
        part.update(model=self._name, samples_per_s=rate, rate_gib_s=rate * self._row_bytes / GIB, samples_per_s_ci95=None)
        part.update(peak_samples_per_s=self.peak_of, supply_gib_s=self._of.gib_s)
        part.update(demand_gib_s=self.peak_of * self._row_bytes / GIB, demand_gib_s_ci95=None, supply=self._of.document())
        part["advice"] = advice.advice(part, self._of.drives_for)
        record["id"] = None
        return record


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of a real training, of the toy on a small data set."""
    from forebay.train import command, data, toy

    about = data.generate(tmp_path_factory.mktemp("drives") / "clicks", 5, 4000, 500, 20)
    model = toy.Model(about.tables, 0)
    run = command.Run(
        command.Request(about, supply.Supply(None), 256, quality=False, seconds=0.2, peak_s=0.1, check_s=0.05), model, False
    )
    assert run.measure() is None
    return run.record()


@pytest.fixture
def ideal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: dict[str, Any]) -> list[supply.Supply]:
    """Trainings of arithmetic; the supplies that they had."""
    monkeypatch.chdir(tmp_path)
    seen: list[supply.Supply] = []

    @contextlib.contextmanager
    def model(asked: Any, name: str) -> Iterator[Any]:
        yield SimpleNamespace(row_bytes=BYTES.get(name, 912)), SimpleNamespace(reset=lambda: None, name=name)

    def run_of(asked: Any, of: supply.Supply, about: Any, model: Any, peak: float | None = None) -> Ideal:
        assert (peak is None) == (of.gib_s is None)
        if of.gib_s is not None:
            seen.append(of)
        return Ideal(of, Path("out.jsonl"), template, about.row_bytes, model.name)

    monkeypatch.setattr(drives, "_model", model)
    monkeypatch.setattr(drives, "_run_of", run_of)
    return seen


def swept(capsys: Any, *words: Any) -> dict[str, Any]:
    code, out, err = typed(capsys, "sweep", *words, "-o", "out.jsonl", "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.promise("TRN-21")
def test_its_systems_are_the_published_ones() -> None:
    sweep = parse(presets()["drive-scaling"], "drive-scaling", "preset drive-scaling")
    cells = {(row["system"], row["drive"]) for row in table("dlrm_training_time")}
    assert {(s.name, drive) for s in sweep.systems for drive in s.drives} == cells
    machines = {row["id"]: row["gpus"] for row in table("systems")}
    assert {s.name: s.gpus for s in sweep.systems} == {s.name: int(machines[s.name].split(" x ")[0]) for s in sweep.systems}
    assert sweep.drives == (1, 2, 4, 8)


@pytest.mark.long
@pytest.mark.promise("TRN-21")
@parametrized("system", ["d74h-7u", "D54U-3U"], kept=(1,))
def test_a_model_that_obeys_the_law_lies_on_the_planned_line(system: str, ideal: list[supply.Supply], capsys: Any) -> None:
    """Scaled to its own peak, its minutes are the system's, whatever its peak is: within 3 % of what plan says in all cells."""
    found = swept(capsys, "drive-scaling", "--system", system, "--scale-to-peak")
    name = system.upper()
    assert found["system"] == name and found["label"] == "MLPerf-style, unverified" and not found["unsteady"]
    assert len(found["rows"]) == len(ideal) == {"D74H-7U": 8, "D54U-3U": 12}[name]
    law = published().training_time([name])
    gpus = {"D74H-7U": 8, "D54U-3U": 4}[name]
    factor = PEAK / (1e6 * law.posterior.value(f"compute[{name}]") / gpus)
    for row, of in zip(found["rows"], ideal, strict=True):
        assert row["minutes"] == pytest.approx(row["predicted_minutes"], rel=0.03), row
        assert row["speed_up"] == pytest.approx(row["predicted_speed_up"], rel=0.05)
        assert row["predicted_p10"] < row["predicted_minutes"] < row["predicted_p90"]
        share = supply.parse(f"model:{row['drive']}?drives={row['drives']}", gpus)
        # No more than makes a difference.
        assert of.gib_s == pytest.approx(min((share.gib_s or 0) * factor, 4 * PEAK * 912 / GIB))
        assert of.scaled_by == pytest.approx(factor) and row["capped"] == ((share.gib_s or 0) * factor > of.gib_s)
        assert of.sheet_gib_s == share.sheet_gib_s and of.document()["scaled_by"] == of.scaled_by
    for row in found["enough"]:
        assert row["minutes"] == row["predicted_minutes"], row
    for cell in table("dlrm_training_time"):
        if cell["system"] == name and cell["training_time_min"]:
            row = next(r for r in found["rows"] if (r["drive"], r["drives"]) == (cell["drive"], int(cell["n_drives"])))
            assert row["published_minutes"] == float(cell["training_time_min"])
            assert row["minutes"] == pytest.approx(row["published_minutes"], rel=0.08)


@pytest.mark.promise("TRN-21")
def test_the_toy_has_its_threads_before_plans_load_numpy(
    ideal: list[supply.Supply], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More threads of linear algebra beside the loader's make its peak another one each second."""
    calls: list[str] = []
    predictions = drives.predictions
    monkeypatch.setattr(drives, "few_threads", lambda: calls.append("threads"))
    monkeypatch.setattr(drives, "predictions", lambda *asked: (calls.append("plans"), predictions(*asked))[1])
    swept(capsys, "drive-scaling", "--system", "d74h-7u")
    assert calls == ["threads", "plans"]


@pytest.mark.promise("TRN-21")
def test_unscaled_the_supply_is_the_drives_own(ideal: list[supply.Supply], capsys: Any) -> None:
    """A model of a fifth of their rate is fed by one drive."""
    found = swept(capsys, "drive-scaling", "--system", "d74h-7u")
    assert all(of.scaled_by is None for of in ideal) and {r["speed_up"] for r in found["rows"]} == {1.0}
    assert all(row["minutes"] == {"5 %": 1, "1 %": 1} for row in found["enough"])
    # As many of this model's GPUs.
    law = published().training_time(["D74H-7U"])
    assert found["rows"][0]["minutes"] == pytest.approx(law.minutes("D74H-7U", 8 * PEAK))


@pytest.fixture
def sources(ideal: list[supply.Supply]) -> list[str]:
    """Folders that say whose data they have."""
    for name in ("dlrm", *PEAKS):
        Path(name).mkdir()
        (Path(name) / "dataset.json").write_text(json.dumps({"model": name}))
    return ["dlrm", *PEAKS]


@pytest.mark.promise("TRN-47")
def test_several_models_tell_which_of_them_gain(ideal: list[supply.Supply], sources: list[str], capsys: Any) -> None:
    """One SATA drive for four GPUs holds up what needs more than its share, by need ÷ supply, and nothing else."""
    found = swept(capsys, "drive-scaling", *sources, "--system", "d54u-3u", "--models", "dlrm,resnet,bert", "--scale-to-peak")
    assert found["model"] == "dlrm, resnet, bert" and len(found["rows"]) == len(ideal) == 36 and not found["unsteady"]
    by = {(r["model"], r["drive"], r["drives"]): r for r in found["rows"]}
    sata = supply.parse("model:D3-S4520", 4).gib_s or 0.0
    need = PEAKS["resnet"] * BYTES["resnet"] / GIB
    assert sata < need
    for name in PEAKS:
        for drive in ("D7-PS1010", "D5-P5336"):
            assert {by[name, drive, n]["speed_up"] for n in (1, 2, 4, 8)} == {1.0}
        for n in (1, 2, 4, 8):
            row = by[name, "D3-S4520", n]
            assert row["minutes"] is row["predicted_minutes"] is row["published_minutes"] is row["factor"] is None
            expected = min(need, n * sata) / min(need, sata) if name == "resnet" else 1.0
            assert row["speed_up"] == pytest.approx(expected) and row["predicted_speed_up"] == pytest.approx(expected)
    assert by["dlrm", "D3-S4520", 8]["speed_up"] > 5 and by["dlrm", "D3-S4520", 1]["published_minutes"]
    enough = {row["model"]: row["minutes"] for row in found["enough"] if row["drive"] == "D3-S4520"}
    assert enough["bert"] == {"5 %": 1, "1 %": 1} and enough["dlrm"]["5 %"] is None
    advised = {row["model"]: row["text"] for row in found["advice"]}
    assert list(advised) == ["dlrm", "resnet", "bert"] and "gains nothing" in advised["bert"]
    assert all("Storage limits" in advised[name] for name in ("dlrm", "resnet"))
    code, out, _ = typed(capsys, "sweep", "drive-scaling", *sources, "--system", "d54u-3u", "--scale-to-peak", "-o", "out.jsonl")
    assert code == 0 and len(ideal) == 36 and "bert, 8 × D3-S4520" in out and "storage   bert at 1 × D3-S4520: Faster" in out
    code, _, err = typed(capsys, "report", "out.jsonl", "-o", "page.html", "--no-charts")
    page = Path("page.html").read_text()
    assert code == 0 and "D3-S4520 on D54U-3U, bert: more drives gain less than 5 %: from 1 on" in page, err
    assert "bert: Faster storage gains nothing" in page


@pytest.mark.promise("TRN-47")
def test_each_model_needs_its_own_data(sources: list[str], capsys: Any) -> None:
    Path("again").mkdir()
    (Path("again") / "dataset.json").write_text(json.dumps({"model": "bert"}))
    for words, said in (
        (("dlrm", "--models", "bert"), "has the data of dlrm"), (("bert", "again"), "bert has those of bert too"),
        (("dlrm", "--models", "dlrm,bert"), "forebay train datagen bert --dir DIR"), (("--models", "gpt"), "'gpt' is no model"),
        (("bert", "--models", "bert,bert"), "is there twice"), (("none",), "no data set"),
    ):  # fmt: skip
        code, _, err = typed(capsys, "sweep", "drive-scaling", *words, "--system", "d54u-3u")
        assert code == 2 and said in err, (words, err)
    code, out, _ = typed(capsys, "sweep", "drive-scaling", "bert", "dlrm", "--system", "d54u-3u", "--dry-run", "--json")
    points = json.loads(out)["points"]
    assert code == 0 and [bool(p["predicted"]) for p in points] == [False] * 12 + [True] * 12


@pytest.mark.promise("TRN-21")
def test_it_goes_on_where_it_stopped_with_what_was_decided(
    ideal: list[supply.Supply], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("sweep", "drive-scaling", "--system", "d74h-7u", "--scale-to-peak", "-o", "out.jsonl")
    measure = Ideal.measure

    def stops(self: Ideal) -> None:
        if len(ideal) == 3:
            raise KeyboardInterrupt

    def fails(self: Ideal) -> None:
        if len(ideal) == 5:
            raise MachineError("--supply 9", "the loader brings 1", "--supply 0.9")

    monkeypatch.setattr(Ideal, "measure", stops)
    code, _, err = typed(capsys, *words)
    assert code == 130 and "the same command with -o out.jsonl continues" in err
    # Another peak now: what scaled the first points scales the others.
    monkeypatch.setattr(Ideal, "peak_of", 2 * PEAK)
    monkeypatch.setattr(Ideal, "measure", fails)
    code, out, _ = typed(capsys, *words)
    assert code == 4 and "the loader brings 1" in out
    monkeypatch.setattr(Ideal, "measure", measure)
    code, out, _ = typed(capsys, *words)
    assert code == 0 and len(ideal) == 2 + 1 + 6 + 1 and len({of.scaled_by for of in ideal}) == 1
    assert "own peak varied" in out and "the same command" not in out
    code, out, _ = typed(capsys, *words)
    assert code == 0 and len(ideal) == 10
    code, _, err = typed(capsys, *words[:4], "-o", "out.jsonl")
    assert code == 2 and "scale_to_peak: True → False" in err and "--restart" in err
    code, _, err = typed(capsys, *words, "--restart")
    assert code == 0 and Path("out.jsonl.1").exists()


@pytest.mark.long
@pytest.mark.promise("TRN-22")
def test_the_report_draws_points_over_the_planned_line(ideal: list[supply.Supply], capsys: Any) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    swept(capsys, "drive-scaling", "--system", "d74h-7u", "--scale-to-peak")
    Path("out.jsonl").rename("first.jsonl")
    swept(capsys, "drive-scaling", "--system", "d54u-3u", "--scale-to-peak")
    code, _, err = typed(capsys, "report", "first.jsonl", "out.jsonl", "-o", "page.html", "--csv", "csv")
    assert code == 0, err
    page = Path("page.html").read_text()
    assert page.count("<svg") == 2 and "Training by drives" in page and "MLPerf-style, unverified" in page
    assert "D7-PS1010 on D74H-7U, toy: more drives gain less than 5 %: from 2 on (plan: 2)" in page
    with next(Path("csv").glob("*minutes.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert {row["kind"] for row in rows} == {"here", "planned", "published"} and len({row["series"] for row in rows}) == 5
    # What a line lacks leaves it out, and the others stay.
    lines = Path("out.jsonl").read_text().splitlines()
    odd = json.loads(lines[-1])
    odd["point"]["predicted_minutes"] = "soon"
    Path("odd.jsonl").write_text("\n".join([*lines[:-1], json.dumps(odd)]) + "\n")
    assert typed(capsys, "report", "odd.jsonl", "-o", "odd.html", "--no-charts")[0] == 0


@pytest.mark.promise("TRN-22")
def test_how_many_drives_are_enough() -> None:
    curve = [(8, 4.15), (1, 5.04), (2, 4.17), (4, 4.14)]
    assert scaling.enough(curve, 0.05) == 2 and scaling.enough(curve, 0.01) == 2 and scaling.enough(curve, 0.001) == 4
    assert scaling.enough([(1, 8.0), (2, 4.0), (4, 2.0)], 0.05) is None
    # A number that gains nothing is no end where a larger one does.
    assert scaling.enough([(1, 4.0), (2, 4.0), (4, 2.0), (8, 2.0)], 0.05) == 4
    assert scaling.enough([(1, 4.0), (2, 4.3)], 0.05) == 1
    assert scaling.enough([(1, 4.0)], 0.05) is None and scaling.enough([], 0.05) is None


@pytest.mark.promise("TRN-21")
def test_what_cannot_be_is_refused_by_name(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, said in (
        ((), "--system d74h-7u or --system d54u-3u"),
        (("--system", "dgx"), "isn't one of preset drive-scaling"),
        (("--system", "d74h-7u", "--scale", "0.1"), "no --scale"),
        (("--system", "d74h-7u", "--set", "depth=2"), "no --set"),
        (("--system", "d74h-7u", "--model", "dlrm"), "forebay train datagen dlrm --dir DIR"),
        (("--system", "d74h-7u", "--seconds", "0.1"), "--seconds 10"),
        (("nowhere", "--system", "d74h-7u", "--model", "toy", "--batch-size", "0"), "--batch-size"),
    ):
        code, _, err = typed(capsys, "sweep", "drive-scaling", *words)
        assert code == 2 and said in err, (words, err)
    code, _, err = typed(capsys, "sweep", "solidigm-gds", "nil:", "--system", "d74h-7u")
    assert code == 2 and "trains nothing" in err
    for text, said in (
        (SMALL.replace("drives = [1, 2]", "drives = [2, 1]"), "drives = [1, 2, 4, 8]"),
        (SMALL.replace("gpus = 2", "gpus = 0"), "number 1"),
        (SMALL + '[job]\nop = "read"\n', "stands beside jobs"),
        (SMALL.replace("D3-S4520", "D0-NONE"), "one of D7-PS1010"),
    ):
        Path("mine.toml").write_text(text)
        code, _, err = typed(capsys, "sweep", "mine.toml", "--system", "mine")
        assert code == 2 and said in err, (text, err)
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.long
@pytest.mark.promise("TRN-21")
def test_the_toy_runs_a_sweep_of_ones_own(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real trainings at real, slow supplies, which no busy machine exceeds."""
    from forebay.train import data

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(drives.SECONDS, "toy", (2.0, 0.4))
    data.generate(tmp_path / "clicks", 5, 4000, 500, 20)
    Path("mine.toml").write_text(SMALL.replace("[1, 2]", "[2]"))
    words = ("mine.toml", "clicks", "--model", "toy", "--system", "mine", "--scale-to-peak", "--batch-size", "64")
    code, out, _ = typed(capsys, "sweep", *words, "--dry-run", "--json")
    listed = json.loads(out)
    assert code == 0 and [p["name"] for p in listed["points"]] == ["2 × D3-S4520"]
    # A machine that stands still for a moment may refuse a supply by the clock: the same command tries that again.
    for _ in range(8):
        code, out, err = typed(capsys, "sweep", *words, "-o", "out.jsonl", "--json")
        if code == 0:
            break
        assert "--supply model:" in json.loads(out)["failed"][0]["asked"], err
    found = json.loads(out)
    assert found["finished"] == 1 and not found["failed"] and [r["drives"] for r in found["rows"]] == [2]
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "error" not in line]
    assert [line["schema"] for line in lines] == ["forebay.sweep/1"] * 2 + ["forebay.point/1"]
    for line in lines[2:]:
        part, point = line["record"]["train"], line["point"]
        assert part["supply"]["scaled_by"] == point["factor"] and part["supply"]["asked_gib_s"] == point["supply_gib_s"]
        assert part["optimizer"] == "numpy" and part["batch"] == 64
        # From the first batch on: what its rate in between may exceed after a stall.
        assert part["samples"] - 2 * 64 <= 1.02 * part["seconds"] * point["supply_gib_s"] * GIB / 912
