"""The `--metrics` flag of every command with long runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint


def option(command: Callable[..., Any]) -> Callable[..., Any]:
    told = "Serve Prometheus metrics during the run, on this port or HOST:PORT."
    return click.option("--metrics", metavar="ADDRESS", help=told)(command)


@contextmanager
def listening(text: str | None, quiet: bool = False) -> Iterator[Endpoint | None]:
    """The endpoint, which listens before anything runs and is named on stderr; None where `text` is."""
    if text is None:
        yield None
        return
    from forebay.bench.endpoint import Endpoint

    endpoint = Endpoint(text)
    try:
        if not quiet:
            print(f"metrics   {endpoint.url}", file=sys.stderr, flush=True)
        yield endpoint
    finally:
        endpoint.close()
