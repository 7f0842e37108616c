"""What `make forebayd` built: which glibc it needs, what it is linked to, what it holds, and that it serves. Reads ELF
with `readelf`."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
BUILT = sorted(DIST.glob("forebayd-*"))
# Part of glibc since 2.34, but still to be had by these names.
OF_GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1"}

Forebay = Callable[..., subprocess.CompletedProcess[str]]


def elf(file: Path, *flags: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf (binutils)")
    return subprocess.run(["readelf", "-W", *flags, str(file)], capture_output=True, text=True, check=True).stdout


def only_if_built() -> None:
    if not BUILT:
        pytest.skip("nothing in dist/; try: make forebayd")


@pytest.mark.promise("SNP-6")
def test_it_needs_glibc_2_28_and_nothing_else() -> None:
    only_if_built()
    for file in BUILT:
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", elf(file, "--version-info"))}
        assert versions and max(versions) <= (2, 28), f"{file.name}: {max(versions)}"
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", elf(file, "-d")))
        assert {n for n in needed if not n.startswith("ld-linux")} <= OF_GLIBC, f"{file.name}: {needed}"
        machine = re.search(r"Machine:\s+(.*)", elf(file, "-h"))
        assert machine and {"x86_64": "X86-64", "aarch64": "AArch64"}[file.name.removeprefix("forebayd-")] in machine[1]
        # dlopen works: it is no static program.
        assert "dlopen" in elf(file, "--dyn-syms")


@pytest.mark.promise("SNP-6")
def test_it_has_no_debugging_information_and_no_path_of_where_it_was_built() -> None:
    only_if_built()
    for file in BUILT:
        assert ".debug_" not in elf(file, "-S"), file.name
        content = file.read_bytes()
        assert not [place for place in (ROOT, Path.home() / ".cargo") if os.fsencode(f"{place}/") in content], file.name


@pytest.fixture
def mine() -> str:
    """The one for this machine."""
    only_if_built()
    mine = DIST / f"forebayd-{platform.machine()}"
    if not os.access(mine, os.X_OK):
        pytest.skip(f"no build for {platform.machine()}")
    return str(mine)


@pytest.mark.promise("SNP-6")
def test_it_runs_here(mine: str) -> None:
    done = subprocess.run([mine, "--version"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and done.stdout.startswith("forebayd ")


def ended(process: subprocess.Popen[str]) -> str:
    """The rest of what it says, once it has ended as it was asked to."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


@pytest.mark.promise("SNP-6")
def test_it_serves_and_stands_on_what_it_serves(mine: str, forebay: Forebay, tmp_path: Path) -> None:
    """Its gateway over its own target, read by the command from end to end."""
    (tmp_path / "content").write_bytes(bytes(range(256)) * 16384)
    nqn, drive = "nqn.2026-01.io.example:built", tmp_path / "drive"

    def started(*words: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen([mine, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout
        return process, process.stdout.readline()

    target, line = started("serve", str(tmp_path / "content"), "--nqn", nqn, "--listen", "127.0.0.1:0", "--log", "off")
    try:
        source = f"nvme+tcp://{line.split()[2]}/{nqn}"
        (tmp_path / "snap.toml").write_text(
            f'rpc = "off"\n[[subsystems]]\nnqn = "{nqn}"\n[[subsystems.namespaces]]\nsource = "{source}"\n'
            f'[[subsystems.controllers]]\nsocket = "{drive}"\n'
        )
        gateway, line = started("snap", str(tmp_path / "snap.toml"), "--keep", "--log", "off")
        try:
            assert line.startswith("ready: 1 controller"), line
            read = forebay("bench", f"vfio-user:{drive}", "--op", "read", "--io-size", "64k", "--passes", "1", "--json")
            assert read.returncode == 0, read.stderr
            assert json.loads(read.stdout)["result"]["bytes"] == 4 << 20
            assert "4 MiB read" in ended(gateway)
        finally:
            gateway.kill()
        assert " read, 0 B written" in ended(target)
    finally:
        target.kill()
