"""`forebay serve` as a process of its own, for guests to connect to: started, reloaded, killed, started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import linux
from .guest import Guest

READY_S = 60
END_S = 60
NQN = "nqn.2026-01.io.forebay:vm"
MIB = 1 << 20


@dataclass
class Namespace:
    source: Path | str
    nsid: int = 1
    writable: bool = False
    block_bytes: int | None = None

    def lines(self) -> list[str]:
        rows = ["[[subsystems.namespaces]]", f"nsid = {self.nsid}", f"source = {json.dumps(str(self.source))}"]
        rows += [f"writable = {str(self.writable).lower()}"]
        return rows + ([f"block_bytes = {self.block_bytes}"] if self.block_bytes else [])


@dataclass
class Subsystem:
    namespaces: list[Namespace]
    nqn: str = NQN
    # Host NQN → the other fields of its row. None: any host.
    hosts: dict[str, dict[str, Any]] | None = None
    # Address of a listener → the ANA state of all namespaces for hosts that come there.
    ana: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        rows = ["[[subsystems]]", f'nqn = "{self.nqn}"', f"allow_any_host = {str(self.hosts is None).lower()}"]
        for host, fields in (self.hosts or {}).items():
            rows += ["[[subsystems.hosts]]", f'nqn = "{host}"']
            rows += [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
        for address, state in self.ana.items():
            rows += ["[[subsystems.ana]]", f'address = "{address}"', f'state = "{state}"']
        return rows + [line for namespace in self.namespaces for line in namespace.lines()]


class Daemon:
    """A forebay process that goes on until it is told to end: what it says, and how it ends."""

    process: subprocess.Popen[str]

    def __init__(self, verb: str, folder: Path) -> None:
        self.verb, self.folder = verb, folder
        self.document = folder / f"{verb}.json"
        self.said: list[str] = []

    def launch(self, *arguments: str) -> int:
        """Starts it. Returns where in `said` the lines of this run begin."""
        begins = len(self.said)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", self.verb, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self.document.open("wb"),
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        return begins

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr
        for line in process.stderr:
            self.said.append(line.rstrip("\n"))

    def heard(self, pattern: str, within: float = 30, since: int = 0) -> re.Match[str]:
        """The first line on its stderr that matches, waited for."""
        deadline = time.monotonic() + within
        while True:
            if ended := self.process.poll() is not None:
                # What it said at last is still on its way.
                self._reader.join(1)
            for line in list(self.said[since:]):
                if found := re.search(pattern, line):
                    return found
            assert not ended, f"forebay {self.verb} ended with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"no line like {pattern!r} in {within} s:\n{self.log()}"
            time.sleep(0.05)

    def log(self) -> str:
        return "\n".join([f"--- forebay {self.verb}:", *self.said[-40:]])

    def kill(self) -> None:
        """As a power cut ends a process: no drain, no flush."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)

    def stop(self) -> dict[str, Any]:
        """Ends it in good order. Returns the document that it closes with."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"forebay {self.verb} did not end in {END_S} s\n{self.log()}") from None
        self._reader.join(10)
        assert status == 0, f"forebay {self.verb} ended with {status}\n{self.log()}"
        document: dict[str, Any] = json.loads(self.document.read_text())
        return document

    def descriptors(self) -> int:
        """File descriptors that it holds."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_kib(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1])  # type: ignore[index]

    def cpu_s(self) -> float:
        """User and system time since it started."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Serving(Daemon):
    """A running target. `port` stays the same over `kill` and `start`, so that hosts find it again."""

    def __init__(
        self,
        folder: Path,
        subsystems: list[Subsystem],
        top: dict[str, Any] | None = None,
        port: int = 0,
        arguments: tuple[str, ...] = (),
    ) -> None:
        super().__init__("serve", folder)
        self.subsystems, self.top, self.port, self.arguments = subsystems, top or {}, port, arguments
        self.config = folder / "serve.toml"
        self.start()

    @property
    def nqn(self) -> str:
        return self.subsystems[0].nqn

    @property
    def uri(self) -> str:
        """Its first namespace as a source of ours, for hosts that must live through its absence."""
        return f"nvme+tcp://127.0.0.1:{self.port}/{self.nqn}"

    def write(self) -> None:
        """The configuration as it is now, for a start or a reload."""
        # Listeners that are asked for come beside its own.
        top = {**self.top, "listen": [self.listen, *self.top.get("listen", ())]}
        rows = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        rows += [line for subsystem in self.subsystems for line in subsystem.lines()]
        self.config.write_text("\n".join(rows) + "\n")

    def start(self) -> None:
        """Starts it and waits until it listens. Raises AssertionError with what it said where it doesn't."""
        self.listen = f"127.0.0.1:{self.port}"
        self.write()
        begins = self.launch(str(self.config), "--json", *self.arguments)
        self.port = int(self.heard(r"listening on \S+:(\d+)", READY_S, begins)[1])

    def reload(self) -> None:
        """Lets it read its configuration again, with the namespaces that it has here now."""
        since = len(self.said)
        self.write()
        self.process.send_signal(signal.SIGHUP)
        reported = self.heard(r"forebay: (reload.*)", 30, since)
        assert "refused" not in reported[1], f"{reported[1]}\n{self.log()}"


def disk(path: Path, mib: int = 32, content: bool = True) -> Path:
    """A file to serve: random content, or a hole."""
    with path.open("wb") as file:
        if content:
            for _ in range(mib):
                file.write(os.urandom(MIB))
        else:
            file.truncate(mib * MIB)
    return path


Serve = Callable[..., Serving]


def connected(guest: Guest, served: Serving, **options: Any) -> linux.Association:
    try:
        return linux.connect(guest, served.nqn, served.port, **options)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{served.log()}") from None
