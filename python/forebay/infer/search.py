"""The rate that a test needs to know beforehand, by a probe of a moment; Server's highest passing rate, by bisection.

LoadGen makes its queries before the clock starts, from an expected rate: a guess ten times off ends INVALID although all went
well. Trials of Server are tests of LoadGen's own, short ones; what they found is kept as they go, and the rate they end with is
confirmed by the run itself, with a few per cent less where chance was against it.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from forebay.errors import MachineError
from forebay.infer import rules
from forebay.infer.engine import ANSWER, FIRST, LATER, Engine, Outcome
from forebay.model_runs import available_bytes
from forebay.numbers import seconds

# Of what a probe found, what LoadGen is told to expect: it makes twice the queries of that for streams, 1.1 times for Offline.
SHARE_OF_STREAM, SHARE_OF_OFFLINE = 1.25, 1.1
PROBE_S = 0.5
# The first trial, and how narrow the rates that pass and that don't have to be.
FIRST_SHARE, TRIALS_MAX = 0.8, 10
NARROW, NARROW_SHORT = 1.03, 1.10
# Seconds of a trial; a trial passes only this far below the bound, as a longer run sees rarer delays.
TRIAL_S, TRIAL_SHORT_S, OF_BOUND = 10.0, 1.0, 0.9
# Tries to confirm: shares of the rate that was found. Beside other work a machine is less than it was a moment ago.
CONFIRMED_AT = (1.0, 0.95, 0.87, 0.72, 0.5)
SURE = 0.98
STATE_SCHEMA = "forebay.infer.search/1"


@dataclass(frozen=True)
class Effort:
    """Seconds of a trial, how narrow the rates that pass and that don't have to be, and seconds after which no trial begins."""

    trial_s: float = TRIAL_S
    narrow: float = NARROW
    most_s: float = float("inf")


SHORT = Effort(TRIAL_SHORT_S, NARROW_SHORT)


@dataclass
class Trial:
    """One test at a rate: did it pass, and its 99th percentile."""

    rate: float
    passed: bool
    p99_ms: float | None


class Search:
    """Bisection of rates, kept in a file after each trial where one is named; a search of the same request goes on there."""

    def __init__(self, key: dict[str, Any], file: Path | None) -> None:
        self.key, self.file = key, file
        self.trials: list[Trial] = []
        if file is not None and file.exists():
            self._resume(file)

    def _resume(self, file: Path) -> None:
        try:
            found = json.loads(file.read_text())
            if found["schema"] == STATE_SCHEMA and found["key"] == self.key:
                self.trials = [Trial(float(t["rate"]), bool(t["passed"]), t["p99_ms"]) for t in found["trials"]]
        except (OSError, ValueError, KeyError, TypeError):
            self.trials = []

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        if self.file is not None:
            from forebay.bench.save import place

            document = {"schema": STATE_SCHEMA, "key": self.key, "trials": [asdict(t) for t in self.trials]}
            place(self.file, json.dumps(document, indent=1) + "\n", lambda path: True)

    def bounds(self) -> tuple[float | None, float | None]:
        """The highest rate that passed, and the lowest that didn't above it."""
        passed = [t.rate for t in self.trials if t.passed]
        low = max(passed, default=None)
        failed = [t.rate for t in self.trials if not t.passed and (low is None or t.rate > low)]
        return low, min(failed, default=None)

    def next(self, first: float, narrow: float) -> float | None:
        """The next rate to try; None where the bounds are narrow, or all trials are spent."""
        low, high = self.bounds()
        if len(self.trials) >= TRIALS_MAX:
            return None
        if low is None and high is None:
            return first
        if low is None:
            return (high or first) / 2
        if high is None:
            return low * 1.25
        if high / low <= narrow:
            return None
        return float((low * high) ** 0.5)

    def found(self) -> float | None:
        return self.bounds()[0]

    def at(self, rate: float) -> Trial | None:
        """The trial of this rate, if there was one."""
        return next((trial for trial in self.trials if trial.rate == rate), None)


def expected(engine: Engine, scenario: str, say: Callable[[str], None]) -> float:
    """The rate that LoadGen is told to expect: queries a second of a stream, samples a second of Offline; for Server the most."""
    say("a probe of its rate")
    if scenario in ("SingleStream", "MultiStream"):
        samples = rules.PER_QUERY if scenario == "MultiStream" else 1
        return SHARE_OF_STREAM / engine.watched("the probe", lambda: engine.query_s(samples, PROBE_S))
    rate = engine.watched("the probe", lambda: engine.samples_s(PROBE_S))
    return SHARE_OF_OFFLINE * rate if scenario == "Offline" else rate


