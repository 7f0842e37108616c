"""Notifications of systemd about a service (sd_notify(3)): datagrams to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import contextlib
import os
import socket
import time


class Systemd:
    """Says nothing where nobody asked: without NOTIFY_SOCKET each call does nothing."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address if address is not None else os.environ.get("NOTIFY_SOCKET", "")

    def ready(self, status: str) -> None:
        self._say(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        # Type=notify-reload asks for the time, so that it can tell this reload from an earlier one.
        self._say(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def status(self, status: str) -> None:
        self._say(f"STATUS={status}")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def alive(self) -> None:
        """For WatchdogSec=."""
        if "WATCHDOG_USEC" in os.environ:
            self._say("WATCHDOG=1")

    def _say(self, text: str) -> None:
        if self.address[:1] not in ("/", "@"):
            return
        # A service manager that doesn't listen is no reason to stop serving.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1)
            channel.sendto(text.encode(), self.address.replace("@", "\0", 1))
