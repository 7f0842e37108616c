"""The verb: a configuration, a server, and what signals ask of it."""

from __future__ import annotations

import json
from typing import Any

import click

from forebay.errors import DONE, ForebayError
from forebay.serve import config, engine, show
from forebay.serve.service import DRAIN_S, Service, check_log
from forebay.units import parse_seconds

EXAMPLES = """\b
Examples:
  forebay serve /data/big.bin --nqn nqn.2026-01.io.example:big
  forebay serve /dev/nvme0n1 --nqn nqn.2026-01.io.example:raw --listen 0.0.0.0:4420 --allow HOSTNQN
  forebay serve 'stripe:?m=/nvme0/a&m=/nvme1/a' --nqn nqn.2026-01.io.example:s --writable
  forebay serve /etc/forebay/serve.toml
  forebay serve --check /etc/forebay/serve.toml"""


def _print_key(context: click.Context, _option: click.Parameter, transform: str | None) -> None:
    if transform is not None and not context.resilient_parsing:
        click.echo(engine.new_key(transform))
        context.exit()


@click.command(
    "serve",
    epilog=EXAMPLES,
    short_help="Let other machines read this storage over NVMe/TCP and NVMe/RDMA.",
    context_settings={"max_content_width": 110},
)
@click.argument("source", metavar="SOURCE|CONFIG.toml")
@click.option("--nqn", metavar="NQN", help="The name that hosts connect to, e.g. nqn.2026-01.io.example:big.")
@click.option(
    "--listen", multiple=True, metavar="ADDRESS", help="Address and port; may be repeated. Default: 127.0.0.1:4420."
)
@click.option(
    "--listen-rdma", multiple=True, metavar="ADDRESS",
    help="Address and port of an RDMA card. Without --listen, the target is on RDMA only.",
)
@click.option("--writable", is_flag=True, help="Let hosts write. Default: read-only.")
@click.option("--allow", multiple=True, metavar="HOSTNQN", help="Allow only this host; may be repeated. Default: any host.")
@click.option("--serial", metavar="TEXT", help="Serial number, at most 20 characters. Default: derived from the NQN.")
@click.option("--block-size", metavar="SIZE", help="Logical block: 512 or 4096.")
@click.option("--cache", metavar="POLICY", help="Page cache: auto, bypass (O_DIRECT) or allow.")
@click.option("--threads", metavar="N", help="Number of serving threads. Default: one per CPU, at most 8.")
@click.option("--cpus", metavar="LIST", help="CPUs to pin the threads to, in turn, e.g. 0-3,8. Default: not pinned.")
@click.option("--spin-us", metavar="N", help="Poll this long before sleeping, in microseconds. Default: a moment, if that pays.")
@click.option("--max-transfer", metavar="SIZE", help="Maximum transfer size of one command. Default: 1m.")
@click.option("--mdns", is_flag=True, help="Announce the discovery service on the local network, by multicast DNS.")
@click.option("--metrics", metavar="ADDRESS", help="Serve Prometheus metrics on this port (loopback only) or HOST:PORT.")
@click.option(
    "--drain", "drain_s", default=DRAIN_S, metavar="SECONDS", help="Time for commands to finish at shutdown. Default: 10."
)
@click.option("--log", "log", default="text", metavar="FORMAT", help="Log on stderr: text, json or off. Default: text.")
@click.option("--check", is_flag=True, help="Check the configuration without opening anything, then exit.")
@click.option(
    "--new-key", is_flag=False, flag_value="sha256", metavar="HASH", is_eager=True, expose_value=False,
    callback=_print_key, help="Print a new key for dhchap_key, and exit. HASH: sha256, sha384, sha512 or none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print totals as one JSON document on stdout at the end.")
@click.option("--quiet", "-q", is_flag=True, help="Log only warnings and errors; print no totals.")
def command(source: str, drain_s: str, log: str, check: bool, as_json: bool, quiet: bool, **flags: Any) -> int:
    """Serve SOURCE (a file, a block device, stripe:, nil:, model:, nvme+tcp:) to NVMe/TCP and NVMe/RDMA
    hosts, or all that CONFIG.toml names (docs/serve.md).

    Prints "listening on ..." once it is ready for hosts. SIGHUP rereads CONFIG.toml: it adds and removes
    namespaces and sets their ANA states.
    On SIGINT and SIGTERM commands may finish before it ends; a second signal ends it at once.
    """
    check_log(log)
    seconds = parse_seconds(drain_s, "--drain")
    asked = config.asked(source, flags)
    found = engine.check(asked)
    if check:
        click.echo(json.dumps(found, indent=1) if as_json else "\n".join(show.checked(found)))
        return DONE
    for warning in config.warnings(found):
        click.echo(f"forebay: warning: {warning}", err=True)
    server = engine.Server(asked, log, warnings_only=quiet)
    return Target(server, asked, seconds, as_json, quiet).run()


class Target(Service):
    """A server, and what it was asked for."""

    def __init__(
        self, server: engine.Server, asked: config.Asked, drain_s: float, as_json: bool, quiet: bool
    ) -> None:
        super().__init__(server, show, drain_s, as_json, quiet)
        self.server, self.asked = server, asked
        self.reloads = {"done": 0, "refused": 0}

    def ready(self) -> str:
        return show.listening(self.server.addresses, self.server.rdma_addresses, self.server.metrics_address)

    def reload(self) -> None:
        """As the file says now; where that can't be, as before, and the reason on stderr."""
        self.systemd.reloading()
        if self.asked.path is None:
            told = "reload ignored: there is no CONFIG.toml to read again"
        else:
            try:
                asked = self.asked.again()
                told = f"reload: {show.changes(self.server.reload(asked))}"
                self.asked = asked
                self.reloads["done"] += 1
            except ForebayError as error:
                told = f"reload refused, serving as before: {error}"
                self.reloads["refused"] += 1
        self.say(told)
        self.systemd.ready(told.partition("\n")[0])

    def about(self) -> dict[str, Any]:
        """Returns the beginning of a document of schema forebay.serve/1."""
        return {
            "schema": "forebay.serve/1",
            "listen": self.server.addresses,
            "listen_rdma": self.server.rdma_addresses,
            "metrics": self.server.metrics_address,
            "reloads": self.reloads,
        }
