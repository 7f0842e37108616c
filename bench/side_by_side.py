"""Contenders side by side: interleaved rounds (A B C, C B A, …), medians, ranges, and a ratio per round.

The machines that this runs on drift by tens of per cent within minutes, so only figures of the same round are
compared; what is published is the median of those ratios and their range. CPU is given twice: of the steady
measured time, as each tool accounts for it itself, and of the whole process with its start (from wait4). The two
answer different questions, and one tool's first is never set against another's second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import kept

GIB = 1 << 30


class Unavailable(Exception):
    """A contender can't run here; the message says why and what would help."""


@dataclass(frozen=True)
class Figure:
    """One run of one contender. Bytes and I/Os are those of the measured `seconds`."""

    seconds: float
    bytes: int
    ios: int
    # user + system in the measured seconds, as the tool says; None where it doesn't
    cpu_s: float | None
    # user + system of the process and its children, from start to end; None of a process that stays between runs
    process_cpu_s: float | None
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
        if cpu_s is None or not self.bytes:
            return None
        return cpu_s * 1e3 / (self.bytes / GIB) if per == "GiB" else cpu_s * 1e9 / self.ios


def spent_s(cpu: dict[str, Any]) -> float | None:
    """User and system seconds of a record; None where no meter covered the run."""
    user, system = cpu["user_s"], cpu["system_s"]
    return None if user is None or system is None else user + system


@dataclass(frozen=True)
class Contender:
    """A tool and its settings. `measure(seconds)` runs it once."""

    name: str
    measure: Callable[[float], Figure]
    command: list[str]


@dataclass(frozen=True)
class Bound:
    """What Forebay must reach against another: per round, then the median. Against nobody, a figure by itself."""

    what: str  # "rate" or "cost" (ratios), or "time": microseconds per I/O beyond the other's
    against: tuple[str, ...]  # empty: the limit is in GiB/s (I/Os per s), CPU ms/GiB (ns per I/O), or µs
    at_least: float | None = None
    at_most: float | None = None
    pick: str = "slowest"  # among `against`: "slowest" in each round, or "fastest" by its median
    of: str | None = None  # which contender must reach it; None: the cell's `ours`
    sure: bool = False  # not the median but the lower end of the ratio's 95 % interval must be within the limit
    same: bool = False  # all of that interval must be, and contain 1
    enough: float | None = None  # of a cost: so much may be spent in any case, whatever the others spend
    plus: tuple[str, ...] = ()  # and what these spend besides, which is other work that has to be done, too
    floor: tuple[str, ...] = ()  # of a cost: what these spend may be spent in any case: less is not to be had here


@dataclass(frozen=True)
class Cell:
    """One line of the question: contenders that do the same work, and what must hold between them."""

    name: str
    contenders: list[Contender]
    bounds: list[Bound]
    per: str = "GiB"  # what CPU is divided by: "GiB" or "I/O"
    ours: str = "forebay"  # the contender that the others are compared with
    chosen: dict[str, Any] = field(default_factory=dict)  # how each contender's depth was found
    lost: dict[str, str] = field(default_factory=dict)  # who couldn't run, and why


Rounds = dict[str, list[Figure]]


def interleave(
    cell: Cell, rounds: int, seconds: float, say: Callable[[str], None]
) -> tuple[Rounds, list[dict[str, Any]]]:
    """Every contender once a round, forwards then backwards; and what else the machine did in each round."""
    figures: Rounds = {c.name: [] for c in cell.contenders}
    noise = []
    for number in range(rounds):
        before = machine_ticks()
        running = [c for c in cell.contenders if c.name in figures]
        for contender in running if number % 2 == 0 else reversed(running):
            try:
                figure = contender.measure(seconds)
            except Unavailable as reason:
                # Its earlier figures go too: rounds must hold the same contenders to be compared.
                cell.lost[contender.name] = str(reason)
                del figures[contender.name]
                say(f"{cell.name} round {number + 1}/{rounds} {contender.name}: left out: {reason}")
                continue
            figures[contender.name].append(figure)
            say(f"{cell.name} round {number + 1}/{rounds} {contender.name}: {reported(figure, cell)}")
        ours = sum(f[-1].process_cpu_s or f[-1].cpu_s or 0.0 for f in figures.values())
        noise.append(machine_noise(before, machine_ticks(), ours))
    return figures, noise


