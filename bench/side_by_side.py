"""Contenders side by side: interleaved rounds (A B C, C B A, …), medians, ranges, and a ratio per round.

The machines that this runs on drift by tens of per cent within minutes, so only figures of the same round are
compared; what is published is the median of those ratios and their range. CPU is given twice: of the steady
measured time, as each tool accounts for it itself, and of the whole process with its start (from wait4). The two
answer different questions, and one tool's first is never set against another's second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"
GIB = 1 << 30


@dataclass(frozen=True)
class Figure:
    """One run of one contender. Bytes and I/Os are those of the measured `seconds`."""

    seconds: float
    bytes: int
    ios: int
    # user + system in the measured seconds, as the tool says; None where it doesn't
    cpu_s: float | None
    # user + system of the process and its children, from start to end
    process_cpu_s: float
    # what shows that the run was what its name says
    proof: dict[str, Any] = field(default_factory=dict)

    @property
    def gib_s(self) -> float:
        return self.bytes / GIB / self.seconds

    @property
    def iops(self) -> float:
        return self.ios / self.seconds

    def cost(self, per: str, whole: bool) -> float | None:
        """CPU milliseconds per GiB, or nanoseconds per I/O; of the whole process, or of the measured time."""
        cpu_s = self.process_cpu_s if whole else self.cpu_s
        if cpu_s is None:
            return None
        return cpu_s * 1e3 / (self.bytes / GIB) if per == "GiB" else cpu_s * 1e9 / self.ios


@dataclass(frozen=True)
class Contender:
    """A tool and its settings. `measure(seconds)` runs it once."""

    name: str
    measure: Callable[[float], Figure]
    command: list[str]


@dataclass(frozen=True)
class Bound:
    """What Forebay (the contender `of`) must reach against another: per round, then the median."""

    what: str  # "rate" or "cost"
    against: tuple[str, ...]
    at_least: float | None = None
    at_most: float | None = None
    pick: str = "slowest"  # among `against`: "slowest" in each round, or "fastest" by its median


@dataclass(frozen=True)
class Cell:
    """One line of the question: contenders that do the same work, and what must hold between them."""

    name: str
    contenders: list[Contender]
    bounds: list[Bound]
    per: str = "GiB"  # what CPU is divided by: "GiB" or "I/O"
    ours: str = "forebay"  # the contender that the others are compared with
    chosen: dict[str, Any] = field(default_factory=dict)  # how each contender's depth was found


Rounds = dict[str, list[Figure]]


def interleave(
    cell: Cell, rounds: int, seconds: float, say: Callable[[str], None]
) -> tuple[Rounds, list[dict[str, Any]]]:
    """Every contender once a round, forwards then backwards; and what else the machine did in each round."""
    figures: Rounds = {c.name: [] for c in cell.contenders}
    noise = []
    for number in range(rounds):
        before = machine_ticks()
        for contender in cell.contenders if number % 2 == 0 else reversed(cell.contenders):
            figure = contender.measure(seconds)
            figures[contender.name].append(figure)
            say(f"{cell.name} round {number + 1}/{rounds} {contender.name}: {figure.gib_s:.2f} GiB/s")
        ours = sum(f[-1].process_cpu_s for f in figures.values())
        noise.append(machine_noise(before, machine_ticks(), ours))
    return figures, noise


def machine_ticks() -> dict[str, float]:
    """Seconds of all processors together since boot, busy and stolen, and now."""
    ticks = [
        int(t) / os.sysconf("SC_CLK_TCK") for t in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ]
    return {"at": time.monotonic(), "busy": sum(ticks) - ticks[3] - ticks[4] - ticks[7], "steal": ticks[7]}


def machine_noise(before: dict[str, float], after: dict[str, float], ours_s: float) -> dict[str, float]:
    wall = after["at"] - before["at"]
    return {
        "others_cores_busy": round(max(0.0, after["busy"] - before["busy"] - ours_s) / wall, 3),
        "steal_cores": round((after["steal"] - before["steal"]) / wall, 3),
    }


def find_depth(
    make: Callable[[int], Contender], depths: Sequence[int], seconds: float, say: Callable[[str], None]
) -> tuple[Contender, dict[str, Any]]:
    """The depth with the least CPU among those within 3 % of the fastest, and the scan that shows it."""
    tried: list[tuple[int, float, float]] = []
    for depth in depths:
        contender = make(depth)
        figure = contender.measure(seconds)
        tried.append((depth, figure.gib_s, figure.cost("GiB", whole=figure.cpu_s is None) or 0.0))
        say(f"scan {contender.name} depth {depth}: {figure.gib_s:.2f} GiB/s")
    best = max(gib_s for _, gib_s, _ in tried)
    depth = min((t for t in tried if t[1] >= 0.97 * best), key=lambda t: t[2])[0]
    return make(depth), {"depth": depth, "scan_depth_gib_s_cpu_ms_per_gib": tried}


# What was found ------------------------------------------------------------------------------------


def settle(bound: Bound, cell: Cell, figures: Rounds) -> dict[str, Any]:
    """The ratio of each round, their median, and whether it holds."""
    against = [a for a in bound.against if a in figures]
    missing = {"bound": asdict(bound), "median": None, "holds": None}
    if not against or cell.ours not in figures:
        return {**missing, "why": f"{' and '.join(bound.against) if not against else cell.ours} didn't run"}
    if bound.pick == "fastest":
        against = [max(against, key=lambda name: statistics.median(f.gib_s for f in figures[name]))]
    ratios = []
    for number, ours in enumerate(figures[cell.ours]):
        peers = [figures[name][number] for name in against]
        if bound.what == "rate":
            ratios.append(rate(ours, cell) / min(rate(p, cell) for p in peers))
            continue
        whole = ours.cpu_s is None or any(p.cpu_s is None for p in peers)
        costs = [cost for p in peers if (cost := p.cost(cell.per, whole))]
        mine = ours.cost(cell.per, whole)
        if not costs or mine is None:
            return {**missing, "why": "a run used too little CPU to be counted"}
        ratios.append(mine / min(costs))
    median = statistics.median(ratios)
    holds = (bound.at_least is None or median >= bound.at_least) and (
        bound.at_most is None or median <= bound.at_most
    )
    return {"bound": asdict(bound), "against": against, "ratios": ratios, "median": median, "holds": holds}


def rate(figure: Figure, cell: Cell) -> float:
    return figure.gib_s if cell.per == "GiB" else figure.iops


def middle(values: Sequence[float | None], digits: int) -> str:
    """`median (least–greatest)`; a dash where a tool doesn't say."""
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    return f"{statistics.median(known):.{digits}f} ({min(known):.{digits}f}–{max(known):.{digits}f})"


