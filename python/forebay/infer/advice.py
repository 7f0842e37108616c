"""Advice, from a record's part `infer` alone: storage, start-up. Pure: figures in, sentences out."""

from __future__ import annotations

from typing import Any

from forebay.numbers import bytes_, percent, ratio, seconds, significant
from forebay.units import GIB

# Supply ÷ need: below the first a test is bound by its supply, above the second by its compute.
BOUND_BELOW, FREE_ABOVE = 0.95, 1.05
# Of the file in the page cache, per cent from which on a rate says nothing of drives.
CACHED_LEAST = 10.0


def advice(infer: dict[str, Any]) -> list[dict[str, str]]:
    """Sentences with their areas, of what was measured."""
    made = [("storage", _storage(infer)), ("start-up", _start(infer))]
    return [{"area": area, "text": text} for area, text in made if text]


def _storage(infer: dict[str, Any]) -> str | None:
    mode, rate, peak = infer["mode"], infer["samples_per_s"], infer["peak_samples_per_s"]
    if mode == "ram" and infer["timed_storage_bytes"] == 0 and rate:
        return (
            "Drives have no effect on this test: its samples were in memory when the clock started, and none came from storage."
        )
    if mode != "cold" or not rate or not infer["demand_gib_s"]:
        return None
    supply, need = infer["supply_gib_s"], infer["demand_gib_s"]
    took = rate * infer["sample_bytes"] / GIB
    if supply is None:
        reported = (
            f"Samples read inside their queries took {significant(took)} GiB/s; the model alone would take {significant(need)} "
            f"({percent(rate / peak)} of its peak was reached)."
        )
        cached = infer.get("cached_pct") or 0.0
        if cached < CACHED_LEAST:
            return reported
        return f"{reported} {percent(cached / 100)} of their file lay in the page cache: --cache cold asks the drives."
    if supply < BOUND_BELOW * need:
        return (
            f"The supply limits this test: {significant(supply)} GiB/s is {percent(supply / need)} of what the model takes; "
            f"up to {ratio(need / supply)} times the drives would speed it up."
        )
    if supply > FREE_ABOVE * need:
        return f"More drives gain nothing here: the supply is {ratio(supply / need)} times what the model takes."
    return "Supply and compute are about balanced: to gain more than a few per cent, both have to grow."


def _start(infer: dict[str, Any]) -> str | None:
    start = infer["coldstart"]
    if start is not None:
        share = start["read_s"] / start["total_s"] if start["total_s"] else 0.0
        reported = f"Reading {bytes_(infer['weights_bytes'])} of weights is {percent(share)} of the start"
        drives = start["at_supply"]
        if drives:
            listed = ", ".join(f"{seconds(row['total_s'])} with {row['drives']}" for row in drives)
            return f"{reported}; by its parts the start would take {listed} such drives."
        return f"{reported}: faster storage saves {seconds(start['read_s'])} at most."
    if infer["mode"] == "ram" and infer["load_s"]:
        load = f"{bytes_(infer['load_bytes'])} took {seconds(infer['load_s'])}"
        return f"Faster storage shortens the load alone: {load}, before the clock started."
    return None
