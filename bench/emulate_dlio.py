"""Emulated accelerators beside DLIO and beside plain reads with the same checksums, on the same files in memory.

For each workload: the greatest number of H100s that passes, CPU per GiB, AU at equal numbers, memory, the time to the
first step; then what making the data costs. DLIO runs with our constants of the workload, an MPI rank per accelerator.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import dlio
from emulate_peers import (
    CASES,
    Case,
    Data,
    Try,
    data_set,
    emulated,
    floor,
    generated,
    ours,
    passes,
    searched,
    trained,
)
from peers import available, run
from side_by_side import (
    GIB,
    Bound,
    Cell,
    Unavailable,
    arguments,
    existing_folder,
    interleave,
    judge,
    meanwhile,
    middle,
    publish,
    save,
    say,
    section,
    table,
    verdict,
)

PROMISES = ("MSR-17",)

TITLE = "Emulated accelerators"
VERSIONS = ("v1.0", "v2.0")
CHECKED, PLAIN, PARSED, READ = "plain reads + checksums", "plain reads", "forebay, parse", "forebay, bytes"
MIB = 1 << 20
FIRST_STEP_S = 1.0
AU_POINTS = 0.5


@dataclass
class Study:
    """What is found, saved after each part so that an interrupted run keeps what it measured."""

    options: argparse.Namespace
    found: list[dict[str, Any]]
    texts: dict[str, list[str]]
    verdicts: list[str]
    broken: bool = False
    # case → rows of the table of CPU, from the runs that looked for DLIO's greatest number
    peers: dict[str, list[str]] = field(default_factory=dict)

    def cheapest(self, case: str, name: str, tries: list[Try], accelerators: int) -> None:
        """DLIO's CPU at the greatest number that passed (at one where none did): its cheapest, start-up shared."""
        mine = [t for t in tries if t.accelerators == accelerators]
        cells = [case, f"{name}, {accelerators} H100", middle([t.gib_s for t in mine], 2)]
        cells += [middle([t.cpu_ms_per_gib for t in mine], 1), "–", ""]
        self.peers.setdefault(case, []).append(f"| {' | '.join(cells)} |")

    def rows(self, part: str, *lines: str) -> None:
        self.texts.setdefault(part, []).extend(lines)

    def must(self, what: str, value: float | None, holds: bool, unit: str = "") -> None:
        """One thing that has to hold; where it wasn't measured, that is said."""
        if value is None:
            self.verdicts.append(f"- {what}: not measured")
            return
        self.broken |= not holds
        self.verdicts.append(f"- {what}: {value:.3g}{unit}, {'holds' if holds else '**does not hold**'}")

    def text(self) -> str:
        parts = ["\n".join([HEADS[part], *lines]) for part, lines in self.texts.items()]
        noise = [f for f in self.found if "noise" in f]
        tail = [meanwhile(noise)] if noise else []
        return section(TITLE, self.options, "\n\n".join([*parts, "\n".join(self.verdicts), *tail])) + "\n"

    def keep(self, **reported: Any) -> None:
        self.found.append(reported)
        save(self.options.json, TITLE, self.options, self.found, self.text())


HEADS = {
    "greatest": "How many H100s pass, their data in memory:\n\n"
    "| workload | plain reads + checksums, both cores, GiB/s | that is H100s "
    "| forebay, v1.0 | forebay, v2.0 | DLIO v1.0 | DLIO v2.0 |\n"
    "|---|---|---|---|---|---|---|",
    "costs": "CPU for the same bytes; Forebay and DLIO at the rate of the given number of accelerators, "
    "plain reads at full speed:\n",
    "agreement": "AU where neither is the limit, %:\n\n"
    "| workload | accelerators | rules | forebay | DLIO | difference, points |\n|---|---|---|---|---|---|",
    "small": "Memory of all processes per accelerator, and time from the command to the first step:\n\n"
    "| workload | tool | accelerators | MiB per accelerator | seconds to the first step |\n|---|---|---|---|---|",
    "datagen": "Creating 3D U-Net's files, excluding start-up:\n\n"
    "| where | tool | GiB/s | GiB per CPU second |\n|---|---|---|---|",
}


# How many pass ------------------------------------------------------------------------------------------


