"""A gateway as text: its drives, its current rates, its totals. Pure: statistics in, text out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay.numbers import bytes_, count, seconds, significant
from forebay.serve import show as served
from forebay.serve.show import Stats, errors, rates, totals


def ready(stats: Stats, rpc: str | None, metrics: str | None = None) -> str:
    """The line that says that hosts may come: `ready: 2 controllers · RPCs at /run/forebay/snap.sock`."""
    told = f"ready: {count(len(stats['controllers']), 'controller')} · " + (f"RPCs at {rpc}" if rpc else "no RPCs")
    return f"{told} · metrics on http://{metrics}/metrics" if metrics else told


def offered(stats: Stats) -> Iterator[str]:
    """A line for each namespace and each controller."""
    yield from served.offered(stats)
    for found in stats["controllers"]:
        nsids = ", ".join(map(str, found["namespaces"])) or "none"
        yield f"{found['name']} of {found['subsystem']} at {found['place']}: nsid {nsids}, {found['state']}"


def hosts(stats: Stats) -> int:
    """Controllers that a host has enabled."""
    return sum(1 for found in stats["controllers"] if found["state"] == "enabled")


def line(now: Stats, before: Stats, cores: float) -> str:
    """`2 of 3 drives in use · read 2.31 GiB/s · write 0 GiB/s · 18,500 IOPS · staged 0 B · 0.820 cores`."""
    parts = [
        f"{hosts(now)} of {count(len(now['controllers']), 'drive')} in use",
        *rates(now, before),
        f"staged {bytes_(now['staged_bytes'])}",
        f"{significant(cores)} cores",
    ]
    return " · ".join(parts + errors(now))


def closing(stats: Stats) -> Iterator[str]:
    """Yields a summary of the traffic, when it is over."""
    sums = totals(stats)
    yield (
        f"moved     {bytes_(sums.get('read_bytes', 0))} read, {bytes_(sums.get('write_bytes', 0))} written in"
        f" {seconds(stats['seconds'])} · {bytes_(stats['staged_bytes'])} staged · {count(sums.get('errors', 0), 'error')}"
    )
    for found in stats["controllers"]:
        if found["protocol_errors"]:
            yield f"          {found['name']}: {count(found['protocol_errors'], 'host')} broke the protocol"


def checked(config: dict[str, Any]) -> Iterator[str]:
    """A configuration that can be, in words, for --check."""
    yield f"rpc        {config['rpc'] or 'snap.sock of the runtime directory'}"
    if config.get("metrics"):
        yield f"metrics    {config['metrics']}"
    for subsystem in config["subsystems"]:
        yield f"subsystem  {subsystem['nqn']}"
        for namespace in subsystem["namespaces"]:
            mode = "writable" if namespace["writable"] else "read-only"
            yield f"           nsid {namespace['nsid']}: {namespace['source']}, {mode}{limits(namespace['qos'])}"
        for each in subsystem["controllers"]:
            listed = each["namespaces"]
            nsids = "all namespaces" if listed is None else f"nsid {', '.join(map(str, listed)) or 'none'}"
            device = "any free device" if each["device"] is None else f"/dev/ublkb{each['device']}"
            place = each["socket"] or device
            yield f"           {each['name']}: {each['front']} at {place}, {nsids}"


def limits(qos: dict[str, Any]) -> str:
    """`, at most 1 GiB/s and 5,000 IOPS`; nothing where there is none."""
    parts = [f"{bytes_(qos['rate'])}/s"] if qos["rate"] else []
    parts += [f"{qos['iops']:,} IOPS"] if qos["iops"] else []
    return f", at most {' and '.join(parts)}" if parts else ""
