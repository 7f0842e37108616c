"""Installs what `make dist` made on bare Debian 12 and 13, without a compiler, and runs it there.

    sudo python deploy/test_dist.py dist target/dist-roots

`make test-dist` runs it. Each artefact is installed on a root file system of its own, made by mmdebstrap from the
mirror that apt uses here; archives of the roots, packages and wheels of dependencies are kept in the second folder.
What runs there has namespaces of its own for mounts and processes, so that both end with it, however it ends.
Artefacts for another processor are unpacked and run by qemu-user program by program: the kernel isn't told of it, so a
program can't start another there.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "tests")]
from dist import DEBIAN  # noqa: E402, I001
from vm.packages import mirrors  # noqa: E402

# What is packed: a commit that changes nothing of it leaves dist/ as new as it was.
PACKED = ("crates", "python", "Cargo.toml", "Cargo.lock", "pyproject.toml", "README.md", "LICENSE")
PACKAGED = ("deploy/dist.py", "deploy/*.service", "deploy/*.toml")
CANNOT = 3
LOG_LINES = 12
ROW = "{:<18}  {:<26}  {}"
# Wheels of dependencies are chosen for the roots, not for this machine; all of these run there.
MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
COMPILERS = "gcc cc g++ ld rustc cargo"


@dataclass(frozen=True)
class System:
    """A Debian release, and its Python's version."""

    name: str
    suite: str
    python: str


@dataclass(frozen=True)
class Artefact:
    """A kind of file in dist/, with the commands that install and run one on a bare system, there `/dist/…` ($file)."""

    name: str
    pattern: str
    script: str
    # Where the processor is another: commands out of the root, in which the function `qemu` runs a program of it.
    foreign: str


# This machine's first.
ARCHS = sorted(DEBIAN, key=lambda arch: arch != platform.machine())
SYSTEMS = (System("Debian 12", "bookworm", "3.11"), System("Debian 13", "trixie", "3.13"))
INSTALL = "apt-get update -q\napt-get install -y -q --no-install-recommends"
DEMO = "forebay --version\nforebay demo --quick --dir /data --out /report\nls /report/*.html"
IMPORT = "qemu /usr/bin/python3 -c 'import forebay._core'"
ARTEFACTS = (
    Artefact(
        "wheel",
        "forebay-*_{arch}.whl",
        f"{INSTALL} python3-venv\npython3 -m venv /opt/forebay\nPATH=/opt/forebay/bin:$PATH\n"
        f'pip install -q --no-index --find-links /wheels "$file[report]"\n{DEMO}',
        f"export PYTHONPATH=/opt/forebay\n{IMPORT}\nqemu /usr/bin/python3 /opt/forebay/bin/forebay --version",
    ),
    Artefact(
        "Debian package of forebay",
        "forebay_*_{debian}.deb",
        f"{INSTALL} $file\n{DEMO}\nls /usr/share/man/man1/forebay-bench.1 /usr/share/bash-completion/completions/forebay\n"
        # Nothing stays behind, such as what Python compiled.
        "apt-get purge -y -q forebay\n[ ! -e /usr/lib/python3/dist-packages/forebay ]",
        f"{IMPORT}\nqemu /usr/bin/python3 /usr/bin/forebay --version",
    ),
    Artefact(
        "Debian package of forebayd",
        "forebayd_*_{debian}.deb",
        f"{INSTALL} $file\nforebayd --version\n"
        "ls /usr/lib/systemd/system/forebay-serve.service /usr/share/doc/forebayd/examples/serve.toml",
        "qemu /usr/bin/forebayd --version",
    ),
    Artefact("forebayd", "forebayd-{arch}", "$file --version", "qemu $file --version"),
)

# What a root sees of this machine, mounted in namespaces that end with the process.
MOUNTS = """
cd "$root"
mkdir -p proc sys dev/shm dev/pts dist wheels var/cache/apt/archives
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
for device in null zero full random urandom; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -sf pts/ptmx dev/ptmx
mount -o bind,ro "$dist" dist
mount -o bind,ro "$wheels" wheels
mount --bind "$packages" var/cache/apt/archives
"""
INSIDE = f"""
for name in {COMPILERS}; do ! command -v $name || {{ echo "$name is here: the system is not bare"; exit 1; }}; done
"""


class Cannot(Exception):
    """What this machine lacks, in one line."""


@dataclass
class Folders:
    """Where everything lies: dist/, and the folder of roots, packages and logs."""

    dist: Path
    kept: Path

    def folder(self, name: str) -> Path:
        path = self.kept / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, system: System, artefact: Artefact, arch: str) -> Path:
        return self.folder("logs") / f"{system.suite}-{arch}-{artefact.name.replace(' ', '-')}.txt"


def run(command: Sequence[str | Path], log: Path) -> bool:
    """Runs it with its output at the end of `log`, and says whether it succeeded."""
    with log.open("ab") as out:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT).returncode == 0


