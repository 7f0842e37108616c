"""`forebay emulate datagen`: makes a workload's data set, with the file names and sizes that DLIO gives it."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from forebay.bench import listen
from forebay.emulate import datasize, request
from forebay.emulate.workloads import Training, variants
from forebay.errors import DONE, INTERRUPTED, MachineError, RequestError
from forebay.flags import defaults, request_from_flags, request_options
from forebay.stages import format_duration
from forebay.units import GIB
from forebay.uri import parsed

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

# DLIO draws its files' sizes from numpy's RandomState with this seed, whatever a run's own seed is.
SIZES_SEED = 10
# More than this take long to draw the sizes of.
FILES_MANY = 1_000_000
EXAMPLES = """\b
Examples:
  forebay emulate datagen --workload resnet50 --data /data/resnet50 --files 100 --check
  forebay emulate datagen --workload cosmoflow --data /data/cosmoflow --files 20000 --subfolders 10
  forebay emulate datagen --workload cosmoflow --data /dev/nvme1n1 --overwrite-device /dev/nvme1n1
  forebay emulate datagen --workload unet3d --data /data/unet3d --dry-run"""


@click.command("datagen", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.option("--workload", metavar="NAME|FILE", help="A workload listed by forebay emulate workloads, or a TOML file.")
@click.option("--dlio", metavar="FILE.yaml", help="A DLIO workload file, instead of --workload.")
@click.option("--accelerator", metavar="NAME", help="As for run. Optional: the data is the same for all of them.")
@click.option("--rules", metavar="SET", help="As for run: v1.0, v2.0, v3.0 or text.")
@click.option("--accelerators", metavar="N", help="Instead of --files: as many files as the rules require for N accelerators.")
@click.option("--hosts", metavar="N", help="With --accelerators: number of hosts that read. Default: 1.")
@click.option("--memory", metavar="SIZE", help="With --accelerators: memory of each host, e.g. 64g. Default: this machine's.")
@request_options("datagen")
@listen.option
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
def command(metrics: str | None, as_json: bool, quiet: bool, **flags: Any) -> int:
    """Create a workload's data set, as fast as the device allows.

    Files have DLIO's names and sizes. If a run ends early, finished files are kept and the same command continues.
    """
    asked = {key: flags.pop(key) for key in ("accelerators", "hosts", "memory")}
    given = request_from_flags("datagen", flags)
    wanted = any(value is not None for value in asked.values())
    if wanted and "files" in given:
        raise RequestError("--files and --accelerators", "both say how many files", "one of them")
    chosen, rules, more = workload_of(**flags, any_accelerator=not wanted)
    if wanted:
        given["files"] = datasize.asked_for(chosen, rules, **asked).files
    spec = spec_of(chosen, **{**more, **given})
    try:
        with listen.listening(None if spec["dry_run"] else metrics, quiet) as listens:
            record = run(spec, quiet, listens)
    except KeyboardInterrupt as stopped:
        click.echo(f"forebay: {getattr(stopped, 'kept', '') or 'was interrupted'}", err=True)
        return INTERRUPTED
    if as_json:
        click.echo(json.dumps(record))
    elif not quiet:
        click.echo("\n".join(lines(record)))
    return DONE


def workload_of(
    workload: str | None = None,
    dlio: str | None = None,
    accelerator: str | None = None,
    rules: str | None = None,
    any_accelerator: bool = True,
) -> tuple[Training, str, dict[str, Any]]:
    """The training workload of that name or file, the rule set, and a DLIO file's subfolders. Data are the same for all
    accelerators (`any_accelerator`); how many the rules want isn't."""
    if workload is not None and accelerator is None and any_accelerator:
        fit = (w for w in variants(workload) if isinstance(w, Training) and rules in (None, "text", *w.rules))
        accelerator = next((w.accelerator for w in fit), None)
    asked = {"workload": workload, "dlio": dlio, "accelerator": accelerator, "rules": rules}
    chosen, edition, more = request.workload_of(asked, needs_training=False)
    return chosen, edition, {key: value for key, value in more.items() if key == "subfolders"}


def spec_of(workload: Training, data: str, files: int | None = None, **asked: Any) -> dict[str, Any]:
    """The engine's DatagenSpec, of which `asked` are fields. RequestError for a data set that can't be."""
    known = formats()
    if workload.format not in known:
        raise RequestError(
            f"a data set for {workload.name}",
            f"its format, {workload.format}, can't be generated",
            "a workload of " + ", ".join(known),
        )
    count = workload.files if files is None else files
    check_room(workload, data, count)
    return {
        **defaults("datagen"),
        "data": data,
        "workload": workload.name,
        "format": workload.format,
        "files": count,
        "samples_per_file": workload.samples_per_file,
        "dimensions": dimensions(workload.record_bytes, workload.record_bytes_stdev, count),
        "dimension": int(math.sqrt(workload.record_bytes)),
        "record_bytes": workload.record_bytes,
        "record_bytes_stdev": workload.record_bytes_stdev,
        "columns": [{"name": c.name, "type": c.type, "values": c.values} for c in workload.columns],
        "row_group": workload.row_group or 0,
        **asked,
    }


