"""Runs of a loader on the page: how fast samples were handed out, how long their consumer waited, at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from forebay import numbers
from forebay.report.documents import Section, command_line
from forebay.report.load import Entry
from forebay.report.runs import Run
from forebay.report.tables import Cell, Notes, Table, text

ROWS_MAX = 400
COLUMNS = ["Source", "Order", "Into", "Samples/s", "GiB/s", "Waited", "CPU-s/GiB", "Way", "Hash"]
FOOT = (
    "Waited: share of the time in which the consumer waited for a batch. Runs with equal hashes handed out the same samples of "
    "the same data at the same positions."
)


def is_feeding(entry: Entry) -> bool:
    return isinstance(entry.record.get("feed"), dict)


def name(entry: Entry) -> str:
    """`loader, 8,192 samples a batch`."""
    return f"loader, {numbers.whole(Run(entry).number('feed.batch_size') or 0)} samples a batch"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """One section for all runs of loaders; none without one."""
    if not entries:
        return []
    runs = [Run(entry) for entry in entries]
    best = max(runs, key=lambda run: run.number("feed.samples_per_s") or 0.0)
    rate = numbers.whole(best.number("feed.samples_per_s") or 0.0)
    finding = f"a loader handed out {rate} samples/s ({numbers.significant(best.number('result.throughput_gib_s') or 0.0)} GiB/s)"
    commands = [command_line(run.at("command")) for run in runs]
    table = Table("feed-runs", "Runs of a loader", [], COLUMNS, [_row(run, notes) for run in runs[:ROWS_MAX]], FOOT)
    return [Section("feed", "Loader", finding, "", [table], [], next((c for c in commands if c), ""))]


def _row(run: Run, notes: Notes) -> list[Cell]:
    cost = run.number("result.cpu.cpu_s_per_gib")
    return [
        text(run.text("job.source", "?"), "" if run.text("origin") == "measured" else run.text("origin")),
        text(run.text("feed.order", "?")),
        text(run.text("path.destination", "?")),
        Cell(numbers.whole(run.number("feed.samples_per_s") or 0.0)),
        Cell(numbers.significant(run.number("result.throughput_gib_s") or 0.0)),
        Cell(numbers.percent((run.number("feed.input_wait_pct") or 0.0) / 100)),
        notes.value(cost, numbers.significant, run.reason("result.cpu.cpu_s_per_gib")),
        text(run.text("path.ran", "?")),
        text(run.text("feed.hash", "?")),
    ]
