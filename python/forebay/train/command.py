"""From what was asked to a record: the data set, the phases in turn, and what the record says of them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from forebay.errors import ForebayError, MachineError, RequestError
from forebay.model_runs import CACHED_MAX, prepare_cache, refuse_cached, refuse_path
from forebay.numbers import seconds, significant, whole
from forebay.train import advice, data, mllog, ranks, run, samples, supply
from forebay.units import GIB

Record = dict[str, Any]
# Ways by which bytes come.
WAYS = ("direct", "staged", "mapped", "compat", "fabric")
PEAK_S = 2.0
# The supply by the clock may differ from the one asked for by so much before the record warns, and before it is refused.
SUPPLY_OFF, SUPPLY_SHORT = 0.03, 0.10
# Evaluations an epoch, as the benchmark has them; batches between two of them at least.
EVALUATIONS, EVALUATE_BATCHES = 20, 16
# Of a cold run's bytes, what its devices must have moved.
COLD_SHARE = 0.9
# The longest that a batch may take by its supply: the check of the supply waits for several.
BATCH_S_MAX = 5.0
# A rate of less time than that is told with a warning.
SHORT_S = 3.0


class Trained(Protocol):
    """Data set of any model, as far as requests know it."""

    @property
    def rows(self) -> int: ...

    @property
    def target_auc(self) -> float | None: ...


About = TypeVar("About", bound=Trained)


@dataclass
class Asked(Generic[About]):
    """Request for one run of any model. `target` None: the data set's own; `quality` False: nothing is evaluated."""

    about: About
    supply: supply.Supply
    batch: int
    seed: int = 0
    path: str = "auto"
    shuffle: str = "none"
    cache: str = "any"
    samples: int | None = None
    seconds: float | None = None
    target: float | None = None
    quality: bool = True
    evaluate_every: int | None = None
    peak_s: float = PEAK_S
    check_s: float = run.CHECK_S

    def aim(self) -> float:
        return (self.about.target_auc or 0.0) if self.target is None else self.target

    def limits(self) -> Record:
        """Limits beside the target, and the path that was asked for: as its record has them."""
        return {"samples": self.samples, "seconds": self.seconds, "path": self.path}

    def every(self) -> int:
        """Samples from one evaluation to the next."""
        return self.evaluate_every or max(self.about.rows // EVALUATIONS, EVALUATE_BATCHES * self.batch)


@dataclass
class Request(Asked[data.About | samples.About]):
    """Request for one run of DLRM, or of another model whose samples are rows of a file."""

    # Batches of the peak at least.
    peak_batches: int = 0
    # Ranks that share each batch.
    ranks: int = 1

    @property
    def share(self) -> int:
        """Samples of a batch that one rank has."""
        return self.batch // self.ranks

    def runner(self, model: Any, torch: bool, say: Callable[[str], None] | None = None) -> Run:
        return Run(self, model, torch, say)

    def check(self, device: str) -> None:
        """Raises RequestError for what can't be, of a model on that device."""
        about = self.about
        refuse_path(self.path, device, by_loader=True)
        if not 1 <= self.batch <= about.rows:
            raise RequestError(
                f"--batch-size {self.batch}", f"the data set has {whole(about.rows)} rows", "--batch-size 512"
            )
        if self.batch % self.ranks:
            found = f"{self.ranks} ranks share a batch evenly"
            nearest = max(1, round(self.batch / self.ranks)) * self.ranks
            raise RequestError(f"--batch-size {self.batch}", found, f"--batch-size {nearest}")
        wait_s = (
            self.share * about.row_bytes / supply.bytes_per_s(self.supply.gib_s) if self.supply.gib_s else 0.0
        )
        if wait_s > BATCH_S_MAX:
            found = f"a batch of {whole(self.batch)} takes {seconds(wait_s)} at a GPU's share of that"
            least = 1.02 * (self.supply.gib_s or 0.0) * wait_s / BATCH_S_MAX * self.supply.gpus
            raise RequestError(
                f"--supply {self.supply.text}",
                found,
                f"--supply {significant(least)}, or a smaller --batch-size",
            )
        if self.quality and about.metric is None:
            found = f"the data set {about.folder} is for speed alone"
            raise RequestError(f"--target {self.aim():g}", found, f"forebay train datagen {about.model} --quality --dir ANOTHER")
        if self.quality and about.best_auc is not None and self.aim() > about.best_auc:
            found = f"the best that can be reached on these data is {about.best_auc:.4f}, by the planted teacher itself"
            raise RequestError(f"--target-auc {self.aim():g}", found, f"--target-auc {about.target_auc:g}")

    def no_target(self) -> str:
        """The flag that asks for speed alone; empty where nothing is evaluated anyway."""
        return {None: "", "AUC": "--target-auc none"}.get(self.about.metric, "--target none")


class Source:
    """The loader's batches as rows: arrays of NumPy, or tensors on the model's device."""

    def __init__(self, request: Request, device: str, torch: bool) -> None:
        from forebay.feed import rows
        from forebay.feed.verb import in_flags

        if torch:
            from forebay.torch import Loader
        else:
            from forebay.feed import Loader  # type: ignore[assignment]
        self._torch = torch
        with warnings.catch_warnings(), in_flags():
            warnings.simplefilter("ignore")
            self.loader = Loader(
                rows(request.about.folder / data.TRAIN, request.about.row),
                request.share,
                shuffle=request.shuffle,
                seed=request.seed,
                device=device,
                path=request.path,
                drop_last=True,
                # A cold run measures storage in each of its epochs.
                cache="bypass" if request.cache == "cold" else "auto",
            )

    def take(self) -> Any:
        import numpy as np

        batch = self.loader.take()
        if batch is None:
            return None
        return batch["row"] if self._torch else np.asarray(batch["row"])

    def kept(self, count: int) -> list[Any]:
        """Copies of the first batches, which hold no place of the loader's."""
        found: list[Any] = []
        while len(found) < count:
            rows = self.take()
            if rows is None:
                break
            found.append(rows.clone() if self._torch else rows.copy())
            del rows
        return found

    def ahead(self) -> int:
        found: int = self.loader.record()["feed"]["prefetch"]
        return found

    def cached_share(self) -> float | None:
        """Of the files in the page cache; None where that can't be told."""
        share: float | None = self.loader.cached_share()
        return share

    def close(self) -> None:
        self.loader.close()


class Run:
    """The phases of one run, and what each of them measured so far."""

    def __init__(
        self, request: Request, model: Any, torch: bool, say: Callable[[str], None] | None = None
    ) -> None:
        self.request, self.model, self._torch = request, model, torch
        self.ranks = ranks.ranks_of(model)
        self._say = say or (lambda text: None)
        self.peak: run.Rate | None = None
        self.no_peak = "the run was interrupted before"
        self.loader: run.Delivered | None = None
        self.paced: run.Delivered | None = None
        self.fed: run.Fed | None = None
        self.base: Record | None = None
        # The share of the file that was in the page cache when training began.
        self.resident_before: float | None = None
        self.warnings: list[dict[str, str]] = []
        self.interrupted = False
        # Of each rank: bytes by way, and shares of the time.
        self.moved: tuple[dict[str, int], ...] = ()
        self.waited_pct: tuple[float | None, ...] = ()
        self.idle_pct: tuple[float | None, ...] = ()
        self.began_at = time.time()

    def measure(self) -> ForebayError | None:
        """All phases; an interrupt ends the one that runs. Returns what broke. Raises what was refused before the training."""
        try:
            self.ranks.together(self._check_supply)
            self.measure_peak()
        except KeyboardInterrupt:
            if self.peak is None:
                raise
            self.interrupted = True
        self._train()
        try:
            self._add_others()
        except ranks.Lost as lost:
            if self.fed is not None and self.fed.failure is None:
                self.fed.failure = lost
        return None if self.fed is None else self.fed.failure

    def _add_others(self) -> None:
        """Adds what the other ranks measured to what this one has: the record is of all of them. Raises Lost."""
        fed = self.fed
        assert fed is not None
        if self.ranks.world == 1 or self.ranks.lost:
            return
        gathered = self.ranks.gather((
            self.loader, self.paced, fed.cpu, fed.digest.sums(), self._moved(), self._waited_pct(), fed.meter.idle_pct,
            self.warnings,
        ))  # fmt: skip
        loaders, paced, cpu, sums, self.moved, self.waited_pct, self.idle_pct, warned = zip(*gathered, strict=True)
        self.loader, self.paced = run.Delivered.sum(loaders), run.Delivered.sum(paced)
        fed.cpu = run.Cpu(sum(each.user_s for each in cpu), sum(each.system_s for each in cpu))
        fed.digest.add_others(list(sums))
        self.warnings = list({w["id"]: w for each in reversed(warned) for w in each}.values())

    def _moved(self) -> dict[str, int]:
        assert self.base is not None
        return {key: self.base["path"][f"{key}_bytes"] for key in WAYS}

    def _source(self) -> Source:
        # Ranks agree about the data while it opens.
        made: Source = self.ranks.collective(lambda: Source(self.request, self.model.device, self._torch))
        return made

    def _files(self) -> list[Path]:
        return [self.request.about.folder / data.TRAIN]

    def _check_supply(self) -> None:
        request, wait = self.request, self.model.wait if self.model.queued else None
        self._say("the loader's rate")
        self._prepare_cache()
        source = self._source()
        try:
            self.loader = run.delivers(source, None, request.check_s, wait)
            asked = request.supply.gib_s
            if asked is None:
                return
            if self.loader.gib_s < asked:
                raise self._too_much(self.loader.gib_s)
            self._say("the supply by the clock")
            self.paced = run.delivers(source, run.pace_of(request.supply, source.ahead()), request.check_s)
            if self.paced.gib_s < (1 - SUPPLY_SHORT) * asked:
                raise self._too_much(self.paced.gib_s)
            if abs(self.paced.gib_s / asked - 1) > SUPPLY_OFF:
                text = f"by the clock the supply was {significant(self.paced.gib_s)} GiB/s, not {significant(asked)}"
                self.warnings.append({"id": "supply_off", "text": text, "next": "a quieter machine"})
        finally:
            source.close()

    def _too_much(self, found: float) -> MachineError:
        asked, text = self.request.supply.gib_s or 0.0, self.request.supply.text
        brought = f"the loader brings {significant(found)} from {self.request.about.folder}"
        reported = f"a GPU's share is {significant(asked)} GiB/s, and {brought}"
        return MachineError(
            f"--supply {text}", reported, f"--supply {significant(0.9 * found * self.request.supply.gpus)}"
        )

    def measure_peak(self) -> None:
        """The model's own rate, from reset weights and to reset weights."""
        self._say("the model's own peak, from memory")
        source = self._source()
        try:
            batch_bytes = self.request.share * self.request.about.row_bytes
            kept = source.kept(max(1, min(run.KEPT, run.KEPT_BYTES // batch_bytes)))
        finally:
            source.close()
        self.peak, _ = run.peak(self.model, kept, self.request.peak_s, self.request.peak_batches)
        del kept
        problem = self.model.problem()
        # Steps that can't look up are no measure. A loss that is no number takes as long as another.
        if problem and problem != run.NO_NUMBER:
            self.peak, self.no_peak = None, f"the batches that it would be measured on are wrong: {problem}"
        self.model.reset()

    def _train(self) -> None:
        request = self.request
        self._prepare_cache()
        source = self._source()
        self.resident_before = source.cached_share()
        limits = run.Limits(
            request.samples,
            request.seconds,
            request.aim() if request.quality else None,
            request.every() if request.quality else 0,
            request.about.metric or "",
        )
        pace = run.pace_of(request.supply, source.ahead())
        try:
            evaluate = self.ranks.together(request.about.evaluation) if request.quality else None
            self.fed = run.Fed(self.model, source, pace, evaluate, limits)
            self.fed.explain, self.fed.remake = request.about.first_fault, request.about.make("ANOTHER")
            if not self.interrupted:
                self.fed.run(self._say)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.base = source.loader.record(interrupted=self.interrupted)
            source.close()

    def _prepare_cache(self) -> None:
        """Files in the page cache, or out of it, as was asked. Raises MachineError where it keeps them."""
        prepare_cache(self._files(), self.request.cache)
        if self.request.cache == "cold":
            source = self._source()
            try:
                share = source.cached_share()
            finally:
                source.close()
            refuse_cached(share)

    # The record ------------------------------------------------------------------------------------------

    def record(self) -> Record:
        assert self.base is not None and self.fed is not None
        record = self.base
        missing: dict[str, str] = {}
        part = {**self._speed(missing), **self._quality(missing), **self._costs(missing)}
        part["advice"] = advice.advice(part, self.request.supply.drives_for)
        if self.fed.failure is not None:
            part["failed"] = self.fed.failure.found
        record["train"] = part
        record["result"]["interrupted"] = self.interrupted
        record["missing"].update({f"train.{key}": why for key, why in missing.items()})
        # The loader's own advice names flags of another verb.
        record["warnings"] = [w for w in record["warnings"] if w["id"] != "too_short"] + self.warnings
        if part["samples_per_s"] and self.fed.rate.seconds < SHORT_S:
            text = f"{significant(self.fed.rate.seconds)} s of training say little about its rate"
            next = f"{self.request.no_target()} --seconds 10".strip()
            record["warnings"].append({"id": "too_short", "text": text, "next": next})
        return record

    def _speed(self, missing: dict[str, str]) -> Record:
        request, fed, peak = self.request, self.fed, self.peak
        assert fed is not None
        ended = "the run was interrupted before" if self.interrupted else "the run ended before"
        rate = fed.rate.samples_per_s or None
        if rate is None:
            missing["samples_per_s"] = missing["rate_gib_s"] = (
                f"{ended} {run.WARM_STEPS} steps of warm-up and one more were over"
            )
        rates = [("samples_per_s_ci95", fed.rate if rate else None), ("peak_samples_per_s_ci95", peak)]
        intervals = {key: found and found.interval() for key, found in rates}
        for key, found in intervals.items():
            if found is None:
                missing[key] = "fewer than three pieces of the measured time"
        if self.ranks.lost:
            missing["batch_hash"] = missing["batch_hash_at"] = "another rank ended, and its part is unknown"
        own = peak.samples_per_s if peak else None
        if own is None:
            missing.update(
                dict.fromkeys(("peak_samples_per_s", "demand_gib_s", "peak_samples_per_s_ci95"), self.no_peak)
            )
        scale = request.about.row_bytes / GIB
        need = intervals["peak_samples_per_s_ci95"]
        if need is None:
            missing["demand_gib_s_ci95"] = missing["peak_samples_per_s_ci95"]
        delivered = self.paced if self.paced is not None else self.loader
        return {
            "model": self.model.name,
            "device": self.model.device,
            "seed": request.seed,
            "batch": request.batch,
            "order": request.shuffle,
            "learning_rate": self.model.rate,
            "asked": request.limits(),
            "optimizer": self.model.optimizer,
            **getattr(self.model, "reported", {}),
            "data": request.about.identity(),
            "clock": mllog.clock(self.began_at, fed),
            "samples": fed.samples,
            "steps": fed.steps,
            "seconds": fed.seconds,
            "samples_per_s": rate,
            **{key: list(found) if found else None for key, found in intervals.items()},
            "rate_gib_s": rate * scale if rate else None,
            "peak_samples_per_s": own,
            "demand_gib_s": own * scale if own else None,
            "demand_gib_s_ci95": [scale * bound for bound in need] if need else None,
            "supply_gib_s": delivered.gib_s if delivered else None,
            "supply": request.supply.document(),
            "loader_gib_s": self.loader.gib_s if self.loader else None,
            "input_wait_pct": self._wait(missing),
            "gpu_idle_pct": self._idle(missing),
            "batch_hash": None if self.ranks.lost else fed.digest.text(),
            "batch_hash_at": None if self.ranks.lost else fed.digest.at(),
        }

    def _wait(self, missing: dict[str, str]) -> float | None:
        fed = self.fed
        assert fed is not None
        if not fed.rate.seconds:
            missing["input_wait_pct"] = missing.get("samples_per_s", "no time was measured")
            return None
        return max(self._waited_pct() or 0.0, *(each or 0.0 for each in self.waited_pct), 0.0)

    def _waited_pct(self) -> float | None:
        fed = self.fed
        return None if fed is None or not fed.rate.seconds else min(100.0, 100 * fed.meter.waited_s / fed.rate.seconds)

    def _idle(self, missing: dict[str, str]) -> float | None:
        fed = self.fed
        assert fed is not None
        known = [each for each in (fed.meter.idle_pct, *self.idle_pct) if each is not None]
        idle: float | None = max(known, default=None)
        if idle is None:
            missing["gpu_idle_pct"] = fed.meter.idle_reason or "no step was measured"
        return idle

    def _quality(self, missing: dict[str, str]) -> Record:
        request, fed, metric = self.request, self.fed, self.request.about.metric
        assert fed is not None
        key = "auc" if metric == "AUC" else "quality"
        evaluations = [
            {"samples": e.samples, key: e.quality, "seconds": e.seconds, "began_s": e.began_s} for e in fed.evaluations
        ]
        found: Record = {
            "quality": fed.evaluations[-1].quality if evaluations else None,
            "quality_name": metric,
            "quality_target": request.aim() if request.quality else None,
            "quality_best": request.about.best_auc,
            "evaluate_every": request.every() if request.quality else None,
            "evaluations": evaluations,
            "samples_to_target": fed.reached_at,
            "seconds_to_target": None,
            "parts": None,
        }
        if metric is None:
            alone = f"{self.model.name} is trained for speed alone"
            missing |= dict.fromkeys(("quality", "quality_name", "quality_best"), alone)
        elif request.about.best_auc is None:
            missing["quality_best"] = "of real data no best is known"
        if metric is not None and not evaluations:
            missing["quality"] = (
                f"{request.no_target()}: speed alone" if not request.quality else "the run ended before an evaluation"
            )
        rate = fed.rate.samples_per_s
        if fed.reached_at is None:
            why = "the run was interrupted" if self.interrupted else "the run ended"
            why = f"{fed.failure.asked}: {fed.failure.found}: {why}" if fed.failure else why
            last = f"; the last {metric} was {found['quality']:.4f}" if evaluations else ""
            target = f" before {metric} {request.aim():g}{last}" if request.quality else "; no target was asked for"
            missing["samples_to_target"] = missing["seconds_to_target"] = missing["parts"] = why + target
            return found
        found["seconds_to_target"] = fed.seconds
        if not rate:
            missing["parts"] = missing["samples_per_s"]
            return found
        found["parts"] = sum_of_parts(fed.reached_at, rate, [e.seconds for e in fed.evaluations], fed.seconds)
        return found

    def _costs(self, missing: dict[str, str]) -> Record:
        fed, base = self.fed, self.base
        assert fed is not None and base is not None
        moved = fed.rate.samples * self.request.about.row_bytes
        ways = {key: sum(each[key] for each in self.moved or (self._moved(),)) for key in WAYS}
        found: Record = {
            "path": base["path"]["ran"],
            "bytes": ways,
            "cpu_s_per_gib": fed.cpu.per_gib(moved) if moved else None,
            "feed_cpu_s_per_gib": self.loader.cpu.per_gib(self.loader.bytes)
            if self.loader and self.loader.bytes
            else None,
            "cache": self.request.cache,
            "cached": self._cached(missing),
        }
        if found["cached"] and self.request.cache == "cold":
            text = "called cold, but a good part of what it read was in memory"
            self.warnings.append(
                {"id": "not_cold", "text": text, "next": "a data set beyond memory, or one epoch of it"}
            )
        if not moved:
            missing["cpu_s_per_gib"] = missing.get("samples_per_s", "no bytes were measured")
        if found["feed_cpu_s_per_gib"] is None:
            missing["feed_cpu_s_per_gib"] = "the loader alone wasn't measured"
        return found

    def _cached(self, missing: dict[str, str]) -> bool | None:
        """True if a good part of the bytes came from memory, by what the devices moved."""
        assert self.base is not None
        moved, device = self.base["result"]["bytes"], self.base["cache"]["device_bytes"]
        if moved and (self.resident_before or 0.0) >= 1 - CACHED_MAX:
            return True
        if device is None or not moved:
            missing["cached"] = self.base["missing"].get("cache.device_bytes", "nothing was read")
            return None
        # Other processes' transfers count here too: only too few of them say something.
        return bool(device < COLD_SHARE * moved * self.ranks.here)

    @property
    def holds(self) -> bool:
        """False for a run that was called cold, and was cached."""
        return not any(w["id"] == "not_cold" for w in self.warnings)


def sum_of_parts(
    samples: int, samples_per_s: float, evaluations: list[float], whole_s: float | None
) -> Record:
    """Seconds to a target from its parts: samples ÷ rate + evaluations; beside them the whole run's, where there was one."""
    each = sum(evaluations) / len(evaluations) if evaluations else 0.0
    total = samples / samples_per_s + sum(evaluations)
    return {
        "samples": samples,
        "samples_per_s": samples_per_s,
        "evaluations": len(evaluations),
        "evaluation_s": each,
        "sum_s": total,
        "whole_s": whole_s,
        "off_pct": None if not whole_s else 100 * (total / whole_s - 1),
    }
