"""Counts of disks by the kernel during a run, as fio reports them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STATS, BLOCK = Path("/proc/diskstats"), Path("/sys/class/block")
Counts = dict[str, list[int]]


def counts() -> Counts:
    """The kernel's counters by the name of the disk; empty where it has none."""
    try:
        lines = [line.split() for line in STATS.read_text().splitlines()]
    except OSError:
        return {}
    return {words[2]: [int(word) for word in words[3:14]] for words in lines if len(words) >= 14}


def whole(name: str) -> str:
    """The disk of a partition."""
    try:
        found = (BLOCK / name).resolve(strict=True)
    except OSError:
        return name
    return found.parent.name if (found / "partition").exists() else name


class Watch:
    """Counts of a command's runs, without the preparation that it hears of. It is told of their progress as an endpoint is."""

    def __init__(self) -> None:
        self._before, self._began = counts(), time.monotonic()
        self._runs = False

    def see(self, job: Any, name: str, progress: dict[str, Any]) -> None:
        if progress.get("phase") != "prepare":
            self._runs = True
        elif not self._runs:
            self._before, self._began = counts(), time.monotonic()

    def util(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """An entry of `disk_util` for each disk."""
        after, ms = counts(), max(1000 * (time.monotonic() - self._began), 1.0)
        found = []
        for name in sorted({whole(name.rpartition(":")[2]) for name in names}):
            if name not in after:
                continue
            now, then = after[name], self._before.get(name, [0] * 11)
            reads, read_merges, _, read_ms, writes, write_merges, _, write_ms, _, busy_ms, queue_ms = (
                a - b for a, b in zip(now, then, strict=True)
            )
            found.append({
                "name": name, "read_ios": reads, "write_ios": writes, "read_merges": read_merges, "write_merges": write_merges,
                "read_ticks": read_ms, "write_ticks": write_ms, "in_queue": queue_ms,
                "util": round(min(100 * busy_ms / ms, 100.0), 6),
            })  # fmt: skip
        return found
