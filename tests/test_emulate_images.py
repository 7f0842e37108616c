"""Images that Pillow wrote, decoded by emulated training (`--decode`): whole, damaged, and larger than they should be."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from properties import parametrized

image = pytest.importorskip("PIL.Image", reason="Pillow isn't installed; try: pip install pillow")

FILES, SIDE = 12, 200
WORKLOAD = """
format = "{format}"
loader = "pytorch"
record_bytes = 20000
samples_per_file = 1
files = {files}
batch = 2
read_threads = 2
prefetch = 2
epochs = 1
au_pct_min = 0
compute_s = 0.001
"""
# Pillow's mode → what it is saved with.
JPEGS = (
    ("RGB", {}),
    ("RGB", {"progressive": True}),
    ("L", {}),
    ("RGB", {"subsampling": 0, "quality": 95}),
    ("L", {"progressive": True}),
    ("CMYK", {}),
)
PNGS: tuple[tuple[str, dict[str, Any]], ...] = (("RGB", {}), ("L", {}), ("RGBA", {}), ("P", {}), ("1", {}), ("I;16", {}))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a run that breaks rescues stays out of the tree."""
    monkeypatch.chdir(tmp_path)


def picture(mode: str, number: int) -> Any:
    """Soft shapes with some noise, as photographs have."""
    random = np.random.default_rng(number)
    x, y = np.meshgrid(np.linspace(0, 6, SIDE + number), np.linspace(0, 4, SIDE))
    red = np.sin(x) * np.cos(y) * 100 + 128 + random.normal(0, 4, x.shape)
    colours = np.stack([red, np.roll(red, 30, 0), np.roll(red, 60, 1)], axis=-1).clip(0, 255).astype(np.uint8)
    if mode == "I;16":
        return image.fromarray((red.clip(0, 255) * 257).astype(np.uint16))
    return image.fromarray(colours).convert(mode)


def write(folder: Path, format: str) -> list[Path]:
    (folder / "train").mkdir(parents=True)
    kinds = JPEGS if format == "jpeg" else PNGS
    paths = [folder / "train" / f"img_{n:02}_of_{FILES}.{format}" for n in range(FILES)]
    for number, path in enumerate(paths):
        mode, options = kinds[number % len(kinds)]
        picture(mode, number).save(path, **options)
    return paths


def run(forebay: Callable[..., Any], tmp_path: Path, format: str, *flags: str) -> Any:
    (tmp_path / "images.toml").write_text(WORKLOAD.format(format=format, files=FILES))
    words = ("emulate", "run", "--workload", tmp_path / "images.toml", "--data", tmp_path / "data", "--json")
    return forebay(*words, *flags)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, packed: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.promise("TRA-19")
@parametrized("format", ["jpeg", "png"], kept=(0,))
def test_images_of_every_kind_are_decoded(forebay: Callable[..., Any], tmp_path: Path, format: str) -> None:
    write(tmp_path / "data", format)
    parsed, decoded = run(forebay, tmp_path, format), run(forebay, tmp_path, format, "--decode")
    assert decoded.returncode == 0, decoded.stderr
    plain, training = (json.loads(done.stdout)["training"] for done in (parsed, decoded))
    assert (plain["decode"], training["decode"], training["level"]) == (False, True, "parse")
    assert training["samples"] == plain["samples"] == FILES
    assert training["read_bytes"] == plain["read_bytes"]
    assert "decoded" in decoded.stderr and "decoded" not in parsed.stderr


@pytest.mark.promise("TRA-19")
@pytest.mark.long
def test_what_decoding_takes_is_counted_as_parsing(forebay: Callable[..., Any], tmp_path: Path) -> None:
    """A loader that does nothing else: most of its time goes there, by a factor of tens on an idle machine."""
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    large = picture("RGB", 1).resize((2400, 1600))
    for number in range(FILES):
        large.save(folder / f"img_{number:02}_of_{FILES}.jpeg", quality=90)
    flags = ("--epochs", "2", "--cache", "warm", "--workers", "1")
    runs = [json.loads(run(forebay, tmp_path, "jpeg", *flags, *more).stdout) for more in ((), ("--decode",))]
    cpu = [found["result"]["cpu"]["user_s"] for found in runs]
    if None in cpu:
        pytest.skip(next(r["missing"]["result.cpu"] for r in runs if r["result"]["cpu"]["user_s"] is None))
    waited = runs[1]["training"]["waited"]
    assert cpu[1] > cpu[0] + 2 * FILES * 0.002, cpu
    assert waited["parse_s"] > waited["storage_s"], waited


