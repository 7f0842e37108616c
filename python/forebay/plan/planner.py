"""All modules, each calibrated when first used, from tables of measurements: the published ones unless others are given."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.paths import GDS
from forebay.plan import catalogue, cores, cpu, dlrm, flow, others, random_reads, starting, training
from forebay.plan.frozen import replace
from forebay.plan.own import Own
from forebay.plan.published import Row, below, count, number, positive, table

if TYPE_CHECKING:
    from forebay.plan.trained import Demand

TABLES = (
    "gds_vs_cpu",
    "remote_vs_local",
    "snap_queues",
    "mlperf_storage",
    "micron_gds",
    "dlrm_training_time",
    "ext_mlperf_storage_v1.0",
    "ext_mlperf_training_v4.1_dlrm_runs",
)
FLOW_TABLES = TABLES[:3]
AU_COLUMNS = tuple(f"au_{i}_pct" for i in range(1, 6))
# gdsio's -w in the published runs, where a row doesn't say: 32 up to 128 KiB, 24 above.
WORKERS_SMALL, WORKERS_LARGE, SMALL_KIB = 32.0, 24.0, 128.0
MICRON_DRIVE = "Micron 9300 PRO"
# How a cell says that nobody said.
UNSTATED = ("not ", "unknown", "n/a")
# Memory (GiB) and hardware threads of the published MLPerf Storage hosts, from systems.csv.
SYSTEMS = {"D54U-3U": (2048.0, 208.0), "D74H-7U": (2048.0, 224.0)}
# Of a host by another name the same is taken; the logarithm of its threads is then unsure by so much, 32 to 512 or so.
THREADS_SD = 0.6


class Planner:
    """`tables`: rows by table name; `more`: drives beside the package's catalogue. `base`: what is calibrated already, by
    the same tables and without those drives. `start`: where each module's fit begins to look.
    """

    def __init__(
        self,
        tables: Mapping[str, Sequence[Row]],
        more: Sequence[catalogue.Drive] = (),
        base: Planner | None = None,
        start: starting.Start | None = None,
    ) -> None:
        self.tables, self.more, self._base, self._start = tables, list(more), base, start or {}
        # What there is to know of the runs that calibrated it.
        self.notes: list[str] = []
        self.own: Own | None = None
        # What the user's runs of a training or an inference took.
        self.demand: Demand | None = None
        # Requests in flight that systems need, by their number of drives: forebay.plan.assume keeps them here.
        self.fewest: dict[Any, dict[int, int]] = {}

    def with_drives(self, more: Sequence[catalogue.Drive]) -> Planner:
        """This one, that knows these drives too. Calibrated anew where one of them is another sheet of a known drive."""
        known = {**catalogue.drives(), **{d.name.lower(): d for d in self.more}}
        other = any(known.get(d.name.lower(), d) != d for d in more)
        return Planner(self.tables, [*self.more, *more], None if other else self)

    def own_of(self, drive: str) -> Own | None:
        """The user's own runs, where they are of such drives."""
        return self.own if self.own is not None and self.own.is_for(drive) else None

    def rows(self, name: str) -> Sequence[Row]:
        return self.tables.get(name, ())

    @cached_property
    def flow(self) -> flow.Flow:
        if self._base is not None:
            return self._base.flow.with_drives(self.more)
        rows = [row for name in FLOW_TABLES for row in self.rows(name)]
        return flow.Flow(flow_cells(rows), self.more, self._start.get("flow"))

    @cached_property
    def user_cpu(self) -> cpu.UserCpu:
        if self._base is not None:
            return self._base.user_cpu
        cells = []
        for row in self.rows("gds_vs_cpu"):
            pct, rate = number(row, "cpu_usr_pct"), number(row, "throughput_gibps")
            if pct and rate:
                cells.append((cpu.Work(row["path"], positive(row, "io_size_kib"), rate), pct))
        return cpu.UserCpu(cells, self._start.get("user_cpu"))

    @cached_property
    def cores(self) -> cores.Cores:
        """By no table: none has kernel time. `--runs` calibrates it."""
        if self._base is not None:
            return self._base.cores
        return cores.Cores()

    @cached_property
    def training(self) -> training.Training:
        if self._base is not None:
            return self._base.training.with_drives(self.more)
        runs = []
        for row in self.rows("mlperf_storage"):
            au = mean_au(row)
            if au is not None and number(row, "accelerators_h100_emulated"):
                runs.append(training.Run(setup_of(row), au, row.get("valid", "") == "true"))
        return training.Training(runs, self.more, self._start.get("training"))

    @cached_property
    def random_reads(self) -> random_reads.RandomReads:
        cells = []
        for row in self.rows("micron_gds"):
            value = micron_value(row)
            if value:
                cells.append((point_of(row), value))
        return random_reads.RandomReads(cells, catalogue.drive(MICRON_DRIVE, self.more))

    def training_time(self, systems: Sequence[str] = ()) -> dlrm.TrainingTime:
        cells = []
        for row in self.rows("dlrm_training_time"):
            minutes = number(row, "training_time_min")
            if minutes:
                cells.append((job_of(row), minutes, row.get("approximate") == "true"))
        return dlrm.TrainingTime(cells, systems, self.more)

    @cached_property
    def others(self) -> others.Others:
        if self._base is not None:
            return self._base.others
        results = []
        for row in self.rows("ext_mlperf_storage_v1.0"):
            au, ratio = number(row, "au_mean_pct"), number(row, "identity_ratio")
            if au and ratio and number(row, "num_accelerators"):
                results.append(others.Result(system_of(row), au, ratio))
        return others.Others(results)


