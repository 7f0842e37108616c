"""ResNet-50, BERT-large and DLRMv2 in PyTorch, at full size with random weights, as a system under test.

On a GPU they compute in bfloat16, by graphs of a few batch sizes, so that Python starts one launch a batch; on the CPU in
float32. Values of weights change no speed; what the answers are worth, a trained model has to say.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay.errors import MachineError, RunError
from forebay.infer import data, forms
from forebay.train.data import DENSE, FIRST_DENSE, FIRST_LOOKUP, LOOKUPS, WORDS, starts, tables

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

# Samples of a batch at most, on a GPU and on the CPU; answers of a sample.
BATCHES = {"resnet50": (256, 16), "bert": (64, 4), "dlrm": (32, 2)}
WIDTHS = {"resnet50": 10, "bert": 4, "dlrm": data.PAIRS}
NEEDS = {"resnet50": ("torch", "torchvision"), "bert": ("torch", "transformers"), "dlrm": ("torch",)}
BERT_LAYERS = 24
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Rows whose float32 answers are computed at a time.
CHECKED = 64


def needs_or_say(model: str) -> Any:
    """PyTorch, once all that the model needs can be imported. Raises MachineError."""
    for name in NEEDS.get(model, ("torch",)):
        try:
            importlib.import_module(name)
        except ImportError as error:
            found = f"it is a model of {name}, which can't be imported ({error})"
            next = f"pip install {' '.join(NEEDS.get(model, ('torch',)))}; or forebay infer toy, which needs none"
            raise MachineError(f"infer {model}", found, next) from None
    return importlib.import_module("torch")


def network(model: str, table_rows: int, device: str) -> Any:
    """The float32 network with weights drawn anew, on that device."""
    torch = needs_or_say(model)
    with torch.device(device):
        if model == "resnet50":
            from torchvision.models import resnet50

            made = resnet50(weights=None)
        elif model == "bert":
            from transformers import BertConfig, BertForQuestionAnswering

            large = {"hidden_size": 1024, "num_hidden_layers": BERT_LAYERS, "num_attention_heads": 16, "intermediate_size": 4096}
            made = BertForQuestionAnswering(BertConfig(vocab_size=data.VOCABULARY, **large))
        else:
            from forebay.train.dlrm import _network

            made = _network(torch, sum(tables(table_rows)), device)
    return made.eval().requires_grad_(False)


def weights(model: str, seed: int, table_rows: int, small: bool = False) -> dict[str, Any]:
    """Random weights of a seed, by name: in host memory, or of a form as they are written."""
    torch = needs_or_say(model)
    if model in forms.NAMES:
        from forebay.infer import large

        form = forms.form(model, small)
        return dict(data.drawn(large.shapes(form), form.kind, seed))
    torch.manual_seed(seed)
    made = network(model, table_rows, "cpu")
    if model == "dlrm":
        made.vectors.weight.uniform_(-0.05, 0.05)
    return {name: values.contiguous().numpy() for name, values in floats(made).items()}


def floats(net: Any) -> dict[str, Any]:
    """The tensors of float32 of a network: counters of batches aren't weights."""
    return {name: values for name, values in net.state_dict().items() if values.is_floating_point()}


def shapes(model: str, table_rows: int) -> dict[str, tuple[int, ...]]:
    return {name: tuple(values.shape) for name, values in floats(network(model, table_rows, "meta")).items()}


