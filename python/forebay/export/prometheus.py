"""Prometheus's text format (version 0.0.4): finished runs for a textfile collector, and a run in progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from forebay import _core
from forebay.figures import FIGURES as COLUMNS
from forebay.figures import WAYS
from forebay.report.load import Entry
from forebay.units import GIB

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES = (("p50", "0.5"), ("p90", "0.9"), ("p95", "0.95"), ("p99", "0.99"), ("p999", "0.999"), ("p9999", "0.9999"))
# What tells runs apart, beside `id`.
LABELS = ("host", "label", "sweep", "source", "op", "io_bytes", "workers", "depth", "batch", "path", "workload")
# Name → help, type.
HELP = {
    **{f"forebay_run_{gauge.name}": (gauge.help, "gauge") for figure in COLUMNS if (gauge := figure.gauge)},
    "forebay_run_info": ("Settings of a finished run.", "gauge"),
    "forebay_run_started_timestamp_seconds": ("Start time of the run.", "gauge"),
    "forebay_run_latency_seconds": ("Percentiles of the latency.", "gauge"),
    "forebay_run_direction_bytes": ("Bytes read, or written.", "gauge"),
    "forebay_run_direction_ios": ("Reads, writes or flushes finished.", "gauge"),
    "forebay_run_direction_throughput_bytes_per_second": ("Bytes read, or written, over measured time.", "gauge"),
    "forebay_run_direction_ios_per_second": ("Reads, writes or flushes over measured time.", "gauge"),
    "forebay_run_direction_latency_seconds": ("Percentiles of the latency of reads, writes or flushes.", "gauge"),
    "forebay_run_direction_latency_mean_seconds": ("Their mean latency.", "gauge"),
    "forebay_run_direction_latency_max_seconds": ("Their maximum latency.", "gauge"),
    "forebay_run_batch_latency_seconds": ("Percentiles of the latency of batches.", "gauge"),
    "forebay_run_failed_ios": ("I/Os that failed, timed out or failed verification.", "gauge"),
    "forebay_run_infer_latency_seconds": ("Percentiles of the latency of queries.", "gauge"),
    "forebay_live_info": ("Settings of the current run.", "gauge"),
    "forebay_live_phase": ("1 for the current phase.", "gauge"),
    "forebay_live_repeat": ("Number of the current repeat, from 1.", "gauge"),
    "forebay_live_elapsed_seconds": ("Time since the repeat began, warm-up included.", "gauge"),
    "forebay_live_throughput_bytes_per_second": ("Over the last interval; of emulate datagen, since the phase began.", "gauge"),
    "forebay_live_ios_per_second": ("Over the last interval.", "gauge"),
    "forebay_live_bytes": ("Bytes moved in this repeat or phase.", "gauge"),
    "forebay_live_ios": ("I/Os finished in this repeat.", "gauge"),
    "forebay_live_latency_seconds": ("Percentiles of the last interval's latency.", "gauge"),
    "forebay_live_latency_mean_seconds": ("Mean latency of the last interval.", "gauge"),
    "forebay_live_cpu_cores": ("Cores busy, user and system.", "gauge"),
    "forebay_live_accelerator_utilisation_ratio": ("Utilisation of the emulated accelerators in this epoch so far.", "gauge"),
    "forebay_live_epoch": ("Number of the current epoch, from 1.", "gauge"),
    "forebay_live_step": ("Steps done in this epoch.", "gauge"),
    "forebay_live_files": ("Files finished in this phase.", "gauge"),
    "forebay_live_files_planned": ("Files that this phase is to finish.", "gauge"),
    "forebay_live_files_per_second": ("Since the phase began.", "gauge"),
    "forebay_live_accelerators": ("Emulated accelerators of the current run, on all hosts.", "gauge"),
    "forebay_live_accelerators_passed": ("Greatest number of accelerators that passed in this search so far.", "gauge"),
    "forebay_live_cell": ("Number of the matrix's current cell, from 1.", "gauge"),
    "forebay_live_cells": ("Cells of the matrix.", "gauge"),
    "forebay_live_target_throughput_bytes_per_second": ("Over the last interval, of each target.", "gauge"),
    "forebay_live_worker_throughput_bytes_per_second": ("Over the last interval, of each worker.", "gauge"),
}
Sample = tuple[str, dict[str, Any], Any]


def text(samples: Iterable[Sample]) -> str:
    """The exposition: samples of one name together, below its HELP and TYPE. A None is left out, never 0."""
    grouped: dict[str, list[tuple[list[tuple[str, str]], str]]] = {}
    for name, labels, value in samples:
        if value is not None:
            shown = [(key, _utf8(str(word))) for key, word in labels.items() if word is not None]
            grouped.setdefault(name, []).append((shown, repr(float(value))))
    return _core.prometheus_text([(name, kind, help, found) for name, found in grouped.items() for help, kind in [HELP[name]]])


def _utf8(word: str) -> str:
    """Without halves of characters, as names of files may have them."""
    return word.encode(errors="replace").decode()


def of_runs(entries: list[Entry]) -> Iterator[Sample]:
    """The samples of finished runs, each with the run's `id`; `forebay_run_info` has what else tells them apart."""
    for number, entry in enumerate(entries):
        run = {column.name: column.value(entry) for column in COLUMNS}
        own = {"id": run["id"] or f"{entry.file}:{entry.line or number}"}
        model = {"model": run["train_model"] or run["infer_model"]}
        yield "forebay_run_info", {**own, **{label: run[label] for label in LABELS}, **model}, 1
        yield "forebay_run_started_timestamp_seconds", own, _timestamp(run["started"])
        yield from ((name, own, value) for name, value in _figures(run))
        for key, quantile in QUANTILES:
            reported = {**own, "quantile": quantile}
            yield "forebay_run_latency_seconds", reported, _times(run[f"latency_us_{key}"], 1e-6)
            yield "forebay_run_batch_latency_seconds", reported, _times(run.get(f"batch_latency_us_{key}"), 1e-6)
            yield "forebay_run_infer_latency_seconds", reported, _times(run.get(f"infer_latency_ms_{key}"), 1e-3)
        for way in WAYS:
            yield from _of_way(run, way, {**own, "direction": way})


