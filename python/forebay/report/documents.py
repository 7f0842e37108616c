"""Comparisons (forebay.compare/1) and tunings (forebay.tune/1) as tables."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay import numbers
from forebay.figures import WAYS
from forebay.metrics import OF_WAYS
from forebay.report import marks
from forebay.report.marks import Chart, Row
from forebay.report.runs import finite
from forebay.report.tables import Cell, Notes, Table, text

ROWS_MAX = 200
METRICS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "throughput": ("Throughput", "GiB/s", numbers.rate),
    "iops": ("I/Os per second", "1/s", numbers.short),
    "latency_mean": ("Mean latency", "", numbers.micros),
    "latency_p50": ("Median latency", "", numbers.micros),
    "latency_p90": ("p90 latency", "", numbers.micros),
    "latency_p95": ("p95 latency", "", numbers.micros),
    "latency_p99": ("p99 latency", "", numbers.micros),
    "latency_p999": ("p99.9 latency", "", numbers.micros),
    "latency_p9999": ("p99.99 latency", "", numbers.micros),
    "latency_max": ("Longest latency", "", numbers.micros),
    "cpu": ("CPU", "CPU-s/GiB", numbers.significant),
    "energy": ("Energy", "J/GiB", numbers.significant),
    "power": ("Power", "W", numbers.significant),
    "train.samples_per_s": ("Training", "samples/s", numbers.whole),
    "train.seconds_to_target": ("Time to the target", "", numbers.seconds),
    "train.cpu": ("CPU, model and all", "CPU-s/GiB", numbers.significant),
    "train.feed_cpu": ("CPU of the loader", "CPU-s/GiB", numbers.significant),
    "train.peak_samples_per_s": ("Own peak", "samples/s", numbers.whole),
    "infer.queries_per_s": ("Queries", "1/s", numbers.short),
    "infer.latency_p50": ("p50 latency", "ms", numbers.significant),
    "infer.latency_p90": ("p90 latency", "ms", numbers.significant),
    "infer.latency_p99": ("p99 latency", "ms", numbers.significant),
    "infer.load_s": ("Time to load", "", numbers.seconds),
    "infer.coldstart_s": ("Cold start", "", numbers.seconds),
    "kvcache.read_rate": ("Reads in the window", "GiB/s", numbers.rate),
    "kvcache.write_rate": ("Writes in the window", "GiB/s", numbers.rate),
    **{
        f"kvcache.{way}_{p}": (f"{p} of an entry's {way}", "ms", numbers.significant)
        for way in ("read", "write") for p in ("p50", "p95", "p99")
    },
    "kvcache.tokens_per_s": ("Storage tokens", "1/s", numbers.short),
    **{
        f"replay.{name}_{p}": (f"{p} of {title}", "", numbers.seconds)
        for name, title in (("load", "loads"), ("ttft", "TTFT")) for p in ("p50", "p95", "p99", "mean")
    },
    "replay.cpu": ("CPU", "CPU-s/GiB", numbers.significant),
    "blocks.load_rate": ("Loads into pages", "GiB/s", numbers.rate),
    "blocks.store_rate": ("Stores from pages", "GiB/s", numbers.rate),
    "blocks.load_cpu": ("CPU of loads", "CPU-s/GiB", numbers.significant),
    "blocks.ttft_p95": ("p95 of TTFT", "", numbers.seconds),
    "blocks.exposed_p95": ("p95 of what isn't hidden", "", numbers.seconds),
}
METRICS |= {
    f"{way}.{name}": (f"{way.capitalize()}s: {title[0].lower() + title[1:] if title[0] != 'I' else title}", unit, show)
    for way in WAYS
    for name, (title, unit, show) in METRICS.items()
    if f"{way}.{name}" in OF_WAYS
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
    charts: list[Chart] = field(default_factory=list)


def comparison(document: dict[str, Any], number: int, notes: Notes) -> Section:
    ident = f"compare-{number}"
    finding, next = _verdict(document)
    facts = []
    for side in ("a", "b", "c"):
        if side in document or side != "c":
            facts.append((side.upper(), _side(document.get(side))))
    if isinstance(document.get("method"), str):
        facts.append(("Method", document["method"]))
    asked = finite(document.get("until_ci_pct"))
    if asked is not None:
        facts.append(("Asked for", f"an interval within ±{asked:g} %"))
    if document.get("interrupted") is True:
        facts.append(("Note", "interrupted; the pairs before that are valid"))
    error = document.get("error")
    if isinstance(error, dict):
        facts.append(("Note", f"ended by an error: {error.get('asked')}: {error.get('found')}"))
    for name, other in _against(document):
        judgements = [other, *(each for each in other.get("also") or () if isinstance(each, dict))]
        facts += [(f"{name} against A", _verdict(each)[0]) for each in judgements]
    tables = [_ratios(document, ident, notes), _points(document, ident, notes)]
    also = [each for each in document.get("also") or () if isinstance(each, dict)]
    for judged in also:
        facts.append(("Also", _verdict(judged)[0]))
        tables.append(_points({"ratio": document.get("ratio"), **judged}, f"{ident}-{judged.get('metric')}", notes))
    tables = [*tables, _limits(document, ident, notes)]
    return Section(
        ident, f"Comparison {number}", finding, next, [t for t in tables if t], facts, command_line(document.get("command"))
    )


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
    settings = (
        settings
        if isinstance(settings, str)
        else " ".join(f"{k}={v}" for k, v in settings.items())
        if isinstance(settings, dict)
        else ""
    )
    file = side.get("file")
    settings = settings or (file if isinstance(file, str) else "")
    how = "; ".join(r for r in ran if isinstance(r, str)) if isinstance(ran, list) else ""
    return f"{settings} (ran: {how})" if how and settings else settings or how or numbers.DASH


def _ratios(document: dict[str, Any], ident: str, notes: Notes) -> Table | None:
    ratios = document.get("ratios")
    if not isinstance(ratios, dict) or not ratios:
        return None
    further = {side: found.get("ratios") for side, found in _against(document)}
    others = {"B": ratios, **{side: found for side, found in further.items() if isinstance(found, dict)}}
    rows = []
    for name, ratio in ratios.items():
        title, unit, show = METRICS.get(name, (str(name), "", numbers.significant))
        cells = [text(title, unit), *[_median(document.get(side.lower()), name, show, notes) for side in ("A", *others)]]
        cells += [_ratio(found.get(name), notes) for found in others.values()]
        pairs = finite(ratio.get("pairs")) if isinstance(ratio, dict) else None
        rows.append([*cells, Cell(f"{pairs:.0f}" if pairs is not None else numbers.DASH)])
    everyone = " and ".join(", ".join(("A", *others)).rsplit(", ", 1))
    foot = f"{everyone} ran in turn, which cancels drift of the machine. Under each ratio: its 95 % interval."
    columns = ["Figure", *(f"{side}, median" for side in ("A", *others)), *(f"A ÷ {side}" for side in others), "Pairs"]
    return Table(f"{ident}-ratios", f"A against {' and '.join(others)}", [], columns, rows, foot)


def _against(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The sides beyond B that A was compared with, and what was found."""
    against = document.get("against")
    found = [each for each in against if isinstance(each, dict)] if isinstance(against, list) else []
    return [(each["side"], each) for each in found if isinstance(each.get("side"), str)]


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


