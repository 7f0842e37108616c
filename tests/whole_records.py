"""Records of tests as the engine reads them: with every field that it writes."""

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
