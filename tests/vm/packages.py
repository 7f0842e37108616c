"""Kernels of Debian's suites, fetched by apt as packages and unpacked below target/vm; nothing is installed.

A suite other than the system's own comes from the same mirror: its line is made at run time from what apt already
has, and lives in a private apt state. Versions move, so a kernel is named by its metapackage and found by Depends.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("FOREBAY_VM_CACHE") or ROOT / "target" / "vm")
SOURCES = Path("/etc/apt")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT_S = 300


class Unavailable(Exception):
    """This machine can't have what was asked for; the text says what and why."""


@dataclass(frozen=True)
class Release:
    """A kernel as Debian ships it: the suite, and the metapackage that names today's version."""

    name: str
    suite: str
    metapackage: str = "linux-image-cloud-amd64"
    # That its guests have besides those that every guest has.
    modules: tuple[str, ...] = ()


# By age. Authentication over fabrics came with 6.0 at the host, but Debian's 6.1 has it off.
RELEASES = {
    "stock": Release("stock", "bookworm"),
    "backports": Release("backports", "bookworm-backports"),
    "newer": Release("newer", "trixie-backports"),
    # Of the kernels here the one with soft RoCE, and with a file system of this machine's.
    "rdma": Release(
        "rdma",
        "bookworm-backports",
        "linux-image-amd64",
        ("rdma_rxe", "crc32_generic", "ib_uverbs", "rdma_ucm", "nvme-rdma", "nvmet-rdma", "9p", "9pnet_virtio"),
    ),
}
# Those that a test runs on unless it names others.
EVERYDAY = ("stock", "backports", "newer")
KERNEL_PACKAGE = re.compile(r"linux-(image|binary|modules|base)-[0-9a-z.+~-]+")


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Held by one process at a time, so that tests beside each other fetch a thing once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def mirrors(folder: Path = SOURCES) -> list[str]:
    """The addresses that apt takes Debian's main archive from, in both formats that it reads."""
    found: list[str] = []
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for entry in re.split(r"\n\s*\n", path.read_text()):
            lines = re.findall(r"^([\w-]+):[ \t]*(.*)$", entry, re.MULTILINE)
            fields = {key.lower(): value for key, value in lines}
            if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() != "no":
                found += fields.get("uris", "").split()
    for path in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]:
        if path.is_file():
            found += re.findall(r"^\s*deb\s+(?:\[[^]]*\]\s+)?(\S+)", path.read_text(), re.MULTILINE)
    main = [uri.rstrip("/") for uri in found if re.search(r"/debian/?$", uri)]
    return list(dict.fromkeys(main))


