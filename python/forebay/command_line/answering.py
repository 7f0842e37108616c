"""Answers to flags that a verb lacks and another tool, or `forebay bench`, has: its own flag of that meaning.

A flag's meaning is the job's field that it sets, as forebay.command_line.spellings has it. A verb with a flag for that field is
answered with it, a sweep with --set, and a verb that says the same in another way by a row of INSTEAD.
"""

from __future__ import annotations

import re

import click

from forebay.command_line.lazy import ONE_DASH
from forebay.command_line.spellings import SAME, SWITCHES, answer_to
from forebay.errors import RequestError

_DATA = dict.fromkeys(("emulate run", "emulate search", "emulate datagen"), "--data DIR")
# Field → a verb, or the first word of several → what says the same there. "source" is what is read or written, and
# "-o" where records go.
INSTEAD: dict[str, dict[str, str]] = {
    "source": {
        "gdsio": "-f FILE, or -D DIR", "demo": "--dir DIR", "emulate checkpoint": "--dir DIR", **_DATA,
        "emulate matrix": "--drive NAME=SOURCE",
    },
    "-o": {"gdsio": "--record FILE for the record, --json for stdout"},
    "path": {"gdsio": "-x 0-7", "checksum": "--path auto, bounce or host"},
    "op": {
        "gdsio": "-I 0-3 (read, write, randread, randwrite)", "files": "--phases create,read",
        "emulate checkpoint": "--writes N and --reads N", "emulate datagen": "leave it out: files are written in order",
        **dict.fromkeys(("emulate run", "emulate search"), "leave it out: the workload says what is read, and in which order"),
    },
    "read-pct": {"gdsio": "-M PCT, with -x 6"},
    "io-size": {
        "gdsio": "-i SIZE", "files": "--file-size SIZE: a file is written and read from its first byte to its last",
        **dict.fromkeys(("emulate", "plan"), "--io-size SIZE"),
    },
    "file-size": {
        "gdsio": "-s SIZE", "emulate checkpoint": "--scale SHARE, of the model's own sizes",
        **dict.fromkeys(_DATA, "leave it out: the workload says how large its files are"),
    },
    "files": {"gdsio": "-w N with -D DIR: one file for each thread"},
    "start": {"gdsio": "-o SIZE"},
    "align": {"gdsio": "-a SIZE"},
    "workers": {"gdsio": "-w N", "serve": "--threads N"},
    "depth": {
        "gdsio": "-w N: a thread has one I/O in flight; with -x 6 and 7 also -B N",
        **dict.fromkeys(("files", "emulate datagen"), "--workers N, each of which has one file at a time"),
        "checksum": "--workers N, each of which reads one piece of a file at a time",
    },
    "batch": {"gdsio": "-B N, with -x 6 and 7"},
    "duration": {
        "gdsio": "-T SECONDS", "demo": "--seconds S", "validate": "--seconds TIME",
        "files": "--files N: a run ends with its files",
        "emulate run": "--epochs N, or --steps N", "emulate matrix": "--probe TIME", "emulate datagen": "--files N",
        "emulate search": "--epochs N or --steps N for full runs, --probe TIME for short ones",
        "emulate checkpoint": "--writes N and --reads N", "plan": "--hours H, with --simulate",
    },
    "passes": {"gdsio": "leave it out: without -T, a run is one pass", "emulate": "--epochs N"},
    "warmup": {"emulate": "--warmup-run"},
    "repeat": {"sweep": "--rounds N", "emulate run": "--runs N", "emulate search": "--confirm N"},
    "rate": {"emulate": "--supply GIB_S"},
    "seed": {"gdsio": "-k SEED"},
    "cpus": {"gdsio": "-n NODE"},
    "numa": {"gdsio": "-n NODE"},
    "gpu": {"gdsio": "-d GPU", "emulate": "--destination gpu:0"},
    "engine": {
        "gdsio": "-x 0-7", "emulate checkpoint": "--engine auto, uring, pread or inline",
        "emulate": "--engine auto, uring or inline",
    },
    "sync": {"files": "--sync"},
    "cache": {"gdsio": "-O 1 for the page cache, -O 0 for O_DIRECT", "serve": "--cache auto, bypass or allow"},
    "verify": {
        "gdsio": "-V", "emulate datagen": "--check",
        "emulate checkpoint": "leave it out: what is read is compared, unless --no-verify is given",
    },
    "refill": {"gdsio": "-F"},
}  # fmt: skip

