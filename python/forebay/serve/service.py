"""The life cycle of a server or gateway, from ready to stopped: reported to the terminal and to systemd, ended by
signals."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import click

from forebay.errors import BROKE, DONE, RequestError
from forebay.serve.notify import Systemd
from forebay.serve.signals import Signals

LOGS = ("text", "json", "off")
DRAIN_S = "10"
# How often the line on a terminal is new, and how often what is silent looks after itself.
TICK_S = 1.0

Stats = dict[str, Any]


class Engine(Protocol):
    """Engine of a service."""

    def stats(self) -> Stats: ...

    def failure(self) -> str | None:
        """Why it can't go on, and what to type."""
        ...

    def drain(self, seconds: float) -> bool:
        """Takes nothing more and lets commands finish. True: nothing was cut off."""
        ...

    def stop(self) -> None: ...


class Words(Protocol):
    """Texts of a service: a module of functions."""

    def offered(self, stats: Stats) -> Iterator[str]:
        """Yields the offers to hosts, in lines."""
        ...

    def line(self, now: Stats, before: Stats, cores: float) -> str:
        """Returns a line of progress."""
        ...

    def closing(self, stats: Stats) -> Iterator[str]:
        """Yields a summary of the traffic, when it is over."""
        ...


class Service(ABC):
    """An engine from ready to stopped. `quiet`: no totals; `as_json`: one document on stdout at the end."""

    def __init__(self, engine: Engine, words: Words, drain_s: float, as_json: bool, quiet: bool) -> None:
        self._engine, self._words = engine, words
        self.drain_s, self.as_json, self.quiet = drain_s, as_json, quiet
        self.systemd = Systemd()
        self._lines = not quiet and sys.stderr.isatty()
        self._before = engine.stats()
        self._cpu_before = _cpu_s()

    @abstractmethod
    def ready(self) -> str:
        """The line that says that hosts may come."""

    @abstractmethod
    def reload(self) -> None:
        """SIGHUP came."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Returns the beginning of its JSON document: `schema`, and what is its own."""

    def has_left(self) -> bool:
        """Another process has its place."""
        return False

    def run(self) -> int:
        with Signals() as signals:
            self.announce()
            while not signals.end_asked and not self.has_left():
                if failure := self._engine.failure():
                    return self.fail(failure)
                signals.wait(TICK_S)
                if signals.take_reload():
                    self.reload()
                self.tick()
            return self.end()

    def announce(self) -> None:
        told = self.ready()
        if not self.quiet:
            for line in self._words.offered(self._before):
                click.echo(line, err=True)
        click.echo(told, err=self.as_json)
        sys.stdout.flush()
        self.systemd.ready(told)

    def tick(self) -> None:
        self.systemd.alive()
        if not self._lines:
            return
        now, cpu = self._engine.stats(), _cpu_s()
        cores = (cpu - self._cpu_before) / max(now["seconds"] - self._before["seconds"], 1e-9)
        _write_over(self._words.line(now, self._before, cores))
        self._before, self._cpu_before = now, cpu

    def say(self, text: str) -> None:
        """On stderr, in place of the line of figures where one stands."""
        click.echo(("\r\x1b[K" if self._lines else "") + f"forebay: {text}", err=True)

    def end(self) -> int:
        self.systemd.stopping()
        finishing = f"waiting up to {self.drain_s:g} s for commands to finish (interrupt again to abort)"
        self.say("another gateway has taken over" if self.has_left() else finishing)
        if self.stop(self._engine.drain(self.drain_s)):
            return DONE
        cut_off = f"commands were still in flight after {self.drain_s:g} s and were cut off"
        click.echo(f"forebay: {cut_off}\n  try: --drain {3 * self.drain_s:g}", err=True)
        return BROKE

    def fail(self, failure: str) -> int:
        """It can't go on: hosts are left to whoever serves them next."""
        self.systemd.stopping()
        self.stop(drained=False)
        self.say(failure)
        return BROKE

    def stop(self, drained: bool) -> bool:
        """Says what went through, as for `drained`, which it returns."""
        stats, about = self._engine.stats(), self.about()  # an engine that was stopped answers nothing
        self._engine.stop()
        if not self.quiet:
            for line in self._words.closing(stats):
                click.echo(line, err=self.as_json)
        if self.as_json:
            counts = {"cpu_s": round(_cpu_s(), 3), "stats": stats}
            click.echo(json.dumps({**about, "drained": drained, **counts}, indent=1))
        return drained


def check_log(log: str) -> None:
    """RequestError for a --log that there isn't."""
    if log not in LOGS:
        raise RequestError(f"--log {log}", f"is not one of {', '.join(LOGS)}", "--log json")


def _write_over(text: str) -> None:
    """The line of figures, in place of the last one."""
    import shutil

    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[K{text[:width]}")
    sys.stderr.flush()


def _cpu_s() -> float:
    """Processor seconds of this process, all its threads."""
    times = os.times()
    return times.user + times.system
