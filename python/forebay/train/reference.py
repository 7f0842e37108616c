"""Reference points of convergence, and runs against them: samples to the target at a batch, over seeds.

A point is what several seeds took with one learning rate. The reference at a batch is the point that takes fewest, or lies
between two batches' on the line through their logarithms. A run passes if it lies in the interval of one more run. Pure:
points and runs in, findings out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from forebay.errors import RequestError
from forebay.numbers import whole
from forebay.stats import student_t
from forebay.train.run import NO_NUMBER

Record = dict[str, Any]
SCHEMA = "forebay.train.reference/1"
PASS, SLOW, FAST, NEVER, SHORT = "passes", "slower", "faster", "never", "ended early"
# All runs of one training together, and their mean, are called wrong by chance so often.
ALPHA = 0.05
SEEDS_LEAST = 3
AGAIN = "a file of forebay train MODEL --seeds 10 -o FILE.jsonl, or what bench/train_reference.py wrote"


@dataclass(frozen=True)
class Task:
    """Same model, data, order and target: whose runs can be set against each other."""

    model: str
    data_seed: int
    rows: int
    table_rows: int
    order: str
    target: float

    def words(self) -> str:
        data = f"{whole(self.rows)} rows of seed {self.data_seed}, tables of {whole(self.table_rows)}"
        return f"{self.model} on {data}, order {self.order}, to {self.target:g}"


@dataclass(frozen=True)
class Run:
    """Convergence of a run, as its record says. `samples` None: the target wasn't reached in `ended`."""

    task: Task
    batch: int
    learning_rate: float
    seed: int
    samples: int | None
    ended: int
    every: int
    failed: str | None = None

    @classmethod
    def from_record(cls, record: Record) -> Run:
        """Raises ValueError, KeyError or TypeError for a record that doesn't say all of it."""
        part = record["train"]
        if part["quality_target"] is None:
            raise ValueError("had no target")
        data = part["data"]
        task = Task(
            str(part["model"]), int(data["seed"]), int(data["rows"]), int(data["table_rows"]), str(part["order"]),
            round(float(part["quality_target"]), 4),
        )  # fmt: skip
        samples = None if part["samples_to_target"] is None else int(part["samples_to_target"])
        every, batch = int(part["evaluate_every"]), int(part["batch"])
        ended, rate, seed = int(part["samples"]), float(part["learning_rate"]), int(part["seed"])
        if min(batch, every, ended) < 1 or not rate > 0 or (samples is not None and samples < 1):
            raise ValueError("has a damaged part of training")
        failed = part.get("failed")
        return cls(task, batch, rate, seed, samples, ended, max(every, batch), None if failed is None else str(failed))

    @property
    def step(self) -> float:
        """Samples between its evaluations: the target was passed somewhere in the last of them."""
        return float(min(self.every, self.samples or self.every))

    @property
    def log(self) -> float | None:
        """Logarithm of where the target was passed, in the middle of that step."""
        return None if self.samples is None else math.log(self.samples - self.step / 2)


@dataclass(frozen=True)
class Point:
    """Samples that seeds took at a batch with a learning rate; `logs` as `Run.log`."""

    task: Task
    batch: int
    learning_rate: float
    logs: tuple[float, ...]
    never: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        return statistics.fmean(self.logs)

    @property
    def is_usable(self) -> bool:
        """Enough seeds for a spread, and all of them converged."""
        return len(self.logs) >= SEEDS_LEAST and not self.never


@dataclass(frozen=True)
class Level:
    """The reference at a batch: mean and deviation of the logarithm over `seeds` seeds."""

    batch: int
    learning_rate: float
    mean: float
    sd: float
    seeds: int
    between: tuple[int, int] | None = None

    def bounds(self, runs: int, step: float, confidence: float) -> tuple[float, float]:
        """Samples between which the mean of so many further runs lies."""
        coarse = step / math.exp(self.mean) / math.sqrt(12)
        error = math.sqrt(self.sd**2 * (1 / runs + 1 / self.seeds) + coarse**2 / runs)
        half = student_t(self.seeds - 1, confidence) * error
        return math.exp(self.mean - half), math.exp(self.mean + half)


