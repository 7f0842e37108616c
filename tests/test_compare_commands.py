"""`forebay compare … -- train …`: two forms of a command, by the figures of their records' own part."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest
from fake_machine import other_build, record_of, typed
from forebay.compare import typed as side
from forebay.compare.bounds import parse
from forebay.errors import RequestError
from forebay.metrics import ALL, FIGURES, INFER, TRAIN, figure_named


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Words of the runs, each of which trains at a rate that its supply decides, within half a per cent."""
    ran: list[list[str]] = []
    source = random.Random(2)
    seeded = SimpleNamespace(SystemRandom=lambda: random.Random(1), Random=random.Random)
    monkeypatch.setattr("forebay.compare.jobs.random", seeded)

    def run(python: str, words: list[str], whole: bool = False) -> dict[str, Any]:
        ran.append(list(words))
        flags = dict(zip(words, words[1:], strict=False))
        rate = 1e6 * float(flags.get("--supply", 1)) * math.exp(source.gauss(0, 0.005))
        record = record_of({"sources": ["/d/train.bin"]}, 1.0, 1.0, 0.1, len(ran))
        record["result"] |= {"ios": 0} if whole else {}
        marks = [{"samples": 512, "hash": "a"}, {"samples": 1024, "hash": flags.get("--seed", "0")}]
        cost = {"user": 0.5, "system": 0.25}
        record["train"] = {"samples_per_s": rate, "seconds_to_target": None, "cpu_s_per_gib": cost, "batch_hash_at": marks}
        record["missing"] = {"train.seconds_to_target": "the run ended"}
        return record

    monkeypatch.setattr("forebay.compare.typed.run_elsewhere", run)
    return ran


@pytest.mark.promise("TRN-42")
def test_a_training_command_is_compared_by_the_figures_of_its_part(trainings: list[list[str]], capsys: Any) -> None:
    asked = ["--a", "supply=0.02", "--b", "supply=0.04", "--", "train", "toy", "--seconds", "3", "--seed", "7"]
    code, out, _ = typed(capsys, "compare", "--json", *asked)
    found = json.loads(out)
    low, high = found["ratios"]["train.samples_per_s"]["ci95"]
    assert code == 0 and low < 0.5 < high < 0.51 and found["metric"] == "train.samples_per_s"
    assert found["verdict"]["text"].startswith("A trains at 0.50–0.51 × B's rate")
    assert found["a"]["missing"]["train.seconds_to_target"] == "the run ended" and found["same_batches"] is True
    assert found["a"]["medians"]["train.cpu"] == 0.75 and found["a"]["job"]["command"][-2:] == ["--supply", "0.02"]
    # One brief run of each that doesn't count, then as many of A as of B, each whole.
    brief, whole = trainings[:2], trainings[2:]
    tail = ["--seconds", "1", "--peak-seconds", "0.2", "--json", "--quiet"]
    assert all(words[-6:] == tail for words in brief) and len(whole) == 2 * len(found["pairs"])
    assert whole[0][:-4] == ["train", "toy", "--seconds", "3", "--seed", "7"] and "--peak-seconds" not in whole[0]
    assert sum("0.02" in words for words in whole) == len(found["pairs"])
    page = typed(capsys, "compare", "--a", "seed=1", "--b", "seed=2", "--metric", "cpu", "--", "train", "toy")[1]
    assert "different samples, or in another order" in page and "no difference above" in page and "samples/s" in page


@pytest.mark.promise("TRN-42")
def test_the_brief_run_of_inference_is_as_short_as_it_gets(trainings: list[list[str]], capsys: Any) -> None:
    asked = ["--a", "supply=0.02", "--b", "supply=0.04", "--", "infer", "toy", "--dir", "d", "--mode", "cold", "--short"]
    # These records have no part of inference: the first pair says so.
    code, _, err = typed(capsys, "compare", "--order-seed", "1", *asked)
    assert code == 4 and "in pair 1: reported no queries" in err and "more --seconds, or another --metric" in err
    own = ["infer", "toy", "--dir", "d", "--mode", "cold"]
    for words, supply in zip(trainings, ("0.02", "0.04"), strict=False):
        assert words == [*own, "--supply", supply, "--seconds", "0.3", "--json", "--quiet"]
    assert len(trainings) == 3 and "--short" in trainings[2] and "--seconds" not in trainings[2]


