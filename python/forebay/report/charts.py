"""What each chart shows, as rows and an Altair chart over them.

The rows are complete and go into the CSV as they are; the picture may leave out series past the palette
and thin long time series, and its note says so. Colour never stands alone: shape, dash or position tells
the series apart as well.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay.report import numbers
from forebay.report.runs import Point, Run, Study, finite
from forebay.report.tables import CPU_COST, THROUGHPUT

# Okabe and Ito's colours, told apart with any colour vision, in an order in which neighbours differ most.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#8c6d31")
PATH_COLOURS = {"host": 0, "bounce": 1, "mapped": 2, "gds": 3, "gds-compat": 5}
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [10, 4], [1, 3], [6, 2, 1, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke", "triangle-right")
SERIES_MAX = len(PALETTE)
TIME_CHARTS_MAX = 12
TIME_POINTS_MAX = 400
CURVE_POINTS_MAX = 300
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
    sources: list[str] = field(default_factory=list)


def study_charts(study: Study) -> list[Chart]:
    """Every chart that this study has data for."""
    made = [
        _values(study, "throughput", "Throughput", "GiB/s", THROUGHPUT),
        _values(study, "iops", "I/Os per second", "1/s", "result.iops"),
        _stacked(study, "cpu-cost", "CPU per GiB", "core-s/GiB", per_gib=True),
        _stacked(study, "cpu-cores", "Cores busy", "cores", per_gib=False),
        _percentiles(study),
        *_repeats(study),
        *_curves(study),
        *_power(study),
        *_time(study),
    ]
    return [chart for chart in made if chart is not None and chart.rows]


def drawn(study: Study) -> list[str]:
    """The series that fit the palette: those with the highest throughput."""
    if len(study.series) <= SERIES_MAX:
        return study.series
    peak = {s: max(p.stat(THROUGHPUT).value for p in study.points if p.series == s) for s in study.series}  # type: ignore[union-attr]
    best = sorted(study.series, key=lambda s: -peak[s])[:SERIES_MAX]
    return [s for s in study.series if s in best]


def _slots(study: Study) -> list[int]:
    """Palette places of the drawn series: a path keeps its colour on the whole page."""
    series = drawn(study)
    paths = [study.path_of(s) for s in series]
    if len(set(paths)) == len(paths) and all(p in PATH_COLOURS for p in paths):
        return [PATH_COLOURS[p] for p in paths]
    return list(range(len(series)))


def _left_out(study: Study) -> str:
    missing = len(study.series) - len(drawn(study))
    return f"Drawn: the {SERIES_MAX} fastest of {len(study.series)} series; the CSV has all." if missing else ""


def _row(study: Study, point: Point, **values: Any) -> Row:
    row: Row = {"path": study.path_of(point.series), "series": point.series}
    if study.axis.key:
        row[study.axis.key] = int(point.x)
        row["place"] = study.axis.label(point.x)
    return {**row, **values}


# -- the parts that charts are put together from ------------------------------------------------------


def _visible(study: Study, rows: list[Row]) -> list[Row]:
    keep = set(drawn(study))
    return [r for r in rows if r["series"] in keep]


def _place(study: Study) -> Any:
    import altair as alt

    labels = [study.axis.label(x) for x in study.xs]
    axis = alt.Axis(labelAngle=0 if len(labels) <= 7 else -45, labelOverlap=True, ticks=False)
    return alt.X("place:N", sort=labels, title=study.axis.title, axis=axis)


def _colour(study: Study, legend: bool = True, lines: bool = False) -> Any:
    import altair as alt

    slots = _slots(study)
    return alt.Color(
        "series:N",
        scale=alt.Scale(domain=drawn(study), range=[PALETTE[i] for i in slots]),
        legend=_legend(drawn(study), lines) if legend else None,
        title=None,
    )


def _legend(names: list[str], lines: bool = False) -> Any:
    """Above the chart. `lines`: the series are told apart by their dash, so it shows a length of it."""
    import altair as alt

    columns = 4 if max(map(len, names), default=0) <= 10 else 2 if max(map(len, names)) <= 24 else 1
    if lines:
        return alt.Legend(orient="top", columns=columns, title=None, symbolType="stroke", symbolStrokeWidth=2, symbolSize=400, labelLimit=320)
    return alt.Legend(orient="top", columns=columns, title=None, symbolStrokeWidth=2, symbolDash=[1, 0], symbolSize=70, labelLimit=320)


def _dash(study: Study) -> Any:
    import altair as alt

    scale = alt.Scale(domain=drawn(study), range=[list(DASHES[i]) for i in _slots(study)])
    return alt.StrokeDash("series:N", scale=scale, legend=None, title=None)


def _line_dash(study: Study) -> Any:
    """The dash where it is all that tells series apart besides colour: it is in the legend too."""
    dash = _dash(study)
    dash.legend = _legend(drawn(study), lines=True)
    return dash


def _shape(study: Study) -> Any:
    import altair as alt

    scale = alt.Scale(domain=drawn(study), range=[SHAPES[i] for i in _slots(study)])
    return alt.Shape("series:N", scale=scale, legend=_legend(drawn(study)), title=None)


def _offset(study: Study, outer: float = 0.2) -> Any:
    """Side by side within a place; `outer` is the margin in steps (more brings dots closer together)."""
    import altair as alt

    return alt.XOffset("series:N", sort=drawn(study), scale=alt.Scale(paddingInner=0.15, paddingOuter=outer))


def _axis(unit: str, ticks: int = 5) -> Any:
    import altair as alt

    # each label has its own prefix: 0, 500, 1k
    return alt.Axis(labelExpr="format(datum.value, '~s')", tickCount=ticks) if unit == "1/s" else alt.Axis(tickCount=ticks)


def _latency_axis(values: list[float]) -> tuple[Any, Any]:
    """A logarithmic scale just around the values, with the decades (and 2 and 5 where they are few) named."""
    import altair as alt

    low, high = min(values) / 1.25, max(values) * 1.25
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 200 else (1, 2, 5)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    words = "datum.value >= 1e6 ? format(datum.value / 1e6, '~r') + ' s' : datum.value >= 1e3 ? format(datum.value / 1e3, '~r') + ' ms' : format(datum.value, '~r') + ' µs'"
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return scale, alt.Axis(values=ticks, labelExpr=words)


# -- values by place ----------------------------------------------------------------------------------


def _values(study: Study, name: str, title: str, unit: str, path: str) -> Chart | None:
    """One value per point with its interval: dots joined by lines, or bars where there is no axis."""
    rows = []
    for point in study.points:
        stat = point.stat(path)
        if stat is not None:
            rows.append(_row(study, point, value=stat.value, low=stat.low, high=stat.high, interval=stat.kind or "", unit=unit, runs=len(point.runs)))
    if len(rows) < 2:
        return None
    kinds = sorted({r["interval"] for r in rows} - {""})
    note = " ".join(filter(None, [f"Whiskers: {', '.join(kinds)}." if kinds else "", _left_out(study)]))
    top = max(rows, key=lambda r: r["value"])
    where = f" at {top['place']}" if study.axis.key else ""
    desc = f"{title} in {unit} of {len(study.series)} series. Highest: {numbers.significant(top['value'])} {unit}, {top['series']}{where}."
    draw = _draw_lines if study.axis.key else _draw_bars
    return Chart(f"{study.id}-{name}", f"{title}, {unit}", desc, rows, lambda: draw(study, rows, unit), note)


def _draw_lines(study: Study, rows: list[Row], unit: str) -> Any:
    import altair as alt

    base = alt.Chart(alt.Data(values=_visible(study, rows)))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True), axis=_axis(unit))
    x, offset = _place(study), _offset(study, outer=1)
    lines = base.mark_line(strokeWidth=2).encode(x=x, xOffset=offset, y=y, color=_colour(study), strokeDash=_dash(study))
    spread = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.6).encode(
        x=x, xOffset=offset, y=alt.Y("low:Q", title=None), y2="high:Q", color=_colour(study)
    )
    dots = base.mark_point(filled=True, size=58, opacity=1).encode(x=x, xOffset=offset, y=y, color=_colour(study), shape=_shape(study))
    return (lines + spread + dots).properties(width=WIDTH, height=HEIGHT)


def _draw_bars(study: Study, rows: list[Row], unit: str) -> Any:
    import altair as alt

    shown = [{**r, "label": numbers.count(r["value"]) if unit == "1/s" else numbers.rate(r["value"])} for r in _visible(study, rows)]
    base = alt.Chart(alt.Data(values=shown))
    y = _names(study)
    x = alt.X("value:Q", title=None, axis=_axis(unit, ticks=4))
    bars = base.mark_bar(height=16).encode(y=y, x=x, color=_colour(study, legend=False))
    spread = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.6, color=INK).encode(y=y, x="low:Q", x2="high:Q")
    label = base.mark_text(align="left", dx=6, color=INK, fontWeight=600).encode(y=y, x=alt.X("end:Q"), text="label:N")
    label = label.transform_calculate(end="isValid(datum.high) ? max(datum.high, datum.value) : datum.value")
    return (bars + spread + label).properties(width=WIDTH - 90, height=max(70, 34 * len(shown)))


# -- CPU, user and system stacked ---------------------------------------------------------------------


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
            rows.append(_row(study, point, kind=kind, value=whole.value * part, whole=whole.value, low=whole.low, high=whole.high, interval=whole.kind or "", unit=unit))
    if len(rows) < 4:
        return None
    top = max(rows, key=lambda r: r["whole"])
    desc = f"{title} in {unit}, user and system time stacked. Highest: {numbers.significant(top['whole'])} {unit}, {top['series']}."
    kinds = sorted({r["interval"] for r in rows} - {""})
    note = " ".join(filter(None, ["Dark: user; light: system.", f"Whiskers: {', '.join(kinds)}." if kinds else "", _left_out(study)]))
    return Chart(f"{study.id}-{name}", f"{title}, {unit}", desc, rows, lambda: _draw_stacked(study, rows), note)


def _user_share(run: Run) -> float | None:
    user, system = run.number("result.cpu.user_s"), run.number("result.cpu.system_s")
    return user / (user + system) if user is not None and system is not None and user + system > 0 else None


def _draw_stacked(study: Study, rows: list[Row]) -> Any:
    import altair as alt

    shown = [{**r, "order": 0 if r["kind"] == "user" else 1} for r in _visible(study, rows)]
    base = alt.Chart(alt.Data(values=shown))
    whole = base.transform_filter("datum.kind == 'user' && isValid(datum.low)")
    shade = alt.FillOpacity("kind:N", scale=alt.Scale(domain=["user", "system"], range=[1, 0.3]), legend=None)
    inks = {"color": _colour(study, legend=bool(study.axis.key)), "stroke": _stroke(study), "fillOpacity": shade, "order": "order:O"}
    if not study.axis.key:
        y, ticks = _names(study), alt.Axis(tickCount=4)
        bars = base.mark_bar(strokeWidth=1, height=16).encode(y=y, x=alt.X("value:Q", title=None, stack="zero", axis=ticks), **inks)
        spread = whole.mark_rule(strokeWidth=1.6, color=INK).encode(y=y, x=alt.X("low:Q", title=None), x2="high:Q")
        return (bars + spread).properties(width=WIDTH - 90, height=max(70, 34 * len(drawn(study))))
    x, offset = _place(study), _offset(study)
    bars = base.mark_bar(strokeWidth=1).encode(x=x, xOffset=offset, y=alt.Y("value:Q", title=None, stack="zero", axis=_axis("")), **inks)
    spread = whole.mark_rule(strokeWidth=1.4, color=INK).encode(x=x, xOffset=offset, y=alt.Y("low:Q", title=None), y2="high:Q")
    return (bars + spread).properties(width=WIDTH, height=HEIGHT)


def _names(study: Study) -> Any:
    import altair as alt

    return alt.Y("series:N", sort=drawn(study), title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=150, labelPadding=6))


def _stroke(study: Study) -> Any:
    import altair as alt

    return alt.Stroke("series:N", scale=alt.Scale(domain=drawn(study), range=[PALETTE[i] for i in _slots(study)]), legend=None)


# -- latency ------------------------------------------------------------------------------------------

PERCENTILES = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p99.9", "p999"))


def _percentiles(study: Study) -> Chart | None:
    rows = []
    for point in study.points:
        for name, key in PERCENTILES:
            stat = point.stat(f"result.latency_us.{key}")
            if stat is not None and stat.value > 0:
                rows.append(_row(study, point, percentile=name, latency_us=stat.value, low=stat.low, high=stat.high, interval=stat.kind or ""))
    if not rows:
        return None
    worst = max(rows, key=lambda r: r["latency_us"])
    desc = f"Latency percentiles p50, p90, p99 and p99.9 on a logarithmic scale. Highest: {numbers.micros(worst['latency_us'])}, {worst['percentile']} of {worst['series']}."
    note = " ".join(filter(None, ["Logarithmic.", _left_out(study)]))
    return Chart(f"{study.id}-latency", "Latency percentiles", desc, rows, lambda: _draw_percentiles(study, rows), note)


def _draw_percentiles(study: Study, rows: list[Row]) -> Any:
    """By place, each series a line from p50 up to p99.9; without an axis, the percentiles are the axis."""
    import altair as alt

    shown = _visible(study, rows)
    base = alt.Chart(alt.Data(values=shown))
    scale, ticks = _latency_axis([r["latency_us"] for r in shown])
    y = alt.Y("latency_us:Q", title=None, scale=scale, axis=ticks)
    names = [name for name, _ in PERCENTILES]
    if not study.axis.key:
        x = alt.X("percentile:N", sort=names, title="Percentile", axis=alt.Axis(labelAngle=0, ticks=False))
        line = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=_colour(study), strokeDash=_dash(study))
        dots = base.mark_point(filled=True, size=58, opacity=1).encode(x=x, y=y, color=_colour(study), shape=_shape(study))
        return (line + dots).properties(width=WIDTH, height=HEIGHT)
    x, offset = _place(study), _offset(study, outer=1)
    shape = alt.Shape(
        "percentile:N",
        scale=alt.Scale(domain=names, range=["circle", "diamond", "square", "triangle-up"]),
        legend=alt.Legend(orient="bottom", columns=4, title=None, symbolFillColor=MUTED, symbolStrokeColor=MUTED),
    )
    line = base.mark_line(strokeWidth=1.6).encode(x=x, xOffset=offset, y=y, color=_colour(study), strokeDash=_dash(study), detail="place:N")
    marks = base.mark_point(filled=True, size=44, opacity=1).encode(x=x, xOffset=offset, y=y, color=_colour(study), shape=shape)
    return (line + marks).resolve_legend(shape="independent").properties(width=WIDTH, height=HEIGHT)


def _curves(study: Study) -> list[Chart]:
    """Latency over the whole distribution, at the first, the fastest and the last place."""
    try:
        from forebay import _core
    except ImportError:
        return []
    xs = study.xs
    fastest = max(study.points, key=lambda p: (p.stat(THROUGHPUT) or _ZERO).value).x
    charts = []
    for x in sorted({xs[0], fastest, xs[-1]}):
        rows: list[Row] = []
        for point in (p for p in study.points if p.x == x):
            rows += [_row(study, point, **r) for r in _curve(point.runs[0].text("result.histogram"), _core)]
        if rows:
            where = f" at {study.axis.label(x)}" if study.axis.key else ""
            title = f"Latency distribution{where}"
            desc = f"Latency against percentile{where}, both scales logarithmic, of {len({r['series'] for r in rows})} series."
            name = f"{study.id}-distribution" + (f"-{int(x)}" if study.axis.key else "")
            charts.append(Chart(name, title, desc, rows, _curve_drawer(study, rows), _left_out(study)))
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
    for i, (ns, below) in enumerate(zip((b[0] for b in buckets), itertools.accumulate(b[1] for b in buckets), strict=True)):
        share = below / total
        # the tail has few buckets and most of the news: it is kept whole
        if i % step and share < 0.99:
            continue
        rows.append({"percentile": min(share, 1.0) * 100, "latency_us": ns / 1e3, "above": max(1 - share, 0.5 / total)})
    return rows


def _curve_drawer(study: Study, rows: list[Row]) -> Callable[[], Any]:
    def draw() -> Any:
        import altair as alt

        base = alt.Chart(alt.Data(values=[r for r in _visible(study, rows) if r["latency_us"] > 0]))
        labels = "datum.value > 0.6 ? '0' : datum.value > 0.05 ? '90 %' : datum.value > 0.005 ? '99 %' : datum.value > 0.0005 ? '99.9 %' : datum.value > 0.00005 ? '99.99 %' : '99.999 %'"
        axis = alt.Axis(values=[1, 0.1, 0.01, 0.001, 0.0001, 0.00001], labelExpr=labels, grid=True)
        x = alt.X("above:Q", title="Percentile", scale=alt.Scale(type="log", reverse=True, nice=False, domainMax=1), axis=axis)
        scale, ticks = _latency_axis([r["latency_us"] for r in rows if r["latency_us"] > 0])
        y = alt.Y("latency_us:Q", title=None, scale=scale, axis=ticks)
        line = base.mark_line(strokeWidth=2, interpolate="step-before").encode(x=x, y=y, color=_colour(study, lines=True), strokeDash=_line_dash(study))
        return line.properties(width=WIDTH, height=HEIGHT)

    return draw


@dataclass(frozen=True)
class _Zero:
    value: float = 0.0


_ZERO = _Zero()


# -- repeats, power, time -----------------------------------------------------------------------------


def _repeats(study: Study) -> list[Chart]:
    """Each repeat's throughput, where the study is a single point and has nothing else to set it against."""
    if len(study.points) != 1 or study.points[0].runs[0].repeats < 2:
        return []
    point = study.points[0]
    repeats = [r for run in point.runs for r in run.items("result.repeats")]
    rows = [_row(study, point, repeat=i + 1, value=v) for i, r in enumerate(repeats) if (v := finite(r.get("throughput_gib_s"))) is not None]
    desc = f"Throughput of each of {len(rows)} repeats in GiB/s, from {min(r['value'] for r in rows):.3g} to {max(r['value'] for r in rows):.3g}." if rows else ""

    def draw() -> Any:
        import altair as alt

        base = alt.Chart(alt.Data(values=rows))
        x = alt.X("repeat:O", title="Repeat", axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap=True))
        y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True), axis=_axis(""))
        return base.mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=_colour(study)).properties(width=WIDTH, height=HEIGHT)

    return [Chart(f"{study.id}-repeats", "Throughput of each repeat, GiB/s", desc, rows, draw)]


