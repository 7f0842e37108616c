"""Two or three jobs in rounds, each in an order that a seed draws, until every ratio to A is known well enough.

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
from forebay.bench.summary import about_data
from forebay.compare.answers import completed
from forebay.compare.bounds import judge as judge_bounds
from forebay.compare.gate import Gate
from forebay.compare.subject import Subject
from forebay.compare.typed import Typed
from forebay.compare.verdict import CONFIDENCE_WITH_STOPPING, PAIRS_LEAST, judge, reported
from forebay.compare.work import Work
from forebay.errors import ForebayError, MachineError, RunError
from forebay.metrics import Metric, of_mix
from forebay.numbers import figure
from forebay.stages import Stages, format_duration
from forebay.stats import Interval, Pair, bootstrap_interval, paired_ratio, pairs_for

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

WARM_UP_S = 1.0
# Runs of a job until an I/O of it finishes.
TRIES = 3
Side = Subject | Typed


@dataclass(frozen=True)
class Limits:
    """When to stop: the half-width asked for in per cent, and bounds."""

    until_pct: float = 2.0
    pairs_min: int = PAIRS_LEAST
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


def turns(names: str, seed: int, pairs_min: int) -> Iterator[str]:
    """Yields the order of each round's runs, e.g. `BA`: A's and B's as `orders` has it, and a C between or beside them.

    The first `pairs_min` rounds hold the least of either order for A and C, too.
    """
    pair = ("AB" if a_first else "BA" for a_first in orders(seed, pairs_min))
    if names == "AB":
        yield from pair
        return
    coin = random.Random(f"C {seed}")
    least = max(1, 3 * pairs_min // 8)
    begun = list(itertools.islice(pair, pairs_min))
    while True:
        first = [_with_c(order, coin) for order in begun]
        if least <= sum(order.index("A") < order.index("C") for order in first) <= pairs_min - least:
            break
    yield from itertools.chain(first, (_with_c(order, coin) for order in pair))


def _with_c(order: str, coin: random.Random) -> str:
    place = int(coin.random() * 3)
    return f"{order[:place]}C{order[place:]}"


@dataclass(frozen=True)
class PairRun:
    """The records of one A and one B, or of A and another side."""

    a: dict[str, Any]
    b: dict[str, Any]
    a_first: bool

    def pair(self, metric: Metric) -> Pair | None:
        values = metric.of_record(self.a), metric.of_record(self.b)
        return None if None in values else Pair(*values, self.a_first)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Round:
    """A run of every side. `records`: by their names, in the order in which they ran."""

    records: dict[str, dict[str, Any]]
    # Name of the side for each run in which no I/O finished, and which was repeated.
    empty: tuple[str, ...] = ()

    def pair(self, other: str) -> PairRun:
        order = list(self.records)
        return PairRun(self.records["A"], self.records[other], order.index("A") < order.index(other))


def pairs_with(other: str, done: Sequence[Round]) -> list[PairRun]:
    return [each.pair(other) for each in done]


def compare_jobs(
    sides: Sequence[Side],
    gate: Gate,
    limits: Limits,
    out: Output | None = None,
    endpoint: Endpoint | None = None,
) -> dict[str, Any]:
    """Runs the rounds of A, B and perhaps C, and returns the document (forebay.compare/1).

    Ctrl-C and a run that breaks end it; the rounds before that stand, and the document says which it was.
    An error before the first round is over is raised. `save` gets the document after each round, not the one that is returned.
    """
    # Before the first run: an interrupt in the midst of this import would leave none of it for the verdict.
    import numpy  # noqa: F401

    started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    done: list[Round] = []
    interrupted, failure = False, None
    with Stages(endpoint=endpoint) as stages:
        try:
            for each in _rounds(sides, gate, limits, stages, done):
                done.append(each)
                if out:
                    so_far = _document(started, sides, gate, limits, done, False, None)
                    out.write([so_far], partial=True, rescues=False)
        except KeyboardInterrupt:
            interrupted = True
        except ForebayError as error:
            if not done:
                raise
            failure = error
            stages.say(f"forebay: {error}")
    return _document(started, sides, gate, limits, done, interrupted, failure)


def _rounds(sides: Sequence[Side], gate: Gate, limits: Limits, stages: Stages, done: list[Round]) -> Iterator[Round]:
    began = time.monotonic()
    for side in sides:
        side.check()
    _warm_up(sides, gate, stages)
    order = turns("".join(side.name for side in sides), limits.order_seed, limits.pairs_min)
    while not _enough(done, gate.metrics, limits, began):
        yield _round(sides, gate, next(order), len(done), limits, stages)
        other, metric = _widest(done, gate.metrics)
        stages.say(_line(pairs_with(other, done), metric, limits, time.monotonic() - began, other))


def _warm_up(sides: Sequence[Side], gate: Gate, stages: Stages) -> None:
    """A short run of each that doesn't count: files are made, caches filled, errors met early."""
    for subject in sides:
        stages.begin(f"warm-up of {subject.name}", subject.job)
        record = _run_that_finds(subject, stages, [], brief=True)
        for asked, metric in gate.asked(subject.name):
            if record is not None and metric.of_record(record) is None:
                found = f"not measured for {subject.name}: {metric.why_missing(record)}"
                raise MachineError(asked, found, f"--metric {next(iter(subject.metrics))}")