@pytest.mark.promise("TRN-42")
def test_a_test_that_is_invalid_is_told_with_its_reason(capsys: Any, tmp_path: Path) -> None:
    record = {"infer": {"why": "too many answers were late"}, "result": {}}
    python = other_build(tmp_path, f"print({json.dumps(record)!r}); sys.exit(1)")
    asked = ["--a", "", "--b", "", "--a-python", python, "--b-python", python, "--", "infer", "toy", "--dir", tmp_path]
    code, _, err = typed(capsys, "compare", *asked)
    # The brief run may be too short to be valid; those of the pairs may not.
    assert code == 4 and "ended with code 1: too many answers were late" in err


@pytest.mark.promise("TRN-42")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--a", "supplx=1", "--", "train", "toy"], "forebay train toy has no --supplx"),
        (["--a", "supply", "--", "train", "toy"], "has no value"),
        (["--a", "out=x", "--", "train", "toy"], "has no --out"),
        (["--a", "seed=1", "--", "train"], "names no model"),
        (["--a", "seed=1", "--", "train", "datagen", "dlrm"], "datagen measures nothing that is compared"),
        (["--a", "seed=1", "--", "train", "toy", "--json"], "--json: each run's record goes to compare"),
        (["--a", "seed=1", "--", "infer", "toy", "--logs", "x"], "--logs: each run's record goes to compare"),
        (["--a", "seed=1", "--metric", "train.cpu", "--", "infer", "toy"], "is not one of infer.queries_per_s"),
        (["--a", "seed=1", "--depth", "3", "--", "train", "toy"], "--depth: is of a job"),
        (["--a", "seed=1", "x", "--", "train", "toy"], "x: is of a job"),
        (["--a", "seed=1", "--metrics", "0", "--", "train", "toy"], "processes of their own"),
        (["--a", "seed=1", "--metric", "iops", "--", "train", "toy"], "is not one of train.samples_per_s"),
        (["--a", "path=host", "--metric", "train.cpu", "/data/x"], "is not one of throughput"),
    ],
)
def test_what_of_a_command_cannot_be_compared_is_refused(
    trainings: list[list[str]], capsys: Any, arguments: list[str], said: str
) -> None:
    code, _, err = typed(capsys, "compare", *arguments)
    assert code == 2 and said in err and "try: " in err and not trainings


@pytest.mark.promise("TRN-42")
def test_a_command_that_fails_says_so_in_its_own_words(capsys: Any, tmp_path: Path) -> None:
    python = other_build(tmp_path, "import sys; sys.exit('forebay: --supply 9: is too much\\n  try: --supply 1')")
    asked = ["--a", "supply=9", "--b", "supply=1", "--a-python", python, "--", "train", "toy", "--dir", tmp_path]
    code, _, err = typed(capsys, "compare", *asked)
    assert code == 4 and "A (supply=9, by " in err and ": forebay train toy: --supply 9: is too much\n  try: --supply 1" in err


@pytest.mark.promise("TRN-42")
def test_two_files_of_training_runs_are_a_gate_by_its_figures(tmp_path: Path, trainings: list[list[str]], capsys: Any) -> None:
    for name, supply in (("a", "0.04"), ("b", "0.03")):
        made = [side.run_elsewhere("", ["train", "toy", "--supply", supply]) for _ in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in made))
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    code, out, _ = typed(capsys, "compare", *files, "--metric", "train.samples_per_s")
    assert code == 1 and "B is worse than A by more than 2 % in training rate" in out


