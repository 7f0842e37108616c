"""`forebay infer`: MLCommons' load generator on our paths, and where inference waits for storage."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay.command_line.lazy import LazyGroup
from forebay.errors import CHECK_FAILED, DONE, INTERRUPTED, RequestError, RunError
from forebay.flags import _integer, _number, _seed
from forebay.infer import forms, rules
from forebay.model_runs import CACHES, PathChoice, count, device_of, few_threads, progress
from forebay.train import ranks
from forebay.units import GIB, parse_seconds

if TYPE_CHECKING:
    from forebay.infer.command import Request
    from forebay.infer.data import About

EXAMPLES = """\b
Examples:
  forebay infer toy --dir /data/toy --mode ram --scenario Server --short
  forebay infer toy --dir /data/toy --mode cold --scenario Offline --short --supply 0.02
  forebay infer datagen resnet50 --dir /data/resnet50
  forebay infer resnet50 --dir /data/resnet50 --mode ram --scenario Offline --supply 'model:d7-ps1010?drives=4'
  forebay infer bert --dir /data/bert --mode coldstart"""
QUESTIONS = {
    "toy": "A small classifier in NumPy: tries everything on two cores, without PyTorch.",
    "resnet50": "ResNet-50 in PyTorch: images of 224 × 224.",
    "bert": "BERT-large in PyTorch: questions on texts of 384 tokens.",
    "dlrm": "DLRMv2 in PyTorch: 26 tables, samples of 270 user-item pairs of 214 look-ups.",
    "retinanet": "RetinaNet on ResNeXt-50 in PyTorch: images of 800 × 800.",
    "unet3d": "3D U-Net in PyTorch: scans of 192 × 256 × 256, by windows of 128³.",
    "gptj": "GPT-J 6B in PyTorch: 128 tokens of an answer to at most 1,919.",
    "llama": "Llama 2 7B in PyTorch: 294 tokens of an answer to at most 1,024.",
    "mixtral": f"Mixtral 8x7B in PyTorch, {forms.MIXTRAL_LAYERS} of its {forms.MIXTRAL_OF} layers: 145 tokens to at most 2,048.",
    "sdxl": "The UNet of SDXL in PyTorch: 20 steps from stored states of texts to latents of 1024 × 1024.",
}
MODES = ("ram", "cold", "coldstart", "tables")
SECONDS_MAX = 86_400.0
ONE = "a model answers in one process, on one GPU"
SCENARIO = click.Choice(rules.SCENARIOS, case_sensitive=False)


class InferVerbs(LazyGroup):
    table = {
        **{name: (f"forebay.infer.verb:{name}", reported) for name, reported in QUESTIONS.items()},
        "datagen": ("forebay.infer.verb:datagen", "Create a model's samples and weights."),
    }
    noun = "model or verb of infer"


@click.group(
    "infer",
    cls=InferVerbs,
    epilog=EXAMPLES,
    short_help="Does inference wait for storage?",
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Does this inference wait for storage, and where?

    MLCommons' load generator asks, a real model answers. ram: samples are in memory before the clock starts, as the rules have
    it; cold: each is read inside its query; coldstart: from the weights' file to the first answer. Results are MLPerf-style and
    unverified.
    """


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Flags of every model."""
    options = [
        click.option("--dir", "folder", metavar="DIR", required=True, help="Folder of samples and weights."),
        click.option("--mode", default="ram", type=click.Choice(MODES), help="Where samples are at first. Default: ram."),
        click.option("--scenario", default="Offline", type=SCENARIO, help="How queries come. Default: Offline."),
        click.option("--short", is_flag=True, help="A test of 2 s, labelled so. Default: ten minutes."),
        click.option("--seconds", metavar="TIME", help="A test of so long, labelled short."),
        click.option("--accuracy", is_flag=True, help="LoadGen's accuracy test, against the model's float32 answers."),
        click.option("--supply", metavar="GIB_S|model:DRIVE?drives=K", help="Rate of reading. Default: the storage's own."),
        click.option("--target-qps", metavar="N", help="Server: queries a second. Default: the highest that passes."),
        click.option("--samples", metavar="N", help="Samples of the library. Default: the rules' count, or what the folder has."),
        click.option("--batch-size", metavar="N", help="Samples of a batch at most."),
        click.option("--seed", metavar="N", help="Seed of LoadGen's order and arrivals. Default: the round's own."),
        click.option("--path", default="auto", type=PathChoice(), help="How bytes reach a GPU."),
        click.option("--cache", default="any", type=click.Choice(CACHES), help="The files in the page cache, or out of it."),
        click.option("--logs", metavar="DIR", help="Keep LoadGen's logs there; a search that was broken off goes on there."),
        click.option("--query-timeout", metavar="TIME", default="60s", help="End where no answer comes. Default: 60s."),
        click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout."),
        click.option("-o", "--out", metavar="FILE", help="Save the record to FILE; .jsonl appends a line."),
        click.option("--quiet", "-q", is_flag=True, help="No progress and no summary."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


@click.command("toy", context_settings={"max_content_width": 110})
@shared
def toy(folder: str, as_json: bool, out: str | None, quiet: bool, **flags: Any) -> int:
    """A small classifier in NumPy, 3072-256-256-10: every mode and scenario, without PyTorch and without a GPU.

    It makes its files in the folder, 10 MB, where that has none. It says nothing about a GPU's speed.
    """
    ranks.alone("infer toy", ONE)
    few_threads()
    from forebay.infer import data
    from forebay.infer import toy as model

    if flags["mode"] != "coldstart":
        rules.loadgen()
    def about() -> data.About:
        """Of the files, which are made where there are none; another run that makes the same ones may be first."""
        if not data.is_there(Path(folder)):
            of = data.About("toy", 0, rules.MODELS["toy"].samples, data.row_bytes("toy"), 0)
            try:
                with progress(quiet) as say:
                    data.generate(Path(folder), of, model.weights(of.seed), say)
            except RunError:
                if not data.is_there(Path(folder)):
                    raise
        return data.open_folder(Path(folder), "toy")

    return _run(_request("toy", folder, "cpu", flags, about), as_json, out, quiet)


def of_torch(name: str) -> click.Command:
    """The command of a model of PyTorch."""

    def callback(folder: str, device: str | None, as_json: bool, out: str | None, quiet: bool, **flags: Any) -> int:
        from forebay.infer import data
        from forebay.infer.networks import needs_or_say

        ranks.alone(f"infer {name}", ONE)
        rules.refuse_unknown(name, flags["scenario"])
        needs_or_say(name)
        if flags["mode"] != "coldstart":
            rules.loadgen()
        of = functools.partial(data.open_folder, Path(folder), name)
        return _run(_request(name, folder, device_of(f"infer {name}", device), flags, of), as_json, out, quiet)

    callback.__doc__ = (
        f"{QUESTIONS[name]}\n\nIts samples and weights are those of forebay infer datagen {name}. A GPU computes in bfloat16."
    )
    if name == "dlrm":
        reported = "Mode tables: GiB of the device's memory for the hottest rows. Default: 0."
        callback = click.option("--table-memory", metavar="GIB", help=reported)(callback)
    made = click.option("--device", metavar="NAME", help="cpu, cuda:0. Default: the first GPU, else cpu.")(shared(callback))
    return click.command(name, context_settings={"max_content_width": 110})(made)


resnet50, bert, dlrm = (of_torch(name) for name in ("resnet50", "bert", "dlrm"))
retinanet, unet3d, gptj, llama, mixtral, sdxl = (of_torch(name) for name in forms.NAMES)


@click.command("datagen", context_settings={"max_content_width": 110})
@click.argument("model", type=click.Choice(tuple(rules.MODELS)))
@click.option("--dir", "folder", metavar="DIR", required=True, help="Folder that is made, or has none of these files.")
@click.option("--samples", metavar="N", help="Samples. Default: as many as the rules want in memory; of dlrm 4096.")
@click.option("--table-rows", metavar="N", help="dlrm: large tables are cut to that. Default: 200000.")
@click.option("--table-gib", metavar="N", help="dlrm: tables of so many GiB in all, in place of --table-rows.")
@click.option("--trained", metavar="FILE", help="dlrm: weights of forebay train dlrm --weights, in place of random ones.")
@click.option("--rows-of", metavar="DIR", help="With --trained: the data set, whose evaluation rows are the samples.")
@click.option("--small", is_flag=True, help="A narrow form of the network, for a CPU.")
@click.option("--seed", metavar="N", default="0", help="Seed of samples and weights. Default: 0.")
@click.option("--json", "as_json", is_flag=True, help="What was made as one JSON document on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
def datagen(
    model: str, folder: str, samples: str | None, table_rows: str | None, table_gib: str | None, trained: str | None,
    rows_of: str | None, small: bool, seed: str, as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Samples as the model reads them, a digest of each, and random weights as safetensors, all from a seed."""
    from forebay.infer import data, networks
    from forebay.infer import toy as of_numpy

    ranks.alone(f"infer datagen {model}", "each would write the same files")
    if table_rows is not None and model != "dlrm":
        raise RequestError(f"--table-rows {table_rows}", f"{model} has no tables", "forebay infer datagen dlrm")
    if table_gib is not None and (model != "dlrm" or table_rows is not None):
        found = "and --table-rows both say how large tables are" if model == "dlrm" else f"is dlrm's; {model} has no tables"
        raise RequestError(f"--table-gib {table_gib}", found, "forebay infer datagen dlrm --table-gib 40")
    if small and model not in forms.NAMES:
        raise RequestError(f"datagen {model} --small", f"{model} has one form", f"one of {', '.join(forms.NAMES)}")
    if trained is not None or rows_of is not None:
        others = {"--samples": samples, "--table-rows": table_rows, "--table-gib": table_gib}
        more = [flag for flag, value in others.items() if value]
        return _of_training(model, Path(folder), trained, rows_of, more, as_json, quiet)
    wanted = count(samples, "--samples", 1 << 31) if samples else rules.MODELS[model].made_samples()
    tables = 0
    if model == "dlrm":
        tables = count(table_rows, "--table-rows", 40_000_000) if table_rows else data.TABLE_ROWS
        if table_gib is not None:
            tables = _cap(table_gib)
    number = _seed(seed, "--seed")
    about = data.About(model, number, wanted, data.row_bytes(model, small), 0, tables, small)
    with progress(quiet) as say:
        say("weights")
        if table_gib is not None:
            from forebay.infer import tabled

            weights = tabled.drawn(number, tables)
        else:
            weights = of_numpy.weights(number) if model == "toy" else networks.weights(model, number, tables, small)
        about = data.generate(Path(folder), about, weights, say)
    return _made(model, folder, about, as_json, quiet)


