"""Samples of what threads do: whether the training's main thread computes, or waits, and for what.

A loader that reads ahead hides reads: a thread that waits for a device costs the training nothing while its main thread
computes. So each sample is of the main thread of a process that others work for (Process.consumer). Where that sleeps
until others hand it data, the sample is divided among those others: those that wait for storage, and those that run.
"""

from __future__ import annotations

import math
import platform
import random
from collections import Counter
from dataclasses import dataclass, field

from forebay.watch.process import Process, Thread, Tree

# Functions of the kernel in which a thread in uninterruptible sleep waits for something else than storage.
_NOT_STORAGE = (
    "mutex",
    "rwsem",
    "down_read",
    "down_write",
    "futex",
    "nvidia",
    "os_acquire",
    "uvm_",
    "vfork",
    "freez",
    "coredump",
)
# And those in which an interruptible sleep is a wait for storage: FUSE, io_uring, the kernel's asynchronous I/O.
_STORAGE_TOO = ("request_wait_answer", "fuse_", "io_cqring_wait", "read_events", "wait_on_page", "folio_wait", "nfs_", "rpc_wait")

# Share of sleeps that are looked into, of threads that were never seen in such a one: most only wait for each other.
_LOOKED_AT = 0.2

_RING = "io_cqring_wait"

READ, METADATA, WRITE, MAPPED, OTHER = "reads", "metadata", "writes", "mapped memory", "other calls"
_NAMES = {
    READ: "read pread64 readv preadv preadv2 io_getevents io_pgetevents io_uring_enter sendfile splice readahead",
    METADATA: "open openat openat2 stat lstat fstat newfstatat statx getdents getdents64 access faccessat close unlinkat",
    WRITE: "write pwrite64 writev fsync fdatasync sync_file_range syncfs",
}
KIND = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_CALLS = {
    "x86_64": {
        0: "read", 17: "pread64", 19: "readv", 295: "preadv", 327: "preadv2", 208: "io_getevents", 333: "io_pgetevents",
        426: "io_uring_enter", 40: "sendfile", 275: "splice", 187: "readahead", 2: "open", 257: "openat", 437: "openat2",
        4: "stat", 6: "lstat", 5: "fstat", 262: "newfstatat", 332: "statx", 78: "getdents", 217: "getdents64", 21: "access",
        269: "faccessat", 3: "close", 263: "unlinkat", 1: "write", 18: "pwrite64", 20: "writev", 74: "fsync",
        75: "fdatasync", 277: "sync_file_range", 306: "syncfs", 23: "select", 7: "poll",
    },
    "aarch64": {
        63: "read", 67: "pread64", 65: "readv", 69: "preadv", 286: "preadv2", 4: "io_getevents", 292: "io_pgetevents",
        426: "io_uring_enter", 71: "sendfile", 76: "splice", 213: "readahead", 56: "openat", 437: "openat2",
        79: "newfstatat", 80: "fstat", 291: "statx", 61: "getdents64", 48: "faccessat", 57: "close", 35: "unlinkat",
        64: "write", 68: "pwrite64", 66: "writev", 82: "fsync", 83: "fdatasync", 84: "sync_file_range", 267: "syncfs",
        72: "pselect6", 73: "ppoll",
    },
}  # fmt: skip
CALLS = _CALLS.get(platform.machine(), {})

# What the main thread did, or waited for.
COMPUTES, STORAGE, OTHERS, TIMER, GPU, ELSE, STOPPED = (
    "computes",
    "storage",
    "its threads",
    "a timer",
    "the gpu",
    "else",
    "stopped",
)
WAYS = (COMPUTES, STORAGE, OTHERS, TIMER, GPU, ELSE, STOPPED)


def call_of(thread: Thread) -> str:
    """The system call that a sleeping thread is in: its name, `a page fault`, or empty where that isn't shown."""
    words = thread.call()
    if not words or words[0] == "running":
        return ""
    number = int(words[0])
    return "a page fault" if number < 0 else CALLS.get(number, f"call {number}")


def waits_for_storage(thread: Thread, state: str, always: bool = False) -> bool | None:
    """None where it wasn't looked into, which it is if `always`."""
    if state == "D":
        thread.in_ring = False
        return not any(part in thread.wchan() for part in _NOT_STORAGE)
    if state != "S" or not thread.reads:
        return False
    if not always and not thread.sleeps_for_storage and random.random() > _LOOKED_AT:
        return None
    wchan = thread.wchan()
    # Empty: it has been woken since its state was read, as on a fast device.
    found = any(part in wchan for part in _STORAGE_TOO) or (thread.sleeps_for_storage and not wchan)
    thread.in_ring = wchan == _RING or (thread.in_ring and not wchan)
    thread.sleeps_for_storage = thread.sleeps_for_storage or found
    return found


