"""Single training runs of DLRM by other submitters (MLPerf Training v4.1): what a run's minutes are made of.

Minutes are an identity of what a row says: (training seconds + evaluations × their seconds) ÷ 60. Where a row is blank,
the logs of its quantities come from runs of the same system, with the spread seen there. Of a system without any they
follow from GPUs, their memory and the batch, by a line over the other systems, as unsure as those lie about it.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.errors import RequestError
from forebay.plan.dlrm import EVALS_PER_EPOCH, SAMPLES
from forebay.plan.estimate import Estimate, from_log
from forebay.plan.fit import likelihood, weighed
from forebay.plan.published import Row, number, positive

if TYPE_CHECKING:
    from forebay.plan.planner import Planner

FILLS = ("run_min", "epoch_at_stop", "n_eval", "eval_s_mean", "train_s", "rate_Msps_median", "rate_first", "init_s")
# Log and its standard deviation.
Known = tuple[float, float]
# Mean and standard deviation of how a log grows with that of something.
Slope = tuple[float, float]
LEAST = 0.01
# Of runs of one system, where no system has two; of systems about the line, as if one had shown it.
WITHIN, BETWEEN = 0.05, 0.1
# So many runs of a system tell its own spread; fewer, its mean.
OWN_SPREAD = 3
TURNS = 5
# The line's own level isn't known before: its logarithm, within so much.
LEVEL = 100.0
# How unsure a slope is in each e-fold, by how unsure it is as a whole: what the systems make likely is weighed.
WALKS = (0.0, 0.5, 1.0)
GPUS_USUAL, MEMORY_USUAL, BATCH_USUAL = 8.0, 3.35, 55_296.0
# A batch above this isn't of one host; how many there are, where the name doesn't say, is hardly known.
BATCH_OF_ONE, HOSTS_USUAL, HOSTS_SPREAD = 80_000.0, 8.0, 0.7
# GPUs of a host ("80GBx4", "x8H200", "4xH100") and hosts ("eos_n16_…", "4xXE9680x8H100") as submitters name them.
GPUS_EACH = re.compile(r"(?<=[A-Z0-9])x(\d{1,2})(?!\d)|(?<!\d)(\d{1,2})x(?=[ABGH]{1,2}\d)")
HOSTS = re.compile(r"(?:^|_)n(\d{1,4})(?:_|$)|^(\d{1,4})x(?=[A-Z])(?![ABGH]{1,2}\d)|(?<!\d)(\d{1,4})[_-]?nodes?(?![a-z])")
# TB/s of one GPU's memory, by data sheets; "gb200" and "gh200" hold one of these words.
MEMORY_TB_S = (("b200", 8.0), ("h200", 4.8), ("mi300", 5.3), ("a100", 2.0), ("pcie", 2.0))
# By GPUs, their memory and the batch. GPUs share work but exchange more; memory serves a part of it alone.
RATE: tuple[Slope, ...] = ((0.8, 0.3), (0.5, 0.3), (0.0, 0.1))
EVALUATION: tuple[Slope, ...] = ((-0.8, 0.3), (-0.5, 0.3), (0.0, 0.1))
# Larger batches need more samples to converge, by a power that differs between jobs; hardware has no part in it.
EPOCHS: tuple[Slope, ...] = ((0.0, 0.01), (0.0, 0.01), (0.2, 0.15))
START: tuple[Slope, ...] = ((0.0, 0.4), (0.0, 0.4), (0.0, 0.4))
COLUMNS = {
    "rate_Msps_median": RATE, "rate_first": RATE, "eval_s_mean": EVALUATION, "epoch_at_stop": EPOCHS, "init_s": START
}  # fmt: skip


@dataclass(frozen=True)
class Sheet:
    """GPUs of all hosts, TB/s of one GPU's memory, samples of a step. `unsure`: standard deviation of log(GPUs)."""

    gpus: float
    memory_tb_s: float
    batch: float
    unsure: float = 0.0

    def features(self) -> list[float]:
        of_one = (self.gpus / GPUS_USUAL, self.memory_tb_s / MEMORY_USUAL, self.batch / BATCH_USUAL)
        return [1.0, *(math.log(v) for v in of_one)]


# By organisation, system, its sheet and a column.
Like = dict[tuple[str, str, Sheet, str], Known]


