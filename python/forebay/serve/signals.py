"""The signals of a server: end, abort, reload. Waits for them without polling."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """While entered: SIGINT and SIGTERM ask for the end, SIGHUP for a reload; `wait` returns when one came.

    After the first SIGINT or SIGTERM both have their default effect, so that a second one ends the process even
    while the engine drains and no Python code can run.
    """

    END = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.end_asked = False
        self._reload_asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._bell, self._ring = os.pipe()
        for end in (self._bell, self._ring):
            os.set_blocking(end, False)
        # Python writes there when a signal comes: that ends the select in `wait`.
        self._ring_before = signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)
        for number in self.END:
            self._before[number] = signal.signal(number, self._end)
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._reload)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._ring_before)
        os.close(self._bell)
        os.close(self._ring)

    def wait(self, seconds: float) -> None:
        """Until a signal comes, or `seconds` pass."""
        if self.end_asked or self._reload_asked:
            return
        ready, _, _ = select.select([self._bell], [], [], seconds)
        if ready:
            os.read(self._bell, 4096)

    def take_reload(self) -> bool:
        """Returns whether a reload was asked for since the last call."""
        asked, self._reload_asked = self._reload_asked, False
        return asked

    def _end(self, number: int, frame: FrameType | None) -> None:
        for each in self.END:
            signal.signal(each, signal.SIG_DFL)
        self.end_asked = True

    def _reload(self, number: int, frame: FrameType | None) -> None:
        self._reload_asked = True
