"""The figures of a record that are shown apart from it, a row each: from it follow the column of an export with its line in
docs/export.md, Prometheus's metric of finished runs, what `compare` judges by, and parts of the summary in a terminal.

Names and units stay; more rows may be added behind the last. `python tests/record_tables.py` then writes docs/export.md anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.units import GIB

if TYPE_CHECKING:
    from forebay.report.load import Entry

# What no run of anything comes near: beyond it a record is damaged.
FIGURE_MIN, FIGURE_MAX = 1e-18, 1e18
# Reads, writes and flushes by themselves: what `read.p99` and the like begin with.
WAYS = ("read", "write", "flush")
OfPart = Callable[[dict[str, Any]], float | None]


@dataclass(frozen=True)
class Gauge:
    """Prometheus's metric of finished runs, `forebay_run_NAME`, of `factor` times the figure."""

    name: str
    help: str
    factor: float | None = None


@dataclass(frozen=True)
class Compared:
    """What two runs are judged by. `sentence` has x and y, their names, and r, the ratio as text; `of` reads it from `result`
    or one of its `repeats` where its field isn't enough."""

    name: str
    title: str
    unit: str
    higher_is_better: bool
    sentence: str
    of: OfPart | None = None


@dataclass(frozen=True)
class Figure:
    """`kind`: str, int, float or bool. `field`: dotted path in the record; `of` computes it where that isn't enough. `shown`: the
    line of a terminal's summary in which it stands if it isn't 0, and the words beside it."""

    name: str
    kind: type
    unit: str
    field: str
    what: str
    of: Callable[[Entry], Any] | None = None
    gauge: Gauge | None = None
    compared: Compared | None = None
    shown: tuple[str, str] | None = None

    def value(self, entry: Entry) -> Any:
        """The cell of a run; None where the record doesn't hold it, or says that it wasn't measured."""
        missing = entry.record.get("missing")
        for path in missing if isinstance(missing, dict) else ():
            if self.field == path or self.field.startswith(f"{path}."):
                return None
        found = self.of(entry) if self.of else at(entry.record, self.field)
        return _as(self.kind, found)


def shown_in(line: str, record: dict[str, Any]) -> list[tuple[int, str]]:
    """Figure and words of each that stands in that line of the summary."""
    rows = [(at(record, figure.field), figure.shown[1]) for figure in FIGURES if figure.shown and figure.shown[0] == line]
    return [(found, words) for found, words in rows if found]


def measured(of: OfPart, part: dict[str, Any]) -> float | None:
    """The figure, or None where it wasn't measured. Zero counts as not measured: it has no ratio."""
    try:
        found = of(part)
    except (AttributeError, TypeError, KeyError):  # a damaged record
        return None
    good = isinstance(found, (int, float)) and not isinstance(found, bool) and FIGURE_MIN < found < FIGURE_MAX
    return float(found) if good and found is not None else None


def at(document: Any, path: str) -> Any:
    """What lies there; None where there is no such field."""
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
        found = at(entry.record, path)
        parts = [p.get(field) or p.get("name") for p in found if isinstance(p, dict)] if isinstance(found, list) else []
        return "; ".join(str(p) for p in parts if p)

    return joined


def _warnings(entry: Entry) -> str:
    found = entry.record.get("warnings")
    return " ".join(str(w.get("id")) for w in found if isinstance(w, dict)) if isinstance(found, list) else ""


def _missing(entry: Entry) -> str:
    found = entry.record.get("missing")
    return " ".join(map(str, found)) if isinstance(found, dict) else ""


def _of_batches(field: str) -> Callable[[Entry], Any]:
    """Returns a batch's latency; a record in which no batch ended has zeros that are none."""
    return lambda entry: at(entry.record, field) if at(entry.record, "result.batch.count") else None


def _repeats(entry: Entry) -> Any:
    found = at(entry.record, "result.repeats")
    return len(found) if isinstance(found, list) else None


def _bound(field: str, index: int) -> Callable[[Entry], Any]:
    def bound(entry: Entry) -> Any:
        found = at(entry.record, field)
        return found[index] if isinstance(found, list) and len(found) == 2 else None

    return bound


def _user_and_system(field: str) -> Callable[[Entry], Any]:
    def both(entry: Entry) -> Any:
        found = at(entry.record, field)
        parts = [found.get(key) for key in ("user", "system")] if isinstance(found, dict) else []
        known = [part for part in parts if isinstance(part, (int, float)) and not isinstance(part, bool)]
        return sum(known) if len(known) == 2 else None

    return both


