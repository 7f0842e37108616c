"""Fabric of a sweep beside its source: a target that serves it, and a gateway before that.

Both are the commands that a user would start, `forebay serve` and `forebay snap`, on this machine (or the target in a network
namespace of its own, behind a veth pair), and are stopped when the sweep ends. Points name them `{target}` and `{gateway}`, so
that a sweep is the same sweep on whatever port they listen; `{gateway:7}` is a drive whose gateway has 7 queues on the fabric.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay import run as engine
from forebay.bench.save import place
from forebay.errors import MachineError, RequestError, RunError
from forebay.uri import known, parsed

if TYPE_CHECKING:
    from forebay.sweep.plan import Plan

SOURCE, TARGET = "{source}", "{target}"
NEEDS = ("target", "gateway")
NQN = "nqn.2026-01.io.forebay:sweep"
FILE = "forebay-fabric.dat"
ELSE = "a folder, in which a file is created"
# A target elsewhere, of which only the address is given.
ANY = re.compile(r"tcp://([^/?\s]+)/?")
# A gateway's drive, with so many of the target's queues behind it.
DRIVE = re.compile(r"\{gateway(?::([1-9]\d{0,3}))?\}")
# Where it isn't said.
GATEWAY_QUEUES = 4
# Threads that a gateway has unless told, at most: each takes a queue at least.
THREADS_MAX = 8
READY_S = 60.0
STOP_S = 15.0
# Links get their addresses from the block that is set aside for benchmarks (RFC 2544), four each.
LINKS = 1 << 14


@dataclass(frozen=True)
class Link:
    """`elsewhere`: the URI of a target that runs already, or `tcp://HOST`, where it says what it has. `netns`: the target
    lives in a network namespace; `delay` and `rate` are tc's words for what its link shall be."""

    elsewhere: str | None = None
    netns: bool = False
    delay: str | None = None
    rate: str | None = None

    def check(self, needs: Sequence[str], name: str) -> None:
        given = {"--fabric": self.elsewhere, "--netns": self.netns, "--link-delay": self.delay, "--link-rate": self.rate}
        flags = [flag for flag, value in given.items() if value]
        if flags and "target" not in needs:
            raise RequestError(flags[0], f"{name} starts no target", "solidigm-remote, or solidigm-snap-queues")
        if self.elsewhere and len(flags) > 1:
            raise RequestError(f"--fabric with {flags[1]}", "a target elsewhere has its own link", "only one of them")
        if self.shaped and not self.netns:
            raise RequestError(flags[0], "applies only to the link of a network namespace", f"{flags[0]} with --netns")
        for option, value, form, like in (
            ("--link-delay", self.delay, r"\d+(\.\d+)?(us|ms|s)", "30us"),
            ("--link-rate", self.rate, r"\d+(\.\d+)?[kmg]bit", "25gbit"),
        ):
            if value is not None and not re.fullmatch(form, value):
                raise RequestError(f"{option} {value}", "is not a value that tc accepts", f"{option} {like}")

    @property
    def shaped(self) -> bool:
        return bool(self.delay or self.rate)


def parse_elsewhere(text: str) -> str:
    """`tcp://HOST:PORT/NQN` as the URI of the namespace; `tcp://HOST:PORT` as it is: what is there is asked later."""
    if ANY.fullmatch(text):
        return text
    uri = "nvme+" + text if text.startswith("tcp://") else text
    source = known(uri)
    if source is None or not source.is_by_socket or not re.fullmatch(r"[^/]+//[^/?]+/nqn\.[^?\s]+", uri):
        like = "--fabric tcp://192.0.2.7, or --fabric tcp://192.0.2.7:4420/nqn.2026-01.io.example:big"
        raise RequestError(f"--fabric {text}", "is not tcp://HOST[:PORT][/NQN]", like)
    return uri


def offered(place: str) -> str:
    """The URI of the only subsystem that a target offers; `place` itself where it names one."""
    from forebay.discover import discover

    if not (host := ANY.fullmatch(place)):
        return place
    found = discover(host[1])
    uris: dict[str, str] = {}
    for record in found["records"]:
        uri = record["uri"] or ""
        # One that has several addresses is read at the one that was asked.
        if record["trtype"] == "tcp" and uri and (record["subnqn"] not in uris or f"//{found['address']}/" in uri):
            uris[record["subnqn"]] = uri
    if not uris:
        said = f"{found['address']} offers no subsystem over TCP to this host, {found['host_nqn']}"
        raise RequestError(f"--fabric {place}", said, "allow that NQN at the target: forebay serve --allow NQN")
    if len(uris) > 1:
        typed = " or ".join("--fabric " + uri.removeprefix("nvme+") for uri in uris.values())
        raise RequestError(f"--fabric {place}", f"{found['address']} offers {len(uris)} subsystems", typed)
    return next(iter(uris.values()))


