"""The papers' own numbers beside ours, where a preset repeats their method.

Their machines are not the reader's: the tables put methods side by side, not drives. A cell that the
data leaves blank stays blank here.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable
from importlib import resources
from typing import Any

from forebay import numbers
from forebay.report.runs import Study, finite
from forebay.report.tables import Cell, Notes, Table, text

TRAINING_TIME = "tables/dlrm_training_time.csv"
BLANK = "left blank in the published data that comes with this version"
NOT_HERE = "not run here"
SOLIDIGM_CAVEATS = (
    "What the paper prints as “GiBps” or “GB/s” is GiB/s (13.48 GiB/s is the drive's 14,474 MB/s).",
    "Its CPU figure is user time only, in per cent of the machine. It leaves out kernel time, so it doesn't show by "
    "itself that GPUDirect Storage saves CPU. Our figure next to it is user time, too; the table above has both.",
    "“Queue depth 24/32” in the paper is worker threads, each with one request in flight. Sizes up to 128 KiB ran with "
    "32 workers on 512 MiB files, larger ones with 24 workers on 2 GiB files: size and concurrency can't be told apart.",
    "Its “CPU-GPU” path is described as drive → host memory → GPU, which is bounce here; host ends in host memory.",
)
MICRON_CAVEATS = (
    "An early release of GPUDirect Storage (July 2020), eight pairs of one GPU and one drive.",
    "GB/s is as printed. Latency is a mean, and CPU counts busy cores.",
)
FABRIC_CAVEATS = (
    "Most of a difference is explained by cores (here host, gateway and target may share one machine's processors; in the paper "
    "a DPU and two machines do the work), copies (here each end copies a socket's payload once; the paper's DPU moves it by "
    "DMA), and the link (loopback, a veth pair or your own).",
    "The paper's bytes end in GPU memory, with a file per worker; here it is one file, and its bytes end where the path says.",
    "In places the paper's remote drive is faster than the same drive attached locally, and than its specification. The paper "
    "gives no reason.",
)


def rows(name: str) -> list[dict[str, str]]:
    """One of the package's tables; every row names its `source`."""
    data = (
        resources.files("forebay")
        .joinpath("data")
        .joinpath("published")
        .joinpath(name)
        .read_text(encoding="utf-8")
    )
    return list(csv.DictReader(io.StringIO(data)))


def preset_of(study: Study) -> str | None:
    """The preset that a study repeats: the sweep's own word, or the label of its jobs."""
    names = {study.preset, *(run.text("job.label") for run in study.runs)}
    return next((name for name in PRESETS if name in names), None)


def table(study: Study, notes: Notes) -> tuple[Table, tuple[str, ...]] | None:
    """Ours beside theirs, with what to know about theirs; None where no paper has this study."""
    preset = preset_of(study)
    if preset is None:
        return None
    name, caveats, make = PRESETS[preset]
    return make(study, rows(name), notes), caveats


def sources(data: list[dict[str, str]]) -> str:
    """`Published: Solidigm on …, Table 4.`"""
    return f"Published: {'; '.join(dict.fromkeys(row['source'] for row in data))}."


def _solidigm(study: Study, data: list[dict[str, str]], notes: Notes) -> Table:
    drives = list(dict.fromkeys(row["drive"] for row in data))
    ours = study.series
    groups = [Cell("", number=False), Cell("here", number=False, span=2 * len(ours))]
    groups += [Cell(f"published: {drive}", number=False, span=5) for drive in drives]
    columns = ["Block size", *[f"{s} {unit}" for s in ours for unit in ("GiB/s", "CPU user %")]]
    columns += ["GDS GiB/s", "CPU-GPU GiB/s", "GDS ÷ CPU-GPU", "GDS CPU user %", "CPU-GPU CPU user %"] * len(
        drives
    )
    body = []
    for kib in dict.fromkeys(int(row["io_size_kib"]) for row in data):
        row = [text(numbers.size(kib << 10))]
        for series in ours:
            row += _ours(study, kib << 10, series, notes)
        for drive in drives:
            row += _theirs([r for r in data if r["drive"] == drive and int(r["io_size_kib"]) == kib], notes)
        body.append(row)
    return Table(
        f"{study.id}-published", "Published cells beside ours", groups, columns, body, sources(data)
    )


