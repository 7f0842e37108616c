"""Linux's own NVMe/TCP host as our target's: what nvme-cli asks, what file systems and fio write, who is let in."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from vm import linux
from vm.guest import Guest
from vm.image import HOST_NQN
from vm.serving import MIB, NQN, Namespace, Serve, Subsystem, connected, disk

OTHER = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001"


def nvme(guest: Guest, *arguments: object, check: bool = True) -> str:
    return guest.run(linux.words("nvme", *arguments), check=check).output


def nvme_json(guest: Guest, *arguments: object) -> dict:
    return guest.run(linux.words("nvme", *arguments, "-o", "json")).json


def sha256_here(path: Path, count: int | None = None) -> str:
    return hashlib.sha256(path.read_bytes()[:count]).hexdigest()


def sha256_there(guest: Guest, disk: str, mib: int) -> str:
    script = f"dd if={disk} bs=1M count={mib} iflag=direct 2>/dev/null | sha256sum"
    return guest.run(script, 120).output.split()[0]


# Discovery and connections ------------------------------------------------------------------------


@pytest.mark.promise("LIN-1")
def test_linux_discovers_what_is_served(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    file = disk(tmp_path / "a", 1)
    served = serve(Subsystem([Namespace(file)]), Subsystem([Namespace(file)], nqn=f"{NQN}2"))
    records = linux.discover(guest, served.port)
    found = {r["subnqn"]: r for r in records}
    assert {NQN, f"{NQN}2"} <= set(found), records
    assert found[NQN]["trtype"] == "tcp" and found[NQN]["trsvcid"] == str(served.port), records
    assert found[NQN]["adrfam"] == "ipv4"


@pytest.mark.promise("LIN-1")
def test_a_host_that_is_not_allowed_sees_no_subsystem(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    file = disk(tmp_path / "a", 1)
    served = serve(
        Subsystem([Namespace(file)], hosts={OTHER: {}}), Subsystem([Namespace(file)], nqn=f"{NQN}2")
    )
    names = {r["subnqn"] for r in linux.discover(guest, served.port)}
    assert NQN not in names and f"{NQN}2" in names, names


@pytest.mark.promise("LIN-2")
@pytest.mark.parametrize(
    "header, data", [(False, False), (True, True), (True, False), (False, True)], ids=["none", "both", "header", "data"]
)
def test_linux_connects_reads_and_writes(
    guest: Guest, serve: Serve, tmp_path: Path, header: bool, data: bool
) -> None:
    """Queues for reads, writes and polling, in-capsule writes and R2T, with fio's checksums over it."""
    file = disk(tmp_path / "a", 16)
    served = serve(Subsystem([Namespace(file, writable=True)]))
    host = connected(
        guest, served, header_digest=header, data_digest=data, more=["--nr-write-queues=2", "--nr-poll-queues=2"]
    )
    seen = host.disk()
    queues = guest.run(f"cat /sys/class/nvme/{host.controller}/queue_count").output.strip()
    assert queues == "7", "2 for reads, 2 for writes, 2 that are polled, and that for admin commands"
    assert sha256_there(guest, seen, 16) == sha256_here(file)
    guest.run(linux.fio(seen, size="4m", more=["--bssplit=4k/60:16k/20:128k/15:1m/5"]), 120)
    assert sha256_there(guest, seen, 16) == sha256_here(file), "the file holds what the host reads"
    host.disconnect()
    ended = served.stop()
    assert ended["drained"] is True


@pytest.mark.promise("LIN-7")
def test_linux_disconnects_and_leaves_nothing(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))]))
    before = served.descriptors()
    host = connected(guest, served)
    host.disk()
    assert served.descriptors() >= before + 3
    assert "disconnected 1" in nvme(guest, "disconnect", "-n", NQN)
    assert host.state() == "" and host.disks() == {}
    deadline_s = 10
    guest.until(f"sleep 0.2; echo {before}", lambda _: served.descriptors() == before, deadline_s)