def _points(document: dict[str, Any], ident: str, notes: Notes) -> Table | None:
    """Two result files set against each other, point by point."""
    points = document.get("points")
    points = [p for p in points if isinstance(p, dict)] if isinstance(points, list) else []
    if not points:
        return None
    title, unit, show = METRICS.get(
        str(document.get("metric")), (str(document.get("metric")), "", numbers.significant)
    )
    rows = []
    for point in points[:ROWS_MAX]:
        runs = point.get("runs")
        counted = " + ".join(str(r) for r in runs) if isinstance(runs, list) else numbers.DASH
        verdict = str(point.get("verdict") or numbers.DASH)
        cells = [notes.value(finite(point.get(side)), show, verdict) for side in ("a", "b")]
        rows.append(
            [
                text(str(point.get("name") or point.get("key") or "all")),
                *cells,
                _ratio(point.get("ratio"), notes),
                Cell(counted),
                text(verdict),
            ]
        )
    overall = document.get("overall")
    if isinstance(overall, dict):
        rows.append(
            [
                text("all points together"),
                Cell(""),
                Cell(""),
                _ratio(overall, notes),
                Cell(""),
                text(str(overall.get("verdict") or "")),
            ]
        )
    foot = "Under each ratio: its interval." + (
        f" The first {ROWS_MAX} of {len(points)} points are shown." if len(points) > ROWS_MAX else ""
    )
    # Documents that don't say which quotient they hold are of versions that saved the other one.
    ratio = document.get("ratio") if document.get("ratio") == "A ÷ B" else "B ÷ A"
    columns = ["Point", "A, median", "B, median", str(ratio), "Runs", "Verdict"]
    return Table(
        f"{ident}-points", f"{title}{', ' + unit if unit else ''}, point by point", [], columns, rows, foot
    )


