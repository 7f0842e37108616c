"""Our /dev/ublkbN under Linux's own block layer: file systems, several queues, daemons that die, sources that go."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vm import linux, ublk
from vm.guest import CommandFailed, Guest, Pending
from vm.ublk import Device, Snap

pytestmark = pytest.mark.kernels("backports", "newer")
NQN = "nqn.2026-01.io.forebay:ublk"
KIB, MIB = 1 << 10, 1 << 20

Make = Callable[..., Device]


@pytest.fixture
def make(guest: Guest) -> Iterator[Make]:
    """`make(source, writable=True, namespace={…}, **options)` → a device that is not started yet."""
    ublk.prepare(guest)

    def device(source: str, writable: bool = True, namespace: dict[str, object] | None = None, **options: object) -> Device:
        return Device(guest, source, writable, namespace or {}, dict(options))

    yield device
    if not guest.gone:
        ublk.clear(guest)


def remote(target: linux.Target, mib: int = 64, **options: object) -> str:
    """A namespace of the guest's own target, as a source."""
    target.subsystem(NQN, {1: target.ram(mib)})
    target.port(1, 4420, NQN)
    given = "&".join(f"{key}={value}" for key, value in {"nsid": 1, **options}.items())
    return f"nvme+tcp://127.0.0.1:4420/{NQN}?{given}"


# There once a load has gone on for long enough.
ENOUGH = "/run/enough"
# An idle machine needs a tenth of these; one that compiles beside gives a guest little.
LOAD_S = 500
patient = pytest.mark.timeout(LOAD_S + 200)


def verify(device: Device, jobs: int = 1, **options: Any) -> str:
    """fio writes blocks with their checksums and reads them back, each job its own 8 MiB."""
    more = ["--end_fsync=1", f"--numjobs={jobs}", f"--offset_increment={8 * MIB}", "--group_reporting=1"]
    return linux.fio(device.path, rw="randwrite", more=more, **options)


def verifying(device: Device) -> Pending:
    """Such fio after fio, until `enough`."""
    return device.guest.start(linux.fio_until(ENOUGH, device.path, block="16k"), LOAD_S)


def enough(load: Pending) -> None:
    """Ends it. Raises CommandFailed with what fio said where a byte was lost, or an I/O failed."""
    load.guest.run(f"touch {ENOUGH}")
    assert int(load.wait().output) >= 1


@pytest.mark.promise("UBL-8")
def test_a_file_system_keeps_its_files(guest: Guest, make: Make) -> None:
    guest.run("truncate -s 96M /tmp/disk")
    device = make("/tmp/disk").start()
    guest.run(
        f"""set -e
        mkfs.ext4 -q {device.path}; mount {device.path} /mnt
        mkdir /mnt/a; for n in 1 2 3 4 5; do head -c 3000000 /dev/urandom >/mnt/a/$n; done
        cp /bin/fio /mnt/fio; (cd /mnt; sha256sum fio a/*) >/tmp/sums
        umount /mnt; mount {device.path} /mnt; cd /mnt; sha256sum -c /tmp/sums""",
        180,
    )
    refused = device.ask("stop")
    assert "mounted at /mnt" in refused["error"]["found"], refused
    stats = device.stats()
    assert stats["state"] == "live" and stats["counts"]["errors"] == 0
    moved = stats["counts"]["read_bytes"] + stats["counts"]["write_bytes"]
    assert stats["copied_bytes"] == moved > 15 * MIB
    assert stats["counts"]["flushes"] > 0 and stats["counts"]["others"] > 0, "mkfs discards or zeroes"
    guest.run(f"cd /; umount /mnt; e2fsck -fn {device.path}")
    assert device.ask("stop") == "stopped"
    assert not guest.run(f"[ -e {device.path} ]", check=False).ok
    # Another daemon, another device, the same bytes.
    again = make("/tmp/disk", writable=False).start()
    guest.run(f"mount -o ro,noload {again.path} /mnt && cd /mnt && sha256sum -c /tmp/sums; s=$?; cd /; umount /mnt; exit $s", 120)
    guest.run("rm /tmp/disk", check=False)


