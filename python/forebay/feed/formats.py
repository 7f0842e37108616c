"""The formats that a loader takes by a file's ending. A further one is a file of its own, and a row here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.feed import dataset, hdf5_sets, npz_arrays, parquet_columns, records, samples

# A file's number among those that TensorFlow's tools write of one data set.
SHARD = re.compile(r"-\d+-of-\d+$")


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
    Format(".safetensors", (".safetensors",), dataset.safetensors),
    Format("Parquet", parquet_columns.ENDINGS, parquet_columns.parquet),
    Format(".npz", npz_arrays.ENDINGS, npz_arrays.npz),
    Format("HDF5", hdf5_sets.ENDINGS, hdf5_sets.hdf5),
    Format("TFRecord", records.ENDINGS, records.tfrecord),
    Format("WebDataset", samples.SHARDS, samples.webdataset),
    Format("JPEG", samples.IMAGES, samples.images),
)


def of_file(name: str) -> Format | None:
    """The format that the file's name says, in capitals, too, and before a number as in train.tfrecord-00003-of-00128."""
    ending = os.path.splitext(SHARD.sub("", name))[1].lower()
    return next((row for row in FORMATS if ending in row.endings), None)
