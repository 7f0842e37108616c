"""Ctrl-C once ends a run and keeps what it measured; twice aborts."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While entered, the first SIGINT or SIGTERM asks the engine to stop; the second has its default effect.

    The default is restored at once, so that a second signal ends the process even while the engine waits
    for a device and no Python code can run.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._first) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
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
            signal.signal(each, signal.SIG_DFL)
        self.requested = True
        sys.stderr.write("\nstopping; what was measured is kept (once more to abort)\n")
        self.stop()
