"""From what was asked to a record: weights, samples, the tests of LoadGen in turn, and what the record says of them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import ForebayError, MachineError, RequestError, RunError
from forebay.infer import data, forms, logs, rules, search, toy, weights
from forebay.infer.engine import COMPUTED_AHEAD, Engine, Outcome
from forebay.infer.library import AHEAD, MEMORY_SHARE, FromStorage, HostMemory, InMemory, Link, Memory
from forebay.infer.record import Record, finish
from forebay.model_runs import prepare_cache, refuse_cached, refuse_path
from forebay.numbers import bytes_, significant, whole
from forebay.train import supply
from forebay.train.supply import bytes_per_s

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

RAM, COLD, COLDSTART, TABLES = "ram", "cold", "coldstart", "tables"
MODES = (RAM, COLD, COLDSTART, TABLES)
# Samples are in memory before LoadGen's clock starts.
LOADED = (RAM, TABLES)
SEARCH = "search.json"
PEAK_S = 0.5
# The load may be so much slower than the supply asked for before that is refused.
SUPPLY_SHORT = 0.10
# A load of less than a second falls short of its supply when another program runs for a moment: it is repeated.
LOAD_DELAYED_S, LOADS_AGAIN = 1.0, 2
# Of free memory, what weights and caches may take: a batch needs some, too.
FITS = 0.9


@dataclass
class Request:
    """Request for one run. `seconds`: of the test; `seed` None: the round's own seeds; `samples` None: as the rules have it."""

    model: str
    mode: str
    scenario: str
    folder: Path
    about: data.About
    supply: supply.Supply
    device: str = "cpu"
    seconds: float = rules.DURATION_S
    accuracy: bool = False
    samples: int | None = None
    batch: int | None = None
    target_qps: float | None = None
    seed: int | None = None
    path: str = "auto"
    cache: str = "any"
    logs: Path | None = None
    timeout_s: float = 60.0
    # Refused are a load that its supply should have brought sooner, and a search that finds no rate.
    strict: bool = True
    # Of tables that stay in their file, what the device's memory holds.
    table_bytes: int = 0
    # Of a search for Server's highest rate; and the file of its trials where there are no logs.
    effort: search.Effort | None = None
    trials: Path | None = None

    @property
    def short(self) -> bool:
        return self.seconds < rules.DURATION_S

    def check(self) -> None:
        """Raises RequestError for what can't be."""
        refuse_path(self.path, self.device)
        if self.mode == TABLES and self.model != "dlrm":
            raise RequestError("--mode tables", f"{self.model} has no tables", "forebay infer dlrm --mode tables")
        if self.table_bytes and self.mode != TABLES:
            raise RequestError("--table-memory", f"{self.mode} has all tables in memory", "--mode tables")
        if self.target_qps is not None and self.scenario != "Server":
            found = f"is the rate of Server's queries; {self.scenario} has none"
            raise RequestError(f"--target-qps {self.target_qps:g}", found, "--scenario Server")
        if self.logs is not None and self.mode == COLDSTART:
            raise RequestError(f"--logs {self.logs}", "LoadGen measures no cold start", "no --logs; -o keeps the record")
        if self.accuracy and self.mode == COLDSTART:
            raise RequestError("--accuracy", "a cold start has one answer, which is always checked", "--mode ram")
        if self.batch is not None and self.batch < (rules.PER_QUERY if self.scenario == "MultiStream" else 1):
            least = rules.PER_QUERY if self.scenario == "MultiStream" else 1
            raise RequestError(f"--batch-size {self.batch}", f"{self.scenario} asks {least} at a time", f"--batch-size {least}")

    def count(self) -> int:
        return min(rules.MODELS[self.model].samples, self.about.samples) if self.samples is None else self.samples

    def load(self, rate: float, seconds: float | None = None) -> rules.Load:
        own = rules.MODELS[self.model]
        offline = own.offline_samples if not self.short else 1
        return rules.Load(
            self.scenario, self.seconds if seconds is None else seconds, rate, own.server_ms, offline, self.accuracy,
            rules.seeds_of(self.seed), own.token_ms, own.equal and not self.short,
        )  # fmt: skip


