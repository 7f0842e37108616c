"""Fields of requests as flags, settings and TOML keys: the engine's tables serve every verb.

A field is spelled the same everywhere: `--io-size 128k` on the command line, `io-size=128k` in
`compare --a`, `io-size = ["64k", "128k"]` in a sweep. The engine's own name (`io_bytes`) is understood too.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import click

from forebay import run
from forebay.command_line.spellings import SAME, Spelled, value_of
from forebay.errors import RequestError
from forebay.units import format_bytes, parse_bytes, parse_percent, parse_seconds

# Engines that records and flags name otherwise than the system calls that they use.
_ENGINES = {"uring": "io_uring", "map": "mmap"}


def engine_name(engine: str) -> str:
    """The name shown to people: `io_uring` for `uring`."""
    return _ENGINES.get(engine, engine)


def _integer(text: Any, what: str, most: int = (1 << 32) - 1, example: str = "4") -> int:
    try:
        value = int(str(text), 10 if re.fullmatch(r"[+-]?0[0-9_]+", str(text)) else 0)
    except ValueError:
        raise RequestError(f"{what} {text}", "is not a whole number", f"{what} {example}") from None
    if not 0 <= value <= most:
        raise RequestError(f"{what} {text}", f"must be a whole number from 0 to {most}", f"{what} {example}")
    return value


def _workers(text: Any, what: str) -> int | str:
    return "auto" if text == "auto" else _integer(text, what)


def _signed_bytes(text: Any, what: str) -> int:
    below = isinstance(text, str) and text.startswith("-")
    return -parse_bytes(text[1:], what) if below else parse_bytes(text, what)


def _whole(text: Any, what: str) -> int:
    return _integer(text, what, (1 << 63) - 1)


def _seed(text: Any, what: str) -> int:
    return _integer(text, what, (1 << 64) - 1)


def _share(text: Any, what: str) -> int:
    value = parse_percent(text, what)
    if not 0 <= value <= 100 or value != int(value):
        raise RequestError(f"{what} {text}", "must be a whole number from 0 to 100 per cent", f"{what} 70")
    return int(value)


def _number(text: Any, what: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"{what} {text}", "is not a number", f"{what} 1.5")
    return value


def _flag(text: Any, what: str) -> bool:
    if isinstance(text, bool):
        return text
    if str(text).lower() in ("1", "yes", "true", "on"):
        return True
    if str(text).lower() in ("0", "no", "false", "off"):
        return False
    raise RequestError(f"{what} {text}", "is neither yes nor no", f"{what} yes")


def one_of(allowed: tuple[str, ...], text: Any, what: str) -> str:
    """The word, or what fio, gdsio or elbencho call it. Raises RequestError where it is not one of those allowed."""
    chosen = value_of(what, str(text))
    if chosen not in allowed:
        near = difflib.get_close_matches(chosen.lower(), allowed, n=1) or allowed
        raise RequestError(f"{what} {text}", f"is not one of {', '.join(allowed)}", f"{what} {near[0]}")
    return chosen


def _text(text: Any, what: str) -> str:
    return str(text)


def _list(text: Any, what: str) -> list[str]:
    return [str(t) for t in text] if isinstance(text, (list, tuple)) else [t for t in str(text).split(",") if t]


def _one_or_more(text: Any, what: str) -> list[str]:
    """Words that may hold commas."""
    return [str(t) for t in text] if isinstance(text, (list, tuple)) else [str(text)]


def _names(allowed: tuple[str, ...], text: Any, what: str) -> list[str]:
    names = [word.strip() for word in str(text).split(",") if word.strip()]
    for name in names:
        if name not in allowed:
            near = (difflib.get_close_matches(name.lower(), allowed, n=1) or allowed)[0]
            raise RequestError(f"{what} {text}", f"'{name}' is not one of {', '.join(allowed)}", f"{what} {near}")
    return names


def _milliseconds(text: Any, what: str) -> float:
    return _integer(text, what) / 1e3


def _integers(text: Any, what: str) -> list[int]:
    numbers = [_integer(t, what, example="0") for t in _list(text, what)]
    if isinstance(text, str) and not numbers:
        raise RequestError(f"{what} '{text}'", "names none", f"{what} 0, or no {what}")
    return numbers


@dataclass(frozen=True)
class Bound:
    """Bound of a number; None: unbounded on that side."""

    least: float | None
    most: float | None
    with_least: bool
    with_most: bool
    must: str
    # A good value, as it is typed.
    example: str

    def holds(self, value: float) -> bool:
        above = self.least is None or value > self.least or (self.with_least and value == self.least)
        return above and (self.most is None or value < self.most or (self.with_most and value == self.most))


@dataclass(frozen=True)
class Field:
    """One field of a request, as the engine's table has it: flag name, key, help.

    `kind`: how its value is typed, a key of `PARSERS`; `words`: all that it may be, where that is a short list.
    `tells`: runs that differ in it are different runs, which a report never takes for repeats of one.
    `ends`: it ends a run by what was moved, and not by time.
    """

    flag: str
    key: str
    kind: str
    words: tuple[str, ...]
    help: str
    metavar: str | None
    tells: bool
    ends: bool
    bound: Bound | None = None
    needed: bool = False

    def parse(self, value: Any, what: str) -> Any:
        """The value as the engine takes it. Raises RequestError naming `what`."""
        if self.kind == "names":
            return _names(self.words, value, what)
        if self.values:
            return one_of(self.values, value, what)
        try:
            return PARSERS[self.kind](value, what)
        except RequestError as error:
            if self.bound is None:
                raise
            raise RequestError(error.asked, error.found, f"{what} {self.bound.example}") from None

    def parse_within(self, value: Any, what: str) -> Any:
        """As `parse`; also raises RequestError for a number out of its bounds."""
        parsed = self.parse(value, what)
        if self.bound is not None and not self.bound.holds(parsed):
            raise RequestError(f"{what} {value}", self.bound.must, f"{what} {self.bound.example}")
        return parsed

    @property
    def name(self) -> str:
        """Name of the argument that its flag arrives in."""
        return self.flag.replace("-", "_")

    @property
    def is_flag(self) -> bool:
        return self.kind in ("flag", "off")

    @property
    def multiple(self) -> bool:
        """Given once for each entry."""
        return self.kind in ("list", "words")

    @property
    def values(self) -> tuple[str, ...]:
        """All that it may be, where that is a short list."""
        return paths() if self.kind == "path" else self.words

    @property
    def spellings(self) -> tuple[str, ...]:
        """Returns its names in fio, gdsio and elbencho."""
        return SAME.get(self.flag, ())


# How the engine's kinds of fields are typed; `Kind` in crates/model/src/request.rs says what each is.
PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "text": _text,
    "list": _list,
    "words": _one_or_more,
    "flag": _flag,
    "off": lambda text, what: not _flag(text, what),
    "integer": _integer,
    "integers": _integers,
    "whole": _whole,
    "seed": _seed,
    "workers": _workers,
    "number": _number,
    "share": _share,
    "percent": parse_percent,
    "seconds": parse_seconds,
    "milliseconds": _milliseconds,
    "size": parse_bytes,
    "signed_size": _signed_bytes,
    "sizes": _text,
}


def paths() -> tuple[str, ...]:
    """Returns the values of `--path`: the engine's data paths, and `auto`."""
    return (*run.paths(), "auto")