def git(*words: str) -> str:
    """What git says, as root of a clone that is another's too; nothing where there is no clone."""
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True).stdout if shutil.which("git") else ""


def end_of(log: Path) -> str:
    return "".join(f"    {line}\n" for line in log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def qemu(arch: str) -> str | None:
    """The emulator of another processor's programs, which must need no library where it runs; empty for this one's."""
    if arch == platform.machine():
        return ""
    return shutil.which(f"qemu-{arch}-static")


def root_archive(at: Folders, system: System, arch: str) -> Path:
    """The archive of a bare root; of another processor's, packages are unpacked and not set up, with Python and ours need."""
    how = ["--variant=minbase", "--include=ca-certificates"]
    if qemu(arch):
        # base-files has the links /lib and /bin.
        packages = "base-files,python3,python3-click,python3-jinja2,python3-numpy,python3-rich"
        how = ["--variant=extract", f"--architectures={DEBIAN[arch]}", f"--include={packages}"]
    # Made in another way it is another.
    archive = at.kept / f"{system.suite}-{DEBIAN[arch]}-{hashlib.sha256(repr(how).encode()).hexdigest()[:8]}.tar"
    if archive.is_file():
        return archive
    print(f"makes a bare {system.name} for {arch}", flush=True)
    made, log = archive.with_suffix(".new.tar"), at.folder("logs") / f"{archive.stem}.txt"
    log.unlink(missing_ok=True)
    # Of several the first; where apt has none of Debian's, mmdebstrap's own.
    if not run(["mmdebstrap", "--quiet", *how, system.suite, made, *mirrors()[:1]], log):
        raise Cannot(f"mmdebstrap can't make a bare {system.name} for {arch}; {log} ends:\n{end_of(log)}")
    made.rename(archive)
    return archive


def dependencies(at: Folders, system: System, arch: str, wheel: Path) -> Path:
    """A folder with the wheels that this one needs, from the index that pip is configured for."""
    wheels, log = at.folder(f"wheels-{system.suite}-{arch}"), at.folder("logs") / f"pip-{system.suite}-{arch}.txt"
    log.unlink(missing_ok=True)
    platforms = [f"--platform={name}_{arch}" for name in MANYLINUX]
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", f"--python-version={system.python}"]
    if not run([*command, *platforms, "--dest", wheels, f"{wheel}[report]"], log):
        raise Cannot(f"pip can't fetch what the wheel needs; {log} ends:\n{end_of(log)}")
    # pip puts ours there as well, where an old one would be as good as the new.
    for ours in wheels.glob("forebay-*"):
        ours.unlink()
    return wheels


def unpack(file: Path, tree: Path, wheels: Path, system: System, arch: str, log: Path) -> bool:
    """What an installation would put into another processor's root, which can't run its package manager."""
    if file.suffix == ".deb":
        return run(["dpkg-deb", "--extract", file, tree], log)
    if file.suffix == ".whl":
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--only-binary=:all:", f"--find-links={wheels}"]
        platforms = [f"--platform={name}_{arch}" for name in MANYLINUX]
        # By --python-version pip chooses wheels; what they require it would still compare with its own Python.
        target = [f"--target={tree}/opt/forebay", f"--python-version={system.python}", "--ignore-requires-python"]
        return run([*command, *platforms, *target, str(file)], log)
    return True


def entered(tree: Path, script: str, log: Path, **variables: str | Path) -> bool:
    """Runs a script in namespaces of its own, with nothing of this machine's environment but the addresses of proxies."""
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    path = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    own = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "root": tree}
    clean = ["env", "-i", *(f"{name}={value}" for name, value in {**proxies, **own, **variables}.items())]
    return run([*clean, "unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-euc", MOUNTS + script], log)


def tried(at: Folders, system: System, artefact: Artefact, arch: str, file: Path) -> bool:
    """Whether an artefact could be installed and run on a fresh root."""
    log, emulator = at.log(system, artefact, arch), qemu(arch)
    log.unlink(missing_ok=True)
    archive = root_archive(at, system, arch)
    wheels = dependencies(at, system, arch, file) if file.suffix == ".whl" else at.folder("no-wheels")
    places = {"dist": at.dist, "wheels": wheels, "packages": at.folder(f"packages-{system.suite}-{DEBIAN[arch]}")}
    with tempfile.TemporaryDirectory(dir=at.kept, prefix="tree-") as folder:
        tree = Path(folder)
        tree.chmod(0o755)
        subprocess.run(["tar", "-C", tree, "--numeric-owner", "-xf", archive], check=True)
        script = 'exec chroot . /bin/sh -eux -c "$inside"'
        if emulator:
            if not unpack(file, tree, wheels, system, arch, log):
                return False
            shutil.copy(emulator, tree / "usr/bin/qemu")
            script = f'qemu() {{ chroot . /usr/bin/qemu "$@"; }}\nset -x\n{artefact.foreign}'
        else:
            shutil.copyfile("/etc/resolv.conf", tree / "etc/resolv.conf")
        return entered(tree, script, log, **places, file=f"/dist/{file.name}", inside=INSIDE + artefact.script)


