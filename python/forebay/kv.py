"""Blocks of a key-value cache on storage, and paged memory that they are loaded into: `forebay.kv`.

A serving engine keeps keys and values in pages: one tensor, layers × pages × bytes of a page. A block is some pages of every
layer, and its block table says which. On storage a block is one run of bytes, layer after layer; `load` scatters it into its
pages where they lie, `store` gathers it from them. How a store lies in its file: docs/kvcache.md.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import math
import mmap
import os
import stat
import struct
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forebay import _core, reader, staging
from forebay.buffers import Memory, memory_of, streams_before
from forebay.direct_writes import ALIGN, DirectWriter, MappedWriter, NotWritten, RowWriter
from forebay.errors import CheckFailed, ForebayError, MachineError, RequestError, RunError
from forebay.names import Path, file_name
from forebay.paths import abilities
from forebay.reader import Report, together
from forebay.rows import check_whole

if TYPE_CHECKING:
    import numpy

Key = int | str | bytes

SCHEMA = "forebay.kv/1"
# As the number of a row: its place stays as it is.
ELSEWHERE = (1 << 64) - 1
HEAD_BYTES = 4096
DATA_ALIGN = 64 << 10
RECORD = struct.Struct("<4sIQQBBHII")
RECORD_BYTES, KEY_AT, KEY_BYTES = 128, 64, 64
MAGIC = b"FBkv"
TMPFS = 0x01021994
MADV_POPULATE_WRITE = 23
BEGUN, STORED, REMOVED = 3, 1, 2
HAS_SUM = 1
BLOCKS_MAX = 1 << 31
# Of either end of a block device: a store is made where nothing is.
EMPTY_BYTES = 1 << 20
# What `store` moves at a time.
STAGE_BYTES = 64 << 20
# Of a block, what its sum is computed of at a time.
PART_BYTES = 256 << 10
WRITERS = 8
IOV_MAX = 1024
# Pages of a block table that are told apart by a set rather than by sorting.
FEW_PAGES = 4096


class Pages:
    """Paged memory of the host or of a GPU: layers × pages × bytes of a page, in one tensor."""

    def __init__(self, tensor: Any, layers: int | None = None, pages: int | None = None) -> None:
        """`layers`, `pages`: where the tensor's first two dimensions don't say them."""
        self.tensor, self.memory = tensor, memory_of(tensor)
        shape = tuple(int(n) for n in getattr(tensor, "shape", ()))
        if layers is None and pages is None and len(shape) >= 2:
            layers, pages = shape[:2]
        if layers is None or pages is None or layers < 1 or pages < 1 or self.memory.bytes % (layers * pages):
            found = f"{self.memory.bytes} bytes of shape {shape} are no layers × pages"
            raise RequestError("paged memory", found, "a tensor of shape (layers, pages, …), or layers=, pages=")
        self.layers, self.pages = check_whole(layers, "layers"), check_whole(pages, "pages")
        self.page_bytes = self.memory.bytes // (layers * pages)
        if not self.page_bytes:
            raise RequestError("paged memory", "its pages have no bytes", "numpy.zeros((32, 1024, 65536), numpy.uint8)")

    @property
    def gpu(self) -> int | None:
        return self.memory.gpu

    def rows(self) -> Any:
        """(layers × pages, bytes of a page), sharing the memory: a NumPy array, or a PyTorch tensor on its GPU. None where
        neither can show it."""
        shape = (self.layers * self.pages, self.page_bytes)
        if self.memory.gpu is None:
            import numpy as np

            lent = memoryview((ctypes.c_char * self.memory.bytes).from_address(self.memory.address))
            return np.frombuffer(lent.cast("B"), np.uint8).reshape(shape)
        torch = _torch(self.tensor)
        return None if torch is None else self.tensor.view(-1).view(torch.uint8).view(shape)


def _torch(tensor: Any) -> Any:
    import sys

    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(tensor, torch.Tensor) else None


@dataclass(frozen=True)
class Shape:
    """A store's blocks: `block_pages` pages of `page_bytes` in each of `layers`."""

    layers: int
    page_bytes: int
    block_pages: int
    blocks: int

    @property
    def layer_bytes(self) -> int:
        """Of a block."""
        return self.block_pages * self.page_bytes

    @property
    def block_bytes(self) -> int:
        return self.layers * self.layer_bytes

    @property
    def log_bytes(self) -> int:
        """Of one half."""
        return -(-max(64, 4 * self.blocks + 1) * RECORD_BYTES // HEAD_BYTES) * HEAD_BYTES

    @property
    def data_at(self) -> int:
        return -(-(HEAD_BYTES + 2 * self.log_bytes) // DATA_ALIGN) * DATA_ALIGN

    @property
    def file_bytes(self) -> int:
        return self.data_at + self.blocks * self.block_bytes


@dataclass(frozen=True)
class Stored:
    """Result of `store`: bytes and seconds, the keys that had to go for lack of room."""

    bytes: int
    seconds: float
    evicted: list[Key]


def create(
    name: Path, *, layers: int, page_bytes: int, blocks: int, block_pages: int = 1, sums: bool = False, **way: Any
) -> Store:
    """Makes a store of `blocks` blocks, in a new file or on a block device, and opens it. `sums`: each block gets a CRC32C, which
    `load(verify=True)` compares. `way`: path, direct and prefer as for `forebay.open`.

    Raises RequestError where a file is there, or where the device isn't empty.
    """
    for what, number, least in (
        ("layers", layers, 1), ("page_bytes", page_bytes, 1), ("blocks", blocks, 1), ("block_pages", block_pages, 1),
    ):  # fmt: skip
        if not least <= check_whole(number, what) < BLOCKS_MAX:
            raise RequestError(f"{what}={number}", f"must be {least} to {BLOCKS_MAX - 1}", f"{what}=1024")
    shape = Shape(layers, page_bytes, block_pages, blocks)
    name = file_name(name)
    asked = f"make the store {name}"
    if shape.file_bytes >= 1 << 63:
        raise RequestError(asked, f"its {blocks} blocks of {shape.block_bytes} bytes are more than a file holds", "fewer blocks")
    head = json.dumps({"schema": SCHEMA, **vars(shape), "sums": bool(sums)}).encode()
    try:
        device = stat.S_ISBLK(os.stat(name).st_mode) if os.path.exists(name) else False
        # A device is refused while it is mounted.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_EXCL | (0 if device else os.O_CREAT)
        made = os.open(name, flags, 0o644)
    except FileExistsError:
        raise RequestError(asked, "a file is there", "forebay.kv.open, or another name") from None
    except OSError as error:
        next_ = "a device that nothing has mounted" if error.errno == errno.EBUSY else "a folder that you can write to"
        raise RunError(asked, error.strerror or str(error), next_) from None
    try:
        if device:
            size = os.lseek(made, 0, os.SEEK_END)
            if size < shape.file_bytes:
                raise RequestError(asked, f"the device has less than {shape.file_bytes} bytes", "fewer blocks")
            # Where file systems, volumes and arrays of disks are described.
            if any(os.pread(made, EMPTY_BYTES, at).strip(b"\0") for at in (0, max(0, size - EMPTY_BYTES))):
                raise RequestError(asked, "the device isn't empty", f"blkdiscard -z {name}, if nobody needs it")
        else:
            os.ftruncate(made, shape.file_bytes)
            _refuse_beyond_room(made, shape.file_bytes)
            if not _in_memory(made):
                _reserve(made, shape.file_bytes)
            else:
                # All of it now: what is written through a mapping later can't be told that there is no room.
                os.posix_fallocate(made, 0, shape.file_bytes)
        begun = head.ljust(HEAD_BYTES, b"\0") + _record(0, 1, BEGUN)
        # Whole, without a hole: what is cached whole may be registered for a GPU.
        for at in range(0, shape.data_at, 1 << 20):
            piece = begun if not at else b""
            os.pwrite(made, piece.ljust(min(1 << 20, shape.data_at - at), b"\0"), at)
        os.fsync(made)
        if not device:
            _flush_folder(name)
    except OSError as error:
        _unmake(name, device)
        raise RunError(asked, error.strerror or str(error), "df -h; fewer blocks") from None
    except RequestError:
        raise
    except BaseException:
        _unmake(name, device)
        raise
    finally:
        os.close(made)
    try:
        return Store(name, **way)
    except BaseException:
        # As asked for it can't be opened.
        _unmake(name, device)
        raise


def _flush_folder(name: str) -> None:
    """A file is found after a loss of power once its folder has reached the device, too."""
    folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unmake(name: str, device: bool) -> None:
    """As if nothing had been made."""
    with contextlib.suppress(OSError):
        if not device:
            os.unlink(name)
            return
        made = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(made, bytes(HEAD_BYTES), 0)
            os.fsync(made)
        finally:
            os.close(made)


def open(name: Path, **way: Any) -> Store:
    """Opens a store. `way`: path, direct and prefer as for `forebay.open`."""
    return Store(file_name(name), **way)


def _in_memory(file: int) -> bool:
    """True where it lies in the host's memory, the only place where a mapping can be written to without failing."""
    statfs = ctypes.CDLL(None, use_errno=True).fstatfs
    found = (ctypes.c_long * 32)()
    return statfs(file, found) == 0 and found[0] == TMPFS


def _refuse_beyond_room(file: int, size: int) -> None:
    """Before any is set aside: a file system may fill up first, and only then find that there isn't enough."""
    room = os.fstatvfs(file)
    if size > room.f_frsize * (room.f_bavail if os.geteuid() else room.f_bfree):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reserve(file: int, size: int) -> None:
    """Room on the device, where its file system can set some aside: in one piece, and in writing no more has to be found. What
    can't isn't written full instead, as posix_fallocate does."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    if fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(number, os.strerror(number))


def _record(sequence: int, generation: int, kind: int, key: bytes = b"", slot: int = 0, sum_: int | None = None) -> bytes:
    flags = 0 if sum_ is None else HAS_SUM
    body = RECORD.pack(MAGIC, 0, sequence, generation, kind, len(key), flags, slot, sum_ or 0)
    whole = body.ljust(KEY_AT, b"\0") + key.ljust(KEY_BYTES, b"\0")
    return whole[:4] + struct.pack("<I", _core.crc32c(whole[8:], 0)) + whole[8:]


def _key_bytes(key: Key) -> bytes:
    if isinstance(key, bytes):
        made = b"b" + key
    elif isinstance(key, str):
        # Half a character of UTF-16 is none of UTF-8.
        made = b"s" + key.encode(errors="surrogatepass")
    else:
        try:
            number = key.__index__()
        except (AttributeError, TypeError):
            raise RequestError(f"key {key!r:.80}", f"is of type {type(key).__name__}", "a whole number, text or bytes") from None
        if number.bit_length() > 8 * KEY_BYTES:
            raise RequestError("key", f"is a number of {number.bit_length()} bits; {KEY_BYTES - 1} digits have room", "a hash")
        made = b"i%d" % number
    if len(made) > KEY_BYTES:
        raise RequestError(f"key {key!r:.80}", f"takes {len(made)} bytes; a record holds {KEY_BYTES}", "a hash of it")
    return made


def _key_of(made: bytes) -> Key:
    kind, rest = made[:1], made[1:]
    return rest if kind == b"b" else rest.decode(errors="surrogatepass") if kind == b"s" else int(rest)


class _Turns:
    """Loads go together, stores alone: a file that changes while it is read gives an error. Each in the order of its coming, so
    that neither keeps the other waiting for ever."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._is_storing = False
        # By load, its reads; None until all are begun.
        self._loads: dict[object, list[reader.Future] | None] = {}

    def _take_turn(self) -> None:
        if not self._queue and not self._is_storing:
            return
        place = object()
        self._queue.append(place)
        try:
            self._changed.wait_for(lambda: self._queue[0] is place and not self._is_storing)
        finally:
            self._queue.remove(place)
            self._changed.notify_all()

    def begin_load(self, load: object) -> None:
        with self._changed:
            self._take_turn()
            self._loads[load] = None

    def note_begun(self, load: object, futures: list[reader.Future]) -> None:
        """All of its reads are under way: they end by themselves."""
        with self._changed:
            self._loads[load] = futures
            if self._is_storing:
                self._changed.notify_all()

    def end_load(self, load: object) -> None:
        with self._changed:
            self._loads.pop(load, None)
            if self._is_storing:
                self._changed.notify_all()

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        place = object()
        self.begin_load(place)
        try:
            yield
        finally:
            self.end_load(place)

    @contextlib.contextmanager
    def store(self) -> Iterator[None]:
        with self._changed:
            self._take_turn()
            self._is_storing = True
        try:
            self._await_loads()
            yield
        finally:
            with self._changed:
                self._is_storing = False
                self._changed.notify_all()

    def _await_loads(self) -> None:
        """Waits for their reads, rather than for somebody to take their results: that may be the thread that stores."""
        with self._changed:
            self._changed.wait_for(lambda: None not in self._loads.values())
            under_way = list(self._loads.items())
        for load, futures in under_way:
            _await_reads(futures or [])
            self.end_load(load)


def _await_reads(futures: Sequence[reader.Future]) -> None:
    for future in futures:
        for pending in future._pending:
            pending.wait(None)


class Load:
    """A load in flight: `result` waits for it."""

    def __init__(self, store: Store, keys: Sequence[Key], by_layer: bool = False) -> None:
        self._store, self.keys, self.by_layer = store, keys, by_layer
        self._slots: list[int] = []
        # Of the blocks as they were when it began.
        self._sums: list[int] | None = None
        self._futures: list[reader.Future] = []
        self._pending: Any = None
        self._place = object()
        self._is_over = False

    def _await_layer(self, layer: int) -> None:
        """Waits until all pages of a layer are in place. For one that was begun by layers."""
        if not self._pending.wait_group(layer):
            self.result()

    def result(self) -> Report:
        """Waits until all pages are in place. Raises what went wrong, with a block's key and its offset."""
        try:
            return together([future.report() for future in self._futures])
        except ForebayError as error:
            self._end()
            raise self._store._named_later(error, self) from None
        finally:
            self._end()

    def _end(self) -> None:
        if not self._is_over and not self._store._is_of_parent():
            # Where one of them failed, or who waited was interrupted, others are still in flight.
            for future in self._futures:
                if not future.done():
                    future.cancel()
            self._is_over = True
            self._store._turns.end_load(self._place)

    def cancel(self) -> None:
        """Ends it: what is in flight is waited for, and what its pages hold then is undefined."""
        self._end()
        self._futures = []
        self._pending = None

    def __del__(self) -> None:
        """As `cancel`: nothing writes to pages that nobody waits for."""
        self.cancel()


class LayerLoad:
    """Layers of a load in their order: iterate, and calculate each while the next are on their way.

    exposed_s  seconds that the iteration waited: what wasn't hidden behind the calculation
    first_s    of these, until the first layer was there
    seconds    from the first request to the last layer's arrival
    """

    def __init__(self, store: Store, keys: Sequence[Key], tables: Any, pages: Pages, ahead: int) -> None:
        if check_whole(ahead, "ahead") < 1:
            raise RequestError(f"ahead={ahead}", "must be 1 or more", "ahead=2")
        self._of = (store, keys, store._table(keys, tables, pages), pages)
        self._ahead = ahead
        self.exposed_s = self.first_s = self.seconds = 0.0
        self.reports: list[Report] = []

    @property
    def report(self) -> Report:
        return replace(together(self.reports), seconds=self.seconds)

    def __iter__(self) -> Iterator[int]:
        store, keys, table, pages = self._of
        self.exposed_s, self.reports = 0.0, []
        began = time.monotonic()
        under_way: list[Load] = []
        layers = iter(range(pages.layers))
        # A GPU is told of all layers at once.
        whole = store._begin(keys, table, pages, range(pages.layers), True) if pages.gpu is not None and len(keys) else None
        for layer in range(pages.layers):
            waits = time.monotonic()
            if whole is not None:
                whole._await_layer(layer)
                if layer == pages.layers - 1:
                    self.reports.append(whole.result())
            else:
                for next_ in itertools.islice(layers, self._ahead + 1 - len(under_way)):
                    under_way.append(store._begin(keys, table, pages, range(next_, next_ + 1)))
                self.reports.append(under_way.pop(0).result())
            now = time.monotonic()
            self.exposed_s += now - waits
            self.seconds = now - began
            if layer == 0:
                self.first_s = self.exposed_s
            yield layer


class Store:
    """Blocks in a file or on a block device, by key. One process at a time has it open; its threads may share it: loads go
    together, stores and removals one after another, and between loads.

    What was used longest ago goes where there is no more room. Use it as a context manager, or `close` it.
    """

    def __init__(self, name: str, path: str = "auto", direct: bool | None = None, prefer: str = "balance") -> None:
        self.name, self._path, self._direct, self._prefer = name, path, direct, prefer
        self._pid, self._closed = os.getpid(), True
        try:
            self._file = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            next_ = "forebay.kv.create" if isinstance(error, FileNotFoundError) else "a file that you can write to"
            raise RequestError(f"open the store {name}", error.strerror or str(error), next_) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.shape, self.has_sums = self._head()
            self._held: OrderedDict[Key, int] = OrderedDict()
            self._sums: dict[int, int] = {}
            self._replay()
            self._reader = self._opened()
            self._is_with_gpu = False
        except BlockingIOError:
            os.close(self._file)
            found = "it is open already, here or in another process"
            raise MachineError(f"open the store {name}", found, f"close it there; lsof {name} says where") from None
        except BaseException:
            os.close(self._file)
            raise
        used = set(self._held.values())
        self._free = [slot for slot in range(self.shape.blocks - 1, -1, -1) if slot not in used]
        self._turns, self._lock = _Turns(), threading.Lock()
        self._mapped = self._map()
        # The same memory as GPUs write to it, by GPU; None where it can't be lent.
        self._lent: dict[int, _core.Lent | None] = {}
        self._stored_bytes = 0
        self._writers: ThreadPoolExecutor | None = None
        self._past: DirectWriter | None = None
        # Blocks of a store that failed, of which the log may say that they are there.
        self._doubtful: list[tuple[bytes, int, int, int | None]] = []
        # True where the log on the device may still have a block whose place is free.
        self._is_unflushed = self._sequence > 1
        self._closed = False

    def _opened(self) -> reader.File:
        return reader.File(self.name, self._path, self._direct, prefer=self._prefer)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def keys(self) -> list[Key]:
        """Those that it has, the one used longest ago first."""
        return list(self._held)

    def prefix(self, keys: Iterable[Key]) -> int:
        """Number of `keys`, from the first on, that it has."""
        return sum(1 for _ in itertools.takewhile(self._held.__contains__, keys))

    def offset(self, key: Key) -> int:
        """Offset of a block in the file."""
        return self.shape.data_at + self._slot(key) * self.shape.block_bytes

    def close(self) -> None:
        """Waits for what is in flight, and lets go of the file."""
        if self._closed:
            return
        if self._is_of_parent():
            self._closed = True
            os.close(self._file)
            return
        with self._turns.store():
            if self._closed:
                return
            self._closed = True
            self._reader.close()
            self._take_back()
            self._mapped = None
            if self._writers is not None:
                self._writers.shutdown()
            if self._past is not None:
                self._past.close()
            # Closing alone wouldn't, while a process that was forked from this one has it, too.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)

    def __del__(self) -> None:
        """Lets go of the file: nothing is in flight, since what is has the store."""
        if not getattr(self, "_closed", True):
            self._closed = True
            with contextlib.suppress(OSError):
                if not self._is_of_parent():
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                os.close(self._file)

    def _is_of_parent(self) -> bool:
        """True in a process that was forked from the one that opened it."""
        return self._pid != os.getpid()

    # Loading

    def load(self, keys: Sequence[Key], tables: Any, pages: Pages, *, verify: bool = False) -> Report:
        """Reads blocks into their pages. `tables`: the pages of each block, `len(keys)` × `block_pages` integers. No page may be
        named twice. `verify` compares the store's sums once they are there."""
        self._refuse_verify(verify)
        table = self._table(keys, tables, pages)
        load = self._begin(keys, table, pages, range(pages.layers))
        report = load.result()
        if verify:
            self._compare(keys, table, pages, load._slots, load._sums or [])
        return report

    def verify(self, keys: Sequence[Key], tables: Any, pages: Pages) -> None:
        """Raises CheckFailed where pages don't hold what was stored as these blocks."""
        self._refuse_verify(True)
        table = self._table(keys, tables, pages)
        with self._turns.load():
            self._refuse_closed()
            slots = self._slots(keys)
            sums = [self._sums[slot] for slot in slots]
        self._compare(keys, table, pages, slots, sums)

    def _refuse_verify(self, asked: bool) -> None:
        if asked and not self.has_sums:
            raise RequestError(f"verify {self.name}", "its blocks have no sums", "forebay.kv.create(…, sums=True)")

    def _compare(self, keys: Sequence[Key], table: numpy.ndarray, pages: Pages, slots: list[int], sums: list[int]) -> None:
        for key, its, slot, sum_ in zip(keys, table, slots, sums, strict=True):
            if self._sum(its, pages) != sum_:
                found = "its content isn't what was stored"
                raise CheckFailed(f"block {key!r:.80} at offset {self._at(slot)} of {self.name}", found, "Store.remove")

    def load_async(self, keys: Sequence[Key], tables: Any, pages: Pages) -> Load:
        """As `load`, returning a Load instead of waiting."""
        return self._begin(keys, self._table(keys, tables, pages), pages, range(pages.layers))

    def load_layers(self, keys: Sequence[Key], tables: Any, pages: Pages, *, ahead: int = 2) -> LayerLoad:
        """As `load`, layer after layer, `ahead` of them in flight beside the one that is waited for; a GPU is told of all."""
        return LayerLoad(self, keys, tables, pages, ahead)

    def _begin(
        self, keys: Sequence[Key], table: numpy.ndarray, pages: Pages, layers: range, by_layer: bool = False
    ) -> Load:
        self._refuse_closed()
        load = Load(self, keys, by_layer)
        self._turns.begin_load(load._place)
        try:
            self._refuse_closed()
            slots = load._slots = self._slots(keys)
            load._sums = [self._sums[slot] for slot in slots] if self.has_sums else None
            if slots:
                self._ask(slots, table, pages, layers, load)
            # While they are read: nothing is evicted before this load has ended.
            with self._lock:
                used = self._held.move_to_end
                for key in keys:
                    used(key)
            self._turns.note_begun(load._place, load._futures)
        except BaseException:
            load.cancel()
            raise
        return load

    def _ask(self, slots: list[int], table: numpy.ndarray, pages: Pages, layers: range, load: Load) -> None:
        try:
            if pages.gpu is not None:
                return self._ask_gpu(slots, table, pages, load)
            self._ask_host(slots, table, pages, layers, load)
        except ForebayError as error:
            raise self._named(error, load) from None

    def _ask_gpu(self, slots: list[int], table: numpy.ndarray, pages: Pages, load: Load) -> None:
        """Begins to read all pages of these blocks, in the order of the file, or layer after layer."""
        import numpy as np

        self._is_with_gpu = True
        shape, memory, gpu = self.shape, pages.memory, pages.gpu or 0
        words = [np.array(slots, np.uint64), np.ascontiguousarray(table, np.uint64)]
        at = [int(numbers.__array_interface__["data"][0]) for numbers in words]
        pending = self._reader._reader.load_blocks(
            at[0], at[1], len(slots), shape.data_at, shape.page_bytes, shape.layers, shape.block_pages, gpu, memory.address,
            pages.pages, load.by_layer, [memory], streams_before([memory], None),
        )  # fmt: skip
        load._pending = pending
        load._futures.append(reader.Future(pending, [memory], self._reader))

    def _ask_host(self, slots: list[int], table: numpy.ndarray, pages: Pages, layers: range, load: Load) -> None:
        """Begins to read these layers."""
        import numpy as np

        shape = self.shape
        first = np.arange(layers.start, layers.stop, dtype=np.uint64)
        each = np.arange(shape.block_pages, dtype=np.uint64)
        # Rows of the file, and of the pages, of every page of every layer of every block.
        blocks = np.array(slots, np.uint64)[:, None, None]
        rows = (blocks * shape.layers + first[None, :, None]) * shape.block_pages + each[None, None, :]
        places = first[None, :, None] * pages.pages + table[:, None, :]
        self._fetch(rows.ravel(), places.ravel(), pages, load)

    def _fetch(self, rows: numpy.ndarray, places: numpy.ndarray, pages: Pages, load: Load) -> None:
        """Begins to read these rows of the file to these rows of the host's pages."""
        import numpy as np

        order = np.argsort(places)
        places, rows = places[order], rows[order]
        # Pages far from each other are asked for apart, so that nothing is said of those between.
        far = np.flatnonzero(np.diff(places) > np.uint64(max(64, places.size // 16))) + 1
        for some, at in zip(np.split(rows, far), np.split(places, far), strict=True):
            begin = int(at[0])
            numbers = np.full(int(at[-1]) - begin + 1, ELSEWHERE, np.uint64)
            numbers[(at - np.uint64(begin)).astype(np.int64)] = some
            load._futures.append(self._gather(numbers, pages.memory, pages.memory.address + begin * pages.page_bytes))

    def _gather(self, numbers: numpy.ndarray, memory: Memory, at: int) -> reader.Future:
        shape = self.shape
        (address, _) = numbers.__array_interface__["data"]
        pending = self._reader._reader.gather(
            address, numbers.size, shape.data_at, shape.page_bytes, shape.page_bytes, None, memory.gpu, at,
            [memory], streams_before([memory], None), False,
        )  # fmt: skip
        return reader.Future(pending, [memory], self._reader)

    def _slot(self, key: Key) -> int:
        slot = self._held.get(key)
        if slot is None:
            reported = f"isn't there; {len(self)} are"
            raise RequestError(f"block {key!r:.80} of {self.name}", reported, "Store.prefix says which are")
        return slot

    def _slots(self, keys: Sequence[Key]) -> list[int]:
        held = self._held
        try:
            return [held[key] for key in keys]
        except KeyError:
            return [self._slot(key) for key in keys]

    def _table(self, keys: Sequence[Key], tables: Any, pages: Pages) -> numpy.ndarray:
        """The block tables, checked, as 64-bit numbers."""
        import numpy as np

        shape = self.shape
        if (pages.layers, pages.page_bytes) != (shape.layers, shape.page_bytes):
            found = f"{pages.layers} layers of {pages.page_bytes} bytes a page, not {shape.layers} of {shape.page_bytes}"
            raise RequestError("pages", found, "pages of the store's shape")
        try:
            table = np.asarray(tables.cpu() if hasattr(tables, "cpu") else tables)
        except (TypeError, ValueError) as error:
            raise RequestError("block tables", str(error), "an array of len(keys) × block_pages integers") from None
        wanted = (len(keys), shape.block_pages)
        if table.shape not in (wanted, (wanted[0] * wanted[1],)) or (table.size and table.dtype.kind not in "iu"):
            found = f"an array of {table.dtype} of shape {table.shape}"
            raise RequestError("block tables", found, f"integers of shape {wanted}")
        table = table.reshape(wanted)
        if table.size:
            least, most = int(table.min()), int(table.max())
            if not 0 <= least <= most < pages.pages:
                worst = most if least >= 0 else least
                raise RequestError("block tables", f"page {worst} isn't one of {pages.pages}", "pages that are there")
        if _distinct(table) != table.size:
            raise RequestError("block tables", "a page is named twice", "a page for each page of each block")
        if len(set(keys)) != len(keys):
            raise RequestError("keys", "a key is named twice", "each block once")
        return table.astype(np.uint64)

    def _named_later(self, error: ForebayError, load: Load) -> ForebayError:
        """As `_named`, where stores may have had their turn since."""
        try:
            with self._turns.load():
                self._refuse_closed()
                return self._named(error, load)
        except (ForebayError, ValueError):
            return error

    def _named(self, error: ForebayError, load: Load) -> ForebayError:
        """The first block that can't be read, by its key and its place."""
        spare = bytearray(self.shape.block_bytes)
        for key, slot in zip(load.keys, load._slots, strict=True):
            at = self._at(slot)
            if self._held.get(key) != slot:
                continue
            try:
                got = self._reader.read_into(spare, at, self.shape.block_bytes)
                found = None if got == self.shape.block_bytes else f"{got} of {self.shape.block_bytes} bytes are there"
            except ForebayError as why:
                found = why.found
            if found is not None:
                return type(error)(f"block {key!r:.80} at offset {at} of {self.name}", found, "Store.remove; then store it again")
        return error

    def _sum(self, its: numpy.ndarray, pages: Pages) -> int:
        """CRC32C of the block that lies in these pages."""
        total = 0
        for data in self._parts(its, pages):
            total = _core.crc32c(bytes(data), total)
        return total

    def _parts(self, its: numpy.ndarray, pages: Pages) -> Iterator[Any]:
        """A block's bytes out of its pages, in order, copied: many small pages at a time."""
        view = pages.rows()
        places = [layer * pages.pages + int(page) for layer in range(pages.layers) for page in its]
        if pages.gpu is None:
            each = max(1, PART_BYTES // pages.page_bytes)
            yield from (view[places[begin : begin + each]] for begin in range(0, len(places), each))
        elif view is not None:
            torch = _torch(pages.tensor)
            yield view.index_select(0, torch.tensor(places, device=view.device)).cpu().numpy().reshape(-1)
        else:
            stream = max(pages.memory.stream, 0)
            for place in places:
                at = pages.memory.address + place * pages.page_bytes
                yield _core.device_bytes(pages.gpu, stream, at, pages.page_bytes)

    # Storing

    def store(self, keys: Sequence[Key], tables: Any, pages: Pages, *, sync: bool = False) -> Stored:
        """Writes blocks out of their pages; a key that is there gets the new content. `sync`: they have reached the device when
        this returns, past the page cache unless the store was opened with direct=False; also after a loss of power, each key has
        what was stored as it, or isn't there, where every store was one of these. Raises RequestError for more blocks than the
        store holds, RunError with a block's key and offset."""
        began = time.monotonic()
        table = self._table(keys, tables, pages)
        made = [_key_bytes(key) for key in keys]
        # As they are read from the log.
        keys = [_key_of(name) for name in made]
        if len(keys) > self.shape.blocks:
            raise RequestError(f"store {len(keys)} blocks", f"{self.name} holds {self.shape.blocks}", "fewer at a time")
        self._refuse_closed()
        with self._turns.store():
            self._refuse_closed()
            self._look()
            slots, evicted, free = self._room(keys)
            gone: list[Key] = [*evicted, *(key for key in keys if key in self._held)]
            # Nobody finds what is being overwritten, also after a crash.
            self._forget(gone)
            try:
                for key in gone:
                    self._held.pop(key)
                self._free = free
                past = self._past_cache(sync)
                if self._is_unflushed and (sync or past is not None):
                    # What is written past the page cache may be there before what waits in it.
                    self._flush()
                self._write(keys, slots, table, pages, past)
                sums = [self._sum(its, pages) for its in table] if self.has_sums else [None] * len(keys)
                if sync:
                    os.fdatasync(self._file)
                self._doubtful = [(name, REMOVED, slot, None) for name, slot in zip(made, slots, strict=True)]
                self._note([(name, STORED, slot, sum_) for name, slot, sum_ in zip(made, slots, sums, strict=True)])
                if sync:
                    os.fdatasync(self._file)
                for key, slot, sum_ in zip(keys, slots, sums, strict=True):
                    if sum_ is not None:
                        self._sums[slot] = sum_
                    self._held[key] = slot
                self._doubtful = []
            except BaseException:
                for key in keys:
                    self._held.pop(key, None)
                used = set(self._held.values())
                self._free = [slot for slot in range(self.shape.blocks - 1, -1, -1) if slot not in used]
                raise
        return Stored(len(keys) * self.shape.block_bytes, time.monotonic() - began, evicted)

    def remove(self, keys: Iterable[Key]) -> int:
        """Forgets blocks; returns how many of them there were."""
        self._refuse_closed()
        with self._turns.store():
            self._refuse_closed()
            self._look()
            there = [key for key in dict.fromkeys(keys) if key in self._held]
            self._forget(there)
            for key in there:
                self._free.append(self._held.pop(key))
        return len(there)

    def _forget(self, keys: Sequence[Key]) -> None:
        """Notes that these are gone, and what a store that failed may have noted."""
        gone = [*self._doubtful, *((_key_bytes(key), REMOVED, self._held[key], None) for key in keys)]
        if gone:
            self._is_unflushed = True
            self._note(gone)
            self._doubtful = []

    def _flush(self) -> None:
        os.fdatasync(self._file)
        self._is_unflushed = False

    def _look(self) -> None:
        if self._mapped is not None and os.fstat(self._file).st_size < self.shape.file_bytes:
            # Somebody cut it off: writing there would end the process.
            self._take_back()
            self._mapped = None

    def _room(self, keys: Sequence[Key]) -> tuple[list[int], list[Key], list[int]]:
        """Slots for these blocks: their own where they are there, free ones, and those of the blocks used longest ago. Also the
        keys of these, and the slots that are free then."""
        wanted = set(keys)
        spare = len(keys) - sum(key in self._held for key in keys) - len(self._free)
        evicted = list(itertools.islice((key for key in self._held if key not in wanted), max(0, spare)))
        free = [self._held[key] for key in evicted] + self._free
        slots = [self._held[key] if key in self._held else free.pop() for key in keys]
        return slots, evicted, free

    def _past_cache(self, sync: bool) -> DirectWriter | None:
        """The writer of blocks past the page cache; None where they go through it."""
        shape = self.shape
        is_fit = shape.block_bytes % ALIGN == 0 and DirectWriter.takes(shape.page_bytes)
        if not (sync if self._direct is None else self._direct) or self._mapped is not None or not is_fit:
            return None
        if self._past is None:
            with contextlib.suppress(OSError):
                self._past = DirectWriter(self._file)
        return self._past if self._past is not None and self._let_go() else None

    def _let_go(self) -> bool:
        """Opens the reader anew where GPUs may have registered pages of the file: a write past the page cache puts others in
        their place, and a device's times don't tell. False where the file isn't found by its name any more."""
        if self._is_with_gpu:
            try:
                if not os.path.samestat(os.stat(self.name), os.fstat(self._file)):
                    return False
                before, self._reader = self._reader, self._opened()
            except (OSError, ForebayError):
                return False
            before.close()
            self._is_with_gpu = False
        return True

    def _at(self, slot: int) -> int:
        return self.shape.data_at + slot * self.shape.block_bytes

    def _runs(self, slots: list[int]) -> list[tuple[int, slice]]:
        """Slots that adjoin: where the first begins in the file, and which they are."""
        ends = [n for n in range(1, len(slots)) if slots[n] != slots[n - 1] + 1] + [len(slots)]
        return [(self._at(slots[begin]), slice(begin, end)) for begin, end in itertools.pairwise([0, *ends])]

    def _write(
        self, keys: Sequence[Key], slots: list[int], table: numpy.ndarray, pages: Pages, past: DirectWriter | None
    ) -> None:
        """Past the page cache, many writes are in flight; through it each is copied, one after another, and written later."""
        import numpy as np

        # In the order of the file: what adjoins there is written together.
        order = np.argsort(slots)
        keys, slots, table = [keys[n] for n in order], [slots[n] for n in order], table[order]
        writer = past or self._through_cache()
        try:
            if not slots:
                return None
            if pages.gpu is None:
                view = pages.rows()
                layers = np.arange(pages.layers, dtype=np.uint64)
                places = (layers[None, :, None] * pages.pages + table[:, None, :]).astype(np.int64)
                runs = self._runs(slots)
                return self._await([job for at, some in runs for job in writer.write(at, view, places[some].ravel())])
            lent = self._lend(pages.gpu, len(keys) * self.shape.block_bytes) if past is None else None
            if lent is not None:
                return self._write_by_gpu(lent, slots, table, pages)
            if not self._write_from_gpu(keys, slots, table, pages, past):
                for slot, its in zip(slots, table, strict=True):
                    block = np.frombuffer(b"".join(self._parts(its, pages)), np.uint8).reshape(1, -1)
                    self._await(writer.write(self._at(slot), block, np.arange(1)))
        except NotWritten as failed:
            key = keys[bisect.bisect_right(slots, (failed.at - self.shape.data_at) // self.shape.block_bytes) - 1]
            asked = f"store block {key!r:.80} at offset {failed.at} of {self.name}"
            raise RunError(asked, failed.why.strerror or str(failed.why), "df -h; dmesg | tail") from None
        finally:
            # Also where it was interrupted: nothing is in flight towards places that others may have next.
            writer.stop()

    def _through_cache(self) -> RowWriter:
        return RowWriter(self._file) if self._mapped is None else MappedWriter(self._file, self._mapped)

    def _lend(self, gpu: int, size: int) -> _core.Lent | None:
        """The store's memory, where a GPU may write to it. Registering takes as long as processors copy half of it."""
        self._stored_bytes += size
        if self._mapped is None or not abilities(self._path).may_map or 2 * self._stored_bytes < self.shape.file_bytes:
            return None
        if gpu not in self._lent:
            at = int(self._mapped.__array_interface__["data"][0])
            try:
                self._lent[gpu] = _core.Lent(gpu, at, -(-self.shape.file_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
            except ForebayError:
                # Processors copy there all the same.
                self._lent[gpu] = None
        return self._lent[gpu]

    def _take_back(self) -> None:
        for lent in self._lent.values():
            if lent is not None:
                lent.close()
        self._lent.clear()

    def _write_by_gpu(self, lent: _core.Lent, slots: list[int], table: numpy.ndarray, pages: Pages) -> None:
        """Each page straight to its place in the store's memory, by one launch for thousands."""
        import numpy as np

        shape = self.shape
        layers, each = np.arange(shape.layers, dtype=np.uint64), np.arange(shape.block_pages, dtype=np.uint64)
        blocks = np.array(slots, np.uint64)[:, None, None]
        rows = (blocks * shape.layers + layers[None, :, None]) * shape.block_pages + each[None, None, :]
        _fill(lent, pages, table, (rows * shape.page_bytes + shape.data_at).ravel(), range(shape.layers))

    def _write_from_gpu(
        self, keys: Sequence[Key], slots: list[int], table: numpy.ndarray, pages: Pages, past: DirectWriter | None = None
    ) -> bool:
        """Gathered by the GPU in memory of the host, and written by threads, one stage while the next is filled. False where
        that GPU can't write there."""
        parts = self._staged_parts(len(keys))
        size = max((some.stop - some.start) * len(layers) for some, layers in parts) * self.shape.layer_bytes
        with contextlib.ExitStack() as borrowed:
            try:
                stages = borrowed.enter_context(staging.stages(pages.gpu or 0, size, min(2, len(parts))))
            except MachineError:
                return False
            self._write_staged(stages, parts, keys, slots, table, pages, past)
        return True

    def _staged_parts(self, count: int) -> list[tuple[slice, range]]:
        """So many blocks in what a stage holds: some of them whole, or some layers of one."""
        shape = self.shape
        each = STAGE_BYTES // shape.block_bytes
        if each:
            return [(slice(n, min(n + each, count)), range(shape.layers)) for n in range(0, count, each)]
        # Where the next begins, a write past the page cache may, too.
        least = ALIGN // math.gcd(ALIGN, shape.layer_bytes)
        layers = max(1, STAGE_BYTES // shape.layer_bytes // least) * least
        return [
            (slice(n, n + 1), range(shape.layers)[first : first + layers])
            for n in range(count)
            for first in range(0, shape.layers, layers)
        ]

    def _write_staged(
        self, stages: Sequence[staging.Stage], parts: list[tuple[slice, range]], keys: Sequence[Key], slots: list[int],
        table: numpy.ndarray, pages: Pages, past: DirectWriter | None,
    ) -> None:  # fmt: skip
        import numpy as np

        under_way: list[list[Any]] = [[] for _ in stages]
        try:
            for number, (some, layers) in enumerate(parts):
                stage, jobs = stages[number % len(stages)], under_way[number % len(stages)]
                self._await(jobs)
                jobs.clear()
                row = len(layers) * self.shape.layer_bytes
                rows = stage.bytes[: len(keys[some]) * row].reshape(-1, row)
                _fill(stage.lent, pages, table[some], np.arange(0, rows.size, pages.page_bytes, dtype=np.uint64), layers)
                jobs += self._begun(keys[some], slots[some], rows, layers.start * self.shape.layer_bytes, past)
        finally:
            # Also where it failed or was interrupted, nothing is in flight any more.
            wait(itertools.chain(*under_way))
        for jobs in under_way:
            self._await(jobs)

    def _begun(
        self, keys: Sequence[Key], slots: list[int], rows: numpy.ndarray, begin: int, past: DirectWriter | None
    ) -> list[Any]:
        """The writes of whole blocks, begun; or of one from its byte `begin` on."""
        import numpy as np

        if past is not None:
            runs = self._runs(slots)
            return [job for at, its in runs for job in past.write(at + begin, rows[its], np.arange(rows[its].shape[0]))]
        whole, block = memoryview(rows.reshape(-1).data), rows.shape[1]
        # Few long jobs: handing one over takes as long as copying half a MiB.
        piece = block if len(keys) >= WRITERS else max(1 << 20, -(-block // WRITERS // HEAD_BYTES) * HEAD_BYTES)
        parts = [
            (keys[i], slots[i], begin + part, [whole[i * block + part : i * block + min(part + piece, block)]])
            for i in range(len(keys))
            for part in range(0, block, piece)
        ]
        return [self._pool().submit(self._put_all, parts[n::WRITERS]) for n in range(min(WRITERS, len(parts)))]

    def _pool(self) -> ThreadPoolExecutor:
        if self._writers is None:
            self._writers = ThreadPoolExecutor(min(WRITERS, os.cpu_count() or 1), "forebay-kv")
        return self._writers

    @staticmethod
    def _await(jobs: list[Any]) -> None:
        """Until all have ended; then the first failure."""
        failed = [why for why in [job.exception() for job in jobs] if why is not None]
        if failed:
            raise failed[0]

    def _put_all(self, parts: Sequence[tuple[Key, int, int, Sequence[Any]]]) -> None:
        for part in parts:
            self._put(*part)

    def _put(self, key: Key, slot: int, begin: int, parts: Sequence[Any]) -> None:
        """Writes one block, or a part of it from `begin` on, from several places in memory."""
        at = self.shape.data_at + slot * self.shape.block_bytes + begin
        left = [memoryview(part).cast("B") for part in parts]
        if self._mapped is not None:
            # A write would keep all other threads out of the file.
            for part in left:
                self._mapped[at : at + len(part)] = _bytes_of(part)
                at += len(part)
            return
        try:
            while left:
                wrote = os.pwritev(self._file, left[:IOV_MAX], at)
                at += wrote
                while left and wrote >= len(left[0]):
                    wrote -= len(left.pop(0))
                if wrote:
                    left[0] = left[0][wrote:]
        except OSError as error:
            asked = f"store block {key!r:.80} at offset {at} of {self.name}"
            raise RunError(asked, error.strerror or str(error), "df -h; dmesg | tail") from None

    def _map(self) -> Any:
        """All of a file in memory as an array; None for any other."""
        import numpy as np

        status = os.fstat(self._file)
        if not _in_memory(self._file) or status.st_blocks * 512 < self.shape.file_bytes or status.st_size < self.shape.file_bytes:
            return None
        mapped = mmap.mmap(self._file, self.shape.file_bytes)
        # The first write to a page changes the file's time stamp; of the log, here.
        with contextlib.suppress(OSError):
            mapped.madvise(MADV_POPULATE_WRITE, 0, self.shape.data_at)
        return np.frombuffer(mapped, np.uint8)

    # The log

    def _head(self) -> tuple[Shape, bool]:
        asked = f"open the store {self.name}"
        try:
            head = json.loads(os.pread(self._file, HEAD_BYTES, 0).rstrip(b"\0"))
            assert head["schema"] == SCHEMA
            numbers = [head[key] for key in ("layers", "page_bytes", "block_pages", "blocks")]
            assert all(type(n) is int and 0 < n < BLOCKS_MAX for n in numbers)
            shape = Shape(*numbers)
            has_sums = head["sums"] is True
        except OSError as error:
            raise RequestError(asked, error.strerror or str(error), "a file that forebay.kv.create made") from None
        except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
            raise RequestError(asked, f"it doesn't begin with {SCHEMA}", "a file that forebay.kv.create made") from None
        size = os.lseek(self._file, 0, os.SEEK_END)
        if size < shape.data_at:
            raise RequestError(asked, f"it has {size} bytes; its log alone takes {shape.data_at}", "a copy that is whole")
        return shape, has_sums

    def _replay(self) -> None:
        """What the log says is there. The half that was begun last counts, up to its first record that isn't whole."""
        shape = self.shape
        best: tuple[int, int] | None = None
        for half in range(2):
            begun = self._parsed(os.pread(self._file, RECORD_BYTES, HEAD_BYTES + half * shape.log_bytes))
            if begun is not None and begun[2] == BEGUN:
                best = max(best or (0, 0), (begun[1], half))
        if best is None:
            raise RunError(f"open the store {self.name}", "neither half of its log begins", "forebay.kv.create a new one")
        self._generation, self._half = best
        self._sequence = 1
        at = HEAD_BYTES + self._half * shape.log_bytes
        log = os.pread(self._file, shape.log_bytes, at)
        owner: dict[int, Key] = {}
        for begin in range(RECORD_BYTES, len(log) - RECORD_BYTES + 1, RECORD_BYTES):
            found = self._parsed(log[begin : begin + RECORD_BYTES])
            if found is None or found[:2] != (self._sequence, self._generation):
                break
            _, _, kind, name, slot, sum_ = found
            key = _key_of(name)
            if slot >= shape.blocks:
                raise RunError(f"open the store {self.name}", f"block {key!r} lies beyond its end", "forebay.kv.create a new one")
            self._held.pop(key, None)
            if kind == STORED:
                # Not where it has been stored elsewhere since.
                if slot in owner and self._held.get(owner[slot]) == slot:
                    self._held.pop(owner[slot])
                self._held[key], owner[slot] = slot, key
                if sum_ is not None:
                    self._sums[slot] = sum_
            self._sequence += 1

    @staticmethod
    def _parsed(raw: bytes) -> tuple[int, int, int, bytes, int, int | None] | None:
        """Sequence, generation, kind, key, slot and sum; None for what is no record."""
        if len(raw) < RECORD_BYTES or raw[:4] != MAGIC:
            return None
        _, crc, sequence, generation, kind, length, flags, slot, sum_ = RECORD.unpack_from(raw)
        if _core.crc32c(raw[8:], 0) != crc or length > KEY_BYTES or kind not in (BEGUN, STORED, REMOVED):
            return None
        return sequence, generation, kind, raw[KEY_AT : KEY_AT + length], slot, sum_ if flags & HAS_SUM else None

    def _note(self, entries: list[tuple[bytes, int, int, int | None]]) -> None:
        """Appends to the log, in its other half where this one is full."""
        if not entries:
            return
        records = self.shape.log_bytes // RECORD_BYTES
        if self._sequence + len(entries) > records:
            self._turn_over()
        base = HEAD_BYTES + self._half * self.shape.log_bytes
        raw = b"".join(
            _record(self._sequence + i, self._generation, kind, name, slot, sum_)
            for i, (name, kind, slot, sum_) in enumerate(entries)
        )
        self._append(raw, base + self._sequence * RECORD_BYTES)
        self._sequence += len(entries)

    def _turn_over(self) -> None:
        """Writes what is there to the other half; that counts once its first record is written."""
        generation, half = self._generation + 1, 1 - self._half
        # Until this has succeeded, nothing is appended to the half that is full.
        self._sequence = self.shape.log_bytes // RECORD_BYTES
        base = HEAD_BYTES + half * self.shape.log_bytes
        live = [
            _record(i, generation, STORED, _key_bytes(key), slot, self._sums.get(slot))
            for i, (key, slot) in enumerate(self._held.items(), 1)
        ]
        self._append(b"\0" * RECORD_BYTES, base)
        self._append(b"".join(live), base + RECORD_BYTES)
        os.fdatasync(self._file)
        self._append(_record(0, generation, BEGUN), base)
        self._generation, self._half, self._sequence = generation, half, len(live) + 1

    def _append(self, raw: bytes, at: int) -> None:
        if self._mapped is not None:
            # A write would change the file's time stamp, and what GPUs have registered of it would be let go of.
            self._mapped[at : at + len(raw)] = _bytes_of(memoryview(raw))
            return
        try:
            while raw:
                wrote = os.pwrite(self._file, raw, at)
                raw, at = raw[wrote:], at + wrote
        except OSError as error:
            raise RunError(f"log of {self.name} at {at}", error.strerror or str(error), "df -h; dmesg | tail") from None

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ValueError(f"{self.name} is closed")
        if self._is_of_parent():
            found = "the process that this one was forked from has it"
            raise RequestError(f"use the store {self.name}", found, "forebay.kv.open another after forking")


def _distinct(table: numpy.ndarray) -> int:
    """Number of different pages. Of few, a set takes a tenth of the time that sorting does."""
    import numpy as np

    return len(set(table.ravel().tolist())) if table.size <= FEW_PAGES else int(np.unique(table).size)


def _bytes_of(part: memoryview) -> Any:
    import numpy as np

    return np.frombuffer(part, np.uint8)


def _fill(lent: _core.Lent, pages: Pages, table: numpy.ndarray, to: numpy.ndarray, layers: range) -> None:
    """Copies the pages of a block table, layer after layer of each block, to these places in memory of the host."""
    import numpy as np

    numbers = np.arange(layers.start, layers.stop, dtype=np.uint64)
    places = (numbers[None, :, None] * pages.pages + table[:, None, :].astype(np.uint64)).ravel()
    begins = places * pages.page_bytes + pages.memory.address
    at = [int(words.__array_interface__["data"][0]) for words in (begins, to)]
    lent.fill(at[0], at[1], to.size, pages.page_bytes, streams_before([pages.memory], None))


__all__ = ["Key", "LayerLoad", "Load", "Pages", "Shape", "Store", "Stored", "create", "open"]
