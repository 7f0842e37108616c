"""Inference over drives: `python bench/infer.py --dir DIR [--gpu [--only resnet50,llama]]`.

The toy on the host, or the models in PyTorch on the first GPU: queries a second with samples in memory, over the supply of 1
and more drives, in random order; the control, samples read inside their queries; the highest rate of Server over supplies; cold
starts; answers over modes. On the host also the engine's cost beside a bare Python system under test that answers at once, and
how many runs are VALID at the first try. Models of a configuration are told their own Offline rate, measured once, in place of
probes; gptj and sdxl are asked in Offline alone, and language models in Server at a share of that rate. Each line is a run of
`forebay infer` in this process.
Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import os
import sys

# Before NumPy: on few cores more threads of linear algebra wait for LoadGen's.
if "--gpu" not in sys.argv:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from forebay.infer import command, data, engine, forms, library, rules, toy
from forebay.stats import mean_interval
from forebay.train import supply
from side_by_side import GIB, arguments, middle, publish, save, say, section

PROMISES = ("INF-12",)
TITLE, TITLE_GPU = "Inference over drives, on the host", "Inference over drives, on a GPU"
# One drive's supply of the toy, GiB/s, and how many of them; on a GPU one of eight shares drives of the catalogue.
TOY_DRIVE, TOY_DRIVES = 0.02, (1, 2, 4, 8)
GPU_DRIVE, GPU_DRIVES, GPUS = "model:d7-ps1010", (1, 8), 8
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
        self.rows: list[Row] = []
        self.others: list[str] = []
        self.models: dict[str, Any] = {}
        # Samples a second of models of a configuration, in Offline.
        self.rates: dict[str, float] = {}

    def folder(self, name: str) -> Path:
        path: Path = self.options.dir / f"infer-{name}"
        if not data.is_there(path):
            say(f"writing {path}")
            made = rules.MODELS[name]
            tables = data.TABLE_ROWS if name == "dlrm" else 0
            if name == "toy":
                weights = toy.weights(0)
            else:
                from forebay.infer import networks

                weights = networks.weights(name, 0, tables)
            data.generate(path, data.About(name, 0, made.made_samples(), data.row_bytes(name), 0, tables), weights)
        return path

    def supply(self, drives: int) -> supply.Supply:
        if self.gpu:
            return supply.parse(f"{GPU_DRIVE}?drives={drives}", GPUS)
        return supply.parse(f"{TOY_DRIVE * drives:g}")

    def run(self, name: str, mode: str, scenario: str, drives: int | None, seconds: float | None = None, **more: Any) -> Row:
        """One run: the part `infer` of its record. The model of its name is built once."""
        folder = self.folder(name)
        of = supply.parse(None) if drives is None else self.supply(drives)
        device = self.options.device if self.gpu else "cpu"
        request = command.Request(
            name, mode, scenario, folder, data.open_folder(folder, name), of, device,
            seconds=self.options.seconds if seconds is None else seconds, cache="warm",
            strict=name not in forms.NAMES, **more,
        )  # fmt: skip
        request.check()
        peak = self.rates.get(name)
        expected = None if peak is None or mode == "coldstart" else EXPECTED * min(peak, self.brought(of, mode, request.about))
        model = self.models.get(name) if mode != "coldstart" else None
        made = command.Run(request, model=model, peak=peak if mode != "coldstart" else None, expected=expected)
        failure = made.measure()
        if failure is not None:
            raise failure
        part: Row = made.record()["infer"]
        if mode != "coldstart":
            self.models[name] = made.model
            made.keep_model()
        made.close()
        rate = f"{part['queries_per_s']:,.1f} queries/s" if part["queries_per_s"] else f"{part['coldstart']['total_s']:.3f} s"
        say(f"{name}, {mode}, {scenario}, {drives or 'all'} drives: {rate} {'' if part['valid'] is not False else part['why']}")
        return {"model": name, "drives": drives, **part}

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
            self.rates[name] = self.run(name, "ram", "Offline", None)["samples_per_s"]

    def add(self, row: Row) -> Row:
        self.rows.append(row)
        return row

    def bound(self, text: str, values: list[float], holds: bool, digits: int = 3) -> None:
        self.others.append(f"- {text}: {middle(values, digits)}, {HOLDS[holds]}")

    # What is measured -----------------------------------------------------------------------------------

    def in_memory(self) -> None:
        """Queries a second over drives, interleaved in random order."""
        counts = GPU_DRIVES if self.gpu else TOY_DRIVES
        flat = FLAT_GPU if self.gpu else FLAT_HOST
        order = random.Random(7)
        for name in self.names:
            self.offline_rate(name)
            for scenario in self.scenarios(name):
                rate = {}
                if scenario == "Server" and name in forms.NAMES and forms.form(name).inputs:
                    rate = {"target_qps": OF_OFFLINE * self.rates[name]}
                elif scenario == "Server":
                    highest = self.run(name, "ram", "Server", None, min(5.0, self.options.seconds))["expected_per_s"]
                    rate = {"target_qps": OF_HIGHEST * highest}
                first = len(self.rows)
                for _ in range(self.options.rounds):
                    for drives in order.sample(counts, len(counts)):
                        self.add(self.run(name, "ram", scenario, drives, **rate))
                found = self.rows[first:]
                self.flat(name, scenario, found, counts, flat)
        loads = [row for row in self.rows if row["mode"] == "ram" and row["load_gib_s"]]
        off = [row["load_gib_s"] / row["supply_gib_s"] for row in loads]
        within = abs(statistics.median(off) - 1) <= OF_SUPPLY
        self.bound(f"rate of the load ÷ supply within {100 * OF_SUPPLY:g} %", off, within)
        bytes_ = [float(row["timed_storage_bytes"]) for row in loads]
        self.bound("bytes from storage inside the timed part of ram: 0", bytes_, max(bytes_) == 0, 0)

    def flat(self, name: str, scenario: str, found: list[Row], counts: tuple[int, ...], most: float) -> None:
        by = {n: [row["queries_per_s"] for row in found if row["drives"] == n] for n in counts}
        for n in counts[1:]:
            ratios = [a / b for a, b in zip(by[n], by[counts[0]], strict=True)]
            interval = mean_interval(ratios)
            low, high = interval.low or min(ratios), interval.high or max(ratios)
            text = f"{name}, ram, {scenario}: {n} ÷ {counts[0]} drives 1.00 ± {most}, 95 % interval {low:.4f} to {high:.4f}"
            self.bound(text, ratios, 1 - most <= low and high <= 1 + most, 4)

    def control(self) -> None:
        """Samples read inside their queries: the lesser of peak and supply, and Server's highest rate."""
        name = self.names[0]
        self.offline_rate(name)
        shares: list[float] = []
        for drives in GPU_DRIVES if self.gpu else TOY_DRIVES:
            for _ in range(max(1, self.options.rounds // 2)):
                row = self.add(self.run(name, "cold", "Offline", drives))
                lesser = min(row["peak_samples_per_s"], row["supply_gib_s"] * GIB / row["sample_bytes"])
                row["of_lesser"] = row["samples_per_s"] / lesser
                shares.append(row["of_lesser"])
        # Where supply and peak are about equal, each waits for the other now and then.
        cold = [row for row in self.rows if row.get("of_lesser")]
        between = [row["of_lesser"] for row in cold if NEAR < row["supply_gib_s"] / row["demand_gib_s"] < 1 / NEAR]
        clear = [share for share in shares if share not in between]
        holds = all(abs(share - 1) <= OF_LESSER for share in clear)
        self.bound(f"{name}, cold, Offline ÷ the lesser of peak and supply within {100 * OF_LESSER:g} %", clear, holds)
        if between:
            self.bound(f"{name}, cold, Offline where both are about equal ÷ the lesser ≥ 0.8", between, min(between) >= 0.8)
        rates = []
        if name in forms.NAMES:
            return
        for drives in GPU_DRIVES if self.gpu else TOY_DRIVES:
            row = self.add(self.run(name, "cold", "Server", drives, min(5.0, self.options.seconds)))
            rates.append(row["expected_per_s"])
        grows = all(b >= 0.9 * a for a, b in zip(rates, rates[1:], strict=False))
        self.bound(f"{name}, cold, Server: the highest rate doesn't fall with drives", rates, grows, 0)

    def starts(self) -> None:
        """Cold starts over drives: reading by the clock beside the supply."""
        for name in self.names:
            off = []
            for drives in GPU_DRIVES if self.gpu else TOY_DRIVES:
                row = self.add(self.run(name, "coldstart", "Offline", drives))
                if row["load_s"] >= READ_S:
                    off.append(row["load_gib_s"] / row["supply_gib_s"])
            within = all(abs(share - 1) <= OF_SUPPLY for share in off)
            if off:
                text = f"{name}, coldstart: rate of reading for {READ_S:g} s and more ÷ supply within {100 * OF_SUPPLY:g} %"
                self.bound(text, off, within)

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
            said = f"{name}: answers over modes, scenarios and paths have {len(hashes)} hash"
            self.others.append(f"- {said}, {HOLDS[len(hashes) == 1]}")

    def first_tries(self) -> None:
        """Runs over all scenarios that are VALID at the first try."""
        valid = 0
        for number in range(20):
            scenario = rules.SCENARIOS[number % 4]
            row = self.run("toy", "ram", scenario, None, rules.SHORT_S)
            valid += row["valid"] is True and row["tries"] == 1
        self.bound(f"VALID at the first try, of 20: ≥ {FIRST_TRIES}", [float(valid)], valid >= FIRST_TRIES, 0)

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
                    found.setdefault(f"{scenario} {who}", []).append(value or 0.0)
        of.close()
        for scenario, what in (("SingleStream", "p90, µs"), ("Server", "p99 at 5,000/s, µs"), ("Offline", "samples/s")):
            mine, other = found[f"{scenario} ours"], found[f"{scenario} bare"]
            ratios = [a / b for a, b in zip(mine, other, strict=True)]
            middle_ratio = statistics.median(ratios)
            holds = middle_ratio >= RATE_LEAST if scenario == "Offline" else middle_ratio <= LATENCY_MOST
            scale = 1.0 if scenario == "Offline" else 1e-3
            told = f"{statistics.median(mine) * scale:,.2f} against {statistics.median(other) * scale:,.2f}"
            bound = f"≥ {RATE_LEAST:g}" if scenario == "Offline" else f"≤ {LATENCY_MOST:g}"
            self.bound(f"{scenario}, {what}, the engine ÷ a bare system under test {bound} ({told})", ratios, holds, 2)


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
    keys = list(dict.fromkeys((row["model"], row["mode"], row["scenario"], row["drives"]) for row in rows))
    for key in keys:
        found = [row for row in rows if (row["model"], row["mode"], row["scenario"], row["drives"]) == key]
        supply_ = found[0]["supply_gib_s"]
        rates = [row["queries_per_s"] for row in found]
        if key[1] == "coldstart":
            rates = [1 / row["coldstart"]["total_s"] for row in found]
        cells = [f"{supply_:.3g}" if supply_ else "–", middle(rates, 1)]
        cells.append(middle([(row["latency_ms"] or {}).get("p99") if row["scenario"] == "Server" else None for row in found], 1))
        cells.append(middle([row["load_gib_s"] for row in found], 3))
        cells.append(middle([row["timed_storage_bytes"] for row in found], 0))
        cells.append(middle([row.get("of_lesser") for row in found], 3))
        lines.append(f"| {' | '.join(str(part) for part in key)} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = arguments(__doc__ or "", 2.0)
    parser.add_argument("--gpu", action="store_true", help="models in PyTorch on the first GPU")
    parser.add_argument("--device", default="cuda:0", help="where they run")
    parser.add_argument("--scenarios", default="Offline,Server", help="of the samples in memory, separated by commas")
    parser.add_argument("--parts", default="", help="which of them, separated by commas; all")
    parser.add_argument("--checked", type=int, default=1024, help="samples whose answers are compared")
    options = parser.parse_args()
    bench = Bench(options)
    parts: list[Callable[[], None]] = [bench.in_memory, bench.control, bench.starts, bench.answers]
    parts += [] if options.gpu else [bench.own_cost, bench.first_tries]
    wanted = options.parts.split(",") if options.parts else [part.__name__ for part in parts]
    title = TITLE_GPU if options.gpu else TITLE
    began = time.perf_counter()
    try:
        for part in parts:
            if part.__name__ in wanted:
                say(f"{part.__name__}, after {time.perf_counter() - began:.0f} s")
                part()
    except ForebayError as error:
        bench.others.append(f"- ended: {error.asked}: {error.found}: {HOLDS[False]}")
    finally:
        # What was measured stays, whatever ended it.
        text = section(title, options, "\n".join([*table(bench.rows), "", *bench.others, ""]))
        save(options.json, title, options, [{"rows": bench.rows, "bounds": bench.others}], text)
    publish(title, options, text)
    return 1 if any("does not hold" in line for line in bench.others) else 0


if __name__ == "__main__":
    raise SystemExit(main())
