"""The engine's target: the entry point that the verb uses and tests replace."""

from __future__ import annotations

import json
from typing import Any

from forebay.errors import ForebayError
from forebay.serve.config import Asked


def check(asked: Asked) -> dict[str, Any]:
    """The configuration with its defaults, keys hidden. RequestError names the file, and what can't be."""
    from forebay import _core

    return json.loads(_named(asked, _core.serve_check, asked.text, asked.form))


def new_key(transform: str) -> str:
    """A key for `dhchap_key`, as `nvme gen-dhchap-key` makes it. RequestError for another hash than there are."""
    from forebay import _core

    return _core.dhchap_secret(transform)


class Server:
    """A target that serves from here until `stop`. Its log goes to stderr: `text`, `json` or `off`."""

    def __init__(self, asked: Asked, log: str, warnings_only: bool = False) -> None:
        from forebay import _core

        self._core = _named(asked, _core.Server, asked.text, asked.form, log, warnings_only)
        self.addresses: list[str] = self._core.addresses()
        self.rdma_addresses: list[str] = self._core.rdma_addresses()
        self.metrics_address: str | None = self._core.metrics_address()

    def stats(self) -> dict[str, Any]:
        return json.loads(self._core.stats())

    def reload(self, asked: Asked) -> dict[str, Any]:
        """Adds and removes namespaces until they are those asked for: {added: […], removed: […]}."""
        return json.loads(_named(asked, self._core.reload, asked.text, asked.form))

    def failure(self) -> str | None:
        """Why a thread of it can't go on, whose hosts have nobody then."""
        return self._core.failure()

    def drain(self, seconds: float) -> bool:
        """Accepts nothing more and lets commands finish. True: nothing was cut off."""
        return self._core.drain(seconds)

    def stop(self) -> None:
        """Closes what is left and flushes what was written."""
        self._core.stop()


def _named(asked: Asked, call: Any, *arguments: Any) -> Any:
    """`call`, with the file's name in front of what it finds wrong with the file."""
    try:
        return call(*arguments)
    except ForebayError as error:
        if asked.path is None or error.asked.startswith(str(asked.path)):
            raise
        about = "" if error.asked == "the configuration" else f": {error.asked}"
        raise type(error)(f"{asked.path}{about}", error.found, error.next) from None
