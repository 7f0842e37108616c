"""Samples of different sizes: files in the shards of WebDataset, and whole files. A batch is one buffer, in which the samples of
each field lie one behind the other, and offsets into it."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from forebay import _core
from forebay.errors import ForebayError, RequestError, RunError
from forebay.feed.dataset import UNNAMED, Paths, files_of, identity_of, indexed, names_of, size_of

SHARDS = (".tar",)
IMAGES = (".jpg", ".jpeg")
# Files that are kept open at a time.
OPEN_MAX = 256
# Bytes that are read ahead, in batches between these numbers.
AHEAD_BYTES = 64 << 20
AHEAD = (2, 16)
PREFETCH_MAX = 1024
# Fields of a batch begin at multiples of this.
ALIGN = 64
# Without a limit from the user, so much memory is used in any case.
LIMIT_BYTES_MIN = 1 << 30
# Batches beside those that are read ahead, for whoever keeps some.
KEPT = 4
# Times are counted in classes, of which so many lie between a time and its double.
TIME_CLASSES = 64


@dataclass(frozen=True)
class Samples:
    """Files as samples of different sizes.

    names, stamps  of the files; a stamp is (bytes, time of the last change in ns)
    fields         names of a sample's parts
    file           of each sample, the number of its file (NumPy)
    offsets, sizes of each sample and field, (samples, fields): where its bytes lie in the file
    identity       64 bits of a hash over the files' names (without folders) and sizes, and where samples lie
    has_sums       a masked CRC32C follows each sample, as in TFRecord
    """

    names: tuple[str, ...]
    stamps: tuple[tuple[int, int], ...]
    fields: tuple[str, ...]
    file: Any
    offsets: Any
    sizes: Any
    identity: int
    has_sums: bool = False

    def __len__(self) -> int:
        return len(self.file)

    def only(self, names: Iterable[str]) -> Samples:
        """The data set of these fields alone. Raises RequestError."""
        wanted = names_of(names, self.fields) or []
        for name in wanted:
            if name not in self.fields:
                raise RequestError(f"columns={wanted}", f"a sample has no {name!r}", f"of {', '.join(self.fields)}")
        kept = [number for number, field in enumerate(self.fields) if field in wanted]
        fields = tuple(self.fields[number] for number in kept)
        return replace(self, fields=fields, offsets=self.offsets[:, kept], sizes=self.sizes[:, kept])

    @property
    def mean_bytes(self) -> int:
        return max(1, int(self.sizes.sum()) // max(1, len(self)))


class Bytes:
    """One field of a batch: the bytes of all samples, one behind the other, and where each begins (and the last ends)."""

    def __init__(self, data: Any, offsets: Any) -> None:
        self.data, self.offsets = data, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Any:
        """The bytes of a sample, without a copy."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        number %= len(self)
        return self.data[int(self.offsets[number]) : int(self.offsets[number + 1])]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))


class Batch(Mapping[str, Bytes]):
    """Fields by name."""

    def __init__(self, fields: dict[str, Bytes], numbers: Sequence[int], position: int, epoch: int) -> None:
        self._fields, self.samples = fields, numbers
        self.rows, self.position, self.epoch = len(numbers), position, epoch

    def __getitem__(self, name: str) -> Bytes:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def webdataset(paths: Paths, columns: Iterable[str] | None = None) -> Samples:
    """Shards of WebDataset: files of an archive whose names are alike up to the first dot are one sample, and the rest of a name
    is its field. With `columns` a sample needs to have those alone. Raises RequestError."""
    import numpy as np

    names = files_of(paths, SHARDS)
    wanted = names_of(columns)
    fields: list[str] | None = wanted
    stamps, files, offsets, sizes = [], [], [], []
    for number, name in enumerate(names):
        stamps.append(stamp_of(name))
        shard = list(grouped(indexed(_core.shard_index, name), name))
        if shard and fields is None:
            fields = list(shard[0][1])
        for key, members in shard:
            has = [field for field in fields or () if field in members]
            if len(has) != len(fields or ()) or (wanted is None and len(members) != len(has)):
                asked = f"sample {key} of {name}"
                found = f"it has {', '.join(members)}, and the data set's fields are {', '.join(fields or ())}"
                one = f"columns={has[:3]}" if has else f"columns={list(members)[:3]}"
                next = f"{one}, of fields that every sample has; files of a sample have to be neighbours: tar --sort=name"
                raise RequestError(asked, found, next)
            files.append(number)
            offsets.append([members[field][0] for field in fields or ()])
            sizes.append([members[field][1] for field in fields or ()])
    if fields is None or not files:
        raise RequestError(f"the samples of {names[0]}", "it has none", "files with names such as 000017.jpg, 000017.cls")
    places = np.array(offsets, np.int64), np.array(sizes, np.int64)
    identity = identity_of(names, [size for size, _ in stamps], ["webdataset", digest(places[1])])
    return Samples(tuple(names), tuple(stamps), tuple(fields), np.array(files, np.int32), *places, identity)


