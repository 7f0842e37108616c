"""The one line that gdsio prints, out of a RunRecord, and the notes that go to stderr before it."""

from __future__ import annotations

from typing import Any

from forebay.flags import engine_name
from forebay.gdsio.request import Request
from forebay.gdsio.wording import said
from forebay.gdsio.xfer import label
from forebay.units import GIB

KIB = 1024


def line(request: Request, record: dict[str, Any], data_bytes: int) -> str:
    """gdsio's line for one run: same words, order, units and digits.

    `data_bytes` is the data set (after the slash); before it stand the KiB that were moved. Throughput is
    bytes moved over total_time, so that the numbers of a line agree with each other.
    """
    result, seconds = record["result"], record["result"]["seconds"]
    rate = result["bytes"] / seconds / GIB if seconds > 0 else 0.0
    words = [
        f"IoType: {request.op.upper()} XferType: {label(request.xfer, record)}",
        f"Threads: {record['job']['workers']}",
        *([f"IoDepth: {request.depth()}"] if request.xfer.batches else []),
        f"DataSetSize: {result['bytes'] // KIB}/{data_bytes // KIB}(KiB)",
        f"IOSize: {io_sizes(request.io_bytes)}(KiB)",
        f"Throughput: {rate:.6f} GiB/sec, Avg_Latency: {result['latency_us']['mean']:.6f} usecs",
        f"ops: {result['ios']} total_time {seconds:.6f} secs",
    ]
    return " ".join(words)


def io_sizes(sizes: tuple[int, ...]) -> str:
    """`64`, or MIN-MAX-STEP. A size that isn't whole KiB keeps its fraction: 512 bytes are 0.5, not 0."""
    return "-".join(str(s // KIB) if s % KIB == 0 else f"{s / KIB:g}" for s in sizes)


def notes(record: dict[str, Any]) -> list[str]:
    """Returns the facts that the line can't tell: what ran, how latency was spread, what it cost, what to beware of."""
    path, result, warnings = record["path"], record["result"], record.get("warnings", [])
    latency, cpu = result["latency_us"], result["cpu"]
    reason = f" ({path['reason']})" if path.get("reason") else ""
    where = f"ran {path['ran']} through {engine_name(path['engine'])} to {path['destination']}"
    percentiles = ", ".join(f"{name} {latency[name]:.0f}" for name in ("p50", "p90", "p99", "p999", "max"))
    cost = cpu.get("cpu_s_per_gib")
    spent = f", {cost:.3f} CPU-seconds per GiB" if cost is not None else ""
    busy = "processor time not measured" if cpu["cores_busy"] is None else f"{cpu['cores_busy']:.2f} cores busy"
    written = [
        f"{where}, page cache: {record['cache']['policy']}{reason}",
        f"latency in us: {percentiles}; {result['iops']:.0f} IOPS; {busy}{spent}",
    ]
    copied = path["staged_bytes"] + path.get("compat_bytes", 0)
    if path["direct_bytes"] and copied:
        share = 100 * copied / (path["direct_bytes"] + copied)
        written.append(f"{share:.1f} % of the bytes were copied by a CPU")
    errors = result["errors"]
    if errors["verify_failed"]:
        written.append(
            f"{errors['verify_failed']} reads returned other content than -V with this -k writes"
        )
    written += errors.get("examples", [])
    if result["interrupted"]:
        written.append("interrupted: the line below covers what was measured until then")
    return written + [said(f"{w['text']}; {w['next']}" if w.get("next") else w["text"]) for w in warnings]


def per_job(record: dict[str, Any]) -> list[str]:
    """-J: each target and each thread."""
    result = record["result"]
    return [f"target {t['target']}: {t['bytes'] // KIB} KiB, {t['ios']} I/Os" for t in result["targets"]] + [
        f"thread {w['worker']}: {w['bytes'] // KIB} KiB, {w['ios']} I/Os, "
        f"p50 {w['latency_us_p50']:.0f} us, p99 {w['latency_us_p99']:.0f} us"
        for w in result["workers"]
    ]
