"""A sweep of trainings over drives: models in turn, one system, a supply for each kind and number of its drives.

What `forebay plan` predicts is on disk before anything is measured; then each model's own peak, which scales the supplies
where that is asked for; then a training for each point, whose record is on disk before the next one begins. Minutes are
known of DLRM alone; what other models gain is told of their rate, over the law of supply at their own peak.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay.errors import MachineError, RequestError, RunError
from forebay.model_runs import device_of, few_threads, torch_or_say
from forebay.numbers import percent, significant, whole
from forebay.stages import format_duration
from forebay.sweep import models
from forebay.sweep.file import Sweep, System
from forebay.sweep.results import Results
from forebay.sweep.runner import Outcome
from forebay.table import table
from forebay.train import forms, samples, scaling, supply
from forebay.units import GIB

if TYPE_CHECKING:
    from forebay.train.command import Run

TOY, DLRM = models.TOY, "dlrm"
# Those whose minutes plans know.
PLANNED = (TOY, DLRM)
# Of each model: seconds of a point's training, and of its peak; samples of a batch are those of `forebay train`.
SECONDS = {TOY: (3.0, 1.0), **dict.fromkeys((DLRM, *forms.NAMES), (10.0, 2.0))}
# Beside a point's training: two checks, and its start.
BESIDE_S = 3.0


@dataclass(frozen=True)
class Asked(models.Asked):
    """The sweep as it was asked for."""

    models: tuple[str, ...]

    def points(self) -> list[dict[str, Any]]:
        return [
            {
                "system": self.system.name, "gpus": self.system.gpus, "model": model, "drive": drive, "drives": count,
                "batch": self.batch, "seconds": self.seconds_of(model), "scale_to_peak": self.scale_to_peak,
            }
            for model in self.models
            for drive in self.system.drives
            for count in self.sweep.drives
        ]  # fmt: skip

    def seconds_of(self, model: str) -> float:
        return SECONDS[model][0] if self.seconds is None else self.seconds

    def name_of(self, point: Mapping[str, Any]) -> str:
        name = f"{point['drives']} × {point['drive']}"
        return name if len(self.models) == 1 else f"{point['model']}, {name}"

    def seconds_in_all(self) -> float:
        each = sum(self.seconds_of(model) + SECONDS[model][1] + BESIDE_S for model in self.models)
        return each * len(self.points()) / len(self.models) * self.rounds


def asked_of(sweep: Sweep, source: tuple[str, ...], values: Mapping[str, Any]) -> Asked:
    """Raises RequestError for what can't be."""

    for key, flag in {**models.OTHERS, **models.INFERENCE}.items():
        if values[key]:
            raise RequestError(flag, f"means nothing to {sweep.name}, which trains and runs no jobs", f"no {flag}")
    known = {system.name.lower(): system for system in sweep.systems}
    names = " or ".join(f"--system {name}" for name in known)
    if values["system"] is None:
        raise RequestError(f"sweep {sweep.name}", "names no system whose drives are to be tried", names)
    system = known.get(values["system"].lower())
    if system is None:
        raise RequestError(f"--system {values['system']}", f"isn't one of {sweep.origin}", names)
    folders = folders_of(source, values["models"], sweep.name)
    for drive in system.drives:
        supply.drive_of(drive)
    there = {model: folder for model, folder in folders.items() if folder is not None}
    return Asked(**models.shared(sweep, system, there, values, 0.5, 1 << 24), models=tuple(folders))


def folders_of(source: Sequence[str], asked: str | None, sweep: str) -> dict[str, str | None]:
    """Models in the order asked for, each with the folder of its data: the toy needs none. Raises RequestError."""
    names = [name.strip() for name in asked.split(",")] if asked else []
    for name in names:
        if name not in SECONDS or names.count(name) > 1:
            found = "is there twice" if name in SECONDS else "is no model of forebay train"
            raise RequestError(f"--models {asked}", f"{name!r} {found}", f"--models {DLRM},{forms.NAMES[0]}")
    if names == [TOY] or not (names or source):
        if len(source) > 1:
            raise RequestError(f"SOURCE {' '.join(source)}", "the toy reads one data set", "one folder of forebay train datagen")
        return {TOY: source[0] if source else None}
    found_: dict[str, str | None] = {}
    for folder in source:
        model = samples.model_of(Path(folder))
        if model in found_ or (names and model not in names):
            why = f"{found_[model]} has those of {model} too" if model in found_ else f"has the data of {model}"
            raise RequestError(f"SOURCE {folder}", why, "one data set for each of --models")
        found_[model] = folder
    for name in names:
        if name not in found_ and name != TOY:
            made = f"forebay train datagen {name} --dir DIR"
            raise RequestError(f"--models {name}", "no SOURCE has its data", f"{made}, then forebay sweep {sweep} DIR")
    return {name: found_.get(name) for name in names or found_}


