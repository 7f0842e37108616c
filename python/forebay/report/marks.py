"""Common parts of charts: palette, shapes, dashes, axes, legends.

Colour never stands alone: shape, dash or position tells the series apart as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.paths import BOUNCE, GDS, GDS_COMPAT, GDS_MIXED
from forebay.report.runs import Point, Study
from forebay.report.tables import THROUGHPUT

# Okabe and Ito's colours, told apart with any colour vision, in an order in which neighbours differ most.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#8c6d31")
PATH_COLOURS = {"host": 0, BOUNCE: 1, "mapped": 2, GDS: 3, GDS_MIXED: 4, GDS_COMPAT: 5}
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [10, 4], [1, 3], [6, 2, 1, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke", "triangle-right")
SERIES_MAX = len(PALETTE)
INK, MUTED, GRID, SHADE = "#1c2024", "#6a7178", "#e4e7ea", "#eceff2"
WIDTH, HEIGHT = 330, 190

Row = dict[str, Any]


@dataclass
class Chart:
    """`draw` makes the Altair chart; `rows` are what the CSV holds. `desc` is read out by screen readers."""

    id: str
    title: str
    desc: str
    rows: list[Row]
    draw: Callable[[], Any]
    note: str = ""
    svg: str = ""
    csv: str = ""
    group: str = "main"


def drawn(study: Study) -> list[str]:
    """The series that fit the palette: those with the highest throughput."""
    if len(study.series) <= SERIES_MAX:
        return study.series
    peak = {s: max(p.stat(THROUGHPUT).value for p in study.points if p.series == s) for s in study.series}  # type: ignore[union-attr]
    best = sorted(study.series, key=lambda s: -peak[s])[:SERIES_MAX]
    return [s for s in study.series if s in best]


def slots(study: Study) -> list[int]:
    """Palette places of the drawn series: a path keeps its colour on the whole page."""
    series = drawn(study)
    paths = [study.path_of(s) for s in series]
    if len(set(paths)) == len(paths) and all(p in PATH_COLOURS for p in paths):
        return [PATH_COLOURS[p] for p in paths]
    return list(range(len(series)))


def left_out(study: Study) -> str:
    missing = len(study.series) - len(drawn(study))
    return (
        f"Drawn: the {SERIES_MAX} fastest of {len(study.series)} series; the CSV has all." if missing else ""
    )


def row_of(study: Study, point: Point, **values: Any) -> Row:
    row: Row = {"path": study.path_of(point.series), "series": point.series}
    if study.axis.key:
        row[study.axis.key] = int(point.x)
        row["place"] = study.axis.label(point.x)
    return {**row, **values}


def visible(study: Study, rows: list[Row]) -> list[Row]:
    keep = set(drawn(study))
    return [r for r in rows if r["series"] in keep]


def chart(rows: list[Row]) -> Any:
    """A chart of these rows, which are in a tuple: Altair copies every list again at each step, row by row."""
    import altair as alt

    return alt.Chart(alt.Data(values=tuple(rows)))


def place(study: Study) -> Any:
    import altair as alt

    labels = [study.axis.label(x) for x in study.xs]
    axis = alt.Axis(labelAngle=0 if len(labels) <= 7 else -45, labelOverlap=True, ticks=False)
    return alt.X("place:N", sort=labels, title=study.axis.title, axis=axis)


def colour(study: Study, legend: bool = True, lines: bool = False) -> Any:
    import altair as alt

    inks = [PALETTE[i] for i in slots(study)]
    return alt.Color(
        "series:N",
        scale=alt.Scale(domain=drawn(study), range=inks),
        legend=legend_of(drawn(study), lines) if legend else None,
        title=None,
    )


def legend_of(names: list[str], lines: bool = False) -> Any:
    """Above the chart. `lines`: the series are told apart by their dash, so it shows a length of it."""
    import altair as alt

    columns = 4 if max(map(len, names), default=0) <= 10 else 2 if max(map(len, names)) <= 24 else 1
    if lines:
        return alt.Legend(
            orient="top",
            columns=columns,
            title=None,
            symbolType="stroke",
            symbolStrokeWidth=2,
            symbolSize=400,
            labelLimit=320,
        )
    return alt.Legend(
        orient="top",
        columns=columns,
        title=None,
        symbolStrokeWidth=0,
        symbolSize=70,
        labelLimit=320,
    )


def dash(study: Study) -> Any:
    import altair as alt

    scale = alt.Scale(domain=drawn(study), range=[list(DASHES[i]) for i in slots(study)])
    return alt.StrokeDash("series:N", scale=scale, legend=None, title=None)


def line_dash(study: Study) -> Any:
    """The dash where it is all that tells series apart besides colour: it is in the legend too."""
    reported = dash(study)
    reported.legend = legend_of(drawn(study), lines=True)
    return reported


def shape(study: Study) -> Any:
    import altair as alt

    scale = alt.Scale(domain=drawn(study), range=[SHAPES[i] for i in slots(study)])
    return alt.Shape("series:N", scale=scale, legend=legend_of(drawn(study)), title=None)


def offset(study: Study, outer: float = 0.2) -> Any:
    """Side by side within a place; `outer` is the margin in steps (more brings dots closer together)."""
    import altair as alt

    return alt.XOffset("series:N", sort=drawn(study), scale=alt.Scale(paddingInner=0.15, paddingOuter=outer))


def plain_axis(unit: str, ticks: int = 5) -> Any:
    import altair as alt

    # each label has its own prefix: 0, 500, 1k
    return (
        alt.Axis(labelExpr="format(datum.value, '~s')", tickCount=ticks)
        if unit == "1/s"
        else alt.Axis(tickCount=ticks)
    )


def latency_axis(values: list[float]) -> tuple[Any, Any]:
    """A logarithmic scale just around the values, with the decades (and 2 and 5 where they are few) named."""
    import altair as alt

    low, high = min(values) / 1.25, max(values) * 1.25
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 200 else (1, 2, 5)
    ticks = [
        step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high
    ]
    words = "datum.value >= 1e6 ? datum.value / 1e6 + ' s' : datum.value >= 1e3 ? datum.value / 1e3 + ' ms' : datum.value + ' µs'"
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return scale, alt.Axis(values=ticks, labelExpr=words)