def _power(key: str) -> OfPart:
    """The power of the whole server where a meter sees it, else the sum over the parts that were metered."""

    def power(result: dict[str, Any]) -> float | None:
        meters = [m for m in result.get("power") or [] if m.get(key) is not None]
        whole = [m[key] for m in meters if m.get("scope") == "server"]
        if whole:
            return whole[0]
        return sum(m[key] for m in meters) if meters else None

    return power


LATENCIES = {
    "min": "Shortest", "mean": "Mean", "stdev": "Standard deviation", "p50": "Median", "p90": "90th percentile",
    "p95": "95th percentile", "p99": "99th percentile", "p999": "99.9th percentile", "p9999": "99.99th percentile",
    "max": "Longest",
}  # fmt: skip


def _way(way: str) -> list[Figure]:
    """Reads, writes or flushes alone; their bytes stand with the others'."""
    those, field = f"{way}es" if way == "flush" else f"{way}s", f"result.{way}"
    rate = Figure(f"{way}_throughput_gib_s", float, "GiB/s", f"{field}.throughput_gib_s", f"Of the {those}.")
    completed = f"{those.capitalize()} completed; empty, like the next, if there was none."
    return [
        Figure(f"{way}_ios", int, "count", f"{field}.ios", completed),
        *([] if way == "flush" else [rate]),
        Figure(f"{way}_iops", float, "1/s", f"{field}.iops", f"{those.capitalize()} a second."),
        *(
            Figure(f"{way}_latency_us_{name}", float, "µs", f"{field}.latency_us.{name}", f"{word} of the {those}.")
            for name, word in LATENCIES.items()
        ),
    ]


