"""Whole models out of safetensors files beside safetensors' own functions, and vLLM's load format (make test-ml)."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ml
torch = pytest.importorskip("torch")
peer = pytest.importorskip("safetensors.torch")


class Tied(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A network whose first and last matrix are one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(11, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 11, bias=False)
        self.head.weight = self.words.weight


@pytest.mark.promise("FEED-16")
def test_a_file_loads_as_by_safetensors(tmp_path: Path) -> None:
    from forebay.errors import RequestError
    from forebay.torch import load_file

    made = {
        "a": torch.randn(3, 5), "b": torch.arange(7, dtype=torch.int64), "none": torch.empty(0, 4),
        "half": torch.randn(2, 2).bfloat16(), "one": torch.tensor(True),
    }  # fmt: skip
    peer.save_file(made, tmp_path / "x.safetensors")
    ours, theirs = load_file(tmp_path / "x.safetensors"), peer.load_file(tmp_path / "x.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in theirs)
    assert load_file(tmp_path / "x.safetensors", None, backend="pread").keys() == theirs.keys()
    for wrong in ("meta", "bogus", 1.5):
        with pytest.raises(RequestError, match="device="):
            load_file(tmp_path / "x.safetensors", wrong)


@pytest.mark.promise("FEED-16")
def test_a_model_is_filled_as_by_safetensors(tmp_path: Path) -> None:
    from forebay.torch import load_model

    saved = Tied()
    peer.save_model(saved, str(tmp_path / "tied.safetensors"))
    loaded, beside = Tied(), Tied()
    missing, unexpected = load_model(loaded, tmp_path / "tied.safetensors")
    assert (missing, unexpected) == (set(), []) == tuple(type(a)(b) for a, b in zip((set(), []), peer.load_model(
        beside, tmp_path / "tied.safetensors"), strict=True))  # fmt: skip
    assert loaded.head.weight is loaded.words.weight
    assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), saved.state_dict().values(), strict=True))
    peer.save_file({"words.weight": torch.ones(11, 4), "else": torch.ones(1)}, tmp_path / "part.safetensors")
    with pytest.raises(RuntimeError, match=r"doesn't fit Tied: missing: norm.bias.*unexpected: else"):
        load_model(loaded, tmp_path / "part.safetensors")
    missing, unexpected = load_model(loaded, tmp_path / "part.safetensors", strict=False)
    assert "head.weight" not in missing and "norm.weight" in missing and unexpected == ["else"]
    assert bool((loaded.head.weight == 1).all())


class Views(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A network with two shapes of one memory."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(6, 3)
        self.wide, self.long = torch.nn.Parameter(whole), torch.nn.Parameter(whole.view(3, 6))


@pytest.mark.promise("FEED-16")
def test_names_of_one_memory_are_missing_as_for_safetensors(tmp_path: Path) -> None:
    from forebay.torch import load_model

    peer.save_model(Views(), str(tmp_path / "views.safetensors"))
    assert set(peer.load_file(tmp_path / "views.safetensors")) == {"long"}
    models = Views(), Views()
    for model, load in zip(models, (load_model, peer.load_model), strict=True):
        missing, unexpected = load(model, tmp_path / "views.safetensors")
        assert (set(missing), list(unexpected)) == (set(), [])
    assert torch.equal(models[0].wide, models[1].wide)
    peer.save_file({"norm.weight": torch.ones(4)}, tmp_path / "norm.safetensors")
    ours, theirs = (load(Tied(), tmp_path / "norm.safetensors", strict=False)[0] for load in (load_model, peer.load_model))
    assert set(ours) == set(theirs) and "head.weight" in ours and "words.weight" not in ours


@pytest.mark.promise("FEED-16")
def test_a_folder_of_files_is_read_as_its_index_says(tmp_path: Path) -> None:
    from forebay.errors import RequestError
    from forebay.vllm import INDEX, weights

    with pytest.raises(RequestError, match="there is no"):
        list(weights(tmp_path))
    for number in (1, 2):
        peer.save_file({f"t{number}": torch.full((4,), number)}, tmp_path / f"model-{number}.safetensors")
    peer.save_file({"t1": torch.zeros(4)}, tmp_path / "consolidated.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {f"t{n}": f"model-{n}.safetensors" for n in (1, 2)}}))
    assert {name: tensor.sum().item() for name, tensor in weights(tmp_path)} == {"t1": 4, "t2": 8}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"t1": "model-3.safetensors"}}))
    with pytest.raises(RequestError, match="which isn't there"):
        list(weights(tmp_path))
    (tmp_path / INDEX).write_text("[]")
    with pytest.raises(RequestError, match="names no files"):
        list(weights(tmp_path))


@pytest.mark.promise("FEED-16")
def test_vllm_gets_a_load_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By vLLM's own registry where it is installed, else by one of its form."""
    from forebay import vllm as ours
    from forebay.errors import RequestError

    if importlib.util.find_spec("vllm") is None:
        _registry(monkeypatch)
    ours.register()
    ours.register()
    from vllm.model_executor import model_loader

    config = types.SimpleNamespace(load_format="forebay", download_dir=None, ignore_patterns=[])
    loader = model_loader._LOAD_FORMAT_TO_MODEL_LOADER["forebay"](config)
    peer.save_file({"words.weight": torch.ones(11, 4)}, tmp_path / "model.safetensors")
    given: dict[str, Any] = {}
    model = types.SimpleNamespace(load_weights=lambda pairs: given.update(pairs))
    loader.load_weights(model, types.SimpleNamespace(model=str(tmp_path), revision=None))
    assert torch.equal(given["words.weight"], torch.ones(11, 4))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.eyes = torch.nn.Embedding(11, 4), torch.nn.Linear(4, 4, bias=False)
            other = types.SimpleNamespace(model_or_path=str(tmp_path), revision=None, subfolder="eyes", prefix="eyes.")
            self.secondary_weights = [other]

        def load_weights(self, pairs: Any) -> set[str]:
            given = dict(pairs)
            self.load_state_dict(given, strict=False)
            return set(given)

    (tmp_path / "eyes").mkdir()
    peer.save_file({"weight": torch.ones(4, 4)}, tmp_path / "eyes" / "model.safetensors")
    whole = types.SimpleNamespace(model=str(tmp_path), revision=None, quantization=None)
    loader.load_weights(Model(), whole)
    peer.save_file({"scale": torch.ones(4)}, tmp_path / "eyes" / "model.safetensors")
    with pytest.raises(RequestError, match="1 of the model's parameters are in none of its files, eyes.weight the first"):
        loader.load_weights(Model(), whole)


