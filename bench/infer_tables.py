"""DLRM whose tables stay in their file, for bench/infer.py: fetching rows as PyTorch at its best does, on so many cores.

All contenders are the same model under the same load generator; they differ in how a batch's distinct rows come. PyTorch's way
is the fastest of its own: `index_select` of the mapped table into two pinned buffers that are used again, one of which is copied
to the GPU while the other fills.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.infer import tabled

# Rows of a pinned buffer, of 64 MiB.
BUFFERED = 1 << 17


class Tuned(tabled.Model):
    """Rows by PyTorch. `keep` and the rest of the model are Forebay's."""

    def __init__(self, tensors: Mapping[str, Any], device: str, table_rows: int, path: Path) -> None:
        super().__init__(tensors, device, table_rows, path)
        torch = self._torch
        whole = torch.from_file(str(path), shared=True, size=os.path.getsize(path), dtype=torch.uint8)
        of_tables = whole[self._start : self._start + self.rows * tabled.ROW_BYTES]
        # Of whole words, which index_select moves faster than bytes.
        self._table = of_tables.view(torch.float64).view(self.rows, -1)
        words = self._table.shape[1]
        self._pinned = [torch.empty((BUFFERED, words), dtype=torch.float64, pin_memory=self.on_gpu) for _ in range(2)]
        self._copied = [torch.cuda.Event(blocking=True) for _ in self._pinned] if self.on_gpu else []

    def _fetched(self, numbers: Any) -> Any:
        torch = self._torch
        found = torch.empty((len(numbers), self._table.shape[1]), dtype=torch.float64, device=self.device)
        asked = numbers.cpu()
        for turn, at in enumerate(range(0, len(asked), BUFFERED)):
            some = asked[at : at + BUFFERED]
            part = self._pinned[turn % 2][: len(some)]
            if self.on_gpu:
                self._copied[turn % 2].synchronize()
            torch.index_select(self._table, 0, some, out=part)
            found[at : at + len(some)].copy_(part, non_blocking=True)
            if self.on_gpu:
                self._copied[turn % 2].record()
        self.delivered += found.nbytes
        return found.view(torch.float32)


@contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """All threads of this process on the first so many of its processors."""
    import torch

    every, threads = os.sched_getaffinity(0), torch.get_num_threads()
    if count is None or count >= len(every):
        yield
        return
    try:
        _place(set(sorted(every)[:count]))
        torch.set_num_threads(count)
        yield
    finally:
        _place(every)
        torch.set_num_threads(threads)


def _place(cores: set[int]) -> None:
    for task in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(task), cores)
        except ProcessLookupError:  # ended meanwhile
            continue


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
