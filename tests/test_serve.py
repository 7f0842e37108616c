"""`forebay serve` as its users run it: who gets in, what a reload changes, what is refused, what is told."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from serve_support import NQN, PATIENCE_S, Target, document, eventually, parse_metrics, toml

# As `nvme gen-dhchap-key` makes them.
KEY = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
HOST = "nqn.2026-01.io.example:host"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(os.urandom(4 << 20))
    return path


def namespaces(forebay, target: Target) -> dict[int, int]:
    """nsid → bytes, as a host sees them."""
    found = document(forebay("identify", target.uri(), "--json"))
    return {n["nsid"]: n["bytes"] for n in found["namespaces"]}


# Where it listens ---------------------------------------------------------------------------------


@pytest.mark.promise("SRV-8")
def test_it_listens_on_several_addresses_of_both_families(forebay):
    with Target("nil:?size=1g", "--nqn", NQN, listen=("127.0.0.1:0", "[::1]:0", "127.0.0.1:0")) as target:
        assert len(target.addresses) == 3 and target.addresses[1].startswith("[::1]:")
        for address in target.addresses:
            found = document(forebay("discover", address, "--json"))
            here = next(r for r in found["records"] if r["uri"] == target.uri(address=address))
            assert here["adrfam"] == ("ipv6" if address.startswith("[") else "ipv4")
            assert forebay("identify", here["uri"]).returncode == 0
        assert target.end() == 0


@pytest.mark.promise("SRV-8")
def test_a_port_in_use_is_refused_and_named(forebay):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = forebay("serve", "nil:", "--nqn", NQN, "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 2, done.stderr
    assert str(port) in done.stderr and "try:" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("SRV-8")
def test_two_servers_on_one_port_are_one_too_many(forebay):
    with Target("nil:?size=1g", "--nqn", NQN) as target:
        done = forebay("serve", "nil:", "--nqn", "nqn.2026-01.io.example:b", "--listen", target.addresses[0])
        assert done.returncode == 2 and str(target.port) in done.stderr
        assert namespaces(forebay, target) == {1: 1 << 30}, "the first one isn't disturbed"


def test_a_port_is_free_again_at_once(forebay):
    with Target("nil:?size=1g", "--nqn", NQN) as target:
        address = target.addresses[0]
        namespaces(forebay, target)
        target.process.kill()
        target.process.wait()
    with Target("nil:?size=1g", "--nqn", NQN, listen=(address,)) as again:
        assert again.addresses == [address] and namespaces(forebay, again) == {1: 1 << 30}


def test_an_address_of_another_machine_is_refused(forebay):
    done = forebay("serve", "nil:", "--nqn", NQN, "--listen", "192.0.2.1:4420")
    assert done.returncode == 2 and "192.0.2.1" in done.stderr and "Traceback" not in done.stderr


# What it serves -----------------------------------------------------------------------------------


@pytest.mark.promise("SRV-8")
@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("/no/such/file", 2, "truncate -s 1g /no/such/file"),
        ("/dev/zero", 2, "nil:?size="),
        ("{folder}", 2, "directory"),
        ("{folder}/empty", 2, "less than one block"),
        ("stripe:?m={folder}/image&m=/no/such", 2, "/no/such"),
        ("model:no-such-drive", 2, "no-such-drive"),
        ("vfio-user:/no/such.sock", 3, "/no/such.sock"),
        ("vfio-user:/run/x.sock?queue=1", 2, "'queue'"),
    ],
)
def test_a_source_that_cannot_be_served_is_refused_by_name(forebay, image, source, code, said):
    (image.parent / "empty").write_bytes(b"")
    done = forebay("serve", source.format(folder=image.parent), "--nqn", NQN, "--listen", "127.0.0.1:0")
    assert done.returncode == code, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr and "listening" not in done.stdout


@pytest.mark.promise("SRV-8", "TGT-16")
def test_a_file_that_is_written_to_has_one_server(forebay, image):
    with Target(image, "--nqn", NQN, "--writable") as target:
        done = forebay("serve", image, "--nqn", "nqn.2026-01.io.example:b", "--writable", "--listen", "127.0.0.1:0")
        assert done.returncode == 2 and "locked" in done.stderr
        assert f"process {target.process.pid} (" in done.stderr, done.stderr
        assert target.end() == 0
    with Target(image, "--nqn", NQN, "--writable"):
        pass


def test_a_stripe_and_a_model_are_namespaces_like_files(forebay, image, tmp_path):
    file = toml(
        tmp_path / "serve.toml",
        [
            f'source = "stripe:?chunk=64k&m={image}&m=nil:%3Fsize=4m"',
            f'source = "model:d7-ps1010?over={image}"',
            f'source = "{image}"\nblock_bytes = 4096',
        ],
    )
    with Target(file) as target:
        assert namespaces(forebay, target) == {1: 8 << 20, 2: 4 << 20, 3: 4 << 20}


# Who gets in --------------------------------------------------------------------------------------


@pytest.mark.promise("SRV-9")
def test_a_host_must_be_listed(forebay, image):
    with Target(image, "--nqn", NQN, "--allow", HOST) as target:
        assert forebay("identify", target.uri(), "--hostnqn", HOST).returncode == 0
        refused = forebay("identify", target.uri(), "--hostnqn", HOST + "2")
        assert refused.returncode == 2 and NQN in refused.stderr
        nothing = forebay("discover", target.addresses[0], "--hostnqn", HOST + "2", "--json")
        assert NQN not in nothing.stdout
        assert HOST + "2" in target.wait_for("level=warning.*" + re.escape(HOST + "2"))


@pytest.mark.promise("SRV-9")
def test_a_host_with_a_key_must_prove_itself(forebay, image, tmp_path):
    host = f'[[subsystems.hosts]]\nnqn = "{HOST}"\ndhchap_key = "{KEY}"\ndhchap_groups = ["ffdhe2048"]\n'
    file = toml(tmp_path / "serve.toml", [f'source = "{image}"'], more="")
    file.write_text(file.read_text() + host)
    wrong = KEY.replace("ia6z", "ja6z")
    with Target(file) as target:
        asked = ("identify", target.uri(), "--hostnqn", HOST)
        plain = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_DHCHAP")}
        good = forebay(*asked, env={**plain, "FOREBAY_DHCHAP_SECRET": KEY})
        assert good.returncode == 0, good.stderr
        without = forebay(*asked, env=plain)
        assert without.returncode == 2 and "FOREBAY_DHCHAP_SECRET" in without.stderr
        # Its checksum fails, so it is no key at all.
        damaged = forebay(*asked, env={**plain, "FOREBAY_DHCHAP_SECRET": wrong})
        assert damaged.returncode == 2 and wrong not in damaged.stderr
    target.end() if target.process.poll() is None else None
    assert KEY.split(":")[2] not in "".join(target.out + target.err)


@pytest.mark.promise("SRV-9")
def test_another_hosts_key_does_not_do(forebay, image, tmp_path):
    other = "DHHC-1:00:NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDRpOH4z:"
    host = f'[[subsystems.hosts]]\nnqn = "{HOST}"\ndhchap_key = "{KEY}"\n'
    file = toml(tmp_path / "serve.toml", [f'source = "{image}"'], more="")
    file.write_text(file.read_text() + host)
    with Target(file) as target:
        asked = ("identify", target.uri(), "--hostnqn", HOST)
        done = forebay(*asked, env={**os.environ, "FOREBAY_DHCHAP_SECRET": keyed(b"4" * 32)})
        assert done.returncode == 2 and "authentication" in done.stderr, (done.stderr, other)


def keyed(secret: bytes) -> str:
    """A secret as `nvme gen-dhchap-key --hmac=0` spells it: base64 of it and its CRC-32."""
    import base64
    import binascii

    check = binascii.crc32(secret).to_bytes(4, "little")
    return f"DHHC-1:00:{base64.b64encode(secret + check).decode()}:"


# While it runs ------------------------------------------------------------------------------------


@pytest.mark.promise("SRV-7")
def test_a_reload_brings_and_takes_namespaces_and_leaves_the_rest(forebay, image, tmp_path):
    def served(*names: str) -> None:
        lines = [f'source = "{tmp_path / n}"' for n in names]
        toml(tmp_path / "serve.toml", lines)

    for name, size in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        (tmp_path / name).write_bytes(bytes(size << 20))
    served("a", "b")
    with Target(tmp_path / "serve.toml") as target:
        assert namespaces(forebay, target) == {1: 1 << 20, 2: 2 << 20}
        served("b", "c")
        target.process.send_signal(signal.SIGHUP)
        line = target.wait_for("reload: ")
        assert f"nsid 1 of {NQN} removed, nsid 3 of {NQN} added" in line
        assert namespaces(forebay, target) == {2: 2 << 20, 3: 3 << 20}
        assert not has_open(target.process.pid, tmp_path / "a"), "its space is free once it is removed"
        # One that can't be opened: nothing changes.
        since = len(target.err)
        served("b", "d", "missing", "c")
        target.process.send_signal(signal.SIGHUP)
        line = target.wait_for("reload refused", since)
        assert "missing" in line + "".join(target.err[since:])
        assert "event=namespace" not in "".join(target.err[since:]), "nothing went live, not even for a moment"
        assert namespaces(forebay, target) == {2: 2 << 20, 3: 3 << 20}
        # One that can't be read: likewise.
        since = len(target.err)
        (tmp_path / "serve.toml").write_text("listen = [\n")
        target.process.send_signal(signal.SIGHUP)
        target.wait_for("reload refused", since)
        assert namespaces(forebay, target) == {2: 2 << 20, 3: 3 << 20}
        assert target.end() == 0


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has it among its descriptors, or one of its rings keeps it."""
    folder = Path(f"/proc/{pid}")
    names = {os.readlink(fd) for fd in (folder / "fd").iterdir()}
    kept = [line for info in (folder / "fdinfo").iterdir() for line in info.read_text().splitlines()]
    return str(path) in names or any(re.match(rf" +\d+: {re.escape(path.name)}$", line) for line in kept)


