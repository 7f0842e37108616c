"""Our own host over NVMe/RDMA against Linux's target (nvmet-rdma), on soft RoCE in a guest."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vm import linux
from vm.image import HOST_ID, HOST_NQN
from vm.rdma import ADDRESS, PORT, Card, Served

NQN = "nqn.2026-01.io.forebay:kernel"
STUBS = Path(__file__).resolve().parents[1]
REPO = STUBS.parent
PATIENCE = "fast_io_fail_tmo=60&reconnect_delay=1&kato=5"
# Of the gateway's drive, in the guest.
SOCKET = "/tmp/gateway.sock"

# Where QEMU has no KVM, and other guests run beside.
pytestmark = pytest.mark.timeout(1200)


def uri(*keys: str, nqn: str = NQN, port: int = PORT) -> str:
    query = "&".join([f"hostnqn={HOST_NQN}", f"hostid={HOST_ID}", *keys])
    return f"nvme+rdma://{ADDRESS}:{port}/{nqn}?{query}"


def exported(card: Card) -> linux.Target:
    """Linux's target with a disk in memory, on RDMA."""
    target = linux.Target(card.guest)
    target.subsystem(NQN, {1: target.ram(mib=32)})
    target.port(1, PORT, NQN, address=ADDRESS, transport="rdma")
    return target


def bench(source: str, op: str, io: str, *more: str) -> list[str]:
    over = [] if op.endswith("read") else ["--overwrite-device", source]
    flags = ["--io-size", io, "--depth", "8", "--workers", "2", "--verify", "--json"]
    return ["bench", source, "--op", op, *flags, *over, *more]


def unharmed(record: Any) -> None:
    """Every byte was checked, and the card put each where it belongs."""
    result, path = record["result"], record["path"]
    assert result["verified_bytes"] >= result["bytes"] > 0, result
    assert not result["errors"]["failed"] and not result["errors"]["verify_failed"], result["errors"]
    assert path["engine"] == "nvme-rdma" and path["staged_bytes"] == 0, path
    assert path["direct_bytes"] == result["bytes"], path


# 4 KiB go in the capsule, 64 KiB are fetched by the target, 2 MiB are several commands. A guest this slow may lose a
# connection while it makes others; nobody else writes here.
@pytest.mark.promise("RHO-10")
@pytest.mark.parametrize(("io", "mib"), [("4k", 1), ("64k", 2), ("2m", 4)])
def test_what_was_written_is_read_back_and_nothing_is_staged(card: Card, io: str, mib: int) -> None:
    exported(card)
    source, size = uri("queues=2", "replay_writes=1"), ("--file-size", f"{mib}m")
    written = card.forebay(*bench(source, "write", io, "--passes", "1", *size)).json
    assert written["result"]["bytes"] == mib << 20
    unharmed(written | {"result": written["result"] | {"verified_bytes": written["result"]["bytes"]}})
    read = card.forebay(*bench(source, "read", io, "--passes", "1", *size)).json
    unharmed(read)
    assert read["path"]["fabric"][0]["uri"].startswith("nvme+rdma://")


@pytest.mark.promise("RHO-20")
def test_discover_and_identify_say_over_rdma_what_linux_says(card: Card) -> None:
    exported(card)
    place = f"nvme+rdma://{ADDRESS}:{PORT}"
    found = card.forebay("discover", f"{place}?hostnqn={HOST_NQN}&hostid={HOST_ID}", "--json").json
    assert (found["address"], found["host_nqn"]) == (f"{ADDRESS}:{PORT}", HOST_NQN)
    (record,) = [r for r in found["records"] if r["subnqn"] == NQN]
    assert (record["trtype"], record["traddr"], record["uri"]) == ("rdma", ADDRESS, f"{place}/{NQN}")
    looked = card.forebay("identify", uri("nsid=1"), "--json").json
    assert (looked["uri"], looked["address"]) == (f"{place}/{NQN}", f"{ADDRESS}:{PORT}")
    assert looked["summary"]["model"].startswith("Linux") and looked["controller"]["subnqn"] == NQN
    (namespace,) = looked["namespaces"]
    assert (namespace["nsid"], namespace["bytes"], namespace["uri"]) == (1, 32 << 20, f"{place}/{NQN}?nsid=1")
    for keys, nqn, said in [("nsid=9", NQN, "namespace 9"), ("nsid=1", NQN + "x", f"forebay discover {place}")]:
        refused = card.forebay("identify", uri(keys, nqn=nqn), check=False)
        assert refused.status == 2 and said in refused.output, refused


