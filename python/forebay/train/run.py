"""One training run: the model's own peak from memory, the supply against the clock, then training fed by the loader.

Speed and quality are measured apart. The rate is that of training alone, from the end of a warm-up to the end of the last
step, without evaluations; the supply rests while the model is evaluated. The number of samples to the target is the seed's.
So a whole run takes samples ÷ rate + evaluations, which the record holds beside what it took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from forebay.errors import ForebayError, RunError
from forebay.numbers import whole
from forebay.train import data
from forebay.train.ranks import ranks_of
from forebay.train.supply import Pace, Supply, bytes_per_s
from forebay.units import GIB

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

# Batches kept in memory for the peak, and how many bytes of them at most. Few of them would stay in the caches, and so
# would the rows that they look up: a peak that no run on other samples reaches.
KEPT, KEPT_BYTES = 64, 1 << 30
# Steps before a rate is measured; pieces of the measured time, whose spread gives the interval.
WARM_STEPS, PIECES = 3, 8
# The check of the supply: seconds, and batches at least.
CHECK_S, CHECK_BATCHES = 1.0, 6
# Steps between two looks at what a device found, which waits for it.
LOOK_EVERY = 64
MASK = (1 << 64) - 1
# A model's problem that its data don't explain.
NO_NUMBER = "the loss is not a number"


class Model(Protocol):
    name: str
    device: str
    queued: bool
    # Whose Adagrad updates the vectors.
    optimizer: str

    def reset(self) -> None: ...
    def step(self, rows: Any) -> None: ...
    def wait(self) -> None: ...
    def problem(self) -> str | None: ...
    def scores(self, rows: Any) -> Any: ...
    def state(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Source(Protocol):
    """Hands out rows; None at an epoch's end."""

    def take(self) -> Any: ...


@dataclass
class Rate:
    """Samples a second, of each piece of the measured time, and of all of it."""

    samples: int = 0
    seconds: float = 0.0
    pieces: list[float] = field(default_factory=list)

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def interval(self) -> tuple[float, float] | None:
        """The mean's 95 % interval over the pieces; None under three."""
        from forebay.stats import mean_interval

        if len(self.pieces) < 3:
            return None
        found = mean_interval(self.pieces)
        return None if found.low is None or found.high is None else (max(0.0, found.low), found.high)


@dataclass
class Cpu:
    """Processor time of this process."""

    user_s: float = 0.0
    system_s: float = 0.0

    @classmethod
    def now(cls) -> Cpu:
        found = os.times()
        return cls(found.user, found.system)

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.user_s - before.user_s, self.system_s - before.system_s)

    def plus(self, other: Cpu) -> Cpu:
        return Cpu(self.user_s + other.user_s, self.system_s + other.system_s)

    def per_gib(self, bytes_: float) -> dict[str, float | None]:
        gib = bytes_ / GIB
        return {"user": self.user_s / gib if gib else None, "system": self.system_s / gib if gib else None}


class Digest:
    """A hash of all that was handed out: of each row's words and its place in the run, whatever the batches were.

    Sums modulo 2^64 of words times odd numbers. `at` has it after 2^k batches, so that runs of different lengths compare.
    Of several ranks each has its share of every batch, rank by rank; `add_others` adds theirs.
    """

    def __init__(
        self, batch_digest: Callable[[Any, int], Any] | None = None, rank: int = 0, world: int = 1
    ) -> None:
        self._of = batch_digest or digest
        self._rank, self._world = rank, world
        self._others: list[int] = []
        self.samples, self.batches = 0, 0
        self._parts: list[Any] = []
        self._marks: list[tuple[int, int]] = []

    def add(self, rows: Any) -> None:
        self._parts.append(self._of(rows, self.samples + self._rank * len(rows)))
        self.samples += len(rows) * self._world
        self.batches += 1
        if self.batches & (self.batches - 1) == 0:
            self._marks.append((self.samples, len(self._parts)))

    def text(self) -> str:
        """16 hexadecimal digits."""
        return f"{self.sums()[-1]:016x}"

    def at(self) -> list[dict[str, Any]]:
        return [{"samples": marks[0], "hash": f"{each:016x}"} for marks, each in zip(self._marks, self.sums(), strict=False)]

    def sums(self) -> list[int]:
        """Those of `at`, and of all; of all ranks once they were added."""
        return self._others or [self._upto(parts) for parts in [*(parts for _, parts in self._marks), len(self._parts)]]

    def add_others(self, ranks: list[list[int]]) -> None:
        """What each of the ranks, this one too, has of `sums`."""
        self._others = [sum(each) & MASK for each in zip(*ranks, strict=True)]

    def _upto(self, parts: int) -> int:
        # Those of a device are fetched once.
        self._parts = [part if isinstance(part, int) else int(part) for part in self._parts]
        return sum(self._parts[:parts]) & MASK


