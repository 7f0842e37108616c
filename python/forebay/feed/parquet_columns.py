"""Parquet files whose columns are plain: numbers of fixed width that lie in pages as they are, and are read from there."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from forebay import _core
from forebay.errors import RequestError
from forebay.feed.dataset import (
    Dataset,
    Field,
    Part,
    Paths,
    files_of,
    identity_of,
    indexed,
    names_of,
    size_of,
    stamps_of,
)

ENDINGS = (".parquet",)
# Parquet's types → (DLPack's code, bits, NumPy's name); others are bytes.
TYPES = {
    "INT32": (0, 32, "<i4"),
    "INT64": (0, 64, "<i8"),
    "UINT32": (1, 32, "<u4"),
    "UINT64": (1, 64, "<u8"),
    "FLOAT16": (2, 16, "<f2"),
    "FLOAT": (2, 32, "<f4"),
    "DOUBLE": (2, 64, "<f8"),
}

Runs = list[tuple[int, int]]


def parquet(paths: Paths, columns: Iterable[str] | None = None) -> Dataset:
    """Parquet files as one table, of the named columns or all: uncompressed, without dictionary and nulls, of fixed width.

    Raises RequestError: no Parquet, or a column that is anything else, by its name.
    """
    names, sizes, parts = files_of(paths, ENDINGS), [], []
    stamps = stamps_of(names)
    wanted = names_of(columns)
    layout: list[tuple[str, str, int]] | None = None
    for name in names:
        sizes.append(size_of(name))
        _, found = indexed(_core.parquet_index, name, wanted, part="column")
        reported = [(column, kind, width) for column, kind, width, _ in found]
        if not reported:
            raise RequestError(f"the columns of {name}", "it has none", "a file with a column of numbers")
        if layout is not None and reported != layout:
            one, own = ({column: f"{kind} of {width} bytes" for column, kind, width in some} for some in (layout, reported))
            odd = next((key for key in {**one, **own} if one.get(key) != own.get(key)), "their order")
            words = f"{odd} is {own.get(odd, 'missing')}, and {one.get(odd, 'missing')} in {names[0]}"
            found = words if odd in one or odd in own else f"they are in another order than those of {names[0]}"
            raise RequestError(f"the columns of {name}", found, "files of one schema, or columns=[…] of those alike")
        layout = reported
        parts += parts_of(name, [runs for *_, runs in found], [width for _, _, width, _ in found])
    assert layout is not None
    fields = []
    for number, (column, kind, width) in enumerate(layout):
        code, bits, typestr = TYPES.get(kind, (1, 8, "|u1"))
        fields.append(Field(column, number, 0, code, bits, typestr, () if kind in TYPES else (width,)))
        assert fields[-1].bytes == width == prod(fields[-1].shape) * bits // 8
    identity = identity_of(names, sizes, ["parquet", [list(reported) for reported in layout]])
    return Dataset(tuple(parts), tuple((width, width) for *_, width in layout), tuple(fields), identity, stamps)


def parts_of(name: str, columns: list[Runs], widths: list[int]) -> list[Part]:
    """Runs of rows in which the values of every column lie one behind the other. All columns have as many rows."""
    parts: list[Part] = []
    at = [(0, 0)] * len(columns)
    while at[0][0] < len(columns[0]):
        runs = [(runs[run], gone) for runs, (run, gone) in zip(columns, at, strict=True)]
        rows = min(values - gone for (values, _), gone in runs)
        begins = tuple(begin + gone * width for ((_, begin), gone), width in zip(runs, widths, strict=True))
        before = parts[-1] if parts else None
        if before and all(a + before.rows * w == b for a, b, w in zip(before.begins, begins, widths, strict=True)):
            parts[-1] = Part(name, before.rows + rows, before.begins)
        else:
            parts.append(Part(name, rows, begins))
        at = [
            (run, gone + rows) if gone + rows < values else (run + 1, 0)
            for (run, gone), ((values, _), _) in zip(at, runs, strict=True)
        ]
    return parts