def reported(figure: Figure, cell: Cell) -> str:
    """One run in a line, while it goes on."""
    speed = f"{figure.gib_s:.2f} GiB/s" if cell.per == "GiB" else f"{figure.iops / 1e3:.1f} thousand I/Os per s"
    cost = figure.cost(cell.per, whole=figure.cpu_s is None)
    return speed if cost is None else f"{speed}, {cost:.1f} {'ms/GiB' if cell.per == 'GiB' else 'ns per I/O'}"


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
    make: Callable[[Any], Contender], depths: Sequence[Any], seconds: float, say: Callable[[str], None]
) -> tuple[Contender, dict[str, Any]]:
    """The depth (or other setting) with the least CPU among those within 3 % of the fastest, and the scan that shows it."""
    tried: list[tuple[Any, float, float]] = []
    refused: list[Unavailable] = []
    for depth in depths:
        try:
            contender = make(depth)
            figure = contender.measure(seconds)
        except Unavailable as reason:
            say(f"scan {depth}: {reason}")
            refused.append(reason)
            continue
        cost = figure.cost("GiB", whole=figure.cpu_s is None) or 0.0
        tried.append((depth, figure.gib_s, cost))
        say(f"scan {contender.name} {depth}: {figure.gib_s:.2f} GiB/s, {cost:.1f} ms/GiB")
    if not tried:
        raise refused[0]
    best = max(gib_s for _, gib_s, _ in tried)
    depth = min((t for t in tried if t[1] >= 0.97 * best), key=lambda t: t[2])[0]
    return make(depth), {"depth": depth, "scan_depth_gib_s_cpu_ms_per_gib": tried}


# What was found ------------------------------------------------------------------------------------


def judge(bound: Bound, cell: Cell, figures: Rounds) -> dict[str, Any]:
    """The ratio of each round, their median, and whether it holds."""
    name = bound.of or cell.ours
    against = [a for a in bound.against if a in figures]
    missing = {"bound": asdict(bound), "median": None, "holds": None}
    absent = name if name not in figures else " and ".join(bound.against) if bound.against and not against else None
    if absent:
        return {**missing, "why": f"{absent} didn't run"}
    if not bound.against:
        return by_itself(bound, cell, figures[name], missing)
    if bound.pick == "fastest":
        against = [max(against, key=lambda name: statistics.median(f.gib_s for f in figures[name]))]
    ratios = []
    for number, ours in enumerate(figures[name]):
        peers = [figures[peer][number] for peer in against]
        if bound.what == "rate":
            ratios.append(rate(ours, cell) / min(rate(p, cell) for p in peers))
            continue
        if bound.what == "time":
            ratios.append(1e6 / ours.iops - min(1e6 / p.iops for p in peers))
            continue
        besides = [figures[name][number] for name in bound.plus if name in figures]
        if len(besides) < len(bound.plus):
            return {**missing, "why": f"not all of {' and '.join(bound.plus)} ran"}
        floors = [figures[name][number] for name in bound.floor if name in figures]
        whole = ours.cpu_s is None or any(p.cpu_s is None for p in (*peers, *besides, *floors))
        costs = [cost for p in peers if (cost := p.cost(cell.per, whole))]
        mine = ours.cost(cell.per, whole)
        if not costs or mine is None:
            return {**missing, "why": "a run used too little CPU to be counted"}
        least = min(costs) + sum(p.cost(cell.per, whole) or 0.0 for p in besides)
        enough = max([bound.enough or 0.0, *(p.cost(cell.per, whole) or 0.0 for p in floors)])
        ratios.append(mine / max(least, enough / (bound.at_most or 1.0)))
    median = statistics.median(ratios)
    found = {"against": against, "ratios": ratios, "median": median, "holds": within(bound, median)}
    if bound.sure or bound.same:
        low, high = interval(ratios)
        same = low <= 1 <= high and within(bound, low) and within(bound, high)
        found |= {"interval": (low, high), "holds": same if bound.same else within(bound, low)}
    return {"bound": asdict(bound), **found}


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of the ratios' logarithms: what the ratio is in the long run, as far as these rounds tell."""
    from forebay.stats import mean_interval

    found = mean_interval([math.log(r) for r in ratios])
    if found.low is None or found.high is None:
        return 0.0, math.inf
    return math.exp(found.low), math.exp(found.high)


