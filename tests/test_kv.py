"""Blocks of a key-value cache: every byte of a load into pages apart from each other, what stays of a store, what it refuses."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import mmap
import os
import random
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forebay import kv
from forebay.errors import CheckFailed, ForebayError, MachineError, RequestError, RunError

LAYERS, PAGES, PAGE_BYTES = 3, 40, 4096


def filled(seed: int, pages: int = PAGES, page_bytes: int = PAGE_BYTES) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (LAYERS, pages, page_bytes), np.uint8)


def drawn(chance: random.Random, blocks: int, block_pages: int, pages: int = PAGES) -> Any:
    return np.array(chance.sample(range(pages), blocks * block_pages)).reshape(blocks, block_pages)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kv.Store]:
    with kv.create(tmp_path / "s", layers=LAYERS, page_bytes=PAGE_BYTES, block_pages=2, blocks=12, sums=True) as made:
        yield made


@pytest.mark.promise("KVC-45")
@pytest.mark.parametrize(
    ("page_bytes", "block_pages", "path", "where"),
    [(4096, 1, "auto", "disk"), (4096, 3, "auto", "memory"), (1000, 2, "host", "disk")],
)
def test_a_load_brings_each_byte_to_its_page_and_touches_no_other(
    tmp_path: Path, page_bytes: int, block_pages: int, path: str, where: str
) -> None:
    with folder_in(where, tmp_path) as folder:
        loads(folder, page_bytes, block_pages, path)


@contextlib.contextmanager
def folder_in(where: str, tmp_path: Path) -> Iterator[Path]:
    """A folder of its own, in the host's memory if that is asked for and there is one."""
    if where == "disk" or not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def loads(folder: Path, page_bytes: int, block_pages: int, path: str) -> None:
    chance = random.Random(page_bytes + block_pages)
    held = filled(1, page_bytes=page_bytes)
    shape = {"layers": LAYERS, "page_bytes": page_bytes, "block_pages": block_pages, "blocks": 12}
    with kv.create(folder / "s", **shape, path=path) as made:
        there = drawn(chance, 12, block_pages)
        keys: list[kv.Key] = [*range(10), "eleven", b"\0twelve"]
        assert made.store(keys, there, kv.Pages(held)).bytes == 12 * made.shape.block_bytes
        # In memory it is overwritten without a trace in the file's times: what GPUs have registered of it stays.
        stamp = os.stat(made.name).st_mtime_ns
        made.store(keys, there, kv.Pages(held))
        assert made._mapped is None or os.stat(made.name).st_mtime_ns == stamp
        for count in (0, 1, 5, 12):
            some = chance.sample(range(12), count)
            to = drawn(chance, count, block_pages)
            into = filled(2, page_bytes=page_bytes)
            wanted = into.copy()
            for block, places in zip(some, to, strict=True):
                wanted[:, places] = held[:, there[block]]
            assert made.load([keys[block] for block in some], to, kv.Pages(into)).bytes == count * made.shape.block_bytes
            assert (into == wanted).all(), count
            # Layer after layer: each is there when it is its turn.
            into = filled(2, page_bytes=page_bytes)
            layers = made.load_layers([keys[block] for block in some], to, kv.Pages(into), ahead=1)
            for layer in layers:
                assert (into[layer] == wanted[layer]).all()
            assert (into == wanted).all() and layers.report.bytes == count * made.shape.block_bytes
            assert 0 <= layers.first_s <= layers.exposed_s <= layers.seconds


