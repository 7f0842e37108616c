"""Latency: percentiles by position, and the whole distribution if the engine can read it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from forebay import numbers
from forebay.report import marks
from forebay.report.marks import Chart, Row
from forebay.report.runs import Point, Study
from forebay.report.tables import THROUGHPUT

CURVE_POINTS_MAX = 300

PERCENTILES = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p99.9", "p999"))


def percentiles(study: Study) -> Chart | None:
    rows = []
    for point in study.points:
        for name, key in PERCENTILES:
            stat = point.stat(f"result.latency_us.{key}")
            if stat is not None and stat.value > 0:
                rows.append(
                    marks.row_of(
                        study,
                        point,
                        percentile=name,
                        latency_us=stat.value,
                        low=stat.low,
                        high=stat.high,
                        interval=stat.kind or "",
                    )
                )
    if not rows:
        return None
    worst = max(rows, key=lambda r: r["latency_us"])
    highest = f"{numbers.micros(worst['latency_us'])}, {worst['percentile']} of {worst['series']}"
    desc = f"Latency percentiles p50, p90, p99 and p99.9 on a logarithmic scale. Highest: {highest}."
    note = " ".join(filter(None, ["Logarithmic.", marks.left_out(study)]))
    return Chart(
        f"{study.id}-latency", "Latency percentiles", desc, rows, lambda: _draw_percentiles(study, rows), note
    )


def _draw_percentiles(study: Study, rows: list[Row]) -> Any:
    """By place, each series a line from p50 up to p99.9; without an axis, the percentiles are the axis."""
    import altair as alt

    shown = marks.visible(study, rows)
    base = marks.chart(shown)
    scale, ticks = marks.latency_axis([r["latency_us"] for r in shown])
    y = alt.Y("latency_us:Q", title=None, scale=scale, axis=ticks)
    names = [name for name, _ in PERCENTILES]
    if not study.axis.key:
        x = alt.X("percentile:N", sort=names, title="Percentile", axis=alt.Axis(labelAngle=0, ticks=False))
        line = base.mark_line(strokeWidth=2).encode(
            x=x, y=y, color=marks.colour(study), strokeDash=marks.dash(study)
        )
        dots = base.mark_point(filled=True, size=58, opacity=1).encode(
            x=x, y=y, color=marks.colour(study), shape=marks.shape(study)
        )
        return (line + dots).properties(width=marks.WIDTH, height=marks.HEIGHT)
    x, offset = marks.place(study), marks.offset(study, outer=1)
    shape = alt.Shape(
        "percentile:N",
        scale=alt.Scale(domain=names, range=["circle", "diamond", "square", "triangle-up"]),
        legend=alt.Legend(
            orient="bottom", columns=4, title=None, symbolFillColor=marks.MUTED, symbolStrokeColor=marks.MUTED
        ),
    )
    line = base.mark_line(strokeWidth=1.6).encode(
        x=x, xOffset=offset, y=y, color=marks.colour(study), strokeDash=marks.dash(study), detail="place:N"
    )
    dots = base.mark_point(filled=True, size=44, opacity=1).encode(
        x=x, xOffset=offset, y=y, color=marks.colour(study), shape=shape
    )
    return (
        (line + dots).resolve_legend(shape="independent").properties(width=marks.WIDTH, height=marks.HEIGHT)
    )


def curves(study: Study) -> list[Chart]:
    """Latency over the whole distribution, at the first, the fastest and the last place."""
    try:
        from forebay import _core
    except ImportError:
        return []
    xs = study.xs
    fastest = max(study.points, key=lambda p: _rate(p)).x
    charts = []
    note = " ".join(filter(None, ["Both scales logarithmic.", marks.left_out(study)]))
    for x in sorted({xs[0], fastest, xs[-1]}):
        rows: list[Row] = []
        for point in (p for p in study.points if p.x == x):
            rows += [
                marks.row_of(study, point, **r) for r in _curve(point.runs[0].text("result.histogram"), _core)
            ]
        if rows:
            where = f" at {study.axis.place(x)}" if study.axis.key else ""
            title = f"Latency distribution{where}"
            desc = f"Latency against percentile{where}, both scales logarithmic, of {len({r['series'] for r in rows})} series."
            name = f"{study.id}-distribution" + (f"-{int(x)}" if study.axis.key else "")
            charts.append(Chart(name, title, desc, rows, _curve_drawer(study, rows), note))
    return charts


def _curve(histogram: str, core: Any) -> list[Row]:
    """Percentile against latency, thinned to the steps that a picture can show. Empty where it can't be read."""
    if not histogram:
        return []
    try:
        buckets = core.buckets(histogram)
    except Exception:  # a damaged histogram costs one curve; the summary percentiles stand
        return []
    total = sum(n for _, n in buckets)
    if total <= 0:
        return []
    rows, step = [], max(1, len(buckets) // CURVE_POINTS_MAX)
    for i, (ns, below) in enumerate(
        zip((b[0] for b in buckets), itertools.accumulate(b[1] for b in buckets), strict=True)
    ):
        share = below / total
        # the tail has few buckets and most of the news: it is kept whole
        if i % step and share < 0.99:
            continue
        rows.append(
            {
                "percentile": min(share, 1.0) * 100,
                "latency_us": ns / 1e3,
                "above": max(1 - share, 0.5 / total),
            }
        )
    return rows


def _curve_drawer(study: Study, rows: list[Row]) -> Callable[[], Any]:
    def draw() -> Any:
        import altair as alt

        base = marks.chart([r for r in marks.visible(study, rows) if r["latency_us"] > 0])
        # the share of I/Os above the value is what is drawn; the labels say the percentile
        labels = "datum.value > 0.6 ? '0' : format(100 - 100 * datum.value, '.6~r') + ' %'"
        axis = alt.Axis(values=[1, 0.1, 0.01, 0.001, 0.0001, 0.00001], labelExpr=labels, grid=True)
        x = alt.X(
            "above:Q",
            title="Percentile",
            scale=alt.Scale(type="log", reverse=True, nice=False, domainMax=1),
            axis=axis,
        )
        scale, ticks = marks.latency_axis([r["latency_us"] for r in rows if r["latency_us"] > 0])
        y = alt.Y("latency_us:Q", title=None, scale=scale, axis=ticks)
        line = base.mark_line(strokeWidth=2, interpolate="step-before").encode(
            x=x, y=y, color=marks.colour(study, lines=True), strokeDash=marks.line_dash(study)
        )
        return line.properties(width=marks.WIDTH, height=marks.HEIGHT)

    return draw


def _rate(point: Point) -> float:
    stat = point.stat(THROUGHPUT)
    return stat.value if stat else 0.0
