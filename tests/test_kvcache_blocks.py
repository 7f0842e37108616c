"""`emulate kvcache run`: blocks of every size reach their pages and are checked; what isn't hidden is told, nothing is left."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from forebay import kv, model_runs
from forebay.bench.interrupt import Interrupt
from forebay.emulate.kvcache import blocks
from forebay.errors import CheckFailed, MachineError, RequestError, RunError

# 16 tokens of a layer take 4 KiB, of all four 16 KiB.
TINY = "layers=4,kv_heads=1,head_dim=64,dtype=bf16"


def options(where: Path, **more: Any) -> dict[str, Any]:
    given = {"folder": str(where), "blocks": "16k", "model": TINY, "layers": "4", "tokens": "128", "requests": "3", "size": "1m"}
    rest = {"layer_time": None, "ahead": "2", "gpu": None, "path": "auto", "cold": False, "seed": "1", "verify": True}
    return {**given, **rest, **more}


@pytest.mark.promise("KVC-48")
@pytest.mark.parametrize(("size", "moved"), [("4k", 8), ("16k", 8), ("64k", 2)])
def test_blocks_of_each_size_are_stored_loaded_and_compared(tmp_path: Path, size: str, moved: int) -> None:
    asked = blocks.Asked(options(tmp_path, blocks=size, layer_time="0.002", cold=True))
    found = blocks.measure(asked, Interrupt())
    assert found["page_bytes"] == 4096 and found["blocks_of_request"] == moved and found["by_layer"] == (size == "4k")
    load = found["load"]
    assert load["bytes"] == found["verified_bytes"] == 3 * 8 * 16384 and found["store"]["bytes"] == 1 << 20
    # Four layers are calculated; what isn't hidden comes before it.
    assert found["ttft_s"]["p50"] >= found["exposed_s"]["p50"] + 4 * 0.002
    assert found["requests"] == 3 and not found["interrupted"] and not list(tmp_path.iterdir())
    assert any(line.startswith("exposed ") for line in blocks.lines(found))


@pytest.mark.promise("KVC-48")
def test_a_damaged_block_ends_it_with_its_key_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(name: str) -> None:
        with open(name, "r+b") as raw:
            raw.seek(-20, 2)
            raw.write(b"damage")

    monkeypatch.setattr(blocks, "drop", damage)
    asked = blocks.Asked(options(tmp_path, cold=True, size="128k"))
    with pytest.raises(CheckFailed, match="block 7 at offset"):
        blocks.measure(asked, Interrupt())
    assert not list(tmp_path.iterdir())


@pytest.mark.promise("KVC-48")
def test_what_was_measured_before_a_stop_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt = Interrupt()
    monkeypatch.setattr(blocks, "drop", lambda name: setattr(interrupt, "requested", True))
    found = blocks.measure(blocks.Asked(options(tmp_path, cold=True)), interrupt)
    assert found["interrupted"] and found["requests"] == 1 and found["load"]["bytes"] == 8 * 16384
    interrupt.requested = True
    found = blocks.measure(blocks.Asked(options(tmp_path)), interrupt)
    assert found["requests"] == 0 and found["load"]["gib_s"] is None and blocks.lines(found)


@pytest.mark.promise("KVC-48")
def test_another_run_in_the_folder_is_refused_and_what_a_killed_one_left_is_named(tmp_path: Path, capsys: Any) -> None:
    name = str(tmp_path / "forebay-kv-0123456789abcdef.kv")
    with kv.create(name, layers=1, page_bytes=4096, block_pages=1, blocks=1):
        with pytest.raises(MachineError, match="another run keeps its blocks there"):
            blocks.measure(blocks.Asked(options(tmp_path)), Interrupt())
        # Nor does `emulate kvcache` begin beside it.
        code, _, err = typed(capsys, "emulate", "kvcache", "--dir", tmp_path, "--users", "1", "--duration", "0.1")
        assert code == 3 and "another run keeps its cache there" in err
    found = blocks.measure(blocks.Asked(options(tmp_path)), Interrupt())
    assert found["left"] == [name] and any(name in line for line in blocks.lines(found))
    assert [str(each) for each in tmp_path.iterdir()] == [name]
    own = tmp_path / "forebay-kv-fedcba9876543210"
    own.mkdir()
    with open(own / ".forebay.json", "w") as manifest:
        fcntl.flock(manifest, fcntl.LOCK_EX)
        with pytest.raises(MachineError, match="another run keeps its blocks there, in forebay-kv-fedcba9876543210"):
            blocks.measure(blocks.Asked(options(tmp_path)), Interrupt())


@pytest.mark.promise("KVC-48")
def test_pages_beyond_memory_are_refused_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runs, "available_bytes", lambda: 4096)
    with pytest.raises(MachineError, match="which holds two requests"):
        blocks.measure(blocks.Asked(options(tmp_path)), Interrupt())
    assert not list(tmp_path.iterdir())


@pytest.mark.promise("KVC-48")
def test_what_cannot_be_is_refused_with_what_would(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for more, said in (
        ({"folder": None}, "no folder"),
        ({"folder": str(tmp_path / "none")}, "no folder that is there"),
        ({"blocks": "6k"}, "a page of 16 tokens has 4096 bytes, and a block 16384 or a multiple"),
        ({"layers": "3"}, "don't divide"),
        ({"tokens": "0"}, "must be 1 or more"),
        ({"size": "16k"}, "a request loads 8 blocks"),
        ({"model": "gpt-9"}, "gpt-9"),
        ({"layer_time": "x"}, "--layer-time"),
    ):
        with pytest.raises(RequestError, match=said):
            blocks.Asked(options(tmp_path, **more))
    with pytest.raises(RunError, match=r"--size \d+ in .*(No space left on device|File too large)"):
        blocks.measure(blocks.Asked(options(tmp_path, size="4000t", blocks="4m")), Interrupt())
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MachineError, match="PyTorch isn't installed"):
        blocks.measure(blocks.Asked(options(tmp_path, gpu="0")), Interrupt())
    words = ["--dir", str(tmp_path), "--model", TINY, "--layers", "4", "--blocks", "16k", "--size", "1m", "--tokens", "64"]
    code, out, _ = typed(capsys, "emulate", "kvcache", "run", *words, "--json")
    assert code == 0 and json.loads(out)["schema"] == "forebay.kvcache-blocks/1" and not list(tmp_path.iterdir())