def _field(row: dict[str, Any]) -> Field:
    kind, words = row["kind"], ()
    if isinstance(kind, dict):
        [(kind, words)] = kind.items()
    text = row["help"].replace("{paths}", ", ".join(run.paths()))
    bound = Bound(**row["bound"]) if row["bound"] else None
    reported = (row["metavar"] or None, row["tells"], row["ends"], bound, row["needed"])
    return Field(row["flag"], row["key"], kind, tuple(words), text, *reported)


@cache
def fields(request: str = "job") -> tuple[Field, ...]:
    """The fields of a request that users can set, in the order in which `--help` lists them."""
    return tuple(_field(row) for row in run.tables()["requests"][request]["fields"])


def defaults(request: str) -> dict[str, Any]:
    """A request for which nothing was typed, as the engine takes it."""
    return dict(run.tables()["requests"][request]["defaults"])


@cache
def by_name() -> dict[str, Field]:
    """The fields by each name that they go by: flag, JobSpec key, what other tools call them."""
    names = {name: f for f in fields() for name in (f.flag, f.flag.replace("-", "_"), f.key)}
    return names | {name[2:]: f for f in fields() for name in f.spellings if name.startswith("--")}


@cache
def counted() -> frozenset[str]:
    """Keys of fields that end a run by what it moved, not by time."""
    return frozenset(f.key for f in fields() if f.ends)


def duration_default_s() -> float:
    """Seconds of a run that nothing else ends, and no duration was given for."""
    return float(run.tables()["duration_default_s"])


