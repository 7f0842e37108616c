"""`vfio-user:` as a source, through the command: gdsio's flags take it, and what can't be is refused at once, by name
and with what to type."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time

import pytest
import snap_support
from serve_support import NQN, Target, document


def test_nobody_there_is_said_with_its_name(forebay, tmp_path):
    done = forebay("bench", f"vfio-user:{tmp_path}/none.sock", "--passes", "1")
    assert done.returncode == 3 and "none.sock" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("VUD-5")
@pytest.mark.soak
def test_nobody_there_is_said_at_once(forebay, tmp_path):
    begin = time.monotonic()
    assert forebay("bench", f"vfio-user:{tmp_path}/none.sock", "--passes", "1").returncode == 3
    assert time.monotonic() - begin < 5


def test_who_hangs_up_is_no_drive(forebay, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        # A listener that nobody accepts from answers nothing: identify gives up when its time is over.
        done = forebay("identify", f"vfio-user:{path}", "--timeout", "1")
        assert done.returncode == 3 and "VFIO_USER_VERSION" in done.stderr, done.stderr


@pytest.mark.promise("RHO-19")
def test_a_drive_that_another_client_has_is_told_of(forebay, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        for verb in (("identify",), ("bench", "--passes", "1")):
            done = forebay(verb[0], f"vfio-user:{path}", *verb[1:])
            assert done.returncode == 3 and "another client" in done.stderr, done.stderr
            assert "forebay snap rpc nvme_controller_list" in done.stderr
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.promise("VUD-5")
@pytest.mark.parametrize("key", ["queues=0", "spin_us=x", "nsid=0", "queue=1", "io_timeout=soon"])
def test_a_key_that_is_wrong_is_refused_by_name(forebay, key):
    done = forebay("bench", f"vfio-user:/run/x.sock?{key}", "--passes", "1")
    assert done.returncode == 2 and key.split("=")[0] in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("VUD-5")
def test_a_namespace_is_written_to_only_where_it_was_named(forebay, tmp_path):
    done = forebay("bench", f"vfio-user:{tmp_path}/s", "--op", "write", "--passes", "1")
    assert done.returncode == 2 and "--overwrite-device" in done.stderr


@pytest.mark.long
@pytest.mark.promise("VUD-7")
def test_gdsio_reads_and_writes_it_as_it_does_a_file(forebay, tmp_path):
    content = tmp_path / "content"
    content.write_bytes(before := os.urandom(8 << 20))
    flags = [*"-x 1 -w 2 -i 64k -s 8M".split(), "-f"]
    with snap_support.drive(tmp_path, content, writable=True) as uri:
        read = forebay("gdsio", *flags, uri, "-I", "0")
        assert read.returncode == 0 and "IoType: READ XferType: CPUONLY" in read.stdout, read.stderr
        assert "DataSetSize: 8192/8192(KiB)" in read.stdout and "vfio-user" in read.stderr
        refused = forebay("gdsio", *flags, uri, "-I", "1")
        assert refused.returncode == 2 and f"--overwrite-device {uri}" in refused.stderr, refused.stderr
        assert content.read_bytes() == before
        written = forebay("gdsio", *flags, uri, "-I", "1", "-V", "--overwrite-device", uri)
        assert written.returncode == 0 and "Verifying data" in written.stdout, written.stderr
    after = content.read_bytes()
    assert all(after[at : at + 4096] != before[at : at + 4096] for at in range(0, len(before), 4096))


@pytest.mark.promise("VUD-4")
def test_a_backend_that_stalls_is_told_by_the_time_out_and_the_drive_works_again(forebay, tmp_path):
    """The gateway answers, and the target behind it doesn't: a read fails by `io_timeout`, after which the drive is reset."""
    flags = ["--io-size", "64k", "--passes", "1", "--json", "-q"]

    def works() -> bool:
        result = document(forebay("bench", uri, *flags))["result"]
        return result["bytes"] == 1 << 20 and result["errors"]["failed"] == 0

    with Target("nil:?size=1m", "--nqn", NQN) as below, snap_support.drive(tmp_path, below.uri()) as uri:
        assert works()
        below.process.send_signal(signal.SIGSTOP)
        try:
            stalled = forebay("bench", f"{uri}?io_timeout=0.1&fast_io_fail_tmo=0", *flags, cwd=tmp_path)
        finally:
            below.process.send_signal(signal.SIGCONT)
        assert stalled.returncode == 4, stalled.stderr
        slow = "a command took longer than 0.1 s (io_timeout)"
        assert f"no drive that completes I/O for 0.0 s (fast_io_fail_tmo): {slow}" in stalled.stderr
        events = [event["text"] for event in json.loads(stalled.stdout)["path"]["fabric"][0]["events"]]
        assert slow in events
        assert works()


@pytest.mark.promise("VUD-7")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-f", "vfio-user:/run/x.sock"], ["-f vfio-user:/run/x.sock", "needs the size", "-s 1G"]),
        (["-D", "vfio-user:/run/x.sock", "-s", "1G"], ["-D vfio-user:/run/x.sock", "no directory", "-f vfio-user:/run/x.sock"]),
    ],
)
def test_what_gdsio_needs_to_know_of_it_is_asked_for(forebay, flags, said):
    done = forebay("gdsio", *flags, *"-x 1 -w 1 -i 64k -I 0".split())
    assert done.returncode == 2 and all(words in done.stderr for words in said), done.stderr
