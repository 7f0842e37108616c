"""The record of a run of R-GAT, and what it advises: both ways' load, epochs and sums, and from how many epochs the load pays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from forebay.model_runs import CACHED_MAX
from forebay.numbers import bytes_, percent, seconds, significant, whole
from forebay.train import advice, mllog
from forebay.train.command import SHORT_S, sum_of_parts
from forebay.train.gnn_run import BULK, GATHER, Run, loader_of
from forebay.units import GIB

if TYPE_CHECKING:
    from forebay.train.advice import Drives

Record = dict[str, Any]


class Written:
    """The record of what a run measured."""

    def __init__(self, of: Run) -> None:
        assert of.fed is not None
        self.run, self.request, self.fed = of, of.request, of.fed
        self.missing: dict[str, str] = {}
        self.ended = "the run was interrupted" if of.interrupted else "the run ended"
        self.load_s = of.load.seconds if of.load is not None else 0.0

    def record(self) -> Record:
        loader = loader_of(self.request)
        try:
            record: Record = loader.record(interrupted=self.run.interrupted)
        finally:
            loader.close()
        part = {**self._speed(), **self._graph(), **self._quality(), **self._costs(record)}
        part["advice"] = reported(part, self.request.supply.drives_for)
        if self.fed.failure is not None:
            part["failed"] = self.fed.failure.found
        record["train"] = part
        self._as_read(record)
        record["missing"].update({f"train.{key}": why for key, why in self.missing.items()})
        record["warnings"] = [w for w in record["warnings"] if w["id"] != "too_short"] + self.run.warnings
        if part["samples_per_s"] and self.fed.rate.seconds < SHORT_S:
            text = f"{significant(self.fed.rate.seconds)} s of training say little about its rate"
            record["warnings"].append({"id": "too_short", "text": text, "next": "--target-accuracy none --seconds 10"})
        return record

    def _speed(self) -> Record:
        of, fed, request, missing = self.run, self.fed, self.request, self.missing
        peak, about = of.probes.get(BULK), request.about
        rate = fed.rate.samples_per_s or None
        own = (peak.samples_per_s or None) if peak else None
        scale = None if of.bytes_per_sample is None else of.bytes_per_sample / GIB
        need = peak.interval() if peak else None
        intervals = {"samples_per_s_ci95": fed.rate.interval() if rate else None, "peak_samples_per_s_ci95": need}
        delivered = of.paced if of.paced is not None else of.loader
        found: Record = {
            "model": of.model.name,
            "device": of.model.device,
            "seed": request.seed,
            "batch": request.batch,
            "order": request.shuffle,
            "learning_rate": of.model.rate,
            "asked": request.limits(),
            "optimizer": of.model.optimizer,
            "data": {
                "folder": str(about.folder), "seed": about.seed, "rows": about.rows, "table_rows": about.table_rows,
                "evaluation_rows": about.evaluation_rows,
            },
            "clock": self._clock(),
            "samples": fed.samples,
            "steps": fed.steps,
            "seconds": fed.seconds,
            "samples_per_s": rate,
            **{key: list(value) if value else None for key, value in intervals.items()},
            "rate_gib_s": rate * scale if rate and scale else None,
            "peak_samples_per_s": own,
            "demand_gib_s": own * scale if own and scale else None,
            "demand_gib_s_ci95": [scale * bound for bound in need] if need and scale else None,
            "supply_gib_s": delivered.gib_s if delivered else None,
            "supply": request.supply.document(),
            "loader_gib_s": of.loader.gib_s if of.loader else None,
            "input_wait_pct": min(100.0, 100 * fed.meter.waited_s / fed.rate.seconds) if fed.rate.seconds else None,
            "gpu_idle_pct": fed.meter.idle_pct,
            "batch_hash": fed.digest.text(),
            "batch_hash_at": fed.digest.at(),
        }  # fmt: skip
        why = f"{self.ended} before a rate was measured"
        reasons = dict.fromkeys(("samples_per_s", "rate_gib_s", "input_wait_pct", "peak_samples_per_s", "demand_gib_s"), why)
        reasons |= {key: "fewer than three pieces of the measured time" for key in (*intervals, "demand_gib_s_ci95")}
        reasons |= {"gpu_idle_pct": fed.meter.idle_reason or "no step was measured", "supply_gib_s": why, "loader_gib_s": why}
        missing |= {key: text for key, text in reasons.items() if found[key] is None}
        return found

    def _clock(self) -> dict[str, int | None]:
        """As of any run; the load is part of what is timed."""
        found = mllog.clock(self.run.began_at, self.fed)
        if found["run_start_ms"] is not None:
            found["run_start_ms"] = round(1e3 * self.run.started_at)
        return found

    def _graph(self) -> Record:
        """Both ways: the load, an epoch, and what this many samples take; this run's own measured, the other's from a moment."""
        of, request, about = self.run, self.request, self.request.about
        delivered = of.paced if of.paced is not None else of.loader
        load_s = of.load.seconds if of.load else about.feature_bytes / GIB / delivered.gib_s if delivered else None
        ways: Record = {}
        for way in (BULK, GATHER):
            own = way == request.way
            rate = self.fed.rate if own else of.probes.get(way)
            each = rate.samples_per_s if rate is not None and rate.samples_per_s else None
            first = (load_s if way == BULK else 0.0) if each else None
            found = about.rows / each if each else None
            sum_s = first + self.fed.samples / each + self.fed.evaluating_s if each and first is not None else None
            if own and self.fed.samples:
                sum_s = self.load_s + self.fed.seconds
            ways[way] = {"load_s": load_s if way == BULK else 0.0, "epoch_s": found, "sum_s": sum_s, "measured": own}
        pays, why = epochs(ways)
        graph_: Record = {
            "way": request.way,
            "nodes": about.table_rows,
            "edges": sum(about.edges),
            "relations": len(about.edges),
            "classes": about.classes,
            "fan_out": list(request.fan_out),
            "hidden": request.hidden,
            "feature_bytes": about.feature_bytes,
            "bytes_per_sample": of.bytes_per_sample,
            "load_s": of.load.seconds if of.load else None,
            "load_gib_s": of.load.gib_s if of.load else None,
            "first_batch_s": of.first_s,
            "ways": ways,
            "bulk_wins_from_epochs": pays,
        }
        self.missing |= {"graph.bulk_wins_from_epochs": why} if pays is None else {}
        if of.load is None:
            reason = "features stay in their file" if request.way == GATHER else f"{self.ended} before"
            self.missing |= dict.fromkeys(("graph.load_s", "graph.load_gib_s"), reason)
        return {"graph": graph_}

    def _quality(self) -> Record:
        request, fed, missing = self.request, self.fed, self.missing
        evaluations = [
            {"samples": e.samples, "quality": e.quality, "seconds": e.seconds, "began_s": self.load_s + e.began_s}
            for e in fed.evaluations
        ]
        reached = fed.reached_at is not None
        found: Record = {
            "quality": evaluations[-1]["quality"] if evaluations else None,
            "quality_name": "accuracy",
            "quality_target": request.aim() if request.quality else None,
            "quality_best": request.about.best,
            "evaluate_every": request.every() if request.quality else None,
            "evaluations": evaluations,
            "samples_to_target": fed.reached_at,
            "seconds_to_target": self.load_s + fed.seconds if reached else None,
            "parts": None,
        }
        if not evaluations:
            speed = "--target-accuracy none: speed alone"
            missing["quality"] = f"{self.ended} before an evaluation" if request.quality else speed
        if not reached:
            why = f"{fed.failure.asked}: {fed.failure.found}: {self.ended}" if fed.failure else self.ended
            last = f"; the last accuracy was {found['quality']:.4f}" if evaluations else ""
            target = f" before accuracy {request.aim():g}{last}" if request.quality else "; no target was asked for"
            missing["samples_to_target"] = missing["seconds_to_target"] = missing["parts"] = why + target
        elif not fed.rate.samples_per_s:
            missing["parts"] = missing["samples_per_s"]
        else:
            parts = sum_of_parts(fed.reached_at or 0, fed.rate.samples_per_s, [e.seconds for e in fed.evaluations], None)
            whole_s, total = self.load_s + fed.seconds, self.load_s + parts["sum_s"]
            whole = {"load_s": self.load_s, "sum_s": total, "whole_s": whole_s, "off_pct": 100 * (total / whole_s - 1)}
            found["parts"] = {**parts, **whole}
        return found

    def _costs(self, record: Record) -> Record:
        of, fed, missing = self.run, self.fed, self.missing
        ways = {**of.gathered.reports, "compat": 0, "fabric": 0}
        moved = fed.rate.samples * (of.bytes_per_sample or 0.0) if self.request.way == GATHER else 0.0
        load = of.load or of.loader
        found: Record = {
            "path": self._ran(),
            "bytes": ways,
            "cpu_s_per_gib": fed.cpu.per_gib(moved) if moved else None,
            "feed_cpu_s_per_gib": load.cpu.per_gib(load.bytes) if load and load.bytes else None,
            "cache": self.request.cache,
            "cached": True if (of.resident_before or 0.0) >= 1 - CACHED_MAX else None,
        }
        if not moved:
            in_memory = "features were in memory by then"
            missing["cpu_s_per_gib"] = in_memory if self.request.way == BULK else missing.get("samples_per_s", "nothing was read")
        if found["feed_cpu_s_per_gib"] is None:
            missing["feed_cpu_s_per_gib"] = "no read was measured"
        if found["cached"] is None:
            missing["cached"] = "not all of it was in memory before, and reads aren't set against what devices moved"
        if found["path"] is None:
            missing["path"] = "nothing was read"
        return found

    def _ran(self) -> str | None:
        ways = self.run.gathered.reports
        if not any(ways.values()):
            return None
        most = max(ways, key=lambda way: ways[way])
        return "host" if self.run.model.device == "cpu" else {"direct": "gds", "mapped": "mapped", "staged": "bounce"}[most]

    def _as_read(self, record: Record) -> None:
        """Makes the record of a loader that of what this run read."""
        record.pop("feed", None)
        record["missing"] = {key: why for key, why in record["missing"].items() if not key.startswith("feed.")}
        gathered, took = self.run.gathered, self.load_s + self.fed.seconds
        count, calls = gathered.bytes, max(1, gathered.calls)
        rate = count / took / GIB if took > 0 and count else None
        record["path"] |= {f"{way}_bytes": n for way, n in gathered.reports.items()}
        record["path"] |= {"engine": "reader", "ran": self._ran() or record["path"]["ran"]}
        if self.request.way == GATHER:
            record["job"]["pattern"] = "random"
        result = record["result"]
        same = {"bytes": count, "ios": calls, "seconds": took, "throughput_gib_s": rate, "iops": calls / took if rate else None}
        result |= {**same, "read_bytes": count, "interrupted": self.run.interrupted}
        result["summary"] |= dict.fromkeys(("throughput_gib_s_median", "throughput_gib_s_min", "throughput_gib_s_max"), rate)
        result["repeats"] = [{**each, **same} for each in result["repeats"][:1]]
        why = "a run of training measures batches, not single reads"
        record["missing"] |= {"result.latency_us": why, "result.histogram": why}


def epochs(ways: Record) -> tuple[float | None, str]:
    """From how many epochs on a bulk load pays: its seconds over what it saves in each. None, with the reason."""
    load, memory, gathered = ways[BULK]["load_s"], ways[BULK]["epoch_s"], ways[GATHER]["epoch_s"]
    if load is None or memory is None or gathered is None:
        return None, "one of the ways wasn't measured"
    if gathered <= memory:
        return None, "a gathered epoch takes no longer than one from memory, so the load never pays"
    return load / (gathered - memory), ""


def reported(part: Record, drives: Drives | None = None) -> list[dict[str, str]]:
    """Advice, from the record's part alone: that of any model for gathered features; for a load what it is of the whole."""
    of = part["graph"]
    if of["way"] == GATHER or of["load_s"] is None:
        found = advice.advice(part, drives)
    else:
        found = [
            {"area": "storage", "text": _load(part)},
            {"area": "gds", "text": _load_gds(part)},
            {"area": "balance", "text": _load_balance(part)},
        ]
    return [*found, {"area": "epochs", "text": pays(part)}]


