"""Batches of a data set, read ahead by the engine's threads."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from forebay import _core
from forebay.errors import MachineError, RequestError, RunError
from forebay.feed.dataset import UNNAMED, Dataset, Field, Part, open_dataset
from forebay.feed.samples import Ahead, Samples
from forebay.rows import check_whole

# Variables of launchers: (rank, size) of torchrun, Open MPI, MPICH, MVAPICH and Slurm.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
STATE_VERSION = 1
# Epochs beyond it leave no room to count on.
EPOCH_MAX = (1 << 63) - 1
# Of rows this short a random read from storage brings more than the row.
SHORT_ROW_BYTES = 64 << 10
PAGE = 4096
# Below this share of the files in the page cache, what isn't cached decides the rate.
CACHED_SHARE_MIN = 0.5
# Samples of different sizes count as no longer than this when blocks of them are made.
BLOCK_ROW_BYTES_MAX = 64 << 10


class UncachedRowsWarning(UserWarning):
    """The requested order reads more from storage than the samples have."""


class Loader:
    """Batches of `batch_size` samples by field name, in an order that seed, epoch and position alone decide.

    data        a Dataset (`forebay.feed.rows`), Samples (`forebay.feed.files`), or names of files of a format that says what it
                holds (.npy, .npz, .safetensors, .parquet, .hdf5, .tfrecord, shards .tar, .jpg), or a folder of such
    batch_size  samples of each rank's batch
    shuffle     "rows": any sample may come anywhere; "blocks": blocks of 6 MB in random order, the samples of 16 mixed, which
                reads storage in long pieces; "none": as they lie
    device      "cpu", "pinned" (host memory pinned for the first GPU), "cuda" or "cuda:1"
    path        how bytes reach a GPU, as for `forebay.open`: "auto", "mapped" or "bounce"; or "gds": through cuFile, a call for
                each run of rows
    prefetch    batches that are read ahead; None: 2 to 16 (a GPU: 3), 64 MiB of them, in host memory half of the last-level cache
    drop_last   leave out what is left at the epoch's end when all ranks have had whole batches; otherwise it is divided evenly
                over the ranks, and a rank's last batch may be shorter, or empty where fewer samples than ranks are left
    rank, world of a distributed run; None: as torchrun, MPI or Slurm says, in that order, else one rank
    pin_limit   bytes of memory of all batches together; None: 1 GiB, or what a few batches need
    columns     names of fields: of each sample only their bytes are read
    transform   called with each batch, whose result is handed out instead: decoding, augmentation
    cache       what becomes of data that isn't in the page cache: "fill": it is read there, ahead of batches, so that the next
                epoch finds it; "bypass": it is read past it, in every epoch anew; "auto": fill where the files come to three
                quarters of the memory that is available at most, or where ranks share blocks, what comes
                past it by long reads from the second epoch on; into a GPU bypass

    Iterating hands out one epoch. A batch is a mapping from names to columns, which NumPy, PyTorch, CuPy and JAX take by
    `from_dlpack` without a copy. Its memory is used again once the batch and all arrays made of it are gone, and on a GPU once
    the work is done that their streams were given. Raises RequestError for settings that don't fit, and from the iteration what
    failed, with file and offset; the next call then reads the same batch again.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        shuffle: str = "rows",
        seed: int = 0,
        device: str = "cpu",
        path: str = "auto",
        prefetch: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        pin_limit: int | None = None,
        columns: Iterable[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        cache: str = "auto",
    ) -> None:
        self.dataset: Any = open_dataset(data, columns=columns)
        if transform is not None and not callable(transform):
            raise RequestError(f"transform={transform!r:.80}", "it can't be called", "a function of a batch")
        self.transform = transform
        self.batch_size = at_least(1, batch_size, "batch_size")
        self.shuffle, self.seed, self.drop_last = shuffle, at_least(0, seed, "seed"), bool(drop_last)
        self.rank, self.world = ranks(rank, world)
        self.device, self.cache = str(device), str(cache)
        self.data_hash = f"{self.dataset.identity:016x}"
        self._resumed = False
        self._process = os.getpid()
        differ = isinstance(self.dataset, Samples)
        if differ and memory_of(self.device)[0] != "host":
            found = "samples of different sizes are handed out in host memory"
            raise RequestError(f"device={self.device!r}", found, 'device="cpu", and a copy of its own')
        table: Dataset = order_of(self.dataset, str(shuffle)) if differ else self.dataset
        try:
            self._loader = _core.Loader(
                [(part.name, part.rows, list(part.begins)) for part in table.parts],
                list(table.columns),
                [
                    (f.name, f.column, f.offset, table.columns[f.column][0], f.code, f.bits, f.typestr, list(f.shape))
                    for f in table.fields
                ],
                batch=self.batch_size,
                memory=memory_of(self.device),
                way=path,
                shuffle=str(shuffle),
                seed=self.seed,
                identity=self.dataset.identity,
                rank=self.rank,
                world=self.world,
                drop_last=self.drop_last,
                prefetch=1 if differ else None if prefetch is None else at_least(1, prefetch, "prefetch"),
                limit=None if pin_limit is None or differ else at_least(1, pin_limit, "pin_limit"),
                cache=str(cache),
            )
        except (MachineError, RequestError) as error:
            table.check_unchanged()
            error.next = error.next.replace('path="host" needs no GPU', 'device="cpu" needs none')
            if error.asked.startswith("GPU "):
                error.next = re.sub(r"(?:--gpu |gpu=)(\d+)", r'device="cuda:\1"', error.next)
            raise
        # Its files are open now.
        table.check_unchanged()
        ahead = None if prefetch is None else at_least(1, prefetch, "prefetch")
        limit = None if pin_limit is None else at_least(1, pin_limit, "pin_limit")
        self._ahead = Ahead(self.dataset, self._loader, self.batch_size, ahead, limit) if differ else None
        reported = self.doubt()
        if reported:
            warnings.warn(UncachedRowsWarning(reported), stacklevel=2)

    def __len__(self) -> int:
        """Batches of this rank in an epoch."""
        return int(self._loader.lengths()[1])

    def __iter__(self) -> Iterator[Any]:
        """Hands out the epoch from its begin on; after `load_state_dict` from where that one stood."""
        epoch, position = self._position()
        if position and not self._resumed:
            self._seek(epoch, 0)
        self._resumed = False
        return Epoch(self)

    def take(self) -> Any:
        """The next batch; None at the epoch's end, after which the next epoch begins."""
        batch = self._take()
        return batch if batch is None or self.transform is None else self.transform(batch)

    def _take(self) -> Any:
        try:
            return self._loader.next() if self._ahead is None else self._ahead.take()
        except RunError as error:
            # A read may be done again; a loader's files are those that it was made for.
            if "it changed while it was read" in error.found:
                error.next = "a new Loader of the files as they are"
            raise

    def _position(self) -> tuple[int, int]:
        """Epoch, and position up to which all ranks were handed samples."""
        return self._loader.position() if self._ahead is None else self._ahead.position

    def _seek(self, epoch: int, position: int) -> None:
        (self._loader if self._ahead is None else self._ahead).seek(epoch, position)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what is being read and closes the files. Batches that were handed out stay as they are."""
        if self._ahead is not None:
            self._ahead.close()
        self._loader.close()

    @property
    def samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        return int(self._loader.lengths()[0])

    @property
    def epoch(self) -> int:
        return self._position()[0]

    def set_epoch(self, epoch: int) -> None:
        """Begins with the first batch of this epoch, as torch.utils.data.DistributedSampler would."""
        self._seek(epoch_of(epoch), 0)

    def samples_at(self, position: int, count: int, epoch: int | None = None) -> list[int]:
        """Numbers of the samples at `count` positions of an epoch (default: this one) from `position` on."""
        return list(self._loader.samples_at(self.epoch if epoch is None else epoch, position, count))

    @property
    def hash(self) -> str:
        """16 hexadecimal digits: the sum over all samples that this loader handed out. The sums of all ranks, and of the parts
        of an interrupted run, add up (modulo 2 to the 64) to that of the whole: equal sums are equal streams."""
        return f"{self._loader.hash() if self._ahead is None else self._ahead.hash:016x}"

    @property
    def agreement(self) -> tuple[str, int, str, int, bool]:
        """Data, seed, order, batch size and drop_last: equal on all ranks that share an epoch. Ranks compare it by what they
        have: `assert len(set(comm.allgather(loader.agreement))) == 1` of mpi4py; forebay.torch.Loader does so under
        torch.distributed."""
        return self.data_hash, self.seed, self.shuffle, self.batch_size, self.drop_last

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins, in less than 1 KiB: the same for all ranks, and valid for any number of them."""
        epoch, position = self._position()
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "position": position,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "samples": self.samples,
            "data": self.data_hash,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where a loader of the same data stood, whatever its number of ranks, batch size, device or path.

        Raises RequestError for a state of other data, of another seed or another order.
        """
        if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
            raise RequestError("load_state_dict", "this is no state of this version of Loader", "what state_dict() returned")
        for key, have in (("data", self.data_hash), ("samples", self.samples), ("seed", self.seed), ("shuffle", self.shuffle)):
            if state.get(key) != have:
                found = f"the state is of {key} {state.get(key)!r}, the loader of {have!r}"
                next = "the files that the state is of" if key in ("data", "samples") else f"Loader(…, {key}={state.get(key)!r})"
                raise RequestError("load_state_dict", found, next)
        self._seek(epoch_of(state.get("epoch")), at_least(0, state.get("position"), "position"))
        self._resumed = True

    def record(self, *, verified: int | None = None, interrupted: bool = False) -> dict[str, Any]:
        """The RunRecord of all that was handed out so far: rate, input wait, CPU of this process, bytes by path, order, hash."""
        from forebay.run import typed

        if self._ahead is not None:
            names, counted = list(self.dataset.names), self._ahead.counted()
            differ: dict[str, Any] = json.loads(self._loader.record(typed(), names, verified, interrupted, counted))
            return differ
        # A file whose rows lie in several places is one source.
        sources = list(dict.fromkeys(part.name or "nil:" for part in self.dataset.parts))
        record: dict[str, Any] = json.loads(self._loader.record(typed(), sources, verified, interrupted))
        return record

    def cached_share(self) -> float | None:
        """Share of the files' bytes that the page cache holds now; None where that can't be told."""
        if self._ahead is not None:
            return None
        share: float | None = self._loader.cached_share()
        return share

    def cold(self) -> str:
        """Use of the page cache for data that isn't there, and its reason."""
        fills, why = self._loader.fills_cache()
        if fills:
            return f"what isn't cached is read into the page cache, for the next epoch: {why}"
        return f"what isn't cached comes from storage in every epoch: {why}"

    def doubt(self) -> str | None:
        """Why another order, or another use of the page cache, would read less, if one would."""
        if self._ahead is not None or self._loader.fills_cache()[0]:
            return None
        share = self.cached_share()
        if share is None or share >= CACHED_SHARE_MIN:
            return None
        row = sum(bytes for bytes, _ in self.dataset.columns)
        if self.shuffle != "rows" or row >= SHORT_ROW_BYTES:
            if self.cache == "bypass":
                return None
            return f'{self.cold()}; cache="fill" reads it through the page cache all the same'
        # A row lies in one page more than its length fills, but for where it begins at a page's begin.
        pages = 1 + (row - 1) / PAGE
        return (
            f'shuffle="rows" with {100 * (1 - share):.0f} % of the files not in memory: each sample of {row} bytes is a read of '
            f'{pages * PAGE:.0f} bytes on average, {pages * PAGE / row:.1f} times its own; shuffle="blocks" reads 6 MB at a time'
        )


