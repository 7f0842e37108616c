"""Plans as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.numbers import figure
from forebay.paths import BOUNCE, GDS
from forebay.plan import decide
from forebay.table import table
from forebay.units import format_bytes

WIDTH = 118
# Warnings that are always the same: background of how figures come about.
BACKGROUND = ("user CPU refers", "cores of the")

NAMES = (
    ("throughput_gib_s", "throughput", "GiB/s"),
    ("storage_gib_s", "plain reads would get", "GiB/s"),
    ("latency_us", "latency, mean", "us"),
    ("cpu_user_pct", "user CPU, as published", "% of that machine"),
    ("cpu_user_cores", "user CPU", "cores"),
    ("cpu_system_cores", "kernel CPU", "cores"),
    ("cpu_cores", "CPU in all", "cores"),
    ("accelerators_max", "accelerators, at most", ""),
    ("au_pct", "AU", "%"),
    ("samples_per_s", "answers", "samples/s"),
    ("load_s", "load", "s"),
    ("start_s", "start", "s"),
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



def run(row: Mapping[str, Any], explain: bool = False) -> str:
    """Assumptions, the decision, the figures; with `explain` how they come about."""
    rows: list[tuple[str, ...]] = [("", "", "80 % interval", "")]
    for key, name, unit in NAMES:
        if key in row:
            # The benchmark alone calls it so.
            shown = "share of the full rate" if key == "au_pct" and row["of_rate"] else name
            rows.append((shown, figure(row[key]), f"{figure(row[f'{key}_p10'])} to {figure(row[f'{key}_p90'])}", unit))
    lines = [*assumed(row), *folded("decision", row["decision"]), *own_runs(row.get("own_runs"), NAMES), "", *table(rows), ""]
    lines.append(decide.utilised(row))
    for text in row["warnings"]:
        if explain or not text.startswith(BACKGROUND):
            lines += folded("warning", text)
    if not explain:
        more = "--explain shows what each figure rests on, and what more of each thing would bring"
        return "\n".join([*lines, f"explain      {more}"])
    lines.append("1 % more of  " + " · ".join(f"{n}: {v:+.2f} %" for n, v in row["elasticity"].items()))
    if row["next"]:
        after = row["next"]
        gain = f"{100 * (after['gain'] - 1):+.0f} %"
        gain += f" to {figure(after['throughput_gib_s'])} GiB/s" if "throughput_gib_s" in after else ""
        then = decide.words(after["limit"]) or "nothing that is modelled"
        lines.append(f"next         without {decide.words(after['without'])}: {gain}, then {then}")
    if "latency_us" in row:
        lines.append("enough       " + " · ".join(_enough(k, v) for k, v in row["enough"].items()))
    return "\n".join([*lines, "", *parameters(row["parameters"])])


def folded(head: str, text: str) -> list[str]:
    """A line with its head in the margin, folded where it is long."""
    return textwrap.wrap(text, WIDTH, initial_indent=f"{head:<13}", subsequent_indent=" " * 13, break_on_hyphens=False)


SOURCES = {"given": "", "default": "default", "derived": ""}


def assumed(row: Mapping[str, Any]) -> list[str]:
    """One sentence of all that an answer takes for granted, each with where it comes from and the flags that change it."""
    parts = []
    for one in row["assumed"]:
        notes = [text for text in (SOURCES[one["source"]], one["why"], " ".join(one["flags"])) if text]
        parts.append(f"{one['text']} ({'; '.join(notes)})" if notes else one["text"])
    return folded("assumed", ", ".join(parts) + ".")


def own_runs(own: Mapping[str, Any] | None, names: Sequence[tuple[str, str, str]]) -> list[str]:
    """Which figures rest on the user's runs, as `names` has them."""
    if not own:
        return []
    host = f" on {own['host']}" if own["host"] else ""
    rates = f"{figure(own['gib_s_least'])} to {figure(own['gib_s_most'])} GiB/s a drive"
    simulated = f", {own['simulated']} of them simulated" if own["simulated"] else ""
    figures = " · ".join(name for key, name, _ in names if key in own["figures"])
    return folded("your runs", f"{own['runs']} runs of {own['drive']}{host}{simulated}, {rates}, decide: {figures}.")