def by_itself(bound: Bound, cell: Cell, runs: list[Figure], missing: dict[str, Any]) -> dict[str, Any]:
    """A limit that is a figure and no ratio."""
    tells: dict[str, Callable[[Figure], float | None]] = {
        "rate": lambda f: rate(f, cell),
        "cost": lambda f: f.cost(cell.per, f.cpu_s is None),
        "time": lambda f: 1e6 / f.iops,
    }
    values = [tells[bound.what](f) for f in runs]
    known = [v for v in values if v is not None]
    if not known:
        return {**missing, "why": "it tells no CPU"}
    median = statistics.median(known)
    return {"bound": asdict(bound), "against": [], "ratios": known, "median": median, "holds": within(bound, median)}


def within(bound: Bound, median: float) -> bool:
    enough = bound.at_least is None or median >= bound.at_least
    return enough and (bound.at_most is None or median <= bound.at_most)


def rate(figure: Figure, cell: Cell) -> float:
    return figure.gib_s if cell.per == "GiB" else figure.iops


def middle(values: Sequence[float | None], digits: int) -> str:
    """`median (least–greatest)`; a dash where a tool doesn't say."""
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    return f"{statistics.median(known):.{digits}f} ({min(known):.{digits}f}–{max(known):.{digits}f})"


