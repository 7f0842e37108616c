"""Emulated training on the page: utilisation by number of accelerators, and a paper's matrix beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from forebay import numbers
from forebay.report import marks
from forebay.report.documents import Section, command_line
from forebay.report.load import Entry
from forebay.report.marks import Chart, Row
from forebay.report.published import BLANK, NOT_HERE, rows, sources
from forebay.report.runs import Run, finite
from forebay.report.tables import Cell, Notes, Table, text

# Presets of `forebay emulate matrix` → the published table that their cells stand beside.
MATRICES = {"solidigm-mlperf": "tables/mlperf_storage.csv"}
ROWS_MAX = 400
FEW_STEPS = "too few steps for the rules' formula"
NONE_PASSES = "not even one accelerator passes"
MATRIX_FOOT = (
    "Where one more drive gains nothing, the paper's own host limited the published cell. Several published cells are faster "
    "than the drives can read: part of the data came from the page cache. Their throughput follows from accelerators and AU."
)


def is_training(entry: Entry) -> bool:
    return isinstance(entry.record.get("training"), dict)


def name(entry: Entry) -> str:
    """`unet3d, 8 × H100`."""
    run = Run(entry)
    number = numbers.whole(run.number("training.accelerators") or 0)
    return f"{run.text('training.workload', '?')}, {number} × {run.text('training.accelerator', '?').upper()}"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """A section per matrix, then one per workload on an accelerator."""
    made = []
    matrices: dict[str, list[Run]] = {}
    others: dict[tuple[str, str], list[Run]] = {}
    for entry in entries:
        run = Run(entry)
        if entry.preset in MATRICES and "drive" in entry.point:
            matrices.setdefault(str(entry.preset), []).append(run)
        else:
            key = (run.text("training.workload", "?"), run.text("training.accelerator", "?"))
            others.setdefault(key, []).append(run)
    for number, (preset, runs) in enumerate(matrices.items(), 1):
        made.append(matrix(f"matrix-{number}", preset, runs, notes))
    for number, ((workload, accelerator), runs) in enumerate(sorted(others.items()), 1):
        made.append(workload_section(f"training-{number}", workload, accelerator, runs, notes))
    return made


# A workload ---------------------------------------------------------------------------------------------


def workload_section(ident: str, workload: str, accelerator: str, runs: list[Run], notes: Notes) -> Section:
    title = f"{workload} on {accelerator.upper()}"
    charts = [c for c in (utilisation(ident, title, runs),) if c]
    commands = [command_line(run.at("command")) for run in runs]
    return Section(
        ident, title, finding(title, runs), "", [runs_table(ident, title, runs, notes)], facts(runs),
        next((c for c in commands if c), ""), charts,
    )  # fmt: skip


def finding(title: str, runs: list[Run]) -> str:
    """The greatest number that passes, by a search where there was one."""
    searched = [n for run in runs if (n := run.number("search.accelerators")) is not None]
    passing = [n for run in runs if run.at("training.passes") is True and (n := run.number("training.accelerators"))]
    computed = "" if all(r.text("origin", "measured") == "measured" for r in runs) else " (simulated runs included)"
    if searched:
        return f"{max(searched):,.0f} × {title} pass, as a search found{computed}"
    if passing:
        return f"{max(passing):,.0f} × {title} pass{computed}"
    return f"no run of {title} reaches the required utilisation{computed}"


def facts(runs: list[Run]) -> list[tuple[str, str]]:
    def all_of(path: str) -> str:
        return ", ".join(dict.fromkeys(run.text(path) for run in runs if run.text(path)))

    limits = dict.fromkeys(limit for run in runs if (limit := run.text("search.limit.text")))
    found = [("Rules", all_of("training.rule_set")), ("Level", all_of("training.level")), ("Label", all_of("training.label"))]
    return [(k, v) for k, v in [*found, ("Limit", "; ".join(limits))] if v]


def points(runs: list[Run]) -> list[Row]:
    """AU by number of accelerators: a search's own curve, else the runs."""
    made: list[Row] = []
    for run in runs:
        source = run.text("job.source", "?")
        for point in run.items("training.curve") or [run.at("training") or {}]:
            number, au = finite(point.get("accelerators")), finite(point.get("au_pct"))
            if number is not None and au is not None:
                row = {"series": source, "accelerators": int(number), "au_pct": au}
                made.append({**row, "passes": point.get("passes") is True})
    return sorted(made, key=lambda r: (r["series"], r["accelerators"]))


def utilisation(ident: str, title: str, runs: list[Run]) -> Chart | None:
    made = points(runs)
    if len({r["accelerators"] for r in made}) < 2:
        return None
    least = next((v for run in runs if (v := run.number("training.au_pct_min")) is not None), None)
    best = max((r["accelerators"] for r in made if r["passes"]), default=0)
    desc = f"Utilisation of {title} by number of accelerators, in per cent; up to {best} pass."
    note = f"Dashed: {least:g} %, the minimum." if least is not None else ""
    draw = _drawer(made, "accelerators", "au_pct", "accelerators", "%", least)
    return Chart(f"{ident}-au", "Utilisation (AU) by number of accelerators, %", desc, made, draw, note)


