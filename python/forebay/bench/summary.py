"""A record as a page of text for a terminal. Pure: a record in, a string out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from forebay import environment
from forebay.figures import shown_in
from forebay.flags import engine_name
from forebay.numbers import bytes_, count, micros, seconds, significant
from forebay.units import GIB, format_bytes

BARS = "▁▂▃▄▅▆▇█"
LABEL = 10
ABOUT_DATA = ("cached", "cold_and_warm", "small_data", "small_ios", "small_pages")


def text(record: dict[str, Any], width: int = 100) -> str:
    """The summary: what it ran on, the path that ran, rate, latency, CPU, power, cache, ramp, warnings."""
    return wrapped(_lines(record), width)


def wrapped(labelled: Iterable[tuple[str, str]], width: int) -> str:
    """Labelled lines as columns of at most `width` characters: the label once, the line under itself."""
    lines: list[str] = []
    for label, line in labelled:
        lines += textwrap.wrap(
            line,
            max(width, 40),
            initial_indent=label.ljust(LABEL),
            subsequent_indent=" " * LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _lines(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from environment.card(record["environment"])
    for found in record["path"].get("fabric") or []:
        yield "remote", environment.remote(found)
    yield "job", job(record["job"])
    yield "path", path(record)
    if record.get("origin") != "measured":
        yield "origin", f"{record.get('origin')}: no device was measured"
    yield "moved", moved(record["result"])
    yield "rate", rate(record["result"])
    if record["result"].get("files"):
        yield "files", files(record["result"]["files"], record["job"].get("glob") or ())
    gpus = record["result"].get("gpus") or []
    if len(gpus) > 1:
        yield "gpus", " · ".join(f"GPU {g['gpu']} {significant(g['throughput_gib_s'])} GiB/s" for g in gpus)
    yield "latency", latency(record)
    yield from ways(record["result"])
    if record["result"].get("queries"):
        yield "queries", queries(record["result"]["queries"])
    elif record["result"].get("batch"):
        yield "batches", batches(record["result"]["batch"])
    yield "cpu", cpu(record)
    yield "power", power(record)
    yield "cache", cache(record)
    yield "errors", errors(record["result"])
    for line in ramp(record["result"].get("series") or []):
        yield "ramp", line
    for found in record["result"].get("hosts") or []:
        yield "host", host(found)
    yield from warnings(record.get("warnings") or [])


def job(spec: dict[str, Any]) -> str:
    """`randread of 4k from /data/t, 4 workers × depth 32, seed 7`."""
    size = format_bytes(spec["io_bytes"])
    if spec.get("io_bytes_max"):
        size += f" to {format_bytes(spec['io_bytes_max'])}"
    what = str(spec["op"]) if not spec.get("read_iolog") else f"replay of {spec['read_iolog']}: {spec['op']}"
    if spec.get("read_pct") is not None:
        what += f", {spec['read_pct']} % reads,"
    preposition = "to" if "write" in spec["op"] else "from"
    if spec.get("whole_files"):
        order = " in random order" if spec.get("order") == "random" else ""
        parts = [f"{what} of whole files{order} by {size} from {spec['source']}"]
    else:
        parts = [f"{what} of {size} {preposition} {spec['source']}"]
    if spec.get("glob"):
        parts[0] += " " + " ".join(f"'{glob}'" for glob in spec["glob"])
    if spec.get("data_bytes"):
        parts[0] += f" ({bytes_(spec['data_bytes'])})"
    found = " (found by calibration)" if spec.get("workers_from") == "auto" else ""
    batch = f" in batches of {spec['batch']}" if spec.get("batch") else ""
    if spec.get("dependent"):
        batch = f" in queries of {spec['dependent']}"
    chosen = " (chosen)" if spec.get("depth_from") == "auto" else ""
    parts.append(f"{count(spec['workers'], 'worker')}{found} × depth {spec['depth']}{chosen}{batch}")
    if spec.get("rate_gib_s"):
        parts.append(f"paced at {significant(spec['rate_gib_s'])} GiB/s")
    if spec.get("rate_iops"):
        parts.append(f"paced at {spec['rate_iops']:,.0f} IOPS")
    if spec.get("pattern") == "random" or spec.get("order") == "random" or spec.get("verify"):
        parts.append(f"seed {spec['seed']}")
    return " · ".join(parts)


def path(record: dict[str, Any]) -> str:
    """The path that ran and why; the engine; the destination of the bytes; the page size of the buffers."""
    ran = record["path"]
    head = f"{ran['ran']} ran" + (
        "" if ran["ran"] == ran["requested"] else f" ({ran['requested']} was requested)"
    )
    if ran.get("reason"):
        head += f": {ran['reason']}"
    engine = f"engine {engine_name(ran['engine'])}"
    if ran.get("engine_features"):
        engine += f" ({', '.join(ran['engine_features'])})"
    where = {"host": "into host memory", "none": "no bytes moved"}
    parts = [head, engine, where.get(ran["destination"], f"into {ran['destination']}")]
    moved_ways = [f"{bytes_(found)} {words}" for found, words in shown_in("path", record)]
    if moved_ways:
        parts.append(", ".join(moved_ways))
    if ran.get("slot_bytes"):
        pinned = ", pinned" if ran.get("slots_pinned") else ""
        pages = "GPU memory" if ran["slot_pages"] == "none" else f"{ran['slot_pages']} pages{pinned}"
        parts.append(f"buffers {bytes_(ran['slot_bytes'])} in {pages}")
    return " · ".join(parts)


def moved(result: dict[str, Any]) -> str:
    line = f"{bytes_(result['bytes'])} in {result['ios']:,} I/Os over {seconds(result['seconds'])}"
    if result.get("read_bytes") and result.get("write_bytes"):
        line += f" ({bytes_(result['read_bytes'])} read, {bytes_(result['write_bytes'])} written)"
    if result.get("verified_bytes"):
        place = result.get("verified_on")
        line += f" · {bytes_(result['verified_bytes'])} verified" + (f" on {place}" if place not in (None, "host") else "")
    if result.get("steady_after_s") is not None:
        line += f" · steady after {seconds(result['steady_after_s'])}"
    if result.get("interrupted"):
        line += " · interrupted: these are the results up to that point"
    return line


def rate(result: dict[str, Any]) -> str:
    """Throughput and IOPS; over repeats the median, range and 95 % interval."""
    line = f"{significant(result['throughput_gib_s'])} GiB/s · {result['iops']:,.0f} IOPS"
    foretold = result.get("foretold")
    if foretold:
        line += f" · its model predicts {foretold['iops']:,.0f} IOPS ({foretold['off_pct']:+.1f} %)"
    repeats = result.get("repeats") or []
    if len(repeats) < 2:
        return line
    spread = result["summary"]
    low, high = spread["throughput_gib_s_min"], spread["throughput_gib_s_max"]
    line += (
        f" · over {len(repeats)} repeats: median {significant(spread['throughput_gib_s_median'])},"
        f" range {significant(low)}–{significant(high)}"
    )
    interval = spread.get("throughput_gib_s_ci95")
    if interval:
        line += f", 95 % interval of the mean {significant(interval[0])}–{significant(interval[1])}"
    return line


def files(found: dict[str, Any], patterns: Iterable[str] = ()) -> str:
    """Number of files that were read, and whole ones per second."""
    line = f"{found['read']:,} of {found['found']:,} read"
    if any(pattern.endswith(".tar") for pattern in patterns):
        line += ", a shard as one file (its members: forebay emulate run, forebay.feed)"
    if found.get("whole") is None or found.get("files_per_s") is None:
        return line
    return f"{line} · {significant(found['files_per_s'])} files/s ({found['whole']:,.0f} read from beginning to end)"


def latency(record: dict[str, Any]) -> str:
    result = record["result"]
    found = result.get("latency_us")
    if not result.get("ios") or not found:
        return not_measured(record, "result.latency_us", "no I/O finished")
    line = percentiles(found)
    copy = result.get("copy_latency_us")
    if copy:
        line += f" · copy stage p50 {micros(copy['p50'])}, p99 {micros(copy['p99'])}"
    return line


def ways(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Reads and writes of a mix apart, and flushes."""
    mixed = [(f"{way}s", result[way]) for way in ("read", "write") if result.get(way)]
    for label, found in mixed if len(mixed) > 1 else ():
        rates = f"{significant(found['throughput_gib_s'])} GiB/s · {found['iops']:,.0f} IOPS"
        yield label, f"{rates} · {percentiles(found['latency_us'])}"
    if result.get("flush"):
        yield "flushes", f"{result['flush']['ios']:,} · {percentiles(result['flush']['latency_us'])}"


