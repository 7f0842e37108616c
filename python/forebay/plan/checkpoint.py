"""Seconds to write a checkpoint and to read it again: its bytes at the rate of drives, links and a DPU's queues.

No published figure calibrates it. Drives are taken at a share of their data sheet's sequential rate, as a flush at the end
and many files at once leave it; that share is a guess, and the interval says so.
"""

from __future__ import annotations

import math

from forebay.errors import RequestError
from forebay.plan import catalogue, limits
from forebay.plan.estimate import Z80, Estimate, bottleneck
from forebay.plan.planner import Planner
from forebay.plan.system import System
from forebay.units import GIB

# Of a data sheet's rate, with the spread of its logarithm.
WRITE, READ = (0.85, 0.2), (0.9, 0.15)
NOISE = 0.02


def gib(workload: str) -> float:
    """GiB of a whole checkpoint, the model and its optimizer, as `emulate checkpoint` writes it."""
    from forebay.emulate import workloads

    return sum(workloads.load_checkpoint(workload).written_bytes()) / GIB


def drive_gibps(planner: Planner, system: System) -> tuple[float, float]:
    """GiB/s at which one of these drives takes a checkpoint and gives it back."""
    drive = catalogue.drive(system.drive, planner.more)
    if drive.seq_write_mbps is None:
        said = "has no seq_write_mbps in its data sheet"
        raise RequestError(f"drive {drive.name}", said, "--catalogue with seq_write_mbps = 4000")
    own = planner.own_of(drive.name)
    read = own.delivers(system.drives).value / system.drives if own else drive.read_gibps * READ[0]
    return drive.seq_write_mbps * 1e6 / GIB * WRITE[0], read


def seconds(planner: Planner, system: System) -> dict[str, Estimate]:
    """To write one and to read it, of all of its hosts together on these drives."""
    size, (write, read) = gib(system.workload), drive_gibps(planner, system)
    cap, name, cap_sd = limits.way(planner, system)
    own = planner.own_of(system.drive)
    unsure = own.delivers(system.drives).log_sd if own else READ[1]
    found = {}
    for what, each, (share, spread) in (
        ("checkpoint_write_s", write, WRITE),
        ("checkpoint_read_s", read, (READ[0], unsure)),
    ):
        drives = each * system.drives
        least = min(drives, cap)
        stations = {"drive bandwidth": least / drives, name: least / cap}
        note = f"{size:g} GiB at {share:.0%} of the data sheet: no run of a checkpoint calibrates it"
        if own and what == "checkpoint_read_s":
            note = f"{size:g} GiB read at the rate of your runs"
        # Each end is that of whatever is slower there: more drives shorten neither by becoming less sure.
        soonest, latest = (
            size / min(drives * math.exp(sign * Z80 * math.hypot(spread, NOISE)), cap * math.exp(sign * Z80 * cap_sd))
            for sign in (1, -1)
        )
        found[what] = Estimate(size / least, soonest, latest, "s", bottleneck(stations), stations, note)
    return found
