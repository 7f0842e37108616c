"""Findings about results: what can't be as a file says, and what a reader should know about it.

A fault is something that doesn't hold, with exit code 1; a note is none. Numbers that only stand apart from the closed
division's are notes, unless they are judged as closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.emulate.kvcache import rank_files
from forebay.emulate.kvcache.bounds import End, Figures, Rates
from forebay.emulate.kvcache.formula import (
    AGGREGATED,
    DEVICE_LATENCIES,
    aggregate,
    device_latencies,
    is_number,
    nested,
    reported,
)
from forebay.emulate.kvcache.limits import ANY_LINK_GIB_S, Limits
from forebay.numbers import bytes_, count, micros, percent, rate, significant
from forebay.units import GIB

# Two floating-point roads to one number.
NEARLY = 1e-9
# A file that rounds its figures still agrees with itself.
ROUNDED = 1e-4
# The wait for the end is late by a timer's lateness, not by per cent.
ELAPSED_OFF = 0.01
# A link's speed is known to four digits; sheets round ratings.
LINK_OFF, RATING_OFF = 1.001, 1.01
# Interactive users are 15 % of all, and come first.
STARVED_SHARE = 0.5
TRIALS, SEED = 3, 42


@dataclass(frozen=True)
class Closed:
    """Parameters of an option in the closed division."""

    model: str
    bytes_per_token: int
    users: int
    memory_gib: float


CLOSED = {
    1: Closed("llama3.1-8b", 131_072, 200, 0),
    2: Closed("llama3.1-8b", 131_072, 100, 4),
    3: Closed("llama3.1-70b-instruct", 327_680, 70, 0),
}
DURATION_S = 300.0


@dataclass(frozen=True)
class Finding:
    id: str
    text: str
    place: str
    fault: bool = True

    def document(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text, "place": self.place, "fault": self.fault}


@dataclass(frozen=True)
class Subject:
    """One rank's file, and what is known about it."""

    file: rank_files.RankFile
    figures: Figures
    duration: float
    end: End
    read: Rates
    write: Rates


def of_rank(subject: Subject, judged_closed: bool) -> list[Finding]:
    place = subject.file.place
    faults = [(id, text, True) for id, text in (*late(subject), *divisor(subject), *percentile(subject), *flush(subject))]
    notes = [(id, text, False) for id, text in (*starved(subject), *memory(subject))]
    closed = [("closed", text, judged_closed) for text in deviations(subject)]
    odd = [("number", f"{text}, which no run has", True) for text in subject.figures.odd]
    return [Finding(id, text, place, fault) for id, text, fault in (*faults, *odd, *closed, *notes)]


def late(subject: Subject) -> Iterator[tuple[str, str]]:
    least, duration = subject.end.least, subject.duration
    if least is None or least <= duration * (1 + ELAPSED_OFF):
        return
    yield "late", (
        f"bytes were counted until {significant(least, 4)} s or later and divided by {duration:g} s: too high by "
        f"{percent(least / duration - 1)} or more"
    )


def divisor(subject: Subject) -> Iterator[tuple[str, str]]:
    elapsed, duration = subject.figures.elapsed, subject.duration
    for way, rates in (("read", subject.read), ("write", subject.write)):
        if elapsed is None or rates.stated is None or rates.gib is None:
            continue
        if apart(rates.stated * elapsed, rates.gib) > ROUNDED:
            yield "divisor", (
                f"{way}: {rate(rates.stated)} GiB/s in {significant(elapsed, 4)} s would be "
                f"{significant(rates.stated * elapsed, 5)} GiB, and {significant(rates.gib, 5)} GiB are stated"
            )
    if elapsed is not None and apart(elapsed, duration) > ELAPSED_OFF:
        yield "divisor", (
            f"elapsed_time is {significant(elapsed, 4)} s, and {duration:g} s were asked for"
            f" (--duration {elapsed:g} if not)"
        )