def _round(sides: Sequence[Side], gate: Gate, order: str, index: int, limits: Limits, stages: Stages) -> Round:
    records = {}
    empty: list[str] = []
    for subject in sorted(sides, key=lambda side: order.index(side.name)):
        stages.begin(f"pair {index + 1}/{limits.pairs_max} {subject.name}", subject.job)
        record = _run_that_finds(subject, stages, empty)
        assert record is not None
        for _, metric in gate.asked(subject.name):
            if metric.of_record(record) is None:
                found = f"reported no {metric.title}: {metric.why_missing(record)}"
                more = "a longer --duration" if subject.has_ios else f"{subject.longer}, or another --metric"
                raise RunError(f"{subject.name} in pair {index + 1}", found, more)
        records[subject.name] = record
    return Round(records, tuple(empty))


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


def _enough(done: list[Round], metrics: Sequence[Metric], limits: Limits, began: float) -> bool:
    if len(done) >= limits.pairs_max:
        return True
    if limits.seconds_max is not None and done:
        elapsed = time.monotonic() - began
        if elapsed + elapsed / (len(done) + 1) > limits.seconds_max:
            return True
    if len(done) < limits.pairs_min:
        return False
    other, metric = _widest(done, metrics)
    half = ratio_of(pairs_with(other, done), metric).half_width_pct
    return half is not None and half <= limits.until_pct


def _widest(done: list[Round], metrics: Sequence[Metric]) -> tuple[str, Metric]:
    """The side and the figure whose ratio to A's is known least: the comparison goes on for it."""
    others = sorted(set(done[-1].records) - {"A"})
    return max(
        itertools.product(others, metrics),
        key=lambda each: ratio_of(pairs_with(each[0], done), each[1]).half_width_pct or math.inf,
    )


def ratio_of(done: list[PairRun], metric: Metric) -> Interval:
    """A ÷ B over the pairs in which both were measured. Raises ValueError where there are none."""
    return paired_ratio([p for p in (run.pair(metric) for run in done) if p], CONFIDENCE_WITH_STOPPING)


def _line(done: list[PairRun], metric: Metric, limits: Limits, elapsed: float, other: str = "B") -> str:
    pair, ratio = done[-1].pair(metric), ratio_of(done, metric)
    assert pair is not None
    order = f"A {other}" if pair.a_first else f"{other} A"
    text = f"pair {len(done)} ({order})  A {figure(pair.a)}  {other} {figure(pair.b)} {metric.unit}"
    if ratio.half_width_pct is None:
        return text
    left = max(limits.pairs_min - len(done), 0)
    if ratio.half_width_pct > limits.until_pct:
        wanted = pairs_for(limits.until_pct, ratio, CONFIDENCE_WITH_STOPPING, limits.pairs_max) or limits.pairs_max
        left = max(left, wanted - len(done))
    seconds = left * elapsed / len(done)
    if limits.seconds_max is not None:
        seconds = min(seconds, max(limits.seconds_max - elapsed, 0.0))
    half = f"± {ratio.half_width_pct:.1f} %" if ratio.half_width_pct < 1000 else "and no telling yet"
    text += f"  A÷{other} {ratio.estimate:.3f} {half}"
    return text + (f"  about {format_duration(seconds)} left" if seconds else "")


