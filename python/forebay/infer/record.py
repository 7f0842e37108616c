"""The record of a run of inference: the loader's, of what was loaded, or of what the queries read, with a part `infer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.infer import advice, data, rules
from forebay.numbers import seconds, significant
from forebay.train import supply
from forebay.units import GIB

if TYPE_CHECKING:
    from forebay.infer.command import Run

Record = dict[str, Any]
LOADED = ("ram", "tables")
NOT_MEASURED = "no test of LoadGen's ended"


def finish(run: Run, base: Record) -> Record:
    """The record of what was measured so far. What is null has its reason in `missing`."""
    request = run.request
    missing: dict[str, str] = {}
    part: Record = {
        "model": request.model,
        "form": "small" if request.about.small else "full",
        "device": request.device,
        "mode": request.mode,
        "scenario": request.scenario,
        "test": "accuracy" if request.accuracy else "performance",
        "rules": rules.VERSION,
        "short": request.short,
        "seed": request.seed,
        **_verdict(run, missing),
        **_rates(run, missing),
        **_storage(run, missing),
        **_search(run, missing),
        **_start(run, missing),
    }
    part["tables"] = run.model.document() if request.mode == "tables" and run.model is not None else None
    if part["tables"] is None:
        missing["tables"] = "--mode tables measures them"
    part["advice"] = advice.advice(part)
    record = base
    _as_read(run, record)
    record["infer"] = part
    record["result"]["interrupted"] = run.interrupted
    record["missing"].update({f"infer.{key}": why for key, why in missing.items()})
    record["warnings"] = [w for w in record["warnings"] if w["id"] != "too_short"] + run.warnings
    return record


def _verdict(run: Run, missing: dict[str, str]) -> Record:
    """LoadGen's, or that of what was checked."""
    request, outcome = run.request, run.outcome
    if request.mode == "coldstart":
        missing["valid"] = "LoadGen doesn't measure a cold start"
        missing["accuracy"] = "a cold start's one answer is checked, and the weights with it"
        why = None if run.intact else "the first answer, or what it was made of, isn't what the files have"
        return {"valid": None if run.intact else False, "why": why, "accuracy": None}
    if run.checked is not None:
        damaged = run.checked["samples"] - run.checked["rows_intact"]
        missing["valid"] = "LoadGen gives no verdict on an accuracy test"
        why = f"{damaged} rows weren't what datagen made, the first is sample {run.checked['first_damaged']}" if damaged else None
        return {"valid": None if not damaged else False, "why": why, "accuracy": run.checked}
    missing["accuracy"] = "the accuracy test wasn't judged" if request.accuracy else "--accuracy wasn't asked for"
    if outcome is None or outcome.log is None:
        broken = "the run was interrupted" if run.interrupted else "the run broke off"
        error = run.failure or (outcome.failure if outcome is not None else None)
        failure = f": {error.asked}: {error.found}" if error else ""
        missing["valid"] = broken + failure
        return {"valid": False if failure else None, "why": broken + failure, "accuracy": None}
    if outcome.failure is not None:
        return {"valid": False, "why": f"{outcome.failure.asked}: {outcome.failure.found}", "accuracy": None}
    if outcome.valid is None:
        missing["valid"] = "LoadGen's log has no verdict"
    return {"valid": outcome.valid, "why": "; ".join(outcome.log.reasons) or None, "accuracy": None}


def _rates(run: Run, missing: dict[str, str]) -> Record:
    outcome, load = run.outcome, None if run.outcome is None else run.outcome.load
    names = ("queries_per_s", "samples_per_s", "latency_ms", "samples", "queries", "seconds", "expected_per_s")
    found: Record = dict.fromkeys(names)
    own = rules.MODELS[run.request.model]
    found["latency_bound_ms"] = own.server_ms if run.request.scenario == "Server" and not own.token_ms else None
    if found["latency_bound_ms"] is None:
        reported = "the rules bound the first token and those after it: tokens.bounds_ms"
        missing["latency_bound_ms"] = reported if own.token_ms else "Server alone has a bound"
    found["tokens"] = None if run.model is None else _tokens(run, own)
    if found["tokens"] is None:
        missing["tokens"] = "this model doesn't answer token by token"
    if outcome is None or load is None or not outcome.samples:
        why = "a cold start has one answer" if run.request.mode == "coldstart" else NOT_MEASURED
        missing.update(dict.fromkeys(names, why))
        return found
    found |= {"samples": outcome.samples, "queries": outcome.queries, "seconds": outcome.seconds, "expected_per_s": load.rate}
    found["samples_per_s"] = outcome.samples_per_s
    of = outcome.queries if load.scenario in ("SingleStream", "MultiStream") else outcome.samples
    found["queries_per_s"] = of / outcome.seconds if outcome.seconds > 0 else None
    found["latency_ms"] = outcome.latencies_ms
    if outcome.latencies_ms is None:
        missing["latency_ms"] = "LoadGen logs none of such a test" if outcome.log is not None else NOT_MEASURED
    if outcome.seconds <= 0:
        missing["queries_per_s"] = missing["samples_per_s"] = "the test took no time"
    return found