def predictions(system: System, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Minutes that plans, calibrated on the package's cells and on nothing of here, give each kind and number of drives."""
    from forebay.plan.dlrm import Job
    from forebay.plan.planner import published

    pairs = [(drive, count) for drive in system.drives for count in counts]
    found = published().training_time([system.name]).predict([Job(system.name, drive, count) for drive, count in pairs])
    return [
        {"drive": drive, "drives": count, "minutes": e.value, "p10": e.p10, "p90": e.p90}
        for (drive, count), e in zip(pairs, found, strict=True)
    ]


def parts_of(system: System) -> dict[str, float]:
    """What those minutes are made of: samples until it converges, evaluations, and the rate of a GPU that nothing holds up."""
    from forebay.plan.dlrm import EVALS_PER_EPOCH, SAMPLES
    from forebay.plan.planner import published

    value = published().training_time([system.name]).posterior.value
    epochs = value("epochs")
    return {
        "samples": epochs * SAMPLES,
        "evaluations_s": epochs * EVALS_PER_EPOCH * value(f"evaluation[{system.name}]"),
        "rate_of_a_gpu": 1e6 * value(f"compute[{system.name}]") / system.gpus,
    }


def command(sweep: Sweep, source: tuple[str, ...], values: Mapping[str, Any]) -> int:
    asked = asked_of(sweep, source, values)
    as_json: bool = values["as_json"]
    if TOY in asked.models:
        # Before plans load NumPy.
        few_threads()
    predicted = predictions(asked.system, sweep.drives)
    if values["only_show"]:
        click.echo(json.dumps(_listing(asked, predicted)) if as_json else "\n".join(_listed(asked, predicted)))
        return 0
    named = f"{sweep.name}-{asked.system.name.lower()}-{'-'.join(asked.models)}"
    output = Path(values["output"] or time.strftime(f"{named}-%Y%m%d-%H%M%S.jsonl"))
    with Results(output) as results:
        frozen = models.begin(asked, {"prediction": predicted, **parts_of(asked.system), "peaks": {}}, results, values["restart"])
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
    # A round after the other, so that a slow drift of the machine is in all points alike.
    turns = [(point, number) for number in range(asked.rounds) for point in asked.points()]

    @contextlib.contextmanager
    def model(name: str) -> Iterator[models.One]:
        with _model(asked, name) as (about, made):
            if name not in frozen["peaks"]:
                _measure_peak(asked, name, frozen, results, about, made)
            yield lambda point, turn: _one(asked, point, turn, frozen, about, made)

    return models.play(turns, results, model)


@contextlib.contextmanager
def _model(asked: Asked, name: str) -> Iterator[tuple[Any, Any]]:
    """A model and its data set, which all points share: each begins with the seed's weights."""
    from forebay.train import verb

    nothing, folder = dict.fromkeys(("rows", "table_rows", "data_seed")), asked.folders.get(name)
    if name == TOY:
        from forebay.train import toy

        with verb._toy_data(folder, nothing, True) as about:
            yield about, toy.Model(about.tables, 0)
        return
    from forebay.train import dlrm
    from forebay.train import models as of_speed

    torch_or_say(f"train {name}")
    assert folder is not None
    made: Any
    found = verb._opened(Path(folder), nothing, name)
    device = device_of(f"train {name}", None)
    made = dlrm.Model(found.tables, 0, device) if name == DLRM else of_speed.Model(found.form, 0, device)
    try:
        yield found, made
    finally:
        made.close()


def _run_of(asked: Asked, of: supply.Supply, about: Any, model: Any, peak: float | None = None) -> Run:
    """`peak`: samples a second of the model, where that is known."""
    from forebay.train import command, verb

    peak_s = SECONDS[model.name][1]
    usual = {TOY: verb.TOY_BATCH, DLRM: verb.BATCH}
    batch = asked.batch or min(usual.get(model.name) or about.form.batch, about.rows)
    batch_s = batch * about.row_bytes / supply.bytes_per_s(of.gib_s) if of.gib_s else 0.0
    batch_s = max(batch_s, batch / peak if peak else 0.0)
    request = command.Request(
        about, of, batch, cache="warm", quality=False, seconds=max(asked.seconds_of(model.name), models.BATCHES_MIN * batch_s),
        peak_s=peak_s, peak_batches=models.BATCHES_MIN, check_s=peak_s / 2,
    )  # fmt: skip
    request.check(model.device)
    return command.Run(request, model, model.name != TOY)


def _measure_peak(asked: Asked, name: str, frozen: dict[str, Any], results: Results, about: Any, model: Any) -> None:
    """The rate that scales a model's supplies, kept with what was decided."""
    run = _run_of(asked, supply.Supply(None), about, model)
    run.measure_peak()
    if run.peak is None:
        raise MachineError(f"sweep {asked.sweep.name}", f"the model's peak can't be measured: {run.no_peak}", "another SOURCE")
    rate = run.peak.samples_per_s
    # Of another model than DLRM, the rate of the system's GPUs isn't known.
    factor = rate / frozen["rate_of_a_gpu"] if asked.scale_to_peak and name in PLANNED else None
    frozen["peaks"][name] = {"samples_per_s": rate, "factor": factor}
    results.append(models.header(asked, frozen))
    reported = f"{name}: own peak {whole(rate)} samples/s, {significant(rate * about.row_bytes / GIB)} GiB/s"
    if name in PLANNED:
        reported += f"; a GPU of {asked.system.name}: {whole(frozen['rate_of_a_gpu'])} samples/s"
    click.echo(reported + (f"; supplies scaled by {significant(factor)}" if factor else ""), err=True)


def _planned(frozen: Mapping[str, Any], point: Mapping[str, Any], share: supply.Supply, row_bytes: int) -> dict[str, Any]:
    """What was predicted of a point: minutes of DLRM; of another model, the lesser of its peak and of what the share carries."""
    if point["model"] in PLANNED:
        planned = next(p for p in frozen["prediction"] if (p["drive"], p["drives"]) == (point["drive"], point["drives"]))
        found = {f"predicted_{key}": planned[key] for key in ("minutes", "p10", "p90")}
        return {**found, **{key: frozen[key] for key in ("samples", "evaluations_s")}}
    most = frozen["peaks"][point["model"]]["samples_per_s"]
    return {"predicted_samples_per_s": min(most, supply.bytes_per_s(share.gib_s or 0.0) / row_bytes)}


def _one(
    asked: Asked, point: dict[str, Any], turn: int, frozen: Mapping[str, Any], about: Any, model: Any
) -> tuple[dict[str, Any], str]:
    """The line of a point, and what to tell of it."""
    own = frozen["peaks"][point["model"]]
    share, factor = asked.share(point), own["factor"]
    most = models.NEEDS_MAX * own["samples_per_s"] * about.row_bytes / GIB
    of, name = share.scaled(factor, most), asked.name_of(point)
    more = {
        "supply_gib_s": of.gib_s, "share_gib_s": share.gib_s, "factor": factor, "capped": of.gib_s == most,
        **_planned(frozen, point, share, about.row_bytes),
    }  # fmt: skip

    def measure() -> tuple[Any, bool, str]:
        model.reset()
        run = _run_of(asked, of, about, model, own["samples_per_s"])
        failure = run.measure()
        if failure is not None:
            raise failure
        record = run.record()
        if not record["train"]["samples_per_s"] and not run.interrupted:
            raise RunError(name, record["missing"].get("train.samples_per_s", "no rate was measured"), "a longer --seconds")
        return record, run.interrupted, _sentence(record["train"])

    return models.line_of(asked, point, turn, name, more, measure)


def _sentence(part: Mapping[str, Any]) -> str:
    rate, peak = part["samples_per_s"], part["peak_samples_per_s"]
    if not rate:
        return "no rate was measured"
    said = f"{significant(part['supply_gib_s'])} GiB/s  {whole(rate)} samples/s"
    return said + (f", {percent(rate / peak)} of its peak" if peak else "")


# What is shown ------------------------------------------------------------------------------------------


def _heading(asked: Asked) -> list[str]:
    first = f"{asked.sweep.name}: {asked.sweep.title}, {', '.join(asked.models)} as on {asked.system.name}"
    runs = len(asked.points()) * asked.rounds
    return [first, f"  {runs} trainings, about {format_duration(asked.seconds_in_all())} in all; {scaling.LABEL}"]


def _listing(asked: Asked, predicted: list[dict[str, Any]]) -> dict[str, Any]:
    points: list[dict[str, Any]] = [
        {"key": models.key_of(p), "name": asked.name_of(p), "point": p, "share_gib_s": asked.share(p).gib_s}
        for p in asked.points()
    ]
    return {
        "schema": "forebay.sweep-plan/1",
        "preset": asked.sweep.name,
        "seconds": asked.seconds_in_all(),
        "points": [{**each, "predicted": _predicted(predicted, each["point"])} for each in points],
    }


def _listed(asked: Asked, predicted: list[dict[str, Any]]) -> list[str]:
    rows = [("drives", "GiB/s a GPU", "planned, min", "80 %")]
    for point in asked.points():
        share, planned = significant(asked.share(point).gib_s or 0.0), _predicted(predicted, point)
        reported = (_minutes(planned["minutes"]), _between(planned, "")) if planned else ("", "")
        rows.append((asked.name_of(point), share, *reported))
    return [*_heading(asked), *table(rows)]


def _predicted(predicted: list[dict[str, Any]], point: Mapping[str, Any]) -> dict[str, Any] | None:
    """Minutes that were planned of a point, before its model's peak is known."""
    same = (p for p in predicted if (p["drive"], p["drives"]) == (point["drive"], point["drives"]))
    return next(same) if point["model"] in PLANNED else None


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _between(row: Mapping[str, Any], before: str) -> str:
    return "" if row[f"{before}p10"] is None else f"{row[f'{before}p10']:.2f} to {row[f'{before}p90']:.2f}"


def _summary(asked: Asked, results: Results, outcome: Outcome) -> dict[str, Any]:
    """Schema forebay.drive-scaling/1."""
    from forebay.report import published

    keys = {models.key_of(point) for point in asked.points()}
    lines = [line for (key, _), line in results.contents.finished().items() if key in keys]
    measured = [(line["point"], *rates(line["record"])) for line in lines]
    made = scaling.rows(measured, published.rows(published.TRAINING_TIME))
    return {
        "schema": "forebay.drive-scaling/1",
        "label": scaling.LABEL,
        "system": asked.system.name,
        "model": ", ".join(asked.models),
        "output": str(results.path),
        "rows": made,
        "enough": scaling.enough_of(made),
        "advice": scaling.advice_of([(line["point"], line["record"].get("train") or {}) for line in lines]),
        "unsteady": scaling.unsteady(made),
        **models.counts_of(outcome),
    }


def rates(record: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Samples a second, and the model's own peak."""
    part = record.get("train") or {}
    return part.get("samples_per_s"), part.get("peak_samples_per_s")


def _shown(document: Mapping[str, Any]) -> list[str]:
    head = ("drives", "GiB/s", "samples/s", "of peak", "minutes", "planned", "80 %", "published", "speed-up", "planned")
    several = len({r["model"] for r in document["rows"]}) > 1
    body = [
        (
            several * f"{r['model']}, " + f"{r['drives']} × {r['drive']}",
            ("≥ " if r["capped"] else "") + significant(r["supply_gib_s"]),
            whole(r["samples_per_s"]),
            percent(r["of_peak"]) if r["of_peak"] else "", _minutes(r["minutes"]), _minutes(r["predicted_minutes"]),
            _between(r, "predicted_"), _minutes(r["published_minutes"]), f"{r['speed_up']:.2f}", f"{r['predicted_speed_up']:.2f}",
        )
        for r in document["rows"]
    ]  # fmt: skip
    made = [f"{document['model']} as on {document['system']} ({document['label']})", *(table([head, *body]) if body else [])]
    made += [scaling.sentence(row) for row in document["enough"]]
    made += [f"storage   {each['model']} at {each['drives']} × {each['drive']}: {each['text']}" for each in document["advice"]]
    made += [f"warning   {document['unsteady']}"] if document["unsteady"] else []
    made += [f"failed    {e['asked']}: {e['found']} (try: {e['next']})" for e in document["failed"]]
    return [*made, f"kept      {document['output']}; forebay report {document['output']} draws it"]
