"""`vfio-user:` as a source, through the command: what can't be is refused at once, by name and with what to type."""

from __future__ import annotations

import socket
import time

import pytest


def test_nobody_there_is_said_with_its_name(forebay, tmp_path):
    done = forebay("bench", f"vfio-user:{tmp_path}/none.sock", "--passes", "1")
    assert done.returncode == 3 and "none.sock" in done.stderr and "Traceback" not in done.stderr


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


@pytest.mark.parametrize("key", ["queues=0", "spin_us=x", "nsid=0", "queue=1", "io_timeout=soon"])
def test_a_key_that_is_wrong_is_refused_by_name(forebay, key):
    done = forebay("bench", f"vfio-user:/run/x.sock?{key}", "--passes", "1")
    assert done.returncode == 2 and key.split("=")[0] in done.stderr and "Traceback" not in done.stderr


def test_a_namespace_is_written_to_only_where_it_was_named(forebay, tmp_path):
    done = forebay("bench", f"vfio-user:{tmp_path}/s", "--op", "write", "--passes", "1")
    assert done.returncode == 2 and "--overwrite-device" in done.stderr
