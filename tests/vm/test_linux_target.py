"""Our own host, and all that is built on it, against Linux's NVMe/TCP target (nvmet) in a guest."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from vm import linux
from vm.guest import Guest
from vm.image import HOST_ID, HOST_NQN
from vm.serving import MIB

NQN = "nqn.2026-01.io.forebay:kernel"
OTHER = "nqn.2026-01.io.forebay:other"
# So that a run without a way to its namespace ends within a test.
PATIENCE = "fast_io_fail_tmo=8&ctrl_loss_tmo=30&reconnect_delay=1&kato=3"
Forebay = Callable[..., "subprocess.CompletedProcess[str]"]


def uri(guest: Guest, *keys: str, nqn: str = NQN, port: int = 4420) -> str:
    query = "&".join([f"hostnqn={HOST_NQN}", f"hostid={HOST_ID}", *keys])
    return f"nvme+tcp://127.0.0.1:{guest.ports[port]}/{nqn}?{query}"


def ran(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    """The document of a command that ended as it should."""
    assert done.returncode == status, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)


def bench(source: str, op: str, *more: str, io: str = "128k") -> list[str]:
    """`forebay bench` that checks every byte; writes are let at the namespace that the source names."""
    over = [] if op.endswith("read") else ["--overwrite-device", source]
    return ["bench", source, "--op", op, "--io-size", io, "--depth", "8", "--verify", *over, "--json", *more]


@dataclass
class Load:
    """A bench that runs beside the test."""

    source: str
    op: str
    seconds: float
    more: Sequence[str] = ()
    port: int = field(init=False)
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        reported = ["--metrics", str(self.port), "--duration", str(self.seconds)]
        arguments = bench(self.source, self.op, *reported, *self.more, io="16k")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begun(self, within: float = 60) -> Load:
        """Once it has read something that counts, whatever it waited for until then."""
        until = time.monotonic() + within
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as page:
                    reported = dict(line.rsplit(" ", 1) for line in page.read().decode().splitlines() if line[0] != "#")
            except OSError:
                reported = {}
            if 'forebay_live_phase{phase="measure"}' in reported and float(reported.get("forebay_live_bytes", 0)) > 0:
                return self
            time.sleep(0.2)
        self.process.kill()
        stdout, stderr = self.process.communicate()
        raise AssertionError(f"nothing was read within {within} s\n{stdout[-2000:]}\n{stderr[-3000:]}")

    def done(self, status: int = 0) -> Any:
        stdout, stderr = self.process.communicate(timeout=self.seconds + 90)
        return ran(subprocess.CompletedProcess(self.process.args, self.process.returncode, stdout, stderr), status)


def unharmed(record: Any) -> None:
    """Every byte was checked, those of the warm-up too, and no I/O failed."""
    result = record["result"]
    assert result["verified_bytes"] >= result["bytes"] > 0, result
    assert not result["errors"]["failed"] and not result["errors"]["verify_failed"], result["errors"]


@pytest.fixture
def load() -> Iterator[Callable[..., Load]]:
    """`load(source, op, seconds)` → a Load that doesn't outlive the test."""
    started: list[Load] = []

    def start(source: str, op: str, seconds: float, *more: str) -> Load:
        started.append(Load(source, op, seconds, more))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()


@pytest.fixture
def exported(target: linux.Target) -> linux.Target:
    """The guest's target with one namespace of 32 MiB at its port 4420."""
    target.subsystem(NQN, {1: target.ram(32)})
    target.port(1, 4420, NQN)
    return target


def filled(forebay: Forebay, source: str, mib: int = 8) -> None:
    """Writes the content that later reads are compared with."""
    ran(forebay(*bench(source, "write", "--passes", "1", "--file-size", f"{mib}m"), timeout=180))


# Looking ------------------------------------------------------------------------------------------


@pytest.mark.promise("LIN-13")
def test_discover_lists_what_linux_offers(guest: Guest, exported: linux.Target, forebay: Forebay) -> None:
    found = ran(forebay("discover", f"127.0.0.1:{guest.ports[4420]}", "--json"))
    records = {r["subnqn"]: r for r in found["records"]}
    assert NQN in records and records[NQN]["trtype"] == "tcp" and records[NQN]["trsvcid"] == "4420", found
    assert records[NQN]["uri"].startswith("nvme+tcp://"), found
    shown = forebay("discover", f"127.0.0.1:{guest.ports[4420]}")
    assert shown.returncode == 0 and NQN in shown.stdout


