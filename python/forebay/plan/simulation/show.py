"""A simulation as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.numbers import figure
from forebay.plan import decide
from forebay.stages import format_duration
from forebay.table import table


def text(document: Mapping[str, Any]) -> str:
    """Formats a simulation: each job's figures beside the formula's, and how busy each station was."""
    lines = [_played(document), ""]
    rows: list[tuple[str, ...]] = [("", "simulated", "80 % interval", "formula", "")]
    for job in document["jobs"]:
        rows += _job(job)
    lines += [*table(rows), ""]
    lines.append(decide.utilised(document))
    formulas = " · ".join(f"{job['name']}: {decide.short(job['formula']['bottleneck'])}" for job in document["jobs"])
    lines.append(f"bottleneck   {decide.short(document['bottleneck'])} (formula: {formulas})")
    lines += ["warning      " + text for text in document["warnings"]]
    return "\n".join(lines)


def _played(document: Mapping[str, Any]) -> str:
    drawn = ", ".join(f"{what} {s['shape']} {s['cv']:g}" for what, s in document["jitter"].items()) or "no jitter"
    drawn += ", samples of their own sizes" if document["sizes"] == "trace" else ""
    speed = f"{document['simulated_s_per_wall_s']:,.0f} s a second"
    hours = f"{document['hours']:.4g} h" + (f" of {document['hours_asked']:g}" if document["interrupted"] else "")
    seeds = f"seeds {document['seed']} to {document['seed'] + document['seeds'] - 1}"
    seeds = f"seed {document['seed']}" if document["seeds"] == 1 else seeds
    took = format_duration(document["wall_s"])
    faults = "".join(f"\nfault        {_fault(fault)}" for fault in document["faults"])
    return f"simulated    {hours}, {document['storage']} storage, {drawn}, {seeds}; in {took}, {speed}{faults}"


def _fault(fault: Mapping[str, Any]) -> str:
    if fault["kind"] == "drive":
        what = f"goes at {fault['slow']:g} of its speed" if fault["slow"] else "fails"
        until = f" until {fault['until']:g} s" if "until" in fault else ""
        return f"drive {fault['drive']} of host {fault['host']} {what} at {fault['at']:g} s{until}"
    after = f", back at {fault['back']:g} s" if "back" in fault else ""
    after = f", the others continue without it from {fault['without']:g} s" if "without" in fault else after
    return f"host {fault['host']} fails at {fault['at']:g} s{after or ', and all wait'}"


def _job(job: Mapping[str, Any]) -> list[tuple[str, ...]]:
    count = f"{job['hosts']:,} host" + ("s" if job["hosts"] > 1 else "")
    if "accelerators" in job:
        count = f"{job['accelerators']:,} accelerators on {count}"
    rows: list[tuple[str, ...]] = [(f"{job['name']}: {count}", "", "", "", "")]
    if job.get("au_pct") is not None:
        rows.append(_line("AU", job["au_pct"], job["formula"]["au_pct"], "%"))
    if "training_time_min" in job:
        rows.append(_line("time to train", job["training_time_min"], job["formula"]["training_time_min"], "min"))
    if "checkpoint_gib" in job:
        return rows + _checkpoint(job)
    rows.append(_line("throughput", job["throughput_gib_s"], job["formula"]["throughput_gib_s"], "GiB/s"))
    hourly = job["per_hour"]
    if "steps" in hourly:
        rows.append(("  steps", figure(hourly["steps"]), "", "", "an hour"))
        rows.append(("  samples", figure(hourly["samples"]), "", "", "an hour"))
        step = job["step_us"]
        if step["mean"] is not None:
            rows.append(("  a step", f"{step['mean'] / 1e3:,.4g}", f"99 %: {step['p99'] / 1e3:,.4g}", "", "ms"))
        for name, share in job["time_pct"].items():
            rows.append((f"  {name}", f"{share:.1f}", "", "", "% of the time"))
        if job["stalled_s"]:
            rows.append(("  stood still", figure(job["stalled_s"]), "", "", "s"))
    else:
        rows.append(("  read", figure(hourly["tib"]), "", "", "TiB an hour"))
        if job["latency_us"] is not None:
            rows.append(("  latency, mean", figure(job["latency_us"]), "", "", "us"))
    return rows


def _checkpoint(job: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for done in ("written", "read"):
        name = "checkpoint_write_s" if done == "written" else "checkpoint_read_s"
        what = f"{job[done]} of {job['asked'][done]} {done}"
        if job[name] is None:
            rows.append((f"  {what}", "", "", figure(job["formula"][name]), "s"))
        else:
            rows.append(_line(f"{what}, each", job[name], job["formula"][name], "s"))
    return [*rows, ("  of", figure(job["checkpoint_gib"]), "", "", "GiB")]


def _line(name: str, found: Mapping[str, Any], formula: float, unit: str) -> tuple[str, ...]:
    between = "" if found["p10"] is None else f"{figure(found['p10'])} to {figure(found['p90'])}"
    return f"  {name}", figure(found["value"]), between, figure(formula), unit
