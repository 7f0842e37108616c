"""The UNet of Stable Diffusion v2 in PyTorch, with its training step. Parameters are named as diffusers names its own.

Rows have the mean and the logarithm of the variance of an image's latents, and the states of a text encoder: both are made
before training, as the benchmark allows. Latents are drawn, noised, and the network tells their velocity.
"""

from __future__ import annotations

import math
from typing import Any

from forebay.errors import MachineError

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    found = f"PyTorch can't be imported: {error}"
    raise MachineError("forebay.train.unet", found, "pip install torch; or forebay train toy, which needs none") from None

GROUPS, TIMES = 32, 1000
# Of the latents, so that their variance is about 1; and of the noise's variance, the first step's and the last's.
LATENT_SCALE, BETAS = 0.18215, (0.00085, 0.012)


def _norm(width: int, epsilon: float = 1e-5) -> Any:
    return nn.GroupNorm(min(GROUPS, width), width, epsilon)


class ResBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = nn.Linear(time, outputs)
        self.norm2, self.conv2 = _norm(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        if inputs != outputs:
            self.conv_shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Any, time: Any) -> Any:
        found = self.conv1(functional.silu(self.norm1(x)))
        found = found + self.time_emb_proj(functional.silu(time))[:, :, None, None]
        found = self.conv2(functional.silu(self.norm2(found)))
        return found + (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x)


