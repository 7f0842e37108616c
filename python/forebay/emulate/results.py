"""Folders of results as runs that can be compared: records of ours, and what DLIO and MLCommons' tool wrote.

A run of theirs is a folder with a `summary.json`; what was overridden lies beside it, in `configs/`, `dlio_config/` or
`.hydra/`, and MLCommons' tool of v2.0 and later adds a `*_metadata.json`. What a result doesn't say is None, not a guess.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from forebay.doubts import contradictions
from forebay.emulate import kept
from forebay.emulate.workloads import Checkpoint, builtin
from forebay.errors import RequestError
from forebay.sweep import results as kept_lines
from forebay.units import GIB

SUMMARY = "summary.json"
CONFIG_FOLDERS = ("configs", "dlio_config", ".hydra")
FILE_BYTES_MAX = 256 << 20
# Files and folders looked at below one folder: results are a few dozens.
ENTRIES_MAX = 20_000
OVERRIDES_MAX = 10_000
# Of files, accelerators, bytes: more is damage.
COUNT_MAX = 1 << 60
# The engine's warning of a run with --supply.
THROTTLED = "throttled_supply"


@dataclass(frozen=True)
class Run:
    """One run. Times are seconds since 1970; rates are samples/s; utilisation is in per cent.

    `parameters`: DLIO's names without `workload.`, as far as they were overridden. `constants`: the workload's as the
    result states them, by the names of `workloads.Training`. `said_to_pass`: what the result itself says of its AU.
    """

    place: str
    written_by: str
    edition: str
    workload: str
    accelerator: str | None
    accelerators: int
    hosts: int
    files: int
    samples_per_file: int
    epochs: int
    au_pct: float | None
    samples_per_s: float | None
    said_to_pass: bool | None = None
    began: float | None = None
    ended: float | None = None
    memory_bytes: float | None = None
    cache: str | None = None
    level: str | None = None
    simulated: bool = False
    interrupted: bool = False
    skipped: int = 0
    uneven_hosts: bool | None = None
    seed: int | None = None
    # What it was fed was held back to a rate (--supply).
    throttled: bool = False
    # By constants from a file of the user's that aren't all the published ones.
    own_constants: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        return self.ended - self.began if self.began is not None and self.ended is not None else None


@dataclass(frozen=True)
class Damaged:
    """A result that can't be read, and why."""

    place: str
    why: str


class OfCheckpoints(Exception):
    """A result of checkpoints, which rules of training say nothing of."""


@dataclass(frozen=True)
class Found:
    """Content of a folder: runs by their beginning, what couldn't be read, and the places of results of checkpoints."""

    runs: list[Run]
    damaged: list[Damaged]
    checkpoints: list[str]


def read(folder: str) -> tuple[list[Run], list[Damaged]]:
    """The runs below a folder by their beginning, and what couldn't be read. RequestError where there are none."""
    found = survey(folder)
    return found.runs, found.damaged


def survey(folder: str) -> Found:
    """All results below a folder. RequestError where none is of training."""
    root = Path(folder)
    if not root.exists():
        raise RequestError(folder, "there is no such folder", "the folder that --results named, or DLIO's")
    runs: list[Run] = []
    damaged: list[Damaged] = []
    checkpoints: list[str] = []
    for file in candidates(root):
        place = os.path.relpath(file.parent if file.name == SUMMARY else file, root)
        try:
            if file.name == kept.FILE:
                runs += of_search(file, place, damaged)
            else:
                runs += of_summary(file, place) if file.name == SUMMARY else of_records(file, place)
        except OfCheckpoints:
            checkpoints.append(place)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError) as error:
            damaged.append(Damaged(place, described(error)))
    if not runs and not damaged and checkpoints:
        found = f"holds only results of checkpoints ({len(checkpoints)}), whose records have their verdicts in checkpoint.rules"
        raise RequestError(folder, found, "forebay emulate checkpoint --closed")
    if not runs and not damaged:
        found = "holds no result: neither a record of an emulated run nor a summary.json"
        raise RequestError(folder, found, "forebay emulate run --results DIR")
    # Stable: those that began at once stay in the order in which they are kept.
    return Found(sorted(runs, key=lambda r: r.began or 0.0), damaged, checkpoints)


def candidates(root: Path) -> Iterator[Path]:
    """Files that may be results, in a folder's order. Below a summary's folder nothing else is looked for; a search's
    result.json repeats one of its runs."""
    if root.is_file():
        yield root
        return
    seen = 0
    for at, folders, files in os.walk(root):
        folders.sort()
        seen += len(files) + len(folders)
        if seen > ENTRIES_MAX:
            raise RequestError(str(root), f"holds more than {ENTRIES_MAX:,} files", "the folder that holds only the results")
        if SUMMARY in files:
            folders.clear()
            yield Path(at, SUMMARY)
            continue
        searched = {kept.FILE, kept.RESULT} if kept.FILE in files else set()
        if searched:
            yield Path(at, kept.FILE)
        yield from (Path(at, name) for name in sorted(files) if name.endswith(".json") and name not in searched)


