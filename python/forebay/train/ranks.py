"""Processes of one training that torchrun started: what they agree on, how they stop together, and which of them was lost.

What coordinates them goes over gloo between the hosts' processors; on GPUs the model's own exchanges go over NCCL. A signal
doesn't end a rank at once: it is told to the others at the next step, after which all of them stop, so that what was
measured until then is whole.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import click

from forebay.errors import ForebayError, MachineError, RequestError, RunError

T = TypeVar("T")
# What torchrun sets for each process that it starts.
RANK, WORLD, LOCAL, LOCAL_WORLD = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
# A rank that doesn't answer for so long counts as lost; where a connection broke, the others have so long to say that they
# are there.
ANSWER_S, HERE_S = 300.0, 3.0
# What was queued before a signal came is done by then, if it ever is; torchrun kills after 30 s.
ENDED_S = 10.0
# A table's vector of a sample, sent there and back, by the bytes of so many look-ups and their updates.
VECTOR_LOOKUPS = 2
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launched(environment: Mapping[str, str] = os.environ) -> int:
    """Ranks that torchrun started; 1 for a plain command."""
    size = environment.get(WORLD, "")
    started = environment.get(RANK, "").isdigit() and all(name in environment for name in ADDRESS)
    return int(size) if started and size.isdigit() else 1


def refuse(model: str) -> None:
    """Raises RequestError where torchrun started several processes of a model that trains in one."""
    alone(f"train {model}", f"{model} trains in one process", "; or forebay train dlrm")


def alone(command: str, why: str, or_else: str = "") -> None:
    """Raises RequestError where torchrun started several processes of a command that is one's."""
    world = launched()
    if world > 1:
        found = f"torchrun started {world} ranks, and {why}"
        raise RequestError(f"forebay {command}", found, f"forebay {command} without torchrun{or_else}")


class Lost(RunError):
    """Another rank has ended, or doesn't answer. What it left in a GPU's queue may never be done: nothing waits for that."""


