"""Linux's NVMe/TCP host proving who it is to our target, and asking for proof: DH-HMAC-CHAP with nvme-cli's keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from vm import linux
from vm.guest import Guest
from vm.image import HOST_NQN
from vm.serving import NQN, Namespace, Serve, Subsystem, connected, disk

# Debian builds its 6.1 without authentication.
pytestmark = pytest.mark.kernels("backports", "newer")


def key(guest: Guest, nqn: str, digest: int) -> str:
    """A secret as nvme-cli makes one: transformed with SHA-256, -384 or -512 (1, 2, 3), or as it is (0)."""
    length = {0: 32, 1: 32, 2: 48, 3: 64}[digest]
    made = guest.run(linux.words("nvme", "gen-dhchap-key", "-m", digest, "-n", nqn, "-l", length)).output.strip()
    assert made.startswith(f"DHHC-1:0{digest}:"), made
    return made


@pytest.mark.promise("LIN-12")
@pytest.mark.parametrize("digest", [0, 1, 2, 3])
def test_a_host_with_its_key_is_let_in(guest: Guest, serve: Serve, tmp_path: Path, digest: int) -> None:
    secret = key(guest, HOST_NQN, digest)
    served = serve(
        Subsystem([Namespace(disk(tmp_path / "a", 2), writable=True)], hosts={HOST_NQN: {"dhchap_key": secret}})
    )
    since = len(guest.log())
    host = connected(guest, served, more=[f"--dhchap-secret={secret}"])
    guest.heard("qid 0: authenticated with hash hmac", since)
    guest.run(linux.fio(host.disk(), size="1m"))
    assert "DHHC-1" not in served.log()


@pytest.mark.promise("LIN-12")
@pytest.mark.parametrize("hash_name", ["sha256", "sha384", "sha512"])
@pytest.mark.parametrize("group", ["null", "ffdhe2048", "ffdhe3072"])
def test_both_agree_on_each_hash_and_group(
    guest: Guest, serve: Serve, tmp_path: Path, hash_name: str, group: str
) -> None:
    secret, controller = key(guest, HOST_NQN, 1), key(guest, NQN, 1)
    fields = {"dhchap_key": secret, "dhchap_ctrl_key": controller}
    lists = {"dhchap_hashes": [hash_name], "dhchap_groups": [group]}
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))], hosts={HOST_NQN: {**fields, **lists}}))
    since = len(guest.log())
    connected(guest, served, more=[f"--dhchap-secret={secret}", f"--dhchap-ctrl-secret={controller}"]).disk()
    reported = guest.heard("qid 0: authenticated with hash", since)
    assert f"hmac({hash_name})" in reported and f"dhgroup {group}" in reported, reported
    guest.heard("controller authenticated", since)


@pytest.mark.promise("LIN-12")
@pytest.mark.parametrize("group", ["ffdhe4096", "ffdhe6144", "ffdhe8192"])
def test_both_agree_on_the_large_groups(guest: Guest, serve: Serve, tmp_path: Path, group: str) -> None:
    """Slow where a processor is emulated: seconds for each queue."""
    secret = key(guest, HOST_NQN, 3)
    fields = {"dhchap_key": secret, "dhchap_hashes": ["sha512"], "dhchap_groups": [group]}
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))], hosts={HOST_NQN: fields}), handshake_s=60.0)
    since = len(guest.log())
    connected(guest, served, queues=1, timeout=180, keep_alive_s=30, more=[f"--dhchap-secret={secret}"]).disk()
    assert group in guest.heard("qid 0: authenticated with hash", since)


@pytest.mark.promise("LIN-12")
def test_a_host_without_its_key_or_with_another_is_refused(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    secret, other = key(guest, HOST_NQN, 1), key(guest, HOST_NQN, 1)
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))], hosts={HOST_NQN: {"dhchap_key": secret}}))
    before = served.descriptors()
    linux.refused(guest, NQN, served.port)
    linux.refused(guest, NQN, served.port, more=[f"--dhchap-secret={other}"])
    served.heard("(?i)authenticat", 10)
    assert secret not in served.log() and other not in served.log()
    connected(guest, served, more=[f"--dhchap-secret={secret}"]).disconnect()
    guest.until("sleep 0.2", lambda _: served.descriptors() == before, 20)


@pytest.mark.promise("LIN-12")
def test_a_controller_with_another_key_is_left(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    """Both ways: the host asks for proof, and ours is that of another key."""
    secret, ours, expected = key(guest, HOST_NQN, 1), key(guest, NQN, 1), key(guest, NQN, 1)
    fields = {"dhchap_key": secret, "dhchap_ctrl_key": ours}
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))], hosts={HOST_NQN: fields}))
    more = [f"--dhchap-secret={secret}", f"--dhchap-ctrl-secret={expected}"]
    linux.refused(guest, NQN, served.port, more=more)
    connected(guest, served, more=[f"--dhchap-secret={secret}", f"--dhchap-ctrl-secret={ours}"]).disk()


def test_a_target_without_the_key_that_a_host_asks_for_is_left(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    secret, expected = key(guest, HOST_NQN, 1), key(guest, NQN, 1)
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 1))], hosts={HOST_NQN: {"dhchap_key": secret}}))
    more = [f"--dhchap-secret={secret}", f"--dhchap-ctrl-secret={expected}"]
    linux.refused(guest, NQN, served.port, more=more)


@pytest.mark.promise("LIN-12")
def test_authentication_holds_over_a_reconnect(guest: Guest, serve: Serve, tmp_path: Path) -> None:
    secret = key(guest, HOST_NQN, 1)
    served = serve(Subsystem([Namespace(disk(tmp_path / "a", 2))], hosts={HOST_NQN: {"dhchap_key": secret}}))
    host = connected(guest, served, more=[f"--dhchap-secret={secret}"])
    host.disk()
    served.kill()
    host.until_state("connecting")
    since = len(guest.log())
    served.start()
    host.until_state("live")
    guest.heard("qid 0: authenticated with hash", since)
