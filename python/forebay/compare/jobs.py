"""Two jobs in pairs, each in an order that a seed draws, until the ratio is known well enough.

Both orders together make a linear drift of the machine cancel, and chance keeps step with no rhythm of it; the stop
looks only at the interval's width, never at what it says. docs/compare.md has the method and its simulated coverage.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from forebay import run as engine
from forebay.bench.save import Output
from forebay.compare.bounds import judge as judge_bounds
from forebay.compare.gate import Gate
from forebay.compare.subject import Subject
from forebay.compare.typed import Typed
from forebay.compare.verdict import judge, reported
from forebay.compare.work import Work
from forebay.errors import ForebayError, MachineError, RunError
from forebay.metrics import Metric
from forebay.numbers import figure
from forebay.stages import Stages, format_duration
from forebay.stats import Interval, Pair, bootstrap_interval, paired_ratio

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

# Stopping at the first interval that is narrow enough prefers those that are narrow by luck, and noise that comes and
# goes with the runs lets few pairs agree by chance. Computed at 98.5 %, from 8 pairs on, at least 94 % of intervals hold
# the true ratio under any of them (tests/test_coverage.py simulates it).
CONFIDENCE_WITH_STOPPING = 0.985
WARM_UP_S = 1.0
# Runs of a job until an I/O of it finishes.
TRIES = 3
Side = Subject | Typed


@dataclass(frozen=True)
class Limits:
    """When to stop: the half-width asked for in per cent, and bounds."""

    until_pct: float = 2.0
    pairs_min: int = 8
    pairs_max: int = 30
    seconds_max: float | None = None
    order_seed: int = field(default_factory=lambda: random.SystemRandom().randrange(1 << 32))


def orders(seed: int, pairs_min: int) -> Iterator[bool]:
    """Yields whether A goes first, pair by pair and without end: a coin for each.

    Of the first `pairs_min` pairs, 3 in 8 at least begin with either side: what can't be told from one order alone is
    known by then.
    """
    coin = random.Random(seed)
    least = max(1, 3 * pairs_min // 8)
    while True:
        first = [coin.random() < 0.5 for _ in range(pairs_min)]
        if least <= sum(first) <= pairs_min - least:
            break
    yield from itertools.chain(first, (coin.random() < 0.5 for _ in itertools.repeat(None)))


@dataclass(frozen=True)
class PairRun:
    """The records of one A and one B."""

    a: dict[str, Any]
    b: dict[str, Any]
    a_first: bool
    # "A" or "B" for each run in which no I/O finished, and which was repeated.
    empty: tuple[str, ...] = ()

    def pair(self, metric: Metric) -> Pair | None:
        values = metric.of_record(self.a), metric.of_record(self.b)
        return None if None in values else Pair(*values, self.a_first)  # type: ignore[arg-type]


def compare_jobs(
    a: Side,
    b: Side,
    gate: Gate,
    limits: Limits,
    out: Output | None = None,
    endpoint: Endpoint | None = None,
) -> dict[str, Any]:
    """Runs the pairs and returns the document (forebay.compare/1).

    Ctrl-C and a run that breaks end it; the pairs before that stand, and the document says which it was.
    An error before the first pair is raised. `save` gets the document after each pair, not the one that is returned.
    """
    # Before the first run: an interrupt in the midst of this import would leave none of it for the verdict.
    import numpy  # noqa: F401

    started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    pairs: list[PairRun] = []
    interrupted, failure = False, None
    with Stages(endpoint=endpoint) as stages:
        try:
            for pair in _pairs(a, b, gate, limits, stages, pairs):
                pairs.append(pair)
                if out:
                    so_far = _document(started, a, b, gate, limits, pairs, False, None)
                    out.write([so_far], partial=True, rescues=False)
        except KeyboardInterrupt:
            interrupted = True
        except ForebayError as error:
            if not pairs:
                raise
            failure = error
            stages.say(f"forebay: {error}")
    return _document(started, a, b, gate, limits, pairs, interrupted, failure)


def _pairs(
    a: Side, b: Side, gate: Gate, limits: Limits, stages: Stages, done: list[PairRun]
) -> Any:
    began = time.monotonic()
    _warm_up(a, b, gate, stages)
    a_first = orders(limits.order_seed, limits.pairs_min)
    while not _enough(done, gate.metrics, limits, began):
        yield _pair(a, b, gate, next(a_first), len(done), limits, stages)
        stages.say(_line(done, _widest(done, gate.metrics), limits, time.monotonic() - began))


def _warm_up(a: Side, b: Side, gate: Gate, stages: Stages) -> None:
    """A short run of each that doesn't count: files are made, caches filled, errors met early."""
    for subject in (a, b):
        stages.begin(f"warm-up of {subject.name}", subject.job)
        record = _run_that_finds(subject, stages, [], brief=True)
        for asked, metric in gate.asked(subject.name):
            if record is not None and metric.of_record(record) is None:
                found = f"not measured for {subject.name}: {metric.why_missing(record)}"
                raise MachineError(asked, found, f"--metric {next(iter(subject.metrics))}")


