"""Training at a supply of bytes: `python bench/train.py --dir DIR [--gpu]`.

The toy on the host, or DLRMv2 on the first GPU (--gpu): fed from memory, by the loader, by PyTorch's DataLoader, and at shares
of its own need. Each line is a run of `forebay train` in this process, with its own peak measured just before. CPU of feeding
is what the process and its workers took more than the same steps did from memory; `alone` that of the loader with no model,
in its first second, in which processors copy what a GPU can't read yet, and in the two seconds after it.
Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import os
import sys

# Before NumPy: beside the loader's, on few cores, more threads of linear algebra wait for each other.
if "--gpu" not in sys.argv:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from side_by_side import GIB, arguments, middle, only_with_gpu, publish, save, say, section

PROMISES = ("TRN-12",)
TITLE = "Training at a supply of bytes, on the host"
TITLE_GPU = "Training at a supply of bytes, on a GPU"
SHARES = (0.25, 0.5, 0.75, 1.0, 1.3, 1.5)
GPU_SHARES = (0.5, 1.0, 1.5)
TOY = {"batches": (2048,), "rows": 262_144, "evaluation": 8192, "table_rows": 100, "workers": (0, 2)}
DLRM = {"batches": (6912, 55_296), "rows": 4_194_304, "evaluation": 65_536, "table_rows": 4_000_000, "workers": (0, 8)}
# Bounds: off the supply below 0.8 of the need; of the own peak above 1.25; of the lesser between; fed, of the peak.
OFF, PEAK, LESSER, FED = 0.03, 0.97, 0.9, 0.97
# CPU of the loader after its first second, core-s/GiB; against the DataLoader's.
CPU_GPU, CPU_SHARE = 0.1, 0.1
# The loaders' start, and for how long their CPU is then measured.
START_S, ALONE_S = 1.0, 2.0
SUM_OFF_PCT = 3.0
# Runs of which the spread of the rate is told on a GPU, and its bound. A disk is fast enough from so many times the need on.
SEEDS, SPREAD_PCT, ENOUGH = 5, 1.0, 1.25
# Samples a second of DLRMv2 from a GPU's memory, with tables of 24 million rows.
FROM_MEMORY = 1.07e6

Row = dict[str, Any]
# Fields of a record that are kept.
KEPT = ("input_wait_pct", "gpu_idle_pct", "batch_hash", "batch_hash_at", "samples", "cpu_s_per_gib", "path", "loader_gib_s")
HEAD = "| batch | fed by | samples/s | of the lesser | waits, % | GPU idle, % | CPU alone, core-s/GiB | in its first second |"
UNKNOWN = (None, None)
HEAD_OF_WHOLES = "| supply | samples to the target | samples/s | evaluations | sum of parts, s | whole run, s | off, % |"
HOLDS = {True: "holds", False: "**does not hold**"}


class DataLoader:
    """PyTorch's, whose workers read whole batches out of a mapping of the file, as its users would at their best."""

    def __init__(self, file: Path, batch: int, device: str, workers: int) -> None:
        import torch
        from forebay.train import data

        self._device, self._torch = device, torch
        pin = device != "cpu"
        batches = Batches(str(file), batch, data.WORDS)
        self._loader = torch.utils.data.DataLoader(
            batches, batch_size=None, shuffle=False, num_workers=workers, pin_memory=pin, persistent_workers=workers > 0
        )
        self._turn: Any = None

    def take(self) -> Any:
        if self._turn is None:
            self._turn = iter(self._loader)
        rows = next(self._turn, None)
        if rows is None:
            self._turn = None
            return None
        return rows.to(self._device, non_blocking=True)

    def workers(self) -> list[int]:
        """Their process numbers."""
        return [w.pid for w in getattr(self._turn, "_workers", [])]

    def close(self) -> None:
        self._turn = self._loader = None


class Batches:
    """A map-style data set of whole batches."""

    def __init__(self, file: str, batch: int, words: int) -> None:
        self.file, self.batch, self.words = file, batch, words
        self._map: Any = None

    def __len__(self) -> int:
        return os.path.getsize(self.file) // (self.batch * self.words * 4)

    def __getitem__(self, number: int) -> Any:
        import numpy as np
        import torch

        if self._map is None:
            self._map = np.memmap(self.file, np.int32, "r").reshape(-1, self.words)
        return torch.from_numpy(np.array(self._map[number * self.batch : (number + 1) * self.batch]))


