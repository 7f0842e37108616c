"""`forebay.feed.Loader` and `forebay feed` on host memory: order, resume, lifetime of batches, errors, data sets."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forebay import feed
from forebay.errors import RequestError, RunError
from forebay.feed.loader import ranks
from hypothesis import given
from hypothesis import strategies as st
from properties import examples, parametrized

Forebay = Callable[..., subprocess.CompletedProcess[str]]

ROWS, ROW = 1009, np.dtype([("label", "<f4"), ("dense", "<f4", (13,)), ("sparse", "<i4", (26,))])


@pytest.fixture(scope="module")
def table() -> Any:
    made = np.zeros(ROWS, ROW)
    made["label"] = np.arange(ROWS)
    made["dense"] = np.random.default_rng(1).random((ROWS, 13))
    made["sparse"] = np.random.default_rng(2).integers(0, 1 << 30, (ROWS, 26))
    return made


@pytest.fixture(scope="module")
def path(table: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("feed") / "rows.bin"
    table.tofile(made)
    return made


def labels(loader: feed.Loader) -> list[int]:
    return [int(n) for batch in loader for n in np.from_dlpack(batch["label"])]


def calls_to_read() -> int:
    """System calls of this process that read, so far."""
    return int(re.search(r"syscr: (\d+)", Path("/proc/self/io").read_text())[1])  # type: ignore[index]


def summed(*hashes: str) -> str:
    return f"{sum(int(part, 16) for part in hashes) % (1 << 64):016x}"


# Order ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("FEED-1")
@pytest.mark.parametrize("shuffle", ["rows", "blocks", "none"])
def test_an_epoch_has_each_sample_once_as_its_file_has_it(path: Path, table: Any, shuffle: str) -> None:
    loader = feed.Loader(feed.rows(path, ROW), 64, shuffle=shuffle, seed=3)
    seen = []
    for batch in loader:
        assert list(batch) == ["label", "dense", "sparse"]
        numbers = np.from_dlpack(batch["label"]).astype(int)
        assert (np.from_dlpack(batch["dense"]) == table["dense"][numbers]).all()
        assert (np.asarray(batch["sparse"]) == table["sparse"][numbers]).all()
        assert list(numbers) == loader.samples_at(batch.position, batch.rows)
        seen += list(numbers)
    assert len(loader) == -(-ROWS // 64) and sorted(seen) == list(range(ROWS))
    assert (seen == list(range(ROWS))) == (shuffle == "none")


@pytest.mark.promise("FEED-1")
@pytest.mark.parametrize("cache", ["fill", "bypass"])
@pytest.mark.parametrize("columns", [None, ["number", "text"]])
def test_blocks_that_are_not_cached_are_read_whole(tmp_path: Path, columns: list[str] | None, cache: str) -> None:
    row = np.dtype([("number", "<u4"), ("other", "<u4"), ("text", "<u4", (300,))])
    made = np.zeros(12_000, row)
    made["number"], made["text"] = np.arange(len(made)), np.arange(len(made))[:, None]
    cuts = [0, 7000, 7001, len(made)]
    files = [tmp_path / str(part) for part in range(3)]
    for file, begin, end in zip(files, cuts[:-1], cuts[1:], strict=True):
        with file.open("wb") as handle:
            handle.write(b"a header" + made[begin:end].tobytes())
            handle.flush()
            os.fsync(handle.fileno())
    warm = feed.Loader(feed.rows(files, row, start=8), 777, shuffle="blocks", seed=3)
    assert sum(batch.rows for batch in warm) == len(made)
    for forgotten in ([0], [0, 1, 2]):
        loader = feed.Loader(feed.rows(files, row, start=8), 777, shuffle="blocks", seed=3, columns=columns, cache=cache)
        for file in forgotten:
            with files[file].open("rb") as handle:
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = calls_to_read()
        for batch in loader:
            numbers = np.array(loader.samples_at(batch.position, batch.rows, batch.epoch))
            assert (np.from_dlpack(batch["number"]) == numbers).all()
            assert (np.from_dlpack(batch["text"]) == numbers[:, None]).all()
        assert columns is not None or loader.record()["feed"]["hash"] == warm.hash
        # A row isn't a read of its own.
        assert calls_to_read() - before < len(made) / 4
        if cache == "bypass" and columns is None:
            with files[0].open("rb") as handle:
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before = calls_to_read()
            ranks = [
                feed.Loader(feed.rows(files, row, start=8), 99, shuffle="blocks", seed=3, rank=rank, world=2, cache=cache)
                for rank in range(2)
            ]
            assert sum(batch.rows for rank in ranks for batch in rank) == len(made)
            assert calls_to_read() - before < len(made) / 4
            assert summed(*(rank.hash for rank in ranks)) == warm.hash
            for rank in ranks:
                rank.close()
        files[2].touch()
        with pytest.raises(RunError, match="changed while it was read"):
            list(loader)
        loader.close()


@pytest.mark.promise("FEED-18")
@pytest.mark.filterwarnings("ignore::forebay.feed.UncachedRowsWarning")
@pytest.mark.parametrize("shuffle", ["rows", "blocks", "none"])
@pytest.mark.parametrize("row_bytes", [912, 150_528])
def test_what_is_not_cached_is_read_into_the_page_cache_once_where_it_fits(
    tmp_path: Path, shuffle: str, row_bytes: int
) -> None:
    file, count = tmp_path / "rows", 12_000_000 // row_bytes
    content = np.random.default_rng(5).integers(0, 256, (count, row_bytes), np.uint8)
    with file.open("wb") as handle:
        handle.write(content.tobytes())
        handle.flush()
        os.fsync(handle.fileno())
    data, batch = feed.rows(file, np.dtype((np.uint8, (row_bytes,)))), max(7, 500_000 // row_bytes)

    def forgotten(**given: Any) -> feed.Loader:
        with file.open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return feed.Loader(data, batch, shuffle=shuffle, seed=2, **given)

    def epoch(*loaders: feed.Loader) -> None:
        for batches in zip(*loaders, strict=True):
            for loader, got in zip(loaders, batches, strict=True):
                numbers = loader.samples_at(got.position, got.rows, got.epoch)
                assert (np.from_dlpack(got["data"]) == content[numbers]).all()

    past = forgotten(cache="bypass")
    if past.cached_share():
        pytest.skip("the file system doesn't let go of cached files")
    epoch(past)
    hashes = {past.hash}
    past.close()
    for world in (1, 2):
        # By long reads samples come past the cache in a loader's first epoch.
        later = row_bytes > 100_000 or (shuffle != "rows" and world == 1)
        loaders = [forgotten(rank=rank, world=world) for rank in range(world)]
        if "be filled by mapped ranges" in loaders[0].cold():
            pytest.skip(loaders[0].cold())
        epoch(*loaders)
        hashes.add(summed(*(loader.hash for loader in loaders)))
        if later:
            epoch(*loaders)
        assert loaders[0].cached_share() == 1.0
        said = loaders[0].record()["feed"]["cold"]
        assert said.startswith("fill: " + "from the loader's second epoch on; " * later + "the files have")
        for loader in loaders:
            loader.close()
    assert len(hashes) == 1


@pytest.mark.promise("FEED-2")
@examples(8)
@given(
    batch=st.integers(20, 900), seed=st.integers(0, 1 << 40), prefetch=st.integers(1, 9), world=st.integers(1, 5),
    files=st.integers(1, 9), shuffle=st.sampled_from(["rows", "blocks", "none"]),
)  # fmt: skip
def test_ranks_depths_and_files_change_nothing_of_an_epoch(
    path: Path, tmp_path_factory: pytest.TempPathFactory, batch: int, seed: int, prefetch: int, world: int, files: int,
    shuffle: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("parts")
    content, cuts = path.read_bytes(), sorted({ROWS * n // files for n in range(files + 1)})
    for number, (begin, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        (folder / f"{number:02}").write_bytes(content[begin * ROW.itemsize : end * ROW.itemsize])
    data = feed.rows(folder, ROW)
    whole = feed.Loader(data, 1000, shuffle=shuffle, seed=seed)
    expected = labels(whole)
    given: dict[int, list[int]] = {}
    hashes = []
    for rank in range(world):
        loader = feed.Loader(data, batch, shuffle=shuffle, seed=seed, prefetch=prefetch, rank=rank, world=world)
        for got in loader:
            given.setdefault(got.position, []).extend(int(n) for n in np.from_dlpack(got["label"]))
        hashes.append(loader.hash)
    assert [n for _, batch_ in sorted(given.items()) for n in batch_] == expected
    assert summed(*hashes) == whole.hash


@pytest.mark.long
@pytest.mark.promise("FEED-3")
@examples(8)
@given(data=st.data())
def test_a_run_goes_on_exactly_where_it_was_ended_with_any_number_of_ranks(path: Path, data: Any) -> None:
    of = feed.rows(path, ROW)
    shuffle, batch = data.draw(st.sampled_from(["rows", "blocks"])), data.draw(st.integers(5, 80))
    whole = feed.Loader(of, 500, shuffle=shuffle, seed=9)
    expected, state, seen, hashes = labels(whole), None, [], []
    for turn in range(3):
        world = data.draw(st.integers(1, 4))
        steps = data.draw(st.integers(0, 5)) if turn < 2 else 1 << 30
        states = []
        for rank in range(world):
            loader = feed.Loader(of, batch, shuffle=shuffle, seed=9, rank=rank, world=world)
            if state is not None:
                loader.load_state_dict(state)
            for _, got in zip(range(steps), loader, strict=False):
                seen += [int(n) for n in np.from_dlpack(got["label"])]
            hashes.append(loader.hash)
            states.append(loader.state_dict())
        assert all(other == states[0] for other in states)
        state = json.loads(json.dumps(states[0]))
        assert len(json.dumps(state)) < 1024
        if state["epoch"]:
            break
    assert sorted(seen) == sorted(expected) and summed(*hashes) == whole.hash


@pytest.mark.promise("FEED-3")
def test_epochs_differ_and_an_iteration_that_was_left_begins_anew(path: Path) -> None:
    loader = feed.Loader(feed.rows(path, ROW), 100, seed=1)
    first, second = labels(loader), labels(loader)
    assert loader.epoch == 2 and sorted(first) == sorted(second) and first != second
    loader.set_epoch(0)
    next(iter(loader))
    assert labels(loader) == first
    dropped = feed.Loader(feed.rows(path, ROW), 100, seed=1, drop_last=True, world=3, rank=2)
    assert len(dropped) == ROWS // 300 and len(labels(dropped)) == 100 * len(dropped)


@pytest.mark.promise("FEED-3")
@parametrized(
    ("change", "said"),
    [
        ({"seed": 2}, "Loader(…, seed=2)"),
        ({"data": "0" * 16}, "the files"),
        ({"shuffle": "blocks"}, "shuffle="),
        ({"version": 9}, "state_dict"),
        ({"position": ROWS + 1}, f"{ROWS}"),
        ({"epoch": "x"}, "whole number"),
        ({"epoch": (1 << 64) - 1}, "is beyond 9223372036854775807"),
    ],
    kept=(0, 4),
)
def test_a_state_of_something_else_is_refused(path: Path, change: dict[str, Any], said: str) -> None:
    loader = feed.Loader(feed.rows(path, ROW), 100)
    with pytest.raises(RequestError, match=re.escape(said)):
        loader.load_state_dict({**loader.state_dict(), **change})
    assert len(labels(loader)) == ROWS


@pytest.mark.promise("FEED-4")
def test_what_ranks_must_have_alike_differs_with_files_seed_order_batch_and_end(path: Path, tmp_path: Path) -> None:
    (tmp_path / "shorter").write_bytes(path.read_bytes()[: -ROW.itemsize])
    of = feed.rows(path, ROW)
    first, second = (feed.Loader(of, 8, rank=rank, world=2, prefetch=rank + 1) for rank in range(2))
    changes: list[dict[str, Any]] = [{"seed": 1}, {"shuffle": "none"}, {"batch_size": 9}, {"drop_last": True}]
    others = [
        feed.Loader(feed.rows(tmp_path / "shorter", ROW), 8),
        *(feed.Loader(of, **{"batch_size": 8, **change}) for change in changes),
    ]
    assert first.agreement == second.agreement
    assert len({loader.agreement for loader in (first, *others)}) == 6


@pytest.mark.promise("FEED-4")
def test_rank_and_size_come_from_the_launcher() -> None:
    torchrun, slurm = {"RANK": "1", "WORLD_SIZE": "4"}, {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}
    mpi = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}
    assert ranks(0, 2, torchrun) == (0, 2)
    assert ranks(environment=torchrun | mpi | slurm) == (1, 4)
    assert ranks(environment=mpi | slurm) == (5, 6)
    assert ranks(environment=slurm) == (2, 3)
    assert ranks(environment={"RANK": "1"}) == (0, 1)
    for wrong in ((2, 2), (0, None), (None, 1), (-1, 2)):
        with pytest.raises(RequestError):
            ranks(*wrong)


# Batches -------------------------------------------------------------------------------------------------


@pytest.mark.promise("FEED-5")
def test_a_batch_stays_what_it_was_for_as_long_as_an_array_of_it_lives(path: Path) -> None:
    loader = feed.Loader(feed.rows(path, ROW), 100, seed=4, prefetch=1)
    kept, copies = [], []
    for number, batch in enumerate(loader):
        array = np.from_dlpack(batch["sparse"]) if number % 2 else np.asarray(batch["sparse"])
        kept.append(array)
        copies.append(array.copy())
        del batch, array
    loader.close()
    del loader
    gc.collect()
    assert all((array == copy).all() for array, copy in zip(kept, copies, strict=True))


@pytest.mark.promise("FEED-5")
def test_whoever_keeps_too_many_batches_is_told_and_goes_on_once_they_are_gone(path: Path) -> None:
    slot = -(-100 * ROW.itemsize // 4096) * 4096
    loader = feed.Loader(feed.rows(path, ROW), 100, pin_limit=4 * slot, prefetch=1)
    iterator, kept = iter(loader), []
    with pytest.raises(RequestError, match="keeps 4 batches") as reported:
        kept.extend(iterator)
    assert len(kept) == 4 and loader.record()["feed"]["memory_bytes"] == 4 * slot
    assert f"pin_limit={7 * slot}" in reported.value.next
    kept.clear()
    assert sum(1 for _ in iterator) == -(-ROWS // 100) - 4 and loader.record()["feed"]["samples"] > 400
    with pytest.raises(RequestError, match="two batches"):
        feed.Loader(feed.rows(path, ROW), 100, pin_limit=slot)


@pytest.mark.promise("FEED-5")
def test_memory_doesn_t_grow_with_the_epoch(path: Path) -> None:
    loader = feed.Loader(feed.rows(path, ROW), 10, prefetch=3)
    for batch in loader:
        del batch
    slots = loader.record()["feed"]["memory_bytes"] // 4096
    assert slots <= 5


@pytest.mark.promise("FEED-6")
def test_capsules_that_nobody_takes_and_arrays_with_a_version_are_let_go(path: Path) -> None:
    loader = feed.Loader(feed.rows(path, ROW), 100, prefetch=1, pin_limit=3 * 20480)
    for batch in loader:
        column = batch["dense"]
        assert "dltensor" in repr(column.__dlpack__()) and "dltensor_versioned" in repr(column.__dlpack__(max_version=(1, 0)))
        array = np.from_dlpack(column)
        assert array.shape == (batch.rows, 13) == column.shape and array.strides == (ROW.itemsize, 4)
        with pytest.raises(RequestError, match="without a copy"):
            column.__dlpack__(copy=True)
        del batch, column, array
    assert not hasattr(next(iter(loader))["label"], "__cuda_array_interface__")


@pytest.mark.promise("FEED-6")
def test_only_the_named_columns_are_read(path: Path, table: Any) -> None:
    of = feed.rows(path, ROW)
    loader = feed.Loader(of, 128, columns=["sparse", "label"], seed=5)
    for batch in loader:
        numbers = np.from_dlpack(batch["label"]).astype(int)
        assert list(batch) == ["label", "sparse"] and batch["sparse"].shape == (batch.rows, 26)
        assert (np.from_dlpack(batch["sparse"]) == table["sparse"][numbers]).all()
    record = loader.record()
    assert record["feed"]["sample_bytes"] == 108 and record["result"]["bytes"] == 108 * ROWS
    assert loader.data_hash == feed.Loader(of, 1).data_hash
    ends = feed.Loader(of, 100, columns=["label", "dense"])
    assert ends.record()["feed"]["sample_bytes"] == 56 and len(ends.dataset.columns) == 1
    for wrong in (["lable"], []):
        with pytest.raises(RequestError, match="label, dense, sparse"):
            feed.Loader(of, 100, columns=wrong)


# Data sets -----------------------------------------------------------------------------------------------


@pytest.mark.promise("FEED-7")
@examples(12)
@given(
    st.lists(st.sampled_from(["<f4", "<f8", "<i2", "|u1", "|b1", "<c8", "S3", "V5", "<i8"]), min_size=1, max_size=6),
    st.sampled_from(["rows", "none"]),
)
def test_any_record_is_handed_out_as_numpy_reads_it(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], shuffle: str
) -> None:
    dtype = np.dtype([(f"f{n}", kind, (2,) if n % 2 else ()) for n, kind in enumerate(kinds)])
    rows = np.frombuffer(np.random.default_rng(3).bytes(dtype.itemsize * 300), dtype)
    name = tmp_path_factory.mktemp("kinds") / "x"
    rows.tofile(name)
    loader = feed.Loader(feed.rows(name, dtype), 77, shuffle=shuffle)
    for batch in loader:
        own = rows[loader.samples_at(batch.position, batch.rows)]
        for field in dtype.names or ():
            assert np.ascontiguousarray(np.asarray(batch[field])).tobytes() == np.ascontiguousarray(own[field]).tobytes(), field


@pytest.mark.promise("FEED-7")
def test_npy_and_safetensors_files_say_what_they_hold(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    x, y = np.random.default_rng(1).random((500, 3, 4)).astype("f4"), np.arange(500, dtype="i8")
    for number, part in enumerate(np.split(x, [200])):
        np.save(tmp_path / f"{number}.npy", part)
        safetensors.save_file({"x": part, "y": np.split(y, [200])[number]}, tmp_path / f"{number}.safetensors")
    for batch in feed.Loader([tmp_path / "0.npy", tmp_path / "1.npy"], 64, shuffle="none"):
        assert (np.from_dlpack(batch["data"]) == x[batch.position : batch.position + batch.rows]).all()
    loader = feed.Loader(feed.safetensors(tmp_path), 64)
    for batch in loader:
        own = np.from_dlpack(batch["y"])
        assert (np.from_dlpack(batch["x"]) == x[own]).all() and list(own) == loader.samples_at(batch.position, batch.rows)
    # Beside tensors of other lengths those of samples are named.
    safetensors.save_file({"x": x, "mean": x.mean(axis=0), "one": np.array(3.0)}, tmp_path / "more.safetensors")
    with pytest.raises(RequestError, match=r"(?s)mean 3, one none, x 500.*columns="):
        feed.Loader(tmp_path / "more.safetensors", 64)
    (batch,) = feed.Loader(tmp_path / "more.safetensors", 500, shuffle="none", columns=["x"])
    assert (np.from_dlpack(batch["x"]) == x).all()
    with pytest.raises(RequestError, match="it has no tensor 'z'"):
        feed.safetensors(tmp_path / "more.safetensors", ["z"])
    with open(tmp_path / "more.safetensors", "ab") as file:
        file.write(b"\0")
    with pytest.raises(RequestError, match=r"more\.safetensors: its tensors end at byte"):
        feed.safetensors(tmp_path / "more.safetensors")
    # NumPy's longest floats have no type that others know.
    np.save(tmp_path / "long.npy", np.arange(3, dtype=np.longdouble))
    (batch,) = feed.Loader(tmp_path / "long.npy", 3, shuffle="none")
    assert np.from_dlpack(batch["data"]).tobytes() == np.arange(3, dtype=np.longdouble).tobytes()


@pytest.mark.promise("FEED-8")
def test_what_is_no_data_set_is_refused_with_the_reason(tmp_path: Path, path: Path) -> None:
    (tmp_path / "odd").write_bytes(bytes(1000))
    np.save(tmp_path / "a.npy", np.zeros((4, 2)))
    np.save(tmp_path / "b.npy", np.zeros((4, 3)))
    np.save(tmp_path / "cut.npy", np.zeros((400, 3)))
    np.save(tmp_path / "fortran.npy", np.zeros((4, 3), order="F"))
    os.truncate(tmp_path / "cut.npy", 500)
    (tmp_path / "junk.npy").write_bytes(b"<!DOCTYPE html>")
    (tmp_path / "junk.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "none").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([{}, 1], object))
    np.save(tmp_path / "nothing.npy", np.zeros((3, 0)))
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.tar")
    at = tmp_path.joinpath
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: feed.rows(at("odd"), np.dtype(("u1", 912))), "1 rows from byte 0 on, and 88 bytes more"),
        (lambda: feed.rows(at("missing"), ROW), "no such file"),
        (lambda: feed.rows(at("empty"), ROW), "it has none"),
        (lambda: feed.rows([], ROW), "the list of files is empty"),
        (lambda: feed.rows(path, "no dtype"), "no dtype"),
        (lambda: feed.rows(path, np.dtype("O")), "plain numbers"),
        (lambda: feed.rows(path, np.dtype(">f4")), "big-endian"),
        (lambda: feed.rows(path, {"x": ("f4", (0,))}), "no bytes"),
        (lambda: feed.npy([at("a.npy"), at("b.npy")]), "one dtype and shape"),
        (lambda: feed.npy(at("cut.npy")), "its header promises 400"),
        (lambda: feed.npy(at("fortran.npy")), "Fortran"),
        (lambda: feed.npy(at("junk.npy")), "numpy.save"),
        (lambda: feed.safetensors(at("junk.safetensors")), "git lfs pull"),
        (lambda: feed.Loader(path, 10), "doesn't say how long a sample is"),
        (lambda: feed.Loader(feed.rows(at("none"), ROW), 10), "no sample"),
        (lambda: feed.Loader(feed.rows(path, ROW), 0), "below 1"),
        (lambda: feed.Loader(feed.rows(path, ROW), 10, shuffle="all"), "rows, blocks, none"),
        (lambda: feed.Loader(feed.rows(path, ROW), 10, device="tpu"), "cuda:1"),
        (lambda: feed.Loader(feed.rows(path, ROW), 1 << 60), "address space"),
        (lambda: feed.Loader(feed.rows(path, ROW), 1 << 70), "0 to 2**64 - 1"),
        (lambda: feed.Loader(feed.rows(path, ROW), 10, columns=3), "a list of names"),
        (lambda: feed.Loader(feed.rows(path, ROW), 10, transform=3), "a function of a batch"),
        (lambda: feed.rows(path, None), "None is no type of a row"),
        (lambda: feed.rows(None, ROW), "of type NoneType"),
        (lambda: feed.Loader(np.zeros((4, 2)), 10), "of type ndarray"),
        (lambda: feed.rows(at("pipe"), ROW), "it is a pipe"),
        (lambda: feed.Loader(at("pipe.tar"), 10), "it is a pipe"),
        (lambda: feed.npy(at("objects.npy")), "objects.npy: its array holds objects"),
        (lambda: feed.npy(at("nothing.npy")), "nothing.npy: a row of its shape (3, 0)"),
    ]
    for make, said in wrong:
        with pytest.raises(RequestError, match=re.escape(said)):
            make()


# Faults --------------------------------------------------------------------------------------------------


@pytest.mark.promise("FEED-9")
@pytest.mark.parametrize("fault", ["rewritten", "cut"])
def test_a_file_that_changes_under_an_epoch_is_an_error_that_names_it(tmp_path: Path, table: Any, fault: str) -> None:
    name = tmp_path / "rows.bin"
    table.tofile(name)
    loader = iter(feed.Loader(feed.rows(name, ROW), 50, prefetch=1))
    next(loader)
    if fault == "cut":
        os.truncate(name, 100 * ROW.itemsize)
    else:
        with name.open("r+b") as file:
            file.write(b"x")
        os.utime(name, (1, 1))
    with pytest.raises(RunError, match="(?s)rows.bin.*changed.*a new Loader"):
        for batch in loader:
            del batch


@pytest.mark.promise("FEED-9")
def test_a_file_whose_name_another_takes_is_an_error_and_one_that_is_deleted_is_read_to_its_end(
    tmp_path: Path, table: Any
) -> None:
    name, other = tmp_path / "rows.bin", tmp_path / "other.bin"
    for fault in ("replaced", "deleted"):
        table.tofile(name)
        table.tofile(other)
        loader = iter(feed.Loader(feed.rows(name, ROW), 50, prefetch=1))
        first = next(loader)
        if fault == "replaced":
            other.rename(name)
            with pytest.raises(RunError, match="rows.bin: another file has taken its name"):
                list(loader)
        else:
            name.unlink()
            assert first.rows + sum(batch.rows for batch in loader) == len(table)


@pytest.mark.promise("FEED-9")
def test_a_file_that_changed_since_its_data_set_was_made_is_refused(tmp_path: Path, table: Any) -> None:
    path = tmp_path / "x"
    for change in (lambda: os.truncate(path, 40 * ROW.itemsize), lambda: os.utime(path, ns=(0, 0)), path.touch):
        table[:50].tofile(path)
        of = feed.rows(path, ROW)
        assert feed.Loader(of, 8).take().rows == 8
        time.sleep(0.02)
        change()
        with pytest.raises(RequestError, match=f"{re.escape(str(path))}: it changed"):
            feed.Loader(of.only(["label"]), 8)


@pytest.mark.promise("FEED-9")
def test_a_batch_is_larger_than_the_data(path: Path) -> None:
    (batch,) = feed.Loader(feed.rows(path, ROW), 10 * ROWS)
    assert batch.rows == ROWS
    assert list(feed.Loader(feed.rows(path, ROW), 10 * ROWS, drop_last=True)) == []
    empty = feed.Loader(feed.rows(path, ROW), ROWS - 1, rank=2, world=3)
    assert [batch.rows for batch in empty] == [ROWS // 3]


@pytest.mark.promise("FEED-10")
def test_no_thread_is_left_and_a_child_is_refused(path: Path) -> None:
    code = f"""
