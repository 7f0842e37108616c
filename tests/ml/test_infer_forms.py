"""Models of a configuration answer as their float32 networks do, in their small forms on the host (make test-ml)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forebay.errors import RunError
from forebay.infer import data, forms

pytestmark = pytest.mark.ml


def made(folder: Path, name: str, samples: int = 6) -> Path:
    from forebay.infer import networks

    about = data.About(name, 1, samples, data.row_bytes(name, True), 0, 0, True)
    data.generate(folder, about, networks.weights(name, 1, 0, True))
    return folder


def ran(folder: Path, name: str, mode: str, scenario: str = "Offline", **more: Any) -> dict[str, Any]:
    from forebay.infer import command
    from forebay.train import supply

    more = {"seconds": 0.1, **more}
    request = command.Request(name, mode, scenario, folder, data.open_folder(folder, name), supply.parse(None), "cpu", **more)
    run = command.Run(request)
    assert run.measure() is None
    part: dict[str, Any] = run.record()["infer"]
    run.close()
    return part


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlperf_loadgen")
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from forebay.infer import command, search

    monkeypatch.setattr(command, "PEAK_S", 0.05)
    monkeypatch.setattr(search, "PROBE_S", 0.05)


@pytest.mark.promise("INF-13")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", forms.NAMES)
def test_a_form_answers_as_its_float32_network_does(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / name, name)
    found = [ran(folder, name, mode, accuracy=True) for mode in ("ram", "cold")]
    assert len({part["accuracy"]["answers_hash"] for part in found}) == 1
    for part in found:
        assert part["form"] == "small"
        assert part["accuracy"]["rows_intact"] == part["accuracy"]["samples"] == 6
        assert part["accuracy"]["agree_pct"] == 100 and part["accuracy"]["max_abs_difference"] < 0.1
    fast = ran(folder, name, "ram")
    assert fast["samples_per_s"] > 0 and fast["timed_storage_bytes"] == 0
    tokens = forms.form(name, True).tokens
    assert (fast["tokens"] or {}).get("each") == (tokens or None)
    start = ran(folder, name, "coldstart")
    assert start["why"] is None and start["load_bytes"] > 0


@pytest.mark.promise("INF-13")
def test_a_small_form_is_computed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for one another after each of its short layers were 10 to 140 times slower beside other work."""
    torch = pytest.importorskip("torch")
    from forebay.infer import language, networks

    form, before = forms.form("llama", True), torch.get_num_threads()
    tensors = {name: torch.zeros(each.shape) for name, each in networks.weights("llama", 1, 0, True).items()}
    try:
        for asked, wanted in ((None, 1), ("3", 3)):
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            if asked is not None:
                monkeypatch.setenv("OMP_NUM_THREADS", asked)
            torch.set_num_threads(3)
            model = language.Model(form, tensors, "cpu")
            assert torch.get_num_threads() == wanted
            model.close()
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.promise("INF-14")
@pytest.mark.usefixtures("quick")
def test_the_first_token_is_told_when_it_is_there(tmp_path: Path) -> None:
    folder = made(tmp_path / "llama", "llama")
    # A rate that this machine has, whatever else runs on it.
    most = ran(folder, "llama", "ram", "Offline")["samples_per_s"]
    part = ran(folder, "llama", "ram", "Server", target_qps=min(200.0, 0.3 * most))
    assert part["valid"] and part["why"] is None
    tokens = part["tokens"]
    assert tokens["bounds_ms"] == [2000.0, 200.0] and part["latency_bound_ms"] is None
    assert 0 < tokens["first_ms"]["p50"] < part["latency_ms"]["p50"]
    # The rest of the answer is the tokens after the first.
    assert tokens["after_ms"]["p50"] > 0
    assert tokens["first_ms"]["p50"] + 7 * tokens["after_ms"]["p50"] == pytest.approx(part["latency_ms"]["p50"], rel=0.9)


