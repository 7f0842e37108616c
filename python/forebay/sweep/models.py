"""Frame of a sweep of models over drives: what is asked, its file, its turns. `drives` trains them, `inference` has them answer.

Whatever was decided once, a model's own peak first of all, is on disk before its points; each point's record before the next one
begins. Ctrl-C keeps what the point in progress had measured.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import click

from forebay import run as engine
from forebay.errors import ForebayError, RequestError
from forebay.model_runs import count
from forebay.sweep.file import Sweep, System
from forebay.sweep.points import canonical
from forebay.sweep.results import HEADER, POINT, Results
from forebay.sweep.runner import Outcome, failure_of, now
from forebay.train import supply
from forebay.units import parse_seconds

TOY = "toy"
# Batches of a point at least, however slow its supply, and of a peak; but no longer than that where a first look told it.
BATCHES_MIN, PEAK_MOST_S = 16, 30.0
# Times the need, beyond which a supply isn't simulated: a model takes no more, and the loader may bring no more.
NEEDS_MAX = 4.0
# Flags that mean nothing here, and those that mean nothing elsewhere.
OTHERS = {
    "vary": "--vary", "scale": "--scale", "max_time": "--max-time", "settings": "--set", "pairs": "--pair",
    "elsewhere": "--fabric",
    "netns": "--netns", "delay": "--link-delay", "rate": "--link-rate", "extend": "--extend", "metrics": "--metrics",
}  # fmt: skip
OWN = {
    "system": "--system", "models": "--models", "scale_to_peak": "--scale-to-peak", "seconds": "--seconds",
    "batch_size": "--batch-size", "scenarios": "--scenarios", "drives_of": "--drives-of",
}  # fmt: skip
# Of those, what inference alone has.
INFERENCE = {"scenarios": "--scenarios", "drives_of": "--drives-of"}

Point = dict[str, Any]
Line = dict[str, Any]
# Of a point in its round: the line of the file, and what to tell of it.
One = Callable[[Point, int], tuple[Line, str]]


def options(function: Any) -> Any:
    """Flags of `forebay sweep` for sweeps of models."""
    for option in reversed((
        click.option("--system", metavar="NAME", help="Of drive-scaling, inference-drives: whose drives and GPUs."),
        click.option("--models", "--model", metavar="NAME,…", help="Default: those whose data the SOURCEs are; else toy."),
        click.option("--scale-to-peak", is_flag=True, help="Scale the supply by this model's peak ÷ that of the system's GPUs."),
        click.option("--seconds", metavar="TIME", help="Training of each point. Default: 3 s of toy, else 10 s."),
        click.option("--batch-size", metavar="N", help="Samples of a batch. Default: that of the model's own command."),
        click.option("--scenarios", metavar="NAME,…", help="Of inference-drives. Default: Server,Offline."),
        click.option("--drives-of", metavar="DRIVE,…", help="Of inference-drives: kinds of drives. Default: the system's."),
    )):  # fmt: skip
        function = option(function)
    return function


def refuse_own(values: Mapping[str, Any], name: str) -> None:
    """RequestError for a flag of a sweep of trainings on another."""
    for key, flag in OWN.items():
        if values[key]:
            raise RequestError(flag, f"{name} runs jobs and trains nothing", f"forebay sweep drive-scaling {flag} …")


@dataclass(frozen=True)
class Asked:
    """A sweep of models as it was asked for. `folders`: of each model that has one; `seconds`: of each point, None: each model's
    own."""

    sweep: Sweep
    system: System
    folders: Mapping[str, str]
    batch: int | None
    seconds: float | None
    rounds: int
    scale_to_peak: bool

    def points(self) -> list[Point]:
        raise NotImplementedError

    def definition(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "points": self.points()}

    def share(self, point: Mapping[str, Any]) -> supply.Supply:
        """One GPU's of the drives."""
        return supply.parse(f"{supply.SCHEME}{point['drive']}?drives={point['drives']}", self.system.gpus)


def shared(
    sweep: Sweep, system: System, folders: Mapping[str, str], values: Mapping[str, Any], least_s: float, batch_most: int
) -> dict[str, Any]:
    """Fields of a request that both kinds of sweeps have in common. Raises RequestError."""
    seconds = parse_seconds(values["seconds"], "--seconds") if values["seconds"] else None
    if seconds is not None and not least_s <= seconds <= 3600:
        least = f"{least_s:g} s" if least_s >= 0.1 else f"{1000 * least_s:g} ms"
        raise RequestError(f"--seconds {values['seconds']}", f"is not {least} to an hour", "--seconds 10")
    return {
        "sweep": sweep, "system": system, "folders": folders, "seconds": seconds,
        "batch": count(values["batch_size"], "--batch-size", batch_most) if values["batch_size"] else None,
        "rounds": values["rounds"] or sweep.rounds, "scale_to_peak": values["scale_to_peak"],
    }  # fmt: skip


