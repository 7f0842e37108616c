"""Forms of the models that have nothing but a configuration: sizes of the network, a sample's bytes, answers. Pure.

`small` forms are of the same networks, narrow and shallow: for a CPU and for tests, and never a figure of the large ones.
Weights of language models and of the UNet of SDXL lie in their file in bfloat16, as they are published; others in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

KINDS = {"F32": 4, "BF16": 2}


@dataclass(frozen=True)
class Form:
    """A model in one size.

    kind     of the weights in their file
    batches  samples at a time at most, on a GPU and on the CPU; of a language model queries that are answered at once
    width    numbers of an answer: of a language model its tokens
    inputs   tokens of a query at most; 0: no language model
    graphed  a batch is short enough on a GPU that its kernels are started by a graph
    """

    model: str
    small: bool
    kind: str
    row_bytes: int
    net: dict[str, Any] = field(compare=False)
    batches: tuple[int, int]
    width: int
    inputs: int = 0
    graphed: bool = False

    @property
    def tokens(self) -> int:
        return self.width if self.inputs else 0

    @property
    def places(self) -> int:
        """Tokens of a query and of its answer."""
        return self.inputs + self.tokens

    def cache_bytes(self, item: int) -> int:
        """Keys and values of one query, all layers; 0 where nothing is kept between tokens."""
        net = self.net
        return 2 * net["layers"] * net["kv_heads"] * net["size"] * self.places * item if self.inputs else 0


def _language(model: str, small: bool, net: dict[str, Any], inputs: int, tokens: int) -> Form:
    # A length, the tokens, and as many zeros as make whole 64-bit words.
    words = inputs + 1 + (inputs + 1) % 2
    return Form(model, small, "F32" if small else "BF16", 4 * words, net, (4, 4) if small else (32, 1), tokens, inputs)


def gptj(small: bool) -> Form:
    """GPT-J of 6 billion weights: attention and linear layers side by side. News of at most 1,919 tokens, 128 of a summary."""
    net: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "inner": 64, "vocabulary": 200, "turned": 8} if small else {
        "layers": 28, "width": 4096, "heads": 16, "inner": 16_384, "vocabulary": 50_400, "turned": 64,
    }  # fmt: skip
    net |= {"kv_heads": net["heads"], "size": net["width"] // net["heads"], "parallel": True, "experts": 0}
    return _language("gptj", small, net, *((23, 8) if small else (1919, 128)))


def llama(small: bool) -> Form:
    """Llama 2 in its form of 7 billion weights. The benchmark's has 70; questions of at most 1,024 tokens, 294 of an answer."""
    net: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "inner": 64, "vocabulary": 200} if small else {
        "layers": 32, "width": 4096, "heads": 32, "inner": 11_008, "vocabulary": 32_000,
    }  # fmt: skip
    size = net["width"] // net["heads"]
    net |= {"kv_heads": net["heads"], "size": size, "turned": size, "parallel": False, "experts": 0}
    return _language("llama", small, net, *((24, 8) if small else (1024, 294)))


# Of the 32 layers of Mixtral, each with all its eight experts: all of them take 93 GB.
MIXTRAL_LAYERS, MIXTRAL_OF = 4, 32


def mixtral(small: bool) -> Form:
    """Mixtral 8x7B cut to its first layers, each whole: eight experts, of which a token has two."""
    net: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "inner": 64, "vocabulary": 200} if small else {
        "layers": MIXTRAL_LAYERS, "width": 4096, "heads": 32, "inner": 14_336, "vocabulary": 32_000,
    }  # fmt: skip
    net |= {"kv_heads": 2 if small else 8, "experts": 4 if small else 8}
    size = net["width"] // net["heads"]
    net |= {"size": size, "turned": size, "parallel": False, "base": 1e6}
    return _language("mixtral", small, net, *((24, 8) if small else (2048, 145)))


def sdxl(small: bool) -> Form:
    """The UNet of SDXL, 20 steps with guidance, from stored states of both text encoders (float16) to latents of 1024 × 1024."""
    net: dict[str, Any] = {
        "widths": (32, 64) if small else (320, 640, 1280), "heads": (2, 4) if small else (5, 10, 20),
        "depths": (0, 1) if small else (0, 2, 10), "blocks": 1 if small else 2, "text": 32 if small else 2048,
        "pooled": 16 if small else 1280, "sizes": 8 if small else 256, "words": 4 if small else 77, "side": 8 if small else 128,
        "steps": 2 if small else 20,
    }  # fmt: skip
    stored = 2 * (net["words"] * net["text"] + net["pooled"])
    return Form("sdxl", small, "F32" if small else "BF16", stored, net, (2, 2) if small else (4, 1), 64)


def retinanet(small: bool) -> Form:
    """RetinaNet on ResNeXt-50 32x4d: an image of 800 × 800 bytes in three colours, 264 classes; the ten best boxes."""
    net: dict[str, Any] = {
        "side": 64 if small else 800, "classes": 5 if small else 264, "width": 8 if small else 64,
        "depths": (1, 1, 1, 1) if small else (3, 4, 6, 3), "inner": 32 if small else 256, "groups": 2 if small else 32,
        "wide": 2,
    }  # fmt: skip
    return Form("retinanet", small, "F32", 3 * net["side"] ** 2, net, (8, 2) if small else (16, 1), 60, graphed=True)


def unet3d(small: bool) -> Form:
    """3D U-Net on scans of 192 × 256 × 256 in float32, by windows of 128³ that overlap by half; shares of classes by octant."""
    net: dict[str, Any] = {
        "shape": (16, 24, 24) if small else (192, 256, 256), "window": 16 if small else 128, "classes": 3,
        "widths": (4, 8) if small else (32, 64, 128, 256, 320), "together": 2,
    }  # fmt: skip
    return Form("unet3d", small, "F32", 4 * math.prod(net["shape"]), net, (1, 1), 24)


MAKERS = {make.__name__: make for make in (retinanet, unet3d, gptj, llama, mixtral, sdxl)}
NAMES = tuple(MAKERS)


def form(model: str, small: bool = False) -> Form:
    return MAKERS[model](small)
