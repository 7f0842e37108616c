"""The page: a pure function of what was loaded, as one HTML file that opens offline.

It has no script and fetches nothing (its own Content-Security-Policy says so); every picture is inline SVG
and every CSV a data: link. Sliders, where they are asked for, bring one script, which the policy allows by its hash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay import pipes
from forebay.bench.save import unwritable, write_whole
from forebay.errors import RequestError
from forebay.report import (
    advice,
    answering,
    caching,
    checkpoints,
    documents,
    draw,
    environment,
    export,
    feeding,
    headline,
    inference,
    published,
    scaling,
    timeline,
    training,
)
from forebay.report.charts import study_charts
from forebay.report.load import Entry, Loaded
from forebay.report.marks import Chart
from forebay.report.runs import Run, Study, studies
from forebay.report.tables import Notes, Table, study_tables, what_ran

if TYPE_CHECKING:
    from forebay.plan import explore

GENERATOR = "forebay report"
COMMANDS_MAX = 60
# Kinds of records with sections of their own, in the page's order; the first that takes a record has it.
KINDS: tuple[tuple[Any, Callable[[Entry], bool]], ...] = (
    (training, training.is_training),
    (scaling, scaling.is_scaling),
    (answering, answering.is_answering),
    (inference, inference.is_inference),
    (caching, caching.is_caching),
    (checkpoints, checkpoints.is_checkpoints),
    (feeding, feeding.is_feeding),
)


@dataclass
class StudyView:
    """One study as the template lays it out."""

    study: Study
    lead: str
    tables: list[Table]
    published: Table | None
    caveats: tuple[str, ...]
    charts: list[Chart]
    ran: Table
    more_time: int = 0

    def group(self, name: str) -> list[Chart]:
        return [c for c in self.charts if c.group == name and c.svg]


@dataclass
class Page:
    html: str
    headline: str
    charts: list[Chart]
    advice: list[advice.Advice]
    records: int
    problems: list[str] = field(default_factory=list)


def build(loaded: Loaded, with_charts: bool = True, sliders: explore.Section | None = None) -> Page:
    """The page and what it is made of. Raises MachineError where charts are wanted and can't be drawn."""
    if with_charts:
        draw.check()
    notes = Notes()
    of: dict[Any, list[Entry]] = {kind: [] for kind, _ in KINDS}
    jobs: list[Entry] = []
    for entry in loaded.entries:
        kind = next((kind for kind, takes in KINDS if takes(entry)), None)
        (jobs if kind is None else of[kind]).append(entry)
    found = studies(jobs)
    trained = [Run(entry, kind.name(entry)) for kind, entries in of.items() for entry in entries]
    views = [_view(study, notes, with_charts) for study in found]
    runs = [run for study in found for run in study.runs]
    warnings = advice.gather(found, loaded.problems, loaded.notes, trained)
    comparisons = [documents.comparison(d, i, notes) for i, d in enumerate(loaded.comparisons, 1)]
    tunings = [documents.tuning(d, i, notes) for i, d in enumerate(loaded.tunings, 1)]
    sections = {kind: kind.sections(entries, notes) for kind, entries in of.items()}
    drawn = [*sections[training], *sections[scaling], *tunings]
    for section in drawn:
        section.charts = section.charts if with_charts else []
        for chart in section.charts:
            _finish(chart, drawn=True)
    runs += trained
    sentence, deck = headline.sentence(found, [*(s for listed in sections.values() for s in listed), *comparisons], tunings)
    html = _template().render(
        generator=GENERATOR,
        headline=sentence,
        deck=deck,
        figures=headline.figures(found),
        strap=_strap(runs),
        origins=sorted({run.text("origin", "measured") for run in runs} - {"measured"}),
        views=views,
        warnings=warnings,
        comparisons=comparisons,
        trainings=sections[training],
        scalings=sections[scaling],
        answered=[*sections[answering], *sections[inference]],
        loaders=sections[feeding],
        caches=sections[caching],
        checkpoints=sections[checkpoints],
        tunings=tunings,
        cards=environment.cards(runs),
        commands=_commands(found),
        notes=notes.reasons,
        charts=with_charts,
        duplicates=loaded.duplicates,
        csv_name=export.file_name,
        csv_link=export.data_link,
        sliders=sliders,
        css=resources.files("forebay.report").joinpath("page.css").read_text(encoding="utf-8"),
    )
    charts = [c for section in drawn for c in section.charts] + [c for view in views for c in view.charts]
    return Page(html, sentence, charts, warnings, len(runs), loaded.problems)


