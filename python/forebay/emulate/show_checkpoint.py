"""A record of checkpoints as a page of text for a terminal. Pure: a record in, a string out."""

from __future__ import annotations

import textwrap
from typing import Any

from forebay.bench import summary
from forebay.numbers import bytes_, count, micros, seconds, significant

INDENT = 10
MODES = {"default": "", "subset": " (a subset)", "copies": " (more copies than the workload has)"}


def text(record: dict[str, Any], width: int = 100) -> str:
    """Formats a run of checkpoints: what was written, how fast, at what cost, and which rules hold."""
    part = record["checkpoint"]
    rows = [("workload", workload(part)), ("machine", machine(record)), ("path", summary.path(record))]
    rows += [(name, phase(part[name], part)) for name in ("write", "read") if part.get(name)]
    rows.append(("CPU", summary.cpu(record)))
    found = record["result"]
    rows += [("errors", summary.errors(found))] if summary.errors(found) != "none" else []
    rows += [("rules", line) for line in rules(part)]
    rows += [("warning", f"{w['text']} (try: {w['next']})") for w in record.get("warnings") or []]
    if record["result"].get("interrupted"):
        rows.append(("note", "interrupted: these are the checkpoints that finished"))
    rows.append(("label", part["label"]))
    return "\n".join(_row(name, said, width) for name, said in rows)


def _row(name: str, said: str, width: int) -> str:
    wrap = textwrap.TextWrapper(
        width=max(width, 40), initial_indent=f"{name:<{INDENT}}", subsequent_indent=" " * INDENT, break_long_words=False
    )
    return wrap.fill(said)


def machine(record: dict[str, Any]) -> str:
    found = record["environment"]
    hosts = record["checkpoint"]["hosts"]
    where = f"{hosts} hosts, the first " if hosts > 1 else ""
    return f"{where}{found['host']} · {found['cpu']} · {count(found['cores'], 'core')} · {bytes_(found['memory_bytes'])}"


def workload(part: dict[str, Any]) -> str:
    model = part["model"]
    cut = " × ".join(str(model[key]) for key in ("tensor", "pipeline", "data"))
    scaled = f" at {part['scale']:g} of their size" if part["scale"] != 1 else ""
    return (
        f"{part['workload']} ({part['rule_set']}): {count(part['ranks'], 'rank')} of {part['ranks_whole']}"
        f"{MODES[part['mode']]} · TP × PP × DP {cut}, ZeRO {model['zero_stage']} · {bytes_(part['bytes'])} in "
        f"{count(part['files'], 'file')}{scaled} (model {bytes_(part['model_bytes'])}, optimizer "
        f"{bytes_(part['optimizer_bytes'])})"
    )


def phase(found: dict[str, Any], part: dict[str, Any]) -> str:
    """`10 checkpoints · 91.2 s (± 0.4), 1.15 GiB/s · …`."""
    done = found["checkpoints"]
    spread = f" ± {significant(found['duration_s_stdev'])}" if len(done) > 1 else ""
    parts = [
        count(len(done), "checkpoint"),
        f"{seconds(found['duration_s_mean'])}{spread} each",
        f"{significant(found['gib_s_mean'])} GiB/s" + (f" ± {significant(found['gib_s_stdev'])}" if spread else ""),
    ]
    last = done[-1]
    parts.append(f"ranks {seconds(last['rank_s_min'])} to {seconds(last['duration_s'])}, rank {last['slowest_rank']} last")
    latency = found["latency_us"]
    parts.append(f"I/O p50 {micros(latency['p50'])}, p99 {micros(latency['p99'])}, max {micros(latency['max'])}")
    if found.get("fsync_us"):
        parts.append(f"fsync p50 {micros(found['fsync_us']['p50'])}, max {micros(found['fsync_us']['max'])}")
    if found.get("cpu_s_per_gib") is not None:
        parts.append(f"{significant(found['cpu_s_per_gib'])} CPU-s/GiB")
    if found.get("verified_bytes"):
        parts.append(f"{bytes_(found['verified_bytes'])} verified")
    return " · ".join(parts)


def rules(part: dict[str, Any]) -> list[str]:
    """A line for each rule that doesn't hold or can't be told, and one that counts the others."""
    words = {True: "holds", False: "BROKEN", None: "can't be determined"}
    held = [r for r in part["rules"] if r["ok"] is True]
    lines = [f"{r['id']} {words[r['ok']]}: {r['why']}" for r in part["rules"] if r["ok"] is not True]
    return [f"{len(held)} of {len(part['rules'])} hold ({part['rule_set']})", *lines]


def plan(found: dict[str, Any]) -> str:
    """Describes the writes and reads of a run that wasn't started."""
    spec = found["spec"]
    each = f"{bytes_(found['bytes'])} in {count(found['files'], 'file')} of {count(found['ranks'], 'rank')}"
    lines = [
        f"would write {count(spec['writes'], 'checkpoint')} of {each} to {spec['dir']}, and read {spec['reads']}",
        f"  model {bytes_(found['model_bytes'])}, optimizer {bytes_(found['optimizer_bytes'])}",
        f"  {count(found['workers'], 'worker')}, {bytes_(found['buffer_bytes'])} of buffers",
    ]
    if found["bytes_here"] != found["bytes"]:
        lines.insert(1, f"  on this host: {bytes_(found['bytes_here'])}")
    needed, room = found["room_needed_bytes"], found["room_bytes"]
    if room is not None and needed > room:
        lines.append(
            f"  too much for {spec['dir']}: {bytes_(needed)} are needed, and {bytes_(room)} are free there"
            " → a smaller --scale, fewer --writes, fewer --ranks, or another --dir"
        )
    return "\n".join(lines)
