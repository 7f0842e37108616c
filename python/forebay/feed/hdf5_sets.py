"""HDF5 files whose data sets are plain: their rows lie in the file as they are, contiguous or in chunks of whole rows."""

from __future__ import annotations

from collections.abc import Iterable

from forebay import _core
from forebay.errors import RequestError
from forebay.feed.dataset import (
    Dataset,
    Field,
    Part,
    Paths,
    field_of,
    files_of,
    identity_of,
    indexed,
    names_of,
    size_of,
    stamps_of,
)
from forebay.feed.parquet_columns import parts_of

ENDINGS = (".hdf5", ".h5", ".hdf")


def hdf5(paths: Paths, columns: Iterable[str] | None = None) -> Dataset:
    """HDF5 files as one table: each data set is a field, and its first side counts samples.

    Those of the root group, or of all groups where it has none; `columns=["train/x"]` names one of a group.

    Raises RequestError: no HDF5, or a data set that is compressed, or whose chunks split its rows, by its name.
    """
    import numpy as np

    names, sizes, parts = files_of(paths, ENDINGS), [], list[Part]()
    stamps = stamps_of(names)
    wanted = names_of(columns)
    layout: list[tuple[str, str, tuple[int, ...], int]] | None = None
    for name in names:
        sizes.append(size_of(name))
        found = indexed(_core.hdf5_index, name, wanted, part="data set")
        reported = [(field, item, tuple(dims[1:]), row_bytes) for field, dims, item, row_bytes, _ in found]
        lengths = {dims[0] for _, dims, *_ in found}
        if len(lengths) != 1:
            rows = ", ".join(f"{field} {dims[0]}" for field, dims, *_ in found[:8])
            said = f"its data sets don't all have as many rows: {rows}" if found else "it has none"
            raise RequestError(f"the data sets of {name}", said, "columns=[…] of data sets whose first sides count samples")
        if layout is not None and reported != layout:
            raise RequestError(f"the data sets of {name}", f"they differ from those of {names[0]}", "files of one layout")
        layout = reported
        parts += parts_of(name, [runs for *_, runs in found], [row_bytes for *_, row_bytes, _ in found])
    assert layout is not None
    fields = list[Field]()
    for number, (field, item, shape, row_bytes) in enumerate(layout):
        made = field_of(field, np.dtype((item, shape)) if shape else np.dtype(item), 0)
        assert made.bytes == row_bytes
        fields.append(Field(field, number, 0, made.code, made.bits, made.typestr, made.shape))
    identity = identity_of(names, sizes, ["hdf5", [[field, item, list(shape)] for field, item, shape, _ in layout]])
    return Dataset(tuple(parts), tuple((width, width) for *_, width in layout), tuple(fields), identity, stamps)
