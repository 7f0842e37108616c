"""Content of each chart, as rows and an Altair chart over them.

The rows are complete and go into the CSV as they are; the picture may leave out series past the palette
and thin long time series, and its note says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from forebay import numbers
from forebay.report import latency, marks, timeline
from forebay.report.marks import Chart, Row
from forebay.report.runs import Run, Study, finite
from forebay.report.tables import CPU_COST, THROUGHPUT


def study_charts(study: Study) -> list[Chart]:
    """Every chart that this study has data for."""
    made = [
        _values(study, "throughput", "Throughput", "GiB/s", THROUGHPUT),
        _values(study, "iops", "I/Os per second", "1/s", "result.iops"),
        _stacked(study, "cpu-cost", "CPU per GiB", "CPU-s/GiB", per_gib=True),
        _stacked(study, "cpu-cores", "Cores busy", "cores", per_gib=False),
        _ratios(study, "throughput-ratio", "Throughput", THROUGHPUT),
        _ratios(study, "cpu-cost-ratio", "CPU per GiB", CPU_COST),
    ]
    made.insert(0 if study.is_about_latency else len(made), latency.percentiles(study))
    made += [
        *_repeats(study),
        *latency.curves(study),
        *_power(study),
        *timeline.charts(study),
    ]
    return [chart for chart in made if chart is not None and chart.rows]


def _values(study: Study, name: str, title: str, unit: str, path: str) -> Chart | None:
    """One value per point with its interval: dots joined by lines, or bars where there is no axis."""
    rows = []
    for point in study.points:
        stat = point.stat(path)
        if stat is not None:
            rows.append(
                marks.row_of(
                    study,
                    point,
                    value=stat.value,
                    low=stat.low,
                    high=stat.high,
                    interval=stat.kind or "",
                    unit=unit,
                    runs=len(point.runs),
                )
            )
    if len(rows) < 2:
        return None
    kinds = sorted({r["interval"] for r in rows} - {""})
    note = " ".join(filter(None, [f"Whiskers: {', '.join(kinds)}." if kinds else "", marks.left_out(study)]))
    top = max(rows, key=lambda r: r["value"])
    where = f" at {top['place']}" if study.axis.key else ""
    highest = f"{numbers.significant(top['value'])} {unit}, {top['series']}{where}"
    desc = f"{title} in {unit} of {len(study.series)} series. Highest: {highest}."
    draw = _draw_lines if study.axis.key else _draw_bars
    return Chart(f"{study.id}-{name}", f"{title}, {unit}", desc, rows, lambda: draw(study, rows, unit), note)


def _ratios(study: Study, name: str, title: str, path: str) -> Chart | None:
    """Chart of quotients: the series that divides lies at 1, the others at theirs; at two places on the axis or more."""
    found: list[Row] = []
    bases: dict[tuple[float, str], Row] = {}
    for point in study.points if study.axis.key else ():
        its_name = study.baseline(point.series)
        its_point = study.point(point.x, its_name) if its_name else None
        mine, its = point.stat(path), its_point.stat(path) if its_point else None
        quotient = mine.over(its) if mine and its else None
        if its_name is None or its_point is None or quotient is None:
            continue
        ends = {"low": quotient.low, "high": quotient.high, "interval": quotient.kind or ""}
        found.append(marks.row_of(study, point, base=its_name, value=quotient.value, **ends))
        one = {"base": its_name, "value": 1.0, "low": None, "high": None, "interval": ""}
        bases[point.x, its_name] = marks.row_of(study, its_point, **one)
    if len({row["place"] for row in found}) < 2:
        return None
    least, most = (pick(found, key=lambda row: row["value"]) for pick in (min, max))
    reported = [f"{numbers.ratio(row['value'])} at {row['place']}, {row['series']}" for row in (least, most)]
    desc = f"{title} divided by that of {study.base}, by {study.axis.title.lower()}. From {reported[0]}, to {reported[1]}."
    whiskers = "Whiskers: the widest range that both intervals allow." if any(row["interval"] for row in found) else ""
    note = " ".join(filter(None, [f"{study.base} is 1.", whiskers, marks.left_out(study)]))
    rows = [*bases.values(), *found]
    return Chart(f"{study.id}-{name}", f"{title} ÷ {study.base}", desc, rows, lambda: _draw_lines(study, rows, ""), note)


def _draw_lines(study: Study, rows: list[Row], unit: str) -> Any:
    import altair as alt

    base = marks.chart(marks.visible(study, rows))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True), axis=marks.plain_axis(unit))
    x, offset = marks.place(study), marks.offset(study, outer=1)
    lines = base.mark_line(strokeWidth=2).encode(
        x=x, xOffset=offset, y=y, color=marks.colour(study), strokeDash=marks.dash(study)
    )
    spread = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.6)
        .encode(x=x, xOffset=offset, y=alt.Y("low:Q", title=None), y2="high:Q", color=marks.colour(study))
    )
    dots = base.mark_point(filled=True, size=58, opacity=1).encode(
        x=x, xOffset=offset, y=y, color=marks.colour(study), shape=marks.shape(study)
    )
    return (lines + spread + dots).properties(width=marks.WIDTH, height=marks.HEIGHT)


def _draw_bars(study: Study, rows: list[Row], unit: str) -> Any:
    import altair as alt

    shown = [
        {**r, "label": numbers.short(r["value"]) if unit == "1/s" else numbers.rate(r["value"])}
        for r in marks.visible(study, rows)
    ]
    base = marks.chart(shown)
    y = _names(study)
    x = alt.X("value:Q", title=None, axis=marks.plain_axis(unit, ticks=4))
    bars = base.mark_bar(height=16).encode(y=y, x=x, color=marks.colour(study, legend=False))
    spread = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.6, color=marks.INK)
        .encode(y=y, x="low:Q", x2="high:Q")
    )
    label = base.mark_text(align="left", dx=6, color=marks.INK, fontWeight=600).encode(
        y=y, x=alt.X("end:Q"), text="label:N"
    )
    label = label.transform_calculate(end="isValid(datum.high) ? max(datum.high, datum.value) : datum.value")
    return (bars + spread + label).properties(width=marks.WIDTH - 90, height=max(70, 34 * len(shown)))


def _stacked(study: Study, name: str, title: str, unit: str, per_gib: bool) -> Chart | None:
    rows: list[Row] = []
    for point in study.points:
        whole = point.stat(CPU_COST if per_gib else "result.cpu.cores_busy")
        shares = [_user_share(run) for run in point.runs]
        known = [s for s in shares if s is not None]
        if whole is None or not known:
            continue
        share = statistics.median(known)
        for kind, part in (("user", share), ("system", 1 - share)):
            rows.append(
                marks.row_of(
                    study,
                    point,
                    kind=kind,
                    value=whole.value * part,
                    whole=whole.value,
                    low=whole.low,
                    high=whole.high,
                    interval=whole.kind or "",
                    unit=unit,
                )
            )
    if len(rows) < 4:
        return None
    top = max(rows, key=lambda r: r["whole"])
    highest = f"{numbers.significant(top['whole'])} {unit}, {top['series']}"
    desc = f"{title} in {unit}, user and system time stacked. Highest: {highest}."
    kinds = sorted({r["interval"] for r in rows} - {""})
    note = " ".join(
        filter(
            None,
            [
                "Solid: user; faint: system.",
                f"Whiskers: {', '.join(kinds)}." if kinds else "",
                marks.left_out(study),
            ],
        )
    )
    return Chart(
        f"{study.id}-{name}", f"{title}, {unit}", desc, rows, lambda: _draw_stacked(study, rows), note
    )


def _user_share(run: Run) -> float | None:
    user, system = run.number("result.cpu.user_s"), run.number("result.cpu.system_s")
    return user / (user + system) if user is not None and system is not None and user + system > 0 else None


def _draw_stacked(study: Study, rows: list[Row]) -> Any:
    import altair as alt

    shown = [{**r, "order": 0 if r["kind"] == "user" else 1} for r in marks.visible(study, rows)]
    base = marks.chart(shown)
    whole = base.transform_filter("datum.kind == 'user' && isValid(datum.low)")
    shade = alt.FillOpacity("kind:N", scale=alt.Scale(domain=["user", "system"], range=[1, 0.3]), legend=None)
    inks = {
        "color": marks.colour(study, legend=bool(study.axis.key)),
        "stroke": _stroke(study),
        "fillOpacity": shade,
        "order": "order:O",
    }
    if not study.axis.key:
        y, ticks = _names(study), alt.Axis(tickCount=4)
        bars = base.mark_bar(strokeWidth=1, height=16).encode(
            y=y, x=alt.X("value:Q", title=None, stack="zero", axis=ticks), **inks
        )
        spread = whole.mark_rule(strokeWidth=1.6, color=marks.INK).encode(
            y=y, x=alt.X("low:Q", title=None), x2="high:Q"
        )
        return (bars + spread).properties(
            width=marks.WIDTH - 90, height=max(70, 34 * len(marks.drawn(study)))
        )
    x, offset = marks.place(study), marks.offset(study)
    bars = base.mark_bar(strokeWidth=1).encode(
        x=x, xOffset=offset, y=alt.Y("value:Q", title=None, stack="zero", axis=marks.plain_axis("")), **inks
    )
    spread = whole.mark_rule(strokeWidth=1.4, color=marks.INK).encode(
        x=x, xOffset=offset, y=alt.Y("low:Q", title=None), y2="high:Q"
    )
    return (bars + spread).properties(width=marks.WIDTH, height=marks.HEIGHT)


def _names(study: Study) -> Any:
    import altair as alt

    return alt.Y(
        "series:N",
        sort=marks.drawn(study),
        title=None,
        axis=alt.Axis(ticks=False, domain=False, labelLimit=150, labelPadding=6),
    )


def _stroke(study: Study) -> Any:
    import altair as alt

    return alt.Stroke(
        "series:N",
        scale=alt.Scale(domain=marks.drawn(study), range=[marks.PALETTE[i] for i in marks.slots(study)]),
        legend=None,
    )


def _repeats(study: Study) -> list[Chart]:
    """Each repeat's throughput, where the study is a single point and has nothing else to set it against."""
    if len(study.points) != 1 or study.points[0].runs[0].repeats < 2:
        return []
    point = study.points[0]
    repeats = [r for run in point.runs for r in run.items("result.repeats")]
    rows = [
        marks.row_of(study, point, repeat=i + 1, value=v)
        for i, r in enumerate(repeats)
        if (v := finite(r.get("throughput_gib_s"))) is not None
    ]
    values = [row["value"] for row in rows]
    span = f"from {min(values, default=0):.3g} to {max(values, default=0):.3g}"
    desc = f"Throughput of each of {len(rows)} repeats in GiB/s, {span}."

    def draw() -> Any:
        import altair as alt

        base = marks.chart(rows)
        x = alt.X("repeat:O", title="Repeat", axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap=True))
        y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True), axis=marks.plain_axis(""))
        return (
            base.mark_point(filled=True, size=70, opacity=1)
            .encode(x=x, y=y, color=marks.colour(study))
            .properties(width=marks.WIDTH, height=marks.HEIGHT)
        )

    return [Chart(f"{study.id}-repeats", "Throughput of each repeat, GiB/s", desc, rows, draw)]


