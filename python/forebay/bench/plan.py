"""Output of `--dry-run`: the engine's plan as lines that a user can check before anything happens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from forebay import flags, numbers
from forebay import run as engine
from forebay.bench import summary
from forebay.bench.summary import LABEL
from forebay.errors import RequestError
from forebay.flags import engine_name
from forebay.numbers import bytes_
from forebay.units import format_bytes

if TYPE_CHECKING:
    from forebay.bench.verb import Task

NOTHING = "nothing was changed (--dry-run)"
LISTED = 12


def in_turn(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """The engine's plan of each task, as it will be when those before it have made their files."""
    makers: dict[str, str] = {}
    plans = []
    for task in tasks:
        plan = _behind(makers, task)
        for path in plan["files_to_make"]:
            makers[os.path.realpath(path)] = task.name
        plans.append(plan)
    return plans


def _behind(makers: dict[str, str], task: Task) -> dict[str, Any]:
    """The plan of `task` when the files of `makers` are there, each by its path and the name of the task that makes it."""
    try:
        plan = engine.plan(task.job)
    except RequestError:
        made = _with_files(task.job) if makers else None
        if made is None or not all(os.path.realpath(path) in makers for path in made["files_to_make"]):
            raise
        plan = made
    plan["files_to_make"] = [path for path in plan["files_to_make"] if os.path.realpath(path) not in makers]
    for target in plan["targets"]:
        maker = makers.get(os.path.realpath(target["path"])) if target.get("path") else None
        if maker and target.get("action") == "make":
            target.update(action="use", made_by=maker)
    return plan


def _with_files(job: dict[str, Any]) -> dict[str, Any] | None:
    """The plan of `job` if it might make the files that it lacks; None where that isn't what is wrong with it."""
    try:
        plan = engine.plan({**job, "create": True})
    except RequestError:
        return None
    plan["job"]["create"] = bool(job.get("create"))
    return plan


def text(plan: dict[str, Any]) -> str:
    """The plan: the job, its targets, the files that would be made or overwritten, the memory needed."""
    return "\n".join([*(f"{label:<{LABEL}}{line}" for label, line in _lines(plan)), NOTHING])


def _lines(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    job = {**plan["job"], "data_bytes": plan["data_bytes"]}
    yield "job", summary.job({**job, "source": " ".join(job["sources"] or job.get("pairs") or []), "pattern": ""})
    yield "path", _path(plan) + (" · simulated in virtual time" if plan.get("virtual_time") else "")
    yield "engine", _engine(job)
    yield "length", length(job)
    yield from _listed("target", [target(t) for t in plan["targets"]])
    yield from _listed("make", plan["files_to_make"] or ["no file"])
    yield from _listed("overwrite", plan["files_to_overwrite"] or ["no file"])
    yield "memory", _memory(plan, job["pages"])


def _path(plan: dict[str, Any]) -> str:
    """`gds`; `auto: gds, mapped or bounce, as found when it runs`."""
    *others, last = plan.get("paths") or [plan["path"]]
    return f"{plan['path']}: {', '.join(others)} or {last}, decided when it runs" if others else str(last)


def _memory(plan: dict[str, Any], pages: str) -> str:
    """Slots that the workers make, in host memory and in that of GPUs."""
    host, gpu = plan["buffer_bytes"], plan.get("gpu_buffer_bytes", 0)
    words = [f"at most {bytes_(host)} of buffers, in {pages} pages"] if host else []
    words += [f"{'' if host else 'at most '}{bytes_(gpu)} of buffers in GPU memory"] if gpu else []
    return "; ".join(words) or "no buffers: no data is moved"


def _engine(job: dict[str, Any]) -> str:
    polled = [name for name in ("sqpoll", "iopoll") if job.get(name)]
    return ", ".join([f"{engine_name(job['engine'])}, page cache: {job['cache']}", *polled])


def length(job: dict[str, Any]) -> str:
    """Describes how long a run would measure, and how often."""
    if job.get("passes"):
        measured = f"{numbers.count(job['passes'], 'pass').replace('passs', 'passes')} over the data"
        if job.get("duration_s"):
            measured += f", {numbers.seconds(job['duration_s'])} at most"
    elif job.get("limit_bytes") or job.get("limit_ios"):
        limits = [format_bytes(job["limit_bytes"])] if job.get("limit_bytes") else []
        limits += [f"{job['limit_ios']:,} I/Os"] if job.get("limit_ios") else []
        measured = f"{' or '.join(limits)} by each worker"
    else:
        measured = numbers.seconds(job.get("duration_s") or flags.duration_default_s())
    if job.get("until_steady"):
        measured += " or until steady"
    if job.get("until_ci_pct"):
        until = (
            f"until the 95 % interval is within {job['until_ci_pct']:g} %, {job['repeat_max']} times at most"
        )
        return f"{measured}, {until}"
    return measured if job["repeat"] == 1 else f"{measured}, {job['repeat']} times"


def target(found: dict[str, Any]) -> str:
    """`/data/forebay.0, 1 GiB, to be made`."""
    words = [str(found.get("label") or found.get("path")), bytes_(found["bytes"])]
    if found.get("made_by"):
        words.append(f"to be created by [{found['made_by']}]")
    elif found.get("action") == "make":
        words.append("to be created")
    elif found["kind"] == "file":
        words.append(
            "a block device"
            if found.get("is_device")
            else "exists" + (", created by Forebay" if found["ours"] else "")
        )
    return ", ".join(words)


def _listed(label: str, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines[:LISTED]:
        yield label, line
    if len(lines) > LISTED:
        yield label, f"and {len(lines) - LISTED} more"
