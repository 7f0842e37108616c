"""`forebay.open`, `read_files`: bytes into host memory, whatever lends it; and what is refused, with the reason."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import processes
import pytest
from forebay.errors import MachineError, RequestError, RunError
from hypothesis import given
from hypothesis import strategies as st
from properties import examples, parametrized

SIZE = 5_000_321
CONTENT = np.random.default_rng(7).integers(0, 256, SIZE, dtype=np.uint8).tobytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reader") / "data.bin"
    made.write_bytes(CONTENT)
    return made


def descriptors() -> set[str]:
    """What is open, but for the listing itself."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            pass
    return found


@pytest.mark.promise("PYT-1", "PYT-2")
@pytest.mark.parametrize("direct", [None, False])
@pytest.mark.parametrize(
    "buffer",
    [bytearray(SIZE), np.zeros(SIZE, np.uint8), array("B", bytes(SIZE)), (ctypes.c_uint8 * SIZE)()],
    ids=lambda b: type(b).__name__,
)
def test_whatever_lends_a_buffer_is_filled(path: Path, buffer: object, direct: bool | None) -> None:
    with forebay.open(path, direct=direct) as file:
        assert file.size == SIZE
        assert file.read_into(buffer) == SIZE
        report = file.last_report
    assert bytes(memoryview(buffer).cast("B")) == CONTENT  # type: ignore[arg-type]
    assert report and report.bytes == SIZE and report.seconds > 0 and report.gib_s
    assert report.staged_bytes + report.mapped_bytes + report.direct_bytes == SIZE


@pytest.mark.promise("PYT-2")
@examples(60)
@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 700_000)), max_size=20))
def test_ranges_arrive_each_in_its_place(path: Path, ranges: list[tuple[int, int]]) -> None:
    buffers = [np.full(size + 2, 0xEE, np.uint8) for _, size in ranges]
    with forebay.open(path) as file:
        asked = [
            (offset, min(size, SIZE - offset), b[1:-1])
            for (offset, size), b in zip(ranges, buffers, strict=True)
        ]
        # From the second time on a range that is cached is copied out of a mapping.
        for _ in range(3):
            for _, _, buffer in asked:
                buffer[:] = 0xAA
            assert file.read_ranges(asked) == sum(size for _, size, _ in asked)
    for (offset, size, _), buffer in zip(asked, buffers, strict=True):
        assert buffer[1 : 1 + size].tobytes() == CONTENT[offset : offset + size]
        beside = buffer[1 + size : -1]
        assert buffer[0] == 0xEE and buffer[-1] == 0xEE and (beside == 0xAA).all(), "written beyond the range"


@examples(40)
@given(st.lists(st.integers(0, SIZE - 5000), max_size=600), st.integers(0, 5000), st.sampled_from(["i8", "u4", "i4"]))
def test_short_reads_lie_one_behind_the_other(path: Path, offsets: list[int], size: int, kind: str) -> None:
    buffer = np.full(len(offsets) * size + 1, 0xEE, np.uint8)
    with forebay.open(path) as file:
        assert file.read_at(np.array(offsets, kind), size, buffer) == len(offsets) * size
        assert file.read_at(offsets, size, buffer) == len(offsets) * size
    assert buffer[:-1].tobytes() == b"".join(CONTENT[o : o + size] for o in offsets) and buffer[-1] == 0xEE


@pytest.mark.parametrize(
    ("offsets", "size", "room", "words"),
    [
        ([[0]], 4, 100, "2 dimensions"),
        ([0.5], 4, 100, "float64"),
        ([-1], 4, 100, "negative"),
        ([0], -4, 100, "negative"),
        ([0, 1], 51, 100, "the buffer holds 100"),
        ([0, SIZE - 3], 4, 100, f"it has {SIZE} bytes"),
        ([0, 2**64 - 2], 4, 100, f"it has {SIZE} bytes"),
    ],
)
def test_what_cannot_be_read_at_once_is_refused(path: Path, offsets: list, size: int, room: int, words: str) -> None:
    buffer = bytearray(room)
    with forebay.open(path) as file, pytest.raises(RequestError) as refused:
        file.read_at(np.array(offsets, np.uint64) if 2**64 - 2 in offsets else offsets, size, buffer)
    assert words in str(refused.value) and not any(buffer)


