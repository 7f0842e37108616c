"""A record of an emulated run as a page of text for a terminal. Pure: a record in, a string out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forebay import environment
from forebay.bench import summary
from forebay.numbers import bytes_, count, micros, seconds, significant
from forebay.uri import known

# Below this share of their time that the accelerators waited, they set the pace themselves.
IDLE_PCT = 2.0
CAUSES = {
    "storage_s": "storage",
    "parse_s": "parsing",
    "cpu_s": "processors",
    "barrier_s": "the barrier",
}


def text(record: dict[str, Any], width: int = 100) -> str:
    """Formats a run: what ran, utilisation and verdict, rates, where time went, what limits, the client's own state,
    warnings."""
    return summary.wrapped(_lines(record), width)


def _lines(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    training, result = record["training"], record["result"]
    for label, line in environment.card(record["environment"]):
        if label != "gpu" or training["destination"].startswith("gpu"):
            yield label, line
    yield "workload", workload(training)
    yield "data", data(record)
    if record.get("origin") != "measured":
        yield "origin", f"{record.get('origin')}: no device was measured"
        if (source := known(record["job"].get("source"))) and source.drive:
            drives = f" --drives {source.settings['drives']}" if "drives" in source.settings else ""
            asked = f"forebay plan run --drive {source.drive}{drives} --workload {training['workload']}"
            left_out = "its reader processes may limit first, and its memory serves part of the reads"
            yield "host", f"not simulated: {left_out} → {asked}"
    if training["destination"].startswith("gpu"):
        yield "path", summary.path(record)
    yield "AU", utilisation(training, bool(result.get("interrupted")))
    others = by_other_rules(training)
    if others:
        yield "also", others
    yield "rate", rate(record)
    yield "waited", waited(training)
    yield "limit", limit(training)[1]
    yield "latency", latency(training)
    yield "cpu", summary.cpu(record)
    yield "client", client(training)
    if record.get("cache"):
        yield "cache", summary.cache(record)
    for verdict in training.get("rules") or []:
        if not verdict["ok"]:
            yield "rule", f"{verdict['id']}: {verdict['why']}"
    if training["skipped"]["count"]:
        yield "skipped", skipped(training["skipped"])
    yield "errors", summary.errors(result)
    for found in result.get("hosts") or []:
        yield "host", host(found)
    yield from summary.warnings(record.get("warnings") or [])
    yield "label", training["label"]


def workload(t: dict[str, Any]) -> str:
    """`unet3d on 8 × H100 · rules v1.0, parse · batches of 7 · seed 123`."""
    hosts = f" on {t['hosts']} hosts" if t.get("hosts", 1) > 1 else ""
    epochs, ahead = len(t["epochs"]), t.get("batches_ahead") or t["prefetch"]
    parts = [
        f"{t['workload']} on {t['accelerators']:,} × {t['accelerator'].upper()}{hosts}",
        f"rules {t['rule_set']}, level {t['level']}" + (", images decoded" if t.get("decode") else ""),
        f"batches of {t['batch']:,}, {ahead} read ahead, {t['read_threads']} files at a time each",
        f"{count(epochs, 'epoch')} of {count(t['steps'], 'step')}, seed {t['seed']}",
    ]
    if t["destination"] != "drop":
        parts.append(f"batches end in {t['destination']}")
    return " · ".join(parts)


def data(record: dict[str, Any]) -> str:
    t = record["training"]
    each = "" if t["samples_per_file"] == 1 else f" of {t['samples_per_file']:,} samples"
    return f"{t['files']:,} {t['format']} files{each} in {record['job']['source']}"


def utilisation(t: dict[str, Any], interrupted: bool = False) -> str:
    """AU, the verdict, and each epoch's."""
    broken = [rule for rule in t.get("rules") or [] if not rule["ok"] and rule["id"] != "au"]
    if t["au_pct"] is None:
        nothing = not t["samples"] and t["skipped"]["count"]
        return "fails: nothing was read" if nothing else f"not known: too few steps for the formula of {t['rule_set']}"
    reached = t["au_pct"] >= t["au_pct_min"]
    verdict = "passes" if t["passes"] else f"fails ({broken[0]['why']})" if reached and broken else "fails"
    line = f"{t['au_pct']:.2f} % by {t['rule_set']}: {verdict}, {t['au_pct_min']:g} % is needed"
    if interrupted:
        line += " · interrupted: these are the results up to that point"
    each = [e["au_pct"] for e in t["epochs"] if e["au_pct"] is not None]
    if len(each) > 1:
        line += " · epochs " + ", ".join(f"{au:.1f}" for au in each[:8]) + (" …" if len(each) > 8 else "")
    return line


def by_other_rules(t: dict[str, Any]) -> str:
    """The same run by the other rule sets' formulas."""
    others = [f for f in t.get("by_rules") or [] if f["rule_set"] != t["rule_set"] and f["au_pct"] is not None]
    return "the same run " + " · ".join(f"by {f['rule_set']} {f['au_pct']:.2f} %" for f in others) if others else ""


