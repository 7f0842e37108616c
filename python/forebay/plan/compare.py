"""`forebay plan compare`: drives, their number, local or remote, with GPUDirect Storage or without, in one table.

Each row is a plan; beside it stands what it is of the same drives locally with GPUDirect Storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import RequestError
from forebay.numbers import figure
from forebay.paths import GDS
from forebay.plan import answer, assume, whatif
from forebay.plan.planner import Planner
from forebay.plan.system import System, make

AXES = ("drive", "drives", "location", "path")
ROWS_MAX = 2_000
# What a workload is compared by, the first that an answer has; and whether less of it is better.
BY = (
    ("training_time_min", "minutes to train", True),
    ("checkpoint_read_s", "seconds to read the checkpoint", True),
    ("load_s", "seconds to load", True),
    ("start_s", "seconds to start", True),
    ("accelerators_max", "accelerators", False),
    ("throughput_gib_s", "GiB/s", False),
)
# What differs from row to row, and stands there.
VARIED = ("drives", "location", "path", "requests")
# Between so much and its inverse nobody would tell two systems apart.
ALIKE_PCT = 1.0


def axes(texts: Mapping[str, str | None], values: dict[str, Any]) -> dict[str, list[Any]]:
    """The lists of a command's flags. Sets in `values`, the flags of one system, the first of each. RequestError without a
    drive."""
    found = {}
    for key in AXES:
        text = texts[key]
        if text is None:
            if values["calibration"] is None and values["file"] is None:
                raise RequestError("compare", "names no drive", "--drive D7-PS1010,D5-P5336")
            continue
        found[key] = list(dict.fromkeys(whatif.listed(key, text, f"--{key} {text}")))
        if key != "location":
            values[key] = found[key][0]
    # Queues are of remote drives; the first system is only asked what it was told.
    values["location"] = "remote" if "remote" in found["location"] else "local"
    if values["location"] == "local" or values.get("hosts"):
        values["drives"] = None
    return found


def systems(base: System, lists: Mapping[str, list[Any]], more: list[Any]) -> list[System]:
    """Every combination; queues only where drives are remote. RequestError for one that can't exist, or for too many."""
    count = 1
    for values in lists.values():
        count *= len(values)
    if count > ROWS_MAX:
        raise RequestError("compare", f"has {count} rows", f"at most {ROWS_MAX}")
    found = []
    for combination in itertools.product(*lists.values()):
        settings = {**base.settings, **dict(zip(lists, combination, strict=True))}
        if settings["location"] == "local":
            settings.pop("queues", None)
        found.append(make(settings, more, "compare"))
    return found


def compare(planner: Planner, base: System, lists: Mapping[str, list[Any]], more: list[Any]) -> dict[str, Any]:
    """forebay.plan-compare/1: a row for each combination, and what place and path cost on average."""
    if base.caches:
        raise RequestError("compare with workload kvcache", "isn't planned over ranges", "plan run for each, or plan recommend")
    asked = systems(base, lists, more)
    rows = [row(planner, system) for system in asked]
    by, name, less = next(entry for entry in BY if entry[0] in rows[0])
    place = {_place(r["query"]): r for r in rows}
    for r in rows:
        beside = place.get((*_place(r["query"])[:2], "local", GDS))
        r["of_local_gds"] = _gain(beside[by], r[by], less) if beside is not None else None
    assumed = [a for a in assume.listed(planner, assume.with_requests(planner, asked[0])) if a.name not in VARIED]
    return {
        "schema": "forebay.plan-compare/1",
        "by": by,
        "by_name": name,
        "less_is_better": less,
        "axes": {key: list(values) for key, values in lists.items()},
        "assumed": [a.document() for a in assumed],
        "verdicts": [v for key in ("location", "path") if (v := verdict(rows, key, by, name, less))],
        "rows": rows,
    }


def row(planner: Planner, system: System) -> dict[str, Any]:
    """The figures of one plan, as `plan run` gives them."""
    whole = answer.answer(planner, system)
    kept = ("elasticity", "next", "enough", "parameters", "assumed", "schema", "origin")
    return {key: value for key, value in whole.items() if key not in kept}


def _place(query: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(query[key] for key in AXES)


def _gain(base: float, value: float, less: bool) -> float | None:
    """How many times as good `value` is."""
    if base <= 0 or value <= 0:
        return None
    return base / value if less else value / base


def verdict(rows: Sequence[Mapping[str, Any]], key: str, by: str, name: str, less: bool) -> str:
    """What remote instead of local, or bounce instead of GPUDirect Storage, changes: over all pairs of rows; "" without one."""
    first, second, words = {
        "location": ("local", "remote", "remote instead of local"),
        "path": (GDS, "cpu", "a bounce buffer instead of GPUDirect Storage"),
    }[key]
    at = AXES.index(key)
    others = {_place(r["query"]): r for r in rows}
    pairs = []
    for place, r in others.items():
        other = others.get((*place[:at], second, *place[at + 1 :]))
        if place[at] == first and other is not None:
            pairs.append((r, other))
    gains = [g for a, b in pairs if (g := _gain(a[by], b[by], less)) is not None]
    if not gains:
        return ""
    low, high = (100 * (g - 1) for g in (min(gains), max(gains)))
    if max(abs(low), abs(high)) < ALIKE_PCT:
        reported = f"no difference in {name}"
    elif high - low < ALIKE_PCT:
        reported = f"{low:+.0f} % {name}" if not less else f"{-low:+.0f} % {name}"
    else:
        reported = f"{low:+.0f} to {high:+.0f} % as good in {name}" if less else f"{low:+.0f} to {high:+.0f} % {name}"
    if key == "path":
        cores = [b["cpu_cores"] - a["cpu_cores"] for a, b in pairs]
        reported += f", {figure(min(cores))} to {figure(max(cores))} more cores busy"
    return f"{words}: {reported}"