@pytest.mark.promise("LIN-7")
def test_linux_is_refused_where_it_is_not_on_the_list(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    file = disk(tmp_path / "a", 1)
    served = serve(Subsystem([Namespace(file)], hosts={OTHER: {}}))
    since = len(guest.log())
    linux.refused(guest, NQN, served.port)
    guest.heard("is not allowed, hostnqn", since)
    served.heard(HOST_NQN.replace(".", r"\."), 10)
    host = connected(guest, served, more=[f"--hostnqn={OTHER}", "--hostid=00000000-0000-4000-8000-000000000001"])
    host.disk()


@pytest.mark.promise("LIN-7")
def test_an_unknown_subsystem_is_refused(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))]))
    linux.refused(guest, f"{NQN}none", served.port)
    connected(guest, served).disk()


# Admin commands -----------------------------------------------------------------------------------


@pytest.mark.promise("LIN-3")
def test_linux_identifies_the_controller_and_its_namespaces(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    big, small = disk(tmp_path / "big", 16), disk(tmp_path / "small", 3)
    served = serve(Subsystem([Namespace(big), Namespace(small, nsid=7, writable=True, block_bytes=4096)]))
    host = connected(guest, served)
    seen, other = host.disk(1), host.disk(7)

    controller = nvme_json(guest, "id-ctrl", host.device)
    assert controller["subnqn"] == NQN and controller["mn"].strip() == "Forebay", controller
    assert controller["sn"].strip() and controller["cntlid"] > 0
    assert controller["kas"] > 0 and controller["sgls"] & 3, "keep alive and SGLs, as fabrics need them"
    assert controller["ioccsz"] >= 4 and controller["iorcsz"] == 1
    assert controller["nn"] >= 7

    namespace = nvme_json(guest, "id-ns", host.device, "-n", 1)
    block = 1 << namespace["lbafs"][namespace["flbas"] & 15]["ds"]
    assert namespace["nsze"] * block == 16 * MIB
    assert namespace["nsattr"] & 1 == 1, "bit 0: write protected"
    namespace = nvme_json(guest, "id-ns", host.device, "-n", 7)
    assert namespace["nsze"] * 4096 == 3 * MIB and namespace["nsattr"] & 1 == 0

    listed = nvme_json(guest, "list-ns", host.device)
    assert [row["nsid"] for row in listed["nsid_list"]] == [1, 7]
    uuids = [nvme_json(guest, "ns-descs", host.device, "-n", n)["ns-descs"] for n in (1, 7)]
    names = [next(d["uuid"] for d in row if d["type"] == "uuid") for row in uuids]
    assert len(set(names)) == 2
    assert {seen.rsplit("/", 1)[1], other.rsplit("/", 1)[1]} <= set(nvme(guest, "list").replace("/dev/", "").split())
    assert guest.run(f"cat /sys/block/{seen.rsplit('/', 1)[1]}/uuid").output.strip() == names[0]


# nvme-cli's name of a log → what is in what it prints.
LOGS = {
    "error-log": "error_count",
    "smart-log": "available_spare",
    "fw-log": "frs1",
    "changed-ns-list-log": "",
    "effects-log": "",
    "ana-log": "state\\s*:\\s*optimized",
    "supported-log-pages": "LID 0xc",
}


@pytest.mark.promise("LIN-3")
def test_linux_reads_every_log_page_that_we_have(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))]))
    host = connected(guest, served)
    host.disk()
    for log, pattern in LOGS.items():
        read = guest.run(linux.words("nvme", log, host.device), check=False)
        assert read.ok and re.search(pattern, read.output), f"{log}: {read.output}\n{served.log()}"
    for page, size in {0x00: 1024, 0x01: 64, 0x02: 512, 0x03: 512, 0x04: 4096, 0x05: 4096}.items():
        raw = guest.run(f"nvme get-log {host.device} --log-id={page} --log-len={size} -b | wc -c")
        assert raw.output.strip() == str(size), f"page {page:#x}: {raw.output}"
    refused = guest.run(f"nvme get-log {host.device} --log-id=0xc7 --log-len=512", check=False)
    assert not refused.ok and "INVALID_LOG_PAGE" in refused.output.upper().replace(" ", "_"), refused.output


