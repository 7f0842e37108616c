"""Files that the watched processes read: which, how large, how often opened, how far read.

Three ways to learn of them, each with a reason where it can't be had: every open, by fanotify (needs CAP_SYS_ADMIN);
every open, by strace (only if it is asked for: it slows the processes); what is open or mapped now, by looking into /proc
from time to time, which misses files that are open for a moment only.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forebay.numbers import bytes_
from forebay.watch import stats
from forebay.watch.fanotify import FAN_CLOSE_WRITE, FAN_OPEN, Fanotify
from forebay.watch.process import Process, Tree
from forebay.watch.stats import Stated

# Programs and their settings are files, too, and no data.
_PROGRAM_SUFFIXES = {"py", "pyc", "pyi", "pyd", "so", "pth", "dll", "js", "sh", "cu", "ptx", "cubin", "ko"}
_SCRIPTS = {"py", "pyc"}
_PROGRAM_PLACES = ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/snap/", "/nix/store/")
_PROGRAM_PARTS = ("/site-packages/", "/dist-packages/", "/__pycache__/", "/lib/python", ".dist-info/", ".so.")
_PROGRAM_NAMES = {"pyvenv.cfg", "python", "ld.so.cache"}
# Models and checkpoints: read once, and no part of each batch.
MODEL_SUFFIXES = {"pt", "pth", "ckpt", "safetensors", "gguf", "onnx"}
# Files whose names are kept, and files that are told apart at all: memory for one that opens millions.
NAMES_MAX, FILES_MAX = 2000, 262_144
# So many files tell their sizes: where more are opened than can be followed, the rest is spared the cost of being told.
ENOUGH_FILES = 10_000
# A program's settings are smaller than this, a training's data isn't.
DATA_BYTES_MIN = 256 << 10
# What fanotify can't say anything of, or whose opens are none of storage.
_NO_STORAGE = {
    "proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "bpf", "debugfs", "tracefs", "securityfs", "pstore",
    "configfs", "fusectl", "hugetlbfs", "binfmt_misc", "autofs", "rpc_pipefs", "nsfs", "efivarfs", "selinuxfs",
}  # fmt: skip


@dataclass
class File:
    """One file, under the path by which it was first seen. `opens`: at least so many; `position`: the furthest seen."""

    path: str
    bytes: int
    device: int
    opens: int = 0
    position: int | None = None
    mapped: bool = False
    written: bool = False


@dataclass
class Suffix:
    """All files of one suffix: `mean` and `square_sum` of their sizes (Welford)."""

    files: int = 0
    opens: int = 0
    bytes: int = 0
    bytes_opened: int = 0
    mean: float = 0.0
    square_sum: float = 0.0
    smallest: int = 0
    largest: int = 0

    def add(self, size: int) -> None:
        self.smallest = size if not self.files else min(self.smallest, size)
        self.largest = max(self.largest, size)
        self.files += 1
        self.bytes += size
        before = size - self.mean
        self.mean += before / self.files
        self.square_sum += before * (size - self.mean)

    def remove(self, size: int) -> None:
        """Takes back one that turned out to be written."""
        self.files -= 1
        self.bytes -= size
        if self.files <= 0:
            self.mean = self.square_sum = 0.0
            return
        before = size - self.mean
        self.mean -= before / self.files
        self.square_sum = max(0.0, self.square_sum - before * (size - self.mean))

    @property
    def deviation(self) -> float:
        return math.sqrt(self.square_sum / (self.files - 1)) if self.files > 1 else 0.0


@dataclass
class Seen:
    """All files seen. `under`: only what lies there is data; without it, what isn't a program's is."""

    under: str | None = None
    files: dict[tuple[int, int], File] = field(default_factory=dict)
    suffixes: dict[str, Suffix] = field(default_factory=dict)
    # Of each what an import of it reads: shared objects are mapped.
    programs: dict[tuple[int, int], int] = field(default_factory=dict)
    program_bytes: int = 0
    overfull: bool = False

    def see(self, found: Stated | os.stat_result, path_of: Iterator[str] | None, opened: bool, path: str = "") -> File | None:
        """Takes note of a file, whose path is only asked for where it is new. None for what isn't data."""
        key = found.st_dev, found.st_ino
        file = self.files.get(key)
        if file is None:
            if key in self.programs or not stat.S_ISREG(found.st_mode):
                self.program_bytes += self.programs.get(key, 0) if opened else 0
                return None
            path = path or next(path_of or iter(("",)))
            if not self._is_data(path, found):
                if len(self.programs) < FILES_MAX:
                    self.programs[key] = found.st_size if suffix_of(path) in _SCRIPTS else 0
                    self.program_bytes += self.programs[key] if opened else 0
                return None
            if len(self.files) >= FILES_MAX:
                self.overfull = True
                return None
            file = self.files[key] = File(path if len(self.files) < NAMES_MAX else "", found.st_size, found.st_dev)
            self._suffix(file, path).add(found.st_size)
            file.path = file.path or f"*.{suffix_of(path)}"
        if opened and not file.written:
            file.opens += 1
            group = self._suffix(file, file.path)
            group.opens += 1
            group.bytes_opened += file.bytes
        return file

    def _suffix(self, file: File, path: str) -> Suffix:
        return self.suffixes.setdefault(suffix_of(path), Suffix())

    def wrote(self, file: File) -> None:
        """A file that was open for writing isn't read by a training, unless it lies where the data was said to be."""
        if not file.written and self.under is None:
            file.written = True
            group = self._suffix(file, file.path)
            group.remove(file.bytes)
            group.opens -= file.opens
            group.bytes_opened -= file.opens * file.bytes

    def _is_data(self, path: str, found: Stated | os.stat_result) -> bool:
        if self.under is not None:
            return path == self.under or path.startswith(self.under.rstrip("/") + "/")
        name = path.rsplit("/", 1)[-1]
        if path.startswith(_PROGRAM_PLACES) or any(part in path for part in _PROGRAM_PARTS):
            return False
        if path.startswith(("/memfd:", "/SYSV", "anon_inode:", "[")) or not path.startswith("/"):
            return False
        suffix = suffix_of(path)
        runs = bool(found.st_mode & 0o111) and not suffix
        return not runs and suffix not in _PROGRAM_SUFFIXES and name not in _PROGRAM_NAMES

    @property
    def read_suffixes(self) -> set[str]:
        """Returns those of which there are files that nobody wrote, as far as is known now."""
        return {name for name, group in self.suffixes.items() if group.files > 0}

    def main_suffix(self) -> str | None:
        """The suffix under which most bytes were opened or lie open; of a model's files only where there are no others."""
        known = {name: group for name, group in self.suffixes.items() if group.files > 0 and group.bytes > 0}
        data = {name: group for name, group in known.items() if name not in MODEL_SUFFIXES} or known
        found = max(data, key=lambda name: (max(data[name].bytes_opened, data[name].bytes), name), default=None)
        if found is not None and self.under is None and max(data[found].bytes_opened, data[found].bytes) < DATA_BYTES_MIN:
            return None
        return found

    def nothing(self) -> str:
        """Files that were seen where none of them is data, and what to type."""
        if self.under is not None:
            return f"it opened nothing with bytes in it under {shown(self.under)}: another --data"
        written = [f for f in self.files.values() if f.written]
        small = [f for f in self.files.values() if not f.written]
        found = []
        if written:
            folder = _example(written)
            found.append(f"{_counted(written, 'file')} it had open for writing{folder}; --data DIR if that is what it reads")
        if small:
            sizes = f"{_counted(small, 'file')} of {bytes_(sum(f.bytes for f in small))} in all{_example(small)}"
            found.append(f"{sizes}, less than {bytes_(DATA_BYTES_MIN)}, which settings have, too; --data DIR if they are data")
        if self.programs and not found:
            kinds = "programs, libraries and their modules"
            found.append(f"{len(self.programs)} files of {kinds} alone; --data DIR if its data lies among them")
        return "; ".join(found) or "it opened none meanwhile: watch it while it reads, or for longer (--seconds)"

    @property
    def opens(self) -> int:
        """Opens of the files that are the data, as far as is known now."""
        name = self.main_suffix()
        return self.suffixes[name].opens if name is not None else 0

    def with_suffix(self, suffix: str) -> list[File]:
        return [f for f in self.files.values() if not f.written and suffix_of(f.path) == suffix]


