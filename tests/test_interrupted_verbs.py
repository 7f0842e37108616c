"""SIGINT and SIGTERM at random moments of every verb, singly and in storms: an exit code from the list, no traceback,
no temporary, and nothing of the user's touched.

The seed and the number of moments are those of tests/test_interruptions.py.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import processes
import pytest
from faults_support import MIB, check_manners
from forebay.cli import VERBS
from properties import parametrized
from test_interruptions import MOMENTS, SEED

SNAP = """
[[subsystems]]
nqn = "nqn.2024-01.test:x"
[[subsystems.namespaces]]
source = "f"
[[subsystems.controllers]]
socket = "s.sock"
"""
SWEEP = '[job]\nsource = "nil:"\nduration = 0.1\n[matrix]\ndepth = [1, 2, 4, 8, 16]\n'
DATA = ("--workload", "resnet50", "--data", "set", "--files", "2")
# What each verb is asked, in a folder that holds `f` (2 MiB), `d/g` and `run.json`; seconds in which the signal comes.
COMMANDS: dict[str, tuple[str, float]] = {
    "demo": ("demo --dir d/demo --out d/out --file-size 4m --seconds 0.1", 3.0),
    "doctor": ("doctor f --json", 0.6),
    "bench": ("bench f --duration 3 -o out.json", 1.5),
    "fio": ("fio --name=x --filename=f --rw=read --time_based --runtime=3 --output-format=json --output=out.txt", 1.5),
    "sweep": ("sweep sweep.toml -o out.jsonl", 1.5),
    "compare": ("compare --a depth=1 --b depth=2 f --duration 0.1 -o out.json", 2.0),
    "tune": ("tune f --duration 0.1 -o out.json", 2.0),
    "gdsio": ("gdsio -D d -w 2 -s 8M -i 64k -x 1 -I 1 -T 2 --record out.jsonl", 1.5),
    "feed": ("feed f --row-bytes 512 --batch-size 1 --epochs 50 -o out.json", 1.5),
    "train": ("train toy --dir set --rows 20000 --peak-seconds 0.2 -o out.json", 2.5),
    "infer": ("infer toy --dir set --scenario Server --seconds 1 -o out.json", 3.0),
    "files": ("files d --files 20000 --file-size 4k -o out.json", 1.5),
    "serve": ("serve f --nqn nqn.2024-01.test:x --listen 127.0.0.1:0", 1.0),
    "snap": ("snap snap.toml --rpc off", 1.0),
    "discover": ("discover nvme+tcp://127.0.0.1:9/", 0.4),
    "identify": ("identify nvme+tcp://127.0.0.1:9/nqn", 0.4),
    "validate": ("validate d --file-size 4m --seconds 0.1 -o out.json", 2.0),
    "checksum": ("checksum f d/g", 0.5),
    "emulate": ("emulate datagen " + " ".join(DATA), 1.5),
    "plan": ("plan predict --query q.csv --out out.csv", 1.5),
    "watch": ("watch -o out.toml --seconds 3 -- sleep 2", 1.5),
    "report": ("report run.json -o out.html --csv out", 1.5),
    "export": ("export run.json --csv -o out.csv", 0.6),
    "completion": ("completion bash", 0.4),
    "man": ("man --out out", 0.6),
}


def test_every_verb_is_interrupted_here() -> None:
    assert set(COMMANDS) == set(VERBS)


@functools.cache
def a_record() -> str:
    words = ("bench", "nil:", "--passes", "1", "--file-size", "1m", "--json")
    return processes.run([*processes.FOREBAY, *words]).stdout


def fill(home: Path) -> dict[str, bytes]:
    """A user's folder, and what is in it."""
    (home / "d").mkdir(parents=True)
    (home / "f").write_bytes(os.urandom(2 * MIB))
    (home / "d/g").write_bytes(os.urandom(4096))
    (home / "sweep.toml").write_text(SWEEP)
    (home / "snap.toml").write_text(SNAP)
    (home / "q.csv").write_text("drives,gpus\n1,1\n")
    (home / "run.json").write_text(a_record())
    return {str(p.relative_to(home)): p.read_bytes() for p in home.rglob("*") if p.is_file()}


