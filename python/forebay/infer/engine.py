"""The system under test: takes LoadGen's queries, fetches their samples, computes, and answers each sample once.

Single and multiple streams are answered in the thread that asks, as the next query waits for the answer anyway. Server and
Offline have a thread of their own, which takes what has arrived as one batch, and fetches and computes ahead. LoadGen runs in a
thread beside the main one, which watches over it: LoadGen can't be stopped, so that a test which is broken off leaves its
threads behind, until the process ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from forebay.errors import ForebayError, RunError
from forebay.infer import logs, rules
from forebay.infer.library import AHEAD
from forebay.numbers import seconds, whole

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

# Batches that are computed at the same time: the next is given to the device before the last is answered.
COMPUTED_AHEAD = 2
# Between two looks of the main thread, and how long LoadGen may take to end by itself once all is answered.
LOOK_S, ENDS_S = 0.05, 2.0
# Between two looks; where it is longer, the whole process was stopped.
STOPPED_S = 5.0
QUERY_TIMEOUT_S = 60.0
# Parts of a query by itself whose times the rules bound, and how many later tokens are timed together.
ANSWER, FIRST, LATER = "its answer", "its first token", "each later token"
LATER_TOKENS = 4


class Broken(Exception):
    """A test that ended before LoadGen did."""


@dataclass
class Outcome:
    """Outcome of one test. `log` None: it was broken off, and LoadGen's threads are still there.

    samples        answered; `seconds` from the first query to the last answer
    storage_bytes  delivered inside the timed part; `device_bytes`: read by this process from devices meanwhile
    """

    load: rules.Load
    log: logs.Log | None = None
    samples: int = 0
    queries: int = 0
    seconds: float = 0.0
    storage_bytes: int = 0
    device_bytes: int | None = None
    interrupted: bool = False
    failure: ForebayError | None = None
    latencies_ms: dict[str, float] | None = None
    # Of the first token, and of each one after it, where the rules judge by them.
    first_ms: dict[str, float] | None = None
    token_ms: dict[str, float] | None = None

    @property
    def valid(self) -> bool | None:
        return None if self.log is None else self.log.valid

    @property
    def samples_per_s(self) -> float | None:
        return self.samples / self.seconds if self.samples and self.seconds > 0 else None


@dataclass
class Turn:
    """Progress of a test, told by the threads that answer and read by the one that watches."""

    began: float = 0.0
    ended: float = 0.0
    queries: int = 0
    samples: int = 0
    # The samples that are being answered, and since when; None: nothing is outstanding.
    waiting: tuple[Sequence[int], float] | None = None
    moved_at: float = 0.0
    failure: BaseException | None = None
    broken: bool = False
    loaded_bytes: int = 0
    device_before: int | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Patience:
    """Seconds of a wait, asked at every look, without those in which the process was stopped: no answer could come in them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._looked, self._resumed = clock, clock(), float("-inf")

    def waited_s(self, since: float) -> float:
        now = self._clock()
        if now - self._looked > STOPPED_S:
            self._resumed = now
        self._looked = now
        return now - max(since, self._resumed)