class Model:
    """Answers batches of rows in the device's memory: (n, row_bytes) → (n, width) float32 in host memory."""

    checked = CHECKED
    # Sizes of batches that were computed once, where no graph is captured.
    _tried: set[int]

    def __init__(self, model: str, tensors: Mapping[str, Any], device: str, table_rows: int) -> None:
        torch = self._torch = needs_or_say(model)
        self.name, self.device, self.table_rows = model, device, table_rows
        self.on_gpu = device != "cpu"
        self.row_bytes, self.graphed = data.row_bytes(model), True
        self.batch, self.width = BATCHES[model][0 if self.on_gpu else 1], WIDTHS[model]
        self.checked_batch = self.batch
        self._tensors = {name: self._tensor(values) for name, values in tensors.items()}
        self._kind = torch.bfloat16 if self.on_gpu else torch.float32
        net = self._made()
        net.load_state_dict(self._tensors, strict=False, assign=True)
        if model == "resnet50":
            fold(torch, net)
            net = net.to(memory_format=torch.channels_last)
        self._net = narrowed(net, self._kind) if self.on_gpu else net
        self._float: Any = None
        self._graphs: dict[int, tuple[Any, Any, Any]] = {}
        self._pool: Any = None
        self._tried = set()
        self._bags: dict[int, Any] = {}
        if model == "dlrm":
            repeats = torch.as_tensor(LOOKUPS, device=device)
            counts = torch.as_tensor(tables(table_rows), device=device)
            self._offset = torch.repeat_interleave(torch.as_tensor(starts(tables(table_rows)), device=device), repeats)
            self._limit = torch.repeat_interleave(counts, repeats)
            self._firsts = torch.as_tensor(starts(LOOKUPS), device=device)
            self.beyond = torch.zeros((), dtype=torch.int64, device=device)
        else:
            self.mean = torch.tensor(MEAN, device=device, dtype=self._kind) * 255
            self.scale = 1 / (torch.tensor(DEVIATION, device=device, dtype=self._kind) * 255)
            self.beyond = None

    def _made(self) -> Any:
        return network(self.name, self.table_rows, self.device)

    def prepare(self, sizes: tuple[int, ...]) -> None:
        """Captures the graphs of batches up to these sizes, or computes one of each; those that are new."""
        for size in sizes if self.on_gpu else ():
            if self.graphed:
                self._graph(size)
            elif size not in self._tried:
                with self._room(size):
                    self.launch(self._torch.zeros((size, self.row_bytes), dtype=self._torch.uint8, device=self.device))
                self._tried.add(size)

    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that are computed: powers of two up to the largest. Others are padded."""
        found = [1]
        while found[-1] < self.batch:
            found.append(min(self.batch, 2 * found[-1]))
        return tuple(found)

    def launch(self, rows: Any) -> Any:
        """Gives a batch to the device. Raises RunError where its memory doesn't hold it."""
        torch, count = self._torch, len(rows)
        with self._room(count), torch.inference_mode():
            if not self.on_gpu:
                return self._answers(self._net, self._input(self._tensor(rows), torch.float32)).float(), None
            with torch.cuda.device(self.device):
                if self.graphed:
                    size = next((n for n in self.sizes() if n >= count), count)
                    graph, put, found = self._graph(size)
                    put[:count].copy_(rows)
                    graph.replay()
                else:
                    found = self._answers(self._net, self._input(rows, self._kind)).float()
                host = torch.empty((count, self.width), dtype=torch.float32, pin_memory=True)
                host.copy_(found[:count], non_blocking=True)
                # A thread that waits for a long batch sleeps.
                done = torch.cuda.Event(blocking=not self.graphed)
                done.record()
                return host, done

    @contextmanager
    def _room(self, count: int) -> Iterator[None]:
        """Makes an error of one line of a batch that the device's memory doesn't hold."""
        try:
            yield
        except self._torch.OutOfMemoryError as error:
            reported = f"a batch of {count} takes more memory than the GPU has ({str(error).split('. ')[0]})"
            raise RunError(f"--batch-size {count}", reported, f"--batch-size {max(1, count // 2)}") from None

    def _tensor(self, values: Any) -> Any:
        """Memory of the host as a tensor; a tensor as it is."""
        return self._torch.from_numpy(values) if hasattr(values, "__array_interface__") else values

    def finish(self, launched: Any) -> Array:
        answers, done = launched
        if done is not None:
            done.synchronize()
        found: Array = answers.numpy()
        return found

    def _graph(self, size: int) -> tuple[Any, Any, Any]:
        torch = self._torch
        if not self.on_gpu or size in self._graphs:
            return self._graphs.get(size, (None, None, None))
        with torch.inference_mode(), torch.cuda.device(self.device):
            put = torch.zeros((size, self.row_bytes), dtype=torch.uint8, device=self.device)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._answers(self._net, self._input(put, self._kind))
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                found = self._answers(self._net, self._input(put, self._kind)).float()
        self._graphs[size] = graph, put, found
        return self._graphs[size]

    def _input(self, rows: Any, kind: Any) -> Any:
        """The network's input, of rows as they lie in the file."""
        torch, count = self._torch, len(rows)
        if self.name == "resnet50":
            pixels = rows.view(count, data.IMAGE, data.IMAGE, 3).to(kind)
            return ((pixels - self.mean.to(kind)) * self.scale.to(kind)).permute(0, 3, 1, 2)
        words = rows.view(torch.int32)
        if self.name == "bert":
            return words.view(count, 3, data.TOKENS).to(torch.int64)
        words = words.reshape(-1, WORDS)
        count = len(words)
        dense = words[:, FIRST_DENSE:FIRST_LOOKUP].view(torch.float32).reshape(count, DENSE)
        numbers = words[:, FIRST_LOOKUP:].to(torch.int64)
        inside = torch.minimum(numbers.clamp(min=0), self._limit - 1)
        self.beyond += (inside != numbers).sum()
        if count not in self._bags:
            first = torch.arange(count, device=self.device)[:, None] * sum(LOOKUPS)
            self._bags[count] = (first + self._firsts).flatten()
        return dense, (inside + self._offset).flatten(), self._bags[count]

    def _answers(self, net: Any, given: Any) -> Any:
        """(n, width): five likeliest classes and their logits; the span's begin and end and theirs; the chance of each pair."""
        torch = self._torch
        if self.name == "resnet50":
            best = net(given).float().topk(5, dim=1)
            return torch.cat([best.indices.float(), best.values], dim=1)
        if self.name == "bert":
            found = net(input_ids=given[:, 0], token_type_ids=given[:, 1], attention_mask=given[:, 2])
            begin, end = found.start_logits.float().max(1), found.end_logits.float().max(1)
            return torch.stack([begin.indices.float(), end.indices.float(), begin.values, end.values], dim=1)
        dense, numbers, bags = given
        kind = net.bottom[0].weight.dtype
        with torch.autocast("cuda", torch.bfloat16, enabled=self.on_gpu and kind != torch.float32):
            return torch.sigmoid(net(dense.to(kind), numbers, bags).float()).view(-1, data.PAIRS)

    def reference(self, rows: Any) -> Array:
        """The float32 network's own answers."""
        torch, net = self._torch, self._exact()
        with exactly(torch), torch.inference_mode():
            rows = self._tensor(rows)
            parts = [
                self._answers(net, self._input(rows[at : at + self.checked], torch.float32)).float().cpu()
                for at in range(0, len(rows), self.checked)
            ]
        found: Array = torch.cat(parts).numpy()
        return found

    def _exact(self) -> Any:
        """The float32 network, made once."""
        if self._float is None:
            self._float = network(self.name, self.table_rows, self.device)
            self._float.load_state_dict(self._tensors, strict=False, assign=True)
        return self._float

    def decisions(self, answers: Array) -> Array:
        """What an answer says, rounding aside: the class, the span; of each pair, the side of one half."""
        if self.name == "dlrm":
            return answers.reshape(-1, 1) > 0.5
        return answers[:, : 2 if self.name == "bert" else 1]

    def digests(self, rows: Any) -> Array:
        torch = self._torch
        words = self._tensor(rows).contiguous().view(torch.int64)
        odd = torch.as_tensor(data.odd_numbers(words.shape[1]), device=words.device)
        found: Array = (words * odd).sum(1).cpu().numpy().view("uint64")
        return found

    def problem(self) -> str | None:
        """A fault of the samples that the model stumbled over, if there was one."""
        count = 0 if self.beyond is None else int(self.beyond)
        return f"{count} look-ups of the samples are beyond their table" if count else None

    def close(self) -> None:
        """Gives the device's memory back."""
        self._graphs, self._net, self._float = {}, None, None
        self._tensors = {}
        if self.on_gpu:
            self._torch.cuda.empty_cache()


