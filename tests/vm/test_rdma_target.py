"""Our target over NVMe/RDMA, on soft RoCE in a guest: Linux's own host (nvme-rdma), and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from vm import linux
from vm.image import HOST_ID, HOST_NQN
from vm.rdma import ADDRESS, PORT, Card, Served
from vm.test_linux_rdma import bench, unharmed

NQN = "nqn.2026-01.io.forebay:rdma"
DISK = "/tmp/disk.img"
MIB = 16
# There once a load has gone on for long enough.
ENOUGH = "/tmp/enough"
WAIT_S = 300

# Where QEMU has no KVM, and other guests run beside.
pytestmark = pytest.mark.timeout(1200)
Serve = Callable[..., Served]


@pytest.fixture
def serve(card: Card) -> Iterator[Serve]:
    """`serve(hosts='…')` → our target with a disk of random bytes, over both transports, until the test ends."""
    running: list[Served] = []

    def start(hosts: str = "allow_any_host = true", more: str = "", top: str = "") -> Served:
        card.guest.run(f"dd if=/dev/urandom of={DISK} bs=1M count={MIB} 2>/dev/null", 120)
        config = f"""
listen = ["127.0.0.1:{PORT}"]
listen_rdma = ["{ADDRESS}:{PORT}"]
threads = 2
buffers = "16m"
{top}
[[subsystems]]
nqn = "{NQN}"
{hosts}
namespaces = [{{ source = "{DISK}", writable = true, block_bytes = 4096 }}{more}]
"""
        running.append(Served(card, config))
        running[-1].start()
        return running[-1]

    yield start
    linux.tidy(card.guest)
    for one in running:
        if one.process:
            one.kill()


def connected(card: Card, **options: object) -> linux.Association:
    # A Python takes its time to start here, and the kernel tries once a second.
    options = {"address": ADDRESS, "transport": "rdma", "loss_s": 900, **options}
    return linux.connect(card.guest, NQN, PORT, 180, **options)


def same(card: Card, seen: str) -> None:
    """What the kernel reads there is what the file holds."""
    card.guest.run(f"dd if={seen} bs=1M iflag=direct 2>/dev/null | cmp - {DISK}", WAIT_S)


@pytest.mark.promise("RHO-12")
def test_linux_discovers_both_transports(card: Card, serve: Serve) -> None:
    serve()
    records = [r for r in linux.discover(card.guest, PORT, ADDRESS, "rdma") if r["subnqn"] == NQN]
    # Who asks at the card's address can't reach 127.0.0.1, and is told of it all the same, as of any listener.
    found = {r["trtype"]: r for r in records}
    assert found["rdma"]["traddr"] == ADDRESS and found["rdma"]["trsvcid"] == str(PORT), records
    assert found["rdma"]["rdma_cms"] == "rdma-cm" and found["rdma"]["rdma_qptype"] == "connected", records
    assert found["tcp"]["traddr"] == "127.0.0.1", records


@pytest.mark.promise("RHO-12")
def test_linux_reads_and_writes(card: Card, serve: Serve) -> None:
    """Several queues; writes in their capsules and such that we fetch; fio's checksums over it."""
    target = serve()
    host = connected(card, queues=2, more=["--nr-write-queues=1", "--nr-poll-queues=1"])
    seen = host.disk()
    assert card.guest.run(f"cat /sys/class/nvme/{host.controller}/queue_count").output.strip() == "5"
    identified = card.guest.run(f"nvme id-ctrl {host.device} -o json").json
    assert identified["sgls"] == 0x100005, "keyed SGLs, and offsets into capsules"
    same(card, seen)
    split = ["--bssplit=4k/50:16k/20:64k/20:1m/10"]
    card.guest.run(linux.fio(seen, size="4m", more=split), WAIT_S)
    same(card, seen)
    host.disconnect()
    ended = target.stop()
    assert ended["drained"] and ended["listen_rdma"] == [f"{ADDRESS}:{PORT}"]
    subsystem = next(s for s in ended["stats"]["subsystems"] if s["nqn"] == NQN)
    counts = subsystem["namespaces"][0]["counts"]
    assert counts["write_bytes"] > 1 << 20 and not counts["errors"], counts