def table(cells: list[tuple[Cell, Rounds, list[dict[str, Any]]]]) -> str:
    """One row per cell and contender, then what had to hold. A column for whole processes where any is known."""
    per = cells[0][0].per
    every = [f for _, figures, _ in cells for runs in figures.values() for f in runs]
    # In millions a slow table would be all zeros.
    few = all(f.iops < 1e5 for f in every)
    count, scale = ("thousand", 1e3) if few else ("million", 1e6)
    unit, cost = ("GiB/s", "ms/GiB") if per == "GiB" else (f"{count} I/Os per s", "ns per I/O")
    whole = any(f.process_cpu_s is not None for f in every)
    columns = ["work", "tool", unit, f"CPU, measured time, {cost}"]
    columns += [f"CPU, whole process, {cost}"] * whole + [f"{cells[0][0].ours} ÷ it"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for cell, figures, _ in cells:
        for name, runs in figures.items():
            how = cell.chosen.get(name, {})
            setting = how.get("shown") or (f"depth {how['depth']}" if how.get("depth") else "")
            row = [cell.name, f"{name}, {setting}" if setting else name]
            row += [middle([rate(f, cell) / (1 if per == "GiB" else scale) for f in runs], 2)]
            row += [middle([f.cost(per, False) for f in runs], 1)]
            row += [middle([f.cost(per, True) for f in runs], 1)] * whole
            pairs = zip(figures.get(cell.ours, []), runs, strict=False)
            row += [middle([rate(f, cell) / rate(r, cell) for f, r in pairs], 2) if name != cell.ours else ""]
            lines.append(f"| {' | '.join(row)} |")
    lines.append("")
    for cell, _, settled in cells:
        lines += [f"- {verdict(cell, s)}" for s in settled]
    lines += [f"- {cell.name}: left out: {name}: {why}" for cell, _, _ in cells for name, why in cell.lost.items()]
    return "\n".join(lines)


def verdict(cell: Cell, settled: dict[str, Any]) -> str:
    bound = settled["bound"]
    limit = f"≥ {bound['at_least']}" if bound["at_least"] is not None else f"≤ {bound['at_most']}"
    if bound.get("same"):
        limit += f" and ≤ {bound['at_most']}"
    what = {"rate": "rate", "cost": "CPU", "time": "time per I/O"}[bound["what"]]
    asked = f"{cell.name}: {what} of {bound['of'] or cell.ours} {limit}"
    if bound["what"] == "time" and not bound["against"]:
        asked += " µs"
    elif bound["what"] == "time":
        asked += f" µs beyond {' or '.join(settled.get('against') or bound['against'])}"
    elif bound["against"]:
        against = " or ".join(settled.get("against") or bound["against"])
        besides = "".join(f" + {name}" for name in bound.get("plus") or ())
        asked += f" × ({against}{besides})" if besides else f" × {against}"
        if bound.get("enough"):
            asked += f", or of {bound['enough']} {'ms/GiB' if cell.per == 'GiB' else 'ns per I/O'} where that is more"
        if bound.get("floor"):
            asked += f", or of {' or '.join(bound['floor'])} where that is more"
    else:
        units = {"rate": ("GiB/s", "I/Os per s"), "cost": ("ms/GiB", "ns per I/O")}[bound["what"]]
        asked += f" {units[cell.per != 'GiB']}"
    if settled["median"] is None:
        return f"{asked}: not measured ({settled['why']})"
    spread = f"{settled['median']:.2f} ({min(settled['ratios']):.2f}–{max(settled['ratios']):.2f})"
    if "interval" in settled:
        spread = f"95 % interval {settled['interval'][0]:.3f}–{settled['interval'][1]:.3f}"
    return f"{asked}: {spread}, {'holds' if settled['holds'] else '**does not hold**'}"


# The shell around each command ----------------------------------------------------------------------


def existing_folder(name: str) -> Path:
    """An existing one, for argparse: a missing one is found before anything is measured."""
    found = Path(name)
    if not found.is_dir():
        kind = "is no folder" if found.exists() else f"doesn't exist: mkdir -p {shlex.quote(name)}"
        raise argparse.ArgumentTypeError(f"{name} {kind}")
    return found


def existing_file(name: str) -> Path:
    """An existing one, for argparse, as `existing_folder`."""
    found = Path(name)
    if not found.is_file():
        raise argparse.ArgumentTypeError(f"{name} {'is no file' if found.exists() else 'does not exist'}: give a file's path")
    return found


def new_file(name: str) -> Path:
    """What is written once something has been measured: a folder of that name is found before."""
    found = Path(name)
    if found.is_dir():
        raise argparse.ArgumentTypeError(f"{name} is a folder: give a file's name, {found / 'out.json'}")
    return found


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: give 1 or more")
    return number


def only_with_gpu(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    """Refuses options that have no effect without --gpu."""
    for name in names if not options.gpu else ():
        if getattr(options, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} has no effect without --gpu: add --gpu, or leave it out")


def arguments(description: str, seconds: float | None, only: bool = True, scan: bool = False) -> argparse.ArgumentParser:
    """`seconds`: None where a run ends by itself. `only`: the command has cells to choose from. `scan`: it looks for depths."""
    parser = argparse.ArgumentParser(description=description)
    parser.set_defaults(seconds=0, only=None)
    parser.add_argument(
        "--dir",
        type=existing_folder,
        required=True,
        help="a folder on the storage to measure; test files are made there",
    )
    parser.add_argument("--rounds", type=positive, default=5, help="interleaved rounds (5)")
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help=f"measured seconds of each run ({seconds:g})")
    if scan:
        parser.add_argument("--scan-seconds", type=float, default=1.0, help="seconds of each run that looks for a depth (1)")
    if only:
        parser.add_argument("--only", help="only the cells whose name holds this")
    parser.add_argument("--json", type=new_file, help="write everything that was measured here")
    parser.add_argument("--publish", action="store_true", help="keep the result in bench/results, and remake docs/benchmarks.md")
    return parser


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compare(title: str, options: argparse.Namespace, cells: Sequence[Callable[[], Cell]]) -> int:
    """Measures each cell and publishes; 0 if every bound holds, else 1. A cell is built (its depths found) when due; 3 where this
    machine lacks what it is built with.

    After each cell everything until then is saved, so that an interrupted run keeps what it measured.
    """
    done: list[tuple[Cell, Rounds, list[dict[str, Any]]]] = []
    found: list[dict[str, Any]] = []
    text = ""
    debug: set[str] = set()
    for build in cells:
        try:
            cell = build()
        except Unavailable as reason:
            say(str(reason))
            return 3
        figures, noise = interleave(cell, options.rounds, options.seconds, say)
        debug |= {name for name, runs in figures.items() if any(is_debug(run) for run in runs)}
        settled = [judge(b, cell, figures) for b in cell.bounds]
        done.append((cell, figures, settled))
        commands = {c.name: shlex.join(c.command) for c in cell.contenders}
        runs = {n: [{**asdict(f), "gib_s": f.gib_s, "iops": f.iops} for f in fs] for n, fs in figures.items()}
        reported = {"cell": cell.name, "commands": commands, "chosen": cell.chosen, "left_out": cell.lost}
        found.append(reported | {"runs": runs, "noise": noise, "bounds": settled})
        text = section(title, options, f"{tables(done)}\n\n{meanwhile(found)}\n{doubts(debug)}")
        save(options.json, title, options, found, text)
    if not done:
        say(f"no cell's name holds '{options.only}'")
        return 2
    if debug and options.publish:
        print(text)
        say("nothing is kept of a debug build; try: make demo, which installs a release")
        return 2
    publish(title, options, text)
    held = [s["holds"] for _, _, settled in done for s in settled]
    return 1 if False in held else 0


def tables(done: list[tuple[Cell, Rounds, list[dict[str, Any]]]]) -> str:
    """One table for the cells that count by GiB, one for those that count by I/O."""
    return "\n\n".join(table(part) for per in ("GiB", "I/O") if (part := [d for d in done if d[0].per == per]))


def is_debug(figure: Figure) -> bool:
    """It is of a build of Forebay that isn't optimised, as its record says, or the child that imported it."""
    ready, build = figure.proof.get("ready"), figure.proof.get("build")
    features = ready.get("forebay build", "").split() if isinstance(ready, dict) else []
    return "debug" in features or isinstance(build, dict) and "debug" in build.get("features", [])


def doubts(debug: set[str]) -> str:
    if not debug:
        return ""
    return f"\n{', '.join(sorted(debug))}: a debug build of Forebay, of which no rate and no CPU time says anything.\n"


def meanwhile(found: list[dict[str, Any]]) -> str:
    others = [n["others_cores_busy"] for f in found for n in f["noise"]]
    return f"Other work on the machine meanwhile: {middle(others, 2)} cores."


def save(path: Path | None, title: str, options: argparse.Namespace, found: Any, text: str) -> None:
    """Writes what was measured, with every single run: bench/publish.py --keep makes a result of it."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result(title, options, text) | {"cells": found}, indent=1, default=str) + "\n")


def result(title: str, options: argparse.Namespace, text: str) -> dict[str, Any]:
    return kept.document(title, command_line(options), machine_card(options.dir), text, options.seconds)


def command_line(options: argparse.Namespace) -> str:
    """What to type to measure the same again."""
    command = f"python bench/{Path(sys.argv[0]).name} --dir DIR --rounds {options.rounds}"
    if getattr(options, "delay_in", "link") != "link":
        command += f" --delay-in {options.delay_in}"
    if getattr(options, "threads", None):
        command += f" --threads {options.threads}"
    if getattr(options, "gpu", None) is True:
        command += " --gpu"
    if getattr(options, "before", None):
        command += " --before PROGRAM"
    if getattr(options, "trace", None):
        command += " --trace FILE"
    if getattr(options, "only", None):
        command += f" --only {shlex.quote(options.only)}"
    return command + getattr(options, "more", "")


def section(title: str, options: argparse.Namespace, text: str) -> str:
    card = machine_card(options.dir)
    about = f"{card['cpu']}, {card['cores']} cores, {card['memory_gib']} GiB, Linux {card['kernel']}"
    about += f", {card['gpu']}" if card["gpu"] else ""
    run = f", {options.seconds:g} s a run" if options.seconds else ""
    return f"## {title}\n\n`{command_line(options)}`{run}. {about}, {card['filesystem']}, {card['date']}.\n\n{text}"


def publish(title: str, options: argparse.Namespace, text: str) -> None:
    """Prints the section, and keeps its figures if asked."""
    print(text)
    if options.publish:
        from publish import remake

        say(f"kept as {kept.keep(result(title, options, text)).name}")
        remake()


def machine_card(folder: Path) -> dict[str, Any]:
    """What the figures were measured on. No host name: it says nothing, and the results are published."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / (1 << 20)) if memory else None,
        "kernel": platform.release(),
        "gpu": gpu_name(),
        "filesystem": filesystem(folder),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def gpu_name() -> str | None:
    """`NVIDIA H200, driver 580.159.04`; with `2 ×` before it where there are two."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    reported = subprocess.run(command, capture_output=True, text=True, timeout=60)
    names = reported.stdout.strip().splitlines()
    if reported.returncode or not names:
        return None
    card = names[0].replace(", ", ", driver ", 1)
    return card if len(names) == 1 else f"{len(names)} × {card}"


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
