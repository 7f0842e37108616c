"""`forebay plan backtest`: every measured cell predicted by a planner that was calibrated without it and its like.

What "its like" is decides how honest the figure is, so each module is tried several ways: without the cell itself,
without a whole row or column of its table, without all of a drive. Beside each stands the module's trivial baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from forebay.plan import baselines, catalogue
from forebay.plan.estimate import Estimate
from forebay.plan.planner import AU_COLUMNS, Planner, load_of, mean_au, micron_value
from forebay.plan.published import Row, number, where_of
from forebay.plan.score import Cell
from forebay.plan.tables import FORMS, Form
from forebay.plan.training import pass_pct

Tables = Mapping[str, Sequence[Row]]
FLOW_TABLES = ("gds_vs_cpu", "remote_vs_local", "snap_queues")
FORM = {f.name: f for f in FORMS} | {"snap_queues": next(f for f in FORMS if f.name == "remote_vs_local")}

# Whatever a stranger's runs told, so that a data sheet is all that is left.
OF_A_RUN = ("au_mean_pct", "au_min_pct", "au_max_pct", "throughput_mibps", "samples_per_s", "identity_ratio")


@dataclass(frozen=True)
class Module:
    """`kinds`: ways of leaving out, each a label by row; rows of `tables` with the label of a cell go out with it."""

    name: str
    tables: tuple[str, ...]
    asks: Callable[[Row], bool]
    value: Callable[[Row], float | None]
    blank: tuple[str, ...]
    column: str
    measure: str
    kinds: Mapping[str, Callable[[Row], tuple]]
    baseline: Callable[[Planner, str, Row], float | None]
    baseline_name: str
    least: Callable[[Row], float | None] = lambda row: None


def _place(row: Row) -> tuple:
    """Returns the setting in which a throughput was measured, whichever table says so."""
    load = load_of(row)
    queues = (load.queues or 31.0) if load.remote else 0.0
    return (load.drive, load.remote, load.path, load.io_kib, queues)


def _local(row: Row) -> bool:
    return row.get("location", "local") == "local"


def _queued(row: Row) -> bool:
    return not _local(row) and row.get("snap_queues", "").isdigit()


def _remote_of_drive(row: Row) -> tuple:
    return _place(row) if _local(row) else (row["drive"], "remote")


def _unqueued(row: Row) -> bool:
    return not _local(row) and not row.get("snap_queues", "").isdigit()


MODULES = (
    Module(
        "local throughput",
        FLOW_TABLES,
        _local,
        lambda row: number(row, "throughput_gibps"),
        ("throughput_gibps", "cpu_usr_pct"),
        "throughput_gibps",
        "pct",
        {
            "cell": _place,
            "block size of a drive": lambda row: (_place(row)[:2], _place(row)[3]),
            "drive": lambda row: _place(row)[:1],
        },
        baselines.interpolated,
        "interpolation in log size",
    ),
    Module(
        "remote throughput",
        FLOW_TABLES,
        _unqueued,
        lambda row: number(row, "throughput_gibps"),
        ("throughput_gibps",),
        "throughput_gibps",
        "pct",
        {
            "cell": _place,
            "all remote cells of the drive": _remote_of_drive,
        },
        baselines.as_local,
        "remote = local",
    ),
    Module(
        "DPU queues",
        FLOW_TABLES,
        _queued,
        lambda row: number(row, "throughput_gibps"),
        ("throughput_gibps",),
        "throughput_gibps",
        "pct",
        {
            "cell": _place,
            "block size": lambda row: (_place(row)[:2], _place(row)[3]) if not _local(row) else _place(row),
            "number of queues": lambda row: (_place(row)[:2], _place(row)[4]) if not _local(row) else _place(row),
            "all remote cells of the drive": _remote_of_drive,
        },
        baselines.interpolated,
        "interpolation in log size, nearest queues",
    ),
    Module(
        "greatest number of accelerators",
        ("mlperf_storage",),
        lambda row: row.get("valid") == "true",
        lambda row: number(row, "accelerators_h100_emulated"),
        ("accelerators_h100_emulated", *AU_COLUMNS, "throughput_mibps"),
        "accelerators_h100_emulated",
        "count",
        {
            "cell": lambda row: (row["workload"], row["drive"], row["n_drives"]),
            "drives of a kind and number": lambda row: (row["drive"], row["n_drives"]),
            "number of drives": lambda row: (row["n_drives"],),
            "drive": lambda row: (row["drive"],),
            "workload": lambda row: (row["workload"],),
        },
        baselines.sheet_count,
        "specification over demand",
    ),
    Module(
        "AU at a given number",
        ("mlperf_storage",),
        lambda row: bool(row.get("accelerators_h100_emulated")),
        mean_au,
        (*AU_COLUMNS, "throughput_mibps"),
        AU_COLUMNS[0],
        "points",
        {
            "cell": lambda row: (row["workload"], row["drive"], row["n_drives"]),
            "drives of a kind and number": lambda row: (row["drive"], row["n_drives"]),
            "number of drives": lambda row: (row["n_drives"],),
            "drive": lambda row: (row["drive"],),
            "workload": lambda row: (row["workload"],),
        },
        baselines.mean_of_workload,
        "mean AU of the workload's other rows",
        lambda row: pass_pct(row["workload"]),
    ),
    Module(
        "user CPU",
        ("gds_vs_cpu",),
        lambda row: True,
        lambda row: v if (v := number(row, "cpu_usr_pct")) and v >= 0.1 else None,
        ("cpu_usr_pct", "throughput_gibps"),
        "cpu_usr_pct",
        "pct",
        {
            "cell": lambda row: (row["drive"], row["path"], row["io_size_kib"]),
            "block size": lambda row: (row["io_size_kib"],),
            "drive": lambda row: (row["drive"],),
        },
        baselines.interpolated_cpu,
        "interpolation in log size",
    ),
    Module(
        "4 KiB random reads",
        ("micron_gds",),
        lambda row: True,
        micron_value,
        ("value",),
        "value",
        "pct",
        {
            "cell": lambda row: tuple(row[c] for c in FORM["micron_gds"].key),
            "path": lambda row: (row["path"],),
        },
        baselines.sheet_random,
        "the drive's data sheet",
    ),
    Module(
        "DLRM minutes",
        ("dlrm_training_time",),
        lambda row: True,
        lambda row: number(row, "training_time_min"),
        ("training_time_min",),
        "training_time_min",
        "pct",
        {
            "cell": lambda row: (row["system"], row["drive"], row["n_drives"]),
            "drive": lambda row: (row["drive"],),
            "system": lambda row: (row["system"],),
        },
        baselines.sheet_minutes,
        "hard maximum of compute and specification",
    ),
    Module(
        "other submitters: AU",
        ("ext_mlperf_storage_v1.0",),
        lambda row: True,
        lambda row: number(row, "au_mean_pct"),
        OF_A_RUN,
        "au_mean_pct",
        "points",
        {
            "submitter": lambda row: (row["org"],),
            "accelerator of a workload": lambda row: (row["workload"], row["accel_type"]),
        },
        baselines.mean_of_others,
        "mean AU of the workload at other submitters",
    ),
    Module(
        "other submitters: MiB/s",
        ("ext_mlperf_storage_v1.0",),
        lambda row: True,
        lambda row: number(row, "throughput_mibps"),
        OF_A_RUN,
        "throughput_mibps",
        "pct",
        {
            "submitter": lambda row: (row["org"],),
            "accelerator of a workload": lambda row: (row["workload"], row["accel_type"]),
        },
        baselines.demand_of_others,
        "accelerators × demand × AU that must be reached",
    ),
    Module(
        "other submitters: accelerators",
        ("ext_mlperf_storage_v1.0",),
        lambda row: True,
        lambda row: number(row, "num_accelerators"),
        ("num_accelerators", *OF_A_RUN),
        "num_accelerators",
        "count",
        {
            "submitter": lambda row: (row["org"],),
            "accelerator of a workload": lambda row: (row["workload"], row["accel_type"]),
        },
        baselines.count_of_others,
        "median per host at other submitters",
    ),
    Module(
        "DLRM runs of others, minutes",
        ("ext_mlperf_training_v4.1_dlrm_runs",),
        lambda row: True,
        lambda row: number(row, "run_min"),
        FORM["ext_mlperf_training_v4.1_dlrm_runs"].fills,
        "run_min",
        "pct",
        {"system": lambda row: (row["org"], row["system"]), "submitter": lambda row: (row["org"],)},
        baselines.minutes_of_others,
        "median of other systems' runs",
    ),
)


def run(
    cells: Tables,
    known: Tables,
    kinds: Sequence[str] | None = None,
    more: Sequence[catalogue.Drive] = (),
    modules: Sequence[str] | None = None,
) -> dict[str, dict[str, list[Cell]]]:
    """Module → way of leaving out → cells. `cells`: what is to be predicted; `known`: what may calibrate."""
    found: dict[str, dict[str, list[Cell]]] = {}
    made: dict[tuple, Planner] = {}

    def planner_of(module: Module, label: Callable[[Row], tuple], out: tuple) -> Planner:
        # Modules of the same tables leave the same out of them for some of their cells.
        kept = {n: [r for r in rows if label(r) != out] if n in module.tables else rows for n, rows in known.items()}
        key = tuple((n, *(id(r) for r in kept[n])) for n in module.tables if n in kept)
        if key not in made:
            made[key] = Planner(kept, more)
        return made[key]

    for module in MODULES:
        if modules is not None and module.name not in modules:
            continue
        for kind, label in module.kinds.items():
            if kinds is not None and kind not in kinds:
                continue
            done = list(_fold(module, label, cells, planner_of))
            if done:
                found.setdefault(module.name, {})[kind] = done
    return found


def _fold(
    module: Module,
    label: Callable[[Row], tuple],
    cells: Tables,
    planner_of: Callable[[Module, Callable[[Row], tuple], tuple], Planner],
) -> Iterator[Cell]:
    asked = [
        (table, row)
        for table in module.tables
        for row in cells.get(table, ())
        if module.asks(row) and module.value(row) is not None
    ]
    for out in dict.fromkeys(label(row) for _, row in asked):
        planner = planner_of(module, label, out)
        for table, row in asked:
            if label(row) == out:
                yield _cell(module, planner, table, row, out)


def _cell(module: Module, planner: Planner, table: str, row: Row, out: tuple) -> Cell:
    form: Form = FORM[table]
    blanked = {**row, **{c: "" for c in module.blank if c in row}}
    estimate: Estimate = form.predict(planner, [blanked], where_of(table, [row]))[0][module.column]
    published = module.value(row)
    assert published is not None
    words = [row[c] for c in form.key if row.get(c) and c not in ("dataset_gib", "gdsio_workers", "file")]
    return Cell(
        " ".join(words),
        ", ".join(str(part) for part in _flat(out)),
        published,
        estimate.value,
        estimate.p10,
        estimate.p90,
        module.baseline(planner, table, blanked),
        module.measure,
        module.least(row),
    )


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def folder(path: str) -> dict[str, list[Row]]:
    """The tables of a folder by the name of their form. RequestError where there is none; other CSV files are skipped."""
    from pathlib import Path

    from forebay.errors import RequestError
    from forebay.plan.catalogue import read_text
    from forebay.plan.published import parse
    from forebay.plan.tables import recognise

    files = sorted(Path(path).glob("*.csv"))
    if not files:
        raise RequestError(f"folder {path}", "holds no .csv file", "a folder with tables in a published format")
    found: dict[str, list[Row]] = {}
    for file in files:
        columns, rows = parse(read_text(str(file), "table"), str(file))
        try:
            name = recognise(columns, str(file)).name
        except RequestError:
            continue
        if name == "remote_vs_local" and rows and _queued(rows[0]):
            name = "snap_queues"
        found.setdefault(name, []).extend(rows)
    if not found:
        raise RequestError(f"folder {path}", "holds no table in a known format", "tables as docs/plan.md shows them")
    return found