def percentiles(found: dict[str, Any]) -> str:
    words = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "max", "mean": "mean"}
    return " · ".join(f"{word} {micros(found[key])}" for key, word in words.items())


def batches(found: dict[str, Any]) -> str:
    """Describes requests of several I/Os: how long they took, and how their I/Os were brought together."""
    if not found["count"]:
        return f"none of {found['ios']} I/Os belonged to a complete batch"
    return f"{found['count']:,} of {found['ios']} I/Os · {percentiles(found['latency_us'])} · {found['by']}"


def queries(found: dict[str, Any]) -> str:
    """Describes queries of dependent reads: how many a second, of how many bytes, and how long they took."""
    if not found["count"]:
        return "none ended in the measured time"
    words = " · ".join(f"{key} {micros(found['latency_us'][key])}" for key in ("p50", "p95", "p99", "max"))
    return f"{significant(found['per_s'])}/s of {found['bytes'] / 1e6:.2f} MB each · {words}"


def cpu(record: dict[str, Any]) -> str:
    """Cores (user and system), CPU-seconds per GiB, time per I/O, and what the rest of the machine did."""
    result = record["result"]
    used = result["cpu"]
    if used.get("cores_busy") is None or "result.cpu" in (record.get("missing") or {}):
        return not_measured(record, "result.cpu", "")
    elapsed = result["seconds"]
    line = f"{significant(used['cores_busy'])} cores"
    if elapsed:
        user, system = used["user_s"] / elapsed, used["system_s"] / elapsed
        line += f" (user {significant(user)}, system {significant(system)})"
    if used.get("cpu_s_per_gib") is not None:
        line += f" · {significant(used['cpu_s_per_gib'])} CPU-s/GiB"
        gib = result["bytes"] / GIB
        if gib:
            shares = (significant(used["user_s"] / gib), significant(used["system_s"] / gib))
            line += f" (user {shares[0]}, system {shares[1]})"
    if used.get("ns_per_io") is not None:
        line += f" · {micros(used['ns_per_io'] / 1e3)} per I/O"
    if used.get("others_cores_busy") is not None:
        line += f" · other processes {significant(used['others_cores_busy'])} cores"
    return line


