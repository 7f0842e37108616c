"""Sections of a fio file that run at the same time: a process for each, as in fio, all from one moment on.

Each process tells its parent, a line of JSON at a time: that it is ready, how its run is going, what came of it. One whose
parent is gone ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from forebay import errors
from forebay.bench import progress
from forebay.bench.interrupt import Interrupt
from forebay.bench.verb import Outcome, Task
from forebay.errors import ForebayError, RequestError, RunError

TICK_S = 0.1
# Of a Progress: what several runs at once have in sum.
SUMS = ("gib_s", "iops", "bytes", "ios", "cores_busy")
# And of what the worst is told.
WORST = ("latency_us_mean", "latency_us_p50", "latency_us_p99", "latency_us_p999", "t_s", "duration_s")


class Section:
    """One task in a process of its own."""

    def __init__(self, task: Task, command: list[str]) -> None:
        self.task = task
        self.ready = threading.Event()
        self.latest: dict[str, Any] | None = None
        self.result: dict[str, Any] | None = None
        # A group of its own: Ctrl-C reaches the parent alone, which hands it on once.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay.bench.together"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._tell(json.dumps({"job": task.job, "command": command, "delay_s": task.delay_s}))

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

    def outcome(self) -> Outcome:
        """What came of it. A process that ended without a word is a run that broke."""
        result = self.result
        if result is None:
            code = self.process.poll()
            silent = f"its process ended with {code} and said nothing"
            return Outcome(None, RunError(f"[{self.task.name}]", silent, "its section alone"))
        error: ForebayError | None = None
        if result.get("error"):
            kind, asked, found, next = result["error"]
            error = getattr(errors, kind, RunError)(asked, found, next)
        return Outcome(result.get("record"), error, bool(result.get("interrupted")))

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
                self.result = said
            self.ready.set()
        self.ready.set()


# How long a process that was told to end may take to hand in what it measured, beyond an I/O's own time-out.
GRACE_S = 45.0


def measure(tasks: Sequence[Task], own: dict[str, Any], interrupt: Interrupt) -> list[Outcome]:
    """Runs the tasks at the same time; one outcome for each, in order.

    Raises what any of them is refused for, before anything runs.
    """
    from forebay import run as engine

    plans = [engine.plan(task.job) for task in tasks]
    _refuse_shared_folders(tasks, plans)
    for task, plan in zip(tasks, plans, strict=True):
        _make_files(task.job, plan)
    watch = progress.line(own["quiet"], " + ".join(task.name for task in tasks))
    sections: list[Section] = []
    told = False
    try:
        sections += [Section(task, engine.typed()) for task in tasks]
        while not all(s.ready.is_set() for s in sections):
            time.sleep(TICK_S / 10)
        for section in sections:
            section.go()
        while not all(s.is_over() for s in sections):
            if interrupt.requested and not told:
                told = True
                for section in sections:
                    section.stop()
            merged = together([s.latest for s in sections if s.latest is not None])
            if merged is not None:
                watch(merged)
                if own["endpoint"] is not None:
                    own["endpoint"].see({"sources": [], "op": None}, " + ".join(t.name for t in tasks), merged)
            time.sleep(TICK_S)
    finally:
        watch.close()
        for section in sections:
            section.close()
    outcomes = [section.outcome() for section in sections]
    for task, outcome in zip(tasks, outcomes, strict=True):
        if outcome.record is not None:
            outcome.record.setdefault("warnings", []).append(_beside(task, tasks))
    return outcomes


def _beside(task: Task, tasks: Sequence[Task]) -> dict[str, str]:
    others = ", ".join(f"[{other.name}]" for other in tasks if other is not task)
    text = f"ran at the same time as {others}, which count among the others on this machine"
    return {"id": "together", "text": text, "next": "the section alone, for what it does by itself"}


def _refuse_shared_folders(tasks: Sequence[Task], plans: Sequence[dict[str, Any]]) -> None:
    """A folder that is written to has one run at a time: who made which of its files would be lost otherwise."""
    places = [{_place(target["path"]) for target in plan["targets"] if target.get("path")} for plan in plans]
    for task, own in zip(tasks, places, strict=True):
        if not writes(task.job):
            continue
        for other, theirs in zip(tasks, places, strict=True):
            shared = own & theirs if other is not task else set()
            if shared:
                found = f"writes to {min(shared)} while [{other.name}] uses it, and a folder is written to by one run at a time"
                raise RequestError(f"[{task.name}]", found, "a folder for each, or stonewall in the later of the two")


def _place(path: str) -> str:
    whole = os.path.realpath(path)
    return whole if whole.startswith("/dev/") or os.path.isdir(whole) else os.path.dirname(whole)


def writes(job: dict[str, Any]) -> bool:
    return str(job.get("op", "read")).endswith("write") or job.get("read_pct", 100) not in (100, None)


def _make_files(job: dict[str, Any], plan: dict[str, Any]) -> None:
    """Before the common start, by a read of the least length: as fio lays its files out before any job runs."""
    from forebay import run as engine

    if job.get("op", "read").endswith("read") and plan["files_to_make"]:
        brief = {k: v for k, v in job.items() if k not in ("passes", "until_ci_pct", "until_steady", "limit_bytes", "limit_ios")}
        engine.run({**brief, "duration_s": 0.001, "warmup_s": 0.0, "repeat": 1})


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

    try:
        if stopped.wait(asked["delay_s"]):
            raise KeyboardInterrupt
        record = engine.run(asked["job"], observer=observe, command=asked["command"])
        _say({"record": record, "interrupted": stopped.is_set()})
    except ForebayError as error:
        kept = getattr(error, "record", None)
        kept = json.loads(kept) if isinstance(kept, str) else kept
        told = [type(error).__name__, error.asked, error.found, error.next]
        _say({"error": told, "record": kept, "interrupted": stopped.is_set()})
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
