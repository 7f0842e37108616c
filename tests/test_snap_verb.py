"""`forebay snap` without a host: files, what is refused, signals, and what is handed out with it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import service_process

HERE = Path(__file__).parent
DEPLOY = HERE.parent / "deploy"
NQN = "nqn.2026-01.io.example:a"
GOOD = f"""
rpc = "off"
[[subsystems]]
nqn = "{NQN}"
[[subsystems.namespaces]]
source = "nil:?size=1g"
qos = {{ rate = "1g", iops = 5000 }}
[[subsystems.controllers]]
socket = "/run/forebay/a.sock"
[[subsystems.controllers]]
front = "ublk"
namespaces = [1]
"""


class Running(service_process.Running):
    """With one drive, at a.sock beside the file."""

    def __init__(self, file: Path, *arguments: str) -> None:
        text = GOOD.replace("/run/forebay", str(file.parent)).partition('[[subsystems.controllers]]\nfront = "ublk"')[0]
        file.write_text(text.replace('rpc = "off"', f'rpc = "{file.parent}/rpc.sock"'))
        super().__init__("snap", file, *arguments)


# What is asked for ---------------------------------------------------------------------------------


@pytest.mark.promise("SNP-1")
def test_a_file_is_checked_and_told_in_words(forebay, tmp_path):
    file = tmp_path / "snap.toml"
    file.write_text(GOOD)
    done = forebay("snap", "--check", file)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.splitlines() == [
        "rpc        off",
        f"subsystem  {NQN}",
        "           nsid 1: nil:?size=1g, read-only, at most 1 GiB/s and 5,000 IOPS",
        "           NVMeCtrl1: vfio-user at /run/forebay/a.sock, all namespaces",
        "           NVMeCtrl2: ublk at any free device, nsid 1",
    ]
    found = json.loads(forebay("snap", "--check", file, "--json").stdout)
    again = tmp_path / "snap.json"
    again.write_text(json.dumps(found))
    assert json.loads(forebay("snap", "--check", again, "--json").stdout) == found


@pytest.mark.promise("SNP-1")
def test_a_check_judges_the_socket_that_would_be_used(forebay, tmp_path):
    file = tmp_path / "snap.toml"
    file.write_text(GOOD)
    done = forebay("snap", "--rpc", "/tmp/other.sock", "--check", file)
    assert done.returncode == 0 and "rpc        /tmp/other.sock" in done.stdout
    for path, said in (("relative.sock", "absolute"), ("/" + "x" * 107, "at most 107")):
        done = forebay("snap", "--rpc", path, "--check", file)
        assert done.returncode == 2 and said in done.stderr and not done.stdout, done.stderr


# (what is changed in GOOD, what the message says)
BAD_FILES = [
    ("nqn = ", "nqm = ", "nqm"),
    (f'"{NQN}"', '"disk"', "qualified name"),
    ('rpc = "off"', 'rpc = "snap.sock"', "absolute"),
    ('rpc = "off"', "threads = 1000", "threads"),
    ('rpc = "off"', 'cpus = "0-"', "cpus 0-"),
    ('rpc = "off"', 'cpus = "1023"', "CPU 1023"),
    ('rpc = "off"', "rpc = [", "line"),
    ('source = "nil:?size=1g"', 'source = "nil:?sise=1g"', "sise"),
    ('source = "nil:?size=1g"', 'source = "nil:"\nblock_bytes = 1000', "512 or 4096"),
    ("iops = 5000", "iops = 0", "0 would block all I/O"),
    ('socket = "/run/forebay/a.sock"', "", "needs it"),
    ('socket = "/run/forebay/a.sock"', f'socket = "/{"x" * 120}"', "at most 107"),
    ('front = "ublk"', 'front = "nbd"', "nbd"),
    ('front = "ublk"', 'front = "ublk"\nqueues = 0', "queues of NVMeCtrl2"),
    ("namespaces = [1]", "namespaces = [9]", "of: 1"),
    ('[[subsystems.namespaces]]\nsource = "nil:?size=1g"\nqos = { rate = "1g", iops = 5000 }', "", "nvme_namespace_create"),
]


@pytest.mark.promise("SNP-1")
@pytest.mark.parametrize(("old", "new", "said"), BAD_FILES)
def test_a_file_that_cannot_be_is_refused_by_name(forebay, tmp_path, old, new, said):
    assert old in GOOD
    file = tmp_path / "snap.toml"
    file.write_text(GOOD.replace(old, new))
    done = forebay("snap", file)
    assert done.returncode == 2, done.stderr
    assert str(file) in done.stderr and said in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "CONFIG.toml"),
        (["nil:"], "neither CONFIG.toml nor rpc"),
        (["/no/such.toml"], "/no/such.toml"),
        (["/no/such.toml", "--drain", "soon"], "--drain soon"),
        (["/no/such.toml", "--log", "xml"], "--log xml"),
        (["rpc", "nvme_subsystem_make"], "no such verb"),
        (["rpc", "nvme_subsystem_create"], "--nqn"),
        (["rpc", "nvme_subsystem_create", "--nqn"], "no value"),
        (["rpc", "nvme_subsystem_list", "--all"], "no such flag"),
        (["rpc", "nvme_namespace_destroy", "-s", NQN, "-n", "one"], "not a number"),
        (["rpc", "--socket"], "no value"),
    ],
)
def test_words_that_cannot_be_are_refused_by_name(forebay, arguments, said):
    done = forebay("snap", *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("SNP-2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_a_gateway_that_does_not_answer(tmp_path, number):
    path = tmp_path / "held.sock"
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(path))
        held.listen()
        held.settimeout(processes.PATIENCE_S)
        words = ["snap", "rpc", "-s", str(path), "nvme_controller_list"]
        with processes.running([*processes.FOREBAY, *words]) as asking:
            client, _ = held.accept()
            with client:
                client.settimeout(processes.PATIENCE_S)
                assert b"nvme_controller_list" in client.recv(4096)
                asking.send_signal(number)
                _, said = asking.communicate(timeout=processes.PATIENCE_S)
    assert asking.returncode == 130 and "interrupted" in said, said
    assert f"{path} nvme_controller_list: the gateway hasn't answered yet" in said


def test_rpcs_without_a_gateway_say_so_with_exit_code_3(forebay, tmp_path):
    done = forebay("snap", "rpc", "--socket", str(tmp_path / "none.sock"), "nvme_controller_list")
    assert done.returncode == 3 and "no gateway" in done.stderr and "forebay snap CONFIG.toml" in done.stderr


def test_help_of_rpcs_names_the_verbs_and_their_flags(forebay):
    for words in (["rpc"], ["rpc", "--help"]):
        done = forebay("snap", *words)
        assert done.returncode == 0 and "nvme_controller_attach_ns" in done.stdout
    done = forebay("snap", "rpc", "nvme_controller_create", "--help")
    assert done.returncode == 0 and "-n, --num_queues N" in done.stdout


# Its life ------------------------------------------------------------------------------------------


@pytest.mark.promise("SNP-4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_gracefully_with_0_and_totals(tmp_path, number):
    with Running(tmp_path / "snap.toml") as running:
        assert f" at {tmp_path}/a.sock: nsid 1, " in running.wait_for("stderr", "NVMeCtrl1 of")
        assert running.wait_for("stdout", "ready") == f"ready: 1 controller · RPCs at {tmp_path}/rpc.sock"
        running.process.send_signal(signal.SIGHUP)
        assert "forebay snap rpc" in running.wait_for("stderr", "reload")
        code, out, err = running.end(number)
    assert code == 0
    assert "waiting up to 10 s for commands to finish" in err and "event=stopped" in err
    assert re.fullmatch(r"moved     0 B read, 0 B written in .* · 0 B staged · 0 errors\n", out)


@pytest.mark.promise("SNP-4")
def test_with_json_one_document_is_all_of_stdout(tmp_path):
    with Running(tmp_path / "snap.toml", "--json", "--rpc", "off") as running:
        assert running.wait_for("stderr", "ready") == "ready: 1 controller · no RPCs"
        code, out, _ = running.end()
    document = json.loads(out)
    assert code == 0 and document["schema"] == "forebay.snap/1" and document["drained"] is True
    assert document["rpc"] is None and document["handed_over"] is False and document["stats"]["staged_bytes"] == 0


# What is handed out with it ------------------------------------------------------------------------


def test_the_example_configuration_can_be(forebay):
    done = forebay("snap", "--check", DEPLOY / "snap.toml", "--json")
    assert done.returncode == 0, done.stderr
    (subsystem,) = json.loads(done.stdout)["subsystems"]
    assert [c["name"] for c in subsystem["controllers"]] == ["NVMeCtrl1"]


def test_the_units_commands_are_ours():
    from forebay.snap import command

    unit = (DEPLOY / "forebay-snap.service").read_text()
    flags = {o for p in command.params for o in p.opts}
    commands = re.findall(r"^Exec\w+=\S+/forebay snap (.*)$", unit, re.M)
    assert len(commands) == 2 and all(set(re.findall(r"--[\w-]+", c)) <= flags for c in commands)
    drain, stop = re.search(r"--drain (\d+)", unit), re.search(r"^TimeoutStopSec=(\d+)", unit, re.M)
    assert drain and stop and int(drain[1]) < int(stop[1])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    text = (DEPLOY / "forebay-snap.service").read_text().replace("/usr/local/bin/forebay", sys.executable)
    unit = tmp_path / "forebay-snap.service"
    unit.write_text(text)
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert unit.name not in checked.stderr, checked.stderr
