"""`forebay emulate kvcache replay`: a recorded trace of requests over tiers of memory, and a folder or a drive's model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from forebay import flags
from forebay.bench import progress
from forebay.bench.interrupt import Interrupt
from forebay.emulate.kvcache import prefix, traces, verb
from forebay.errors import BROKE, CHECK_FAILED, DONE, INTERRUPTED, ForebayError, RequestError
from forebay.numbers import bytes_, count, significant
from forebay.plan import catalogue
from forebay.units import parse_bytes, parse_seconds
from forebay.uri import parsed

SCHEMA = "forebay.kvcache-replay/1"
EXAMPLES = """\b
Examples:
  forebay emulate kvcache replay mooncake.jsonl.gz --dir model:d7-ps1010 --gpu-tier 40g --host-tier 200g
  forebay emulate kvcache replay mooncake.jsonl --dir /data/kv --storage-tier 100g --speed 0.5 --verify
  forebay emulate kvcache replay trace.csv --dir 'model:d7-ps1010?drives=2' --speed 4 --prefill-rate 20000
  forebay emulate kvcache replay mooncake.jsonl --dir model:d7-ps1010 --p95 0.5 --json"""
# Blocks that move at once, and bytes of a worker's I/Os.
AT_ONCE, IN_FLIGHT_BYTES, IO_BYTES_MAX = 256, 32 << 20, 64 << 20
ASSUMED = (
    "a block that is being written is read once it is there; what is found where is decided from the trace alone",
    "blocks in the memory of GPUs and of the host cost no time",
    "one GPU's prefill is never busy with another request: TTFT has no queue but the drive's",
    "a request stores once it has loaded and calculated",
    "answers aren't kept",
    "all blocks that move share the drive evenly, as of --dir model:DRIVE without a trace",
)
DAY_S = 86_400.0
SPEEDS = (1e-3, 1e6)
SEARCH_STEPS = 14


@click.command("replay", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("trace")
@click.option("--dir", "folder", metavar="DIR|SOURCE", help="The storage tier: a folder, a source, or a drive by its data sheet.")
@click.option("--model", default="llama3.1-8b", show_default=True, metavar="NAME", help="As for emulate kvcache.")
@click.option("--speed", default="1", show_default=True, metavar="FACTOR", help="Times as fast as recorded.")
@click.option("--gpu-tier", metavar="SIZE", help="Memory of GPUs for blocks. Default: none.")
@click.option("--host-tier", metavar="SIZE", help="Memory of the host for blocks. Default: none.")
@click.option("--storage-tier", metavar="SIZE", help="Storage for blocks. Default: the drive's capacity.")
@click.option("--prefill-rate", default="10000", show_default=True, metavar="N", help="Tokens a second of a prefill.")
@click.option("--p95", metavar="SECONDS", help="Also find the most requests a second with 95 % of loads within this time.")
@click.option("--dwpd", metavar="N", help="Drive writes a day that the data sheet allows.")
@click.option("--user-interval", metavar="SECONDS", help="From a user's request to the next. Default: as in the trace.")
@click.option("--blocks", metavar="SIZE", help="Bytes per I/O: 64k, 2m, 32m. Default: 1m.")
@click.option("--depth", metavar="N", help="I/Os in flight per worker. Default: 32, and at most 32 MiB of them.")
@click.option("--workers", metavar="N", help="Threads that move blocks. Default: one per CPU, at most 4.")
@click.option(
    "--overwrite", multiple=True, metavar="FILE",
    help="Keep blocks in this file, which Forebay didn't create, in place of a folder.",
)
@click.option(
    "--overwrite-device", multiple=True, metavar="DEVICE",
    help="Keep blocks on this device or namespace, over all that it holds.",
)
@click.option("--verify", is_flag=True, help="Compare every byte that is read with what was written. For a folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(trace: str, as_json: bool, **options: Any) -> int:
    """What would this drive have done for requests that were recorded?

    TRACE is Mooncake's (JSON lines with timestamp, input_length, hash_ids), the reference's CSV of entries read and written, or
    BurstGPT's CSV; plain, gzip or zstd. Blocks of prompts are kept in tiers; what storage has is loaded from the folder as the
    requests come, or from the drive's model in virtual time.
    """
    with Interrupt() as interrupt:
        document = replayed(trace, Asked(options), interrupt, quiet=as_json)
    click.echo(json.dumps(document, indent=1, allow_nan=False) if as_json else "\n".join(lines(document)))
    if document["error"] is not None:
        click.echo(f"forebay: {document['error']}", err=True)
        damaged = document["folder"] is not None and document["folder"].get("errors", {}).get("verify_failed")
        return CHECK_FAILED if damaged else BROKE
    return INTERRUPTED if document["interrupted"] else DONE


class Asked:
    """The settings, understood. Raises RequestError for what can't be."""

    def __init__(self, options: dict[str, Any]) -> None:
        folder = options["folder"]
        if folder is None:
            raise RequestError("--dir", "no folder was given, and no drive", "--dir DIR, or --dir model:d7-ps1010")
        self.drive: catalogue.Drive | None = None
        self.drives = 1
        source = parsed(folder)
        if source.drive is not None:
            self._take_drive(folder, source.drive, source.settings)
        self.model = options["model"]
        self.speed = positive(options["speed"], "--speed", *SPEEDS)
        self.prefill = positive(options["prefill_rate"], "--prefill-rate", 1e-3, 1e12)
        self.p95_s, self.user_interval_s = (
            parse_seconds(options[key], flag) if options[key] is not None else None
            for key, flag in (("p95", "--p95"), ("user_interval", "--user-interval"))
        )
        self.dwpd = positive(options["dwpd"], "--dwpd", 1e-3, 1e3) if options["dwpd"] is not None else None
        self.spec = self._spec(folder, options)
        plan = verb.engine_plan(self.spec)
        self.token_bytes = int(plan["bytes_per_token"])
        self.sizes = self._sizes(folder, options, plan["capacity_bytes"])

    def _take_drive(self, folder: str, name: str, settings: dict[str, str]) -> None:
        self.drive = catalogue.drive(name)
        for key, value in settings.items():
            if key != "drives":
                reported = f"has the key '{key}'; a replay knows drives"
                raise RequestError(f"--dir {folder}", reported, f"--dir 'model:{name}?drives=2'")
            self.drives = flags._integer(value, "--dir model:…?drives", 1024)
        if self.drive.seq_write_mbps is None or self.drives == 0:
            raise RequestError(f"--dir {folder}", "has no write bandwidth", "--dir model:d7-ps1010")

    def _spec(self, folder: str, options: dict[str, Any]) -> verb.Spec:
        """The engine's, but for its duration."""
        made = verb.option_of(1) | {"dir": folder, "model": self.model, "users": AT_ONCE, "duration_s": 1.0}
        made["verify"] = bool(options["verify"])
        if made["verify"] and self.drive is not None:
            raise RequestError(f"--verify on {folder}", "a modelled drive has no content", "--dir DIR")
        if options["blocks"] is not None:
            made["io_bytes"] = parse_bytes(options["blocks"], "--blocks")
            if not 0 < made["io_bytes"] <= IO_BYTES_MAX or made["io_bytes"] % 4096:
                reported = "must be a multiple of 4096 bytes, up to 64 MiB"
                raise RequestError(f"--blocks {options['blocks']}", reported, "--blocks 2m")
            # As many as the memory of the default takes.
            made["depth"] = max(2, min(made["depth"], IN_FLIGHT_BYTES // max(1, made["io_bytes"])))
        for key, field in (("overwrite", "overwrite"), ("overwrite_device", "overwrite_devices")):
            if options[key]:
                made[field] = verb.named(options[key])
        for key in ("depth", "workers"):
            if options[key] is not None:
                made[key] = flags._integer(options[key], f"--{key}")
        return made

    def _sizes(self, folder: str, options: dict[str, Any], free: int | None) -> tuple[int, int, int]:
        """Of the three tiers. That of storage is what the drives hold, or what the folder's file system has free."""
        gpu, host, storage = (
            parse_bytes(options[key], "--" + key.replace("_", "-")) if options[key] is not None else None
            for key in ("gpu_tier", "host_tier", "storage_tier")
        )
        if self.drive is not None:
            there = int(self.drive.capacity_tb * 1e12) * self.drives if self.drive.capacity_tb is not None else None
        else:
            there = free
        if storage is None and there is None:
            raise RequestError(f"--dir {folder}", "nothing says how much it holds", "--storage-tier 4t")
        if self.drive is None and storage is not None and there is not None and storage > there:
            reported = f"{folder} has room for {there} bytes"
            raise RequestError(f"--storage-tier {options['storage_tier']}", reported, "a smaller one")
        return gpu or 0, host or 0, storage if storage is not None else there or 0


def positive(text: str, what: str, least: float, most: float) -> float:
    value = flags._number(text, what)
    if not least <= value <= most:
        raise RequestError(f"{what} {text}", f"must be {least:g} to {most:g}", f"{what} 2")
    return value


@dataclass
class Played:
    """Outcome of a trace: seconds of each request's load, 0 without one and None where the run ended before; and the record."""

    took: list[float | None]
    record: dict[str, Any]
    lost: int
    given_up: int
    error: ForebayError | None = None
    interrupted: bool = False


class Script:
    """The trace as the engine plays it; all but the times is the same at every speed."""

    def __init__(self, moves: prefix.Moves, prefill: float) -> None:
        self._at_s = moves.at_s
        then = [int(tokens / prefill * 1e9) for tokens in moves.calculated]
        rest = {"then_ns": then, "ends": moves.ends.tolist(), "deeds": moves.deeds.tolist(), "bytes": moves.written.tolist()}
        self._rest = json.dumps(rest, separators=(",", ":"))[1:]

    def at(self, speed: float) -> str:
        first = self._at_s[0]
        times = ",".join(str(int((at - first) / speed * 1e9)) for at in self._at_s)
        return f'{{"at_ns":[{times}],{self._rest}'

    def span_s(self, speed: float) -> float:
        return (self._at_s[-1] - self._at_s[0]) / speed


def played(script: Script, asked: Asked, speed: float, interrupt: Interrupt | None = None, quiet: bool = True) -> Played:
    """The engine's run of it: on the folder, or in virtual time on the drive's model, which is that of `--dir model:DRIVE`."""
    ranks: list[dict[str, Any]] = []
    watch = progress.line(quiet)

    def observe(found: dict[str, Any]) -> None:
        if interrupt is not None:
            interrupt.raise_if_requested()
        watch(found)

    spec = asked.spec | {"duration_s": max(script.span_s(speed), 1e-3)}
    error: ForebayError | None = None
    try:
        record = verb.engine_run(spec, observe, None, ranks.extend, script.at(speed))
    except ForebayError as found:
        kept = getattr(found, "record", None)
        if kept is None:
            raise
        record, error = json.loads(kept), found
    finally:
        watch.close()
    done = ranks[0]["replayed"]
    took = [None if ns is None else ns * 1e-9 for ns in done["load_ns"]]
    stopped = bool(record["result"]["interrupted"])
    return Played(took, record, done["lost"], done["given_up"], error, stopped)


def share_written(moves: prefix.Moves, asked: Asked, speed: float) -> float | None:
    """Share of the drive's write bandwidth that the stores take; above 1 it can't keep up. None: it isn't known."""
    span = (moves.at_s[-1] - moves.at_s[0]) / speed
    if asked.drive is None:
        return None
    bandwidth = (asked.drive.seq_write_mbps or 0.0) * 1e6 * asked.drives
    return sum(moves.stores) / span / bandwidth if span > 0 else 0.0


def replayed(path: str, asked: Asked, interrupt: Interrupt | None = None, quiet: bool = True) -> dict[str, Any]:
    """The document. What broke while it ran stands in `error`, beside all that was measured until then."""
    kind, requests = traces.read(path)
    tiers = prefix.Tiers(asked.sizes)
    moves = prefix.follow(requests, tiers, asked.token_bytes)
    for name, size in zip(prefix.NAMES, asked.sizes, strict=True):
        if tiers.least is not None and 0 < size < tiers.least:
            reported = f"the smallest block of the trace has {tiers.least} bytes"
            raise RequestError(f"--{name}-tier {size}", reported, f"--{name}-tier {1000 * tiers.least}; 0 for none")
    if not moves.at_s:
        raise RequestError(f"trace {path}", "has no requests", "a trace with some")
    script = Script(moves, asked.prefill)
    run = played(script, asked, asked.speed, interrupt, quiet) if any(moves.loads) or any(moves.stores) else None
    span = script.span_s(asked.speed)
    took = run.took if run is not None else [0.0] * len(moves.at_s)
    loads = [seconds for seconds, bytes_ in zip(took, moves.loads, strict=True) if bytes_ and seconds is not None]
    ttft = [seconds + new / asked.prefill for seconds, new in zip(took, moves.calculated, strict=True) if seconds is not None]
    whole = [(old + new) / asked.prefill for old, new in zip(moves.found, moves.calculated, strict=True)]
    hits = dict(zip(prefix.NAMES, moves.hits, strict=True))
    return {
        "schema": SCHEMA,
        "trace": {"path": path, "kind": kind, "requests": len(moves.at_s), "seconds": span, "speed": asked.speed},
        "model": asked.model,
        "token_bytes": asked.token_bytes,
        "io_bytes": asked.spec["io_bytes"],
        "drive": shares(moves, asked, run, span),
        "folder": measured(asked, run),
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
        "carries": carried(script, moves, asked, loads) if asked.p95_s is not None else None,
        "assumptions": list(ASSUMED[:-1] if asked.drive is None else ASSUMED),
        "interrupted": run is not None and run.interrupted,
        "error": str(run.error) if run is not None and run.error is not None else None,
    }


def shares(moves: prefix.Moves, asked: Asked, run: Played | None, span: float) -> dict[str, Any] | None:
    """The modelled drive, and the shares of its bandwidths that loads and stores took."""
    if asked.drive is None:
        return None
    last = max(span, run.record["kvcache"]["last_s"] if run is not None else 0.0)
    most = asked.drive.seq_read_mbps * 1e6 * asked.drives
    return {
        "name": asked.drive.name, "drives": asked.drives, "source": asked.drive.source,
        "read_busy": sum(moves.loads) / last / most if last > 0 else 0.0, "write_busy": share_written(moves, asked, asked.speed),
    }  # fmt: skip


def measured(asked: Asked, run: Played | None) -> dict[str, Any] | None:
    """Figures of a folder's run; None in virtual time."""
    if asked.drive is not None:
        return None
    found: dict[str, Any] = {"dir": asked.spec["dir"], "lost": run.lost if run else 0, "given_up": run.given_up if run else 0}
    if run is None:
        return found
    part, result = run.record["kvcache"], run.record["result"]
    device = run.record["cache"]["device_bytes"]
    return found | {
        "read_gib_s": part["read_gib_s"], "write_gib_s": part["write_gib_s"], "read_bytes": part["read_bytes"],
        "write_bytes": part["write_bytes"], "seconds": part["last_s"], "block_read_ms": part["latency_ms"]["block_read"],
        "engine": run.record["path"]["engine"], "device_bytes": device, "cpu": result["cpu"], "errors": result["errors"],
        "verified_bytes": result.get("verified_bytes"),
    }  # fmt: skip


def spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    at = {f"p{share}": ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)] for share in (50, 95, 99)}
    return {"mean": math.fsum(ordered) / len(ordered), **at, "max": ordered[-1]}


