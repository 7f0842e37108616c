"""A server as text: its configuration, its current rates, its totals. Pure: statistics in, text out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay.numbers import bytes_, count, seconds, significant
from forebay.units import GIB

Stats = dict[str, Any]
COUNTED = ("reads", "writes", "flushes", "others")


def listening(addresses: list[str], rdma: list[str], metrics: str | None) -> str:
    """The line that says that hosts may come: `listening on 127.0.0.1:4420, rdma 10.0.0.1:4420`."""
    told = f"listening on {spelled(addresses, rdma)}"
    return f"{told} · metrics on http://{metrics}/metrics" if metrics else told


def spelled(addresses: list[str], rdma: list[str]) -> str:
    """Addresses of both transports, for a line."""
    return ", ".join([*addresses, *(f"rdma {address}" for address in rdma)])


def offered(stats: Stats) -> Iterator[str]:
    """A line for each namespace."""
    for subsystem in stats["subsystems"]:
        for found in subsystem["namespaces"]:
            mode = "writable" if found["writable"] else "read-only"
            block = f"blocks of {found['block_bytes']}"
            yield f"{subsystem['nqn']} nsid {found['nsid']}: {found['source']}, {bytes_(found['bytes'])}, {block}, {mode}"


def totals(stats: Stats) -> dict[str, int]:
    """All namespaces' counts, added up."""
    sums: dict[str, int] = {}
    for subsystem in stats["subsystems"]:
        for namespace in subsystem["namespaces"]:
            for key, value in namespace["counts"].items():
                sums[key] = sums.get(key, 0) + value
    return sums


def hosts(stats: Stats) -> int:
    """Hosts that have a connection now."""
    return len({host["nqn"] for s in stats["subsystems"] for host in s["hosts"] if host["connections"]})


def rates(now: Stats, before: Stats) -> list[str]:
    """Returns the traffic between two looks, for a line: `read 2.31 GiB/s`, `write 0 GiB/s`, `18,500 IOPS`."""
    span = max(now["seconds"] - before["seconds"], 1e-9)
    new, old = totals(now), totals(before)

    def rate(*keys: str) -> float:
        return max(0, sum(new.get(k, 0) - old.get(k, 0) for k in keys)) / span

    return [
        f"read {significant(rate('read_bytes') / GIB)} GiB/s",
        f"write {significant(rate('write_bytes') / GIB)} GiB/s",
        f"{rate(*COUNTED):,.0f} IOPS",
    ]


def errors(stats: Stats) -> list[str]:
    """For a line, where there were any: `2 errors`."""
    found = totals(stats).get("errors", 0)
    return [count(found, "error")] if found else []


def line(now: Stats, before: Stats, cores: float) -> str:
    """`2 hosts · 9 connections · read 2.31 GiB/s · write 0 GiB/s · 18,500 IOPS · 0.820 cores`."""
    parts = [
        count(hosts(now), "host"),
        count(now["connections"], "connection"),
        *rates(now, before),
        f"{significant(cores)} cores",
    ]
    return " · ".join(parts + errors(now))


def closing(stats: Stats) -> Iterator[str]:
    """Yields a summary of what was served, when it is over."""
    sums = totals(stats)
    yield (
        f"served    {bytes_(sums.get('read_bytes', 0))} read, {bytes_(sums.get('write_bytes', 0))} written in"
        f" {seconds(stats['seconds'])} · {count(stats['connections_accepted'], 'connection')}"
        f" · {count(sums.get('errors', 0), 'error')}"
    )
    for key, words in (("connections_refused", "refused"), ("connections_broken", "broken off")):
        if stats[key]:
            yield f"          {count(stats[key], 'connection')} {words}"


def checked(config: dict[str, Any]) -> Iterator[str]:
    """A configuration that can be, in words, for --check."""
    yield f"listen    {spelled(config['listen'], config['listen_rdma'])}"
    yield f"metrics   {config['metrics'] or 'off'}"
    for subsystem in config["subsystems"]:
        who = "any host" if subsystem["allow_any_host"] else count(len(subsystem["hosts"]), "host")
        keys = sum(1 for host in subsystem["hosts"] if host["dhchap_key"])
        proof = f", {keys} of them with a key" if keys else ""
        yield f"subsystem {subsystem['nqn']} for {who}{proof}"
        for namespace in subsystem["namespaces"]:
            mode = "writable" if namespace["writable"] else "read-only"
            yield f"          nsid {namespace['nsid']}: {namespace['source']}, {mode}"


def changes(found: dict[str, Any]) -> str:
    """`nsid 3 of nqn.x added (file), nsid 2 of nqn.x removed`; `nothing changed`."""
    parts = [f"nsid {n['nsid']} of {n['subsystem']} removed" for n in found["removed"]]
    parts += [f"nsid {n['nsid']} of {n['subsystem']} added ({n['source']})" for n in found["added"]]
    parts += [f"ANA states of {s['subsystem']} changed" for s in found["ana"]]
    return ", ".join(parts) or "nothing changed"
