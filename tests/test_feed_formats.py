"""Formats in a loader: shards of WebDataset, Parquet and whole files, against those that write and read them."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forebay import _core, feed
from forebay.errors import RequestError, RunError
from forebay.feed.check import check_of
from properties import parametrized

Forebay = Callable[..., subprocess.CompletedProcess[str]]

KINDS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
LONG = "folder/" * 30


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def shard(path: Path, samples: dict[str, dict[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as archive:
        for key, fields in samples.items():
            for field, content in fields.items():
                add(archive, f"{key}.{field}", content)
    return path


@pytest.fixture(scope="module")
def content() -> dict[str, dict[str, bytes]]:
    draw = random.Random(1)
    return {
        f"{LONG if n % 50 == 7 else ''}{n:05}": {"bin": draw.randbytes(draw.randrange(0, 3000)), "cls": b"%d" % n}
        for n in range(150)
    }


@pytest.fixture(scope="module")
def shards(content: dict[str, dict[str, bytes]], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three shards of 20, 50 and 80 samples, each of another kind of header."""
    folder, items, begin = tmp_path_factory.mktemp("shards"), list(content.items()), 0
    made = []
    for number, count in enumerate((20, 50, 80)):
        # ustar has no room for the long names.
        kind = KINDS[1 + number % 2]
        made.append(shard(folder / f"{number}.tar", dict(items[begin : begin + count]), kind))
        begin += count
    return made


def handed_out(loader: Any) -> list[tuple[int, bytes]]:
    return [(int(bytes(c)), bytes(b)) for batch in loader for c, b in zip(batch["cls"], batch["bin"], strict=True)]


def expected(content: dict[str, dict[str, bytes]]) -> list[tuple[int, bytes]]:
    return [(int(fields["cls"]), fields["bin"]) for fields in content.values()]


@pytest.mark.promise("FEED-14")
@pytest.mark.parametrize("shuffle", ["rows", "blocks", "none"])
def test_each_sample_of_a_shard_comes_once_and_whole(shards: list[Path], content: Any, shuffle: str) -> None:
    loader = feed.Loader(shards, 7, shuffle=shuffle, seed=3)
    first, second = handed_out(loader), handed_out(loader)
    assert len(loader) == 22
    assert sorted(first) == sorted(second) == expected(content)
    assert (first == expected(content)) == (shuffle == "none")
    assert (first == second) == (shuffle == "none")


@pytest.mark.promise("FEED-14")
def test_a_batch_is_one_buffer_and_offsets(shards: list[Path], content: Any) -> None:
    batch = next(iter(feed.Loader(shards, 7, shuffle="none")))
    wanted = [fields["bin"] for fields in list(content.values())[:7]]
    assert bytes(batch["bin"].data) == b"".join(wanted)
    assert batch["bin"].offsets.tolist() == np.cumsum([0, *map(len, wanted)]).tolist()
    assert list(batch) == ["bin", "cls"] and batch.rows == 7 and bytes(batch["cls"][-1]) == b"6"
    with pytest.raises(IndexError):
        batch["bin"][7]


@pytest.mark.promise("FEED-14")
@parametrized(("before", "after"), [(1, 1), (2, 4), (4, 3)], kept=(1,))
def test_a_stream_of_shards_goes_on_exactly_with_any_number_of_ranks(shards: list[Path], before: int, after: int) -> None:
    def loaders(world: int) -> list[feed.Loader]:
        return [feed.Loader(shards, 3, seed=5, rank=rank, world=world) for rank in range(world)]

    alone = feed.Loader(shards, 3, seed=5)
    whole = sorted(handed_out(alone))
    begun, got = loaders(before), []
    for _ in range(4):
        got += [c for loader in begun for c in map(bytes, loader.take()["cls"])]
    state = begun[0].state_dict()
    assert len(repr(state)) < 1024 and state["position"] == 12 * before
    others = loaders(after)
    for loader in others:
        loader.load_state_dict(state)
        got += [c for batch in loader for c in map(bytes, batch["cls"])]
    assert sorted(map(int, got)) == [number for number, _ in whole]
    assert sum(int(loader.hash, 16) for loader in begun + others) % (1 << 64) == int(alone.hash, 16)


