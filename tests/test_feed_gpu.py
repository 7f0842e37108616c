"""`forebay.open` into memory of a GPU: against a stand-in for libcuda whose device memory lies in the host's, or, as
`make test-gpu` asks, against the real one. Each scenario is a process of its own, since a driver is loaded once."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

from pathlib import Path

import pytest
from feed_gpu_support import ON_REAL_GPU, SIZE, Scenario, run_again_on_it, scenario, stub  # noqa: F401 - fixtures
from properties import parametrized


@pytest.mark.promise("PYT-2", "PYT-7")
def test_bytes_arrive_on_the_gpu_and_everything_is_given_back(scenario: Scenario) -> None:
    books = scenario("""
before = descriptors()
array = Array(SIZE + 100)
with forebay.open(path) as file:
    for offset, size in [(0, SIZE), (1, SIZE - 1), (4095, 2), (SIZE - 1, 1), (77, 4 << 20), (0, 0)]:
        for _ in range(3):
            assert file.read_into(array, offset, size) == size
            assert array.bytes()[:size] == content[offset : offset + size], (offset, size)
        report = file.last_report
        assert report.bytes == size == report.staged_bytes + report.mapped_bytes + report.direct_bytes
    assert file.read_into(array, 10) == SIZE - 10
array.free()
forebay.release()
gc.collect()
left = live()["live"]
assert not any(left[k] for k in ("registrations", "streams", "events")), left
assert descriptors() == before
""")
    assert ON_REAL_GPU or not any(books["live"].values())


@pytest.mark.promise("PYT-2")
def test_cold_data_arrives_by_o_direct(scenario: Scenario) -> None:
    scenario("""
array = Array(SIZE)
try:
    file = forebay.open(path, direct=True)
except MachineError:
    sys.exit(0)
with file:
    for offset, size in [(0, SIZE), (1, SIZE - 1), (4095, 2), (SIZE - 1, 1), (8192, 4096)]:
        file.read_into(array, offset, size)
        assert array.bytes()[:size] == content[offset : offset + size], (offset, size)
        assert file.last_report.uncached_bytes == size
with forebay.open(path) as file:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    ranges = [(i * 9973 % (SIZE - 700), 700, array.part(i * 700, 700)) for i in range(3000)]
    assert file.read_ranges(ranges) == 2_100_000
    got = array.bytes()
    for i, (offset, size, _) in enumerate(ranges):
        assert got[i * 700 : i * 700 + 700] == content[offset : offset + 700], i
""")


@pytest.mark.promise("PYT-9")
def test_small_ranges_that_lie_side_by_side_travel_as_one_copy(scenario: Scenario) -> None:
    books = scenario("""
array = Array(256 * 4096)
with forebay.open(path) as file:
    file.read_into(bytearray(SIZE))
    ranges = [((i * 37 % 2000) * 4096, 4096, array.part(i * 4096, 4096)) for i in range(256)]
    assert file.read_ranges(ranges) == 256 * 4096
got = array.bytes()
for i, (offset, size, _) in enumerate(ranges):
    assert got[i * 4096 : (i + 1) * 4096] == content[offset : offset + 4096], i
""")
    assert ON_REAL_GPU or books["calls"]["cuMemcpyHtoDAsync_v2"] <= 4


@pytest.mark.promise("PYT-9")
def test_many_files_travel_together(scenario: Scenario) -> None:
    books = scenario("""
paths = []
for i in range(600):
    paths.append(f"{path}.{i}")
    with open(paths[-1], "wb") as out:
        out.write(content[i : i + i * 53 % 9000])
array = Array(4 << 20)
read = forebay.read_files(paths, array)
got = array.bytes()
for i, (offset, size) in enumerate(zip(read.offsets, read.sizes)):
    assert got[offset : offset + size] == content[i : i + size], i
