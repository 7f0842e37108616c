"""Trainings over drives on the page: minutes and speed-up by number of drives, measured over what was planned before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forebay import numbers
from forebay.report import marks
from forebay.report.documents import Section, command_line
from forebay.report.load import Entry
from forebay.report.marks import Chart, Row
from forebay.report.published import BLANK, TRAINING_TIME, rows, sources
from forebay.report.runs import Run
from forebay.report.tables import Cell, Notes, Table, text
from forebay.train import scaling

IDENT = "drive-scaling"
KINDS = {"measured": "here", "predicted": "planned", "published": "published"}
METRICS = (("minutes", "Minutes to train", "min"), ("speed_up", "Speed-up over the fewest drives", "times"))
FOOT = (
    "Supply: of one GPU, simulated. Minutes: DLRMv2's samples until it converges, at the measured rate of as many GPUs as the "
    "system has, and its evaluations. Planned: by forebay plan, before anything was measured. Speed-up: over the fewest drives "
    "of that kind; it hides which system is slower. Of other models than DLRM it is that of the rate, and planned by the law of "
    "supply at their own peak. MLPerf-style, unverified."
)
NOTE = "Lines: planned, with its 80 % interval where it is shaded. Filled: measured. Crosses: published."
UNKNOWN = "how many samples this model takes to converge isn't known here"
# Of a point, what rows are made of.
NEEDED = ("system", "model", "drive")


def is_scaling(entry: Entry) -> bool:
    """A finished point of such a sweep, whole."""
    point, drives = entry.point, entry.point.get("drives")
    whole = all(isinstance(point.get(key), str) for key in NEEDED) and type(drives) is int and drives > 0
    planned = ("samples", "evaluations_s", *(f"predicted_{key}" for key in ("minutes", "p10", "p90")))
    figures = ("gpus", "supply_gib_s", *(("predicted_samples_per_s",) if "predicted_samples_per_s" in point else planned))
    return isinstance(entry.record.get("train"), dict) and whole and all(_positive(point.get(key)) for key in figures)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12


def name(entry: Entry) -> str:
    """`toy, 4 × D7-PS1010 of D74H-7U`."""
    point = entry.point
    return f"{point['model']}, {point['drives']} × {point['drive']} of {point['system']}"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """One section for all systems; none without a rate."""
    runs = [Run(entry) for entry in entries]
    rates = [(r.entry.point, r.number("train.samples_per_s"), r.number("train.peak_samples_per_s")) for r in runs]
    made = scaling.rows(rates, rows(TRAINING_TIME))
    if not made:
        return []
    enough = [scaling.sentence(row) for row in scaling.enough_of(made)]
    best = max(made, key=lambda row: row["speed_up"])
    finding = (
        f"{best['model']} trains {numbers.ratio(best['speed_up'])} times as fast at a simulated supply of {best['drives']} × "
        f"{best['drive']} as of the fewest, on {best['system']}"
    )
    advice = scaling.advice_of([(run.entry.point, run.entry.record["train"]) for run in runs])
    facts = [("Enough", said) for said in enough] + [("Storage", f"{row['model']}: {row['text']}") for row in advice]
    facts += [("Note", said) for said in [scaling.unsteady(made)] if said]
    command = next((c for c in (command_line(run.at("command")) for run in runs) if c), "")
    return [Section(IDENT, "Training by drives", finding, "", [_table(made, notes)], facts, command, _charts(made))]


def _table(made: Sequence[Row], notes: Notes) -> Table:
    columns = ["System, model", "Drives", "Supply, GiB/s", "Samples/s"]
    columns += [*("Minutes", "Planned", "Published"), *("Speed-up", "Planned", "Published")]
    body = []
    for row in made:
        times = notes.value(row["speed_up"], numbers.ratio, BLANK)
        ends = [numbers.significant(row[f"predicted_{end}"]) for end in ("p10", "p90") if row["minutes"]]
        scaled = f"scaled by {numbers.significant(row['factor'])}" if row["factor"] else ""
        scaled = "four times the need, and not more" if row["capped"] else scaled
        share = f"{numbers.percent(row['of_peak'])} of its peak" if row["of_peak"] else ""
        body.append([
            text(row["system"], row["model"]),
            text(f"{row['drives']} × {row['drive']}"),
            Cell(numbers.significant(row["supply_gib_s"]), scaled),
            Cell(numbers.whole(row["samples_per_s"]), share),
            notes.value(row["minutes"], numbers.significant, UNKNOWN),
            Cell(numbers.significant(row["predicted_minutes"]), " to ".join(ends)) if ends else notes.value(None, str, UNKNOWN),
            notes.value(row["published_minutes"], numbers.significant, BLANK),
            times,
            Cell(numbers.ratio(row["predicted_speed_up"])),
            notes.value(row["published_speed_up"], numbers.ratio, BLANK),
        ])  # fmt: skip
    return Table(f"{IDENT}-points", "By drives", [], columns, body, f"{FOOT} {sources(rows(TRAINING_TIME))}")


def _charts(made: Sequence[Row]) -> list[Chart]:
    """Minutes and speed-up, all systems and drives in each."""
    found = []
    for metric, title, unit in METRICS:
        points = [point for row in made for point in _points(row, metric)]
        if len({p["drives"] for p in points}) < 2:
            continue
        series = list(dict.fromkeys(p["series"] for p in points))
        desc = f"{title} by number of drives, {', '.join(series)}: measured, planned and published."
        found.append(Chart(f"{IDENT}-{metric.replace('_', '-')}", title, desc, points, _drawer(points, series, unit), NOTE))
    return found


def _points(row: Row, metric: str) -> list[Row]:
    series = f"{row['drive']}, {row['system']}, {row['model']}"
    made = []
    for kind, prefix in (("measured", ""), ("predicted", "predicted_"), ("published", "published_")):
        value = row[f"{prefix}{metric}"]
        if value is not None:
            bounds = kind == "predicted" and metric == "minutes"
            low, high = (row["predicted_p10"], row["predicted_p90"]) if bounds else (None, None)
            point = {"series": series, "drives": row["drives"], "value": value, "kind": KINDS[kind]}
            made.append({**point, "low": low, "high": high})
    return made


def _drawer(points: Sequence[Row], series: Sequence[str], unit: str) -> Callable[[], Any]:
    def draw() -> Any:
        import altair as alt

        shown = list(series)[: marks.SERIES_MAX]
        base = marks.chart([p for p in points if p["series"] in shown])
        looks: dict[str, Any] = {"orient": "bottom", "columns": 1, "labelLimit": 340}
        legend = alt.Legend(title=None, symbolType="stroke", symbolSize=400, symbolOpacity=1, **looks)
        inks, dashes = list(marks.PALETTE[: len(shown)]), list(marks.DASHES[: len(shown)])
        colour = alt.Color("series:N", scale=alt.Scale(domain=shown, range=inks), legend=legend)
        dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=shown, range=dashes), legend=legend)
        kinds = alt.Scale(domain=list(KINDS.values()), range=["circle", "square", "cross"])
        across = alt.X("drives:Q", title="drives", axis=alt.Axis(tickMinStep=1, ticks=False))
        # From the minutes of many fast drives to the hours of one slow one.
        scale = alt.Scale(type="log", nice=False) if unit == "min" else alt.Scale(zero=True)
        up = alt.Y("value:Q", title=None, scale=scale, axis=marks.plain_axis(unit))
        planned = base.transform_filter(f"datum.kind == '{KINDS['predicted']}'")
        band = planned.transform_filter("isValid(datum.low)").mark_area(opacity=0.15)
        lines = planned.mark_line(strokeWidth=1.5).encode(x=across, y=up, color=colour, strokeDash=dash)
        dots = base.transform_filter(f"datum.kind != '{KINDS['predicted']}'").mark_point(filled=True, size=60, opacity=1)
        dots = dots.encode(x=across, y=up, color=colour, shape=alt.Shape("kind:N", scale=kinds, legend=None))
        shaded = band.encode(x=across, y=alt.Y("low:Q", title=None), y2="high:Q", color=colour)
        return (shaded + lines + dots).properties(width=marks.WIDTH, height=marks.HEIGHT)

    return draw