# A thread that reads less than this share of what the busiest does reads no data: statistics, or a queue.
_HELPER = 0.05
# Of the time of threads that read, less than this in other sleeps is next to none; of the time of a main thread, this.
_BLOCKED, _WAITS, _READ_SAMPLES_MIN = 0.05, 0.02, 20
# A main thread that read in more than this share of looks is handed something.
_TAKES = 0.3


@dataclass
class Group:
    """A process and its workers. `ways`: samples by what the main thread did. `reads`: one of its threads was seen to."""

    consumer: Process
    processes: list[Process] = field(default_factory=list)
    reads: bool = False
    samples: int = 0
    # The most that one of its threads has read.
    most_bytes: int = 0
    # Of threads that read for it: their samples, and those in which they waited for storage, or ran.
    read: int = 0
    read_waited: int = 0
    read_ran: int = 0
    read_ring: int = 0
    # Of the main thread's samples in storage, those that were in io_uring.
    ring: float = 0.0
    # The main thread's looks and those in which it had read something, at the first sample and now.
    main_looks: list[tuple[int, int]] = field(default_factory=list)
    ways: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAYS, 0.0))

    def settled(self) -> dict[str, float]:
        """`ways`, of a main thread that only supervises (fio's) too: it sleeps by a timer, takes nothing from its readers, and
        they never wait for it to do so. A training for which they work would be found waiting, or would let them wait."""
        idle, waits = self.ways[TIMER], self.ways[ELSE] + self.ways[STORAGE] + self.ways[OTHERS]
        busy = self.read_waited + self.read_ran
        if self.read < _READ_SAMPLES_MIN or busy < (1 - _BLOCKED) * self.read or waits > _WAITS * (idle + waits):
            return self.ways
        if len(self.processes) > 1 and self.main_reads() > _TAKES:  # other processes hand it what they read by pipes
            return self.ways
        found = dict(self.ways)
        found[TIMER] = 0.0
        found[STORAGE] += idle * self.read_waited / busy
        found[OTHERS] += idle * self.read_ran / busy
        self.ring += idle * self.read_ring / busy
        self.ways, self.read = found, 0
        return found

    def main_reads(self) -> float:
        """The share of looks at the main thread that found it having read something."""
        (first, read_first), (last, read_last) = self.main_looks if self.main_looks else [(0, 0), (0, 0)]
        return (read_last - read_first) / max(1, last - first)

    def main_thread(self) -> Thread | None:
        return self.consumer.threads.get(self.consumer.pid)

    def add(self, other: Group) -> None:
        """Takes over what was seen of one that is gone."""
        settled = other.settled()
        self.ways = {way: self.ways[way] + settled[way] for way in WAYS}
        self.samples += other.samples
        self.ring += other.ring
        self.reads, self.most_bytes = self.reads or other.reads, max(self.most_bytes, other.most_bytes)


@dataclass
class Readers:
    """Samples of threads that read, and those in which they waited for storage. `at_once`: how often so many were there."""

    samples: int = 0
    waited: int = 0
    ring: int = 0
    at_once: Counter[int] = field(default_factory=Counter)
    now: int = 0

    def count(self, waits: bool, in_ring: bool) -> None:
        self.samples += 1
        self.ring += waits and in_ring
        self.waited += waits

    def end_of_sample(self) -> None:
        self.at_once[self.now] += 1
        self.now = 0

    def number(self) -> int:
        """Threads at once, in nine of ten samples at most: workers come and go."""
        return _most_of(self.at_once)