assert read.report.bytes == sum(read.sizes)
parts = [array.part(i * 9000, 9000) for i in range(400)]
forebay.read_files(paths[:400], parts)
got = array.bytes()
for i, size in enumerate(read.sizes[:400]):
    assert got[i * 9000 : i * 9000 + size] == content[i : i + size], i
""")
    assert ON_REAL_GPU or books["calls"]["cuMemcpyHtoDAsync_v2"] < 500


@pytest.mark.promise("PYT-2")
def test_two_gpus_and_the_right_one_each(scenario: Scenario) -> None:
    books = scenario(
        """
one, two = Array(SIZE), Array(SIZE, gpu=1)
with forebay.open(path) as file:
    file.read_ranges([(0, SIZE, one), (0, SIZE, two)])
assert one.bytes() == content and two.bytes() == content
""",
        "gpus=2",
    )
    assert books["to_device_bytes"] == [SIZE, SIZE]


@pytest.mark.promise("PYT-3", "PYT-2")
def test_a_stream_that_was_given_is_waited_for_and_ordered(scenario: Scenario) -> None:
    scenario(
        """
array, stream, host = Array(SIZE), void(), ctypes.create_string_buffer(SIZE)
begin()
call("cuStreamCreate", ctypes.byref(stream), 1)
class Stream:
    cuda_stream = stream.value
# Work on the stream reads the array, late: it must see the old bytes, and work after the read the new ones.
call("cuMemsetD8Async", array.at, ctypes.c_ubyte(9), ctypes.c_size_t(SIZE), stream)
with forebay.open(path) as file:
    future = file.read_async(array, stream=Stream())
    future.wait_on_stream(stream.value)
    call("cuMemcpyDtoHAsync_v2", host, array.at, ctypes.c_size_t(SIZE), stream)
    call("cuStreamSynchronize", stream)
    assert host.raw[:SIZE] == content
    assert future.result() == SIZE
    for bad in ["x", object(), 1.5]:
        try:
            file.read_async(array, stream=bad)
        except RequestError as error:
            assert "not a CUDA stream" in str(error)
        else:
            sys.exit("taken")
call("cuStreamDestroy_v2", stream)
""",
        "delay_us=20000",
    )


@pytest.mark.promise("PYT-1")
def test_memory_that_cuda_does_not_know_is_refused(scenario: Scenario) -> None:
    scenario("""
class Wild:
    __cuda_array_interface__ = {"shape": (64,), "typestr": "|u1", "data": (4096, False), "version": 3}
array = Array(64)
with forebay.open(path) as file:
    for buffer, reason in [(Wild(), "doesn't recognise"), (Array(64, strides=(2,)), "contiguous")]:
        try:
            file.read_into(buffer)
        except RequestError as error:
            assert reason in str(error), error
        else:
            sys.exit("taken")
with forebay.open(path, "host") as file:
    try:
        file.read_into(array)
    except RequestError as error:
        assert 'path="host"' in str(error)
    else:
        sys.exit("taken")
""")


@pytest.mark.promise("PYT-7")
@parametrized(
    ("settings", "kind", "reason"),
    [
        ("pin=0", "MachineError", "pin"),
        ("fail=cuMemcpyHtoDAsync_v2:2:2", "RunError", "copy to GPU 0"),
        ("fail=copy:2:700", "RunError", "copy to GPU 0"),
        ("fail=cuEventRecord:3:719", "RunError", "copy to GPU 0"),
        ("fail=cuStreamCreate:1+:2", "RunError", "copy to GPU 0"),
        # The destination goes with the context, under copies that are being made: their sums mean nothing.
        ("destroyed=60,hash=0", "ForebayError", ""),
    ],
    kept=(0, 2),
)
def test_what_fails_on_the_way_is_an_error_and_leaves_nothing(scenario: Scenario, settings, kind, reason) -> None:
    scenario(
        f"""
array = Array(SIZE)
with forebay.open(path) as file:
    try:
        for _ in range(20):
            file.read_into(array, stream=-1)
    except {kind} as error:
        assert {reason!r} in str(error), error
    else:
        sys.exit("nothing failed")
