"""Files of the KV cache workload as the reference's readers expect them: keys, formula, trace, and nothing overwritten."""

from __future__ import annotations

import csv
import json
import random
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest
from forebay.emulate.kvcache import rank_files, tree
from forebay.errors import MachineError, RequestError
from forebay.units import GIB
from hypothesis import example, given
from hypothesis import strategies as st
from kvcache_support import STAMP, Typed, check, findings, put, rank_of  # noqa: F401
from properties import examples

# As the reference's files have them.
KEYS = """requests_completed total_tokens_generated total_storage_io_latency total_generation_latency end_to_end_latencies
storage_latencies generation_latencies throughput_timeline prefill_latencies decode_latencies multi_turn_cache_hits
multi_turn_cache_misses seed summary"""
SUMMARY_KEYS = """total_requests total_tokens elapsed_time avg_throughput_tokens_per_sec total_storage_io_time
storage_throughput_tokens_per_sec requests_per_second end_to_end_latency_ms storage_io_latency_ms generation_latency_ms
cache_stats qos_metrics prefix_cache_stats autoscaling_stats autoscaling_summary multi_turn_stats"""
CACHE_KEYS = """cache_hit_rate cache_hits cache_misses gpu_entries cpu_entries storage_entries gpu_memory_used_gb
cpu_memory_used_gb offloads_cpu offloads_storage storage_health prefill_writes decode_reads tier_gpu_kv_bytes_written_gb
tier_cpu_kv_bytes_written_gb tier_storage_kv_bytes_written_gb tier_gpu_kv_bytes_read_gb tier_cpu_kv_bytes_read_gb
tier_storage_kv_bytes_read_gb tier_gpu_read_bandwidth_gbps tier_gpu_write_bandwidth_gbps tier_cpu_read_bandwidth_gbps
tier_cpu_write_bandwidth_gbps tier_storage_read_bandwidth_gbps tier_storage_write_bandwidth_gbps system_prompt_hits
common_phrase_hits user_cache_hits multi_turn_hits total_read_bytes total_write_bytes total_read_gb total_write_gb
read_write_ratio read_iops write_iops storage_tokens_processed"""
OPTION_KEYS = """aggregated_read_bandwidth_gbps aggregated_write_bandwidth_gbps aggregated_avg_throughput_tokens_per_sec
aggregated_storage_throughput_tokens_per_sec aggregated_p95_latency_ms rank_count trial_count partial_failure missing_files
cpu_tier_ranks"""
TOP_KEYS = """schema_version run_datetime npernode host_count total_ranks trials_per_option options partial_failure
trial_failures"""
SETTLED = ("p50", "p95", "p99", "p999", "p9999")


def spread(count: int, scale: float) -> dict[str, float]:
    return {"count": count, "mean": scale, **{p: scale * (1 + n) for n, p in enumerate(SETTLED)}, "max": scale * 9}


def record(**other: Any) -> dict[str, Any]:
    """The part of a record that the engine writes, of 300 s."""
    tier = {"reads": 90, "writes": 30, "read_bytes": 600 * GIB, "written_bytes": 150 * GIB, "entries": 25, "used_bytes": 9 * GIB}
    part = {
        "option": 1, "model": "llama3.1-8b", "bytes_per_token": 131_072, "users": 200, "ranks": 1, "seed": 42,
        "duration_s": 300.0,
        "tokens": {"context": 9000, "output": 700, "storage": 750 * GIB / 131_072},
        "latency_ms": {"entry_read": spread(90, 100.0), "entry_write": spread(30, 200.0), "flush": None},
        "classes": {
            "interactive": {"requests": 2, "latency_ms": spread(2, 50.0),
                            "sla": {"target_p95_ms": 50, "actual_p95_ms": 90.0, "compliance": 0.25, "met": False}},
            "responsive": None,
        },
        "hits": {"lookups": 100, "hits": 90, "misses": 10, "system_prompt": 5, "multi_turn": 40, "multi_turn_missed": 10,
                 "own": 45},
        "tiers": {"host": None, "storage": tier},
        **other,
    }  # fmt: skip
    return {"schema": "forebay.run/1", "kvcache": part}


