"""A process with its descendants, as /proc shows them. Nothing here stops, traces or signals any of them.

Each file of /proc is kept open: it belongs to the process that was found, so that a number which the kernel gives to
another process later can't be taken for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay.watch.forks import Forks

COUNTERS = ("rchar", "syscr", "read_bytes", "write_bytes")
# What a kept descriptor costs is one of a limited number; beyond it, files are opened for each reading.
_KEPT_MAX = 30_000
_PF_KTHREAD = 0x00200000
_LINES = re.compile(rb"^(\w+): (\d+)$", re.M)
# Processes that multiprocessing starts for their parent, and does not fork.
_SPAWNED = (b"multiprocessing.spawn", b"multiprocessing.forkserver", b"--multiprocessing-fork")


class ProcFile:
    """A file of /proc that is read again and again, from its start."""

    kept = 0

    def __init__(self, path: str) -> None:
        self.path, self._descriptor = path, -1

    def read(self) -> bytes:
        """OSError where the process is gone (ESRCH, ENOENT) or may not be looked at (EACCES, EPERM)."""
        if self._descriptor >= 0:
            return os.pread(self._descriptor, 16384, 0)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if ProcFile.kept < _descriptors():
            self._descriptor = descriptor
            ProcFile.kept += 1
            return os.pread(descriptor, 16384, 0)
        try:
            return os.pread(descriptor, 16384, 0)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            ProcFile.kept -= 1


def _descriptors() -> int:
    return min(_KEPT_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 256)


def allow_many_files() -> None:
    """As many descriptors as the hard limit lets this process have; nothing that was started before inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _KEPT_MAX + 1024 if hard == resource.RLIM_INFINITY else min(hard, _KEPT_MAX + 1024)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True)
class Stat:
    """proc_pid_stat(5). `name` is between the first parenthesis and the last: it may hold any character."""

    state: str
    parent: int
    major_faults: int
    cpu_ticks: int
    started: int
    block_ticks: int
    is_of_kernel: bool

    @classmethod
    def parse(cls, text: bytes) -> Stat:
        fields = text[text.rindex(b")") + 2 :].split()
        block = int(fields[39]) if len(fields) > 39 else 0
        ticks, of_kernel = int(fields[11]) + int(fields[12]), bool(int(fields[6]) & _PF_KTHREAD)
        return cls(fields[0].decode(), int(fields[1]), int(fields[9]), ticks, int(fields[19]), block, of_kernel)


def counters(text: bytes) -> dict[str, int]:
    """COUNTERS out of /proc/PID/io."""
    found = {name.decode(): int(value) for name, value in _LINES.findall(text)}
    return {name: found.get(name, 0) for name in COUNTERS}


class Thread:
    """One thread. `reads`: it was seen to read since the watch began; `read_bytes`: so much; `read_looks`: in so many `looks`."""

    def __init__(self, pid: int, tid: int, is_new: bool) -> None:
        self.tid = tid
        place = f"/proc/{pid}/task/{tid}"
        self._stat, self._io = ProcFile(f"{place}/stat"), ProcFile(f"{place}/io")
        self._wchan, self._call = ProcFile(f"{place}/wchan"), ProcFile(f"{place}/syscall")
        self.reads = False
        # It was once seen in a sleep that is a wait for storage and looks like any other (FUSE, io_uring).
        self.sleeps_for_storage = False
        # In io_uring, where it may wait for reads, for sockets or for a time.
        self.in_ring = False
        self.read_bytes = self.looks = self.read_looks = 0
        self._read_before: tuple[int, int] | None = (0, 0) if is_new else None

    def state(self) -> str:
        """The letter of proc_pid_stat(5); empty once it has ended. All that a sample needs, so that it stays cheap."""
        try:
            text = self._stat.read()
            return chr(text[text.rindex(b")") + 2])
        except (OSError, ValueError, IndexError):
            return ""

    def block_ticks(self) -> int:
        """Clock ticks that it waited for block devices, where the kernel counts them."""
        try:
            return Stat.parse(self._stat.read()).block_ticks
        except (OSError, ValueError):
            return 0

    def wchan(self) -> str:
        """The kernel's function in which it sleeps; empty where that isn't shown."""
        try:
            found = self._wchan.read().decode(errors="replace").strip()
        except OSError:
            return ""
        return "" if found == "0" else found

    def call(self) -> list[str]:
        """Number and arguments of the system call that it sleeps in; empty where that isn't shown, ["-1", …] for a fault."""
        try:
            return self._call.read().decode(errors="replace").split()
        except OSError:
            return []

    def look_whether_it_reads(self) -> None:
        try:
            found = counters(self._io.read())
        except OSError:
            return
        now = found["rchar"], found["read_bytes"]
        self.looks += 1
        if self._read_before is not None and now != self._read_before:
            self.reads = True
            self.read_bytes += max(now[0] - self._read_before[0], now[1] - self._read_before[1])
            self.read_looks += 1
        self._read_before = now

    def close(self) -> None:
        for file in (self._stat, self._io, self._wchan, self._call):
            file.close()