def _made(model: str, folder: Path | str, about: Any, as_json: bool, quiet: bool, next: str = "--short") -> int:
    from forebay.numbers import bytes_, whole

    if as_json:
        click.echo(json.dumps(about.document(), indent=1))
    elif not quiet:
        size = bytes_(about.samples * about.row_bytes)
        click.echo(f"{folder}: {whole(about.samples)} samples ({size}) and {bytes_(about.weights_bytes)} of weights")
        click.echo(f"next: forebay infer {model} --dir {folder} {next}")
    return DONE


def _of_training(
    model: str, folder: Path, weights: str | None, source: str | None, others: list[str], as_json: bool, quiet: bool
) -> int:
    """`infer datagen dlrm --trained FILE --rows-of DIR`."""
    from forebay.infer import trained

    both = "forebay infer datagen dlrm --dir DIR --trained FILE --rows-of DATA"
    flag = f"--trained {weights}" if weights is not None else f"--rows-of {source}"
    if model != "dlrm":
        raise RequestError(flag, f"{model} has no form here that is trained to a quality", both)
    if weights is None or source is None:
        lacks = "--rows-of, the data set that it was trained on" if source is None else "--trained, the weights"
        raise RequestError(flag, f"lacks {lacks}", both)
    if others:
        raise RequestError(others[0], "is decided by the training's data", f"no {others[0]}")
    with progress(quiet) as say:
        about = trained.generate(folder, Path(weights), Path(source), say)
    return _made(model, folder, about, as_json, quiet, "--accuracy --scenario Offline")


