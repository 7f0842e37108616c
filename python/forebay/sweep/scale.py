"""Scaling a sweep to this machine: the changes, as text for each record."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forebay import flags, own_files
from forebay import run as engine
from forebay.errors import ForebayError, MachineError, RequestError
from forebay.sweep.file import Sweep
from forebay.sweep.points import canonical
from forebay.units import format_bytes
from forebay.uri import Uri, parsed

WORKERS_PER_CORE_MAX = 8
# Of the space that is free, what a sweep may fill.
FILL = 0.5
DURATION_S_MIN = 0.2
FILE_BYTES_STEP = 1 << 20
# Opening files, allocating slots, reading meters: a guess until runs have been timed.
OVERHEAD_S = 0.5


@dataclass(frozen=True)
class Scale:
    """Factors of file sizes and durations, and the most workers. The default changes nothing."""

    files: float = 1.0
    duration: float = 1.0
    workers_max: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_scale(text: str) -> float | None:
    """`auto` → None; `0.01` or `1%` → the factor."""
    if text == "auto":
        return None
    try:
        factor = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise RequestError(
            f"--scale {text}", "is neither a number nor auto", "--scale 0.01, or --scale auto"
        ) from None
    if not 0 < factor <= 1:
        raise RequestError(f"--scale {text}", "must be above 0 and at most 1", "--scale 0.01")
    return factor


def choose(jobs: list[dict[str, Any]], asked: float | None, seconds_max: float | None, rounds: int) -> Scale:
    """The scale for these jobs here. `asked` None is auto: what this machine carries, in full time.

    1 leaves files and workers alone; a lesser factor applies to file sizes and durations, and
    workers are bounded as by auto. `seconds_max` shortens all durations alike until the sweep fits.
    """
    files, duration = (_fitting(jobs), 1.0) if asked is None else (asked, asked)
    workers_max = None if asked == 1.0 else WORKERS_PER_CORE_MAX * len(os.sched_getaffinity(0))
    if seconds_max is not None:
        fixed = rounds * sum(seconds_of({**j, "duration_s": 0.0, "warmup_s": 0.0}) for j in jobs)
        moving = rounds * sum(seconds_of({k: v for k, v in j.items()}, duration) for j in jobs) - fixed
        if seconds_max <= fixed:
            raise RequestError(
                f"--max-time {seconds_max:g}",
                f"{rounds * len(jobs)} runs take {fixed:.0f} s just to start",
                f"--max-time {fixed * 3:.0f}s",
            )
        if moving > 0:
            duration *= min(1.0, (seconds_max - fixed) / moving)
    return Scale(files, duration, workers_max)


def ended_by_count(job: dict[str, Any]) -> bool:
    """Returns whether so many bytes or I/Os end a run of it, whatever time that takes."""
    return job.get("duration_s") is None and any(job.get(key) is not None for key in flags.counted())


def seconds_of(job: dict[str, Any], factor: float = 1.0) -> float:
    """Returns the duration of a run, but for files it has to make."""
    if ended_by_count(job):
        return OVERHEAD_S
    duration = factor * (job["duration_s"] if job.get("duration_s") is not None else flags.duration_default_s())
    warmup = job["warmup_s"] if job.get("warmup_s") is not None else min(2.0, duration / 10)
    return (duration + warmup) * job.get("repeat", 1) + OVERHEAD_S


def apply(job: dict[str, Any], scale: Scale) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The job to run, and what was changed: ('workers 96 → 16', 'file-size 2g → 64m')."""
    job, changes = dict(job), []
    workers = counted(job)
    if scale.workers_max is not None and workers > scale.workers_max:
        pairs = len(job.get("pairs") or [1])
        job["workers"] = max(scale.workers_max // pairs, 1) * pairs
        changes.append(f"workers {workers} → {job['workers']}")
    size = job.get("file_bytes")
    if scale.files < 1 and size is not None:
        unit = max(FILE_BYTES_STEP, job.get("io_bytes_max") or job.get("io_bytes", 1 << 20))
        job["file_bytes"] = min(size, max(4 * unit, int(size * scale.files) // unit * unit))
        if job["file_bytes"] != size:
            changes.append(f"file-size {format_bytes(size)} → {format_bytes(job['file_bytes'])}")
    if scale.duration < 1 and not ended_by_count(job):
        duration = job["duration_s"] if job.get("duration_s") is not None else flags.duration_default_s()
        job["duration_s"] = round(min(duration, max(DURATION_S_MIN, duration * scale.duration)), 3)
        if job["duration_s"] != duration:
            changes.append(f"duration {duration:g} s → {job['duration_s']:g} s")
    return job, tuple(changes)


def counted(job: dict[str, Any]) -> int:
    """Workers as far as they are counted; one where a calibration finds them."""
    workers = job.get("workers", 1)
    return workers if isinstance(workers, int) else 1


def _fitting(jobs: list[dict[str, Any]]) -> float:
    """The factor of file sizes with which the largest point's files fill half of the free space at most."""
    factor = 1.0
    workers_max = WORKERS_PER_CORE_MAX * len(os.sched_getaffinity(0))
    for job in jobs:
        folders = [f for f in map(folder_of, own_files.named(job)) if f is not None]
        size = job.get("file_bytes")
        if not folders or size is None:
            continue
        files = job.get("files") or min(counted(job), workers_max)
        for folder, targets in {f: folders.count(f) for f in folders}.items():
            home = folder / own_files.SWEEP if own_files.wanted(job) else folder
            room = FILL * room_in(home, job.get("file_name", "forebay.%d"))
            factor = min(factor, room / (size * files * targets))
    return factor


def folder_of(source: str) -> Path | None:
    """The folder that files of this source would be made in; None for what makes no files."""
    return _folder_in(parsed(source))


def _folder_in(source: Uri) -> Path | None:
    if source.path is not None:
        return source.path if source.path.is_dir() else None
    # What a model has its content from is only read.
    members = source.parts if source.is_striped else ()
    return next((folder for member in members if (folder := _folder_in(member))), None)


def room_in(folder: Path, file_name: str) -> int:
    """Free bytes, and those that an earlier run's files of this name hold."""
    try:
        held = sum(f.stat().st_size for f in folder.glob(file_name.replace("%d", "[0-9]*")))
        # A folder that is yet to be made will lie in its parent's file system.
        return shutil.disk_usage(folder if folder.exists() else folder.parent).free + held
    except OSError as error:
        raise MachineError(
            str(folder), f"can't be read: {error.strerror}", "another folder"
        ) from error


def find_fallbacks(jobs: list[dict[str, Any]], sweep: Sweep) -> dict[str, str]:
    """Path → why it can't run here, for paths of the sweep that have a fallback that can."""
    reasons: dict[str, str] = {}
    for path, instead in sweep.fallback.items():
        first = next((j for j in jobs if j.get("path") == path), None)
        if first is None:
            continue
        reason = _refusal(first)
        if reason is not None and any(_refusal({**first, "path": p}) is None for p in instead):
            reasons[path] = reason
    return reasons


def find_refused(jobs: list[tuple[dict[str, Any], tuple[str, ...]]]) -> dict[str, str]:
    """Path → what this machine lacks for it, of jobs that nothing stands in for."""
    first = {job.get("path"): job for job, _ in reversed(jobs)}
    return {path: reason for path, job in first.items() if path and (reason := engine.lacks(job)) is not None}


def _refusal(job: dict[str, Any]) -> str | None:
    """Why this machine can't run the job's path; None where it can, or where the path isn't what is wrong."""
    if (lacking := engine.lacks(job)) is not None:
        return lacking
    try:
        engine.plan(own_files.looked_at(job, own_files.SWEEP))
    except MachineError as error:
        return f"{error.asked}: {error.found}"
    except ForebayError:
        return None
    return None


def fall_back(
    jobs: list[tuple[dict[str, Any], tuple[str, ...]]], sweep: Sweep, reasons: dict[str, str]
) -> tuple[list[tuple[dict[str, Any], tuple[str, ...]]], list[str]]:
    """The jobs with paths that can run here, and what was dropped since another point does the same."""
    taken = {canonical(job) for job, _ in jobs}
    kept, dropped = [], []
    for job, changes in jobs:
        path = job.get("path", "")
        if path not in reasons:
            kept.append((job, changes))
            continue
        options = [{**job, "path": p} for p in sweep.fallback[path] if p not in reasons]
        free = next((o for o in options if canonical(o) not in taken), None)
        if free is None:
            dropped.append(f"path={path} io-size={format_bytes(job.get('io_bytes', 1 << 20))}")
            continue
        taken.add(canonical(free))
        kept.append((free, (*changes, f"path {path} → {free['path']} ({reasons[path]})")))
    return kept, dropped
