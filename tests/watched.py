"""The command with a witness: a file that gets each Progress of its runs, emulated ones too, so that a test acts on an event.

As a program, `python watched.py WITNESS WORDS…` is `forebay WORDS…` over the real engine.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes


@contextlib.contextmanager
def running(witness: Path, *words: Any, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`forebay WORDS…` under way, as `processes.running` has it."""
    with processes.running([sys.executable, __file__, witness, *words], **options) as process:
        yield process


def wait_until_measured(witness: Path, process: subprocess.Popen[Any], runs: int = 1) -> None:
    """Until so many runs of the command have moved bytes that count."""
    processes.wait_until(lambda: measured(witness) >= runs, "bytes were moved and measured", process)


def measured(witness: Path) -> int:
    """Runs in which bytes were moved while they counted."""
    return len({p["run"] for p in reported(witness) if p["phase"] == "measure" and p["gib_s"]})


def epochs_over(witness: Path) -> int:
    """Epochs of an emulated run that have ended."""
    return max((p["epoch"] - 1 for p in reported(witness) if p["phase"] == "run" and "epoch" in p), default=0)


def reported(witness: Path) -> Iterator[dict[str, Any]]:
    """Each Progress so far, with the number of its `run`."""
    whole = witness.read_bytes().rpartition(b"\n")[0].splitlines() if witness.exists() else []
    return map(json.loads, whole)


def main(witness: str, *words: str) -> None:
    import forebay.run
    from forebay import cli
    from forebay.emulate import engine

    begun: list[dict[str, Any]] = []

    def witnessed(real: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def run(job: dict[str, Any], *, observer: Any = None, **kept: Any) -> dict[str, Any]:
            number = len(begun)
            begun.append(job)

            def observe(progress: dict[str, Any]) -> None:
                with open(witness, "a") as file:
                    file.write(json.dumps({"run": number, **progress}) + "\n")
                if observer is not None:
                    observer(progress)

            return real(job, observer=observe, **kept)

        return run

    forebay.run.run, engine.run = witnessed(forebay.run.run), witnessed(engine.run)
    sys.argv = ["forebay", *words]
    cli.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