def _power(study: Study) -> list[Chart]:
    charts = []
    meters = dict.fromkeys(
        (str(m.get("source")), str(m.get("scope"))) for run in study.runs for m in run.items("result.power")
    )
    for number, (source, scope) in enumerate(meters, start=1):
        for key, title, unit in (("watts_mean", "Power", "W"), ("joules_per_gib", "Energy", "J/GiB")):
            rows = _meter_rows(study, source, scope, key, unit)
            if not rows:
                continue
            name = f"{study.id}-{'watts' if unit == 'W' else 'energy'}-{number}"
            desc = f"{title} in {unit} of {scope} as reported by {source}, of {len(rows)} points."
            draw = _power_drawer(study, rows, unit)
            note = " ".join(filter(None, [f"Meter: {source}, {scope}.", marks.left_out(study)]))
            charts.append(Chart(name, f"{title} ({scope}), {unit}", desc, rows, draw, note, group="power"))
    return charts


def _meter_rows(study: Study, source: str, scope: str, key: str, unit: str) -> list[Row]:
    rows = []
    for point in study.points:
        values: list[float] = []
        repeats: list[float] = []
        for run in point.runs:
            values += _readings(run.items("result.power"), source, scope, key)
            for repeat in run.items("result.repeats"):
                power = repeat.get("power")
                power = [m for m in power if isinstance(m, dict)] if isinstance(power, list) else []
                repeats += _readings(power, source, scope, key)
        if values:
            spread = repeats if len(repeats) > 1 else values if len(values) > 1 else []
            value = statistics.median(values)
            low, high = (end([*spread, value]) if spread else None for end in (min, max))
            reported = f"range of {len(spread)}" if spread else ""
            meter = {"meter": source, "scope": scope, "value": value, "low": low, "high": high}
            rows.append(marks.row_of(study, point, **meter, interval=reported, unit=unit))
    return rows


def _readings(meters: list[Row], source: str, scope: str, key: str) -> list[float]:
    return [
        v
        for m in meters
        if str(m.get("source")) == source
        and str(m.get("scope")) == scope
        and (v := finite(m.get(key))) is not None
    ]


def _power_drawer(study: Study, rows: list[Row], unit: str) -> Callable[[], Any]:
    return lambda: (_draw_lines if study.axis.key else _draw_bars)(study, rows, unit)
