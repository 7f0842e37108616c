"""Our host and Linux's target proving themselves to each other: DH-HMAC-CHAP with nvme-cli's keys."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from vm import linux
from vm.guest import Guest
from vm.image import HOST_NQN
from vm.serving import MIB
from vm.test_linux_target import NQN, Forebay, bench, filled, ran, uri

# Debian builds its 6.1 without authentication.
pytestmark = pytest.mark.kernels("backports", "newer")


@dataclass
class Keys:
    host: str
    controller: str


@pytest.fixture
def keys(request: pytest.FixtureRequest, guest: Guest, target: linux.Target) -> Keys:
    """The guest's target lets our host in if it proves itself, and proves itself in turn; the parameter is a group."""
    made = [guest.run(f"nvme gen-dhchap-key -m 1 -n {nqn}").output.strip() for nqn in (HOST_NQN, NQN)]
    target.subsystem(NQN, {1: target.ram(16)}, any_host=False)
    target.allow(NQN, HOST_NQN, made[0], made[1], getattr(request, "param", "ffdhe2048"))
    target.port(1, 4420, NQN)
    return Keys(*made)


def with_secrets(monkeypatch: pytest.MonkeyPatch, host: str | None, controller: str | None = None) -> None:
    for name, value in (("FOREBAY_DHCHAP_SECRET", host), ("FOREBAY_DHCHAP_CTRL_SECRET", controller)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.mark.promise("LIN-19")
@pytest.mark.parametrize(
    "keys, mutual", [("null", False), ("ffdhe3072", True)], ids=["one-way", "both-ways"], indirect=["keys"]
)
def test_linux_lets_us_in_by_our_key(
    guest: Guest, keys: Keys, forebay: Forebay, monkeypatch: pytest.MonkeyPatch, mutual: bool
) -> None:
    with_secrets(monkeypatch, keys.host, keys.controller if mutual else None)
    filled(forebay, uri(guest, "queues=2"), 4)
    done = forebay(*bench(uri(guest, "queues=2"), "read", "--passes", "1", "--file-size", "4m"), timeout=120)
    assert ran(done)["result"]["verified_bytes"] == 4 * MIB
    assert keys.host not in done.stdout + done.stderr and "DHHC-1" not in done.stdout + done.stderr


@pytest.mark.promise("LIN-19")
def test_without_the_right_keys_nobody_is_let_in_or_trusted(
    guest: Guest, keys: Keys, forebay: Forebay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host, controller in ((None, None), (keys.controller, None), (keys.host, keys.host)):
        with_secrets(monkeypatch, host, controller)
        done = forebay("bench", uri(guest), "--passes", "1", "--json", timeout=60)
        assert done.returncode in (2, 3, 4) and "authenticat" in done.stderr.lower(), done.stderr
        assert "DHHC-1" not in done.stdout + done.stderr and "Traceback" not in done.stderr
