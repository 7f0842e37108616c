"""The table of an export: a column for each figure of `forebay.figures`, a row for each run."""

from __future__ import annotations

from typing import Any

from forebay.figures import FIGURES as COLUMNS
from forebay.report.load import Entry


def rows(entries: list[Entry]) -> list[list[Any]]:
    """A row for each run, in the order that they were read, with a cell for each column."""
    return [[c.value(entry) for c in COLUMNS] for entry in entries]
