"""A validation as text: what would run, the results, what they prove."""

from __future__ import annotations

from typing import Any

from forebay.stages import format_duration
from forebay.units import format_bytes
from forebay.validate.needs import Facts, unmet
from forebay.validate.plan import Options
from forebay.validate.promises import BROKEN, OPEN, RECORD, counts, judge
from forebay.validate.steps import Step

# Opening, allocating, making files: a guess until it has been timed.
RUN_OVERHEAD_S = 1.0
# As each is written down, all paths and rounds counted; solidigm-power in the rounds that a validation runs.
PRESET_POINTS = {"solidigm-gds": 10, "micron-4k": 33, "micron-io-size": 27, "solidigm-power": 20}
PRESET_SECONDS = {"solidigm-gds": 45.0, "micron-4k": 30.0, "micron-io-size": 30.0, "solidigm-power": 45.0}


def seconds_of(step: Step, options: Options) -> float:
    """About how long a step takes."""
    if step.kind == "preset":
        return PRESET_POINTS[step.preset] * (PRESET_SECONDS[step.preset] * options.scale + RUN_OVERHEAD_S)
    if step.kind == "gdsio":
        return len(step.runs) * 4 * options.seconds
    timed = [r for r in step.runs if "passes" not in {**step.job, **r.job}]
    return len(timed) * options.seconds * 1.1 + len(step.runs) * RUN_OVERHEAD_S


def listing(steps: list[Step], facts: Facts, options: Options) -> list[dict[str, Any]]:
    """Each step with why it would be skipped, or null."""
    return [
        {
            "name": s.name,
            "title": s.title,
            "promises": list(s.proofs),
            "skipped": unmet(s.needs, facts),
            "seconds": round(seconds_of(s, options)),
            "runs": [r.name for r in s.runs],
        }
        for s in steps
    ]


def dry_run(rows: list[dict[str, Any]], options: Options) -> str:
    lines = []
    for row in rows:
        would = f"skipped: {row['skipped']}" if row["skipped"] else f"about {format_duration(row['seconds'])}"
        lines.append(f"{row['name']:<22}{row['title']}")
        lines.append(f"{'':<22}{would}; for {', '.join(row['promises'])}")
    seconds = sum(r["seconds"] for r in rows if not r["skipped"])
    lines.append(f"\n{format_duration(seconds)} in all, excluding file creation")
    if options.sources:
        lines.append(
            f"files of {format_bytes(options.file_bytes)} a set, in a folder of its own in each directory; devices are only read"
        )
    return "\n".join(lines)


def states(document: dict[str, Any]) -> list[str]:
    """A line for each step."""
    return [
        f"{s['state']:<9}{s['name']:<22}{s['reason'] or '; '.join(r['name'] or 'this machine' for r in s['runs'])}"
        for s in document["steps"]
    ]


def promises(document: dict[str, Any]) -> list[str]:
    """A line for each promise, those with a record first."""
    rows = judge(document)
    lines = []
    for verdict in (RECORD, BROKEN, OPEN):
        for row in (r for r in rows if r["verdict"] == verdict):
            lines.append(f"{verdict:<15}{row['promise']:<8}{row['title']}")
            lines.append(f"{'':<15}{row['step']}: {row['evidence']}")
    found = counts(rows)
    lines.append(
        f"\n{found[RECORD]} from pending to a record, {found[BROKEN]} that {'does' if found[BROKEN] == 1 else 'do'} not hold, "
        f"{found[OPEN]} still pending"
    )
    return lines
