"""The commands of the GPU tables, without a GPU: who takes part, what children answer, what must hold, what is kept."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_stub_support
import processes
import pytest
from properties import parametrized

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import gpu_cufile  # noqa: E402
import gpu_gdsio  # noqa: E402
import gpu_safetensors  # noqa: E402
import infer_starts  # noqa: E402
import publish  # noqa: E402
import small_files  # noqa: E402
from child import Child, asked  # noqa: E402
from gpu import fastest, write_random  # noqa: E402
from side_by_side import (  # noqa: E402
    GIB,
    Bound,
    Cell,
    Contender,
    Figure,
    Unavailable,
    find_depth,
    interleave,
    judge,
    table,
    verdict,
)

COMMANDS = sorted(p.name for p in BENCH.glob("gpu_*.py"))
# Commands of other names that have tables of a GPU.
OTHERS = {"rows", "feed", "train", "train_models", "gnn", "drives", "infer"}


def figure(gib_s: float, cpu_ms_per_gib: float | None = 10.0, process_cpu_s: float | None = None) -> Figure:
    cpu_s = None if cpu_ms_per_gib is None else cpu_ms_per_gib * gib_s / 1e3
    return Figure(1.0, int(gib_s * GIB), 1000, cpu_s, process_cpu_s)


def steady(name: str, *runs: Figure | Unavailable) -> Contender:
    left = list(runs)

    def measure(seconds: float) -> Figure:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Unavailable):
            raise found
        return found

    return Contender(name, measure, [name])


def options(**more: object) -> argparse.Namespace:
    return argparse.Namespace(**{"no_scan": False, "scan_seconds": 0.1, "seconds": 0.1, **more})


# The commands ---------------------------------------------------------------------------------------


@parametrized("command", COMMANDS, kept=(0, 1, 2))
def test_without_a_gpu_each_command_says_so_and_ends_with_3(command: str, tmp_path: Path) -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU here")
    environment = {k: v for k, v in os.environ.items() if k != "FOREBAY_LIBCUDA"}
    words = [sys.executable, str(BENCH / command), "--dir", str(tmp_path)]
    ran = processes.run(words, env=environment)
    assert ran.returncode == 3 and "no NVIDIA GPU here" in ran.stderr and "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing_is_said_before_anything_is_looked_for(tmp_path: Path) -> None:
    ran = processes.run([sys.executable, str(BENCH / "gpu_warm.py"), "--dir", str(tmp_path / "data")])
    assert ran.returncode == 2 and f"mkdir -p {tmp_path}/data" in ran.stderr and "Traceback" not in ran.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_all_of_them_keep_what_each_measured_and_end_with_the_worst(tmp_path: Path) -> None:
    """A stand-in for the interpreter: one table does not hold, one command breaks after its JSON, the rest is fine."""
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/bash\nname=$(basename "$1" .py); while [ $# -gt 0 ]; do [ "$1" != --json ] || json=$2; shift; done\n'
        'echo "## $name"; echo "{\\"study\\": \\"$name\\"}" > "$json"\n'
        "case $name in gpu_random) exit 1 ;; gpu_cufile) echo broke >&2; exit 5 ;; esac\n"
    )
    fake.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(fake)}
    words = ["bash", str(BENCH / "gpu_all.sh"), str(tmp_path / "data"), str(tmp_path / "out"), "quick"]
    ran = processes.run(words, env=environment)
    assert ran.returncode == 5
    assert "gpu_random: something does not hold" in ran.stdout and "gpu_cufile: ended with 5: broke" in ran.stdout
    studies = [d["study"] for d in publish.documents((tmp_path / "out/gpu.json").read_text())]
    assert len(studies) == len(COMMANDS) + len(OTHERS) == 18 and set(studies) == {c[:-3] for c in COMMANDS} | OTHERS
    assert (tmp_path / "out/gpu.md").read_text().count("## ") == 18 and not (tmp_path / "out/now").exists()
    ran = processes.run(words, env={**environment, "ONLY": "warm two"})
    studies = [d["study"] for d in publish.documents((tmp_path / "out/gpu.json").read_text())]
    assert ran.returncode == 0 and studies == ["gpu_warm", "gpu_two"]


# What must hold -------------------------------------------------------------------------------------


def test_a_limit_may_be_a_figure_by_itself() -> None:
    cell = Cell("x", [], [], ours="bounce")
    figures = {"bounce": [figure(1)], "mapped": [figure(44, 20), figure(46, 30), figure(47, 95)]}
    rate = judge(Bound("rate", (), at_least=45, of="mapped"), cell, figures)
    cost = judge(Bound("cost", (), at_most=25, of="mapped"), cell, figures)
    assert rate["holds"] and not cost["holds"]
    assert "rate of mapped ≥ 45 GiB/s: 46.00 (44.00–47.00), holds" in verdict(cell, rate)
    assert "CPU of mapped ≤ 25 ms/GiB: 30.00" in verdict(cell, cost)


def test_a_contender_that_fails_midway_is_left_out_and_named() -> None:
    broken = steady("broken", figure(1), Unavailable("its GPU fell off"))
    cell = Cell("x", [steady("forebay", figure(2)), broken], [])
    figures, _ = interleave(cell, 3, 0.1, lambda text: None)
    assert list(figures) == ["forebay"] and len(figures["forebay"]) == 3
    reported = judge(Bound("rate", ("broken",), at_least=1.0), cell, figures)
    assert reported["holds"] is None and "broken didn't run" in reported["why"]
    assert "left out: broken: its GPU fell off" in table([(cell, figures, [reported])])


def test_processes_that_stay_have_no_column_of_their_own() -> None:
    cell = Cell("x", [], [])
    assert "whole process" not in table([(cell, {"forebay": [figure(2)]}, [])])
    assert "whole process" in table([(cell, {"forebay": [figure(2, process_cpu_s=1.0)]}, [])])


def test_settings_that_fail_are_passed_over() -> None:
    speeds = {4: Unavailable("no"), 8: figure(2, 9), 16: figure(2.01, 20)}
    found, how = find_depth(lambda n: steady(str(n), speeds[n]), [4, 8, 16], 0.1, lambda text: None)
    assert found.name == "8" and how["depth"] == 8
    with pytest.raises(Unavailable, match="no"):
        find_depth(lambda n: steady("x", Unavailable("no")), [1, 2], 0.1, lambda text: None)


def test_who_cannot_run_is_left_out_with_the_reason() -> None:
    def refuse(setting: object) -> Contender:
        raise Unavailable("not installed")

    cell = Cell("x", [], [])
    fastest(cell, options(), "here", lambda n: steady("here", figure(n)), [1, 3], lambda n: f"{n} threads")
    fastest(cell, options(), "absent", refuse)
    fastest(cell, options(), "broken", lambda n: steady("broken", Unavailable("no memory")), [1, 3])
    fastest(cell, options(no_scan=True), "late", lambda n: steady(f"late {n}", figure(n)), [1, 3])
    assert [c.name for c in cell.contenders] == ["here", "late 1"]
    assert cell.lost == {"absent": "not installed", "broken": "no memory"}
    assert cell.chosen["here"]["shown"] == "3 threads"


# Children -------------------------------------------------------------------------------------------


def script(folder: Path, body: str) -> str:
    file = folder / "child_test.py"
    file.write_text(f"import sys, time\nsys.path.insert(0, {str(BENCH)!r})\nfrom child import *\n{body}\n")
    return str(file)


def test_a_child_is_prepared_once_and_what_it_prints_is_no_answer(tmp_path: Path) -> None:
    body = """
