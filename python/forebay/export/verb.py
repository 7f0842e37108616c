"""The verb: which runs, which format, and where it goes."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import click

from forebay import pipes
from forebay.errors import MachineError, RequestError

EXAMPLES = """\b
Examples:
  forebay export runs.jsonl --csv > runs.csv
  forebay export results/ more.json --csv -o runs.csv
  forebay export results/ --parquet -o runs.parquet
  forebay export runs.jsonl --prometheus -o /var/lib/node_exporter/forebay.prom"""


FORMS = ("csv", "parquet", "prometheus")


@click.command("export", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option("--csv", is_flag=True, help="A header and a row for each run.")
@click.option("--parquet", is_flag=True, help="The same table, typed; needs pyarrow and -o.")
@click.option("--prometheus", is_flag=True, help="Prometheus text format, for a textfile collector.")
@click.option("-o", "--out", metavar="FILE", help="Write to FILE, which may only replace an older export. Default: stdout.")
@click.option("--json", "as_json", is_flag=True, help="The rows as one JSON document on stdout.")
def command(runs: tuple[str, ...], out: str | None, as_json: bool, **forms: bool) -> int:
    """One flat table of RUNS (records, sweeps as .jsonl or their folder), one row per run.

    docs/export.md describes the columns. A value that wasn't measured is an empty cell.
    """
    asked = [form for form in FORMS if forms[form]] + ["json"] * as_json
    if not asked:
        raise RequestError("forebay export", "no format was given", "--csv, --parquet, --prometheus or --json")
    if len(asked) > 1:
        raise RequestError(" ".join(f"--{form}" for form in asked), "are formats of one table", "one of them")
    [form] = asked
    if form == "parquet" and out is None:
        raise RequestError("--parquet", "is a binary format, so it needs a file", "-o FILE.parquet")
    if as_json and out is not None:
        raise RequestError("--json -o", "the rows go to stdout", f"--json > {out}")
    if out is not None:
        out = pipes.STDOUT if out == "-" else out
        pipes.refuse_to_write(out, f"-o {out}")
    entries = _entries(list(runs))
    if as_json:
        click.echo(_json(entries))
        return 0
    made = {"csv": _csv, "prometheus": _prometheus, "parquet": _parquet}[form](entries)
    if out is None:
        # As bytes: a table is UTF-8 whatever the terminal takes.
        sys.stdout.buffer.write(made)
        sys.stdout.buffer.flush()
        return 0
    _write(out, made, form)
    click.echo(f"{out}: {len(entries)} runs", err=True)
    return 0


def _entries(runs: list[str]) -> list[Any]:
    from forebay.report import load

    loaded = load.load(runs)
    for problem in loaded.problems:
        click.echo(f"warning: {problem}", err=True)
    if not loaded.entries:
        found = "hold comparisons or tunings, which are not runs"
        raise RequestError(" ".join(runs), found, "the records: forebay bench SOURCE -o runs.jsonl")
    return loaded.entries


def _csv(entries: list[Any]) -> bytes:
    """RFC 4180 but for its line ends, which are this system's; text that a spreadsheet would compute gets an apostrophe."""
    from forebay.export.columns import COLUMNS, rows

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([c.name for c in COLUMNS])
    for row in rows(entries):
        writer.writerow([_cell(value) for value in row])
    return out.getvalue().encode(errors="replace")


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def _json(entries: list[Any]) -> str:
    import json

    from forebay.export.columns import COLUMNS, rows

    names = [c.name for c in COLUMNS]
    made = [dict(zip(names, row, strict=True)) for row in rows(entries)]
    return json.dumps({"schema": "forebay.export/1", "columns": {c.name: c.unit for c in COLUMNS}, "rows": made}, indent=1)


def _prometheus(entries: list[Any]) -> bytes:
    from forebay.export import prometheus

    return prometheus.text(prometheus.of_runs(entries)).encode(errors="replace")


def _parquet(entries: list[Any]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        next = "pip install 'forebay[parquet]', or --csv"
        raise MachineError("--parquet", "needs pyarrow, which isn't installed", next) from None
    from forebay.export.columns import COLUMNS, rows

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    fields = [pyarrow.field(c.name, types[c.kind], metadata={"unit": c.unit}) for c in COLUMNS]
    cells = [list(column) for column in zip(*rows(entries), strict=True)]
    columns = [pyarrow.array(found, field.type) for found, field in zip(cells, fields, strict=True)]
    table = pyarrow.table(columns, schema=pyarrow.schema(fields, metadata={"schema": "forebay.export/1"}))
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out)
    return out.getvalue()


def _write(out: str, made: bytes, form: str) -> None:
    """Whole or not at all, in place of nothing but an older export in the same format."""
    from forebay.bench import save

    asked = f"-o {out}"
    if Path(out).is_dir():
        raise RequestError(asked, "is a directory", f"-o {Path(out) / ('runs.' + form)}")
    try:
        save.write_whole(out, made, lambda path: _is_ours(path, form))
    except FileExistsError:
        found = f"exists and isn't a {form} export by Forebay, so it isn't overwritten"
        raise RequestError(asked, found, "another file name") from None
    except OSError as error:
        raise save.unwritable(asked, error) from error


def _is_ours(path: Path, form: str) -> bool:
    """An empty file, or one that begins (Parquet: ends) as an export does."""
    with path.open("rb") as file:
        head = file.read(4096)
        file.seek(max(0, path.stat().st_size - (1 << 16)))
        tail = file.read()
    if not head.strip():
        return True
    if form == "csv":
        return head.startswith(b"id,started,origin,forebay_version,")
    if form == "prometheus":
        return head.startswith(b"# HELP forebay_run_info ")
    return head.startswith(b"PAR1") and b"forebay.export/1" in tail
