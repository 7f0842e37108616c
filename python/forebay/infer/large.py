"""RetinaNet, the 3D U-Net of scans, and the UNet of SDXL in PyTorch, as systems under test, at full size with random weights."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from forebay.infer import forms, networks
from forebay.train.images import DEVIATION, MEAN, anchors
from forebay.train.images import RetinaNet as Trained
from forebay.train.unet import BETAS, TIMES, UNet, functional, nn, torch

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

# Boxes of an answer. Weight of the text over that of none, and of a window's middle over its edge.
BEST, GUIDANCE, SPREAD = 10, 8.0, 0.125


class RetinaNet(Trained):
    """Classes and corners of all anchors; the best of them. Without the step that drops boxes which overlap."""

    def forward(self, pixels: Any) -> Any:
        logits, corners, at = self.found(pixels)
        best, which = logits.float().flatten(1).sigmoid().topk(BEST, dim=1)
        box, label = which // self.classes, which % self.classes
        moved = corners.float().gather(1, box[:, :, None].expand(-1, -1, 4))
        anchor = at[box]
        wide = anchor[..., 2:] - anchor[..., :2]
        middle = anchor[..., :2] + wide / 2 + moved[..., :2] * wide
        half = wide * moved[..., 2:].clamp(-8, 4).exp() / 2
        return torch.cat([label[..., None].float(), best[..., None], middle - half, middle + half], dim=2).flatten(1)


class Double(nn.Module):
    """Two convolutions of 3³, each normalised by scan and channel."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.InstanceNorm3d(outputs, affine=True)
        self.conv2 = nn.Conv3d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.InstanceNorm3d(outputs, affine=True)

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        return functional.relu(self.norm2(self.conv2(x)), inplace=True)