@pytest.mark.promise("RHO-10")
def test_a_port_that_goes_is_waited_for_and_reads_go_on(card: Card) -> None:
    target = exported(card)
    source, size = uri("queues=2", "replay_writes=1", PATIENCE), ("--file-size", "2m")
    card.forebay(*bench(source, "write", "64k", "--passes", "1", *size))
    load = card.start(*bench(source, "read", "64k", "--duration", "25", *size))
    # An admin queue, and one for each worker.
    # What the kernel's own target has is no process's.
    ours = "chroot /host rdma resource show qp | grep -c ' pid '"
    card.guest.until(ours, lambda out: int(out or 0) >= 3, 120)
    time.sleep(2)
    target.unexport(1, NQN)
    time.sleep(3)
    target.export(1, NQN)
    record = load.wait().json
    unharmed(record)
    events = [event["text"] for event in record["path"]["fabric"][0]["events"]]
    assert any("connected again" in text for text in events), events


@pytest.fixture
def snap(card: Card) -> Iterator[Callable[[str], Served]]:
    """`snap(URI)` → our gateway with a drive over that source, until the test ends."""
    running: list[Served] = []

    def start(source: str) -> Served:
        config = f"""
rpc = "off"
threads = 2
[[subsystems]]
nqn = "nqn.2026-01.io.forebay:gateway"
namespaces = [{{ source = "{source}", writable = true }}]
[[subsystems.controllers]]
name = "drive"
socket = "{SOCKET}"
queues = 4
"""
        running.append(Served(card, config, "snap", "ready: 1 controller"))
        running[-1].start()
        return running[-1]

    yield start
    for one in running:
        if one.process:
            one.kill()


@pytest.mark.promise("GWY-8")
def test_a_gateway_moves_payload_between_the_card_and_its_hosts_memory(card: Card, snap: Callable[[str], Served]) -> None:
    """In the capsule, and fetched by the target. What was written through the drive is there without it, too."""
    exported(card)
    gateway = snap(uri("queues=2", "replay_writes=1"))
    drive, moved = f"vfio-user:{SOCKET}?queues=2&content=drive&io_timeout=120", 0
    for io, mib in [("4k", 1), ("256k", 4)]:
        size = ("--passes", "1", "--file-size", f"{mib}m")
        for op in ("write", "read"):
            record = card.forebay(*bench(drive, op, io, *size)).json
            result, path = record["result"], record["path"]
            assert result["bytes"] == mib << 20 and result["errors"]["failed"] == 0, result
            assert (path["engine"], path["staged_bytes"], path["direct_bytes"]) == ("vfio-user", 0, mib << 20), path
            moved += result["bytes"]
        assert result["verified_bytes"] == mib << 20 and result["errors"]["verify_failed"] == 0, result
    straight = bench(uri("queues=2", "content=drive"), "read", "1m", "--passes", "1", "--file-size", "4m")
    unharmed(card.forebay(*straight).json)
    document = gateway.stop()
    assert document["drained"] is True, document
    [controller] = document["stats"]["controllers"]
    assert (controller["protocol_errors"], controller["staged_bytes"]) == (0, 0), controller
    counts = document["stats"]["subsystems"][0]["namespaces"][0]["counts"]
    # Beside those a bench's first look at what is there.
    assert counts["read_bytes"] + counts["write_bytes"] >= moved and not counts["errors"], counts
    assert document["stats"]["staged_bytes"] == 0, document["stats"]


@pytest.fixture(scope="module")
def stand_ins() -> dict[str, str]:
    """A GPU whose driver exports memory, and a libibverbs whose card takes it, where the guest finds them."""
    compiler = shutil.which("cc") or pytest.skip("no cc; apt install gcc")
    gpu, card = REPO / "target" / "gpu-stubs", REPO / "target" / "rdma-stubs"
    card.mkdir(parents=True, exist_ok=True)
    subprocess.run([STUBS / "gpu_stubs" / "build", gpu], check=True, stdout=subprocess.DEVNULL)
    shim, source = card / "libdmabuf.so", STUBS / "rdma_stubs" / "dma_buf.c"
    made = card / f"{os.getpid()}.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", made, source, "-l:libibverbs.so.1"], check=True)
    made.rename(shim)
    return {"FOREBAY_LIBCUDA": str(gpu / "libcuda.so.1"), "FOREBAY_LIBIBVERBS": str(shim)}


