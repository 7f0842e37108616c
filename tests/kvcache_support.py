"""Results of the KV cache workload as the reference writes them: rank files, their tree, its summary, its logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from forebay.units import GIB

STAMP = "20260523_120000"
SETTLED = ("p50", "p95", "p99", "p999", "p9999")
Typed = Callable[..., tuple[int, str, str]]


def rank_document(
    read_gib: float = 1200.0, written_gib: float = 300.0, longest_s: float = 200.0, seed: int = 42, **other: Any
) -> dict[str, Any]:
    """A file of a rank as the reference leaves it, of 300 s. `other`: keys of `cache_stats`, or of `summary` and the whole."""
    elapsed = other.pop("elapsed_time", 300.0)
    latencies = [longest_s * share for share in (0.1, 0.2, 0.5, 1.0)]
    spread = {"mean": 1000.0 * sum(latencies) / 4, **dict.fromkeys(SETTLED, longest_s * 990.0)}
    whole = {key: other.pop(key) for key in ("end_to_end_latencies",) if key in other}
    summary = {key: other.pop(key) for key in ("qos_metrics", "end_to_end_latency_ms", "storage_io_latency_ms") if key in other}
    return {
        "requests_completed": 4,
        "end_to_end_latencies": latencies,
        "storage_latencies": latencies,
        "throughput_timeline": [],
        "seed": seed,
        **whole,
        "summary": {
            "elapsed_time": elapsed,
            "avg_throughput_tokens_per_sec": 5.0 * read_gib / 1000,
            "storage_throughput_tokens_per_sec": 7.0 * read_gib / 1000,
            "end_to_end_latency_ms": spread,
            "storage_io_latency_ms": {key: value / 10 for key, value in spread.items()},
            "cache_stats": {
                "storage_entries": 12,
                "cpu_entries": 0,
                "offloads_storage": 500,
                "tier_storage_kv_bytes_read_gb": read_gib,
                "tier_storage_kv_bytes_written_gb": written_gib,
                "tier_storage_read_bandwidth_gbps": read_gib / elapsed,
                "tier_storage_write_bandwidth_gbps": written_gib / elapsed,
                "storage_tokens_processed": (read_gib + written_gib) * GIB / 131_072,
                "storage_write_device_p50_ms": 150.0,
                "storage_write_device_p95_ms": 400.0,
                **other,
            },
            **summary,
        },
    }


def put(tree: Path, document: Any, option: int = 1, trial: int = 0, rank: int = 0, stamp: str = STAMP) -> Path:
    """A document, or the text of a damaged one, in its place below a tree."""
    folder = tree / f"option_{option}" / f"trial_{trial}" / f"rank_{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"kvcache_results_{stamp}.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def trials(tree: Path, **other: Any) -> Path:
    """Three alike, as a result has them."""
    for trial in range(3):
        put(tree, rank_document(**dict(other)), trial=trial)
    return tree


@pytest.fixture
def check(capsys: Any) -> Typed:
    """`forebay emulate kvcache check ARGUMENTS…`: exit code, stdout and stderr."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        return typed(capsys, "emulate", "kvcache", "check", *arguments)

    return run


def findings(document: dict[str, Any], fault: bool | None = None) -> list[str]:
    """Identifiers of all, or of faults, or of notes."""
    ranks = [r for option in document["options"].values() for trial in option["trials"] for r in trial["ranks"]]
    every = [*(f for r in ranks for f in r["findings"]), *document["findings"]]
    return [f["id"] for f in every if fault is None or f["fault"] is fault]


def rank_of(document: dict[str, Any], option: str = "1", trial: int = 0, rank: int = 0) -> dict[str, Any]:
    part: dict[str, Any] = document["options"][option]["trials"][trial]["ranks"][rank]
    return part
