"""Configuration of a target, from flags or from a TOML file, in the engine's words: a text and the form it is in."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay import pipes
from forebay.errors import RequestError
from forebay.flags import _integer
from forebay.units import parse_bytes

# Larger than any that somebody wrote; a bound against a device that doesn't end.
FILE_BYTES_MAX = 4 << 20
CACHES = ("auto", "bypass", "allow")


@dataclass(frozen=True)
class Asked:
    """`text` in `form` (toml or json); `path` is the file that it stands in, which a reload reads again."""

    text: str
    form: str
    path: Path | None = None

    def again(self) -> Asked:
        """As the file says now."""
        return self if self.path is None else read(self.path)


def asked(source: str, flags: dict[str, Any]) -> Asked:
    """SOURCE with its flags, or CONFIG.toml alone."""
    if not source.endswith(".toml") or source.startswith("file:"):
        return Asked(json.dumps(from_flags(source, flags)), "json")
    given = [name for name, value in flags.items() if value not in (None, (), False)]
    if given:
        flag = f"--{given[0].replace('_', '-')}"
        raise RequestError(f"{flag} with {source}", "is set in the file", f"forebay serve {source}, or SOURCE {flag} …")
    return read(Path(source))


def read(path: Path) -> Asked:
    """The file's text. RequestError where it can't be read."""
    pipes.refuse_to_read(path)
    try:
        with path.open("rb") as file:
            data = pipes.up_to(file, FILE_BYTES_MAX)
    except OSError as error:
        raise RequestError(str(path), error.strerror or str(error), f"ls -l {path}") from error
    if len(data) > FILE_BYTES_MAX:
        raise RequestError(str(path), "is longer than 4 MiB", "fewer subsystems")
    try:
        return Asked(data.decode(), "toml", path)
    except UnicodeDecodeError as error:
        raise RequestError(str(path), f"isn't UTF-8 at byte {error.start}", "a TOML file") from error


def from_flags(source: str, flags: dict[str, Any]) -> dict[str, Any]:
    """One subsystem with one namespace, as the engine's configuration."""
    if not flags["nqn"]:
        raise RequestError("forebay serve SOURCE", "has no --nqn, the name that hosts connect to", f"--nqn {example_nqn()}")
    namespace: dict[str, Any] = {"source": source, "writable": bool(flags["writable"])}
    if flags["block_size"] is not None:
        namespace["block_bytes"] = parse_bytes(flags["block_size"], "--block-size")
    if flags["cache"] is not None:
        if flags["cache"] not in CACHES:
            raise RequestError(f"--cache {flags['cache']}", f"is not one of {', '.join(CACHES)}", "--cache auto")
        namespace["cache"] = flags["cache"]
    subsystem: dict[str, Any] = {
        "nqn": flags["nqn"],
        "allow_any_host": not flags["allow"],
        "hosts": [{"nqn": host} for host in flags["allow"]],
        "namespaces": [namespace],
    }
    if flags["serial"] is not None:
        subsystem["serial"] = flags["serial"]
    made: dict[str, Any] = {"subsystems": [subsystem]}
    if flags["listen"]:
        made["listen"] = list(flags["listen"])
    if flags["listen_rdma"]:
        made |= {"listen": list(flags["listen"]), "listen_rdma": list(flags["listen_rdma"])}
    if flags["metrics"] is not None:
        made["metrics"] = flags["metrics"]
    if flags["mdns"]:
        made["mdns"] = True
    if flags["threads"] is not None:
        made["threads"] = _integer(flags["threads"], "--threads")
    if flags["cpus"] is not None:
        made["cpus"] = flags["cpus"]
    if flags["spin_us"] is not None:
        made["spin_us"] = _integer(flags["spin_us"], "--spin-us")
    if flags["max_transfer"] is not None:
        made["max_transfer"] = parse_bytes(flags["max_transfer"], "--max-transfer")
    return made


def example_nqn() -> str:
    """A name of the right shape, with this host in it."""
    host = "".join(c if c.isalnum() else "-" for c in socket.gethostname().lower()).strip("-") or "host"
    return f"nqn.2026-01.io.example:{host[:100]}"


def warnings(config: dict[str, Any]) -> Iterator[str]:
    """Yields warnings about what this configuration lets anybody do who can reach it."""
    beyond = [address for address in [*config["listen"], *config["listen_rdma"]] if not is_loopback(address)]
    if not beyond:
        return
    for subsystem in config["subsystems"]:
        if not subsystem["allow_any_host"]:
            continue
        writes = any(namespace["writable"] for namespace in subsystem["namespaces"])
        yield (
            f"any host that reaches {beyond[0]} may read{' and write' if writes else ''} {subsystem['nqn']}\n"
            "  try: --allow HOSTNQN (on that host: cat /etc/nvme/hostnqn)"
        )


def is_loopback(address: str) -> bool:
    """Returns whether an address as a configuration spells it is of the loopback: `127.0.0.1:4420`, `[::1]:4420`, `::1`,
    `4420`."""
    host = address
    if address.startswith("["):
        host = address[1:].partition("]")[0]
    elif address.count(":") == 1:
        host = address.partition(":")[0]
    if not host or host.isdigit():
        return True  # a port alone: of the loopback interface
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
