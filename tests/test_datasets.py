"""Rows of files as a data set of PyTorch, and as features of PyTorch Geometric: with and without them."""

# mypy: disable-error-code="no-untyped-call,misc"
from __future__ import annotations

import gzip
import os
import pickle
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import processes
import pytest
from forebay import _core
from forebay.datasets import Rows
from forebay.errors import RequestError

COUNTS = (100, 37)
TABLE = np.random.default_rng(11).random((sum(COUNTS), 4, 2), np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = [tmp_path_factory.mktemp("rows") / name for name in "ab"]
    made[0].write_bytes(TABLE[: COUNTS[0]].tobytes())
    made[1].write_bytes(TABLE[COUNTS[0] :].tobytes())
    return made


@pytest.mark.promise("PYT-18")
def test_rows_are_a_sequence_and_come_in_batches(files: list[Path]) -> None:
    rows = Rows(files, (4, 2), np.float32)
    assert len(rows) == sum(COUNTS)
    assert (rows[3] == TABLE[3]).all() and (rows[-1] == TABLE[-1]).all() and rows[np.int64(99)].shape == (4, 2)
    wanted = np.random.default_rng(1).integers(len(rows), size=300)
    assert (rows[wanted] == TABLE[wanted]).all() and (rows[wanted.tolist()] == TABLE[wanted]).all()
    assert (np.stack(rows.__getitems__(wanted.tolist())) == TABLE[wanted]).all()
    assert (rows[90:120:3] == TABLE[90:120:3]).all() and (rows[::-1] == TABLE[::-1]).all()
    assert (rows[tuple(wanted.tolist())] == TABLE[wanted]).all() and (rows[list(wanted)] == TABLE[wanted]).all()
    assert (rows[[0, True]] == TABLE[:2]).all() and (rows.batch(range(130, 3, -7)) == TABLE[130:3:-7]).all()
    assert rows[[]].shape == (0, 4, 2) and rows[:0].shape == (0, 4, 2)
    assert sum(1 for _ in rows) == len(rows)
    for beyond in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError, match=f"of {len(rows)}"):
            rows[beyond]
    for numbers, words in (
        ([0, len(rows)], f"row {len(rows)} of"),
        ([3, -1], r"rows\[1\] is -1"),
        ([1 << 63], "row 9223372036854775808 of"),
        ([0, 1.0], "an array of float64"),
        ([True, False], "an array of bool"),
        ([0, [1]], "inhomogeneous"),
    ):
        with pytest.raises(RequestError, match=words):
            rows[numbers]
    rows.close()
    assert (rows[5] == TABLE[5]).all()


@pytest.mark.promise("PYT-18")
def test_one_file_with_a_head_and_rows_that_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(b"head" + np.arange(50, dtype="<i8").tobytes() + b"tail")
    labels = Rows(tmp_path / "labels", (), "<i8", start=4)
    assert len(labels) == 50 and labels[7] == 7 and (labels[[9, 0, 9]] == [9, 0, 9]).all()


