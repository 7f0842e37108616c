"""A run that is stopped for a while: what it says of that time, and that no latency has it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import processes
import pytest

STOPPED_S = 0.6


def is_watched(pid: int) -> bool:
    """The run is under way: the threads that look for standstills are there."""
    names = [task / "comm" for task in Path(f"/proc/{pid}/task").glob("*")]
    return sum(name.read_text() == "standstill\n" for name in names if name.exists()) == 2


@pytest.mark.promise("REC-47")
def test_a_stop_under_a_second_is_told_and_is_no_latency(tmp_path: Path) -> None:
    """The worker waits for a completion meanwhile, or is within a read: both at once, which saves the time of one."""
    if Path("/proc/thread-self/schedstat").read_text().split()[2:] in ([], ["0"]):
        pytest.skip("this kernel doesn't tell how long a thread waits for a processor")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor: a thread that doesn't run may be one that another keeps waiting")
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    words = ["bench", "data", "--path", "host", "--cache", "allow", "--op", "randread", "--io-size", "4k", "--rate-iops", 1000]
    words += ["--workers", 1, "--depth", 2, "--duration", 60, "--warmup", 0, "--json", "-q", "--engine"]
    with contextlib.ExitStack() as stack:
        lines = [[*processes.FOREBAY, *words, engine] for engine in ("auto", "inline")]
        runs = [stack.enter_context(processes.running(line, cwd=tmp_path)) for line in lines]
        for run in runs:
            processes.wait_until(lambda run=run: is_watched(run.pid), "it measures", run)
        time.sleep(0.1)
        for run in runs:
            run.send_signal(signal.SIGSTOP)
        for run in runs:
            os.waitid(os.P_PID, run.pid, os.WSTOPPED)
        time.sleep(STOPPED_S)
        for run in runs:
            run.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        for run in runs:
            run.send_signal(signal.SIGINT)
        for done in map(processes.finish, runs):
            record = json.loads(done.stdout)
            result = record["result"]
            assert done.returncode == 130 and result["errors"]["timed_out"] == 0, done.stderr
            assert result["noise"]["stood_still_s"] >= STOPPED_S / 2
            assert result["latency_us"]["max"] < STOPPED_S * 1e6 <= result["seconds"] * 1e6
            assert "latencies don't" in next(w["text"] for w in record["warnings"] if w["id"] == "stood_still")
