"""`forebay.open` of URIs: stripes, namespaces of `forebay serve`, drives of `forebay snap`, into host and GPU memory."""
# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import forebay
import numpy as np
import pytest
import snap_support
from feed_gpu_support import Scenario, scenario, stub  # noqa: F401 - fixtures
from forebay.errors import RequestError, RunError
from serve_support import NQN, Target

BLOCK, CHUNK = 4096, 8192
SIZE = 2 * (1 << 20) + 2 * CHUNK
# What a lost target costs at most before reads give up on it.
SOON = "reconnect_delay=0.1&ctrl_loss_tmo=0.2&fast_io_fail_tmo=0.2"


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(7).bytes(SIZE)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> Path:
    path = tmp_path_factory.mktemp("source") / "namespace"
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def stripe(file: Path, content: bytes) -> str:
    """Two files, dealt out chunk by chunk, as one source."""
    chunks = np.frombuffer(content, np.uint8).reshape(-1, 2, CHUNK)
    members = [file.with_name(name) for name in "ab"]
    for number, member in enumerate(members):
        member.write_bytes(chunks[:, number].tobytes())
    return f"stripe:?chunk={CHUNK}&m={members[0]}&m={members[1]}"


def assert_reads(uri: str, content: bytes) -> None:
    """Each way of reading into host memory, from offsets and to lengths that are no blocks."""
    with forebay.open(uri) as source:
        assert (source.name, source.size) == (uri, len(content))
        whole = np.zeros(len(content) + 1, np.uint8)
        assert source.read_into(whole) == len(content) and whole[:-1].tobytes() == content and whole[-1] == 0
        report = source.last_report
        assert report is not None and report.bytes == report.staged_bytes + report.direct_bytes == len(content)
        pieces = [np.zeros(size, np.uint8) for size in (1, BLOCK, 70_001)]
        begins = [5, BLOCK, BLOCK * 3 - 1]
        assert source.read_ranges((at, None, piece) for at, piece in zip(begins, pieces, strict=True)) == 74_098
        assert all(p.tobytes() == content[at : at + p.size] for at, p in zip(begins, pieces, strict=True))
        assert source.read_into(bytearray(9), len(content) - 4) == 4 and source.read_into(bytearray(9), len(content)) == 0
        with pytest.raises(RequestError, match=f"it has {len(content)} bytes"):
            source.read_into(bytearray(9), len(content) - 4, 9)
        rows, out = [9, 8, 700, 701, 0, 9], np.zeros((6, 100), np.uint8)
        assert source.gather(np.array(rows), 100, out, start=3) == 600
        assert [row.tobytes() for row in out] == [content[3 + 100 * n :][:100] for n in rows]
        with pytest.raises(RequestError, match="row"):
            source.gather(np.array([len(content)]), 100, out)
        assert source.read_at(np.array([0, len(content) - 7]), 7, out[0]) == 14 and out[0, :7].tobytes() == content[:7]
        assert source.seek(-5, os.SEEK_END) == len(content) - 5 and source.read(99) == content[-5:] and source.read() == b""
        futures = [source.read_async(piece, at) for at, piece in zip(begins, pieces, strict=True)]
        assert [f.result() for f in futures] == [p.size for p in pieces] and all(f.done() for f in futures)
    with pytest.raises(RequestError, match="closed"):
        source.read_into(bytearray(1))


def workers(name: str = "forebay-source") -> int:
    """Number of this process's threads of that name."""
    count = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            count += Path(f"/proc/self/task/{task}/comm").read_text().strip() == name
    return count


@pytest.mark.promise("PYT-29")
def test_a_stripe_is_read_as_a_file_is(stripe: str, file: Path, content: bytes) -> None:
    assert_reads(stripe, content)
    with forebay.open(f"file:{file}") as plain:
        assert (plain.name, plain.read()) == (str(file), content)
    assert not workers()


