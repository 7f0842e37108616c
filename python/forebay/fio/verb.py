"""`forebay fio`: fio's command line and job files, run here, with fio's output."""

from __future__ import annotations

import json
import os
import re
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from forebay import fio
from forebay.bench import save, summary, verb
from forebay.errors import DONE, RequestError, RunError
from forebay.fio import command_line, document, keys, logs, wording
from forebay.fio import disks as fio_disks
from forebay.fio.file import Section, expanded
from forebay.fio.job import CHECK, FioJob

EXAMPLES = """\b
Examples:
  forebay fio --name=x --filename=/data/f --direct=1 --rw=randread --bs=4k --ioengine=io_uring --iodepth=16 \\
      --runtime=10 --time_based --output-format=json --output=x.json
  forebay fio --output-format=json+ job.fio
  forebay fio --write_lat_log=x --log_avg_msec=1000 job.fio"""


@click.command(
    "fio", epilog=EXAMPLES,
    context_settings={"ignore_unknown_options": True, "max_content_width": 110, "help_option_names": ["--help"]},
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[--SETTING=VALUE]... [JOB.fio]...", type=click.UNPROCESSED)
@click.option("--record", metavar="FILE", help="Save Forebay's own records to FILE as well: .jsonl appends a line for each.")
@click.option("--fio-lenient", is_flag=True, help="Ignore unsupported settings; stderr names them, and so do the records.")
@click.option("--overwrite", multiple=True, metavar="FILE", help="Allow overwriting this file, which Forebay didn't create.")
@click.option("--overwrite-device", multiple=True, metavar="DEVICE", help="Allow overwriting this block device.")
@click.pass_context
def command(context: click.Context, words: tuple[str, ...], record: str | None, **own: Any) -> int:
    """fio's own command line, job files and output.

    --output-format=json and json+ print fio's document, normal Forebay's summary. A setting that would make another workload
    than fio's is refused by name; one that has no effect is accepted.
    """
    line = command_line.parse(words)
    if line.wants == "version":
        from forebay import __version__

        click.echo(f"{document.VERSION} (options and output; forebay {__version__})")
        return DONE
    if line.wants == "help":
        click.echo(context.get_help())
        return DONE
    return _Command(line, record, own).run()


class _Command:
    """One command: its sections, their jobs, and what comes of them."""

    def __init__(self, line: command_line.Line, record: str | None, own: dict[str, Any]) -> None:
        self.line, self.began = line, time.time()
        sections = line.read()
        self.sections = [_without_output(section) for section in sections]
        self.settings, self.shared = _settings(sections)
        self.typed = [_shown(section) for section in sections]
        self.jobs = fio.of_sections(self.sections, line.name, own["fio_lenient"])
        _refuse_unsized(self.jobs)
        if line.readonly:
            command_line.refuse_writes((job.name, job.job) for job in self.jobs)
        over = {"overwrite": list(own["overwrite"]), "overwrite_devices": list(own["overwrite_device"])}
        self.asked = [_asked(job.name, self.settings[job.section], line.formats) for job in self.jobs]
        self.logs = [logs.from_settings(job.name, self.settings[job.section]) for job in self.jobs]
        self.tasks = verb.tasks_of_jobs(self.jobs, line.name, {key: value for key, value in over.items() if value})
        self.saved = save.Output(record, save.RUN, "--record") if record else None
        self.output = _Output(line.output) if line.output else None
        self.disks = fio_disks.Watch()
        self.entries: list[document.Entry] = []
        self.devices: set[str] = set()
        self.reported: list[str] = []
        self._heard, self._usage = 0, _usage()
        self._began_at = time.monotonic()

    def run(self) -> int:
        if self.line.parse_only:
            return verb.dry_run(self.tasks, "json" in self.line.formats)
        firsts = self._numbers()
        for log, first, task in zip(self.logs, firsts, self.tasks, strict=True):
            if log is not None:
                log.check(first, task.job.get("workers", 1))
        self._note_clones()
        plain = self.line.formats == ("normal",) and self.output is None
        own = {
            "as_json": False, "out": self.saved, "live": False, "metrics": None, "fio": None, "quiet": not plain,
            "hear": self._hear, "endpoint": self.disks,
        }  # fmt: skip
        with ExitStack() as stack:
            prefixes = self._logging(stack)
            try:
                code = verb.run_all(self.tasks, own, None)
            finally:
                for log, prefix, first, task in zip(self.logs, prefixes, firsts, self.tasks, strict=True):
                    if log is not None:
                        log.write(prefix, first, task.job.get("workers", 1))
        if not plain:
            self._show()
        return code

    def _numbers(self) -> list[int]:
        """Each job's number of its first clone, as logs are numbered; a check has that of its section."""
        found: list[int] = []
        following = 1
        for job in self.jobs:
            if job.name.endswith(CHECK) and found:
                found.append(found[-1])
                continue
            found.append(following)
            following += job.job.get("workers", 1)
        return found

    def _note_clones(self) -> None:
        for job, task in zip(self.jobs, self.tasks, strict=True):
            clones = task.job.get("workers", 1)
            if clones > 1 and self.line.formats != ("normal",) and not _is_on(self.settings[job.section], "group_reporting"):
                reported = f"numjobs={clones}: one entry for all of them, as with group_reporting"
                click.echo(f"forebay: {self.line.name} [{job.name}] {reported}", err=True)

    def _logging(self, stack: ExitStack) -> list[str]:
        """Has the engine write the logs in a folder of their own, beside where they are to be."""
        prefixes = []
        for number, (job, log) in enumerate(zip(self.jobs, self.logs, strict=True)):
            if log is None or job.name.endswith(CHECK):
                self.logs[number] = None
                prefixes.append("")
                continue
            place = Path(next(iter(log.prefixes.values()))).parent
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".forebay-fio-", dir=place))
            prefixes.append(os.path.join(folder, "ios"))
            self.tasks[number] = replace(self.tasks[number], job={**self.tasks[number].job, **log.fields(prefixes[-1])})
        return prefixes

    def _hear(self, task: verb.Task, outcome: verb.Outcome, beside: int) -> None:
        number, usage = self._heard, _usage()
        self._heard += 1
        job, asked = self.jobs[number], self.asked[number]
        settings = self.settings[job.section]
        entry = self._entry(job, settings, asked)
        record = outcome.record
        if record is not None:
            for warning in record.get("warnings") or []:
                if not str(warning.get("next")).startswith("forebay "):
                    warning["next"] = wording.advice(str(warning["next"]))
            entry.records.append(record)
            drives = {drive["name"] for drive in record["environment"].get("drives") or []}
            self.devices |= set(record["cache"].get("devices") or {}) or drives
            self.reported.append(f"[{task.name}]\n{summary.text(record)}")
        entry.error = entry.error or _error(outcome)
        entry.elapsed_s = max(entry.elapsed_s, time.monotonic() - self._began_at)
        if beside == 1:
            entry.usage = (entry.usage[0] + usage[0] - self._usage[0], entry.usage[1] + usage[1] - self._usage[1],
                           entry.usage[2] + usage[2] - self._usage[2])  # fmt: skip
            self._usage = usage

    def _entry(self, job: FioJob, settings: Mapping[str, str], asked: document.Asked) -> document.Entry:
        """The entry that the job's record goes into: that of its section, or of its group."""
        last = self.entries[-1] if self.entries else None
        grouped = _is_on(settings, "group_reporting")
        if last is not None and job.name.endswith(CHECK):
            return last
        options = dict(self.typed[job.section])
        if last is not None and grouped and last.group == job.group:
            last.options = options  # as fio has it: the first one's name, the last one's settings
            return last
        description, steady = settings.get("description", ""), settings.get("ss", "")
        self.entries.append(document.Entry(job.name, job.group, options, asked, description, steady))
        return self.entries[-1]

    def _show(self) -> None:
        parts = []
        if "normal" in self.line.formats:
            parts.append("\n\n".join(self.reported))
        if any(form.startswith("json") for form in self.line.formats):
            with_disks = all(settings.get("disk_util", "1") != "0" for settings in self.settings)
            disks = self.disks.util(self.devices) if with_disks else []
            found = document.document(self.entries, self.shared, disks, self.began)
            parts.append(json.dumps(found, indent=2))
        text = "\n".join(parts)
        if self.output is None:
            click.echo(text)
        else:
            self.output.write(text + "\n")


