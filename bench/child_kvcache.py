"""Entries of a key-value cache as a Python client moves them: `child_kvcache.py read|write FOLDER THREADS`.

Written from what is known of MLPerf Storage's own client: threads, each of which makes an entry of 607 MiB from noise, saves it
by NumPy, flushes it, drops it from the page cache, loads it and copies what it loaded.
"""

from __future__ import annotations

import atexit
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from child import Answer, Stopwatch, serve

ENTRY_BYTES = 607 << 20
NOISE = np.random.default_rng(1).integers(0, 1 << 32, (256 << 20) // 4, dtype=np.uint32)


def make(number: int) -> np.ndarray[Any, Any]:
    """An entry: slices of the noise, each 4 KiB of it stamped with the entry's number."""
    words = ENTRY_BYTES // 4
    start = number * 4099 % NOISE.size
    entry = np.concatenate([NOISE[start:], NOISE])[:words]
    while entry.size < words:
        entry = np.concatenate([entry, NOISE])[:words]
    stamp = np.random.default_rng(number).integers(0, 1 << 32, 1024, dtype=np.uint32)
    entry[: words // 1024 * 1024].reshape(-1, 1024)[:] ^= stamp
    return entry


def save(path: Path, entry: np.ndarray[Any, Any]) -> None:
    with open(path, "wb") as file:
        np.save(file, entry, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path) -> np.ndarray[Any, Any]:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return np.array(np.load(path, allow_pickle=False))


def measure(way: str, folder: Path, threads: int, seconds: float) -> Answer:
    moved = [0] * threads
    watch = Stopwatch()

    def work(index: int) -> None:
        number = index
        while watch.seconds() < seconds:
            path = folder / f"numpy-{index}.npy"
            save(path, make(number)) if way == "write" else load(path)
            moved[index] += ENTRY_BYTES
            number += threads

    running = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return watch.answer(sum(moved), sum(moved) // ENTRY_BYTES)


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], Answer]:
    way, folder, threads = arguments[0], Path(arguments[1]), int(arguments[2])
    folder.mkdir(exist_ok=True)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if way == "read":
        for index in range(threads):
            save(folder / f"numpy-{index}.npy", make(index))
    return lambda request: measure(way, folder, threads, float(request["seconds"]))


if __name__ == "__main__":
    raise SystemExit(serve(prepare))
