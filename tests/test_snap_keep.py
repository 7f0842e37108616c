"""Gateways with a supervisor, killed again and again while `forebay bench` verifies what it reads and writes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import PATIENCE_S

pytestmark = pytest.mark.long

NQN = "nqn.2026-01.io.example:kept"
FOREBAY = [sys.executable, "-m", "forebay.cli"]
# Of `make soak`; otherwise as many as show that one kill is survived, and another one.
KILLS = 8
FEW = 2
CONTENT = 16 << 20


class Kept:
    """A supervisor, and the gateways that it runs one after the other."""

    def __init__(self, folder: Path, more: str = "", source: str = "", program: list[str] = FOREBAY) -> None:
        self.program = program
        self.rpc, self.drive, self.file = folder / "rpc", folder / "a.sock", folder / "snap.toml"
        self.said = folder / "said"
        # It waits for as long as a gateway takes to start on a busy machine.
        self.uri = f"vfio-user:{self.drive}?io_timeout=-1"
        self.content = folder / "content"
        self.content.write_bytes(bytes(CONTENT))
        self.file.write_text(
            f'rpc = "{self.rpc}"\nthreads = 2\n[[subsystems]]\nnqn = "{NQN}"\n'
            f'[[subsystems.namespaces]]\nsource = "{source or self.content}"\nwritable = true\n'
            f'[[subsystems.controllers]]\nname = "one"\nsocket = "{self.drive}"\nqueues = 4\n{more}'
        )
        self.process: subprocess.Popen[str] | None = None

    def start(self, *words: str) -> Kept:
        with self.said.open("w") as said:
            command = [*self.program, "snap", "--keep", str(self.file), "--json", *words]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        eventually(lambda: self.starts() == 1, self.reported)
        return self

    def reported(self) -> str:
        return self.said.read_text()

    def starts(self) -> int:
        return sum(line.startswith("ready") for line in self.reported().splitlines())

    def gateway(self) -> int:
        """The process of the gateway that runs, 0 where there is none."""
        assert self.process is not None
        assert self.process.poll() is None, self.reported()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def kill(self) -> None:
        """Kills the gateway, and waits for the next one."""
        before = self.starts()
        os.kill(self.gateway(), signal.SIGKILL)
        eventually(lambda: self.starts() > before, self.reported)

    def ask(self, *words: str) -> Any:
        command = [*FOREBAY, "snap", "rpc", "--socket", str(self.rpc), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def state(self) -> str:
        return str(self.ask("snap_stats_get")["controllers"][0]["state"])

    def moved(self) -> int:
        """Commands that its hosts' queues have had carried out."""
        queues = self.ask("snap_stats_get")["controllers"][0]["queues"]
        return sum(q["counts"]["reads"] + q["counts"]["writes"] for q in queues)

    def bench(self, *more: str) -> subprocess.Popen[str]:
        words = ["bench", self.uri, "--io-size", "16k", "--depth", "8", "--timeout", "200s", *more]
        command = [*FOREBAY, *words, "--json"]
        # What a run measured until it failed is saved there.
        place = self.rpc.parent
        return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, status: int = 0, how: signal.Signals = signal.SIGTERM) -> dict[str, Any]:
        assert self.process is not None
        self.process.send_signal(how)
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == status, self.reported()
        return json.loads(out)

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            gateway = self.gateway()
            self.process.kill()
            self.process.communicate()
            # Its supervisor's end is its own.
            eventually(lambda: not gateway or not Path(f"/proc/{gateway}").exists(), self.reported)


def eventually(holds: Callable[[], bool], why: Callable[[], str], within: float = 120) -> None:
    until = time.monotonic() + within
    while not holds():
        assert time.monotonic() < until, why()
        time.sleep(0.02)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.close()


