"""`forebay emulate matrix`: the greatest number of accelerators for each workload, drive and number of drives.

A cell is a search, in a folder of its own, so that Ctrl-C loses nothing and a second call makes no run twice. Drives that are
here are read; the others are models of their data sheets in virtual time, and their cells are marked as simulated.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay import mpi
from forebay.bench import listen, save
from forebay.emulate import data, datasize, measure, search
from forebay.emulate.kept import FILE
from forebay.emulate.request import LEVEL_OF, Request, count
from forebay.emulate.workloads import load
from forebay.errors import DONE, INTERRUPTED, ForebayError, RequestError
from forebay.run import typed
from forebay.sweep.results import POINT, refuse_others
from forebay.units import GIB, parse_seconds

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

SCHEMA = "forebay.emulate-matrix/1"
SWEEP = "forebay.sweep/1"
FOLDER = "matrices"
KEYS = {"title", "method", "cites", "published", "rules", "accelerator", "workloads", "counts", "dataset_gib", "drive"}
EXAMPLES = """\b
Examples:
  forebay emulate matrix solidigm-mlperf                       (all drives modelled: takes minutes, needs no storage)
  forebay emulate matrix solidigm-mlperf --drive 'D7-PS1010=/mnt/ps1010-{n}/{workload}' --count 1 --count 2
  forebay report solidigm-mlperf/matrix.jsonl -o mlperf-style.html"""


@dataclass(frozen=True)
class Matrix:
    """A preset. `drives`: name → model."""

    name: str
    title: str
    method: str
    cites: tuple[str, ...]
    published: str
    rules: str
    accelerator: str
    workloads: tuple[str, ...]
    counts: tuple[int, ...]
    dataset_gib: float
    drives: Mapping[str, str]


@dataclass(frozen=True)
class Cell:
    workload: str
    drive: str
    drives: int
    source: str
    simulated: bool

    @property
    def name(self) -> str:
        return f"{self.workload}-{self.drive.lower()}-{self.drives}"


@click.command("matrix", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("preset")
@click.option(
    "--drive", "drives", multiple=True, metavar="NAME=SOURCE",
    help="Where a drive's data sets are; may contain {n} and {workload}.",
)
@click.option("--workload", "workloads", multiple=True, metavar="NAME", help="Only this workload of the preset; can be repeated.")
@click.option("--count", "counts", multiple=True, metavar="N", help="Only this number of drives; can be repeated.")
@click.option("--probe", default="20", show_default=True, metavar="TIME", help="Compute time of a probe, e.g. 20 or 1m.")
@click.option(
    "--confirm", default="5", show_default=True, metavar="N", help="Full runs that confirm a real drive's answer; 0: none."
)
@click.option("--max", "most", default="4096", show_default=True, metavar="N", help="Try no more than N accelerators.")
@click.option("--results", metavar="DIR", help="Where to keep the cells. Default: a folder named after the preset.")
@listen.option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    preset: str,
    drives: tuple[str, ...],
    workloads: tuple[str, ...],
    counts: tuple[str, ...],
    probe: str,
    confirm: str,
    most: str,
    results: str | None,
    metrics: str | None,
    as_json: bool,
) -> int:
    """How many accelerators do one or several of each drive keep busy? A published table, measured or simulated."""
    mpi.refuse("emulate matrix", "run it without mpirun: each cell uses one host")
    matrix = find(preset)
    sources = sources_of(drives, matrix)
    cells = list(cells_of(matrix, sources, workloads, [count(n, "--count") for n in counts]))
    check_folders(matrix, sources, cells)
    seconds = parse_seconds(probe, "--probe")
    if seconds <= 0:
        raise RequestError(f"--probe {probe}", "must be above 0", "--probe 20")
    if not (confirm.isascii() and confirm.isdigit() and len(confirm) < 4 and int(confirm) <= 100):
        raise RequestError(f"--confirm {confirm}", "is not a whole number from 0 to 100", "--confirm 5")
    asks = Asks(seconds, int(confirm), count(most, "--max"))
    with listen.listening(metrics) as listens:
        folder = measure.results_folder(results or preset)
        for name in ("matrix.json", "matrix.jsonl", *(f"{cell.name}/{search.RESULT}" for cell in cells)):
            save.refuse_to_replace(folder / name)
        for cell in cells:
            refuse_others(folder / cell.name / FILE)
        documents, code = play(matrix, cells, folder, asks, listens)
    document = report(matrix, cells, documents)
    keep(folder, matrix, cells, documents)
    save.write(folder / "matrix.json", [document])
    click.echo(json.dumps(document, indent=1) if as_json else "\n".join(lines(document, folder)))
    return code


@dataclass(frozen=True)
class Asks:
    """Settings of each cell's search."""

    probe_s: float
    confirmations: int
    most: int