class UNet3d(nn.Module):
    """Levels of half the size each, the last one twice, and back; by windows over the scan, weighed by their middle."""

    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        self.net, widths = net, (*net["widths"], net["widths"][-1])
        self.down = nn.ModuleList(Double(1 if not n else widths[n - 1], w, 2 if n else 1) for n, w in enumerate(widths))
        back = list(itertools.pairwise(reversed(widths)))
        self.up = nn.ModuleList(nn.ConvTranspose3d(below, w, 2, 2) for below, w in back)
        self.join = nn.ModuleList(Double(2 * w, w, 1) for _, w in back)
        self.last = nn.Conv3d(widths[0], net["classes"], 1)

    def window(self, x: Any) -> Any:
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], dim=1))
        return self.last(x)

    def forward(self, scans: Any) -> Any:
        return torch.stack([self.counted(scan) for scan in scans])

    def counted(self, scan: Any) -> Any:
        """Voxels of each class in each octant of one scan, as shares."""
        size, together = self.net["window"], self.net["together"]
        near = torch.arange(size, device=scan.device) - (size - 1) / 2
        line = torch.exp(-((near / (SPREAD * size)) ** 2) / 2)
        weight = line[:, None, None] * line[None, :, None] * line[None, None, :]
        total = torch.zeros((self.net["classes"], *scan.shape), device=scan.device)
        corners = list(itertools.product(*(range(0, side - size + 1, size // 2) for side in scan.shape)))
        for at in range(0, len(corners), together):
            some = corners[at : at + together]
            parts = torch.stack([scan[a : a + size, b : b + size, c : c + size] for a, b, c in some])[:, None]
            for (a, b, c), found in zip(some, self.window(parts), strict=True):
                total[:, a : a + size, b : b + size, c : c + size] += found.float() * weight
        # Each voxel's weights are the same for all classes, so that the likeliest needs no division.
        which = functional.one_hot(total.argmax(0), self.net["classes"]).permute(3, 0, 1, 2).float()
        return functional.adaptive_avg_pool3d(which, 2).flatten()


class SDXL(UNet):
    """Its UNet, told of the text as a whole and of the image's size beside each word's state."""

    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__(net)
        first = net["widths"][0]
        self.net, wide = net, net["pooled"] + 6 * net["sizes"]
        self.add_embedding = nn.ModuleDict({"linear_1": nn.Linear(wide, 4 * first), "linear_2": nn.Linear(4 * first, 4 * first)})

    def conditions(self, pooled: Any) -> Any:
        """Of the text as a whole, and of an image as large as it was, uncut."""
        side = 8.0 * self.net["side"]
        sizes = torch.tensor([side, side, 0.0, 0.0, side, side], device=pooled.device)
        each = self.angles(sizes, self.net["sizes"]).flatten()[None].expand(len(pooled), -1).to(pooled.dtype)
        found = self.add_embedding["linear_1"](torch.cat([pooled, each], dim=1))
        return self.add_embedding["linear_2"](functional.silu(found))

    def forward(self, states: Any) -> Any:
        """Latents of each text, as means of 4 × 4 parts: steps of Euler, each with the text and without."""
        net, count, kind = self.net, len(states), states.dtype
        words = states[:, : net["words"] * net["text"]].view(count, net["words"], net["text"])
        text = torch.cat([words, torch.zeros_like(words)])
        pooled = states[:, net["words"] * net["text"] :]
        conditions = self.conditions(torch.cat([pooled, torch.zeros_like(pooled)]))
        device = states.device
        betas = torch.linspace(BETAS[0] ** 0.5, BETAS[1] ** 0.5, TIMES, dtype=torch.float64) ** 2
        kept = (1 - betas).cumprod(0)
        noise = ((1 - kept) / kept).sqrt().float()
        times = torch.arange(net["steps"] - 1, -1, -1) * (TIMES // net["steps"]) + 1
        levels = [*noise[times].tolist(), 0.0]
        # One noise for all, as the benchmark has it.
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(1, 4, net["side"], net["side"], generator=draw).to(device).expand(count, -1, -1, -1)
        x = x * (levels[0] ** 2 + 1) ** 0.5
        for number, time in enumerate(times.tolist()):
            level = levels[number]
            given = (x / (level**2 + 1) ** 0.5).to(kind).repeat(2, 1, 1, 1)
            at = torch.full((2 * count,), time, device=device)
            # Channels last, as cuDNN's convolutions in half precision like it.
            found = self.through(given.contiguous(memory_format=torch.channels_last), self.timed(at).to(kind) + conditions, text)
            with_text, without = found.float().chunk(2)
            x = x + (levels[number + 1] - level) * (without + GUIDANCE * (with_text - without))
        return functional.adaptive_avg_pool2d(x, 4).flatten(1)


class Model(networks.Sized):
    """Answers batches of rows, as `networks.Model` does."""

    def _make(self) -> Any:
        return {"retinanet": RetinaNet, "unet3d": UNet3d, "sdxl": SDXL}[self.name](self.form.net)

    def _ready(self, net: Any) -> Any:
        if self.name == "retinanet":
            networks.fold(torch, net)
            # Made beforehand: a graph copies nothing from the host.
            side = self.form.net["side"]
            shapes = [(-(-side // step), -(-side // step)) for step in (8, 16, 32, 64, 128)]
            net._anchors = anchors(shapes, side, self.device)
            self._mean, self._deviation = (torch.tensor(each, device=self.device)[:, None, None] for each in (MEAN, DEVIATION))
        return net.to(memory_format=torch.channels_last) if self.name in ("retinanet", "sdxl") else net

    def _input(self, rows: Any, kind: Any) -> Any:
        net, count = self.form.net, len(rows)
        if self.name == "retinanet":
            side = net["side"]
            pixels = rows.view(count, side, side, 3).permute(0, 3, 1, 2).float()
            return ((pixels - self._mean) / self._deviation).to(kind, memory_format=torch.channels_last)
        if self.name == "unet3d":
            return rows.view(torch.float32).view(count, *net["shape"]).to(kind)
        return rows.view(torch.float16).view(count, -1).to(kind)

    def _answers(self, net: Any, given: Any) -> Any:
        return net(given)

    def decisions(self, answers: Array) -> Array:
        """The best box's class; the class that most voxels have; of latents their signs."""
        if self.name == "retinanet":
            return answers[:, :1]
        if self.name == "unet3d":
            return answers.reshape(len(answers), -1, 8).sum(2).argmax(1)[:, None]
        return answers > 0


def network(form: forms.Form) -> Any:
    """The network of a form, for its tensors' names and shapes."""
    if form.inputs:
        from forebay.infer import language

        return language.Decoder(form.net)
    return {"retinanet": RetinaNet, "unet3d": UNet3d, "sdxl": SDXL}[form.model](form.net)


def shapes(form: forms.Form) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        made = network(form)
    return {name: tuple(values.shape) for name, values in networks.floats(made).items()}
