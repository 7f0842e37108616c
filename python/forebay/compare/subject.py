"""One side of a comparison: a job, and the build of Forebay that runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay import run as engine
from forebay.errors import BAD_REQUEST, MACHINE, ForebayError, MachineError, RequestError, RunError
from forebay.flags import Field, counted, spell
from forebay.metrics import METRICS, Metric
from forebay.wording import as_flag, as_key, reworded, said

RECORD_BYTES_MAX = 256 << 20
# Schema of a document that is no record of a run → the part of one that it becomes.
PARTS = {"forebay.kvcache-replay/1": "replay", "forebay.kvcache-blocks/1": "blocks"}


@dataclass(frozen=True)
class Subject:
    """`settings` is what the user typed for this side, `own` the fields that it sets. `python` None: this process runs the
    job."""

    name: str
    settings: str
    job: dict[str, Any]
    python: str | None = None
    own: frozenset[str] = frozenset()
    has_ios = True
    longer = "--duration"

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return METRICS

    def same_as(self, other: Subject) -> bool:
        return self.job == other.job and self.python == other.python

    @property
    def title(self) -> str:
        words = [w for w in (self.settings, f"by {self.python}" if self.python else "") if w]
        return ", ".join(words) or "(the job as given)"

    def check(self) -> None:
        """Raises MachineError for a path that this machine hasn't got, before another side's run."""
        lacking = engine.lacks(self.job) if self.python is None else None
        if lacking is not None:
            asked = said(f"‹path› {self.job['path']}", self._word)
            raise MachineError(f"{self.name} ({self.title}): {asked}", lacking, "forebay doctor")

    def run(self, observe: Callable[[dict[str, Any]], None], **changes: Any) -> dict[str, Any]:
        """One RunRecord of the job, with `changes` to its fields. Errors name the side."""
        job = {**self.job, **changes}
        try:
            return (
                engine.run(job, observer=observe)
                if self.python is None
                else run_elsewhere(self.python, ["bench", *spell(job), "--json"])
            )
        except ForebayError as error:
            spoken = reworded(error, lambda text: said(text, self._word))
            raise type(error)(
                f"{self.name} ({self.title}): {spoken.asked}", spoken.found, spoken.next
            ) from error

    def run_briefly(self, observe: Callable[[dict[str, Any]], None], seconds: float) -> dict[str, Any] | None:
        """A run that doesn't count, of no more than so many seconds where nothing else ends it."""
        brief = {"duration_s": min(seconds, self.job.get("duration_s") or seconds), "warmup_s": 0.0}
        return self.run(observe, **({} if counted() & self.job.keys() else brief))

    def _word(self, field: Field) -> str:
        """A field of the common flags by its flag; one of this side's settings as it is set there."""
        return as_key(field) if field.key in self.own else as_flag(field)


def run_elsewhere(python: str, typed: Sequence[str], whole: bool = False) -> dict[str, Any]:
    """Runs `forebay …` of an interpreter, and returns the record that it prints. `whole`: one that doesn't hold is an error.

    The child leads its own process group, so that Ctrl-C reaches it once, from here, and its record is
    read even then. Our own PYTHONPATH is kept from another one: it would load this build again.
    """
    words = [python, "-m", "forebay.cli", *typed]
    ours = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    try:
        child = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise RequestError(
            python, f"can't be run: {error.strerror}", "--a-python /path/to/venv/bin/python"
        ) from error
    try:
        out, err = child.communicate()
    except KeyboardInterrupt:
        child.terminate()
        try:
            out, err = child.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise KeyboardInterrupt from None
    return _record_of(f"{python} -m forebay.cli {typed[0]}", python, child.returncode, out, err, whole)


def _record_of(verb: str, python: str, code: int, out: bytes, err: bytes, whole: bool) -> dict[str, Any]:
    said = err.decode("utf-8", "replace").strip()[-2000:]
    if code not in (0, 1, 130) or (whole and code == 1):
        kind = {BAD_REQUEST: RequestError, MACHINE: MachineError}.get(code, RunError)
        raise kind(python, f"its forebay ended with code {code}: {said or _why(out)}", f"{verb} --help")
    if code == 130 and not out.strip():
        raise KeyboardInterrupt
    try:
        if len(out) > RECORD_BYTES_MAX:
            raise ValueError("longer than 256 MiB")
        record = json.loads(out)
        if part := PARTS.get(record.get("schema")):
            ran = record["path"] if part == "blocks" else "virtual time" if record["folder"] is None else "host"
            record = {"path": {"ran": ran}, "result": {"interrupted": record["interrupted"]}, part: record}
        if not isinstance(record["result"], dict):
            raise ValueError("has no result")
        return record
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            python, f"its forebay printed no record ({error}): {said}", "the same Forebay, or a later one"
        ) from None


def _why(out: bytes) -> str:
    """The record's own reason for a run that doesn't hold: an invalid test's, or its warnings."""
    try:
        record = json.loads(out)
        return str((record.get("infer") or {}).get("why") or "; ".join(w["text"] for w in record.get("warnings") or ()))
    except (ValueError, AttributeError, KeyError, TypeError):
        return ""
