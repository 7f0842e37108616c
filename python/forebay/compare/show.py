"""A comparison as text."""

from __future__ import annotations

from typing import Any

from forebay.bench.summary import warnings as worded
from forebay.compare.gate import cases, verdicts
from forebay.metrics import NAMED
from forebay.numbers import figure
from forebay.table import table

# `by`: by how much, and in what.
GATE = {
    "worse": "{other} is worse than A {by}", "better": "{other} is better than A {by}", "ok": "{other} is not worse than A {by}",
    "unsure": "{other} is not shown to be worse than A {by}", "one run": "no interval yet",
}  # fmt: skip


def show_jobs(document: dict[str, Any], strict: bool) -> str:
    """The sides, a table of every figure with its ratio, and the verdict last."""
    against = {"B": document, **{found["side"]: found for found in document["against"]}}
    sides = {name: document[name.lower()] for name in ("A", *against)}
    lines = [_side(name, side) for name, side in sides.items()]
    quotients = " and ".join(f"A ÷ {name}" for name in against)
    pairs, many = ("pairs" if len(against) == 1 else "rounds"), len(document["pairs"])
    lines += ["", f"{many} {pairs}, in random order, medians, and {quotients} with its 95 % interval"]
    rows = [("", *sides, *(word for name in against for word in (f"A ÷ {name}", "")))]
    for name, metric in NAMED.items():
        if name not in document["ratios"]:
            continue
        medians = [side["medians"][name] for side in sides.values()]
        if medians.count(None) == len(medians):
            continue
        ratios = [word for found in against.values() for word in _ratio(found["ratios"][name])]
        rows.append((f"{metric.title}, {metric.unit}", *map(figure, medians), *ratios))
    lines += table(rows)
    for name in ("cpu", "power", "train.seconds_to_target"):
        reason = next((side["missing"][name] for side in sides.values() if name in side["missing"]), None)
        if reason:
            lines.append(f"{NAMED[name].title} not measured: {reason}")
    everyone = " and ".join(", ".join(sides).rsplit(", ", 1))
    if document.get("same_batches") is not None:
        same = "the same samples in the same order" if document["same_batches"] else "different samples, or in another order"
        lines.append(f"{everyone} were trained on {same}")
    if document.get("same_stream") is not None:
        lines.append(f"{everyone} served {'the same' if document['same_stream'] else 'different'} requests")
    lines += [*_limits(document, strict), *_warnings(document["warnings"]), ""]
    for other, judged in verdicts(document):
        verdict = judged["verdict"]
        said = _verdict(verdict)
        lines += said if len(against) == 1 else [f"{other} against A: {said[0]}", *said[1:]]
        if verdict.get("gate"):
            by = f"by more than {document['tolerance_pct']:g} % in {NAMED[judged['metric']].title}"
            lines.append(f"  gate: {GATE[verdict['gate']].format(by=by, other=other)}")
    if document["interrupted"]:
        lines.append(f"interrupted: the verdict is on the {pairs} that finished")
    if document["error"]:
        lines.append(f"ended by an error: the verdict is on the {pairs} that finished")
    return "\n".join(lines)


def _warnings(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A line for each warning about the data, with the sides that have it."""
    sides: dict[str, list[str]] = {}
    lines: dict[str, str] = {}
    for side, warnings in found.items():
        for warning, (_, line) in zip(warnings, worded(warnings), strict=True):
            lines.setdefault(warning["id"], line)
            sides.setdefault(warning["id"], []).append(side.upper())
    return [f"warning, {' and '.join(sides[ident])}: {line}" for ident, line in lines.items()]


def _limits(document: dict[str, Any], strict: bool) -> list[str]:
    """A line for each limit and point."""
    found = [case for case in cases(document, strict) if case.suite in {limit["limit"] for limit in document["limits"]}]
    if not found:
        return []
    rows = [("limit", "at", "", "")]
    return ["", *table(rows + [(case.suite, case.name, case.text.partition(": ")[2], case.state) for case in found])]


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


def _verdict(verdict: dict[str, Any]) -> list[str]:
    return [verdict["text"], *([f"  try: {verdict['next']}"] if verdict["next"] else [])]


def show_files(document: dict[str, Any], strict: bool) -> str:
    """Matched points with their ratio and what it means for the gate, then limits, what didn't match, and the verdicts."""
    sides = [side for side in "AB" if side.lower() in document]
    lines = [
        f"{side}  {document[side.lower()]['file']}  ({document[side.lower()]['records']} records)" for side in sides
    ]
    judged = [document, *document["also"]] if document["kind"] == "files" else []
    for each in judged:
        lines += _points(each)
    lines += _limits(document, strict)
    for found in document.get("differs", ()):
        lines.append(f"differs: {found['what']}: {', '.join(found['a'][:4])} in A, {', '.join(found['b'][:4])} in B")
    unmatched = document.get("unmatched", {})
    lines += [f"only in {side}: {name}" for side in "AB" for name in unmatched.get(side.lower(), ())]
    lines += [f"skipped: {text}" for text in document["skipped"]]
    if judged:
        lines += ["", *(line for each in judged for line in _verdict(each["verdict"]))]
    return "\n".join(lines)


def _points(judged: dict[str, Any]) -> list[str]:
    metric = NAMED[judged["metric"]]
    rows = [("point", "A", "B", "A ÷ B", "", "runs", "")]
    for point in judged["points"]:
        runs = f"{point['runs'][0]}/{point['runs'][1]}"
        figures = (figure(point["a"]), figure(point["b"]))
        rows.append((point["name"], *figures, *_ratio(point["ratio"]), runs, point["verdict"]))
    title = f"{metric.title}, {metric.unit}; A ÷ B with its interval (95 % for all points together)"
    return ["", title, *table(rows)]
