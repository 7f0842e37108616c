"""Every verb where threads, memory or descriptors are refused: an exit code from the list that means no failed check, a word
to type, and neither a traceback nor a panic."""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
from pathlib import Path

import click
import limited
import processes
import properties
import pytest
from faults_support import MIB, check_manners
from forebay import pipes, scarce
from forebay.cli import forebay as root
from forebay.errors import MachineError
from test_interrupted_verbs import COMMANDS as INTERRUPTED
from test_interrupted_verbs import a_record

WORKLOAD = """
title = "small"
format = "npz"
loader = "pytorch"
record_bytes = 80000
record_bytes_stdev = 0
samples_per_file = 1
files = 4
batch = 2
read_threads = 2
prefetch = 2
epochs = 1
au_pct_min = 1
[[variant]]
accelerator = "h100"
compute_s = 0.001
"""
GATEWAY = """
[[subsystems]]
nqn = "nqn.2024-01.test:x"
[[subsystems.namespaces]]
source = "f"
[[subsystems.controllers]]
socket = "{home}/s.sock"
"""
SMALL = "--workload w.toml --accelerator h100"
DRIVE = "--drive D7-PS1010"
# What each leaf of the tree of verbs is asked, in a folder with `f` (2 MiB), `d/g`, `run.json`, `w.toml` and its data set.
COMMANDS: dict[str, str] = {
    **{verb: line for verb, (line, _) in INTERRUPTED.items() if verb not in ("train", "infer", "emulate", "plan")},
    "demo": "demo --quick --dir d/demo --out d/out",
    "bench": "bench f --workers 64 --duration 0.1 --metrics 0 -o out.json",
    "compare": "compare --a depth=1 --b depth=2 f --duration 0.05 --pairs-min 2 --pairs-max 2 -o out.json",
    "tune": "tune f --duration 0.05 --max-time 2 -o out.json",
    "fio": "fio --name=x --filename=f --rw=randread --size=1m --io_size=256k --output-format=json",
    "files": "files d --files 200 --file-size 4k --workers 4",
    "snap": "snap snap.toml",
    "watch": "watch --seconds 0.3 -- sleep 0.3",
    "checksum": "checksum f d/g --workers 64",
    "train toy": "train toy --dir set --rows 5000 --peak-seconds 0.1 --samples 5000",
    **{f"train {name}": f"train {name} --dir set" for name in ("dlrm", "gnn", "bert", "lora", "diffusion", "ssd", "resnet")},
    "train check": "train check run.json",
    "train datagen": "train datagen dlrm --dir set --rows 2000 --evaluation-rows 200 --table-rows 1000",
    "infer toy": "infer toy --dir set --scenario Offline --seconds 1",
    "infer resnet50": "infer resnet50 --dir set",
    "infer bert": "infer bert --dir set",
    "infer dlrm": "infer dlrm --dir set",
    **{f"infer {name}": f"infer {name} --dir set" for name in ("retinanet", "unet3d", "gptj", "llama", "mixtral", "sdxl")},
    "infer datagen": "infer datagen toy --dir set --samples 100",
    "emulate run": f"emulate run {SMALL} --data own",
    "emulate search": f"emulate search {SMALL} --data own",
    "emulate datasize": "emulate datasize --workload unet3d --accelerator h100 --accelerators 8",
    "emulate matrix": "emulate matrix solidigm-mlperf --results m --count 1 --workload resnet50 --probe 1 --max 2",
    "emulate datagen": "emulate datagen --workload cosmoflow --data set --files 20 --workers 64",
    "emulate check": "emulate check d",
    "emulate export": "emulate export d out",
    "emulate checkpoint": "emulate checkpoint --workload llama3-8b --dir ck --ranks 4 --scale 0.0002 --writes 1 --reads 1",
    "emulate kvcache": "emulate kvcache --dir kv --users 2 --duration 1 --model layers=2,kv_heads=1,head_dim=64,dtype=bf16",
    "emulate kvcache check": "emulate kvcache check d",
    "emulate kvcache run": "emulate kvcache run --dir d --size 8m --tokens 64 --requests 2",
    "emulate kvcache replay": "emulate kvcache replay d/trace.jsonl --dir model:d7-ps1010",
    "emulate workloads": "emulate workloads",
    "plan backtest": "plan backtest d",
    "plan calibrate": f"plan calibrate run.json {DRIVE} --out c.json",
    "plan compare": f"plan compare {DRIVE} --drives 2",
    "plan predict": "plan predict --query q.csv --out out.csv",
    "plan recommend": "plan recommend --gib-s 40",
    "plan run": f"plan run {DRIVE} --drives 4 --workload unet3d",
    "plan whatif": f"plan whatif {DRIVE} --vary drives=1:3 --workload unet3d",
}
SERVICES = ("serve", "snap")
MEMORY = (60, 90, 110, 140, 200, 300, 500)
LIMITS = ["threads=0", "files=6", "files=9", "files=16", *(f"memory={mib << 20}" for mib in MEMORY)]
# A kind of refusal each: threads of Python's, of NumPy's; memory of Rust's, of OpenBLAS'; descriptors.
SAMPLE = [
    ("bench", "threads=0"),
    ("plan run", "threads=0"),
    ("emulate kvcache", f"memory={95 << 20}"),
    ("train datagen", f"memory={150 << 20}"),
    ("serve", "files=9"),
]
EACH = [(verb, limit) for verb in COMMANDS for limit in LIMITS]
# The others are only collected where they are run: they are a tenth of all tests.
CASES = [*SAMPLE, *(pytest.param(*case, marks=pytest.mark.long) for case in EACH if properties.ALL and case not in SAMPLE)]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[str]:
    found = [" ".join(path)] if path and (not isinstance(command, click.Group) or command.invoke_without_command) else []
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found += leaves(below, (*path, name))
    return found


