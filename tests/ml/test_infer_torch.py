"""`forebay infer` with PyTorch on the host: ResNet-50, BERT and DLRMv2 answer as their float32 networks do (make test-ml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ml

COUNTS = {"resnet50": 12, "bert": 4, "dlrm": 3}


@pytest.fixture
def small_bert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of BERT-large: all of them take minutes on the CPU."""
    from forebay.infer import networks

    monkeypatch.setattr(networks, "BERT_LAYERS", 2)


@pytest.mark.promise("INF-11")
@pytest.mark.parametrize("name", list(COUNTS))
@pytest.mark.usefixtures("small_bert")
def test_a_model_answers_as_its_float32_network_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlperf_loadgen")
    pytest.importorskip({"resnet50": "torchvision", "bert": "transformers", "dlrm": "torch"}[name])
    from forebay.infer import command, data, networks, search
    from forebay.train import supply

    monkeypatch.setattr(command, "PEAK_S", 0.05)
    monkeypatch.setattr(search, "PROBE_S", 0.05)
    folder, tables = tmp_path / name, 50 if name == "dlrm" else 0
    about = data.About(name, 1, COUNTS[name], data.row_bytes(name), 0, tables)
    data.generate(folder, about, networks.weights(name, 1, tables))

    def ran(mode: str, **more: Any) -> dict[str, Any]:
        request = command.Request(
            name, mode, "Offline", folder, data.open_folder(folder, name), supply.parse(None), "cpu", seconds=0.2, **more
        )
        made = command.Run(request)
        assert made.measure() is None
        part: dict[str, Any] = made.record()["infer"]
        made.close()
        return part

    found = [ran(mode, accuracy=True)["accuracy"] for mode in ("ram", "cold")]
    assert len({part["answers_hash"] for part in found}) == 1
    for part in found:
        assert part["rows_intact"] == part["samples"] == COUNTS[name]
        # Folded batch normalisation rounds otherwise; the classes of random weights may lie that close.
        assert part["agree_pct"] >= 90
    assert name == "resnet50" or max(part["max_abs_difference"] for part in found) < 1e-3
    fast = ran("ram")
    assert fast["samples_per_s"] > 0 and fast["timed_storage_bytes"] == 0
    start = ran("coldstart")
    assert start["why"] is None and start["coldstart"]["total_s"] > 0 and start["load_bytes"] > 0


@pytest.mark.promise("INF-11")
def test_lookups_beyond_their_table_are_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch
    from forebay.infer import data, networks

    tensors = {key: torch.from_numpy(values) for key, values in networks.weights("dlrm", 1, 20).items()}
    model = networks.Model("dlrm", tensors, "cpu", 20)
    rows = data.rows_of("dlrm", 1, 0, 2, 20)
    model.finish(model.launch(torch.from_numpy(rows.copy())))
    assert model.problem() is None
    rows.view(np.int32)[1, 2 * 228 + 20] = 1 << 30
    model.finish(model.launch(torch.from_numpy(rows.copy())))
    assert model.problem() == "1 look-ups of the samples are beyond their table"


@pytest.mark.promise("INF-11")
def test_trained_weights_answer_with_the_quality_that_their_training_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlperf_loadgen")
    torch = pytest.importorskip("torch")
    from forebay.errors import RequestError
    from forebay.infer import command, data, search, trained
    from forebay.train import data as rows_of
    from forebay.train import dlrm, saved, supply

    monkeypatch.setattr(command, "PEAK_S", 0.05)
    monkeypatch.setattr(search, "PROBE_S", 0.05)
    about = rows_of.generate(tmp_path / "rows", 3, 300, 2 * data.PAIRS, 50)
    model = dlrm.Model(about.tables, 3, "cpu")
    model.step(torch.as_tensor(np.fromfile(tmp_path / "rows" / rows_of.TRAIN, np.int32).reshape(-1, rows_of.WORDS)))
    part = {"model": "dlrm", "seed": 3, "samples": 300, "data": {"seed": 3, "rows": 300}, "quality_name": "AUC"}
    saved.Weights(str(tmp_path / "w")).write(model.state(), {"train": {**part, "quality": about.evaluation()(model)}})
    made = trained.generate(tmp_path / "made", tmp_path / "w", tmp_path / "rows")
    found = data.open_folder(tmp_path / "made", "dlrm")
    assert found == made and made.samples == 2
    run = command.Run(
        command.Request("dlrm", "ram", "Offline", tmp_path / "made", found, supply.parse(None), "cpu", seconds=0.2, accuracy=True)
    )
    assert run.measure() is None
    quality = run.record()["infer"]["accuracy"]["quality"]
    run.close()
    assert quality["name"] == "AUC" and quality["value"] == pytest.approx(quality["trained"], abs=1e-5)
    other = rows_of.generate(tmp_path / "other", 3, 300, 2 * data.PAIRS, 60)
    with pytest.raises(RequestError, match="of shape"):
        trained.generate(tmp_path / "no", tmp_path / "w", other.folder)
