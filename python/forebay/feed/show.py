"""A record of a loader as a page of text for a terminal. Pure: a record in, a string out."""

from __future__ import annotations

from typing import Any

from forebay.bench import summary
from forebay.numbers import bytes_, count, micros, percent, significant, whole

INDENT = 10


def text(record: dict[str, Any]) -> str:
    """Formats what a loader handed out: how fast, at what cost, by which path, in which order."""
    part, result = record["feed"], record["result"]
    rows = [
        ("data", data(record)),
        ("machine", machine(record)),
        ("order", order(part)),
        ("rate", f"{whole(part['samples_per_s'])} samples/s, {significant(result['throughput_gib_s'])} GiB/s"),
        ("wait", wait(record)),
        ("CPU", summary.cpu(record)),
        ("path", summary.path(record)),
        *([("uncached", part["cold"])] if part.get("cold") else []),
        ("memory", f"{bytes_(part['memory_bytes'])} of batches, {part['prefetch']} read ahead"),
        ("hash", f"{part['hash']} of data {part['data']}"),
    ]
    if part.get("verified") is not None:
        wrong = result["errors"]["verify_failed"]
        checked = f"{part['verified']:,} samples"
        reported = f"{wrong:,} of {checked} differ" if wrong else f"{checked} are as in their files"
        rows.append(("verified", reported))
        rows += [("", line) for line in result["errors"]["examples"]]
    rows += [("warning", f"{w['text']} (try: {w['next']})") for w in record.get("warnings") or []]
    if result.get("interrupted"):
        rows.append(("note", "interrupted: this is what was handed out until then"))
    return "\n".join(f"{name:<{INDENT}}{said}" for name, said in rows)


def data(record: dict[str, Any]) -> str:
    part, job = record["feed"], record["job"]
    sources = job["sources"]
    named = sources[0] if len(sources) == 1 else f"{count(len(sources), 'file')}, {sources[0]} the first"
    cached = record["cache"]["resident_after"]
    reported = "" if cached is None else f", {percent(cached)} of the files in the page cache at the end"
    # Samples of one size make whole multiples of it.
    mean = " on average" if part["sample_bytes"] and job["data_bytes"] % part["sample_bytes"] else ""
    return f"{named}: {bytes_(job['data_bytes'])} in samples of {part['sample_bytes']:,} bytes{mean}{reported}"


def machine(record: dict[str, Any]) -> str:
    found = record["environment"]
    return f"{found['host']} · {found['cpu']} · {count(found['cores'], 'core')} · {bytes_(found['memory_bytes'])}"


def order(part: dict[str, Any]) -> str:
    ranks = f", rank {part['rank']} of {part['world']}" if part["world"] > 1 else ""
    batches = count(part["batches"], "batch").replace("batchs", "batches")
    return f"{part['order']}, seed {part['seed']} · {batches} of {part['batch_size']:,}{ranks}"


def wait(record: dict[str, Any]) -> str:
    latency = record["result"]["latency_us"]
    took = f"a batch took p50 {micros(latency['p50'])}, p99 {micros(latency['p99'])}"
    return f"{significant(record['feed']['input_wait_pct'])} % of the time for a batch; {took}"