# What is asked ------------------------------------------------------------------------------------------


def presets() -> dict[str, str]:
    """Name → TOML text."""
    folder = resources.files("forebay").joinpath("data").joinpath(FOLDER)
    return {
        entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".toml")
    }


def find(name: str) -> Matrix:
    from forebay.plan.catalogue import load_toml

    known = presets()
    if name not in known:
        raise RequestError(f"forebay emulate matrix {name}", "there is no such preset", f"one of {', '.join(known)}")
    data = load_toml(known[name], f"preset {name}")
    unknown = sorted(set(data) - KEYS)
    if unknown:
        reported = f"has unknown keys: {', '.join(unknown)}"
        raise RequestError(f"preset {name}", reported, "report this: it is a bug in Forebay")
    return Matrix(
        name=name,
        title=data["title"],
        method=data["method"].strip(),
        cites=tuple(data["cites"]),
        published=data["published"],
        rules=data["rules"],
        accelerator=data["accelerator"],
        workloads=tuple(data["workloads"]),
        counts=tuple(data["counts"]),
        dataset_gib=float(data["dataset_gib"]),
        drives={d["name"]: d["model"] for d in data["drive"]},
    )


def sources_of(settings: Sequence[str], matrix: Matrix) -> dict[str, str]:
    """Drive → source, of `NAME=SOURCE` settings."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, source = setting.partition("=")
        if not equals or not source:
            raise RequestError(f"--drive {setting}", "is not NAME=SOURCE", "--drive D7-PS1010=/mnt/ps1010/{workload}")
        match = next((known for known in matrix.drives if known.lower() == name.lower()), None)
        if match is None:
            reported = f"{name} isn't a drive of {matrix.name}"
            raise RequestError(f"--drive {setting}", reported, "one of " + ", ".join(matrix.drives))
        if match in found:
            raise RequestError(f"--drive {setting}", f"names {match} a second time", "{n} and {workload} in one SOURCE")
        found[match] = source
    return found


def cells_of(matrix: Matrix, sources: Mapping[str, str], workloads: Sequence[str], counts: Sequence[int]) -> Iterator[Cell]:
    strange = [w for w in workloads if w not in matrix.workloads]
    if strange:
        raise RequestError(f"--workload {strange[0]}", f"isn't part of {matrix.name}", "one of " + ", ".join(matrix.workloads))
    for workload in workloads or matrix.workloads:
        for drive, model in matrix.drives.items():
            for number in counts or matrix.counts:
                place = sources.get(drive)
                named = f"model:{model}?drives={number}" if place is None else placed(place, number, workload)
                yield Cell(workload, drive, number, named, place is None)


def placed(source: str, number: int, workload: str) -> str:
    return source.replace("{n}", str(number)).replace("{workload}", workload)


def check_folders(matrix: Matrix, sources: Mapping[str, str], cells: Sequence[Cell]) -> None:
    """RequestError where folders of a drive that is here are missing: a cell of it would fail after others took minutes."""
    for drive, source in sources.items():
        named = [cell for cell in cells if cell.drive == drive]
        missing = [cell for cell in named if data.is_missing(cell.source)]
        if missing:
            first, more = missing[0], len({cell.source for cell in missing}) - 1
            others = f", nor {more} other{'s' if more > 1 else ''} that it names" if more else ""
            make = f"forebay emulate datagen --workload {first.workload} --accelerator {matrix.accelerator} --data {first.source}"
            raise RequestError(
                f"--drive {drive}={source}",
                f"there is no {first.source}{others}",
                f"{make}; or another SOURCE; --workload and --count leave out what isn't there",
            )


def request_for(matrix: Matrix, cell: Cell, probe_s: float) -> Request:
    """Returns the settings that the cell's runs share. A model's data set has the paper's size; a real one has the size it has.

    A model's epochs are alike: one of as many steps as the rules want at least, and no shorter than a probe.
    """
    workload, rules = load(cell.workload, matrix.accelerator, matrix.rules)
    steps = max(datasize.STEPS_MIN, math.ceil(probe_s / workload.compute_s))
    file_bytes = workload.samples_per_file * workload.record_bytes
    return Request(
        workload=workload,
        rules=rules,
        level=LEVEL_OF[rules],
        data=(cell.source,),
        files=int(matrix.dataset_gib * GIB / file_bytes) if cell.simulated else None,
        epochs=1 if cell.simulated else workload.epochs,
        steps=steps if cell.simulated else None,
        prefetch=workload.prefetch,
        read_threads=workload.read_threads,
        job={} if cell.simulated else {"cache": "drop"},
    )


# What is done -------------------------------------------------------------------------------------------


def play(
    matrix: Matrix, cells: Sequence[Cell], folder: Path, asks: Asks, listens: Endpoint | None = None
) -> tuple[list[dict[str, Any] | None], int]:
    """Each cell's document, None where it has none; and the exit code. Ctrl-C ends it; a cell that fails is told and left out."""
    documents: list[dict[str, Any] | None] = []
    code = DONE
    for number, cell in enumerate(cells, 1):
        if code == INTERRUPTED:
            documents.append(None)
            continue
        if listens is not None:
            listens.tell(cell=number, cells=len(cells))
        began = time.monotonic()
        try:
            found, interrupted = one(matrix, cell, folder / cell.name, asks, listens)
        except ForebayError as error:
            click.echo(f"forebay: {cell.name}: {error}", err=True)
            documents.append(None)
            code = error.exit_code
            continue
        documents.append(found)
        code = INTERRUPTED if interrupted else code
        took = time.monotonic() - began
        click.echo(f"[{number}/{len(cells)}] {cell.name:<24} {reported(found)}  {took:.1f} s", err=True)
    return documents, code


