"""Files of numpy.savez: arrays whose first axes count samples, or files that are one sample each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from forebay import _core
from forebay.errors import RequestError
from forebay.feed.dataset import (
    Dataset,
    Part,
    Paths,
    array_header,
    field_of,
    files_of,
    identity_of,
    indexed,
    names_of,
    size_of,
    stamps_of,
)
from forebay.feed.samples import Samples, digest, stamp_of

ENDINGS = (".npz",)
NPY = ".npy"
# (name of the array, byte at which its .npy begins, bytes)
Members = list[tuple[str, int, int]]


def npz(paths: Paths, columns: Iterable[str] | None = None, *, each: str = "row") -> Any:
    """Arrays of .npz files, which numpy.savez wrote; compressed ones are refused by name.

    each   "row": a row of all arrays is a sample, as their first axes count them: a Dataset
           "file": a file is a sample, and each of its arrays a field that holds a whole .npy: Samples

    Raises RequestError.
    """
    if each not in ("row", "file"):
        raise RequestError(f"each={each!r}", "is neither row nor file", 'each="file"')
    names = files_of(paths, ENDINGS)
    stamps = stamps_of(names)
    wanted = names_of(columns)
    found = [(name, arrays_of(name, wanted)) for name in names]
    fields = [array for array, _, _ in found[0][1]]
    for name, members in found:
        has = [array for array, _, _ in members]
        if has != fields:
            said = f"it has {', '.join(has)}, and {names[0]} {', '.join(fields)}"
            raise RequestError(f"the arrays of {name}", said, "columns=[…] of arrays that every file has")
    return as_rows(found, stamps) if each == "row" else as_files(found)


def arrays_of(name: str, wanted: list[str] | None) -> Members:
    """The wanted arrays of a file, or all, by name. Raises RequestError."""
    size_of(name)
    listed = {member: (offset, size, altered) for member, offset, size, altered in indexed(_core.archive_index, name)}
    known = sorted(member[: -len(NPY)] for member in listed if member.endswith(NPY))
    asked = f"the arrays of {name}"
    if not known:
        raise RequestError(asked, "it has none", "an .npz of numpy.savez")
    found = Members()
    for array in known if wanted is None else sorted(set(wanted)):
        if array not in known:
            raise RequestError(asked, f"it has no {array!r}", f"columns= of {', '.join(known[:12])}")
        offset, size, altered = listed[array + NPY]
        if altered is not None:
            raise RequestError(f"array {array} of {name}", f"it is {altered}", "numpy.savez, in place of savez_compressed")
        found.append((array, offset, size))
    return found


def as_rows(files: list[tuple[str, Members]], stamps: tuple[tuple[str, int, int], ...]) -> Dataset:
    """A row of all arrays is a sample."""
    import numpy as np

    layout: list[tuple[str, Any, tuple[int, ...]]] | None = None
    parts, sizes = list[Part](), list[int]()
    for name, members in files:
        reported, begins, lengths = [], [], set()
        sizes.append(size_of(name))
        for array, offset, size in members:
            shape, dtype, begin = array_header(name, offset, offset + size, f"array {array} of {name}")
            if dtype.hasobject:
                found = f"array {array} holds objects, pickled"
                raise RequestError(f"rows of {name}", found, 'columns=[…] without it; or each="file"')
            if not shape:
                found = f"array {array} has no dimension"
                raise RequestError(f"rows of {name}", found, 'columns=[…] without it; or each="file"')
            reported.append((array, dtype, shape[1:]))
            begins.append(begin)
            lengths.add(shape[0])
        if len(lengths) != 1:
            found = f"its arrays {', '.join(array for array, *_ in reported)} don't all have as many rows"
            raise RequestError(f"rows of {name}", found, 'forebay.feed.npz(FILES, each="file"): a file is a sample')
        if layout is not None and reported != layout:
            found = f"its arrays are of other types or shapes than those of {files[0][0]}"
            raise RequestError(f"rows of {name}", found, 'files of one layout; or forebay.feed.npz(FILES, each="file")')
        layout = reported
        parts.append(Part(name, lengths.pop(), tuple(begins)))
    assert layout is not None
    fields = [
        replace(field_of(array, np.dtype((dtype, shape)), 0), column=number)
        for number, (array, dtype, shape) in enumerate(layout)
    ]
    for field in fields:
        if not field.bytes:
            raise RequestError(f"array {field.name}", "a row of it has no bytes", "columns=[…] without it")
    columns = tuple((field.bytes, field.bytes) for field in fields)
    names = [name for name, _ in files]
    identity = identity_of(names, sizes, ["npz", [[array, str(dtype), list(shape)] for array, dtype, shape in layout]])
    return Dataset(tuple(parts), columns, tuple(fields), identity, stamps)


def as_files(files: list[tuple[str, Members]]) -> Samples:
    """A file is a sample."""
    import numpy as np

    names = [name for name, _ in files]
    stamps = [stamp_of(name) for name in names]
    offsets = np.array([[offset for _, offset, _ in members] for _, members in files], np.int64)
    sizes = np.array([[size for _, _, size in members] for _, members in files], np.int64)
    fields = tuple(array for array, _, _ in files[0][1])
    identity = identity_of(names, [size for size, _ in stamps], ["npz", list(fields), digest(sizes)])
    return Samples(tuple(names), tuple(stamps), fields, np.arange(len(names), dtype=np.int32), offsets, sizes, identity)