def runs_table(ident: str, title: str, runs: list[Run], notes: Notes) -> Table:
    columns = ["Source", "Accelerators", "AU %", "Samples/s", "MiB/s"]
    columns += ["Waited for storage", "parsing", "processors", "Cores busy"]
    body = []
    for run in sorted(runs, key=lambda r: (r.text("job.source"), r.number("training.accelerators") or 0))[:ROWS_MAX]:
        au = run.number("training.au_pct")
        passes = "passes" if run.at("training.passes") is True else "fails"
        waited = {k: run.number(f"training.waited.{k}") or 0.0 for k in ("storage_s", "parse_s", "cpu_s", "barrier_s")}
        total = sum(waited.values())
        cells = [text(run.text("job.source", "?"), "" if run.text("origin") == "measured" else run.text("origin"))]
        cells.append(Cell(numbers.whole(run.number("training.accelerators") or 0)))
        cells.append(notes.missing(FEW_STEPS) if au is None else Cell(f"{au:.2f}", passes))
        cells.append(notes.value(run.number("training.samples_per_s"), numbers.significant, FEW_STEPS))
        cells.append(notes.value(run.number("training.throughput_mib_s"), numbers.significant, FEW_STEPS))
        shares = [waited[key] / total if total else 0.0 for key in ("storage_s", "parse_s", "cpu_s")]
        cells += [Cell(numbers.percent(share)) for share in shares]
        busy = run.number("training.headroom.cores_busy")
        cells.append(notes.value(busy, numbers.significant, run.reason("training.headroom")))
        body.append(cells)
    foot = "Shares of the time in which accelerators waited; for the rest of it, they waited for each other."
    return Table(f"{ident}-runs", f"Runs of {title}", [], columns, body, foot)


# A matrix -----------------------------------------------------------------------------------------------


def matrix(ident: str, preset: str, runs: list[Run], notes: Notes) -> Section:
    theirs = rows(MATRICES[preset])
    charts = []
    for number, workload in enumerate(dict.fromkeys(r["workload"] for r in theirs), 1):
        for metric in METRICS:
            chart = by_drives(f"{ident}-{number}", workload, metric, runs, theirs)
            if chart is not None:
                charts.append(chart)
    simulated = sum(run.text("origin", "measured") != "measured" for run in runs)
    origin = f", {simulated} of them simulated" if simulated else ""
    finding = f"{len(runs)} cells{origin}: accelerators that pass, by workload, drive and number of drives"
    label = next((run.text("training.label") for run in runs if run.text("training.label")), "")
    commands = [command_line(run.at("command")) for run in runs]
    return Section(
        ident, preset, finding, "", [matrix_table(ident, runs, theirs, notes)], [("Label", label)] if label else [],
        next((c for c in commands if c), ""), charts,
    )  # fmt: skip


# (name, title, unit, ours, the published column)
METRICS: tuple[tuple[str, str, str, Callable[[Run], float | None], str], ...] = (
    ("accelerators", "H100s that pass", "", lambda r: r.number("search.accelerators"), "accelerators_h100_emulated"),
    ("throughput", "Throughput, MiB/s", "MiB/s", lambda r: _throughput(r), "throughput_mibps"),
)


def by_drives(ident: str, workload: str, metric: Any, runs: list[Run], theirs: list[dict[str, str]]) -> Chart | None:
    """One line per drive, solid ours and dashed theirs; broken where a cell is blank, and a cross where the run failed."""
    called, title, unit, read, column = metric
    made: list[Row] = []
    for run in runs:
        point = run.entry.point
        value = read(run)
        if point.get("workload") == workload and value is not None:
            series, passes = f"{point.get('drive')}, here", run.number("search.accelerators") != 0
            made.append(_point(series, int(point.get("drives") or 0), value, passes, 0))
    for row, part in _parted([row for row in theirs if row["workload"] == workload], column):
        value = finite(_number(row[column]))
        assert value is not None
        made.append(_point(f"{row['drive']}, published", int(row["n_drives"]), value, row["valid"] != "false", part))
    if not any(r["series"].endswith("here") for r in made):
        return None
    failed = " A cross is a run that failed." if any(r["result"] == FAILS for r in made) else ""
    desc = f"{title} for {workload} by number of drives, {len({r['series'] for r in made})} series.{failed}"
    draw = _drawer(made, "drives", "value", "drives", unit, None)
    return Chart(f"{ident}-{called}", f"{workload}: {title}", desc, made, draw)


PASSES, FAILS = "passes", "fails"


def _point(series: str, drives: int, value: float, passes: bool, part: int) -> Row:
    """A point of a line; those of one `part` are joined, and one that failed to none."""
    part = part if passes else -1 - drives
    return {"series": series, "drives": drives, "value": value, "result": PASSES if passes else FAILS, "part": part}