@pytest.mark.promise("SRV-7")
def test_a_namespace_becomes_writable_by_a_reload(forebay, image, tmp_path):
    file = toml(tmp_path / "serve.toml", [f'source = "{image}"'])
    with Target(file) as target:
        uri = target.uri("nsid=1")
        assert document(forebay("identify", uri, "--json"))["namespaces"][0]["read_only"] is True
        toml(tmp_path / "serve.toml", [f'nsid = 1\nsource = "{image}"\nwritable = true'])
        target.process.send_signal(signal.SIGHUP)
        target.wait_for("reload: ")
        assert document(forebay("identify", uri, "--json"))["namespaces"][0]["read_only"] is False
        # A file under another nsid, still locked for writing by the one that goes.
        toml(tmp_path / "serve.toml", [f'nsid = 5\nsource = "{image}"\nwritable = true'])
        since = len(target.err)
        target.process.send_signal(signal.SIGHUP)
        assert "nsid 5" in target.wait_for("reload", since)
        assert namespaces(forebay, target) == {5: 4 << 20}


@pytest.mark.promise("SRV-4")
def test_a_source_keeps_its_identity_over_reloads(forebay, image, tmp_path):
    def shown() -> dict[int, str]:
        found = document(forebay("identify", target.uri(), "--json"))["namespaces"]
        return {n["nsid"]: n["uuid"] for n in found}

    def reload(*namespaces: str) -> str:
        toml(tmp_path / "serve.toml", namespaces)
        since = len(target.err)
        target.process.send_signal(signal.SIGHUP)
        return target.wait_for("reload", since)

    file = f'source = "{image}"'
    with Target(toml(tmp_path / "serve.toml", [file])) as target:
        first = shown()
        assert f"nsid 1 of {NQN} removed, nsid 1 of {NQN} added" in reload(file + '\ncache = "allow"')
        assert shown() == first
        assert f"nsid 2 of {NQN} added" in reload('source = "nil:?size=1m"', file + "\nwritable = true")
        both = shown()
        assert set(both) == {1, 2} and both[1] == first[1] != both[2]
    with Target(tmp_path / "serve.toml") as target:
        assert shown() == {1: both[2], 2: both[1]}, "a restart numbers anew; names stay with their sources"


