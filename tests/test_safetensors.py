"""safetensors: what a header may say, what is refused, and where tensors land."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import forebay
import numpy as np
import pytest
from forebay.errors import ForebayError, MachineError, RequestError
from hypothesis import given
from hypothesis import strategies as st
from properties import examples


def packed(tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    data = b""
    names = {"u1": "U8", "i2": "I16", "f4": "F32", "f8": "F64", "f2": "F16", "i8": "I64", "b1": "BOOL"}
    for name, array in tensors.items():
        begin = len(data)
        data += array.tobytes()
        header[name] = {
            "dtype": names[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [begin, len(data)],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


class FakeTensor:
    """What `load` asks of PyTorch: a buffer, its slices, views and shapes."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **asked: object) -> object:
        return self.array.__dlpack__()

    def __getitem__(self, part: slice) -> FakeTensor:
        return FakeTensor(self.array[part])

    def view(self, dtype: str) -> FakeTensor:
        assert self.array.ctypes.data % np.dtype(dtype).itemsize == 0 or not self.array.size, "misaligned"
        return FakeTensor(self.array.view(dtype))

    def reshape(self, shape: tuple[int, ...]) -> FakeTensor:
        return FakeTensor(self.array.reshape(shape))


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """PyTorch's stand-in; holds the bytes of each allocation."""
    made: list[int] = []
    torch = types.ModuleType("torch")

    def empty(n: int, dtype: str, device: str) -> FakeTensor:
        made.append(n)
        aligned = np.zeros(n + 64, np.uint8)
        skip = -aligned.ctypes.data % 64
        return FakeTensor(aligned[skip : skip + n])

    names = {
        "uint8": "u1", "int16": "i2", "float32": "f4", "float64": "f8", "float16": "f2", "int64": "i8", "bool": "?",
    }  # fmt: skip
    for name, numpy_name in names.items():
        setattr(torch, name, numpy_name)
    torch.empty, torch.Tensor = empty, FakeTensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made


TENSORS = {
    "a": np.arange(600, dtype="f4").reshape(20, 30),
    "odd": np.arange(7, dtype="u1"),
    "b": np.arange(1000, dtype="i8").reshape(10, 10, 10),
    "scalar": np.array(2.5, dtype="f8"),
    "empty": np.zeros((0, 5), dtype="f2"),
    "flags": np.array([True, False, True]),
}


@pytest.mark.promise("PYT-10")
def test_tensors_are_views_of_one_allocation(tmp_path: Path, allocations: list[int]) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed(TENSORS, {"format": "pt"}))
    loaded = forebay.safetensors.load(path, device="cpu")
    assert loaded.keys() == TENSORS.keys() and len(allocations) == 1
    for name, array in TENSORS.items():
        assert loaded[name].array.dtype == array.dtype and loaded[name].array.shape == array.shape
        assert (loaded[name].array == array).all(), name
    with forebay.safetensors.open(path) as file:
        assert file.metadata == {"format": "pt"} and file.keys() == list(TENSORS)
        assert file.tensors["b"].shape == (10, 10, 10) and file.tensors["b"].dtype == "I64"
        assert (file.tensor("b", "cpu").array == TENSORS["b"]).all()
        some = file.load(["scalar", "odd"], "cpu")
        assert some["scalar"].array == 2.5 and (some["odd"].array == TENSORS["odd"]).all()
        assert file.last_report and file.last_report.bytes == 15
        buffer = bytearray(2400)
        assert file.read_into("a", buffer) == 2400 and buffer == TENSORS["a"].tobytes()
        with pytest.raises(RequestError, match="no-such"):
            file.tensor("no-such", "cpu")
        with pytest.raises(RequestError, match="holds 9"):
            file.read_into("a", bytearray(9))


def test_a_file_whose_layout_suits_is_read_as_one_range(tmp_path: Path, allocations: list[int]) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {f"t{i}": np.full((64, 16), i, "f4") for i in range(50)}
    path.write_bytes(packed(tensors))
    loaded = forebay.safetensors.load(path, "cpu")
    assert allocations == [50 * 64 * 16 * 4]
    assert all((loaded[n].array == a).all() for n, a in tensors.items())


def test_without_pytorch_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed(TENSORS))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MachineError, match="PyTorch"):
        forebay.safetensors.load(path)
    torch = types.ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(MachineError, match="has no such type"):
        forebay.safetensors.load(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes"),
        (b"1234567", "7 bytes"),
        (b"\xff" * 8, "claims"),
        ((200_000_000).to_bytes(8, "little") + b"{}", "claims"),
        ((3).to_bytes(8, "little") + b"{}", "claims"),
        ((2).to_bytes(8, "little") + b"[]", "begin with"),
        ((2).to_bytes(8, "little") + b"{}" + b"left", "end at byte 0"),
        (packed(TENSORS)[:-1], "end at byte"),
        (packed(TENSORS).replace(b"F32", b"F99"), "unknown type"),
        (packed(TENSORS).replace(b"20, 30", b"20, 31"), "doesn't fill"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=reason) as caught:
        forebay.safetensors.open(path)
    assert "broken.safetensors" in str(caught.value)


@pytest.mark.promise("PYT-10")
@examples(300)
@given(at=st.integers(0, 4000), byte=st.integers(0, 255), cut=st.integers(0, 200))
def test_a_damaged_file_is_read_inside_its_bounds_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: int
) -> None:
    content = bytearray(packed(TENSORS))
    content[at % len(content)] = byte
    path = tmp_path_factory.mktemp("damaged") / "x.safetensors"
    path.write_bytes(content[: len(content) - cut])
    try:
        file = forebay.safetensors.open(path)
    except ForebayError:
        return
    with file:
        end = 8 + int.from_bytes(content[:8], "little")
        for tensor in sorted(file.tensors.values(), key=lambda t: t.offset):
            assert tensor.offset == end
            end += tensor.bytes
        assert end == path.stat().st_size


@pytest.mark.promise("PYT-26")
@pytest.mark.parametrize("framework", ["numpy", "np"])
def test_numpy_gets_arrays_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed(TENSORS))
    monkeypatch.setitem(sys.modules, "torch", None)
    loaded = forebay.safetensors.load(path, framework=framework)
    assert loaded.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert loaded[name].dtype == array.dtype and np.array_equal(loaded[name], array), name
        assert loaded[name].flags.aligned and loaded[name].flags.writeable
    assert len({id(root(array)) for array in loaded.values()}) == 1
    with forebay.safetensors.open(path) as file:
        assert file.tensor("scalar", framework="numpy") == 2.5
    with forebay.safetensors.open(path, prefer="cpu") as file:
        assert file.tensor("scalar", framework="numpy") == 2.5
    with pytest.raises(RequestError, match="prefer="):
        forebay.safetensors.open(path, prefer="speed")
    for wrong in ({"framework": "jax"}, {"framework": "numpy", "device": "cuda:0"}):
        with pytest.raises(RequestError, match="jax|host"):
            forebay.safetensors.load(path, **wrong)


def root(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.promise("PYT-26")
def test_a_type_that_numpy_lacks_is_said_or_taken_from_ml_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed({"w": np.arange(8, dtype="i2")}).replace(b'"I16"', b'"BF16"').replace(b" ", b"", 1))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MachineError, match="ml_dtypes"):
        forebay.safetensors.load(path, framework="numpy")
    stand_in = types.ModuleType("ml_dtypes")
    stand_in.bfloat16 = np.uint16  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ml_dtypes", stand_in)
    assert forebay.safetensors.load(path, framework="numpy")["w"].tolist() == list(range(8))
