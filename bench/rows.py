"""Random rows of a cached file → the GPU, by every way there is: `python bench/rows.py --dir DIR`.

Forebay's `gather` and `bench`, in batches and without, beside what the machine itself does (bench/rows_floor.cu: a kernel
alone, 16 threads that gather, threads and a scatter kernel), PyTorch's index_select at its best, KvikIO, and fio for rows
that aren't cached; last `path="auto"` call by call (`--only 'call by call'` measures that alone). Needs Python 3.10 or
newer, NumPy, torch, CuPy and forebay's wheel; nvcc for the floor. Who isn't installed is left out and named.

Every run is a line of JSON in --lines, written when it ends. Started again with the same file and settings on the same
machine, it measures what is missing; --limit-s ends it before a machine's time does. Exit: 0 if every bound holds, 1 if one
does not, 3 where nothing can be measured, 4 where time ran out.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import rows_calls
from child import HERE, Child, asked, closing
from gpu import COPY, KVIKIO, MIB, arguments, cached, copy_rate, data_file, kvikio, ours, ready, run_main
from peers import fio_uring
from side_by_side import (
    GIB,
    Bound,
    Cell,
    Contender,
    Figure,
    Rounds,
    Unavailable,
    judge,
    machine_card,
    publish,
    save,
    say,
    section,
    tables,
)

PROMISES = ("MSR-24", "MSR-25")

MAPPED, ON_GPU, BOUNCE = "gather, mapped", "gather, numbers on the GPU", "gather, bounce"
BENCH, BATCHES = "forebay bench", "forebay bench --batch 2048"
BENCH_MAPPED, BENCH_BOUNCE = "bench --path mapped --batch", "bench --path bounce --batch"
KERNEL, THREADS, SCATTER = "kernel alone", "16 threads gather", "16 threads, scatter kernel"
TORCH, FIO = "torch index_select", "fio, host only"
TITLE = "Into the GPU, rows by every way"
FILE = "forebay-rows.dat"
CALL_BY_CALL = "call by call"
# Each takes a minute.
CALL_ROUNDS = 3
BATCH_BYTES = 256 * MIB
CORES = min(16, os.cpu_count() or 16)
# Row bytes of `mapped`: its least share of the kernel's rate, and of PyTorch's.
ROWS: dict[int, tuple[float | None, float | None]] = {
    4096: (0.9, 2.1),
    2048: (0.9, 2.2),
    1024: (0.9, None),
    912: (0.9, 1.5),
    512: (0.9, None),
    128: (0.9, None),
}
SCATTERED = {4096: (0.95, 150.0), 512: (0.95, None)}
IN_BATCHES = (4096, 512, 128)
# Page tables of the mapping are filled first: so many times a run's length before each.
WARMUPS = 2.5
# A table of 24 GiB where there is room for it, else one of 8.
TABLES_GIB = (24.0, 8.0)

MakeContender = Callable[[], Contender]


@dataclass
class Asked:
    """A cell before anybody was started: contenders are made when the first run of theirs is due."""

    name: str
    ours: str
    bounds: list[Bound]
    makers: dict[str, MakeContender] = field(default_factory=dict)


class Floor(Child):
    """bench/rows_floor.cu, built when it is first asked."""

    def __init__(self, file: Path, gpu: int, folder: Path) -> None:
        super().__init__("rows_floor.cu", str(file), str(gpu))
        self.program, self.where = folder / "forebay-rows-floor", [str(file), str(gpu)]

    def start(self) -> subprocess.Popen[bytes]:
        source = HERE / "rows_floor.cu"
        if not self.program.exists() or self.program.stat().st_mtime < source.stat().st_mtime:
            compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
            if compiler is None:
                raise Unavailable("nvcc isn't there to build bench/rows_floor.cu with")
            flags = ["-O3", "-std=c++17", "-arch=native", "-Xcompiler", "-pthread", "-o", str(self.program), str(source)]
            built = subprocess.run([compiler, *flags], capture_output=True, text=True, timeout=180)
            if built.returncode:
                raise Unavailable(f"nvcc: {' '.join((built.stderr or built.stdout).split())[-400:]}")
        self.command = [str(self.program), *self.where]
        return super().start()


class Lines:
    """What was measured, a line of JSON each; the first says of what and on what."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, json.loads(json.dumps(about, default=str))
        self.found: dict[tuple[str, str, int], dict[str, Any]] = {}
        kept = [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []
        if not kept:
            path.write_text(json.dumps(self.about) + "\n")
        elif kept[0] != self.about:
            say(f"{path} holds runs of another machine, file or setting; move it away, or name another with --lines")
            raise SystemExit(2)
        for line in kept[1:]:
            self.found[line["cell"], line["tool"], line["round"]] = line

    def add(self, cell: str, tool: str, number: int, **more: Any) -> None:
        line = {"cell": cell, "tool": tool, "round": number, **more}
        self.found[cell, tool, number] = line
        with self.path.open("a") as out:
            out.write(json.dumps(line, default=str) + "\n")

    def lost(self, cell: str, tool: str) -> str | None:
        """Why it can't run, if that was found."""
        reported = [line["left_out"] for key, line in self.found.items() if key[:2] == (cell, tool) and "left_out" in line]
        return reported[0] if reported else None

    def rounds(self, cell: str, tool: str) -> list[Figure]:
        lines = [line for key, line in sorted(self.found.items()) if key[:2] == (cell, tool) and "run" in line]
        return [Figure(**line["run"]) for line in lines]


def mapped_cells(children: dict[str, Child]) -> list[Asked]:
    cells = []
    for row, (of_kernel, of_torch) in ROWS.items():
        bounds = [Bound("rate", (KERNEL,), at_least=of_kernel), Bound("cost", (), at_most=50.0)]
        bounds += [Bound("cost", (TORCH,), at_most=0.1)]
        bounds += [Bound("rate", (TORCH,), at_least=of_torch)] if of_torch else []
        bounds += [Bound("rate", (KVIKIO,), at_least=200.0)] if row == 4096 else []
        bounds += [Bound("rate", (THREADS,), at_least=0.8, of=BOUNCE)] if row == 128 else []
        request: dict[str, Any] = {"row_bytes": row, "at_once": BATCH_BYTES // row}
        ask = functools.partial(asked, **request)
        floor = functools.partial(asked, child=children["floor"], threads=CORES, **request)
        made: dict[str, MakeContender] = {
            MAPPED: functools.partial(ask, MAPPED, children["gather"]),
            ON_GPU: functools.partial(ask, ON_GPU, children["gather"], numbers="gpu"),
            # Four batches: the thread that asks copies and checks numbers for half of the time that one of two takes.
            BOUNCE: functools.partial(ask, BOUNCE, children["gather"], path="bounce", in_flight=4),
            KERNEL: functools.partial(floor, KERNEL, mode="kernel"),
            THREADS: functools.partial(floor, THREADS, mode="gather"),
            TORCH: functools.partial(ask, TORCH, children["torch"]),
        }
        if row == 4096:
            made[KVIKIO] = functools.partial(kvikio, children["kvikio"], mode="futures", threads=16, task=4 * MIB, block=row)
            made[COPY] = functools.partial(copy_rate, children["link"])
        cells.append(Asked(f"{row} bytes", MAPPED, bounds, made))
    return cells


def bench_cells(options: argparse.Namespace, file: Path, children: dict[str, Child]) -> list[Asked]:
    cells, warmup_s = [], WARMUPS * options.seconds
    for row, (of_floor, of_kvikio) in SCATTERED.items():
        flags = f"--path bounce --op randread --io-size {row} --cache allow --workers {CORES} --depth 4096"
        bounds = [Bound("rate", (SCATTER,), at_least=of_floor)]
        bounds += [Bound("rate", (KVIKIO,), at_least=of_kvikio)] if of_kvikio else []
        request = {"row_bytes": row, "at_once": BATCH_BYTES // row, "threads": CORES, "mode": "scatter"}
        made: dict[str, MakeContender] = {
            BENCH: functools.partial(ours, BENCH, file, options, flags, warmup_s=warmup_s),
            BATCHES: functools.partial(ours, BATCHES, file, options, f"{flags} --batch 2048", warmup_s=warmup_s),
            SCATTER: functools.partial(asked, SCATTER, children["floor"], **request),
        }
        if of_kvikio:
            made[KVIKIO] = functools.partial(kvikio, children["kvikio"], mode="futures", threads=16, task=4 * MIB, block=row)
        cells.append(Asked(f"{row} bytes, bounce", BENCH, bounds, made))
    cells += [batch_cell(options, file, row, children) for row in IN_BATCHES]
    flags = "--path bounce --op randread --io-size 4096 --cache bypass --workers 2 --depth 64"
    cold: dict[str, MakeContender] = {
        BENCH: functools.partial(ours, BENCH, file, options, flags),
        FIO: functools.partial(fio_uring, FIO, file, "randread", 4096, 64, jobs=2),
    }
    bounds = [Bound("rate", (FIO,), at_least=0.98), Bound("cost", (FIO,), at_most=1.15)]
    return [*cells, Asked("4096 bytes, from the disk", BENCH, bounds, cold)]


def batch_cell(options: argparse.Namespace, file: Path, row: int, children: dict[str, Child]) -> Asked:
    """Requests of 2,048 rows each, two in flight per worker."""
    flags = f"--op randread --io-size {row} --cache allow --batch 2048 --depth 4096"
    bench = functools.partial(ours, warmup_s=WARMUPS * options.seconds, file=file, options=options)
    made: dict[str, MakeContender] = {
        BENCH_MAPPED: functools.partial(bench, BENCH_MAPPED, flags=f"{flags} --path mapped --workers 4"),
        BENCH_BOUNCE: functools.partial(bench, BENCH_BOUNCE, flags=f"{flags} --path bounce --workers {CORES}"),
        KERNEL: functools.partial(
            asked, KERNEL, children["floor"], row_bytes=row, at_once=BATCH_BYTES // row, threads=CORES, mode="kernel"
        ),
    }
    return Asked(f"{row} bytes, in batches", BENCH_MAPPED, [], made)


def measure(
    options: argparse.Namespace, file: Path, cells: list[Asked], lines: Lines, until: float
) -> bool:
    """Every contender of a cell once a round, forwards then backwards. False where time ran out."""
    made: dict[tuple[str, str], Contender] = {}
    for cell in cells:
        for number in range(options.rounds):
            names = list(cell.makers)
            for name in names if number % 2 == 0 else reversed(names):
                if (cell.name, name, number) in lines.found or lines.lost(cell.name, name):
                    continue
                if time.monotonic() > until:
                    return False
                try:
                    key = (cell.name, name)
                    contender = made[key] if key in made else made.setdefault(key, cell.makers[name]())
                    figure = of_cached(contender, file, options.seconds)
                except Unavailable as reason:
                    say(f"{cell.name}: left out: {name}: {reason}")
                    lines.add(cell.name, name, number, left_out=str(reason))
                    continue
                cost = figure.cost("I/O", figure.cpu_s is None)
                reported = {"million_rows_s": figure.iops / 1e6, "cpu_ns_per_row": cost, "run": asdict(figure)}
                lines.add(cell.name, name, number, **reported, command=shlex.join(contender.command))
                turn = f"{cell.name} round {number + 1}/{options.rounds} {name}"
                paid = "" if cost is None else f", {cost:.1f} ns of CPU a row"
                say(f"{turn}: {figure.iops / 1e6:.3f} million rows a second{paid}")
    return True


def of_cached(contender: Contender, file: Path, seconds: float) -> Figure:
    """One run; once more where some of the file had left the page cache, as the system or the run itself says."""
    try:
        figure = contender.measure(seconds)
        if not figure.proof.get("uncached_bytes"):
            return figure
        say(f"{contender.name}: {figure.proof['uncached_bytes']} bytes of its last request weren't cached; measured again")
    except Unavailable as reason:
        if "in the page cache" not in str(reason):
            raise
    cached(file)
    return contender.measure(seconds)


def settled(cells: list[Asked], lines: Lines) -> list[tuple[Cell, Rounds, list[dict[str, Any]]]]:
    """Cells with the rounds that all their contenders have."""
    done = []
    for asked_for in cells:
        figures = {name: runs for name in asked_for.makers if (runs := lines.rounds(asked_for.name, name))}
        lost = {name: why for name in asked_for.makers if (why := lines.lost(asked_for.name, name))}
        figures = {name: runs for name, runs in figures.items() if name not in lost}
        if not figures:
            continue
        whole = min(map(len, figures.values()))
        figures = {name: runs[:whole] for name, runs in figures.items()}
        cell = Cell(asked_for.name, [], asked_for.bounds, per="I/O", ours=asked_for.ours, lost=lost)
        done.append((cell, figures, [judge(bound, cell, figures) for bound in cell.bounds]))
    return done


def parser() -> argparse.ArgumentParser:
    made = arguments(__doc__ or "", seconds=0.5)
    made.set_defaults(file_gib=None)
    made.add_argument("--lines", type=Path, help="where runs are kept, a line of JSON each (DIR/forebay-rows.jsonl)")
    made.add_argument("--limit-s", type=float, default=480, help="begin no run after so many seconds (480)")
    return made


def table_gib(folder: Path, name: str) -> float:
    """As large a table as disk and memory hold, with as much of both to spare; of one that is there already, its size."""
    found = folder / name
    if found.exists():
        return found.stat().st_size / GIB
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") + cached_bytes()
    disk = shutil.disk_usage(folder).free
    return next((gib for gib in TABLES_GIB if 2 * gib * GIB < min(memory, disk)), TABLES_GIB[-1])


def cached_bytes() -> int:
    """Of the page cache, which gives way."""
    found = re.search(r"^Cached:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def main() -> int:
    began = time.monotonic()
    options = ready(parser())
    options.file_gib = options.file_gib or table_gib(options.dir, FILE)
    about = {"study": TITLE, "machine": {**machine_card(options.dir), "date": None}, "file_gib": options.file_gib}
    lines = Lines(options.lines or options.dir / "forebay-rows.jsonl", about | {"seconds": options.seconds})
    file = data_file(options, FILE)
    gpu = str(options.gpu)
    children: dict[str, Child] = {
        "gather": Child("child_rows.py", "gather", gpu, str(file)),
        "torch": Child("child_rows.py", "torch", gpu, str(file)),
        "kvikio": Child("child_kvikio.py", str(file)),
        "link": Child("child_copy.py", gpu),
        "floor": Floor(file, options.gpu, options.dir),
    }
    every = mapped_cells(children) + bench_cells(options, file, children)
    cells = [cell for cell in every if not options.only or options.only in cell.name]
    with closing(*children.values()):
        whole = measure(options, file, cells, lines, began + options.limit_s)
        by_call = []
        if whole and (not options.only or options.only in CALL_BY_CALL):
            by_call = rows_calls.measure(children["gather"], min(options.rounds, CALL_ROUNDS))
    done = settled(cells, lines)
    if not done and not by_call:
        say("nothing was measured")
        return 3
    parts = [tables(done)] if done else []
    text = section(TITLE, options, "\n".join(parts + ([rows_calls.table(by_call)] if by_call else [])) + "\n")
    found: list[dict[str, Any]] = [{"cell": cell.name, "left_out": cell.lost, "bounds": bounds} for cell, _, bounds in done]
    found += [{"cell": f"{one['row_bytes']} bytes, {CALL_BY_CALL}", **one} for one in by_call]
    save(options.json, TITLE, options, found, text)
    publish(TITLE, options, text)
    if not whole:
        say(f"stopped after {options.limit_s:g} s; the same command measures the rest")
        return 4
    short = any(bound["holds"] is False for _, _, bounds in done for bound in bounds)
    return 1 if short or not all(one["holds"] for one in by_call) else 0


if __name__ == "__main__":
    run_main(main)