def check_untouched(home: Path, before: dict[str, bytes], where: str) -> None:
    for name, content in before.items():
        assert (home / name).read_bytes() == content, f"{where}: {name} was touched"
    # A list of files, and a data set that isn't whole yet: the next command goes on by them, or takes them away.
    hidden = [str(p.relative_to(home)) for p in home.rglob(".*") if p.name != ".forebay.json"]
    hidden = [name for name in hidden if not name.startswith("set/")]
    assert not hidden, f"{where}: temporaries {hidden}"
    for document in home.glob("*.json"):
        json.loads(document.read_text())


@pytest.mark.promise("CMD-10")
@parametrized("verb", COMMANDS, kept=(2, 4, 12, 18, 19))
def test_a_signal_at_any_moment_of_any_verb_ends_it_well(tmp_path: Path, verb: str) -> None:
    line, seconds = COMMANDS[verb]
    source = random.Random(f"{SEED} {verb}")
    for moment in range(MOMENTS):
        home = tmp_path / str(moment)
        before = fill(home)
        number = source.choice((signal.SIGINT, signal.SIGTERM))
        # A storm: the first ends the run, the second aborts it, whatever it is doing then.
        gaps = [source.uniform(0, seconds), *(source.expovariate(20) for _ in range(source.choice((0, 0, 1, 4))))]
        where = f"seed {SEED}, {line}, {number.name} after {', '.join(f'{g:.3f}' for g in gaps)} s"
        with processes.running([*processes.FOREBAY, *line.split()], cwd=home) as process:
            processes.wait_until(
                lambda: processes.catches(process, signal.SIGTERM) or process.poll() is not None, f"{where}: its handlers"
            )
            for gap in gaps:
                time.sleep(gap)
                if process.poll() is None:
                    process.send_signal(number)
            done = processes.finish(process)
        if len(gaps) > 1 and done.returncode == -number:
            done.returncode = 130  # the second signal has its default effect, as it says
        try:
            check_manners(done)
        except AssertionError as error:
            raise AssertionError(where) from error
        check_untouched(home, before, where)


@pytest.mark.promise("CMD-10")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_a_signal_while_modules_are_imported_ends_with_130_and_one_line(number: signal.Signals, tmp_path: Path) -> None:
    """As early as there is a handler: the first import of anything that takes time is behind it. On a fast machine the
    run may have begun, and stops."""
    source = random.Random(f"{SEED} imports {number}")
    for delay in (0.0, *(source.uniform(0, 0.05) for _ in range(3))):
        command = [*processes.FOREBAY, "bench", "nil:", "--duration", "60", "-q"]
        with processes.running(command, cwd=tmp_path) as process:
            processes.wait_until(lambda: processes.catches(process, signal.SIGTERM), "its first handler", process)
            time.sleep(delay)
            process.send_signal(number)
            done = processes.finish(process)
        check_manners(done)
        reported = "interrupted" in done.stderr or "stopping" in done.stderr
        assert done.returncode == 130 and reported, f"{delay}: {done.returncode}\n{done.stderr}"


@pytest.mark.promise("CMD-10")
def test_what_listens_first_is_loaded_already() -> None:
    program = (
        "import sys; before = set(sys.modules); import forebay.early; forebay.early.listen()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = processes.run([sys.executable, "-c", program])
    assert done.stdout.split() == ["forebay", "forebay.early"], done.stderr


@pytest.mark.promise("CMD-10")
def test_the_installed_command_listens_before_it_imports_anything() -> None:
    program = (
        "import os, signal, sys, forebay.early as early\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow()); early.main()"
    )
    done = processes.run([sys.executable, "-c", program])
    check_manners(done)
    assert (done.returncode, done.stderr) == (130, "forebay: interrupted\n")
