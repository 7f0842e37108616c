"""fio's command line, taken apart: settings of jobs, job files, and what concerns fio itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from forebay.errors import RequestError
from forebay.fio import file, keys
from forebay.fio.file import Section

NAME = "the command line"
# Settings that need no value.
SWITCHES = frozenset(
    "verify_only time_based exitall new_group norandommap refill_buffers stonewall wait_for_previous group_reporting thread "
    "threads bs_unaligned blocksize_unaligned zero_buffers exitall_on_error registerfiles fixedbufs nonvectored userspace_reap "
    "hipri sqthread_poll write_bw_log write_lat_log write_iops_log write_hist_log".split()
)
FORMATS = ("normal", "json", "json+")
# fio's own options that change no result here; those with a value.
_HARMLESS = {"warnings-fatal": False, "eta": True, "eta-newline": True, "eta-interval": True, "alloc-size": True,
             "max-jobs": True}  # fmt: skip
_OWN = {"output": True, "output-format": True, "section": True, "readonly": False, "parse-only": False, "version": False,
        "help": False, "h": False, "v": False}  # fmt: skip
# What is to be typed instead of fio's options that do something else.
_ELSEWHERE = {
    "minimal": "--output-format=json", "append-terse": "--output-format=json", "terse-version": "--output-format=json",
    "status-interval": "forebay bench --metrics PORT serves the figures of a run in progress",
    "server": "forebay bench over mpirun runs one job on several hosts",
    "client": "forebay bench over mpirun runs one job on several hosts",
    "remote-config": "the job file itself", "daemonize": "nohup, or systemd-run",
    "bandwidth-log": "write_bw_log in the job", "idle-prof": "the record has the CPU of the run and of others",
    "debug": "--parse-only says what each job becomes", "showcmd": "--parse-only says what each job becomes",
    "cmdhelp": "docs/fio.md has each key", "enghelp": "docs/fio.md has each engine",
    "cpuclock-test": "forebay doctor", "crctest": "forebay checksum FILE", "inflate-log": "logs aren't compressed",
    "merge-blktrace-only": "lists of I/Os can't be replayed", "aux-path": "the folder to run in",
    "trigger-file": "timeout -s INT", "trigger-timeout": "timeout -s INT", "trigger": "timeout -s INT",
    "trigger-remote": "timeout -s INT",
}  # fmt: skip


@dataclass
class Line:
    """`sections`: those of the command line, `[global]` first, then those of the job files. `chosen`: the sections to run; all
    if empty."""

    sections: list[Section] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    formats: tuple[str, ...] = ("normal",)
    output: str | None = None
    chosen: tuple[str, ...] = ()
    readonly: bool = False
    parse_only: bool = False
    wants: str = ""

    @property
    def name(self) -> str:
        return " ".join(self.files) if self.files and not self.has_jobs else NAME

    @property
    def has_jobs(self) -> bool:
        return any(section.name != "global" for section in self.sections)

    def read(self) -> list[Section]:
        """The sections to run, those of the job files behind the command line's. RequestError where there are none."""
        found = list(self.sections)
        for path in self.files:
            found += file.sections(path)
        names = [section.name for section in found if section.name != "global"]
        if not names:
            raise RequestError(
                "forebay fio", "no job was given", "forebay fio --name=x --filename=F --rw=randread, or a job file"
            )
        for name in self.chosen:
            if name not in names:
                raise RequestError(f"--section={name}", f"is not one of {', '.join(names)}", f"--section={names[0]}")
        return [s for s in found if s.name == "global" or not self.chosen or s.name in self.chosen]


def parse(words: Sequence[str]) -> Line:
    """Takes fio's words apart. What stands before the first `--name` holds for all jobs."""
    line, own, left = Line(), _OWN | _HARMLESS, list(words)
    name, settings = "global", list[tuple[str, str]]()
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            line.files.append(word)
            continue
        key, equals, value = word.lstrip("-").partition("=")
        if key in _ELSEWHERE:
            raise RequestError(word, "is an option of fio's that Forebay doesn't have", _ELSEWHERE[key])
        takes = own.get(key, key not in SWITCHES)
        if takes and not equals:
            value = _value(word, key, left)
        elif not equals:
            value = "1"
        if key in own:
            _of_fio(line, word, key, value)
        elif key == "name":
            line.sections.append(Section(name, tuple(settings)))
            name, settings = value, [("name", value)]
        else:
            settings.append((key, value))
    line.sections.append(Section(name, tuple(settings)))
    return line


def _value(word: str, key: str, left: list[str]) -> str:
    """The word behind, as getopt takes it; RequestError where there is none, or the key is nobody's."""
    known = (keys.DONE, keys.HOLDS, keys.REPORTED, keys.REFUSED, keys.ALIASES, _OWN, _HARMLESS)
    if not any(key in table for table in known):
        near = difflib.get_close_matches(key, [name for table in known for name in table], 1)
        raise RequestError(word, "is neither a setting nor an option of fio's", f"--{near[0]}" if near else "--name=x --rw=read")
    if not left or left[0].startswith("--"):
        raise RequestError(word, "needs a value", f"{word}=1" if key in ("direct", "buffered") else f"{word}=VALUE")
    return left.pop(0)


def _of_fio(line: Line, word: str, key: str, value: str) -> None:
    if key == "output":
        line.output = value
    elif key == "output-format":
        line.formats = tuple(_format(word, part) for part in value.split(","))
    elif key == "section":
        line.chosen = (*line.chosen, value)
    elif key == "readonly":
        line.readonly = True
    elif key == "parse-only":
        line.parse_only = True
    elif key in ("version", "v"):
        line.wants = "version"
    elif key in ("help", "h"):
        line.wants = "help"


def _format(word: str, part: str) -> str:
    if part not in FORMATS:
        found = "terse lines aren't written" if part == "terse" else f"is not one of {', '.join(FORMATS)}"
        raise RequestError(word, found, "--output-format=json")
    return part


def refuse_writes(jobs: Iterable[tuple[str, dict[str, object]]]) -> None:
    """RequestError for a job that writes, under `--readonly`."""
    for name, job in jobs:
        left_out = {word.strip() for word in str(job.get("replay_skip", "")).split(",")}
        if "read_iolog" in job and not {"write", "trim"} <= left_out:
            raise RequestError("--readonly", f"[{name}] replays a list, which may write", "replay_skip=write,trim")
        if str(job["op"]).endswith("write") or job.get("read_pct", 100) != 100:
            raise RequestError("--readonly", f"[{name}] writes", "a job that reads, or no --readonly")
