"""Permitted changes of a submission in the CLOSED or OPEN division: flags and constants, by rule set.

The parameters have DLIO's names, as the rules list them. A rule's identifier stands in the message and in a result's
verdicts. Source: MLPerf Storage submission guidelines and checkers of v1.0, v2.0 and v3.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.emulate.workloads import Training, builtin
from forebay.errors import RequestError
from forebay.uri import parsed

if TYPE_CHECKING:
    from forebay.emulate.request import Request

CLOSED_V1 = frozenset({
    "dataset.num_files_train", "dataset.num_subfolders_train", "dataset.data_folder", "reader.read_threads",
    "reader.computation_threads", "reader.transfer_size", "reader.prefetch_size", "checkpoint.checkpoint_folder",
    "storage.storage_root", "storage.storage_type",
})  # fmt: skip
CLOSED: Mapping[str, frozenset[str]] = {
    "v1.0": CLOSED_V1,
    "v2.0": CLOSED_V1 | {"reader.odirect"},
    "v3.0": CLOSED_V1 | {"reader.odirect", "storage.storage_options.prefetch_window"},
}
OPEN_ADDS = frozenset({"framework", "dataset.format", "dataset.num_samples_per_file", "reader.data_loader"})
# Values: 0, 1 or 2.
PREFETCH_MAX = 2
ODIRECT_ONLY = "unet3d"
# Rule sets by which nothing may be in the page cache when a run begins. The others have a run that warms up instead.
EMPTIED = ("v1.0", "text")
# Rule sets whose submissions have a run that warms up; in the others of those above they may.
WARMED_UP = ("v3.0",)
# Rule sets by which those who submit change the seed from run to run.
NEW_SEEDS = ("v2.0", "v3.0")

# Flag → the parameter that it sets.
FLAGS = {
    "files": "dataset.num_files_train",
    "data": "dataset.data_folder",
    "read_threads": "reader.read_threads",
    "prefetch": "reader.prefetch_size",
    "io_size": "reader.transfer_size",
    "epochs": "train.epochs",
    "steps": "train.total_training_steps",
    "seed": "train.seed",
}
# Constant of a workload → the parameter that it is.
CONSTANTS = {
    "format": "dataset.format",
    "loader": "reader.data_loader",
    "batch": "reader.batch_size",
    "compute_s": "train.computation_time",
    "record_bytes": "dataset.record_length_bytes",
    "record_bytes_stdev": "dataset.record_length_bytes_stdev",
    "record_bytes_resize": "dataset.record_length_bytes_resize",
    "samples_per_file": "dataset.num_samples_per_file",
    "read_threads": "reader.read_threads",
    "computation_threads": "reader.computation_threads",
    "prefetch": "reader.prefetch_size",
    "epochs": "train.epochs",
    "au_pct_min": "metric.au",
    "file_shuffle": "reader.file_shuffle",
    "sample_shuffle": "reader.sample_shuffle",
    "shuffle_samples": "reader.shuffle_size",
    "transfer_bytes": "reader.transfer_size",
    "row_group": "dataset.parquet.row_group_size",
    "columns": "dataset.parquet.columns",
}


@dataclass(frozen=True)
class Breach:
    """One rule that the request breaks: its identifier, the parameter if it is one, and what to do instead."""

    id: str
    what: str
    next: str


def allowed(rules: str, division: str) -> frozenset[str]:
    """The parameters that may differ from the workload's. By `text` they are those of the newest rules."""
    closed = CLOSED[rules if rules in CLOSED else "v3.0"]
    return closed | OPEN_ADDS if division == "open" else closed


def caches(rules: str) -> tuple[str, ...]:
    """The policies of the page cache by which a run may read. O_DIRECT has a rule of its own."""
    return ("drop", "bypass") if rules in EMPTIED else ("drop", "bypass", "allow")


def no_odirect(workload: str, rules: str, division: str) -> str | None:
    """Why a workload may not be read by O_DIRECT; None where it may."""
    if "reader.odirect" not in allowed(rules, division):
        return f"which {rules} doesn't have"
    return None if workload == ODIRECT_ONLY else f"which is for {ODIRECT_ONLY} alone"


