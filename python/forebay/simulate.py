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


def kvcache_option(number: int) -> dict[str, Any]:
    """Returns the KvSpec of one of MLPerf Storage v3.0's options. Raises RequestError where there is none."""
    from forebay import _core

    return json.loads(_core.kvcache_option(max(min(number, 99), 0)))


def kvcache(spec: dict[str, Any]) -> dict[str, Any]:
    """Plays a KvSpec whose `dir` is `model:DRIVE` in virtual time, and returns the record's part `kvcache`.

    Raises RequestError for what can't be, KeyboardInterrupt where `_core.stop()` was called.
    """
    from forebay import _core

    record = json.loads(_core.kvcache_run(json.dumps(spec), [], None, None, None))
    if record["result"].get("interrupted"):
        raise KeyboardInterrupt
    return record["kvcache"]
