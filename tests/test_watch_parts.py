"""The parts of `forebay watch`, one by one: names from outside, processes that end, what can't be had."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay.emulate import workloads
from forebay.errors import RequestError
from forebay.watch import fanotify, files, machine, process, record, stats, waits, workload
from forebay.watch.watching import Activity, Watch
from other_user import OtherUser, somebody  # noqa: F401


@pytest.mark.promise("WAT-3")
@pytest.mark.parametrize("name", ["python", "a b", "a) R 9 (b", ")", "\n"])
def test_a_stat_is_read_whatever_the_process_is_called(name: str) -> None:
    rest = "S 17 1 1 0 -1 4194560 100 0 55 0 7 8 0 0 20 0 1 0 4242 " + " ".join(["0"] * 19) + " 77 0 0"
    found = process.Stat.parse(f"12 ({name}) {rest}\n".encode())
    assert (found.state, found.parent, found.major_faults, found.cpu_ticks) == ("S", 17, 55, 15)
    assert (found.started, found.block_ticks, found.is_of_kernel) == (4242, 77, False)


def test_a_process_with_such_a_name_is_watched_under_it() -> None:
    program = "import time; open('/proc/self/comm', 'w').write('a) R (b'); print('up', flush=True); time.sleep(60)"
    with processes.running([sys.executable, "-S", "-E", "-c", program]) as sleeper:
        assert sleeper.stdout is not None and sleeper.stdout.readline() == "up\n"
        found = process.Process(sleeper.pid, None, False)
        assert found.refresh() and found.name == "a) R (b" and found.stat.state in "SR" and found.stat.parent == os.getpid()
        sleeper.kill()
        sleeper.wait()
        assert not found.refresh()  # the kept files are of that process, whoever gets its number
        assert not found.count()
        found.close()


CHILDREN = """
import os, signal, sys, time
def read(size):
    with open(sys.argv[1], "rb") as file: file.read(size)
    time.sleep(0.15)
    os._exit(0)
sys.stdin.readline()
for number in range(6):
    if number == 3: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those after it are never waited for
    pid = os.fork()
    if pid == 0: read(1 << 20)
    if number < 3: os.waitpid(pid, 0)
