"""Emulated training on the page: utilisation by number of accelerators, and what each run waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forebay.report import marks, numbers
from forebay.report.documents import Section, command_line
from forebay.report.load import Entry
from forebay.report.marks import Chart, Row
from forebay.report.runs import Run, finite
from forebay.report.tables import Cell, Notes, Table, text

ROWS_MAX = 400
FEW_STEPS = "too few steps for the rules' formula"


def is_training(entry: Entry) -> bool:
    return isinstance(entry.record.get("training"), dict)


def name(entry: Entry) -> str:
    """`unet3d, 8 × H100`."""
    run = Run(entry)
    number = numbers.whole(run.number("training.accelerators") or 0)
    return f"{run.text('training.workload', '?')}, {number} × {run.text('training.accelerator', '?').upper()}"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """A section per workload on an accelerator."""
    found: dict[tuple[str, str], list[Run]] = {}
    for entry in entries:
        run = Run(entry)
        found.setdefault((run.text("training.workload", "?"), run.text("training.accelerator", "?")), []).append(run)
    return [
        workload_section(f"training-{number}", workload, accelerator, runs, notes)
        for number, ((workload, accelerator), runs) in enumerate(sorted(found.items()), 1)
    ]


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
    return f"no run of {title} reaches its least utilisation{computed}"


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


def utilisation(ident: str, what: str, runs: list[Run]) -> Chart | None:
    made = points(runs)
    if len({r["accelerators"] for r in made}) < 2:
        return None
    least = next((v for run in runs if (v := run.number("training.au_pct_min")) is not None), None)
    best = max((r["accelerators"] for r in made if r["passes"]), default=0)
    desc = f"Utilisation of {what} by number of accelerators, in per cent; up to {best} pass."
    note = f"Dashed: {least:g} %, the least." if least is not None else ""
    title = "Utilisation (AU) by number of accelerators, %"
    return Chart(f"{ident}-au", title, desc, made, _drawer(made, least), note)


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
    foot = "Shares are of the time in which accelerators waited; the rest of it they waited for each other."
    return Table(f"{ident}-runs", f"Runs of {title}", [], columns, body, foot)


def _drawer(made: list[Row], least: float | None) -> Callable[[], Any]:
    def draw() -> Any:
        import altair as alt

        series = list(dict.fromkeys(r["series"] for r in made))[: marks.SERIES_MAX]
        legend = None
        if len(series) > 1:
            legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=300, symbolType="stroke", symbolSize=400)
        scale = alt.Scale(domain=series, range=list(marks.PALETTE[: len(series)]))
        colour = alt.Color("series:N", scale=scale, legend=legend)
        base = alt.Chart(alt.Data(values=[r for r in made if r["series"] in series]))
        across = alt.X("accelerators:Q", title="accelerators", axis=alt.Axis(tickMinStep=1, ticks=False, labelOverlap=True))
        up = alt.Y("au_pct:Q", title=None, scale=alt.Scale(zero=True), axis=marks.plain_axis("%"))
        picture = base.mark_line(strokeWidth=2).encode(x=across, y=up, color=colour)
        picture += base.mark_point(filled=True, size=50, opacity=1).encode(x=across, y=up, color=colour)
        if least is not None:
            rule = alt.Chart(alt.Data(values=[{"y": least}]))
            picture += rule.mark_rule(strokeDash=[4, 4], color=marks.MUTED).encode(y="y:Q")
        return picture.properties(width=marks.WIDTH, height=marks.HEIGHT)

    return draw
