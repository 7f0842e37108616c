"""The file that is sent back (schema forebay.validation/1): made whole after every run, so that nothing is lost."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from forebay import pipes
from forebay.errors import RequestError

SCHEMA = "forebay.validation/1"
# A validation of 200 runs is about 10 MB.
READ_MAX = 512 << 20
TEXT_MAX = 64 << 10
# Text that says how this machine is set up; what isn't there is left out.
FILES = (
    "/proc/cmdline",
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params",
    "/proc/driver/nvidia-fs/version",
    "/proc/driver/nvidia-fs/modules",
    "/proc/driver/nvidia-fs/stats",
    "/proc/driver/nvidia-fs/peer_distance",
    "/proc/driver/nvidia-fs/peer_affinity",
    "/proc/mdstat",
)
Document = dict[str, Any]


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def text_of(path: str) -> str | None:
    """The first 64 KiB of a file; None where it can't be read."""
    try:
        with open(path, "rb") as file:
            return file.read(TEXT_MAX).decode("utf-8", "replace")
    except OSError:
        return None


def begin(options: dict[str, Any], report: dict[str, Any], command: list[str]) -> Document:
    """A document with the machine in it and no step yet."""
    from forebay import _core

    config = str(report["cufile"]["config"]["path"])
    texts = {path: text_of(path) for path in (*FILES, config)}
    return {
        "schema": SCHEMA,
        "started": now(),
        "finished": None,
        "command": command,
        "forebay": json.loads(_core.features()),
        "options": options,
        "environment": report["environment"],
        "python": platform.python_version(),
        "variables": {
            k: v for k, v in sorted(os.environ.items()) if k.startswith(("CUFILE_", "CUDA_", "FOREBAY_"))
        },
        "files": {path: text for path, text in texts.items() if text is not None},
        # The run in progress, while there is one.
        "running": None,
        # Runs that a process or the machine went down in.
        "fatal": [],
        "steps": [],
    }


def note_fall(document: Document) -> None:
    """Notes in a document that is continued that a run that still stands as running never ended."""
    running = document.get("running")
    fatal = document.get("fatal")
    document["fatal"] = [f for f in fatal if isinstance(f, dict)] if isinstance(fatal, list) else []
    if isinstance(running, dict):
        document["fatal"].append(running)
    document["running"] = None


def read(path: Path) -> Document:
    """A validation file. Raises RequestError for what is none."""
    asked = str(path)
    pipes.refuse_to_read(path)
    try:
        if path.stat().st_size > READ_MAX:
            raise RequestError(
                asked, f"is larger than {READ_MAX >> 20} MiB, and no validation is", "another file"
            )
        document = json.loads(path.read_text(), parse_constant=_refuse)
    except FileNotFoundError:
        raise RequestError(
            asked, "isn't there", "forebay validate SOURCE -o validation.json makes one"
        ) from None
    except OSError as error:
        raise RequestError(asked, f"can't be read: {error.strerror}", "another file") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(asked, f"isn't JSON ({error})", "the file that forebay validate wrote") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise RequestError(
            asked, f"has the schema {schema!r}, not {SCHEMA}", "the file that forebay validate wrote"
        )
    damage = _damage(document)
    if damage:
        raise RequestError(asked, f"is damaged: {damage}", "the file that forebay validate wrote, unchanged")
    return document


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _damage(document: Document) -> str | None:
    """Returns what is missing of the shape that everything else relies on."""
    steps = document.get("steps")
    if not isinstance(steps, list) or not isinstance(document.get("options"), dict):
        return "steps or options are missing"
    for number, step in enumerate(steps):
        if (
            not isinstance(step, dict)
            or not isinstance(step.get("name"), str)
            or step.get("state") not in STATES
        ):
            return f"step {number} has no name or no state"
        runs = step.get("runs")
        if not isinstance(runs, list) or not all(
            isinstance(r, dict) and isinstance(r.get("name"), str) and r.get("state") in STATES for r in runs
        ):
            return f"the runs of step {step['name']} are not what they should be"
    return None


# partial: interrupted within.
STATES = ("ran", "skipped", "failed", "partial")


def step_of(document: Document, name: str) -> dict[str, Any] | None:
    return next((s for s in document["steps"] if s["name"] == name), None)


def put_step(document: Document, step: dict[str, Any]) -> None:
    """In place of the step of this name, else at the end."""
    for at, old in enumerate(document["steps"]):
        if old["name"] == step["name"]:
            document["steps"][at] = step
            return
    document["steps"].append(step)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Describes what another command line asked for; resuming under it would mix two machines or two methods."""
    return [f"{key}: {old.get(key)} → {new.get(key)}" for key in new if old.get(key) != new.get(key)]