def _counted(files: Sequence[File], word: str) -> str:
    return f"{len(files)} {word}{'' if len(files) == 1 else 's'}"


def _example(files: Sequence[File]) -> str:
    """` (/data/x.bin)`: the largest of which the path is known."""
    known = [f for f in files if f.path.startswith("/")]
    return f" ({shown(max(known, key=lambda f: f.bytes).path)})" if known else ""


def shown(path: str) -> str:
    """A name as JSON and TOML can have it: what isn't UTF-8, or would break a line, as Python writes it."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def suffix_of(path: str) -> str:
    """In lower case; empty for a name without one, and for a number."""
    name = path.rsplit("/", 1)[-1].removesuffix(" (deleted)")
    stem, dot, suffix = name.rpartition(".")
    suffix = suffix.lower()
    if not dot or not stem or not re.fullmatch(r"[a-z0-9_]{1,16}", suffix) or suffix.isdigit():
        return ""
    return "jpg" if suffix == "jpeg" else suffix


@dataclass
class FileTracer:
    """One way to learn of files. `refused`: why it can't be had; `note`: what it misses."""

    name: str
    refused: str | None = None
    note: str | None = None

    def document(self) -> dict[str, object]:
        return {"name": self.name, "works": self.refused is None, "reason": self.refused, "note": self.note}


