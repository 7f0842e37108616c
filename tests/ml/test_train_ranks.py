"""`forebay train dlrm` under torchrun, on two processes of the CPU: losses, hash, quality and faults (make test-ml)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.ml

ROWS, EVALUATION, CAP = 6000, 1500, 30
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FAST = ("--device", "cpu", "--peak-seconds", "0.2", "--batch-size", "256")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from forebay.train import data

    made = tmp_path_factory.mktemp("train") / "clicks"
    data.generate(made, 5, ROWS, EVALUATION, CAP)
    return made


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(*words: object) -> subprocess.CompletedProcess[str]:
    """A module or a script, on two ranks."""
    command = [*TORCHRUN, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment())


def forebay(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return torchrun("-m", "forebay", "train", "dlrm", "--dir", folder, *FAST, *words)


LOSSES = """
import sys, numpy, torch
from forebay.train import data, ranks, split
rows = torch.from_numpy(numpy.load(sys.argv[1]))
with ranks.joined(torch, "cpu") as group:
    model = split.Model(group, data.tables(int(sys.argv[3])), 1, "cpu", 0.0005)
    found = []
    for at in range(0, len(rows), 64):
        model.step(rows[at + 32 * group.rank :][:32])
        found.append(float(model.loss))
    assert model.problem() is None
    scores = model.scores(rows[:77].numpy())
    if group.rank == 0:
        numpy.savez(sys.argv[2], losses=found, scores=scores)
"""


@pytest.mark.promise("TRN-57")
def test_losses_are_those_of_one_process_on_the_same_batches(folder: Path, tmp_path: Path) -> None:
    import torch
    from forebay.train import data, dlrm

    rows = np.fromfile(folder / data.TRAIN, np.int32).reshape(-1, data.WORDS)[: 8 * 64]
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "losses.py").write_text(LOSSES)
    done = torchrun(tmp_path / "losses.py", tmp_path / "rows.npy", tmp_path / "out.npz", CAP)
    assert done.returncode == 0, done.stderr
    alone = dlrm.Model(data.tables(CAP), 1, "cpu", 0.0005)
    expected = []
    for at in range(0, len(rows), 64):
        alone.step(torch.from_numpy(rows[at : at + 64]))
        expected.append(float(alone.loss))
    found = np.load(tmp_path / "out.npz")
    assert found["losses"] == pytest.approx(expected, rel=2e-5)
    assert found["scores"] == pytest.approx(alone.scores(rows[:77]), abs=2e-5)


@pytest.mark.promise("TRN-57", "TRN-5")
def test_two_ranks_have_the_hash_and_the_quality_of_one(folder: Path, tmp_path: Path) -> None:
    words = ("--samples", "2048", "--supply", "0.02", "--json", "--mllog", str(tmp_path / "log.txt"))
    done = forebay(folder, *words)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    part = record["train"]
    alone = subprocess.run(
        [sys.executable, "-m", "forebay", "train", "dlrm", "--dir", folder, *FAST, "--samples", "2048", "--json"],
        capture_output=True, text=True, timeout=240, check=True, env=environment(),
    )  # fmt: skip
    one = json.loads(alone.stdout)["train"]
    same = ("batch_hash", "batch_hash_at", "samples", "steps", "batch", "data")
    assert {key: part[key] for key in same} == {key: one[key] for key in same}
    assert part["quality"] == pytest.approx(one["quality"], abs=1e-3)
    assert part["ranks"] == 2 and sorted(f for each in part["tables"] for f in each) == list(range(26))
    # Each rank is one of the two GPUs that share the supply.
    assert part["supply"]["gpus"] == 2 and part["supply"]["asked_gib_s"] == pytest.approx(0.01)
    assert part["samples_per_s"] <= 1.1 * 0.02 * 2**30 / 912
    assert sum(part["bytes"].values()) >= part["samples"] * 912
    assert record["feed"]["world"] == 2 and (tmp_path / "log.txt").exists()


@pytest.mark.promise("TRN-57")
def test_what_ranks_cannot_do_is_refused_once_with_what_to_type(folder: Path, tmp_path: Path) -> None:
    for words, code, said in (
        (("--gpus", "8", "--supply", "0.1"), 2, "try: --gpus 2, or torchrun --nproc-per-node 8"),
        (("--seeds", "2"), 2, "torchrun … --seed 0"),
        (("--batch-size", "255"), 2, "try: --batch-size 256"),
    ):
        done = forebay(folder, *words)
        assert done.returncode != 0 and done.stderr.count(said) == 1, (words, done.stderr)
        assert f"exitcode  : {code} " in done.stderr.replace("exitcode : ", "exitcode  : "), done.stderr


def started(*words: object) -> subprocess.Popen[str]:
    """torchrun in a process group of its own, which stays."""
    return subprocess.Popen(
        [*TORCHRUN, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def ranks_of(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """Process numbers of the ranks."""
    found = {}
    for process in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        for word in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"RANK="):
                found[int(word[5:])] = int(process)
    return found


TRAINING = """
import sys
import time
from forebay.train import run
from forebay.cli import main
look = run.Fed._look
def told(self, now):
    look(self, now)
    if self.steps == 2 and not self.ranks.rank:
        open(sys.argv[1] + ".begun", "w").close()
run.Fed._look = told
sys.argv[0] = "forebay"
main(["train", "dlrm", *sys.argv[2:]])
"""


def trains(folder: Path, tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """A training without an end, in its steps."""
    (tmp_path / "train.py").write_text(TRAINING)
    endless = ("--target-auc", "none", "--samples", "1000000000", "-o", str(tmp_path / "o.json"))
    launcher = started(tmp_path / "train.py", tmp_path / "o", "--dir", folder, *FAST, *endless, *words)
    deadline = time.monotonic() + 180
    while not (tmp_path / "o.begun").exists():
        assert launcher.poll() is None and time.monotonic() < deadline, launcher.communicate()
        time.sleep(0.05)
    return launcher


@pytest.mark.promise("TRN-57")
def test_a_rank_that_dies_is_named_and_what_was_measured_stays(folder: Path, tmp_path: Path) -> None:
    launcher = trains(folder, tmp_path)
    os.kill(ranks_of(launcher)[1], signal.SIGKILL)
    _, said = launcher.communicate(timeout=180)
    assert launcher.returncode != 0 and "forebay: rank 1: has ended" in said, said
    part = json.loads((tmp_path / "o.json").read_text())["train"]
    assert part["samples"] >= 512 and "has ended" in part["failed"] and part["batch_hash"] is None


@pytest.mark.promise("TRN-57", "TRN-10")
def test_an_interrupt_stops_all_ranks_after_one_step_and_keeps_what_was_measured(folder: Path, tmp_path: Path) -> None:
    launcher = trains(folder, tmp_path)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=180)
    record = json.loads((tmp_path / "o.json").read_text())
    part = record["train"]
    assert record["result"]["interrupted"] and part["samples"] >= 512 and part["samples"] % 256 == 0
    assert part["batch_hash"] and part["batch_hash_at"][0]["samples"] == 256