@pytest.mark.promise("FEED-14")
def test_samples_that_differ_in_their_fields_are_refused_or_read_by_column(tmp_path: Path) -> None:
    made = shard(tmp_path / "odd.tar", {"0": {"jpg": b"a", "cls": b"1"}, "1": {"jpg": b"bc"}})
    with pytest.raises(RequestError, match=r"sample 1 of .*odd\.tar: it has jpg, .*jpg, cls"):
        feed.Loader(made, 1)
    loader = feed.Loader(made, 2, shuffle="none", columns=["jpg"], transform=lambda batch: [bytes(b) for b in batch["jpg"]])
    assert list(loader) == [[b"a", b"bc"]]
    with pytest.raises(RequestError, match="in host memory"):
        feed.Loader(made, 1, columns=["jpg"], device="cuda:0")


@pytest.mark.promise("FEED-14")
def test_fields_of_shards_are_in_lower_case_and_what_makes_no_sample_is_told_with_its_shard(tmp_path: Path) -> None:
    made = shard(tmp_path / "upper.tar", {"0": {"JPG": b"a"}, "1": {"jpg": b"b"}})
    (batch,) = feed.Loader(made, 2, shuffle="none")
    assert [bytes(image) for image in batch["jpg"]] == [b"a", b"b"]
    twice = shard(tmp_path / "twice.tar", {"0": {"JPG": b"a", "jpg": b"b"}})
    with pytest.raises(RequestError, match=r"sample 0 of .*twice\.tar: it has two files \.jpg"):
        feed.webdataset(twice)
    with pytest.raises(RequestError, match=r"columns=\['jpg'\], .*--sort=name"):
        feed.webdataset(made, columns=["cls"])
    with pytest.raises(RequestError, match="nothing would be read"):
        feed.webdataset(made, columns=[])


@pytest.mark.promise("FEED-14")
def test_a_file_that_is_another_format_or_cut_off_is_told_so_whatever_its_name(tmp_path: Path, shards: list[Path]) -> None:
    packed = gzip.compress(shards[0].read_bytes())
    for name in ("a.tar.gz", "a.tar", "a.tfrecord", "a.npz"):
        wanted = "gzip -dk" if name.endswith(".gz") else "gzip -dc <"
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(RequestError, match=f"(?s)it is compressed by gzip.*{wanted}"):
            feed.Loader(tmp_path / name, 1)
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"x": np.arange(9)})
    parquet.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False)
    with pytest.raises(RequestError, match=r"it has no column z, of x\n  try: columns= of those"):
        feed.parquet(tmp_path / "a.parquet", ["z"])
    os.truncate(tmp_path / "a.parquet", 100)
    with pytest.raises(RequestError, match="(?s)doesn't end as a Parquet file.*the whole file"):
        feed.parquet(tmp_path / "a.parquet")


@pytest.mark.promise("FEED-14")
def test_a_folder_is_of_one_format_with_what_lies_beside(tmp_path: Path, shards: list[Path]) -> None:
    for number in range(2):
        tfrecords(tmp_path / f"train.tfrecord-0000{number}-of-00002", [b"a", b"bc"])
    (tmp_path / "README.md").write_text("two files")
    assert sorted(bytes(one) for batch in feed.Loader(tmp_path, 4) for one in batch["data"]) == [b"a", b"a", b"bc", b"bc"]
    images = tmp_path / "images"
    images.mkdir()
    for name in ("a.jpg", "b.JPEG", "c.Jpg", "LICENSE"):
        (images / name).write_bytes(name.encode())
    assert [bytes(one) for one in next(iter(feed.Loader(images, 3, shuffle="none")))["data"]] == [b"a.jpg", b"b.JPEG", b"c.Jpg"]
    shutil.copy(shards[0], images)
    with pytest.raises(RequestError, match="isn't of one format with .*WebDataset|isn't of one format with .*JPEG"):
        feed.Loader(images, 3)


@pytest.mark.promise("FEED-14")
def test_a_shard_that_is_cut_off_or_changes_is_an_error_that_names_it(tmp_path: Path, shards: list[Path]) -> None:
    whole = shards[1].read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:5000])
    with pytest.raises(RequestError, match=r"cut\.tar: at byte \d+: "):
        feed.Loader(tmp_path / "cut.tar", 4)
    changing = tmp_path / "changing.tar"
    changing.write_bytes(whole)
    loader = feed.Loader(changing, 4, prefetch=1)
    loader.take()
    state = loader.state_dict()
    os.truncate(changing, 10240)
    for _ in range(2):
        with pytest.raises(RunError, match="changing.tar"):
            loader.take()
    changing.unlink()
    with pytest.raises(RunError, match=r"changing\.tar: there is no such file; there was when the loader was made"):
        loader.take()
    assert loader.state_dict() == state


