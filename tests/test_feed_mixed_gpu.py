"""The first reading of a long file, of which the GPU reads a part itself and processors copy the rest in the meantime."""

from __future__ import annotations

import os

import pytest
from feed_gpu_support import ON_REAL_GPU, Scenario, run_again_on_it, scenario, stub
from properties import parametrized

__all__ = ["scenario", "stub"]

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one worker mixes nothing")

# A file of pieces of 16 MiB that differ, the last of them short.
MIXED = """
from forebay.reader import File
PIECE, PIECES = 16 << 20, 17
BYTES = PIECES * PIECE + 12_345
long = path + ".long"
block = (content * 2)[:PIECE]
with open(long, "wb") as out:
    for i in range(PIECES):
        out.write(bytes([i]) + block[1:])
    out.write(block[:12_345])
array = Array(BYTES)

def right(array):
    got = array.bytes()
    for i in range(PIECES):
        at = i * PIECE
        assert got[at + 1 : at + PIECE] == block[1:] and got[at] == i, i
    assert got[PIECES * PIECE :] == block[:12_345]

def clear(array):
    call("cuMemsetD8Async", array.at, ctypes.c_ubyte(9), ctypes.c_size_t(BYTES), None)
    call("cuStreamSynchronize", None)

def settled():
    forebay.release()
    gc.collect()
    left = live()["live"]
    assert left["registrations"] == left["streams"] == left["events"] == 0, left
"""


@pytest.mark.long
@pytest.mark.promise("GPU-23")
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
def test_both_ends_meet_and_every_byte_is_right(scenario: Scenario, times: int) -> None:
    scenario(
        MIXED
        + f"times = {times}"
        + """
before = descriptors()
met, reports = 0, []
# Where a page has left the cache, or one end gets no processor, the other reads it all, and rightly.
while met < times and len(reports) < 20:
    clear(array)
    file = File(long, once=True)
    assert file.read_into(array) == BYTES
    report = file.last_report
    reports.append(report)
    assert report.mapped_bytes + report.staged_bytes == BYTES, report
    met += report.mapped_bytes >= PIECE and report.staged_bytes >= PIECE
    right(array)
    # What is read again is registered by now, or will be.
    clear(array)
    assert file.read_into(array) == BYTES
    right(array)
    file.close()
assert met, reports
settled()
assert descriptors() == before, descriptors() ^ before
"""
    )


@pytest.mark.long
@pytest.mark.promise("GPU-23")
def test_work_of_the_destinations_user_comes_first_and_what_comes_later_sees_the_bytes(scenario: Scenario) -> None:
    scenario(
        MIXED
        + """
stream, other = void(), Array(BYTES)
call("cuStreamCreate", ctypes.byref(stream), 1)
class Stream:
    cuda_stream = stream.value
file = File(long, once=True)
# Queued before: it must not overwrite what is read.
call("cuMemsetD8Async", array.at, ctypes.c_ubyte(9), ctypes.c_size_t(BYTES), stream)
future = file.read_async(array, stream=Stream())
future.wait_on_stream(stream.value)
begin()
call("cuMemcpyDtoDAsync_v2", other.at, array.at, ctypes.c_size_t(BYTES), stream)
call("cuStreamSynchronize", stream)
right(other)
assert future.result() == BYTES
file.close()
begin()
call("cuStreamDestroy_v2", stream)
# It keeps the event that it waited for.
del future
settled()
"""
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        "fail=cuStreamWaitValue32_v2:1+:801",
        "fail=cuMemHostRegister_v2:1:2",
        "fail=cuStreamCreate:1:2",
    ],
)
def test_where_nothing_can_be_copied_in_the_meantime_it_is_read_all_the_same(scenario: Scenario, settings: str) -> None:
    scenario(
        MIXED
        + """
file = File(long, once=True)
try:
    assert file.read_into(array) == BYTES
except ForebayError as error:
    # These calls the reading itself needs, too; a wait for a value it doesn't.
    assert "CUDA" in str(error) and "WaitValue" not in os.environ["FOREBAY_STUB_CUDA"], error
    clear(array)
    assert file.read_into(array) == BYTES
right(array)
file.close()
settled()
""",
        settings,
    )


@pytest.mark.long
@pytest.mark.promise("GPU-23")
@parametrized(
    "settings",
    [
        "fail=cuStreamWaitValue32_v2:5:801",
        "fail=cuStreamWriteValue32_v2:3:801",
        "fail=cuMemcpyHtoDAsync_v2:4:1",
        "fail=copy:5:700",
    ],
    kept=(2,),
)
def test_a_call_that_fails_on_the_way_is_an_error_and_nothing_hangs(scenario: Scenario, settings: str) -> None:
    scenario(
        MIXED
        + """
file = File(long, once=True)
try:
    file.read_into(array)
except ForebayError as error:
    assert "CUDA" in str(error), error
else:
    sys.exit("nothing failed")
file.close()
forebay.release()
""",
        settings,
    )


@pytest.mark.long
@pytest.mark.promise("GPU-23")
def test_a_file_that_is_cut_off_meanwhile_is_an_error(scenario: Scenario) -> None:
    scenario(
        MIXED
        + """
for cut in [BYTES - 5000, 100 << 20, 4096]:
    file = File(long, once=True)
    future = file.read_async(array)
    os.truncate(long, cut)
    try:
        future.result()
    except RunError as error:
        assert "changed" in str(error) or "truncated" in str(error), error
    except ForebayError as error:
        assert "Cuda" not in str(error), error
    else:
        sys.exit(f"cut to {cut}, and read to its end")
    file.close()
    with open(long, "r+b") as out:
        for i in range(PIECES):
            out.seek(i * PIECE)
            out.write(bytes([i]) + block[1:])
        out.write(block[:12_345])
del future
settled()
""",
        "hash=0",
    )


@pytest.mark.long
@pytest.mark.promise("GPU-23")
def test_a_reading_that_is_cancelled_writes_nothing_afterwards(scenario: Scenario) -> None:
    scenario(
        MIXED
        + """
for wait_s in [0, 0.002, 0.02, 0.05]:
    file = File(long, once=True)
    future = file.read_async(array)
    time.sleep(wait_s)
    future.cancel()
    clear(array)
    time.sleep(0.1)
    assert array.bytes() == b"\x09" * BYTES
    file.close()
del future
settled()
""",
        "delay_us=2000",
    )


@pytest.mark.long
@pytest.mark.promise("GPU-23")
@pytest.mark.skipif(ON_REAL_GPU, reason="a stand-in's context can be destroyed")
def test_a_context_that_ends_meanwhile_is_an_error_and_nothing_hangs(scenario: Scenario) -> None:
    for calls in (40, 80, 120, 200):
        scenario(
            MIXED
            + """
file = File(long, once=True)
try:
    file.read_into(array)
except ForebayError as error:
    assert "CUDA" in str(error), error
""",
            f"destroyed={calls}",
        )


@pytest.mark.gpu
def test_the_scenarios_hold_on_a_real_gpu() -> None:
    run_again_on_it(__file__)
