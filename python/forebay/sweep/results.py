"""The file of a sweep's results: one JSON line per finished point, after a line that says what the sweep is.

A line is on disk before the next point starts. The file belongs to one sweep at a time. What can't be
read back is put aside, never thrown away, and never in the way of the good lines.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay import pipes
from forebay.bench.save import unwritable
from forebay.errors import RequestError, RunError
from forebay.sweep.points import odd_field

HEADER = "forebay.sweep/1"
POINT = "forebay.point/1"
LINE_BYTES_MAX = 64 << 20
# How a line of ours begins, also where another program wrote it anew, with its own spaces.
_OURS = re.compile(rb'\s*\{\s*"schema"\s*:\s*"forebay\.(?:sweep|point)/')


@dataclass
class Contents:
    """Content of a file of results. `headers`: oldest first. `damaged`: (line number, what is wrong)."""

    headers: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[tuple[int, str]] = field(default_factory=list)
    # Some line, damaged or not, began as ours do.
    ours: bool = False

    def finished(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(key, round) → the line of each point that was measured to its end."""
        return {
            (p["key"], p.get("round", 0)): p for p in self.lines if "record" in p and not p.get("partial")
        }


def read_line(raw: bytes) -> dict[str, Any]:
    """One line of the file. Raises ValueError saying what is wrong with it."""
    if len(raw) > LINE_BYTES_MAX:
        raise ValueError("is longer than 64 MiB")
    try:
        line = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({type(error).__name__})") from error
    if not isinstance(line, dict) or line.get("schema") not in (HEADER, POINT):
        raise ValueError(f"is neither {HEADER} nor {POINT}")
    if line["schema"] == HEADER:
        if not isinstance(line.get("definition"), dict) or not isinstance(line.get("frozen"), dict):
            raise ValueError("is a header without a definition")
        if not _whole(line["definition"], line["frozen"]):
            raise ValueError("is a header whose definition is damaged")
        return line
    if not isinstance(line.get("key"), str) or not isinstance(line.get("round", 0), int):
        raise ValueError("is a point without a key")
    if not isinstance(line.get("point"), dict):
        raise ValueError("is a point without its job")
    record = line.get("record")
    if "error" not in line and not (isinstance(record, dict) and isinstance(record.get("result"), dict)):
        raise ValueError("is a point without a result")
    damaged = odd_field(line["point"])
    if damaged is not None or not isinstance(line.get("error", {}), dict):
        raise ValueError(f"is a point with a damaged '{damaged or 'error'}'")
    if record is not None and not isinstance(record.get("path", {}), dict):
        raise ValueError("is a point with a damaged 'path'")
    return line


def _whole(definition: dict[str, Any], frozen: dict[str, Any]) -> bool:
    """Returns whether the parts of a header that a continued sweep goes by are there, or absent as another verb leaves them."""
    points = definition.get("points", [])
    if not isinstance(points, list) or not all(isinstance(p, dict) and odd_field(p) is None for p in points):
        return False
    scale, fallbacks = frozen.get("scale", {}), frozen.get("fallbacks", {})
    if not isinstance(fallbacks, dict) or not isinstance(scale, dict) or set(scale) - {"files", "duration", "workers_max"}:
        return False
    numbers = [v for k, v in scale.items() if not (k == "workers_max" and v is None)]
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < 1e9 for v in numbers)


def read(path: Path) -> Contents:
    """Everything in the file that can be read. Raises RequestError where it can't be opened."""
    contents = Contents()
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(_bounded_lines(file), 1):
                if raw.strip():
                    _sort_in(contents, number, raw)
    except OSError as error:
        raise RequestError(
            str(path), f"can't be read: {error.strerror}", "a file that forebay sweep wrote"
        ) from error
    return contents


def _sort_in(contents: Contents, number: int, raw: bytes) -> None:
    contents.ours = contents.ours or _OURS.match(raw) is not None
    try:
        line = read_line(raw)
    except ValueError as error:
        contents.damaged.append((number, str(error)))
        return
    contents.ours = True
    (contents.headers if line["schema"] == HEADER else contents.lines).append(line)


def _bounded_lines(file: Any) -> Any:
    """Lines; one that is longer than any good line comes in pieces, each of which is damaged."""
    while raw := file.readline(LINE_BYTES_MAX + 2):
        yield raw