def prepare(arguments):
    print("a library's banner")
    runs = []
    def run(request):
        print("chatter")
        runs.append(1)
        return Stopwatch().answer(request["block"], len(runs))
    return run
sys.exit(serve(prepare))
"""
    child = Child(script(tmp_path, body))
    found = [asked("x", child, block=7).measure(0.1) for _ in range(2)]
    child.close()
    assert [f.bytes for f in found] == [7, 7] and [f.ios for f in found] == [1, 2]
    assert found[0].process_cpu_s is None and found[0].cpu_s is not None


@pytest.mark.parametrize(
    "body, says",
    [
        ("import no_such_library", "No module named 'no_such_library'"),
        ("def prepare(a): import no_such_library\nsys.exit(serve(prepare))", "no_such_library isn't installed"),
        ("def prepare(a): raise OSError('no memory')\nsys.exit(serve(prepare))", "OSError: no memory"),
        ("def prepare(a): return lambda r: 1 / 0\nsys.exit(serve(prepare))", "ZeroDivisionError"),
    ],
)
def test_a_child_that_cannot_says_why(body: str, says: str, tmp_path: Path) -> None:
    child = Child(script(tmp_path, body))
    with pytest.raises(Unavailable) as reported:
        asked("x", child).measure(0.1)
    assert says in str(reported.value) and child.process is None


def test_a_child_that_rests_uses_no_processor_between_its_turns_nor_do_its_workers(tmp_path: Path) -> None:
    body = """
