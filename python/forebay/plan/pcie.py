"""The PCIe tree between drives or NICs, GPUs and the CPU, and what its shared links let through.

Each switch has one link up, to another switch or to the CPU, full duplex. Reads are striped, so each drive sends each
GPU an equal share; a GPU takes from the NICs that are nearest to it in the tree. Every share loads the links on its
way, up to where the ways of source and GPU meet, and down from there; what goes through memory first goes up to the
CPU. The link whose load is largest against what it carries bounds the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forebay.errors import RequestError
from forebay.plan.catalogue import LANE_GBPS
from forebay.units import GIB

# Of a lane's rate, what payload reaches (headers, flow control).
PAYLOAD = 0.85
LANES = (1, 2, 4, 8, 16)
KEYS = ("name", "under", "gib_s", "gen", "lanes", "drives", "nics", "gpus")
CPU = ""
# Where the bytes end: in a GPU, in a GPU by way of memory, or in memory.
DIRECT, STAGED, MEMORY = "gpu", "memory, then gpu", "memory"


@dataclass(frozen=True)
class Switch:
    """A switch and its link up: GiB/s in each direction. `under`: the switch above, or "" for the CPU."""

    name: str
    under: str
    gib_s: float
    drives: int = 0
    nics: int = 0
    gpus: int = 0

    def document(self) -> dict[str, Any]:
        return asdict(self)


def switches(tables: Any, where: str) -> tuple[Switch, ...]:
    """Out of [[pcie]] tables, checked. RequestError names the switch and what is wrong with it."""
    if isinstance(tables, tuple) and all(isinstance(t, Switch) for t in tables):
        return tables
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise RequestError(f"{where}: pcie", "is not a list of tables", '[[pcie]] with name = "switch0", gib_s = 50.0')
    found = tuple(_switch(t, f"{where}: pcie {t.get('name', i + 1)}") for i, t in enumerate(tables))
    names = [s.name for s in found]
    for s in found:
        if names.count(s.name) > 1:
            raise RequestError(f"{where}: pcie {s.name}", "is given twice", "a unique name for each switch")
        if s.under != CPU and s.under not in names:
            raise RequestError(f"{where}: pcie {s.name}", f"is under {s.under}, which doesn't exist", ", ".join(names))
    for s in found:
        _way_up({x.name: x for x in found}, s.name, where)
    return found


def _switch(table: Mapping[str, Any], where: str) -> Switch:
    unknown = sorted(set(table) - set(KEYS))
    if unknown:
        raise RequestError(where, f"has no key '{unknown[0]}'", "one of " + ", ".join(KEYS))
    name, under = table.get("name"), table.get("under", CPU)
    if not isinstance(name, str) or not name or not isinstance(under, str):
        raise RequestError(where, "has no name in text", 'name = "switch0", under = "" (the CPU)')
    counts = {k: table.get(k, 0) for k in ("drives", "nics", "gpus")}
    for key, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 4096:
            raise RequestError(where, f"{key} = {value!r} is not a whole number from 0", f"{key} = 2")
    return Switch(name, under, _gib_s(table, where), **counts)


def _gib_s(table: Mapping[str, Any], where: str) -> float:
    """As it is given, or out of generation and lanes."""
    given = table.get("gib_s")
    if (given is None) == ("gen" not in table and "lanes" not in table):
        raise RequestError(where, "needs the speed of its link, given once", "gib_s = 50.0, or gen = 5 and lanes = 16")
    if given is None:
        gen, lanes = table.get("gen"), table.get("lanes")
        if gen not in tuple(LANE_GBPS) or lanes not in LANES:
            raise RequestError(where, f"gen {gen}, lanes {lanes} is not a PCIe link", "gen 3 to 6; lanes 1, 2, 4, 8 or 16")
        return float(LANE_GBPS[gen] * lanes * PAYLOAD * 1e9 / GIB)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < 1e6:
        raise RequestError(where, f"gib_s = {given!r} is not a number above 0", "gib_s = 50.0")
    return float(given)


def _way_up(tree: Mapping[str, Switch], name: str, where: str = "pcie") -> list[str]:
    """The switches from this one up to the CPU. RequestError for a circle."""
    way: list[str] = []
    while name != CPU:
        if name in way:
            raise RequestError(f"{where}: pcie {name}", "is under itself", 'a tree that ends at the CPU: under = ""')
        way.append(name)
        name = tree[name].under
    return way


def limits(tree: Sequence[Switch], drives: int, remote: bool, to: str) -> dict[str, float]:
    """GiB/s of all reads together that each link up allows; links that carry nothing are left out.

    Drives that no switch has stand at the CPU; so does the one NIC of a tree that names none.
    """
    known = {s.name: s for s in tree}
    sources = _share({s.name: s.nics if remote else s.drives for s in tree}, 1 if remote else drives)
    ends = _share({s.name: s.gpus for s in tree}, 1)
    ends = {CPU: 1.0} if to == MEMORY else ends
    load: dict[tuple[str, str], float] = {}
    for end, part in ends.items():
        for source, share in (_nearest(known, sources, end) if remote and to == DIRECT else sources).items():
            for step in _steps(known, source, end, via_cpu=to != DIRECT):
                load[step] = load.get(step, 0.0) + part * share
    found: dict[str, float] = {}
    for (name, _), share in load.items():
        if share > 0:
            found[f"uplink of {name}"] = min(found.get(f"uplink of {name}", float("inf")), known[name].gib_s / share)
    return found


def _share(at: Mapping[str, int], least: int) -> dict[str, float]:
    """Counts by switch as shares of all; what is missing to `least` stands at the CPU."""
    here = sum(at.values())
    total = max(here, least)
    found = {name: n / total for name, n in at.items() if n}
    if here < total:
        found[CPU] = (total - here) / total
    return found


def _nearest(tree: Mapping[str, Switch], sources: Mapping[str, float], end: str) -> dict[str, float]:
    """Returns the sources with the fewest links between them and `end`, in proportion."""
    hops = {s: len(_steps(tree, s, end, via_cpu=False)) for s in sources}
    near = {s: share for s, share in sources.items() if hops[s] == min(hops.values())}
    return {s: share / sum(near.values()) for s, share in near.items()}


def _steps(tree: Mapping[str, Switch], source: str, end: str, via_cpu: bool) -> list[tuple[str, str]]:
    """The links from source to end, each with its direction."""
    up, down = _way_up(tree, source), _way_up(tree, end)
    shared = set() if via_cpu else set(up) & set(down)
    return [(n, "up") for n in up if n not in shared] + [(n, "down") for n in down if n not in shared]
