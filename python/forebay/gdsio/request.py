"""A parsed gdsio command or job file, before it is converted to a job of Forebay's."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import RequestError
from forebay.gdsio.xfer import XFERS, Xfer

OPS = ("read", "write", "randread", "randwrite")


@dataclass(frozen=True)
class Group:
    """One GPU's share: a target, the threads that work on it, and where they run."""

    target: str
    is_directory: bool
    gpu: int | None = None
    numa: int | None = None
    threads: int = 1


@dataclass(frozen=True)
class Request:
    """gdsio's options after parsing. Sizes in bytes, time in seconds; None means not given."""

    groups: tuple[Group, ...]
    xfer_number: int = 0
    op: str = "read"
    size_bytes: int | None = None
    start_bytes: int = 0
    io_bytes: tuple[int, ...] = (1 << 20,)
    duration_s: float | None = None
    seed: int | None = None
    verify: bool = False
    random_fill: bool = False
    refill: bool = False
    unaligned: bool = False
    align_bytes: int | None = None
    memory: int = 0
    buffered: bool = False
    batch: int | None = None
    read_pct: int | None = None
    skip_register: bool = False
    nvlink: bool = False
    per_job: bool = False

    def __post_init__(self) -> None:
        if not self.groups:
            raise RequestError("no target", "neither a directory nor a file was given", "-D DIR or -f FILE")
        if len({g.is_directory for g in self.groups}) > 1:
            raise RequestError(
                "-D with -f", "gdsio takes directories or files, not both in one run", "one of them"
            )
        for group in self.groups:
            if not group.target or "\0" in group.target:
                raise RequestError(f"target {group.target!r}", "is not a path", "-D DIR or -f FILE")
        if len({g.target for g in self.groups}) < len(self.groups):
            raise RequestError("a target", "is named twice", "each -D or -f once, with more threads (-w)")
        if self.size_bytes == 0:
            raise RequestError("-s 0", "an empty data set can't be read or written", "-s 1G")
        if self.size_bytes is None and self.writes:
            raise RequestError("no size", "a write needs the size of the file, or of each file", "-s 1G")

    @property
    def xfer(self) -> Xfer:
        return XFERS[self.xfer_number]

    @property
    def writes(self) -> bool:
        return self.op in ("write", "randwrite")

    @property
    def is_random(self) -> bool:
        return self.op in ("randread", "randwrite")

    @property
    def in_directories(self) -> bool:
        return self.groups[0].is_directory

    @property
    def threads(self) -> int:
        return sum(g.threads for g in self.groups)

    def one_thread_batches(self) -> bool:
        """`-x 6 -w N` without `-B`: gdsio runs one thread with N entries per batch, one file each."""
        return self.xfer.batches and self.batch is None

    def depth(self) -> int:
        """I/Os in flight per thread."""
        if self.one_thread_batches():
            return self.groups[0].threads
        return (self.batch or 1) if self.xfer.batches else self.xfer.depth
