"""`forebay discover` and `forebay identify` against a real target, and against what is none."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_support import NQN, Target, document, eventually, toml

HOST = "nqn.2026-01.io.example:allowed"
OTHER = "nqn.2026-01.io.example:other"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("identify")
    image: Path = folder / "image"
    image.write_bytes(bytes(8 << 20))
    namespaces = [
        f'nsid = 1\nsource = "{image}"\nuuid = "0f2d4c1e-0000-4000-8000-000000000001"',
        'nsid = 7\nsource = "nil:?size=1g"\nblock_bytes = 4096\nwritable = true',
    ]
    closed = (
        '[[subsystems]]\nnqn = "nqn.2026-01.io.example:closed"\n'
        f'[[subsystems.hosts]]\nnqn = "{HOST}"\n[[subsystems.namespaces]]\nsource = "nil:?size=1m"\n'
    )
    file = toml(folder / "serve.toml", namespaces, head='max_transfer = "256k"\nqueues = 5\nqueue_depth = 64')
    file.write_text(file.read_text() + closed)
    with Target(file) as running:
        yield running


@pytest.mark.promise("SRV-5")
def test_a_host_sees_what_it_may_use_and_what_to_type(forebay, target):
    found = document(forebay("discover", target.addresses[0], "--hostnqn", HOST, "--json"))
    assert found["schema"] == "forebay.discover/1" and found["address"] == target.addresses[0]
    assert found["host_nqn"] == HOST
    offered = {r["subnqn"]: r for r in found["records"] if r["uri"]}
    assert offered.keys() == {NQN, "nqn.2026-01.io.example:closed"}
    record = offered[NQN]
    assert (record["trtype"], record["adrfam"], record["subtype"]) == ("tcp", "ipv4", "nvm subsystem")
    assert (record["traddr"], record["trsvcid"]) == ("127.0.0.1", str(target.port))
    assert record["uri"] == target.uri() and record["cntlid"] == 0xFFFF


def test_what_is_for_others_is_not_shown(forebay, target):
    found = document(forebay("discover", target.addresses[0], "--hostnqn", OTHER, "--json"))
    assert [r["subnqn"] for r in found["records"] if r["uri"]] == [NQN]


def test_each_line_of_discover_begins_with_what_to_type(forebay, target):
    done = forebay("discover", target.addresses[0], "--hostnqn", OTHER)
    assert done.returncode == 0 and target.uri() in done.stdout.splitlines()


@pytest.mark.promise("TGT-18")
def test_a_service_of_the_local_network_is_found_without_an_address(forebay, tmp_path):
    with Target("nil:?size=1m", "--nqn", NQN, "--mdns") as running:
        found = eventually(lambda: of_network(forebay, running), "the target was found")
        assert found["protocol"] == "tcp" and found["nqn"] == "nqn.2014-08.org.nvmexpress.discovery"
        assert [r["subnqn"] for r in found["offers"]["records"] if r["uri"]] == [NQN]
        lines = forebay("discover", "--hostnqn", OTHER).stdout.splitlines()
        assert f"# {found['title']}" in lines and running.uri() in lines
        assert running.end() == 0
        assert not of_network(forebay, running)


def of_network(forebay, target):
    """What `forebay discover` says of that target. Others may be there."""
    found = json.loads(forebay("discover", "--hostnqn", OTHER, "--json").stdout)
    assert found["schema"] == "forebay.discover.network/1"
    return next((s for s in found["services"] if target.addresses[0] in s["addresses"]), None)


@pytest.mark.promise("SRV-5")
def test_a_controller_and_its_namespaces_are_identified(forebay, target):
    found = document(forebay("identify", target.uri(), "--json"))
    assert found["schema"] == "forebay.identify/1" and found["address"] == target.addresses[0]
    summary = found["summary"]
    assert summary["nqn"] == NQN and summary["max_transfer_bytes"] == 256 << 10
    assert summary["queues"] == 5 and summary["queue_depth"] == 63
    assert summary["in_capsule_bytes"] == 16 << 10
    assert summary["header_digest"] is True and summary["data_digest"] is True
    assert summary["volatile_write_cache"] in (True, False)
    assert "namespaces changed" in summary["events"]
    controller = found["controller"]
    assert controller["subnqn"] == NQN and controller["sn"] == summary["serial"] and controller["kas"] > 0
    assert controller["mdts"] == 6 and controller["ioccsz"] == (64 + (16 << 10)) // 16
    first, second = found["namespaces"]
    assert (first["nsid"], first["bytes"], first["read_only"]) == (1, 8 << 20, True)
    assert first["uuid"] == "0f2d4c1e-0000-4000-8000-000000000001"
    assert (second["nsid"], second["bytes"], second["block_bytes"]) == (7, 1 << 30, 4096)
    assert second["read_only"] is False and second["identify"]["nsze"] == (1 << 30) // 4096
    assert second["uri"] == target.uri("nsid=7")


def test_one_namespace_is_identified_where_it_is_named(forebay, target):
    found = document(forebay("identify", target.uri("nsid=7"), "--json"))
    assert [n["nsid"] for n in found["namespaces"]] == [7]
    missing = forebay("identify", target.uri("nsid=9"))
    assert missing.returncode == 2 and "namespace 9" in missing.stderr


def test_what_matters_is_said_in_words(forebay, target):
    done = forebay("identify", target.uri())
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0] == f"subsystem   {NQN} at {target.addresses[0]}"
    assert any(line.startswith("transfers   up to 256 KiB a command") for line in lines)
    assert any("5 I/O queues of depth 63" in line for line in lines)
    assert any("nsid 7: 1 GiB in blocks of 4096 · writable" in line for line in lines)


@pytest.mark.promise("SRV-5")
def test_a_host_that_is_not_listed_is_refused(forebay, target):
    closed = target.uri(nqn="nqn.2026-01.io.example:closed")
    allowed = forebay("identify", closed, "--hostnqn", HOST)
    assert allowed.returncode == 0, allowed.stderr
    refused = forebay("identify", closed, "--hostnqn", OTHER)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert closed.rsplit("/", 1)[1] in refused.stderr


def test_a_subsystem_that_is_not_there_is_refused(forebay, target):
    done = forebay("identify", target.uri(nqn="nqn.2026-01.io.example:none"))
    assert done.returncode == 2 and "nqn.2026-01.io.example:none" in done.stderr


@pytest.mark.promise("SRV-6", "RHO-19")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["discover", "127.0.0.1:1"], 3, "Connection refused"),
        (["discover", "[::1"], 2, "]"),
        (["discover", "127.0.0.1:x"], 2, "port"),
        (["discover", "no-such-host.invalid"], 3, "resolve"),
        (["discover", "127.0.0.1:1", "--timeout", "0"], 2, "--timeout 0"),
        (["identify", "nvme+tcp://127.0.0.1:1/" + NQN], 3, "Connection refused"),
        (["discover", "127.0.0.1:1", "--hostnqn", "foo"], 2, "--hostnqn foo"),
        (["identify", "nvme+tcp://127.0.0.1:1/" + NQN, "--hostnqn", "foo"], 2, "--hostnqn foo"),
        (["identify", f"nvme+tcp://127.0.0.1:1/{NQN}?queues=2&queues=3"], 2, "'queues' twice"),
        (["discover", "nvme+tcp://127.0.0.1:1?tls=1"], 2, "this host has no key for it"),
        (["discover", "nvme+rdma://127.0.0.1?tls=1"], 2, "tls is for nvme+tcp: alone"),
        (["discover", "nvme+tcp://127.0.0.1/" + NQN], 2, "forebay identify"),
        (["identify", "nil:"], 2, "nvme+tcp"),
        (["identify", "/tmp"], 2, "nvme+tcp"),
        (["identify", "nvme+tcp://127.0.0.1"], 2, "NQN"),
    ],
)
def test_what_cannot_be_looked_at_says_why(forebay, arguments, code, said):
    done = forebay(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr and not done.stdout


@pytest.mark.promise("RHO-19")
@pytest.mark.parametrize(
    ("nqn", "query", "next_"),
    [
        (NQN, "nsid=9", "forebay identify nvme+tcp://"),
        ("nqn.2026-01.io.example:none", "", "forebay discover 127.0.0.1:"),
        ("nqn.2026-01.io.example:closed", f"hostnqn={OTHER}", "tls=1 in the URI"),
    ],
)
def test_a_wrong_request_is_one_whichever_verb_makes_it(forebay, target, nqn, query, next_):
    uri = target.uri(query, nqn)
    for command in (("identify", uri), ("bench", uri, "--passes", "1")):
        done = forebay(*command)
        assert done.returncode == 2, (command, done.stderr)
        assert next_ in done.stderr.split("try:")[1] and "Traceback" not in done.stderr, done.stderr


@pytest.mark.promise("RHO-19")
def test_a_name_with_what_ends_one_in_a_uri_is_told_as_it_is_typed(forebay):
    nqn = "nqn.2026-01.io.example:q?x=1&y=50%"
    with Target("nil:?size=8m", "--nqn", nqn) as target:
        uri = forebay("discover", target.addresses[0]).stdout.split()[0]
        assert uri == f"nvme+tcp://{target.addresses[0]}/nqn.2026-01.io.example:q%3Fx=1%26y=50%25"
        assert document(forebay("identify", uri, "--json"))["summary"]["nqn"] == nqn
        (namespace,) = document(forebay("identify", uri, "--json"))["namespaces"]
        assert document(forebay("bench", namespace["uri"], "--passes", "1", "--json"))["result"]["bytes"] == 8 << 20


@contextlib.contextmanager
def peer(answer: bytes | None) -> Iterator[str]:
    """A listener that is no target: says `answer` and closes; None: says nothing and stays."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    kept.append(connection)
                    if answer is not None:
                        connection.recv(256)
                        connection.sendall(answer)
                        connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        for connection in kept:
            connection.close()


@pytest.mark.promise("SRV-6")
@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 200,
        b"\x01\x00\x80\x00\x80\x00\x00\x00" + b"\xff" * 120,  # an ICResp of a version that isn't
        b"\x01\x00\x10\x00\x10\x00\x00\x00" + bytes(120),  # an ICResp too short
        b"\x05\x00\x18\x00\x18\x00\x00\x00" + bytes(16),  # a response before ICResp
        b"\xff" * 4096,
    ],
)
def test_a_peer_that_is_no_target_ends_in_words_within_the_time_out(forebay, answer):
    with peer(answer) as address:
        for command in (["discover", address], ["identify", f"nvme+tcp://{address}/{NQN}"]):
            done = forebay(*command, "--timeout", "1")
            assert done.returncode == 3, done.stderr
            assert address in done.stderr and "try:" in done.stderr
            assert "Traceback" not in done.stderr and not done.stdout
