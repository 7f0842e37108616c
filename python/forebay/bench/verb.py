"""The verb: jobs from flags or a fio file, each run, summarised, saved."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from forebay import run as engine
from forebay.bench import listen
from forebay.bench.interrupt import Interrupt
from forebay.errors import BROKE, CHECK_FAILED, DONE, INTERRUPTED, ForebayError, RequestError, RunError
from forebay.flags import job_from_flags, job_options

if TYPE_CHECKING:
    from forebay.fio.job import FioJob

EXAMPLES = """\b
Examples:
  forebay bench /data/big.bin --path host --io-size 1m --depth 32
  forebay bench /data --op randread --io-size 4k --workers 4 --depth 64     (existing files)
  forebay bench /data --create --file-size 1g --workers 4                  (files created for it)
  forebay bench 'stripe:?chunk=512k&m=/nvme0/a&m=/nvme1/a' --path bounce --repeat 5
  forebay bench --pair 0=/dev/nvme0n1 --pair 1=/dev/nvme1n1 --path bounce --workers 8
  forebay bench nil: --io-size 4k             (the overhead of Forebay's own loop)
  mpirun -n 2 forebay bench '/data/{host}' --duration 30"""


@dataclass
class Task:
    """One job of this command: its fields, its name if any, what its record must warn of, whether it starts once those
    before it have ended, or the one above it, and how long after that. What else ends with it: its `group`, all that run
    (`stonewall`), `all`, or nothing (empty)."""

    job: dict[str, Any]
    name: str = ""
    warnings: list[dict[str, str]] = field(default_factory=list)
    waits: bool = True
    delay_s: float = 0.0
    follows: bool = False
    group: int = 0
    ends: str = ""


@dataclass
class Outcome:
    """Outcome of a task: a record, an error, or both (the part measured before the error). `ended_by`: the section whose end
    ended it, as its job file asks; that is no interruption."""

    record: dict[str, Any] | None
    error: ForebayError | None = None
    interrupted: bool = False
    ended_by: str = ""

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        if self.error is not None:
            return self.error.exit_code
        if self.record and self.record["result"].get("interrupted") and not self.ended_by:
            return INTERRUPTED
        found = self.record["result"]["errors"] if self.record else {}
        if found.get("failed") or found.get("timed_out"):
            return BROKE
        return CHECK_FAILED if found.get("verify_failed") else DONE


@click.command("bench", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@job_options
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout.")
@click.option(
    "-o", "--out", metavar="FILE", help="Save the record to FILE: .jsonl appends a line; otherwise only a record is replaced."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--live", is_flag=True, help="Show a full-screen view during the run.")
@listen.option
@click.option("--fio", metavar="FILE", help="Run the jobs of a fio job file; an unsupported setting is refused.")
@click.option("--fio-lenient", is_flag=True, help="With --fio: ignore such settings instead; the record lists them.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
@click.option(
    "--mpi",
    is_flag=True,
    help="Run one job over all ranks of mpirun or srun (detected if mpi4py is installed).",
)
@click.option(
    "--host-source", multiple=True, metavar="HOST=SOURCE", help="In an MPI run, this host's SOURCE."
)
def command(sources: tuple[str, ...], **options: Any) -> int:
    """How fast, and at what CPU cost and power, does a path move data between SOURCE and memory?

    SOURCE is a file, a directory, a block device, stripe:?chunk=512k&m=A&m=B, nil:, model:NAME,
    nvme+tcp://HOST/NQN, nvme+rdma://HOST/NQN or vfio-user:SOCKET. Each job writes one record; the summary
    on the terminal says what ran, on what, and what to be careful about.
    """
    own = {
        k: options.pop(k)
        for k in ("as_json", "out", "dry_run", "live", "metrics", "fio", "fio_lenient", "quiet", "mpi", "host_source")
    }
    tasks = tasks_of(sources, options, own["fio"], own["fio_lenient"])
    if own["out"]:
        from forebay.bench import save

        own["out"] = save.Output(own["out"], save.RUN)
    from forebay import mpi

    world = mpi.world(explicit=own["mpi"], host_sources=own["host_source"])
    if world is not None and any(len(chains(group)) > 1 for group in groups(tasks)):
        found = "sections that run at the same time are limited to one host"
        raise RequestError(f"--fio {own['fio']}", found, "add stonewall to each section but the first, or use one host")
    if own["dry_run"]:
        return dry_run(tasks, own["as_json"]) if world is None or world.leads else DONE
    return run_all(tasks, own, world)


def tasks_of(
    sources: tuple[str, ...], options: dict[str, Any], fio: str | None, lenient: bool = False
) -> list[Task]:
    """The flags as one task, or a fio file's jobs with the flags laid over each."""
    if fio is None:
        if lenient:
            raise RequestError("--fio-lenient", "there is no fio job file", "--fio FILE --fio-lenient")
        if not sources and not options.get("pair") and not options.get("read_iolog"):
            raise RequestError(
                "SOURCE",
                "no source was given",
                "forebay bench FILE, a directory, stripe:…, nil: or model:NAME",
            )
        for source in sources:
            engine.refuse_job_file(source)
        return [Task(job_from_flags(sources, options))]
    from forebay.fio import jobs

    over = {k: v for k, v in job_from_flags(sources, options).items() if k != "sources" or v}
    return tasks_of_jobs(jobs(fio, lenient), fio, over)


def tasks_of_jobs(found: Sequence[FioJob], where: str, over: dict[str, Any]) -> list[Task]:
    """A task for each job of fio's that was read from `where`, with the fields `over` laid over each; says what differs."""
    from forebay.fio import wording

    for job in found:
        wording.check(job.name, {**job.job, **over}, over)
    for message in (message for job in found for message in job.messages()):
        click.echo(f"forebay: {where} {message}", err=True)
    return [
        Task({**job.job, **over}, job.name, job.warnings(), job.waits, job.delay_s, job.follows, job.group, job.ends)
        for job in found
    ]


def run_all(tasks: list[Task], own: dict[str, Any], world: Any) -> int:
    """Runs each task, shows and saves as it goes; the exit code is that of the first that didn't go well."""
    from forebay.bench import save

    records: list[dict[str, Any]] = []
    with save.unless_said(records, own["out"]), listen.listening(own["metrics"], own["quiet"], world) as listens:
        return _run_all(tasks, {**own, "endpoint": listens or own.get("endpoint")}, world, records)


def _run_all(
    tasks: list[Task], own: dict[str, Any], world: Any, records: list[dict[str, Any]]
) -> int:
    code, left = DONE, len(tasks)
    with Interrupt() as interrupt:
        for group in groups(tasks):
            left -= len(group)
            outcomes = measure_group(group, own, interrupt, world)
            for task, outcome in zip(group, outcomes, strict=True):
                if outcome.record is not None:
                    outcome.record.setdefault("warnings", []).extend(task.warnings)
                    records.append(outcome.record)
                if own.get("hear"):
                    own["hear"](task, outcome, len(group))
                if world is None or world.leads:
                    conclude(task, outcome, records, own, several=len(tasks) > 1)
                code = code or outcome.exit_code
            stopped = interrupt.requested if world is None else world.anywhere(interrupt.requested)
            # One that comes once the last task is over has nothing to end.
            if stopped and left:
                code = INTERRUPTED
                break
            if any(task.ends == "all" for task in group):
                break
        # Still under the first signal's handler, or one would cut the document off.
        if own["as_json"] and records and (world is None or world.leads):
            click.echo(json.dumps(records if own["fio"] else records[0], indent=1))
    return world.agree(code) if world is not None else code


def groups(tasks: list[Task]) -> list[list[Task]]:
    """Returns groups of tasks that run at the same time, in the order of their turns."""
    found: list[list[Task]] = []
    for task in tasks:
        if (task.waits and not task.follows) or not found:
            found.append([task])
        else:
            found[-1].append(task)
    return found


def chains(group: list[Task]) -> list[list[Task]]:
    """Returns chains of tasks that run at the same time: each with those that follow on it."""
    found: list[list[Task]] = []
    for task in group:
        if task.follows and found:
            found[-1].append(task)
        else:
            found.append([task])
    return found


def measure_group(group: list[Task], own: dict[str, Any], interrupt: Interrupt, world: Any) -> list[Outcome]:
    """One task here, several at once in a process each."""
    if len(group) == 1:
        return [measure(group[0], own, interrupt, world)]
    from forebay.bench import together

    return together.measure(chains(group), own, interrupt)


def measure(task: Task, own: dict[str, Any], interrupt: Interrupt, world: Any = None) -> Outcome:
    """Runs one task under the observer that fits the terminal. Errors become part of the outcome."""

    watch = observer(task, own, world)
    listens = own["endpoint"]
    resolved = _with_defaults(task.job) if listens is not None else task.job

    def observe(progress: dict[str, Any]) -> None:
        interrupt.raise_if_requested()
        if listens is not None:
            listens.see(resolved, task.name, progress)
        if world is not None:
            world.watch(progress)
        watch(progress)

    def go(job: dict[str, Any], relay: Callable[[dict[str, Any]], None] | None = observe) -> dict[str, Any]:
        return engine.run(job, observer=relay)

    try:
        until = time.monotonic() + task.delay_s
        while (left := until - time.monotonic()) > 0:
            interrupt.raise_if_requested()
            time.sleep(min(left, 0.1))
        record = go(task.job) if world is None else world.run(task.job, go, observe, interrupt)
        return Outcome(record, interrupted=interrupt.requested)
    except ForebayError as error:
        record = getattr(error, "record", None)
        record = json.loads(record) if isinstance(record, str) else record
        return Outcome(record, error, interrupt.requested)
    except KeyboardInterrupt:
        interrupt.requested = True
        return Outcome(None, interrupted=True)
    finally:
        watch.close()


def _with_defaults(job: dict[str, Any]) -> dict[str, Any]:
    """With its defaults; what is wrong with it the run will say."""

    try:
        return engine.check(job)
    except ForebayError:
        return job


def observer(task: Task, own: dict[str, Any], world: Any) -> Any:
    """The full-screen view, the one-line progress, or nothing."""
    from forebay.bench import progress

    if world is not None and not world.leads:
        return progress.Silent()
    if own["live"] and not own["quiet"]:
        from forebay.bench import live

        why_not = live.unavailable(sys.stderr)
        if why_not is None:
            return live.View(task.job, title=task.name)
        click.echo(f"forebay: --live: {why_not}; the summary follows when the run is done", err=True)
    return progress.line(own["quiet"], task.name)


def conclude(
    task: Task, outcome: Outcome, records: list[dict[str, Any]], own: dict[str, Any], several: bool
) -> None:
    """Says how a task went (stderr with --json, else stdout) and saves its record where that is due."""
    from forebay.bench import save, summary, terminal

    record = outcome.record
    saved, ran_well = record is not None and bool(own["out"]), outcome.error is None
    if saved:
        # Before anything is said: a terminal that takes nothing mustn't cost the record.
        try:
            own["out"].write(records, rescues=False)
        except RunError as error:
            saved, outcome.error = False, outcome.error or error
    if record is not None and not own["quiet"]:
        heading = f"[{task.name}]\n" if several and task.name else ""
        # At once: a reader that has what it wants, such as head, may be gone by a second time.
        where = f"\nrecord    {own['out'].path}" if saved else ""
        click.echo(heading + summary.text(record, terminal.text_width()) + where, err=own["as_json"])
    if record is not None and own["quiet"] and ran_well and outcome.exit_code in (BROKE, CHECK_FAILED):
        click.echo(f"forebay: I/Os: {summary.errors(record['result'])}", err=True)
    if record is not None and not saved and outcome.exit_code in (BROKE, INTERRUPTED):
        rescued = save.rescue(record)
        reported = f"what was measured is in {rescued}" if rescued else "what was measured could not be saved"
        click.echo(f"forebay: {reported}", err=True)
    if outcome.error is not None:
        click.echo(f"forebay: {outcome.error}", err=True)
    elif record is None and outcome.ended_by:
        click.echo(f"forebay: [{task.name}] had not begun when [{outcome.ended_by}] ended it", err=True)
    elif record is None:
        click.echo("forebay: interrupted before anything was measured", err=True)


def dry_run(tasks: list[Task], as_json: bool) -> int:
    """Prints the plan of each task."""
    from forebay.bench import plan

    plans = plan.in_turn(tasks)
    if as_json:
        click.echo(json.dumps(plans if len(plans) > 1 else plans[0], indent=1))
        return DONE
    for task, found in zip(tasks, plans, strict=True):
        click.echo((f"[{task.name}]\n" if task.name else "") + plan.text(found))
    return DONE
