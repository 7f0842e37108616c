"""Every path into a GPU, as a user runs it: against the stand-ins, and (marked gpu) against a real one."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import watched
from gpu_stub_support import ROOT, Gpu, built
from properties import parametrized

PATHS = ("bounce", "mapped", "gds")
MIB = 1 << 20


def gpu_of(kind: str, home: Path) -> Gpu:
    return Gpu(built() if kind == "stub" else None, home)


@pytest.fixture(params=["stub", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, tmp_path: Path) -> Gpu:
    """For what holds on any GPU."""
    return gpu_of(request.param, tmp_path)


@pytest.fixture
def stub_gpu(tmp_path: Path) -> Gpu:
    """For what needs a fault, or more than one GPU."""
    return gpu_of("stub", tmp_path)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Gpu, int], Path]:
    home = tmp_path_factory.mktemp("made")

    def make(gpu: Gpu, size: int) -> Path:
        file = home / f"data.{size}"
        if not file.exists():
            ran = gpu.bench(file, "host", "--create", "--file-size", str(size), "--passes", "1", "--io-size", "1m")
            assert ran.exit == 0, ran.err
        return file

    return make


@pytest.fixture
def data(tmp_path: Path, made: Callable[[Gpu, int], Path]) -> Callable[[Gpu, int], Path]:
    """A file of seeded content, of so many bytes, for this test to do with as it likes."""
    return lambda gpu, size: Path(shutil.copy(made(gpu, size), tmp_path))


Data = Callable[[Gpu, int], Path]


def flags_of(path: str) -> list[str]:
    """What a path needs to run on any machine: `mapped` the page cache, `gds` leave to fall back."""
    return {"bounce": [], "mapped": ["--cache", "allow"], "gds": ["--allow-compat"]}[path]


@pytest.mark.parametrize(
    "library, sources",
    [
        ("libcuda.so.1", ["cuda/calls.rs"]),
        ("libcufile.so.0", ["cufile/calls.rs"]),
        ("libnvrtc.so.13", ["nvrtc.rs"]),
    ],
)
def test_the_stand_ins_have_every_symbol_that_is_asked_for(
    stub_gpu: Gpu, library: str, sources: list[str]
) -> None:
    assert stub_gpu.stubs
    texts = [(ROOT / "crates/io/src/gpu" / s).read_text() for s in sources]
    asked = {name for text in texts for name in re.findall(r'b"((?:cu|nvrtc)\w+)\\0"', text)}
    has = ctypes.CDLL(str(stub_gpu.stubs / library))
    assert len(asked) > 10 and not [name for name in asked if not hasattr(has, name)]


# What holds on any GPU ------------------------------------------------------------------------------


@pytest.mark.promise("ENG-11", "GPU-8")
@pytest.mark.parametrize("path", PATHS)
@parametrized("op", ["read", "randread"], kept=(1,))
def test_what_is_read_lands_in_gpu_memory_and_verifies(gpu: Gpu, data: Data, path: str, op: str) -> None:
    size = 5 * MIB + 4096
    flags = ["--op", op, "--io-size", "128k", "--workers", "2", "--depth", "4", "--passes", "2", "--verify"]
    ran = gpu.bench(data(gpu, size), path, *flags_of(path), "--gpu", "0", *flags).balanced()
    result, way = ran.record["result"], ran.record["path"]
    assert result["verified_bytes"] == result["bytes"] and result["errors"]["verify_failed"] == 0
    # The stand-in's cuFile is in compatibility mode, and a record never calls that direct.
    assert way["ran"] in ((path, "gds-compat") if gpu.stubs is None else (path.replace("gds", "gds-compat"),))
    assert way["destination"] == "gpu:0"
    # `--passes` of random reads are counted in I/Os, of which the last may be the short one.
    assert result["bytes"] == 2 * size or op == "randread" and result["bytes"] > size


@pytest.mark.promise("GPU-11")
@parametrized("path", ["bounce", "gds"], kept=(0,))
def test_what_is_written_from_gpu_memory_is_what_the_file_holds(gpu: Gpu, data: Data, path: str) -> None:
    file = data(gpu, 3 * MIB)
    flags = ["--workers", "2", "--depth", "3", "--passes", "1", "--io-size", "256k", "--seed", "11"]
    flags += ["--overwrite", str(file)]
    wrote = gpu.bench(file, path, *flags_of(path), "--gpu", "0", "--op", "write", "--verify", *flags).balanced()
    assert wrote.record["result"]["write_bytes"] == 3 * MIB
    read = gpu.bench(file, "host", "--op", "read", "--verify", "--passes", "1", "--seed", "11")
    assert read.record["result"]["verified_bytes"] == 3 * MIB


@pytest.mark.promise("ENG-11")
@parametrized("path", PATHS, kept=(0,))
def test_a_wrong_byte_is_found_wherever_it_lies(gpu: Gpu, data: Data, path: str) -> None:
    file = data(gpu, 2 * MIB)
    with file.open("r+b") as f:
        f.seek(MIB + 77)
        byte = f.read(1)
        f.seek(MIB + 77)
        f.write(bytes([byte[0] ^ 1]))
    flags = ["--gpu", "0", "--verify", "--passes", "1", "--io-size", "64k"]
    ran = gpu.bench(file, path, *flags_of(path), *flags).balanced()
    assert ran.exit == 1 and json.loads(ran.out)["result"]["errors"]["verify_failed"] == 1, ran.err


def test_a_stripe_is_read_into_gpu_memory(gpu: Gpu, tmp_path: Path) -> None:
    members = [tmp_path / f"member.{i}" for i in range(3)]
    source = "stripe:?chunk=64k&" + "&".join(f"m={m}" for m in members)
    flags = ["--gpu", "0", "--verify", "--passes", "1", "--io-size", "256k"]
    ran = gpu.bench(source, "bounce", "--create", "--file-size", "2m", *flags).balanced()
    assert ran.record["result"]["verified_bytes"] == ran.record["result"]["bytes"] > 2 * MIB


@pytest.mark.promise("GPU-5")
@pytest.mark.parametrize(
    "cufile, flags, exit, says",
    [
        ("mode=p2p", [], 0, "gds"),
        ("mode=nvfs", ["--require-direct"], 0, "gds"),
        ("mode=compat", ["--allow-compat"], 0, "gds-compat"),
        ("mode=compat", [], 3, "--allow-compat"),
        ("mode=mixed", ["--require-direct"], 4, "CU_FILE_IO_NOT_SUPPORTED"),
    ],
)
def test_what_cufile_did_is_what_the_record_says(
    stub_gpu: Gpu, data: Data, cufile: str, flags: list[str], exit: int, says: str
) -> None:
    file = data(stub_gpu, 4 * MIB)
    # What isn't cached can't have been read from there: on a busy machine no meter of the device may cover milliseconds.
    with open(file) as opened:
        os.fsync(opened)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    flags = [*flags, "--gpu", "0", "--io-size", "256k", "--passes", "1", "--verify"]
    ran = stub_gpu.bench(file, "gds", *flags, cufile=cufile).balanced()
    assert ran.exit == exit, ran.err
    if exit:
        assert says in ran.err, ran.err
    else:
        assert ran.record["path"]["ran"] == says


# GPUs that aren't there, or have too little -----------------------------------------------------------


@pytest.mark.promise("FLT-17")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "cuda, says",
    [
        ("gpus=0", "CUDA_ERROR_NO_DEVICE"),
        ("init=803", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        ("init=999", "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_a_driver_that_refuses_is_named(stub_gpu: Gpu, data: Data, path: str, cuda: str, says: str) -> None:
    ran = stub_gpu.bench(data(stub_gpu, MIB), path, *flags_of(path), "--gpu", "0", "--passes", "1", cuda=cuda)
    assert ran.exit == 3 and says in ran.err and "--path host needs no GPU" in ran.err, ran.err


@pytest.mark.promise("FLT-17")
@pytest.mark.parametrize("path", PATHS)
def test_without_a_driver_the_library_is_named(stub_gpu: Gpu, data: Data, path: str) -> None:
    flags = [*flags_of(path), "--gpu", "0", "--passes", "1"]
    ran = stub_gpu.bench(data(stub_gpu, MIB), path, *flags, FOREBAY_LIBCUDA="/nowhere/libcuda.so.1")
    assert ran.exit == 3 and "no CUDA driver: FOREBAY_LIBCUDA: /nowhere/libcuda.so.1" in ran.err, ran.err


@pytest.mark.promise("FLT-17")
def test_a_driver_without_the_calls_is_too_old(stub_gpu: Gpu, data: Data) -> None:
    """Any library without its symbols stands for one."""
    assert stub_gpu.stubs
    old = str(stub_gpu.stubs / "libnvrtc.so.13")
    ran = stub_gpu.bench(data(stub_gpu, MIB), "bounce", "--gpu", "0", "--passes", "1", FOREBAY_LIBCUDA=old)
    assert ran.exit == 3 and "the CUDA driver is too old" in ran.err, ran.err


@pytest.mark.promise("FLT-17")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("asked", ["2", "0,7"])
def test_a_gpu_that_is_not_there_is_refused(stub_gpu: Gpu, data: Data, path: str, asked: str) -> None:
    flags = [*flags_of(path), "--gpu", asked, "--passes", "1"]
    ran = stub_gpu.bench(data(stub_gpu, MIB), path, *flags, cuda="gpus=2").balanced()
    assert ran.exit == 2 and "there are 2 GPUs, counted from 0" in ran.err, ran.err


@pytest.mark.promise("FLT-17")
@parametrized("path", PATHS, kept=(0,))
def test_gpu_memory_that_runs_out_halfway_says_how_much_is_free(stub_gpu: Gpu, data: Data, path: str) -> None:
    flags = ["--gpu", "0", "--workers", "4", "--depth", "4", "--io-size", "1m", "--passes", "1"]
    file = data(stub_gpu, 32 * MIB)
    ran = stub_gpu.bench(file, path, *flags_of(path), *flags, cuda="memory=7m").balanced()
    assert ran.exit == 3 and "CUDA_ERROR_OUT_OF_MEMORY (2)" in ran.err, ran.err
    assert "bytes are free" in ran.err and "a smaller --depth, --workers or --io-size" in ran.err, ran.err


@pytest.mark.promise("FLT-17")
def test_pinned_memory_that_is_refused_says_what_it_was_for(stub_gpu: Gpu, data: Data) -> None:
    file = data(stub_gpu, 4 * MIB)
    for cuda in ("pin=1m", "fail=cuMemHostRegister_v2:2:2"):
        flags = ["--gpu", "0", "--workers", "2", "--io-size", "1m", "--passes", "1"]
        ran = stub_gpu.bench(file, "bounce", *flags, cuda=cuda).balanced()
        assert ran.exit == 3 and "bytes of host memory for GPU 0" in ran.err, ran.err


# GPUs that fail midway ------------------------------------------------------------------------------


MIDWAY = [
    ("destroyed=200", "CUDA_ERROR_CONTEXT_IS_DESTROYED (709)"),
    ("fail=copy:20:700", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
    ("fail=cuEventQuery:9+:719", "CUDA_ERROR_LAUNCH_FAILED (719)"),
    ("fail=cuMemcpyHtoDAsync_v2:9+:999", "CUDA_ERROR_UNKNOWN (999)"),
]


@pytest.mark.promise("FLT-18", "FLT-20")
@parametrized("cuda, says", MIDWAY, kept=(0,))
@pytest.mark.parametrize("path", PATHS)
def test_a_gpu_that_fails_midway_fails_the_run_and_leaves_nothing(
    stub_gpu: Gpu, data: Data, path: str, cuda: str, says: str
) -> None:
    flags = ["--gpu", "0", "--workers", "2", "--io-size", "64k", "--passes", "4", "--verify"]
    file = data(stub_gpu, 8 * MIB)
    ran = stub_gpu.bench(file, path, *flags_of(path), *flags, cuda=f"delay_us=200,{cuda}").balanced()
    # cuFile's own calls, and launches, may go on, and only the check of what they brought fail.
    goes_on = path == "gds" or (path == "bounce" and "cuMemcpy" in cuda)
    assert ran.exit == 4 or (ran.exit == 1 and goes_on), ran.err
    # Where the context goes while cuFile has the call, cuFile says in its own words that the address is no GPU's.
    in_cufile = path == "gds" and "destroyed" in cuda and "CU_FILE_CUDA_POINTER_INVALID" in ran.err
    assert says in ran.err + ran.out or in_cufile, ran.err


@pytest.mark.promise("FLT-17", "FLT-20")
@parametrized("nth", [1, 2, 3, 5], kept=(0,))
@pytest.mark.parametrize("call", ["cuMemAlloc_v2", "cuStreamCreate", "cuEventCreate"])
def test_whatever_cannot_be_made_is_named_and_the_rest_unmade(
    stub_gpu: Gpu, data: Data, call: str, nth: int
) -> None:
    flags = ["--gpu", "0", "--workers", "2", "--io-size", "64k", "--passes", "1"]
    ran = stub_gpu.bench(data(stub_gpu, 4 * MIB), "bounce", *flags, cuda=f"fail={call}:{nth}:2").balanced()
    assert ran.books
    if ran.books["calls"].get(call, 0) < nth:
        assert ran.exit == 0, ran.err
    else:
        assert ran.exit in (3, 4) and "CUDA_ERROR_OUT_OF_MEMORY (2)" in ran.err, ran.err


# A file that changes under its registrations --------------------------------------------------------


PASS_IOS = 64


def cut(file: Path) -> None:
    os.truncate(file, 5 * MIB)


def overwrite(file: Path) -> None:
    with file.open("r+b") as f:
        f.seek(9 * MIB)
        f.write(b"X" * 5000)


def replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"y" * file.stat().st_size)
    os.replace(other, file)


@pytest.mark.long
@pytest.mark.promise("ENG-13")
@pytest.mark.parametrize(
    "change, says",
    [
        (cut, "it was truncated"),
        # Those that crates/bench/tests/gpu/mapped.rs has, too.
        pytest.param(overwrite, "it was written to", marks=pytest.mark.long),
        pytest.param(replace, "another file took its place", marks=pytest.mark.long),
        pytest.param(Path.unlink, "it was deleted or renamed", marks=pytest.mark.long),
    ],
)
def test_a_file_that_changes_under_its_registrations_fails_the_run(
    gpu: Gpu, data: Data, change: Callable[[Path], None], says: str
) -> None:
    """The GPU would go on reading the old pages, and the CPU be killed by those that are gone."""
    file = data(gpu, PASS_IOS * (256 << 10))
    flags = ["--gpu", "0", "--workers", "2", "--io-size", "256k", "--duration", "600", "--verify"]
    words = ["bench", file, "--path", "mapped", *flags_of("mapped"), *flags, "--power", "none"]
    witness = gpu.home / "witness"
    running = gpu.begin(watched.__file__, witness, *words, "--json", "--quiet")

    def ios() -> int:
        return max((p["ios"] for p in watched.reported(witness) if p["phase"] == "measure"), default=0)

    # Every byte was read once, and its window asked for.
    processes.wait_until(lambda: ios() > 2 * PASS_IOS, "the file was read twice", running)
    change(file)
    if change is overwrite:
        # It goes on: what is read from now on is whole again.
        seen = ios()
        processes.wait_until(lambda: ios() > seen + 2 * PASS_IOS, "it was read twice more", running)
        running.send_signal(signal.SIGINT)
    ran = gpu.ended(running).balanced(source_changes=True)
    errors = json.loads(ran.out)["result"]["errors"]
    assert ran.exit == (130 if change is overwrite else 4) and says in ran.err, ran.err
    # Bytes of the file as it is now are no error of the path; bytes of pages that it lost would be.
    assert errors["failed"] > 0 and (change is overwrite or errors["verify_failed"] == 0), errors


# Several GPUs -----------------------------------------------------------------------------------------


@pytest.mark.promise("ENG-11", "GPU-13")
@parametrized("path", PATHS, kept=(0,))
def test_two_gpus_are_fed_at_once_each_its_share(stub_gpu: Gpu, data: Data, path: str) -> None:
    flags = ["--gpu", "0,1", "--workers", "2", "--io-size", "64k", "--passes", "2", "--verify"]
    ran = stub_gpu.bench(data(stub_gpu, 6 * MIB), path, *flags_of(path), *flags, cuda="gpus=2").balanced()
    result = ran.record["result"]
    assert ran.record["path"]["destination"] == "gpu:0,1"
    assert result["verified_bytes"] == result["bytes"] == 12 * MIB
    assert [g["gpu"] for g in result["gpus"]] == [0, 1] and all(g["bytes"] for g in result["gpus"])
    assert ran.books and (path == "gds" or all(n > 0 for n in ran.books["to_device_bytes"]))


@pytest.mark.parametrize(
    ("settings", "state", "says"),
    [("gpus=2", "not_applicable", "don't read it"), ("gpus=2,pageable=1", "works", "by HMM"), ("pageable=2", "works", "ATS")],
)
def test_doctor_says_whether_gpus_read_unregistered_memory(stub_gpu: Gpu, settings: str, state: str, says: str) -> None:
    ran = stub_gpu.forebay("doctor", "--json", cuda=settings)
    report = json.loads(ran.out)
    [check] = [c for c in report["checks"] if c["id"] == "gpu.pageable"]
    assert check["state"] == state and says in check["found"] and check["why"], check
    assert all(gpu["reads"] == (state == "works") for gpu in report["gpu"]["pageable"]["gpus"])
    assert len(report["gpu"]["pageable"]["gpus"]) == len(report["gpu"]["gpus"])