def _power(study: Study) -> list[Chart]:
    charts = []
    meters = dict.fromkeys((str(m.get("source")), str(m.get("scope"))) for run in study.runs for m in run.items("result.power"))
    for number, (source, scope) in enumerate(meters, start=1):
        for key, title, unit in (("watts_mean", "Power", "W"), ("joules_per_gib", "Energy", "J/GiB")):
            rows = _meter_rows(study, source, scope, key, unit)
            if not rows:
                continue
            name = f"{study.id}-{'watts' if unit == 'W' else 'energy'}-{number}"
            desc = f"{title} in {unit} of {scope} as {source} tells it, of {len(rows)} points."
            draw = _power_drawer(study, rows, unit)
            note = " ".join(filter(None, [f"Meter: {source}, {scope}.", _left_out(study)]))
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
            rows.append(
                _row(study, point, meter=source, scope=scope, value=value, low=min([*spread, value]) if spread else None,
                     high=max([*spread, value]) if spread else None, interval=f"range of {len(spread)}" if spread else "", unit=unit)
            )  # fmt: skip
    return rows


def _readings(meters: list[Row], source: str, scope: str, key: str) -> list[float]:
    return [v for m in meters if str(m.get("source")) == source and str(m.get("scope")) == scope and (v := finite(m.get(key))) is not None]


