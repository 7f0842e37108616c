"""Runs the steps in turn and keeps the file up to date: results are saved, whatever happens next."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from forebay import run as engine
from forebay.bench import save
from forebay.bench.interrupt import Interrupt
from forebay.errors import ForebayError, MachineError, RequestError, RunError
from forebay.paths import abilities
from forebay.stages import Stages
from forebay.validate import counters, document
from forebay.validate.needs import Facts, doubt, kind_of, unmet
from forebay.validate.plan import FILES, Options, job_of, place
from forebay.validate.steps import Run, Step

Entry = dict[str, Any]
_THROUGHPUT = re.compile(r"Throughput: ([\d.]+) GiB/sec")
FATAL = "the process or the machine went down during this step; --only STEP tries it again"
# Beyond the asked time, what gdsio may take to make its buffers and files.
GDSIO_GRACE_S = 600.0


@dataclass
class Validation:
    """One validation in progress. `path` None: nothing is saved (tests)."""

    options: Options
    facts: Facts
    document: dict[str, Any]
    path: Path | None
    stages: Stages
    interrupt: Interrupt
    # The steps were named with --only.
    alone: bool = False
    # By identity, each with its run, so that no identity comes back.
    _texts: dict[int, tuple[Entry, str]] = field(default_factory=dict)

    def save(self) -> None:
        if self.path is not None:
            save.write_text(self.path, self._text())

    def _text(self) -> str:
        """The document as JSON. A run, once in it, doesn't change: it is put into text once."""
        steps = []
        for step in self.document["steps"]:
            for run in step["runs"]:
                if id(run) not in self._texts:
                    self._texts[id(run)] = (run, json.dumps(run))
            runs = ", ".join(self._texts[id(run)][1] for run in step["runs"])
            own = json.dumps({k: v for k, v in step.items() if k != "runs"})
            steps.append(f'{own[:-1]}, "runs": [{runs}]}}')
        head = json.dumps({k: v for k, v in self.document.items() if k != "steps"})
        return f'{head[:-1]}, "steps": [{", ".join(steps)}]}}\n'

    def run(self, steps: list[Step]) -> None:
        """Each step, until interrupted."""
        for number, step in enumerate(steps, 1):
            before = document.step_of(self.document, step.name)
            if before is not None and before["state"] == "ran" and not _unfinished(before):
                self.stages.say(f"[{number}/{len(steps)}] {step.name}: done before")
                continue
            why = unmet(step.needs, self.facts)
            if why is not None:
                self._keep(step, [], "skipped", why)
                self.stages.say(f"[{number}/{len(steps)}] {step.name}: skipped, {why}")
                continue
            self.stages.say(f"[{number}/{len(steps)}] {step.name}: {step.title}")
            self._step(step, before["runs"] if before else [])
            if self.interrupt.requested:
                return

    def _fatal(self, step: Step) -> list[str]:
        """Runs of this step that a process before this one went down in, unless the step is asked for alone."""
        fatal: list[Entry] = self.document.get("fatal", [])
        if self.alone:
            self.document["fatal"] = [f for f in fatal if f.get("step") != step.name]
        return [str(f.get("run")) for f in self.document.get("fatal", []) if f.get("step") == step.name]

    def _keep(self, step: Step, runs: list[Entry], state: str, reason: str | None) -> None:
        entry = {
            "name": step.name,
            "title": step.title,
            "promises": list(step.proofs),
            "state": state,
            "reason": reason,
            "finished": document.now(),
            "runs": runs,
        }
        document.put_step(self.document, entry)
        self.save()

    def _step(self, step: Step, before: list[Entry]) -> None:
        runs: list[Entry] = []
        expected, fatal = doubt(step.needs, self.facts), self._fatal(step)
        try:
            for one in self._runs(step):
                if self.interrupt.requested:
                    break
                refused = next((r["name"] for r in runs if r.get("refused")), None)
                if expected is not None and refused is not None and one.why_not is None:
                    one = replace(one, why_not=f"refused as {refused} was")
                if one.name in fatal:
                    one = replace(one, why_not=FATAL)
                old = next((r for r in before if r["name"] == one.name and r["state"] == "ran"), None)
                runs.append(
                    old if old is not None and old.get("job") == one.job else self._one(step, one, expected)
                )
                self._keep(step, runs, *state_of(runs, self.interrupt.requested))
        except ForebayError as error:
            # The step can't even be laid out here.
            state = "skipped" if isinstance(error, MachineError) else "failed"
            self._keep(step, runs, state, words_of(error))
            self.stages.say(f"    {state}: {words_of(error)}")
            return
        self._keep(step, runs, *state_of(runs, self.interrupt.requested))

    def _runs(self, step: Step) -> list[Planned]:
        return {"jobs": self._jobs, "doctor": self._doctor, "preset": self._preset, "gdsio": self._gdsio}[
            step.kind
        ](step)

    def _mark(self, running: dict[str, str] | None) -> None:
        """Notes what runs now: where this process or the machine goes down within it, the next one knows."""
        self.document["running"] = running
        if running is not None:
            self.save()

    def _one(self, step: Step, planned: Planned, expected: str | None = None) -> Entry:
        """One run and what came of it; never raises for what the run itself does.

        `expected`: why the doctor expects it to be refused. It is tried, since only the try can tell.
        """
        self.stages.begin(planned.name)
        entry: Entry = {
            "name": planned.name,
            "job": planned.job,
            "changes": list(planned.changes),
            "started": document.now(),
        }
        if planned.why_not is not None:
            self.stages.say(f"    {planned.name}: skipped, {planned.why_not}")
            return {**entry, "state": "skipped", "reason": planned.why_not}
        self._mark({"step": step.name, "run": planned.name})
        begun, nvidia_fs = time.monotonic(), counters.read()
        try:
            result = planned.run()
        except MachineError as error:
            result = {"state": "skipped", "reason": words_of(error), "refused": True}
        except RequestError as error:
            # A job that can't be right anywhere is this program's own mistake.
            return self._close(entry, begun, nvidia_fs, {"state": "failed", "reason": words_of(error)})
        except ForebayError as error:
            result = {"state": "failed", "reason": words_of(error), "record": _record_of(error)}
        except KeyboardInterrupt:
            self.interrupt.requested = True
            result = {"state": "partial", "reason": "interrupted"}
        # Bytes that moved, and came out wrong, are a failure whatever was expected.
        if expected is not None and result.get("state") in ("skipped", "failed") and not result.get("record"):
            words = f"{expected}; tried all the same: {result['reason']}"
            result = {"state": "skipped", "reason": words, "refused": True}
        return self._close(entry, begun, nvidia_fs, result)

    def _close(self, entry: Entry, begun: float, nvidia_fs: dict[str, int] | None, result: Entry) -> Entry:
        self._mark(None)
        entry.update({"state": "ran", "reason": None, **result})
        entry["seconds"] = round(time.monotonic() - begun, 3)
        entry["nvidia_fs"] = counters.change(nvidia_fs, counters.read())
        self.stages.say(f"    {entry['name'] or 'this machine'}: {said(entry)}")
        return entry

    def _jobs(self, step: Step) -> list[Planned]:
        return [self._job(job_of(step, run, self.options), run) for run in step.runs]

    def _job(self, job: dict[str, Any], run: Run) -> Planned:
        return Planned(run.name, job, partial(self._measure, job), why_not=unmet(run.needs, self.facts))

    def _measure(self, job: dict[str, Any]) -> Entry:
        def observe(progress: dict[str, Any]) -> None:
            self.interrupt.raise_if_requested()
            self.stages.observe(progress)

        record = engine.run(job, observer=observe)
        if record["result"].get("interrupted"):
            self.interrupt.requested = True
            return {"state": "partial", "reason": "interrupted", "record": record}
        errors = record["result"]["errors"]
        bad = [
            f"{errors[k]} {k.replace('_', ' ')}"
            for k in ("failed", "timed_out", "verify_failed")
            if errors.get(k)
        ]
        if bad:
            examples = "; ".join(errors.get("examples", [])[:2])
            return {
                "state": "failed",
                "reason": ", ".join(bad) + (f": {examples}" if examples else ""),
                "record": record,
            }
        return {"record": record}

    def _doctor(self, step: Step) -> list[Planned]:
        def show(report: dict[str, Any]) -> Callable[[], Entry]:
            return lambda: {"report": report, "words": report["verdict"]}

        return [Planned(name, {}, show(report)) for name, report in self.facts.reports.items()]

    def _preset(self, step: Step) -> list[Planned]:
        from forebay.sweep import plan as planning
        from forebay.sweep.file import load

        sweep = load(step.preset)
        settings: dict[str, Any] = {"allow_compat": True}
        rounds = max(3, round(sweep.rounds * self.options.scale)) if sweep.alternate else None
        asks = planning.Asks((place(self.options.sources[0]),), settings, self.options.scale, rounds=rounds)
        plan = planning.make(sweep, asks)
        runs = []
        for p in plan.points:
            on_host = "path" in p.job and not abilities(p.job["path"]).reaches_gpu
            job = p.job if on_host else {**p.job, "gpus": list(self.options.gpus[:1])}
            if kind_of(self.options.sources[0]) == "directory":
                job = {"create": True, **job}
            runs.append(Planned(f"{p.name} round {p.round}", job, partial(self._measure, job), p.changes))
        dropped = [Planned(d, {}, dict, why_not=f"left out here: {d}") for d in plan.dropped]
        return runs + dropped

    def _gdsio(self, step: Step) -> list[Planned]:
        return [Planned(run.name, {"x": run.name}, partial(self._beside_gdsio, run)) for run in step.runs]

    def _beside_gdsio(self, run: Run) -> Entry:
        """gdsio and forebay gdsio in turn, A B B A, on files that gdsio wrote."""
        folder = Path(place(self.options.sources[0])) / "gdsio"
        folder.mkdir(exist_ok=True)
        size = f"{self.options.file_bytes // FILES >> 20}M"
        common = [
            "-D",
            str(folder),
            "-d",
            str(self.options.gpus[0]),
            "-w",
            str(FILES),
            "-s",
            size,
            "-i",
            "1M",
        ]
        theirs, ours = [str(self.facts.gdsio)], [sys.executable, "-m", "forebay.cli", "gdsio"]
        if len(list(folder.glob("gdsio.*"))) < FILES:
            self._command([*theirs, *common, "-x", "1", "-I", "1"])
        read = [*common, *run.name.split(), "-I", "0", "-T", str(max(1, round(self.options.seconds)))]
        lines: dict[str, list[str]] = {"gdsio": [], "forebay": []}
        for name, tool in (("gdsio", theirs), ("forebay", ours), ("forebay", ours), ("gdsio", theirs)):
            self.interrupt.raise_if_requested()
            lines[name].append(self._command([*tool, *read]))
        rates = {
            name: statistics.mean(float(_rate_in(line)) for line in found) for name, found in lines.items()
        }
        return {"lines": lines, "gdsio_gib_s": rates["gdsio"], "forebay_gib_s": rates["forebay"]}

    def _command(self, command: list[str]) -> str:
        """A command's standard output. Raises RunError where it fails or doesn't end."""
        shown = " ".join(command)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.options.seconds + GDSIO_GRACE_S,
            )
        except subprocess.TimeoutExpired:
            raise RunError(shown, "didn't finish", "run it by hand") from None
        except OSError as error:
            raise RunError(shown, f"doesn't start: {error.strerror}", "run it by hand") from error
        if done.returncode:
            reported = (done.stderr or done.stdout).strip().splitlines()
            raise RunError(
                shown, f"ended with {done.returncode}: {' '.join(reported[-2:])[:300]}", "run it by hand"
            )
        return done.stdout.strip()


