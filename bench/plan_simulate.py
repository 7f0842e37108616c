"""A simulated hour of a thousand accelerators and more: `forebay plan run --simulate` as typed, and how long it takes.

What a simulated hour costs goes with its steps: a 3D U-Net's accelerator makes eleven thousand of them in an hour,
CosmoFlow's a million. Wall time is the whole command's: Python, the planner's calibration and the simulation.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from peers import installed, run
from side_by_side import arguments, middle, publish, save, say, section

SECONDS_MAX = 60.0
# Drives and accelerators are those of all hosts together: four and eight in each.
LOCAL = ("--drive", "D7-PS1010", "--drives", "500", "--accelerators", "1000", "--hosts", "125")
SHARED = ("--drive", "D7-PS1010", "--drives", "400", "--location", "remote")
MANY, MORE = (("--accelerators", str(8 * hosts), "--hosts", str(hosts)) for hosts in (125, 1000))
TRACE = ("--sizes", "trace", "--seeds", "1")
JITTER = ("--jitter", "compute=0.05", "--jitter", "requests=0.5", "--seeds", "1")
# name → flags.
CELLS = {
    "unet3d, 1,000 on 125 hosts, own drives": (*LOCAL, "--workload", "unet3d"),
    "the same with jitter": (*LOCAL, "--workload", "unet3d", *JITTER),
    "unet3d, 1,000, shared drives, jitter": (*SHARED, *MANY, "--workload", "unet3d", *JITTER),
    "resnet50, 1,000, own drives, jitter": (*LOCAL, "--workload", "resnet50", *JITTER),
    "unet3d, 1,000, each sample of its own size": (*LOCAL, "--workload", "unet3d", *TRACE),
    "cosmoflow, 1,000, own drives": (*LOCAL, "--workload", "cosmoflow"),
    "unet3d, 8,000 on 1,000 hosts, shared, jitter": (*SHARED, *MORE, "--workload", "unet3d", *JITTER),
}
TITLE = "A simulated hour"


def turn(program: str, flags: tuple[str, ...]) -> dict[str, Any]:
    """One command: its wall seconds, the simulation's own, and what it found."""
    command = [program, "plan", "run", *flags, "--simulate", "--hours", "1", "--json"]
    begin = time.perf_counter()
    ran = run(command, 900)
    wall = time.perf_counter() - begin
    found = json.loads(ran.stdout)["simulation"]
    job = found["jobs"][0]
    reported = {"command": ["forebay", *command[1:]], "wall_s": wall, "cpu_s": ran.cpu_s, "simulation_s": found["wall_s"]}
    return reported | {"steps": job["per_hour"]["steps"], "au_pct": job["au_pct"]["value"], "bottleneck": found["bottleneck"]}


def main() -> int:
    options = arguments(__doc__ or "", None).parse_args()
    program = installed()
    cells = {name: flags for name, flags in CELLS.items() if not options.only or options.only in name}
    if not cells:
        say(f"no cell's name holds '{options.only}'")
        return 2
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cells}
    for number in range(options.rounds):
        for name, flags in cells.items():
            runs[name].append(turn(program, flags))
            say(f"round {number + 1}/{options.rounds}: {name}: {runs[name][-1]['wall_s']:.1f} s")
    rows = ["| an hour of | steps | whole command, s | its CPU, s | simulating, s | AU, % | bottleneck |", "|---|" + "---|" * 6]
    for name, turns in runs.items():
        times = " | ".join(middle([t[key] for t in turns], 1) for key in ("wall_s", "cpu_s", "simulation_s"))
        last = turns[-1]
        rows.append(f"| {name} | {last['steps']:,.0f} | {times} | {last['au_pct']:.1f} | {last['bottleneck']} |")
    holds = all(t["wall_s"] < SECONDS_MAX for name, turns in runs.items() if "8,000" not in name for t in turns)
    verdict = f"- an hour of 1,000 accelerators in under {SECONDS_MAX:g} s: {'holds' if holds else '**does not hold**'}"
    text = section(TITLE, options, "\n".join([*rows, "", verdict, ""]))
    save(options.json, TITLE, options, [{"runs": runs, "holds": holds}], text)
    publish(TITLE, options, text)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