def _power_drawer(study: Study, rows: list[Row], unit: str) -> Callable[[], Any]:
    return lambda: (_draw_lines if study.axis.key else _draw_bars)(study, rows, unit)


def _time(study: Study) -> list[Chart]:
    """Throughput over time, one chart per place on the axis, the warm-up shaded."""
    charts = []
    for x in study.xs:
        rows: list[Row] = []
        for point in (p for p in study.points if p.x == x):
            for number, run in enumerate(point.runs):
                rows += [_row(study, point, **row) for row in _series(run, number)]
        if not rows:
            continue
        where = f" at {study.axis.label(x)}" if study.axis.key else ""
        desc = f"Throughput over time{where} in GiB/s, from {min(r['gib_s'] for r in rows):.3g} to {max(r['gib_s'] for r in rows):.3g}; the warm-up is shaded."
        name = f"{study.id}-time" + (f"-{int(x)}" if study.axis.key else "")
        notes = ["Shaded: warm-up, not counted." if any(r["warmup"] for r in rows) else "", _left_out(study)]
        thinned = _thin(rows)
        if len(thinned) < len(rows):
            notes.append("Drawn: means over several intervals; the CSV has each.")
        charts.append(Chart(name, f"Throughput over time{where}, GiB/s", desc, rows, _time_drawer(study, thinned), " ".join(filter(None, notes)), group="time"))
    return charts