def rate(record: dict[str, Any]) -> str:
    """By the rules' formula, which counts nominal records; then bytes that were really read."""
    t, result = record["training"], record["result"]
    reported = []
    if t["samples_per_s"] is not None:
        reported.append(f"{t['samples_per_s']:,.1f} samples/s")
    if t["throughput_mib_s"] is not None:
        reported.append(f"{t['throughput_mib_s']:,.1f} MiB/s at the nominal record size")
    reported.append(f"{bytes_(t['read_bytes'])} read in {seconds(result['seconds'])}")
    reported.append(f"{significant(result['throughput_gib_s'])} GiB/s")
    if t.get("start_to_first_step_s") is not None:
        reported.append(f"first step after {seconds(t['start_to_first_step_s'])}")
    return " · ".join(reported)


def shares(t: dict[str, Any]) -> dict[str, float]:
    """Per cent of the accelerators' time that each cause had them wait."""
    total = t["accelerators"] * sum(e["seconds"] for e in t["epochs"])
    return {key: 100 * (t["waited"][key] or 0.0) / total if total else 0.0 for key in CAUSES}


def waited(t: dict[str, Any]) -> str:
    found = shares(t)
    parts = ", ".join(f"{CAUSES[key]} {share:.1f} %" for key, share in found.items())
    return f"{sum(found.values()):.1f} % of the accelerators' time: {parts}"


def limit(t: dict[str, Any]) -> tuple[str, str]:
    """(identifier, sentence): what sets the pace: accelerator, client, storage or barrier."""
    found = shares(t)
    cause = max(found, key=lambda key: found[key])
    behind = max(("storage_s", "parse_s", "cpu_s"), key=lambda key: found[key])
    # Computing takes all of them as long: who comes late waited for something else, and the others at most as long for it.
    if cause == "barrier_s" and found[behind] * t["accelerators"] >= found[cause]:
        cause = behind
    if t["headroom"]["client_limited"]:
        return "client", f"this client, not the storage: {t['headroom']['why']}"
    if sum(found.values()) < IDLE_PCT:
        return "accelerator", "the accelerators themselves: there is room for more of them"
    if cause in ("parse_s", "cpu_s"):
        return "client", f"this client: the accelerators waited for {CAUSES[cause]} {found[cause]:.1f} % of the time"
    if cause == "barrier_s":
        return "barrier", "the slowest accelerator, for which all others wait after each step"
    return "storage", f"the storage: the accelerators waited for it {found[cause]:.1f} % of the time"


def latency(t: dict[str, Any]) -> str:
    parts = []
    for key in ("read", "sample", "step"):
        found = t["latency"][key]["latency_us"]
        if found and found.get("max"):
            parts.append(f"{key} p50 {micros(found['p50'])}, p99 {micros(found['p99'])}, max {micros(found['max'])}")
    return " · ".join(parts) or "nothing was timed"


def client(t: dict[str, Any]) -> str:
    """The client's own headroom and memory."""
    headroom, memory = t["headroom"], t["memory_bytes"]
    parts = []
    if headroom["cores_busy"] is not None:
        parts.append(f"{significant(headroom['cores_busy'])} cores busy")
    if headroom["workers_busy_pct"] is not None:
        parts.append(f"workers {headroom['workers_busy_pct']:.0f} % busy")
    parts.append("it was the limit: " + headroom["why"] if headroom["client_limited"] else "it could have done more")
    if memory.get("rss"):
        parts.append(f"{bytes_(memory['rss'])} of memory")
    if memory.get("per_accelerator"):
        parts.append(f"{bytes_(memory['per_accelerator'])} per accelerator")
    return " · ".join(parts)


def skipped(found: dict[str, Any]) -> str:
    return f"{found['count']:,} samples: " + "; ".join(found["examples"])


def host(found: dict[str, Any]) -> str:
    """One host of an MPI run."""
    parts = [str(found.get("host", "?"))]
    for key, show in (
        ("accelerators", lambda v: f"{v} accelerators"),
        ("au_pct", lambda v: f"AU {v:.2f} %"),
        ("samples_per_s", lambda v: f"{v:,.1f} samples/s"),
        ("failure", lambda v: f"failed: {v}"),
    ):
        if found.get(key) is not None:
            parts.append(show(found[key]))
    return " · ".join(parts)


def curve(points: Sequence[dict[str, Any]], needed_pct: float, width: int = 40) -> list[str]:
    """AU over the number of accelerators, one bar each; a mark where it is needed."""
    lines = []
    most = max((len(f"{p['accelerators']:,}") for p in points), default=1)
    for point in points:
        au = point["au_pct"] or 0.0
        filled = round(width * min(au, 100.0) / 100)
        bar = list("█" * filled + "·" * (width - filled))
        mark = min(width - 1, round(width * needed_pct / 100))
        bar[mark] = "│" if filled <= mark else "┃"
        verdict = "passes" if point["passes"] else "fails"
        lines.append(f"{point['accelerators']:>{most},} {''.join(bar)} {au:6.2f} % {verdict}")
    return lines