def refuse_slow(engine: Engine, load: rules.Load) -> None:
    """Raises MachineError where a query by itself takes longer than a trial may: no rate passes, and trials of ever lower ones,
    each of hundreds of queries, would take hours to find that."""
    bounds = ((FIRST, load.token_ms[0]), (LATER, load.token_ms[1])) if load.token_ms else ((ANSWER, load.server_ms),)
    for part, bound_ms in bounds:
        most_s = OF_BOUND * bound_ms / 1000
        took_s = engine.watched("one query", functools.partial(engine.alone_s, part, most_s))
        if took_s > most_s:
            found = f"{part} takes {seconds(took_s)} when a query is alone, and the bound is {seconds(bound_ms / 1000)}"
            next = "--scenario Offline; or --target-qps N, for a test that ends INVALID"
            raise MachineError("--scenario Server", f"no rate passes: {found} (trials use {OF_BOUND:g} of it)", next)


def server(
    engine: Engine, load: rules.Load, search: Search, effort: Effort, folder: Path, say: Callable[[str], None]
) -> tuple[float, Outcome | None]:
    """Server's highest passing rate over trials, and the trial that broke the search off, if one did."""
    began, most = time.perf_counter(), load.rate
    while (rate := search.next(FIRST_SHARE * most, effort.narrow)) is not None:
        if search.trials and time.perf_counter() - began > effort.most_s:
            break
        if (broken := _try(engine, replace(load, rate=rate, seconds=effort.trial_s), search, folder, say)) is not None:
            return rate, broken
        if rate < 1e-3 * most:
            break
    passed = search.found() or min(t.rate for t in search.trials)
    # A trial takes longer where its least number of queries does.
    found = rate = sustained(passed, max(effort.trial_s, rules.QUERIES_MIN["Server"] / passed), load.bound_ms)
    for share in CONFIRMED_AT if search.found() else ():
        # Beside other work bisection ends at the luckiest of its trials: the rate of the run itself has to pass one, too.
        rate = share * found
        if (trial := search.at(rate)) is None:
            if time.perf_counter() - began > effort.most_s:
                break
            if (broken := _try(engine, replace(load, rate=rate, seconds=effort.trial_s), search, folder, say)) is not None:
                return rate, broken
            trial = search.trials[-1]
        if trial.passed:
            break
    return rate, None


def _try(engine: Engine, load: rules.Load, search: Search, folder: Path, say: Callable[[str], None]) -> Outcome | None:
    """Adds a trial of this load to the search. Returns one that was broken off."""
    say(f"a trial of {load.rate:.4g} queries/s")
    outcome = engine.test(load, folder, say)
    if outcome.log is None:
        return outcome
    late = (outcome.latencies_ms or {}).get("p99")
    if load.token_ms:
        late, each = ((found or {}).get("p99") for found in (outcome.first_ms, outcome.token_ms))
        passed = bool(outcome.valid) and each is not None and each <= OF_BOUND * load.token_ms[1]
    else:
        passed = bool(outcome.valid)
    search.add(Trial(load.rate, passed and late is not None and late <= OF_BOUND * load.bound_ms, late))
    return None


def sustained(rate: float, seconds: float, bound_ms: float) -> float:
    """The rate that a passing trial of so many seconds shows for a test of any length: above what a system can answer, its delay
    grows by the second, and a trial passes as long as it hasn't grown to the bound."""
    return SURE * rate / (1 + OF_BOUND * bound_ms / 1000 / seconds)


def confirmed(
    engine: Engine, load: rules.Load, folder: Path, say: Callable[[str], None], known: bool
) -> tuple[Outcome, int]:
    """The run itself, and how many it took. An expectation of ours that was off is corrected; one that was asked for isn't."""
    first = load.rate
    tries = 0
    for share in CONFIRMED_AT:
        tries += 1
        if load.scenario == "Server" and not known:
            load = replace(load, rate=share * first)
        rules.refuse_too_many(load, available_bytes())
        outcome = engine.test(load, folder, say)
        if outcome.valid is not False or known:
            break
        if load.scenario != "Server":
            load = replace(load, rate=1.5 * max(load.rate, outcome.samples_per_s or load.rate))
    return outcome, tries

