"""A checkpoint of eight ranks, written and flushed, beside fio writing as many bytes in as many jobs and flushing them.

Ours makes the files in the measured time, fills every block with content of its own, and cuts each file to its bytes;
fio's files are made and their blocks reserved before its clock starts, and its buffers hold what they held.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from peers import installed, run
from side_by_side import (
    Bound,
    Cell,
    Contender,
    Figure,
    Unavailable,
    arguments,
    compare,
    find_depth,
    say,
    spent_s,
)

PROMISES = ("CKP-10",)

RANKS = 8
# One checkpoint of all eight ranks at full size.
WHOLE_BYTES = 112_425_623_552
DEPTHS = (1, 2, 4, 8, 16)


def ours(name: str, folder: Path, scale: float, *flags: str) -> Contender:
    """`forebay emulate checkpoint`, one write, as typed."""
    base = [installed(), "emulate", "checkpoint", "--workload", "llama3-8b", "--dir", str(folder / "forebay-checkpoint")]
    base += ["--scale", f"{scale:.6f}", "--writes", "1", "--reads", "0", "--path", "host", "--replace", *flags, "--json"]

    def measure(seconds: float) -> Figure:
        try:
            ran = run(base, 600)
            record = json.loads(ran.stdout)
        finally:
            shutil.rmtree(folder / "forebay-checkpoint", ignore_errors=True)
        turn = record["checkpoint"]["write"]["checkpoints"][0]
        path, result = record["path"], record["result"]
        if path["direct_bytes"] != turn["bytes"] or not record["checkpoint"]["fsync"]:
            raise Unavailable(f"{name}: {path['direct_bytes']} of {turn['bytes']} bytes went bypassing the page cache")
        cpu_s = spent_s(turn["cpu"])
        proof: dict[str, Any] = {key: path[key] for key in ("engine", "engine_features", "slot_pages", "direct_bytes")}
        proof |= {"latency_us": result["latency_us"], "fsync_us": record["checkpoint"]["write"]["fsync_us"]}
        return Figure(turn["duration_s"], turn["bytes"], result["ios"], cpu_s, ran.cpu_s, proof)

    return Contender(name, measure, ["forebay", *base[1:]])


def fio(folder: Path, scale: float, block: int, depth: int) -> Contender:
    """fio's sequential write with a flush at the end: a job for each rank, in a file of its own."""
    program = shutil.which(os.environ.get("FIO", "fio"))
    if program is None:
        raise Unavailable("fio isn't installed; try: apt install fio (FIO names it where it isn't on PATH)")
    each = round(WHOLE_BYTES * scale / RANKS) // block * block
    base = [program, "--name=peer", f"--directory={folder}", "--rw=write", f"--bs={block}", f"--size={each}"]
    base += [f"--numjobs={RANKS}", f"--iodepth={depth}", "--direct=1", "--ioengine=io_uring", "--fixedbufs=1"]
    base += ["--registerfiles=1", "--end_fsync=1", "--fallocate=native", "--thread", "--group_reporting"]
    base += ["--output-format=json"]

    def measure(seconds: float) -> Figure:
        try:
            ran = run(base, 600)
        finally:
            for left in folder.glob("peer.*.0"):
                left.unlink()
        reported = json.loads(ran.stdout[ran.stdout.index("{") :])
        job = reported["jobs"][0]
        if job["error"]:
            raise Unavailable(f"fio reports error {job['error']}")
        write = job["write"]
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        proof = {"version": reported["fio version"], "fsync_ns": job.get("sync", {}).get("lat_ns", {}).get("max")}
        return Figure(write["runtime"] / 1e3, write["io_bytes"], write["total_ios"], cpu_s, ran.cpu_s, proof)

    return Contender("fio", measure, ["fio", *base[1:]])


def cell(options: Any) -> Cell:
    folder, scale, block = options.dir, options.mib * (1 << 20) / WHOLE_BYTES, options.block << 10
    io = ["--io-size", str(block)]
    peer, tried = find_depth(lambda depth: fio(folder, scale, block, depth), DEPTHS, 0, say)
    best, own = find_depth(lambda depth: ours("forebay", folder, scale, *io, "--depth", str(depth)), DEPTHS, 0, say)
    plain = ours("same bytes", folder, scale, *io, "--depth", str(own["depth"]), "--no-verify")
    bounds = [Bound("rate", ("fio",), at_least=0.95)]
    chosen = {"fio": tried, "forebay": own}
    return Cell(f"write, {RANKS} ranks, {options.block}k", [best, plain, peer], bounds, chosen=chosen)


def main() -> int:
    parser = arguments(__doc__ or "", None, only=False)
    parser.add_argument("--mib", type=int, default=4096, help="size of one checkpoint (4096)")
    parser.add_argument("--block", type=int, default=1024, help="KiB per I/O (1024)")
    options = parser.parse_args()
    return compare("A checkpoint beside fio", options, [functools.partial(cell, options)])


if __name__ == "__main__":
    sys.exit(main())
