"""Rank files below a folder, whoever wrote them, and what can't be read of them.

Files come from other machines and other tools, so nothing in them is trusted: sizes and numbers of files are bounded, and
what is damaged is named and left out.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from forebay import pipes
from forebay.emulate.kvcache.formula import Slot, is_number
from forebay.errors import RequestError

PREFIX = "kvcache_results_"
RESULT = re.compile(r"kvcache_results_.*\.json(?:\.gz)?", re.DOTALL)
SUMMARY = re.compile(r"(?:summary|kvcache_\w*summary\w*)\.json(?:\.gz)?")
METADATA = re.compile(r".*_metadata\.json(?:\.gz)?", re.DOTALL)
# Forebay's own, beside a summary.
OWN = "forebay.json"
LOG = re.compile(r"kvcache_.*\.log(?:\.gz)?", re.DOTALL)
# A system's description, by the ends of its names.
DESCRIBES = (".json", ".yaml", ".yml", ".txt", ".md")
STAMP = re.compile(r"([0-9]{8}_[0-9]{6})")
LEVELS = {"option": re.compile(r"option_([0-9]{1,2})"), "trial": re.compile(r"trial_([0-9]{1,3})"),
          "rank": re.compile(r"rank_([0-9]{1,4})")}  # fmt: skip
# A rank's file has some hundred KiB, a tree some dozens of files.
FILE_BYTES_MAX = 32 << 20
ALL_BYTES_MAX = 512 << 20
ENTRIES_MAX = 200_000
SLOTS_MAX = 100_000
# Latencies in seconds, one for each request.
LISTS = ("end_to_end_latencies", "storage_latencies")


class Damaged(ValueError):
    """One file can't be used; the text says why."""


@dataclass(frozen=True)
class FilePlace:
    """Where a rank's file lies. `place`: below the tree; `run`: the folder above its option, "" where that is the tree."""

    path: Path
    place: str
    run: str
    option: int | None
    trial: int | None
    rank: int | None
    stamp: str | None


@dataclass(frozen=True)
class RankFile(FilePlace):
    """A file that was read. `document`: less its lists; `longest_s`: the greatest number of each list that has any."""

    document: Mapping[str, Any] = field(default_factory=dict)
    longest_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Broken(FilePlace):
    """A file that is left out, and why."""

    why: str = ""