@pytest.mark.promise("SWP-31")
@pytest.mark.promise("TRN-42")
def test_a_command_is_held_to_figures_and_limits_like_a_job(tmp_path: Path, trainings: list[list[str]], capsys: Any) -> None:
    page, xml = tmp_path / "c.json", tmp_path / "gate.xml"
    asked = ["--a", "supply=0.04", "--b", "supply=0.03", "--tolerance", "2%", "--metric", "samples_per_s,train.cpu"]
    bounds = ["--limit", "samples_per_s > 20000", "--limit", "train.cpu < 0.1", "--junit", xml, "-o", page]
    code, out, _ = typed(capsys, "compare", *asked, *bounds, "--", "train", "toy")
    found = json.loads(page.read_text())
    assert code == 1 and [found["metric"], *(also["metric"] for also in found["also"])] == ["train.samples_per_s", "train.cpu"]
    assert (found["verdict"]["gate"], found["also"][0]["verdict"]["gate"]) == ("worse", "ok")
    assert [limit["points"][0]["verdict"] for limit in found["limits"]] == ["kept", "broken"]
    assert "gate: B is worse than A by more than 2 % in training rate" in out and 'failures="2"' in xml.read_text()
    code, _, err = typed(capsys, "compare", *asked[:4], "--limit", "seconds_to_target < 9s", "--", "train", "toy")
    assert code == 4 and "B in pair 1: reported no time to the target: the run ended" in err
    # One file of such records, by names of either kind.
    runs = tmp_path / "a.jsonl"
    made = [side.run_elsewhere("", ["train", "toy", "--supply", "0.04"]) for _ in range(4)]
    runs.write_text("".join(json.dumps(r) + "\n" for r in made))
    assert typed(capsys, "compare", runs, "--limit", "samples_per_s > 30k")[0] == 2
    assert typed(capsys, "compare", runs, "--limit", "train.samples_per_s > 30000", "--limit", "rate > 0.1GiB/s")[0] == 0


@pytest.mark.promise("SWP-31")
def test_figures_are_found_by_every_name_that_they_have() -> None:
    names = {"rate": "throughput", "P99": "latency_p99", "cpu": "cpu", "load_s": "infer.load_s", "train.cpu": "train.cpu"}
    assert {name: figure_named(name, "x", ALL).name for name in names} == names
    assert figure_named("p99", "x", INFER).name == "infer.latency_p99" and figure_named("cpu", "x", TRAIN).name == "train.cpu"
    assert parse("p99 < 500us", INFER).value == 0.5 and parse("load_s <= 1500 ms", ALL).value == 1.5
    for known in (FIGURES, TRAIN):
        with pytest.raises(RequestError, match="load_s is not one of"):
            figure_named("load_s", "x", known)


@pytest.mark.long
@pytest.mark.promise("TRN-42")
def test_the_toy_is_compared_at_two_supplies_as_it_is_typed(tmp_path: Path) -> None:
    few = ["--rows", "8192", "--samples", "4096", "--peak-seconds", "0.1", "--target-auc", "none"]
    asked = ["--a", "supply=0.01", "--b", "supply=0.02", "--pairs-max", "3", "-o", tmp_path / "c.json"]
    done = processes.run([*processes.FOREBAY, "compare", *asked, "--", "train", "toy", *few], cwd=tmp_path)
    found = json.loads((tmp_path / "c.json").read_text())
    assert done.returncode in (0, 1), done.stderr
    assert len(found["pairs"]) == 3 and found["same_batches"] is True and found["ratios"]["train.samples_per_s"]
    assert {r["train"]["supply"]["asked"] for side in "ab" for r in found["runs"][side]} == {"0.01", "0.02"}


@pytest.mark.long
@pytest.mark.promise("TRN-42")
def test_cold_starts_are_compared_at_two_supplies_as_they_are_typed(tmp_path: Path) -> None:
    asked = ["--a", "supply=0.02", "--b", "supply=0.04", "--pairs-max", "3", "--metric", "coldstart_s", "-o", tmp_path / "c.json"]
    words = ["infer", "toy", "--dir", tmp_path / "toy", "--mode", "coldstart", "--short"]
    done = processes.run([*processes.FOREBAY, "compare", *asked, "--", *words], cwd=tmp_path)
    found = json.loads((tmp_path / "c.json").read_text())
    assert done.returncode == 0, done.stderr
    assert len(found["pairs"]) == 3 and found["ratios"]["infer.coldstart_s"] and found["ratios"]["infer.load_s"]
