"""Commands of the models that are trained for speed: `forebay train bert`, `lora`, `diffusion`, `ssd`, `resnet`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay.model_runs import count
from forebay.train import verb

if TYPE_CHECKING:
    from forebay.train.command import Request
    from forebay.train.forms import Form
    from forebay.train.ranks import Alone

# Training of a run that is given no limit.
SECONDS = 30.0
LAYERS_MAX = 1000
OPTIONS = [
    click.option("--rows", metavar="N", help="Refuse a data set of another length."),
    click.option("--data-seed", metavar="N", help="Refuse a data set of another seed."),
    click.option("--device", metavar="NAME", help="cpu, cuda:0. Default: the first GPU, else cpu."),
    click.option("--compile", "compiled", is_flag=True, help="Let torch.compile make the kernels: slow to start, and faster."),
]


def _command(model: str, reported: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with the flags of every model that is trained for speed."""

    def made(function: Callable[..., Any]) -> click.Command:
        function = functools.partial(verb.shared, target="")(function)
        for option in reversed(OPTIONS):
            function = option(function)
        help = f"Folder of forebay train datagen {model}."
        function = click.option("--dir", "folder", metavar="DIR", required=True, help=help)(function)
        function.__doc__ = f"{reported}\n\n{COMMON}"
        return click.command(model, context_settings={"max_content_width": 110})(function)

    return made


COMMON = f"""Weights are random, and the data set says which form it is for: the full one, or the small one of a CPU
(datagen --small). Trains for {SECONDS:.0f} s unless --samples or --seconds says otherwise; nothing is evaluated. Real data
(datagen --quality) are trained on until the target, for an epoch at most, in a form that is narrow too.
"""


@_command("bert", "BERT-large in PyTorch, with both losses of its pre-training: 512 tokens and 4,712 bytes a sample, AdamW.")
def bert(**flags: Any) -> int:
    return train("bert", flags)


@_command("lora", "Low-rank adapters of a Llama of 7B form in PyTorch: 8,192 tokens and 32,768 bytes a sample, AdamW.")
@click.option("--layers", metavar="N", help="Layers of the frozen model. Default: 16, half of those of 7B.")
def lora(**flags: Any) -> int:
    return train("lora", flags)


@_command("diffusion", "Stable Diffusion v2's UNet in PyTorch, on stored latents and text states: 446,464 bytes a sample, AdamW.")
def diffusion(**flags: Any) -> int:
    return train("diffusion", flags)


@_command("ssd", "RetinaNet on ResNet-50 in PyTorch: 307,520 bytes a sample, enlarged to 800 pixels on the device, Adam.")
def ssd(**flags: Any) -> int:
    return train("ssd", flags)


@_command("resnet", "ResNet-50 in PyTorch: images of 224 pixels, stored as bytes, 150,536 a sample, SGD with momentum.")
def resnet(**flags: Any) -> int:
    return train("resnet", flags)


def train(name: str, flags: dict[str, Any]) -> int:
    """A run, or several, of one of these models. Raises RequestError, MachineError."""
    device = flags.pop("device")
    return verb.on_ranks(name, device, flags, functools.partial(_train, name))


def _train(name: str, where: str, flags: dict[str, Any], group: Alone) -> int:
    """A training in one process, or a rank's part of it. Raises RequestError, MachineError."""
    from forebay.train import models

    def asked() -> tuple[Request, Form]:
        about = verb._opened(Path(flags["folder"]), {**flags, "table_rows": None}, name)
        layers = flags.get("layers")
        form = models.with_layers(about.form, None if layers is None else count(layers, "--layers", LAYERS_MAX))
        # Each rank has the usual batch.
        usual = min(form.batch * group.world, max(group.world, about.rows // group.world * group.world))
        found = verb._request(about, flags, usual, group.world)
        if found.samples is None and found.seconds is None:
            if found.quality:
                found.samples = about.rows
            else:
                found.seconds = SECONDS
        return found, form

    def made(seed: int) -> Any:
        if group.world == 1:
            return models.Model(form, seed, where, rate, flags["compiled"])
        from forebay.train import parallel

        return parallel.Model(group, form, seed, where, rate, flags["compiled"])

    verb.agree_on(flags, group)
    request, form = group.together(asked)
    rate = group.together(lambda: verb._rate(flags))
    return verb._run(request, made, True, flags, flags["as_json"], flags["out"], flags["quiet"], group)
