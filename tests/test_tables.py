"""Rows of several files, by tables of offsets, and by processors: into host memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import pytest
from forebay.errors import MachineError, RequestError, RunError
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

SIZES = (100_003, 9, 4096 * 30, 65_536)
CONTENTS = [np.random.default_rng(n).integers(256, size=size, dtype=np.uint8).tobytes() for n, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = [tmp_path_factory.mktemp("tables") / f"{n}.bin" for n in range(len(SIZES))]
    for path, content in zip(made, CONTENTS, strict=True):
        path.write_bytes(content)
    return made


def rows_of(content: bytes, row: int, start: int) -> list[bytes]:
    return [content[at : at + row] for at in range(start, len(content) - row + 1, row)]


@pytest.mark.promise("PYT-15")
@examples(40)
@given(st.lists(st.integers(0, 2**20), max_size=400), st.integers(1, 5000), st.integers(0, 200))
def test_rows_are_numbered_through_the_files_in_their_order(
    paths: list[Path], draws: list[int], row: int, start: int
) -> None:
    table_rows = [one for content in CONTENTS for one in rows_of(content, row, start)]
    rows = [n % len(table_rows) for n in draws]
    out = np.full(len(rows) * row + 1, 0xEE, np.uint8)
    with forebay.open(paths) as table:
        assert table.size == sum(SIZES)
        assert table.gather(rows, row, out, start=start) == len(rows) * row
        assert table.last_report is not None and table.last_report.bytes == len(rows) * row
    assert out[:-1].tobytes() == b"".join(table_rows[n] for n in rows) and out[-1] == 0xEE


@pytest.mark.promise("PYT-15")
@pytest.mark.parametrize(("unit", "row"), [(4096, 512), (4096, 4096), (100, 50), (6, 2)])
def test_rows_of_a_stripe_lie_in_the_files_by_turns(tmp_path: Path, unit: int, row: int) -> None:
    whole = np.random.default_rng(unit).integers(256, size=unit * 3 * 7, dtype=np.uint8).tobytes()
    units = [whole[at : at + unit] for at in range(0, len(whole), unit)]
    for n in range(3):
        (tmp_path / str(n)).write_bytes(b"".join(units[n::3]))
    rows = np.random.default_rng(1).integers(len(whole) // row, size=500, dtype=np.int32)
    out = np.zeros((500, row), np.uint8)
    with forebay.open([tmp_path / str(n) for n in range(3)], stripe_bytes=unit) as table:
        table.gather(rows, row, out)
        with pytest.raises(RequestError, match="multiple of row_bytes"):
            table.gather(rows, unit + 1, out)
        with pytest.raises(RequestError, match=rf"row {len(whole) // row} of"):
            table.gather([len(whole) // row], row, out)
    assert all(out[i].tobytes() == whole[n * row : (n + 1) * row] for i, n in enumerate(rows))


@pytest.mark.promise("PYT-15")
def test_a_row_that_only_the_longer_file_of_a_stripe_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(16))
    (tmp_path / "b").write_bytes(bytes(8))
    with forebay.open([tmp_path / "a", tmp_path / "b"], stripe_bytes=8) as table:
        assert table.gather([0, 1, 2], 8, bytearray(24)) == 24
        with pytest.raises(RequestError, match=r"row 3 of .*b, 8 bytes from 8"):
            table.gather([0, 3], 8, bytearray(24))


@pytest.mark.promise("PYT-15")
def test_offsets_say_where_rows_begin(paths: list[Path]) -> None:
    draw = np.random.default_rng(5).integers
    begins = [np.sort(draw(size - 8, size=50)) if size > 9 else np.array([0, 1]) for size in SIZES]
    rows_by_file = [[content[at : at + 8] for at in table] for content, table in zip(CONTENTS, begins, strict=True)]
    out = bytearray(8 * 300)
    with forebay.open(paths) as table:
        every = [one for rows in rows_by_file for one in rows]
        rows = np.random.default_rng(9).integers(len(every), size=300)
        table.gather(rows, 8, out, offsets=begins)
        assert out == b"".join(every[n] for n in rows)
        with pytest.raises(RequestError, match="an array for each file"):
            table.gather(rows, 8, out, offsets=begins[:1])
    with forebay.open(paths[0]) as file:
        file.gather([3, 0, 3], 8, out, offsets=begins[0])
        assert out[:24] == b"".join(rows_by_file[0][n] for n in (3, 0, 3))


@pytest.mark.promise("PYT-15")
@pytest.mark.parametrize(
    ("rows", "row", "more", "words"),
    [
        ([0, 50], 8, {"offsets": range(50)}, "row 50 of"),
        ([0, 1], 8, {"offsets": [0, SIZES[0] - 7]}, f"row 1 of .*, 8 bytes from {SIZES[0] - 7} on"),
        ([0], 8, {"offsets": [-1]}, "one is negative"),
        ([0], 8, {"offsets": [0.5]}, "integers in one dimension"),
        ([0], 8, {"offsets": [0], "start": 1}, "start=1 with offsets"),
        ([0], SIZES[0] + 1, {"offsets": [0]}, "it has 100003 bytes"),
        ([True], 8, {}, "an array of bool"),
        ([1.0], 8, {}, "an array of float64"),
    ],
)
def test_what_offsets_and_numbers_cannot_be_is_refused(
    paths: list[Path], rows: Any, row: int, more: dict[str, Any], words: str
) -> None:
    out = bytearray(16)
    with forebay.open(paths[0]) as file, pytest.raises(RequestError, match=words):
        file.gather(rows, row, out, **more)
    assert not any(out)


@pytest.mark.promise("PYT-15")
def test_tables_that_cannot_be_are_refused(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no file in the list"):
        forebay.open([])
    with pytest.raises(RequestError, match="stripe_bytes=0"):
        forebay.open(paths, stripe_bytes=0)
    with pytest.raises(RequestError, match="there is one file"):
        forebay.open(paths[0], stripe_bytes=8)  # type: ignore[call-overload]
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RequestError, match="missing"):
        forebay.open([paths[0], tmp_path / "missing"])
    assert len(os.listdir("/proc/self/fd")) == before
    with forebay.open(paths) as table:
        out = bytearray(100)
        count = sum(size // 16 for size in SIZES)
        with pytest.raises(RequestError, match=rf"row {count} of .*rows\[1\] is the first of 1"):
            table.gather([0, count], 16, out)
        with pytest.raises(RequestError, match="the buffer holds 100"):
            table.gather(range(7), 16, out)
        with pytest.raises(RequestError, match="read-only"):
            table.gather([0], 16, bytes(16))
    with pytest.raises(RequestError, match="it is closed"):
        table.gather([0], 16, out)
    assert not any(out)


@pytest.mark.promise("PYT-15")
def test_a_gather_of_several_files_is_awaited_timed_and_cancelled(paths: list[Path]) -> None:
    with forebay.open(paths) as table:
        rows = np.arange(sum(size // 8 for size in SIZES)) % 20_000
        out = bytearray(8 * rows.size)

        async def go() -> int:
            return await table.gather_async(rows, 8, out)

        assert asyncio.run(go()) == len(out)
        future = table.gather_async(rows, 8, out)
        assert future.result(600) == len(out) and future.done() and not future.cancel()
        again = table.gather_async(rows, 8, out)
        if again.cancel():
            assert isinstance(again.exception(), RunError)


class OnGpu:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<i8", "data": (4096, False), "version": 3}


@pytest.mark.promise("PYT-16")
def test_numbers_on_a_gpu_without_a_gpu_are_an_error_that_says_so(paths: list[Path]) -> None:
    with forebay.open(paths[0]) as file, pytest.raises((MachineError, RequestError)):
        file.gather(OnGpu(), 16, bytearray(64))


def test_numbers_on_a_gpu_whose_type_is_not_told_are_refused(paths: list[Path]) -> None:
    class Tensor:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **how: Any) -> Any:
            raise AssertionError("its type is looked at first")

    class Odd(Tensor):
        dtype = "float3_of_somebody"

    with forebay.open(paths[0]) as file:
        for numbers in (Tensor(), Odd()):
            with pytest.raises(RequestError, match="NumPy has no such dtype"):
                file.gather(numbers, 64, bytearray(64))


@pytest.mark.promise("PYT-17")
def test_many_rows_of_a_cached_file_are_the_files_own_also_once_it_changed(tmp_path: Path) -> None:
    """So many are copied out of the mapping, whose pages were asked for a moment ago."""
    path, row = tmp_path / "rows", 100
    content = np.random.default_rng(3).integers(256, size=9_000_321, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    rows = np.random.default_rng(4).integers(content.size // row, size=5000)
    out = np.zeros((5000, row), np.uint8)
    with forebay.open(path) as file:
        for _ in range(3):
            file.gather(rows, row, out)
            assert (out == content[: content.size // row * row].reshape(-1, row)[rows]).all()
        with path.open("r+b", buffering=0) as writer:
            writer.write(bytes(content.size))
        file.gather(rows, row, out)
        assert not out.any()
        os.truncate(path, content.size // 2)
        with pytest.raises((RequestError, RunError)):
            file.gather(rows, row, out)
        few = rows[rows < content.size // 2 // row]
        file.gather(few, row, out)
