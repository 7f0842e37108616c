"""Our gateway (`forebay snap`) and our driver of emulated drives, on one machine.

Every figure counts both ends: the bytes that the driver got, and the CPU of driver, gateway and target.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peers import installed, run
from remote import NQN, await_line, cpu_of, host_run, ours, port_of, started, tool
from side_by_side import Contender, Figure, Unavailable


@contextlib.contextmanager
def gateway(
    source: str,
    spin_us: int = 0,
    threads: int = 1,
    queues: int = 31,
    inside: tuple[str, ...] = (),
    serial: str = "",
    nqn: str = NQN,
    cpus: str = "",
    poll: bool = False,
) -> Iterator[tuple[int, Path]]:
    """`forebay snap` with one emulated drive on `source`: its process, and the drive's socket.

    `inside`: what stands before the command, such as `ip netns exec NAME`, which becomes it. `cpus`: what its threads
    are pinned to, in turn. `poll`: doorbells in shared memory, at which it looks without end.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        socket, config = Path(folder) / "drive.sock", Path(folder) / "snap.toml"
        config.write_text(
            f'rpc = "off"\nthreads = {threads}\nspin_us = {spin_us}\ncpus = "{cpus}"\n'
            f'[[subsystems]]\nnqn = "{nqn}"\nserial = "{serial}"\n'
            f"[[subsystems.namespaces]]\nsource = {json.dumps(source)}\n"
            f'[[subsystems.controllers]]\nname = "bench"\nsocket = "{socket}"\nqueues = {queues}\npoll = {str(poll).lower()}\n'
        )
        command = [*inside, installed(), "snap", str(config)]
        with started(command) as process:
            await_line(process, command, "^ready")
            yield process.pid, socket


def keys_of(uri_flags: str, spin_us: int) -> str:
    """The query of a drive's URI."""
    return "&".join(k for k in (uri_flags, f"spin_us={spin_us}" if spin_us else "") if k)


def emulated(
    name: str,
    source: str,
    *flags: str,
    spin_us: int = 0,
    uri_flags: str = "",
    threads: int = 1,
    cpus: tuple[int, int] | None = None,
) -> Contender:
    """Our driver reading from a drive that a gateway emulates on `source`; both are started for each run.

    `cpus`: the processors that the gateway and the driver's worker stay on.
    """
    keys = keys_of(uri_flags, spin_us)
    stays = () if cpus is None else ("taskset", "-c", str(cpus[0]))
    flags = flags if cpus is None else (*flags, "--cpus", str(cpus[1]))

    def measure(seconds: float) -> Figure:
        with gateway(source, spin_us, threads, inside=stays) as (pid, socket):
            return host_run(name, f"vfio-user:{socket}?{keys}", flags, seconds, pid)

    shown = ["forebay", "snap", f"({source}, spin_us {spin_us})", "&"]
    return Contender(name, measure, [*shown, "forebay", "bench", f"vfio-user:…?{keys}", *flags])


def three_run(
    name: str, uri: str, flags: tuple[str, ...], seconds: float, gateway_pid: int, target: int
) -> Figure:
    """`host_run` of a gateway's drive, with the CPU of the target behind it."""
    before = cpu_of(target)
    figure = host_run(name, uri, flags, seconds, gateway_pid)
    beside = (cpu_of(target) - before) * figure.seconds / (figure.seconds + 0.5)
    cpu_s = None if figure.cpu_s is None else figure.cpu_s + beside
    return Figure(figure.seconds, figure.bytes, figure.ios, cpu_s, None, figure.proof)


def through(
    name: str,
    source: str,
    fabric: str,
    *flags: str,
    spin_us: int = 0,
    uri_flags: str = "",
    cpu: int | None = None,
    threads: int = 1,
    pins: str = "",
) -> Contender:
    """Driver, gateway, NVMe/TCP and target, which serves `source`; `fabric` is what stands behind the NQN.

    `cpu`: the processor that all three stay on. `pins`: those that the threads of each of them are pinned to, in turn.
    """
    keys = keys_of(uri_flags, spin_us)
    stays = () if cpu is None else ("taskset", "-c", str(cpu))
    flags = flags if cpu is None else (*flags, "--cpus", str(cpu))
    pinned = ("--cpus", pins) if pins else ()
    flags = (*flags, *pinned)

    def measure(seconds: float) -> Figure:
        with ours(source, "--spin-us", str(spin_us), *pinned, cpu=cpu) as (target, port):
            remote = f"nvme+tcp://127.0.0.1:{port}/{NQN}{fabric}"
            with gateway(remote, spin_us, threads, inside=stays, cpus=pins) as (pid, socket):
                figure = three_run(name, f"vfio-user:{socket}?{keys}", flags, seconds, pid, target)
        staged = (figure.proof or {}).get("staged_bytes")
        if staged:
            raise Unavailable(f"{name}: {staged} bytes were staged on the way")
        return figure

    shown = ["forebay", "serve", source, "&", "forebay", "snap", f"(nvme+tcp://…{fabric})", "&"]
    return Contender(name, measure, [*shown, "forebay", "bench", f"vfio-user:…?{keys}", *flags])


