"""Inference over drives: `python bench/infer.py --dir DIR [--gpu [--only resnet50,llama|tables]]`.

The toy on the host, or the models in PyTorch on the first GPU: queries a second with samples in memory, over the supply of 1
and more drives, in random order; the control, samples read inside their queries; the highest rate of Server over supplies;
cold starts, on a GPU also beside other loaders of safetensors, those that are installed; answers over modes. On the host also
the engine's cost beside a bare Python system under test that answers at once, how many runs are VALID at the first try, and a
search that is broken off and gone on with. `--kinds d7-ps1010,d5-p5336,d3-s4520`: of so many kinds of drives, in one random
order. Models of a configuration are told their own Offline rate, measured once, in place of probes; gptj and sdxl are asked
in Offline alone, and language models in Server at a share of that rate. `--only tables`: DLRM whose tables stay in their
file, over the memory for hot rows, beside PyTorch's own best way to fetch rows, on all cores and on two, and beside tables
that are all in the GPU's memory. Each line is a run of `forebay infer` in this process.
With --json FILE each run is kept in FILE.runs as it ends, and the same command with --resume measures what is missing.
Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import json
import os
import signal
import sys

# Before NumPy: on few cores more threads of linear algebra wait for LoadGen's.
if "--gpu" not in sys.argv:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import infer_starts
from child import closing
from forebay.errors import ForebayError
from forebay.infer import (
    command,
    data,
    engine,
    forms,
    library,
    rules,
    scaling,
    search,
    tabled,
    toy,
    verb,
    weights,
)
from forebay.stats import Interval
from forebay.train import supply
from infer_tables import Tuned, cpu_s, on_cores
from side_by_side import GIB, arguments, middle, only_with_gpu, publish, save, say, section

PROMISES = ("INF-12",)
TITLE, TITLE_GPU = "Inference over drives, on the host", "Inference over drives, on a GPU"
# One drive's supply of the toy, GiB/s, and how many of them; on a GPU one of eight shares drives of the catalogue.
TOY_DRIVE, TOY_DRIVES = 0.02, (1, 2, 4, 8)
GPU_DRIVE, GPU_DRIVES, GPUS = "d7-ps1010", (1, 8), 8
# Bounds: queries a second over drives; of the load by its supply; of the lesser of peak and supply; of a bare system under test.
FLAT_HOST, FLAT_GPU, OF_SUPPLY, OF_LESSER = 0.03, 0.01, 0.05, 0.05
LATENCY_MOST, RATE_LEAST, FIRST_TRIES = 2.0, 0.5, 19
# Supply ÷ need from which on they count as about equal.
NEAR = 0.8
# Opening a file takes a part of a shorter reading.
READ_S = 0.05
# Server is asked at so much of its highest rate.
OF_HIGHEST = 0.8
# Of Offline's rate, at which Server asks a language model; what Offline is told to expect; models that are asked in it alone; and
# how many of their answers are compared.
OF_OFFLINE, EXPECTED, OFFLINE_ALONE, CHECKED_OF_FORMS = 0.7, 1.05, ("gptj", "sdxl"), 8
# A test of Server asks so many queries that a slow model takes longer than that, and is left out.
SERVER_MOST_S = 30.0
# LoadGen makes so many times the samples that it expects of a test; of the time that they take, its least duration.
MADE_OF_EXPECTED, OF_DURATION = 1.1, 0.8
# Trials of a search, after which it is broken off.
BROKEN_AFTER = 2
# Per cent of the rows in memory, from which on no way to fetch rows is told from another.
NOTHING_LEFT = 99.0
# Tables: samples of a batch, those in memory, and those of the model whose tables are all in the GPU's memory; bounds on
# user-item pairs a second with no memory for rows, on rate and CPU beside PyTorch, and on the rate beside it on few cores.
TABLES, TABLE_BATCH, TABLE_SAMPLES, WHOLE_SAMPLES, FEW_CORES = "tables", 256, 4096, 1024, 2
PAIRS_LEAST, OF_TUNED, OF_TUNED_CPU, OF_TUNED_FEW = 0.35e6, 1.0, 0.1, 4.0

# Of a run, what doesn't tell it from others: the rate is found anew, by such a search.
UNTOLD = ("target_qps", "effort")
EFFORT, HIGHEST_ROUNDS = search.Effort(1.0, 1.05, 60.0), 3
# Seconds of a run, unless --seconds says otherwise; of samples in memory on a GPU what the issue asks of each, so that a pause of
# 30 ms is a third of the bound of 1 %. On the host many short ones: whatever shares its processors comes and goes within seconds,
# and runs that follow one another share it. (GPU, host)
RUN_S, IN_MEMORY_S = 2.0, (10.0, 0.25)
# On the host rounds go on until half an interval is this share of its bound: its width ends them, not where it lies. At most so
# many in all.
NARROW, MOST_ROUNDS = 0.5, 400
# Before the first that counts: caches, clocks and allocators are then as they stay.
UNCOUNTED_S = 2.0
# Kind and number of drives.
Case = tuple[str, int]

Row = dict[str, Any]
HOLDS = {True: "holds", False: "**does not hold**"}
HEAD = "| model | mode | scenario | drives | supply, GiB/s | queries/s | p99, ms | load, GiB/s | storage, timed | of the lesser |"


class Nothing:
    """A model that answers at once."""

    name, device, batch, width, checked_batch = "nothing", "cpu", 4096, 1, 1

    def __init__(self) -> None:
        import numpy as np

        self._answers = np.zeros((self.batch, 1), np.float32)

    def launch(self, rows: Any) -> Any:
        return self._answers[: len(rows)]

    def finish(self, launched: Any) -> Any:
        return launched


class Bench:
    """Models, their files, and what was measured."""

    def __init__(self, options: Any) -> None:
        self.options, self.gpu = options, bool(options.gpu)
        self.names = (options.only or "resnet50,dlrm,bert").split(",") if self.gpu else ["toy"]
        self.counts: tuple[int, ...] = GPU_DRIVES if self.gpu else TOY_DRIVES
        if options.drives:
            self.counts = tuple(int(number) for number in options.drives.split(","))
        self.kinds = tuple(supply.drive_of(kind).name for kind in (options.kinds or GPU_DRIVE).split(","))
        self.supplies: list[Case] = [(kind, number) for kind in self.kinds for number in self.counts]
        self.rows: list[Row] = []
        self.tables: list[Row] = []
        self.others: list[str] = []
        self.starts_table: list[str] = []
        self.journal = Journal(options.json and options.json.with_name(options.json.name + ".runs"), options.resume)
        self.models: dict[str, Any] = {}
        # Samples a second of models of a configuration, in Offline; of the others, in the last such run in memory, and
        # their peak.
        self.rates: dict[str, float] = {}
        self.last_rates: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        # Models, modes and scenarios of which this process had a run that isn't counted.
        self.warm: set[tuple[str, str, str]] = set()
        self.in_memory_s = options.seconds or IN_MEMORY_S[0 if self.gpu else 1]
        self.run_s = options.seconds or RUN_S

    def folder(self, name: str) -> Path:
        path: Path = self.options.dir / f"infer-{name}"
        if not data.is_there(path):
            say(f"writing {path}")
            made, model = rules.MODELS["dlrm" if name == TABLES else name].made_samples(), name
            rows = data.TABLE_ROWS if name == "dlrm" else 0
            if name == "dlrm" and self.options.only == TABLES:
                made, rows = WHOLE_SAMPLES, min(rows, tabled.cap_for(self.options.table_gib))
            if name == "toy":
                drawn: Any = toy.weights(0)
            elif name == TABLES:
                model, made, rows = "dlrm", TABLE_SAMPLES, tabled.cap_for(self.options.table_gib)
                drawn = tabled.drawn(0, rows)
            else:
                from forebay.infer import networks

                drawn = networks.weights(name, 0, rows, self.small(name))
            samples, small = min(made, self.options.samples or made), self.small(name)
            data.generate(path, data.About(model, 0, samples, data.row_bytes(model, small), 0, rows, small), drawn)
        return path

    def small(self, name: str) -> bool:
        return bool(self.options.small) and name in forms.NAMES

    def supply(self, of: Case) -> supply.Supply:
        """A GPU's share of so many drives; on the host in the same ratios, at what two cores can bring."""
        share, one = (supply.parse(f"model:{kind}?drives={n}", GPUS) for kind, n in (of, (GPU_DRIVE, 1)))
        if self.gpu:
            return share
        assert share.gib_s is not None and one.gib_s is not None
        rate = TOY_DRIVE * of[1] if len(self.kinds) == 1 else TOY_DRIVE * share.gib_s / one.gib_s
        return supply.parse(f"{rate:g}")

    def by_supply(self) -> list[Case]:
        return sorted(self.supplies, key=lambda of: self.supply(of).gib_s or 0.0)

    def run(self, name: str, mode: str, scenario: str, drives: Case | None, seconds: float | None = None, **more: Any) -> Row:
        """One run: the part `infer` of its record. The model of its name is built once."""
        key = [name, mode, scenario, drives, seconds, {k: v for k, v in more.items() if k not in UNTOLD}]
        there = self.journal.take(key)
        known = (name, mode, scenario) in self.warm or (mode == "ram" and name in forms.NAMES and name in self.models)
        if there is None and drives is not None and mode in ("ram", "coldstart") and not known:
            say(f"{name}, {mode}, {scenario}: a run that isn't counted")
            self.measured(name, mode, scenario, drives, UNCOUNTED_S if mode == "ram" else seconds, **more)
            self.warm.add((name, mode, scenario))
        return there or self.journal.add(key, self.measured(name, mode, scenario, drives, seconds, **more))

    def measured(self, name: str, mode: str, scenario: str, drives: Case | None, seconds: float | None, **more: Any) -> Row:
        folder = self.folder(name)
        seconds = self.run_s if seconds is None else seconds
        if name in forms.NAMES and mode != "coldstart":
            more = {"batch": self.options.batch_size, **more}
        of = supply.parse(None) if drives is None else self.supply(drives)
        device, peak, expected = self.options.device if self.gpu else "cpu", self.rates.get(name), None
        if peak is not None and mode == "ram" and scenario == "Offline" and not more.get("accuracy"):
            seconds, expected = self.whole_batches(name, seconds, peak)
        request = command.Request(
            name, mode, scenario, folder, data.open_folder(folder, name), of, device,
            seconds=seconds, **{"cache": "warm", "strict": name not in forms.NAMES, **more},
        )  # fmt: skip
        request.check()
        if peak is not None and mode != "coldstart" and expected is None:
            expected = EXPECTED * min(peak, self.brought(of, mode, request.about))
        model = self.models.get(name) if mode != "coldstart" else None
        again = mode == "ram" and scenario == "Offline" and not more.get("accuracy") and name not in forms.NAMES
        if again and name in self.last_rates:
            # Without probes between two runs, they follow one another sooner.
            peak, expected = self.peaks.get(name), EXPECTED * self.last_rates[name]
        made = command.Run(request, model=model, peak=peak if mode != "coldstart" else None, expected=expected)
        failure = made.measure()
        if failure is not None:
            raise failure
        if made.interrupted:
            raise KeyboardInterrupt
        part: Row = made.record()["infer"]
        if mode != "coldstart":
            self.models[name] = made.model
            made.keep_model()
        made.close()
        if again:
            self.last_rates[name], self.peaks[name] = part["samples_per_s"], part["peak_samples_per_s"]
        rate = f"{part['queries_per_s']:,.1f} queries/s" if part["queries_per_s"] else f"{part['coldstart']['total_s']:.3f} s"
        kind, number = drives or (None, None)
        of_drives = f"{number} × {kind}" if drives else "all drives"
        say(f"{name}, {mode}, {scenario}, {of_drives}: {rate} {'' if part['valid'] is not False else part['why']}")
        return {"model": name, "drive": kind, "drives": number, **part}

    def whole_batches(self, name: str, seconds: float, rate: float) -> tuple[float, float]:
        """Seconds, and the rate to expect, of which LoadGen makes a query of whole batches: parts of them are slower, and where
        there are few, another number of samples is another rate."""
        batch = self.options.batch_size or forms.form(name, self.small(name)).batches[0 if self.gpu else 1]
        made = batch * max(1, round(seconds * rate / batch))
        # Shorter than it takes, so that its least duration is over in any case.
        seconds = OF_DURATION * made / rate
        return seconds, (made + 0.5) / (MADE_OF_EXPECTED * seconds)

    def brought(self, of: supply.Supply, mode: str, about: data.About) -> float:
        """Samples a second that a supply brings where each is read inside its query."""
        return of.gib_s * GIB / about.row_bytes if of.gib_s and mode == "cold" else float("inf")

    def scenarios(self, name: str) -> list[str]:
        asked = self.options.scenarios.split(",")
        known = ("Offline",) if name in OFFLINE_ALONE else rules.MODELS[name].scenarios
        return [scenario for scenario in asked if scenario in known]

    def offline_rate(self, name: str) -> None:
        """Of a model of a configuration, once: probes of it take longer than its tests."""
        if name in forms.NAMES and name not in self.rates:
            if self.options.rate:
                self.rates[name] = self.options.rate
            found = self.run(name, "ram", "Offline", None)["samples_per_s"]
            # The first run may be slow: fewer queries than a test takes would end it too soon.
            self.rates[name] = max(found, self.options.rate or 0.0)

    def add(self, row: Row) -> Row:
        self.rows.append(row)
        return row

    def bound(self, text: str, values: list[float], holds: bool, digits: int = 3) -> None:
        self.others.append(f"- {text}: {middle(values, digits)}, {HOLDS[holds]}")

    # What is measured -----------------------------------------------------------------------------------

    def in_memory(self) -> None:
        """Queries a second over drives, interleaved in random order; whatever ends it, loads are judged."""
        try:
            self.over_drives()
        finally:
            self.loads()

    def over_drives(self) -> None:
        flat = FLAT_GPU if self.gpu else FLAT_HOST
        order = random.Random(7)
        for name in self.names:
            self.offline_rate(name)
            for scenario in self.scenarios(name):
                rate = {}
                if scenario == "Server" and name in forms.NAMES and forms.form(name).inputs:
                    rate = {"target_qps": OF_OFFLINE * self.rates[name]}
                    least = rules.QUERIES_MIN[scenario]
                    if (takes := least / rate["target_qps"]) > SERVER_MOST_S:
                        self.others.append(f"- {name}, Server: left out: its {least} queries take {takes:.0f} s")
                        continue
                elif scenario == "Server":
                    highest = self.run(name, "ram", "Server", None, min(5.0, self.run_s))["expected_per_s"]
                    rate = {"target_qps": OF_HIGHEST * highest}
                first = len(self.rows)
                try:
                    for ended in range(self.options.rounds if self.gpu else MOST_ROUNDS):
                        if ended >= self.options.rounds and self.is_narrow(self.rows[first:], NARROW * flat):
                            break
                        for drives in order.sample(self.supplies, len(self.supplies)):
                            self.add(self.run(name, "ram", scenario, drives, self.in_memory_s, **rate))
                finally:
                    for kind in self.kinds:
                        self.flat(name, scenario, self.rows[first:], kind, flat)

    def loads(self) -> None:
        """The rate of loads beside the supply, and what storage delivered in timed parts."""
        loads = [row for row in self.rows if row["mode"] == "ram" and row["load_gib_s"]]
        if not loads:
            return
        off = [row["load_gib_s"] / row["supply_gib_s"] for row in loads]
        within = abs(statistics.median(off) - 1) <= OF_SUPPLY
        self.bound(f"rate of the load ÷ supply within {100 * OF_SUPPLY:g} %", off, within)
        bytes_ = [float(row["timed_storage_bytes"]) for row in loads]
        self.bound("bytes from storage inside the timed part of ram: 0", bytes_, max(bytes_) == 0, 0)

    def over_one(self, found: list[Row], kind: str) -> dict[int, tuple[list[float], Interval]]:
        """Queries a second over those of the fewest drives, by number of drives: of each round that ended, and the interval."""
        by = {n: [row["queries_per_s"] for row in found if (row["drive"], row["drives"]) == (kind, n)] for n in self.counts}
        rounds = min(len(values) for values in by.values())
        one, *more = self.counts
        made = dict[int, tuple[list[float], Interval]]()
        for n in more if rounds else ():
            ratios = [a / b for a, b in zip(by[n][:rounds], by[one][:rounds], strict=True)]
            made[n] = ratios, scaling.of_logarithms(ratios)
        return made

    def is_narrow(self, found: list[Row], most: float) -> bool:
        intervals = [interval for kind in self.kinds for _, interval in self.over_one(found, kind).values()]
        return all(interval.half_width_pct is not None and interval.half_width_pct <= 100 * most for interval in intervals)

    def flat(self, name: str, scenario: str, found: list[Row], kind: str, most: float) -> None:
        for n, (ratios, interval) in self.over_one(found, kind).items():
            low, high = interval.low or min(ratios), interval.high or max(ratios)
            text = f"{name}, ram, {scenario}: {n} ÷ {self.counts[0]} {self.said(kind)} 1.00 ± {most}, of {len(ratios)} rounds"
            self.bound(f"{text}, 95 % interval {low:.4f} to {high:.4f}", ratios, 1 - most <= low and high <= 1 + most, 4)

    def control(self) -> None:
        """Samples read inside their queries: the lesser of peak and supply."""
        name = self.names[0]
        self.offline_rate(name)
        shares: list[float] = []
        for drives in self.supplies:
            for _ in range(max(1, self.options.rounds // 2)):
                row = self.add(self.run(name, "cold", "Offline", drives))
                lesser = min(row["peak_samples_per_s"], row["supply_gib_s"] * GIB / row["sample_bytes"])
                row["of_lesser"] = row["samples_per_s"] / lesser
                shares.append(row["of_lesser"])
        # Where supply and peak are about equal, each waits for the other now and then.
        cold = [row for row in self.rows if row.get("of_lesser")]
        between = [row["of_lesser"] for row in cold if NEAR < row["supply_gib_s"] / row["demand_gib_s"] < 1 / NEAR]
        clear = [share for share in shares if share not in between]
        # Supplies that are all above the need would show nothing of storage.
        bound = any(row["supply_gib_s"] <= NEAR * row["demand_gib_s"] for row in cold)
        holds = bound and all(abs(share - 1) <= OF_LESSER for share in clear)
        text = f"{name}, cold, Offline ÷ the lesser of peak and supply within {100 * OF_LESSER:g} %"
        self.bound(text + ("" if bound else ", of which no supply was below the need"), clear, holds)
        if between:
            self.bound(f"{name}, cold, Offline where both are about equal ÷ the lesser ≥ 0.8", between, min(between) >= 0.8)

    def said(self, kind: str) -> str:
        return "drives" if len(self.kinds) == 1 else kind

    def highest(self) -> None:
        """Server's highest passing rate over supplies, in memory and not, in random order; large models are left out."""
        order = random.Random(11)
        for name in self.names:
            if name in forms.NAMES or "Server" not in self.scenarios(name):
                continue
            measured = []
            seconds = min(5.0, self.run_s)
            for number in range(max(2, min(HIGHEST_ROUNDS, self.options.rounds))):
                ways = [(mode, drives) for mode in (scaling.RAM, scaling.COLD) for drives in self.supplies]
                for mode, drives in order.sample(ways, len(ways)):
                    row = self.add(self.run(name, mode, "Server", drives, seconds, effort=EFFORT, strict=False))
                    row["highest"] = True
                    point = {key: row[key] for key in ("model", "mode", "scenario", "drive", "drives", "supply_gib_s")}
                    measured.append(({**point, "highest": True}, number, row))
            in_memory = statistics.median(row["queries_per_s"] for _, _, row in measured if row["mode"] == scaling.RAM)
            least = min(row["supply_gib_s"] * GIB / row["sample_bytes"] for _, _, row in measured)
            for curve in scaling.curves(scaling.rows(measured)):
                cold = curve["mode"] == scaling.COLD
                rates = [point["queries_per_s"] for point in curve["points"] if point["queries_per_s"]]
                # A supply that brings what Server reaches in memory has nothing to grow to.
                grows = cold and least < NEAR * in_memory
                what = ("grows, " if grows else "") + ("monotonic" if cold else "the same") + " within its intervals"
                what += f", the least of which brings {least:,.0f}/s" if cold and not grows else ""
                holds = bool(curve["monotonic"] and (curve["rises"] or not grows) if cold else curve["same"])
                self.others.append(f"- {scaling.curve_sentence(curve)}")
                self.bound(f"{name}, {curve['mode']}, Server: the highest rate over supplies: {what}", rates, holds, 0)

    def starts(self) -> None:
        """Cold starts over drives: reading by the clock beside the supply."""
        for name in self.names:
            off = []
            for drives in self.supplies:
                row = self.add(self.run(name, "coldstart", "Offline", drives))
                if row["load_s"] >= READ_S:
                    off.append(row["load_gib_s"] / row["supply_gib_s"])
            within = all(abs(share - 1) <= OF_SUPPLY for share in off)
            if off:
                text = f"{name}, coldstart: rate of reading for {READ_S:g} s and more ÷ supply within {100 * OF_SUPPLY:g} %"
                self.bound(text, off, within)

    def beside(self) -> None:
        """Cold starts as fast as storage goes, beside other loaders of the same file."""
        for name in self.names:
            file, measured = self.folder(name) / data.WEIGHTS, []

            def ours(cache: str, name: str = name) -> float:
                row = self.measured(name, "coldstart", "Offline", None, None, cache=cache)
                return float(row["load_bytes"] / GIB / (row["coldstart"]["read_s"] + row["coldstart"]["allocate_s"]))

            for cache in self.options.caches.split(","):
                others = infer_starts.children(file)
                with closing(*others.values()):
                    key = ["beside", name, cache, self.options.rounds]
                    there = self.journal.take(key)
                    measured.append(there or self.journal.add(
                        key, infer_starts.rates(ours, others, file, cache, self.options.rounds)
                    ))  # fmt: skip
            self.starts_table += infer_starts.judge(name, measured, self.bound, self.others.append)

    def answers(self) -> None:
        """One hash of the answers over modes, scenarios and, on a GPU, paths."""
        for name in self.names:
            of_forms = name in forms.NAMES
            self.offline_rate(name)
            scenarios = [s for s in rules.MODELS[name].scenarios if s == "Offline" or (s == "Server" and not of_forms)]
            checked = CHECKED_OF_FORMS if of_forms else self.options.checked
            ways = ("mapped", "bounce") if self.gpu else ("auto",)
            found = [
                self.run(name, mode, scenario, None, 1.0, accuracy=True, path=way, samples=checked)
                for mode in ("ram", "cold") for scenario in scenarios for way in ways
            ]  # fmt: skip
            hashes = {row["accuracy"]["answers_hash"] for row in found}
            intact = all(row["accuracy"]["rows_intact"] == row["accuracy"]["samples"] for row in found)
            said = f"{name}: answers over modes, scenarios and paths have {len(hashes)} hash"
            said += ", of rows as they were made" if intact else ", of rows that were damaged"
            self.others.append(f"- {said}, {HOLDS[intact and len(hashes) == 1]}")

    def tables_in_their_file(self) -> None:
        """Pairs a second over the memory for hot rows; those of tables that are all in the GPU's memory beside them."""
        batch = TABLE_BATCH if self.gpu else None
        whole = [self.run("dlrm", "ram", "Offline", None, batch=batch) for _ in range(self.options.rounds)]
        if "dlrm" in self.models:
            self.models.pop("dlrm").close()
        for row in whole:
            self.tables.append({**row, "who": "all in memory", "gib": None, "cores": None})
        best = statistics.median(row["samples_per_s"] for row in whole)
        for gib in (float(text) for text in self.options.table_memory.split(",")):
            self.with_memory(gib, best)

    def with_memory(self, gib: float, best: float) -> None:
        """Contenders in turn, round by round, with so many GiB for hot rows."""
        folder = self.folder(TABLES)
        about = data.open_folder(folder, "dlrm")
        ways: dict[str, Any] = {"mapped": None, "torch": None} | ({"bounce": None} if self.gpu and not gib else {})
        cases = [(way, cores) for way in ways for cores in (None, FEW_CORES) if cores is None or way != "bounce"]
        found: dict[tuple[str, int | None], list[Row]] = {case: [] for case in cases}
        answers: set[bytes] = set()
        try:
            for number in range(self.options.rounds):
                for way, cores in cases if number % 2 == 0 else reversed(cases):
                    row = self.tabled(way, cores, gib, ways, folder, about)
                    found[way, cores].append(row)
                    self.tables.append(row)
            for model in ways.values():
                if model is not None:
                    answers.add(self.answers_of(model, folder, about))
        finally:
            for model in ways.values():
                if model is not None:
                    model.close()
            self.judge_tables(gib, found, best)
        if answers:
            found_ = [float(len(answers))]
            self.bound(f"tables, {gib:g} GiB: different answers over the ways to rows: 1", found_, len(answers) == 1, 0)

    def tabled(self, way: str, cores: int | None, gib: float, ways: dict[str, Any], folder: Path, about: data.About) -> Row:
        """One run of a way to fetch rows. Its model is built once, and has its hot rows from then on."""
        key = [TABLES, way, cores, gib, self.run_s]
        there = self.journal.take(key)
        if there:
            return there
        device = self.options.device if self.gpu else "cpu"
        request = command.Request(
            "dlrm", "tables", "Offline", folder, about, supply.parse(None), device, seconds=self.run_s,
            batch=TABLE_BATCH if self.gpu else None, table_bytes=int(gib * GIB), strict=False,
        )  # fmt: skip
        if ways[way] is None:
            path = folder / data.WEIGHTS
            memory = command.Run(request).memory()
            read = weights.read(path, memory, networks_of(about), without=tabled.VECTORS)
            model = Tuned(read.tensors, device, about.table_rows, path) if way == "torch" else None
            ways[way] = model or tabled.Model(read.tensors, device, about.table_rows, path, way if self.gpu else "auto")
        known = next((row["samples_per_s"] for row in reversed(self.tables) if case_of(row) == (gib, way, cores)), None)
        run = command.Run(request, model=ways[way], peak=known, expected=known and EXPECTED * known)
        try:
            with on_cores(cores), counted() as used:
                failure = run.measure()
            if failure is not None:
                raise failure
            if run.interrupted:
                raise KeyboardInterrupt
            part = run.record()["infer"]
        finally:
            run.close()
        answered = run.outcome.samples if run.outcome else 0
        row = {**part, "who": way, "gib": gib, "cores": cores, "cpu_s": used[-1], "in_test": answered}
        pairs = row["samples_per_s"] * data.PAIRS
        say(f"tables, {gib:g} GiB, {way}, {cores or 'all'} cores: {pairs / 1e6:.3f} M pairs/s, {row['tables']['hit_pct']} % hit")
        return self.journal.add(key, row)

    def answers_of(self, model: Any, folder: Path, about: data.About) -> bytes:
        import numpy as np

        rows = np.fromfile(folder / data.SAMPLES, np.uint8, 4 * about.row_bytes).reshape(4, -1)
        if self.gpu:
            rows = model._tensor(rows).to(model.device)
        found: bytes = model.finish(model.launch(rows)).tobytes()
        return found

    def judge_tables(self, gib: float, found: dict[tuple[str, int | None], list[Row]], best: float) -> None:
        def ratios(what: Callable[[Row], float], ours: tuple[str, int | None], other: tuple[str, int | None]) -> list[float]:
            return [what(a) / what(b) for a, b in zip(found[ours], found[other], strict=False)]

        def rate(row: Row) -> float:
            return float(row["samples_per_s"])

        for row in (row for rows in found.values() for row in rows):
            row["of_best"] = rate(row) / best
        if not all(found.values()):
            return
        if min(row["tables"]["hit_pct"] for row in found["mapped", None]) > NOTHING_LEFT:
            self.others.append(f"- tables, {gib:g} GiB, beside tuned torch: left out: all rows that are looked up lie in memory")
            return
        name, mapped, tuned = f"tables, {gib:g} GiB", ("mapped", None), ("torch", None)
        if not gib and self.gpu:
            most = [max(rate(a), rate(b)) * data.PAIRS / 1e6 for a, b in zip(found[mapped], found["bounce", None], strict=False)]
            text = f"{name}: million pairs a second ≥ {PAIRS_LEAST / 1e6:g}"
            self.bound(text, most, statistics.median(most) >= PAIRS_LEAST / 1e6)
        for text, values, holds in (
            (f"rate ÷ tuned torch's ≥ {OF_TUNED:g}", ratios(rate, mapped, tuned), lambda m: m >= OF_TUNED),
            (
                f"CPU of a pair ÷ tuned torch's ≤ {OF_TUNED_CPU:g}",
                ratios(cpu_of_pair, mapped, tuned), lambda m: m <= OF_TUNED_CPU,
            ),
            (
                f"rate ÷ tuned torch's, both on {FEW_CORES} cores, ≥ {OF_TUNED_FEW:g}",
                ratios(rate, ("mapped", FEW_CORES), ("torch", FEW_CORES)), lambda m: m >= OF_TUNED_FEW,
            ),
        ):  # fmt: skip
            self.bound(f"{name}, mapped: {text}", values, holds(statistics.median(values)))

    def first_tries(self) -> None:
        """Runs over all scenarios that are VALID at the first try."""
        valid = 0
        for number in range(20):
            scenario = rules.SCENARIOS[number % 4]
            # Each by a probe of its own, as a user's.
            self.last_rates.clear()
            row = self.run("toy", "ram", scenario, None, rules.SHORT_S)
            valid += row["valid"] is True and row["tries"] == 1
        self.bound(f"VALID at the first try, of 20: ≥ {FIRST_TRIES}", [float(valid)], valid >= FIRST_TRIES, 0)

    def resumption(self) -> None:
        """A search for Server's highest rate that SIGINT breaks off, and the same command again: no trial is made twice."""
        kept, twice = [], []
        for _ in range(max(1, self.options.rounds // 2)):
            with tempfile.TemporaryDirectory() as folder:
                logs = Path(folder) / "logs"
                words = ["--dir", str(self.folder("toy")), "--scenario", "Server", "--short", "--logs", str(logs), "--json"]
                command_ = [sys.executable, "-c", "from forebay.cli import main; main()", "infer", "toy", *words]
                first = subprocess.Popen(command_, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    while first.poll() is None and len(trials_in(logs)) < BROKEN_AFTER:
                        time.sleep(0.05)
                    first.send_signal(signal.SIGINT)
                    first.wait()
                finally:
                    first.kill()
                    first.wait()
                before = trials_in(logs)
                again = subprocess.run(command_, capture_output=True, text=True)
                part = json.loads(again.stdout)["infer"]
            tried = [round(trial["queries_per_s"], 6) for trial in part["search"]]
            lost = [rate for rate in before if rate not in tried]
            kept.append(float(len(before)))
            twice.append(float(len(tried) - len(set(tried)) + len(lost)))
            say(f"broken off after {len(before)} trials, {len(tried)} in all, {'VALID' if part['valid'] else part['why']}")
        text = f"Server's search, broken off after {statistics.median(kept):g} trials and gone on with: made twice or lost: 0"
        self.bound(text, twice, max(twice) == 0 and min(kept) >= BROKEN_AFTER, 0)

    def own_cost(self) -> None:
        """The engine beside a bare Python system under test, both of which answer at once."""
        of = library.InMemory(self.folder("toy"), data.open_folder(self.folder("toy"), "toy"), 2048, library.HostMemory())
        ours = engine.Engine(rules.loadgen(), Nothing(), of)
        loads = {
            "SingleStream": rules.Load("SingleStream", 1.0, 500_000.0, 100.0),
            "Offline": rules.Load("Offline", 1.0, 1_500_000.0, 100.0),
            "Server": rules.Load("Server", 2.0, 5000.0, 100.0),
        }
        found: dict[str, list[float]] = {}
        for _ in range(self.options.rounds):
            for scenario, load in loads.items():
                for who, test in (("ours", ours.test), ("bare", bare)):
                    with tempfile.TemporaryDirectory() as folder:
                        outcome = test(load, Path(folder))
                    assert outcome.log is not None
                    key = {"SingleStream": "result_90.00_percentile_latency_ns", "Server": "result_99.00_percentile_latency_ns"}
                    value = outcome.log.number(key.get(scenario, "result_samples_per_second"))
                    assert value, f"LoadGen logs no {key.get(scenario)}"
                    found.setdefault(f"{scenario} {who}", []).append(value)
        of.close()
        for scenario, what in (("SingleStream", "p90, µs"), ("Server", "p99 at 5,000/s, µs"), ("Offline", "samples/s")):
            mine, other = found[f"{scenario} ours"], found[f"{scenario} bare"]
            ratios = [a / b for a, b in zip(mine, other, strict=True)]
            middle_ratio = statistics.median(ratios)
            holds = middle_ratio >= RATE_LEAST if scenario == "Offline" else middle_ratio <= LATENCY_MOST
            scale = 1.0 if scenario == "Offline" else 1e-3
            reported = f"{statistics.median(mine) * scale:,.2f} against {statistics.median(other) * scale:,.2f}"
            bound = f"≥ {RATE_LEAST:g}" if scenario == "Offline" else f"≤ {LATENCY_MOST:g}"
            self.bound(f"{scenario}, {what}, the engine ÷ a bare system under test {bound} ({reported})", ratios, holds, 2)


class Journal:
    """Runs as they end, a line each. With `resume`, those that are there stand for the same ones now, in their order."""

    def __init__(self, path: Path | None, resume: bool) -> None:
        self.path, self._there = path, dict[str, list[Row]]()
        if path is None:
            return
        if resume and path.exists():
            for line in path.read_text().splitlines():
                try:
                    found = json.loads(line)
                    self._there.setdefault(json.dumps(found["key"]), []).append(found["row"])
                except (ValueError, KeyError):  # cut off
                    continue
        else:
            path.write_text("")

    def take(self, key: list[Any]) -> Row | None:
        found = self._there.get(json.dumps(key))
        return found.pop(0) if found else None

    def add(self, key: list[Any], row: Row) -> Row:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "row": row}) + "\n")
        return row


@contextmanager
def counted() -> Iterator[list[float]]:
    """CPU seconds of each of LoadGen's tests meanwhile."""
    test, used = engine.Engine.test, list[float]()

    def timed(*arguments: Any, **more: Any) -> engine.Outcome:
        before = cpu_s()
        outcome = test(*arguments, **more)
        used.append(cpu_s() - before)
        return outcome

    with mock.patch.object(engine.Engine, "test", timed):
        yield used


def case_of(row: Row) -> tuple[Any, ...]:
    return row["gib"], row["who"], row["cores"]


def cpu_of_pair(row: Row) -> float:
    return float(row["cpu_s"]) / (row["in_test"] * data.PAIRS)


def networks_of(about: data.About) -> dict[str, tuple[int, ...]]:
    from forebay.infer import networks

    return networks.shapes("dlrm", about.table_rows)


def trials_in(logs: Path) -> list[float]:
    """Rates that a search has tried so far."""
    try:
        found = json.loads((logs / command.SEARCH).read_text())["trials"]
        return [round(trial["rate"], 6) for trial in found]
    except (OSError, ValueError):
        return []


def bare(load: rules.Load, folder: Path) -> engine.Outcome:
    """LoadGen with as little Python as can be."""
    import threading
    from queue import SimpleQueue

    from forebay.infer import logs

    lg = rules.loadgen()
    queue: SimpleQueue[Any] = SimpleQueue()
    response, complete = lg.QuerySampleResponse, lg.QuerySamplesComplete

    def answer(samples: Any) -> None:
        complete([response(sample.id, 0, 0) for sample in samples])

    def work() -> None:
        while (samples := queue.get()) is not None:
            answer(samples)

    thread = threading.Thread(target=work)
    thread.start()
    sut = lg.ConstructSUT(answer if load.scenario == "SingleStream" else queue.put, lambda: None)
    qsl = lg.ConstructQSL(2048, 2048, lambda numbers: None, lambda numbers: None)
    lg.StartTestWithLogSettings(sut, qsl, rules.settings(lg, load), engine.log_settings(lg, folder))
    queue.put(None)
    thread.join()
    lg.DestroyQSL(qsl)
    lg.DestroySUT(sut)
    return engine.Outcome(load, logs.read(folder))


def table(rows: list[Row]) -> list[str]:
    lines = [HEAD, "|---|---|---|" + "---|" * 7]
    kinds = {row["drive"] for row in rows if row["drive"]}

    def key_of(row: Row) -> tuple[str, ...]:
        drives = "–" if row["drives"] is None else str(row["drives"]) + (f" × {row['drive']}" if len(kinds) > 1 else "")
        return row["model"], row["mode"], scaling.scenario_of(row), drives

    for key in dict.fromkeys(map(key_of, rows)):
        found = [row for row in rows if key_of(row) == key]
        supply_ = found[0]["supply_gib_s"]
        rates = [row["queries_per_s"] for row in found]
        if "highest" in found[0]:
            found = [row for row in found if row["valid"]]
            rates = [row["expected_per_s"] for row in found]
            if not rates:
                lines.append(f"| {' | '.join(key)} | {supply_ or 0:.3g} | none passes | – | – | – | – |")
                continue
        if key[1] == "coldstart":
            rates = [1 / row["coldstart"]["total_s"] for row in found]
        cells = [f"{supply_:.3g}" if supply_ else "–", middle(rates, 1 if statistics.median(rates) >= 100 else 3)]
        cells.append(middle([(row["latency_ms"] or {}).get("p99") if row["scenario"] == "Server" else None for row in found], 1))
        cells.append(middle([row["load_gib_s"] for row in found], 3))
        cells.append(middle([row["timed_storage_bytes"] for row in found], 0))
        cells.append(middle([row.get("of_lesser") for row in found], 3))
        lines.append(f"| {' | '.join(key)} | {' | '.join(cells)} |")
    return lines


def table_of_tables(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    head = (
        "memory for rows, GiB", "way", "cores", "million pairs/s", "CPU, ns a pair", "hits, %", "distinct a look-up",
        "of all in memory",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for key in dict.fromkeys(case_of(row) for row in rows):
        found = [row for row in rows if case_of(row) == key]
        cells = ["–" if key[0] is None else f"{key[0]:g}", key[1], "all" if key[2] is None else str(key[2])]
        cells.append(middle([row["samples_per_s"] * data.PAIRS / 1e6 for row in found], 3))
        cells.append(middle([1e9 * cpu_of_pair(row) if "cpu_s" in row else None for row in found], 0))
        of = [row.get("tables") or {} for row in found]
        cells.append(middle([each.get("hit_pct") for each in of], 1))
        cells.append(middle([each["distinct"] / each["lookups"] if each.get("lookups") else None for each in of], 3))
        cells.append(middle([row.get("of_best") for row in found], 3))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> int:
    parser = arguments(__doc__ or "", None)
    of_memory = f"of samples in memory {IN_MEMORY_S[0]:g} on a GPU, {IN_MEMORY_S[1]:g} on the host"
    reported = f"measured seconds of each run ({RUN_S:g}; {of_memory})"
    parser.add_argument("--seconds", type=float, default=0.0, help=reported)
    parser.add_argument("--gpu", action="store_true", help="models in PyTorch on the first GPU")
    parser.add_argument("--device", default="cuda:0", help="where they run")
    parser.add_argument("--scenarios", default="Offline,Server", help="of the samples in memory, separated by commas")
    parser.add_argument("--parts", default="", help="which of them, separated by commas; all")
    parser.add_argument("--caches", default="warm,cold", help="of cold starts beside other loaders, separated by commas")
    parser.add_argument("--kinds", default="", help="kinds of drives, separated by commas (d7-ps1010)")
    parser.add_argument("--drives", default="", help="how many of them, separated by commas (1,8 on a GPU, else 1,2,4,8)")
    parser.add_argument("--batch-size", type=int, help="of models of a configuration: samples, or queries at a time")
    parser.add_argument("--small", action="store_true", help="models of a configuration in the narrow form, to try them on a CPU")
    parser.add_argument("--samples", type=int, help="that are made of a model at most")
    parser.add_argument("--rate", type=float, help="of a model of a configuration: samples a second, in place of probes")
    parser.add_argument("--table-gib", type=float, default=40.0, help="of tables: GiB of them (40)")
    parser.add_argument("--table-memory", default="0,1,4,16", help="of tables: GiB of memory for rows, separated by commas")
    parser.add_argument("--resume", action="store_true", help="go on with the runs that --json FILE has kept")
    parser.add_argument("--checked", type=int, default=1024, help="samples whose answers are compared")
    options = parser.parse_args()
    only_with_gpu(parser, options, "only", "device", "batch_size", "small", "rate", "table_gib", "table_memory")
    if options.resume and not options.json:
        parser.error("--resume goes on with the runs that --json FILE has kept: add --json FILE")
    scenarios = options.scenarios if options.scenarios != parser.get_default("scenarios") else ""
    caches = options.caches if options.caches != parser.get_default("caches") else ""
    own = (
        ("drives", options.drives), ("scenarios", scenarios), ("batch-size", options.batch_size), ("samples", options.samples),
        ("parts", options.parts), ("kinds", options.kinds), ("rate", options.rate), ("caches", caches),
    )  # fmt: skip
    options.more = "".join(f" --{flag} {value}" for flag, value in own if value)
    # Whatever ends it keeps what was measured.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = Bench(options)
    parts: list[Callable[[], None]] = [bench.in_memory, bench.control, bench.highest, bench.starts, bench.answers]
    parts += [bench.beside] if options.gpu else [bench.own_cost, bench.first_tries, bench.resumption]
    if options.only == TABLES:
        parts = [bench.tables_in_their_file]
    known = [part.__name__ for part in parts]
    wanted = options.parts.split(",") if options.parts else known
    if strange := [name for name in wanted if name not in known]:
        parser.error(f"--parts {','.join(strange)}: there is no such part; choose from {','.join(known)}")
    title = TITLE_GPU if options.gpu else TITLE
    began = time.perf_counter()
    try:
        for part in parts:
            if part.__name__ in wanted:
                say(f"{part.__name__}, after {time.perf_counter() - began:.0f} s")
                part()
    except ForebayError as error:
        bench.others.append(f"- ended: {error.asked}: {error.found}: {HOLDS[False]}")
    except KeyboardInterrupt:
        bench.others.append(f"- ended: interrupted after {time.perf_counter() - began:.0f} s: {HOLDS[False]}")
    finally:
        # What was measured stays, whatever ended it.
        lines = [*table_of_tables(bench.tables), *([*table(bench.rows), ""] if bench.rows or not bench.tables else [])]
        text = section(title, options, "\n".join([*lines, *bench.starts_table, *bench.others, ""]))
        measured = [{"rows": bench.rows, "tables": bench.tables, "bounds": bench.others}]
        save(options.json, title, options, measured, text)
    publish(title, options, text)
    return 1 if any("does not hold" in line for line in bench.others) else 0


if __name__ == "__main__":
    # LoadGen's threads may still be there.
    verb.leave(main())