@lru_cache(maxsize=1)
def published() -> Planner:
    """Calibrated by the published tables."""
    return Planner(_Published(), start=starting.packaged())


class _Published(Mapping[str, Sequence[Row]]):
    """The tables that come with Forebay, each read when it is first asked for."""

    def __getitem__(self, name: str) -> Sequence[Row]:
        if name not in TABLES:
            raise KeyError(name)
        return table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES)

    def __len__(self) -> int:
        return len(TABLES)


def flow_cells(rows: Sequence[Row]) -> list[flow.Measured]:
    """Measured throughput, each once: the same cell stands in two of the papers' tables."""
    found: dict[tuple, flow.Measured] = {}
    for row in rows:
        rate = number(row, "throughput_gibps")
        if rate:
            load = load_of(row)
            found[load, rate] = flow.Measured(load, rate)
    return list(found.values())


def load_of(row: Row, where: str = "") -> flow.Load:
    """A row of gds_vs_cpu, remote_vs_local or snap_queues."""
    kib = positive(row, "io_size_kib", where)
    remote = row.get("location", "local") == "remote"
    workers = count(row, "gdsio_workers", where)
    if workers is None:
        workers = WORKERS_SMALL if kib <= SMALL_KIB else WORKERS_LARGE
    return flow.Load(
        drive=row["drive"],
        io_kib=kib,
        workers=workers,
        path=row.get("path", GDS) or GDS,
        remote=remote,
        queues=_queues(row, remote, where),
    )


def _queues(row: Row, remote: bool, where: str) -> float | None:
    """Returns the queues of the DPU; None where the row says nothing, or "not stated" and the like: as many as there can be."""
    text = row.get("snap_queues", "")
    if not text or text.lower().startswith(UNSTATED):
        return None
    queues = count(row, "snap_queues", where)
    at = f"{where or 'table'}, column snap_queues"
    if not remote:
        raise RequestError(at, f"is {text}, and a local drive has no DPU queues", "location remote, or a blank cell")
    if queues is not None and queues > flow.QUEUES_MAX:
        raise RequestError(at, f"is {text}; a DPU offers 1 to {flow.QUEUES_MAX} queues", f"at most {flow.QUEUES_MAX}")
    return queues


def setup_of(row: Row, where: str = "") -> training.Setup:
    """A row of mlperf_storage."""
    memory, threads = SYSTEMS.get(row.get("system", ""), SYSTEMS["D54U-3U"])
    dataset = positive(row, "dataset_gib", where) if row.get("dataset_gib") else training.RULE_OF_FIVE * memory
    # A data set smaller than the machine's memory, whose rates stay at the drives': memory was limited to a fifth of it.
    memory = memory if dataset >= memory else dataset / training.RULE_OF_FIVE
    return training.Setup(
        workload=row["workload"],
        drive=row["drive"],
        drives=_drives(row, where),
        accelerators=count(row, "accelerators_h100_emulated", where),
        dataset_gib=dataset,
        memory_gib=memory,
        threads=threads,
        ask=_ask(row, where),
    )


def _ask(row: Row, where: str) -> training.Ask | None:
    """Returns the demand of a row that says itself what AU must be reached; None where that is the rules' own."""
    least, usual = number(row, "au_threshold_pct", where), training.pass_pct(row["workload"])
    if least is None or usual is None or least == usual:
        return None
    if not 0 < least <= 100:
        raise RequestError(f"{where or 'table'}, column au_threshold_pct", f"is {least:g}", "a number above 0 and at most 100")
    return replace(training.usual_ask(row["workload"], "h100"), least_pct=least)


def _drives(row: Row, where: str) -> float:
    return count(row, "n_drives", where) or positive(row, "n_drives", where)


def mean_au(row: Row) -> float | None:
    found = [v for c in AU_COLUMNS if (v := number(row, c)) is not None]
    return statistics.fmean(found) if found else None


def micron_value(row: Row) -> float | None:
    """The value, or somewhat below the bound of a cell such as `<6`."""
    bound = below(row.get("value", ""))
    return random_reads.BELOW * bound if bound is not None else number(row, "value")


def point_of(row: Row, where: str = "") -> random_reads.Point:
    """A row of micron_gds."""
    return random_reads.Point(
        row["metric"],
        row["path"],
        positive(row, "io_size_kib", where),
        count(row, "workers_per_gpu_drive_pair", where) or positive(row, "workers_per_gpu_drive_pair", where),
        count(row, "gpu_drive_pairs", where) or 8.0,
    )


def job_of(row: Row, where: str = "") -> dlrm.Job:
    """A row of dlrm_training_time."""
    return dlrm.Job(row["system"], row["drive"], _drives(row, where))


def system_of(row: Row, where: str = "") -> others.System:
    """A row of ext_mlperf_storage."""
    return others.System(
        row["org"],
        row["workload"],
        row["accel_type"],
        count(row, "num_accelerators", where),
        count(row, "num_hosts", where) or 1.0,
        positive(row, "host_cpus_total", where) if row.get("host_cpus_total") else None,
    )


def finite_positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
