"""Entries of a key-value cache, read and written: `python bench/kvcache.py --dir DIR`.

`forebay emulate kvcache --phase decode` and `--phase prefill` beside fio (1 MiB, depth 32, O_DIRECT), and beside a loop of
np.save and np.load as MLPerf Storage's own client has it. Then option 1 with its 200 users: memory, and what the window counts
beside the block devices' counters. Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from child import Child, asked, closing
from peers import installed, run
from side_by_side import Bound, Cell, Contender, Figure, Unavailable, arguments, compare, spent_s

PROMISES = ("KVC-9", "KVC-10", "KVC-11")
TITLE = "A key-value cache's entries beside fio and NumPy"
GIB = 1 << 30
# Entries of each user are a few hundred MiB.
USERS = 12
RSS_MAX = 512 << 20
# What the window may count beyond the devices' counters.
BEYOND = 0.005


def ours(folder: Path, phase: str, users: int, seconds: float, name: str = "forebay", room: int = 6) -> Contender:
    """`forebay emulate kvcache` as typed; figures of its window, in which it reads or writes alone."""
    base = [installed(), "emulate", "kvcache", "--option", "1", "--dir", str(folder / "forebay-kvcache"), "--phase", phase]
    base += ["--users", str(users), "--capacity", f"{room}g", "--json", "-q"]

    def measure(asked_s: float) -> Figure:
        ran = run([*base, "--duration", str(asked_s)], 900)
        record = json.loads(ran.stdout)
        result, part = record["result"], record["kvcache"]
        counted = record["cache"]["device_bytes"]
        if counted is not None and result["bytes"] > counted * (1 + BEYOND):
            raise Unavailable(f"the window has {result['bytes']} bytes and the block devices counted {counted}")
        proof: dict[str, Any] = {"read_gib_s": part["read_gib_s"], "write_gib_s": part["write_gib_s"]}
        proof |= {"requests": part["requests"], "limit": part["limit"], "device_bytes": counted, "rss_bytes": ran.rss_bytes}
        proof |= {"entries": part["entries"], "path": record["path"]["engine"]}
        if phase == "both" and ran.rss_bytes > RSS_MAX:
            raise Unavailable(f"{users} users took {ran.rss_bytes >> 20} MiB of memory")
        return Figure(result["seconds"], result["bytes"], result["ios"], spent_s(result["cpu"]), ran.cpu_s, proof)

    return Contender(name, measure, ["forebay", *base[1:]])


def fio_program() -> str:
    program = shutil.which(os.environ.get("FIO", "fio"))
    if program is None:
        raise Unavailable("fio isn't installed; try: apt install fio (FIO names it where it isn't on PATH)")
    return program


def fio(folder: Path, way: str) -> Contender:
    """fio's sequential I/O on four files of 2 GiB in one job."""
    base = [fio_program(), "--name=peer", f"--directory={folder}", f"--rw={way}", "--bs=1m", "--size=8g", "--nrfiles=4"]
    base += ["--iodepth=32", "--direct=1", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1", "--time_based"]
    base += ["--file_service_type=roundrobin", "--fallocate=native", "--thread", "--output-format=json"]

    def measure(seconds: float) -> Figure:
        ran = run([*base, f"--runtime={seconds}"], 900)
        reported = json.loads(ran.stdout[ran.stdout.index("{") :])
        job = reported["jobs"][0]
        if job["error"]:
            raise Unavailable(f"fio reports error {job['error']}")
        found = job[way]
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        proof = {"version": reported["fio version"]}
        return Figure(found["runtime"] / 1e3, found["io_bytes"], found["total_ios"], cpu_s, ran.cpu_s, proof)

    return Contender("fio", measure, ["fio", *base[1:]])


def laid_out(folder: Path) -> None:
    """fio's files, written once, so that what it reads is there."""
    words = [fio_program(), "--name=peer", f"--directory={folder}", "--rw=write", "--bs=1m"]
    words += ["--size=8g", "--nrfiles=4", "--iodepth=32", "--direct=1", "--ioengine=io_uring", "--end_fsync=1"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def cell(options: argparse.Namespace, children: list[Child], way: str) -> Cell:
    laid_out(options.dir)
    for old in children:
        old.close()
    children.clear()
    child = Child("child_kvcache.py", way, str(options.dir / "kvcache-numpy"), "2")
    children.append(child)
    phase = "decode" if way == "read" else "prefill"
    contenders = [ours(options.dir, phase, USERS, options.seconds), fio(options.dir, way), asked("numpy", child)]
    bounds = [Bound("rate", ("fio",), at_least=0.97 if way == "read" else 0.9), Bound("cost", ("numpy",), at_most=0.1)]
    bounds += [Bound("cost", (), at_most=60.0)] if way == "read" else []
    return Cell(f"entries {way}, cold", contenders, bounds)


def option_one(options: argparse.Namespace) -> Cell:
    """200 users of the real thing; its rate is bound to nothing, its memory and its count are."""
    contenders = [ours(options.dir, "both", 200, options.seconds, room=12)]
    return Cell("option 1, 200 users", contenders, [Bound("rate", (), at_least=0.001)])


def main() -> int:
    options = arguments(__doc__ or "", 8.0).parse_args()
    children: list[Child] = []
    every = {f"entries {way}, cold": functools.partial(cell, options, children, way) for way in ("read", "write")}
    every["option 1, 200 users"] = functools.partial(option_one, options)
    cells = [build for name, build in every.items() if not options.only or options.only in name]
    with closing(*children):
        try:
            return compare(TITLE, options, cells)
        finally:
            for child in children:
                child.close()
            for left in options.dir.glob("peer.*"):
                left.unlink()


if __name__ == "__main__":
    sys.exit(main())
