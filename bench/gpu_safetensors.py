"""A cached safetensors file of many tensors → the GPU: forebay.safetensors beside four other loaders.

The file has the tensors of a decoder-only language model: per layer four attention and three MLP matrices and two
norms, in bfloat16, plus an embedding and a head. Every run loads all of it into new tensors.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from child import Child, asked, closing
from gpu import COPY, arguments, cached, copy_rate, fastest, ready, run_main
from side_by_side import GIB, Bound, Cell, compare, say

PROMISES = ("MSR-11",)

OURS, FAST, PLAIN = "forebay.safetensors.load", "fastsafetensors", "safetensors"
BALANCE = "the same, prefer=balance"
INSTANT, STREAMED = "InstantTensor", "Run:ai's streamer"
PEERS = (FAST, PLAIN, INSTANT, STREAMED)
BOUNDS = [
    Bound("rate", PEERS, at_least=1.0, pick="fastest"),
    Bound("cost", PEERS, at_most=0.5, pick="fastest", of=BALANCE),
    Bound("rate", (COPY,), at_least=0.9),
]
HIDDEN, MLP, KEYS, VOCABULARY = 4096, 14336, 1024, 128256


def shapes(total: int) -> dict[str, list[int]]:
    """Names and shapes of bfloat16 tensors, whole layers until `total` bytes are passed."""
    found = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}
    layer = {
        "self_attn.q_proj": [HIDDEN, HIDDEN],
        "self_attn.k_proj": [KEYS, HIDDEN],
        "self_attn.v_proj": [KEYS, HIDDEN],
        "self_attn.o_proj": [HIDDEN, HIDDEN],
        "mlp.gate_proj": [MLP, HIDDEN],
        "mlp.up_proj": [MLP, HIDDEN],
        "mlp.down_proj": [HIDDEN, MLP],
        "input_layernorm": [HIDDEN],
        "post_attention_layernorm": [HIDDEN],
    }
    number = 0
    while sum(map(size, found.values())) < total:
        found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        number += 1
    return found


def size(shape: list[int]) -> int:
    bytes_each = 2
    for extent in shape:
        bytes_each *= extent
    return bytes_each


def write(file: Path, tensors: dict[str, list[int]]) -> None:
    """Header, then the tensors' bytes one after the other (the format: huggingface/safetensors, README)."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size(shape)]}
        offset += size(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = os.urandom(16 << 20)
    with open(file, "wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, offset, len(block)):
            handle.write(block[: offset - start])
        handle.flush()
        os.fsync(handle.fileno())


def model_file(options: argparse.Namespace) -> Path:
    file = options.dir / "forebay-gpu.safetensors"
    tensors = shapes(int(options.file_gib * GIB))
    payload = sum(map(size, tensors.values()))
    if not file.exists() or not payload < file.stat().st_size < payload + (1 << 20):
        write(file, tensors)
    cached(file)
    say(f"{file.name}: {len(tensors)} tensors, {payload / GIB:.2f} GiB")
    return file


def cell(options: argparse.Namespace, children: dict[str, Child]) -> Cell:
    made = Cell(f"{options.file_gib:g} GiB, cached", [], BOUNDS, ours=OURS)
    settings = [{"threads": 16, "gds": 0}, {"threads": 8, "gds": 0}, {"threads": 16, "gds": 1}]

    def fast(setting: dict[str, Any]) -> Any:
        return asked(FAST, children[FAST], **setting)

    fastest(made, options, OURS, lambda _: asked(OURS, children[OURS]))
    fastest(made, options, BALANCE, lambda _: asked(BALANCE, children[BALANCE], prefer="balance"))
    fastest(made, options, FAST, fast, settings, lambda s: f"{s['threads']} threads{', cuFile' if s['gds'] else ''}")
    backends = [{"buffered": 1}, {"buffered": 0}]

    def instant(setting: dict[str, Any]) -> Any:
        return asked(INSTANT, children[INSTANT], **setting)

    fastest(made, options, INSTANT, instant, backends, lambda s: f"buffered {s['buffered']}")
    for name in (PLAIN, STREAMED):
        fastest(made, options, name, lambda _, name=name: asked(name, children[name]))  # type: ignore[misc]
    fastest(made, options, COPY, lambda _: copy_rate(children[COPY]))
    return made


def main() -> int:
    parser = arguments(__doc__ or "", only=False)
    parser.set_defaults(file_gib=8)
    options = ready(parser)
    file = str(model_file(options))
    children = {
        OURS: Child("child_forebay.py", "safetensors", "0", file),
        BALANCE: Child("child_forebay.py", "safetensors", "0", file),
        FAST: Child("child_safetensors.py", "fastsafetensors", file),
        PLAIN: Child("child_safetensors.py", "safetensors", file),
        INSTANT: Child("child_safetensors.py", "instanttensor", file),
        STREAMED: Child("child_safetensors.py", "runai", file),
        COPY: Child("child_copy.py", "0"),
    }
    with closing(*children.values()):
        return compare("Into the GPU, safetensors", options, [lambda: cell(options, children)])


if __name__ == "__main__":
    run_main(main)