def peak_s(batch: int, samples_per_s: float) -> float:
    """Seconds in which a model of that rate computes batches enough to tell it by."""
    return min(PEAK_MOST_S, BATCHES_MIN * batch / samples_per_s)


# The file -----------------------------------------------------------------------------------------------


def begin(asked: Asked, frozen: dict[str, Any], results: Results, restart: bool) -> dict[str, Any]:
    """Decisions made once for this file: those that it holds already, or `frozen`, on disk before anything is measured."""
    if restart and (results.contents.headers or results.contents.lines or results.contents.damaged):
        click.echo(f"the old results are in {results.restart()}", err=True)
    headers = results.contents.headers
    if headers:
        _refuse_another(asked, headers[-1]["definition"], results)
        results.put_damage_aside()
        results.mend_end()
        kept: dict[str, Any] = headers[-1]["frozen"]
        return kept
    results.append(header(asked, frozen))
    return frozen


def _refuse_another(asked: Asked, old: Mapping[str, Any], results: Results) -> None:
    new = asked.definition()
    if canonical(dict(old)) == canonical(new):
        return
    before, after = ({**d, **(d.get("points") or [{}])[0]} for d in (old, new))
    keys = [k for k in after if k != "points" and before.get(k) != after[k]]
    reported = "; ".join(f"{k}: {before.get(k)} → {after[k]}" for k in keys) or "other points"
    raise RequestError(
        f"-o {results.path}", f"holds a sweep that differs: {reported}", "--restart to start over, or -o another file"
    )


def header(asked: Asked, frozen: Mapping[str, Any]) -> dict[str, Any]:
    definition = asked.definition()
    return {
        "schema": HEADER,
        "preset": asked.sweep.name,
        "origin": asked.sweep.origin,
        "title": asked.sweep.title,
        "method": asked.sweep.method,
        "cites": asked.sweep.cites,
        "sweep": hashlib.sha256(canonical(definition).encode()).hexdigest()[:16],
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": engine.typed(),
        "sources": list(asked.folders.values()),
        "definition": definition,
        "frozen": frozen,
        "changes": [],
        "dropped": [],
    }


def key_of(point: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(dict(point)).encode()).hexdigest()[:16]


# The turns ----------------------------------------------------------------------------------------------


def play(
    turns: Sequence[tuple[Point, int]], results: Results, model: Callable[[str], AbstractContextManager[One]]
) -> Outcome:
    """Every turn that isn't finished, one model after the other: `model` has the one whose points come."""
    outcome, finished = Outcome(), results.contents.finished()
    left = [(point, number) for point, number in turns if (key_of(point), number) not in finished]
    outcome.skipped = len(turns) - len(left)
    try:
        for name in dict.fromkeys(point["model"] for point, _ in left):
            with model(name) as one:
                for point, number in (turn for turn in left if turn[0]["model"] == name):
                    line, reported = one(point, number)
                    results.append(line)
                    done = outcome.skipped + outcome.finished + len(outcome.failures) + 1
                    click.echo(f"[{done}/{len(turns)}] {line['name']}  {reported}", err=True)
                    if line.get("partial"):
                        outcome.interrupted = True
                        return outcome
                    if "error" in line:
                        outcome.failures.append(failure_of(line["error"]))
                    else:
                        outcome.finished += 1
    except KeyboardInterrupt:
        outcome.interrupted = True
    return outcome


def line_of(
    asked: Asked, point: Point, number: int, name: str, more: Mapping[str, Any], measure: Callable[[], tuple[Any, bool, str]]
) -> tuple[Line, str]:
    """A point's line: the record, whether that was broken off, and what to tell, or why there is none."""
    line: Line = {
        "schema": POINT, "preset": asked.sweep.name, "key": key_of(point), "round": number, "name": name, "changes": [],
        "point": {**point, **more},
    }  # fmt: skip
    try:
        record, interrupted, reported = measure()
    except ForebayError as error:
        found = {"exit_code": error.exit_code, "asked": error.asked, "found": error.found, "next": error.next}
        return {**line, "finished": now(), "error": found}, f"failed: {error.asked}: {error.found}"
    partial = {"partial": True} if interrupted else {}
    return {**line, "finished": now(), **partial, "record": record}, reported


def counts_of(outcome: Outcome) -> dict[str, Any]:
    """Of a summary: what became of the points."""
    return {
        "finished": outcome.finished + outcome.skipped,
        "finished_before": outcome.skipped,
        "failed": [{"asked": e.asked, "found": e.found, "next": e.next} for e in outcome.failures],
        "interrupted": outcome.interrupted,
    }
