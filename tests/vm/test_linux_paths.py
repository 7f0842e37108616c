"""Linux's multipath host at two addresses of our target: which path it takes, and that it follows a change (ANA)."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from vm import linux
from vm.guest import Guest
from vm.serving import Namespace, Serve, Subsystem, connected, disk

# controller → ANA state of its path to the namespace, and sectors read over it.
PATHS = """for path in /sys/class/nvme/nvme*/nvme*c*n*; do
    set -- $(cat $path/stat)
    echo "$(basename $(dirname $path)) $(cat $path/ana_state) $3"
done"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def paths(output: str) -> dict[str, tuple[str, int]]:
    rows = [line.split() for line in output.splitlines()]
    return {name: (state, int(sectors)) for name, state, sectors in rows}


@pytest.mark.promise("LIN-20")
def test_linux_takes_the_best_path_and_follows_a_change(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    second = free_port()
    subsystem = Subsystem([Namespace(disk(tmp_path / "a", 4))], ana={f"127.0.0.1:{second}": "non-optimized"})
    served = serve(subsystem, listen=[f"127.0.0.1:{second}"])
    near = connected(guest, served)
    far = linux.connect(guest, served.nqn, second)
    seen = near.disk()
    content = hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()

    def settled(wanted: dict[str, str]) -> None:
        guest.until(PATHS, lambda out: {name: state for name, (state, _) in paths(out).items()} == wanted, 60)

    def reads_by(association: linux.Association) -> None:
        """All of the disk, and by this path alone."""
        before = paths(guest.run(PATHS).output)
        script = f"dd if={seen} bs=1M iflag=direct 2>/dev/null | sha256sum"
        assert guest.run(script, 120).output.split()[0] == content
        after = paths(guest.run(PATHS).output)
        read = {name: sectors - before[name][1] for name, (_, sectors) in after.items()}
        assert {name for name, sectors in read.items() if sectors} == {association.controller}, read

    settled({near.controller: "optimized", far.controller: "non-optimized"})
    reads_by(near)
    for here, there, taken in (("inaccessible", "non-optimized", far), ("optimized", "inaccessible", near)):
        subsystem.ana = {f"127.0.0.1:{served.port}": here, f"127.0.0.1:{second}": there}
        served.reload()
        settled({near.controller: here, far.controller: there})
        reads_by(taken)
