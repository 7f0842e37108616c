"""TFRecord files, whose records are samples of different sizes: the bytes of an `Example`, as TensorFlow serialised it."""

from __future__ import annotations

from collections.abc import Iterable

from forebay import _core
from forebay.errors import RequestError
from forebay.feed.dataset import UNNAMED, Paths, files_of, identity_of, indexed
from forebay.feed.samples import Samples, digest, stamp_of

ENDINGS = (".tfrecord", ".tfrecords")


def tfrecord(paths: Paths, columns: Iterable[str] | None = None) -> Samples:
    """Records of TFRecord files, each a sample with one field `data`. Raises RequestError."""
    import numpy as np

    names = files_of(paths)
    stamps, files, places = [], [], []
    for number, name in enumerate(names):
        stamps.append(stamp_of(name))
        found = np.array(indexed(_core.record_index, name), np.int64).reshape(-1, 2)
        files.append(np.full(len(found), number, np.int32))
        places.append(found)
    every = np.concatenate(places)
    if not len(every):
        raise RequestError(f"the records of {names[0]}", "it has none", "a file of TFRecordWriter with records")
    sizes = np.ascontiguousarray(every[:, 1:])
    identity = identity_of(names, [size for size, _ in stamps], ["tfrecord", digest(sizes)])
    offsets = np.ascontiguousarray(every[:, :1])
    whole = Samples(tuple(names), tuple(stamps), (UNNAMED,), np.concatenate(files), offsets, sizes, identity, True)
    return whole if columns is None else whole.only(columns)
