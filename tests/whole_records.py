"""Records of tests as the engine reads them: with every field that it writes, and judged by it."""

from __future__ import annotations

import json
from typing import Any

from forebay import _core

ABSENT = "the record has no such field"


def whole(made: dict[str, Any]) -> dict[str, Any]:
    """`made` with the default of each field that it leaves out. RequestError where the engine couldn't have written it."""
    read = json.loads(_core.read_record(json.dumps(made)))
    read["missing"] = {field: why for field, why in read["missing"].items() if why != ABSENT}
    return read


def judged(made: dict[str, Any]) -> dict[str, Any]:
    """The same, with the warnings that follow from its figures in place of those that it has."""
    return whole({key: value for key, value in made.items() if key != "warnings"})
