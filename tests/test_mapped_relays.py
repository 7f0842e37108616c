"""The first pass of `--path mapped` over a file that is read in order: some windows are copied by processors while the others
are registered."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import processes
import pytest
from gpu_stub_support import Gpu, Ran, built
from properties import parametrized

MIB = 1 << 20
SIZE = 256 * MIB + 12_288
# Windows of 16 MiB, an eighth of what is in flight.
FLAGS = ["--gpu", "0", "--cache", "warm", "--workers", "1", "--io-size", "4m", "--depth", "32", "--verify"]
WINDOWS = 17
# The last one isn't worth it.
REGISTERED = 16
# So slow that about every fourth window is left out.
SLOW = "register_us=64"

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one processor nothing is mixed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("made")
    file = home / "data"
    gpu = Gpu(built(), home)
    ran = gpu.bench(file, "host", "--create", "--file-size", str(SIZE), "--passes", "1", "--io-size", "1m")
    assert ran.exit == 0, ran.err
    return file


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    return Gpu(built(), tmp_path)


def read(gpu: Gpu, file: Path, *more: str, **settings: str) -> Ran:
    return gpu.bench(file, "mapped", *FLAGS, *more, **settings)


@pytest.mark.promise("GPU-23")
def test_the_first_pass_is_mixed_and_says_so(gpu: Gpu, made: Path) -> None:
    ran = read(gpu, made, "--passes", "1", cuda=SLOW).balanced()
    result, path = ran.record["result"], ran.record["path"]
    assert result["verified_bytes"] == result["bytes"] == SIZE, result
    mapped = path["mapped"]
    assert mapped["window_bytes"] == 16 * MIB and mapped["windows"] == WINDOWS
    assert mapped["left"] > 0 and path["staged_bytes"] > 0 and path["mapped_bytes"] > 0, path
    # Of some, the kernel had taken back pages of the cache.
    assert sum(mapped[each] for each in ("registrations", "left", "uncached")) >= REGISTERED, str(mapped)
    assert path["staged_bytes"] + path["mapped_bytes"] == SIZE
    copied = "processors copied them while the first pass registered the others"
    assert ("they weren't in the page cache" if mapped["uncached"] else copied) in path["reason"]


@pytest.mark.long
@pytest.mark.promise("GPU-23")
def test_later_passes_register_the_rest(gpu: Gpu, made: Path) -> None:
    ran = read(gpu, made, "--passes", "3", cuda=SLOW).balanced()
    result, path = ran.record["result"], ran.record["path"]
    assert result["verified_bytes"] == result["bytes"] == 3 * SIZE
    assert path["mapped"]["registrations"] == REGISTERED, path["mapped"]
    # In the second pass a window may be asked for when its bytes are on their way already.
    assert 0 < path["staged_bytes"] < 2 * SIZE


@pytest.mark.long
@pytest.mark.promise("GPU-23")
@pytest.mark.parametrize(
    "flags",
    [
        ["--pin-limit", "128m"],
        pytest.param(["--depth", "8"], marks=pytest.mark.long),
        pytest.param(["--op", "randread"], marks=pytest.mark.long),
    ],
)
def test_it_is_not_mixed(gpu: Gpu, made: Path, flags: list[str]) -> None:
    """Where not all of it may stay registered, where too little is in flight, and out of order."""
    ran = read(gpu, made, "--passes", "1", *flags, cuda=SLOW).balanced()
    assert ran.record["path"]["mapped"]["left"] == 0, ran.record["path"]


@pytest.mark.long
@pytest.mark.promise("GPU-23")
@pytest.mark.parametrize(
    "settings",
    [
        "fail=cuStreamWaitValue32_v2:4+:801",
        pytest.param("fail=cuStreamWaitValue32_v2:1+:801", marks=pytest.mark.long),
        pytest.param("fail=cuStreamWriteValue32_v2:1+:801", marks=pytest.mark.long),
    ],
)
def test_without_waits_for_values_what_was_left_is_bounced(gpu: Gpu, made: Path, settings: str) -> None:
    ran = read(gpu, made, "--passes", "1", cuda=f"{SLOW},{settings}").balanced()
    result, path = ran.record["result"], ran.record["path"]
    assert result["verified_bytes"] == result["bytes"] == SIZE
    assert path["staged_bytes"] > 0, path


@pytest.mark.promise("GPU-23")
@parametrized("settings", ["fail=cuStreamWriteValue32_v2:6:801", "fail=copy:9:700", "destroyed=90"], kept=(1,))
def test_a_failure_on_the_way_ends_the_run_with_what_was_measured(gpu: Gpu, made: Path, settings: str) -> None:
    ran = read(gpu, made, "--passes", "1", cuda=f"{SLOW},{settings}")
    assert ran.exit in (3, 4) and "CUDA" in ran.err, (ran.exit, ran.err)


@pytest.mark.long
def test_a_file_that_is_cut_off_meanwhile_is_not_read_to_its_end(gpu: Gpu, made: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(made, tmp_path / "cut"))
    words = ["-m", "forebay.cli", "bench", str(file), "--path", "mapped", *FLAGS, "--passes", "1", "--power", "none", "--json"]
    running = gpu.begin(*words, "--quiet", cuda="register_us=20000")
    # Registering takes 0.3 s a window.
    maps = Path(f"/proc/{running.pid}/maps")
    processes.wait_until(lambda: str(file) in maps.read_text(), "the file is mapped", running)
    os.truncate(file, 40 * MIB)
    ran = gpu.ended(running)
    assert ran.exit == 4 and "truncated" in ran.err, (ran.exit, ran.err)
