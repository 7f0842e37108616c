"""A step of DLRMv2 on a GPU: look-ups and their Adagrad in Triton, and the whole step replayed as one CUDA graph.

Exact: the gradient of a look-up is that of its bag's vector, so no gradient of a look-up is ever written down. The row
numbers of a step are sorted; each run of equal ones is one row, whose gradients are added up before Adagrad takes them
once. A row that is looked up often (a table of three rows is looked up by every sample) is added up in tiles. Shapes are
those of the batch, whatever was looked up: the host waits for nothing, and the sort runs beside the dense layers.
"""

# Triton reads the annotations of its kernels: no "from __future__ import annotations" here.
from collections.abc import Sequence
from typing import Any

from forebay.errors import MachineError
from forebay.train import data

try:
    import torch
    import triton
    import triton.language as tl
except ImportError as error:
    found = f"PyTorch and Triton can't be imported: {error}"
    raise MachineError("forebay.train.fused", found, "pip install torch triton; or --optimizer torch") from None

EPSILON = 1e-10
# Equal row numbers beyond which a row is added up in tiles. What a program has in hand at once of those, and of the rows
# of fewer, of one warp each: tiles of 32 spill its registers (twice the time), fewer heads leave the memory idle.
LONG, TILE, HEADS = 16, 8, 4
# Steps of one batch size before its graph is captured: kernels are compiled then, and libraries set up.
EAGER = 2
BLOCK = 1024
# Rows of a program of the digest.
DIGESTED = 16


