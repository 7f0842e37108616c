"""`forebay serve`, and what it shares with `forebay snap`: forebayd's command line, run with the words behind the verb."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from forebay import _core
from forebay.errors import RequestError

TABLE = {table["verb"]: table for table in json.loads(_core.service_table())}


class Service(click.Command):
    """A verb as its table has it: for completion, manual pages and advice. What is typed is read by the engine."""

    def __init__(self, verb: str, short_help: str) -> None:
        table = TABLE[verb]
        examples = "\n".join(f"  forebay {verb} {words}" for words in table["examples"])
        subject = click.Argument(["subject"], metavar=table["subject"])
        super().__init__(
            verb,
            params=[subject, *map(_option, table["flags"])],
            help=table["about"],
            epilog=f"\b\nExamples:\n{examples}",
            short_help=short_help,
        )
        self.verb = verb

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell asks
            return super().parse_args(ctx, args)
        ctx.args = args
        return args

    def invoke(self, ctx: click.Context) -> int:
        from forebay import plain
        from forebay.command_line import answering

        try:
            return _core.service(self.verb, ctx.args, [sys.executable, "-m", "forebay.cli"], plain.wanted())
        except RequestError as refused:
            answer = None
            if refused.found == _core.NO_SUCH_FLAG:
                answer = answering.answer(click.NoSuchOption(refused.asked, ctx=ctx))
            raise answer or refused from None


def _option(flag: dict[str, Any]) -> click.Option:
    bare = {"is_flag": False, "flag_value": flag["bare"]} if flag["bare"] else {"is_flag": flag["value"] is None}
    type = click.Choice(flag["words"]) if flag["words"] else None
    return click.Option(flag["names"], metavar=flag["value"], multiple=flag["many"], help=flag["help"], type=type, **bare)


command = Service("serve", "Let other machines read this storage over NVMe/TCP and NVMe/RDMA.")