def predict(planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[dict[str, Estimate]]:
    known = planner.rows("ext_mlperf_training_v4.1_dlrm_runs")
    like: Like = {}
    return [_row(known, row, at, like) for row, at in zip(rows, where, strict=True)]


def _row(known: Sequence[Row], row: Row, where: str, like: Like) -> dict[str, Estimate]:
    """`like`: what was found before, of other rows of the table: many are of one system."""
    got: dict[str, Known] = {}
    sheet = sheet_of(row, where)
    for column in ("rate_Msps_median", "eval_s_mean", "rate_first", "init_s", "epoch_at_stop"):
        value = _known(row, column, where)
        if value:
            got[column] = math.log(value), 0.0
            continue
        key = (row.get("org", ""), row.get("system", ""), sheet, column)
        if key not in like:
            like[key] = _like(known, key[:2], sheet, column)
        got[column] = like[key]
    given_evals, given_train = _known(row, "n_eval", where), _known(row, "train_s", where)
    epochs = got["epoch_at_stop"]
    if given_evals and not number(row, "epoch_at_stop", where):
        epochs = got["epoch_at_stop"] = (math.log(given_evals / EVALS_PER_EPOCH), 0.002)
    evals = (math.log(given_evals), 0.0) if given_evals else (epochs[0] + math.log(EVALS_PER_EPOCH), epochs[1])
    rate = got["rate_Msps_median"]
    train = (epochs[0] + math.log(SAMPLES / 1e6) - rate[0], math.hypot(epochs[1], rate[1], LEAST))
    if given_train:
        train = (math.log(given_train), 0.0)
    minutes = _minutes(train, evals, got["eval_s_mean"], 0.0 if given_train or given_evals else epochs[1])
    found = {**got, "n_eval": evals, "train_s": train, "run_min": minutes}
    limit = "epochs to converge" if epochs[1] > rate[1] else "compute"
    return {c: from_log(m, max(sd, LEAST), "", bottleneck=limit) for c, (m, sd) in found.items()}


def _known(row: Row, column: str, where: str) -> float | None:
    """A cell as a number of 0 or more; None where it is blank. RequestError for a negative one."""
    value = number(row, column, where)
    if value is not None and value < 0:
        raise RequestError(f"{where}, column {column}", f"is {value:g}", "a number above 0, or a blank cell")
    return value


def _minutes(train: Known, evals: Known, each: Known, shared: float) -> Known:
    """Training and evaluations both grow with the epochs, by whose spread (`shared`) they are off together; the rest of what
    they are unsure by has nothing to do with each other."""
    seconds, evaluating = math.exp(train[0]), math.exp(evals[0] + each[0])
    share = seconds / (seconds + evaluating)
    own = [math.sqrt(max(sd**2 - shared**2, 0.0)) for sd in (train[1], math.hypot(evals[1], each[1]))]
    return math.log((seconds + evaluating) / 60), math.hypot(shared, share * own[0], (1 - share) * own[1])


def _like(known: Sequence[Row], system: tuple[str, str], sheet: Sheet, column: str) -> Known:
    """From runs of its own system; of one that nobody ran, from what its data sheet and its batch say beside others'."""
    systems: dict[tuple[str, str], list[Row]] = {}
    for r in known:
        systems.setdefault((r["org"], r["system"]), []).append(r)
    logs = {name: v for name, rows in systems.items() if (v := _logs(rows, column))}
    spreads = [statistics.stdev(v) for v in logs.values() if len(v) > 1]
    within = statistics.fmean(spreads or [WITHIN])
    own = logs.get(system)
    if own:
        spread = statistics.stdev(own) if len(own) >= OWN_SPREAD else within
        return statistics.fmean(own), spread * math.sqrt(1 + 1 / len(own))
    sheets = [sheet_of(systems[name][0]) for name in logs]
    mean, between = _by_sheet(COLUMNS[column], sheets, [statistics.fmean(v) for v in logs.values()], sheet)
    return mean, math.hypot(between, within)


def sheet_of(row: Row, where: str = "") -> Sheet:
    """Reads a system's data sheet from its name, and the batch: eight H100 where the name doesn't say."""
    name = row.get("system", "")
    batch = positive(row, "gbs", where) if row.get("gbs") else BATCH_USUAL
    each, hosts = (_counted(pattern, name) for pattern in (GPUS_EACH, HOSTS))
    unsure = HOSTS_SPREAD if hosts is None and batch > BATCH_OF_ONE else 0.0
    memory = next((v for word, v in MEMORY_TB_S if word in name.lower()), MEMORY_USUAL)
    return Sheet((each or GPUS_USUAL) * (hosts or (HOSTS_USUAL if unsure else 1.0)), memory, batch, unsure)


def _counted(pattern: re.Pattern[str], name: str) -> float | None:
    """The number that a name holds; None where it holds none, or 0."""
    found = pattern.search(name)
    return float(next(part for part in found.groups() if part)) or None if found else None


def _by_sheet(slopes: Sequence[Slope], sheets: Sequence[Sheet], y: Sequence[float], asked: Sheet) -> Known:
    """Mean and spread of a system's log, by a line over others' sheets: slopes have priors, and how far systems lie from
    the line is what leaving each of them out shows.

    A power is a rigid law: from four GPUs to eight it may be another than from eight to a hundred. So each slope wanders, from
    one e-fold to the next, away from what is usual.
    """
    import numpy as np

    start = np.array([y[0] if y else 0.0, *(mean for mean, _ in slopes)])
    spread = np.array([sd for _, sd in slopes])
    x = np.array([s.features() for s in [*sheets, asked]])
    linear = x @ np.diag([LEVEL, *spread]) ** 2 @ x.T
    signed = x[:, None, 1:] * x[None, :, 1:] > 0
    walk = (np.minimum(np.abs(x[:, None, 1:]), np.abs(x[None, :, 1:])) * signed) @ spread**2
    n = len(y)
    rest = np.array(y) - x[:n] @ start
    between, share = BETWEEN, statistics.fmean(scale**2 for scale in WALKS)
    for _ in range(TURNS):
        total = linear + share * walk
        inverse = np.linalg.inv(total[:n, :n] + between**2 * np.eye(n))
        # Each as the others foretell it, scaled to what it would be if they were known without end.
        missed = between * (inverse @ rest) / np.sqrt(np.diag(inverse))
        between = math.sqrt((BETWEEN**2 + float(missed @ missed)) / (1 + n))
        each = [(linear + scale**2 * walk)[:n, :n] + between**2 * np.eye(n) for scale in WALKS]
        share = weighed([scale**2 for scale in WALKS], [likelihood(one, rest) for one in each])
    total = linear + share * walk
    weights = np.linalg.solve(total[:n, :n] + between**2 * np.eye(n), total[:n, n])
    spare = float(total[n, n] - weights @ total[:n, n])
    # The slope there, with which the number of GPUs matters.
    of_size = float(start[1]) * asked.unsure
    return float(x[n] @ start + weights @ rest), math.hypot(between, math.sqrt(max(spare, 0.0)), of_size)


def _logs(rows: Sequence[Row], column: str) -> list[float]:
    return [math.log(v) for r in rows if (v := number(r, column)) and v > 0]
