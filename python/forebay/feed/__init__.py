"""Batches for training: read ahead, in an exact order, without worker processes and without a copy in Python.

    import forebay.feed, numpy
    data = forebay.feed.rows("train.bin", numpy.dtype([("label", "<f4"), ("x", "<f4", 13)]))
    for batch in forebay.feed.Loader(data, batch_size=8192, shuffle="rows", seed=0):
        x = numpy.from_dlpack(batch["x"])

`forebay.torch.Loader` is the same with PyTorch's tensors.
"""

from forebay.feed.dataset import Dataset, npy, open_dataset, rows, safetensors
from forebay.feed.hdf5_sets import hdf5
from forebay.feed.loader import Loader, UncachedRowsWarning
from forebay.feed.npz_arrays import npz
from forebay.feed.parquet_columns import parquet
from forebay.feed.records import tfrecord
from forebay.feed.samples import Samples, files, webdataset

__all__ = [
    "Dataset",
    "Loader",
    "Samples",
    "UncachedRowsWarning",
    "files",
    "hdf5",
    "npy",
    "npz",
    "open_dataset",
    "parquet",
    "rows",
    "safetensors",
    "tfrecord",
    "webdataset",
]