time.sleep(0.2)
"""


@pytest.mark.promise("WAT-3")
def test_what_children_read_counts_once_however_they_end(tmp_path: Path) -> None:
    """A parent that waits for its child takes over the child's counters; one that ignores it doesn't."""
    file = tmp_path / "big.npy"
    file.write_bytes(bytes(1 << 20))
    with processes.running([sys.executable, "-S", "-E", "-c", CHILDREN, file], stdin=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        watch = Watch(parent.pid, None)
        reported = iter([lambda: parent.stdin.write("go\n"), parent.stdin.flush])

        def go() -> bool:
            next(reported, bool)()
            return False

        watch.run(60, go)
        moved = watch.moved()
        watch.tree.close()
    assert moved is not None and watch.ended
    # Those that nobody waits for are counted by looking: on a busy machine one may have come and gone unseen.
    assert 3 << 20 <= moved["rchar"] < 7 << 20, moved


@pytest.mark.promise("WAT-5")
def test_a_zombie_is_refused_and_counted_as_the_end() -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-E", "-c", "pass"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(Exception, match="has ended"):
        Watch(ended.pid, None)
    ended.wait()


@pytest.mark.parametrize(
    ("path", "suffix"),
    [
        ("/d/a.NPZ", "npz"), ("/d/a.jpeg", "jpg"), ("/d/img.00017", ""), ("/d/.bashrc", ""), ("/d/a", ""), ("/d/a.b/c", ""),
        ("/d/a.npy (deleted)", "npy"), ("/d/a.\udcff", ""), ("/d/a.x\ny", ""), ("/d/part.tar.gz", "gz"),
    ],
)  # fmt: skip
def test_suffixes(path: str, suffix: str) -> None:
    assert files.suffix_of(path) == suffix


NAMES = ["new\nline.npz", 'quo"te\\.npz', "tab\t.npz", "ünï.npz", os.fsdecode(b"not\xffutf8.npz"), "#hash = 1.npz", "\x7f.npz"]


@pytest.mark.promise("WAT-2", "WAT-4")
def test_strange_names_stay_out_of_trouble_in_json_and_toml(tmp_path: Path) -> None:
    folder = tmp_path / "new\nline"
    folder.mkdir()
    seen = files.Seen(str(folder))
    for name in NAMES:
        path = os.path.join(folder, name)
        Path(path).write_bytes(b"x" * 100)
        assert seen.see(os.stat(path), None, True, path) is not None
    assert seen.suffixes["npz"].files == len(NAMES)
    for name in NAMES:
        text = files.shown(os.path.join(folder, name))
        assert text.isprintable() and text.encode() and "\n" not in text
    made: dict[str, Any] = {
        "process": {"name": 'a"\n\\\udcff'}, "seconds": 60.0, "started": "2024-01-01T00:00:00Z",
        "workload": {
            "format": "npz", "loader": "pytorch", "record_bytes": 10, "record_bytes_stdev": 0, "samples_per_file": 1, "files": 7,
            "batch": 1, "read_threads": 1, "prefetch": 2, "epochs": 1, "au_pct_min": 90, "compute_s": 1e-05,
        },
        "derived": {
            "samples": "a\nb", "batch": "given", "accelerators": 1, "accelerators_by": "given", "step_s": 1.0,
            "waiting_share": 0.0, "wait_samples": 100, "compute_is_at_most": True,
        },
    }  # fmt: skip
    (read,) = workloads.parse(workload.toml(made), "job", "job.toml")
    assert isinstance(read, workloads.Training) and read.compute_s == 1e-05


@pytest.mark.promise("WAT-2")
def test_programs_and_written_files_are_no_data(tmp_path: Path) -> None:
    seen = files.Seen()
    for name in ("a.py", "lib.so.1", "site-packages/data.npy", "tool", "out.npy", "in.npy"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(300 << 10))
        path.chmod(0o755 if name == "tool" else 0o644)
        file = seen.see(os.stat(path), None, True, str(path))
        if name == "out.npy":
            assert file is not None
            seen.wrote(file)
    assert seen.main_suffix() == "npy" and [Path(f.path).name for f in seen.with_suffix("npy")] == ["in.npy"]
    group = seen.suffixes["npy"]
    assert (group.files, group.opens, group.mean, group.deviation) == (1, 1, 300 << 10, 0)
    link, hard = tmp_path / "link.npy", tmp_path / "hard.npy"
    link.symlink_to("in.npy")
    os.link(tmp_path / "in.npy", hard)
    for other in (link, hard):  # other names of the same file
        assert seen.see(os.stat(other), None, True, str(other)) is seen.with_suffix("npy")[0]
    assert seen.suffixes["npy"].files == 1 and seen.suffixes["npy"].opens == 3


def test_of_a_model_and_data_the_data_is_the_workload(tmp_path: Path) -> None:
    seen = files.Seen(str(tmp_path))
    for name, size in (("model.safetensors", 1 << 20), ("a.npy", 1000)):
        (tmp_path / name).write_bytes(bytes(size))
        seen.see(os.stat(tmp_path / name), None, True, str(tmp_path / name))
    assert seen.main_suffix() == "npy"


def test_too_many_files_are_counted_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILES_MAX", 50)
    monkeypatch.setattr(files, "NAMES_MAX", 10)
    seen = files.Seen(str(tmp_path))
    for number in range(80):
        path = tmp_path / f"{number}.npy"
        path.write_bytes(b"x")
        seen.see(os.stat(path), None, True, str(path))
    assert seen.overfull and len(seen.files) == 50 and sum(f.path.startswith("/") for f in seen.files.values()) <= 10
    assert seen.suffixes["npy"].files == 50


SLOW = """
import sys, time
file = open(sys.argv[1], "rb")
print("up", flush=True)
for _ in range(600): file.read(5_000); time.sleep(0.02)
"""


@pytest.mark.promise("WAT-2")
def test_without_fanotify_open_files_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: fanotify.Fanotify) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(fanotify.Fanotify, "__init__", refuse)
    path = tmp_path / "big.npy"
    path.write_bytes(bytes(3 << 20))
    with processes.running([sys.executable, "-S", "-E", "-c", SLOW, str(path)]) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == "up\n"
        watch = Watch(reader.pid, None)
        watch.run(0.6, lambda: False)
    made = record.record_of(watch, workload.Given(), ["watch"], datetime.now(), False)
    found = made["files"]
    assert found["every_open"] is False and "CAP_SYS_ADMIN" in made["missing"]["files.data.opens"]
    assert found["data"]["files"] == 1 and found["data"]["bytes_mean"] == 3 << 20
    assert found["pattern"] in ("sequential", None) and watch.open.steps["back"] == 0


@pytest.mark.promise("WAT-5")
def test_a_process_of_somebody_else_is_refused(somebody: OtherUser) -> None:  # noqa: F811
    done = somebody.run("watch", str(os.getpid()), "--seconds", "0.1")
    assert done.returncode == 3 and f"sudo forebay watch {os.getpid()}" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("WAT-2", "WAT-5")
def test_a_user_without_rights_watches_a_command_of_theirs(somebody: OtherUser) -> None:  # noqa: F811
    path = somebody.home / "big.npy"
    path.write_bytes(bytes(3 << 20))
    path.chmod(0o644)
    program = f"cat < {path} > /dev/null; exec 3< {path}; sleep 1; cat <&3 > /dev/null"
    done = somebody.run("watch", "--json", "-q", "--", "sh", "-c", program)
    assert done.returncode == 0 and '"schema": "forebay.watch/1"' in done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["files"]["every_open"] is False and found["files"]["data"]["files"] == 1


@pytest.mark.promise("WAT-6")
def test_what_is_dear_is_done_seldom() -> None:
    def spend() -> None:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass

    dear = Activity(0.05, spend, share=0.01)
    dear.run(100.0)
    assert dear.due - 100.0 >= 0.6 * 1.0  # a hundred times what it took, but for chance
    cheap = Activity(0.05, lambda: None)
    cheap.run(100.0)
    assert cheap.due - 100.0 <= 1.4 * 0.05 + 5.0  # a busy machine may hold up even that


def shares(**ways: float) -> dict[str, float]:
    return {way.replace(" ", "_"): ways.get(way.replace(" ", "_"), 0.0) for way in waits.WAYS}


def measured(share: float, **more: Any) -> dict[str, Any]:
    found = {
        "share": share, "share_min": share, "in_ring": False, "uncertainty": 0.05, "samples": 500,
        "main_thread": shares(storage=share, computes=1 - share),
        "reading_threads": 4, "reading_threads_wait": 0.5, "in": {"reads": 1.0}, "calls": {},
    }  # fmt: skip
    return {
        "waits": {**found, **more.pop("waits", {})},
        "moved": {"read_call_bytes_s": 1e9, "device_bytes_s": 1e9},
        **{"gpus": None, "disks": [{"name": "nvme0n1", "busy_pct": 93.0}], "cache": {"hit_share": 0.2}, **more},
    }  # fmt: skip


@pytest.mark.promise("WAT-1")
@pytest.mark.parametrize(
    ("made", "word", "says"),
    [
        (measured(0.58), record.YES, "nvme0n1 was busy 93 %"),
        (measured(0.3), record.PARTLY, "30%"),
        (measured(0.02), record.NO, "in I/O wait 50%"),
        (measured(0.02, waits={"reading_threads_wait": 0.95}), record.NO, "little time left"),
        (measured(0.9, waits={"samples": 19}), record.UNKNOWN, "19 samples"),
        (measured(0.9, gpus=[{"ours": True, "busy_pct": 97.0, "index": 0, "name": "H100"}]), record.NO, "97%"),
        (measured(0.9, gpus=[{"ours": False, "busy_pct": 97.0, "index": 0, "name": "H100"}]), record.YES, "GPU 0 (H100)"),
        (measured(0.4, waits={"share_min": 0.0, "in_ring": True}), record.PARTLY, "io_uring"),  # of a device that is busy
        (
            measured(0.4, waits={"share_min": 0.0, "in_ring": True}, disks=[{"name": "nvme0n1", "busy_pct": 40.0}]),
            record.UNKNOWN,
            "between 0% and 40%",
        ),
        (measured(0.9, waits={"in": {"metadata": 0.8, "reads": 0.2}}), record.YES, "metadata"),
    ],
)
def test_the_answer_follows_from_the_figures(made: dict[str, Any], word: str, says: str) -> None:
    found = record.answer(made)
    assert found["waiting"] == word and any(says in why for why in found["why"]), found


def test_a_main_thread_that_only_supervises_is_told_from_one_that_sleeps_between_batches() -> None:
    group = waits.Group(None, samples=100, read=300, read_waited=240, read_ran=60)  # type: ignore[arg-type]
    group.ways[waits.TIMER] = 100
    assert group.settled()[waits.STORAGE] == pytest.approx(80) and group.settled()[waits.TIMER] == 0
    group.ways.update({waits.TIMER: 95, waits.STORAGE: 5})  # it is fed by them: it waits when they are late
    assert group.settled()[waits.TIMER] == 95
    group.ways.update({waits.TIMER: 100, waits.STORAGE: 0})
    group.processes, group.main_looks = [None, None], [(0, 0), (20, 15)]  # type: ignore[list-item]  # it takes what they read
    assert group.settled()[waits.TIMER] == 100
    group.processes, group.read_ran = [], 30  # they wait for it
    assert group.settled()[waits.TIMER] == 100


@pytest.mark.promise("WAT-1")
def test_a_wait_in_io_uring_is_for_storage_no_longer_than_that_is_busy() -> None:
    found, group = waits.Waits(), waits.Group(None, samples=100, reads=True, ring=80)  # type: ignore[arg-type]
    group.ways.update({waits.STORAGE: 90, waits.COMPUTES: 10})
    found.groups = {None: group}  # type: ignore[dict-item]
    for busy, storage in ((1.0, 0.9), (0.8, 0.9), (0.3, 0.4), (0.0, 0.1)):
        shares = found.shares(busy)
        assert shares is not None and shares[waits.STORAGE] == pytest.approx(storage)
        assert sum(shares.values()) == pytest.approx(1.0)
    found.readers = waits.Readers(samples=100, waited=90, ring=80)
    assert found.reading(0.3)[1] == pytest.approx(0.4) and found.rings()


def test_pages_in_memory_are_counted_by_either_call(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(1 << 20))
    pages = machine.Pages()
    found = pages.share([str(path)])
    assert found is not None and found[0] == 1.0
    descriptor = os.open(path, os.O_RDONLY)
    assert pages._mincore(descriptor, 1 << 20) == 1 << 20
    os.close(descriptor)
    assert machine.Pages().share([str(tmp_path / "none")]) is None


NVML = """
#include <string.h>
#include <unistd.h>
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Info;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *h, char *t, unsigned n) { strncpy(t, "NVIDIA H100", n); return 0; }
int nvmlDeviceGetUtilizationRates(void *h, Rates *r) { r->gpu = h == (void *)1 ? 40 : 0; r->memory = 7; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, Info *i) {
    *n = h == (void *)1; if (*n) i->pid = getpid(); return 0; }
