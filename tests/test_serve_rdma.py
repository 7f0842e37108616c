"""`forebay serve --listen-rdma` without a card: what is refused, and what to type. On soft RoCE: tests/vm/test_rdma_target.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

NQN = "nqn.2026-01.io.example:near"
SERVE = ("serve", "nil:?size=1m", "--nqn", NQN)
# What the stand-in counts, all given back at the end.
BOOKS = ("channels", "ids", "pairs", "queues", "domains", "regions", "bytes")


def standing_in(rdma_stub: Path, settings: str, ledger: Path) -> dict[str, str]:
    names = {name: str(rdma_stub) for name in ("FOREBAY_LIBIBVERBS", "FOREBAY_LIBRDMACM")}
    return os.environ | names | {"FOREBAY_STUB_RDMA": settings, "FOREBAY_STUB_LEDGER": str(ledger)}


@pytest.mark.promise("RHO-15")
@pytest.mark.parametrize("variable", ["FOREBAY_LIBIBVERBS", "FOREBAY_LIBRDMACM"])
def test_a_library_that_is_missing_is_named_with_its_package(forebay, variable):
    done = forebay(*SERVE, "--listen-rdma", "10.0.0.1", env=os.environ | {variable: "/no/such/library.so"})
    assert done.returncode == 3 and 'listen_rdma = "10.0.0.1:4420"' in done.stderr, (done.returncode, done.stderr)
    assert "apt install libibverbs1 librdmacm1" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("RHO-15")
@pytest.mark.parametrize(
    ("errno", "said", "status"),
    [
        (19, "no RDMA device has that address\n  try: rdma link show", 2),
        (98, "the address is already in use", 2),
        (99, "this machine has no such address", 2),
        (13, "a port above 1023", 2),
        (5, "Input/output error", 3),
    ],
)
def test_an_address_that_cannot_be_listened_at_says_why(forebay, rdma_stub, tmp_path, errno, said, status):
    ledger = tmp_path / "ledger"
    env = standing_in(rdma_stub, f"bind={errno}", ledger)
    done = forebay(*SERVE, "--listen-rdma", "127.0.0.1:4420", env=env)
    assert done.returncode == status and said in done.stderr, (done.returncode, done.stderr)
    assert ledger.read_text().split() == [f"{what}=0" for what in BOOKS], ledger.read_text()


@pytest.mark.promise("RHO-15")
def test_it_says_where_it_listens_and_gives_all_back(rdma_stub, tmp_path):
    ledger = tmp_path / "ledger"
    command = [sys.executable, "-m", "forebay.cli", *SERVE, "--listen-rdma", "127.0.0.1:4433", "--json", "-q"]
    serving = subprocess.Popen(
        command, env=standing_in(rdma_stub, "", ledger), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = next(line for line in serving.stderr if "listening on" in line)
        assert line.strip() == "listening on rdma 127.0.0.1:4433", "and not over TCP, which nobody asked for"
        serving.send_signal(signal.SIGTERM)
        out, said = serving.communicate(timeout=60)
    finally:
        serving.kill()
    assert serving.returncode == 0, said
    assert json.loads(out)["listen"] == [] and json.loads(out)["listen_rdma"] == ["127.0.0.1:4433"]
    assert ledger.read_text().split() == [f"{what}=0" for what in BOOKS], ledger.read_text()


@pytest.mark.promise("RHO-15")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--listen-rdma", "10.0.0.1"), "listen    rdma 10.0.0.1"),
        (("--listen-rdma", "10.0.0.1:1", "--listen", "10.0.0.2"), "listen    10.0.0.2, rdma 10.0.0.1:1"),
        ((), "listen    127.0.0.1:4420"),
    ],
)
def test_what_is_asked_for_is_shown(forebay, flags, said):
    done = forebay(*SERVE, "--check", *flags)
    assert done.returncode == 0 and said in done.stdout.splitlines()[0], (done.stdout, done.stderr)


@pytest.mark.promise("RHO-15")
def test_who_may_come_is_warned_of_over_rdma_too(forebay, rdma_stub, tmp_path):
    env = standing_in(rdma_stub, "bind=19", tmp_path / "ledger")
    done = forebay(*SERVE, "--listen-rdma", "10.0.0.1:4420", env=env)
    assert f"any host that reaches 10.0.0.1:4420 may read {NQN}" in done.stderr, done.stderr


def test_an_address_that_is_none_is_refused(forebay):
    done = forebay(*SERVE, "--listen-rdma", "here")
    assert done.returncode == 2 and "listen_rdma" in done.stderr and "Traceback" not in done.stderr, done.stderr
