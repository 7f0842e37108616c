"""The engine's gateway: the entry point that the verb uses and tests replace."""

from __future__ import annotations

import json
from typing import Any

from forebay.serve.config import Asked
from forebay.serve.engine import _named


def check(asked: Asked, rpc: str | None) -> dict[str, Any]:
    """The configuration with its defaults, and with that RPC socket. RequestError names the file, and what can't be."""
    from forebay import _core

    return json.loads(_named(asked, _core.snap_check, asked.text, asked.form, rpc))


def rpc(words: list[str]) -> str:
    """Returns the output of `forebay snap rpc WORDS`: the answer as JSON, or help. Raises what the gateway refuses.

    A KeyboardInterrupt while it waits has what it waited for as its cause.
    """
    from forebay import _core

    return _core.snap_rpc(words)


def verbs() -> list[tuple[str, list[str]]]:
    """(verb, its flags) of each RPC."""
    from forebay import _core

    return _core.snap_verbs()


def keep(words: list[str], log: str, warnings_only: bool) -> int:
    """Runs `words` as a gateway, and again whenever it is killed; hosts stay connected to this process. Its exit code."""
    from forebay import _core

    return _core.snap_keep(words, log, warnings_only)


class Gateway:
    """Drives that are there from here until `stop`. Its log goes to stderr: `text`, `json` or `off`."""

    def __init__(
        self,
        asked: Asked,
        log: str,
        warnings_only: bool = False,
        rpc: str | None = None,
        take_over: bool = False,
    ) -> None:
        from forebay import _core

        self._core = _named(asked, _core.Gateway, asked.text, asked.form, log, warnings_only, rpc, take_over)
        self.rpc_path: str | None = self._core.rpc_path()
        self.metrics_address: str | None = self._core.metrics_address()

    def stats(self) -> dict[str, Any]:
        return json.loads(self._core.stats())

    def has_left(self) -> bool:
        """Another process has taken over: there is nothing left to do here."""
        return self._core.has_left()

    def failure(self) -> str | None:
        """Why a thread of it can't go on, whose hosts have nobody then."""
        return self._core.failure()

    def drain(self, seconds: float) -> bool:
        """Takes nothing more from hosts' queues and lets commands finish. True: nothing was cut off."""
        return self._core.drain(seconds)

    def stop(self) -> None:
        """Lets go of hosts and sources."""
        self._core.stop()
