"""bench/fio_traces.py: what it calls the same is the same, and each kind of difference is told."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import processes
import pytest

ROOT = Path(__file__).parent.parent
BLOCK = 4096


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    return importlib.import_module("fio_traces")


def ios(tool: Any, *places: int, write: bool = False, size: int = BLOCK) -> list[Any]:
    return [tool.Io("f", write, place * BLOCK, size) for place in places]


def test_in_order_each_difference_is_told(tool: Any) -> None:
    theirs = [ios(tool, 0, 1, 2)]
    assert tool.compared(theirs, [ios(tool, 0, 1, 2)], {"rw": "read"}) == tool.SEQUENCE
    for other, said in (
        (ios(tool, 0, 2, 1), "I/O 1 is a read of 4096 at 4096 of f in fio, a read of 4096 at 8192 of f here"),
        (ios(tool, 0, 1), "I/O 2 is a read of 4096 at 8192 of f in fio, none here"),
        (ios(tool, 0, 1, 2, write=True), "a write"),
        (ios(tool, 0, 1, 2, size=512), "of 512"),
    ):
        assert said in tool.compared(theirs, [other], {"rw": "read"})
    assert tool.compared(theirs, [*theirs, *theirs], {"rw": "read"}) == "1 jobs with I/Os in fio, 2 here"


def test_of_a_mix_each_direction_is_compared_as_far_as_both_go(tool: Any) -> None:
    reads, writes = ios(tool, *range(20)), ios(tool, *range(20), write=True)
    theirs, shared = [[*reads, *writes[:12]]], [[*reads[:16], *ios(tool, *range(16, 32), write=True)]]
    assert tool.compared(theirs, [[*writes, *reads[:12]]], {"rw": "rw"}) == tool.SEQUENCE
    assert "a write of 4096 at 0 of f in fio, a write of 4096 at 65536 of f here" in tool.compared(theirs, shared, {"rw": "rw"})
    many = [ios(tool, *range(2000))], [ios(tool, *range(2000), write=True)]
    assert tool.compared(*many, {"rw": "rw"}) == "0% are writes in fio, 100% here"


def test_at_random_each_block_comes_once_in_any_order(tool: Any) -> None:
    theirs = [ios(tool, 2, 0, 1)]
    assert tool.compared(theirs, [ios(tool, 1, 2, 0)], {"rw": "randread"}) == tool.ONCE
    assert "I/O 0" in tool.compared(theirs, [ios(tool, 1, 1, 0)], {"rw": "randread"})
    split = {"rw": "randread", "bssplit": "4k/50:8k/50"}
    assert tool.compared(theirs, [ios(tool, 2) + ios(tool, 0, size=2 * BLOCK)], split) == tool.COVERED
    assert "other bytes" in tool.compared(theirs, [ios(tool, 0, 1, 1)], split)


def test_what_is_written_is_read_back_in_that_order(tool: Any) -> None:
    settings = {"rw": "randwrite", "verify": "crc32c"}
    theirs = [[*ios(tool, 1, 0, write=True), *ios(tool, 1, 0)]]
    assert tool.compared(theirs, [ios(tool, 0, 1), ios(tool, 0, 1, write=True)], settings) == f"{tool.ONCE}, {tool.BACK}"
    assert "order" in tool.compared(theirs, [ios(tool, 1, 0), ios(tool, 0, 1, write=True)], settings)


@pytest.mark.promise("BEN-34")
def test_what_is_drawn_otherwise_is_told_from_chance(tool: Any) -> None:
    drawn, settings = random.Random(7), {"rw": "randread", "norandommap": "1", "size": str(256 * BLOCK)}

    def trace(most: int, count: int = 2000, size: int = BLOCK) -> list[list[Any]]:
        return [ios(tool, *(drawn.randrange(most) for _ in range(count)), size=size)]

    assert tool.compared(trace(256), trace(256), settings) == tool.ALIKE
    assert "offsets are drawn otherwise" in tool.compared(trace(256), trace(200), settings)
    assert "sizes are drawn otherwise" in tool.compared(trace(255), trace(255, size=512), settings)
    assert "I/Os in fio" in tool.compared(trace(256), trace(256, 1999), settings)
    assert "bytes" in tool.compared(trace(256), trace(300), settings)
    halves = [[tool.Io(io.file, io.write, io.offset + 512, io.size) for io in trace(250)[0]]]
    assert "multiples of 4096 in fio, of 512 here" in tool.compared(trace(250), halves, settings)


@pytest.mark.promise("BEN-34")
@pytest.mark.long
def test_a_file_is_traced_in_both(tool: Any, tmp_path: Path) -> None:
    if shutil.which("fio") is None or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("needs fio and /dev/fuse; apt install fio")
    (tmp_path / "jobs.fio").write_text("[a]\nfilename=/data/f\nrw=rw\nbs=64k\nnumjobs=2\ndirect=1\ntime_based\nruntime=60\n")
    said = tool.traced(tmp_path / "jobs.fio", "fio")
    if said.startswith("not traced") and "permitted" in said:
        pytest.skip(said)
    assert said == tool.SEQUENCE


@pytest.mark.promise("BEN-34")
@pytest.mark.parametrize("jobs", [3, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_random_walks_go_where_those_of_fio_go_or_are_refused_by_name(jobs: int, tmp_path: Path) -> None:
    if shutil.which("fio") is None or not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        pytest.skip("needs fio, /dev/fuse and root; apt install fio")
    command = [sys.executable, ROOT / "bench/fio_walks.py", "--jobs", str(jobs), "--seed", "7"]
    done = processes.run(command, 1800, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split(": ")[1].split(" same")[0].split(", ")[-1]) >= jobs / 4, done.stdout
