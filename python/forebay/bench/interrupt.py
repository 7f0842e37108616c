"""Ctrl-C once ends a run and keeps what it measured; twice aborts."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from forebay.bench import terminal


class Interrupt:
    """While entered, the first SIGINT, SIGTERM or SIGHUP asks the engine to stop; the second has its default effect.

    The default is restored at once, so that a second signal ends the process even while the engine waits
    for a device and no Python code can run. But SIGHUP never aborts: where a terminal goes, both the kernel and
    the shell may send one. A signal that whoever started the command ignores (a script's
    `command &` does SIGINT) stays ignored; what ends the run then is said.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            heard = [n for n in self.SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._first) for number in heard}
            _say_what_is_ignored(heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            if number != signal.SIGHUP or not self.requested:
                signal.signal(number, handler)

    def raise_if_requested(self) -> None:
        """For observers: an exception from one ends the run, which returns what it measured."""
        if self.requested:
            raise KeyboardInterrupt

    def stop(self) -> None:
        """Asks the engine to end the run in progress."""
        from forebay import _core

        self.requested = True
        if hasattr(_core, "stop"):
            _core.stop()

    def _first(self, number: int, frame: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else signal.SIG_DFL)
        for restore in terminal.restorers:
            restore()
        self.requested = True
        self.stop()
        _tell("\nstopping; what was measured is kept (interrupt again to abort)\n")


def _say_what_is_ignored(heard: list[signal.Signals]) -> None:
    if signal.SIGINT in heard:
        return
    how = f"kill {os.getpid()}" if signal.SIGTERM in heard else f"kill -9 {os.getpid()}, which loses what was measured"
    _tell(f"forebay: the process that started this one ignores Ctrl-C; to stop it: {how}\n")


def _tell(text: str) -> None:
    """On stderr, past Python's buffer: a handler may have interrupted another writer, whose buffer it can't enter.
    Nothing where that takes nothing: a handler that is held up holds up the end of the run."""
    stream = terminal.stderr()
    if stream is not sys.stderr:
        stream.write(text)
        stream.close()
    elif terminal.takes_more(2):
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
