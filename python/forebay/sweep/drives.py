"""A sweep of trainings over drives: one model, one system, a supply for each kind and number of its drives.

What `forebay plan` predicts is on disk before anything is measured; then the model's own peak, which scales the supplies
where that is asked for; then a training for each point, whose record is on disk before the next one begins.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay import run as engine
from forebay.errors import ForebayError, MachineError, RequestError, RunError
from forebay.model_runs import count, device_of, few_threads, torch_or_say
from forebay.numbers import percent, significant, whole
from forebay.stages import format_duration
from forebay.sweep.file import Sweep, System
from forebay.sweep.points import canonical
from forebay.sweep.results import HEADER, POINT, Results
from forebay.sweep.runner import Outcome, failure_of, now
from forebay.table import table
from forebay.train import scaling, supply
from forebay.units import GIB, parse_seconds

if TYPE_CHECKING:
    from forebay.train.command import Run
    from forebay.train.data import About

TOY, DLRM = "toy", "dlrm"
# Of each model: seconds of a point's training, and of its peak; samples of a batch are those of `forebay train`.
SECONDS = {TOY: (3.0, 1.0), DLRM: (10.0, 2.0)}
# Batches of a point at least, however slow its supply. What a point takes beside its training: two checks, and its start.
BATCHES_MIN, BESIDE_S = 16, 3.0
# Times the need, beyond which a supply isn't simulated: a model takes no more, and the loader may bring no more.
NEEDS_MAX = 4.0
# Flags that mean nothing here, and those that mean nothing elsewhere.
OTHERS = {
    "vary": "--vary", "scale": "--scale", "max_time": "--max-time", "settings": "--set", "pairs": "--pair",
    "elsewhere": "--fabric",
    "netns": "--netns", "delay": "--link-delay", "rate": "--link-rate", "extend": "--extend", "metrics": "--metrics",
}  # fmt: skip
OWN = {
    "system": "--system", "model": "--model", "scale_to_peak": "--scale-to-peak", "seconds": "--seconds",
    "batch_size": "--batch-size",
}  # fmt: skip


def options(function: Any) -> Any:
    """Flags of `forebay sweep` for sweeps of trainings."""
    for option in reversed((
        click.option("--system", metavar="NAME", help="Of drive-scaling: whose drives and GPUs."),
        click.option("--model", type=click.Choice((TOY, DLRM)), help="Default: dlrm where SOURCE is given, its data; else toy."),
        click.option("--scale-to-peak", is_flag=True, help="Scale the supply by this model's peak ÷ that of the system's GPUs."),
        click.option("--seconds", metavar="TIME", help="Training of each point. Default: 3 s of toy, 10 s of dlrm."),
        click.option("--batch-size", metavar="N", help="Samples of a batch. Default: that of forebay train."),
    )):  # fmt: skip
        function = option(function)
    return function


def refuse_own(values: Mapping[str, Any], name: str) -> None:
    """RequestError for a flag of a sweep of trainings on another."""
    for key, flag in OWN.items():
        if values[key]:
            raise RequestError(flag, f"{name} runs jobs and trains nothing", f"forebay sweep {scaling.PRESET} {flag} …")


@dataclass(frozen=True)
class Asked:
    """The sweep as it was asked for."""

    sweep: Sweep
    system: System
    model: str
    folder: str | None
    batch: int | None
    seconds: float
    rounds: int
    scale_to_peak: bool

    def points(self) -> list[dict[str, Any]]:
        return [
            {
                "system": self.system.name, "gpus": self.system.gpus, "model": self.model, "drive": drive, "drives": count,
                "batch": self.batch, "seconds": self.seconds, "scale_to_peak": self.scale_to_peak,
            }
            for drive in self.system.drives
            for count in self.sweep.drives
        ]  # fmt: skip

    def definition(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "points": self.points()}

    def share(self, point: Mapping[str, Any]) -> supply.Supply:
        """One GPU's of the drives."""
        return supply.parse(f"{supply.SCHEME}{point['drive']}?drives={point['drives']}", self.system.gpus)

    def seconds_in_all(self) -> float:
        return len(self.points()) * self.rounds * (self.seconds + SECONDS[self.model][1] + BESIDE_S)


