"""Sections of a fio file that run at the same time: a process for each, as in fio, all from one moment on.

Each process tells its parent, a line of JSON at a time: that it is ready, how its run is going, what came of it. One whose
parent is gone ends.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forebay import errors
from forebay.bench import progress
from forebay.bench.interrupt import Interrupt
from forebay.bench.verb import Outcome, Task
from forebay.errors import ForebayError, RequestError, RunError

TICK_S = 0.1
# Files that are memory.
SHARED = "/dev/shm"
# Of a Progress: what several runs at once have in sum.
SUMS = ("gib_s", "iops", "bytes", "ios", "cores_busy")
# And of what the worst is told.
WORST = ("latency_us_mean", "latency_us_p50", "latency_us_p99", "latency_us_p999", "t_s", "duration_s")


class Section:
    """One task and those that follow on it, in a process of their own."""

    def __init__(self, tasks: Sequence[Task], command: list[str], written: Sequence[str]) -> None:
        self.tasks = tasks
        self.ready = threading.Event()
        self.latest: dict[str, Any] | None = None
        self.results: list[dict[str, Any]] = []
        # The section whose end ended this one.
        self.ended_by = ""
        # A group of its own: Ctrl-C reaches the parent alone, which hands it on once.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay.bench.together"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        jobs = [task.job for task in tasks]
        asked = {"jobs": jobs, "command": command, "delay_s": tasks[0].delay_s, "written": list(written)}
        self._tell(json.dumps(asked))

    @property
    def task(self) -> Task:
        return self.tasks[0]

    def go(self) -> None:
        self._tell("go")

    def is_over(self) -> bool:
        return not self._reader.is_alive()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Ends the process where it still runs; what it said until then is kept."""
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except OSError:
                pass
        try:
            self.process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def outcomes(self) -> list[Outcome]:
        """Returns the outcome of each task. A process that ended without a word is a run that broke; what follows on one that
        went wrong isn't run."""
        found = [self._outcome(result) for result in self.results]
        for task in self.tasks[len(found) :]:
            if found:
                asked, last = f"[{task.name}]", self.tasks[len(self.results) - 1].name
                skipped = RunError(asked, f"wasn't run, because [{last}] failed", "see the error of that section")
                found.append(Outcome(None, None if found[-1].interrupted else skipped, found[-1].interrupted))
                continue
            code = self.process.poll()
            silent = f"its process ended with code {code} and no message"
            found.append(Outcome(None, RunError(f"[{task.name}]", silent, "run that section alone")))
        return found

    def _outcome(self, result: dict[str, Any]) -> Outcome:
        error: ForebayError | None = None
        if result.get("error"):
            kind, asked, found, next = result["error"]
            error = getattr(errors, kind, RunError)(asked, found, next)
        interrupted = bool(result.get("interrupted"))
        ended_by = self.ended_by if interrupted else ""
        return Outcome(result.get("record"), error, interrupted and not ended_by, ended_by)

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None, "it was asked for"
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, and its outcome will say so

    def _read(self) -> None:
        assert self.process.stdout is not None, "it was asked for"
        for line in self.process.stdout:
            said = json.loads(line)
            if "progress" in said:
                self.latest = said["progress"]
            elif "ready" not in said:
                self.results.append(said)
            self.ready.set()
        self.ready.set()


# How long a process that was told to end may take to hand in what it measured, beyond an I/O's own time-out.
GRACE_S = 45.0


