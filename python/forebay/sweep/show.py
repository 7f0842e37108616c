"""Findings of a sweep, as text and as one JSON document."""

from __future__ import annotations

import collections
import math
import statistics
from typing import Any

from forebay import own_files
from forebay.bench.summary import about_data
from forebay.bench.summary import warnings as worded
from forebay.metrics import FIGURES, METRICS, Metric, is_about_latency
from forebay.numbers import figure
from forebay.stages import format_duration
from forebay.stats import Interval, exp, mean_interval
from forebay.sweep.plan import Plan
from forebay.sweep.points import Point, canonical
from forebay.sweep.runner import Outcome, is_finished
from forebay.sweep.scale import counted
from forebay.table import table
from forebay.units import format_bytes

SHOWN = ("throughput", "iops", "latency_p99", "cpu", "power")
SHOWN_OF_LATENCY = ("latency_mean", "latency_p99", "latency_p999", "iops", "throughput", "cpu", "power")


def dry_run(plan: Plan) -> str:
    """Every run, in order, and how long they take."""
    lines = heading(plan)
    rounds = plan.definition["rounds"]
    for number, point in enumerate(plan.points, 1):
        lines.append(
            f"{number:4}  {point.name}"
            + (f"  round {point.round + 1}" if rounds > 1 else "")
            + f"  [{point.key}]"
        )
    lines.append(
        f"{len(plan.points)} runs, about {format_duration(plan.seconds)}, excluding the creation of files"
    )
    return "\n".join([*lines, *making(plan)])


def making(plan: Plan) -> list[str]:
    """Describes what the runs make in folders, and how large that gets."""
    made = [p.job for p in plan.points if own_files.wanted(p.job) and p.job.get("file_bytes")]
    if not made:
        return []
    largest = max(j["file_bytes"] * (j.get("files") or counted(j)) for j in made)
    homes = dict.fromkeys(
        h for j in made for h in own_files.named(own_files.placed(j, own_files.SWEEP)) if h not in own_files.named(j)
    )
    return [f"files are created in {', '.join(homes)}: up to {format_bytes(largest)}, and kept"]


def heading(plan: Plan) -> list[str]:
    """Describes what will run, and everything in which it isn't what the file asks."""
    lines = [f"{plan.sweep.name}: {plan.sweep.title}" if plan.sweep.title else plan.sweep.name]
    lines += [f"  {line.strip()}" for line in plan.sweep.method.strip().splitlines() if line.strip()]
    lines += [f"  path {path} can't run here: {reason}" for path, reason in plan.frozen["fallbacks"].items()]
    lines += [f"  path {path} can't run here, and its points don't: {reason}" for path, reason in plan.refused.items()]
    lines += [f"  changed: {c}" for c in plan.changes]
    if plan.dropped:
        lines.append(
            f"  dropped: {len(plan.dropped)} points that are identical to others on this machine, e.g. {plan.dropped[0]}"
        )
    return lines


def summary(
    plan: Plan, lines: dict[tuple[str, int], dict[str, Any]], outcome: Outcome, output: str
) -> dict[str, Any]:
    """The document of `--json`. Figures are medians over the rounds."""
    return {
        "schema": "forebay.sweep-summary/1",
        "preset": plan.sweep.name,
        "sweep": plan.hash,
        "output": output,
        "runs": len(plan.points),
        "finished": outcome.finished + outcome.skipped,
        "finished_before": outcome.skipped,
        "failed": [{"asked": e.asked, "found": e.found, "next": e.next} for e in outcome.failures],
        "interrupted": outcome.interrupted,
        "changes": plan.changes,
        "dropped": plan.dropped,
        "refused": plan.refused,
        "points": [_row(p, lines) for p in {p.key: p for p in plan.points}.values()],
        "alternate": _alternations(plan, lines),
        "warnings": about_data(line["record"] for line in lines.values() if line.get("record")),
    }