def idle_crossover(asked: Asked) -> float | None:
    """Tokens from which an idle drive loads faster than a prefill calculates; None: it never does."""
    if asked.drive is None:
        return None
    each = asked.token_bytes / (asked.drive.seq_read_mbps * 1e6 * asked.drives)
    gain = 1 / asked.prefill - each
    return asked.drive.latency()[0] * 1e-6 / gain if gain > 0 else None


def crossover(moves: prefix.Moves, took: Sequence[float | None], prefill: float) -> int | None:
    """The shortest load, as a power of two of tokens, from which most loads of every length took less time than calculating what
    they brought; None: there is none."""
    won: dict[int, list[int]] = {}
    for tokens, seconds in zip(moves.on_storage, took, strict=True):
        if tokens and seconds is not None:
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
    size, rated = asked.drive.capacity_tb if asked.drive is not None else None, asked.dwpd
    if rated is None and size and asked.drive is not None and asked.drive.endurance_pbw is not None:
        rated = asked.drive.endurance_pbw * 1000 / (size * 5 * 365)
    whole = size * 1e12 * asked.drives if size is not None else None
    return {
        "bytes_a_day": a_day,
        "drive_writes_a_day": a_day / whole if a_day is not None and whole else None,
        "rated_drive_writes_a_day": rated,
    }


