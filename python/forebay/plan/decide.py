"""The decision of a plan in words, the same in the command, in JSON and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.numbers import figure
from forebay.plan.planner import Planner
from forebay.plan.system import System

Row = Mapping[str, Any]
# Stations that are the drives themselves.
OF_DRIVES = ("storage", "drive bandwidth", "drive IOPS")
READERS = "reader processes"
# A limit so many times further on isn't worth a word.
FAR_OFF = 10.0
# Reader's words for what a plan calls its stations.
WORDS = {
    "storage": "the drives",
    "drive bandwidth": "the drives' bandwidth",
    "drive IOPS": "the drives' IOPS",
    "requests in flight": "the number of requests in flight",
    "DPU queues": "the DPU's queues",
    "host cores": "the hosts' cores",
    READERS: "the reader processes that the hosts have threads for",
    "benchmark overhead": "the benchmark's own overhead at each step",
    "compute": "the GPUs",
    "link": "the link",
}


def words(limit: str) -> str:
    """A bottleneck in a reader's words: "balanced: storage, link" → "the drives and the link"."""
    head, colon, names = limit.partition(": ")
    if colon and head == "balanced":
        return " and ".join(WORDS.get(name, name) for name in names.split(", "))
    return WORDS.get(limit, limit)


def decision(planner: Planner, system: System, row: Row) -> str:
    """Returns the sentence: what passes, how busy the drives are, what limits and what would next."""
    if system.emulated:
        said = _accelerators(system, row)
    elif system.in_minutes:
        said = [f"DLRM trains in {_with(row, 'training_time_min')} minutes, reading {_with(row, 'throughput_gib_s')} GiB/s"]
    elif system.saves:
        write, read = (_with(row, f"checkpoint_{way}_s") for way in ("write", "read"))
        said = [f"a checkpoint takes {write} s to write and {read} s to read"]
    else:
        said = [f"{_system(system)} deliver{'s' if system.drives == 1 else ''} {_with(row, 'throughput_gib_s')} GiB/s"]
    return "; ".join([*said, *busy_and_limits(row)]) + "."


def busy_and_limits(row: Row) -> list[str]:
    """Returns how busy the drives are, what limits, and what would next."""
    return [*_drives(row), *limits(row)]


def _with(row: Row, key: str) -> str:
    """A figure with its interval."""
    value, low, high = (figure(row[f"{key}{end}"]) for end in ("", "_p10", "_p90"))
    return value if low == value == high else f"{value} ({low} to {high})"


def _system(system: System) -> str:
    remote = ", remote," if system.location == "remote" else ""
    return f"{system.drives} × {system.drive}{remote}"


def _accelerators(system: System, row: Row) -> list[str]:
    name = "accelerators" if system.workload == "job" else f"{system.accelerator.upper()}s"
    least, most = system.ask.least_pct, row["accelerators_max"]
    what = "of its rate" if not system.ask.benchmark else "AU"
    hosts = "" if system.hosts == 1 else f" on {system.hosts} hosts"
    if system.accelerators is None:
        if most < 1:
            return [f"not even one of {name} passes: it reaches {_with(row, 'au_pct')} % {what} of at least {least:g} %"]
        said = f"{_with(row, 'accelerators_max')} {name} pass on {_system(system)}{hosts}"
        return [said, f"they reach {_with(row, 'au_pct')} % {what} and read {_with(row, 'throughput_gib_s')} GiB/s"]
    passes = row["au_pct"] >= least
    said = f"{system.accelerators} {name} {'pass' if passes else 'fail'} on {_system(system)}{hosts}"
    found = [f"{said}: {_with(row, 'au_pct')} % {what} of at least {least:g} %", f"{_with(row, 'accelerators_max')} pass at most"]
    return found


def _drives(row: Row) -> list[str]:
    busy = [row["utilisation"][name] for name in OF_DRIVES if name in row["utilisation"]]
    return [f"the drives are {100 * max(busy):.0f} % busy"] if busy else []


def limits(row: Row) -> list[str]:
    """Limit in words, and the one behind it with how much further on that is."""
    found = [f"{words(row['bottleneck'])} limit{'s' if _one(row['bottleneck']) else ''}"] if row["bottleneck"] else []
    after = row["next"]
    if after and after["limit"] and after["gain"] < FAR_OFF:
        gain = f", {100 * (after['gain'] - 1):.0f} % further on" if after["gain"] > 1.005 else ""
        found.append(f"the next limit is {words(after['limit'])}{gain}")
    return found


def _one(limit: str) -> bool:
    """Returns whether the words for a limit are in the singular."""
    singular = ("link", "drive bandwidth", "benchmark overhead", "requests in flight")
    return limit in singular or limit.startswith("uplink")