def result(at: Folders, system: System, artefact: Artefact, arch: str) -> str:
    """What came of an artefact on a system, in words."""
    files = sorted(at.dist.glob(artefact.pattern.format(arch=arch, debian=DEBIAN[arch])))
    if not files:
        return "not built"
    if qemu(arch) is None:
        return f"skipped: no qemu-{arch}-static; try: apt install qemu-user-static"
    began = time.monotonic()
    if not tried(at, system, artefact, arch, files[-1]):
        log = at.log(system, artefact, arch)
        print(f"{log} ends:\n{end_of(log)}", end="", flush=True)
        return f"FAILED: {log}"
    return f"passed in {time.monotonic() - began:.0f} s{' under qemu' if qemu(arch) else ''}"


def checksums(dist: Path) -> str:
    """Files without the checksum that is listed for them; empty if none."""
    listed = dict(line.split("  ", 1)[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    files = {path.name: path for path in dist.iterdir() if path.name != "SHA256SUMS"}
    wrong = [name for name, path in files.items() if hashlib.sha256(path.read_bytes()).hexdigest() != listed.get(name)]
    return ", ".join(sorted({*wrong, *(listed.keys() - files.keys())}))


def missing_from(source: Path) -> str:
    """What a build from the source distribution would miss: a file, or a crate of the lock file; empty if nothing."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2]: name for name in archive.getnames()}
        lock = archive.extractfile(names["Cargo.lock"]).read().decode() if "Cargo.lock" in names else ""  # type: ignore[union-attr]
    # Of a crate that the library doesn't use, nothing is packed; cargo refuses a lock file that names it.
    crates = {manifest.parent.name for manifest in ROOT.glob("crates/*/Cargo.toml")}
    unused = {crate for crate in crates if f"crates/{crate}/Cargo.toml" not in names}
    needed = {"Cargo.toml", "Cargo.lock", "pyproject.toml", "README.md", *git("ls-files", "crates", "python").splitlines()}
    missing = [name for name in needed - names.keys() if not name.startswith(tuple(f"crates/{crate}/" for crate in unused))]
    local = re.findall(r'^name = "(?:forebay-)?([\w-]+)"\nversion = "[^"]+"\n(?!source)', lock, re.M)
    missing += [f"{crate}, which Cargo.lock names" for crate in local if f"crates/{crate}/Cargo.toml" not in names]
    return ", ".join(sorted(missing)[:5])


def judged(missing: str) -> str:
    return f"FAILED: without {missing}" if missing else "passed"


def refusal(dist: Path) -> str | None:
    """Why nothing can be tried here."""
    if os.geteuid() != 0:
        return "needs root, for root file systems; try: sudo make test-dist"
    if not (dist / "SHA256SUMS").is_file():
        return f"{dist.name}/ has no artefacts; first run: make dist"
    last = git("log", "-1", "--format=%ct", "--", *PACKED, *PACKAGED).strip()
    if last and int(last) > (dist / "SHA256SUMS").stat().st_mtime:
        return f"{dist.name}/ is older than the last commit that changes what is in it; first run: make dist"
    # It says what it can't install.
    subprocess.run([ROOT / ".ci/prepare", "dist"])
    missing = [program for program in ("mmdebstrap", "dpkg-deb", "unshare") if shutil.which(program) is None]
    return f"{missing[0]} is not here" if missing else None


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: python deploy/test_dist.py DIST ROOTS", file=sys.stderr)
        return 2
    at = Folders(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
    if why := refusal(at.dist):
        print(f"make test-dist: {why}", file=sys.stderr)
        return CANNOT
    at.kept.mkdir(parents=True, exist_ok=True)
    # Ended by a signal it removes what it unpacked, as at any end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with (at.kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in at.kept.glob("tree-*"):
            shutil.rmtree(left)
        rows = [("dist", "SHA256SUMS", judged(checksums(at.dist)))]
        for source in sorted(at.dist.glob("forebay-*.tar.gz")) or [at.dist / "the source distribution"]:
            rows.append(("dist", source.name, judged(missing_from(source) if source.is_file() else "it")))
        try:
            for arch, system, artefact in itertools.product(ARCHS, SYSTEMS, ARTEFACTS):
                rows.append((f"{system.name}, {arch}", artefact.name, result(at, system, artefact, arch)))
                print(ROW.format(*rows[-1]), flush=True)
        except Cannot as why:
            print(f"make test-dist: {why}", file=sys.stderr)
            return CANNOT
    print()
    for row in rows:
        print(ROW.format(*row))
    return int(any(outcome.startswith("FAILED") for _, _, outcome in rows))


if __name__ == "__main__":
    sys.exit(main())
