"""R-GAT in PyTorch: a sampler of neighbours on the model's device, relational attention in plain operators, and their steps.

A batch's nodes stand in the order in which they were met: the batch's own, then those of each hop that are new. A layer
needs only the nodes of the hops that the layers above it look at, which are the first ones. Each layer has one weight for
each relation, attention over a node's neighbours of one relation, and the relation of each node to itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.errors import MachineError, RunError
from forebay.model_runs import torch_or_say
from forebay.numbers import bytes_, whole
from forebay.train import dlrm, graph
from forebay.train.run import NO_NUMBER

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

HIDDEN, HEADS, FAN_OUT, BATCH = 512, 4, (4, 3, 1), 1024
LEARNING_RATE = 0.001
SLOPE = 0.2
# Odd factors of the sampler's draws and the hash.
FACTORS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB, 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D)
WRAP = 1 << 64
# Steps of evaluations begin there: no step of training draws as they do.
EVALUATIONS_FROM = 1 << 40


def signed(number: int) -> int:
    """The number modulo 2^64, as 64 bits with a sign have it."""
    number %= WRAP
    return number - WRAP if number >= WRAP // 2 else number


@dataclass
class Batch:
    """Nodes of a batch and the edges among them. `upto`: nodes of it and of the first hops; `edges`: of each hop and relation,
    (from, to) as places in `nodes`; `x`: a row of features for each node."""

    nodes: Any
    upto: list[int]
    edges: list[list[tuple[Any, Any]]]
    labels: Any
    x: Any = None

    def __len__(self) -> int:
        return self.upto[0]


class Sampler:
    """Neighbours drawn on the device: a node's by each relation, so many at a hop, none twice."""

    def __init__(
        self, label: Array, relations: Sequence[tuple[Array, Array]], device: str, fan_out: Sequence[int], seed: int
    ) -> None:
        torch = self._torch = torch_or_say("train gnn")
        self.device, self.fan_out, self._seed = device, tuple(fan_out), seed
        self._labels = torch.as_tensor(label, dtype=torch.int64).to(device)
        self._relations = [tuple(torch.as_tensor(part).to(device) for part in relation) for relation in relations]
        # Where in the batch a node stands, while one is made.
        self._place = torch.full((len(label),), -1, dtype=torch.int32, device=device)

    def sample(self, batch: Any, step: int) -> Batch:
        """The neighbourhood of distinct nodes; a seed and a step decide it, whatever the device."""
        torch = self._torch
        place, upto, nodes, edges = self._place, [len(batch)], [batch], []
        place[batch] = torch.arange(len(batch), dtype=torch.int32, device=self.device)
        frontier, base = batch, 0
        for hop, fan_out in enumerate(self.fan_out):
            found = [self._neighbours(r, frontier, base, fan_out, step, hop) for r in range(len(self._relations))]
            met = torch.cat([source for source, _ in found])
            new = torch.unique(met[place[met] < 0])
            place[new] = torch.arange(upto[-1], upto[-1] + len(new), dtype=torch.int32, device=self.device)
            edges.append([(place[source].long(), to) for source, to in found])
            base, frontier = upto[-1], new
            upto.append(base + len(new))
            nodes.append(new)
        all_ = torch.cat(nodes)
        place[all_] = -1
        return Batch(all_, upto, edges, self._labels[batch])

    def _neighbours(self, relation: int, nodes: Any, base: int, fan_out: int, step: int, hop: int) -> tuple[Any, Any]:
        """Numbers of neighbours, and the places of the nodes whose neighbours they are. One is drawn of each of as many equal
        parts of a node's neighbours; all are taken of a node that has no more."""
        torch = self._torch
        begins, neighbours = self._relations[relation]
        begin = begins[nodes]
        degree = begins[nodes + 1] - begin
        turn = torch.arange(fan_out, device=self.device)
        salt = signed(step * FACTORS[1] + hop * FACTORS[2] + relation * FACTORS[3] + self._seed * FACTORS[4])
        words, wide = nodes[:, None] * FACTORS[0] + salt, degree[:, None]
        first = turn * wide // fan_out
        part = first + (self._draws(words + (turn + 1) * FACTORS[2]) * ((turn + 1) * wide // fan_out - first)).long()
        # Turned by as much as chance says, so that every neighbour is as likely.
        part = (part + (self._draws(words) * wide).long()) % wide.clamp(min=1)
        pick = torch.where(wide <= fan_out, turn, part) + begin[:, None]
        there = (turn < wide).flatten()
        to = torch.arange(base, base + len(nodes), device=self.device).repeat_interleave(fan_out)
        kept = there.nonzero()[:, 0]
        return neighbours[pick.flatten()[kept]].long(), to[kept]

    def _draws(self, words: Any) -> Any:
        """Numbers from 0 up to 1, a hash of each word."""
        words = words ^ ((words >> 31) & 0x1FFFFFFFF)
        words = words * FACTORS[1]
        words = words ^ ((words >> 29) & 0x7FFFFFFFF)
        words = words * FACTORS[2]
        return ((words >> 40) & 0xFFFFFF).double() / (1 << 24)


def layer(torch: Any, inputs: int, width: int, relations: int, heads: int) -> Any:
    """A layer of relational attention: within each relation, additive, of several heads side by side."""
    nn = torch.nn

    class Layer(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(relations, inputs, heads * width))
            self.q = nn.Parameter(torch.empty(heads * width, heads))
            self.k = nn.Parameter(torch.empty(heads * width, heads))
            self.bias = nn.Parameter(torch.zeros(heads * width))
            for parameter in (self.weight, self.q, self.k):
                nn.init.xavier_uniform_(parameter)

        def forward(self, x: Any, edges: Sequence[tuple[Any, Any]], count: int) -> Any:
            """`edges` of each relation: (from, to), places in x; `count`: the first nodes, which alone get a result."""
            out = torch.zeros(count, heads, width, device=x.device)
            for relation, (source, to) in enumerate(edges):
                if not len(source):
                    continue
                weight = self.weight[relation]
                message = x[source] @ weight
                # What a node asks is linear in its row, so that no row is turned twice.
                asks = (x[:count] @ (weight @ self.q)).float()
                alpha = nn.functional.leaky_relu(asks[to] + (message @ self.k).float(), SLOPE)
                share = _softmax(torch, alpha, to, count)
                parts = message.float().view(-1, heads, width) * share[:, :, None]
                out = out.index_add(0, to, parts)
            return out.view(count, -1) + self.bias

    return Layer()


def _softmax(torch: Any, values: Any, to: Any, count: int) -> Any:
    """Of the values that lead to one node, each head by itself."""
    index = to[:, None].expand_as(values)
    most = torch.full((count, values.shape[1]), float("-inf"), device=values.device)
    most = most.scatter_reduce(0, index, values.detach(), "amax")
    raised = torch.exp(values - most[to])
    total = torch.zeros((count, values.shape[1]), device=values.device).index_add(0, to, raised)
    return raised / total[to]


def network(torch: Any, hidden: int, heads: int, relations: int, hops: int, classes: int) -> Any:
    """So many layers, and a linear one to the classes."""
    nn = torch.nn

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            sizes = [graph.WIDTH, *[hidden] * (hops - 1)]
            self.layers = nn.ModuleList(layer(torch, size, hidden // heads, relations + 1, heads) for size in sizes)
            self.last = nn.Linear(hidden, classes)

        def forward(self, batch: Batch) -> Any:
            x, hops = batch.x, len(self.layers)
            for number, each in enumerate(self.layers):
                count = batch.upto[hops - 1 - number]
                own = torch.arange(count, device=x.device)
                seen = batch.edges[: hops - number]
                edges = [
                    tuple(torch.cat([hop[r][side] for hop in seen]) for side in (0, 1)) for r in range(len(batch.edges[0]))
                ]
                x = nn.functional.leaky_relu(each(x, [*edges, (own, own)], count), SLOPE)
            return self.last(x)

    return Network()


class Model(dlrm.Model):
    """Trains on batches of a sampler's, with features. How steps are queued on a GPU is as DLRM's."""

    name = "gnn"

    def __init__(
        self, classes: int, seed: int, device: str, learning_rate: float, hidden: int, hops: int, relations: int = graph.RELATIONS
    ) -> None:
        self._sizes = (hidden, HEADS, relations, hops, classes)
        super().__init__((), seed, device, learning_rate, dlrm.TORCH)

    def _refuse_too_much(self) -> None:
        """A network is small; what its batches take is found out when they are trained on."""

    def _make(self) -> None:
        torch = self._torch
        self._net: Any = network(torch, *self._sizes).to(self.device)
        self._optimizer: Any = None
        self._wrong = torch.zeros((), dtype=torch.int64, device=self.device)

    def reset(self) -> None:
        """Weights of the seed, as before the first step."""
        torch = self._torch
        torch.manual_seed(self.seed)
        fresh = dict(network(torch, *self._sizes).named_parameters())
        with torch.no_grad():
            for name, parameter in self._net.named_parameters():
                parameter.copy_(fresh[name])
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=self.rate)
        self._wrong.zero_()
        self.loss = torch.zeros((), device=self.device)

    def close(self) -> None:
        """Gives the device's memory back."""
        self.wait()
        self._net = self._optimizer = None
        if self.queued:
            self._torch.cuda.empty_cache()

    def _logits(self, batch: Batch) -> Any:
        torch = self._torch
        if not self.queued:
            batch.x = batch.x.float()
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half):
            return self._net(batch).float()

    def _step(self, rows: Batch) -> None:
        torch = self._torch
        self._optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self._logits(rows), rows.labels)
        loss.backward()
        self._optimizer.step()
        self.loss = loss.detach()
        self._wrong += (~torch.isfinite(self.loss)).long()

    def problem(self) -> str | None:
        found = int(self._wrong)
        self._wrong.zero_()
        return NO_NUMBER if found else None

    def right(self, batch: Batch) -> int:
        """Number of a batch's nodes that it puts into their class."""
        with self._torch.no_grad():
            return int((self._logits(batch).argmax(1) == batch.labels).sum())

    def digest(self, rows: Batch, position: int) -> Any:
        """A hash of a batch's nodes, of all words of their features and of its edges, at its place in the run."""
        torch = self._torch
        words = rows.x.view(torch.int64).sum(1) + rows.nodes * FACTORS[0]
        place = torch.arange(len(words), device=words.device) * 2 + 1
        total = (words * place).sum()
        for hop in rows.edges:
            for number, (source, to) in enumerate(hop):
                total = total + ((source * FACTORS[1] + to * FACTORS[2]) * (2 * number + 1)).sum()
        return total * (2 * position + 1)


class Features:
    """Rows of features by their nodes' numbers, in the device's memory: all of them, or so many of the first, over and over."""

    def __init__(self, table: Any, count: int) -> None:
        self._table, self._wraps = table, len(table) < count

    def rows(self, nodes: Any) -> Any:
        return self._table.index_select(0, nodes % len(self._table) if self._wraps else nodes)


class Gathered:
    """The same out of their file: each batch fetches the rows of its own distinct nodes."""

    def __init__(self, torch: Any, file: Any, device: str) -> None:
        self._torch, self._file, self._device = torch, file, device
        self.reports: dict[str, int] = {"direct": 0, "mapped": 0, "staged": 0}
        self.bytes = self.calls = 0

    def rows(self, nodes: Any) -> Any:
        out = self._torch.empty((len(nodes), graph.WIDTH), dtype=self._torch.float16, device=self._device)
        self._file.gather(nodes if self._device != "cpu" else nodes.numpy(), graph.ROW_BYTES, out)
        self.note(self._file.last_report)
        self.calls += 1
        return out

    def note(self, report: Any) -> None:
        self.bytes += report.bytes
        for way in self.reports:
            self.reports[way] += getattr(report, f"{way}_bytes")


class Batches:
    """Batches of an epoch's nodes after another, each with its features; ends nowhere. On a GPU they are made on a stream of
    their own, beside the steps before them."""

    def __init__(
        self, sampler: Sampler, order: Callable[[int, int], Array], count: int, size: int, features: Any, pace: Any = None
    ) -> None:
        self._sampler, self._order, self._count, self._size = sampler, order, count, size
        self.features, self._pace = features, pace
        self._torch, self._at, self._step = torch_or_say("train gnn"), 0, 0
        self._stream = None
        if sampler.device != "cpu":
            # Whatever other streams have to do with the sampler is done.
            self._torch.cuda.synchronize()
            self._stream = self._torch.cuda.Stream()
        # Of the batches that were taken.
        self.rows = 0
        self.first: Callable[[], None] | None = None

    def take(self) -> Batch:
        """The next batch; an epoch's last one is left out where it isn't full."""
        if self._at + self._size > self._count:
            self._at = 0
        nodes = self._order(self._at, self._size)
        self._at += self._size
        self._step += 1
        batch = self.made(nodes, self._step)
        if self._pace is not None:
            self._pace.hold(len(batch.nodes) * graph.ROW_BYTES)
        self.rows += len(batch.nodes)
        if self.first is not None:
            self.first()
            self.first = None
        return batch

    def made(self, nodes: Array, step: int) -> Batch:
        """A batch of these nodes. Raises RunError where the memory ends."""
        torch = self._torch
        try:
            with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                batch = self._make(nodes, step)
        except torch.OutOfMemoryError as error:
            said = str(error).split(". ")[0]
            found = f"the neighbourhood of {whole(len(nodes))} nodes takes more memory than there is ({said})"
            next = f"--batch-size {max(1, len(nodes) // 2)}; or a smaller --fan-out"
            raise RunError(f"--batch-size {len(nodes)}", found, next) from None
        if self._stream is not None:
            main = torch.cuda.current_stream()
            main.wait_stream(self._stream)
            for tensor in (batch.nodes, batch.labels, batch.x, *(part for hop in batch.edges for pair in hop for part in pair)):
                tensor.record_stream(main)
        return batch

    def _make(self, nodes: Array, step: int) -> Batch:
        batch = self._sampler.sample(self._torch.as_tensor(nodes).to(self._sampler.device), step)
        batch.x = self.features.rows(batch.nodes)
        return batch


def accuracy(model: Model, batches: Batches, nodes: Array, size: int) -> float:
    """The share of these nodes that the model puts into their class."""
    right = 0
    for number, at in enumerate(range(0, len(nodes), size)):
        right += model.right(batches.made(nodes[at : at + size], EVALUATIONS_FROM + number))
    return right / len(nodes)


def refuse_too_large(about: graph.About, device: str, torch: Any) -> None:
    """Raises MachineError where features don't fit into the memory that a bulk load puts them in."""
    from forebay.model_runs import available_bytes

    free = torch.cuda.mem_get_info(device)[0] if device != "cpu" else available_bytes()
    if about.feature_bytes > 0.7 * free:
        found = f"features of {whole(about.table_rows)} nodes are {bytes_(about.feature_bytes)}; {bytes_(free)} are free"
        raise MachineError("--way bulk", found, "--way gather, which leaves them in their file")
