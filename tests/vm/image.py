"""The file system in memory that a guest starts from: programs of this machine with their libraries, the modules of
its kernel with what they depend on, and our init. Made anew only when one of these changed."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .packages import CACHE, Kernel, Unavailable, locked

HOST_ID = "5f1c2a76-8e0b-4d3e-9a51-f03eba704420"
HOST_NQN = f"nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}"
INIT = Path(__file__).with_name("init.sh")
# Beyond the kernel's own: where Debian keeps what ordinary users don't call.
PATH = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"

# program → Debian package that has it
PROGRAMS = {
    "dash": "dash",
    "nvme": "nvme-cli",
    "fio": "fio",
    "ip": "iproute2",
    "kmod": "kmod",
    "flock": "util-linux",
    "timeout": "coreutils",
    "dd": "coreutils",
    "sync": "coreutils",
    "blkdiscard": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "e2fsck": "e2fsprogs",
}
# Names that would be busybox's. Its shell, too, is not ours: it takes its own `timeout` before the one in PATH.
KMOD_NAMES = ("modprobe", "insmod", "rmmod", "lsmod", "modinfo", "depmod")

# A guest doesn't start without these …
MODULES = ("virtio_pci", "virtio_net", "virtio_console", "nvme", "nvme-tcp", "nvmet-tcp", "null_blk", "loop", "ext4")
# … and has these where its kernel was built with them: authentication, its digests and groups, in-kernel helpers.
MODULES_IF_ANY = (
    *("virtio_rng", "ublk_drv", "nvme-loop", "nvme-auth", "nvme-keyring", "hmac", "sha256", "sha512", "dh_generic"),
    *("sha256_generic", "sha512_generic", "crc32c_generic", "crc32c-intel", "crct10dif_generic", "crc16"),
    # TLS in the kernel, and what it encrypts with.
    *("tls", "gcm", "ctr", "ghash_generic", "aesni-intel"),
)


def find(program: str) -> Path:
    """Where a program lies on this machine. Raises Unavailable."""
    path = shutil.which(program, path=PATH)
    if not path:
        raise Unavailable(f"{program}: not found; try: apt install {PROGRAMS.get(program, program)}")
    return Path(path)


def busybox() -> Path:
    """A busybox that needs no library, for all that has no program of its own."""
    path = find("busybox")
    if "not a dynamic executable" not in _ldd(path) and "statically linked" not in _ldd(path):
        raise Unavailable("busybox: needs libraries; try: apt install busybox-static")
    return path


def _ldd(path: Path) -> str:
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True)
    return done.stdout + done.stderr


def libraries(program: Path) -> list[Path]:
    """The shared libraries that it is loaded with, and the loader itself."""
    return [Path(p) for p in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", _ldd(program), re.MULTILINE)]


def module_closure(kernel: Kernel, names: tuple[str, ...], optional: tuple[str, ...]) -> list[str]:
    """Paths below the kernel's tree of these modules, and of all that they depend on. Raises Unavailable."""
    depends: dict[str, list[str]] = {}
    by_name: dict[str, str] = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        depends[path] = rest.split()
        by_name[_module_name(path)] = path
    builtin_list = kernel.modules / "modules.builtin"
    builtin = {_module_name(p) for p in builtin_list.read_text().split()} if builtin_list.is_file() else set()
    found: dict[str, None] = {}
    for name in (*names, *optional):
        held = by_name.get(_module_name(name))
        if held:
            found.update(dict.fromkeys([held, *depends[held]]))
        elif name in names and _module_name(name) not in builtin:
            raise Unavailable(f"kernel {kernel.version} has no module {name}")
    return sorted(found)


def _module_name(path: str) -> str:
    return PurePosixPath(path).name.split(".ko")[0].replace("-", "_")


