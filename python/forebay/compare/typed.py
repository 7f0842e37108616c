"""One side of a comparison of a command behind `--`: `forebay train dlrm …`, with flags of this side's own behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from forebay import run as engine
from forebay.compare.subject import run_elsewhere
from forebay.errors import ForebayError, MachineError, RequestError
from forebay.metrics import OF_COMMANDS, Metric, command_with_figures
from forebay.model_runs import refuse_path

# Flags that compare itself has use of, and verbs below a verb that measure nothing.
TAKEN = ("-o", "--out", "--json", "-q", "--quiet", "--seeds", "--logs", "--results", "--trace", "--dry-run", "--metrics", "--mpi")
UNMEASURED = ("datagen", "check")
# Flags of a run that doesn't count: the page cache is filled, and errors are met early. What else says how long it is goes.
BRIEF = {
    "train": {"--seconds": "1", "--peak-seconds": "0.2"},
    "infer": {"--seconds": "0.3"},
    # One user: what is under way when the window ends goes on.
    "emulate kvcache": {"--duration": "1", "--users": "1"},
    "emulate kvcache run": {"--requests": "1"},
}
LENGTHS = ("--short",)
CPU = "cpu"
# Flags that say how long a run is, and what of them is more; a command's others below.
LENGTH = {"--seconds": "a longer --seconds", "--samples": "more --samples", "--duration": "a longer --duration"}
LONGER = {
    "train": "more samples a run", "infer": "more --seconds", "emulate kvcache": "a longer --duration",
    "emulate kvcache replay": "a longer trace", "emulate kvcache run": "more --requests",
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """`words`: the command, its own flags included. Each run is a process of its own, as it is when it is typed."""

    name: str
    settings: str
    words: tuple[str, ...]
    flags: tuple[str, ...]
    python: str | None = None
    job: dict[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        return command_with_figures(self.words) or self.words[0]

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return OF_COMMANDS[self.command]

    # A run of few I/Os, or none, is one, too: a mapping has none.
    has_ios = False

    @property
    def longer(self) -> str:
        """Advice that makes runs longer: the flag that sets their length, where they were given one."""
        given = (more for flag, more in LENGTH.items() if flag in self.flags and self._given(flag) is not None)
        return next(given, LONGER[self.command])

    def same_as(self, other: Typed) -> bool:
        return self.words == other.words and self.python == other.python

    @property
    def title(self) -> str:
        said = [w for w in (self.settings, f"by {self.python}" if self.python else "") if w]
        return ", ".join(said) or "(the command as given)"

    def check(self) -> None:
        """Raises RequestError, MachineError for a path to a GPU that its model doesn't run on, or that this machine hasn't got:
        a run of the other side may take minutes until this one's would say so."""
        path = self._given("--path")
        if self.words[0] not in ("train", "infer") or self.python is not None or path in (None, "auto"):
            return
        try:
            device = (self._given("--device") or (CPU if engine.no_gpu() else "cuda")) if "--device" in self.flags else CPU
            refuse_path(str(path), device, by_loader=self.words[0] == "train" and self.words[:2] != ("train", "gnn"))
            lacking = engine.lacks({"path": path})
            if lacking is not None:
                raise MachineError(f"--path {path}", lacking, "forebay doctor, or --path bounce")
        except ForebayError as error:
            raise type(error)(f"{self._asked()}: {error.asked}", error.found, error.next) from None

    def _given(self, flag: str) -> str | None:
        """The last value of a flag among the words."""
        found = None
        for word, following in zip(self.words, (*self.words[1:], None), strict=True):
            name, equals, value = word.partition("=")
            if name == flag:
                found = value if equals else following
        return found

    def _asked(self) -> str:
        return f"{self.name} ({self.title}): forebay {' '.join(self.words[:2])}"

    def run(self, observe: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        return self._run(self.words)

    def run_briefly(self, observe: Callable[[dict[str, Any]], None], seconds: float) -> dict[str, Any] | None:
        """None: what it measured is no measure of the figures. A test of inference may be too short to be valid; a trace has no
        brief run."""
        brief = BRIEF.get(self.command)
        if brief is None:
            return None
        words = [word for word in self.words if word not in LENGTHS]
        words += [word for flag, value in brief.items() if flag in self.flags for word in (flag, value)]
        self._run(words, whole=self.words[0] != "infer")
        return None

    def _run(self, words: Sequence[str], whole: bool = True) -> dict[str, Any]:
        quiet = ["--quiet"] if "--quiet" in self.flags else []
        try:
            return run_elsewhere(self.python or sys.executable, [*words, "--json", *quiet], whole)
        except ForebayError as error:
            raise type(error)(self._asked(), *_said(error)) from error


def _said(error: ForebayError) -> tuple[str, str]:
    """The command's own finding and what it said to try, where it said so."""
    _, ours, text = error.found.rpartition(": forebay: ")
    found, named, next = text.partition("\n  try: ")
    return (found, next) if ours and named else (error.found, error.next)


def subjects(words: tuple[str, ...], texts: list[str], pythons: list[str | None]) -> list[Typed]:
    """A, B and perhaps C. Raises RequestError for what can't be compared, before anything runs."""
    path, command = _command(words)
    flags = tuple(flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts))
    for word in words:
        if word.partition("=")[0] in TAKEN:
            reported = f"{word}: each run's record goes to compare, which repeats the runs itself"
            raise RequestError(f"-- {' '.join(words)}", reported, f"no {word} there; before the --, -o and --json are compare's")
    made = []
    for name, text, python in zip("ABC", texts, pythons, strict=False):
        own = _flags_of(text, command, path)
        made.append(Typed(name, text.strip(), (*words, *own), flags, python, {"command": [*words, *own]}))
    return made


