"""The system clock is set back and forward while accelerators and checkpoints are emulated: no figure knows of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

# The wall clock of a process: a day ahead, and set by two hours every 20 ms, back and forward in turn.
SHIM = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long long ahead_s(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return 86400 + ((now.tv_nsec / 20000000) % 2 ? 3600 : -3600);
}
int clock_gettime(clockid_t clock, struct timespec *at) {
  int failed = (int)syscall(SYS_clock_gettime, clock, at);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead_s();
  return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""
# Several commands by one process, each with its exit code.
DRIVER = """
import json, sys
from forebay import cli
for words in json.loads(sys.argv[1]):
    try:
        cli.main(words)
    except SystemExit as ended:
        assert ended.code == 0, (words, ended.code)
"""
FILES, SIDE, STEPS, COMPUTE_S = 40, 64, 20, 0.005
WORKLOAD = f"""
format = "npz"
loader = "pytorch"
record_bytes = {SIDE * SIDE}
samples_per_file = 1
files = {FILES}
batch = 1
compute_s = {COMPUTE_S}
read_threads = 2
file_shuffle = true
epochs = 2
au_pct_min = 0.001
"""
CHECKPOINT = ("--workload", "llama3-8b", "--scale", "0.00001", "--writes", "2", "--reads", "2", "--between", "0.1")


@pytest.fixture
def stepping(tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose clock is set again and again."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc isn't installed, so no clock can be put before the system's")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(SHIM)
    built = processes.run([compiler, "-shared", "-fPIC", "-o", library, source])
    assert built.returncode == 0, built.stderr
    return {**os.environ, "LD_PRELOAD": str(library)}


def record(file: Path) -> Any:
    return json.loads(file.read_text())


@pytest.mark.promise("TRA-41")
@pytest.mark.long
def test_a_clock_that_is_set_during_a_run_is_in_no_figure(tmp_path: Path, stepping: dict[str, str]) -> None:
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    for n in range(FILES):
        np.savez(train / f"img_{n:02d}_of_{FILES}.npz", x=np.full((SIDE, SIDE, 1), n, np.uint8), y=[0])
    (tmp_path / "small.toml").write_text(WORKLOAD)
    run = ["emulate", "run", "--workload", "small.toml", "--accelerators", "2", "--data", "data", "-q", "-o", "run.json"]
    checkpoint = ["emulate", "checkpoint", *CHECKPOINT, "--dir", "ckpt", "-q", "-o", "checkpoint.json"]
    began = time.monotonic()
    words = [sys.executable, "-c", DRIVER, json.dumps([run, checkpoint])]
    done: subprocess.CompletedProcess[str] = processes.run(words, cwd=tmp_path, env=stepping)
    wall_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr

    found = record(tmp_path / "run.json")
    started = datetime.fromisoformat(found["started"].replace("Z", "+00:00"))
    assert (started - datetime.now(timezone.utc)).total_seconds() > 12 * 3600, "the process didn't see the clock that is set"
    training, seconds = found["training"], found["result"]["seconds"]
    # It takes as long as the computations at least, and no longer than the process lived.
    assert 0.95 * 2 * STEPS * COMPUTE_S <= seconds <= wall_s
    assert len(training["epochs"]) == 2
    assert all(0.95 * STEPS * COMPUTE_S <= epoch["seconds"] <= wall_s for epoch in training["epochs"])
    assert all(0 < figures["au_pct"] <= 100 for figures in training["by_rules"])
    assert all(0 <= waited <= 2 * wall_s for waited in training["waited"].values())
    assert training["start_to_first_step_s"] <= wall_s
    slowest_us = max(training["latency"][of]["latency_us"]["max"] for of in ("read", "sample", "step"))
    assert slowest_us <= 1e6 * wall_s
    assert not [w for w in found["warnings"] if w["id"] == "clock"]

    reported = record(tmp_path / "checkpoint.json")["checkpoint"]
    turns = [turn for phase in ("write", "read") for turn in reported[phase]["checkpoints"]]
    assert len(turns) == 4 and all(0 < turn["duration_s"] <= wall_s for turn in turns)
