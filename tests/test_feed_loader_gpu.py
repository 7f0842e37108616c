"""`forebay.feed.Loader` into memory of a GPU: against the stand-in, whose kernels the host runs, or the real one."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

from pathlib import Path

import pytest
from feed_gpu_support import ON_REAL_GPU, Scenario, run_again_on_it, scenario, stub  # noqa: F401 - fixtures
from properties import parametrized

LOADER = """
import numpy as np
from forebay import _core, feed

ROW = 912
whole = SIZE // ROW
open(path, "r+b").truncate(whole * ROW)
rows = np.frombuffer(content[:whole * ROW], "u1").reshape(whole, ROW)
data = feed.rows(path, np.dtype(("u1", (ROW,))))

def on_host(batch):
    column = batch["data"]
    assert column.__dlpack_device__() == (2, 0)
    got = _core.device_bytes(0, 0, column.address, batch.rows * ROW)
    return np.frombuffer(got, "u1").reshape(batch.rows, ROW)

def epoch(loader):
    for batch in loader:
        assert (on_host(batch) == rows[loader.samples_at(batch.position, batch.rows, batch.epoch)]).all()

host = feed.Loader(data, 1000, seed=3)
for batch in host: del batch
"""


@pytest.mark.promise("FEED-12")
@parametrized("path", ["auto", "mapped", "bounce"], kept=(1,))
def test_batches_on_a_gpu_are_what_the_host_would_get_by_every_path(scenario: Scenario, path: str) -> None:
    scenario(
        LOADER
        + f"""
loader = feed.Loader(data, 700, seed=3, device="cuda:0", path={path!r}, prefetch=3)
hashes = [loader.hash]
for turn in range(3):
    epoch(loader)
    hashes.append(loader.hash)
assert hashes[1] == host.hash, (hashes, host.hash)
record = loader.record()
assert record["path"]["destination"] == "gpu:0" and record["feed"]["samples"] == 3 * whole
assert record["result"]["bytes"] == 3 * whole * ROW
if {path!r} == "mapped":
    assert record["path"]["mapped_bytes"] > 2 * whole * ROW, record["path"]
    # Once the GPU may read the whole file it computes the order, too: a launch for the numbers, and one for the rows.
    before = live().get("launches", 0)
    epoch(loader)
    assert live().get("launches", 1000) - before >= 2 * len(loader)
for shuffle in ("blocks", "none"):
    epoch(feed.Loader(data, 333, seed=1, shuffle=shuffle, device="cuda", path={path!r}))
loader.close()
forebay.release()
gc.collect()
left = live()["live"]
assert left["registrations"] == left["streams"] == left["events"] == 0, left
"""
    )


@pytest.mark.promise("FEED-12")
@parametrized("cache", ["bypass", "fill"], kept=(0, 1))
def test_blocks_that_are_not_cached_come_whole_and_the_gpu_takes_rows_out_of_them(scenario: Scenario, cache: str) -> None:
    scenario(
        LOADER
        + f"""
import os, re
def calls_to_read():
    return int(re.search(r"syscr: (\\d+)", open("/proc/self/io").read())[1])
blocks = feed.Loader(data, 1000, seed=3, shuffle="blocks")
epoch_on_host = [batch.rows for batch in blocks]
host.close(), blocks.close()
with open(path, "rb") as file:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
loader = feed.Loader(data, 1000, seed=3, shuffle="blocks", device="cuda:0", cache={cache!r})
before = calls_to_read()
for turn in range(2):
    epoch(loader)
assert int(loader.hash, 16) != 0 and loader.record()["result"]["bytes"] == 2 * whole * ROW
# A row isn't a read of its own.
assert calls_to_read() - before < whole / 4, calls_to_read() - before
loader.close()
forebay.release()
gc.collect()
left = live()["live"]
assert left["registrations"] == left["streams"] == left["events"] == 0, left
"""
    )


@pytest.mark.promise("FEED-12")
def test_blocks_of_long_rows_that_are_not_cached_come_whole_too(scenario: Scenario) -> None:
    scenario(
        LOADER.replace("ROW = 912", "ROW = 100_352").replace("data, 1000", "data, 20")
        + """
