"""What plans cost: one, the first of a process, and a what-if of a thousand points.

It needs no storage. Processor time, without the imports: the least of ten in each round, since other work on the
machine can only add to it. "First" is of a process of its own, and reads the system, the data sheets and the published tables and
calibrates by them within the time; what the process takes before that, to start and to import, stands beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

from side_by_side import arguments, middle, publish, save, say

PROMISES = ("PLN-10",)

SYSTEM = {"drive": "D7-PS1010", "drives": 4, "workload": "unet3d"}
TRIES = 10
ONE, FIRST, MANY, START = "one plan", "the first plan of a process", "a what-if of 1,000 points", "the start of that process"
# What is timed → seconds that it may take.
BOUNDS = {ONE: 0.05, FIRST: 0.05, MANY: 1.0}
OWN_PROCESS = f"""
import time
import numpy.linalg
from forebay.plan import answer, system, verb
from forebay.plan.planner import published

start = time.process_time()
answer.answer(published(), system.make({SYSTEM!r}, []))
print([time.process_time() - start, start])
"""


def works() -> dict[str, Callable[[], dict[str, float]]]:
    """What each try measures, by name."""
    from forebay.plan import answer, system, whatif
    from forebay.plan.planner import published

    planner, one = published(), system.make(SYSTEM, [])
    axes = [whatif.axis("drives=1:40:1"), whatif.axis("workers=1:25:1")]
    asked = whatif.systems(one, axes, [])
    return {
        ONE: lambda: {ONE: timed(lambda: answer.answer(planner, one))},
        FIRST: first,
        MANY: lambda: {MANY: timed(lambda: whatif.points(planner, asked))},
    }


def first() -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", OWN_PROCESS], capture_output=True, check=True, text=True)
    return dict(zip((FIRST, START), json.loads(done.stdout), strict=True))


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def least_s(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    tried = [work() for _ in range(TRIES)]
    return {name: min(one[name] for one in tried) for name in tried[0]}


def main() -> int:
    options = arguments(__doc__ or "", None, only=False).parse_args()
    tried = works()
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        rounds.append({name: s for work in tried.values() for name, s in least_s(work).items()})
        reported = ", ".join(f"{name} {1e3 * s:.0f} ms" for name, s in rounds[-1].items())
        say(f"round {number + 1}/{options.rounds}: {reported}")
    taken = {name: [r[name] for r in rounds] for name in (*BOUNDS, START)}
    holds = {name: max(taken[name]) < most for name, most in BOUNDS.items()}
    text = "| work | processor time, ms |\n|---|---|\n"
    text += "".join(f"| {name} | {middle([1e3 * s for s in found], 1)} |\n" for name, found in taken.items())
    text += "\n" + "".join(
        f"- {name} under {1e3 * most:g} ms: {'holds' if holds[name] else '**does not hold**'}\n" for name, most in BOUNDS.items()
    )
    save(options.json, "Plans", options, [{"rounds": rounds, "bounds": holds}], text)
    publish("Plans", options, text)
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