def pays(part: Record) -> str:
    """Sentences on which way to go."""
    of = part["graph"]
    ways, from_ = of["ways"], of["bulk_wins_from_epochs"]
    if any(ways[way][key] is None for way in ways for key in ("load_s", "epoch_s")):
        return "Which way is faster can't be told: one of them wasn't measured."
    each = f"an epoch takes {seconds(ways[GATHER]['epoch_s'])} gathered and {seconds(ways[BULK]['epoch_s'])} from memory"
    load = f"a load of {bytes_(of['feature_bytes'])} takes {seconds(ways[BULK]['load_s'])}"
    if from_ is None and ways[GATHER]["epoch_s"] <= ways[BULK]["epoch_s"]:
        return f"Leave the features in their file (--way gather): that costs no time, as {each}; {load}, which never pays."
    if from_ is None:
        return f"Leave the features in their file (--way gather): {each}, and {load}, which never pays."
    number = math.ceil(from_)
    on = f"from {whole(number)} epochs on ({significant(from_)}), gather below" if number > 1 else "from the first epoch on"
    return f"Load in bulk (--way bulk) {on}: {each}, and {load}."


def _load(part: Record) -> str:
    of, drive = part["graph"], part["supply_gib_s"]
    total = of["load_s"] + part["seconds"]
    share = of["load_s"] / total if total else 0.0
    brought = f"the load took {seconds(of['load_s'])} at {significant(of['load_gib_s'])} GiB/s, {percent(share)} of this run"
    cached = ", out of the page cache" if part.get("cached") and part["supply"]["kind"] == advice.LOADER else ""
    saved = f"{seconds(of['load_s'] / 2)} of {seconds(total)}"
    half = f"; a supply of twice {significant(drive)} GiB/s saves {saved}" if drive else ""
    return f"Storage matters to the load alone: {brought}{cached}{half}."


def _load_gds(part: Record) -> str:
    of, device = part["graph"], str(part["device"])
    if not device.startswith("cuda"):
        return "GPUDirect Storage can't be told here: the model runs on the CPU."
    return (
        f"GPUDirect Storage could shorten the load alone, {seconds(of['load_s'])} of this run, whose bytes came by "
        f"{part['path']}; no byte is read after it."
    )


def _load_balance(part: Record) -> str:
    rate, own = part["samples_per_s"], part["peak_samples_per_s"]
    if not rate:
        return "Balance can't be told: no rate was measured."
    of = f", {percent(rate / own)} of its peak" if own else ""
    if own and rate > (1 + advice.WAIT_MAX_PCT / 100) * own:
        of += ", which a longer --peak-seconds measures better"
    return f"After the load compute is the bottleneck, at {whole(rate)} samples/s{of}."
