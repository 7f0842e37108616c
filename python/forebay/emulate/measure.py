"""One emulated run of a verb: its result, and where its record is saved."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.bench import save
from forebay.bench.interrupt import Interrupt
from forebay.emulate import engine
from forebay.errors import BROKE, CHECK_FAILED, DONE, INTERRUPTED, ForebayError, RequestError


@dataclass
class Outcome:
    """A record, an error, or both: the part that was measured before the error."""

    record: dict[str, Any] | None
    error: ForebayError | None = None
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        if self.error is not None:
            return self.error.exit_code
        if self.record is None:
            return BROKE
        return DONE if self.record["training"]["passes"] else CHECK_FAILED


def measure(
    spec: dict[str, Any], watch: Callable[[dict[str, Any]], None], interrupt: Interrupt, world: Any = None
) -> Outcome:
    """Plays the spec under an observer, on all hosts of `world` if there is one. Errors become part of the outcome."""

    def observe(progress: dict[str, Any]) -> None:
        interrupt.raise_if_requested()
        if world is not None:
            world.watch(progress)
        watch(progress)

    try:
        if world is None:
            record = engine.run(spec, observer=observe)
        else:
            from forebay.emulate import hosts

            record = hosts.run(world, spec, observe, interrupt)
        return Outcome(record, interrupted=interrupt.requested or bool(record["result"].get("interrupted")))
    except ForebayError as error:
        part = getattr(error, "record", None)
        return Outcome(json.loads(part) if isinstance(part, str) else part, error, interrupt.requested)
    except KeyboardInterrupt:
        interrupt.requested = True
        return Outcome(None, interrupted=True)


def results_folder(path: str, flag: str = "--results") -> Path:
    """The folder, made where it is missing. RequestError where it can't be one."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise RequestError(f"{flag} {path}", f"can't be a folder of results ({error.strerror})", "another folder") from error
    return folder


def keep(folder: Path, record: dict[str, Any]) -> Path:
    """Saves a run's record under a name that says what it was and when: unet3d-h100-8-20260102T030405Z-ID.json."""
    training = record["training"]
    when = re.sub(r"[^0-9TZ]", "", str(record["started"]))
    parts = (training["workload"], training["accelerator"], training["accelerators"], when, record["id"][:8])
    name = "-".join(re.sub(r"[^\w.]", "", str(p)) for p in parts)
    target, number = folder / f"{name}.json", 1
    while target.exists():
        number += 1
        target = folder / f"{name}-{number}.json"
    save.write(target, [record])
    return target