def greatest(study: Study, data: Data) -> None:
    """Ours by its own search, DLIO's by doubling and bisection, plain reads before and after."""
    case, options = data.case, study.options
    cores = len(os.sched_getaffinity(0))
    base = floor(CHECKED, data, case.checksum, cores, options.scan_seconds)
    rates = [base.measure(options.seconds).gib_s]
    found: dict[str, int | None] = {}
    curves: dict[str, Any] = {}
    for rules in VERSIONS:
        record = searched(data, rules)
        curves[f"forebay {rules}"] = {"curve": record["training"]["curve"], **record["search"]}
        found[f"forebay {rules}"] = record["search"]["accelerators"]
        say(f"{case.name}: forebay, rules {rules}: {found[f'forebay {rules}']} pass, {record['search']['limit']['text']}")
        rates.append(base.measure(options.seconds).gib_s)
    for version in VERSIONS:
        name = f"DLIO {version}"
        tries: list[Try] = []
        try:
            found[name] = dlio.greatest(passes(dlio.installed(version), data, tries))
            study.cheapest(case.name, name, tries, found[name] or 1)
        except Unavailable as reason:
            say(f"left out: {reason}")
            found[name] = None
        curves[name] = [vars(t) for t in tries]
        rates.append(base.measure(options.seconds).gib_s)
    fed = data.accelerators(statistics.median(rates))
    shown = ["–" if n is None else str(n) for n in found.values()]
    study.rows("greatest", f"| {' | '.join([case.name, middle(rates, 2), str(fed), *shown])} |")
    for rules in VERSIONS:
        mine = found[f"forebay {rules}"] or 0
        study.must(
            f"{case.name}, rules {rules}: H100s that pass, at least {case.least}", mine, mine >= case.least
        )
        share = mine / fed if fed else 0.0
        study.must(
            f"{case.name}, rules {rules}: of what plain reads + checksums feed, at least 0.8",
            share,
            share >= 0.8,
        )
    study.keep(part="greatest", case=case.name, floor_gib_s=rates, fed=fed, greatest=found, curves=curves)


# CPU ----------------------------------------------------------------------------------------------------


