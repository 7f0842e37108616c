"""Whether plans can be acted on: 200 random systems whose own runs are slow, and 200 random purchases handed back.

It needs no storage. "Own runs" draws records of a disk slower than its data sheet; what is planned by them must pass in
`forebay emulate run --supply` at the measured rate, in virtual time: a hundred steps tell where they leave no doubt, else all.
"Handed back" draws targets, also with an own catalogue, own runs, parity and capacity; each choice of `plan recommend`, by its
command and by its fields, must meet the target in `plan run`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from side_by_side import arguments, publish, save, say

PROMISES = ("PLN-19", "PLN-20")

DRAWS = 200
SIZES = [(128, 32), (256, 32), (512, 24), (1024, 16), (1024, 32), (4096, 24), (1024, 64)]
TRAININGS = [
    ("unet3d", "h100"), ("resnet50", "h100"), ("cosmoflow", "h100"), ("unet3d", "a100"), ("unet3d", "b200"),
    ("retinanet", "b200"), ("flux", "mi355"), ("resnet50", "a100"),
]  # fmt: skip
AMPLE = "model:gen5-ideal?drives=1000&read_mb_s=1000000"
# Steps that are emulated at first, and points of AU within which they leave it open: filling buffers counts for more in them.
STEPS, NEAR_PCT = 100, 1.5
CATALOGUE, RUNS = "decide-drives.toml", "decide-runs.jsonl"
SHEETS = """
[[drive]]
name = "Cheap one"
kind = "nvme-tlc"
seq_read_mbps = 7000
price = 500
capacity_tb = 4
[[drive]]
name = "Dear one"
kind = "nvme-tlc"
seq_read_mbps = 14000
price = 2500
capacity_tb = 8
"""
BOUNDS = {
    "own runs never feed more accelerators than their rate does": DRAWS,
    "a recommendation handed back meets its target": DRAWS,
    "one plan takes at most 50 ms": 1,
}


def record(kib: int, workers: int, gib_s: float) -> str:
    job = {"io_bytes": kib << 10, "workers": workers, "depth": 1, "op": "read"}
    result = {"throughput_gib_s": gib_s, "seconds": 10.0}
    return json.dumps({"job": job, "result": result, "environment": {"host": "one"}, "path": {"ran": "gds"}})


def own_runs(pool: Executor, draw: random.Random) -> tuple[int, float, list[str]]:
    """How many of the draws hold, the slowest plan's seconds, and those that don't hold."""
    from forebay.plan import catalogue

    names = [d.name for d in catalogue.drives().values()]
    drawn = list(pool.map(planned, [draw_runs(draw, names) for _ in range(DRAWS)], chunksize=5))
    # As many at once as there are cores, the longest first.
    longest = sorted(range(DRAWS), key=lambda i: -drawn[i][3][2])
    passed = dict(zip(longest, pool.map(emulated, [drawn[i][3] for i in longest]), strict=True))
    failed = [said for i, (_, said, fed, _) in enumerate(drawn) if not (fed and passed[i])]
    return DRAWS - len(failed), max(taken for taken, *_ in drawn), failed


Drawn = tuple[dict[str, Any], str]


def draw_runs(draw: random.Random, names: Sequence[str]) -> Drawn:
    """A system, and the records of such a drive."""
    from forebay.plan import catalogue

    sheet, drives = catalogue.drive(draw.choice(names)), draw.choice([1, 1, 1, 2, 4])
    rate, noise = sheet.read_gibps * draw.uniform(0.05, 0.9), draw.choice([0.0, 0.01, 0.02])
    lines = [record(k, w, rate * (1 + draw.gauss(0, noise))) for k, w in draw.sample(SIZES, draw.randint(2, 6))]
    workload, accelerator = draw.choice(TRAININGS)
    asked = {"drive": sheet.name, "workload": workload, "accelerator": accelerator, "drives": drives}
    return asked, "\n".join(lines)


Emulation = tuple[str, str, int, float]


def planned(drawn: Drawn) -> tuple[float, str, bool, Emulation]:
    """Seconds of a plan by the runs, what it says, whether their rate feeds as many, and what to emulate."""
    from forebay.plan import answer, calibrate, catalogue, saved, system
    from forebay.plan.planner import published

    settings, lines = drawn
    sheet, drives = catalogue.drive(settings["drive"]), settings["drives"]
    runs = calibrate.read(lines, "mine", sheet.name, None)
    asked = system.make(settings, [])
    # The tables are read and calibrated by before: their time is that of bench/plan.py.
    answer.answer(published(), asked)
    taken, most = [], 0
    for planner in [saved.planner(published(), runs, sheet, []) for _ in range(2)]:
        start = time.process_time()
        most = int(answer.answer(planner, asked)["accelerators_max"])
        taken.append(time.process_time() - start)
    gib_s = drives * sum(run.measured.gibps for run in runs) / len(runs)
    feeds = int(gib_s * 1024 / (asked.ask.mibps * asked.ask.least_pct / 100) + 1e-9)
    what = f"{asked.workload} on {asked.accelerator}"
    said = f"{drives} × {sheet.name} at {gib_s:.2f} GiB/s, {what}: {most} planned, {feeds} fed"
    # Other work on the machine can only add to it.
    return min(taken), said, most <= feeds, (asked.workload, asked.accelerator, most, gib_s)


def emulated(asked: Emulation) -> bool:
    """Whether that many accelerators pass where a drive that never limits is held to the rate."""
    from forebay.emulate import verb

    workload, accelerator, number, gib_s = asked
    if not number:
        return True
    words = ["run", "--workload", workload, "--accelerator", accelerator, "--accelerators", number, "--data", AMPLE]
    words += ["--supply", gib_s, "--epochs", 1, "-q"]
    found, code = typed(verb.command, *words, "--steps", STEPS)
    if abs(found["training"]["au_pct"] - found["training"]["au_pct_min"]) < NEAR_PCT:
        _, code = typed(verb.command, *words)
    return code == 0


def handed_back(pool: Executor, draw: random.Random) -> tuple[int, int, float, list[str]]:
    """Targets that are met after being handed back, those that nothing meets, seconds of the slowest search, and the failures."""
    asked = []
    for _ in range(DRAWS):
        place: list[Any] = ["--location", "remote"] if draw.random() < 0.4 else []
        place += ["--path", "bounce"] if draw.random() < 0.3 else []
        place += ["--threads", draw.choice([32, 64, 104, 256])] if draw.random() < 0.3 else []
        place += ["--io-size", draw.choice(["64k", "128k", "4m"])] if draw.random() < 0.3 else []
        basis = draw.choice([[], [], [], ["--catalogue", CATALOGUE], ["--drive", "D7-PS1010", "--runs", RUNS]])
        needs: list[Any] = ["--parity", 1] if draw.random() < 0.2 else []
        needs += ["--by", "price", "--host-price", 9000, "--capacity", 50] if CATALOGUE in basis else []
        asked.append((*goal(draw, place), basis, needs))
    found = list(pool.map(target_met, asked))
    missed = [text for *_, texts in found for text in texts]
    return sum(not texts for *_, texts in found), sum(n for n, *_ in found), max(s for _, s, _ in found), missed


def target_met(asked_for: tuple[list[Any], list[Any], str, list[Any], list[Any]]) -> tuple[int, float, list[str]]:
    """Whether nothing meets a target (1), the seconds of the search, and the choices that, handed back, don't."""
    asked, target, key, basis, needs = asked_for
    start = time.process_time()
    found, _ = plan("recommend", *basis, *asked, *target, *needs)
    search, failed = time.process_time() - start, []
    for choice in found["choices"]:
        fields = {"--workers": choice["requests"], **{f"--{k}": choice[k] for k in ("drive", "drives", "hosts")}}
        fields |= {"--queues": choice["queues"]} if choice["queues"] else {}
        source = basis[-2:] if basis else []
        back = ["run", *source, *asked, *(part for pair in fields.items() for part in pair)]
        command = shlex.split(choice["command"])[2:]
        # The same flags, as a rule: asked twice they say the same.
        for words in [command, back][: 1 if flags(command) == flags(back) else 2]:
            got = plan(*words)[0][key]
            if not (got <= target[1] if key.startswith("training") else got >= target[1]):
                failed.append(f"{target} of {asked}: {choice['command']} gives {got:.4g}")
    return int(not found["choices"]), search, failed


