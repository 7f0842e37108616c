"""Rows of files as a map-style data set, from which PyTorch's DataLoader requests a batch at a time.

PyTorch is imported only if tensors are requested: with a NumPy dtype, rows are NumPy arrays.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from forebay import _core, headers
from forebay.errors import RequestError
from forebay.names import Path, file_name
from forebay.reader import File, Future, open
from forebay.rows import check_row, check_whole, integers
from forebay.tables import Table

# DLPack's codes of PyTorch's types, whose bits are those of an item.
KINDS = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 0),
    "uint8": 1,
    **dict.fromkeys(("float16", "float32", "float64"), 2),
    "bfloat16": 4,
    **dict.fromkeys(("complex64", "complex128"), 5),
}
# Batches for a GPU that may be on their way at a time.
UNDER_WAY_MAX = 3


class Rows:
    """`len()` rows of `shape` and `dtype`, row n of one file, or of several as one table.

    names   name of a file, or a list of names
    shape   shape of one row; () for a single number
    dtype   torch.float32 and the like: rows are tensors on `device`; a NumPy dtype: arrays
    path    as for forebay.open, and prefer (None: "rate" into host memory, "balance" to a GPU); start: the byte of each file
            where its rows begin

    `data[7]` is a row, `data[[7, 8, 9]]` a batch of shape (3, *shape): `DataLoader(data, batch_size=None,
    sampler=BatchSampler(…))` takes whole batches so, without a copy. `DataLoader(data, batch_size=64)` asks by
    `__getitems__`, also for a batch at once, and collates what it is given. Rows for a GPU may still be on their way when a
    batch is returned: work queued on PyTorch's current stream of that device sees them, and a read that fails afterwards is
    raised by the next batch or by `close`. Workers of a DataLoader open the files anew;
    rows for a GPU are read in the process that uses it (num_workers=0).
    """

    def __init__(
        self,
        names: Path | Sequence[Path],
        shape: Sequence[int],
        dtype: Any,
        *,
        path: str = "auto",
        start: int = 0,
        device: Any = "cpu",
        prefer: str | None = None,
    ) -> None:
        self.names = [file_name(n) for n in ([names] if isinstance(names, (str, bytes, os.PathLike)) else names)]
        self.shape = tuple(check_whole(n, "shape") for n in shape)
        self.dtype, self.device, self.path, self.start = dtype, device, path, start
        self._torch, self._is_on_host = is_torch(dtype), str(device) == "cpu"
        self.prefer = prefer or ("rate" if self._is_on_host else "balance")
        if not self._torch and not self._is_on_host:
            raise RequestError(f"rows of {dtype} on {device}", "NumPy's arrays are in host memory", "dtype=torch.float32")
        self.row_bytes = prod(self.shape) * item_bytes(dtype)
        check_row(self.row_bytes, start)
        if not start:
            for name in self.names:
                headers.refuse(name)
        self._open: tuple[int, File | Table] | None = None
        self._under_way: deque[Future] = deque()
        self._stream: Any = None
        # Imported once: a batch has driven an import's code out of the caches, even of what is there.
        self._list: Callable[[Any], list[Any]] = list
        if self._torch:
            from forebay.collated import Views

            self._list = Views
        # By a single call, what is plain of one file's.
        self._batches: _core.Batches | None = None
        sizes = [file.size for file in self.files()]
        self._length = sum(max(0, size - start) // self.row_bytes for size in sizes)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: Any) -> Any:
        # Of a class of its own, `batch` may be another.
        if type(self) is Rows and (plain := self._batches) is not None and (made := plain(rows)) is not None:
            return made
        if isinstance(rows, slice):
            return self.batch(range(*rows.indices(len(self))))
        if hasattr(rows, "__index__") and not getattr(rows, "shape", ()):
            number = int(rows)
            if not -len(self) <= number < len(self):
                # How a sequence says that it has ended.
                raise IndexError(f"row {number} of {len(self)}")
            return self.batch([number % len(self)])[0]
        if not hasattr(rows, "__len__"):
            raise TypeError(f"the index of Rows is an integer, a slice or a list or array of integers, not {type(rows).__name__}")
        return self.batch(rows)

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Views of one batch, one per row. Collated by PyTorch's DataLoader, they are that batch."""
        # A list's length, since a tensor's takes PyTorch several calls.
        return self._list(self.batch(rows)) if len(rows) else []

    def __getstate__(self) -> dict[str, Any]:
        # Files and streams are a process's own.
        own = dict.fromkeys(("_open", "_stream", "_batches"))
        return {**self.__dict__, **own, "_under_way": deque()}

    def batch(self, rows: Any) -> Any:
        """Rows by number, of shape (len(rows), *shape). Numbers can be on a GPU. Raises RequestError."""
        if not self._is_on_host:
            return self._on_device(rows)
        if (plain := self._batches) is not None and (made := plain(rows)) is not None:
            return made
        wanted = integers(rows, "rows")
        # NumPy's array even of what will be a tensor: the cheapest to pass.
        room = _core.room(len(wanted) * self.row_bytes)
        if len(wanted):
            self.source().gather(wanted, self.row_bytes, room, start=self.start)
        return self._as_rows(room, len(wanted))

    def _as_rows(self, room: Any, count: int) -> Any:
        """Host memory as `count` rows."""
        if not self._torch:
            return room.view(self.dtype).reshape(count, *self.shape)
        if not count:
            return self._empty(0)
        import torch

        return torch.frombuffer(room, dtype=self.dtype).view(count, *self.shape)

    def _on_device(self, rows: Any) -> Any:
        wanted = integers(rows, "rows") if isinstance(rows, (list, tuple, range)) else rows
        if len(wanted) and str(self.device).startswith("cuda"):
            return self._on_its_way(wanted)
        out = self._empty(len(wanted))
        if len(wanted):
            self.source().gather(wanted, self.row_bytes, out, start=self.start)
        return out

    def _on_its_way(self, rows: Any) -> Any:
        """A batch that is being read: its user queues work on the one before meanwhile, and the rows of the next are drawn."""
        import torch

        source = self.source()
        while len(self._under_way) >= UNDER_WAY_MAX:
            self._under_way.popleft().result()
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        # Memory of a stream of its own: the read needn't wait for work that is queued on the user's.
        with torch.cuda.stream(self._stream):
            out = self._empty(len(rows))
        future = source.gather_async(rows, self.row_bytes, out, self.start, stream=self._stream)
        self._under_way.append(future)
        current = torch.cuda.current_stream(out.device)
        out.record_stream(current)
        future.wait_on_stream(current)
        return out

    def _empty(self, count: int) -> Any:
        import torch

        return torch.empty((count, *self.shape), dtype=self.dtype, device=self.device)

    def source(self) -> File | Table:
        """The open files; of this process, since a fork leaves a parent's readers behind."""
        process = os.getpid()
        if self._open is None or self._open[0] != process:
            names = self.names[0] if len(self.names) == 1 else self.names
            self._open = (process, open(names, self.path, prefer=self.prefer))
            self._batches = self._plain(self._open[1])
            self._under_way.clear()
        return self._open[1]

    def _plain(self, source: File | Table) -> _core.Batches | None:
        """None where rows aren't tensors on the host, of one file."""
        kind = kind_of(self.dtype) if self._torch and self._is_on_host else None
        if kind is None or not isinstance(source, File):
            return None
        import torch

        # PyTorch's own for capsules, which the public one comes to after looking for protocols.
        from_dlpack = getattr(torch._C, "_from_dlpack", torch.from_dlpack)
        return _core.Batches(source, (self.row_bytes, self.start), kind, self.shape, from_dlpack)

    def files(self) -> list[File]:
        source = self.source()
        return source.files if isinstance(source, Table) else [source]

    def close(self) -> None:
        """Waits for what is under way and closes the files; the next read opens them again."""
        if self._open is not None and self._open[0] == os.getpid():
            try:
                while self._under_way:
                    self._under_way.popleft().result()
            finally:
                self._open[1].close()
        self._open = self._batches = None


def is_torch(dtype: Any) -> bool:
    return type(dtype).__module__.partition(".")[0] == "torch"


def kind_of(dtype: Any) -> tuple[int, int] | None:
    """DLPack's code and bits; None for types of PyTorch's that not all of its versions take by it."""
    code = KINDS.get(str(dtype).removeprefix("torch."))
    return None if code is None else (code, 8 * item_bytes(dtype))


def item_bytes(dtype: Any) -> int:
    """Bytes of a number. Raises RequestError for what is no type of numbers."""
    if is_torch(dtype):
        return int(dtype.itemsize)
    import numpy as np

    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise RequestError(f"dtype={dtype!r}", str(error), "torch.float32, or numpy.float32") from None
    if kind.hasobject or not kind.itemsize:
        raise RequestError(f"dtype={dtype!r}", "its values aren't contiguous bytes", "torch.float32, or numpy.float32")
    return kind.itemsize
