"""Gateways that change their process, or are killed, while `forebay bench` reads: real processes from end to end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import PATIENCE_S
from serve_support import eventually

pytestmark = pytest.mark.long

NQN = "nqn.2026-01.io.example:a"
FOREBAY = [sys.executable, "-m", "forebay.cli"]


class Place:
    """A gateway's file and sockets, and the processes that had them one after the other."""

    def __init__(self, folder: Path) -> None:
        self.rpc, self.drive, self.file = folder / "rpc", folder / "a.sock", folder / "snap.toml"
        (folder / "content").write_bytes(bytes(range(256)) * 4096 * 16)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.file.write_text(
            f'rpc = "{self.rpc}"\nmetrics = "{self.port}"\nthreads = 1\n[[subsystems]]\nnqn = "{NQN}"\n'
            f'[[subsystems.namespaces]]\nsource = "{folder}/content"\nwritable = true\n'
            f'[[subsystems.controllers]]\nname = "one"\nsocket = "{self.drive}"\nqueues = 4\n'
        )
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*FOREBAY, "snap", str(self.file), "--json", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("ready"):
                return process
        raise AssertionError("".join(said))

    def bench(self, more: str, seconds: float) -> subprocess.Popen[str]:
        words = ["bench", f"vfio-user:{self.drive}?reconnect_delay=0.1{more}", "--op", "randread", "--io-size", "16k"]
        words += ["--depth", "8", "--timeout", "200s", "--warmup", "0", "--duration", str(seconds), "--json"]
        # What it measured until it failed is saved there.
        place = self.rpc.parent
        return subprocess.Popen([*FOREBAY, *words], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def reads(self) -> int:
        command = [*FOREBAY, "snap", "rpc", "--socket", str(self.rpc), "snap_stats_get"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return sum(q["counts"]["reads"] for q in json.loads(done.stdout)["controllers"][0]["queues"])

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_S) as answer:
            return answer.read().decode()

    def under_load(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while self.reads() == 0:
            assert time.monotonic() < until
            time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def reported(process: subprocess.Popen[str], status: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status, f"{process.returncode}\n{err}"
    return json.loads(out)


def answered(place: Place) -> str:
    try:
        return place.metrics()
    except OSError:
        return ""


@pytest.mark.promise("SNP-7", "SNP-12")
def test_a_newer_gateway_takes_its_place_and_the_old_one_ends(place):
    old = place.start()
    run = place.bench("&io_timeout=-1", 600)
    place.under_load()
    new = place.start("--take-over")
    ended = reported(old)
    assert ended["handed_over"] is True and ended["drained"] is True
    before = place.reads()
    newest = place.start("--take-over")
    assert reported(new)["handed_over"] is True
    assert place.reads() >= before > 0
    metrics = eventually(lambda: answered(place), "the newest gateway's metrics")
    assert re.search(r"^forebay_namespace_reads_total\{.*\} [1-9]", metrics, re.M), metrics
    run.send_signal(signal.SIGTERM)
    record = reported(run, 130)
    errors = record["result"]["errors"]
    assert (errors["failed"], errors["retried"]) == (0, 0) and record["result"]["bytes"] > 0
    assert [path["reconnects"] for path in record["path"]["fabric"][0]["paths"]] == [0]
    newest.send_signal(signal.SIGTERM)
    ended = reported(newest)
    assert ended["handed_over"] is False and ended["stats"]["controllers"][0]["connections"] == 1
    assert not place.drive.exists() and not place.rpc.exists()


@pytest.mark.promise("SNP-9")
def test_a_run_goes_on_where_a_killed_gateway_comes_back(place):
    first = place.start()
    run = place.bench("&io_timeout=-1&fast_io_fail_tmo=200", 600)
    place.under_load()
    first.kill()
    first.communicate()
    place.start("--take-over")
    place.under_load()
    run.send_signal(signal.SIGTERM)
    record = reported(run, 130)
    assert record["result"]["bytes"] > 0
    assert [path["reconnects"] for path in record["path"]["fabric"][0]["paths"]] == [1]


@pytest.mark.promise("SNP-9")
def test_a_run_that_is_not_to_wait_fails_fast(place):
    first = place.start()
    run = place.bench("&fast_io_fail_tmo=0&ctrl_loss_tmo=0", 600)
    place.under_load()
    first.kill()
    first.communicate()
    # It doesn't wait for the end of its ten minutes.
    _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 4 and "Traceback" not in err, err
