"""`forebay.File` as a stream of Python's: it moves as one, and libraries that take one read through it."""

from __future__ import annotations

import copy
import io
import os
import pickle
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import pytest
from forebay.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

SIZE = 300_321
CONTENT = np.random.default_rng(5).integers(0, 256, SIZE, dtype=np.uint8).tobytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stream") / "data.bin"
    made.write_bytes(CONTENT)
    return made


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, SIZE + 9)),
        st.tuples(st.just("readinto"), st.integers(0, SIZE + 9)),
        st.tuples(st.just("seek"), st.integers(0, SIZE + 9), st.just(0)),
        st.tuples(st.just("seek"), st.integers(-SIZE, SIZE), st.sampled_from([0, 1, 2])),
        st.tuples(st.just("readall")),
        st.tuples(st.just("tell")),
    ),
    max_size=12,
)


def done(stream: Any, step: tuple[Any, ...]) -> Any:
    """What a step answers, and where the stream is then; of a refusal its kind."""
    name, *arguments = step
    try:
        if name == "readinto":
            into = bytearray(arguments[0])
            return stream.readinto(into), bytes(into), stream.tell()
        return getattr(stream, name)(*arguments), stream.tell()
    except (ValueError, OSError) as error:
        assert isinstance(error, OSError) == isinstance(stream, io.FileIO)  # the kernel's answer to a place before the start
        return "refused"


@pytest.mark.promise("PYT-26")
@examples(60)
@given(steps=STEPS)
def test_it_moves_as_a_file_of_pythons_does(path: Path, steps: list[tuple[Any, ...]]) -> None:
    with forebay.open(path, direct=False) as ours, open(path, "rb", buffering=0) as theirs:
        for step in steps:
            assert done(ours, step) == done(theirs, step), step


@pytest.mark.promise("PYT-26")
def test_the_other_calls_neither_use_nor_move_the_position(path: Path) -> None:
    file = forebay.open(path)
    assert isinstance(file, io.RawIOBase) and file.readable() and file.seekable() and not file.writable()
    assert file.seek(1000) == 1000
    into = bytearray(64)
    assert file.read_into(into) == 64 and bytes(into) == CONTENT[:64] and file.tell() == 1000
    file.gather([3], 16, memoryview(into)[:16])
    assert file.read(8) == CONTENT[1000:1008] and file.last_report and file.last_report.bytes == 8
    with pytest.raises(OSError):
        file.write(b"x")
    with pytest.raises(ValueError, match="whence=7"):
        file.seek(0, 7)
    file.close()
    file.close()
    assert file.closed
    for call in (file.read, file.tell, file.readable, file.seekable, lambda: file.seek(0), lambda: file.readinto(into)):
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(RequestError, match="closed"):
        file.read_into(into)
    with pytest.raises(RequestError, match="of type File"):
        forebay.open(file)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        pickle.dumps(file)


@pytest.mark.promise("PYT-26", "PYT-4")
def test_one_that_is_dropped_with_a_read_in_flight_leaves_nothing_behind(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        into = bytearray(SIZE)
        forebay.open(path).read_async(into)
    with forebay.open(path) as file:  # what is asked for later ends later
        file.read_into(bytearray(SIZE))
    forebay.release()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.promise("PYT-26")
def test_lines_and_small_pieces_come_through_a_buffer(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"".join(b"line %d\n" % n for n in range(5000)))
    with forebay.open(tmp_path / "lines") as file:
        lines = io.TextIOWrapper(io.BufferedReader(file, 1 << 16)).readlines()
    assert len(lines) == 5000 and lines[4999] == "line 4999\n"


@pytest.mark.promise("PYT-26")
def test_numpy_tar_and_zip_read_through_it(tmp_path: Path) -> None:
    array = np.arange(60_000, dtype=np.float32).reshape(300, 200)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", x=array, y=array[:7])
    with forebay.open(tmp_path / "a.npy") as file:
        assert np.array_equal(np.load(file), array)
    with forebay.open(tmp_path / "a.npz") as file, np.load(file) as found:
        assert np.array_equal(found["y"], array[:7])
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "a.npy", "one/a.npy")
    with forebay.open(tmp_path / "a.tar") as file, tarfile.open(fileobj=file) as tar:  # type: ignore[call-overload]
        assert np.array_equal(np.load(io.BytesIO(tar.extractfile("one/a.npy").read())), array)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(tmp_path / "a.npy", "a.npy")
    with forebay.open(tmp_path / "a.zip") as file, zipfile.ZipFile(file) as packed:  # type: ignore[call-overload]
        assert packed.read("a.npy") == (tmp_path / "a.npy").read_bytes() and packed.testzip() is None


@pytest.mark.promise("PYT-26")
def test_h5py_reads_through_it(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    array = np.arange(60_000, dtype=np.float32).reshape(300, 200)
    with h5py.File(tmp_path / "a.h5", "w") as made:
        made.create_dataset("x", data=array, chunks=(30, 200), compression="gzip")
        made.create_dataset("y", data=array)
    with forebay.open(tmp_path / "a.h5") as file, h5py.File(file, "r") as found:
        assert np.array_equal(found["x"][::3], array[::3]) and np.array_equal(found["y"][5], array[5])


@pytest.mark.promise("PYT-26")
def test_pyarrow_reads_parquet_through_it_by_many_threads(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {name: np.arange(20_000, dtype=np.int64) * n for n, name in enumerate("abc")}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", row_group_size=1000)
    with forebay.open(tmp_path / "a.parquet") as file:
        for pre_buffer in (True, False):
            found = parquet.read_table(file, columns=["c", "a"], use_threads=True, pre_buffer=pre_buffer)
            assert np.array_equal(found["c"].to_numpy(), columns["c"]) and found.num_columns == 2
        assert not file.closed


@pytest.mark.promise("PYT-26")
def test_pillow_reads_through_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    with forebay.open(tmp_path / "a.png") as file, image.open(file) as found:
        assert np.array_equal(np.asarray(found), pixels)


@pytest.mark.promise("PYT-26")
def test_safetensors_reads_what_it_returns(tmp_path: Path) -> None:
    theirs = pytest.importorskip("safetensors.numpy")
    arrays = {"w": np.arange(1000, dtype=np.float16).reshape(10, 100), "b": np.ones(3, np.int64)}
    theirs.save_file(arrays, tmp_path / "a.safetensors")
    with forebay.open(tmp_path / "a.safetensors") as file:
        found = theirs.load(file.read())
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


@pytest.mark.promise("PYT-26", "PYT-6")
def test_streams_of_their_own_serve_many_threads(path: Path) -> None:
    wrong: list[int] = []

    def read(seed: int) -> None:
        places = np.random.default_rng(seed).integers(0, SIZE, 40)
        with forebay.open(path) as file:
            for at in places.tolist():
                file.seek(at)
                if file.read(777) != CONTENT[at : at + 777]:
                    wrong.append(at)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_open_file_is_neither_pickled_nor_copied(path: Path) -> None:
    """As one of Python's: two objects would close one reader."""
    with forebay.open(path) as file:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"pass its name, and forebay\.open it there"):
                attempt(file)
        assert file.mode == "rb" and file.read(10) == CONTENT[:10]
