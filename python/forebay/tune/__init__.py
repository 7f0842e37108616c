"""`forebay tune`: the depth, workers and I/O size that reach the peak at the least CPU."""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import time
from collections.abc import Callable
from typing import Any

import click

from forebay import own_files
from forebay import run as engine
from forebay.bench import listen, save
from forebay.errors import BROKE, DONE, INTERRUPTED, ForebayError, MachineError, RequestError
from forebay.flags import job_from_flags, job_options, parse_settings, spell
from forebay.metrics import METRICS
from forebay.stages import Stages, format_duration
from forebay.sweep.scale import FILL, folder_of, room_in
from forebay.tune.search import Axes, Probe, Search, Setting
from forebay.tune.show import document_of, show
from forebay.units import GIB, format_bytes, parse_bytes, parse_percent, parse_seconds

AXES = ("io_bytes", "workers", "depth")
FILES, FILE_BYTES, FILE_BYTES_MIN = 4, GIB, 64 << 20
FAILURES_MAX = 8


EXAMPLES = """\b
Examples:
  forebay tune /data/big.bin
  forebay tune /data/big.bin --op randread --io-size 4k --max-time 2m
  forebay tune /data --path bounce --fix workers=4"""


@click.command(name="tune", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("source", nargs=-1)
@click.option("--fix", multiple=True, metavar="FIELD=VALUE", help="Keep a field fixed, e.g. io-size=4k.")
@click.option(
    "--share", default="98%", show_default=True, metavar="PCT", help="Share of the peak that must be reached."
)
@click.option(
    "--max-time", default="60s", show_default=True, metavar="TIME", help="How long the search may take."
)
@click.option(
    "--max-buffers", default="256m", show_default=True, metavar="SIZE", help="Memory limit for the buffers of all workers."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Save the document to FILE; .jsonl appends a line.")
@listen.option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@job_options
def command(source: tuple[str, ...], **values: Any) -> int:
    """Which depth, workers and size reach the peak at the least CPU?

    Any flag of bench keeps its field fixed. For random I/O, fix the size that your program uses: --io-size 4k.
    """
    as_json, output, metrics = (values.pop(name) for name in ("as_json", "output", "metrics"))
    seconds = parse_seconds(values.pop("max_time"), "--max-time")
    if seconds <= 0:
        raise RequestError(f"--max-time {seconds:g}", "must be above 0", "--max-time 60s")
    share = parse_percent(values.pop("share"), "--share") / 100
    if not 0 < share <= 1:
        raise RequestError(f"--share {share:.0%}", "must be above 0 and at most 100 per cent", "--share 98%")
    most_bytes = parse_bytes(values.pop("max_buffers"), "--max-buffers")
    out = save.Output(output, save.TUNE) if output else None
    fixed = parse_settings(" ".join(values.pop("fix")))
    job = _prepared({**job_from_flags(source, values), **fixed})
    axes = _axes(job)
    allowed = _bounded(axes, most_bytes)
    if job.get("op", "read").startswith("rand") and "io_bytes" not in job:
        click.echo("forebay: random I/O favours large sizes; fix the one that your program uses with --io-size 4k", err=True)
    with listen.listening(metrics) as listens, Stages(endpoint=listens) as stages:
        runner = _Runner(job, stages, seconds)
        search = Search(axes, runner.measure, runner.elapsed, seconds, allowed, share)
        code = _search(search, runner)
    document = document_of(search, job, runner.failures, _command_for(job), most_bytes, runner.warnings)
    try:
        if out:
            out.write([document])
    finally:
        with save.unless_said([document], out):
            click.echo(json.dumps(document) if as_json else show(document))
    return code


def _search(search: Search, runner: _Runner) -> int:
    """The exit code. What ends it before anything was measured is raised."""
    try:
        start = _start(search.axes, search.allowed)
        runner.create_files(start)
        search.run(start)
        if not any(search.probes.values()):
            failure = runner.failures[0]
            raise MachineError(str(failure["asked"]), str(failure["found"]), "forebay doctor")
        return DONE
    except KeyboardInterrupt:
        if not any(search.probes.values()):
            raise
        search.stopped = "interrupted"
        return INTERRUPTED
    except ForebayError:
        if not any(search.probes.values()):
            raise
        search.stopped = "failed"
        return BROKE


def _prepared(job: dict[str, Any]) -> dict[str, Any]:
    """The job with what must not vary while it is tuned: its files."""
    if not job.get("sources") and not job.get("pairs"):
        raise RequestError("SOURCE", "no source was given", "forebay tune FILE, a folder, nil: or model:NAME")
    if job.get("workers") == "auto":
        raise RequestError("--workers auto", "tune searches for the best number itself", "no --workers, or a number")
    for key, flag in (("repeat", "--repeat"), ("until_ci_pct", "--until-ci"), ("passes", "--passes")):
        if key in job:
            raise RequestError(flag, "tune chooses itself how often and how long to run", "--max-time 2m")
    sources = own_files.named(job)
    for each in sources:
        engine.refuse_job_file(each)
    folders = [f for f in map(folder_of, sources) if f is not None]
    # What is there is tuned for with `--fix create=no`, and by name.
    if not job.get("create", "file_name" not in job):
        return job
    if any(map(own_files.is_folder, sources)):
        job.setdefault("files", FILES)
    job = own_files.placed(job, own_files.TUNE)
    if folders and job.get("create") and "file_bytes" not in job:
        homes = [f if own_files.named(job) == sources else f / own_files.TUNE for f in folders]
        room = FILL * min(room_in(h, job.get("file_name", "forebay.%d")) for h in homes) / len(homes)
        unit = FILE_BYTES_MIN
        job["file_bytes"] = max(unit, int(min(FILE_BYTES, room / job["files"])) // unit * unit)
    return job


def _axes(job: dict[str, Any]) -> Axes:
    """The values to search; a field that the job sets is held."""
    cores = len(os.sched_getaffinity(0))
    smallest = 4 << 10 if job.get("op", "read").startswith("rand") else 64 << 10
    axes = {
        "io_bytes": _doublings(smallest, 8 << 20),
        "workers": sorted({*_doublings(1, min(64, 4 * cores)), cores}),
        "depth": _doublings(1, 256),
    }
    return {name: [job[name]] if name in job else values for name, values in axes.items()}


def _doublings(least: int, most: int) -> list[int]:
    values = [least]
    while values[-1] * 2 <= most:
        values.append(values[-1] * 2)
    return values


def _start(axes: Axes, allowed: Callable[[Setting], bool]) -> Setting:
    """Returns a setting at which most storage is near its peak already; the nearest that the axes and the bound have."""
    wanted = Setting(io_bytes=1 << 20, workers=1, depth=8)

    def away(setting: Setting) -> float:
        return sum(abs(math.log2(max(value, 1) / near)) for value, near in zip(setting, wanted, strict=True))

    settings = (Setting(*values) for values in itertools.product(*(axes[name] for name in AXES)))
    return min(filter(allowed, settings), key=away)


def _bounded(axes: Axes, most_bytes: int) -> Callable[[Setting], bool]:
    """Returns the test that keeps the buffers within `most_bytes`. RequestError where the fields that are held leave nothing."""
    least = Setting(**{name: min(axes[name]) for name in AXES})
    if least.buffer_bytes > most_bytes:
        held = f"{least.workers} workers × depth {least.depth} × {format_bytes(least.io_bytes)}"
        raise RequestError(
            f"--max-buffers {format_bytes(most_bytes)}",
            f"the smallest setting to try, {held}, needs {format_bytes(least.buffer_bytes)}",
            f"--max-buffers {format_bytes(least.buffer_bytes)}",
        )
    return lambda setting: setting.buffer_bytes <= most_bytes


def _command_for(job: dict[str, Any]) -> Callable[[Setting], str]:
    def spelled(setting: Setting) -> str:
        return shlex.join(["forebay", "bench", *spell({**job, **setting._asdict()})])

    return spelled


class _Runner:
    """Runs probes and keeps the time and the settings that couldn't run."""

    def __init__(self, job: dict[str, Any], stages: Stages, seconds: float) -> None:
        self.job, self.stages, self.seconds = job, stages, seconds
        self.failures: list[dict[str, Any]] = []
        self.warnings: dict[Setting, list[dict[str, Any]]] = {}
        self._began = time.monotonic()
        self._probe_s = job.get("duration_s") or min(2.0, max(0.2, seconds / 100))
        self._count = 0

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def create_files(self, start: Setting) -> None:
        """Makes the files, outside the time of the search. Errors here are the request's own."""
        self.stages.begin("creating files")
        self._run(start, 0.2)
        self._began = time.monotonic()

    def measure(self, setting: Setting, long: bool) -> Probe | None:
        """One run; None, noted, where the setting can't run here. Raises once many can't."""
        self._count += 1
        name = f"io-size {format_bytes(setting.io_bytes)} workers {setting.workers} depth {setting.depth}"
        self.stages.begin(f"{'confirm' if long else 'probe'} {name}", {**self.job, **setting._asdict()})
        try:
            record = self._run(setting, self._probe_s * (2 if long else 1))
        except ForebayError as error:
            self.failures.append({**setting._asdict(), "asked": error.asked, "found": error.found})
            self.stages.say(f"{name}  can't run: {error.asked}: {error.found}")
            if len(self.failures) >= FAILURES_MAX:
                raise
            return None
        result, self.warnings[setting] = record["result"], record.get("warnings") or []
        rate = METRICS["throughput"].value(result)
        if rate is None:
            self.failures.append({**setting._asdict(), "asked": name, "found": "moved no bytes"})
            return None
        left = format_duration(max(0.0, self.seconds - self.elapsed()))
        cost = METRICS["cpu"].value(result)
        reported = f"  {cost:.4g} CPU-s/GiB" if cost is not None else ""
        self.stages.say(f"{'confirm' if long else 'probe  '} {name}  {rate:.3f} GiB/s{reported}  {left} left")
        return Probe(rate, cost, METRICS["power"].value(result))

    def _run(self, setting: Setting, seconds: float) -> dict[str, Any]:
        probe = {**self.job, **setting._asdict(), "duration_s": seconds}
        probe.setdefault("warmup_s", min(0.2, seconds / 5))
        record = own_files.run(probe, None, self.stages.observe)
        if record["result"].get("interrupted"):
            raise KeyboardInterrupt
        return record
