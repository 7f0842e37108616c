"""The points of a sweep: what the matrix multiplies out to, in which order, and each point's key."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from forebay.errors import RequestError
from forebay.flags import by_name, fields, spelled
from forebay.sweep import fabric
from forebay.sweep.file import Sweep

POINTS_MAX = 100_000
# Fields that name a thing, or say who may make it, rather than describe the work: two machines' sweeps match without them.
NOT_IN_KEY = ("sources", "pairs", "create", "label", "overwrite", "overwrite_devices")


@dataclass(frozen=True)
class Point:
    """One job of the sweep. `changes` says in words where it differs from what the file asks."""

    job: dict[str, Any]
    key: str = ""
    round: int = 0
    name: str = ""
    changes: tuple[str, ...] = ()


def expand(sweep: Sweep, sources: Iterable[str], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Every distinct job of the sweep, as asked for: groups outermost, then the matrix as written.

    `sources` replaces the file's own; `settings` (--set) overrides any field. Raises RequestError.
    """
    sources = list(sources)
    local = fabric.local_source(sources, sweep.needs, sweep.name) if sweep.needs else None
    if local is not None:
        sources = []
    axes = [*sweep.matrix]
    if sources and any("sources" in s for axis in [*axes, *itertools.chain(*sweep.groups)] for s in axis):
        raise RequestError(
            f"SOURCE {' '.join(sources)}", f"{sweep.origin} sets the sources point by point", "no SOURCE"
        )
    jobs: list[dict[str, Any]] = []
    seen: set[str] = set()
    for group in sweep.groups or [[]]:
        for combination in itertools.product(*group, *axes):
            job = {**sweep.job}
            for setting in combination:
                job.update(setting)
            if sources:
                job["sources"] = sources
            job.update(settings)
            if local is not None:
                job["sources"] = [s.replace(fabric.SOURCE, local) for s in job.get("sources") or [fabric.SOURCE]]
            if job.get("pairs"):
                _pair(job, sweep.workers_each)
            text = canonical(job)
            if text not in seen:
                seen.add(text)
                jobs.append(job)
            if len(jobs) > POINTS_MAX:
                raise RequestError(sweep.origin, f"has more than {POINTS_MAX:,} points", "shorter lists")
    if not jobs[0].get("sources") and not jobs[0].get("pairs"):
        raise RequestError(
            "SOURCE", f"{sweep.origin} names none", f"forebay sweep {sweep.name} FILE-OR-FOLDER"
        )
    return jobs


def _pair(job: dict[str, Any], workers_each: bool) -> None:
    """Pairs name the sources, and multiply workers that are counted for each of them."""
    job.pop("sources", None)
    if workers_each and isinstance(job.get("workers"), int):
        job["workers"] *= len(job["pairs"])


def canonical(job: dict[str, Any]) -> str:
    return json.dumps(job, sort_keys=True, separators=(",", ":"))


def keyed(jobs: list[tuple[dict[str, Any], tuple[str, ...]]]) -> list[Point]:
    """Points out of (job, changes), each with its key and a name made of the fields that vary."""
    places = {s: i for i, s in enumerate(dict.fromkeys(canonical(_where(j)) for j, _ in jobs))}
    varying = varying_fields([j for j, _ in jobs])
    points = []
    for job, changes in jobs:
        place = places[canonical(_where(job))]
        points.append(Point(job, point_key(job, place), 0, describe(job, varying), changes))
    return points


def _where(job: dict[str, Any]) -> dict[str, Any]:
    return {"sources": job.get("sources"), "pairs": job.get("pairs")}


def point_key(job: dict[str, Any], source_place: int = 0) -> str:
    """16 hexadecimal digits, the same for the same work: on another machine, under another label.

    Sources count by their place among the sweep's sources only, pairs by their number.
    """
    kept = {k: v for k, v in job.items() if k not in NOT_IN_KEY and v is not None}
    if job.get("pairs"):
        kept["pairs"] = len(job["pairs"])
    return hashlib.sha256(canonical({"source": source_place, **kept}).encode()).hexdigest()[:16]


def odd_field(job: dict[str, Any]) -> str | None:
    """A field that no job has as it stands here, as damage leaves one; None where there is none."""
    for key, value in job.items():
        if key in ("sources", "pairs"):
            good = isinstance(value, list) and all(isinstance(v, str) for v in value)
        elif key.startswith("io_bytes") or key.endswith("_bytes"):
            good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
        else:
            continue
        if not good and value is not None:
            return key
    return None


def varying_fields(jobs: list[dict[str, Any]]) -> list[str]:
    """Keys whose value isn't the same in all jobs, in the order of the flags."""
    keys = ["sources", *(f.key for f in fields() if f.key != "label")]
    return [k for k in keys if len({canonical({"v": j.get(k)}) for j in jobs}) > 1]


def describe(job: dict[str, Any], keys: list[str]) -> str:
    """`path=gds io-size=64k`; the essentials where nothing varies."""
    shown = keys or ["path", "op", "io_bytes", "workers", "depth"]
    words = []
    for key in shown:
        if job.get(key) is None:
            continue
        words.append(
            f"source={','.join(job[key])}"
            if key == "sources"
            else f"{by_name()[key].flag}={spelled(by_name()[key], job)}"
        )
    return " ".join(words) or "the job"


def ordered(points: list[Point], sweep: Sweep, rounds: int) -> list[Point]:
    """The points with their rounds, in the order in which they run."""
    if sweep.alternate:
        return _alternating(points, sweep.alternate, rounds)
    if sweep.order == "as written":
        return [replace(p, round=r) for p in points for r in range(rounds)]
    runs = []
    for r in range(rounds):
        turn = list(points)
        if sweep.order == "random":
            random.Random(f"{sweep.seed}/{r}").shuffle(turn)
        runs += [replace(p, round=r) for p in turn]
    return runs


def _alternating(points: list[Point], key: str, rounds: int) -> list[Point]:
    """A B A B … over the values of `key`, for one setting of the other fields after the other."""
    others: dict[str, list[Point]] = {}
    for p in points:
        others.setdefault(canonical({k: v for k, v in p.job.items() if k != key}), []).append(p)
    return [replace(p, round=r) for turn in others.values() for r in range(rounds) for p in turn]


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """`--set field=value`, each of which may hold one field."""
    from forebay.flags import set_field

    job: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise RequestError(f"--set {text}", "has no value", "--set duration=5")
        if name not in by_name():
            raise RequestError(
                f"--set {text}",
                f"'{name}' is not a field of a job",
                f"one of {', '.join(f.flag for f in fields())}",
            )
        set_field(job, name, value)
    return job
