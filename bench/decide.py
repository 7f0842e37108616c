"""Whether plans can be acted on: 200 random systems whose own runs are slow, and 200 random purchases handed back.

It needs no storage. "Own runs" draws records of a disk slower than its data sheet; what is planned by them must pass in
`forebay emulate run --supply` at the measured rate, in virtual time. "Handed back" draws targets; each choice of `plan
recommend`, by its command and by its fields, must meet the target in `plan run`.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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
BOUNDS = {
    "own runs never feed more accelerators than their rate does": DRAWS,
    "a recommendation handed back meets its target": DRAWS,
    "one plan takes at most 50 ms": 1,
}


def record(kib: int, workers: int, gib_s: float) -> str:
    job = {"io_bytes": kib << 10, "workers": workers, "depth": 1, "op": "read"}
    result = {"throughput_gib_s": gib_s, "seconds": 10.0}
    return json.dumps({"job": job, "result": result, "environment": {"host": "one"}, "path": {"ran": "gds"}})


def own_runs(draw: random.Random) -> tuple[int, float, list[str]]:
    """How many of the draws hold, the slowest plan's seconds, and those that don't hold."""
    from forebay.plan import answer, calibrate, catalogue, saved, system
    from forebay.plan.planner import published

    names, asked_of, slowest = [d.name for d in catalogue.drives().values()], [], 0.0
    answer.answer(published(), system.make({"drive": names[0]}, []))
    for _ in range(DRAWS):
        sheet, drives = catalogue.drive(draw.choice(names)), draw.choice([1, 1, 1, 2, 4])
        rate, noise = sheet.read_gibps * draw.uniform(0.05, 0.9), draw.choice([0.0, 0.01, 0.02])
        lines = [record(k, w, rate * (1 + draw.gauss(0, noise))) for k, w in draw.sample(SIZES, draw.randint(2, 6))]
        runs = calibrate.read("\n".join(lines), "mine", sheet.name, None)
        planners = [saved.planner(published(), runs, sheet, []) for _ in range(2)]
        workload, accelerator = draw.choice(TRAININGS)
        asked = system.make({"drive": sheet.name, "workload": workload, "accelerator": accelerator, "drives": drives}, [])
        taken = []
        for planner in planners:
            start = time.process_time()
            most = int(answer.answer(planner, asked)["accelerators_max"])
            taken.append(time.process_time() - start)
        # Other work on the machine can only add to it.
        slowest = max(slowest, min(taken))
        gib_s = drives * sum(run.measured.gibps for run in runs) / len(runs)
        feeds = int(gib_s * 1024 / (asked.ask.mibps * asked.ask.least_pct / 100) + 1e-9)
        said = f"{drives} × {sheet.name} at {gib_s:.2f} GiB/s, {workload} on {accelerator}: {most} planned, {feeds} fed"
        asked_of.append((said, most <= feeds, (workload, accelerator, most, gib_s)))
    # As many at once as there are cores: an emulation in virtual time takes seconds of one.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(lambda one: not one[2][2] or emulated(*one[2]), asked_of))
    failed = [said for (said, fed, _), passes in zip(asked_of, passed, strict=True) if not (fed and passes)]
    return DRAWS - len(failed), slowest, failed


def emulated(workload: str, accelerator: str, number: int, gib_s: float) -> bool:
    """Whether that many accelerators pass where a drive that never limits is held to the rate."""
    asked = ["--workload", workload, "--accelerator", accelerator, "--accelerators", number, "--data", AMPLE, "--supply", gib_s]
    words = ["forebay", "emulate", "run", *(str(a) for a in asked), "--epochs", "1", "-q"]
    done = subprocess.run(words, capture_output=True, check=False)
    return done.returncode == 0


def handed_back(draw: random.Random) -> tuple[int, int, float, list[str]]:
    """Targets that are met after being handed back, those that nothing meets, seconds of the slowest search, and the failures."""
    failed, none, slowest = [], 0, 0.0
    for _ in range(DRAWS):
        place: list[Any] = ["--location", "remote"] if draw.random() < 0.4 else []
        place += ["--path", "bounce"] if draw.random() < 0.3 else []
        place += ["--threads", draw.choice([32, 64, 104, 256])] if draw.random() < 0.3 else []
        place += ["--io-size", draw.choice(["64k", "128k", "4m"])] if draw.random() < 0.3 else []
        asked, target, key = goal(draw, place)
        start = time.process_time()
        found, _ = plan("recommend", *asked, *target)
        slowest = max(slowest, time.process_time() - start)
        none += not found["choices"]
        for choice in found["choices"]:
            fields = {"--workers": choice["requests"], **{f"--{k}": choice[k] for k in ("drive", "drives", "hosts")}}
            fields |= {"--queues": choice["queues"]} if choice["queues"] else {}
            back = ["run", *asked, *(part for pair in fields.items() for part in pair)]
            for typed in (shlex.split(choice["command"])[2:], back):
                got = plan(*typed)[0][key]
                if not (got <= target[1] if key.startswith("training") else got >= target[1]):
                    failed.append(f"{target} of {asked}: {choice['command']} gives {got:.4g}")
    return DRAWS - len(failed), none, slowest, failed


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
    from click.testing import CliRunner
    from forebay.plan import verb

    done = CliRunner().invoke(verb.command, [*(str(a) for a in arguments), "--json"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout), done.return_value


def main() -> int:
    parser = arguments(__doc__ or "", None, only=False)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    held, slowest, failed = own_runs(draw)
    say(f"own runs: {held} of {DRAWS} hold, the slowest plan {1e3 * slowest:.0f} ms")
    met, none, search, missed = handed_back(draw)
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
