"""The engine. JSON text in, JSON text out; see crates/model for the types."""

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy

__all__ = [
    "Batch",
    "Batches",
    "Column",
    "Lent",
    "Loader",
    "NO_SUCH_FLAG",
    "Pending",
    "Reader",
    "answer_for_memory",
    "archive_index",
    "browse",
    "buckets",
    "bytes_of_list",
    "check",
    "checkpoint_bytes",
    "checkpoint_plan",
    "checkpoint_run",
    "checksum",
    "crc32c",
    "crc32c_on_gpu",
    "cufile_answers",
    "device_bytes",
    "device_of",
    "discover",
    "doctor",
    "emulate_check",
    "emulate_datagen",
    "emulate_run",
    "environment",
    "features",
    "files",
    "formats",
    "hdf5_index",
    "identify",
    "kvcache_option",
    "kvcache_plan",
    "kvcache_run",
    "merge",
    "parquet_index",
    "path_abilities",
    "plan",
    "prometheus_text",
    "read_files",
    "read_record",
    "recognise",
    "record_index",
    "record_parts",
    "release",
    "room",
    "run",
    "run_beside_others",
    "safetensors_header",
    "schema",
    "service",
    "service_table",
    "shard_index",
    "simulate_fleet",
    "sizes_of",
    "snap_rpcs",
    "source",
    "source_kind",
    "stop",
    "student_t",
    "tables",
]

def run(job: str, command: list[str], observer: Callable[[str], None] | None = None) -> str:
    """Runs a JobSpec; returns its RunRecord. Raises forebay.errors.*. The GIL is released while it runs;
    `observer` gets a JSON Progress about four times a second, on the calling thread. An exception from the
    observer (KeyboardInterrupt too) stops the run; the record of what was measured is returned with
    result.interrupted true."""

def emulate_run(
    spec: str,
    command: list[str],
    observer: Callable[[str], None] | None = None,
    barrier: Callable[[int, int], object] | None = None,
) -> str:
    """Runs an EmulateSpec (JSON); returns its RunRecord with the section `training`. Like `run`; the observer gets
    {phase, epoch, epochs, step, steps, t_s, au_pct, gib_s, waiting_ranks, cores_busy}. `barrier(epoch, step)` is
    called at the local end of every step, by one thread at a time, and returns once all hosts have finished it."""

def emulate_check(spec: str) -> str:
    """The spec with its defaults filled in. Raises RequestError for what is wrong with it on any machine."""

def simulate_fleet(fleet: str, observer: Callable[[str], None] | None = None) -> str:
    """Simulates a Fleet (JSON: hosts, jobs, pools of drives, faults) in virtual time; returns its Outcome. `observer` gets
    {"share": done} about four times a second. If interrupted, it returns the result so far, with `interrupted` true."""

def run_beside_others(written: list[str]) -> None:
    """This process is one of several of one command that use the same folders at the same time; called once, before any run.
    `written`: paths of files that it isn't alone in writing."""

def answer_for_memory(*, ends: bool = False) -> None:
    """From here on this process, where it is aborted for want of memory or ended by a library, says so and ends with 3.

    `ends`: the program is over, and its exit code its own.
    """

def stop() -> None:
    """Asks the run in progress to end; safe in a signal handler."""

def checkpoint_run(
    spec: str,
    command: list[str],
    observer: Callable[[str], None] | None = None,
    barrier: Callable[[], object] | None = None,
) -> str:
    """Runs a CheckpointSpec; returns its RunRecord, with the section `checkpoint`. `barrier` is called before each
    checkpoint, and once more between writing and reading: it returns when every host has called it. Otherwise like
    `run`."""

def checkpoint_plan(spec: str) -> str:
    """What `checkpoint_run` would do: bytes, files, folders. Changes nothing."""

def checkpoint_bytes(model: str) -> tuple[int, int]:
    """Bytes of the files of a Model (JSON) and of its optimizer's, of one checkpoint by all ranks."""