@pytest.mark.promise("LIN-3")
def test_linux_gets_and_sets_features(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1), writable=True)]))
    host = connected(guest, served)
    host.disk()

    def value(feature: int) -> int:
        shown = nvme(guest, "get-feature", host.device, "-f", feature)
        return int(shown.rsplit("value:", 1)[1].split()[0], 16)

    queues = value(7)
    assert queues & 0xFFFF >= 1 and queues >> 16 >= 1, f"number of queues, less one, twice: {queues:#x}"
    assert value(0x0B) & 0x100, "the kernel asked for events of changed namespaces"
    assert value(0x0F) == 5000, "the keep-alive time-out that we connected with, ms"
    nvme(guest, "set-feature", host.device, "-f", 0x0B, "-v", 0x100)
    assert value(0x0B) == 0x100
    refused = guest.run(f"nvme get-feature {host.device} -f 0xc7", check=False)
    assert not refused.ok, refused.output


@pytest.mark.promise("LIN-3")
def test_commands_that_cannot_be_end_with_the_status_that_the_specification_names(
    guest: Guest, serve: Serve, tmp_path: Path
) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1), writable=True)]))
    host = connected(guest, served)
    seen = host.disk()
    beyond = guest.run(f"nvme read {seen} --start-block=999999 --block-count=0 --data-size=4096", check=False)
    assert not beyond.ok and "LBA" in beyond.output.upper(), beyond.output
    missing = guest.run(f"nvme id-ns {host.device} -n 99999", check=False)
    assert not missing.ok and "NAMESPACE" in missing.output.upper(), missing.output
    unknown = guest.run(f"nvme admin-passthru {host.device} --opcode=0xc7", check=False)
    assert not unknown.ok and "OPCODE" in unknown.output.upper(), unknown.output
    assert host.state() == "live"


# Data ---------------------------------------------------------------------------------------------


@pytest.mark.promise("LIN-4")
def test_a_file_system_on_a_served_file_keeps_what_is_copied_to_it(
    guest: Guest, serve: Serve, tmp_path: Path
) -> None:
    file = disk(tmp_path / "a", 64, content=False)
    served = serve(Subsystem([Namespace(file, writable=True)]))
    host = connected(guest, served)
    seen = host.disk()
    guest.run(
        f"""mkfs.ext4 -q -F {seen} && mount -t ext4 {seen} /mnt && cp -r /bin/fio /bin/nvme /lib/modules /mnt/ &&
        (cd /mnt && find . -type f | sort | xargs sha256sum) >/tmp/sums && umount /mnt &&
        mount -t ext4 -o ro {seen} /mnt && (cd /mnt && sha256sum -c -s /tmp/sums) && umount /mnt""",
        180,
    )
    host.disconnect()
    served.stop()
    checked = subprocess.run(["/sbin/e2fsck", "-fn", str(file)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.promise("LIN-6")
def test_a_read_only_namespace_cannot_be_written(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    file = disk(tmp_path / "a", 1)
    before = sha256_here(file)
    host = connected(guest, serve(Subsystem([Namespace(file)])))
    seen = host.disk()
    assert guest.run(f"blockdev --getro {seen}").output.strip() == "1"
    assert not guest.run(f"dd if=/dev/zero of={seen} bs=4k count=1 oflag=direct", check=False).ok
    for command in ("write", "write-zeroes", "dsm -d -s 0 -b 8"):
        data = "--data-size=4096 --data=/bin/busybox --block-count=0" if command == "write" else ""
        asked = f"nvme {command} {host.device} -n 1 {data}" + (" -s 0 -c 0" if command == "write-zeroes" else "")
        refused = guest.run(asked, check=False)
        assert not refused.ok, f"{command}: {refused.output}"
    assert sha256_here(file) == before


@pytest.mark.promise("LIN-5")
def test_flushes_and_forced_unit_access_reach_the_target(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 4), writable=True)]))
    host = connected(guest, served)
    seen = host.disk()
    place = f"/sys/block/{seen.rsplit('/', 1)[1]}/queue"
    assert guest.run(f"cat {place}/write_cache {place}/fua").output.split("\n")[:2] == ["write back", "1"]
    guest.run(f"dd if=/dev/urandom of={seen} bs=64k count=8 oflag=direct,dsync 2>&1 && sync {seen}")
    nvme(guest, "flush", host.device, "-n", 1)
    block = guest.run(f"blockdev --getss {seen}").output.strip()
    guest.run(f"dd if=/bin/busybox of=/tmp/block bs={block} count=1 2>/dev/null")
    nvme(guest, "write", seen, "-s", 0, "-c", 0, "-z", block, "-d", "/tmp/block", "--force-unit-access")
    host.disconnect()
    counts = served.stop()["stats"]["subsystems"][0]["namespaces"][0]["counts"]
    assert counts["flushes"] >= 2 and counts["writes"] >= 9, counts


