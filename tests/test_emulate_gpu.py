"""Emulated batches into a GPU as a user runs them, against the stand-ins: every way, what is refused, Ctrl-C."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import processes
import pytest
import watched
from gpu_stub_support import Gpu, built
from properties import parametrized

MIB = 1 << 20
FILES = 8
SIZE = 4 * MIB + 300
WORKLOAD = f"""
title = "raw files"
format = "raw"
loader = "pytorch"
record_bytes = {SIZE}
samples_per_file = 1
files = {FILES}
batch = 2
compute_s = 0.001
read_threads = 2
prefetch = 2
file_shuffle = true
sample_shuffle = true
epochs = 2
au_pct_min = 0
"""
WAYS = ("direct_bytes", "staged_bytes", "mapped_bytes", "compat_bytes", "fabric_bytes")


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    return Gpu(built(), tmp_path)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command up to its path, over files that are there."""
    (tmp_path / "raw.toml").write_text(WORKLOAD)
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    for n in range(FILES):
        (train / f"img_{n}_of_{FILES}.raw").write_bytes(bytes([n + 1]) * SIZE)
    flags = ["--workload", str(tmp_path / "raw.toml"), "--accelerators", "2", "--power", "none"]
    return ["emulate", "run", *flags, "--data", str(tmp_path / "data"), "--destination", "gpu:0", "--cache", "warm"]


def exact(record: dict[str, Any]) -> int:
    """Bytes that got there; each by one way."""
    read: int = record["training"]["read_bytes"]
    assert sum(record["path"][way] for way in WAYS) == record["result"]["bytes"] == read, record["path"]
    return read


@pytest.mark.promise("TRA-35")
@parametrized(
    ("path", "flags", "ran", "way"),
    [
        ("bounce", [], "bounce", "staged_bytes"),
        ("mapped", ["--pin-limit", "64m"], "mapped", "mapped_bytes"),
        ("gds", ["--allow-compat"], "gds-compat", "compat_bytes"),
        ("auto", [], "mapped", "mapped_bytes"),
    ],
    kept=(0,),
)
def test_batches_reach_the_gpu_by_every_way_and_the_page_says_so(
    gpu: Gpu, words: list[str], tmp_path: Path, path: str, flags: list[str], ran: str, way: str
) -> None:
    saved = tmp_path / "run.json"
    done = gpu.forebay(*words, "--level", "bytes", "--path", path, *flags, "-o", str(saved)).balanced()
    assert done.exit == 0, done.err
    record = json.loads(saved.read_text())
    assert exact(record) == record["path"][way] == 2 * FILES * SIZE
    assert (record["path"]["requested"], record["path"]["ran"]) == (path, ran)
    assert done.books is not None
    # cuFile showed beforehand how it goes.
    looked = MIB if path == "gds" else 0
    came = sum(done.books["to_device_bytes"]) + sum(done.books["cufile_bytes"])
    assert came == 2 * FILES * SIZE + looked
    assert f"{ran} ran" in done.err + done.out, done.err


@pytest.mark.promise("TRA-36")
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--path", "mapped", "--level", "parse"], ["--level bytes", "--path bounce"]),
        (["--path", "gds", "--level", "parse", "--allow-compat"], ["--level bytes", "--path bounce"]),
        (["--path", "mapped", "--level", "bytes", "--cache", "drop"], ["--cache allow"]),
        (["--path", "mapped", "--level", "bytes", "--destination", "drop"], ["--destination gpu:0"]),
        (["--path", "bounce", "--require-direct"], ["no --require-direct"]),
        (["--path", "bounce", "--pin-limit", "1g"], ["no --pin-limit"]),
    ],
)
def test_what_the_host_must_see_is_refused_with_what_to_type(
    gpu: Gpu, words: list[str], flags: list[str], says: list[str]
) -> None:
    done = gpu.forebay(*words, *flags)
    assert done.exit == 2 and all(text in done.err for text in says), done.err
    assert "Traceback" not in done.err


def test_compatibility_mode_wants_leave(gpu: Gpu, words: list[str]) -> None:
    for flags in ([], ["--require-direct", "--cache", "bypass"]):
        done = gpu.forebay(*words, "--level", "bytes", "--path", "gds", *flags)
        assert done.exit == 3 and "--allow-compat" in done.err, done.err


@pytest.mark.long
@pytest.mark.promise("TRA-37")
@parametrized("path", ["bounce", "mapped", "gds"], kept=(0,))
def test_ctrl_c_keeps_what_was_measured_and_every_byte_of_it(
    gpu: Gpu, words: list[str], tmp_path: Path, path: str
) -> None:
    flags = ["--level", "bytes", "--path", path, "--epochs", "10000", "--interval", "50", "--json"]
    flags += ["--allow-compat"] if path == "gds" else []
    witness = tmp_path / "witness.jsonl"
    process = gpu.begin(watched.__file__, witness, *words, *flags)
    processes.wait_until(lambda: watched.epochs_over(witness), "an epoch is over", process)
    process.send_signal(signal.SIGINT)
    done = gpu.ended(process).balanced()
    assert done.exit == 130, done.err
    record = json.loads(done.out)
    assert record["result"]["interrupted"] and exact(record) > 0
    assert done.books is not None
    looked = MIB if path == "gds" else 0
    came = sum(done.books["to_device_bytes"]) + sum(done.books["cufile_bytes"])
    assert came == record["training"]["read_bytes"] + looked


@pytest.mark.long
def test_two_gpus_take_turns(gpu: Gpu, words: list[str]) -> None:
    for path in ("mapped", "gds"):
        flags = ["--level", "bytes", "--path", path, "--destination", "gpu:0,1", "--json"]
        flags += ["--allow-compat"] if path == "gds" else []
        done = gpu.forebay(*words, *flags, cuda="gpus=2").balanced()
        assert exact(done.record) == 2 * FILES * SIZE and done.books is not None
        each = [a + b for a, b in zip(done.books["to_device_bytes"], done.books["cufile_bytes"], strict=True)]
        looked = MIB if path == "gds" else 0
        assert [bytes - looked for bytes in each[:2]] == [FILES * SIZE, FILES * SIZE], each
