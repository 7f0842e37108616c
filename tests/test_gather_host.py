"""`gather` into arrays in host memory: few cached rows are copied by the thread that asks, and all else as before."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import processes
import pytest
from forebay.errors import RequestError, RunError

ROW, ROWS = 600, 3000
TABLE = np.random.default_rng(5).integers(0, 256, (ROWS, ROW), np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "rows"
    made.write_bytes(b"head" + TABLE.tobytes())
    return made


def drawn(count: int) -> Any:
    return np.random.default_rng(count).integers(ROWS, size=count)


def feeding() -> list[str]:
    """Threads of the pool that reads."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            names.append(Path(f"/proc/self/task/{task}/comm").read_text())
    return [name for name in names if name.startswith("forebay-feed")]


def settled(path: Path) -> forebay.File:
    """A file of which so many rows were asked for that they are copied out of its mapping from here on; nobody else reads."""
    file = forebay.open(path)
    file.gather(drawn(1000), ROW, np.empty((1000, ROW), np.uint8), start=4)
    forebay.release()
    # Threads that were joined are still listed for a moment.
    processes.wait_until(lambda: not feeding(), "the pool's threads are gone")
    return file


@pytest.mark.promise("PYT-28")
def test_few_cached_rows_are_copied_by_the_thread_that_asks(path: Path) -> None:
    rows, out = drawn(500), np.zeros((500, ROW), np.uint8)
    with settled(path) as file:
        assert file.gather(rows, ROW, out, start=4) == 500 * ROW and (out == TABLE[rows]).all()
        if feeding():
            pytest.skip("the system doesn't tell what is cached")
        report = file.last_report
        assert report is not None and (report.bytes, report.staged_bytes, report.uncached_bytes) == (out.size, out.size, 0)
        out[:] = 0
        future = file.gather_async(rows, ROW, out, 4)
        assert future.done() and future.result() == 500 * ROW and (out == TABLE[rows]).all() and not future.cancel()
        # Lists, narrow numbers and offsets, too.
        for numbers in (rows.tolist(), rows.astype(np.int32), rows[::-1]):
            out[:] = 0
            file.gather(numbers, ROW, out, start=4)
            assert (out == TABLE[np.asarray(numbers)]).all()
        out[:] = 0
        file.gather(rows, ROW, out, offsets=4 + np.arange(ROWS) * ROW)
        assert (out == TABLE[rows]).all()
        file.read_at(4 + rows * ROW, ROW, out)
        assert (out == TABLE[rows]).all() and not feeding()
        # More than a thread copies while others could help.
        many = np.zeros((5000, ROW), np.uint8)
        file.gather(drawn(5000), ROW, many, start=4)
        assert (many == TABLE[drawn(5000)]).all()
        if len(os.sched_getaffinity(0)) >= 4:
            # They take their names once they run: the caller may have copied everything before.
            processes.wait_until(feeding, "the pool's threads are there")
        else:
            assert not feeding()


@pytest.mark.promise("PYT-28")
@pytest.mark.parametrize(
    ("rows", "out", "words"),
    [
        (np.array([0, ROWS]), np.zeros(2 * ROW, np.uint8), f"row {ROWS} of"),
        (np.array([0, -1]), np.zeros(2 * ROW, np.uint8), "rows[1] is -1"),
        (np.array([2**64 - 1], np.uint64), np.zeros(2 * ROW, np.uint8), f"row {2**64 - 1} of"),
        (np.array([0, 1]), np.zeros(2 * ROW - 1, np.uint8), f"the buffer holds {2 * ROW - 1}"),
        (np.array([0]), np.zeros((2, ROW), np.uint8)[:, ::2], "not contiguous"),
        (np.array([0]), np.zeros(ROW, [("a", "O"), ("b", "i4")]), "holds Python objects"),
        (np.array([0]), np.full(ROW, None), "holds Python objects"),
        (np.array([0.5]), np.zeros(ROW, np.uint8), "integers in one dimension"),
        (np.zeros((1, 1), int), np.zeros(ROW, np.uint8), "2 dimensions"),
        (np.array([0]), np.frombuffer(bytes(ROW), np.uint8), "read-only"),
    ],
)
def test_what_cannot_be_is_refused_as_ever_and_nothing_is_written(path: Path, rows: Any, out: Any, words: str) -> None:
    before = out.tobytes()
    with settled(path) as file:
        for ask in (file.gather, file.gather_async):
            with pytest.raises(RequestError) as refused:
                ask(rows, ROW, out, start=4)
            assert words in str(refused.value) and out.tobytes() == before
    with pytest.raises(RequestError, match="it is closed"):
        file.gather(np.array([0]), ROW, np.zeros(ROW, np.uint8))


@pytest.mark.promise("PYT-28")
def test_arrays_of_every_kind_are_filled_as_they_lie(path: Path) -> None:
    with settled(path) as file:
        big_endian, every_other = drawn(9).astype(">i8"), np.repeat(drawn(9), 2)[::2]
        mapped = np.memmap(path.with_suffix(".out"), np.uint8, "w+", shape=(9, ROW))
        structured = np.zeros(9, [("a", "f4", 100), ("b", "u1", 200)])
        for out in (mapped, structured, np.zeros((9, ROW // 4), np.float32), bytearray(9 * ROW)):
            for rows in (drawn(9), big_endian, every_other):
                assert file.gather(rows, ROW, out, start=4) == 9 * ROW
                assert bytes(memoryview(out).cast("B")) == TABLE[drawn(9)].tobytes()
        assert file.gather(np.array([], int), ROW, np.zeros(0, np.uint8)) == 0


@pytest.mark.promise("PYT-28")
def test_rows_of_a_file_that_changed_are_its_new_ones_or_an_error(path: Path) -> None:
    rows, out = drawn(500), np.zeros((500, ROW), np.uint8)
    with settled(path) as file:
        with path.open("r+b", buffering=0) as writer:
            writer.write(bytes(4 + TABLE.size))
        out[:] = 1
        file.gather(rows, ROW, out, start=4)
        assert not out.any()
        os.truncate(path, TABLE.size // 2)
        with pytest.raises((RequestError, RunError)):
            file.gather(rows, ROW, out, start=4)
        file.gather(rows[rows < ROWS // 3], ROW, out, start=4)
