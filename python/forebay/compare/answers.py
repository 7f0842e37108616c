"""Answers of a verdict beside the ratio: why the effect of a path can't be told here, or why there is none."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.numbers import significant
from forebay.paths import GDS_COMPAT
from forebay.train.advice import COMPATIBILITY, keeps_up

# A verdict's `answer`.
COMPATIBILITY_MODE, COMPUTE_BOUND = "compatibility mode", "compute-bound"
# Figures that a wait for batches shows in.
OF_TIME = ("train.samples_per_s", "train.seconds_to_target")
TRY = "forebay doctor, for what direct DMA lacks here"
Records = Sequence[Mapping[str, Any]]


def completed(verdict: dict[str, str], metric: str, sides: Mapping[str, Records]) -> dict[str, str]:
    """The verdict with its `answer`, which its text begins with. `sides`: names → records of the same pairs."""
    by_compatibility = [name for name, records in sides.items() if any(_ran(r) == GDS_COMPAT for r in records)]
    if by_compatibility and len(by_compatibility) < len(sides):
        text = f"the effect of GPUDirect Storage {COMPATIBILITY} ({', '.join(by_compatibility)}); {verdict['text']}"
        next = "; ".join(each for each in (TRY, verdict["next"]) if each)
        return {**verdict, "text": text, "next": next, "answer": COMPATIBILITY_MODE}
    waits = {name: _wait_pct(records) for name, records in sides.items()}
    if metric not in OF_TIME or verdict["kind"] not in ("same", "too_noisy") or None in waits.values():
        return {**verdict, "answer": ""}
    shares = ", ".join(f"{significant(pct or 0.0)} % in {name}" for name, pct in waits.items())
    why = f"compute-bound (of the time, waits for batches are {shares})"
    if verdict["kind"] == "same":
        return {**verdict, "text": f"no effect: {why}; {verdict['text']}", "answer": COMPUTE_BOUND}
    return {**verdict, "text": f"{verdict['text']}; both are {why}", "answer": ""}


def _ran(record: Mapping[str, Any]) -> Any:
    return (record.get("path") or {}).get("ran")


def _wait_pct(records: Records) -> float | None:
    """The median share of the time in which trainings waited for batches; None unless most kept up with the model."""
    parts = [record.get("train") or {} for record in records]
    if sum(map(keeps_up, parts)) <= len(parts) / 2:
        return None
    return statistics.median(part["input_wait_pct"] for part in parts if part.get("input_wait_pct") is not None)