@pytest.mark.promise("UBL-7")
def test_the_block_layer_sees_the_sources_geometry(guest: Guest, make: Make, target: linux.Target) -> None:
    disk = target.ram(64, 4096)
    device = make(disk, depth=32, max_transfer="256k").start()
    assert guest.run(f"blockdev --getsize64 {device.path}").output.strip() == str(64 * MIB)
    assert device.limit("logical_block_size") == "4096"
    assert (device.limit("write_cache"), device.limit("fua")) == ("write back", "1")
    assert device.limit("max_hw_sectors_kb") == "256"
    assert int(device.limit("discard_max_bytes")) > 0 and int(device.limit("write_zeroes_max_bytes")) > 0
    guest.run(f"dd if=/dev/urandom of={device.path} bs=1M count=2 oflag=direct && blkdiscard -z -o 0 -l {MIB} {device.path}")
    zero = f"dd if={device.path} bs=1M count=1 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c"
    assert guest.run(zero).output.strip() == "0"
    guest.run(f"blkdiscard -o {MIB} -l {MIB} {device.path}")
    assert device.stats()["counts"]["others"] >= 2
    device.ask("stop")
    read_only = make(disk, writable=False, namespace={"block_bytes": 4096}).start()
    assert guest.run(f"blockdev --getro {read_only.path}").output.strip() == "1"
    assert not guest.run(f"dd if=/dev/zero of={read_only.path} bs=4k count=1 oflag=direct", check=False).ok


@pytest.mark.promise("UBL-8")
def test_hardware_queues_go_to_fabric_queues_of_their_own(guest: Guest, make: Make, target: linux.Target) -> None:
    device = make(remote(target, queues=2), queues=2).start()
    assert device.queues == 2
    assert len(guest.run(f"ls /sys/block/{device.name}/mq").output.split()) == 2
    guest.run(verify(device, jobs=2, block="16k"), 180)
    for cpu in (0, 1):
        guest.run(f"taskset {cpu + 1} dd if={device.path} of=/dev/null bs=64k count=64 iflag=direct")
    stats = device.stats()
    assert [q["thread"] for q in stats["queues"]] == [0, 1]
    assert all(q["counts"]["reads"] >= 32 for q in stats["queues"]), stats["queues"]
    assert stats["counts"]["errors"] == 0 and stats["staged_bytes"] == 0
    assert device.ask("stop") == "stopped"


def test_one_thread_can_serve_several_hardware_queues(guest: Guest, make: Make, target: linux.Target) -> None:
    device = make(target.ram(), queues=2, threads=1).start()
    guest.run(verify(device, jobs=2), 120)
    stats = device.stats()
    assert [q["thread"] for q in stats["queues"]] == [0, 0] and stats["counts"]["errors"] == 0


@pytest.mark.promise("UBL-8")
@patient
def test_killed_under_load_it_is_taken_over_and_nothing_is_lost(guest: Guest, make: Make, target: linux.Target) -> None:
    device = make(remote(target, replay_writes=1), queues=2).start()
    load = verifying(device)
    for round in range(3):
        time.sleep(2.5)
        assert load.running, load.wait(check=False)
        device.kill()
        if round == 1:
            time.sleep(2)
            assert device.state() == "waiting" and load.running
        assert device.start().recovered
    # What it had when it was killed is written by the last daemon, or the next pass of fio writes.
    guest.until("true", lambda _: device.stats()["counts"]["writes"] > 0, 120)
    enough(load)
    stats = device.stats()
    assert stats["recovered"] and stats["counts"]["errors"] == 0
    assert device.ask("stop") == "stopped"


@patient
def test_a_daemon_that_leaves_is_followed_by_the_next(guest: Guest, make: Make, target: linux.Target) -> None:
    device = make(target.ram(), queues=2).start()
    load = verifying(device)
    time.sleep(2)
    assert load.running, load.wait(check=False)
    assert device.ask("leave") == "left"
    guest.until(f"{ublk.alive(device.pid)} || echo gone", lambda out: out == "gone")
    assert device.start().recovered
    enough(load)


@pytest.mark.promise("UBL-8")
def test_what_was_outstanding_is_carried_out_by_the_next(guest: Guest, make: Make, target: linux.Target) -> None:
    """A write that the killed daemon held, and never began."""
    device = make(target.ram()).start()
    device.ask("suspend")
    guest.run("head -c 65536 /dev/urandom >/run/written")
    write = guest.start(f"dd if=/run/written of={device.path} bs=64k oflag=direct", 120)
    guest.until(f"cat /sys/block/{device.name}/inflight", lambda out: out.split() == ["0", "1"])
    device.kill()
    guest.until("true", lambda _: device.state() == "waiting")
    assert write.running, write.wait(check=False)
    assert device.start().recovered
    write.wait()
    guest.run(f"dd if={device.path} bs=64k count=1 iflag=direct | cmp - /run/written")
    assert device.stats()["counts"]["writes"] == 1


