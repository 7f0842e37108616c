"""Language models in PyTorch: GPT-J, Llama and Mixtral answer token by token, with keys and values kept within a query.

Queries join and leave while others are answered: each has a slot of the cache, its own tokens are read at once, and then all
slots get their next token together, on a GPU by one graph. No cache outlives its query. Tokens are the likeliest ones; answers
have a fixed length, as random weights never end one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay.infer import forms, networks
from forebay.train.text import functional, nn, torch, turned, turns

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

# Experts that a token has.
CHOSEN = 2
# Queries whose float32 answers are computed at a time, and steps that are given to the GPU before the first of them is done.
CHECKED, STEPS_AHEAD = 4, 2


class Experts(nn.Module):
    """Linear layers of which each token has two, weighed by the gate."""

    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        count, width, inner = net["experts"], net["width"], net["inner"]
        self.choice = nn.Linear(width, count, bias=False)
        self.gate, self.up = (nn.Parameter(torch.empty(count, inner, width)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(count, width, inner))

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        best, which = self.choice(flat).float().softmax(1).topk(CHOSEN, dim=1)
        share = best / best.sum(1, keepdim=True)
        if x.shape[1] == 1:
            # One token of each query: all experts are needed by some, and a graph can't choose.
            weight = torch.zeros(len(flat), len(self.gate), device=x.device).scatter(1, which, share).to(x.dtype)
            hidden = functional.silu(flat @ self.gate.transpose(1, 2)) * (flat @ self.up.transpose(1, 2))
            return ((hidden @ self.down.transpose(1, 2)) * weight.t()[:, :, None]).sum(0).view(x.shape)
        # By expert, so that the host asks once how many tokens each has: the device waits while it asks.
        order = which.flatten().argsort(stable=True)
        counts = torch.bincount(which.flatten(), minlength=len(self.gate)).tolist()
        given = flat[order // CHOSEN].split(counts)
        answers = [
            (functional.silu(part @ gate.t()) * (part @ up.t())) @ down.t()
            for part, gate, up, down in zip(given, self.gate, self.up, self.down, strict=True)
        ]
        found = torch.cat(answers)[order.argsort()]
        return (found.view(len(flat), CHOSEN, -1) * share.to(x.dtype)[:, :, None]).sum(1).view(x.shape)


class Gated(nn.Module):
    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(net["width"], net["inner"], bias=False) for _ in range(2))
        self.down = nn.Linear(net["inner"], net["width"], bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Plain(nn.Module):
    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(net["width"], net["inner"]), nn.Linear(net["inner"], net["width"])

    def forward(self, x: Any) -> Any:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Layer(nn.Module):
    """Attention and linear layers, one after the other, or side by side as in GPT-J."""

    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        width, self.parallel, self.turned = net["width"], net["parallel"], net["turned"]
        self.heads, self.kv_heads, self.size = net["heads"], net["kv_heads"], net["size"]
        self.norm: Any = nn.LayerNorm(width) if self.parallel else nn.RMSNorm(width, 1e-5)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, self.kv_heads * self.size, bias=False) for _ in range(2))
        self.norm2 = None if self.parallel else nn.RMSNorm(width, 1e-5)
        self.linear: Any = Experts(net) if net["experts"] else Plain(net) if self.parallel else Gated(net)

    def forward(self, x: Any, turn: Any, attend: Any) -> Any:
        n, tokens, width = x.shape
        normed = self.norm(x)
        q = self._turn(self.q(normed).view(n, tokens, self.heads, self.size).transpose(1, 2), turn)
        k = self._turn(self.k(normed).view(n, tokens, self.kv_heads, self.size).transpose(1, 2), turn)
        v = self.v(normed).view(n, tokens, self.kv_heads, self.size).transpose(1, 2)
        found = self.o(attend(q, k, v).transpose(1, 2).reshape(n, tokens, width))
        if self.norm2 is None:
            return x + found + self.linear(normed)
        x = x + found
        return x + self.linear(self.norm2(x))

    def _turn(self, x: Any, turn: Any) -> Any:
        """Halves of what is turned are its pairs, where GPT-J's are neighbours: an order of weights, which are random."""
        if self.turned == self.size:
            return turned(x, turn)
        return torch.cat([turned(x[..., : self.turned], turn), x[..., self.turned :]], dim=-1)


