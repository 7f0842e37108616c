"""Data sets in the hands of the libraries whose formats they are: what we make they read, what they wrote we read.

HDF5 and images have files of their own (test_emulate_hdf5.py, test_emulate_images.py); numpy's are in
test_emulate_datagen.py.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FILES, ROWS = 3, 60
TABLE = f"""
format = "parquet"
loader = "pytorch"
columns = [
  {{ name = "a", type = "float32", values = 1, read = true }},
  {{ name = "b", type = "float32", values = 300, read = false }},
  {{ name = "c", type = "int64", values = 1, read = true }},
  {{ name = "d", type = "uint8", values = 16, read = false }},
]
record_bytes = 1228
samples_per_file = {ROWS}
row_group = 25
files = {FILES}
batch = 6
read_threads = 2
prefetch = 2
epochs = 1
au_pct_min = 0
compute_s = 0.001
"""
RECORDS = f"""
format = "tfrecord"
loader = "tensorflow"
record_bytes = 2500
samples_per_file = {ROWS}
files = {FILES}
batch = 6
read_threads = 2
prefetch = 2
epochs = 1
au_pct_min = 0
compute_s = 0.001
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a run that breaks rescues stays out of the tree."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def emulate(forebay: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """`emulate(verb, workload, *flags)` over tmp_path/data."""

    def call(verb: str, workload: str, *flags: str) -> Any:
        (tmp_path / "own.toml").write_text(workload)
        return forebay("emulate", verb, "--workload", tmp_path / "own.toml", "--data", tmp_path / "data", "--json", *flags)

    return call


def training(done: Any, code: int = 0) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["training"]
    return found


def names(tmp_path: Path, format: str) -> list[Path]:
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True, exist_ok=True)
    return [train / f"img_{n}_of_{FILES}.{format}" for n in range(FILES)]


# Parquet, by pyarrow ---------------------------------------------------------------------------------


@pytest.mark.promise("EMU-22")
def test_pyarrow_reads_our_tables(emulate: Callable[..., Any], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow isn't installed; try: pip install pyarrow")
    assert emulate("datagen", TABLE).returncode == 0
    seen = set()
    for path in names(tmp_path, "parquet"):
        file = parquet.ParquetFile(path, page_checksum_verification=True)
        assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [25, 25, 10]
        table = file.read()
        assert table.num_rows == ROWS and table.column_names == ["a", "b", "c", "d"]
        assert [str(table.schema.field(n).type) for n in range(4)] == [
            "float",
            "fixed_size_binary[1200]",
            "int64",
            "fixed_size_binary[16]",
        ]
        seen |= set(table.column("c").to_pylist())
    assert len(seen) == FILES * ROWS, "no value comes twice"


@pytest.mark.promise("TRA-18")
@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy"},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "none", "write_page_checksum": True, "data_page_size": 512},
    ],
    ids=lambda options: " ".join(f"{k}={v}" for k, v in options.items()),
)
def test_tables_that_pyarrow_wrote_are_read_by_columns(
    emulate: Callable[..., Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow isn't installed; try: pip install pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(7)
    for path in names(tmp_path, "parquet"):
        table = arrow.table({
            "a": random.normal(size=ROWS).astype(np.float32),
            "b": list(random.normal(size=(ROWS, 300)).astype(np.float32)),  # a list: a leaf below two groups
            "c": random.integers(0, 9, ROWS),
            "d": [random.bytes(16) for _ in range(ROWS)],
        })  # fmt: skip
        parquet.write_table(table, path, row_group_size=25, **options)
    whole = sum(path.stat().st_size for path in names(tmp_path, "parquet"))
    found = training(emulate("run", TABLE))
    assert (found["samples"], found["skipped"]["count"]) == (FILES * ROWS, 0)
    # Files this small lie in the tail that is read first, and chunks are read besides.
    chunks = 0
    for path in names(tmp_path, "parquet"):
        groups = parquet.ParquetFile(path).metadata
        for group in range(groups.num_row_groups):
            chunks += sum(groups.row_group(group).column(n).total_compressed_size for n in (0, 2))
    assert found["read_bytes"] == chunks + sum(min(p.stat().st_size, 65536) for p in names(tmp_path, "parquet"))
    assert found["read_bytes"] < whole


@pytest.mark.promise("TRA-18")
def test_a_page_of_pyarrows_that_lost_a_bit_is_named(emulate: Callable[..., Any], tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow isn't installed; try: pip install pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"a": np.arange(ROWS, dtype=np.float32), "c": np.arange(ROWS)}
    columns |= {"b": np.zeros(ROWS), "d": np.zeros(ROWS)}
    for path in names(tmp_path, "parquet"):
        parquet.write_table(arrow.table(columns), path, compression="none", use_dictionary=False, write_page_checksum=True)
    victim = names(tmp_path, "parquet")[1]
    raw = bytearray(victim.read_bytes())
    raw[raw.index(struct.pack("<3f", 30, 31, 32))] ^= 1
    victim.write_bytes(raw)
    done = emulate("run", TABLE)
    assert done.returncode == 4 and victim.name in done.stderr and "CRC-32" in done.stderr, done.stderr
    assert training(emulate("run", TABLE, "--on-error", "skip"), 1)["skipped"]["count"] == ROWS


# TFRecord, by the package of that name ---------------------------------------------------------------


@pytest.mark.promise("EMU-22")
def test_a_reader_without_tensorflow_reads_our_records(emulate: Callable[..., Any], tmp_path: Path) -> None:
    reader = pytest.importorskip("tfrecord.reader", reason="tfrecord isn't installed; try: pip install tfrecord")
    assert emulate("datagen", RECORDS).returncode == 0
    seen = set()
    for path in names(tmp_path, "tfrecord"):
        for example in reader.tfrecord_loader(str(path), None, {"image": "byte", "size": "int"}):
            assert len(example["image"]) == 2500 and list(example["size"]) == [50]
            seen.add(bytes(example["image"]))
    assert len(seen) == FILES * ROWS


@pytest.mark.promise("TRA-18")
def test_records_that_it_wrote_are_read_and_checked(emulate: Callable[..., Any], tmp_path: Path) -> None:
    writer = pytest.importorskip("tfrecord.writer", reason="tfrecord isn't installed; try: pip install tfrecord")
    random, payload = np.random.default_rng(7), 0
    for path in names(tmp_path, "tfrecord"):
        made = writer.TFRecordWriter(str(path))
        for _ in range(ROWS):
            image = random.bytes(int(random.integers(1, 5000)))
            made.write({"image": (image, "byte"), "size": (len(image), "int"), "mean": ([0.5, 0.25], "float")})
            payload += len(image)
        made.close()
    found = training(emulate("run", RECORDS))
    assert (found["samples"], found["skipped"]["count"]) == (FILES * ROWS, 0)
    assert payload <= found["payload_bytes"] < found["read_bytes"]
    assert found["read_bytes"] == sum(path.stat().st_size for path in names(tmp_path, "tfrecord"))
    victim = names(tmp_path, "tfrecord")[2]
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw)
    done = emulate("run", RECORDS)
    assert done.returncode == 4 and victim.name in done.stderr and "CRC32C" in done.stderr, done.stderr
