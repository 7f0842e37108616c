"""`nvme+rdma:` without a card: what is refused, and what to type. On soft RoCE: tests/vm/test_linux_rdma.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from properties import parametrized

NQN = "nqn.2026-01.io.example:far"
URI = f"nvme+rdma://127.0.0.1:4420/{NQN}"
CARDS = Path("/sys/class/infiniband")
# What the stand-in counts, all given back at the end.
BOOKS = ("channels", "ids", "pairs", "queues", "domains", "regions", "bytes")


VERBS = [("bench", URI, "--passes", "1"), ("identify", URI), ("discover", "nvme+rdma://127.0.0.1:4420")]


@pytest.mark.promise("RHO-11", "RHO-20")
@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
@pytest.mark.parametrize("variable", ["FOREBAY_LIBIBVERBS", "FOREBAY_LIBRDMACM"])
def test_a_library_that_is_missing_is_named_with_its_package(forebay, variable, words):
    done = forebay(*words, env=os.environ | {variable: "/no/such/library.so"})
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert "apt install libibverbs1 librdmacm1" in done.stderr and "Traceback" not in done.stderr
    assert "/no/such/library.so" in done.stderr or "libibverbs" in done.stderr


@pytest.mark.promise("RHO-11")
@pytest.mark.skipif(CARDS.is_dir() and any(CARDS.iterdir()), reason="there is an RDMA device here")
def test_a_machine_without_a_card_says_how_to_come_by_one(forebay):
    for words in VERBS:
        done = forebay(*words)
        assert done.returncode == 3, (done.returncode, done.stderr)
        # Whichever comes first: libraries, then a device.
        assert "apt install" in done.stderr or "rdma link add rxe0" in done.stderr
    [check] = [c for c in json.loads(forebay("doctor", "--json").stdout)["checks"] if c["id"] == "nvme_rdma"]
    assert check["state"] == "not_applicable" and "rdma link add rxe0" in check["found"]


@pytest.mark.promise("RHO-11")
@pytest.mark.parametrize(
    ("uri", "said"),
    [
        (URI + "?hdgst=1", "hdgst is for nvme+tcp: alone"),
        (URI + "?tls=1", "tls is for nvme+tcp: alone"),
        (URI + "?nr=1", "'nr' is not a key of nvme+rdma:"),
        ("nvme+rdma:h", "nvme+rdma://HOST:4420/NQN"),
    ],
)
def test_what_a_uri_may_not_say_is_named(forebay, uri, said):
    done = forebay("bench", uri, "--passes", "1")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("flag", [["--cufile", "batch"], ["--cufile-unregistered"]])
def test_what_is_of_cufile_alone_is_refused(forebay, flag):
    done = forebay("bench", URI, "--passes", "1", "--path", "gds", *flag)
    assert done.returncode == 2 and "nothing goes through cuFile" in done.stderr, done.stderr


@pytest.mark.promise("RHO-16")
@parametrized(
    ("settings", "flags", "refusal"),
    [
        ("", [], None),
        ("dmabuf=95", [], "Operation not supported (os error 95)"),
        ("", ["-DBEFORE_34"], "libibverbs has no ibv_reg_dmabuf_mr: rdma-core 34 or newer has"),
    ],
    kept=(0, 2),
)
def test_doctor_tells_which_devices_take_gpu_memory(forebay, rdma_stub, tmp_path, settings, flags, refusal):
    library, ledger = tmp_path / "libstub.so", tmp_path / "ledger"
    source = Path(__file__).parent / "rdma_stubs" / "rdma.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", *flags, "-o", library, source], check=True)
    names = {name: str(library) for name in ("FOREBAY_LIBIBVERBS", "FOREBAY_LIBRDMACM")}
    env = os.environ | names | {"FOREBAY_STUB_RDMA": settings, "FOREBAY_STUB_LEDGER": str(ledger)}
    report = json.loads(forebay("doctor", "--json", env=env).stdout)
    assert report["nvme_rdma"]["dma_buf"] == [{"device": "stub0", "refusal": refusal}]
    assert ledger.read_text().split() == [f"{what}=0" for what in BOOKS], ledger.read_text()


@pytest.mark.promise("RHO-20")
@parametrized(
    ("settings", "said"),
    [
        ("resolve=19", "not reachable by RDMA: No such device"),
        ("deaf", "nothing is listening there for RDMA"),
        ("reject=4", "the queue can't have so many commands in flight"),
        ("reject=99", "was rejected, for reason 28"),
        ("strange", "not an NVMe/RDMA controller"),
        ("pair=12", "a queue pair of stub0: Cannot allocate memory"),
        ("memory=0", "capsules in the memory of stub0: Cannot allocate memory"),
        ("send=12", "the connection broke: transport retry counter exceeded"),
    ],
    kept=(0, 2, 4, 7),
)
def test_what_goes_wrong_at_a_device_is_told_and_nothing_is_kept(forebay, rdma_stub, tmp_path, settings, said):
    names = {name: str(rdma_stub) for name in ("FOREBAY_LIBIBVERBS", "FOREBAY_LIBRDMACM")}
    ledger = tmp_path / "ledger"
    env = os.environ | names | {"FOREBAY_STUB_RDMA": settings, "FOREBAY_STUB_LEDGER": str(ledger)}
    for words in VERBS:
        done = forebay(*words, env=env)
        assert done.returncode == 3 and said in done.stderr, (words, done.returncode, done.stderr)
        assert "try:" in done.stderr and "Traceback" not in done.stderr and not done.stdout
        assert ledger.read_text().split() == [f"{what}=0" for what in BOOKS], ledger.read_text()