def local_source(given: Sequence[str], needs: Sequence[str], name: str) -> str:
    """The file or device that is read here and served; a folder stands for a file in it."""
    if len(given) != 1:
        found = "none is given" if not given else f"{len(given)} are given"
        raise RequestError("SOURCE", f"{name} needs exactly one; {found}", f"forebay sweep {name} FILE-OR-FOLDER")
    path = parsed(given[0]).path
    if path is None:
        raise RequestError(given[0], f"{name} starts a target itself, for a file or a device", "a path")
    if not path.exists():
        raise RequestError(str(path), "there is no such file", f"{ELSE}, or forebay bench {path} --create --file-size 16g")
    return str(path / FILE) if path.is_dir() else str(path)


def named(job: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """The job with what stands for its sources put in. A namespace has the size that it has."""
    sources = job.get("sources")
    if not sources or not any(TARGET in s or DRIVE.search(s) for s in sources):
        return job
    return {**{k: v for k, v in job.items() if k != "file_bytes"}, "sources": [_put(s, places) for s in sources]}


def drives(sources: Sequence[str]) -> dict[str, int]:
    """Returns the placeholders of gateways' drives in these sources, each with its queues on the fabric."""
    found = [m for source in sources for m in DRIVE.finditer(source)]
    return {m[0]: int(m[1] or GATEWAY_QUEUES) for m in found}


def threads_of(queues: int) -> int:
    """Returns the threads of a gateway for so many queues on the fabric: as many as it would have, and no more than have a
    queue."""
    return min(queues, len(os.sched_getaffinity(0)), THREADS_MAX)


def stand_in(job: dict[str, Any]) -> dict[str, Any]:
    """A job that can be checked before there is a target."""
    there = drives(job.get("sources") or ())
    places = {TARGET: f"nvme+tcp://127.0.0.1:4420/{NQN}", **dict.fromkeys(there, "vfio-user:/run/forebay-sweep.sock")}
    put = named(job, places)
    for source in put.get("sources") or ():
        if "{gateway" in source:
            raise RequestError(source, "names no gateway", "{gateway}, or {gateway:7} for 7 queues on the fabric (1 to 9999)")
    return put


def fit(job: dict[str, Any], changes: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """As many I/Os in flight by fewer workers, where a source has fewer queues than workers: each takes one at least."""
    workers, depth = job.get("workers", 1), job.get("depth", 1)
    counts = [int(n) for s in job.get("sources") or () for n in re.findall(r"^\{(?:target|gateway[:\d]*)\}\?.*\bqueues=(\d+)", s)]
    if not counts or not isinstance(workers, int) or workers <= min(counts):
        return job, changes
    flying = workers * depth
    fewer = max(n for n in range(1, min(counts) + 1) if flying % n == 0)
    said = f"{workers} workers with {depth} in flight → {fewer} with {flying // fewer} (each needs at least one queue)"
    return {**job, "workers": fewer, "depth": flying // fewer}, (*changes, said)


def _put(source: str, places: dict[str, str]) -> str:
    for name, at in places.items():
        source = source.replace(name, at)
    return source


class Fabric:
    """The services of one sweep, while it runs. Without needs, nothing."""

    def __init__(self, plan: Plan, link: Link, say: Callable[[str], None]) -> None:
        self.needs, self.source, self.link, self.say = plan.sweep.needs, plan.source, link, say
        self.bytes = max((p.job.get("file_bytes") or 0 for p in plan.points), default=0)
        self.drives = drives([s for p in plan.points for s in p.job.get("sources") or ()])
        self.places: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Fabric:
        try:
            if "target" in self.needs:
                self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def resolve(self, job: dict[str, Any]) -> dict[str, Any]:
        return named(job, self.places)

    def _start(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-sweep-")))
        if self.link.elsewhere:
            self.places[TARGET] = place = offered(self.link.elsewhere)
            self.say(f"target    {place}")
            self._file()
        else:
            self.places[TARGET] = self._target()
        if "gateway" in self.needs:
            self._gateways(folder)

    def _target(self) -> str:
        file = self._file()
        words, address = ["serve", file, "--nqn", NQN], "127.0.0.1"
        prefix: list[str] = []
        if self.link.netns:
            space = self._stack.enter_context(Namespace(self.link))
            prefix, address = space.prefix, space.there
        service = Service(prefix, [*words, "--listen", f"{address}:0"], r"listening on \S+:(\d+)")
        self._stack.enter_context(service)
        port = service.ready[1]
        self.say(f"target    {address}:{port} serves {file}")
        return f"nvme+tcp://{address}:{port}/{NQN}"

    def _file(self) -> str:
        """The file that is read here and served: as large as the points want, and made where a folder was given."""
        file = Path(str(self.source))
        has = file.stat().st_size if file.is_file() else None
        if has is not None and has >= self.bytes or file.is_block_device():
            return str(file)
        if file.name != FILE:
            found = f"it has {has or 0:,} bytes, and the points read {self.bytes:,}"
            raise RequestError(str(file), found, f"a larger one; {ELSE}")
        self.say(f"creating  {file}")
        job = {"sources": [str(file)], "op": "read", "path": "host", "io_bytes": 1 << 20}
        engine.run({**job, "create": True, "file_bytes": self.bytes, "duration_s": 0.05})
        return str(file)

    def _gateways(self, folder: Path) -> None:
        """One drive for each number of queues on the fabric; one process for those that have as many threads."""
        by_threads: dict[int, list[tuple[str, int]]] = {}
        for name, queues in self.drives.items():
            by_threads.setdefault(threads_of(queues), []).append((name, queues))
        for threads, drives in by_threads.items():
            config = folder / f"snap{threads}.toml"
            place(config, f"threads = {threads}\n" + "".join(self._drive(folder, *drive) for drive in drives))
            self._stack.enter_context(
                Service([], ["snap", str(config), "--rpc", str(folder / f"rpc{threads}.sock")], r"ready: ")
            )
        counts = ", ".join(str(n) for n in self.drives.values())
        self.say(f"gateway   drives in front of {self.places[TARGET].split('?')[0]}, with {counts} queues on the fabric")

    def _drive(self, folder: Path, name: str, queues: int) -> str:
        """Returns a drive of a gateway's configuration."""
        socket = folder / f"drive{queues}.sock"
        self.places[name] = f"vfio-user:{socket}"
        return (
            f'[[subsystems]]\nnqn = "{NQN}-gateway-{queues}"\n\n[[subsystems.namespaces]]\n'
            f'source = "{self.places[TARGET]}?queues={queues}"\n\n'
            f'[[subsystems.controllers]]\nname = "drive{queues}"\nsocket = "{socket}"\n\n'
        )


class Service:
    """One of our commands from its ready line to its end."""

    def __init__(self, prefix: list[str], words: list[str], ready: str) -> None:
        self.words, self.pattern = words, ready
        self.command = [*prefix, sys.executable, "-m", "forebay.cli", *words]
        self.lines: list[str] = []

    def __enter__(self) -> Service:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            # Ctrl-C is the sweep's to see; it ends its services itself.
            start_new_session=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            self.ready = self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            del self.lines[:-200]

    def _wait(self) -> re.Match[str]:
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            for line in list(self.lines):
                if found := re.search(self.pattern, line):
                    return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.reader.join(1)
        counts = "; ".join(self.lines[-3:]) or "nothing"
        why = f"wasn't ready in {READY_S:g} s; it said: {counts}"
        raise RunError(f"forebay {' '.join(self.words)}", why, "run that command by itself")

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class Namespace:
    """A network namespace joined to ours by a veth pair, its end shaped by netem where that was asked for."""

    def __init__(self, link: Link) -> None:
        self.link = link
        number = secrets.randbelow(LINKS)
        self.name = f"forebay-{number:04x}"
        self.here, self.there = (f"198.18.{number >> 6}.{(number & 63) * 4 + end}" for end in (1, 2))

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def __enter__(self) -> Namespace:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise MachineError("--netns", "needs root and iproute2", "sudo, or without --netns: loopback")
        near, far = self.name.replace("forebay", "fb") + "a", self.name.replace("forebay", "fb") + "b"
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self.name)
            _ip("addr", "add", f"{self.here}/30", "dev", near)
            _ip("link", "set", near, "up", "mtu", "9000")
            _ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", far)
            _ip("-n", self.name, "link", "set", far, "up", "mtu", "9000")
            _ip("-n", self.name, "link", "set", "lo", "up")
            if self.link.shaped:
                self._shape(far)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _shape(self, device: str) -> None:
        asked = (("delay", self.link.delay), ("rate", self.link.rate))
        wanted = [word for option, value in asked if value for word in (option, value)]
        qdisc = ["tc", "qdisc", "add", "dev", device, "root", "netem", *wanted, "limit", "100000"]
        _run([*self.prefix, *qdisc], "modprobe sch_netem")

    def __exit__(self, *exc: object) -> None:
        # The pair goes with its namespace.
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    _run(["ip", *words], "root, and a kernel with network namespaces and veth")


def _run(words: list[str], next: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MachineError(" ".join(words), error.strerror or str(error), next) from error
    if done.returncode:
        raise MachineError(" ".join(words), done.stderr.strip() or f"ended with {done.returncode}", next)
