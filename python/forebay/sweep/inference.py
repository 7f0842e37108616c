"""A sweep of inference over drives: models in turn, a supply for each kind and number of drives, in memory and as a control not.

Each model's own peak, and the rate at which Server asks, are measured once and on disk before the points; then the points
in random order, each a run of `forebay infer` whose record is on disk before the next one begins.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay.errors import ForebayError, RequestError
from forebay.infer import data, rules, scaling, search
from forebay.model_runs import device_of, few_threads
from forebay.numbers import significant, whole
from forebay.stages import format_duration
from forebay.sweep import models
from forebay.sweep.file import Sweep
from forebay.sweep.results import Results
from forebay.sweep.runner import Outcome
from forebay.table import table
from forebay.train import supply
from forebay.units import GIB

if TYPE_CHECKING:
    from forebay.infer.command import Run

TOY = models.TOY
SCENARIOS = ("Server", "Offline")
# Mode, scenario, and whether Server's highest rate is searched for: asked at a rate that passes, it answers just that.
WAYS = (
    *((scaling.RAM, "Server", False), (scaling.RAM, "Server", True), (scaling.RAM, "Offline", False)),
    *((scaling.COLD, "Server", True), (scaling.COLD, "Offline", False)),
)
# Seconds of a test; Server is asked at so much of its highest rate, and a control at so much of what its supply brings.
SECONDS, OF_HIGHEST, OF_SUPPLY = {TOY: 2.0}, 0.8, 1.05
SECONDS_GPU = 10.0
# Beside a test: a loader, a verdict.
BESIDE_S = 2.0
# A search: seconds of a trial, bounds as narrow as rates repeat, and trials until they are, about; no trial begins after the time
# of so many, or so many seconds.
TRIAL_S, NARROW, TRIALS_USUAL, TRIALS_MOST, SEARCH_MOST_S = 2.0, 1.05, 7, 15, 120.0
# The need whose ratio to the supply --scale-to-peak keeps: ResNet-50 on an H100, 11,500 images/s of 150,528 bytes.
NEED_GIB_S = 11_500 * 150_528 / GIB


@dataclass(frozen=True)
class Asked(models.Asked):
    """The sweep as it was asked for."""

    scenarios: tuple[str, ...]
    kinds: tuple[str, ...]

    def points(self) -> list[dict[str, Any]]:
        return [
            {
                "system": self.system.name, "gpus": self.system.gpus, "model": model, "mode": mode, "scenario": scenario,
                "drive": drive, "drives": number, "batch": self.batch, "seconds": self.seconds_of(model),
                "scale_to_peak": self.scale_to_peak, **({"highest": True} if highest else {}),
            }
            for model in self.folders
            for mode, scenario, highest in WAYS
            if scenario in self.scenarios and scenario in rules.MODELS[model].scenarios
            for drive in self.kinds
            for number in self.sweep.drives
        ]  # fmt: skip

    def turns(self) -> list[tuple[dict[str, Any], int]]:
        """Points of each round in an order of its own, so that a drift of the machine is in all drives alike."""
        made = []
        for model in self.folders:
            own = [point for point in self.points() if point["model"] == model]
            for number in range(self.rounds):
                order = random.Random(f"{self.sweep.seed} {number}").sample(own, len(own))
                made += [(point, number) for point in order]
        return made

    def seconds_of(self, model: str) -> float:
        return SECONDS.get(model, SECONDS_GPU) if self.seconds is None else self.seconds

    def seconds_in_all(self) -> float:
        tests = sum(point["seconds"] + BESIDE_S for point in self.points())
        searches = [TRIALS_USUAL * min(TRIAL_S, point["seconds"]) for point in self.points() if point.get("highest")]
        return (tests + sum(searches)) * self.rounds


def effort(seconds: float, rate: float) -> search.Effort:
    """Of a search at a point, for a rate of about that: LoadGen asks so many queries at least."""
    trial_s = min(TRIAL_S, seconds)
    takes_s = max(trial_s, rules.QUERIES_MIN["Server"] / rate)
    return search.Effort(trial_s, NARROW, min(SEARCH_MOST_S, TRIALS_MOST * takes_s))


def name_of(point: Mapping[str, Any]) -> str:
    return f"{point['model']}, {scaling.scenario_of(point)}, {point['mode']}, {point['drives']} × {point['drive']}"


def asked_of(sweep: Sweep, source: tuple[str, ...], values: Mapping[str, Any]) -> Asked:
    """Raises RequestError for what can't be."""
    for key, flag in models.OTHERS.items():
        if values[key]:
            raise RequestError(flag, f"means nothing to {sweep.name}, which has models answer and runs no jobs", f"no {flag}")
    known = {system.name.lower(): system for system in sweep.systems}
    system = known.get((values["system"] or sweep.systems[0].name).lower())
    if system is None:
        raise RequestError(f"--system {values['system']}", f"isn't one of {sweep.origin}", f"--system {sweep.systems[0].name}")
    scenarios = _scenarios(values["scenarios"])
    kinds = system.drives
    if values["drives_of"]:
        kinds = tuple(dict.fromkeys(supply.drive_of(name.strip()).name for name in values["drives_of"].split(",")))
    folders = folders_of(source, values["models"], sweep.name)
    for model in folders:
        if not set(scenarios) & set(rules.MODELS[model].scenarios):
            rules.refuse_unknown(model, scenarios[0])
    return Asked(**models.shared(sweep, system, folders, values, 0.05, 1 << 20), scenarios=scenarios, kinds=kinds)