def costs(study: Study, data: Data) -> None:
    """CPU seconds per GiB, of the measured time, in interleaved rounds."""
    case, options = data.case, study.options
    few = max(1, case.least // 4)
    contenders = available(
        lambda: floor(CHECKED, data, case.checksum, 1, options.scan_seconds),
        lambda: floor(PLAIN, data, "none", 1, options.scan_seconds),
        lambda: ours(PARSED, data, few, "parse"),
        lambda: ours(READ, data, few, "bytes"),
    )
    bounds = [
        Bound("cost", (CHECKED,), at_most=1.3, of=PARSED),
        Bound("cost", (CHECKED,), at_most=1.1, of=READ),
    ]
    chosen = {name: {"shown": f"{few} H100"} for name in (PARSED, READ)}
    cell = Cell(case.name, contenders, bounds, ours=PARSED, chosen=chosen)
    figures, noise = interleave(cell, options.rounds, options.seconds, say)
    settled = [judge(bound, cell, figures) for bound in bounds]
    drawn = [line for line in table([(cell, figures, [])]).splitlines() if line.startswith("|")]
    rows = drawn if "costs" not in study.texts else drawn[2:]
    study.rows("costs", *rows, *study.peers.get(case.name, []))
    study.verdicts += [f"- {verdict(cell, s)}" for s in settled]
    study.broken |= any(s["holds"] is False for s in settled)
    runs = {n: [vars(f) for f in fs] for n, fs in figures.items()}
    study.keep(part="costs", case=case.name, runs=runs, bounds=settled, left_out=cell.lost, noise=noise)


# case → accelerator, how many, and how many times as long its steps are. DLIO's own work in a step, some milliseconds,
# must be little of it.
AGREE = {"resnet50": ("a100", 1, 1), "cosmoflow": ("h100", 1, 200), "unet3d": ("a100", 1, 3)}

# AU -----------------------------------------------------------------------------------------------------


def slower(case: Case, folder: Path, times: int) -> Path:
    """The workload with so much longer steps, in a file of its own."""
    text = resources.files("forebay").joinpath(f"data/workloads/{case.name}.toml").read_text()
    path = folder / f"{case.name}-{times}x.toml"
    lines = [
        f"compute_s = {float(line.split('=')[1]) * times!r}" if line.startswith("compute_s") else line
        for line in text.splitlines()
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def agreement(study: Study, data: Data) -> None:
    """AU of ours and of DLIO's, in turn, at a number that both can keep busy."""
    from forebay.emulate.workloads import load

    case = data.case
    accelerator, number, times = AGREE[case.name]
    source = str(slower(case, data.folder, times)) if times > 1 else case.name
    fewer = replace(case, steps=max(case.steps // times, 20))
    here = replace(data, case=fewer)
    for version in VERSIONS:
        workload, _ = load(source, accelerator, version)
        try:
            peers = dlio.installed(version)
            reported = []
            for _ in range(study.options.rounds):
                mine = emulated(here, number, version, accelerator=accelerator, workload=source)["training"][
                    "au_pct"
                ]
                played = trained(peers, here, number, workload=workload)
                reported.append((mine, played.au_pct))
                say(f"{case.name}, rules {version}: AU {mine:.2f} % of ours, {played.au_pct:.2f} % of DLIO's")
        except Unavailable as reason:
            say(f"left out: {reason}")
            continue
        apart = statistics.median(a for a, _ in reported) - statistics.median(b for _, b in reported)
        name = f"{case.name}, steps {times} × as long" if times > 1 else case.name
        cells = [
            name,
            f"{number} {accelerator.upper()}",
            version,
            middle([a for a, _ in reported], 2),
            middle([b for _, b in reported], 2),
        ]
        study.rows("agreement", f"| {' | '.join([*cells, f'{apart:+.2f}'])} |")
        what = f"{name}, rules {version}: AU within {AU_POINTS} points of DLIO's"
        study.must(what, apart, abs(apart) <= AU_POINTS, " points")
        study.keep(part="agreement", case=case.name, version=version, au_pct=reported)


# Memory, first step --------------------------------------------------------------------------------------


def small(study: Study, data: Data) -> None:
    """Memory and start-up: ours with as many accelerators as must pass, DLIO with as many as are quickly started."""
    case = data.case
    record = emulated(data, case.least, "v1.0")
    training, process = record["training"], record["process"]
    held = training["memory_bytes"]["rss"]
    each = held / case.least / MIB
    # The command's own start-up and end are all that the record doesn't know of.
    outside = process["wall_s"] - record["result"]["seconds"]
    first = training["start_to_first_step_s"] + max(0.0, outside)
    study.rows("small", f"| {case.name} | forebay | {case.least} | {each:.1f} | {first:.2f} |")
    for version in VERSIONS:
        try:
            played = trained(dlio.installed(version), data, 2, memory=True)
        except Unavailable as reason:
            say(f"left out: {reason}")
            continue
        theirs = (played.memory_bytes or 0) / 2 / MIB
        study.rows(
            "small", f"| {case.name} | DLIO {version} | 2 | {theirs:.0f} | {played.first_step_s:.1f} |"
        )
        study.keep(
            part="small",
            case=case.name,
            dlio=version,
            memory_bytes=played.memory_bytes,
            first_step_s=played.first_step_s,
        )
    workload = data.workload
    limit = workload.prefetch * workload.batch * data.sample_bytes / MIB + 16
    study.must(
        f"{case.name}: memory per accelerator, at most prefetch × batch + 16 = {limit:.0f}",
        each,
        each <= limit,
        " MiB",
    )
    study.must(
        f"{case.name}: command to first step under {FIRST_STEP_S:g} s", first, first < FIRST_STEP_S, " s"
    )
    study.keep(
        part="small",
        case=case.name,
        memory_bytes=training["memory_bytes"],
        first_step_s=first,
        outside_s=outside,
    )


# Making data ---------------------------------------------------------------------------------------------


def datagen(study: Study) -> None:
    """3D U-Net's files: ours and DLIO's into memory, ours and fio's onto the disk."""
    from forebay.emulate.workloads import load

    options = study.options
    workload, _ = load("unet3d", "h100", "v1.0")
    rates: dict[tuple[str, str], list[tuple[float, float | None]]] = {}
    tools: list[tuple[str, str, Callable[[], tuple[float, float | None]]]] = [
        ("memory", "forebay", lambda: made_by_us(options.memory, 4)),
        ("disk", "forebay", lambda: made_by_us(options.dir, 7)),
        ("disk", "fio, 1 MiB, direct", lambda: written(options.dir)),
    ]
    tools += [
        ("memory", f"DLIO {v}", functools.partial(made_by_dlio, v, workload, options.memory))
        for v in VERSIONS
    ]
    for _ in range(options.rounds):
        for where, tool, make in tools:
            try:
                rates.setdefault((where, tool), []).append(make())
            except Unavailable as reason:
                say(f"left out: {reason}")
    for (where, tool), reported in rates.items():
        cells = [where, tool, middle([r for r, _ in reported], 2), middle([p for _, p in reported], 2)]
        study.rows("datagen", f"| {' | '.join(cells)} |")
    disk = ratio(rates, ("disk", "forebay"), ("disk", "fio, 1 MiB, direct"), 0)
    study.must("datagen: rate on the disk, at least 0.9 × fio's", disk, (disk or 0) >= 0.9)
    for version in VERSIONS:
        core = ratio(rates, ("memory", "forebay"), ("memory", f"DLIO {version}"), 1)
        study.must(f"datagen: per core, at least 5 × DLIO {version}'s", core, (core or 0) >= 5)
    study.keep(part="datagen", rates={" ".join(k): v for k, v in rates.items()})


def ratio(
    rates: dict[tuple[str, str], list[Any]], of: tuple[str, str], to: tuple[str, str], which: int
) -> float | None:
    """The median of the rounds' ratios."""
    pairs = zip(rates.get(of, []), rates.get(to, []), strict=False)
    found = [a[which] / b[which] for a, b in pairs]
    return statistics.median(found) if found else None


def made_by_us(folder: Path, files: int) -> tuple[float, float | None]:
    """GiB/s until all is on the disk, and GiB per CPU second; start-up left out, as it is of DLIO."""
    target = folder / "forebay-datagen"
    try:
        reported = generated("unet3d", target, files)
        gib = sum(f.stat().st_size for f in (target / "train").rglob("*") if f.is_file()) / GIB
        return gib / reported["seconds"], gib / reported["cpu_s"]
    finally:
        shutil.rmtree(target, ignore_errors=True)


def made_by_dlio(version: str, workload: Any, folder: Path) -> tuple[float, float | None]:
    """One process that is busy all the time, so that its seconds are CPU seconds; start-up left out."""
    target = folder / "dlio-datagen"
    try:
        reported = dlio.generate(dlio.installed(version), workload, target, 2)
        return reported.bytes / GIB / reported.seconds, reported.bytes / GIB / reported.seconds
    finally:
        shutil.rmtree(target, ignore_errors=True)


def written(folder: Path) -> tuple[float, float | None]:
    """fio's sequential write with an fsync at the end, of as much."""
    file = folder / "forebay-fio.dat"
    flags = f"--filename={file} --rw=write --bs=1m --iodepth=16 --direct=1 --ioengine=io_uring --size=1100m --end_fsync=1"
    program = shutil.which(os.environ.get("FIO", "fio"))
    if program is None:
        raise Unavailable("fio isn't installed; try: apt install fio (FIO names it where it isn't on PATH)")
    try:
        ran = run([program, "--name=peer", "--output-format=json", *flags.split()], 300)
        write = json.loads(ran.stdout[ran.stdout.index("{") :])["jobs"][0]["write"]
        return write["bw_bytes"] / GIB, None
    finally:
        file.unlink(missing_ok=True)


# The whole ------------------------------------------------------------------------------------------------

PARTS = {"greatest": greatest, "costs": costs, "agreement": agreement, "small": small}


def chosen(only: str | None) -> Iterator[tuple[Case, list[str]]]:
    """Cases and the parts of each: all, or those whose `case, part` holds the word."""
    for case in CASES:
        parts = [p for p in PARTS if not only or only in f"{case.name}, {p}"]
        if parts:
            yield case, parts


def main() -> int:
    from forebay.emulate.workloads import load

    parser = arguments(__doc__ or "", seconds=3, scan=True)
    parser.add_argument("--memory", type=existing_folder, default=Path("/dev/shm"), help="a folder in memory (/dev/shm)")
    options = parser.parse_args()
    study = Study(options, [], {}, [])
    begin = time.monotonic()
    for case, parts in chosen(options.only):
        workload, _ = load(case.name, "h100", "v1.0")
        with data_set(case, options.memory, workload) as data:
            for part in parts:
                say(f"{case.name}: {part}")
                PARTS[part](study, data)
    if not options.only or options.only in "datagen":
        datagen(study)
    if not study.texts:
        say(f"no part's name holds '{options.only}'")
        return 2
    say(f"took {(time.monotonic() - begin) / 60:.0f} min")
    publish(TITLE, options, study.text())
    return 1 if study.broken else 0


if __name__ == "__main__":
    sys.exit(main())