def _tokens(run: Run, own: rules.Rules) -> Record | None:
    """Of a language model's answers. LoadGen logs times to the first token, and to each after it, where the rules bound them."""
    each, outcome = getattr(run.model, "tokens", 0), run.outcome
    if not each:
        return None
    rate = None if outcome is None else outcome.samples_per_s
    return {
        "each": each,
        "per_s": each * rate if rate else None,
        "first_ms": None if outcome is None else outcome.first_ms,
        "after_ms": None if outcome is None else outcome.token_ms,
        "bounds_ms": list(own.token_ms) if own.token_ms and run.request.scenario == "Server" else None,
    }


def _storage(run: Run, missing: dict[str, str]) -> Record:
    request, outcome, library = run.request, run.outcome, run.library
    share = request.supply.gib_s
    found: Record = {
        "sample_bytes": request.about.row_bytes,
        "library_samples": request.count(),
        "samples_in": "their file",
        "supply_gib_s": share,
        "supply": request.supply.document(),
        "prepare_s": None,
        "load_s": None,
        "load_bytes": None,
        "load_gib_s": None,
        "timed_storage_bytes": None if outcome is None else outcome.storage_bytes,
        "timed_device_bytes": None if outcome is None else outcome.device_bytes,
        "peak_samples_per_s": run.peak,
        "demand_gib_s": None if run.peak is None else run.peak * request.about.row_bytes / GIB,
        "batch": run.engine.batch if run.engine is not None else 1,
        "cache": request.cache,
        "cached_pct": None if run.cached is None else 100 * run.cached,
    }
    if run.cached is None:
        missing["cached_pct"] = "it is asked before a test that reads its samples, of files whose pages can be told"
    if request.mode in LOADED:
        found["samples_in"] = "a GPU's memory" if request.device != "cpu" else "host memory"
    if share is None:
        missing["supply_gib_s"] = "no supply was asked for: bytes came as fast as they can"
    if request.mode in LOADED and library is not None and library.load_s:
        found |= {"load_s": library.load_s, "load_bytes": library.load_bytes, "prepare_s": library.prepare_s}
        found["load_gib_s"] = library.load_bytes / library.load_s / GIB
    elif request.mode == "coldstart" and run.weights is not None:
        found |= {"load_s": run.weights.read_s, "load_bytes": run.weights.bytes}
        found["load_gib_s"] = run.weights.bytes / max(run.weights.read_s, 1e-9) / GIB
    else:
        missing.update(dict.fromkeys(("load_s", "load_bytes", "load_gib_s"), "nothing is loaded before a cold test"))
    if found["prepare_s"] is None:
        missing["prepare_s"] = "no loader's memory was made ready"
    if outcome is None:
        why = "LoadGen doesn't measure a cold start" if request.mode == "coldstart" else NOT_MEASURED
        missing["timed_storage_bytes"] = missing["timed_device_bytes"] = why
    elif outcome.device_bytes is None:
        missing["timed_device_bytes"] = "the kernel doesn't count them for this process"
    if run.peak is None:
        missing["peak_samples_per_s"] = missing["demand_gib_s"] = "a cold start doesn't measure it"
    return found


def _search(run: Run, missing: dict[str, str]) -> Record:
    if run.search is None:
        missing["search"] = "Server alone is searched for its highest rate, where --target-qps leaves it open"
    trials = None if run.search is None else [
        {"queries_per_s": t.rate, "passed": t.passed, "p99_ms": t.p99_ms} for t in run.search.trials
    ]  # fmt: skip
    return {"tries": run.tries, "search": trials}


