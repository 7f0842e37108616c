"""What callers from Python pass in place of offsets, sizes and names: refused as RequestError, by the parameter's own name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import pytest
from forebay.datasets import Rows
from forebay.errors import RequestError

CONTENT = os.urandom(4096)
BUFFER = bytearray(4096)
FAR = 1 << 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "data.bin"
    made.write_bytes(CONTENT)
    return made


@pytest.mark.promise("PYT-22")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: f.read_into(BUFFER, FAR), f"offset={FAR}: is beyond 64 bits"),
        (lambda f: f.read_into(BUFFER, 0, FAR), f"size={FAR}: is beyond 64 bits"),
        (lambda f: f.read_into(BUFFER, 0.5), "offset=0.5: is of type float"),
        (lambda f: f.read_into(BUFFER, 0, "all"), "size='all': is of type str"),
        (lambda f: f.read_at([0], 0.5, BUFFER), "size=0.5: is of type float"),
        (lambda f: f.read_at([0], FAR, BUFFER), f"size={FAR}: is beyond"),
        (lambda f: f.gather([0], 512, BUFFER, start=FAR), f"start={FAR}: is beyond"),
        (lambda f: f.gather([0], 512, BUFFER, start=FAR - 1), "it has 0 rows"),
        (lambda f: f.gather([0], 1.5, BUFFER), "row_bytes=1.5: is of type float"),
        (lambda f: f.gather([0], FAR, BUFFER), f"row_bytes={FAR}: is beyond"),
        (lambda f: f.read_ranges([(0, 10, BUFFER), (0, 10)]), r"ranges\[1\]: isn't \(offset, size, buffer\)"),
        (lambda f: f.read_ranges([7]), r"ranges\[0\]: isn't"),
        (lambda f: forebay.open([f.name, f.name]).gather([0], 512, BUFFER, start=FAR), f"start={FAR}: is beyond"),
        (lambda f: forebay.open([f.name], stripe_bytes=0.5), "stripe_bytes=0.5: is of type float"),
        (lambda f: forebay.open(f.name, 7), "path=7: is of type int"),
        (lambda f: forebay.read_files(f.name, BUFFER), "it is one path\n  try: a list of paths: \\['"),
        (lambda f: forebay.read_files([f.name], BUFFER, sizes=[0.5]), "sizes=0.5: is of type float"),
        (lambda f: forebay.read_files([f.name], BUFFER, align=0.5), "align=0.5: is of type float"),
        (lambda f: Rows(f.name, (0.5,), np.float32), "shape=0.5: is of type float"),
    ],
)
def test_what_is_no_offset_or_size_is_named_by_its_parameter(path: Path, call: Any, words: str) -> None:
    with forebay.open(path) as file, pytest.raises(RequestError, match=words):
        call(file)


@pytest.mark.promise("PYT-22")
@pytest.mark.parametrize("value", [np.int32(5), np.uint64(5), True])
def test_integers_of_any_type_are_offsets(path: Path, value: Any) -> None:
    with forebay.open(path) as file:
        assert file.read_into(BUFFER, value, np.int16(7)) == 7
        assert BUFFER[:7] == CONTENT[int(value) :][:7]


@pytest.mark.promise("PYT-22")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (5, "open 5: its name is of type int"),
        (None, "open None: its name is of type NoneType"),
        ("a\0b", r"open 'a\\x00b': a name has no null character"),
        (b"a\0b", "has no null character"),
        (b"\xff", "its name isn't UTF-8"),
        ("a\udcff", "its name isn't UTF-8"),
    ],
)
def test_what_is_no_name_is_refused(name: Any, words: str) -> None:
    for call in (
        lambda: forebay.open(name),
        lambda: forebay.open([name]),
        lambda: forebay.read_files([name], BUFFER),
        lambda: forebay.safetensors.open(name),
        lambda: Rows([name], (4,), np.uint8),
    ):
        with pytest.raises(RequestError, match=words):
            call()


@pytest.mark.promise("PYT-22")
def test_a_name_in_bytes_is_a_path(path: Path) -> None:
    name = os.fsencode(path)
    with forebay.open(name) as file:
        assert file.name == str(path) and file.read_into(BUFFER) == 4096 and BUFFER == CONTENT
    assert forebay.open([name, path]).size == 8192
    assert forebay.read_files([name], BUFFER).sizes == [4096]
    assert bytes(Rows(name, (4,), np.uint8)[1]) == CONTENT[4:8]


@pytest.mark.parametrize("index", [1.5, None])
def test_what_is_no_index_of_rows_is_a_type_error(path: Path, index: Any) -> None:
    with pytest.raises(TypeError, match="the index of Rows is an integer"):
        Rows(path, (4,), np.uint8)[index]


def test_the_package_completes_its_names_and_loads_them_when_used() -> None:
    """Also those of modules that need what isn't installed: help() reads them all."""
    import inspect

    import forebay

    names = dir(forebay)
    assert {"open", "File", "read_files", "feed", "torch", "__version__"} <= set(names)
    assert inspect.ismodule(forebay.feed) and {name for name, _ in inspect.getmembers(forebay)} <= set(names)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = forebay.reads  # type: ignore[attr-defined]
