"""The spread of one training over seeds: of samples to the target, which the seed decides, and of the rate, the machine's.

Pure: records in, a document and a page of text out. A run that didn't converge is a row of its own, and counts in no spread
of what it didn't reach; its rate is one like another's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from forebay.numbers import count, seconds, significant, whole
from forebay.table import table

Record = dict[str, Any]
SCHEMA = "forebay.train.spread/1"
# Samples between evaluations, as a share of those to the target, beyond which they hide what a seed does.
COARSE = 0.03
# Figure → what decides it.
PARTS = {"samples_to_target": "the seed", "samples_per_s": "the machine", "seconds_to_target": "both"}


def document(records: Sequence[Record]) -> Record:
    """forebay.train.spread/1: a row for each run, and each figure's mean and relative standard deviation."""
    rows = [_row(record) for record in records]
    spreads = {name: _spread([row[name] for row in rows if row[name] is not None]) for name in PARTS}
    return {
        "schema": SCHEMA,
        "model": records[0]["train"]["model"] if records else None,
        "target": records[0]["train"].get("quality_target") if records else None,
        "evaluate_every": records[0]["train"].get("evaluate_every") if records else None,
        "rows": rows,
        "spread": spreads,
        "parts_pct": _together(spreads["samples_to_target"], spreads["samples_per_s"]),
    }


def _row(record: Record) -> Record:
    part, missing = record["train"], record.get("missing") or {}
    asked = part.get("quality_target") is not None
    reached = part.get("samples_to_target") is not None
    row = {name: part.get(name) for name in PARTS}
    return {
        "seed": part["seed"],
        "id": record.get("id"),
        "converged": reached if asked else None,
        "why": None if reached or not asked else part.get("failed") or missing.get("train.samples_to_target"),
        **row,
        "quality": part.get("quality"),
        "samples": part.get("samples"),
    }


def _spread(values: Sequence[float]) -> Record:
    """Mean and relative standard deviation, in per cent, with its 95 % interval; null where there are too few."""
    n = len(values)
    found: Record = {"runs": n, "mean": statistics.fmean(values) if n else None, "rsd_pct": None, "rsd_pct_ci95": None}
    if n >= 2 and found["mean"]:
        rsd = 100 * statistics.stdev(values) / found["mean"]
        found |= {"rsd_pct": rsd, "rsd_pct_ci95": [rsd * factor for factor in _deviation_factors(n - 1)]}
    return found


def _deviation_factors(freedom: int) -> tuple[float, float]:
    """Ends of a standard deviation's 95 % interval over its estimate, by Wilson and Hilferty's form of chi squared."""
    found = []
    for z in (1.96, -1.96):
        quantile = freedom * max(0.05, 1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3
        found.append(math.sqrt(freedom / quantile))
    return found[0], found[1]


def _together(samples: Record, rate: Record) -> float | None:
    """The spread of samples ÷ rate, were the two independent."""
    if samples["rsd_pct"] is None or rate["rsd_pct"] is None:
        return None
    return math.hypot(samples["rsd_pct"], rate["rsd_pct"])


def text(found: Record) -> str:
    """A table like the paper's, and what the spread is made of."""
    rows: list[tuple[str, ...]] = [("seed", "samples to the target", "samples/s", "time to the target", "AUC")]
    for row in found["rows"]:
        rows.append((
            str(row["seed"]), _shown(row["samples_to_target"], whole), _shown(row["samples_per_s"], whole),
            _shown(row["seconds_to_target"], seconds), _shown(row["quality"], lambda auc: f"{auc:.4f}"),
        ))  # fmt: skip
    spreads = [found["spread"][name] for name in PARTS]
    rows.append(("mean", *(_shown(s["mean"], show) for s, show in zip(spreads, (whole, whole, seconds), strict=True)), ""))
    rows.append(("relative standard deviation", *(_shown(s["rsd_pct"], _pct) for s in spreads), ""))
    rows.append(("runs in it", *(str(s["runs"]) for s in spreads), ""))
    lines = table(rows)
    left = [row for row in found["rows"] if row["converged"] is False]
    lines += [f"seed {row['seed']} did not converge: {row['why']}" for row in left]
    return "\n".join([*lines, "", *_sentences(found)])


def _sentences(found: Record) -> list[str]:
    lines = []
    for name, decides in PARTS.items():
        spread = found["spread"][name]
        title = {"samples_to_target": "samples to the target", "samples_per_s": "rate"}.get(name)
        if title and spread["rsd_pct"] is not None:
            low, high = spread["rsd_pct_ci95"]
            over = count(spread["runs"], "run")
            lines.append(f"{title}: {_pct(spread['rsd_pct'])} ({_pct(low)} to {_pct(high)}) over {over}, by {decides}")
    whole_ = found["spread"]["seconds_to_target"]["rsd_pct"]
    if found["parts_pct"] is not None and whole_ is not None:
        lines.append(f"together {_pct(found['parts_pct'])}; the time to the target varies by {_pct(whole_)}, evaluations and all")
    every, mean = found["evaluate_every"], found["spread"]["samples_to_target"]["mean"]
    if every and mean and lines and every / mean > COARSE:
        reported = f"an evaluation comes each {whole(every)} samples, {_pct(100 * every / mean)} of that"
        lines.append(f"{reported}: a smaller --evaluate-every tells more of the seed's part")
    return lines or ["too few runs for a spread"]


def _pct(value: float) -> str:
    return f"{significant(value, 2)} %"


def _shown(value: Any, show: Any) -> str:
    return "–" if value is None else str(show(value))
