"""`forebay train MODEL --seeds N`: one training from several seeds, each a run of its own with a record of its own.

Runs that are in the output already, of the same training on the same machine, aren't repeated. What was measured is saved
after each run, so that an interrupt loses only the one that it met.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay.errors import CHECK_FAILED, DONE, INTERRUPTED, ForebayError, RequestError
from forebay.numbers import whole
from forebay.train import mllog, run, spread
from forebay.train.command import Request

if TYPE_CHECKING:
    from forebay.bench.save import Output

Record = dict[str, Any]
SCHEMA = "forebay.train.series/1"
SEEDS_MAX = 1000
# What tells two forms of a model apart, where it has several.
SIZES = ("weights", "compiled")


def settings(record: Record) -> Record:
    """All but the seed that makes two runs the same training on the same machine."""
    part = record.get("train") or {}
    supply = part.get("supply") or {}
    data = part.get("data") or {}
    return {
        **{key: part.get(key) for key in ("model", "device", "batch", "order", "learning_rate", "cache", "asked")},
        "target": part.get("quality_target"),
        "evaluate_every": part.get("evaluate_every"),
        "supply": (supply.get("asked"), supply.get("gpus")),
        "data": tuple(data.get(key) for key in ("seed", "rows", "table_rows")),
        **{key: part.get(key) for key in SIZES},
        "host": (record.get("environment") or {}).get("host"),
    }


def asked(request: Request, model: Any) -> Record:
    """The same of a run that is asked for."""
    about = request.about
    return {
        "model": model.name,
        "device": model.device,
        "batch": request.batch,
        "order": request.shuffle,
        "learning_rate": model.rate,
        "cache": request.cache,
        "asked": request.limits(),
        "target": request.aim() if request.quality else None,
        "evaluate_every": request.every() if request.quality else None,
        "supply": (request.supply.text, request.supply.gpus),
        "data": (about.seed, about.rows, about.table_rows),
        **{key: getattr(model, "reported", {}).get(key) for key in SIZES},
        "host": os.uname().nodename,
    }


def is_whole(record: Record) -> bool:
    """Not interrupted, and ended by its own limits; a loss that is no number is an end like another."""
    part = record.get("train")
    if not isinstance(part, dict) or (record.get("result") or {}).get("interrupted"):
        return False
    return part.get("failed") is None or part["failed"] == run.NO_NUMBER


def kept(path: str | None) -> list[Record]:
    """Whole records of training in a file of lines; none where there is no file. Damaged lines are passed over."""
    found: list[Record] = []
    if path is None or not Path(path).is_file():
        return found
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and is_whole(record):
                found.append(record)
    return found


class Series:
    """The runs of seeds in turn. `make`: a model of a seed; `torch`: it takes tensors."""

    def __init__(self, request: Request, make: Callable[[int], Any], torch: bool, seeds: int, out: str | None) -> None:
        if not 1 <= seeds <= SEEDS_MAX:
            raise RequestError(f"--seeds {seeds}", f"is not between 1 and {SEEDS_MAX}", "--seeds 5")
        if out is not None and not out.endswith(".jsonl"):
            lines = Path(out).with_suffix(".jsonl")
            raise RequestError(f"-o {out}", "holds one document, and --seeds makes a record for each", f"-o {lines}")
        self.request, self.make, self.torch = request, make, torch
        self.seeds = range(request.seed, request.seed + seeds)
        self.out = out
        self.records: dict[int, Record] = {}
        self.found = 0
        self.interrupted, self.holds = False, True
        self.failure: ForebayError | None = None

    def measure(self, output: Output | None, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
        """All seeds, or until an interrupt or what no other seed would change."""
        there = self._there()
        for seed in self.seeds:
            if seed in there:
                self.records[seed], self.found = there[seed], self.found + 1
                continue
            self._one(replace(self.request, seed=seed), output, say)
            if self.interrupted or self.failure:
                return
            tell(_line(self.records[seed]))

    def _there(self) -> dict[int, Record]:
        """Runs of this training that the output has already, by their seed."""
        found = kept(self.out)
        if not found:
            return {}
        model = self.make(self.request.seed)
        same = asked(self.request, model)
        model.close()
        return {record["train"]["seed"]: record for record in found if settings(record) == same}

    def _one(self, request: Request, output: Output | None, say: Callable[[str], None]) -> None:
        place = f"seed {request.seed} ({request.seed - self.seeds[0] + 1} of {len(self.seeds)}): "
        model = None
        try:
            model = self.make(request.seed)
            request.check(model.device)
            made = request.runner(model, self.torch, lambda text: say(place + text))
            failure = made.measure()
            record = made.record()
        except KeyboardInterrupt:  # before anything of it was measured
            self.interrupted = True
            return
        except ForebayError as error:
            if not self.records:
                raise
            self.failure = error
            return
        finally:
            if model is not None:
                model.close()
        if output is not None:
            output.append(record)
        self.interrupted = made.interrupted
        self.holds = self.holds and made.holds
        if is_whole(record):
            self.records[request.seed] = record
        elif failure is not None:
            self.failure = failure

    def document(self) -> Record:
        records = list(self.records.values())
        return {"schema": SCHEMA, "spread": spread.document(records), "interrupted": self.interrupted, "runs": records}

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        return DONE if self.holds else CHECK_FAILED


def _line(record: Record) -> str:
    part = record["train"]
    rate = f"{whole(part['samples_per_s'])} samples/s" if part["samples_per_s"] else "no rate"
    reached = part["samples_to_target"]
    end = f"target after {whole(reached)} samples" if reached else f"ended after {whole(part['samples'])} samples"
    return f"seed {part['seed']}: {end}, {rate}"


def run_series(
    request: Request,
    make: Callable[[int], Any],
    torch: bool,
    seeds: int,
    as_json: bool,
    out: str | None,
    quiet: bool,
    logs: mllog.Logs | None = None,
) -> int:
    """The whole command: runs, table, exit code."""
    from forebay.bench import save
    from forebay.model_runs import progress

    series = Series(request, make, torch, seeds, out)
    output = save.Output(out, save.RUN) if out else None
    with progress(quiet) as say:
        series.measure(output, say, lambda text: None if quiet else click.echo(text, err=True))
    document = series.document()
    with save.unless_said(list(series.records.values()), output):
        if not quiet:
            click.echo(_text(series, document), err=as_json)
        if as_json:
            click.echo(json.dumps(document, indent=1))
        sys.stdout.flush()
    if logs is not None and len(series.records) == len(series.seeds):
        logs.write(list(series.records.values()))
    if series.failure is not None:
        raise series.failure
    return series.exit_code


def _text(series: Series, document: Record) -> str:
    lines = [spread.text(document["spread"])] if series.records else ["no run was finished"]
    if series.found:
        lines.append(f"{series.found} of {len(series.records)} runs were in {series.out} already")
    missing = len(series.seeds) - len(series.records)
    if missing:
        again = f"the same command with -o {series.out} goes on" if series.out else "-o FILE.jsonl keeps runs, to go on from"
        lines.append(f"{missing} of {len(series.seeds)} seeds are missing: {again}")
    return "\n".join(lines)
