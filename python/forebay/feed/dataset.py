"""Data that a loader reads: files with samples of one size, and the layout of a sample."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from forebay import _core, headers
from forebay.errors import MachineError, RequestError
from forebay.names import Path, file_name
from forebay.rows import check_whole
from forebay.units import GIB
from forebay.uri import known, parsed

Paths = Path | Sequence[Path]

# NumPy's kinds → DLPack's codes.
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
# Of longer ones (NumPy's longdouble) consumers of DLPack know none.
ITEM_BYTES_MAX = {"i": 8, "u": 8, "f": 8, "c": 16, "b": 1}
# The types of safetensors → (DLPack's code, bits, NumPy's name). The 8-bit floats are handed out as bytes, since most
# consumers of DLPack don't know them: tensor.view(torch.float8_e4m3fn).
TENSOR_TYPES = {
    "BOOL": (6, 8, "|b1"),
    "U8": (1, 8, "|u1"),
    "I8": (0, 8, "|i1"),
    "F8_E5M2": (1, 8, "|u1"),
    "F8_E4M3": (1, 8, "|u1"),
    "F8_E8M0": (1, 8, "|u1"),
    "F8_E4M3FNUZ": (1, 8, "|u1"),
    "F8_E5M2FNUZ": (1, 8, "|u1"),
    "I16": (0, 16, "<i2"),
    "U16": (1, 16, "<u2"),
    "F16": (2, 16, "<f2"),
    "BF16": (4, 16, "<V2"),
    "I32": (0, 32, "<i4"),
    "U32": (1, 32, "<u4"),
    "F32": (2, 32, "<f4"),
    "C64": (5, 64, "<c8"),
    "F64": (2, 64, "<f8"),
    "I64": (0, 64, "<i8"),
    "U64": (1, 64, "<u8"),
}
# Indexes → the functions here that read such files.
OPENS = {
    "parquet_index": "parquet",
    "hdf5_index": "hdf5",
    "archive_index": "npz",
    "record_index": "tfrecord",
    "shard_index": "webdataset",
}
# Ends what is said of a file that is whole, but written in a way that isn't read here.
NOT_READ = re.compile(r"isn't read here|which isn't|aren't read| chunks of \d")
HEADER_BYTES_MAX = 100_000_000
# What a sample of a file without named fields is called.
UNNAMED = "data"


@dataclass(frozen=True)
class Field:
    """One name of a sample: `shape` numbers of DLPack's type, `offset` bytes behind the sample's begin in column `column`."""

    name: str
    column: int
    offset: int
    code: int
    bits: int
    typestr: str
    shape: tuple[int, ...]

    @property
    def item(self) -> int:
        return self.bits // 8

    @property
    def bytes(self) -> int:
        return self.item * prod(self.shape)


@dataclass(frozen=True)
class Part:
    """A file's share: `rows` samples, and the byte at which each column of the first begins. No name: nothing is read."""

    name: str | None
    rows: int
    begins: tuple[int, ...]


@dataclass(frozen=True)
class Dataset:
    """Files as one table of samples.

    columns   (bytes, step) each: bytes of a sample that are read together, and the distance from one sample to the next
    fields    the named numbers of a sample
    identity  64 bits of a hash over the files' names (without folders) and sizes, and the layout of a sample
    stamps    of the files, when they were looked at
    """

    parts: tuple[Part, ...]
    columns: tuple[tuple[int, int], ...]
    fields: tuple[Field, ...]
    identity: int
    stamps: tuple[tuple[str, int, int], ...] = ()

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    def check_unchanged(self) -> None:
        """Raises RequestError for a file that isn't as it was: samples may lie elsewhere in it."""
        now = stamps_of([name for name, _, _ in self.stamps])
        for (name, bytes_, _), new in zip(self.stamps, now, strict=True):
            if new not in self.stamps:
                found = f"it changed: {bytes_} bytes when the data set was made, {new[1]} now"
                raise RequestError(f"samples of {name}", found, "a data set of the files as they are")

    def only(self, names: Iterable[str]) -> Dataset:
        """The data set of these fields alone: of each sample only their bytes are read. Raises RequestError."""
        known = {field.name: field for field in self.fields}
        wanted = names_of(names, known) or []
        for name in wanted:
            if name not in known:
                raise RequestError(f"columns={wanted}", f"a sample has no {name!r}", f"of {', '.join(known)}")
        return self._cut([field for field in self.fields if field.name in wanted])

    def _cut(self, kept: Sequence[Field]) -> Dataset:
        """Fields that touch, and can be handed out side by side, are read together; each other is a column of its own."""
        columns: list[tuple[int, int]] = []
        origin: list[tuple[int, int]] = []
        fields: list[Field] = []
        for field in sorted(kept, key=lambda f: (f.column, f.offset)):
            step = self.columns[field.column][1]
            if columns and self._touches(fields, columns[-1], origin[-1], field, step):
                begin = origin[-1][1]
                columns[-1] = (field.offset + field.bytes - begin, step)
            else:
                columns.append((field.bytes, step))
                origin.append((field.column, field.offset))
                begin = field.offset
            fields.append(replace(field, column=len(columns) - 1, offset=field.offset - begin))
        if not all(self._is_aligned(field, columns[field.column]) for field in fields):
            columns = [(field.bytes, self.columns[field.column][1]) for field in kept]
            origin = [(field.column, field.offset) for field in kept]
            fields = [replace(field, column=i, offset=0) for i, field in enumerate(kept)]
        parts = tuple(
            replace(part, begins=tuple(part.begins[column] + offset for column, offset in origin)) for part in self.parts
        )
        return Dataset(parts, tuple(columns), tuple(fields), self.identity, self.stamps)

    @staticmethod
    def _touches(
        fields: Sequence[Field], column: tuple[int, int], origin: tuple[int, int], field: Field, step: int
    ) -> bool:
        return origin[0] == field.column and origin[1] + column[0] == field.offset and column[1] == step

    @staticmethod
    def _is_aligned(field: Field, column: tuple[int, int]) -> bool:
        """Whether the field can be handed out where it lies between others: DLPack counts distances in elements."""
        return not field.offset % field.item and not column[0] % field.item


