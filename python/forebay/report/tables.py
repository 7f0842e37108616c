"""The page's tables, as data: the text of each cell, or why it is empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forebay import numbers
from forebay.figures import WAYS
from forebay.flags import engine_name
from forebay.report.runs import Point, Run, Stat, Study

WIDE_SERIES_MAX = 3
# As page.css sets tables: .88rem, the padding of a cell on both sides, and the page's own.
REM_A_LETTER, REM_BETWEEN, REM_OF_MARGINS = 0.475, 1.4, 2.5
# The widths of windows, in rem, at which page.css tells that a table scrolls.
SCROLL_STEPS = (20, 26, 32, 38, 44, 50, 56, 62, 68)
RUN_ROWS_MAX = 400


@dataclass
class Cell:
    """`sub` is a second, smaller line. `note` numbers the footnote that says why the cell is empty."""

    text: str
    sub: str = ""
    note: int | None = None
    title: str = ""
    number: bool = True
    span: int = 1


@dataclass
class Table:
    id: str
    caption: str
    groups: list[Cell]
    columns: list[str]
    rows: list[list[Cell]]
    foot: str = ""

    @property
    def scrolls_below(self) -> str:
        """The width of the window in rem below which the table scrolls, of those that page.css knows; "" where it never does."""
        rows = [row for row in self.rows if len(row) == len(self.columns)][:RUN_ROWS_MAX]
        widths = [_rem(title, [row[at] for row in rows], at == 0) for at, title in enumerate(self.columns)]
        at = 0
        for group in self.groups:
            inside = sum(widths[at : at + group.span])
            widths[at] += max(0.0, _longest(group.text) * REM_A_LETTER + REM_BETWEEN - inside)
            at += group.span
        rem = sum(widths) + REM_OF_MARGINS
        return next((str(w) for w in SCROLL_STEPS if rem <= w), "always") if rem > SCROLL_STEPS[0] else ""


def _rem(title: str, cells: list[Cell], is_head: bool) -> float:
    """The least width of a column. Figures and the heads of rows stay on a line; other text breaks between words."""
    letters = [len(c.text) if is_head or c.number else _longest(c.text) for c in cells]
    small = [0.9 * (len(c.sub) if is_head or c.number else _longest(c.sub)) for c in cells]
    rem = max([0.9 * _longest(title), *letters, *small]) * REM_A_LETTER
    return max(rem, 0.0 if is_head or not cells or cells[0].number else 6.0) + REM_BETWEEN


def _longest(text: str) -> int:
    return max(map(len, text.split()), default=0)


@dataclass
class Notes:
    """Footnotes: every reason once, numbered in the order in which the page needs them."""

    reasons: list[str] = field(default_factory=list)

    def missing(self, reason: str) -> Cell:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return Cell(numbers.DASH, note=self.reasons.index(reason) + 1, title=reason)

    def cell(self, stat: Stat | None, show: Callable[[float], str], reason: str, sub: str = "") -> Cell:
        if stat is None:
            return self.missing(reason)
        return Cell(show(stat.value), sub or interval(stat, show), title=stat.kind or "")

    def value(self, value: float | None, show: Callable[[float], str], reason: str) -> Cell:
        return self.missing(reason) if value is None else Cell(show(value))


def interval(stat: Stat, show: Callable[[float], str]) -> str:
    if stat.low is None or stat.high is None:
        return ""
    low, high = show(stat.low), show(stat.high)
    return f"{low}–{high}" if low != high else f"±0 at {low}"


def text(value: str, sub: str = "") -> Cell:
    return Cell(value, sub, number=False)


def study_tables(study: Study, notes: Notes) -> list[Table]:
    """As in the papers: throughput and CPU by block size and path, with each ratio; then the details."""
    wide = study.axis.key and len(study.series) <= WIDE_SERIES_MAX
    first = _wide(study, notes) if wide else _long(study, notes)
    tables: list[Table | None] = [first, _latency(study, notes)]
    if study.is_about_latency:
        tables.reverse()
    tables += [_ways(study, notes), _batches(study, notes), _queries(study, notes), _files(study, notes)]
    tables += [_cpu(study, notes), _power(study)]
    return [table for table in tables if table]


THROUGHPUT, CPU_COST = "result.throughput_gib_s", "result.cpu.cpu_s_per_gib"


def _head(study: Study, x: float) -> Cell:
    """The row's place on the axis, with the concurrency it ran at."""
    workers, depths = (
        sorted({int(p.runs[0].number(f"job.{key}") or 0) for p in study.points if p.x == x})
        for key in ("workers", "depth")
    )
    sub = ""
    if study.axis.key == "io_bytes" and len(workers) == 1 and len(depths) == 1:
        sub = f"{workers[0]} × {depths[0]}"
    return text(study.axis.label(x), sub)


