"""Data sets and flags of the models that are trained for speed. Without PyTorch."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_machine import typed
from forebay import feed
from forebay.errors import RequestError
from forebay.train import command, forms, real, run, samples, series, show, supply
from forebay.units import GIB
from properties import parametrized

# Bytes a sample: what the benchmark's has, by the shapes.
BYTES = {
    "bert": 4 * (512 + 512 + 76 + 76 + 1 + 1),
    "lora": 4 * 8192,
    "diffusion": 4 * (8 * 64 * 64 + 77 * 1024),
    "ssd": 320 * 320 * 3 + 16 * (16 + 4),
    "resnet": 224 * 224 * 3 + 8,
}
# Samples a second of one GPU at full size, and what it then takes in MB/s.
NEEDS = {"bert": (249, 1.2), "lora": (1.9, 0.06), "diffusion": (89, 39.7), "ssd": (66, 20.3), "resnet": (3976, 598.5)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, samples.About]:
    at = tmp_path_factory.mktemp("speed")
    return {name: samples.generate(at / name, forms.form(name, forms.SMALL), 5, 60) for name in forms.NAMES}


@pytest.mark.promise("TRN-46")
@pytest.mark.parametrize("name", forms.NAMES)
def test_rows_have_the_benchmarks_bytes_and_are_those_of_the_seed(name: str, made: dict[str, samples.About]) -> None:
    full = forms.form(name)
    assert full.row_bytes == BYTES[name] and full.row_bytes % 8 == 0
    rate, mb_s = NEEDS[name]
    assert rate * full.row_bytes / 1e6 == pytest.approx(mb_s, rel=0.05)
    rows = samples.rows_of(full, 5, 0, 2)
    assert rows.shape == (2, full.words) and samples.faults(full, rows) is None
    about = made[name]
    form = about.form
    words = np.fromfile(about.folder / "train.bin", np.int32).reshape(-1, form.words)
    assert len(words) == 60 and samples.faults(form, words) is None and about.first_fault() is None
    assert (words[: form.chunk] == samples.rows_of(form, 5, 0, min(60, form.chunk))).all()
    other = samples.rows_of(form, 6, 0, min(60, form.chunk))
    assert (other != words[: len(other)]).any(axis=1).all()
    assert samples.open_folder(about.folder, name) == about and samples.model_of(about.folder) == name


@pytest.mark.promise("TRN-46")
@parametrized("name", forms.NAMES, kept=(0, 3))
def test_the_loader_reads_its_fields_by_name(name: str, made: dict[str, samples.About]) -> None:
    about = made[name]
    row = np.dtype(about.form.row())
    assert row.itemsize == about.row_bytes
    batch = next(iter(feed.Loader(feed.rows(about.folder / "train.bin", row), 10, shuffle="none")))
    words = np.fromfile(about.folder / "train.bin", np.int32).reshape(-1, about.form.words)[:10]
    fields = samples.fields_of(about.form, words)
    assert all((np.asarray(batch[each.name]) == fields[each.name]).all() for each in about.form.fields)
    kinds = json.loads((about.folder / "dataset.json").read_text())["fields"]
    assert kinds == about.form.document()


@pytest.mark.promise("TRN-46")
def test_the_first_number_that_cannot_be_read_is_named(made: dict[str, samples.About], tmp_path: Path) -> None:
    form = made["bert"].form
    words = samples.rows_of(form, 5, 0, 60)
    words[40, 3] = 200
    assert samples.faults(form, words, 1000) == "sample 1,040: input[3] is 200, which is not from 0 to 199"
    form = made["diffusion"].form
    words = samples.rows_of(form, 5, 0, 4)
    words.view(np.float32)[1, 2] = np.inf
    assert "sample 1: moments[2] is inf" in (samples.faults(form, words) or "")


@pytest.mark.promise("TRN-46", "TRN-8")
def test_another_data_set_is_refused(made: dict[str, samples.About], tmp_path: Path) -> None:
    about = made["resnet"]
    said = json.loads((about.folder / "dataset.json").read_text())
    for number, (changes, answered) in enumerate(
        [
            ({"schema": "x"}, "schema 'x'"), ({"model": "bert"}, "for 'bert'"), ({"form": "tiny"}, "isn't what datagen writes"),
            ({"row_bytes": 8}, "rows of 8 bytes"), ({"rows": 61}, "bytes;"), ({"seed": None}, "isn't what datagen writes"),
            ({"form": "full"}, "rows of 3080 bytes"),
        ]
    ):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.bin").write_bytes((about.folder / "train.bin").read_bytes())
        (folder / "dataset.json").write_text(json.dumps({**said, **changes}))
        with pytest.raises(RequestError, match=answered):
            samples.open_folder(folder, "resnet")
    (folder / "dataset.json").write_text(json.dumps({**said, "seed": 6}))
    with pytest.raises(RequestError, match="seed 6"):
        samples.refuse_another_seed(samples.open_folder(folder, "resnet"))
    (folder / "dataset.json").write_text("[1]")
    for call in (lambda: samples.open_folder(folder, "resnet"), lambda: samples.model_of(folder)):
        with pytest.raises(RequestError):
            call()
    with pytest.raises(RequestError, match="no data set"):
        samples.model_of(tmp_path)
    with pytest.raises(RequestError, match="isn't overwritten"):
        samples.generate(folder, about.form, 5, 10)


class Still:
    """A model that takes rows and learns nothing."""

    name, device, optimizer, rate, queued = "resnet", "cpu", "SGD", 0.1, False
    reported = {"weights": 9, "compiled": False}

    def step(self, rows: Any) -> None:
        assert rows.dtype == np.int32

    def reset(self) -> None: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...
    def problem(self) -> None: ...


@pytest.mark.long
@pytest.mark.promise("TRN-46", "TRN-9")
def test_needs_are_rate_times_the_data_sets_bytes_and_every_null_has_its_reason(
    made: dict[str, samples.About], monkeypatch: pytest.MonkeyPatch
) -> None:
    about = made["resnet"]
    monkeypatch.setattr(command, "SUPPLY_SHORT", 1.0)  # a busy machine's clock refuses nothing
    request = command.Request(about, supply.parse("0.002"), 5, samples=300, quality=False, peak_s=0.04, check_s=0.02)
    ran = command.Run(request, Still(), False)
    assert ran.measure() is None
    record = ran.record()
    part = record["train"]
    scale = about.row_bytes / GIB
    assert part["demand_gib_s"] == pytest.approx(part["peak_samples_per_s"] * scale)
    assert part["rate_gib_s"] == pytest.approx(part["samples_per_s"] * scale) and part["data"]["row_bytes"] == about.row_bytes
    # The upper side of the law: the supply's bytes, and what was read ahead.
    assert part["samples"] * scale <= 0.002 * part["seconds"] + 64 * 5 * scale
    nulls = {key for key, value in part.items() if value is None} - {"quality_target", "evaluate_every"}
    assert all(record["missing"].get(f"train.{key}") for key in nulls) and part["weights"] == 9
    assert record["missing"]["train.quality"] == "resnet is trained for speed alone"
    assert part["supply"]["asked_gib_s"] == 0.002 and series.settings(record) == series.asked(request, Still())
    whole, words = run.Digest(), np.fromfile(about.folder / "train.bin", np.int32).reshape(-1, about.form.words)
    for _ in range(5):
        whole.add(words)
    assert part["batch_hash"] == whole.text()


@pytest.mark.long
@pytest.mark.promise("TRN-56")
def test_rows_of_real_text_are_of_other_files_where_they_evaluate(tmp_path: Path, capsys: Any) -> None:
    code, out, _ = typed(capsys, "train", "datagen", "bert", "--quality", "--rows", 500, "--dir", tmp_path / "b")
    assert code == 0 and "the sources of Python's library; target 0." in out
    about = samples.open_folder(tmp_path / "b", "bert")
    samples.refuse_another_seed(about)
    form = forms.form("bert", forms.REAL)
    rows = samples.fields_of(form, np.fromfile(tmp_path / "b" / "train.bin", np.int32).reshape(-1, form.words))
    each = np.arange(500)[:, None]
    assert (rows["input"][each, rows["position"]] == forms.MASK).all()
    rows["input"][each, rows["position"]] = rows["masked"]
    train, rest = (part.tobytes() for part in real.texts())
    follows = rows[rows["next"][:, 0] == 1]
    assert 150 < len(follows) < 350 and all(row["input"].astype(np.uint8).tobytes() in train for row in follows[:20])
    evaluated = np.fromfile(tmp_path / "b" / "evaluate.bin", np.int32).reshape(-1, form.words)
    assert len(evaluated) == about.evaluation_rows == form.quality.rows  # type: ignore[union-attr]
    assert about.evaluation()(Guesser(0.25)) == 0.25 and about.sources["bytes"] == len(train) + len(rest)  # type: ignore[index]
    words = samples.rows_of(forms.form("lora", forms.REAL), 1, 0, 3, real.EVALUATION)
    assert all(row.astype(np.uint8).tobytes() in rest for row in words)
    # A row changed, another file to evaluate on, and what can't be.
    for name, answered in (("train.bin", "doesn't hold the rows of seed 0"), ("evaluate.bin", "input")):
        whole = (tmp_path / "b" / name).read_bytes()
        (tmp_path / "b" / name).write_bytes((-9).to_bytes(4, "little", signed=True) + whole[4:])
        with pytest.raises(RequestError, match=answered):
            samples.refuse_another_seed(about)
            about.evaluation()
        (tmp_path / "b" / name).write_bytes(whole)
    (tmp_path / "b" / "evaluate.bin").write_bytes(whole[:-4])
    with pytest.raises(RequestError, match=r"evaluate\.bin"):
        samples.open_folder(tmp_path / "b", "bert")
    for words_, said in ((("bert", "--quality", "--small"), "two forms"), (("dlrm", "--quality"), "is none of dlrm")):
        code, _, err = typed(capsys, "train", "datagen", *words_, "--dir", tmp_path / "x")
        assert code == 2 and said in err
    if importlib.util.find_spec("sklearn") is None:
        code, _, err = typed(capsys, "train", "datagen", "resnet", "--quality", "--dir", tmp_path / "x")
        assert code == 3 and "pip install scikit-learn" in err
    assert not (tmp_path / "x").exists()


class Guesser:
    """A model of one quality."""

    def __init__(self, quality: float) -> None:
        self.quality = quality

    def quality_of(self, rows: Any) -> float:
        return self.quality


@pytest.mark.promise("TRN-56", "TRN-9")
def test_a_run_ends_at_its_quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SUPPLY_SHORT", 1.0)  # a busy machine's clock refuses nothing
    monkeypatch.setattr(feed, "Loader", functools.partial(feed.Loader, prefetch=2))
    about = samples.generate(tmp_path / "l", forms.form("lora", forms.REAL), 0, 64)

    class Learner(Still):
        name, seen = "lora", 0

        def step(self, rows: Any) -> None:
            self.seen += len(rows)

        def reset(self) -> None:
            self.seen = 0

        def quality_of(self, rows: Any) -> float:
            return min(0.9, self.seen / 100)

    request = command.Request(about, supply.parse("0.0005"), 8, target=0.4, evaluate_every=16, peak_s=0.04, check_s=0.02)
    ran = command.Run(request, Learner(), False)
    assert ran.measure() is None
    part = ran.record()["train"]
    assert [(e["samples"], e["quality"]) for e in part["evaluations"]] == [(16, 0.16), (32, 0.32), (48, 0.48)]
    assert part["samples_to_target"] == 48 and part["quality_name"] == "accuracy of the next byte"
    assert part["quality"] == 0.48 and part["data"]["sources"]["sha256"]
    assert "; target 0.4000 · target reached" in show.quality(part, {})
    speed = samples.generate(tmp_path / "s", forms.form("lora", forms.SMALL), 0, 64)
    with pytest.raises(RequestError, match="for speed alone"):
        command.Request(speed, supply.parse(None), 8, target=0.4).check("cpu")


@pytest.mark.promise("TRN-46")
def test_datagen_and_its_flags(tmp_path: Path, capsys: Any) -> None:
    words = ("--dir", tmp_path / "s", "--small", "--rows", 9, "--seed", 3, "--json")
    code, out, _ = typed(capsys, "train", "datagen", "ssd", *words)
    answered = json.loads(out)
    assert code == 0 and answered["model"] == "ssd" and (answered["rows"], answered["seed"], answered["form"]) == (9, 3, "small")
    assert (tmp_path / "s" / "train.bin").stat().st_size == 9 * answered["row_bytes"]
    code, out, _ = typed(capsys, "train", "datagen", "bert", "--dir", tmp_path / "b", "--rows", 3)
    assert code == 0 and "3 rows" in out and "next: forebay train bert --dir" in out
    for wrong, said in (
        (("bert", "--table-rows", 5), "is none of bert"), (("dlrm", "--small"), "is none of dlrm"),
        (("lora", "--rows", 0), "is below 1"),
    ):  # fmt: skip
        code, _, err = typed(capsys, "train", "datagen", *wrong, "--dir", tmp_path / "x")
        assert code == 2 and said in err, err
    assert not (tmp_path / "x").exists()
    if importlib.util.find_spec("torch") is None:
        for name in forms.NAMES:
            code, _, err = typed(capsys, "train", name, "--dir", tmp_path / "b")
            assert code == 3 and "pip install torch" in err
