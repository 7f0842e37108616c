"""Every engine on a device that isn't ours, whose own trace says what was asked and how long each answer took.

What the record says is held against it: counts, bytes and errors to the last one; no latency below the trace's, and the
longest no shorter than the longest wait. How far above the trace it may lie is judged where the machine is quiet (soak).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from faults_support import check_manners
from fuse_support import Answer, Device, Whole, serving, wholes
from properties import parametrized

MIB = 1 << 20
BYTES = 4 * MIB
IO_BYTES = 64 << 10
IOS = BYTES // IO_BYTES
# `map` reads what the kernel's read-ahead asked for: its requests aren't the job's.
ENGINES = ("uring", "pread", "inline")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    with serving(tmp_path_factory.mktemp("device") / "data", BYTES) as made:
        yield made


def run(device: Device, home: Path, *flags: Any, code: int = 0) -> dict[str, Any]:
    """The record of a bench on the device, which ended with `code`."""
    words = ["bench", device.path, "--io-size", IO_BYTES, "--warmup", 0, "--json", "-q", *flags]
    with begun(device, home, words) as process:
        done = ended(device, home, process)
    record = json.loads(done.stdout)
    assert done.returncode == code, f"{done.returncode}\n{done.stderr}"
    return record


@contextlib.contextmanager
def begun(device: Device, home: Path, words: list[Any]) -> Iterator[subprocess.Popen[str]]:
    """The command under way, its record into a file; what the device holds it in ends with the block."""
    with (home / "out").open("w") as out:
        try:
            with processes.running([*processes.FOREBAY, *map(str, words)], cwd=home, stdout=out) as process:
                try:
                    yield process
                finally:
                    device.let_go()
        finally:
            device.let_go()


def ended(device: Device, home: Path, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Waits for all that it has to say, then lets go of it, so that it can end."""
    out = home / "out"
    processes.wait_until(lambda: process.poll() is not None or out.read_text().endswith("}\n"), "it has said all", within_s=60)
    device.let_go()
    done = processes.finish(process, within_s=60)
    done.stdout = out.read_text()
    check_manners(done)
    return done


def one_pass(device: Device, home: Path, engine: str, *flags: Any, code: int = 0) -> tuple[dict[str, Any], list[Whole]]:
    record = run(device, home, "--engine", engine, "--op", "randread", "--no-repeat", "--passes", 1, *flags, code=code)
    assert record["path"]["engine"] == engine
    return record["result"], wholes(device.trace, IO_BYTES)


PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def percentiles(waits_us: list[float]) -> dict[str, float]:
    """By nearest rank, as a run's."""
    waits = sorted(waits_us)
    return {key: waits[max(0, math.ceil(share * len(waits) - 1e-9) - 1)] for key, share in PERCENTILES.items()}


def check_latency(result: dict[str, Any], found: list[Whole]) -> None:
    """Nobody can have waited for less than the device took. A figure of the histogram has three digits."""
    waits = [whole.waited_ns / 1e3 for whole in found if not whole.parts[-1].error]
    latency = result["latency_us"]
    assert latency["max"] >= max(waits) * 0.999 and latency["min"] >= min(waits) * 0.999
    for key, least in percentiles(waits).items():
        assert latency[key] >= least * 0.999, f"{key}: {latency[key]} below the trace's {least}"
    assert latency["mean"] >= sum(waits) / len(waits) * 0.999


@dataclasses.dataclass
class Played:
    """A schedule's run: percentiles in us beside the longest that the trace allows, and what disturbed the machine."""

    pairs: dict[str, tuple[float, float]]
    disturbed: str

    def too_high(self) -> list[str]:
        """Those that lie more than 1 % and 0.5 ms above what the device can have taken."""
        high = {key: pair for key, pair in self.pairs.items() if pair[0] > pair[1] * 1.01 + 500}
        return [f"{key}: {ours:.0f} us, the trace {trace:.0f}" for key, (ours, trace) in high.items()]

    def excess_us(self) -> float:
        """How far above the trace, beyond 1 % of it."""
        return max(ours - trace * 1.01 for ours, trace in self.pairs.values())


def compared(result: dict[str, Any], found: list[Whole]) -> dict[str, tuple[float, float]]:
    most = percentiles([whole.waited_ns_max / 1e3 for whole in found if not whole.parts[-1].error])
    return {key: (result["latency_us"][key], us) for key, us in most.items()}


def uneven(seed: int, slowest_s: float = 0.02) -> Callable[[int, int, int], Answer]:
    """Answers in an order of their own: mostly at once, some late."""
    rng = random.Random(seed)
    return lambda nth, offset, size: Answer(rng.choice((0.0, 0.0, 0.001, 0.004, slowest_s)))


