"""`forebay emulate run`: feeds a number of accelerators from storage, and reports their utilisation and what limits
it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay import mpi
from forebay.bench import listen, save, terminal
from forebay.bench.interrupt import Interrupt
from forebay.emulate import data, division, engine, live, measure, show
from forebay.emulate.request import Request, count, request_of, run_options, workload_options
from forebay.errors import BROKE, CHECK_FAILED, DONE, INTERRUPTED, ForebayError, RequestError, RunError

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

RUNS_MAX = 100
EXAMPLES = """\b
Examples:
  forebay emulate run --workload resnet50 --accelerator h100 --accelerators 8 --data /data/resnet50
  forebay emulate run --workload resnet50 --accelerator a100 --accelerators 8 --data /data/r --epochs 1 --steps 50
  forebay emulate run --workload cosmoflow --accelerator h100 --data /data/c --closed --runs 5 --results results
  mpirun -n 2 --map-by node forebay emulate run --workload resnet50 --accelerator h100 --accelerators 8 --data /mnt/r"""


@click.command("run", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@workload_options
@click.option("--accelerators", default="1", show_default=True, metavar="N", help="Accelerators to emulate on this host.")
@run_options
@click.option("--runs", default="1", metavar="N", help="Number of runs; a submission has five.")
@click.option("--warmup-run", is_flag=True, help="Make one more run first, which doesn't count (v2.0, v3.0).")
@click.option("--results", metavar="DIR", help="Save each run's record in this folder.")
@click.option(
    "-o", "--out", metavar="FILE", help="Save the records to FILE: .jsonl appends lines; otherwise only records are replaced."
)
@click.option("--mpi", "use_mpi", is_flag=True, help="Run over all hosts of mpirun or srun (detected by mpi4py).")
@click.option("--dry-run", is_flag=True, help="Check the request and show what would run; read nothing.")
@listen.option
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
def command(
    accelerators: str,
    runs: str,
    warmup_run: bool,
    results: str | None,
    out: str | None,
    use_mpi: bool,
    dry_run: bool,
    metrics: str | None,
    as_json: bool,
    quiet: bool,
    **values: Any,
) -> int:
    """Is this storage fast enough for N accelerators? Exit code 1 means no.

    Reads the workload's samples as its readers would, waits as long as an accelerator would compute, and reports the
    share of time that it was busy (accelerator utilisation, AU) by the rules' own formula.
    """
    number, times = count(accelerators), count(runs, "--runs")
    if times > RUNS_MAX:
        raise RequestError(f"--runs {runs}", f"is more than {RUNS_MAX}", "--runs 5")
    request = request_of(values)
    division.check(request)
    division.check_warm_up(request, warmup_run)
    world = mpi.world(explicit=use_mpi)
    leads = world is None or world.leads
    ranks, hosts = (1, 1) if world is None else (world.size, world.count_hosts())
    saved: save.Output | None = None
    folder: Path | None = None

    def prepare() -> None:
        nonlocal saved, folder
        if leads:
            data.check_number(request)
            data.check_size(request, number * ranks, hosts)
        data.check_memory(request, number)
        if leads:
            saved = save.Output(out, save.RUN) if out else None
            folder = measure.results_folder(results) if results and not dry_run else None

    if world is None:
        data.check_exists(request)
        prepare()
    else:
        # Whoever left alone would leave the others waiting for it.
        try:
            world.all_agree(prepare)
        except ForebayError as error:
            if leads:
                raise
            return error.exit_code
    if dry_run:
        return show_plan(request, number, as_json) if leads else DONE
    output = Output(as_json, quiet or not leads, saved, folder)
    with listen.listening(metrics, output.quiet, world) as listens:
        return play_all(request, number, times, output, world, listens, warmup_run)


class Output:
    """Destination of a run's record and summary. Records are kept as they come."""

    def __init__(self, as_json: bool, quiet: bool, out: save.Output | None, folder: Path | None) -> None:
        self.as_json, self.quiet, self.out, self.folder = as_json, quiet, out, folder
        self.records: list[dict[str, Any]] = []

    def take(self, outcome: measure.Outcome) -> None:
        """Says how one run went (stderr with --json, else stdout), and saves its record."""
        record = outcome.record
        if record is not None:
            self.records.append(record)
            if not self.quiet:
                click.echo(show.text(record, terminal.text_width()), err=self.as_json)
            self._save(record, outcome)
        if outcome.error is not None:
            click.echo(f"forebay: {outcome.error}", err=True)
        elif record is None:
            click.echo("forebay: interrupted before anything was measured", err=True)

    def _save(self, record: dict[str, Any], outcome: measure.Outcome) -> None:
        kept: list[str] = []
        try:
            if self.folder is not None:
                kept.append(str(measure.keep(self.folder, record)))
            if self.out:
                self.out.write(self.records, rescues=False)
                kept.append(self.out.path)
        except RequestError as error:
            outcome.error = outcome.error or RunError(error.asked, error.found, error.next)
        except RunError as error:
            outcome.error = outcome.error or error
        if not kept and outcome.exit_code in (BROKE, INTERRUPTED):
            rescued = save.rescue(record)
            kept = [str(rescued)] if rescued else []
        if kept and not self.quiet:
            click.echo(f"record    {', '.join(kept)}", err=True)


