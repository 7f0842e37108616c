"""Reads what runs left behind: records, sweeps, comparisons, tunings.

Files come from other machines and other days, so nothing in them is trusted: sizes are bounded, a damaged
line is named with its file and number and left out, and the page says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forebay import pipes
from forebay.doubts import contradictions
from forebay.errors import RequestError
from forebay.units import GIB

FILE_BYTES_MAX = GIB
LINE_BYTES_MAX = 64 << 20
FILES_MAX = 10_000
# Lines or documents of one file that are named one by one, and characters in which data shows.
PROBLEMS_OF_FILE_MAX, TEXT_CHECKED = 20, 4096
RUN_SCHEMA = "forebay.run/1"
OLD_RUN_SCHEMAS = ("forebay.run/0",)
POINT_SCHEMA = "forebay.point/1"
SWEEP_SCHEMA = "forebay.sweep/1"
COMPARE_SCHEMA = "forebay.compare/1"
TUNE_SCHEMA = "forebay.tune/1"
# Runs over seeds, as `train --seeds --json` prints them.
SERIES_SCHEMA = "forebay.train.series/1"


@dataclass(frozen=True)
class Entry:
    """One record, and where it stood."""

    record: dict[str, Any]
    file: str
    line: int | None = None
    preset: str | None = None
    point: dict[str, Any] = field(default_factory=dict)
    # what the sweep calls itself
    title: str | None = None
    round: int = 0


@dataclass
class Loaded:
    """Everything that the page is a function of."""

    entries: list[Entry] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    tunings: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # what a sweep said it left out or changed: (file, text)
    notes: list[str] = field(default_factory=list)
    # file → title, of the sweeps among them
    titles: dict[str, str | None] = field(default_factory=dict)
    duplicates: int = 0


class Damaged(ValueError):
    """One document can't be used; the text says why."""


def load(paths: list[str]) -> Loaded:
    """Reads files and folders in the order given. Raises RequestError when nothing usable is in them."""
    loaded = Loaded()
    seen: set[str] = set()
    for path in map(pipes.readable, paths):
        for file in _files(path):
            _load_file(file, loaded, seen)
    if not (loaded.entries or loaded.comparisons or loaded.tunings):
        why = "; ".join(loaded.problems[:3]) or "hold no record"
        raise RequestError(
            " ".join(paths), why, "forebay bench SOURCE --json > run.json, then forebay report run.json"
        )
    return loaded


def _files(path: str) -> Iterator[str]:
    if not os.path.exists(path):
        raise RequestError(
            path, "there is no such file or folder", "a record, a sweep's .jsonl or its folder"
        )
    if not os.path.isdir(path):
        yield path
        return
    # A hidden one is a list of made files (.forebay.json) or half written: no run.
    found = sorted(
        str(p)
        for pattern in ("*.json", "*.jsonl")
        for p in Path(path).rglob(pattern)
        if not p.name.startswith(".")
    )
    if len(found) > FILES_MAX:
        raise RequestError(
            path, f"holds {len(found)} files, more than {FILES_MAX}", "a smaller folder, or the files by name"
        )
    if not found:
        raise RequestError(path, "has no .json or .jsonl file", "the folder that forebay sweep wrote")
    yield from found


def _load_file(path: str, loaded: Loaded, seen: set[str]) -> None:
    text, before = _read(path), len(loaded.problems)
    if "\0" in text[:TEXT_CHECKED]:
        loaded.problems.append(f"{path}: isn't text; left out")
        return
    _load_text(path, text, loaded, seen)
    named = before + PROBLEMS_OF_FILE_MAX
    if (more := len(loaded.problems) - named) > 0:
        loaded.problems[named:] = [f"{path}: {more} more are no records; left out"]


def _load_text(path: str, text: str, loaded: Loaded, seen: set[str]) -> None:
    try:
        whole = _parse(text)
    except Damaged as damage:
        if "\n" not in text.strip():
            loaded.problems.append(f"{path}:1: {damage}; left out")
            return
        _load_lines(path, text, loaded, seen)
        return
    for document in whole if isinstance(whole, list) else [whole]:
        _place(document, path, None, loaded, seen)