@pytest.mark.promise("PYT-29")
def test_a_namespace_is_read_until_its_target_ends(file: Path, content: bytes) -> None:
    with Target(file, "--nqn", NQN) as target:
        uri = target.uri(SOON)
        assert_reads(uri, content)
        source = forebay.open(uri)
        child = os.fork()
        if child == 0:
            try:
                source.read_into(bytearray(1))
            except RequestError as error:
                os._exit(0 if "forked" in error.found else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert source.read(BLOCK) == content[:BLOCK]
        assert target.end(signal.SIGTERM) == 0
    buffer = bytearray(SIZE)
    with pytest.raises(RunError) as failed:
        source.read_into(buffer)
    assert "bytes at " in failed.value.asked and NQN in failed.value.asked and failed.value.next
    cancelled = source.read_async(buffer)
    assert cancelled.cancel() in (True, False) and cancelled.done()
    source.close()
    assert not workers()


@pytest.mark.promise("PYT-29")
def test_ctrl_c_ends_a_read_that_nobody_answers(file: Path) -> None:
    with Target(file, "--nqn", NQN) as target:
        source = forebay.open(target.uri())
        target.process.send_signal(signal.SIGSTOP)
        threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                source.read_into(bytearray(SIZE))
        finally:
            signal.signal(signal.SIGINT, previous)
            target.process.send_signal(signal.SIGCONT)
        assert source.read_into(buffer := bytearray(BLOCK)) == BLOCK and buffer == file.read_bytes()[:BLOCK]
        source.close()


@pytest.mark.promise("PYT-29")
def test_ctrl_c_ends_an_opening_that_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connected: list[socket.socket] = []
        ended = threading.Event()

        def interrupt() -> None:
            connection = silent.accept()[0]
            connected.append(connection)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while connection.recv(4096):
                pass
            ended.set()

        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                forebay.open(f"nvme+tcp://127.0.0.1:{silent.getsockname()[1]}/{NQN}")
            # By itself the opening ends 20 seconds later.
            assert not ended.is_set()
        finally:
            signal.signal(signal.SIGINT, previous)
        connected[0].shutdown(socket.SHUT_RDWR)
        interrupter.join()
        connected[0].close()
    while workers("forebay-open"):
        time.sleep(0.01)


@pytest.mark.promise("PYT-29")
def test_an_emulated_drive_is_read_as_a_file_is(tmp_path: Path, file: Path, content: bytes) -> None:
    with snap_support.drive(tmp_path, file) as uri:
        assert_reads(uri, content)


@pytest.mark.promise("PYT-29")
def test_options_that_only_files_have_are_refused_by_name(stripe: str) -> None:
    wrong = (({"direct": True}, "direct=True"), ({"path": "mapped"}, 'path="mapped"'), ({"prefer": "cpu"}, "prefer="))
    for options, named in wrong:
        with pytest.raises(RequestError) as refused:
            forebay.open(stripe, **options)  # type: ignore[arg-type]
        assert named in refused.value.asked and "without" in refused.value.next
    with pytest.raises(RequestError, match="moves no bytes"):
        forebay.open("nil:")


INTO_A_GPU = """
source = forebay.open(f"stripe:?chunk=8192&m={path}")
there = Array(SIZE)
size = source.size - source.size % 8192
assert source.read_into(there, 0, size) == size and there.bytes()[:size] == content[:size]
report = source.last_report
assert report.bytes == report.staged_bytes == size, report
here, part = bytearray(10), there.part(3, 5000)
assert source.read_ranges([(1, 10, here), (77, 5000, part), (2, 10, here)]) == 5020
assert there.bytes()[3:5003] == content[77:5077] and bytes(here) == content[2:12]
future = source.read_async(there, 1, size - 1)
future.wait_on_stream(0)
assert future.result() == size - 1 and there.bytes()[: size - 1] == content[1:size]
source.close()
there.free()
assert live()["live"]["registrations"] == 0 and live()["live"]["streams"] == 0, live()
"""


@pytest.mark.promise("PYT-29")
def test_a_stripe_is_read_into_a_gpu(scenario: Scenario) -> None:
    scenario(INTO_A_GPU)