@pytest.mark.promise("LIN-13")
def test_discover_shows_a_host_only_what_it_may_use(guest: Guest, target: linux.Target, forebay: Forebay) -> None:
    disk = target.ram(8)
    target.subsystem(NQN, {1: disk}, any_host=False)
    target.subsystem(OTHER, {1: disk})
    target.port(1, 4420, NQN, OTHER)
    target.allow(NQN, HOST_NQN)
    address = f"127.0.0.1:{guest.ports[4420]}"
    mine = ran(forebay("discover", address, "--hostnqn", HOST_NQN, "--json"))
    other = ran(forebay("discover", address, "--hostnqn", "nqn.2026-01.io.forebay:somebody", "--json"))
    assert {NQN, OTHER} <= {r["subnqn"] for r in mine["records"]}
    assert NQN not in {r["subnqn"] for r in other["records"]}


@pytest.mark.promise("LIN-13")
def test_identify_says_what_linux_says(guest: Guest, exported: linux.Target, forebay: Forebay) -> None:
    found = ran(forebay("identify", uri(guest), "--json"))
    summary = found["summary"]
    assert summary["nqn"] == NQN and summary["model"] == "Linux" and summary["in_capsule_bytes"] == 16384
    assert [n["nsid"] for n in found["namespaces"]] == [1]
    assert found["namespaces"][0]["bytes"] == 32 * MIB and found["namespaces"][0]["block_bytes"] == 4096
    shown = forebay("identify", uri(guest))
    assert shown.returncode == 0 and "32 MiB in blocks of 4096" in shown.stdout, shown.stdout + shown.stderr


# Moving bytes -------------------------------------------------------------------------------------


@pytest.mark.promise("LIN-14")
@pytest.mark.parametrize("digests", ["", "hdgst=1", "ddgst=1", "hdgst=1&ddgst=1"], ids=["none", "header", "data", "both"])
def test_what_is_written_is_read_back(guest: Guest, exported: linux.Target, forebay: Forebay, digests: str) -> None:
    """In the capsule (4k, 16k), asked for by R2T (20k, 128k, 1m); by several queues; and every block where it belongs."""
    source = uri(guest, "queues=3", *([digests] if digests else []))
    for io, workers in (("4k", "1"), ("16k", "3"), ("20k", "2"), ("1m", "3")):
        size = {"4k": "512k", "16k": "1m", "20k": "1280k", "1m": "6m"}[io]
        more = ["--passes", "1", "--workers", workers, "--file-size", size, "--seed", str(len(io))]
        written = ran(forebay(*bench(source, "write", *more, io=io), timeout=180))
        read = ran(forebay(*bench(source, "read", *more, io=io), timeout=180))
        assert written["result"]["bytes"] == read["result"]["verified_bytes"] == read["result"]["bytes"], io
        assert not any(read["result"]["errors"].values()), read["result"]["errors"]


@pytest.mark.promise("LIN-14")
@pytest.mark.timeout(900)
def test_blocks_lie_in_the_guest_where_they_were_written(
    guest: Guest, target: linux.Target, forebay: Forebay
) -> None:
    """Content that names its offset, seen from the other end: no two blocks are alike, and a second pass changes none."""
    disk = target.ram(8)
    target.subsystem(NQN, {1: disk})
    target.port(1, 4420, NQN)
    filled(forebay, uri(guest), 8)
    sums = f"for n in $(seq 0 255); do dd if={disk} bs=32k skip=$n count=1 2>/dev/null | md5sum; done"
    first = guest.run(sums, 300).output.splitlines()
    assert len(set(first)) == 256
    ran(forebay(*bench(uri(guest), "randwrite", "--duration", "2", "--file-size", "8m", io="32k"), timeout=120))
    assert guest.run(sums, 300).output.splitlines() == first