class AsNumPy:
    """The same for a model of NumPy."""

    def __init__(self, source: DataLoader) -> None:
        self._source = source

    def take(self) -> Any:
        rows = self._source.take()
        return None if rows is None else rows.numpy()


def spent_s(processes: list[int]) -> float:
    """Processor seconds of this process and others, user and system."""
    own = os.times()
    total = own.user + own.system
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Bench:
    """A model, its data set, and what every run of it found."""

    def __init__(self, options: argparse.Namespace) -> None:
        from forebay.train import data

        self.options, self.gpu = options, options.gpu
        self.sizes: dict[str, Any] = dict(DLRM if options.gpu else TOY)
        if options.batches:
            self.sizes["batches"] = tuple(int(n) for n in options.batches.split(","))
        rows = int(options.rows or self.sizes["rows"])
        folder = options.dir / f"train-{'dlrm' if self.gpu else 'toy'}-{rows}"
        if (folder / data.ABOUT).exists():
            self.about = data.open_folder(folder)
        else:
            say(f"writing {folder}")
            table_rows = int(options.table_rows or self.sizes["table_rows"])
            self.about = data.generate(folder, 0, rows, int(self.sizes["evaluation"]), table_rows)
        self.model = self._model()

    def _model(self) -> Any:
        if not self.gpu:
            from forebay.train import toy

            return toy.Model(self.about.tables, 0)
        from forebay.train import dlrm

        return dlrm.Model(self.about.tables, 0, self.options.device, optimizer=self.options.optimizer)

    def epoch_rows(self) -> int:
        """The rows of an epoch that batches of every size hand out."""
        return min(self.about.rows // batch * batch for batch in self.sizes["batches"])

    def run(self, batch: int, gib_s: float | None, **more: Any) -> Row:
        """One run of `forebay train`, from reset weights on: the part `train` of its record."""
        from forebay.train import command, supply

        self.model.reset()
        found = supply.Supply(gib_s, None if gib_s is None else f"{gib_s:g}")
        seconds = self.options.seconds
        settings = {"quality": False, "seconds": seconds, "peak_s": seconds / 2, "cache": "warm", **more}
        run = command.Run(command.Request(self.about, found, batch, **settings), self.model, self.gpu)
        failure = run.measure()
        if failure is not None:
            raise failure
        part: Row = run.record()["train"]
        # Of a run that was too short.
        part["samples_per_s"] = part["samples_per_s"] or 0.0
        return part

    def by_torch(self, batch: int, workers: int) -> Row:
        """The same fed by PyTorch's DataLoader."""
        from forebay.train import data, run

        self.model.reset()
        loader = DataLoader(self.about.folder / data.TRAIN, batch, self.options.device if self.gpu else "cpu", workers)
        source: Any = loader if self.gpu else AsNumPy(loader)
        source.take()
        fed = run.Fed(self.model, source, None, None, run.Limits(seconds=self.options.seconds))
        processes = loader.workers()
        before, began = spent_s(processes), time.perf_counter()
        fed.run()
        seconds, cpu_s = time.perf_counter() - began, spent_s(processes) - before
        loader.close()
        if fed.failure is not None:
            raise fed.failure
        return {"samples_per_s": fed.rate.samples_per_s, "cpu_s": cpu_s, "samples": fed.samples, "seconds": seconds}

    def alone(self, batch: int, path: str = "auto") -> tuple[float, float]:
        """CPU seconds a GiB of the loader into a consumer that does nothing: after its first second, and in that."""
        from forebay.train import command, run, supply

        source = command.Source(command.Request(self.about, supply.Supply(None), batch, path=path), self.model.device, self.gpu)
        wait = self.model.wait if self.gpu else None
        try:
            first, later = (run.delivers(source, None, seconds, wait) for seconds in (START_S, ALONE_S))
        finally:
            source.close()
        costs = [(found.cpu.user_s + found.cpu.system_s) * GIB / found.bytes for found in (later, first)]
        return costs[0], costs[1]

    def alone_by_torch(self, batch: int, workers: int) -> float:
        """CPU seconds a GiB of the DataLoader into a consumer that does nothing."""
        from forebay.train import data, run

        loader = DataLoader(self.about.folder / data.TRAIN, batch, self.options.device if self.gpu else "cpu", workers)
        run.delivers(loader, None, START_S)
        processes = loader.workers()
        before = spent_s(processes)
        found = run.delivers(loader, None, ALONE_S, self.model.wait if self.gpu else None)
        cost = (spent_s(processes) - before) * GIB / found.bytes
        loader.close()
        return cost


def turn(bench: Bench, batch: int, rows: list[Row]) -> None:
    """All runs of one round with batches of one size; adds to `rows`."""

    def note(
        name: str, rate: float, of: float | None, costs: tuple[float | None, float | None], part: Row, share: float | None = None
    ) -> None:
        own = part.get("peak_samples_per_s")
        found = {"name": name, "batch": batch, "rate": rate, "of": of, "share": share, "peak": own}
        found |= {"alone_cpu": costs[0], "first_cpu": costs[1]}
        rows.append(found | {key: part.get(key) for key in KEPT})
        say(f"batch {batch}: {name}: {rate:,.0f} samples/s" + (f", {of:.3f}" if of else ""))

    fed = bench.run(batch, None)
    peak, need = fed["peak_samples_per_s"], fed["demand_gib_s"]
    note("from memory", peak, None, UNKNOWN, {"peak_samples_per_s": peak})
    note("the loader", fed["samples_per_s"], fed["samples_per_s"] / peak, bench.alone(batch), fed)
    for path in ("mapped", "bounce") if bench.gpu else ():
        part = bench.run(batch, None, path=path, seconds=bench.options.seconds / 2)
        ratio = part["samples_per_s"] / part["peak_samples_per_s"]
        note(f"the loader by {path}", part["samples_per_s"], ratio, bench.alone(batch, path), part)
    if bench.gpu:
        # Off the disk by O_DIRECT, epoch after epoch: nothing of it comes into the page cache.
        part = bench.run(batch, None, cache="cold")
        enough = part["loader_gib_s"] >= ENOUGH * part["demand_gib_s"]
        name = "the loader, cold" if enough else f"the loader, cold, off a disk of {part['loader_gib_s']:.2g} GiB/s"
        cost = sum(part["feed_cpu_s_per_gib"].values())
        lesser = min(part["loader_gib_s"] * GIB / 912, part["peak_samples_per_s"])
        note(name, part["samples_per_s"], part["samples_per_s"] / lesser, (cost, cost), part)
    for workers in bench.sizes["workers"]:
        try:
            part = bench.by_torch(batch, workers)
        except ImportError:
            continue
        name = f"DataLoader, {workers} workers"
        note(name, part["samples_per_s"], part["samples_per_s"] / peak, (bench.alone_by_torch(batch, workers), None), part)
    for share in GPU_SHARES if bench.gpu else SHARES:
        part = bench.run(batch, share * need)
        lesser = min(part["supply"]["asked_gib_s"] * GIB / 912, part["peak_samples_per_s"])
        note(f"supply {share:g} of the need", part["samples_per_s"], part["samples_per_s"] / lesser, UNKNOWN, part, share)


def whole_runs(bench: Bench, need_gib_s: float) -> list[Row]:
    """Runs to the target at three supplies: the sum of their parts, and one hash."""
    found = []
    for share in (0.5, 1.0, None):
        gib_s = None if share is None else share * need_gib_s
        batch = int(bench.sizes["batches"][0])
        target = bench.options.target
        limit = {"quality": True, "seconds": None, "samples": bench.options.epochs * bench.about.rows, "target": target}
        part = bench.run(batch, gib_s, **limit)
        parts = part["parts"] or {}
        found.append({"share": share, **parts, "auc": part["quality"], "hash": part["batch_hash"], "trained": part["samples"]})
        say(f"to the target at {share or 'the loader'}: AUC {part['quality']:.4f}, {parts.get('off_pct')} % off")
    return found


def over_seeds(bench: Bench) -> list[float]:
    """Samples a second of runs that differ by their seed."""
    found = []
    for seed in range(SEEDS):
        bench.model.seed = seed
        found.append(bench.run(int(bench.sizes["batches"][0]), None, seed=seed)["samples_per_s"])
        say(f"seed {seed}: {found[-1]:,.0f} samples/s")
    bench.model.seed = 0
    return found


def verdicts(
    rounds: list[list[Row]], wholes: list[Row], gpu: bool, epoch_rows: int, of_seeds: list[float] | None = None
) -> list[str]:
    """Bounds, each with the median over the rounds. `epoch_rows`: those of an epoch, whatever the batches."""
    by: dict[tuple[int, str], list[Row]] = {}
    for row in (row for rows in rounds for row in rows):
        by.setdefault((row["batch"], row["name"]), []).append(row)
    said = []

    def say_of(bound: str, values: list[float], holds: bool) -> None:
        said.append(f"- {bound}: {middle(values, 3)}, {HOLDS[holds]}")

    for (batch, name), rows in by.items():
        ratios = [row["of"] for row in rows if row["of"] is not None]
        share = rows[0]["share"]
        if name == "from memory" and gpu:
            rates = [row["rate"] for row in rows]
            reported = f"{statistics.median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})"
            holds = HOLDS[statistics.median(rates) >= FROM_MEMORY]
            said.append(f"- batches of {batch:,}: samples/s from memory ≥ {FROM_MEMORY:,.0f}: {reported}, {holds}")
        if name == "the loader":
            say_of(f"batches of {batch:,}: fed by the loader ÷ from memory ≥ {FED}", ratios, statistics.median(ratios) >= FED)
            costs = [row["alone_cpu"] for row in rows]
            if gpu:
                bound = f"batches of {batch:,}: CPU of the loader alone ≤ {CPU_GPU} core-s/GiB"
                say_of(bound, costs, statistics.median(costs) <= CPU_GPU)
        elif name == "the loader, cold":
            bound = f"batches of {batch:,}: fed cold, by O_DIRECT ÷ from memory ≥ {FED}"
            say_of(bound, ratios, statistics.median(ratios) >= FED)
            costs = [row["alone_cpu"] for row in rows]
            bound = f"batches of {batch:,}: CPU of the loader alone, cold ≤ {CPU_GPU} core-s/GiB"
            say_of(bound, costs, statistics.median(costs) <= CPU_GPU)
        elif share is not None:
            middle_ratio = statistics.median(ratios)
            least = 1 - OFF if share < 0.8 else PEAK if share > 1.25 else LESSER
            most = 1 + OFF if share < 0.8 else float("inf")
            reported = f"within {100 * OFF:.0f} % of the supply" if share < 0.8 else f"≥ {least} of the lesser of supply and peak"
            say_of(f"batches of {batch:,}, {name}: {reported}", ratios, least <= middle_ratio <= most)
    for (batch, name), rows in by.items():
        if name.startswith("DataLoader"):
            ours = by[batch, "the loader"]
            ratios = [a["rate"] / b["rate"] for a, b in zip(ours, rows, strict=False)]
            say_of(f"batches of {batch:,}: the loader ÷ {name} ≥ 1.0", ratios, statistics.median(ratios) >= 1)
            costs = [a["alone_cpu"] / b["alone_cpu"] for a, b in zip(ours, rows, strict=False)]
            bound = f"batches of {batch:,}: CPU of the loader alone ÷ {name} ≤ {CPU_SHARE}"
            say_of(bound, costs, statistics.median(costs) <= CPU_SHARE)
    hashed = [(batch, row["batch_hash_at"]) for (batch, _), rows in by.items() for row in rows if row["batch_hash_at"]]
    common: dict[tuple[int, int], set[str]] = {}
    for batch, marks in hashed:
        for mark in marks:
            # An epoch ends with its last whole batch: beyond it, other sizes have other samples.
            alike = 0 if mark["samples"] <= epoch_rows else batch
            common.setdefault((mark["samples"], alike), set()).add(mark["hash"])
    one = all(len(hashes) == 1 for hashes in common.values())
    said.append(f"- one hash over paths and supplies, at each of {len(common)} lengths: {HOLDS[one]}")
    if of_seeds and len(of_seeds) > 1:
        spread = 100 * statistics.stdev(of_seeds) / statistics.mean(of_seeds)
        bound = f"samples/s over {len(of_seeds)} seeds: relative standard deviation ≤ {SPREAD_PCT:g} %"
        said.append(f"- {bound}: {spread:.2f} %, {HOLDS[spread <= SPREAD_PCT]}")
    offs = [abs(w["off_pct"]) for w in wholes if w.get("off_pct") is not None]
    if offs:
        say_of(f"sum of parts against whole runs, % off ≤ {SUM_OFF_PCT:g}", offs, max(offs) <= SUM_OFF_PCT)
        same = len({w["samples"] for w in wholes}) == 1
        said.append(f"- samples to the target are the same at three supplies: {HOLDS[same]}")
    return said


def table(rounds: list[list[Row]]) -> list[str]:
    lines = [HEAD, "|---|---|" + "---|" * 6]
    keys = list(dict.fromkeys((row["batch"], row["name"]) for rows in rounds for row in rows))
    for batch, name in keys:
        found = [row for rows in rounds for row in rows if (row["batch"], row["name"]) == (batch, name)]
        cells = [middle([row["rate"] for row in found], 0)]
        columns = (("of", 3), ("input_wait_pct", 1), ("gpu_idle_pct", 1), ("alone_cpu", 3), ("first_cpu", 3))
        cells += [middle([row[key] for row in found], digits) for key, digits in columns]
        lines.append(f"| {batch:,} | {name} | {' | '.join(cells)} |")
    return lines


def of_wholes(wholes: list[Row]) -> list[str]:
    if not any(whole.get("sum_s") for whole in wholes):
        return []
    lines = ["", HEAD_OF_WHOLES, "|---|" + "---|" * 6]
    for whole in wholes:
        share = f"{whole['share']:g} of the need" if whole["share"] else "the loader"
        parts = f"{whole['samples']:,} | {whole['samples_per_s']:,.0f} | {whole['evaluations']} × {whole['evaluation_s']:.3f} s"
        lines.append(f"| {share} | {parts} | {whole['sum_s']:.2f} | {whole['whole_s']:.2f} | {whole['off_pct']:+.2f} |")
    return lines


def main() -> int:
    parser = arguments(__doc__ or "", 4.0, only=False)
    parser.add_argument("--gpu", action="store_true", help="DLRMv2 on the first GPU")
    parser.add_argument("--device", default="cuda:0", help="where DLRMv2 runs")
    parser.add_argument("--optimizer", choices=("torch", "fused"), help="of DLRMv2; that of forebay train")
    parser.add_argument("--rows", type=int, help="of the data set")
    parser.add_argument("--table-rows", type=int, help="to which its large tables are cut")
    parser.add_argument("--batches", help="samples of a batch, separated by commas")
    parser.add_argument("--epochs", type=int, default=4, help="of whole runs, at most")
    parser.add_argument("--target", type=float, help="AUC of whole runs; the data set's own")
    options = parser.parse_args()
    only_with_gpu(parser, options, "device", "optimizer")
    bench = Bench(options)
    rounds: list[list[Row]] = []
    wholes: list[Row] = []
    rates: list[float] = []
    title = TITLE_GPU if options.gpu else TITLE
    try:
        for number in range(options.rounds):
            rounds.append([])
            for batch in bench.sizes["batches"]:
                say(f"round {number + 1}/{options.rounds}, batches of {batch}")
                turn(bench, int(batch), rounds[-1])
        save(options.json, title, options, [{"rounds": rounds}], "")
        need = statistics.median(r["rate"] for rows in rounds for r in rows[:1]) * 912 / GIB
        wholes = whole_runs(bench, need)
        if options.gpu:
            rates = over_seeds(bench)
    except ForebayError as error:
        say(f"ended: {error}")
    finally:
        # What was measured stays, whatever ended it.
        said = verdicts(rounds, wholes, options.gpu, bench.epoch_rows(), rates) if rounds and rounds[-1] else []
        text = section(title, options, "\n".join([*table(rounds), *of_wholes(wholes), "", *said, ""]))
        save(options.json, title, options, [{"rounds": rounds, "wholes": wholes, "rates": rates}], text)
    publish(title, options, text)
    return 1 if any("does not hold" in line for line in said) else 0


if __name__ == "__main__":
    raise SystemExit(main())