class Opens(FileTracer):
    """Every open, by fanotify."""

    def __init__(self) -> None:
        super().__init__("fanotify")
        self.events, self.lost, self.unknown = 0, False, 0
        self._source: Fanotify | None = None
        self._marked: set[tuple[int, str]] = set()
        try:
            self._source = Fanotify()
        except OSError as error:
            self.refused = f"fanotify_init: {error.strerror}"
            if error.errno == errno.EPERM:
                self.refused += ": only root may (CAP_SYS_ADMIN); sudo forebay watch …"

    @property
    def descriptor(self) -> int | None:
        return self._source.descriptor if self._source is not None else None

    def mark(self, pid: int) -> None:
        """Adds the file systems that the process sees."""
        if self._source is None:
            return
        for device, place in mounts(pid):
            if device in {d for d, _ in self._marked}:
                continue
            path = f"/proc/{pid}/root{place}"
            try:
                self._source.mark(path)
                self._marked.add((device, place))
            except OSError as error:
                if error.errno == errno.EPERM:
                    self.refused = f"fanotify_mark: {error.strerror}: needs CAP_SYS_ADMIN of the whole machine"
                    return self.close()
                if error.errno not in (errno.ENOENT, errno.EACCES, errno.ESRCH):
                    self.note = f"{place} has no such events ({error.strerror})"
        if not self._marked:
            self.refused = self.note or "no file system of the process could be marked"

    def drain(self, tree: Tree, seen: Seen) -> bool:
        """Takes what has come. Returns whether that was all."""
        if self._source is None:
            return True
        for pid, mask, descriptor in self._source.events():
            self.events += 1
            if pid <= 0 or not tree.has(pid):
                self.unknown += tree.forks.refused is not None and tree.is_gone(pid)
                continue
            try:
                found = stats.stat(descriptor)
            except OSError:
                continue
            file = seen.see(found, _paths(f"/proc/self/fd/{descriptor}"), bool(mask & FAN_OPEN))
            if file is not None and mask & FAN_CLOSE_WRITE:
                seen.wrote(file)
        if self.unknown:
            self.note = (
                f"{self.unknown} opens on these file systems were by processes that ended before it was known whose they were"
            )
        if self._source.overflows:
            self.lost = True
            self.note = "more files were opened than could be followed at 5 % of a processor: opens are counted too low"
            if len(seen.files) >= ENOUGH_FILES:
                self.note += f", and were no longer followed once {ENOUGH_FILES:,} files were known"
                self.close()
                return True
        return self._source.is_drained

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None


