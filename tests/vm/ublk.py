"""`/dev/ublkbN` in a guest: the engine's example `ublk_device`, or a gateway, is built here, fetched by the guest, and
driven there."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from . import linux
from .guest import HOST, CommandFailed, Done, Guest
from .image import find, libraries
from .packages import ROOT

THERE = "/run/ublk"
BUILD_S = 1800
READY_S = 60


@functools.cache
def built() -> Path:
    """The example: FOREBAY_UBLK_DEVICE, or built by cargo. Skips where there is neither."""
    if given := os.environ.get("FOREBAY_UBLK_DEVICE"):
        return Path(given)
    return made("ublk_device", "-p", "forebay-serve", "--example", "ublk_device") / "examples/ublk_device"


@functools.cache
def forebayd() -> Path:
    """The daemon: FOREBAYD, or built by cargo. Skips where there is neither."""
    if given := os.environ.get("FOREBAYD"):
        return Path(given)
    # As tests/test_forebayd.py builds it.
    return made("forebayd", "--workspace", "--exclude", "forebay-python", "--bins") / "forebayd"


def made(name: str, *what: str) -> Path:
    """Where cargo puts what it builds. Skips where there is no cargo."""
    cargo = shutil.which("cargo")
    if not cargo:
        pytest.skip(f"no cargo to build {name} with")
    done = subprocess.run([cargo, "build", "-q", *what], cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S)
    assert not done.returncode, done.stderr
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"


class _Files(http.server.BaseHTTPRequestHandler):
    """Serves the files that it is told of, by their names."""

    files: dict[str, Path]

    def do_GET(self) -> None:
        path = self.files.get(self.path.lstrip("/"))
        if not path:
            self.send_error(404)
            return
        data = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def ship(guest: Guest, *programs: Path) -> None:
    """Has the guest fetch programs of this machine, and the libraries that they need and it lacks."""
    needed = {library.name: library for program in programs for library in libraries(program)}
    files = {program.name: program for program in programs} | needed
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Files", (_Files,), {"files": files}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for name, path in files.items():
            has = f"[ -e {path} ] || " if name in needed else ""
            url = f"http://{HOST}:{server.server_port}/{name}"
            guest.run(f"mkdir -p {THERE}; {has}wget -q -O {THERE}/{name} {url}; chmod +x {THERE}/* 2>/dev/null", 120)
    finally:
        server.shutdown()
        server.server_close()


def prepare(guest: Guest) -> None:
    """The driver is loaded and the program is there. Skips where this kernel has no ublk."""
    if not guest.run("modprobe ublk_drv && [ -c /dev/ublk-control ]", check=False).ok:
        pytest.skip(f"{guest.kernel.version} has no ublk_drv")
    if not guest.run(f"[ -x {THERE}/ublk_device ]", check=False).ok:
        ship(guest, built(), find("setpriv"))


def command(*arguments: object) -> str:
    return f"LD_LIBRARY_PATH={THERE} {linux.words(f'{THERE}/ublk_device', *arguments)}"


def alive(pid: int) -> str:
    """A command that says whether a process is more than a zombie, which the guest's first process takes away when it is
    next told to do something: `kill -0` finds one for as long as nobody asks."""
    return f"grep -qs '^State:.[^ZX]' /proc/{pid}/status"


def devices(guest: Guest) -> list[dict[str, Any]]:
    """As `ublk::devices` lists them."""
    all_of_them: list[dict[str, Any]] = json.loads(guest.run(command("devices")).output)
    return all_of_them


@dataclass
class Device:
    """One daemon and its device. `kill` and `start` again: it takes the device over."""

    guest: Guest
    source: str
    writable: bool = True
    namespace: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    recovered: bool = False
    queues: int = 0
    pid: int = 0

    @property
    def id(self) -> int:
        number: int = self.options.setdefault("id", 0)
        return number

    @property
    def path(self) -> str:
        return f"/dev/ublkb{self.id}"

    @property
    def name(self) -> str:
        return f"ublkb{self.id}"

    @property
    def files(self) -> str:
        return f"{THERE}/{self.id}"

    @property
    def arguments(self) -> tuple[str, str]:
        given = {"source": self.source, "writable": self.writable, **self.namespace}
        return json.dumps(given), json.dumps({"id": self.id, **self.options})

    def start(self) -> Device:
        """Returns once the device is there. Raises CommandFailed with what the daemon said."""
        files = self.files
        done = self.guest.run(
            f"""rm -f {files}.*; mkfifo {files}.in
            export LD_LIBRARY_PATH={THERE}
            setsid {linux.words(f"{THERE}/ublk_device", *self.arguments)} <>{files}.in >{files}.out 2>{files}.err &
            pid=$!
            until [ -s {files}.out ] || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
            [ -s {files}.out ] || {{ wait $pid; status=$?; cat {files}.err; exit $status; }}
            echo $pid; cat {files}.out""",
            READY_S,
        )
        pid, said = done.output.splitlines()[:2]
        self.pid = int(pid)
        first = json.loads(said)
        assert first["path"] == self.path
        self.recovered, self.queues = first["recovered"], first["queues"]
        return self

    def refused(self) -> Done:
        """What it says where it must not start."""
        done = self.guest.run(f"{command(*self.arguments)} </dev/null", READY_S, check=False)
        if done.ok:
            raise CommandFailed(f"it started, which it must not: {done.output}")
        return done

    def ask(self, verb: str, timeout: float = 60) -> Any:
        """One line of its input, and the answer."""
        out = f"{self.files}.out"
        done = self.guest.run(
            f"""lines=$(wc -l <{out}); echo {linux.words(verb)} >{self.files}.in
            # Asked first whether it lives: who has ended has said all.
            while {alive(self.pid)} && lives=1 || lives=; [ $(wc -l <{out}) -le $lines ]; do
                [ $lives ] || {{ cat {self.files}.err; exit 9; }}
                sleep 0.05
            done; tail -n 1 {out}""",
            timeout,
        )
        return json.loads(done.output)

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("stats")
        return found

    def kill(self) -> None:
        """As SIGKILL ends it: the device is left to itself."""
        self.guest.run(f"kill -9 {self.pid}; while {alive(self.pid)}; do sleep 0.02; done")

    def state(self) -> str:
        """live, waiting, failing, dead; or gone."""
        return {d["id"]: d["state"] for d in devices(self.guest)}.get(self.id, "gone")

    def limit(self, name: str) -> str:
        """What the block layer says of the device's queue."""
        return self.guest.run(f"cat /sys/block/{self.name}/queue/{name}").output.strip()


