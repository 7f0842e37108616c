"""`forebay infer` on a real GPU, in small forms: tables in their file by each path, cold starts, and a sweep over drives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_machine import typed
from forebay.infer import command, data, search
from forebay.train import supply

pytestmark = pytest.mark.gpu
DEVICE = "cuda:0"
SMALL = """
title = "one kind of drive, twice"
drives = [1, 2]
rounds = 1
[[system]]
name = "MINE"
gpus = 8
drives = ["D7-PS1010"]
"""


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(command, "PEAK_S", 0.05)
    monkeypatch.setattr(search, "PROBE_S", 0.05)
    return pytest.importorskip("torch", reason="PyTorch isn't there")


def made(folder: Path, name: str, samples: int = 6) -> Path:
    from forebay.infer import networks

    about = data.About(name, 1, samples, data.row_bytes(name, True), 0, 0, True)
    data.generate(folder, about, networks.weights(name, 1, 0, True))
    return folder


def ran(folder: Path, name: str, mode: str, **more: Any) -> dict[str, Any]:
    more = {"seconds": 0.1, **more}
    request = command.Request(name, mode, "Offline", folder, data.open_folder(folder, name), supply.parse(None), DEVICE, **more)
    run = command.Run(request)
    assert run.measure() is None
    part: dict[str, Any] = run.record()["infer"]
    run.close()
    return part


@pytest.mark.promise("INF-16")
@pytest.mark.parametrize("path", ["mapped", "bounce", "auto"])
def test_tables_in_their_file_give_the_bits_of_tables_in_memory(torch: Any, path: str, tmp_path: Path) -> None:
    from forebay.infer import library, networks, tabled, weights

    folder, cap = tmp_path / "dlrm", 600
    about = data.generate(folder, data.About("dlrm", 1, 4, data.row_bytes("dlrm"), 0, cap), tabled.drawn(1, cap))
    file, shapes, memory = folder / data.WEIGHTS, networks.shapes("dlrm", cap), library.GpuMemory(torch, DEVICE)
    rows = torch.from_numpy(data.rows_of("dlrm", 1, 0, 4, cap)).to(DEVICE)
    whole = networks.Model("dlrm", weights.read(file, memory, shapes).tensors, DEVICE, cap)
    # The same kernels, started one by one.
    whole.graphed = False
    wanted = whole.finish(whole.launch(rows))
    rest = weights.read(file, memory, shapes, without=tabled.VECTORS)
    model = tabled.Model(rest.tensors, DEVICE, cap, file, path)
    # By the GPU itself once all of the file is registered.
    assert all((model.finish(model.launch(rows)) == wanted).all() for _ in range(4))
    assert model.delivered == model.distinct * tabled.ROW_BYTES < model.lookups * tabled.ROW_BYTES
    held = library.InMemory(folder, about, 4, memory)
    held.load()
    model.keep(held, 400 * tabled.ROW_BYTES)
    assert model.cached_rows == 400
    before = model.distinct, model.delivered
    assert (model.finish(model.launch(rows)) == wanted).all()
    assert model.delivered - before[1] == (model.distinct - before[0] - model.hits) * tabled.ROW_BYTES > 0
    assert model.problem() is None
    held.close()
    model.close()
    whole.close()


@pytest.mark.promise("INF-16")
def test_tables_are_asked_by_the_load_generator(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    from forebay.infer import tabled

    folder, cap = tmp_path / "dlrm", 600
    data.generate(folder, data.About("dlrm", 1, 8, data.row_bytes("dlrm"), 0, cap), tabled.drawn(1, cap))
    part = ran(folder, "dlrm", "tables", table_bytes=400 * 512)
    assert part["tables"]["cached_rows"] == 400 and 0 < part["tables"]["hit_pct"] < 100 and part["timed_storage_bytes"] > 0
    checked = [ran(folder, "dlrm", "tables", table_bytes=size, accuracy=True)["accuracy"] for size in (0, 400 * 512)]
    assert len({found["answers_hash"] for found in checked}) == 1 and checked[0]["rows_intact"] == 8


@pytest.mark.promise("INF-7")
@pytest.mark.parametrize("path", ["mapped", "bounce"])
@pytest.mark.parametrize("name", ["gptj", "retinanet", "sdxl"])
def test_a_cold_start_ends_with_an_answer_of_the_files_weights(name: str, path: str, tmp_path: Path) -> None:
    part = ran(made(tmp_path / name, name), name, "coldstart", path=path)
    assert part["why"] is None and part["device"] == DEVICE and part["load_bytes"] > 0
    start = part["coldstart"]
    reported = sum(start[key] for key in ("read_s", "allocate_s", "compile_s", "first_answer_s"))
    assert np.isclose(reported, start["total_s"], rtol=0.05, atol=0.05) and min(start["read_s"], start["compile_s"]) > 0


@pytest.mark.promise("INF-15")
def test_a_short_sweep_over_drives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("mlperf_loadgen")
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    made(Path("here/retinanet"), "retinanet", 16)
    Path("inference-drives.toml").write_text(SMALL)
    words = ("--models", "retinanet", "--scenarios", "Offline", "--seconds", "0.2", "--json", "-o", "out.jsonl")
    code, out, err = typed(capsys, "sweep", "inference-drives.toml", "here", *words)
    assert code == 0, err
    found = json.loads(out)
    assert found["finished"] == 4 and not found["failed"]
    assert {row["timed_storage_bytes"] for row in found["rows"] if row["mode"] == "ram"} == {0}
    assert all(row["timed_storage_bytes"] > 0 for row in found["rows"] if row["mode"] == "cold")
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert {line["record"]["infer"]["device"] for line in records if "record" in line} == {DEVICE}
