"""torch's DataLoader over small files, as bench/child.py asks it: `child_torch.py FOLDER WORKERS`.

As its users write it: a data set that reads a file into a tensor, worker processes that stay, pinned batches, and a
non-blocking copy of each batch to the GPU. CPU is of the process and of its workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from child import Answer, Stopwatch, serve
from small_files import names

BATCH = 64
WARM_BATCHES = 32


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], Answer]:
    import numpy
    import torch

    folder, workers = arguments[0], int(arguments[1])
    paths = names(folder)

    class Files(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(numpy.fromfile(paths[index], dtype=numpy.uint8))

    class Part(torch.utils.data.Sampler):
        """The first `count` files: an epoch is exactly as long, and no worker reads ahead into the next."""

        count = len(paths)

        def __len__(self) -> int:
            return self.count

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.count))

    part = Part()
    loader = torch.utils.data.DataLoader(
        Files(),
        sampler=part,
        batch_size=BATCH,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=4,
        # Before CUDA is used here, so that forking is safe; the quickest start and the least memory.
        multiprocessing_context="fork",
    )
    bytes_each = os.path.getsize(paths[0])

    def epoch(count: int) -> int:
        """Files read; every batch stays in the GPU until the end."""
        part.count = min(count, len(paths))
        done = [batch.to("cuda", non_blocking=True) for batch in loader]
        torch.cuda.synchronize()
        return sum(len(batch) for batch in done)

    epoch(WARM_BATCHES * BATCH)
    pids = [worker.pid for worker in loader._iterator._workers]

    def run(request: dict[str, Any]) -> Answer:
        watch = Stopwatch(pids)
        files = epoch(request.get("files", len(paths)))
        return watch.answer(files * bytes_each, files)

    return run


if __name__ == "__main__":
    sys.exit(serve(prepare))
