"""Two files of records as a regression gate: is B worse than A by more than a tolerance, with confidence?"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from forebay import pipes
from forebay import run as engine
from forebay.compare.bounds import Bound, judge
from forebay.compare.verdict import reported
from forebay.compare.work import Work
from forebay.doubts import contradictions
from forebay.environment import differing
from forebay.errors import ForebayError, RequestError
from forebay.metrics import Metric
from forebay.stats import Interval, exp, mean_interval, unpaired_ratio
from forebay.sweep.points import describe, odd_field, point_key, varying_fields
from forebay.units import GIB

FILE_BYTES_MAX = 2 * GIB
LINE_BYTES_MAX = 64 << 20
PIPE_BYTES_MAX = 256 << 20
RECORD = "forebay.run/"
POINT = "forebay.point/1"
# What a record's job derives or what names a thing, rather than describes the work.
DERIVED = (
    "source",
    "pattern",
    "direct",
    "data_bytes",
    "queues",
    "repeat",
    "repeat_max",
    "until_ci_pct",
    "interval_ms",
)


@dataclass
class Runs:
    """One file: its work by key, and what was left out, in words."""

    path: str
    works: dict[str, Work] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def add(self, key: str, job: dict[str, Any], name: str, record: dict[str, Any]) -> None:
        self.works.setdefault(key, Work(key, job, name)).records.append(record)


def compare_files(
    path_a: str, path_b: str, metrics: Sequence[Metric], tolerance_pct: float, bounds: Sequence[Bound] = ()
) -> dict[str, Any]:
    """The document (forebay.compare/1); `bounds` are B's. Raises RequestError where nothing can be judged."""
    a, b = read_runs(path_a), read_runs(path_b)
    pairs = _matched(a, b)
    confidence = 1 - 0.05 / max(1, len(pairs) * len(metrics))
    judged = [_judged(pairs, metric, tolerance_pct, confidence) for metric in metrics]
    for metric in judged:
        if metric["overall"] is None and not any(p["ratio"] and p["ratio"]["ci95"] for p in metric["points"]):
            raise _unjudged(path_a, path_b, metric["points"])
    return {
        "schema": "forebay.compare/1",
        "kind": "files",
        "command": engine.typed(),
        "ratio": "A ÷ B",
        "tolerance_pct": tolerance_pct,
        "method": "Welch's t on logarithms per point, Bonferroni over them and the metrics; overall, t on their log ratios",
        "a": {"file": path_a, "records": sum(len(w.records) for w in a.works.values())},
        "b": {"file": path_b, "records": sum(len(w.records) for w in b.works.values())},
        "differs": differing(*([r for w in runs.works.values() for r in w.records] for runs in (a, b))),
        **judged[0],
        "also": judged[1:],
        "limits": judge(bounds, list(b.works.values())),
        "unmatched": {"a": _left(a, {x.key for x, _ in pairs}), "b": _left(b, {y.key for _, y in pairs})},
        "skipped": [f"{runs.path}{text}" for runs in (a, b) for text in runs.skipped],
    }


def check_file(path: str, bounds: Sequence[Bound]) -> dict[str, Any]:
    """The document of one file that is only held to limits. Raises RequestError where nothing can be judged."""
    runs = read_runs(path)
    return {
        "schema": "forebay.compare/1",
        "kind": "file",
        "command": engine.typed(),
        "b": {"file": path, "records": sum(len(w.records) for w in runs.works.values())},
        "limits": judge(bounds, list(runs.works.values())),
        "skipped": [f"{runs.path}{text}" for text in runs.skipped],
    }


def _judged(pairs: list[tuple[Work, Work]], metric: Metric, tolerance_pct: float, confidence: float) -> dict[str, Any]:
    points = [_point(x, y, metric, tolerance_pct, confidence) for x, y in pairs]
    overall = _overall(points, metric, tolerance_pct)
    verdict = _verdict(points, overall, metric, tolerance_pct)
    return {"metric": metric.name, "points": points, "overall": overall, "verdict": verdict}


def _unjudged(path_a: str, path_b: str, points: list[dict[str, Any]]) -> RequestError:
    """A gate that can't judge must not pass in silence."""
    unmeasured = next((p["verdict"] for p in points if p["verdict"].startswith("not measured")), None)
    if unmeasured:
        return RequestError(f"compare {path_a} {path_b}", unmeasured, "another --metric")
    found = "a single run on each side gives no confidence interval"
    return RequestError(
        f"compare {path_a} {path_b}",
        found,
        "forebay bench … --repeat 5 --json, or forebay sweep … --rounds 5",
    )