import os, sys, gc, numpy
from forebay import feed
def threads():
    # NumPy's come and go.
    names = [open(f"/proc/self/task/{{t}}/comm").read().strip() for t in os.listdir("/proc/self/task")]
    return [name for name in names if "forebay" in name]
loader = feed.Loader(feed.rows({str(path)!r}, numpy.dtype(("u1", 160))), 64)
batch = next(iter(loader))
assert threads()
child = os.fork()
if not child:
    try:
        loader.take()
    except Exception as error:
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
kept = numpy.from_dlpack(batch["data"])
del loader, batch
gc.collect()
assert not threads(), threads()
assert kept.shape == (64, 160)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("FEED-10")
def test_several_threads_take_batches_of_one_loader(path: Path) -> None:
    loader = feed.Loader(feed.rows(path, ROW), 7)
    iterator, seen, lock = iter(loader), [], threading.Lock()

    def take() -> None:
        with contextlib.suppress(StopIteration):
            while len(seen) < ROWS:
                numbers = [int(n) for n in np.from_dlpack(next(iterator)["label"])]
                with lock:
                    seen.extend(numbers)

    takers = [threading.Thread(target=take) for _ in range(4)]
    [t.start() for t in takers]
    [t.join() for t in takers]
    assert set(seen) == set(range(ROWS))


