"""Disks of a test's own: loop devices, and what is mounted. They are gone after the test, however busy the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest

MIB = 1 << 20


def sh(*command: object) -> str:
    done = processes.run(list(command))
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def until_done(*command: object) -> str:
    """As `sh`, tried again while what it wants is in use: anything that looks at disks may hold one for a moment."""
    done: subprocess.CompletedProcess[str] | None = None

    def works() -> bool:
        nonlocal done
        done = processes.run(list(command))
        return done.returncode == 0 or not any(w in done.stderr for w in ("busy", "temporarily", "again"))

    processes.wait_until(works, f"{command} finds its disk free")
    assert done is not None and done.returncode == 0, f"{command}: {done and done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`loop(mib)` → a block device of that size, with random content."""
    devices: list[Path] = []

    def make(mib: int = 8, *options: str, sparse: bool = False) -> Path:
        backing = tmp_path / f"backing.{len(devices)}"
        backing.write_bytes(b"" if sparse else os.urandom(mib * MIB))
        os.truncate(backing, mib * MIB)
        done = processes.run(["losetup", "--find", "--show", *options, backing])
        for _ in range(20):  # another has taken the number that was free
            if "busy" not in done.stderr:
                break
            done = processes.run(["losetup", "--find", "--show", *options, backing])
        if done.returncode:
            pytest.skip(f"no loop device to be had: {done.stderr.strip()}")
        devices.append(Path(done.stdout.strip()))
        return devices[-1]

    yield make
    for device in devices:
        detach(device)


def detach(device: Path) -> None:
    """The kernel frees it only once nobody has it open."""
    reported = Path(f"/sys/block/{device.name}/loop/backing_file")
    backing = reported.read_text()
    until_done("losetup", "--detach", device)

    def gone() -> bool:
        try:
            return reported.read_text().split(" (deleted)")[0].strip() != backing.split(" (deleted)")[0].strip()
        except OSError:
            return True

    processes.wait_until(gone, f"{device} is free again")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`mounted(source, *options)` → where it is mounted until the test ends."""
    places: list[Path] = []

    def mount(source: object, *options: str) -> Path:
        place = tmp_path / f"mnt.{len(places)}"
        place.mkdir()
        done = processes.run(["mount", *options, source, place])
        if done.returncode:
            pytest.skip(f"can't mount here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in reversed(places):
        if os.path.ismount(place):
            until_done("umount", place)


@pytest.fixture
def ext4(loop: Callable[..., Path], mounted: Callable[..., Path]) -> Callable[..., tuple[Path, Path]]:
    """`ext4(mib)` → (device, directory) of a fresh file system."""

    def make(mib: int, *options: str) -> tuple[Path, Path]:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is absent; try: apt install e2fsprogs")
        device = loop(mib, sparse=True)
        sh("mkfs.ext4", "-q", "-F", "-m", "0", device)
        return device, mounted(device, *options)

    return make
