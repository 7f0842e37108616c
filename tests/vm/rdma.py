"""Soft RoCE in a guest. Its own network card carries it, so both ends are in the guest, ours too: they run from this
machine's files, which the guest reads over 9p."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .guest import Done, Guest, Machine, Pending
from .linux import words

KERNEL = "rdma"
ADDRESS = "10.0.2.15"
PORT = 4420
# A Python under QEMU without KVM takes its time to start.
COMMAND_S = 420
# What is of the guest lies over what is of this machine, but for what our commands are run from.
OURS = ("/dev", "/proc", "/sys", "/tmp")


def kept(prefixes: Iterable[str]) -> list[str]:
    """The folders of our Python that what is of the guest would hide, as in a clone below /tmp; none inside another."""
    hidden = sorted(p for p in set(prefixes) if any(p.startswith(f"{place}/") for place in OURS))
    return [p for p in hidden if not any(p.startswith(f"{other}/") for other in hidden)]


KEPT = words(*kept((sys.prefix, sys.base_prefix)))
SETUP = f"""[ ! -e /sys/class/infiniband/rxe0 ] || exit 0
modprobe -a 9p 9pnet_virtio crc32_generic rdma_rxe ib_uverbs rdma_ucm nvmet-rdma nvme-rdma || exit 1
mkdir -p /host && mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host || exit 1
for place in {KEPT}; do mkdir -p "$place" && mount --bind "/host$place" "$place" || exit 1; done
for place in {" ".join(OURS)}; do mount --bind $place /host$place || exit 1; done
for place in {KEPT}; do mount --bind "$place" "/host$place" || exit 1; done
for place in /sys/class/net/*; do
    name=${{place##*/}}
    [ "$name" = lo ] || chroot /host rdma link add rxe0 type rxe netdev "$name" || exit 1
done
chroot /host rdma link show"""


def machine() -> Machine:
    return Machine(memory_mib=3072, shared="/")


@dataclass
class Card:
    """A guest whose network card does RDMA."""

    guest: Guest

    def __post_init__(self) -> None:
        self.guest.run(SETUP, timeout=120)

    @staticmethod
    def _script(arguments: tuple[str, ...], env: dict[str, str] | None = None) -> str:
        given = [f"{name}={value}" for name, value in (env or {}).items()]
        command = words("chroot", "/host", "env", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1", *given)
        ours = words(sys.executable, "-m", "forebay.cli", *arguments)
        # What people read only where the command fails: what is left is JSON.
        return f"{command} {ours} 2>/run/said.$$ || {{ status=$?; cat /run/said.$$; exit $status; }}"

    def forebay(self, *arguments: str, check: bool = True, env: dict[str, str] | None = None) -> Done:
        """One of our commands in the guest, as root."""
        return self.guest.run(self._script(arguments, env), timeout=COMMAND_S, check=check)

    def start(self, *arguments: str) -> Pending:
        """As `forebay`, beside the test."""
        return self.guest.start(self._script(arguments), timeout=COMMAND_S)


@dataclass
class Served:
    """One of our daemons in the guest, on its card: started, killed, started again with what it served."""

    card: Card
    config: str
    verb: str = "serve"
    # What it says once hosts may come.
    ready: str = "listening on"
    process: int = 0

    def start(self) -> None:
        """Returns once hosts may come."""
        name = f"/tmp/{self.verb}"
        self.card.guest.put(f"{name}.toml", self.config.encode())
        command = words("chroot", "/host", "env", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1", sys.executable)
        ours = words("-m", "forebay.cli", self.verb, f"{name}.toml", "--json")
        # Python may give room for its caches away before the memory that it locks is counted.
        begin = f"rm -f {name}.out {name}.log; {command} {ours} >{name}.out 2>{name}.log </dev/null & echo $!"
        self.process = int(self.card.guest.run(f"ulimit -l unlimited; {begin}", COMMAND_S).output)
        self.card.guest.run(
            f"""until grep -q {words(self.ready)} {name}.log; do
                [ -d /proc/{self.process} ] || {{ cat {name}.log; exit 1; }}
                sleep 0.2
            done""",
            COMMAND_S,
        )

    def log(self) -> str:
        return self.card.guest.run(f"cat /tmp/{self.verb}.log").output

    def kill(self) -> None:
        """As a power cut ends a process."""
        self.card.guest.run(f"kill -9 {self.process} 2>/dev/null; {self._ended()}", 180)

    def stop(self) -> Any:
        """Ends it in good order; the document that it closes with."""
        return self.card.guest.run(f"kill {self.process}; {self._ended()}; cat /tmp/{self.verb}.out", 180).json

    def _ended(self) -> str:
        """Waits for its end. Nobody may have asked how it ended, and then its number stays."""
        return f"while grep -q '^State:.[^ZX]' /proc/{self.process}/status 2>/dev/null; do sleep 0.1; done"