def percentile(subject: Subject) -> Iterator[tuple[str, str]]:
    for key, words in (("end_to_end_latency_ms", "requests' latency"), ("storage_io_latency_ms", "time in storage")):
        p95 = subject.figures.number(key, "p95")
        if p95 is not None and p95 / 1000.0 > subject.duration:
            yield "p95", f"P95 of the {words} is {significant(p95 / 1000.0, 4)} s, longer than the run of {subject.duration:g} s"


def flush(subject: Subject) -> Iterator[tuple[str, str]]:
    """Writes whose device time is that of an fsync with nothing left to do."""
    writes = subject.figures.stats("offloads_storage") or subject.figures.stats("write_iops")
    if not writes or not subject.write.gib:
        return
    each = subject.write.gib / writes
    for name in ("p50", "p95"):
        took = subject.figures.stats(f"storage_write_device_{name}_ms")
        if took and each / (took / 1000.0) > ANY_LINK_GIB_S:
            yield "fsync", (
                f"write \"device\" {name.upper()} is {micros(took * 1000.0)} for entries of {bytes_(each * GIB)} in the mean: "
                f"{significant(each / took * 1000.0)} GiB/s, more than any link, so that fsync isn't what brought them to a drive"
            )
            return


def starved(subject: Subject) -> Iterator[tuple[str, str]]:
    counts = {name: subject.figures.number("qos_metrics", name, "total_requests") or 0.0
              for name in ("interactive", "responsive", "batch")}  # fmt: skip
    total = sum(counts.values())
    if total and counts["interactive"] / total > STARVED_SHARE:
        yield "starved", (
            f"{counts['interactive']:,.0f} of {total:,.0f} requests are of interactive users, who are 15 % of all: "
            "the others wait behind them"
        )


def memory(subject: Subject) -> Iterator[tuple[str, str]]:
    if nested(subject.file.document, ("summary", "cache_stats", "storage_entries")) == 0:
        yield "memory", "no entry was on storage at the end: the client's memory served them"
    elsewhere, here = subject.figures.stats("tier_cpu_kv_bytes_read_gb"), subject.read.gib
    if elsewhere and here is not None and elsewhere > here:
        yield "memory", f"{percent(elsewhere / (elsewhere + here))} of what was read came from the client's memory"


def deviations(subject: Subject) -> Iterator[str]:
    """Parameters that aren't the closed division's, as far as a file of a rank tells."""
    file, figures = subject.file, subject.figures
    seed, option = file.document.get("seed"), CLOSED.get(file.option or 0)
    if file.rank is not None and is_number(seed) and seed != SEED + file.rank:
        yield f"seed {seed:g} of rank {file.rank}, where closed has {SEED + file.rank}"
    if subject.duration != DURATION_S:
        yield f"a duration of {subject.duration:g} s, where closed has {DURATION_S:g}"
    if figures.number("total_generation_latency") or figures.number("generation_latency_ms", "mean"):
        yield "time for generating tokens, where closed has none"
    if figures.stats("tier_gpu_kv_bytes_written_gb"):
        yield "entries in a GPU's memory, where closed has none"
    host, tokens = figures.stats("tier_cpu_kv_bytes_written_gb"), figures.stats("storage_tokens_processed")
    if option is None:
        return
    if host and not option.memory_gib:
        yield f"entries in the client's memory, where option {file.option} has none"
    moved = (subject.read.gib or 0.0) + (subject.write.gib or 0.0)
    if tokens and moved and not host and apart(moved * GIB / tokens, option.bytes_per_token) > ELAPSED_OFF:
        each = moved * GIB / tokens
        yield f"{each:,.0f} bytes a token, where {option.model} of option {file.option} has {option.bytes_per_token:,}"


def of_metadata(document: Mapping[str, Any], place: str, judged_closed: bool) -> Iterator[Finding]:
    """What the reference's launcher wrote about its parameters, which only has the duration for all options."""
    found = nested(document, ("num_users",), nested(document, ("parameters", "num_users")))
    if is_number(found) and found not in {c.users for c in CLOSED.values()}:
        yield Finding("closed", f"{found:g} users, where closed has 200, 100 and 70", place, judged_closed)


