"""The verb: options, the steps, the file, the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from forebay import run as engine
from forebay.bench.interrupt import Interrupt
from forebay.errors import BROKE, CHECK_FAILED, DONE, INTERRUPTED, MACHINE, RequestError
from forebay.stages import Stages
from forebay.sweep.scale import parse_scale
from forebay.units import parse_bytes, parse_seconds
from forebay.validate import document, plan, promises, show
from forebay.validate.needs import Facts, find_gdsio, kind_of
from forebay.validate.runner import Validation
from forebay.validate.steps import BY_NAME, STEPS, Step

EXAMPLES = """\b
Examples:
  forebay validate /mnt/nvme0 --dry-run
  forebay validate /mnt/nvme0 -o validation.json
  forebay validate /dev/nvme0n1 /dev/nvme1n1 --only gds-stripe      (devices are only read)
  forebay validate --check validation.json"""


@click.command("validate", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option("--gpu", default="0", metavar="LIST", help="GPUs to use, e.g. 0 or 0,1.")
@click.option(
    "-o",
    "--output",
    default="validation.json",
    metavar="FILE",
    help="File to send back; an unfinished one is continued.",
)
@click.option("--only", multiple=True, metavar="STEP", help="Run only this step; can be repeated.")
@click.option("--seconds", default="10", metavar="TIME", help="Measured time of each run.")
@click.option(
    "--file-size", metavar="SIZE", help="Size of a set of files. Default: an eighth of the free space, at most 16g."
)
@click.option("--scale", default="0.1", metavar="F", help="Scale the published file sizes and durations by this factor.")
@click.option(
    "--check", "checked", metavar="FILE", help="Say which promises a validation file is evidence for."
)
@click.option("--dry-run", "only_show", is_flag=True, help="List the steps, and why some would be skipped.")
@click.option("--restart", is_flag=True, help="Start over; the old file becomes FILE.1.")
@click.option("--keep", is_flag=True, help="Keep the files that it created.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(sources: tuple[str, ...], **values: Any) -> int:
    """Run every test that is waiting for hardware, and collect the results in one file to send back.

    SOURCE is a directory on the drive (files are created in a separate folder, and removed), or a block device or a
    file, which is only read. Each step runs, is skipped with a reason, or fails with a reason. After Ctrl-C the
    same command continues where it stopped.
    """
    if values["checked"]:
        return check(Path(values["checked"]), values["as_json"])
    if not (sources or values["only"] or values["only_show"]):
        raise RequestError(
            "SOURCE", "no source was given", "forebay validate DIRECTORY --dry-run, or --only doctor"
        )
    steps = chosen(values["only"], sources)
    plan.check_sources(sources)
    options = options_of(sources, values)
    if values["only_show"]:
        rows = show.listing(steps, facts_of(options), options)
        document_ = {"schema": "forebay.validation-plan/1", "options": options.as_dict(), "steps": rows}
        click.echo(json.dumps(document_) if values["as_json"] else show.dry_run(rows, options))
        return DONE
    return run(steps, options, Path(values["output"]), values)


def chosen(only: tuple[str, ...], sources: tuple[str, ...]) -> list[Step]:
    """The steps in their order; those that make our files come along where there is a directory for them."""
    unknown = [name for name in only if name not in BY_NAME]
    if unknown:
        raise RequestError(f"--only {unknown[0]}", "is not a step", f"one of {', '.join(BY_NAME)}")
    if not only:
        return list(STEPS)
    return [s for s in STEPS if s.name in only]


def options_of(sources: tuple[str, ...], values: dict[str, Any]) -> plan.Options:
    try:
        gpus = tuple(int(g) for g in values["gpu"].split(","))
    except ValueError:
        raise RequestError(f"--gpu {values['gpu']}", "is not a list of numbers", "--gpu 0,1") from None
    if any(g < 0 for g in gpus):
        raise RequestError(f"--gpu {values['gpu']}", "GPUs are counted from 0", "--gpu 0,1")
    scale = parse_scale(values["scale"])
    if scale is None:
        raise RequestError("--scale auto", "must be a number here", "--scale 0.1")
    seconds = parse_seconds(values["seconds"], "--seconds")
    if not 0 < seconds <= 86400:
        raise RequestError(
            f"--seconds {values['seconds']}", "must be above 0 and at most a day", "--seconds 10"
        )
    size = values["file_size"]
    file_bytes = parse_bytes(size, "--file-size") if size else plan.fitting(sources)
    if file_bytes < plan.FILE_BYTES_MIN:
        raise RequestError(f"--file-size {size}", "is too small to measure", "--file-size 1g")
    unit = plan.FILES << 20
    return plan.Options(sources, gpus, seconds, file_bytes // unit * unit, scale)


def facts_of(options: plan.Options) -> Facts:
    """The doctor's findings on the machine and on each source."""
    from forebay.doctor import examine

    reports = {"": examine()} | {s: examine(s) for s in options.sources}
    kinds = {s: kind_of(s) for s in options.sources}
    return Facts(options.sources, options.gpus, reports, find_gdsio(), kinds)


