"""Linux's NVMe/TCP host while things go wrong: our target killed, frozen peers, pulled cables, namespaces that come
and go, connections that come and go by the dozen. fio's checksums say whether a byte was lost."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from vm import linux
from vm.guest import Guest, Pending
from vm.serving import MIB, NQN, Namespace, Serve, Serving, Subsystem, connected, disk

STRESS_ROUNDS = 25
# There once a load has gone on for long enough.
ENOUGH = "/run/enough"
# An idle machine needs a tenth of these; one that compiles beside gives a guest little.
LOAD_S = 500


def verified_load(guest: Guest, seen: str, seconds: int) -> Pending:
    """fio for that long: blocks are written, then read back by their checksums, again and again."""
    return guest.start(linux.fio_passes(seen, seconds, block="16k"), seconds + 150)


@pytest.mark.promise("LIN-8")
def test_a_killed_target_comes_back_and_nothing_is_lost(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 16), writable=True)]))
    host = connected(guest, served)
    load = verified_load(guest, host.disk(), 24)
    for _ in range(2):
        time.sleep(2)
        served.kill()
        host.until_state("connecting")
        time.sleep(1)
        served.start()
        host.until_state("live")
        assert load.running, load.wait(check=False)
    load.wait()


@pytest.mark.promise("LIN-8")
def test_a_target_that_stops_in_good_order_comes_back(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 16), writable=True)]))
    host = connected(guest, served)
    load = verified_load(guest, host.disk(), 6)
    time.sleep(2)
    served.stop()
    time.sleep(1)
    served.start()
    host.until_state("live")
    load.wait()


@pytest.mark.promise("LIN-8")
def test_a_controller_that_is_reset_under_load_loses_nothing(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 16), writable=True)]))
    host = connected(guest, served, header_digest=True, data_digest=True)
    load = verified_load(guest, host.disk(), 6)
    for _ in range(3):
        time.sleep(1)
        guest.run(f"nvme reset {host.device}")
        host.until_state("live")
    load.wait()


@pytest.mark.promise("LIN-8")
def test_a_pulled_cable_is_noticed_and_survived(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 16), writable=True)]))
    host = connected(guest, served, keep_alive_s=2)
    load = verified_load(guest, host.disk(), 10)
    time.sleep(1)
    guest.cable(False)
    try:
        # Its keep-alive is unanswered, so the kernel gives the connections up.
        host.until_state("connecting", 60)
    finally:
        guest.cable(True)
    host.until_state("live", 60)
    load.wait()


@pytest.mark.promise("LIN-9")
def test_a_host_that_falls_silent_is_given_up(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    """Keep-alive expiry (base, section 3.9): its connections end, what they held is given back, and it may return."""
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))]))
    before = served.descriptors()
    host = connected(guest, served, keep_alive_s=2)
    host.disk()
    heard = len(served.said)
    guest.freeze()
    try:
        served.heard("(?i)keep.?alive", 30, heard)
        deadline = time.monotonic() + 20
        while served.descriptors() > before and time.monotonic() < deadline:
            time.sleep(0.2)
        assert served.descriptors() == before, served.log()
    finally:
        guest.thaw()
    host.until_state("live", 60)
    guest.run(f"dd if={host.disk()} of=/dev/null bs=64k count=4 iflag=direct")


@pytest.mark.promise("LIN-10")
def test_namespaces_come_and_go_without_a_rescan(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    """Asynchronous event, namespace attribute changed (base, figure 147): the kernel looks again by itself."""
    first = Namespace(disk(tmp_path / "a", 2))
    added = Namespace(disk(tmp_path / "b", 3), nsid=5, writable=True)
    served = serve(Subsystem([first]))
    host = connected(guest, served)
    host.disk(1)
    assert set(host.disks()) == {1}
    served.subsystems[0].namespaces.append(added)
    served.reload()
    seen = host.disk(5)
    assert guest.run(f"blockdev --getsize64 {seen}").output.strip() == str(3 * MIB)
    guest.run(linux.fio(seen, size="1m"))
    served.subsystems[0].namespaces.remove(added)
    served.reload()
    guest.until(linux.DISKS, lambda out: f"{NQN} 5" not in out)
    assert set(host.disks()) == {1} and host.state() == "live"


@pytest.mark.promise("LIN-10")
def test_a_namespace_removed_under_load_ends_only_what_used_it(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    kept = Namespace(disk(tmp_path / "a", 16), writable=True)
    removed = Namespace(disk(tmp_path / "b", 16), nsid=2, writable=True)
    served = serve(Subsystem([kept, removed]))
    host = connected(guest, served)
    load, doomed = verified_load(guest, host.disk(1), 6), verified_load(guest, host.disk(2), 60)
    time.sleep(2)
    served.subsystems[0].namespaces.remove(removed)
    served.reload()
    assert not doomed.wait(check=False).ok
    load.wait()
    assert host.state() == "live"


@pytest.mark.promise("LIN-11")
def test_connections_come_and_go_and_nothing_piles_up(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    """blktests' kind of stress: other queues and digests each time, I/O in flight when some of them end."""
    rng = random.Random(7)
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 8), writable=True)]))
    before = served.descriptors()
    held = 0
    for number in range(STRESS_ROUNDS):
        host = connected(
            guest,
            served,
            queues=rng.choice([1, 2]),
            header_digest=rng.random() < 0.5,
            data_digest=rng.random() < 0.5,
            more=rng.choice([[], ["--nr-write-queues=2"], ["--nr-poll-queues=1"], ["--queue-size=16"]]),
        )
        reading = None
        if number % 3 == 0:
            reading = guest.start(f"dd if={host.disk()} of=/dev/null bs=64k iflag=direct", 60)
        host.disconnect()
        if reading:
            reading.wait(check=False)
        if number == 4:
            held = served.resident_kib()
    guest.until(f"sleep 0.2; echo {before}", lambda _: served.descriptors() == before, 20)
    assert served.resident_kib() < held + 8192, "KiB, against what it held after five rounds"
    assert served.process.poll() is None


@pytest.mark.promise("LIN-8")
@pytest.mark.timeout(LOAD_S + 200)
def test_a_target_killed_again_and_again_under_many_jobs(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    rng = random.Random(11)
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 32), writable=True)]))
    host = connected(guest, served, header_digest=True, data_digest=True, loss_s=120)
    seen = host.disk()
    jobs = [
        guest.start(linux.fio_until(ENOUGH, seen, mib=4, block=block, depth=4, offset_mib=at * 8), LOAD_S)
        for at, block in enumerate(("4k", "16k", "64k", "128k"))
    ]
    for _ in range(6):
        time.sleep(rng.uniform(0.5, 4))
        assert all(job.running for job in jobs), [job.wait(check=False) for job in jobs if not job.running]
        served.kill()
        time.sleep(rng.uniform(0, 2))
        served.start()
        host.until_state("live", 120)
    guest.run(f"touch {ENOUGH}")
    # Each pass is a proof by itself, and the last one of each began before the target was killed for the last time.
    assert all(int(job.wait().output) >= 1 for job in jobs)


def test_a_target_that_stays_away_fails_the_io_and_the_controller_goes(
    guest: Guest, serve: Serve, tmp_path: Path
) -> None:
    served: Serving = serve(Subsystem([Namespace(disk(tmp_path / "a", 4))]))
    host = connected(guest, served, loss_s=5)
    seen = host.disk()
    served.kill()
    reading = guest.start(f"dd if={seen} of=/dev/null bs=64k iflag=direct", 90)
    assert not reading.wait(check=False).ok
    guest.until(f"ls {host.device} 2>&1", lambda out: "No such" in out, 60)