def record(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    return json.loads(out)


@contextmanager
def under_verified_load(kept: Kept, seconds: int) -> Iterator[Future[None]]:
    """The load, in runs of so many seconds, which goes on until the end: then no I/O has failed, no byte is wrong, and no
    host saw its connection end."""
    own, enough, reported = ["--overwrite-device", kept.uri, "--verify"], threading.Event(), []

    def load() -> None:
        while not enough.is_set() or not reported:
            reported.append(record(kept.bench("--op", "randread", "--read-pct", "50", "--duration", str(seconds), *own)))

    record(kept.bench("--op", "write", "--passes", "1", *own))
    with ThreadPoolExecutor(1) as pool:
        try:
            yield (loaded := pool.submit(load))
        except BaseException:
            # What still runs ends with the gateway.
            kept.close()
            raise
        finally:
            enough.set()
        loaded.result()
    for one in reported:
        errors, path = one["result"]["errors"], one["path"]["fabric"][0]["paths"]
        assert (errors["failed"], errors["retried"], [p["reconnects"] for p in path]) == (0, 0, [0])
        assert one["result"]["bytes"] > 0
    record(kept.bench("--op", "read", "--passes", "1", "--verify"))
    ended = kept.end()["stats"]["controllers"][0]
    assert (ended["connections"], ended["protocol_errors"], ended["staged_bytes"]) == (len(reported) + 2, 0, 0)


SOAK = pytest.mark.soak


@pytest.mark.promise("SNP-10")
@pytest.mark.parametrize(
    ("poll", "kills"), [(False, FEW), pytest.param(False, KILLS, marks=SOAK), pytest.param(True, KILLS, marks=SOAK)]
)
def test_gateways_are_killed_again_and_again_under_verified_load(tmp_path, poll, kills):
    kept = Kept(tmp_path, f"poll = {str(poll).lower()}\n").start()
    rng = random.Random(poll)
    try:
        with under_verified_load(kept, 3 if kills > FEW else 1) as loaded:
            for _ in range(kills):
                eventually(lambda: loaded.done() or kept.state() == "enabled", kept.reported)
                time.sleep(rng.uniform(0, 1.5 if kills > FEW else 0.3))
                kept.kill()
        assert kept.starts() == kills + 1
    finally:
        kept.close()


class Target:
    """A target with a file behind it, at one port however often it is killed and started."""

    def __init__(self, folder: Path, program: list[str]) -> None:
        self.file, self.program = folder / "behind", program
        self.file.write_bytes(bytes(CONTENT))
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        words = ["serve", str(self.file), "--nqn", NQN, "--writable", "--listen", self.address, "--log", "off"]
        self.process = subprocess.Popen([*self.program, *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line
        self.address = line.split()[2]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.promise("SNP-10")
@pytest.mark.parametrize(
    ("daemon", "kills"),
    [
        pytest.param(False, FEW, id="forebay-few"),
        pytest.param(False, KILLS, id="forebay", marks=SOAK),
        pytest.param(True, KILLS, id="forebayd", marks=SOAK),
    ],
)
def test_a_gateway_and_its_target_are_killed_in_turn_under_verified_load(tmp_path, daemon, kills, request):
    """Each alone, then both: the next gateway is tried until it finds its target again."""
    program = [request.getfixturevalue("forebayd")] if daemon else FOREBAY
    target, rng = Target(tmp_path, program), random.Random(daemon)
    source = f"nvme+tcp://{target.address}/{NQN}?queues=2&replay_writes=1&reconnect_delay=0.2&fast_io_fail_tmo=200"
    kept = Kept(tmp_path, source=source, program=program).start()
    try:
        with under_verified_load(kept, 3 if kills > FEW else 1) as loaded:
            for step in range(kills):
                eventually(lambda: loaded.done() or kept.state() == "enabled", kept.reported)
                time.sleep(rng.uniform(0, 1))
                if step % 2:
                    target.kill()
                    time.sleep(rng.uniform(0, 0.5))
                    target.start()
                else:
                    kept.kill()
            before = kept.starts()
            target.kill()
            os.kill(kept.gateway(), signal.SIGKILL)
            eventually(lambda: "it ended with exit code" in kept.reported(), kept.reported)
            target.start()
            eventually(lambda: kept.starts() > before, kept.reported)
    finally:
        kept.close()
        target.kill()


@pytest.mark.promise("SNP-10")
@pytest.mark.parametrize("deaths", [FEW, pytest.param(6, marks=SOAK)])
def test_hosts_that_die_with_their_gateway_leave_the_drive_to_the_next(kept, deaths):
    """Whichever dies first, nothing of the host stays with the supervisor or with the next gateway."""
    kept.start()
    own, held = ["--overwrite-device", kept.uri, "--verify"], []
    record(kept.bench("--op", "write", "--passes", "1", *own))
    for step in range(deaths):
        host = kept.bench("--op", "randread", "--read-pct", "50", "--duration", "600", *own)
        eventually(lambda: kept.moved() > 0, kept.reported)
        dead, before = [host.pid, kept.gateway()], kept.starts()
        for pid in dead if step % 2 else reversed(dead):
            os.kill(pid, signal.SIGKILL)
        host.communicate()
        eventually(lambda before=before: kept.starts() > before, kept.reported)
        eventually(lambda: kept.state() == "waiting", kept.reported)
        controller = kept.ask("snap_stats_get")["controllers"][0]
        assert (controller["mapped_bytes"], controller["queues"], controller["protocol_errors"]) == (0, [], 0)
        held.append(len(os.listdir(f"/proc/{kept.process.pid}/fd")))
    assert held == held[:1] * len(held), "the supervisor's descriptors"
    record(kept.bench("--op", "read", "--passes", "1", "--verify"))
    kept.end()


@pytest.mark.promise("SNP-10")
def test_what_rpcs_changed_is_there_again(kept, tmp_path):
    kept.start()
    (tmp_path / "more").write_bytes(bytes(1 << 20))
    other = tmp_path / "b.sock"
    kept.ask("nvme_namespace_create", "--nqn", NQN, "--bdev_name", str(tmp_path / "more"), "--nsid", "7")
    kept.ask("nvme_controller_create", "--nqn", NQN, "--ctrl", "two", "--socket", str(other))
    kept.ask("nvme_controller_suspend", "--ctrl", "two")
    before = kept.ask("snap_config_get")
    kept.kill()
    assert kept.ask("snap_config_get") == before
    states = {c["name"]: c["state"] for c in kept.ask("snap_stats_get")["controllers"]}
    assert states == {"one": "waiting", "two": "suspended"} and other.exists()
    kept.ask("nvme_controller_destroy", "--ctrl", "two")
    kept.kill()
    assert not other.exists() and [c["name"] for c in kept.ask("snap_stats_get")["controllers"]] == ["one"]
    kept.end()


@pytest.mark.promise("SNP-10")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both_gracefully(kept, how):
    kept.start()
    kept.kill()
    gateway = kept.gateway()
    document = kept.end(how=how)
    assert document["drained"] is True and document["schema"] == "forebay.snap/1"
    assert not Path(f"/proc/{gateway}").exists() and not kept.drive.exists() and not kept.rpc.exists()


@pytest.mark.promise("SNP-10")
def test_a_gateway_whose_supervisor_is_killed_ends(kept):
    kept.start()
    gateway = kept.gateway()
    assert kept.process is not None
    kept.process.kill()
    kept.process.communicate()
    eventually(lambda: not Path(f"/proc/{gateway}").exists(), kept.reported)
    # Nothing is in the next one's way.
    kept.start()
    kept.end()


@pytest.mark.promise("SNP-10")
def test_hosts_wait_while_the_source_is_away(kept):
    """The supervisor says what keeps the next gateway from starting, and tries again."""
    kept.start()
    away = kept.content.with_suffix(".away")
    run = kept.bench("--op", "randread", "--duration", "600", "--warmup", "0")
    eventually(lambda: kept.state() == "enabled", kept.reported)
    kept.content.rename(away)
    os.kill(kept.gateway(), signal.SIGKILL)
    eventually(lambda: kept.reported().count("it ended with exit code 2") >= 2, kept.reported)
    assert str(kept.content) in kept.reported() and "Traceback" not in kept.reported()
    assert run.poll() is None
    away.rename(kept.content)
    eventually(lambda: kept.starts() == 2 and kept.moved() > 0, kept.reported)
    run.send_signal(signal.SIGTERM)
    assert record(run, 130)["result"]["errors"]["failed"] == 0
    kept.end()


@pytest.mark.promise("SNP-10")
def test_what_never_served_is_not_started_again(kept):
    kept.file.write_text(kept.file.read_text().replace(str(kept.content), "/none"))
    for words, found in [([], "/none"), (["--take-over"], "--keep --take-over")]:
        done = subprocess.run(
            [*FOREBAY, "snap", "--keep", str(kept.file), *words], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert found in done.stderr and "started again" not in done.stderr


@pytest.mark.promise("SNP-10")
@pytest.mark.soak
def test_at_rest_neither_takes_processor_time(kept):
    kept.start()
    assert kept.process is not None

    def ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    pids = [kept.process.pid, kept.gateway()]
    time.sleep(1)
    before = [ticks(pid) for pid in pids]
    time.sleep(3)
    taken = [after - b for after, b in zip(map(ticks, pids), before, strict=True)]
    assert taken[0] <= 1 and taken[1] <= 6, "in hundredths of a second"
    kept.end()