def _of_way(run: dict[str, Any], way: str, reported: dict[str, Any]) -> Iterator[Sample]:
    """The samples of reads, writes or flushes; none where the run had none."""
    if run[f"{way}_ios"] is None:
        return
    name = "forebay_run_direction"
    yield f"{name}_bytes", reported, run.get(f"{way}_bytes")
    yield f"{name}_ios", reported, run[f"{way}_ios"]
    yield f"{name}_throughput_bytes_per_second", reported, _times(run.get(f"{way}_throughput_gib_s"), GIB)
    yield f"{name}_ios_per_second", reported, run[f"{way}_iops"]
    for key, quantile in QUANTILES:
        seconds = _times(run[f"{way}_latency_us_{key}"], 1e-6)
        yield f"{name}_latency_seconds", {**reported, "quantile": quantile}, seconds
    yield f"{name}_latency_mean_seconds", reported, _times(run[f"{way}_latency_us_mean"], 1e-6)
    yield f"{name}_latency_max_seconds", reported, _times(run[f"{way}_latency_us_max"], 1e-6)


def _figures(run: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for figure in COLUMNS:
        if gauge := figure.gauge:
            yield f"forebay_run_{gauge.name}", _times(run[figure.name], gauge.factor)
    failed = [run[f"errors_{name}"] for name in ("failed", "timed_out", "verify_failed")]
    yield "forebay_run_failed_ios", None if None in failed else sum(failed)


def of_progress(job: dict[str, Any], title: str, progress: dict[str, Any]) -> Iterator[Sample]:
    """The samples of a run under way; no label changes while it runs, but for the phase."""
    named = {"source": " ".join(map(str, job.get("sources") or [])), "op": job.get("op"), "path": job.get("path")}
    sizes = {key: job.get(key) for key in ("io_bytes", "workers", "depth", "label")}
    yield "forebay_live_info", {"job": title or None, **named, **sizes}, 1
    yield "forebay_live_phase", {"phase": progress.get("phase") or "prepare"}, 1
    yield "forebay_live_repeat", {}, (progress.get("repeat") or 0) + 1
    yield "forebay_live_elapsed_seconds", {}, progress.get("t_s")
    yield "forebay_live_throughput_bytes_per_second", {}, _times(progress.get("gib_s"), GIB)
    yield "forebay_live_ios_per_second", {}, progress.get("iops")
    yield "forebay_live_bytes", {}, progress.get("bytes")
    yield "forebay_live_ios", {}, progress.get("ios")
    for key, quantile in QUANTILES:
        yield "forebay_live_latency_seconds", {"quantile": quantile}, _times(progress.get(f"latency_us_{key}"), 1e-6)
    yield "forebay_live_latency_mean_seconds", {}, _times(progress.get("latency_us_mean"), 1e-6)
    yield "forebay_live_cpu_cores", {}, progress.get("cores_busy")
    yield "forebay_live_accelerator_utilisation_ratio", {}, _times(progress.get("au_pct"), 0.01)
    yield "forebay_live_epoch", {}, progress.get("epoch")
    yield "forebay_live_step", {}, progress.get("step")
    yield "forebay_live_files", {}, progress.get("files_done")
    yield "forebay_live_files_planned", {}, progress.get("files_planned")
    yield "forebay_live_files_per_second", {}, progress.get("files_s")
    for target in progress.get("targets") or []:
        rate = _times(target.get("gib_s"), GIB)
        yield "forebay_live_target_throughput_bytes_per_second", {"target": target.get("target")}, rate
    for number, worker in enumerate(progress.get("workers") or []):
        yield "forebay_live_worker_throughput_bytes_per_second", {"worker": number}, _times(worker.get("gib_s"), GIB)


def of_command(reported: dict[str, Any]) -> Iterator[Sample]:
    """The samples of what a command has found in its runs so far, and of which one is under way."""
    yield "forebay_live_accelerators", {}, reported.get("accelerators")
    yield "forebay_live_accelerators_passed", {}, reported.get("accelerators_passed")
    yield "forebay_live_cell", {}, reported.get("cell")
    yield "forebay_live_cells", {}, reported.get("cells")


def _times(value: float | None, factor: float | None) -> float | None:
    return value if value is None or factor is None else value * factor


def _timestamp(started: str | None) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat((started or "").replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
