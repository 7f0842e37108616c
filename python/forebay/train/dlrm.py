"""DLRMv2 in PyTorch, as the benchmark's reference builds it: torch's own sparse embeddings and Adagrad, or those of `fused`.

Bottom 512-256-128; 26 tables of vectors of 128, of which a sample looks up 214 and adds up those of a feature; three
low-rank cross layers of rank 512 over the 27 vectors; top 1024-1024-512-256-1. All tables lie in one, one behind the other:
one look-up and one sparse gradient a step. Dense layers compute in bfloat16 on a GPU (autocast); weights are float32.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forebay.errors import MachineError
from forebay.model_runs import available_bytes, torch_or_say
from forebay.numbers import bytes_, whole
from forebay.train import data
from forebay.train.run import NO_NUMBER, odd_numbers
from forebay.train.steps import Steps

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

WIDTH, BOTTOM, RANK, CROSSES, TOP = 128, (512, 256, 128), 512, 3, (1024, 1024, 512, 256, 1)
LEARNING_RATE = 0.005
# Of an evaluation's rows, at a time.
SCORED = 16384
# A weight and Adagrad's sum, of four bytes each.
STATE_BYTES = 8
# Look-ups and their update: by torch's operators, or by kernels of ours, on a GPU.
TORCH, FUSED = "torch", "fused"


def optimizer_of(name: str | None, device: str) -> str:
    """The optimizer asked for, else the fused one on a GPU where Triton can be imported. Raises MachineError."""
    if name == TORCH or (name is None and device == "cpu"):
        return TORCH
    if device == "cpu":
        found = "it runs on a GPU, and the model is to run on the CPU"
        raise MachineError(f"--optimizer {FUSED}", found, f"--optimizer {TORCH}")
    missing = lacks()
    if missing is None:
        return FUSED
    if name is None:
        return TORCH
    raise MachineError(f"--optimizer {FUSED}", missing[0], f"{missing[1]}; or --optimizer {TORCH}")


def lacks() -> tuple[str, str] | None:
    """What kernels of Triton need and this machine hasn't, and what brings it; None where they can be built."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"its kernels are Triton's, which can't be imported ({error})", "pip install triton"
    # What starts a kernel is a module of C, which Triton builds when one is first used.
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler, and finds neither gcc nor clang", "apt install gcc"
    scheme = sysconfig.get_default_scheme()
    # Debian's own scheme of that name has no headers; Triton looks as this does.
    found = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
    if not os.path.exists(os.path.join(found, "Python.h")):
        return "Triton needs Python's headers, and there is no Python.h", "apt install python3-dev"
    return None


def seed_of(seed: int, feature: int) -> int:
    """Seed of a table's vectors; a generator on the CPU takes the lower half of it."""
    return (seed * len(data.LOOKUPS) + feature + 1) * 0x9E3779B97F4A7C15 % (1 << 63)