forebay.release()
gc.collect()
left = live()["live"]
assert left["registrations"] == 0 and left["streams"] == 0 and left["events"] == 0, left
""",
        settings,
    )


@pytest.mark.promise("PYT-7")
def test_where_little_may_be_pinned_slots_are_smaller(scenario: Scenario) -> None:
    books = scenario(
        """
array = Array(SIZE)
with forebay.open(path) as file:
    assert file.read_into(array, 3) == SIZE - 3
assert array.bytes()[:SIZE - 3] == content[3:]
""",
        "pin=40m",
    )
    assert 0 < books["registered_bytes_max"] <= 40 << 20


@pytest.mark.promise("PYT-4")
def test_after_a_cancel_the_gpu_is_left_alone(scenario: Scenario) -> None:
    scenario(
        """
array = Array(SIZE)
cancelled = 0
with forebay.open(path) as file:
    for _ in range(5):
        future = file.read_async(array)
        time.sleep(0.002)
        cancelled += future.cancel()
        begin()
        call("cuMemsetD8Async", array.at, ctypes.c_ubyte(9), ctypes.c_size_t(SIZE), None)
        call("cuStreamSynchronize", None)
        time.sleep(0.05)
        assert array.bytes() == b"\\x09" * SIZE
assert cancelled
""",
        "delay_us=10000",
    )


@pytest.mark.long
@pytest.mark.promise("PYT-6")
def test_many_threads_feed_one_gpu(scenario: Scenario) -> None:
    scenario("""
array = Array(300 * 20_000)
wrong = []
def read(i):
    try:
        part = array.part(i * 20_000, 20_000)
        if file.read_into(part, i * 7001) != 20_000:
            wrong.append(i)
    except BaseException as error:
        wrong.append(error)
with forebay.open(path) as file:
    threads = [threading.Thread(target=read, args=(i,)) for i in range(300)]
    for t in threads: t.start()
    for t in threads: t.join()
assert not wrong, wrong[:3]
got = array.bytes()
for i in range(300):
    assert got[i * 20_000 : (i + 1) * 20_000] == content[i * 7001 : i * 7001 + 20_000], i
""")


@pytest.mark.promise("PYT-8")
def test_a_child_of_a_fork_is_told_that_cuda_does_not_survive_it(scenario: Scenario) -> None:
    scenario("""
