"""The QEMU that guests run in: the system's, or the newest that Debian has where a guest needs `vfio-user-pci`.

That device came with QEMU 10.1, which no stable Debian ships. Then the packages of a newer suite are fetched and
unpacked below target/vm with every library that they name, and started through the loader among them, so that the
system's own libraries are neither used nor touched.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .image import find
from .packages import CACHE, Apt, Unavailable, locked

PROGRAM = "qemu-system-x86_64"
DEVICE = "vfio-user-pci"
# The suite of the program, and the one that has the libraries which it was built with.
SUITES = ("trixie-backports", "trixie")
PACKAGE = "qemu-system-x86"
# What runs it. The rest of what it depends on (scripts, their interpreters) is for installed packages.
WANTED = re.compile(r"lib.*|zlib1g|qemu-system-(x86|common|data)|seabios")
# Below usr/share, nothing but firmware and option ROMs is read.
FIRMWARE = ("usr/share/qemu", "usr/share/seabios")
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
LOADER = "ld-linux-x86-64.so.2"


@dataclass(frozen=True)
class Emulator:
    """How QEMU is started: the words of the command before its own flags, and what they need around them."""

    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def environ(self) -> dict[str, str]:
        return {**os.environ, **dict(self.environment)}

    def answer(self, *words: str) -> str:
        """What it says to a question, such as `-version`. Raises Unavailable where it doesn't run."""
        done = subprocess.run(
            [*self.command, *words], capture_output=True, text=True, env=self.environ(), timeout=120
        )
        if done.returncode:
            raise Unavailable(f"{self.command[-1]} {' '.join(words)}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout

    @property
    def version(self) -> tuple[int, int]:
        found = re.search(r"version (\d+)\.(\d+)", self.answer("-version"))
        if not found:
            raise Unavailable(f"{self.command[-1]} -version says no version")
        return int(found[1]), int(found[2])

    def has(self, device: str) -> bool:
        # Not by `-device help`, for which it loads every module, those of another QEMU of this machine, too.
        try:
            return bool(self.answer("-device", f"{device},help"))
        except Unavailable:
            return False


def system() -> Emulator:
    """The one that the system has installed. Raises Unavailable."""
    return Emulator((str(find(PROGRAM)),))


@functools.cache
def with_vfio_user() -> Emulator:
    """One that attaches devices over vfio-user: the system's if it does, else Debian's newest. Raises Unavailable."""
    if shutil.which(PROGRAM) and (own := system()).has(DEVICE):
        return own
    place = CACHE / "qemu"
    with locked("qemu"):
        if not (place / "complete").is_file():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            _fetch(place)
            found = unpacked(place)
            version = found.version
            if not found.has(DEVICE):
                raise Unavailable(f"QEMU {version} of {SUITES[0]} has no {DEVICE}")
            (place / "complete").touch()
    return unpacked(place)


def _fetch(place: Path) -> None:
    apt = Apt(*SUITES)
    apt.update()
    apt.download([name for name in apt.closure(PACKAGE) if WANTED.fullmatch(name)], place)
    for part in ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/bug", "usr/share/icons"):
        shutil.rmtree(place / part, ignore_errors=True)
    shutil.rmtree(apt.folder)


def unpacked(place: Path) -> Emulator:
    """The QEMU of packages unpacked there. Raises Unavailable where it isn't whole."""
    program = place / "usr/bin" / PROGRAM
    folders = [place / part for part in LIBRARIES if (place / part).is_dir()]
    loaders = [found for folder in folders if (found := folder / LOADER).is_file()]
    if not program.is_file() or not loaders:
        raise Unavailable(f"{place}: no {PROGRAM} with its {LOADER} in what was fetched")
    # Some packages keep a library in a folder of its own and let the installed system find it.
    nested = {lib.parent for folder in folders for lib in folder.glob("*/lib*.so*")}
    path = ":".join(map(str, [*folders, *sorted(nested)]))
    return Emulator(
        (str(loaders[0]), "--library-path", path, "--argv0", str(program), str(program)),
        tuple(word for part in FIRMWARE if (place / part).is_dir() for word in ("-L", str(place / part))),
        (("QEMU_MODULE_DIR", str(folders[0] / "qemu")),),
    )
