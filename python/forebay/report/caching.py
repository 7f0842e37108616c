"""Runs of a KV cache on the page: reads in the window, as the reference publishes them and until the last byte; latencies."""

from __future__ import annotations

from collections.abc import Sequence

from forebay import numbers
from forebay.report.documents import Section, command_line
from forebay.report.load import Entry
from forebay.report.runs import Run
from forebay.report.tables import Cell, Notes, Table, text

ROWS_MAX = 400
COLUMNS = [
    "Place", "Option", "Users", "Read, in the window", "As published", "Until the last byte", "Write, in the window", "Tokens/s",
    "Entry read P95, ms", "Entry write P95, ms", "Request P95, ms", "Limit", "Stream",
]  # fmt: skip
FOOT = (
    "GiB/s. In the window: bytes that came within it. As published: as the reference counts, which adds bytes that came after it "
    "and divides by the window. Until the last byte: all bytes by all of the time. Runs with equal streams served the same "
    "requests."
)


def is_caching(entry: Entry) -> bool:
    return isinstance(entry.record.get("kvcache"), dict)


def name(entry: Entry) -> str:
    """`KV cache, option 1, 200 users`."""
    run = Run(entry)
    option = run.number("kvcache.option")
    which = f"option {numbers.whole(option)}, " if option else ""
    return f"KV cache, {which}{numbers.whole(run.number('kvcache.users') or 0)} users"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """One section for all runs of KV caches; none without one."""
    if not entries:
        return []
    runs = [Run(entry) for entry in entries]
    best = max(runs, key=lambda run: run.number("kvcache.read_gib_s.window") or 0.0)
    rate = numbers.rate(best.number("kvcache.read_gib_s.window") or 0.0)
    finding = f"{name(best.entry)}, read {rate} GiB/s"
    published = best.number("kvcache.read_gib_s.as_published")
    if published is not None:
        finding += f", {numbers.rate(published)} as published"
    label = next((run.text("kvcache.label") for run in runs if run.text("kvcache.label")), "")
    commands = [command_line(run.at("command")) for run in runs]
    table = Table("kvcache-runs", "Runs of a KV cache", [], COLUMNS, [_row(run, notes) for run in runs[:ROWS_MAX]], FOOT)
    facts = [("Label", label)] if label else []
    return [Section("kvcache", "KV cache", finding, "", [table], facts, next((c for c in commands if c), ""))]


def _row(run: Run, notes: Notes) -> list[Cell]:
    option = run.number("kvcache.option")
    origin = "" if run.text("origin") == "measured" else run.text("origin")
    found = [
        text(run.text("kvcache.dir") or run.text("job.source", "?"), origin),
        text(numbers.whole(option) if option else "own", run.text("kvcache.model", "")),
        Cell(numbers.whole((run.number("kvcache.users") or 0) * (run.number("kvcache.ranks") or 1))),
    ]
    for way, how in (("read", "window"), ("read", "as_published"), ("read", "drained"), ("write", "window")):
        key = f"kvcache.{way}_gib_s.{how}"
        found.append(notes.value(run.number(key), numbers.rate, run.reason(key)))
    found.append(notes.value(run.number("kvcache.storage_tokens_per_s"), numbers.significant, run.reason("kvcache")))
    for what in ("entry_read", "entry_write", "request"):
        key = f"kvcache.latency_ms.{what}.p95"
        found.append(notes.value(run.number(key), numbers.significant, run.reason(key)))
    return [*found, text(run.text("kvcache.limit", "?")), text(run.text("kvcache.stream_hash", "?"))]