@pytest.mark.promise("SRV-10")
def test_metrics_are_what_prometheus_reads_and_count_what_hosts_did(forebay, image):
    with Target(image, "--nqn", NQN, "--metrics", "0") as target:
        before = parse_metrics(target.metrics())
        assert before["forebay_connections_accepted_total"] == [({}, 0)]
        assert before["forebay_namespace_bytes"] == [({"subsystem": NQN, "nsid": "1"}, 4 << 20)]
        for _ in range(3):
            namespaces(forebay, target)
        after = parse_metrics(target.metrics())
        assert after["forebay_connections_accepted_total"] == [({}, 3)]
        eventually(lambda: parse_metrics(target.metrics())["forebay_connections"] == [({}, 0)], "all have gone")


@pytest.mark.promise("SRV-10")
def test_metrics_stay_on_the_loopback_unless_told_otherwise(forebay):
    with Target("nil:", "--nqn", NQN, "--metrics", "0") as target:
        assert "http://127.0.0.1:" in target.line


def test_the_log_is_words_or_json(forebay, image):
    with Target(image, "--nqn", NQN, "--log", "json") as target:
        namespaces(forebay, target)
        line = target.wait_for('"event":"connected"')
        entry = json.loads(line)
        assert entry["level"] == "info" and entry["subsystem"] == NQN and "time" in entry
        assert target.end() == 0
    with Target(image, "--nqn", NQN, "--log", "off") as target:
        namespaces(forebay, target)
        target.end()
    assert not any("event" in line for line in target.err)


