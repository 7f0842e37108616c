"""DLIO, run as MLPerf Storage runs it: an MPI rank per emulated accelerator, with the constants of one of our workloads.

`DLIO_V1` and `DLIO_V2` name the Python interpreters that have dlio_benchmark: the commits that mlcommons/storage v1.0
and v2.0 name, 2fcdbfa and 392621b. (The release 2.0.0 of the same name ignores v2.0's keys for the record's size.)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from side_by_side import Unavailable

VARIABLES = {"v1.0": "DLIO_V1", "v2.0": "DLIO_V2"}
# v1.0's own stand-in for the tracer lacks an argument that its readers pass.
IMPORTS = {"v1.0": "dlio_benchmark.main, dftracer.logger", "v2.0": "dlio_benchmark.main"}
TRACER = "pydftracer==1.0.2"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Oversubscribed ranks that spin in a barrier would take the processors from those that read: DLIO at its best.
MPIRUN = "--allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1".split()


@dataclass(frozen=True)
class Dlio:
    """One installed version."""

    version: str
    python: str


@dataclass(frozen=True)
class Played:
    """One training run. AU in per cent, mean of the epochs; `seconds` from the first block's start to the last's end.

    `cpu_s` of those seconds, of all processes; `memory_bytes` of all processes, at most.
    """

    au_pct: float
    au_by_epoch: list[float]
    passes: bool
    samples_per_s: float
    seconds: float
    samples: int
    cpu_s: float
    first_step_s: float
    memory_bytes: int | None


@dataclass(frozen=True)
class Generated:
    """What DLIO wrote in `seconds` by one process, start-up left out."""

    seconds: float
    bytes: int


def installed(version: str) -> Dlio:
    """The interpreter of that version, if it can import DLIO and what the workloads need."""
    python = os.environ.get(VARIABLES[version])
    if not python:
        raise Unavailable(
            f"DLIO {version} isn't named; try: {VARIABLES[version]}=PYTHON, one that has dlio_benchmark"
        )
    if not shutil.which("mpirun"):
        raise Unavailable("mpirun isn't installed; try: apt install openmpi-bin")
    tried = subprocess.run([python, "-c", f"import {IMPORTS[version]}"], capture_output=True, text=True)
    if "No module named 'dftracer" in tried.stderr:
        raise Unavailable(
            f"DLIO {version} has no pydftracer in {python}, without which its readers end; try: {python} -m pip install {TRACER}"
        )
    if tried.returncode:
        raise Unavailable(f"DLIO {version} doesn't import in {python}: {tried.stderr.strip()[-300:]}")
    return Dlio(version, python)


# Its settings ----------------------------------------------------------------------------------------


def settings(version: str, workload: Any, data: Path, files: int, **changed: Any) -> dict[str, Any]:
    """A workload of ours in DLIO's keys. `changed` goes to `train` (epochs, total_training_steps)."""
    key = {"v1.0": "record_length", "v2.0": "record_length_bytes"}[version]
    dataset = {
        "data_folder": str(data),
        "format": workload.format,
        "num_files_train": files,
        "num_samples_per_file": workload.samples_per_file,
        key: workload.record_bytes,
        f"{key}_stdev": workload.record_bytes_stdev,
    }
    if workload.record_bytes_resize:
        dataset[f"{key}_resize"] = workload.record_bytes_resize
    reader = {
        "data_loader": workload.loader,
        "batch_size": workload.batch,
        "read_threads": workload.read_threads,
        "computation_threads": workload.computation_threads,
        "prefetch_size": workload.prefetch,
    }
    if workload.file_shuffle:
        reader["file_shuffle"] = "seed"
    if workload.sample_shuffle:
        reader["sample_shuffle"] = "seed"
    if workload.shuffle_samples:
        reader["shuffle_size"] = workload.shuffle_samples
    return {
        "model": workload.name if version == "v1.0" else {"name": workload.name, "type": "cnn"},
        "framework": workload.loader,
        "workflow": {"generate_data": False, "train": True},
        "dataset": dataset,
        "reader": reader,
        "train": {"epochs": workload.epochs, "computation_time": workload.compute_s, **changed},
        "metric": {"au": workload.au_pct_min / 100},
    }


