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
from fake_machine import FakeMachine, other_build, record_of, typed
from forebay.compare import subject
from forebay.compare import typed as side
from forebay.compare.answers import completed
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
def test_a_path_that_one_side_lacks_is_refused_before_the_other_runs(
    trainings: list[list[str]], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine().install(monkeypatch)
    monkeypatch.setattr("forebay.run.lacks", lambda job: "no such library" if job.get("path") in ("gds", "mapped") else None)
    monkeypatch.setattr("forebay.run.no_gpu", lambda: None)
    for asked, words, code, said in [
        (["--a", "path=auto", "--b", "path=bounce"], ["--", "train", "toy"], 2, "B (path=bounce): forebay train toy: --path"),
        (["--a", "path=auto", "--b", "path=gds"], ["--", "train", "gnn", "--dir=d"], 2, "try: --path mapped; what gds brings"),
        (["--a", "path=bounce", "--b", "path=gds"], ["--", "train", "dlrm", "--dir=d"], 3, "--path gds: no such library"),
        (["--a", "path=bounce", "--b", "path=gds"], ["--", "train", "dlrm", "--dir=d", "--device=cpu"], 2, "A (path=bounce)"),
        (["--a", "path=bounce", "--b", "path=mapped", "/d"], [], 3, "B (path=mapped): path mapped: no such library"),
    ]:  # fmt: skip
        found, _, err = typed(capsys, "compare", *asked, *words)
        assert found == code and said in err and trainings == [] and machine.jobs == [], (asked, words, err)
    # Pages of blocks may lie in the host's memory.
    side.Typed("A", "path=host", ("emulate", "kvcache", "run", "--path", "host"), ("--path",)).check()


@pytest.mark.promise("TRN-42")
@pytest.mark.parametrize(
    ("ran", "wait_pct", "noise", "answer", "said"),
    [
        ("gds-compat", 40.0, 0.05, "compatibility mode", "the effect of GPUDirect Storage can't be told here: cuFile runs in"),
        ("gds", 0.123, 0.001, "compute-bound", "no effect: compute-bound (of the time, waits for batches are 0.123 % in A,"),
        ("gds", 0.123, 0.05, "", "in training rate, too wide for a verdict; both are compute-bound"),
        ("gds", 40.0, 0.001, "", "no difference above "),
    ],
)
def test_a_comparison_of_paths_says_when_none_shows_and_when_it_cannot_be_told(
    ran: str, wait_pct: float, noise: float, answer: str, said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(4)

    def run(python: str, words: list[str], whole: bool = False) -> dict[str, Any]:
        record = record_of({"sources": ["/d/train.bin"]}, 1.0, 1.0, 0.1, 1)
        record["path"]["ran"] = ran if "gds" in words else "bounce"
        supply = 2.0 if wait_pct < 3 else 0.5
        speed = {"samples_per_s": 1e6 * math.exp(source.gauss(0, noise)), "demand_gib_s": 1.0, "supply_gib_s": supply}
        record["train"] = {**speed, "input_wait_pct": wait_pct, "cpu_s_per_gib": {"user": 0.5, "system": 0.25}}
        return record

    monkeypatch.setattr("forebay.compare.typed.run_elsewhere", run)
    monkeypatch.setattr("forebay.compare.typed.Typed.check", lambda self: None)
    until = "20%" if noise < 0.01 else "2%"
    asked = ["--a", "path=gds", "--b", "path=bounce", "--order-seed", "3", "--pairs-max", "3", "--until-ci", until]
    words = ["--metric", "samples_per_s,train.cpu", "--", "train", "dlrm", "--dir", "d", "--seconds", "4"]
    found = json.loads(typed(capsys, "compare", *asked, "--json", *words)[1])
    assert found["verdict"]["answer"] == answer and said in found["verdict"]["text"], found["verdict"]
    page = typed(capsys, "compare", *asked, *words)[1]
    # The figures stand above either answer, and what is said of one is said of the other.
    assert said in page and "training rate, samples/s  " in page and "A ÷ B" in page
    compat = answer == "compatibility mode"
    assert found["also"][0]["verdict"]["answer"] == (answer if compat else "")
    if noise > 0.01:
        assert "3 pairs tell little: 8 as noisy would give about ± " in page and "longer runs (a longer --seconds)" in page
    assert ("try: forebay doctor" in page) is compat


def test_of_two_runs_in_compatibility_mode_the_ratio_is_the_answer() -> None:
    sides = {"A": [{"path": {"ran": "gds-compat"}}], "B": [{"path": {"ran": "gds-compat"}}]}
    verdict = {"kind": "same", "text": "no difference above 1 %", "next": ""}
    assert completed(verdict, "throughput", sides) == {**verdict, "answer": ""}


def test_a_longer_run_is_named_by_the_flag_that_it_was_given() -> None:
    flags = ("--seconds", "--samples", "--duration")
    for words, said in [
        (("train", "toy", "--seconds=3"), "a longer --seconds"), (("train", "toy", "--samples", "9"), "more --samples"),
        (("train", "toy"), "more samples a run"), (("emulate", "kvcache", "--duration", "3"), "a longer --duration"),
    ]:  # fmt: skip
        assert side.Typed("A", "", words, flags).longer == said


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Words of the runs, each of which reads from its key-value cache at the rate of its place, within half a per cent."""
    ran: list[list[str]] = []
    source = random.Random(3)
    rates = {"/kv": 10.0, "nvme+tcp://h/n": 5.0, "vfio-user:/s": 8.0}

    def run(python: str, words: list[str], whole: bool = False) -> dict[str, Any]:
        ran.append(list(words))
        flags = dict(zip(words, words[1:], strict=False))
        rate = rates[flags["--dir"]] * math.exp(source.gauss(0, 0.005))
        record = record_of({"sources": [flags["--dir"]]}, 1.0, 1.0, 0.5 / rate, len(ran))
        took = {p: 1e3 / rate for p in ("p50", "p95", "p99")}
        record["kvcache"] = {
            "read_gib_s": {"window": rate}, "write_gib_s": {"window": rate / 4}, "storage_tokens_per_s": 40.0,
            "stream_hash": flags.get("--seed", "42"), "latency_ms": {"entry_read": took, "entry_write": took},
        }  # fmt: skip
        return record

    monkeypatch.setattr("forebay.compare.typed.run_elsewhere", run)
    return ran


PLACES = ["--a", "dir=/kv", "--b", "dir=nvme+tcp://h/n overwrite-device=nvme+tcp://h/n", "--c", "dir=vfio-user:/s"]


@pytest.mark.promise("KVC-49")
def test_a_cache_is_compared_in_three_places(caches: list[list[str]], capsys: Any, tmp_path: Path) -> None:
    asked = [*PLACES, "--order-seed", "1", "--metric", "read_rate,read_p95", "-o", tmp_path / "c.json"]
    words = ["--", "emulate", "kvcache", "--option", "1", "--users", "20", "--duration", "30"]
    code, page, _ = typed(capsys, "compare", *asked, *words)
    found = json.loads((tmp_path / "c.json").read_text())
    assert code == 0 and found["metric"] == "kvcache.read_rate" and found["same_stream"] is True
    # One brief run of each with one user, then each once a round, in every order.
    brief, whole = caches[:3], caches[3:]
    assert all(run[-6:] == ["--duration", "1", "--users", "1", "--json", "--quiet"] for run in brief)
    assert whole[0][:7] == ["emulate", "kvcache", "--option", "1", "--users", "20", "--duration"]
    orders = [row["order"] for row in found["pairs"]]
    assert len(whole) == 3 * len(orders) and {"".join(sorted(order)) for order in orders} == {"ABC"} and len(set(orders)) > 2
    for other in "BC":
        assert 3 <= sum(order.index("A") < order.index(other) for order in orders[:8]) <= 5
    (third,) = found["against"]
    assert found["verdict"]["text"].startswith("A reads 1.9") or found["verdict"]["text"].startswith("A reads 2.0")
    assert third["side"] == "C" and third["verdict"]["text"].startswith("A reads 1.2")
    low, high = third["ratios"]["kvcache.read_p95"]["ci95"]
    assert low < 0.8 < high and third["also"][0]["metric"] == "kvcache.read_p95"
    assert found["c"]["job"]["command"][-2:] == ["--dir", "vfio-user:/s"] and len(found["runs"]["c"]) == len(orders)
    assert "A, B and C served the same requests" in page and "C against A: A reads 1.2" in page and "A ÷ C" in page
    assert "reads in the window, GiB/s" in page and "CPU, CPU-s/GiB" in page and "p95 of an entry's read, ms" in page


@pytest.mark.promise("SWP-31")
@pytest.mark.promise("KVC-49")
def test_each_place_is_held_to_limits_and_tolerance(caches: list[list[str]], capsys: Any, tmp_path: Path) -> None:
    gates = ["--tolerance", "5%", "--limit", "read_rate > 6GiB/s", "--limit", "read_p95 < 1s", "--junit", tmp_path / "g.xml"]
    words = ["--", "emulate", "kvcache", "--users", "20"]
    code, page, _ = typed(capsys, "compare", *PLACES, *gates, *words)
    assert code == 1 and "gate: B is worse than A by more than 5 %" in page and "gate: C is worse than A" in page
    xml = (tmp_path / "g.xml").read_text()
    assert 'name="C against A"' in xml and 'name="C"' in xml and 'failures="3"' in xml
    # The same place and seed is another stream with another seed.
    found = json.loads(typed(capsys, "compare", "--json", "--a", "seed=1", "--b", "seed=2", *words, "--dir", "/kv")[1])
    assert found["same_stream"] is False and found["against"] == [] and found["verdict"]["kind"] == "same"


@pytest.mark.promise("KVC-49")
def test_traces_and_blocks_are_compared_by_the_figures_of_their_documents(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(python: str, words: list[str], whole: bool = False) -> dict[str, Any]:
        return subject._record_of("", python, 0, typed(capsys, *words)[1].encode(), b"", whole)

    monkeypatch.setattr("forebay.compare.typed.run_elsewhere", run)
    trace = tmp_path / "t.jsonl"
    lines = [{"timestamp": 1000 * n, "input_length": 1024, "output_length": 1, "hash_ids": [n % 3, 10 + n]} for n in range(12)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drives = ["--a", "dir=model:d7-ps1010", "--b", "dir=model:d7-ps1010?drives=2", "--c", "dir=model:d7-p5520"]
    words = ["--pairs-max", "3", "--json", "--", "emulate", "kvcache", "replay", trace]
    code, out, err = typed(capsys, "compare", *drives, *words)
    found = json.loads(out)
    assert code == 0, err
    assert found["metric"] == "replay.load_p95" and found["a"]["ran"] == ["virtual time"]
    # Twice the bandwidth takes half as long, and virtual time has no noise.
    two, other = (side["ratios"]["replay.load_p95"]["estimate"] for side in (found, found["against"][0]))
    assert two > 1.5 and other < 1
    small = ["--size", "16m", "--tokens", "64", "--requests", "2", "--dir", tmp_path]
    words = ["--pairs-max", "3", "--", "emulate", "kvcache", "run", *small]
    code, out, err = typed(capsys, "compare", "--a", "blocks=2m", "--b", "blocks=64k", *words)
    assert code == 0 and "loads into pages, GiB/s" in out and "CPU of loads" in out, err


def test_three_jobs_are_compared_as_two_are(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    machine = FakeMachine(noise=0.003).install(monkeypatch)
    machine.ratio_of = lambda job: {"mapped": 1.08, "bounce": 1.0}.get(job.get("path", ""), 1.0)
    asked = ["--a", "path=mapped", "--b", "path=bounce", "--order-seed", "7", "/data/x", "--json"]
    two = json.loads(typed(capsys, "compare", *asked)[1])
    three = json.loads(typed(capsys, "compare", *asked, "--c", "path=mapped")[1])
    assert [row["order"] for row in two["pairs"][:8]] == [row["order"].replace("C", "") for row in three["pairs"][:8]]
    assert three["against"][0]["verdict"]["kind"] == "same" and three["verdict"]["kind"] == "differs"


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
        (["--a", "dir=d", "--", "emulate", "run"], "run measures nothing that is compared\n  try: one of kvcache"),
        (["--a", "dir=d", "--", "emulate"], "measures nothing by itself\n  try: -- emulate kvcache"),
        (["--a", "dir=d", "--", "emulate", "kvcache", "check"], "check measures nothing that is compared"),
        (["--a", "dir=d", "--", "emulate", "kvcache", "--results", "r"], "--results: each run's record goes to compare"),
        (["--a", "dri=d", "--", "emulate", "kvcache"], "forebay emulate kvcache has no --dri"),
        (["--a", "dir=d", "--c", "dir", "--", "emulate", "kvcache"], "setting 'dir': has no value"),
        (["--a", "dir=d", "--metric", "throughput", "--", "emulate", "kvcache"], "is not one of kvcache.read_rate"),
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
