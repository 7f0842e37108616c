"""`forebay discover`: the subsystems that an NVMe/TCP or NVMe/RDMA target offers, or all targets of the local network, and
what to type to use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from forebay.errors import CHECK_FAILED, DONE, ForebayError, RequestError
from forebay.units import parse_seconds

TIMEOUT = "20"
# How long services of the local network may take to answer.
LISTEN_S = 2.0
EXAMPLES = """\b
Examples:
  forebay discover
  forebay discover 10.0.0.7
  forebay discover [::1]:4420 --json
  forebay discover 'nvme+tcp://10.0.0.7?tls_key_file=/etc/nvme/tls-key'
  forebay discover nvme+rdma://10.0.0.7"""


@click.command(
    "discover",
    epilog=EXAMPLES,
    short_help="What does an NVMe target offer, and under which names?",
    context_settings={"max_content_width": 110},
)
@click.argument("host", metavar="[HOST[:PORT]]", required=False)
@click.option("--hostnqn", metavar="NQN", help="Host NQN to identify as. Default: this host's own, /etc/nvme/hostnqn.")
@click.option("--timeout", default=TIMEOUT, metavar="SECONDS", help="How long to wait for an answer. Default: 20.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(host: str | None, hostnqn: str | None, timeout: str, as_json: bool) -> int:
    """What does HOST offer to this host over NVMe/TCP or NVMe/RDMA?

    HOST may also be written as a source, without a subsystem and with a source's keys: nvme+tcp://HOST?tls=1 for TLS,
    nvme+rdma://HOST for RDMA. Over TCP, port 8009 is tried after 4420 unless a port is given. Each line begins with the
    URI that other verbs take as a source.
    Exit code 1: it answered, but offers nothing to this host.

    Without HOST: what do the discovery services offer that announce themselves on the local network, by multicast DNS?
    """
    if host is None:
        network = discover_network(hostnqn, waiting(timeout))
        click.echo(json.dumps(network, indent=1) if as_json else "\n".join(network_lines(network)))
        return DONE if any(s["offers"] and s["offers"]["records"] for s in network["services"]) else CHECK_FAILED
    found = discover(host, hostnqn, waiting(timeout))
    click.echo(json.dumps(found, indent=1) if as_json else "\n".join(lines(found)))
    return DONE if found["records"] else CHECK_FAILED


def discover(host: str, hostnqn: str | None = None, timeout_s: float = 20.0) -> dict[str, Any]:
    """The document `forebay.discover/1`. RequestError, MachineError or RunError where there is none to be had."""
    from forebay import _core

    return json.loads(_core.discover(host, hostnqn, timeout_s))


def discover_network(hostnqn: str | None = None, timeout_s: float = 20.0) -> dict[str, Any]:
    """The document `forebay.discover.network/1`. MachineError where nothing can be asked."""
    from forebay import _core

    services = json.loads(_core.browse(min(LISTEN_S, timeout_s)))
    for service in services:
        service |= {"offers": None, "why": None}
        try:
            service["offers"] = _offers(service, hostnqn, timeout_s)
        except ForebayError as e:
            service["why"] = str(e)
    return {"schema": "forebay.discover.network/1", "services": services}


def _offers(service: dict[str, Any], hostnqn: str | None, timeout_s: float) -> dict[str, Any]:
    """Returns the offers of the first of its addresses that answers."""
    if service["protocol"] not in (None, "tcp"):
        raise RequestError(service["title"], f"is over {service['protocol']}", "nvme discover")
    failed: ForebayError = RequestError(service["title"], "told of no address", "forebay discover HOST")
    for address in service["addresses"]:
        try:
            return discover(address, hostnqn, timeout_s)
        except ForebayError as e:
            failed = e
    raise failed


def network_lines(network: dict[str, Any]) -> Iterator[str]:
    """The lines of each service, under its name."""
    if not network["services"]:
        yield "no discovery service announces itself on this machine's networks; try: forebay discover HOST"
    for service in network["services"]:
        yield f"# {service['title']}"
        if service["offers"] is None:
            yield f"  {service['why']}"
        else:
            yield from lines(service["offers"])


def waiting(text: str) -> float:
    seconds = parse_seconds(text, "--timeout")
    if not 0 < seconds <= 3600:
        raise RequestError(f"--timeout {text}", "must be more than 0 and at most an hour", "--timeout 5")
    return seconds


def lines(found: dict[str, Any]) -> Iterator[str]:
    """A line for each record; referrals and the discovery service itself after what can be read."""
    records = found["records"]
    usable = [r for r in records if r["uri"]]
    if not records:
        yield f"{found['address']} offers nothing to {found['host_nqn']}"
    for record in usable:
        extra = [] if record["sectype"] == "none" else [f"security {record['sectype']}"]
        if record["treq"] == "required":
            extra.append("secure channel required: tls=1 in the URI")
        yield record["uri"] + (f"   ({', '.join(extra)})" if extra else "")
    for record in records:
        if not record["uri"]:
            where = f"{record['traddr']}:{record['trsvcid']}" if record["trsvcid"] else record["traddr"]
            yield f"{record['subtype']}: {record['trtype']} {record['adrfam']} {where} {record['subnqn']}"