@cache
def odd_numbers(pairs: int = data.ROW_BYTES // 8) -> Any:
    """Factors of the pairs of a row's words."""
    import numpy as np

    return np.random.default_rng(912).integers(1, 1 << 62, pairs, dtype=np.int64) | np.int64(1)


def digest(rows: Array, position: int) -> int:
    """Of rows in host memory, the first of which is so far in the run."""
    import numpy as np

    words = np.ascontiguousarray(rows).view(np.uint64)
    each = np.einsum("ij,j->i", words, odd_numbers(words.shape[1]).view(np.uint64))
    place = np.arange(position, position + len(rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return int((each * place).sum())


class Meter:
    """Times of a model, as this process sees them: computing, and waiting for batches.

    A model whose device works on its own has a meter of its own, of the device's clock.
    """

    idle_pct: float | None = None
    idle_reason = "the model runs on the CPU"

    def __init__(self) -> None:
        self.busy_s = self.waited_s = 0.0

    def step(self, model: Model, rows: Any, waited_s: float) -> None:
        self.waited_s += waited_s
        began = time.perf_counter()
        model.step(rows)
        self.busy_s += time.perf_counter() - began

    def restart(self) -> None:
        self.busy_s = self.waited_s = 0.0

    def pause(self) -> None:
        """A pause of training, which isn't counted."""


@dataclass
class Evaluation:
    samples: int
    quality: float
    seconds: float
    # Seconds from the run's start, when the first batch was asked for, to its begin.
    began_s: float = 0.0


@dataclass
class Limits:
    """Ends of a run, of which the first counts. `target` None: nothing is evaluated."""

    samples: int | None = None
    seconds: float | None = None
    target: float | None = None
    evaluate_every: int = 0
    # Name of the quality that is evaluated.
    metric: str = ""


class Fed:
    """Training fed by a source, and what came of it. `run` may be left by an interrupt; what was measured stays."""

    def __init__(
        self,
        model: Model,
        source: Source,
        pace: Pace | None,
        evaluate: Callable[[Model], float] | None,
        limits: Limits,
    ) -> None:
        self.model, self.source, self.pace, self._evaluate, self.limits = (
            model,
            source,
            pace,
            evaluate,
            limits,
        )
        self.meter = model.meter() if hasattr(model, "meter") else Meter()
        self.ranks = ranks_of(model)
        self.digest = Digest(getattr(model, "digest", None), self.ranks.rank, self.ranks.world)
        self.rate, self.cpu = Rate(), Cpu()
        self.evaluations: list[Evaluation] = []
        # Samples are those of all ranks.
        self.samples = self.steps = 0
        # From the first batch to now, and how much of that were evaluations.
        self.seconds = self.evaluating_s = 0.0
        self.reached_at: int | None = None
        self.failure: ForebayError | None = None
        # Which sample of the data set is wrong, to be asked where the model found one.
        self.explain: Callable[[], str | None] | None = None
        # What makes another data set.
        self.remake = "another data set"
        self._began = 0.0
        # Of several ranks, whether the step that comes is the last.
        self._last = False
        # The wall clock when the first batch was asked for, and seconds from then to the end.
        self.started_at, self.whole_s, self._asked = 0.0, 0.0, 0.0

    def run(self, progress: Callable[[str], None] | None = None) -> None:
        """Trains until a limit. A failure of the source or the model is kept in `failure`."""
        self.started_at, self._asked = time.time(), time.perf_counter()
        try:
            try:
                self._train(progress)
            finally:
                self.model.wait()
        except ForebayError as error:
            self.failure = error
        finally:
            self.whole_s = time.perf_counter() - self._asked
            if self._began:
                self.seconds = time.perf_counter() - self._began

    def _train(self, progress: Callable[[str], None] | None) -> None:
        piece = Pieces(self)
        while not self._is_over():
            rows, waited = self._next()
            if not self._began:
                self._began, waited = time.perf_counter(), 0.0
            self.digest.add(rows)
            self.meter.step(self.model, rows, waited)
            self.samples += len(rows) * self.ranks.world
            self.steps += 1
            del rows
            self._look(self.steps % LOOK_EVERY == 0 or not self.model.queued)
            piece.note()
            every = self.limits.evaluate_every
            if self._evaluate and every and self.samples // every > len(self.evaluations):
                piece.pause(self._judge)
            if progress:
                progress(
                    f"{whole(self.samples)} samples"
                    + (f", {self.limits.metric} {self.evaluations[-1].quality:.4f}" if self.evaluations else "")
                )
        self._look(True)
        if (
            self._evaluate
            and self.reached_at is None
            and (not self.evaluations or self.evaluations[-1].samples < self.samples)
        ):
            piece.pause(self._judge)
        piece.end()

    def _next(self) -> tuple[Any, float]:
        """The next batch, and how long it was waited for. On several ranks it is each one's share, and all of them have it."""
        rows, error, asked = None, None, time.perf_counter()
        try:
            rows = self._take()
        except ForebayError as found:
            if self.ranks.world == 1:
                raise
            error = found
        waited = time.perf_counter() - asked
        failed, self._last = self.ranks.any(error is not None, self.ranks.world > 1 and self._is_late())
        if failed:
            self.ranks.raise_for(error)
        return rows, waited

    def _take(self) -> Any:
        rows = self.source.take()
        if rows is None:
            rows = self.source.take()
            if rows is None:
                raise RunError(
                    "the next epoch", "the loader has no batch", "a data set that is longer than a batch"
                )
        if self.pace is not None:
            self.pace.hold(rows.nbytes)
        return rows

    def _is_over(self) -> bool:
        limits = self.limits
        if self.reached_at is not None or (limits.samples is not None and self.samples >= limits.samples):
            return True
        # Clocks of ranks differ: they agree on the last step while it comes.
        return self._last if self.ranks.world > 1 else self._is_late()

    def _is_late(self) -> bool:
        trained = time.perf_counter() - self._began - self.evaluating_s if self._began else 0.0
        return self.limits.seconds is not None and trained >= self.limits.seconds

    def _look(self, now: bool) -> None:
        found = self.model.problem() if now else None
        if found:
            where = f"step {whole(self.steps)}, after {whole(self.samples)} samples"
            if found == NO_NUMBER:
                raise self.ranks.agree(RunError(where, found, "a lower --learning-rate, or another --seed"))
            # The rank that says it looks for it.
            explained = None if self.ranks.rank or not self.explain else self.explain()
            raise self.ranks.agree(RunError(where, explained or found, self.remake))

    def _judge(self) -> None:
        self._look(True)
        self.model.wait()
        began = time.perf_counter()
        assert self._evaluate is not None
        found = self._evaluate(self.model)
        took = time.perf_counter() - began
        self.meter.pause()
        self.evaluations.append(Evaluation(self.samples, found, took, began - self._asked))
        self.evaluating_s += took
        if self.pace is not None:
            self.pace.rest(took)
        if self.limits.target is not None and found >= self.limits.target:
            self.reached_at = self.samples


class Pieces:
    """The measured time in pieces of about equal length, which double where a run goes on: always `PIECES` to twice as many."""

    def __init__(self, fed: Fed) -> None:
        self.fed = fed
        self._ends: list[tuple[int, float]] = []
        # A device runs empty at a piece's end.
        self._length = 0.4 if fed.model.queued else 0.1
        self._paused = 0.0
        self._cpu = Cpu()
        self._cpu_paused = Cpu()

    def note(self) -> None:
        """After each step."""
        fed = self.fed
        if fed.steps < WARM_STEPS:
            return
        if not self._ends:
            fed.model.wait()
            fed.meter.restart()
            self._cpu = Cpu.now()
            self._ends.append((fed.samples, time.perf_counter()))
        elif time.perf_counter() - self._paused - self._ends[-1][1] >= self._length:
            self._close()

    def _close(self) -> None:
        fed = self.fed
        fed.model.wait()
        self._ends.append((fed.samples, time.perf_counter() - self._paused))
        if len(self._ends) > 2 * PIECES:
            self._ends = self._ends[::2] if len(self._ends) % 2 else [*self._ends[:-1:2], self._ends[-1]]
            self._length *= 2
        self._tell()

    def pause(self, work: Callable[[], None]) -> None:
        """Work that isn't training."""
        self.fed.model.wait()
        cpu, began = Cpu.now(), time.perf_counter()
        work()
        self._paused += time.perf_counter() - began if self._ends else 0.0
        self._cpu_paused = self._cpu_paused.plus(Cpu.now().since(cpu)) if self._ends else Cpu()

    def end(self) -> None:
        if self._ends and self.fed.samples > self._ends[-1][0]:
            self._close()

    def _tell(self) -> None:
        fed, ends = self.fed, self._ends
        pairs = list(zip(ends, ends[1:], strict=False))
        # A short rest at the end says little.
        rates = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairs if b[1] - a[1] > self._length / 2]
        fed.rate = Rate(ends[-1][0] - ends[0][0], ends[-1][1] - ends[0][1], rates)
        fed.cpu = Cpu.now().since(self._cpu).since(self._cpu_paused)


def peak(model: Model, kept: list[Any], seconds: float, batches: int = 0) -> tuple[Rate, Cpu]:
    """The model's own rate on batches that lie in its memory, for so long and over so many of them at least."""
    for rows in kept[:WARM_STEPS]:
        model.step(rows)
    model.wait()
    found, cpu = Rate(), Cpu.now()
    turn, ranks = cycle(kept), ranks_of(model)
    for _ in range(PIECES):
        began, samples, steps = time.perf_counter(), 0, 0
        while True:
            rows = next(turn)
            model.step(rows)
            samples += len(rows) * ranks.world
            steps += 1
            if model.queued:
                model.hold_back()  # type: ignore[attr-defined]
            (over,) = ranks.any(time.perf_counter() - began >= seconds / PIECES and steps * PIECES >= batches)
            if over:
                break
        model.wait()
        took = time.perf_counter() - began
        found.samples += samples
        found.seconds += took
        found.pieces.append(samples / took)
    return found, Cpu.now().since(cpu)


def cycle(kept: list[Any]) -> Iterator[Any]:
    while True:
        yield from kept


@dataclass
class Delivered:
    """Bytes and time of a consumer that does nothing."""

    bytes: int = 0
    seconds: float = 0.0
    cpu: Cpu = field(default_factory=Cpu)

    @property
    def gib_s(self) -> float:
        return self.bytes / GIB / self.seconds if self.seconds > 0 else 0.0

    @classmethod
    def sum(cls, ranks: Sequence[Delivered | None]) -> Delivered | None:
        """Of all ranks, at the sum of their rates; None where one measured nothing."""
        found = [each for each in ranks if each is not None]
        rate = sum(each.gib_s for each in found)
        if len(found) < len(ranks) or not rate:
            return None
        total, cpu = sum(each.bytes for each in found), Cpu()
        for each in found:
            cpu = cpu.plus(each.cpu)
        return cls(total, total / GIB / rate, cpu)


def delivers(
    source: Source, pace: Pace | None, seconds: float = CHECK_S, wait: Callable[[], None] | None = None
) -> Delivered:
    """The rate of a source by the clock, from its first batch on: paced, or as fast as it goes."""
    found = Delivered()
    batches = 0
    began, cpu = 0.0, Cpu()
    while batches <= CHECK_BATCHES or found.seconds < seconds:
        rows = source.take()
        if rows is None:
            rows = source.take()
            if rows is None:
                break
        if pace is not None:
            pace.hold(rows.nbytes)
        if batches:
            found.bytes += rows.nbytes
        else:
            began, cpu = time.perf_counter(), Cpu.now()
        batches += 1
        del rows
        found.seconds = time.perf_counter() - began
    if wait is not None:
        wait()
        found.seconds = time.perf_counter() - began if batches else 0.0
    found.cpu = Cpu.now().since(cpu)
    return found


def pace_of(supply: Supply, ahead: int) -> Pace | None:
    return None if supply.gib_s is None else Pace(bytes_per_s(supply.gib_s), ahead)