def test_without_reissue_only_what_was_outstanding_fails(guest: Guest, make: Make, target: linux.Target) -> None:
    device = make(target.ram(), on_death="wait_error").start()
    device.ask("suspend")
    outstanding = guest.start(f"dd if={device.path} of=/dev/null bs=4k count=1 iflag=direct", 60)
    time.sleep(1)
    device.kill()
    assert not outstanding.wait(check=False).ok, "it fails with the daemon"
    waits = guest.start(f"dd if={device.path} of=/dev/null bs=4k count=1 iflag=direct", 60)
    time.sleep(1)
    assert waits.running
    assert device.start().recovered
    waits.wait()


def test_it_fails_at_once_where_that_was_asked_for(guest: Guest, make: Make, target: linux.Target) -> None:
    device = make(target.ram(), on_death="fail")
    if guest.kernel.numbers < (6, 13):
        refused = device.refused()
        assert refused.status == 3 and "user_recovery_fail_io" in refused.output
        return
    device.start()
    device.kill()
    began = time.monotonic()
    guest.until("true", lambda _: device.state() == "failing")
    read = f"dd if={device.path} of=/dev/null bs=4k count=1 iflag=direct"
    assert not guest.run(read, 30, check=False).ok and time.monotonic() - began < 20
    assert device.start().recovered
    guest.run(read)


def test_a_device_goes_with_its_daemon_where_that_was_asked_for(guest: Guest, make: Make, target: linux.Target) -> None:
    device = make(target.ram(), on_death="remove").start()
    device.kill()
    guest.until(f"[ -e {device.path} ] || echo gone", lambda out: out == "gone")
    assert not device.start().recovered, "what was left of it is cleared away"


@pytest.mark.promise("UBL-8")
def test_a_source_that_goes_away_is_an_error_until_it_is_back(guest: Guest, make: Make, target: linux.Target) -> None:
    source = remote(target, fast_io_fail_tmo=2, reconnect_delay=1)
    device = make(source).start()
    read = f"dd if={device.path} of=/dev/null bs=4k count=1 iflag=direct"
    guest.run(read)
    target.unexport(1, NQN)
    failed = guest.run(read, 60, check=False)
    assert not failed.ok and failed.status != 124, "within the source's own time"
    target.export(1, NQN)
    deadline = time.monotonic() + 40
    while not guest.run(read, 60, check=False).ok:
        assert time.monotonic() < deadline, device.stats()
    assert device.stats()["counts"]["errors"] >= 1
    assert device.ask("stop") == "stopped"


@pytest.mark.promise("UBL-8")
def test_a_source_that_goes_away_is_waited_for_and_can_be_stopped_meanwhile(
    guest: Guest, make: Make, target: linux.Target
) -> None:
    device = make(remote(target, reconnect_delay=1)).start()
    target.unexport(1, NQN)
    read = guest.start(f"dd if={device.path} of=/dev/null bs=4k count=1 iflag=direct", 120)
    time.sleep(5)
    assert read.running
    target.export(1, NQN)
    read.wait()
    target.unexport(1, NQN)
    read = guest.start(f"dd if={device.path} of=/dev/null bs=4k count=1 skip=9 iflag=direct", 120)
    time.sleep(1)
    assert device.ask("stop force", 90) == "stopped"
    assert not read.wait(check=False).ok


def test_another_source_takes_over_under_load(guest: Guest, make: Make, target: linux.Target) -> None:
    one, two = target.ram(), target.ram()
    guest.run(f"dd if=/dev/urandom of={one} bs=1M count=64 oflag=direct && dd if={one} of={two} bs=1M count=64 oflag=direct", 120)
    device = make(one, writable=False).start()
    load = guest.start(f"for n in 1 2 3 4; do dd if={device.path} bs=256k iflag=direct 2>/dev/null | sha256sum; done", 180)
    answer = device.ask(f'replace {{"source": "{two}"}}')
    assert answer == "replaced", answer
    assert len(set(load.wait().output.splitlines())) == 1
    assert device.stats()["source"] == two
    smaller = target.ram(32)
    assert "bytes" in device.ask(f'replace {{"source": "{smaller}"}}')["error"]["found"]


def test_a_waiting_device_takes_nothing_but_its_own_source(guest: Guest, make: Make, target: linux.Target) -> None:
    disk, other = target.ram(64), target.ram(32)
    device = make(disk).start()
    again = make(disk, writable=False).refused()
    assert again.status == 2 and f"process {device.pid} serves it" in again.output
    device.kill()
    refused = make(other).refused()
    assert refused.status == 2 and "sectors" in refused.output
    assert device.state() == "waiting", "as before"
    assert device.start().recovered