def check_room(workload: Training, data: str, files: int) -> None:
    """MachineError where a file system is far too small for many files, whatever it holds. The engine knows to the byte, by
    sizes that take a minute to draw of so many."""
    if files <= FILES_MANY:
        return
    path = parsed(data).path
    if path is None or path.exists() and not path.is_dir():
        return
    folder = path.absolute()
    there = next(f for f in (folder, *folder.parents) if f.exists())
    known = os.statvfs(there)
    wanted, has = files * workload.samples_per_file * workload.record_bytes, known.f_blocks * known.f_frsize
    if wanted > 2 * has > 0:
        asked = f"make {files:,} files, about {wanted / GIB:,.4g} GiB in all, in {data}"
        raise MachineError(asked, f"its file system has {has / GIB:,.4g} GiB", "fewer --files, or another --data")


def formats() -> tuple[str, ...]:
    """Names of the formats that the engine makes and reads."""
    from forebay import _core

    return tuple(row["name"] for row in json.loads(_core.formats()))


def dimensions(record_bytes: float, stdev: float, files: int) -> list[list[int]]:
    """Both sides of the square of bytes that is a sample, file by file; one pair where all are alike.

    As DLIO draws them: two normal numbers a file around the root of the mean, cut off to whole ones (data_generator.py,
    get_dimension). A smaller data set is the begin of a larger one.
    """
    root = math.sqrt(record_bytes)
    side, spread = int(root), stdev / 2.0 / root
    if spread <= 0:
        return [[side, side]]
    import numpy

    drawn = numpy.random.RandomState(SIZES_SEED).normal(side, spread, 2 * files)
    pairs: list[list[int]] = numpy.maximum(drawn.astype(numpy.int64), 1).reshape(files, 2).tolist()
    return pairs


def run(spec: dict[str, Any], quiet: bool = True, listens: Endpoint | None = None) -> dict[str, Any]:
    """Makes what is missing and returns the record, schema forebay.datagen/1. KeyboardInterrupt carries `kept`.

    `listens`: hands out the progress, too.
    """
    from forebay import _core
    from forebay.bench import terminal
    from forebay.run import typed

    # A terminal that takes nothing more misses some, and holds nothing up.
    screen = terminal.stderr() if not quiet and sys.stderr.isatty() else None

    def show(text: str) -> None:
        if screen is not None and terminal.takes_more(screen):
            screen.write(f"\r\x1b[K{text}")
            screen.flush()

    def observe(text: str) -> None:
        progress = json.loads(text)
        if listens is not None:
            listens.see({"sources": [spec["data"]]}, f"data set of {spec['workload']}", live(progress))
        show(describe(progress)[:100])

    try:
        made = json.loads(_core.emulate_datagen(json.dumps(spec), observe))
    finally:
        show("")
        if screen is not None and screen is not sys.stderr:
            screen.close()
    return {**made, "command": typed()}


def live(progress: dict[str, Any]) -> dict[str, Any]:
    """The progress by the names of a run's."""
    return {**progress, "files_done": progress["files"], "files_planned": progress["files_total"]}


def describe(progress: dict[str, Any]) -> str:
    """`make 12 of 168 files · 1.8 of 24.2 GiB · 1.92 GiB/s · 12 s left`."""
    done, total, rate = progress["bytes"] / GIB, progress["bytes_total"] / GIB, progress["gib_s"]
    line = f"{progress['phase']} {progress['files']:,} of {progress['files_total']:,} files"
    line += f" · {done:,.1f} of {total:,.1f} GiB · {rate:.2f} GiB/s"
    return line + (f" · {format_duration((total - done) / rate)} left" if rate > 0 else "")


def lines(record: dict[str, Any]) -> list[str]:
    """The summary, for people."""
    size = f"{record['files']:,} {record['format']} files, {record['samples']:,} samples, {record['bytes'] / GIB:,.4g} GiB"
    if record["dry_run"]:
        found = f"; {record['files_found']:,} of them already exist" if record["files_found"] else ""
        return [f"would create {size} in {record['data']}{found}"]
    words = [f"{record['data']}: {size}"]
    if record["files_found"]:
        words.append(f"found     {record['files_found']:,} files that were finished before")
    if record["files_made"]:
        way = "bypassing the page cache" if record["direct"] else "through the page cache"
        rate = f"{record['throughput_gib_s']:.2f} GiB/s {way}, {record['cpu_s_per_gib']:.2f} CPU-seconds per GiB"
        words.append(f"created   {record['files_made']:,} files in {format_duration(record['seconds'])}: {rate}")
    if record["check"]:
        words.append(f"checked   {record['check']['files']:,} files in {format_duration(record['check']['seconds'])}: all good")
    return words