def one(
    matrix: Matrix, cell: Cell, folder: Path, asks: Asks, listens: Endpoint | None = None
) -> tuple[dict[str, Any] | None, bool]:
    """A cell's search: its document, and whether Ctrl-C ended it."""
    request = request_for(matrix, cell, asks.probe_s)
    held = search.samples_held(request)
    most = search.largest(request, held, asks.most)
    wanted = search.definition(request, asks.probe_s)
    with search.Kept(measure.results_folder(str(folder)), request, wanted, False) as kept:
        hunt = search.Hunt(search.Team(None, request, asks.probe_s), kept, True, held, listens, cell.name)
        # A simulation gives the same figure each time: there is nothing to confirm.
        greatest = hunt.greatest(most, 0 if cell.simulated else asks.confirmations)
        began, interrupted = time.monotonic(), False
        try:
            greatest.search()
        except search.Interrupted:
            interrupted = True
        if not greatest.trials:
            return None, interrupted
        document = search.document_of(hunt, greatest, time.monotonic() - began, interrupted)
        save.write(folder / search.RESULT, [document])
        return document, interrupted


def reported(document: Mapping[str, Any] | None) -> str:
    if document is None:
        return "nothing"
    found = document["search"]
    au = found["au_pct"]
    limit = found["limit"]["id"]
    return f"{found['accelerators']:>5} accelerators, AU {au:.1f} %, limit {limit}" if au is not None else "too few steps"


# What is shown ------------------------------------------------------------------------------------------


def keep(folder: Path, matrix: Matrix, cells: Sequence[Cell], documents: Sequence[dict[str, Any] | None]) -> None:
    """matrix.jsonl, as a sweep leaves its results: what `forebay report` draws."""
    header = {
        "schema": SWEEP,
        "preset": matrix.name,
        "origin": "forebay emulate matrix",
        "title": matrix.title,
        "method": matrix.method,
        "cites": list(matrix.cites),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": typed(),
        "sources": [],
        "definition": {"points": [vars(c) for c in cells]},
        "frozen": {},
    }
    made: list[dict[str, Any]] = [header]
    for cell, document in zip(cells, documents, strict=True):
        if document is not None:
            named = {"schema": POINT, "preset": matrix.name, "key": cell.name, "round": 0, "name": cell.name, "point": vars(cell)}
            made.append({**named, "record": document})
    save.write_text(folder / "matrix.jsonl", "".join(json.dumps(line) + "\n" for line in made))


