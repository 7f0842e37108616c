"""`forebay emulate kvcache replay`: a recorded trace of requests over tiers of memory and a drive, in virtual time."""

from __future__ import annotations

import heapq
import json
import math
from array import array
from collections.abc import Sequence
from typing import Any

import click

from forebay import flags
from forebay.emulate.kvcache import prefix, traces
from forebay.errors import DONE, RequestError
from forebay.numbers import bytes_, significant
from forebay.plan import catalogue
from forebay.units import parse_bytes, parse_seconds

SCHEMA = "forebay.kvcache-replay/1"
EXAMPLES = """\b
Examples:
  forebay emulate kvcache replay mooncake.jsonl.gz --dir model:d7-ps1010 --gpu-tier 40g --host-tier 200g
  forebay emulate kvcache replay trace.csv --dir 'model:d7-ps1010?drives=2' --speed 4 --prefill-rate 20000
  forebay emulate kvcache replay mooncake.jsonl --dir model:d7-ps1010 --p95 0.5 --json"""
ASSUMED = (
    "a block is there for the next request from the moment at which it is asked for",
    "blocks in the memory of GPUs and of the host cost no time",
    "one GPU's prefill is never busy with another request: TTFT has no queue but the drive's",
    "loads share the drive's read bandwidth evenly and don't slow down stores, which share its write bandwidth",
    "answers aren't kept",
)
DAY_S = 86_400.0
SPEEDS = (1e-3, 1e6)
SEARCH_STEPS = 14


