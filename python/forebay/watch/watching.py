"""The watch itself: one thread that looks at the processes from time to time, as seldom as keeps it cheap."""

from __future__ import annotations

import contextlib
import os
import random
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.errors import MachineError, RequestError
from forebay.watch.files import Open, Opens, Seen
from forebay.watch.machine import Disks, Gpus, Pressure
from forebay.watch.process import Process, Tree, allow_many_files
from forebay.watch.trace import Traced
from forebay.watch.waits import Waits

if TYPE_CHECKING:
    from forebay.watch.launch import Child

# Each activity takes at most this share of one processor; there are six. Samples are what the answer rests on.
_SHARE, _SAMPLES_SHARE = 0.002, 0.01
# Reading events of opened files is worth more: what isn't read in time is lost.
_OPENS_SHARE = 0.05
TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Activity:
    """Something that is done again and again, at the least interval that its share of a processor allows."""

    least_s: float
    work: Callable[[], object]
    share: float = _SHARE
    due: float = 0.0
    cost_s: float = 0.0

    def run(self, now: float) -> None:
        before = time.thread_time()
        self.work()
        self.cost_s = 0.7 * self.cost_s + 0.3 * (time.thread_time() - before) if self.cost_s else time.thread_time() - before
        # At random, or a training whose batches last as long as the interval would always be seen at the same point.
        self.due = now + max(self.least_s, self.cost_s / self.share) * random.uniform(0.6, 1.4)


@dataclass
class Start:
    """The moment from which on things count: the first look, or that at which a started command opens its first data."""

    at: float
    counted: dict[str, int]
    # As counted a moment later: the size of a read is that of those since then, without those of a program's start.
    steady: dict[str, int]
    # Of the programs' own files that were opened until then.
    program_bytes: int


