"""Many hosts at one target: what a thousand idle connections cost, and how evenly 128 busy hosts are served.

The hosts are sockets of this process (`nvme_hosts.py`); the target serves `nil:`.
"""

from __future__ import annotations

import argparse
import re
import resource
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from nvme_hosts import Host
from remote import NQN, cpu_of, ours
from side_by_side import existing_folder, publish, save, say, section

PROMISES = ("MSR-16",)

BLOCK = 64 << 10
IN_FLIGHT = 2
ANSWER = 24 + BLOCK


def memory_mib(pid: int) -> float:
    """Pss: pages shared with other processes count in part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(kb) for kb in re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)) / 1024


def idle(connections: int, seconds: float) -> dict[str, float]:
    """CPU in per cent of one processor and memory in MiB of a target with so many connections that say nothing."""
    with ours("nil:?size=64g") as (pid, port):
        before = memory_mib(pid)
        hosts: list[Host] = []
        made = 0
        while made < connections:
            host = Host(("127.0.0.1", port), NQN, f"nqn.2025-01.org.forebay:idle:{len(hosts)}")
            hosts.append(host)
            made += 1
            while made < connections and len(host.queues) < 124:
                host.open_queue()
                made += 1
        time.sleep(1)
        cpu, begin = cpu_of(pid), time.monotonic()
        time.sleep(seconds)
        busy = (cpu_of(pid) - cpu) / (time.monotonic() - begin) * 100
        after = memory_mib(pid)
        for host in hosts:
            host.close()
    return {"connections": made, "cpu_pct": busy, "memory_mib": after, "memory_before_mib": before}


class Reader:
    """One queue that always has `IN_FLIGHT` reads of `BLOCK` under way, and counts what comes."""

    def __init__(self, connection: socket.socket, host: int) -> None:
        connection.setblocking(False)
        self.connection, self.host, self.got, self.asked = connection, host, 0, 0
        self.ask(IN_FLIGHT)

    def ask(self, count: int) -> None:
        commands = b""
        for _ in range(count):
            cid, blocks = self.asked % 32, BLOCK // 512
            sgl = struct.pack("<QI3xB", 0, BLOCK, 0x5A)
            sqe = struct.pack("<BBHI16x", 0x02, 0x40, cid, 1) + sgl
            sqe += struct.pack("<QIII4x", self.asked * blocks % (1 << 20), blocks - 1, 0, 0)
            commands += struct.pack("<BBBBI", 4, 0, 72, 0, 72) + sqe
            self.asked += 1
        self.connection.sendall(commands)

    def take(self, into: bytearray) -> None:
        try:
            n = self.connection.recv_into(into)
        except BlockingIOError:
            return
        if n == 0:
            raise ConnectionError(f"the target closed a connection of host {self.host}")
        self.got += n
        done = self.got // ANSWER + IN_FLIGHT - self.asked
        if done > 0:
            self.ask(done)


def fair(hosts: int, queues: int, seconds: float) -> dict[str, Any]:
    """MiB/s of each host while all read as fast as they are let."""
    with ours("nil:?size=64g") as (_, port):
        all_hosts = [
            Host(("127.0.0.1", port), NQN, f"nqn.2025-01.org.forebay:busy:{n}") for n in range(hosts)
        ]
        opened = [(h.open_queue(), n) for n, h in enumerate(all_hosts) for _ in range(queues)]
        readers = {connection.fileno(): Reader(connection, n) for connection, n in opened}
        poll = select.epoll()
        for fd in readers:
            poll.register(fd, select.EPOLLIN)
        into = bytearray(256 << 10)

        def go(until: float) -> None:
            while time.monotonic() < until:
                for fd, _ in poll.poll(0.2):
                    readers[fd].take(into)

        go(time.monotonic() + 1)
        before, begin = [r.got for r in readers.values()], time.monotonic()
        go(begin + seconds)
        took = time.monotonic() - begin
        each = [0.0] * hosts
        for reader, was in zip(readers.values(), before, strict=True):
            each[reader.host] += (reader.got - was) / took / (1 << 20)
        for host in all_hosts:
            host.close()
    return {"hosts": hosts, "queues": queues, "least": min(each), "most": max(each), "sum": sum(each), "each": each}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=128)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--dir", type=existing_folder, default=Path("."), help="only named on the card of the machine")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--publish", action="store_true", help="keep the result in bench/results, and remake docs/benchmarks.md")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    quiet = [reported("idle", idle(options.connections, options.seconds)) for _ in range(options.rounds)]
    busy = [reported("busy", fair(options.hosts, options.queues, options.seconds)) for _ in range(options.rounds)]
    cpu, memory = max(q["cpu_pct"] for q in quiet), max(q["memory_mib"] for q in quiet)
    ratios = sorted(b["most"] / b["least"] for b in busy)
    holds = (cpu < 1, memory < 64, ratios[len(ratios) // 2] <= 1.5)
    words = ["holds" if h else "**does not hold**" for h in holds]
    rate = sorted(b["sum"] for b in busy)[len(busy) // 2] / 1024
    body = (
        f"- {options.connections} connections, idle: {cpu:.2f} % of one processor at most, must be under 1: {words[0]}\n"
        f"- the same: {memory:.1f} MiB of memory at most ({quiet[0]['memory_before_mib']:.1f} with none), must be under 64:"
        f" {words[1]}\n"
        f"- {options.hosts} hosts × {options.queues} queues, 64 KiB reads, {rate:.2f} GiB/s in all: the best-served host has"
        f" {ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f}) × the rate of the worst-served, must be at"
        f" most 1.5: {words[2]}\n"
    )
    title = "Many hosts at one target"
    save(options.json, title, options, [{"idle": quiet, "busy": busy}], body)
    publish(title, options, section(title, options, body))
    return 0 if all(holds) else 1


def reported(name: str, found: dict[str, Any]) -> dict[str, Any]:
    say(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in found.items() if not isinstance(v, list)))
    return found


if __name__ == "__main__":
    sys.exit(main())
