"""Files of a run of the KV cache workload, in the layout and under the names of MLPerf Storage v3.0's own tool.

OUT/option_O/trial_T/rank_N/kvcache_results_STAMP.json for each rank, OUT/summary.json over them, and beside it forebay.json,
which has the label and says which files are Forebay's to write anew. Nothing else is ever replaced.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from forebay.bench import save
from forebay.emulate.kvcache import rank_document, rank_files
from forebay.emulate.kvcache.formula import aggregate
from forebay.errors import MachineError, RequestError

LABEL = "MLPerf-style, unverified"
SUMMARY, OWN = "summary.json", rank_files.OWN
OWN_SCHEMA = "forebay.kvcache-tree/1"
SUMMARY_VERSION = "1.0"
STAMP = re.compile(r"[0-9]{8}_[0-9]{6}")
TRACE_HEADER = ("Timestamp", "Operation", "Object_Size_Bytes", "Tier", "Key", "Phase")
TIERS = {"gpu": "Tier-0", "host": "Tier-1", "storage": "Tier-2"}


class Operation(NamedTuple):
    """A row of a trace. `timestamp`: seconds since 1970; `tier`: gpu, host or storage; `phase`: Prefill, Decode or Evict."""

    timestamp: float
    operation: str
    size_bytes: int
    tier: str
    key: str
    phase: str


def rank_folder(out_dir: str | Path, option: int, trial: int, rank: int) -> Path:
    return Path(out_dir) / f"option_{option}" / f"trial_{trial}" / f"rank_{rank}"


def refuse_occupied(out_dir: str | Path, option: int, trial: int, rank: int) -> None:
    """RequestError where this rank has a result already: readers take any one of several. Asked before a run, too."""
    folder = rank_folder(out_dir, option, trial, rank)
    found = sorted(p.name for p in folder.glob(f"{rank_files.PREFIX}*")) if folder.is_dir() else []
    if found:
        reported = f"holds {found[0]} already, and nothing is overwritten"
        raise RequestError(f"results in {folder}", reported, f"another folder; or mv {folder} somewhere else")


def write_rank(
    out_dir: str | Path,
    option: int,
    trial: int,
    rank: int,
    record: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    stamp: str,
) -> Path:
    """Writes the file of one rank and returns its path. `stamp`: YYYYmmdd_HHMMSS of the run's beginning, local time.

    `requests`: those that were completed, in that order. The record's seed is that of rank 0. RequestError where the rank has
    a result already.
    """
    if not STAMP.fullmatch(stamp):
        raise RequestError(f"a result of {stamp!r}", "is not a time as YYYYmmdd_HHMMSS", "20261128_093000")
    refuse_occupied(out_dir, option, trial, rank)
    target = rank_folder(out_dir, option, trial, rank) / f"{rank_files.PREFIX}{stamp}.json"
    _place(target, json.dumps(rank_document.document(record, requests, rank), indent=4, allow_nan=False) + "\n")
    return target


def write_summary(out_dir: str | Path, hosts: int = 1, durations_s: Mapping[str, float] | None = None) -> Path:
    """Writes OUT/summary.json from the rank files below OUT alone, and returns its path.

    `durations_s`: seconds that trials (`option_1/trial_0`) were asked for, kept in Forebay's own file beside those of before. A
    summary.json that Forebay wrote is replaced; RequestError where it is another's, or was changed since.
    """
    out = Path(out_dir)
    found = rank_files.survey(out)
    text = json.dumps(summary(found, hosts), indent=2, allow_nan=False) + "\n"
    target, own = out / SUMMARY, out / OWN
    before = _before(own)
    digest, known = hashlib.sha256(text.encode()).hexdigest(), [d for d in before["written"][SUMMARY] if isinstance(d, str)]
    if target.exists() and not _is_known(target, known):
        reported = "exists, and isn't as Forebay wrote it, so it isn't overwritten"
        raise RequestError(str(target), reported, f"mv {target} {target}.old, or another folder")
    # Before the summary, with the last one's digest: whenever this ends, what is there is known.
    digests, lasted = list(dict.fromkeys([digest, *known]))[:2], before.get("durations_s")
    lasted = {**(lasted if isinstance(lasted, dict) else {}), **(durations_s or {})}
    written = {"schema": OWN_SCHEMA, "label": LABEL, "written": {SUMMARY: digests}, "durations_s": lasted}
    _place(own, json.dumps(written, indent=2) + "\n", lambda _: True)
    _place(target, text, lambda there: _is_known(there, known))
    return target


def summary(found: rank_files.Found, hosts: int = 1) -> dict[str, Any]:
    """summary.json of what lies below one folder. Ranks and trials are counted through the greatest number found."""
    ranks, trials_of = rank_files.slots(found)
    if not trials_of:
        raise RequestError(found.tree, "holds no result of a rank", "the folder above option_1/trial_0/rank_0")
    options = {str(option): aggregate(trials, ranks) for option, trials in trials_of.items()}
    failures = [
        {"option": option, "trial": number}
        for option, trials in trials_of.items()
        for number, trial in enumerate(trials)
        if all(slot.document is None for slot in trial)
    ]
    return {
        "schema_version": SUMMARY_VERSION,
        "run_datetime": min((f.stamp for f in found.files if f.stamp), default=None),
        "npernode": max(ranks // max(hosts, 1), 1),
        "host_count": hosts,
        "total_ranks": ranks,
        "trials_per_option": max(part["trial_count"] for part in options.values()),
        "options": options,
        "partial_failure": any(part["partial_failure"] for part in options.values()),
        "trial_failures": failures,
    }


def write_trace(path: str | Path, rows: Iterable[Operation]) -> None:
    """Writes a trace as the reference's CSV; compressed if the name ends in .zst, which needs the module zstandard."""
    target = Path(path)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(TRACE_HEADER)
    for row in rows:
        tier = TIERS.get(row.tier, row.tier)
        writer.writerow([f"{row.timestamp:.6f}", row.operation, row.size_bytes, tier, row.key, row.phase])
    content = text.getvalue().encode()
    _place(target, _compressed(content, target) if target.suffix == ".zst" else content)


def _compressed(content: bytes, target: Path) -> bytes:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        reported = "needs Python's module zstandard, which isn't installed"
        raise MachineError(f"a trace in {target}", reported, f"pip install zstandard, or {target.with_suffix('')}") from None
    return bytes(zstandard.ZstdCompressor().compress(content))


def _before(own: Path) -> dict[str, Any]:
    """What Forebay wrote of its files last, with no digests where there is nothing. RequestError where that is another's."""
    if not own.exists():
        return {"written": {SUMMARY: []}}
    try:
        found = rank_files.load(own)
        if found["schema"] == OWN_SCHEMA and isinstance(found["written"][SUMMARY], list):
            return dict(found)
    except (rank_files.Damaged, KeyError, TypeError):
        pass
    raise RequestError(str(own), "exists and isn't Forebay's list of its files, so it isn't overwritten", "another folder")


def _is_known(target: Path, known: Sequence[str]) -> bool:
    try:
        return hashlib.sha256(target.read_bytes()).hexdigest() in known
    except OSError:
        return False


def _place(target: Path, content: str | bytes, may_be_replaced: Callable[[Path], bool] | None = None) -> None:
    """Makes a file whole or not at all, with the folders above it. RequestError where one is there that isn't replaced."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise save.unwritable(str(target.parent), error, "folder") from error
    try:
        save.place(target, content, may_be_replaced)
    except FileExistsError:
        raise RequestError(str(target), "exists, so it isn't overwritten", "another name") from None
    except OSError as error:
        raise save.unwritable(str(target), error) from error
