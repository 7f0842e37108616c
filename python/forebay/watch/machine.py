"""Meters of the machine meanwhile: pressure, block devices under the files, pages of the files in memory, GPUs.

Each meter has `refused`: why it can't be had, or None.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SECTOR_BYTES = 512
_TOTAL = re.compile(r"^(some|full) .*total=(\d+)", re.M)


class Pressure:
    """Pressure stall information of I/O: of the machine, and of the process's control group where that has a file."""

    def __init__(self, pid: int) -> None:
        self.places = {"machine": "/proc/pressure/io"}
        self.refused: dict[str, str] = {}
        group = _control_group(pid)
        if group is None:
            self.refused["group"] = "the process isn't in a group of cgroup version 2 below its root"
        else:
            self.places["group"] = f"{group}/io.pressure"
        self._first = {name: found for name, path in self.places.items() if (found := self._read(name, path)) is not None}

    def _read(self, name: str, path: str) -> dict[str, int] | None:
        try:
            with open(path, encoding="ascii") as file:
                return {kind: int(total) for kind, total in _TOTAL.findall(file.read())}
        except OSError as error:
            self.refused[name] = f"{path}: {error.strerror}"
            return None

    def document(self, seconds: float) -> dict[str, dict[str, float] | None]:
        """Per cent of the time in which some, or all, runnable tasks waited for I/O."""
        found: dict[str, dict[str, float] | None] = {"machine": None, "group": None}
        for name, first in self._first.items():
            now = self._read(name, self.places[name])
            if now is not None and seconds > 0:
                found[name] = {f"{kind}_pct": (now[kind] - first[kind]) / seconds / 1e4 for kind in first if kind in now}
        return found


def _control_group(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            path = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "/")
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mount = next((line.split(" ")[4] for line in file if " - cgroup2 " in line), None)
    except OSError:
        return None
    return mount + path if mount is not None and path not in ("", "/") else None


@dataclass
class DiskCounts:
    """A line of /proc/diskstats (Documentation/admin-guide/iostats.rst); times in milliseconds."""

    reads: int
    sectors_read: int
    reading_ms: int
    busy_ms: int
    weighted_ms: int


def diskstats() -> dict[tuple[int, int], tuple[str, DiskCounts]]:
    """(major, minor) → name and counts."""
    found = {}
    with open("/proc/diskstats", encoding="ascii") as file:
        for words in map(str.split, file):
            counts = DiskCounts(int(words[3]), int(words[5]), int(words[6]), int(words[12]), int(words[13]))
            found[int(words[0]), int(words[1])] = words[2], counts
    return found


class Disks:
    """The block devices under the files that are read, between two moments."""

    def __init__(self) -> None:
        self.refused: str | None = None
        try:
            self._first = diskstats()
        except (OSError, ValueError, IndexError) as error:
            self._first, self.refused = {}, f"/proc/diskstats: {error}"

    def document(self, devices: Iterable[int], seconds: float) -> list[dict[str, Any]]:
        """A row for each; `reason` where a file system has no block device that could be found."""
        try:
            now = diskstats() if self.refused is None else {}
        except (OSError, ValueError, IndexError) as error:
            now, self.refused = {}, f"/proc/diskstats: {error}"
        rows: list[dict[str, Any]] = []
        for device in sorted(set(devices)):
            place = disk_of(device)
            if place is None or place not in now or place not in self._first:
                kind = _file_system(device)
                rows.append({"name": None, "file_system": kind, "reason": f"no block device is known under {kind}"})
                continue
            name, end = now[place]
            if not any(row["name"] == name for row in rows):
                rows.append({"name": name, "file_system": _file_system(device), **_between(self._first[place][1], end, seconds)})
        return rows


def _between(first: DiskCounts, last: DiskCounts, seconds: float) -> dict[str, float | None]:
    reads, span = last.reads - first.reads, max(seconds, 1e-9)
    moved = (last.sectors_read - first.sectors_read) * SECTOR_BYTES
    return {
        "busy_pct": min(100.0, (last.busy_ms - first.busy_ms) / span / 10),
        "read_bytes_s": moved / span,
        "reads_s": reads / span,
        "bytes_per_read": moved / reads if reads else None,
        "read_ms_mean": (last.reading_ms - first.reading_ms) / reads if reads else None,
        "in_flight_mean": (last.weighted_ms - first.weighted_ms) / span / 1e3,
    }


def disk_of(device: int) -> tuple[int, int] | None:
    """The whole disk, or the md or dm device, on which a file system lies; by its mount's source where that is no number
    of a block device, as of btrfs."""
    major, minor = os.major(device), os.minor(device)
    if major == 0:
        source = next((source for number, _, source in _mounted() if number == f"{major}:{minor}"), "")
        try:
            number = os.stat(source).st_rdev if source.startswith("/dev/") else 0
        except OSError:
            return None
        if not number:
            return None
        major, minor = os.major(number), os.minor(number)
    place = os.path.realpath(f"/sys/dev/block/{major}:{minor}")
    if os.path.exists(f"{place}/partition"):
        try:
            with open(f"{os.path.dirname(place)}/dev", encoding="ascii") as file:
                major, minor = map(int, file.read().split(":"))
        except (OSError, ValueError):
            return None
    return major, minor


