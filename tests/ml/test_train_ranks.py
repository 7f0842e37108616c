"""`forebay train dlrm` under torchrun, on two processes of the CPU: losses, hash, quality and faults (make test-ml)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ml

ROWS, EVALUATION, CAP, STEPS, BATCH, RATE = 3000, 700, 30, 6, 64, 0.0005
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FAST = ("--device", "cpu", "--peak-seconds", "0.1", "--batch-size", str(BATCH))
TRAINED = ("--samples", "640", "--evaluate-every", "320")
# What is refused: flags, on every rank or on the second one alone, exit code, and what is said.
REFUSED = (
    (("--gpus", "8", "--supply", "0.1"), False, 2, "try: --gpus 2, or torchrun --nproc-per-node 8"),
    (("--seeds", "2"), False, 2, "try: torchrun … --seed 0"),
    (("--weights", "w"), False, 2, "try: no --weights"),
    (("--batch-size", "255"), False, 2, "try: --batch-size 256"),
    (("--device", "cuda:0"), False, 2, "try: no --device"),
    (("--seed", "9"), True, 2, "rank 1, --seed '9': rank 0 has '0'"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from forebay.train import data

    made = tmp_path_factory.mktemp("train") / "clicks"
    data.generate(made, 5, ROWS, EVALUATION, CAP)
    return made


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


# Steps of the model, a run, and what is refused, by the same two processes: importing PyTorch takes longer than all of it.
SCRIPT = """
import contextlib, io, json, os, sys, numpy, torch
from forebay.cli import main
from forebay.train import data, ranks, split

