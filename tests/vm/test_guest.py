"""The guest itself: commands reach it and come back, and its kernel's host and target agree with each other."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

import pytest

from vm import linux
from vm.emulator import DEVICE, unpacked
from vm.gateway import PROCESSORS_MAX
from vm.guest import CommandFailed, Guest, GuestGone, Machine
from vm.image import HOST_NQN, Archive, module_closure
from vm.packages import Kernel, Release, Unavailable, mirrors

NQN = "nqn.2026-01.io.forebay:guest"


def test_a_command_comes_back_with_its_status_and_output(guest: Guest) -> None:
    done = guest.run("echo out; echo err >&2; exit 3", check=False)
    assert (done.status, done.output) == (3, "out\nerr\n")
    with pytest.raises(CommandFailed, match=r"(?s)`false` ended with 1 .*console"):
        guest.run("false")


def test_commands_run_beside_each_other_and_end_by_their_limit(guest: Guest) -> None:
    slow = guest.start("sleep 2; echo slow")
    assert guest.run("echo quick").output == "quick\n" and slow.running
    began = time.monotonic()
    late = guest.run("sleep 60", timeout=1, check=False)
    assert late.status == 124 and time.monotonic() - began < 20
    assert slow.wait().output == "slow\n"


def test_files_reach_the_guest_whole(guest: Guest) -> None:
    data = os.urandom(5_000)
    guest.put("/tmp/put", data)
    import hashlib

    assert guest.run("sha256sum </tmp/put").output.split()[0] == hashlib.sha256(data).hexdigest()
    guest.run("rm /tmp/put")


def test_a_frozen_guest_answers_after_it_thaws(guest: Guest) -> None:
    guest.freeze()
    pending = guest.start("echo back")
    time.sleep(0.5)
    assert pending.running
    guest.thaw()
    assert pending.wait().output == "back\n"


def test_the_kernels_host_and_target_agree(guest: Guest, target: linux.Target) -> None:
    disk = target.ram()
    target.subsystem(NQN, {1: disk})
    target.port(1, 4420, NQN)
    assert NQN in {r["subnqn"] for r in linux.discover(guest, 4420, "127.0.0.1")}
    host = linux.connect(guest, NQN, 4420, address="127.0.0.1", header_digest=True, data_digest=True)
    seen = host.disk()
    guest.run(
        f"""dd if=/dev/urandom of=/tmp/a bs=1M count=4 && dd if=/tmp/a of={seen} bs=1M oflag=direct &&
        dd if={seen} of=/tmp/b bs=1M count=4 iflag=direct && cmp /tmp/a /tmp/b; s=$?; rm /tmp/[ab]; exit $s"""
    )
    guest.run(linux.fio(seen, size="2m"))
    assert guest.run("cat /etc/nvme/hostnqn").output.strip() == HOST_NQN
    target.unexport(1, NQN)
    host.until_state("connecting")
    target.export(1, NQN)
    host.until_state("live")
    host.disconnect()


@pytest.mark.kernels("backports", "newer")
def test_the_kernels_host_and_target_prove_themselves_to_each_other(guest: Guest, target: linux.Target) -> None:
    keys = [guest.run(f"nvme gen-dhchap-key -m 1 -n {nqn}").output.strip() for nqn in (HOST_NQN, NQN)]
    target.subsystem(NQN, {1: target.ram(8)}, any_host=False)
    target.allow(NQN, HOST_NQN, keys[0], keys[1], "ffdhe2048")
    target.port(1, 4420, NQN)
    linux.refused(guest, NQN, 4420, address="127.0.0.1")
    since = len(guest.log())
    more = [f"--dhchap-secret={keys[0]}", f"--dhchap-ctrl-secret={keys[1]}"]
    linux.connect(guest, NQN, 4420, address="127.0.0.1", more=more).disk()
    guest.heard("qid 0: authenticated with hash hmac.sha256. dhgroup ffdhe2048", since)


def test_the_guests_target_answers_from_outside(guest: Guest, target: linux.Target) -> None:
    """ICReq and ICResp (tcp, figures 14 and 15), by hand."""
    target.subsystem(NQN, {1: target.ram()})
    target.port(1, 4420, NQN)
    with socket.create_connection(("127.0.0.1", guest.ports[4420]), timeout=30) as link:
        link.sendall(struct.pack("<BBBBIHBBI112x", 0, 0, 128, 0, 128, 0, 0, 0, 0))
        answer = b""
        while len(answer) < 128:
            part = link.recv(128 - len(answer))
            assert part, f"closed after {answer.hex()}"
            answer += part
    kind, _, header, _, length, version = struct.unpack_from("<BBBBIH", answer)
    assert (kind, header, length, version) == (1, 128, 128, 0)


@pytest.mark.usefixtures("slots_empty")
def test_a_machine_has_room_for_drives_and_processors(vmm: Guest) -> None:
    assert vmm.run("cat /sys/devices/system/cpu/possible").output.strip() == f"0-{PROCESSORS_MAX - 1}"
    nobody = {"driver": DEVICE, "socket": {"type": "unix", "path": "/nonexistent"}}
    with pytest.raises(CommandFailed, match="No such file"):
        vmm.plug(0, "nobody", nobody)
    assert "nobody" not in vmm.plugged()


@pytest.mark.usefixtures("slots_empty")
@pytest.mark.parametrize("hard", [False, True], ids=["by its kernel", "by the reset button"])
def test_a_guest_that_boots_again_answers_again(vmm: Guest, hard: bool) -> None:
    vmm.run("touch /run/before")
    lost = vmm.start("sleep 600", 700)
    vmm.reboot(hard)
    assert not vmm.run("ls /run/before", check=False).ok
    with pytest.raises(GuestGone):
        lost.wait()


# What needs no guest ------------------------------------------------------------------------------


def test_an_emulator_that_is_not_whole_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no qemu-system-x86_64 with its ld-linux"):
        unpacked(tmp_path)


def test_only_a_machine_with_slots_shares_its_memory() -> None:
    assert not any("memfd" in flag for flag in Machine().flags())
    flags = Machine(cpus=2, max_cpus=32, slots=1, firmware="x.rom").flags()
    assert "memory-backend-memfd,id=ram,size=2048M,share=on" in flags and "x.rom" in flags
    assert "2,maxcpus=32" in flags


def test_mirrors_are_read_from_both_formats_of_apt(tmp_path: Path) -> None:
    assert mirrors(tmp_path) == []
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://commented.example/debian bookworm main\n"
        "deb [signed-by=/k.gpg] http://one.example/debian/ bookworm main\n"
        "deb http://one.example/debian-security bookworm-security main\n"
    )
    (tmp_path / "sources.list.d/a.sources").write_text(
        "Types: deb\n# a note\nURIs: http://two.example/debian\nSuites: bookworm\n\n"
        "Types: deb-src\nURIs: http://three.example/debian\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://four.example/debian\n"
    )
    assert mirrors(tmp_path) == ["http://two.example/debian", "http://one.example/debian"]


def test_modules_come_with_what_they_need_and_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text("k/a-b.ko.xz: k/c.ko.xz\nk/c.ko.xz:\nk/d.ko:\n")
    (tmp_path / "modules.builtin").write_text("kernel/e.ko\n")
    kernel = Kernel(Release("x", "x"), "1.2.3-x", tmp_path, tmp_path)
    assert module_closure(kernel, ("a_b", "e"), ("none",)) == ["k/a-b.ko.xz", "k/c.ko.xz"]
    assert kernel.numbers == (1, 2)
    with pytest.raises(Unavailable, match=r"1\.2\.3-x has no module none"):
        module_closure(kernel, ("none",), ())


def test_an_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if not shutil.which("cpio"):
        pytest.skip("cpio: not found; try: apt install cpio")
    archive = Archive()
    archive.file("a/b/file", b"12345", 0o644)
    archive.link("a/link", "b/file")
    subprocess.run(["cpio", "-i", "--quiet"], input=archive.finished(), cwd=tmp_path, check=True)
    assert (tmp_path / "a/link").read_bytes() == b"12345" and (tmp_path / "a/b/file").stat().st_mode & 0o777 == 0o644
