"""What a machine forbids or has decides which engine reads and in which pages: tried with what Linux itself does."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from properties import parametrized

MIB = 1 << 20
POOL = Path("/proc/sys/vm/nr_hugepages")
# Numbers of the three calls of io_uring; the same on every architecture.
IO_URING_FIRST, IO_URING_LAST = 425, 427
NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
# seccomp(2), which knows of filters for all threads of a process.
SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
SET_MODE_FILTER, TSYNC = 1, 1


IO_URING_ENTER = 426


def forbid_entering() -> None:
    """A profile that knows of the setup alone: io_uring_enter ends with EPERM."""
    forbid_io_uring(IO_URING_ENTER, IO_URING_ENTER)


def forbid_io_uring(first: int = IO_URING_FIRST, last: int = IO_URING_LAST, all_threads: bool = False) -> None:
    """What Docker's and Kubernetes' profiles do: each call of io_uring ends with EPERM, from here on."""
    load, at_least, greater, give = 0x20, 0x35, 0x25, 0x06
    program = [
        (load, 0, 0, 0),
        (at_least, 0, 2, first),
        (greater, 1, 0, last),
        (give, 0, 0, 0x00050000 | errno.EPERM),
        (give, 0, 0, 0x7FFF0000),
    ]
    words = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("words", ctypes.c_void_p))

    whole = Filter(len(program), ctypes.cast(words, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    if all_threads:
        refused = refused or libc.syscall(SECCOMP_CALL[os.uname().machine], SET_MODE_FILTER, TSYNC, ctypes.byref(whole))
    else:
        refused = refused or libc.prctl(SET_SECCOMP, FILTER, ctypes.byref(whole), 0, 0)
    if refused:
        raise OSError(ctypes.get_errno(), "a filter of system calls")


def measured(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def data(tmp_path) -> Path:
    file = tmp_path / "data"
    file.write_bytes(os.urandom(MIB) * 8)
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return file


QUICK = ("--duration", "0.2", "--warmup", "0", "--json", "-q")


@pytest.mark.long
@pytest.mark.promise("ENG-6")
def test_where_io_uring_is_forbidden_threads_write_and_read_the_same_bytes(forebay, tmp_path):
    file = tmp_path / "written"
    write = ("bench", file, "--file-size", "8m", "--op", "write", "--passes", "1", "--warmup", "0", "--verify", "--json", "-q")
    assert measured(forebay(*write, preexec_fn=forbid_io_uring))["path"]["engine"] == "pread"
    read = measured(forebay("bench", file, "--passes", "1", *QUICK[2:], "--verify", preexec_fn=forbid_io_uring))
    assert read["path"]["engine"] == "pread" and read["path"]["direct_bytes"] == read["result"]["bytes"]
    assert read["result"]["verified_bytes"] == 8 * MIB and not any(read["result"]["errors"].values())


def test_where_io_uring_may_be_set_up_and_not_entered_threads_read(forebay, data):
    read = measured(forebay("bench", data, "--passes", "1", *QUICK[2:], preexec_fn=forbid_entering))
    assert read["path"]["engine"] == "pread" and read["result"]["bytes"] == 8 * MIB
    refused = forebay("bench", data, "--engine", "uring", *QUICK, preexec_fn=forbid_entering)
    assert refused.returncode == 3 and "--engine pread" in refused.stderr


# A run whose process loads such a profile for all its threads, once a ring of theirs has answered more I/Os than are in
# flight: the kernel says of each how far it is. 77: no ring had anything to do.
FORBIDDEN_MEANWHILE = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_engine_choice import IO_URING_ENTER, forbid_io_uring
import forebay.early

def answered():
    for ring in Path("/proc/self/fdinfo").iterdir():
        try:
            said = ring.read_text()
        except OSError:
            continue  # closed since
        yield from (int(line.split()[1], 0) for line in said.splitlines() if line.startswith("CqTail:"))

def forbid():
    end = time.monotonic() + 60
    while max(answered(), default=0) < 200:
        if time.monotonic() > end:
            os._exit(77)
        time.sleep(0.001)
    forbid_io_uring(IO_URING_ENTER, IO_URING_ENTER, all_threads=True)

threading.Thread(target=forbid, daemon=True).start()
forebay.early.main()
"""


