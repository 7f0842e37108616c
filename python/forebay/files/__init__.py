"""`forebay files`: how fast a file system creates, stats, reads and deletes many files."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from forebay.bench import listen
from forebay.errors import BROKE, DONE, INTERRUPTED, MACHINE, RequestError
from forebay.flags import defaults, request_from_flags, request_options

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

EXAMPLES = """\b
Examples:
  forebay files /data --files 10000 --file-size 64k --workers 8
  forebay files /data --file-size 0 --phases create,delete --json"""


@click.command("files", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("directory", metavar="DIR")
@request_options("files", spelled=True)
@click.option("--clean", is_flag=True, help="Measure nothing; remove what killed runs left behind in DIR.")
@listen.option
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout.")
@click.option("-o", "--out", metavar="FILE", help="Save the record to FILE; .jsonl appends a line.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
def command(
    directory: str, clean: bool, metrics: str | None, as_json: bool, out: str | None, quiet: bool, **flags: Any
) -> int:
    """How fast are create, stat, read and delete of many files in DIR, and mkdir of as many directories?

    The run creates its own directory in DIR, touches nothing else, and removes it when it finishes or is stopped.
    """
    from forebay.bench import save

    if clean:
        return _clean(directory, as_json)
    spec = spec_of(directory, flags)
    output = save.Output(out, save.FILES) if out else None
    with listen.listening(metrics, quiet) as listens:
        record = run(spec, quiet, listens)
    code = exit_code(record)
    with save.unless_said([record], output):
        if not quiet:
            click.echo(text(record), err=as_json)
        sys.stdout.flush()
    try:
        if output:
            output.write([record])
        elif code != DONE:
            rescued = save.rescue(record)
            reported = f"what was measured is in {rescued}" if rescued else "what was measured could not be saved"
            click.echo(f"forebay: {reported}", err=True)
    finally:
        complain(record)
        if as_json:
            with save.unless_said([record], output):
                click.echo(json.dumps(record, indent=1))
    return code


def _clean(directory: str, as_json: bool) -> int:
    from forebay.files import left

    if not os.path.isdir(directory):
        raise RequestError(f"--clean in {directory}", "there is no such directory", "the one that was measured")
    removed = {str(folder): left.remove(folder) for folder in left.found(directory)}
    if as_json:
        rows = [{"directory": folder, "files": count} for folder, count in removed.items()]
        click.echo(json.dumps({"schema": "forebay.files-clean/1", "removed": rows}))
        return DONE
    for folder, count in removed.items():
        click.echo(f"removed {folder} with {count:,} files")
    if not removed:
        click.echo(f"nothing was left in {directory}")
    return DONE


def spec_of(directory: str, flags: dict[str, Any]) -> dict[str, Any]:
    """The flags as FilesSpec's fields; RequestError names a flag that doesn't fit."""
    return {**defaults("files"), "directory": directory, **request_from_flags("files", flags)}


def run(spec: dict[str, Any], quiet: bool = True, listens: Endpoint | None = None) -> dict[str, Any]:
    """Runs the phases and returns the record `forebay.files/1`: FilesRecord with what it ran on.

    `listens`: hands out the progress, too.
    """
    from forebay import _core
    from forebay.run import typed

    shows = not quiet and sys.stderr.isatty()

    def observe(text: str) -> None:
        progress = json.loads(text)
        if listens is not None:
            listens.see({"sources": [spec["directory"]], "workers": spec["workers"]}, "", live(progress))
        if shows:
            _show(f"\r\x1b[K{describe(progress)[:78]}")

    started = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    try:
        measured = json.loads(_core.files(json.dumps(spec), secrets.token_hex(8), observe))
    finally:
        if shows:
            _show("\r\x1b[K")
    head = {k: measured.pop(k) for k in ("schema", "id")}
    environment = json.loads(_core.environment([spec["directory"]]))
    return {**head, "started": started, "command": typed(), "environment": environment, **measured}


def _show(text: str) -> None:
    """On a terminal that may have gone: an observer that raises twice ends the cleaning, too."""
    from forebay.bench.terminal import takes_more

    if takes_more(sys.stderr):
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def live(progress: dict[str, Any]) -> dict[str, Any]:
    """The progress by the names of a run's."""
    return {
        **{key: progress[key] for key in ("phase", "bytes", "t_s")},
        "files_done": progress["done"],
        "files_planned": progress["files"],
        "files_s": progress["ops_s"],
    }


