"""A batch as the list of its rows, which PyTorch's DataLoader collates without a view of each and without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.errors import MachineError

try:
    import torch
except ImportError as missing:
    raise MachineError("forebay.collated", f"PyTorch can't be imported: {missing}", "pip install torch") from None


class Views(list[Any]):
    """`len()` views of `batch`, one per row, all of which are made once more than single ones are asked for.

    torch.stack of all, by which DataLoader collates, is `batch` itself. Until views are made, the list's own memory holds
    stand-ins: PyTorch, which looks there, has whoever defined them do its work, and so passes the list itself.
    """

    __slots__ = ("batch", "first")

    def __init__(self, batch: torch.Tensor) -> None:
        super().__init__(STAND_INS)
        # None once the views are made.
        self.batch: torch.Tensor | None = batch
        # DataLoader asks for it twice, to see what it collates.
        self.first: torch.Tensor | None = None

    def made(self) -> Views:
        """This list, whose memory holds its views."""
        if self.batch is not None:
            batch, self.batch, self.first = self.batch, None, None
            list.__setitem__(self, slice(None), batch.unbind())
        return self

    def __len__(self) -> int:
        return list.__len__(self) if self.batch is None else len(self.batch)

    def __getitem__(self, at: Any) -> Any:
        if self.batch is None or not isinstance(at, int):
            return list.__getitem__(self.made(), at)
        if at:
            return self.batch[at]
        if self.first is None:
            # As [0], whose ways to ask PyTorch looks through first.
            self.first = self.batch.select(0, 0)
        return self.first

    def __radd__(self, before: list[Any]) -> list[Any]:
        return before + list(self)

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        return list, (list(self),)


def of_views(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: method(self.made(), *args, **kwargs)


for name, method in vars(list).items():
    if callable(method) and name not in ("__new__", "__getattribute__", "__class_getitem__", *vars(Views)):
        setattr(Views, name, of_views(method))


class StandIn(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensors")
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        is_whole = isinstance(first, Views) and first.batch is not None
        if is_whole and function is torch.stack and dim == 0 and kwargs.get("out") is None:
            return first.batch
        if is_whole:
            first.made()
            return function(*args, **kwargs)
        return super().__torch_function__(function, types, args, kwargs)


# Of shapes that can be neither stacked nor concatenated: what doesn't ask for their class's word fails.
STAND_INS = [torch.empty(()).as_subclass(StandIn), torch.empty(1).as_subclass(StandIn)]
