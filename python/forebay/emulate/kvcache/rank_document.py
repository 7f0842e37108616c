"""The document of a rank's file, by the reference's keys, from a record's part `kvcache` and the requests it completed.

Keys that the reference has only where there is something to say (percentiles of a tier, the summary of a run without a
completed request) are left out likewise. Its fields are named gbps and gb, and hold GiB/s and GiB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.emulate.kvcache.formula import nested
from forebay.units import GIB

Part = Mapping[str, Any]
PERCENTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
CLASSES = ("interactive", "responsive", "batch")
# The reference's name of a tier → the record's; nothing is ever kept on a GPU.
TIERS = {"gpu": None, "cpu": "host", "storage": "storage"}
# Entries are written past the page cache, or flushed from it: they are on the drive once the whole write has ended. The reference
# counts only the fsync. Nothing is copied on the host, whose share is 0.
SPANS = {"read": "entry_read", "write": "entry_write"}


def document(record: Part, requests: Sequence[Part], rank: int) -> dict[str, Any]:
    part = record.get("kvcache") or {}
    seed = part.get("seed")
    both = [r for r in requests if r.get("phase") != "prefill"]
    whole = [seconds(r, "ended_s") - seconds(r, "arrived_s") for r in requests]
    storage = [seconds(r, "storage_s") for r in requests]
    generation = [0.0] * len(requests)
    found: dict[str, Any] = {
        "requests_completed": len(requests),
        "total_tokens_generated": sum(int(r.get("output") or 0) for r in requests),
        "total_storage_io_latency": math.fsum(storage),
        "total_generation_latency": 0.0,
        "end_to_end_latencies": whole,
        "storage_latencies": storage,
        "generation_latencies": generation,
        "throughput_timeline": [],
        "prefill_latencies": [seconds(r, "prefill_s") for r in requests],
        "decode_latencies": [seconds(r, "decode_s") for r in both],
        "multi_turn_cache_hits": count(part, "hits", "multi_turn"),
        "multi_turn_cache_misses": count(part, "hits", "multi_turn_missed"),
        # Each rank's own, as the reference counts them up.
        "seed": None if seed is None else seed + rank,
    }
    return found | {"summary": summary(part, found)} if requests else found


def summary(part: Part, found: Mapping[str, Any]) -> dict[str, Any]:
    """`found`: what the document has above its summary."""
    duration = amount(part, "duration_s")
    tokens, storage_s = found["total_tokens_generated"], found["total_storage_io_latency"]
    hits, misses = found["multi_turn_cache_hits"], found["multi_turn_cache_misses"]
    prefixes = count(part, "hits", "system_prompt")
    return {
        "total_requests": found["requests_completed"],
        "total_tokens": tokens,
        "elapsed_time": duration,
        "avg_throughput_tokens_per_sec": over(tokens, duration),
        "total_storage_io_time": storage_s,
        "storage_throughput_tokens_per_sec": over(tokens, storage_s),
        "requests_per_second": over(found["requests_completed"], duration),
        "end_to_end_latency_ms": spread(found["end_to_end_latencies"]),
        "storage_io_latency_ms": spread(found["storage_latencies"]),
        "generation_latency_ms": spread(found["generation_latencies"]),
        "cache_stats": cache_stats(part, duration),
        "qos_metrics": {name: quality(nested(part, ("classes", name))) for name in CLASSES},
        "prefix_cache_stats": {
            "prefix_hits": prefixes,
            "prefix_misses": max(found["requests_completed"] - prefixes, 0),
            "system_prompt_reuse": prefixes,
            "common_phrase_reuse": 0,
            "bytes_saved": None,  # not measured
        },
        "autoscaling_stats": [],
        "autoscaling_summary": None,
        "multi_turn_stats": {"cache_hits": hits, "cache_misses": misses, "hit_rate": hits / max(hits + misses, 1)},
    }


def cache_stats(part: Part, duration: float) -> dict[str, Any]:
    moved = {
        (tier, way): amount(part, "tiers", ours, f"{way}_bytes") / GIB if ours else 0.0
        for tier, ours in TIERS.items()
        for way in ("read", "written")
    }
    reads, writes = (sum(count(part, "tiers", tier, key) for tier in ("host", "storage")) for key in ("reads", "writes"))
    read, written = (sum(amount(part, "tiers", t, key) for t in ("host", "storage")) for key in ("read_bytes", "written_bytes"))
    hits, misses = count(part, "hits", "hits"), count(part, "hits", "misses")
    rates = {
        f"tier_{tier}_{name}_bandwidth_gbps": over(moved[tier, way], duration)
        for tier in TIERS
        for name, way in (("read", "read"), ("write", "written"))
    }
    return {
        "cache_hit_rate": over(hits, hits + misses),
        "cache_hits": hits,
        "cache_misses": misses,
        "gpu_entries": 0,
        "cpu_entries": count(part, "tiers", "host", "entries"),
        "storage_entries": count(part, "tiers", "storage", "entries"),
        "gpu_memory_used_gb": 0.0,
        "cpu_memory_used_gb": amount(part, "tiers", "host", "used_bytes") / GIB,
        "offloads_cpu": count(part, "tiers", "host", "writes"),
        "offloads_storage": count(part, "tiers", "storage", "writes"),
        "storage_health": health(rates),
        "prefill_writes": writes,
        "decode_reads": reads,
        **{f"tier_{tier}_kv_bytes_{way}_gb": moved[tier, way] for way in ("written", "read") for tier in TIERS},
        **rates,
        "system_prompt_hits": count(part, "hits", "system_prompt"),
        "common_phrase_hits": 0,
        "user_cache_hits": count(part, "hits", "own"),
        "multi_turn_hits": count(part, "hits", "multi_turn"),
        "total_read_bytes": int(read),
        "total_write_bytes": int(written),
        "total_read_gb": read / GIB,
        "total_write_gb": written / GIB,
        "read_write_ratio": read / max(written, 1),
        "read_iops": reads,
        "write_iops": writes,
        "storage_tokens_processed": amount(part, "tokens", "storage"),
        **latencies(part),
    }


def latencies(part: Part) -> dict[str, float]:
    """`storage_read_p50_ms` and its like, as far as they were measured."""
    return {
        f"storage_{way}{span}_{p}_ms": share * amount(part, "latency_ms", name, p)
        for way, name in SPANS.items()
        for span, share in (("", 1.0), ("_device", 1.0), ("_host", 0.0))
        for p in PERCENTILES
        if nested(part, ("latency_ms", name, p)) is not None
    }


def health(rates: Mapping[str, float]) -> dict[str, Any]:
    """The reference's verdict on bandwidth, which asks for more than 0."""
    criteria = [
        {
            "name": f"Storage KV {name} Bandwidth",
            "target": ">0",
            "actual": f"{rates[f'tier_storage_{name.lower()}_bandwidth_gbps']:.2f}",
            "unit": "GB/s",
            "passed": rates[f"tier_storage_{name.lower()}_bandwidth_gbps"] > 0,
        }
        for name in ("Read", "Write")
    ]
    passed = sum(1 for c in criteria if c["passed"])
    status = "PASS" if passed == len(criteria) else "FAIL"
    return {"overall_status": status, "criteria": criteria, "passed_count": passed, "total_count": len(criteria)}