def asked_of(sweep: Sweep, source: tuple[str, ...], values: Mapping[str, Any]) -> Asked:
    """Raises RequestError for what can't be."""

    for key, flag in OTHERS.items():
        if values[key]:
            raise RequestError(flag, f"means nothing to {sweep.name}, which trains and runs no jobs", f"no {flag}")
    known = {system.name.lower(): system for system in sweep.systems}
    names = " or ".join(f"--system {name}" for name in known)
    if values["system"] is None:
        raise RequestError(f"sweep {sweep.name}", "names no system whose drives are to be tried", names)
    system = known.get(values["system"].lower())
    if system is None:
        raise RequestError(f"--system {values['system']}", f"isn't one of {sweep.origin}", names)
    if len(source) > 1:
        raise RequestError(f"SOURCE {' '.join(source)}", "a model reads one data set", "one folder of forebay train datagen")
    model = values["model"] or (DLRM if source else TOY)
    if model == DLRM and not source:
        made = "forebay train datagen dlrm --dir DIR"
        raise RequestError("--model dlrm", "no SOURCE has its data", f"{made}, then forebay sweep {sweep.name} DIR")
    for drive in system.drives:
        supply.drive_of(drive)
    seconds = parse_seconds(values["seconds"], "--seconds") if values["seconds"] else SECONDS[model][0]
    if not 0.5 <= seconds <= 3600:
        raise RequestError(f"--seconds {values['seconds']}", "is not 0.5 s to an hour", "--seconds 10")
    batch = count(values["batch_size"], "--batch-size", 1 << 24) if values["batch_size"] else None
    rounds = values["rounds"] or sweep.rounds
    return Asked(sweep, system, model, source[0] if source else None, batch, seconds, rounds, values["scale_to_peak"])


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
    if asked.model == TOY:

        # Before plans load NumPy.
        few_threads()
    predicted = predictions(asked.system, sweep.drives)
    if values["only_show"]:
        click.echo(json.dumps(_listing(asked, predicted)) if as_json else "\n".join(_listed(asked, predicted)))
        return 0
    named = f"{sweep.name}-{asked.system.name.lower()}-{asked.model}"
    output = Path(values["output"] or time.strftime(f"{named}-%Y%m%d-%H%M%S.jsonl"))
    with Results(output) as results:
        frozen = _begin(asked, predicted, results, values["restart"])
        for line in _heading(asked):
            click.echo(line, err=True)
        outcome = _play(asked, frozen, results)
        document = _summary(asked, results, outcome)
    click.echo(json.dumps(document) if as_json else "\n".join(_shown(document)))
    if outcome.interrupted:
        click.echo(f"forebay: interrupted; the same command with -o {output} continues", err=True)
    return outcome.exit_code


# The file -----------------------------------------------------------------------------------------------


def _begin(asked: Asked, predicted: list[dict[str, Any]], results: Results, restart: bool) -> dict[str, Any]:
    """What was decided once for this file, with the predictions on disk before anything is measured."""
    if restart and (results.contents.headers or results.contents.lines or results.contents.damaged):
        click.echo(f"the old results are in {results.restart()}", err=True)
    headers = results.contents.headers
    if headers:
        _refuse_another(asked, headers[-1]["definition"], results)
        results.put_damage_aside()
        results.mend_end()
        kept: dict[str, Any] = headers[-1]["frozen"]
        return kept
    frozen = {"prediction": predicted, **parts_of(asked.system)}
    results.append(_header(asked, frozen))
    return frozen


def _refuse_another(asked: Asked, old: Mapping[str, Any], results: Results) -> None:
    new = asked.definition()
    if canonical(dict(old)) == canonical(new):
        return
    before, after = ({**d, **(d.get("points") or [{}])[0]} for d in (old, new))
    keys = [k for k in after if k != "points" and before.get(k) != after[k]]
    told = "; ".join(f"{k}: {before.get(k)} → {after[k]}" for k in keys) or "other points"
    raise RequestError(
        f"-o {results.path}", f"holds a sweep that differs: {told}", "--restart to start over, or -o another file"
    )


def _header(asked: Asked, frozen: Mapping[str, Any]) -> dict[str, Any]:
    definition = asked.definition()
    return {
        "schema": HEADER,
        "preset": asked.sweep.name,
        "origin": asked.sweep.origin,
        "title": asked.sweep.title,
        "method": asked.sweep.method,
        "cites": asked.sweep.cites,
        "sweep": hashlib.sha256(canonical(definition).encode()).hexdigest()[:16],
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": engine.typed(),
        "sources": [asked.folder] if asked.folder else [],
        "definition": definition,
        "frozen": frozen,
        "changes": [],
        "dropped": [],
    }


def key_of(point: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(dict(point)).encode()).hexdigest()[:16]


# The runs -----------------------------------------------------------------------------------------------