class Epoch:
    """Batches of a loader up to the end of its epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader: Loader | None = loader

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        batch = None if self._loader is None else self._loader.take()
        if batch is None:
            self._loader = None
            raise StopIteration
        return batch


def order_of(samples: Samples, shuffle: str) -> Dataset:
    """A table of as many samples of which nothing is read: their order, and blocks of about as many as lie in 6 MB."""
    size = min(samples.mean_bytes, BLOCK_ROW_BYTES_MAX) if shuffle == "blocks" else 1
    field = Field(UNNAMED, 0, 0, 1, 8, "|u1", (size,))
    return Dataset((Part(None, len(samples), (0,)),), ((size, size),), (field,), samples.identity)


def at_least(least: int, value: Any, what: str) -> int:
    number = check_whole(value, what, "0 to 2**64 - 1")
    if number < least:
        raise RequestError(f"{what}={number}", f"is below {least}", f"{what}={least}")
    return number


def epoch_of(value: Any) -> int:
    number = at_least(0, value, "epoch")
    if number > EPOCH_MAX:
        raise RequestError(f"epoch={number}", f"is beyond {EPOCH_MAX}", "epoch=0")
    return number


def memory_of(device: str) -> tuple[str, int]:
    """(memory, GPU) of a device's name. Raises RequestError."""
    if device in ("cpu", "host"):
        return ("host", 0)
    if device == "pinned":
        return ("pinned", 0)
    found = re.fullmatch(r"(?:cuda|gpu)(?::(\d+))?", device)
    if found:
        return ("gpu", int(found[1] or current_gpu()))
    raise RequestError(f"device={device!r}", "no such memory", 'device="cpu"; or pinned, cuda, cuda:1')


def current_gpu() -> int:
    """PyTorch's current GPU where a program has it, else the first."""
    torch = sys.modules.get("torch")
    try:
        return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0
    except (AttributeError, RuntimeError):
        return 0


def ranks(rank: int | None = None, world: int | None = None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and number of ranks: as given, else of the launcher that started this process. Raises RequestError."""
    if (rank is None) != (world is None):
        given = "rank" if world is None else "world"
        asked = f"{given}={rank if world is None else world}"
        raise RequestError(asked, "the other of rank and world is missing", "rank=0, world=1")
    if rank is not None and world is not None:
        rank, world = at_least(0, rank, "rank"), at_least(1, world, "world")
        if rank >= world:
            raise RequestError(f"rank={rank}, world={world}", "ranks count from 0", f"rank={world - 1}")
        return rank, world
    for own, size in LAUNCHERS:
        if environment.get(own, "").isdigit() and environment.get(size, "").isdigit():
            return int(environment[own]), max(1, int(environment[size]))
    return 0, 1
