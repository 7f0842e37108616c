"""`forebay identify`: the properties that a controller and its namespaces report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from forebay.discover import TIMEOUT, waiting
from forebay.errors import DONE
from forebay.numbers import bytes_, count
from forebay.uri import parsed

EXAMPLES = """\b
Examples:
  forebay identify nvme+tcp://10.0.0.7:4420/nqn.2026-01.io.example:big
  forebay identify 'nvme+tcp://10.0.0.7/nqn.2026-01.io.example:big?nsid=2' --json"""


@click.command(
    "identify",
    epilog=EXAMPLES,
    short_help="What can a namespace and its controller do?",
    context_settings={"max_content_width": 110},
)
@click.argument("uri", metavar="URI")
@click.option("--hostnqn", metavar="NQN", help="Host NQN to identify as. Default: this host's own, /etc/nvme/hostnqn.")
@click.option("--timeout", default=TIMEOUT, metavar="SECONDS", help="How long to wait for an answer. Default: 20.")
@click.option("--json", "as_json", is_flag=True, help="Every field, by its name in the specification, as JSON.")
def command(uri: str, hostnqn: str | None, timeout: str, as_json: bool) -> int:
    """What can the controller and the namespaces behind URI do?

    nvme+tcp://HOST/NQN[?nsid=N], nvme+rdma://HOST/NQN[?nsid=N] or vfio-user:SOCKET.
    """
    found = identify(uri, hostnqn, waiting(timeout))
    click.echo(json.dumps(found, indent=1) if as_json else "\n".join(lines(found)))
    return DONE


def identify(uri: str, hostnqn: str | None = None, timeout_s: float = 20.0) -> dict[str, Any]:
    """The document `forebay.identify/1`. RequestError, MachineError or RunError where there is none to be had."""
    from forebay import _core

    return json.loads(_core.identify(uri, hostnqn, timeout_s))


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The controller, what decides how it is best used, and a line for each namespace."""
    what = found["summary"]
    most = what["max_transfer_bytes"]
    reach = "any length" if most is None else f"up to {bytes_(most)} a command"
    capsule, pdu = bytes_(what["in_capsule_bytes"]), bytes_(what["max_h2c_bytes"])
    volatile = what["volatile_write_cache"]
    asked = parsed(found["uri"])
    pdus = f" · PDUs of write data up to {pdu}" if asked.is_by_socket else ""
    rows = {
        "subsystem": f"{what['nqn']} at {found['address']}",
        "controller": f"{what['model']}, serial {what['serial']}, firmware {what['firmware']}, "
        f"NVMe {what['version']}, cntlid {what['cntlid']}",
        "queues": f"{count(what['queues'], 'I/O queue')} of depth {what['queue_depth']}",
        "transfers": reach
        if asked.host is None
        else f"{reach} · writes up to {capsule} travel with their command{pdus}",
        "digests": f"header {_offered(what['header_digest'])}, data {_offered(what['data_digest'])}",
        "keep alive": f"in steps of {what['keep_alive_granularity_ms']} ms",
        "cache": "volatile: a Flush or FUA makes writes durable" if volatile else "none that loses acknowledged writes",
        "commands": f"besides read, write and flush: {', '.join(what['commands']) or 'none'}",
        "events": ", ".join(what["events"]) or "none",
    }
    if not asked.is_by_socket:
        del rows["digests"]
    if asked.host is None:
        # Nothing travels over a network.
        del rows["keep alive"]
    yield from (f"{label:<12}{text}" for label, text in rows.items())
    if not found["namespaces"]:
        yield "namespaces  none that this host may use"
    for number, namespace in enumerate(found["namespaces"]):
        yield f"{'' if number else 'namespaces':<12}{_namespace(namespace)}"


def _namespace(found: dict[str, Any]) -> str:
    parts = [
        f"nsid {found['nsid']}: {bytes_(found['bytes'])} in blocks of {found['block_bytes']}",
        "read-only" if found["read_only"] else "writable",
    ]
    if found["uuid"]:
        parts.append(f"uuid {found['uuid']}")
    if found["ana_state"]:
        parts.append(f"ANA group {found['ana_group']} {found['ana_state']}")
    return " · ".join([*parts, found["uri"]])


def _offered(value: bool) -> str:
    return "on request" if value else "not offered"
