"""One job through the engine: the entry point that every verb uses and tests replace."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from forebay.errors import RequestError
from forebay.paths import abilities
from forebay.uri import parsed

Job = dict[str, Any]
Record = dict[str, Any]
Progress = dict[str, Any]
_RECORD = re.compile(rb'[\s\[]*\{\s*"schema": *"forebay\.[a-z-]+/[0-9]')
# No job file of fio's is larger.
JOB_FILE_BYTES_MAX = 1 << 20


def run(job: Job, *, observer: Callable[[Progress], None] | None = None, command: list[str] | None = None) -> Record:
    """Runs `job` (JobSpec's fields; absent ones take their defaults) and returns its RunRecord.

    Raises RequestError, MachineError or RunError. When interrupted it returns what was measured, with
    record["result"]["interrupted"] true. `observer` gets Progress dicts about four times a second;
    one that takes longer holds nothing up, and gets the latest alone.
    """
    from forebay import _core

    def relay(text: str) -> None:
        if observer is not None:
            observer(json.loads(text))

    return json.loads(_core.run(json.dumps(job), command if command is not None else typed(), relay))


def plan(job: Job) -> dict[str, Any]:
    """Returns the plan of `run`, without touching anything."""
    from forebay import _core

    return json.loads(_core.plan(json.dumps(job)))


def refuse_job_file(source: str) -> None:
    """RequestError for a job file of fio's, or records of runs, in the place of data."""
    try:
        if not os.path.isfile(source) or os.path.getsize(source) > JOB_FILE_BYTES_MAX:
            return
        with open(source, "rb") as file:
            lines = [line.strip() for line in file.read().splitlines()]
    except (OSError, ValueError):  # whoever opens it says why
        return
    if lines and _RECORD.match(b" ".join(lines[:3])):
        raise RequestError(f"SOURCE {source}", "holds results of Forebay's, and no data", f"forebay report {source}")
    first = next((line for line in lines if line and line[:1] not in (b";", b"#")), b"")
    if first.startswith(b"[") and first.endswith(b"]") and any(b"=" in line for line in lines):
        said = f"is a job file of fio's, of {os.path.getsize(source)} bytes, and no data"
        raise RequestError(f"SOURCE {source}", said, f"forebay bench --fio {source}")


def readable(source: str) -> None:
    """Raises RequestError for a file that no job could read; folders, and what isn't a path, aren't looked into."""
    refuse_job_file(source)
    path = parsed(source).path
    if path is not None and not path.is_dir():
        try:
            plan({"sources": [source], "path": "host", "cache": "allow"})
        except RequestError as error:  # flags of bench, which have a file made, are none of everybody's
            raise RequestError(error.asked, error.found, error.next.partition(", or --create")[0]) from None


@cache
def tables() -> dict[str, Any]:
    """The engine's tables: `sources`, `paths`, the job's `fields`, and `duration_default_s`."""
    from forebay import _core

    return json.loads(_core.tables())


def paths() -> tuple[str, ...]:
    """Names of the data paths, in the order of the engine's table."""
    return tuple(path["name"] for path in tables()["paths"])


def gpu_paths() -> tuple[str, ...]:
    """Names of the paths that lead to a GPU, and `auto`, which finds one."""
    return ("auto", *(path["name"] for path in tables()["paths"] if path["into_gpu"]))


def lacks(job: Job) -> str | None:
    """The lack of a GPU or a library without which no job can go by its path, in words; None where none is known.

    Whether a certain source can be read by it only `plan` and a run tell.
    """
    path = job.get("path") or ""
    if not abilities(path).needs_gpu:
        return None
    verdict = _verdicts()[path]
    if "both" not in verdict:
        return verdict["because"]
    # A network card writes into GPUs without cuFile.
    sources = job.get("sources")
    by_card = bool(sources) and all(parsed(source).made_of == "card" for source in sources or ())
    ids = ("gpu", "libcuda") if by_card else ("gpu", "libcuda", "library")
    return next((row["because"] for row in verdict["both"] if row["id"] in ids), None)


def no_gpu() -> str | None:
    """The reason why no GPU can be used here, in words; None where one can."""
    return next((row["because"] for row in _verdicts()["gds"]["both"] if row["id"] in ("gpu", "libcuda")), None)


@cache
def _verdicts() -> dict[str, Any]:
    from forebay import _core

    return json.loads(_core.doctor(None))["verdicts"]


def check(job: Job) -> Job:
    """`job` with its defaults. Raises RequestError for what can't be right on any machine."""
    from forebay import _core

    return json.loads(_core.check(json.dumps(job)))


def typed() -> list[str]:
    """The command line as the user typed it."""
    return ["forebay", *sys.argv[1:]]