# Record and command --------------------------------------------------------------------------------------


@pytest.mark.promise("FEED-11")
def test_the_command_measures_the_loader_and_checks_what_it_hands_out(forebay: Forebay, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "feed.json"
    row = ["--row-bytes", str(ROW.itemsize), "--batch-size", "100", "--seed", "0"]
    done = forebay("feed", path, *row, "--verify", "--epochs", "2", "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record == json.loads(out.read_text()) and record["schema"] == "forebay.run/1"
    reported, result = record["feed"], record["result"]
    assert (reported["samples"], reported["verified"], reported["order"]) == (2 * ROWS, 2 * ROWS, "rows")
    assert reported["batches"] == 2 * -(-ROWS // 100)
    ways = [record["path"][f"{way}_bytes"] for way in ("staged", "mapped", "direct")]
    assert result["bytes"] == 2 * ROWS * ROW.itemsize == sum(ways)
    assert 0 <= reported["input_wait_pct"] <= 100 and reported["samples_per_s"] > 0 and result["cpu"]["cpu_s_per_gib"] > 0
    loader = feed.Loader(feed.rows(path, np.dtype(("u1", ROW.itemsize))), 999, seed=0)
    assert sum(1 for _ in range(2) for _ in loader) and loader.hash == reported["hash"]
    said = forebay("feed", path, *row).stdout
    for line in ("samples/s", "of the time for a batch", "CPU-s/GiB", reported["data"]):
        assert line in said
    page = tmp_path / "page.html"
    assert forebay("report", out, "-o", page, "--no-charts").returncode == 0 and "Loaders" in page.read_text()


@pytest.mark.promise("FEED-11")
def test_a_sample_that_differs_from_its_file_is_found(path: Path, table: Any, tmp_path: Path) -> None:
    from forebay.feed.check import Check

    loader = feed.Loader(feed.rows(path, ROW), 100)
    check, batch = Check(loader.dataset), next(iter(loader))
    samples = loader.samples_at(0, 100)
    assert check.differences(batch, samples) == []
    np.from_dlpack(batch["dense"])[7, 3] += 1
    where = f"{ROW.itemsize} bytes from {samples[7] * ROW.itemsize}"
    assert check.differences(batch, samples) == [f"{path}: {where} differ from the file"]


@pytest.mark.promise("FEED-11")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--row-bytes 912"),
        (["--row-bytes", "0"], "--row-bytes 912"),
        (["--row-bytes", "77"], "rows of 77 bytes"),
        (["--row-bytes", "160", "--epochs", "0"], "--epochs 1"),
        (["--row-bytes", "160", "--rank", "1"], "try: --rank 0 --world 1"),
        (["--row-bytes", "160", "--rank", "2", "--world", "2"], "try: --rank 1"),
        (["--row-bytes", "160", "--prefetch", "2000"], "try: --prefetch 16"),
        (["--row-bytes", "160", "--pin-limit", "4k", "--batch-size", "100"], "try: --pin-limit "),
        (["--start", "4k"], "--row-bytes 912 --start 4k"),
        (["--row-bytes", "160", "--columns", "x"], "data"),
        (["--row-bytes", "160", "--batch-size", "100k", "--drop-last"], "a whole number"),
        (["--row-bytes", "160", "--batch-size", "100000", "--drop-last"], "nothing is left"),
        (["--row-bytes", "160", "--device", "gpu0"], "try: --device cpu; or pinned, cuda, cuda:1"),
    ],
)
def test_flags_that_don_t_fit_are_refused_by_name(forebay: Forebay, path: Path, flags: list[str], said: str) -> None:
    done = forebay("feed", path, *flags)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.promise("FEED-11")
def test_nothing_to_read_costs_little_and_has_a_record(forebay: Forebay) -> None:
    done = forebay("feed", "nil:1g", "--row-bytes", "4k", "--batch-size", "64", "--json")
    record = json.loads(done.stdout)
    assert done.returncode == 0 and record["feed"]["batches"] == 4096 and record["result"]["bytes"] == 0


@pytest.mark.promise("FEED-12")
def test_without_a_gpu_its_memory_is_refused_by_what_is_missing(forebay: Forebay, path: Path) -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has one")
    done = forebay("feed", path, "--row-bytes", "160", "--device", "cuda")
    assert done.returncode == 3 and "GPU 0" in done.stderr and "--device cpu needs none" in done.stderr, done.stderr
