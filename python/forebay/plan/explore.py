"""Plans to play with, offline, computed beforehand: `plan whatif --page`, and a section of the report.

Each cell is the planner's own answer for one system, so the page says nothing that a command doesn't.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import forebay
from forebay.paths import BOUNCE, GDS
from forebay.plan import answer, assume, catalogue, decide, flow, models
from forebay.plan.cpu import PATHS
from forebay.plan.frozen import replace
from forebay.plan.planner import SMALL_KIB, WORKERS_LARGE, WORKERS_SMALL, Planner, published
from forebay.plan.system import IO, System, make
from forebay.units import format_bytes

DRIVES = (1, 2, 4, 8)
HOSTS = (1, 2, 4)
# 0 stands for local drives.
QUEUES = (0, 1, 4, 15, 31)
SIZES = (4096, 16384, 65536, 131072, 262144, 524288, 1 << 20, 4 << 20)
# Requests in flight: as many as are enough, as the published runs had, and numbers for each drive.
AUTO, AS_PUBLISHED, EACH = "enough", "as published", (8, 32, 96)
NUMBERS = 16
MLPERF = ("unet3d", "resnet50", "cosmoflow")
# Models that read while they compute: what loads first is planned in seconds, by `plan run`.
MODELS = tuple(name for name in models.TABLE if not models.loads(name, models.COLD))


@dataclass(frozen=True)
class Section:
    """Controls and curves as parts of a page: `body` holds the numbers and one script, the only one of `script_hash`."""

    css: str
    body: str
    script_hash: str


@dataclass(frozen=True)
class Choices:
    """Choices that the controls offer. `tree`: drives of each host's PCIe tree, which no choice has fewer of."""

    names: Sequence[str]
    paths: Sequence[str]
    requests: Sequence[str]
    workloads: Sequence[str]
    counts: Sequence[int] = DRIVES
    hosts: Sequence[int] = HOSTS
    queues: Sequence[int] = QUEUES
    sizes: Sequence[int] = SIZES
    tree: int = 0

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """Drives, hosts and queues that can be together: local drives are spread evenly."""
        return [
            (n, hosts, queues)
            for n, hosts, queues in itertools.product(self.counts, self.hosts, self.queues)
            if (queues or n % hosts == 0) and n >= self.tree * (1 if queues else hosts)
        ]


def of_numbers(system: System, hosts: Sequence[int]) -> dict[str, Any]:
    """Choices of a page that are numbers: the usual ones, `hosts` among them, and those of the system that it is of."""
    tree = sum(switch.drives for switch in system.pcie)
    return {
        "counts": sorted({*(n for n in DRIVES if n >= tree), system.drives}),
        "hosts": sorted({*hosts, system.hosts}),
        "queues": sorted({*QUEUES, *([system.queues] if system.queues else [])}),
        "sizes": sorted({*SIZES, system.io_size}),
        "tree": tree,
    }


def page(planner: Planner, system: System, own: bool) -> str:
    """A page of its own. It asks for nothing from anywhere."""
    from markupsafe import Markup

    names = [d.name for d in {d.name: d for d in [*catalogue.drives().values(), *planner.more]}.values()]
    workloads = list(dict.fromkeys([IO, *MLPERF, *MODELS, *([system.workload] if system.emulated else [])]))
    asked = [f"{system.workers * system.depth} as asked"] if system.given & {"workers", "depth"} else []
    requests = [*asked, AUTO, AS_PUBLISHED, *(f"{n} a drive" for n in EACH)]
    choices = Choices(names, PATHS, requests, workloads, **of_numbers(system, HOSTS))
    made = section(planner, system, "h2", own, choices=choices)
    row = answer.answer(planner, system)
    return _template("explore.html.j2").render(
        drive=system.drive,
        decision=row["decision"],
        assumed=[_said(a) for a in row["assumed"]],
        version=forebay.__version__,
        date=datetime.date.today().isoformat(),
        css=Markup(_report_css() + made.css),
        body=Markup(made.body),
        script_hash=Markup(made.script_hash),
    )


def _said(assumption: dict[str, Any]) -> dict[str, str]:
    source = {"given": "", "default": "default", "derived": ""}[assumption["source"]]
    notes = "; ".join(filter(None, (source, assumption["why"])))
    return {"text": assumption["text"], "notes": notes, "flags": " ".join(assumption["flags"])}


