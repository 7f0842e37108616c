"""A progress line on a terminal; no output elsewhere."""

from __future__ import annotations

import shutil
import sys
from typing import Any, TextIO

from forebay.bench import terminal
from forebay.numbers import micros, seconds, significant
from forebay.units import GIB

WORDS = {"prepare": "preparing", "warmup": "warming up", "measure": "measuring", "done": "done"}


def time_left(progress: dict[str, Any]) -> float | None:
    """Seconds until the last repeat ends, of what is known: None where a pass, not a clock, ends the run."""
    duration = progress.get("duration_s")
    if duration is None or progress.get("phase") not in ("warmup", "measure"):
        return None
    repeats_after = max(0, (progress.get("repeats") or 1) - (progress.get("repeat") or 0) - 1)
    return max(0.0, duration - (progress.get("t_s") or 0.0)) + repeats_after * duration


def describe(progress: dict[str, Any]) -> str:
    """`measuring 2/3 · 2.31 GiB/s · 2,365 IOPS · p99 812 µs · 1.20 cores · 6.0 s left`."""
    phase = progress.get("phase", "")
    repeats = progress.get("repeats") or 1
    parts = [WORDS.get(phase, phase) + (f" {progress.get('repeat', 0) + 1}/{repeats}" if repeats > 1 else "")]
    if progress.get("message"):
        parts.append(str(progress["message"]))
    if phase in ("warmup", "measure"):
        parts.append(f"{significant(progress.get('gib_s') or 0.0)} GiB/s")
        parts.append(f"{progress.get('iops') or 0:,.0f} IOPS")
        if progress.get("latency_us_p99") is not None:
            parts.append(f"p99 {micros(progress['latency_us_p99'])}")
        if progress.get("cores_busy") is not None:
            parts.append(count_cores(progress["cores_busy"]))
    left = time_left(progress)
    if left is not None:
        parts.append(f"{seconds(left)} left")
    elif phase == "measure" and progress.get("bytes"):
        parts.append(f"{significant(progress['bytes'] / GIB)} GiB so far")
    return " · ".join(p for p in parts if p)


def count_cores(cores: float) -> str:
    return f"{significant(cores)} cores"


class Line:
    """An observer that rewrites one line of a terminal, when that takes it. `close` clears it."""

    def __init__(self, stream: TextIO | None = None, label: str = "") -> None:
        self.own = stream is None
        self.stream = stream or terminal.stderr()
        self.label = label
        self.shown = False

    def __call__(self, progress: dict[str, Any]) -> None:
        if not terminal.takes_more(self.stream):
            return
        width = shutil.get_terminal_size().columns - 1
        line = f"{self.label} · {describe(progress)}" if self.label else describe(progress)
        self.stream.write(f"\r\x1b[K{line[:width]}")
        self.stream.flush()
        self.shown = True

    def close(self) -> None:
        if self.shown and terminal.takes_more(self.stream):
            self.stream.write("\r\x1b[K")
            self.stream.flush()
        self.shown = False
        if self.own and self.stream is not sys.stderr:
            self.stream.close()
            self.stream = sys.stderr


class Silent:
    """An observer for pipes, files and --quiet."""

    def __call__(self, progress: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def line(quiet: bool = False, label: str = "") -> Line | Silent:
    """The observer that fits stderr: a line on a terminal, nothing elsewhere."""
    return Line(label=label) if not quiet and sys.stderr.isatty() else Silent()