def run(steps: list[Step], options: plan.Options, path: Path, values: dict[str, Any]) -> int:
    """The steps, saved as they come; the summary; the exit code."""
    old = opened(path, options, values["restart"])
    facts = facts_of(options)
    current = old or document.begin(options.as_dict(), facts.report, engine.typed())
    document.note_fall(current)
    with Interrupt() as interrupt, Stages() as stages:
        validation = Validation(options, facts, current, path, stages, interrupt, bool(values["only"]))
        validation.save()
        plan.make_folders(options.sources)
        try:
            validation.run(steps)
        finally:
            left = [] if values["keep"] or interrupt.requested else plan.remove_folders(options.sources)
        if not interrupt.requested:
            current["finished"] = document.now()
            validation.save()
    for folder in left:
        click.echo(f"forebay: {folder} holds files that forebay validate didn't create, so it is kept", err=True)
    conclude(current, path, values["as_json"])
    return exit_code(
        [s for s in current["steps"] if s["name"] in {x.name for x in steps}], current, interrupt.requested
    )


def opened(path: Path, options: plan.Options, restart: bool) -> dict[str, Any] | None:
    """The validation to go on with, or None for a new one. Raises RequestError for another's file."""
    from forebay.bench import save

    save.Output(str(path), document.SCHEMA.partition("/")[0], lines=False)
    if not path.is_file() or not path.stat().st_size:
        return None
    if restart:
        click.echo(f"the old file is {save.put_aside(path)}", err=True)
        return None
    old = document.read(path)
    changes = document.differences(old["options"], options.as_dict())
    if changes:
        raise RequestError(
            f"-o {path}",
            f"holds a validation that differs: {'; '.join(changes)}",
            "--restart, or -o another file",
        )
    return old


def conclude(current: dict[str, Any], path: Path, as_json: bool) -> None:
    rows = promises.judge(current)
    if as_json:
        keys = ("name", "title", "state", "reason", "promises")
        steps = [
            {
                **{k: s[k] for k in keys},
                "runs": [{k: r.get(k) for k in ("name", "state", "reason")} for r in s["runs"]],
            }
            for s in current["steps"]
        ]
        summary = {
            "schema": "forebay.validation-summary/1",
            "file": str(path),
            "steps": steps,
            "promises": rows,
        }
        click.echo(json.dumps(summary, indent=1))
        return
    click.echo("\n".join(show.states(current)))
    found = promises.counts(rows)
    click.echo(
        f"\n{found[promises.RECORD]} promises with a record, {found[promises.BROKEN]} broken, {found[promises.OPEN]} pending"
    )
    click.echo(f"Send back: {path}   (forebay validate --check {path} shows what it proves)")


def exit_code(steps: list[dict[str, Any]], current: dict[str, Any], interrupted: bool) -> int:
    """130 interrupted, 4 a step failed, 1 something that was checked doesn't hold, 3 nothing could run, else 0."""
    if interrupted:
        return INTERRUPTED
    if any(s["state"] == "failed" for s in steps):
        return BROKE
    ours = {s["name"] for s in steps}
    if any(r["verdict"] == promises.BROKEN and r["step"] in ours for r in promises.judge(current)):
        return CHECK_FAILED
    return DONE if any(s["state"] == "ran" for s in steps) else MACHINE


def check(path: Path, as_json: bool) -> int:
    """Prints the evidence of the file; 1 where it shows that a promise doesn't hold."""
    read = document.read(path)
    rows = promises.judge(read)
    if as_json:
        machine = {k: read.get(k) for k in ("environment", "forebay", "started", "finished")}
        click.echo(
            json.dumps(
                {"schema": "forebay.validation-check/1", "file": str(path), **machine, "promises": rows},
                indent=1,
            )
        )
    else:
        click.echo("\n".join(show.promises(read)))
    return CHECK_FAILED if promises.counts(rows)[promises.BROKEN] else DONE