import itertools, os
def prepare(arguments):
    read, write = os.pipe()
    if os.fork() == 0:
        for number in itertools.count():
            os.pwrite(counted, number.to_bytes(8, "little"), 0)
    return lambda request: {"worker": int.from_bytes(os.pread(counted, 8, 0), "little")}
counted = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
sys.exit(serve(prepare))
"""
    counted = tmp_path / "counted"

    def count() -> int:
        return int.from_bytes(counted.read_bytes(), "little") if counted.exists() else 0

    child = Child(script(tmp_path, body), str(counted), rests=True)
    at_first, turns = child.ask({}, 30)["worker"], 0
    while child.ask({}, 30)["worker"] <= at_first:
        turns += 1
        assert turns < 10_000
    assert settled(count)
    child.close()
    assert settled(count)


def settled(count: Callable[[], int]) -> bool:
    """It stops counting. What is told to stop does so soon."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        before = count()
        time.sleep(0.1)
        if count() == before:
            return True
    return False


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    child = Child(script(tmp_path, "def prepare(a): return lambda r: time.sleep(60)\nsys.exit(serve(prepare))"))
    with pytest.raises(Unavailable, match="gave no answer"):
        child.ask({"seconds": 0.1}, 0.5)
    assert child.process is None


KVIKIO = '''
class defaults:
    set = staticmethod(lambda settings: None)
class Future:
    def __init__(self, value): self.get = lambda: value
class CuFile:
    def __init__(self, path, flags): self.file = open(path, "rb", buffering=0)
    def __enter__(self): return self
    def __exit__(self, *rest): self.file.close()
    def read(self, view, size=None, file_offset=0):
        import os
        return os.preadv(self.file.fileno(), [view[:size]], file_offset)
    def pread(self, view, size, file_offset): return Future(self.read(view, size, file_offset))
'''


def test_each_way_of_asking_kvikio_counts_what_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for KvikIO that reads into host memory."""
    (tmp_path / "lib/kvikio").mkdir(parents=True)
    (tmp_path / "lib/kvikio/__init__.py").write_text(KVIKIO)
    (tmp_path / "lib/kvikio/defaults.py").write_text(
        "def set(settings): pass\ndef get(name): return 'AUTO'\ndef is_compat_mode_preferred(): return True\n"
    )
    (tmp_path / "lib/cupy.py").write_text("from numpy import empty, uint8\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    file = tmp_path / "data"
    write_random(file, 8 << 20)
    small_files.make(tmp_path / "small", 10, 4096)
    child = Child("child_kvikio.py", str(file), str(tmp_path / "small"))
    base = {"threads": 2, "task": 1 << 20}
    whole = asked("k", child, **base).measure(0.05)
    assert whole.bytes % (8 << 20) == 0 and whole.bytes
    cold = asked("k", child, **base, cold=True).measure(0.05)
    assert cold.bytes and cold.bytes % (8 << 20) == 0
    for mode in ("futures", "threads"):
        random = asked("k", child, **base, mode=mode, block=4096).measure(0.05)
        assert random.bytes == random.ios * 4096 and random.ios
    small = asked("k", child, **base, mode="files").measure(0.05)
    assert (small.bytes, small.ios) == (40960, 10)
    part = asked("k", child, **base, mode="files", files=3).measure(0.05)
    child.close()
    assert part.ios == 3


@pytest.mark.long
def test_our_python_interface_is_asked_for_whole_files_ranges_and_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With numpy's arrays for PyTorch's tensors, so into host memory."""
    pytest.importorskip("forebay.reader")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/torch.py").write_text(
        "import numpy\nuint8 = numpy.uint8\ndef empty(size, dtype=None, device=None): return numpy.empty(size, dtype)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    file = tmp_path / "data"
    write_random(file, 4 << 20)
    small_files.make(tmp_path / "small", 20, 4096)
    child = Child("child_forebay.py", "file", "0", str(file))
    many = Child("child_forebay.py", "files", "0", str(tmp_path / "small"))
    whole = asked("w", child).measure(0.02)
    assert whole.bytes and whole.bytes % (4 << 20) == 0 and whole.proof["bytes"] == 4 << 20
    ranges = asked("r", child, block=4096, at_once=16).measure(0.02)
    assert ranges.bytes == ranges.ios * 4096 and ranges.ios % 16 == 0
    files = asked("f", many).measure(0.02)
    assert (files.bytes, files.ios) == (20 * 4096, 20)
    child.close(), many.close()