@triton.jit
def _keys(
    rows, offset, limit, keys, wrong, total,
    LOOKUPS: tl.constexpr, WORDS: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each look-up's row of the one table. What is beyond its own table counts as wrong, and reads that one's last row."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < total
    sample, lookup = at // LOOKUPS, at % LOOKUPS
    number = tl.load(rows + sample.to(tl.int64) * WORDS + FIRST + lookup, mask=there, other=0)
    most = tl.load(limit + lookup, mask=there, other=1)
    beyond = ((number < 0) | (number >= most)) & there
    number = tl.minimum(tl.maximum(number, 0), most - 1) + tl.load(offset + lookup, mask=there, other=0)
    tl.store(keys + at, number, mask=there)
    count = tl.sum(beyond.to(tl.int64), 0)
    if count > 0:
        tl.atomic_add(wrong, count)


@triton.jit
def _bags(
    keys, table, out, features, starts, counts, samples, stride,
    LOOKUPS: tl.constexpr, WIDTH: tl.constexpr, AHEAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One bag: the sum of its look-ups' rows, behind AHEAD vectors of its sample. Bags of a feature follow each other, so
    that its rows stay in the cache."""
    program = tl.program_id(0)
    feature = tl.load(features + program // samples)
    sample = (program % samples).to(tl.int64)
    start, count = tl.load(starts + feature), tl.load(counts + feature)
    column = tl.arange(0, WIDTH)
    total = tl.zeros([TILE, WIDTH], tl.float32)
    lookup = tl.arange(0, TILE)
    # Not a range: the interpreter on the CPU takes none that ends at what was loaded.
    while tl.min(lookup, 0) < count:
        row = tl.load(keys + sample * LOOKUPS + start + lookup, mask=lookup < count, other=0).to(tl.int64)
        total += tl.load(table + row[:, None] * WIDTH + column[None, :], mask=(lookup < count)[:, None], other=0.0)
        lookup += TILE
    tl.store(out + sample * stride + (AHEAD + feature) * WIDTH + column, tl.sum(total, 0).to(out.dtype.element_ty))


@triton.jit
def _gradient(
    order, place, there, gradients, feature_of, stride, LOOKUPS: tl.constexpr, WIDTH: tl.constexpr, AHEAD: tl.constexpr
):  # fmt: skip
    """Gradients of the look-ups at these places of the sorted row numbers: those of their bags."""
    lookup = tl.load(order + place, mask=there, other=0).to(tl.int32)
    sample = lookup // LOOKUPS
    feature = tl.load(feature_of + lookup % LOOKUPS, mask=there, other=0)
    start = sample.to(tl.int64) * stride + (AHEAD + feature) * WIDTH
    where = gradients + start[:, None] + tl.arange(0, WIDTH)[None, :]
    return tl.load(where, mask=there[:, None], other=0.0).to(tl.float32)


@triton.jit
def _step_of(table, sums, where, there, gradient, rate, epsilon):
    """Adagrad of vectors of the table, of which each is there once."""
    state = tl.load(sums + where, mask=there, other=0.0) + gradient * gradient
    tl.store(sums + where, state, mask=there)
    weight = tl.load(table + where, mask=there, other=0.0)
    tl.store(table + where, weight - rate * tl.div_rn(gradient, tl.sqrt_rn(state) + epsilon), mask=there)


@triton.jit
def _often(
    program, keys, order, gradients, table, sums, feature_of, total, stride, rate, epsilon,
    LOOKUPS: tl.constexpr, WIDTH: tl.constexpr, AHEAD: tl.constexpr, LONG: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The row of more than LONG keys that begins at one of LONG places, which hold no two of them."""
    at = program * LONG + tl.arange(0, LONG)
    key = tl.load(keys + at, mask=at < total, other=-1)
    before = tl.load(keys + at - 1, mask=(at > 0) & (at < total), other=-1)
    ahead = tl.load(keys + at + LONG, mask=at + LONG < total, other=-2)
    head = tl.max(tl.where((key != before) & (key == ahead), at, -1), 0)
    if head >= 0:
        row = tl.load(keys + head)
        gradient = tl.zeros([TILE, WIDTH], tl.float32)
        more = 1
        while more > 0:
            place = head + tl.arange(0, TILE)
            same = tl.load(keys + place, mask=place < total, other=-1) == row
            gradient += _gradient(order, place, same, gradients, feature_of, stride, LOOKUPS, WIDTH, AHEAD)
            head += TILE
            more = tl.where(tl.sum(same.to(tl.int32), 0) == TILE, 1, 0)
        column = tl.arange(0, WIDTH)
        _step_of(table, sums, row.to(tl.int64) * WIDTH + column, column < WIDTH, tl.sum(gradient, 0), rate, epsilon)


@triton.jit
def _seldom(
    program, keys, order, gradients, table, sums, feature_of, total, stride, rate, epsilon,
    LOOKUPS: tl.constexpr, WIDTH: tl.constexpr, AHEAD: tl.constexpr, LONG: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """The rows of up to LONG keys that begin at HEADS places."""
    at = program * HEADS + tl.arange(0, HEADS)
    key = tl.load(keys + at, mask=at < total, other=-1)
    before = tl.load(keys + at - 1, mask=(at > 0) & (at < total), other=-1)
    ahead = tl.load(keys + at + LONG, mask=at + LONG < total, other=-2)
    head = (key != before) & (key != ahead) & (at < total)
    gradient = tl.zeros([HEADS, WIDTH], tl.float32)
    same = head
    place = at
    more = tl.max(same.to(tl.int32), 0)
    while more > 0:
        gradient += _gradient(order, place, same, gradients, feature_of, stride, LOOKUPS, WIDTH, AHEAD)
        place += 1
        same = same & (tl.load(keys + place, mask=same & (place < total), other=-2) == key)
        more = tl.max(same.to(tl.int32), 0)
    where = key.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    _step_of(table, sums, where, head[:, None], gradient, rate, epsilon)


@triton.jit
def _update(
    keys, order, gradients, table, sums, feature_of, total, stride, rate, epsilon,
    LOOKUPS: tl.constexpr, WIDTH: tl.constexpr, AHEAD: tl.constexpr, LONG: tl.constexpr, HEADS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adagrad of each distinct row, by the program at the first of its equal keys: those of many keys first."""
    program = tl.program_id(0)
    windows = tl.cdiv(total, LONG)
    if program < windows:
        _often(
            program, keys, order, gradients, table, sums, feature_of, total, stride, rate, epsilon,
            LOOKUPS, WIDTH, AHEAD, LONG, TILE,
        )  # fmt: skip
    else:
        _seldom(
            program - windows, keys, order, gradients, table, sums, feature_of, total, stride, rate, epsilon,
            LOOKUPS, WIDTH, AHEAD, LONG, HEADS,
        )  # fmt: skip


@triton.jit
def _adagrad(weights, gradients, sums, total, rate, epsilon, BLOCK: tl.constexpr):
    """Adagrad of a dense weight."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < total
    _step_of(weights, sums, at, there, tl.load(gradients + at, mask=there, other=0.0).to(tl.float32), rate, epsilon)


@triton.jit
def _cross(first, crossed, x, out, total, BLOCK: tl.constexpr):
    """A cross layer's end: first * crossed + x."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < total
    a, b = tl.load(first + at, mask=there).to(tl.float32), tl.load(crossed + at, mask=there).to(tl.float32)
    found = a * b + tl.load(x + at, mask=there).to(tl.float32)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=there)


@triton.jit
def _cross_back(
    gradient, first, crossed, by_first, by_crossed, total, ADDS: tl.constexpr, ENDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Gradients of that by `crossed`, and by `first`, which adds up over the layers; the lowest adds the layer's own."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < total
    g = tl.load(gradient + at, mask=there).to(tl.float32)
    tl.store(by_crossed + at, (g * tl.load(first + at, mask=there).to(tl.float32)).to(by_crossed.dtype.element_ty), mask=there)
    found = g * tl.load(crossed + at, mask=there).to(tl.float32)
    if ADDS:
        found += tl.load(by_first + at, mask=there).to(tl.float32)
    if ENDS:
        found += g
    tl.store(by_first + at, found.to(by_first.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["position"])
def _digest(rows, odd, out, position, samples, PAIRS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Adds the digest of some rows, of 64-bit words, to `out`: sums modulo 2^64, in whatever order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    there = (row < samples)[:, None] & (column < PAIRS)[None, :]
    words = tl.load(rows + row.to(tl.int64)[:, None] * PAIRS + column[None, :], mask=there, other=0)
    factors = tl.load(odd + column, mask=column < PAIRS, other=0)
    place = (row.to(tl.int64) + position) * 2 + 1
    tl.atomic_add(out, tl.sum(tl.sum(words * factors[None, :], 1) * place, 0))


def digest(rows: Any, odd: Any, position: int) -> Any:
    """`run.digest` of rows on a device, in one launch."""
    words, out = rows.contiguous().view(torch.int64), torch.zeros((), dtype=torch.int64, device=rows.device)
    count, pairs = words.shape
    _digest[(triton.cdiv(count, DIGESTED),)](words, odd, out, position, count, pairs, triton.next_power_of_2(pairs), DIGESTED)
    return out


class Vectors:
    """The one table, Adagrad's sums of it, and what a step does with both."""

    def __init__(
        self, weight: Any, counts: Sequence[int], lookups: Sequence[int], words: int, first: int, ahead: int = 1
    ) -> None:
        """`words` of a row of a batch, of which `first` is the first look-up; `ahead`: vectors of a sample before the sums."""
        device = weight.device
        self.weight, self.sums = weight, torch.zeros_like(weight)
        self.width, self.lookups, self.words, self.first = weight.shape[1], sum(lookups), words, first
        self.ahead = ahead

        def numbers(values: Any) -> Any:
            return torch.as_tensor(values, dtype=torch.int32, device=device)

        self.starts, self.counts = numbers(data.starts(lookups)), numbers(lookups)
        repeats = self.counts.long()
        self.offset = torch.repeat_interleave(numbers(data.starts(counts)), repeats)
        self.limit = torch.repeat_interleave(numbers(counts), repeats)
        self.feature_of = torch.repeat_interleave(numbers(range(len(counts))), repeats)
        # Long bags first: short ones fill the gaps at the end.
        self.features = numbers(sorted(range(len(lookups)), key=lambda f: -lookups[f]))

    def keys(self, rows: Any, wrong: Any) -> Any:
        total = len(rows) * self.lookups
        found = torch.empty(total, dtype=torch.int32, device=rows.device)
        grid = (triton.cdiv(total, BLOCK),)
        _keys[grid](rows, self.offset, self.limit, found, wrong, total, self.lookups, self.words, self.first, BLOCK)
        return found

    def bags(self, keys: Any, out: Any, tile: int = 8, warps: int = 1) -> None:
        """Writes the sums into `out`: a row a sample, `ahead` vectors left free before them."""
        grid = (len(out) * len(self.features),)
        _bags[grid](
            keys, self.weight, out, self.features, self.starts, self.counts, len(out), out.stride(0),
            self.lookups, self.width, self.ahead, tile, num_warps=warps,
        )  # fmt: skip

    def update(
        self, keys: Any, order: Any, gradients: Any, rate: float,
        heads: int = HEADS, warps: int = 1, tile: int = TILE, long: int = LONG,
    ) -> None:  # fmt: skip
        """One Adagrad of every row of the sorted `keys`, of which `order` says which look-up each of them is."""
        total = len(keys)
        grid = (triton.cdiv(total, long) + triton.cdiv(total, heads),)
        _update[grid](
            keys, order, gradients, self.weight, self.sums, self.feature_of, total, gradients.stride(0), rate, EPSILON,
            self.lookups, self.width, self.ahead, long, heads, tile, num_warps=warps,
        )  # fmt: skip


class Crosses(torch.autograd.Function):
    """The cross layers of a vector that is there already, but for its first part: `below`, which is put into it."""

    @staticmethod
    def forward(ctx: Any, below: Any, first: Any, *weights: Any) -> Any:
        first[:, : below.shape[1]] = below
        kind, x, kept = first.dtype, first, []
        cast = [weight.to(kind) for weight in weights]
        grid = (triton.cdiv(first.numel(), BLOCK),)
        for narrow, widen, bias in zip(*[iter(cast)] * 3, strict=True):
            low = x @ narrow.t()
            crossed = torch.addmm(bias, low, widen.t())
            kept += [x, low, crossed]
            out = torch.empty_like(first)
            _cross[grid](first, crossed, x, out, first.numel(), BLOCK)
            x = out
        ctx.below = below.shape[1]
        ctx.save_for_backward(first, *cast, *kept)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        first, *saved = ctx.saved_tensors
        gradient, count = gradients[0].contiguous(), len(saved) // 2
        cast, kept = saved[:count], saved[count:]
        found: list[Any] = [None] * count
        grid = (triton.cdiv(first.numel(), BLOCK),)
        by_first, by_crossed = torch.empty_like(first), torch.empty_like(first)
        for at in range(count - 3, -1, -3):
            (narrow, widen, _), (x, low, crossed) = cast[at : at + 3], kept[at : at + 3]
            adds, ends = at != count - 3, at == 0
            _cross_back[grid](gradient, first, crossed, by_first, by_crossed, first.numel(), adds, ends, BLOCK)
            by_low = by_crossed @ widen
            found[at : at + 3] = [by_low.t() @ x, by_crossed.t() @ low, by_crossed.sum(0)]
            # In place where it is ours.
            mine = by_first if ends else gradient if adds else gradient.clone()
            gradient = mine.addmm_(by_low, narrow)
        # Beside the weights of the layers, in float32.
        wide = [one.float() for one in found]
        return gradient[:, : ctx.below], gradient, *wide


class Step:
    """Steps of a network of `dlrm`, in place. The same batch size again replays a graph."""

    def __init__(
        self, net: Any, counts: Sequence[int], rate: float, wrong: Any, half: bool = True, exchange: Any = None
    ) -> None:
        """`half`: dense layers compute in bfloat16, on a GPU; `exchange`: with the ranks that have the other tables."""
        self.net, self.rate, self.wrong, self.exchange = net, rate, wrong, exchange
        table = net.vectors.weight.data
        if exchange is None:
            self.vectors = Vectors(table, counts, data.LOOKUPS, data.WORDS, data.FIRST_LOOKUP)
        else:
            own = [counts[f] for f in exchange.own]
            self.vectors = Vectors(table, own, [data.LOOKUPS[f] for f in exchange.own], exchange.lookups, 0, ahead=0)
        self.weights = [p for name, p in net.named_parameters() if name != "vectors.weight"]
        self.sums = [torch.zeros_like(p) for p in self.weights]
        self.on_gpu = self.vectors.weight.is_cuda
        self.kind = torch.bfloat16 if self.on_gpu and half else torch.float32
        self._aside = torch.cuda.Stream(self.vectors.weight.device) if self.on_gpu else None
        self._size = self._seen = 0
        self._graph: Any = None
        self._rows: Any = None
        self._loss: Any = None

    def reset(self) -> None:
        """Adagrad as before the first step."""
        for sums in (self.vectors.sums, *self.sums):
            sums.zero_()

    def __call__(self, rows: Any) -> Any:
        """The loss, before the step that it takes."""
        if len(rows) != self._size:
            self._size, self._seen, self._graph = len(rows), 0, None
        if not self.on_gpu or self._seen < EAGER:
            self._seen += 1
            return self._step(rows.contiguous())
        if self._graph is None:
            self._capture(rows)
        self._rows.copy_(rows)
        self._graph.replay()
        return self._loss

    def _capture(self, rows: Any) -> None:
        # Its memory is its own: what the steps before it took is given back.
        self._rows = self._loss = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._rows = rows.clone(memory_format=torch.contiguous_format)
        graph = torch.cuda.CUDAGraph()
        # The loader's threads may go on with their own copies meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._loss = self._step(self._rows)
        self._graph = graph

    def _step(self, rows: Any) -> Any:
        net, weights = self.net, self.weights
        labels = rows[:, data.LABEL]
        dense = rows[:, data.FIRST_DENSE : data.FIRST_LOOKUP].view(torch.float32)
        first, keys, ordered, order = self._looked_up(rows)
        first.requires_grad_()
        crosses = [p for pair in zip(net.narrow, net.widen, strict=True) for p in (pair[0].weight, pair[1].weight, pair[1].bias)]
        with torch.autocast("cuda", torch.bfloat16, enabled=self.kind != torch.float32):
            logit = net.top(Crosses.apply(net.bottom(dense), first, *crosses))[:, 0].float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, labels.float())
        if self.exchange is not None:
            loss = loss / self.exchange.world
        by_first, *gradients = torch.autograd.grad(loss, [first, *weights])
        loss = loss.detach()
        self.wrong[1:] += torch.stack([(labels >> 1 != 0).sum(), (~torch.isfinite(loss)).long()])
        self._wait_beside()
        if self.exchange is not None:
            by_first = self.exchange.to_tables(by_first, 1)
            # Beside the update, which waits for memory.
            with self._beside():
                *gradients, loss = self.exchange.sums([*gradients, loss])
        self.vectors.update(ordered, order, by_first, self.rate)
        self._wait_beside()
        for weight, gradient, sums in zip(weights, gradients, self.sums, strict=True):
            total = weight.numel()
            _adagrad[(triton.cdiv(total, BLOCK),)](weight.data, gradient, sums, total, self.rate, EPSILON, BLOCK)
        return loss

    def _looked_up(self, rows: Any) -> tuple[Any, Any, Any, Any]:
        """The sums of each sample, behind room for one vector; row numbers of the tables here, and their order, being sorted."""
        there = rows if self.exchange is None else self.exchange.to_owners(rows)
        keys = self.vectors.keys(there, self.wrong)
        with self._beside():
            ordered, order = torch.sort(keys)
        vectors = self.vectors.ahead + len(self.vectors.features)
        sums = torch.empty(len(there), vectors * self.vectors.width, dtype=self.kind, device=rows.device)
        self.vectors.bags(keys, sums)
        first = sums if self.exchange is None else self.exchange.to_samples(sums, 1)
        return first, keys, ordered, order

    def _beside(self) -> Any:
        """Work that runs beside what follows, and after what went before. Its memory is kept until it is waited for."""
        if self._aside is None:
            return torch.no_grad()
        self._aside.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._aside)

    def _wait_beside(self) -> None:
        if self._aside is not None:
            torch.cuda.current_stream().wait_stream(self._aside)
