"""Single training runs of DLRM by other submitters (MLPerf Training v4.1): what a run's minutes are made of.

Minutes are an identity of what a row says: (training seconds + evaluations × their seconds) ÷ 60. Where a row is blank,
the logs of its quantities come from runs of the same system, else of the same global batch, else of all, each with the
spread seen there; another system's spread is that between systems.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.errors import RequestError
from forebay.plan.dlrm import EVALS_PER_EPOCH, SAMPLES
from forebay.plan.estimate import Estimate, from_log
from forebay.plan.published import Row, number

if TYPE_CHECKING:
    from forebay.plan.planner import Planner

FILLS = ("run_min", "epoch_at_stop", "n_eval", "eval_s_mean", "train_s", "rate_Msps_median", "rate_first", "init_s")
# Log and its standard deviation.
Known = tuple[float, float]
LEAST = 0.01


def predict(planner: Planner, rows: Sequence[Row], where: Sequence[str]) -> list[dict[str, Estimate]]:
    known = planner.rows("ext_mlperf_training_v4.1_dlrm_runs")
    return [_row(known, row, at) for row, at in zip(rows, where, strict=True)]


def _row(known: Sequence[Row], row: Row, where: str) -> dict[str, Estimate]:
    got: dict[str, Known] = {}
    for column in ("rate_Msps_median", "eval_s_mean", "rate_first", "init_s", "epoch_at_stop"):
        value = _known(row, column, where)
        got[column] = (math.log(value), 0.0) if value else _like(known, row, column)
    given_evals, given_train = _known(row, "n_eval", where), _known(row, "train_s", where)
    epochs = got["epoch_at_stop"]
    if given_evals and not number(row, "epoch_at_stop", where):
        epochs = got["epoch_at_stop"] = (math.log(given_evals / EVALS_PER_EPOCH), 0.002)
    evals = (math.log(given_evals), 0.0) if given_evals else (epochs[0] + math.log(EVALS_PER_EPOCH), epochs[1])
    rate = got["rate_Msps_median"]
    train = (epochs[0] + math.log(SAMPLES / 1e6) - rate[0], math.hypot(epochs[1], rate[1], LEAST))
    if given_train:
        train = (math.log(given_train), 0.0)
    minutes = _minutes(train, evals, got["eval_s_mean"])
    found = {**got, "n_eval": evals, "train_s": train, "run_min": minutes}
    limit = "epochs to converge" if epochs[1] > rate[1] else "compute"
    return {c: from_log(m, max(sd, LEAST), "", bottleneck=limit) for c, (m, sd) in found.items()}


def _known(row: Row, column: str, where: str) -> float | None:
    """A cell as a number of 0 or more; None where it is blank. RequestError for a negative one."""
    value = number(row, column, where)
    if value is not None and value < 0:
        raise RequestError(f"{where}, column {column}", f"is {value:g}", "a number above 0, or a blank cell")
    return value


def _minutes(train: Known, evals: Known, each: Known) -> Known:
    """Training and evaluations both grow with the epochs, so their spreads add rather than average."""
    seconds, evaluating = math.exp(train[0]), math.exp(evals[0] + each[0])
    share = seconds / (seconds + evaluating)
    spread = share * train[1] + (1 - share) * math.hypot(evals[1], each[1])
    return math.log((seconds + evaluating) / 60), spread


def _like(known: Sequence[Row], row: Row, column: str) -> Known:
    """Runs that are like this one: its system, else its batch, else any."""
    same = [r for r in known if (r["org"], r["system"]) == (row.get("org"), row.get("system"))]
    values = _logs(same, column)
    if len(values) >= 3:
        return statistics.fmean(values), statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
    batch = [r for r in known if r["gbs"] == row.get("gbs")] or list(known)
    systems: dict[tuple[str, str], list[Row]] = {}
    for r in batch if len({r["system"] for r in batch}) > 2 else known:
        systems.setdefault((r["org"], r["system"]), []).append(r)
    means = [statistics.fmean(v) for rows in systems.values() if (v := _logs(rows, column))]
    within = [statistics.stdev(v) for rows in systems.values() if len(v := _logs(rows, column)) > 1]
    between = statistics.stdev(means) if len(means) > 1 else 0.5
    return statistics.fmean(means), math.hypot(between * math.sqrt(1 + 1 / len(means)), statistics.fmean(within or [0.05]))


def _logs(rows: Sequence[Row], column: str) -> list[float]:
    return [math.log(v) for r in rows if (v := number(r, column)) and v > 0]
