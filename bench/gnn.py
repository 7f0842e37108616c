"""R-GAT by where its features are: `python bench/gnn.py --dir DIR [--nodes 4000000] [--device cuda:0]`.

One model, one sampler, the same batches; features in the model's memory, gathered from their cached file, or in host memory,
mapped, and indexed by torch into pinned memory that is used again. Then loads in bulk at supplies, by the clock, and the
first batch of a run that gathers. Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import forebay
from forebay.errors import ForebayError
from forebay.train import gnn, gnn_run, graph, run, supply
from side_by_side import GIB, arguments, middle, publish, save, say, section

PROMISES = ("TRN-54",)
TITLE = "R-GAT by where its features are"
MEMORY, MAPPED, BOUNCE, HOST, INDEXED = (
    "features in the model's memory", "gathered, mapped", "gathered, bounce", "gathered", "host memory, indexed by torch"
)  # fmt: skip
# Bounds: gathered over indexed by torch; a load off its bytes ÷ supply; the first batch of a run that gathers, seconds.
LEAST, OFF, FIRST_S = 1.0, 0.05, 2.0
HEAD = "| features | samples/s | an epoch, s | of memory | waits, % | GPU idle, % | core-s a GiB of rows |"
HOLDS = {True: "holds", False: "**does not hold**"}
Row = dict[str, Any]


class Indexed:
    """torch at its best: one gather by all its threads into pinned memory, two places in turn, and a copy beside the steps."""

    def __init__(self, torch: Any, about: graph.About, device: str) -> None:
        self._torch, self._device, self._turn = torch, device, 0
        size = about.table_rows * graph.WIDTH
        path = str(about.folder / graph.FEATURES)
        self._table = torch.from_file(path, shared=True, size=size, dtype=torch.float16).view(-1, graph.WIDTH)
        self._room: list[Any] = [None, None]
        self._sent: list[Any] = [None, None]

    def rows(self, nodes: Any) -> Any:
        torch, n = self._torch, len(nodes)
        if self._device == "cpu":
            return self._table.index_select(0, nodes)
        self._turn ^= 1
        if self._sent[self._turn] is not None:
            self._sent[self._turn].synchronize()
        if self._room[self._turn] is None or len(self._room[self._turn]) < n:
            self._room[self._turn] = torch.empty((n + n // 8, graph.WIDTH), dtype=torch.float16, pin_memory=True)
        out = self._room[self._turn][:n]
        torch.index_select(self._table, 0, nodes.cpu(), out=out)
        there = out.to(self._device, non_blocking=True)
        self._sent[self._turn] = torch.cuda.Event()
        self._sent[self._turn].record()
        return there


class Bench:
    def __init__(self, options: Any) -> None:
        import torch

        self.options, self.torch, self.device = options, torch, options.device
        folder = options.dir / f"graph-{options.nodes}"
        self.about = graph.open_folder(folder) if folder.is_dir() else graph.generate(folder, 0, options.nodes, progress=None)
        label, relations = graph.read(self.about)
        fan_out = graph.fan_out(options.fan_out)
        self._sampler = gnn.Sampler(label, relations, self.device, fan_out, 0)
        self._model = gnn.Model(self.about.classes, 0, self.device, gnn.LEARNING_RATE, options.hidden, len(fan_out))
        self._fan_out = fan_out
        self.ways = [MEMORY, HOST, INDEXED] if self.device == "cpu" else [MEMORY, MAPPED, BOUNCE, INDEXED]
        self._warm()
        self._files = {name: forebay.open(self._path(), path) for name, path in
                       ((MAPPED, "mapped"), (BOUNCE, "bounce"), (HOST, "host")) if name in self.ways}  # fmt: skip

    def _path(self) -> Path:
        return self.about.folder / graph.FEATURES

    def _warm(self) -> None:
        with self._path().open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass

    def _features(self, name: str) -> Any:
        if name in self._files:
            return gnn.Gathered(self.torch, self._files[name], self.device)
        if name == INDEXED:
            return Indexed(self.torch, self.about, self.device)
        table = self.torch.empty((self.about.table_rows, graph.WIDTH), dtype=self.torch.float16, device=self.device)
        with forebay.open(self._path()) as file:
            file.read_into(table)
        return gnn.Features(table, len(table))

    def rate(self, name: str) -> Row:
        """So many seconds of training, from reset weights."""
        batches = gnn.Batches(
            self._sampler, graph.training(self.about), self.about.rows, self.options.batch, self._features(name)
        )
        self._model.reset()
        fed = run.Fed(self._model, batches, None, None, run.Limits(seconds=self.options.seconds))
        fed.run()
        if fed.failure is not None:
            raise fed.failure
        gib = batches.rows / fed.samples * fed.rate.samples * graph.ROW_BYTES / GIB
        return {
            "name": name, "rate": fed.rate.samples_per_s, "epoch_s": self.about.rows / fed.rate.samples_per_s,
            "waits": 100 * fed.meter.waited_s / fed.rate.seconds, "idle": fed.meter.idle_pct,
            "cpu": (fed.cpu.user_s + fed.cpu.system_s) / gib, "hash": fed.digest.at()[0]["hash"],
        }  # fmt: skip

    def one(self, way: str, gib_s: str | None) -> gnn_run.Run:
        """A whole run of a few batches, as the command makes it."""
        asked = supply.parse(gib_s)
        request = gnn_run.Request(
            self.about, asked, self.options.batch, way=way, fan_out=self._fan_out, hidden=self.options.hidden, cache="warm",
            path="auto" if self.device == "cpu" else "mapped", samples=5 * self.options.batch, quality=False, peak_s=0.5,
        )  # fmt: skip
        self._model.reset()
        made = gnn_run.Run(request, self._model)
        failure = made.measure()
        if failure is not None:
            raise failure
        return made


def verdicts(rounds: list[list[Row]], loads: list[Row], first_s: float | None) -> list[str]:
    said = []
    found = [{row["name"]: row["rate"] for row in rows} for rows in rounds]
    for name in (MAPPED, HOST):
        ratios = [rates[name] / rates[INDEXED] for rates in found if name in rates and INDEXED in rates]
        if ratios:
            held = HOLDS[statistics.median(ratios) >= LEAST]
            said.append(f"- {name} ≥ {LEAST:g} × {INDEXED}: {middle(ratios, 3)}: {held}")
    for load in loads:
        off = load["load_s"] / load["expected_s"] - 1
        held = HOLDS[abs(off) <= OFF]
        took = f"{load['load_s']:.2f} s, {off:+.1%}"
        said.append(f"- a load at {load['supply']} GiB/s within {OFF:.0%} of its bytes ÷ supply: {took}: {held}")
    if first_s is not None:
        said.append(f"- the first batch of a run that gathers within {FIRST_S:g} s: {first_s:.2f} s: {HOLDS[first_s < FIRST_S]}")
    same = len({row["hash"] for rows in rounds for row in rows}) == 1
    said.append(f"- the first batch's hash is one over all of them: {HOLDS[same]}")
    return said


def table(rounds: list[list[Row]]) -> list[str]:
    lines = [HEAD, "|---|" + "---|" * 6]
    for name in dict.fromkeys(row["name"] for rows in rounds for row in rows):
        found = [row for rows in rounds for row in rows if row["name"] == name]
        own = [row["rate"] / rows[0]["rate"] for rows in rounds for row in rows if row["name"] == name]
        cells = [middle([row[key] for row in found], digits) for key, digits in (("rate", 0), ("epoch_s", 1))]
        cells += [middle(own, 3), *(middle([row[key] for row in found], n) for key, n in (("waits", 1), ("idle", 1), ("cpu", 3)))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = arguments(__doc__ or "", 8.0, only=False)
    parser.add_argument("--nodes", type=int, default=4_000_000, help="of the graph, 2 KiB each; made where DIR has none")
    parser.add_argument("--device", default="cuda:0", help="where the model runs")
    parser.add_argument("--batch", type=int, default=gnn.BATCH, help="nodes of a batch")
    parser.add_argument("--fan-out", default=",".join(map(str, gnn.FAN_OUT)), help="neighbours by each relation, a hop each")
    parser.add_argument("--hidden", type=int, default=gnn.HIDDEN, help="width of the layers")
    parser.add_argument("--supplies", default="2,4", help="GiB/s of loads")
    options = parser.parse_args()
    began = time.perf_counter()
    bench = Bench(options)
    say(f"graph, sampler and model after {time.perf_counter() - began:.1f} s")
    rounds: list[list[Row]] = []
    loads: list[Row] = []
    first_s: float | None = None
    try:
        for number in range(options.rounds):
            rounds.append([])
            for name in bench.ways:
                say(f"round {number + 1}/{options.rounds}, {name}")
                rounds[-1].append(bench.rate(name))
        for gib_s in options.supplies.split(","):
            say(f"a load at {gib_s} GiB/s")
            made = bench.one(gnn_run.BULK, gib_s)
            took = made.load.seconds if made.load is not None else 0.0
            loads.append({"supply": gib_s, "load_s": took, "expected_s": bench.about.feature_bytes / GIB / float(gib_s)})
        say("the first batch")
        first_s = bench.one(gnn_run.GATHER, None).first_s
    except ForebayError as error:
        say(f"ended: {error}")
    finally:
        said = verdicts(rounds, loads, first_s) if rounds and rounds[-1] else []
        text = section(TITLE, options, "\n".join([*table(rounds), "", *said, ""]))
        save(options.json, TITLE, options, [{"rounds": rounds, "loads": loads, "first_s": first_s}], text)
    publish(TITLE, options, text)
    return 1 if any("does not hold" in line for line in said) else 0


if __name__ == "__main__":
    raise SystemExit(main())
