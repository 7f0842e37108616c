"""`forebay plan whatif`: one or two settings varied over ranges, everything else as it is."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from forebay.errors import RequestError
from forebay.plan import answer, assume
from forebay.plan.planner import Planner
from forebay.plan.system import System, make
from forebay.units import parse_bytes

POINTS_MAX = 10_000
AXES = (
    "drives", "queues", "io_size", "workers", "depth", "accelerators", "drive", "path", "link", "threads", "cores", "memory",
    "dataset",
)  # fmt: skip
REAL = ("memory", "dataset")
RANGE = re.compile(r"^(\d+):(\d+)(?::(\d+))?$")


def axis(text: str) -> tuple[str, list[Any]]:
    """`drives=1:8`, `queues=1:31:5`, `io_size=64k,128k`, `drive=A,B` → name and values. RequestError for others."""
    name, _, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in AXES or not values:
        raise RequestError(f"--vary {text}", "names no setting that can vary", "drives=1:8; one of " + ", ".join(AXES))
    match = RANGE.match(values)
    if match and name != "io_size":
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if step < 1 or high < low or (high - low) // step > POINTS_MAX:
            raise RequestError(f"--vary {text}", f"is not a range of at most {POINTS_MAX} points", f"{name}=1:8")
        return name, list(range(low, high + 1, step))
    return name, [_one(name, v.strip()) for v in values.split(",")]


def _one(name: str, text: str) -> Any:
    if name == "io_size":
        return parse_bytes(text, "io_size")
    if name in ("drive", "path", "link"):
        return text
    try:
        return float(text) if name in REAL else int(text)
    except ValueError:
        raise RequestError(f"--vary {name}={text}", "is not a number", f"{name}=1,2,4") from None


def systems(base: System, axes: Sequence[tuple[str, list[Any]]], more: list[Any]) -> list[System]:
    """Every combination. RequestError for one that can't exist, or for too many."""
    names = [name for name, _ in axes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RequestError(f"--vary {twice[0]}", "is given twice", f"one --vary {twice[0]}=… with all its values")
    count = 1
    for _, values in axes:
        count *= len(values)
    if count > POINTS_MAX:
        raise RequestError("--vary", f"gives {count} points", f"at most {POINTS_MAX}")
    found = []
    for combination in itertools.product(*(v for _, v in axes)):
        found.append(make({**base.settings, **dict(zip((n for n, _ in axes), combination, strict=True))}, more, "--vary"))
    return found


def points(planner: Planner, asked: list[System]) -> list[dict[str, Any]]:
    """Throughput of each, and what its workload gives, with intervals."""
    settled = [assume.settle(planner, system) for system in asked]
    rates = answer.rates(planner, settled)
    extra = answer.jobs_estimates(planner, settled)
    found = []
    for system, rate, more in zip(settled, rates, extra, strict=True):
        estimates = {"throughput_gib_s": answer.moved_gibps(planner, system, more) if more else rate, **more}
        row = answer.flat(system, estimates)
        row["warnings"] = answer.warnings(system)
        row["bottleneck"] = answer.limiting(system, estimates).bottleneck
        found.append(row)
    return found
