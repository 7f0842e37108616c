"""Progress of a command that makes many runs: a bar on a terminal, else plain lines. On stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from forebay.bench.progress import describe

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint


def format_duration(seconds: float) -> str:
    """`45 s`, `2 min 05 s`, `3 h 10 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Stages:
    """A context manager around the runs. `observe` is the observer to hand to `run`. `endpoint`: of `--metrics`, which
    hands out what is observed.

    A live display is drawn only on a terminal; it is taken down before the block's result is printed,
    whatever ends the block.
    """

    def __init__(self, stream: TextIO | None = None, endpoint: Endpoint | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self._endpoint = endpoint
        self._title, self._job = "", {}  # type: tuple[str, dict[str, Any]]
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Stages:
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            title = TextColumn("{task.description}", markup=False)
            columns = (title, BarColumn(24), TextColumn("{task.fields[rate]}", markup=False))
            self._bar = Progress(*columns, console=Console(file=self.stream), transient=True)
            self._task = self._bar.add_task("", total=1.0, rate="")
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def begin(self, title: str, job: dict[str, Any] | None = None) -> None:
        """Names the run that starts now, and what it runs."""
        self._title, self._job = title, job or {}
        if self._bar is not None:
            self._bar.update(self._task, description=title, completed=0.0, rate="")

    def observe(self, progress: dict[str, Any]) -> None:
        """Shows one Progress of the run."""
        if self._endpoint is not None:
            self._endpoint.see(self._job, self._title, progress)
        if self._bar is None:
            return
        duration = progress.get("duration_s") if progress.get("phase") == "measure" else None
        share = min(1.0, progress["t_s"] / duration) if duration else 0.0
        self._bar.update(self._task, completed=share, rate=describe(progress))

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)