def open_dataset(data: Any, schema: Any = None, columns: Iterable[str] | None = None) -> Any:
    """`data` as a data set of `columns` or all: one already, names of files of a format that says what it holds, a folder of
    such, or any files with a schema. Raises RequestError."""
    from forebay.feed import formats, samples

    if isinstance(data, (Dataset, samples.Samples)):
        return data if columns is None else data.only(columns)
    if schema is not None:
        whole = rows(data, schema)
        return whole if columns is None else whole.only(columns)
    names = files_of(data)
    if _is_folder(data):
        # Beside its data a folder may have a README, an index, or a mark that it is complete.
        names = [name for name in names if formats.of_file(name) is not None] or names
    row = formats.of_file(names[0])
    if row is None:
        seen = headers.recognised(names[0])
        if seen is not None:
            raise RequestError(f"the samples of {names[0]}", f"it is {seen[0]}", seen[1])
        known = ", ".join(one.name for one in formats.FORMATS)
        raise RequestError(
            f"the samples of {names[0]}",
            f"its name ends as none of {known} does: the file doesn't say how long a sample is",
            'forebay.feed.rows(FILES, {"x": ("float32", (228,))}), or .files(FILES); on the command line --row-bytes 912',
        )
    odd = next((name for name in names if formats.of_file(name) is not row), None)
    if odd is not None:
        found = f"it isn't of one format with {names[0]}, which is {row.name}"
        raise RequestError(f"the samples of {odd}", found, "a Loader for each format")
    return row.open(names, columns)


def _is_folder(data: Any) -> bool:
    return isinstance(data, (str, bytes, os.PathLike)) and os.path.isdir(data)


def files_of(paths: Any, endings: tuple[str, ...] = ()) -> list[str]:
    """Names of files, of a folder its files in order of their names, without hidden ones. Raises RequestError."""
    one = isinstance(paths, (str, bytes, os.PathLike))
    if not one and (not isinstance(paths, Iterable) or hasattr(paths, "__array_interface__")):
        raise RequestError("a data set", f"the files are of type {type(paths).__name__}", "a path, or a list of paths")
    found: list[str] = []
    for path in [paths] if one else paths:
        name = str(path) if is_nothing(path) else file_name(path)
        if not _is_directory(name):
            found.append(name)
            continue
        entries = [entry for entry in os.scandir(name) if not entry.name.startswith(".")]
        inside = sorted(entry.path for entry in entries if entry.is_file())
        listed = [path for path in inside if not endings or path.lower().endswith(endings)]
        if not listed:
            deeper = any(entry.is_dir() for entry in entries)
            next = f'a list: sorted(glob.glob("{os.path.join(name, "*", "*")}"))' if deeper else "another folder"
            found_there = f"it has none{f' of {endings[0]}' if endings else ''}{', but folders' if deeper else ''}"
            raise RequestError(f"the files of {name}", found_there, next)
        found += listed
    if not found:
        raise RequestError("a data set", "the list of files is empty", "one file or more")
    return found