class Attention(nn.Module):
    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Any, context: Any) -> Any:
        q, k, v = (
            one(of).view(len(x), -1, self.heads, x.shape[2] // self.heads).transpose(1, 2)
            for one, of in ((self.to_q, x), (self.to_k, context), (self.to_v, context))
        )
        found = functional.scaled_dot_product_attention(q, k, v)
        return self.to_out[0](found.transpose(1, 2).reshape(x.shape))


class Gated(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, 2 * outputs)

    def forward(self, x: Any) -> Any:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * functional.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        # The second is diffusers' place of a dropout.
        self.net = nn.ModuleList([Gated(width, 4 * width), nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Any) -> Any:
        return self.net[2](self.net[0](x))


class Block(nn.Module):
    """Attention over the image, over the text, and two linear layers, each added to what it normalised."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn1 = nn.LayerNorm(width), Attention(width, width, heads)
        self.norm2, self.attn2 = nn.LayerNorm(width), Attention(width, text, heads)
        self.norm3, self.ff = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x: Any, text: Any) -> Any:
        normed = self.norm1(x)
        x = x + self.attn1(normed, normed)
        x = x + self.attn2(self.norm2(x), text)
        return x + self.ff(self.norm3(x))


class Transformer(nn.Module):
    def __init__(self, width: int, text: int, heads: int, depth: int) -> None:
        super().__init__()
        self.norm, self.proj_in = _norm(width, 1e-6), nn.Linear(width, width)
        self.transformer_blocks = nn.ModuleList(Block(width, text, heads) for _ in range(depth))
        self.proj_out = nn.Linear(width, width)

    def forward(self, x: Any, text: Any) -> Any:
        n, width, high, wide = x.shape
        flat = self.proj_in(self.norm(x).permute(0, 2, 3, 1).reshape(n, high * wide, width))
        for block in self.transformer_blocks:
            flat = block(flat, text)
        flat = self.proj_out(flat)
        return x + flat.view(n, high, wide, width).permute(0, 3, 1, 2)


class Resized(nn.Module):
    """A convolution at half the size, or at twice."""

    def __init__(self, width: int, up: bool) -> None:
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(width, width, 3, 1 if up else 2, 1)

    def forward(self, x: Any) -> Any:
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest") if self.up else x)


class Level(nn.Module):
    """Blocks of one size; what follows them changes it."""

    def __init__(
        self, sizes: list[tuple[int, int]], net: dict[str, Any], heads: int, depth: int, resize: str | None
    ) -> None:
        super().__init__()
        width = sizes[0][1]
        self.resnets = nn.ModuleList(ResBlock(inputs, outputs, 4 * net["widths"][0]) for inputs, outputs in sizes)
        if depth:
            count = len(sizes) - 1 if resize == "middle" else len(sizes)
            self.attentions = nn.ModuleList(Transformer(width, net["text"], heads, depth) for _ in range(count))
        if resize in ("downsamplers", "upsamplers"):
            self.add_module(resize, nn.ModuleList([Resized(width, resize == "upsamplers")]))
        self._resize = resize

    def resized(self, x: Any) -> Any:
        return getattr(self, str(self._resize))[0](x)


class UNet(nn.Module):
    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        widths, heads, blocks = net["widths"], net["heads"], net["blocks"]
        first, last = widths[0], len(widths) - 1
        # Blocks of attention of each size; Stable Diffusion v2 has none at the last.
        depths = net.get("depths") or [int(number != last) for number in range(len(widths))]
        self.first = first
        self.conv_in = nn.Conv2d(4, first, 3, padding=1)
        two = {"linear_1": nn.Linear(first, 4 * first), "linear_2": nn.Linear(4 * first, 4 * first)}
        self.time_embedding = nn.ModuleDict(two)
        down, kept, before = [], [first], first
        for number, width in enumerate(widths):
            sizes = [(before if not block else width, width) for block in range(blocks)]
            kept += [width] * (blocks + (number != last))
            down.append(Level(sizes, net, heads[number], depths[number], "downsamplers" if number != last else None))
            before = width
        self.down_blocks = nn.ModuleList(down)
        self.mid_block = Level([(before, before)] * 2, net, heads[-1], depths[-1] or 1, "middle")
        up = []
        for number in reversed(range(len(widths))):
            width, sizes = widths[number], []
            for _ in range(blocks + 1):
                sizes.append((before + kept.pop(), width))
                before = width
            up.append(Level(sizes, net, heads[number], depths[number], "upsamplers" if number else None))
        self.up_blocks = nn.ModuleList(up)
        self.conv_norm_out, self.conv_out = _norm(first), nn.Conv2d(first, 4, 3, padding=1)
        betas = torch.linspace(BETAS[0] ** 0.5, BETAS[1] ** 0.5, TIMES, dtype=torch.float64) ** 2
        self.register_buffer("kept_share", (1 - betas).cumprod(0).float(), persistent=False)

    def velocity(self, x: Any, times: Any, text: Any) -> Any:
        return self.through(x, self.timed(times), text)

    def angles(self, values: Any, size: int) -> Any:
        """Cosines and sines of values at so many rates."""
        half = size // 2
        steps = torch.exp(-math.log(10_000) * torch.arange(half, device=values.device, dtype=torch.float32) / half)
        found = values[:, None].float() * steps
        return torch.cat([found.cos(), found.sin()], dim=1)

    def timed(self, times: Any) -> Any:
        time = self.time_embedding["linear_1"](self.angles(times, self.first).to(self.conv_in.weight.dtype))
        return self.time_embedding["linear_2"](functional.silu(time))

    def through(self, x: Any, time: Any, text: Any) -> Any:
        x = self.conv_in(x)
        kept = [x]
        for level in self.down_blocks:
            for number, block in enumerate(level.resnets):
                x = block(x, time)
                x = level.attentions[number](x, text) if hasattr(level, "attentions") else x
                kept.append(x)
            if hasattr(level, "downsamplers"):
                x = level.resized(x)
                kept.append(x)
        middle = self.mid_block
        x = middle.resnets[1](middle.attentions[0](middle.resnets[0](x, time), text), time)
        for level in self.up_blocks:
            for number, block in enumerate(level.resnets):
                x = block(torch.cat([x, kept.pop()], dim=1), time)
                x = level.attentions[number](x, text) if hasattr(level, "attentions") else x
            if hasattr(level, "upsamplers"):
                x = level.resized(x)
        return self.conv_out(functional.silu(self.conv_norm_out(x)))

    def forward(self, rows: dict[str, Any]) -> Any:
        """The mean squared distance of the velocity, of latents drawn and noised on the device."""
        mean, spread = rows["moments"].chunk(2, dim=1)
        latents = LATENT_SCALE * (mean + (0.5 * spread.clamp(-30, 20)).exp() * torch.randn_like(mean))
        noise = torch.randn_like(latents)
        times = torch.randint(0, TIMES, (len(latents),), device=latents.device)
        share = self.kept_share[times][:, None, None, None]
        signal, scale = share.sqrt(), (1 - share).sqrt()
        noised = (signal * latents + scale * noise).contiguous(memory_format=torch.channels_last)
        found = self.velocity(noised, times, rows["text"])
        return functional.mse_loss(found.float(), signal * noise - scale * latents)
