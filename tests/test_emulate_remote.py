"""Emulated training from a data set that is packed in one source, a file, a namespace over NVMe/TCP or an emulated drive: all
of it, and columns."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import snap_support
from properties import parametrized
from serve_support import NQN, Target

FILES, SIDE, BEGIN, BLOCK = 24, 192, 1 << 20, 4096
WORKLOAD = f"""
title = "small npz files"
format = "npz"
loader = "pytorch"
record_bytes = {SIDE * SIDE}
samples_per_file = 1
files = {FILES}
batch = 2
compute_s = 0.01
read_threads = 2
prefetch = 2
file_shuffle = true
sample_shuffle = true
epochs = 2
au_pct_min = 0
"""

TABLE = f"""
title = "a table of which few columns are read"
format = "parquet"
loader = "pytorch"
columns = [
  {{ name = "a", type = "float32", values = 500, read = true }},
  {{ name = "b", type = "float32", values = 4000, read = false }},
  {{ name = "c", type = "int64", values = 1, read = true }},
]
record_bytes = 18008
samples_per_file = 40
row_group = 10
files = {FILES // 4}
batch = 8
compute_s = 0.01
read_threads = 2
prefetch = 2
epochs = 2
au_pct_min = 0
"""


def packed() -> bytearray:
    """The manifest, a NUL, and from 1 MiB on the files, each from a block on."""
    random = np.random.default_rng(7)
    files = []
    for _ in range(FILES):
        content = io.BytesIO()
        np.savez(content, x=random.integers(0, 255, (SIDE, SIDE, 1), dtype=np.uint8), y=np.zeros(1, np.int64))
        files.append(content.getvalue())
    manifest = {
        "schema": "forebay.dataset/1",
        "workload": "small",
        "format": "npz",
        "files": FILES,
        "samples_per_file": 1,
        "record_bytes": SIDE * SIDE,
        "data_begin": BEGIN,
        "file_bytes": [len(file) for file in files],
    }
    space = bytearray(json.dumps(manifest).encode().ljust(BEGIN, b"\0"))
    for file in files:
        space += file.ljust(-(-len(file) // BLOCK) * BLOCK, b"\0")
    return space


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(WORKLOAD)
    (tmp_path / "space").write_bytes(packed())
    return tmp_path / "space"


@contextmanager
def namespace(engine: str, space: Path) -> Iterator[str]:
    """The URI under which `space` is read by that engine, while the block lasts."""
    if engine == "vfio-user":
        with snap_support.drive(space.parent, space) as uri:
            yield uri
    else:
        with Target(space, "--nqn", NQN) as target:
            yield target.uri()


@pytest.mark.promise("TRA-13", "VUD-7")
@parametrized("engine", ["nvme-tcp", "vfio-user"], kept=(0,))
def test_a_data_set_on_a_remote_namespace_is_read_through_it(
    forebay: Callable[..., subprocess.CompletedProcess[str]], space: Path, engine: str
) -> None:
    flags = ("emulate", "run", "--workload", "small.toml", "--accelerators", "2", "--json", "--data")
    with namespace(engine, space) as uri:
        remote = forebay(*flags, uri)
    local = forebay(*flags, space)
    found = [json.loads(done.stdout) for done in (remote, local)]
    for record in found:
        training = record["training"]
        assert (training["samples"], training["steps"], training["skipped"]["count"]) == (48, 6, 0)
        assert training["payload_bytes"] >= 48 * SIDE * SIDE and record["origin"] == "measured"
    assert found[0]["path"]["engine"] == engine
    assert found[0]["training"]["read_bytes"] == found[1]["training"]["read_bytes"]


@pytest.mark.long
@pytest.mark.promise("VUD-7")
def test_a_data_set_is_made_on_an_emulated_drive(
    forebay: Callable[..., subprocess.CompletedProcess[str]], space: Path
) -> None:
    space.write_bytes(bytes(16 << 20))
    workload = ("--workload", "small.toml")
    with snap_support.drive(space.parent, space, writable=True) as uri:
        refused = forebay("emulate", "datagen", *workload, "--data", uri)
        assert refused.returncode == 2 and f"--overwrite-device {uri}" in refused.stderr, refused.stderr
        assert space.read_bytes() == bytes(16 << 20)
        made = forebay("emulate", "datagen", *workload, "--data", uri, "--overwrite-device", uri, "--check")
        assert made.returncode == 0, made.stderr
    done = forebay("emulate", "run", *workload, "--accelerators", "2", "--json", "--data", space)
    training = json.loads(done.stdout)["training"]
    assert (training["samples"], training["skipped"]["count"]) == (48, 0), done.stderr


@pytest.mark.long
@pytest.mark.promise("TRA-14")
def test_columns_of_a_table_on_a_remote_namespace_are_read_and_no_others(
    forebay: Callable[..., subprocess.CompletedProcess[str]], space: Path
) -> None:
    Path("table.toml").write_text(TABLE)
    with space.open("wb") as file:
        file.truncate(32 << 20)
    workload = ("--workload", "table.toml")
    made = forebay("emulate", "datagen", *workload, "--data", space, "--overwrite-device", space, "--check")
    assert made.returncode == 0, made.stderr
    flags = ("emulate", "run", *workload, "--json", "--data")
    with Target(space, "--nqn", NQN) as target:
        remote = forebay(*flags, f"nvme+tcp://127.0.0.1:{target.port}/{NQN}")
    local = forebay(*flags, space)
    found = [json.loads(done.stdout)["training"] for done in (remote, local)]
    for training in found:
        assert (training["samples"], training["skipped"]["count"]) == (2 * 240, 0)
        # Two columns of three, whose pages have a head, and the tail of each file.
        content = 2 * 240 * (500 * 4 + 8)
        assert content < training["read_bytes"] < content + 2 * 6 * (65536 + 4096)
        assert content <= training["payload_bytes"] < content * 1.1
    assert found[0]["read_bytes"] == found[1]["read_bytes"]


def test_a_source_without_a_data_set_is_refused(
    forebay: Callable[..., subprocess.CompletedProcess[str]], space: Path
) -> None:
    space.write_bytes(b"\x07" * (2 << 20))
    done = forebay("emulate", "run", "--workload", "small.toml", "--accelerators", "2", "--data", space)
    assert done.returncode == 2 and "no manifest" in done.stderr and "Traceback" not in done.stderr
