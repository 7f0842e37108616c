"""fio's logs of latency, bandwidth and I/Os: files of `ms, value, direction, block size, priority`, the
offset before the last with `log_offset`, out of the engine's own log.

A value is nanoseconds, KiB/s (of a single I/O kB/s, as fio has it) or I/Os per second (1 for a single I/O); a direction 0 for
reads and 1 for writes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from forebay.errors import RequestError, RunError

# Setting → the files that it makes. Submissions aren't timed, so that there is no slat.
KINDS = {"write_lat_log": ("lat", "clat"), "write_bw_log": ("bw",), "write_iops_log": ("iops",)}
KEYS = (*KINDS, "log_avg_msec", "log_offset", "per_job_logs")
# What would make other logs: settings with the values that change nothing.
_OTHERS = {
    "log_max_value": ("0", "a log has the mean of an interval"), "log_unix_epoch": ("0", "times count from the start"),
    "log_alternate_epoch": ("0", "times count from the start"), "log_prio": ("0", "priorities aren't logged"),
    "log_store_compressed": ("0", "logs are text"), "log_issue_time": ("0", "submissions aren't timed"),
}  # fmt: skip
_LINE = re.compile(rb"[0-9]+, [0-9]+, [0-2], [0-9]+(, [0-9]+){1,2}\s")


@dataclass(frozen=True)
class Logs:
    """The logs of a section. `every_ms`: 0 for a line per I/O."""

    prefixes: dict[str, str]
    every_ms: int
    offsets: bool
    per_job: bool

    def fields(self, prefix: str) -> dict[str, object]:
        """Settings of a job with which the engine writes below `prefix`."""
        return {"io_log": prefix, **({"io_log_ms": self.every_ms} if self.every_ms else {})}

    def check(self, first: int, workers: int) -> None:
        """RequestError where a log would replace what is no log, or where its folder isn't one."""
        for number in range(first, first + workers):
            for kind in self.prefixes:
                _check(self.path(kind, number))

    def path(self, kind: str, number: int) -> Path:
        return Path(f"{self.prefixes[kind]}_{kind}" + (f".{number}.log" if self.per_job else ".log"))

    def write(self, prefix: str, first: int, workers: int) -> None:
        """Makes the logs of jobs `first` and on out of the engine's, as far as it came."""
        for worker in range(1, workers + 1):
            own = Path(f"{prefix}.{worker}.log")
            if not own.exists():
                continue
            begins = self.per_job or worker == 1
            try:
                with contextlib.ExitStack() as stack:
                    read = stack.enter_context(own.open())
                    paths = {kind: self.path(kind, first + worker - 1) for kind in self.prefixes}
                    outs = {kind: stack.enter_context(_opened(path, begins)) for kind, path in paths.items()}
                    self._convert(read, outs)
            except OSError as error:
                raise RunError(f"the log {error.filename or own}", str(error.strerror), "a disk with room for it") from None
            own.unlink()

    def _convert(self, lines: IO[str], outs: Mapping[str, IO[str]]) -> None:
        for line in lines:
            ms, ns, way, size, last = (int(part) for part in line.split(","))
            for kind, out in outs.items():
                out.write(self._line(kind, ms, ns, way, size, last))

    def _line(self, kind: str, ms: int, ns: int, way: int, size: int, last: int) -> str:
        if not self.every_ms:
            value = {"bw": size * 1_000_000 // max(ns, 1), "iops": 1}.get(kind, ns)
            return f"{ms}, {value}, {way}, {size}, {f'{last}, ' if self.offsets else ''}0\n"
        # The last interval is a part of one.
        covers = (ms - 1) % self.every_ms + 1 if ms else 1
        value = {"bw": size * 1000 // covers // 1024, "iops": last * 1000 // covers}.get(kind, ns)
        return f"{ms}, {value}, {way}, 0, {'0, ' if self.offsets else ''}0\n"


def _opened(path: Path, begins: bool) -> IO[str]:
    """The log, to be written anew or continued. What appeared in its place during the run is kept."""
    _check(path)
    return path.open("w") if begins else path.open("a")


def _check(path: Path) -> None:
    if not path.parent.is_dir():
        raise RequestError(f"the log {path}", f"the directory {path.parent} doesn't exist", f"mkdir -p {path.parent}")
    try:
        with path.open("rb") as file:
            begins = file.readline(200)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RequestError(f"the log {path}", str(error.strerror), "another name") from None
    if begins and not _LINE.match(begins):
        raise RequestError(f"the log {path}", "exists, and is no log of fio's", "another name, or mv it away")


def from_settings(name: str, settings: Mapping[str, str]) -> Logs | None:
    """The logs that a section's settings ask for; RequestError for those that would be others than fio's."""
    prefixes: dict[str, str] = {}
    for key, kinds in KINDS.items():
        if key in settings:
            value = settings[key]
            prefixes |= dict.fromkeys(kinds, name if value in ("", "1") else value)
    if not prefixes:
        return None
    for key, (harmless, why) in _OTHERS.items():
        if settings.get(key, harmless) != harmless:
            raise RequestError(f"[{name}] {key}={settings[key]}", f"isn't supported: {why}", f"{key}={harmless}")
    every = settings.get("log_avg_msec", "0")
    if not re.fullmatch(r"[0-9]{1,9}", every):
        raise RequestError(f"[{name}] log_avg_msec={every}", "is not a number of milliseconds", "log_avg_msec=1000")
    return Logs(prefixes, int(every), settings.get("log_offset", "0") == "1", settings.get("per_job_logs", "1") != "0")


def lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, ...]]:
    """The numbers of each line of a log."""
    with open(path) as file:
        for line in file:
            yield tuple(int(part) for part in line.split(","))