def _start(run: Run, missing: dict[str, str]) -> Record:
    read = run.weights
    found: Record = {"weights_bytes": None if read is None else read.bytes, "weights_s": None, "coldstart": None}
    if read is not None:
        found["weights_s"] = read.read_s + read.allocate_s
    else:
        missing["weights_bytes"] = missing["weights_s"] = "this run didn't read them"
    if run.start is None:
        missing["coldstart"] = "--mode coldstart measures it"
        return found
    found["coldstart"] = {**run.start, "at_supply": _at_supplies(run)}
    return found


def _at_supplies(run: Run) -> list[Record]:
    """Seconds of a start at the supply of 1, 2, 4 and 8 such drives: arithmetic on its parts, not a measurement."""
    asked, start, read = run.request.supply, run.start, run.weights
    if asked.drive is None or asked.gib_s is None or start is None or read is None:
        return []
    each = asked.gib_s / (asked.drives or 1)
    rest = start["total_s"] - start["read_s"]
    return [
        {"drives": n, "supply_gib_s": n * each, "total_s": rest + read.bytes / GIB / (n * each)} for n in (1, 2, 4, 8)
    ]


def _as_read(run: Run, record: Record) -> None:
    """Makes the record of a loader that of what the load, the queries or the start read."""
    record.pop("feed", None)
    record["missing"] = {key: why for key, why in record["missing"].items() if not key.startswith("feed.")}
    library, outcome, read, mode = run.library, run.outcome, run.weights, run.request.mode
    source = str(run.request.folder / (data.WEIGHTS if mode == "coldstart" else data.SAMPLES))
    record["job"] |= {"source": source, "sources": [source]}
    if mode in LOADED:
        count, ios, took, ways = library.load_bytes, library.count, library.load_s, library.ways
    elif mode == "cold":
        # What the probe read is no part of it.
        count = outcome.storage_bytes if outcome is not None else 0
        ios, took = count // library.row_bytes, outcome.seconds if outcome is not None else 0.0
        ways = library.ways
        record["job"]["pattern"] = "random"
    elif read is not None:
        count, ios, took = read.bytes, 1, read.read_s
        ways = {"direct": read.report.direct_bytes, "mapped": read.report.mapped_bytes}
        ways["staged"] = count - sum(ways.values())
    else:
        count, ios, took, ways = 0, 0, 0.0, {"direct": 0, "mapped": 0, "staged": 0}
    record["path"] |= {f"{way}_bytes": n for way, n in ways.items()}
    if mode not in LOADED:
        record["path"]["engine"] = "reader"
        if count and run.request.device != "cpu":
            most = max(ways, key=lambda way: ways[way])
            record["path"]["ran"] = {"direct": "gds", "mapped": "mapped", "staged": "bounce"}[most]
    result = record["result"]
    rate = count / took / GIB if took > 0 and count else None
    same = {"bytes": count, "ios": ios, "seconds": took, "throughput_gib_s": rate, "iops": ios / took if rate else None}
    result |= {**same, "read_bytes": count}
    result["summary"] |= dict.fromkeys(("throughput_gib_s_median", "throughput_gib_s_min", "throughput_gib_s_max"), rate)
    result["repeats"] = [{**each, **same} for each in result["repeats"][:1]]
    why = "LoadGen measures queries: infer.latency_ms"
    record["missing"] |= {"result.latency_us": why, "result.histogram": why}


def text_of_supply(document: Record) -> str:
    """A supply in words."""
    if document["asked_gib_s"] is None:
        return "as fast as storage goes"
    if document["drive"]:
        return f"simulated supply of {document['drives']} × {document['drive']}: {significant(document['asked_gib_s'])} GiB/s"
    return f"{supply.SIMULATED} of {significant(document['asked_gib_s'])} GiB/s"


def text_of_start(found: Record) -> str:
    parts = (("reading", "read_s"), ("allocating", "allocate_s"), ("building", "compile_s"), ("first answer", "first_answer_s"))
    return " + ".join(f"{name} {seconds(found[key])}" for name, key in parts) + f" = {seconds(found['total_s'])}"
