"""Runs of inference on the page: LoadGen's verdict, rates, latencies, and what storage delivered, before the clock and in it."""

from __future__ import annotations

from collections.abc import Sequence

from forebay import numbers
from forebay.report.documents import Section, command_line
from forebay.report.load import Entry
from forebay.report.runs import Run
from forebay.report.tables import Cell, Notes, Table, text

ROWS_MAX = 400
COLUMNS = [
    "Model", "Mode", "Scenario", "Verdict", "Queries/s", "p99, ms", "Supply, GiB/s", "Loaded", "In", "From storage, timed",
]  # fmt: skip
FOOT = (
    "Queries/s: samples/s in Offline. Loaded in: before LoadGen's clock started, weights in a cold start. From storage, timed: "
    "bytes that storage delivered inside the timed part. Cold tests and cold starts aren't MLPerf's. MLPerf-style, unverified."
)


def is_inference(entry: Entry) -> bool:
    return isinstance(entry.record.get("infer"), dict)


def name(entry: Entry) -> str:
    """`resnet50, Offline, samples in memory`."""
    run = Run(entry)
    return f"{run.text('infer.model', 'model')}, {run.text('infer.scenario', '?')}, {run.text('infer.mode', '?')}"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """One section for all runs of inference; none without one."""
    if not entries:
        return []
    runs = [Run(entry) for entry in entries]
    last = runs[-1]
    rate = last.number("infer.queries_per_s")
    finding = f"{last.text('infer.model', 'a model')} answered "
    finding += f"{numbers.whole(rate)} queries/s" if rate is not None else "its first query"
    finding += f" ({last.text('infer.mode', '?')}, {last.text('infer.scenario', '?')})"
    facts = [(str(said.get("area")), str(said.get("text"))) for said in last.items("infer.advice")]
    table = Table("infer-runs", "Inference", [], COLUMNS, [_row(run, notes) for run in runs[:ROWS_MAX]], FOOT)
    command = next((c for c in (command_line(run.at("command")) for run in runs) if c), "")
    return [Section("infer", "Inference", finding, "", [table], facts, command)]


def _row(run: Run, notes: Notes) -> list[Cell]:
    drive = run.text("infer.supply.drive")
    drives = f"{numbers.whole(run.number('infer.supply.drives') or 0)} × {drive}" if drive else run.text("infer.supply.kind")
    supply, valid = run.number("infer.supply_gib_s"), run.at("infer.valid")
    verdict = notes.missing(run.reason("infer.valid")) if valid is None else text("VALID" if valid else "INVALID")
    return [
        text(run.text("infer.model", "?"), run.text("infer.device")),
        text(run.text("infer.mode", "?"), "short" if run.at("infer.short") else ""),
        text(run.text("infer.scenario", "?")),
        verdict,
        notes.value(run.number("infer.queries_per_s"), numbers.whole, run.reason("infer.queries_per_s")),
        notes.value(run.number("infer.latency_ms.p99"), numbers.significant, run.reason("infer.latency_ms")),
        Cell(numbers.significant(supply), drives) if supply else notes.missing(run.reason("infer.supply_gib_s")),
        notes.value(run.number("infer.load_bytes"), numbers.bytes_, run.reason("infer.load_bytes")),
        notes.value(run.number("infer.load_s"), numbers.seconds, run.reason("infer.load_s")),
        notes.value(run.number("infer.timed_storage_bytes"), numbers.bytes_, run.reason("infer.timed_storage_bytes")),
    ]
