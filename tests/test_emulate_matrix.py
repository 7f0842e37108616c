"""`forebay emulate matrix`: a paper's table of workloads, drives and numbers, and its page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import fake_storage
import pytest
from fake_machine import typed
from fake_storage import FakeStorage
from forebay.emulate import matrix
from forebay.emulate.workloads import Training, builtin

PRESET = "solidigm-mlperf"
# GiB/s of one drive.
RATES = {"d7-ps1010": 13.5, "d5-p5336": 6.5, "d3-s4520": 0.5, "mine": 3.0}


class Drives(FakeStorage):
    """A supply that the source's name tells: model:NAME?drives=N, or a folder of `mine`."""

    def au_pct(self, spec: dict[str, Any]) -> float:
        source = spec["data"][0]
        model = re.fullmatch(r"model:([\w-]+)\?drives=(\d+)", source)
        self.gib_s = RATES[model[1]] * int(model[2]) if model else RATES["mine"]
        return super().au_pct(spec)

    def record(self, spec: dict[str, Any], turn: int) -> dict[str, Any]:
        made = super().record(spec, turn)
        made["origin"] = "simulated" if spec["data"][0].startswith("model:") else "measured"
        return made


@pytest.fixture
def drives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeStorage:
    monkeypatch.chdir(tmp_path)
    return Drives(1.0).install(monkeypatch)


def expected(workload: str, rate: float) -> int:
    """What the arithmetic of supply and demand allows."""
    w = next(w for w in builtin()[workload] if isinstance(w, Training) and w.accelerator == "h100")
    return math.floor(rate * 1024 / w.mib_s / (w.au_pct_min / 100))


def run(capsys: Any, *flags: Any) -> tuple[int, dict[str, Any]]:
    code, out, _ = typed(capsys, "emulate", "matrix", PRESET, "--json", *flags)
    return code, json.loads(out)


@pytest.mark.long
@pytest.mark.promise("EMU-12")
def test_every_cell_is_the_greatest_that_its_drives_feed(drives: FakeStorage, capsys: Any) -> None:
    code, document = run(capsys)
    assert code == 0 and len(document["rows"]) == 36 and document["label"] == "MLPerf-style, unverified"
    for row in document["rows"]:
        assert row["simulated"] and row["accelerators"] == expected(row["workload"], RATES[row["drive"].lower()] * row["drives"])
    paper = {(r["workload"], r["drive"], r["drives"]): r for r in document["rows"]}
    assert paper["unet3d", "D7-PS1010", 8]["published_accelerators"] == 8
    assert paper["unet3d", "D3-S4520", 2]["published_passes"] == 0
    assert paper["resnet50", "D7-PS1010", 4]["published_accelerators"] is None


@pytest.mark.promise("EMU-12")
def test_a_real_drive_is_read_and_confirmed_and_others_stay_models(drives: FakeStorage, tmp_path: Path, capsys: Any) -> None:
    for number in (1, 2):
        train = tmp_path / f"mine-{number}" / "cosmoflow" / "train"
        train.mkdir(parents=True)
        for n in range(400):
            (train / f"img_{n:03}_of_400.tfrecord").write_bytes(b"x")
    flags = ["--drive", f"d5-p5336={tmp_path}/mine-{{n}}/{{workload}}", "--workload", "cosmoflow", "--count", 1, "--count", 2]
    code, document = run(capsys, *flags)
    assert code == 0
    real = [r for r in document["rows"] if r["drive"] == "D5-P5336"]
    assert [r["source"] for r in real] == [f"{tmp_path}/mine-{n}/cosmoflow" for n in (1, 2)]
    assert all(not r["simulated"] and r["confirmed"] and r["accelerators"] == expected("cosmoflow", 3.0) for r in real)
    assert all(r["simulated"] for r in document["rows"] if r["drive"] != "D5-P5336")
    caches = {s.get("cache") for s in drives.specs if s["data"][0].startswith(str(tmp_path))}
    assert caches == {"drop"}


def test_a_second_call_makes_no_run_twice(drives: FakeStorage, capsys: Any) -> None:
    flags = ["--workload", "unet3d", "--count", 1]
    first = run(capsys, *flags)[1]
    made = len(drives.specs)
    assert run(capsys, *flags)[1]["rows"] == first["rows"] and len(drives.specs) == made


@pytest.mark.long
@pytest.mark.promise("EMU-12")
def test_ctrl_c_keeps_the_cells_and_the_next_call_goes_on(drives: FakeStorage, capsys: Any) -> None:
    drives.interrupt_at = 6
    code, document = run(capsys, "--workload", "unet3d")
    assert code == 130
    known = [r for r in document["rows"] if r["accelerators"] is not None]
    assert 0 < len(known) < 12
    drives.interrupt_at = None
    code, document = run(capsys, "--workload", "unet3d")
    assert code == 0 and all(r["accelerators"] is not None for r in document["rows"])


