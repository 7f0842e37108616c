"""Inference over drives on the page: queries a second as ratios with intervals, the control beside it, and the time to load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from forebay import numbers
from forebay.infer import scaling
from forebay.report.documents import Section, command_line
from forebay.report.load import Entry
from forebay.report.runs import Run
from forebay.report.tables import Cell, Notes, Table, text

IDENT = "inference-drives"
COLUMNS = [
    *("Model", "Samples", "Scenario", "Drives", "Supply, GiB/s"),
    *("Queries/s", "Over the fewest drives", "p99, ms", "Loaded in"),
]
FOOT = (
    "Supply: of one GPU, simulated. Over the fewest drives: the mean over rounds of the ratio in each, with its 95 % interval. "
    "Highest rate: of Server's, by bisection, between what passed and the next that didn't. "
    "Loaded in: before LoadGen's clock starts. Samples read inside their queries aren't MLPerf's: they are the control, without "
    "which equal rates would prove nothing. MLPerf-style, unverified."
)
NEEDED = ("model", "mode", "scenario", "drive")
ONE, OWN = "it is the one with the fewest drives, or ran in one round", "highest rates have intervals of their own"


def is_answering(entry: Entry) -> bool:
    """A finished point of such a sweep, whole."""
    point, part = entry.point, entry.record.get("infer")
    whole = all(isinstance(point.get(key), str) for key in NEEDED) and type(point.get("drives")) is int and point["drives"] > 0
    if not whole or not isinstance(part, dict) or point["mode"] not in (scaling.RAM, scaling.COLD):
        return False
    figures = [point.get("supply_gib_s"), part.get("queries_per_s")]
    others = [part.get(key) for key in ("load_s", "timed_storage_bytes")] + [point.get("weights_bytes")]
    latency = part.get("latency_ms")
    if not (latency is None or isinstance(latency, dict)):
        return False
    others += list((latency or {}).values())
    if point.get("highest"):
        figures.append(part.get("expected_per_s"))
        trials = part.get("search") or []
        if not isinstance(trials, list) or not all(isinstance(t, dict) and type(t.get("passed")) is bool for t in trials):
            return False
        figures += [t.get("queries_per_s") for t in trials]
    return all(_number(v) and v > 0 for v in figures) and all(v is None or (_number(v) and v >= 0) for v in others)


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < 1e18


def name(entry: Entry) -> str:
    """`toy, Offline, ram, 4 × D7-PS1010`."""
    point = entry.point
    return f"{point['model']}, {scaling.scenario_of(point)}, {point['mode']}, {point['drives']} × {point['drive']}"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """One section for all such points; none without one."""
    made = scaling.rows([(e.point, e.round, e.record["infer"]) for e in entries])
    if not made:
        return []
    flat, control = scaling.flat(made), scaling.control(made)
    held = [row for row in flat if row["holds"]]
    finding = f"Queries/s with samples in memory are the same over drives within their bound in {len(held)} of {len(flat)} cases"
    shows = [row for row in control if row["shows"]]
    finding += f"; the control grows in {len(shows)} of {len(control)}" if control else ""
    facts = [("Memory", scaling.sentence(row)) for row in flat] + [("Control", scaling.control_sentence(row)) for row in control]
    facts += [("Highest rate", scaling.curve_sentence(row)) for row in scaling.curves(made)]
    facts += [("Advice", f"{row['model']}: {row['text']}") for row in scaling.advice(made)]
    table = Table(f"{IDENT}-points", "By drives", [], COLUMNS, [_row(row, notes) for row in made], FOOT)
    command = next((c for c in (command_line(Run(entry).at("command")) for entry in entries) if c), "")
    return [Section(IDENT, "Inference by drives", finding, "", [table], facts, command)]


def _row(row: scaling.Row, notes: Notes) -> list[Cell]:
    interval = f"{row['low']:.4f} to {row['high']:.4f}" if row["low"] is not None else ""
    return [
        text(row["model"]),
        text({scaling.RAM: "in memory", scaling.COLD: "read inside queries"}[row["mode"]]),
        text(scaling.scenario_of(row)),
        text(f"{row['drives']} × {row['drive']}"),
        Cell(numbers.significant(row["supply_gib_s"])),
        Cell(numbers.whole(row["queries_per_s"]), scaling.between(row).strip(" ()"))
        if row["queries_per_s"]
        else notes.missing("no rate of Server's passed"),
        Cell(f"{row['ratio']:.4f}", interval) if row["ratio"] else notes.missing(OWN if row["highest"] else ONE),
        notes.value(row["p99_ms"], numbers.significant, "Server alone is judged by it"),
        notes.value(row["load_s"], numbers.seconds, "nothing is loaded before a cold test"),
    ]
