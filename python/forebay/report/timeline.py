"""Throughput over time, with the warm-up shaded."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from forebay.report import marks
from forebay.report.marks import Chart, Row
from forebay.report.runs import Run, Study, finite

TIME_CHARTS_MAX = 12
TIME_POINTS_MAX = 400


def charts(study: Study) -> list[Chart]:
    """Throughput over time, one chart per place on the axis, the warm-up shaded."""
    made = []
    for x in study.xs:
        rows: list[Row] = []
        for point in (p for p in study.points if p.x == x):
            for number, run in enumerate(point.runs):
                rows += [marks.row_of(study, point, **row) for row in _series(run, number)]
        if not rows:
            continue
        where = f" at {study.axis.label(x)}" if study.axis.key else ""
        rates = [r["gib_s"] for r in rows]
        desc = f"Throughput over time{where} in GiB/s, from {min(rates):.3g} to {max(rates):.3g}; the warm-up is shaded."
        name = f"{study.id}-time" + (f"-{int(x)}" if study.axis.key else "")
        notes = [
            "Shaded: warm-up, not counted." if any(r["warmup"] for r in rows) else "",
            marks.left_out(study),
        ]
        thinned = _thin(rows)
        if len(thinned) < len(rows):
            notes.append("Drawn: means over several intervals; the CSV has each.")
        made.append(
            Chart(
                name,
                f"Throughput over time{where}, GiB/s",
                desc,
                rows,
                _time_drawer(study, thinned),
                " ".join(filter(None, notes)),
                group="time",
            )
        )
    return made


def _series(run: Run, number: int) -> list[Row]:
    rows = []
    for point in run.items("result.series"):
        t, rate = finite(point.get("t_s")), finite(point.get("gib_s"))
        if t is None or rate is None:
            continue
        repeat = int(finite(point.get("repeat")) or 0)
        also = {key: finite(point.get(key)) for key in ("iops", "latency_us_p99", "cores_busy")}
        row = {"run": number + 1, "repeat": repeat + 1, "line": f"{number}.{repeat}", "t_s": t, "gib_s": rate}
        rows.append({**row, **also, "warmup": point.get("warmup") is True})
    return rows


def _thin(rows: list[Row]) -> list[Row]:
    """At most TIME_POINTS_MAX points per line, each the mean of the intervals that it stands for."""
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        lines.setdefault((row["series"], row["line"]), []).append(row)
    thinned = []
    for members in lines.values():
        step = -(-len(members) // TIME_POINTS_MAX)
        for i in range(0, len(members), step):
            part = members[i : i + step]
            thinned.append(
                {**part[-1], "gib_s": statistics.fmean(r["gib_s"] for r in part), "warmup": part[0]["warmup"]}
            )
    return thinned


def _time_drawer(study: Study, rows: list[Row]) -> Callable[[], Any]:
    def draw() -> Any:
        import altair as alt

        shown = marks.visible(study, rows)
        x = alt.X(
            "t_s:Q",
            title="Seconds",
            scale=alt.Scale(nice=False, zero=True),
            axis=alt.Axis(grid=False, tickCount=6),
        )
        y = alt.Y("gib_s:Q", title=None, scale=alt.Scale(zero=True), axis=marks.plain_axis(""))
        base = marks.chart(shown)
        lines = base.mark_line(strokeWidth=1.6).encode(
            x=x,
            y=y,
            color=marks.colour(study, lines=True),
            strokeDash=marks.line_dash(study),
            detail="line:N",
        )
        warm = max((r["t_s"] for r in shown if r["warmup"]), default=0.0)
        if not warm:
            return lines.properties(width=marks.WIDTH, height=marks.HEIGHT)
        area = (
            marks.chart([{"from": 0, "to": warm}])
            .mark_rect(color=marks.SHADE, opacity=1)
            .encode(x=alt.X("from:Q", title="Seconds"), x2="to:Q")
        )
        return (area + lines).properties(width=marks.WIDTH, height=marks.HEIGHT)

    return draw