def described(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__


def load(file: Path) -> Any:
    if file.stat().st_size > FILE_BYTES_MAX:
        raise ValueError(f"{file.name} is larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file.name} isn't JSON: {error}") from None


# Records of ours ----------------------------------------------------------------------------------------


def of_records(file: Path, place: str) -> list[Run]:
    """Returns the runs of a file of records that emulate training; none of another JSON file."""
    document = load(file)
    records = document if isinstance(document, list) else [document]
    ours = [r for r in records if isinstance(r, dict) and str(r.get("schema", "")).startswith("forebay.run/")]
    training = [of_record(r, place) for r in ours if r.get("training")]
    if not training and any(r.get("checkpoint") for r in ours):
        raise OfCheckpoints
    return training


def of_search(file: Path, place: str, damaged: list[Damaged]) -> list[Run]:
    """The full runs of a search with the number that it found; lines of it that can't be read go to `damaged`."""
    named, unreadable = searched(file)
    damaged += [Damaged(place, why) for why in unreadable]
    return [of_record(record, f"{place}, {name}") for name, record in named]


def searched(file: Path) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """(name and record of each run that confirms a search's answer, what is wrong with other lines); nothing of another
    verb's file."""
    contents = kept_lines.read(file)
    unreadable = [f"line {number} {why}" for number, why in contents.damaged]
    if contents.headers and contents.headers[-1].get("origin") != kept.ORIGIN or not contents.ours:
        return [], []
    return kept.runs_of_answer(contents), unreadable


def of_record(record: Mapping[str, Any], place: str) -> Run:
    if odd := contradictions(record):
        raise ValueError(f"it contradicts itself: {'; '.join(odd[:3])}")
    training, result = record["training"], record["result"]
    began = timestamp(record["started"])
    constants = ("batch", "compute_s", "record_bytes", "samples_per_file", "format", "loader", "au_pct_min")
    hosts = int(training["hosts"])
    memory = record["environment"].get("memory_bytes")
    parameters = {"dataset.num_files_train": training["files"], "reader.prefetch_size": training["prefetch"]}
    parameters["reader.read_threads"] = training["read_threads"]
    steps, all_steps = training.get("steps"), steps_of(training)
    if steps and steps < all_steps:
        parameters["train.total_training_steps"] = f"{steps} of {all_steps}"
    return Run(
        place=place,
        written_by="forebay",
        edition=str(training["rule_set"]),
        workload=str(training["workload"]),
        accelerator=str(training["accelerator"]),
        accelerators=whole(training["accelerators"], "accelerators"),
        hosts=hosts,
        files=whole(training["files"], "files"),
        samples_per_file=whole(training["samples_per_file"], "samples_per_file"),
        epochs=len(training["epochs"]),
        au_pct=number(training["au_pct"]),
        samples_per_s=number(training["samples_per_s"]),
        said_to_pass=bool(training["passes"]),
        began=began,
        ended=None if began is None else began + float(result["seconds"]),
        memory_bytes=None if memory is None else float(memory) * hosts,
        cache=record["cache"]["policy"],
        level=str(training["level"]),
        simulated=record["origin"] != "measured",
        interrupted=bool(result.get("interrupted")),
        skipped=int(training["skipped"]["count"]),
        # Merging hosts refuses unequal ones.
        uneven_hosts=False,
        seed=whole(training["seed"], "seed") if "seed" in training else None,
        throttled=any(w.get("id") == THROTTLED for w in record.get("warnings") or ()),
        own_constants=training.get("version") == "own",
        parameters={key: str(value) for key, value in parameters.items()},
        constants={key: training[key] for key in constants if key in training},
    )


def steps_of(training: Mapping[str, Any]) -> int:
    """Steps of an epoch that uses the whole data set."""
    samples = whole(training["files"], "files") * whole(training["samples_per_file"], "samples_per_file")
    a_step = whole(training["batch"], "batch") * whole(training["accelerators"], "accelerators")
    return samples // a_step if a_step else 0


# DLIO's and MLCommons' ----------------------------------------------------------------------------------


def of_summary(file: Path, place: str) -> list[Run]:
    summary = load(file)
    if not isinstance(summary, dict):
        raise ValueError("summary.json isn't an object")
    metric = summary["metric"]
    overrides = read_overrides(file.parent)
    metadata = read_metadata(file.parent)
    if "train_au_mean_percentage" not in metric:
        if is_of_checkpoints(metric, overrides, metadata):
            raise OfCheckpoints
        # It ended before its first epoch did.
        raise ValueError("summary.json states no AU: not a finished training run")
    workload, accelerator = named(overrides, metadata)
    memory = summary.get("host_memory_GB")
    accelerators = whole(summary["num_accelerators"], "num_accelerators")
    hosts = whole(summary.get("num_hosts", 1), "num_hosts")
    if not accelerators or not hosts:
        raise ValueError(f"{accelerators} accelerators on {hosts} hosts ran nothing")
    said = metric.get("train_au_meet_expectation")
    seed = overrides.get("train.seed", "")
    return [
        Run(
            place=place,
            written_by="mlpstorage" if metadata else "dlio",
            edition=edition(file.parent, metadata),
            workload=workload,
            accelerator=accelerator,
            accelerators=accelerators,
            hosts=hosts,
            files=whole(summary["num_files_train"], "num_files_train"),
            samples_per_file=whole(summary["num_samples_per_file"], "num_samples_per_file"),
            epochs=whole(summary["epochs"], "epochs"),
            au_pct=number(metric["train_au_mean_percentage"]),
            samples_per_s=number(metric.get("train_throughput_mean_samples_per_second")),
            said_to_pass={"success": True, "fail": False}.get(str(said)),
            began=timestamp(summary.get("start")),
            ended=timestamp(summary.get("end")),
            memory_bytes=memory_of(memory, hosts),
            uneven_hosts=bool(accelerators % hosts) if hosts else None,
            seed=int(seed) if seed.isascii() and seed.isdigit() and len(seed) < 20 else None,
            parameters={k: v for k, v in overrides.items() if k != "workload"},
        )
    ]


def is_of_checkpoints(metric: Any, overrides: Mapping[str, str], metadata: Mapping[str, Any]) -> bool:
    """DLIO's figures of checkpoints have names of their own; what ended before it had any is told by its workload."""
    if any("checkpoint" in key for key in metric):
        return True
    arguments = metadata.get("args")
    said = [metadata, arguments if isinstance(arguments, dict) else {}]
    names = [overrides.get("workload", ""), *(str(each.get("model", "")) for each in said)]
    kinds = [str(each.get(key, "")) for each in said for key in ("benchmark", "benchmark_type", "program")]
    models = {re.sub(r"[^a-z0-9]", "", name) for name, of in builtin().items() if isinstance(of[0], Checkpoint)}
    return "checkpointing" in kinds or any(re.sub(r"[^a-z0-9]", "", name.lower()) in models for name in names)


def read_overrides(folder: Path) -> dict[str, str]:
    """DLIO's name → value of what the command line overrode; `workload` is the name of the workload's file."""
    for name in CONFIG_FOLDERS:
        file = folder / name / "overrides.yaml"
        if file.is_file():
            break
    else:
        return {}
    if file.stat().st_size > FILE_BYTES_MAX:
        raise ValueError("overrides.yaml is too large")
    found: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines()[:OVERRIDES_MAX]:
        key, equals, value = line.strip().removeprefix("-").strip().strip("'\"").partition("=")
        if equals:
            found[key.lstrip("+").removeprefix("workload.")] = value.strip()
    return found


def read_metadata(folder: Path) -> dict[str, Any]:
    """Reads the description of the run by MLCommons' tool; empty where DLIO ran by itself."""
    for file in sorted(folder.glob("*_metadata.json")):
        found = load(file)
        if isinstance(found, dict):
            return found
    return {}


def named(overrides: Mapping[str, str], metadata: Mapping[str, Any]) -> tuple[str, str | None]:
    """(workload, accelerator): v1.0's script names the file `unet3d_h100`; v2.0's says both in its metadata, too."""
    arguments = metadata.get("args")
    known = arguments if isinstance(arguments, dict) else metadata
    model, accelerator = known.get("model"), known.get("accelerator_type") or known.get("accelerator")
    stem = overrides.get("workload", "")
    name, _, tail = stem.partition("_")
    workload = str(model or name)
    if not workload:
        raise ValueError("neither configs/overrides.yaml nor metadata names the workload")
    found = accelerator or tail or None
    return workload.lower(), str(found).lower() if found else None


def edition(folder: Path, metadata: Mapping[str, Any]) -> str:
    """By what only that edition's tools write."""
    if (folder / "provenance.json").exists() or (folder / ".mlps-code-image").exists():
        return "v3.0"
    return "v2.0" if metadata or list(folder.glob("*_per_epoch_stats.json")) else "v1.0"


def memory_of(stated: Any, hosts: int) -> float | None:
    """Bytes of all hosts, of DLIO's list of GiB: an entry per host (v1.0 writes the first alone where there are more)."""
    if not isinstance(stated, list) or not stated:
        return None
    each = [float(gib) for gib in stated]
    total = (sum(each) if len(each) == hosts else each[0] * hosts) * GIB
    if not 0 <= total <= COUNT_MAX:
        raise ValueError(f"host_memory_GB is {str(stated)[:60]}")
    return total


def timestamp(text: Any) -> float | None:
    """Parses a time of ISO 8601. DLIO writes local time without saying which: only differences mean something there."""
    if not isinstance(text, str):
        return None
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def number(value: Any) -> float | None:
    """A finite number, or None for null. ValueError for anything else."""
    if value is None:
        return None
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{value!r} isn't a number")
    return found


def whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= COUNT_MAX or value != int(value):
        raise ValueError(f"{what} is {value!r}, not a count")
    return int(value)
