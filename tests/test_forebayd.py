"""`forebayd`, and beside it `forebay`, which runs the same command line: flags, files, lines and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NQN = "nqn.2026-01.io.example:a"


@pytest.fixture(scope="module")
def both(forebayd, request):
    """`both("serve", …)` → what each of the two said: (exit code, stdout, stderr)."""
    run = request.getfixturevalue("forebay")

    def reported(*words: object) -> tuple[tuple[int, str, str], tuple[int, str, str]]:
        ours = subprocess.run([forebayd, *map(str, words)], capture_output=True, text=True, timeout=60)
        theirs = run(*words)
        return (ours.returncode, ours.stdout, ours.stderr), (theirs.returncode, theirs.stdout, theirs.stderr)

    return reported


@pytest.mark.promise("SNP-5")
@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--help"],
        ["snap", "--help"],
        ["serve", "--check", "nil:?size=1g", "--nqn", NQN, "--allow", NQN, "--listen", "[::1]:1", "--block-size", "4k"],
        ["snap", "--check", "--json", "--rpc", "/tmp/snap.sock", ROOT / "deploy/snap.toml"],
        ["snap", "rpc", "nvme_controller_create", "--help"],
    ],
)
def test_what_is_asked_for_is_told_alike(both, words):
    ours, theirs = both(*words)
    assert ours[0] == 0 and ours[1]
    assert (ours[0], ours[1].replace("forebayd", "forebay"), ours[2]) == theirs


@pytest.mark.promise("SNP-5")
@pytest.mark.parametrize(
    "words",
    [
        ["serve"],
        ["serve", "nil:", "--nqn", NQN, "--listen", "here"],
        ["serve", "/no/such.toml", "--nqn", NQN],
        ["serve", "/dev/null", "--writable", "--nqn", NQN],
        ["snap", "/no/such.toml"],
        ["snap", "rpc", "--socket", "/no/such.sock", "nvme_controller_list"],
    ],
)
def test_what_cannot_be_is_refused_alike(both, words):
    ours, theirs = both(*words)
    assert ours[0] == theirs[0] in (2, 3)
    assert not ours[1]
    assert ours[2].replace("forebayd", "forebay") == theirs[2]


def test_words_that_it_does_not_know_end_with_2(forebayd):
    for words in (["serv"], ["snap"], ["serve", "--nq"], ["serve", "a", "b"], ["snap", b"\xff.toml"], []):
        done = subprocess.run([forebayd, *words], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr and "panicked" not in done.stderr, words
    version = subprocess.run([forebayd, "--version"], capture_output=True, text=True)
    assert version.returncode == 0 and re.match(r"forebayd \d+\.\d+\.\d+", version.stdout)


def test_it_says_which_commit_it_was_built_from(forebayd):
    tracked = subprocess.run(["git", "ls-files", "--error-unmatch", "Cargo.toml"], cwd=ROOT, capture_output=True)
    if tracked.returncode != 0:
        pytest.skip("not a clone: a build from an archive has no commit")
    version = subprocess.run([forebayd, "--version"], capture_output=True, text=True)
    assert re.match(r"forebayd \S+ \([0-9a-f]{12}\)\n", version.stdout), version.stdout


def test_the_container_starts_what_there_is(forebayd):
    """Its words are ours, and it copies what `make forebayd` leaves."""
    text = (ROOT / "deploy/Containerfile").read_text()
    place = re.search(r"^COPY (\S+) (\S+)$", text, re.M)
    assert place and place[1] == "dist/forebayd-${ARCH}" and f'ENTRYPOINT ["{place[2]}"]' in text
    assert "dist/forebayd-$$arch" in (ROOT / "Makefile").read_text()
    command = re.search(r"^CMD (.*)$", text, re.M)
    assert command
    checked(forebayd, json.loads(command[1]))


@pytest.mark.parametrize("unit", ["serve", "snap"])
def test_the_units_can_run_it(forebayd, unit):
    text = (ROOT / f"deploy/forebay-{unit}.service").read_text()
    commands = re.findall(r"^Exec\w+=/usr/local/bin/forebay (.*)$", text, re.M)
    assert len(commands) == 2
    for command in commands:
        checked(forebayd, command.split())


def checked(forebayd: str, words: list[str]) -> None:
    """It takes these words, with the files of `deploy` in place of the configured ones."""
    here = [word.replace("/etc/forebay", str(ROOT / "deploy")) for word in words]
    done = subprocess.run([forebayd, *here, "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class Running:
    def __init__(self, program: str, *words: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().rstrip("\n")

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.mark.promise("SNP-5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_lives_as_the_command_does(forebayd, forebay, tmp_path, number):
    file = tmp_path / "serve.toml"
    text = f'listen = ["127.0.0.1:0"]\n[[subsystems]]\nnqn = "{NQN}"\nallow_any_host = true\n'
    file.write_text(text + '[[subsystems.namespaces]]\nsource = "nil:?size=1g"\n')
    running = Running(forebayd, "serve", str(file))
    assert running.line.startswith("listening on 127.0.0.1:"), running.process.communicate()
    address = running.line.removeprefix("listening on ")
    read = forebay("bench", f"nvme+tcp://{address}/{NQN}", "--duration", "0.3", "--json")
    assert read.returncode == 0, read.stderr
    file.write_text(file.read_text() + '[[subsystems.namespaces]]\nsource = "nil:?size=2g"\n')
    running.process.send_signal(signal.SIGHUP)
    for line in running.process.stderr or []:
        if "reload" in line:
            assert f"nsid 2 of {NQN} added (nil:?size=2g)" in line
            break
    code, out, err = running.end(number)
    assert code == 0, err
    assert re.match(r"served    [1-9].* read, 0 B written in ", out), out


@pytest.mark.long
@pytest.mark.promise("TGT-16")
def test_a_killed_server_is_started_again_at_once(forebayd, tmp_path):
    """The kernel closes a killed process's rings, and with them a written file's lock, behind its end."""
    (image := tmp_path / "image").write_bytes(bytes(64 << 20))
    serve = ["serve", str(image), "--nqn", NQN, "--writable", "--log", "off", "--listen"]
    running = Running(forebayd, *serve, "127.0.0.1:0")
    for _ in range(4):
        address = running.line.removeprefix("listening on ")
        uri = f"nvme+tcp://{address}/{NQN}?fast_io_fail_tmo=0&ctrl_loss_tmo=0&kato=60"
        words = ["--op", "randwrite", "--io-size", "64k", "--depth", "32", "--overwrite-device", uri, "--duration", "600"]
        bench = [sys.executable, "-m", "forebay.cli", "bench", uri, *words]
        load = subprocess.Popen(bench, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            before = image.stat().st_mtime_ns
            while image.stat().st_mtime_ns == before:
                assert load.poll() is None
                time.sleep(0.02)
            running.process.kill()
            running.process.communicate()
            running = Running(forebayd, *serve, address)
            assert running.line.startswith("listening on "), running.process.communicate()
        except BaseException:
            running.process.kill()
            raise
        finally:
            load.kill()
            load.wait()
    assert running.end()[0] == 0