def broken(whole: bytes, how: str) -> bytes:
    """Framing that holds, around an image that isn't there."""
    if how == "codes":  # of one bit, more than there can be
        table = whole.index(b"\xff\xc4")
        return whole[: table + 5] + b"\x09" + whole[table + 6 :]
    if how == "bomb of a JPEG":
        frame = whole.index(b"\xff\xc0")
        return whole[: frame + 5] + struct.pack(">HH", 65500, 65500) + whole[frame + 9 :]
    if how == "bomb of a PNG":
        return png(60000, 60000, zlib.compress(bytes(1 << 20)))
    return png(100, 100, zlib.compress(bytes(300 * 100 + 100))[:-9])


@pytest.mark.promise("TRA-19")
@parametrized(
    ("format", "how", "reported"),
    [
        ("jpeg", "codes", "can't be decoded: "),
        ("jpeg", "bomb of a JPEG", "bytes of pixels, and 134217728 are the most"),
        ("png", "bomb of a PNG", "bytes of pixels, and 134217728 are the most"),
        ("png", "packed", "can't be decoded: "),
    ],
    kept=(2,),
)
def test_an_image_that_cannot_be_decoded_is_named_or_left_out(
    forebay: Callable[..., Any], tmp_path: Path, format: str, how: str, reported: str
) -> None:
    victim = write(tmp_path / "data", format)[6]
    victim.write_bytes(broken(victim.read_bytes(), how))
    # Its framing is whole: only who decodes finds out.
    assert run(forebay, tmp_path, format).returncode == 0
    done = run(forebay, tmp_path, format, "--decode")
    assert done.returncode == 4 and victim.name in done.stderr and reported in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "panicked" not in done.stderr
    skipping = run(forebay, tmp_path, format, "--decode", "--on-error", "skip")
    training = json.loads(skipping.stdout)["training"]
    assert training["skipped"]["count"] == 1 and victim.name in training["skipped"]["examples"][0]
    assert training["samples"] == FILES - 1


@pytest.mark.promise("TRA-19")
@pytest.mark.parametrize(
    ("format", "flags", "reported"),
    [
        ("jpeg", ("--level", "bytes"), "--level parse"),
        ("npz", (), "jpeg, png"),
        ("jpeg", ("--data", "model:d7-ps1010"), "has no content"),
    ],
)
def test_what_there_is_nothing_to_decode_of_is_refused(
    forebay: Callable[..., Any], tmp_path: Path, format: str, flags: tuple[str, ...], reported: str
) -> None:
    (tmp_path / "images.toml").write_text(WORKLOAD.format(format=format, files=FILES))
    data = () if "--data" in flags else ("--data", tmp_path)
    done = forebay("emulate", "run", "--workload", tmp_path / "images.toml", "--decode", *flags, *data)
    assert done.returncode == 2 and reported in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_ours_are_images_for_pillow_and_for_the_decoder(forebay: Callable[..., Any], tmp_path: Path) -> None:
    for format in ("jpeg", "png"):
        folder = tmp_path / format
        (tmp_path / f"{format}.toml").write_text(WORKLOAD.format(format=format, files=FILES))
        words = ("--workload", tmp_path / f"{format}.toml", "--data", folder)
        assert forebay("emulate", "datagen", *words).returncode == 0
        for path in (folder / "train").iterdir():
            with image.open(path) as made:
                assert made.mode == "L" and made.size == (141, 141) and len(made.tobytes()) == 141 * 141
        done = forebay("emulate", "run", *words, "--decode", "--json")
        assert done.returncode == 0 and json.loads(done.stdout)["training"]["samples"] == FILES, done.stderr
