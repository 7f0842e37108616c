"""A guest under QEMU: started once, then given commands over a serial port of its own for as long as tests need it."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .emulator import Emulator, system
from .image import image
from .packages import CACHE, Kernel, Unavailable

# A small machine that compiles beside needs most of it; alone a guest answers in 7 s.
BOOT_S = 180
# Over a command's own limit: what its answer may take on a busy machine.
GRACE_S = 30
FORWARDED = (4420, 4421, 4422, 8009)
HOST = "10.0.2.2"  # this machine's loopback, as a guest of QEMU's user network sees it
TAIL = 25
KERNEL_WORDS = "console=ttyS0 loglevel=7 panic=-1 oops=panic no_timer_check rdinit=/init"
# The last: a completion that the nvme driver found by itself, and no interrupt told it of.
FAULTS = re.compile(
    r"\b(BUG:|Oops\b|WARNING: CPU|Kernel panic|general protection fault|INFO: task .* blocked|timeout, completion polled)"
)


@dataclass(frozen=True)
class Machine:
    """What a guest's hardware is, beside its kernel."""

    memory_mib: int = 2048
    cpus: int = 2
    # Processors that may be plugged in later: Linux gives a drive a queue for each that there could be.
    max_cpus: int | None = None
    # Slots that take a device while the guest runs.
    slots: int = 0
    # None: the system's QEMU.
    emulator: Emulator | None = None
    # A file of QEMU's, such as qboot.rom; None: its own, SeaBIOS.
    firmware: str | None = None
    # JSON of each device that is there from the start.
    devices: tuple[dict[str, Any], ...] = ()
    # Added to the kernel's command line.
    kernel_words: str = ""
    # A folder of this machine's that the guest may read, as the 9p file system `host`.
    shared: str | None = None

    def flags(self) -> list[str]:
        found = ["-m", str(self.memory_mib), "-smp", f"{self.cpus},maxcpus={self.max_cpus or self.cpus}"]
        if self.slots or self.devices:
            # In a memory file that a device outside of QEMU maps: a vfio-user server reads and writes there.
            ram = f"memory-backend-memfd,id=ram,size={self.memory_mib}M,share=on"
            found += ["-object", ram, "-M", "q35,memory-backend=ram"]
        else:
            found += ["-M", "q35"]
        found += ["-bios", self.firmware] if self.firmware else []
        for number in range(self.slots):
            found += ["-device", f"pcie-root-port,id=slot{number},chassis={number + 1},slot={number + 1}"]
        for device in self.devices:
            found += ["-device", json.dumps(device)]
        if self.shared:
            found += ["-fsdev", f"local,id=host,path={self.shared},security_model=none,readonly=on,multidevs=remap"]
            found += ["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
        return found


class GuestGone(AssertionError):
    """The guest ended, or answers no more."""


class CommandFailed(AssertionError):
    """A command in the guest ended with another status than the test expects."""


@dataclass(frozen=True)
class Done:
    """A command that ended in the guest: its exit status, and stdout and stderr as they came."""

    script: str
    status: int
    output: str

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def json(self) -> Any:
        """The output read as JSON, from its first bracket on: nvme-cli may warn before it."""
        begin = re.search(r"[\[{]", self.output)
        if not begin:
            raise CommandFailed(f"no JSON from `{self.script}`: {self.output}")
        return json.JSONDecoder().raw_decode(self.output[begin.start() :])[0]


class Pending:
    """A command that runs in the guest while the test does something else."""

    def __init__(self, guest: Guest, script: str, timeout: float) -> None:
        self.guest, self.script, self.timeout = guest, script, timeout
        self.ended = threading.Event()
        self.done: Done | None = None
        self.deadline = time.monotonic() + timeout + GRACE_S

    @property
    def running(self) -> bool:
        return not self.ended.is_set()

    def wait(self, check: bool = True) -> Done:
        """What it came to. Raises CommandFailed for a status other than 0, unless told not to."""
        self.ended.wait(max(0.0, self.deadline - time.monotonic()))
        if self.done is None:
            why = "the guest ended" if self.guest.gone else f"no answer {GRACE_S} s past its {self.timeout} s"
            raise GuestGone(f"`{self.script}`: {why}\n{self.guest.tail()}")
        if check and self.done.status:
            late = f" (its {self.timeout} s were over)" if self.done.status in (124, 137) else ""
            raise CommandFailed(
                f"`{self.script}` ended with {self.done.status}{late} on {self.guest.kernel.version}\n"
                f"{self.done.output}\n{self.guest.tail()}"
            )
        return self.done


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Guest:
    """One running guest. `run` is for a test's ordinary steps, `start` for what goes on beside them."""

    def __init__(self, kernel: Kernel, machine: Machine | None = None) -> None:
        self.kernel = kernel
        self.machine = machine or Machine()
        self.folder = Path(tempfile.mkdtemp(prefix="fb-vm-"))
        logs = CACHE / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.console = logs / f"{kernel.release.name}-{os.getpid()}-{self.folder.name[6:]}.log"
        self.seen = 0
        self.boots = 1
        self._pending: dict[int, Pending] = {}
        self._next = 1
        self._lock = threading.Lock()
        self._monitor_lock = threading.Lock()
        self.gone = False
        began = time.monotonic()
        try:
            with self._listener("agent") as agent, self._listener("qmp") as qmp:
                self.process = self._launch(image(kernel))
                self._qmp = self._accepted(qmp)
                self._agent = self._accepted(agent)
            self._qmp_in = self._qmp.makefile("r")
            self._qmp_read()
            self.qmp("qmp_capabilities")
            self._hello()
            self.ports = self._forwarded()
        except BaseException:
            self.close()
            raise
        self.boot_s = time.monotonic() - began
        threading.Thread(target=self._read_answers, daemon=True).start()

    def _listener(self, name: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / name))
        listener.listen(1)
        return listener

    def _launch(self, archive: Path) -> subprocess.Popen[bytes]:
        forward = ",".join(f"hostfwd=tcp:127.0.0.1:0-:{port}" for port in FORWARDED)
        emulator = self.machine.emulator or system()
        command = [
            *(*emulator.command, *emulator.flags, "-nodefaults", "-no-user-config", "-display", "none"),
            # Without cmpxchg16b: QEMU 7.2 emulates it wrongly for newer kernels.
            *("-accel", "tcg,thread=multi", "-cpu", "Nehalem,-cx16", "-no-reboot"),
            *self.machine.flags(),
            *("-kernel", str(self.kernel.image), "-initrd", str(archive)),
            # Without the check of the timer, which fails where this machine is too busy to let it tick.
            *("-append", f"{KERNEL_WORDS} {self.machine.kernel_words}"),
            *("-serial", f"file:{self.console}"),
            *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,path={self.folder}/agent"),
            *("-device", "virtserialport,chardev=agent,name=forebay", "-device", "virtio-rng-pci"),
            *("-netdev", f"user,id=n0,{forward}", "-device", "virtio-net-pci,netdev=n0,romfile="),
            *("-qmp", f"unix:{self.folder}/qmp"),
        ]
        self.errors = (self.folder / "errors").open("w+b")
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.errors,
            stderr=self.errors,
            # It outlives the test that is the first to want it, so that it carries the session's mark (processes.py).
            env={**emulator.environ(), "FOREBAY_TEST_ID": os.environ.get("FOREBAY_TEST_SESSION", "")},
            preexec_fn=_die_with_parent,
            start_new_session=True,
        )

    def _accepted(self, listener: socket.socket) -> socket.socket:
        listener.settimeout(0.2)
        deadline = time.monotonic() + BOOT_S
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise Unavailable(f"qemu-system-x86_64 doesn't start: {self.said().strip()}") from None
                continue
            connection.settimeout(BOOT_S)
            return connection

    def _hello(self) -> None:
        try:
            self._agent_in = self._agent.makefile("rb")
            line = self._agent_in.readline()
            said = self._agent_in.read(int(line.split()[2])) if line else b""
        except TimeoutError:
            said = b""
        if said.decode().strip() != self.kernel.version:
            ended = self.process.poll() is not None
            why = "ended while it started" if ended else f"did not start in {BOOT_S} s"
            raise GuestGone(f"the guest with {self.kernel.version} {why}\n{self.tail()}")
        self._agent.settimeout(None)

    # Commands ---------------------------------------------------------------------------------------

    def start(self, script: str, timeout: float = 60) -> Pending:
        """Runs a shell script in the guest, beside whatever else runs there."""
        pending = Pending(self, script, timeout)
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._pending[number] = pending
            encoded = base64.b64encode(script.encode()).decode()
            try:
                self._agent.sendall(f"{number} {timeout:g} {encoded}\n".encode())
            except OSError as e:
                raise GuestGone(f"`{script}`: {e}\n{self.tail()}") from None
        return pending

    def run(self, script: str, timeout: float = 60, check: bool = True) -> Done:
        """Runs a shell script in the guest to its end. Raises CommandFailed for a status other than 0 unless told."""
        return self.start(script, timeout).wait(check)

    def put(self, path: str, data: bytes) -> None:
        """Writes a file of at most a few hundred KiB."""
        self.run(f"base64 -d >{path} <<'END'\n{base64.encodebytes(data).decode()}END\n")

    def until(self, script: str, holds: Callable[[str], bool], within: float = 30, every: float = 0.2) -> str:
        """Repeats a script until its output is as wanted. Raises GuestGone with the last output."""
        deadline = time.monotonic() + within
        while True:
            last = self.run(script, check=False).output.strip()
            if holds(last):
                return last
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"`{script}` didn't come to what was wanted in {within} s; last: {last}\n{self.tail()}"
                )
            time.sleep(every)

    def _read_answers(self) -> None:
        try:
            while line := self._agent_in.readline():
                number, status, size = map(int, line.split())
                output = self._agent_in.read(size).decode("utf-8", "replace")
                if number == 0:
                    self._rebooted()
                    continue
                with self._lock:
                    pending = self._pending.pop(number)
                pending.done = Done(pending.script, status, output)
                pending.ended.set()
        except (OSError, ValueError):
            pass
        self.gone = True
        with self._lock:
            for pending in self._pending.values():
                pending.ended.set()

    def _rebooted(self) -> None:
        """It says hello again; what ran before has no answer any more."""
        with self._lock:
            for pending in self._pending.values():
                pending.ended.set()
            self._pending.clear()
            self.boots += 1

    # The machine around it --------------------------------------------------------------------------

    def _qmp_read(self) -> dict[str, Any]:
        while True:
            line = self._qmp_in.readline()
            if not line:
                raise GuestGone(f"QEMU ended\n{self.tail()}")
            message: dict[str, Any] = json.loads(line)
            if "event" not in message:
                return message

    def qmp(self, command: str, **arguments: object) -> Any:
        """A command to QEMU's monitor."""
        with self._monitor_lock:
            self._qmp.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
            answer = self._qmp_read()
        if "error" in answer:
            raise CommandFailed(f"QEMU, {command}: {answer['error']}")
        return answer["return"]

    def _forwarded(self) -> dict[int, int]:
        shown = self.qmp("human-monitor-command", **{"command-line": "info usernet"})
        rows = re.findall(r"TCP\[HOST_FORWARD\]\s+\S+\s+127\.0\.0\.1\s+(\d+)\s+\S+\s+(\d+)", shown)
        return {int(inside): int(outside) for outside, inside in rows}

    def freeze(self) -> None:
        """Stops its processors: connections stay, and nobody answers on them."""
        self.qmp("stop")

    def thaw(self) -> None:
        self.qmp("cont")

    def cable(self, plugged: bool) -> None:
        """Pulls or plugs the cable of its network card."""
        self.qmp("set_link", name="n0", up=plugged)

    def reboot(self, hard: bool = False) -> None:
        """Starts its kernel anew, by the kernel's own word or (`hard`) by the reset button, and waits for it."""
        boots = self.boots
        self.qmp("set-action", reboot="reset")
        if hard:
            self.qmp("system_reset")
        else:
            self.start("sleep 0.2; reboot -f")
        deadline = time.monotonic() + BOOT_S
        while self.boots == boots:
            if self.gone or time.monotonic() > deadline:
                raise GuestGone(f"the guest did not come back from its reboot\n{self.tail()}")
            time.sleep(0.05)
        self.qmp("set-action", reboot="shutdown")

    def plug(self, slot: int, name: str, device: dict[str, Any]) -> None:
        """Puts a device into one of the machine's slots."""
        self.qmp("device_add", id=name, bus=f"slot{slot}", **device)

    def unplug(self, name: str, within: float = 60) -> None:
        """Asks the guest to let a device go, as its button does, and waits until it is out."""
        if name not in self.plugged():
            return
        self.qmp("device_del", id=name)
        deadline = time.monotonic() + within
        while name in self.plugged():
            if time.monotonic() > deadline:
                raise CommandFailed(f"{name} is still plugged after {within} s\n{self.tail()}")
            time.sleep(0.05)

    def plugged(self) -> list[str]:
        """Names of the devices that were plugged by name."""
        return [row["name"] for row in self.qmp("qom-list", path="/machine/peripheral") if row["name"] != "type"]

    def said(self) -> str:
        """What QEMU itself has printed."""
        return (self.folder / "errors").read_text("utf-8", "replace")

    def log(self) -> str:
        """Everything that its kernel has printed on the console."""
        return self.console.read_text("utf-8", "replace").replace("\r", "") if self.console.exists() else ""

    def heard(self, pattern: str, since: int, within: float = 30) -> str:
        """The first line of `log()[since:]` that matches, waited for."""
        deadline = time.monotonic() + within
        while True:
            for line in self.log()[since:].splitlines():
                if re.search(pattern, line):
                    return line
            if time.monotonic() > deadline:
                raise CommandFailed(f"the kernel said nothing like {pattern!r} in {within} s\n{self.tail()}")
            time.sleep(0.1)

    def tail(self) -> str:
        """The console's last lines, for messages."""
        lines = self.log().splitlines()[-TAIL:]
        ended = self._ended() if hasattr(self, "process") else None
        qemu = [f"--- QEMU ended with {ended}: {self.said().strip()}"] if ended is not None and self.folder.exists() else []
        return "\n".join([f"--- the guest's console ({self.console}):", *lines, *qemu])

    def _ended(self) -> int | None:
        """QEMU's exit status. One whose agent is gone is about to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(5 if self.gone else 0)
        return None

    def new_faults(self) -> list[str]:
        """Lines on the console since the last call that tell of a fault of the kernel."""
        text = self.log()
        lines, self.seen = text[self.seen :].splitlines(), len(text)
        return [line for line in lines if FAULTS.search(line)]

    def kill(self) -> None:
        """Ends it at once, as a power cut does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if hasattr(self, "process"):
            self.kill()
        for name in ("_agent", "_qmp", "errors"):
            if hasattr(self, name):
                getattr(self, name).close()
        shutil.rmtree(self.folder, ignore_errors=True)
