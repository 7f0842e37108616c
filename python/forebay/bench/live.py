"""The full-screen view: rates, latency, CPU, per worker and per target, while a run is going."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, TextIO

from forebay.bench import terminal
from forebay.bench.progress import WORDS, time_left
from forebay.bench.summary import sparkline
from forebay.numbers import count, micros, seconds, significant
from forebay.units import GIB, format_bytes

WIDTH_MIN, HEIGHT_MIN = 24, 6
HISTORY = 600


def unavailable(stream: TextIO) -> str | None:
    """Why a full-screen view can't be shown on `stream`; None where it can."""
    if not stream.isatty():
        return "stderr is not a terminal"
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return "this terminal can't move its cursor (TERM is dumb or unset)"
    return None


class View:
    """An observer that owns the terminal's alternate screen from its first call until `close`."""

    def __init__(self, job: dict[str, Any], title: str = "", console: Any = None) -> None:
        self.job, self.title = job, title
        self.history: deque[float] = deque(maxlen=HISTORY)
        self._console = console
        self._own: TextIO | None = None
        self._live: Any = None
        self._keys = Keys()

    def __call__(self, progress: dict[str, Any]) -> None:
        if progress.get("phase") in ("warmup", "measure"):
            self.history.append(progress.get("gib_s") or 0.0)
        if not terminal.takes_more(getattr(self._console, "file", sys.stderr)):
            return
        if self._live is None:
            self._start()
        from rich.text import Text

        # The size is asked for at each frame: a resized terminal gets a frame that fits.
        width, height = self._console.size
        lines = frame(self.job, progress, list(self.history), width, height, self.title)
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

    def close(self) -> None:
        self._keys.close()
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._own is not None and self._own is not sys.stderr:
            self._own.close()
            self._own = self._console = None

    def _start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._console is None:
            self._own = terminal.stderr()
            self._console = Console(file=self._own, highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, transient=True)
        self._live.start()
        self._keys.open()


