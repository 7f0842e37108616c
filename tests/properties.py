"""What `make test` tries of a property or of a table of cases, of which `make test-long` tries all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

ALL = os.environ.get("FOREBAY_TEST_ALL") == "1"
# Letters, digits, signs, controls, spaces, marks, other scripts and directions, and the last of the planes.
KINDS = (
    "abcxyzABZ0129 \t\n\r\0\x1b\x7f.,:;=+-_/\\|'\"`<>()[]{}&%#$~*?!@^"
    "äÖßéŉİſ\x85\xa0\xad\u0301٣½²א\u200b\u2028\u202e\u3000日本\ue000\ufeff\uffff\U0001f600\U0010ffff"
)


def share(count: int) -> int:
    return count if ALL else max(2, -(-count // 8))


def any_text(**more: Any) -> st.SearchStrategy[str]:
    """Any text; in `make test` of few characters of each kind: Hypothesis' table of all takes 2.4 s of each worker."""
    return st.text(**more) if ALL else st.text(KINDS, **more)


def examples(count: int, **more: Any) -> settings:
    """`@settings(max_examples=count)`, of which `make test` tries a share."""
    return settings(max_examples=share(count), **more)


def parametrized(names: str | Sequence[str], rows: Iterable[Any], *, kept: Iterable[int], **more: Any) -> pytest.MarkDecorator:
    """`@pytest.mark.parametrize(names, rows)`, whose rows outside the places `kept` are marked `long`."""
    kept, single = set(kept), isinstance(names, str) and "," not in names
    made = []
    for place, row in enumerate(rows):
        if not hasattr(row, "marks"):
            row = pytest.param(row) if single else pytest.param(*row)
        made.append(row if place in kept else row._replace(marks=[*row.marks, pytest.mark.long]))
    return pytest.mark.parametrize(names, made, **more)