def read_runs(path: str) -> Runs:
    """The records of a file: a record, a list of them, one a line, or a sweep's results.

    Raises RequestError where the file can't be read or holds no record.
    """
    path = pipes.readable(path)
    runs = Runs(path)
    pipes.refuse_to_read(path)
    try:
        if Path(path).stat().st_size > FILE_BYTES_MAX:
            raise RequestError(path, "is larger than 2 GiB", "fewer records")
        for place, value in _documents(Path(path)):
            _take(runs, place, value)
    except OSError as error:
        raise RequestError(
            path, f"can't be read: {error.strerror or error}", "a file written by forebay bench --json or forebay sweep"
        ) from error
    if not runs.works:
        found = "holds no record of a finished run" + "".join(f"; {s.lstrip(': ')}" for s in runs.skipped[:3])
        raise RequestError(path, found, "a file written by forebay bench --json or forebay sweep")
    _name(runs)
    return runs


def _documents(path: Path) -> Iterator[tuple[str, Any]]:
    """(":line", document) of each line; of a file that is one document over many lines, that one."""
    with _seekable(path) as file:
        first = file.readline(LINE_BYTES_MAX)
        is_short = file.seek(0, os.SEEK_END) <= LINE_BYTES_MAX
        file.seek(0)
        if _loads(first) is None and is_short:
            whole = _loads(file.read(LINE_BYTES_MAX))
            if whole is not None:
                yield "", whole
                return
            file.seek(0)
        number = 0
        while raw := file.readline(LINE_BYTES_MAX + 2):
            number += 1
            if raw.strip():
                yield f":{number}", _loads(raw) if len(raw) <= LINE_BYTES_MAX else None


