"""`forebay train` under torchrun, on two processes of the CPU: losses, hash, quality and faults (make test-ml)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ml

ROWS, EVALUATION, CAP, STEPS, BATCH, RATE = 3000, 200, 30, 6, 16, 0.0005
SERVER = Path(__file__).with_name("ranks_server.py")
FAST = ("--device", "cpu", "--peak-seconds", "0.1", "--batch-size", str(BATCH))
TRAINED = ("--samples", "160", "--evaluate-every", "80")
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


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from forebay.train import forms, samples

    made = tmp_path_factory.mktemp("train") / "texts"
    samples.generate(made, forms.form("lora", forms.SMALL), 3, 256)
    return made


@dataclass
class Launcher:
    """Torchrun's agent of two ranks that run a script."""

    server: Server
    pid: int
    said: Path
    code: int | None = None

    def wait(self) -> int:
        if self.code is None:
            self.code = self.server.answer({"wait": self.pid})
        return self.code

    def text(self) -> str:
        return self.said.read_text()


class Server:
    """The process that has imported PyTorch, and forks the ranks."""

    def __init__(self) -> None:
        import torch

        own, pipe = {**os.environ, "OMP_NUM_THREADS": "1"}, subprocess.PIPE
        if not torch.cuda.is_available():
            # Triton reads it when it is first imported, by whatever of PyTorch.
            own["TRITON_INTERPRET"] = "1"
        self.process = subprocess.Popen([sys.executable, str(SERVER)], stdin=pipe, stdout=pipe, text=True, env=own)

    def answer(self, asked: dict[str, Any]) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, place: Path, script: str, *words: object) -> Launcher:
        """`script`: its source; each rank has its own copy of what was imported."""
        (place / "script.py").write_text(script)
        asked = {"script": str(place / "script.py"), "words": [*map(str, words)], "said": str(place / "said")}
        return Launcher(self, self.answer(asked), place / "said")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


# Steps of the model, a run, and what is refused, by the same two processes.
SCRIPT = """
import contextlib, io, json, os, sys, numpy, torch
from forebay.cli import main
from forebay.train import data, forms, parallel, ranks, samples, split

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
texts = torch.from_numpy(samples.rows_of(forms.form("lora", forms.SMALL), 1, 0, 8).copy())
model, means = parallel.Model(group, forms.form("lora", forms.SMALL), 0, "cpu"), []
for _ in range(4):
    model.step(texts[4 * rank :][:4])
    means.append(sum(group.gather(float(model.loss))) / 2)
assert model.problem() is None
qualities = group.gather(model.quality_of(texts.numpy()) + rank)
assert qualities[0] + 1 == qualities[1]
texts[7, 0] = -3
model.step(texts[4 * rank :][:4])
assert "tokens[0] is -3" in model.problem()
if rank == 0:
    numpy.savez(out + ".npz", losses=losses, scores=scores, means=means)
found = []
for model, words in [
    ("dlrm", asked["trained"]), ("lora", asked["texts"]),
    *(("dlrm", words if both or rank else []) for words, both in asked["refused"]),
]:
    sys.argv[0], printed, said, code = "forebay", io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            main(["train", model, "--dir", asked["dirs"][model], *asked["fast"], *words])
        except SystemExit as ended:
            code = ended.code
    found.append([code, printed.getvalue(), said.getvalue()])
json.dump(found, open(f"{out}.{rank}.json", "w"))
group.conclude(lambda: 0)
"""


