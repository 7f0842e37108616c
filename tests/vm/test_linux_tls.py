"""NVMe/TCP over TLS 1.3 between our ends and Linux's, whose `tlshd` shakes hands and whose kernel encrypts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vm import linux, tls
from vm.guest import Guest
from vm.image import HOST_ID, HOST_NQN
from vm.packages import Unavailable
from vm.serving import MIB, NQN, Namespace, Serve, Serving, Subsystem, disk
from vm.test_linux_target import NQN as THEIRS
from vm.test_linux_target import Forebay, bench, ran, unharmed, uri

DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
# Debian's 6.1 has no TLS for NVMe. A guest of its own beside those of `make test` would be too slow for it.
pytestmark = pytest.mark.kernels("backports")


@pytest.fixture
def shaking(guest: Guest) -> Guest:
    """The guest, with `tlshd` in it."""
    try:
        tls.bring(guest)
    except Unavailable as e:
        pytest.skip(f"no tlshd for the guest: {e}")
    return guest


def serving(serve: Serve, tmp_path: Path, secret: bytes) -> Serving:
    fields = {"tls_key": tls.interchange(secret)}
    return serve(Subsystem([Namespace(disk(tmp_path / "a", 4), writable=True)], hosts={HOST_NQN: fields}))


def connect(guest: Guest, served: Serving, serial: str) -> linux.Association:
    """By the kernel's own interface: Debian 12's nvme-cli doesn't know TLS."""
    words = f"transport=tcp,traddr={tls.HOST},trsvcid={served.port},nqn={NQN},hostnqn={HOST_NQN},hostid={HOST_ID}"
    words += f",nr_io_queues=2,keep_alive_tmo=5,ctrl_loss_tmo=30,reconnect_delay=1,tls,tls_key=0x{int(serial):x}"
    # The line that is read back names the controller that came of it, on the same descriptor.
    script = f"exec 3<>/dev/nvme-fabrics; printf '%s' '{words}' >&3 && cat <&3"
    said = guest.run(script, timeout=90).output
    number = said.split("instance=")[1].split(",")[0]
    return linux.Association(guest, f"nvme{number}", NQN)


@pytest.mark.promise("TLS-4")
def test_linux_writes_and_reads_over_tls_with_the_same_key(shaking: Guest, serve: Serve, tmp_path: Path) -> None:
    secret = os.urandom(32)
    served = serving(serve, tmp_path, secret)
    serial = tls.hand_over(shaking, *tls.session(secret, HOST_NQN, NQN))
    host = connect(shaking, served, serial)
    shaking.run(linux.fio(host.disk(), size="2m"), timeout=120)
    assert shaking.run(f"cat /sys/class/nvme/{host.controller}/tls_key").output.strip() not in ("", "0")
    assert "NVMeTLSkey" not in served.log()
    host.disconnect()


@pytest.mark.promise("TLS-4")
def test_linux_with_another_key_is_refused(shaking: Guest, serve: Serve, tmp_path: Path) -> None:
    served = serving(serve, tmp_path, os.urandom(32))
    serial = tls.hand_over(shaking, *tls.session(os.urandom(32), HOST_NQN, NQN))
    with pytest.raises(linux.CommandFailed):
        connect(shaking, served, serial)
    served.heard("(?i)tls", 10)


@pytest.fixture
def theirs(shaking: Guest, target: linux.Target) -> bytes:
    """Linux's target over TLS alone, for our host; the secret of both."""
    secret = os.urandom(32)
    tls.hand_over(shaking, *tls.session(secret, HOST_NQN, THEIRS))
    target.subsystem(THEIRS, {1: target.ram(8)}, any_host=False)
    target.allow(THEIRS, HOST_NQN)
    target.port(1, 4420)
    place = f"{linux.NVMET}/ports/1"
    shaking.run(f"echo required >{place}/addr_treq && echo tls1.3 >{place}/addr_tsas")
    target.export(1, THEIRS)
    return secret


@pytest.mark.promise("TLS-4")
def test_what_is_written_to_linux_over_tls_is_read_back(
    shaking: Guest, theirs: bytes, forebay: Forebay, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text(tls.interchange(theirs))
    file.chmod(0o600)
    source = uri(shaking, "queues=2", "tls=1", f"tls_key_file={file}", nqn=THEIRS)
    ran(forebay(*bench(source, "write", "--passes", "1", "--file-size", str(8 * MIB))))
    read = ran(forebay(*bench(source, "read", "--passes", "1")))
    unharmed(read)
    assert read["result"]["bytes"] == 8 * MIB


@pytest.mark.promise("TLS-4")
def test_without_the_right_key_linux_lets_nobody_in(
    shaking: Guest, theirs: bytes, forebay: Forebay, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text(tls.interchange(os.urandom(32)))
    file.chmod(0o600)
    done = forebay(*bench(uri(shaking, "tls=1", f"tls_key_file={file}", nqn=THEIRS), "read", "--passes", "1"))
    assert done.returncode == 3, done.stderr
    assert "TLS" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("TLS-6")
def test_discover_and_identify_say_over_tls_what_linux_says(
    shaking: Guest, theirs: bytes, forebay: Forebay, tmp_path: Path
) -> None:
    tls.hand_over(shaking, *tls.session(theirs, HOST_NQN, DISCOVERY))
    file = tmp_path / "key"
    file.write_text(tls.interchange(theirs))
    file.chmod(0o600)
    host, key = f"nvme+tcp://127.0.0.1:{shaking.ports[4420]}", f"tls_key_file={file}"
    found = ran(forebay("discover", f"{host}?{key}&hostnqn={HOST_NQN}&hostid={HOST_ID}", "--json"))
    (record,) = [r for r in found["records"] if r["subnqn"] == THEIRS]
    assert (record["treq"], record["sectype"]) == ("required", "tls13"), record
    looked = ran(forebay("identify", uri(shaking, key, nqn=THEIRS), "--json"))
    assert looked["summary"]["nqn"] == THEIRS and [n["bytes"] for n in looked["namespaces"]] == [8 * MIB]
    checks = json.loads(forebay("doctor", uri(shaking, key, nqn=THEIRS), "--json").stdout)["checks"]
    shaken = next(c for c in checks if c["id"].startswith("source.nvme_tcp.handshake"))
    assert shaken["state"] == "works" and shaken["found"].startswith("over TLS 1.3"), shaken
    # In the clear it lets nobody in.
    assert forebay("discover", f"127.0.0.1:{shaking.ports[4420]}", "--hostnqn", HOST_NQN).returncode == 3
