"""`path="auto"` call by call, beside the two paths that it chooses from: what bench/rows.py prints last.

A file is opened anew by each path and asked for random rows, one call after the other. Two things have to hold. Once auto has
settled, it is as good as the path that it is to take: of those that reach two thirds of the fastest's rate, the one with the
least CPU time. And until then nobody has lost much who left the path open: the time of the first N calls is compared with
the better of both, which only whoever knows N beforehand can choose.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from child import Child
from side_by_side import Unavailable, say

PATHS = ("auto", "bounce", "mapped")
ROW_BYTES = (128, 512, 912, 4096, 16 << 10, 64 << 10)
# A piece of `read_at`, which is longer than a row that one launch fetches.
PIECE_BYTES = 2 << 20
CALLS = 100
FIRST = (1, 3, 10, 100)
# Of so many calls at the end a path counts as settled.
SETTLED = 20
ROWS_MAX, CALL_BYTES_MAX = 1_000_000, 1 << 30
RATE_SHARE_MIN = 2 / 3
RATE_LEAST, COST_MOST, TIME_MOST = 0.9, 1.2, 1.5


@dataclass(frozen=True)
class Calls:
    """The calls of one path in one round: seconds and CPU seconds of each."""

    seconds: list[float]
    cpu_s: list[float]

    def first_s(self, count: int) -> float:
        return sum(self.seconds[:count])

    @property
    def settled_s(self) -> float:
        """Median of the last calls: what others do on the machine lengthens some."""
        return statistics.median(self.seconds[-SETTLED:])

    @property
    def settled_cpu_s(self) -> float:
        return statistics.median(self.cpu_s[-SETTLED:])


def to_be_taken(rounds: dict[str, Calls]) -> str:
    """The path that auto is to take, by what both give once they have settled."""
    fixed = {path: calls for path, calls in rounds.items() if path != "auto"}
    fastest_s = min(calls.settled_s for calls in fixed.values())
    fast = [path for path, calls in fixed.items() if calls.settled_s * RATE_SHARE_MIN <= fastest_s]
    return min(fast, key=lambda path: fixed[path].settled_cpu_s)


def measure(child: Child, rounds: int) -> list[dict[str, Any]]:
    """One entry for each length of row: the ratios of every round, and what holds by their medians."""
    found = []
    for size in (*ROW_BYTES, PIECE_BYTES):
        at_once = min(ROWS_MAX, CALL_BYTES_MAX // size)
        reported: list[dict[str, Any]] = []
        for number in range(rounds):
            try:
                paths = PATHS if number % 2 == 0 else PATHS[::-1]
                reported.append(judged({path: asked(child, path, size, at_once) for path in paths}, at_once))
            except Unavailable as reason:
                say(f"{size} bytes, call by call: left out: {reason}")
                break
            say(f"{size} bytes, call by call, round {number + 1}/{rounds}: {reported[-1]}")
        if reported:
            found.append({"row_bytes": size, "rows_a_call": at_once, "rounds": reported, **holds(reported)})
    return found


def asked(child: Child, path: str, size: int, at_once: int) -> Calls:
    reported = child.ask({"path": path, "row_bytes": size, "at_once": at_once, "calls": CALLS}, 120.0)
    return Calls(reported["call_s"], reported["call_cpu_s"])


def judged(rounds: dict[str, Calls], at_once: int) -> dict[str, Any]:
    auto, take = rounds["auto"], to_be_taken(rounds)
    fixed = [rounds[path] for path in PATHS if path != "auto"]
    # The least that a clock of CPU time tells apart is a hundred thousandth of a second.
    cost = max(auto.settled_cpu_s, 1e-5) / max(rounds[take].settled_cpu_s, 1e-5)
    return {
        "takes": take,
        "million_rows_s": round(at_once / auto.settled_s / 1e6, 3),
        "cpu_ns_per_row": round(auto.settled_cpu_s / at_once * 1e9, 1),
        "rate": round(rounds[take].settled_s / auto.settled_s, 3),
        "cost": round(cost, 3),
        "first": {str(n): round(auto.first_s(n) / min(calls.first_s(n) for calls in fixed), 3) for n in FIRST},
        "settled": {path: [calls.settled_s, calls.settled_cpu_s] for path, calls in rounds.items()},
    }


def holds(reported: list[dict[str, Any]]) -> dict[str, Any]:
    rate = statistics.median(t["rate"] for t in reported)
    cost = statistics.median(t["cost"] for t in reported)
    first = {n: statistics.median(t["first"][str(n)] for t in reported) for n in FIRST}
    good = rate >= RATE_LEAST and cost <= COST_MOST and max(first.values()) <= TIME_MOST
    return {"rate": rate, "cost": cost, "first": first, "holds": good}


def table(found: list[dict[str, Any]]) -> str:
    lines = [
        f"Auto, call by call: its rate (≥ {RATE_LEAST}) and CPU time (≤ {COST_MOST}) once settled, ÷ those of the path "
        f"that it is to take; and the time of its first N calls ÷ the better of both paths' (≤ {TIME_MOST}).",
        "",
        "| row bytes | rows a call | to be taken | million rows/s | CPU ns a row | rate | CPU | N = 1 | 3 | 10 | 100 | |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for one in found:
        last = one["rounds"][-1]
        takes = "/".join(sorted({t["takes"] for t in one["rounds"]}))
        first = " | ".join(f"{one['first'][n]:.2f}" for n in FIRST)
        lines.append(
            f"| {one['row_bytes']} | {one['rows_a_call']} | {takes} | {last['million_rows_s']} | {last['cpu_ns_per_row']} "
            f"| {one['rate']:.2f} | {one['cost']:.2f} | {first} | {'holds' if one['holds'] else '**falls short**'} |"
        )
    return "\n".join(lines) + "\n"
