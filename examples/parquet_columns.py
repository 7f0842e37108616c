"""Columns of a Parquet file, over `forebay.File` and by each library's own reader: cuDF's on the GPU, pyarrow's on the host.

    python examples/parquet_columns.py                          # 400,000 rows, in a temporary folder
    python examples/parquet_columns.py --rows 40000000 --dir /mnt/data --cold

A `File` is a stream of Python's, which both take in place of a name; Forebay then decides how the bytes are read (with
O_DIRECT where they aren't cached). Needs NumPy and pyarrow; cuDF (`pip install cudf-cu12 --extra-index-url
https://pypi.nvidia.com`) where a GPU is to decode. Every reader's sums are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forebay
import numpy as np

COLUMNS = ["user", "price"]


def make(path: Path, rows: int) -> None:
    """A table of clicks: twelve columns, of which two are read."""
    import pyarrow
    import pyarrow.parquet

    random = np.random.default_rng(11)
    columns = {"user": random.integers(0, rows, rows), "price": random.integers(1, 10_000, rows)}
    columns |= {f"feature_{n}": random.integers(0, 1 << 40, rows) for n in range(10)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="snappy", row_group_size=100_000)


def sums_of(table: object) -> list[int]:
    """Of a table of cuDF's or of pyarrow's."""
    if hasattr(table, "column_names"):
        return [int(table.column(name).to_numpy().sum()) for name in COLUMNS]
    return [int(table[name].sum()) for name in COLUMNS]  # type: ignore[index]


def readers(path: Path) -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """Each way of reading, by name; what isn't installed is said."""
    import pyarrow.parquet

    def over_file(read: Callable[..., object]) -> Callable[[], list[int]]:
        def run() -> list[int]:
            with forebay.open(path) as file:
                return sums_of(read(file, columns=COLUMNS))

        return run

    yield "pyarrow over forebay", over_file(pyarrow.parquet.read_table)
    yield "pyarrow", lambda: sums_of(pyarrow.parquet.read_table(path, columns=COLUMNS))
    try:
        import cudf  # type: ignore[import-not-found]
    except ImportError as error:
        print(f"cuDF isn't installed ({error}): its readers aren't compared")
        return
    yield "cudf over forebay", over_file(cudf.read_parquet)
    yield "cudf", lambda: sums_of(cudf.read_parquet(path, columns=COLUMNS))


def forget(path: Path) -> None:
    """Drops the file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batches", type=int, default=5, help="times that each reader reads the columns")
    parser.add_argument("--dir", type=Path, help="where the file is made, and removed; default: a temporary folder")
    parser.add_argument("--cold", action="store_true", help="drop the file from the page cache before each reading")
    asked = parser.parse_args()
    if asked.rows < 1 or asked.batches < 1:
        parser.error("--rows and --batches are 1 or more")
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        print(f"pyarrow isn't installed ({error}): pip install pyarrow")
        return 3
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        path = Path(folder) / "clicks.parquet"
        make(path, asked.rows)
        print(f"{path.stat().st_size / 2**20:.1f} MiB, {len(COLUMNS)} of 12 columns, {'cold' if asked.cold else 'cached'}")
        expected: list[int] | None = None
        for name, read in readers(path):
            seconds = []
            for _ in range(asked.batches):
                if asked.cold:
                    forget(path)
                began = time.perf_counter()
                found = read()
                seconds.append(time.perf_counter() - began)
                expected = expected or found
                if found != expected:
                    print(f"{name}: the sums are {found}, not {expected}")
                    return 1
            print(f"{name:20}  {min(seconds) * 1e3:9.1f} ms at best, {statistics.median(seconds) * 1e3:.1f} ms in the median")
    return 0


if __name__ == "__main__":
    sys.exit(main())
