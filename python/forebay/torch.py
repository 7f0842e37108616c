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
        super().__init__(data, batch_size, device=str(device), **settings)
        place = None if str(device) == "pinned" else torch.device(device)
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

    def _agree(self) -> None:
        """Raises RequestError on every rank where one reads other data, or in another order."""
        own = self.agreement
        others: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(others, own)
        for rank, other in enumerate(others):
            if other != own:
                found = f"rank {rank} has data {other[0]}, seed {other[1]}, order {other[2]}, batches of {other[3]}"
                asked = f"rank {self.rank} of data {own[0]}, seed {own[1]}, order {own[2]}, batches of {own[3]}"
                raise RequestError(asked, found, "the same files, seed, shuffle and batch_size on every rank")


def load_file(filename: Any, device: Any = "cpu") -> dict[str, torch.Tensor]:
    """Tensors of a safetensors file by name, as `safetensors.torch.load_file` gives them: on a GPU as views of one allocation.

    Raises RequestError for a file that isn't one, or whose header lies.
    """
    from forebay import safetensors

    index = isinstance(device, int) and not isinstance(device, bool)
    return safetensors.load(filename, torch.device("cuda", device) if index else torch.device(device))


def load_model(
    model: torch.nn.Module, filename: Any, strict: bool = True, device: Any = "cpu"
) -> tuple[set[str], list[str]]:
    """Fills a model from a safetensors file, as `safetensors.torch.load_model` does: names that are missing, and unexpected.

    A name that the file lacks isn't missing where the model has that memory by another name, too, which the file has: tied
    weights are saved once. Raises RuntimeError where `strict` is true and either is left, as torch's own load_state_dict.
    """
    found = load_file(filename, device)
    missing, unexpected = model.load_state_dict(found, strict=False)
    own = model.state_dict(keep_vars=True)
    filled = {_memory(own[name]) for name in found if name in own}
    left = {name for name in missing if _memory(own[name]) not in filled}
    if strict and (left or unexpected):
        words = [f"missing: {', '.join(sorted(left))}"] * bool(left) + [f"unexpected: {', '.join(unexpected)}"] * bool(unexpected)
        raise RuntimeError(f"{filename} doesn't fit {type(model).__name__}: {'; '.join(words)}")
    return left, list(unexpected)


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What two tensors have in common that are one; of one without memory nothing."""
    place = tensor.data_ptr() or id(tensor)
    return tensor.device, place, tensor.dtype, tensor.shape, tensor.stride()
