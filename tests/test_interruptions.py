"""SIGINT and SIGTERM at random moments: the command ends soon with 130, says what it kept, and leaves nothing half made.

FOREBAY_TEST_SEED=N brings the same moments again; FOREBAY_TEST_MOMENTS=N sends as many in each phase.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import processes
import pytest
from faults_support import MIB, check_manners

SEED = int(os.environ.get("FOREBAY_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
MOMENTS = int(os.environ.get("FOREBAY_TEST_MOMENTS", 1))
MADE = 96 * MIB

# what happens → (flags, seconds in which the signal comes)
PHASES: dict[str, tuple[tuple[str, ...], float]] = {
    "files are made": ((".", "--create", "--file-size", str(MADE), "--files", "3", "--passes", "1"), 1.5),
    "a stripe is made": (
        ("stripe:?chunk=64k&m=a&m=b", "--create", "--file-size", str(2 * MADE), "--passes", "1"),
        1.5,
    ),
    "warm-up": (("f", "--warmup", "5", "--duration", "5"), 2.0),
    "measure": (("f", "--duration", "6"), 2.0),
    "drain": (("f", "--duration", "0.3", "--faults", "delay_us=900000"), 1.2),
    "repeats": (("f", "--duration", "0.05", "--repeat", "200"), 2.0),
    "write": (("w", "--op", "write", "--file-size", "32m", "--sync", "end", "--duration", "5"), 2.0),
    "verified write": (("w", "--op", "randwrite", "--file-size", "8m", "--verify"), 2.0),
}
# `make test` sends one signal in each of these.
SHORT = {("files are made", signal.SIGINT), ("measure", signal.SIGTERM), ("repeats", signal.SIGTERM), ("write", signal.SIGINT)}
EACH = [
    pytest.param(*row, id=f"{row[0]}-{row[1].name.lower()}", marks=[] if row in SHORT else [pytest.mark.long])
    for row in itertools.product(PHASES, (signal.SIGINT, signal.SIGTERM))
]


@pytest.mark.promise("CMD-10")
@pytest.mark.parametrize(("phase", "number"), EACH)
def test_a_signal_at_any_moment_keeps_what_was_measured_and_leaves_nothing_half_made(
    tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    flags, seconds = PHASES[phase]
    source = random.Random(f"{SEED} {phase} {number}")
    for moment in range(MOMENTS):
        home = tmp_path / str(moment)
        home.mkdir()
        (home / "f").write_bytes(os.urandom(2 * MIB))
        before = (home / "f").read_bytes()
        delay = source.uniform(0, seconds)
        where = f"seed {SEED}, {phase}, {number.name} after {delay:.3f} s"
        done = interrupted(home, flags, number, delay, where)
        check_kept(done, home, where)
        assert (home / "f").read_bytes() == before, where
        check_whole(home, flags, where)


def interrupted(
    home: Path, flags: tuple[str, ...], number: signal.Signals, delay: float, where: str
) -> subprocess.CompletedProcess[str]:
    command = [*processes.FOREBAY, "bench", "--json", "--io-size", "64k", *flags]
    with processes.running(command, cwd=home) as process:
        # Before that it has done nothing, and the default is right.
        processes.wait_until(
            lambda: processes.catches(process, signal.SIGTERM) or process.poll() is not None, f"{where}: its handlers"
        )
        time.sleep(delay)
        process.send_signal(number)
        done = processes.finish(process)
    check_manners(done)
    return done


def check_kept(done: subprocess.CompletedProcess[str], home: Path, where: str) -> None:
    """130 with the record or the word that there is none; 0 only for a run that was over already."""
    said = f"{where}\n{done.stderr}"
    if done.returncode == 0:
        assert not json.loads(done.stdout)["result"]["interrupted"], said
        return
    assert done.returncode == 130, f"{done.returncode}, {said}"
    if not done.stdout:
        assert "interrupted" in done.stderr, said
        return
    record: dict[str, Any] = json.loads(done.stdout)
    result = record["result"]
    assert result["errors"]["failed"] == result["errors"]["timed_out"] == 0, said
    if not result["interrupted"] and "what was measured" not in done.stderr:
        return  # It came when the whole record was out.
    named = done.stderr.split("what was measured is in ")[1].splitlines()[0]
    assert json.loads((home / named).read_text())["id"] == record["id"], said


def check_whole(home: Path, flags: tuple[str, ...], where: str) -> None:
    """What the manifest lists is there as it says; what it doesn't list isn't there."""
    manifest = home / ".forebay.json"
    listed = json.loads(manifest.read_text())["files"] if manifest.exists() else {}
    there = {p.name for p in home.iterdir() if p.name not in (".forebay.json", "f")}
    there = {name for name in there if not name.endswith(".json")}
    assert there == set(listed), f"{where}: files {there}, manifest {set(listed)}"
    for name, entry in listed.items():
        stat = (home / name).stat()
        assert (stat.st_size, stat.st_ino) == (entry["bytes"], entry["inode"]), f"{where}: {name}"
        # A file with a seed holds seeded content in each block: the next --verify would find out.
        if entry["seed"] is not None:
            assert stat.st_blocks * 512 >= stat.st_size, f"{where}: {name} has holes"
    if listed and "--file-size" in flags:
        check_usable(home, flags, where)


def check_usable(home: Path, flags: tuple[str, ...], where: str) -> None:
    """The same files serve the next run, and verify where the manifest says what they hold."""
    known = all(e["seed"] is not None for e in json.loads((home / ".forebay.json").read_text())["files"].values())
    command = [*processes.FOREBAY, "bench", "-q", flags[0], "--passes", "1", "--io-size", "1m"]
    done = processes.run([*command, *(["--verify"] if known else [])], cwd=home)
    assert done.returncode == 0, f"{where}: the next run says\n{done.stderr}"


# The end of the command ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "moments"),
    [
        pytest.param(signal.SIGINT, 3, id="int"),
        pytest.param(signal.SIGINT, 11, id="int-more", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 11, id="term", marks=pytest.mark.long),
    ],
)
def test_a_signal_while_the_command_ends_leaves_its_code_and_its_record_whole(
    tmp_path: Path, number: signal.Signals, moments: int
) -> None:
    """From the first byte of the record on: while the rest is written, and while Python takes itself down."""
    source = random.Random(f"{SEED} end {number}")
    command = [*processes.FOREBAY, "bench", "nil:?size=1m", "--passes", "1", "--json", "--quiet"]
    for delay in (0, *(source.uniform(0, 0.04) for _ in range(moments))):
        where = f"seed {SEED}, {number.name} {delay:.4f} s after the first byte"
        with processes.running(command, cwd=tmp_path) as process:
            assert process.stdout is not None
            first = os.read(process.stdout.fileno(), 1).decode()
            time.sleep(delay)
            process.send_signal(number)
            done = processes.finish(process)
        assert done.returncode in (0, 130), f"{where}: {done.returncode}\n{done.stderr}"
        assert not json.loads(first + done.stdout)["result"]["interrupted"], where
        check_manners(done)
        assert not list(tmp_path.iterdir()), where


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["int", "term", "hup"])
def test_a_signal_while_a_module_makes_a_class_ends_with_130_too(number: signal.Signals) -> None:
    """`exec` of a string is how dataclass makes its methods; CPython remembers an interrupt that leaves one."""
    verb = f"exec('import os, time; os.kill(os.getpid(), {int(number)}); time.sleep(5)')"
    program = f"import forebay.cli as c; c.forebay.main = lambda **_: {verb}; c.main([])"
    done = processes.run([sys.executable, "-c", program])
    check_manners(done)
    assert (done.returncode, done.stderr) == (130, "forebay: interrupted\n")


@pytest.mark.promise("CMD-10")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["int", "term", "hup"])
def test_a_signal_where_no_exception_leaves_is_not_lost(number: signal.Signals) -> None:
    """A callback of a weak reference, as each import ends with; the verb would go on for a minute."""
    program = (
        "import forebay.cli as c, os, time, weakref\n"
        "class Lock: pass\n"
        "def verb(**_):\n"
        f"    lock = Lock(); kept = weakref.ref(lock, lambda _: (os.kill(os.getpid(), {int(number)}), time.sleep(1)))\n"
        "    del lock; end = time.monotonic() + 60\n"
        "    while time.monotonic() < end: time.sleep(0.01)\n"
        "c.forebay.main = verb; c.main([])"
    )
    done = processes.run([sys.executable, "-c", program])
    check_manners(done)
    assert (done.returncode, done.stderr) == (130, "forebay: interrupted\n")


def test_a_signal_after_the_end_of_the_run_changes_nothing(tmp_path: Path) -> None:
    program = (
        "import forebay.cli as c, os, signal; from forebay.bench import summary; text = summary.text\n"
        "summary.text = lambda *a: (text(*a), os.kill(os.getpid(), signal.SIGTERM))[0]\n"
        "c.main(['bench', 'nil:', '--passes', '1', '--file-size', '1m', '--json'])"
    )
    done = processes.run([sys.executable, "-c", program], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not json.loads(done.stdout)["result"]["interrupted"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_a_signal_while_python_ends_changes_nothing(number: signal.Signals) -> None:
    """A module that is torn down late stands for the moment in which Python gives signals their default back."""
    program = (
        "import forebay.cli as c, os, sys\n"
        "class Late:\n"
        f"    def __del__(self, kill=os.kill, me=os.getpid()): kill(me, {int(number)})\n"
        "sys.modules['late'] = Late(); c.main(['--help'])"
    )
    done = processes.run([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr


# A command of many runs ------------------------------------------------------------------------------------

# The command line, but its third run lasts until a signal ends it.
HELD = """
import sys
import forebay.run
from forebay import cli
real, begun = forebay.run.run, []
def run(job, **kept):
    begun.append(job)
    return real({**job, "duration_s": 3600.0} if len(begun) == 3 else job, **kept)
