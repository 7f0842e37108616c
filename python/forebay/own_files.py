"""Files that a verb creates for measurements: in a separate folder, never among the user's.

A sweep that gives sizes, and tune, make their files. In a folder DIR these lie in DIR/NAME, where `bench DIR` doesn't
count them as data. A job that says `create` or `file_name` itself is left as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay import run as engine
from forebay.errors import RequestError
from forebay.uri import parsed

Job = dict[str, Any]
SWEEP, TUNE = "forebay-sweep", "forebay-tune"
# The engine leaves folders of these names out where it looks for data (opening/found.rs).
NAMES = (SWEEP, TUNE)


def named(job: Job) -> list[str]:
    """The sources that the job names, those of its pairs among them."""
    return [*(job.get("sources") or ()), *(p.partition("=")[2] for p in job.get("pairs") or ())]


def wanted(job: Job) -> bool:
    """Returns whether the job is to have files made: it gives their size or number, and all sources can hold some."""
    sources = named(job)
    return (
        ("file_bytes" in job or "files" in job)
        and not {"create", "file_name"} & job.keys()
        and any(is_folder(s) for s in sources)
        and all(_placeless(s) or is_folder(s) for s in sources)
    )


def placed(job: Job, folder: str) -> Job:
    """The job with its files in `folder` below each of its sources; itself where it isn't to have any made."""
    if not wanted(job):
        return job

    def moved(source: str) -> str:
        return source if _placeless(source) else f"{source.rstrip('/')}/{folder}"

    there = {**job, "create": True}
    if job.get("sources"):
        there["sources"] = [moved(s) for s in job["sources"]]
    if job.get("pairs"):
        there["pairs"] = [f"{gpu}={moved(source)}" for gpu, _, source in (p.partition("=") for p in job["pairs"])]
    return there


def looked_at(job: Job, folder: str) -> Job:
    """As `placed`, for a plan, which makes no folder: one that isn't there yet is as empty as a new one."""
    there = placed(job, folder)
    if all(_placeless(s) or is_folder(s) for s in named(there)):
        return there
    return {**job, "create": True}


def run(
    job: Job, folder: str | None, observer: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Runs the job on files in `folder` (None: where the job says). A folder in which nothing was made is removed."""
    mine = placed(job, folder) if folder else job
    homes = [home for s in named(mine) if mine.get("create") and (home := path_of(s))]
    made: dict[Path, tuple[int, int]] = {}
    try:
        for home in homes:
            if home.name in NAMES and home.parent.is_dir() and (identity := _make(home)):
                made[home] = identity
        return engine.run(mine, observer=observer)
    finally:
        for home, identity in made.items():
            with contextlib.suppress(OSError):
                if _identity(home) == identity:
                    home.rmdir()


def _placeless(source: str) -> bool:
    """Returns whether it has no files: what moves no bytes, and what only paces another source."""
    return parsed(source).has_no_files


def path_of(source: str) -> Path | None:
    """The file or folder that it is, if any."""
    return parsed(source).path


def is_folder(source: str) -> bool:
    path = path_of(source)
    return path is not None and path.is_dir()


def _identity(folder: Path) -> tuple[int, int]:
    """Device and inode of what has the name; OSError where nothing has it."""
    found = folder.lstat()
    return found.st_dev, found.st_ino


def _make(home: Path) -> tuple[int, int] | None:
    """Makes the folder and says which one it is; None where somebody else's is there, which isn't ours to remove."""
    try:
        home.mkdir()
        return _identity(home)
    except FileExistsError:
        if home.is_dir():
            return None
        raise RequestError(f"create {home}", "something that isn't a folder has that name", f"ls -ld {home}") from None
    except OSError as error:
        raise RequestError(f"create {home}", str(error.strerror), "a folder that you can write to, or a file") from error
