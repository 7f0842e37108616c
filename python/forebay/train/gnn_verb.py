"""`forebay train gnn`: R-GAT on a generated graph, features loaded in bulk or gathered for each batch."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click

from forebay.errors import DONE, RequestError
from forebay.flags import _integer, _number, _seed
from forebay.model_runs import count, device_of, progress, torch_or_say
from forebay.train import verb
from forebay.units import parse_seconds

EPOCHS_MAX = 1_000_000
# Flags of every model that are none of this one's: it has its own target, and nodes in one order.
NONE_OF_ITS = ("target_auc", "shuffle")


@click.command("gnn", context_settings={"max_content_width": 110})
@click.option("--dir", "folder", metavar="DIR", required=True, help="Folder of forebay train datagen gnn.")
@click.option("--way", default="gather", type=click.Choice(("bulk", "gather")), help="Load all features, or each batch's.")
@click.option("--epochs", metavar="N", help="End after so many epochs. Default: 1, without --samples and --seconds.")
@click.option("--fan-out", default="4,3,1", metavar="N,N,…", help="Neighbours by each relation, a hop each. Default: 4,3,1.")
@click.option("--hidden", default="512", metavar="N", help="Width of the layers. Default: 512.")
@click.option("--target-accuracy", metavar="X|none", help="End at this accuracy; none: speed alone. Default: the data set's.")
@click.option("--data-seed", metavar="N", help="Refuse a graph of another seed.")
@click.option("--device", metavar="NAME", help="cpu, cuda:0. Default: the first GPU, else cpu.")
@verb.shared
def gnn(folder: str, device: str | None, as_json: bool, out: str | None, quiet: bool, **flags: Any) -> int:
    """R-GAT, a graph network with attention by relation, in PyTorch: 2 KiB of features a node, neighbours sampled on the GPU.

    bulk loads all features into memory inside the timed region, as the benchmark does; gather fetches each batch's distinct
    rows from their file. The record has the sum of load and training for both, and from how many epochs on the load pays.
    """
    from forebay.train import gnn as model
    from forebay.train import graph, ranks

    ranks.refuse("gnn")
    torch_or_say("train gnn")
    about = graph.open_folder(Path(folder))
    if flags["data_seed"] is not None and _integer(flags["data_seed"], "--data-seed", (1 << 63) - 1) != about.seed:
        found = f"the data set {folder} has {about.seed}"
        raise RequestError(f"--data-seed {flags['data_seed']}", found, f"--data-seed {about.seed}, or another --dir")
    graph.refuse_another_seed(about)
    request = _request(about, flags)
    where, rate = device_of("train gnn", device), verb._rate(flags) or model.LEARNING_RATE
    request.check(where)

    def made(seed: int) -> Any:
        return model.Model(about.classes, seed, where, rate, request.hidden, len(request.fan_out))

    return verb._run(request, made, True, flags, as_json, out, quiet)


gnn.params = [parameter for parameter in gnn.params if parameter.name not in NONE_OF_ITS]


def _request(about: Any, flags: dict[str, Any]) -> Any:
    from forebay.train import gnn as model
    from forebay.train import graph, supply
    from forebay.train.command import PEAK_S
    from forebay.train.gnn_run import Request
    from forebay.train.run import CHECK_S

    most = (1 << 63) - 1
    batch = count(flags["batch_size"], "--batch-size", most) if flags["batch_size"] else min(model.BATCH, about.rows)
    samples = count(flags["samples"], "--samples", most) if flags["samples"] else None
    if flags["epochs"] is not None:
        if samples is not None:
            raise RequestError("--epochs and --samples", "each says how long to train", "one of them")
        samples = count(flags["epochs"], "--epochs", EPOCHS_MAX) * _epoch(about, batch)
    duration = parse_seconds(flags["seconds"], "--seconds") if flags["seconds"] else None
    peak_s = parse_seconds(flags["peak_seconds"], "--peak-seconds") if flags["peak_seconds"] else PEAK_S
    if not 0 < peak_s <= verb.PEAK_S_MAX:
        found = f"is not above 0 and up to {verb.PEAK_S_MAX}"
        raise RequestError(f"--peak-seconds {flags['peak_seconds']}", found, "--peak-seconds 2")
    target = flags["target_accuracy"]
    return Request(
        about,
        supply.parse(flags["supply"], _integer(flags["gpus"], "--gpus")),
        batch,
        way=flags["way"],
        fan_out=graph.fan_out(flags["fan_out"]),
        hidden=count(flags["hidden"], "--hidden", 1 << 16),
        seed=_seed(flags["seed"], "--seed"),
        path=flags["path"],
        cache=flags["cache"],
        samples=_epoch(about, batch) if samples is None and duration is None else samples,
        seconds=duration,
        target=_aim(target, about),
        quality=target != "none",
        peak_s=peak_s,
        check_s=min(CHECK_S, peak_s / 2),
        evaluate_every=count(flags["evaluate_every"], "--evaluate-every", most) if flags["evaluate_every"] else None,
    )


def _epoch(about: Any, batch: int) -> int:
    """Samples of an epoch, whose last batch is left out where it isn't full."""
    return max(1, about.rows // batch) * batch


def _aim(text: str | None, about: Any) -> float | None:
    if text is None or text == "none":
        return None
    aim = None
    with contextlib.suppress(RequestError):
        aim = _number(text, "--target-accuracy")
    if aim is None or not 1 / about.classes < aim < 1:
        next = f"--target-accuracy {about.target_auc:g}, or --target-accuracy none"
        raise RequestError(f"--target-accuracy {text}", f"is not between {1 / about.classes:g} (guessing) and 1", next)
    return aim


def datagen(folder: str, nodes: str | None, seed: str, as_json: bool, quiet: bool) -> int:
    """`forebay train datagen gnn`."""
    from forebay.numbers import bytes_, whole
    from forebay.train import graph

    number = graph.NODES if nodes is None else count(nodes, "--nodes", graph.NODES_MAX)
    with progress(quiet) as say:
        about = graph.generate(Path(folder), _seed(seed, "--seed"), number, progress=say)
    if as_json:
        click.echo(json.dumps(about.document(), indent=1))
    elif not quiet:
        size = f"{bytes_(about.feature_bytes)} of features"
        click.echo(f"{folder}: {whole(number)} nodes, {size}, {whole(sum(about.edges))} edges of {len(about.edges)} relations")
        click.echo(f"best reachable accuracy {about.best:.4f}, target {about.target_auc:.4f}, {about.classes} classes")
        click.echo(f"next: forebay train gnn --dir {folder}")
    return DONE
