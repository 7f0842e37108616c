"""Models that are trained for speed, in PyTorch: BERT, a Llama with adapters, a diffusion UNet, RetinaNet, ResNet.

Weights are random, of the seed; they are the sizes of the benchmark's models, and values don't change a speed. On a GPU
layers compute in bfloat16 (autocast); weights that are trained are float32. Nothing but PyTorch is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from forebay.errors import MachineError, RequestError
from forebay.model_runs import available_bytes, torch_or_say
from forebay.numbers import bytes_, whole
from forebay.train import forms
from forebay.train.run import NO_NUMBER
from forebay.train.steps import Steps

MOMENTUM, SPREAD = 0.9, 0.02


class Model(Steps):
    """Trains on batches of rows: (n, words) of 32 bits in the device's memory."""

    def __init__(
        self, form: forms.Form, seed: int, device: str, learning_rate: float | None = None, compiled: bool = False
    ) -> None:
        """`compiled`: kernels are made of the whole network by torch.compile, which takes a minute at the first step."""
        super().__init__(torch_or_say(f"train {form.model}"), device)
        self.form, self.seed, self.name = form, seed, form.model
        self.rate, self.optimizer = learning_rate or form.rate, form.optimizer
        torch = self._torch
        if compiled and self.queued:
            refuse_to_compile()
        if self.queued:
            # The fastest convolution of these sizes, found at the first step.
            torch.backends.cudnn.benchmark = True
        self._half = torch.bfloat16 if self.queued else torch.float32
        with torch.device("meta"):
            self._refuse_too_much(_network(form, self._half))
        with torch.device(device):
            self._net: Any = _network(form, self._half)
        if form.model in ("resnet", "ssd", "diffusion"):
            self._net.to(memory_format=torch.channels_last)
        # Of the record beside what every model's has.
        self.reported = {"weights": self.weights, "compiled": compiled}
        self._call = self._called(compiled)
        # Numbers that can't be read, losses that are no number.
        self._wrong = torch.zeros(2, dtype=torch.int64, device=device)
        self.reset()

    def _called(self, compiled: bool) -> Any:
        """The network as a step calls it."""
        return self._torch.compile(self._net, dynamic=False) if compiled else self._net

    def _draw_seed(self) -> int:
        """Seed of what a step draws by itself."""
        return self.seed

    def _refuse_too_much(self, net: Any) -> None:
        """Raises MachineError where weights, gradients and the optimizer's state take more than is free."""
        wanted = sum(
            p.numel() * (self.form.state_bytes if p.requires_grad else p.element_size()) for p in net.parameters()
        )
        self.weights = sum(p.numel() for p in net.parameters())
        free = self._torch.cuda.mem_get_info(self.device)[0] if self.queued else available_bytes()
        if wanted > 0.9 * free:
            found = f"{whole(self.weights)} weights take {bytes_(wanted)} with their gradients and the optimizer's state"
            less = "fewer --layers, or " if self.name == "lora" else ""
            next = f"{less}forebay train datagen {self.name} --small --dir ANOTHER"
            raise MachineError(f"train {self.name}", f"{found}; {bytes_(free)} are free", next)

    def reset(self) -> None:
        """Weights of the seed on this kind of device, as before the first step."""
        torch = self._torch
        draw = torch.Generator(self.device).manual_seed(self.seed)
        torch.manual_seed(self._draw_seed())
        with torch.no_grad():
            for module in self._net.modules():
                _fill(torch, module, draw, self.form.net.get("spread", SPREAD))
            for name, parameter in self._net.named_parameters():
                if self.name == "lora" and ".up.weight" in name and parameter.requires_grad:
                    parameter.zero_()
            if hasattr(self._net, "start"):
                self._net.start()
        self._net.train()
        trained = [p for p in self._net.parameters() if p.requires_grad]
        if self.optimizer == "SGD":
            self._optimizer: Any = torch.optim.SGD(trained, lr=self.rate, momentum=MOMENTUM, fused=self.queued or None)
        else:
            self._optimizer = getattr(torch.optim, self.optimizer)(trained, lr=self.rate, fused=self.queued or None)
        self._wrong.zero_()
        self._last: Any = None
        self.loss = torch.zeros((), device=self.device)

    def close(self) -> None:
        """Gives the device's memory back."""
        self.wait()
        self._net = self._call = self._optimizer = self._last = None
        if self.queued:
            self._torch.cuda.empty_cache()

    def _step(self, rows: Any) -> None:
        torch = self._torch
        self._optimizer.zero_grad(set_to_none=True)
        fields, wrong = self._fields(rows)
        loss = self._loss(fields)
        self._optimizer.step()
        with torch.no_grad():
            self._wrong += torch.stack([wrong, (~torch.isfinite(loss)).long()])
        self._last = rows if not self.queued else None
        self.loss = loss.detach()

    def _loss(self, fields: dict[str, Any]) -> Any:
        """The loss of a batch, whose gradients the weights then have."""
        torch = self._torch
        with torch.autocast("cuda", torch.bfloat16, enabled=self.queued):
            loss = self._call(fields)
        loss.backward()
        return loss

    def _fields(self, rows: Any) -> tuple[dict[str, Any], Any]:
        """Rows by the names of their fields, numbers held to what can be read, and how many had to be."""
        torch = self._torch
        whole_ = rows.view(torch.uint8)
        kinds = {"u1": torch.uint8, "i4": torch.int32, "f4": torch.float32}
        found, wrong = {}, torch.zeros((), dtype=torch.int64, device=rows.device)
        begins = self.form.begins()
        for each in self.form.fields:
            begin = begins[each.name]
            values = whole_[:, begin : begin + each.bytes].view(kinds[each.kind]).unflatten(1, each.shape)
            if each.low is not None and each.high is not None:
                held = values.clamp(each.low, each.high - 1)
                wrong += (held != values).sum()
                values = held
            found[each.name] = values
        if "check" in found:
            wrong += (found["check"] != ~found["label"]).sum()
        return found, wrong

    def quality_of(self, rows: Any) -> float:
        """Quality of the weights as they are, on (n, words) rows of NumPy. Training goes on as if it hadn't been asked."""
        from forebay.train import quality

        torch, size = self._torch, min(self.form.batch, 64)

        def batches() -> Iterator[dict[str, Any]]:
            for at in range(0, len(rows), size):
                yield self._fields(torch.as_tensor(rows[at : at + size]).to(self.device))[0]

        self._net.eval()
        try:
            with self._evaluating(size), torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=self.queued):
                return quality.OF[self.name](self._net, batches())
        finally:
            self._net.train()

    def problem(self) -> str | None:
        """A reason why the model didn't learn in the last steps, if there is one."""
        from forebay.train import samples

        wrong, losses = self._wrong.tolist()
        self._wrong.zero_()
        if wrong:
            reported = None if self._last is None else samples.faults(self.form, self._last.numpy())
            return reported or f"of the last steps' rows {whole(wrong)} numbers can't be read"
        return NO_NUMBER if losses else None


