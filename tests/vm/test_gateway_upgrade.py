"""A guest of the gateway whose process is replaced by the next one while the guest writes and reads back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vm import linux
from vm.gateway import Drive, MakeGateway, plugged, pulled
from vm.guest import Guest
from vm.serving import Namespace, disk

TAKEOVERS = 4


@pytest.mark.promise("SNP-7")
def test_a_gateway_is_replaced_under_a_guests_fio(vmm: Guest, snap: MakeGateway, tmp_path: Path) -> None:
    """Its driver sees nothing of it: no time-out, no reset, no error, and no byte that is wrong."""
    served = snap(Drive([Namespace(disk(tmp_path / "a", 32), writable=True)]))
    host = plugged(vmm, served)
    done = "/dev/shm/replaced"
    writing = vmm.start(linux.fio_until(done, host.disk(), mib=16, block="16k"), 300)
    time.sleep(4)
    since = len(vmm.log())
    for _ in range(TAKEOVERS):
        served.replace()
        time.sleep(2)
    vmm.run(f"touch {done}")
    assert int(writing.wait().output) >= 1
    assert host.state() == "live"
    assert "timeout" not in vmm.log()[since:] and "reset" not in vmm.log()[since:]
    # Registers, the admin queue and the PCI function are there, too.
    vmm.run(f"nvme id-ctrl {host.device} && nvme reset {host.device}")
    host.until_state("live")
    vmm.run(linux.fio(host.disk(), size="2m"), 120)
    pulled(vmm, "FB0001")
    stats = served.stop()["stats"]
    assert stats["controllers"][0]["protocol_errors"] == 0, stats
