"""One emulated run through the engine: the entry point that the verbs use and tests replace."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from forebay.errors import MachineError
from forebay.run import typed

Spec = dict[str, Any]
Record = dict[str, Any]
Progress = dict[str, Any]


def run(
    spec: Spec,
    *,
    observer: Callable[[Progress], None] | None = None,
    command: list[str] | None = None,
    barrier: Callable[[int, int], None] | None = None,
) -> Record:
    """Runs an EmulateSpec and returns its RunRecord, whose `training` says what the accelerators did.

    Raises RequestError, MachineError or RunError. When interrupted it returns what was measured, with
    record["result"]["interrupted"] true. `observer` gets a Progress dict once an interval. `barrier(epoch, step)`
    returns once all hosts have ended the step.
    """
    from forebay import _core

    def relay(text: str) -> None:
        if observer is not None:
            observer(json.loads(text))

    typed_words = command if command is not None else typed()
    try:
        return json.loads(_core.emulate_run(json.dumps(spec), typed_words, relay, barrier))
    except MachineError as error:
        spell(error, spec)
        raise


def spell(error: MachineError, spec: Spec) -> None:
    """Says what a machine lacks in the flags of these verbs: GPUs are a job's --gpu elsewhere, a destination here."""
    if error.asked.startswith("--gpu"):
        error.asked = f"--destination {spec.get('destination')}"
    error.next = error.next.replace("--path host needs no GPU", "--destination drop needs no GPU")


def check(spec: Spec) -> Spec:
    """`spec` with its defaults. Raises RequestError for what can't be right on any machine."""
    from forebay import _core

    return json.loads(_core.emulate_check(json.dumps(spec)))
