"""Another user: one without rights, who finds the command wherever the clone lies and has a folder of their own."""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

# Limits on threads and on locked memory are those of a user in all processes of the machine: each process of tests has
# a user to itself, from a range that nobody is given.
UID = 0x70000000 + os.getpid()
BECOME = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
# Read-only rights, with which an interpreter in root's own home can still be found.
FINDS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
# Where a folder of theirs may lie: TMPDIR may be below somebody's home.
SHARED = ("/var/tmp", "/tmp", "/dev/shm")


class OtherUser:
    """`run("bench", …)` as them. `shared` is a folder that they may read, `home` one that is theirs."""

    def __init__(self, shared: Path, interpreter: tuple[str, ...], environment: dict[str, str]) -> None:
        self.shared, self.home = shared, shared / "theirs"
        self.home.mkdir()
        os.chown(self.home, UID, UID)
        self._interpreter = interpreter
        self._environment = {**environment, "HOME": str(self.home), "TMPDIR": str(self.home)}

    def run(self, *arguments: object, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """The command in their folder. `before`: what it is started by, while still root."""
        command = [*before, *self._interpreter, "-m", "forebay.cli", *arguments]
        return processes.run(command, cwd=self.home, env={**os.environ, **self._environment})

    def readable(self, name: str, size: int) -> Path:
        """A file of random bytes that is root's, which they may read."""
        file = self.shared / name
        file.parent.mkdir(exist_ok=True)
        file.parent.chmod(0o755)
        file.write_bytes(os.urandom(size))
        file.chmod(0o644)
        return file


@pytest.fixture
def somebody() -> Iterator[OtherUser]:
    """Another user with a folder of their own, which is removed afterwards."""
    if shutil.which(BECOME[0]) is None:
        pytest.skip(f"{BECOME[0]} is absent; try: apt install util-linux")
    become = processes.run([*BECOME, "true"], cwd="/")
    if become.returncode != 0:
        pytest.skip(f"this root can't become another user: {become.stderr.strip()}")
    interpreter, environment = _interpreter()
    shared = _shared_folder()
    try:
        yield OtherUser(shared, interpreter, environment)
    finally:
        shutil.rmtree(shared)


def _shared_folder() -> Path:
    """A new folder of root's that everybody can reach and read."""
    tried = []
    for parent in SHARED:
        if not os.access(parent, os.W_OK):
            continue
        folder = Path(tempfile.mkdtemp(prefix="forebay-shared-", dir=parent))
        folder.chmod(0o755)
        reported = processes.run([*BECOME, "ls", folder], cwd="/")
        if reported.returncode == 0:
            return folder
        tried.append(reported.stderr.strip())
        folder.rmdir()
    pytest.fail(f"no folder that another user can reach: {'; '.join(tried)}")


@functools.cache
def _interpreter() -> tuple[tuple[str, ...], dict[str, str]]:
    """How they start an interpreter that has the package, and what its environment needs."""
    tried = []
    for prefix in ((), FINDS):
        reported = _try((*BECOME, *prefix, sys.executable), {}, os.__file__)
        if reported is None:
            return (*BECOME, *prefix, sys.executable), {}
        tried.append(reported)
    copied = _copy()
    environment = {"PYTHONPATH": str(copied / "packages"), "PYTHONDONTWRITEBYTECODE": "1"}
    base = getattr(sys, "_base_executable", None) or sys.executable
    if (reported := _try((*BECOME, base), environment, os.__file__)) is None:
        return (*BECOME, base), environment
    tried.append(reported)
    python, library = _copy_interpreter(copied / "python")
    environment |= {"PYTHONHOME": str(copied / "python"), "LD_LIBRARY_PATH": str(copied / "python/lib")}
    if (reported := _try((*BECOME, python), environment, f"{library}/os.py")) is None:
        return (*BECOME, str(python)), environment
    pytest.fail("no way to run the command as another user:\n" + "\n".join([*tried, reported]))


def _try(interpreter: tuple[str | Path, ...], environment: dict[str, str], library: str) -> str | None:
    """Why it doesn't start the command; None where it does, and with its own library: an interpreter that can't
    read that takes the one of another Python of the machine."""
    asked = "import forebay._core, forebay.cli, os; print(os.__file__)"
    done = processes.run([*interpreter, "-c", asked], cwd="/", env={**os.environ, **environment})
    if done.returncode == 0 and done.stdout.strip() == library:
        return None
    return f"{' '.join(map(str, interpreter))}: {done.stdout}{done.stderr[-500:]}"


def _copy() -> Path:
    """A folder with the package and what it imports, until the tests end."""
    shared = _shared_folder()
    atexit.register(shutil.rmtree, shared, ignore_errors=True)
    packages = shared / "packages"
    for name in _needed("forebay"):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            source, target = Path(str(distribution.locate_file(file))), packages / str(file)
            if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    _open_to_all(shared)
    return shared


def _needed(name: str) -> set[str]:
    """A distribution and all that it requires, without extras."""
    found, left = set(), [name]
    while left:
        one = left.pop()
        try:
            requires = importlib.metadata.distribution(one).requires or ()
        except importlib.metadata.PackageNotFoundError:  # of another platform or another version
            continue
        if one not in found:
            found.add(one)
            left += re.findall(r"^[\w.-]+", "\n".join(r for r in requires if "extra ==" not in r), re.M)
    return found


def _copy_interpreter(target: Path) -> tuple[Path, Path]:
    """The interpreter and its library, copied there."""
    real, standard = Path(os.path.realpath(sys.executable)), Path(os.__file__).parent
    python, library = target / "bin" / real.name, target / "lib" / standard.name
    python.parent.mkdir(parents=True)
    shutil.copy(real, python)
    skipped = shutil.ignore_patterns("__pycache__", "site-packages", "dist-packages", "test", "tests", "*.a")
    shutil.copytree(standard, library, ignore=skipped)
    for shared in (Path(sys.base_prefix) / "lib").glob("libpython*.so*"):
        shutil.copy(shared, target / "lib" / shared.name)
    _open_to_all(target)
    return python, library


def _open_to_all(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
