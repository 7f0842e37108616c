"""A back-test as text, as JSON, and as the page of the documentation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from forebay.plan.backtest import MODULES
from forebay.plan.score import Cell, Summary, chance, summarise
from forebay.table import table

Results = Mapping[str, Mapping[str, Sequence[Cell]]]
UNITS = {"pct": "%", "points": "points", "count": ""}
# Module and what its figures must be, as the project set them before the modules were written.
WANTED = {
    "local throughput": "mean ≤ 1.5 %, worst ≤ 3.5 %, better than interpolation",
    "remote throughput": "mean ≤ 3 %, worst ≤ 7 %, on a drive whose remote cells are unknown",
    "DPU queues": "mean ≤ 4 %, worst ≤ 8 %, from 9 of 25 cells",
    "greatest number of accelerators": "within max(1, 10 %) in 13 of 15",
    "AU at a given number": "≤ 4 points; pass or fail right in 16 of 18",
    "user CPU": "cells ≥ 0.1 %: each within 20 %, median ≤ 10 %",
    "4 KiB random reads": "within 15 %",
    "DLRM minutes": "mean ≤ 5 %, worst ≤ 8 %",
    "other submitters: AU": "intervals hold ≥ 80 %",
    "other submitters: MiB/s": "intervals hold ≥ 80 %",
    "other submitters: accelerators": "intervals hold ≥ 80 %",
    "DLRM runs of others, minutes": "intervals hold ≥ 80 %",
}
HEADER = (
    "module", "left out together", "cells", "mean error", "median", "worst", "inside 80 %", "baseline: mean, worst",
    "interval score ÷ constant width's", "by chance up to",
)  # fmt: skip


def document(results: Results, folder: str | None) -> dict[str, Any]:
    """forebay.backtest/1."""
    modules = [
        {
            "module": name,
            "left_out": kind,
            "summary": asdict(summarise(cells)),
            "cells": [
                {**asdict(c), "error": c.error, "inside": c.inside, "baseline_error": c.baseline_error} for c in cells
            ],
        }
        for name, kinds in results.items()
        for kind, cells in kinds.items()
    ]
    return {"schema": "forebay.backtest/1", "tables": folder or "published", "modules": modules, "coverage": coverage(results)}


def coverage(results: Results) -> float:
    """Share of all cells inside their intervals, each module by its first way of leaving out."""
    first = [c for kinds in results.values() for c in next(iter(kinds.values()))]
    return sum(c.inside for c in first) / len(first)


def against(results: Results) -> float:
    """Geometric mean over cells, each by its module's first way of leaving out, of interval score ÷ constant width's."""
    found = [summarise(next(iter(kinds.values()))) for kinds in results.values()]
    ratios = [(s.n, math.log(s.score / s.constant_score)) for s in found if s.constant_score]
    cells = sum(n for n, _ in ratios)
    return math.exp(sum(n * ratio for n, ratio in ratios) / cells) if cells else math.nan


def rows_of(results: Results) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [HEADER]
    for name, kinds in results.items():
        for kind, cells in kinds.items():
            found.append((name, kind, *_figures(summarise(cells), cells[0].measure)))
    return found


def _figures(s: Summary, measure: str) -> tuple[str, ...]:
    unit = UNITS[measure]

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.1f} {unit}".strip()

    theirs = "–" if s.baseline_mean is None else f"{shown(s.baseline_mean)}, {shown(s.baseline_worst)}"
    good = f" ({s.good_counts} of {s.n} within max(1, 10 %))" if measure == "count" else ""
    if s.judged:
        good += f" (pass or fail right in {s.right} of {s.judged})"
    ratio = "–" if not s.constant_score else f"{s.score / s.constant_score:.2f}"
    inside = f"{100 * s.inside:.0f} %"
    luck = f"{chance(s.n):.2f}" if s.constant_score else "–"
    return (str(s.n), shown(s.mean) + good, shown(s.median), shown(s.worst), inside, theirs, ratio, luck)


def text(results: Results) -> str:
    lines = table(rows_of(results))
    inside = f"inside their 80 % intervals, all modules: {100 * coverage(results):.0f} %"
    score = f"interval score ÷ constant width's, geometric mean over cells: {against(results):.2f}"
    return "\n".join([*lines, "", inside, score])


INTRODUCTION = """# How good the planner is

