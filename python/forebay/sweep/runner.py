"""Runs the points that aren't finished, and saves each as it finishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from forebay import own_files
from forebay.errors import BROKE, DONE, INTERRUPTED, ForebayError
from forebay.metrics import METRICS, is_about_latency
from forebay.numbers import figure
from forebay.stages import Stages, format_duration
from forebay.sweep.plan import Plan
from forebay.sweep.points import Point
from forebay.sweep.results import POINT, Results
from forebay.sweep.scale import seconds_of
from forebay.wording import in_keys

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

Job = dict[str, Any]


@dataclass
class Outcome:
    """Counts of this session; `skipped` were finished before it."""

    skipped: int = 0
    finished: int = 0
    failures: list[ForebayError] = field(default_factory=list)
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """Returns the exit code of the failures where every point failed alike; 4 where some did."""
        if self.interrupted:
            return INTERRUPTED
        if not self.failures:
            return DONE
        codes = {e.exit_code for e in self.failures}
        return codes.pop() if len(codes) == 1 and not self.finished and not self.skipped else BROKE


def run_points(
    plan: Plan, results: Results, resolve: Callable[[Job], Job] = lambda job: job, endpoint: Endpoint | None = None
) -> Outcome:
    """Ctrl-C ends it after saving what the point in progress had measured, as a partial one. `resolve` puts in what
    stands for sources that were started for the sweep."""
    outcome = Outcome()
    finished = results.contents.finished()
    left = [p for p in plan.points if not is_finished(p, finished)]
    outcome.skipped = len(plan.points) - len(left)
    clock = _Clock(left)
    about_latency = is_about_latency(p.job for p in plan.points)
    shown = ("latency_mean", "latency_p99", "iops") if about_latency else ("throughput", "iops", "cpu")
    with Stages(endpoint=endpoint) as stages:
        try:
            for number, point in enumerate(left, outcome.skipped + 1):
                title = f"[{number}/{len(plan.points)}] {point.name}" + (
                    f" round {point.round + 1}" if plan.definition["rounds"] > 1 else ""
                )
                stages.begin(f"{title}  ({clock.left()} left)", point.job)
                line = _run(point, plan, stages, resolve)
                clock.tick()
                results.append(line)
                if line.get("partial"):
                    outcome.interrupted = True
                    break
                _count(line, outcome)
                stages.say(f"{title}  {_figures(line, shown)}  {clock.left()} left")
        except KeyboardInterrupt:
            outcome.interrupted = True
    return outcome


def is_finished(point: Point, finished: dict[tuple[str, int], dict[str, Any]]) -> bool:
    """A line of the same work on the same sources: the key alone leaves the sources' names out."""
    line = finished.get((point.key, point.round))
    return line is not None and line["point"].get("sources") == point.job.get("sources")


def _run(point: Point, plan: Plan, stages: Stages, resolve: Callable[[Job], Job]) -> dict[str, Any]:
    """The line of the point: its record, or its error."""
    line: dict[str, Any] = {
        "schema": POINT,
        "preset": plan.sweep.name,
        "key": point.key,
        "round": point.round,
        "name": point.name,
        "point": point.job,
        "changes": list(point.changes),
    }
    label = point.job.get("label") or " ".join(
        [plan.sweep.name, *(["(scaled: " + "; ".join(point.changes) + ")"] if point.changes else [])]
    )
    try:
        record = own_files.run({**resolve(point.job), "label": label}, own_files.SWEEP, stages.observe)
    except ForebayError as error:
        spoken = in_keys(error)
        found = {"exit_code": error.exit_code, "asked": spoken.asked, "found": spoken.found, "next": spoken.next}
        return {**line, "finished": now(), "error": found}
    if point.changes:
        text = f"differs from {plan.sweep.name}: {'; '.join(point.changes)}"
        warning = {"id": "scaled", "text": text, "next": "--scale 1 on a machine that is large enough"}
        record.setdefault("warnings", []).append(warning)
    partial = {"partial": True} if record["result"].get("interrupted") else {}
    return {**line, "finished": now(), **partial, "record": record}


def _count(line: dict[str, Any], outcome: Outcome) -> None:
    if "error" not in line:
        outcome.finished += 1
        return
    outcome.failures.append(failure_of(line["error"]))


def failure_of(error: dict[str, Any]) -> ForebayError:
    """The error of a line, as an exception with its exit code."""
    failure = ForebayError(str(error.get("asked")), str(error.get("found")), str(error.get("next", "")))
    failure.exit_code = int(error.get("exit_code", BROKE))
    return failure


def _figures(line: dict[str, Any], shown: Sequence[str]) -> str:
    if "error" in line:
        return f"failed: {line['error']['asked']}: {line['error']['found']}"
    result = line["record"]["result"]
    metrics = [METRICS[name] for name in shown]
    words = (f"{m.title} " if m.field.startswith("result.latency") else "" for m in metrics)
    return "  ".join(f"{word}{figure(m.value(result))} {m.unit}" for word, m in zip(words, metrics, strict=True))


def now() -> str:
    """The moment a point was finished, as its line has it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Clock:
    """Time left: what the jobs ask for, corrected by how long the runs so far really took."""

    def __init__(self, left: list[Point]) -> None:
        self._planned = [seconds_of(p.job) for p in left]
        self._done = 0
        self._began = time.monotonic()

    def tick(self) -> None:
        self._done += 1

    def left(self) -> str:
        planned_done, planned_left = sum(self._planned[: self._done]), sum(self._planned[self._done :])
        elapsed = time.monotonic() - self._began
        return format_duration(planned_left * (elapsed / planned_done if planned_done else 1.0))
