"""The requirements of a step on the machine and the sources: each is a check that returns the reason if it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.uri import parsed

Report = dict[str, Any]
GDSIO_PLACES = ("cuda*/gds/tools/gdsio", "cuda*/gds/tools/gdsio.x86_64")


@dataclass(frozen=True)
class Facts:
    """Facts known before anything runs. `reports` are the doctor's, by source; "" is the machine's."""

    sources: tuple[str, ...]
    gpus: tuple[int, ...]
    reports: dict[str, Report]
    gdsio: str | None = None
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def report(self) -> Report:
        return self.reports[self.sources[0] if self.sources else ""]

    @property
    def gds(self) -> dict[str, Any]:
        return dict(self.report["verdicts"]["gds"])


def kind_of(source: str) -> str:
    """`directory`, `device`, `file`, or `other` for what isn't in the file system."""
    path = parsed(source).path
    if path is None:
        return "other"
    if path.is_dir():
        return "directory"
    if path.is_block_device():
        return "device"
    return "file" if path.exists() else "other"


def find_gdsio() -> str | None:
    """NVIDIA's gdsio: on PATH, else in a CUDA toolkit."""
    import shutil

    found = shutil.which("gdsio")
    toolkits = (p for place in GDSIO_PLACES for p in sorted(Path("/usr/local").glob(place), reverse=True))
    return found or next((str(p) for p in toolkits if p.is_file()), None)


def _source(g: Facts) -> str | None:
    return None if g.sources else "no SOURCE was named"


def _directory(g: Facts) -> str | None:
    if not g.sources:
        return _source(g)
    kinds = {s: g.kinds[s] for s in g.sources if g.kinds[s] != "directory"}
    if not kinds:
        return None
    source, kind = next(iter(kinds.items()))
    return (
        f"{source} is a {kind}: it is only read, so nothing is written or has content that could be verified"
    )


def _gpu(g: Facts) -> str | None:
    return g.report["verdicts"]["bounce"]["because"]


def _gpu_index(g: Facts) -> str | None:
    there = [gpu["index"] for gpu in g.report["gpu"]["gpus"]]
    lacking = [i for i in g.gpus if i not in there]
    return f"there is no GPU {lacking[0]}, only {', '.join(map(str, there))}" if there and lacking else None


def _mapped(g: Facts) -> str | None:
    if g.kinds.get(g.sources[0] if g.sources else "", "") == "device":
        return "only files can be mapped"
    return g.report["verdicts"]["mapped"]["because"]


# Without these there is nothing to try; what else the doctor holds against direct DMA is tried all the same.
HOPELESS = ("gpu", "libcuda", "library")


def _cufile(g: Facts) -> str | None:
    return next((c["because"] for c in g.gds["both"] if c["id"] in HOPELESS), None)


def doubt(needs: tuple[str, ...], facts: Facts) -> str | None:
    """Why the doctor expects a step on cuFile to be refused; None where it expects it to run."""
    answer = facts.gds["answer"]
    if ("direct" in needs and answer != "direct") or ("cufile" in needs and answer == "no"):
        return reason(facts.gds)
    return None


def _several(count: int) -> Callable[[Facts], str | None]:
    def check(g: Facts) -> str | None:
        return None if len(g.sources) >= count else f"needs {count} sources, and {len(g.sources)} were named"

    return check


def _two_gpus(g: Facts) -> str | None:
    count = len(g.report["gpu"]["gpus"])
    return None if count >= 2 else f"needs two GPUs, and there {'is one' if count == 1 else f'are {count}'}"


def _meter(g: Facts) -> str | None:
    checks = [c for c in g.report["checks"] if c["area"] == "power"]
    if any(c["state"] == "works" for c in checks):
        return None
    reasons = [f"{c['title']}: {c['why'] or c['found']}" for c in checks]
    return "no power meter answers" + (f" ({'; '.join(reasons)})" if reasons else "")


def _gdsio(g: Facts) -> str | None:
    return None if g.gdsio else "gdsio isn't installed (it comes with CUDA's package gds-tools)"


def _two_nodes(g: Facts) -> str | None:
    count = int(g.report["environment"]["numa_nodes"])
    return None if count >= 2 else f"needs two NUMA nodes, and there is {count}"


def _huge_pages(g: Facts) -> str | None:
    check = next((c for c in g.report["checks"] if c["id"] == "hugetlb"), None)
    if check is not None and check["state"] == "works":
        return None
    return f"no pool of huge pages that would do ({check['found']})" if check else "no pool of huge pages"


# name → why it isn't there, or None
NEEDS: dict[str, Callable[[Facts], str | None]] = {
    "source": _source,
    "directory": _directory,
    "gpu": lambda g: _gpu(g) or _gpu_index(g),
    "two-gpus": _two_gpus,
    "mapped": _mapped,
    "cufile": _cufile,
    "direct": _cufile,
    "two-sources": _several(2),
    "four-sources": _several(4),
    "eight-sources": _several(8),
    "meter": _meter,
    "two-nodes": _two_nodes,
    "huge-pages": _huge_pages,
    "gdsio": _gdsio,
}


def unmet(needs: tuple[str, ...], facts: Facts) -> str | None:
    """The first reason why a step can't run here; None where it can."""
    return next((why for name in needs if (why := NEEDS[name](facts)) is not None), None)


def reason(gds: dict[str, Any]) -> str:
    """Why cuFile isn't direct: what stops both ways, else what stops each."""
    if gds["both"]:
        return "; ".join(c["because"] for c in gds["both"])
    ways = [
        f"{name}: {gds[key][0]['because']}"
        for name, key in (("nvidia-fs", "nvidia_fs"), ("P2PDMA", "p2pdma"))
        if gds[key]
    ]
    return "; ".join(ways) or "the kernel configuration can't be read, so support for P2PDMA is uncertain"
