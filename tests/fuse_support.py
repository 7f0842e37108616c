"""A device that isn't ours: one file served over /dev/fuse, by the kernel's protocol and nothing else, that answers each
read and write as a schedule says (late, never, with an error, with less than was asked) and keeps a trace of its own.

The trace knows nothing of Forebay: it has what the kernel asked for and when each answer was given. What a run reports is
held against it. One thread does it all, so that it isn't its own rival, and notes what it can't know as a span: an I/O
came at the latest when it was read, and at the earliest when there was none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import heapq
import itertools
import os
import random
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

DEVICE = "/dev/fuse"
# The largest write, and what stands before its data.
REQUEST_BYTES = (1 << 20) + 4096
# Opcodes of linux/fuse.h.
FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 2, 3, 4, 14, 15, 16, 17, 18, 20
FLUSH, INIT, INTERRUPT, DESTROY, BATCH_FORGET = 25, 26, 36, 38, 42
ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES = 1, 1 << 5, 1 << 15, 1 << 22
PAGES_MAX = 32
# A short answer is then the caller's to deal with; else the kernel asks for the rest, by its page cache.
FOPEN_DIRECT_IO = 1
MNT_DETACH = 2
# What hangs is answered after so long, whatever becomes of the test.
HANGS_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What becomes of one I/O. `hangs`: it isn't answered before the device is told to let go.

    Nor could whoever asked be ended before: a process that the kernel holds in an I/O stays until that is over.
    """

    delay_s: float = 0.0
    error: int = 0
    short: int | None = None
    hangs: bool = False


@dataclass
class Traced:
    """One I/O as the kernel asked for it. Times are of the monotonic clock, in ns; `done_ns` 0: never answered."""

    write: bool
    offset: int
    size: int
    # It came between the two: there was nothing to read yet, and this was read.
    absent_ns: int
    came_ns: int
    answer: Answer
    # Its answer was given between the two: before and after the call that gave it.
    done_ns: int = 0
    answered_ns: int = 0
    moved: int = 0
    error: int = 0
    # Which asked.
    thread: int = 0

    @property
    def took_ns(self) -> int:
        """At the least."""
        return self.done_ns - self.came_ns


Schedule = Callable[[int, int, int], Answer]