def mpirun(dlio: Dlio, folder: Path, name: str, workload: dict[str, Any], ranks: int) -> list[str]:
    """Writes the settings as hydra wants them (JSON is YAML); the command that runs them, with results in `folder`/out."""
    config = {
        "defaults": [
            "_self_",
            {"workload": None},
            *({f"override hydra/{k}": "disabled"} for k in ("job_logging", "hydra_logging")),
        ],
        "hydra": {"run": {"dir": str(folder / "out")}, "output_subdir": "configs"},
    }
    (folder / "workload").mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / f"workload/{name}.yaml").write_text(json.dumps(workload))
    program = [dlio.python, "-m", "dlio_benchmark.main", f"--config-path={folder}", f"workload={name}"]
    return ["mpirun", *MPIRUN, "-np", str(ranks), *program]


def environment(dlio: Dlio) -> dict[str, str]:
    beside = str(Path(dlio.python).parent)
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONWARNINGS": "ignore",
        "CUDA_VISIBLE_DEVICES": "",
        "DLIO_LOG_LEVEL": "warning",
        "DFTRACER_ENABLE": "0",
    }
    return {**os.environ, **quiet, "PATH": f"{beside}:{os.environ.get('PATH', '')}"}


# Running it ------------------------------------------------------------------------------------------


def play(
    dlio: Dlio,
    workload: Any,
    data: Path,
    files: int,
    ranks: int,
    epochs: int,
    steps_max: int | None = None,
    keep: Path | None = None,
    memory: bool = False,
    timeout_s: float = 600,
) -> Played:
    """One run of `ranks` accelerators over `files` files. `keep`: where its results stay (summary.json and the rest)."""
    with tempfile.TemporaryDirectory() as made:
        folder = keep or Path(made)
        changed = {"epochs": epochs} | ({"total_training_steps": steps_max} if steps_max else {})
        chosen = settings(dlio.version, workload, data, files, **changed)
        name = f"{workload.name}_{workload.accelerator}"
        begin = time.time()
        watched = execute(mpirun(dlio, folder, name, chosen, ranks), environment(dlio), timeout_s, memory)
        return played(folder / "out", watched, begin, workload.batch * ranks)


def played(out: Path, watched: Watched, begin: float, samples_per_step: int) -> Played:
    summary = json.loads((out / "summary.json").read_text())
    metric = summary["metric"]
    epochs = json.loads(next(out.glob("*per_epoch_stats.json")).read_text())
    loaded = json.loads((out / "0_output.json").read_text())
    first, last = epochs[min(epochs, key=int)], epochs[max(epochs, key=int)]
    since, until = when(first["block1"]["start"]), when(last["block1"]["end"])
    steps = sum(len(loaded[number]["proc"]["block1"]) for number in epochs)
    return Played(
        au_pct=metric["train_au_mean_percentage"],
        au_by_epoch=metric["train_au_percentage"],
        passes=metric["train_au_meet_expectation"] == "success",
        samples_per_s=metric["train_throughput_mean_samples_per_second"],
        seconds=until - since,
        samples=steps * samples_per_step,
        cpu_s=watched.cpu_at(until) - watched.cpu_at(since),
        first_step_s=since - begin + loaded[min(epochs, key=int)]["load"]["block1"][0],
        memory_bytes=watched.memory_most,
    )


def when(text: str) -> float:
    """DLIO writes local time without a zone."""
    return datetime.fromisoformat(text).timestamp()


def generate(dlio: Dlio, workload: Any, data: Path, files: int, timeout_s: float = 600) -> Generated:
    """Files by one DLIO process."""
    with tempfile.TemporaryDirectory() as made:
        chosen = settings(dlio.version, workload, data, files)
        chosen["workflow"] = {"generate_data": True, "train": False}
        command = mpirun(dlio, Path(made), workload.name, chosen, 1)
        execute(command, indexer(environment(dlio), Path(made)) | {"DLIO_LOG_LEVEL": "info"}, timeout_s)
        log = (Path(made) / "out/dlio.log").read_text()
    stamps = [
        re.search(rf"(\d{{4}}-\S+) {what}", log) for what in ("Starting data generation", "Generation done")
    ]
    if not all(stamps):
        raise Unavailable(f"DLIO {dlio.version} didn't say when it began and ended to generate")
    since, until = (when(s[1]) for s in stamps if s)
    total = sum(f.stat().st_size for f in (data / "train").rglob("*") if f.is_file())
    return Generated(until - since, total)


