"""`forebay train`: real models, fed by the loader with a drive's share of bytes."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay.command_line.lazy import LazyGroup
from forebay.errors import CHECK_FAILED, DONE, INTERRUPTED, RequestError
from forebay.flags import _integer, _number, _seed
from forebay.model_runs import CACHES, PathChoice, count, device_of, few_threads, progress, torch_or_say
from forebay.train import forms
from forebay.units import parse_seconds

if TYPE_CHECKING:
    from forebay.train.command import Request
    from forebay.train.data import About
    from forebay.train.mllog import Logs
    from forebay.train.ranks import Alone
    from forebay.train.saved import Weights
    from forebay.train.supply import Supply

EXAMPLES = """\b
Examples:
  forebay train toy
  forebay train toy --supply 0.02
  forebay train datagen dlrm --dir /data/clicks --rows 4000000
  forebay train dlrm --dir /data/clicks --supply 'model:d7-ps1010?drives=2' --gpus 8"""
VERBS = {
    "toy": ("forebay.train.verb:toy", "A model of DLRM's shape in NumPy: tries everything on two cores."),
    "dlrm": ("forebay.train.verb:dlrm", "DLRMv2 in PyTorch, as the benchmark's reference builds it."),
    "gnn": ("forebay.train.gnn_verb:gnn", "R-GAT in PyTorch on a graph: features loaded in bulk, or gathered by batch."),
    "bert": ("forebay.train.speed:bert", "BERT-large, for speed: 512 tokens, 4,712 bytes a sample."),
    "lora": ("forebay.train.speed:lora", "Adapters of a Llama of 7B form, for speed: 8,192 tokens, 32,768 bytes."),
    "diffusion": ("forebay.train.speed:diffusion", "Stable Diffusion v2's UNet, for speed: 446,464 bytes a sample."),
    "ssd": ("forebay.train.speed:ssd", "RetinaNet at 800 pixels, for speed: 307,520 bytes a sample."),
    "resnet": ("forebay.train.speed:resnet", "ResNet-50 at 224 pixels, for speed: 150,536 bytes a sample."),
    "check": ("forebay.train.check:command", "Do runs converge as they should? Against reference points."),
    "datagen": (
        "forebay.train.verb:datagen",
        "Create a model's data set, from a seed.",
    ),
}
TOY_BATCH, TOY_ROWS, TOY_EVALUATION, TOY_TABLE_ROWS, TOY_SECONDS = 512, 131_072, 8192, 100, 30.0
BATCH, ROWS, EVALUATION, TABLE_ROWS = 6912, 1_048_576, 65_536, 4_000_000
# Rows of a data set at most: the loader counts further, an int32 of the rows' own does not.
ROWS_MAX = 1 << 33
ORDERS = ("rows", "blocks", "none")
PEAK_S_MAX = 600


class TrainVerbs(LazyGroup):
    table = VERBS
    noun = "model or verb of train"


@click.group(
    "train",
    cls=TrainVerbs,
    epilog=EXAMPLES,
    short_help="Does faster storage shorten training?",
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Does faster storage shorten this training, by how much, and what should change?

    Trains a real model on rows that the loader brings, with the supply of bytes held back to what a drive would deliver.
    Results are MLPerf-style and unverified.
    """


