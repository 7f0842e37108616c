"""DLRMv2 on several ranks: each table lies on one of them, and the dense layers on all, each with its share of a batch.

A step sends each sample's look-ups to the ranks that have their tables, which send back the sums of a bag's vectors; going
back, the sums' gradients take the same way. A table's owner so has the gradients of the whole batch, in the order of one
process, and updates its rows as that would. Gradients of dense layers are added up over the ranks, of the mean loss of all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forebay.numbers import whole
from forebay.train import data, dlrm
from forebay.train.parallel import OnRanks
from forebay.train.ranks import shares
from forebay.train.run import NO_NUMBER

if TYPE_CHECKING:
    import numpy

    from forebay.train.ranks import Alone

    Array = numpy.ndarray[Any, Any]


class Exchange:
    """Look-ups to the owners of their tables, and vectors to the samples, with as many samples on each rank."""

    def __init__(self, torch: Any, ranks: Alone, parts: Sequence[Sequence[int]], device: str) -> None:
        self._torch, self._dist = torch, torch.distributed
        self.world, self.own = ranks.world, parts[ranks.rank]
        # Of a GPU nothing fails here: what was queued does, later.
        self.does = ranks.collective if device == "cpu" else lambda work: work()
        starts = data.starts(data.LOOKUPS)

        def long(values: Any) -> Any:
            return torch.as_tensor(list(values), dtype=torch.int64, device=device)

        self._features = [long(part) for part in parts]
        columns = [[starts[f] + n for f in part for n in range(data.LOOKUPS[f])] for part in parts]
        self._columns = [long(data.FIRST_LOOKUP + n for n in each) for each in columns]
        # Look-ups of a sample in the tables of this rank.
        self.lookups = len(columns[ranks.rank])

    def to_owners(self, rows: Any) -> Any:
        """Look-ups of all ranks' samples, rank by rank, in the tables that lie here."""
        sent = [rows.index_select(1, columns) for columns in self._columns]
        (found,) = self._turned(sent, [self.lookups], len(rows) * self.world)
        return found

    def to_samples(self, sums: Any, ahead: int = 0) -> Any:
        """The vectors of all features of this rank's samples, behind room for `ahead` vectors of each."""
        torch, n = self._torch, len(sums) // self.world
        found = self._turned(list(sums.split(n)), [len(part) * dlrm.WIDTH for part in self._features], n)
        made = torch.empty(n, ahead + len(data.LOOKUPS), dlrm.WIDTH, dtype=sums.dtype, device=sums.device)
        for features, vectors in zip(self._features, found, strict=True):
            made.index_copy_(1, features + ahead, vectors.view(n, -1, dlrm.WIDTH))
        return made.view(n, -1)

    def to_tables(self, gradients: Any, ahead: int = 0) -> Any:
        """Gradients of the sums of all ranks' samples in the tables that lie here, from those of this rank's samples."""
        split = gradients.view(len(gradients), -1, dlrm.WIDTH)
        sent = [split.index_select(1, features + ahead) for features in self._features]
        (found,) = self._turned(sent, [len(self.own) * dlrm.WIDTH], len(gradients) * self.world)
        return found

    def sums(self, values: Sequence[Any]) -> list[Any]:
        """Each tensor's sum over the ranks, in one exchange."""
        flat = self._torch.cat([each.reshape(-1) for each in values])
        self.does(lambda: self._dist.all_reduce(flat))
        return [one.view(each.shape) for one, each in zip(flat.split([each.numel() for each in values]), values, strict=True)]

    def _turned(self, sent: Sequence[Any], widths: Sequence[int], rows: int) -> list[Any]:
        """What all ranks sent to this one: one tensor of so many rows for each of the widths."""
        flat = self._torch.cat([each.reshape(-1) for each in sent])
        sizes = [rows * width for width in widths]
        got = self._torch.empty(sum(sizes), dtype=flat.dtype, device=flat.device)
        each = sizes if len(sizes) == self.world else [sizes[0] // self.world] * self.world
        self.does(lambda: self._dist.all_to_all_single(got, flat, each, [one.numel() for one in sent]))
        return [one.view(rows, -1) for one in got.split(sizes)]


class Model(OnRanks, dlrm.Model):
    """Trains on this rank's share of each batch; every rank has to take the same steps."""

    def __init__(
        self,
        ranks: Alone,
        counts: Sequence[int],
        seed: int,
        device: str,
        learning_rate: float = dlrm.LEARNING_RATE,
        optimizer: str | None = None,
        half: bool = True,
    ) -> None:
        self.ranks = ranks
        self.parts = shares(list(data.LOOKUPS), list(counts), ranks.world)
        super().__init__(counts, seed, device, learning_rate, optimizer, half)
        self.reported = {"ranks": ranks.world, "tables": self.parts}

    def _features(self) -> Sequence[int]:
        return self.parts[self.ranks.rank]

    def _make(self) -> None:
        self._exchange = Exchange(self._torch, self.ranks, self.parts, self.device)
        super()._make()

    def _step(self, rows: Any) -> None:
        if self._fused is not None:
            self.loss = self._fused(rows)
            return
        torch, net, exchange = self._torch, self._net, self._exchange
        labels, dense = rows[:, data.LABEL], rows[:, data.FIRST_DENSE : data.FIRST_LOOKUP].view(torch.float32)
        lookups = exchange.to_owners(rows)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        sums = net.vectors(*self._numbers(lookups)).view(len(lookups), -1)
        added = exchange.to_samples(sums.detach()).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half):
            logit = net.above(dense, added).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, labels.float()) / self.ranks.world
        loss.backward()
        sums.backward(exchange.to_tables(added.grad))
        weights = [p for name, p in net.named_parameters() if name != "vectors.weight"]
        *gradients, self.loss = exchange.sums([*(p.grad for p in weights), loss.detach()])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        for optimizer in self._optimizers:
            optimizer.step()
        beyond = ((lookups < 0) | (lookups >= self._limit)).sum()
        self._wrong += torch.stack([beyond, (labels >> 1 != 0).sum(), (~torch.isfinite(loss)).long()])
        self._last = rows if not self.queued else None

    def problem(self) -> str | None:
        """As of the base, of all ranks."""
        beyond, labels, losses = self.ranks.sum(self._wrong.tolist())
        self._wrong.zero_()
        if beyond or labels:
            own = None if self._last is None else data.faults(self._last.numpy(), self.counts)
            reported = next((each for each in self.ranks.gather(own) if each), None)
            found = f"{whole(beyond)} look-ups are beyond their table, {whole(labels)} labels neither 0 nor 1"
            return reported or f"of the last steps' rows {found}"
        return NO_NUMBER if losses else None

    def _logit(self, rows: Any) -> Any:
        torch, exchange = self._torch, self._exchange
        dense = rows[:, data.FIRST_DENSE : data.FIRST_LOOKUP].view(torch.float32)
        lookups = exchange.to_owners(rows)
        sums = self._net.vectors(*self._numbers(lookups)).view(len(lookups), -1)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half):
            return self._net.above(dense, exchange.to_samples(sums)).float()

    def scores(self, rows: Any) -> Array:
        """Of all rows, which every rank has; each works out its share of them."""
        torch, found = self._torch, []
        with torch.no_grad(), self._evaluating(dlrm.SCORED):
            for at in range(0, len(rows), dlrm.SCORED * self.ranks.world):
                some = rows[at : at + dlrm.SCORED * self.ranks.world]
                each = -(-len(some) // self.ranks.world)
                mine = torch.arange(each * self.ranks.rank, each * (self.ranks.rank + 1)).clamp(max=len(some) - 1)
                own = torch.sigmoid(self._logit(torch.as_tensor(some)[mine].to(self.device)))
                all_ = torch.empty(each * self.ranks.world, dtype=own.dtype, device=own.device)
                self._exchange.does(functools.partial(torch.distributed.all_gather_into_tensor, all_, own))
                found.append(all_[: len(some)].cpu())
        scores: Array = torch.cat(found).numpy()
        return scores