def _ours(study: Study, io_bytes: int, series: str, notes: Notes) -> list[Cell]:
    point = study.point(float(io_bytes), series)
    if point is None and study.axis.key is None and study.runs[0].number("job.io_bytes") == io_bytes:
        point = study.point(0.0, series)
    if point is None:
        return [notes.missing(NOT_HERE)] * 2
    user = point.stat("result.cpu.user_pct")
    rate = point.stat("result.throughput_gib_s")
    return [
        notes.cell(rate, numbers.rate, point.reason("result.throughput_gib_s")),
        notes.value(user.value if user else None, numbers.significant, point.reason("result.cpu.user_pct")),
    ]


def _theirs(found: list[dict[str, str]], notes: Notes) -> list[Cell]:
    by_path = {row["path"]: row for row in found}

    def number(path: str, column: str) -> float | None:
        return _number(by_path.get(path, {}).get(column))

    def printed(path: str, column: str) -> Cell:
        value = by_path.get(path, {}).get(column)
        return Cell(value) if value else notes.missing(BLANK)

    gds, cpu = number("gds", "throughput_gib_s"), number("cpu", "throughput_gib_s")
    return [
        printed("gds", "throughput_gib_s"),
        printed("cpu", "throughput_gib_s"),
        notes.value(gds / cpu if gds and cpu else None, numbers.ratio, BLANK),
        printed("gds", "cpu_user_pct"),
        printed("cpu", "cpu_user_pct"),
    ]


MICRON_METRICS = {
    "throughput_gbps": ("Throughput", "GB/s", "result.throughput_gib_s", numbers.rate, "GiB/s"),
    "cpu_cores_busy": ("CPU", "cores busy", "result.cpu.cores_busy", numbers.significant, "cores busy"),
    "latency_us_mean": ("Mean latency", "µs", "result.latency_us.mean", numbers.micros, ""),
}


def _micron(study: Study, data: list[dict[str, str]], notes: Notes) -> Table:
    columns = [
        "Published cell",
        "Path",
        "Block size",
        "Workers per pair",
        "Published",
        "Here, host",
        "Here, bounce",
        "Here, gds",
    ]
    body = []
    for row in data:
        title, unit, path, show, our_unit = MICRON_METRICS[row["metric"]]
        value = Cell(f"{row['value']} {unit}", row["note"]) if row["value"] else notes.missing(BLANK)
        kib, workers = int(row["io_size_kib"]), int(row["workers_per_pair"])
        cells = [text(title), text(row["path"]), text(numbers.size(kib << 10)), Cell(str(workers)), value]
        for ours in ("host", "bounce", "gds"):
            cells.append(_micron_ours(study, ours, kib << 10, workers, path, show, our_unit, notes))
        body.append(cells)
    return Table(f"{study.id}-published", "Published cells beside ours", [], columns, body, sources(data))


def _micron_ours(
    study: Study, ran: str, io_bytes: int, workers: int, path: str, show: Any, unit: str, notes: Notes
) -> Cell:
    """Our run at the same block size and workers, whichever of the two is the axis."""
    for point in study.points:
        run = point.runs[0]
        same = run.number("job.io_bytes") == io_bytes and run.number("job.workers") == workers
        if same and run.text("path.ran") == ran:
            stat = point.stat(path)
            return Cell(f"{show(stat.value)} {unit}".strip()) if stat else notes.missing(point.reason(path))
    return notes.missing(NOT_HERE)


