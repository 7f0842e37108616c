"""Contradictions between a record's parts: the only place that decides whether a record's figures can be believed.

A record comes from another machine and another day, and may have been edited. Its headline follows from its parts, so it is
calculated anew from them; one that doesn't is said and left out by whoever reads records (`report`, `export`, `compare`,
`plan`, `emulate check`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from forebay.units import GIB

# Figures are rounded where they are stored as text; and a rate of repeats is their mean.
RATE_OFF_MOST = 0.02
AU_OFF_MOST = 0.05
# Two floating-point roads to one number.
NEARLY = 1e-6
RULE_SETS_BY_SUMS = ("text",)
# Numbers that can't be below zero, wherever they stand in a result.
NEVER_NEGATIVE = (
    "seconds", "bytes", "ios", "read_bytes", "write_bytes", "throughput_gib_s", "iops", "samples_per_s",
    "throughput_mib_s", "watts_mean", "joules_per_gib", "user_s", "system_s", "cores_busy", "cpu_s_per_gib",
    "min", "mean", "p50", "p90", "p99", "p999", "max",
)  # fmt: skip


def contradictions(record: Mapping[str, Any]) -> list[str]:
    """Each in words; none where the record's parts agree as far as it has them."""
    result, training = record.get("result"), record.get("training")
    found: list[str] = []
    if isinstance(result, Mapping):
        found += impossible(result, "result")
        found += rates(result, simulated=record.get("origin") != "measured")
    if isinstance(training, Mapping):
        found += impossible({k: training.get(k) for k in ("au_pct", "samples_per_s", "throughput_mib_s", "samples")}, "training")
        found += utilisation(training)
    return found


def impossible(part: Any, place: str) -> Iterator[str]:
    """Numbers that aren't finite, or are below zero where that can't be."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            name = f"{place}.{key}"
            if is_number(value):
                if not math.isfinite(value):
                    yield f"{name} is {value}"
                elif value < 0 and (key in NEVER_NEGATIVE or key == "au_pct"):
                    yield f"{name} is {value:g}, below zero"
                elif key == "au_pct" and value > 100 + AU_OFF_MOST:
                    yield f"{name} is {value:g} %, more than all of the time"
            else:
                yield from impossible(value, name)
    elif isinstance(part, list):
        for number, value in enumerate(part[:1000]):
            yield from impossible(value, f"{place}[{number}]")


def rates(result: Mapping[str, Any], simulated: bool) -> Iterator[str]:
    """Rates that aren't bytes and I/Os by the time that they took; of each repeat, where there are several."""
    repeats = result.get("repeats")
    parts = [(f"result.repeats[{n}]", r) for n, r in enumerate(repeats)] if isinstance(repeats, list) else []
    if len(parts) < 2:
        parts = [("result", result)]
    for place, part in parts:
        if not isinstance(part, Mapping):
            continue
        seconds = part.get("seconds")
        if not is_number(seconds) or not math.isfinite(seconds) or seconds <= 0:
            continue
        for rate, amount, unit in (("throughput_gib_s", "bytes", GIB), ("iops", "ios", 1)):
            reported, count = part.get(rate), part.get(amount)
            if not is_number(reported) or not is_number(count) or not math.isfinite(reported) or reported < 0:
                continue
            right = count / unit / seconds
            if abs(reported - right) > RATE_OFF_MOST * max(reported, right) + NEARLY:
                yield f"{place}.{rate} is {reported:.6g}, and {amount} by seconds give {right:.6g}"


def utilisation(training: Mapping[str, Any]) -> Iterator[str]:
    """AU that doesn't follow from its epochs, or theirs from the times of their accelerators."""
    epochs = training.get("epochs")
    epochs = [e for e in epochs if isinstance(e, Mapping)] if isinstance(epochs, list) else []
    rules, reported = training.get("rule_set"), training.get("au_pct")
    for number, epoch in enumerate(epochs, start=1):
        right = of_spans(epoch.get("accelerators"), rules)
        au = epoch.get("au_pct")
        if right is not None and is_number(au) and abs(au - right) > AU_OFF_MOST:
            yield f"epoch {number} says AU {au:.2f} %, and the times of its accelerators give {right:.2f} %"
    each = [e.get("au_pct") for e in epochs if is_number(e.get("au_pct"))]
    if is_number(reported) and each:
        low, high = min(each) - AU_OFF_MOST, max(each) + AU_OFF_MOST
        right = sum(each) / len(each)
        by_sums = rules in RULE_SETS_BY_SUMS
        if (by_sums and not low <= reported <= high) or (not by_sums and abs(reported - right) > AU_OFF_MOST):
            yield f"AU is {reported:.2f} %, and its epochs have {', '.join(f'{au:.2f}' for au in each[:5])}"
    least, passes = training.get("au_pct_min"), training.get("passes")
    if passes is True and is_number(reported) and is_number(least) and reported < least - NEARLY:
        yield f"it is said to pass with AU {reported:.2f} %, below {least:g} %"


def of_spans(accelerators: Any, rules: Any) -> float | None:
    """Utilisation of an epoch from start, first step and end of each accelerator; None where they aren't told."""
    if not isinstance(accelerators, list) or not accelerators:
        return None
    busy_s, counted_s, shares = 0.0, 0.0, []
    for one in accelerators:
        try:
            start, wait_end, first_end, end = (
                float(one[key]) for key in ("start_s", "first_wait_end_s", "first_step_end_s", "end_s")
            )
            steps, compute = int(one["steps"]), float(one["compute_s"])
        except (KeyError, TypeError, ValueError):
            return None
        if steps < 1 or not start <= wait_end <= first_end <= end:
            return None
        by_text = rules in RULE_SETS_BY_SUMS
        busy = compute if by_text else compute * (steps - 1) / steps
        counted = end - (wait_end if by_text else first_end)
        busy_s, counted_s = busy_s + busy, counted_s + counted
        shares.append(100 * busy / counted if counted > 0 else None)
    if rules in RULE_SETS_BY_SUMS:
        return 100 * busy_s / counted_s if counted_s > 0 else None
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if len(known) == len(shares) else None


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether it is one that arithmetic goes on with: an integer of a thousand digits isn't."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or value.bit_length() < 1000
