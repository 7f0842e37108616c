"""`forebay serve` without a host: flags and files, what is refused, signals, systemd."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import processes
import pytest
import serve_support
from properties import parametrized
from service_process import Running

NQN = "nqn.2026-01.io.example:a"
HERE = Path(__file__).parent
GOOD = f"""
listen = ["127.0.0.1:0"]
[[subsystems]]
nqn = "{NQN}"
allow_any_host = true
[[subsystems.namespaces]]
source = "nil:?size=1g"
"""


# What is asked for ---------------------------------------------------------------------------------


@pytest.mark.promise("SRV-1")
def test_flags_make_one_namespace_of_one_subsystem(forebay):
    done = forebay(
        *("serve", "nil:?size=1g", "--nqn", NQN, "--listen", "127.0.0.1:1", "--listen", "[::1]:2", "--writable"),
        *("--allow", "nqn.2026-01.io.example:h", "--serial", "S1", "--block-size", "4k", "--cache", "allow"),
        *("--threads", "3", "--cpus", "0", "--spin-us", "50", "--max-transfer", "512k", "--metrics", "9420", "--check", "--json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["listen"], found["threads"], found["metrics"]) == (["127.0.0.1:1", "[::1]:2"], 3, "9420")
    assert (found["max_transfer"], found["spin_us"], found["cpus"]) == (512 << 10, 50, "0")
    (subsystem,) = found["subsystems"]
    assert (subsystem["nqn"], subsystem["serial"], subsystem["allow_any_host"]) == (NQN, "S1", False)
    assert [h["nqn"] for h in subsystem["hosts"]] == ["nqn.2026-01.io.example:h"]
    (namespace,) = subsystem["namespaces"]
    assert (namespace["nsid"], namespace["source"], namespace["writable"]) == (1, "nil:?size=1g", True)
    assert (namespace["block_bytes"], namespace["cache"]) == (4096, "allow")


def test_a_new_key_is_one_that_a_configuration_takes(forebay, tmp_path):
    keys = [forebay("serve", "--new-key").stdout.strip(), forebay("serve", "--new-key", "none").stdout.strip()]
    assert [key[:10] for key in keys] == ["DHHC-1:01:", "DHHC-1:00:"]
    host = f'[[subsystems.hosts]]\nnqn = "nqn.2026-01.io.example:h"\ndhchap_key = "{keys[0]}"\n'
    file = tmp_path / "serve.toml"
    file.write_text(GOOD.replace("allow_any_host = true", "") + host)
    assert forebay("serve", str(file), "--check").returncode == 0
    file.write_text(file.read_text().replace(keys[0], keys[0][:-8] + "AAAAAAA:"))
    wrong = forebay("serve", str(file), "--check")
    assert wrong.returncode == 2 and "dhchap_key" in wrong.stderr and keys[0][:20] not in wrong.stderr
    assert forebay("serve", "--new-key", "md5").returncode == 2


@pytest.mark.promise("SRV-2")
def test_without_flags_it_is_read_only_on_the_loopback_for_any_host(forebay):
    done = forebay("serve", "nil:", "--nqn", NQN, "--check", "--json")
    found = json.loads(done.stdout)
    assert found["listen"] == ["127.0.0.1:4420"] and found["metrics"] is None
    assert found["subsystems"][0]["allow_any_host"] is True
    assert found["subsystems"][0]["namespaces"][0]["writable"] is False


def test_a_file_is_checked_and_told_in_words(forebay, tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text(GOOD)
    done = forebay("serve", "--check", file)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.splitlines() == [
        "listen    127.0.0.1:0",
        "metrics   off",
        f"subsystem {NQN} for any host",
        "          nsid 1: nil:?size=1g, read-only",
    ]


# (what is changed in GOOD, what the message says)
BAD_FILES = [
    ("nqn = ", "nqm = ", "nqm"),
    ("allow_any_host = true", "", "nobody may connect"),
    ("allow_any_host = true", "allow_any_host = 1", "line 5"),
    (f'"{NQN}"', '"disk"', "qualified name"),
    (f'"{NQN}"', f'"{"nqn.2026-01.io.example:" + "x" * 223}"', "223"),
    (f'"{NQN}"', '"nqn.2014-08.org.nvmexpress.discovery"', "discovery"),
    ("127.0.0.1:0", "localhost", "IP address"),
    ("127.0.0.1:0", "127.0.0.1:70000", "IP address"),
    ('listen = ["127.0.0.1:0"]', "listen = []", "no address"),
    ('listen = ["127.0.0.1:0"]', 'metrics = "x"', "metrics"),
    ('listen = ["127.0.0.1:0"]', "queue_depth = 1", "queue_depth"),
    ('listen = ["127.0.0.1:0"]', 'max_transfer = "500k"', "power of two"),
    ('listen = ["127.0.0.1:0"]', 'in_capsule = "1m"', "in_capsule"),
    ('listen = ["127.0.0.1:0"]', "threads = -1", "threads"),
    ('listen = ["127.0.0.1:0"]', "listen = [", "line"),
    ('source = "nil:?size=1g"', 'source = ""', "empty"),
    ('source = "nil:?size=1g"', "", "source"),
    ('source = "nil:?size=1g"', 'source = "nil:?sise=1g"', "sise"),
    ('source = "nil:?size=1g"', 'source = "nil:"\nblock_bytes = 1000', "512 or 4096"),
    ('source = "nil:?size=1g"', 'source = "nil:"\nuuid = "me"', "UUID"),
    ('source = "nil:?size=1g"', 'source = "nil:"\nfaults = "often"', "often"),
    ('source = "nil:?size=1g"', 'source = "nil:"\nnsid = 1\n[[subsystems.namespaces]]\nsource = "nil:"\nnsid = 1', "nsid"),
]


@pytest.mark.promise("SRV-1")
@pytest.mark.parametrize(("old", "new", "said"), BAD_FILES)
def test_a_file_that_cannot_be_is_refused_by_name(forebay, tmp_path, old, new, said):
    assert old in GOOD
    file = tmp_path / "serve.toml"
    file.write_text(GOOD.replace(old, new))
    done = forebay("serve", file)
    assert done.returncode == 2, done.stderr
    assert str(file) in done.stderr and said in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.promise("SRV-1")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nil:"], "--nqn"),
        (["nil:", "--nqn", "disk"], "qualified name"),
        (["nil:", "--nqn", NQN, "--listen", "here"], "here"),
        (["nil:", "--nqn", NQN, "--block-size", "1000"], "512 or 4096"),
        (["nil:", "--nqn", NQN, "--cache", "some"], "--cache some"),
        (["nil:", "--nqn", NQN, "--threads", "two"], "--threads two"),
        (["nil:", "--nqn", NQN, "--cpus", "3-1"], "cpus 3-1"),
        (["nil:", "--nqn", NQN, "--cpus", "0,1023"], "CPU 1023"),
        (["nil:", "--nqn", NQN, "--max-transfer", "1x"], "--max-transfer 1x"),
        (["nil:", "--nqn", NQN, "--drain", "soon"], "--drain soon"),
        (["nil:", "--nqn", NQN, "--log", "xml"], "--log xml"),
        (["nil:", "--nqn", NQN, "--allow", "me"], "me"),
        (["nil:", "--nqn", NQN, "--serial", "x" * 21], "serial"),
        (["ftp://h/f", "--nqn", NQN], "scheme"),
        (["/no/such.toml"], "/no/such.toml"),
        (["/no/such.toml", "--nqn", NQN], "--nqn with /no/such.toml"),
        (["/no/such.toml", "--listen", "127.0.0.1:1"], "--listen"),
        ([], "SOURCE"),
    ],
)
def test_flags_that_cannot_be_are_refused_by_name(forebay, arguments, said):
    done = forebay("serve", *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


def test_what_is_no_text_is_no_configuration(forebay, tmp_path):
    file = tmp_path / "serve.toml"
    file.write_bytes(b"\xff\xfe")
    done = forebay("serve", file)
    assert done.returncode == 2 and "UTF-8 at byte 0" in done.stderr
    file.write_bytes(b"#" * ((4 << 20) + 1))
    assert "4 MiB" in forebay("serve", file).stderr
    assert forebay("serve", "--check", "/dev/zero/x.toml").returncode == 2
    file.unlink()
    os.mkfifo(file)
    assert "is a FIFO" in forebay("serve", file).stderr


@pytest.mark.promise("SRV-2")
def test_a_key_is_never_shown(forebay, tmp_path):
    key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
    file = tmp_path / "serve.toml"
    host = f'[[subsystems.hosts]]\nnqn = "nqn.2026-01.io.example:h"\ndhchap_key = "{key}"\n'
    file.write_text(GOOD.replace("allow_any_host = true", "allow_any_host = false") + host)
    for extra in ([], ["--json"]):
        done = forebay("serve", "--check", file, *extra)
        assert done.returncode == 0, done.stderr
        assert "ia6zGod" not in done.stdout + done.stderr
    assert "1 host, 1 of them with a key" in forebay("serve", "--check", file).stdout


# Its life ------------------------------------------------------------------------------------------


SERVE = ("serve", "nil:?size=1g", "--nqn", NQN, "--listen", "127.0.0.1:0")


@pytest.mark.promise("SRV-3")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_gracefully_with_0_and_totals(number):
    with Running(*SERVE) as running:
        line = running.wait_for("stderr", "nsid 1")
        assert line == f"{NQN} nsid 1: nil:?size=1g, 1 GiB, blocks of 512, read-only"
        assert re.fullmatch(r"listening on 127\.0\.0\.1:\d+", running.wait_for("stdout", "listening"))
        code, out, err = running.end(number)
    assert code == 0
    assert "waiting up to 10 s for commands to finish" in err and "event=stopped" in err
    assert re.fullmatch(r"served    0 B read, 0 B written in .* · 0 connections · 0 errors\n", out)


def test_with_json_one_document_is_all_of_stdout():
    with Running(*SERVE, "--json") as running:
        line = running.wait_for("stderr", "listening on")
        code, out, _ = running.end()
    document = json.loads(out)
    assert code == 0 and document["schema"] == "forebay.serve/1" and document["drained"] is True
    assert document["listen"] == [line.removeprefix("listening on ")]
    assert document["stats"]["connections_accepted"] == 0


@pytest.mark.promise("SRV-3")
@parametrized("drain", ["0.1", "600"], kept=(1,))
def test_commands_that_do_not_end_are_cut_off_with_exit_code_4_or_by_a_second_signal_at_once(tmp_path, drain):
    namespace = 'source = "nil:?size=1g"\nfaults = "seed=1,stall=1"'
    file = serve_support.toml(tmp_path / "serve.toml", [namespace], head='metrics = "127.0.0.1:0"')
    with serve_support.Target(file, "--drain", drain) as target:
        bench = [*processes.FOREBAY, "bench", target.uri(), "--passes", "1", "--quiet"]
        with processes.running(bench, cwd=tmp_path):
            in_flight = re.compile(r'^forebay_queue_in_flight\{.*qid="1".*\} [1-9]', re.M)
            serve_support.eventually(lambda: in_flight.search(target.metrics()), "a command in flight")
            target.process.send_signal(signal.SIGTERM)
            target.wait_for("interrupt again to abort")
            code = target.end() if drain == "600" else target.process.wait(processes.PATIENCE_S)
            said = "".join(target.err)
    assert code == (-signal.SIGTERM if drain == "600" else 4)
    assert ("were cut off\n  try: --drain 0.3" in said) == (drain == "0.1")


@pytest.mark.promise("SRV-4")
def test_a_reload_reads_the_file_again_and_one_that_cannot_be_changes_nothing(tmp_path):
    file, address = tmp_path / "serve.toml", tmp_path / "notify"
    file.write_text(GOOD)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(processes.PATIENCE_S)
        heard: queue.Queue[str] = queue.Queue()

        def listen() -> None:
            # All along: a socket holds ten messages, and what finds it full isn't said again.
            with contextlib.suppress(OSError):
                while "STOPPING=1" not in (said := manager.recv(4096).decode()):
                    heard.put(said)
                heard.put(said)

        threading.Thread(target=listen, daemon=True).start()

        def hear(word: str) -> str:
            while word not in (said := heard.get(timeout=processes.PATIENCE_S)):
                pass
            return said

        with Running("serve", file, "--quiet", NOTIFY_SOCKET=str(address), WATCHDOG_USEC="1000000") as running:
            listening = running.wait_for("stdout", "listening")
            assert hear("READY=1") == f"READY=1\nSTATUS={listening}"
            hear("WATCHDOG=1")
            file.write_text(GOOD + '[[subsystems.namespaces]]\nsource = "nil:?size=2g"\n')
            running.process.send_signal(signal.SIGHUP)
            assert "MONOTONIC_USEC=" in hear("RELOADING=1")
            assert f"nsid 2 of {NQN} added (nil:?size=2g)" in running.wait_for("stderr", "reload")
            assert "STATUS=reload: nsid 2" in hear("READY=1")
            file.write_text(GOOD.replace("127.0.0.1:0", "127.0.0.1:1"))
            running.process.send_signal(signal.SIGHUP)
            assert "refused, serving as before:" in running.wait_for("stderr", "reload")
            file.unlink()
            running.process.send_signal(signal.SIGHUP)
            assert "No such file" in running.wait_for("stderr", "reload")
            assert running.end()[0] == 0
            hear("STOPPING=1")


def test_a_reload_without_a_file_and_a_manager_that_is_gone_change_nothing():
    with Running(*SERVE, NOTIFY_SOCKET="@gone") as running:
        running.wait_for("stdout", "listening")
        running.process.send_signal(signal.SIGHUP)
        assert "no CONFIG.toml" in running.wait_for("stderr", "reload")
        assert running.end()[0] == 0


# What is handed out with it ------------------------------------------------------------------------

DEPLOY = HERE.parent / "deploy"


def test_the_example_configuration_can_be(forebay):
    done = forebay("serve", "--check", DEPLOY / "serve.toml", "--json")
    assert done.returncode == 0, done.stderr
    (subsystem,) = json.loads(done.stdout)["subsystems"]
    assert subsystem["allow_any_host"] is False and [n["nsid"] for n in subsystem["namespaces"]] == [1, 2]


@pytest.mark.promise("TGT-5")
def test_what_avahi_announces_is_the_discovery_service(forebay):
    service = ElementTree.parse(DEPLOY / "forebay-serve.avahi.service").getroot().find("service")
    assert service is not None and service.findtext("type") == "_nvme-disc._tcp"
    records = dict((e.text or "").split("=", 1) for e in service.findall("txt-record"))
    assert records == {"p": "tcp", "nqn": "nqn.2014-08.org.nvmexpress.discovery"}
    done = forebay("serve", "--check", DEPLOY / "serve.toml", "--json")
    assert json.loads(done.stdout)["listen"][0].endswith(":" + (service.findtext("port") or ""))


def test_the_units_commands_are_ours(forebay):
    from forebay.serve import command

    unit = (DEPLOY / "forebay-serve.service").read_text()
    flags = {o for p in command.params for o in p.opts}
    commands = re.findall(r"^Exec\w+=\S+/forebay serve (.*)$", unit, re.M)
    assert len(commands) == 2 and all(set(re.findall(r"--[\w-]+", c)) <= flags for c in commands)
    # Time to let commands finish, with some left before systemd loses patience.
    drain, stop = re.search(r"--drain (\d+)", unit), re.search(r"^TimeoutStopSec=(\d+)", unit, re.M)
    assert drain and stop and int(drain[1]) < int(stop[1])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path):
    text = (DEPLOY / "forebay-serve.service").read_text().replace("/usr/local/bin/forebay", sys.executable)
    unit = tmp_path / "forebay-serve.service"
    unit.write_text(text)
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert str(unit.name) not in checked.stderr, checked.stderr
    graded = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    level = re.search(r"exposure level for \S+: ([\d.]+)", graded.stdout)
    if graded.returncode == 0 and level is None:
        pytest.skip("this systemd-analyze grades no file")
    assert level and float(level[1]) < 3.0, graded.stdout[-200:] + graded.stderr