forebay.run.run = run
cli.main(sys.argv[1:])
"""


@pytest.mark.long
def test_a_sweep_that_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        '[job]\nsource = "nil:"\nduration = 0.2\n[matrix]\ndepth = [1, 2, 4, 8]\n'
    )
    words = ["sweep", "s.toml", "-o", "runs.jsonl"]
    out = tmp_path / "runs.jsonl"

    def lines() -> list[str]:
        return out.read_text().splitlines() if out.exists() else []

    with processes.running([sys.executable, "-c", HELD, *words], cwd=tmp_path) as process:
        processes.wait_until(lambda: len(lines()) == 3, "a header and two points", process)
        process.send_signal(signal.SIGINT)
        done = processes.finish(process)
    check_manners(done)
    assert done.returncode == 130, done.stderr
    finished = lines()
    done = processes.run([*processes.FOREBAY, *words], cwd=tmp_path)
    assert done.returncode == 0 and "2 of them finished before" in done.stderr, done.stderr
    assert set(finished) <= set(lines()) and len(lines()) >= 5


def test_a_signal_that_comes_when_all_is_measured_is_told_all_the_same() -> None:
    """Whoever makes many runs (a sweep, a comparison) would go on with the next one."""
    from forebay import run

    last: list[float] = []

    def observe(progress: dict[str, Any]) -> None:
        if progress["phase"] == "measure" and progress["t_s"] >= 0.3:
            last.append(progress["t_s"])
            raise KeyboardInterrupt

    job = {"sources": ["nil:"], "duration_s": 0.3, "warmup_s": 0.0, "interval_ms": 100}
    record = run.run(job, observer=observe)
    assert last and record["result"]["interrupted"] and record["result"]["seconds"] >= 0.29
    assert not run.run(job)["result"]["interrupted"]