def test_quiet_leaves_warnings_and_the_line_that_says_ready(forebay, image):
    with Target(image, "--nqn", NQN, "--allow", HOST, "--quiet") as target:
        forebay("identify", target.uri(), "--hostnqn", HOST)
        forebay("identify", target.uri(), "--hostnqn", HOST + "2")
        target.wait_for("level=warning")
        target.end()
    assert target.out == [target.line + "\n"]
    assert not any("level=info" in line for line in target.err)


@pytest.mark.promise("SRV-13")
@pytest.mark.soak
def test_nobody_connected_costs_no_processor_time(forebay):
    with Target("nil:?size=1g", "--nqn", NQN, "--threads", "4") as target:
        time.sleep(1)  # starting is not idling
        before, begun = cpu_s(target.process.pid), time.monotonic()
        time.sleep(4)
        share = (cpu_s(target.process.pid) - before) / (time.monotonic() - begun)
        assert share < 0.01, f"{share:.2%} of a core"


@pytest.mark.promise("TGT-15")
def test_threads_stay_on_the_processors_that_are_named(forebay):
    allowed = sorted(os.sched_getaffinity(0))[-2:]
    with Target("nil:?size=1g", "--nqn", NQN, "--cpus", ",".join(map(str, allowed))) as target:
        tasks = Path(f"/proc/{target.process.pid}/task").iterdir()
        at = {(task / "comm").read_text().strip(): os.sched_getaffinity(int(task.name)) for task in tasks}
        serving = [at[name] for name in sorted(at) if name.startswith("serve-")]
        assert serving == [{cpu} for cpu in allowed], "a thread for each"
        assert forebay("bench", target.uri(), "--duration", "0.3", "--io-size", "64k").returncode == 0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_document_at_the_end_says_what_was_served(forebay, image):
    with Target(image, "--nqn", NQN, "--json") as target:
        namespaces(forebay, target)
        assert target.end(signal.SIGINT) == 0
    found = json.loads("".join(target.out))
    assert found["schema"] == "forebay.serve/1" and found["drained"] is True
    assert found["listen"] == target.addresses and found["stats"]["connections_accepted"] == 1
    (subsystem,) = [s for s in found["stats"]["subsystems"] if s["nqn"] == NQN]
    assert subsystem["namespaces"][0]["bytes"] == 4 << 20


# Whatever comes to the port -----------------------------------------------------------------------


def test_what_is_no_host_is_turned_away_and_the_rest_served(forebay, image):
    with Target(image, "--nqn", NQN) as target:
        kept = []
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 128, b"\xff" * 4096, os.urandom(1000), b""):
            connection = socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S)
            connection.sendall(data)
            kept.append(connection)
        assert namespaces(forebay, target) == {1: 4 << 20}
        for connection in kept:
            connection.close()
        assert target.end() == 0
    assert not any("panic" in line for line in target.err)