@pytest.mark.promise("PYT-14")
@examples(40)
@given(
    st.lists(st.integers(0, 2**20), max_size=300), st.integers(1, 5000), st.integers(0, 9000), st.sampled_from(["i8", "u4", "u8"])
)
def test_rows_arrive_in_the_order_that_was_asked_for(path: Path, draws: list[int], row: int, start: int, kind: str) -> None:
    rows = [n % ((SIZE - start) // row) for n in draws]
    out = np.full(len(rows) * row + 1, 0xEE, np.uint8)
    with forebay.open(path) as file:
        assert file.gather(np.array(rows, kind), row, out, start=start) == len(rows) * row
    wanted = b"".join(CONTENT[start + n * row : start + (n + 1) * row] for n in rows)
    assert out[:-1].tobytes() == wanted and out[-1] == 0xEE


@pytest.mark.promise("PYT-14")
@pytest.mark.parametrize(
    ("rows", "row", "start", "words"),
    [
        ([0, SIZE // 4096], 4096, 0, f"row {SIZE // 4096} of"),
        ([SIZE // 4096 - 1], 4096, 4096, f"it has {SIZE // 4096 - 1} rows of 4096 bytes from byte 4096 on"),
        ([0], 10, SIZE + 5, "it has 0 rows"),
        (np.array([2**64 - 1], np.uint64), 16, 0, f"row {2**64 - 1} of"),
        ([-1], 16, 0, "one is negative"),
        ([[0]], 16, 0, "2 dimensions"),
        (["1"], 16, 0, "integers in one dimension"),
        ([0], 0, 0, "a row has at least one byte"),
        ([0], 16, -1, "starts within the file"),
        ([0, 1], 51, 0, "the buffer holds 100"),
        ([0, 7, SIZE, SIZE + 1], 16, 0, "rows[2] is the first of 2"),
        ([0, -7], 16, 0, "rows[1] is -7"),
        ([[0], [1, 2]], 16, 0, "integers in one dimension"),
    ],
)
def test_rows_that_cannot_be_are_refused_and_nothing_is_written(path: Path, rows: Any, row: int, start: int, words: str) -> None:
    out = bytearray(100)
    with forebay.open(path) as file, pytest.raises(RequestError) as refused:
        file.gather(rows, row, out, start=start)
    assert words in str(refused.value) and not any(out)


@pytest.mark.promise("PYT-2")
def test_o_direct_reads_what_no_alignment_suits(path: Path) -> None:
    try:
        file = forebay.open(path, direct=True)
    except MachineError as error:
        assert "O_DIRECT" in str(error)
        pytest.skip(f"this file system takes no O_DIRECT: {error}")
    with file:
        for offset, size in [(0, SIZE), (1, 4096), (4096, 8192), (4095, 2), (SIZE - 1, 1), (SIZE - 5000, 5000)]:
            buffer = bytearray(size)
            assert file.read_into(buffer, offset, size) == size
            assert buffer == CONTENT[offset : offset + size]
            assert file.last_report and file.last_report.uncached_bytes == size


def test_without_a_size_as_much_is_read_as_file_and_buffer_hold(path: Path) -> None:
    with forebay.open(path) as file:
        buffer = bytearray(1000)
        assert file.read_into(buffer, SIZE - 10) == 10
        assert buffer[:10] == CONTENT[-10:] and not any(buffer[10:])
        assert file.read_into(buffer, SIZE) == 0
        assert file.read_into(buffer, SIZE + 7) == 0
        assert file.read_into(bytearray(), 0) == 0
        assert file.read_ranges([]) == 0


@pytest.mark.promise("PYT-1")
@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (b"x" * 10, "read-only"),
        (np.broadcast_to(np.uint8(1), (10,)), "read-only"),
        (np.zeros((10, 10), np.uint8)[:, ::2], "not contiguous"),
        (np.zeros((10, 10), np.uint8).T[:, :5], "not contiguous"),
        (object(), "neither a buffer"),
        ("text", "neither a buffer"),
        (None, "neither a buffer"),
        (np.array([1, None, "x"], object), "its dtype object holds Python objects"),
        (memoryview(np.zeros(3, object)), "its dtype O holds Python objects"),
        (np.zeros(2, [("n", "i4"), ("inner", [("x", "O")])]), r"its dtype .*'x', 'O'.* holds Python objects"),
        ((ctypes.py_object * 2)(), "its dtype <O holds Python objects"),
        (np.zeros(10, "M8[s]"), r"its dtype datetime64\[s\] has no buffer"),
    ],
    ids=["bytes", "broadcast", "strided", "transposed", "object", "str", "none", "objects", "view", "fields", "ctypes", "times"],
)
def test_what_cannot_be_filled_is_refused_with_the_reason(path: Path, buffer: object, reason: str) -> None:
    with forebay.open(path) as file, pytest.raises(RequestError, match=reason) as caught:
        file.read_into(buffer, 0, 5)
    assert caught.value.next


@pytest.mark.promise("PYT-1")
@pytest.mark.parametrize(
    "x",
    [np.zeros((10, 8), np.uint16)[:, ::2], np.zeros((8, 8), ">f4").T[1:], memoryview(bytearray(80))[::2], np.zeros(9, "M8[s]")],
    ids=["columns", "transposed", "view", "times"],
)  # fmt: skip
def test_advice_for_a_buffer_fills_it_when_typed(path: Path, x: Any) -> None:
    """`part = …, read into it, then x[...] = part`; or another view of the same memory."""
    with forebay.open(path) as file:
        with pytest.raises(RequestError) as caught:
            file.read_into(x)
        advice = str(caught.value.next)
        names: dict[str, Any] = {"numpy": np, "x": x}
        if "part = " in advice:
            made, _, then = advice.partition("part = ")[2].partition(", read into it, then ")
            names["part"] = eval(made, names)
            file.read_into(names["part"])
            exec(then, names)
        else:
            file.read_into(eval(advice.partition(": ")[2], names))
    assert x.tobytes() == CONTENT[: x.nbytes]


@pytest.mark.promise("PYT-1")
def test_python_objects_are_refused_wherever_a_buffer_is_given_and_a_field_called_so_is_none(path: Path) -> None:
    objects = np.array([1, None, "x"], object)
    with forebay.open(path) as file:
        for read in [lambda: file.gather([0], 24, objects), lambda: file.read_at([0], 24, objects)]:
            with pytest.raises(RequestError, match="its dtype object"):
                read()
        with pytest.raises(RequestError, match="its dtype object"):
            forebay.read_files([path], [objects])
        assert objects.tolist() == [1, None, "x"]
        fields = np.zeros(2, [("O", "i4"), ("NO", "f8")])
        assert file.read_into(fields) == fields.nbytes and fields.tobytes() == CONTENT[: fields.nbytes]


def test_ranges_that_do_not_fit_are_refused(path: Path) -> None:
    with forebay.open(path) as file:
        for offset, size, reason in [
            (SIZE - 5, 6, f"has {SIZE} bytes"),
            (0, 11, "holds 10"),
            (-1, 5, "negative"),
            (0, -5, "negative"),
            (1 << 63, 1, "has"),
        ]:
            with pytest.raises(RequestError, match=reason):
                file.read_into(bytearray(10), offset, size)
        with pytest.raises(RequestError, match="no such path"):
            forebay.open(path, "warp")
    with pytest.raises(RequestError, match="closed"):
        file.read_into(bytearray(10))
    file.close()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in [("absent", "no such file"), ("pipe", "neither"), (".", "neither")]:
        with pytest.raises(RequestError, match=reason):
            forebay.open(tmp_path / name)


class Lent:
    """A tensor that knows DLPack, as a library would make it."""

    def __init__(self, memory: np.ndarray, kind: int = 1, device: int = 0) -> None:
        self.memory, self.place = memory, (kind, device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, **asked: object) -> object:
        return self.memory.__dlpack__(**{k: v for k, v in asked.items() if k != "stream"})


@pytest.mark.promise("PYT-1")
def test_dlpack_of_host_memory_is_filled_and_let_go_of(path: Path) -> None:
    memory = np.zeros((50, 20), np.float32)
    before = sys.getrefcount(memory)
    with forebay.open(path) as file:
        for _ in range(100):
            assert file.read_into(Lent(memory), 3) == 4000
    assert memory.tobytes() == CONTENT[3:4003]
    gc.collect()
    assert sys.getrefcount(memory) == before
    with forebay.open(path) as file:
        for lent, reason in [
            (Lent(memory[:, ::2]), "not contiguous"),
            (Lent(memory, kind=10), "type 10"),
            (Lent(np.broadcast_to(np.float32(1), (5,))), "read-only|readonly"),
        ]:
            with pytest.raises(RequestError, match=reason):
                file.read_into(lent)


@pytest.mark.promise("PYT-1")
def test_a_malformed_cuda_array_interface_is_refused(path: Path) -> None:
    good = {"shape": (4,), "typestr": "|u1", "data": (4096, False), "version": 3}
    bad: list[tuple[object, str]] = [
        ({}, "malformed"),
        (3, "malformed"),
        ({**good, "typestr": "|ux"}, "malformed"),
        ({**good, "shape": (-4,)}, "is impossible"),
        ({**good, "shape": (1 << 40, 1 << 40)}, "is impossible"),
        ({**good, "data": (4096, True)}, "read-only"),
        ({**good, "mask": object()}, "masked"),
        ({**good, "strides": (2,)}, "not contiguous"),
    ]
    with forebay.open(path) as file:
        for interface, reason in bad:
            holder = type("Array", (), {"__cuda_array_interface__": interface})()
            with pytest.raises(RequestError, match=reason):
                file.read_into(holder)


def test_a_future_is_awaited_asked_and_timed(path: Path) -> None:
    buffer = bytearray(SIZE)
    with forebay.open(path) as file:
        future = file.read_async(buffer)
        assert future.result(60) == SIZE and future.done() and buffer == CONTENT
        assert future.exception() is None and not future.cancel() and future.report().bytes == SIZE

        async def read_twice() -> list[int]:
            parts = [bytearray(1000), bytearray(2000)]
            got = await asyncio.gather(*[file.read_async(p, 5) for p in parts])
            assert parts[1] == CONTENT[5:2005]
            return got

        before = descriptors()
        assert asyncio.run(read_twice()) == [1000, 2000]
        assert descriptors() == before


@pytest.mark.promise("PYT-4")
def test_after_cancel_nobody_writes(path: Path) -> None:
    zeroes, cancelled, turns = bytes(SIZE), 0, 0
    ends = time.monotonic() + 60
    with forebay.open(path) as file:
        # On a busy machine a read may have ended before this thread goes on.
        while turns < 50 or (not cancelled and time.monotonic() < ends):
            turns += 1
            buffer = bytearray(SIZE)
            future = file.read_async(buffer)
            if future.cancel():
                cancelled += 1
                assert future.cancelled() and future.done()
                with pytest.raises(RunError, match="cancelled"):
                    future.result()
            buffer[:] = zeroes
            time.sleep(0.001)
            assert buffer == zeroes
    assert cancelled, "every read had ended before it was cancelled"


@pytest.mark.promise("PYT-4")
def test_a_future_that_is_dropped_waits_for_its_read(path: Path) -> None:
    with forebay.open(path) as file:
        for _ in range(20):
            file.read_async(bytearray(SIZE))
        buffer = bytearray(SIZE)
        future = file.read_async(buffer)
    assert future.done() and buffer == CONTENT, "close() waits for reads under way"


@pytest.mark.promise("PYT-5")
def test_a_file_that_changes_under_the_read_is_an_error(tmp_path: Path) -> None:
    changing = tmp_path / "changing"
    changing.write_bytes(bytes(64 << 20))
    stop = threading.Event()

    def change() -> None:
        with open(changing, "r+b") as out:
            while not stop.is_set():
                out.seek(0)
                out.write(os.urandom(8))
                out.flush()

    writer = threading.Thread(target=change)
    writer.start()
    try:
        with forebay.open(changing) as file, pytest.raises(RunError, match="changed while it was read"):
            for _ in range(20):
                file.read_into(bytearray(64 << 20))
    finally:
        stop.set()
        writer.join()
    changing.write_bytes(b"short")
    with forebay.open(changing) as file:
        os.truncate(changing, 3)
        assert file.size == 3
        with pytest.raises(RequestError, match="has 3 bytes"):
            file.read_into(bytearray(5), 0, 5)


@pytest.mark.promise("PYT-6")
def test_a_thousand_readers_at_once(path: Path) -> None:
    wrong: list[object] = []

    def read(number: int) -> None:
        offset = number * 4099
        buffer = bytearray(30_000)
        try:
            if file.read_into(buffer, offset) != 30_000 or buffer != CONTENT[offset : offset + 30_000]:
                wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    with forebay.open(path) as file:
        threads = [threading.Thread(target=read, args=(i,)) for i in range(1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not wrong, wrong[:3]


@pytest.mark.promise("PYT-7")
def test_what_was_opened_and_pinned_is_given_back(path: Path) -> None:
    forebay.release()
    before, threads = descriptors(), len(os.listdir("/proc/self/task"))
    for _ in range(3):
        with forebay.open(path) as file:
            file.read_into(bytearray(SIZE))
            assert len(os.listdir("/proc/self/task")) > threads
        forebay.release()
    assert descriptors() == before
    assert len(os.listdir("/proc/self/task")) == threads


CHILD = """
import os, sys
import forebay
path = sys.argv[1]
file = forebay.open(path)
file.read_into(bytearray(1 << 20))
pending = file.read_async(bytearray(1 << 20))
child = os.fork()
if child == 0:
    buffer = bytearray(3 << 20)
    read = file.read_into(buffer, 5)
    try:
        pending.result()
    except forebay.errors.RunError as error:
        refused = "fork" in str(error)
    os._exit(0 if read == len(buffer) and buffer == open(path, "rb").read()[5 : 5 + read] and refused else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.promise("PYT-8")
def test_a_child_of_a_fork_reads_with_a_crew_of_its_own(path: Path) -> None:
    done = processes.run(
        [sys.executable, "-c", "import forebay.errors\n" + CHILD, path]
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("PYT-11", "PYT-2")
def test_importing_needs_no_gpu_and_brings_no_framework() -> None:
    code = (
        "import sys, forebay; forebay.open, forebay.safetensors; "
        "assert not {'torch', 'cupy', 'numpy', 'ctypes.util'} & set(sys.modules), sys.modules.keys()"
    )
    done = processes.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("PYT-11")
def test_memory_of_a_gpu_without_a_gpu_is_an_error_that_says_so(path: Path) -> None:
    code = """
import sys, forebay
from forebay.errors import MachineError
holder = type("Array", (), {"__cuda_array_interface__": {"shape": (4,), "typestr": "|u1", "data": (4096, False), "version": 3}})()
try:
    forebay.open(sys.argv[1]).read_into(holder)
except MachineError as error:
    print(error)
"""
    done = processes.run(
        [sys.executable, "-c", code, path],
        env={**os.environ, "FOREBAY_LIBCUDA": "/nowhere/libcuda.so"},
    )
    assert done.returncode == 0 and "memory of a GPU" in done.stdout, done.stderr


# Many small files ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("small")
    paths = []
    for i in range(1500):
        paths.append(folder / f"{i}.bin")
        paths[-1].write_bytes(CONTENT[i : i + i * 37 % 5000])
    return paths


@pytest.mark.promise("PYT-9")
@parametrized("align", [1, 512], kept=(1,))
def test_many_files_lie_side_by_side_in_their_order(small: list[Path], align: int) -> None:
    buffer = np.zeros(10 << 20, np.uint8)
    read = forebay.read_files(small, buffer, align=align)
    assert read.sizes == [p.stat().st_size for p in small]
    assert read.report.bytes == sum(read.sizes)
    for i, (offset, size) in enumerate(zip(read.offsets, read.sizes, strict=True)):
        assert offset % align == 0
        assert buffer[offset : offset + size].tobytes() == CONTENT[i : i + size]
    assert forebay.read_files(small, buffer, align=align, sizes=read.sizes).offsets == read.offsets
    assert forebay.read_files([], bytearray()).offsets == []


def test_many_files_each_into_a_buffer_of_its_own(small: list[Path]) -> None:
    buffers = [bytearray(5000) for _ in small]
    read = forebay.read_files(small, buffers)
    for i, (buffer, size) in enumerate(zip(buffers, read.sizes, strict=True)):
        assert buffer[:size] == CONTENT[i : i + size] and not any(buffer[size:])


def test_many_files_that_do_not_fit_or_are_missing(small: list[Path], tmp_path: Path) -> None:
    before = descriptors()
    for paths, into, asked, reason in [
        (small[:9], bytearray(10), {}, "holds 10"),
        (small[:9], [bytearray(5000)] * 8, {}, "8 buffers"),
        (small[:9], [bytearray(1)] * 9, {}, "holds 1"),
        (small[:9], bytearray(99999), {"sizes": [1]}, "1 sizes"),
        (small[:9], bytearray(99999), {"sizes": [-1] * 9}, "sizes"),
        (small[:9], bytearray(99999), {"align": 0}, "1 or more"),
        ([*small[:9], tmp_path / "absent"], bytearray(99999), {}, "no such file"),
        ([tmp_path], bytearray(99999), {}, "not a regular file"),
    ]:
        with pytest.raises(RequestError, match=reason):
            forebay.read_files(paths, into, **asked)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="bytes"):
        forebay.read_files(small[:9], bytearray(99999), sizes=[7] * 9)
    assert descriptors() == before