def _ratio(study: Study, x: float, series: str, path: str, notes: Notes) -> Cell:
    ours, base_name = study.point(x, series), study.baseline(series)
    base = study.point(x, base_name) if base_name else None
    if ours is None or base is None:
        return notes.missing(_no_base(study) if ours else NOT_RUN)
    mine, its = ours.stat(path), base.stat(path)
    if mine is None:
        return notes.missing(ours.reason(path))
    quotient = mine.over(its) if its else None
    return notes.cell(quotient, numbers.ratio, f"the {study.base} run's own value is missing")


def _no_base(study: Study) -> str:
    return f"this report has no {study.base} run with the same settings to divide by"


NOT_RUN = "this combination wasn't run"


def _cpu_cell(point: Point, notes: Notes) -> Cell:
    stat = point.stat(CPU_COST)
    if stat is None:
        return notes.missing(point.reason(CPU_COST))
    busy = point.stat("result.cpu.cores_busy")
    return notes.cell(
        stat, numbers.significant, "", sub=f"{numbers.significant(busy.value)} cores" if busy else ""
    )


def _wide(study: Study, notes: Notes) -> Table:
    """One row per size, two columns per series, two more per ratio to the base path."""
    compared = [s for s in study.series if study.baseline(s)]
    groups = [Cell("", number=False)]
    groups += [Cell(s, number=False, span=2) for s in study.series]
    groups += [Cell(f"{s} ÷ {study.baseline(s)}", number=False, span=2) for s in compared]
    columns = [study.axis.title] + ["GiB/s", "CPU-s/GiB"] * len(study.series)
    columns += ["throughput", "CPU per GiB"] * len(compared)
    rows = []
    for x in study.xs:
        row = [_head(study, x)]
        for series in study.series:
            point = study.point(x, series)
            row += (
                [_rate_cell(point, notes), _cpu_cell(point, notes)] if point else [notes.missing(NOT_RUN)] * 2
            )
        for series in compared:
            row += [_ratio(study, x, series, path, notes) for path in (THROUGHPUT, CPU_COST)]
        rows.append(row)
    return Table(f"{study.id}-main", "Throughput and CPU", groups, columns, rows, _main_foot(study))


def _long(study: Study, notes: Notes) -> Table:
    """The same with one row per series, where they are too many to stand side by side."""
    compared = any(study.baseline(s) for s in study.series)
    columns = [*_place_columns(study), "GiB/s", "CPU-s/GiB"]
    base = study.base
    columns += [f"GiB/s ÷ {base}", f"CPU per GiB ÷ {base}"] if compared else []
    rows = []
    for point in study.points:
        row = [*_places(study, point), _rate_cell(point, notes), _cpu_cell(point, notes)]
        if not compared:
            pass
        elif study.baseline(point.series):
            row += [_ratio(study, point.x, point.series, path, notes) for path in (THROUGHPUT, CPU_COST)]
        elif study.is_base(point.series):
            row += [Cell("1", f"is {base}")] * 2
        else:
            row += [notes.missing(_no_base(study))] * 2
        rows.append(row)
    return Table(f"{study.id}-main", "Throughput and CPU", [], columns, rows, _main_foot(study))


def _rate_cell(point: Point, notes: Notes) -> Cell:
    return notes.cell(point.stat(THROUGHPUT), numbers.rate, point.reason(THROUGHPUT))


