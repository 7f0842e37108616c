"""Faults that need a disk of one's own: full, read-only, mounted, of another block size, gone; and other users' limits.

Each disk is a loop device over a file in the test's directory; nothing else is touched.
"""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
from disks_support import ext4, loop, mounted, sh  # noqa: F401
from faults_support import (  # noqa: F401
    BENCH,
    LONG,
    LONG_S,
    MIB,
    Done,
    Run,
    check_manners,
    content,
    made,
    refused,
    rescued,
    run,
    started,
    wait_for_progress,
)
from other_user import OtherUser, somebody  # noqa: F401
from properties import parametrized

pytestmark = pytest.mark.root


# Devices --------------------------------------------------------------------------------------------------


@pytest.mark.promise("FLT-11")
@parametrized("op", ["write", "randwrite"], kept=(1,))
def test_a_device_is_not_written_to_unless_it_is_named(run: Run, loop: Callable[..., Path], op: str) -> None:
    device, other = loop(), loop()
    before = device.read_bytes()
    assert run(*BENCH, device).returncode == 0, "reading a device needs no name"
    for flags in ((), ("--overwrite", device), ("--overwrite-device", other)):
        done = run(*BENCH, device, "--op", op, *flags)
        refused(done, 2, f"write to {device}", "it is a block device", f"--overwrite-device {device}")
    stripe = f"stripe:?chunk=64k&m={other}&m={device}"
    refused(run(*BENCH, stripe, "--op", op, "--overwrite-device", other), 2, f"write to {device}")
    assert device.read_bytes() == before
    kept = other.read_bytes()
    done = run(*BENCH, device, "--op", op, "--overwrite-device", device)
    assert done.returncode == 0, done.stderr
    assert device.read_bytes() != before and other.read_bytes() == kept


@pytest.mark.promise("FLT-11")
def test_a_mounted_device_is_refused_even_when_it_is_named(
    run: Run, ext4: Callable[..., tuple[Path, Path]]
) -> None:
    device, place = ext4(16)
    (place / "precious").write_text("mine")
    done = run(*BENCH, device, "--op", "write", "--overwrite-device", device)
    refused(done, 2, f"write to {device}", f"it is mounted at {place}")
    sh("umount", place)
    sh("mount", device, place)
    assert (place / "precious").read_text() == "mine"


@pytest.mark.promise("FLT-15")
@parametrized("cache", ["allow", "bypass"], kept=(1,))
def test_nobody_mounts_a_device_while_it_is_written_to(
    run: Run, loop: Callable[..., Path], tmp_path: Path, cache: str
) -> None:
    device = loop(8)
    job = ("--op", "write", "--overwrite-device", device, "--cache", cache, "--duration", 3600)
    command = [*processes.FOREBAY, "bench", device, *job]
    with processes.running(command, cwd=tmp_path) as under_way:
        processes.wait_until(lambda: processes.has_workers(under_way), "it writes", under_way)
        with pytest.raises(OSError, match="busy"):  # as mount(2) does
            os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
        refused(run(*BENCH, device, "--op", "write", "--overwrite-device", device), 2, "the kernel keeps it")
    done = run(*BENCH, device, "--op", "write", "--overwrite-device", device)
    assert done.returncode == 0, f"what just ended is waited for: {done.stderr}"


@pytest.mark.promise("FLT-15")
def test_one_device_under_two_names_is_refused(run: Run, loop: Callable[..., Path], tmp_path: Path) -> None:
    device, twin = loop(8), tmp_path / "twin"
    before = device.read_bytes()
    os.mknod(twin, 0o600 | stat.S_IFBLK, device.stat().st_rdev)
    named = ("--overwrite-device", device, "--overwrite-device", twin)
    done = run(*BENCH, f"stripe:?chunk=64k&m={device}&m={twin}", "--op", "write", *named)
    refused(done, 2, f"write to {twin}", f"it is the same as {device}")
    assert device.read_bytes() == before