def section(
    planner: Planner, system: System, heading: str, own: bool, notes: Sequence[str] = (), choices: Choices | None = None
) -> Section:
    """The parts, with `heading` (h2, h3) for the charts. `own`: the planner is calibrated by the user's runs.

    Without `choices` the drive, the path and the requests in flight are the system's.
    """
    from markupsafe import Markup

    if choices is None:
        each = f"{system.workers * system.depth} as asked" if system.given & {"workers", "depth"} else AUTO
        workloads = [IO, *([system.workload] if system.emulated else [])]
        choices = Choices([system.drive], [system.path], [each, AS_PUBLISHED], workloads, **of_numbers(system, (1,)))
    data = document(planner, system, own, choices)
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    script = _text("explore.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = _template("explore_body.html.j2").render(
        basis="own runs" if own else "the published measurements",
        fixed=f"{choices.requests[0]}, path {system.path}" if len(choices.paths) == 1 else "",
        notes=notes,
        heading=heading,
        workloads=len(choices.workloads) > 1,
        data=Markup(text),
        script=Markup(script),
    )
    return Section(_text("explore.css"), body, f"'sha256-{digest}'")


def _report_css() -> str:
    return resources.files("forebay.report").joinpath("page.css").read_text(encoding="utf-8")


def _text(name: str) -> str:
    return resources.files("forebay.plan").joinpath(name).read_text(encoding="utf-8")


def _template(name: str) -> Any:
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(_text(name))


def document(planner: Planner, system: System, own: bool, choices: Choices) -> dict[str, Any]:
    """All numbers of the page: rates by drive, path, place and requests; accelerators by workload, drive and place."""
    limits: dict[str, int] = {}
    trained = [w for w in choices.workloads if w != IO]
    found = {
        "drives": list(choices.names),
        "paths": [{GDS: GDS, "cpu": BOUNCE}[p] for p in choices.paths],
        "requests": list(choices.requests),
        "workloads": list(choices.workloads),
        "counts": list(choices.counts),
        "hosts": list(choices.hosts),
        "queues": list(choices.queues),
        "places": choices.places,
        "sizes": [format_bytes(s) for s in choices.sizes],
        "rate": rates(planner, system, choices, limits),
        "trained": [emulation(planner, system, choices, workload, limits) for workload in trained],
        "seen": [s for name in choices.names for s in _seen(planner, system, own, choices, name)],
        "first": _first(system, choices),
    }
    return found | {"limits": [decide.words(name) for name in limits]}


def _first(system: System, choices: Choices) -> list[int]:
    """Where the controls begin: workload, drive, count, hosts, queues, path, size."""
    workload = choices.workloads.index(system.workload) if system.workload in choices.workloads else 0
    names = [name.lower() for name in choices.names]
    queues = 0 if system.location == "local" else choices.queues.index(system.queues or flow.QUEUES_MAX)
    path = choices.paths.index(system.path) if system.path in choices.paths else 0
    return [
        workload, names.index(system.drive.lower()) if system.drive.lower() in names else 0, choices.counts.index(system.drives),
        choices.hosts.index(system.hosts), queues, path, choices.sizes.index(system.io_size),
    ]  # fmt: skip


def _at(system: System, name: str, place: tuple[int, int, int], **settings: Any) -> System:
    """The system with one drive of the controls, at one place."""
    drives, hosts, queues = place
    given = {k: v for k, v in system.settings.items() if k not in ("queues", "location", "workers", "depth", "accelerators")}
    given |= {"drive": name, "drives": drives, "hosts": hosts, "location": "remote" if queues else "local", **settings}
    return replace(
        system, drive=name, drives=drives, hosts=hosts, location=given["location"], queues=queues or None,
        given=frozenset(given), accelerators=None, **settings,
    )  # fmt: skip


def rates(planner: Planner, system: System, choices: Choices, limits: dict[str, int]) -> list[Any]:
    """GiB/s in hundredths, with its ends and the number of its limit, size by size: by drive, path, place and requests."""
    base = replace(system, workload=IO)
    keys = list(itertools.product(choices.names, choices.paths, choices.places, choices.requests))
    asked = [
        _requested(_at(base, name, place, path=path, io_size=size), label, system)
        for name, path, place, label in keys
        for size in choices.sizes
    ]
    asked = assume.settle_all(planner, asked)
    cells = [[*_hundredths(e), _number_of(limits, e.bottleneck)] for e in answer.rates(planner, asked)]
    width = len(choices.sizes)
    return [[part for cell in cells[i : i + width] for part in cell] for i in range(0, len(cells), width)]


def _requested(at: System, label: str, system: System) -> System:
    """With as many requests in flight as a control says; open where it leaves them open."""
    if label == AUTO:
        return replace(at, given=at.given - {"workers", "depth"})
    if label == AS_PUBLISHED:
        each = WORKERS_SMALL if at.io_size <= SMALL_KIB * 1024 else WORKERS_LARGE
        return replace(at, workers=int(each) * at.drives, depth=1, given=at.given | {"workers"})
    if label.endswith(" a drive"):
        return replace(at, workers=int(label.split()[0]) * at.drives, depth=1, given=at.given | {"workers"})
    return replace(at, workers=system.workers, depth=system.depth, given=at.given | {"workers"})