def _series(run: Run, number: int) -> list[Row]:
    rows = []
    for point in run.items("result.series"):
        t, rate = finite(point.get("t_s")), finite(point.get("gib_s"))
        if t is None or rate is None:
            continue
        line = f"{number}.{finite(point.get('repeat')) or 0:.0f}"
        rows.append({"run": number + 1, "repeat": int(finite(point.get("repeat")) or 0) + 1, "line": line, "t_s": t, "gib_s": rate,
                     "iops": finite(point.get("iops")), "latency_us_p99": finite(point.get("latency_us_p99")),
                     "cores_busy": finite(point.get("cores_busy")), "warmup": point.get("warmup") is True})  # fmt: skip
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
            thinned.append({**part[-1], "gib_s": statistics.fmean(r["gib_s"] for r in part), "warmup": part[0]["warmup"]})
    return thinned


def _time_drawer(study: Study, rows: list[Row]) -> Callable[[], Any]:
    def draw() -> Any:
        import altair as alt

        shown = _visible(study, rows)
        x = alt.X("t_s:Q", title="Seconds", scale=alt.Scale(nice=False, zero=True), axis=alt.Axis(grid=False, tickCount=6))
        y = alt.Y("gib_s:Q", title=None, scale=alt.Scale(zero=True), axis=_axis(""))
        base = alt.Chart(alt.Data(values=shown))
        lines = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=_colour(study, lines=True), strokeDash=_line_dash(study), detail="line:N")
        warm = max((r["t_s"] for r in shown if r["warmup"]), default=0.0)
        if not warm:
            return lines.properties(width=WIDTH, height=HEIGHT)
        area = alt.Chart(alt.Data(values=[{"from": 0, "to": warm}])).mark_rect(color=SHADE, opacity=1).encode(x=alt.X("from:Q", title="Seconds"), x2="to:Q")
        return (area + lines).properties(width=WIDTH, height=HEIGHT)

    return draw