@pytest.mark.promise("FEED-16")
def test_vllm_fetches_the_index_with_the_weights_and_decodes_what_it_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay import vllm as ours

    names = _registry(monkeypatch)
    ours.register()
    peer.save_file({"w": torch.ones(2)}, tmp_path / "model-1.safetensors")
    peer.save_file({"w.packed": torch.ones(3)}, tmp_path / "model-2.safetensors")
    peer.save_file({"w": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    asked: list[tuple[Any, ...]] = []

    def weights(name: str, cache_dir: Any, patterns: list[str], revision: Any, *, ignore_patterns: Any) -> str:
        asked.append((name, patterns, revision))
        return str(tmp_path)

    def index(name: str, index_file: str, cache_dir: Any, revision: Any = None) -> None:
        asked.append((name, index_file, revision))
        listed = {"weight_map": {"w": "model-1.safetensors", "w.packed": "model-2.safetensors"}}
        (tmp_path / index_file).write_text(json.dumps(listed))

    utils, scales = names["weight_utils"], names["csf_scales"]
    utils.download_weights_from_hf, utils.download_safetensors_index_file_from_hf = weights, index  # type: ignore[attr-defined]
    utils.maybe_download_from_modelscope = lambda name, revision: None  # type: ignore[attr-defined]
    scales.decode_csf_scale_streams = lambda pairs: ((name.removesuffix(".packed"), one) for name, one in pairs)  # type: ignore[attr-defined]
    from vllm.model_executor import model_loader

    config = types.SimpleNamespace(load_format="forebay", download_dir=None, ignore_patterns=[])
    given: list[tuple[str, int]] = []
    model = types.SimpleNamespace(load_weights=lambda pairs: given.extend((name, len(one)) for name, one in pairs))
    made = model_loader._LOAD_FORMAT_TO_MODEL_LOADER["forebay"](config)
    made.load_weights(model, types.SimpleNamespace(model="some/model", revision="r"))
    assert given == [("w", 2), ("w", 3)]
    assert asked == [("some/model", ["*.safetensors"], "r"), ("some/model", "model.safetensors.index.json", "r")]


def _registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    loader = "vllm.model_executor.model_loader"
    parts = ("base_loader", "weight_utils", "csf_scales")
    names = ("vllm", "vllm.model_executor", loader, *(f"{loader}.{part}" for part in parts))
    made = {name: types.ModuleType(name) for name in names}
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(made[parent], own, module)
    loaders: dict[str, Any] = {}

    def register(name: str) -> Any:
        return lambda loader: loaders.setdefault(name, loader)

    class Base:
        def __init__(self, config: Any) -> None:
            self.load_config = config

    made[names[2]].register_model_loader, made[names[2]]._LOAD_FORMAT_TO_MODEL_LOADER = register, loaders  # type: ignore[attr-defined]
    made[names[3]].BaseModelLoader = Base  # type: ignore[attr-defined]
    return {part: made[f"{loader}.{part}"] for part in parts}
