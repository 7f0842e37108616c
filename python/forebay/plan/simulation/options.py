"""The flags of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

# Settings of [simulate]; all but hosts, which belongs to any plan, are flags of the simulation alone.
FLAGS = ("hosts", "hours", "seed", "seeds", "storage", "copies", "sizes", "jitter", "fault", "job")


def simulation_options(function: Any) -> Any:
    """--simulate and what belongs to it; a flag wins over the file's [simulate]."""
    more: tuple[Callable[[Any], Any], ...] = (
        click.option(
            "--simulate", is_flag=True, help="Also simulate it in virtual time: jitter, barriers, failures, mixed jobs."
        ),
        click.option("--hours", type=float, metavar="H", help="Simulation: simulated hours (1)."),
        click.option(
            "--storage", metavar="WHOSE",
            help="own: each host has its drives; shared: one set of drives for all (depends on location).",
        ),
        click.option(
            "--copies", is_flag=True, default=None, help="Data is on several drives, so that a failed drive only costs speed."
        ),
        click.option(
            "--sizes", metavar="WHICH",
            help="Sample sizes: mean (all alike) or trace (each its own, in reading order) (mean).",
        ),
        click.option("--jitter", multiple=True, metavar="WHAT=CV", help="compute=0.05, requests=pareto:0.5; repeat it for both."),
        click.option("--fault", multiple=True, metavar="WHAT@S", help="drive@600:slow=0.5,until=1200 or host@600:back=900."),
        click.option("--job", multiple=True, metavar="K=V,...", help="Another job: workload=io,workers=64,start=600,stop=1200."),
        click.option("--seed", type=int, metavar="N", help="Random seed (7)."),
        click.option("--seeds", type=int, metavar="N", help="Number of simulations, for intervals (5 if anything is random)."),
    )
    for option in reversed(more):
        function = option(function)
    return function


def taken(values: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """--simulate, and the flags above that were given, all taken out of a command's values."""
    given = {name: values.pop(name) for name in FLAGS if name != "hosts"}
    return values.pop("simulate"), {k: v for k, v in given.items() if v not in (None, ())}