def table(cells: list[tuple[Cell, Rounds, list[dict[str, Any]]]]) -> str:
    """One row per cell and contender, then what had to hold."""
    per = cells[0][0].per
    unit, cost = ("GiB/s", "ms/GiB") if per == "GiB" else ("million I/Os per s", "ns per I/O")
    lines = [
        f"| work | tool | {unit} | CPU, measured time, {cost} | CPU, whole process, {cost} | {cells[0][0].ours} ÷ it |",
        "|---|---|---|---|---|---|",
    ]
    for cell, figures, _ in cells:
        for name, runs in figures.items():
            rates = [rate(f, cell) / (1 if per == "GiB" else 1e6) for f in runs]
            ratios = [
                rate(f, cell) / rate(r, cell) for f, r in zip(figures.get(cell.ours, []), runs, strict=False)
            ]
            depth = cell.chosen.get(name, {}).get("depth")
            lines.append(
                f"| {cell.name} | {name}{f', depth {depth}' if depth else ''} | {middle(rates, 2)} "
                f"| {middle([f.cost(per, False) for f in runs], 1)} | {middle([f.cost(per, True) for f in runs], 1)} "
                f"| {middle(ratios, 2) if name != cell.ours else ''} |"
            )
    lines.append("")
    for cell, _, settled in cells:
        lines += [f"- {verdict(cell, s)}" for s in settled]
    return "\n".join(lines)


