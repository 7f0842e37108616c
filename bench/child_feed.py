"""Loaders of training data, as bench/child.py asks them: `child_feed.py SIDE FILE ROW_BYTES BATCH ORDER MADE`.

Every side reads the same samples and ends in one contiguous tensor (or array) a batch, endlessly, epoch after epoch; a run takes
batches until its time is over. CPU is that of the whole process tree. MADE is a folder with the formats that some peers need
(WebDataset's shards, Streaming's MDS, ArrayRecord), which `child_feed.py make …` writes.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import mmap
import os
import queue
import resource
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from child import Answer, cpu_s, serve

# Samples of a shard.
SHARD_BYTES = 256 << 20
# Reads by O_DIRECT that are under way, and their bytes: as a drive of this machine wants them, and one behind a network.
DIRECT = (16, 2 << 20)
DIRECT_DEEP = (64, 8 << 20)
# Batches in memory: one in use, one that is asked for, two that are read ahead, as a Loader has.
ROOMS = 4
# Parameters of the C library's mallopt.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
# Of samples that WebDataset and Streaming mix. More of short ones than they make in seconds are no more use to them.
WINDOW_BYTES, WINDOW_SAMPLES_MAX = 96 << 20, 16384


class Case:
    def __init__(self, file: str, row: str, batch: str, order: str, made: str) -> None:
        self.file, self.row, self.batch, self.order, self.made = file, int(row), int(batch), order, Path(made)
        self.rows = os.path.getsize(file) // self.row
        self.shuffled = order != "none"

    @property
    def window(self) -> int:
        return max(self.batch, min(WINDOW_SAMPLES_MAX, WINDOW_BYTES // self.row))


def descendants() -> list[int]:
    """Processes below this one."""
    found, todo = [], [os.getpid()]
    while todo:
        pid = todo.pop()
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                children = [int(n) for n in (task / "children").read_text().split()]
            except OSError:
                continue
            found += children
            todo += children
    return found


def tree_cpu_s() -> float:
    """User and system seconds of this process, of those below it, and of those that have ended."""
    total = cpu_s()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total += ended.ru_utime + ended.ru_stime
    for pid in descendants():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Beside:
    """Time and CPU that aren't of what is measured."""

    def __init__(self) -> None:
        self.seconds, self.cpu_s = 0.0, 0.0

    def __enter__(self) -> None:
        self.began = time.perf_counter(), tree_cpu_s()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self.began[0]
        self.cpu_s += tree_cpu_s() - self.began[1]


BESIDE = Beside()


# Sides ---------------------------------------------------------------------------------------------------


def forebay(case: Case, device: str = "cpu", path: str = "auto") -> Iterator[int]:
    import numpy as np
    from forebay import feed
    from forebay.torch import Loader

    data = feed.rows(case.file, np.dtype((np.uint8, (case.row,))))
    loader = Loader(data, case.batch, shuffle=case.order, device=device, path=path)
    while True:
        for batch in loader:
            yield batch["data"].numel()


def pread(case: Case) -> Iterator[int]:
    """Whole batches into one buffer: what the kernel's own copy costs."""
    fd, room = os.open(case.file, os.O_RDONLY), bytearray(case.row * case.batch)
    while True:
        at = 0
        while moved := os.preadv(fd, [room], at):
            at += moved
            yield moved


