"""Runs over checkpoints on the page: how fast they were written and read back, at what cost, and which rules hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay import numbers
from forebay.report.documents import Section, command_line
from forebay.report.load import Entry
from forebay.report.runs import Run
from forebay.report.tables import Cell, Notes, Table, text

ROWS_MAX = 400
COLUMNS = [
    "Place", "Path", "Workload", "Ranks", "One checkpoint", "Direction", "Checkpoints", "Seconds each", "GiB/s",
    "First rank, s", "I/O p99", "Flush p99", "CPU-s/GiB", "Verified",
]  # fmt: skip
FOOT = (
    "Seconds each: until the slowest rank was done, the mean over the checkpoints; below it and below the rate, their standard "
    "deviation. First rank: when the fastest was done, in the last checkpoint. Flush: of a file, before it is closed."
)
WAYS = {"write": "written", "read": "read"}
RULE_COLUMNS = ["Place", "Rule", "Holds", "Why"]
# Of rules that don't hold: by whether that is known.
HOLDS = {True: "no", False: "unknown"}


def is_checkpoints(entry: Entry) -> bool:
    return isinstance(entry.record.get("checkpoint"), dict)


def name(entry: Entry) -> str:
    """`llama3-8b's checkpoints, 8 ranks`."""
    run = Run(entry)
    ranks = numbers.whole(run.number("checkpoint.ranks") or 0)
    return f"{run.text('checkpoint.workload', 'a model')}'s checkpoints, {ranks} ranks"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """One section for all runs over checkpoints; none without one."""
    if not entries:
        return []
    runs = [Run(entry) for entry in entries]
    best = max(runs, key=lambda run: [run.number(f"checkpoint.{way}.gib_s_mean") or 0.0 for way in WAYS])
    rates = {done: best.number(f"checkpoint.{way}.gib_s_mean") for way, done in WAYS.items()}
    found = [f"{done} at {numbers.rate(rate)} GiB/s" for done, rate in rates.items() if rate is not None]
    finding = ", ".join([name(best.entry), *(found or ["none completed"])])
    label = next((run.text("checkpoint.label") for run in runs if run.text("checkpoint.label")), "")
    rows = [row for run in runs for row in _rows(run, notes)][:ROWS_MAX]
    tables = [Table("checkpoint-runs", "Checkpoints written and read", [], COLUMNS, rows, FOOT)]
    judged = [row for run in runs for row in _rules(run)][:ROWS_MAX]
    if judged:
        tables.append(Table("checkpoint-rules", "Rules", [], RULE_COLUMNS, judged, ""))
    facts = [("Label", label)] if label else []
    commands = [command_line(run.at("command")) for run in runs]
    return [Section("checkpoints", "Checkpoints", finding, "", tables, facts, next((c for c in commands if c), ""))]


def _place(run: Run) -> Cell:
    origin = "" if run.text("origin") == "measured" else run.text("origin")
    return text(run.text("job.source", "?"), origin)


def _rows(run: Run, notes: Notes) -> list[list[Cell]]:
    """A row for each direction."""
    return [_row(run, way, notes) for way in WAYS if isinstance(run.at(f"checkpoint.{way}"), dict)]


def _row(run: Run, way: str, notes: Notes) -> list[Cell]:
    at = f"checkpoint.{way}"
    done = run.at(f"{at}.checkpoints")
    last: dict[str, Any] = done[-1] if isinstance(done, list) and done and isinstance(done[-1], dict) else {}
    ranks, whole = run.number("checkpoint.ranks") or 0, run.number("checkpoint.ranks_whole") or 0
    verified = run.number(f"{at}.verified_bytes")
    unflushed = "reads aren't flushed" if way == "read" else "nothing was flushed"
    return [
        _place(run),
        text(run.text("path.ran", "?")),
        text(run.text("checkpoint.workload", "?"), run.text("checkpoint.rule_set", "")),
        Cell(numbers.whole(ranks), f"of {numbers.whole(whole)}" if whole and whole != ranks else ""),
        Cell(numbers.bytes_(run.number("checkpoint.bytes") or 0), f"{numbers.whole(run.number('checkpoint.files') or 0)} files"),
        text(way),
        Cell(numbers.whole(len(done) if isinstance(done, list) else 0)),
        _spread(run, f"{at}.duration_s", numbers.significant, notes),
        _spread(run, f"{at}.gib_s", numbers.rate, notes),
        notes.value(_number(last.get("rank_s_min")), numbers.significant, "the record has no such field"),
        notes.value(run.number(f"{at}.latency_us.p99"), numbers.micros, run.reason(f"{at}.latency_us")),
        notes.value(run.number(f"{at}.fsync_us.p99"), numbers.micros, unflushed),
        notes.value(run.number(f"{at}.cpu_s_per_gib"), numbers.significant, run.reason(f"{at}.cpu_s_per_gib")),
        text(numbers.bytes_(verified) if verified else "no"),
    ]


def _spread(run: Run, key: str, show: Any, notes: Notes) -> Cell:
    mean, stdev = run.number(f"{key}_mean"), run.number(f"{key}_stdev")
    if mean is None:
        return notes.missing(run.reason(key))
    return Cell(show(mean), f"± {numbers.significant(stdev)}" if stdev else "")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _rules(run: Run) -> list[list[Cell]]:
    """Those that don't hold or aren't known, and a row that counts the others."""
    listed = run.at("checkpoint.rules")
    rules = [rule for rule in listed if isinstance(rule, dict)] if isinstance(listed, list) else []
    broken = [
        [_place(run), text(str(rule.get("id", "?"))), text(HOLDS[rule.get("ok") is False]), text(str(rule.get("why", "")))]
        for rule in rules
        if rule.get("ok") is not True
    ]
    held = len(rules) - len(broken)
    if held:
        broken.append([_place(run), text(f"{numbers.whole(held)} of {numbers.whole(len(rules))}"), text("yes"), text("")])
    return broken
