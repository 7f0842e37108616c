"""One run of R-GAT: features loaded in bulk inside the timed region, or each batch's fetched from their file.

Both ways train the same batches. A run measures its own way, and for a moment the other's rate, so that its record can tell
from how many epochs on the load pays.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError, MachineError, RequestError
from forebay.model_runs import prepare_cache, refuse_cached, refuse_path, torch_or_say
from forebay.numbers import bytes_, significant, whole
from forebay.train import gnn, graph, run, supply
from forebay.train.command import SUPPLY_SHORT, Asked

Record = dict[str, Any]
BULK, GATHER = "bulk", "gather"
WAYS = (BULK, GATHER)
# Of a load: bytes of a read, and reads in flight.
PIECE, IN_FLIGHT = 64 << 20, 4
# Features in memory that another way's rate is measured on: more than caches hold.
PROBE_BYTES = 2 << 30


@dataclass
class Request(Asked[graph.About]):
    """Request for one run of R-GAT."""

    way: str = GATHER
    fan_out: tuple[int, ...] = gnn.FAN_OUT
    hidden: int = gnn.HIDDEN

    def runner(self, model: gnn.Model, torch: bool, say: Callable[[str], None] | None = None) -> Run:
        return Run(self, model, say)

    def check(self, device: str) -> None:
        """Raises RequestError, MachineError for what can't be, of a model on that device."""
        about = self.about
        refuse_path(self.path, device)
        if not 1 <= self.batch <= about.rows:
            raise RequestError(f"--batch-size {self.batch}", f"{whole(about.rows)} nodes are trained on", "--batch-size 512")
        if self.hidden < gnn.HEADS or self.hidden % gnn.HEADS:
            raise RequestError(f"--hidden {self.hidden}", f"isn't a multiple of the {gnn.HEADS} heads", f"--hidden {gnn.HIDDEN}")
        if self.quality and self.aim() > about.best:
            found = f"the best that can be reached on these data is {about.best:.4f}: other labels were drawn by chance"
            raise RequestError(f"--target-accuracy {self.aim():g}", found, f"--target-accuracy {about.target_auc:g}")
        if self.way == BULK:
            gnn.refuse_too_large(about, device, torch_or_say("train gnn"))

    def limits(self) -> Record:
        return {**super().limits(), "way": self.way, "fan_out": list(self.fan_out), "hidden": self.hidden}


