"""Saved calibrations: what `plan calibrate --out` writes and `--calibration` reads.

The file holds the runs themselves and the drive's data sheet, so it needs neither the records nor the catalogue that it
came from, and a later version calibrates by its own models. The parameters in it are for readers; they aren't read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forebay.errors import RequestError
from forebay.plan import calibrate, catalogue, cores, cpu, flow, own
from forebay.plan.planner import Planner

SCHEMA = "forebay.calibration/2"
AGAIN = "forebay plan calibrate RUNS… --drive NAME --out FILE"
FILE_BYTES_MAX = 4 << 20
# Numbers of a run and what they may be; None may stand for those in MAYBE.
BOUNDS = {
    "io_kib": (0.5, float(1 << 20)),
    "workers": (1.0, 1e6),
    "depth": (1.0, 1e6),
    "drives": (1.0, 1e6),
    "gibps": (1e-9, 1e6),
    "queues": (1.0, float(flow.QUEUES_MAX)),
    "user_cores": (0.0, 1e6),
    "system_cores": (0.0, 1e6),
}
MAYBE = ("queues", "user_cores", "system_cores")


@dataclass(frozen=True)
class Calibration:
    """A drive's data sheet, and runs of one machine on it."""

    drive: catalogue.Drive
    runs: list[calibrate.Found]


def document(found: dict[str, Any], runs: Sequence[calibrate.Found], drive: catalogue.Drive) -> dict[str, Any]:
    """Returns `calibrate`'s findings with the runs and the data sheet: forebay.calibration/2."""
    sheet = {k: v for k, v in asdict(drive).items() if v is not None and v != ""}
    hosts = sorted({r.host for r in runs if r.host})
    host = hosts[0] if hosts else None
    return {"schema": SCHEMA, **found, "host": host, "sheet": sheet, "points": [_point(r) for r in runs]}


def _point(run: calibrate.Found) -> dict[str, Any]:
    load = run.measured.load
    return {
        "io_kib": load.io_kib,
        "workers": load.workers,
        "depth": load.depth,
        "drives": load.drives,
        "path": load.path,
        "remote": load.remote,
        "queues": load.queues,
        "gibps": run.measured.gibps,
        "user_cores": run.spent.user if run.spent else None,
        "system_cores": run.spent.system if run.spent else None,
        "origin": run.origin,
        "simulated": run.simulated,
        "doubt": run.doubt,
    }


def read(text: str, where: str) -> Calibration:
    """A file that `calibrate --out` wrote. RequestError for any other, naming the point and what is wrong with it."""
    if len(text) > FILE_BYTES_MAX:
        raise RequestError(where, f"is larger than {FILE_BYTES_MAX >> 20} MiB", AGAIN)
    try:
        found = json.loads(text)
    except RecursionError:
        raise RequestError(where, "is nested too deeply", AGAIN) from None
    except ValueError as error:
        raise RequestError(where, f"is not JSON: {error}", AGAIN) from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        said = f"is of schema {schema!r}" if schema else "is not a calibration"
        raise RequestError(where, f"{said}; this version reads {SCHEMA}", AGAIN)
    sheet, points = found.get("sheet"), found.get("points")
    if not isinstance(sheet, dict) or not isinstance(points, list):
        raise RequestError(where, "has no 'sheet' or no 'points'", AGAIN)
    if len(points) > calibrate.POINTS_MAX:
        raise RequestError(where, f"has {len(points)} points", f"at most {calibrate.POINTS_MAX}")
    drive = catalogue.drives_of({"drive": [sheet]}, where)[0]
    host = found.get("host") if isinstance(found.get("host"), str) else None
    return Calibration(drive, [_run(point, f"{where}, point {i}", drive.name, host) for i, point in enumerate(points, 1)])


def _run(point: Any, where: str, drive: str, host: str | None) -> calibrate.Found:
    if not isinstance(point, dict):
        raise RequestError(where, "is not an object", AGAIN)
    got = {name: _number(point, name, where) for name in BOUNDS}
    path, remote, simulated = point.get("path"), point.get("remote", False), point.get("simulated", False)
    if path not in cpu.PATHS or not isinstance(remote, bool):
        raise RequestError(where, f"path {path!r}, remote {remote!r}", "path gds or cpu, remote true or false")
    if not isinstance(simulated, bool):
        raise RequestError(where, f"simulated {simulated!r}"[:200], "simulated true or false")
    if got["queues"] is not None and not remote:
        raise RequestError(where, "has queues but is of a local drive", "remote true, or queues null")
    kib, workers, depth, drives, rate = (got[n] or 0.0 for n in ("io_kib", "workers", "depth", "drives", "gibps"))
    load = flow.Load(drive, kib, workers, path, remote, drives, depth, got["queues"])
    spent = None
    if got["user_cores"] is not None and got["system_cores"] is not None:
        spent = cores.Spent(cpu.Work(path, kib, rate), got["user_cores"], got["system_cores"])
    origin, doubt = point.get("origin"), point.get("doubt", "")
    if not isinstance(doubt, str):
        raise RequestError(where, f"doubt {doubt!r}"[:200], "a text, or none")
    named = origin if isinstance(origin, str) else where
    return calibrate.Found(flow.Measured(load, rate), named, host, spent, simulated, doubt)


def _number(point: Mapping[str, Any], name: str, where: str) -> float | None:
    value = point.get(name)
    if value is None and name in MAYBE:
        return None
    low, high = BOUNDS[name]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise RequestError(f"{where}: {name} {value!r}"[:200], f"must be a number from {low:g} to {high:g}", AGAIN)


def planner(base: Planner, runs: Sequence[calibrate.Found], drive: catalogue.Drive, more: list[catalogue.Drive]) -> Planner:
    """As `base`, but throughput and cores go by these runs alone, and so does what such drives deliver to any workload.

    RequestError where they can't calibrate.
    """
    made = base.with_drives([d for d in more if d not in base.more])
    made.__dict__["flow"], found = calibrate.calibrate(runs, drive, more)
    made.own = own.Own(drive.name, runs, made.flow)
    made.__dict__["cores"] = calibrate.cores_of(runs)
    made.notes = [f"calibration: {text}" for text in [*(f"outlier: {o}" for o in found["outliers"]), *found["warnings"]]]
    return made
