"""The tools that Forebay is set beside, run as their users run them, and Forebay as its users do."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import Contender, Figure, Unavailable, say, spent_s

WARMUP_S = 0.5
HUGE_PAGE = 2 << 20
NR_HUGEPAGES = Path("/proc/sys/vm/nr_hugepages")


@dataclass(frozen=True)
class Ran:
    """A finished child: its output, the CPU of it and of its children, what was seen meanwhile, and its memory at most."""

    stdout: str
    cpu_s: float
    wall_s: float
    most: float
    rss_bytes: int


def run(
    command: Sequence[str],
    timeout_s: float,
    watch: Callable[[], float] | None = None,
    passing: Sequence[int] = (0,),
) -> Ran:
    """Runs a command and waits for it with wait4. `watch` is asked every 50 ms; its greatest answer is kept.

    `passing`: the exit codes of a run that ended as it should.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        begin = time.monotonic()
        child = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True
        )
        most = 0.0
        pid = 0
        try:
            while not pid:
                if time.monotonic() - begin > timeout_s:
                    os.killpg(child.pid, signal.SIGKILL)
                most = max(most, watch() if watch else 0.0)
                time.sleep(0.05)
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        finally:
            # Ctrl-C, or whoever asked is ended: what it started doesn't go on.
            if not pid:
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        wall_s = time.monotonic() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        stdout, stderr = out.read(), err.read()
    if child.returncode not in passing:
        tail = " ".join((stderr or stdout).split())[-600:]
        raise Unavailable(f"{Path(command[0]).name} ended with {child.returncode}: {tail}")
    return Ran(stdout, usage.ru_utime + usage.ru_stime, wall_s, most, usage.ru_maxrss << 10)


# Forebay -------------------------------------------------------------------------------------------


BEFORE = "forebay before"


def program(name: str) -> str:
    """`forebay` of another installation, for argparse."""
    if not os.access(name, os.X_OK) or os.path.isdir(name):
        raise argparse.ArgumentTypeError(f"{name} is no program: VENV/bin/forebay of the other installation")
    return os.path.abspath(name)