def _pair(
    a: Side, b: Side, gate: Gate, a_first: bool, index: int, limits: Limits, stages: Stages
) -> PairRun:
    records = {}
    empty: list[str] = []
    for subject in (a, b) if a_first else (b, a):
        stages.begin(f"pair {index + 1}/{limits.pairs_max} {subject.name}", subject.job)
        record = _run_that_finds(subject, stages, empty)
        assert record is not None
        for _, metric in gate.asked(subject.name):
            if metric.of_record(record) is None:
                found = f"reported no {metric.title}: {metric.why_missing(record)}"
                more = "a longer --duration" if subject.has_ios else f"{subject.longer}, or another --metric"
                raise RunError(f"{subject.name} in pair {index + 1}", found, more)
        records[subject.name] = record
    return PairRun(records["A"], records["B"], a_first, tuple(empty))


def _run_that_finds(subject: Side, stages: Stages, empty: list[str], brief: bool = False) -> dict[str, Any] | None:
    """Repeats a run in which no I/O finished: a short one may wait all its time for a processor that others use."""
    for _ in range(TRIES - 1):
        record = _run(subject, stages, brief)
        if record is None or not subject.has_ios or record["result"].get("ios") != 0:
            return record
        empty.append(subject.name)
        stages.say(f"{subject.name}: no I/O finished; the run is repeated and doesn't count")
    return _run(subject, stages, brief)


def _run(subject: Side, stages: Stages, brief: bool) -> dict[str, Any] | None:
    """An interrupted run is half a measurement: its pair doesn't count."""
    record = subject.run_briefly(stages.observe, WARM_UP_S) if brief else subject.run(stages.observe)
    if record is not None and record["result"].get("interrupted"):
        raise KeyboardInterrupt
    return record


def _enough(done: list[PairRun], metrics: Sequence[Metric], limits: Limits, began: float) -> bool:
    if len(done) >= limits.pairs_max:
        return True
    if limits.seconds_max is not None and done:
        elapsed = time.monotonic() - began
        if elapsed + elapsed / (len(done) + 1) > limits.seconds_max:
            return True
    if len(done) < limits.pairs_min:
        return False
    half = ratio_of(done, _widest(done, metrics)).half_width_pct
    return half is not None and half <= limits.until_pct


def _widest(done: list[PairRun], metrics: Sequence[Metric]) -> Metric:
    """The one that is known least: the comparison goes on for it."""
    return max(metrics, key=lambda m: ratio_of(done, m).half_width_pct or math.inf)


def ratio_of(done: list[PairRun], metric: Metric) -> Interval:
    """A ÷ B over the pairs in which both were measured. Raises ValueError where there are none."""
    return paired_ratio([p for p in (run.pair(metric) for run in done) if p], CONFIDENCE_WITH_STOPPING)


def _line(done: list[PairRun], metric: Metric, limits: Limits, elapsed: float) -> str:
    pair, ratio = done[-1].pair(metric), ratio_of(done, metric)
    assert pair is not None
    order = "A B" if pair.a_first else "B A"
    text = f"pair {len(done)} ({order})  A {figure(pair.a)}  B {figure(pair.b)} {metric.unit}"
    if ratio.half_width_pct is None:
        return text
    left = max(limits.pairs_min - len(done), 0)
    if ratio.half_width_pct > limits.until_pct:
        wanted = math.ceil(len(done) * (ratio.half_width_pct / limits.until_pct) ** 2)
        left = max(left, min(wanted, limits.pairs_max) - len(done))
    seconds = left * elapsed / len(done)
    if limits.seconds_max is not None:
        seconds = min(seconds, max(limits.seconds_max - elapsed, 0.0))
    text += f"  A÷B {ratio.estimate:.3f} ± {ratio.half_width_pct:.1f} %"
    return text + (f"  about {format_duration(seconds)} left" if seconds else "")


