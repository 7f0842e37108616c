"""The rate of the link: copies from pinned host memory to the GPU, and nothing else. `child_copy.py GPU [BYTES]`.

Through the driver (libcuda) alone: 256 MiB copies (or BYTES), 16 queued, a wait that sleeps. FOREBAY_LIBCUDA names
another library.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from child import Answer, Stopwatch, serve

PIECE = 256 << 20
QUEUED = 16
EVENT_FLAGS = 1 | 2  # waits by sleeping, takes no times


class Driver:
    """libcuda, each call checked."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("FOREBAY_LIBCUDA", "libcuda.so.1"))

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise OSError(f"{name} failed with CUDA error {code}")


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], Answer]:
    driver = Driver()
    piece = int(arguments[1]) if len(arguments) > 1 else PIECE
    device, context = ctypes.c_int(), ctypes.c_void_p()
    stream, event = ctypes.c_void_p(), ctypes.c_void_p()
    pinned, target = mmap.mmap(-1, piece), ctypes.c_uint64()
    host = ctypes.addressof(ctypes.c_char.from_buffer(pinned))
    driver("cuInit", 0)
    driver("cuDeviceGet", ctypes.byref(device), int(arguments[0]))
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    driver("cuStreamCreate", ctypes.byref(stream), 1)
    driver("cuEventCreate", ctypes.byref(event), EVENT_FLAGS)
    pinned.write(bytes(piece))
    driver("cuMemHostRegister_v2", ctypes.c_void_p(host), ctypes.c_size_t(piece), 0)
    driver("cuMemAlloc_v2", ctypes.byref(target), ctypes.c_size_t(piece))

    def run(request: dict[str, Any]) -> Answer:
        watch = Stopwatch()
        copies = 0
        while not copies or watch.seconds() < request["seconds"]:
            for _ in range(QUEUED):
                driver("cuMemcpyHtoDAsync_v2", target, ctypes.c_void_p(host), ctypes.c_size_t(piece), stream)
            driver("cuEventRecord", event, stream)
            driver("cuEventSynchronize", event)
            copies += QUEUED
        return watch.answer(copies * piece, copies)

    return run


if __name__ == "__main__":
    sys.exit(serve(prepare))