class Sized(Model):
    """A model of a form: `_make` has its network. Nothing is allocated beside the weights that were read."""

    def __init__(self, form: forms.Form, tensors: Mapping[str, Any], device: str, batch: int | None = None) -> None:
        torch = self._torch = needs_or_say(form.model)
        self.form, self.name, self.device = form, form.model, device
        self.on_gpu = device != "cpu"
        self.row_bytes, self.width, self.graphed = form.row_bytes, form.width, form.graphed
        usual = form.batches[0 if self.on_gpu else 1]
        # Slots of a language model are as many as were asked for; other batches are cut by who asks.
        self.batch = batch or usual if form.inputs else usual
        self.checked_batch = self.checked = self.batch
        self._tensors = {name: self._tensor(values) for name, values in tensors.items()}
        self._kind = torch.bfloat16 if self.on_gpu else torch.float32
        self._threads = self._one_thread()
        self._net = self._ready(self._loaded(not self.on_gpu)).to(self._kind)
        self._float: Any = None
        self._graphs: dict[int, tuple[Any, Any, Any]] = {}
        self._pool: Any = None
        self._tried = set()
        self.beyond = None

    def _one_thread(self) -> int | None:
        """Has a small form on the CPU computed by one thread, unless OMP_NUM_THREADS says otherwise; the number that it was.

        Its layers take microseconds each. Several threads wait for one another after each of them, spinning, for milliseconds
        wherever another program has one of their processors.
        """
        if self.on_gpu or not self.form.small or "OMP_NUM_THREADS" in os.environ:
            return None
        before: int = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        return before

    def close(self) -> None:
        super().close()
        if self._threads is not None:
            self._torch.set_num_threads(self._threads)

    def _make(self) -> Any:
        raise NotImplementedError

    def _ready(self, net: Any) -> Any:
        return net

    def _loaded(self, wide: bool) -> Any:
        """The network with the weights as they were read, or in float32."""
        with self._torch.device("meta"):
            net = self._make()
        held = {name: values.float() if wide else values for name, values in self._tensors.items()}
        net.load_state_dict(held, strict=False, assign=True)
        return net.eval().requires_grad_(False)

    def _exact(self) -> Any:
        if self._float is None:
            self._float = self._loaded(True)
        return self._float

    def _tensor(self, values: Any) -> Any:
        torch = self._torch
        found = super()._tensor(values)
        return found.view(torch.bfloat16) if found.dtype == torch.uint16 else found


@contextmanager
def exactly(torch: Any) -> Iterator[None]:
    """Matrices and convolutions are multiplied in float32 itself."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


def narrowed(net: Any, kind: Any) -> Any:
    """The network with its dense layers in another type; tables stay as they are, which are looked up and added in float32."""
    if hasattr(net, "vectors"):
        for name in ("bottom", "narrow", "widen", "top"):
            getattr(net, name).to(kind)
        return net
    return net.to(kind)


def fold(torch: Any, net: Any) -> None:
    """Each batch normalisation becomes part of the convolution before it, as it is one linear map with it."""
    before: Any = None
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.BatchNorm2d) and isinstance(before, torch.nn.Conv2d):
                made = torch.nn.utils.fusion.fuse_conv_bn_eval(before, child)
                before.weight, before.bias = made.weight, made.bias
                setattr(parent, name, torch.nn.Identity())
            before = child