def installed() -> str:
    """The `forebay` beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name("forebay")
    program = str(beside) if beside.exists() else shutil.which("forebay")
    if program is None:
        raise Unavailable(
            "forebay isn't installed for this Python; try: make demo, then .venv/bin/python bench/…"
        )
    return program


def forebay(
    source: str,
    *flags: str,
    name: str = "forebay",
    warmup_s: float = WARMUP_S,
    passes: int | None = None,
    destination: str | None = None,
    cached: bool = False,
    program: str | None = None,
) -> Contender:
    """`forebay bench SOURCE …` as typed, by this installation or by `program`. With `passes` it ends after so many, whatever
    the seconds, and has no warm-up.

    `destination` is where the bytes must have ended (as `gpu:0`), and `cached` says that all of them must have been in
    the page cache; a run of which that isn't true isn't counted.
    """
    base = [program or installed(), "bench", source, *flags]
    limit = ["--warmup", str(warmup_s), "--duration"] if passes is None else ["--passes"]

    def measure(seconds: float) -> Figure:
        until = [*limit, str(seconds if passes is None else passes)]
        ran = run([*base, *until, "--json"], 60 + 3 * seconds)
        record = json.loads(ran.stdout)
        result, path = record["result"], record["path"]
        if destination and path["destination"] != destination:
            raise Unavailable(f"{name}: the bytes went to {path['destination']}, not to {destination}")
        if not result["bytes"]:
            raise Unavailable(f"{name}: nothing was moved in {result['seconds']:.1f} s")
        resident = record["cache"]["resident_before"]
        if cached and (resident is None or resident < 0.999):
            raise Unavailable(f"{name}: {resident} of the file was in the page cache, not all of it")
        cpu = result["cpu"]
        keys = "ran reason engine engine_features slot_pages destination direct_bytes staged_bytes mapped_bytes"
        proof = {k: path.get(k) for k in keys.split()} | {"cache": record["cache"], "build": record["forebay"]}
        proof |= {k: result.get(k) for k in ("latency_us", "copy_latency_us")}
        proof |= {"batch_latency_us": (result.get("batch") or {}).get("latency_us")}
        cpu_s = spent_s(cpu)
        return Figure(result["seconds"], result["bytes"], result["ios"], cpu_s, ran.cpu_s, proof)

    shown = [*limit, "SECONDS" if passes is None else str(passes)]
    return Contender(name, measure, ["forebay", *base[1:], *shown, "--json"])


# fio -----------------------------------------------------------------------------------------------


def fio(name: str, *flags: str, huge_pages: int = 0, warmup_s: float = WARMUP_S) -> Contender:
    """One fio job. With `huge_pages` that many are reserved for the run and given back after it.

    CPU of the measured time is fio's own usr_cpu + sys_cpu, which start anew when its ramp ends, times the
    runtime of its jobs.
    """
    program = shutil.which(os.environ.get("FIO", "fio"))
    if program is None:
        raise Unavailable("fio isn't installed; try: apt install fio (FIO names it where it isn't on PATH)")
    always = f"--name=peer --time_based --ramp_time={round(1000 * warmup_s)}ms --thread --group_reporting"
    base = [program, *always.split(), "--norandommap", "--randrepeat=0", "--output-format=json", *flags]

    def measure(seconds: float) -> Figure:
        with reserved(huge_pages):
            free = huge_pages_free()
            watch = (lambda: free - huge_pages_free()) if huge_pages else None
            # In whole milliseconds: fio takes 0.7 for no time at all, and reads the whole file.
            ran = run([*base, f"--runtime={round(1000 * seconds)}ms"], 60 + 3 * seconds, watch)
        reported = json.loads(ran.stdout[ran.stdout.index("{") :])
        job = reported["jobs"][0]
        if job["error"]:
            raise Unavailable(f"{name}: fio reports error {job['error']}")
        if huge_pages and not ran.most:
            raise Unavailable(f"{name}: fio used none of the huge pages")
        read = job["read"]
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        proof = {"version": reported["fio version"], "huge_pages_used": ran.most or None}
        return Figure(read["runtime"] / 1e3, read["io_bytes"], read["total_ios"], cpu_s, ran.cpu_s, proof)

    return Contender(name, measure, ["fio", *base[1:], "--runtime=SECONDS"])


def fio_uring(
    name: str, file: Path, rw: str, block: int, depth: int, huge: bool = False, jobs: int = 1, batch: int = 0
) -> Contender:
    """fio at its best for O_DIRECT: io_uring with registered buffers and files, optionally in huge pages.

    With several `jobs`, sequential ones begin in different parts of the file. With `batch`, so many I/Os are begun and waited for
    at a time.
    """
    flags = [f"--filename={file}", f"--rw={rw}", f"--bs={block}", f"--iodepth={depth}", "--direct=1"]
    flags += ["--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"]
    if batch:
        flags += [f"--iodepth_batch_submit={batch}", f"--iodepth_batch_complete_min={batch}"]
    if jobs > 1:
        flags += [f"--numjobs={jobs}"]
        flags += [f"--offset_increment={100 // jobs}%"] if rw == "read" else []
    if not huge:
        return fio(name, *flags)
    return fio(name, *flags, "--mem=shmhuge", huge_pages=depth * block // HUGE_PAGE + 4)


def huge_pages_free() -> float:
    """Free and unpromised huge pages."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["HugePages_Free"]) - int(lines["HugePages_Rsvd"])


@contextlib.contextmanager
def reserved(pages: int) -> Iterator[None]:
    """Reserves huge pages for the time of one run, so that no other contender finds them, and restores the setting."""
    if not pages:
        yield
        return
    before = NR_HUGEPAGES.read_text()
    try:
        reserve(pages)
        yield
    finally:
        # Not an error of its own where reserving was refused.
        with contextlib.suppress(OSError):
            NR_HUGEPAGES.write_text(before)


def reserve(pages: int) -> None:
    """Asks until that many are free: pages of the run before may still be on their way back, or memory be scattered."""
    for attempt in range(20):
        missing = pages - int(huge_pages_free())
        if missing <= 0:
            return
        try:
            if attempt == 10:
                NR_HUGEPAGES.with_name("compact_memory").write_text("1")
            NR_HUGEPAGES.write_text(str(int(NR_HUGEPAGES.read_text()) + missing))
        except OSError as error:
            raise Unavailable(f"huge pages can't be reserved ({error.strerror}); try as root") from error
        time.sleep(0 if huge_pages_free() >= pages else 0.1)
    raise Unavailable(f"the kernel found no {pages} free huge pages in two seconds; try after a restart")