rows, out, asked = torch.from_numpy(numpy.load(sys.argv[1])), sys.argv[2], json.loads(sys.argv[3])
rank, batch = int(os.environ["RANK"]), asked["batch"]
group = ranks.Ranks(torch, "cpu")
# One group for all: PyTorch doesn't connect the same ranks again.
ranks.joined = lambda torch, device: contextlib.nullcontext(group)
model = split.Model(group, data.tables(asked["cap"]), 1, "cpu", asked["rate"])
losses = []
for at in range(0, len(rows), batch):
    model.step(rows[at + batch // 2 * rank :][: batch // 2])
    losses.append(float(model.loss))
assert model.problem() is None
scores = model.scores(rows[:77].numpy())
if rank == 0:
    numpy.savez(out + ".npz", losses=losses, scores=scores)
found = []
for words in [asked["trained"], *(words if both or rank else [] for words, both in asked["refused"])]:
    sys.argv[0], printed, said, code = "forebay", io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            main(["train", "dlrm", "--dir", asked["dir"], *asked["fast"], *words])
        except SystemExit as ended:
            code = ended.code
    found.append([code, printed.getvalue(), said.getvalue()])
json.dump(found, open(f"{out}.{rank}.json", "w"))
group.conclude(lambda: 0)
"""


@pytest.fixture(scope="module")
def ran(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Any]]:
    """Losses and scores of the steps; by rank, what each command ended with."""
    place = tmp_path_factory.mktemp("ranks")
    np.save(place / "rows.npy", rows_of(folder)[: STEPS * BATCH])
    (place / "script.py").write_text(SCRIPT)
    asked = {
        "batch": BATCH, "cap": CAP, "rate": RATE, "dir": str(folder), "fast": FAST,
        "trained": [*TRAINED, "--json", "--mllog", str(place / "log.txt")],
        "refused": [(words, not second) for words, second, _, _ in REFUSED],
    }  # fmt: skip
    words = [*TORCHRUN, str(place / "script.py"), str(place / "rows.npy"), str(place / "out"), json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    reported = [json.loads((place / f"out.{rank}.json").read_text()) for rank in (0, 1)]
    assert (place / "log.txt").exists(), reported[0][0]
    return np.load(place / "out.npz"), reported


def rows_of(folder: Path) -> Any:
    from forebay.train import data

    return np.fromfile(folder / data.TRAIN, np.int32).reshape(-1, data.WORDS)


@pytest.mark.promise("TRN-57")
def test_losses_are_those_of_one_process_on_the_same_batches(folder: Path, ran: tuple[Any, list[Any]]) -> None:
    import torch
    from forebay.train import data, dlrm

    rows = torch.from_numpy(rows_of(folder)[: STEPS * BATCH])
    alone, expected = dlrm.Model(data.tables(CAP), 1, "cpu", RATE), []
    for at in range(0, len(rows), BATCH):
        alone.step(rows[at : at + BATCH])
        expected.append(float(alone.loss))
    assert ran[0]["losses"] == pytest.approx(expected, rel=2e-5)
    assert ran[0]["scores"] == pytest.approx(alone.scores(rows[:77]), abs=2e-5)


@pytest.mark.promise("TRN-57", "TRN-5")
def test_two_ranks_have_the_hash_and_the_quality_of_one(folder: Path, ran: tuple[Any, list[Any]]) -> None:
    from forebay.train import command, data, dlrm, supply

    (code, out, err), other = ran[1][0][0], ran[1][1][0]
    # The first rank alone says something.
    assert code == 0 and other == [0, "", ""], (err, other)
    record = json.loads(out)
    part, about = record["train"], data.open_folder(folder)
    asked = command.Request(about, supply.Supply(None), BATCH, samples=640, evaluate_every=320, peak_s=0.1, check_s=0.05)
    alone = command.Run(asked, dlrm.Model(about.tables, 0, "cpu"), True)
    assert alone.measure() is None
    one = alone.record()["train"]
    same = ("batch_hash", "batch_hash_at", "samples", "steps", "batch", "data")
    assert {key: part[key] for key in same} == {key: one[key] for key in same}
    assert [e["auc"] for e in part["evaluations"]] == pytest.approx([e["auc"] for e in one["evaluations"]], abs=2e-3)
    assert part["ranks"] == 2 and sorted(f for each in part["tables"] for f in each) == list(range(26))
    assert sum(part["bytes"].values()) >= part["samples"] * 912 and record["feed"]["world"] == 2


@pytest.mark.promise("TRN-57")
def test_what_ranks_cannot_do_is_refused_once_with_what_to_type(ran: tuple[Any, list[Any]]) -> None:
    for n, (words, _, code, said) in enumerate(REFUSED, 1):
        first, second = ran[1][0][n], ran[1][1][n]
        assert first[0] == second[0] == code and said in first[2], (words, first, second)
        # A device is asked for before the ranks know each other.
        assert second[2] == "" or words[0] == "--device", second


FUSED = """
import os, sys, numpy, torch
from forebay.model_runs import device_of
from forebay.train import data, fused, ranks, split

rows, out, batch, cap, rate = torch.from_numpy(numpy.load(sys.argv[1])), sys.argv[2], *map(float, sys.argv[3:])
batch, device = int(batch), ranks.device_of("test", None, device_of)
with ranks.joined(torch, device) as group:
    model = split.Model(group, data.tables(int(cap)), 1, device, rate, half=False)
    if device == "cpu":
        fused.BLOCK = 1 << 17
        model._fused = fused.Step(model._net, model.counts, rate, model._wrong, exchange=model._exchange)
    assert model._fused is not None
    losses = []
    for at in range(0, len(rows), batch):
        model.step(rows[at + batch // 2 * group.rank :][: batch // 2].to(device))
        losses.append(float(model.loss))
    assert model.problem() is None
    if group.rank == 0:
        numpy.save(out, losses)
    model.close()
    group.conclude(lambda: 0)
"""


@pytest.mark.promise("TRN-57", "TRN-20")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_fused_steps_of_two_ranks_have_the_losses_of_one_process(tmp_path: Path, device: str) -> None:
    """By Triton's interpreter, or on two GPUs, where most of the steps are replayed graphs."""
    import torch
    from forebay.train import data, dlrm

    pytest.importorskip("triton")
    on_gpu = device != "cpu"
    if torch.cuda.device_count() < 2 if on_gpu else torch.cuda.is_available():
        pytest.skip(f"{torch.cuda.device_count()} GPUs: two are needed, or none for the interpreter")
    cap, batch, steps, rate = (1000, 512, 100, 5e-5) if on_gpu else (30, 2, 2, 5e-4)
    rows = data.Teacher(5, cap).rows(0, 0, batch * steps)[0]
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "fused.py").write_text(FUSED)
    words = [tmp_path / "fused.py", tmp_path / "rows.npy", tmp_path / "out.npy", batch, cap, rate]
    own = environment() | ({} if on_gpu else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([*TORCHRUN, *map(str, words)], capture_output=True, text=True, timeout=280, check=False, env=own)
    assert done.returncode == 0, done.stderr
    alone, expected = dlrm.Model(data.tables(cap), 1, device, rate, half=False), []
    for at in range(0, len(rows), batch):
        alone.step(torch.from_numpy(rows[at : at + batch]).to(device))
        expected.append(float(alone.loss))
    # As far as losses of one GPU are from themselves with each batch's samples reversed.
    assert np.load(tmp_path / "out.npy") == pytest.approx(expected, rel=1e-3 if on_gpu else 2e-5)


TRAINING = """
import sys
from forebay.train import run
from forebay.cli import main
look = run.Fed._look
def look_and_report(self, now):
    look(self, now)
    if self.steps == 2 and not self.ranks.rank:
        open(sys.argv[1] + ".begun", "w").close()
run.Fed._look = look_and_report
sys.argv[0] = "forebay"
main(["train", "dlrm", *sys.argv[2:]])
"""


def trains(folder: Path, tmp_path: Path) -> subprocess.Popen[str]:
    """A training without an end, in its steps."""
    (tmp_path / "train.py").write_text(TRAINING)
    endless = ("--target-auc", "none", "--samples", "1000000000", "-o", tmp_path / "o.json")
    words = [*TORCHRUN, tmp_path / "train.py", tmp_path / "o", "--dir", folder, *FAST, *endless]
    with (tmp_path / "said").open("w") as said:
        launcher = subprocess.Popen([*map(str, words)], stdout=said, stderr=said, text=True, env=environment())
    deadline = time.monotonic() + 240
    while not (tmp_path / "o.begun").exists():
        if launcher.poll() is not None or time.monotonic() > deadline:
            launcher.send_signal(signal.SIGINT)
            launcher.wait(60)
            raise AssertionError((tmp_path / "said").read_text())
        time.sleep(0.05)
    return launcher


def ranks_of(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """Process numbers of the ranks."""
    found = {}
    for process in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        for word in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"RANK="):
                found[int(word[5:])] = int(process)
    return found


@pytest.mark.promise("TRN-57")
def test_a_rank_that_dies_is_named_and_what_was_measured_stays(folder: Path, tmp_path: Path) -> None:
    launcher = trains(folder, tmp_path)
    os.kill(ranks_of(launcher)[1], signal.SIGKILL)
    assert launcher.wait(200) != 0
    said = (tmp_path / "said").read_text()
    assert "forebay: rank 1: has ended" in said, said
    part = json.loads((tmp_path / "o.json").read_text())["train"]
    assert part["samples"] >= 2 * BATCH and "has ended" in part["failed"] and part["batch_hash"] is None


@pytest.mark.promise("TRN-57", "TRN-10")
def test_an_interrupt_stops_all_ranks_after_one_step_and_keeps_what_was_measured(folder: Path, tmp_path: Path) -> None:
    launcher = trains(folder, tmp_path)
    launcher.send_signal(signal.SIGINT)
    launcher.wait(200)
    record = json.loads((tmp_path / "o.json").read_text())
    part = record["train"]
    assert record["result"]["interrupted"] and part["samples"] >= 2 * BATCH and part["samples"] % BATCH == 0
    assert part["batch_hash"] and part["batch_hash_at"][0]["samples"] == BATCH
