"""`forebay train`: data with a known best, the toy model, supply, hash, sums, advice, records, faults. Without PyTorch."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from forebay import _core, feed
from forebay.errors import RequestError, RunError
from forebay.plan import catalogue
from forebay.train import advice, command, data, run, supply, toy
from forebay.units import GIB
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

Forebay = Callable[..., subprocess.CompletedProcess[str]]

ROWS, EVALUATION, CAP = 8_192, 3_000, 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("train") / "clicks"
    data.generate(made, 5, ROWS, EVALUATION, CAP)
    return made


@pytest.fixture(scope="module")
def words(folder: Path) -> Any:
    return np.fromfile(folder / data.TRAIN, np.int32).reshape(-1, data.WORDS)


def copied(folder: Path, into: Path, words: Any = None, **changes: Any) -> Path:
    """The data set in another folder, with some of its words or of what it says of itself changed."""
    into.mkdir()
    for name in (data.TRAIN, data.EVALUATE):
        (into / name).write_bytes((folder / name).read_bytes())
    if words is not None:
        words.tofile(into / data.TRAIN)
    said = {**json.loads((folder / data.ABOUT).read_text()), **changes}
    (into / data.ABOUT).write_text(json.dumps(said))
    return into


# Data ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("TRN-1")
def test_rows_are_those_of_the_seed_whatever_made_them(folder: Path, words: Any, tmp_path: Path) -> None:
    assert data.ROW_BYTES == 912 == (1 + 13 + 214) * 4 and len(data.TABLE_ROWS) == len(data.LOOKUPS) == 26
    teacher = data.Teacher(5, CAP)
    alone = [teacher.rows(0, n, min(data.CHUNK, ROWS - n * data.CHUNK))[0] for n in range(-(-ROWS // data.CHUNK))]
    assert (np.concatenate(alone) == words).all()
    again = data.generate(tmp_path / "again", 6, ROWS, EVALUATION, CAP)
    assert (np.fromfile(again.folder / data.TRAIN, np.int32).reshape(-1, data.WORDS) != words).any(axis=1).mean() > 0.99
    assert data.faults(words, data.tables(CAP)) is None
    # Each table's rows are all looked up, its first ones most.
    first = words[:, data.FIRST_LOOKUP]
    assert set(first) == set(range(CAP)) and (first == 0).sum() > 5 * (first == 20).sum()


@pytest.mark.promise("TRN-1")
def test_the_best_reachable_auc_is_the_teachers_own(folder: Path) -> None:
    about = data.open_folder(folder)
    made, logit = data.Teacher(5, CAP).rows(1, 0, EVALUATION)
    there = np.fromfile(folder / data.EVALUATE, np.int32).reshape(-1, data.WORDS)
    assert (made == there).all()
    ones, zeros = logit[made[:, 0] == 1], logit[made[:, 0] == 0]
    assert about.best_auc == pytest.approx((ones[:, None] > zeros[None, :]).mean(), abs=2e-6)
    chance = 1 / (1 + np.exp(-logit[:400]))
    before = chance[:, None] > chance[None, :]
    weight = chance[:, None] * (1 - chance[None, :])
    expected = (weight * before).sum() / (weight.sum() - np.trace(weight))
    assert data.expected_auc(chance) == pytest.approx(expected, abs=1e-9)
    assert about.expected_auc == pytest.approx(about.best_auc, abs=0.03) and 0.5 < about.target_auc < about.best_auc


@pytest.mark.promise("TRN-1")
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_counts_pairs(rows: list[tuple[int, bool]]) -> None:
    scores, labels = np.array([s for s, _ in rows], float), np.array([label for _, label in rows])
    if labels.all() or not labels.any():
        with pytest.raises(ValueError):
            data.auc(scores, labels)
        return
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels] for b in scores[~labels]]
    assert data.auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.promise("TRN-1")
def test_the_loader_reads_it_by_name(folder: Path, words: Any) -> None:
    row = np.dtype([("label", "<i4"), ("dense", "<f4", 13), ("sparse", "<i4", 214)])
    batch = next(iter(feed.Loader(feed.rows(folder / data.TRAIN, row), 100, shuffle="none")))
    assert (np.asarray(batch["label"]) == words[:100, 0]).all() and (np.asarray(batch["sparse"]) == words[:100, 14:]).all()


@pytest.mark.promise("TRN-8")
def test_a_data_set_that_is_another_is_refused(folder: Path, words: Any, tmp_path: Path) -> None:
    for number, (changes, said) in enumerate(
        [
            ({"schema": "x/1"}, "schema 'x/1'"), ({"row_bytes": 160}, "rows of 160 bytes"), ({"rows": ROWS + 1}, "bytes;"),
            ({"tables": [{"rows": 3, "lookups": 1}]}, "1 tables and 1 look-ups"), ({"table_rows": 49}, "cut to 49 rows"),
            ({"seed": None}, "isn't what datagen writes"), ({"best_auc": "much"}, "isn't what datagen writes"),
        ]
    ):  # fmt: skip
        with pytest.raises(RequestError, match=said):
            data.open_folder(copied(folder, tmp_path / str(number), **changes))
    with pytest.raises(RequestError, match="seed 7"):
        data.refuse_another_seed(data.open_folder(copied(folder, tmp_path / "seed", seed=7)))
    with pytest.raises(RequestError, match="no data set"):
        data.open_folder(tmp_path)
    (tmp_path / "0" / data.ABOUT).write_text("{")
    with pytest.raises(RequestError, match="isn't what datagen writes .Expecting property name.*line 1"):
        data.open_folder(tmp_path / "0")


@pytest.mark.promise("TRN-8")
def test_datagen_overwrites_nothing_and_leaves_nothing_half_made(folder: Path, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(RequestError, match="isn't overwritten"):
        data.generate(folder, 5, ROWS, EVALUATION, CAP)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.generate(tmp_path / "new", 5, ROWS, EVALUATION, CAP, interrupt)
    with pytest.raises(RequestError, match="are free"):
        data.generate(tmp_path / "new", 5, 1 << 50, EVALUATION, CAP)
    with pytest.raises(RequestError, match="mkdir -p"):
        data.generate(tmp_path / "no" / "new", 5, ROWS, EVALUATION, CAP)
    assert list(tmp_path.iterdir()) == []


# The toy model -------------------------------------------------------------------------------------------


@pytest.mark.promise("TRN-2")
def test_the_toys_gradients_are_those_of_its_loss(words: Any) -> None:
    model = toy.Model(data.tables(CAP), 1)
    model.weights = {name: weight.astype(np.float64) for name, weight in model.weights.items()}
    rows = words[:40].copy()

    def loss() -> float:
        chance = model._forward(rows)["chance"].astype(float)
        return float(-np.log(np.where(rows[:, 0] == 1, chance, 1 - chance)).mean())

    gradients = model._gradients(rows, model._forward(rows))
    source = random.Random(3)
    for name, weight in model.weights.items():
        looked_up = [int(rows[0, data.FIRST_LOOKUP]), 0] if name == "vectors" else None
        for _ in range(4):
            at = tuple(looked_up) if looked_up else tuple(source.randrange(n) for n in weight.shape)
            kept = weight[at]
            found = []
            for step in (1e-6, -1e-6):
                weight[at] = kept + step
                found.append(loss())
            weight[at] = kept
            assert gradients[name][at] == pytest.approx((found[0] - found[1]) / 2e-6, rel=1e-3, abs=1e-6), name


@pytest.mark.promise("TRN-2")
def test_the_toy_learns_and_a_seed_decides_its_weights(folder: Path, words: Any) -> None:
    rows = np.fromfile(folder / data.EVALUATE, np.int32).reshape(-1, data.WORDS)
    found = []
    for seed in (1, 1, 2):
        model = toy.Model(data.tables(CAP), seed)
        for at in range(0, ROWS, 256):
            model.step(words[at : at + 256])
        found.append(data.auc(model.scores(rows), rows[:, 0]))
        assert model.problem() is None
    assert found[0] == found[1] != found[2] and 0.6 < found[0] < data.open_folder(folder).best_auc
    model.reset()
    assert data.auc(model.scores(rows), rows[:, 0]) < 0.6


# Supply --------------------------------------------------------------------------------------------------


class Clock:
    """A clock that sleeping and working move, and nothing else; sleeps last too long, as they do."""

    def __init__(self, late_s: float) -> None:
        self.now, self.late_s = 0.0, late_s

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + self.late_s


@pytest.mark.promise("TRN-3")
@examples(40)
@given(share=st.floats(0.05, 4), ahead=st.integers(2, 16), late=st.floats(0, 0.0004), jitter=st.floats(0, 0.5))
def test_a_rate_is_the_lesser_of_supply_and_peak(share: float, ahead: int, late: float, jitter: float) -> None:
    """By the arithmetic of `Pace` on a clock of its own; bench/train.py measures the same on a real one."""
    step_s, batch, batches, source = 0.005, 512 * 912, 3000, random.Random(7)
    clock = Clock(late)
    pace = supply.Pace(share * batch / step_s, ahead, clock.read, clock.sleep)
    ends = []
    for _ in range(batches):
        pace.hold(batch)
        clock.now += step_s * (1 + jitter * (source.random() - 0.5))
        ends.append(clock.now)
    rate = (batches - 100) / (ends[-1] - ends[99])
    peak = 1 / step_s
    if share <= 0.8:
        assert rate == pytest.approx(share * peak, rel=0.03)
    elif share >= 1.25:
        assert rate >= 0.97 * peak
    else:
        assert rate >= 0.9 * min(1, share) * peak
    # Never more than the supply brings, but for what was read ahead.
    assert rate * batches <= share * peak * batches + ahead / step_s + 0.01 * peak * batches


@pytest.mark.promise("TRN-3")
def test_a_supply_rests_while_a_model_is_evaluated() -> None:
    clock = Clock(0.0)
    pace = supply.Pace(1000.0, 4, clock.read, clock.sleep)
    for turn in range(10):
        pace.hold(100)
        if turn == 5:
            clock.now += 7.0
            pace.rest(7.0)
    assert clock.now == pytest.approx(10 * 0.1 + 7.0)


@pytest.mark.promise("TRN-4")
def test_a_supply_of_drives_is_what_plan_predicts_and_keeps_the_sheets_rate() -> None:
    share, _ = supply.efficiency()
    found = supply.parse("model:d7-ps1010?drives=4", 8)
    sheet = catalogue.drive("D7-PS1010").read_gibps * 4 / 8
    assert found.sheet_gib_s == pytest.approx(sheet) and found.gib_s == pytest.approx(share * sheet) and 0.3 < share < 1
    assert found.low is not None and found.high is not None and found.gib_s is not None
    assert found.low < found.gib_s < found.high and found.kind == "simulated supply"
    assert supply.parse("13.5", 8).gib_s == pytest.approx(13.5 / 8) and supply.parse(None).kind == "the loader"
    assert supply.parse("model:micron-9300-pro").drive == "Micron 9300 PRO"
    for name, count, gives in supply.drives_for(1.6, 8):
        assert gives >= 1.6 > gives * (count - 1) / count, name


@pytest.mark.promise("TRN-8")
@pytest.mark.parametrize(
    ("text", "gpus", "said"),
    [
        ("0", 1, "no rate above 0"), ("-1", 1, "no rate above 0"), ("fast", 1, "not a number"),
        ("model:d9", 1, "in no catalogue"), ("model:d7-ps1010?drives=0", 1, "not between 1"),
        ("model:d7-ps1010?drives=²", 1, "not between 1"), ("model:d7-ps1010?time=real", 1, "'time'"),
        ("1", 0, "--gpus 0"), (None, 4, "none is given"),
    ],
)  # fmt: skip
def test_what_is_no_supply_is_refused(text: str | None, gpus: int, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        supply.parse(text, gpus)


# Hash, sums ----------------------------------------------------------------------------------------------


@pytest.mark.promise("TRN-5")
@examples(15)
@given(cuts=st.sets(st.integers(1, 2999)), row=st.integers(0, 2999), word=st.integers(0, 227), bit=st.integers(0, 30))
def test_a_hash_is_of_content_and_order_and_not_of_batches(words: Any, cuts: set[int], row: int, word: int, bit: int) -> None:
    whole, cut = run.Digest(), run.Digest()
    whole.add(words[:3000])
    edges = [0, *sorted(cuts), 3000]
    for begin, end in zip(edges, edges[1:], strict=False):
        cut.add(words[begin:end])
    assert whole.text() == cut.text() and whole.at()[0] == {"samples": 3000, "hash": whole.text()}
    other = words[:3000].copy()
    other[row, word] ^= 1 << bit
    changed, swapped = run.Digest(), run.Digest()
    changed.add(other)
    swapped.add(words[:3000][::-1])
    assert len({whole.text(), changed.text(), swapped.text()}) == 3
    longer = run.Digest()
    for at in range(0, 8 * 512, 512):
        longer.add(words[at : at + 512])
    assert [mark["samples"] for mark in longer.at()] == [512, 1024, 2048, 4096]


@pytest.mark.promise("TRN-6")
def test_a_whole_is_the_sum_of_its_parts() -> None:
    found = command.sum_of_parts(90_000, 30_000.0, [0.5, 0.7], 4.3)
    assert found["sum_s"] == pytest.approx(3 + 1.2) and found["evaluation_s"] == pytest.approx(0.6)
    assert found["off_pct"] == pytest.approx(100 * (4.2 / 4.3 - 1))
    assert command.sum_of_parts(90_000, 30_000.0, [], None)["off_pct"] is None


# Advice --------------------------------------------------------------------------------------------------


def made_up(source: random.Random, kind: str) -> dict[str, Any]:
    """The part `train` of a run that is bound as `kind` says."""
    peak = math.exp(source.uniform(math.log(2e4), math.log(3e6)))
    demand, spread = peak * data.ROW_BYTES / GIB, source.uniform(0.001, 0.02)
    share = {"supply": source.uniform(0.1, 0.9), "compute": source.uniform(1.1, 9.0), "between": source.uniform(0.97, 1.03)}[kind]
    rate = min(1.0, share) * peak
    return {
        "device": source.choice(("cuda:0", "cpu")),
        "path": source.choice(("bounce", "mapped", "gds-compat")),
        "peak_samples_per_s": peak,
        "samples_per_s": rate,
        "rate_gib_s": rate * data.ROW_BYTES / GIB,
        "demand_gib_s": demand,
        "demand_gib_s_ci95": [demand * (1 - spread), demand * (1 + spread)],
        "supply_gib_s": share * demand,
        "supply": {"kind": "simulated supply", "gpus": source.choice((1, 4, 8))},
        "input_wait_pct": 100 * max(0.0, 1 - share),
        "gpu_idle_pct": None,
        "feed_cpu_s_per_gib": {"user": 0.02, "system": 0.05},
    }


@pytest.mark.promise("TRN-7")
@pytest.mark.parametrize("kind", ["supply", "compute", "between"])
@pytest.mark.parametrize("number", range(10))
def test_advice_is_right_in_thirty_made_up_records(kind: str, number: int) -> None:
    train = made_up(random.Random(f"{kind} {number}"), kind)
    storage, gds, balance = advice.advice(train, supply.drives_for)
    assert [storage["area"], gds["area"], balance["area"]] == ["storage", "gds", "balance"]
    assert advice.verdict(train) == kind
    ratio = train["demand_gib_s"] / train["supply_gib_s"]
    for share in (0.95, 0.99):
        value, (low, high) = share * train["demand_gib_s"], (share * bound for bound in train["demand_gib_s_ci95"])
        assert f"{advice._gib(value)} GiB/s a GPU ({advice._gib(low)} to {advice._gib(high)})" in storage["text"]
    head = {"supply": "Storage limits", "compute": "Faster storage gains nothing", "between": "Supply ("}[kind]
    assert storage["text"].startswith(head)
    if kind == "supply":
        assert f"up to {ratio:.2f} times" in storage["text"] and "The supply is the bottleneck" in balance["text"]
    if kind == "compute":
        assert "Compute is the bottleneck" in balance["text"]
    if kind == "between":
        assert "balanced" in balance["text"]
    few = math.ceil(0.95 * train["demand_gib_s"] * train["supply"]["gpus"] / supply.parse("model:d7-ps1010").gib_s - 1e-9)
    assert f"{max(few, 1)} × D7-PS1010" in storage["text"] or f"{max(few, 1)} × any drive" in storage["text"]
    unknown = train["device"] == "cpu" or train["path"] == "gds-compat" or kind != "compute"
    reported = "can't be told here" if unknown else "no effect"
    assert reported in gds["text"] and "0.0700 CPU-s/GiB" in gds["text"]


@pytest.mark.promise("TRN-7")
def test_of_batches_that_came_by_gds_the_advice_says_so() -> None:
    for ran, said in (("gds", "by GPUDirect Storage:"), ("gds-mixed", "in part:"), ("gds-compat", "can't be told here: cuFile")):
        train = {**made_up(random.Random(1), "between"), "device": "cuda:0", "path": ran, "supply": {"kind": supply.LOADER}}
        assert said in advice.gds(train)


@pytest.mark.promise("TRN-7")
def test_of_a_peak_that_is_known_badly_the_advice_does_not_call_it_balanced() -> None:
    need = {"demand_gib_s": 1.0, "demand_gib_s_ci95": [0.4, 1.6], "rate_gib_s": 0.5, "supply_gib_s": 0.5}
    train = {**made_up(random.Random(4), "between"), **need}
    storage, _, balance = advice.advice(train)
    assert "more storage gains nothing, or up to 220 %: the model's own peak is known no better" in storage["text"]
    assert "can't be told" in balance["text"] and "a longer --peak-seconds" in balance["text"]


@pytest.mark.promise("TRN-7")
def test_a_run_that_went_faster_than_its_own_peak_tells_what_the_model_takes() -> None:
    train = {**made_up(random.Random(3), "compute"), "supply_gib_s": 2.0, "peak_samples_per_s": 1e6, "samples_per_s": 1.2e6}
    gib_s = 1.2e6 * data.ROW_BYTES / GIB
    slow = {"demand_gib_s": gib_s / 1.2, "demand_gib_s_ci95": None, "rate_gib_s": gib_s, "samples_per_s_ci95": [1.1e6, 1.3e6]}
    storage, _, balance = advice.advice({**train, **slow})
    assert f"{2.0 / gib_s:.2f} times what the model takes" in storage["text"], storage
    low, high = (advice._gib(0.95 * gib_s * end / 1.2e6) for end in (1.1e6, 1.3e6))
    assert f"no more than {advice._gib(0.95 * gib_s)} GiB/s a GPU ({low} to {high}) within 5 %" in storage["text"]
    assert "at 1,200,000 samples/s (that is 20 % above its own peak, which a longer --peak" in balance["text"]
    # Two pieces of time have no interval, and one within the peak's is no contradiction.
    assert "GiB/s a GPU within 5 %" in advice.storage({**train, **slow, "samples_per_s_ci95": None}, None)
    within = {**train, **slow, "demand_gib_s_ci95": [0.9 * gib_s / 1.2, 1.25 * gib_s / 1.2]}
    assert advice.need(within) == advice.Need(gib_s / 1.2, (0.9 * gib_s / 1.2, 1.25 * gib_s / 1.2))


@pytest.mark.promise("TRN-7")
def test_what_the_page_cache_brought_says_nothing_of_the_storage() -> None:
    train = {**made_up(random.Random(1), "compute"), "supply": {"kind": supply.LOADER, "gpus": 1}, "cached": True}
    text = advice.storage(train, supply.drives_for)
    assert "out of the page cache" in text and "nothing of the storage" in text and "has to bring" in text
    assert "gains nothing" in advice.storage({**train, "cached": False}, supply.drives_for)


@pytest.mark.promise("TRN-7")
def test_advice_of_what_was_not_measured_says_so() -> None:
    for found in advice.advice({"demand_gib_s": None, "supply_gib_s": 1.0}):
        assert "wasn't measured" in found["text"] or "wasn't run" in found["text"]


# Runs ----------------------------------------------------------------------------------------------------


def asked(folder: Path, **more: Any) -> command.Request:
    settings = {"samples": 4096, "peak_s": 0.02, "check_s": 0.01, **more}
    return command.Request(data.open_folder(folder), supply.parse(settings.pop("supply", None)), 256, **settings)


def ran(folder: Path, **more: Any) -> tuple[dict[str, Any], Any]:
    request = asked(folder, **more)
    made = command.Run(request, toy.Model(request.about.tables, request.seed), False)
    failure = made.measure()
    return made.record(), failure


@pytest.fixture(scope="module")
def trained(folder: Path) -> str:
    """The record of a run that nothing is asked of, as JSON."""
    record, failure = ran(folder)
    assert failure is None
    return json.dumps(record)


@pytest.fixture(autouse=True)
def a_peak_of_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "KEPT", 8)
    # Without memory for 64 MiB of batches, whose huge pages take longer than the training.
    monkeypatch.setattr(feed, "Loader", functools.partial(feed.Loader, prefetch=2))


@pytest.mark.promise("TRN-5", "TRN-9")
def test_supplies_and_cache_states_see_the_same_batches_and_reach_the_same_quality(folder: Path, trained: str) -> None:
    # A seventh of what the loader brings where other work has both processors.
    others = [ran(folder, **more)[0]["train"] for more in ({"supply": "0.003"}, {"cache": "warm"}, {"samples": 1024})]
    found = [json.loads(trained)["train"], *others]
    assert len({f["batch_hash"] for f in found[:3]}) == 1 and len({f["quality"] for f in found[:3]}) == 1
    assert found[3]["batch_hash_at"] == found[0]["batch_hash_at"][: len(found[3]["batch_hash_at"])]
    assert found[1]["supply"]["kind"] == "simulated supply" and found[1]["supply"]["asked_gib_s"] == 0.003


@pytest.mark.promise("TRN-9")
def test_a_record_has_a_reason_for_each_null(folder: Path) -> None:
    for more in ({"quality": False, "samples": None, "seconds": 0.1}, {"samples": 256}, {"target": 0.52}):
        record, failure = ran(folder, **more)
        part = record["train"]
        nulls = [key for key, value in part.items() if value is None]
        unset = {"quality_target", "evaluate_every"} if not more.get("quality", True) else set()
        assert failure is None and all(record["missing"].get(f"train.{key}") for key in set(nulls) - unset), nulls
        assert [a["area"] for a in part["advice"]] == ["storage", "gds", "balance"]
        if "target" in more:
            assert part["samples_to_target"] and part["parts"]["sum_s"] > 0 and part["seconds_to_target"] > 0
        assert part["bytes"]["staged"] + part["bytes"]["mapped"] + part["bytes"]["direct"] >= part["samples"] * 912


@pytest.mark.promise("TRN-8")
@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        (data.FIRST_LOOKUP, CAP, "of table 0, which has 50"),
        pytest.param(0, 2, "label 2", marks=pytest.mark.long),
        pytest.param(data.FIRST_LOOKUP + 3, -1, "look", marks=pytest.mark.long),
    ],
)
def test_what_no_model_can_read_ends_the_run_and_names_the_sample(
    folder: Path, words: Any, tmp_path: Path, word: int, value: int, said: str
) -> None:
    wrong = words.copy()
    wrong[3000, word] = value
    record, failure = ran(copied(folder, tmp_path / "wrong", wrong))
    assert isinstance(failure, RunError) and said in failure.found and "sample 3,000" in failure.found
    assert failure.asked == "step 12, after 3,072 samples" and record["train"]["samples"] == 3072
    # A slow machine's peak is measured before its samples reach the wrong one.
    if record["train"]["peak_samples_per_s"] is None:
        assert "wrong" in record["missing"]["train.peak_samples_per_s"]


@pytest.mark.promise("TRN-8")
def test_a_loss_that_is_no_number_ends_the_run_and_names_the_step(folder: Path) -> None:
    request = asked(folder)
    made = command.Run(request, toy.Model(request.about.tables, 0, learning_rate=1e5), False)
    failure = made.measure()
    assert isinstance(failure, RunError) and failure.asked.startswith("step ") and "samples" in failure.asked
    assert failure.found == run.NO_NUMBER and made.record()["train"]["samples"] > 0


@pytest.mark.promise("TRN-40")
def test_the_engine_reads_and_merges_a_record_without_losing_anything(trained: str) -> None:
    record, text = json.loads(trained), trained
    read = json.loads(_core.read_record(text))
    assert read == record and list(read["train"]) == list(record["train"])
    assert json.loads(_core.merge([text])) == read
    merged = json.loads(_core.merge([text, json.dumps({**record, "id": "other"})]))
    assert "train" not in merged and [host["train"] for host in merged["result"]["hosts"]] == [record["train"]] * 2
    assert merged["missing"]["result.hosts[1].train.gpu_idle_pct"] == record["missing"]["train.gpu_idle_pct"]


@pytest.mark.promise("TRN-9")
def test_a_report_shows_what_was_trained_and_the_advice(forebay: Forebay, trained: str, tmp_path: Path) -> None:
    record = json.loads(trained)
    for key in ("samples_per_s", "supply", "advice"):
        strange = {**record, "id": key, "train": {**record["train"], key: "x"}}
        (tmp_path / f"{key}.json").write_text(json.dumps(strange))
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert forebay("report", "run.json", "-o", "page.html", "--no-charts", cwd=tmp_path).returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert "Toy trained at" in page and record["train"]["batch_hash"] in page and "GPUDirect Storage can" in page
    strange_ones = [f"{key}.json" for key in ("samples_per_s", "supply", "advice")]
    assert forebay("report", *strange_ones, "-o", "p.html", "--no-charts", cwd=tmp_path).returncode == 0


@pytest.mark.promise("TRN-8")
def test_a_cached_run_is_not_called_cold(folder: Path) -> None:
    request = asked(folder, cache="cold")
    made = command.Run(request, toy.Model(request.about.tables, 0), False)
    made._prepare_cache = lambda: None  # type: ignore[method-assign] - a cache that keeps what it has
    made.measure()
    record = made.record()
    reported = [w["id"] for w in record["warnings"]]
    assert record["train"]["cached"] is True and not made.holds and "not_cold" in reported


@pytest.mark.promise("TRN-8")
def test_the_command_refuses_what_cannot_be(forebay: Forebay, folder: Path, tmp_path: Path) -> None:
    set_ = ("--dir", str(folder))
    for words, code, said in [
        (("--target-auc", "0.99"), 2, "the best that can be reached"), (("--target-auc", "x"), 2, "not between 0.5"),
        (("--path", "gds"), 2, "runs on the CPU"), (("--path", "mapped"), 2, "runs on the CPU"),
        (("--batch-size", "1000000"), 2, "8,192 rows"), (("--data-seed", "6"), 2, "has 5"),
        (("--supply", "100000"), 3, "the loader brings"), (("--supply", "0.00001"), 2, "a batch of 512 takes"),
        (("--learning-rate", "0"), 2, "no rate above 0"),
    ]:  # fmt: skip
        done = forebay("train", "toy", *set_, *words, cwd=tmp_path)
        assert done.returncode == code and said in done.stderr and "try: " in done.stderr, (words, done.stderr)
    if importlib.util.find_spec("torch") is None:
        done = forebay("train", "dlrm", *set_, cwd=tmp_path)
        assert done.returncode == 3 and "pip install torch" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("TRN-9", "TRN-10")
def test_an_interrupted_toy_keeps_what_it_measured(tmp_path: Path) -> None:
    words = ("train", "toy", "--dir", "made", "--rows", "8192", "--supply", "0.002", "--samples", "1000000000", "-o", "o.json")
    speed = ("--target-auc", "none", "--peak-seconds", "0.1")
    with processes.running([*processes.FOREBAY, *words, *speed], cwd=tmp_path) as process:
        processes.wait_until(lambda: (tmp_path / "made" / data.ABOUT).exists(), "its data", process)
        # Through the checks and the peak, usually, and far from a billion samples.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)
        os.kill(process.pid, signal.SIGINT)
        done = processes.finish(process)
    assert done.returncode == 130, done.stderr
    if (tmp_path / "o.json").exists():  # not on a machine that was busy for so long
        record = json.loads((tmp_path / "o.json").read_text())
        assert record["result"]["interrupted"] and record["train"]["peak_samples_per_s"] > 0 and "interrupted" in done.stdout
