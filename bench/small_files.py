"""A folder of many small files: made once, in parallel, and listed in a fixed order."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PER_FOLDER = 1000


def names(folder: str) -> list[str]:
    """Every file below, in order."""
    return sorted(str(p) for p in Path(folder).glob("*/*.bin"))


def make(folder: Path, files: int, bytes_each: int) -> list[str]:
    """As many files of random bytes as asked for, a thousand to a folder."""
    content = os.urandom(bytes_each * 2)
    wanted = [folder / f"{i // PER_FOLDER:04d}/{i:07d}.bin" for i in range(files)]
    for parent in {f.parent for f in wanted}:
        parent.mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        file = wanted[number]
        if not file.exists() or file.stat().st_size != bytes_each:
            start = number * 61 % bytes_each  # neighbours differ
            file.write_bytes(content[start : start + bytes_each])

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(write, range(files), chunksize=64):
            pass
    for extra in set(names(str(folder))) - {str(f) for f in wanted}:
        os.unlink(extra)
    return [str(f) for f in wanted]