class _Output:
    """The file of `--output`. Only output of an earlier run is replaced."""

    _OURS = re.compile(r'\s*(\{\s*"fio version"|\[[^\n]*\]\n(cpu|machine|host))')

    def __init__(self, path: str) -> None:
        self.path, self.asked = Path(path), f"--output={path}"
        if self.path.is_dir():
            raise RequestError(self.asked, "is a directory", f"--output={self.path / 'fio.json'}")
        if not self.path.parent.is_dir():
            raise RequestError(self.asked, f"the directory {self.path.parent} doesn't exist", f"mkdir -p {self.path.parent}")
        if self.path.is_file() and not self._may_be_replaced(self.path):
            raise RequestError(self.asked, "exists, and is no output of fio's", "another name, or mv it away")

    def _may_be_replaced(self, path: Path) -> bool:
        with path.open(errors="replace") as file:
            begins = file.read(2000)
        return not begins or self._OURS.match(begins) is not None

    def write(self, text: str) -> None:
        try:
            save.write_whole(str(self.path), text.encode(), self._may_be_replaced)
        except FileExistsError:
            raise RunError(self.asked, "was created by something else during the run", "another name") from None
        except OSError as error:
            raise save.unwritable(self.asked, error) from None


def _refuse_unsized(jobs: Sequence[FioJob]) -> None:
    """RequestError for a job that writes a file that nobody gave a size: fio, too, doesn't make one up."""
    made: set[str] = set()
    for job in jobs:
        paths = [source for source in job.job.get("sources", []) if ":" not in source]
        if "file_bytes" in job.job:
            made.update(paths)
        elif str(job.job["op"]).endswith("write") or "read_pct" in job.job:
            for path in paths:
                if path not in made and not os.path.exists(path):
                    raise RequestError(f"[{job.name}] filename={path}", "isn't there, and has no size", "size=1g")