def _cap(text: str) -> int:
    from forebay.infer import tabled

    gib, most = _number(text, "--table-gib"), 97.0
    if not 0 < gib <= most:
        found = f"is not above 0 and at most {most:g}, all rows of the benchmark"
        raise RequestError(f"--table-gib {text}", found, "--table-gib 40")
    return tabled.cap_for(gib)


def _request(model: str, folder: str, device: str, flags: dict[str, Any], about: Callable[[], About]) -> Request:
    """The request of these flags. `about` opens the model's files, or makes them, once nothing else is wrong."""
    from forebay.infer.command import Request
    from forebay.infer.data import About
    from forebay.train import supply

    most = (1 << 31) - 1
    length = rules.SHORT_S if flags["short"] else rules.DURATION_S
    if flags["seconds"]:
        if flags["short"]:
            raise RequestError("--short --seconds", "both say how long a test is", f"--seconds {flags['seconds']}")
        length = parse_seconds(flags["seconds"], "--seconds")
        if not 0.01 <= length <= SECONDS_MAX:
            raise RequestError(f"--seconds {flags['seconds']}", "is not between 10 ms and a day", "--seconds 10")
    rate = None
    if flags["target_qps"] is not None:
        rate = _number(flags["target_qps"], "--target-qps")
        if not 0 < rate < 1e9:
            raise RequestError(f"--target-qps {flags['target_qps']}", "is no rate above 0", "--target-qps 100")
    timeout_s = parse_seconds(flags["query_timeout"], "--query-timeout")
    if not timeout_s > 0:
        raise RequestError(f"--query-timeout {flags['query_timeout']}", "is not above 0", "--query-timeout 60s")
    made = Request(
        model,
        flags["mode"],
        flags["scenario"],
        Path(folder),
        About(model, 0, 1, 1, 0),
        supply.parse(flags["supply"], 1),
        device,
        seconds=length,
        accuracy=flags["accuracy"],
        samples=_integer(flags["samples"], "--samples", most) if flags["samples"] else None,
        batch=count(flags["batch_size"], "--batch-size", 1 << 20) if flags["batch_size"] else None,
        target_qps=rate,
        seed=_seed(flags["seed"], "--seed") if flags["seed"] else None,
        path=flags["path"],
        cache=flags["cache"],
        logs=Path(flags["logs"]) if flags["logs"] else None,
        timeout_s=timeout_s,
        table_bytes=_table_bytes(flags.get("table_memory")),
    )
    made.check()
    made.about = about()
    return made


def _table_bytes(text: str | None) -> int:
    if text is None:
        return 0
    gib = _number(text, "--table-memory")
    if not 0 <= gib < 1e6:
        raise RequestError(f"--table-memory {text}", "is no number of GiB", "--table-memory 4")
    return int(gib * GIB)


def _run(request: Request, as_json: bool, out: str | None, quiet: bool) -> int:
    from forebay.bench import save, terminal
    from forebay.infer import show
    from forebay.infer.command import Run

    output = save.Output(out, save.RUN) if out else None
    run, code = Run(request), INTERRUPTED
    try:
        with progress(quiet) as say:
            run._say = say
            failure = run.measure()
        record = run.record()
        code = failure.exit_code if failure else INTERRUPTED if run.interrupted else DONE if run.holds else CHECK_FAILED
    finally:
        run.close()
        if run.abandoned:
            atexit.register(leave, code)
    save.conclude(record, output, as_json, None if quiet else show.text(record, terminal.text_width()))
    if failure is not None:
        raise failure
    return code


def leave(code: int) -> None:
    """Ends the process with LoadGen's threads in it: they can't be told to end, and would take what they use with them."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


