"""`forebay plan whatif`: one or two settings varied over ranges, everything else as it is."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from typing import Any

from forebay.errors import RequestError
from forebay.plan import answer, assume
from forebay.plan.planner import Planner
from forebay.plan.system import KEYS, KV_WHOLE, RATES, REAL, WHOLE, System, make
from forebay.units import parse_bytes, spread

POINTS_MAX = 10_000
# A KV cache isn't planned over ranges, and a tree of switches is no list.
AXES = tuple(key for key in KEYS if key not in (*KV_WHOLE, "model", "pcie"))
RANGE = re.compile(r"^([0-9][^:]*):([^:]+)(?::([^:]+))?$")


def axis(text: str) -> tuple[str, list[Any]]:
    """`drives=1:8` (1, 2, 4, 8), `queues=1:31:5`, `io-size=64k,128k`, `drive=A,B` → name and values, by the names of flags.

    RequestError for others.
    """
    name, _, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    if name not in AXES or not values:
        known = [axis.replace("_", "-") for axis in AXES]
        near = difflib.get_close_matches(name.replace("_", "-"), known, n=1)
        said = "names no setting that can vary" + (f"; did you mean {near[0]}?" if near else "")
        raise RequestError(f"--vary {text}", said, "drives=1:8; one of " + ", ".join(known))
    return name, listed(name, values, f"--vary {text}")


def listed(name: str, values: str, asked: str) -> list[Any]:
    """The values of a setting, a list with commas. Of whole numbers and sizes also ranges, as a sweep has them: `1:8` doubles,
    `1:31:5` goes by steps."""
    found = [one for value in values.split(",") for one in _spread(name, value.strip(), asked)]
    return list(dict.fromkeys(found))


def _spread(name: str, text: str, asked: str) -> list[Any]:
    match = RANGE.match(text)
    if match is None or name not in (*WHOLE, "io_size"):
        return [_one(name, text, asked)]
    flag = name.replace("_", "-")
    low, high = (_one(name, part, asked) for part in match.groups()[:2])
    step = 0 if match[3] is None else _one(name, match[3], asked)
    if high < low or low < 1 or match[3] is not None and step < 1:
        raise RequestError(asked, f"{text} is not a range from the least to the most", f"{flag}=1:8, which doubles, or 1:8:1")
    found = spread(low, high, step, POINTS_MAX)
    if len(found) > POINTS_MAX:
        raise RequestError(asked, f"{text} has more points than the at most {POINTS_MAX:,}", f"{flag}={match[1]}:{match[2]}")
    return found


def _one(name: str, text: str, asked: str) -> Any:
    if name == "io_size":
        return parse_bytes(text, "io_size")
    if name in RATES or name not in (*REAL, *WHOLE):
        return text
    try:
        return float(text) if name in REAL else int(text)
    except ValueError:
        raise RequestError(asked, f"'{text}' is not a number", f"{name.replace('_', '-')}=1,2,4") from None


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
    settled = assume.settle_all(planner, asked)
    rates = answer.rates(planner, settled)
    extra = answer.jobs_estimates(planner, settled)
    found = []
    for system, rate, more in zip(settled, rates, extra, strict=True):
        estimates = {"throughput_gib_s": answer.moved_gibps(planner, system, more) if more else rate, **more}
        row = answer.flat(system, estimates)
        row["of_rate"] = answer.of_rate(system)
        row["warnings"] = answer.warnings(system)
        row["bottleneck"] = answer.limiting(system, estimates).bottleneck
        found.append(row)
    return found
