"""What `make dist` adds to the wheels and programs: Debian packages and the list of what is inside. And the forge's workflows."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def dist() -> Any:
    spec = importlib.util.spec_from_file_location("dist", ROOT / "deploy/dist.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # A library with assertions is large.
    module.COMPRESSION = "none"
    return module


def listed(package: Path) -> dict[str, str]:
    """Path → mode of each file of a Debian package."""
    out = subprocess.run(["dpkg-deb", "--contents", package], check=True, capture_output=True, text=True).stdout
    return {line.split()[5]: line.split()[0] for line in out.splitlines() if not line.startswith("d")}


@pytest.mark.long
def test_a_debian_package_has_the_commands_their_pages_and_completions(dist: Any, tmp_path: Path) -> None:
    wheels = list((ROOT / "target/tested/made/wheels").glob("*.whl"))
    if shutil.which("dpkg-deb") is None or not wheels:
        pytest.skip("needs dpkg-deb, and the wheel that make test builds")
    forebay = Path(sys.executable).with_name("forebay")
    package = dist.forebay_package(wheels[0], tmp_path, str(forebay))
    files = listed(package)
    assert {"./usr/bin/forebay", "./usr/bin/forebay-gdsio", "./usr/share/man/man1/forebay-bench.1"} < files.keys()
    assert {f"./{place}" for place in dist.SHELLS.values()} < files.keys()
    assert files["./usr/bin/forebay"] == "-rwxr-xr-x" and any(name.endswith("_core.abi3.so") for name in files)
    # What it unpacks runs, with this Python's libraries.
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "root"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "root/usr/lib/python3/dist-packages")}
    script = tmp_path / "root/usr/bin/forebay"
    done = subprocess.run([sys.executable, script, "--version"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.startswith("forebay "), done.stderr


def test_the_daemons_package_has_its_services(dist: Any, tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")
    (tmp_path / "forebayd-aarch64").write_bytes(b"\x7fELF")
    package = dist.daemon_package(tmp_path / "forebayd-aarch64", "0.1.0", tmp_path)
    assert package.name == "forebayd_0.1.0_arm64.deb"
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "root"], check=True)
    units = list((tmp_path / "root/usr/lib/systemd/system").glob("*.service"))
    assert {unit.name for unit in units} == {"forebay-serve.service", "forebay-snap.service"}
    for unit in units:
        started = re.findall(r"^Exec\w+=(\S+) ", unit.read_text(), re.M)
        assert "/usr/bin/forebayd" in started and not [path for path in started if path.startswith("/usr/local")]


@pytest.mark.long
@pytest.mark.promise("CMD-26")
def test_a_source_distribution_builds_with_its_own_lock_file(dist: Any, tmp_path: Path) -> None:
    maturin = Path(sys.executable).with_name("maturin")
    if not maturin.is_file() or shutil.which("cargo") is None:
        pytest.skip("needs maturin beside this Python, and cargo")
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=ROOT, check=True, capture_output=True)
    (source,) = tmp_path.glob("*.tar.gz")
    dist.trim_lock(source)
    subprocess.run(["tar", "-C", tmp_path, "-xf", source], check=True)
    (tree,) = (path for path in tmp_path.iterdir() if path.is_dir())
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tree / "python/forebay/__init__.py").is_file() and (tree / "crates/python/Cargo.toml").is_file()


def test_the_list_of_what_is_inside_names_every_crate_with_its_licence(dist: Any) -> None:
    document = dist.inventory("0.1.0")
    names = {package["name"] for package in document["packages"]}
    assert {"forebay-io", "forebay-serve", "io-uring", "pyo3", "rustls"} < names and "proptest" not in names
    assert all(package["licenseDeclared"] != "NOASSERTION" for package in document["packages"])
    foreign = [package for package in document["packages"] if not package["name"].startswith("forebay")]
    assert all(package["checksums"][0]["checksumValue"] for package in foreign)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_parses_and_runs_what_is_there(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    # YAML 1.1 reads `on` as true.
    assert workflow["name"] == path.stem and (True in workflow or "on" in workflow) and workflow["permissions"]
    makefile = (ROOT / "Makefile").read_text()
    for job in workflow["jobs"].values():
        assert "uses" in job or (job["runs-on"] and job["steps"])
        called = job.get("uses", "")
        assert not called or (ROOT / called).is_file()
        for step in job.get("steps", []):
            assert ("uses" in step) != ("run" in step)
            assert "@" in step.get("uses", "@")
            for target in re.findall(r"^\s*(?:sudo )?make ([\w-]+)", step.get("run", ""), re.M):
                assert re.search(rf"^{target}:", makefile, re.M), target


def test_what_is_released_was_installed_on_bare_systems_before() -> None:
    runs = [step.get("run", step.get("uses", "")) for step in yaml.safe_load(WORKFLOWS[-1].read_text())["jobs"]["build"]["steps"]]
    made, tried, kept = (next(n for n, run in enumerate(runs) if word in run) for word in ("make dist", "test-dist", "upload"))
    assert WORKFLOWS[-1].stem == "wheels" and made < tried < kept


def test_issue_forms_ask_for_the_doctors_view() -> None:
    for form in ("wrong", "missing"):
        body = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{form}.yml").read_text())["body"]
        assert any("forebay doctor --json" in part["attributes"]["label"] for part in body)