def kvcache_run(
    spec: str,
    command: list[str],
    observer: Callable[[str], None] | None = None,
    barrier: Callable[[], object] | None = None,
    ranks: Callable[[str], object] | None = None,
    replay: str | None = None,
) -> str:
    """Runs a KvSpec; returns its RunRecord, with the section `kvcache`. `barrier` is called before the first request;
    `ranks` once at the end, with a list of {rank, kvcache, requests, trace, replayed}. `replay`, a Script, is played in
    place of the users. Otherwise like `run`."""

def kvcache_plan(spec: str) -> str:
    """What `kvcache_run` would do: entries, workers, the hash of its requests. Changes nothing."""

def kvcache_option(option: int) -> str:
    """The KvSpec of an option of MLPerf Storage v3.0's closed division."""

def plan(job: str) -> str:
    """What `run` would do: resolved targets, engine, path, files to be created. Changes nothing."""

def source(uri: str) -> str:
    """What a source's URI says: {scheme, made_of, path, host, drive, settings, real_time, bytes, chunk, parts}, null or
    empty for what it doesn't name. Only parses the text.
    """

def source_kind(text: str) -> tuple[str, bool, str | None]:
    """(scheme, whether sources of that kind are reached by a connection, what readers of files read in its place or None for
    the name of a file) of a text that may be a source or not."""

def path_abilities(name: str) -> list[bool] | None:
    """Whether bytes on the data path of that name, which may be `auto`, get to a GPU, only to a GPU, only out of the page cache;
    whether pages of files may be registered, or bytes go by DMA from a device; and whether readers of files take it. None: there
    is no such path."""

def tables() -> str:
    """The engine's tables: {sources: [{scheme, example, what, available, names}], paths: [{name, what, needs, schemes,
    into_gpu}], requests: {job, files, datagen, checkpoint, emulate, kvcache: {fields, defaults}}, rules,
    duration_default_s}.

    A field: {key, flag, kind, metavar, help, tells, ends}, `kind` a word, or {choice: words}.
    """

def check(job: str) -> str:
    """The job with its defaults filled in; raises RequestError if it is invalid."""

def doctor(source: str | None, cufile_json: str | None = None) -> str:
    """The doctor's findings."""

def cufile_answers() -> str:
    """What cuFile says of its configuration. Loads libcufile and opens its driver, which takes up to seconds."""

def environment(paths: list[str]) -> str:
    """The environment part of a record."""

def files(spec: str, id: str, observer: Callable[[str], None] | None = None) -> str:
    """Runs a FilesSpec (many-file metadata phases) in DIR/forebay-files-ID; returns its FilesRecord. A
    KeyboardInterrupt ends the run and cleans up, a second one ends the cleaning too."""

def emulate_datagen(spec: str, observer: Callable[[str], None] | None = None) -> str:
    """Creates a DatagenSpec's data set; returns its DatagenRecord. `observer` gets a JSON Progress some ten times a second.
    An exception from it ends the run and is raised again, with a text about what is kept in its attribute `kept`."""

def formats() -> str:
    """The file formats of emulated training: [{name, extension, what}]."""

def checksum(spec: str) -> str:
    """Runs a ChecksumSpec (CRC32C of files, on a GPU or the host); returns its ChecksumRecord."""

def crc32c(data: bytes, before: int = 0) -> int:
    """CRC32C of `data` appended to bytes whose checksum is `before`."""

def crc32c_on_gpu(gpu: int, address: int, bytes: int, stream: int) -> int:
    """CRC32C of `bytes` bytes of memory of GPU `gpu` at `address`, after the work queued on `stream`. The memory must
    not change in the meantime. RequestError if it isn't that GPU's memory, MachineError without a GPU or NVRTC."""

def discover(host: str, host_nqn: str | None, timeout_s: float) -> str:
    """What a target offers to this host, or to the one named `host_nqn`. `host`: also a nvme+tcp: or nvme+rdma: URI without
    a subsystem."""

def browse(wait_s: float) -> str:
    """The discovery services that announce themselves on the networks of this machine, asked for so long."""

def identify(uri: str, host_nqn: str | None, timeout_s: float) -> str:
    """What the controller at a URI (nvme+tcp:, nvme+rdma:, vfio-user:) reports about itself and its namespaces."""