def test_every_leaf_of_the_tree_is_limited_here() -> None:
    assert sorted(leaves(root)) == sorted(COMMANDS)


def fill(home: Path) -> None:
    (home / "d").mkdir()
    (home / "f").write_bytes(os.urandom(2 * MIB))
    (home / "d/g").write_bytes(os.urandom(4096))
    (home / "sweep.toml").write_text('[job]\nsource = "nil:"\nduration = 0.05\n[matrix]\ndepth = [1, 2]\n')
    (home / "snap.toml").write_text(GATEWAY.format(home=home))
    (home / "w.toml").write_text(WORKLOAD)
    (home / "q.csv").write_text("drives,gpus\n1,1\n")
    (home / "run.json").write_text(a_record())


@pytest.mark.promise("FLT-32")
@pytest.mark.skipif(platform.machine() not in limited.CLONE, reason="the filter of calls knows x86_64 and aarch64")
@pytest.mark.parametrize(("verb", "limit"), CASES)
def test_a_verb_that_is_refused_threads_memory_or_descriptors_says_so(tmp_path: Path, verb: str, limit: str) -> None:
    fill(tmp_path)
    if "--data own" in COMMANDS[verb]:
        made = processes.run([*processes.FOREBAY, *"emulate datagen --workload w.toml --data own -q".split()], cwd=tmp_path)
        assert made.returncode == 0, made.stderr
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    words = [sys.executable, limited.__file__, limit, *processes.FOREBAY, *COMMANDS[verb].split()]
    with processes.running(words, cwd=tmp_path, env=environment) as process:
        if verb in SERVICES:  # they end by themselves where they can't begin
            ready = re.compile("listening|ready")
            assert process.stdout is not None and process.stderr is not None
            for line in iter(process.stderr.readline, ""):
                if ready.search(line):
                    process.send_signal(signal.SIGTERM)
                    break
        done = processes.finish(process)
    # Python's own module says at length what it couldn't load, and goes on without.
    done.stderr = re.sub(r"ERROR:root:code for hash .*?unsupported hash type \w+\n", "", done.stderr, flags=re.S)
    check_manners(done)
    # Looking at nothing is a failed check of `watch`, and of nobody else; services are interrupted here.
    codes = {0, 2, 3, 4} | ({1} if verb == "watch" else set()) | ({130} if verb in SERVICES else set())
    assert done.returncode in codes, f"{done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.promise("FLT-32")
@pytest.mark.parametrize(
    ("raised", "asked"),
    [
        (MemoryError("Unable to allocate 6.75 MiB"), "memory"),
        (OSError(12, "Cannot allocate memory"), "memory"),
        (ImportError("libx.so: failed to map segment from shared object"), "memory"),
        (RuntimeError("can't start new thread"), "a thread"),
        (OSError(24, "Too many open files", "f"), "open files"),
        (RuntimeError("something else"), None),
        (BlockingIOError(11, "write could not complete without blocking"), None),
    ],
)
def test_want_is_told_from_other_faults(raised: BaseException, asked: str | None) -> None:
    reported = scarce.error(raised)
    assert reported is None if asked is None else isinstance(reported, MachineError) and reported.asked == asked


def test_a_file_is_read_up_to_a_limit_with_no_more_memory_than_it_is_long(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 200_000)
    for most, read in ((1 << 60, 200_000), (200_000, 200_000), (70_000, 70_001)):
        with (tmp_path / "f").open("rb") as file:
            assert len(pipes.up_to(file, most)) == read