@pytest.mark.promise("RHO-12")
def test_a_killed_target_comes_back_and_nothing_is_lost(card: Card, serve: Serve) -> None:
    target = serve()
    host = connected(card)
    load = card.guest.start(linux.fio_until(ENOUGH, host.disk(), mib=2, block="16k"), 900)
    for _ in range(2):
        written = f"cat /sys/block/{host.disk().rpartition('/')[2]}/stat | awk '{{print $5}}'"
        enough = int(card.guest.run(written).output) + 20
        card.guest.until(f"[ $({written}) -gt {enough} ] && echo more", lambda out: out == "more", WAIT_S)
        target.kill()
        host.until_state("connecting", WAIT_S)
        target.start()
        host.until_state("live", WAIT_S)
        assert load.running, load.wait(check=False)
    card.guest.run(f"touch {ENOUGH}")
    assert int(load.wait().output.split()[-1]) >= 1
    same(card, host.disk())


@pytest.mark.promise("RHO-12")
def test_a_host_that_is_disconnected_by_a_drain_comes_back(card: Card, serve: Serve) -> None:
    target = serve()
    host = connected(card)
    seen = host.disk()
    assert target.stop()["drained"]
    host.until_state("connecting", WAIT_S)
    target.start()
    host.until_state("live", WAIT_S)
    same(card, seen)


@pytest.mark.promise("RHO-12")
def test_a_host_proves_who_it_is(card: Card, serve: Serve) -> None:
    key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
    serve(f'hosts = [{{ nqn = "{HOST_NQN}", dhchap_key = "{key}" }}]')
    options = {"address": ADDRESS, "transport": "rdma"}
    linux.refused(card.guest, NQN, PORT, 180, **options)
    host = connected(card, more=[f"--dhchap-secret={key}"])
    same(card, host.disk())


@pytest.mark.promise("RHO-12")
def test_a_source_without_content_reads_as_zeros(card: Card, serve: Serve) -> None:
    serve(more=', { source = "nil:?size=16m", block_bytes = 4096 }')
    host = connected(card)
    card.guest.run(f"dd if={host.disk(2)} bs=1M iflag=direct 2>/dev/null | cmp -n 16777216 - /dev/zero", WAIT_S)
    same(card, host.disk(1))


@pytest.mark.promise("RHO-20")
def test_our_own_looks_find_our_own_target(card: Card, serve: Serve) -> None:
    """With the same proof as a source; and what was looked at is left in good order."""
    key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
    target = serve(f'hosts = [{{ nqn = "{HOST_NQN}", dhchap_key = "{key}" }}]')
    card.guest.put("/tmp/secret", key.encode())
    card.guest.run("chmod 600 /tmp/secret")
    place, keys = f"nvme+rdma://{ADDRESS}:{PORT}", f"hostnqn={HOST_NQN}&hostid={HOST_ID}"
    shown = card.forebay("discover", f"{place}?{keys}").output.splitlines()
    assert f"{place}/{NQN}" in shown and f"nvme+tcp://127.0.0.1:{PORT}/{NQN}" in shown, shown
    identify = ("identify", f"{place}/{NQN}?{keys}&dhchap_secret_file=/tmp/secret")
    found = card.forebay(*identify, "--json").json
    assert (found["summary"]["nqn"], found["summary"]["max_h2c_bytes"]) == (NQN, 0)
    (namespace,) = found["namespaces"]
    assert (namespace["bytes"], namespace["block_bytes"], namespace["read_only"]) == (MIB << 20, 4096, False)
    words = card.forebay(*identify).output
    assert "travel with their command\n" in words and "digests" not in words, words
    refused = card.forebay("identify", f"{place}/{NQN}?{keys}", check=False)
    assert refused.status == 2 and "dhchap_secret_file" in refused.output, refused
    assert target.stop()["drained"]


# 4 KiB go in the capsule, 64 KiB are fetched, 2 MiB are several commands.
@pytest.mark.promise("RHO-12")
@pytest.mark.parametrize(("io", "mib"), [("4k", 1), ("64k", 2), ("2m", 4)])
def test_our_own_host_and_our_own_target(card: Card, serve: Serve, io: str, mib: int) -> None:
    serve()
    query = f"hostnqn={HOST_NQN}&hostid={HOST_ID}&queues=2&replay_writes=1"
    source, size = f"nvme+rdma://{ADDRESS}:{PORT}/{NQN}?{query}", ("--file-size", f"{mib}m")
    written = card.forebay(*bench(source, "write", io, "--passes", "1", *size)).json
    assert written["result"]["bytes"] == mib << 20
    unharmed(card.forebay(*bench(source, "read", io, "--passes", "1", *size)).json)
