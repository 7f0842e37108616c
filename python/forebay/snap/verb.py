"""The command: a gateway from ready to stopped, and RPCs to one that runs."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from forebay.errors import DONE, ForebayError, RequestError
from forebay.serve import config
from forebay.serve.service import DRAIN_S, Service, check_log
from forebay.snap import engine, show
from forebay.units import parse_seconds

EXAMPLES = """\b
Examples:
  forebay snap /etc/forebay/snap.toml
  forebay snap --check /etc/forebay/snap.toml
  forebay snap --take-over /etc/forebay/snap.toml
  forebay snap --keep /etc/forebay/snap.toml
  forebay snap rpc nvme_controller_list
  forebay snap rpc nvme_controller_suspend --ctrl NVMeCtrl1
  forebay snap rpc --help"""


class Snap(click.Command):
    """Hands all that stands behind `rpc` to the table of RPC verbs, whose flags aren't click's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["rpc"]:
            ctx.meta["forebay.snap.rpc"] = args[1:]
            return super().parse_args(ctx, ["rpc"]) if ctx.resilient_parsing else []
        if "rpc" in args and not ctx.resilient_parsing:
            _refuse_flags_before(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from forebay import complete

        words = ctx.meta.get("forebay.snap.rpc")
        return super().shell_complete(ctx, incomplete) if words is None else complete.rpc(words, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        words = ctx.meta.get("forebay.snap.rpc")
        if words is None:
            return super().invoke(ctx)
        try:
            click.echo(engine.rpc(words).rstrip("\n"))
        except KeyboardInterrupt as stop:
            if isinstance(stop.__cause__, ForebayError):
                click.echo(f"forebay: {stop.__cause__}", err=True)
            raise
        return DONE


def _refuse_flags_before(args: list[str]) -> None:
    """`--rpc PATH rpc VERB`: the flags of a gateway don't go with `rpc`, whose own name the socket."""
    before, words = args[: args.index("rpc")], args[args.index("rpc") + 1 :]
    named, _, path = before[0].partition("=")
    if named != "--rpc" or len(before) != (1 if path else 2):
        return
    next = shlex.join(["forebay", "snap", "rpc", "--socket", path or before[1], *words])
    raise RequestError(f"--rpc {path or before[1]} before rpc", "flags of rpc come behind it; --socket names the socket", next)


@click.command(
    "snap",
    cls=Snap,
    epilog=EXAMPLES,
    short_help="Present remote storage as local drives.",
    context_settings={"max_content_width": 110},
)
@click.argument("file", metavar="CONFIG.toml|rpc VERB …")
@click.option(
    "--rpc", metavar="PATH", help="Socket for RPCs, or off. Default: the file's, or snap.sock in the runtime directory."
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Replace the gateway running at the RPC socket without hosts noticing; if none runs, start.",
)
@click.option("--keep", is_flag=True, help="Restart the gateway if it is killed; hosts stay connected.")
@click.option(
    "--drain", "drain_s", default=DRAIN_S, metavar="SECONDS", help="Time for commands to finish at shutdown. Default: 10."
)
@click.option("--log", "log", default="text", metavar="FORMAT", help="Log on stderr: text, json or off. Default: text.")
@click.option("--check", is_flag=True, help="Check the configuration without opening anything, then exit.")
@click.option("--json", "as_json", is_flag=True, help="Print totals as one JSON document on stdout at the end.")
@click.option("--quiet", "-q", is_flag=True, help="Log only warnings and errors; print no totals.")
def command(
    file: str,
    rpc: str | None,
    take_over: bool,
    keep: bool,
    drain_s: str,
    log: str,
    check: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Present sources (above all nvme+tcp:) as NVMe drives to virtual machines (vfio-user), as CONFIG.toml says
    (docs/snap.md).

    Prints "ready: ..." once it is ready for hosts. `forebay snap rpc VERB` controls a running gateway with the commands of
    NVIDIA's SNAP: list, create, attach, suspend, resume, statistics. On SIGINT and SIGTERM commands may finish before it
    ends; a second signal ends it at once.
    """
    check_log(log)
    seconds = parse_seconds(drain_s, "--drain")
    asked = read(file)
    found = engine.check(asked, rpc)
    if check:
        click.echo(json.dumps(found, indent=1) if as_json else "\n".join(show.checked(found)))
        return DONE
    if keep:
        if take_over:
            raise RequestError(
                "--keep --take-over", "a keeper can't take over a running gateway", "stop the running gateway, then use --keep"
            )
        return engine.keep(kept(file, rpc, drain_s, log, as_json, quiet), log, quiet)
    gateway = engine.Gateway(asked, log, warnings_only=quiet, rpc=rpc, take_over=take_over)
    return Shown(gateway, seconds, as_json, quiet).run()


def kept(file: str, rpc: str | None, drain_s: str, log: str, as_json: bool, quiet: bool) -> list[str]:
    """The command that a keeper runs."""
    words = [sys.executable, "-m", "forebay.cli", "snap", file, "--drain", drain_s, "--log", log]
    words += ["--rpc", rpc] if rpc is not None else []
    return words + ["--json"] * as_json + ["--quiet"] * quiet


def read(file: str) -> config.Asked:
    """CONFIG.toml, or CONFIG.json as `snap_config_get` prints it."""
    path = Path(file)
    if path.suffix not in (".toml", ".json"):
        raise RequestError(f"forebay snap {file}", "is neither CONFIG.toml nor rpc", "forebay snap CONFIG.toml")
    asked = config.read(path)
    return config.Asked(asked.text, path.suffix[1:], path)


class Shown(Service):
    """A gateway."""

    def __init__(self, gateway: engine.Gateway, drain_s: float, as_json: bool, quiet: bool) -> None:
        super().__init__(gateway, show, drain_s, as_json, quiet)
        self.gateway = gateway

    def ready(self) -> str:
        return show.ready(self._before, self.gateway.rpc_path, self.gateway.metrics_address)

    def reload(self) -> None:
        self.say("a gateway is reconfigured by RPCs, not by a reload: forebay snap rpc --help")

    def has_left(self) -> bool:
        return self.gateway.has_left()

    def about(self) -> dict[str, Any]:
        """Returns the beginning of a document of schema forebay.snap/1."""
        left = self.gateway.has_left()
        return {"schema": "forebay.snap/1", "rpc": self.gateway.rpc_path, "handed_over": left}