def carried(script: Script, moves: prefix.Moves, asked: Asked, loads: list[float]) -> dict[str, Any]:
    """The most requests a second of this trace, sped up, at which 95 % of loads are within the time and stores keep up; and how
    many users that are, each of whom asks again after as long as those of the trace. A folder is measured at the one speed asked
    for."""
    most = asked.p95_s or 0.0
    interval = asked.user_interval_s or moves.user_interval_s
    span = script.span_s(1.0)

    def holds(speed: float) -> bool:
        if (share_written(moves, asked, speed) or 0.0) > 1:
            return False
        took = played(script, asked, speed).took
        found = spread([s for s, bytes_ in zip(took, moves.loads, strict=True) if bytes_ and s is not None])
        return found is None or found["p95"] <= most

    speed: float | None = None
    if span > 0 and any(moves.loads):
        if asked.drive is None:
            here = spread(loads)
            speed = asked.speed if here is not None and here["p95"] <= most else None
        elif holds(SPEEDS[0]):
            low, high = SPEEDS
            for _ in range(SEARCH_STEPS):
                middle = math.sqrt(low * high)
                low, high = (middle, high) if holds(middle) else (low, middle)
            speed = low
    rate = (len(moves.at_s) - 1) * speed / span if speed is not None else None
    return {
        "p95_s": most, "speed": speed, "requests_per_s": rate, "searched": asked.drive is not None,
        "user_interval_s": interval, "users": rate * interval if rate is not None and interval is not None else None,
    }  # fmt: skip


