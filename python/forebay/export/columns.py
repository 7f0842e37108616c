"""The columns of an exported run: each has a name, a type, a unit, and the field of the record that it comes from.

Names and units stay; more columns may be added behind the last. docs/export.md has a row for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.metrics import METRICS, WAYS
from forebay.report.load import Entry


@dataclass(frozen=True)
class Column:
    """`kind`: str, int, float or bool. `field`: dotted path in the record; `of` computes it where that isn't enough."""

    name: str
    kind: type
    unit: str
    field: str
    of: Callable[[Entry], Any] | None = None

    def value(self, entry: Entry) -> Any:
        """The cell of a run; None where the record doesn't hold it, or says that it wasn't measured."""
        missing = entry.record.get("missing")
        for path in missing if isinstance(missing, dict) else ():
            if self.field == path or self.field.startswith(f"{path}."):
                return None
        found = self.of(entry) if self.of else _at(entry.record, self.field)
        return _as(self.kind, found)


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _as(kind: type, value: Any) -> Any:
    """`value` as this type, or None: records come from other machines, and may be damaged."""
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if kind is str:
        return value if isinstance(value, str) and value else None
    if not isinstance(value, (int, float)) or value != value or abs(value) >= 1e300:
        return None
    if kind is int:
        return int(value) if value == int(value) and abs(value) < 1 << 63 else None
    return float(value)


def _names(path: str, field: str) -> Callable[[Entry], str]:
    def joined(entry: Entry) -> str:
        found = _at(entry.record, path)
        parts = [p.get(field) or p.get("name") for p in found if isinstance(p, dict)] if isinstance(found, list) else []
        return "; ".join(str(p) for p in parts if p)

    return joined


def _warnings(entry: Entry) -> str:
    found = entry.record.get("warnings")
    return " ".join(str(w.get("id")) for w in found if isinstance(w, dict)) if isinstance(found, list) else ""


def _missing(entry: Entry) -> str:
    found = entry.record.get("missing")
    return " ".join(map(str, found)) if isinstance(found, dict) else ""


def _batch_latency(name: str) -> Callable[[Entry], Any]:
    """Returns a batch's latency; a record in which no batch ended has zeros that are none."""
    field = f"result.batch.latency_us.{name}"
    return lambda entry: _at(entry.record, field) if _at(entry.record, "result.batch.count") else None


def _repeats(entry: Entry) -> Any:
    found = _at(entry.record, "result.repeats")
    return len(found) if isinstance(found, list) else None


def _bound(field: str, index: int) -> Callable[[Entry], Any]:
    def bound(entry: Entry) -> Any:
        found = _at(entry.record, field)
        return found[index] if isinstance(found, list) and len(found) == 2 else None

    return bound


def _interval(name: str, unit: str, field: str) -> list[Column]:
    return [Column(f"{name}_ci95_{end}", float, unit, field, _bound(field, index)) for index, end in enumerate(("low", "high"))]


def _user_and_system(field: str) -> Callable[[Entry], Any]:
    def both(entry: Entry) -> Any:
        found = _at(entry.record, field)
        parts = [found.get(key) for key in ("user", "system")] if isinstance(found, dict) else []
        known = [part for part in parts if isinstance(part, (int, float)) and not isinstance(part, bool)]
        return sum(known) if len(known) == 2 else None

    return both


def _metric(name: str) -> Callable[[Entry], Any]:
    return lambda entry: METRICS[name].value(entry.record["result"])


def _same(kind: type, unit: str, fields: str) -> list[Column]:
    """Columns that are called as their field, whose last name is enough."""
    return [Column(field.rpartition(".")[2], kind, unit, field) for field in fields.split()]


def _of(part: str, kind: type, unit: str, fields: str) -> list[Column]:
    """Columns of a part that other parts have fields of the same name as: called as part and field."""
    return [Column(f"{part}_{field.replace('.', '_')}", kind, unit, f"{part}.{field}") for field in fields.split()]


LATENCIES = ("min", "mean", "stdev", "p50", "p90", "p95", "p99", "p999", "p9999", "max")


def _way(way: str) -> list[Column]:
    """Columns of reads, writes or flushes alone; their bytes stand with the others'."""
    rates = [] if way == "flush" else [Column(f"{way}_throughput_gib_s", float, "GiB/s", f"result.{way}.throughput_gib_s")]
    return [
        Column(f"{way}_ios", int, "count", f"result.{way}.ios"),
        *rates,
        Column(f"{way}_iops", float, "1/s", f"result.{way}.iops"),
        *(Column(f"{way}_latency_us_{name}", float, "µs", f"result.{way}.latency_us.{name}") for name in LATENCIES),
    ]


