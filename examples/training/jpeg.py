"""A folder of JPEG files as batches of images, decoded by torchvision: on the GPU where there is one.

    pip install torchvision
    python examples/training/jpeg.py                      # makes 500 images, decodes them on the processors
    python examples/training/jpeg.py --device cuda:0 --images 20000 --dir /mnt/data

The loader brings the files of a batch as one buffer and offsets; `transform` is called with it, and what it returns is the
batch. Each decoded image is compared with what was encoded.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from forebay.torch import Loader
from torchvision.io import decode_jpeg, encode_jpeg
from torchvision.transforms.v2.functional import resize

SIDE = 64


def image(number: int) -> Any:
    """An image of one colour, which tells its number, of a size of its own."""
    colour = torch.tensor([number & 15, number >> 4 & 15, number >> 8 & 15], dtype=torch.uint8) * 16 + 8
    return colour[:, None, None].expand(3, 96 + number % 5 * 16, 80 + number % 7 * 16).contiguous()


def number_of(pixels: Any) -> int:
    red, green, blue = (pixels.float().mean(dim=(1, 2)) / 16).int().tolist()
    return int(red | green << 4 | blue << 8)


class Decoded:
    """What a loader calls with each batch: images of one size, on a device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, batch: Any) -> Any:
        # Views of the batch's buffer: nothing is copied before the decoder.
        images = decode_jpeg(list(batch["data"]), device=self.device)
        return torch.stack([resize(one, [SIDE, SIDE], antialias=True) for one in images])


def run(options: argparse.Namespace, folder: Path) -> None:
    for number in range(options.images):
        (folder / f"{number:06}.jpg").write_bytes(encode_jpeg(image(number), quality=95).numpy().tobytes())
    loader = Loader(folder, options.batch, seed=options.seed, transform=Decoded(options.device))
    began, found = time.perf_counter(), list[Any]()
    for images in loader:
        found += list(images)
    took = time.perf_counter() - began
    if sorted(map(number_of, found)) != list(range(options.images)):
        raise SystemExit("an image isn't what was encoded")
    print(f"{options.images} images on {options.device}, each once: {options.images / took:,.0f} a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=500, help="4096 at most (500)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="cuda:0 if there is one")
    parser.add_argument("--dir", type=Path, help="a folder for the files (a temporary one)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if not 1 <= options.images <= 4096:
        parser.error("--images is 1 to 4096: an image's colour is its number")
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