def test_who_may_not_is_told_so(guest: Guest, make: Make, target: linux.Target) -> None:
    device = make("nil:?size=1m")
    as_nobody = f"export LD_LIBRARY_PATH={ublk.THERE}; {ublk.THERE}/setpriv --reuid 65534 --clear-groups "
    reported = guest.run(f"{as_nobody} {linux.words(ublk.THERE + '/ublk_device', *device.arguments)}", check=False)
    assert reported.status == 3 and "root" in reported.output and "sudo" in reported.output, reported
    without = f"export LD_LIBRARY_PATH={ublk.THERE}; {ublk.THERE}/setpriv --bounding-set -sys_admin --inh-caps -sys_admin "
    reported = guest.run(f"{without} {linux.words(ublk.THERE + '/ublk_device', *device.arguments)}", check=False)
    assert reported.status == 3 and "CAP_SYS_ADMIN" in reported.output, reported
    guest.run("rmmod ublk_drv")
    reported = device.refused()
    assert reported.status == 3 and "modprobe ublk_drv" in reported.output, reported
    guest.run("modprobe ublk_drv")


def test_hostile_sizes_do_no_harm(guest: Guest, make: Make) -> None:
    for options in ({"depth": 0}, {"queues": 65535}, {"max_transfer": "64m"}, {"id": 1 << 20}, {"attach": "recover", "id": 77}):
        reported = make("nil:?size=1m", **options).refused()
        assert reported.status == 2, reported
    device = make("nil:?size=1m", id=3, queues=400, depth=256, max_transfer="4k").start()
    assert device.queues == 2, "no more than processors"
    with pytest.raises(CommandFailed):
        guest.run(f"{ublk.command('delete', 3)}")
    assert device.ask("stop") == "stopped"


# A gateway's ----------------------------------------------------------------------------------------


@pytest.mark.promise("SNP-12", "GWY-7")
def test_a_gateways_namespace_is_a_block_device(guest: Guest, make: Make, target: linux.Target) -> None:
    """Queues, statistics, suspension, limits, and the verbs that make and delete it."""
    gateway = Snap(guest, remote(target, queues=2), {"device": 4, "queues": 2}, metrics_port=9421).start()
    path = "/dev/ublkb4"
    assert len(guest.run("ls /sys/block/ublkb4/mq").output.split()) == 2
    guest.run(linux.fio(path, rw="randwrite", block="16k", more=["--numjobs=2", f"--offset_increment={8 * MIB}"]), 180)
    stats = gateway.stats()
    assert (stats["state"], stats["place"], stats["recovered"]) == ("enabled", path, False)
    assert [queue["qid"] for queue in stats["queues"]] == [1, 2]
    moved = sum(q["counts"]["read_bytes"] + q["counts"]["write_bytes"] for q in stats["queues"])
    assert stats["copied_bytes"] == moved >= 32 * MIB and stats["staged_bytes"] == 0
    writes = sum(q["counts"]["writes"] for q in stats["queues"])
    assert gateway.namespace()["counts"]["writes"] == writes == sum(q["write_latency"]["count"] for q in stats["queues"])
    # The device has connections of its own, beside those of the gateway.
    ours: dict[str, list[float]] = {}
    for name, value in re.findall(r'^(\w+)\{.*controller="disk".*\} (\S+)$', gateway.metrics(), re.M):
        ours.setdefault(name, []).append(float(value))
    assert ours["forebay_source_path_queues"] == [2] and ours["forebay_source_path_reconnects_total"] == [0]
    assert sorted(ours["forebay_source_path_state"]) == [0, 0, 1], "one of three states"
    assert len(ours["forebay_source_queue_commands_total"]) == 2
    assert sum(ours["forebay_source_queue_commands_total"]) >= writes
    assert sum(ours["forebay_source_queue_latency_seconds_count"]) >= writes

    gateway.rpc("nvme_controller_suspend", "--ctrl", "disk")
    read = f"dd if={path} of=/dev/null bs=4k count=1 iflag=direct"
    waits = guest.start(read, 60)
    time.sleep(1)
    assert waits.running and gateway.stats()["state"] == "suspended"
    gateway.rpc("nvme_controller_resume", "--ctrl", "disk")
    waits.wait()

    limits = ("nvme_namespace_set_qos", "--nqn", ublk.SNAP_NQN, "--nsid", 1)
    gateway.rpc(*limits, "--iops", 5)
    began = time.monotonic()
    guest.run(f"dd if={path} of=/dev/null bs=4k count=12 iflag=direct", 60)
    # 12 at 5 a second, but for the first, a burst of 50 ms, and what a busy machine is late for.
    assert time.monotonic() - began >= 1.8 and gateway.namespace()["held_back"] >= 8
    gateway.rpc(*limits)

    attached = ("--ctrl", "disk", "--nsid", 1)
    guest.run(f"mkfs.ext4 -q {path} && mount {path} /mnt", 60)
    refused = gateway.rpc("nvme_controller_detach_ns", *attached, check=False)
    assert refused.status == 2 and "mounted at /mnt" in refused.output
    guest.run("umount /mnt")
    before = gateway.namespace()["counts"]["writes"]
    gateway.rpc("nvme_controller_detach_ns", *attached)
    assert not guest.run(f"[ -e {path} ]", check=False).ok
    assert gateway.stats()["state"] == "waiting" and gateway.namespace()["counts"]["writes"] >= before
    gateway.rpc("nvme_controller_attach_ns", *attached)
    guest.run(f"e2fsck -fn {path}")
    gateway.rpc("nvme_controller_destroy", "--ctrl", "disk")
    assert not guest.run(f"[ -e {path} ]", check=False).ok
    gateway.rpc("nvme_controller_create", "--nqn", ublk.SNAP_NQN, "--ctrl", "disk", "--front", "ublk", "--device", 5)
    assert gateway.stats()["state"] == "waiting" and not guest.run("[ -e /dev/ublkb5 ]", check=False).ok
    gateway.rpc("nvme_controller_attach_ns", *attached)
    guest.run("e2fsck -fn /dev/ublkb5")