# A link with a delay ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """Two network namespaces of our own, and the address of the target's. Nothing of the machine's network is touched."""

    target: tuple[str, ...]
    gateway: tuple[str, ...]
    address: str


@contextlib.contextmanager
def delayed(delay_us: int) -> Iterator[Link]:
    """A link whose every round trip takes `delay_us` more: what the host sends is held back so long. 0: veth as it is.

    It needs root.
    """
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise Unavailable("a link needs root, ip and tc; try: apt install iproute2")
    names = [f"forebay-{end}-{os.getpid()}" for end in ("target", "gateway")]
    ends = ["10.77.0.1/30", "10.77.0.2/30"]
    devices = [f"fb{end}{os.getpid() % 100000}" for end in "tg"]

    def do(*words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"{' '.join(words)}: {done.stderr.strip()}")

    try:
        for name in names:
            do("ip", "netns", "add", name)
        both = [x for device, name in zip(devices, names, strict=True) for x in (device, name)]
        do("ip", "link", "add", both[0], "netns", both[1], "type", "veth", "peer", "name", both[2], "netns", both[3])
        for name, device, end in zip(names, devices, ends, strict=True):
            do("ip", "-n", name, "address", "add", end, "dev", device)
            do("ip", "-n", name, "link", "set", device, "mtu", "9000", "up")
            do("ip", "-n", name, "link", "set", "lo", "up")
        if delay_us:
            held = ["netem", "delay", f"{delay_us}us", "limit", "100000"]
            # The kernel needs sch_netem for it.
            do("tc", "-n", names[1], "qdisc", "add", "dev", devices[1], "root", *held)
        inside = [("ip", "netns", "exec", name) for name in names]
        yield Link(inside[0], inside[1], ends[0].split("/")[0])
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@contextlib.contextmanager
def served(source: str, link: Link, port: int = 4420) -> Iterator[int]:
    """`forebay serve SOURCE` at the far end of the link: its process."""
    command = [*link.target, installed(), "serve", source, "--nqn", NQN, "--listen", f"{link.address}:{port}"]
    with started(command) as target:
        port_of(target, command)
        yield target.pid


@contextlib.contextmanager
def near(source: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """The target on loopback: its process, its address, and what the gateway's command stands behind."""
    with ours(source) as (target, port):
        yield target, f"127.0.0.1:{port}", ()


@contextlib.contextmanager
def far(source: str, delay_us: int) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """The same, over a link with a delay."""
    with delayed(delay_us) as link, served(source, link) as target:
        yield target, f"{link.address}:4420", link.gateway


def spread(name: str, source: str, queues: int, link_us: int | None, *flags: str) -> Contender:
    """Through a gateway with so many queues to the target, one command in flight on each, over a delayed link or none."""

    def measure(seconds: float) -> Figure:
        with near(source) if link_us is None else far(source, link_us) as (target, address, inside):
            remote = f"nvme+tcp://{address}/{NQN}?queues={queues}&depth=1"
            with gateway(remote, inside=inside) as (pid, socket):
                return three_run(
                    name, f"vfio-user:{socket}", (*flags, "--depth", str(queues)), seconds, pid, target
                )

    shown = ["forebay", "serve", source, "&", "forebay", "snap", f"(nvme+tcp://…?queues={queues}&depth=1)", "&"]
    return Contender(name, measure, [*shown, "forebay", "bench", "vfio-user:…", *flags, "--depth", str(queues)])


def pingpong(name: str, cpus: tuple[int, int]) -> Contender:
    """Two processes that wake each other by eventfds, each on its processor."""
    program = str(tool("eventfd_pingpong"))

    def measure(seconds: float) -> Figure:
        reported = json.loads(run([program, str(seconds), *map(str, cpus)], 60 + 3 * seconds).stdout)
        proof = {k: reported[k] for k in ("p50_us", "mean_us")}
        return Figure(reported["seconds"], reported["ios"], reported["ios"], reported["cpu_s"], None, proof)

    return Contender(name, measure, ["eventfd_pingpong", "SECONDS", *map(str, cpus)])