def quality(of: Part | None) -> dict[str, Any]:
    """A class of users as the reference has it; compliance is a share of its requests."""
    if not of or not of.get("requests"):
        return {"no_data": True}
    compliance = nested(of, ("sla", "compliance"))
    return {
        "total_requests": count(of, "requests"),
        "latency_ms": {key: nested(of, ("latency_ms", key)) for key in ("mean", "p50", "p95", "p99", "max")},
        "sla": {
            "target_p95_ms": nested(of, ("sla", "target_p95_ms")),
            "actual_p95_ms": nested(of, ("sla", "actual_p95_ms")),
            "compliance": compliance,
            "met": nested(of, ("sla", "met")),
        },
    }


def spread(values_s: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles in milliseconds, between neighbours by a straight line."""
    ordered = sorted(values_s)
    return {
        "mean": math.fsum(ordered) / len(ordered) * 1000.0,
        **{name: percentile(ordered, share) * 1000.0 for name, share in PERCENTILES.items()},
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    at = (len(ordered) - 1) * share / 100.0
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def amount(part: Part, *keys: str) -> float:
    """A number of the record; 0 where it is null or missing, as the reference has it for what didn't happen."""
    return float(nested(part, keys) or 0.0)


def count(part: Part, *keys: str) -> int:
    return int(nested(part, keys) or 0)


def seconds(request: Part, key: str) -> float:
    return float(request.get(key) or 0.0)


def over(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
