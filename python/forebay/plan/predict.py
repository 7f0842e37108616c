"""`forebay plan predict`: reads a table of the published form, fills its blanks, and says how sure it is."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from forebay.errors import RequestError
from forebay.plan.estimate import Estimate
from forebay.plan.planner import Planner
from forebay.plan.published import Row, below, number, parse, where_of
from forebay.plan.tables import Form, recognise

WHOLE = {"accelerators_h100_emulated", "num_accelerators", "n_eval"}
# Predicted at a time.
ROWS = 500
# Significant digits; more where an interval is narrower than such a share, and rounding would leave nothing of it.
DIGITS, DIGITS_NARROW, NARROW = 5, 8, 1e-3


def predict_text(text: str, where: str, planner: Planner) -> tuple[str, dict]:
    """CSV in, CSV out; and a document about it. Measured columns stay as they are where they aren't blank."""
    columns, rows = parse(text, where)
    form = recognise(columns, where)
    fills, names_of = [c for c in form.fills if c in columns], where_of(where, rows)
    for row, at in zip(rows, names_of, strict=True):
        _check(row, fills, at)
    estimates = _predicted(form, planner, rows, names_of)
    filled = [_filled(row, found, fills) for row, found in zip(rows, estimates, strict=True)]
    extra = [f"{c}{end}" for c in fills if c != "valid" for end in ("_p10", "_p90")]
    names = [c for c in columns if c not in extra and c != "bottleneck"] + extra + ["bottleneck"]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(filled)
    blanks = sum(1 for row in rows for c in fills if not row.get(c))
    document = {"schema": "forebay.predict/1", "table": form.name, "rows": len(rows), "predicted_cells": blanks}
    return out.getvalue(), document


def _predicted(form: Form, planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[dict[str, Estimate]]:
    """Row by row, some at a time: what rows have to do with each other takes memory as the square of their number."""
    found: list[dict[str, Estimate]] = []
    for at in range(0, len(rows), ROWS):
        found += form.predict(planner, rows[at : at + ROWS], where[at : at + ROWS])
    return found


def _check(row: Row, fills: Sequence[str], where: str) -> None:
    """RequestError for a measured cell that is neither blank nor a number that can be measured (or a bound such as <6)."""
    for column in fills:
        if column == "valid" or below(row.get(column, "")) is not None:
            continue
        value = number(row, column, where)
        most = 100.0 if column.endswith("_pct") else math.inf
        if value is not None and not 0 <= value <= most:
            found = f"is {value:g}; it must be " + ("0 to 100" if column.endswith("_pct") else "0 or more")
            raise RequestError(f"{where}, column {column}", found, "what was measured, or a blank cell")


def _filled(row: Row, found: dict[str, Estimate], fills: Sequence[str]) -> Row:
    done, limit = dict(row), ""
    for column in fills:
        estimate = found.get(column)
        if estimate is None or row.get(column):
            continue
        if column == "valid":
            done[column] = "true" if estimate.value else "false"
            continue
        digits = DIGITS_NARROW if estimate.p90 - estimate.p10 < NARROW * abs(estimate.value) else DIGITS
        for end, value in (("", estimate.value), ("_p10", estimate.p10), ("_p90", estimate.p90)):
            done[f"{column}{end}"] = shown(column, value, digits)
        limit = limit or estimate.bottleneck
    done["bottleneck"] = limit or next((e.bottleneck for e in found.values()), "")
    return done


def shown(column: str, value: float, digits: int) -> str:
    """Formats a value with so many significant digits; whole where the column counts."""
    return f"{value:.0f}" if column in WHOLE else f"{value:.{digits}g}"