@pytest.mark.promise("KVC-46")
def test_a_store_keeps_its_blocks_over_closing_and_a_log_that_was_filled_many_times(tmp_path: Path) -> None:
    chance, name = random.Random(4), tmp_path / "s"
    held = filled(7)
    there: dict[int, int] = {}
    for _ in range(12):
        opened = kv.open(name) if name.exists() else kv.create(name, layers=LAYERS, page_bytes=PAGE_BYTES, blocks=6, sums=True)
        with opened as s:
            assert set(s.keys()) == set(there)
            for key, page in there.items():
                into = filled(8)
                s.load([key], [[3]], kv.Pages(into), verify=True)
                assert (into[:, 3] == held[:, page]).all()
            for _ in range(20):
                if there and chance.random() < 0.2:
                    gone = chance.choice(list(there))
                    assert s.remove([gone, 999]) == 1
                    del there[gone]
                    continue
                keys, pages = chance.sample(range(20), 2), chance.sample(range(PAGES), 2)
                done = s.store(keys, np.array([pages]).T, kv.Pages(held))
                there = {key: page for key, page in there.items() if key not in done.evicted}
                there |= dict(zip(keys, pages, strict=True))
            assert len(s) == len(there) <= 6 and set(s.keys()) == set(there)
    # What was half written to the log, or damaged there, ends it.
    with open(name, "r+b") as raw, kv.open(name) as s:
        assert s._sequence > 1
        raw.seek(4096 + s._half * s.shape.log_bytes + (s._sequence - 1) * 128 + 70)
        raw.write(b"\xff\xff")
    with kv.open(name) as s:
        assert len(set(s.keys()) ^ set(there)) <= 2


@pytest.mark.promise("KVC-46")
def test_the_block_that_was_used_longest_ago_goes_and_a_key_gets_its_new_content(store: kv.Store) -> None:
    held = filled(3)
    pages = kv.Pages(held)
    tables = np.arange(24).reshape(12, 2)
    store.store(range(12), tables, pages)
    store.load([0, 1], tables[:2], kv.Pages(filled(4)))
    assert store.store([50, 51, 3], [[30, 31], [32, 33], [34, 35]], pages).evicted == [2, 4]
    assert 0 in store and 2 not in store and store.prefix([0, 1, 3, 2, 5]) == 3
    into = filled(4)
    store.load([3, 51], [[0, 9], [5, 2]], kv.Pages(into), verify=True)
    assert (into[:, [0, 9, 5, 2]] == held[:, [34, 35, 32, 33]]).all()


@pytest.mark.promise("KVC-45")
def test_what_is_damaged_missing_or_cut_off_is_named_with_its_key_and_offset(store: kv.Store) -> None:
    pages = kv.Pages(filled(3))
    store.store(["a", "b"], [[0, 1], [2, 3]], pages)
    with open(store.name, "r+b") as raw:
        raw.seek(store.offset("b") + 5000)
        raw.write(b"damage")
    into = kv.Pages(filled(4))
    store.load(["a"], [[6, 7]], into, verify=True)
    with pytest.raises(CheckFailed, match=f"block 'b' at offset {store.offset('b')} of"):
        store.load(["a", "b"], [[6, 7], [9, 8]], into, verify=True)
    os.truncate(store.name, store.offset("b") + 100)
    with pytest.raises(ForebayError, match=f"block 'b' at offset {store.offset('b')} of"):
        store.load(["a", "b"], [[6, 7], [9, 8]], into)
    # It goes on; stores aren't kept waiting by a load that failed.
    assert store.remove(["b"]) == 1
    store.store(["c"], [[1, 2]], pages)
    with pytest.raises(RequestError, match="block 'd' of .* isn't there; 2 are"):
        store.load(["a", "d"], [[6, 7], [9, 8]], into)