def _load_lines(path: str, text: str, loaded: Loaded, seen: set[str]) -> None:
    lines = text.split("\n")
    if not _looks_like_lines(lines):
        loaded.problems.append(f"{path}:1: not JSON, and not one JSON document per line; left out")
        return
    documents: list[tuple[int, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            documents.append((number, _parse(line)))
        except Damaged as damage:
            loaded.problems.append(f"{path}:{number}: {damage}; left out")
    done = {_turn(document) for _, document in documents if _finished(document)}
    for number, document in documents:
        # a point that failed or was cut short, and then ran again to its end, has nothing more to say
        if _is_point(document) and not _finished(document) and _turn(document) in done:
            continue
        _place(document, path, number, loaded, seen)


def _is_point(document: Any) -> bool:
    return isinstance(document, dict) and document.get("schema") == POINT_SCHEMA


def _finished(document: Any) -> bool:
    return (
        _is_point(document)
        and isinstance(document.get("record"), dict)
        and document.get("partial") is not True
    )


def _turn(document: Any) -> str:
    """Returns the point of the sweep and the round that a second try has in common with the first."""
    return (
        json.dumps([document.get("key"), document.get("round")])
        if document.get("key") is not None
        else f"line {id(document)}"
    )


def _looks_like_lines(lines: list[str]) -> bool:
    """True where some line is a document of its own; a damaged pretty-printed file has none."""
    return any(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines)


def _read(path: str) -> str:
    pipes.refuse_to_read(path)
    try:
        with open(path, "rb") as file:
            data = pipes.up_to(file, FILE_BYTES_MAX) if os.path.getsize(path) <= FILE_BYTES_MAX else None
        if data is None or len(data) > FILE_BYTES_MAX:
            raise RequestError(path, f"has more than {FILE_BYTES_MAX} bytes", "a smaller file")
        return data.decode("utf-8", errors="replace")
    except OSError as error:
        raise RequestError(path, error.strerror or str(error), "a file that you can read") from error


def _parse(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    if len(text) > LINE_BYTES_MAX and "\n" not in text:
        raise Damaged("one line of more than 64 MiB")
    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise Damaged("nested too deeply") from None
    except ValueError as error:
        raise Damaged(f"not JSON ({error})") from None


def _place(document: Any, path: str, line: int | None, loaded: Loaded, seen: set[str]) -> None:
    try:
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema == COMPARE_SCHEMA:
            loaded.comparisons.append(document)
        elif schema == TUNE_SCHEMA:
            loaded.tunings.append(document)
        elif schema == SWEEP_SCHEMA:
            loaded.notes += _left_out(path, document)
            loaded.titles[path] = _title(document)
        elif schema == SERIES_SCHEMA and isinstance(document.get("runs"), list):
            for run in document["runs"]:
                _place(run, path, line, loaded, seen)
        else:
            _keep(_entry(document, schema, path, line), loaded, seen)
    except Damaged as damage:
        loaded.problems.append(f"{path}{':' + str(line) if line else ''}: {damage}; left out")


def _keep(entry: Entry, loaded: Loaded, seen: set[str]) -> None:
    """The same record given twice (a sweep and its folder, say) counts once."""
    identity = entry.record.get("id")
    if isinstance(identity, str) and identity:
        if identity in seen:
            loaded.duplicates += 1
            return
        seen.add(identity)
    loaded.entries.append(replace(entry, title=loaded.titles.get(entry.file)) if entry.preset else entry)


def _title(header: dict[str, Any]) -> str | None:
    title = header.get("title")
    return title if isinstance(title, str) and title else None


def _left_out(path: str, header: dict[str, Any]) -> list[str]:
    dropped = header.get("dropped")
    names = (
        [d if isinstance(d, str) else json.dumps(d, ensure_ascii=False) for d in dropped]
        if isinstance(dropped, list)
        else []
    )
    return [f"{path}: not run: {name[:300]}" for name in names[:50]]


def _entry(document: Any, schema: Any, path: str, line: int | None) -> Entry:
    if not isinstance(document, dict):
        raise Damaged("not a record (not a JSON object)")
    if schema == POINT_SCHEMA:
        if document.get("record") is None:
            raise Damaged(
                f"{document.get('name') or 'a point'} has no record ({_why(document.get('error'))})"
            )
        preset, point = document.get("preset"), document.get("point")
        return Entry(
            _record(document["record"]),
            path,
            line,
            preset if isinstance(preset, str) else None,
            point if isinstance(point, dict) else {},
            round=number if type(number := document.get("round")) is int else 0,
        )
    return Entry(_record(document), path, line)


def _why(error: Any) -> str:
    if isinstance(error, dict):
        return (
            ": ".join(str(error[key]) for key in ("asked", "found") if error.get(key)) or "no reason is given"
        )
    return error if isinstance(error, str) and error else "no reason is given"


def _record(document: Any) -> dict[str, Any]:
    """The record, brought up to date and with the fields that every table needs."""
    if not isinstance(document, dict):
        raise Damaged("not a record (not a JSON object)")
    schema = document.get("schema")
    if schema in OLD_RUN_SCHEMAS:
        document = _migrated(document)
    elif schema != RUN_SCHEMA:
        raise Damaged(
            "not a record (no schema)"
            if not schema
            else f"schema '{schema}'; this version reads up to '{RUN_SCHEMA}'"
        )
    for part in ("environment", "job", "path", "cache", "result"):
        if not isinstance(document.get(part), dict):
            raise Damaged(f"a record without '{part}'")
    for part, name in (("result", "throughput_gib_s"), ("job", "io_bytes")):
        value = document[part].get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Damaged(f"a record without {part}.{name}")
    if not isinstance(document["path"].get("ran"), str):
        raise Damaged("a record without path.ran")
    if odd := contradictions(document):
        raise Damaged(f"it contradicts itself: {'; '.join(odd[:3])}")
    return document


def _migrated(document: dict[str, Any]) -> dict[str, Any]:
    try:
        from forebay import _core
    except ImportError:
        raise Damaged(
            f"schema '{document['schema']}' is older than '{RUN_SCHEMA}' and the engine that reads it isn't here"
        ) from None
    try:
        return json.loads(_core.read_record(json.dumps(document)))
    except Exception as error:  # whatever the engine says of a damaged record is the reason
        raise Damaged(f"schema '{document['schema']}' can't be read ({error})") from None