@dataclass
class Found:
    """Content of a tree, in the order of its paths. `skipped`: files that can't be read, other than of ranks, and why."""

    tree: str
    files: list[RankFile] = field(default_factory=list)
    damaged: list[Broken] = field(default_factory=list)
    summaries: dict[str, tuple[str, Any]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    logs: list[Path] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    bytes_read: int = 0


def survey(tree: str | Path) -> Found:
    """Reads what a tree, or one file of a rank, holds. RequestError where there is no such place, or too much in it."""
    name = pipes.readable(str(tree))
    pipes.refuse_to_read(name)
    root, found = Path(name), Found(name)
    try:
        there = root.exists()
    except (OSError, ValueError):
        there = False
    if not there:
        raise RequestError(str(tree), "there is no such folder", "the folder above option_1, or one kvcache_results_*.json")
    for path in walk(root):
        name = path.name
        if path == root or RESULT.fullmatch(name):
            _read_rank(path, place_of(path, root), found)
        elif SUMMARY.fullmatch(name) or METADATA.fullmatch(name) or name == OWN:
            _read_other(path, root, found)
        elif LOG.fullmatch(name):
            found.logs.append(path)
        elif path.suffix.lower() in DESCRIBES:
            found.others.append(path)
    return found


def walk(root: Path) -> Iterator[Path]:
    """Files below a folder by their paths; links to folders aren't followed."""
    if not root.is_dir():
        yield root
        return
    seen = 0
    for at, folders, files in os.walk(root):
        folders.sort()
        seen += len(files) + len(folders)
        if seen > ENTRIES_MAX:
            raise RequestError(str(root), f"holds more than {ENTRIES_MAX:,} files", "the folder that holds only the results")
        yield from (Path(at, name) for name in sorted(files))


def place_of(path: Path, root: Path) -> FilePlace:
    """Option, trial and rank by the names of the folders: those below the tree, and the tree's own."""
    below = path.relative_to(root).parts[:-1] if path != root else ()
    own = Path(os.path.abspath(root if path != root else root.parent)).parts[-len(LEVELS) :]
    numbers: dict[str, int | None] = dict.fromkeys(LEVELS)
    run: list[str] = []
    for part in (*(p for p in own if _level(p)), *below):
        if level := _level(part):
            numbers[level[0]] = level[1]
        elif not any(n is not None for n in numbers.values()):
            run.append(part)
    stamp = STAMP.search(path.name)
    place = "/".join((*below, path.name))
    found = stamp[1] if stamp else None
    return FilePlace(path, place, "/".join(run), numbers["option"], numbers["trial"], numbers["rank"], found)


def _level(part: str) -> tuple[str, int] | None:
    """`trial_2` → ("trial", 2)."""
    for name, known in LEVELS.items():
        if match := known.fullmatch(part):
            return name, int(match[1])
    return None


def _read_rank(path: Path, place: FilePlace, found: Found) -> None:
    try:
        document = load(path, found)
        if not isinstance(document, dict):
            raise Damaged("is no object")
        longest = {key: value for key in LISTS if (value := _longest(document, key)) is not None}
        kept = {key: value for key, value in document.items() if key == "summary" or not isinstance(value, list)}
        found.files.append(RankFile(**vars(place), document=kept, longest_s=longest))
    except Damaged as damage:
        found.damaged.append(Broken(**vars(place), why=str(damage)))


def _longest(document: Mapping[str, Any], key: str) -> float | None:
    values = document.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or not all(is_number(v) and v >= 0 for v in values):
        raise Damaged(f"{key} isn't a list of seconds")
    return float(max(values)) if values else None


def _read_other(path: Path, root: Path, found: Found) -> None:
    place = "/".join(path.relative_to(root).parts)
    above = "/".join(path.relative_to(root).parts[:-1])
    try:
        document = load(path, found)
        if not isinstance(document, dict):
            raise Damaged("is no object")
    except Damaged as damage:
        found.skipped.append((place, str(damage)))
        return
    if METADATA.fullmatch(path.name):
        found.metadata.setdefault(above, document)
    elif path.name == OWN:
        found.own.setdefault(above, document)
    elif "options" in document or any(path.parent.glob("option_*")):
        # Results of other workloads have a summary.json, too.
        found.summaries.setdefault(above, (place, document))


def load(path: Path, found: Found | None = None) -> Any:
    """A JSON document, unpacked if its name ends in .gz. Damaged says why there is none. `found` counts what was read."""
    data = read(path, FILE_BYTES_MAX)
    if found is not None:
        found.bytes_read += len(data)
        if found.bytes_read > ALL_BYTES_MAX:
            raise Damaged(f"comes after {ALL_BYTES_MAX >> 20} MiB of others")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise Damaged("is nested too deeply") from None
    except (ValueError, MemoryError) as error:
        raise Damaged(f"isn't JSON: {str(error)[:120]}") from None


def read(path: Path, most: int) -> bytes:
    """The bytes of a regular file, or of what the shell opened; of more than `most`, Damaged."""
    try:
        if pipes.descriptor_of(path) is None and not stat.S_ISREG(os.stat(path).st_mode):
            raise Damaged("isn't a regular file")
        with open(path, "rb") as file:
            data = gzip.GzipFile(fileobj=file).read(most + 1) if path.suffix == ".gz" else pipes.up_to(file, most)
    except (OSError, EOFError, zlib.error) as error:
        raise Damaged(f"can't be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > most:
        raise Damaged(f"is larger than {most >> 20} MiB")
    return data


def slots(found: Found, run: str = "") -> tuple[int, dict[int, list[list[Slot]]]]:
    """Number of ranks, and trials by option, of one run. Numbers are counted through; of several files of a rank the last is it.

    RequestError where that makes more than a result can have.
    """
    known: dict[tuple[int, int, int], Slot] = {}
    for place in (*found.damaged, *found.files):
        if place.run == run and place.option is not None and place.trial is not None and place.rank is not None:
            document = place.document if isinstance(place, RankFile) else None
            known[place.option, place.trial, place.rank] = Slot(place.place, document)
    ranks = 1 + max((rank for _, _, rank in known), default=-1)
    trials = {option: 1 + max(t for o, t, _ in known if o == option) for option in sorted({o for o, _, _ in known})}
    if ranks * sum(trials.values()) > SLOTS_MAX:
        reported = f"has ranks up to {ranks - 1} and trials up to {max(trials.values()) - 1}"
        raise RequestError(found.tree, reported, "the folder that holds only the results")

    def slot(option: int, trial: int, rank: int) -> Slot:
        folder = f"option_{option}/trial_{trial}/rank_{rank}"
        return known.get((option, trial, rank), Slot(f"{run}/{folder}" if run else folder))

    return ranks, {o: [[slot(o, t, r) for r in range(ranks)] for t in range(n)] for o, n in trials.items()}


def is_summary(place: str, runs: Collection[str]) -> bool:
    """Returns whether a file is the summary of one of these runs: other workloads' have the same name."""
    above, _, name = place.rpartition("/")
    return above in runs and SUMMARY.fullmatch(name) is not None


def began(stamp: str | None) -> float | None:
    """Seconds since 1970 of a stamp in a file's name, which is in the local time of the machine that made it."""
    try:
        return datetime.strptime(stamp or "", "%Y%m%d_%H%M%S").timestamp()
    except (ValueError, OverflowError, OSError):
        return None
