"""Loaders of random settings over files that are cached in part: each sample comes once, as it is in its file, to as many ranks
as there are, also where they stop in mid-epoch and others go on; and what a consumer keeps stays what it was."""

from __future__ import annotations

import faulthandler
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forebay import feed

SECONDS = float(os.environ.get("FOREBAY_TEST_FEED_S", "300"))
# A loader that stands still says where, and ends.
STALLED_S = 90
FILE_BYTES, BATCH_BYTES, AHEAD_BYTES = 96 << 20, 24 << 20, 200 << 20


@dataclass
class Drawn:
    """Files, and loaders of them."""

    draw: random.Random
    folder: Path
    seed: int

    def __post_init__(self) -> None:
        draw = self.draw
        self.row = draw.choice(
            [draw.randrange(16, 4000), draw.randrange(60_000, 300_000), 150_528, 65536, draw.randrange(1 << 20, 3 << 20)]
        )
        self.start = draw.choice([0, 0, 4096, draw.randrange(5000)])
        most = draw.randrange(1, max(2, min(4000, FILE_BYTES // self.row)))
        counts = [most, *(draw.randrange(1, most + 1) for _ in range(draw.choice([0, 0, 0, 1, 2])))]
        self.paths = [self.folder / str(number) for number in range(len(counts))]
        tables = []
        for path, count in zip(self.paths, counts, strict=True):
            table = np.random.default_rng([self.seed, len(tables)]).integers(0, 256, (count, self.row), dtype=np.uint8)
            path.write_bytes(b"h" * self.start + table.tobytes())
            tables.append(table)
        self.table = np.concatenate(tables)
        if draw.random() < 0.8:
            for path in self.paths:
                self.evict(path)
        self.batch = draw.randrange(1, max(2, min(len(self.table) + 3, BATCH_BYTES // self.row + 2)))
        prefetch = draw.choice([None, None, 1, 2, 5, 16])
        if prefetch is not None and prefetch * self.batch * self.row > AHEAD_BYTES:
            prefetch = 2
        self.settings: dict[str, Any] = {
            "shuffle": draw.choice(["rows", "blocks", "none"]), "seed": self.seed, "prefetch": prefetch,
            "drop_last": draw.random() < 0.2, "cache": draw.choice(["auto", "auto", "bypass", "fill"]),
        }  # fmt: skip
        self.keeps = draw.random() < 0.3
        self.seen = np.zeros(len(self.table), int)

    def evict(self, path: Path) -> None:
        """Out of the page cache, but for what lies around a place, or all of it."""
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        if self.draw.random() < 1 / 3:
            os.pread(handle, 1 << 20, int(self.draw.random() * path.stat().st_size))
        os.close(handle)

    def loaders(self, world: int, batch: int) -> Iterator[feed.Loader]:
        data = feed.rows(self.paths, {"data": ("uint8", (self.row,))}, start=self.start)
        for rank in range(world):
            yield feed.Loader(data, batch, rank=rank, world=world, **self.settings)

    def take(self, loader: feed.Loader, most: int | None = None) -> int:
        """Batches that came, checked; `most`: so many are asked for."""
        kept, count = [], 0
        for batch in loader:
            samples = np.array(loader.samples_at(batch.position, batch.rows), int)
            got = np.from_dlpack(batch["data"]).reshape(-1, self.row)
            assert (got == self.table[samples]).all(), f"seed {self.seed}: other content"
            self.seen[samples] += 1
            count += 1
            if self.keeps and len(kept) < 2:
                kept.append((samples, got))
            del got, batch
            if count == most:
                break
        for samples, got in kept:
            assert (got == self.table[samples]).all(), f"seed {self.seed}: a batch that was kept is another"
        return count

    def run(self) -> None:
        draw, world = self.draw, self.draw.choice([1, 1, 1, 2, 3, 4])
        stop = draw.choice([0, 0, draw.randrange(len(self.table) // self.batch + 1)])
        before = list(self.loaders(world, self.batch))
        if not stop or self.settings["drop_last"]:
            for loader in before:
                self.take(loader)
        else:
            steps = {self.take(loader, stop) for loader in before}
            if len(steps) > 1:
                # Ranks at different steps have no common state.
                return
            state = before[0].state_dict()
            before.clear()
            batch = self.batch if draw.random() < 0.5 else draw.randrange(1, self.batch + 1)
            for loader in self.loaders(draw.choice([1, 2, 3]), batch):
                loader.load_state_dict(state)
                self.take(loader)
        if self.settings["drop_last"]:
            assert (self.seen <= 1).all(), f"seed {self.seed}: a sample came twice"
        else:
            # A state of an epoch's end goes on with the next epoch.
            times = self.seen - (self.seen.min() == 2)
            assert (times == 1).all(), f"seed {self.seed}: {np.unique(times, return_counts=True)}"


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::forebay.feed.UncachedRowsWarning")
@pytest.mark.timeout(SECONDS + 2 * STALLED_S)
@pytest.mark.promise("FEED-1", "FEED-3", "FEED-5")
def test_each_sample_comes_once_and_as_it_is_whatever_the_settings(tmp_path: Path) -> None:
    seed = int(os.environ.get("FOREBAY_TEST_FEED_SEED", time.time_ns() // 1000 % 10**9))
    end, rounds = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        faulthandler.dump_traceback_later(STALLED_S, exit=True)
        print(f"seed {seed}", flush=True)
        Drawn(random.Random(seed), tmp_path, seed).run()
        seed, rounds = seed + 1, rounds + 1
    faulthandler.cancel_dump_traceback_later()
    assert rounds
