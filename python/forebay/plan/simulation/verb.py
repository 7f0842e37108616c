"""Runs a simulation from flags, with progress, and keeps partial results on Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forebay.bench.interrupt import Interrupt
from forebay.errors import RequestError
from forebay.plan import catalogue
from forebay.plan.planner import Planner
from forebay.plan.simulation import run, scenario
from forebay.plan.system import System

POINTS_MAX = 500


def of_file(path: str | None) -> dict[str, Any]:
    """[simulate] of a plan's file; {} without one."""
    if path is None:
        return {}
    found = catalogue.load_toml(catalogue.read_text(path, "plan"), path).get("simulate", {})
    return found if isinstance(found, dict) else {"simulate": found}


def asked_for(system: System, flags: Mapping[str, Any], more: list[Any], file: str | None) -> scenario.Scenario:
    """Out of the file and the flags. RequestError for what can't happen, before anything is calibrated.

    A plan counts drives, accelerators and requests over all hosts, a scenario those of one host.
    """
    reported = {**of_file(file), **flags, "hosts": system.hosts}
    if system.accelerators is not None and system.accelerators % system.hosts:
        said, near = f"can't be spread evenly over {system.hosts} hosts", max(1, round(system.accelerators / system.hosts))
        raise RequestError(f"accelerators {system.accelerators}", said, f"--accelerators {near * system.hosts} ({near} in each)")
    shared = reported.get("storage", scenario.SHARED if system.location == "remote" else scenario.OWN) == scenario.SHARED
    each = replace(
        system,
        hosts=1,
        given=system.given - {"hosts"},
        drives=system.drives if shared else max(1, system.drives // system.hosts),
        accelerators=system.accelerators and system.accelerators // system.hosts,
        workers=max(1, round(system.workers / system.hosts)),
    )
    return scenario.make_scenario(each, of_file(file), {**flags, "hosts": system.hosts}, more, file or "plan")


def simulate(planner: Planner, asked: scenario.Scenario) -> dict[str, Any]:
    """The document of `run.simulate`, played by the engine. Progress is shown where stderr is a terminal."""
    from forebay.simulate import play

    with Interrupt() as interrupt, Bar() as bar:
        return run.simulate(planner, asked, play, bar.show, lambda: interrupt.requested)


def simulate_points(
    planner: Planner,
    systems: Sequence[System],
    rows: Sequence[dict[str, Any]],
    asked: Callable[[System], scenario.Scenario],
) -> tuple[list[dict[str, Any]], bool]:
    """Each row with what its first job does when it is played; False where it was ended before all were.

    RequestError for too many points, and for one that can't be played.
    """
    if len(systems) > POINTS_MAX:
        raise RequestError("--vary", f"gives {len(systems)} points to simulate", f"at most {POINTS_MAX}")
    scenarios, found = [asked(system) for system in systems], []
    for row, each in zip(rows, scenarios, strict=True):
        try:
            played = simulate(planner, each)
        except KeyboardInterrupt:
            break
        job = played["jobs"][0]
        reported = {"simulated_gib_s": job["throughput_gib_s"]["value"], "simulated_bottleneck": played["bottleneck"]}
        if job.get("au_pct") is not None:
            reported["simulated_au_pct"] = job["au_pct"]["value"]
        for what in ("checkpoint_write_s", "checkpoint_read_s"):
            if job.get(what) is not None:
                reported[f"simulated_{what}"] = job[what]["value"]
        found.append({**row, **reported})
        if played["interrupted"]:
            break
    if not found:
        raise KeyboardInterrupt
    return found, len(found) == len(rows) and not played["interrupted"]


class Bar:
    """Progress on a terminal."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show(self, share: float) -> None:
        """Draws the share that is done, 0 to 1."""
        if self.shown:
            filled = "#" * int(24 * share)
            sys.stderr.write(f"\rsimulating  [{filled:<24}] {100 * share:3.0f} %  (Ctrl-C ends it and keeps what it has)")
            sys.stderr.flush()