def grouped(
    members: Iterable[tuple[bytes, int, int, int]], shard: str
) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """Neighbours of one key: (key, {field: (offset, bytes)}); fields in lower case, as WebDataset has them."""
    key: bytes | None = None
    found: dict[str, tuple[int, int]] = {}
    for name, length, offset, size in members:
        if name[:length] != key:
            if key is not None:
                yield os.fsdecode(key), found
            key, found = name[:length], {}
        field = os.fsdecode(name[length + 1 :]).lower()
        if field in found:
            asked = f"sample {os.fsdecode(name[:length])} of {shard}"
            raise RequestError(asked, f"it has two files .{field}, the second at byte {offset}", "a shard without duplicates")
        found[field] = (offset, size)
    if key is not None:
        yield os.fsdecode(key), found


def files(paths: Paths, endings: tuple[str, ...] = ()) -> Samples:
    """Whole files, each a sample with one field `data`; of a folder those with one of the endings. Raises RequestError."""
    import numpy as np

    names = files_of(paths, endings)
    stamps = [stamp_of(name) for name in names]
    sizes = np.array([[size] for size, _ in stamps], np.int64)
    identity = identity_of(names, [size for size, _ in stamps], ["files"])
    number = np.arange(len(names), dtype=np.int32)
    return Samples(tuple(names), tuple(stamps), (UNNAMED,), number, np.zeros_like(sizes), sizes, identity)


def images(paths: Paths, columns: Iterable[str] | None = None) -> Samples:
    """Folders of JPEG files."""
    found = files(paths, IMAGES)
    return found if columns is None else found.only(columns)


def digest(values: Any) -> str:
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()


def stamp_of(name: str) -> tuple[int, int]:
    try:
        found = os.stat(name)
    except OSError:
        return size_of(name), 0
    return found.st_size, found.st_mtime_ns