class Model(Steps):
    """Trains on batches of rows: (n, 228) words in the device's memory."""

    name = "dlrm"

    def __init__(
        self,
        counts: Sequence[int],
        seed: int,
        device: str,
        learning_rate: float = LEARNING_RATE,
        optimizer: str | None = None,
        half: bool = True,
    ) -> None:
        """`half`: dense layers compute in bfloat16, on a GPU."""
        super().__init__(torch_or_say("train dlrm"), device)
        self.counts, self.seed, self.rate = tuple(counts), seed, learning_rate
        # The tables that lie here, one behind the other; what brings the others' vectors.
        self.features: Sequence[int] = self._features()
        self._exchange: Any = None
        self.optimizer, self.half = optimizer_of(optimizer, device), half and self.queued
        self._refuse_too_much()
        self._make()
        self.reset()

    def _features(self) -> Sequence[int]:
        return range(len(self.counts))

    @property
    def table_rows(self) -> int:
        """Rows of the tables that lie here."""
        return sum(self.counts[feature] for feature in self.features)

    def _refuse_too_much(self) -> None:
        free = self._torch.cuda.mem_get_info(self.device)[0] if self.queued else available_bytes()
        wanted = self.table_rows * WIDTH * STATE_BYTES
        if wanted > 0.8 * free:
            found = f"tables of {whole(self.table_rows)} rows take {bytes_(wanted)} with Adagrad's sums; {bytes_(free)} are free"
            fits = int(0.6 * free / (WIDTH * STATE_BYTES) / 6)
            raise MachineError(
                "train dlrm", found, f"a data set of forebay train datagen dlrm --table-rows {fits}"
            )

    def _make(self) -> None:
        """The network, whose weights `reset` fills, and what every step needs."""
        torch = self._torch
        # Adagrad makes sparse tensors of what it was given; torch warns unless told that they needn't be checked.
        torch.sparse.check_sparse_tensor_invariants.disable()
        self._net: Any = _network(torch, self.table_rows, self.device).to(self.device)
        self._optimizers: Any = None
        self._fused: Any = None

        def long(values: Any) -> Any:
            return torch.as_tensor(values, dtype=torch.int64, device=self.device)

        counts = [self.counts[feature] for feature in self.features]
        lookups = [data.LOOKUPS[feature] for feature in self.features]
        repeats = long(lookups)
        self._lookups = sum(lookups)
        self._offset = torch.repeat_interleave(long(data.starts(counts)), repeats)
        self._limit = torch.repeat_interleave(long(counts), repeats).to(torch.int32)
        self._bags = long(data.starts(lookups))
        self._ends: dict[int, Any] = {}
        # Look-ups beyond their table, labels that are neither 0 nor 1, losses that are no number.
        self._wrong = torch.zeros(3, dtype=torch.int64, device=self.device)
        if self.optimizer == FUSED:
            from forebay.train import fused

            self._fused = fused.Step(self._net, self.counts, self.rate, self._wrong, self.half, self._exchange)

    def reset(self) -> None:
        """Weights of the seed, as before the first step, where they are: a captured step has their addresses."""
        torch = self._torch
        torch.manual_seed(self.seed)
        fresh = dict(_network(torch, 1, "cpu").named_parameters())
        with torch.no_grad():
            for name, parameter in self._net.named_parameters():
                if name != "vectors.weight":
                    parameter.copy_(fresh[name])
            self._fill(self._net.vectors.weight)
        self._optimizers = None
        if self._fused is not None:
            self._fused.reset()
        else:
            others = [p for n, p in self._net.named_parameters() if n != "vectors.weight"]
            self._optimizers = [
                torch.optim.Adagrad([self._net.vectors.weight], lr=self.rate),
                torch.optim.Adagrad(others, lr=self.rate),
            ]
        self._wrong.zero_()
        self._last: Any = None
        self.loss = torch.zeros((), device=self.device)

    def _fill(self, vectors: Any) -> None:
        """Vectors of the seed: each table has a generator of its own, so that they are the same wherever it lies."""
        at = 0
        for feature in self.features:
            draw = self._torch.Generator(self.device).manual_seed(seed_of(self.seed, feature))
            vectors[at : at + self.counts[feature]].uniform_(-0.05, 0.05, generator=draw)
            at += self.counts[feature]

    def close(self) -> None:
        """Gives the device's memory back."""
        self.wait()
        self._net = self._optimizers = self._fused = self._last = None
        if self.queued:
            self._torch.cuda.empty_cache()

    def _step(self, rows: Any) -> None:
        torch = self._torch
        if self._fused is not None:
            self.loss = self._fused(rows)
            return
        labels = rows[:, data.LABEL]
        lookups = rows[:, data.FIRST_LOOKUP :]
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        logit = self._logit(rows)
        self.loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, labels.float())
        self.loss.backward()
        for optimizer in self._optimizers:
            optimizer.step()
        with torch.no_grad():
            beyond = ((lookups < 0) | (lookups >= self._limit)).sum()
            self._wrong += torch.stack(
                [beyond, (labels >> 1 != 0).sum(), (~torch.isfinite(self.loss)).long()]
            )
        self._last = rows if not self.queued else None
        self.loss = self.loss.detach()

    def problem(self) -> str | None:
        """A reason why the model didn't learn in the last steps, if there is one."""
        beyond, labels, losses = self._wrong.tolist()
        self._wrong.zero_()
        if beyond or labels:
            reported = None if self._last is None else data.faults(self._last.numpy(), self.counts)
            found = f"{whole(beyond)} look-ups are beyond their table, {whole(labels)} labels neither 0 nor 1"
            return reported or f"of the last steps' rows {found}"
        return NO_NUMBER if losses else None

    def _logit(self, rows: Any) -> Any:
        torch, net = self._torch, self._net
        dense = rows[:, data.FIRST_DENSE : data.FIRST_LOOKUP].view(torch.float32)
        numbers, ends = self._numbers(rows[:, data.FIRST_LOOKUP :])
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half):
            return net(dense, numbers, ends).float()

    def _numbers(self, lookups: Any) -> tuple[Any, Any]:
        """Rows of the one table that these look-ups of its features name, and where each bag of them begins."""
        torch, n = self._torch, len(lookups)
        numbers = torch.minimum(lookups.clamp(min=0), self._limit - 1) + self._offset
        if n not in self._ends:
            first = torch.arange(n, device=self.device)[:, None] * self._lookups
            self._ends = {n: (first + self._bags).flatten()}
        return numbers.flatten(), self._ends[n]

    def scores(self, rows: Any) -> Array:
        """The chance of each row's label being 1, in host memory."""
        torch = self._torch
        found = []
        with torch.no_grad(), self._evaluating(SCORED):
            for at in range(0, len(rows), SCORED):
                some = torch.as_tensor(rows[at : at + SCORED]).to(self.device)
                found.append(torch.sigmoid(self._logit(some)).cpu())
        scores: Array = torch.cat(found).numpy()
        return scores

    def digest(self, rows: Any, position: int) -> Any:
        """As `run.digest`, on the device."""
        if self._fused is None:
            return super().digest(rows, position)
        from forebay.train import fused

        if self._odd is None:
            self._odd = self._torch.as_tensor(odd_numbers(), device=self.device)
        return fused.digest(rows, self._odd, position)