NO_SUCH_FLAG: str

def service(verb: str, words: list[str], command: list[str], ascii: bool) -> int:
    """Runs `forebay serve` or `forebay snap` with the words behind it, until a signal comes; returns its exit code. `command`
    starts this program again, for `--keep`; `ascii`: the terminal takes nothing else."""

def service_table() -> str:
    """Flags, help and examples of `serve` and `snap`."""

def record_parts() -> str:
    """The tables of a record's parts: [{name, fields: [{name, flag, unit, what}]}]. An empty unit: its fields lie beside the
    others; an empty flag: a setting's own."""

def prometheus_text(families: list[tuple[str, str, str, list[tuple[list[tuple[str, str]], str]]]]) -> str:
    """Families of samples in Prometheus's text format: (name, type, help, [([(label, its value)], value)])."""

def snap_rpcs() -> list[tuple[str, list[str]]]:
    """(verb, its flags) of each RPC."""

def merge(records: list[str]) -> str:
    """Merges the records of several hosts that ran together into one."""

def read_record(text: str) -> str:
    """A record of this or an older schema, converted to this one: missing fields get their defaults, which `missing`
    lists, and a record without `warnings` is judged. RequestError for anything else, or a newer schema."""

def buckets(histogram: str) -> list[tuple[int, int]]:
    """(ns, count) of each occupied bucket of a record's histogram."""

def schema() -> str:
    """The schema that this build writes."""

def student_t(freedom: int, confidence: float) -> float:
    """The t that a Student variable with `freedom` degrees, from 1 on, stays within, either side, with that probability."""

def features() -> str:
    """Version, commit, build features as JSON."""

@final
class Column:
    """Numbers of one name in a batch, (samples, …), by DLPack or the array interfaces."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def address(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, object]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, object]: ...
    def __len__(self) -> int: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...

@final
class Batches:
    """Batches of an open file's rows, each of `shape` and of DLPack's `kind` (code, bits): tensors."""

    def __new__(
        cls,
        file: object,
        layout: tuple[int, int],
        kind: tuple[int, int],
        shape: Sequence[int],
        from_dlpack: Callable[[object], object],
    ) -> Batches: ...
    def __call__(self, rows: object) -> object | None:
        """None, and nothing is done, unless the numbers are a plain list, NumPy array or tensor of 64 bits each, one at least,
        and rows of the file, which is open in this process."""

def room(bytes: int) -> numpy.ndarray[Any, numpy.dtype[numpy.uint8]]:
    """An array of so many bytes, of any content. Long ones' memory is kept for the next once nothing refers to it any more."""

def bytes_of_list(values: object) -> bytes | None:
    """Numbers of a list as 64 bits each. None where one is no plain integer, negative, or too long."""

