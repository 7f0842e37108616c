"""Models of PyTorch on several ranks, each of which has a share of every batch: waits that end where a rank is lost, and the
whole network on each, with gradients averaged over all of them by PyTorch's DistributedDataParallel.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from forebay.numbers import whole
from forebay.train import forms, models, samples
from forebay.train.run import NO_NUMBER
from forebay.train.steps import Steps

if TYPE_CHECKING:
    from forebay.train.ranks import Alone

# Between two looks at a GPU's queue.
POLL_S = 0.0001


class OnRanks(Steps):
    """Steps that wait for other ranks' parts as long as those can come."""

    ranks: Alone

    def close(self) -> None:
        if not self.ranks.lost:
            super().close()  # type: ignore[misc]

    def wait(self) -> None:
        # What a lost rank should have sent is waited for for ever.
        if self.ranks.lost:
            self._flight.clear()
        else:
            super().wait()

    def _wait_for_all(self) -> None:
        event = self._torch.cuda.Event()
        event.record()
        self._wait_for(event)

    def _wait_for(self, event: Any) -> None:
        """Waits as long as the others can be there: no signal ends a wait within CUDA."""
        began = time.monotonic()
        while not event.query():
            self.ranks.watch(began)
            time.sleep(POLL_S)


class Model(OnRanks, models.Model):
    """Trains on this rank's share of each batch; every rank has to take the same steps."""

    def __init__(
        self, ranks: Alone, form: forms.Form, seed: int, device: str, learning_rate: float | None = None, compiled: bool = False
    ) -> None:
        self.ranks = ranks
        super().__init__(form, seed, device, learning_rate, compiled)
        self.reported |= {"ranks": ranks.world}

    def _called(self, compiled: bool) -> Any:
        torch = self._torch
        made = torch.nn.parallel.DistributedDataParallel(self._net, device_ids=[self.device] if self.queued else None)
        return torch.compile(made, dynamic=False) if compiled else made

    def _draw_seed(self) -> int:
        # Ranks that drew alike would have the same noise on different samples.
        return self.seed * self.ranks.world + self.ranks.rank

    def _loss(self, fields: dict[str, Any]) -> Any:
        # Of a GPU nothing fails here: what was queued does, later.
        if self.queued:
            return super()._loss(fields)
        return self.ranks.collective(lambda: super(Model, self)._loss(fields))

    def quality_of(self, rows: Any) -> float:
        """That of the first rank, whose averages of a batch's statistics go to the others."""
        return self.ranks.gather(super().quality_of(rows))[0]

    def problem(self) -> str | None:
        """As of the base, of all ranks."""
        wrong, losses = self.ranks.sum(self._wrong.tolist())
        self._wrong.zero_()
        if wrong:
            own = None if self._last is None else samples.faults(self.form, self._last.numpy())
            reported = next((each for each in self.ranks.gather(own) if each), None)
            return reported or f"of the last steps' rows {whole(wrong)} numbers can't be read"
        return NO_NUMBER if losses else None
