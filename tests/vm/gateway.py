"""`forebay snap` as a process of its own, and guests that have its emulated drives: plugged, found, taken out again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import linux
from .emulator import with_vfio_user
from .guest import Guest, Machine
from .serving import READY_S, Daemon, Namespace

NQN = "nqn.2026-01.io.forebay:gateway"
# Newer ones count processors that may be plugged in only under hypervisors that they know, and emulation is none.
KERNEL = "stock"
QBOOT = "qboot.rom"
# Each takes one drive in the guest's life: QEMU 11.1 aborts where a vfio-user device whose driver had its interrupts on is
# unplugged by device_del (memory_region_del_subregion), whoever serves it. Guests let drives go by themselves instead.
SLOTS = 20
# The stock driver makes at most one queue for each processor that there could be.
PROCESSORS_MAX = 32
QUEUES = 31
# The guest's nvme driver gives an I/O up after so long, and an admin command after twice that (nvme_core's own: 30, 60).
IO_TIMEOUT_S = 8
DRIVER = f"nvme_core.io_timeout={IO_TIMEOUT_S} nvme_core.admin_timeout={2 * IO_TIMEOUT_S} nvme_core.multipath=0"
# It finds out at the latest when an I/O runs out of time, then tries to stop and to start the controller.
GIVEN_UP_S = 6 * IO_TIMEOUT_S


def machine(**more: Any) -> Machine:
    """Two processors and room for 32, slots for drives, and a QEMU that attaches them. Raises Unavailable."""
    given: dict[str, Any] = {"max_cpus": PROCESSORS_MAX, "slots": SLOTS, "kernel_words": DRIVER}
    return Machine(**{**given, "emulator": with_vfio_user(), **more})


@dataclass
class Drive:
    """One emulated drive as the gateway is configured to show it: a subsystem with one controller."""

    namespaces: list[Namespace]
    serial: str = "FB0001"
    nqn: str = NQN
    # Other fields of its controller: max_transfer, queue_depth, poll, …
    options: dict[str, Any] = field(default_factory=dict)

    def lines(self, socket: Path) -> list[str]:
        rows = ["[[subsystems]]", f'nqn = "{self.nqn}"', f'serial = "{self.serial}"']
        rows += [line for namespace in self.namespaces for line in namespace.lines()]
        rows += ["[[subsystems.controllers]]", f'name = "{self.serial}"', f'socket = "{socket}"']
        return rows + [f"{key} = {json.dumps(value)}" for key, value in {"queues": QUEUES, **self.options}.items()]


class Gateway(Daemon):
    """A running gateway. Its sockets keep their paths over `kill` and `start`."""

    def __init__(
        self, folder: Path, drives: list[Drive], top: dict[str, Any] | None = None, keep: bool = False
    ) -> None:
        super().__init__("snap", folder)
        self.drives, self.top = drives, top or {}
        # The process is a supervisor, and the gateway its child.
        self.keep = ["--keep"] if keep else []
        self.config = folder / "snap.toml"
        # pytest's folders have paths longer than a socket's may be.
        self.place = Path(tempfile.mkdtemp(prefix="fb-gw-"))
        self.start()

    def socket(self, drive: Drive | None = None) -> Path:
        return self.place / f"{(drive or self.drives[0]).serial}.sock"

    def device(self, drive: Drive | None = None) -> dict[str, Any]:
        """What QEMU is told to attach it."""
        return {"driver": "vfio-user-pci", "socket": {"type": "unix", "path": str(self.socket(drive))}}

    def write(self) -> None:
        rows = [f'rpc = "{self.place}/rpc.sock"']
        rows += [f"{key} = {json.dumps(value)}" for key, value in self.top.items()]
        rows += [line for drive in self.drives for line in drive.lines(self.socket(drive))]
        self.config.write_text("\n".join(rows) + "\n")

    def start(self) -> None:
        """Starts it and waits until hosts may come. Raises AssertionError with what it said where it doesn't."""
        self.write()
        since = self.launch(str(self.config), "--json", *self.keep)
        self.heard(r"ready: \d+ controller", READY_S, since)

    def replace(self) -> None:
        """Has the next process take over from this one, which ends by itself."""
        old, reader, document = self.process, self._reader, self.document
        self.document = self.folder / f"snap{len(self.said)}.json"
        since = self.launch(str(self.config), "--json", "--take-over")
        self.heard(r"ready: \d+ controller", READY_S, since)
        assert old.wait(30) == 0, self.log()
        reader.join(10)
        assert json.loads(document.read_text())["handed_over"] is True

    def kept(self) -> int:
        """The process of the gateway that its supervisor runs; 0 where there is none just now."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def kill_kept(self) -> None:
        """Kills the gateway, and waits until the next one serves in its place."""
        since = len(self.said)
        os.kill(self.kept(), signal.SIGKILL)
        self.heard(r"ready: \d+ controller", READY_S, since)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.place, ignore_errors=True)


MakeGateway = Callable[..., Gateway]

# controller, its serial number, its state, of those on PCI. Unquoted: a serial number is filled up with spaces.
CONTROLLERS = """for place in /sys/class/nvme/nvme*; do
    [ "$(cat $place/transport 2>/dev/null)" = pcie ] || continue
    echo ${place##*/} $(cat $place/serial) $(cat $place/state)
done 2>/dev/null; true"""


def controllers(guest: Guest) -> dict[str, tuple[str, str]]:
    """Serial number → controller (nvme0) and its state, of the drives on the guest's PCI bus."""
    rows = [line.split() for line in guest.run(CONTROLLERS).output.splitlines()]
    return {row[1]: (row[0], row[2]) for row in rows if len(row) == 3}


def found(guest: Guest, gateway: Gateway, drive: Drive | None = None, within: float = 60) -> linux.Association:
    """The drive as the guest's own nvme driver has it, once it is live."""
    drive = drive or gateway.drives[0]
    guest.run("modprobe nvme")
    try:
        guest.until(CONTROLLERS, lambda out: f" {drive.serial} live" in f"{out} ", within)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{gateway.log()}\n--- QEMU:\n{guest.said()}") from None
    return linux.Association(guest, controllers(guest)[drive.serial][0], drive.nqn)


def in_use(guest: Guest) -> int:
    """Slots that have or had a drive."""
    return sum(not name.startswith("slot") for name in guest.plugged())


def plugged(guest: Guest, gateway: Gateway, drive: Drive | None = None) -> linux.Association:
    """Plugs the drive into a slot of the running guest, and waits for the guest's driver."""
    drive = drive or gateway.drives[0]
    slot = in_use(guest)
    try:
        guest.plug(slot, f"drive{slot}", gateway.device(drive))
    except AssertionError as e:
        raise AssertionError(f"{e}\n{gateway.log()}\n--- QEMU:\n{guest.said()}") from None
    return found(guest, gateway, drive)


def gone(guest: Guest, serial: str, within: float = 60) -> None:
    """Waits until the guest has no such controller any more."""
    guest.until(CONTROLLERS, lambda out: f" {serial} " not in f"{out} ", within)


def pulled(guest: Guest, serial: str) -> None:
    """Lets the guest take the drive off its PCI bus, as it does when a drive is pulled, and waits until it has."""
    if serial in (there := controllers(guest)):
        guest.run(f"echo 1 >/sys/class/nvme/{there[serial][0]}/device/remove", 120)
    gone(guest, serial)


def let_go(guest: Guest) -> None:
    """Takes all drives off the guest's PCI bus. What is in slots stays there, and is looked at by nobody."""
    guest.run("for place in /sys/bus/pci/drivers/nvme/0000:*; do [ ! -e $place ] || echo 1 >$place/remove; done", 180)