@dataclass(frozen=True)
class Planned:
    """One run, ready to go. `run` returns what goes into its entry."""

    name: str
    job: dict[str, Any]
    run: Callable[[], Entry]
    changes: tuple[str, ...] = ()
    why_not: str | None = None


def _rate_in(line: str) -> str:
    found = _THROUGHPUT.search(line)
    if found is None:
        raise RunError("gdsio's line", f"has no throughput: {line[:200]}", "run it by hand")
    return found[1]


def _record_of(error: ForebayError) -> Any:
    record = getattr(error, "record", None)
    return json.loads(record) if isinstance(record, str) else record


def _unfinished(step: Entry) -> bool:
    """A part of it was skipped or failed: circumstances may have changed."""
    return any(r["state"] != "ran" for r in step["runs"])


def state_of(runs: list[Entry], interrupted: bool) -> tuple[str, str | None]:
    """A step's state from those of its runs: the worst that says most."""
    if interrupted:
        return "partial", "interrupted; the same command continues"
    for state in ("partial", "failed"):
        found = [r for r in runs if r["state"] == state]
        if found:
            return state, f"{found[0]['name']}: {found[0]['reason']}"
    if any(r["state"] == "ran" for r in runs):
        refused = [r for r in runs if r.get("refused")]
        return "ran", f"{refused[0]['name']}: {refused[0]['reason']}" if refused else None
    return "skipped", runs[0]["reason"] if runs else "nothing to run"


def words_of(error: ForebayError) -> str:
    return f"{error.asked}: {error.found}" + (f" (try: {error.next})" if error.next else "")


def said(entry: Entry) -> str:
    """Describes a run's outcome in a line."""
    if entry["state"] != "ran":
        return f"{entry['state']}, {entry['reason']}"
    if "gdsio_gib_s" in entry:
        return f"{entry['forebay_gib_s']:.2f} GiB/s against gdsio's {entry['gdsio_gib_s']:.2f}"
    if "words" in entry:
        return str(entry["words"])
    record = entry["record"]
    return f"{record['path']['ran']}, {record['result']['throughput_gib_s']:.2f} GiB/s"