class Engine:
    """Answers queries by a model, from a library. One test at a time."""

    def __init__(self, lg: Any, model: Any, library: Any, batch: int | None = None, timeout_s: float = QUERY_TIMEOUT_S) -> None:
        self._lg, self.model, self.library = lg, model, library
        self.batch = batch or model.batch
        self.timeout_s = timeout_s
        # Of an answer, where the model gives it token by token.
        self.tokens: int = getattr(model, "tokens", 0)
        self._reports_first = False
        self.abandoned = False
        self._turn = Turn()
        self._queue: SimpleQueue[tuple[list[int], list[int]] | None] = SimpleQueue()
        self._accuracy = False

    # One test -----------------------------------------------------------------------------------------

    def test(self, load: rules.Load, folder: Path, say: Callable[[str], None] | None = None) -> Outcome:
        """Runs one test of LoadGen's, whose logs go into the folder. KeyboardInterrupt ends it; what was measured is returned."""
        lg = self._lg
        turn = self._turn = Turn()
        self._accuracy, self._reports_first = load.accuracy, load.token_ms is not None
        self._queue = SimpleQueue()
        inline = load.scenario in ("SingleStream", "MultiStream") and not self.tokens
        sut = lg.ConstructFastSUT(self._inline if inline else self._put, lambda: None)
        qsl = lg.ConstructQSL(self.library.count, self.library.count, self._load, lambda numbers: None)
        work = self._work_tokens if self.tokens else self._work
        worker = None if inline else threading.Thread(target=work, name="forebay-infer", daemon=True)
        ended = threading.Event()

        def run() -> None:
            try:
                lg.StartTestWithLogSettings(sut, qsl, rules.settings(lg, load), log_settings(lg, folder))
            except BaseException as error:
                turn.failure = turn.failure or error
            ended.set()

        if worker:
            worker.start()
        threading.Thread(target=run, name="forebay-loadgen", daemon=True).start()
        outcome = Outcome(load)
        try:
            self._watch(load, turn, ended, say)
        except KeyboardInterrupt:
            outcome.interrupted = True
        except Broken:
            pass
        self.abandoned = True
        try:
            over = self._end(turn, ended)
        except KeyboardInterrupt:  # a second one
            over = ended.is_set()
        self.abandoned = not over
        outcome.samples, outcome.queries = turn.samples, turn.queries
        outcome.seconds = max(0.0, turn.ended - turn.began) if turn.began else 0.0
        outcome.storage_bytes = self._delivered() - turn.loaded_bytes
        now = device_bytes()
        if now is not None and turn.device_before is not None:
            outcome.device_bytes = now - turn.device_before
        outcome.failure = failure_of(turn.failure)
        if over:
            self._queue.put(None)
            if worker:
                worker.join()
            lg.DestroyQSL(qsl)
            lg.DestroySUT(sut)
            if outcome.failure is None and not outcome.interrupted:
                log = logs.read(folder)
                if log.valid is None and not load.accuracy:
                    outcome.failure = logs.cut_off(folder / logs.DETAIL)
                    return outcome
                outcome.log = log
                outcome.latencies_ms = outcome.log.latency_ms(load.scenario)
                if load.token_ms:
                    outcome.first_ms, outcome.token_ms = (outcome.log.token_ms(first) for first in (True, False))
        return outcome

    def _watch(self, load: rules.Load, turn: Turn, ended: threading.Event, say: Callable[[str], None] | None) -> None:
        patience = Patience()
        # What a slow model waits for: LoadGen ends no sooner, however short the test.
        least_samples = 0 if load.accuracy else rules.least_samples(load)
        while not ended.wait(LOOK_S):
            if turn.failure is not None:
                raise Broken
            waiting = turn.waiting
            waited_s = patience.waited_s(turn.moved_at if waiting is None else max(waiting[1], turn.moved_at))
            if waiting is not None and waited_s > self.timeout_s:
                numbers = ", ".join(str(n) for n in list(waiting[0])[:4]) + (", …" if len(waiting[0]) > 4 else "")
                reported = f"query {whole(turn.queries)} (samples {numbers}) has had no answer for {seconds(self.timeout_s)}"
                turn.failure = RunError("the system under test", reported, "a longer --query-timeout; or another --path")
                raise Broken
            if say:
                rate = turn.samples / (time.perf_counter() - turn.began) if turn.began else 0.0
                least = f" of {whole(least_samples)} at least" if turn.samples < least_samples else ""
                say(f"{whole(turn.samples)} samples{least} answered, {whole(rate)}/s")

    def _end(self, turn: Turn, ended: threading.Event) -> bool:
        """True where LoadGen has ended. Of a broken test, all that comes is answered at once meanwhile, by nothing."""
        if ended.is_set():
            return True
        turn.broken = True
        turn.ended = turn.ended or time.perf_counter()
        return ended.wait(ENDS_S)

    # What LoadGen calls -------------------------------------------------------------------------------

    def _load(self, numbers: list[int]) -> None:
        turn = self._turn
        try:
            self.library.load()
        except BaseException as error:  # would end the process from within LoadGen
            turn.failure = turn.failure or error
            turn.broken = True
        turn.loaded_bytes = self._delivered()
        turn.device_before = device_bytes()

    def _delivered(self) -> int:
        """Bytes that storage has brought: samples, and rows of tables that stay in their file."""
        count: int = self.library.delivered + getattr(self.model, "delivered", 0)
        return count

    def _inline(self, ids: list[int], numbers: list[int]) -> None:
        """A query of a stream, answered before it returns."""
        turn = self._turn
        began = time.perf_counter()
        if not turn.began:
            turn.began = began
        turn.queries += 1
        if turn.broken:
            self._answer_nothing(ids)
            return
        turn.waiting, done = (numbers, began), 0
        try:
            size = self._size()
            for at in range(0, len(ids), size):
                some = numbers[at : at + size]
                answers = self._computed(self._begin(self.library.rows(self.library.ask(some))))
                self._check(some, answers)
                self._send(ids[at : at + size], answers)
                done = at + size
        except BaseException as error:
            self._break(error)
            self._answer_nothing(ids[done:])
        turn.waiting = None

    def _put(self, ids: list[int], numbers: list[int]) -> None:
        turn = self._turn
        if not turn.began:
            turn.began = time.perf_counter()
        turn.queries += 1
        self._queue.put((ids, numbers))

    # The thread that answers Server and Offline ---------------------------------------------------------

    def _work(self) -> None:
        turn, queue = self._turn, self._queue
        asked: deque[tuple[list[int], list[int], Any]] = deque()
        computed: deque[tuple[list[int], list[int], Any]] = deque()
        taken = Taken(queue, self._size())
        while True:
            try:
                while len(asked) < AHEAD:
                    chunk = taken.next(wait=not asked and not computed)
                    if chunk is None:
                        break
                    ids, numbers = chunk
                    turn.waiting = turn.waiting or (numbers, time.perf_counter())
                    # Held before it is asked for, so that it is answered even if that fails.
                    asked.append((ids, numbers, None))
                    if not turn.broken:
                        asked[-1] = (ids, numbers, self.library.ask(self._filled(numbers)))
                if not asked and not computed:
                    turn.waiting = None
                    return
                if asked and len(computed) < COMPUTED_AHEAD:
                    ids, numbers, rows = asked[0]
                    launched = None if turn.broken else self._begin(self.library.rows(rows))
                    asked.popleft()
                    computed.append((ids, numbers, launched))
                    if asked or taken.more():
                        continue
                while len(computed) >= (COMPUTED_AHEAD if asked or taken.more() else 1):
                    ids, numbers, launched = computed[0]
                    answers = None if turn.broken else self._computed(launched)
                    if answers is not None:
                        self._check(self._filled(numbers), answers)
                    computed.popleft()
                    if answers is None:
                        self._answer_nothing(ids)
                    else:
                        self._send(ids, answers)
                oldest = computed[0] if computed else asked[0] if asked else None
                turn.waiting = None if oldest is None else (oldest[1], turn.moved_at)
            except BaseException as error:
                self._break(error)
                for ids, _, _ in (*computed, *asked):
                    self._answer_nothing(ids)
                computed.clear()
                asked.clear()
                turn.waiting = None

    def _work_tokens(self) -> None:
        """The same of a language model: queries join and leave while others get their tokens, one of them between two tokens."""
        turn, model = self._turn, self.model
        taken = Taken(self._queue, 1)
        asked: deque[list[Any]] = deque()
        active: dict[int, list[Any]] = {}
        free = list(reversed(range(model.batch)))
        while True:
            try:
                while len(asked) < AHEAD and (chunk := taken.next(wait=not asked and not active)) is not None:
                    turn.waiting = turn.waiting or (chunk[1], time.perf_counter())
                    asked.append([chunk[0][0], chunk[1], None])
                    if not turn.broken:
                        asked[-1][2] = self.library.ask(chunk[1])
                if turn.broken:
                    self._answer_nothing([each[0] for each in (*active.values(), *asked)])
                    free += active
                    active.clear()
                    asked.clear()
                    turn.waiting = None
                    if taken.closed:
                        return
                    continue
                if not asked and not active:
                    turn.waiting = None
                    return
                if asked and free:
                    query, numbers, handle = asked[0]
                    rows = self.library.rows(handle)
                    digest = model.digests(rows) if self._accuracy else None
                    first = model.admit(free[-1], rows)
                    asked.popleft()
                    active[free.pop()] = [query, numbers, self.tokens - 1, digest]
                    turn.moved_at = time.perf_counter()
                    if self._reports_first:
                        self._lg.FirstTokenComplete(self._responses([query], first, 1))
                model.step()
                done = []
                for slot, each in active.items():
                    each[2] -= 1
                    if each[2] <= 0:
                        done.append(slot)
                if done:
                    self._answer_slots(done, active)
                    free += done
                turn.moved_at = time.perf_counter()
                oldest = next(iter(active.values()), asked[0] if asked else None)
                turn.waiting = None if oldest is None else (oldest[1], turn.moved_at)
            except BaseException as error:
                self._break(error)

    def _answer_slots(self, done: list[int], active: dict[int, list[Any]]) -> None:
        import numpy as np

        answers = self.model.answer(done)
        self._check([active[slot][1][0] for slot in done], answers)
        if self._accuracy:
            digests = np.concatenate([active[slot][3] for slot in done])
            answers = np.ascontiguousarray(np.hstack([answers, digests.view(np.float32).reshape(len(done), 2)]))
        self._send([active[slot][0] for slot in done], answers)
        for slot in done:
            del active[slot]

    # Answers ------------------------------------------------------------------------------------------

    def _filled(self, numbers: list[int]) -> list[int]:
        """In an accuracy test a whole batch: the kernels, and so the bits, don't depend on how many came together."""
        return numbers + numbers[:1] * (self._size() - len(numbers)) if self._accuracy else numbers

    def _size(self) -> int:
        return min(self.batch, self.model.checked_batch) if self._accuracy else self.batch

    def _begin(self, rows: Any) -> Any:
        """Gives rows to the model; an accuracy test wants their digests, too."""
        if not self._accuracy:
            return self.model.launch(rows)
        return self.model.launch(rows), self.model.digests(rows)

    def _computed(self, launched: Any) -> Array:
        """Answers, in an accuracy test with two more columns: the digest of the row that each was made of."""
        import numpy as np

        if not self._accuracy:
            answers: Array = self.model.finish(launched)
            return answers
        found, digests = self.model.finish(launched[0]), launched[1]
        if len(found) != len(digests):
            return found  # which is refused as it is
        return np.ascontiguousarray(np.hstack([found.astype(np.float32), digests.view(np.float32).reshape(len(digests), 2)]))

    def _check(self, numbers: list[int], answers: Array) -> None:
        if len(answers) != len(numbers):
            reported = f"the model gave {len(answers)} answers to {len(numbers)} samples (the first is sample {numbers[0]})"
            raise RunError("the system under test", reported, "a model that answers each sample once")

    def _send(self, ids: list[int], answers: Array) -> None:
        """Hands answers over: their bytes in an accuracy test, else that they are there."""
        turn = self._turn
        self._lg.QuerySamplesComplete(self._responses(ids, answers, self.tokens))
        turn.samples += len(ids)
        turn.ended = turn.moved_at = time.perf_counter()

    def _responses(self, ids: list[int], answers: Array, tokens: int) -> list[Any]:
        response, reported = self._lg.QuerySampleResponse, (tokens,) if tokens else ()
        if not self._accuracy:
            return [response(each, 0, 0, *reported) for each in ids] if tokens else self._empty(ids)
        address, step = answers.__array_interface__["data"][0], answers.strides[0]
        return [response(each, address + n * step, step, *reported) for n, each in enumerate(ids)]

    def _empty(self, ids: list[int]) -> list[Any]:
        """Responses without the answers' bytes, which LoadGen passes over but in an accuracy test."""
        response = self._lg.QuerySampleResponse
        return [response(each, 0, 0) for each in ids]

    def _answer_nothing(self, ids: list[int]) -> None:
        self._lg.QuerySamplesComplete(self._empty(ids))

    def _break(self, error: BaseException) -> None:
        turn = self._turn
        turn.failure = turn.failure or error
        turn.broken = True

    # Without LoadGen ----------------------------------------------------------------------------------

    def watched(self, what: str, work: Callable[[], float]) -> float:
        """A measurement without LoadGen, in a thread of its own. Raises what breaks, and RunError where no answer comes."""
        turn = self._turn = Turn(moved_at=time.perf_counter())
        found: list[float] = []

        def run() -> None:
            try:
                found.append(work())
            except BaseException as error:
                turn.failure = error
            turn.done.set()

        threading.Thread(target=run, name="forebay-probe", daemon=True).start()
        try:
            patience = Patience()
            while not turn.done.wait(LOOK_S):
                if patience.waited_s(turn.moved_at) > self.timeout_s:
                    reported = f"a batch of {what} has had no answer for {seconds(self.timeout_s)}"
                    next = "a longer --query-timeout; a smaller --batch-size; or another --path"
                    raise RunError("the system under test", reported, next)
        finally:
            self.abandoned = not turn.done.wait(ENDS_S if not turn.done.is_set() else 0)
        if turn.failure is not None:
            raise turn.failure
        return found[0]

    def peak_s(self, least_s: float) -> float:
        """Samples a second of the model alone, on a batch that lies in its memory already."""
        rows = self.library.rows(self.library.ask([n % self.library.count for n in range(self.batch)]))
        rows = rows.clone() if hasattr(rows, "clone") else rows.copy()
        launched: deque[Any] = deque()
        for warm in (True, False):
            began, done = time.perf_counter(), 0
            while time.perf_counter() - began < (least_s / 4 if warm else least_s) or done < self.batch:
                launched.append(self.model.launch(rows))
                if len(launched) == COMPUTED_AHEAD:
                    done += self._finished(launched.popleft())
            took = time.perf_counter() - began
            while launched:
                self._finished(launched.popleft())
        return done / took

    def _finished(self, launched: Any) -> int:
        """Samples of a batch, once it is answered."""
        count = len(self.model.finish(launched))
        self._turn.moved_at = time.perf_counter()
        return count

    def query_s(self, samples: int, least_s: float, most: int = 200) -> float:
        """The median time of a query of so many samples, over a moment. Raises what breaks."""
        took: list[float] = []
        until = time.perf_counter() + least_s
        while len(took) < 3 or (len(took) < most and time.perf_counter() < until):
            numbers = [(len(took) * samples + n) % self.library.count for n in range(samples)]
            began = time.perf_counter()
            self._finished(self.model.launch(self.library.rows(self.library.ask(numbers))))
            took.append(time.perf_counter() - began)
        return sorted(took)[len(took) // 2]

    def alone_s(self, part: str, enough_s: float, most: int = 3) -> float:
        """The least time of a query by itself, of a few unless one was short enough: to its answer, to its first token, or of
        each later one. Raises what breaks."""
        best = float("inf")
        for number in range(most):
            began = time.perf_counter()
            rows = self.library.rows(self.library.ask([number % self.library.count]))
            if part == ANSWER:
                self._finished(self.model.launch(rows))
            else:
                self.model.admit(0, rows)
            steps = min(LATER_TOKENS, self.tokens - 1) if part == LATER else 1
            if part == LATER:
                began = time.perf_counter()
                for _ in range(steps):
                    self.model.step()
                self.model.answer([0])
            best = min(best, (time.perf_counter() - began) / steps)
            self._turn.moved_at = time.perf_counter()
            if best <= enough_s:
                break
        return best

    def samples_s(self, least_s: float) -> float:
        """Samples a second in full batches, fetched and computed ahead as in a test: of the best quarter, as other work on the
        machine only slows one. Raises what breaks."""
        best = 0.0
        for warm in (True, False):
            asked: deque[Any] = deque()
            launched: deque[Any] = deque()
            began, done, at = time.perf_counter(), 0, 0
            part_began, part_done = began, 0
            while True:
                while len(asked) < AHEAD:
                    asked.append(self.library.ask([(at + n) % self.library.count for n in range(self.batch)]))
                    at += self.batch
                launched.append(self.model.launch(self.library.rows(asked.popleft())))
                if len(launched) == COMPUTED_AHEAD:
                    done += len(self._empty(list(range(self._finished(launched.popleft())))))
                now = time.perf_counter()
                if not warm and done >= part_done + 4 * self.batch and now - part_began >= least_s / 4:
                    best = max(best, (done - part_done) / (now - part_began))
                    part_began, part_done = now, done
                if now - began >= (least_s / 4 if warm else least_s) and done >= 2 * self.batch:
                    break
            whole_rate = done / (now - began)
            for each in launched:
                self._finished(each)
            for each in asked:
                self.library.rows(each)
        return max(best, whole_rate)


class Taken:
    """Batches out of the queue of queries: whatever has arrived, up to a batch; a long query is cut."""

    def __init__(self, queue: SimpleQueue[tuple[list[int], list[int]] | None], batch: int) -> None:
        self._queue, self._batch = queue, batch
        self._ids: list[int] = []
        self._numbers: list[int] = []
        self._at = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def more(self) -> bool:
        """True where something has arrived."""
        return self._at < len(self._ids) or (not self._closed and self._queue.qsize() > 0)

    def next(self, wait: bool) -> tuple[list[int], list[int]] | None:
        """The next batch; None where nothing has arrived, or with `wait` where nothing will."""
        if self._at >= len(self._ids):
            if self._closed or (not wait and self._queue.qsize() == 0):
                return None
            first = self._queue.get()
            if first is None:
                self._closed = True
                return None
            self._ids, self._numbers = first
            self._at = 0
            if len(self._ids) < self._batch and self._queue.qsize():
                self._ids, self._numbers = list(self._ids), list(self._numbers)
                while len(self._ids) < self._batch and self._queue.qsize():
                    more = self._queue.get()
                    if more is None:
                        self._closed = True
                        break
                    self._ids += more[0]
                    self._numbers += more[1]
        begin, end = self._at, self._at + self._batch
        self._at = end
        if begin == 0 and end >= len(self._ids):
            return self._ids, self._numbers
        return self._ids[begin:end], self._numbers[begin:end]


def log_settings(lg: Any, folder: Path) -> Any:
    output = lg.LogOutputSettings()
    output.outdir = str(folder)
    output.copy_summary_to_stdout = False
    made = lg.LogSettings()
    made.log_output = output
    made.enable_trace = False
    return made


def device_bytes() -> int | None:
    """Bytes that this process has read from block devices so far; None where the kernel doesn't count them."""
    try:
        with open("/proc/self/io") as file:
            found = dict(line.split(":", 1) for line in file)
        return int(found["read_bytes"])
    except (OSError, KeyError, ValueError):
        return None


def failure_of(error: BaseException | None) -> ForebayError | None:
    if error is None or isinstance(error, ForebayError):
        return error
    return RunError("the system under test", f"{type(error).__name__}: {error}"[:300], "another --seed; or --device cpu")
