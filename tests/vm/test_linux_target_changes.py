"""Linux's target (nvmet) while what it offers changes, and who may have it: our host and what is built on it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request

import pytest

from vm import linux
from vm.guest import Guest
from vm.image import HOST_NQN
from vm.serving import MIB, Namespace, Serve, Subsystem, connected
from vm.test_linux_target import NQN, Forebay, bench, filled, ran, uri

pytestmark = pytest.mark.kernels("backports", "newer")

STRESS_ROUNDS = 100
QUEUES = 4
# What either side may hold more at the end than after its first rounds: caches grow, too.
GROWN_KIB = 16 << 10
# Of the guest: connections to its target, and memory that nobody has.
SOCKETS = "grep -c ':1144 .* 01 ' /proc/net/tcp; true"
FREE = "grep -E '^(MemFree|Buffers|Cached|SReclaimable):' /proc/meminfo | awk '{s += $2} END {print s}'"
# Our host, many times in one process, which tells of its descriptors and its memory after each.
STRESS = """
import json, os, re, sys
from forebay import run
uri, rounds, queues = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for n in range(rounds):
    source = f"{uri}&hdgst={n & 1}&ddgst={n >> 1 & 1}"
    job = {"sources": [source], "op": "randread", "path": "host", "io_bytes": 4096 << n % 6, "workers": queues, "depth": 2}
    record = run.run({**job, "duration_s": 0.1, "warmup_s": 0})
    fabric = record["path"]["fabric"][0]
    assert record["result"]["errors"]["failed"] == 0 and fabric["paths"][0]["reconnects"] == 0, record["result"]
    resident = re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]
    print(json.dumps([len(os.listdir("/proc/self/fd")), int(resident)]), flush=True)
"""
FILES = "/bin/busybox /bin/fio /bin/nvme"


@pytest.mark.promise("LIN-21")
def test_a_host_that_is_not_allowed_is_told_its_name_and_what_to_type(
    guest: Guest, target: linux.Target, forebay: Forebay
) -> None:
    target.subsystem(NQN, {1: target.ram(8)}, any_host=False)
    target.port(1, 4420, NQN)
    for words in (["bench", uri(guest), "--passes", "1", "--json"], ["identify", uri(guest), "--json"]):
        refused = forebay(*words)
        assert refused.returncode == 2, refused
        assert f"does not let the host {HOST_NQN} in" in refused.stderr and "try: " in refused.stderr, refused.stderr
    target.allow(NQN, HOST_NQN)
    assert ran(forebay(*bench(uri(guest), "write", "--passes", "1", "--file-size", "1m")))["result"]["bytes"] == MIB
    other = forebay("bench", uri(guest).replace(HOST_NQN, "nqn.2026-01.io.forebay:other"), "--passes", "1")
    assert other.returncode == 2 and "nqn.2026-01.io.forebay:other" in other.stderr, other.stderr


@pytest.mark.promise("LIN-21")
def test_a_namespace_that_is_added_is_there_and_disturbs_nobody(
    guest: Guest, target: linux.Target, forebay: Forebay, serve: Serve
) -> None:
    """One that is added to a subsystem in use, and one that is taken away and comes back under a source that stands on it:
    the asynchronous event brings it back without a new connection."""
    disks = [target.ram(8), target.ram(8)]
    target.subsystem(NQN, {1: disks[0]})
    target.port(1, 4420, NQN)
    filled(forebay, uri(guest), 4)
    served = serve(Subsystem([Namespace(uri(guest, "queues=2", "fast_io_fail_tmo=60"))]), metrics="0")
    address = served.heard(r"metrics on (http://\S+)")[1]
    host = connected(guest, served)
    seen = host.disk()
    before = guest.run(f"sha256sum {seen}", 120).output.split()[0]
    assert int(guest.run(SOCKETS).output) >= 2, "the admin queue, and at least one of the I/O queues"
    missing = forebay("bench", uri(guest, "nsid=2"), "--passes", "1", "--json")
    assert missing.returncode == 2 and "namespace 2" in missing.stderr, missing.stderr
    target.add_namespace(NQN, 2, disks[1])
    filled(forebay, uri(guest, "nsid=2"), 4)
    ran(forebay(*bench(uri(guest, "nsid=2"), "read", "--passes", "1", "--file-size", "4m")))
    target.remove_namespace(NQN, 1)
    guest.until("true", lambda _: metric(address, "queues").endswith(" 0"))
    target.add_namespace(NQN, 1, disks[0])
    assert guest.run(f"echo 3 >/proc/sys/vm/drop_caches; sha256sum {seen}", 120).output.split()[0] == before
    assert metric(address, "reconnects_total").endswith(" 0"), "the controller stayed"


def metric(address: str, name: str) -> str:
    """The sample of a target's only path below it."""
    with urllib.request.urlopen(address, timeout=20) as answer:
        (line,) = re.findall(rf"^forebay_source_path_{name}{{.*$", answer.read().decode(), re.M)
    return str(line)