def _without_output(section: Section) -> Section:
    return Section(section.name, tuple((key, value) for key, value in section.settings if key not in logs.KEYS))


def _settings(sections: Sequence[Section]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Each section's settings with those of the `[global]` above it, and those of `[global]` as typed."""
    shared: dict[str, str] = {}
    typed: dict[str, str] = {}
    found: list[dict[str, str]] = []
    for section in sections:
        own = {keys.ALIASES.get(key, key): expanded(section.name, key, value) for key, value in section.settings}
        if section.name == "global":
            shared |= own
            typed |= _shown(section)
        found.append({**shared, **own})
    return found, typed


def _shown(section: Section) -> dict[str, str]:
    """A section's settings by the names that fio's document has for them: no switches, and logs only with a name of their own."""
    found = {}
    for key, value in section.settings:
        if key not in command_line.SWITCHES or (key in logs.KINDS and value not in ("", "1")):
            key = keys.ALIASES.get(key, key)
            found[keys.SHOWN.get(key, key)] = value
    return found


def _is_on(settings: Mapping[str, str], key: str) -> bool:
    return settings.get(key, "0") not in ("0", "false")


def _asked(name: str, settings: Mapping[str, str], formats: Sequence[str]) -> document.Asked:
    """Reads the settings that are about the output. RequestError for malformed ones."""
    text = settings.get("percentile_list", "")
    try:
        shares = tuple(float(part) for part in text.split(":")) if text else document.PERCENTILES
    except ValueError:
        shares = (-1.0,)
    if len(shares) > 20 or not all(0 < share <= 100 for share in shares):
        raise RequestError(f"[{name}] percentile_list={text}", "is not up to 20 percentages", "percentile_list=50:99:99.9")
    unified = {"0": "none", "none": "none", "1": "mixed", "mixed": "mixed", "2": "both", "both": "both"}
    how = settings.get("unified_rw_reporting", "0")
    if how not in unified:
        raise RequestError(f"[{name}] unified_rw_reporting={how}", "is not none, mixed or both", "unified_rw_reporting=mixed")
    of_clat, of_lat = settings.get("clat_percentiles", "1") != "0", _is_on(settings, "lat_percentiles")
    return document.Asked(shares, of_clat, of_lat, "json+" in formats, unified[how])


def _error(outcome: verb.Outcome) -> int:
    """fio's number of what went wrong; 0 where nothing did."""
    found = outcome.record["result"]["errors"] if outcome.record else {}
    if found.get("verify_failed"):
        return document.EILSEQ
    return document.EIO if outcome.error is not None or found.get("failed") or found.get("timed_out") else 0


def _usage() -> tuple[int, int, int]:
    """Context switches, major and minor faults of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw + used.ru_nivcsw, used.ru_majflt, used.ru_minflt