class Decoder(nn.Module):
    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        self.words = nn.Embedding(net["vocabulary"], net["width"])
        self.layers = nn.ModuleList(Layer(net) for _ in range(net["layers"]))
        self.norm: Any = nn.LayerNorm(net["width"]) if net["parallel"] else nn.RMSNorm(net["width"], 1e-5)
        self.head = nn.Linear(net["width"], net["vocabulary"], bias=net["parallel"])


class Slots:
    """Queries that are being answered: keys and values, the last token, its place, and the answer so far of each."""

    def __init__(self, net: Any, form: forms.Form, count: int, device: str, kind: Any) -> None:
        self.net, self.form, self.count = net, form, count
        sizes = form.net
        shape = (2, count, sizes["kv_heads"], form.places, sizes["size"])
        with torch.device(device):
            self._cache = [torch.zeros(shape, dtype=kind) for _ in range(sizes["layers"])]
            self._token = torch.zeros(count, dtype=torch.int64)
            self._place = torch.zeros(count, dtype=torch.int64)
            self._written = torch.zeros(count, dtype=torch.int64)
            self.answers = torch.zeros((count, form.tokens), dtype=torch.int64)
            self._each = torch.arange(count)
            self._places = torch.arange(form.places)
            self.beyond = torch.zeros((), dtype=torch.int64)
        self._turns = turns(form.places, sizes["turned"], device, kind, sizes.get("base", 1e4))

    def admit(self, slot: int, row: Any) -> None:
        """Reads a query, (row_bytes,), into a slot; its first token is there when the device has done it."""
        form, words = self.form, row.view(torch.int32)
        asked, given = words[0].long(), words[1 : 1 + form.inputs].long()
        length, tokens = asked.clamp(1, form.inputs), given.clamp(0, form.net["vocabulary"] - 1)
        self.beyond += (length != asked) + (tokens != given).sum()
        turn = tuple(table[: form.inputs] for table in self._turns)
        x = self.net.words(tokens[None])
        for number, layer in enumerate(self.net.layers):
            cache = self._cache[number]

            def attend(q: Any, k: Any, v: Any, cache: Any = cache) -> Any:
                cache[0, slot, :, : form.inputs], cache[1, slot, :, : form.inputs] = k[0], v[0]
                group = q.shape[1] // k.shape[1]
                k, v = (one.repeat_interleave(group, 1) if group > 1 else one for one in (k, v))
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

            x = layer(x, turn, attend)
        last = self.net.norm(x[0].index_select(0, (length - 1)[None]))
        token = self.net.head(last).float().argmax(1)[0]
        self._token[slot], self._place[slot], self._written[slot] = token, length, 1
        self.answers[slot, 0] = token

    def step(self) -> None:
        """The next token of every slot."""
        place, each = self._place, self._each
        x = self.net.words(self._token)[:, None]
        turn = tuple(table[place][:, None, None] for table in self._turns)
        seen = (self._places[None] <= place[:, None])[:, None, None]
        for number, layer in enumerate(self.net.layers):
            cache = self._cache[number]

            def attend(q: Any, k: Any, v: Any, cache: Any = cache) -> Any:
                cache[0][each, :, place], cache[1][each, :, place] = k[:, :, 0], v[:, :, 0]
                # Heads that share keys are as several tokens of one head.
                shared = q.view(len(q), k.shape[1], -1, q.shape[3])
                found = functional.scaled_dot_product_attention(shared, cache[0], cache[1], attn_mask=seen)
                return found.reshape(q.shape)

            x = layer(x, turn, attend)
        token = self.net.head(self.net.norm(x[:, 0])).float().argmax(1)
        self._token.copy_(token)
        self.answers[each, self._written.clamp(max=self.form.tokens - 1)] = token
        self._place.copy_((place + 1).clamp(max=self.form.places - 1))
        self._written += 1


