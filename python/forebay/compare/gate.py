"""A comparison as a gate: what is held to which figures and limits, each case's outcome, and the exit code of them all.

The rule is the same for two jobs, two files and one: a case that fails is 1, one that is undecided is 1 with `--strict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.compare.bounds import Bound
from forebay.errors import BAD_REQUEST, CHECK_FAILED, INTERRUPTED
from forebay.metrics import NAMED, Metric
from forebay.numbers import figure

PASSED, FAILED, UNDECIDED = "passed", "failed", "undecided"
ALL_POINTS = "all points together"


@dataclass(frozen=True)
class Gate:
    """Demands on B, and on a C. `tolerance_pct` None: a difference between the two sides is a finding, no failure."""

    metrics: Sequence[Metric]
    bounds: Sequence[Bound] = ()
    tolerance_pct: float | None = None

    def asked(self, side: str) -> list[tuple[str, Metric]]:
        """Figures that each run of that side must report, with the flag that says so."""
        own = [(f"--limit '{b.text}'", b.metric) for b in self.bounds] if side != "A" else []
        return [*((f"--metric {m.name}", m) for m in self.metrics), *own]

    def reported(self, own: Mapping[str, Metric]) -> dict[str, Metric]:
        """A side's own figures, and those that are asked for."""
        return {**own, **{metric.name: metric for _, metric in self.asked("B")}}


@dataclass(frozen=True)
class Case:
    """One thing that was held to something: `suite` is the figure or the limit, `name` the point."""

    suite: str
    name: str
    state: str
    text: str


def exit_code(document: dict[str, Any], strict: bool) -> int:
    """0, 1, 2 where too few pairs ran to judge anything, or what ended the comparison early."""
    if document.get("error"):
        return int(document["error"]["exit_code"])
    if document.get("interrupted"):
        return INTERRUPTED
    states = {case.state for case in cases(document, strict)}
    if FAILED in states or (strict and UNDECIDED in states):
        return CHECK_FAILED
    return BAD_REQUEST if document.get("verdict", {}).get("kind") == "none" else 0


def cases(document: dict[str, Any], strict: bool) -> list[Case]:
    """One for each figure and point, and for each limit and point."""
    kind = document["kind"]
    found = _of_jobs(document) if kind == "jobs" else []
    if kind == "files":
        found = [case for judged in (document, *document["also"]) for case in _of_files(judged, document["tolerance_pct"])]
    return [*found, *(_of_bound(limit, row, strict) for limit in document["limits"] for row in limit["points"])]


def _of_jobs(document: dict[str, Any]) -> list[Case]:
    found = []
    for other, judged in verdicts(document):
        verdict = judged["verdict"]
        gate = verdict.get("gate")
        if gate is None:
            state = UNDECIDED if verdict["kind"] in ("too_noisy", "none") else PASSED
        else:
            state = _STATES.get(gate, UNDECIDED)
        found.append(Case(judged["metric"], f"{other} against A", state, verdict["text"]))
    return found


def verdicts(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What is said of each side but A, figure by figure."""
    sides = [("B", document), *((found["side"], found) for found in document["against"])]
    return [(name, judged) for name, found in sides for judged in (found, *found["also"])]


_STATES = {"worse": FAILED, "better": PASSED, "ok": PASSED, "broken": FAILED, "kept": PASSED}


def _of_files(judged: dict[str, Any], tolerance_pct: float) -> list[Case]:
    name, verdict, overall = judged["metric"], judged["verdict"], judged["overall"]
    found = []
    for point in judged["points"]:
        state = _STATES.get(point["verdict"], UNDECIDED)
        if state == UNDECIDED and verdict["kind"] == "not_worse":
            state = PASSED  # all of them together show it
        found.append(Case(name, point["name"], state, _sentence(point, NAMED[name], tolerance_pct)))
    if overall is not None:
        state = PASSED if verdict["kind"] == "not_worse" else _STATES.get(overall["verdict"], UNDECIDED)
        found.append(Case(name, ALL_POINTS, state, _sentence(overall, NAMED[name], tolerance_pct)))
    return found


def _sentence(row: dict[str, Any], metric: Metric, tolerance_pct: float) -> str:
    """`throughput: A ÷ B 1.111 (1.104–1.118): worse, at a tolerance of 2 %`."""
    text = f"{metric.title}: "
    if row.get("a") is not None and row.get("b") is not None:
        text += f"A {figure(row['a'])}, B {figure(row['b'])} {metric.unit}; "
    ratio = row if "estimate" in row else row["ratio"]
    if ratio is not None:
        text += f"A ÷ B {ratio['estimate']:.3f}"
        text += f" ({ratio['ci95'][0]:.3f}–{ratio['ci95'][1]:.3f})" if ratio["ci95"] else ""
        text += ": "
    return f"{text}{row['verdict']}, at a tolerance of {tolerance_pct:g} %"


def _of_bound(limit: dict[str, Any], row: dict[str, Any], strict: bool) -> Case:
    text = f"{limit['limit']}: {row['verdict']}"
    if row["value"] is not None:
        interval = f" ({figure(row['ci95'][0])}–{figure(row['ci95'][1])})" if row["ci95"] else ""
        text = f"{limit['limit']}: {figure(row['value'])}{interval} {limit['unit']}: {row['verdict']}"
    # One run within the limit passes; that the next one would, too, only an interval of several shows.
    state = PASSED if row["verdict"] == "one run" and not strict else _STATES.get(row["verdict"], UNDECIDED)
    return Case(limit["limit"], row["name"], state, text)
