"""Blocks into paged memory of a GPU, scattered where the pages lie: against the stand-in, or the real one."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

import pytest
from feed_gpu_support import Scenario, run_again_on_it, scenario, stub  # noqa: F401 - fixtures
from properties import parametrized

BLOCKS = """
import os
import tempfile
import threading

import numpy as np
from forebay import kv, staging

# Where the file lies in memory the GPU writes to it by itself.
in_memory = way == "auto" and os.access("/dev/shm", os.W_OK)
home = tempfile.TemporaryDirectory(dir="/dev/shm" if in_memory else None)

layers, pages, page, blocks, each = 4, 96, 16384, 24, 2
# A store takes several stages.
kv.STAGE_BYTES = 5 * layers * page * each
draw = np.random.default_rng(3)
held = draw.integers(0, 256, (layers, pages, page), np.uint8)

def on_gpu(content):
    made = Array(content.nbytes)
    begin()
    call("cuMemcpyHtoDAsync_v2", made.at, content.ctypes.data_as(void), ctypes.c_size_t(content.nbytes), None)
    call("cuStreamSynchronize", None)
    return made

there = draw.permutation(pages)[: blocks * each].reshape(blocks, each)
with kv.create(home.name + "/kv", layers=layers, page_bytes=page, block_pages=each, blocks=blocks, sums=True, path=way) as store:
    source = on_gpu(held)
    for some in (range(3), range(3, blocks), range(1, blocks, 2)):
        store.store(some, there[list(some)], kv.Pages(source, layers, pages), sync=len(some) > 3)
    assert [lent is not None for lent in store._lent.values()] == [True] * in_memory
    assert in_memory or len(staging._free[0]) == staging.KEPT
    for turn in range(3):
        for count in (1, 7, blocks):
            some = draw.permutation(blocks)[:count]
            to = draw.permutation(pages)[: count * each].reshape(count, each)
            into = draw.integers(0, 256, held.shape, np.uint8)
            there_now = on_gpu(into)
            paged = kv.Pages(there_now, layers, pages)
            assert paged.gpu == 0
            report = store.load([int(n) for n in some], to, paged, verify=turn == 2)
            for block, places in zip(some, to):
                into[:, places] = held[:, there[block]]
            assert there_now.bytes() == into.tobytes(), (turn, count)
            again = on_gpu(draw.integers(0, 256, held.shape, np.uint8))
            for layer in store.load_layers([int(n) for n in some], to, kv.Pages(again, layers, pages)):
                got = np.frombuffer(again.bytes(), np.uint8).reshape(held.shape)
                assert (got[layer][to.ravel()] == into[layer][to.ravel()]).all(), (turn, count, layer)
            for memory in (there_now, again):
                memory.free()
    if way == "mapped":
        assert report.mapped_bytes + report.repeated_bytes == report.bytes and not report.staged_bytes, report
    if way == "bounce":
        assert report.staged_bytes == report.bytes, report
    source.free()

# Pages that a GPU has registered, or a device's, are others once the block was written past the page cache.
with kv.create(home.name + "/again", layers=layers, page_bytes=page, block_pages=each, blocks=blocks, path=way) as store:
    for turn in range(6):
        held = draw.integers(0, 256, held.shape, np.uint8)
        source = on_gpu(held)
        store.store(range(blocks), there, kv.Pages(source, layers, pages), sync=turn % 3 > 0)
        there_now = on_gpu(np.zeros_like(held))
        for _ in range(3):
            store.load(range(blocks), there, kv.Pages(there_now, layers, pages))
        into = np.zeros_like(held)
        into[:, there.ravel()] = held[:, there.ravel()]
        assert there_now.bytes() == into.tobytes(), turn
        source.free()
        there_now.free()

# Blocks of more bytes than a stage has are staged by layers, and stores of several threads have stages of their own.
kv.STAGE_BYTES = 2 * page * each
failures = []

def stores_on(number):
    try:
        draw = np.random.default_rng(number)
        with kv.create(f"{home.name}/{number}", layers=layers, page_bytes=page, block_pages=each, blocks=3, path=way) as store:
            for turn in range(2):
                held = draw.integers(0, 256, (layers, 12, page), np.uint8)
                source, there_now = on_gpu(held), on_gpu(np.zeros_like(held))
                tables = draw.permutation(12)[:6].reshape(3, 2)
                store.store(range(3), tables, kv.Pages(source, layers, 12), sync=turn % 2 > 0)
                store.load(range(3), tables, kv.Pages(there_now, layers, 12))
                into = np.zeros_like(held)
                into[:, tables.ravel()] = held[:, tables.ravel()]
                assert there_now.bytes() == into.tobytes(), turn
                source.free()
                there_now.free()
                forebay.release()
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=stores_on, args=(n,)) for n in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failures, failures
child = os.fork()
if child == 0:
    # What its parent has pinned is none of its own.
    gc.collect()
    os._exit(0 if not any(staging._free.values()) else 1)
assert os.waitpid(child, 0)[1] == 0

# A store that is half full: the rest of its file was never written.
with kv.create(home.name + "/half", layers=layers, page_bytes=page, block_pages=each, blocks=16 * blocks, path=way) as store:
    source = on_gpu(held)
    for turn in range(8):
        store.store(range(turn * blocks, (turn + 1) * blocks), there, kv.Pages(source, layers, pages))
    for turn in range(3):
        into = draw.integers(0, 256, held.shape, np.uint8)
        there_now = on_gpu(into)
        report = store.load(range(blocks), there, kv.Pages(there_now, layers, pages))
        into[:, there.ravel()] = held[:, there.ravel()]
        assert there_now.bytes() == into.tobytes(), turn
        there_now.free()
    if way == "mapped":
        assert report.mapped_bytes == report.bytes, report
    source.free()
home.cleanup()
forebay.release()
gc.collect()
left = live()["live"]
assert left["registrations"] == left["streams"] == left["events"] == 0, left
"""


@pytest.mark.promise("KVC-45")
@parametrized("way", ["mapped", "bounce", pytest.param("auto", marks=pytest.mark.long)], kept=(0,))
def test_blocks_reach_their_pages_on_a_gpu_and_no_other(scenario: Scenario, way: str) -> None:
    scenario(f"way = {way!r}\n" + BLOCKS, "hash=0")


@pytest.mark.gpu
def test_these_on_the_real_gpu() -> None:
    run_again_on_it(__file__)
