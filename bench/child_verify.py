"""Our kernel that checks seeded content, and the GPU's own copies, as bench/child.py asks them: `child_verify.py GPU`.

The kernel is compiled from the engine's source and launched as the engine does, over 4 GiB that the filling kernel of
the same source made. Before anything is measured a wrong byte is planted and must be found. A request's `what` is
`check`, or `copy`: device to device, whose bytes count twice, since they are read and written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from child import Answer, Stopwatch, serve

KERNELS = Path(__file__).resolve().parent.parent / "crates/io/src/gpu/kernels"
RANGES = 16
RANGE_BYTES = 256 << 20
THREADS = 256
QUEUED = 16
BLOCKS_BAD, FIRST_BAD = 6, 7  # fields of a range, eight numbers of 64 bits


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], Answer]:
    import cupy
    import numpy

    cupy.cuda.Device(int(arguments[0])).use()
    source = (KERNELS / "prelude.cu").read_text() + (KERNELS / "content.cu").read_text()
    module = cupy.RawModule(code=source)
    memory = cupy.empty(RANGES * RANGE_BYTES, dtype=cupy.uint8)
    other = cupy.empty_like(memory)
    entries = numpy.zeros((RANGES, 8), dtype=numpy.uint64)
    for number, entry in enumerate(entries):
        # Address, bytes, seed, file, offset in the file, the hash of seed and file; then what is found.
        at = memory.data.ptr + number * RANGE_BYTES
        entry[:] = [at, RANGE_BYTES, 7, 11, number * RANGE_BYTES, 0x1234567, 0, 2**64 - 1]
    ranges = cupy.asarray(entries)
    multiprocessors = cupy.cuda.runtime.getDeviceProperties(int(arguments[0]))["multiProcessorCount"]
    # As Kernel::grid in content.rs: the same number of blocks for each range.
    grid = max(1, multiprocessors * 16 // RANGES) * RANGES

    def launch(name: str) -> None:
        module.get_function(name)((grid,), (THREADS,), (ranges, numpy.uint64(RANGES)))

    def bad_blocks() -> int:
        return int(ranges[:, BLOCKS_BAD].sum())

    launch("content_fill")
    launch("content_check")
    if bad_blocks():
        raise RuntimeError(f"{bad_blocks()} blocks of what the kernel itself filled are wrong")
    memory[5 * RANGE_BYTES + 12345] ^= 1
    launch("content_check")
    if bad_blocks() != 1 or int(ranges[5, FIRST_BAD]) != 5 * RANGE_BYTES + 12288:
        raise RuntimeError("a planted byte wasn't found where it is")
    memory[5 * RANGE_BYTES + 12345] ^= 1
    ranges[:] = cupy.asarray(entries)

    def run(request: dict[str, Any]) -> Answer:
        check = request["what"] == "check"
        cupy.cuda.runtime.deviceSynchronize()
        watch = Stopwatch()
        done = 0
        while not done or watch.seconds() < request["seconds"]:
            for _ in range(QUEUED):
                launch("content_check") if check else cupy.copyto(other, memory)
            cupy.cuda.runtime.deviceSynchronize()
            done += QUEUED
        answer = watch.answer(done * memory.nbytes * (1 if check else 2), done)
        if bad_blocks():
            raise RuntimeError(f"{bad_blocks()} blocks are wrong")
        return answer

    return run


if __name__ == "__main__":
    sys.exit(serve(prepare))