def _view(study: Study, notes: Notes, with_charts: bool) -> StudyView:
    charts = study_charts(study) if with_charts else []
    timed = 0
    for chart in charts:
        timed += chart.group == "time"
        _finish(chart, chart.group != "time" or timed <= timeline.TIME_CHARTS_MAX)
    beside = published.table(study, notes)
    return StudyView(
        study,
        _lead(study),
        study_tables(study, notes),
        beside[0] if beside else None,
        beside[1] if beside else (),
        charts,
        what_ran(study, notes),
        max(0, timed - timeline.TIME_CHARTS_MAX),
    )


def _finish(chart: Chart, drawn: bool) -> None:
    chart.csv = export.as_csv(chart.rows)
    chart.svg = draw.draw(chart) if drawn else ""


def _template() -> Any:
    import jinja2

    text = resources.files("forebay.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    made = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return made.from_string(text)


def _strap(runs: list[Run]) -> str:
    """Under the headline: how many runs, where, when."""
    if not runs:
        return ""
    hosts = list(dict.fromkeys(run.text("environment.host") for run in runs if run.text("environment.host")))
    days = sorted({run.text("started")[:10] for run in runs} - {""})
    parts = [f"{len(runs)} run{'s' if len(runs) != 1 else ''}"]
    if hosts:
        parts.append("on " + (hosts[0] if len(hosts) == 1 else f"{len(hosts)} machines"))
    if days:
        parts.append(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")
    return ", ".join(parts)


HELD = (
    ("workers", "{:.0f} workers", "{:.0f} worker"),
    ("depth", "{:.0f} I/Os in flight each", "{:.0f} I/O in flight each"),
    ("batch", "batches of {:,.0f} I/Os", "batches of {:.0f} I/O"),
    ("duration_s", "{:g} s a time", "{:g} s a time"),
)


def _lead(study: Study) -> str:
    """Describes in a line what all runs of the study have in common."""
    parts = [study.op]
    if study.axis.key != "io_bytes":
        parts += _common(study, "job.io_bytes", lambda v: f"{environment.numbers.size(v)} blocks")
    for key, many, one in HELD:
        parts += _common(
            study, f"job.{key}", lambda v, many=many, one=one: (one if v == 1 else many).format(v)
        )
    sources = {run.text("job.source") for run in study.runs} - {""}
    if len(sources) == 1:
        parts.append(f"from {sources.pop()}")
    policies = {run.text("cache.policy") for run in study.runs} - {""}
    if len(policies) == 1:
        parts.append(f"page cache: {policies.pop()}")
    repeats = {run.repeats for run in study.runs}
    parts.append(f"{min(repeats)} repeats" if len(repeats) == 1 and min(repeats) > 1 else "")
    parts.append(f"sweep {study.preset}" if study.preset and study.preset not in study.title else "")
    text = ", ".join(p for p in parts if p)
    return text[:1].upper() + text[1:] + "."


def _common(study: Study, path: str, say: Any) -> list[str]:
    values = {run.number(path) for run in study.runs}
    value = values.pop() if len(values) == 1 else None
    return [say(value)] if value is not None else []


def _commands(found: list[Study]) -> list[tuple[str, list[str]]]:
    """Every distinct command line, with the runs that it made."""
    made: dict[str, list[str]] = {}
    for study in found:
        for run in study.runs:
            line = documents.command_line(run.at("command"))
            if line:
                made.setdefault(line, []).append(run.name)
    return list(made.items())[:COMMANDS_MAX]


def refuse_strangers(output: str, inputs: list[str], force: bool) -> None:
    """Raises RequestError where writing `output` would lose something: an input, or (unless `force`) what isn't a report."""
    path = Path(output)
    if path.is_dir():
        raise RequestError(f"-o {output}", "is a folder", f"-o {path / 'report.html'}")
    pipes.refuse_to_write(path, f"-o {output}")
    if any(path.exists() and Path(p).exists() and path.samefile(p) for p in inputs):
        raise RequestError(f"-o {output}", "is one of the files to report on", "-o report.html")
    if path.is_file() and pipes.descriptor_of(output) is None and not force and not _ours(path):
        raise RequestError(
            f"-o {output}", "exists and isn't a Forebay report", "another name, or --force"
        )


def save(html: str, output: str) -> None:
    """Writes the page whole or not at all."""
    # A name that isn't UTF-8, or half a character of a damaged record, is shown as a question mark.
    made = html.encode(errors="replace")
    try:
        write_whole(output, made, lambda _: True)
    except OSError as error:
        raise unwritable(f"-o {output}", error) from error


def _ours(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return f'<meta name="generator" content="{GENERATOR}">' in file.read(4096)
    except OSError:
        return False