def _network(form: forms.Form, half: Any) -> Any:
    net = form.net
    if form.model in ("bert", "lora"):
        from forebay.train import text

        return text.Bert(net) if form.model == "bert" else text.Llama(net, half)
    if form.model == "diffusion":
        from forebay.train import unet

        return unet.UNet(net)
    from forebay.train import images

    return images.RetinaNet(net) if form.model == "ssd" else images.ResNet(net["width"], net["depths"], net["classes"])


def _fill(torch: Any, module: Any, draw: Any, spread: float) -> None:
    """The weights that a module itself has: normal, by the number of inputs for convolutions; norms as they begin."""
    nn = torch.nn
    if isinstance(module, nn.Conv2d):
        inputs = module.weight[0].numel()
        module.weight.normal_(0, (2 / inputs) ** 0.5, generator=draw)
    elif isinstance(module, (nn.Linear, nn.Embedding)):
        module.weight.normal_(0, spread, generator=draw)
    elif getattr(module, "weight", None) is not None:
        module.weight.fill_(1)
    if getattr(module, "bias", None) is not None:
        module.bias.zero_()
    if isinstance(module, nn.BatchNorm2d):
        module.reset_running_stats()


def refuse_to_compile() -> None:
    """Raises MachineError where torch.compile lacks what it makes kernels with."""
    from forebay.train.dlrm import lacks

    found = lacks()
    if found is not None:
        raise MachineError("--compile", found[0], f"{found[1]}; or no --compile")


def with_layers(form: forms.Form, layers: int | None) -> forms.Form:
    """`--layers` of the Llama. Raises RequestError for another model's."""
    if layers is None:
        return form
    if form.model != "lora":
        raise RequestError("--layers", f"{form.model} has as many as the benchmark's", "no --layers")
    return replace(form, net={**form.net, "layers": layers})
