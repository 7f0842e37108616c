"""Absolute limits, as `p99 < 500us`: the figure, the side, and whether runs keep to it."""

from __future__ import annotations

import math
import operator
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.compare.work import Work
from forebay.errors import RequestError
from forebay.metrics import Metric, figure_named
from forebay.stats import exp, mean_interval
from forebay.units import parse_gib_s

_BOUND = re.compile(r"\s*([\w.]+)\s*(<=|>=|<|>|≤|≥)\s*(.*\S)\s*")
_SIDES: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, "≤": operator.le, ">": operator.gt, ">=": operator.ge, "≥": operator.ge,
}  # fmt: skip
_NUMBER = re.compile(r"([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})\s*(\S*)")
# Factors to the unit that the figure has.
_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_UNITS = {
    **{time: {unit: ns / _NS[time] for unit, ns in _NS.items()} for time in ("µs", "ms", "s")},
    "IOPS": {"": 1.0, "iops": 1.0, "k": 1e3, "m": 1e6},
}
_EXAMPLES = {"µs": "500us", "ms": "20ms", "s": "60s", "GiB/s": "3GiB/s", "IOPS": "200k"}


@dataclass(frozen=True)
class Bound:
    """One limit. `value` is in the metric's unit."""

    text: str
    metric: Metric
    side: str
    value: float

    def judge(self, name: str, samples: Sequence[float], missing: str = "") -> dict[str, Any]:
        """The row of one point: kept, broken (the median is beyond), unsure (the interval isn't all within), or one run (within,
        without an interval)."""
        row: dict[str, Any] = {"name": name, "runs": len(samples), "value": None, "ci95": None}
        if not samples:
            return {**row, "verdict": f"not measured: {missing}"}
        holds = _SIDES[self.side]
        row["value"] = statistics.median(samples)
        found = mean_interval([math.log(s) for s in samples])
        if found.low is not None and found.high is not None:
            row["ci95"] = [exp(found.low), exp(found.high)]
        if not holds(row["value"], self.value):
            return {**row, "verdict": "broken"}
        sure = row["ci95"] is not None and all(holds(end, self.value) for end in row["ci95"])
        return {**row, "verdict": "kept" if sure else "unsure" if row["ci95"] else "one run"}


def parse(text: str, known: Mapping[str, Metric]) -> Bound:
    """`p99 < 500us`, `rate > 3GiB/s`, `iops >= 200k`, of the figures that are known. RequestError for all else."""
    asked, example = f"--limit '{text}'", "--limit 'p99 < 500us'"
    match = _BOUND.fullmatch(text)
    if match is None:
        raise RequestError(asked, "isn't a figure, < or >, and a value", example)
    name, side, value = match.groups()
    metric = figure_named(name, asked, known)
    number = _value(value, metric, asked, f"--limit '{name} {side} {_EXAMPLES.get(metric.unit, '1')}'")
    return Bound(f"{name} {side} {value}", metric, side, number)


def _value(text: str, metric: Metric, asked: str, example: str) -> float:
    match = _NUMBER.fullmatch(text)
    number = float(match[1]) if match else math.nan
    unit = match[2].replace("\u03bc", "µ") if match else ""  # Greek's letter, as keyboards have it, for the micro sign
    if metric.unit == "GiB/s" and match:
        number = parse_gib_s(text.replace(" ", ""), asked)
    else:
        units = _UNITS.get(metric.unit, {"": 1.0, metric.unit.lower(): 1.0})
        if match and unit.lower() not in units:
            found = f"needs a unit, one of {', '.join(units)}" if not unit else f"{unit} is not a unit of {metric.title}"
            raise RequestError(asked, found, example)
        number *= units.get(unit.lower(), math.nan)
    if not (math.isfinite(number) and number > 0):
        raise RequestError(asked, f"{text} is not a number above 0", example)
    return number


def judge(bounds: Sequence[Bound], works: Sequence[Work]) -> list[dict[str, Any]]:
    """A row for each limit, with a row for each work.

    RequestError where none has the figure: a gate that can't judge must not pass in silence.
    """
    found = []
    for bound in bounds:
        rows = [bound.judge(work.name, work.samples(bound.metric), work.why_missing(bound.metric)) for work in works]
        if all(row["value"] is None for row in rows):
            raise RequestError(f"--limit '{bound.text}'", rows[0]["verdict"], "a limit of another figure")
        found.append(
            {"limit": bound.text, "metric": bound.metric.name, "value": bound.value, "unit": bound.metric.unit, "points": rows}
        )
    return found