def keep_memory() -> None:
    """Has the C library keep what is freed, and use it again. Otherwise new batches take a fault a page, by chance: whatever else
    was allocated decides."""
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_MAX, 0)
    library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def reads_by_two(case: Case) -> Iterator[int]:
    """The floor of reading ahead by two threads: halves of each batch, read into memory used again and again, and no more."""
    done: queue.Queue[int] = queue.Queue(8)
    half, rooms = case.row * case.batch // 2, [mmap.mmap(-1, case.row * case.batch) for _ in range(ROOMS)]

    for room in rooms:
        room.madvise(mmap.MADV_HUGEPAGE)

    def read(turn: int) -> None:
        fd = os.open(case.file, os.O_RDONLY)
        parts = [memoryview(room)[turn * half : (turn + 1) * half] for room in rooms]
        for number in itertools.count():
            at = number % (case.rows // case.batch) * 2 * half
            done.put(os.preadv(fd, [parts[number % ROOMS]], at + turn * half))

    for turn in range(2):
        threading.Thread(target=read, args=(turn,), daemon=True).start()
    while True:
        yield done.get()


def torch_in_order(case: Case, keeps: bool = False) -> Iterator[int]:
    """DataLoader in the main process, over a data set that reads whole batches into a new tensor each; `keeps`: whose memory is
    used again."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    if keeps:
        keep_memory()

    class Batches(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            with open(case.file, "rb", buffering=0) as file:
                while True:
                    batch = torch.empty(case.batch, case.row, dtype=torch.uint8)
                    moved = file.readinto(batch.numpy())
                    if not moved:
                        return
                    yield batch[: moved // case.row]

    while True:
        for batch in DataLoader(Batches(), batch_size=None, num_workers=0):
            yield batch.numel()


def torch_workers(case: Case, workers: int, pin: bool = False) -> Iterator[int]:
    """DataLoader over a mapped file: a batch is gathered at once by NumPy, which is the fastest of its usual ways."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.rows = np.memmap(case.file, np.uint8, "r").reshape(case.rows, case.row)

        def __len__(self) -> int:
            return case.rows

        def __getitems__(self, numbers: list[int]) -> Any:
            if not case.shuffled:
                return torch.from_numpy(np.array(self.rows[numbers[0] : numbers[-1] + 1]))
            return torch.from_numpy(np.take(self.rows, np.asarray(numbers), axis=0))

    more = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    loader = DataLoader(
        Rows(), case.batch, shuffle=case.shuffled, num_workers=workers, collate_fn=same, pin_memory=pin, **more
    )
    while True:
        for batch in loader:
            there = batch.to("cuda:0", non_blocking=True) if pin else batch
            yield there.numel()


def same(batch: Any) -> Any:
    return batch


def webdataset(case: Case, workers: int) -> Iterator[int]:
    import numpy as np
    import torch
    import webdataset as wds

    shards = sorted(str(p) for p in (case.made / "wds").glob("*.tar"))
    made = wds.WebDataset(shards, shardshuffle=len(shards) if case.shuffled else False, workersplitter=split)
    if case.shuffled:
        made = made.shuffle(case.window // max(1, workers))
    made = made.map(lambda sample: np.frombuffer(sample["bin"], np.uint8)).batched(case.batch, collation_fn=np.stack)
    loader = wds.WebLoader(made, batch_size=None, num_workers=workers)
    while True:
        for batch in loader:
            yield torch.as_tensor(batch).numel()


def split(source: Any) -> Any:
    import torch

    worker = torch.utils.data.get_worker_info()
    for number, item in enumerate(source):
        if worker is None or number % worker.num_workers == worker.id:
            yield item


def streaming(case: Case, workers: int) -> Iterator[int]:
    import numpy as np
    import torch
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    class Rows(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            return np.frombuffer(super().__getitem__(at)["x"], np.uint8)

    rows = Rows(local=str(case.made / "mds"), shuffle=case.shuffled, batch_size=case.batch, shuffle_block_size=case.window)
    loader = DataLoader(rows, case.batch, num_workers=workers, collate_fn=stacked)
    while True:
        for batch in loader:
            yield torch.as_tensor(batch).numel()


def stacked(samples: Any) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(samples))


def grain(case: Case, workers: int) -> Iterator[int]:
    """Numbers are shuffled, and a batch of them read at a time: by far faster than record by record."""
    import grain as g
    import numpy as np

    source = g.sources.ArrayRecordDataSource([str(p) for p in sorted((case.made / "ar").iterdir())])

    def read(numbers: Any) -> Any:
        return np.frombuffer(b"".join(source.__getitems__(numbers.tolist())), np.uint8).reshape(len(numbers), -1)

    made = g.MapDataset.range(len(source))
    if case.shuffled:
        made = made.shuffle(seed=0)
    batches = made.batch(case.batch).map(read).repeat()
    batches = batches.to_iter_dataset(g.ReadOptions(num_threads=4, prefetch_buffer_size=8))
    if workers:
        batches = batches.mp_prefetch(g.MultiprocessingOptions(num_workers=workers))
    for batch in batches:
        yield batch.nbytes


def spdl(case: Case) -> Iterator[int]:
    """Threads of one process, which gather out of a mapped file as torch's workers do."""
    import numpy as np
    import torch
    from spdl.pipeline import PipelineBuilder

    rows = np.memmap(case.file, np.uint8, "r").reshape(case.rows, case.row)

    def numbers() -> Iterator[Any]:
        epoch = 0
        while True:
            order = np.random.default_rng(epoch).permutation(case.rows) if case.shuffled else np.arange(case.rows)
            yield from (order[at : at + case.batch] for at in range(0, case.rows, case.batch))
            epoch += 1

    def gather(some: Any) -> Any:
        return torch.from_numpy(np.take(rows, some, axis=0))

    pipeline = PipelineBuilder().add_source(numbers()).pipe(gather, concurrency=2).add_sink(4).build(num_threads=2)
    with pipeline.auto_stop():
        for batch in pipeline:
            yield batch.numel()


def copies_alone(case: Case) -> Iterator[int]:
    """The floor: two threads that copy rows of a mapped file into memory of their own, used again and again, and do no more."""
    import numpy as np

    rows = np.memmap(case.file, np.uint8, "r").reshape(case.rows, case.row)
    done: queue.Queue[int] = queue.Queue(8)

    def copy(turn: int) -> None:
        rooms = [np.ones((case.batch, case.row), np.uint8) for _ in range(4)]
        order = np.random.default_rng(turn).permutation(case.rows)
        whole = case.rows // case.batch
        for number in itertools.count():
            some = order[number % whole * case.batch :][: case.batch]
            # With "raise", rows would be copied twice.
            np.take(rows, some, axis=0, out=rooms[number % 4], mode="clip")
            done.put(rooms[0].size)

    for turn in range(2):
        threading.Thread(target=copy, args=(turn,), daemon=True).start()
    while True:
        yield done.get()


def copies_of_blocks(case: Case) -> Iterator[int]:
    """The floor of mixed blocks: one thread that copies rows of windows, which are there, into memory used again and again."""
    import numpy as np

    # Together far more than a processor's cache.
    in_window = WINDOW_BYTES // case.row
    windows = [np.ones((in_window, case.row), np.uint8) for _ in range(3)]
    rooms = [np.ones((case.batch, case.row), np.uint8) for _ in range(4)]
    mixed = np.random.default_rng(0).permutation(in_window)
    for number in itertools.count():
        for at in range(0, in_window - case.batch + 1, case.batch):
            # With "raise", rows would be copied twice.
            room, rows = rooms[at // case.batch % 4], windows[number % 3]
            yield np.take(rows, mixed[at : at + case.batch], axis=0, out=room, mode="clip").size


def forebay_from_disk(case: Case) -> Iterator[int]:
    """First epochs alone, each a whole one by a new loader, whose file the page cache has let go of: from its making to its last
    batch. What closing it takes isn't of the epoch."""
    from forebay.torch import Loader

    while True:
        with BESIDE:
            forget(case.file)
        moved, loader = 0, Loader(rows_of(case), case.batch, shuffle=case.order)
        with BESIDE:
            if (loader.cached_share() or 0) > 0.01:
                raise RuntimeError(f"{case.file} stays in the page cache: some process has it mapped")
        for batch in loader:
            moved += batch["data"].numel()
            del batch
        with BESIDE:
            loader.close()
        yield moved


# Batches by number ---------------------------------------------------------------------------------------


def forebay_numpy(case: Case) -> Iterator[int]:
    import numpy as np
    from forebay import feed

    loader = feed.Loader(rows_of(case), case.batch, shuffle=case.order)
    while True:
        for batch in loader:
            yield np.from_dlpack(batch["data"]).nbytes


def drawn(case: Case) -> list[Any]:
    """Numbers of the samples of whole batches, in the order of a loader's first epoch."""
    import numpy as np
    from forebay import feed

    with feed.Loader(rows_of(case), case.batch, shuffle=case.order) as loader:
        numbers = np.array(loader.samples_at(0, case.rows // case.batch * case.batch, 0))
    return list(numbers.reshape(-1, case.batch))


def map_style(case: Case) -> Any:
    import torch
    from forebay.datasets import Rows

    return Rows(case.file, (case.row,), torch.uint8)


def rows_numpy(case: Case) -> Iterator[int]:
    import numpy as np
    from forebay.datasets import Rows

    rows, batches = Rows(case.file, (case.row,), np.uint8), drawn(case)
    while True:
        for numbers in batches:
            yield rows[numbers].nbytes


def rows_by_arrays(case: Case) -> Iterator[int]:
    rows, batches = map_style(case), drawn(case)
    while True:
        for numbers in batches:
            yield rows[numbers].nbytes


def rows_by_lists(case: Case) -> Iterator[int]:
    rows, batches = map_style(case), [numbers.tolist() for numbers in drawn(case)]
    while True:
        for numbers in batches:
            yield rows[numbers].nbytes


class Copied:
    """A data set that does nothing but the engine's copies, to tensors that are there: what DataLoader allows, whose own code is
    out of the caches after each batch. It is handed that batch, or where it collates, a single row."""

    def __init__(self, case: Case) -> None:
        import forebay
        import torch
        from forebay.rows import integers

        self.rows, self.row, self.file, self.integers = case.rows, case.row, forebay.open(case.file, prefer="rate"), integers
        tensors = [torch.ones(case.batch, case.row, dtype=torch.uint8) for _ in range(2)]
        self.turns = itertools.cycle([(tensor, tensor.numpy(), [tensor[0]]) for tensor in tensors])

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, numbers: Any) -> Any:
        tensor, room, _ = next(self.turns)
        self.file.gather(numbers, self.row, room)
        return tensor

    def __getitems__(self, numbers: Any) -> Any:
        _, room, first = next(self.turns)
        self.file.gather(self.integers(numbers, "rows"), self.row, room)
        return first


def under_data_loader(case: Case, data: Any, way: str) -> Iterator[int]:
    """`way`: by a sampler of arrays, collated (by a batch sampler of lists), or shuffled by DataLoader itself."""
    from torch.utils.data import DataLoader

    batches = [] if way == "shuffled" else drawn(case)
    if way == "collated":
        batches = [numbers.tolist() for numbers in batches]
    settings: dict[str, Any] = {
        "arrays": {"batch_size": None, "sampler": batches},
        "collated": {"batch_sampler": batches},
        "shuffled": {"batch_size": case.batch, "shuffle": True, "drop_last": True},
    }[way]
    while True:
        for batch in DataLoader(data, num_workers=0, **settings):
            yield case.batch * case.row if isinstance(data, Copied) else batch.nbytes


def features(case: Case) -> Iterator[int]:
    """PyTorch Geometric's interface, as its loaders call it."""
    import torch
    from forebay.graphs import FeatureStore

    store = FeatureStore().add("paper", "x", case.file, (case.row,), torch.uint8)
    batches = [torch.from_numpy(numbers) for numbers in drawn(case)]
    while True:
        for numbers in batches:
            yield store.get_tensor(group_name="paper", attr_name="x", index=numbers).nbytes


def gather_alone(case: Case) -> Iterator[int]:
    """The floor: the engine's copies into memory that is there, by numbers that are there, a call after the other."""
    import forebay
    import numpy as np

    file, batches = forebay.open(case.file, prefer="rate"), drawn(case)
    rooms = [np.ones((case.batch, case.row), np.uint8) for _ in range(2)]
    for turn in itertools.count():
        yield file.gather(batches[turn % len(batches)], case.row, rooms[turn % 2])


def after_an_epoch(batches: Iterator[int], case: Case) -> Iterator[int]:
    """By then the file is mapped, and the page tables are filled."""
    return itertools.islice(batches, case.rows // case.batch, None)


# Into a GPU ----------------------------------------------------------------------------------------------


def forebay_gpu(case: Case, path: str = "auto", gpu: int = 0, ranks: int = 1) -> Iterator[int]:
    """From the sixth epoch on: by then `auto` has had the file registered, where that pays. Of several ranks the share of one, on
    a GPU of its own."""
    import torch
    from forebay.torch import Loader

    torch.cuda.set_device(gpu)
    share = {"rank": gpu, "world": ranks} if ranks > 1 else {}
    loader = Loader(rows_of(case), case.batch, shuffle=case.order, device=f"cuda:{gpu}", path=path, **share)
    for _ in range(6 * ranks):
        for batch in loader:
            del batch
    while True:
        for batch in loader:
            yield batch["data"].numel()


def forebay_first(case: Case) -> Iterator[int]:
    """First epochs alone: each by a new loader, whose file nobody has mapped or registered, from its making to its last batch.
    What closing it takes isn't of the epoch."""
    import torch
    from forebay.torch import Loader

    while True:
        loader = Loader(rows_of(case), case.batch, shuffle=case.order, device="cuda:0")
        for batch in loader:
            yield batch["data"].numel()
        torch.cuda.synchronize()
        with BESIDE:
            loader.close()


def forebay_cold(case: Case) -> Iterator[int]:
    """From the disk, past the page cache, which lets go of the file before each epoch."""
    from forebay.torch import Loader

    loader = Loader(rows_of(case), case.batch, shuffle=case.order, device="cuda:0")
    while True:
        forget(case.file)
        for batch in loader:
            yield batch["data"].numel()


def forebay_cold_filling(case: Case) -> Iterator[int]:
    """From the disk into the page cache. Each epoch is a loader's first: a mapped file stays in the cache."""
    from forebay.torch import Loader

    while True:
        with BESIDE:
            forget(case.file)
            loader = Loader(rows_of(case), case.batch, shuffle=case.order, device="cuda:0", cache="fill")
        for batch in loader:
            yield batch["data"].numel()
            del batch
        with BESIDE:
            loader.close()


def forget(file: str) -> None:
    handle = os.open(file, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def direct(case: Case, threads: int, each: int) -> Iterator[int]:
    """The disk's rate by O_DIRECT: so many threads, each with a piece of its own under way, into host memory."""
    import mmap
    from concurrent.futures import ThreadPoolExecutor

    handle = os.open(case.file, os.O_RDONLY | os.O_DIRECT)
    rooms = [mmap.mmap(-1, each, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE) for _ in range(threads)]
    pieces = os.path.getsize(case.file) // each

    def read(turn: int, piece: int) -> int:
        return os.preadv(handle, [rooms[turn]], piece % pieces * each)

    with ThreadPoolExecutor(threads) as pool:
        under_way = [pool.submit(read, turn, turn) for turn in range(threads)]
        piece = threads
        while True:
            turn = piece % threads
            moved = under_way[turn].result()
            under_way[turn] = pool.submit(read, turn, piece)
            piece += 1
            yield moved


def forebay_nothing(case: Case) -> Iterator[int]:
    """Batches of memory as it is. An "I/O" is a batch."""
    import numpy as np
    from forebay import feed
    from forebay.torch import Loader

    data = feed.rows(f"nil:{os.path.getsize(case.file)}", np.dtype((np.uint8, (case.row,))))
    loader = Loader(data, case.batch, shuffle=case.order, device="cuda:0")
    while True:
        for batch in loader:
            del batch
            yield case.row


def forebay_start(case: Case) -> Iterator[int]:
    """From nothing to the first batch on the GPU. An "I/O" is a start."""
    import torch
    from forebay.torch import Loader

    while True:
        loader = Loader(rows_of(case), case.batch, shuffle=case.order, device="cuda:0")
        loader.take()
        torch.cuda.synchronize()
        loader.close()
        yield case.row


def torch_start(case: Case) -> Iterator[int]:
    """DataLoader, which draws the order of all rows first."""
    while True:
        batches = torch_workers(case, 0, pin=True)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        yield case.row


def on_two_cores(side: Any, case: Case) -> Iterator[int]:
    """A side whose process, from its begin on, may use two of the machine's cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    made: Iterator[int] = side(case)
    return made


def rows_of(case: Case) -> Any:
    import numpy as np
    from forebay import feed

    return feed.rows(case.file, np.dtype((np.uint8, (case.row,))))


def torch_tuned(case: Case) -> Iterator[int]:
    """index_select into two pinned buffers in turn, by all of torch's threads, each copied on by a stream meanwhile."""
    import numpy as np
    import torch

    rows = torch.from_numpy(np.memmap(case.file, np.uint8, "c").reshape(case.rows, case.row))
    wide = 8 if case.row % 8 == 0 else 1
    rows = rows.view(torch.int64) if wide == 8 else rows
    pinned = [torch.empty(case.batch, case.row // wide, dtype=rows.dtype).pin_memory() for _ in range(2)]
    there = [torch.empty_like(p, device="cuda:0") for p in pinned]
    stream, done = torch.cuda.Stream(), [torch.cuda.Event(), torch.cuda.Event()]
    epoch = 0
    while True:
        order = torch.from_numpy(np.random.default_rng(epoch).permutation(case.rows))
        epoch += 1
        for number, at in enumerate(range(0, case.rows - case.batch + 1, case.batch)):
            turn = number % 2
            done[turn].synchronize()
            torch.index_select(rows, 0, order[at : at + case.batch], out=pinned[turn])
            with torch.cuda.stream(stream):
                there[turn].copy_(pinned[turn], non_blocking=True)
                done[turn].record()
            yield case.batch * case.row


def torch_kernel(case: Case) -> Iterator[int]:
    """The floor: PyTorch's kernel of index_select over the mapped file, registered, by numbers that are on the GPU."""
    import numpy as np
    import torch

    file = np.memmap(case.file, np.uint8, "c")
    failed = torch.cuda.cudart().cudaHostRegister(file.ctypes.data, file.nbytes, 2)
    if int(failed):
        raise RuntimeError(f"cudaHostRegister: {failed}")
    words = file[: case.rows * case.row].view(np.int64).reshape(case.rows, case.row // 8)

    class Registered:
        """What PyTorch takes for memory of the GPU, which reads it over the link."""

        __cuda_array_interface__ = {**words.__array_interface__, "data": (file.ctypes.data, False), "version": 2, "strides": None}

    rows = torch.as_tensor(Registered(), device="cuda:0")
    orders = [torch.randperm(case.rows, device="cuda:0")[: 1 << 20] for _ in range(4)]
    out = torch.empty(1 << 20, case.row // 8, dtype=torch.int64, device="cuda:0")
    done = [torch.cuda.Event(blocking=True) for _ in range(2)]
    for turn in itertools.count():
        done[turn % 2].synchronize()
        torch.index_select(rows, 0, orders[turn % 4], out=out)
        done[turn % 2].record()
        yield out.numel() * 8


def gather_gpu(case: Case) -> Iterator[int]:
    """The floor: the engine's kernel over the mapped file, a million rows a call, by numbers that are there."""
    import forebay
    import numpy as np
    import torch

    file = forebay.open(case.file, "mapped")
    orders = [np.random.default_rng(turn).permutation(case.rows)[: 1 << 20] for turn in range(4)]
    outs = [torch.empty(case.row << 20, dtype=torch.uint8, device="cuda:0") for _ in range(2)]
    futures: list[Any] = []
    for turn in itertools.count():
        if len(futures) == 2:
            futures.pop(0).result()
        futures.append(file.gather_async(orders[turn % 4], case.row, outs[turn % 2], stream=-1))
        yield case.row << 20


def torch_loader_gpu(case: Case) -> Iterator[int]:
    """DataLoader at its usual best: a worker a processor, pinned memory, copies that don't block."""
    import torch

    torch.cuda.init()
    return torch_workers(case, min(16, os.cpu_count() or 2), pin=True)


SIDES = {
    "forebay-gpu": forebay_gpu,
    "forebay-gpu-1": lambda case: forebay_gpu(case, gpu=1),
    "forebay-rank-0": lambda case: forebay_gpu(case, gpu=0, ranks=2),
    "forebay-rank-1": lambda case: forebay_gpu(case, gpu=1, ranks=2),
    "forebay-mapped": lambda case: forebay_gpu(case, "mapped"),
    "forebay-first": forebay_first,
    "forebay-cold": forebay_cold,
    "forebay-cold-filling": forebay_cold_filling,
    "forebay-nothing": forebay_nothing,
    "forebay-start": forebay_start,
    "forebay-gpu-2-cores": lambda case: on_two_cores(forebay_gpu, case),
    "torch-tuned-2-cores": lambda case: on_two_cores(torch_tuned, case),
    "torch-kernel-2-cores": lambda case: on_two_cores(torch_kernel, case),
    "gather-2-cores": lambda case: on_two_cores(gather_gpu, case),
    "torch-start": torch_start,
    "direct": lambda case: direct(case, *DIRECT),
    "direct-deep": lambda case: direct(case, *DIRECT_DEEP),
    "torch-tuned": torch_tuned,
    "torch-loader": torch_loader_gpu,
    "forebay": forebay,
    "pread": pread,
    "reads-by-two": reads_by_two,
    "torch-in-order": torch_in_order,
    "torch-in-order-kept": lambda case: torch_in_order(case, keeps=True),
    "torch-0": lambda case: torch_workers(case, 0),
    "torch-2": lambda case: torch_workers(case, 2),
    "webdataset-0": lambda case: webdataset(case, 0),
    "webdataset-2": lambda case: webdataset(case, 2),
    "streaming-0": lambda case: streaming(case, 0),
    "streaming-2": lambda case: streaming(case, 2),
    "grain-0": lambda case: grain(case, 0),
    "grain-2": lambda case: grain(case, 2),
    "spdl": spdl,
    "copies-alone": copies_alone,
    "copies-of-blocks": copies_of_blocks,
    "forebay-from-disk": forebay_from_disk,
    "loader": lambda case: after_an_epoch(forebay(case), case),
    "loader-numpy": lambda case: after_an_epoch(forebay_numpy(case), case),
    "rows": lambda case: after_an_epoch(rows_by_arrays(case), case),
    "rows-numpy": lambda case: after_an_epoch(rows_numpy(case), case),
    "rows-lists": lambda case: after_an_epoch(rows_by_lists(case), case),
    "rows-arrays": lambda case: after_an_epoch(under_data_loader(case, map_style(case), "arrays"), case),
    "rows-collated": lambda case: after_an_epoch(under_data_loader(case, map_style(case), "collated"), case),
    "rows-shuffled": lambda case: after_an_epoch(under_data_loader(case, map_style(case), "shuffled"), case),
    "copied-arrays": lambda case: after_an_epoch(under_data_loader(case, Copied(case), "arrays"), case),
    "copied-collated": lambda case: after_an_epoch(under_data_loader(case, Copied(case), "collated"), case),
    "copied-shuffled": lambda case: after_an_epoch(under_data_loader(case, Copied(case), "shuffled"), case),
    "features": lambda case: after_an_epoch(features(case), case),
    "gather-alone": lambda case: after_an_epoch(gather_alone(case), case),
}


# Formats -------------------------------------------------------------------------------------------------


def make(case: Case) -> None:
    """The samples in the formats of the peers that don't read plain files, made once."""
    shard = max(1, SHARD_BYTES // case.row)
    for name, write in (("wds", write_wds), ("mds", write_mds), ("ar", write_ar)):
        folder, done = case.made / name, case.made / f"{name}.done"
        if done.exists() and done.read_text() == str(os.path.getsize(case.file)):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        try:
            write(case, folder, shard)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        done.write_text(str(os.path.getsize(case.file)))


def samples(case: Case) -> Iterator[bytes]:
    with open(case.file, "rb") as file:
        while sample := file.read(case.row):
            yield sample


def write_wds(case: Case, folder: Path, shard: int) -> None:
    tar: Any = None
    for number, sample in enumerate(samples(case)):
        if number % shard == 0:
            if tar is not None:
                tar.close()
            tar = tarfile.open(folder / f"{number // shard:06}.tar", "w", format=tarfile.USTAR_FORMAT)
        about = tarfile.TarInfo(f"{number:09}.bin")
        about.size = len(sample)
        tar.addfile(about, io.BytesIO(sample))
    tar.close()


def write_mds(case: Case, folder: Path, shard: int) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"x": "bytes"}, size_limit=SHARD_BYTES, exist_ok=True) as out:
        for sample in samples(case):
            out.write({"x": sample})


def write_ar(case: Case, folder: Path, shard: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "samples.array_record"), "group_size:1,uncompressed")
    for sample in samples(case):
        writer.write(sample)
    writer.close()


# Child ---------------------------------------------------------------------------------------------------


def prepare(arguments: Sequence[str]) -> Any:
    case = Case(*arguments[1:6])
    batches = SIDES[arguments[0]](case)
    next(batches)

    def run(request: dict[str, Any]) -> Answer:
        before, began, moved = tree_cpu_s(), time.perf_counter(), 0
        BESIDE.seconds = BESIDE.cpu_s = 0.0
        while time.perf_counter() - began < request["seconds"]:
            moved += next(batches)
        took = time.perf_counter() - began - BESIDE.seconds
        spent = tree_cpu_s() - before - BESIDE.cpu_s
        return {"seconds": took, "bytes": moved, "ios": moved // case.row, "cpu_s": spent}

    return run


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Case(*sys.argv[2:7]))
        raise SystemExit(0)
    raise SystemExit(serve(prepare))