def _unpacked(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dcq", str(path)], capture_output=True, check=True).stdout
    return path.read_bytes()


@dataclass
class Archive:
    """A cpio archive of the "newc" kind, as the kernel reads it."""

    parts: list[bytes] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def _add(self, name: str, mode: int, data: bytes) -> None:
        number = len(self.names) + 1
        self.names.add(name)
        encoded = name.encode() + b"\0"
        numbers = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08x" % n for n in numbers) + encoded
        self.parts += [head, b"\0" * (-len(head) % 4), data, b"\0" * (-len(data) % 4)]

    def folder(self, name: str) -> None:
        """And those above it."""
        for part in [*reversed(PurePosixPath(name).parents), PurePosixPath(name)]:
            if str(part) != "." and str(part) not in self.names:
                self._add(str(part), stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, data: bytes, mode: int = 0o755) -> None:
        if name not in self.names:
            self.folder(str(PurePosixPath(name).parent))
            self._add(name, stat.S_IFREG | mode, data)

    def link(self, name: str, target: str) -> None:
        if name not in self.names:
            self.folder(str(PurePosixPath(name).parent))
            self._add(name, stat.S_IFLNK | 0o777, target.encode())

    def finished(self) -> bytes:
        self._add("TRAILER!!!", 0, b"")
        whole = b"".join(self.parts)
        return whole + b"\0" * (-len(whole) % 512)


def image(kernel: Kernel) -> Path:
    """The archive to start that kernel with. Raises Unavailable."""
    shell = busybox()
    programs = {name: find(name) for name in PROGRAMS}
    loaded = sorted({library for program in programs.values() for library in libraries(program)})
    modules = module_closure(kernel, (*MODULES, *kernel.release.modules), MODULES_IF_ANY)
    key = hashlib.sha256(f"{kernel.version} {modules}".encode())
    for source in (Path(__file__), INIT, shell, *programs.values(), *loaded):
        there = source.resolve().stat()
        key.update(f"{source} {there.st_size} {there.st_mtime_ns}\n".encode())
    made = CACHE / "image" / f"{kernel.release.name}-{key.hexdigest()[:16]}.cpio"
    with locked("image"):
        if not made.is_file():
            made.parent.mkdir(parents=True, exist_ok=True)
            for old in made.parent.glob(f"{kernel.release.name}-*"):
                old.unlink()
            unfinished = made.with_suffix(".part")
            unfinished.write_bytes(_archive(kernel, shell, programs, loaded, modules))
            unfinished.rename(made)
    return made


def _archive(
    kernel: Kernel, shell: Path, programs: dict[str, Path], loaded: list[Path], modules: list[str]
) -> bytes:
    archive = Archive()
    for folder in ("dev", "proc", "sys", "run", "tmp", "mnt", "root", "var"):
        archive.folder(folder)
    archive.file("init", INIT.read_bytes())
    for name, program in programs.items():
        archive.file(f"bin/{name}", program.read_bytes())
    archive.link("bin/sh", "dash")
    for name in KMOD_NAMES:
        archive.link(f"bin/{name}", "kmod")
    archive.file("bin/busybox", shell.read_bytes())
    listed = subprocess.run([str(shell), "--list"], capture_output=True, text=True, check=True).stdout
    for name in listed.split():
        archive.link(f"bin/{name}", "busybox")
    for library in loaded:
        archive.file(str(library).lstrip("/"), library.read_bytes())
    tree = f"lib/modules/{kernel.version}"
    for path in modules:
        archive.file(f"{tree}/{re.sub(r'[.](xz|zst)$', '', path)}", _unpacked(kernel.modules / path), 0o644)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        if (kernel.modules / name).is_file():
            archive.file(f"{tree}/{name}", (kernel.modules / name).read_bytes(), 0o644)
    for name, text in {
        "etc/nvme/hostid": f"{HOST_ID}\n",
        "etc/nvme/hostnqn": f"{HOST_NQN}\n",
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "etc/group": "root:x:0:\n",
        "etc/hosts": "127.0.0.1 localhost\n",
    }.items():
        archive.file(name, text.encode(), 0o644)
    return archive.finished()
