"""The decision of a plan in words, the same in the command, in JSON and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.numbers import figure
from forebay.plan import models
from forebay.plan.planner import Planner
from forebay.plan.system import System
from forebay.units import GIB

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


# The same where there is room for a word or two.
SHORT = {"storage": "drives", "compute": "GPUs"}


def short(limit: str) -> str:
    """A bottleneck for a column: "balanced: storage, link" → "balanced: drives, link"."""
    head, colon, names = limit.rpartition(": ")
    return head + colon + ", ".join(SHORT.get(name, name) for name in names.split(", "))


def utilised(row: Row) -> str:
    """The line of how busy each station is."""
    return "utilisation  " + " · ".join(f"{short(n)} {100 * v:.0f} %" for n, v in row["utilisation"].items())


def decision(planner: Planner, system: System, row: Row) -> str:
    """Returns the sentence: what passes, how busy the drives are, what limits and what would next."""
    if system.modelled:
        said = _loaded(planner, system, row) if system.loads else _fed(planner, system, row)
        return "; ".join([*said, *(_drives(row) if system.loads else busy_and_limits(row))]) + "."
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
    one = system.trains_on or "accelerator"
    least, most = system.ask.least_pct, row["accelerators_max"]
    asked = 1.0 if system.accelerators is None and most < 1 else system.accelerators or most
    s = "" if asked == 1 else "s"
    what = "AU" if system.ask.benchmark else "of its rate" if asked == 1 else "of their rate"
    hosts = "" if system.hosts == 1 else f" on {system.hosts} hosts"
    if system.accelerators is None:
        if most < 1:
            return [f"not even one {one} passes: it reaches {_with(row, 'au_pct')} % {what} of at least {least:g} %"]
        said = f"{_with(row, 'accelerators_max')} {one}{s} {_verb('pass', asked)} on {_system(system)}{hosts}"
        they = f"{'they' if s else 'it'} {_verb('reach', asked)} {_with(row, 'au_pct')} % {what}"
        return [said, f"{they} and {_verb('read', asked)} {_with(row, 'throughput_gib_s')} GiB/s"]
    verb = _verb("pass" if row["au_pct"] >= least else "fail", asked)
    said = f"{system.accelerators} {one}{s} {verb} on {_system(system)}{hosts}"
    found = f"{said}: {_with(row, 'au_pct')} % {what} of at least {least:g} %"
    return [found, f"{_with(row, 'accelerators_max')} {_verb('pass', most)} at most"]


def _verb(verb: str, number: float) -> str:
    """A verb of so many: `pass`, and `passes` of one."""
    return verb if number != 1 else verb + ("es" if verb.endswith(("ss", "ch")) else "s")


# A share of a rate, in per cent, above which more of anything changes nothing.
ALL_PCT = 99.0


def _fed(planner: Planner, system: System, row: Row) -> list[str]:
    """Returns who is fed, and whether faster drives would change anything, of a model that reads while it computes."""
    gpus = models.of_gpus(planner, system)
    count = "one" if system.drives == 1 else f"{system.drives} ×"
    remote = " remote" if system.location == "remote" else ""
    drives, s = f"{count}{remote} {system.drive}", "s" if system.drives == 1 else ""
    share, most = row["au_pct"], row["accelerators_max"]
    found = [f"{system.workload} needs {figure(system.need.mb_s)} MB/s a GPU: "]
    if row["au_pct_p10"] >= ALL_PCT:
        found[0] += f"{drives} feed{s} {gpus}"
        found += [f"{_with(row, 'accelerators_max')} at most", "faster drives change nothing"]
    else:
        least = "" if share >= system.ask.least_pct else f", and {system.ask.least_pct:g} % are asked for"
        whose = "their" if system.accelerators != 1 else "its"
        found[0] += f"{drives} keep{s} {gpus} at {_with(row, 'au_pct')} % of {whose} rate{least}"
        found.append(f"{_with(row, 'accelerators_max')} at most" if most >= 1 else "not even one is fed")
        gain = 100 / max(share, 0.1)
        more = f"{100 * (gain - 1):.0f} % more" if gain < 2 else f"{figure(gain)} times as much"
        found.append(f"what is faster or more of it brings up to {more}")
    if "samples_per_s" in row:
        found.insert(1, f"they answer {_with(row, 'samples_per_s')} samples/s")
    return found


def _loaded(planner: Planner, system: System, row: Row) -> list[str]:
    """Seconds that depend on the drives, and what doesn't."""
    size = figure(models.load_bytes(planner, system) / GIB)
    if "start_s" in row:
        rest = models.rest_s(planner, system)
        at_once = f"{system.accelerators} × {size_each(planner, system)} GiB of weights"
        said = f"{system.workload} answers {_with(row, 'start_s')} s after its start on {_system(system)}: reading {at_once}"
        return [said, f"{figure(rest)} s of it depend on no drive"]
    said = f"{system.workload} loads {size} GiB in {_with(row, 'load_s')} s from {_system(system)}"
    if system.workload == models.GNN:
        return [said, "it trains from memory then, and drives change nothing but the load"]
    rate = f"it answers {figure(row['samples_per_s'])} samples/s from memory then, whatever the drives"
    return [said, rate]


def size_each(planner: Planner, system: System) -> str:
    return figure(models.load_bytes(planner, system) / models.gpus(system) / GIB)


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