class Model(networks.Sized):
    """Answers queries in slots, by `admit` and `step`; by `launch` a batch of rows as a whole."""

    def __init__(self, form: forms.Form, tensors: Mapping[str, Any], device: str, batch: int | None = None) -> None:
        super().__init__(form, tensors, device, batch)
        self.tokens = form.tokens
        self._slots = Slots(self._net, form, self.batch, device, self._kind)
        self._graph_: Any = None
        self._flight: list[Any] = []

    def _make(self) -> Any:
        return Decoder(self.form.net)

    def prepare(self, sizes: tuple[int, ...]) -> None:
        """Captures the graph of a step; no query is in a slot yet."""
        if not self.on_gpu or self._graph_ is not None:
            return
        with torch.inference_mode(), torch.cuda.device(self.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._slots.step()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._slots.step()
            self._graph_ = graph

    def admit(self, slot: int, rows: Any) -> Array:
        """Reads one query into a slot, and waits for its first token, (1, 1)."""
        with self._room(1), torch.inference_mode():
            self._slots.admit(slot, self._tensor(rows)[0])
            first: Array = self._slots.answers[slot : slot + 1, :1].float().cpu().numpy()
        return first

    def step(self) -> None:
        """Gives the device the next token of all slots; waits until it isn't far behind."""
        with self._room(self.batch), torch.inference_mode():
            if not self.on_gpu:
                self._slots.step()
                return
            self.prepare(())
            with torch.cuda.device(self.device):
                self._graph_.replay()
                self._flight.append(torch.cuda.Event())
                self._flight[-1].record()
            if len(self._flight) > STEPS_AHEAD:
                self._flight.pop(0).synchronize()

    def answer(self, slots: list[int]) -> Array:
        """Tokens of these slots' queries, which are done: (n, tokens) float32."""
        found: Array = self._slots.answers[torch.tensor(slots, device=self.device)].float().cpu().numpy()
        return found

    def launch(self, rows: Any) -> Any:
        return [self.answer(self._answered(rows[at : at + self.batch])) for at in range(0, len(rows), self.batch)]

    def _answered(self, rows: Any) -> list[int]:
        for slot in range(len(rows)):
            self.admit(slot, rows[slot : slot + 1])
        for _ in range(self.form.tokens - 1):
            self.step()
        return list(range(len(rows)))

    def finish(self, launched: Any) -> Array:
        import numpy as np

        return np.concatenate(launched)

    def reference(self, rows: Any) -> Array:
        """The float32 network's own answers."""
        net, found = self._exact(), []
        with networks.exactly(torch), torch.inference_mode():
            slots = Slots(net, self.form, CHECKED, self.device, torch.float32)
            rows = self._tensor(rows)
            for at in range(0, len(rows), CHECKED):
                some = rows[at : at + CHECKED]
                for slot in range(len(some)):
                    slots.admit(slot, some[slot])
                for _ in range(self.form.tokens - 1):
                    slots.step()
                found.append(slots.answers[: len(some)].float().cpu())
        answers: Array = torch.cat(found).numpy()
        return answers

    def decisions(self, answers: Array) -> Array:
        """The first token: a later one follows from those before it, which rounding may have changed."""
        return answers[:, :1]

    def problem(self) -> str | None:
        count = int(self._slots.beyond)
        return f"{count} tokens or lengths of the samples are beyond the vocabulary or the text" if count else None

    def close(self) -> None:
        self._graph_, self._slots, self._flight = None, None, []  # type: ignore[assignment]
        super().close()