array = Array(SIZE)
file = forebay.open(path)
file.read_into(array)
child = os.fork()
if child == 0:
    refused = False
    try:
        file.read_into(array)
    except ForebayError as error:
        refused = "fork" in str(error)
    host = bytearray(1000)
    os._exit(0 if refused and file.read_into(host) == 1000 and host == content[:1000] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")


# A file that is long enough to be read by the GPU itself, out of registered windows of the page cache.
LONG = """
BYTES = 80 << 20
long = path + ".long"
block = content[: 5 << 20]
with open(long, "wb") as out:
    for i in range(16):
        out.write(bytes([i]) + block[1:])
expected = open(long, "rb").read()
assert len(expected) == BYTES
def check(array, size=BYTES, offset=0):
    got = array.bytes()
    assert got[:size] == expected[offset : offset + size]
"""


@pytest.mark.long
@pytest.mark.promise("PYT-12")
def test_what_is_read_again_is_read_by_the_gpu_itself(scenario: Scenario) -> None:
    books = scenario(
        LONG
        + """
array = Array(BYTES)
before = descriptors()
with forebay.open(long) as file:
    assert file.read_into(array) == BYTES
    assert file.last_report.staged_bytes == BYTES, file.last_report
    check(array)
    for _ in range(2):
        array.__init__(BYTES)
        assert file.read_into(array) == BYTES
        assert file.last_report.mapped_bytes == BYTES, file.last_report
        check(array)
    assert file.read_into(array, 4097, BYTES - 5000) == BYTES - 5000
    check(array, BYTES - 5000, 4097)
    assert file.last_report.mapped_bytes > BYTES // 2
    assert live()["live"]["registered_bytes"] > BYTES
    # Written to, it is another file: registered anew, and never read stale.
    time.sleep(0.02)
    with open(long, "r+b") as out:
        out.seek(40 << 20)
        out.write(b"new words")
    expected = open(long, "rb").read()
    for _ in range(2):
        assert file.read_into(array) == BYTES
        check(array)
forebay.release()
gc.collect()
left = live()["live"]
assert left["registrations"] == left["streams"] == left["events"] == 0, left
assert descriptors() == before, descriptors() ^ before
""",
        "hash=0",
    )
    assert ON_REAL_GPU or books["to_device_bytes"][0] > 5 * (80 << 20)


@pytest.mark.promise("PYT-12")
def test_mapped_reads_without_a_copy_from_the_first_time_on(scenario: Scenario) -> None:
    books = scenario(
        LONG
        + """
array = Array(BYTES)
with forebay.open(long, "mapped") as file:
    future = file.read_async(array)
    assert future.result() == BYTES and future.report().mapped_bytes == BYTES
    check(array)
# A future that is kept doesn't keep the file.
assert not any(long in name for _, name in descriptors())
with forebay.open(long, "mapped") as file:
    future = file.read_async(array)
    future.cancel()
    call("cuMemsetD8Async", array.at, ctypes.c_ubyte(9), ctypes.c_size_t(BYTES), None)
    call("cuStreamSynchronize", None)
    time.sleep(0.1)
    assert array.bytes() == b"\\x09" * BYTES
    # What was cut off is refused, what is left is read.
    os.truncate(long, 70 << 20)
    try:
        file.read_into(array, 0, BYTES)
    except RequestError as error:
        assert "73400320 bytes" in str(error), error
    else:
        sys.exit("read beyond the end")
""",
        "hash=0",
    )
    assert ON_REAL_GPU or books["stale_reads"] == 0


@pytest.mark.long
def test_what_is_read_one_time_is_registered_at_once_and_let_go_of_in_the_background(scenario: Scenario) -> None:
    books = scenario(
        LONG
        + """
from forebay.reader import File
small, large = Array(BYTES), Array(4 * BYTES)
with open(long, "ab") as out:
    for _ in range(3):
        out.write(expected)
before = descriptors()
file = File(long, once=True)
# Too few bytes to be worth it.
assert file.read_into(small) == BYTES and file.last_report.staged_bytes == BYTES, file.last_report
file.close()
registered, reports = 0, []
# Where a page has left the cache, or the registrar gets no processor, they copy it all.
while registered < 2 and len(reports) < 20:
    file = File(long, once=True)
    assert file.read_into(large) == 4 * BYTES
    report = file.last_report
    reports.append(report)
    assert report.mapped_bytes + report.staged_bytes == 4 * BYTES, report
    registered += report.mapped_bytes > 0
    file.close()
    # What goes on in the background may be over by now.
    assert large.bytes() == expected * 4
assert registered, reports
# With a second worker, processors copy from the end in the meantime.
assert any(r.staged_bytes > 0 for r in reports) or len(os.sched_getaffinity(0)) < 2, reports
forebay.release()
assert live()["live"]["registrations"] == 0 and descriptors() == before
file = File(long, once=True)
assert file.read_into(large) == 4 * BYTES
file.close()
until = time.monotonic() + 60
while live()["live"]["registrations"] and time.monotonic() < until:
    # Its slots, too, are registered.
    if live()["live"]["registered_bytes"] < 4 * BYTES:
        break
    time.sleep(0.02)
# A real driver keeps no books.
assert not hasattr(cuda, "forebay_stub_ledger") or live()["live"]["registered_bytes"] < 4 * BYTES
""",
        "hash=0",
    )
    assert ON_REAL_GPU or books["stale_reads"] == 0


@pytest.mark.long
@pytest.mark.promise("PYT-12")
@pytest.mark.parametrize(
    "settings",
    [
        "pin=60m,hash=0",
        pytest.param("read_only=0,hash=0", marks=pytest.mark.long),
        pytest.param("fail=cuMemHostRegister_v2:9+:2,hash=0", marks=pytest.mark.long),
    ],
)
def test_where_windows_cannot_be_registered_bytes_go_through_slots(scenario: Scenario, settings: str) -> None:
    scenario(
        LONG
        + """
array = Array(BYTES)
for way in ["auto", "mapped"]:
    with forebay.open(long, way) as file:
        for _ in range(3):
            assert file.read_into(array) == BYTES
            check(array)
            assert file.last_report.staged_bytes + file.last_report.mapped_bytes == BYTES
        # Where some may be pinned, they stay, or take turns.
        assert "read_only" not in os.environ["FOREBAY_STUB_CUDA"] or file.last_report.staged_bytes == BYTES, file.last_report
forebay.release()
gc.collect()
assert live()["live"]["registrations"] == 0, live()
""",
        settings,
    )


@pytest.mark.gpu
def test_the_scenarios_hold_on_a_real_gpu() -> None:
    run_again_on_it(__file__)


AT_FULL_RATE = """
from forebay.reader import File

BYTES, CHUNK = 256 << 20, 1 << 20
assert len(os.sched_getaffinity(0)) == 12
long = path + ".long"
expected = bytearray(BYTES)
for at in range(0, BYTES, CHUNK):
    expected[at + 5 : at + 13] = (at + 1).to_bytes(8, "little")

def whole_again():
    with open(long, "wb") as file:
        file.write(expected)

def threads():
    named = set()
    for task in os.listdir("/proc/self/task"):
        try: named.add(open(f"/proc/self/task/{task}/comm").read().strip())
        except OSError: pass
    return {name for name in named if name.startswith("forebay-feed-")}

whole_again()
array = Array(BYTES)
file = File(long, once=True, prefer="rate")
assert file.read_into(array) == BYTES
if len(threads()) < 8:
    open(path + ".quota", "w").close()
    sys.exit()
report = file.last_report
assert report.staged_bytes == BYTES and report.mapped_bytes == report.direct_bytes == 0, report
assert array.bytes() == expected
assert len(threads()) == 10, threads()
file.close()
# Of a file that is cut meanwhile nothing counts as read. The reading may have ended before.
for _ in range(100):
    file = File(long, once=True, prefer="rate")
    future = file.read_async(array)
    os.truncate(long, BYTES // 2 + 5)
    try:
        future.result()
    except RunError as error:
        assert long in str(error), error
        break
    finally:
        file.close()
    whole_again()
else:
    sys.exit("every reading ended before the file was cut")
forebay.release()
while threads():  # The system lists what has ended for a moment.
    time.sleep(0.01)
del future
gc.collect()
array.free()
left = live()["live"]
assert left["registrations"] == left["streams"] == left["events"] == 0, left
"""


@pytest.mark.skipif(ON_REAL_GPU, reason="pretends to have twelve processors")
@pytest.mark.promise("GPU-23")
def test_with_enough_processors_ten_threads_copy_what_is_read_once_and_say_if_it_was_cut(
    scenario: Scenario, stub: Path, tmp_path: Path
) -> None:
    scenario(AT_FULL_RATE, LD_PRELOAD=str(stub.with_name("libprocessors.so")), STUB_PROCESSORS="12")
    if (tmp_path / "data.bin.quota").exists():
        pytest.skip("a cgroup's quota leaves this process less time than twelve processors have")


COLD = """
begin()
long = path + ".long"
whole = (content * (80_000_000 // SIZE + 1))[:80_000_321]
with open(long, "wb") as file:
    file.write(whole)
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
array = Array(len(whole))

def settled():
    end = time.monotonic() + 20
    while live()["live"]["registrations"] and time.monotonic() < end:
        time.sleep(0.01)
    return live()["live"]["registrations"] == 0
"""


@pytest.mark.promise("PYT-2")
@parametrized("settings", ["", "pin=20m", "delay_us=3000"], kept=(0, 1))
def test_long_reads_past_the_cache_come_many_at_a_time_and_their_slots_go_back(scenario: Scenario, settings) -> None:
    books = scenario(
        COLD
        + """
with forebay.open(long) as file:
    for offset, stop in [(0, len(whole)), (77, len(whole) - 1)]:
        size = stop - offset
        assert file.read_into(array, offset, size) == size
        assert array.bytes()[:size] == whole[offset:stop]
        report = file.last_report
        assert report.uncached_bytes == report.staged_bytes == size, report
        # Where little may be pinned each thread keeps slots of its own.
        assert os.environ["FOREBAY_STUB_CUDA"] == "pin=20m" or settled(), live()
    # Another request beside it, and one that is given up.
    both = [file.read_async(array.part(at, 5 << 20), at, 5 << 20) for at in (0, 40 << 20)] + [file.read_async(array)]
    assert [one.result() for one in both] == [5 << 20, 5 << 20, len(whole)]
    assert array.bytes() == whole
    future = file.read_async(array)
    if future.cancel():
        call("cuMemsetD8Async", array.at, ctypes.c_ubyte(9), ctypes.c_size_t(len(whole)), None)
        call("cuStreamSynchronize", None)
        time.sleep(0.1)
        assert array.bytes() == b"\\x09" * len(whole)
forebay.release()
assert settled(), live()
""",
        settings,
    )
    if settings != "pin=20m" and not ON_REAL_GPU:
        assert books["registered_bytes_max"] >= 48 << 20, "fewer reads are under way than there are slots"


@pytest.mark.promise("PYT-7")
@parametrized("settings", ["fail=cuMemcpyHtoDAsync_v2:9:2", "fail=copy:9:700", "fail=cuEventRecord:3:719"], kept=(1,))
def test_a_long_read_past_the_cache_that_fails_on_the_way_says_so_and_leaves_nothing(scenario: Scenario, settings) -> None:
    scenario(
        COLD
        + """
with forebay.open(long, direct=True) as file:
    try:
        file.read_into(array)
    except RunError as error:
        assert "copy to GPU 0" in str(error), error
    else:
        sys.exit("nothing failed")
forebay.release()
assert settled(), live()
""",
        settings,
    )


@pytest.mark.skipif(ON_REAL_GPU, reason="a filter of system calls, which a driver needs not stand")
@pytest.mark.promise("PYT-7")
@pytest.mark.parametrize("calls", [[425], [426]], ids=["rings", "entering"])
def test_long_reads_past_the_cache_come_whole_where_rings_are_forbidden(scenario: Scenario, calls: list[int]) -> None:
    scenario(
        COLD
        + f"""
import platform
if platform.machine() != "x86_64":
    sys.exit(0)
rows = [(0x20, 0, 0, 0), *((0x15, {len(calls)} - i, 0, n) for i, n in enumerate({calls}))]
rows += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
"""
        + """
class Row(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint16), ("rows", ctypes.POINTER(Row))]
program = Program(len(rows), (Row * len(rows))(*(Row(*row) for row in rows)))
libc = ctypes.CDLL(None, use_errno=True)
with forebay.open(long, direct=True) as file:
    assert file.read_into(array.part(0, 8 << 20), 0) == 8 << 20
    future = file.read_async(array)
    # For all threads: new ones, and those that read.
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.syscall(317, 1, 1, ctypes.byref(program)) == 0, ctypes.get_errno()
    for future in (future, file.read_async(array)):
        assert future.result(60) == len(whole)
        assert array.bytes() == whole
""",
        "delay_us=2000",
    )
