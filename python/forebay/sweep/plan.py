"""Plan of a sweep here: its definition, what this machine made of it, the points in order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay import own_files
from forebay import run as engine
from forebay.errors import MachineError, RequestError
from forebay.sweep import fabric
from forebay.sweep.file import Sweep
from forebay.sweep.points import Point, canonical, describe, expand, keyed, ordered, varying_fields
from forebay.sweep.scale import Scale, apply, choose, fall_back, find_fallbacks, find_refused, seconds_of
from forebay.wording import in_keys


@dataclass(frozen=True)
class Asks:
    """Additions of the command line to the file."""

    sources: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None
    scale: float | None = 1.0
    seconds_max: float | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class Plan:
    """`definition` is what must stay the same for a file of results to be continued; `frozen` is what was
    decided once, for this machine, and is kept when it is continued."""

    sweep: Sweep
    definition: dict[str, Any]
    frozen: dict[str, Any]
    points: list[Point]
    dropped: list[str]
    # Of a sweep that serves it: the file or device.
    source: str | None = None
    # Path → what this machine lacks for it: its points don't run, today.
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(seconds_of(p.job) for p in self.points)

    @property
    def hash(self) -> str:
        return hashlib.sha256(canonical(self.definition).encode()).hexdigest()[:16]

    @property
    def changes(self) -> list[str]:
        """Every change to the asked jobs, with the number of points that it applies to."""
        counts: dict[str, int] = {}
        unique = {p.key: p for p in self.points}.values()
        for point in unique:
            for change in point.changes:
                counts[change] = counts.get(change, 0) + 1
        return [
            f"{c} ({n} of {len(unique)} points)" if n < len(unique) else f"{c} (all points)"
            for c, n in counts.items()
        ]


def define(sweep: Sweep, asks: Asks) -> dict[str, Any]:
    """The sweep as asked for, before this machine has a say. JSON-ready."""
    return {
        "order": sweep.order,
        "seed": sweep.seed,
        "rounds": asks.rounds or sweep.rounds,
        "alternate": sweep.alternate,
        "fallback": sweep.fallback,
        "scale": "auto" if asks.scale is None else asks.scale,
        "max_time_s": asks.seconds_max,
        "points": expand(sweep, asks.sources, asks.settings or {}),
    }


def make(sweep: Sweep, asks: Asks, frozen: dict[str, Any] | None = None) -> Plan:
    """`frozen`: the decisions of the run that is continued. Raises RequestError for a wrong point."""
    definition = define(sweep, asks)
    _check_sources(definition["points"], asks.sources if sweep.needs else None)
    jobs, rounds = definition["points"], definition["rounds"]
    varying = varying_fields(jobs)
    for job in jobs:
        _check(job, sweep, varying)
    if frozen is None:
        scale = choose(jobs, asks.scale, asks.seconds_max, rounds)
        frozen = {"scale": scale.as_dict(), "fallbacks": find_fallbacks(jobs, sweep)}
    scale = Scale(**frozen["scale"])
    scaled, repeated = _distinct([fabric.fit(*apply(job, scale)) for job in jobs], varying)
    kept, dropped = fall_back(scaled, sweep, frozen["fallbacks"])
    refused = find_refused(kept)
    able = [(job, changes) for job, changes in kept if job.get("path") not in refused]
    if not able:
        path, reason = next(iter(refused.items()))
        raise MachineError(f"path {path}", f"can't run here: {reason}", "--set path=host, or forebay doctor")
    points = ordered(keyed(able), sweep, rounds)
    source = fabric.local_source(asks.sources, sweep.needs, sweep.name) if sweep.needs else None
    return Plan(sweep, definition, frozen, points, [*repeated, *dropped], source, refused)


def _check_sources(jobs: list[dict[str, Any]], given: Sequence[str] | None) -> None:
    """Raises RequestError for a file that no point could read, and none makes. `given`: what is read, of a sweep that
    serves it."""
    makes = any(job.get("create") or "write" in job.get("op", "") for job in jobs)
    for source in given or dict.fromkeys(s for job in jobs for s in own_files.named(job) if "{" not in s):
        path = own_files.path_of(source)
        if path is not None and (path.exists() or not makes):
            engine.readable(source)


def _check(job: dict[str, Any], sweep: Sweep, varying: list[str]) -> None:
    try:
        engine.check(fabric.stand_in(job))
    except RequestError as error:
        spoken = in_keys(error)
        raise RequestError(
            f"{sweep.origin}, point {describe(job, varying)}: {spoken.asked}", spoken.found, spoken.next
        ) from error


def _distinct(
    jobs: list[tuple[dict[str, Any], tuple[str, ...]]], varying: list[str]
) -> tuple[list[tuple[dict[str, Any], tuple[str, ...]]], list[str]]:
    """Scaling may make two points one: 48, 64 and 96 workers are all 16 on two cores. The first stays."""
    best: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {}
    dropped = []
    for job, changes in jobs:
        key = canonical(job)
        if key not in best:
            best[key] = (job, changes)
        else:
            dropped.append(f"{describe(job, varying)} ({'; '.join(changes)})")
    return list(best.values()), dropped


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Describes the changes between two definitions; empty where nothing changed."""
    said = [
        f"{name}: {old.get(name)} → {new.get(name)}"
        for name in ("order", "seed", "rounds", "alternate", "fallback", "scale", "max_time_s")
        if canonical({"v": old.get(name)}) != canonical({"v": new.get(name)})
    ]
    before, after = old.get("points", []), new["points"]
    if canonical({"v": before}) == canonical({"v": after}):
        return said
    common = [_common(before), _common(after)]
    moved = {k for k in common[0].keys() | common[1].keys() if common[0].get(k) != common[1].get(k)}
    both = {k for k in moved if k in common[0] and k in common[1]} or {
        k for k in moved if _unset(k, before) or _unset(k, after)
    }
    said += [
        f"{k} of all points: {common[0].get(k, 'default')} → {common[1].get(k, 'default')}"
        for k in sorted(both)
    ]
    olds, news = (
        {canonical({k: v for k, v in j.items() if k not in both}): j for j in jobs}
        for jobs in (before, after)
    )
    names = varying_fields([*before, *after])
    for word, ones in (("added", news.keys() - olds.keys()), ("removed", olds.keys() - news.keys())):
        if ones:
            jobs = news if word == "added" else olds
            examples = "; ".join(sorted(describe(jobs[k], names) for k in ones)[:3])
            said.append(f"{len(ones)} points {word}, as {examples}")
    return said or ["the order of the points"]


def _common(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The fields that all jobs share, with their value."""
    if not jobs:
        return {}
    return {k: v for k, v in jobs[0].items() if all(k in j and j[k] == v for j in jobs)}


def _unset(key: str, jobs: list[dict[str, Any]]) -> bool:
    return all(key not in j for j in jobs)