def shared(function: Callable[..., Any], target: str = "auc") -> Callable[..., Any]:
    """Flags of every model. `target`: name of the quality, as its flag has it; empty: of what the data set measures."""
    flag, goal = (f"--target-{target}", target.upper()) if target else ("--target", "QUALITY")
    more = "" if target else ", if it is of --quality"
    of_quality = [
        click.option(flag, metavar=f"{goal}|none", help=f"End at this {goal}; none: speed alone. Default: the data set's{more}."),
        click.option("--evaluate-every", metavar="N", help="Samples between evaluations. Default: 5 % of an epoch."),
    ]  # fmt: skip
    options = [
        click.option("--supply", metavar="GIB_S|model:DRIVE?drives=K", help="Of all GPUs. Default: the loader's."),
        click.option("--gpus", default="1", metavar="N", help="GPUs that share the supply; this run is one of them. Default: 1."),
        click.option("--seed", default="0", metavar="N", help="Seed of weights and order. Default: 0."),
        click.option("--seeds", metavar="N", help="As many runs, from --seed on, and the spread over them."),
        click.option("--path", default="auto", type=PathChoice(), help="How bytes reach a GPU."),
        click.option("--batch-size", metavar="N", help="Samples of a batch."),
        click.option("--samples", metavar="N", help="End after so many samples."),
        click.option("--seconds", metavar="TIME", help="End after so much time of training, evaluations not counted."),
        *of_quality,
        click.option("--peak-seconds", metavar="TIME", help="Time to measure the model's own peak. Default: 2."),
        click.option("--learning-rate", metavar="X", help="The optimizer's. Default: the model's."),
        click.option("--shuffle", default="none", type=click.Choice(ORDERS), help="Default: none, as the benchmark has it."),
        click.option("--cache", default="any", type=click.Choice(CACHES), help="The file in the page cache, or out of it."),
        click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout."),
        click.option("-o", "--out", metavar="FILE", help="Save the record to FILE; .jsonl appends a line."),
        click.option("--mllog", metavar="FILE", help="MLPerf's log of the run, unverified; of --seeds a folder of logs."),
        click.option("--weights", metavar="FILE", help="Save the trained weights to FILE, as safetensors."),
        click.option("--quiet", "-q", is_flag=True, help="No progress and no summary."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


@click.command("toy", context_settings={"max_content_width": 110})
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    help="Folder of the data, made if it has none. Default: a temporary one.",
)
@click.option("--rows", metavar="N", help=f"Rows of the data that are made. Default: {TOY_ROWS}.")
@click.option(
    "--table-rows", metavar="N", help=f"Rows that the large tables are cut to. Default: {TOY_TABLE_ROWS}."
)
@click.option("--data-seed", metavar="N", help="Seed of the data. Default: 0.")
@shared
def toy(folder: str | None, as_json: bool, out: str | None, quiet: bool, **flags: Any) -> int:
    """A model of DLRM's shape in NumPy: supply, samples, advice and records, without PyTorch and without a GPU.

    It makes its own data, 120 MB, and trains until the target, 30 s at most. It says nothing about a GPU's speed.
    """
    from forebay.train import ranks

    ranks.refuse("toy")
    few_threads()
    with _toy_data(folder, flags, quiet) as about:
        from forebay.train import toy as model

        request = _request(about, flags, TOY_BATCH)
        if request.samples is None and request.seconds is None:
            request.seconds = TOY_SECONDS
        rate = _rate(flags) or model.LEARNING_RATE
        return _run(request, lambda seed: model.Model(about.tables, seed, rate), False, flags, as_json, out, quiet)


@click.command("dlrm", context_settings={"max_content_width": 110})
@click.option("--dir", "folder", metavar="DIR", required=True, help="Folder of forebay train datagen dlrm.")
@click.option("--rows", metavar="N", help="Refuse a data set of another length.")
@click.option("--table-rows", metavar="N", help="Refuse a data set of other tables.")
@click.option("--data-seed", metavar="N", help="Refuse a data set of another seed.")
@click.option("--device", metavar="NAME", help="cpu, cuda:0. Default: the first GPU, else cpu.")
@click.option(
    "--optimizer",
    type=click.Choice(("torch", "fused")),
    help="Whose Adagrad. Default: fused on a GPU where Triton is, else torch.",
)
@shared
def dlrm(
    folder: str, device: str | None, optimizer: str | None, as_json: bool, out: str | None, quiet: bool, **flags: Any
) -> int:
    """DLRMv2 as the benchmark's reference builds it, in PyTorch: 26 tables, 214 look-ups and 912 bytes a sample.

    The data set says to how many rows the tables are cut. Trains for one epoch, or until the target.
    """
    words = {**flags, "folder": folder, "optimizer": optimizer, "as_json": as_json, "out": out, "quiet": quiet}
    return on_ranks("dlrm", device, words, _dlrm)


def on_ranks(model: str, device: str | None, flags: dict[str, Any], work: Callable[[str, dict[str, Any], Alone], int]) -> int:
    """A training in one process, or a rank's part of it where torchrun started several. Raises RequestError, MachineError."""
    from forebay.train import ranks

    torch = torch_or_say(f"train {model}")
    if ranks.launched() == 1:
        return work(device_of(f"train {model}", device), flags, ranks.ALONE)
    where = ranks.device_of(f"train {model}", device, device_of)
    with ranks.joined(torch, where) as group:
        if group.rank:
            flags = {**flags, "as_json": False, "out": None, "quiet": True, "mllog": None}
        return group.conclude(lambda: work(where, flags, group))


def agree_on(flags: dict[str, Any], group: Alone) -> None:
    """Raises RequestError on every rank for flags that differ, or are of a training in one process."""
    # What may differ: where a rank finds the data, and what the first one alone writes.
    free = ("folder", "as_json", "out", "quiet", "mllog")
    group.refuse_others({f"--{name.replace('_', '-')}": value for name, value in flags.items() if name not in free})
    group.together(lambda: _refuse_on_ranks(flags, group.world))


def _dlrm(where: str, flags: dict[str, Any], group: Alone) -> int:
    """A training in one process, or a rank's part of it. Raises RequestError, MachineError."""
    from forebay.train import dlrm as model

    def asked() -> Request:
        about = _opened(Path(flags["folder"]), flags)
        found = _request(about, flags, min(BATCH, about.rows) // group.world * group.world, group.world)
        if found.samples is None and found.seconds is None:
            found.samples = about.rows
        return found

    def made(seed: int) -> Any:
        about: Any = request.about
        if group.world == 1:
            return model.Model(about.tables, seed, where, rate, flags["optimizer"])
        from forebay.train import split

        return split.Model(group, about.tables, seed, where, rate, flags["optimizer"])

    agree_on(flags, group)
    request = group.together(asked)
    rate = group.together(lambda: _rate(flags)) or model.LEARNING_RATE
    return _run(request, made, True, flags, flags["as_json"], flags["out"], flags["quiet"], group)


def _refuse_on_ranks(flags: dict[str, Any], world: int) -> None:
    """Raises RequestError for flags of a training in one process."""
    if world == 1:
        return
    for name, next in (("seeds", "torchrun … --seed 0, and again with --seed 1"), ("weights", "no --weights; or no torchrun")):
        if flags[name] is not None:
            found = f"torchrun started {world} ranks, and that is of a training in one process"
            raise RequestError(f"--{name} {flags[name]}", found, next)


# Flags of `datagen` by model, besides those of all.
DATA_FLAGS = {
    "gnn": ("nodes",),
    "dlrm": ("rows", "evaluation_rows", "table_rows"),
    **dict.fromkeys(forms.NAMES, ("rows", "small", "quality")),
}


@click.command("datagen", context_settings={"max_content_width": 110})
@click.argument("model", type=click.Choice(("dlrm", "gnn", *forms.NAMES)))
@click.option(
    "--dir", "folder", metavar="DIR", required=True, help="Folder that is made, or has none of these files."
)
@click.option("--rows", metavar="N", help=f"Rows to train on. Default: {ROWS} of dlrm, else 0.1 to 2 GB of them.")
@click.option("--evaluation-rows", metavar="N", help=f"Of dlrm, rows to evaluate on. Default: {EVALUATION}.")
@click.option("--table-rows", metavar="N", help=f"Of dlrm, what large tables are cut to. Default: {TABLE_ROWS}.")
@click.option("--nodes", metavar="N", help="Of gnn, nodes of the graph, of 2 KiB each. Default: 1000000.")
@click.option("--small", is_flag=True, help="Not of dlrm: rows of the small form, which a CPU can train.")
@click.option("--quality", is_flag=True, help="Not of dlrm: real texts or images, in a form whose quality can be measured.")
@click.option("--seed", metavar="N", default="0", help="Seed of the rows. Default: 0.")
@click.option("--json", "as_json", is_flag=True, help="What was made as one JSON document on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
def datagen(
    model: str,
    folder: str,
    rows: str | None,
    evaluation_rows: str | None,
    table_rows: str | None,
    nodes: str | None,
    small: bool,
    quality: bool,
    seed: str,
    as_json: bool,
    quiet: bool,
) -> int:
    """Rows of as many bytes as the benchmark's samples, from a seed: of dlrm 912, with labels that a planted teacher draws.

    The best AUC that dlrm can reach on its own stands in dataset.json beside them, as the target does; other models are trained
    for speed alone, or with --quality on real data: Python's own library as text, the digits and photographs of scikit-learn.
    The loader reads them as rows of one size: forebay feed DIR/train.bin --row-bytes 912. Of gnn it writes a graph of --nodes.
    """
    from forebay.train import ranks

    ranks.alone(f"train datagen {model}", "each would write the same files")
    refuse_others(model, DATA_FLAGS)
    if model == "gnn":
        from forebay.train import gnn_verb

        return gnn_verb.datagen(folder, nodes, seed, as_json, quiet)
    from forebay.numbers import bytes_, whole
    from forebay.train import data, samples

    about: Any
    with progress(quiet) as say:
        if model == "dlrm":
            counts = (
                count(rows or str(ROWS), "--rows", ROWS_MAX),
                count(evaluation_rows or str(EVALUATION), "--evaluation-rows", ROWS_MAX),
                count(table_rows or str(TABLE_ROWS), "--table-rows", max(data.TABLE_ROWS)),
            )
            about = data.generate(Path(folder), _seed(seed, "--seed"), *counts, progress=say)
        else:
            if small and quality:
                raise RequestError("--small and --quality", "are two forms of the model", "one of them")
            form = forms.form(model, forms.REAL if quality else forms.SMALL if small else forms.FULL)
            many = count(rows, "--rows", ROWS_MAX) if rows is not None else form.rows
            about = samples.generate(Path(folder), form, _seed(seed, "--seed"), many, progress=say)
    if as_json:
        click.echo(json.dumps(about.document(), indent=1))
    elif not quiet:
        size = bytes_(about.rows * about.row_bytes)
        goal = f"{folder}: {whole(about.rows)} rows ({size}) to train on"
        if model == "dlrm":
            best = f"best reachable AUC {about.best_auc:.4f}, target {about.target_auc:.4f}"
            goal += f", {whole(about.evaluation_rows)} to evaluate on\n{best}, {100 * about.positives:.1f} % positive"
        elif about.sources:
            goal += f", {whole(about.evaluation_rows)} to evaluate on\n"
            goal += f"made of {about.sources['name']}; target {about.target_auc:g} ({about.metric})"
        click.echo(goal)
        click.echo(f"next: forebay train {model} --dir {folder}")
    return DONE


def refuse_others(model: str, own: dict[str, tuple[str, ...]]) -> None:
    """Raises RequestError for a flag that was given, and is another model's."""
    context = click.get_current_context()
    for name in dict.fromkeys(n for names in own.values() for n in names if n not in own[model]):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise RequestError(flag, f"is none of {model}'s", f"no {flag}")


def _rate(flags: dict[str, Any]) -> float | None:
    text = flags["learning_rate"]
    if text is None:
        return None
    rate = _number(text, "--learning-rate")
    if not 0 < rate < 1e6:
        raise RequestError(f"--learning-rate {text}", "is no rate above 0", "--learning-rate 0.005")
    return rate


def _expected(flags: dict[str, Any]) -> dict[str, int]:
    """The data set that the flags ask for: row of `About` → value."""
    asked = {
        "rows": ("--rows", ROWS_MAX), "table_rows": ("--table-rows", 40_000_000), "data_seed": ("--data-seed", (1 << 63) - 1)
    }  # fmt: skip
    found = {}
    for key, (flag, most) in asked.items():
        if flags[key] is not None:
            found["seed" if key == "data_seed" else key] = _integer(flags[key], flag, most)
    return found


def _opened(folder: Path, flags: dict[str, Any], model: str = "dlrm") -> Any:
    """The data set of a model, if it is as the flags say. Raises RequestError."""
    from forebay.train import data, samples

    about: Any = data.open_folder(folder) if model == "dlrm" else samples.open_folder(folder, model)
    for key, value in _expected(flags).items():
        found = getattr(about, key)
        if found != value:
            flag = "--data-seed" if key == "seed" else f"--{key.replace('_', '-')}"
            raise RequestError(
                f"{flag} {value}", f"the data set {folder} has {found}", f"{flag} {found}, or another --dir"
            )
    (data if model == "dlrm" else samples).refuse_another_seed(about)
    return about


@contextlib.contextmanager
def _toy_data(folder: str | None, flags: dict[str, Any], quiet: bool) -> Iterator[About]:
    """The toy's data set: that of the folder, one made there, or one that is gone afterwards."""
    from forebay.train import data

    asked = _expected(flags)
    wanted = (
        asked.get("seed", 0),
        asked.get("rows", TOY_ROWS),
        TOY_EVALUATION,
        asked.get("table_rows", TOY_TABLE_ROWS),
    )
    if min(wanted[1], wanted[3]) < 1:
        raise RequestError("--rows and --table-rows", "one of them is 0", f"--rows {TOY_ROWS}")
    if folder is not None and (Path(folder) / data.ABOUT).exists():
        yield _opened(Path(folder), flags)
        return
    if folder is not None:
        with progress(quiet) as say:
            about = data.generate(Path(folder), *wanted, progress=say)
        yield about
        return
    made = tempfile.mkdtemp(prefix="forebay-train-")
    try:
        with progress(quiet) as say:
            about = data.generate(Path(made), *wanted, progress=say)
        yield about
    finally:
        with data.uninterrupted():
            shutil.rmtree(made, ignore_errors=True)


def _supply(flags: dict[str, Any], ranks: int) -> Supply:
    """A GPU's share of the supply; of several ranks each is one of the GPUs that share it. Raises RequestError."""
    from forebay.train import supply

    gpus = _integer(flags["gpus"], "--gpus")
    if ranks == 1:
        return supply.parse(flags["supply"], gpus)
    given = click.get_current_context().get_parameter_source("gpus") is click.core.ParameterSource.COMMANDLINE
    if given and gpus != ranks:
        found = f"torchrun started {ranks} ranks, which share the supply"
        raise RequestError(f"--gpus {gpus}", found, f"--gpus {ranks}, or torchrun --nproc-per-node {gpus}")
    return supply.parse(flags["supply"], ranks if flags["supply"] is not None else 1)


def _request(about: Any, flags: dict[str, Any], batch: int, ranks: int = 1) -> Request:
    """`batch`: that of the model, of all ranks together."""
    from forebay.train.command import PEAK_S, Request
    from forebay.train.run import CHECK_S

    flag, least, goal = ("--target-auc", 0.5, "0.5 (guessing)") if "target_auc" in flags else ("--target", 0.0, "0")
    target = flags["target_auc" if "target_auc" in flags else "target"]
    quality = target != "none" if target is not None else about.metric is not None
    aim = None
    if quality and target is not None:
        with contextlib.suppress(RequestError):
            aim = _number(target, flag)
        if aim is None or not least < aim < 1:
            next = f"{flag} {about.target_auc:g}, or {flag} none" if about.metric else f"no {flag}"
            raise RequestError(f"{flag} {target}", f"is not between {goal} and 1", next)
    most = (1 << 63) - 1
    peak_s = parse_seconds(flags["peak_seconds"], "--peak-seconds") if flags["peak_seconds"] else PEAK_S
    if not 0 < peak_s <= PEAK_S_MAX:
        raise RequestError(
            f"--peak-seconds {flags['peak_seconds']}",
            f"is not above 0 and up to {PEAK_S_MAX}",
            "--peak-seconds 2",
        )
    return Request(
        about,
        _supply(flags, ranks),
        count(flags["batch_size"], "--batch-size", most) if flags["batch_size"] else batch,
        seed=_seed(flags["seed"], "--seed"),
        path=flags["path"],
        shuffle=flags["shuffle"],
        cache=flags["cache"],
        samples=count(flags["samples"], "--samples", most) if flags["samples"] else None,
        seconds=parse_seconds(flags["seconds"], "--seconds") if flags["seconds"] else None,
        target=aim,
        quality=quality,
        peak_s=peak_s,
        check_s=min(CHECK_S, peak_s / 2),
        evaluate_every=count(flags["evaluate_every"], "--evaluate-every", most)
        if flags["evaluate_every"]
        else None,
        ranks=ranks,
    )


def _run(
    request: Request, make: Callable[[int], Any], torch: bool, flags: dict[str, Any], as_json: bool, out: str | None, quiet: bool,
    group: Alone | None = None,
) -> int:  # fmt: skip
    """One run, or one for each seed. `make`: a model of a seed; `group`: the ranks that train it."""
    from forebay.train import mllog, ranks, saved

    group = group or ranks.ALONE
    many = None if flags["seeds"] is None else _integer(flags["seeds"], "--seeds")
    seeds = None if many is None else range(request.seed, request.seed + many)
    name = str(click.get_current_context().info_name)
    logs = group.together(lambda: mllog.asked(flags["mllog"], name, request.quality, seeds))
    weights = None if flags["weights"] is None else saved.Weights(flags["weights"], many)
    if many is not None:
        from forebay.train import series

        return series.run_series(request, make, torch, many, as_json, out, quiet, logs)
    model = group.together(lambda: make(request.seed))
    try:
        return _run_one(request, model, torch, as_json, out, quiet, logs, weights)
    finally:
        model.close()


def _run_one(
    request: Request, model: Any, torch: bool, as_json: bool, out: str | None, quiet: bool, logs: Logs | None,
    weights: Weights | None = None,
) -> int:  # fmt: skip
    from forebay.bench import save, terminal
    from forebay.train import ranks, show

    group = ranks.ranks_of(model)
    group.together(lambda: request.check(model.device))
    output = group.together(lambda: save.Output(out, save.RUN) if out else None)
    with progress(quiet) as say:
        run = request.runner(model, torch, say)
        failure = run.measure()
    record = run.record()
    if group.rank == 0:
        save.conclude(record, output, as_json, None if quiet else show.text(record, terminal.text_width()))
    if logs is not None:
        logs.write([record])
    # Of a run that broke off they are no training's.
    if weights is not None and failure is None:
        model.wait()
        weights.write(model.state(), record)
    if failure is not None:
        raise failure
    if run.interrupted:
        return INTERRUPTED
    return DONE if run.holds else CHECK_FAILED
