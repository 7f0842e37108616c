"""vLLM's `--load-format forebay`: weights of safetensors files, read into the GPU by `forebay.safetensors`.

vLLM finds `register` by itself where both are installed: it is an entry point of its general plug-ins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forebay.errors import RequestError

FORMAT, INDEX, FILES = "forebay", "model.safetensors.index.json", "*.safetensors"


def register() -> None:
    """Makes the load format known to this process of vLLM."""
    from vllm.model_executor import model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    if FORMAT in getattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", {}):
        return

    class Loader(BaseModelLoader):
        """Reads each file of a model once, file by file, into memory of the device that the model is on."""

        def download_model(self, model_config: Any) -> None:
            self._folder(model_config.model, model_config.revision)

        def load_weights(self, model: Any, model_config: Any) -> None:
            name = getattr(model_config, "model_weights", None) or model_config.model
            loaded = model.load_weights(decoded(self._all(model, name, model_config.revision)))
            if loaded is not None and getattr(model_config, "quantization", None) is None:
                check_whole(model, set(loaded), name)

        def _all(self, model: Any, name: str, revision: str | None) -> Iterator[tuple[str, Any]]:
            yield from weights(self._folder(name, revision))
            # Of models whose parts are kept apart, as encoders of images are.
            for source in getattr(model, "secondary_weights", ()):
                folder = self._folder(source.model_or_path, source.revision) / (getattr(source, "subfolder", None) or "")
                yield from ((source.prefix + own, tensor) for own, tensor in weights(folder))

        def _folder(self, name: str, revision: str | None) -> Path:
            if Path(name).is_dir():
                return Path(name)
            from vllm.model_executor.model_loader import weight_utils

            config, found = self.load_config, None
            # Where ModelScope is used in place of Hugging Face's hub.
            if hasattr(weight_utils, "maybe_download_from_modelscope"):
                found = weight_utils.maybe_download_from_modelscope(name, revision)
            if found is None:
                more = {"ignore_patterns": config.ignore_patterns}
                found = weight_utils.download_weights_from_hf(name, config.download_dir, [FILES], revision, **more)
                if len(list(Path(found).glob(FILES))) > 1:
                    # It says which of them are one model: some have its weights a second time, consolidated.
                    weight_utils.download_safetensors_index_file_from_hf(
                        name, INDEX, cache_dir=config.download_dir, revision=revision
                    )
            return Path(found)

    model_loader.register_model_loader(FORMAT)(Loader)


def decoded(pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Names and tensors, with vLLM's own decoding of those that it knows compressed: scales of NVFP4."""
    try:
        from vllm.model_executor.model_loader.csf_scales import decode_csf_scale_streams
    except ImportError:  # a vLLM that has none
        return pairs
    unpacked: Iterator[tuple[str, Any]] = decode_csf_scale_streams(pairs)
    return unpacked


def check_whole(model: Any, loaded: set[str], name: str) -> None:
    """Raises RequestError where a parameter stayed as it was made, other than those that vLLM computes after loading."""
    computed = set()
    for module_name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "uses_meta_device", False) or hasattr(method, "process_weights_after_loading"):
            computed |= {f"{module_name}.{own}".lstrip(".") for own, _ in module.named_parameters()}
    left = sorted({own for own, _ in model.named_parameters()} - loaded - computed)
    if left:
        found = f"{len(left)} of the model's parameters are in none of its files, {left[0]} the first"
        raise RequestError(f"the weights of {name}", found, "fetch the model again; or another --load-format")


def weights(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and tensors of a model's files, on the current GPU, else on the host. A file's memory is free once the next begins,
    unless somebody kept a tensor of it. Raises RequestError where the folder has none."""
    import torch

    from forebay.torch import load_file

    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    for path in files(folder):
        tensors = load_file(path, device)
        while tensors:
            name = next(iter(tensors))
            yield name, tensors.pop(name)


def files(folder: Path) -> list[Path]:
    """Those that the index names, in its order of names; without an index all of the folder. Raises RequestError."""
    index = folder / INDEX
    found = sorted(folder.glob(FILES))
    if index.is_file():
        try:
            named = sorted({str(name) for name in json.loads(index.read_text())["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            found_ = f"it names no files ({error!r:.80})"
            raise RequestError(f"the index {index}", found_, f"rm {index}, or fetch it again") from None
        lost = [name for name in named if not (folder / name).is_file()]
        if lost:
            raise RequestError(f"the weights in {folder}", f"{INDEX} names {lost[0]}, which isn't there", "fetch the model again")
        return [folder / name for name in named]
    if not found:
        next = "a model with safetensors; or another --load-format"
        raise RequestError(f"the weights in {folder}", f"there is no {FILES}", next)
    return found