def _enough(key: str, value: int) -> str:
    name, share = key.rsplit("_", 1)
    shown = format_bytes(value) if name == "io_size" else str(value)
    return f"{name.replace('_', ' ')} {shown} for {share} of the plateau"


# Parameters whose names say little to who hasn't read the models.
MEANINGS = {
    "sharpness": "how sharply rate bends where requests and bandwidth meet",
    "fabric_residence": "time of a command on the fabric, one queue",
    "fabric_gain": "a drive's bandwidth, remote over local",
    "fabric_sharpness": "how sharply drive and DPU meet",
    "queue_64k": "a DPU queue's time for 64 KiB",
    "queue_gamma": "q queues are as fast as q to this power",
    "overhead": "the benchmark's overhead of a step",
    "barrier": "the same, for each further accelerator",
    "read_efficiency": "share of the data sheet that its reads reach",
    "slots": "accelerators whose readers a thread carries",
    "cache_use": "share of cacheable data found in memory",
    "gain": "this drive over its data sheet, in training",
    "delay": "an idle read, with software",
    "delay_64k": "what 64 KiB add to it",
    "bandwidth": "a drive's bandwidth",
    "user_core_request": "user mode, each request",
    "user_core_mib": "user mode, each MiB",
    "system_core_request": "kernel, each request",
    "system_core_mib": "kernel, each MiB",
    "user_request": "user mode as published, each request",
    "user_mib": "user mode as published, each MiB",
    "user_crowding": "user mode grows as the rate to this power",
    "efficiency": "share of the data sheet that DLRM's reads reach",
    "overlap": "how sharply compute and storage meet",
    "epochs": "epochs until DLRM has learned",
    "compute": "the GPUs' rate that never waits",
    "evaluation": "one evaluation",
}