def request(number: int, phase: str = "both") -> dict[str, Any]:
    times = {"arrived_s": 1.0 * number, "started_s": 2.0 * number, "ended_s": 4.0 * number}
    spent = {"storage_s": 1.5 * number, "prefill_s": 0.5, "decode_s": None if phase == "prefill" else 1.0}
    return {"user": number, "qos": "interactive", "phase": phase, **times, **spent, "context": 900, "output": 100}


REQUESTS = [request(n, "prefill" if n == 3 else "both") for n in range(1, 11)]


@pytest.mark.promise("KVC-24")
def test_a_rank_file_has_the_references_place_keys_and_units(tmp_path: Path) -> None:
    file = tree.write_rank(tmp_path, 1, 2, 3, record(), REQUESTS, STAMP)
    assert file == tmp_path / "option_1" / "trial_2" / "rank_3" / f"kvcache_results_{STAMP}.json"
    document = json.loads(file.read_text())
    summary = document["summary"]
    stats, both = summary["cache_stats"], {f"storage_{way}{span}_{p}_ms" for way in ("read", "write")
                                           for span in ("", "_device", "_host") for p in SETTLED}  # fmt: skip
    assert (set(document), set(summary)) == (set(KEYS.split()), set(SUMMARY_KEYS.split()))
    assert set(stats) == {*CACHE_KEYS.split(), *both}
    assert document["seed"] == 45, "42 and the rank"
    assert stats["tier_storage_read_bandwidth_gbps"] == 600 / 300 and stats["tier_storage_kv_bytes_written_gb"] == 150.0
    assert (stats["read_iops"], stats["write_iops"], stats["cache_hit_rate"], stats["read_write_ratio"]) == (90, 30, 0.9, 4.0)
    assert stats["storage_read_device_p95_ms"] == stats["storage_read_p95_ms"] == 200.0
    assert stats["storage_write_device_p50_ms"] == 200.0 and stats["storage_write_host_p95_ms"] == 0
    assert document["end_to_end_latencies"] == [3.0 * n for n in range(1, 11)] and len(document["decode_latencies"]) == 9
    assert summary["end_to_end_latency_ms"]["p95"] == pytest.approx(28_650.0)
    assert summary["storage_throughput_tokens_per_sec"] == pytest.approx(1000 / (1.5 * 55))
    assert summary["qos_metrics"]["interactive"]["sla"] == {
        "target_p95_ms": 50, "actual_p95_ms": 90.0, "compliance": 0.25, "met": False
    }  # fmt: skip
    assert summary["qos_metrics"]["batch"] == {"no_data": True}


@pytest.mark.promise("KVC-24")
@pytest.mark.parametrize("empty", [{}, {"kvcache": None}, {"kvcache": {"tiers": None, "duration_s": None}}])
def test_what_a_record_does_not_say_is_left_out_or_nought(tmp_path: Path, empty: dict[str, Any]) -> None:
    document = json.loads(tree.write_rank(tmp_path, 1, 0, 0, empty, REQUESTS, STAMP).read_text())
    assert set(document["summary"]["cache_stats"]) == set(CACHE_KEYS.split())
    without = json.loads(tree.write_rank(tmp_path, 1, 0, 1, empty, [], STAMP).read_text())
    assert set(KEYS.split()) - set(without) == {"summary"}, "as the reference leaves a run that completed nothing"


