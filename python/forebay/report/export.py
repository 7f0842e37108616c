"""A chart's rows as CSV: for a folder, and for the link under the chart."""

from __future__ import annotations

import base64
import csv
import io
from pathlib import Path

from forebay import pipes
from forebay.bench import save
from forebay.errors import RequestError
from forebay.report.marks import Chart, Row


def as_csv(rows: list[Row]) -> str:
    """RFC 4180 with a header. A null is an empty field."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_field(row.get(name)) for name in columns])
    return out.getvalue()


def _field(value: object) -> object:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def data_link(text: str) -> str:
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(text.encode(errors="replace")).decode()


def file_name(chart: Chart) -> str:
    return f"forebay-{chart.id}.csv"


def write(charts: list[Chart], folder: str, force: bool) -> list[str]:
    """One file per chart. A file with another header isn't ours and stays, unless `force`."""
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            _keep_strangers(where / file_name(chart), chart, force)
        for chart in charts:
            # Whole or not at all: what is there is an export of ours, or `force` says to replace it.
            save.place(where / file_name(chart), chart.csv.encode(errors="replace").decode(), lambda _: True)
    except OSError as error:
        raise save.unwritable(f"--csv {folder}", error, "folder") from error
    return [str(where / file_name(chart)) for chart in charts]


def _keep_strangers(path: Path, chart: Chart, force: bool) -> None:
    pipes.refuse_to_write(path, f"--csv {path.parent}")
    if force or not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        found = file.readline(4096).strip()
    if found != chart.csv.split("\r\n", 1)[0]:
        raise RequestError(
            f"--csv {path.parent}",
            f"{path.name} exists and isn't a Forebay export",
            "another folder, or --force",
        )