@pytest.mark.promise("PYT-18")
@pytest.mark.parametrize(
    ("shape", "dtype", "more", "words"),
    [
        ((4,), object, {}, "aren't contiguous bytes"),
        ((4,), "no type", {}, "dtype='no type'"),
        ((0,), np.float32, {}, "a row has at least one byte"),
        ((4,), np.float32, {"start": -1}, "starts within the file"),
        ((4,), np.float32, {"device": "cuda:0"}, "NumPy's arrays are in host memory"),
        ((4,), np.float32, {"path": "no such way"}, "no such path"),
    ],
)
def test_rows_that_cannot_be_are_refused(files: list[Path], shape: Any, dtype: Any, more: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Rows(files, shape, dtype, **more)


@pytest.mark.promise("PYT-18")
def test_rows_go_to_other_processes(files: list[Path]) -> None:
    rows = Rows([str(f) for f in files], (4, 2), np.float32)
    assert (rows[1] == TABLE[1]).all()
    assert (pickle.loads(pickle.dumps(rows))[2] == TABLE[2]).all()
    code = f"""
import os, numpy as np
from forebay import _core
from forebay.datasets import Rows
rows = Rows({[str(f) for f in files]!r}, (4, 2), np.float32)
first = rows[120].copy()
one = Rows({str(files[0])!r}, (4, 2), np.float32)
of_child = _core.Batches(one.files()[0], (32, 0), (2, 32), (4, 2), lambda held: held)
child = os.fork()
if not child:
    os._exit(0 if (rows[[120, 0]][0] == first).all() and of_child([3]) is None else 1)
assert of_child([3]) is not None
assert os.waitpid(child, 0)[1] == 0
"""
    done = processes.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


class Capsule:
    """One of DLPack's, as NumPy asks for it."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_asked: Any) -> Any:
        return self.held


class Doubled(Rows):
    def batch(self, rows: Any) -> Any:
        return 2 * super().batch(rows)


@pytest.mark.promise("PYT-18")
def test_tensors_lie_in_memory_that_is_theirs_until_nobody_refers_to_them(tmp_path: Path) -> None:
    table = np.arange(5000 * 64, dtype=np.float32).reshape(-1, 8, 8)
    table.tofile(tmp_path / "rows")
    rows = Rows(tmp_path / "rows", (8, 8), np.float32)
    # As for PyTorch's types, whose tensors are made so.
    of_file = rows.files()[0], (256, 0), (2, 32), (8, 8)
    rows._batches = plain = _core.Batches(*of_file, lambda held: np.from_dlpack(Capsule(held)))
    for numbers in ([3, 1], np.array([4, 4]), list(range(4999, -1, -1)), np.arange(5000, dtype=np.uint64)):
        batch = rows[numbers]
        assert not batch.flags.owndata and (batch == table[numbers]).all() and rows.files()[0].last_report.bytes == batch.nbytes
    # Those that it isn't done for come in another way, and what is wrong is said there.
    assert plain((3, 1)) is plain([]) is plain([-1]) is plain(7) is plain(np.arange(3, dtype=np.int32)) is None
    assert (rows[(3, 1)] == table[[3, 1]]).all() and rows[[]].shape == (0, 8, 8)
    for numbers, words in (([0, 5000], "row 5000 of"), ([0, -1], r"rows\[1\] is -1"), ([1 << 70], "array of object")):
        with pytest.raises(RequestError, match=words):
            rows[numbers]
    everything = list(range(5000))
    forebay.release()
    kept = [rows[everything] for _ in range(4)]
    view, places = kept[1][5], {batch.ctypes.data for batch in kept}
    assert len(places) == len(kept)
    del batch, kept
    again = [rows[everything[::-1]] for _ in range(4)]
    assert sum(batch.ctypes.data in places for batch in again) == 3, "all but the one that is viewed"
    assert (view == table[5]).all() and all((batch == table[::-1]).all() for batch in again)
    doubled = Doubled(tmp_path / "rows", (8, 8), np.float32)
    doubled._batches = plain
    assert (doubled[[3, 1]] == 2 * table[[3, 1]]).all() and (doubled[3] == 2 * table[3]).all()
    rows.close()
    assert plain([1]) is None and (rows[[1]] == table[1]).all()


@pytest.mark.promise("PYT-18")
def test_a_data_loader_takes_whole_batches(files: list[Path]) -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data
    rows = Rows(files, (4, 2), torch.float32)
    wanted = torch.from_numpy(TABLE)
    by_batch = data.DataLoader(rows, batch_size=None, sampler=data.BatchSampler(data.SequentialSampler(rows), 32, False))
    assert torch.equal(torch.cat(list(by_batch)), wanted)
    assert torch.equal(torch.cat(list(data.DataLoader(rows, batch_size=32))), wanted)
    assert torch.equal(torch.cat(list(data.DataLoader(rows, batch_size=32, num_workers=2))), wanted)
    assert torch.equal(rows[torch.tensor([3, 1])], wanted[[3, 1]])


UNSET = object()


@dataclass
class Attr:
    """What the adapter uses of torch_geometric.data.TensorAttr."""

    group_name: Any = UNSET
    attr_name: Any = UNSET
    index: Any = UNSET


class Base(ABC):
    """The abstract part of torch_geometric.data.FeatureStore, and how it calls it."""

    def get_tensor(self, attr: Attr) -> Any:
        return self._get_tensor(attr)

    def get_tensor_size(self, attr: Attr) -> Any:
        return self._get_tensor_size(attr)

    def remove_tensor(self, attr: Attr) -> Any:
        return self._remove_tensor(attr)

    def put_tensor(self, tensor: Any, attr: Attr) -> Any:
        return self._put_tensor(tensor, attr)

    @abstractmethod
    def _put_tensor(self, tensor: Any, attr: Attr) -> bool: ...
    @abstractmethod
    def _get_tensor(self, attr: Attr) -> Any: ...
    @abstractmethod
    def _remove_tensor(self, attr: Attr) -> bool: ...
    @abstractmethod
    def _get_tensor_size(self, attr: Attr) -> Any: ...
    @abstractmethod
    def get_all_tensor_attrs(self) -> list[Attr]: ...


@pytest.fixture
def geometric(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch_geometric.data: the real one where it is installed, else its interface."""
    monkeypatch.delitem(sys.modules, "forebay.graphs", raising=False)
    try:
        import torch_geometric.data as real  # type: ignore[import-not-found]

        yield real
    except ImportError:
        data = types.ModuleType("torch_geometric.data")
        data.__dict__.update(FeatureStore=Base, TensorAttr=Attr)
        monkeypatch.setitem(sys.modules, "torch_geometric", types.ModuleType("torch_geometric"))
        monkeypatch.setitem(sys.modules, "torch_geometric.data", data)
        yield data
    sys.modules.pop("forebay.graphs", None)


@pytest.mark.promise("PYT-18")
def test_features_of_a_graph_are_rows_of_files(geometric: Any, files: list[Path]) -> None:
    from forebay.graphs import FeatureStore

    attr = geometric.TensorAttr
    store = FeatureStore().add("paper", "x", files, (4, 2), np.float32).add("paper", "first", files[0], (8,), np.float32)
    assert store.get_tensor_size(attr("paper", "x", None)) == (sum(COUNTS), 4, 2)
    assert [(a.group_name, a.attr_name) for a in store.get_all_tensor_attrs()] == [("paper", "x"), ("paper", "first")]
    nodes = np.random.default_rng(2).integers(sum(COUNTS), size=500)
    # Its own check of an attribute takes tensors, and no arrays.
    asked = sys.modules["torch"].from_numpy(nodes) if hasattr(geometric, "Data") else nodes
    assert (store.get_tensor(attr("paper", "x", asked)) == TABLE[nodes]).all()
    assert (store.get_tensor(attr("paper", "x", slice(5, 9))) == TABLE[5:9]).all()
    assert (store.get_tensor(attr("paper", "x", None)) == TABLE).all()
    assert (store.get_tensor(attr("paper", "x", 7)) == TABLE[7]).all()
    mask = np.arange(sum(COUNTS)) % 3 == 1
    of_torch = sys.modules["torch"].from_numpy if hasattr(geometric, "Data") else np.asarray
    assert (store.get_tensor(attr("paper", "x", of_torch(mask))) == TABLE[mask]).all()
    with pytest.raises(RequestError, match="a mask of shape"):
        store.get_tensor(attr("paper", "x", of_torch(mask[1:])))
    with pytest.raises(RequestError, match="there are 'paper', 'x', 'paper', 'first'"):
        store.get_tensor(attr("paper", "y", asked))
    # Files are read, and stay what they are.
    assert not store.put_tensor(TABLE, attr("paper", "x", None)) and not store.update_tensor(TABLE, attr("paper", "x", None))
    assert (store.get_tensor(attr("paper", "x", asked)) == TABLE[nodes]).all()
    assert store.remove_tensor(attr("paper", "first", None)) and not store.remove_tensor(attr("paper", "first", None))
    assert len(store.get_all_tensor_attrs()) == 1 and files[0].exists()
    store.close()


@pytest.mark.promise("PYT-18")
def test_without_pytorch_geometric_the_adapter_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch_geometric"] = None
from forebay.errors import MachineError
try:
    import forebay.graphs
except MachineError as error:
    assert "pip install torch torch_geometric" in str(error), error
else:
    sys.exit("imported")
"""
    done = processes.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def test_a_header_is_no_row(tmp_path: Path) -> None:
    """Files of other formats are recognised by how they begin; with `start` they are rows."""
    array = np.arange(40, dtype=np.float32).reshape(10, 4)
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(RequestError, match=r"\.npy: its header would be read as rows") as found:
        Rows(str(tmp_path / "x.npy"), (4,), np.float32)
    begin = int(str(found.value).partition("start=")[2].partition(",")[0])
    data = Rows(str(tmp_path / "x.npy"), (4,), np.float32, start=begin)
    assert np.array_equal(data[list(range(10))], array)
    header = b'{"x":{"dtype":"F32","shape":[10,4],"data_offsets":[0,160]}}'
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + array.tobytes())
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + bytes(60))
    (tmp_path / "x.arrow").write_bytes(b"ARROW1\0\0" + bytes(56))
    (tmp_path / "x.tar").write_bytes(bytes(257) + b"ustar\x0000" + bytes(1000))
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(4000)))
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(60))
    length = (8).to_bytes(8, "little")
    crc = forebay.crc32c(length)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    (tmp_path / "x.tfrecord").write_bytes(length + masked.to_bytes(4, "little") + bytes(12))
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    for name in ("x.safetensors", "x.parquet", "x.arrow", "x.tar", "x.gz", "x.jpg", "x.tfrecord", "f.npy"):
        with pytest.raises(RequestError, match="its header would be read as rows") as found:
            Rows(str(tmp_path / name), (4,), np.float32)
        with pytest.raises(RequestError, match="its header would be read as rows"):
            forebay.feed.rows(tmp_path / name, np.float32)
    assert "start=" not in str(found.value), "rows of a Fortran array lie nowhere"
    forebay.feed.rows(tmp_path / "x.npy", np.float32, start=begin)
    done = processes.run([*processes.FOREBAY, "feed", str(tmp_path / "x.npy"), "--row-bytes", "16"])
    assert done.returncode == 2 and f"try: no --row-bytes, or --start {begin}, where its array begins" in done.stderr
    (tmp_path / "x.bin").write_bytes(bytes(64))
    assert len(Rows(str(tmp_path / "x.bin"), (4,), np.float32)) == 4


@pytest.mark.promise("PYT-18")
def test_memory_of_batches_is_used_again_once_nobody_refers_to_it(tmp_path: Path) -> None:
    table = np.random.default_rng(5).integers(1 << 30, size=(4096, 128))
    (tmp_path / "table").write_bytes(table.tobytes())
    rows = Rows(tmp_path / "table", (128,), np.int64)
    numbers = [np.random.default_rng(seed).integers(len(rows), size=1500) for seed in range(8)]
    kept = [rows[n] for n in numbers]
    assert len({batch.ctypes.data for batch in kept}) == len(kept)
    parts = [batch[7:9] for batch in kept]
    del kept
    for part, n in zip(parts, numbers, strict=True):
        assert (part == table[n[7:9]]).all()
    places = set()
    for n in numbers:
        batch = rows[n]
        places.add(batch.ctypes.data)
        assert (batch == table[n]).all() and batch.flags.writeable
        del batch
    assert len(places) == 1
    assert (pickle.loads(pickle.dumps(rows))[numbers[0]] == table[numbers[0]]).all()
    rows.close()
    assert (parts[0] == table[numbers[0][7:9]]).all()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_memory_of_a_whole_data_set_is_given_back() -> None:
    forebay.release()
    before = resident_bytes()
    room = _core.room(513 << 20)
    assert resident_bytes() - before > 400 << 20
    del room
    assert resident_bytes() - before < 200 << 20


@pytest.mark.promise("PYT-18")
def test_memory_of_batches_stays_within_a_limit_until_it_is_released() -> None:
    forebay.release()
    before = resident_bytes()
    rooms = [_core.room(96 << 20) for _ in range(8)]
    del rooms
    assert 400 << 20 < resident_bytes() - before < 600 << 20
    forebay.release()
    assert resident_bytes() - before < 200 << 20


CHILD = """
import os, sys, threading
import numpy as np
from forebay import _core
from forebay.datasets import Rows

rows = Rows(sys.argv[1], (128,), np.int64)
table = np.fromfile(sys.argv[1], np.int64).reshape(-1, 128)
ended = threading.Event()

def take(seed):
    numbers = np.random.default_rng(seed).integers(len(rows), size=1500)
    batch = rows[numbers]
    assert (batch == table[numbers]).all()
    return batch

def takes():
    while not ended.is_set():
        rooms = [_core.room(2 << 20) for _ in range(3)]

def is_right_in_child(held, content):
    # What goes here, though the parent has it, is the child's own copy.
    same, place = (held[0] == content).all(), held[0].ctypes.data
    held.clear()
    return same and place in {batch.ctypes.data for batch in [take(seed) for seed in range(4)]}

threads = [threading.Thread(target=takes) for _ in range(2)]
for thread in threads:
    thread.start()
try:
    for turn in range(20):
        held = [take(turn)]
        content = held[0].copy()
        pid = os.fork()
        if not pid:
            os._exit(0 if is_right_in_child(held, content) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert (held[0] == content).all()
finally:
    ended.set()
"""


@pytest.mark.promise("PYT-18")
def test_a_child_has_memory_of_batches_of_its_own(tmp_path: Path) -> None:
    np.random.default_rng(5).integers(1 << 30, size=(4096, 128)).tofile(tmp_path / "table")
    done = processes.run([sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path / "table")])
    assert done.returncode == 0, done.stderr
