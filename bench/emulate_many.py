"""A thousand emulated accelerators on one host, and utilisation where the supply is known.

ResNet-50's images at a hundredth of their size are read by a thousand H100s at once, more of a barrier than any other
work. Then the same workload, whole, is read from a modelled drive over its files in memory, whose rate is a known share
of what the accelerators ask for: utilisation has to be that share.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from emulate_peers import TOO_SLOW
from peers import installed, run
from side_by_side import GIB, arguments, existing_folder, middle, publish, save, say, section

PROMISES = ("MSR-20",)

TITLE = "Many emulated accelerators"
MANY, SMALLER = 1000, 100
BARRIER_PCT, AU_POINTS = 1.0, 0.5
# How many accelerators are fed, and shares of what they ask for, %.
FED, SHARES = 8, (30, 50, 80)
MODEL = "model:gen5-ideal"


def smaller(folder: Path, times: int) -> tuple[str, float]:
    """ResNet-50 with records so much smaller, in a file of its own; bytes of a record."""
    text = resources.files("forebay").joinpath("data/workloads/resnet50.toml").read_text()
    lines, bytes_each = [], 0.0
    for line in text.splitlines():
        key, _, value = line.partition(" = ")
        if key == "record_bytes":
            bytes_each = float(value) / times
            line = f"{key} = {bytes_each!r}"
        elif key == "record_bytes_resize":
            line = f"{key} = {int(value) // times}"
        lines.append(line)
    path = folder / f"resnet50-{times}.toml"
    path.write_text("\n".join(lines) + "\n")
    return str(path), bytes_each


@contextmanager
def files(memory: Path, workload: str, made: int, names: int) -> Iterator[tuple[Path, float]]:
    """A data set of so many files, each under several names; its folder, and bytes of a file."""
    first, linked = memory / "forebay-many-made", memory / "forebay-many"
    try:
        command = [installed(), "emulate", "datagen", "--workload", workload, "--accelerator", "h100"]
        run([*command, "--files", str(made), "--data", str(first), "--quiet", "--json"], 600)
        here = sorted((first / "train").rglob("img_*"))
        for part in ("train", "valid"):
            (linked / part).mkdir(parents=True)
        for n in range(names):
            os.link(here[n % made], linked / "train" / f"img_{n:05d}_of_{names}.tfrecord")
        yield linked, sum(f.stat().st_size for f in here) / made
    finally:
        for folder in (first, linked):
            shutil.rmtree(folder, ignore_errors=True)


def played(workload: str, data: str, accelerators: int, steps: int) -> dict[str, Any]:
    """One `forebay emulate run`: its record's training, and what the whole run took."""
    command = [installed(), "emulate", "run", "--workload", workload, "--accelerator", "h100", "--data", data]
    command += ["--accelerators", str(accelerators), "--steps", str(steps), "--epochs", "1"]
    ran = run([*command, "--rules", "v1.0", "--level", "parse", "--quiet", "--json"], 600, passing=(0, TOO_SLOW))
    record = json.loads(ran.stdout)
    training: dict[str, Any] = record["training"]
    return training | {"seconds": record["result"]["seconds"], "cpu_s": ran.cpu_s}


def many(options: argparse.Namespace, workload: str) -> tuple[list[str], list[str], Any, bool]:
    """A thousand at once: AU, and what of it the barrier took."""
    steps, batch, per_file = 40, 400, 1251
    names = MANY * batch * steps // per_file + 1
    turns = []
    with files(options.memory, workload, 320, names) as (folder, _):
        for number in range(options.rounds):
            turns.append(played(workload, str(folder), MANY, steps))
            say(f"round {number + 1}/{options.rounds}: {MANY} accelerators: AU {turns[-1]['au_pct']:.2f} %")
    barrier = [100 * t["waited"]["barrier_s"] / (MANY * t["seconds"]) for t in turns]
    rates = [t["read_bytes"] / GIB / t["seconds"] for t in turns]
    cells = [
        middle([t["au_pct"] for t in turns], 2),
        middle(barrier, 3),
        middle([t["samples"] / t["seconds"] / 1e6 for t in turns], 2),
        middle(rates, 2),
        middle([t["cpu_s"] / t["seconds"] for t in turns], 2),
        middle([t["memory_bytes"]["rss"] / (1 << 20) for t in turns], 0),
    ]
    rows = [
        "| accelerators | AU, % | waiting at the barrier, % of their time | million samples/s | GiB/s | cores busy | MiB held |",
        "|---|" + "---|" * 6,
        f"| {MANY:,} | {' | '.join(cells)} |",
    ]
    worst = max(barrier)
    holds = worst < BARRIER_PCT and all(t["steps"] == steps for t in turns)
    what = f"the barrier takes under {BARRIER_PCT:g} % of their time"
    return rows, [f"- {MANY:,} accelerators: {what}: {worst:.3f} at most, {said(holds)}"], turns, holds


def fed(options: argparse.Namespace) -> tuple[list[str], list[str], Any, bool]:
    """Utilisation where the supply is a known share of the demand."""
    from forebay.emulate.workloads import load

    workload, _ = load("resnet50", "h100", "v1.0")
    rows = ["| supply, % of demand | MB/s | AU, % | difference, points |", "|---|---|---|---|"]
    verdicts, found, all_hold = [], [], True
    with files(options.memory, "resnet50", 4, 512) as (folder, file_bytes):
        asked = FED * workload.samples_per_s * file_bytes / workload.samples_per_file
        for share in SHARES:
            rate = asked * share / 100
            source = f"{MODEL}?over={folder}&read_mb_s={rate / 1e6:.3f}"
            reported = []
            for _ in range(options.rounds):
                reported.append(played("resnet50", source, FED, 40)["au_pct"])
                say(f"supply {share} %: AU {reported[-1]:.2f} %")
            apart = max((au - share for au in reported), key=abs)
            holds = abs(apart) <= AU_POINTS
            all_hold &= holds
            rows.append(f"| {share} | {rate / 1e6:.1f} | {middle(reported, 2)} | {apart:+.2f} |")
            verdicts.append(
                f"- supply {share} %: AU within {AU_POINTS} points of the arithmetic: {apart:+.2f}, {said(holds)}"
            )
            found.append({"share": share, "read_mb_s": rate / 1e6, "au_pct": reported})
    return rows, verdicts, found, all_hold


def said(holds: bool) -> str:
    return "holds" if holds else "**does not hold**"


def main() -> int:
    parser = arguments(__doc__ or "", seconds=9, only=False)
    parser.add_argument("--memory", type=existing_folder, default=Path("/dev/shm"), help="a folder in memory (/dev/shm)")
    options = parser.parse_args()
    workload, record = smaller(options.memory, SMALLER)
    try:
        one, verdicts, turns, holds = many(options, workload)
        two, more, found, also = fed(options)
    finally:
        Path(workload).unlink()
    text = "\n".join(
        [
            f"ResNet-50 with records of {record:,.0f} bytes, rules v1.0, level parse, files in memory:",
            "",
            *one,
            "",
            f"{FED} H100s of ResNet-50 itself, read from `{MODEL}?over=FOLDER&read_mb_s=…`:",
            "",
            *two,
            "",
            *verdicts,
            *more,
            "",
        ]
    )
    shown = section(TITLE, options, text)
    save(options.json, TITLE, options, [{"many": turns, "fed": found}], shown)
    publish(TITLE, options, shown)
    return 0 if holds and also else 1


if __name__ == "__main__":
    sys.exit(main())
