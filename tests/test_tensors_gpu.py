"""Tensors of PyTorch and CuPy on a real GPU, by each way in which they show their memory: filled, refused, gathered into.
And files in a memory file system, whose pages a GPU reads like those of a disk's page cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay.errors import ForebayError, RequestError

pytestmark = pytest.mark.gpu

SIZE = (5 << 20) + 321
ROW_BYTES = 512


class ByDLPack:
    """A tensor that shows its memory by DLPack alone."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **how: Any) -> Any:
        return self.tensor.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


class Unversioned(ByDLPack):
    """The same by a library of DLPack 0, whose capsules have no version."""

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.tensor.__dlpack__(stream=stream)


WAYS = [lambda tensor: tensor, ByDLPack, Unversioned]


@pytest.fixture(params=["disk", "tmpfs"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file of a pattern that tells each place from its neighbours."""
    folder = tmp_path
    if request.param == "tmpfs":
        if not os.path.ismount("/dev/shm"):
            pytest.skip("/dev/shm isn't a file system of its own")
        folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    file = folder / "data.bin"
    block = bytes(range(251)) * 4001
    file.write_bytes((block * (SIZE // len(block) + 1))[:SIZE])
    yield file
    if folder != tmp_path:
        shutil.rmtree(folder)


def torch_on_gpu() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    return torch


@pytest.mark.parametrize("open_as", ["bounce", "mapped", "auto"])
@pytest.mark.parametrize("way", WAYS)
def test_tensors_of_pytorch_are_filled_whatever_their_type(path: Path, way: Any, open_as: str) -> None:
    torch = torch_on_gpu()
    content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    with forebay.open(path, open_as) as file:
        for kind in (torch.uint8, torch.float32, torch.bfloat16, torch.int64):
            count = SIZE // kind.itemsize
            tensor = torch.zeros(count + 2, dtype=kind, device="cuda")
            part = tensor[1:-1]
            for _ in range(2):
                assert file.read_into(way(part)) == count * kind.itemsize
            found = tensor.view(torch.uint8).cpu()
            edge = kind.itemsize
            assert torch.equal(found[edge : edge + count * edge], content[: count * edge]), kind
            assert not found[:edge].any() and not found[-edge:].any(), kind


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_cupy_are_filled(path: Path, way: Any) -> None:
    cupy = pytest.importorskip("cupy")
    array = cupy.zeros((2, SIZE), cupy.uint8)
    with forebay.open(path, "mapped") as file:
        # The second row of a C-ordered array is contiguous.
        assert file.read_into(way(array[1])) == SIZE
    assert array[1].tobytes() == path.read_bytes() and not array[0].any()


@pytest.mark.parametrize("way", [ByDLPack, Unversioned])
@pytest.mark.parametrize("open_as", ["bounce", "mapped"])
def test_rows_come_into_tensors_known_by_dlpack_by_numbers_on_the_gpu_too(path: Path, way: Any, open_as: str) -> None:
    torch = torch_on_gpu()
    whole = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    table = whole[: SIZE // ROW_BYTES * ROW_BYTES].view(-1, ROW_BYTES)
    rows = torch.randint(len(table), (5000,), generator=torch.Generator().manual_seed(3))
    out = torch.zeros(5000, ROW_BYTES, dtype=torch.uint8, device="cuda")
    with forebay.open(path, open_as) as file:
        for numbers in (rows, rows.cuda()):
            out.zero_()
            assert file.gather(numbers, ROW_BYTES, way(out)) == out.nbytes
            assert torch.equal(out.cpu(), table[rows])


def test_what_cannot_be_filled_is_refused_and_left_as_it_is(path: Path) -> None:
    torch = torch_on_gpu()
    square = torch.zeros(64, 64, dtype=torch.uint8, device="cuda")
    with forebay.open(path) as file:
        for wrong, word in [
            (square.t(), "contiguous"),
            (ByDLPack(square.t()), "contiguous"),
            (torch.zeros(64, device="cuda", requires_grad=True), "detach"),
        ]:
            with pytest.raises(RequestError, match=word):
                file.read_into(wrong)
        with pytest.raises(RequestError, match="holds 4096"):
            file.read_into(ByDLPack(square), 0, 4097)
        with pytest.raises(RequestError, match="beyond"):
            file.gather([0, SIZE], 64, square)
        with pytest.raises(RequestError, match="negative"):
            file.gather([0, -1], 64, square)
    assert not square.any()


def test_what_is_cut_or_written_under_a_registration_is_never_stale(path: Path) -> None:
    torch = torch_on_gpu()
    out = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    with forebay.open(path, "mapped") as file:
        for _ in range(2):
            file.read_into(out)
        changed = bytes(reversed(path.read_bytes()))
        with path.open("r+b") as other:
            other.write(changed)
        # A read may fail since the file changed; one that returns has what is in the file.
        for _ in range(3):
            try:
                file.read_into(out)
            except ForebayError:
                continue
            assert out.cpu().numpy().tobytes() == changed
        os.truncate(path, 4096)
        with pytest.raises(ForebayError):
            file.read_into(out, 0, SIZE)