COLUMNS: tuple[Column, ...] = (
    *_same(str, "text", "id started origin"),
    Column("forebay_version", str, "text", "forebay.version"),
    Column("file", str, "text", "file", lambda e: e.file),
    Column("line", int, "number", "line", lambda e: e.line),
    Column("sweep", str, "text", "sweep", lambda e: e.title or e.preset),
    *_same(str, "text", "job.label environment.host environment.os environment.kernel environment.cpu"),
    *_same(int, "count", "environment.cores"),
    *_same(int, "bytes", "environment.memory_bytes"),
    Column("gpus", str, "text", "environment.gpus", _names("environment.gpus", "name")),
    Column("drives", str, "text", "environment.drives", _names("environment.drives", "model")),
    Column("filesystem", str, "text", "environment.filesystem.kind"),
    *_same(str, "text", "job.source job.op job.pattern"),
    *_same(int, "per cent", "job.read_pct"),
    *_same(int, "bytes", "job.io_bytes job.io_bytes_max job.data_bytes"),
    *_same(int, "count", "job.workers job.depth job.queues"),
    *_same(int, "number", "job.seed"),
    Column("path_requested", str, "text", "path.requested"),
    Column("path", str, "text", "path.ran"),
    *_same(str, "text", "path.engine path.destination"),
    *_same(int, "bytes", "path.direct_bytes path.compat_bytes path.staged_bytes path.mapped_bytes path.fabric_bytes"),
    Column("cache_policy", str, "text", "cache.policy"),
    *_same(float, "share", "cache.resident_before cache.resident_after"),
    *_same(int, "bytes", "cache.device_bytes"),
    *_same(float, "s", "result.seconds"),
    *_same(int, "bytes", "result.bytes result.read_bytes result.write_bytes"),
    *_same(int, "count", "result.ios"),
    *_same(float, "GiB/s", "result.throughput_gib_s"),
    *_same(float, "1/s", "result.iops"),
    Column("repeats", int, "count", "result.repeats", _repeats),
    *_same(
        float,
        "GiB/s",
        "result.summary.throughput_gib_s_median result.summary.throughput_gib_s_min result.summary.throughput_gib_s_max",
    ),
    *_interval("throughput_gib_s", "GiB/s", "result.summary.throughput_gib_s_ci95"),
    *(
        Column(f"latency_us_{name}", float, "µs", f"result.latency_us.{name}")
        for name in ("min", "mean", "p50", "p90", "p99", "p999", "max")
    ),
    Column("cpu_user_s", float, "s", "result.cpu.user_s"),
    Column("cpu_system_s", float, "s", "result.cpu.system_s"),
    Column("cpu_cores_busy", float, "cores", "result.cpu.cores_busy"),
    *_same(float, "CPU-s/GiB", "result.cpu.cpu_s_per_gib"),
    Column("cpu_ns_per_io", float, "ns", "result.cpu.ns_per_io"),
    Column("others_cores_busy", float, "cores", "result.cpu.others_cores_busy"),
    Column("power_watts", float, "W", "result.power", _metric("power")),
    Column("joules_per_gib", float, "J/GiB", "result.power", _metric("energy")),
    *_same(int, "bytes", "result.verified_bytes"),
    *(
        Column(f"errors_{name}", int, "count", f"result.errors.{name}")
        for name in ("failed", "timed_out", "verify_failed", "short", "retried", "misaligned")
    ),
    *_same(bool, "true or false", "result.interrupted"),
    *_same(str, "text", "training.workload training.accelerator"),
    *_same(int, "count", "training.accelerators"),
    *_same(float, "per cent", "training.au_pct"),
    *_same(float, "1/s", "training.samples_per_s"),
    Column("warnings", str, "identifiers", "warnings", _warnings),
    Column("missing", str, "fields", "missing", _missing),
    *_same(int, "count", "job.batch"),
    Column("batches", int, "count", "result.batch.count"),
    *(
        Column(f"batch_latency_us_{name}", float, "µs", f"result.batch.latency_us.{name}", _batch_latency(name))
        for name in ("min", "mean", "p50", "p90", "p99", "p999", "max")
    ),
    Column("batch_by", str, "text", "result.batch.by"),
    *_of("train", str, "text", "model device"),
    *_of("train", int, "number", "seed"),
    *_of("train", int, "count", "batch samples"),
    *_of("train", float, "1/s", "samples_per_s"),
    *_interval("train_samples_per_s", "1/s", "train.samples_per_s_ci95"),
    *_of("train", float, "1/s", "peak_samples_per_s"),
    *_of("train", float, "GiB/s", "demand_gib_s supply_gib_s loader_gib_s"),
    *_of("train", str, "text", "supply.kind supply.drive"),
    *_of("train", int, "count", "supply.drives supply.gpus"),
    *_of("train", float, "per cent", "input_wait_pct gpu_idle_pct"),
    *_of("train", float, "AUC", "quality quality_target"),
    *_of("train", int, "count", "samples_to_target"),
    *_of("train", float, "s", "seconds_to_target"),
    *(
        Column(f"train_{name}", float, "CPU-s/GiB", f"train.{name}", _user_and_system(f"train.{name}"))
        for name in ("cpu_s_per_gib", "feed_cpu_s_per_gib")
    ),
    *_of("train", str, "text", "path"),
    *_of("train", bool, "true or false", "cached"),
    *_of("train", str, "text", "batch_hash"),
    *_of("infer", str, "text", "model mode scenario"),
    *_of("infer", bool, "true or false", "valid"),
    *_of("infer", str, "text", "why"),
    *_of("infer", float, "1/s", "queries_per_s"),
    *_of("infer", float, "ms", "latency_ms.p50 latency_ms.p90 latency_ms.p99"),
    *_of("infer", float, "s", "load_s"),
    *_of("infer", int, "bytes", "load_bytes timed_storage_bytes"),
    *(Column(f"latency_us_{name}", float, "µs", f"result.latency_us.{name}") for name in ("stdev", "p95", "p9999")),
    *(column for way in WAYS for column in _way(way)),
    Column("files_read", int, "count", "result.files.read"),
    *_same(float, "1/s", "result.files.files_per_s"),
)


def rows(entries: list[Entry]) -> list[list[Any]]:
    """A row for each run, in the order that they were read, with a cell for each column."""
    return [[c.value(entry) for c in COLUMNS] for entry in entries]