@final
class Batch:
    """Columns by name. Their memory isn't used again while anything refers to it."""

    @property
    def rows(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def keys(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, key: str, /) -> bool: ...
    def __getitem__(self, key: str, /) -> Column: ...

# (seconds, of them waited), (batches, samples, bytes, hash), (epoch, position), [(ns, batches that took so long)],
# (batches ahead, bytes of memory), (mean bytes of a sample, bytes of all)
_Counted = tuple[
    tuple[float, float],
    tuple[int, int, int, int],
    tuple[int, int],
    list[tuple[int, int]],
    tuple[int, int],
    tuple[int, int],
]

@final
class Loader:
    """Batches of a data set, read ahead; see forebay.feed.Loader."""

    def __new__(
        cls,
        parts: Sequence[tuple[str | None, int, Sequence[int]]],
        columns: Sequence[tuple[int, int]],
        fields: Sequence[tuple[str, int, int, int, int, int, str, Sequence[int]]],
        *,
        batch: int,
        memory: tuple[str, int],
        way: str,
        shuffle: str,
        seed: int,
        identity: int,
        rank: int,
        world: int,
        drop_last: bool,
        prefetch: int | None,
        limit: int | None,
        cache: str,
    ) -> Loader:
        """`parts`: (file or None for nothing to read, rows, first byte of each column). `columns`: (bytes, step). `fields`:
        (name, column, offset, step, DLPack's code, bits, type, shape of a sample)."""

    def next(self) -> Batch | None:
        """The next batch; None at the epoch's end. Raises forebay.errors.*."""

    def seek(self, epoch: int, position: int) -> None: ...
    def position(self) -> tuple[int, int]: ...
    def lengths(self) -> tuple[int, int]:
        """Samples of an epoch over all ranks, and this rank's batches."""

    def samples_at(self, epoch: int, first: int, count: int) -> list[int]: ...
    def hash(self) -> int: ...
    def cached_share(self) -> float | None: ...
    def fills_cache(self) -> tuple[bool, str]: ...
    def record(
        self,
        command: list[str],
        sources: list[str],
        verified: int | None = None,
        interrupted: bool = False,
        elsewhere: _Counted | None = None,
    ) -> str: ...
    def close(self) -> None: ...

@final
class Reader:
    """An open file or source, read to raw addresses: forebay.reader checks buffers and keeps them alive."""

    def __new__(
        cls, path: str, way: str, direct: bool | None = None, once: bool = False, prefer: str = "balance"
    ) -> Reader:
        """`once`: read only once; `close` then releases it in the background. `prefer`: as for forebay.open."""

    @staticmethod
    def of_source(uri: str, way: str, direct: bool | None = None, prefer: str = "balance") -> Reader:
        """Opens what a URI names; a signal whose handler raises ends the wait for it."""

    def bytes(self) -> int:
        """The file's current size; a source's when it was opened."""

    def start(
        self,
        ranges: Sequence[tuple[int, int, int | None, int]],
        hold: object,
        after: Sequence[tuple[int, int]],
    ) -> Pending:
        """Starts reading each (offset, bytes, GPU or None for host memory, address). `hold` is released at the
        end. `after`: (GPU, stream) pairs whose queued work must finish before a byte is written."""

    def gather(
        self,
        numbers: int,
        count: int,
        begin: int,
        step: int,
        size: int,
        limit: int | None,
        gpu: int | None,
        at: int,
        hold: object,
        after: Sequence[tuple[int, int]],
        waits: bool,
    ) -> Pending:
        """Like `start`, for `size` bytes from each of `count` numbers at address `numbers` (64 bits each; they are copied)
        × `step` + `begin`, packed from `at` on. If all bits of a number are set, its destination is left unchanged. With
        `limit`, RequestError unless each number is below it. `waits`: the caller will wait for the end, so that more of what
        is cached is copied before this returns."""

    def load_blocks(
        self,
        slots: int,
        tables: int,
        count: int,
        start: int,
        page_bytes: int,
        layers: int,
        pages_each: int,
        gpu: int,
        base: int,
        pages_of_layer: int,
        by_layer: bool,
        hold: object,
        after: Sequence[tuple[int, int]],
    ) -> Pending:
        """Reads blocks of layers × pages into pages of a GPU's memory. `slots`: the address of `count` 64-bit numbers of blocks,
        which lie from byte `start` on; `tables`: of `pages_each` for each, the pages that it goes to in every layer, of which one
        has `pages_of_layer` from the device address `base` on. `by_layer`: `Pending.wait_group` waits for each."""

    def gather_arrays(
        self, rows: object, row_bytes: object, start: object, out: object, waits: bool
    ) -> Pending | tuple[int, int, int, int, int, float, int] | None:
        """Like `gather`, for rows by their numbers. None, and nothing is done, unless both are plain NumPy arrays, the numbers
        64 bits each and rows of the file, and `out` has room for them. With `waits` the report, if it has ended."""

    def gather_there(
        self,
        gpu: int,
        stream: int,
        numbers: int,
        bytes_each: int,
        signed: bool,
        count: int,
        limit: int,
        begin: int,
        step: int,
        at: int,
        hold: object,
        after: Sequence[tuple[int, int]],
    ) -> Pending | None:
        """Like `gather`, for `count` integers of `bytes_each` bytes, below `limit`, in a GPU's memory, which they don't
        leave; their `stream` must have finished writing them. None if this isn't possible, or one of the numbers is invalid."""

    def close(self) -> None:
        """Waits for reads in flight, and closes the file."""

@final
class Lent:
    """Memory of the host that a GPU writes to by itself: `bytes` at `address`, both whole pages, mapped until `close`."""

    def __new__(cls, gpu: int, address: int, bytes: int) -> Lent: ...
    def fill(
        self, from_: int, to: int, count: int, bytes_each: int, after: Sequence[tuple[int, int]]
    ) -> None:
        """Has the GPU copy `bytes_each` from each of its addresses to each byte of this memory; both are `count` words of 64
        bits, at addresses. Waits until all is there."""

    def close(self) -> None:
        """Takes it back, once the GPU has ended."""

@final
class Pending:
    """A read in flight. Dropping it waits until it has finished."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has finished; False after `timeout` seconds. Handles signals while waiting."""

    def wait_group(self, group: int) -> bool:
        """Waits for a layer of `load_blocks`; False if the load failed, and `report` says why. Handles signals while waiting."""

    def done(self) -> bool: ...
    def cancel(self) -> bool:
        """True if it had not finished; nothing is written once this has returned."""

    def report(self) -> tuple[int, int, int, int, int, float, int]:
        """When finished: (bytes, staged, mapped, direct, uncached, seconds, repeated). Raises its failure."""

    def order(self, gpu: int, stream: int, timeout: float | None = None) -> bool:
        """Work queued on the stream from now on sees the bytes; False after `timeout` seconds."""

    def wakeup(self) -> int:
        """A descriptor that becomes readable when the read has finished; the caller closes it."""

def sizes_of(paths: Sequence[str]) -> list[int]:
    """Sizes of many files."""

def read_files(
    paths: Sequence[str],
    sizes: Sequence[int],
    gpus: Sequence[int | None],
    addresses: Sequence[int],
    hold: object,
    after: Sequence[tuple[int, int]],
) -> Pending:
    """Starts reading `sizes[i]` bytes, the whole of `paths[i]`, to `addresses[i]` on GPU `gpus[i]` (a single one applies
    to all)."""

def device_bytes(gpu: int, stream: int, address: int, bytes: int) -> builtins.bytes:
    """Copies `bytes` bytes from a GPU's memory, after the work queued on the stream."""

def device_of(address: int) -> int | None:
    """The GPU that an address belongs to; None if CUDA doesn't know it. Raises MachineError without a GPU."""

def recognise(head: bytes) -> tuple[str, str] | None:
    """What a file is by its first bytes, and what to do about it; None where they say nothing."""

def shard_index(path: str) -> list[tuple[builtins.bytes, int, int, int]]:
    """(name, bytes of the name up to its extension, offset, bytes) of each file of a sample in a shard of WebDataset."""

def parquet_index(
    path: str, columns: list[str] | None = None
) -> tuple[int, list[tuple[str, str, int, list[tuple[int, int]]]]]:
    """Rows of a Parquet file, and (name, type, bytes of a value, [(values, byte of the first)]) of its plain columns, the named
    or all. Raises RequestError for a column that isn't plain."""

def record_index(path: str) -> list[tuple[int, int]]:
    """(offset, bytes) of the data of each record of a TFRecord file."""

def archive_index(path: str) -> list[tuple[str, int, int, str | None]]:
    """(name, offset, bytes, what its bytes went through or None) of each member of an .npz archive."""

def hdf5_index(
    path: str, columns: list[str] | None = None
) -> list[tuple[str, list[int], str, int, list[tuple[int, int]]]]:
    """(name, sides, NumPy's type, bytes of a row, [(rows, byte of the first)]) of the plain data sets of an HDF5 file's root
    group, the named or all. Raises RequestError for a data set that isn't plain."""

def release() -> None:
    """Ends the reading threads, and frees their pinned memory and what is kept for the next; the next read starts them."""

def safetensors_header(
    header: bytes, data_bytes: int
) -> tuple[list[tuple[str, str, list[int], int, int]], list[tuple[str, str]]]:
    """(name, dtype, shape, begin, end) of each tensor in the order of the data, and the metadata."""
