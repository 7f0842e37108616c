"""A group of commands that answers --help from a table alone, and imports a command only when it runs."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from typing import Any

import click

# `-iodepth=8`: a name behind one dash, which is read as a letter of that flag with the rest as its value.
ONE_DASH = re.compile(r"(-[a-z]+(?:[_-][a-z]+)*)(?:=.*)?", re.S)


class MayBeEmpty(click.Option):
    """A flag whose empty value says something."""


def refuse_empty(command: click.Command) -> None:
    """Has a verb's flags refuse an empty value, as of a shell's variable that isn't set: `--dir ''` isn't the current folder."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not isinstance(parameter, MayBeEmpty) and parameter.callback is None:
            parameter.callback = _refuse_empty
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        refuse_empty(each)


def _refuse_empty(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    typed = context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    if typed and (value == "" or (isinstance(value, tuple) and "" in value)):
        from forebay.errors import RequestError

        flag = parameter.opts[0]
        raise RequestError(f"{flag} ''", "is empty", "a value" if parameter.required else f"a value, or no {flag}")
    return value


class LazyGroup(click.Group):
    """`table`: name → (module:command, the question it answers). `noun`: what a name is called in messages."""

    table: Mapping[str, tuple[str, str]] = {}
    noun = "verb"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.table:
            return None
        module, attribute = self.table[name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        refuse_empty(command)
        if "_FOREBAY_COMPLETE" in os.environ:  # a shell asks
            from forebay.command_line import complete

            complete.dress(command, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.table, n=1)
            ctx.fail(f"There is no {self.noun} '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and any(len(word) > 2 and ONE_DASH.fullmatch(word) for word in rest):
            from forebay.command_line import answering

            answering.refuse_one_dash(click.Context(command, ctx, name), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, question) for name, (_, question) in self.table.items()])