def _play(asked: Asked, frozen: dict[str, Any], results: Results) -> Outcome:
    """Every point that isn't finished. Ctrl-C ends it after saving what the one in progress had measured."""
    outcome = Outcome()
    finished = results.contents.finished()
    # A round after the other, so that a slow drift of the machine is in all points alike.
    turns = [(point, number) for number in range(asked.rounds) for point in asked.points()]
    left = [(point, number) for point, number in turns if (key_of(point), number) not in finished]
    outcome.skipped = len(turns) - len(left)
    if not left:
        return outcome
    try:
        with _model(asked) as (about, model):
            if "peak_samples_per_s" not in frozen:
                _measure_peak(asked, frozen, results, about, model)
            for number, (point, turn) in enumerate(left, outcome.skipped + 1):
                line, told = _one(asked, point, turn, frozen, about, model)
                results.append(line)
                click.echo(f"[{number}/{len(turns)}] {line['name']}  {told}", err=True)
                if line.get("partial"):
                    outcome.interrupted = True
                    break
                if "error" in line:
                    outcome.failures.append(failure_of(line["error"]))
                else:
                    outcome.finished += 1
    except KeyboardInterrupt:
        outcome.interrupted = True
    return outcome


@contextlib.contextmanager
def _model(asked: Asked) -> Iterator[tuple[About, Any]]:
    """The data set and the model, which all points share: each begins with the seed's weights."""
    from forebay.train import verb

    nothing = dict.fromkeys(("rows", "table_rows", "data_seed"))
    if asked.model == TOY:
        from forebay.train import toy

        with verb._toy_data(asked.folder, nothing, True) as about:
            yield about, toy.Model(about.tables, 0)
        return
    from forebay.train import dlrm

    torch_or_say("train dlrm")
    assert asked.folder is not None
    about = verb._opened(Path(asked.folder), nothing)
    made = dlrm.Model(about.tables, 0, device_of("train dlrm", None))
    try:
        yield about, made
    finally:
        made.close()


def _run_of(asked: Asked, of: supply.Supply, about: About, model: Any, peak: float | None = None) -> Run:
    """`peak`: samples a second of the model, where that is known."""
    from forebay.train import command, data, verb

    peak_s = SECONDS[asked.model][1]
    batch = asked.batch or min(verb.TOY_BATCH if asked.model == TOY else verb.BATCH, about.rows)
    batch_s = batch * data.ROW_BYTES / supply.bytes_per_s(of.gib_s) if of.gib_s else 0.0
    batch_s = max(batch_s, batch / peak if peak else 0.0)
    request = command.Request(
        about, of, batch, cache="warm", quality=False, seconds=max(asked.seconds, BATCHES_MIN * batch_s), peak_s=peak_s,
        check_s=peak_s / 2,
    )  # fmt: skip
    request.check(model.device)
    return command.Run(request, model, asked.model != TOY)


def _measure_peak(asked: Asked, frozen: dict[str, Any], results: Results, about: About, model: Any) -> None:
    """The rate that scales all supplies, kept with what was decided."""
    run = _run_of(asked, supply.Supply(None), about, model)
    run.measure_peak()
    if run.peak is None:
        raise MachineError(f"sweep {asked.sweep.name}", f"the model's peak can't be measured: {run.no_peak}", "another SOURCE")
    frozen["peak_samples_per_s"] = run.peak.samples_per_s
    frozen["factor"] = run.peak.samples_per_s / frozen["rate_of_a_gpu"] if asked.scale_to_peak else None
    results.append(_header(asked, frozen))
    click.echo(
        f"own peak {whole(run.peak.samples_per_s)} samples/s; a GPU of {asked.system.name}: {whole(frozen['rate_of_a_gpu'])}"
        + (f"; supplies scaled by {significant(frozen['factor'])}" if frozen["factor"] else ""),
        err=True,
    )


def _one(
    asked: Asked, point: dict[str, Any], turn: int, frozen: Mapping[str, Any], about: About, model: Any
) -> tuple[dict[str, Any], str]:
    """The line of a point, and what to tell of it."""
    from forebay.train import data

    share, factor = asked.share(point), frozen["factor"]
    most = NEEDS_MAX * frozen["peak_samples_per_s"] * data.ROW_BYTES / GIB
    of = share.scaled(factor, most)
    planned = next(p for p in frozen["prediction"] if (p["drive"], p["drives"]) == (point["drive"], point["drives"]))
    name = f"{point['drives']} × {point['drive']}"
    line: dict[str, Any] = {
        "schema": POINT, "preset": asked.sweep.name, "key": key_of(point), "round": turn, "name": name, "changes": [],
        "point": {
            **point, "supply_gib_s": of.gib_s, "share_gib_s": share.gib_s, "factor": factor, "capped": of.gib_s == most,
            **{f"predicted_{key}": planned[key] for key in ("minutes", "p10", "p90")},
            **{key: frozen[key] for key in ("samples", "evaluations_s")},
        },
    }  # fmt: skip
    try:
        model.reset()
        run = _run_of(asked, of, about, model, frozen["peak_samples_per_s"])
        failure = run.measure()
        if failure is not None:
            raise failure
        record = run.record()
        if not record["train"]["samples_per_s"] and not run.interrupted:
            raise RunError(name, record["missing"].get("train.samples_per_s", "no rate was measured"), "a longer --seconds")
    except ForebayError as error:
        found = {"exit_code": error.exit_code, "asked": error.asked, "found": error.found, "next": error.next}
        return {**line, "finished": now(), "error": found}, f"failed: {error.asked}: {error.found}"
    partial = {"partial": True} if run.interrupted else {}
    return {**line, "finished": now(), **partial, "record": record}, _told(record["train"])