def _scenarios(asked: str | None) -> tuple[str, ...]:
    if asked is None:
        return SCENARIOS
    known = {name.lower(): name for name in SCENARIOS}
    found = [known.get(name.strip().lower()) for name in asked.split(",")]
    if None in found or len(set(found)) < len(found):
        raise RequestError(f"--scenarios {asked}", "isn't of Server and Offline, each once", "--scenarios Server,Offline")
    return tuple(name for name in found if name)


def folders_of(source: Sequence[str], asked: str | None, sweep: str) -> dict[str, str]:
    """Models in the order asked for, each with its folder: a SOURCE, or one of its name below. The toy makes its own."""
    names = [name.strip() for name in asked.split(",")] if asked else []
    for name in names:
        if name not in rules.MODELS or names.count(name) > 1:
            found = "is there twice" if name in rules.MODELS else "is no model of forebay infer"
            raise RequestError(f"--models {asked}", f"{name!r} {found}", "--models resnet50,bert")
    there: dict[str, str] = {}
    for given in map(Path, source):
        if data.is_there(given):
            there[data.model_of(given)] = str(given)
            continue
        for model in rules.MODELS:
            if data.is_there(given / model):
                there.setdefault(model, str(given / model))
    wanted = names or list(there) or [TOY]
    for name in wanted:
        if name in there:
            continue
        if not source:
            raise RequestError(f"sweep {sweep}", "names no folder of models' files", f"forebay sweep {sweep} DIR")
        folder = str(Path(source[0]) / name)
        if name != TOY:
            raise RequestError(f"--models {name}", "no SOURCE has its files", f"forebay infer datagen {name} --dir {folder}")
        there[name] = folder
    return {name: there[name] for name in wanted}


def command(sweep: Sweep, source: tuple[str, ...], values: Mapping[str, Any]) -> int:
    asked = asked_of(sweep, source, values)
    as_json: bool = values["as_json"]
    if TOY in asked.folders:
        few_threads()
    if values["only_show"]:
        click.echo(json.dumps(_listing(asked)) if as_json else "\n".join(_listed(asked)))
        return 0
    rules.loadgen()
    output = Path(values["output"] or time.strftime(f"{sweep.name}-{'-'.join(asked.folders)}-%Y%m%d-%H%M%S.jsonl"))
    with Results(output) as results:
        frozen = models.begin(asked, {"peaks": {}}, results, values["restart"])
        for line in _heading(asked):
            click.echo(line, err=True)
        outcome = _play(asked, frozen, results)
        document = _summary(asked, results, outcome)
    click.echo(json.dumps(document) if as_json else "\n".join(_shown(document)))
    if outcome.interrupted:
        click.echo(f"forebay: interrupted; the same command with -o {output} continues", err=True)
    return outcome.exit_code


# The runs -----------------------------------------------------------------------------------------------


def _play(asked: Asked, frozen: dict[str, Any], results: Results) -> Outcome:
    @contextmanager
    def model(name: str) -> Iterator[models.One]:
        subject = Subject(asked, name)
        try:
            subject.begin(frozen, results)
            trials = results.path.with_name(results.path.name + ".trials")
            yield lambda point, number: _one(asked, subject, point, number, frozen["peaks"][name], trials)
        finally:
            subject.close()

    return models.play(asked.turns(), results, model)


