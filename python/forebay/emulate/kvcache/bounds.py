"""Three rates of a rank, or brackets of them: what its file, its time stamps and a link imply, and no more.

as-published: all bytes ÷ the duration that was asked for. drained: all bytes ÷ the time of the last. window: bytes moved
inside the duration ÷ the duration. A rank file has only the bytes of the whole run, so that the other two are brackets:

- A request that took T ended no earlier than T after the start: drained ≤ bytes ÷ T.
- What was saved at S had been moved by then: drained ≥ bytes ÷ S.
- No more was moved in the window than in all: window ≤ as-published.
- After the window a link carried at most its speed: window ≥ (bytes − speed × (S − duration)) ÷ duration.

Bytes are those that the file counts. The reference counts a read when it begins: those that were cut off are in there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from forebay.emulate.kvcache import rank_files
from forebay.emulate.kvcache.formula import is_number, nested, reported
from forebay.emulate.kvcache.rank_files import Damaged, RankFile

WAYS = {"read": "read", "write": "written"}
# What a run spends beside its duration. Stamps that are further apart are of other clocks, copies or time zones.
BESIDE_S = 1800.0
LOG_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})")
LOG_OF = re.compile(r"opt(?:ion)?_?([0-9]{1,2})_?trial_?([0-9]{1,3})")
# What a rank logs before it begins, and once its file is written.
LOG_BEGINS, LOG_SAVED = "Pre-generating", "Results saved"
Bracket = tuple[float | None, float | None]


@dataclass(frozen=True)
class End:
    """Seconds from the start to the last end: no earlier than `least`, no later than `most`, and why."""

    least: float | None = None
    least_why: str = ""
    most: float | None = None
    most_why: str = ""


@dataclass(frozen=True)
class Rates:
    """One direction, in GiB and GiB/s."""

    gib: float | None
    stated: float | None
    as_published: float | None
    window: Bracket
    drained: Bracket

    def document(self) -> dict[str, Any]:
        return {
            "as_published": self.as_published,
            "stated": self.stated,
            "window": list(self.window),
            "drained": list(self.drained),
        }


@dataclass
class Figures:
    """Numbers of a rank file. `odd`: those that can't be numbers of a run, in words."""

    document: Mapping[str, Any]
    odd: list[str] = field(default_factory=list)

    def number(self, *keys: str) -> float | None:
        """A number below `summary` that isn't negative; None where it is missing or null."""
        value = nested(self.document, ("summary", *keys))
        if value is None:
            return None
        if not is_number(value) or value < 0:
            said = f"{'.'.join(keys)} is {reported(value)}"
            if said not in self.odd:
                self.odd.append(said)
            return None
        return float(value)

    def stats(self, key: str) -> float | None:
        return self.number("cache_stats", key)

    @property
    def elapsed(self) -> float | None:
        return self.number("elapsed_time") or None

    def stated(self, way: str) -> float | None:
        return self.stats(f"tier_storage_{way}_bandwidth_gbps")

    def gib(self, way: str) -> float | None:
        """Bytes of the storage tier; by the bandwidth where the file doesn't say."""
        found, stated, elapsed = self.stats(f"tier_storage_kv_bytes_{WAYS[way]}_gb"), self.stated(way), self.elapsed
        return found if found is not None or stated is None or elapsed is None else stated * elapsed


def figures_of(file: RankFile) -> Figures:
    """Figures of a file. Damaged where it has nothing to calculate with."""
    summary = file.document.get("summary")
    if summary is None:
        raise Damaged("has no 'summary': no request was completed")
    if not isinstance(summary, Mapping) or not isinstance(summary.get("cache_stats"), Mapping):
        raise Damaged("has no 'summary' with 'cache_stats'")
    figures = Figures(file.document)
    if figures.gib("read") is None and figures.gib("write") is None:
        why = "; ".join(figures.odd) or "has neither bytes nor bandwidth of the storage tier"
        raise Damaged(why)
    return figures


def rates(figures: Figures, way: str, duration: float, end: End, link: float | None) -> Rates:
    """`link`: GiB/s that no more than that can have been moved at."""
    return bracketed(figures.gib(way), figures.stated(way), duration, end, link)


def together(parts: Sequence[Rates], ends: Sequence[End], duration: float, link: float | None) -> Rates:
    """Ranks of a trial, which begin at once: bytes add up, and the last end is that of the latest."""
    least = max((e.least for e in ends if e.least is not None), default=None)
    most = _greatest([e.most for e in ends])
    return bracketed(_sum([p.gib for p in parts]), _sum([p.stated for p in parts]), duration, End(least, "", most), link)