def _is_directory(name: str) -> bool:
    """Returns whether it is a folder. Raises RequestError for a pipe or socket, which would wait for whoever writes to it."""
    try:
        mode = os.stat(name).st_mode
    except OSError:  # whoever opens it says why
        return False
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        kind = "pipe" if stat.S_ISFIFO(mode) else "socket"
        raise RequestError(f"open {name}", f"it is a {kind}, and samples are read in any order", f"cat {name} >FILE")
    return stat.S_ISDIR(mode)


def is_nothing(path: Any) -> bool:
    """Returns whether it is a source of no bytes, and no file's name."""
    return isinstance(path, str) and ":" in path and (named := known(path)) is not None and named.is_idle


def size_of(name: str) -> int:
    """Bytes of a file or device, or of a source of no bytes. Raises what `forebay.open` would."""
    if is_nothing(name):
        return parsed(name).bytes or GIB
    try:
        with open(name, "rb", buffering=0) as file:
            return file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        raise RequestError(f"open {name}", "there is no such file", f"ls {os.path.dirname(name) or '.'}") from None
    except OSError as error:
        raise MachineError(f"open {name}", error.strerror or str(error), f"ls -l {name}") from None


def indexed(index: Callable[..., Any], name: str, *settings: Any, part: str | None = None) -> Any:
    """Result of an index of the file. Raises RequestError; `part`: what its words call a column that isn't read here."""
    try:
        return index(name, *settings)
    except RequestError as error:
        seen = headers.recognised(name)
        if seen is not None and f"forebay.feed.{OPENS[index.__name__]}" not in seen[1]:
            raise RequestError(error.asked, f"it is {seen[0]}", seen[1]) from None
        if part is None:
            raise
        lacks = f"it has no {part} "
        if lacks in error.found:
            raise RequestError(error.asked, error.found[error.found.index("it") :], "columns= of those that it has") from None
        if f" {part} " not in error.found and not NOT_READ.search(error.found):
            raise RequestError(error.asked, error.found, "the whole file, as its writer closed it") from None
        raise