def _row(point: Point, lines: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    own = [
        line
        for (key, _), line in lines.items()
        if key == point.key and is_finished(point, {(key, point.round): line})
    ]
    figures: dict[str, float | None] = {}
    for name, metric in FIGURES.items():
        values = _values(metric, own)
        figures[name] = statistics.median(values) if values else None
    ran = sorted({str((line["record"].get("path") or {}).get("ran")) for line in own})
    return {
        "key": point.key,
        "name": point.name,
        "rounds": len(own),
        "ran": ran,
        "changes": list(point.changes),
        **figures,
    }


def _values(metric: Metric, lines: list[dict[str, Any]]) -> list[float]:
    found = (metric.value(line["record"]["result"]) for line in lines)
    return [v for v in found if v is not None]


def _alternations(plan: Plan, lines: dict[tuple[str, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for a sweep that alternates two values, the ratio of first to second, per setting of the rest."""
    key = plan.sweep.alternate
    if key is None:
        return []
    turns: dict[str, dict[str, Point]] = {}
    for p in plan.points:
        turns.setdefault(canonical({k: v for k, v in p.job.items() if k != key}), {})[p.key] = p
    found = []
    for points in turns.values():
        if len(points) == 2:
            first, second = points.values()
            ratios = {n: _rounds_ratio(m, first, second, lines) for n, m in METRICS.items()}
            found.append({"first": first.name, "second": second.name, "ratios": ratios})
    return found


def _rounds_ratio(
    metric: Metric, first: Point, second: Point, lines: dict[tuple[str, int], dict[str, Any]]
) -> dict[str, Any] | None:
    logs = []
    for (key, turn), line in lines.items():
        other = lines.get((second.key, turn))
        if key == first.key and other is not None:
            values = [metric.value(x["record"]["result"]) for x in (line, other)]
            if None not in values:
                logs.append(math.log(values[0] / values[1]))  # type: ignore[operator]
    if not logs:
        return None
    ratio: Interval = mean_interval(logs)
    interval = (
        None if ratio.low is None or ratio.high is None else [exp(ratio.low), exp(ratio.high)]
    )
    return {"estimate": exp(ratio.estimate), "ci95": interval, "rounds": ratio.n}


def show(document: dict[str, Any], plan: Plan) -> str:
    """A table of the points, then the alternations, then what is left to do."""
    lines = [*heading(plan), ""]
    shown = SHOWN_OF_LATENCY if is_about_latency(p.job for p in plan.points) else SHOWN
    metrics = [FIGURES[n] for n in shown if any(row[n] is not None for row in document["points"])]
    rows = [("", "ran", *(f"{m.title}, {m.unit}" for m in metrics))]
    rows += [
        (row["name"], "+".join(row["ran"]) or "–", *(figure(row[m.name]) for m in metrics))
        for row in document["points"]
    ]
    lines += table(rows)
    for turn in document["alternate"]:
        lines += ["", f"{turn['first']} ÷ {turn['second']}, over the rounds, with the 95 % interval"]
        lines += [_ratio_line(n, r) for n, r in turn["ratios"].items() if r is not None]
    lines += [f"warning: {text}" for _, text in worded(document["warnings"])]
    failures = collections.Counter(f"failed: {e['asked']}: {e['found']}" for e in document["failed"])
    lines += [f"{text} ({count} runs)" if count > 1 else text for text, count in list(failures.items())[:20]]
    left = document["runs"] - document["finished"]
    if not document["output"]:
        return "\n".join([*lines, "", "nothing was measured, and no file is kept"])
    lines += ["", f"{document['finished']} of {document['runs']} runs in {document['output']}"]
    if left:
        lines.append(f"  {left} are left: the same command with -o {document['output']} continues from here")
    return "\n".join(lines)


def _ratio_line(name: str, ratio: dict[str, Any]) -> str:
    interval = ratio["ci95"]
    text = f"  {METRICS[name].title}: {ratio['estimate']:.3f}"
    return (
        text
        + (f" ({interval[0]:.3f}–{interval[1]:.3f})" if interval else "")
        + f" over {ratio['rounds']} rounds"
    )