def registered(contender: Contender) -> dict[str, Any]:
    """What fio asks of the kernel, read from a short run under strace: proof that buffers and files are registered."""
    if not shutil.which("strace"):
        return {"registered": None, "why": "strace isn't installed"}
    command = ["--runtime=1" if c.startswith("--runtime=") else c for c in contender.command]
    pages = 64 if "--mem=shmhuge" in command else 0
    with reserved(pages), tempfile.NamedTemporaryFile("r") as trace:
        program = os.environ.get("FIO", command[0])
        traced = ["-f", "-o", trace.name, "-e", "trace=io_uring_register,shmget", program, *command[1:]]
        run(["strace", *traced], 60)
        seen = trace.read()
    return {
        "registered_buffers": "IORING_REGISTER_BUFFERS" in seen,
        "registered_files": "IORING_REGISTER_FILES" in seen,
        "huge_pages": "SHM_HUGETLB" in seen,
    }


# elbencho, memcpy ----------------------------------------------------------------------------------


def elbencho(name: str, file: Path, block: int, depth: int, random: bool = False) -> Contender:
    """elbencho with libaio and O_DIRECT. It has no warm-up and counts the whole machine's CPU, so only the process's is known."""
    program = shutil.which(os.environ.get("ELBENCHO", "elbencho"))
    if program is None:
        raise Unavailable("elbencho isn't installed (ELBENCHO names it where it isn't on PATH)")
    flags = f"-r -t 1 --iodepth {depth} -b {block} --direct --infloop --nolive{' --rand' if random else ''}".split()

    def measure(seconds: float) -> Figure:
        # Whole seconds are all it takes.
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/result.json"
            limit = ["--timelimit", str(max(1, round(seconds)))]
            ran = run([program, *flags, *limit, "--jsonfile", out, str(file)], 60 + 3 * seconds)
            reported = json.loads(Path(out).read_text().splitlines()[-1])
        done = reported["last_done"]
        total, elapsed_s = int(done["bytes"]), int(done["elapsed_time_ms"]) / 1e3
        return Figure(
            elapsed_s, total, total // block, None, ran.cpu_s, {"version": reported["config"]["version"]}
        )

    return Contender(name, measure, ["elbencho", *flags, "--timelimit", "SECONDS", str(file)])


def memcpy(name: str, source: int, block: int, slots: int, threads: int) -> Contender:
    """memcpy in this run: into `slots` blocks that are used again, or with 0 into as much memory again."""
    return in_c("memcpy_floor", name, [str(source), str(block), str(slots), str(threads)])


def in_c(stem: str, name: str, arguments: Sequence[str]) -> Contender:
    """bench/STEM.c, which takes seconds after these arguments and prints a figure."""
    source = Path(__file__).with_name(f"{stem}.c")
    program = Path(__file__).resolve().parent.parent / "target/bench-tools" / stem
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        if not shutil.which("gcc"):
            raise Unavailable(f"{name}: gcc isn't installed; try: apt install gcc libc6-dev")
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-O2", "-pthread", "-o", program, source], check=True)

    def measure(seconds: float) -> Figure:
        ran = run([str(program), *arguments, str(seconds)], 60 + 3 * seconds)
        reported = json.loads(ran.stdout)
        return Figure(reported["seconds"], reported["bytes"], reported["ios"], reported["cpu_s"], ran.cpu_s)

    return Contender(name, measure, [stem, *arguments, "SECONDS"])


def disk_rows(name: str, file: Path, row: int, run_rows: int, room: int, threads: int) -> Contender:
    """Rows by O_DIRECT, `run_rows` that lie next to each other by a read, each to a place anywhere in a room of so many bytes."""
    base = [str(file), str(row), str(run_rows), str(room), str(threads)]
    return in_c("disk_rows_floor", name, base)


# Files, and what is left out ------------------------------------------------------------------------


def made(file: Path, size: int) -> Path:
    """A file of random bytes, written once, on the disk before it is read, and out of the page cache."""
    if not file.exists() or file.stat().st_size != size:
        say(f"writing {file} ({size >> 20} MiB)")
        with open(file, "wb") as handle:
            for _ in range(size >> 20):
                handle.write(os.urandom(1 << 20))
            handle.flush()
            os.fsync(handle.fileno())
    handle_fd = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(handle_fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle_fd)
    return file


def available(*makers: Callable[[], Any]) -> list[Any]:
    """What each maker makes; one that can't run here is left out, and why is said."""
    found = []
    for make in makers:
        try:
            found.append(make())
        except Unavailable as reason:
            say(f"left out: {reason}")
    return found