@pytest.mark.promise("INF-14")
@pytest.mark.parametrize("name", ["gptj", "llama", "mixtral"])
def test_what_the_cache_keeps_changes_no_token(name: str) -> None:
    """Each token follows from those before it, read anew; whoever else is answered at the same time."""
    torch = pytest.importorskip("torch")
    from forebay.infer import language, networks

    form = forms.form(name, True)
    tensors = {
        key: torch.from_numpy(np.concatenate([each.part(n) for n in range(each.parts)]).reshape(each.shape).copy())
        for key, each in networks.weights(name, 3, 0, True).items()
    }
    model = language.Model(form, tensors, "cpu")
    rows = data.rows_of(name, 3, 0, 3, 0, True)
    together = model.finish(model.launch(rows))
    alone = np.concatenate([model.finish(model.launch(rows[n : n + 1])) for n in range(3)])
    assert (together == alone).all() and model.problem() is None
    words = rows.view(np.int32).reshape(3, -1)
    for n in range(3):
        text = words[n].copy()
        length = min(int(text[0]), form.inputs - 4)
        text[0] = length
        answer = model.finish(model.launch(text.view(np.uint8)[None]))[0]
        for reported in range(4):
            text[0], text[1 + length + reported] = length + reported + 1, answer[reported]
            first = model.admit(0, text.view(np.uint8)[None])
            assert first[0, 0] == answer[reported + 1]
    words[1, 5] = form.net["vocabulary"]
    model.launch(rows)
    assert "1 tokens or lengths" in (model.problem() or "")


@pytest.mark.promise("INF-16")
@pytest.mark.usefixtures("quick")
def test_tables_in_their_file_give_the_bits_of_tables_in_memory(tmp_path: Path) -> None:
    from forebay.infer import library, networks, tabled, weights

    folder, cap = tmp_path / "dlrm", 60
    about = data.generate(folder, data.About("dlrm", 1, 2, data.row_bytes("dlrm"), 0, cap), tabled.drawn(1, cap))
    path, shapes = folder / data.WEIGHTS, networks.shapes("dlrm", cap)
    rows = data.rows_of("dlrm", 1, 0, 2, cap)
    whole = networks.Model("dlrm", weights.read(path, library.HostMemory(), shapes).tensors, "cpu", cap)
    wanted = whole.finish(whole.launch(rows))
    rest = weights.read(path, library.HostMemory(), shapes, without=tabled.VECTORS)
    assert tabled.VECTORS not in rest.tensors and rest.bytes < about.weights_bytes
    model = tabled.Model(rest.tensors, "cpu", cap, path)
    assert (model.finish(model.launch(rows)) == wanted).all()
    # Each distinct row once.
    assert model.delivered == model.distinct * tabled.ROW_BYTES < model.lookups * tabled.ROW_BYTES
    held = library.InMemory(folder, about, 2, library.HostMemory())
    held.load()
    model.keep(held, 40 * tabled.ROW_BYTES)
    assert model.cached_rows == 40 and model.delivered == 0
    before = model.distinct
    assert (model.finish(model.launch(rows)) == wanted).all() and (model.reference(rows) == wanted).all()
    assert model.delivered == (model.distinct - before - model.hits) * tabled.ROW_BYTES > 0
    assert model.problem() is None
    rows.view(np.int32)[1, 2 * 228 + 20] = 1 << 30
    model.launch(rows)
    assert model.problem() == "1 look-ups of the samples are beyond their table"
    model.close()
    part = ran(folder, "dlrm", "tables", table_bytes=40 * 512)
    assert part["tables"]["cached_rows"] == 40 and 0 < part["tables"]["hit_pct"] < 100 and part["timed_storage_bytes"] > 0
    cut = tabled.Model(rest.tensors, "cpu", cap, path)
    assert cut.changed() is None
    os.truncate(path, cut._start + 5 * tabled.ROW_BYTES)
    with pytest.raises(RunError, match="of the tables of .*; the file had") as failed:
        cut.launch(rows)
    assert str(path) in failed.value.asked and "restore it" in failed.value.next
    assert "written to" in str(cut.changed())
    path.unlink()
    assert "taken away" in str(cut.changed())
    cut.close()