def _main_foot(study: Study) -> str:
    kinds = sorted({s.kind for p in study.points if (s := p.stat(THROUGHPUT)) and s.kind})
    parts = (
        ["Under each size: workers × I/Os in flight per worker."]
        if any(_head(study, x).sub for x in study.xs)
        else []
    )
    parts.append(f"Under each rate: {', '.join(kinds)}." if kinds else "One run each: no interval is known.")
    parts.append("CPU is user and system time of this process and its threads.")
    if any(study.baseline(s) for s in study.series):
        parts.append("Under each ratio: the widest range that both intervals allow.")
    rest = [f"{name}: {words}" for name, words in study.rest.items() if words]
    if len(study.series) > 1 and rest:
        parts.append(f"They also differ in what follows. {'; '.join(rest)}.")
    return " ".join(parts)


LATENCY = (
    ("Mean", "mean"),
    ("p50", "p50"),
    ("p90", "p90"),
    ("p99", "p99"),
    ("p99.9", "p999"),
    ("Max", "max"),
)


def _places(study: Study, point: Point) -> list[Cell]:
    return [_head(study, point.x), text(point.series)] if study.axis.key else [text(point.series)]


def _place_columns(study: Study) -> list[str]:
    what = "Path" if len(study.series) == 1 or len({study.path_of(name) for name in study.series}) > 1 else "Series"
    return [study.axis.title, what] if study.axis.key else [what]


def _latency(study: Study, notes: Notes) -> Table:
    rows = []
    for point in study.points:
        row = [
            *_places(study, point),
            notes.cell(point.stat("result.iops"), numbers.short, point.reason("result.iops")),
        ]
        for _, key in LATENCY:
            path = f"result.latency_us.{key}"
            stat = point.stat(path) if (point.runs[0].number("result.ios") or 0) > 0 else None
            reason = (
                point.reason(path)
                if stat is None and point.runs[0].number("result.ios")
                else "no I/O finished"
            )
            row.append(notes.value(stat.value if stat else None, numbers.micros, reason))
        rows.append(row)
    columns = [*_place_columns(study), "IOPS", *[title for title, _ in LATENCY]]
    paced = any(r.number("job.rate_gib_s") or r.number("job.rate_iops") for r in study.runs)
    foot = "From submission to completion of each I/O."
    if paced:
        foot = "Paced runs: from the moment each I/O was due, so time spent waiting for a free buffer counts."
    return Table(f"{study.id}-io", "I/O rate and latency", [], columns, rows, foot)


def _ways(study: Study, notes: Notes) -> Table | None:
    """Reads, writes and flushes apart, of runs that had more than one of them; None where none had."""
    rows = []
    for point in study.points:
        result = point.runs[0].record["result"]
        reported = [way for way in WAYS if isinstance(result.get(way), dict)]
        for way in reported if len(reported) > 1 else ():
            figures = [(f"result.{way}.throughput_gib_s", numbers.significant), (f"result.{way}.iops", numbers.short)]
            figures = figures[1:] if way == "flush" else figures
            cells = [notes.cell(point.stat(path), show, point.reason(path)) for path, show in figures]
            none = [notes.value(None, numbers.significant, "a flush moves no bytes")] if way == "flush" else []
            tails = [point.stat(f"result.{way}.latency_us.{key}") for _, key in LATENCY]
            shown = [notes.value(stat.value if stat else None, numbers.micros, "the record has no such field") for stat in tails]
            rows.append([*_places(study, point), text(f"{way}s"), *none, *cells, *shown])
    if not rows:
        return None
    columns = [*_place_columns(study), "Of", "GiB/s", "IOPS", *[title for title, _ in LATENCY]]
    foot = "Each direction by itself; the tables above have all I/Os together."
    return Table(f"{study.id}-ways", "Reads, writes and flushes", [], columns, rows, foot)


ALONE = "each I/O was a request of its own"
NONE_WHOLE = "no batch was completed in the measured time"