def points(runs: Sequence[Run]) -> list[Point]:
    """Points of runs, by task, batch and learning rate; of a seed that ran twice, the last."""
    grouped: dict[tuple[Task, int, float], dict[int, Run]] = {}
    for run in runs:
        grouped.setdefault((run.task, run.batch, run.learning_rate), {})[run.seed] = run
    made = []
    for (task, batch, rate), by_seed in grouped.items():
        logs = tuple(run.log for run in by_seed.values() if run.log is not None)
        made.append(Point(task, batch, rate, logs, tuple(s for s, run in by_seed.items() if run.log is None)))
    return sorted(made, key=lambda p: (p.task.model, p.batch, p.learning_rate))


def level(known: Sequence[Point], batch: int) -> Level | None:
    """The reference at this batch, of points of one task; None outside of those batches that have one."""
    best: dict[int, Point] = {}
    for point in (p for p in known if p.is_usable):
        if point.batch not in best or point.mean < best[point.batch].mean:
            best[point.batch] = point
    if batch in best:
        point = best[batch]
        return Level(batch, point.learning_rate, point.mean, statistics.stdev(point.logs), len(point.logs))
    below, above = [b for b in best if b < batch], [b for b in best if b > batch]
    if not below or not above:
        return None
    low, high = best[max(below)], best[min(above)]
    share = math.log(batch / low.batch) / math.log(high.batch / low.batch)
    mean = low.mean + share * (high.mean - low.mean)
    rate = math.exp(math.log(low.learning_rate) + share * math.log(high.learning_rate / low.learning_rate))
    sd = max(statistics.stdev(low.logs), statistics.stdev(high.logs))
    return Level(batch, rate, mean, sd, min(len(low.logs), len(high.logs)), (low.batch, high.batch))


# Judging ----------------------------------------------------------------------------------------------------


def judge(runs: Sequence[Run], known: Sequence[Point]) -> list[Record]:
    """A finding for each run of one training (task, batch, learning rate), against points of its task."""
    first = runs[0]
    found = level(known, first.batch)
    if found is None:
        return [_unknown(run, known) for run in runs]
    confidence = 1 - ALPHA / (len(runs) + 1)
    judged = [(run, _verdict(run, found.bounds(1, run.step, confidence))) for run in runs]
    logs = [run.log for run in runs if run.log is not None]
    whole_ = _mean_verdict(logs, found.bounds(max(1, len(logs)), first.step, confidence))
    return [_finding(run, verdict, found, confidence, known, whole_) for run, verdict in judged]


def _verdict(run: Run, bounds: tuple[float, float]) -> str:
    if run.log is None:
        return NEVER if run.failed == NO_NUMBER or run.ended >= bounds[1] else SHORT
    taken = math.exp(run.log)
    return FAST if taken < bounds[0] else SLOW if taken > bounds[1] else PASS


def _mean_verdict(logs: Sequence[float], bounds: tuple[float, float]) -> str | None:
    if len(logs) < 2:
        return None
    taken = math.exp(statistics.fmean(logs))
    return FAST if taken < bounds[0] else SLOW if taken > bounds[1] else PASS


def _finding(run: Run, verdict: str, at: Level, confidence: float, known: Sequence[Point], whole_: str | None) -> Record:
    low, high = at.bounds(1, run.step, confidence)
    if verdict == PASS and whole_ in (FAST, SLOW):
        verdict = f"{whole_} on average"
    return {
        **_named(run),
        "verdict": verdict,
        "passes": verdict == PASS,
        "reference": {
            "samples": math.exp(at.mean), "low": low, "high": high, "seeds": at.seeds,
            "learning_rate": at.learning_rate, "between_batches": at.between,
        },
        "change": "" if verdict == PASS else _change(run, verdict, at, high, known, whole_),
    }  # fmt: skip


def _named(run: Run) -> Record:
    own = {"model": run.task.model, "seed": run.seed, "batch": run.batch, "learning_rate": run.learning_rate}
    return {**own, "samples_to_target": run.samples, "samples": run.ended}


