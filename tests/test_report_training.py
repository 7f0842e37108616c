"""Emulated training on the page of `forebay report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from fake_storage import FakeStorage

UNET = ("--workload", "unet3d", "--accelerator", "h100", "--data", "data")


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeStorage:
    """What feeds three H100s of 3D U-Net, and a data set of 200 files in the working directory."""
    monkeypatch.chdir(tmp_path)
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    for n in range(200):
        (train / f"img_{n:03}_of_200.npz").write_bytes(b"x")
    return FakeStorage(10.0).install(monkeypatch)


def page_of(capsys: Any, *arguments: Any) -> str:
    code, _, err = typed(capsys, "report", *arguments, "-o", "page.html", "--force")
    assert code == 0, err
    return Path("page.html").read_text()


@pytest.mark.long
@pytest.mark.promise("EMU-13")
def test_a_search_is_drawn_as_a_curve(storage: FakeStorage, capsys: Any) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    assert typed(capsys, "emulate", "search", *UNET, "--results", "found")[0] == 0
    assert storage.specs
    page = page_of(capsys, "found/result.json")
    assert "3 × unet3d on H100 pass, as a search found" in page and page.count("<svg") == 1
    assert "Dashed: 90 %, the minimum." in page and "Emulated training" in page
    assert "MLPerf-style, unverified" in page and "the storage: the accelerators waited for it" in page


@pytest.mark.promise("EMU-13")
def test_single_runs_stand_in_a_table_with_what_they_waited_for(storage: FakeStorage, capsys: Any) -> None:
    storage.client_gib_s = 9.0
    for number, code in ((2, 0), (4, 1)):
        words = ("emulate", "run", *UNET, "--accelerators", number, "-o", f"{number}.json", "-q")
        assert typed(capsys, *words)[0] == code
    page = page_of(capsys, "2.json", "4.json", "--no-charts")
    assert "2 × unet3d on H100 pass" in page and "<svg" not in page
    assert "fails" in page and "passes" in page and "Waited for storage" in page
    assert "The client was measured" in page, "the record's own warning"


@pytest.mark.promise("EMU-13")
def test_a_damaged_part_is_shown_as_far_as_it_goes(storage: FakeStorage, capsys: Any) -> None:
    assert typed(capsys, "emulate", "run", *UNET, "-o", "run.json", "-q")[0] == 0
    record = json.loads(Path("run.json").read_text())
    for part in ({}, {"workload": 7, "accelerators": "x", "au_pct": [], "curve": [{}, {"accelerators": 1}], "waited": None}):
        Path("odd.json").write_text(json.dumps({**record, "training": part}))
        assert "Emulated training" in page_of(capsys, "odd.json", "--no-charts")


@pytest.mark.promise("EMU-13")
def test_a_line_is_broken_at_a_blank_cell_and_a_failed_run_is_a_cross() -> None:
    """As the published table has them: 3D U-Net failed on two D3-S4520, and most numbers of drives are blank."""
    pytest.importorskip("altair")
    from forebay.report import load, training
    from forebay.report.runs import Run

    record = {"search": {"accelerators": 8}, "training": {"workload": "unet3d", "throughput_mib_s": 2.0}}
    run = Run(load.Entry(record, "cells.jsonl"))
    run.entry.point.update({"workload": "unet3d", "drive": "D7-PS1010", "drives": 2})
    theirs = training.rows(training.MATRICES["solidigm-mlperf"])
    chart = training.by_drives("m", "unet3d", training.METRICS[0], [run], theirs)
    assert chart is not None and "A cross is a run that failed" in chart.desc
    published = [r for r in chart.rows if r["series"].endswith("published")]
    parts = {(r["series"], r["drives"]): r["part"] for r in published}
    assert chart.draw().to_dict()["layer"]
    assert len({parts[key] for key in parts if key[0].startswith("D7")}) == 2
    failed = [(r["series"], r["drives"]) for r in published if r["result"] == "fails"]
    assert failed == [("D3-S4520, published", 2)] and parts[failed[0]] not in [p for key, p in parts.items() if key != failed[0]]
