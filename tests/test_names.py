"""Names that `read_files` and its kin take: paths. A URI, which `forebay.open` takes, is answered with what to read instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import pytest
from forebay import _core
from forebay.datasets import Rows
from forebay.errors import RequestError

SCHEMES = [source["scheme"] for source in json.loads(_core.tables())["sources"]]
READERS: dict[str, Callable[[Any], object]] = {
    "open of several": lambda name: forebay.open([name]),
    "read_files": lambda name: forebay.read_files([name], bytearray(10)),
    "Rows": lambda name: Rows(name, (4,), np.float32),
    "safetensors": forebay.safetensors.open,
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.promise("PYT-21")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "uri", [*(f"{scheme}:x" for scheme in SCHEMES), "nvme+tcp://127.0.0.1/nqn.x", Path("nvme+tcp://127.0.0.1/nqn.x"), "s3://a/b"]
)
def test_a_uri_is_refused_with_what_is_read_instead(reader: str, uri: str | Path) -> None:
    with pytest.raises(RequestError) as refused:
        READERS[reader](uri)
    error = refused.value
    assert str(uri) in error.asked and "URI" in error.found and "files and block devices" in error.found
    assert error.next and error.exit_code == 2


@pytest.mark.promise("PYT-21")
@pytest.mark.parametrize(
    ("uri", "instead"),
    [
        ("vfio-user:/run/forebay.sock", "/dev/ublkb0"),
        ("nvme+tcp://127.0.0.1/nqn.x", "nvme connect -t tcp"),
        ("stripe:?m=a&m=b", "stripe_bytes="),
        ("file:/mnt/data", "without file:"),
    ],
)
def test_what_to_open_instead_is_the_schemes_own(uri: str, instead: str) -> None:
    with pytest.raises(RequestError) as refused:
        forebay.read_files([uri], bytearray(10))
    assert instead in refused.value.next


@pytest.mark.promise("PYT-21")
def test_a_file_whose_name_has_a_colon_is_a_file() -> None:
    for name, found in (("nil:", "moves no bytes"), ("features:2026.bin", "no such file"), ("s3://a/b", "not that of a source")):
        with pytest.raises(RequestError, match=found):
            forebay.open(name)
        if "//" in name:
            continue
        Path(name).write_bytes(b"content")
        with forebay.open(name) as file:
            assert file.read_into(buffer := bytearray(7)) == 7 and buffer == b"content"
