"""Progress of an emulated run: a few lines on a terminal while it runs, no output elsewhere."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from forebay.bench import terminal
from forebay.numbers import significant
from forebay.stages import format_duration

BAR = 24
RUNNING = "run"
WORDS = {"prepare": "opening the data set", "done": "done"}


def frame(progress: dict[str, Any], what: str, needed_pct: float, width: int) -> list[str]:
    """Lines of `width` at most: what runs and how far it is; AU so far and rates; which accelerators wait."""
    lines = [" · ".join(p for p in (what, _place(progress)) if p)]
    if progress.get("phase") == RUNNING:
        lines.append(_bar(progress))
        lines.append(_figures(progress, needed_pct))
        waiting = progress.get("waiting_ranks") or []
        lines.append("waiting " + (", ".join(f"#{rank}" for rank in waiting) if waiting else "none"))
    return [line[: max(width, 1)] for line in lines]


def describe(progress: dict[str, Any], needed_pct: float) -> str:
    """The same as one line: `epoch 2/5 · step 34/123 · AU 93.1 % of 90 · 4.2 GiB/s · 1.3 cores`."""
    parts = [_place(progress)]
    if progress.get("phase") == RUNNING:
        parts.append(_figures(progress, needed_pct))
    return " · ".join(p for p in parts if p)


def _place(progress: dict[str, Any]) -> str:
    phase = str(progress.get("phase", ""))
    if phase != RUNNING:
        return str(progress.get("message") or WORDS.get(phase, phase))
    place = f"epoch {progress.get('epoch', 0)}/{progress.get('epochs', 0)}"
    return f"{place} · step {progress.get('step', 0):,}/{progress.get('steps', 0):,}"


def share_done(progress: dict[str, Any]) -> float:
    """Returns the share of all steps of all epochs that is done; epochs count from 1."""
    steps, epochs = progress.get("steps") or 0, progress.get("epochs") or 0
    if not steps or not epochs:
        return 0.0
    done = (max(progress.get("epoch") or 1, 1) - 1) * steps + (progress.get("step") or 0)
    return min(1.0, max(0.0, done / (steps * epochs)))


def _bar(progress: dict[str, Any]) -> str:
    share = share_done(progress)
    filled = round(BAR * share)
    line = "█" * filled + "░" * (BAR - filled) + f" {100 * share:.0f} %"
    elapsed = progress.get("t_s") or 0.0
    if share > 0.02 and elapsed > 1.0:
        line += f" · {format_duration(elapsed * (1 - share) / share)} left"
    return line


def _figures(progress: dict[str, Any], needed_pct: float) -> str:
    parts = []
    au = progress.get("au_pct")
    parts.append("AU –" if au is None else f"AU {au:.1f} % so far, {needed_pct:g} % needed")
    if progress.get("gib_s") is not None:
        parts.append(f"{significant(progress['gib_s'])} GiB/s")
    if progress.get("cores_busy") is not None:
        parts.append(f"{significant(progress['cores_busy'])} cores")
    return " · ".join(parts)


class View:
    """An observer that keeps a few lines of a terminal up to date. `close` takes them down. One that takes nothing more
    (Ctrl-S, a stuck ssh) misses some, and holds nothing up."""

    def __init__(self, what: str, needed_pct: float, stream: TextIO | None = None) -> None:
        self.what, self.needed_pct = what, needed_pct
        self.stream = stream if stream is not None else terminal.stderr()
        self._live: Any = None

    def __call__(self, progress: dict[str, Any]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if not terminal.takes_more(self.stream):
            return
        if self._live is None:
            console = Console(file=self.stream, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        lines = frame(progress, self.what, self.needed_pct, self._live.console.width)
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self.stream is not sys.stderr:
            self.stream.close()


class Silent:
    """An observer for pipes, files and --quiet."""

    def __call__(self, progress: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def view(what: str, needed_pct: float, quiet: bool = False) -> View | Silent:
    """The observer that fits stderr."""
    return View(what, needed_pct) if not quiet and sys.stderr.isatty() else Silent()