def power(record: dict[str, Any]) -> str:
    """One line where no meter is there; all the reasons where the user asked for some."""
    found = record["result"].get("power") or []
    if not found:
        asked = {k.removeprefix("result.power."): v for k, v in (record.get("missing") or {}).items()}
        meters = {m: why for m, why in asked.items() if not m.startswith(("result", "cache"))}
        if not meters or (record["job"].get("power") or []):
            reported = not_measured(record, "result.power", "no meter answered")
            return reported + (f" ({'; '.join(f'{m}: {why}' for m, why in meters.items())})" if meters else "")
        return f"not measured: no meter here ({', '.join(meters)}) → forebay doctor"
    parts = []
    for meter in found:
        part = f"{meter['scope']} {significant(meter['watts_mean'])} W"
        if meter.get("joules_per_gib") is not None:
            part += f", {significant(meter['joules_per_gib'])} J/GiB"
        parts.append(f"{part} ({meter['source']})")
    return " · ".join(parts)


def cache(record: dict[str, Any]) -> str:
    """Policy, residency before and after, and what the devices delivered next to what was requested."""
    state = record["cache"]
    names = {
        "bypass": "bypassed (O_DIRECT)",
        "drop": "dropped before each run",
        "allow": "allowed",
        "warm": "warmed first",
        "mixed": "bypassed (O_DIRECT) for some files, used for others",
        "memory": "the file system lives in memory",
        "none": "doesn't apply",
    }
    parts = [names.get(state["policy"], state["policy"])]
    before, after = state.get("resident_before"), state.get("resident_after")
    if before is not None and after is not None:
        parts.append(f"data in page cache {100 * before:.0f} % before, {100 * after:.0f} % after")
    elif state["policy"] not in ("none", "memory"):
        key = "cache.resident_before" if before is None else "cache.resident_after"
        parts.append("residency " + not_measured(record, key, "no reason given"))
    if state.get("device_bytes") is not None:
        parts.append(_device_share(state["device_bytes"], record["result"]))
    elif state["policy"] != "none":
        parts.append("device bytes " + not_measured(record, "cache.device_bytes", "no device counter"))
    return " · ".join(parts)