"""


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[str]:
    code, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
    code.write_text(NVML)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, code], check=True)
    except OSError as error:
        pytest.skip(f"no C compiler: {error}")
    yield str(library)


@pytest.mark.promise("WAT-1")
def test_gpus_are_those_that_the_process_computes_on(nvml: str) -> None:
    gpus = machine.Gpus.opened(nvml)
    assert gpus.refused is None
    gpus.sample()
    assert [g["index"] for g in gpus.document()] == [0, 1]  # not known yet whose
    gpus.find_ours([os.getpid()])
    assert [(g["index"], g["ours"], g["busy_pct"], g["memory_pct"]) for g in gpus.document()] == [(0, True, 40.0, 7.0)]
    missing = machine.Gpus.opened("libno-such-nvml.so")
    assert missing.refused and missing.document() == []


def test_a_file_is_described_without_asking_its_server(tmp_path: Path) -> None:
    path = tmp_path / "f\n"
    path.write_bytes(b"12345")
    with path.open("rb") as file:
        for found in (stats.stat(str(path)), stats.stat(file.fileno())):
            plain = os.stat(path)
            assert (found.st_dev, found.st_ino, found.st_size) == (plain.st_dev, plain.st_ino, 5)
            assert found.st_mode == plain.st_mode
    with pytest.raises(FileNotFoundError):
        stats.stat(str(tmp_path / "none"))


@pytest.mark.root
@pytest.mark.promise("WAT-2")
def test_processes_that_live_for_a_moment_are_followed(tmp_path: Path) -> None:
    """Each `cat` is gone before /proc could be asked for its parent."""
    for number in range(30):
        (tmp_path / f"{number}.npy").write_bytes(bytes(20_000))
    with processes.running(
        ["sh", "-c", f"read x; for f in {tmp_path}/*.npy; do cat $f > /dev/null; done"], stdin=subprocess.PIPE
    ) as shell:
        watch = Watch(shell.pid, str(tmp_path))
        if watch.tree.forks.refused or watch.opens.refused:
            pytest.skip(f"{watch.tree.forks.refused} {watch.opens.refused}")
        assert shell.stdin is not None
        shell.stdin.write("go\n")
        shell.stdin.flush()
        watch.run(60, lambda: False)
        watch.tree.close()
    assert watch.seen.suffixes["npy"].files == 30 and watch.ended


def test_a_thread_is_refused_by_its_process() -> None:
    program = (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print(1, flush=True); time.sleep(60)"
    )
    with processes.running([sys.executable, "-S", "-E", "-c", program]) as threaded:
        assert threaded.stdout is not None and threaded.stdout.readline()
        other = next(int(t) for t in os.listdir(f"/proc/{threaded.pid}/task") if int(t) != threaded.pid)
        with pytest.raises(RequestError, match=f"forebay watch {threaded.pid}"):
            Watch(other, None)