def _batches(study: Study, notes: Notes) -> Table | None:
    """Returns the table of runs whose I/Os were requested in batches, as the rows of a training step are; None where none
    were."""
    if not any(run.number("result.batch.ios") for run in study.runs):
        return None
    rows = []
    for point in study.points:
        run = point.runs[0]
        ended = run.number("result.batch.count")
        why = ALONE if ended is None else NONE_WHOLE
        row = [
            *_places(study, point),
            notes.value(run.number("result.batch.ios"), numbers.short, ALONE),
            notes.cell(point.stat("result.iops"), numbers.short, point.reason("result.iops")),
            notes.value(ended, numbers.short, ALONE),
        ]
        for _, key in LATENCY:
            stat = point.stat(f"result.batch.latency_us.{key}") if ended else None
            row.append(notes.value(stat.value if stat else None, numbers.micros, why))
        rows.append([*row, text(run.text("result.batch.by", numbers.DASH))])
    titles = [title for title, _ in LATENCY]
    columns = [*_place_columns(study), "I/Os per batch", "I/Os per second", "Batches", *titles, "Transferred by"]
    foot = "From the start of a batch's first I/O to the end of its last."
    return Table(f"{study.id}-batches", "Batches: I/O rate and latency", [], columns, rows, foot)


def _queries(study: Study, notes: Notes) -> Table | None:
    """Returns the table of runs of dependent reads, as an index on disk does them; None where none were."""
    if not any(isinstance(run.at("result.queries"), dict) for run in study.runs):
        return None
    rows, why = [], "the run's reads don't depend on each other"
    for point in study.points:
        run = point.runs[0]
        ended = "no query ended in the measured time" if isinstance(run.at("result.queries"), dict) else why
        row = [*_places(study, point), notes.cell(point.stat("result.queries.per_s"), numbers.significant, why)]
        row.append(notes.value(run.number("result.queries.bytes"), numbers.bytes_, why))
        for _, key in LATENCY:
            stat = point.stat(f"result.queries.latency_us.{key}") if run.number("result.queries.count") else None
            row.append(notes.value(stat.value if stat else None, numbers.micros, ended))
        rows.append(row)
    columns = [*_place_columns(study), "Queries per second", "Bytes of each", *[title for title, _ in LATENCY]]
    foot = "From the start of a query's first round to the end of its last."
    return Table(f"{study.id}-queries", "Queries: rate and latency", [], columns, rows, foot)


def _files(study: Study, notes: Notes) -> Table | None:
    """Returns the table of runs over existing files; None where none were."""
    if not any(isinstance(run.at("result.files"), dict) for run in study.runs):
        return None
    rows, why = [], "the run is over one file, or none"
    for point in study.points:
        run = point.runs[0]
        row = [*_places(study, point), notes.value(run.number("result.files.found"), numbers.whole, why)]
        row.append(notes.value(run.number("result.files.read"), numbers.whole, why))
        apart = "files weren't read from beginning to end" if isinstance(run.at("result.files"), dict) else why
        row.append(notes.cell(point.stat("result.files.files_per_s"), numbers.short, apart))
        rows.append(row)
    columns = [*_place_columns(study), "Files", "Read from", "Whole files per second"]
    foot = "Read from: files of which something was read in the measured time."
    return Table(f"{study.id}-files", "Files", [], columns, rows, foot)


CPU_COLUMNS = (
    ("Cores busy", "cores_busy", numbers.significant),
    ("User, % of machine", "user_pct", numbers.significant),
    ("System, % of machine", "system_pct", numbers.significant),
    ("CPU-s/GiB", "cpu_s_per_gib", numbers.significant),
    ("CPU ns per I/O", "ns_per_io", numbers.significant),
    ("Whole machine, cores", "machine_cores_busy", numbers.significant),
    ("Others, cores", "others_cores_busy", numbers.significant),
)


def _cpu(study: Study, notes: Notes) -> Table:
    rows = []
    for point in study.points:
        row = _places(study, point)
        for _, key, show in CPU_COLUMNS:
            path = f"result.cpu.{key}"
            stat = point.stat(path)
            row.append(notes.value(stat.value if stat else None, show, point.reason(path)))
        rows.append(row)
    columns = [*_place_columns(study), *[title for title, _, _ in CPU_COLUMNS]]
    foot = "Others: cores kept busy by everything else on the machine, kernel threads included."
    return Table(f"{study.id}-processor", "Processor time", [], columns, rows, foot)