@pytest.mark.promise("RHO-16")
def test_a_card_that_takes_gpu_memory_reads_and_writes_it_there(card: Card, stand_ins: dict[str, str]) -> None:
    """The GPU is a stand-in, and so is that soft RoCE takes its memory: what goes by RDMA goes to its addresses."""
    exported(card)
    env = {**stand_ins, "FOREBAY_STUB_CUDA": "gpus=1,memory=64m,dma_buf=1"}
    source, size = uri("queues=2", "replay_writes=1"), ("--passes", "1", "--file-size", "4m", "--path", "gds")
    for op, io in [("write", "4k"), ("read", "256k")]:
        record = card.forebay(*bench(source, op, io, *size), env=env).json
        result, path = record["result"], record["path"]
        assert result["bytes"] == 4 << 20 and not result["errors"]["failed"], result
        assert (path["ran"], path["engine"], path["destination"]) == ("gds", "nvme-rdma", "gpu:0"), path
        assert (path["direct_bytes"], path["staged_bytes"]) == (result["bytes"], 0), path
        assert "dma-buf" in path["reason"], path
    assert result["verified_bytes"] == 4 << 20 and not result["errors"]["verify_failed"], result
    # What it wrote is what a host without a GPU finds.
    unharmed(card.forebay(*bench(source, "read", "1m", "--passes", "1", "--file-size", "4m")).json)


@pytest.mark.promise("RHO-16")
def test_a_card_that_takes_no_gpu_memory_says_so_and_pinned_memory_stands_between(
    card: Card, stand_ins: dict[str, str]
) -> None:
    exported(card)
    env = {"FOREBAY_LIBCUDA": stand_ins["FOREBAY_LIBCUDA"], "FOREBAY_STUB_CUDA": "gpus=1,memory=64m,dma_buf=1"}
    source, size = uri("queues=2", "replay_writes=1"), ("--passes", "1", "--file-size", "1m")
    card.forebay(*bench(source, "write", "64k", *size))
    done = card.forebay(*bench(source, "read", "64k", *size, "--path", "gds"), env=env, check=False)
    assert done.status == 3 and "rxe0 takes no GPU memory by dma-buf" in done.output, done.output
    assert "--allow-compat" in done.output and "Operation not supported" in done.output, done.output
    for path in (["gds", "--allow-compat"], ["auto"]):
        record = card.forebay(*bench(source, "read", "64k", *size, "--path", *path), env=env).json
        ran, result = record["path"], record["result"]
        assert (ran["ran"], ran["direct_bytes"], ran["staged_bytes"]) == ("bounce", 0, 1 << 20), ran
        assert "rxe0 takes no GPU memory by dma-buf" in ran["reason"], ran
        assert result["verified_bytes"] == 1 << 20 and not result["errors"]["verify_failed"], result
    silent = env | {"FOREBAY_STUB_CUDA": "gpus=1,memory=64m"}
    done = card.forebay(*bench(source, "read", "64k", *size, "--path", "gds"), env=silent, check=False)
    assert done.status == 3 and "GPU 0: its driver exports no dma-bufs" in done.output, done.output


@pytest.mark.promise("RHO-11")
def test_what_cannot_be_reached_says_why(card: Card) -> None:
    exported(card)
    for source, status, why in [
        (uri(port=PORT + 1), 3, "nothing is listening there for RDMA"),
        (uri(nqn=NQN + "x"), 2, "Connect"),
        (uri("hdgst=1"), 2, "nvme+tcp: alone"),
    ]:
        done = card.forebay("bench", source, "--passes", "1", check=False)
        assert done.status == status and why in done.output, done.output


@pytest.mark.promise("RHO-11", "RHO-16")
def test_doctor_knows_the_card(card: Card) -> None:
    report = card.forebay("doctor", "--json").json
    [device] = report["fabric"]["rdma"]
    assert device["name"] == "rxe0" and device["ports"][0]["link_layer"] == "Ethernet"
    ours = next(check for check in report["checks"] if check["id"] == "nvme_rdma")
    assert ours["state"] == "works" and "libibverbs" in ours["found"], ours
    assert "dma-buf: rxe0 refuses GPU memory (Operation not supported (os error 95))" in ours["found"], ours
    [taken] = report["nvme_rdma"]["dma_buf"]
    assert taken == {"device": "rxe0", "refusal": "Operation not supported (os error 95)"}