def _unknown(run: Run, known: Sequence[Point]) -> Record:
    """A run for which there is no reference."""
    batches = sorted({p.batch for p in known if p.is_usable})
    if batches:
        found = f"no reference at batches of {whole(run.batch)}: {whole(batches[0])} to {whole(batches[-1])} have one"
    else:
        found = f"no reference for {run.task.words()}"
    made = f"forebay train {run.task.model} … --batch-size {run.batch} --seeds 10 -o points.jsonl, then --reference points.jsonl"
    return {**_named(run), "verdict": found, "passes": None, "reference": None, "change": made}


def _change(run: Run, verdict: str, at: Level, high: float, known: Sequence[Point], whole_: str | None) -> str:
    """Advice, the most likely first: learning rate, batch, seed; of a run that is too fast, what it may be a run of."""
    rate = f"--learning-rate {rate_text(at.learning_rate)}"
    is_other = not math.isclose(run.learning_rate, at.learning_rate, rel_tol=0.05)
    took = f"{whole(math.exp(at.mean))} samples with it"
    if verdict == SHORT:
        return f"--samples {math.ceil(high)}, or none: it ended after {whole(run.ended)}, and up to {whole(high)} are usual"
    if verdict.startswith(FAST):
        return "another data set, or evaluation, than the reference's? Else a better reference: --reference, of such runs"
    if verdict == NEVER and run.failed == NO_NUMBER and (not is_other or run.learning_rate <= at.learning_rate):
        return f"--learning-rate {rate_text(run.learning_rate / 4)}: {NO_NUMBER}; then another --seed"
    if is_other:
        return f"{rate}, not {rate_text(run.learning_rate)}: the reference took {took}"
    if whole_ == PASS:
        return "another --seed: the mean over seeds passes"
    better = [p for p in known if p.is_usable and p.batch < run.batch]
    if better:
        nearest = max(better, key=lambda p: (p.batch, -p.mean))
        there = f"the reference takes {whole(math.exp(nearest.mean))} samples there"
        return f"--batch-size {nearest.batch}: {there}; then another --seed"
    return "another --seed; if several are as slow, the data set or the model isn't the reference's"


def rate_text(rate: float) -> str:
    """Three digits, as one types it: 0.02, 100000."""
    return f"{float(f'{rate:.3g}'):g}"


# Files ------------------------------------------------------------------------------------------------------


def document(known: Sequence[Point]) -> Record:
    """forebay.train.reference/1, from which `read` makes the same points."""
    rows = []
    for p in known:
        task = {"model": p.task.model, "data_seed": p.task.data_seed, "rows": p.task.rows, "table_rows": p.task.table_rows}
        task |= {"order": p.task.order, "target": p.task.target}
        passed = [round(math.exp(log)) for log in p.logs]
        rows.append({**task, "batch": p.batch, "learning_rate": p.learning_rate, "samples": passed, "never": list(p.never)})
    return {"schema": SCHEMA, "points": rows}


def read(found: Any, where: str) -> list[Point]:
    """Points of a document. Raises RequestError."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise RequestError(where, f"isn't of schema {SCHEMA}", AGAIN)
    made = []
    try:
        for row in found["points"]:
            task = Task(
                str(row["model"]), int(row["data_seed"]), int(row["rows"]), int(row["table_rows"]), str(row["order"]),
                float(row["target"]),
            )  # fmt: skip
            logs = tuple(math.log(float(n)) for n in row["samples"])
            made.append(Point(task, int(row["batch"]), float(row["learning_rate"]), logs, tuple(int(n) for n in row["never"])))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RequestError(where, f"has a damaged point ({error!r})"[:200], AGAIN) from None
    return made


def ours() -> list[Point]:
    """Those in the package, which bench/train_reference.py measured."""
    text = resources.files("forebay").joinpath("data").joinpath("train").joinpath("reference.json").read_text(encoding="utf-8")
    return read(json.loads(text), "reference.json")