@pytest.mark.promise("GWY-7")
@patient
@pytest.mark.parametrize("sign", ["KILL", "TERM"])
def test_a_gateway_that_ends_under_load_is_followed_by_the_next(
    guest: Guest, make: Make, target: linux.Target, sign: str
) -> None:
    """Its device has no number in the configuration: it is known by what it stands on."""
    gateway = Snap(guest, remote(target, replay_writes=1), {"queues": 2}).start()
    device = gateway.stats()["place"]
    load = guest.start(linux.fio_until(ENOUGH, device, block="16k"), LOAD_S)
    for _ in range(2):
        time.sleep(2.5)
        assert load.running, load.wait(check=False)
        gateway.end(sign)
        states = [d["state"] for d in ublk.devices(guest)]
        assert states == ["waiting"] and load.running
        stats = gateway.start().stats()
        assert stats["recovered"] and stats["place"] == device
    guest.until("true", lambda _: any(q["counts"]["writes"] for q in gateway.stats()["queues"]), 120)
    enough(load)
    stats = gateway.stats()
    assert not any(q["counts"]["errors"] for q in stats["queues"])
    gateway.rpc("nvme_controller_destroy", "--ctrl", "disk")
    assert ublk.devices(guest) == []


@pytest.mark.promise("GWY-7")
@patient
@pytest.mark.kernels("backports")
def test_a_kept_gateway_that_is_killed_under_load_has_its_device_again(
    guest: Guest, make: Make, target: linux.Target
) -> None:
    """Its supervisor starts the next one, which takes the device over; while its target is away, too."""
    gateway = Snap(guest, remote(target, replay_writes=1), {"queues": 2}, keep=True).start()
    device = gateway.stats()["place"]
    load = guest.start(linux.fio_until(ENOUGH, device, block="16k"), LOAD_S)
    for number, away in enumerate((False, False, True), 2):
        time.sleep(2.5)
        assert load.running, load.wait(check=False)
        if away:
            target.unexport(1, NQN)
        gateway.kill_kept()
        if away:
            guest.until("true", lambda _: "it ended with exit code" in gateway.said(), 60)
            assert [d["state"] for d in ublk.devices(guest)] == ["waiting"] and load.running
            target.export(1, NQN)
        gateway.has_started(number)
        stats = gateway.stats()
        assert stats["recovered"] and stats["place"] == device, gateway.said()
    guest.until("true", lambda _: any(q["counts"]["writes"] for q in gateway.stats()["queues"]), 120)
    enough(load)
    assert not any(q["counts"]["errors"] for q in gateway.stats()["queues"])
    gateway.rpc("nvme_controller_destroy", "--ctrl", "disk")
    assert ublk.devices(guest) == []
    gateway.end("TERM")
    assert "block device not taken over" not in gateway.said()
