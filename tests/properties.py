"""What `make test` tries of a property or of a table of cases, of which `make test-long` tries all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings

ALL = os.environ.get("FOREBAY_TEST_ALL") == "1"


def share(count: int) -> int:
    return count if ALL else max(2, -(-count // 8))


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
