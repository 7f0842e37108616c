"""`forebay report`: records in, one page out that opens anywhere.

Everything on the page is a function of the records, so the same records give the same page.
"""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ["command", "write_report"]


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "-o", "--output", default="report.html", show_default=True, metavar="FILE", help="The page to write."
)
@click.option("--csv", "csv_folder", metavar="DIR", help="Also write the data of every chart, one CSV each.")
@click.option("--no-charts", is_flag=True, help="Tables only; needs no drawing library.")
@click.option(
    "--plan", metavar="DRIVE", help="Add sliders: what more of these drives, more queues or other block sizes would give."
)
@click.option(
    "--plan-drives", type=click.IntRange(1), metavar="N",
    help="Number of these drives that the runs read. Default: a stripe's members, else 1.",
)
@click.option("--catalogue", metavar="FILE", help="More drives for --plan, as [[drive]] tables in TOML.")
@click.option("--anonymous", is_flag=True, help="Leave out hosts, serial numbers, addresses and paths.")
@click.option("--force", is_flag=True, help="Overwrite files that aren't Forebay reports.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as one JSON document on stdout.")
def command(
    runs: tuple[str, ...],
    output: str,
    csv_folder: str | None,
    no_charts: bool,
    plan: str | None,
    plan_drives: int | None,
    catalogue: str | None,
    anonymous: bool,
    force: bool,
    as_json: bool,
) -> int:
    """One self-contained page of RUNS: records, sweeps (.jsonl or their folder), comparisons, tunings.

    \b
    forebay bench data.bin --json > run.json && forebay report run.json
    forebay report sweep.jsonl -o sweep.html --csv sweep-csv
    forebay report sweep.jsonl --plan D7-PS1010
    """
    from forebay import pipes

    output = pipes.STDOUT if output == "-" else output
    is_stdout = pipes.descriptor_of(output) == 1
    if is_stdout and as_json:
        from forebay.errors import RequestError

        raise RequestError(f"-o {output} with --json", "both go to standard output", "one of them")
    summary = write_report(
        list(runs), output, charts=not no_charts, csv_folder=csv_folder, force=force, plan=plan, plan_drives=plan_drives,
        catalogue=catalogue, anonymous=anonymous,
    )  # fmt: skip
    for problem in summary["problems"]:
        click.echo(f"warning: {problem}", err=True)
    if as_json:
        click.echo(json.dumps(summary))
        return 0
    click.echo(summary["headline"], err=True)
    drawn = f"{len(summary['charts'])} charts" if not no_charts else "no charts"
    click.echo(f"{output}: {summary['records']} runs, {drawn}", err=is_stdout)
    return 0


def write_report(
    paths: list[str],
    output: str,
    *,
    charts: bool = True,
    csv_folder: str | None = None,
    force: bool = False,
    plan: str | None = None,
    plan_drives: int | None = None,
    catalogue: str | None = None,
    anonymous: bool = False,
) -> dict[str, Any]:
    """Writes the page of the records at `paths` and returns what --json prints (forebay.report/1).

    `plan`: a drive, for a section with sliders; `plan_drives`: how many of them the runs read. `anonymous`: without the
    names of a site. Raises RequestError
    (nothing to report, output not ours, a drive in no catalogue) or MachineError (charts can't be drawn here).
    """
    from forebay.report import export, page

    if csv_folder is not None and not charts:
        from forebay.errors import RequestError

        raise RequestError("--csv with --no-charts", "the CSV files are the charts' data", "one of them")
    loaded = _loaded(paths, anonymous)
    page.refuse_strangers(output, paths, force)
    sliders = None
    for flag, value in (("--catalogue", catalogue), ("--plan-drives", plan_drives)):
        if value is not None and plan is None:
            from forebay.errors import RequestError

            raise RequestError(flag, "applies only to --plan", "add --plan DRIVE")
    if plan is not None:
        from forebay.plan.verb import catalogue_of
        from forebay.report import whatif

        sliders = whatif.section(loaded.entries, plan, catalogue_of(catalogue), plan_drives)
    made = page.build(loaded, charts, sliders)
    written = (
        export.write(made.charts, csv_folder, force) if csv_folder is not None else [None] * len(made.charts)
    )
    page.save(made.html, output)
    return {
        "schema": "forebay.report/1",
        "output": output,
        "headline": made.headline,
        "records": made.records,
        "comparisons": len(loaded.comparisons),
        "tunings": len(loaded.tunings),
        "warnings": [
            {"id": a.id, "title": a.title, "runs": a.runs, "texts": list(a.texts), "next": a.next}
            for a in made.advice
        ],
        "charts": [
            {"id": c.id, "title": c.title, "rows": len(c.rows), "drawn": bool(c.svg), "csv": file}
            for c, file in zip(made.charts, written, strict=True)
        ],
        "plan": plan,
        "problems": made.problems,
    }


def _loaded(paths: list[str], anonymous: bool) -> Any:
    from forebay.report import load

    loaded = load.load(paths)
    if not anonymous:
        return loaded
    from forebay.report.anonymous import anonymous as without_names

    return without_names(loaded)