@click.command("replay", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("trace")
@click.option("--dir", "folder", metavar="model:DRIVE", help="The drive of the storage tier, by its data sheet.")
@click.option("--model", default="llama3.1-8b", show_default=True, metavar="NAME", help="As for emulate kvcache.")
@click.option("--speed", default="1", show_default=True, metavar="FACTOR", help="Times as fast as recorded.")
@click.option("--gpu-tier", metavar="SIZE", help="Memory of GPUs for blocks. Default: none.")
@click.option("--host-tier", metavar="SIZE", help="Memory of the host for blocks. Default: none.")
@click.option("--storage-tier", metavar="SIZE", help="Storage for blocks. Default: the drive's capacity.")
@click.option("--prefill-rate", default="10000", show_default=True, metavar="N", help="Tokens a second of a prefill.")
@click.option("--p95", metavar="SECONDS", help="Also find the most requests a second with 95 % of loads within this time.")
@click.option("--dwpd", metavar="N", help="Drive writes a day that the data sheet allows.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(trace: str, as_json: bool, **options: Any) -> int:
    """What would this drive have done for requests that were recorded?

    TRACE is Mooncake's (JSON lines with timestamp, input_length, hash_ids), the reference's CSV of entries read and written, or
    BurstGPT's CSV; plain, gzip or zstd. Blocks of prompts are kept in tiers; what storage has is loaded in virtual time.
    """
    document = replayed(trace, Asked(options))
    click.echo(json.dumps(document, indent=1, allow_nan=False) if as_json else "\n".join(lines(document)))
    return DONE


class Asked:
    """The settings, understood. Raises RequestError for what can't be."""

    def __init__(self, options: dict[str, Any]) -> None:
        folder = options["folder"]
        if folder is None or not folder.startswith("model:"):
            said = "no drive was given" if folder is None else "a trace is replayed in virtual time, on a drive's data sheet"
            raise RequestError("--dir" if folder is None else f"--dir {folder}", said, "--dir model:d7-ps1010")
        name, _, query = folder.removeprefix("model:").partition("?")
        self.drive, self.drives = catalogue.drive(name), 1
        if query:
            key, _, value = query.partition("=")
            if key != "drives":
                told = f"has the key '{key}'; a replay knows drives"
                raise RequestError(f"--dir {folder}", told, f"--dir 'model:{name}?drives=2'")
            self.drives = flags._integer(value, "--dir model:…?drives", 1024)
        if self.drive.seq_write_mbps is None or self.drives == 0:
            raise RequestError(f"--dir {folder}", "has no write bandwidth", "--dir model:d7-ps1010")
        self.token_bytes = token_bytes(options["model"])
        self.model = options["model"]
        self.speed = positive(options["speed"], "--speed", *SPEEDS)
        self.prefill = positive(options["prefill_rate"], "--prefill-rate", 1e-3, 1e12)
        self.p95_s = parse_seconds(options["p95"], "--p95") if options["p95"] is not None else None
        gpu, host, storage = (
            parse_bytes(options[key], "--" + key.replace("_", "-")) if options[key] is not None else None
            for key in ("gpu_tier", "host_tier", "storage_tier")
        )
        self.dwpd = positive(options["dwpd"], "--dwpd", 1e-3, 1e3) if options["dwpd"] is not None else None
        whole = self.drive.capacity_tb
        if storage is None and whole is None:
            raise RequestError(f"--dir {folder}", "its catalogue has no capacity", "--storage-tier 4t")
        self.sizes = (gpu or 0, host or 0, storage if storage is not None else int((whole or 0) * 1e12) * self.drives)


def token_bytes(model: str) -> int:
    """Bytes of a token's keys and values, as the engine has them."""
    from forebay.emulate.kvcache.verb import engine_plan, option_of

    plan = engine_plan(option_of(1) | {"dir": "model:d7-ps1010", "model": model})
    return int(plan["bytes_per_token"])


def positive(text: str, what: str, least: float, most: float) -> float:
    value = flags._number(text, what)
    if not least <= value <= most:
        raise RequestError(f"{what} {text}", f"must be {least:g} to {most:g}", f"{what} 2")
    return value


class Fluid:
    """Transfers of one direction that share a rate evenly. Times in seconds."""

    def __init__(self, rate: float, latency_s: float) -> None:
        self.rate, self.latency_s = rate, latency_s
        self._now = self._share = 0.0
        self._ends: list[tuple[float, int]] = []
        self.took: array[float] = array("d")
        self._began: dict[int, float] = {}
        self.busy_s = 0.0

    def add(self, at_s: float, bytes_: int, number: int) -> None:
        self._until(at_s)
        self._began[number] = at_s
        heapq.heappush(self._ends, (self._share + bytes_, number))

    def finish(self) -> None:
        self._until(math.inf)

    def _until(self, at_s: float) -> None:
        while self._ends:
            end, number = self._ends[0]
            at = self._now + (end - self._share) * len(self._ends) / self.rate
            if at > at_s:
                self._share += (at_s - self._now) * self.rate / len(self._ends)
                self.busy_s += at_s - self._now
                break
            heapq.heappop(self._ends)
            self.busy_s += at - self._now
            self._now, self._share = at, end
            self.ended(number, at + self.latency_s - self._began.pop(number))
        if at_s < math.inf:
            self._now = max(self._now, at_s)

    def ended(self, number: int, took_s: float) -> None:
        self.took[number] = took_s


def played(moves: prefix.Moves, asked: Asked, speed: float) -> tuple[array[float], float]:
    """Seconds that each request's load took, 0 without one; and the share of the time in which the drive was read."""
    reads = Fluid(asked.drive.seq_read_mbps * 1e6 * asked.drives, asked.drive.latency()[0] * 1e-6)
    reads.took = array("d", bytes(8 * len(moves.at_s)))
    first = moves.at_s[0] if moves.at_s else 0.0
    for number, load in enumerate(moves.loads):
        if load:
            reads.add((moves.at_s[number] - first) / speed, load, number)
    reads.finish()
    span = max(reads._now, (moves.at_s[-1] - first) / speed if moves.at_s else 0.0)
    return reads.took, reads.busy_s / span if span > 0 else 0.0


def written(moves: prefix.Moves, asked: Asked, speed: float) -> float:
    """Share of the drive's write bandwidth that the stores take; above 1 it can't keep up."""
    span = (moves.at_s[-1] - moves.at_s[0]) / speed
    bandwidth = (asked.drive.seq_write_mbps or 0.0) * 1e6 * asked.drives
    return sum(moves.stores) / span / bandwidth if span > 0 else 0.0


def replayed(path: str, asked: Asked) -> dict[str, Any]:
    kind, requests = traces.read(path)
    moves = prefix.follow(requests, prefix.Tiers(asked.sizes), asked.token_bytes)
    if not moves.at_s:
        raise RequestError(f"trace {path}", "has no requests", "a trace with some")
    took, busy = played(moves, asked, asked.speed)
    span = (moves.at_s[-1] - moves.at_s[0]) / asked.speed
    loads = [seconds for seconds, bytes_ in zip(took, moves.loads, strict=True) if bytes_]
    ttft = [seconds + new / asked.prefill for seconds, new in zip(took, moves.calculated, strict=True)]
    whole = [(old + new) / asked.prefill for old, new in zip(moves.found, moves.calculated, strict=True)]
    hits = dict(zip(prefix.NAMES, moves.hits, strict=True))
    document = {
        "schema": SCHEMA,
        "trace": {"path": path, "kind": kind, "requests": len(moves.at_s), "seconds": span, "speed": asked.speed},
        "model": asked.model,
        "token_bytes": asked.token_bytes,
        "drive": {
            "name": asked.drive.name, "drives": asked.drives, "source": asked.drive.source,
            "read_busy": busy, "write_busy": written(moves, asked, asked.speed),
        },
        "tiers_bytes": dict(zip(prefix.NAMES, asked.sizes, strict=True)),
        "blocks": {
            "asked": moves.blocks,
            "hits": hits,
            "hit_rate": {name: count / moves.blocks if moves.blocks else None for name, count in hits.items()},
            "unknown": moves.unknown,
            "evicted": moves.evicted,
        },
        "prefill_tokens_per_s": asked.prefill,
        "ttft_s": {"load": spread(ttft), "recompute": spread(whole)},
        "load_s": spread(loads),
        "loading_wins_from_tokens": {"idle_drive": idle_crossover(asked), "this_trace": crossover(moves, took, asked.prefill)},
        "read_bytes": sum(moves.loads),
        "write_bytes": sum(moves.stores),
        "writes": endurance(moves, asked, span),
        "carries": carried(moves, asked) if asked.p95_s is not None else None,
        "assumptions": list(ASSUMED),
    }
    return document


def spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    at = {f"p{share}": ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)] for share in (50, 95, 99)}
    return {"mean": math.fsum(ordered) / len(ordered), **at, "max": ordered[-1]}