class Subject:
    """A model that all its points share, and its files."""

    def __init__(self, asked: Asked, model: str) -> None:
        self.asked, self.model, self.folder = asked, model, Path(asked.folders[model])
        if model == TOY and not data.is_there(self.folder):
            from forebay.infer import toy

            self.folder.parent.mkdir(parents=True, exist_ok=True)
            about = data.About(TOY, 0, rules.MODELS[TOY].samples, data.row_bytes(TOY), 0)
            data.generate(self.folder, about, toy.weights(0))
        self.about = data.open_folder(self.folder, model)
        self.device = "cpu" if model == TOY else device_of(f"infer {model}", None)
        self._model: Any = None

    def run(
        self, mode: str, scenario: str, of: supply.Supply, seconds: float, target: float | None = None,
        peak: float | None = None, expected: float | None = None, effort: search.Effort | None = None, trials: Path | None = None,
    ) -> tuple[Run, dict[str, Any]]:  # fmt: skip
        """One run of `forebay infer`, and its record."""
        from forebay.infer import command

        request = command.Request(
            self.model, mode, scenario, self.folder, self.about, of, self.device, seconds=seconds, cache="warm",
            # No rate at one supply is a point of the curve; none without a supply is the model's fault.
            target_qps=target, batch=self.asked.batch, strict=of.gib_s is None, effort=effort, trials=trials,
        )  # fmt: skip
        request.check()
        run = command.Run(request, model=self._model, peak=peak, expected=expected)
        try:
            failure = run.measure()
            if failure is not None:
                raise failure
            self._model = run.model
            return run, run.record()
        finally:
            # The model stays.
            run.keep_model()
            run.close()

    def begin(self, frozen: dict[str, Any], results: Results) -> None:
        """The model's own rates, kept with what was decided."""
        if self.model in frozen["peaks"]:
            return
        asked, seconds = self.asked, self.asked.seconds_of(self.model)
        scenarios = [name for name in asked.scenarios if name in rules.MODELS[self.model].scenarios]
        first_s = min(seconds, 2.0)
        part = self._own("Offline", first_s)
        peak = part["samples_per_s"]
        # A rate of few batches is of their edges, too.
        if (longer := models.peak_s(part["batch"], peak)) > first_s:
            peak = self._own("Offline", longer, peak=peak, expected=OF_SUPPLY * peak)["samples_per_s"]
        own: dict[str, Any] = {"samples_per_s": peak, "factor": None, "server_per_s": None}
        need = peak * self.about.row_bytes / GIB
        if asked.scale_to_peak:
            own["factor"] = need / NEED_GIB_S
        reported = f"{self.model}: own peak {whole(peak)} samples/s, {significant(need)} GiB/s"
        if "Server" in scenarios:
            own["server_per_s"] = OF_HIGHEST * self._own("Server", min(seconds, 5.0), peak=peak)["expected_per_s"]
            reported += f"; Server is asked at {significant(own['server_per_s'])} queries/s"
        frozen["peaks"][self.model] = own
        results.append(models.header(asked, frozen))
        click.echo(reported + (f"; supplies scaled by {significant(own['factor'])}" if own["factor"] else ""), err=True)

    def _own(self, scenario: str, seconds: float, **known: Any) -> dict[str, Any]:
        """Part `infer` of a run in memory. What an interrupt left of one is no rate to scale by: KeyboardInterrupt."""
        run, record = self.run(scaling.RAM, scenario, supply.Supply(None), seconds, **known)
        if run.interrupted:
            raise KeyboardInterrupt
        part: dict[str, Any] = record["infer"]
        return part

    def close(self) -> None:
        if self._model is not None:
            self._model.close()