def test_the_device_below_a_used_one_is_refused(run: Run, loop: Callable[..., Path]) -> None:
    device = loop(16)
    sh("mkswap", device)
    on = processes.run(["swapon", device])
    if on.returncode:
        pytest.skip(f"no swap on a loop device here: {on.stderr.strip()}")
    try:
        refused(run(*BENCH, device, "--op", "write", "--overwrite-device", device), 2, "used as swap")
    finally:
        sh("swapoff", device)


def test_a_device_is_read_past_the_page_cache(run: Run, loop: Callable[..., Path]) -> None:
    done = run(*BENCH, loop(), "--json")
    record = json.loads(done.stdout)
    assert record["job"]["direct"] and record["path"]["direct_bytes"] == record["result"]["bytes"]
    assert record["cache"]["policy"] == "bypass"


@pytest.mark.promise("FLT-1")
def test_a_device_says_its_own_block_size(run: Run, loop: Callable[..., Path]) -> None:
    device = loop(8, "--sector-size", "4096")
    refused(run(*BENCH, device, "--io-size", "512"), 2, "--io-size 512", "multiple of 4096 bytes")
    refused(run(*BENCH, device, "--start", "512"), 2, "--start 512", "multiple of 4096 bytes")
    other = loop(8, "--sector-size", "4096")
    for path in ("host", "bounce"):
        stripe = f"stripe:?chunk=512&m={device}&m={other}"
        refused(run(*BENCH, stripe, "--path", path), 2, "chunk", "multiple of 4096 bytes")
    assert run(*BENCH, f"stripe:?chunk=4k&m={device}&m={other}").returncode == 0


def test_more_than_the_device_holds_is_refused(run: Run, loop: Callable[..., Path]) -> None:
    device = loop(8)
    refused(run(*BENCH, device, "--file-size", "9m"), 2, "--file-size 9m", f"{8 * MIB} bytes")


@pytest.mark.promise("FLT-4")
def test_a_device_that_shrinks_under_a_read_fails_the_run_and_keeps_the_record(
    run: Run, loop: Callable[..., Path], tmp_path: Path
) -> None:
    device = loop(8)
    with started(tmp_path, *LONG, device, "--interval", "100") as under_way:
        wait_for_progress(under_way)
        os.truncate(tmp_path / "backing.0", MIB)
        sh("losetup", "--set-capacity", device)
    assert under_way.returncode == 4, under_way.stderr
    assert "I/Os failed" in under_way.stderr
    assert rescued(tmp_path)["result"]["bytes"] > 0


@pytest.mark.promise("FLT-4")
@pytest.mark.parametrize("path", ["host", "bounce"])
@pytest.mark.parametrize("cache", ["bypass", "allow"])
def test_an_error_of_a_real_device_is_named_counted_and_the_rest_kept(
    run: Run, loop: Callable[..., Path], tmp_path: Path, path: str, cache: str
) -> None:
    """A loop device whose file is shorter than the device: the kernel fails reads beyond it with EIO."""
    device = loop(8)
    os.truncate(tmp_path / "backing.0", 2 * MIB)
    done = run(*BENCH, device, "--path", path, "--cache", cache, "--json")
    refused(done, 4, "I/Os failed", f"of {device}", "Input/output error (os error 5)")
    result = json.loads(done.stdout)["result"]
    assert result["errors"]["failed"] == 96 and result["bytes"] == 2 * MIB


@pytest.mark.promise("FLT-4")
def test_an_error_of_one_drive_of_a_stripe_names_the_drive(run: Run, loop: Callable[..., Path], tmp_path: Path) -> None:
    good, broken = loop(4), loop(4)
    os.truncate(tmp_path / "backing.1", MIB)
    done = run(*BENCH, f"stripe:?chunk=64k&m={good}&m={broken}", "--json")
    refused(done, 4, "at 2162688 of stripe:", f"{broken}: Input/output error (os error 5)")
    assert f": {good}: " not in done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["errors"]["failed"] == 48 and result["bytes"] == 5 * MIB