@pytest.mark.promise("EMU-12")
def test_a_cell_that_cannot_run_is_named_and_the_others_are_made(
    drives: FakeStorage, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "empty").mkdir()
    flags = ("--json", "--drive", "D3-S4520=empty", "--workload", "unet3d")
    code, out, err = typed(capsys, "emulate", "matrix", PRESET, *flags)
    rows = json.loads(out)["rows"]
    assert code == 2 and "unet3d-d3-s4520-1" in err
    assert [r["accelerators"] is None for r in rows] == [r["drive"] == "D3-S4520" for r in rows]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["nothing"], PRESET),
        ([PRESET, "--drive", "D7-PS1010"], "NAME=SOURCE"),
        ([PRESET, "--drive", "X=/y"], "D7-PS1010"),
        ([PRESET, "--drive", "D7-PS1010=/a", "--drive", "d7-ps1010=/b"], "second time"),
        ([PRESET, "--workload", "dlrm"], "resnet50"),
        ([PRESET, "--count", "0"], "--count 0"),
        ([PRESET, "--probe", "0"], "--probe 0"),
        ([PRESET, "--confirm", "x"], "--confirm x"),
    ],
)
def test_a_wrong_request_is_refused_by_name(drives: FakeStorage, flags: list[str], said: str, capsys: Any) -> None:
    code, _, err = typed(capsys, "emulate", "matrix", *flags)
    assert code == 2 and said in err and not drives.specs


def test_drives_whose_folders_are_missing_are_refused_before_anything_runs(
    drives: FakeStorage, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "mine-1" / "unet3d").mkdir(parents=True)
    for source in (f"{tmp_path}/mine-{{n}}/{{workload}}", f"file:{tmp_path}/mine-{{n}}/{{workload}}", "mine-{n}/{workload}"):
        code, out, err = typed(capsys, "emulate", "matrix", PRESET, "--workload", "unet3d", "--drive", f"D3-S4520={source}")
        first = source.replace("{n}", "2").replace("{workload}", "unet3d")
        assert code == 2 and out == "", err
        assert f"--drive D3-S4520={source}: there is no {first}, nor 2 others that it names" in err, err
        assert f"forebay emulate datagen --workload unet3d --accelerator h100 --data {first}" in err, err
        assert "--count" in err and not drives.specs
        # Nor is there a folder of results.
        assert sorted(f.name for f in tmp_path.iterdir()) == ["mine-1"]
    # What is there can be asked for alone, and what only the engine can look for isn't looked for here.
    train = tmp_path / "mine-1" / "unet3d" / "train"
    train.mkdir()
    for n in range(200):
        (train / f"img_{n:03}_of_200.npz").write_bytes(b"x")
    flags = ["--workload", "unet3d", "--count", 1, "--probe", "1", "--max", 2]
    code, document = run(capsys, *flags, "--drive", "D3-S4520=mine-{n}/{workload}")
    assert code == 0 and all(row["accelerators"] for row in document["rows"])


def test_the_presets_are_whole() -> None:
    for name in matrix.presets():
        found = matrix.find(name)
        assert found.cites and found.method and set(found.workloads) <= set(builtin())
        assert len(matrix.published(found)) == len(found.workloads) * len(found.drives) * len(found.counts)


@pytest.mark.long
@pytest.mark.promise("EMU-13")
def test_the_page_draws_the_matrix_beside_the_published_cells(drives: FakeStorage, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    assert run(capsys)[0] == 0
    code, _, err = typed(capsys, "report", f"{PRESET}/matrix.jsonl", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert code == 0, err
    assert page.count("<svg") == 6 and "MLPerf-style, unverified" in page and "simulated" in page
    assert f"{expected('resnet50', 13.5):,}" in page
    # A published cell that is blank stays blank, and one that failed says so.
    assert "left blank in the published data" in page and "fails" in page
    assert "Published: Solidigm on MLPerf Storage/Training/Inference: Table 4." in page and ".txt" not in page
    # A rate stands beside what passes, and beside nothing else.
    assert "not even one accelerator passes" in page
    # The legend tells theirs from ours by more than a word.
    assert page.count('stroke-dasharray="5,4"') > 6 * 3


@pytest.mark.long
@pytest.mark.promise("EMU-13")
def test_a_search_is_drawn_as_a_curve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(tmp_path)
    storage = fake_storage.FakeStorage(10.0).install(monkeypatch)
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    for n in range(500):
        (train / f"img_{n:03}_of_500.npz").write_bytes(b"x")
    words = ("--workload", "unet3d", "--accelerator", "h100", "--data", "data")
    assert typed(capsys, "emulate", "search", *words, "--results", "found")[0] == 0
    assert storage.specs
    code, _, err = typed(capsys, "report", "found/result.json", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert code == 0, err
    assert "3 × unet3d on H100 pass, as a search found" in page and page.count("<svg") == 1
    assert "Dashed: 90 %, the minimum." in page and "Emulated training" in page
