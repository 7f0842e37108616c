"""The wheel, as users get it: on every Python 3.10 to 3.13 that this machine has. Run by `make wheel`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheel

VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def interpreters() -> dict[str, str]:
    """version → interpreter: on PATH, else among pyenv's."""
    found: dict[str, str] = {}
    pyenv = sorted((Path.home() / ".pyenv/versions").glob("3.1[0-3]*/bin/python"), reverse=True)
    for candidate in [sys.executable, *(f"python{v}" for v in VERSIONS), *map(str, pyenv)]:
        try:
            asked = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
            told = subprocess.run([candidate, "-c", asked], capture_output=True, text=True, timeout=30)
        except OSError:
            continue
        version = told.stdout.strip()
        if told.returncode == 0 and version in VERSIONS:
            found.setdefault(version, candidate)
    return found


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest) -> Path:
    return request.config.getoption("--wheel").resolve(strict=True)


def test_wheel_is_manylinux_2_28_and_abi3(wheel: Path) -> None:
    assert re.fullmatch(r"forebay-[\w.]+-cp310-abi3-manylinux_2_28_(x86_64|aarch64)\.whl", wheel.name), (
        wheel.name
    )
    names = zipfile.ZipFile(wheel).namelist()
    assert {"forebay/_core.abi3.so", "forebay/_core.pyi", "forebay/py.typed"} <= set(names), names
    assert any(n.endswith("licenses/LICENSE") for n in names), "the licence isn't in the wheel"


def test_wheel_needs_no_newer_glibc(wheel: Path) -> None:
    """Read from the library itself, not from the name: the versions of glibc's symbols that it was linked against."""
    library = zipfile.ZipFile(wheel).read("forebay/_core.abi3.so")
    versions = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_(\d+\.\d+(?:\.\d+)?)\0", library)}
    assert versions and max(versions) <= (2, 28), max(versions)


def test_wheel_names_no_folder_of_the_building_machine(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for home in (Path(__file__).resolve().parent.parent, Path.home()):
        named = [n for n in archive.namelist() if f"{home}/".encode() in archive.read(n)]
        assert not named, f"{named} name {home}"


@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_runs(wheel: Path, version: str, tmp_path: Path) -> None:
    found = interpreters()
    if version not in found:
        pytest.skip(f"no Python {version} here")
    subprocess.run([found[version], "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, timeout=240)

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    forebay = str(tmp_path / "venv/bin/forebay")
    assert (
        run(str(python), "-c", "import forebay; print(forebay.__version__)").strip()
        == wheel.name.split("-")[1]
    )
    assert run(forebay, "--version").startswith("forebay ")
    record = json.loads(run(forebay, "bench", "nil:", "--io-size", "4k", "--duration", "0.2", "--json"))
    assert record["schema"].startswith("forebay.run/") and record["result"]["ios"] > 0
