"""What plans cost: one, the first of a process, and a what-if of a thousand points.

It needs no storage. Processor time, without the imports: the least of ten in each round, since other work on the
machine can only add to it. "First" reads the published tables and calibrates by them within the time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from side_by_side import arguments, middle, publish, save, say

PROMISES = ("PLN-10",)

SYSTEM = {"drive": "D7-PS1010", "drives": 4, "workload": "unet3d"}
TRIES = 10
# What is timed → seconds that it may take.
BOUNDS = {"one plan": 0.05, "the first plan of a process": 0.05, "a what-if of 1,000 points": 1.0}


def works() -> dict[str, Callable[[], object]]:
    from forebay.plan import answer, catalogue, system, whatif
    from forebay.plan.planner import published
    from forebay.plan.published import table

    planner, one = published(), system.make(SYSTEM, [])

    def first() -> object:
        for cached in (published, table, catalogue.drives):
            cached.cache_clear()
        return answer.answer(published(), one)

    def thousand() -> object:
        axes = [whatif.axis("drives=1:40:1"), whatif.axis("workers=1:25:1")]
        return whatif.points(planner, whatif.systems(one, axes, []))

    return dict(zip(BOUNDS, (lambda: answer.answer(planner, one), first, thousand), strict=True))


def least_s(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(TRIES):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> int:
    options = arguments(__doc__ or "", None, only=False).parse_args()
    timed = works()
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        rounds.append({name: least_s(work) for name, work in timed.items()})
        told = ", ".join(f"{name} {1e3 * s:.0f} ms" for name, s in rounds[-1].items())
        say(f"round {number + 1}/{options.rounds}: {told}")
    taken = {name: [r[name] for r in rounds] for name in BOUNDS}
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
