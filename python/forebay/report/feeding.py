"""Runs of a loader, and of models that it fed, on the page: how fast, how long a batch was waited for, at what cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

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

TRAINED = ["Model", "Batch", "Supply, GiB/s", "Needs", "Samples/s", "Of its peak", "Waited", "Quality", "To the target", "Hash"]
TRAINED_FOOT = (
    "Supply: of one GPU, by the clock; needs: what the model's own peak takes. Quality: AUC, of gnn accuracy. To the target: "
    "with evaluations. Runs with equal hashes saw the same batches. MLPerf-style, unverified."
)


SEEDS = ["Model", "Batch", "Seeds", "Converged", "Samples to it", "By the seed", "Samples/s", "By the machine", "To the target"]
SEEDS_FOOT = (
    "By the seed, by the machine: relative standard deviation over runs of one training, with its 95 % interval. A run that "
    "didn't converge is in no spread of what it didn't reach. MLPerf-style, unverified."
)


def is_feeding(entry: Entry) -> bool:
    return isinstance(entry.record.get("feed"), dict) or is_training(entry)


def is_training(entry: Entry) -> bool:
    return isinstance(entry.record.get("train"), dict)


def name(entry: Entry) -> str:
    """`loader, 8,192 samples a batch`, `dlrm, 6,912 samples a batch`."""
    if is_training(entry):
        run = Run(entry)
        return f"{run.text('train.model', 'model')}, {numbers.whole(run.number('train.batch') or 0)} samples a batch"
    return f"loader, {numbers.whole(Run(entry).number('feed.batch_size') or 0)} samples a batch"


def sections(entries: Sequence[Entry], notes: Notes) -> list[Section]:
    """One section for all runs of loaders, and one for all models that they fed; none without one."""
    trained = [Run(entry) for entry in entries if is_training(entry)]
    runs = [Run(entry) for entry in entries if not is_training(entry)]
    return [*_trained(trained, notes), *_fed(runs, notes)]


def _trained(runs: Sequence[Run], notes: Notes) -> list[Section]:
    if not runs:
        return []
    last = runs[-1]
    rate, own = last.number("train.samples_per_s"), last.number("train.peak_samples_per_s")
    finding = f"{last.text('train.model', 'a model')} trained at {numbers.whole(rate or 0.0)} samples/s"
    finding += f", {numbers.percent(rate / own)} of its own peak" if rate and own else ""
    facts = [(str(said.get("area")), str(said.get("text"))) for said in last.items("train.advice")]
    table = Table("train-runs", "Training", [], TRAINED, [_model_row(run, notes) for run in runs[:ROWS_MAX]], TRAINED_FOOT)
    command = next((c for c in (command_line(run.at("command")) for run in runs) if c), "")
    return [Section("train", "Training", finding, "", [table, *_over_seeds(runs, notes)], facts, command)]


def _over_seeds(runs: Sequence[Run], notes: Notes) -> list[Table]:
    """A row for each training that ran from several seeds; no table where none did."""
    from forebay.train import series

    grouped: dict[str, dict[int, dict[str, Any]]] = {}
    for run in runs:
        seed = run.at("train.seed")
        with suppress(AttributeError, TypeError):  # a damaged part of training
            if isinstance(seed, int) and series.is_whole(run.entry.record):
                grouped.setdefault(json.dumps(series.settings(run.entry.record), default=str), {})[seed] = run.entry.record
    rows = []
    for by_seed in grouped.values():
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            if len(by_seed) > 1:
                rows.append(_seeds_row(list(by_seed.values()), notes))
    return [Table("train-seeds", "Over seeds", [], SEEDS, rows[:ROWS_MAX], SEEDS_FOOT)] if rows else []


def _seeds_row(records: list[dict[str, Any]], notes: Notes) -> list[Cell]:
    from forebay.train import spread

    found = spread.document(records)
    lost = [row for row in found["rows"] if row["converged"] is False]
    reason = str(lost[0]["why"]) if lost else "no target was asked for"

    def mean(name: str, show: Callable[[float], str]) -> Cell:
        return notes.value(found["spread"][name]["mean"], show, reason)

    def deviation(name: str) -> Cell:
        of = found["spread"][name]
        if of["rsd_pct"] is None:
            return notes.missing("fewer than two runs have it")
        low, high = of["rsd_pct_ci95"]
        return Cell(numbers.percent(of["rsd_pct"] / 100), f"{numbers.percent(low / 100)}–{numbers.percent(high / 100)}")

    asked = len([row for row in found["rows"] if row["converged"] is not None])
    why = "; ".join(f"seed {row['seed']}: {row['why']}" for row in lost[:3])
    part = records[0]["train"]
    why = "; ".join(f"seed {row['seed']}: {row['why']}" for row in lost[:3])
    return [
        text(str(part["model"]), str(part.get("device") or "")),
        Cell(numbers.whole(part["batch"])),
        Cell(str(len(records))),
        Cell(f"{asked - len(lost)} of {asked}", why) if asked else notes.missing("no target was asked for"),
        mean("samples_to_target", numbers.whole),
        deviation("samples_to_target"),
        mean("samples_per_s", numbers.whole),
        deviation("samples_per_s"),
        mean("seconds_to_target", numbers.seconds),
    ]


def _model_row(run: Run, notes: Notes) -> list[Cell]:
    rate, own = run.number("train.samples_per_s"), run.number("train.peak_samples_per_s")
    wait, drive = run.number("train.input_wait_pct"), run.text("train.supply.drive")
    drives = f"{numbers.whole(run.number('train.supply.drives') or 0)} × {drive}" if drive else run.text("train.supply.kind")
    supply, need = run.number("train.supply_gib_s"), run.number("train.demand_gib_s")
    return [
        text(run.text("train.model", "?"), run.text("train.device")),
        Cell(numbers.whole(run.number("train.batch") or 0.0)),
        Cell(numbers.significant(supply), drives) if supply else notes.missing(run.reason("train.supply_gib_s")),
        notes.value(need, numbers.significant, run.reason("train.demand_gib_s")),
        notes.value(rate, numbers.whole, run.reason("train.samples_per_s")),
        notes.value(rate / own if rate and own else None, numbers.percent, run.reason("train.peak_samples_per_s")),
        notes.value(wait, lambda pct: numbers.percent(pct / 100), run.reason("train.input_wait_pct")),
        notes.value(run.number("train.quality"), lambda q: f"{q:.4f}", run.reason("train.quality")),
        notes.value(run.number("train.seconds_to_target"), numbers.seconds, run.reason("train.seconds_to_target")),
        text(run.text("train.batch_hash", "?")),
    ]


def _fed(runs: Sequence[Run], notes: Notes) -> list[Section]:
    if not runs:
        return []
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
