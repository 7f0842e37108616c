"""A table in plain text."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns padded to their widest cell; the first to the left, the rest to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