class Process:
    """One process. `counted`: its counters as last read; what its reaped children read is in them, too."""

    def __init__(self, pid: int, parent: Process | None, is_new: bool) -> None:
        self.pid, self.parent = pid, parent
        self._stat, self._io = ProcFile(f"/proc/{pid}/stat"), ProcFile(f"/proc/{pid}/io")
        self.stat = Stat.parse(self._stat.read())
        self.faults_before = 0 if is_new else self.stat.major_faults
        self._name()
        self.threads: dict[int, Thread] = {}
        self.counted: dict[str, int] | None = None
        self.refused = ""
        self._looks, self._is_new = 0, is_new
        # What it had read before the watch began; a child that appears later began at nothing.
        self.base = dict.fromkeys(COUNTERS, 0) if is_new else None

    def is_zombie(self) -> bool:
        """Returns whether it has ended. Where only its main thread has, others are there."""
        return self.stat.state == "Z" and len(self.threads) <= 1

    def major_faults(self) -> int:
        """Page faults that read, since the watch began."""
        return self.stat.major_faults - self.faults_before

    def is_worker(self) -> bool:
        """Returns whether it works for its parent, as workers of a loader do: forked from it, or spawned by multiprocessing."""
        parent = self.parent
        if parent is None:
            return False
        own, theirs = self.command, parent.command
        return (bool(own) and own == theirs) or any(word in own for word in _SPAWNED) or self.name.startswith("pt_data_")

    def consumer(self) -> Process:
        """The process that it works for: itself where it is nobody's worker."""
        found: Process = self
        while found.is_worker() and found.parent is not None:
            found = found.parent
        return found

    def refresh(self) -> bool:
        """Reads its state and threads. False once it is gone."""
        try:
            self.stat = Stat.parse(self._stat.read())
            found = {int(name) for name in os.listdir(f"/proc/{self.pid}/task")}
        except (OSError, ValueError):
            return False
        for tid in found - self.threads.keys():
            self.threads[tid] = Thread(self.pid, tid, self._is_new or self._looks > 0)
        for tid in self.threads.keys() - found:
            self.threads.pop(tid).close()
        self._looks += 1
        if self._looks < 20:  # a fork of something becomes another program soon
            self._name()
        return True

    def _name(self) -> None:
        self.name = _first(f"/proc/{self.pid}/comm").decode(errors="backslashreplace").rstrip("\n")
        self.command = _first(f"/proc/{self.pid}/cmdline")

    def count(self) -> bool:
        """Reads its counters. False once it is gone."""
        try:
            self.counted = counters(self._io.read())
        except PermissionError as error:
            self.refused = f"/proc/{self.pid}/io: {error.strerror}"
            return True
        except OSError:
            return False
        if self.base is None:
            self.base = dict(self.counted)
        return True

    def close(self) -> None:
        for thread in self.threads.values():
            thread.close()
        self.threads.clear()
        self._stat.close()
        self._io.close()


