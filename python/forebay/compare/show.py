"""A comparison as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.metrics import ALL, METRICS, OF_VERBS, Metric
from forebay.numbers import figure
from forebay.table import table


def show_jobs(document: dict[str, Any]) -> str:
    """The two sides, a table of every figure with its ratio, and the verdict last."""
    lines = [_side(name, document[name.lower()]) for name in "AB"]
    pairs = len(document["pairs"])
    lines += ["", f"{pairs} pairs, in random order, medians, and A ÷ B with its 95 % interval"]
    rows = [("", "A", "B", "A ÷ B", "")]
    metrics = _metrics(document)
    for name, metric in metrics.items():
        a, b, ratio = document["a"]["medians"][name], document["b"]["medians"][name], document["ratios"][name]
        if a is None and b is None:
            continue
        rows.append((f"{metric.title}, {metric.unit}", figure(a), figure(b), *_ratio(ratio)))
    lines += table(rows)
    for name in ("cpu", "power", "train.seconds_to_target"):
        reason = document["a"]["missing"].get(name) or document["b"]["missing"].get(name)
        if reason:
            lines.append(f"{metrics[name].title} not measured: {reason}")
    if document.get("same_batches") is not None:
        same = "the same samples in the same order" if document["same_batches"] else "different samples, or in another order"
        lines.append(f"A and B were trained on {same}")
    return "\n".join([*lines, "", *_verdict(document)])


def _metrics(document: dict[str, Any]) -> Mapping[str, Metric]:
    """Those of the verb that ran."""
    words = document["a"]["job"].get("command") or [""]
    return OF_VERBS.get(words[0], METRICS)


def _side(name: str, side: dict[str, Any]) -> str:
    given = "the command as given" if "command" in side["job"] else "the job as given"
    title = side["settings"] or given
    if side["python"]:
        title += f", by {side['python']}"
    return f"{name}  {title}  ({'; '.join(side['ran']) or 'did not run'})"


def _ratio(ratio: dict[str, Any] | None) -> tuple[str, str]:
    if ratio is None:
        return "–", ""
    interval = ratio["ci95"]
    return _plain(
        ratio["estimate"]
    ), "" if interval is None else f"({_plain(interval[0])}–{_plain(interval[1])})"


def _plain(ratio: float) -> str:
    """Three decimals about 1, three digits far from it."""
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}"


def _verdict(document: dict[str, Any]) -> list[str]:
    verdict = document["verdict"]
    lines = [verdict["text"]]
    if verdict["next"]:
        lines.append(f"  try: {verdict['next']}")
    if document.get("interrupted"):
        lines.append("interrupted: the verdict is on the pairs that finished")
    if document.get("error"):
        lines.append("ended by an error: the verdict is on the pairs that finished")
    return lines


def show_files(document: dict[str, Any]) -> str:
    """Matched points with their ratio and what it means for the gate, then what didn't match."""
    metric = ALL[document["metric"]]
    lines = [
        f"A  {document['a']['file']}  ({document['a']['records']} records)",
        f"B  {document['b']['file']}  ({document['b']['records']} records)",
        "",
        f"{metric.title}, {metric.unit}; A ÷ B with its interval (95 % for all points together)",
    ]
    rows = [("point", "A", "B", "A ÷ B", "", "runs", "")]
    for point in document["points"]:
        runs = f"{point['runs'][0]}/{point['runs'][1]}"
        figures = (figure(point["a"]), figure(point["b"]))
        rows.append((point["name"], *figures, *_ratio(point["ratio"]), runs, point["verdict"]))
    lines += table(rows)
    for found in document["differs"]:
        lines.append(f"differs: {found['what']}: {', '.join(found['a'][:4])} in A, {', '.join(found['b'][:4])} in B")
    lines += [f"only in {side}: {name}" for side in "AB" for name in document["unmatched"][side.lower()]]
    lines += [f"skipped: {text}" for text in document["skipped"]]
    return "\n".join([*lines, "", *_verdict(document)])
