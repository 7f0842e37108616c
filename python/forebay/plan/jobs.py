"""The kind of a plan's workload, and its demand on storage.

`io` reads; `kvcache` is a serving engine's; `dlrm` (on h100) is MLPerf Training's, planned in minutes; `job` is any training job
by its bytes per sample and its rate; `bert` to `gnn` and `infer-…` are models that `forebay train` and `forebay infer` run
(forebay.plan.models); every other name is a workload as `forebay emulate workloads` lists it, or a TOML file of
one: training, planned in accelerators and AU, or a checkpoint, planned in seconds.
"""

from __future__ import annotations

import math
from functools import lru_cache

from forebay.errors import RequestError
from forebay.plan import models
from forebay.plan.training import DEMAND_MIBPS, SMALL_FILE, Ask, usual_ask

IO, DLRM, JOB, KVCACHE = "io", "dlrm", "job", "kvcache"
H100, ACCELERATORS = "h100", ("h100", "a100", "b200", "mi355")
# Of a training job that says nothing of it: the share of its rate that it must keep.
LEAST_PCT = 90.0


def is_checkpoint(workload: str) -> bool:
    """RequestError for a workload that isn't known."""
    if workload in (IO, DLRM, JOB, KVCACHE) or (workload, H100) in DEMAND_MIBPS or models.known(workload):
        return False
    from forebay.emulate import workloads

    return isinstance(_variants(workload)[0], workloads.Checkpoint)


def in_minutes(workload: str, accelerator: str) -> bool:
    """Returns whether it is MLPerf Training's DLRM, and not the emulated one, which other accelerators have."""
    return workload == DLRM and accelerator == H100


def _variants(workload: str) -> tuple:
    from forebay.emulate import workloads

    try:
        return workloads.variants(workload)
    except RequestError as error:
        if not error.found.startswith("is not known"):
            raise
        known = ", ".join((IO, JOB, KVCACHE, *workloads.builtin(), *models.TABLE))
        raise RequestError(f"workload '{workload}'", error.found, f"one of {known}; or a TOML file of one") from None


@lru_cache(maxsize=256)
def names_no_accelerator(workload: str) -> bool:
    """Returns whether it is a user's own training, of the accelerator that it ran on: a job, or a file as `watch` writes it."""
    from forebay.emulate import workloads

    if workload in (JOB, IO, DLRM, KVCACHE) or (workload, H100) in DEMAND_MIBPS or models.known(workload):
        return workload == JOB
    return all(getattr(v, "accelerator", None) == workloads.OWN["accelerator"] for v in _variants(workload))


@lru_cache(maxsize=256)
def ask(workload: str, accelerator: str, rules: str | None, sample_bytes: float | None, samples_per_s: float | None) -> Ask:
    """Returns the demand of one accelerator. RequestError where the workload has no constants for it, or the job no rate.
    `sample_bytes`: None for a model's own, where nobody says otherwise."""
    if models.known(workload):
        mb_s = models.need(workload, accelerator, sample_bytes, samples_per_s).mb_s
        return Ask(mb_s * 1e6 / 2**20, LEAST_PCT, benchmark=False)
    if workload == JOB:
        assert sample_bytes is not None
        if samples_per_s is None:
            raise RequestError("workload job", "needs a training rate", "--samples-per-s 1500 (of one accelerator)")
        return Ask(sample_bytes * samples_per_s / 2**20, LEAST_PCT, benchmark=False)
    if rules is None and (workload, accelerator) in DEMAND_MIBPS:
        return usual_ask(workload, accelerator)
    from forebay.emulate import workloads

    made = workloads.load(workload, None if names_no_accelerator(workload) else accelerator, rules)[0]
    small = made.record_bytes * made.samples_per_file < SMALL_FILE
    readers = float(made.read_threads) if small else math.inf
    # A file of the user's describes a training that MLPerf's client doesn't run.
    return Ask(made.mib_s, made.au_pct_min, workload in workloads.builtin(), readers)