def _document(
    started: str,
    a: Side,
    b: Side,
    gate: Gate,
    limits: Limits,
    pairs: list[PairRun],
    interrupted: bool,
    failure: ForebayError | None,
) -> dict[str, Any]:
    reported = gate.reported(a.metrics)
    longer = None if a.has_ios else a.longer
    noise = _noise(pairs)
    first, *also = [_judged(pairs, m, gate, limits, noise, longer) for m in gate.metrics]
    tested = Work("", b.job, "B", [p.b for p in pairs])
    return {
        "schema": "forebay.compare/1",
        "kind": "jobs",
        "started": started,
        "command": engine.typed(),
        "tolerance_pct": gate.tolerance_pct,
        "until_ci_pct": limits.until_pct,
        "order_seed": limits.order_seed,
        "method": "crossover of pairs in random order, log ratios, Student's t, pooled over both orders",
        "a": _side(a, [p.a for p in pairs], reported),
        "b": _side(b, [p.b for p in pairs], reported),
        "pairs": [_pair_row(p, reported) for p in pairs],
        "ratios": {name: _ratio(pairs, m) for name, m in reported.items()},
        "noise": noise,
        **first,
        "also": also,
        "limits": judge_bounds(gate.bounds, [tested]) if pairs else [],
        "interrupted": interrupted,
        "error": None
        if failure is None
        else {
            "exit_code": failure.exit_code,
            "asked": failure.asked,
            "found": failure.found,
            "next": failure.next,
        },
        "runs_without_io": {side: sum(p.empty.count(side.upper()) for p in pairs) for side in ("a", "b")},
        "same_batches": same_batches([p.a for p in pairs], [p.b for p in pairs]),
        "runs": {"a": [p.a for p in pairs], "b": [p.b for p in pairs]},
    }


def same_batches(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool | None:
    """True if training saw the same samples in the same order on both sides, as far as both went; None where none tells."""
    found: dict[int, set[str]] = {}
    for record in (*a, *b):
        for samples, digest in _hashes(record).items():
            found.setdefault(samples, set()).add(digest)
    both = [found[n] for n in found if all(n in _hashes(side[0]) for side in (a, b) if side)]
    return all(len(digests) == 1 for digests in both) if both else None


def _hashes(record: dict[str, Any]) -> dict[int, str]:
    """Of training, after so many samples."""
    marks = (record.get("train") or {}).get("batch_hash_at") or []
    return {mark["samples"]: mark["hash"] for mark in marks}


def _judged(
    pairs: list[PairRun], metric: Metric, gate: Gate, limits: Limits, noise: dict[str, Any], longer: str | None
) -> dict[str, Any]:
    """The verdict on one figure; with a tolerance also `gate`, as of two files: worse, better, ok or unsure."""
    ratio = ratio_of(pairs, metric) if pairs else Interval(1.0, None, None, 0)
    found = judge(ratio, metric, limits.until_pct, noise, longer).as_dict()
    if gate.tolerance_pct is not None:
        found["gate"] = reported(ratio, metric, gate.tolerance_pct)
    return {"metric": metric.name, "verdict": found}


def _side(subject: Side, records: list[dict[str, Any]], reported: Mapping[str, Metric]) -> dict[str, Any]:
    medians, missing = {}, {}
    for name, metric in reported.items():
        values = [v for v in map(metric.of_record, records) if v is not None]
        medians[name] = statistics.median(values) if values else None
        if not values and records:
            missing[name] = metric.why_missing(records[-1])
    return {
        "settings": subject.settings,
        "python": subject.python,
        "job": subject.job,
        "ran": sorted({how_it_ran(r) for r in records}),
        "medians": medians,
        "missing": missing,
    }


def how_it_ran(record: dict[str, Any]) -> str:
    """`bounce, uring, O_DIRECT, to host`, as the record says."""
    path, job = record.get("path") or {}, record.get("job") or {}
    words = [str(path.get("ran", "?")), str(path.get("engine", ""))]
    policy = (record.get("cache") or {}).get("policy", "none")
    words.append("O_DIRECT" if job.get("direct") else f"cache {policy}" if policy != "none" else "")
    words.append(f"to {path['destination']}" if path.get("destination") else "")
    return ", ".join(w for w in words if w)


def _pair_row(pair: PairRun, reported: Mapping[str, Metric]) -> dict[str, Any]:
    row: dict[str, Any] = {"order": "AB" if pair.a_first else "BA"}
    for side, record in (("a", pair.a), ("b", pair.b)):
        row[side] = {"id": record.get("id"), **{n: m.of_record(record) for n, m in reported.items()}}
    return row


def _ratio(pairs: list[PairRun], metric: Metric) -> dict[str, Any] | None:
    measured = [p for p in (run.pair(metric) for run in pairs) if p]
    if not measured:
        return None
    ratio = paired_ratio(measured, CONFIDENCE_WITH_STOPPING)
    logs = bootstrap_interval([p.log_ratio for p in measured])
    return {
        "estimate": ratio.estimate,
        "ci95": None if ratio.low is None else [ratio.low, ratio.high],
        "median": math.exp(logs.estimate),
        "bootstrap_ci95_of_median": None
        if logs.low is None or logs.high is None
        else [math.exp(logs.low), math.exp(logs.high)],
        "pairs": ratio.n,
    }


def _noise(pairs: list[PairRun]) -> dict[str, Any]:
    """The worst of the noise guards over all runs; null where no run could tell."""
    found: dict[str, Any] = {}
    for key in ("steal_pct", "others_cores_busy", "throttled"):
        values = [(r["result"].get("noise") or {}).get(key) for p in pairs for r in (p.a, p.b)]
        known = [v for v in values if v is not None]
        found[key] = max(known) if known else None
    return found
