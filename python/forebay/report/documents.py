"""Comparisons (forebay.compare/1) and tunings (forebay.tune/1) as tables."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

from forebay.report import numbers
from forebay.report.runs import finite
from forebay.report.tables import Cell, Notes, Table, text

ROWS_MAX = 200
METRICS = {
    "throughput": ("Throughput", "GiB/s", numbers.rate),
    "iops": ("I/Os per second", "1/s", numbers.count),
    "latency_mean": ("Mean latency", "", numbers.micros),
    "latency_p99": ("p99 latency", "", numbers.micros),
    "cpu": ("CPU", "core-s/GiB", numbers.significant),
    "energy": ("Energy", "J/GiB", numbers.significant),
    "power": ("Power", "W", numbers.significant),
}
NOT_MEASURED = "not measured on this machine"


@dataclass
class Section:
    """One document on the page: what it found, its tables, its command."""

    id: str
    title: str
    finding: str
    next: str
    tables: list[Table]
    facts: list[tuple[str, str]] = field(default_factory=list)
    command: str = ""


def comparison(document: dict[str, Any], number: int, notes: Notes) -> Section:
    ident = f"compare-{number}"
    finding, next = _verdict(document)
    facts = []
    for side in ("a", "b"):
        facts.append((side.upper(), _side(document.get(side))))
    if isinstance(document.get("method"), str):
        facts.append(("Method", document["method"]))
    asked = finite(document.get("until_ci_pct"))
    if asked is not None:
        facts.append(("Asked for", f"an interval within ±{asked:g} %"))
    if document.get("interrupted") is True:
        facts.append(("Note", "interrupted; the pairs before that stand"))
    error = document.get("error")
    if isinstance(error, dict):
        facts.append(("Note", f"ended by an error: {error.get('asked')}: {error.get('found')}"))
    tables = [t for t in (_ratios(document, ident, notes), _checks(document, ident, notes)) if t]
    return Section(ident, f"Comparison {number}", finding, next, tables, facts, command_line(document.get("command")))


def _verdict(document: dict[str, Any]) -> tuple[str, str]:
    verdict = document.get("verdict")
    if isinstance(verdict, dict):
        found, next = verdict.get("text"), verdict.get("next")
        return found if isinstance(found, str) else "No verdict.", next if isinstance(next, str) else ""
    return (verdict if isinstance(verdict, str) else "No verdict."), ""


def _side(side: Any) -> str:
    if isinstance(side, str):
        return side
    if not isinstance(side, dict):
        return numbers.DASH
    ran = side.get("ran")
    settings = side.get("settings")
    settings = settings if isinstance(settings, str) else " ".join(f"{k}={v}" for k, v in settings.items()) if isinstance(settings, dict) else ""
    settings = settings or (side.get("file") if isinstance(side.get("file"), str) else "") or ""
    how = "; ".join(r for r in ran if isinstance(r, str)) if isinstance(ran, list) else ""
    return f"{settings} (ran: {how})" if how and settings else settings or how or numbers.DASH


def _ratios(document: dict[str, Any], ident: str, notes: Notes) -> Table | None:
    ratios = document.get("ratios")
    if not isinstance(ratios, dict) or not ratios:
        return None
    rows = []
    for name, ratio in ratios.items():
        title, unit, show = METRICS.get(name, (str(name), "", numbers.significant))
        cells = [text(title, unit), *[_median(document.get(side), name, show, notes) for side in ("a", "b")]]
        cells.append(_ratio(ratio, notes))
        pairs = finite(ratio.get("pairs")) if isinstance(ratio, dict) else None
        rows.append([*cells, Cell(f"{pairs:.0f}" if pairs is not None else numbers.DASH)])
    foot = "A and B ran in turn, so that a drift of the machine cancels. Under each ratio: its 95 % interval."
    return Table(f"{ident}-ratios", "A against B", [], ["Figure", "A, median", "B, median", "A ÷ B", "Pairs"], rows, foot)


def _median(side: Any, name: str, show: Any, notes: Notes) -> Cell:
    side = side if isinstance(side, dict) else {}
    medians, missing = side.get("medians"), side.get("missing")
    value = finite(medians.get(name)) if isinstance(medians, dict) else None
    reason = missing.get(name) if isinstance(missing, dict) else None
    return notes.value(value, show, reason if isinstance(reason, str) else NOT_MEASURED)


def _ratio(ratio: Any, notes: Notes) -> Cell:
    estimate = finite(ratio.get("estimate")) if isinstance(ratio, dict) else None
    if estimate is None:
        return notes.missing(NOT_MEASURED)
    ends = [finite(v) for v in ratio["ci95"]] if isinstance(ratio.get("ci95"), list) else []
    known = len(ends) == 2 and None not in ends
    return Cell(f"{estimate:.3f}", f"{ends[0]:.3f}–{ends[1]:.3f}" if known else "no interval")


def _checks(document: dict[str, Any], ident: str, notes: Notes) -> Table | None:
    """Two result files set against each other, job by job."""
    listed = next((document[key] for key in ("jobs", "rows", "points") if isinstance(document.get(key), list)), None)
    return _flat(listed, f"{ident}-jobs", "Job by job", notes) if listed else None


def tuning(document: dict[str, Any], number: int, notes: Notes) -> Section:
    ident = f"tune-{number}"
    finding, next = _verdict(document)
    best = next_dict(document, ("best", "chosen", "recommended", "pick"))
    if finding == "No verdict.":
        finding = _settings(best) or "No setting stood out."
    curve = next((document[key] for key in ("curve", "points", "steps") if isinstance(document.get(key), list)), [])
    table = _flat(curve, f"{ident}-curve", "Every setting that was tried", notes)
    return Section(ident, f"Tuning {number}", finding, next, [table] if table else [], [], command_line(document.get("command")))


def next_dict(document: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return next((document[key] for key in keys if isinstance(document.get(key), dict)), {})


def _settings(best: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in best.items() if isinstance(value, (str, int, float)))


def _flat(rows: list[Any], ident: str, caption: str, notes: Notes) -> Table | None:
    """A list of flat objects as a table: the columns are the keys that hold numbers or words."""
    objects = [_flattened(r) for r in rows if isinstance(r, dict)]
    columns = list(dict.fromkeys(key for row in objects for key in row))[:14]
    if not objects or not columns:
        return None
    body = []
    for row in objects[:ROWS_MAX]:
        body.append([_plain(row.get(column), notes) for column in columns])
    foot = f"The first {ROWS_MAX} of {len(objects)} rows are shown." if len(objects) > ROWS_MAX else ""
    return Table(ident, caption, [], [c.replace("_", " ") for c in columns], body, foot)


def _flattened(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key in ("record", "runs", "histogram", "environment"):
            continue
        if isinstance(value, dict):
            flat.update({k: v for k, v in value.items() if not isinstance(v, (dict, list))})
        elif not isinstance(value, list):
            flat[key] = value
    return flat


def _plain(value: Any, notes: Notes) -> Cell:
    if value is None:
        return notes.missing(NOT_MEASURED)
    if isinstance(value, bool):
        return text("yes" if value else "no")
    number = finite(value)
    return Cell(numbers.significant(number, 4)) if number is not None else text(str(value)[:200])


def command_line(command: Any) -> str:
    """The words as a shell takes them."""
    return shlex.join(str(word) for word in command) if isinstance(command, list) else ""
