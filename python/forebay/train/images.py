"""Networks of images in PyTorch: ResNet, and RetinaNet over it. Parameters are named as torchvision names its own.

Images come as they are stored, (n, side, side, 3) of bytes, and are normalised and enlarged on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from forebay.errors import MachineError

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    found = f"PyTorch can't be imported: {error}"
    raise MachineError("forebay.train.images", found, "pip install torch; or forebay train toy, which needs none") from None

# Of the images that the benchmarks were made with, in bytes.
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
# Anchors: sides at each level, in pixels, and heights over widths. Overlap from which one has a box, and below which none.
SIDES, RATIOS = (32, 64, 128, 256, 512), (0.5, 1.0, 2.0)
OVER, UNDER = 0.5, 0.4
# The focal loss's share of what is there, and its exponent.
ALPHA, GAMMA = 0.25, 2.0


class Bottleneck(nn.Module):
    """`groups`, `wide`: of the layer of 3 × 3, as ResNeXt has it."""

    def __init__(self, inputs: int, width: int, stride: int, groups: int = 1, wide: int = 1) -> None:
        super().__init__()
        outputs, inner = 4 * width, wide * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        kept = x if self.downsample is None else self.downsample(x)
        found = self.relu(self.bn1(self.conv1(x)))
        found = self.relu(self.bn2(self.conv2(found)))
        return self.relu(self.bn3(self.conv3(found)) + kept)


class ResNet(nn.Module):
    """As its paper has it, the stride in the layer of 3 × 3. `classes` None: a trunk, without the last layer."""

    def __init__(
        self, width: int, depths: Sequence[int], classes: int | None, groups: int = 1, inner: int = 1
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        inputs = width
        for number, depth in enumerate(depths):
            wide = width << number
            blocks = []
            for block in range(depth):
                blocks.append(Bottleneck(inputs, wide, 2 if number and not block else 1, groups, inner))
                inputs = 4 * wide
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
        self.outputs = inputs
        if classes is not None:
            self.fc = nn.Linear(inputs, classes)
        for name, value in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(value)[:, None, None], persistent=False)

    def normalised(self, image: Any, side: int | None = None) -> Any:
        """Images as the first layer takes them, channels last in memory, so large."""
        # A view: bytes lie channels last already.
        found = (image.permute(0, 3, 1, 2).float() - self.mean) / self.deviation
        if side is not None and side != image.shape[1]:
            found = functional.interpolate(found, size=(side, side), mode="bilinear", align_corners=False)
        return found.contiguous(memory_format=torch.channels_last)

    def levels(self, x: Any) -> list[Any]:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        found = []
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
            found.append(x)
        return found

    def logits(self, x: Any) -> Any:
        return self.fc(self.levels(x)[-1].mean((2, 3)))

    def forward(self, rows: dict[str, Any]) -> Any:
        return functional.cross_entropy(self.logits(self.normalised(rows["image"])).float(), rows["label"][:, 0].long())


class Pyramid(nn.Module):
    """Levels of one width, from the coarsest on added up, and two coarser ones."""

    def __init__(self, inputs: Sequence[int], width: int) -> None:
        super().__init__()

        def one(wide: int, kernel: int) -> Any:
            return nn.Sequential(nn.Conv2d(wide, width, kernel, padding=kernel // 2))

        self.inner_blocks = nn.ModuleList(one(wide, 1) for wide in inputs)
        self.layer_blocks = nn.ModuleList(one(width, 3) for _ in inputs)
        self.extra_blocks = nn.ModuleDict({name: nn.Conv2d(width, width, 3, 2, 1) for name in ("p6", "p7")})

    def forward(self, levels: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        last = None
        for inner, layer, level in zip(self.inner_blocks[::-1], self.layer_blocks[::-1], levels[::-1], strict=True):
            below = inner(level)
            last = below if last is None else below + functional.interpolate(last, size=below.shape[-2:], mode="nearest")
            found.insert(0, layer(last))
        p6 = self.extra_blocks["p6"](found[-1])
        return [*found, p6, self.extra_blocks["p7"](functional.relu(p6))]


class Head(nn.Module):
    """Four layers that all levels share, and `outputs` numbers for each anchor."""

    def __init__(self, width: int, outputs: int, last: str) -> None:
        super().__init__()
        self.conv = nn.Sequential(*(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(4)))
        self.outputs, self.last = outputs, last
        self.add_module(last, nn.Conv2d(width, 3 * len(RATIOS) * outputs, 3, padding=1))

    def forward(self, levels: Sequence[Any]) -> Any:
        found = []
        for level in levels:
            each = getattr(self, self.last)(self.conv(level))
            found.append(each.permute(0, 2, 3, 1).reshape(len(each), -1, self.outputs))
        return torch.cat(found, dim=1)


class RetinaNet(nn.Module):
    """Classes and corners of boxes for each anchor of five levels; focal loss, and the distance of what has a box."""

    def __init__(self, net: dict[str, Any]) -> None:
        super().__init__()
        self.side, self.classes = net["side"], net["classes"]
        trunk = ResNet(net["width"], net["depths"], None, net.get("groups", 1), net.get("wide", 1))
        wide = [trunk.outputs >> 2, trunk.outputs >> 1, trunk.outputs]
        self.backbone = nn.ModuleDict({"body": trunk, "fpn": Pyramid(wide, net["inner"])})
        self.head = nn.ModuleDict({
            "classification_head": Head(net["inner"], self.classes, "cls_logits"),
            "regression_head": Head(net["inner"], 4, "bbox_reg"),
        })  # fmt: skip
        self._anchors: Any = None

    def start(self) -> None:
        """Every class is rare at first; so much that the loss doesn't drown in what isn't there."""
        last = self.head["classification_head"].cls_logits
        nn.init.constant_(last.bias, -math.log((1 - 0.01) / 0.01))

    def found(self, x: Any) -> tuple[Any, Any, Any]:
        """Logits and corners of each anchor, and the anchors."""
        levels = self.backbone["fpn"](self.backbone["body"].levels(x)[1:])
        if self._anchors is None or self._anchors.device != x.device:
            self._anchors = anchors([level.shape[-2:] for level in levels], self.side, x.device)
        return self.head["classification_head"](levels), self.head["regression_head"](levels), self._anchors

    def forward(self, rows: dict[str, Any]) -> Any:
        logits, corners, anchors_ = self.found(self.backbone["body"].normalised(rows["image"], self.side))
        return losses(logits.float(), corners.float(), anchors_, rows["boxes"], rows["labels"].long())


def anchors(shapes: Sequence[tuple[int, int]], side: int, device: Any) -> Any:
    """(anchors, 4) corners, in pixels of the image, of all levels in turn."""
    found = []
    for (high, wide), size in zip(shapes, SIDES, strict=True):
        scales = torch.tensor([size, int(size * 2 ** (1 / 3)), int(size * 2 ** (2 / 3))], dtype=torch.float32)
        ratios = torch.tensor(RATIOS).sqrt()
        w, h = (1 / ratios[:, None] * scales).view(-1), (ratios[:, None] * scales).view(-1)
        base = (torch.stack([-w, -h, w, h], dim=1) / 2).round()
        x, y = torch.arange(wide) * float(side // wide), torch.arange(high) * float(side // high)
        yy, xx = torch.meshgrid(y, x, indexing="ij")
        shift = torch.stack([xx, yy, xx, yy], dim=-1).view(-1, 1, 4)
        found.append((shift + base).view(-1, 4))
    return torch.cat(found).to(device)


def overlaps(boxes: Any, anchors_: Any) -> Any:
    """Intersection over union, (n, boxes, anchors)."""
    low = torch.maximum(boxes[:, :, None, :2], anchors_[:, :2])
    high = torch.minimum(boxes[:, :, None, 2:], anchors_[:, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    areas = (boxes[:, :, 2:] - boxes[:, :, :2]).prod(-1), (anchors_[:, 2:] - anchors_[:, :2]).prod(-1)
    return both / (areas[0][:, :, None] + areas[1] - both).clamp(min=1e-6)


def matches(boxes: Any, there: Any, anchors_: Any) -> Any:
    """The box of each anchor, (n, anchors): -1 has none, -2 is neither here nor there. A box has its best anchors at least."""
    over = overlaps(boxes, anchors_).masked_fill(~there[:, :, None], -1.0)
    best, which = over.max(1)
    found = torch.where(best < UNDER, -1, torch.where(best < OVER, -2, which))
    highest = over.max(2, keepdim=True).values
    kept = ((over == highest) & (highest > 0)).any(1)
    return torch.where(kept, which, found)


def absent(logits: Any) -> Any:
    """The focal loss, but for its share, of what isn't there: weighed by the chance of being wrong."""
    return torch.sigmoid(logits) ** GAMMA * functional.softplus(logits)