def _command(words: tuple[str, ...]) -> tuple[str, click.Command]:
    """The verb that the words begin with. `train` alone is none: it has models."""
    from forebay.cli import forebay

    asked = f"-- {' '.join(words)}"
    group: click.Command = forebay
    path: tuple[str, ...] = ()
    for word in words:
        if not isinstance(group, click.Group) or (group.invoke_without_command and word.startswith("-")):
            break
        allowed = _measured(group, path)
        if word not in allowed:
            raise RequestError(asked, f"{word} measures nothing that is compared", f"one of {', '.join(allowed)}")
        group, path = group.get_command(click.Context(group), word) or group, (*path, word)
    if isinstance(group, click.Group) and not group.invoke_without_command:
        found = "names no model" if command_with_figures(path) else "measures nothing by itself"
        raise RequestError(asked, found, f"-- {' '.join(path)} {_measured(group, path)[0]}")
    return " ".join(path), group


def _measured(group: click.Group, path: tuple[str, ...]) -> list[str]:
    """The verbs of a group whose records have figures of their own, or that lead to such."""
    below = [(*path, name) for name in group.list_commands(click.Context(group)) if name not in UNMEASURED]
    return [
        words[-1] for words in below
        if command_with_figures(words) or any(name.startswith(f"{' '.join(words)} ") for name in OF_COMMANDS)
    ]  # fmt: skip


def _flags_of(text: str, command: click.Command, path: str) -> list[str]:
    """`path=auto supply=0.02` → flags of the command."""
    found = []
    for word in text.split():
        name, equals, value = word.partition("=")
        flag = f"--{name.lstrip('-').replace('_', '-')}"
        option = next((p for p in command.params if isinstance(p, click.Option) and flag in p.opts), None)
        if not equals:
            raise RequestError(f"setting '{word}'", "has no value", "name=value, e.g. path=bounce supply=0.5")
        if option is None or flag in TAKEN:
            known = ", ".join(p.opts[0].removeprefix("--") for p in command.params if p.opts[0] not in TAKEN)
            raise RequestError(f"setting '{word}'", f"forebay {path} has no {flag}", f"one of {known}")
        if option.is_flag and value not in ("yes", "no"):
            raise RequestError(f"setting '{word}'", f"{flag} is a flag", f"{name}=yes, or {name}=no")
        found += [flag, value] if not option.is_flag else [flag] * (value == "yes")
    return found