def _seekable(path: Path) -> IO[bytes]:
    """The open file; of a pipe or a device, what can be read from it once."""
    file = path.open("rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    with file:
        data = pipes.up_to(file, PIPE_BYTES_MAX)
    if len(data) > PIPE_BYTES_MAX:
        raise RequestError(str(path), "is a pipe or a device with more than 256 MiB", "a file")
    return io.BytesIO(data)


def _loads(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _take(runs: Runs, place: str, value: Any) -> None:
    if isinstance(value, list):
        for i, item in enumerate(value):
            _take(runs, f"{place}[{i}]", item)
        return
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, str):
        runs.skipped.append(f"{place}: not a record (damaged, or not Forebay's)")
    elif schema == POINT:
        _take_point(runs, place, value)
    elif schema.startswith(RECORD):
        _take_record(runs, place, value)
    elif not schema.startswith("forebay.sweep"):
        runs.skipped.append(f"{place}: has schema '{schema}', which holds no runs to compare")


def _take_point(runs: Runs, place: str, line: dict[str, Any]) -> None:
    if "error" in line or line.get("partial"):
        what = "failed" if "error" in line else "was interrupted"
        runs.skipped.append(f"{place}: {line.get('name', line.get('key'))} {what}")
        return
    record = _current(runs, place, line.get("record"))
    if record is not None and isinstance(line.get("key"), str) and isinstance(line.get("point"), dict):
        if (damaged := odd_field(line["point"])) is not None:
            runs.skipped.append(f"{place}: a point with a damaged '{damaged}'")
            return
        runs.add(line["key"], line["point"], "", record)
    elif record is not None:
        runs.skipped.append(f"{place}: a point without a key")


def _take_record(runs: Runs, place: str, value: dict[str, Any]) -> None:
    record = _current(runs, place, value)
    if record is None:
        return
    if record["result"].get("interrupted"):
        runs.skipped.append(f"{place}: was interrupted")
        return
    job = {k: v for k, v in record["job"].items() if k not in DERIVED}
    runs.add(point_key(job), {**job, "sources": [record["job"].get("source", "")]}, "", record)


def _current(runs: Runs, place: str, record: Any) -> dict[str, Any] | None:
    """The record, brought up to date; None, with the reason kept, where it can't be read."""
    try:
        if not isinstance(record, dict):
            raise ValueError("has no record")
        if record.get("schema") != "forebay.run/1":
            from forebay import _core

            record = json.loads(_core.read_record(json.dumps(record)))
        if not isinstance(record.get("result"), dict) or not isinstance(record.get("job"), dict):
            raise ValueError("has no result or no job")
        damaged = odd_field(record["job"])
        if damaged is not None:
            raise ValueError(f"has a damaged '{damaged}'")
        if odd := contradictions(record):
            raise ValueError(f"contradicts itself: {'; '.join(odd[:3])}")
        return record
    except (ValueError, ForebayError, ImportError) as error:
        runs.skipped.append(f"{place}: {error}".replace("\n", " "))
        return None


def _name(runs: Runs) -> None:
    works = list(runs.works.values())
    varying = varying_fields([w.job for w in works])
    for work in works:
        work.name = describe(work.job, varying)


def _matched(a: Runs, b: Runs) -> list[tuple[Work, Work]]:
    """Work that both files have. Two files of one work each are compared whatever they did."""
    if len(a.works) == 1 and len(b.works) == 1:
        x, y = next(iter(a.works.values())), next(iter(b.works.values()))
        if x.key != y.key:
            names = [describe(w.job, varying_fields([x.job, y.job])) for w in (x, y)]
            x.name = y.name = f"{names[0]} → {names[1]}"
        return [(x, y)]
    pairs = [(work, b.works[key]) for key, work in a.works.items() if key in b.works]
    if not pairs:
        raise RequestError(
            f"compare {a.path} {b.path}",
            f"they have no point in common ({len(a.works)} and {len(b.works)} points)",
            "two results of the same sweep at the same scale",
        )
    return pairs


def _left(runs: Runs, taken: set[str]) -> list[str]:
    return [w.name for key, w in runs.works.items() if key not in taken]


def _point(a: Work, b: Work, metric: Metric, tolerance_pct: float, confidence: float) -> dict[str, Any]:
    samples = a.samples(metric), b.samples(metric)
    row: dict[str, Any] = {"key": a.key, "name": a.name, "runs": [len(s) for s in samples]}
    row["a"], row["b"] = (statistics.median(s) if s else None for s in samples)
    if not all(samples):
        missing = (a if not samples[0] else b).why_missing(metric)
        return {**row, "ratio": None, "verdict": f"not measured: {missing}"}
    ratio = unpaired_ratio(samples[0], samples[1], confidence)
    interval = None if ratio.low is None or ratio.high is None else [ratio.low, ratio.high]
    row["ratio"] = {"estimate": ratio.estimate, "ci95": interval}
    return {**row, "verdict": reported(ratio, metric, tolerance_pct)}


def _overall(points: list[dict[str, Any]], metric: Metric, tolerance_pct: float) -> dict[str, Any] | None:
    """A ÷ B over all points, each with equal weight; None under three points."""
    logs = [math.log(p["ratio"]["estimate"]) for p in points if p["ratio"]]
    if len(logs) < 3:
        return None
    found = mean_interval(logs)
    assert found.low is not None and found.high is not None
    ratio = Interval(exp(found.estimate), exp(found.low), exp(found.high), found.n)
    return {
        "estimate": ratio.estimate,
        "ci95": [ratio.low, ratio.high],
        "points": ratio.n,
        "verdict": reported(ratio, metric, tolerance_pct),
    }


def _verdict(
    points: list[dict[str, Any]], overall: dict[str, Any] | None, metric: Metric, tolerance_pct: float
) -> dict[str, str]:
    worse = [p["name"] for p in points if p["verdict"] == "worse"]
    unsure = [p for p in points if p["verdict"] not in ("worse", "better", "ok")]
    by = f"by more than {tolerance_pct:g} % in {metric.title}"
    if worse:
        text = f"B is worse than A {by} at {len(worse)} of {len(points)} points: {', '.join(worse[:5])}"
        return {
            "kind": "worse",
            "text": text,
            "next": f"forebay compare --a … --b … to see it side by side: {worse[0]}",
        }
    if overall is not None and overall["verdict"] == "worse":
        low, high = (f"{v:.3f}" for v in overall["ci95"])
        return {
            "kind": "worse",
            "text": f"B is worse than A {by} over all points together: A is {low}–{high} × B",
            "next": "",
        }
    if (
        overall is not None
        and overall["verdict"] != "unsure"
        and all(p["verdict"] == "one run" for p in unsure)
    ):
        return {
            "kind": "not_worse",
            "text": f"B is not worse than A {by}, over all points together",
            "next": "",
        }
    if unsure:
        text = f"B is not shown to be worse than A {by}; {len(unsure)} of {len(points)} points are undecided"
        return {"kind": "unsure", "text": text, "next": "more --rounds or --repeat, or longer runs"}
    return {"kind": "not_worse", "text": f"B is not worse than A {by}, at any point", "next": ""}
