"""Rows of a file, fetched by a GPU itself: against the stand-in, whose kernels the host runs, or the real one."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

import pytest
from feed_gpu_support import ON_REAL_GPU, Scenario, run_again_on_it, scenario, stub  # noqa: F401 - fixtures
from properties import parametrized

ROWS = """
import numpy as np
from forebay import _core

draw = np.random.default_rng(5).integers
def fetched(file, rows, row, start=0, **more):
    out = Array(max(len(rows), 1) * row)
    assert file.gather(rows, row, out, start=start, **more) == len(rows) * row
    now = open(path, "rb").read()
    assert out.bytes()[:len(rows) * row] == b"".join(now[start + n * row : start + (n + 1) * row] for n in rows), (row, start)
    out.free()
    return file.last_report

def by_gpu(report):
    # Fetched, or copied from where the same row had come to.
    return report.mapped_bytes + report.repeated_bytes
"""


@pytest.mark.promise("PYT-13")
def test_rows_are_fetched_by_the_gpu_itself_whatever_their_length_and_place(scenario: Scenario) -> None:
    books = scenario(
        ROWS
        + """
before = descriptors()
with forebay.open(path, "mapped") as file:
    aligned = [(4, 0), (16, 0), (48, 0), (912, 0), (4096, 0), (4096, 4096), (5008, 16)]
    for row, start in [*aligned, (1, 0), (100, 8), (512, 3), (70000, 1)]:
        rows = draw((SIZE - start) // row, size=3000 if row < 4096 else 300)
        report = fetched(file, rows, row, start)
        assert by_gpu(report) == report.bytes == len(rows) * row and not report.staged_bytes, report
    # Several launches, rows that come twice, the first and the last one, none.
    rows = np.concatenate([draw(SIZE // 16, size=40000), [0, SIZE // 16 - 1, 0]])
    assert by_gpu(fetched(file, rows, 16)) == 16 * len(rows)
    assert fetched(file, rows[:0], 16).bytes == 0
    # Too long for it, and too long for the file's windows: through slots.
    assert fetched(file, [1, 0], 3 << 20).bytes == 6 << 20
    at = Array(4000)
    assert file.read_at([SIZE - 1000, 3, 77, 0], 1000, at) == 4000
    assert at.bytes() == content[-1000:] + content[3:1003] + content[77:1077] + content[:1000]
    try:
        file.gather([0, SIZE // 16], 16, at)
    except RequestError as error:
        assert f"row {SIZE // 16} of" in str(error), error
    else:
        sys.exit("a row beyond the end")
forebay.release()
gc.collect()
left = live()["live"]
assert left["registrations"] == left["streams"] == left["events"] == 0, left
assert descriptors() == before, descriptors() ^ before
""",
        "hash=0",
    )
    assert ON_REAL_GPU or books["launches"] >= 14


@parametrized("way", ["mapped", "auto", "bounce"], kept=(0,))
def test_rows_that_a_file_grew_by_since_it_was_opened_are_read_past_its_mapping(scenario: Scenario, way: str) -> None:
    """Where the mapping ended, a kernel that went on would end its context, and a copy the process."""
    scenario(
        ROWS
        + f"""
os.truncate(path, SIZE // 2 + 5)
with forebay.open(path, "{way}") as file:
    few = draw(SIZE // 2 // 512, size=2000)
    for _ in range(3):
        fetched(file, few, 512)
    with open(path, "r+b") as handle:
        handle.seek(SIZE // 2)
        handle.write(content[SIZE // 2:])
    rows = np.concatenate([few, [SIZE // 512 - 1, SIZE // 2 // 512, SIZE // 2 // 512 + 1]])
    assert fetched(file, rows, 512).mapped_bytes == 0
    whole = Array(SIZE)
    assert file.read_into(whole) == SIZE and whole.bytes() == content
    fetched(file, few, 512)
"""
    )


@pytest.mark.long
@pytest.mark.promise("PYT-13")
def test_auto_has_rows_fetched_once_enough_were_asked_for(scenario: Scenario) -> None:
    scenario(
        ROWS
        + """
with forebay.open(path) as file:
    rows = draw(SIZE // 4096, size=SIZE // 4096 // 3)
    assert fetched(file, rows, 4096).staged_bytes == 4096 * len(rows)
    for _ in range(100):  # the file is registered meanwhile, by a thread that runs when it may
        report = fetched(file, rows, 4096)
        assert by_gpu(report) + report.staged_bytes == report.bytes, report
        if by_gpu(report) == report.bytes: break
    else: sys.exit(f"CPUs still bring them: {report}")
    assert by_gpu(fetched(file, rows[:3], 4096)) == 4096 * 3
for way, direct in (("bounce", None), ("auto", True)):
    with forebay.open(path, way, direct) as file:
        for _ in range(3):
            assert fetched(file, rows, 4096).mapped_bytes == 0
"""
    )


@pytest.mark.promise("PYT-23")
def test_long_rows_are_fetched_in_pieces_and_a_preference_decides_once_the_file_is_registered(scenario: Scenario) -> None:
    scenario(
        ROWS
        + """
for row in (70000 // 16 * 16, 200704, 70001):
    with forebay.open(path, "mapped") as file:
        begins = draw(SIZE - row, size=9)
        out = Array(9 * row)
        assert file.read_at(begins, row, out) == 9 * row
        assert out.bytes() == b"".join(content[n : n + row] for n in begins), row
        assert file.last_report.mapped_bytes == 9 * row, (row, file.last_report)
rows = draw(SIZE // 4096, size=SIZE // 4096)
for prefer, ends_with_the_gpu in (("cpu", True), ("balance", None), ("rate", None)):
    with forebay.open(path, prefer=prefer) as file:
        for _ in range(40):
            report = fetched(file, rows, 4096)
            assert by_gpu(report) + report.staged_bytes == report.bytes
            if by_gpu(report) == report.bytes: break
        assert ends_with_the_gpu is None or by_gpu(report) == report.bytes, (prefer, report)
for prefer in ("speed", 3, ""):
    try:
        forebay.open(path, prefer=prefer)
    except RequestError as error:
        assert "prefer=" in str(error) and "balance" in str(error), error
    else:
        sys.exit(f"prefer={prefer!r} was taken")
""",
        "hash=0",
    )


@pytest.mark.long
@pytest.mark.promise("PYT-14")
@parametrized("settings", ["", "delay_us=3000"], kept=(1,))
def test_rows_of_a_file_that_changes_are_of_one_file_or_an_error(scenario: Scenario, settings: str) -> None:
    """Whatever happens to the file while rows are fetched, a call that returns has delivered none of another one."""
    books = scenario(
        ROWS
        + """
import shutil
size, row = SIZE // 4096 * 4096, 4096
def version(n):
    return bytes([n]) * size
def write(n):
    with open(path, "r+b", buffering=0) as out:
        out.write(version(n))
def replaced(n):
    with open(path + ".next", "wb") as out:
        out.write(version(n))
    os.replace(path + ".next", path)
write(1)
out = Array(300 * row)
rows = draw(size // row, size=300)
changed = 0
file = forebay.open(path, "mapped")
for _ in range(3):  # the last of these are the GPU's own
    assert file.gather(rows, row, out) and set(out.bytes()) == {1}
for n in range(2, 12):
    # A change while a call is under way: its bytes are the old or the new ones, or it says so.
    future = file.gather_async(rows, row, out)
    write(n)
    try:
        future.result()
        assert set(out.bytes()) <= {n - 1, n}, (n, set(out.bytes()))
    except RunError as error:
        changed += 1
    # One that is over before a call begins: the new bytes, and no others.
    for again in range(3):
        try:
            file.gather(rows, row, out)
            break
        except RunError as error:
            changed += 1
    else:
        sys.exit("it stays broken")
    assert set(out.bytes()) == {n}, (n, set(out.bytes()))
# Another file in its place: that one is read once it is opened.
replaced(50)
try:
    file.gather(rows, row, out)
    assert set(out.bytes()) == {11}, "bytes of neither"
except RunError as error:
    assert "took its place" in str(error) or "changed" in str(error), error
file.close()
with forebay.open(path, "mapped") as file:
    assert file.gather(rows, row, out) and set(out.bytes()) == {50}
    # Cut short: rows that it lost are refused, the others are its own.
    os.truncate(path, size // 2)
    try:
        file.gather(rows, row, out)
    except (RunError, RequestError):
        pass
    else:
        sys.exit("rows of pages that it lost")
""",
        settings,
    )
    assert ON_REAL_GPU or books["launches"] >= 1


@pytest.mark.long
@pytest.mark.promise("PYT-13")
@pytest.mark.parametrize("settings", ["fail=cuMemHostRegister_v2:9+:2", "read_only=0"])
def test_rows_that_no_window_serves_go_through_slots(scenario: Scenario, settings: str) -> None:
    scenario(
        ROWS
        + """
with forebay.open(path, "mapped") as file:
    rows = draw(SIZE // 512, size=2000)
    for _ in range(3):
        report = fetched(file, rows, 512)
        assert by_gpu(report) + report.staged_bytes == report.bytes, report
    # Where some of it could be registered, the GPU fetches what lies there.
    assert "read_only" not in os.environ["FOREBAY_STUB_CUDA"] or not report.mapped_bytes, report
""",
        settings,
    )


@pytest.mark.long
@pytest.mark.promise("PYT-13")
def test_without_a_compiler_rows_go_through_slots_and_mapped_says_what_is_missing(scenario: Scenario) -> None:
    scenario(
        ROWS
        + """
rows = draw(SIZE // 512, size=20000)
with forebay.open(path) as file:
    assert fetched(file, rows, 512).bytes and fetched(file, rows, 512).mapped_bytes == 0
with forebay.open(path, "mapped") as file:
    try:
        fetched(file, rows, 512)
    except MachineError as error:
        assert "nvrtc" in str(error).lower(), error
    else:
        sys.exit("fetched by nothing")
""",
        "hash=0",
        nvrtc="/nowhere/libnvrtc.so",
    )


@pytest.mark.long
@pytest.mark.promise("PYT-16")
def test_a_row_that_comes_twice_is_fetched_once(scenario: Scenario) -> None:
    scenario(
        ROWS
        + """
with forebay.open(path, "mapped") as file:
    for row, most in ((4096, 50), (512, 3), (100, 1), (7, 900)):
        rows = draw(most, size=4000)
        for _ in range(2):
            report = fetched(file, rows, row)
            assert report.mapped_bytes == len(set(rows)) * row, (report, row)
            assert report.repeated_bytes == report.bytes - report.mapped_bytes, report
    # Several launches, each of which knows its own.
    rows = np.repeat(np.arange(40000), 2)
    report = fetched(file, rows, 16)
    assert by_gpu(report) == report.bytes and report.mapped_bytes == report.bytes // 2, report
with forebay.open(path, "mapped", True) as file:
    assert by_gpu(fetched(file, [5, 5, 5], 512)) + file.last_report.staged_bytes == 1536
""",
        "hash=0",
    )


@pytest.mark.promise("PYT-16")
def test_numbers_that_lie_on_a_gpu_are_taken_from_there(scenario: Scenario) -> None:
    scenario(
        ROWS
        + """
def there(numbers):
    held = Array(max(numbers.nbytes, 1))
    begin()
    raw = numbers.tobytes()
    call("cuMemcpyHtoDAsync_v2", held.at, raw, ctypes.c_size_t(len(raw)), None)
    call("cuStreamSynchronize", None)
    held.__cuda_array_interface__ = {**held.__cuda_array_interface__, "shape": numbers.shape, "typestr": numbers.dtype.str}
    return held

def refused(numbers, words, **more):
    array = there(numbers)
    array.__cuda_array_interface__.update(more)
    out = Array(64)
    before = out.bytes()
    try:
        file.gather(array, 16, out)
    except RequestError as error:
        assert words in str(error), error
    else:
        sys.exit(words)
    assert out.bytes() == before

with forebay.open(path, "mapped") as file:
    for kind in ("i4", "i8", "u4", "u8", "u1"):
        rows = draw(200, size=1000).astype(kind)
        out = Array(1000 * 96)
        assert file.gather(there(rows), 96, out) == 96000
        assert out.bytes() == b"".join(content[n * 96 : n * 96 + 96] for n in rows.astype(int)), kind
        host = bytearray(96000)
        assert file.gather(there(rows), 96, host) == 96000 and host == out.bytes()
        at = bytearray(1000 * 8)
        file.read_at(there(rows), 8, at)
        assert at == b"".join(content[n : n + 8] for n in rows.astype(int))
    assert file.gather(there(np.array([], "i8")), 96, out) == 0
    # Of the whole file, now registered, by numbers that never leave the GPU: no copy goes there but of what counts the wrong.
    for kind, count in (("i8", 50000), ("u8", 3000), ("i4", 3000), ("i2", 3000), ("u1", 200)):
        rows = draw.__self__.permutation(min(SIZE // 96, np.iinfo(kind).max))[:count].astype(kind)
        held, out, before = there(rows), Array(len(rows) * 96), live()
        assert file.gather(held, 96, out) == len(rows) * 96
        assert out.bytes() == b"".join(content[n * 96 : n * 96 + 96] for n in rows.astype(int)), kind
        assert file.last_report.mapped_bytes == len(rows) * 96
        assert live().get("to_device_bytes") == before.get("to_device_bytes"), kind
        assert live().get("launches", 2) - before.get("launches", 0) >= 2
    # Its owner may write over them at once.
    future = file.gather_async(held, 96, out)
    call("cuMemsetD8Async", held.at, ctypes.c_ubyte(0), ctypes.c_size_t(200), None)
    assert future.result() == 200 * 96
    assert out.bytes() == b"".join(content[n * 96 : n * 96 + 96] for n in rows.astype(int))
    refused(np.array([0, SIZE // 16]), f"row {SIZE // 16} of")
    refused(np.array([0, -1]), "rows[1] is -1")
    refused(np.array([0, -1], "i4"), "rows[1] is -1")
    refused(np.array([0.5]), "an array of float64")
    refused(np.array([[0]]), "2 dimensions")
    refused(np.array([0, 1]), "not contiguous", strides=(16,))
    refused(np.array([0, 1]), "malformed", typestr="no type")
forebay.release()
"""
    )


@pytest.mark.long
@pytest.mark.promise("PYT-15")
@parametrized("way", ["mapped", "bounce", pytest.param("auto", marks=pytest.mark.long)], kept=(0,))
def test_several_files_are_one_table(scenario: Scenario, way: str) -> None:
    scenario(
        ROWS
        + f"""
way = {way!r}
"""
        + """
parts = [content[:3_000_000], content[3_000_000:3_000_016], content[3_000_016:]]
for n, part in enumerate(parts):
    with open(f"{path}.{n}", "wb") as made:
        made.write(part)
with forebay.open([f"{path}.{n}" for n in range(3)], way) as table:
    for row in (16, 500, 4096):
        every = [part[at : at + row] for part in parts for at in range(0, len(part) - row + 1, row)]
        rows = draw(len(every), size=9000)
        for _ in range(3):
            out = Array(len(rows) * row)
            side = ctypes.c_void_p()
            future = table.gather_async(rows, row, out)
            future.wait_on_stream(0)
            assert future.result() == len(rows) * row
            assert out.bytes() == b"".join(every[n] for n in rows), row
            report = table.last_report
            assert by_gpu(report) + report.staged_bytes == report.bytes == len(rows) * row, report
            out.free()
        assert way != "mapped" or not report.staged_bytes, report
        assert way != "bounce" or not by_gpu(report), report
    # Rows that touch, in the files and in the batch.
    out = Array(4096 * 500)
    table.gather(np.arange(500), 4096, out)
    assert out.bytes() == content[:4096 * 500]
for n in range(3):
    os.unlink(f"{path}.{n}")
"""
    )


@pytest.mark.long
@pytest.mark.promise("PYT-17")
def test_processors_copy_cached_rows_where_slots_are_asked_for(scenario: Scenario) -> None:
    books = scenario(
        ROWS
        + """
with forebay.open(path, "bounce") as file:
    for row, start in [(128, 0), (1, 5), (100, 8), (4096, 4096), (65536, 3), (65537, 0)]:
        rows = draw((SIZE - start) // row, size=3000 if row < 4096 else 300)
        for _ in range(2):
            report = fetched(file, rows, row, start)
            assert report.staged_bytes == report.bytes, report
    for bad in ([SIZE // 128], [-1]):
        try:
            file.gather(bad, 128, Array(128))
        except RequestError:
            pass
        else:
            sys.exit("a row beyond the end")
""",
        "hash=0",
    )
    assert ON_REAL_GPU or books


FAILING = ("cuLaunchKernel:3:719", "launch:3:719", "cuMemcpyHtoDAsync_v2:4:2", "cuMemAlloc_v2:4:2", "cuEventRecord:4:2")


@pytest.mark.promise("PYT-14")
@parametrized("fail", FAILING, kept=(3,))
def test_rows_whose_fetching_fails_are_an_error_and_leave_nothing(scenario: Scenario, fail: str) -> None:
    scenario(
        ROWS
        + """
out = Array(512 * 20000)
rows = draw(SIZE // 512, size=20000)
failed = 0
with forebay.open(path, "mapped") as file:
    for _ in range(4):
        try:
            file.gather(rows, 512, out)
        except ForebayError:
            failed += 1
forebay.release()
gc.collect()
assert failed or "cuMemAlloc" in os.environ["FOREBAY_STUB_CUDA"], "nothing failed"
left = live()["live"]
assert left["registrations"] == left["streams"] == left["events"] == 0, left
""",
        f"fail={fail}",
    )


@pytest.mark.long
@pytest.mark.promise("PYT-14")
def test_many_threads_gather_at_once_each_its_own_rows(scenario: Scenario) -> None:
    scenario(
        ROWS
        + """
file = forebay.open(path, "mapped")
wrong = []
def go(seed):
    own = np.random.default_rng(seed)
    out = Array(64 * 3000)
    for _ in range(4):
        rows = own.integers(SIZE // 64, size=3000)
        file.gather(rows, 64, out)
        if out.bytes() != b"".join(content[n * 64 : n * 64 + 64] for n in rows):
            wrong.append(seed)
threads = [threading.Thread(target=go, args=(seed,)) for seed in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not wrong, wrong
file.close()
""",
        "hash=0",
    )


@pytest.mark.gpu
def test_the_scenarios_hold_on_a_real_gpu() -> None:
    run_again_on_it(__file__)