def report(matrix: Matrix, cells: Sequence[Cell], documents: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Schema forebay.emulate-matrix/1: a row per cell, with the published one beside it."""
    theirs = published(matrix)
    rows = []
    for cell, document in zip(cells, documents, strict=True):
        paper = theirs.get((cell.workload, cell.drive, cell.drives), {})
        rows.append({**vars(cell), **ours(document), **{f"published_{k}": v for k, v in paper.items()}})
    return {
        "schema": SCHEMA,
        "label": "MLPerf-style, unverified",
        "preset": matrix.name,
        "title": matrix.title,
        "rules": matrix.rules,
        "accelerator": matrix.accelerator,
        "cites": list(matrix.cites),
        "rows": rows,
    }


def ours(document: Mapping[str, Any] | None) -> dict[str, Any]:
    if document is None:
        return {"accelerators": None, "au_pct": None, "throughput_mib_s": None, "confirmed": False, "limit": None}
    found, training = document["search"], document["training"]
    passes = found["accelerators"] > 0
    return {
        "accelerators": found["accelerators"],
        "au_pct": found["au_pct"],
        "throughput_mib_s": training["throughput_mib_s"] if passes else None,
        "confirmed": found["confirmed"],
        "limit": found["limit"]["text"],
    }


def published(matrix: Matrix) -> dict[tuple[str, str, int], dict[str, float | None]]:
    """(workload, drive, drives) → the paper's accelerators, AU in per cent (mean of its runs) and MiB/s; None where blank."""
    place = resources.files("forebay").joinpath("data").joinpath("published").joinpath("tables").joinpath(matrix.published)
    found: dict[tuple[str, str, int], dict[str, float | None]] = {}
    for row in csv.DictReader(io.StringIO(place.read_text(encoding="utf-8"))):
        utilisations = [float(row[f"au_{n}_pct"]) for n in range(1, 6) if row[f"au_{n}_pct"]]
        found[row["workload"], row["drive"], int(row["n_drives"])] = {
            "accelerators": _number(row["accelerators_h100_emulated"]),
            "au_pct": sum(utilisations) / len(utilisations) if utilisations else None,
            "throughput_mib_s": _number(row["throughput_mibps"]),
            "passes": {"true": 1.0, "false": 0.0}.get(row["valid"]),
        }
    return found


def _number(text: str) -> float | None:
    return float(text) if text else None


def lines(document: Mapping[str, Any], folder: Path) -> list[str]:
    """The table, by workload."""
    which = str(document["accelerator"]).upper()
    made = [f"{document['title']} ({document['label']})"]
    for workload in dict.fromkeys(r["workload"] for r in document["rows"]):
        made.append("")
        titles = f"{which + 's':>9}{'AU %':>8}{'MiB/s':>10}   {'published':>9}{'AU %':>8}{'MiB/s':>10}"
        made.append(f"{workload:<12}{'drives':>8}{titles}")
        for row in (r for r in document["rows"] if r["workload"] == workload):
            own = [_shown(row["accelerators"], 0), _shown(row["au_pct"], 1), _shown(row["throughput_mib_s"], 0)]
            keys = ("published_accelerators", "published_au_pct", "published_throughput_mib_s")
            paper = [_shown(row.get(k), d) for k, d in zip(keys, (0, 1, 0), strict=True)]
            mark = " simulated" if row["simulated"] else "" if row["confirmed"] else " not confirmed"
            values = f"{own[0]:>9}{own[1]:>8}{own[2]:>10}   {paper[0]:>9}{paper[1]:>8}{paper[2]:>10}"
            made.append(f"{row['drive']:<12}{row['drives']:>8}{values}{mark}")
    made += ["", "In the paper, hosts limit the larger cells and some data came from the page cache; a model has neither effect."]
    made.append(f"kept      {folder}; forebay report {folder / 'matrix.jsonl'} shows it")
    return made


def _shown(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
