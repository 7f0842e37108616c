"""nvidia-fs's own counters around a run: /proc/driver/nvidia-fs/stats, as numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

STATS = Path("/proc/driver/nvidia-fs/stats")
_PAIR = re.compile(r"([A-Za-z_-]+)=(\d+)")


def parse(text: str) -> dict[str, int]:
    """`Reads : n=5 ok=5 err=0` → {"reads.n": 5, …}. Lines without numbers are left out."""
    found: dict[str, int] = {}
    for line in text.splitlines()[:256]:
        label, colon, rest = line.partition(":")
        if colon:
            name = re.sub(r"\W+", "_", label.strip().lower())
            found.update({f"{name}.{key.lower()}": int(value[:18]) for key, value in _PAIR.findall(rest)})
    return found


def read(path: Path = STATS) -> dict[str, int] | None:
    """None without the module."""
    try:
        with path.open("rb") as file:
            return parse(file.read(64 << 10).decode("utf-8", "replace"))
    except OSError:
        return None


def change(before: dict[str, int] | None, after: dict[str, int] | None) -> dict[str, Any] | None:
    """Returns the counters that rose meanwhile, on the whole machine; None without the module."""
    if before is None or after is None:
        return None
    return {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
