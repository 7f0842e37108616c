"""The published tables as they come with the package, and any table of the same columns: rows of text, and numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources

from forebay.errors import RequestError

Row = dict[str, str]
# Beyond it laws of powers overflow.
LARGEST = 1e12


@lru_cache(maxsize=32)
def table(name: str) -> tuple[Row, ...]:
    """One of the package's tables, by file name without `.csv`."""
    folder = resources.files("forebay").joinpath("data").joinpath("published").joinpath("tables")
    return tuple(parse(folder.joinpath(f"{name}.csv").read_text(encoding="utf-8"), name)[1])


def parse(text: str, where: str) -> tuple[list[str], list[Row]]:
    """Columns and rows of CSV text. RequestError names the line whose cells are too many or too few."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=None))
    try:
        lines = [(reader.line_num, cells) for cells in reader if any(c.strip() for c in cells)]
    except csv.Error as error:
        raise RequestError(where, f"is not CSV: {error}", "comma-separated text with a line of column names") from None
    if not lines:
        raise RequestError(where, "is empty", "a line of column names, then rows")
    columns = [c.strip() for c in lines[0][1]]
    for other in (";", "\t"):
        if len(columns) == 1 and other in columns[0]:
            said = "a tab" if other == "\t" else other
            raise RequestError(where, f"has cells separated by {said}", "the same table with cells separated by commas")
    doubled = sorted({c for c in columns if columns.count(c) > 1})
    if doubled:
        raise RequestError(where, f"has the column '{doubled[0]}' twice", "one column of each name")
    rows = []
    for number, cells in lines[1:]:
        if len(cells) != len(columns):
            found = f"line {number} has {len(cells)} cells, the first line names {len(columns)} columns"
            raise RequestError(where, found, "as many cells in each line; quote cells that hold commas")
        rows.append(dict(zip(columns, (c.strip() for c in cells), strict=True)))
    return columns, rows


def number(row: Row, column: str, where: str = "") -> float | None:
    """A cell as a number; None where it is blank or absent. RequestError where it is something else."""
    text = row.get(column, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"{where or 'table'}, column {column}", f"'{text}' is not a number", "a number, or a blank cell")
    if abs(value) > LARGEST or 0 < abs(value) < 1 / LARGEST:
        found = f"is {text}, beyond anything that can be measured"
        raise RequestError(f"{where or 'table'}, column {column}", found, "a number in the unit that the column's name says")
    return value


def positive(row: Row, column: str, where: str = "") -> float:
    """A cell that must hold a number above 0. RequestError where it doesn't."""
    value = number(row, column, where)
    if value is None or value <= 0:
        found = "is blank" if value is None else f"is {value:g}"
        raise RequestError(f"{where or 'table'}, column {column}", f"{found}; it must be above 0", f"a number in {column}")
    return value


def count(row: Row, column: str, where: str = "") -> float | None:
    """A cell as a whole number of 1 or more; None where it is blank or absent. RequestError where it is something else."""
    value = number(row, column, where)
    if value is None or (value >= 1 and value == int(value)):
        return value
    found = f"is {value:g}, not a whole number above 0"
    raise RequestError(f"{where or 'table'}, column {column}", found, "1, 2, 3 …, or a blank cell")


def below(text: str) -> float | None:
    """The bound of a cell such as `<6`; None where it isn't one."""
    try:
        return float(text[1:]) if text.startswith("<") else None
    except ValueError:
        return None


def where_of(table_name: str, rows: Iterable[Row]) -> list[str]:
    """Names each row for an error: line 2 is the first after the names."""
    return [f"{table_name}, row {i}" for i, _ in enumerate(rows, 2)]