@pytest.mark.promise("FEED-14")
def test_damaged_indexes_are_errors_and_nothing_else(tmp_path: Path, shards: list[Path]) -> None:
    draw, whole = random.Random(11), bytearray(shards[0].read_bytes())
    path = tmp_path / "damaged.tar"
    for _ in range(150):
        damaged = bytearray(whole[: draw.randrange(1, len(whole))] if draw.random() < 0.3 else whole)
        for _ in range(draw.randrange(1, 8)):
            damaged[draw.randrange(min(len(damaged), 4096))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            members = _core.shard_index(os.fspath(path))
        except RequestError:
            continue
        assert all(offset + size <= len(damaged) for _, _, offset, size in members)


@pytest.mark.promise("FEED-14")
def test_shards_of_the_package_are_read_as_it_reads_them(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(os.fspath(tmp_path / "w.tar")) as writer:
        for n in range(20):
            writer.write({"__key__": f"{n:04}", "txt": "x" * n, "npy": np.arange(n)})
    theirs = [s for s in webdataset.WebDataset(os.fspath(tmp_path / "w.tar"), shardshuffle=False)]
    batch = feed.Loader(tmp_path / "w.tar", 20, shuffle="none").take()
    for field in ("txt", "npy"):
        assert [bytes(b) for b in batch[field]] == [sample[field] for sample in theirs]


@pytest.mark.promise("FEED-15")
def test_numbers_of_parquet_without_a_sign_or_of_16_bits_are_so_handed_out(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    count = np.arange(9)
    columns = {"u4": (count + 2**32 - 9).astype("u4"), "u8": count.astype("u8") + np.uint64(2**63), "h": (count / 8).astype("f2")}
    columns |= {"i4": (count - 2**31).astype("i4"), "i1": (count - 4).astype("i1"), "u2": (count + 65527).astype("u2")}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", compression="none", use_dictionary=False)
    (batch,) = feed.Loader(tmp_path / "a.parquet", 9, shuffle="none")
    for name, column in columns.items():
        got = np.from_dlpack(batch[name])
        # Parquet has no integers below 32 bits.
        assert got.dtype == {"i1": "i4", "u2": "u4"}.get(name, column.dtype) and (got == column).all(), name


@pytest.mark.long
@pytest.mark.promise("FEED-15")
def test_plain_columns_of_parquet_are_handed_out_as_pyarrow_reads_them(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    n, draw = 5000, np.random.default_rng(4)
    columns = {"i": draw.integers(-9, 9, n, np.int32), "l": draw.integers(0, 1 << 60, n), "f": draw.random(n, np.float32)}
    columns |= {"d": draw.random(n), "k": np.arange(n)}
    schema = pa.schema([pa.field(name, pa.from_numpy_dtype(c.dtype), nullable=name != "f") for name, c in columns.items()])
    table = pa.table(list(columns.values()), schema=schema)
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "row_group_size": 1700}
    for version in ("1.0", "2.0"):
        for number, part in enumerate((table[:3000], table[3000:])):
            kept = tmp_path / f"{version}-{number}.parquet"
            parquet.write_table(part, kept, data_page_size=3000, write_batch_size=100, data_page_version=version, **plain)
        files = sorted(tmp_path.glob(f"{version}-*.parquet"))
        got = [{name: np.from_dlpack(batch[name]).copy() for name in columns} for batch in feed.Loader(files, 512, seed=1)]
        order = np.concatenate([batch["k"] for batch in got])
        assert sorted(order) == list(range(n))
        for name, column in columns.items():
            np.testing.assert_array_equal(np.concatenate([batch[name] for batch in got]), column[order])
        for batch in feed.Loader(files, 512, columns=["d", "i"], shuffle="none"):
            assert sorted(batch.keys()) == ["d", "i"]
            begin = batch.position
            np.testing.assert_array_equal(np.from_dlpack(batch["d"]), columns["d"][begin : begin + batch.rows])


@pytest.mark.promise("FEED-15")
def test_columns_that_are_not_plain_are_refused_by_name_and_left_out_on_request(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {"good": [1, 2, 3], "bad": [1.0, None, 2.0], "text": ["a", "b", "c"], "flag": [True] * 3, "in": [{"good": 4}] * 3}
    )
    path, plain = tmp_path / "t.parquet", {"compression": "none", "use_dictionary": False}
    for column, settings, said in (
        ("good", {"compression": "snappy"}, "column good is compressed by SNAPPY"),
        ("good", {"compression": "none"}, "column good is encoded by a dictionary"),
        ("bad", plain, "column bad has nulls"),
        ("text", plain, "column text is of type BYTE_ARRAY"),
        ("flag", plain, "column flag is of type BOOLEAN"),
        ("in.good", plain, "column in.good is nested"),
        ("absent", plain, "no column absent, of good, bad, text, flag, in.good"),
    ):
        parquet.write_table(table, path, **settings)
        with pytest.raises(RequestError, match=said):
            feed.Loader(path, 2, columns=[column])
    assert list(np.from_dlpack(feed.Loader(path, 3, columns=["good"], shuffle="none").take()["good"])) == [1, 2, 3]


def damaged(path: Path, index: Callable[[str], Any], turns: int, seed: int) -> Iterator[Any]:
    """What the index of a file says with some of its bytes changed, where it says anything. Its ranges must lie in the file."""
    draw, whole = random.Random(seed), path.read_bytes()
    for _ in range(turns):
        changed = bytearray(whole[: draw.randrange(1, len(whole))] if draw.random() < 0.3 else whole)
        for _ in range(draw.randrange(1, 5)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            yield len(changed), index(os.fspath(path))
        except RequestError:
            continue


def tfrecords(path: Path, records: list[bytes]) -> Path:
    def masked(content: bytes) -> bytes:
        crc = int(_core.crc32c(content))
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    lengths = [struct.pack("<Q", len(record)) for record in records]
    path.write_bytes(b"".join(n + masked(n) + r + masked(r) for n, r in zip(lengths, records, strict=True)))
    return path


@pytest.mark.promise("FEED-15")
def test_records_of_tfrecord_are_samples(tmp_path: Path) -> None:
    draw = random.Random(5)
    records = [draw.randbytes(draw.choice([0, 9, 700, 6000])) for _ in range(300)]
    files = [tfrecords(tmp_path / f"{n}.tfrecord", records[100 * n : 100 * n + 100]) for n in range(3)]
    assert [bytes(r) for batch in feed.Loader(files, 7, shuffle="none") for r in batch["data"]] == records
    shuffled = [bytes(r) for batch in feed.Loader(tmp_path, 7, seed=1) for r in batch["data"]]
    assert shuffled != records and sorted(shuffled) == sorted(records)
    # Without an ending that says it, as TensorFlow's own examples name their files.
    plain = files[0].rename(tmp_path / "train-00000-of-00003")
    assert len(feed.tfrecord(plain)) == 100
    for size, places in damaged(plain, _core.record_index, 60, 3):
        assert all(offset + length <= size for offset, length in places)
    tfrecords(plain, records[:3])
    # A bit of a record is wrong, which its sum tells.
    whole = plain.read_bytes()
    longest = max(range(3), key=lambda n: len(records[n]))
    at = whole.index(records[longest])
    plain.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    loader = feed.Loader(feed.tfrecord(plain), 3, shuffle="none")
    found = check_of(loader.dataset).differences(loader.take(), [0, 1, 2])
    said = "of data aren't those of which the file has the sum"
    assert found == [f"{plain}: {len(records[longest])} bytes from {at} {said}"]
    plain.write_bytes(whole[:-5])
    with pytest.raises(RequestError, match=r"train-00000-of-00003: at byte \d+: the record says \d+ bytes"):
        feed.tfrecord(plain)


@pytest.mark.promise("FEED-15")
def test_arrays_of_npz_are_columns_or_files_are_samples(tmp_path: Path) -> None:
    draw = np.random.default_rng(6)
    x, y = draw.random((90, 3, 2), np.float32), draw.integers(0, 99, 90)
    for n in range(3):
        np.savez(tmp_path / f"{n}.npz", x=x[30 * n : 30 * n + 30], y=y[30 * n : 30 * n + 30])
    for batch in feed.Loader(tmp_path, 20, seed=1):
        rows = batch.rows
        for one, label in zip(np.from_dlpack(batch["x"]), np.from_dlpack(batch["y"]), strict=True):
            (place,) = np.flatnonzero((x == one).all(axis=(1, 2)))
            assert y[place] == label
        assert rows in (20, 10)
    only = [np.from_dlpack(batch["y"]).copy() for batch in feed.Loader(tmp_path, 20, shuffle="none", columns="y")]
    assert np.array_equal(np.concatenate(only), y)
    whole = feed.Loader(feed.npz(tmp_path, each="file"), 2, shuffle="none")
    arrays = [np.load(io.BytesIO(bytes(one))) for batch in whole for one in batch["x"]]
    assert np.array_equal(np.concatenate(arrays), x)
    one = tmp_path / "0.npz"
    for size, members in damaged(one, _core.archive_index, 60, 4):
        assert all(offset + length <= size for _, offset, length, altered in members if altered is None)
    for write, said in (
        (lambda: np.savez(one, x=x, y=y[:3]), r"don't all have as many rows\s+try: .*each=.file."),
        (lambda: np.savez(one, x=x, y=np.int64(1)), "array y has no dimension"),
        (lambda: np.savez_compressed(one, x=x, y=y), r"array x of .*0\.npz: it is compressed by deflate\s+try: numpy\.savez"),
        (lambda: np.savez(one, x=np.asfortranarray(x), y=y), "Fortran order"),
        (lambda: np.savez(one, z=x, y=y), "it has y, z, and"),
    ):
        write()
        with pytest.raises(RequestError, match=said):
            feed.Loader([tmp_path / "1.npz", one] if "and" in said else one, 5)
    with pytest.raises(RequestError, match="neither row nor file"):
        feed.npz(one, each="sample")


@pytest.mark.promise("FEED-15")
@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_plain_data_sets_of_hdf5_are_handed_out_as_h5py_reads_them(tmp_path: Path, version: str) -> None:
    h5py = pytest.importorskip("h5py")
    draw = np.random.default_rng(8)
    sets = {"a": draw.random((100, 4)), "b": draw.integers(-9, 9, 100, np.int16), "f": draw.random((100, 2), np.float32) > 0.5}
    sets["k"], sets["s"] = np.arange(100), np.array([b"%03d" % n for n in range(100)])
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=version) as file:
        for name, values in sets.items():
            chunks = (7, *values.shape[1:]) if name in "bk" else None
            file.create_dataset(name, data=values, chunks=chunks)
        file.create_group("more")["deep"] = [1, 2]
    loader = feed.Loader(path, 16, seed=3)
    seen = []
    for batch in loader:
        keys = np.from_dlpack(batch["k"]).copy()
        seen += keys.tolist()
        assert np.array_equal(np.from_dlpack(batch["a"]), sets["a"][keys])
        assert np.array_equal(np.from_dlpack(batch["b"]), sets["b"][keys])
        assert np.array_equal(np.from_dlpack(batch["f"]), sets["f"][keys].view(np.int8))
        assert [bytes(s) for s in np.from_dlpack(batch["s"])] == sets["s"][keys].tolist()
    assert sorted(seen) == list(range(100))
    for size, found in damaged(path, _core.hdf5_index, 60, 5):
        assert all(begin + rows * width <= size for *_, width, runs in found for rows, begin in runs)


@pytest.mark.promise("FEED-15")
@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_data_sets_of_groups_and_behind_a_block_of_the_user_are_found_by_their_path(tmp_path: Path, version: str) -> None:
    h5py = pytest.importorskip("h5py")
    path, values = tmp_path / "x.h5", np.arange(80, dtype=np.float32).reshape(20, 4)
    with h5py.File(path, "w", libver=version, userblock_size=1024) as file:
        file["train/deep/x"] = values
        file.create_dataset("train/y", data=np.arange(20), chunks=(7,))
        # In a circle, and a second name.
        file["train/deep/up"] = file["train"]
        file["also"] = file["train/deep"]
    for columns in (None, ["/train/deep/x"], ["also/x"], ["train/y"]):
        batch = feed.Loader(path, 20, columns=columns, shuffle="none").take()
        assert len(batch) == 2 if columns is None else set(batch) == {columns[0].strip("/")}
        for name in batch:
            assert np.array_equal(np.from_dlpack(batch[name]), np.arange(20) if name.endswith("y") else values)
    with pytest.raises(RequestError, match="no data set train/z, of train/y"):
        feed.Loader(path, 2, columns=["train/z"])
    for size, found in damaged(path, _core.hdf5_index, 60, 5):
        assert all(begin + rows * width <= size for *_, width, runs in found for rows, begin in runs)


@pytest.mark.promise("FEED-15")
def test_data_sets_that_are_not_plain_are_refused_by_name(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path, wide = tmp_path / "x.hdf5", np.zeros((40, 6), np.float32)
    with h5py.File(path, "w") as file:
        file["good"] = wide
        file["short"] = wide[:3]
        file["big"] = wide.astype(">f4")
        file.create_dataset("packed", data=wide, compression="gzip")
        file.create_dataset("light", data=wide, compression="lzf")
        file.create_dataset("split", data=wide, chunks=(40, 3))
        file.create_dataset("text", data=["a"] * 40, dtype=h5py.string_dtype())
    for name, said in (
        ("packed", "data set packed went through deflate"),
        ("light", "data set light went through LZF"),
        ("split", "data set split has chunks that split its rows"),
        ("big", "data set big has big-endian numbers"),
        ("text", "data set text has items of any length"),
        ("absent", "no data set absent, of "),
    ):
        with pytest.raises(RequestError, match=said):
            feed.Loader(path, 2, columns=[name])
    with pytest.raises(RequestError, match="as many rows: good 40, short 3"):
        feed.Loader(path, 2, columns=["good", "short"])
    assert np.from_dlpack(feed.Loader(path, 40, columns=["good"]).take()["good"]).shape == (40, 6)


@pytest.mark.promise("FEED-15")
def test_damaged_parquet_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, draw = tmp_path / "t.parquet", random.Random(7)
    parquet.write_table(pa.table({"a": list(range(200))}), path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(draw.randrange(1, 5)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            rows, columns = _core.parquet_index(os.fspath(path))
        except RequestError:
            continue
        for _, _, width, runs in columns:
            assert sum(values for values, _ in runs) == rows
            assert all(begin + values * width <= len(whole) for values, begin in runs)


@pytest.mark.promise("FEED-14")
def test_whole_files_are_samples(tmp_path: Path, forebay: Forebay) -> None:
    draw = random.Random(2)
    wanted = {f"{n:03}.jpg": draw.randbytes(draw.randrange(1, 9000)) for n in range(40)}
    for name, content in wanted.items():
        (tmp_path / name).write_bytes(content)
    loader = feed.Loader(tmp_path, 16, seed=9)
    got = [bytes(b) for batch in loader for b in batch["data"]]
    assert sorted(got) == sorted(wanted.values()) and got != list(wanted.values())
    done = forebay("feed", tmp_path, "--batch-size", "16", "--seed", "9", "--verify", "--json")
    record = json.loads(done.stdout)
    assert done.returncode == 0 and record["feed"]["verified"] == record["feed"]["samples"] == 40
    assert record["feed"]["hash"] == loader.hash and record["result"]["bytes"] == sum(map(len, wanted.values()))
    assert record["feed"]["batches"] == 3 and record["result"]["latency_us"]["p50"] > 0
    assert record["feed"]["sample_bytes"] == sum(map(len, wanted.values())) // 40 and record["cache"]["device_bytes"] is None
    (tmp_path / "classes" / "dogs").mkdir(parents=True)
    with pytest.raises(RequestError, match=r"none, but folders\n.*sorted\(glob.glob\(.*classes/\*/\*"):
        feed.files(tmp_path / "classes")


@pytest.mark.promise("FEED-11")
def test_a_sample_of_a_shard_that_differs_from_it_is_found(shards: list[Path]) -> None:
    loader = feed.Loader(shards, 50, shuffle="none")
    batch, check = loader.take(), check_of(loader.dataset)
    assert check.differences(batch, batch.samples) == []
    batch["bin"].data[int(batch["bin"].offsets[7])] ^= 1
    (reported,) = check.differences(batch, batch.samples)
    assert re.search(r"0\.tar: \d+ bytes from \d+ of bin differ", reported)


@pytest.mark.promise("FEED-14")
def test_memory_of_batches_is_used_again_and_not_before_their_arrays_are_gone(shards: list[Path]) -> None:
    loader = feed.Loader(shards, 10, seed=2, prefetch=2)
    kept = [(batch["bin"].data, batch["bin"].data.tobytes()) for batch in loader]
    assert all(array.tobytes() == content for array, content in kept)
    del kept
    # Of 45 batches a few places, two of which are read ahead to.
    assert len({batch["bin"].data.ctypes.data for _ in range(3) for batch in loader}) <= 15
    small = feed.Loader(shards, 10, seed=2, pin_limit=120_000)
    few = []
    with pytest.raises(RequestError, match=r"the program keeps \d+ of \d+ bytes together, and pin_limit allows 120000"):
        while True:
            few.append(small.take())
    taken = len(few)
    few.clear()
    assert taken + sum(1 for _ in iter(small.take, None)) == 15