FIGURES: tuple[Figure, ...] = (
    Figure("id", str, "text", "id", "Identifier of the run."),
    Figure("started", str, "text", "started", "RFC 3339, UTC."),
    Figure("origin", str, "text", "origin", "measured, simulated or predicted."),
    Figure("forebay_version", str, "text", "forebay.version", "Version of Forebay that ran it."),
    Figure("file", str, "text", "file", "File that the record was read from.", of=lambda e: e.file),
    Figure(
        "line", int, "number", "line", "Line in that file, from 1; empty if the file is a single document.",
        of=lambda e: e.line,
    ),
    Figure(
        "sweep", str, "text", "sweep", "Title or preset of the sweep that the run belongs to.",
        of=lambda e: e.title or e.preset,
    ),
    Figure("label", str, "text", "job.label", "Value of `--label`."),
    Figure("host", str, "text", "environment.host", "Host name."),
    Figure("os", str, "text", "environment.os", "Distribution and version."),
    Figure("kernel", str, "text", "environment.kernel", "Kernel release."),
    Figure("cpu", str, "text", "environment.cpu", "CPU model."),
    Figure("cores", int, "count", "environment.cores", "Logical processors online."),
    Figure("memory_bytes", int, "bytes", "environment.memory_bytes", "Memory of the machine."),
    Figure("gpus", str, "text", "environment.gpus", "Their names, separated by `; `.", of=_names("environment.gpus", "name")),
    Figure(
        "drives", str, "text", "environment.drives", "Their models (or names, if the model is unknown), likewise.",
        of=_names("environment.drives", "model"),
    ),
    Figure("filesystem", str, "text", "environment.filesystem.kind", "File system of the first target."),
    Figure("source", str, "text", "job.source", "What was read or written."),
    Figure("op", str, "text", "job.op", "read, write, randread, randwrite."),
    Figure("pattern", str, "text", "job.pattern", "sequential or random."),
    Figure("read_pct", int, "per cent", "job.read_pct", "Share of reads in a mixed job."),
    Figure("io_bytes", int, "bytes", "job.io_bytes", "Size of an I/O; the smallest if sizes vary."),
    Figure("io_bytes_max", int, "bytes", "job.io_bytes_max", "The largest, if sizes vary."),
    Figure("data_bytes", int, "bytes", "job.data_bytes", "Size of the data set."),
    Figure("workers", int, "count", "job.workers", "Threads."),
    Figure("depth", int, "count", "job.depth", "I/Os in flight per worker."),
    Figure("queues", int, "count", "job.queues", "Queues of all workers."),
    Figure("seed", int, "number", "job.seed", "Seed of offsets and content."),
    Figure("path_requested", str, "text", "path.requested", "Value of `--path`."),
    Figure("path", str, "text", "path.ran", "The path that ran."),
    Figure("engine", str, "text", "path.engine", "How files were read or written."),
    Figure("destination", str, "text", "path.destination", "Where the bytes went."),
    Figure(
        "direct_bytes", int, "bytes", "path.direct_bytes",
        "Bytes that reached their destination without passing through another buffer in host memory.",
        shown=("path", "direct"),
    ),
    Figure(
        "compat_bytes", int, "bytes", "path.compat_bytes", "Bytes moved in cuFile's compatibility mode.",
        shown=("path", "by cuFile's compatibility mode"),
    ),
    Figure("staged_bytes", int, "bytes", "path.staged_bytes", "Bytes copied by a CPU on the way.", shown=("path", "staged")),
    Figure("mapped_bytes", int, "bytes", "path.mapped_bytes", "Bytes read from a memory mapping.", shown=("path", "mapped")),
    Figure(
        "fabric_bytes", int, "bytes", "path.fabric_bytes", "Bytes received or sent through sockets.",
        shown=("path", "through sockets"),
    ),
    Figure("cache_policy", str, "text", "cache.policy", "Page-cache policy."),
    Figure("resident_before", float, "share", "cache.resident_before", "Share of the data in the page cache before the run."),
    Figure("resident_after", float, "share", "cache.resident_after", "The same after the run."),
    Figure("device_bytes", int, "bytes", "cache.device_bytes", "Bytes that the devices moved during the run."),
    Figure(
        "seconds", float, "s", "result.seconds", "Measured time, excluding warm-up.",
        gauge=Gauge("seconds", "Measured time."),
    ),
    Figure("bytes", int, "bytes", "result.bytes", "Bytes moved.", gauge=Gauge("bytes", "Bytes moved.")),
    Figure("read_bytes", int, "bytes", "result.read_bytes", "Bytes read."),
    Figure("write_bytes", int, "bytes", "result.write_bytes", "Bytes written."),
    Figure("ios", int, "count", "result.ios", "Completed I/Os.", gauge=Gauge("ios", "I/Os finished.")),
    Figure(
        "throughput_gib_s", float, "GiB/s", "result.throughput_gib_s", "Bytes over seconds.",
        gauge=Gauge("throughput_bytes_per_second", "Bytes over measured time.", GIB),
        compared=Compared("throughput", "throughput", "GiB/s", True, "{x} is {r} × {y}"),
    ),
    Figure(
        "iops", float, "1/s", "result.iops", "I/Os over seconds.", gauge=Gauge("ios_per_second", "I/Os over measured time."),
        compared=Compared("iops", "I/O rate", "IOPS", True, "{x} does {r} × {y}'s I/Os per second"),
    ),
    Figure("repeats", int, "count", "result.repeats", "Number of repeats in this run.", of=_repeats),
    Figure("throughput_gib_s_median", float, "GiB/s", "result.summary.throughput_gib_s_median", "Median over the repeats."),
    Figure("throughput_gib_s_min", float, "GiB/s", "result.summary.throughput_gib_s_min", "Minimum over the repeats."),
    Figure("throughput_gib_s_max", float, "GiB/s", "result.summary.throughput_gib_s_max", "Maximum over the repeats."),
    Figure(
        "throughput_gib_s_ci95_low", float, "GiB/s", "result.summary.throughput_gib_s_ci95",
        "Lower end of the 95 % interval of the mean.", of=_bound("result.summary.throughput_gib_s_ci95", 0),
    ),
    Figure(
        "throughput_gib_s_ci95_high", float, "GiB/s", "result.summary.throughput_gib_s_ci95", "Upper end of that interval.",
        of=_bound("result.summary.throughput_gib_s_ci95", 1),
    ),
    Figure("latency_us_min", float, "µs", "result.latency_us.min", "Shortest I/O."),
    Figure(
        "latency_us_mean", float, "µs", "result.latency_us.mean", "Mean of the I/Os.",
        gauge=Gauge("latency_mean_seconds", "Mean latency.", 1e-6),
        compared=Compared("latency_mean", "mean latency", "µs", False, "{x}'s mean latency is {r} × {y}'s"),
    ),
    Figure("latency_us_p50", float, "µs", "result.latency_us.p50", "Median of the I/Os."),
    Figure("latency_us_p90", float, "µs", "result.latency_us.p90", "90th percentile of the I/Os."),
    Figure(
        "latency_us_p99", float, "µs", "result.latency_us.p99", "99th percentile of the I/Os.",
        compared=Compared("latency_p99", "p99 latency", "µs", False, "{x}'s 99th-percentile latency is {r} × {y}'s"),
    ),
    Figure("latency_us_p999", float, "µs", "result.latency_us.p999", "99.9th percentile of the I/Os."),
    Figure(
        "latency_us_max", float, "µs", "result.latency_us.max", "Longest I/O.",
        gauge=Gauge("latency_max_seconds", "Maximum latency.", 1e-6),
    ),
    Figure("cpu_user_s", float, "s", "result.cpu.user_s", "User time of the process and its threads."),
    Figure("cpu_system_s", float, "s", "result.cpu.system_s", "System time of the process and its threads."),
    Figure(
        "cpu_cores_busy", float, "cores", "result.cpu.cores_busy", "User and system time over the measured time.",
        gauge=Gauge("cpu_cores", "Cores busy, user and system."),
    ),
    Figure(
        "cpu_s_per_gib", float, "CPU-s/GiB", "result.cpu.cpu_s_per_gib", "User and system time per GiB.",
        gauge=Gauge("cpu_seconds_per_gib", "CPU-seconds per GiB."),
        compared=Compared("cpu", "CPU", "CPU-s/GiB", False, "{x} takes {r} × {y}'s CPU per GiB"),
    ),
    Figure("cpu_ns_per_io", float, "ns", "result.cpu.ns_per_io", "User and system time per I/O."),
    Figure(
        "others_cores_busy", float, "cores", "result.cpu.others_cores_busy",
        "Cores that other processes on the machine kept busy during the run.",
    ),
    Figure(
        "power_watts", float, "W", "result.power",
        "Power of the whole server if a meter covers it, else the sum of the metered parts.",
        of=lambda e: measured(_power("watts_mean"), e.record["result"]),
        gauge=Gauge("power_watts", "Mean power of the server, or of the parts that were metered."),
        compared=Compared("power", "power", "W", False, "{x} draws {r} × {y}'s power", _power("watts_mean")),
    ),
    Figure(
        "joules_per_gib", float, "J/GiB", "result.power", "Energy, likewise.",
        of=lambda e: measured(_power("joules_per_gib"), e.record["result"]),
        gauge=Gauge("joules_per_gib", "Energy per GiB."),
        compared=Compared("energy", "energy", "J/GiB", False, "{x} takes {r} × {y}'s energy per GiB", _power("joules_per_gib")),
    ),
    Figure("verified_bytes", int, "bytes", "result.verified_bytes", "Bytes whose content was checked."),
    Figure("errors_failed", int, "count", "result.errors.failed", "Failed I/Os.", shown=("errors", "failed")),
    Figure(
        "errors_timed_out", int, "count", "result.errors.timed_out", "I/Os that exceeded `--timeout`.",
        shown=("errors", "timed out"),
    ),
    Figure(
        "errors_verify_failed", int, "count", "result.errors.verify_failed", "I/Os with wrong content.",
        shown=("errors", "failed verification"),
    ),
    Figure("errors_short", int, "count", "result.errors.short", "Short I/Os, which were continued.", shown=("errors", "short")),
    Figure("errors_retried", int, "count", "result.errors.retried", "Retried I/Os.", shown=("errors", "retried")),
    Figure("errors_misaligned", int, "count", "result.errors.misaligned", "Misaligned I/Os.", shown=("errors", "misaligned")),
    Figure("interrupted", bool, "true or false", "result.interrupted", "Whether the run was stopped early."),
    Figure("workload", str, "text", "training.workload", "Workload of emulated training."),
    Figure("accelerator", str, "text", "training.accelerator", "Emulated accelerator."),
    Figure("accelerators", int, "count", "training.accelerators", "Number of emulated accelerators."),
    Figure(
        "au_pct", float, "per cent", "training.au_pct", "Utilisation of the accelerators.",
        gauge=Gauge("accelerator_utilisation_ratio", "Utilisation of the emulated accelerators.", 0.01),
    ),
    Figure("samples_per_s", float, "1/s", "training.samples_per_s", "Samples per second of all accelerators."),
    Figure("warnings", str, "identifiers", "warnings", "Identifiers of the warnings, separated by spaces.", of=_warnings),
    Figure("missing", str, "fields", "missing", "Fields of the record that couldn't be measured.", of=_missing),
    Figure(
        "batch", int, "count", "job.batch",
        "I/Os of a request (`--batch`); empty if each I/O was a request of its own. `iops` is then rows per second.",
    ),
    Figure(
        "batches", int, "count", "result.batch.count", "Completed batches.",
        gauge=Gauge("batches", "Completed batches (--batch)."),
    ),
    Figure(
        "batch_latency_us_min", float, "µs", "result.batch.latency_us.min", "Shortest batch.",
        of=_of_batches("result.batch.latency_us.min"),
    ),
    Figure(
        "batch_latency_us_mean", float, "µs", "result.batch.latency_us.mean", "Mean of the batches.",
        of=_of_batches("result.batch.latency_us.mean"),
        gauge=Gauge("batch_latency_mean_seconds", "Mean latency of batches.", 1e-6),
    ),
    Figure(
        "batch_latency_us_p50", float, "µs", "result.batch.latency_us.p50", "Median of the batches.",
        of=_of_batches("result.batch.latency_us.p50"),
    ),
    Figure(
        "batch_latency_us_p90", float, "µs", "result.batch.latency_us.p90", "90th percentile of the batches.",
        of=_of_batches("result.batch.latency_us.p90"),
    ),
    Figure(
        "batch_latency_us_p99", float, "µs", "result.batch.latency_us.p99", "99th percentile of the batches.",
        of=_of_batches("result.batch.latency_us.p99"),
    ),
    Figure(
        "batch_latency_us_p999", float, "µs", "result.batch.latency_us.p999", "99.9th percentile of the batches.",
        of=_of_batches("result.batch.latency_us.p999"),
    ),
    Figure(
        "batch_latency_us_max", float, "µs", "result.batch.latency_us.max", "Longest batch.",
        of=_of_batches("result.batch.latency_us.max"),
        gauge=Gauge("batch_latency_max_seconds", "Maximum latency of a batch.", 1e-6),
    ),
    Figure("batch_by", str, "text", "result.batch.by", "How the I/Os of a batch were transferred together."),
    Figure("train_model", str, "text", "train.model", "Model that was trained ([train.md](train.md#the-record))."),
    Figure("train_device", str, "text", "train.device", "Device that it was trained on."),
    Figure("train_seed", int, "number", "train.seed", "Seed of weights and order."),
    Figure("train_batch", int, "count", "train.batch", "Samples of a batch."),
    Figure("train_samples", int, "count", "train.samples", "Samples of the whole run."),
    Figure(
        "train_samples_per_s", float, "1/s", "train.samples_per_s", "Rate of training, without evaluations.",
        gauge=Gauge("train_samples_per_second", "Samples trained over the time of training alone."),
    ),
    Figure(
        "train_samples_per_s_ci95_low", float, "1/s", "train.samples_per_s_ci95", "Low end of its 95 % interval.",
        of=_bound("train.samples_per_s_ci95", 0),
    ),
    Figure(
        "train_samples_per_s_ci95_high", float, "1/s", "train.samples_per_s_ci95", "High end.",
        of=_bound("train.samples_per_s_ci95", 1),
    ),
    Figure(
        "train_peak_samples_per_s", float, "1/s", "train.peak_samples_per_s", "The model's own peak, from memory.",
        gauge=Gauge("train_peak_samples_per_second", "The model's own peak, on batches in its memory."),
    ),
    Figure(
        "train_demand_gib_s", float, "GiB/s", "train.demand_gib_s", "What it takes at its peak.",
        gauge=Gauge("train_demand_bytes_per_second", "Bytes that the model takes at its peak.", GIB),
    ),
    Figure(
        "train_supply_gib_s", float, "GiB/s", "train.supply_gib_s", "What it got at most, by the clock.",
        gauge=Gauge("train_supply_bytes_per_second", "Bytes that it was supplied with at most.", GIB),
    ),
    Figure("train_loader_gib_s", float, "GiB/s", "train.loader_gib_s", "What the loader brings when nothing holds it back."),
    Figure("train_supply_kind", str, "text", "train.supply.kind", "`simulated supply` or `the loader`."),
    Figure("train_supply_drive", str, "text", "train.supply.drive", "Drives whose share it was."),
    Figure("train_supply_drives", int, "count", "train.supply.drives", "How many of them."),
    Figure("train_supply_gpus", int, "count", "train.supply.gpus", "GPUs that share the supply."),
    Figure(
        "train_input_wait_pct", float, "per cent", "train.input_wait_pct",
        "Share of the time in which a batch was waited for.",
        gauge=Gauge("train_input_wait_ratio", "Share of the time in which a batch was waited for.", 0.01),
    ),
    Figure(
        "train_gpu_idle_pct", float, "per cent", "train.gpu_idle_pct", "Share of the time between steps.",
        gauge=Gauge("train_gpu_idle_ratio", "Share of the time between steps.", 0.01),
    ),
    Figure(
        "train_quality", float, "AUC", "train.quality", "The last evaluation's.",
        gauge=Gauge("train_quality", "The last evaluation's AUC."),
    ),
    Figure("train_quality_target", float, "AUC", "train.quality_target", "The target."),
    Figure("train_samples_to_target", int, "count", "train.samples_to_target", "Empty if it wasn't reached."),
    Figure(
        "train_seconds_to_target", float, "s", "train.seconds_to_target", "Likewise.",
        gauge=Gauge("train_target_seconds", "Time to the target."),
    ),
    Figure(
        "train_cpu_s_per_gib", float, "CPU-s/GiB", "train.cpu_s_per_gib", "User and system time of training, model and all.",
        of=_user_and_system("train.cpu_s_per_gib"),
    ),
    Figure(
        "train_feed_cpu_s_per_gib", float, "CPU-s/GiB", "train.feed_cpu_s_per_gib", "Of the loader alone.",
        of=_user_and_system("train.feed_cpu_s_per_gib"),
    ),
    Figure("train_path", str, "text", "train.path", "Path of the bytes."),
    Figure("train_cached", bool, "true or false", "train.cached", "Whether they came out of memory."),
    Figure("train_batch_hash", str, "text", "train.batch_hash", "Sum over content and order of all batches."),
    Figure("infer_model", str, "text", "infer.model", "Model that answered queries."),
    Figure("infer_mode", str, "text", "infer.mode", "How it was run."),
    Figure("infer_scenario", str, "text", "infer.scenario", "How queries arrived."),
    Figure(
        "infer_valid", bool, "true or false", "infer.valid", "Whether the scenario's rules hold.",
        gauge=Gauge("infer_valid", "1 where the scenario's rules hold."),
    ),
    Figure("infer_why", str, "text", "infer.why", "Why they don't."),
    Figure(
        "infer_queries_per_s", float, "1/s", "infer.queries_per_s", "Queries answered.",
        gauge=Gauge("infer_queries_per_second", "Queries answered over measured time."),
    ),
    Figure("infer_latency_ms_p50", float, "ms", "infer.latency_ms.p50", "Median of the queries' latency."),
    Figure("infer_latency_ms_p90", float, "ms", "infer.latency_ms.p90", "90th percentile."),
    Figure("infer_latency_ms_p99", float, "ms", "infer.latency_ms.p99", "99th percentile."),
    Figure(
        "infer_load_s", float, "s", "infer.load_s", "Time to load the model.",
        gauge=Gauge("infer_load_seconds", "Time to load the model."),
    ),
    Figure(
        "infer_load_bytes", int, "bytes", "infer.load_bytes", "Bytes loaded.",
        gauge=Gauge("infer_load_bytes", "Bytes loaded."),
    ),
    Figure(
        "infer_timed_storage_bytes", int, "bytes", "infer.timed_storage_bytes",
        "Bytes that storage brought while queries were timed.",
        gauge=Gauge("infer_timed_storage_bytes", "Bytes that storage brought while queries were timed."),
    ),
    Figure("latency_us_stdev", float, "µs", "result.latency_us.stdev", "Standard deviation of the I/Os."),
    Figure("latency_us_p95", float, "µs", "result.latency_us.p95", "95th percentile of the I/Os."),
    Figure("latency_us_p9999", float, "µs", "result.latency_us.p9999", "99.99th percentile of the I/Os."),
    *(figure for way in WAYS for figure in _way(way)),
    Figure("files_read", int, "count", "result.files.read", "Files of which something was read; empty for a job of one file."),
    Figure("files_per_s", float, "1/s", "result.files.files_per_s", "Files read from beginning to end per second."),
)