def check(request: Request) -> None:
    """RequestError that lists every rule of the request's division that it breaks. Nothing without a division."""
    if request.division is None:
        return
    found = list(breaches(request))
    if found:
        reported = "; ".join(f"{b.what} [{b.id}]" for b in found)
        ways = "; ".join(dict.fromkeys(b.next for b in found))
        raise RequestError(f"--{request.division} by {request.rules}", reported, f"{ways}; or no --{request.division}")


def check_warm_up(request: Request, wanted: bool) -> bool:
    """Checks whether a run that doesn't count comes before the others. RequestError where it is `wanted`, and rules forbid
    it."""
    if wanted and request.division is not None and request.rules in EMPTIED:
        reported = "these rules forbid a run that warms caches [runs]"
        raise RequestError(f"--warmup-run --{request.division} by {request.rules}", reported, "without --warmup-run")
    return wanted or request.division is not None and request.rules in WARMED_UP


def breaches(request: Request) -> Iterator[Breach]:
    division = request.division or "closed"
    yield from breaches_of_workload(request.workload, request.rules, division)
    may = allowed(request.rules, division)
    for flag, parameter in FLAGS.items():
        if flag in request.given and parameter not in may:
            spelled = "--" + flag.replace("_", "-")
            yield Breach("parameters", f"{spelled} sets {parameter}, which must not be changed", f"without {spelled}")
    if division == "closed" and request.prefetch > PREFETCH_MAX:
        yield Breach("prefetch", f"reader.prefetch_size is {request.prefetch}, at most {PREFETCH_MAX}", "--prefetch 2")
    yield from _of_reading(request, division)


def _of_reading(request: Request, division: str) -> Iterator[Breach]:
    cache = request.job.get("cache")
    why = no_odirect(request.workload.name, request.rules, division) if cache == "bypass" else None
    if why:
        yield Breach("odirect", f"--cache bypass sets reader.odirect, {why}", "--cache drop")
    if cache == "auto":
        yield Breach("cache", "--cache auto reads past the page cache or through a warm one", "--cache drop")
    elif cache is not None and cache not in caches(request.rules):
        yield Breach("cache", f"--cache {cache} may serve reads from memory that the rules have empty", "--cache drop")
    if division == "closed" and request.level == "bytes" and request.rules != "v3.0":
        yield Breach("level", f"--level bytes leaves out checks that {request.rules}'s readers make", "--level parse")
    if request.on_error == "skip":
        yield Breach("on-error", "--on-error skip counts samples that were never read", "--on-error fail")
    models = [source for source in request.data if parsed(source).drive is not None]
    if models:
        yield Breach("measured", f"--data {models[0]} is simulated with a modelled drive", "--data DIR")
    if request.supply_gib_s is not None:
        yield Breach("supply", "--supply measures a limit of its own", "without --supply")


def breaches_of_workload(workload: Training, rules: str, division: str) -> Iterator[Breach]:
    """Yields the differences between the workload and the rules. Nothing: it is the published one, whoever's file it is from."""
    reference = published(workload.name, workload.accelerator, rules)
    if reference is None:
        what = f"{workload.name} on {workload.accelerator} isn't a workload of {rules}"
        yield Breach("workload", what, "forebay emulate workloads")
        return
    if reference.status != "closed":
        yield Breach("workload", f"{workload.name} doesn't belong to any division", "forebay emulate workloads")
    may = allowed(rules, division)
    for key, parameter in CONSTANTS.items():
        ours, theirs = getattr(workload, key), getattr(reference, key)
        if ours != theirs and parameter not in may:
            shown = "" if key == "columns" else f" is {_shown(ours)}, not {_shown(theirs)}"
            yield Breach("parameters", f"{parameter}{shown or ' differs'}", f"{parameter} as published")


def published(name: str, accelerator: str | None, rules: str) -> Training | None:
    """The rules' own workload of that name on that accelerator."""
    for known in builtin().get(name, ()):
        fits = isinstance(known, Training) and known.accelerator == accelerator
        if fits and isinstance(known, Training) and (rules == "text" or rules in known.rules):
            return known
    return None


def _shown(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
