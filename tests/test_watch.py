"""`forebay watch` on programs that know what they read, and how long they computed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay.emulate import workloads
from forebay.watch.fanotify import Fanotify
from forebay.watch.files import File, Seen

Forebay = Callable[..., "subprocess.CompletedProcess[str]"]
FILES, EPOCHS, BATCH, SLEEP_S = 40, 2, 4, 0.03
SIZES = [20_000 + 700 * i for i in range(FILES)]
# Reads all files of a folder in batches, sleeps after each, and says what it did.
READER = """
import json, os, sys, time
folder, epochs, batch, sleep = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
began, read, opens, steps = time.monotonic(), 0, 0, 0
names = sorted(os.listdir(folder))
for epoch in range(epochs):
    for first in range(0, len(names), batch):
        for name in names[first:first + batch]:
            with open(os.path.join(folder, name), "rb") as file:
                read, opens = read + len(file.read()), opens + 1
        time.sleep(sleep)
        steps += 1
print(json.dumps({"bytes": read, "opens": opens, "steps": steps, "seconds": time.monotonic() - began}))
"""


@pytest.fixture
def every_open(tmp_path: Path) -> None:
    """Skips where opened files can't be followed: short files are missed there, as the record says."""
    try:
        followed = Fanotify()
        followed.mark(str(tmp_path))
        followed.close()
    except OSError as error:
        pytest.skip(f"fanotify: {error.strerror}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, size in enumerate(SIZES):
        (folder / f"{number:03}.npz").write_bytes(os.urandom(size))
    return folder


def watched(done: subprocess.CompletedProcess[str]) -> tuple[dict[str, Any], list[str]]:
    """The record, and what the command itself printed before it."""
    *before, record = done.stdout.strip().splitlines()
    found = json.loads(record)
    assert found["schema"] == "forebay.watch/1"
    return found, before


def python(*words: object) -> list[str]:
    """A Python that starts at once, and reads little."""
    return [sys.executable, "-S", "-E", "-c", *map(str, words)]


@pytest.mark.usefixtures("every_open")
@pytest.mark.promise("WAT-1", "WAT-2", "WAT-3", "WAT-4")
def test_a_reader_of_files_is_told_as_its_own_counters_have_it(forebay: Forebay, data: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    words = python(READER, data, EPOCHS, BATCH, SLEEP_S)
    done = forebay("watch", "--batch-size", BATCH, "-o", job, "--json", "--", *words)
    record, printed = watched(done)
    own = json.loads(printed[0])
    assert (done.returncode, record["process"]["exit_code"], record["process"]["ended"]) == (0, 0, True), done.stderr
    assert own["bytes"] <= record["moved"]["read_call_bytes"] <= own["bytes"] + (4 << 20)
    found = record["files"]["data"]
    if record["files"]["every_open"]:
        assert (found["files"], found["opens"]) == (FILES, own["opens"])
        assert found["bytes_mean"] == pytest.approx(statistics.mean(SIZES))
        assert found["bytes_stdev"] == pytest.approx(statistics.stdev(SIZES))
        assert found["directory"] == str(data)
    assert record["answer"]["waiting"] in ("no", "can't be told here"), record["answer"]
    (made,) = workloads.variants(str(job))
    assert isinstance(made, workloads.Training)
    assert (made.format, made.batch, made.files) == ("npz", BATCH, found["files"])
    # It slept that long in each step, and can't have been seen for a shorter time than it took by its own clock.
    assert made.compute_s >= 0.5 * SLEEP_S and record["seconds"] >= 0.9 * own["seconds"]
    if record["files"]["every_open"]:
        # The rate is that until the last file was opened: a program's end reads nothing.
        assert record["derived"]["step_s"] == pytest.approx(BATCH / found["opens_s"])
        assert found["opens_s"] * record["seconds"] >= 0.99 * own["opens"]
    planned = forebay("plan", "run", "--drive", "D7-PS1010", "--workload", job, "--json")
    assert planned.returncode == 0 and json.loads(planned.stdout)["accelerators_max"], planned.stderr
    asked = ("--workload", job, "--accelerators", 1, "--data", "model:d7-ps1010", "--files", FILES, "--json")
    emulated = forebay("emulate", "run", *asked)
    assert json.loads(emulated.stdout)["training"]["workload"] == "job", emulated.stderr


CACHED = """
import mmap, os, sys, time
buffer = mmap.mmap(-1, 1 << 20)
file = os.open(sys.argv[1], os.O_RDONLY | int(sys.argv[2]))
for again in range(4):
    os.lseek(file, 0, 0)
    while os.readv(file, [buffer]): pass
    time.sleep(0.05)
"""


@pytest.mark.usefixtures("every_open")
@pytest.mark.promise("WAT-1", "WAT-2")
def test_reads_from_the_cache_and_past_it_are_told_apart(forebay: Forebay, tmp_path: Path) -> None:
    file, size = tmp_path / "big.npy", 8 << 20
    file.write_bytes(os.urandom(size))
    with file.open("rb") as written:
        os.fsync(written.fileno())
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("no O_DIRECT in the temporary folder")
    direct = watched(forebay("watch", "--json", "-q", "--", *python(CACHED, file, os.O_DIRECT)))[0]
    cached = watched(forebay("watch", "--json", "-q", "--", *python(CACHED, file, 0)))[0]
    if direct["moved"]["device_bytes"] == 0:
        pytest.skip("the temporary folder is on no device")
    # What counts begins once the file is open: some of the first pass may have been before.
    assert direct["moved"]["device_bytes"] >= 3 * size and cached["moved"]["device_bytes"] < size
    assert cached["cache"]["hit_share"] > 0.7 and (direct["cache"]["hit_share"] or 0) < 0.3
    for record in (direct, cached):
        assert record["files"]["data"]["files"] == 1 and record["files"]["data"]["suffix"] == "npy"
        assert record["workload"] is None or record["workload"]["format"] == "npy"


@pytest.mark.promise("WAT-1", "WAT-2", "WAT-4")
def test_one_that_never_reads_has_no_workload(forebay: Forebay, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    done = forebay("watch", "-o", job, "--json", "-q", "--", *python("import time; time.sleep(0.3)"))
    record = watched(done)[0]
    assert done.returncode == 1 and not job.exists() and "no file of data" in done.stderr
    assert record["workload"] is None and "no file of data" in record["missing"]["workload"]
    assert record["answer"]["waiting"] in ("no", "can't be told here") and record["cache"]["hit_share"] is None
    nulls = [key for key in ("moved", "waits", "gpus", "workload") if record[key] is None]
    assert all(key in record["missing"] for key in nulls)


OWN = """
import sys, time
with open(sys.argv[1], "r+b", 0) as file:
    file.write(bytes(int(sys.argv[2])))
    for again in range(3):
        file.seek(0)
        while file.read(1 << 18): pass
        time.sleep(float(sys.argv[3]))
"""


def seen(forebay: Forebay, file: Path, of: str, *flags: object) -> dict[str, Any]:
    """The record of OWN. A busy machine looks at its open files late: then it keeps them open for longer."""
    for pause_s in (0.1, 2.0, 20.0):
        record = watched(forebay("watch", "--json", "-q", *flags, "--", *python(OWN, file, 1 << 20, pause_s)))[0]
        if record["files"][of]:
            break
    return record


@pytest.mark.promise("WAT-1", "WAT-4")
def test_what_was_seen_instead_of_data_is_told_with_what_to_type(forebay: Forebay, tmp_path: Path) -> None:
    file = tmp_path / "own.bin"
    file.write_bytes(bytes(1 << 20))  # it may be looked at before it is written to
    record = seen(forebay, file, "written")
    assert record["files"]["data"] is None and record["files"]["written"] == 1
    why = record["missing"]["workload"]
    assert why.startswith("no file of data was seen: 1 file it had open for writing (") and str(file) in why and "--data" in why
    assert why.removeprefix("no file of data was seen: ") in record["missing"]["files.data"]
    # What is to be typed helps.
    data = seen(forebay, file, "data", "--data", tmp_path)["files"]["data"]
    assert data["files"] == 1 and data["bytes"] == 1 << 20


@pytest.mark.promise("WAT-4")
def test_each_reason_for_no_data_has_a_sentence() -> None:
    def seen(*files: File, under: str | None = None, programs: int = 0) -> str:
        made = Seen(under, {(0, at): file for at, file in enumerate(files)}, programs={(1, n): 0 for n in range(programs)})
        return made.nothing()

    small = File("/d/a.json", 100, 1)
    reported = "1 file of 100 B in all (/d/a.json), less than 256 KiB, which settings have, too; --data DIR if they are data"
    assert seen(small) == reported
    assert "2 files it had open" in (both := seen(*[File("*.bin", 5, 1, written=True)] * 2, small)) and "1 file of" in both
    assert "3 files of programs" in seen(programs=3) and "none meanwhile" in seen() and "under /d" in seen(under="/d")


@pytest.mark.promise("WAT-1", "WAT-5")
@pytest.mark.parametrize(
    ("words", "code"), [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["no-such-program"], 2)]
)
def test_a_command_keeps_its_exit_code(forebay: Forebay, tmp_path: Path, words: list[str], code: int) -> None:
    done = forebay("watch", "--", *words, cwd=tmp_path)
    assert done.returncode == code and not done.stdout and "Traceback" not in done.stderr
    assert ("there is no such command" if code == 2 else "can't be told here") in done.stderr


@pytest.mark.promise("WAT-5")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("4194304",), "there is no such process"),
        (("2",), "kernel"),
        (("python", "train.py"), "forebay watch -- python train.py"),
        (("x",), "isn't the number of a process"),
        (("--seconds", "0", "--", "true"), "--seconds 60"),
        (("--samples-per-s", "nan", "--", "true"), "--samples-per-s"),
        (("--sample-bytes", "0", "--", "true"), "--sample-bytes"),
        (("--trace", "ptrace", "--", "true"), "--trace strace"),
        (("--data", "/nowhere", "--", "true"), "--data"),
    ],
)
def test_what_cannot_be_watched_is_refused(forebay: Forebay, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    if words == ("2",) and (not os.path.exists("/proc/2/comm") or Path("/proc/2/comm").read_text() != "kthreadd\n"):
        pytest.skip("no kernel thread is visible here")
    done = forebay("watch", *words, cwd=tmp_path)
    assert done.returncode in (2, 3) and says in done.stderr and not done.stdout, done.stderr


@pytest.mark.usefixtures("every_open")
@pytest.mark.promise("WAT-4")
def test_a_file_that_is_not_ours_is_never_replaced(forebay: Forebay, data: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("precious = true\n")
    done = forebay("watch", "-o", job, "--", "touch", tmp_path / "ran")
    assert done.returncode == 2 and "isn't replaced" in done.stderr and not (tmp_path / "ran").exists()
    assert job.read_text() == "precious = true\n"
    job.unlink()
    for _ in range(2):
        assert forebay("watch", "-o", job, "-q", "--", *python(READER, data, 1, FILES, 1.0)).returncode == 0
        assert job.read_text().startswith("# A workload, measured by forebay watch")


@pytest.mark.promise("WAT-5", "WAT-6")
def test_ctrl_c_keeps_what_was_measured_and_leaves_the_process_alone(data: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    with processes.running(python(READER, data, 10_000, BATCH, 0.02)) as reader:
        with processes.running([*processes.FOREBAY, "watch", reader.pid, "--json", "-q", "-o", job]) as watch:
            processes.wait_until(lambda: processes.catches(watch, signal.SIGTERM), "its handlers", watch)
            time.sleep(0.4)
            status = Path(f"/proc/{reader.pid}/status").read_text()
            watch.send_signal(signal.SIGINT)
            done = processes.finish(watch)
        assert "TracerPid:\t0\n" in status and reader.poll() is None
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    record = json.loads(done.stdout) if done.stdout else None  # none where it came before the first look
    assert record is None or (record["interrupted"] and record["process"]["ended"] is False)


CAREFUL = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(60)"
)


@pytest.mark.promise("WAT-5")
def test_signals_reach_the_command_which_decides() -> None:
    with processes.running([*processes.FOREBAY, "watch", "-q", "--", *python(CAREFUL)]) as watch:
        assert watch.stdout is not None and watch.stdout.readline() == "up\n"
        watch.send_signal(signal.SIGTERM)
        done = processes.finish(watch)
    assert done.returncode == 7, done.stderr


@pytest.mark.promise("WAT-5")
def test_a_command_goes_on_behind_the_watch(forebay: Forebay) -> None:
    done = forebay("watch", "--seconds", "0.2", "--", "sh", "-c", "sleep 0.4; cat; echo end; exit 3")
    assert (done.returncode, done.stdout) == (3, "end\n") and "now waiting" in done.stderr, done.stderr


@pytest.mark.promise("WAT-2")
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_strace_on_request_sees_the_same_files(forebay: Forebay, data: Path) -> None:
    (data / "new\nline ü.npz").write_bytes(bytes(20_000))
    done = forebay("watch", "--trace", "strace", "--json", "-q", "--data", data, "--", *python(READER, data, 1, 41, 0.3))
    if done.returncode == 3:
        pytest.skip(done.stderr)
    record, printed = watched(done)
    found = record["files"]["data"]
    assert (found["files"], found["opens"]) == (FILES + 1, json.loads(printed[0])["opens"])
    assert record["files"]["ways"][0]["name"] == "strace" and "stopped" in record["files"]["ways"][0]["note"]
    assert any("new\\nline" in path for path in found["paths"]) or len(found["paths"]) < FILES + 1
