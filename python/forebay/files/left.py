"""Folders that runs of `forebay files` left which were killed: found by their name, dead by their lock, and removed by
what such a run makes, file by file, so that whatever else lies in one stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forebay.errors import RunError
from forebay.uri import parsed

_FOLDER = re.compile(r"forebay-files-[0-9a-f]{16}")
_INNER, _FILE = re.compile(r"d\d{4,}"), re.compile(r"f\d{8,}")


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Yields whether no run has the folder, which none can take while this lasts."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(descriptor)


def found(directory: str | os.PathLike[str]) -> list[Path]:
    """The folders in `directory` that no run has any more, by name."""
    try:
        names = [e.name for e in os.scandir(directory) if _FOLDER.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    left = []
    for name in sorted(names):
        with _held(Path(directory) / name) as free:
            if free:
                left.append(Path(directory) / name)
    return left


def remove(folder: Path) -> int:
    """Removes the folder with the files of the run, and says how many those were. RunError where something else is in it."""
    count = 0
    with _held(folder) as free:
        if not free:
            return 0
        try:
            for inner in _matching(folder, _INNER):
                for file in _matching(inner, _FILE):
                    if file.is_file() and not file.is_symlink():
                        file.unlink()
                        count += 1
                inner.rmdir()
            folder.rmdir()
        except OSError as error:
            raise RunError(f"remove {folder}", f"{error.strerror}: {error.filename}", f"ls -lR {folder}") from error
    return count


def _matching(folder: Path, name: re.Pattern[str]) -> list[Path]:
    return [Path(entry.path) for entry in os.scandir(folder) if name.fullmatch(entry.name)]


def check(source: str) -> dict[str, Any] | None:
    """A line of doctor's about the folder that SOURCE is; None where it is none, or nothing was left in it."""
    directory = parsed(source).path
    left = found(str(directory)) if directory is not None else []
    if not left:
        return None
    names = ", ".join(folder.name for folder in left[:3]) + (" …" if len(left) > 3 else "")
    return {
        "id": "filesystem.files_left",
        "area": "filesystem",
        "title": "left behind",
        "state": "limited",
        "found": f"{len(left)} of forebay files: {names}",
        "why": "a run was killed before it could remove its files",
        "next": f"forebay files {directory} --clean",
    }