def _device_share(device: int, result: dict[str, Any]) -> str:
    asked = result["bytes"]
    line = f"devices moved {bytes_(device)} for {bytes_(asked)} requested"
    if not asked:
        return line
    return line + f" ({100 * device / asked:.0f} %)"


def errors(result: dict[str, Any]) -> str:
    counted = [f"{found:,} {words}" for found, words in shown_in("errors", {"result": result})]
    if not counted:
        return "none"
    examples = "; ".join(result["errors"].get("examples") or [])
    return ", ".join(counted) + (f": {examples}" if examples else "")


def ramp(series: Sequence[dict[str, Any]], cells: int = 60) -> list[str]:
    """A sparkline of throughput, warm-up before the bar `|`; one line per repeat, four at most."""
    lines = []
    repeats = sorted({p.get("repeat", 0) for p in series})
    top = max((p["gib_s"] for p in series), default=0.0)
    for number in repeats[:4]:
        points = [p for p in series if p.get("repeat", 0) == number]
        warm = [p["gib_s"] for p in points if p.get("warmup")]
        kept = [p["gib_s"] for p in points if not p.get("warmup")]
        if len(kept) < 2:
            continue
        share = cells * len(warm) // len(points)
        line = f"{sparkline(warm, share, top)}|" if warm else ""
        line += sparkline(kept, cells - share, top)
        line += f" {significant(min(kept))}–{significant(max(kept))} GiB/s"
        if warm:
            line += f"; warm-up of {seconds(_warmup_end(points))} left out"
        lines.append(line)
    if len(repeats) > 4:
        lines.append(f"and {len(repeats) - 4} more repeats")
    return lines


def _warmup_end(points: Sequence[dict[str, Any]]) -> float:
    return max(p["t_s"] for p in points if p.get("warmup"))


def sparkline(values: Sequence[float], cells: int, top: float | None = None) -> str:
    """`values` as bars from zero to `top`, averaged into at most `cells` characters."""
    if not values or cells < 1:
        return ""
    top = max(values) if top is None else top
    cells = min(cells, len(values))
    bars = []
    for cell in range(cells):
        first, last = cell * len(values) // cells, (cell + 1) * len(values) // cells
        mean = sum(values[first:last]) / (last - first)
        bars.append(BARS[min(len(BARS) - 1, int(mean / top * len(BARS)))] if top > 0 else BARS[0])
    return "".join(bars)


def host(found: dict[str, Any]) -> str:
    """One host of an MPI run."""
    parts = [str(found.get("host", "?"))]
    if found.get("rank") is not None:
        parts[0] += f" (rank {found['rank']})"
    if found.get("throughput_gib_s") is not None:
        parts.append(f"{significant(found['throughput_gib_s'])} GiB/s")
    if found.get("iops") is not None:
        parts.append(f"{found['iops']:,.0f} IOPS")
    spread = found.get("latency_us")
    if spread:
        parts.append(f"p50 {micros(spread['p50'])}, p99 {micros(spread['p99'])}")
    if (found.get("cpu") or {}).get("cores_busy") is not None:
        parts.append(f"{significant(found['cpu']['cores_busy'])} cores")
    if found.get("started_after_s") is not None:
        parts.append(f"began {seconds(found['started_after_s'])} after the first")
    if found.get("failure"):
        parts.append(f"failed: {found['failure']}")
    return " · ".join(parts)


def about_data(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The warnings of several runs, each kind once, that say what was read: memory, tiny files, or what needs no drive."""
    found: dict[str, dict[str, Any]] = {}
    for warning in (each for record in records for each in record.get("warnings") or []):
        if warning.get("id") in ABOUT_DATA:
            found.setdefault(warning["id"], warning)
    return list(found.values())


def warnings(found: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for warning in found:
        following = f" → {warning['next']}" if warning.get("next") else ""
        yield "warning", f"{warning['text']}{following}"


def not_measured(record: dict[str, Any], field: str, otherwise: str) -> str:
    """`not measured: REASON`, from `missing`: of the field, else of its parts, else of what it is part of."""
    missing = record.get("missing") or {}
    reasons = [reason for key, reason in missing.items() if key == field]
    reasons = reasons or [reason for key, reason in missing.items() if key.startswith(f"{field}.")]
    reasons = reasons or [reason for key, reason in missing.items() if field.startswith(f"{key}.")]
    return f"not measured: {'; '.join(dict.fromkeys(reasons)) or otherwise}"