_MEANS = {spelling: field for field, spellings in SAME.items() for spelling in spellings}
_SOURCES = ("--filename", "--directory", "-f", "-D")
# Whole commands in a text, whose flags are theirs, and the flags of the verb that is typed.
_COMMAND = re.compile(r"(?:mpirun [^;,]*)?forebay [a-z]+[^;,]*|mpirun [^;,]*")
_FLAG = re.compile(r"(?<![\w'-])(--?[a-zA-Z][a-z-]*)")
# A field with its value, where it has one.
_SETTING = re.compile(r"--([a-z][a-z-]+)(?: ([^\s,;:(-][^\s,;]*))?")


def answer(error: click.UsageError) -> RequestError | None:
    """Returns the error to raise instead of `error`; None where it isn't about a flag that somebody knows."""
    if isinstance(error, click.BadOptionUsage) and error.option_name in SWITCHES:
        return RequestError(f"{error.option_name}=", "takes no value", SWITCHES[error.option_name])
    if not isinstance(error, click.NoSuchOption) or error.ctx is None or isinstance(error.ctx.command, click.Group):
        return None
    return _Verb(error.ctx).answer_to(error.option_name)


def refuse_one_dash(context: click.Context, words: list[str]) -> None:
    """RequestError for the first of a verb's `words` that is a flag's name behind one dash, as fio's users may type it: its first
    letter may be a flag that takes the others for its value."""
    verb = _Verb(context)
    if verb.words in ("gdsio", "fio") or isinstance(context.command, click.Group):
        return
    values = 0
    for word in words:
        if values:
            values -= 1
            continue
        if word == "--":
            return
        values = 0 if "=" in word else verb.values_of(word)
        name = ONE_DASH.fullmatch(word)
        if name and len(name[1]) > 2 and (answer := verb.answer_to_one_dash(name[1])):
            raise answer