@pytest.fixture(scope="module")
def ran(server: Server, folder: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Any]]:
    """Losses and scores of the steps; by rank, what each command ended with."""
    place = tmp_path_factory.mktemp("ranks")
    np.save(place / "rows.npy", rows_of(folder)[: STEPS * BATCH])
    asked = {
        "batch": BATCH, "cap": CAP, "rate": RATE, "dirs": {"dlrm": str(folder), "lora": str(texts)}, "fast": FAST,
        "trained": [*TRAINED, "--json", "--mllog", str(place / "log.txt")],
        "texts": ["--samples", "64", "--json"],
        "refused": [(words, not second) for words, second, _, _ in REFUSED],
    }  # fmt: skip
    launcher = server.start(place, SCRIPT, place / "rows.npy", place / "out", json.dumps(asked))
    assert launcher.wait() == 0, launcher.text()
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
    asked = command.Request(about, supply.Supply(None), BATCH, samples=160, evaluate_every=80, peak_s=0.1, check_s=0.05)
    alone = command.Run(asked, dlrm.Model(about.tables, 0, "cpu"), True)
    assert alone.measure() is None
    one = alone.record()["train"]
    same = ("batch_hash", "batch_hash_at", "samples", "steps", "batch", "data")
    assert {key: part[key] for key in same} == {key: one[key] for key in same}
    assert [e["auc"] for e in part["evaluations"]] == pytest.approx([e["auc"] for e in one["evaluations"]], abs=5e-3)
    assert part["ranks"] == 2 and sorted(f for each in part["tables"] for f in each) == list(range(26))
    assert sum(part["bytes"].values()) >= part["samples"] * 912 and record["feed"]["world"] == 2


@pytest.mark.promise("TRN-57")
def test_other_models_have_the_gradients_of_the_whole_batch_on_each_rank(texts: Path, ran: tuple[Any, list[Any]]) -> None:
    import torch
    from forebay.train import command, forms, models, samples, supply

    form = forms.form("lora", forms.SMALL)
    alone, expected = models.Model(form, 0, "cpu"), []
    rows = torch.from_numpy(samples.rows_of(form, 1, 0, 8).copy())
    for _ in range(4):
        alone.step(rows)
        expected.append(float(alone.loss))
    assert ran[0]["means"] == pytest.approx(expected, rel=2e-5) and expected[3] < expected[0]
    (code, out, err), other = ran[1][0][1], ran[1][1][1]
    assert code == 0 and other == [0, "", ""], (err, other)
    part, about = json.loads(out)["train"], samples.open_folder(texts, "lora")
    asked = command.Request(about, supply.Supply(None), BATCH, samples=64, quality=False, peak_s=0.1, check_s=0.05)
    run = command.Run(asked, models.Model(about.form, 0, "cpu"), True)
    assert run.measure() is None
    one = run.record()["train"]
    same = ("batch_hash", "batch_hash_at", "samples", "steps", "batch", "data")
    assert {key: part[key] for key in same} == {key: one[key] for key in same} and part["ranks"] == 2


@pytest.mark.promise("TRN-57")
def test_the_command_of_torchrun_trains_as_ranks_that_are_forked(texts: Path, ran: tuple[Any, list[Any]], tmp_path: Path) -> None:
    """Each rank is an interpreter that imports PyTorch and its optimizers anew: five of the seconds that a rank takes."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "forebay")
    words = ("train", "lora", "--dir", texts, *FAST, "--samples", 2 * BATCH, "--json")
    own = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*torchrun, *map(str, words)], capture_output=True, text=True, env=own, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    # One document: the first rank's.
    part = json.loads(done.stdout)["train"]
    forked = json.loads(ran[1][0][1][1])["train"]
    assert part["ranks"] == 2 and part["samples"] == 2 * BATCH
    marks, of_forked = [{mark["samples"]: mark["hash"] for mark in each["batch_hash_at"]} for each in (part, forked)]
    assert len(marks) == 2 and marks.items() <= of_forked.items() and part["batch_hash"] == of_forked[2 * BATCH]


@pytest.mark.promise("TRN-57")
def test_what_ranks_cannot_do_is_refused_once_with_what_to_type(ran: tuple[Any, list[Any]]) -> None:
    for n, (words, _, code, said) in enumerate(REFUSED, 2):
        first, second = ran[1][0][n], ran[1][1][n]
        assert first[0] == second[0] == code and said in first[2], (words, first, second)
        # A device is asked for before the ranks know each other.
        assert second[2] == "" or words[0] == "--device", second


LEFT = """
import os, torch
from forebay.train import ranks

def threads():
    return [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]

with ranks.joined(torch, "cpu") as group:
    model = {"group": torch.distributed.distributed_c10d._get_default_group()}
    model["itself"] = model
    assert group.gather(1) == [1]
    assert any("gloo" in name for name in threads()), threads()
    del model
