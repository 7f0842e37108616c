"""A record of inference as a page of text for a terminal. Pure: a record in, a string out."""

from __future__ import annotations

from typing import Any

from forebay.infer.record import text_of_start, text_of_supply
from forebay.numbers import bytes_, count, percent, seconds, significant, whole


def text(record: dict[str, Any], width: int = 110) -> str:
    """Formats what ran, LoadGen's verdict, rates and latencies, what storage delivered and when, and the advice."""
    from forebay.bench.summary import wrapped

    part, missing = record["infer"], record["missing"]
    rows = [
        ("model", model(record)),
        ("result", result(part, missing)),
        ("why", part["why"] or ""),
        ("rate", rate(part, missing)),
        ("latency", latency(part)),
        ("tokens", tokens(part)),
        ("tables", tables(part)),
        ("accuracy", accuracy(part)),
        ("storage", storage(part)),
        ("start", text_of_start(part["coldstart"]) if part["coldstart"] else ""),
        ("search", searched(part)),
    ]
    rows += [(each["area"], each["text"]) for each in part["advice"]]
    rows += [("warning", f"{w['text']} (try: {w['next']})") for w in record.get("warnings") or []]
    if record["result"].get("interrupted"):
        rows.append(("note", "interrupted: this is what was measured until then"))
    return wrapped([(name, said) for name, said in rows if said], width)


def model(record: dict[str, Any]) -> str:
    part, found = record["infer"], record["environment"]
    gpus = found.get("gpus") or []
    where = gpus[0]["name"] if part["device"] != "cpu" and gpus else f"{found['cpu']}, {found['cores']} cores"
    kind = {
        "ram": "samples in memory",
        "tables": "samples in memory, tables in their file: not MLPerf",
        "cold": "samples read inside their queries: not MLPerf",
        "coldstart": "a cold start: not MLPerf",
    }
    form = ", small form" if part.get("form") == "small" else ""
    short = " · short" if part["short"] and part["mode"] != "coldstart" else ""
    return f"{part['model']}{form} on {where} · {part['scenario']} · {kind[part['mode']]}{short} · MLPerf-style, unverified"


def result(part: dict[str, Any], missing: dict[str, str]) -> str:
    if part["valid"] is None:
        return f"no verdict: {missing.get('infer.valid', '')}"
    return "VALID" if part["valid"] else "INVALID"


def rate(part: dict[str, Any], missing: dict[str, str]) -> str:
    if part["queries_per_s"] is None:
        return "" if part["mode"] == "coldstart" else f"not measured: {missing.get('infer.queries_per_s', '')}"
    what = {"Offline": "samples/s"}.get(part["scenario"], "queries/s")
    reported = f"{_short(part['queries_per_s'])} {what} · {whole(part['samples'])} samples in {seconds(part['seconds'])}"
    if part["scenario"] == "Server":
        reported += f" · queries came at {_short(part['expected_per_s'])}/s"
    if part["peak_samples_per_s"]:
        reported += f" · {percent(part['samples_per_s'] / part['peak_samples_per_s'])} of the model's own peak"
    return reported


def _short(value: float) -> str:
    return whole(value) if value >= 100 else significant(value)


def latency(part: dict[str, Any]) -> str:
    found = part["latency_ms"]
    if found is None or part["scenario"] == "Offline":
        return ""
    listed = ", ".join(f"{name} {significant(found[name])} ms" for name in ("p50", "p90", "p99") if name in found)
    bound = part["latency_bound_ms"]
    return listed + (f" (99 % have to come within {significant(bound)} ms)" if bound else "")


def tables(part: dict[str, Any]) -> str:
    found = part.get("tables")
    if not found:
        return ""
    reported = f"{whole(found['rows'])} rows ({bytes_(found['bytes'])}) in their file"
    reported += f", {whole(found['cached_rows'])} of them in memory"
    if found["lookups"]:
        reported += f" · {percent(found['distinct'] / found['lookups'])} of the look-ups were distinct in their batch"
        reported += f", {significant(found['hit_pct'])} % of those in memory"
    return reported


def tokens(part: dict[str, Any]) -> str:
    found = part.get("tokens")
    if not found or not found["per_s"]:
        return ""
    reported = f"{_short(found['per_s'])}/s, {found['each']} of each answer"
    for name, key in (("first", "first_ms"), ("each after it", "after_ms")):
        if found[key] and found["bounds_ms"]:
            bound = found["bounds_ms"][0 if key == "first_ms" else 1]
            reported += f" · {name}: p50 {significant(found[key]['p50'])} ms, p99 {significant(found[key]['p99'])} ms "
            reported += f"(within {significant(bound)} ms)"
    return reported


def accuracy(part: dict[str, Any]) -> str:
    found = part["accuracy"]
    if found is None:
        return ""
    rows = f"{whole(found['rows_intact'])} of {whole(found['samples'])} rows reached the model as datagen made them"
    agree = f"{significant(found['agree_pct'])} % of the answers agree with the model's float32 ones"
    return f"{rows} · {agree} (integrity, not quality) · hash {found['answers_hash']}{_quality(found.get('quality'))}"


def _quality(found: dict[str, Any] | None) -> str:
    """Of trained weights."""
    if not found or found["value"] is None:
        return ""
    reported = f" · {found['name']} of the answers {found['value']:.4f}"
    return reported if found["trained"] is None else f"{reported}; the training had {found['trained']:.4f}"


def storage(part: dict[str, Any]) -> str:
    reported = []
    if part["load_s"]:
        what = "weights" if part["mode"] == "coldstart" else "samples"
        reported.append(
            f"{bytes_(part['load_bytes'])} of {what} read in {seconds(part['load_s'])}, {significant(part['load_gib_s'])} GiB/s "
            f"({text_of_supply(part['supply'])})"
        )
    elif part["mode"] == "cold":
        reported.append(text_of_supply(part["supply"]))
    if part["timed_storage_bytes"] is not None:
        reported.append(f"{bytes_(part['timed_storage_bytes'])} from storage inside the timed part")
    return " · ".join(reported)


def searched(part: dict[str, Any]) -> str:
    found = part["search"]
    if not found:
        return ""
    passed = [t["queries_per_s"] for t in found if t["passed"]]
    failed = [t["queries_per_s"] for t in found if not t["passed"]]
    reported = count(len(found), "trial")
    reported += f"; the highest that passed came at {_short(max(passed))}/s" if passed else ", none passed"
    above = [rate for rate in failed if not passed or rate > max(passed)]
    reported += f", {_short(min(above))}/s didn't" if above else ""
    if not part["tries"] or part["valid"] is None:
        return reported
    confirmed = f"confirmed at try {part['tries']}" if part["valid"] else f"not confirmed by {count(part['tries'], 'test')}"
    return f"{reported} · {confirmed}"