def verdict(cell: Cell, settled: dict[str, Any]) -> str:
    bound = settled["bound"]
    limit = f"≥ {bound['at_least']}" if bound["at_least"] is not None else f"≤ {bound['at_most']}"
    what = {"rate": "rate", "cost": "CPU"}[bound["what"]]
    names = " or ".join(settled.get("against") or bound["against"])
    asked = f"{cell.name}: {what} of {cell.ours} {limit} × {names}"
    if settled["median"] is None:
        return f"{asked}: not measured ({settled['why']})"
    spread = f"{settled['median']:.2f} ({min(settled['ratios']):.2f}–{max(settled['ratios']):.2f})"
    return f"{asked}: {spread}, {'holds' if settled['holds'] else '**does not hold**'}"


# The shell around each command ----------------------------------------------------------------------


def arguments(description: str, seconds: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--dir",
        type=Path,
        required=True,
        help="a folder on the storage to measure; test files are made there",
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"measured seconds of each run ({seconds:g})"
    )
    parser.add_argument(
        "--scan-seconds",
        type=float,
        default=1.0,
        help="seconds of each run that looks for the best depth (1)",
    )
    parser.add_argument("--only", help="only the cells whose name holds this")
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    return parser


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compare(title: str, options: argparse.Namespace, cells: Sequence[Callable[[], Cell]]) -> int:
    """Measures each cell and publishes; 0 if every bound holds, else 1. A cell is built (its depths found) when due."""
    done: list[tuple[Cell, Rounds, list[dict[str, Any]]]] = []
    found: list[dict[str, Any]] = []
    for build in cells:
        cell = build()
        figures, noise = interleave(cell, options.rounds, options.seconds, say)
        settled = [settle(b, cell, figures) for b in cell.bounds]
        done.append((cell, figures, settled))
        commands = {c.name: shlex.join(c.command) for c in cell.contenders}
        runs = {n: [{**asdict(f), "gib_s": f.gib_s, "iops": f.iops} for f in fs] for n, fs in figures.items()}
        told = {"cell": cell.name, "commands": commands, "chosen": cell.chosen}
        found.append(told | {"runs": runs, "noise": noise, "bounds": settled})
        save(options.json, title, options, found)
    if not done:
        say(f"no cell's name holds '{options.only}'")
        return 2
    noise = [n for f in found for n in f["noise"]]
    others = middle([n["others_cores_busy"] for n in noise], 2)
    text = f"{table(done)}\n\nOther work on the machine meanwhile: {others} cores.\n"
    publish(title, options, text)
    held = [s["holds"] for _, _, settled in done for s in settled]
    return 1 if False in held else 0


def save(path: Path | None, title: str, options: argparse.Namespace, found: Any) -> None:
    """After each cell, so that an interrupted run keeps what it measured."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"study": title, "machine": machine_card(options.dir), "rounds": options.rounds}
    whole |= {"seconds": options.seconds, "cells": found}
    path.write_text(json.dumps(whole, indent=1, default=str) + "\n")


def publish(title: str, options: argparse.Namespace, text: str) -> None:
    """Prints the section, and puts it in place of the one of that title if asked."""
    card = machine_card(options.dir)
    about = f"{card['cpu']}, {card['cores']} cores, {card['memory_gib']} GiB, Linux {card['kernel']}"
    command = f"python bench/{Path(sys.argv[0]).name} --dir DIR --rounds {options.rounds}"
    run = f", {options.seconds:g} s a run" if options.seconds else ""
    section = f"## {title}\n\n`{command}`{run}. {about}, {card['filesystem']}, {card['date']}.\n\n{text}"
    print(section)
    if options.write:
        old = RESULTS.read_text()
        pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
        new, replaced = pattern.subn(lambda _: section + "\n", old)
        RESULTS.write_text((new if replaced else f"{old.rstrip()}\n\n{section}").rstrip() + "\n")
        say(f"wrote {RESULTS.name}: {title}")


def machine_card(folder: Path) -> dict[str, Any]:
    """What the figures were measured on. No host name: it says nothing, and the results are published."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / (1 << 20)) if memory else None,
        "kernel": platform.release(),
        "filesystem": filesystem(folder),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def filesystem(folder: Path) -> str:
    """`ext4 on virtio`, from the mount that holds the folder."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    kind = "an unknown file system"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if line.split()[2] == number:
            kind = line.split(" - ")[1].split()[0]
    driver = Path(f"/sys/dev/block/{number}/device/driver")
    return f"{kind} on {driver.resolve().name}" if driver.exists() else kind