def _number(value: str | None) -> float | None:
    try:
        return finite(float(value)) if value else None
    except ValueError:
        return None


def _labelled(study: Study, io_bytes: int, label: str, notes: Notes) -> Cell:
    """Our rate at a block size, of the points that the preset labels so."""
    runs = [r for r in study.runs if r.number("job.io_bytes") == io_bytes and r.text("job.label") == label]
    rates = [stat for run in runs if (stat := run.stat("result.throughput_gib_s"))]
    return Cell(numbers.rate(statistics.median(s.value for s in rates))) if rates else notes.missing(NOT_HERE)


def _quotient(top: Cell, below: Cell, notes: Notes, reason: str) -> Cell:
    a, b = _number(top.text), _number(below.text)
    return notes.value(a / b if a and b else None, numbers.ratio, reason)


def _remote(study: Study, data: list[dict[str, str]], notes: Notes) -> Table:
    drives = list(dict.fromkeys(row["drive"] for row in data))
    groups = [Cell("", number=False), Cell("here", number=False, span=3)]
    groups += [Cell(f"published: {drive}", number=False, span=3) for drive in drives]
    columns = ["Block size", *["local GiB/s", "remote GiB/s", "remote ÷ local"] * (1 + len(drives))]
    theirs = {(r["drive"], int(r["io_size_kib"]), r["location"]): r["throughput_gibps"] for r in data}
    body = []
    for kib in dict.fromkeys(int(row["io_size_kib"]) for row in data):
        ours = [_labelled(study, kib << 10, label, notes) for label in ("local", "remote")]
        row = [text(numbers.size(kib << 10)), *ours, _quotient(ours[1], ours[0], notes, NOT_HERE)]
        for drive in drives:
            printed = [theirs.get((drive, kib, place)) for place in ("local", "remote")]
            cells = [Cell(value) if value else notes.missing(BLANK) for value in printed]
            row += [*cells, _quotient(cells[1], cells[0], notes, BLANK)]
        body.append(row)
    return Table(f"{study.id}-published", "Published cells beside ours", groups, columns, body, sources(data))


def _queues(study: Study, data: list[dict[str, str]], notes: Notes) -> Table:
    counts = list(dict.fromkeys(int(row["snap_queues"]) for row in data))
    drive = data[0]["drive"]
    groups = [Cell("", number=False), Cell("here, GiB/s by queues", number=False, span=len(counts))]
    groups += [Cell(f"published: {drive}, GiB/s by queues", number=False, span=len(counts))]
    columns = ["Block size", *[str(n) for n in counts] * 2]
    theirs = {(int(r["io_size_kib"]), int(r["snap_queues"])): r["throughput_gibps"] for r in data}
    body = []
    for kib in dict.fromkeys(int(row["io_size_kib"]) for row in data):
        row = [text(numbers.size(kib << 10))]
        row += [_labelled(study, kib << 10, f"{n} queue{'s' if n > 1 else ''}", notes) for n in counts]
        row += [Cell(value) if (value := theirs.get((kib, n))) else notes.missing(BLANK) for n in counts]
        body.append(row)
    return Table(f"{study.id}-published", "Published cells beside ours", groups, columns, body, sources(data))


# Preset → its published table, what to know about it, and how it is laid out.
PRESETS: dict[str, tuple[str, tuple[str, ...], Callable[[Study, list[dict[str, str]], Notes], Table]]] = {
    "solidigm-gds": ("solidigm_gds.csv", SOLIDIGM_CAVEATS, _solidigm),
    "solidigm-remote": ("tables/remote_vs_local.csv", FABRIC_CAVEATS, _remote),
    "solidigm-snap-queues": ("tables/snap_queues.csv", FABRIC_CAVEATS, _queues),
    "micron-4k": ("micron_gds.csv", MICRON_CAVEATS, _micron),
    "micron-io-size": ("micron_gds.csv", MICRON_CAVEATS, _micron),
}