@pytest.mark.promise("KVC-24")
def test_a_trees_own_check_holds(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    for trial in range(3):
        tree.write_rank(tmp_path, 1, trial, 0, record(), REQUESTS, STAMP)
    summary = json.loads(tree.write_summary(tmp_path).read_text())
    assert set(summary) == set(TOP_KEYS.split()) and set(summary["options"]["1"]) == set(OPTION_KEYS.split())
    assert (summary["run_datetime"], summary["schema_version"], summary["trial_failures"]) == (STAMP, "1.0", [])
    assert json.loads((tmp_path / "forebay.json").read_text())["label"] == "MLPerf-style, unverified"
    code, out, _ = check(tmp_path, "--closed", "--json")
    document = json.loads(out)
    assert (code, findings(document, fault=True)) == (0, []) and rank_of(document)["read_gib_s"]["stated"] == 2.0


@pytest.mark.promise("KVC-24")
def test_a_trees_own_check_knows_how_long_its_trials_were_to_run(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    for trial, seconds in enumerate((400.0, 500.0)):
        tree.write_rank(tmp_path, 1, trial, 0, record(duration_s=seconds), REQUESTS, STAMP)
        tree.write_summary(tmp_path, durations_s={f"option_1/trial_{trial}": seconds})
    code, out, _ = check(tmp_path, "--json")
    assert (code, findings(json.loads(out), fault=True)) == (0, []), "each trial's, kept from one summary to the next"
    own = json.loads((tmp_path / "forebay.json").read_text())
    (tmp_path / "forebay.json").write_text(json.dumps(own | {"durations_s": {"option_1/trial_0": "long", "option_1": {}}}))
    code, out, _ = check(tmp_path, "--json")
    assert (code, findings(json.loads(out), fault=True)) == (1, ["divisor", "divisor"])


@pytest.mark.promise("KVC-26")
def test_nothing_is_overwritten_but_a_summary_of_ours(tmp_path: Path) -> None:
    tree.write_rank(tmp_path, 1, 0, 0, record(), REQUESTS, STAMP)
    for stamp in (STAMP, "20300101_000000"):
        with pytest.raises(RequestError, match="holds kvcache_results_20260523_120000.json already"):
            tree.write_rank(tmp_path, 1, 0, 0, record(), REQUESTS, stamp)
    summary = tree.write_summary(tmp_path)
    tree.write_rank(tmp_path, 1, 1, 0, record(), REQUESTS, STAMP)
    assert json.loads(tree.write_summary(tmp_path).read_text())["options"]["1"]["trial_count"] == 2
    tree.write_summary(tmp_path)
    summary.write_text("{}")
    with pytest.raises(RequestError, match="isn't as Forebay wrote it") as refused:
        tree.write_summary(tmp_path)
    assert refused.value.exit_code == 2 and refused.value.next and summary.read_text() == "{}"
    summary.unlink()
    (tmp_path / "forebay.json").write_text('{"schema": "mine"}')
    with pytest.raises(RequestError, match="isn't Forebay's list"):
        tree.write_summary(tmp_path)
    assert not summary.exists()


@pytest.mark.promise("KVC-26")
def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "option_1").write_text("a file")
    for stamp, found in ((STAMP, "can't be written"), ("../../x", "is not a time")):
        with pytest.raises(RequestError, match=found):
            tree.write_rank(tmp_path, 1, 0, 0, record(), REQUESTS, stamp)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="holds no result"):
        tree.write_summary(tmp_path / "empty")


def by_the_facts(options: dict[int, dict[tuple[int, int], dict[str, Any]]], ranks: int) -> dict[str, dict[str, float]]:
    """Sums over ranks, means over trials, and the largest P95, written from the facts alone."""
    found = {}
    for option, files in options.items():
        trials = range(max(trial for trial, _ in files) + 1)

        def mean(of: Any, files: dict[tuple[int, int], dict[str, Any]] = files, trials: range = trials) -> float:
            return sum(sum(of(files[t, r]) for r in range(ranks) if (t, r) in files) for t in trials) / len(trials)

        found[str(option)] = {
            "aggregated_read_bandwidth_gbps": mean(lambda f: f["summary"]["cache_stats"]["tier_storage_read_bandwidth_gbps"]),
            "aggregated_write_bandwidth_gbps": mean(lambda f: f["summary"]["cache_stats"]["tier_storage_write_bandwidth_gbps"]),
            "aggregated_avg_throughput_tokens_per_sec": mean(lambda f: f["summary"]["avg_throughput_tokens_per_sec"]),
            "aggregated_storage_throughput_tokens_per_sec": mean(lambda f: f["summary"]["storage_throughput_tokens_per_sec"]),
            "aggregated_p95_latency_ms": max(f["summary"]["storage_io_latency_ms"]["p95"] for f in files.values()),
        }
    return found


def made_up(rng: random.Random) -> dict[str, Any]:
    stats = {f"tier_storage_{way}_bandwidth_gbps": rng.lognormvariate(0, 3) for way in ("read", "write")}
    return {
        "summary": {
            "cache_stats": {**stats, "storage_entries": rng.choice((0, 7))},
            "avg_throughput_tokens_per_sec": rng.lognormvariate(5, 3),
            "storage_throughput_tokens_per_sec": rng.lognormvariate(5, 3),
            "storage_io_latency_ms": {"p95": rng.lognormvariate(8, 3)},
        }
    }


