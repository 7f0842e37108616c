"""DLRMv2 whose embedding tables stay in their file: each batch fetches the distinct rows that it looks up, by `gather`.

Of the hottest rows, as the loaded samples look them up, so many as `--table-memory` holds lie in the device's memory. Tables are
read and never written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forebay
from forebay.errors import ForebayError, RunError
from forebay.infer import data, networks, weights
from forebay.infer.library import changed, cut_short, stamped
from forebay.train.data import tables
from forebay.units import GIB

VECTORS, ROW_BYTES = "vectors.weight", 512
# Samples of a batch on a GPU: the more they are, the fewer distinct rows each has, and the less the wait for their first.
BATCH = 256


class Model(networks.Model):
    """Answers as `networks.Model` of dlrm does. `delivered`: bytes of rows that storage has brought so far."""

    def __init__(self, tensors: Mapping[str, Any], device: str, table_rows: int, path: Path, way: str = "auto") -> None:
        super().__init__("dlrm", tensors, device, table_rows)
        self.graphed = False
        if self.on_gpu:
            self.batch = self.checked_batch = BATCH
        self._start, self.rows = weights.place_of(path, VECTORS), sum(tables(table_rows))
        self._path, self._stamp = path, stamped(os.stat(path))
        self._file = forebay.open(path, way if self.on_gpu else "auto")
        # The rows of a batch are fetched on the stream of who asks while this one computes the batch before.
        self._computing: Any = self._torch.cuda.Stream(device) if self.on_gpu else None
        self._cache: Any = None
        self._slot: Any = None
        self.lookups = self.distinct = self.hits = self.delivered = 0

    def _made(self) -> Any:
        from forebay.train.dlrm import _network

        # One row, in whose place those of each batch come.
        return _network(self._torch, 1, self.device).eval().requires_grad_(False)

    def _exact(self) -> Any:
        if self._float is None:
            self._float = self._made()
            self._float.load_state_dict(self._tensors, strict=False, assign=True)
        return self._float

    @property
    def cached_rows(self) -> int:
        return 0 if self._cache is None else len(self._cache)

    def keep(self, library: Any, memory_bytes: int) -> None:
        """Fills the cache with the rows that the library's samples look up most often."""
        torch = self._torch
        most = min(self.rows, memory_bytes // ROW_BYTES)
        if not most:
            return
        times = torch.zeros(self.rows, dtype=torch.int32, device=self.device)
        with torch.inference_mode():
            for at in range(0, library.count, self.batch):
                rows = library.rows(library.ask(list(range(at, min(library.count, at + self.batch)))))
                numbers = self._input(self._tensor(rows), torch.float32)[1]
                times += torch.bincount(numbers, minlength=self.rows).int()
            hottest = times.topk(most, sorted=False).indices.sort().values
            hottest = hottest[times[hottest] > 0]
            self._slot = torch.full((self.rows,), -1, dtype=torch.int32, device=self.device)
            self._slot[hottest] = torch.arange(len(hottest), dtype=torch.int32, device=self.device)
            self._cache = self._fetched(hottest)
        self.delivered = 0

    def _fetched(self, numbers: Any) -> Any:
        """Rows of the tables by their numbers, (n, 128) float32 on the device. Raises RequestError for one that isn't there."""
        found = self._torch.empty((len(numbers), ROW_BYTES), dtype=self._torch.uint8, device=self.device)
        if len(numbers):
            asked, into = (numbers, found) if self.on_gpu else (numbers.numpy(), found.numpy())
            try:
                self.delivered += self._file.gather(asked, ROW_BYTES, into, start=self._start)
            except ForebayError as error:
                last = int(numbers.max())
                at, wanted = self._start + last * ROW_BYTES, self._start + self.rows * ROW_BYTES
                raise cut_short(error, self._path, self._file, f"row {last} of the tables", at, wanted) from error
        return found.view(self._torch.float32)

    def launch(self, rows: Any) -> Any:
        """Fetches a batch's rows, and gives it to the device, which may still compute the batch before."""
        if not self.on_gpu:
            return super().launch(rows)
        torch, count, computing = self._torch, len(rows), self._computing
        with self._room(count), torch.inference_mode(), torch.cuda.device(self.device):
            dense, places, bags, vectors = self._looked_up(*self._input(rows, self._kind))
            computing.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(computing):
                found = self._computed(self._net, dense, places, bags, vectors).float()
                # Their memory isn't another batch's before this one has been computed.
                for each in (dense, places, vectors):
                    each.record_stream(computing)
                host = torch.empty((count, self.width), dtype=torch.float32, pin_memory=True)
                host.copy_(found, non_blocking=True)
                done = torch.cuda.Event(blocking=True)
                done.record()
            return host, done

    def _answers(self, net: Any, given: Any) -> Any:
        return self._computed(net, *self._looked_up(*given))

    def _computed(self, net: Any, dense: Any, places: Any, bags: Any, vectors: Any) -> Any:
        net.vectors.weight = self._torch.nn.Parameter(vectors, requires_grad=False)
        return super()._answers(net, (dense, places, bags))

    def _looked_up(self, dense: Any, numbers: Any, bags: Any) -> tuple[Any, Any, Any, Any]:
        """Dense values, of each look-up its place among the vectors, bags, and the vectors of the distinct rows."""
        torch = self._torch
        distinct, places = torch.unique(numbers, return_inverse=True)
        self.lookups += len(numbers)
        self.distinct += len(distinct)
        if self._cache is None:
            return dense, places, bags, self._fetched(distinct)
        slot = self._slot[distinct].long()
        here = slot >= 0
        vectors = torch.empty((len(distinct), ROW_BYTES // 4), dtype=torch.float32, device=self.device)
        vectors[here] = self._cache[slot[here]]
        missing = distinct[~here]
        self.hits += len(distinct) - len(missing)
        vectors[~here] = self._fetched(missing)
        return dense, places, bags, vectors

    def changed(self) -> RunError | None:
        """The error of tables that aren't in the file that was opened, or that was written to since."""
        return changed(self._path, self._stamp, "tables")

    def document(self) -> dict[str, Any]:
        """Of the record: what the tables were asked for since they were opened."""
        return {
            "rows": self.rows, "bytes": self.rows * ROW_BYTES, "cached_rows": self.cached_rows, "lookups": self.lookups,
            "distinct": self.distinct, "hit_pct": 100 * self.hits / self.distinct if self.distinct else None,
            "read_bytes": self.delivered,
        }  # fmt: skip

    def close(self) -> None:
        super().close()
        self._file.close()
        self._cache = self._slot = None


def cap_for(gib: float) -> int:
    """Rows of the large tables at which all tables take about so many GiB."""
    low, high = 1, 40_000_000
    while low < high:
        middle = (low + high) // 2
        if sum(tables(middle)) * ROW_BYTES < gib * GIB:
            low = middle + 1
        else:
            high = middle
    return low


def drawn(seed: int, table_rows: int) -> dict[str, Any]:
    """Random weights whose tables are made as they are written."""
    shapes = networks.shapes("dlrm", table_rows)
    rest = networks.weights("dlrm", seed, 1)
    made = data.drawn(shapes, "F32", seed)
    return {name: made[name] if name == VECTORS else rest[name] for name in shapes}
