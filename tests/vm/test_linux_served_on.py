"""A namespace of Linux's target, served again by ours, seen by Linux's host: both ends of the chain in one guest."""

from __future__ import annotations

import pytest

from vm import linux
from vm.guest import Guest
from vm.serving import Namespace, Serve, Subsystem, connected
from vm.test_linux_target import NQN, uri

pytestmark = pytest.mark.kernels("backports", "newer")


@pytest.mark.promise("LIN-15")
@pytest.mark.parametrize("digests", [False, True], ids=["plain", "digests"])
def test_what_is_written_through_it_lies_where_linux_keeps_it(
    guest: Guest, target: linux.Target, serve: Serve, digests: bool
) -> None:
    backing = target.ram(16)
    target.subsystem(NQN, {1: backing})
    target.port(1, 4420, NQN)
    source = uri(guest, "queues=2", *(["hdgst=1", "ddgst=1"] if digests else []))
    served = serve(Subsystem([Namespace(source, writable=True)]))
    host = connected(guest, served, header_digest=digests, data_digest=digests)
    seen = host.disk()
    # Busybox' blockdev takes one at a time.
    for one in (seen, backing):
        assert guest.run(f"blockdev --getsize64 {one}").output.strip() == str(16 << 20)
    guest.run(linux.fio(seen, size="8m", block="16k"), timeout=180)
    guest.run(f"sync && cmp {seen} {backing}", timeout=120)


@pytest.mark.promise("LIN-15")
def test_linux_taking_its_port_away_for_a_while_costs_no_byte(guest: Guest, target: linux.Target, serve: Serve) -> None:
    target.subsystem(NQN, {1: target.ram(16)})
    target.port(1, 4420, NQN)
    served = serve(Subsystem([Namespace(uri(guest, "queues=2", "reconnect_delay=1"))]))
    seen = connected(guest, served).disk()
    job = guest.start(f"for i in 1 2 3 4 5 6 7 8; do sha256sum {seen} || exit 1; sleep 1; done", 180)
    guest.run("sleep 3")
    target.unexport(1, NQN)
    guest.run("sleep 3")
    target.export(1, NQN)
    sums = {line.split()[0] for line in job.wait().output.splitlines() if line.strip()}
    assert len(sums) == 1, sums
