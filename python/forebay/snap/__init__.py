"""`forebay snap`: drives that look local, backed by any source, and the RPCs that change them."""

from __future__ import annotations

from typing import Any

import click

from forebay.serve import Service


class Snap(Service):
    """Completes what stands behind `rpc` by the table of RPCs, whose flags aren't the verb's."""

    rpc: list[str] | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing or args[:1] != ["rpc"]:
            return super().parse_args(ctx, args)
        self.rpc = args[1:]
        return super().parse_args(ctx, ["rpc"])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from forebay.command_line import complete

        return super().shell_complete(ctx, incomplete) if self.rpc is None else complete.rpc(self.rpc, incomplete)


command = Snap("snap", "Present remote storage as local drives.")
