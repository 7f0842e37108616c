"""The tables of fields in docs/records.md and docs/records-training.md, and of columns in docs/export.md.
`python tests/record_tables.py` writes them anew; tests/test_docs.py holds that they are what it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from forebay import _core
from forebay.figures import FIGURES, Figure
from forebay.flags import fields

DOCS = Path(__file__).resolve().parent.parent / "docs"
TYPES = {str: "text", int: "integer", float: "number", bool: "boolean"}
# Heading of a section; what stands before its table; the table's head; its rows.
SECTION = re.compile(r"^(## (\w+)\b.*?\n\| field \|( flag \|)? unit \| what \|\n[|-]+\n)(?:\|[^\n]*\n)*", re.DOTALL)
COLUMNS = re.compile(r"^(\| column \| type \| unit \| field \| what \|\n[|-]+\n)(?:\|.*\n)*", re.MULTILINE)


def records(page: str) -> str:
    """docs/records.md, or that of a part of a record, with the tables that the engine has."""
    parts = {part["name"]: part["fields"] for part in json.loads(_core.record_parts())}
    sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)

    def made(section: re.Match[str]) -> str:
        rows = [_row(field, bool(section[3])) for field in parts[section[2]] if field["unit"]]
        return section[1] + "".join(rows)

    return "".join(SECTION.sub(lambda m: made(m) if m[2] in parts else m[0], section) for section in sections)


def _row(field: dict[str, str], with_flag: bool) -> str:
    """A setting without a flag of its own names the one by which it is set."""
    own = {f.key: f.flag for f in fields()}
    flag = field["flag"] or own.get(field["name"], "")
    shown = f" `{flag if flag.isupper() else f'--{flag}'}` |" if with_flag else ""
    return f"| `{field['name']}` |{shown} {field['unit']} | {_cell(field['what'])} |\n"


def export(page: str) -> str:
    """docs/export.md with a row for each column."""
    return COLUMNS.sub(lambda m: m[1] + "".join(map(_column, FIGURES)), page)


def _column(figure: Figure) -> str:
    unit = "–" if figure.unit in ("text", "number") else figure.unit
    name, kind, field, what = figure.name, TYPES[figure.kind], figure.field, _cell(figure.what)
    return f"| `{name}` | {kind} | {unit} | `{field}` | {what} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {"records.md": records, "records-training.md": records, "export.md": export}

if __name__ == "__main__":
    for name, made in PAGES.items():
        page = DOCS / name
        page.write_text(made(page.read_text()))
