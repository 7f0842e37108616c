"""Recorded requests over tiers of memory and a drive: what is found where, what that moves, and what a trace may not be."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay.emulate.kvcache import prefix, replay, traces, tree
from forebay.errors import MachineError, RequestError

TOKEN = 131_072
BLOCK = 512 * TOKEN


def options(**more: Any) -> dict[str, Any]:
    given = {"folder": "model:d7-ps1010", "model": "llama3.1-8b", "speed": "1", "prefill_rate": "10000"}
    unsaid = ("gpu_tier", "host_tier", "storage_tier", "p95", "dwpd", "user_interval", "blocks", "depth", "workers", "verify")
    return {**dict.fromkeys((*unsaid, "overwrite", "overwrite_device")), **given, **more}


def mooncake(path: Path, *requests: tuple[float, list[int]], end: str = "\n") -> str:
    rows = [
        {"timestamp": ms, "input_length": 512 * len(ids), "output_length": 9, "hash_ids": ids} for ms, ids in requests
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + end)
    return str(path)


def drawn(seed: int, count: int) -> list[tuple[float, list[int]]]:
    chance, following, known = random.Random(seed), 0, [[0]]
    found = []
    for number in range(count):
        ids = [*chance.choice(known)[: chance.randint(0, 12)], *range(following + 1, following + 1 + chance.randint(1, 5))]
        following = max(following, *ids)
        known.append(ids)
        found.append((100.0 * number, ids))
    return found


@pytest.mark.promise("KVC-43")
def test_hits_are_the_longest_prefix_that_a_simpler_cache_has_and_time_is_what_the_drive_takes(tmp_path: Path) -> None:
    """One tier alone is a list of blocks, the oldest first."""
    requests = drawn(3, 300)
    trace = mooncake(tmp_path / "t", *requests)
    held: list[int] = []
    hits = 0
    for _, ids in requests:
        is_prefix = True
        for block in ids:
            is_prefix = is_prefix and block in held
            hits += is_prefix
        for block in ids:
            held = [*(each for each in held if each != block), block][-40:]
    for tier in ("gpu_tier", "host_tier", "storage_tier"):
        found = replay.replayed(trace, replay.Asked(options(**{"storage_tier": "0", tier: str(40 * BLOCK)})))
        assert found["blocks"]["hits"][tier.removesuffix("_tier")] == hits == sum(found["blocks"]["hits"].values()) > 50
    # On storage alone each hit is loaded, and each block is written once for each time that it wasn't there.
    assert found["read_bytes"] == hits * BLOCK and found["write_bytes"] == (found["blocks"]["asked"] - hits) * BLOCK
    one = mooncake(tmp_path / "one", (0, [1, 2, 3]), (1000, [1, 2, 3]))
    found = replay.replayed(one, replay.Asked(options()))
    loaded = 75e-6 + 3 * BLOCK / 14.5e9
    assert found["load_s"]["max"] == pytest.approx(loaded, rel=1e-6)
    assert found["ttft_s"]["load"]["p50"] == pytest.approx(loaded, rel=1e-6)
    assert found["ttft_s"]["recompute"]["max"] == pytest.approx(1536 / 10000)
    # What another stores meanwhile costs the loads what the drive fetches for it, as of --dir model:DRIVE without a trace.
    more = mooncake(tmp_path / "more", (0, [1, 2, 3]), (948.8, [9]), (1000, [1, 2, 3]))
    found = replay.replayed(more, replay.Asked(options()))
    assert found["load_s"]["max"] == pytest.approx(75e-6 + (3 + 24 / 512 + 8 / 256) * BLOCK / 14.5e9, rel=1e-6)
    # Two at once take twice as long; twice the drives take them as long as one.
    both = mooncake(tmp_path / "both", (0, [1, 2, 3]), (1000, [1, 2, 3]), (1000, [1, 2, 3]))
    for drives, times in (("1", 2), ("2", 1)):
        found = replay.replayed(both, replay.Asked(options(folder=f"model:d7-ps1010?drives={drives}")))
        assert found["load_s"]["max"] == pytest.approx(75e-6 + times * 3 * BLOCK / 14.5e9, rel=1e-6)


@pytest.mark.promise("KVC-43")
def test_blocks_fall_from_tier_to_tier_are_written_once_and_each_is_somewhere(tmp_path: Path) -> None:
    tiers = prefix.Tiers((4 * BLOCK, 8 * BLOCK, 30 * BLOCK))
    _, requests = traces.read(mooncake(tmp_path / "t", *drawn(5, 400)))
    moves = prefix.follow(requests, tiers, TOKEN)
    assert all(tiers.used[tier] == sum(tiers.held[tier].values()) <= (tiers.sizes[tier] or 0) for tier in range(3))
    assert not tiers.held[prefix.GPU].keys() & tiers.held[prefix.HOST].keys() and all(moves.hits)
    assert sum(moves.stores) == tiers.stored == (len(tiers.held[prefix.STORAGE]) + tiers.evicted) * BLOCK


@pytest.mark.long
@pytest.mark.promise("KVC-43")
def test_a_faster_replay_is_no_slower_a_day_and_a_drive_carries_up_to_its_p95(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "t", *drawn(7, 200))
    once = replay.replayed(trace, replay.Asked(options(p95="0.05", dwpd="1")))
    four = replay.replayed(trace, replay.Asked(options(speed="4", dwpd="1")))
    assert four["writes"]["bytes_a_day"] == pytest.approx(4 * once["writes"]["bytes_a_day"])
    assert once["writes"]["drive_writes_a_day"] == pytest.approx(once["writes"]["bytes_a_day"] / 7.68e12)
    assert once["carries"]["requests_per_s"] > 0 and "carries   " in "\n".join(replay.lines(once))
    speed = once["carries"]["speed"]
    for factor, holds in ((0.98, True), (1.1, False)):
        found = replay.replayed(trace, replay.Asked(options(speed=str(speed * factor))))
        assert (found["load_s"]["p95"] <= 0.05 and found["drive"]["write_busy"] <= 1) == holds
    # A prefill that is faster than the drive is never worth a load.
    assert replay.replayed(trace, replay.Asked(options(prefill_rate="1e9")))["loading_wins_from_tokens"] == {
        "idle_drive": None, "this_trace": None,
    }  # fmt: skip


@pytest.mark.promise("KVC-44")
def test_the_references_csv_and_burstgpts_are_read_plain_and_packed(tmp_path: Path) -> None:
    rows = ["1.0,Write,1000000,Tier-2,a,Prefill", "2.0,Read,1000000,Tier-2,a,Decode", "3.0,Read,5,Tier-2,b,Decode"]
    (tmp_path / "ref.gz").write_bytes(gzip.compress("\n".join([traces.REFERENCE, *rows, ""]).encode()))
    found = replay.replayed(str(tmp_path / "ref.gz"), replay.Asked(options()))
    assert found["trace"]["kind"] == "reference" and (found["read_bytes"], found["write_bytes"]) == (1_000_000, 1_000_000)
    assert found["blocks"]["unknown"] == 1 and found["blocks"]["hits"]["storage"] == 1
    header = traces.BURST + ",Total tokens,Log Type"
    rows = ["5,ChatGPT,600,18,618,Conversation log", "45,GPT-4,0,0,0,API log", "45,GPT-4,512,3,515,x"]
    (tmp_path / "burst").write_text("\n".join([header, *rows]))
    found = replay.replayed(str(tmp_path / "burst"), replay.Asked(options()))
    assert (found["trace"]["requests"], found["blocks"]["asked"], found["write_bytes"]) == (2, 3, 1112 * TOKEN)


GOOD = '{"timestamp": 5, "input_length": 600, "hash_ids": [1, 2]}\n'


@pytest.mark.promise("KVC-44")
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_comes_through_a_pipe_too(pack: Callable[[bytes], bytes]) -> None:
    end, begin = os.pipe()
    try:
        os.write(begin, pack(GOOD.encode() * 3))
        os.close(begin)
        assert replay.replayed(f"/dev/fd/{end}", replay.Asked(options()))["trace"]["requests"] == 3
    finally:
        os.close(end)


@pytest.mark.promise("KVC-44")
def test_a_packed_trace_without_its_library_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    (tmp_path / "z").write_bytes(traces.ZSTD + b"rest")
    with pytest.raises(MachineError, match="zstandard"):
        replay.replayed(str(tmp_path / "z"), replay.Asked(options()))


@pytest.mark.promise("KVC-44", "KVC-27")
def test_a_trace_packed_with_zstd_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")

    def requests(packed: bytes) -> int:
        (tmp_path / "t.zst").write_bytes(packed)
        return int(replay.replayed(str(tmp_path / "t.zst"), replay.Asked(options()))["trace"]["requests"])

    frame = zstandard.ZstdCompressor().compress(GOOD.encode() * 5000)
    assert requests(frame + frame) == 10_000, "frames lie one behind another"
    for broken, said in ((frame[:-9], "ends within a frame"), (frame + b"no frame", "can't be unpacked")):
        with pytest.raises(RequestError, match=said):
            requests(broken)
    long = zstandard.ZstdCompressor().compress(b"{" + bytes(20 << 20))
    with pytest.raises(RequestError, match="line 1: is longer than 16 MiB"):
        requests(long)
    rows = [tree.Operation(1.0 + n, ("Write", "Read")[n], 131_072, "storage", "a", "Prefill") for n in range(2)]
    tree.write_trace(tmp_path / "own.csv.zst", rows)
    found = replay.replayed(str(tmp_path / "own.csv.zst"), replay.Asked(options()))
    assert (found["trace"]["kind"], found["trace"]["requests"], found["read_bytes"]) == ("reference", 2, 131_072)


@pytest.mark.promise("KVC-43")
def test_the_command_says_it_and_prints_a_document(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "t", *drawn(1, 20))
    verb = [*processes.FOREBAY, "emulate", "kvcache", "replay", trace, "--dir", "model:d7-ps1010", "--json"]
    done = processes.run(verb, 60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    said = "\n".join(replay.lines(found))
    assert found["schema"] == "forebay.kvcache-replay/1" and "hits      gpu 0.0 %" in said


TINY = "layers=1,kv_heads=1,head_dim=8,dtype=bf16"


@pytest.mark.promise("KVC-47")
def test_a_folder_moves_what_virtual_time_says_and_every_byte_of_it_is_compared(tmp_path: Path) -> None:
    requests = [(at / 20, ids) for at, ids in drawn(9, 120)]
    trace = mooncake(tmp_path / "t", *requests)
    room = str(40 * 512 * 32)
    model = replay.replayed(trace, replay.Asked(options(model=TINY, storage_tier=room)))
    (tmp_path / "kv").mkdir()
    asked = options(model=TINY, storage_tier=room, folder=str(tmp_path / "kv"), verify=True, blocks="4k", p95="10", speed="2")
    found = replay.replayed(trace, replay.Asked(asked))
    folder = found["folder"]
    assert found["error"] is None and folder["lost"] == folder["given_up"] == folder["errors"]["verify_failed"] == 0
    assert (folder["read_bytes"], folder["write_bytes"]) == (model["read_bytes"], model["write_bytes"])
    assert found["blocks"] == model["blocks"] and found["blocks"]["evicted"] > 50 and found["blocks"]["hits"]["storage"] > 100
    assert folder["seconds"] >= found["trace"]["seconds"] >= 0.29 and found["load_s"]["max"] > 0
    # The one speed that was measured; nobody searches on a folder.
    assert found["carries"]["speed"] == 2 and not found["carries"]["searched"] and found["drive"] is None
    assert not list((tmp_path / "kv").iterdir())
    assert "folder    " in (said := "\n".join(replay.lines(found))) and "moved     read " in said


@pytest.mark.promise("KVC-43")
def test_users_are_those_who_go_on_with_what_they_asked(tmp_path: Path) -> None:
    """Two users every 10 s, who share a first block, and one who asks once."""
    one = [(10_000.0 * turn, [0, *range(100, 102 + turn)]) for turn in range(5)]
    two = [(10_000.0 * turn + 3000, [0, *range(200, 202 + turn)]) for turn in range(5)]
    trace = mooncake(tmp_path / "t", *sorted([*one, *two, (5000.0, [0])]))
    found = replay.replayed(trace, replay.Asked(options(p95="1")))["carries"]
    assert found["user_interval_s"] == pytest.approx(10)
    assert found["users"] == pytest.approx(found["requests_per_s"] * 10) and found["users"] > 1
    assert replay.Asked(options(p95="1", user_interval="20")).user_interval_s == 20


@pytest.mark.promise("KVC-43")
def test_a_tier_that_takes_no_block_is_refused_with_what_one_takes(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "t", (0.0, [1, 2]), (100.0, [1, 3]))
    for tier in ("gpu", "host", "storage"):
        with pytest.raises(RequestError, match=f"--{tier}-tier 1024: the smallest block of the trace has {BLOCK} bytes"):
            replay.replayed(trace, replay.Asked(options(**{f"{tier}_tier": "1k"})))


@pytest.mark.long
@pytest.mark.promise("KVC-47")
def test_a_replay_that_is_stopped_says_what_it_had_and_leaves_nothing(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "t", *((100.0 * number, [1, 2, number + 3]) for number in range(600)))
    verb = [*processes.FOREBAY, "emulate", "kvcache", "replay", trace, "--dir", str(tmp_path / "kv"), "--model", TINY, "--json"]
    with subprocess.Popen(verb, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        until = time.monotonic() + 30
        while time.monotonic() < until and not list(tmp_path.glob("kv/forebay-kv-*/rank_0/*.kv")):
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=30)
    assert run.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"] and found["folder"]["write_bytes"] > 0 and not (tmp_path / "kv").exists()
