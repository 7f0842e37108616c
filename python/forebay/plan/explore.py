"""Sliders and curves, offline, their points computed beforehand: `plan whatif --page`, and a section of the report."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from forebay.plan import answer, flow, limits
from forebay.plan.planner import Planner, published
from forebay.plan.system import System
from forebay.units import format_bytes

DRIVES = (1, 2, 3, 4, 5, 6, 8, 12)
# 0 stands for local drives.
QUEUES = (0, 1, 3, 7, 15, 23, 31)
SIZES = tuple(4096 << i for i in range(0, 11))
NUMBERS = 40


@dataclass(frozen=True)
class Section:
    """Sliders and curves as parts of a page: `body` holds the numbers and one script, the only one of `script_hash`."""

    css: str
    body: str
    script_hash: str


def page(planner: Planner, system: System, own: bool) -> str:
    """A page of its own. It asks for nothing from anywhere."""
    from markupsafe import Markup

    made = section(planner, system, "h2", own)
    return _template("explore.html.j2").render(
        drive=system.drive, css=Markup(made.css), body=Markup(made.body), script_hash=Markup(made.script_hash)
    )


def section(planner: Planner, system: System, heading: str, own: bool, notes: Sequence[str] = ()) -> Section:
    """The parts, with `heading` (h2, h3) for the charts. `own`: the planner is calibrated by the user's runs."""
    from markupsafe import Markup

    emulated = system.workload if system.emulated else ""
    data = {**rates(planner, system, own), **(emulation(planner, system) if emulated else {"accelerators": []})}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    script = _text("explore.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = _template("explore_body.html.j2").render(
        basis="own runs" if own else "the published measurements",
        workers=system.workers,
        depth=system.depth,
        path=system.path,
        notes=notes,
        workload=emulated,
        heading=heading,
        data=Markup(text),
        script=Markup(script),
    )
    return Section(_text("explore.css"), body, f"'sha256-{digest}'")


def _text(name: str) -> str:
    return resources.files("forebay.plan").joinpath(name).read_text(encoding="utf-8")


def _template(name: str) -> Any:
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(_text(name))


def rates(planner: Planner, system: System, own: bool) -> dict[str, Any]:
    """GiB/s with bounds and bottleneck, by drives, queues and size; and what was measured, published and own."""
    made = [
        limits.load(planner, replace(system, drives=d, location="remote" if q else "local", queues=q or None, io_size=s))
        for d in DRIVES
        for q in QUEUES
        for s in SIZES
    ]
    found = planner.flow.predict(made)
    cells = [[round(e.value, 3), round(e.p10, 3), round(e.p90, 3), e.bottleneck] for e in found]
    curves = [cells[i : i + len(SIZES)] for i in range(0, len(cells), len(SIZES))]
    rate = [curves[i : i + len(QUEUES)] for i in range(0, len(curves), len(QUEUES))]
    seen = _seen(published(), system, False) + (_seen(planner, system, True) if own else [])
    return {"drives": DRIVES, "queues": QUEUES, "sizes": [format_bytes(s) for s in SIZES], "rate": rate, "seen": seen}


def _seen(planner: Planner, system: System, own: bool) -> list[list[Any]]:
    """Place among SIZES, GiB/s, queues, whose, drives: of this drive, own ones only with the curve's requests in flight."""
    found = []
    for m in planner.flow.measured:
        load = m.load
        place = math.log2(load.io_kib * 1024 / SIZES[0])
        queues = _nearest(load.queues or flow.QUEUES_MAX) if load.remote else 0
        fits = not own or (load.workers, load.depth) == (system.workers, system.depth)
        if load.drive.lower() == system.drive.lower() and fits and 0 <= place <= len(SIZES) - 1:
            found.append([round(place, 3), round(m.gibps, 3), queues, int(own), load.drives])
    return found


def _nearest(queues: float) -> int:
    return min(QUEUES[1:], key=lambda q: abs(q - queues))


def emulation(planner: Planner, system: System) -> dict[str, Any]:
    """AU with bounds by drives and accelerators, and the greatest number that passes by drives."""
    most = planner.training.greatest([answer.setup_of(planner, replace(system, drives=d), None) for d in DRIVES])
    top = max(4, int(1.5 * max(e.value for e in most)))
    numbers = sorted({max(1, round(1 + (top - 1) * i / (NUMBERS - 1))) for i in range(NUMBERS)})
    setups = [answer.setup_of(planner, replace(system, drives=d), n) for d in DRIVES for n in numbers]
    found = [[round(e.value, 2), round(e.p10, 2), round(e.p90, 2)] for e in planner.training.au(setups)]
    width = len(numbers)
    return {
        "accelerators": numbers,
        "au": [found[i * width : (i + 1) * width] for i in range(len(DRIVES))],
        "greatest": [int(e.value) for e in most],
        "least": system.ask.least_pct,
    }
