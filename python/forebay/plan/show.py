"""Plans as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.numbers import figure
from forebay.table import table
from forebay.units import format_bytes

NAMES = (
    ("throughput_gib_s", "throughput", "GiB/s"),
    ("latency_us", "latency, mean", "us"),
    ("cpu_user_pct", "user CPU, as published", "% of that machine"),
    ("cpu_user_cores", "user CPU", "cores"),
    ("cpu_system_cores", "kernel CPU", "cores"),
    ("cpu_cores", "CPU in all", "cores"),
    ("accelerators_max", "accelerators, at most", ""),
    ("au_pct", "AU", "%"),
    ("training_time_min", "time to train", "min"),
    ("checkpoint_write_s", "checkpoint, written", "s"),
    ("checkpoint_read_s", "checkpoint, read", "s"),
)
# Of a point that was simulated.
SIMULATED = (
    ("simulated_gib_s", "simulated GiB/s"),
    ("simulated_au_pct", "simulated AU %"),
    ("simulated_checkpoint_write_s", "simulated write s"),
    ("simulated_checkpoint_read_s", "simulated read s"),
    ("simulated_bottleneck", "simulated limit"),
)



def run(row: Mapping[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("", "", "80 % interval", "")]
    for key, name, unit in NAMES:
        if key in row:
            rows.append((name, figure(row[key]), f"{figure(row[f'{key}_p10'])} to {figure(row[f'{key}_p90'])}", unit))
    lines = [*table(rows), "", f"bottleneck   {row['bottleneck']}"]
    lines.append("utilisation  " + " · ".join(f"{n} {100 * v:.0f} %" for n, v in row["utilisation"].items()))
    lines.append("1 % more of  " + " · ".join(f"{n}: {v:+.2f} %" for n, v in row["elasticity"].items()))
    if row["next"]:
        after = row["next"]
        gain = f"{100 * (after['gain'] - 1):+.0f} %"
        gain += f" to {figure(after['throughput_gib_s'])} GiB/s" if "throughput_gib_s" in after else ""
        lines.append(f"next         without {after['without']}: {gain}, then {after['limit'] or 'nothing that is modelled'}")
    lines.append("enough       " + " · ".join(_enough(k, v) for k, v in row["enough"].items()))
    lines += ["warning      " + text for text in row["warnings"]]
    return "\n".join([*lines, "", *parameters(row["parameters"])])


def _enough(key: str, value: int) -> str:
    name, share = key.rsplit("_", 1)
    shown = format_bytes(value) if name == "io_size" else str(value)
    return f"{name.replace('_', ' ')} {shown} for {share} of the plateau"


def parameters(found: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = [("parameter", "value", "± sd", "source", "unit")]
    for p in found:
        rows.append((p["name"], figure(p["value"]), figure(p["sd"]), p["source"], p["unit"]))
    return table(rows)


def recommend(document: Mapping[str, Any]) -> str:
    target = ", ".join(f"{k} {v:g}" for k, v in document["target"].items())
    lines = [f"target: {target}; least {document['by']}", ""]
    priced = document["by"] != "drives"
    head = ("drive", "drives", *([document["by"]] if priced else []), "gives", "80 % interval", "limit")
    rows: list[tuple[str, ...]] = [head]
    for choice in document["choices"]:
        e = choice["estimate"]
        interval = f"{figure(e['p10'])} to {figure(e['p90'])}"
        cost = (figure(choice["cost"]),) if priced else ()
        rows.append((choice["drive"], str(choice["drives"]), *cost, figure(e["value"]), interval, e["bottleneck"]))
    if len(rows) > 1:
        lines += table(rows)
    for choice in document["not_enough"]:
        e = choice["estimate"]
        lines.append(f"not enough   {choice['drives']} × {choice['drive']}: {figure(e['p10'])} at the low end; {e['bottleneck']}")
    lines += [""] + [f"advice       {text}" for text in document["advice"]]
    lines += [f"left out     {text}" for text in document["left_out"]] + [f"warning      {text}" for text in document["warnings"]]
    return "\n".join(lines)


def whatif(axes: Sequence[str], points: Sequence[Mapping[str, Any]]) -> str:
    given = [(key, name, unit) for key, name, unit in NAMES if key in points[0]]
    played = [(key, name) for key, name in SIMULATED if key in points[0]]
    head = (*axes, *(f"{name} {unit}".strip() for _, name, unit in given), "limit", *(name for _, name in played))
    rows: list[tuple[str, ...]] = [head]
    for point in points:
        cells = [str(point["query"][a]) for a in axes]
        for key, _, _ in given:
            cells.append(f"{figure(point[key])} ({figure(point[f'{key}_p10'])} to {figure(point[f'{key}_p90'])})")
        limit = point["bottleneck"] + ("; extrapolated" if point["warnings"] else "")
        shown = [point[key] if isinstance(point[key], str) else figure(point[key]) for key, _ in played]
        rows.append((*cells, limit, *shown))
    return "\n".join(table(rows))


def calibration(document: Mapping[str, Any]) -> str:
    lines = [f"{document['runs']} runs of {document['drive']}", "", *parameters(document["parameters"]), ""]
    if document["not_identified"]:
        lines.append("not determined by these runs: " + ", ".join(document["not_identified"]))
    after = document["next_measurement"]
    lines.append(
        f"measure next: {figure(after['io_size_kib'])} KiB with {figure(after['workers'])} workers "
        f"(uncertain by {after['unsure_pct']:.0f} %)"
    )
    lines += [f"outlier      {text}" for text in document["outliers"]]
    lines += [f"warning      {text}" for text in document["warnings"]]
    return "\n".join(lines)


KV_NAMES = (
    ("throughput_gib_s", "read, in the window", "GiB/s"),
    ("read_as_published_gib_s", "read, as published", "GiB/s"),
    ("read_drained_gib_s", "read, until the last byte", "GiB/s"),
    ("write_gib_s", "write, in the window", "GiB/s"),
    ("write_as_published_gib_s", "write, as published", "GiB/s"),
    ("write_drained_gib_s", "write, until the last byte", "GiB/s"),
    ("storage_tokens_per_s", "storage tokens", "1/s"),
    ("entry_read_p95_ms", "entry read, P95", "ms"),
    ("entry_write_p95_ms", "entry write, P95", "ms"),
    ("request_p95_ms", "request, P95", "ms"),
)


def kvcache(row: Mapping[str, Any]) -> str:
    """A plan of a KV cache."""
    asked = row["kvcache"]
    rows: list[tuple[str, ...]] = [("", "", "80 % interval", "")]
    for key, name, unit in KV_NAMES:
        if key in row:
            rows.append((name, figure(row[key]), f"{figure(row[f'{key}_p10'])} to {figure(row[f'{key}_p90'])}", unit))
    at_once = f"{asked['admission']} entries written at once"
    lines = [f"option {asked['option']}: {asked['model']}, {asked['users']} users, {at_once}", ""]
    lines += [*table(rows), "", f"bottleneck   {row['bottleneck']}: {row['limit_reason']}"]
    lines.append("utilisation  " + " · ".join(f"{n} {100 * v:.0f} %" for n, v in row["utilisation"].items()))
    lines.append(f"interval     {row['interval']}")
    lines += [f"assumed      {text}" for text in row["assumptions"]] + [f"warning      {text}" for text in row["warnings"]]
    return "\n".join([*lines, "", *parameters(row["parameters"])])


def kvusers(document: Mapping[str, Any]) -> str:
    """Choices of drives for users of a KV cache."""
    target = document["target"]
    lines = [f"target: {target['kv_users']} users, P95 of a request at most {target['p95_s']:g} s; least drives", ""]
    rows: list[tuple[str, ...]] = [("drive", "drives", "users, at most", "P95 ms", "at the low end", "read GiB/s", "limit")]
    for c in document["choices"]:
        shown = (figure(c["p95_ms"]), figure(c["p95_ms_p90"]), figure(c["read_gib_s"]))
        rows.append((c["drive"], str(c["drives"]), str(c["users_max"]), *shown, c["limit"]))
    lines += table(rows) if len(rows) > 1 else []
    lines += [f"not enough   {c['drives']} × {c['drive']}: {c['users_max']} users; {c['reason']}" for c in document["not_enough"]]
    lines += [""] + [f"advice       {text}" for text in document["advice"]] + [f"interval     {document['interval']}"]
    lines += [f"assumed      {text}" for text in document["assumptions"]] + [f"left out     {t}" for t in document["left_out"]]
    return "\n".join([*lines, *(f"warning      {text}" for text in document["warnings"])])