def losses(logits: Any, corners: Any, anchors_: Any, boxes: Any, labels: Any) -> Any:
    """Of all images alike: each one's sums over the number of its anchors that have a box. No wait for the device."""
    with torch.no_grad():
        found = matches(boxes, labels >= 0, anchors_)
        has = found >= 0
        count = has.sum(1).clamp(min=1)
        at = found.clamp(min=0)
        label = labels.gather(1, at).clamp(min=0)
        wide = anchors_[:, 2:] - anchors_[:, :2]
        middle = anchors_[:, :2] + wide / 2
        mine = boxes.gather(1, at[:, :, None].expand(-1, -1, 4))
        size = torch.where(has[:, :, None], mine[:, :, 2:] - mine[:, :, :2], wide)
        moved = (mine[:, :, :2] + size / 2 - middle) / wide
        wanted = torch.cat([moved, (size / wide).clamp(min=1e-6).log()], dim=2)
    # Of every class as if it weren't there, which is most of it, and the difference for the one that is: few kernels.
    own = logits.gather(2, label[:, :, None])[:, :, 0]
    each = absent(logits).sum(2) + has * (ALPHA / (1 - ALPHA) * absent(-own) - absent(own))
    classes = (1 - ALPHA) * (each * (found != -2)).sum(1) / count
    distance = ((corners - wanted).abs().sum(2) * has).sum(1) / count
    return classes.mean() + distance.mean()