def _hundredths(e: Any) -> list[int]:
    return [round(100 * v) for v in (e.value, e.p10, e.p90)]


def _number_of(limits: dict[str, int], name: str) -> int:
    return limits.setdefault(name, len(limits))


def _seen(planner: Planner, system: System, own: bool, choices: Choices, name: str) -> list[list[Any]]:
    """Drive, path, queues, requests, drives, place among sizes, GiB/s, whose: measurements, each on the curve that it is of."""
    found = []
    for mine, source in ((False, published()), *(((True, planner),) if own else ())):
        for m in source.flow.measured:
            load = m.load
            size = load.io_kib * 1024
            beyond = load.drives not in choices.counts or not choices.sizes[0] <= size <= choices.sizes[-1]
            if load.drive.lower() != name.lower() or beyond:
                continue
            label = AS_PUBLISHED if not mine else f"{system.workers * system.depth} as asked"
            fits = not mine or load.workers * load.depth == system.workers * system.depth
            path = "cpu" if load.path != GDS else GDS
            if not fits or label not in choices.requests or path not in choices.paths:
                continue
            queues = _nearest(choices, load.queues or flow.QUEUES_MAX) if load.remote else 0
            at = [choices.names.index(name), choices.paths.index(path), queues, choices.requests.index(label)]
            found.append([*at, load.drives, round(_among(choices.sizes, size), 3), round(m.gibps, 3), int(mine)])
    return found


def _among(sizes: Sequence[int], size: float) -> float:
    """The place of a size among others, between two by its logarithm."""
    above = next(i for i, s in enumerate(sizes) if s >= size)
    if sizes[above] == size:
        return float(above)
    low, high = sizes[above - 1], sizes[above]
    return above - 1 + math.log(size / low) / math.log(high / low)


def _nearest(choices: Choices, queues: float) -> int:
    return min(choices.queues[1:], key=lambda q: abs(q - queues))


def emulation(planner: Planner, system: System, choices: Choices, workload: str, limits: dict[str, int]) -> dict[str, Any]:
    """AU in hundredths with its ends, by drive, path, place and accelerators; and the greatest number that passes, with its ends.

    `paths`: how many of them there are, which is one where none matters.
    """
    base = system if system.workload == workload else _of_workload(system, workload, planner)
    keys = list(itertools.product(choices.names, choices.paths, choices.places))
    asked = [_at(base, name, place, path=path) for name, path, place in keys]
    most = [found["accelerators_max"] for found in answer.jobs_estimates(planner, asked)]
    numbers = _numbers(max(e.value for e in most), 8 if base.modelled else NUMBERS)
    every = [replace(s, accelerators=n) for s in asked for n in numbers]
    found = answer.jobs_estimates(planner, every)
    cells = [_hundredths(f["au_pct"]) for f in found]
    width = len(numbers)
    au = [[part for cell in cells[i : i + width] for part in cell] for i in range(0, len(cells), width)]
    greatest = [[int(e.value), int(e.p10), int(e.p90), _number_of(limits, e.bottleneck)] for e in most]
    first = [i for i, (_, path, _) in enumerate(keys) if path == choices.paths[0]]
    each, of_path = len(choices.paths), len(choices.places)
    alike = [first[i // (each * of_path) * of_path + i % of_path] for i in range(len(keys))]
    same = all(au[i] == au[j] and greatest[i] == greatest[j] for i, j in enumerate(alike))
    if same:
        au, greatest = [au[i] for i in first], [greatest[i] for i in first]
    return {
        "paths": 1 if same else each,
        "workload": workload,
        "said": f"{workload}, cold" if models.infers(workload) else workload,
        "measure": "AU" if base.ask.benchmark else "share of the full rate",
        "accelerator": base.trains_on or "accelerator",
        "least": base.ask.least_pct,
        "numbers": numbers,
        "au": au,
        "greatest": greatest,
    }


# Settings of a machine and its data, whatever is run.
KEPT = ("drive", "drives", "hosts", "location", "threads", "memory", "dataset", "link", "sharers", "gpu_link", "cores", "pcie")


def _of_workload(system: System, workload: str, planner: Planner) -> System:
    """The same hosts and links for a workload of the package, on its usual accelerator."""
    kept = {k: v for k, v in system.settings.items() if k in KEPT}
    mode = {"mode": models.COLD} if models.infers(workload) else {}
    return make({**kept, **mode, "workload": workload}, list(planner.more))


def _numbers(most: float, count: int) -> list[int]:
    """Numbers of accelerators from one to half as many again as ever pass, close together where they are few."""
    top = max(4, int(1.25 * most))
    few = {1, 2, 3, 4, 6, 8} if count == NUMBERS else {1, 4, models.GPUS}
    return sorted({max(1, round(top ** (i / (count - 1)))) for i in range(count)} | few)