def stamps_of(names: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
    """Name, bytes and time of the last change of each file that can be looked at."""
    found = []
    for name in dict.fromkeys(names):
        with contextlib.suppress(OSError, ValueError):  # whoever opens it says why
            at = os.stat(name)
            if stat.S_ISREG(at.st_mode):
                found.append((name, at.st_size, at.st_mtime_ns))
    return tuple(found)


def names_of(columns: Any, known: Iterable[str] = ()) -> list[str] | None:
    """Names of columns, or None for all. Raises RequestError where it is no list of any."""
    if columns is None:
        return None
    if not isinstance(columns, Iterable) or isinstance(columns, bytes):
        raise RequestError(f"columns={columns!r:.80}", f"is of type {type(columns).__name__}", 'a list of names: ["x"]')
    listed = [columns] if isinstance(columns, str) else list(columns)
    if not listed:
        next = f"of {', '.join(known)}" if known else 'names of fields: ["x"], or None for all'
        raise RequestError("columns=[]", "nothing would be read", next)
    return listed


def identity_of(names: Sequence[str], sizes: Sequence[int], layout: Any) -> int:
    reported = [[os.path.basename(name), size] for name, size in zip(names, sizes, strict=True)]
    digest = hashlib.blake2b(json.dumps([reported, layout]).encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def rows(paths: Paths, schema: Any, *, start: int = 0) -> Dataset:
    """Fixed-size rows, one behind the other in each file from byte `start` on.

    paths   a file, a list of files, or a folder
    schema  a NumPy dtype, plain or structured, or {name: (dtype, shape)} without gaps

    Raises RequestError: a schema that isn't one, or a file that isn't whole rows.
    """
    names = files_of(paths)
    row_bytes, fields = fields_of(schema)
    stamps = stamps_of(names)
    sizes = [size_of(name) for name in names]
    start = check_whole(start, "start")
    if not start:
        for name in names:
            headers.refuse(name)
    parts = []
    for name, size in zip(names, sizes, strict=True):
        count, odd = divmod(max(0, size - start), row_bytes)
        if (odd or size < start) and not is_nothing(name):
            found = f"its {size} bytes are {count} rows from byte {start} on, and {odd} bytes more"
            asked = f"rows of {row_bytes} bytes of {name}"
            raise RequestError(asked, found, "the file's own row size, or start=BYTES of a header")
        parts.append(Part(None if is_nothing(name) else name, count, (start,)))
    layout = [row_bytes, start, [[f.name, f.offset, f.typestr, list(f.shape)] for f in fields]]
    whole = Dataset(tuple(parts), ((row_bytes, row_bytes),), tuple(fields), identity_of(names, sizes, layout), stamps)
    aligned = all(Dataset._is_aligned(field, (row_bytes, row_bytes)) for field in fields)
    return whole if aligned else whole._cut(fields)


def fields_of(schema: Any) -> tuple[int, list[Field]]:
    """Bytes of a row, and its fields. Raises RequestError."""
    import numpy as np

    try:
        if schema is None:
            raise TypeError("None is no type of a row")
        if isinstance(schema, Mapping):
            listed = [(str(name), *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in schema.items()]
            schema = np.dtype(listed)
        dtype = np.dtype(schema)
    except (TypeError, ValueError) as error:
        raise RequestError(f"schema={schema!r:.80}", str(error), 'a NumPy dtype, or {"x": ("float32", (13,))}') from None
    if not dtype.itemsize:
        raise RequestError(f"schema={schema!r:.80}", "a row of it has no bytes", 'a NumPy dtype, or {"x": ("float32", (13,))}')
    if dtype.names is None:
        return dtype.itemsize, [field_of(UNNAMED, dtype, 0)]
    fields = [field_of(name, dtype.fields[name][0], int(dtype.fields[name][1])) for name in dtype.names]
    return dtype.itemsize, fields


def field_of(name: str, dtype: Any, offset: int) -> Field:
    """A NumPy dtype as a field; strings and raw bytes as uint8. Raises RequestError."""
    base, shape = (dtype.subdtype[0], dtype.subdtype[1]) if dtype.subdtype else (dtype, ())
    if base.hasobject or base.names is not None:
        raise RequestError(f"field {name!r} of type {base}", "its values aren't plain numbers", "numbers, or bytes: 'V16'")
    if base.byteorder == ">" or (base.byteorder == "=" and np_is_big()):
        found = "its numbers are big-endian, and are handed out as they lie"
        raise RequestError(f"field {name!r} of type {base}", found, "uint8, and a conversion of your own")
    if base.kind not in CODES or base.itemsize > ITEM_BYTES_MAX[base.kind]:
        return Field(name, 0, offset, CODES["u"], 8, "|u1", (*shape, base.itemsize))
    return Field(name, 0, offset, CODES[base.kind], 8 * base.itemsize, base.newbyteorder("<").str, tuple(shape))


def np_is_big() -> bool:
    import sys

    return sys.byteorder == "big"


def array_header(name: str, begin: int, end: int, asked: str) -> tuple[tuple[int, ...], Any, int]:
    """(shape, dtype, first byte of its numbers) of a .npy that lies between two bytes of a file. Raises RequestError."""
    from numpy.lib import format as layout

    try:
        with open(name, "rb") as file:
            file.seek(begin)
            version = layout.read_magic(file)
            read = layout.read_array_header_1_0 if version == (1, 0) else layout.read_array_header_2_0
            shape, fortran, dtype = read(file)
            at = file.tell()
    except (ValueError, EOFError, SyntaxError) as error:
        raise RequestError(f"read {name} as .npy", str(error), "a file of numpy.save") from None
    if fortran and len(shape) > 1:
        found = "its array is in Fortran order: a sample isn't contiguous"
        raise RequestError(asked, found, "numpy.save of numpy.ascontiguousarray(it)")
    size = dtype.itemsize * prod(shape)
    if at + size > end and not dtype.hasobject:
        row = size // shape[0] if shape and shape[0] else size
        found = f"its header promises {shape[0] if shape else 1} samples of {row} bytes, and it has {end - begin} bytes"
        raise RequestError(asked, found, "the whole file: it may have been cut off while it was copied")
    return tuple(int(side) for side in shape), dtype, at


def npy(paths: Paths) -> Dataset:
    """Files of NumPy's .npy as one table, whose samples are the first axis. Raises RequestError."""
    import numpy as np

    names, parts, sizes = files_of(paths, (".npy",)), [], []
    stamps = stamps_of(names)
    kinds: dict[tuple[Any, tuple[int, ...]], str] = {}
    for name in names:
        sizes.append(size_of(name))
        shape, dtype, begin = array_header(name, 0, sizes[-1], f"samples of {name}")
        if not shape:
            raise RequestError(f"samples of {name}", "its array has no dimension", "an array whose first axis counts samples")
        if dtype.hasobject:
            raise RequestError(f"samples of {name}", "its array holds objects, pickled", "an array of numbers")
        if not dtype.itemsize * prod(shape[1:]):
            raise RequestError(f"samples of {name}", f"a row of its shape {shape} has no bytes", "rows of a byte or more")
        kinds.setdefault((dtype, tuple(shape[1:])), name)
        parts.append(Part(name, shape[0], (begin,)))
    if len(kinds) > 1:
        (one, a), (other, b) = list(kinds.items())[:2]
        found = f"{a} has samples of {one[0]} {one[1]}, and {b} of {other[0]} {other[1]}"
        raise RequestError("one data set of several .npy files", found, "files of one dtype and shape")
    dtype, shape = next(iter(kinds))
    row_bytes, fields = fields_of(np.dtype((dtype, shape)) if dtype.names is None else dtype)
    if dtype.names is not None and shape:
        raise RequestError(f"samples of {names[0]}", "records in more than one dimension", "forebay.feed.rows with start=")
    identity = identity_of(names, sizes, ["npy", str(dtype), list(shape)])
    whole = Dataset(tuple(parts), ((row_bytes, row_bytes),), tuple(fields), identity, stamps)
    aligned = all(Dataset._is_aligned(field, (row_bytes, row_bytes)) for field in fields)
    return whole if aligned else whole._cut(fields)


def safetensors(paths: Paths, columns: Iterable[str] | None = None) -> Dataset:
    """safetensors files as one table: each tensor, or each named one, is a column, and their first axis, as long for all of a
    file, counts samples.

    Raises RequestError.
    """
    names, sizes, parts = files_of(paths, (".safetensors",)), [], []
    stamps = stamps_of(names)
    wanted = names_of(columns)
    layout: list[tuple[str, str, tuple[int, ...]]] | None = None
    for name in names:
        sizes.append(size_of(name))
        tensors = tensors_of(name, sizes[-1])
        if wanted is not None:
            known = [tensor for tensor, *_ in tensors]
            for lost in wanted:
                if lost not in known:
                    raise RequestError(f"samples of {name}", f"it has no tensor {lost!r}", f"of {', '.join(known[:12])}")
            tensors = [tensor for tensor in tensors if tensor[0] in wanted]
        lengths = {shape[0] if shape else None for _, _, shape, _ in tensors}
        if len(lengths) != 1 or None in lengths:
            rows = ", ".join(f"{tensor} {shape[0] if shape else 'none'}" for tensor, _, shape, _ in tensors[:8])
            found = f"its {len(tensors)} tensors don't all have as many rows: {rows}"
            next_ = "columns=[…] of tensors whose first axes count samples; forebay.safetensors for models"
            raise RequestError(f"samples of {name}", found, next_)
        reported = [(tensor, dtype, shape[1:]) for tensor, dtype, shape, _ in tensors]
        if layout is not None and reported != layout:
            raise RequestError(f"samples of {name}", f"its tensors differ from those of {names[0]}", "files of one layout")
        layout = reported
        parts.append(Part(name, int(next(iter(lengths)) or 0), tuple(begin for _, _, _, begin in tensors)))
    assert layout is not None
    fields, spans = [], []
    for number, (tensor, dtype, shape) in enumerate(layout):
        code, bits, typestr = TENSOR_TYPES[dtype]
        field = Field(tensor, number, 0, code, bits, typestr, shape)
        fields.append(field)
        spans.append((field.bytes, field.bytes))
    identity = identity_of(names, sizes, ["safetensors", [[t, d, list(s)] for t, d, s in layout]])
    return Dataset(tuple(parts), tuple(spans), tuple(fields), identity, stamps)


def tensors_of(name: str, size: int) -> list[tuple[str, str, tuple[int, ...], int]]:
    """(name, type, shape, first byte) of each tensor with bytes, by name. Raises RequestError."""
    asked = f"the safetensors header of {name}"
    with open(name, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(HEADER_BYTES_MAX, size - 8):
            file.seek(0)
            if seen := _core.recognise(file.read(64)):
                raise RequestError(asked, f"it is {seen[0]}", seen[1])
            raise RequestError(asked, f"it claims {length} bytes, and the file has {size}", "a safetensors file")
        try:
            listed, _ = _core.safetensors_header(file.read(length), size - 8 - length)
        except RequestError as error:
            raise RequestError(asked, error.found, error.next) from None
    for tensor, dtype, _, _, _ in listed:
        if dtype not in TENSOR_TYPES:
            raise RequestError(asked, f"tensor {tensor!r} is of type {dtype}", f"of {', '.join(TENSOR_TYPES)}")
    found = [(tensor, dtype, tuple(shape), 8 + length + begin) for tensor, dtype, shape, begin, end in listed if end > begin]
    if not found:
        raise RequestError(asked, "it has no tensor with a byte", "a file with data")
    return sorted(found)