@pytest.mark.promise("LIN-22")
def test_connections_come_and_go_and_nothing_piles_up(guest: Guest, target: linux.Target, forebay: Forebay) -> None:
    """blktests' kind of stress: a hundred associations of one process, each with several queues that are read through,
    with other digests each time; both sides hold afterwards what they held before."""
    target.subsystem(NQN, {1: target.ram(8)})
    target.port(1, 4420, NQN)
    sockets = int(guest.run(SOCKETS).output)
    here, there = [], []
    for rounds in (STRESS_ROUNDS // 5, STRESS_ROUNDS):
        words = [sys.executable, "-c", STRESS, uri(guest, f"queues={QUEUES}"), str(rounds), str(QUEUES)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr[-3000:]
        here.append([json.loads(line) for line in done.stdout.splitlines()])
        guest.until(SOCKETS, lambda out: int(out) == sockets, 30)
        there.append(int(guest.run(FREE).output))
    descriptors, resident_kib = zip(*here[1], strict=True)
    assert len(descriptors) == STRESS_ROUNDS and set(descriptors) == {descriptors[0]}
    assert resident_kib[-1] < resident_kib[STRESS_ROUNDS // 5] + GROWN_KIB, resident_kib
    assert there[1] > there[0] - GROWN_KIB, there
    assert [n["nsid"] for n in ran(forebay("identify", uri(guest), "--json"))["namespaces"]] == [1]


@pytest.mark.promise("LIN-23")
@pytest.mark.parametrize("writer", ["linux", "forebay"])
def test_a_file_system_of_linux_is_read_over_our_host(
    guest: Guest, target: linux.Target, forebay: Forebay, serve: Serve, writer: str
) -> None:
    """ext4 on a disk of the target: made and filled there, or over our host (served again, mounted by the guest); the other
    way reads the same files, and fsck finds nothing."""
    backing = target.ram(64)
    target.subsystem(NQN, {1: backing})
    target.port(1, 4420, NQN)
    fill = f"""mount -t ext4 $disk /mnt && cp -r {FILES} /lib/modules /mnt/ &&
        (cd /mnt && find . -type f | sort | xargs sha256sum) >/tmp/sums && umount /mnt"""
    check = "mount -t ext4 -o ro $disk /mnt && (cd /mnt && sha256sum -c -s /tmp/sums) && umount /mnt"
    served = serve(Subsystem([Namespace(uri(guest, "queues=2"), writable=True)]))
    host = connected(guest, served)
    seen = host.disk()
    first, second = (backing, seen) if writer == "linux" else (seen, backing)
    guest.run(f"disk={first}; mkfs.ext4 -q -F $disk && {fill}", 240)
    guest.run("sync; echo 3 >/proc/sys/vm/drop_caches")
    guest.run(f"disk={second}; {check}", 240)
    host.disconnect()
    ended = served.stop()
    assert ended["drained"] is True and len(ended["stats"]["subsystems"][0]["namespaces"][0]["fabric"]) == 1
    guest.run(f"e2fsck -fn {backing}", 120)