class Keys:
    """A thread that reads keys: `q` is Ctrl-C. Only where standard input is this process's own terminal, in the foreground."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._number = -1
        self._before: list[Any] = []
        self._wake = (-1, -1)

    def open(self) -> None:
        """Takes keys as they are typed, without Enter and without an echo; signals stay what they are."""
        try:
            number = sys.stdin.fileno()
            if not os.isatty(number) or os.tcgetpgrp(number) != os.getpgrp():
                return
            self._before = termios.tcgetattr(number)
            taken = termios.tcgetattr(number)
            taken[3] &= ~(termios.ICANON | termios.ECHO)
            taken[6][termios.VMIN], taken[6][termios.VTIME] = 1, 0
            termios.tcsetattr(number, termios.TCSANOW, taken)
        except (OSError, ValueError, AttributeError, termios.error):
            return
        self._number, self._wake = number, os.pipe()
        terminal.restorers.append(self._restore)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is None:
            return
        os.write(self._wake[1], b".")
        self._thread.join()
        self._thread = None
        for end in self._wake:
            os.close(end)
        terminal.restorers.remove(self._restore)
        self._restore()

    def _restore(self) -> None:
        # Unless somebody else has the terminal now: setting it from the background would stop us.
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(self._number) == os.getpgrp():
                termios.tcsetattr(self._number, termios.TCSANOW, self._before)

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._number, self._wake[0]], [], [])
            if self._wake[0] in ready:
                return
            try:
                typed = os.read(self._number, 64)
            except OSError:
                return
            if b"q" in typed or b"Q" in typed:
                heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
                os.kill(os.getpid(), signal.SIGINT if heard else signal.SIGTERM)
                return
            if not typed:
                return


def frame(
    job: dict[str, Any],
    progress: dict[str, Any],
    history: Sequence[float],
    width: int,
    height: int,
    title: str = "",
) -> list[str]:
    """One screen: lines of `width` at most, `height` of them at most; the last parts are left out first."""
    width = max(width, 1)
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        return [f"{significant(progress.get('gib_s') or 0.0)} GiB/s"[:width]][:height]
    lines = [*_heading(job, progress, title), "", *_numbers(progress, width), "", *_history(history, width)]
    room = height - len(lines) - 2
    workers = [_bar_of(f"worker {i}", w) for i, w in enumerate(progress.get("workers") or [])]
    targets = [_bar_of(_tail(t.get("target", "?")), t) for t in progress.get("targets") or []]
    share = _split(room - 2, len(targets), len(workers))
    for noun, rows, count_rows in (("target", targets, share[0]), ("worker", workers, share[1])):
        if rows and count_rows > 0 and len(rows) + (noun == "target") > 1:
            lines += _bars(rows, count_rows, width, noun)
    lines = lines[: height - 1]
    lines += [""] * (height - 1 - len(lines)) + ["q or Ctrl-C stops and keeps what was measured"]
    return [line[:width] for line in lines[:height]]


def _heading(job: dict[str, Any], progress: dict[str, Any], title: str) -> list[str]:
    size = format_bytes(job.get("io_bytes") or 1 << 20)
    shape = f"{job.get('workers') or 1} × depth {job.get('depth') or 8}"
    what = f"{job.get('op') or 'read'} {size} · {job.get('path') or 'host'} · {shape}"
    repeats = progress.get("repeats") or 1
    phase = WORDS.get(progress.get("phase", ""), progress.get("phase", ""))
    if repeats > 1:
        phase += f" {(progress.get('repeat') or 0) + 1} of {repeats}"
    left = time_left(progress)
    if left is not None:
        phase += f" · {seconds(left)} left"
    if progress.get("message"):
        phase += f" · {progress['message']}"
    named = f"{title}: " if title else ""
    return [f"forebay {named}{' '.join(job.get('sources') or [])}", what, phase]


def _numbers(progress: dict[str, Any], width: int) -> list[str]:
    """The figures in as many columns as fit."""

    def cell(key: str, show: Any) -> str:
        value = progress.get(key)
        return "–" if value is None else show(value)

    cells = [
        ("rate", cell("gib_s", lambda v: f"{significant(v)} GiB/s")),
        ("IOPS", cell("iops", lambda v: f"{v:,.0f}")),
        ("latency p50", cell("latency_us_p50", micros)),
        ("latency mean", cell("latency_us_mean", micros)),
        ("latency p99", cell("latency_us_p99", micros)),
        ("latency p99.9", cell("latency_us_p999", micros)),
        ("CPU", cell("cores_busy", lambda v: f"{significant(v)} cores")),
        ("moved", cell("bytes", lambda v: f"{significant(v / GIB)} GiB")),
        ("I/Os", cell("ios", lambda v: f"{v:,}")),
    ]
    texts = [f"{name:<14}{value:<14}" for name, value in cells]
    columns = max(1, width // 29)
    return ["".join(texts[i : i + columns]).rstrip() for i in range(0, len(texts), columns)]


def _history(history: Sequence[float], width: int) -> list[str]:
    if len(history) < 2:
        return []
    recent = list(history)[-width:]
    return [f"GiB/s, {significant(min(recent))} to {significant(max(recent))}", sparkline(recent, width)]


def _bar_of(name: str, part: dict[str, Any]) -> tuple[str, float, str]:
    rate = part.get("gib_s") or 0.0
    figures = f"{significant(rate)} GiB/s"
    # Targets are metered in bytes; where no I/Os were counted, none are claimed.
    return name, rate, f"{figures} {part['iops']:,.0f} IOPS" if part.get("iops") else figures


def _bars(rows: list[tuple[str, float, str]], room: int, width: int, noun: str) -> list[str]:
    """A bar for each row, the longest for the fastest; the last line counts those that don't fit."""
    shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
    label = min(24, max((len(r[0]) for r in shown), default=0), width // 3)
    figures = max((len(r[2]) for r in shown), default=0)
    cells = max(0, width - label - figures - 2)
    top = max((r[1] for r in rows), default=0.0)
    lines = []
    for name, rate, figure in shown:
        bar = "█" * round(cells * rate / top) if top > 0 else ""
        lines.append(
            f"{name[-label:]:<{label}} {bar:<{cells}} {figure}"
            if cells > 3
            else f"{name[-label:]:<{label}} {figure}"
        )
    if len(shown) < len(rows):
        rest = rows[len(shown) :]
        together = significant(sum(r[1] for r in rest))
        lines.append(f"and {count(len(rest), noun)} more: {together} GiB/s")
    return lines


def _split(room: int, targets: int, workers: int) -> tuple[int, int]:
    """Rows for targets and for workers: each gets what it needs where both fit, else half."""
    room = max(0, room)
    if targets + workers <= room:
        return targets, workers
    half = room // 2
    if targets <= half:
        return targets, room - targets
    return (room - workers, workers) if workers <= half else (half, room - half)


def _tail(target: str) -> str:
    """The end of a long target, which is what tells it from its neighbours."""
    return target if len(target) <= 24 else "…" + target[-23:]