def idle_crossover(asked: Asked) -> float | None:
    """Tokens from which an idle drive loads faster than a prefill calculates; None: it never does."""
    each = asked.token_bytes / (asked.drive.seq_read_mbps * 1e6 * asked.drives)
    gain = 1 / asked.prefill - each
    return asked.drive.latency()[0] * 1e-6 / gain if gain > 0 else None


def crossover(moves: prefix.Moves, took: Sequence[float], prefill: float) -> int | None:
    """The shortest load, as a power of two of tokens, from which most loads of every length took less time than calculating what
    they brought; None: there is none."""
    won: dict[int, list[int]] = {}
    for tokens, seconds in zip(moves.on_storage, took, strict=True):
        if tokens:
            counts = won.setdefault(tokens.bit_length() - 1, [0, 0])
            counts[0] += 1
            counts[1] += seconds < tokens / prefill
    found = None
    for length in sorted(won, reverse=True):
        if 2 * won[length][1] <= won[length][0]:
            break
        found = 1 << length
    return found


def endurance(moves: prefix.Moves, asked: Asked, span_s: float) -> dict[str, float | None]:
    """Bytes written a day, as drive writes a day, beside what the data sheet guarantees over five years."""
    a_day = sum(moves.stores) / span_s * DAY_S if span_s > 0 else None
    size, rated = asked.drive.capacity_tb, asked.dwpd
    if rated is None and size and asked.drive.endurance_pbw is not None:
        rated = asked.drive.endurance_pbw * 1000 / (size * 5 * 365)
    whole = size * 1e12 * asked.drives if size is not None else None
    return {
        "bytes_a_day": a_day,
        "drive_writes_a_day": a_day / whole if a_day is not None and whole else None,
        "rated_drive_writes_a_day": rated,
    }