def indexer(env: dict[str, str], folder: Path) -> dict[str, str]:
    """`env` with a tfrecord2idx that does nothing, where DALI isn't installed: DLIO ends without that program, and what
    reads TFRecords by TensorFlow needs no index."""
    if shutil.which("tfrecord2idx", path=env["PATH"]):
        return env
    script = folder / "tfrecord2idx"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    return {**env, "PATH": f"{env['PATH']}:{folder}"}


def greatest(passes: Callable[[int], bool], start: int = 1, most: int = 4096) -> int:
    """The greatest number that passes, by doubling and bisection; 0 if not even one does."""
    good, bad, number = 0, None, start
    while bad is None and number <= most:
        if passes(number):
            good, number = number, number * 2
        else:
            bad = number
    bad = bad or most + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if passes(middle):
            good = middle
        else:
            bad = middle
    return good


# Watching it ------------------------------------------------------------------------------------------


class Watched:
    """CPU and memory of a process with all that it started, sampled while it runs."""

    def __init__(self, root: int, every_s: float, memory: bool) -> None:
        self.root, self.every_s, self.memory = root, every_s, memory
        self.samples: list[tuple[float, float]] = [(time.time(), 0.0)]
        self.memory_most: int | None = None
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        while not self.done.wait(self.every_s):
            self.sample()

    def sample(self) -> None:
        found = family(self.root)
        most = max(sum(found.values()), self.samples[-1][1])
        self.samples.append((time.time(), most))
        if self.memory:
            held = sum(pss_bytes(pid) for pid in found)
            self.memory_most = max(self.memory_most or 0, held)

    def end(self) -> None:
        self.done.set()
        self.thread.join()

    def cpu_at(self, moment: float) -> float:
        """CPU seconds used until then, between two samples on the straight line."""
        before, after = self.samples[0], self.samples[-1]
        for sample in self.samples:
            if sample[0] <= moment:
                before = sample
            else:
                after = sample
                break
        if after[0] <= before[0]:
            return before[1]
        return before[1] + (after[1] - before[1]) * min(1.0, (moment - before[0]) / (after[0] - before[0]))


def family(root: int) -> dict[int, float]:
    """CPU seconds, its dead children's included, of a process and all its descendants."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(words[1])
        used[int(folder.name)] = sum(map(int, words[11:15])) * TICK_S
    inside = {root} & set(used)
    grew = bool(inside)
    while grew:
        more = {pid for pid, parent in parents.items() if parent in inside} - inside
        inside |= more
        grew = bool(more)
    return {pid: used[pid] for pid in inside}


def pss_bytes(pid: int) -> int:
    """Pages that it shares with others count in part. Files in memory that it has mapped are no memory of its own."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(kb) << 10 for kb in re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", text, re.MULTILINE))


def execute(
    command: list[str], env: dict[str, str], timeout_s: float, memory: bool = False, every_s: float = 0.2
) -> Watched:
    """Runs a command to its end; Unavailable if it fails or takes too long, with the last of what it said."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryDirectory() as here:
        child = subprocess.Popen(
            command,
            env=env,
            cwd=here,
            stdout=said,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        watched = Watched(child.pid, every_s, memory)
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                child.wait(20)
            watched.end()
        said.seek(0)
        # mpirun's own farewell comes last, between lines of dashes, of which DLIO's bars of progress have some, too.
        tail = " ".join(re.split(r"^-{20,}$", said.read(), maxsplit=1, flags=re.MULTILINE)[0].split())[-600:]
    if code is None:
        raise Unavailable(f"{command[0]} took more than {timeout_s:g} s: {tail}")
    if code:
        raise Unavailable(f"{command[0]} ended with {code}: {tail}")
    return watched
