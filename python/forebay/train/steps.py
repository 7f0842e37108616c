"""Steps of a model of PyTorch on a device that works on its own: those in flight, their times by its clock, its memory's end.

A model is a subclass: it has a `name`, an `optimizer` and `_step`, and what `forebay.train.run.Model` asks beside them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from forebay.errors import RunError
from forebay.numbers import whole
from forebay.train.ranks import ranks_of
from forebay.train.run import Meter as OfTheHost
from forebay.train.run import odd_numbers

# Steps that are given to the GPU before the first of them is done: it never waits for Python, nor Python far ahead of it.
IN_FLIGHT = 2


class Meter:
    """Times of a GPU, by its own clock: computing steps, idle between them, and idle while a batch was waited for."""

    idle_reason: str | None = None

    def __init__(self) -> None:
        self.busy_s = self.waited_s = self.idle_s = 0.0
        self._before: Any = None

    @property
    def idle_pct(self) -> float | None:
        total = self.busy_s + self.idle_s
        return 100 * self.idle_s / total if total else None

    def step(self, model: Steps, rows: Any, waited_s: float) -> None:
        model.timed(rows, waited_s, self.done)

    def done(self, begin: Any, end: Any, waited_s: float) -> None:
        self.busy_s += begin.elapsed_time(end) / 1e3
        if self._before is not None:
            idle = max(0.0, self._before.elapsed_time(begin) / 1e3)
            self.idle_s += idle
            self.waited_s += min(idle, waited_s)
        self._before = end

    def restart(self) -> None:
        self.busy_s = self.waited_s = self.idle_s = 0.0
        self._before = None

    def pause(self) -> None:
        """A pause of training: the gap after it isn't counted as idle."""
        self._before = None


class Steps:
    """Trains on batches of rows: (n, words) of 32 bits in the device's memory."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self.device = torch, device
        self.queued = device != "cpu"
        if self.queued:
            # Streams, events, graphs and kernels of Triton are those of the current one.
            torch.cuda.set_device(device)
        self._flight: deque[Any] = deque()
        self._odd: Any = None

    _net: Any

    def _step(self, rows: Any) -> None:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The network's tensors by name, where they are."""
        found: dict[str, Any] = self._net.state_dict()
        return found

    def meter(self) -> Any:
        return Meter() if self.queued else OfTheHost()

    def wait(self) -> None:
        """Every step is done when it returns."""
        while self._flight:
            self._land()
        if self.queued:
            self._wait_for_all()

    def hold_back(self) -> None:
        """Waits until no more than `IN_FLIGHT` steps aren't done."""
        event = self._torch.cuda.Event(blocking=True)
        event.record()
        self._flight.append((None, event, 0.0, None))
        while len(self._flight) > IN_FLIGHT:
            self._land()

    def timed(self, rows: Any, waited_s: float, done: Any) -> None:
        """A step between two marks of the GPU's clock, which `done` gets once it has passed both."""
        # Waited for asleep: the processor is the loader's.
        begin, end = (self._torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        begin.record()
        self.step(rows)
        end.record()
        self._flight.append((begin, end, waited_s, done))
        while len(self._flight) > IN_FLIGHT:
            self._land()

    def _wait_for_all(self) -> None:
        self._torch.cuda.synchronize(self.device)

    def _wait_for(self, event: Any) -> None:
        event.synchronize()

    def _land(self) -> None:
        begin, end, waited_s, done = self._flight.popleft()
        self._wait_for(end)
        if done is not None:
            done(begin, end, waited_s)

    def step(self, rows: Any) -> None:
        """One step of the optimizer. Rows that can't be read count as wrong, and are read as what can be. Raises RunError."""
        # The flag is of all ranks.
        batch = len(rows) * ranks_of(self).world
        what, next = f"a step of {whole(len(rows))} samples", f"--batch-size {max(1, batch // 2)}"
        with self._in_memory(what, f"--batch-size {batch}", next):
            self._step(rows)

    @contextlib.contextmanager
    def _in_memory(self, what: str, asked: str, next: str) -> Iterator[None]:
        """Raises RunError where the GPU's memory doesn't suffice."""
        try:
            yield
        except self._torch.OutOfMemoryError as error:
            found = f"{what} takes more memory than the GPU has ({str(error).split('. ')[0]})"
            raise RunError(asked, found, next) from None

    def _evaluating(self, samples: int) -> contextlib.AbstractContextManager[None]:
        next = "a smaller --batch-size, whose steps leave more; or no target, for speed alone"
        return self._in_memory(f"evaluating {whole(samples)} samples at a time", "an evaluation", next)

    def digest(self, rows: Any, position: int) -> Any:
        """As `run.digest`, on the device."""
        torch = self._torch
        words = rows.contiguous().view(torch.int64)
        if self._odd is None:
            self._odd = torch.as_tensor(odd_numbers(words.shape[1]), device=self.device)
        place = torch.arange(position, position + len(rows), device=self.device) * 2 + 1
        return ((words * self._odd).sum(1) * place).sum()