class Room:
    """Memory of batches: used again once a batch, and every array made of it, is gone."""

    def __init__(self, limit: int | None) -> None:
        self._limit, self._all = limit, list[Any]()
        self.bytes = 0
        # References to memory that nobody has: those of the list and of the loop that asks.
        self._alone = self._references([object()])[0]

    @staticmethod
    def _references(all: list[Any]) -> list[int]:
        return [sys.getrefcount(one) for one in all]

    def take(self, size: int, ahead: int, is_first: bool) -> Any:
        """Memory of at least so many bytes; None where others have to be gone first. Raises RequestError where the batch that is
        asked for itself finds none."""
        import numpy as np

        free = [one for one, count in zip(self._all, self._references(self._all), strict=True) if count == self._alone]
        fits = [one for one in free if len(one) >= size]
        if fits:
            return min(fits, key=len)
        # Sizes of batches differ little: a sixteenth more serves most of those to come.
        wanted = -(-(size + size // 16) // 4096) * 4096
        limit = self._limit or max(LIMIT_BYTES_MIN, (ahead + 2 + KEPT) * wanted)
        # What is too small makes room for what isn't.
        for one in sorted(free, key=len):
            if self.bytes + wanted <= limit:
                break
            self._all = [other for other in self._all if other is not one]
            self.bytes -= len(one)
        if self.bytes + wanted > limit and not is_first:
            return None
        if self.bytes + wanted > limit:
            enough = f"pin_limit={max(2 * limit, self.bytes + 2 * wanted)}"
            if not self._all:
                next = f"{enough}, or a smaller batch_size"
                raise RequestError(f"a batch of {size} bytes", f"pin_limit allows {limit} bytes", next)
            kept = f"the program keeps {len(self._all)} of {self.bytes} bytes together, and pin_limit allows {limit} bytes"
            raise RequestError(f"another batch, of {size} bytes", kept, f"del batch once it is used, or {enough}")
        self._all.append(np.empty(wanted, np.uint8))
        self.bytes += wanted
        return self._all[-1]


@dataclass
class Flight:
    """A batch that is being read; None: the epoch's end. `position`: of the loader once it was handed out; `hash`: its sum."""

    batch: Batch | None
    reads: list[Any]
    position: tuple[int, int]
    hash: int


@dataclass
class Counts:
    """Samples that were handed out."""

    began: float | None = None
    ended: float = 0.0
    waited_s: float = 0.0
    batches: int = 0
    samples: int = 0
    bytes: int = 0
    hash: int = 0
    took: Counter[int] = field(default_factory=Counter)

    def note(self, flight: Flight, reports: list[Any]) -> None:
        self.hash = (self.hash + flight.hash) % (1 << 64)
        if flight.batch is None:
            return
        self.batches += 1
        self.samples += flight.batch.rows
        self.bytes += sum(report[0] for report in reports)
        slowest = max((report[5] for report in reports), default=0.0)
        self.took[math.floor(TIME_CLASSES * math.log2(max(1.0, slowest * 1e9)))] += 1

    def times(self) -> list[tuple[int, int]]:
        """(ns, batches that took so long)"""
        return [(round(2 ** ((number + 0.5) / TIME_CLASSES)), count) for number, count in sorted(self.took.items())]


class Ahead:
    """Batches of samples in the order of a core loader that reads nothing, several of them in flight."""

    def __init__(self, samples: Samples, order: Any, batch: int, prefetch: int | None, limit: int | None = None) -> None:
        self.samples, self._order = samples, order
        if prefetch is not None and prefetch > PREFETCH_MAX:
            found = f"more than {PREFETCH_MAX} batches ahead gain nothing"
            raise RequestError(f"prefetch={prefetch}", found, f"prefetch={AHEAD[1]}, or a larger batch_size")
        most = AHEAD_BYTES // (batch * samples.mean_bytes)
        self.prefetch = prefetch or min(max(most, AHEAD[0]), AHEAD[1])
        self._flights: deque[Flight] = deque()
        self._open: OrderedDict[int, _core.Reader] = OrderedDict()
        self._room = Room(limit)
        sizes = [size for size, _ in samples.stamps]
        # Each sample is a file of its own, whole.
        self._is_whole = len(samples.fields) == 1 and len(samples) == len(sizes) and samples.sizes[:, 0].tolist() == sizes
        self.position: tuple[int, int] = order.position()
        self.counts = Counts()
        self._lock = Lock()

    @property
    def hash(self) -> int:
        return self.counts.hash

    def take(self) -> Batch | None:
        """The next batch; None at the epoch's end. Raises what failed; the next call reads the same batch again."""
        with self._lock:
            began = time.perf_counter()
            if self.counts.began is None:
                self.counts.began = began
            try:
                return self._take()
            finally:
                self.counts.ended = time.perf_counter()
                self.counts.waited_s += self.counts.ended - began

    def _take(self) -> Batch | None:
        while len(self._flights) <= self.prefetch and not (self._flights and self._flights[-1].batch is None):
            if not self._begin():
                break
        flight = self._flights[0]
        try:
            for read in flight.reads:
                read.wait()
            self.counts.note(flight, [read.report() for read in flight.reads])
        except BaseException:
            # The batch that failed is drawn again.
            self.seek(*self.position)
            raise
        self._flights.popleft()
        self.position = flight.position
        return flight.batch

    def _begin(self) -> bool:
        """Begins another batch; false where there is no memory for it yet."""
        at, before, drawn = self._order.position(), self._order.hash(), self._order.next()
        batch: Batch | None = None
        reads: list[Any] = []
        if drawn is not None:
            try:
                numbers = self._order.samples_at(drawn.epoch, drawn.position, drawn.rows)
                begun = self._read(numbers, drawn.position, drawn.epoch)
            except BaseException:
                self._order.seek(*at)
                raise
            if begun is None:
                self._order.seek(*at)
                return False
            batch, reads = begun
        gone = (self._order.hash() - before) % (1 << 64)
        self._flights.append(Flight(batch, reads, self._order.position(), gone))
        return True

    def seek(self, epoch: int, position: int) -> None:
        self.cancel()
        self._order.seek(epoch, position)
        self.position = (epoch, position)

    def cancel(self) -> None:
        for flight in self._flights:
            for read in flight.reads:
                read.cancel()
        self._flights.clear()

    def close(self) -> None:
        self.cancel()
        while self._open:
            self._open.popitem()[1].close()

    def counted(self) -> _core._Counted:
        """Its part of a record."""
        counts, all_bytes = self.counts, int(self.samples.sizes.sum())
        seconds = 0.0 if counts.began is None else counts.ended - counts.began
        return (
            (seconds, counts.waited_s),
            (counts.batches, counts.samples, counts.bytes, counts.hash),
            self.position,
            counts.times(),
            (self.prefetch, self._room.bytes),
            (self.samples.mean_bytes, all_bytes),
        )

    def _read(self, numbers: list[int], position: int, epoch: int) -> tuple[Batch, list[Any]] | None:
        import numpy as np

        index = np.asarray(numbers, np.int64)
        sizes, places = self.samples.sizes[index], self.samples.offsets[index]
        offsets = np.zeros((len(index) + 1, len(self.samples.fields)), np.int64)
        np.cumsum(sizes, axis=0, out=offsets[1:])
        lengths = offsets[-1].tolist()
        begins = [0]
        for length in lengths:
            begins.append(-(-(begins[-1] + length) // ALIGN) * ALIGN)
        whole = self._room.take(begins[-1], self.prefetch, not self._flights)
        if whole is None:
            return None
        fields = {}
        for number, name in enumerate(self.samples.fields):
            begin = begins[number]
            fields[name] = Bytes(whole[begin : begin + lengths[number]], np.ascontiguousarray(offsets[:, number]))
        to = whole.ctypes.data + np.asarray(begins[:-1], np.int64) + offsets[:-1]
        reads = self._started(self.samples.file[index], places, sizes, to, whole)
        return Batch(fields, numbers, position, epoch), reads

    def _started(self, files: Any, places: Any, sizes: Any, to: Any, whole: Any) -> list[Any]:
        """Reads of the ranges, one of each file; of whole files one of all."""
        if self._is_whole:
            some = [number for number, size in enumerate(sizes[:, 0].tolist()) if size]
            names = [self._unchanged(file) for file in files[some].tolist()]
            return [_core.read_files(names, sizes[some, 0].tolist(), [None], to[some, 0].tolist(), [whole], [])] if some else []
        by_file: dict[int, list[tuple[int, int, int | None, int]]] = {}
        for file, *columns in zip(files.tolist(), places.tolist(), sizes.tolist(), to.tolist(), strict=True):
            for offset, size, begin in zip(*columns, strict=True):
                if size:
                    by_file.setdefault(file, []).append((offset, size, None, begin))
        reads: list[Any] = []
        try:
            for file, ranges in by_file.items():
                reads.append(self._reader(file).start(sorted(ranges), [whole], []))
        except BaseException:
            for read in reads:
                read.cancel()
            raise
        return reads

    def _unchanged(self, file: int) -> str:
        """Name of a file that is as it was when the loader was made. Raises RunError."""
        name, stamp = self.samples.names[file], self.samples.stamps[file]
        try:
            now = stamp_of(name)
        except ForebayError as error:
            raise RunError(f"read {name}", f"{error.found}; there was when the loader was made", error.next) from None
        if now != stamp:
            found = f"it changed: {stamp[0]} bytes when the loader was made, {now[0]} now"
            raise RunError(f"read {name}", found, "another Loader of the files as they are")
        return name

    def _reader(self, file: int) -> _core.Reader:
        name = self._unchanged(file)
        reader = self._open.pop(file, None) or _core.Reader(name, "host")
        self._open[file] = reader
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1].close()
        return reader