def flags(words: Sequence[Any]) -> dict[str, str]:
    """Flags and their values; a path's two names are one."""
    found = dict(zip(map(str, words[1::2]), map(str, words[2::2]), strict=True))
    return {flag: "cpu" if value == "bounce" else value for flag, value in found.items()}


def goal(draw: random.Random, place: list[Any]) -> tuple[list[Any], list[Any], str]:
    """Flags of a system, its target, and the figure that must meet it."""
    kind = draw.choice(["training", "job", "rate", "minutes"])
    if kind == "training":
        workload, accelerator = draw.choice(TRAININGS)
        asked = [*place, "--workload", workload, "--accelerator", accelerator]
        return asked, ["--accelerators", draw.randint(1, 64)], "accelerators_max_p10"
    if kind == "job":
        each = ["--sample-bytes", draw.choice([1000, 150000, 600000]), "--samples-per-s", draw.choice([500, 2500])]
        return [*place, "--workload", "job", *each], ["--accelerators", draw.randint(1, 128)], "accelerators_max_p10"
    if kind == "rate":
        return place, ["--gib-s", round(draw.uniform(1, 200), 2)], "throughput_gib_s_p10"
    return [*place, "--workload", "dlrm"], ["--minutes", round(draw.uniform(4.4, 15), 2)], "training_time_min_p90"