@dataclass
class Device:
    """The file, its content and its trace."""

    path: Path
    content: bytearray
    schedule: Schedule = lambda nth, offset, size: Answer()
    trace: list[Traced] = field(default_factory=list)
    # The page cache takes part for whoever opens it from now on.
    cached: bool = False
    # The largest I/O that it is asked for in one piece; Linux has at most 256 by default.
    pages: int = PAGES_MAX

    def __post_init__(self) -> None:
        self._fd = -1
        self._lock = threading.Lock()
        self._due: list[tuple[int, int, int, Traced]] = []
        self._hanging: dict[int, Traced] = {}
        self._count = itertools.count()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def begin(self, schedule: Schedule, cached: bool = False) -> None:
        """From here on I/Os are answered so, numbered from 0, and traced anew."""
        self.let_go()
        with self._lock:
            self.cached = cached
            self.schedule, self.trace, self._count = schedule, [], itertools.count()

    def let_go(self) -> None:
        """Answers what hangs, with an error, and whatever would hang from now on."""
        with self._lock:
            for unique in list(self._hanging):
                self._give_up(unique)
            schedule = self.schedule
            self.schedule = lambda nth, offset, size: replace(schedule(nth, offset, size), hangs=False)

    # Mounting ----------------------------------------------------------------------------------------------

    def mount(self) -> None:
        self._fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self.path.touch()
        options = f"fd={self._fd},rootmode=100644,user_id={os.getuid()},group_id={os.getgid()},max_read={self.pages * 4096}"
        try:
            _call("mount", b"forebay-test", os.fsencode(self.path), b"fuse", 0, options.encode())
        except OSError:
            os.close(self._fd)
            raise
        self._thread.start()

    def unmount(self) -> None:
        """Whatever still hangs is answered with an error."""
        self.let_go()
        with contextlib.suppress(OSError):
            _call("umount2", os.fsencode(self.path), MNT_DETACH)
        # It ends with ENODEV, once the last file is closed.
        self._thread.join(30)
        os.close(self._fd)
        self.path.unlink(missing_ok=True)

    # The protocol ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        # A device doesn't wait for a processor. Where it may not ask for that, its trace says what it took.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
        absent_ns = time.monotonic_ns()
        while True:
            # What came while the last ones were answered came at the earliest when there was nothing to read.
            if not select.select([self._fd], [], [], 0)[0]:
                left_s = max(0.0, (self._due[0][0] - time.monotonic_ns()) / 1e9) if self._due else None
                select.select([self._fd], [], [], left_s)
                absent_ns = time.monotonic_ns()
            try:
                absent_ns = self._read_all(absent_ns)
            except OSError:
                return
            with self._lock:
                self._answer_what_is_due()

    def _read_all(self, absent_ns: int) -> int:
        """Takes what is there; when there was no more. Errors but EAGAIN are the end of the mount."""
        while True:
            asked_ns = time.monotonic_ns()
            try:
                request = os.read(self._fd, REQUEST_BYTES)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    return asked_ns
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                raise
            self._take_in(request, absent_ns, time.monotonic_ns())

    def _take_in(self, request: bytes, absent_ns: int, came_ns: int) -> None:
        _, opcode, unique = struct.unpack_from("=IIQ", request)
        if opcode in (READ, WRITE):
            self._take(opcode == WRITE, unique, request, absent_ns, came_ns)
        elif opcode == INIT:
            self._reply(unique, self._init(request))
        elif opcode in (GETATTR, SETATTR):
            self._reply(unique, self._attributes())
        elif opcode == OPEN:
            self._reply(unique, struct.pack("=QIi", 1, 0 if self.cached else FOPEN_DIRECT_IO, 0))
        elif opcode == STATFS:
            self._reply(unique, struct.pack("=5Q4I6I", 1 << 20, 1 << 19, 1 << 19, 99, 98, 4096, 255, 4096, *(0,) * 7))
        elif opcode in (RELEASE, FSYNC, FLUSH, DESTROY):
            self._reply(unique)
        elif opcode not in (FORGET, BATCH_FORGET, INTERRUPT):  # a device isn't interrupted
            self._reply(unique, error=errno.ENOSYS)

    def _init(self, request: bytes) -> bytes:
        _, minor, readahead, offered = struct.unpack_from("=4I", request, 40)
        flags = offered & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES)
        sizes = struct.pack("=HHIIHH", 1024, 1024, self.pages * 4096, 1, self.pages, 0)
        return struct.pack("=4I", 7, min(minor, 31), readahead, flags) + sizes + bytes(32)

    def _attributes(self) -> bytes:
        size = len(self.content)
        owner = (0o100644, 1, os.getuid(), os.getgid(), 0, 4096, 0)
        return struct.pack("=QII", 3600, 0, 0) + struct.pack("=6Q3I7I", 1, size, size // 512, 0, 0, 0, 0, 0, 0, *owner)

    def _take(self, write: bool, unique: int, request: bytes, absent_ns: int, came_ns: int) -> None:
        (thread,) = struct.unpack_from("=I", request, 32)
        _, offset, size = struct.unpack_from("=QQI", request, 40)
        if write:
            self.content[offset : offset + size] = request[80 : 80 + size]
        with self._lock:
            nth = next(self._count)
            answer = self.schedule(nth, offset, size)
            traced = Traced(write, offset, size, absent_ns, came_ns, answer, thread=thread)
            self.trace.append(traced)
            if answer.hangs:
                self._hanging[unique] = traced
            delay_s = HANGS_S if answer.hangs else answer.delay_s
            if delay_s > 0:
                heapq.heappush(self._due, (came_ns + int(delay_s * 1e9), nth, unique, traced))
            else:
                self._finish(unique, traced)

    def _answer_what_is_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic_ns():
            _, _, unique, traced = heapq.heappop(self._due)
            if not traced.answer.hangs:
                self._finish(unique, traced)
            else:
                self._give_up(unique)

    def _finish(self, unique: int, traced: Traced) -> None:
        answer = traced.answer
        traced.error = answer.error
        traced.moved = 0 if answer.error else min(traced.size, answer.short or traced.size, len(self.content) - traced.offset)
        end = traced.offset + traced.moved
        data = struct.pack("=II", traced.moved, 0) if traced.write else bytes(self.content[traced.offset : end])
        # Noted before it is said: who hears it has waited for at least as long.
        traced.done_ns = time.monotonic_ns()
        self._reply(unique, b"" if answer.error else data, answer.error)
        traced.answered_ns = time.monotonic_ns()

    def _give_up(self, unique: int) -> None:
        traced = self._hanging.pop(unique, None)
        if traced is not None:
            traced.done_ns, traced.error = time.monotonic_ns(), errno.EIO
            self._reply(unique, error=errno.EIO)
            traced.answered_ns = time.monotonic_ns()

    def _reply(self, unique: int, data: bytes = b"", error: int = 0) -> None:
        # Who asked may be gone (ENOENT), and so may the mount (ENODEV).
        with contextlib.suppress(OSError):
            os.writev(self._fd, [struct.pack("=IiQ", 16 + len(data), -error, unique), data])


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@contextlib.contextmanager
def serving(path: Path, size: int, pages: int = PAGES_MAX) -> Iterator[Device]:
    """The device, mounted on a file at `path`; skips with the reason where that can't be."""
    device = Device(path, bytearray(random.Random(size).randbytes(size)), pages=pages)
    try:
        device.mount()
    except OSError as error:
        pytest.skip(f"{DEVICE} can't be used here: {error.strerror}; as root, with the module fuse loaded")
    try:
        yield device
    finally:
        device.unmount()


# What a trace says ---------------------------------------------------------------------------------------


@dataclass
class Whole:
    """One I/O of the job's: the reads that short answers cut it into, in their order."""

    parts: list[Traced]

    @property
    def moved(self) -> int:
        return sum(part.moved for part in self.parts)

    @property
    def waited_ns(self) -> int:
        """From the first that came to the last answer: nobody can have waited for less."""
        return self.parts[-1].done_ns - self.parts[0].came_ns

    @property
    def waited_ns_max(self) -> int:
        """As long as the device can have held it."""
        return self.parts[-1].answered_ns - self.parts[0].absent_ns


def wholes(trace: list[Traced], io_bytes: int) -> list[Whole]:
    """The trace by I/Os of `io_bytes`: what follows a short answer to `offset` begins where that ended."""
    open_at: dict[int, Whole] = {}
    found = []
    for traced in sorted(trace, key=lambda t: t.came_ns):
        whole = open_at.pop(traced.offset, None) if traced.offset % io_bytes else None
        if whole is None:
            whole = Whole([])
            found.append(whole)
        whole.parts.append(traced)
        if 0 < traced.moved < traced.size:
            open_at[traced.offset + traced.moved] = whole
    return found
