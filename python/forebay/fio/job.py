"""A section of a fio job file as a job of Forebay's, and what sections are to each other: which run at the same time, which
wait, which end others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

# The name of the job that reads what a section wrote.
CHECK = " verify"


@dataclass(frozen=True)
class FioJob:
    """One section as a job of Forebay's (JobSpec fields).

    `unsupported`: what the run would do without, each with the reason; such a job is refused unless the caller is lenient.
    `notes`: where the run differs from fio's though each setting is honoured. `waits`: starts once the jobs before it have ended
    (`stonewall`, or `wait_for` the only one that would still run); others run together with the one above. `follows`: starts
    once the one above has ended, whatever else runs. `delay_s`: and so long after those beside it. `group`: the number of
    fio's reporting group. `ends`: what else ends with it: `group`, `stonewall` (all that run) or `all`; empty: nothing.
    `section`: the number of its section among those that were read.
    """

    name: str
    job: dict[str, Any]
    unsupported: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    waits: bool = False
    delay_s: float = 0.0
    follows: bool = False
    group: int = 0
    ends: str = ""
    section: int = field(default=0, compare=False)

    def messages(self) -> list[str]:
        """Returns the lines for stderr before the run."""
        return [f"[{self.name}] not supported and left out: {u}" for u in self.unsupported] + [
            f"[{self.name}] {n}" for n in self.notes
        ]

    def warnings(self) -> list[dict[str, str]]:
        """Returns warnings for the job's record: it isn't what the job file asks for."""
        if not self.unsupported:
            return []
        text = f"not as [{self.name}] of the fio job file; left out: {'; '.join(self.unsupported)}"
        return [{"id": "left_out", "text": text, "next": "without --fio-lenient such a job is refused"}]


def running(found: list[FioJob]) -> list[FioJob]:
    """The sections that would still run when the next one starts."""
    last = max((n for n, job in enumerate(found) if job.waits), default=0)
    return [job for job in found[last:] if not job.follows]


def among(job: FioJob, found: list[FioJob]) -> FioJob:
    """`job` with a note where others run beside it."""
    if job.waits or not found:
        return job
    names = ", ".join(f"[{other.name}]" for other in running(found))
    return replace(job, notes=(*job.notes, f"runs together with {names}, in a process of its own, as in fio"))


def resolved(found: list[FioJob]) -> list[FioJob]:
    """Settles what only the whole file tells: a check has a turn of its own where nothing runs beside its section, and
    `exitall` in one section holds for all."""
    kept = list(found)
    for n, job in enumerate(found):
        later = next((m for m in range(n + 1, len(found)) if found[m].waits), len(found))
        if job.follows and len(running(found[: n + 1])) == 1 and all(other.follows for other in found[n + 1 : later]):
            kept[n] = replace(job, waits=True, follows=False)
    if any(job.ends for job in kept):
        kept = [_ending_others(job) for job in kept]
    return [_flowing(job, running(_turn(kept, n))) for n, job in enumerate(_of_one_set(kept))]


def _turn(found: list[FioJob], n: int) -> list[FioJob]:
    """All jobs that may run at the same time as number `n`."""
    first = max((m for m in range(n + 1) if found[m].waits), default=0)
    last = next((m for m in range(n + 1, len(found)) if found[m].waits), len(found))
    return found[first:last]


def _flowing(job: FioJob, beside: list[FioJob]) -> FioJob:
    """A share is one of the I/Os of several; a section by itself has all of them."""
    if "flow" not in job.job:
        return job
    group = job.job["flow"].split("@")[1]
    if sum(other.job.get("flow", "").endswith(f"@{group}") for other in beside) > 1:
        return job
    alone = {key: value for key, value in job.job.items() if key != "flow"}
    why = "flow between the jobs of one section isn't supported"
    left = (f"flow={job.job['flow'].split('@')[0]}: {why}",) if alone.get("workers", 1) > 1 else ()
    return replace(job, job=alone, unsupported=(*job.unsupported, *left))


def _of_one_set(found: list[FioJob]) -> list[FioJob]:
    """With `dedupe_global` the working sets of all jobs are one."""
    sets = [re.search(r"set=([0-9]+)", str(job.job.get("content"))) for job in found]
    whole = sum(int(each[1]) for each in sets if each)
    return [
        replace(job, job={**job.job, "content": job.job["content"].replace(each[0], f"set={whole}")}) if each else job
        for job, each in zip(found, sets, strict=True)
    ]


def _ending_others(job: FioJob) -> FioJob:
    """In fio one section's `exitall` is everyone's; what else ends is up to each."""
    unsupported = job.unsupported
    if job.job.get("verify"):
        why = "in fio a job has verified its files before its end triggers exitall; here they are verified afterwards"
        unsupported = (*unsupported, f"exitall=1: {why}")
    # All jobs of a section are in one group, so the first that ends it ends the others.
    first = {"until_first": True} if job.job.get("workers", 1) > 1 else {}
    return replace(job, job={**job.job, **first}, ends=job.ends or "group", unsupported=unsupported)