@pytest.mark.promise("KVC-25")
@examples(12)
@given(st.integers(0, 1 << 32), st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.0, 0.3]))
@example(1, 4, 3, 0.0)
def test_the_summary_is_the_references_formula(seed: int, ranks: int, trials: int, missing: float) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        out, options, lost = Path(name), {}, set()
        for option in (1, 3):
            files = options.setdefault(option, {})
            for trial, rank in ((t, r) for t in range(trials) for r in range(ranks)):
                # The last is always there, or nothing would tell how many there are.
                if rng.random() < missing and (trial, rank) != (trials - 1, ranks - 1):
                    lost.add(f"option_{option}/trial_{trial}/rank_{rank}")
                else:
                    files[trial, rank] = made_up(rng)
                    put(out, files[trial, rank], option, trial, rank)
        summary = json.loads(tree.write_summary(out).read_text())
        for option, right in by_the_facts(options, ranks).items():
            part = summary["options"][option]
            assert {key: part[key] for key in right} == pytest.approx(right, rel=1e-9)
            in_memory = [f for f in options[int(option)].values() if f["summary"]["cache_stats"]["storage_entries"] == 0]
            assert len(part["cpu_tier_ranks"]) == len(in_memory) and part["partial_failure"] == bool(part["missing_files"])
        assert lost == {place for part in summary["options"].values() for place in part["missing_files"]}
        assert summary["partial_failure"] == bool(lost) and summary["total_ranks"] == ranks
        whole = {(f["option"], f["trial"]) for f in summary["trial_failures"]}
        assert whole == {(o, t) for o in (1, 3) for t in range(trials) if not any((t, r) in options[o] for r in range(ranks))}


@pytest.mark.promise("KVC-25")
def test_a_damaged_rank_file_counts_as_missing(tmp_path: Path) -> None:
    put(tmp_path, made_up(random.Random(2)))
    damaged = [put(tmp_path, "{", rank=1), put(tmp_path, {"summary": {"avg_throughput_tokens_per_sec": "fast"}}, rank=2)]
    part = tree.summary(rank_files.survey(tmp_path), hosts=3)
    assert part["options"]["1"]["missing_files"] == [str(p.relative_to(tmp_path)) for p in damaged]
    assert (part["npernode"], part["host_count"], part["partial_failure"]) == (1, 3, True)


ROWS = [
    tree.Operation(1_700_000_000.25, "Write", 131_072, "storage", "user_0001_conv_1", "Prefill"),
    tree.Operation(1_700_000_001.5, "Read", 65_536, "host", 'a,"b"', "Decode"),
]


@pytest.mark.promise("KVC-27")
def test_a_trace_has_the_references_columns(tmp_path: Path) -> None:
    tree.write_trace(tmp_path / "t.csv", ROWS)
    with (tmp_path / "t.csv").open(newline="") as file:
        read = list(csv.reader(file))
    assert ",".join(read[0]) == "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase"
    assert read[1] == ["1700000000.250000", "Write", "131072", "Tier-2", "user_0001_conv_1", "Prefill"]
    assert read[2][3:5] == ["Tier-1", 'a,"b"']
    with pytest.raises(RequestError, match="exists"):
        tree.write_trace(tmp_path / "t.csv", ROWS)


@pytest.mark.promise("KVC-27")
def test_a_packed_trace_needs_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MachineError, match="pip install zstandard") as refused:
        tree.write_trace(tmp_path / "t.csv.zst", ROWS)
    assert refused.value.exit_code == 3 and not list(tmp_path.iterdir())
    packer = types.SimpleNamespace(compress=lambda data: b"packed " + data)
    monkeypatch.setitem(sys.modules, "zstandard", types.SimpleNamespace(ZstdCompressor=lambda: packer))  # type: ignore[arg-type]
    tree.write_trace(tmp_path / "t.csv.zst", ROWS)
    assert (tmp_path / "t.csv.zst").read_bytes().startswith(b"packed Timestamp")