assert not any("gloo" in name for name in threads()), threads()
"""


@pytest.mark.promise("TRN-57")
def test_no_thread_of_the_exchange_is_left_though_a_model_has_its_group() -> None:
    """One that lets go of a tensor while the interpreter ends aborts it."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, env={**os.environ, **alone}, timeout=240)
    assert done.returncode == 0, done.stderr


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
def test_fused_steps_of_two_ranks_have_the_losses_of_one_process(server: Server, tmp_path: Path, device: str) -> None:
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
    launcher = server.start(tmp_path, FUSED, tmp_path / "rows.npy", tmp_path / "out.npy", batch, cap, rate)
    assert launcher.wait() == 0, launcher.text()
    alone, expected = dlrm.Model(data.tables(cap), 1, device, rate, half=False), []
    for at in range(0, len(rows), batch):
        alone.step(torch.from_numpy(rows[at : at + batch]).to(device))
        expected.append(float(alone.loss))
    # As far as losses of one GPU are from themselves with each batch's samples reversed.
    assert np.load(tmp_path / "out.npy") == pytest.approx(expected, rel=1e-3 if on_gpu else 2e-5)


TRAINING = """
import os, sys
from forebay.train import run
from forebay.cli import main
look = run.Fed._look
def look_and_report(self, now):
    look(self, now)
    if self.steps == 2:
        with open(f"{sys.argv[1]}.{self.ranks.rank}.new", "w") as found:
            found.write(str(os.getpid()))
        os.rename(found.name, f"{sys.argv[1]}.{self.ranks.rank}")
run.Fed._look = look_and_report
sys.argv[0] = "forebay"
main(["train", *sys.argv[2:]])
"""


def trains(server: Server, model: str, folder: Path, tmp_path: Path) -> tuple[Launcher, list[int]]:
    """A training without an end, in its steps, and the process numbers of its ranks."""
    speed = "--target-auc" if model == "dlrm" else "--target"
    endless = (speed, "none", "--samples", "1000000000", "-o", tmp_path / "o.json")
    launcher = server.start(tmp_path, TRAINING, tmp_path / "o", model, "--dir", folder, *FAST, *endless)
    found = [tmp_path / f"o.{rank}" for rank in (0, 1)]
    deadline = time.monotonic() + 240
    while not all(each.exists() for each in found):
        if not Path(f"/proc/{launcher.pid}/cmdline").read_bytes() or time.monotonic() > deadline:
            os.kill(launcher.pid, signal.SIGTERM)
            launcher.wait()
            raise AssertionError(launcher.text())
        time.sleep(0.05)
    return launcher, [int(each.read_text()) for each in found]


@pytest.mark.promise("TRN-57")
@pytest.mark.parametrize("model", ["dlrm", "lora"])
def test_a_rank_that_dies_is_named_and_what_was_measured_stays(
    server: Server, model: str, folder: Path, texts: Path, tmp_path: Path
) -> None:
    launcher, processes = trains(server, model, folder if model == "dlrm" else texts, tmp_path)
    os.kill(processes[1], signal.SIGKILL)
    assert launcher.wait() != 0
    said = launcher.text()
    assert "forebay: rank 1: has ended" in said, said
    part = json.loads((tmp_path / "o.json").read_text())["train"]
    assert part["samples"] >= 2 * BATCH and "has ended" in part["failed"] and part["batch_hash"] is None


@pytest.mark.promise("TRN-57", "TRN-10")
def test_an_interrupt_stops_all_ranks_after_one_step_and_keeps_what_was_measured(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    launcher, _ = trains(server, "dlrm", folder, tmp_path)
    os.kill(launcher.pid, signal.SIGINT)
    launcher.wait()
    record = json.loads((tmp_path / "o.json").read_text())
    part = record["train"]
    assert record["result"]["interrupted"] and part["samples"] >= 2 * BATCH and part["samples"] % BATCH == 0
    assert part["batch_hash"] and part["batch_hash_at"][0]["samples"] == BATCH