def _paths(link: str) -> Iterator[str]:
    try:
        yield os.readlink(link)
    except OSError:
        yield ""


_MOUNT = re.compile(r"\\([0-7]{3})")


def mounts(pid: int) -> list[tuple[int, str]]:
    """(device, place) of each file system that the process sees, without those that aren't storage."""
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or after.split(" ")[0] in _NO_STORAGE:
            continue
        major, minor = fields[2].split(":")
        place = _MOUNT.sub(lambda m: chr(int(m[1], 8)), fields[4])
        if not place.startswith(("/proc", "/sys", "/dev/shm")):
            found.append((os.makedev(int(major), int(minor)), place))
    return found


class Open(FileTracer):
    """Looking at what is open or mapped now, and how far it was read."""

    def __init__(self) -> None:
        super().__init__("/proc", note="sees files that are open or mapped when it looks")
        # (pid, descriptor) → the file and the last position.
        self._at: dict[tuple[int, int], tuple[File, int]] = {}
        self.steps: Counter[str] = Counter()

    def examine(self, tree: Tree, seen: Seen, counts_opens: bool) -> None:
        """`counts_opens`: nothing else does, so that a file that is seen anew was opened."""
        for process in list(tree.processes.values()):
            try:
                names = os.listdir(f"/proc/{process.pid}/fd")
            except PermissionError as error:
                self.refused = f"/proc/{process.pid}/fd: {error.strerror}"
                continue
            except OSError:
                continue
            self.refused = None
            for name in names:
                self._look_at(process, int(name), seen, counts_opens)

    def _look_at(self, process: Process, descriptor: int, seen: Seen, counts_opens: bool) -> None:
        link = f"/proc/{process.pid}/fd/{descriptor}"
        key = process.pid, descriptor
        try:
            found = stats.stat(link)
        except OSError:
            return
        if not stat.S_ISREG(found.st_mode):
            return
        before = self._at.get(key)
        known = before is not None and seen.files.get((found.st_dev, found.st_ino)) is before[0]
        file = seen.see(found, _paths(link), counts_opens and not known)
        if file is None:
            return
        position, flags = _position(f"/proc/{process.pid}/fdinfo/{descriptor}")
        if flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_PATH:
            seen.wrote(file)
        file.position = max(position, file.position or 0)
        if known and before is not None:
            self.stepped(before[1], position)
        self._at[key] = file, position

    def stepped(self, before: int, now: int) -> None:
        """Two positions in one file, one behind the other in time."""
        self.steps["forward" if now > before else "back" if now < before else "still"] += 1

    def look_at_maps(self, tree: Tree, seen: Seen) -> None:
        """Files that are mapped: numpy.memmap and safetensors close the descriptor at once."""
        for process in list(tree.processes.values()):
            try:
                with open(f"/proc/{process.pid}/maps", "rb") as file:
                    lines = file.read(8 << 20).splitlines()
            except OSError:
                continue
            paths = {
                words[5]
                for line in lines
                if len(words := line.split(maxsplit=5)) == 6 and b"r" in words[1][:1] and words[4] != b"0"
            }
            code = {words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6 and b"x" in words[1]}
            for path in paths - code:
                text = os.fsdecode(path)
                try:
                    found = stats.stat(f"/proc/{process.pid}/root{text}")
                except OSError:
                    continue
                mapped = seen.see(found, None, False, text)
                if mapped is not None:
                    mapped.mapped = True


def _position(path: str) -> tuple[int, int]:
    """(position, flags) of an open file."""
    try:
        with open(path, "rb") as file:
            words = file.read(256).split()
        return int(words[1]), int(words[3], 8)
    except (OSError, IndexError, ValueError):
        return 0, 0