def play_all(
    request: Request,
    number: int,
    times: int,
    output: Output,
    world: Any = None,
    listens: Endpoint | None = None,
    warmup: bool = False,
) -> int:
    """The runs in turn; the exit code of the first that didn't go well. Ctrl-C ends them after saving.

    `warmup`: one comes before them. It is kept like the others, and whether it passes decides nothing.
    """
    code = DONE
    labels = ["warm-up run"] * warmup + ([f"run {turn + 1} of {times}" for turn in range(times)] if times > 1 else [""])
    with save.unless_said(output.records, output.out or output.folder), Interrupt() as interrupt:
        for turn, label in enumerate(labels):
            outcome = play(request, number, interrupt, output.quiet, label, world, listens)
            if world is None or world.leads:
                output.take(outcome)
            warms = warmup and turn == 0 and outcome.exit_code == CHECK_FAILED
            code = code or (DONE if warms else outcome.exit_code)
            ended = outcome.record is None or outcome.interrupted
            if outcome.interrupted:
                code = INTERRUPTED
            if ended if world is None or turn + 1 == len(labels) else world.anywhere(ended):
                break
    if output.as_json and output.records:
        with save.unless_said(output.records, output.out or output.folder):
            click.echo(json.dumps(output.records if len(labels) > 1 else output.records[0], indent=1))
    return world.agree(code) if world is not None else code


def play(
    request: Request,
    number: int,
    interrupt: Interrupt,
    quiet: bool = False,
    label: str = "",
    world: Any = None,
    listens: Endpoint | None = None,
) -> measure.Outcome:
    """One run under live progress, which `listens` hands out too."""
    what = f"{request.workload.name} on {number:,} × {request.workload.accelerator.upper()}"
    title = f"{label}: {what}" if label else what
    watch = live.view(title, request.workload.au_pct_min, quiet)
    began = time.monotonic()
    if listens is not None:
        listens.tell(accelerators=number * (1 if world is None else world.size))
        # A drive that is modelled in virtual time has no progress: the run before must not stay in its place.
        listens.see({"sources": request.data}, title, {})

    def seen(progress: dict[str, Any]) -> None:
        if listens is not None:
            listens.see({"sources": request.data}, title, progress)
        watch(progress)

    try:
        outcome = measure.measure(request.spec(number), seen, interrupt, world)
    finally:
        watch.close()
    if outcome.record is not None:
        warn(outcome.record, time.monotonic() - began)
    return outcome


def warn(record: dict[str, Any], wall_s: float) -> None:
    """Doubts a record by a clock that isn't in it.

    `wall_s`: what the run took by this process's monotonic clock. The engine's own time can't be longer.
    """
    took = record["result"]["seconds"]
    if record.get("origin") == "measured" and took > wall_s + 1.0:
        reported = f"the run reports {took:.1f} s, but only {wall_s:.1f} s passed: don't trust its rates"
        record.setdefault("warnings", []).append({"id": "clock", "text": reported, "next": "the same run again"})


def show_plan(request: Request, number: int, as_json: bool) -> int:
    """--dry-run: the spec as the engine understands it, and what the accelerators demand."""
    spec = engine.check(request.spec(number))
    workload = request.workload
    if as_json:
        click.echo(json.dumps(spec, indent=1))
        return DONE
    demand = number * workload.mib_s / 1024
    needed = demand * workload.au_pct_min / 100
    click.echo(f"{workload.name} on {number:,} × {workload.accelerator.upper()}, rules {request.rules}, level {request.level}")
    click.echo(f"data      {', '.join(request.data)}")
    least = f"{needed:,.3g} at {workload.au_pct_min:g} %"
    click.echo(f"demand    {demand:,.3g} GiB/s at the nominal record size if no accelerator waits; {least}")
    return DONE
