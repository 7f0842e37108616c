"""The formats that a loader takes by a file's ending. A further one is a file of its own, and a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.feed import dataset, hdf5_sets, npz_arrays, parquet_columns, records, samples


@dataclass(frozen=True)
class Format:
    """`open` takes paths, and names of columns or None for all."""

    name: str
    endings: tuple[str, ...]
    open: Callable[[Any, Any], Any]


def _chosen(open: Callable[[Any], dataset.Dataset]) -> Callable[[Any, Any], dataset.Dataset]:
    return lambda paths, columns: open(paths) if columns is None else open(paths).only(columns)


FORMATS = (
    Format(".npy", (".npy",), _chosen(dataset.npy)),
    Format(".safetensors", (".safetensors",), _chosen(dataset.safetensors)),
    Format("Parquet", parquet_columns.ENDINGS, parquet_columns.parquet),
    Format(".npz", npz_arrays.ENDINGS, npz_arrays.npz),
    Format("HDF5", hdf5_sets.ENDINGS, hdf5_sets.hdf5),
    Format("TFRecord", records.ENDINGS, records.tfrecord),
    Format("WebDataset", samples.SHARDS, samples.webdataset),
    Format("JPEG", samples.IMAGES, samples.images),
)


def by_ending(ending: str) -> Format | None:
    """The format of files with this ending."""
    return next((row for row in FORMATS if ending in row.endings), None)
