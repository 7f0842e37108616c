"""A real gateway without a host: the installed command, its sockets, and RPCs that change it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PATIENCE_S

NQN = "nqn.2026-01.io.example:a"


class Gateway:
    """`forebay snap` over a namespace without content, its sockets in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.rpc_path, self.drive = folder / "snap.sock", folder / "a.sock"
        self.file = folder / "snap.toml"
        self.file.write_text(
            f'rpc = "{self.rpc_path}"\nthreads = 1\n[[subsystems]]\nnqn = "{NQN}"\n'
            '[[subsystems.namespaces]]\nsource = "nil:?size=1g"\n'
            f'[[subsystems.controllers]]\nname = "one"\nsocket = "{self.drive}"\nqueues = 4\n'
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", "snap", str(self.file), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("ready"):
                break
        assert self.said and self.said[-1].startswith("ready: 1 controller"), "".join(self.said)

    def rpc(self, *words: str, status: int = 0) -> object:
        command = [sys.executable, "-m", "forebay.cli", "snap", "rpc", "--socket", str(self.rpc_path), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout) if status == 0 else done.stderr

    def end(self) -> tuple[int, dict[str, object]]:
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, json.loads(out)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.mark.promise("SNP-3")
def test_sockets_are_their_owners_alone_and_go_with_the_gateway(gateway):
    for path in (gateway.rpc_path, gateway.drive):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and stat.S_ISSOCK(os.stat(path).st_mode)
    code, document = gateway.end()
    assert code == 0 and document["drained"] is True and document["stats"]["staged_bytes"] == 0
    assert not gateway.rpc_path.exists() and not gateway.drive.exists()


@pytest.mark.promise("SNP-3")
def test_what_a_killed_gateway_left_is_in_nobodys_way(gateway, tmp_path):
    gateway.process.kill()
    gateway.process.communicate()
    assert gateway.rpc_path.exists()
    again = Gateway(tmp_path)
    assert again.end()[0] == 0


@pytest.mark.promise("SNP-3")
def test_a_second_gateway_on_the_same_sockets_is_one_too_many(gateway):
    command = [sys.executable, "-m", "forebay.cli", "snap", str(gateway.file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2 and ".sock" in done.stderr, done.stderr
    assert gateway.rpc("nvme_controller_list")


@pytest.mark.long
@pytest.mark.promise("SNP-2")
def test_rpcs_change_what_hosts_may_have(gateway, tmp_path):
    (first,) = gateway.rpc("nvme_controller_list")
    assert (first["ctrl_id"], first["state"], first["namespaces"], first["num_queues"]) == ("one", "waiting", [1], 4)
    other, drive = f"{NQN}2", tmp_path / "two.sock"
    gateway.rpc("nvme_subsystem_create", "--nqn", other, "--serial_number", "S2")
    made = gateway.rpc("nvme_namespace_create", "-s", other, "-b", "nil:?size=2g", "--writable", "--rate", "1g")
    assert made == {"nqn": other, "nsid": 1}
    gateway.rpc("nvme_controller_create", "-s", other, "-c", "two", "--socket", str(drive), "--num_queues", "2")
    assert stat.S_ISSOCK(os.stat(drive).st_mode)
    gateway.rpc("nvme_controller_attach_ns", "-c", "two", "-n", "1")
    (subsystem,) = gateway.rpc("nvme_subsystem_list", "--nqn", other)
    assert (subsystem["sn"], subsystem["namespaces"][0]["controllers"]) == ("S2", ["two"])
    assert subsystem["namespaces"][0]["bytes"] == 2 << 30
    gateway.rpc("nvme_namespace_set_source", "--nqn", other, "--nsid", "1", "--source", "nil:?size=2048m")
    assert "blocks" in gateway.rpc(
        "nvme_namespace_set_source", "--nqn", other, "--nsid", "1", "--source", "nil:?size=3g", status=2
    )
    gateway.rpc("nvme_controller_suspend", "-c", "two", "-t", "5000")
    assert gateway.rpc("nvme_controller_list", "-c", "two")[0]["state"] == "suspended"
    gateway.rpc("nvme_controller_resume", "-c", "two")
    assert gateway.rpc("nvme_controller_list", "-c", "two")[0]["state"] == "waiting"
    assert "has the controller two" in gateway.rpc("nvme_subsystem_destroy", "--nqn", other, status=2)
    gateway.rpc("nvme_subsystem_destroy", "--nqn", other, "--force")
    assert not drive.exists()
    assert [s["nqn"] for s in gateway.rpc("nvme_subsystem_list")] == [NQN]


@pytest.mark.promise("SNP-2")
def test_what_came_of_rpcs_is_a_file_to_begin_with(gateway, tmp_path):
    gateway.rpc("nvme_namespace_create", "-s", NQN, "-b", "nil:?size=2g", "-n", "7", "--iops", "5000")
    file = tmp_path / "again.json"
    file.write_text(json.dumps(gateway.rpc("snap_config_get")))
    done = subprocess.run([sys.executable, "-m", "forebay.cli", "snap", "--check", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nsid 7: nil:?size=2g, read-only, at most 5,000 IOPS" in done.stdout


@pytest.mark.promise("SNP-4")
@pytest.mark.soak
def test_a_gateway_at_rest_takes_no_processor_time(gateway):
    ticks = os.sysconf("SC_CLK_TCK")

    def cpu_s() -> float:
        fields = Path(f"/proc/{gateway.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    time.sleep(0.5)
    before = cpu_s()
    time.sleep(3)
    # The command itself looks after the watchdog once a second.
    assert cpu_s() - before <= 0.03


@pytest.mark.promise("GWY-7")
def test_without_the_driver_a_block_device_is_refused_with_what_to_type(gateway):
    if Path("/dev/ublk-control").exists():
        pytest.skip("this machine's kernel has ublk; tests/vm/test_ublk.py makes devices")
    said = gateway.rpc("nvme_controller_create", "-s", NQN, "--front", "ublk", "-c", "disk", status=3)
    assert "/dev/ublk-control" in said and "modprobe ublk_drv" in said
    assert [c["ctrl_id"] for c in gateway.rpc("nvme_controller_list")] == ["one"]
    assert "doorbells" in gateway.rpc(
        "nvme_controller_create", "-s", NQN, "--front", "ublk", "-c", "disk", "--poll", status=2
    )


@pytest.mark.promise("GWY-7")
def test_a_configuration_with_a_block_device_says_what_to_type_too(forebay, tmp_path):
    if Path("/dev/ublk-control").exists():
        pytest.skip("this machine's kernel has ublk; tests/vm/test_ublk.py makes devices")
    file = tmp_path / "snap.toml"
    file.write_text(
        f'rpc = "off"\n[[subsystems]]\nnqn = "{NQN}"\n[[subsystems.namespaces]]\nsource = "nil:?size=1g"\n'
        '[[subsystems.controllers]]\nfront = "ublk"\ndevice = 3\n'
    )
    done = forebay("snap", file)
    assert done.returncode == 3 and "modprobe ublk_drv" in done.stderr and not done.stdout
