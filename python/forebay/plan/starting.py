"""Starting values for the calibration by the published tables, so that the first plan of a process is fast, too.

The file holds each module's parameters as searches from its priors found them. The search is done all the same, and ends
where the tables say: a file that is out of date costs time, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.plan import catalogue

if TYPE_CHECKING:
    from forebay.plan.planner import Planner

NAME = "start.json"
MODULES = ("flow", "training", "user_cpu")
TURNS = 40
# Module → parameter → value, in its own unit.
Start = Mapping[str, Mapping[str, float]]


def packaged() -> Start:
    """Returns the values that come with Forebay."""
    found: Start = json.loads(catalogue.packaged(NAME))
    return found


def found_by(planner: Planner) -> dict[str, dict[str, float]]:
    """Returns the parameters that a planner's modules were calibrated to."""
    made: dict[str, Any] = {name: getattr(planner, name) for name in MODULES}
    return {name: {p.name: float(f"{p.value:.12g}") for p in m.posterior.parameters()} for name, m in made.items()}


def main() -> None:
    """Writes the file anew: `python -m forebay.plan.starting`, in the source tree."""
    from forebay.plan.planner import TABLES, Planner
    from forebay.plan.published import table

    tables: dict[str, Any] = {name: table(name) for name in TABLES}
    found: dict[str, dict[str, float]] = {}
    # A search ends where it hardly gains: again from there, until it gains nothing.
    for _ in range(TURNS):
        found = found_by(Planner(tables, start=found))
    place = Path(__file__).parents[1] / "data" / "plan" / NAME
    place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
