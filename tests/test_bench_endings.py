"""What ends a run before its time, and what it may be asked of a machine: through the engine's own face."""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from forebay import run as engine
from forebay.errors import ForebayError, RequestError

NOTHING: dict[str, Any] = {"sources": ["nil:"], "io_bytes": 4096, "warmup_s": 0.0}


@pytest.mark.promise("BEN-29")
def test_the_first_worker_that_is_done_ends_the_run(tmp_path: Path) -> None:
    """Worker 1 begins where the file nearly ends; at its rate worker 0 would take more than a minute."""
    whole, last = 64 << 20, 64 << 10
    with open(tmp_path / "f", "wb") as file:
        file.truncate(whole)
    job = {"sources": [str(tmp_path / "f")], "io_bytes": 4096, "cache": "allow", "warmup_s": 0.0, "workers": 2, "clones": True,
           "start_step_bytes": whole - last, "passes": 1, "rate_iops": 400.0}  # fmt: skip
    result = engine.run({**job, "until_first": True})["result"]
    moved = [worker["bytes"] for worker in result["workers"]]
    assert moved[1] == last and moved[0] < whole and not result["interrupted"]
    assert not result["errors"]["failed"]


@pytest.mark.promise("BEN-29")
def test_a_rule_says_when_a_run_is_steady() -> None:
    """Of any rate all points are within 1000 % of the mean; of none in 0.0001 %, for a real clock."""
    job = {**NOTHING, "rate_iops": 2000.0, "duration_s": 60.0, "interval_ms": 50, "steady": "iops=1000,window=0.3,skip=0.2"}
    record = engine.run(job)
    result = record["result"]
    assert record["job"]["until_steady"] and 0.45 <= result["steady_after_s"] <= result["seconds"] + 0.1 < 60
    never = engine.run({**job, "steady": "lat=0.000001,window=0.3", "duration_s": 0.5})["result"]
    assert never["steady_after_s"] is None and never["seconds"] == pytest.approx(0.5)


@pytest.mark.promise("BEN-29")
def test_a_rate_below_the_least_fails_the_run_and_keeps_what_was_measured() -> None:
    job = {**NOTHING, "rate_iops": 100.0, "duration_s": 60.0, "rate_min_iops": 1e12}
    with pytest.raises(ForebayError) as failed:
        engine.run(job)
    assert failed.value.asked == "--rate-min-iops" and "worker 0" in failed.value.found and failed.value.exit_code == 4
    assert getattr(failed.value, "record", None) is not None


@pytest.mark.promise("BEN-30")
def test_null_and_zero_are_as_long_as_one_says() -> None:
    whole = {"io_bytes": 4096, "file_bytes": 1 << 20, "passes": 1}
    wrote = engine.run({**whole, "sources": ["/dev/null"], "op": "write", "engine": "inline"})["result"]
    read = engine.run({**whole, "sources": ["/dev/zero"], "op": "randread", "no_repeat": True})
    assert (wrote["write_bytes"], read["result"]["read_bytes"]) == (1 << 20, 1 << 20)
    assert not wrote["errors"]["failed"] and not read["result"]["errors"]["failed"]
    for source, size, named in (("/dev/zero", None, "no size"), ("/dev/null", 4096, "holds nothing")):
        job = {"sources": [source], "file_bytes": size}
        with pytest.raises(RequestError) as refused:
            engine.plan(job)
        assert named in refused.value.found and refused.value.next


@pytest.mark.promise("BEN-30")
def test_atomic_writes_are_asked_for_and_nodes_named(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    job = {"sources": [path], "op": "write", "io_bytes": 4096, "file_bytes": 1 << 16, "passes": 1, "atomic": True}
    try:
        # The device and its file system offer them,
        assert engine.run({**job, "engine": "uring"})["result"]["write_bytes"] == 1 << 16
    except ForebayError as refused:
        # or the kernel says that they don't, or there is no ring or no O_DIRECT here.
        assert any(word in str(refused) for word in ("not supported", "Invalid argument", "io_uring", "O_DIRECT"))
    own = {**NOTHING, "passes": 1, "file_bytes": 1 << 20}
    (worker,) = engine.run({**own, "cpus": "nodes:0", "numa_interleave": "0"})["result"]["workers"]
    assert worker["cpu"] in os.sched_getaffinity(0)
    for wrong in ({"cpus": "nodes:999"}, {"numa_interleave": "999"}, {"numa_interleave": "x"}):
        with pytest.raises(RequestError):
            engine.run({**own, **wrong})


def blocks_of(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[at : at + 4096] for at in range(0, len(data), 4096)]


@pytest.mark.promise("BEN-31")
def test_content_compresses_and_repeats_as_asked(tmp_path: Path) -> None:
    """256 writes of 4 KiB. What is random doesn't compress, and what is drawn comes near its share."""
    path = tmp_path / "f"
    job = {"sources": [str(path)], "op": "write", "io_bytes": 4096, "file_bytes": 1 << 20, "passes": 1, "depth": 1}
    job["cache"] = "allow"
    plain = engine.run({**job, "content": "compress=75,chunk=1024"})
    assert plain["job"]["refill"] and plain["result"]["write_bytes"] == 1 << 20
    blocks = blocks_of(path)
    assert all(len(zlib.compress(block, 1)) in range(1000, 1200) for block in blocks) and len(set(blocks)) == 256
    engine.run({**job, "content": "dedupe=50"})
    blocks = blocks_of(path)
    again = sum(a == b for a, b in itertools.pairwise(blocks))
    assert 48 <= again <= 208 and len(set(blocks)) == 256 - again
    engine.run({**job, "content": "dedupe=100,set=4"})
    assert 1 <= len(set(blocks_of(path))) <= 4
    # Nobody can check it.
    with pytest.raises(RequestError, match="without --verify"):
        engine.run({**job, "op": "read", "verify": True})


@pytest.mark.promise("BEN-31")
def test_ios_carry_a_priority_or_say_why_not(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    job = {"sources": [str(tmp_path / "f")], "io_bytes": 4096, "cache": "allow", "passes": 1, "priority": "idle,20=be/0"}
    assert engine.run({**job, "engine": "uring"})["result"]["read_bytes"] == 1 << 20
    with pytest.raises(RequestError) as refused:
        engine.run({**job, "engine": "inline"})
    assert "io_uring" in refused.value.found and "--priority" in refused.value.asked
    assert engine.run({**job, "engine": "inline", "priority": "idle"})["result"]["read_bytes"] == 1 << 20


def test_a_worker_keeps_to_its_share_of_a_flow(tmp_path: Path) -> None:
    """Beside another of weight 8, whose I/Os are told here: worker and page are those of the engine."""
    sheet, place = tmp_path / "flow", 5
    words = [0] * 512

    def reported(process: int, ios: int) -> Path:
        words[0] = int.from_bytes(b"forebay\x01", "big")
        words[2 + 2 * place : 4 + 2 * place] = [process << 32 | 8, ios]
        sheet.write_bytes(struct.pack("<512Q", *words))
        return sheet

    job = {**NOTHING, "depth": 1, "duration_s": 0.2, "limit_ios": 1000}
    for process, ios, started in ((os.getpid(), 0, 1), (os.getpid(), 80, 11), ((1 << 32) - 1, 0, 1000)):
        result = engine.run({**job, "flow": f"1@{reported(process, ios)}"})["result"]
        assert result["ios"] == started if started < 1000 else result["ios"] > 11
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(RequestError, match="isn't a file of --flow"):
        engine.run({**job, "flow": f"1@{tmp_path / 'letter'}"})
    assert (tmp_path / "letter").read_text() == "dear"
