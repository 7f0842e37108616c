"""The number of examples of a property: `make test` tries a quarter of them, `make test-long` all."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

ALL = os.environ.get("FOREBAY_TEST_ALL") == "1"


def share(count: int) -> int:
    return count if ALL else max(2, -(-count // 4))


def examples(count: int, **more: Any) -> settings:
    """`@settings(max_examples=count)`, of which `make test` tries a share."""
    return settings(max_examples=share(count), **more)