class Run:
    """The phases of one run, and what each of them measured so far."""

    def __init__(
        self, request: Request, say: Callable[[str], None] | None = None, model: Any = None, peak: float | None = None,
        expected: float | None = None,
    ) -> None:  # fmt: skip
        """`model`: one that is there already, and stays; `peak`: its samples a second, and `expected`: the rate that LoadGen is
        told of Offline, where they are known."""
        self.request = request
        self._say = say or (lambda text: None)
        self.model, self._keeps_model = model, model is not None
        self.library: Any = None
        self.weights: weights.Read | None = None
        self.outcome: Outcome | None = None
        self.engine: Engine | None = None
        self.search: search.Search | None = None
        self.tries = 0
        self.peak, self._expected = peak, expected
        self.start: dict[str, float] | None = None
        self.intact: bool | None = None
        # Of the samples' file in the page cache, before a cold test.
        self.cached: float | None = None
        self.checked: dict[str, Any] | None = None
        self.warnings: list[dict[str, str]] = []
        self.interrupted = False
        self.failure: ForebayError | None = None
        self.base: Record | None = None
        self._lg: Any = None

    @property
    def abandoned(self) -> bool:
        """True where LoadGen's threads are still there, which end with the process alone."""
        return self.engine is not None and self.engine.abandoned

    def measure(self) -> ForebayError | None:
        """All phases; an interrupt ends the one that runs. Returns what broke in a test. Raises what was refused before."""
        request = self.request
        if request.mode == COLDSTART:
            self._cold_start()
            return None
        self._lg = rules.loadgen()
        with logs_folder(request.logs), temporary() as folder:
            try:
                self._prepare()
                self._test(folder)
                self._keep_logs(folder)
            except KeyboardInterrupt:
                if self.base is None:
                    raise
                self.interrupted = True
            except RunError as error:
                if self.base is None:
                    raise
                self.failure = error
        if self.outcome is not None and self.outcome.interrupted:
            self.interrupted = True
        return self.failure or (None if self.outcome is None else self.outcome.failure)

    # Phases -------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        if self.request.device == "cpu":
            return HostMemory()
        from forebay.infer.library import GpuMemory
        from forebay.infer.networks import needs_or_say

        return GpuMemory(needs_or_say(self.request.model), self.request.device)

    def _link(self) -> Link | None:
        share = self.request.supply.gib_s
        return None if share is None else Link(bytes_per_s(share))

    def _loaded_gib_s(self) -> float:
        """Rate at which memory was filled, in GiB/s."""
        return self.library.load_bytes / self.library.load_s / bytes_per_s(1.0)

    def _fell_short(self) -> bool:
        """Returns whether memory was filled more slowly than the supply allows."""
        share = self.request.supply.gib_s
        return share is not None and self.library.load_s > 0 and self._loaded_gib_s() < (1 - SUPPLY_SHORT) * share

    def _prepare(self) -> None:
        request = self.request
        memory = self._held(self.memory())
        if self.model is None:
            self._say("weights")
            self._refuse_too_much(memory)
            left = "vectors.weight" if request.mode == TABLES else None
            self.weights = weights.read(request.folder / data.WEIGHTS, memory, self._shapes(), kind=self._kind(), without=left)
            self.model = self._built(self.weights)
        prepare_cache([request.folder / data.SAMPLES], request.cache)
        share = request.supply.gib_s
        rate = None if share is None else bytes_per_s(share)
        arguments = (request.folder, request.about, request.count(), memory, request.path, rate)
        batch = request.batch or self.model.batch
        if request.mode in LOADED:
            self.library = InMemory(*arguments)
        else:
            self._refuse_batch(batch, memory)
            self.library = FromStorage(*arguments, batch=batch, direct=True if request.cache == "cold" else None)
        if request.mode == COLD or request.cache == "cold":
            self.cached = cached_share(self.library)
        if request.cache == "cold":
            refuse_cached(self.cached)
        self._say("samples")
        self.library.load()
        for _ in range(LOADS_AGAIN if request.mode in LOADED and request.strict else 0):
            if not self._fell_short() or self.library.load_s > LOAD_DELAYED_S:
                break
            self.library.close()
            self.library = InMemory(*arguments)
            self.library.load()
        if request.mode in LOADED:
            self._refuse_batch(batch, memory)
        self.base = self.library.record if request.mode in LOADED else empty_record(self.library)
        if request.mode in LOADED and request.strict and self._fell_short():
            found = self._loaded_gib_s()
            reported = f"the loader brings {significant(found)} GiB/s from {request.folder}"
            raise MachineError(f"--supply {request.supply.text}", reported, f"--supply {significant(0.9 * found)}")
        if request.table_bytes and self.model.cached_rows == 0:
            self._say("the hottest rows of the tables")
            self._refuse_cache(memory)
            self.model.keep(self.library, request.table_bytes)
        self._say("the model")
        self.model.prepare({"SingleStream": (1,), "MultiStream": (rules.PER_QUERY,)}.get(request.scenario, self.model.sizes()))
        self.engine = Engine(self._lg, self.model, self.library, request.batch, request.timeout_s)
        engine = self.engine
        if self._searches() and request.strict:
            search.refuse_slow(engine, request.load(1.0))
        if self.peak is None:
            self.peak = engine.watched("the model's peak", lambda: engine.peak_s(PEAK_S))

    def _searches(self) -> bool:
        """True where Server's highest rate is asked for."""
        request = self.request
        return request.scenario == "Server" and request.target_qps is None and not request.accuracy

    def _held(self, memory: Memory) -> Memory:
        """Raises RequestError where the folder has fewer samples than were asked for."""
        request = self.request
        if not 1 <= request.count() <= request.about.samples:
            found = f"{request.folder} has {whole(request.about.samples)}"
            raise RequestError(f"--samples {request.samples}", found, f"--samples {request.about.samples}")
        return memory

    def _refuse_batch(self, batch: int, memory: Memory) -> None:
        """Raises MachineError where the batches that are read and computed ahead don't fit."""
        batches, free = AHEAD + COMPUTED_AHEAD, memory.free_bytes()
        each = batches * self.request.about.row_bytes
        if batch * each > MEMORY_SHARE * free:
            found = f"{bytes_(batch * each)} of samples are held for {batches} batches, and {bytes_(free)} are free"
            raise MachineError(f"--batch-size {batch}", found, f"--batch-size {max(1, int(MEMORY_SHARE * free / each))}")

    def _refuse_cache(self, memory: Memory) -> None:
        wanted, free = self.request.table_bytes + 4 * self.model.rows, memory.free_bytes()
        if wanted > FITS * free:
            found = f"{bytes_(wanted)} are needed with a number for each row, and {bytes_(free)} are free"
            raise MachineError(f"--table-memory {bytes_(self.request.table_bytes)}", found, "a smaller --table-memory")

    @property
    def form(self) -> forms.Form | None:
        """The form of a model that has one."""
        request = self.request
        return forms.form(request.model, request.about.small) if request.model in forms.NAMES else None

    def _kind(self) -> str:
        return "F32" if self.form is None else self.form.kind

    def _refuse_too_much(self, memory: Memory) -> None:
        """Raises MachineError where weights, and keys and values of the queries at a time, don't fit into the model's memory."""
        request, form = self.request, self.form
        if form is None:
            return
        on_gpu, weights_bytes = request.device != "cpu", request.about.weights_bytes
        # Of another kind than it computes in, a second copy.
        copy = {(True, "F32"): 0.5, (False, "BF16"): 2.0}.get((on_gpu, form.kind), 0.0)
        slots = request.batch or form.batches[0 if on_gpu else 1]
        kept = slots * form.cache_bytes(2 if on_gpu else 4)
        wanted, free = int((1 + copy) * weights_bytes) + kept, memory.free_bytes()
        if wanted > FITS * free:
            found = f"{bytes_(wanted)} are needed"
            if kept:
                found += f", {bytes_(kept)} of them for keys and values of {whole(slots)} queries at a time"
            next = f"forebay infer datagen {request.model} --small --dir ANOTHER"
            next = f"--batch-size 1; or {next}" if kept > wanted / 2 else next
            raise MachineError(f"infer {request.model}", f"{found}, and {bytes_(free)} are free", next)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        if self.request.model == "toy":
            return toy.shapes()
        if self.form is not None:
            from forebay.infer import large

            return large.shapes(self.form)
        from forebay.infer import networks

        return networks.shapes(self.request.model, self.request.about.table_rows)

    def _built(self, read: weights.Read) -> Any:
        if self.request.model == "toy":
            return toy.Model(read.tensors)
        if self.form is not None:
            from forebay.infer import language, large

            of = language.Model if self.form.inputs else large.Model
            return of(self.form, read.tensors, self.request.device, self.request.batch)
        if self.request.mode == TABLES:
            from forebay.infer import tabled

            path = self.request.folder / data.WEIGHTS
            return tabled.Model(read.tensors, self.request.device, self.request.about.table_rows, path, self.request.path)
        from forebay.infer import networks

        return networks.Model(self.request.model, read.tensors, self.request.device, self.request.about.table_rows)

    def _test(self, folder: Path) -> None:
        request, engine = self.request, self.engine
        assert engine is not None
        rate = request.target_qps
        if request.accuracy:
            rate = rate or self._expected or max(1.0, 0.5 * engine.watched("the probe", lambda: engine.samples_s(search.PROBE_S)))
        elif rate is None and self._expected is not None and request.scenario == "Offline":
            rate = self._expected
        elif rate is None:
            rate = search.expected(engine, request.scenario, self._say)
        load = request.load(rate)
        if self._searches():
            kept = request.trials if request.logs is None else request.logs / SEARCH
            self.search = search.Search(self._key(), kept)
            effort = request.effort or (search.SHORT if request.short else search.Effort())
            with temporary() as aside:
                rate, broken = search.server(engine, load, self.search, effort, aside, self._say)
            if broken is not None:
                self.outcome = broken
                return
            load = replace(load, rate=rate)
        asked = request.target_qps is not None or request.accuracy
        self.outcome, self.tries = search.confirmed(engine, load, folder, self._say, asked)
        self.outcome.failure = self.outcome.failure or self.library.changed()
        if request.mode == TABLES:
            self.outcome.failure = self.outcome.failure or self.model.changed()
        self.outcome.failure = self.outcome.failure or self._problem()
        if request.accuracy and self.outcome.log is not None and self.outcome.failure is None:
            self._say("the model's float32 answers")
            self.checked = self._compare(folder)

    def _problem(self) -> RequestError | None:
        """The error of samples that the model stumbled over."""
        wrong = self.model.problem()
        next = "forebay infer datagen into another --dir"
        return RequestError(f"the samples of {self.request.folder}", wrong, next) if wrong else None

    def _keep_logs(self, folder: Path) -> None:
        """Brings the logs of a test that ended to where they were asked for: all of them, or none. Raises RunError."""
        into = self.request.logs
        if into is not None and self.outcome is not None and self.outcome.log is not None:
            brought = [name for name in logs.NAMES if (folder / name).exists()]
            try:
                for name in brought:
                    shutil.copyfile(folder / name, into / name)
            except OSError as error:
                for name in brought:
                    (into / name).unlink(missing_ok=True)
                reported = f"LoadGen's logs can't be kept there ({error.strerror}); the record is whole"
                raise RunError(f"--logs {into}", reported, "another --logs") from None

    def _key(self) -> dict[str, Any]:
        """The conditions of a search, under which its trials hold."""
        request = self.request
        return {
            "model": request.model, "mode": request.mode, "device": request.device, "samples": request.count(),
            "tables": request.table_bytes, "supply": request.supply.gib_s, "batch": request.batch, "path": request.path,
            "cache": request.cache, "seeds": list(rules.seeds_of(request.seed)), "short": request.short,
            "small": request.about.small, "table_rows": request.about.table_rows,
        }  # fmt: skip

    def _compare(self, folder: Path) -> dict[str, Any]:
        """An accuracy test's answers beside the model's float32 ones, and rows as the model saw them beside their digests."""
        import numpy as np

        many, width = self.library.count, self.model.width
        found = logs.answers(folder, many, width + 2)
        given = np.ascontiguousarray(found[:, :width])
        seen = np.ascontiguousarray(found[:, width:]).view(np.uint64)[:, 0]
        listed = data.values(self.request.folder / data.DIGESTS, np.uint64, many)
        wrong = np.flatnonzero(seen != listed)
        wanted = np.empty_like(given)
        for at in range(0, many, self.engine.batch if self.engine else 64):
            numbers = list(range(at, min(many, at + (self.engine.batch if self.engine else 64))))
            rows = self.library.rows(self.library.ask(numbers))
            wanted[at : at + len(numbers)] = self.model.reference(rows)
        same = (self.model.decisions(given) == self.model.decisions(wanted)).all(axis=1)
        place = np.arange(many, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        words = given.view(np.uint32).astype(np.uint64)
        factors = np.arange(1, 2 * width, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return {
            "samples": many,
            "rows_intact": int(many - len(wrong)),
            "first_damaged": int(wrong[0]) if len(wrong) else None,
            "agree_pct": 100 * float(same.mean()),
            "identical_pct": 100 * float((given == wanted).all(axis=1).mean()),
            "max_abs_difference": float(np.abs(given - wanted).max()),
            "answers_hash": f"{int((((words * factors).sum(1)) * place).sum()):016x}",
            **self._quality(given),
        }

    def _quality(self, given: Array) -> dict[str, Any]:
        """Of trained weights the quality of the answers beside that which the training had."""
        from forebay.infer import trained

        about = self.request.about
        if about.metric is None:
            return {}
        try:
            value = trained.auc(self.request.folder, given)
        except ValueError:
            value = None
        return {"quality": {"name": about.metric, "value": value, "trained": about.quality}}

    def _cold_start(self) -> None:
        """From the weights' file to the first answer, by the clock; afterwards what was read is compared with the file."""
        request = self.request
        memory = self._held(self.memory())
        self._refuse_too_much(memory)
        shapes = self._shapes()
        files = [request.folder / data.WEIGHTS, request.folder / data.SAMPLES]
        prepare_cache(files, request.cache)
        share = request.supply.gib_s
        self.library = FromStorage(request.folder, request.about, request.count(), memory, request.path, None, batch=1)
        self.base = empty_record(self.library)
        self._say("weights")
        began = time.perf_counter()
        self.weights = weights.read(files[0], memory, shapes, self._link(), request.path, self._kind())
        loaded = time.perf_counter()
        self.model = self._built(self.weights)
        self.model.prepare((1,))
        ready = time.perf_counter()
        answer = self.model.finish(self.model.launch(self.library.rows(self.library.ask([0]))))
        ended = time.perf_counter()
        if (wrong := self._problem()) is not None:
            raise wrong
        read = self.weights
        self.start = {
            "read_s": read.read_s, "allocate_s": read.allocate_s, "compile_s": ready - loaded,
            "first_answer_s": ended - ready, "total_s": ended - began,
        }  # fmt: skip
        import numpy as np

        row = data.values(files[1], np.uint8, request.about.row_bytes)
        digest = data.values(request.folder / data.DIGESTS, np.uint64, 1)
        self.intact = (
            weights.intact(files[0], read) and bool(np.isfinite(answer).all()) and bool((data.digests(row[None]) == digest).all())
        )
        rate = read.bytes / max(read.read_s, 1e-9)
        if share is not None and rate < (1 - SUPPLY_SHORT) * bytes_per_s(share):
            text = f"{significant(rate / bytes_per_s(1.0))} GiB/s came of {files[0].name}, not {significant(share)}"
            self.warnings.append({"id": "supply_off", "text": text, "next": "a lower --supply; larger weights"})

    # The record ---------------------------------------------------------------------------------------

    def record(self) -> Record:
        assert self.base is not None
        return finish(self, self.base)

    @property
    def holds(self) -> bool:
        """False for a test that LoadGen calls INVALID, or rows that were damaged."""
        if self.request.mode == COLDSTART:
            return bool(self.intact)
        if self.checked is not None:
            return bool(self.checked["rows_intact"] == self.checked["samples"])
        return self.outcome is not None and self.outcome.valid is True

    def keep_model(self) -> None:
        """The model outlives this run."""
        self._keeps_model = True

    def close(self) -> None:
        """Gives files and memory back, unless LoadGen's threads still hold them."""
        if self.abandoned:
            return
        for each in (self.library, None if self._keeps_model else self.model):
            if each is not None:
                each.close()


def empty_record(library: Any) -> Record:
    """The record of a loader that has read nothing yet: machine, file system, request."""
    loader = library.loader()
    try:
        record: Record = loader.record()
        return record
    finally:
        loader.close()


def cached_share(library: Any) -> float | None:
    """Of a library's file, what is in the page cache; None where that can't be told."""
    loader = library.loader()
    try:
        share: float | None = loader.cached_share()
        return share
    finally:
        loader.close()


@contextmanager
def temporary() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="forebay-infer-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def logs_folder(asked: Path | None) -> Iterator[None]:
    """Holds the folder of LoadGen's logs, if one was asked for: it takes those of one run. Raises RequestError."""
    if asked is None:
        yield
        return
    flag = f"--logs {asked}"
    if os.path.lexists(asked) and not asked.is_dir():
        raise RequestError(flag, "is no folder", "another --logs")
    if not asked.parent.is_dir():
        raise RequestError(flag, f"there is no folder {asked.parent}", f"mkdir -p {asked.parent}")
    try:
        asked.mkdir(exist_ok=True)
        held = os.open(asked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RequestError(flag, f"can't be written ({error.strerror})", "another --logs") from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RequestError(flag, "another run writes its logs there", "another --logs") from None
        there = sorted(path.name for path in asked.iterdir() if path.name != SEARCH)
        if there:
            raise RequestError(flag, f"{there[0]} is there already, and isn't overwritten", "another --logs")
        if not os.access(asked, os.W_OK | os.X_OK):
            raise RequestError(flag, "can't be written (permission)", "another --logs")
        yield
    finally:
        os.close(held)