@dataclass
class Waits:
    """All samples so far. `calls`: what threads that waited for storage were in."""

    groups: dict[Process, Group] = field(default_factory=dict)
    past: Group | None = None
    samples: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    # Threads that read, and main threads that do: those that read for others only hand it on by pipes.
    readers: Readers = field(default_factory=Readers)
    main_readers: Readers = field(default_factory=Readers)
    # How often so many processes that read, without those that work for them, were there at once.
    groups_at_once: Counter[int] = field(default_factory=Counter)

    def sample(self, tree: Tree) -> None:
        self.samples += 1
        present = self._group(tree)
        for group in present.values():
            self._sample_group(group)
        self.readers.end_of_sample()
        self.main_readers.end_of_sample()
        self.groups_at_once[len(_that_read(list(present.values())))] += 1

    def _group(self, tree: Tree) -> dict[Process, Group]:
        present: dict[Process, Group] = {}
        for process in tree.processes.values():
            consumer = process.consumer()
            if consumer not in present:
                present[consumer] = self.groups.get(consumer) or Group(consumer)
                present[consumer].processes = []
            present[consumer].processes.append(process)
        for consumer in self.groups.keys() - present.keys():  # one summary for all that are gone, or they would pile up
            self.past = self.past or Group(consumer)
            self.past.add(self.groups[consumer])
        self.groups = present
        return present

    def _sample_group(self, group: Group) -> None:
        waiting = running = ring = 0
        main, way = group.main_thread(), ELSE
        for process in group.processes:
            for thread in list(process.threads.values()):
                state = thread.state()
                if not state:
                    continue
                waits = waits_for_storage(thread, state, thread is main)
                reads = self._reads(group, thread, thread is main)
                if waits is None:
                    continue
                self._count(thread, waits, reads, thread is main)
                if thread is main:
                    now = thread.looks, thread.read_looks
                    group.main_looks = [group.main_looks[0] if group.main_looks else now, now]
                    way = STORAGE if waits else _way(thread, state)
                    group.ring += waits and thread.in_ring
                else:
                    waiting += waits
                    ring += waits and thread.in_ring
                    running += state == "R"
                    group.read += reads
                    group.read_waited += reads and waits
                    group.read_ran += reads and state == "R"
                    group.read_ring += reads and waits and thread.in_ring
        group.samples += 1
        if way == ELSE and waiting + running:
            group.ways[STORAGE] += waiting / (waiting + running)
            group.ways[OTHERS] += running / (waiting + running)
            group.ring += ring / (waiting + running)
        else:
            group.ways[way] += 1

    def _reads(self, group: Group, thread: Thread, is_main: bool) -> bool:
        """Returns whether the thread is one that reads data."""
        group.reads = group.reads or thread.reads
        group.most_bytes = max(group.most_bytes, thread.read_bytes)
        reads = thread.reads and thread.read_bytes >= _HELPER * group.most_bytes
        if reads:
            (self.main_readers if is_main else self.readers).now += 1
        return reads

    def _count(self, thread: Thread, waits: bool, reads: bool, is_main: bool) -> None:
        if reads:
            (self.main_readers if is_main else self.readers).count(waits, thread.in_ring)
        if waits:
            self.calls[call_of(thread) or "not shown"] += 1

    def reading(self, ring_max: float = 1.0) -> tuple[int, float | None]:
        """(number of threads that read, the share of their samples in which they waited for storage). Main threads are among
        them where they don't only take what others read. `ring_max`: of a share in io_uring, so much is storage's."""
        readers, mains = self.readers, self.main_readers
        if readers.samples and mains.waited < 0.05 * mains.samples:
            mains = Readers()
        samples, ring = readers.samples + mains.samples, readers.ring + mains.ring
        waited = readers.waited + mains.waited - max(0.0, ring - ring_max * samples)
        return readers.number() + mains.number(), waited / samples if samples else None

    def consumers(self) -> int:
        """Processes that read for themselves, or have workers that do, at once."""
        return max(1, _most_of(self.groups_at_once))

    def shares(self, ring_max: float = 1.0) -> dict[str, float] | None:
        """The main threads' time by WAYS, of groups that read; of all where none was seen to. None without a sample."""
        known = [g for g in (*self.groups.values(), self.past) if g is not None and g.samples]
        counted = _that_read(known) or known
        samples = sum(g.samples for g in counted)
        if not samples:
            return None
        settled = [g.settled() for g in counted]
        found = {way: sum(ways[way] for ways in settled) / samples for way in WAYS}
        idle = max(0.0, sum(g.ring for g in counted) / samples - ring_max)
        return {**found, STORAGE: found[STORAGE] - idle, ELSE: found[ELSE] + idle}

    def rings(self) -> bool:
        """Returns whether threads wait in io_uring, which may be for something else than storage."""
        return self.readers.ring + self.main_readers.ring > 0 or any(g.ring for g in self.groups.values())


def _that_read(groups: list[Group]) -> list[Group]:
    """Those that read data: not launchers, loggers and other helpers."""
    most = max((g.most_bytes for g in groups), default=0)
    return [g for g in groups if g.reads and g.most_bytes >= _HELPER * most]


def _most_of(counts: Counter[int]) -> int:
    """The number that nine of ten samples don't exceed, zeros left out."""
    found, seen = sum(n for number, n in counts.items() if number), 0
    for number in sorted(n for n in counts if n):
        seen += counts[number]
        if seen >= 0.9 * found:
            return number
    return 0


def _way(thread: Thread, state: str) -> str:
    """The way of a main thread that doesn't wait for storage itself; ELSE where it waits for others."""
    if state == "R":
        return COMPUTES
    if state in "Tt":
        return STOPPED
    wchan = thread.wchan()
    if "nanosleep" in wchan:
        return TIMER
    if any(part in wchan for part in ("nvidia", "uvm_", "os_acquire")):
        return GPU
    words = thread.call()  # select and poll of no descriptor: a sleep
    name, nothing = CALLS.get(int(words[0]), "") if words and words[0] != "running" else "", "0x0"
    slept = (name in ("select", "pselect6") and words[1] == nothing) or (name in ("poll", "ppoll") and words[2] == nothing)
    return TIMER if slept else ELSE


def uncertainty(share: float, samples: int) -> float:
    """Half of a 95 % interval of a share of so many samples (Agresti and Coull)."""
    n = samples + 4
    p = (share * samples + 2) / n
    return 1.96 * math.sqrt(p * (1 - p) / n)
