"""`forebay emulate checkpoint`: checkpoints written and read back as the ranks of a large model do it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from forebay import flags
from forebay.bench import listen, save, terminal
from forebay.bench.interrupt import Interrupt
from forebay.bench.verb import Outcome
from forebay.emulate import workloads
from forebay.errors import BROKE, DONE, INTERRUPTED, ForebayError, RequestError, RunError

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

EXAMPLES = """\b
Examples:
  forebay emulate checkpoint --workload llama3-8b --dir /data/ckpt
  forebay emulate checkpoint --workload llama3-70b --ranks 8 --dir /data/ckpt
  forebay emulate checkpoint --workload llama3-405b --scale 0.001 --writes 2 --reads 2 --dir /data/ckpt
  forebay emulate checkpoint --workload llama3-8b --dir /data/ckpt --reads 0   (then, on another day, --writes 0)
  mpirun -n 2 -host a,b forebay emulate checkpoint --workload llama3-8b --dir /shared/ckpt --shift"""
EDITIONS = ("v2.0", "v3.0")

Spec = dict[str, Any]
Record = dict[str, Any]


@click.command("checkpoint", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.option("--workload", metavar="NAME", help="llama3-8b, -70b, -405b or -1t, or a TOML file.")
@click.option("--dlio", metavar="FILE.yaml", help="A DLIO checkpoint file, instead of --workload.")
@flags.request_options("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout.")
@click.option(
    "-o", "--out", metavar="FILE", help="Save the record to FILE: .jsonl appends a line; otherwise only a record is replaced."
)
@click.option("--dry-run", is_flag=True, help="Show what would be written and read, and change nothing.")
@listen.option
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
@click.option("--mpi", is_flag=True, help="Run one job over all ranks of mpirun or srun (detected if mpi4py is installed).")
def command(
    as_json: bool, out: str | None, dry_run: bool, metrics: str | None, quiet: bool, mpi: bool, **options: Any
) -> int:
    """How fast can a large model's checkpoint be written to this storage and read back?

    Each rank writes its own files (layers and its share of the optimizer state) and flushes them; later it reads them
    back. A checkpoint takes as long as its slowest rank. Results are MLPerf-style and unverified.
    """
    from forebay import mpi as launch

    spec = spec_of(options)
    saved = save.Output(out, save.RUN) if out else None

    world = launch.world(explicit=mpi)
    if world is not None:
        spec = share_of(spec, world.rank, world.size)
    if dry_run:
        return show_plan(spec, as_json) if world is None or world.leads else DONE
    with listen.listening(metrics, quiet, world) as listens, Interrupt() as interrupt:
        outcome = measure(spec, interrupt, quiet, world, listens)
    leads = world is None or world.leads
    if leads:
        with save.unless_said([outcome.record] if outcome.record is not None else [], saved):
            conclude(outcome, saved, as_json, quiet)
            if as_json and outcome.record is not None:
                click.echo(json.dumps(outcome.record, indent=1))
    code = outcome.exit_code
    return world.agree(code) if world is not None else code


def spec_of(options: dict[str, Any]) -> Spec:
    """The engine's CheckpointSpec. Raises RequestError for what can't be understood."""
    asked = flags.request_from_flags("checkpoint", options)
    workload = workload_of(options["workload"], options["dlio"], asked.get("closed", False), asked.get("ranks"))
    rules = workload.rules[0]
    spec: Spec = {
        "workload": workload.name,
        "version": ", ".join(workload.rules),
        "model": workload.model(),
        "rules": rules if rules in EDITIONS else EDITIONS[0],
        "writes": workload.writes,
        "reads": workload.reads,
        "between_s": workload.pause_s,
        **asked,
        "fsync": workload.fsync and asked.get("fsync", True),
    }
    if "writes" in asked and "reads" not in asked:
        # A shorter run reads no more than it wrote; one that only reads, what is there.
        spec["reads"] = min(spec["reads"], spec["writes"]) if spec["writes"] else spec["reads"]
    return spec


def workload_of(name: str | None, file: str | None, closed: bool, ranks: int | None = None) -> workloads.Checkpoint:
    """Returns the workload of --workload or --dlio, of which one must be there. `ranks`: as many as were asked for."""
    if file is None and name is None:
        raise RequestError("--workload", "no workload was given", "--workload llama3-8b")
    if file is None:
        return workloads.load_checkpoint(str(name))
    if name is not None:
        raise RequestError(f"--dlio {file} --workload {name}", "both name a workload", "one of them")
    from forebay.emulate import dlio_checkpoint

    workload = dlio_checkpoint.load(file, ranks)
    if closed:
        dlio_checkpoint.check_closed(file, workload)
    return workload


def share_of(spec: Spec, process: int, processes: int) -> Spec:
    """Returns the share of one of several processes: an equal share of the ranks, those of a process following each other."""
    model = spec["model"]
    ranks = spec.get("ranks") or model["tensor"] * model["pipeline"] * model["data"]
    if ranks % processes:
        raise RequestError(
            f"--ranks {ranks} on {processes} processes",
            "each process needs the same number of ranks",
            f"mpirun -n N with N a divisor of {ranks}",
        )
    here = ranks // processes
    return spec | {"ranks": ranks, "first_rank": process * here, "ranks_here": here, "hosts": processes}


def measure(spec: Spec, interrupt: Interrupt, quiet: bool, world: Any, listens: Endpoint | None = None) -> Outcome:
    """The run under the progress that fits the terminal, which `listens` hands out too. Errors become part of the outcome."""
    from forebay.bench import progress

    watch = progress.Silent() if world is not None and not world.leads else progress.line(quiet)

    def observe(found: dict[str, Any]) -> None:
        interrupt.raise_if_requested()
        if world is not None:
            world.watch(found)
        if listens is not None:
            listens.see(settings_of(spec), f"checkpoints of {spec['workload']}", {**found, "phase": phase_of(spec, found)})
        watch(found)

    def go(spec: Spec, relay: Any = observe, barrier: Callable[[], None] | None = None) -> Record:
        return engine_run(spec, relay, barrier)

    try:
        if world is None:
            record = go(spec)
        else:
            world.all_agree(lambda: engine_plan(spec))
            timeout_s = float(spec.get("timeout_s") or 30.0)
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
    """Returns a run's settings for a live metric: those that were asked for."""
    return {"sources": [spec["dir"]], **{key: spec.get(key) for key in ("path", "io_bytes", "workers", "depth")}}


