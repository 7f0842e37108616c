"""A record of the KV cache workload as a page of text for a terminal. Pure: a record in, a string out."""

from __future__ import annotations

import textwrap
from typing import Any

from forebay.bench import summary
from forebay.numbers import bytes_, count, seconds, significant
from forebay.units import GIB

INDENT = 11


def text(record: dict[str, Any], width: int = 100) -> str:
    """Formats a run: the three rates, what they were limited by, latency by class, hits, and what was assumed."""
    part = record["kvcache"]
    found = record["result"]
    rows = [
        ("workload", workload(part)),
        ("read", rates(part["read_gib_s"], part)),
        ("write", rates(part["write_gib_s"], part)),
        *device(record),
        ("limit", f"{part['limit'] or 'unknown'}: {part['limit_reason']}"),
        ("requests", requests(part)),
        ("entries", entries(part)),
        ("latency", latency(part)),
        *((name, by_class(part["classes"][name])) for name in ("interactive", "responsive", "batch")),
        ("hits", hits(part)),
        ("time", waited(part)),
        ("path", summary.path(record)),
        ("CPU", summary.cpu(record)),
    ]
    rows += [("errors", summary.errors(found))] if summary.errors(found) != "none" else []
    rows += [("assumed", "; ".join(part["assumptions"]))] if part["assumptions"] else []
    rows += [("stream", part["stream_hash"])] if part["stream_hash"] else []
    rows += [("warning", f"{w['text']} (try: {w['next']})") for w in record.get("warnings") or []]
    if record["result"].get("interrupted"):
        rows.append(("note", "interrupted: this is what was measured until then"))
    rows.append(("label", part["label"]))
    return "\n".join(_row(name, said, width) for name, said in rows)


def _row(name: str, said: str, width: int) -> str:
    wrap = textwrap.TextWrapper(
        width=max(width, 40), initial_indent=f"{name:<{INDENT}} ", subsequent_indent=" " * (INDENT + 1), break_long_words=False
    )
    return wrap.fill(said)


def workload(part: dict[str, Any]) -> str:
    ranks = f" on each of {part['ranks']} ranks" if part["ranks"] > 1 else ""
    tier = f", {bytes_(part['host_tier_bytes'])} of memory in front" if part["host_tier_bytes"] else ""
    return (
        f"option {part['option']}: {part['model']} ({bytes_(part['bytes_per_token'])} a token), "
        f"{count(part['users'], 'user')}{ranks}, "
        f"{seconds(part['duration_s'])}, {part['admission']} entries written at once{tier}"
    )


def rates(found: dict[str, float], part: dict[str, Any]) -> str:
    """`12.1 GiB/s in the window · 14.5 as published · 12.4 until the last byte at 345 s`."""
    until = f"until the last byte at {seconds(part['last_s'])}" if part["drained"] else f"until {seconds(part['last_s'])}"
    return (
        f"{significant(found['window'])} GiB/s in the window · {significant(found['as_published'])} as the reference "
        f"publishes it · {significant(found['drained'])} {until}"
    )


def device(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What the block devices counted in the window, beside what was asked of them."""
    moved = record["cache"].get("device_bytes")
    asked = record["result"]["bytes"]
    if not moved or not asked or not record["result"]["seconds"]:
        return []
    rate = moved / GIB / record["result"]["seconds"]
    return [("device", f"{significant(rate)} GiB/s read and written, by its counters ({moved / asked:.3f} of what was asked)")]


def requests(part: dict[str, Any]) -> str:
    found = part["requests"]
    return (
        f"{found['served']:,} served of {found['offered']:,} that came ({found['in_window']:,} in the window) · "
        f"{significant(part['requests_per_s'])} a second · "
        + (f"{significant(part['storage_tokens_per_s'])} storage tokens/s" if part["storage_tokens_per_s"] is not None else "")
    ).rstrip(" ·")


def entries(part: dict[str, Any]) -> str:
    found = part["entries"]
    said = "none written"
    if found["count"]:
        said = f"{found['count']:,} written, {bytes_(found['bytes_mean'])} in the mean, {bytes_(found['bytes_max'])} at most"
    for key, word in (("demoted", "moved from memory"), ("evicted", "evicted"), ("lost", "lost"), ("given_up", "given up")):
        if found[key]:
            said += f" · {found[key]:,} {word}"
    return said


def latency(part: dict[str, Any]) -> str:
    rows = (
        ("entry read", "entry_read"),
        ("entry write", "entry_write"),
        ("flush", "flush"),
        ("I/O read", "block_read"),
        ("I/O write", "block_write"),
    )
    found = [(name, part["latency_ms"][key]) for name, key in rows]
    said = [f"{name} p50 {_ms(s['p50'])}, p95 {_ms(s['p95'])}" for name, s in found if s["count"]]
    return " · ".join(said) or "nothing was timed"


def by_class(found: dict[str, Any]) -> str:
    if not found["requests"]:
        return "none was served"
    sla = found["sla"]
    return (
        f"{count(found['requests'], 'request')} · p50 {_ms(found['latency_ms']['p50'])}, p95 {_ms(found['latency_ms']['p95'])} · "
        f"{100 * sla['compliance']:.1f} % within {_ms(sla['target_p95_ms'])}: {'met' if sla['met'] else 'NOT met'}"
    )


def hits(part: dict[str, Any]) -> str:
    found = part["hits"]
    share = 100 * found["hits"] / found["lookups"] if found["lookups"] else 0.0
    return (
        f"{share:.1f} % of {found['lookups']:,} lookups · own entries {found['own']:,}, earlier turns {found['multi_turn']:,} "
        f"(missed {found['multi_turn_missed']:,}), system prompts missed {found['system_prompts']:,}"
    )


def waited(part: dict[str, Any]) -> str:
    found = part["waited_s"]
    total = sum(found.values())
    if not total:
        return "no request was served"
    names = {
        "queue": "queued",
        "admission": "waiting to write",
        "entry": "waiting for an entry",
        "storage": "storage",
        "host": "host",
    }
    return " · ".join(f"{name} {100 * found[key] / total:.0f} %" for key, name in names.items())


def _ms(value: float | None) -> str:
    return seconds(value / 1000) if value is not None else "?"


def plan(found: dict[str, Any]) -> str:
    """Describes a run that wasn't started."""
    spec = found["spec"]
    room = f"{bytes_(found['capacity_bytes'])} of room a rank" if found["capacity_bytes"] is not None else "room without a limit"
    return "\n".join(
        [
            f"would serve {count(spec['users'], 'user')} on {count(spec['ranks'], 'rank')} for {seconds(spec['duration_s'])} "
            f"from {spec['dir']}{', in virtual time' if found['simulated'] else ''}",
            f"  {bytes_(found['bytes_per_token'])} a token, entries of up to {bytes_(found['entry_bytes_max'])}, {room}",
            f"  {found['served_at_once']} requests at once, {spec['admission']} entries written at once; "
            f"{count(found['workers'], 'worker')}, {bytes_(found['buffer_bytes'])} of buffers",
            f"  stream {found['stream_hash']}",
        ]
    )
