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
@click.option("--force", is_flag=True, help="Write over files that aren't reports of ours.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout about what was written.")
def command(
    runs: tuple[str, ...], output: str, csv_folder: str | None, no_charts: bool, force: bool, as_json: bool
) -> int:
    """One self-contained page of RUNS: records, sweeps (.jsonl or their folder), comparisons, tunings.

    \b
    forebay bench data.bin --json > run.json && forebay report run.json
    forebay report sweep.jsonl -o sweep.html --csv sweep-csv
    """
    summary = write_report(list(runs), output, charts=not no_charts, csv_folder=csv_folder, force=force)
    for problem in summary["problems"]:
        click.echo(f"warning: {problem}", err=True)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
        return 0
    click.echo(summary["headline"], err=True)
    drawn = f"{len(summary['charts'])} charts" if not no_charts else "no charts"
    click.echo(f"{output}: {summary['records']} runs, {drawn}")
    return 0


def write_report(
    paths: list[str], output: str, *, charts: bool = True, csv_folder: str | None = None, force: bool = False
) -> dict[str, Any]:
    """Writes the page of the records at `paths` and returns what --json prints (forebay.report/1).

    Raises RequestError (nothing to report, output not ours) or MachineError (charts can't be drawn here).
    """
    from forebay.report import export, load, page

    if csv_folder is not None and not charts:
        from forebay.errors import RequestError

        raise RequestError("--csv with --no-charts", "the CSV files are the charts' data", "one of them")
    loaded = load.load(paths)
    page.refuse_strangers(output, paths, force)
    made = page.build(loaded, charts)
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
        "problems": made.problems,
    }