def forbidden_meanwhile(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = FORBIDDEN_MEANWHILE.format(tests=str(Path(__file__).parent))
    done = processes.run([sys.executable, "-c", program, *words, "--engine", "uring", "--json"], cwd=folder)
    if done.returncode in (3, 77):
        pytest.skip(f"io_uring has nothing to do here: {done.stderr}")
    assert done.returncode == 4 and "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.long
@pytest.mark.promise("ENG-6")
def test_where_io_uring_is_forbidden_meanwhile_the_run_ends_with_that_and_what_it_had(tmp_path):
    # Reads of what is in the page cache need no ring.
    writes = ("bench", "written", "--file-size", "8m", "--op", "write", "--duration", "60", "--warmup", "0", "-q")
    done = forbidden_meanwhile(tmp_path, *writes)
    result = json.loads(done.stdout)["result"]
    assert result["ios"] > 0, done.stderr
    assert result["errors"]["failed"] > 0 == result["errors"]["timed_out"]
    assert "io_uring_enter" in result["errors"]["examples"][0] and "Operation not permitted" in result["errors"]["examples"][0]


@pytest.mark.long
@pytest.mark.promise("ENG-6")
def test_where_io_uring_is_forbidden_meanwhile_a_checkpoint_ends_with_that_and_leaves_no_half(tmp_path):
    small = ("--workload", "llama3-8b", "--scale", "0.0001", "--between", "0", "--io-size", "4k")
    done = forbidden_meanwhile(tmp_path, "emulate", "checkpoint", "--dir", "c", *small)
    assert "the kernel refuses io_uring_enter" in done.stderr and "Operation not permitted" in done.stderr
    assert not [f for f in tmp_path.rglob("*.bin") if not (f.parent / ".forebay.json").exists()]


@pytest.mark.long
@pytest.mark.promise("ENG-6")
def test_where_io_uring_is_forbidden_meanwhile_an_emulated_run_ends_with_that(tmp_path):
    (tmp_path / "small.toml").write_text(
        'title = "small"\nformat = "npz"\nloader = "pytorch"\nrecord_bytes = 65536\nsamples_per_file = 1\nfiles = 60\n'
        "batch = 2\ncompute_s = 0.005\nread_threads = 2\nprefetch = 2\nfile_shuffle = true\nsample_shuffle = true\n"
        "epochs = 1000\nau_pct_min = 1\n"
    )
    of = ("--workload", "small.toml", "--data", "set")
    made = processes.run([*processes.FOREBAY, "emulate", "datagen", *of, "--quiet"], cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    done = forbidden_meanwhile(tmp_path, "emulate", "run", *of, "--io-size", "4k", "--cache", "bypass")
    assert "the kernel refuses io_uring_enter" in done.stderr and "Operation not permitted" in done.stderr


@pytest.mark.promise("ENG-6")
@pytest.mark.long
@pytest.mark.parametrize("verb", ["serve", "snap"])
def test_where_io_uring_is_forbidden_meanwhile_a_server_ends_with_that_and_its_client_too(verb, tmp_path):
    """Once it has answered some hundred reads; whoever reads from it doesn't wait for ever."""
    image, nqn = tmp_path / "image", "nqn.2026-01.io.example:filtered"
    image.write_bytes(bytes(8 * MIB))
    socket = tmp_path / "drive.sock"
    if verb == "serve":
        words = ["serve", str(image), "--nqn", nqn, "--listen", "127.0.0.1:0"]
    else:
        file = tmp_path / "snap.toml"
        file.write_text(
            f'rpc = "off"\n[[subsystems]]\nnqn = "{nqn}"\n[[subsystems.namespaces]]\nsource = "{image}"\n'
            f'[[subsystems.controllers]]\nsocket = "{socket}"\n'
        )
        words = ["snap", str(file)]
    program = FORBIDDEN_MEANWHILE.format(tests=str(Path(__file__).parent))
    server = processes.start([sys.executable, "-c", program, *words])
    assert server.stdout and server.stderr
    try:
        line = server.stdout.readline()
        found = re.search(r"127\.0\.0\.1:\d+", line) if verb == "serve" else socket
        assert found, line + server.stderr.read()
        uri = f"nvme+tcp://{found[0]}/{nqn}" if verb == "serve" else f"vfio-user:{socket}"
        read = ("bench", uri, "--io-size", "4k", "--duration", "100", "--warmup", "0", "--timeout", "5", "--json", "-q")
        client = processes.run([*processes.FOREBAY, *read], cwd=tmp_path)
        assert client.returncode in (3, 4) and "Traceback" not in client.stderr, client.stderr
        said = processes.finish(server)
    finally:
        processes.kill(server)
    if said.returncode == 77:
        pytest.skip("no ring of the server had anything to do here")
    assert said.returncode == 4, (said.returncode, said.stderr)
    assert "io_uring_enter" in said.stderr and "Traceback" not in said.stderr


@pytest.mark.promise("ENG-6")
def test_where_io_uring_is_forbidden_asking_for_it_is_refused_and_doctor_knows(forebay, data):
    refused = forebay("bench", data, "--engine", "uring", *QUICK, preexec_fn=forbid_io_uring)
    assert refused.returncode == 3 and "Operation not permitted" in refused.stderr and "--engine pread" in refused.stderr
    said = forebay("doctor", preexec_fn=forbid_io_uring).stdout
    assert "a container's seccomp profile forbids it" in said and "seccomp=unconfined" in said


@pytest.mark.promise("ENG-7")
def test_data_in_the_page_cache_is_read_where_it_lies(forebay, data):
    data.read_bytes()
    record = measured(forebay("bench", data, "--cache", "allow", *QUICK))
    if record["cache"]["resident_before"] < 1:
        pytest.skip("the kernel let go of eight MiB that were just read")
    assert record["path"]["engine"] in ("map", "inline")
    assert record["path"]["mapped_bytes"] == record["result"]["bytes"] > 0 or record["path"]["engine"] == "inline"
    assert "inline" in record["path"]["reason"]


@pytest.mark.promise("ENG-7")
def test_data_that_is_not_in_the_page_cache_is_left_to_io_uring(forebay, data):
    descriptor = os.open(data, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    record = measured(forebay("bench", data, "--cache", "allow", "--passes", "1", *QUICK[2:]))
    if record["cache"]["resident_before"] > 0:
        pytest.skip("this file system keeps what it is told to drop")
    from_disk = measured(forebay("bench", data, "--cache", "bypass", *QUICK))
    assert record["path"]["engine"] == from_disk["path"]["engine"] in ("uring", "pread")


@pytest.mark.promise("BEN-35")
@parametrized("engine", ["map", "inline"], kept=(1,))
def test_random_reads_bring_no_more_into_memory_than_they_ask_for(forebay, tmp_path, engine):
    """The kernel is told how a file is read: else it reads on behind each, and a mapping brings eight MiB at a time."""
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1 << 20) * 64)
    with data.open("rb") as file:
        os.fsync(file.fileno())
    flags = ("--op", "randread", "--io-size", "4k", "--cache", "drop", "--limit-ios", "128", "--engine", engine, "--json")
    reported = {hint: measured(forebay("bench", data, *flags, "--hint", hint)) for hint in ("auto", "none")}
    if reported["auto"]["cache"]["resident_before"] or reported["auto"]["cache"]["policy"] == "memory":
        pytest.skip("this file system keeps what it is told to drop")
    assert reported["auto"]["job"]["hint"] == "auto" and reported["auto"]["cache"]["resident_after"] < 0.02
    assert engine != "map" or reported["none"]["cache"]["resident_after"] > 0.1


@contextlib.contextmanager
def pool_held(how: int) -> Iterator[None]:
    """The machine has one pool: tests of another clone that change it, or want none, wait."""
    with POOL.open() as file:
        fcntl.flock(file, how)
        yield


@pytest.fixture
def pool() -> Iterator[None]:
    """32 huge pages of 2 MiB, and as many as before afterwards."""
    with pool_held(fcntl.LOCK_EX):
        before = POOL.read_text()
        POOL.write_text("32")
        try:
            if int(POOL.read_text()) < 32:
                pytest.skip("the memory is too scattered for 32 huge pages")
            yield
        finally:
            POOL.write_text(before)


def slots_of(done) -> str:
    return measured(done)["path"]["slot_pages"]


@pytest.mark.promise("ENG-5")
@pytest.mark.root
def test_slots_lie_in_huge_pages_of_the_pool_and_give_them_back(forebay, data, pool):
    for asked in ("hugetlb", "auto"):
        until = time.monotonic() + 60  # other runs of this machine may have taken them: `hugetlb` then says so, `auto` goes on
        while (done := forebay("bench", data, "--pages", asked, *QUICK)).returncode == 3 or slots_of(done) != "hugetlb":
            assert time.monotonic() < until, done.stderr
        assert measured(done)["path"]["slot_bytes"] > 0
    free = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    until = time.monotonic() + 60
    while int(free.read_text()) < 32 and time.monotonic() < until:
        time.sleep(0.1)
    assert int(free.read_text()) == 32


@pytest.mark.promise("ENG-5")
def test_without_a_pool_huge_pages_are_refused_by_name(forebay, data):
    with pool_held(fcntl.LOCK_SH):
        if POOL.read_text().strip() != "0":
            pytest.skip("this machine has a pool of huge pages")
        refused = forebay("bench", data, "--pages", "hugetlb", *QUICK)
    assert refused.returncode == 3 and "vm.nr_hugepages" in refused.stderr and "--pages thp" in refused.stderr