@pytest.mark.promise("LIN-5")
def test_discarded_and_zeroed_blocks_read_as_zeroes(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    file = disk(tmp_path / "a", 8)
    served = serve(Subsystem([Namespace(file, writable=True)]))
    host = connected(guest, served)
    seen = host.disk()
    kept, held = sha256_here(file, MIB), file.stat().st_blocks
    guest.run(f"blkdiscard -o 1M -l 2M {seen} && blkdiscard -z -o 4M -l 1M {seen}")
    block = int(guest.run(f"blockdev --getss {seen}").output)
    guest.run(f"nvme write-zeroes {seen} --start-block={6 * MIB // block} --block-count={4096 // block - 1}")
    there = guest.run(
        f"dd if={seen} bs=1M skip=1 count=2 iflag=direct 2>/dev/null | tr -d '\\000' | wc -c;"
        f"dd if={seen} bs=1M skip=4 count=1 iflag=direct 2>/dev/null | tr -d '\\000' | wc -c;"
        f"dd if={seen} bs=4k skip={6 * 256} count=1 iflag=direct 2>/dev/null | tr -d '\\000' | wc -c"
    )
    assert there.output.split() == ["0", "0", "0"]
    assert sha256_here(file, MIB) == kept, "what lies before is as it was"
    assert file.stat().st_blocks < held, "deallocated blocks are given back to the file system"


@pytest.mark.promise("LIN-5")
def test_compare_and_verify_tell_the_same_from_the_other(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    file = disk(tmp_path / "a", 1)
    served = serve(Subsystem([Namespace(file, writable=True)]))
    host = connected(guest, served)
    seen = host.disk()
    guest.run(
        f"""dd if={seen} of=/tmp/same bs=4k count=1 iflag=direct 2>/dev/null
        tr '\\000-\\377' '\\001-\\377\\000' </tmp/same >/tmp/other"""
    )
    oncs = nvme_json(guest, "id-ctrl", host.device)["oncs"]
    count = 4096 // int(guest.run(f"blockdev --getss {seen}").output) - 1
    if oncs & 1:
        guest.run(f"nvme compare {seen} -s 0 -c {count} -z 4096 -d /tmp/same")
        differs = guest.run(f"nvme compare {seen} -s 0 -c {count} -z 4096 -d /tmp/other", check=False)
        assert not differs.ok and "COMPARE" in differs.output.upper(), differs.output
    if oncs & 0x80:
        guest.run(f"nvme verify {seen} -s 0 -c {count}")
    assert oncs & 0x81 == 0x81, f"ONCS {oncs:#x}: Compare and Verify are offered"


@pytest.mark.promise("LIN-2")
def test_a_stripe_is_served_like_a_file(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    parts = [disk(tmp_path / name, 4) for name in "ab"]
    served = serve(Subsystem([Namespace(f"stripe:?chunk=64k&m={parts[0]}&m={parts[1]}", writable=True)]))
    host = connected(guest, served)
    seen = host.disk()
    woven = hashlib.sha256()
    whole = [p.read_bytes() for p in parts]
    for at in range(0, 4 * MIB, 65536):
        for one in whole:
            woven.update(one[at : at + 65536])
    assert sha256_there(guest, seen, 8) == woven.hexdigest()
    guest.run(linux.fio(seen, size="2m"), 120)


def test_the_closing_document_counts_what_linux_did(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 4))]))
    host = connected(guest, served)
    sha256_there(guest, host.disk(), 4)
    host.disconnect()
    document = served.stop()
    counts = document["stats"]["subsystems"][0]["namespaces"][0]["counts"]
    assert counts["read_bytes"] >= 4 * MIB, json.dumps(document, indent=1)
    assert counts["errors"] == 0