def plan(*arguments: Any) -> tuple[dict[str, Any], int]:
    from forebay.plan import verb

    return typed(verb.command, *arguments)


def typed(command: Any, *arguments: Any) -> tuple[dict[str, Any], int]:
    """The document of a command that is run in this process, and its exit code."""
    from click.testing import CliRunner

    done = CliRunner().invoke(command, [*(str(a) for a in arguments), "--json"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout), done.return_value


def main() -> int:
    parser = arguments(__doc__ or "", None, only=False)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    os.chdir(options.dir)
    Path(CATALOGUE).write_text(SHEETS, encoding="utf-8")
    Path(RUNS).write_text("\n".join(record(kib, workers, 3.5) for kib, workers in SIZES), encoding="utf-8")
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        held, slowest, failed = own_runs(pool, draw)
        say(f"own runs: {held} of {DRAWS} hold, the slowest plan {1e3 * slowest:.0f} ms")
        met, none, search, missed = handed_back(pool, draw)
    say(f"handed back: {met} of {DRAWS} hold, {none} targets that nothing meets, the slowest search {search:.1f} s")
    for text in [*failed, *missed]:
        say(text)
    holds = dict(zip(BOUNDS, (held == DRAWS, met == DRAWS, slowest < 0.05), strict=True))
    text = "| what | holds | of |\n|---|---|---|\n"
    text += f"| own runs of a slow disk feed no more accelerators than their rate does | {held} | {DRAWS} |\n"
    text += f"| recommendations, handed back to `plan run`, meet their target ({none} that nothing meets) | {met} | {DRAWS} |\n\n"
    text += "".join(f"- {name}: {'holds' if kept else '**does not hold**'}\n" for name, kept in holds.items())
    measured = {"own_runs": held, "handed_back": met, "unmet": none, "slowest_plan_s": slowest, "slowest_search_s": search}
    save(options.json, "Plans to act on", options, [{**measured, "failed": [*failed, *missed], "bounds": holds}], text)
    publish("Plans to act on", options, text)
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