def measure(chains: Sequence[Sequence[Task]], own: dict[str, Any], interrupt: Interrupt) -> list[Outcome]:
    """Runs the chains at the same time, the tasks of each in turn; one outcome for each task, in order.

    Raises what any of them is refused for, before anything runs.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-", dir=SHARED if os.path.isdir(SHARED) else None) as folder:
        return _measure([_flowing(chain, folder) for chain in chains], own, interrupt)


def _flowing(chain: Sequence[Task], folder: str) -> list[Task]:
    """With the file that sections of one flow have in common."""
    with_file = [{**t.job, "flow": t.job["flow"].replace("@", f"@{folder}/")} if "flow" in t.job else t.job for t in chain]
    return [replace(task, job=job) for task, job in zip(chain, with_file, strict=True)]


def _measure(chains: Sequence[Sequence[Task]], own: dict[str, Any], interrupt: Interrupt) -> list[Outcome]:
    from forebay import run as engine

    tasks = [chain[0] for chain in chains]
    plans = [engine.plan(task.job) for task in tasks]
    written = _written_by_several(chains, plans)
    for task, plan in zip(tasks, plans, strict=True):
        _make_files(task.job, plan, written)
    watch = progress.line(own["quiet"], " + ".join(task.name for task in tasks))
    sections: list[Section] = []
    try:
        sections += [Section(chain, engine.typed(), written) for chain in chains]
        while not all(s.ready.is_set() for s in sections):
            time.sleep(TICK_S / 10)
        for section in sections:
            section.go()
        _watch(sections, tasks, watch, own["endpoint"], interrupt)
    finally:
        watch.close()
        for section in sections:
            section.close()
    outcomes = [outcome for section in sections for outcome in section.outcomes()]
    every = [task for chain in chains for task in chain]
    for task, outcome in zip(every, outcomes, strict=True):
        if outcome.record is not None:
            outcome.record.setdefault("warnings", []).append(_beside(task, tasks))
            if outcome.ended_by:
                _is_complete(outcome.record, outcome.ended_by)
    return outcomes


def _watch(
    sections: Sequence[Section], tasks: Sequence[Task], watch: Any, endpoint: Any, interrupt: Interrupt
) -> None:
    """Until all are over: shows how it goes, and ends those whose time is over with another's."""
    reported, over = False, set()
    while True:
        for section in sections:
            if section.is_over() and section.task.name not in over:
                over.add(section.task.name)
                _end_others(section, sections)
        if all(s.is_over() for s in sections):
            return
        if interrupt.requested and not reported:
            reported = True
            for section in sections:
                section.stop()
        merged = together([s.latest for s in sections if s.latest is not None])
        if merged is not None:
            watch(merged)
            if endpoint is not None:
                endpoint.see({"sources": [], "op": None}, " + ".join(t.name for t in tasks), merged)
        time.sleep(TICK_S)


def _end_others(ended: Section, sections: Sequence[Section]) -> None:
    """`exitall`: with a section its group ends, or all that run."""
    for other in sections:
        in_reach = ended.task.ends in ("stonewall", "all") or ended.task.group == other.task.group
        if ended.task.ends and in_reach and other is not ended and not other.is_over() and not other.ended_by:
            other.ended_by = ended.task.name
            other.stop()


def _beside(task: Task, tasks: Sequence[Task]) -> dict[str, str]:
    others = ", ".join(f"[{other.name}]" for other in tasks if other is not task)
    text = f"ran at the same time as {others}, which count as other processes"
    return {"id": "together", "text": text, "next": "run the section alone to measure it by itself"}


def _is_complete(record: dict[str, Any], ended_by: str) -> None:
    """It ended when it was to: nobody interrupted it."""
    record["result"]["interrupted"] = False
    kept = [warning for warning in record["warnings"] if warning["id"] != "interrupted"]
    text = f"ended when [{ended_by}] did, because of exitall"
    record["warnings"] = [*kept, {"id": "ended_by", "text": text, "next": "leave out exitall for a run of its full length"}]


