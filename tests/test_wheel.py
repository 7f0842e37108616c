"""The wheel, as users get it: on every Python 3.10 to 3.13 that this machine has. Run by `make wheel`."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

import processes
import pytest

pytestmark = pytest.mark.wheel

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
# Over a slow network, on a busy machine.
INSTALL_S = 600


def interpreters() -> dict[str, str]:
    """version → interpreter: on PATH, else among pyenv's."""
    found: dict[str, str] = {}
    pyenv = sorted((Path.home() / ".pyenv/versions").glob("3.1[0-3]*/bin/python"), reverse=True)
    for candidate in [sys.executable, *(f"python{v}" for v in VERSIONS), *map(str, pyenv)]:
        try:
            asked = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
            reported = processes.run([candidate, "-c", asked])
        except OSError:
            continue
        version = reported.stdout.strip()
        if reported.returncode == 0 and version in VERSIONS:
            found.setdefault(version, candidate)
    return found


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest) -> Path:
    return request.config.getoption("--wheel").resolve(strict=True)


@pytest.mark.promise("CMD-5")
def test_wheel_is_manylinux_2_28_and_abi3(wheel: Path) -> None:
    assert re.fullmatch(r"forebay-[\w.]+-cp310-abi3-manylinux_2_28_(x86_64|aarch64)\.whl", wheel.name), (
        wheel.name
    )
    names = zipfile.ZipFile(wheel).namelist()
    assert {"forebay/_core.abi3.so", "forebay/_core.pyi", "forebay/py.typed"} <= set(names), names
    assert any(n.endswith("licenses/LICENSE") for n in names), "the licence isn't in the wheel"


@pytest.mark.promise("CMD-5")
def test_wheel_needs_no_newer_glibc(wheel: Path) -> None:
    """Read from the library itself, not from the name: the versions of glibc's symbols that it was linked against."""
    library = zipfile.ZipFile(wheel).read("forebay/_core.abi3.so")
    versions = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_(\d+\.\d+(?:\.\d+)?)\0", library)}
    assert versions and max(versions) <= (2, 28), max(versions)


def test_wheel_names_no_folder_of_the_building_machine(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for home in {Path(__file__).resolve().parent.parent, Path.home()} - {Path("/")}:
        named = [n for n in archive.namelist() if f"{home}/".encode() in archive.read(n)]
        assert not named, f"{named} name {home}"


@pytest.mark.promise("CMD-5", "ENG-10")
@pytest.mark.timeout(3 * INSTALL_S)
@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_runs(wheel: Path, version: str, tmp_path: Path) -> None:
    found = interpreters()
    if version not in found:
        pytest.skip(f"no Python {version} here")

    def run(*command: str | Path) -> str:
        done = processes.run([*command], within_s=INSTALL_S, cwd=tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    run(found[version], "-m", "venv", tmp_path / "venv")
    python, forebay = tmp_path / "venv/bin/python", tmp_path / "venv/bin/forebay"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    reported = run(python, "-c", "import forebay; print(forebay.__version__)")
    assert reported.strip() == wheel.name.split("-")[1]
    assert run(forebay, "--version").startswith("forebay ")
    assert run(tmp_path / "venv/bin/forebay-gdsio", "--help").startswith("Usage: forebay gdsio")
    record = json.loads(run(forebay, "bench", "nil:?size=64m", "--io-size", "4k", "--passes", "1", "--json"))
    assert record["schema"].startswith("forebay.run/") and record["result"]["ios"] > 0