import os
host.close()
with open(path, "rb") as file:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
loader = feed.Loader(data, 20, seed=3, shuffle="blocks", device="cuda:0")
cold = loader.cached_share() == 0
epoch(loader)
record = loader.record()
assert int(loader.hash, 16) != 0 and record["result"]["bytes"] == whole * ROW
# The GPU takes a batch's rows by one launch; none is copied there by itself.
books = live()
if cold and "launches" in books:
    assert books["launches"] > 0 and books["calls"]["cuMemcpyHtoDAsync_v2"] < whole / 2, books
loader.close()
forebay.release()
gc.collect()
left = live()["live"]
assert left["registrations"] == left["streams"] == left["events"] == 0, left
"""
    )


@pytest.mark.long
@pytest.mark.promise("FEED-12")
def test_a_resumed_epoch_adds_up_also_where_the_gpu_computes_the_order(scenario: Scenario) -> None:
    scenario(
        LOADER
        + """
first = feed.Loader(data, 512, seed=3, device="cuda", path="mapped")
for number, batch in enumerate(first):
    if number == 7: break
del batch
state = first.state_dict()
parts = [first]
for rank in range(3):
    part = feed.Loader(data, 100, seed=3, device="cuda", path="mapped", rank=rank, world=3)
    part.load_state_dict(state)
    epoch(part)
    parts.append(part)
assert sum(int(part.hash, 16) for part in parts) % 2**64 == int(host.hash, 16)
"""
    )


@pytest.mark.promise("FEED-5", "FEED-12")
def test_memory_is_not_written_to_while_a_consumer_s_stream_may_read_it(scenario: Scenario) -> None:
    """The consumer copies from its batch on a stream of its own, slowly, and drops the batch at once."""
    books = scenario(
        LOADER
        + """
begin()
stream = void()
call("cuStreamCreate", ctypes.byref(stream), 1)
held = []
loader = feed.Loader(data, 1000, seed=3, device="cuda", path="bounce", prefetch=1, pin_limit=2 * 913408)
for batch in loader:
    out = ctypes.create_string_buffer(batch.rows * ROW)
    column = batch["data"]
    capsule = column.__dlpack__(stream=stream.value)
    call("cuMemcpyDtoHAsync_v2", out, ctypes.c_uint64(column.address), ctypes.c_size_t(len(out)), stream)
    held.append((out, loader.samples_at(batch.position, batch.rows, batch.epoch)))
    del batch, column, capsule
call("cuStreamSynchronize", stream)
for out, samples in held:
    assert (np.frombuffer(out, "u1").reshape(-1, ROW) == rows[samples]).all()
call("cuStreamDestroy_v2", stream)
""",
        "delay_us=2000",
    )
    assert ON_REAL_GPU or books["changed_under_copy"] == 0


@pytest.mark.long
@pytest.mark.promise("FEED-12")
def test_a_gpu_with_memory_for_few_batches_has_fewer_read_ahead_and_with_too_little_an_error(scenario: Scenario) -> None:
    scenario(
        LOADER
        + """
loader = feed.Loader(data, 500, device="cuda", path="bounce", prefetch=9)
epoch(loader)
assert 3 <= loader.record()["feed"]["memory_bytes"] // 458752 < 9
loader.close()
try:
    list(feed.Loader(data, 2000, device="cuda", prefetch=9))
except MachineError as error:
    assert "bytes of gpu:0 memory for a batch" in str(error) and "batch_size" in str(error), error
else:
    sys.exit("there was enough")
try:
    feed.Loader(data, 500, device="cuda:99")
except RequestError as error:
    assert error.next == 'device="cuda:0"', error
else:
    sys.exit("there is no such GPU")
""",
        "memory=3000000",
    )


@pytest.mark.long
@pytest.mark.promise("FEED-12")
def test_pinned_batches_are_pinned_and_unpinned(scenario: Scenario) -> None:
    scenario(
        LOADER
        + """
loader = feed.Loader(data, 1000, device="pinned", seed=3)
for batch in loader:
    assert (np.from_dlpack(batch["data"]) == rows[loader.samples_at(batch.position, batch.rows)]).all()
if hasattr(cuda, "forebay_stub_ledger"):
    assert live()["live"]["registrations"] > 0