def _mounted() -> list[tuple[str, str, str]]:
    """(device number, kind, source) of each mount."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if len(words := after.split(" ")) >= 2:
                found.append((before.split(" ")[2], words[0], words[1]))
    return found


def _file_system(device: int) -> str:
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((kind for n, kind, _ in _mounted() if n == number), "a file system that isn't mounted here")


class Pages:
    """The share of files that is in the page cache: by cachestat(2) (Linux 6.5), else by mincore(2). Reads nothing of them."""

    _CACHESTAT = 451
    FILES_MAX = 200

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.refused: str | None = None

    def share(self, paths: Iterable[str]) -> tuple[float, int] | None:
        """(share of their bytes that is cached, number of files looked at); None where none could be."""
        cached = total = looked = 0
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            except OSError as error:
                self.refused = f"{path}: {error.strerror}"
                continue
            try:
                size = os.fstat(descriptor).st_size
                found = self._cachestat(descriptor) if size else 0
                found = self._mincore(descriptor, size) if found is None else found
            finally:
                os.close(descriptor)
            if found is None:
                self.refused = "neither cachestat nor mincore answers"
                return None
            cached, total, looked = cached + min(found, size), total + size, looked + 1
        return (cached / total, looked) if total else None

    def _cachestat(self, descriptor: int) -> int | None:
        """Bytes; None where the kernel has no such call."""
        answer, everything = (ctypes.c_uint64 * 5)(), (ctypes.c_uint64 * 2)(0, 0)
        if self._libc.syscall(self._CACHESTAT, descriptor, everything, answer, 0) != 0:
            return None
        return int(answer[0]) * os.sysconf("SC_PAGE_SIZE")

    def _mincore(self, descriptor: int, size: int) -> int | None:
        mmap, page = self._libc.mmap, os.sysconf("SC_PAGE_SIZE")
        mmap.restype = ctypes.c_void_p
        mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        size = min(size, 64 << 30)
        address = mmap(None, size, 1, 1, descriptor, 0)  # PROT_READ, MAP_SHARED
        if address in (None, ctypes.c_void_p(-1).value):
            return None
        pages = -(-size // page)
        answer = (ctypes.c_ubyte * pages)()
        try:
            failed = self._libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), answer)
            return None if failed else sum(one & 1 for one in bytes(answer)) * page
        finally:
            self._libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: per cent of the last sample period in which a kernel ran, and in which memory was accessed."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t (version 2, which nvmlDeviceGetComputeRunningProcesses_v3 fills)."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


@dataclass
class Gpu:
    """One GPU's samples. `ours`: a watched process computes on it."""

    index: int
    name: str
    handle: ctypes.c_void_p
    ours: bool = False
    samples: int = 0
    busy: int = 0
    memory: int = 0


@dataclass
class Gpus:
    """GPUs by NVML, loaded when it is there. `refused`: why not."""

    refused: str | None = None
    gpus: list[Gpu] = field(default_factory=list)
    _library: Any = None

    @classmethod
    def opened(cls, library: str = "libnvidia-ml.so.1") -> Gpus:
        library = os.environ.get("FOREBAY_LIBNVML", library)
        try:
            loaded = ctypes.CDLL(library)
            if code := loaded.nvmlInit_v2():
                return cls(f"nvmlInit answers {code}")
            made = cls(None, [], loaded)
            made._find()
        except (OSError, AttributeError) as error:
            return cls(f"no NVIDIA driver's library here ({error})")
        if not made.gpus:
            made.refused = "NVML finds no GPU"
        return made

    def _find(self) -> None:
        number = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(number))
        for index in range(min(number.value, 64)):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)):
                continue
            self._library.nvmlDeviceGetName(handle, name, ctypes.c_uint(96))
            self.gpus.append(Gpu(index, name.value.decode(errors="replace"), handle))

    def sample(self) -> None:
        for gpu in self.gpus:
            found = _Utilization()
            if self._library.nvmlDeviceGetUtilizationRates(gpu.handle, ctypes.byref(found)) == 0:
                gpu.samples, gpu.busy, gpu.memory = gpu.samples + 1, gpu.busy + found.gpu, gpu.memory + found.memory

    def find_ours(self, pids: Iterable[int]) -> None:
        """Notes which GPUs the processes compute on. In a container NVML may know them by other numbers: then on none."""
        wanted = set(pids)
        for gpu in self.gpus:
            number, found = ctypes.c_uint(128), (_ProcessInfo * 128)()
            call = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
            if call is not None and call(gpu.handle, ctypes.byref(number), found) == 0:
                gpu.ours = gpu.ours or any(one.pid in wanted for one in found[: number.value])

    def document(self) -> list[dict[str, Any]]:
        """Those that the watched processes compute on; all where none is known to be."""
        sampled = [g for g in self.gpus if g.samples]
        return [
            {
                "index": g.index,
                "name": g.name,
                "ours": g.ours,
                "busy_pct": g.busy / g.samples,
                "memory_pct": g.memory / g.samples,
            }
            for g in ([g for g in sampled if g.ours] or sampled)
        ]
