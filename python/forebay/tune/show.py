"""Findings of a search: the document (forebay.tune/1) and the text made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from forebay import run as engine
from forebay.bench.summary import about_data
from forebay.bench.summary import warnings as worded
from forebay.numbers import figure
from forebay.table import table
from forebay.tune.search import Search, Setting
from forebay.units import format_bytes

AXIS_NAMES = {"io_bytes": "io-size", "workers": "workers", "depth": "depth"}
BAR = 24
# What two probes of one setting may differ in.
PROBES_DIFFER = 0.03


def document_of(
    search: Search,
    job: dict[str, Any],
    failures: list[dict[str, Any]],
    spelled: Callable[[Setting], str],
    max_buffer_bytes: int,
    warnings: Mapping[Setting, list[dict[str, Any]]],
) -> dict[str, Any]:
    """`curve`: per field, the settings that differ from the pick in that field only. Rates in GiB/s. `warnings`: those of the
    last run of each setting."""
    choice = search.choose()
    share = choice.share
    measured = {*search.probes, *search.confirmed}
    curve = {
        name: [_point(search, s, choice.peak) for s in search.curve(axis, choice.pick)] for axis, name in AXIS_NAMES.items()
    }
    pick, peak = _row(search, choice.pick, choice.peak), _row(search, choice.peak, choice.pick)
    peak["probe_gib_s"] = search.probed_gib_s(choice.peak)
    pick["share_of_peak"] = share.estimate
    pick["share_of_peak_ci95"] = None if share.low is None else [share.low, share.high]
    higher = search.unconfirmed_higher(choice.peak)
    missing = {}
    if pick["cpu_s_per_gib"] is None:
        missing["pick.cpu_s_per_gib"] = (
            "no run reported CPU; among equal settings the smallest buffers won"
        )
    if pick["watts"] is None:
        missing["pick.watts"] = "no power meter answered"
    return {
        "schema": "forebay.tune/1",
        "command": engine.typed(),
        "job": job,
        "share_asked": search.share,
        "max_buffer_bytes": max_buffer_bytes,
        "pick": pick,
        "peak": peak,
        "confirmed": choice.confirmed,
        "unconfirmed_higher": _row(search, higher) if choice.confirmed and higher else None,
        "bench": spelled(choice.pick),
        "curve": curve,
        "probes": [_row(search, s) for s in sorted(measured) if search.figures(s) is not None],
        "failed": failures,
        "stopped": search.stopped,
        "seconds": search.elapsed(),
        "interrupted": search.stopped == "interrupted",
        "missing": missing,
        "warnings": about_data([{"warnings": warnings.get(s)} for s in (choice.pick, choice.peak)]),
    }


def _point(search: Search, setting: Setting, peak: Setting) -> dict[str, Any]:
    """A row of the curve. Its share is of the rounds that it has in common with the peak; a probe's of the peak's own probe."""
    row = _row(search, setting)
    if row["confirmed"]:
        share = search.share_of(setting, peak).estimate
    else:
        # The machine may have been faster then than when the peak was confirmed.
        share = row["throughput_gib_s"] / (search.probed_gib_s(peak) or math.inf)
    return {**row, "share_of_peak": share}


def _row(search: Search, setting: Setting, beside: Setting | None = None) -> dict[str, Any]:
    found = search.figures(setting, beside)
    assert found is not None
    return {
        **setting._asdict(),
        "throughput_gib_s": found.gib_s,
        "cpu_s_per_gib": found.cpu_s_per_gib,
        "watts": found.watts,
        "buffer_bytes": setting.buffer_bytes,
        "runs": len(search.runs(setting)),
        "confirmed": bool(search.confirmed.get(setting)),
    }


def show(document: dict[str, Any]) -> str:
    """The curve of each field that was searched, then the pick and what to type."""
    pick, peak = document["pick"], document["peak"]
    lines: list[str] = []
    for name, rows in document["curve"].items():
        if len(rows) > 1:
            lines += [*_curve(name, rows, pick, peak), ""]
    interval = pick["share_of_peak_ci95"]
    sure = (
        f" ({100 * interval[0]:.1f}–{100 * interval[1]:.1f})"
        if interval and interval[0] != interval[1]
        else ""
    )
    share = f"{100 * pick['share_of_peak']:.1f} %{sure} of the peak"
    lines.append(f"{_name(pick)}: {pick['throughput_gib_s']:.3f} GiB/s, {share}{_buffers(pick)}")
    lines.append(
        f"  at {_cost(pick)}; the peak, {_name(peak)}: {peak['throughput_gib_s']:.3f} GiB/s at {_cost(peak)}"
    )
    if not document["confirmed"]:
        lines.append("  not confirmed by repeats, because the search ended early: try a longer --max-time")
    if document["unconfirmed_higher"]:
        higher = document["unconfirmed_higher"]
        lines.append(
            f"  a single probe went higher ({_name(higher)}: {higher['throughput_gib_s']:.3f} GiB/s):"
            " noise, or a longer --max-time finds more"
        )
    lines += [f"  {reason}" for field, reason in document["missing"].items() if "cpu" in field]
    if document["failed"]:
        first = document["failed"][0]
        lines.append(
            f"  {len(document['failed'])} settings couldn't run, as {_name(first)}: {first['found']}"
        )
    lines += [f"  warning: {text}" for _, text in worded(document["warnings"])]
    if document["interrupted"]:
        lines.append("  interrupted: chosen from what was measured until then")
    if document["stopped"] == "failed":
        lines.append("  ended by an error: chosen from what was measured until then")
    return "\n".join([*lines, "", document["bench"]])


def _curve(name: str, rows: list[dict[str, Any]], pick: dict[str, Any], peak: dict[str, Any]) -> list[str]:
    axis = next(a for a, n in AXIS_NAMES.items() if n == name)
    cells = [(name, "GiB/s", "of peak", "CPU-s/GiB", "W", "")]
    for row in rows:
        value = format_bytes(row[axis]) if axis == "io_bytes" else str(row[axis])
        share = row["share_of_peak"]
        mark = " ←" if row[axis] == pick[axis] else ""
        bar = "█" * max(1, round(BAR * min(1.0, share))) + mark
        cells.append(
            (
                value,
                f"{row['throughput_gib_s']:.3f}",
                _share(row, peak),
                figure(row["cpu_s_per_gib"]),
                figure(row["watts"]),
                bar,
            )
        )
    # The bars read from the left.
    width = max(len(c[-1]) for c in cells)
    return table([(*c[:-1], c[-1].ljust(width)) for c in cells])


def _share(row: dict[str, Any], peak: dict[str, Any]) -> str:
    """`83 %`; `~83 %` of a probe. A probe that went above the peak had no time to be confirmed, and is no share of it."""
    share, probe = row["share_of_peak"], peak["confirmed"] and not row["confirmed"]
    if probe and share > 1 + PROBES_DIFFER:
        return "unconfirmed"
    return f"{'~' if probe else ''}{100 * min(share, 1.0):.0f} %"


def _name(row: dict[str, Any]) -> str:
    return f"io-size {format_bytes(row['io_bytes'])}, workers {row['workers']}, depth {row['depth']}"


def _buffers(row: dict[str, Any]) -> str:
    return f", buffers of {format_bytes(row['buffer_bytes'])}"


def _cost(row: dict[str, Any]) -> str:
    cost = "CPU not measured" if row["cpu_s_per_gib"] is None else f"{row['cpu_s_per_gib']:.4g} CPU-s/GiB"
    return cost + (f" and {row['watts']:.0f} W" if row["watts"] is not None else "")
