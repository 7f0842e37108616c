"""A terminal that may stop taking anything: Ctrl-S, a stuck ssh, tmux's copy mode. Who shows progress there must come
back all the same, or nobody is left to save the run."""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO, cast

from forebay.plain import Plain, plain

# What a terminal that lives takes a frame in.
PATIENCE_S = 0.2
# What gives the terminal back as it was; an interruption runs them, since the next one may end the process at once.
restorers: list[Callable[[], None]] = []


def text_width() -> int:
    """Columns that a summary is wrapped to: as many as COLUMNS says, where it is set; else the terminal's, up to 120, and 100
    where there is none."""
    found = shutil.get_terminal_size((100, 24)).columns
    return found if os.environ.get("COLUMNS") else min(found, 120)


def takes_more(stream: TextIO | int) -> bool:
    """Returns whether `stream` (or descriptor) would take something now. True where that can't be told."""
    try:
        poll = select.poll()
        poll.register(stream, select.POLLOUT)
        return bool(poll.poll(0))
    except (OSError, ValueError, TypeError):
        return True


def stderr() -> TextIO:
    """Standard error, by a way of its own where it is a terminal: what that doesn't take in time is lost.

    Close it. Others who have the terminal open are not touched, as they would be by O_NONBLOCK on what they share.
    """
    try:
        name = os.ttyname(sys.stderr.fileno())
        descriptor = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError, AttributeError):
        return sys.stderr
    return cast(TextIO, Lossy(descriptor, sys.stderr.encoding or "utf-8", isinstance(sys.stderr, Plain)))


class Lossy(io.TextIOBase):
    """A terminal to write to without being held up: after a moment the rest of a text is dropped."""

    def __init__(self, descriptor: int, encoding: str, ascii_only: bool = False) -> None:
        self._descriptor, self._encoding, self._ascii_only = descriptor, encoding, ascii_only

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        shown = plain(text) if self._ascii_only else text
        left, end = shown.encode(self._encoding, "replace"), time.monotonic() + PATIENCE_S
        while left and takes_more_until(self._descriptor, end):
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                break  # it hung up
        return len(text)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def takes_more_until(descriptor: int, end: float) -> bool:
    """Waits until `descriptor` takes something, but no longer than to `end` of the monotonic clock."""
    left = end - time.monotonic()
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return left > 0 and bool(poll.poll(1000 * left))