def _limits(document: dict[str, Any], ident: str, notes: Notes) -> Table | None:
    """Limits of B, and its figures at each point."""
    limits = document.get("limits")
    rows = []
    for limit in limits if isinstance(limits, list) else []:
        points = limit.get("points") if isinstance(limit, dict) else None
        for point in points if isinstance(points, list) else []:
            if isinstance(point, dict):
                verdict = str(point.get("verdict") or numbers.DASH)
                value = notes.value(finite(point.get("value")), numbers.significant, verdict)
                cells = [text(str(limit.get("limit")), str(limit.get("unit") or "")), text(str(point.get("name"))), value]
                rows.append([*cells, text(verdict)])
    if not rows:
        return None
    return Table(f"{ident}-limits", "Limits", [], ["Limit", "Point", "Median", "Verdict"], rows[:ROWS_MAX], "")


AXES = {
    "io_bytes": ("io-size", "Block size", numbers.size),
    "workers": ("workers", "Workers", numbers.whole),
    "depth": ("depth", "Depth", numbers.whole),
}


def tuning(document: dict[str, Any], number: int, notes: Notes) -> Section:
    ident = f"tune-{number}"
    pick, peak = (part if isinstance(part := document.get(key), dict) else {} for key in ("pick", "peak"))
    facts = [("Picked", _setting(pick)), ("The peak", _setting(peak))]
    asked = finite(document.get("share_asked"))
    if asked is not None:
        facts.append(("Asked for", f"{numbers.percent(asked)} of the peak at the least CPU"))
    failed = document.get("failed")
    if isinstance(failed, list) and failed:
        facts.append(("Couldn't run", f"{len(failed)} settings"))
    if document.get("confirmed") is False:
        facts.append(("Note", "not confirmed by repeats, because the search ended early"))
    missing = document.get("missing")
    facts += [("Note", str(why)) for why in missing.values()] if isinstance(missing, dict) else []
    bench = document.get("bench")
    command = bench if isinstance(bench, str) else command_line(bench)
    charts = [c for axis in AXES for c in _curve(document, ident, axis, pick)]
    return Section(
        ident,
        f"Tuning {number}",
        _picked(pick),
        "",
        [_probes(document, ident, notes)],
        facts,
        command,
        charts,
    )


def _picked(pick: dict[str, Any]) -> str:
    rate, share = finite(pick.get("throughput_gib_s")), finite(pick.get("share_of_peak"))
    if rate is None:
        return "No setting stood out."
    text = f"{_where(pick)}: {numbers.rate(rate)} GiB/s"
    return text + (f", {share * 100:.1f} % of the peak" if share is not None else "")


def _where(row: dict[str, Any]) -> str:
    words = {
        "io_bytes": lambda v: f"{numbers.size(v)} blocks",
        "workers": lambda v: f"{v:.0f} workers",
        "depth": lambda v: f"depth {v:.0f}",
    }
    return ", ".join(say(value) for key, say in words.items() if (value := finite(row.get(key))) is not None)