def lines(found: dict[str, Any]) -> list[str]:
    trace, blocks, drive, folder = found["trace"], found["blocks"], found["drive"], found["folder"]
    tiers = " · ".join(f"{name} {bytes_(size)}" for name, size in found["tiers_bytes"].items())
    rates = " · ".join(f"{name} {100 * rate:.1f} %" for name, rate in blocks["hit_rate"].items() if rate is not None)
    requests, asked = count(trace["requests"], "request"), count(blocks["asked"], "block")
    said = [
        f"trace     {trace['path']} ({trace['kind']}): {requests} in {significant(trace['seconds'])} s",
        f"drive     {drive['drives']} × {drive['name']}, in virtual time" if drive else f"folder    {folder['dir']}",
        f"model     {found['model']}, {found['token_bytes']:,} B a token; {found['prefill_tokens_per_s']:g} tokens/s prefill",
        f"tiers     {tiers}",
        f"hits      {rates or 'none asked for'} of {asked} · {blocks['evicted']:,} evicted from storage",
    ]
    if blocks["unknown"]:
        said.append(f"unknown   {count(blocks['unknown'], 'read')} of what the trace never wrote, or what was evicted")
    for name, key in (("load", "load"), ("recompute", "recompute")):
        said.append(f"TTFT      {name}: {_spread(found['ttft_s'][key])}")
    said.append(f"loads     {_spread(found['load_s'])}")
    if drive:
        busy = f"loads take {100 * drive['read_busy']:.1f} % of its read bandwidth, stores {100 * drive['write_busy']:.1f} %"
        beyond = ", which is more than it has" if drive["write_busy"] > 1 else ""
        said.append(f"busy      {busy} of its write bandwidth{beyond}")
    elif "seconds" in folder:
        said += _moved(folder)
    wins = found["loading_wins_from_tokens"]
    if drive is None:
        wins = {**wins, "idle_drive": wins["this_trace"]}
    idle, here = (
        "never" if wins[key] is None else f"from {count(max(1, math.ceil(wins[key])), 'token')}"
        for key in ("idle_drive", "this_trace")
    )
    said.append(f"loading   wins {idle} on an idle drive, {here} in this trace" if drive else f"loading   wins {here}")
    said.append(f"writes    {_writes(found)}")
    if (carries := found["carries"]) is not None:
        rate = carries["requests_per_s"]
        most = "no rate keeps to it" if carries["searched"] else "not this rate; try a lower --speed:"
        if rate is not None:
            most = f"{significant(rate)} requests/s, {significant(carries['speed'])} × recorded"
        if carries["users"] is not None:
            most += f", or {carries['users']:,.0f} users who ask every {significant(carries['user_interval_s'])} s,"
        said.append(f"carries   {most} at a P95 of loads of {significant(carries['p95_s'])} s")
    return [*said, *(f"assumed   {text}" for text in found["assumptions"])]


def _moved(folder: dict[str, Any]) -> list[str]:
    rates = " · ".join(
        f"{way} {bytes_(folder[f'{way}_bytes'])}, {significant(folder[f'{way}_gib_s']['drained'])} GiB/s"
        for way in ("read", "write")
    )
    said = [f"moved     {rates} until the last block, after {significant(folder['seconds'])} s · {folder['engine']}"]
    if folder["lost"] or folder["given_up"]:
        said.append(f"lost      {folder['lost']:,} blocks weren't there any more, {folder['given_up']:,} found no room")
    return said


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