def _first(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def children_of(pid: int) -> set[int]:
    """Its children, by each thread's list; by the parent that every process names where kernels have no such list."""
    found: set[int] = set()
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            descriptor = os.open(f"/proc/{pid}/task/{tid}/children", os.O_RDONLY | os.O_CLOEXEC)
            try:
                found.update(map(int, os.read(descriptor, 1 << 16).split()))
            finally:
                os.close(descriptor)
    except FileNotFoundError:
        if os.path.isdir(f"/proc/{pid}/task") and not os.path.exists("/proc/thread-self/children"):
            return {child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(child) == pid}
    except OSError:
        pass
    return found


def parent_of(pid: int) -> int:
    """0 where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Stat.parse(file.read()).parent
    except (OSError, ValueError):
        return 0


@dataclass
class Tree:
    """The watched process and its descendants, this process excepted. OSError where the process isn't there."""

    root: Process
    processes: dict[int, Process] = field(default_factory=dict)
    seen: int = 1
    departed_faults: int = 0
    # What was read by processes that are gone and that no parent's counters took over.
    departed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    _others: set[int] = field(default_factory=set)
    # Those that ended since the last look but one: events that they caused may still be on their way.
    _gone: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    forks: Forks = field(default_factory=Forks)

    def __post_init__(self) -> None:
        self.processes[self.root.pid] = self.root

    def refresh(self, first: bool = False) -> bool:
        """Finds new descendants and drops those that are gone. False once nothing of the tree is left."""
        self._others.clear()
        self._gone = set(), self._gone[0]
        self._take_forks()
        before = self._counted()
        for process in list(self.processes.values()):
            self._add_children_of(process, not first)
        for pid in [pid for pid in self._gone[1] if pid not in self.processes and parent_of(pid)]:
            self._add(pid, self.root, True)  # its parent left it: no list of children has it any more
        for process in sorted(self.processes.values(), key=_depth, reverse=True):
            if not process.refresh():
                self._drop(process, before)
        return bool(self.processes)

    def _counted(self) -> dict[int, dict[str, int]]:
        return {pid: dict(p.counted) for pid, p in self.processes.items() if p.counted is not None}

    def _add_children_of(self, process: Process, are_new: bool) -> None:
        for pid in children_of(process.pid) - self.processes.keys() - {os.getpid()}:
            found = self._add(pid, process, are_new)
            if found is not None:
                self._add_children_of(found, are_new)

    def _add(self, pid: int, parent: Process, is_new: bool) -> Process | None:
        try:
            found = Process(pid, parent, is_new)
        except (OSError, ValueError):
            return None
        self.processes[pid] = found
        self.seen += 1
        return found

    def has(self, pid: int) -> bool:
        """Returns whether it is of the tree, although it may have started since the last look."""
        if pid in self.processes or any(pid in gone for gone in self._gone):
            return True
        if pid in self._others or pid == os.getpid():
            return False
        self._take_forks()
        if pid in self._gone[0]:
            return True
        line = [pid]
        while (parent := parent_of(line[-1])) > 1 and parent not in self.processes and len(line) < 64:
            line.append(parent)
        if parent not in self.processes:
            if os.path.exists(f"/proc/{pid}"):
                self._others.update(line)
            return False
        above: Process | None = self.processes[parent]
        for each in reversed(line):
            above = self._add(each, above, True) if above is not None else None
        return pid in self.processes

    def _take_forks(self) -> None:
        """Notes children of the tree, as if they were gone already: those that aren't are found by the next look."""
        for parent, child in self.forks.new():
            if child != os.getpid() and (parent in self.processes or any(parent in gone for gone in self._gone)):
                self._gone[0].add(child)

    def is_gone(self, pid: int) -> bool:
        """Returns whether nothing says any more whose process it was."""
        return pid not in self._others

    def count(self) -> None:
        """Reads all counters, those of children first: a child that was reaped meanwhile is in its parent's."""
        before = self._counted()
        for process in sorted(self.processes.values(), key=_depth, reverse=True):
            if not process.count():
                self._drop(process, before)

    def _drop(self, process: Process, before: dict[int, dict[str, int]]) -> None:
        """Takes out what is gone. Its counts stay: in those of its parent, if that reaped it, else in `departed`."""
        self.processes.pop(process.pid, None)
        self._gone[0].add(process.pid)
        self.departed_faults += process.major_faults()
        process.close()
        for other in self.processes.values():
            if other.parent is process:
                other.parent = process.parent
        last, base, parent = process.counted, process.base, process.parent
        if last is None or base is None:
            return
        moved = False
        if parent is not None and parent.pid in self.processes and parent.counted is not None:
            earlier = before.get(parent.pid, parent.counted)
            moved = parent.count() and all(parent.counted[k] - earlier[k] >= last[k] for k in COUNTERS)
            if moved and parent.base is not None:
                parent.base = {k: parent.base[k] + base[k] for k in COUNTERS}
        if not moved:
            self.departed = {k: self.departed[k] + last[k] - base[k] for k in COUNTERS}

    def total(self) -> dict[str, int] | None:
        """All that was counted since the watch began; None where no counter may be read."""
        known = [(p.counted, p.base) for p in self.processes.values() if p.counted is not None and p.base is not None]
        if not known and not any(self.departed.values()):
            return None
        return {key: self.departed[key] + sum(now[key] - base[key] for now, base in known) for key in COUNTERS}

    def threads(self) -> Iterator[tuple[Process, Thread]]:
        for process in self.processes.values():
            for thread in process.threads.values():
                yield process, thread

    def close(self) -> None:
        self.forks.close()
        for process in self.processes.values():
            process.close()


def _depth(process: Process) -> int:
    depth, above = 0, process.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return depth