# On stand-ins for NVIDIA's libraries ----------------------------------------------------------------


@pytest.fixture
def stubs() -> Path:
    return gpu_stub_support.built()


@pytest.mark.long
@parametrized(
    "mode, depth",
    [("sync", 1), ("batch", 4), *(pytest.param(mode, 4, marks=pytest.mark.long) for mode in ("stream", "batch-stream"))],
    kept=(0,),
)
def test_the_c_loop_reads_in_each_of_cufiles_ways(
    mode: str, depth: int, stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_LIBCUDA", str(stubs / "libcuda.so.1"))
    monkeypatch.setenv("FOREBAY_LIBCUFILE", str(stubs / "libcufile.so.0"))
    for name in ("LIBCUDA", "LIBCUFILE"):
        monkeypatch.setenv(name, "")  # given back as it was
    file = tmp_path / "data"
    write_random(file, 8 << 20)
    loop = gpu_cufile.loop(file, mode, 64 << 10, 2, depth, direct=False)
    # A busy machine may let none of its threads run for as long as it measures.
    tries = (loop.measure(seconds) for seconds in (0.1, 1.0, 10.0, 60.0))
    found = next(tried for tried in tries if tried.ios > 0)
    assert found.bytes == found.ios * (64 << 10) and found.cpu_s is not None
    with pytest.raises(Unavailable, match="ended with 2"):
        gpu_cufile.loop(file, mode, 64 << 20, 2, depth, direct=False).measure(0.1)


def test_the_rate_of_the_link_is_of_whole_copies(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_LIBCUDA", str(stubs / "libcuda.so.1"))
    child = Child("child_copy.py", "0", str(1 << 20))
    found = asked("copy", child).measure(0.02)
    child.close()
    assert found.bytes == found.ios << 20 and found.ios % 16 == 0


@pytest.mark.long
def test_a_table_is_made_and_saved_from_end_to_end(stubs: Path, tmp_path: Path) -> None:
    """Ours runs into emulated device memory; whoever isn't installed is left out, and its limits stay open."""
    environment = {**os.environ, "FOREBAY_LIBCUDA": str(stubs / "libcuda.so.1"), "PYTHONPATH": ""}
    words = f"--dir {tmp_path} --rounds 1 --seconds 1.5 --no-scan --file-gib 0.03125 --json {tmp_path}/out.json"
    command = [sys.executable, str(BENCH / "gpu_cold.py"), *words.split()]
    ran = processes.run(command, env={**environment, "FIO": "no-such-fio"})
    assert ran.returncode == 0, ran.stderr
    saved = json.loads((tmp_path / "out.json").read_text())
    (cell,) = saved["cells"]
    assert cell["runs"]["bounce"][0]["proof"]["destination"] == "gpu:0"
    assert "fio isn't installed" in cell["left_out"]["fio, host only"]
    assert {b["holds"] for b in cell["bounds"]} == {None}
    assert saved["study"] == "Into the GPU, from the disk" and f"## {saved['study']}" in ran.stdout
    (row,) = saved["tables"][0]["rows"]
    assert row[0] == cell["cell"] and row[2][0] > 0 and row[-1] is None and len(saved["left_out"]) >= 2


# Files and lines ------------------------------------------------------------------------------------


@pytest.mark.long
def test_small_files_are_made_once_and_extras_go(tmp_path: Path) -> None:
    made = small_files.make(tmp_path, 1500, 512)
    assert made == small_files.names(str(tmp_path)) and {os.path.getsize(f) for f in made} == {512}
    before = os.stat(made[0]).st_mtime_ns
    small_files.make(tmp_path, 20, 512)
    assert len(small_files.names(str(tmp_path))) == 20 and os.stat(made[0]).st_mtime_ns == before


def test_the_safetensors_file_is_one(tmp_path: Path) -> None:
    """Checked against the format: header length, JSON, offsets without gaps, exactly as many bytes."""
    tensors = {"a": [3, 5], "b": [7], "c": [2, 2, 2]}
    file = tmp_path / "x.safetensors"
    gpu_safetensors.write(file, tensors)
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    ends = [header[n]["data_offsets"] for n in tensors]
    assert length % 8 == 0 and ends == [[0, 30], [30, 44], [44, 60]] and len(data) == 8 + length + 60
    names = gpu_safetensors.shapes(8 * GIB)
    assert 100 < len(names) and 8 * GIB <= sum(map(gpu_safetensors.size, names.values())) < 9 * GIB


def test_random_content_is_whole_and_its_own_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "x"
    write_random(file, (3 << 20) + 5, piece=1 << 20)
    data = file.read_bytes()
    assert len(data) == (3 << 20) + 5 and data[: 1 << 20] != data[1 << 20 : 2 << 20]


def test_udev_is_told_of_the_file_system_meanwhile_and_left_alone_where_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.touch()
    root = tmp_path / "udev"
    device = os.stat(file).st_dev
    with gpu_cufile.udev(file, root):
        reported = (root / f"data/b{os.major(device)}:{os.minor(device)}").read_text()
        assert "E:ID_FS_TYPE=" in reported and "E:ID_FS_USAGE=filesystem" in reported and (root / "control").exists()
    assert not root.exists()
    other = tmp_path / "running"
    other.mkdir()
    (other / "control").touch()
    with gpu_cufile.udev(file, other):
        assert not (other / "data").exists()
    assert (other / "control").exists()


def test_gdsios_line_is_read_and_anything_else_refused() -> None:
    line = (
        "IoType: READ XferType: GPUD Threads: 8 DataSetSize: 818796544/4096000(KiB) IOSize: 1024(KiB) Throughput: "
        "6.524658 GiB/sec, Avg_Latency: 1197.370995 usecs ops: 799606 total_time 119.679102 secs\n"
    )
    found = gpu_gdsio.read_line(f"banner\n{line}")
    assert found["label"] == "GPUD" and found["kib"] == "818796544" and found["seconds"] == "119.679102"
    assert gpu_gdsio.read_line(line.replace("Threads: 8", "Threads: 8 IoDepth: 4"))["ops"] == "799606"
    with pytest.raises(Unavailable):
        gpu_gdsio.read_line("error: no such file")


def test_saved_sections_are_read_back_one_or_many() -> None:
    both = '{"study": "a", "section": "x"}\n{"study": "b", "section": "y"}\n'
    assert [d["study"] for d in publish.documents(both)] == ["a", "b"]


class Loads:
    """A loader of a child's answers at a rate, GiB/s; at none it isn't installed."""

    def __init__(self, rate: float | None) -> None:
        self.rate, self.asked = rate, 0

    def started(self) -> None:
        pass

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked += 1
        if self.rate is None:
            raise Unavailable("instanttensor isn't installed for this Python")
        # Sixteen threads are its best, and without cuFile.
        slower = 1.0 if request.get("threads", 16) == 16 and not request.get("gds") else 0.5
        return {"bytes": GIB, "seconds": 1 / (slower * self.rate)}


def test_cold_starts_stand_beside_the_loaders_that_are_installed(tmp_path: Path) -> None:
    """Of one that isn't, the reason; the best of the others is the measure, and the link where the file is cached."""
    (tmp_path / "w").write_bytes(b"weights")
    names = ("InstantTensor", "Run:ai's streamer", "fastsafetensors", "safetensors", infer_starts.LINK, infer_starts.DISK)
    assert set(infer_starts.children(tmp_path / "w")) == set(names)

    def measured(ours: float) -> tuple[list[str], dict[str, bool], list[str]]:
        reported: list[str] = []
        bounds: dict[str, bool] = {}
        found = []
        for cache in ("warm", "cold"):
            others = dict(zip(names, map(Loads, (None, 8.0, 10.0, 2.0, 20.0, 19.5)), strict=True))
            found.append(infer_starts.rates(lambda _: ours, others, tmp_path / "w", cache, 3))
            # One that can't run is asked once with each of its settings; the link is of a cached file alone, the disk, at the
            # best of three settings, of others.
            asked = [others[name].asked for name in (names[0], *names[4:])]
            assert asked == [2, 3 if cache == "warm" else 0, 6 if cache == "cold" else 0]
            assert found[-1]["settings"]["fastsafetensors"] == {"threads": 16, "gds": 0}
        lines = infer_starts.judge("m", found, lambda text, _, holds: bounds.update({text: holds}), reported.append)
        return lines, bounds, reported

    lines, bounds, reported = measured(19.0)
    assert list(bounds.values()) == [True] * 4 and all("fastsafetensors" in text for text in list(bounds)[:1])
    assert [text.count("left out: instanttensor isn't installed") for text in reported] == [1, 1]
    assert len([line for line in lines if "safetensors |" in line or "safetensors (threads 16, gds 0) |" in line]) == 4
    assert list(measured(9.0)[1].values()) == [False] * 4