For whoever asks how far plans can be trusted.

Written by `forebay plan backtest --page docs/plan-backtest.md`. Each cell below was predicted by a planner that was
calibrated without it and without similar cells; the column "left out together" says which. Errors are in per cent of
the published value unless stated otherwise. "Inside" is the share of cells inside their 80 % interval; an interval
score below 1 is better than intervals of one width that was tuned on the other cells of the same table.

Read with care: cells at the edge of a table (the smallest block size, one queue) are extrapolated when they are left
out, cells within it are interpolated. The blank cells of the published tables are within, so these errors are larger
than those to expect there, except where a whole drive is unknown.

A cell that is left out influences nothing: parameters, the smooth residual and the widths of intervals are all fitted
again without it. The scale of a width comes from leaving out the *remaining* cells one at a time, and is shrunk towards 1
with the weight of one cell. No interval is stretched by a constant that was chosen with knowledge of these results,
except the assumed spread of AU and accelerators between runs. Weights of one to sixteen cells were tried for the
shrinkage: they only make a difference for random reads and DLRM minutes, where one is best; Student's t instead of the
normal distribution is worse there by a tenth. Priors, the size of the smooth residual (2 %) and the form of each model
are the same in all folds, and were written with knowledge of the tables; docs/plan.md says where that helps a figure.

The constant width is a strong baseline: it knows the errors of the other cells of the same module, which the planner
doesn't. With few cells the comparison is mostly chance. "By chance up to" is the ratio that nine in ten forecasters who
know the true spread stay below: 1.5 over three cells, 1.1 over nine. A higher ratio means that an interval is too wide:
for three remote cells without any other of their drive, and for four of random reads, where intervals include what isn't
known about another fabric or another metric.

## What no model can do better

- The same remote cell, published twice (32 queues in one table, 31 in the other), differs by 2.5, 3.0 and 0.9 %: using
  one as the forecast of the other gives a mean error of 2.1 % and a worst of 3.1 %. Only one drive has remote cells. So
  "a drive whose remote cells are unknown" is tested without any remote cell of any drive: the prediction then comes from
  priors. No table shows how much of a command's transit time a slow drive hides. The model assumes half of the growth of
  the drive's own delay with size (`FELT`); all of it and none of it give means of 3.7 and 3.2 % instead of the figure
  below, and predictions for D7-P5520 at 64 KiB that are 2 and 3 % to either side.
- Ten runs of one DLRM system differ by 2 to 9 % (14 systems; median 4.7 %), because they converge after 14, 15 or 16
  twentieths of an epoch. A perfect forecast of the mean misses single runs by 3.8 % on average.
"""


def markdown(results: Results) -> str:
    lines = [INTRODUCTION, "## Summary", "", *_table(rows_of(results)), ""]
    inside = f"Of all cells, {100 * coverage(results):.0f} % are inside their 80 % interval."
    scores = f"have a geometric mean over cells of {against(results):.2f}."
    lines += [f"{inside} Scores against constant widths, each module by its first method of leaving cells out, {scores}", ""]
    for module in MODULES:
        for kind, cells in results.get(module.name, {}).items():
            lines += _module(module.name, module.baseline_name, kind, cells)
    return "\n".join(lines).rstrip() + "\n"


def _module(name: str, baseline: str, kind: str, cells: Sequence[Cell]) -> list[str]:
    lines = [f"## {name[0].upper() + name[1:]}, without: {kind}", "", f"Target: {WANTED[name]}. Baseline: {baseline}.", ""]
    if len(cells) > 40:
        return [*lines, f"{len(cells)} cells; `forebay plan backtest --json` lists them.", ""]
    rows: list[tuple[str, ...]] = [("cell", "published", "predicted", "80 % interval", "inside", "error", "baseline's error")]
    for c in cells:
        theirs = "–" if c.baseline_error is None else f"{c.baseline_error:+.1f}"
        interval = f"{c.p10:.4g} to {c.p90:.4g}"
        inside = "yes" if c.inside else "no"
        rows.append((c.label, f"{c.published:.4g}", f"{c.predicted:.4g}", interval, inside, f"{c.error:+.1f}", theirs))
    return [*lines, *_table(rows), ""]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *body]