class Watch:
    """All that is seen of one process and its descendants, from `run` until it ends, the time is over, or `stopped` says so."""

    def __init__(self, pid: int, under: str | None, child: Child | None = None, traces: bool = False) -> None:
        self.pid, self.child = pid, child
        self.tree = _tree(pid, child is not None)
        self.seen, self.waits = Seen(under), Waits()
        self.opens: Opens | Traced = Traced(pid) if traces else Opens()
        self.open = Open()
        self.opens.mark(pid)
        self.disks, self.pressure, self.gpus = Disks(), Pressure(pid), Gpus.opened()
        self.ended = False
        self.began = time.monotonic()
        self.over = self.began
        self.start: Start | None = None
        self.last: dict[str, int] | None = None
        self._before_data: dict[str, int] | None = None
        self._read_until = self.began
        # Suffixes of data with whose first file the counting began anew.
        self._begun: set[str] = set()
        self.cpu_s = self._delay_s = 0.0
        self.counts_delay = _counts_delay()
        self._processor_before = time.process_time()
        self._pidfd = _pidfd(pid)
        self._drained_at = 0.0
        self._drained = Activity(0.0, self._drain, _OPENS_SHARE)

    def run(self, seconds: float, stopped: Callable[[], bool]) -> None:
        allow_many_files()
        activities = self._activities()
        self.began = time.monotonic()
        try:
            self._first_look()
            if self.child is not None:
                self.child.go()
            while not self.ended and not stopped() and (now := time.monotonic()) < self.began + seconds:
                for activity in activities:
                    if activity.due <= now:
                        activity.run(now)
                self._wait(min(self.began + seconds, *(a.due for a in activities)))
            self._last_look()
        finally:
            self.opens.close()
            if self._pidfd is not None:
                os.close(self._pidfd)

    def _activities(self) -> list[Activity]:
        found = [
            Activity(0.025, lambda: self.waits.sample(self.tree), _SAMPLES_SHARE),
            Activity(0.1, self._look),
            Activity(0.25, self._look_at_readers),
            Activity(0.25, self._look_at_files),
            Activity(3.0, lambda: self.open.look_at_maps(self.tree, self.seen)),
            *([Activity(0.2, self.gpus.sample)] if self.gpus.refused is None else []),
        ]
        found[4].due = time.monotonic() + 0.2
        return found

    def _first_look(self) -> None:
        self.tree.refresh(first=True)
        self._count()
        self._look_at_readers()
        self.open.examine(self.tree, self.seen, False)
        self._delays_before = self._delays()
        self._begin()

    def _delays(self) -> dict[int, int]:
        return {thread.tid: thread.block_ticks() for _, thread in self.tree.threads()} if self.counts_delay else {}

    def block_delay_s(self) -> float | None:
        """Seconds that threads waited for block devices: those that are still there. None where the kernel doesn't count it."""
        return self._delay_s if self.counts_delay else None

    def major_faults(self) -> int:
        return self.tree.departed_faults + sum(p.major_faults() for p in self.tree.processes.values())

    def _begin(self, counted: dict[str, int] | None = None) -> None:
        now = self.tree.total() or {}
        self.start = Start(time.monotonic(), counted or now, now, self.seen.program_bytes)
        self.waits = Waits()

    def _wait(self, until: float) -> None:
        """Until the next activity is due, an event of an opened file is there, or the process has ended."""
        poll, now = select.poll(), time.monotonic()
        listens = self.opens.descriptor is not None
        if listens and self._drained.due <= now:
            poll.register(self.opens.descriptor or 0, select.POLLIN)
        elif listens:
            until = min(until, self._drained.due)
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
        for descriptor, _ in poll.poll(max(0.0, (until - now) * 1000)):
            if descriptor == self._pidfd:
                self.ended = True
            else:
                # Where one open follows the other, several at a time; else at once, before a short process is gone.
                now = time.monotonic()
                self._drained.least_s = 0.02 if now - self._drained_at < 0.01 else 0.0
                self._drained.cost_s, self._drained_at = 0.0, now
                self._drained.run(now)

    def _drain(self) -> None:
        before = self.seen.opens
        all_seen = self.opens.drain(self.tree, self.seen)
        if self.seen.opens > before:
            self._read_until = time.monotonic()
        if not self._opens_unknown() and (all_seen or self.seen.files):
            self._begin_with_data()

    def _look_at_files(self) -> None:
        self.open.examine(self.tree, self.seen, self._opens_unknown())
        self._begin_with_data()

    def _begin_with_data(self) -> None:
        """A command that was started has imported its program by then: what counts begins anew.

        Counters are those from before any file of data was open, or the first batch would be lost. Settings, and files that
        turn out to be written (programs make some while they are imported), are no data: until one kind of files has enough
        bytes to be it, each further kind may be.
        """
        if self.child is None or self._begun and self.seen.main_suffix() in self._begun:
            return
        suffixes = self.seen.read_suffixes
        found = suffixes - self._begun
        self._begun = suffixes
        if found:
            self.tree.count()
            self._begin(self._before_data)
        self._before_data = self.last

    def _opens_unknown(self) -> bool:
        return self.opens.refused is not None

    def _look(self) -> None:
        if not self.tree.refresh():
            self.ended = True
        self._count()
        root = self.tree.processes.get(self.pid)
        self.ended = self.ended or root is None or root.is_zombie()
        self._drain()

    def _count(self) -> None:
        self.tree.count()
        self.last = self.tree.total() or self.last
        self.over = time.monotonic()

    def _look_at_readers(self) -> None:
        for _, thread in self.tree.threads():
            thread.look_whether_it_reads()
        self.gpus.find_ours(self.tree.processes) if self.gpus.refused is None else None

    def _last_look(self) -> None:
        earlier = self._delays_before
        self._delay_s = sum(ticks - earlier.get(tid, 0) for tid, ticks in self._delays().items()) / TICKS_S
        for _ in range(100):
            before = self.opens.events
            self._drain()
            if self.opens.events == before:
                break
        self._count()
        self.open.examine(self.tree, self.seen, self._opens_unknown())
        self.cpu_s = time.process_time() - self._processor_before

    @property
    def seconds(self) -> float:
        """Seconds in which things counted."""
        return max(1e-6, self.over - (self.start.at if self.start is not None else self.began))

    @property
    def reading_seconds(self) -> float:
        """Seconds until its last file was opened, of a training that ended: saving and its end read nothing."""
        if not self.ended or self._opens_unknown() or self.start is None or self._read_until <= self.start.at:
            return self.seconds
        return min(self.seconds, self._read_until - self.start.at)

    def moved(self) -> dict[str, int] | None:
        """The counters' growth while things counted; None where none may be read."""
        if self.last is None or self.start is None:
            return None
        return {key: self.last[key] - self.start.counted.get(key, 0) for key in self.last}

    def program_bytes(self) -> int:
        """Bytes of its own modules that were opened while things counted: by workers that are no forks."""
        return self.seen.program_bytes - (self.start.program_bytes if self.start is not None else 0)

    def bytes_per_call(self) -> float | None:
        """The mean size of a read; None without one."""
        if self.last is None or self.start is None:
            return None
        for since in (self.start.steady, self.start.counted):
            calls = self.last["syscr"] - since.get("syscr", 0)
            if calls > 0:
                return (self.last["rchar"] - since.get("rchar", 0)) / calls
        return None

    def refused(self) -> str | None:
        """Why counters can't be read, where they can't."""
        return next((p.refused for p in self.tree.processes.values() if p.refused), None)


def _tree(pid: int, is_child: bool) -> Tree:
    """RequestError where there is no such process; MachineError where its counters may not be read."""
    asked = f"watch {pid}"
    if pid == os.getpid():
        raise RequestError(asked, "is this command itself", "the training's process: pgrep -af python")
    try:
        root = Process(pid, None, is_new=is_child)
    except (OSError, ValueError):
        raise RequestError(asked, "there is no such process", "pgrep -af python") from None
    if root.stat.is_of_kernel:
        raise RequestError(asked, f"is a thread of the kernel ({root.name})", "the training's process: pgrep -af python")
    if (leader := _leader_of(pid)) != pid:
        raise RequestError(asked, f"is a thread of process {leader}", f"forebay watch {leader}")
    if not root.count():
        raise RequestError(asked, "has ended", "pgrep -af python")
    if root.refused:
        raise MachineError(asked, f"belongs to somebody else ({root.refused})", f"sudo forebay watch {pid}")
    if root.refresh() and root.is_zombie():
        raise RequestError(asked, "has ended, and its parent hasn't noticed", "pgrep -af python")
    return Tree(root)


def _leader_of(pid: int) -> int:
    """The process that a thread is of; of a process itself."""
    with contextlib.suppress(OSError, StopIteration, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        return int(next(line for line in file if line.startswith(b"Tgid:")).split()[1])
    return pid


def _pidfd(pid: int) -> int | None:
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def _counts_delay() -> bool:
    try:
        with open("/proc/sys/kernel/task_delayacct", encoding="ascii") as file:
            return file.read().strip() == "1"
    except OSError:
        return False