def _parted(cells: Sequence[dict[str, str]], column: str) -> Iterator[tuple[dict[str, str], int]]:
    """The cells that have a value, each with the number of its part: a blank one between two parts them."""
    part = 0
    for row in sorted(cells, key=lambda r: (r["drive"], int(r["n_drives"]))):
        if finite(_number(row[column])) is None:
            part += 1
        else:
            yield row, part


def matrix_table(ident: str, runs: list[Run], theirs: list[dict[str, str]], notes: Notes) -> Table:
    found = {(r.entry.point.get("workload"), r.entry.point.get("drive"), r.entry.point.get("drives")): r for r in runs}
    columns = ["Workload", "Drive", "Drives", "H100s", "AU %", "MiB/s", "H100s", "AU %", "MiB/s"]
    groups = [Cell("", number=False, span=3), Cell("here", number=False, span=3), Cell("published", number=False, span=3)]
    body = []
    for row in theirs:
        run = found.get((row["workload"], row["drive"], int(row["n_drives"])))
        cells = [text(row["workload"]), text(row["drive"]), Cell(row["n_drives"])]
        cells += _ours(run, notes) + _theirs(row, notes)
        body.append(cells)
    source = f"{sources(theirs)} {MATRIX_FOOT}"
    return Table(f"{ident}-published", "Published cells beside ours", groups, columns, body, source)


def _ours(run: Run | None, notes: Notes) -> list[Cell]:
    if run is None:
        return [notes.missing(NOT_HERE)] * 3
    kind = run.text("origin", "measured")
    first = notes.value(run.number("search.accelerators"), numbers.whole, NOT_HERE)
    if first.note is None and kind != "measured":
        first.sub = kind
    return [
        first,
        notes.value(run.number("search.au_pct"), lambda v: f"{v:.1f}", FEW_STEPS),
        notes.value(_throughput(run), numbers.whole, NONE_PASSES if run.number("search.accelerators") == 0 else FEW_STEPS),
    ]


def _throughput(run: Run) -> float | None:
    """Returns the throughput of the number that passes. None where none does: that run's rate is of one that failed."""
    return None if run.number("search.accelerators") == 0 else run.number("training.throughput_mib_s")


def _theirs(row: dict[str, str], notes: Notes) -> list[Cell]:
    utilisations = [u for n in range(1, 6) if (u := _number(row[f"au_{n}_pct"])) is not None]
    mean = sum(utilisations) / len(utilisations) if utilisations else None
    failed = "fails" if row["valid"] == "false" else ""
    number = _number(row["accelerators_h100_emulated"])
    return [
        notes.missing(BLANK) if number is None else Cell(numbers.whole(number), failed),
        notes.value(mean, lambda v: f"{v:.1f}", BLANK),
        notes.value(_number(row["throughput_mibps"]), numbers.whole, BLANK),
    ]


def _number(value: str | None) -> float | None:
    try:
        return finite(float(value)) if value else None
    except ValueError:
        return None


def _drawer(made: list[Row], x: str, y: str, title: str, unit: str, line: float | None) -> Callable[[], Any]:
    def draw() -> Any:
        import altair as alt

        series = list(dict.fromkeys(r["series"] for r in made))[: marks.SERIES_MAX]
        drives = list(dict.fromkeys(s.rpartition(", ")[0] or s for s in series))
        colours = [marks.PALETTE[drives.index(s.rpartition(", ")[0] or s)] for s in series]
        dashes = [[5, 4] if s.endswith(", published") else [1, 0] for s in series]
        legend = None
        if len(series) > 1:
            legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=300, symbolType="stroke", symbolSize=400)
        colour = alt.Color("series:N", scale=alt.Scale(domain=series, range=colours), legend=legend)
        dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=series, range=dashes), legend=legend)
        base = marks.chart([r for r in made if r["series"] in series])
        across = alt.X(f"{x}:Q", title=title, axis=alt.Axis(tickMinStep=1, ticks=False, labelOverlap=True))
        up = alt.Y(f"{y}:Q", title=None, scale=alt.Scale(zero=True), axis=marks.plain_axis(unit))
        lines = base.mark_line(strokeWidth=2).encode(x=across, y=up, color=colour, strokeDash=dash)
        points = base.mark_point(filled=True, size=50, opacity=1).encode(x=across, y=up, color=colour)
        if any("part" in r for r in made):
            lines = lines.encode(detail="part:N")
            # A run that failed is no place on a line of what passes.
            shape = alt.Shape("result:N", scale=alt.Scale(domain=[PASSES, FAILS], range=["circle", "cross"]), legend=None)
            points = points.encode(shape=shape)
        picture = lines + points
        if line is not None:
            rule = marks.chart([{"y": line}])
            picture += rule.mark_rule(strokeDash=[4, 4], color=marks.MUTED).encode(y="y:Q")
        return picture.properties(width=marks.WIDTH, height=marks.HEIGHT)

    return draw