def too_fast(read: Rates, write: Rates, limits: Limits, place: str) -> Iterator[Finding]:
    """Rates of all ranks of a trial above the link, or the rating, of the storage."""
    taken = f" (taken as {limits.drive}, since {limits.taken}: --drives N if there are more)" if limits.taken else ""
    for way, rates, rating in (("read", read, limits.read_gib_s), ("write", write, limits.write_gib_s)):
        shown = max((r for r in (rates.as_published, rates.stated) if r is not None), default=None)
        if shown is None:
            continue
        if limits.link_gib_s is not None and shown > limits.link_gib_s * LINK_OFF:
            text = f"{way}: {both(shown)} is more than {limits.link} carries, {both(limits.link_gib_s)}{taken}"
            yield Finding("link", text, place)
        if rating is not None and shown > rating * RATING_OFF:
            text = f"{way}: {both(shown)} is more than {limits.drive} is rated at, {both(rating)}{taken}"
            yield Finding("rating", text, place)


def of_summary(found: rank_files.Found, run: str) -> Iterator[Finding]:
    """A summary.json against the rank files beside it, by the reference's formula."""
    place, document = found.summaries[run]
    ranks, trials_of = rank_files.slots(found, run)
    options = document.get("options")
    if not isinstance(options, Mapping):
        yield Finding("summary", "has no 'options'", place)
        return
    for name, stated in options.items():
        if not isinstance(stated, Mapping) or not name.isascii() or not name.isdigit() or len(name) > 2:
            yield Finding("summary", f"option {reported(name)} isn't one", place)
        elif int(name) not in trials_of:
            yield Finding("summary", f"option {name} has no rank file here, so that it can't be recalculated", place, fault=False)
            yield from summary_alone(stated, name, place)
        else:
            right = aggregate(trials_of[int(name)], ranks) | device_latencies(trials_of[int(name)])
            yield from recalculated(stated, right, name, place)
    for option in sorted(trials_of.keys() - {int(n) for n in options if n.isascii() and n.isdigit() and len(n) <= 2}):
        yield Finding("summary", f"has nothing of option {option}", place)


def recalculated(stated: Mapping[str, Any], right: Mapping[str, Any], name: str, place: str) -> Iterator[Finding]:
    for key in (*AGGREGATED, *DEVICE_LATENCIES, "rank_count", "trial_count"):
        if key not in stated:
            continue
        said, ours = stated[key], right[key]
        if ours is not None and (not is_number(said) or apart(said, ours) > NEARLY):
            shown = f"{said:.10g}" if is_number(said) else reported(said)
            yield Finding("summary", f"option {name}: {key} is {shown}, and the rank files give {ours:.10g}", place)


def summary_alone(stated: Mapping[str, Any], name: str, place: str) -> Iterator[Finding]:
    """Findings that show without rank files: a percentile that is longer than any run."""
    p95 = stated.get("aggregated_p95_latency_ms")
    if is_number(p95) and p95 / 1000.0 > DURATION_S:
        text = f"P95 of the time in storage is {significant(p95 / 1000.0, 4)} s, longer than the run of {DURATION_S:g} s"
        yield Finding("p95", f"option {name}: {text}", place)


def of_option(found: rank_files.Found, run: str, option: int, judged_closed: bool) -> Iterator[Finding]:
    """Ranks and trials that are missing."""
    ranks, trials_of = rank_files.slots(found, run)
    trials = trials_of.get(option, [])
    place = f"{run}/option_{option}" if run else f"option_{option}"
    gaps = [slot.place for trial in trials for slot in trial if slot.document is None]
    if gaps:
        more = f" and {len(gaps) - 3} more" if len(gaps) > 3 else ""
        text = f"of {ranks} ranks × {len(trials)} trials these have no result that can be read: {', '.join(gaps[:3])}{more}"
        yield Finding("missing", text, place)
    if trials and len(trials) != TRIALS:
        yield Finding("closed", f"{count(len(trials), 'trial')}, where closed has {TRIALS}", place, judged_closed)


def both(gib_s: float) -> str:
    """14.42 GiB/s (15.48 GB/s)."""
    return f"{rate(gib_s)} GiB/s ({rate(gib_s * GIB / 1e9)} GB/s)"


def apart(a: float, b: float) -> float:
    """Relative difference."""
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0