class _Verb:
    """A verb as it is typed, and the flags that it has."""

    def __init__(self, context: click.Context) -> None:
        self.context = context
        self.path = context.command_path
        self.words = self.path.partition(" ")[2]
        self.options = _options(context.command)
        # Those of bench, for which the texts about other tools' flags are written.
        self.takes_jobs = {"--op", "--path", "--io-size", "--limit-bytes"} <= set(self.options)
        self.has_settings = self.words == "sweep"

    def answer_to(self, flag: str) -> RequestError | None:
        """Returns the advice for a flag of another tool or verb; None for one that nobody has, and for a letter without a
        counterpart: there it may mean anything."""
        from forebay.flags import fields

        own = {f"--{f.flag}": f for f in fields()}
        field = _MEANS.get(flag) or (flag[2:] if flag in own else None)
        reported = None if field else answer_to(flag)
        if flag in _SOURCES and not self.takes_jobs:
            reported = answer_to(flag)
            found = self._said("source") or self._argument()
        elif field:
            metavar = own[f"--{field}"].metavar
            reported = f"--{field} {metavar}" if metavar else f"--{field}"
            found = self._of_field(field, reported)
        else:
            if reported and len(flag) == 2 and not self.takes_jobs:
                reported = _without_commands(reported, self.path) if reported.startswith("-") else None
            found = reported and self._of_text(reported)
        if found:
            return RequestError(flag, f"is not a flag of {self.path}", found)
        if reported is None or not flag.startswith("--"):
            return None
        return RequestError(flag, f"is not a flag of {self.path}, which has no such setting", self._elsewhere(reported))

    def answer_to_one_dash(self, flag: str) -> RequestError | None:
        """Returns the advice for `-name`; None for one that nobody has."""
        name = f"-{flag}"
        option = self.options.get(name)
        if option is None:
            answer = self.answer_to(name)
            return answer and RequestError(flag, answer.found, answer.next)
        metavar = "" if option.is_flag else f" {option.make_metavar(self.context)}"
        return RequestError(flag, f"is not a flag of {self.path}", SWITCHES.get(name, name + metavar))

    def values_of(self, word: str) -> int:
        """Counts the words after a flag that are its values."""
        for option in self.context.command.params:
            if isinstance(option, click.Option) and word in (*option.opts, *getattr(option, "spellings", ())):
                return 0 if option.is_flag or option.count else option.nargs
        return 0

    def _of_field(self, field: str, reported: str) -> str | None:
        """`reported`, which sets `field`, as this verb has it."""
        option = self.options.get(f"--{field}")
        if option is not None:
            metavar = "" if option.is_flag else f" {option.make_metavar(self.context)}"
            return f"--{field}{metavar}"
        return self._said(field) or (_as_settings(reported) if self.has_settings else None)

    def _said(self, field: str) -> str | None:
        rows = INSTEAD.get(field, {})
        said = rows.get(self.words) or rows.get(self.words.split(" ")[0])
        return said if said and self._has_all_of(said) else None

    def _argument(self) -> str | None:
        pieces = [p.make_metavar(self.context) for p in self.context.command.params if isinstance(p, click.Argument)]
        takes_some = re.search("SOURCE|DIR|FILE", " ".join(pieces))
        return f"the file or folder, without a flag: {self.path} {' '.join(pieces)}" if takes_some else None

    def _of_text(self, reported: str) -> str | None:
        """A text about bench, for this verb: those of its alternatives that it has."""
        if self.takes_jobs:
            reported = re.sub(r"^(the (?:file|folder) .*)forebay bench", rf"\1{self.path}", reported)
        if not reported.startswith("-"):
            reported = _as_names(reported) if self.has_settings else reported
            return reported if self._has_all_of(reported) else None
        field = _FLAG.findall(reported)[0].removeprefix("--")
        if not self.takes_jobs and (said := self._said(field)):
            return said
        if self._has_all_of(reported):
            return reported
        parts = [self._part(part) for part in re.split(", or |; ", reported)]
        return ", or ".join(part for part in parts if part) or self._of_field(field, reported)

    def _part(self, reported: str) -> str | None:
        if self._has_all_of(reported):
            return reported
        return _as_settings(reported) if self.has_settings else None

    def _has_all_of(self, text: str) -> bool:
        """Returns whether it has the flags in `text`: not those of whole commands, nor those in brackets, which are others'."""
        return set(_FLAG.findall(re.sub(r"\(.*?\)", "", _COMMAND.sub("", text)))) <= set(self.options)

    def _elsewhere(self, reported: str) -> str:
        """Names the verb that has `reported`: another one of the same group, else bench."""
        group = self.context.parent.command if self.context.parent else None
        named = set(_FLAG.findall(reported))
        if " " in self.words and isinstance(group, click.Group):
            run = group.get_command(self.context, "run")
            if run is not None and named and named <= set(_options(run)):
                return f"{self.path.rpartition(' ')[0]} run {reported}"
        return f"forebay bench SOURCE {reported}" if reported.startswith("-") else f"in forebay bench, {reported}"


def _options(command: click.Command) -> dict[str, click.Option]:
    return {name: p for p in command.params if isinstance(p, click.Option) for name in p.opts}


def _without_commands(reported: str, path: str) -> str | None:
    """The parts of `reported` that aren't commands of other verbs than `path`."""
    parts = [p for p in re.split(", or |; ", reported) if not p.startswith("forebay ") or p.startswith(f"{path} ")]
    return ", or ".join(parts) or None


def _as_names(reported: str) -> str:
    """Fields by the names that a sweep gives them."""
    from forebay.flags import by_name

    return _SETTING.sub(lambda m: m[0].removeprefix("--") if m[1] in by_name() else m[0], reported)


def _as_settings(reported: str) -> str | None:
    """`--op write --create` → `--set op=write --set create=yes`; None where a flag is no field of a job."""
    from forebay.flags import by_name

    fields = by_name()
    if not all(name in fields for name, _ in _SETTING.findall(reported)):
        return None

    def setting(match: re.Match[str]) -> str:
        field, value = fields[match[1]], match[2]
        if field.is_flag:
            return f"--set {match[1]}=yes" + (f" {value}" if value else "")
        return f"--set {match[1]}={value or field.metavar}"

    return _SETTING.sub(setting, reported)