def refuse_others(path: Path) -> None:
    """RequestError where the name has something that isn't a file of results: asked before the first of several is opened."""
    asked = f"-o {path}"
    pipes.refuse_dash(path, asked, "--json for the summary on standard output")
    pipes.refuse_to_write(path, asked)
    if pipes.descriptor_of(path) is not None or (path.exists() and not path.is_file()):
        found = "isn't a regular file, and an unfinished sweep is continued from its file"
        raise RequestError(asked, found, "-o FILE.jsonl")
    contents = read(path) if path.exists() else Contents()
    if contents.damaged and not contents.ours:
        raise RequestError(asked, "is not a file of sweep results", "-o another file")


class Results:
    """The open file, locked. Use as a context manager; a second sweep on the same file is refused."""

    def __init__(self, path: Path) -> None:
        refuse_others(path)
        # What is put in its place later is put where the link leads.
        self.path = Path(os.path.realpath(path)) if path.is_symlink() else path
        # An empty file that is there is somebody's; one that we make and leave empty isn't.
        self._was_there = path.exists()
        # Every point was refused: said on the terminal, and a file of refusals would only be in the way of the next sweep.
        self.nothing_measured = False
        self._file = self._locked()
        try:
            self.contents = read(self.path)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        # A sweep that ended before its first line leaves nothing behind.
        if self.path.exists() and (self.leaves_nothing or (not self._was_there and self.path.stat().st_size == 0)):
            self.path.unlink()

    @property
    def leaves_nothing(self) -> bool:
        return self.nothing_measured and not self._was_there

    def _locked(self) -> Any:
        """Opens and locks; again where the file was replaced between the two."""
        while True:
            try:
                file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the sweep
            except OSError as error:
                raise unwritable(f"-o {self.path}", error) from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise RequestError(
                    f"-o {self.path}", "another sweep is writing it", "-o another file, or wait"
                ) from None
            try:
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                    return file
            except FileNotFoundError:
                pass
            file.close()

    def append(self, line: dict[str, Any]) -> None:
        """Adds one line, and returns once it is on disk."""
        self._write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        if line["schema"] == HEADER:
            self.contents.headers.append(line)
        else:
            self.contents.lines.append(line)

    def _write(self, raw: bytes) -> None:
        """All of it, on disk; or none of it, where the disk takes no more."""
        before = os.fstat(self._file.fileno()).st_size
        try:
            rest = memoryview(raw)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            os.ftruncate(self._file.fileno(), before)
            found = f"can't be written: {error.strerror}; the points before this one are there"
            raise RunError(f"-o {self.path}", found, "make room, then the same command") from error

    def put_damage_aside(self) -> Path | None:
        """Copies damaged lines to FILE.damaged, or the first FILE.damaged.N that is free, then replaces the file by its good
        lines. None: no damage."""
        if not self.contents.damaged:
            return None
        numbers = {number for number, _ in self.contents.damaged}
        aside = self._free_name(".damaged")
        handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        with self.path.open("rb") as old, aside.open("xb") as bad, os.fdopen(handle, "wb") as good:
            for number, raw in enumerate(_bounded_lines(old), 1):
                (bad if number in numbers else good).write(raw if raw.endswith(b"\n") else raw + b"\n")
            for file in (bad, good):
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, os.stat(self.path).st_mode & 0o777)
        self._replace(temporary)
        return aside

    def _free_name(self, suffix: str) -> Path:
        """The first of FILE`suffix`, FILE`suffix`.1, … that nothing has. Without a suffix, the first is FILE.1."""
        names = (self.path.with_name(f"{self.path.name}{suffix}{f'.{n}' if n else ''}") for n in range(100_000))
        return next(name for name in names if not os.path.lexists(name))

    def mend_end(self) -> None:
        """A good last line without its newline gets one, so that the next line stands alone."""
        size = self.path.stat().st_size
        if size:
            with self.path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    self._write(b"\n")

    def restart(self) -> Path:
        """Moves what is there aside, and begins anew. Returns where the old lines are now."""
        aside = self._free_name("")
        handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        os.close(handle)
        os.chmod(temporary, 0o644)
        try:
            os.link(self.path, aside)
        except OSError:  # a file system without links
            os.rename(self.path, aside)
        self._replace(temporary)
        self.contents = Contents()
        return aside

    def _replace(self, temporary: str) -> None:
        """Puts another file in our place; it is locked before it can be seen."""
        file = open(temporary, "ab", buffering=0)  # noqa: SIM115 - lives as long as the sweep
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(temporary, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        self._file.close()
        self._file = file