def _written_by_several(chains: Sequence[Sequence[Task]], plans: Sequence[dict[str, Any]]) -> list[str]:
    """Files that one section writes and another uses. Refused: a device, which is claimed by who writes to it, and content
    that is checked while another section changes it."""
    used = [{os.path.realpath(t["path"]) for t in plan["targets"] if t.get("path")} for plan in plans]
    found: set[str] = set()
    for chain, own in zip(chains, used, strict=True):
        if not writes(chain[0].job):
            continue
        for other, theirs in zip(chains, used, strict=True):
            shared = own & theirs if other is not chain else set()
            devices = sorted(path for path in shared if _is_device(path))
            checked = [task for task in (*chain, *other) if task.job.get("verify")]
            if devices:
                text = f"writes to {devices[0]} while [{other[0].name}] uses it; a device that is written to can't be shared"
                raise RequestError(f"[{chain[0].name}]", text, "add stonewall to the later of the two")
            if shared and checked:
                text = f"checks {min(shared)} while another section writes to it"
                raise RequestError(f"[{checked[0].name}] verify", text, "one file each, or add stonewall to the later of the two")
            found |= shared
    return sorted(found)


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except OSError:
        return False


def writes(job: dict[str, Any]) -> bool:
    return str(job.get("op", "read")).endswith("write") or job.get("read_pct", 100) not in (100, None)


def _make_files(job: dict[str, Any], plan: dict[str, Any], written: Sequence[str]) -> None:
    """Before the common start, by a read of the least length: as fio lays its files out before any job runs. Of several that
    write a missing file, none could make it."""
    from forebay import run as engine

    shared = any(os.path.realpath(path) in written for path in plan["files_to_make"])
    reads = str(job.get("op", "read")).endswith("read")
    if not plan["files_to_make"] or not (reads or shared):
        return
    ended_by = ("passes", "until_ci_pct", "until_steady", "steady", "until_first", "limit_bytes", "limit_ios", "atomic", "sync")
    paced = ("rate_min_gib_s", "rate_min_iops", "refill", "verify", "content", "flow")
    brief = {k: v for k, v in job.items() if k not in (*ended_by, *paced, "read_pct")}
    op = brief.get("op", "read").replace("write", "read")
    if reads or not all(os.path.exists(path) for path in plan["files_to_make"]):
        engine.run({**brief, "op": op, "create": True, "duration_s": 0.001, "warmup_s": 0.0, "repeat": 1})


def together(parts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Several Progresses as one: rates in sum, latencies and times of the worst, workers and targets side by side."""
    if not parts:
        return None
    merged: dict[str, Any] = {"phase": "measure" if any(p["phase"] == "measure" for p in parts) else parts[0]["phase"]}
    for names, of in ((SUMS, sum), (WORST, max)):
        for name in names:
            known = [p[name] for p in parts if p.get(name) is not None]
            merged[name] = of(known) if known else None
    for name in ("workers", "targets"):
        merged[name] = [each for p in parts for each in p.get(name) or []]
    return {**merged, "repeat": 0, "repeats": 1, "message": None}


# In the process of a section ----------------------------------------------------------------------


def main() -> None:
    from forebay import _core
    from forebay import run as engine

    asked = json.loads(sys.stdin.readline())
    stopped = threading.Event()

    def stop(number: int, frame: Any) -> None:
        stopped.set()
        _core.stop()

    for number in Interrupt.SIGNALS:
        signal.signal(number, stop)
    _say({"ready": True})
    if not sys.stdin.readline():
        return
    threading.Thread(target=_end_with_the_parent, daemon=True).start()

    def observe(found: dict[str, Any]) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        _say({"progress": found})

    _core.run_beside_others(asked["written"])
    try:
        if stopped.wait(asked["delay_s"]):
            raise KeyboardInterrupt
        for job in asked["jobs"]:
            record = engine.run(job, observer=observe, command=asked["command"])
            _say({"record": record, "interrupted": stopped.is_set()})
            if stopped.is_set():
                break
    except ForebayError as error:
        kept = getattr(error, "record", None)
        kept = json.loads(kept) if isinstance(kept, str) else kept
        reported = [type(error).__name__, error.asked, error.found, error.next]
        _say({"error": reported, "record": kept, "interrupted": stopped.is_set()})
    except KeyboardInterrupt:
        _say({"interrupted": True})


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
