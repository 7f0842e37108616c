"""The reference's arithmetic over rank files: summed over the ranks of a trial, averaged over trials.

Its fields are named gbps and hold GiB/s; names and values stay as its readers expect them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeGuard

# Aggregated name → where a rank file has it, below `summary`. Each is summed over ranks.
SUMS = {
    "aggregated_read_bandwidth_gbps": ("cache_stats", "tier_storage_read_bandwidth_gbps"),
    "aggregated_write_bandwidth_gbps": ("cache_stats", "tier_storage_write_bandwidth_gbps"),
    "aggregated_avg_throughput_tokens_per_sec": ("avg_throughput_tokens_per_sec",),
    "aggregated_storage_throughput_tokens_per_sec": ("storage_throughput_tokens_per_sec",),
}
LATENCY = "aggregated_p95_latency_ms"
LATENCY_AT = ("storage_io_latency_ms", "p95")
AGGREGATED = (*SUMS, LATENCY)
# Of the rules' text, in summaries of later versions: the largest of a rank.
DEVICE_LATENCIES = {
    "aggregated_device_read_p95_ms": "storage_read_device_p95_ms",
    "aggregated_device_write_p95_ms": "storage_write_device_p95_ms",
}


@dataclass(frozen=True)
class Slot:
    """The place of a rank's file in a trial. `document`: None where there is no file, or none that can be read."""

    place: str
    document: Mapping[str, Any] | None = None


def aggregate(trials: Sequence[Sequence[Slot]], ranks: int) -> dict[str, Any]:
    """An option's part of summary.json. A trial without any file counts with 0, as it does in the reference."""
    sums: dict[str, list[float]] = {name: [] for name in SUMS}
    latencies: list[float] = []
    missing: list[str] = []
    in_memory: list[str] = []
    for trial in trials:
        found: list[dict[str, float]] = []
        for slot in trial:
            figures = figures_of(slot.document)
            if figures is None:
                missing.append(slot.place)
                continue
            found.append(figures)
            if nested(slot.document, ("summary", "cache_stats", "storage_entries")) == 0:
                in_memory.append(slot.place)
        for name in SUMS:
            sums[name].append(math.fsum(each[name] for each in found))
        latencies.append(max((each[LATENCY] for each in found), default=0.0))
    return {
        **{name: fmean(values) if values else 0.0 for name, values in sums.items()},
        LATENCY: max(latencies, default=None),
        "rank_count": ranks,
        "trial_count": len(trials),
        "partial_failure": bool(missing),
        "missing_files": missing,
        "cpu_tier_ranks": in_memory,
    }


def device_latencies(trials: Sequence[Sequence[Slot]]) -> dict[str, float]:
    """The rules' latencies of devices; 0 for a rank that has none."""
    documents = [slot.document for trial in trials for slot in trial if slot.document is not None]
    found: dict[str, float] = {}
    for name, key in DEVICE_LATENCIES.items():
        values = [nested(document, ("summary", "cache_stats", key), 0.0) for document in documents]
        found[name] = max((float(v) for v in values if is_number(v)), default=0.0)
    return found


def figures_of(document: Mapping[str, Any] | None) -> dict[str, float] | None:
    """What a rank file contributes; 0 for a key that it lacks, None where it holds something else than numbers."""
    if document is None:
        return None
    figures: dict[str, float] = {}
    for name, keys in (*SUMS.items(), (LATENCY, LATENCY_AT)):
        value = nested(document, ("summary", *keys), 0.0)
        if not is_number(value):
            return None
        figures[name] = float(value)
    return figures


def nested(document: Any, keys: Sequence[str], default: Any = None) -> Any:
    """The value below these keys; `default` where one is missing."""
    for key in keys:
        if not isinstance(document, Mapping) or key not in document:
            return default
        document = document[key]
    return document


# Bytes, tokens, milliseconds: no figure of a run comes near, and products and quotients of these stay finite.
NUMBER_MIN, NUMBER_MAX = 1e-12, 1e18


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether it is a number that a measurement can have."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == 0 or NUMBER_MIN <= abs(value) <= NUMBER_MAX


def reported(value: Any) -> str:
    """A value of a file in a message: short, on one line, without a character that a terminal acts on."""
    if isinstance(value, (str, int, float)):
        return json.dumps(value)[:40]
    return "no number" if value is not None else "null"
