"""Emulated accelerators on several hosts, over the real engine and small files: what is read, and what is refused."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import processes
import pytest
from mpi_support import AS_ROOT, MPIRUN, needs_mpi

TINY = """
title = "so small that it runs anywhere"
kind = "training"
format = "npz"
record_bytes = 65536
record_bytes_stdev = 0
samples_per_file = 1
files = 48
loader = "pytorch"
batch = 2
read_threads = 2
computation_threads = 1
prefetch = 2
file_shuffle = true
sample_shuffle = true
epochs = 2
au_pct_min = 0

[[variant]]
accelerator = "h100"
rules = ["v1.0"]
status = "own"
compute_s = 0.004
"""


def real(tmp_path, verb, *arguments):
    """A verb of `emulate` over the real engine, by two processes of this host."""
    (tmp_path / "tiny.toml").write_text(TINY)
    words = [*processes.FOREBAY, "emulate", verb, "--workload", tmp_path / "tiny.toml", "--accelerator", "h100", *arguments]
    command = [MPIRUN, "--oversubscribe", "-n", "2", *words]
    return processes.run(command, cwd=tmp_path, env={**os.environ, **AS_ROOT})


@pytest.fixture
def made(tmp_path):
    """A data set for each of two processes."""
    for rank in (0, 1):
        train = tmp_path / f"data-{rank}" / "train"
        train.mkdir(parents=True)
        for number in range(48):
            np.savez(train / f"img_{number:02d}_of_48.npz", x=np.full(65536, number, np.uint8), y=[0])
    return tmp_path / "data-{rank}"


@pytest.mark.promise("TRA-31")
@pytest.mark.long
@needs_mpi
def test_two_ranks_over_the_real_engine_read_each_sample_once(tmp_path, made):
    done = real(tmp_path, "run", "--accelerators", "3", "--data", made, "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    training = record["training"]
    # 48 samples make 4 steps of two for six accelerators, in each of two epochs.
    assert (training["accelerators"], training["steps"], [e["steps"] for e in training["epochs"]]) == (6, 4, [4, 4])
    assert training["samples"] == 2 * 48 and training["payload_bytes"] >= 2 * 48 * 65536
    reported = record["result"]["hosts"]
    assert [h["training"]["samples"] for h in reported] == [48, 48] and all(h["failure"] is None for h in reported)
    assert record["result"]["bytes"] == sum(h["bytes"] for h in reported)
    rates = [h["training"]["samples_per_s"] for h in reported]
    assert abs(training["samples_per_s"] - sum(rates)) < 1e-6 * sum(rates)


@pytest.mark.promise("TRA-17")
@pytest.mark.long
@needs_mpi
def test_a_search_over_the_real_engine_ends_where_the_data_does_and_goes_on(tmp_path, made):
    words = ("--data", made, "--workers", "1", "--probe", "0.1", "--confirm", "1", "--results", "found", "--json")
    done = real(tmp_path, "search", *words)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = document["search"]
    # 48 samples make three steps of two for each of eight accelerators; both processes are on one host.
    assert (found["accelerators"], found["hosts"], found["confirmed"], found["limit"]["id"]) == (8, 1, True, "data")
    assert document["training"]["hosts"] == 1 and len(document["result"]["hosts"]) == 2
    again = real(tmp_path, "search", *words)
    assert again.returncode == 0 and json.loads(again.stdout)["search"]["found_before"] == len(found["runs"]), again.stderr


@pytest.mark.promise("TRA-31")
@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("verb", ["run", "search"])
def test_data_that_several_processes_cant_read_is_refused_once_before_anything_is_read(tmp_path, made, verb):
    results = []

    def refused(data):
        results.append(f"results-{len(results)}")
        done = real(tmp_path, verb, "--data", data, "--results", results[-1])
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        return [line for line in done.stderr.splitlines() if line.startswith(("forebay: ", "  try: "))]

    for file in list((tmp_path / "data-1" / "train").iterdir())[:3]:
        file.unlink()
    [reported, following] = refused(made)
    assert re.match(r"forebay: --data on several hosts: 45 files on rank 1 \(.+\), 48 on rank 0 \(.+\)$", reported), reported
    assert "same files on every host" in following
    (tmp_path / "data-1").rename(tmp_path / "elsewhere")
    [reported, following] = refused(made)
    assert f"--data {tmp_path}/data-1 (rank 1 on " in reported and reported.endswith("there is no such folder"), reported
    [reported, following] = refused("model:p5510?drives=2")
    assert "virtual time" in reported and "without mpirun" in following
    [reported, following] = refused(tmp_path / "nowhere")
    assert "there is no such folder" in reported and "datagen" in following
