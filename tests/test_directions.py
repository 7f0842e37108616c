"""Reads, writes and flushes by themselves: in the record, on the terminal, in exports, comparisons and reports."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import fake_engine
import processes
import pytest
from forebay import _core, metrics
from forebay.bench import summary
from forebay.compare import bounds
from forebay.errors import RequestError
from forebay.export import columns, prometheus
from forebay.report.load import Entry

FIO = shutil.which("fio")
# Writes take a hundred times as long as reads, and are three in ten.
MIXED = "--op randread --read-pct 70 --io-size 4k --workers 2 --depth 4 --duration 0.4 --warmup 0 --interval 100 --json".split()
DRIVE = "model:d7-ps1010?latency_us=100&write_latency_us=10000"


def mixed(source: str, cwd: Path, *flags: str) -> dict[str, Any]:
    ran = processes.run([*processes.FOREBAY, "bench", source, *MIXED, *flags], cwd=cwd, env={**os.environ})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def count(text: str) -> int:
    return sum(n for _, n in _core.buckets(text))


def agree(result: dict[str, Any]) -> None:
    """The parts are the whole."""
    parts = [result["read"], result["write"]]
    assert [p["bytes"] for p in parts] == [result["read_bytes"], result["write_bytes"]]
    assert sum(p["ios"] for p in parts) == result["ios"]
    assert sum(p["iops"] for p in parts) == pytest.approx(result["iops"])
    assert sum(count(p["histogram"]) for p in parts) == count(result["histogram"])
    assert min(p["latency_us"]["min"] for p in parts) == result["latency_us"]["min"]
    assert max(p["latency_us"]["max"] for p in parts) == result["latency_us"]["max"]


@pytest.mark.promise("REC-46")
@pytest.mark.parametrize("time", ["virtual", "real"])
def test_a_mix_has_the_figures_of_reads_and_of_writes(time: str, tmp_path: Path) -> None:
    result = mixed(f"{DRIVE}&time={time}" if time == "real" else DRIVE, tmp_path, "--repeat", "2")["result"]
    agree(result)
    assert result["read"]["latency_us"]["min"] >= 50
    assert result["write"]["latency_us"]["min"] >= 5000
    assert result["read"]["latency_us"]["p50"] < result["write"]["latency_us"]["min"]
    assert "flush" not in result
    for repeat in result["repeats"]:
        assert repeat["read"]["ios"] + repeat["write"]["ios"] == repeat["ios"] and "histogram" not in repeat["read"]
    if time == "real":
        both = [p for p in result["series"] if "read" in p]
        assert both and all(p["read"]["iops"] + p["write"]["iops"] == pytest.approx(p["iops"]) for p in both)


@pytest.mark.promise("REC-46")
def test_flushes_are_counted_and_one_direction_is_the_result(tmp_path: Path) -> None:
    job = "--create --file-size 1m --op write --io-size 64k --passes 1 --warmup 0 --sync end --cache allow --json".split()
    ran = processes.run([*processes.FOREBAY, "bench", "f", *job], cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"})
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)["result"]
    assert "read" not in result and "histogram" not in result["write"]
    assert result["write"]["latency_us"] == result["latency_us"] and result["write"]["ios"] == result["ios"] == 16
    assert result["flush"]["ios"] == 1 and result["flush"]["bytes"] == 0 and result["flush"]["latency_us"]["min"] > 0
    assert "\nflushes   1 · p50 " in ran.stderr and "\nwrites" not in ran.stderr


def with_ways() -> dict[str, Any]:
    """A record with a part for reads, writes and flushes each."""
    record = fake_engine.record()
    latency = {"min": 1.0, "mean": 2.0, "stdev": 1.0, "p50": 2.0, "p90": 3.0, "p95": 4.0, "p99": 5.0, "p999": 6.0, "p9999": 7.0,
               "max": 8.0}  # fmt: skip
    for at, way in enumerate(metrics.WAYS, 1):
        reported = {key: at * value for key, value in latency.items()}
        part = {"bytes": at * 4096, "ios": at, "throughput_gib_s": at / 10, "iops": at * 1.5}
        part |= {"latency_us": reported, "histogram": ""}
        record["result"][way] = part
    return record


@pytest.mark.promise("REC-46")
def test_terminal_table_prometheus_and_gate_have_each_direction() -> None:
    record = with_ways()
    text = summary.text(record, 200)
    assert "\nreads     0.100 GiB/s · 2 IOPS · p50 2.00 µs" in text and "\nwrites    0.200 GiB/s · 3 IOPS · p50 4.00 µs" in text
    assert "\nflushes   3 · p50 6.00 µs" in text
    entry = Entry(record, "run.json")
    row = dict(zip((c.name for c in columns.COLUMNS), columns.rows([entry])[0], strict=True))
    assert (row["read_ios"], row["write_latency_us_p99"], row["flush_latency_us_stdev"]) == (1, 10.0, 3.0)
    samples = prometheus.text(prometheus.of_runs([entry]))
    reported = f'id="{record["id"]}",direction="write"'
    assert f"forebay_run_direction_ios_per_second{{{reported}}} 3.0" in samples
    assert f'forebay_run_direction_latency_seconds{{{reported},quantile="0.5"}} 4e-06' in samples
    for name in ("write.p99", "write.p99_us", "write.latency_p99", "WRITE.p99"):
        bound = bounds.parse(f"{name} < 9us", metrics.FIGURES)
        assert bound.metric.of_record(record) == 10.0 and bound.metric.name == "write.latency_p99"
        assert bound.judge("B", [10.0])["verdict"] == "broken"
    with pytest.raises(RequestError, match="as read.p99"):
        bounds.parse("reads.p99 < 9us", metrics.FIGURES)


@pytest.mark.promise("REC-46", "REC-2")
def test_an_older_record_that_only_reads_has_the_figures_of_reads() -> None:
    record = fake_engine.record()
    named = {way: metrics.figure_named(f"{way}.p99", "it") for way in metrics.WAYS}
    assert named["read"].of_record(record) == record["result"]["latency_us"]["p99"]
    assert named["write"].of_record(record) is None and named["flush"].of_record(record) is None
    record["result"]["write_bytes"] = 1
    assert named["read"].of_record(record) is None
    assert "\nreads " not in summary.text(fake_engine.record(), 200)


@pytest.mark.skipif(FIO is None, reason="fio isn't installed; apt install fio")
@pytest.mark.promise("REC-46")
def test_fio_says_the_same_of_a_mix(tmp_path: Path) -> None:
    """As many reads and writes of as many bytes, of one job: the mix is drawn by other numbers, so within its spread."""
    text = "[mix]\nfilename=mix.data\nsize=4m\nrw=randrw\nrwmixread=70\nbs=4k\nioengine=psync\nnorandommap\n"
    (tmp_path / "mix.fio").write_text(text)
    theirs = processes.run([FIO, "--output-format=json", "mix.fio"], cwd=tmp_path, env={**os.environ})
    assert theirs.returncode == 0, theirs.stderr
    theirs = json.loads(theirs.stdout)["jobs"][0]
    (tmp_path / "mix.data").unlink()
    ours = processes.run([*processes.FOREBAY, "bench", "--fio", "mix.fio", "--json"], cwd=tmp_path, env={**os.environ})
    assert ours.returncode == 0, ours.stderr
    result = json.loads(ours.stdout)[0]["result"]
    agree(result)
    spread = 5 * (1024 * 0.7 * 0.3) ** 0.5
    for way in ("read", "write"):
        assert abs(result[way]["ios"] - theirs[way]["total_ios"]) < 2 * spread
        assert result[way]["bytes"] == 4096 * result[way]["ios"]
    assert result["ios"] == theirs["read"]["total_ios"] + theirs["write"]["total_ios"] == 1024