def _power(study: Study) -> Table | None:
    notes_free = []
    for point in study.points:
        for run in point.runs:
            for meter in run.items("result.power"):
                watts, joules = (_number(meter.get(key)) for key in ("watts_mean", "joules_per_gib"))
                if watts is None:
                    continue
                notes_free.append(
                    [
                        *_places(study, point),
                        text(f"{meter.get('scope', '?')}", f"{meter.get('source', '?')}"),
                        Cell(numbers.significant(watts)),
                        Cell(numbers.significant(joules) if joules is not None else numbers.DASH),
                        Cell(f"{_number(meter.get('samples')) or 0:.0f}"),
                    ]
                )
    if not notes_free:
        return None
    columns = [*_place_columns(study), "Meter", "Watts", "J/GiB", "Samples"]
    shown = notes_free[:RUN_ROWS_MAX]
    foot = "Power covers everything in the meter's scope, not just this job."
    if len(notes_free) > len(shown):
        foot += f" The first {len(shown)} of {len(notes_free)} readings are shown."
    return Table(f"{study.id}-meters", "Power", [], columns, shown, foot)


def _number(value: object) -> float | None:
    from forebay.report.runs import finite

    return finite(value)


def what_ran(study: Study, notes: Notes) -> Table:
    """One row per run: what was asked for, and what really happened."""
    rows = [_ran_row(run, notes) for run in study.runs[:RUN_ROWS_MAX]]
    columns = [
        "Run",
        "Requested → ran",
        "Engine",
        "Buffers",
        "Cache",
        "Resident before → after",
        "Device ÷ job",
        "Route of the bytes",
        "Verified",
    ]
    foot = "Device ÷ job: bytes that block devices read or wrote, per byte that the job requested."
    reasons = dict.fromkeys(
        f"{r.text('path.ran')}: {r.text('path.reason')}" for r in study.runs if r.text("path.reason")
    )
    foot += "".join(f" {reason}{'' if reason.endswith('.') else '.'}" for reason in reasons)
    if len(study.runs) > RUN_ROWS_MAX:
        foot += f" The first {RUN_ROWS_MAX} of {len(study.runs)} runs are shown."
    return Table(f"{study.id}-ran", "What really ran", [], columns, rows, foot)


def _ran_row(run: Run, notes: Notes) -> list[Cell]:
    requested, ran = run.text("path.requested"), run.text("path.ran")
    features = run.at("path.engine_features")
    features = [f for f in features if isinstance(f, str)] if isinstance(features, list) else []
    asked, device = run.number("result.bytes"), run.number("cache.device_bytes")
    verified = run.number("result.verified_bytes")
    return [
        text(run.name),
        text(f"{requested} → {ran}" if requested not in ("", ran) else ran),
        text(engine_name(run.text("path.engine", numbers.DASH)), ", ".join(features)),
        text(
            run.text("path.slot_pages", numbers.DASH), "pinned" if run.at("path.slots_pinned") is True else ""
        ),
        text(run.text("cache.policy", numbers.DASH)),
        _resident(run, notes),
        notes.missing(run.reason("cache.device_bytes"))
        if device is None or not asked
        else Cell(numbers.ratio(device / asked), numbers.bytes_(device)),
        text(_way(run), run.text("path.destination") and f"to {run.text('path.destination')}"),
        text(numbers.bytes_(verified) if verified else "not asked"),
    ]


def _resident(run: Run, notes: Notes) -> Cell:
    before, after = run.number("cache.resident_before"), run.number("cache.resident_after")
    if before is None:
        return notes.missing(run.reason("cache.resident_before"))
    return Cell(
        f"{numbers.percent(before)} → {numbers.percent(after) if after is not None else numbers.DASH}"
    )


def _way(run: Run) -> str:
    """`staged` or `83 % mapped, 17 % staged`."""
    parts = {name: run.number(f"path.{name}_bytes") or 0.0 for name in ("direct", "staged", "mapped")}
    whole = sum(parts.values())
    if whole <= 0:
        return numbers.DASH
    used = {name: value for name, value in parts.items() if value}
    return (
        next(iter(used))
        if len(used) == 1
        else ", ".join(f"{numbers.percent(v / whole)} {n}" for n, v in used.items())
    )
