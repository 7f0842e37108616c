"""Scenarios of `forebay.open` into memory of a GPU: against a stand-in for libcuda whose device memory lies in the
host's, or, as `make test-gpu` asks, against the real one. Each is a process of its own, since a driver is loaded once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest

ROOT = Path(__file__).resolve().parent.parent
SIZE = 9_000_321

# What each scenario begins with: the content, a device array made by the driver's own calls, and what is alive.
BEGIN = """
import ctypes, gc, json, os, sys, threading, time
import forebay
from forebay.errors import ForebayError, MachineError, RequestError, RunError

path, SIZE = sys.argv[1], int(sys.argv[2])
content = open(path, "rb").read()
cuda = ctypes.CDLL(os.environ["FOREBAY_LIBCUDA"])
void = ctypes.c_void_p

def call(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, (name, code)

def begin(gpu=0):
    context = void()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    call("cuCtxSetCurrent", context)

class Array:
    # As CuPy shows its memory.
    def __init__(self, size, gpu=0, **more):
        begin(gpu)
        self.size, self.at = size, ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_size_t(size))
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (self.at.value, False), "version": 3, **more}
    def part(self, begin, size):
        view = Array.__new__(Array)
        view.size, view.at, view.whole = size, ctypes.c_uint64(self.at.value + begin), self
        view.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (view.at.value, False), "version": 3}
        return view
    def bytes(self):
        got = ctypes.create_string_buffer(self.size)
        begin()
        call("cuMemcpyDtoHAsync_v2", got, self.at, ctypes.c_size_t(self.size), None)
        call("cuStreamSynchronize", None)
        return got.raw[:self.size]
    def free(self):
        call("cuMemFree_v2", self.at)

def live():
    # What is alive, by the stand-in's books; a real driver keeps none.
    if not hasattr(cuda, "forebay_stub_ledger"):
        return {"live": {"registrations": 0, "streams": 0, "events": 0, "registered_bytes": 1 << 60}}
    text = ctypes.create_string_buffer(1 << 16)
    cuda.forebay_stub_ledger(text, ctypes.c_size_t(len(text)))
    return json.loads(text.value)

def descriptors():
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try: name = os.readlink(f"/proc/self/fd/{fd}")
        except OSError: continue
        # A real driver opens its own when it likes.
        if hasattr(cuda, "forebay_stub_ledger") or path in name:
            found.add((fd, name))
    return found
"""


ON_REAL_GPU = os.environ.get("FOREBAY_TEST_GPU") == "1"
# Runs the code after BEGIN, with settings of the stand-in, a library in place of its NVRTC, and variables of its environment;
# its books, {} on a real GPU.
Scenario = Callable[..., dict[str, Any]]


def run_again_on_it(file: str) -> None:
    """The scenarios of a test file, on the real GPU."""
    if ON_REAL_GPU:
        pytest.skip("they are running on it")
    done = processes.run(
        [sys.executable, "-m", "pytest", "-q", file],
        env={**os.environ, "FOREBAY_TEST_GPU": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def stub() -> Path:
    if ON_REAL_GPU:
        return Path("libcuda.so.1")
    made = ROOT / "target/gpu-stubs"
    done = processes.run([ROOT / "tests/gpu_stubs/build", made])
    assert done.returncode == 0, done.stderr
    return made / "libcuda.so.1"


@pytest.fixture
def scenario(stub: Path, tmp_path: Path) -> Scenario:
    data = tmp_path / "data.bin"
    block = bytes(range(251)) * 4001
    data.write_bytes((block * (SIZE // len(block) + 1))[:SIZE])

    def run(code: str, settings: str = "", nvrtc: str | None = None, **environment: str) -> dict[str, Any]:
        if ON_REAL_GPU and settings not in ("", "hash=0") and not settings.startswith("delay_us"):
            pytest.skip(f"needs the stand-in: {settings}")
        books = tmp_path / "books.json"
        done = processes.run(
            [sys.executable, "-c", BEGIN + code, data, str(SIZE)],
            env={
                **os.environ,
                "FOREBAY_LIBCUDA": str(stub),
                "FOREBAY_LIBNVRTC": nvrtc or ("" if ON_REAL_GPU else str(Path(stub).with_name("libnvrtc.so.13"))),
                "FOREBAY_STUB_CUDA": settings,
                "FOREBAY_STUB_LEDGER": str(books),
                **environment,
            },
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if ON_REAL_GPU:
            return {}
        reported: dict[str, Any] = json.loads(books.read_text())
        wrong = {k: reported[k] for k in ("copies_outside", "changed_under_copy", "unknown_frees")}
        assert not any(wrong.values()), wrong
        return reported

    return run
