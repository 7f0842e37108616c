"""`forebay emulate kvcache`: a serving engine's key-value cache on storage, as MLPerf Storage v3.0 measures it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay import flags
from forebay.bench import listen, save, terminal
from forebay.bench.interrupt import Interrupt
from forebay.bench.verb import Outcome
from forebay.command_line.lazy import LazyGroup
from forebay.errors import BROKE, DONE, INTERRUPTED, ForebayError, RequestError, RunError

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

EXAMPLES = """\b
Examples:
  forebay emulate kvcache --option 1 --dir /data/kv
  forebay emulate kvcache --option 2 --dir /data/kv --results results
  forebay emulate kvcache --option 1 --dir model:d7-ps1010
  forebay emulate kvcache --dir /data/kv --users 20 --duration 30 --verify
  mpirun -n 2 -host a,b forebay emulate kvcache --option 3 --dir /data/kv --results results
  forebay emulate kvcache check results
  forebay emulate kvcache run --dir /data/kv --blocks 2m
  forebay emulate kvcache replay mooncake.jsonl --dir model:d7-ps1010 --host-tier 200g"""

Spec = dict[str, Any]
Record = dict[str, Any]
Rank = dict[str, Any]


class KvVerbs(LazyGroup):
    table = {
        "check": ("forebay.emulate.kvcache.check:command", "What were the rates of these results really?"),
        "run": ("forebay.emulate.kvcache.blocks:command", "How fast do a serving engine's blocks reach their pages?"),
        "replay": ("forebay.emulate.kvcache.replay:command", "What would this drive have done for recorded requests?"),
    }
    noun = "verb of emulate kvcache"


@click.group(
    "kvcache", cls=KvVerbs, invoke_without_command=True, epilog=EXAMPLES, context_settings={"max_content_width": 110}
)
@flags.request_options("kvcache")
@click.option("--closed", is_flag=True, help="Refuse settings that the closed division fixes otherwise.")
@click.option("--results", metavar="DIR", help="Also write the reference's files there: rank files and summary.json.")
@click.option("--trial", metavar="N", help="Number of this trial in --results. Default: the first that is free.")
@click.option("--trace", metavar="FILE", help="Also write the reference's trace there, as CSV or .zst.")
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout.")
@click.option(
    "-o", "--out", metavar="FILE", help="Save the record to FILE: .jsonl appends a line; otherwise only a record is replaced."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@listen.option
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
@click.option("--mpi", is_flag=True, help="Run one job over all ranks of mpirun or srun (detected if mpi4py is installed).")
@click.pass_context
def command(
    context: click.Context,
    as_json: bool,
    out: str | None,
    dry_run: bool,
    metrics: str | None,
    quiet: bool,
    mpi: bool,
    results: str | None,
    trial: str | None,
    trace: str | None,
    **options: Any,
) -> int:
    """How fast is this storage as the key-value cache of a serving engine?

    Users ask and don't wait; each request reads the earlier turns of its conversation, writes its own entry whole, and
    reads it again for every 32 tokens of output. The rate that counts is that of the window; beside it stand what MLPerf
    Storage's own tool would publish, and the mean until the last byte. Results are MLPerf-style and unverified.
    """
    if context.invoked_subcommand is not None:
        return DONE
    from forebay import mpi as launch

    ranks = options["ranks"]
    spec = spec_of(options, trace is not None)
    saved = save.Output(out, save.RUN) if out else None
    world = launch.world(explicit=mpi)
    if world is not None:
        spec = share_of(spec, ranks, world.rank, world.size)
    if dry_run:
        return show_plan(spec, as_json) if world is None or world.leads else DONE
    files = Files(results, trial, trace, spec) if results or trace else None
    with listen.listening(metrics, quiet, world) as listens, Interrupt() as interrupt:
        outcome = measure(spec, interrupt, quiet, world, listens, files)
    if world is None or world.leads:
        with save.unless_said([outcome.record] if outcome.record is not None else [], saved):
            conclude(outcome, saved, as_json, quiet, files)
            if as_json and outcome.record is not None:
                click.echo(json.dumps(outcome.record, indent=1))
    code = outcome.exit_code
    return world.agree(code) if world is not None else code


# What an option of the closed division fixes.
FIXED = {
    "model": "--model",
    "users": "--users",
    "duration_s": "--duration",
    "admission": "--admission",
    "host_tier_bytes": "--host-tier",
    "seed": "--seed",
    "phase": "--phase",
}


def spec_of(options: dict[str, Any], traces: bool = False) -> Spec:
    """The engine's KvSpec. Raises RequestError for what can't be understood."""
    asked = flags.request_from_flags("kvcache", options)
    if "dir" not in asked:
        raise RequestError("--dir", "no folder was given", "--dir DIR, or --dir model:d7-ps1010")
    for key in ("overwrite", "overwrite_devices"):
        if key in asked:
            asked[key] = named(asked[key])
    number = asked.get("option", 1)
    closed = option_of(number)
    spec = closed | asked | {"trace": traces}
    if options["closed"]:
        for key, flag in FIXED.items():
            if spec[key] != closed[key]:
                reported = f"option {number} of the closed division fixes {closed[key]}"
                raise RequestError(f"--closed {flag} {spec[key]}", reported, f"without {flag}, or without --closed")
    return spec


def named(texts: Sequence[str]) -> list[str]:
    """What may be overwritten: a flag for each, or several in one, with commas."""
    return [name for text in texts for name in text.split(",") if name]


def option_of(number: int) -> Spec:
    """What MLPerf Storage v3.0 fixes for an option."""
    from forebay import _core

    return json.loads(_core.kvcache_option(max(min(number, 99), 0)))


def share_of(spec: Spec, asked: str | None, process: int, processes: int) -> Spec:
    """Returns the ranks of one of several processes: one each, or an equal share of --ranks."""
    ranks = spec["ranks"] if asked is not None else processes
    if ranks % processes:
        raise RequestError(
            f"--ranks {ranks} on {processes} processes",
            "each process needs the same number of ranks",
            f"mpirun -n N with N a divisor of {ranks}",
        )
    here = ranks // processes
    return spec | {"ranks": ranks, "first_rank": process * here, "ranks_here": here, "hosts": processes}


# What a rank may have of its own: where its entries are, and which of them it begins with.
OWN = ("dir", "overwrite", "overwrite_devices", "first_rank", "trace", "power")


def refuse_differing(spec: Spec, world: Any) -> None:
    """RequestError on every rank where their settings differ: their stream and their record are of one request."""
    fields = [field for field in flags.fields("kvcache") if field.key not in OWN]
    (host, first), *others = world.each(spec)
    for rank, (other, theirs) in enumerate(others, 1):
        for field in fields:
            ours, its = first.get(field.key), theirs.get(field.key)
            if ours != its:
                reported = f"rank {rank} on {other} has {its}, and rank 0 on {host} {ours}"
                raise RequestError(f"--{field.flag}", reported, "the same command for all ranks; --dir may differ")


class Files:
    """The reference's files of a run: each rank's, the summary over them, and the trace."""

    def __init__(self, results: str | None, trial: str | None, trace: str | None, spec: Spec) -> None:
        from forebay.emulate.kvcache import tree

        self.results, self.trace, self.spec = results, trace, spec
        self.began = time.time()
        self.stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(self.began))
        self.trial = 0
        if trace is not None and os.path.lexists(trace):
            raise RequestError(f"--trace {trace}", "exists, so it isn't overwritten", "another name")
        if results is None:
            return
        mine = range(spec.get("first_rank") or 0, (spec.get("first_rank") or 0) + (spec.get("ranks_here") or spec["ranks"]))
        if trial is not None:
            self.trial = flags._integer(trial, "--trial")
        else:
            while any(tree.rank_folder(results, spec["option"], self.trial, rank).is_dir() for rank in mine):
                self.trial += 1
        for rank in mine:
            tree.refuse_occupied(results, spec["option"], self.trial, rank)

    def write(self, record: Record, ranks: list[Rank]) -> None:
        """This process's ranks, each its own file. Their trace begins at the run's beginning."""
        from forebay.emulate.kvcache import tree

        for rank in ranks if self.results is not None else []:
            own = record | {"kvcache": rank["kvcache"]}
            tree.write_rank(
                str(self.results), self.spec["option"], self.trial, rank["rank"], own, rank["requests"], self.stamp
            )
        if self.trace is not None:
            # Users of every rank have the same names.
            several = self.spec["ranks"] > 1
            keyed = [
                (f"rank{rank['rank']}_{row['key']}" if several else row["key"], row) for rank in ranks for row in rank["trace"]
            ]
            tree.write_trace(
                self.trace,
                (
                    tree.Operation(self.began + row["at_s"], row["operation"], row["bytes"], row["tier"], key, row["phase"])
                    for key, row in sorted(keyed, key=lambda each: each[1]["at_s"])
                ),
            )

    def summarize(self) -> str | None:
        """Writes summary.json over what is there; returns its path."""
        from forebay.emulate.kvcache import tree

        if self.results is None:
            return None
        lasted = {f"option_{self.spec['option']}/trial_{self.trial}": self.spec["duration_s"]}
        return str(tree.write_summary(self.results, hosts=self.spec.get("hosts") or 1, durations_s=lasted))

    def same_filesystem(self) -> dict[str, str] | None:
        """A warning where results and cache lie on one file system, which the rules forbid."""
        try:
            shared = self.results is not None and device_of(self.results) == device_of(self.spec["dir"])
        except OSError:
            return None
        if not shared:
            return None
        text = f"results and cache lie on one file system ({self.results}, {self.spec['dir']}), which the rules forbid"
        return {"id": "kvcache_same_filesystem", "text": text, "next": "--results on another file system"}


def device_of(path: str) -> int:
    """The device of a path, or of the folder that it will be made in."""
    at = Path(path).absolute()
    while not at.exists() and at != at.parent:
        at = at.parent
    return at.stat().st_dev


def measure(
    spec: Spec, interrupt: Interrupt, quiet: bool, world: Any, listens: Endpoint | None, files: Files | None
) -> Outcome:
    """The run under the progress that fits the terminal, which `listens` hands out too. Errors become part of the outcome."""
    from forebay.bench import progress

    watch = progress.Silent() if world is not None and not world.leads else progress.line(quiet)
    ranks: list[Rank] = []

    def observe(found: dict[str, Any]) -> None:
        interrupt.raise_if_requested()
        if world is not None:
            world.watch(found)
        if listens is not None:
            listens.see(settings_of(spec), f"KV cache of {spec['users']} users", found)
        watch(found)

    def go(spec: Spec, relay: Any = observe, barrier: Callable[[], None] | None = None) -> Record:
        record = engine_run(spec, relay, barrier, ranks.extend)
        if files is not None and not interrupt.requested:
            warned = files.same_filesystem()
            record["warnings"] += [warned] if warned is not None else []
            files.write(record, ranks)
        return record

    try:
        if world is None:
            record = go(spec)
        else:
            world.all_agree(lambda: engine_plan(spec))
            refuse_differing(spec, world)
            timeout_s = float(spec.get("timeout_s") or 30.0) + 2.0 * spec["users"]
            record = world.run_together(spec, lambda spec: go(spec, barrier=world.meet), interrupt, timeout_s)
        return Outcome(record, interrupted=interrupt.requested)
    except ForebayError as error:
        found = getattr(error, "record", None)
        return Outcome(json.loads(found) if isinstance(found, str) else found, error, interrupt.requested)
    except KeyboardInterrupt:
        interrupt.requested = True
        return Outcome(None, interrupted=True)
    finally:
        watch.close()


def settings_of(spec: Spec) -> dict[str, Any]:
    """Returns a run's settings for a live metric."""
    return {"sources": [spec["dir"]], "path": "host", **{key: spec.get(key) for key in ("io_bytes", "workers", "depth")}}