def _told(part: Mapping[str, Any]) -> str:
    rate, peak = part["samples_per_s"], part["peak_samples_per_s"]
    if not rate:
        return "no rate was measured"
    said = f"{significant(part['supply_gib_s'])} GiB/s  {whole(rate)} samples/s"
    return said + (f", {percent(rate / peak)} of its peak" if peak else "")


# What is shown ------------------------------------------------------------------------------------------


def _heading(asked: Asked) -> list[str]:
    first = f"{asked.sweep.name}: {asked.sweep.title}, {asked.model} as on {asked.system.name}"
    runs = len(asked.points()) * asked.rounds
    return [first, f"  {runs} trainings, about {format_duration(asked.seconds_in_all())} in all; {scaling.LABEL}"]


def _listing(asked: Asked, predicted: list[dict[str, Any]]) -> dict[str, Any]:
    points = [
        {"key": key_of(p), "name": f"{p['drives']} × {p['drive']}", "point": p, "share_gib_s": asked.share(p).gib_s}
        for p in asked.points()
    ]
    return {
        "schema": "forebay.sweep-plan/1",
        "preset": asked.sweep.name,
        "seconds": asked.seconds_in_all(),
        "points": [{**point, "predicted": planned} for point, planned in zip(points, predicted, strict=True)],
    }


def _listed(asked: Asked, predicted: list[dict[str, Any]]) -> list[str]:
    rows = [("drives", "GiB/s a GPU", "planned, min", "80 %")]
    for point, planned in zip(asked.points(), predicted, strict=True):
        share = significant(asked.share(point).gib_s or 0.0)
        rows.append((f"{point['drives']} × {point['drive']}", share, _minutes(planned["minutes"]), _between(planned, "")))
    return [*_heading(asked), *table(rows)]


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _between(row: Mapping[str, Any], before: str) -> str:
    return f"{row[f'{before}p10']:.2f} to {row[f'{before}p90']:.2f}"


def _summary(asked: Asked, results: Results, outcome: Outcome) -> dict[str, Any]:
    """Schema forebay.drive-scaling/1."""
    from forebay.report import published

    keys = {key_of(point) for point in asked.points()}
    lines = [line for (key, _), line in results.contents.finished().items() if key in keys]
    measured = [(line["point"], *rates(line["record"])) for line in lines]
    made = scaling.rows(measured, published.rows(published.TRAINING_TIME))
    return {
        "schema": "forebay.drive-scaling/1",
        "label": scaling.LABEL,
        "system": asked.system.name,
        "model": asked.model,
        "output": str(results.path),
        "rows": made,
        "enough": scaling.enough_of(made),
        "unsteady": scaling.unsteady(made),
        "finished": outcome.finished + outcome.skipped,
        "finished_before": outcome.skipped,
        "failed": [{"asked": e.asked, "found": e.found, "next": e.next} for e in outcome.failures],
        "interrupted": outcome.interrupted,
    }


def rates(record: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Samples a second, and the model's own peak."""
    part = record.get("train") or {}
    return part.get("samples_per_s"), part.get("peak_samples_per_s")


def _shown(document: Mapping[str, Any]) -> list[str]:
    head = ("drives", "GiB/s", "samples/s", "of peak", "minutes", "planned", "80 %", "published", "speed-up", "planned")
    body = [
        (
            f"{r['drives']} × {r['drive']}", ("≥ " if r["capped"] else "") + significant(r["supply_gib_s"]),
            whole(r["samples_per_s"]),
            percent(r["of_peak"]) if r["of_peak"] else "", _minutes(r["minutes"]), _minutes(r["predicted_minutes"]),
            _between(r, "predicted_"), _minutes(r["published_minutes"]), f"{r['speed_up']:.2f}", f"{r['predicted_speed_up']:.2f}",
        )
        for r in document["rows"]
    ]  # fmt: skip
    made = [f"{document['model']} as on {document['system']} ({document['label']})", *(table([head, *body]) if body else [])]
    made += [scaling.sentence(row) for row in document["enough"]]
    made += [f"warning   {document['unsteady']}"] if document["unsteady"] else []
    made += [f"failed    {e['asked']}: {e['found']} (try: {e['next']})" for e in document["failed"]]
    return [*made, f"kept      {document['output']}; forebay report {document['output']} draws it"]
