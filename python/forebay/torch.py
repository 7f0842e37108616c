"""`forebay.feed.Loader` with PyTorch's tensors."""

from __future__ import annotations

from typing import Any

from forebay.errors import MachineError, RequestError
from forebay.feed import Loader as FeedLoader
from forebay.feed.samples import Batch, Bytes

try:
    import torch
    from torch.utils.dlpack import from_dlpack
except ImportError as error:
    found = f"PyTorch can't be imported: {error}"
    raise MachineError("forebay.torch", found, "pip install torch; forebay.feed needs none") from None


class Loader(FeedLoader):
    """Batches as {name: tensor} on `device`, for PyTorch's current stream of it; else as `forebay.feed.Loader`.

    It has the protocol of torchdata's StatefulDataLoader (`state_dict`, `load_state_dict`), and takes rank and world size of
    torch.distributed where that was initialised, whose ranks must agree about data, seed and order. It needs no DataLoader
    around it, and no worker processes.
    """

    def __init__(self, data: Any, batch_size: int, *, device: Any = "cpu", **settings: Any) -> None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and settings.get("rank") is None and settings.get("world") is None:
            settings["rank"], settings["world"] = torch.distributed.get_rank(), torch.distributed.get_world_size()
        place = None if str(device) in ("pinned", "host") else _device(device)
        # PyTorch has one device of the host, with and without a number.
        name = str(device) if place is None else "cpu" if place.type == "cpu" else str(place)
        try:
            super().__init__(data, batch_size, device=name, **settings)
        except Exception as error:
            if distributed:
                # The other ranks wait for this one.
                self._agree(f"{type(error).__name__}: {error}")
            raise
        self._gpu = None if place is None or place.type != "cuda" else place.index or 0
        if distributed:
            self._agree()

    def _take(self) -> dict[str, Any] | None:
        """The next batch as tensors, of samples of different sizes one and its offsets; None at the epoch's end."""
        batch = super()._take()
        if isinstance(batch, Batch):
            return {name: Bytes(torch.from_numpy(b.data), torch.from_numpy(b.offsets)) for name, b in batch.items()}
        if batch is None:
            return None
        # Looked up once for all columns; torch.from_dlpack, given a column, looks for each, which takes longer than all else.
        stream = None if self._gpu is None else torch.cuda.current_stream(self._gpu).cuda_stream or 1
        return {name: from_dlpack(batch[name].__dlpack__(stream=stream)) for name in batch.keys()}  # noqa: SIM118 - not a dict

    def _agree(self, failure: str | None = None) -> None:
        """Raises RequestError on every rank where one reads other data, or in another order, or failed (its own `failure`)."""
        own = failure or self.agreement
        others: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(others, own)
        if isinstance(own, str):
            return
        for rank, other in enumerate(others):
            if isinstance(other, str):
                raise RequestError("a Loader on every rank", f"rank {rank} has none: {other}", f"what rank {rank} says")
            if other != own:
                next = "the same files, seed, shuffle, batch_size and drop_last on every rank"
                raise RequestError(f"rank {self.rank} of {_words(own)}", f"rank {rank} has {_words(other)}", next)


def _words(agreement: tuple[str, int, str, int, bool]) -> str:
    data, seed, order, batch, drop_last = agreement
    return f"data {data}, seed {seed}, order {order}, batches of {batch}, drop_last {drop_last}"


def _device(device: Any) -> torch.device:
    """PyTorch's device; a number is that GPU. Raises RequestError."""
    try:
        return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError):
        raise RequestError(f"device={device!r:.80}", "PyTorch has no such device", 'device="cpu", "cuda" or "cuda:1"') from None


def load_file(filename: Any, device: Any = "cpu", *, backend: Any = None) -> dict[str, torch.Tensor]:
    """Tensors of a safetensors file by name, as `safetensors.torch.load_file` gives them: on a GPU as views of one allocation.

    `device` None is the host; `backend` is safetensors' own, and says nothing here. Raises RequestError for a file that isn't
    one, or whose header lies.
    """
    from forebay import safetensors

    place = _device("cpu" if device is None else device)
    if place.type == "meta":
        raise RequestError("device='meta'", "it has no memory to read into", 'device="cpu", or "cuda"')
    return safetensors.load(filename, place)


def load_model(
    model: torch.nn.Module, filename: Any, strict: bool = True, device: Any = "cpu", *, backend: Any = None
) -> tuple[set[str], list[str]]:
    """Fills a model from a safetensors file, as `safetensors.torch.load_model` does: names that are missing, and unexpected.

    A name that the file lacks isn't missing where the model has that memory by another name, too, which the file has: tied
    weights are saved once. Raises RuntimeError where `strict` is true and either is left, as torch's own load_state_dict.
    """
    found = load_file(filename, device)
    missing, unexpected = model.load_state_dict(found, strict=False)
    own = model.state_dict(keep_vars=True)
    filled = {memory for name in found if name in own for memory in _memories(own[name])}
    # Of names of one tensor only the first is missing.
    lost = {_memories(own[name])[0]: name for name in sorted(missing, reverse=True)}
    left = {name for name in lost.values() if not filled & {_memories(own[name])[0], _storage(own[name])}}
    if strict and (left or unexpected):
        words = [f"missing: {', '.join(sorted(left))}"] * bool(left) + [f"unexpected: {', '.join(unexpected)}"] * bool(unexpected)
        raise RuntimeError(f"{filename} doesn't fit {type(model).__name__}: {'; '.join(words)}")
    return left, list(unexpected)


def _memories(tensor: torch.Tensor) -> list[tuple[Any, ...]]:
    """The view that two names of one tensor have in common, of one without memory none; and its storage, where it fills that."""
    view = (tensor.device, tensor.data_ptr() or id(tensor), tensor.dtype, tensor.shape, tensor.stride())
    return [view, _storage(tensor)] if tensor.nbytes == tensor.untyped_storage().nbytes() else [view]


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.untyped_storage().data_ptr() or id(tensor)