@pytest.mark.promise("REC-34")
@parametrized("engine", ENGINES, kept=(0,))
def test_counts_bytes_and_latencies_agree_with_the_devices_own_trace(device: Device, tmp_path: Path, engine: str) -> None:
    device.begin(uneven(1))
    result, found = one_pass(device, tmp_path, engine, "--depth", 8, "--workers", 2)
    assert len(found) == len(device.trace) == result["ios"] == IOS
    assert sum(whole.moved for whole in found) == result["bytes"] == result["read_bytes"] == BYTES
    assert not any(result["errors"].values()) and result["late"] == result["unfinished"]["count"] == 0
    check_latency(result, found)


def test_a_mapped_file_is_read_whole_and_no_faster_than_the_device(device: Device, tmp_path: Path) -> None:
    device.begin(lambda nth, offset, size: Answer(0.002), cached=True)
    # Its pages may be cached from before: they are dropped.
    record = run(device, tmp_path, "--engine", "map", "--passes", 1, "--cache", "drop")
    result = record["result"]
    assert record["path"]["engine"] == "map" and result["bytes"] == BYTES == sum(t.moved for t in device.trace)
    assert len({t.offset for t in device.trace}) == len(device.trace)
    assert result["latency_us"]["max"] * 1e3 >= max(t.took_ns for t in device.trace) * 0.999


@pytest.mark.promise("REC-34")
@parametrized("engine", ENGINES, kept=(2,))
def test_errors_are_counted_one_by_one_and_the_rest_is_measured(device: Device, tmp_path: Path, engine: str) -> None:
    device.begin(lambda nth, offset, size: Answer(0.001, error=errno.EIO if nth % 7 == 3 else 0))
    result, found = one_pass(device, tmp_path, engine, "--depth", 4, code=4)
    failed = sum(1 for traced in device.trace if traced.error)
    assert 0 < failed == result["errors"]["failed"] and len(found) == IOS
    assert result["ios"] == IOS - failed and result["bytes"] == BYTES - failed * IO_BYTES
    assert all("Input/output error" in text for text in result["errors"]["examples"])