def carried(moves: prefix.Moves, asked: Asked) -> dict[str, float | None]:
    """The most requests a second of this trace, sped up, at which 95 % of loads are within the time and stores keep up."""
    most = asked.p95_s or 0.0
    span = moves.at_s[-1] - moves.at_s[0]

    def holds(speed: float) -> bool:
        if written(moves, asked, speed) > 1:
            return False
        took, _ = played(moves, asked, speed)
        found = spread([seconds for seconds, bytes_ in zip(took, moves.loads, strict=True) if bytes_])
        return found is None or found["p95"] <= most

    low, high = SPEEDS
    if span <= 0 or not any(moves.loads) or not holds(low):
        return {"p95_s": most, "speed": None, "requests_per_s": None}
    for _ in range(SEARCH_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return {"p95_s": most, "speed": low, "requests_per_s": (len(moves.at_s) - 1) * low / span}


def lines(found: dict[str, Any]) -> list[str]:
    trace, blocks, drive = found["trace"], found["blocks"], found["drive"]
    tiers = " · ".join(f"{name} {bytes_(size)}" for name, size in found["tiers_bytes"].items())
    rates = " · ".join(f"{name} {100 * rate:.1f} %" for name, rate in blocks["hit_rate"].items() if rate is not None)
    said = [
        f"trace     {trace['path']} ({trace['kind']}): {trace['requests']:,} requests in {significant(trace['seconds'])} s",
        f"drive     {drive['drives']} × {drive['name']}, in virtual time",
        f"model     {found['model']}, {found['token_bytes']:,} B a token; {found['prefill_tokens_per_s']:g} tokens/s prefill",
        f"tiers     {tiers}",
        f"hits      {rates or 'none asked for'} of {blocks['asked']:,} blocks · {blocks['evicted']:,} evicted from storage",
    ]
    if blocks["unknown"]:
        said.append(f"unknown   {blocks['unknown']:,} reads of what the trace never wrote, or what was evicted")
    for name, key in (("load", "load"), ("recompute", "recompute")):
        said.append(f"TTFT      {name}: {_spread(found['ttft_s'][key])}")
    said.append(f"loads     {_spread(found['load_s'])}")
    busy = f"{100 * drive['read_busy']:.1f} % of the time; stores take {100 * drive['write_busy']:.1f} % of its write bandwidth"
    said.append(f"busy      reading {busy}" + (", which is more than it has" if drive["write_busy"] > 1 else ""))
    wins = found["loading_wins_from_tokens"]
    idle, here = (
        "never" if wins[key] is None else f"from {max(1, math.ceil(wins[key])):,} token(s)"
        for key in ("idle_drive", "this_trace")
    )
    said.append(f"loading   wins {idle} on an idle drive, {here} in this trace")
    said.append(f"writes    {_writes(found)}")
    if (carries := found["carries"]) is not None:
        rate = carries["requests_per_s"]
        most = "no rate keeps to it"
        if rate is not None:
            most = f"{significant(rate)} requests/s, {significant(carries['speed'])} × recorded"
        said.append(f"carries   {most} at a P95 of loads of {significant(carries['p95_s'])} s")
    return [*said, *(f"assumed   {text}" for text in found["assumptions"])]


def _spread(found: dict[str, float] | None) -> str:
    if found is None:
        return "none"
    return " · ".join(f"{name} {significant(value)} s" for name, value in found.items())


def _writes(found: dict[str, Any]) -> str:
    writes = found["writes"]
    if writes["bytes_a_day"] is None:
        return f"{bytes_(found['write_bytes'])} stored, in no time"
    said = f"{significant(writes['bytes_a_day'] / 1e12)} TB a day"
    if writes["drive_writes_a_day"] is not None:
        said += f", {significant(writes['drive_writes_a_day'])} drive writes a day"
    rated = writes["rated_drive_writes_a_day"]
    return said + (f"; {significant(rated)} are allowed" if rated else "; the catalogue has no endurance: --dwpd N")