def set_field(job: dict[str, Any], name: str, value: Any) -> None:
    """Sets one field of `job` from its flag, setting or TOML spelling. Raises RequestError naming it."""
    if name in ("source", "sources"):
        job["sources"] = list(value) if isinstance(value, (list, tuple)) else [str(value)]
        return
    field = by_name().get(name)
    if field is None:
        raise RequestError(f"field '{name}'", "is not a field of a job", f"one of {', '.join(f.flag for f in fields())}")
    parsed = field.parse(value, f"--{field.flag}")
    if field.key != "io_bytes":
        job[field.key] = parsed
        return
    parts = [parse_bytes(p, "--io-size") for p in parsed.split(":")]
    if len(parts) > 3:
        raise RequestError(f"--io-size {parsed}", "has more than three parts", "--io-size MIN:MAX:STEP")
    for key, part in zip(("io_bytes", "io_bytes_max", "io_bytes_step"), parts, strict=False):
        job[key] = part


def parse_settings(text: str) -> dict[str, Any]:
    """`path=bounce depth=8` → job fields."""
    job: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise RequestError(f"setting '{word}'", "has no value", "name=value, e.g. path=bounce depth=8")
        set_field(job, name.lstrip("-"), value)
    return job


def _settled(flag: str, value: str) -> dict[str, Any]:
    """Returns the fields that a flag alone sets."""
    job: dict[str, Any] = {}
    set_field(job, flag.lstrip("-"), value)
    return job


def _option(field: Field, spelled: bool = True, reads: Callable[[str, str], Any] | None = None) -> Callable[..., Any]:
    """The field as an option of a click command; `spelled`: also by its names in other tools."""
    if field.is_flag:
        return click.option(f"--{field.flag}", field.name, is_flag=True, default=None, help=field.help)
    return click.option(
        f"--{field.flag}", field.name, multiple=field.multiple, metavar=field.metavar, help=field.help, required=field.needed,
        cls=Spelled, spellings=field.spellings if spelled else (), words=field.values, reads=reads,
    )  # fmt: skip


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds every field of the job to a click command; its values arrive as `flags`-ready keyword arguments."""
    for field in reversed(fields()):
        command = _option(field, reads=_settled)(command)
    command = click.option("--direct/--buffered", "direct", default=None, help="--cache bypass, or --cache allow.")(command)
    return command


def request_options(request: str, spelled: bool = False) -> Callable[..., Any]:
    """Adds every field of a request to a click command, for `request_from_flags`; `spelled`: also by its names in other tools."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed(fields(request)):
            command = _option(field, spelled)(command)
        return command

    return add


def request_from_flags(request: str, values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request out of what click parsed, by the engine's keys; absent flags stay absent. Pops what it uses from
    `values`. Raises RequestError naming the flag."""
    found: dict[str, Any] = {}
    for field in fields(request):
        value = values.pop(field.name, None)
        if value is not None and value != ():
            found[field.key] = field.parse_within(value, f"--{field.flag}")
    return found


def job_from_flags(sources: tuple[str, ...] | list[str], values: dict[str, Any]) -> dict[str, Any]:
    """The job out of what click parsed; absent flags stay absent. Pops what it uses from `values`."""
    job: dict[str, Any] = {"sources": list(sources)}
    direct = values.pop("direct", None)
    if direct is not None:
        job["cache"] = "bypass" if direct else "allow"
    for f in fields():
        value = values.pop(f.name, None)
        if value is not None and value != ():
            set_field(job, f.flag, value)
    if direct is not None and job["cache"] != "auto" and (job["cache"] == "bypass") != direct:
        asked = f"{'--direct' if direct else '--buffered'} --cache {job['cache']}"
        raise RequestError(asked, "contradict each other", "one of them")
    return job


def spell(job: dict[str, Any]) -> list[str]:
    """The arguments that give `job` back: its sources, then a flag for each field that is set."""
    words = [str(s) for s in job.get("sources", ())]
    for f in fields():
        value = job.get(f.key)
        if value is None or value is False or value == []:
            continue
        if f.is_flag:
            words.append(f"--{f.flag}")
        elif f.multiple:
            words += [word for v in value for word in (f"--{f.flag}", str(v))]
        else:
            words += [f"--{f.flag}", spelled(f, job)]
    return words


def spelled(field: Field, job: dict[str, Any]) -> str:
    """The value of one field of `job` as a user writes it: 65536 → `64k`."""
    value = job[field.key]
    if field.key == "io_bytes":
        sizes = [job.get(k) for k in ("io_bytes", "io_bytes_max", "io_bytes_step")]
        return ":".join(format_bytes(s) for s in sizes if s is not None)
    if field.key.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, (list, tuple)):
        return ",".join(str(v) for v in value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)