def _setting(row: dict[str, Any]) -> str:
    rate, cost, watts = (finite(row.get(key)) for key in ("throughput_gib_s", "cpu_s_per_gib", "watts"))
    parts = [_where(row)]
    parts += [f"{numbers.rate(rate)} GiB/s"] if rate is not None else []
    parts += [f"{numbers.significant(cost)} CPU-s/GiB"] if cost is not None else []
    parts += [f"{numbers.significant(watts)} W"] if watts is not None else []
    return "; ".join(p for p in parts if p) or numbers.DASH


def _probes(document: dict[str, Any], ident: str, notes: Notes) -> Table:
    probes = document.get("probes")
    probes = [p for p in probes if isinstance(p, dict)] if isinstance(probes, list) else []
    rows = []
    for probe in probes[:ROWS_MAX]:
        values = [
            finite(probe.get(key))
            for key in ("io_bytes", "workers", "depth", "throughput_gib_s", "cpu_s_per_gib", "watts", "runs")
        ]
        shows = (
            numbers.size,
            numbers.whole,
            numbers.whole,
            numbers.rate,
            numbers.significant,
            numbers.significant,
            numbers.whole,
        )
        rows.append(
            [notes.value(value, show, NOT_MEASURED) for value, show in zip(values, shows, strict=True)]
        )
    columns = ["Block size", "Workers", "Depth", "GiB/s", "CPU-s/GiB", "Watts", "Runs"]
    foot = f"The first {ROWS_MAX} of {len(probes)} settings are shown." if len(probes) > ROWS_MAX else ""
    return Table(f"{ident}-probes", "Every setting that was tried", [], columns, rows, foot)


def _curve(document: dict[str, Any], ident: str, axis: str, pick: dict[str, Any]) -> list[Chart]:
    """Throughput and CPU along one field, all others as picked; the pick is ringed."""
    name, title, show = AXES[axis]
    curve = document.get("curve")
    found = curve.get(name) if isinstance(curve, dict) else None
    rows = (
        [r for r in found if isinstance(r, dict) and finite(r.get(axis)) is not None]
        if isinstance(found, list)
        else []
    )
    made = []
    for key, what, unit in (
        ("throughput_gib_s", "Throughput", "GiB/s"),
        ("cpu_s_per_gib", "CPU per GiB", "CPU-s/GiB"),
    ):
        kept = [
            {
                axis: r[axis],
                "place": show(float(r[axis])),
                "value": r[key],
                "unit": unit,
                "picked": r[axis] == pick.get(axis),
            }
            for r in rows
            if finite(r.get(key)) is not None
        ]
        if len(kept) > 1:
            desc = f"{what} in {unit} of {len(kept)} settings of {name}, the others as picked."
            chart = Chart(
                f"{ident}-{name}-{key.partition('_')[0]}",
                f"{what} by {title.lower()}, {unit}",
                desc,
                kept,
                _curve_drawer(kept, title),
            )
            chart.note = "Ringed: the pick."
            made.append(chart)
    return made


def _curve_drawer(rows: list[Row], title: str) -> Callable[[], Any]:
    def draw() -> Any:
        import altair as alt

        base = marks.chart(rows)
        labels = alt.Axis(labelAngle=0 if len(rows) <= 7 else -45, ticks=False)
        x = alt.X("place:N", sort=[r["place"] for r in rows], title=title, axis=labels)
        y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5))
        ink = marks.PALETTE[0]
        line = base.mark_line(strokeWidth=2, color=ink).encode(x=x, y=y)
        dots = base.mark_point(filled=True, size=58, opacity=1, color=ink).encode(x=x, y=y)
        ring = (
            base.transform_filter("datum.picked")
            .mark_point(size=300, strokeWidth=2, opacity=1, color=marks.INK)
            .encode(x=x, y=y)
        )
        return (line + dots + ring).properties(width=marks.WIDTH, height=marks.HEIGHT)

    return draw


def command_line(command: Any) -> str:
    """The words as a shell takes them."""
    return shlex.join(str(word) for word in command) if isinstance(command, list) else ""