def parameters(found: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = [("parameter", "value", "± sd", "unit", "source", "meaning")]
    for p in found:
        meaning = MEANINGS.get(p["name"].partition("[")[0], "")
        rows.append((p["name"], figure(p["value"]), figure(p["sd"]), p["unit"], p["source"], meaning))
    return table(rows)


def recommend(document: Mapping[str, Any]) -> str:
    """Assumptions, the decision, the choices side by side, and what each other one lacks."""
    lines = [*assumed(document), *folded("decision", document["decision"]), ""]
    priced = [key for key in ("price", "watts", "capacity_tb") if any(c[key] is not None for c in document["choices"])]
    queued = any(c["queues"] for c in document["choices"])
    head = ("drive", "drives", "hosts", "requests", *(["queues"] if queued else []), *priced, "gives", "80 % interval", "lacks")
    rows: list[tuple[str, ...]] = [head]
    for choice in document["choices"]:
        e = choice["estimate"]
        cells = [choice["drive"], str(choice["drives"]), str(choice["hosts"]), str(choice["requests"])]
        cells += [str(choice["queues"])] if queued else []
        cells += [figure(choice[key]) for key in priced]
        interval = f"{figure(e['p10'])} to {figure(e['p90'])}"
        rows.append((*cells, figure(e["value"]), interval, ", ".join(choice["lacks"]) or "–"))
    if len(rows) > 1:
        lines += [*table(rows), ""]
    for choice in document["not_enough"]:
        hosts = "one host" if choice["hosts"] == 1 else f"{choice['hosts']} hosts"
        lines += folded("not enough", f"{choice['drives']} × {choice['drive']} on {hosts}: {choice['lacks'][0]}")
    rests = (("on runs", "rests_on_runs"),) if document.get("rests_on_runs") else ()
    for head_, key in (*rests, ("advice", "advice"), ("left out", "left_out"), ("warning", "warnings")):
        for text in document[key]:
            lines += folded(head_, text)
    if document["choices"]:
        lines += folded("next", document["choices"][0]["command"])
    return "\n".join(lines)


def compare(document: Mapping[str, Any]) -> str:
    """The table of places and paths."""
    by, name = document["by"], document["by_name"]
    rows: list[tuple[str, ...]] = [
        ("drive", "drives", "place", "path", name, "80 % interval", "of local gds", "requests", "cores", "limit")
    ]
    for row in document["rows"]:
        query = row["query"]
        ratio = row["of_local_gds"]
        rows.append(
            (
                query["drive"], str(query["drives"]), query["location"], PATH_WORDS[query["path"]], figure(row[by]),
                f"{figure(row[f'{by}_p10'])} to {figure(row[f'{by}_p90'])}", "–" if ratio is None else f"{ratio:.2f}",
                str(query["workers"] * query["depth"]), figure(row["cpu_cores"]), decide.short(row["bottleneck"]),
            )
        )  # fmt: skip
    lines = [*assumed(document), ""]
    for text in document["verdicts"]:
        lines += folded("decision", text + ".")
    return "\n".join([*lines, "", *table(rows)])


PATH_WORDS = {GDS: GDS, "cpu": BOUNCE}


def whatif(axes: Sequence[str], points: Sequence[Mapping[str, Any]]) -> str:
    given = [(key, name, unit) for key, name, unit in NAMES if any(key in point for point in points)]
    if any(point.get("of_rate") for point in points):
        given = [(key, "AU or share of the rate" if key == "au_pct" else name, unit) for key, name, unit in given]
    played = [(key, name) for key, name in SIMULATED if key in points[0]]
    head = (*axes, *(f"{name} {unit}".strip() for _, name, unit in given), "limit", *(name for _, name in played))
    rows: list[tuple[str, ...]] = [head]
    for point in points:
        cells = [str(point["query"][a]) for a in axes]
        for key, _, _ in given:
            low, high = (figure(point.get(f"{key}_{end}")) for end in ("p10", "p90"))
            cells.append(f"{figure(point[key])} ({low} to {high})" if key in point else "–")
        limit = decide.short(point["bottleneck"]) + ("; extrapolated" if point["warnings"] else "")
        shown = [decide.short(point[key]) if isinstance(point[key], str) else figure(point[key]) for key, _ in played]
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
    lines = [*assumed(row), *folded("decision", row["decision"]), *own_runs(row["own_runs"], KV_NAMES), ""]
    lines += [f"option {asked['option']}: {asked['model']}, {asked['users']} users, {at_once}", ""]
    lines += [*table(rows), "", f"bottleneck   {row['bottleneck']}: {row['limit_reason']}"]
    lines.append(decide.utilised(row))
    for head, texts in (("interval", [row["interval"]]), ("also assumed", row["assumptions"]), ("warning", row["warnings"])):
        for text in texts:
            lines += folded(head, text)
    return "\n".join([*lines, "", *parameters(row["parameters"])])


def kvusers(document: Mapping[str, Any]) -> str:
    """Choices of drives for users of a KV cache."""
    target = f"P95 of a request at most {document['target']['p95_s']:g} s; least {document['by']}"
    lines = [*assumed(document), *folded("decision", document["decision"]), *folded("target", target), ""]
    names = ("drive", "drives", "users, at most", "P95 ms", "at the low end", "read GiB/s", "writes TB/day", "endures years")
    rows: list[tuple[str, ...]] = [(*names, "limit")]
    for c in document["choices"]:
        shown = (figure(c["p95_ms"]), figure(c["p95_ms_p90"]), figure(c["read_gib_s"]), figure(c["writes_tb_day"]))
        years = "-" if c["endures_years"] is None else figure(c["endures_years"])
        rows.append((c["drive"], str(c["drives"]), str(c["users_max"]), *shown, years, c["limit"]))
    lines += table(rows) if len(rows) > 1 else []
    for c in document["not_enough"]:
        lines += folded("not enough", f"{c['drives']} × {c['drive']}: {c['users_max']} users; {c['reason']}")
    lines.append("")
    said = [("advice", text) for text in document["advice"]] + [("interval", document["interval"])]
    said += [("also assumed", text) for text in document["assumptions"]]
    said += [(head, text) for head, key in (("left out", "left_out"), ("warning", "warnings")) for text in document[key]]
    said += [("next", choice["command"]) for choice in document["choices"][:1]]
    return "\n".join([*lines, *(line for head, text in said for line in folded(head, text))])