def bracketed(gib: float | None, stated: float | None, duration: float, end: End, link: float | None) -> Rates:
    """The brackets that this module's first lines explain."""
    if gib is None:
        return Rates(None, stated, None, (None, None), (None, None))
    published, lowest = gib / duration, gib / end.most if end.most else None
    highest = gib / end.least if end.least else None
    if link is None or (lowest or 0.0) > link:
        # What is above it even then isn't carried by this link, which bounds nothing.
        return Rates(gib, stated, published, (None, published), (lowest, highest))
    inside = max(0.0, gib - link * max(0.0, end.most - duration)) / duration if end.most else None
    capped = link if highest is None else min(highest, link)
    return Rates(gib, stated, published, (inside, min(published, link)), (lowest, capped))


def mean(parts: Sequence[Rates]) -> Rates:
    """Mean over trials."""

    def average(values: list[float | None]) -> float | None:
        total = _sum(values)
        return None if total is None else total / len(values)

    return Rates(
        average([p.gib for p in parts]),
        average([p.stated for p in parts]),
        average([p.as_published for p in parts]),
        (average([p.window[0] for p in parts]), average([p.window[1] for p in parts])),
        (average([p.drained[0] for p in parts]), average([p.drained[1] for p in parts])),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """None where one is unknown."""
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _greatest(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) if known and len(known) == len(values) else None


# The last end --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Log:
    """Stamps of a log, in seconds of its clock: of each beginning, and of each result that was saved, with its line."""

    run: str
    option: int | None
    trial: int | None
    begins: tuple[float, ...]
    saved: tuple[tuple[float, str], ...]

    def saved_after(self, file: RankFile, duration: float) -> tuple[float, str] | None:
        """Seconds from a rank's beginning to its result, at most; None where the log has none of this file."""
        if self.run != file.run or (self.option, self.trial) not in ((None, None), (file.option, file.trial)):
            return None
        name = file.path.name.removesuffix(".gz")
        mine = [s for s, line in self.saved if name in line and (file.rank is None or f"rank_{file.rank}/" in line)]
        if not mine and self.option is not None:
            mine = [s for s, _ in self.saved]
        if not mine:
            return None
        saved = max(mine)
        # Whatever was saved a whole duration earlier is of an earlier run, and so is what began before that.
        earlier = max((s for s, _ in self.saved if s <= saved - duration), default=None)
        begins = [b for b in self.begins if b <= saved and (earlier is None or b >= earlier)]
        # Stamps are cut to seconds.
        return (saved - min(begins) + 1.0, "the log says that it was saved then") if begins else None


def end_of(file: RankFile, figures: Figures, duration: float, logs: Sequence[Log]) -> End:
    """Evidence of the last end: requests from below, stamps of the log or of the file from above."""
    least, why = longest(file, figures)
    above = [(most, said) for log in logs if (found := log.saved_after(file, duration)) for most, said in [found]]
    start, saved = rank_files.began(file.stamp), _modified(file)
    if start is not None and saved is not None:
        above.append((saved - start, "the file was last written so long after the stamp in its name"))
    plausible = [a for a in above if max(least or 0.0, duration) <= a[0] <= duration + BESIDE_S]
    most, said = min(plausible, default=(None, ""))
    return End(least, why, most, said)


def longest(file: RankFile, figures: Figures) -> tuple[float | None, str]:
    """The longest request: of the list of latencies, or else the highest percentile that there is."""
    listed = file.longest_s.get("end_to_end_latencies")
    if listed:
        return listed, "a request took so long, and ended no earlier"
    for name in ("p9999", "p999", "p99", "p95", "p50"):
        value = figures.number("end_to_end_latency_ms", name)
        if value:
            return value / 1000.0, f"{name.upper()} of the requests' latency is that, and what took so long ended no earlier"
    return None, ""


def _modified(file: RankFile) -> float | None:
    try:
        return file.path.stat().st_mtime
    except OSError:
        return None


def logs_of(found: rank_files.Found) -> list[Log]:
    """The logs that have stamps of a result."""
    return [log for path in found.logs if (log := log_of(path, found)) is not None]


def log_of(path: Path, found: rank_files.Found) -> Log | None:
    """The stamps of a log; None where it has none of a result."""
    place = rank_files.place_of(path, Path(found.tree))
    try:
        text = rank_files.read(path, rank_files.FILE_BYTES_MAX).decode("utf-8", "replace")
    except Damaged as damage:
        found.skipped.append((place.place, str(damage)))
        return None
    stamped = [(when, line) for line in text.splitlines() if (when := _time(line)) is not None]
    saved = tuple((when, line) for when, line in stamped if LOG_SAVED in line)
    begins = tuple(when for when, line in stamped if LOG_BEGINS in line) or tuple(when for when, _ in stamped[:1])
    match = LOG_OF.search(path.name)
    option, trial = (int(match[1]), int(match[2])) if match else (place.option, place.trial)
    return Log(place.run, option, trial, begins, saved) if saved else None


def _time(line: str) -> float | None:
    match = LOG_TIME.search(line[:200])
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}").timestamp() if match else None
    except (ValueError, OverflowError, OSError):
        return None
