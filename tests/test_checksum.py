"""`forebay checksum` and `forebay.crc32c`, against the definition bit by bit."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import forebay
import processes
import pytest
from forebay.errors import RequestError

ROOT = Path(__file__).resolve().parent.parent
NO_GPU = {"FOREBAY_LIBCUDA": "/nowhere/libcuda.so"}


def table() -> list[int]:
    words = []
    for word in range(256):
        for _ in range(8):
            word = word >> 1 ^ (0x82F63B78 if word & 1 else 0)
        words.append(word)
    return words


TABLE = table()


def truth(data: bytes) -> int:
    total = 0xFFFFFFFF
    for byte in data:
        total = total >> 8 ^ TABLE[(total ^ byte) & 255]
    return total ^ 0xFFFFFFFF


def expected(data: bytes) -> int:
    """The truth is slow; of much data what is compared with it below."""
    return truth(data) if len(data) < 1 << 20 else forebay.crc32c(data)


def checksum(*arguments, **environment):
    return processes.run(
        [sys.executable, "-m", "forebay.cli", "checksum", *map(str, arguments)],
        env={**os.environ, **NO_GPU, **environment},
    )


@pytest.mark.promise("CMD-7", "VER-6")
def test_each_file_has_the_standards_checksum_whatever_its_length(tmp_path):
    source = random.Random(5)
    sizes = [0, 1, 9, 4096, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 77]
    files = [tmp_path / f"f{size}" for size in sizes]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(source.randbytes(size))
    done = checksum(*files, "--json", "--workers", 3)
    record = json.loads(done.stdout)
    assert record["schema"] == "forebay.checksum/1"
    assert [(r["file"], r["bytes"]) for r in record["files"]] == [(str(f), f.stat().st_size) for f in files]
    assert [int(r["crc32c"], 16) for r in record["files"]] == [expected(f.read_bytes()) for f in files]
    assert record["bytes"] == sum(sizes) and record["throughput_gib_s"] > 0 and record["setup_s"] >= 0


@pytest.mark.promise("VER-6")
def test_without_a_gpu_the_host_computes_and_the_record_says_why(tmp_path):
    file = tmp_path / "digits"
    file.write_bytes(b"123456789")
    record = json.loads(checksum(file, "--json").stdout)
    assert (record["computed_on"], record["path"]) == ("host", "host")
    assert "FOREBAY_LIBCUDA" in record["reason"]
    asked = json.loads(checksum(file, "--json", "--path", "host").stdout)
    assert asked["computed_on"] == "host" and asked["reason"] is None
    done = checksum(file)
    assert done.stdout.split() == ["e3069283", "9", str(file)]
    assert "computed on host" in done.stderr


@pytest.mark.promise("VER-6")
def test_a_gpu_that_is_not_there_is_refused_where_it_was_asked_for(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"1")
    for flags in (("--gpu", "0"), ("--path", "bounce")):
        done = checksum(file, *flags)
        assert done.returncode == 3 and "try:" in done.stderr and not done.stdout


@pytest.mark.promise("VER-6")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere"], 2, "nowhere"),
        (["."], 2, "isn't a regular file"),
        (["f", "--path", "gds"], 2, "--path gds"),
        (["f", "--gpu", "x"], 2, "--gpu"),
        (["f", "--workers", "0"], 2, "--workers 0"),
        (["f", "--path", "host", "--gpu", "0"], 2, "--gpu"),
        ([], 2, "FILE"),
    ],
)
def test_a_wrong_request_is_named(tmp_path, monkeypatch, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_bytes(b"1")
    done = checksum(*arguments)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("VER-7")
def test_memory_has_the_checksum_of_its_bytes():
    data = random.Random(1).randbytes((1 << 20) + 3)
    assert forebay.crc32c(b"123456789") == 0xE3069283 and forebay.crc32c(b"") == 0
    assert (
        forebay.crc32c(data)
        == forebay.crc32c(bytearray(data))
        == forebay.crc32c(memoryview(data))
        == truth(data)
    )
    assert forebay.crc32c(memoryview(data)[: 1 << 20].cast("I")) == truth(data[: 1 << 20])
    with pytest.raises(RequestError, match="contiguous"):
        forebay.crc32c(memoryview(data)[::2])


# An array as CuPy shows it, made by the driver's own calls.
ARRAY = """
import ctypes, os, sys
import forebay
from forebay.errors import RequestError

cuda = ctypes.CDLL(os.environ["FOREBAY_LIBCUDA"])
context, at = ctypes.c_void_p(), ctypes.c_uint64()
data = b"123456789" * 1000

def call(name, *arguments):
    assert getattr(cuda, name)(*arguments) == 0, name

call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(len(data)))
call("cuMemcpyHtoDAsync_v2", at, data, ctypes.c_size_t(len(data)), None)
call("cuStreamSynchronize", None)

class Array:
    def __init__(self, begin, size, **more):
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (at.value + begin, False), "version": 3, **more}

for begin, size in [(0, 9), (0, 9000), (3, 4321), (5, 0)]:
    assert forebay.crc32c(Array(begin, size)) == forebay.crc32c(data[begin : begin + size]), (begin, size)
try:
    forebay.crc32c(Array(0, 10, strides=(2,)))
except RequestError as error:
    assert "contiguous" in str(error)
else:
    sys.exit("an array with gaps has no checksum")
"""


@pytest.mark.promise("VER-7")
def test_an_array_in_gpu_memory_is_summed_up_there(tmp_path):
    made = ROOT / "target/gpu-stubs"
    built = processes.run([ROOT / "tests/gpu_stubs/build", made])
    assert built.returncode == 0, built.stderr
    books = tmp_path / "books.json"
    stub = {
        "FOREBAY_LIBCUDA": str(made / "libcuda.so.1"),
        "FOREBAY_LIBNVRTC": str(made / "libnvrtc.so.13"),
        "FOREBAY_STUB_LEDGER": str(books),
    }
    done = processes.run(
        [sys.executable, "-c", ARRAY], env={**os.environ, **stub}
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(books.read_text())["launches"] >= 3