def _one(
    asked: Asked, subject: Subject, point: dict[str, Any], number: int, own: Mapping[str, Any], trials: Path
) -> tuple[dict[str, Any], str]:
    """The line of a point, and what to tell of it. `trials`: the file of a search while it goes on."""
    name, size = name_of(point), subject.about.row_bytes
    share, cold = asked.share(point), point["mode"] == scaling.COLD
    need = own["samples_per_s"] * size / GIB
    of = share.scaled(own["factor"], models.NEEDS_MAX * need if cold else float("inf"))
    assert of.gib_s is not None
    rate = of.gib_s
    brought = OF_SUPPLY * supply.bytes_per_s(rate) / size if cold else float("inf")
    highest = bool(point.get("highest"))
    target = own["server_per_s"] if point["scenario"] == "Server" and not highest else None
    tried = effort(point["seconds"], min(own["server_per_s"], brought)) if highest else None
    more = {
        "supply_gib_s": rate, "share_gib_s": share.gib_s, "factor": own["factor"], "weights_bytes": subject.about.weights_bytes,
    }  # fmt: skip

    def measure() -> tuple[Any, bool, str]:
        interrupted = True
        try:
            run, record = subject.run(
                point["mode"], point["scenario"], of, point["seconds"], target, own["samples_per_s"],
                OF_SUPPLY * min(own["samples_per_s"], brought), tried,
                trials if highest else None,
            )  # fmt: skip
            interrupted = run.interrupted
        except ForebayError:
            interrupted = False
            raise
        finally:
            if highest and not interrupted:
                trials.unlink(missing_ok=True)
        part = record["infer"]
        answered = part["queries_per_s"] if not highest else part["expected_per_s"] if part["valid"] else None
        none = "broken off" if interrupted else "no rate"
        return record, interrupted, f"{significant(rate)} GiB/s  " + (f"{whole(answered)}/s" if answered else none)

    return models.line_of(asked, point, number, name, more, measure)


# What is shown ------------------------------------------------------------------------------------------


def _heading(asked: Asked) -> list[str]:
    first = f"{asked.sweep.name}: {asked.sweep.title}, {', '.join(asked.folders)}, a GPU's share of {asked.system.name}"
    runs = len(asked.points()) * asked.rounds
    lines = [first, f"  {runs} tests, about {format_duration(asked.seconds_in_all())} in all; {scaling.LABEL}"]
    for model in asked.folders:
        without = [name for name in asked.scenarios if name not in rules.MODELS[model].scenarios]
        lines += [f"  {model} has no {name}, which is left out" for name in without]
    return lines


def _listing(asked: Asked) -> dict[str, Any]:
    return {
        "schema": "forebay.sweep-plan/1",
        "preset": asked.sweep.name,
        "seconds": asked.seconds_in_all(),
        "points": [
            {"key": models.key_of(p), "name": name_of(p), "point": p, "share_gib_s": asked.share(p).gib_s} for p in asked.points()
        ],
    }


def _listed(asked: Asked) -> list[str]:
    listed = [(name_of(point), significant(asked.share(point).gib_s or 0.0)) for point in asked.points()]
    return [*_heading(asked), *table([("test", "GiB/s a GPU"), *listed])]


def _summary(asked: Asked, results: Results, outcome: Outcome) -> dict[str, Any]:
    """Schema forebay.inference-drives/1."""
    keys = {models.key_of(point) for point in asked.points()}
    lines = [line for (key, _), line in results.contents.finished().items() if key in keys]
    made = scaling.rows([(line["point"], line["round"], line["record"].get("infer") or {}) for line in lines])
    return {
        "schema": "forebay.inference-drives/1",
        "label": scaling.LABEL,
        "system": asked.system.name,
        "model": ", ".join(asked.folders),
        "output": str(results.path),
        "rows": made,
        "flat": scaling.flat(made),
        "control": scaling.control(made),
        "highest": scaling.curves(made),
        "advice": scaling.advice(made),
        **models.counts_of(outcome),
    }


def _shown(document: Mapping[str, Any]) -> list[str]:
    head = ("test", "GiB/s", "queries/s", "÷ fewest drives", "95 %", "p99, ms", "load, s")
    body = [
        (
            name_of(r), significant(r["supply_gib_s"]),
            whole(r["queries_per_s"]) + scaling.between(r) if r["queries_per_s"] else "none passes",
            f"{r['ratio']:.4f}" if r["ratio"] else "",
            f"{r['low']:.4f} to {r['high']:.4f}" if r["low"] is not None else "", significant(r["p99_ms"]) if r["p99_ms"] else "",
            significant(r["load_s"]) if r["load_s"] else "",
        )
        for r in document["rows"]
    ]  # fmt: skip
    made = [f"{document['model']}, a GPU's share of {document['system']} ({document['label']})"]
    made += table([head, *body]) if body else []
    made += [f"memory    {scaling.sentence(row)}" for row in document["flat"]]
    made += [f"control   {scaling.control_sentence(row)}" for row in document["control"]]
    made += [f"highest   {scaling.curve_sentence(row)}" for row in document["highest"]]
    made += [f"advice    {row['model']}: {row['text']}" for row in document["advice"]]
    made += [f"failed    {e['asked']}: {e['found']} (try: {e['next']})" for e in document["failed"]]
    return [*made, f"kept      {document['output']}; forebay report {document['output']} shows it"]