@pytest.mark.promise("REC-34")
@parametrized("engine", ENGINES, kept=(1,))
def test_short_answers_are_counted_and_what_is_left_is_asked_for(device: Device, tmp_path: Path, engine: str) -> None:
    device.begin(lambda nth, offset, size: Answer(0.001, short=size // 2 if nth % 5 == 1 and size == IO_BYTES else None))
    result, found = one_pass(device, tmp_path, engine, "--depth", 4)
    short = sum(1 for traced in device.trace if traced.moved < traced.size)
    assert 0 < short == result["errors"]["short"] and len(device.trace) == IOS + short
    assert len(found) == result["ios"] == IOS and sum(w.moved for w in found) == result["bytes"] == BYTES
    check_latency(result, found)


@pytest.mark.promise("REC-35")
@parametrized("engine", ENGINES, kept=(2,))
def test_what_never_answers_is_given_up_and_all_else_is_kept(device: Device, tmp_path: Path, engine: str) -> None:
    """`inline` is held by the kernel itself: the driver goes on without its worker."""
    device.begin(lambda nth, offset, size: Answer(0.001, hangs=nth == 9))
    flags = ("--depth", 4, "--timeout", 1, "--interval", 100)
    result, found = one_pass(device, tmp_path, engine, *flags, code=4)
    (hung,) = (whole for whole in found if whole.parts[-1].answer.hangs)
    # The device is a thread of this process: where that didn't run for as long, it kept others waiting, too.
    overdue = sum(whole.parts[-1].took_ns >= 0.9e9 for whole in found)
    assert 1 <= result["errors"]["timed_out"] == result["unfinished"]["count"] <= overdue
    assert result["latency_us"]["max"] >= 1e6 and result["unfinished"]["oldest_s"] >= 1
    assert hung.parts[0].took_ns >= 1e9, "nobody let go of it earlier"
    # What the worker that is held did after its last snapshot isn't known.
    assert result["ios"] <= len(found) - 1
    assert result["ios"] > 0 or engine == "inline" or overdue > 1
    assert "ended" not in result["errors"]["examples"][0] and "--timeout 1 s" in result["errors"]["examples"][0]


@pytest.mark.promise("REC-34")
@parametrized("engine", ["uring", "pread"], kept=(0,))
def test_an_open_loop_accounts_for_each_io_that_the_device_saw(device: Device, tmp_path: Path, engine: str) -> None:
    device.begin(lambda nth, offset, size: Answer(0.3 if nth == 5 else 0.002))
    flags = ("--op", "randread", "--rate-iops", 200, "--duration", 0.8, "--depth", 4)
    result = run(device, tmp_path, "--engine", engine, *flags)["result"]
    seen = len(wholes(device.trace, IO_BYTES))
    assert result["ios"] + result["late"] == seen and 5 < seen <= 170
    assert result["latency_us"]["max"] >= max(t.took_ns for t in device.trace) / 1e3 * 0.999 >= 299_000


@pytest.mark.promise("REC-35")
@pytest.mark.soak  # its device is a thread of this process, and is overdue itself where that doesn't run for a second
@pytest.mark.parametrize("engine", ["uring", "pread"])
def test_after_a_standstill_healthy_ios_are_not_called_overdue(device: Device, tmp_path: Path, engine: str) -> None:
    """Stopped for three time-outs, with I/Os under way all the while: some done meanwhile, some not."""
    device.begin(lambda nth, offset, size: Answer(3.5 if nth == 45 else 0.002))
    words = ["bench", device.path, "--engine", engine, "--io-size", IO_BYTES, "--op", "randread", "--duration", 5]
    with begun(device, tmp_path, [*words, "--warmup", 0, "--depth", 4, "--timeout", 1, "--json", "-q"]) as process:
        processes.wait_until(lambda: len(device.trace) > 45, "its I/Os are under way", process)
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        process.send_signal(signal.SIGCONT)
        done = ended(device, tmp_path, process)
    record = json.loads(done.stdout)
    assert done.returncode == 0 and record["result"]["errors"]["timed_out"] == 0, done.stderr
    assert record["result"]["noise"]["stood_still_s"] > 1
    assert "stood still" in next(w["text"] for w in record["warnings"] if w["id"] == "stood_still")


@pytest.mark.promise("REC-35")
@parametrized("engine", ["uring", "inline"], kept=(0,))
def test_an_interrupt_while_nothing_answers_keeps_what_was_measured(device: Device, tmp_path: Path, engine: str) -> None:
    device.begin(lambda nth, offset, size: Answer(0.001, hangs=nth >= 40))
    words = ["bench", device.path, "--engine", engine, "--io-size", IO_BYTES, "--op", "randread", "--duration", 60]
    more = ["--warmup", 0, "--depth", 2, "--timeout", 2, "--interval", 50, "--json", "-q"]
    with begun(device, tmp_path, [*words, *more]) as process:
        processes.wait_until(lambda: len(device.trace) > 40, "it hangs", process)
        process.send_signal(signal.SIGINT)
        done = ended(device, tmp_path, process)
    result = json.loads(done.stdout)["result"]
    assert done.returncode == 130 and result["interrupted"] and result["errors"]["timed_out"] >= 1
    assert result["ios"] <= 40 and result["latency_us"]["max"] >= 1e6
    assert list(tmp_path.glob("forebay-*.json")), "what was measured is saved"


def scheduled(seed: int, slowest_s: float) -> Callable[[int, int, int], Answer]:
    """A device with a temper: a usual delay, a spread, a tail; every third has errors, every third short answers."""
    rng = random.Random(seed)
    usual, spread, tail = rng.uniform(0.002, 0.006), rng.uniform(0.1, 0.5), rng.choice((0.0, 0.01, 0.05))
    fails, cuts = seed % 3 == 1, seed % 3 == 2

    def answer(nth: int, offset: int, size: int) -> Answer:
        delay = usual * rng.lognormvariate(0, spread) * (rng.uniform(3, 8) if rng.random() < tail else 1)
        error = errno.EIO if fails and rng.random() < 0.02 else 0
        cut = size // 2 if cuts and size == 16 << 10 and rng.random() < 0.1 else None
        return Answer(min(delay, slowest_s), error, cut)

    return answer


@contextlib.contextmanager
def urgently() -> Iterator[None]:
    """What this thread does and starts waits for no other program, where it may ask for that."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


# Sleeps for a millisecond again and again, on one processor, ahead of the run and the device where it may; says how late
# it woke at most, once its input ends. It knows nothing of the run: what holds it up holds up any reader.
SENTINEL = """
import contextlib, os, select, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
with contextlib.suppress(PermissionError):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(3))
print("ready", flush=True)
late_ns = 0
while not select.select([0], [], [], 0)[0]:
    due_ns = time.monotonic_ns() + 1_000_000
    time.sleep(0.001)
    late_ns = max(late_ns, time.monotonic_ns() - due_ns)
print(late_ns)
"""


@contextlib.contextmanager
def watched_processors() -> Iterator[list[int]]:
    """How late a sleeper woke at most, in ns, on each processor; empty until the end."""
    late_ns: list[int] = []
    with contextlib.ExitStack() as stack:
        sentinels = [
            stack.enter_context(processes.running([sys.executable, "-c", SENTINEL, str(n)], stdin=subprocess.PIPE))
            for n in sorted(os.sched_getaffinity(0))
        ]
        for sentinel in sentinels:
            assert sentinel.stdout and sentinel.stdout.readline() == "ready\n"
        yield late_ns
        # finish closes its input.
        late_ns.extend(int(processes.finish(sentinel).stdout) for sentinel in sentinels)


class Disturbance:
    """How long threads of a process waited for a processor, and whether another machine had it meanwhile."""

    # In 10 ms of a quiet machine each thread is woken a few times, and waits for some microseconds each time.
    QUIET_NS = 200_000

    def __init__(self) -> None:
        self._waited: dict[str, int] = {}
        self._steal = self._stolen()
        self.longest_ns = 0

    @staticmethod
    def _stolen() -> int:
        return int(Path("/proc/stat").read_text().split(None, 9)[8])

    def look(self, process: subprocess.Popen[str]) -> None:
        for thread in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, IndexError):
                waited = int(thread.read_text().split()[1])
                self.longest_ns = max(self.longest_ns, waited - self._waited.get(str(thread), 0))
                self._waited[str(thread)] = waited

    def reported(self, late_ns: list[int]) -> str:
        """Empty: there was none. `late_ns`: of sleepers that have nothing to do with the process."""
        stolen = self._stolen() - self._steal
        if not stolen and max(self.longest_ns, *late_ns) < self.QUIET_NS:
            return ""
        waited, late = self.longest_ns / 1e6, max(late_ns) / 1e6
        thread = f"a thread waited {waited:.2f} ms for a processor within 10 ms"
        return f"{thread}; {stolen} ticks stolen; a sleeper woke {late:.2f} ms late"


def played(device: Device, home: Path, seed: int) -> Played:
    """One schedule. All but the upper bound of percentiles agrees, however busy the machine is."""
    rng, io_bytes = random.Random(1000 + seed), 16 << 10
    engine, is_open = ENGINES[seed % 3], seed % 2 == 1
    depth = 1 if engine == "inline" else rng.choice((1, 2, 4, 8))
    # An open loop has a slot for each I/O that is due, even for one in two parts.
    device.begin(scheduled(seed // 3, 0.01 if is_open else 0.1))
    pace = ["--rate-iops", 40 * depth] if is_open else []
    words = ["bench", device.path, "--engine", engine, "--op", "randread", "--no-repeat", "--passes", 1, "--depth", depth]
    words += [*pace, "--io-size", io_bytes, "--warmup", 0, "--json", "-q"]
    disturbance = Disturbance()
    with watched_processors() as late_ns, urgently(), begun(device, home, words) as process:
        processes.wait_until(lambda: disturbance.look(process) or process.poll() is not None, "it has ended")
        done = ended(device, home, process)
    result, found = json.loads(done.stdout)["result"], wholes(device.trace, io_bytes)
    failed = sum(1 for traced in device.trace if traced.error)
    assert done.returncode == (4 if failed else 0), done.stderr
    assert len(found) == BYTES // io_bytes == result["ios"] + failed and result["errors"]["failed"] == failed
    assert sum(w.moved for w in found if not w.parts[-1].error) == result["bytes"]
    assert result["errors"]["short"] == sum(1 for t in device.trace if 0 < t.moved < t.size)
    check_latency(result, found)
    return Played(compared(result, found), disturbance.reported(late_ns))


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Iterator[list[list[Played]]]:
    """The runs of each schedule, which are summed up at the end."""
    all_runs: list[list[Played]] = []
    yield all_runs
    ends = [runs[-1] for runs in all_runs if runs]
    agreed = [run for run in ends if not run.too_high()]
    unclear = [run for run in ends if run.too_high() and run.disturbed]
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    if reporter and capture and ends:  # none in a worker of xdist
        first = sum(1 for runs in all_runs if len(runs) == 1 and runs[0] in agreed)
        most_us = max((run.excess_us() for run in agreed), default=0)
        reported = (
            f"{len(ends)} schedules: {len(agreed)} within 1 % + 0.5 ms of the trace ({first} at once; at most {most_us:.0f} us"
            f" above 1 %), {len(unclear)} not judged on a disturbed machine, {len(ends) - len(agreed) - len(unclear)} too high"
        )
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"\n{reported}")


@pytest.mark.promise("REC-34")
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_seeded_schedules_agree_with_the_trace_in_all_figures(
    device: Device, tmp_path: Path, verdicts: list[list[Played]], seed: int
) -> None:
    """Every engine in turn, closed loop and open. A run that the machine was disturbed in is judged by another, twice."""
    runs: list[Played] = []
    verdicts.append(runs)
    for _ in range(3):
        runs.append(played(device, tmp_path, seed))
        if not runs[-1].too_high():
            return
        if not runs[-1].disturbed:
            break
    reported = [f"{'; '.join(r.too_high())} ({r.disturbed or 'nothing disturbed the machine'})" for r in runs]
    verdict = "not judged, for the machine was disturbed each time" if runs[-1].disturbed else "too high on a quiet machine"
    pytest.fail(f"{verdict}:\n" + "\n".join(reported))