@pytest.mark.promise("KVC-50")
@pytest.mark.parametrize(
    ("page_bytes", "layers", "each", "way"),
    [(4096, 3, 2, {}), (512, 8, 1, {}), (16384, 2, 2, {"direct": True}), (3 << 20, 1, 1, {}), (1000, 3, 2, {}),
     (4096, 3, 2, {"direct": False})],
)  # fmt: skip
def test_what_is_to_be_on_the_device_is_written_past_the_page_cache_and_read_back(
    tmp_path: Path, page_bytes: int, layers: int, each: int, way: dict[str, Any]
) -> None:
    """Wherever pages lie in memory, whatever the page cache holds of the file, however blocks of both kinds take turns."""
    chance, blocks, pages = random.Random(page_bytes), 9, 9 * each + 1
    is_sync = not way.get("direct")
    size = layers * pages * page_bytes
    lain = np.frombuffer(mmap.mmap(-1, size + 4096), np.uint8)
    shape = {"layers": layers, "page_bytes": page_bytes, "block_pages": each, "blocks": blocks}
    with kv.create(tmp_path / "s", **shape, sums=True, **way) as made:
        wanted: dict[int, Any] = {}
        for turn in range(6):
            # On a page of memory, and beside one.
            held = lain[64 * (turn % 2) :][:size].reshape(layers, pages, page_bytes)
            held[:] = np.random.default_rng(turn).integers(0, 256, held.shape, np.uint8)
            some = chance.sample(range(blocks), 1 + turn)
            tables = drawn(chance, len(some), each, pages)
            # Every other time it is left in the page cache, not yet on the device.
            made.store(some, tables, kv.Pages(held), sync=is_sync and turn % 3 != 1)
            wanted |= {key: held[:, its].copy() for key, its in zip(some, tables, strict=True)}
            there, into = drawn(chance, len(wanted), each, pages), np.zeros_like(held)
            made.load(list(wanted), there, kv.Pages(into), verify=True)
            for key, its in zip(wanted, there, strict=True):
                assert (into[:, its] == wanted[key]).all(), (turn, key)
        assert (made._past is not None) == (page_bytes != 1000 and way.get("direct") is not False)
        if made._past is not None:
            # What the file system refuses of it goes through the page cache.
            os.close(made._past._file)
            made._past._file = os.open(made.name, os.O_RDWR | os.O_DIRECT)
            with monkeypatched_pwritev(errno.EINVAL, made._past._file):
                made.store([0], [list(range(each))], kv.Pages(held), sync=is_sync)
            into = np.zeros_like(held)
            made.load([0], [list(range(each))], kv.Pages(into), verify=True)
            assert (into[:, :each] == held[:, :each]).all()


