"""Files in fio's format: sections of `key=value`, comments, and what the environment fills in."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from forebay import pipes
from forebay.errors import RequestError
from forebay.fio import values

FILE_BYTES_MAX = 1 << 20
SECTIONS_MAX = 1000


@dataclass(frozen=True)
class Section:
    """One `[name]` with its settings in order; a key without `=` has the value "1"."""

    name: str
    settings: tuple[tuple[str, str], ...]


def sections(path: str) -> list[Section]:
    """The sections of the job file at `path`. Raises RequestError; reads at most 1 MiB."""
    path = pipes.readable(path)
    pipes.refuse_to_read(path)
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise RequestError(
            str(path), getattr(error, "strerror", None) or str(error), "the path of a job file"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise RequestError(str(path), "is larger than 1 MiB, so not a job file", "the path of a job file")
    try:
        return parse(data.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise RequestError(str(path), f"is not text (byte {error.start})", "the path of a job file") from None


def parse(text: str, path: str) -> list[Section]:
    """Splits a job file's text. `;` and `#` begin comments, anywhere in a line, as in fio."""
    names: list[str] = []
    bodies: list[list[tuple[str, str]]] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = re.split("[;#]", raw, maxsplit=1)[0].strip()
        if not line:
            continue
        where = f"{path}:{number}"
        if line.startswith("["):
            if not line.endswith("]") or not line[1:-1].strip():
                raise RequestError(f"{where} {line[:80]}", "is not a section", "[name]")
            names.append(line[1:-1].strip())
            bodies.append([])
        elif not names:
            raise RequestError(f"{where} {line[:80]}", "comes before the first section", "[global] above it")
        else:
            bodies[-1].append(_setting(line, where))
        if len(names) > SECTIONS_MAX:
            raise RequestError(where, f"has more than {SECTIONS_MAX} sections", "several job files")
    return [Section(name, tuple(body)) for name, body in zip(names, bodies, strict=True)]


def _setting(line: str, where: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in line.partition("="))
    if key.split(" ")[0] == "include":
        raise RequestError(
            f"{where} {line[:80]}", "include isn't supported", "one file with all sections"
        )
    if not re.fullmatch(r"[A-Za-z0-9_-]+", key):
        raise RequestError(f"{where} {line[:80]}", "is not a setting", "key=value")
    if "\0" in value:
        raise RequestError(where, "holds a NUL byte", "key=value")
    return key, value if equals else "1"


def expanded(section: str, key: str, value: str) -> str:
    """`${NAME}` from the environment, as fio does."""

    def replace(match: re.Match[str]) -> str:
        known = os.environ.get(match[1])
        if known is None:
            raise RequestError(
                f"[{section}] {key}={value}",
                f"{match[1]} is not set in the environment",
                f"{match[1]}=VALUE before the command",
            )
        return known

    expanded = re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", replace, value)
    try:
        return values.keywords(expanded)
    except values.Malformed as error:
        raise RequestError(f"[{section}] {key}={value}", str(error), "the number itself") from None
