"""One simulation through the engine: the entry point that plans use and tests replace."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Fleet = dict[str, Any]
Outcome = dict[str, Any]


def play(fleet: Fleet, observer: Callable[[float], None] | None = None) -> Outcome:
    """Plays `fleet` (as crates/model's simulate::fleet has it) in virtual time.

    `observer` is given the share that is done, 0 to 1, some four times a second. Raises RequestError for what can't be.
    Where `_core.stop()` was called it returns what came until then, with `interrupted` true.
    """
    from forebay import _core

    def relay(text: str) -> None:
        if observer is not None:
            observer(json.loads(text)["share"])

    return json.loads(_core.simulate_fleet(json.dumps(fleet), relay))