assert loader.hash == host.hash
del loader, batch
gc.collect()
assert live()["live"]["registrations"] == 0 or not hasattr(cuda, "forebay_stub_ledger")
"""
    )


@pytest.mark.promise("FEED-17")
@pytest.mark.parametrize(("mode", "ran"), [("mode=p2p,io_max=65536", "gds-mixed"), ("mode=compat", "gds-compat")])
def test_batches_come_through_cufile_and_the_record_says_how(scenario: Scenario, stub: Path, mode: str, ran: str) -> None:
    """Whole pages go direct where cuFile can; reads that it cuts short are gone on with."""
    if ON_REAL_GPU:
        pytest.skip("what cuFile can there, forebay validate finds")
    scenario(
        LOADER
        + f"""
# 256 rows are whole pages, but for the epoch's end; rows one by one are none.
for shuffle, ran in (("none", {ran!r}), ("blocks", "gds-compat")):
    there, here = [feed.Loader(data, 256, seed=3, shuffle=shuffle, device=device, path="gds") for device in ("cuda:0", "cpu")]
    epoch(there)
    for batch in here: del batch
    assert there.hash == here.hash
    record = there.record()
    ways = record["path"]
    assert (ways["requested"], ways["ran"], ways["engine"]) == ("gds", ran, "cufile"), ways
    assert ways["direct_bytes"] + ways["compat_bytes"] == whole * ROW and not ways["staged_bytes"] + ways["mapped_bytes"], ways
    assert bool(ways["direct_bytes"]) == (ran != "gds-compat") and ways["compat_bytes"], ways
    assert record["cufile"]["buffers_registered"] and record["cufile"]["unaligned_ios"] > 0, record["cufile"]
    assert "gds_compat" in [w["id"] for w in record["warnings"]], record["warnings"]
    there.close(), here.close()
try:
    forebay.open(path, "gds")
except RequestError as error:
    assert "a Loader reads batches" in str(error), error
else:
    sys.exit("it was opened")
loader = feed.Loader(data, 1000, device="cuda", shuffle="none", path="gds", prefetch=1)
os.truncate(path, 5 * 1000 * ROW)
try:
    epoch(loader)
except RunError as error:
    assert path in str(error), error
else:
    sys.exit("a file that was cut short was read")
loader.close()
forebay.release()
gc.collect()
left = live()["live"]
assert not any(n for name, n in left.items() if name != "modules"), left
""",
        FOREBAY_LIBCUFILE=str(stub.with_name("libcufile.so.0")),
        FOREBAY_STUB_CUFILE=mode,
    )


@pytest.mark.promise("FEED-17", "FEED-9")
def test_a_read_that_cufile_fails_names_the_file_and_the_next_call_reads_the_batch_again(scenario: Scenario, stub: Path) -> None:
    if ON_REAL_GPU:
        pytest.skip("its cuFile fails when it likes")
    scenario(
        LOADER
        + """
loader, failed = feed.Loader(data, 512, device="cuda", shuffle="none", path="gds", prefetch=2), 0
host = feed.Loader(data, 512, shuffle="none")
for batch in host: del batch
while True:
    try:
        batch = loader.take()
    except RunError as error:
        assert path in str(error) and "cuFileRead" in str(error), error
        failed += 1
        continue
    if batch is None: break
    assert (on_host(batch) == rows[loader.samples_at(batch.position, batch.rows, batch.epoch)]).all()
    del batch
assert failed == 1 and loader.hash == host.hash, failed
""",
        FOREBAY_LIBCUFILE=str(stub.with_name("libcufile.so.0")),
        # The first read looks how it goes.
        FOREBAY_STUB_CUFILE="mode=p2p,fail=cuFileRead:5:5",
    )


@pytest.mark.promise("FEED-17")
def test_without_cufile_the_path_is_refused_when_the_loader_is_made(scenario: Scenario) -> None:
    if ON_REAL_GPU:
        pytest.skip("it may have cuFile")
    scenario(
        LOADER
        + """
import contextlib
from forebay.feed.verb import in_flags
for words, said in ((contextlib.nullcontext, ('path="gds"', 'path="bounce"')), (in_flags, ("--path gds", "--path bounce"))):
    try:
        with words():
            feed.Loader(data, 1000, device="cuda", path="gds")
    except MachineError as error:
        assert all(text in str(error) for text in (*said, "no libcufile")), error
    else:
        sys.exit("it was made")
""",
        FOREBAY_LIBCUFILE="/nowhere/libcufile.so",
    )


@pytest.mark.gpu
def test_all_of_it_on_the_gpu_of_this_machine() -> None:
    run_again_on_it(__file__)