def _network(torch: Any, table_rows: int, device: str) -> Any:
    """The network: tables as one, dense layers as the reference sizes them."""
    nn = torch.nn

    def layers(inputs: int, sizes: Sequence[int], last: bool) -> Any:
        made = []
        for n, size in enumerate(sizes):
            made.append(nn.Linear(inputs, size))
            if last or n + 1 < len(sizes):
                made.append(nn.ReLU())
            inputs = size
        return nn.Sequential(*made)

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.vectors = nn.EmbeddingBag(
                table_rows,
                WIDTH,
                mode="sum",
                sparse=True,
                _weight=torch.empty(table_rows, WIDTH, device=device),
            )
            self.bottom = layers(data.DENSE, BOTTOM, last=True)
            wide = (len(data.LOOKUPS) + 1) * WIDTH
            self.narrow = nn.ModuleList(nn.Linear(wide, RANK, bias=False) for _ in range(CROSSES))
            self.widen = nn.ModuleList(nn.Linear(RANK, wide) for _ in range(CROSSES))
            self.top = layers(wide, TOP, last=False)

        def forward(self, dense: Any, numbers: Any, bags: Any) -> Any:
            return self.above(dense, self.vectors(numbers, bags).view(len(dense), -1))

        def above(self, dense: Any, added: Any) -> Any:
            """The dense layers, given the sums of the look-ups' vectors."""
            below = self.bottom(dense)
            first = torch.cat([below, added.to(below.dtype)], dim=1)
            x = first
            for narrow, widen in zip(self.narrow, self.widen, strict=True):
                x = first * widen(narrow(x)) + x
            return self.top(x)[:, 0]

    return Network()
