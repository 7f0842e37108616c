"""Qualities of the models that are trained for speed, on rows of real data that no training saw: numbers from 0 to 1.

Each takes the network, batches of fields on its device, and the device, and draws nothing from PyTorch's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

Fields = dict[str, Any]
# Boxes of an image that are looked at, those kept at most, the least score of one, and the overlap from which two are the same.
LOOKED_AT, BOXES, SCORE, SAME = 200, 50, 0.05, 0.5
# Exponents of a box's size are held to this.
EXPONENT_MAX = 4.0


def _share(right: Any, of: int) -> float:
    return float(right.item()) / of if of else 0.0


def masked_bytes(net: Any, batches: Iterator[Fields]) -> float:
    right, count = 0, 0
    for rows in batches:
        found = net.logits(rows)[0].argmax(-1)
        right += (found == rows["masked"]).sum()
        count += found.numel()
    return _share(right, count)


def next_byte(net: Any, batches: Iterator[Fields]) -> float:
    right, count = 0, 0
    for rows in batches:
        found = net.logits(rows["tokens"])[:, :-1].argmax(-1)
        right += (found == rows["tokens"][:, 1:]).sum()
        count += found.numel()
    return _share(right, count)


def classes(net: Any, batches: Iterator[Fields]) -> float:
    right, count = 0, 0
    for rows in batches:
        found = net.logits(net.normalised(rows["image"])).argmax(-1)
        right += (found == rows["label"][:, 0]).sum()
        count += len(found)
    return _share(right, count)


def velocity(net: Any, batches: Iterator[Fields]) -> float:
    """Share of the velocity's variance that the network tells, over times and noise that are the same at each evaluation."""
    import torch

    from forebay.train.unet import LATENT_SCALE, TIMES

    wrong = whole = 0.0
    draw = torch.Generator().manual_seed(0)
    for rows in batches:
        latents = LATENT_SCALE * rows["moments"].chunk(2, dim=1)[0]
        noise = torch.randn(latents.shape, generator=draw).to(latents.device)
        times = torch.randint(0, TIMES, (len(latents),), generator=draw).to(latents.device)
        share = net.kept_share[times][:, None, None, None]
        signal, scale = share.sqrt(), (1 - share).sqrt()
        wanted = signal * noise - scale * latents
        found = net.velocity(signal * latents + scale * noise, times, rows["text"]).float()
        wrong += float(((found - wanted) ** 2).sum())
        whole += float((wanted**2).sum())
    return max(0.0, 1 - wrong / whole)


def precision(net: Any, batches: Iterator[Fields]) -> float:
    """Mean over the classes of the average precision of boxes that overlap by half or more."""
    import numpy as np

    found: list[Array] = []
    there: list[Array] = []
    for first, rows in enumerate(batches):
        logits, corners, anchors = net.found(net.backbone["body"].normalised(rows["image"], net.side))
        scores = logits.float().sigmoid()
        for image in range(len(scores)):
            number = first << 20 | image
            found += [np.concatenate([[number], box]) for box in _boxes(scores[image], corners[image].float(), anchors)]
            for box, label in zip(rows["boxes"][image].tolist(), rows["labels"][image].tolist(), strict=True):
                if label >= 0:
                    there.append(np.asarray([number, label, 1.0, *box]))
    return average_precision(np.asarray(found).reshape(-1, 7), np.asarray(there).reshape(-1, 7))


def _boxes(scores: Any, corners: Any, anchors: Any) -> list[list[float]]:
    """Label, score and corners of the boxes of an image, those left out that a better one of their class covers."""
    import torch

    best, at = scores.flatten().topk(min(LOOKED_AT, scores.numel()))
    kept = best > SCORE
    best, at = best[kept], at[kept]
    label, anchor = at % scores.shape[1], anchors[at // scores.shape[1]]
    moved = corners[at // scores.shape[1]]
    wide = anchor[:, 2:] - anchor[:, :2]
    middle = anchor[:, :2] + wide / 2 + moved[:, :2] * wide
    size = wide * moved[:, 2:].clamp(max=EXPONENT_MAX).exp()
    boxes = torch.cat([middle - size / 2, middle + size / 2], dim=1).cpu().numpy()
    label, best = label.cpu().numpy(), best.cpu().numpy()
    found: list[int] = []
    for number in range(len(boxes)):
        mine = [other for other in found if label[other] == label[number]]
        if len(found) < BOXES and not (mine and (overlap(boxes[number], boxes[mine]) >= SAME).any()):
            found.append(number)
    return [[float(label[n]), float(best[n]), *map(float, boxes[n])] for n in found]


def overlap(box: Array, others: Array) -> Array:
    """Intersection over union of a box and each of (n, 4) others."""
    import numpy as np

    both = np.clip(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0, None).prod(1)
    areas = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1)
    result: Array = both / np.maximum(areas - both, 1e-9)
    return result


def average_precision(found: Array, there: Array) -> float:
    """Of rows of image, label, score and corners: found ones, best first, each take the box there that they overlap most."""
    import numpy as np

    each = []
    for label in np.unique(there[:, 1]):
        wanted = there[there[:, 1] == label]
        mine = found[found[:, 1] == label]
        taken, right = np.zeros(len(wanted), bool), []
        for row in mine[np.argsort(-mine[:, 2], kind="stable")]:
            at = np.flatnonzero((wanted[:, 0] == row[0]) & ~taken)
            over = overlap(row[3:], wanted[at, 3:]) if len(at) else np.zeros(0)
            hit = bool(len(over)) and float(over.max()) >= SAME
            if hit:
                taken[at[over.argmax()]] = True
            right.append(hit)
        hits = np.cumsum(right)
        precise = hits / np.arange(1, len(hits) + 1)
        # The precision of a recall is the best from there on.
        envelope = np.maximum.accumulate(precise[::-1])[::-1]
        each.append(float(envelope[np.asarray(right, bool)].sum()) / len(wanted) if len(hits) else 0.0)
    return sum(each) / len(each) if each else 0.0


OF: dict[str, Callable[[Any, Iterator[Fields]], float]] = {
    "bert": masked_bytes, "lora": next_byte, "diffusion": velocity, "ssd": precision, "resnet": classes
}  # fmt: skip
