"""A contender in a process of its own, which measures whenever it is asked.

Libraries that are imported (KvikIO, torch, our own Python interface) start slowly: the interpreter, CUDA's context,
their buffers. So each runs in a child that does all that once, says so, then waits; every line that it is sent is
one measured run, and it answers with bytes, seconds and the CPU of exactly that run. Contenders can thus take turns
every second, and no start-up is in anyone's figure. A child that waits uses no CPU; one that might, as its workers or threads
read ahead, is stopped meanwhile.

The child's side is `serve`, in bench/child_*.py; the parent's is `Child`.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from side_by_side import Contender, Figure, Unavailable

START_S = 180.0  # imports, a context, pinned buffers
HERE = Path(__file__).resolve().parent


class Child:
    """`bench/SCRIPT ARGUMENTS…`, started at the first question and kept until `close`. One that `rests` is stopped, with all
    processes of its session's group, while it isn't asked."""

    def __init__(self, script: str, *arguments: str, python: str = sys.executable, rests: bool = False) -> None:
        self.command = [python, str(HERE / script), *arguments]
        self.rests = rests
        self.process: subprocess.Popen[bytes] | None = None
        self.pending = b""

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One measured run. Raises Unavailable with the child's own words where it can't."""
        process = self.started()
        try:
            self.signal(process, signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self.failed("ended") from None
        return self.answer(process, timeout_s)

    def started(self) -> subprocess.Popen[bytes]:
        """The process, once it is ready to be asked. Raises Unavailable where it can't run."""
        return self.process or self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.errors = tempfile.TemporaryFile("w+b")
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )
        self.ready = self.answer(self.process, START_S)
        return self.process

    def answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise self.failed(f"gave no answer in {timeout_s:.0f} s")
            more = os.read(process.stdout.fileno(), 1 << 16)
            if not more:
                raise self.failed("ended")
            self.pending += more
        self.signal(process, signal.SIGSTOP)
        line, _, self.pending = self.pending.partition(b"\n")
        reported = json.loads(line)
        if "error" in reported:
            self.close()
            raise Unavailable(reported["error"])
        return dict(reported)

    def signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        """Stops it, or has it go on, where it rests. The group stays as long as any process of it, or what it left, is there."""
        if self.rests:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def failed(self, what: str) -> Unavailable:
        """The end of its errors; the process is gone afterwards."""
        name = Path(self.command[1]).name
        self.close()
        self.errors.seek(0)
        tail = " ".join(self.errors.read()[-600:].decode("utf-8", "replace").split())
        return Unavailable(f"{name} {what}{f': {tail}' if tail else ''}")

    def close(self) -> None:
        process, self.process, self.pending = self.process, None, b""
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        self.signal(process, signal.SIGCONT)
        try:
            process.stdin.close()
            process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # Its workers may be about to notice.
        self.signal(process, signal.SIGKILL)
        process.stdout.close()


def asked(name: str, child: Child, **request: Any) -> Contender:
    """A contender that asks `child` for a run with these settings."""

    def measure(seconds: float) -> Figure:
        reported = child.ask({**request, "seconds": seconds}, 90 + 10 * seconds)
        if not reported["bytes"]:
            raise Unavailable(f"{name} moved no bytes in {reported['seconds']:.1f} s")
        proof = reported.get("proof", {}) | {"ready": child.ready.get("ready")}
        return Figure(reported["seconds"], reported["bytes"], reported["ios"], reported["cpu_s"], None, proof)

    settings = [f"{key}={value}" for key, value in request.items()]
    script = [f"bench/{Path(child.command[1]).name}", *child.command[2:]]
    return Contender(name, measure, ["python", *script, *settings])


def together(name: str, children: Sequence[Child]) -> Contender:
    """A contender of several children that measure at the same time: its rate is the sum of theirs."""

    def measure(seconds: float) -> Figure:
        with ThreadPoolExecutor(len(children)) as threads:
            # All are ready before one begins.
            list(threads.map(lambda child: child.process or child.start(), children))
            reported = list(threads.map(lambda child: child.ask({"seconds": seconds}, 90 + 10 * seconds), children))
        took = max(one["seconds"] for one in reported)
        moved, ios = (round(sum(one[key] / one["seconds"] for one in reported) * took) for key in ("bytes", "ios"))
        return Figure(took, moved, ios, sum(one["cpu_s"] for one in reported), None, {"ready": children[0].ready.get("ready")})

    return Contender(name, measure, ["python", f"bench/{Path(children[0].command[1]).name}", *children[0].command[2:]])


@contextmanager
def closing(*children: Child) -> Iterator[None]:
    try:
        yield
    finally:
        for child in children:
            child.close()


# The child's side ----------------------------------------------------------------------------------

Answer = dict[str, Any]


def serve(prepare: Callable[[Sequence[str]], Callable[[dict[str, Any]], Answer]]) -> int:
    """Prepares once, then answers a line for a line until its input ends.

    What a library prints goes to stderr: standard output carries answers only.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: Answer) -> None:
        print(json.dumps(answer, default=str), file=out, flush=True)

    try:
        run = prepare(sys.argv[1:])
        say({"ready": versions()})
        for line in sys.stdin:
            say(run(json.loads(line)))
    except ImportError as error:
        say({"error": f"{error.name or error} isn't installed for this Python ({error})"})
        return 3
    except Exception as error:  # whatever a library raises is its answer
        say({"error": f"{type(error).__name__}: {error}"[:600]})
        return 4
    return 0


def versions() -> dict[str, str]:
    """Of the libraries that this process has imported."""
    peers = ("safetensors", "fastsafetensors", "instanttensor", "runai_model_streamer")
    names = ("kvikio", "cupy", "torch", *peers, "forebay", "numpy")
    found = {n: str(getattr(m, "__version__", "?")) for n in names if (m := sys.modules.get(n))}
    core = sys.modules.get("forebay._core")
    return found | ({"forebay build": " ".join(json.loads(core.features())["features"])} if core else {})


def cpu_s(pids: Sequence[int] = ()) -> float:
    """User + system of this process and its threads; and of other processes, to a hundredth of a second."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    for pid in pids:
        # After the name in brackets, which may hold anything, utime and stime are the 12th and 13th field.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Stopwatch:
    """Wall and CPU seconds since it was made."""

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self.pids = pids
        self.cpu_before = cpu_s(pids)
        self.began = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def answer(self, moved: int, ios: int, after: Callable[[], Any] = int, **proof: Any) -> Answer:
        """`after` waits for what goes on in the background: its CPU is counted, its time isn't."""
        took = self.seconds()
        after()
        return {"seconds": took, "bytes": moved, "ios": ios, "cpu_s": cpu_s(self.pids) - self.cpu_before, "proof": proof}


def repeated(once: Callable[[], int], seconds: float, after: Callable[[], Any] = int) -> Answer:
    """`once` (which returns the bytes it moved) again and again, whole runs only, until the time is over."""
    watch = Stopwatch()
    moved, runs = 0, 0
    while not runs or watch.seconds() < seconds:
        moved += once()
        runs += 1
    return watch.answer(moved, runs, after)


def drop(path: str | Path) -> None:
    """Out of the page cache; pages that aren't on the disk yet would stay."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
