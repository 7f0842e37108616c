"""Graphs of `forebay train datagen gnn`, and what a run on one advises. The model: tests/ml/test_train_gnn.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_machine import typed
from forebay.errors import RequestError
from forebay.train import gnn_record, graph

NODES, CLASSES = 3000, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("graph") / "g"
    graph.generate(made, 5, NODES, CLASSES)
    return made


@pytest.mark.promise("TRN-52")
def test_a_graph_is_its_seeds_and_has_a_known_best(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = graph.open_folder(folder)
    assert (folder / graph.FEATURES).stat().st_size == NODES * 2048 and about.rows + about.evaluation_rows == NODES
    monkeypatch.setattr(graph.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    graph.generate(tmp_path / "again", 5, NODES, CLASSES)
    for name in graph.names():
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name
    label, relations = graph.read(about)
    trained = graph.training(about)(0, about.rows)
    asked = graph.evaluation(about)
    assert len(set(trained)) == about.rows and len(set(asked)) == about.evaluation_rows and not set(trained) & set(asked)
    assert about.best == pytest.approx((label[asked] == asked % CLASSES).mean(), abs=1e-6) and 0.8 < about.best < 1
    for begins, found in relations:
        degrees = np.diff(begins)
        assert degrees.min() >= graph.DEGREE_MIN and degrees.max() > 8 * np.median(degrees), "few nodes have many neighbours"
        owners = np.repeat(np.arange(NODES), degrees)
        assert 0.5 < (found % CLASSES == owners % CLASSES).mean() < 0.65
    assert (relations[0][1][:100] != relations[1][1][:100]).any()
    # A class's nodes lie near its centre.
    rows = np.fromfile(folder / graph.FEATURES, np.float16).reshape(NODES, -1).astype(np.float32)
    centres = np.stack([rows[c::CLASSES].mean(0) for c in range(CLASSES)])
    nearest = (rows @ centres.T - (centres**2).sum(1) / 2).argmax(1)
    assert 0.3 < (nearest == np.arange(NODES) % CLASSES).mean()


@pytest.mark.promise("TRN-52")
def test_a_graph_that_is_another_or_damaged_is_refused(folder: Path, tmp_path: Path, capsys: Any) -> None:
    def damaged(name: str, change: Callable[[Path], object]) -> Path:
        into = tmp_path / f"damaged-{len(list(tmp_path.iterdir()))}"
        into.mkdir()
        for each in graph.names():
            (into / each).symlink_to(folder / each)
        (into / name).unlink()
        change(into / name)
        return into

    def written(values: Any) -> Callable[[Path], object]:
        return lambda path: np.save(path, values)

    label, relations = graph.read(graph.open_folder(folder))
    wrong, beyond = label.copy(), relations[1][1].copy()
    wrong[7], beyond[3] = CLASSES, NODES
    for name, change, said in (
        (graph.LABELS, written(wrong), "node 7 has the label 8"),
        (graph.LABELS, written(label[:-1]), "has the shape (2999,)"),
        (graph.neighbours_of(1), written(beyond), "edge 3 leads to node 3000"),
        (graph.begins_of(2), written(relations[2][0][::-1]), "doesn't rise from 0"),
        (graph.begins_of(2), lambda path: path.write_bytes(b"x"), "begins-2.npy"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match="datagen gnn") as refused:
            graph.read(graph.open_folder(damaged(name, change)))
        assert said in refused.value.found
    for name, content, said in (
        (graph.FEATURES, "x", "has 1 bytes"),
        (graph.ABOUT, "{}", "is of schema None"),
        (graph.ABOUT, json.dumps({"schema": graph.SCHEMA, "row_bytes": 2048}), "isn't what datagen writes"),
    ):
        with pytest.raises(RequestError) as refused:
            graph.open_folder(damaged(name, lambda path, content=content: path.write_text(content)))
        assert said in refused.value.found
    other = {**json.loads((folder / graph.ABOUT).read_text()), "seed": 6}
    with pytest.raises(RequestError, match="rows of seed 6"):
        about = graph.open_folder(damaged(graph.ABOUT, lambda path: path.write_text(json.dumps(other))))
        graph.refuse_another_seed(about)
    for words, said in ((("--nodes", "10"), "is not between 1,000 and"), (("--rows", "10"), "is none of gnn's")):
        code, _, err = typed(capsys, "train", "datagen", "gnn", "--dir", tmp_path / "new", *words)
        assert code == 2 and said in err
    code, _, err = typed(capsys, "train", "datagen", "dlrm", "--dir", tmp_path / "new", "--nodes", "1000")
    assert code == 2 and "is none of dlrm's" in err and not (tmp_path / "new").exists()
    with pytest.raises(RequestError):
        graph.fan_out("4,0")


def part_of(way: str, load_s: float, memory_s: float | None, gathered_s: float | None, **more: Any) -> dict[str, Any]:
    ways = {
        "bulk": {"load_s": load_s, "epoch_s": memory_s, "sum_s": None, "measured": way == "bulk"},
        "gather": {"load_s": 0.0, "epoch_s": gathered_s, "sum_s": None, "measured": way == "gather"},
    }
    pays, _ = gnn_record.epochs(ways)
    of = {"way": way, "load_s": load_s if way == "bulk" else None, "load_gib_s": 2.0, "feature_bytes": 8 << 30, "ways": ways,
          "bulk_wins_from_epochs": pays}  # fmt: skip
    return {
        "graph": of, "device": "cuda:0", "seconds": 30.0, "supply_gib_s": 2.0, "demand_gib_s": 1.0, "samples_per_s": 900.0,
        "peak_samples_per_s": 1000.0, "supply": {"kind": "the loader", "gpus": 1}, "cached": True, "path": "mapped",
        "input_wait_pct": 1.0, **more,
    }  # fmt: skip


@pytest.mark.promise("TRN-54")
@pytest.mark.parametrize(
    ("load_s", "memory_s", "gathered_s", "pays", "said"),
    [
        (10.0, 5.0, 7.0, 5.0, "from 5 epochs on"),
        (10.0, 5.0, 9.0, 2.5, "from 3 epochs on (2.50)"),
        (1.0, 5.0, 9.0, 0.25, "from the first epoch on: an epoch"),
        (10.0, 5.0, 5.0, None, "that costs no time, as an epoch takes 5.0 s gathered and 5.0 s from memory; a load of"),
        (10.0, 5.0, None, None, "can't be told"),
    ],
)
def test_a_load_pays_from_its_seconds_over_what_an_epoch_saves(
    load_s: float, memory_s: float, gathered_s: float | None, pays: float | None, said: str
) -> None:
    for way in ("bulk", "gather"):
        part = part_of(way, load_s, memory_s, gathered_s)
        assert part["graph"]["bulk_wins_from_epochs"] == pays
        found = {each["area"]: each["text"] for each in gnn_record.reported(part)}
        assert list(found) == ["storage", "gds", "balance", "epochs"] and said in found["epochs"]
        if way == "bulk":
            assert f"{100 * load_s / (load_s + 30):.0f}" in found["storage"] and "out of the page cache" in found["storage"]
            assert "came by mapped" in found["gds"] and "90" in found["balance"]
        else:
            assert "page cache" in found["storage"] and "compute-bound" in found["gds"]