@pytest.mark.promise("LIN-14")
def test_a_stripe_over_two_namespaces(guest: Guest, target: linux.Target, forebay: Forebay) -> None:
    target.subsystem(NQN, {1: target.ram(16), 2: target.ram(16)})
    target.port(1, 4420, NQN)
    members = [uri(guest, f"nsid={n}") for n in (1, 2)]
    encoded = [m.replace("%", "%25").replace("&", "%26") for m in members]
    source = f"stripe:?chunk=64k&m={encoded[0]}&m={encoded[1]}"
    over = ["--overwrite-device", members[0], "--overwrite-device", members[1]]
    for op in ("write", "read"):
        done = ran(forebay(*bench(source, op, "--passes", "1", "--file-size", "8m", *over), timeout=180))
    assert done["result"]["verified_bytes"] == 8 * MIB


# What can't be ------------------------------------------------------------------------------------


def test_a_namespace_is_not_written_unless_it_is_named(guest: Guest, exported: linux.Target, forebay: Forebay) -> None:
    done = forebay("bench", uri(guest), "--op", "write", "--passes", "1", "--json")
    assert done.returncode == 2 and "--overwrite-device" in done.stderr, done.stderr


# Trouble ------------------------------------------------------------------------------------------


@pytest.mark.promise("LIN-16")
def test_a_port_removed_and_added_again_under_load(
    guest: Guest, exported: linux.Target, forebay: Forebay, load: Callable[..., Load]
) -> None:
    source = uri(guest, "queues=2", "reconnect_delay=1", "kato=3")
    filled(forebay, source)
    running = load(source, "randread", 9, "--file-size", "8m", "--workers", "2").begun()
    for _ in range(2):
        time.sleep(1)
        exported.unexport(1, NQN)
        time.sleep(1)
        exported.export(1, NQN)
    unharmed(running.done())


@pytest.mark.promise("LIN-16")
def test_a_frozen_target_is_waited_for(
    guest: Guest, exported: linux.Target, forebay: Forebay, load: Callable[..., Load]
) -> None:
    source = uri(guest, "kato=30")
    filled(forebay, source)
    running = load(source, "randread", 8, "--file-size", "8m").begun()
    time.sleep(1)
    guest.freeze()
    time.sleep(2)
    guest.thaw()
    unharmed(running.done())


@pytest.mark.promise("LIN-18")
def test_a_target_that_falls_silent_is_given_up(
    guest: Guest, exported: linux.Target, forebay: Forebay, load: Callable[..., Load]
) -> None:
    """Connections that stay open and answer nothing: the keep-alive time-out finds it, and the run ends by itself."""
    source = uri(guest, PATIENCE)
    filled(forebay, source)
    running = load(source, "randread", 60, "--file-size", "8m").begun()
    time.sleep(1)
    guest.freeze()
    try:
        record = running.done(4)
    finally:
        guest.thaw()
    assert record["result"]["bytes"] > 0, "what was measured is kept"


@pytest.mark.promise("LIN-17")
def test_one_path_of_two_goes_and_the_other_carries_on(
    guest: Guest, exported: linux.Target, forebay: Forebay, load: Callable[..., Load]
) -> None:
    exported.port(2, 4421, NQN)
    source = uri(guest, f"path=127.0.0.1:{guest.ports[4421]}", "reconnect_delay=1", "kato=3")
    filled(forebay, source)
    running = load(source, "randread", 8, "--file-size", "8m", "--workers", "2").begun()
    time.sleep(1)
    exported.unexport(1, NQN)
    time.sleep(2)
    exported.export(1, NQN)
    time.sleep(1)
    exported.unexport(2, NQN)
    unharmed(running.done())


@pytest.mark.promise("LIN-18")
def test_a_namespace_that_goes_ends_the_run(
    guest: Guest, exported: linux.Target, forebay: Forebay, load: Callable[..., Load]
) -> None:
    source = uri(guest, PATIENCE)
    filled(forebay, source)
    running = load(source, "randread", 60, "--file-size", "8m").begun()
    time.sleep(1)
    exported.remove_namespace(NQN, 1)
    record = running.done(4)
    assert record["result"]["bytes"] > 0