def engine_run(
    spec: Spec,
    observer: Callable[[dict[str, Any]], None] | None = None,
    barrier: Callable[[], None] | None = None,
    ranks: Callable[[list[Rank]], object] | None = None,
    replay: str | None = None,
) -> Record:
    """Runs `spec` and returns its RunRecord, whose part `kvcache` tells of the cache.

    `observer` gets Progress dicts about four times a second; `barrier` is called before the first request; `ranks` once at the
    end, with what each rank's own files tell; `replay` is a recorded trace in place of the users. Raises RequestError,
    MachineError, CheckError or RunError (with `.record`).
    """
    from forebay import _core, run

    def relay(text: str) -> None:
        if observer is not None:
            observer(json.loads(text))

    def hand_over(text: str) -> None:
        if ranks is not None:
            ranks(json.loads(text))

    return json.loads(_core.kvcache_run(json.dumps(spec), run.typed(), relay, barrier, hand_over, replay))


def engine_plan(spec: Spec) -> dict[str, Any]:
    """Returns the plan of `engine_run`, without touching anything."""
    from forebay import _core

    return json.loads(_core.kvcache_plan(json.dumps(spec)))


def conclude(outcome: Outcome, out: save.Output | None, as_json: bool, quiet: bool, files: Files | None) -> None:
    """Says how it went (stderr with --json, else stdout), and saves the record where that is due."""
    from forebay.emulate.kvcache import show_run

    record = outcome.record
    if record is not None and not quiet:
        click.echo(show_run.text(record, terminal.text_width()), err=as_json)
    kept: str | None = None
    if record is not None and out:
        try:
            out.write([record], rescues=False)
            kept = out.path
        except RunError as error:
            outcome.error = outcome.error or error
    if record is not None and kept is None and outcome.exit_code in (BROKE, INTERRUPTED):
        rescued = save.rescue(record)
        kept = str(rescued) if rescued else None
    if kept and not quiet:
        click.echo(f"record    {kept}", err=True)
    if files is not None and record is not None and outcome.exit_code == DONE:
        try:
            summary = files.summarize()
        except ForebayError as error:
            outcome.error = outcome.error or error
        else:
            if summary is not None and not quiet:
                click.echo(f"results   {summary}", err=True)
    if outcome.error is not None:
        click.echo(f"forebay: {outcome.error}", err=True)
    elif record is None:
        click.echo("forebay: interrupted before anything was measured", err=True)


def show_plan(spec: Spec, as_json: bool) -> int:
    """Prints to stdout what would be done."""
    from forebay.emulate.kvcache import show_run

    found = engine_plan(spec)
    click.echo(json.dumps(found, indent=1) if as_json else show_run.plan(found))
    return DONE


if __name__ == "__main__":
    from forebay.cli import main

    main(["emulate", "kvcache", *sys.argv[1:]])