class Apt:
    """apt with a state of its own: the system's lists and packages are neither read nor changed.

    It knows one suite, or several: a package that more than one of them has is the first one's.
    """

    def __init__(self, suite: str, *more: str) -> None:
        self.suites = (suite, *more)
        self.suite = suite
        self.folder = CACHE / "apt" / "+".join(self.suites)

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        folder = self.folder
        options = {
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "Acquire::Languages": "none",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "",
        }
        if len(self.suites) > 1 and "update" not in arguments:
            options["APT::Default-Release"] = self.suite
        given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        try:
            done = subprocess.run(
                [program, *given, *arguments], capture_output=True, text=True, timeout=APT_S, cwd=cwd
            )
        except FileNotFoundError:
            raise Unavailable(f"{program}: not found; kernels come as Debian packages") from None
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{program} {' '.join(arguments)}: no answer in {APT_S} s") from None
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Unavailable(f"{program} {' '.join(arguments)} ({self.suite}): {' / '.join(said[-3:])}")
        return done.stdout

    def update(self) -> None:
        """Reads the suite's list of packages."""
        for part in ("lists/partial", "cache/archives/partial"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").write_text("")
        known = mirrors()
        if not known:
            raise Unavailable(f"{self.suite}: apt names no Debian mirror here")
        if not KEYRING.is_file():
            raise Unavailable(f"{self.suite}: no {KEYRING}; try: apt install debian-archive-keyring")
        lines = [f"deb [arch=amd64 signed-by={KEYRING}] {known[0]} {suite} main\n" for suite in self.suites]
        (self.folder / "sources.list").write_text("".join(lines))
        self._run("apt-get", "update", "-q", "--error-on=any")

    def depends(self, package: str) -> list[str]:
        """The packages that it Depends on, each by its first choice."""
        shown = self._run("apt-cache", "show", "--no-all-versions", package)
        line = re.search(r"^Depends: (.*)$", shown, re.MULTILINE)
        return [re.split(r"[ |(]", one.strip())[0] for one in line[1].split(",")] if line else []

    def closure(self, package: str) -> list[str]:
        """The package and all that it needs to be there, directly or not."""
        left_out = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
        shown = self._run("apt-cache", "depends", "--recurse", *left_out, package)
        return sorted({line for line in shown.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", line)})

    def kernel_packages(self, metapackage: str) -> list[str]:
        """Everything of one kernel that holds files, found from its metapackage."""
        found: list[str] = []
        waiting = [metapackage]
        while waiting:
            package = waiting.pop()
            if package not in found and KERNEL_PACKAGE.fullmatch(package):
                found.append(package)
                waiting += self.depends(package)
        return [p for p in found if re.search(r"-\d", p)]

    def download(self, packages: list[str], into: Path) -> None:
        """Fetches each and unpacks it there."""
        debs = self.folder / "debs"
        shutil.rmtree(debs, ignore_errors=True)
        debs.mkdir(parents=True)
        self._run("apt-get", "download", "-q", *packages, cwd=debs)
        for deb in sorted(debs.glob("*.deb")):
            done = subprocess.run(["dpkg", "-x", str(deb), str(into)], capture_output=True, text=True)
            if done.returncode:
                raise Unavailable(f"dpkg -x {deb.name}: {done.stderr.strip()}")
        shutil.rmtree(debs)


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel: its image, and the tree of modules of its version."""

    release: Release
    version: str
    image: Path
    modules: Path

    @property
    def numbers(self) -> tuple[int, int]:
        """(6, 12) of 6.12.95+deb12-cloud-amd64."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(re.match(r"\d+", minor)[0])  # type: ignore[index]


def kernel(name: str) -> Kernel:
    """The kernel of that row of RELEASES, fetched if target/vm doesn't have it. Raises Unavailable."""
    release = RELEASES[name]
    place = CACHE / "kernel" / name
    with locked(f"kernel-{name}"):
        if not (place / "complete").is_file():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            apt = Apt(release.suite)
            apt.update()
            apt.download(apt.kernel_packages(release.metapackage), place)
            _index(place)
            (place / "complete").touch()
    image, modules = _parts(place)
    return Kernel(release, modules.name, image, modules)


def _parts(place: Path) -> tuple[Path, Path]:
    images = sorted(place.glob("boot/vmlinuz-*")) + sorted(place.glob("usr/lib/modules/*/vmlinuz"))
    trees = [p.parent for p in sorted(place.glob("lib/modules/*/kernel"))]
    trees += [p.parent for p in sorted(place.glob("usr/lib/modules/*/kernel"))]
    if not images or not trees:
        held = sorted(str(p.relative_to(place)) for p in place.glob("*/*/*"))[:8]
        raise Unavailable(f"{place.name}: no kernel in what was fetched, which holds {held}")
    return images[0], trees[0]


def _index(place: Path) -> None:
    """modules.dep and its kin, which Debian makes when a kernel is installed."""
    _, tree = _parts(place)
    base = tree.parents[2]
    other = place / "usr/lib/modules" / tree.name
    # modules.builtin may lie in the base package under /usr, the modules beside it.
    if other != tree and other.is_dir():
        for file in other.glob("modules.*"):
            shutil.copy(file, tree / file.name)
    depmod = shutil.which("depmod", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not depmod:
        raise Unavailable("depmod: not found; try: apt install kmod")
    done = subprocess.run([depmod, "-b", str(base), tree.name], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"depmod {tree.name}: {done.stderr.strip()}")