# File systems ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_files_that_do_not_fit_are_refused_and_none_is_left(
    run: Run, ext4: Callable[..., tuple[Path, Path]], mounted: Callable[..., Path], kind: str
) -> None:
    place = ext4(96)[1] if kind == "ext4" else mounted("none", "-t", "tmpfs", "-o", "size=96m")
    before = content(place)
    for flags in (("--create", "200m"), ("--create", "80m"), ("--op", "write", "200m")):
        done = run(*BENCH, place, *flags[:-1], "--file-size", flags[-1])
        refused(done, 3, "of files in", "MiB are free there", "64 MiB must stay free")
        assert content(place) == before
    done = run(*BENCH, place, "--create", "--file-size", "8m")
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("FLT-2")
@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_disk_that_fills_up_under_a_write_ends_the_run_and_keeps_the_record(
    run: Run, ext4: Callable[..., tuple[Path, Path]], mounted: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    place = ext4(48)[1] if kind == "ext4" else mounted("none", "-t", "tmpfs", "-o", "size=48m")
    holes = place / "holes"
    with holes.open("wb") as file:
        file.truncate(512 * MIB)
    flags = ("--op", "write", "--overwrite", holes, "--io-size", "1m", "--json")
    done = run(*LONG, holes, *flags)
    refused(done, 4, "I/Os failed", "No space left on device", "what was measured is in")
    result = json.loads(done.stdout)["result"]
    assert result["bytes"] > 0 and result["seconds"] < LONG_S / 2, "a full disk ends the run"
    assert rescued(tmp_path)["result"]["bytes"] == result["bytes"]
    assert holes.stat().st_size == 512 * MIB


@pytest.mark.promise("FLT-2")
def test_a_read_only_file_system_is_named_and_can_be_read(
    run: Run, ext4: Callable[..., tuple[Path, Path]]
) -> None:
    _, place = ext4(48)
    file = made(place / "f", MIB)
    sh("mount", "-o", "remount,ro", place)
    assert run(*BENCH, file).returncode == 0
    refused(run(*BENCH, place, "--create", "--file-size", "1m", "--files", "2"), 2, "mounted read-only", "writable")
    refused(run(*BENCH, place / "new", "--op", "write", "--file-size", "1m"), 2, "mounted read-only")
    done = run(*BENCH, file, "--op", "write", "--overwrite", file)
    refused(done, 2, "mounted read-only")
    refused(run("files", place, "--files", "2", "--file-size", "4k"), 2, "is read-only", "findmnt -T")
    assert sorted(p.name for p in place.iterdir()) == ["f", "lost+found"]


def test_a_file_with_holes_is_warned_about(run: Run, ext4: Callable[..., tuple[Path, Path]]) -> None:
    _, place = ext4(48)
    with (place / "holes").open("wb") as file:
        file.truncate(16 * MIB)
    for _ in range(20):  # until the device's meter got a processor in time
        done = run(*BENCH, place / "holes", "--json")
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        if record["cache"]["device_bytes"] is not None:
            break
    warnings = {w["id"]: w for w in record["warnings"]}
    assert "holes" in warnings["cached"]["next"], warnings


@pytest.mark.promise("FLT-31")
def test_direct_io_that_the_file_system_ignores_is_refused(
    run: Run, ext4: Callable[..., tuple[Path, Path]]
) -> None:
    """ext4 with data=journal takes O_DIRECT and goes through the page cache: only statx tells."""
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("statx tells nothing of direct I/O before Linux 6.1")
    _, place = ext4(64, "-o", "data=journal")
    file = made(place / "f", MIB)
    for flags in ((), ("--require-direct",), ("--op", "write", "--overwrite", file)):
        done = run(*BENCH, file, *flags)
        refused(done, 3, f"O_DIRECT on {file}", "statx", "data=journal", "--buffered")
    done = run(*BENCH, file, "--buffered", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["job"]["direct"] is False, done.stderr
    for source in (file, place):
        checks = json.loads(run("doctor", source, "--json").stdout)["checks"]
        direct = next(c for c in checks if c["id"] == f"direct {source}")
        assert direct["state"] == "missing" and "statx" in direct["found"], direct


# Users and limits -----------------------------------------------------------------------------------------


def as_them(them: OtherUser, *arguments: object, before: tuple[str, ...] = ()) -> Done:
    done = them.run(*arguments, before=before)
    check_manners(done)
    return done


@pytest.mark.long
@pytest.mark.promise("FLT-2")
def test_a_directory_without_permission_is_named(somebody: OtherUser) -> None:
    file = somebody.readable("closed/f", MIB)
    closed = file.parent
    before = content(closed)
    done = as_them(somebody, *BENCH, closed, "--create", "--file-size", "1m", "--files", "2")
    refused(done, 2, str(closed), "permission denied", "ls -ld")
    done = as_them(somebody, *BENCH, closed / "new", "--op", "write", "--file-size", "1m")
    refused(done, 2, str(closed), "permission denied")
    done = as_them(somebody, *BENCH, file, "--op", "write", "--overwrite", file)
    refused(done, 2, str(closed), "permission denied")
    done = as_them(somebody, "bench", "nil:", "-o", closed / "run.json")
    refused(done, 2, f"-o {closed}/run.json", "can't be written")
    assert content(closed) == before
    assert as_them(somebody, *BENCH, file).returncode == 0


@pytest.mark.promise("FLT-7")
def test_too_little_locked_memory_is_warned_about_and_the_run_goes_on(somebody: OtherUser) -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is absent; try: apt install util-linux")
    file = somebody.readable("f", 8 * MIB)
    flags = (*BENCH, file, "--depth", "16", "--engine", "uring", "--json")
    done = as_them(somebody, *flags, before=("prlimit", "--memlock=65536:65536"))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    warnings = {w["id"]: w["text"] + w["next"] for w in record["warnings"]}
    assert "ulimit -l" in warnings["locked_memory"], warnings
    assert record["result"]["bytes"] == 8 * MIB and "fixed_buffers" not in record["path"]["engine_features"]


@pytest.mark.long
@pytest.mark.promise("FLT-7")
def test_workers_that_cannot_all_have_a_ring_read_by_threads_or_name_the_limit(somebody: OtherUser) -> None:
    """Kernels that charge rings have room for eight of the smallest in 64 KiB."""
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is absent; try: apt install util-linux")
    file = somebody.readable("f", 8 * MIB)
    flags = (*BENCH, file, "--workers", "16", "--io-size", "4k", "--json")
    limited = ("prlimit", "--memlock=65536:65536")
    done = as_them(somebody, *flags, before=limited)
    assert done.returncode == 0, done.stderr
    path = json.loads(done.stdout)["path"]
    if path["engine"] != "pread":
        pytest.skip(f"this kernel charges nobody for rings (engine {path['engine']})")
    assert "ulimit -l" in path["reason"], path
    done = as_them(somebody, *flags, "--engine", "uring", before=limited)
    refused(done, 3, "64 KiB", "ulimit -l unlimited", "LimitMEMLOCK=infinity")


@pytest.mark.long
def test_too_few_open_files_are_named(tmp_path: Path, run: Run) -> None:
    done = run(*BENCH, ".", "--create", "--files", "200", "--file-size", "64k")
    assert done.returncode == 0, done.stderr
    command = ["prlimit", "--nofile=64:64", *processes.FOREBAY, *BENCH, ".", "--files", "200"]
    done = processes.run(command, cwd=tmp_path)
    check_manners(done)
    refused(done, 3, "too many open files", "ulimit -n")