def phase_of(spec: Spec, progress: dict[str, Any]) -> str:
    """`write` or `read`, as checkpoints are measured; they are counted through, those that are written first."""
    if progress.get("phase") != "measure":
        return str(progress.get("phase"))
    return "write" if progress["repeat"] < spec["writes"] else "read"


def engine_run(
    spec: Spec, observer: Callable[[dict[str, Any]], None] | None = None, barrier: Callable[[], None] | None = None
) -> Record:
    """Runs `spec` and returns its RunRecord, whose part `checkpoint` tells of each checkpoint.

    `observer` gets Progress dicts about four times a second while a checkpoint goes on; `barrier` is called before
    each, once every host is ready for it. Raises RequestError, MachineError or RunError (with `.record`).
    """
    from forebay import _core, run

    def relay(text: str) -> None:
        if observer is not None:
            observer(json.loads(text))

    return json.loads(_core.checkpoint_run(json.dumps(spec), run.typed(), relay, barrier))


def engine_plan(spec: Spec) -> dict[str, Any]:
    """Returns the plan of `engine_run`, without touching anything."""
    from forebay import _core

    return json.loads(_core.checkpoint_plan(json.dumps(spec)))


def conclude(outcome: Outcome, out: save.Output | None, as_json: bool, quiet: bool) -> None:
    """Says how it went (stderr with --json, else stdout), and saves the record where that is due."""
    from forebay.emulate import show_checkpoint

    record = outcome.record
    if record is not None and not quiet:
        click.echo(show_checkpoint.text(record, terminal.text_width()), err=as_json)
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
    if outcome.error is not None:
        click.echo(f"forebay: {outcome.error}", err=True)
    elif record is None:
        click.echo("forebay: interrupted before anything was measured", err=True)


def show_plan(spec: Spec, as_json: bool) -> int:
    """Prints to stdout what would be written."""
    from forebay.emulate import show_checkpoint

    found = engine_plan(spec)
    click.echo(json.dumps(found, indent=1) if as_json else show_checkpoint.plan(found))
    return DONE


if __name__ == "__main__":
    from forebay.cli import main

    main(["emulate", "checkpoint", *sys.argv[1:]])
