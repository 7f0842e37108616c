"""A guest that reads from a drive of ours, and from one of SPDK's vfio-user target: the same guest, the same fio.

Neither drive has anything behind it (`nil:` here, a null bdev there), so that what is measured is the way from the
guest's queues into the emulating process and back. Both are plugged into one running guest, and whichever has no turn
is stopped (SIGSTOP): SPDK looks for work without end, and would take a processor from the other. Ours sleeps where it
has nothing to do; beside it stands ours with `poll`, which does as SPDK's does: doorbells in memory that it shares
with the guest, at which it looks without end.

It needs a QEMU with `vfio-user-pci` (the tests' guests fetch one), and SPDK built with `--with-vfio-user`, whose folder
SPDK names. Without KVM the guest's processors are emulated, and take the greater part of the time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from gateway import gateway  # noqa: E402
from remote import NQN, SPDK_NQN, cpu_of, spdk_root, spdk_started  # noqa: E402
from side_by_side import Bound, Cell, Contender, Figure, Unavailable, arguments, compare, say  # noqa: E402
from vm import packages  # noqa: E402
from vm.gateway import CONTROLLERS, KERNEL, machine  # noqa: E402
from vm.guest import Guest  # noqa: E402

PROMISES = ("MSR-22",)

OURS, POLLING, SPDK = "forebay", "forebay, polling", "SPDK"
SERIALS = {OURS: "OURS", POLLING: "POLLING", SPDK: "SPDK0"}
# name, block, commands in flight of each of two processes
SIZES = (("4k, depth 1", "4k", 1, 1), ("4k, depth 32", "4k", 16, 2), ("128k, depth 32", "128k", 16, 2))
FOUND_S = 120
RAMP_S = 1


@contextlib.contextmanager
def ours(poll: bool, serial: str) -> Iterator[tuple[int, Path]]:
    """`forebay snap` with a drive of nothing: its process, and the drive's socket."""
    with gateway("nil:?size=64g", poll=poll, serial=serial, nqn=f"{NQN}:{serial.lower()}") as running:
        yield running


@contextlib.contextmanager
def spdk(serial: str) -> Iterator[tuple[int, Path]]:
    """SPDK's target with a drive of nothing: its process, and the drive's socket."""
    root = spdk_root("built with --with-vfio-user")
    with tempfile.TemporaryDirectory(prefix="fb-spdk-") as folder, spdk_started(root) as (pid, rpc):
        rpc("nvmf_create_transport", "-t", "VFIOUSER")
        rpc("bdev_null_create", "Null0", "65536", "512")
        rpc("nvmf_create_subsystem", SPDK_NQN, "-a", "-s", serial, "-m", "8")
        rpc("nvmf_subsystem_add_ns", SPDK_NQN, "Null0")
        rpc("nvmf_subsystem_add_listener", SPDK_NQN, "-t", "VFIOUSER", "-a", folder, "-s", "0")
        yield pid, Path(folder) / "cntrl"


class Bench:
    """The guest, and who serves its drives: name → process and block device."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.served: dict[str, tuple[int, str]] = {}
        # Who isn't here, and why.
        self.lost: dict[str, str] = {}

    def plug(self, name: str, pid: int, socket: Path) -> None:
        """Plugs a drive and waits for the guest's driver; before and after that its server stands still until it has its turn."""
        os.kill(pid, signal.SIGCONT)
        slot, serial = len(self.served), SERIALS[name]
        device = {"driver": "vfio-user-pci", "socket": {"type": "unix", "path": str(socket)}}
        self.guest.plug(slot, f"drive{slot}", device)
        self.guest.run("modprobe nvme")
        rows = self.guest.until(CONTROLLERS, lambda out: f" {serial} live" in f"{out} ", FOUND_S)
        controller = next(row.split()[0] for row in rows.splitlines() if f" {serial} " in row)
        # Read by whoever looks for partitions, too: it must be through with that, or its reads run out of time meanwhile.
        looked = f"dd if=/dev/{controller}n1 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null && echo there"
        self.guest.until(looked, lambda out: out == "there", FOUND_S)
        os.kill(pid, signal.SIGSTOP)
        self.served[name] = (pid, f"/dev/{controller}n1")
        say(f"{name}: {controller} in the guest")

    def contender(self, name: str, block: str, depth: int, jobs: int) -> Contender:
        pid, device = self.served[name]
        words = f"--rw=randread --bs={block} --iodepth={depth} --numjobs={jobs} --ioengine=io_uring --direct=1"

        def measure(seconds: float) -> Figure:
            command = (
                f"fio --name=r --filename={device} {words} --randrepeat=1 --group_reporting=1 --time_based "
                f"--ramp_time={RAMP_S} --runtime={max(1, round(seconds))} --output-format=json"
            )
            os.kill(pid, signal.SIGCONT)
            try:
                before = cpu_of(pid)
                reported = self.guest.run(command, 60 + 10 * seconds).json
                beside = cpu_of(pid) - before
            finally:
                os.kill(pid, signal.SIGSTOP)
            return figure(reported, beside)

        return Contender(name, measure, ["fio", *words.split()])


def figure(reported: dict[str, Any], server_cpu_s: float) -> Figure:
    """What fio says, and the CPU that the server took in the measured part of it."""
    job = reported["jobs"][0]
    if job["error"]:
        raise Unavailable(f"fio ended with error {job['error']} in the guest")
    read = job["read"]
    seconds = read["runtime"] / 1e3
    cpu_s = server_cpu_s * seconds / (seconds + RAMP_S)
    proof = {"p50_us": read["clat_ns"].get("percentile", {}).get("50.000000", 0) / 1e3}
    return Figure(seconds, read["io_bytes"], read["total_ios"], cpu_s, None, proof)


def cell(bench: Bench, name: str, block: str, depth: int, jobs: int) -> Cell:
    contenders = [bench.contender(who, block, depth, jobs) for who in bench.served]
    bounds = [Bound("rate", (SPDK,), at_least=1.0), Bound("rate", (SPDK,), at_least=1.0, of=POLLING)]
    return Cell(f"guest, {name}", contenders, bounds, per="I/O" if block == "4k" else "GiB", lost=dict(bench.lost))


def main() -> int:
    parser = arguments(__doc__ or "", seconds=3)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        servers, lost = {}, {}
        try:
            servers[SPDK] = stack.enter_context(spdk(SERIALS[SPDK]))
        except Unavailable as why:
            lost[SPDK] = str(why)
            say(f"left out: {why}")
        try:
            servers[OURS] = stack.enter_context(ours(poll=False, serial=SERIALS[OURS]))
            servers[POLLING] = stack.enter_context(ours(poll=True, serial=SERIALS[POLLING]))
            for pid, _ in servers.values():
                os.kill(pid, signal.SIGSTOP)
            # Those that stand still would not hear that they are to end.
            stack.callback(lambda: [os.kill(pid, signal.SIGCONT) for pid, _ in servers.values()])
            guest = Guest(packages.kernel(KERNEL), machine(slots=len(servers)))
        except (Unavailable, packages.Unavailable) as why:
            print(f"gateway_guest: {why}", file=sys.stderr)
            return 3
        stack.callback(guest.close)
        bench = Bench(guest)
        bench.lost = lost
        for name, (pid, socket) in servers.items():
            bench.plug(name, pid, socket)
        wanted = [size for size in SIZES if not options.only or options.only in f"guest, {size[0]}"]
        cells = [lambda size=size: cell(bench, *size) for size in wanted]
        return compare("A guest's drive, ours beside SPDK's", options, cells)


if __name__ == "__main__":
    sys.exit(main())