SNAP_NQN = "nqn.2026-01.io.forebay:snap"


@dataclass
class Snap:
    """`forebayd snap` in the guest, with one block device. `kill` and `start` again: the next one takes it over."""

    guest: Guest
    source: str
    # Fields of its controller: device, queues, when_down, …
    controller: dict[str, Any] = field(default_factory=dict)
    # With a supervisor, whose process `pid` is then.
    keep: bool = False
    # Port of its metrics; 0: none.
    metrics_port: int = 0
    pid: int = 0

    @property
    def config(self) -> str:
        fields = {"name": "disk", "front": "ublk", "namespaces": [1], **self.controller}
        return "\n".join(
            [
                f'rpc = "{THERE}/snap.sock"',
                f'metrics = "{self.metrics_port}"' if self.metrics_port else "",
                f'[[subsystems]]\nnqn = "{SNAP_NQN}"',
                f"[[subsystems.namespaces]]\nsource = {json.dumps(self.source)}\nwritable = true",
                "[[subsystems.controllers]]",
                *(f"{key} = {json.dumps(value)}" for key, value in fields.items()),
            ]
        )

    def start(self) -> Snap:
        """Returns once it is ready. Raises CommandFailed with what it said."""
        if not self.guest.run(f"[ -x {THERE}/forebayd ]", check=False).ok:
            ship(self.guest, forebayd())
        self.guest.put(f"{THERE}/snap.toml", self.config.encode())
        files = f"{THERE}/snap"
        done = self.guest.run(
            f"""rm -f {files}.out {files}.err; export LD_LIBRARY_PATH={THERE}
            setsid {THERE}/forebayd snap {"--keep" if self.keep else ""} {THERE}/snap.toml </dev/null >{files}.out 2>{files}.err &
            pid=$!
            until grep -q ^ready {files}.out || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
            grep -q ^ready {files}.out || {{ wait $pid; status=$?; cat {files}.err; exit $status; }}
            echo $pid""",
            READY_S,
        )
        self.pid = int(done.output.split()[-1])
        return self

    def rpc(self, verb: str, *words: object, check: bool = True) -> Any:
        """What it answers; where `check` is not wanted, the command's end."""
        asked = linux.words(f"{THERE}/forebayd", "snap", "rpc", "--socket", f"{THERE}/snap.sock", verb, *words)
        done = self.guest.run(f"LD_LIBRARY_PATH={THERE} {asked}", 60, check=check)
        return done.json if check and done.output.strip()[:1] in "[{" else done

    def stats(self) -> dict[str, Any]:
        """Of its controller."""
        found: dict[str, Any] = self.rpc("nvme_controller_dbg_io_stats_get", "--ctrl", "disk")
        return found

    def metrics(self) -> str:
        """As Prometheus is told them."""
        return self.guest.run(f"wget -q -O - http://127.0.0.1:{self.metrics_port}/metrics").output

    def namespace(self) -> dict[str, Any]:
        """What is counted of its namespace."""
        found: dict[str, Any] = self.rpc("snap_stats_get")["subsystems"][0]["namespaces"][0]
        return found

    def kill_kept(self) -> None:
        """Kills the gateway that its supervisor runs."""
        self.guest.run(f"kill -9 $(cat /proc/{self.pid}/task/{self.pid}/children)")

    def has_started(self, times: int) -> None:
        """Waits until so many gateways of its supervisor were ready."""
        self.guest.until(f"grep -c ^ready {THERE}/snap.out", lambda out: int(out) >= times, 120)

    def said(self) -> str:
        """Its log."""
        return self.guest.run(f"cat {THERE}/snap.err").output

    def end(self, sign: str) -> None:
        self.guest.run(f"kill -{sign} {self.pid}; while {alive(self.pid)}; do sleep 0.02; done")


def clear(guest: Guest) -> None:
    """Ends all daemons, and deletes all devices."""
    guest.run("for name in fio ublk_device forebayd; do kill -9 $(pidof $name) 2>/dev/null; done; sleep 0.3")
    guest.run("umount /mnt 2>/dev/null; true")
    if guest.run(f"[ -x {THERE}/ublk_device ]", check=False).ok:
        for device in devices(guest):
            guest.run(command("delete", device["id"]), 60, check=False)
