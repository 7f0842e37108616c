"""An example of fio's, made small, in fio and here: as many bytes, as many I/Os?

Times go, sizes shrink, devices become files of a scratch folder; order, sizes of I/Os, mixes, depths and engines stay.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay import fio
from forebay import run as engine
from forebay.errors import ForebayError
from forebay.fio import file, values

SIZE, FILE_BYTES = 1 << 20, 4 << 20
RUN_S = 60
# What says when, where, how fast and how long, in place of what is moved, by which thread, and what has fio report several
# sections as one.
DROPPED = re.compile(
    "runtime|timeout|time_based|ramp_time|startdelay|direct|buffered|directory|offset|cpus_allowed.*|numa_.*|write_.*log|log_.*|"
    "ss|ss_.*|steadystate.*|allow_file_create|loops|exitall|exit_what|rate|rate_?min|rate_iops_min|"
    "group_reporting|io_submit_mode"
)
SIZES = ("size", "filesize", "io_size", "io_limit")
# Of all bytes, what the last I/Os of drawn sizes may make of a difference.
LAST = 0.01
# (reads, writes, I/Os) by section.
Counts = dict[str, tuple[int, int, int]]


def beside(path: Path, program: str) -> str:
    """What the two say of it: `same bytes and I/Os`, where they differ, or why they can't be compared."""
    text, names = small(path)
    found: list[Counts] = []
    for run in (theirs, ours):
        with tempfile.TemporaryDirectory(prefix="forebay-fio-") as folder, inside(folder):
            for name in names:
                Path(name).write_bytes(bytes(FILE_BYTES))
            Path("small.fio").write_text(text)
            try:
                found.append(run(program, names))
            except subprocess.TimeoutExpired:
                return f"not run: fio isn't done after {RUN_S} s"
            except (ForebayError, ValueError) as error:
                return f"not run: {str(error).splitlines()[0][:100]}"
    mixed = re.search(r"^(rw|readwrite)=(randrw|rw|readwrite)$", text, re.M)
    return compared(*found, drawn="bssplit" in text, mixed=mixed is not None)


def compared(their: Counts, our: Counts, drawn: bool, mixed: bool) -> str:
    """`drawn`: sizes are, so that neither the number of I/Os nor the end of the last one is settled. `mixed`: nor is what of them
    reads."""
    for name, (reads, writes, ios) in their.items():
        own = our.get(name, (0, 0, 0))
        off = abs(reads + writes - own[0] - own[1])
        same = off <= (LAST * (reads + writes) if drawn else 0) and (mixed or drawn or reads == own[0])
        if not same or not (drawn or ios == own[2]):
            return f"[{name}] {reads} read, {writes} written, {ios} I/Os in fio; {own[0]}, {own[1]}, {own[2]} here"
    return "same bytes" if drawn else "same bytes and I/Os"


def small(path: Path) -> tuple[str, list[str]]:
    """The file made small, and the files that it names."""
    # Threads end with fio; its processes would outlast it.
    lines: list[str] = ["[global]", "thread"]
    names: dict[str, str] = {}
    for section in file.sections(str(path)):
        lines.append(f"[{section.name}]")
        for key, value in section.settings:
            value = file.expanded(section.name, key, value)
            if key == "filename":
                value = ":".join(names.setdefault(name, f"data{len(names)}") for name in fio.named_files(value))
            elif key in SIZES:
                value = str(min(SIZE, values.size(value, 1024)))
            elif key in ("zonesize", "zoneskip"):
                value = str(values.size(value, 1024) // 4096)
            elif key == "rate_iops":
                value = ",".join(str(100 * int(rate)) for rate in value.split(","))
            if not DROPPED.fullmatch(key):
                lines.append(f"{key}={value}")
    return "\n".join(lines) + "\n", list(names.values())


def theirs(program: str, names: list[str]) -> Counts:
    command = [program, "--output-format=json", "--output=out.json", "small.fio"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    if done.returncode:
        raise ValueError(f"fio ends with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    said = Path("out.json").read_text()
    counts: Counts = {}
    for job in json.loads(said[said.index("{") :])["jobs"]:
        reads, writes = job["read"], job["write"]
        add(counts, job["jobname"], reads["io_bytes"], writes["io_bytes"], reads["total_ios"] + writes["total_ios"])
    return counts


def ours(program: str, names: list[str]) -> Counts:
    counts: Counts = {}
    for job in fio.jobs("small.fio"):
        result: dict[str, Any] = engine.run({**job.job, "overwrite": names})["result"]
        if result["errors"]["failed"] or result["errors"]["verify_failed"]:
            raise ValueError(f"[{job.name}] {result['errors']['examples']}")
        add(counts, job.name.removesuffix(fio.CHECK), result["read_bytes"], result["write_bytes"], result["ios"])
    return counts


def add(counts: Counts, name: str, reads: int, writes: int, ios: int) -> None:
    before = counts.get(name, (0, 0, 0))
    counts[name] = (before[0] + reads, before[1] + writes, before[2] + ios)


@contextmanager
def inside(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