class Alone:
    """One process, which is the whole of its training."""

    rank, world, here, lost = 0, 1, 1, False

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether a rank has it. Raises KeyboardInterrupt on every rank where one was told to stop."""
        return flags

    def gather(self, value: T) -> list[T]:
        """What each rank has."""
        return [value]

    def sum(self, values: list[int]) -> list[int]:
        """Sums over the ranks."""
        return values

    def collective(self, work: Callable[[], T]) -> T:
        """An exchange with the other ranks. Raises Lost where one of them is gone."""
        return work()

    def together(self, work: Callable[[], T]) -> T:
        """The result of work that every rank does. Where it fails on one, all raise."""
        return work()

    def raise_for(self, error: ForebayError | None) -> None:
        """Raises an error of this rank, else that of another, on all; to be called by all once one has an error."""
        if error is not None:
            raise error

    def agree(self, error: ForebayError) -> ForebayError:
        """An error that every rank raises; the first one reports it."""
        return error

    def watch(self, since_s: float) -> None:
        """Raises Lost once a GPU's work, waited for since then, can't be done any more without another rank."""

    def refuse_others(self, settings: dict[str, Any]) -> None:
        """Raises RequestError on every rank where one was started with other settings than rank 0."""

    def conclude(self, work: Callable[[], int]) -> int:
        """The exit code of a command that all ranks run, and what one of them says of its error."""
        return work()


ALONE = Alone()


def ranks_of(model: Any) -> Any:
    """The ranks that train a model."""
    return getattr(model, "ranks", ALONE)


class Ranks(Alone):
    """The ranks of torchrun, from this one's side."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._dist = torch, torch.distributed
        self.rank, self.world, self.lost = int(os.environ[RANK]), launched(), False
        # Ranks of this host.
        self.here = int(os.environ.get(LOCAL_WORLD, "1"))
        self._stopped, self._stopped_at = 0, 0.0
        self._agreed: ForebayError | None = None
        self._kept: dict[int, Any] = {}
        self._store: Any = None
        on_gpu = device != "cpu"
        if on_gpu:
            torch.cuda.set_device(device)
        try:
            self._dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                timeout=timedelta(seconds=ANSWER_S),
                device_id=torch.device(device) if on_gpu else None,
            )
        except (RuntimeError, ValueError) as error:
            asked = f"rank {self.rank} of {self.world}"
            found = f"the ranks can't connect to each other ({str(error).splitlines()[0]})"
            raise MachineError(asked, found, "torchrun --nproc-per-node 2 -m forebay train dlrm …") from None
        self._store = self._dist.distributed_c10d._get_default_store()

    def listen(self) -> None:
        """Takes signals, until `close`: the first stops all ranks at the next step, the second this one at once."""

        def stop(number: int, frame: Any) -> None:
            self._stopped += 1
            self._stopped_at = time.monotonic()
            before = self._kept.get(number)
            if self._stopped > 1 and callable(before):
                before(number, frame)

        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._kept[number] = signal.signal(number, stop)

    def close(self) -> None:
        for number, handler in self._kept.items():
            signal.signal(number, handler)
        self._kept = {}
        if not self.lost:
            with contextlib.suppress(RuntimeError):
                self._dist.destroy_process_group()
            # The group's threads end with its last reference, which a model has, in a cycle. One that lets go of a tensor of
            # Python's while the interpreter ends aborts it.
            gc.collect()

    def any(self, *flags: bool) -> tuple[bool, ...]:
        torch = self._torch
        gathered = torch.tensor([self._stopped > 0, *flags], dtype=torch.int32)
        self.collective(lambda: self._dist.all_reduce(gathered, op=self._dist.ReduceOp.MAX))
        stopped, *found = gathered.tolist()
        if stopped:
            self._stopped = 0
            raise KeyboardInterrupt
        return tuple(bool(flag) for flag in found)

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.world
        self.collective(lambda: self._dist.all_gather_object(found, value))
        return found

    def together(self, work: Callable[[], T]) -> T:
        error: ForebayError | None = None
        result: T | None = None
        try:
            result = work()
        except Lost:
            raise
        except ForebayError as raised:
            error = raised
        if self.any(error is not None)[0]:
            self.raise_for(error)
        return result  # type: ignore[return-value]

    def raise_for(self, error: ForebayError | None) -> None:
        gathered = self.gather(None if error is None else (type(error), error.asked, error.found, error.next))
        if error is None:
            rank, (kind, asked, found, following) = next((rank, each) for rank, each in enumerate(gathered) if each is not None)
            error = kind(f"rank {rank}: {asked}", found, following)
        raise self.agree(error)

    def agree(self, error: ForebayError) -> ForebayError:
        self._agreed = error
        return error

    def sum(self, values: list[int]) -> list[int]:
        total = self._torch.tensor(values, dtype=self._torch.int64)
        self.collective(lambda: self._dist.all_reduce(total))
        return list(total.tolist())

    def collective(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except self._torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise self._name(str(error).splitlines()[0]) from None

    def watch(self, since_s: float) -> None:
        now = time.monotonic()
        if self._stopped and now - max(since_s, self._stopped_at) > ENDED_S:
            raise self._name("its part of a step is missing")
        if now - since_s > ANSWER_S:
            raise self._name("its part of a step is missing")

    def _leave(self) -> None:
        """Waits for the others: a connection that one closes early breaks what another still reads."""
        with contextlib.suppress(RuntimeError):
            self._dist.all_reduce(self._torch.zeros(1))

    def _name(self, found: str) -> Lost:
        """The ranks that don't say that they are there: a broken connection doesn't name its other end."""
        self.lost, gone = True, []
        try:
            self._store.set(f"forebay/here/{self.rank}", "1")
            for rank in range(self.world):
                try:
                    self._store.wait([f"forebay/here/{rank}"], timedelta(seconds=HERE_S))
                except RuntimeError:
                    gone.append(str(rank))
        except RuntimeError:
            gone = ["0"]
        named = f"rank {', '.join(gone)}" if gone else "a rank"
        why = self._why(gone) or f"has ended, or didn't answer rank {self.rank} within {ANSWER_S:.0f} s"
        next = "its own message, above or in torchrun's report; then the same command again"
        return Lost(named, f"{why} ({found:.200})", next)

    def _why(self, gone: list[str]) -> str | None:
        """What the first of these ranks said before it ended, if it could."""
        with contextlib.suppress(RuntimeError):
            for rank in gone:
                if self._store.check([f"forebay/ended/{rank}"]):
                    return f"ended: {self._store.get(f'forebay/ended/{rank}').decode()}"
        return None

    def refuse_others(self, settings: dict[str, Any]) -> None:
        gathered = self.gather(settings)
        for rank, each in enumerate(gathered):
            for name, value in each.items():
                if value != gathered[0].get(name):
                    found = f"rank 0 has {gathered[0].get(name)!r}"
                    raise self.agree(RequestError(f"rank {rank}, {name} {value!r}", found, "the same command on every rank"))

    def conclude(self, work: Callable[[], int]) -> int:
        try:
            code = work()
            self._leave()
            return code
        except Lost as error:
            # A GPU may still wait for the other: nothing that waits for it comes to an end.
            click.echo(f"forebay: {error}", err=True)
            sys.stdout.flush()
            os._exit(error.exit_code)
        except ForebayError as error:
            if error is self._agreed:
                self._leave()
                if self.rank:
                    return error.exit_code
            else:
                with contextlib.suppress(RuntimeError):
                    self._store.set(f"forebay/ended/{self.rank}", f"{error.asked}: {error.found}")
            raise


def device_of(asked: str, name: str | None, choose: Callable[[str, str | None], str]) -> str:
    """The device of this rank: the GPU of its number on its host, else the CPU. Raises RequestError, MachineError."""
    if name is not None and name != "cpu":
        found = f"torchrun started {launched()} ranks, each of which has the GPU of its number"
        raise RequestError(f"--device {name}", found, "no --device; CUDA_VISIBLE_DEVICES=0,1 torchrun …")
    if choose(asked, name) == "cpu":
        return "cpu"
    import torch

    local, here, gpus = int(os.environ.get(LOCAL, "0")), os.environ.get(LOCAL_WORLD, "?"), torch.cuda.device_count()
    if local >= gpus:
        found = f"PyTorch sees {gpus} GPUs here, and torchrun started {here} ranks"
        raise MachineError(f"rank {os.environ[RANK]}", found, f"torchrun --nproc-per-node {gpus}")
    return f"cuda:{local}"


@contextlib.contextmanager
def joined(torch: Any, device: str) -> Iterator[Ranks]:
    """The ranks, connected, with signals of this process told to all of them."""
    ranks = Ranks(torch, device)
    ranks.listen()
    try:
        yield ranks
    finally:
        ranks.close()


def shares(lookups: list[int], rows: list[int], world: int) -> list[list[int]]:
    """Features of each rank: as even as they get, in a step's work and in rows (memory), of which the worse counts.

    Greedy, large ones first; then features move, or change places, as long as that helps.
    """
    if not 1 <= world <= len(rows):
        found = f"there are {len(rows)} tables, each of which lies on one rank"
        raise RequestError(f"{world} ranks", found, f"torchrun --nproc-per-node {len(rows)}")
    work = [n + VECTOR_LOOKUPS for n in lookups]
    cost = [(n / sum(work), r / sum(rows)) for n, r in zip(work, rows, strict=True)]

    def worst(parts: list[list[int]]) -> tuple[int, float, float]:
        sums = [max(sum(cost[f][k] for f in part) for k in (0, 1)) for part in parts]
        return parts.count([]), max(sums), sum(each * each for each in sums)

    parts: list[list[int]] = [[] for _ in range(world)]
    for feature in sorted(range(len(rows)), key=lambda f: (-max(cost[f]), f)):
        choices = [[[*p, feature] if n == rank else p for n, p in enumerate(parts)] for rank in range(world)]
        parts = min(choices, key=worst)
    best = worst(parts)
    while True:
        step = min(_neighbours(parts), key=worst, default=parts)
        if worst(step) >= best:
            break
        parts, best = step, worst(step)
    return [sorted(part) for part in parts]


def _neighbours(parts: list[list[int]]) -> Iterator[list[list[int]]]:
    """Partitions in which one feature lies elsewhere, or two have changed places; no part is empty."""
    for a, one in enumerate(parts):
        for b, other in enumerate(parts):
            for feature in one if a != b else ():
                for given in (None, *other) if a < b else (None,):
                    if given is None and len(one) == 1:
                        continue
                    moved = list(parts)
                    moved[a] = [f for f in one if f != feature] + ([] if given is None else [given])
                    moved[b] = [f for f in other if f != given] + [feature]
                    yield moved
