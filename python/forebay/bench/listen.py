"""The `--metrics` flag of every command with long runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from forebay.errors import ForebayError

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint
    from forebay.mpi import World


def option(command: Callable[..., Any]) -> Callable[..., Any]:
    reported = "Serve Prometheus metrics during the run, on this port or HOST:PORT."
    return click.option("--metrics", metavar="ADDRESS", help=reported)(command)


@contextmanager
def listening(text: str | None, quiet: bool = False, world: World | None = None) -> Iterator[Endpoint | None]:
    """The endpoint, which listens before anything runs and is named on stderr; None where `text` is.

    With a `world` all ranks enter, whether they were given `text` or not: the leading one listens, and where it can't, all
    end with its exit code, and it alone says why.
    """
    endpoint = _open(text) if world is None else _open_at_lead(text, world)
    if endpoint is None:
        yield None
        return
    try:
        if not quiet:
            print(f"metrics   {endpoint.url}", file=sys.stderr, flush=True)
        yield endpoint
    finally:
        endpoint.close()


def _open(text: str | None) -> Endpoint | None:
    if text is None:
        return None
    from forebay.bench.endpoint import Endpoint

    return Endpoint(text)


def _open_at_lead(text: str | None, world: World) -> Endpoint | None:
    opened: list[Endpoint | None] = [None]

    def at_lead() -> None:
        opened[0] = _open(text) if world.leads else None

    try:
        world.all_agree(at_lead)
    except ForebayError as error:
        if world.leads:
            raise
        raise click.exceptions.Exit(error.exit_code) from None
    return opened[0]
