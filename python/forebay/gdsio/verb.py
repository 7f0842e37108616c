"""`forebay gdsio`: parse as gdsio does, run, print its line.

Everything but the line goes to stderr, and before it: scripts that read `2>&1 | tail -n 1` still work.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import click

from forebay import run as engine
from forebay.bench import save
from forebay.bench.interrupt import Interrupt
from forebay.errors import (
    BROKE,
    CHECK_FAILED,
    DONE,
    INTERRUPTED,
    ForebayError,
    MachineError,
    RequestError,
    RunError,
)
from forebay.gdsio import cufile, flags, job_file, jobs, machine, output
from forebay.gdsio.request import Request
from forebay.gdsio.wording import in_gdsios_words
from forebay.paths import BOUNCE

Record = dict[str, Any]


@click.command(name="gdsio")
@click.argument("job_file_path", metavar="[FILE.gdsio]", required=False)
@flags.options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the RunRecord instead of the line; for a write with -V, an array of both.",
)
@click.option("--record", metavar="FILE", help="Append each RunRecord to FILE, one line of JSON per run.")
@click.option(
    "--overwrite",
    multiple=True,
    metavar="FILE|DIR",
    help="Allow overwriting this file, which Forebay didn't create; for a -D directory, all its gdsio.N.",
)
@click.option(
    "--overwrite-device", multiple=True, metavar="DEVICE", help="Allow overwriting this block device."
)
@click.option(
    "--require-direct", is_flag=True, help="Fail if cuFile would fall back, even if cufile.json allows it."
)
@click.option(
    "--allow-host-destination",
    is_flag=True,
    help="Let -x 2, 3 and 4 copy to host memory where there is no GPU; the label says so.",
)
@click.option("--dry-run", is_flag=True, help="Print the same job as a `forebay bench` command, and stop.")
def command(job_file_path: str | None, **values: Any) -> int:
    """gdsio's own flags and output line.

    FILE.gdsio is a job file, in place of flags. The line says what ran: XferType is GPUD only where the bytes
    went to the GPU by DMA, and GPUD_COMPAT where cuFile fell back.
    """
    request = _request(job_file_path, flags.take(values))
    fields = _job(request, values)
    if values["dry_run"]:
        bench = jobs.as_bench(fields)
        planned = {"schema": "forebay.gdsio-plan/1", "bench": bench, "job": fields}
        click.echo(json.dumps(planned) if values["as_json"] else bench)
        return DONE
    if values["record"]:
        values["record"] = save.Output(values["record"], save.RUN, "--record", lines=True)
    machine.check(request, allow_host_destination=values["allow_host_destination"])
    jobs.check_targets(request)
    jobs.check_files(request, fields)
    if fields.get("gpus") and (why := machine.copies_to_host(request, values["allow_host_destination"])):
        _say(f"-d has no effect: {why}, so the copy goes to host memory")
        fields["gpus"] = []
    if request.verify and request.seed is not None and not request.writes:
        _check_seed(request.seed, fields)
    for note in jobs.without_effect(request):
        _say(note)
    return _phases(request, fields, values)


def _request(path: str | None, given: dict[str, Any]) -> Request:
    if path is None:
        return flags.request(given)
    if given:
        letter = flags.BY_FIELD[next(iter(given))].letter
        raise RequestError(
            f"{path} with -{letter}",
            "a job file and gdsio's flags can't be mixed",
            "the file alone, or flags alone",
        )
    return job_file.read(path)


def _job(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    compat = not values["require_direct"] and (not request.xfer.needs_cufile or cufile.allows_compat())
    fields = jobs.job(request, allow_compat=compat)
    overwrite = jobs.overwritten(request, values["overwrite"])
    if overwrite:
        fields["overwrite"] = overwrite
    if values["overwrite_device"]:
        fields["overwrite_devices"] = list(values["overwrite_device"])
    return fields


def _check_seed(seed: int, fields: dict[str, Any]) -> None:
    """Refuses a -k other than the seed that a file is known to hold: it would be passed over without a word."""
    try:
        targets = engine.plan(fields)["targets"]
    except ForebayError as error:
        raise in_gdsios_words(error) from error
    for target in targets:
        known = target.get("seed")
        if known is not None and known != seed:
            raise RequestError(f"-k {seed} with -V", f"{target['path']} was written with -k {known}", f"-k {known}, or no -k")


def _phases(request: Request, fields: dict[str, Any], values: dict[str, Any]) -> int:
    """One run; after a write with -V a second that reads and checks, as gdsio does."""
    measured: list[Record] = []
    # Until all is printed, or a signal between would lose what was measured.
    with Interrupt() as interrupt, save.unless_said(measured, values["record"]):
        if request.writes and request.verify and request.duration_s:
            _say("writing every block once before the timed run: -T may leave some out, and -V reads them all")
            if _measure(request, jobs.laid_out(fields), values["record"], interrupt)["result"]["interrupted"]:
                return INTERRUPTED
        code, record = _run(request, fields, values, interrupt, measured)
        verifies = request.writes and request.verify and code == DONE
        if verifies and interrupt.requested:
            code = INTERRUPTED
        elif verifies:
            if not values["as_json"]:
                click.echo("Verifying data ")
            request = replace(request, op=request.op.replace("write", "read"))
            code, record = _run(request, {**fields, "op": request.op}, values, interrupt, measured)
        if values["as_json"]:
            click.echo(json.dumps(measured[0] if len(measured) == 1 else measured))
        sys.stdout.flush()
        return code


def _run(
    request: Request, fields: dict[str, Any], values: dict[str, Any], interrupt: Interrupt, measured: list[Record]
) -> tuple[int, Record]:
    """One run: measured, saved where that is due, reported. Returns the exit code and the record, which joins `measured`."""
    record = _measure(request, fields, values["record"], interrupt)
    measured.append(record)
    if values["record"]:
        _save(values["record"], request, record, values["as_json"])
    elif record["result"]["interrupted"] and not values["as_json"]:
        _rescue(record, None)
    _refuse_host_copy(request, record, values["allow_host_destination"])
    for note in [*output.notes(record), *(output.per_job(record) if request.per_job else [])]:
        _say(note)
    if not values["as_json"]:
        click.echo(output.line(request, record, jobs.data_bytes(request)))
    return _exit_code(record), record


def _save(out: save.Output, request: Request, record: Record, as_json: bool) -> None:
    """Saves the record; where the file takes no more, the line is still printed, behind which the error says where the record
    is."""
    try:
        out.append(record)
    except RunError:
        if not as_json:
            click.echo(output.line(request, record, jobs.data_bytes(request)))
        raise


def _measure(
    request: Request, fields: dict[str, Any], out: save.Output | None, interrupt: Interrupt
) -> Record:
    try:
        return engine.run(fields, observer=lambda _: interrupt.raise_if_requested())
    except ForebayError as error:
        _rescue(getattr(error, "record", None), out)
        spoken = in_gdsios_words(error)
        if isinstance(error, MachineError) and request.xfer.needs_gpu and "-x 1" not in spoken.next:
            spoken.next = f"{spoken.next}; or {machine.HOST_NEXT}".lstrip("; ")
        raise spoken from error


def _exit_code(record: Record) -> int:
    errors = record["result"]["errors"]
    if record["result"]["interrupted"]:
        return INTERRUPTED
    if errors.get("failed") or errors.get("timed_out"):
        return BROKE
    return CHECK_FAILED if errors["verify_failed"] else DONE


def _refuse_host_copy(request: Request, record: Record, allowed: bool) -> None:
    """A copy that ended in host memory is not what -x 2, 3 or 4 asked for, unless that was allowed."""
    path = record["path"]
    if path["ran"] == BOUNCE and path["destination"] == "host" and not allowed:
        found = (
            f"the copy went to host memory ({path['reason']})"
            if path.get("reason")
            else "the copy went to host memory"
        )
        raise MachineError(
            f"-x {request.xfer_number} ({request.xfer.name})", found, machine.no_gpu_next(request)
        )


def _rescue(record: Record | str | None, out: save.Output | None) -> None:
    """Saves what was measured before a run broke: into --record, else into a file of its own."""
    if not record:
        return
    known: Record = json.loads(record) if isinstance(record, str) else record
    if out is not None:
        out.append(known)
    where = out.path if out is not None else save.rescue(known)
    _say(f"what was measured is in {where}" if where else "what was measured could not be saved")


def _say(text: str) -> None:
    click.echo(f"forebay: {text}", err=True)
