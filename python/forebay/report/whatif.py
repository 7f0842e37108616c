"""`forebay report --plan DRIVE`: what more drives, queues or other blocks would give, to play with, from the report's runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from forebay.errors import RequestError
from forebay.plan import calibrate, catalogue, explore, saved, training
from forebay.plan import system as systems
from forebay.plan.planner import published
from forebay.report.load import Entry

# Whose accelerators are planned where no run of the report is of an emulated training.
WORKLOAD = "unet3d"


def section(
    entries: Sequence[Entry], drive: str, more: list[catalogue.Drive], drives: int | None = None
) -> explore.Section:
    """The sliders for one drive; `drives`: how many of them the runs read (None: a stripe's members, else one).

    RequestError where no catalogue has the drive; runs that can't calibrate are said to.
    """
    sheet = catalogue.drive(drive, more)
    runs, refused = _runs(entries, sheet, drives)
    settings: dict[str, Any] = {"drive": sheet.name, "workload": _workload(entries)}
    base = published().with_drives(more) if more else published()
    notes = [f"{len(refused)} left out: {refused[0]}."] if refused else []
    try:
        planner = saved.planner(base, runs, sheet, more)
    except RequestError as error:
        system = systems.make(settings, more)
        said = f"these runs don't calibrate it: {error.asked}: {error.found}" if runs else "none of these runs is a measured read"
        return explore.section(base, system, "h3", False, [said[:1].upper() + said[1:] + ".", *notes])
    (workers, depth), _ = Counter((r.measured.load.workers, r.measured.load.depth) for r in runs).most_common(1)[0]
    settings |= {"path": runs[0].measured.load.path, "workers": int(workers), "depth": int(depth)}
    notes += [note[:1].upper() + note[1:] + "." for note in planner.notes[:5]]
    return explore.section(planner, systems.make(settings, more), "h3", True, notes)


def _runs(
    entries: Sequence[Entry], sheet: catalogue.Drive, drives: int | None
) -> tuple[list[calibrate.Found], list[str]]:
    """Measured reads of the path that most of them ran, as runs of such drives; and why others can't be."""
    found: list[calibrate.Found] = []
    refused = []
    for entry in entries:
        if entry.record.get("origin", "measured") != "measured":
            continue
        try:
            found += calibrate.of_record(entry.record, f"{entry.file}:{entry.line or 1}", sheet.name, drives)
        except RequestError as error:
            refused.append(f"{error.asked}: {error.found}")
    paths = Counter(run.measured.load.path for run in found).most_common(1)
    return [run for run in found if run.measured.load.path == paths[0][0]] if paths else [], refused


def _workload(entries: Sequence[Entry]) -> str:
    names = [str((e.record.get("training") or {}).get("workload")) for e in entries]
    return next((name for name in names if name in training.WORKLOADS), WORKLOAD)
