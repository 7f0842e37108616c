"""Networks of text in PyTorch: BERT with the heads of its pre-training, and a Llama whose attention has low-rank adapters.

Each takes the fields of rows and returns the mean loss. Numbers that can't be read are the caller's to count; here they are
held to what can be.
"""

from __future__ import annotations

from typing import Any

from forebay.errors import MachineError

try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    found = f"PyTorch can't be imported: {error}"
    raise MachineError("forebay.train.text", found, "pip install torch; or forebay train toy, which needs none") from None

SEGMENTS = 2
EPSILON = 1e-12


class BertLayer(nn.Module):
    """Attention over the text and two linear layers, each added and then normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, EPSILON)

    def forward(self, x: Any, mask: Any) -> Any:
        n, tokens, width = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm(x + self.out(found.transpose(1, 2).reshape(n, tokens, width)))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):
    """As the paper has it, without dropout: words masked, and whether the second segment follows the first."""

    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        width = net["width"]
        self.words = nn.Embedding(net["vocabulary"], width)
        self.places = nn.Embedding(net["tokens"], width)
        self.segments = nn.Embedding(SEGMENTS, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.layers = nn.ModuleList(BertLayer(width, net["heads"]) for _ in range(net["layers"]))
        self.pool = nn.Linear(width, width)
        self.follows = nn.Linear(width, 2)
        self.head = nn.Linear(width, width)
        self.head_norm = nn.LayerNorm(width, EPSILON)
        # Its weight is that of the words.
        self.bias = nn.Parameter(torch.zeros(net["vocabulary"]))

    def logits(self, rows: dict[str, Any]) -> tuple[Any, Any]:
        """Of the masked words, and of what follows."""
        tokens = rows["input"].shape[1]
        place = torch.arange(tokens, device=rows["input"].device)
        x = self.norm(self.words(rows["input"]) + self.places(place) + self.segments(rows["segment"]))
        mask = (place < rows["length"])[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        each = x.gather(1, rows["position"].long()[:, :, None].expand(-1, -1, x.shape[2]))
        hidden = self.head_norm(functional.gelu(self.head(each)))
        return functional.linear(hidden, self.words.weight, self.bias), self.follows(torch.tanh(self.pool(x[:, 0])))

    def forward(self, rows: dict[str, Any]) -> Any:
        masked, follows = self.logits(rows)
        loss = functional.cross_entropy(masked.float().flatten(0, 1), rows["masked"].long().flatten())
        return loss + functional.cross_entropy(follows.float(), rows["next"][:, 0].long())


class Adapted(nn.Module):
    """A frozen linear layer in half precision, and what two narrow ones add to it."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: int, half: Any) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False, dtype=half)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        self.scale = alpha / rank

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.scale * self.up(self.down(x))


class LlamaLayer(nn.Module):
    def __init__(self, net: dict[str, Any], half: Any) -> None:
        super().__init__()
        width, inner, self.heads = net["width"], net["inner"], net["heads"]
        self.norm = nn.RMSNorm(width, 1e-5, dtype=half)
        self.q, self.k, self.v, self.o = (Adapted(width, width, net["rank"], net["alpha"], half) for _ in range(4))
        self.norm2 = nn.RMSNorm(width, 1e-5, dtype=half)
        self.gate, self.up = (nn.Linear(width, inner, bias=False, dtype=half) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False, dtype=half)

    def forward(self, x: Any, turn: Any) -> Any:
        n, tokens, width = x.shape
        normed = self.norm(x)
        q, k, v = (one(normed).view(n, tokens, self.heads, -1).transpose(1, 2) for one in (self.q, self.k, self.v))
        found = functional.scaled_dot_product_attention(turned(q, turn), turned(k, turn), v, is_causal=True)
        x = x + self.o(found.transpose(1, 2).reshape(n, tokens, width))
        normed = self.norm2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def turns(tokens: int, size: int, device: Any, half: Any, base: float = 10_000.0) -> tuple[Any, Any]:
    """Cosines and sines of the angles by which places turn pairs of numbers."""
    steps = base ** (-torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    angles = torch.arange(tokens, device=device, dtype=torch.float32)[:, None] * steps
    both = torch.cat([angles, angles], dim=1)
    return both.cos().to(half), both.sin().to(half)


def turned(x: Any, turn: tuple[Any, Any]) -> Any:
    first, second = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat([-second, first], dim=-1) * turn[1]


class Llama(nn.Module):
    """The next token of a text. Only the adapters of the attention are trained; layers are computed again going back."""

    def __init__(self, net: dict[str, Any], half: Any) -> None:
        super().__init__()
        self._half, self._size = half, net["width"] // net["heads"]
        self.words = nn.Embedding(net["vocabulary"], net["width"], dtype=half)
        self.layers = nn.ModuleList(LlamaLayer(net, half) for _ in range(net["layers"]))
        self.norm = nn.RMSNorm(net["width"], 1e-5, dtype=half)
        self.head = nn.Linear(net["width"], net["vocabulary"], bias=False, dtype=half)
        adapters = {id(p) for m in self.modules() if isinstance(m, Adapted) for one in (m.down, m.up) for p in one.parameters()}
        for parameter in self.parameters():
            parameter.requires_grad_(id(parameter) in adapters)

    def logits(self, tokens: Any) -> Any:
        x = self.words(tokens)
        turn = turns(tokens.shape[1], self._size, x.device, self._half)
        for layer in self.layers:
            x = checkpoint(layer, x, turn, use_reentrant=False, preserve_rng_state=False) if self.training else layer(x, turn)
        return self.head(self.norm(x))

    def forward(self, rows: dict[str, Any]) -> Any:
        tokens = rows["tokens"]
        found = self.logits(tokens)[:, :-1]
        return functional.cross_entropy(found.float().flatten(0, 1), tokens[:, 1:].long().flatten())