class Run:
    """The phases of one run, and what each of them measured so far."""

    def __init__(self, request: Request, model: gnn.Model, say: Callable[[str], None] | None = None) -> None:
        self.request, self.model = request, model
        self._say = say or (lambda text: None)
        self._torch = torch_or_say("train gnn")
        self.began_at = time.time()
        self.loader: run.Delivered | None = None
        self.paced: run.Delivered | None = None
        # Rates of a moment: of features in memory, and of the way that this run doesn't go.
        self.probes: dict[str, run.Rate] = {}
        self.load: run.Delivered | None = None
        self.first_s: float | None = None
        self.started_at = 0.0
        # Of distinct rows of features, by the batches that were trained on last.
        self.bytes_per_sample: float | None = None
        self.fed: run.Fed | None = None
        self.batches: gnn.Batches | None = None
        self.resident_before: float | None = None
        self.warnings: list[dict[str, str]] = []
        self.interrupted = False
        self._began: float | None = None
        self._open()
        label, relations = graph.read(request.about)
        self._sampler = gnn.Sampler(label, relations, model.device, request.fan_out, request.seed)

    def _open(self) -> None:
        import forebay

        self._file = forebay.open(self._path, "host" if self.model.device == "cpu" else self.request.path)
        self.gathered = gnn.Gathered(self._torch, self._file, self.model.device)

    @property
    def _path(self) -> Path:
        return self.request.about.folder / graph.FEATURES

    def measure(self) -> ForebayError | None:
        """All phases; an interrupt ends the one that runs. Returns what broke. Raises what was refused before the training."""
        try:
            self._check_supply()
            self._probe()
        except KeyboardInterrupt:
            if not self.probes:
                raise
            self.interrupted = True
        try:
            self._train()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.model.wait()
            self._file.close()
            if self.batches is not None:  # another seed's load needs the memory
                self.batches.features = None
        return None if self.fed is None else self.fed.failure

    # Phases -------------------------------------------------------------------------------------------------

    def _check_supply(self) -> None:
        request = self.request
        self._say("the rate of a load")
        self._prepare_cache()
        size = min(IN_FLIGHT * PIECE, request.about.feature_bytes)
        room = self._torch.empty((size,), dtype=self._torch.uint8, device=self.model.device)
        self.loader = self._delivers(room, None)
        asked = request.supply.gib_s
        if asked is None:
            return
        if self.loader.gib_s >= asked:
            self._say("the supply by the clock")
            self.paced = self._delivers(room, self._pace())
        found = self.loader if self.paced is None else self.paced
        if found.gib_s < (1 - SUPPLY_SHORT) * asked or self.paced is None:
            reported = f"a GPU's share is {significant(asked)} GiB/s, and a load brings {significant(found.gib_s)}"
            next = f"--supply {significant(0.9 * found.gib_s * request.supply.gpus)}"
            raise MachineError(f"--supply {request.supply.text}", reported, next)

    def _pace(self) -> supply.Pace | None:
        return run.pace_of(self.request.supply, IN_FLIGHT)

    def _delivers(self, room: Any, pace: supply.Pace | None) -> run.Delivered:
        """Reads of the features into the same memory over and over: as a load makes them, for a moment."""
        size, there = len(room) // IN_FLIGHT, self._file.size
        if pace is not None:  # pieces that a slow supply brings within a moment
            size = max(4096, min(size, int(pace.bytes_per_s * self.request.check_s / 8)))
        whole_ = max(1, there // size)

        def pieces() -> Iterator[tuple[Any, int]]:
            until = time.perf_counter() + self.request.check_s
            for number in itertools.count():
                slot, at = number % IN_FLIGHT * size, number % whole_ * size
                yield room[slot : slot + min(size, there - at)], at
                if time.perf_counter() >= until:
                    return

        return self._read(pieces(), pace)

    def _read(self, pieces: Iterator[tuple[Any, int]], pace: supply.Pace | None) -> run.Delivered:
        """Reads into buffers from offsets, several at a time, in turn."""
        found, flight = run.Delivered(), deque[tuple[Any, int]]()
        began, cpu = time.perf_counter(), run.Cpu.now()
        try:
            for buffer, at in pieces:
                flight.append((self._file.read_async(buffer, at), len(buffer)))
                if len(flight) == IN_FLIGHT:
                    self._land(found, *flight.popleft(), pace)
            while flight:
                self._land(found, *flight.popleft(), pace)
        finally:  # nothing writes to the memory of an interrupted load
            for future, _ in flight:
                future.cancel()
        found.seconds, found.cpu = time.perf_counter() - began, run.Cpu.now().since(cpu)
        return found

    def _probe(self) -> None:
        """The rate of training on features in memory, and gathered: of a moment each, from reset weights to reset weights."""
        request, about = self.request, self.request.about
        self._say("the model's own peak, from memory")
        count = max(1, min(about.table_rows, PROBE_BYTES // graph.ROW_BYTES))
        table = self._room(count)
        self._fill(table, None)
        self._moment(BULK, gnn.Features(table, about.table_rows), None)
        del table
        if request.way == BULK:
            self._say("a moment of the other way")
            self._moment(GATHER, self.gathered, self._pace())
        self.gathered = gnn.Gathered(self._torch, self._file, self.model.device)

    def _moment(self, way: str, features: Any, pace: supply.Pace | None) -> None:
        request = self.request
        limits = run.Limits(seconds=request.peak_s)
        batches = self._batches(features, pace)
        fed = run.Fed(self.model, batches, None, None, limits)
        fed.run()
        if not fed.rate.samples and fed.failure is None:  # steps that are longer than the moment
            fed = run.Fed(self.model, batches, None, None, run.Limits(samples=(run.WARM_STEPS + 2) * request.batch))
            fed.run()
        self._note(batches, fed)
        if fed.failure is not None and fed.failure.found != run.NO_NUMBER:
            raise fed.failure
        self.probes[way] = fed.rate
        self.model.reset()

    def _note(self, batches: gnn.Batches, fed: run.Fed) -> None:
        if fed.samples:
            self.bytes_per_sample = batches.rows * graph.ROW_BYTES / fed.samples

    def _room(self, count: int) -> Any:
        """Memory for the features of so many nodes. Raises MachineError."""
        try:
            return self._torch.empty((count, graph.WIDTH), dtype=self._torch.float16, device=self.model.device)
        except (self._torch.OutOfMemoryError, RuntimeError) as error:
            found = f"no memory for {bytes_(count * graph.ROW_BYTES)} of features ({str(error).split('. ')[0]:.80})"
            raise MachineError(f"--way {self.request.way}", found, "--way gather; or a GPU with more memory free") from None

    def _fill(self, table: Any, pace: supply.Pace | None) -> run.Delivered:
        """Loads the first rows of the features, as many as the table holds."""
        flat = table.view(self._torch.uint8).flatten()
        size = PIECE if pace is None else max(4096, min(PIECE, int(pace.bytes_per_s / 8)))
        return self._read(((flat[at : at + size], at) for at in range(0, len(flat), size)), pace)

    def _land(self, found: run.Delivered, future: Any, size: int, pace: supply.Pace | None) -> None:
        report = future.report()
        found.bytes += report.bytes
        if self._began is not None:
            self.gathered.note(report)
        if pace is not None:
            pace.hold(size)

    def _batches(self, features: Any, pace: supply.Pace | None) -> gnn.Batches:
        request = self.request
        order = graph.training(request.about)
        return gnn.Batches(self._sampler, order, request.about.rows, request.batch, features, pace)

    def _train(self) -> None:
        request = self.request
        self._prepare_cache()
        self.resident_before = self._cached_share()
        bulk = request.way == BULK
        aim, every = (request.aim(), request.every()) if request.quality else (None, 0)
        self.batches = self._batches(self.gathered, None if bulk else self._pace())
        evaluate = (lambda model: self._accuracy()) if request.quality else None
        limits = run.Limits(request.samples, request.seconds, aim, every, "accuracy")
        self.fed = run.Fed(self.model, self.batches, None, evaluate, limits)
        if self.interrupted:
            return
        self.started_at, self._began = time.time(), time.perf_counter()
        # What a way costs begins with an open file: nothing of it is registered with a GPU yet.
        self._file.close()
        self._open()
        self.batches.features = self.gathered
        if bulk:
            self._say("the load")
            table = self._room(request.about.table_rows)
            self.load = self._fill(table, self._pace())
            self.batches.features = gnn.Features(table, len(table))
        self.batches.first = self._first
        try:
            self.fed.run(self._say)
        finally:
            self._note(self.batches, self.fed)

    def _first(self) -> None:
        """The first batch is there, features and all."""
        self.model.wait()
        self.first_s = time.perf_counter() - (self._began or 0.0)

    def _accuracy(self) -> float:
        assert self.batches is not None
        return gnn.accuracy(self.model, self.batches, graph.evaluation(self.request.about), self.request.batch)

    def _prepare_cache(self) -> None:
        prepare_cache([self._path], self.request.cache)
        if self.request.cache == "cold":
            refuse_cached(self._cached_share())

    def _cached_share(self) -> float | None:
        loader = loader_of(self.request)
        try:
            share: float | None = loader.cached_share()
            return share
        finally:
            loader.close()

    @property
    def holds(self) -> bool:
        """False for a run that was called cold, and was cached."""
        return not any(w["id"] == "not_cold" for w in self.warnings)

    def record(self) -> Record:
        from forebay.train.gnn_record import Written

        return Written(self).record()


def loader_of(request: Request) -> Any:
    """A loader of the features, which is asked for the machine's part of a record and what is in the page cache."""
    from forebay.feed import Loader, rows

    return Loader(rows(request.about.folder / graph.FEATURES, graph.ROW), 1, shuffle="none")