@contextlib.contextmanager
def monkeypatched_pwritev(number: int, file: int) -> Iterator[None]:
    """Writes to this file fail."""
    real = os.pwritev

    def refuses(to: int, parts: Any, at: int) -> int:
        if to == file:
            raise OSError(number, os.strerror(number))
        return real(to, parts, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", refuses)
        yield


@pytest.mark.promise("KVC-50")
def test_a_block_that_is_overwritten_on_the_device_is_removed_there_first_and_a_failure_names_it(store: kv.Store) -> None:
    pages = kv.Pages(filled(3))
    tables = np.arange(24).reshape(12, 2)
    store.store(range(12), tables, pages, sync=True)
    order: list[str] = []
    written, flushed = os.pwritev, os.fdatasync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", lambda *words: order.append("blocks") or written(*words))
        patch.setattr(os, "fdatasync", lambda *words: order.append("flush") or flushed(*words))
        patch.setattr(store, "_append", lambda *words: order.append("log") or kv.Store._append(store, *words))
        store.store(["new"], [[30, 31]], pages, sync=True)
    assert order == ["log", "flush", "blocks", "flush", "log", "flush"]
    assert store._past is not None
    with (
        monkeypatched_pwritev(errno.EIO, store._past._file),
        pytest.raises(RunError, match=rf"store block 4 at offset {store.offset(4)} of .*Input/output error"),
    ):
        store.store([4, 7], tables[:2], pages, sync=True)
    # A block that was removed before is forgotten there, too, before its place gets another.
    store.remove([5])
    order.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", lambda *words: order.append("blocks") or written(*words))
        patch.setattr(os, "fdatasync", lambda *words: order.append("flush") or flushed(*words))
        store.store([5], [[30, 31]], pages, sync=True)
    assert order == ["flush", "blocks", "flush", "flush"]
    # Neither is found any more, and their places are free.
    assert 4 not in store and 7 not in store and len(store) == 10
    store.store([4, 7], tables[:2], pages, sync=True)
    assert len(store) == 12


def test_an_interrupted_store_leaves_nothing_in_flight_and_a_forked_process_stores_by_itself(store: kv.Store) -> None:
    pages = kv.Pages(filled(3))
    tables = np.arange(24).reshape(12, 2)
    store.store(range(12), tables, pages, sync=True)
    assert store._past is not None
    with pytest.MonkeyPatch.context() as patch:

        def stopped(jobs: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(kv.Store, "_await", staticmethod(stopped))
        with pytest.raises(KeyboardInterrupt):
            store.store(range(12), tables, pages, sync=True)
    assert len(store) == 0 and not store._past._jobs
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            own = kv.create(store.name + "-own", layers=LAYERS, page_bytes=PAGE_BYTES, block_pages=2, blocks=12)
            own.store(range(12), tables, pages, sync=True)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.promise("KVC-50")
def test_a_new_store_has_its_room(tmp_path: Path) -> None:
    with kv.create(tmp_path / "s", layers=LAYERS, page_bytes=PAGE_BYTES, blocks=100) as made:
        found = os.stat(made.name)
        assert found.st_size == made.shape.file_bytes <= found.st_blocks * 512
    room = os.statvfs(tmp_path)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="No space left on device|File too large"):
        # The disk isn't filled to find that out.
        patch.setattr(kv, "_reserve", lambda *words: pytest.fail("room was asked for"))
        kv.create(tmp_path / "t", layers=1, page_bytes=1 << 20, blocks=2 * room.f_blocks * room.f_frsize >> 20)
    assert not (tmp_path / "t").exists()


def test_loads_and_stores_of_several_threads_take_turns(store: kv.Store) -> None:
    held = filled(3)
    tables = np.arange(24).reshape(12, 2)
    store.store(range(12), tables, kv.Pages(held))
    failures: list[BaseException] = []

    def load(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(20):
                into, some = filled(4), chance.sample(range(6), 3)
                store.load(some, tables[some], kv.Pages(into))
                assert (into[:, tables[some].ravel()] == held[:, tables[some].ravel()]).all()
        except BaseException as error:
            failures.append(error)

    def write() -> None:
        try:
            for _ in range(20):
                store.store([6, 7], tables[6:8], kv.Pages(held))
        except BaseException as error:
            failures.append(error)

    threads = [*(threading.Thread(target=load, args=(n,)) for n in range(2)), threading.Thread(target=write)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert not failures, failures


@pytest.mark.promise("KVC-46")
def test_a_store_waits_for_reads_not_for_their_results_and_gets_its_turn(store: kv.Store) -> None:
    held = filled(3)
    pages, tables = kv.Pages(held), np.arange(24).reshape(12, 2)
    store.store(range(4), tables[:4], pages)
    into = filled(4)
    # By the thread that has a load in flight, and between the layers of one.
    load = store.load_async([0, 1], tables[:2], kv.Pages(into))
    store.store([0], [[30, 31]], pages)
    assert load.result().bytes == 2 * store.shape.block_bytes and (into[:, :4] == held[:, :4]).all()
    for layer in store.load_layers([1, 2], tables[1:3], kv.Pages(into)):
        store.store([10 + layer], [[32, 33]], pages)
    assert (into[:, 2:6] == held[:, 2:6]).all() and len(store) == 4 + LAYERS
    # While others load all the time, in whose turns one of the blocks is overwritten: its sum is that of what they read.
    failures: list[BaseException] = []
    is_over = threading.Event()

    def loads_on() -> None:
        try:
            mine = kv.Pages(filled(4))
            while not is_over.is_set():
                store.load([0, 1], [[5, 6], [7, 8]], mine, verify=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loads_on) for _ in range(3)]
    [thread.start() for thread in threads]
    for turn in range(20):
        store.store([0], [[turn, turn + 1]], pages)
    is_over.set()
    [thread.join(60) for thread in threads]
    assert not failures, failures
    # Closing doesn't wait for a result that nobody takes, and what comes after it is refused.
    load = store.load_async([1], [[1, 2]], kv.Pages(into))
    store.close()
    assert load.result().bytes == store.shape.block_bytes
    for use in (lambda: store.store([1], [[0, 1]], pages), lambda: store.load([1], [[0, 1]], pages), lambda: store.remove([1])):
        with pytest.raises(ValueError, match="is closed"):
            use()


@pytest.mark.promise("KVC-46")
def test_a_store_that_was_interrupted_anywhere_leaves_each_block_one_place(tmp_path: Path) -> None:
    """Where each step of it in turn is the last, and the process goes on, or a new one has the file as it is then."""
    pages = kv.Pages(filled(3))

    held = pages.tensor

    def holds(store: kv.Store, **wanted: int | set[int]) -> None:
        there = store.keys()
        assert len(set(store._held.values()) | set(store._free)) == len(there) + len(store._free) == 3
        for key in there:
            into = filled(4)
            store.load([key], [[0]], kv.Pages(into), verify=True)
            page = wanted[str(key)]
            assert any((into[:, 0] == held[:, n]).all() for n in (page if isinstance(page, set) else {page})), key

    copy = tmp_path / "copy"
    for sync, last in itertools.product((False, True), range(8)):
        name = tmp_path / f"{sync}{last}"
        with kv.create(name, layers=LAYERS, page_bytes=PAGE_BYTES, blocks=3, sums=True) as store:
            store.store(["a", "b", "c"], [[1], [2], [3]], pages)
            with monkeypatched_steps(last), contextlib.suppress(KeyboardInterrupt):
                store.store(["a", "d"], [[4], [5]], pages, sync=sync)
            copy.write_bytes(name.read_bytes())
            with kv.open(copy) as killed:
                holds(killed, a={1, 4}, b=2, c=3, d=5)
            now = 4 if "d" in store else 1
            holds(store, a=now, b=2, c=3, d=5)
            # What is written over from here on is no longer in the log under its name of before.
            store.store(["e"], [[6]], pages)
            holds(store, a=now, b=2, c=3, d=5, e=6)
            copy.write_bytes(name.read_bytes())
            with kv.open(copy) as killed:
                assert set(killed.keys()) <= set(store.keys())
                holds(killed, a=now, b=2, c=3, d=5, e=6)


@contextlib.contextmanager
def monkeypatched_steps(last: int) -> Iterator[None]:
    """After so many writes and flushes, whoever asked for the next is interrupted once it is done."""
    steps = itertools.count()

    def step(real: Any, *words: Any) -> Any:
        done = real(*words)
        if next(steps) == last:
            raise KeyboardInterrupt
        return done

    with pytest.MonkeyPatch.context() as patch:
        for what in ("pwrite", "pwritev", "fdatasync"):
            patch.setattr(os, what, functools.partial(step, getattr(os, what)))
        yield


@pytest.mark.promise("KVC-46")
def test_blocks_that_changed_places_are_there_after_opening(tmp_path: Path) -> None:
    pages = kv.Pages(filled(3))
    with kv.create(tmp_path / "s", layers=LAYERS, page_bytes=PAGE_BYTES, blocks=2) as store:
        store.store([0, 1], [[0], [1]], pages)
        for key in (0, 1):
            store.remove([key])
        for key in (0, 1):
            store.store([key], [[key]], pages)
    with kv.open(tmp_path / "s") as store:
        assert store.keys() == [0, 1]


@pytest.mark.promise("KVC-46")
def test_a_store_is_of_one_process_and_of_nobody_once_it_was_dropped(store: kv.Store) -> None:
    pages = kv.Pages(filled(3))
    store.store([1], [[0, 1]], pages)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            for use in (store.store, store.load):
                with pytest.raises(RequestError, match="the process that this one was forked from has it"):
                    use([1], [[0, 1]], pages)
            store.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(MachineError, match="it is open already"):
        kv.open(store.name)
    # Though a process that was forked has the file, too.
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        store.close()
        dropped = kv.open(store.name)
        del dropped
        with kv.open(store.name) as again:
            assert again.keys() == [1]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.promise("KVC-46")
def test_a_store_that_cannot_be_made_leaves_nothing_and_a_device_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    name = tmp_path / "s"
    shape: dict[str, Any] = {"layers": 1, "page_bytes": 4096, "blocks": 2}
    for more, said in (
        ({"path": "bogus"}, "no such path"), ({"prefer": "bogus"}, "no such preference"),
        ({"layers": 1 << 30, "page_bytes": 1 << 30, "blocks": 8}, "more than a file holds"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=said):
            kv.create(name, **(shape | more))
        assert not name.exists()
    # As a device: the superblock of btrfs, and what mdadm writes at the end.
    size = 4 << 20
    for at in (65600, size - 100):
        name.write_bytes(bytes(at) + b"held" + bytes(size - at - 4))
        before = name.read_bytes()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv.stat, "S_ISBLK", lambda mode: True)
            with pytest.raises(RequestError, match="the device isn't empty"):
                kv.create(name, **shape)
        assert name.read_bytes() == before
    for key, said in ((10**5000, "is a number of 16610 bits"), (None, "of type NoneType")):
        with pytest.raises(RequestError, match=said):
            kv._key_bytes(key)  # type: ignore[arg-type]
    assert kv._key_of(kv._key_bytes("half \ud83d")) == "half \ud83d"


@pytest.mark.promise("KVC-45")
def test_what_does_not_fit_is_refused_before_anything_is_touched(store: kv.Store, tmp_path: Path) -> None:
    pages = kv.Pages(filled(3))
    store.store([1], [[0, 1]], pages)
    for keys, tables, to, said in (
        ([1], [[0, PAGES]], pages, f"page {PAGES} isn't one of {PAGES}"),
        ([1], [[0, -1]], pages, "page -1 isn't one"),
        ([1], [[5, 5]], pages, "a page is named twice"),
        ([1], [[1]], pages, "of shape"),
        ([1], [[0.5, 1]], pages, "float64"),
        ([1, 1], [[0, 1], [2, 3]], pages, "a key is named twice"),
        ([1], [[0, 1]], kv.Pages(np.zeros((LAYERS, PAGES, 512), np.uint8)), "bytes a page"),
    ):
        for move in (store.load, store.store):
            with pytest.raises(RequestError, match=said):
                move(keys, tables, to)
    for keys, said in (([1.5], "of type float"), (["x" * 70], "takes 71 bytes")):
        with pytest.raises(RequestError, match=said):
            store.store(keys, [[0, 1]], pages)
    with pytest.raises(RequestError, match="holds 12"):
        store.store(range(13), np.arange(26).reshape(13, 2), pages)
    with pytest.raises(MachineError, match="it is open already"):
        kv.open(store.name)
    with pytest.raises(RequestError, match="a file is there"):
        kv.create(store.name, layers=1, page_bytes=1, blocks=1)
    with pytest.raises(RequestError, match="layers=0"):
        kv.create(tmp_path / "t", layers=0, page_bytes=1, blocks=1)
    for content in (b"", b"{}", b'{"schema": "forebay.kv/1", "layers": 3}', b"[" * 4096, bytes(8192)):
        (tmp_path / "u").write_bytes(content)
        with pytest.raises(RequestError, match="doesn't begin with forebay.kv/1"):
            kv.open(tmp_path / "u")
    with pytest.raises(RequestError, match="no layers × pages"):
        kv.Pages(bytearray(100))
    assert store.keys() == [1]