def _document(
    started: str,
    sides: Sequence[Side],
    gate: Gate,
    limits: Limits,
    done: list[Round],
    interrupted: bool,
    failure: ForebayError | None,
) -> dict[str, Any]:
    a, *others = sides
    reported = gate.reported({**a.metrics, **of_mix(record for each in done for record in each.records.values())})
    longer = None if a.has_ios else a.longer
    noise = _noise(done)
    ran = {side.name: [each.records[side.name] for each in done] for side in sides}
    against_b, *against = [
        _against(side.name, pairs_with(side.name, done), gate, limits, noise, longer, reported) for side in others
    ]
    tested = [Work("", side.job, side.name, ran[side.name]) for side in others]
    return {
        "schema": "forebay.compare/1",
        "kind": "jobs",
        "started": started,
        "command": engine.typed(),
        "tolerance_pct": gate.tolerance_pct,
        "until_ci_pct": limits.until_pct,
        "order_seed": limits.order_seed,
        "method": "crossover of pairs in random order, log ratios, Student's t, pooled over both orders",
        **{side.name.lower(): _side(side, ran[side.name], reported) for side in sides},
        "pairs": [_round_row(each, reported) for each in done],
        "noise": noise,
        **against_b,
        "against": [{"side": side.name, **found} for side, found in zip(others[1:], against, strict=True)],
        "limits": judge_bounds(gate.bounds, tested) if done else [],
        "interrupted": interrupted,
        "error": None
        if failure is None
        else {
            "exit_code": failure.exit_code,
            "asked": failure.asked,
            "found": failure.found,
            "next": failure.next,
        },
        "warnings": {name.lower(): about_data(records) for name, records in ran.items()},
        "runs_without_io": {name.lower(): sum(each.empty.count(name) for each in done) for name in ran},
        "same_batches": same_batches(list(ran.values())),
        "same_stream": same_stream(list(ran.values())),
        "runs": {name.lower(): records for name, records in ran.items()},
    }


def same_batches(sides: Sequence[list[dict[str, Any]]]) -> bool | None:
    """True if training saw the same samples in the same order on all sides, as far as all went; None where none tells."""
    found: dict[int, set[str]] = {}
    for record in itertools.chain(*sides):
        for samples, digest in _hashes(record).items():
            found.setdefault(samples, set()).add(digest)
    both = [found[n] for n in found if all(n in _hashes(side[0]) for side in sides if side)]
    return all(len(digests) == 1 for digests in both) if both else None


def same_stream(sides: Sequence[list[dict[str, Any]]]) -> bool | None:
    """True if a key-value cache was asked for the same in all runs; None where none tells."""
    found = {(record.get("kvcache") or {}).get("stream_hash") for record in itertools.chain(*sides)}
    return None if None in found or not found else len(found) == 1


def _hashes(record: dict[str, Any]) -> dict[int, str]:
    """Of training, after so many samples."""
    marks = (record.get("train") or {}).get("batch_hash_at") or []
    return {mark["samples"]: mark["hash"] for mark in marks}


def _against(
    other: str, pairs: list[PairRun], gate: Gate, limits: Limits, noise: dict[str, Any], longer: str | None,
    reported: Mapping[str, Metric],
) -> dict[str, Any]:  # fmt: skip
    """Ratios of A to another side, and the verdicts on what was asked for."""
    first, *also = [_judged(other, pairs, m, gate, limits, noise, longer) for m in gate.metrics]
    return {"ratios": {name: _ratio(pairs, m) for name, m in reported.items()}, **first, "also": also}


def _judged(
    other: str, pairs: list[PairRun], metric: Metric, gate: Gate, limits: Limits, noise: dict[str, Any], longer: str | None
) -> dict[str, Any]:
    """The verdict on one figure; with a tolerance also `gate`, as of two files: worse, better, ok or unsure."""
    ratio = ratio_of(pairs, metric) if pairs else Interval(1.0, None, None, 0)
    found = judge(ratio, metric, limits.until_pct, noise, longer, other).as_dict()
    sides = {"A": [pair.a for pair in pairs], other: [pair.b for pair in pairs]}
    found = completed(found, metric.name, sides)
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


def _round_row(each: Round, reported: Mapping[str, Metric]) -> dict[str, Any]:
    row: dict[str, Any] = {"order": "".join(each.records)}
    for name, record in sorted(each.records.items()):
        row[name.lower()] = {"id": record.get("id"), **{n: m.of_record(record) for n, m in reported.items()}}
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


def _noise(done: list[Round]) -> dict[str, Any]:
    """The worst of the noise guards over all runs; null where no run could tell."""
    found: dict[str, Any] = {}
    for key in ("steal_pct", "others_cores_busy", "throttled"):
        values = [(r["result"].get("noise") or {}).get(key) for each in done for r in each.records.values()]
        known = [v for v in values if v is not None]
        found[key] = max(known) if known else None
    return found