def describe(progress: dict[str, Any]) -> str:
    """`create 4,200 of 10,000 · 8,400/s · 0.7 s left`."""
    done, files, rate = progress["done"], progress["files"], progress["ops_s"]
    line = f"{progress['phase']} {done:,} of {files:,} · {rate:,.0f}/s"
    return line + (f" · {(files - done) / rate:.1f} s left" if rate else "")


def exit_code(record: dict[str, Any]) -> int:
    if record["interrupted"]:
        return INTERRUPTED
    failure = record["failure"]
    if failure is not None:
        return MACHINE if failure["kind"] == "machine" else BROKE
    return BROKE if record["left"] else DONE


def complain(record: dict[str, Any]) -> None:
    """Failures and leftovers, on stderr."""
    failure = record["failure"]
    if failure is not None:
        following = f"\n  try: {failure['next']}" if failure["next"] else ""
        click.echo(f"forebay: {failure['asked']}: {failure['found']}{following}", err=True)
    if record["left"]:
        click.echo(f"forebay: not removed: {record['left']}\n  try: rm -r {record['directory']}", err=True)


def text(record: dict[str, Any]) -> str:
    """The record as a table: a line for each phase."""
    from forebay import environment, numbers
    from forebay.bench import summary

    job = record["job"]
    lines = [f"{label:<10}{line}" for label, line in environment.card(record["environment"])]
    where = numbers.count(job.get("directories") or job["workers"], "directory").replace(
        "directorys", "directories"
    )
    size, workers = numbers.bytes_(job["file_bytes"]), numbers.count(job["workers"], "worker")
    lines.append(f"{'job':<10}{numbers.count(job['files'], 'file')} of {size} in {where}, {workers}")
    lines.append("")
    heads = ("phase", "files", "files/s", "GiB/s", "p50", "p99", "max", "CPU/file", "cores")
    lines.append(f"{heads[0]:<8}" + "".join(f"{h:>11}" for h in heads[1:]))
    for phase in record["phases"]:
        lines.append(_row(phase))
    lines.append("")
    for number, phase in enumerate(record["phases"]):
        lines += _storage(record, number, phase)
    lines += [f"{label:<10}{line}" for label, line in summary.warnings(record["warnings"])]
    return "\n".join(lines)


def _row(phase: dict[str, Any]) -> str:
    from forebay.numbers import micros, significant

    spread, cpu, rate = phase["latency_us"], phase["cpu"], phase["throughput_gib_s"]
    cells = (
        f"{phase['files']:,}",
        f"{phase['ops_s']:,.0f}",
        "–" if rate is None else significant(rate),
        micros(spread["p50"]),
        micros(spread["p99"]),
        micros(spread["max"]),
        "–" if cpu["ns_per_io"] is None else micros(cpu["ns_per_io"] / 1e3),
        significant(cpu["cores_busy"]),
    )
    ended = "" if phase["complete"] else "  (not all)"
    return f"{phase['phase']:<8}" + "".join(f"{c:>11}" for c in cells) + ended


def _storage(record: dict[str, Any], number: int, phase: dict[str, Any]) -> list[str]:
    """Describes the devices' work beside what was asked for, in phases that move content."""
    from forebay.bench.summary import not_measured
    from forebay.numbers import bytes_

    key = {"create": "device_written_bytes", "read": "device_read_bytes"}.get(phase["phase"])
    if key is None or not phase["bytes"]:
        return []
    moved = phase[key]
    reported = not_measured(record, f"phases.{number}.{key}", "no counter") if moved is None else bytes_(moved)
    line = f"{phase['phase']}: devices moved {reported} for {bytes_(phase['bytes'])} requested"
    if phase["resident_before"] is not None:
        line += f"; {100 * phase['resident_before']:.0f} % was cached before"
    return [f"{'storage':<10}{line}"]
