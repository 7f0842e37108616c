"""The engine. JSON text in, JSON text out; see crates/model for the types."""

import builtins
from collections.abc import Callable, Sequence
from typing import final

__all__ = [
    "Gateway",
    "Pending",
    "Reader",
    "Server",
    "buckets",
    "check",
    "checkpoint_plan",
    "checkpoint_run",
    "checksum",
    "crc32c",
    "crc32c_on_gpu",
    "device_bytes",
    "device_of",
    "dhchap_secret",
    "discover",
    "doctor",
    "emulate_check",
    "emulate_datagen",
    "emulate_run",
    "environment",
    "features",
    "files",
    "formats",
    "identify",
    "merge",
    "plan",
    "read_files",
    "read_record",
    "release",
    "run",
    "safetensors_header",
    "schema",
    "serve_check",
    "simulate_fleet",
    "sizes_of",
    "snap_check",
    "snap_keep",
    "snap_rpc",
    "snap_verbs",
    "source",
    "stop",
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
    """Runs an EmulateSpec (JSON); returns its RunRecord with the part `training`. As `run`; the observer gets
    {phase, epoch, epochs, step, steps, t_s, au_pct, gib_s, waiting_ranks, cores_busy}. `barrier(epoch, step)` is
    called at the local end of every step, by one thread at a time, and returns once all hosts have ended it."""

def emulate_check(spec: str) -> str:
    """The spec with its defaults filled in. Raises RequestError for what is wrong with it on any machine."""

def simulate_fleet(fleet: str, observer: Callable[[str], None] | None = None) -> str:
    """Plays a Fleet (JSON: hosts, jobs, pools of drives, faults) in virtual time; returns its Outcome. `observer` gets
    {"share": done} about four times a second. Interrupted, it returns what came until then, `interrupted` true."""

def stop() -> None:
    """Asks the run in progress to end; safe in a signal handler."""

def checkpoint_run(
    spec: str,
    command: list[str],
    observer: Callable[[str], None] | None = None,
    barrier: Callable[[], object] | None = None,
) -> str:
    """Runs a CheckpointSpec; returns its RunRecord, with the part `checkpoint`. `barrier` is called before each
    checkpoint, and once more between writing and reading: it returns when every host has called it. Otherwise as
    `run`."""

def checkpoint_plan(spec: str) -> str:
    """What `checkpoint_run` would do: bytes, files, folders. Touches nothing."""

def plan(job: str) -> str:
    """What `run` would do: resolved targets, engine, path, files to be made. Touches nothing."""

def source(uri: str) -> str:
    """What a source's URI says: {scheme, path, made_of, parts}; `path` null where it names no file or folder.

    Looks at nothing.
    """

def tables() -> str:
    """What there is to choose from: {sources: [{scheme, example, what, available}], paths: [{name, what, needs, schemes}]}."""

def check(job: str) -> str:
    """The job with its defaults, or RequestError."""

def doctor(source: str | None, cufile_json: str | None = None) -> str:
    """The doctor's findings."""

def environment(paths: list[str]) -> str:
    """The environment part of a record."""

def files(spec: str, id: str, observer: Callable[[str], None] | None = None) -> str:
    """Runs a FilesSpec (many-file metadata phases) in DIR/forebay-files-ID; returns its FilesRecord. A
    KeyboardInterrupt ends the run and cleans up, a second one ends the cleaning too."""

def emulate_datagen(spec: str, observer: Callable[[str], None] | None = None) -> str:
    """Makes a DatagenSpec's data set; returns its DatagenRecord. `observer` gets a JSON Progress some ten times a second.
    What it raises ends the run and is raised again, with what stays as text in its attribute `kept`."""

def formats() -> str:
    """The formats of emulation's files: [{name, extension, what}]."""

def checksum(spec: str) -> str:
    """Runs a ChecksumSpec (CRC32C of files, on a GPU or the host); returns its ChecksumRecord."""

def crc32c(data: bytes, before: int = 0) -> int:
    """CRC32C of the bytes whose checksum is `before`, and of `data` behind them."""

def crc32c_on_gpu(gpu: int, address: int, bytes: int, stream: int) -> int:
    """CRC32C of `bytes` of memory of GPU `gpu` from `address` on, after what is queued on `stream`. The memory must
    stay as it is meanwhile. RequestError where it isn't that GPU's, MachineError without a GPU or NVRTC."""

def discover(host: str, host_nqn: str | None, timeout_s: float) -> str:
    """What an NVMe/TCP host offers to this host, or to one named `host_nqn`."""

def identify(uri: str, host_nqn: str | None, timeout_s: float) -> str:
    """What the controller that an nvme+tcp: URI names says of itself and its namespaces."""

def dhchap_secret(transform: str) -> str:
    """A new DH-HMAC-CHAP secret, transformed with sha256, sha384 or sha512 before use, or as it is: none."""

def serve_check(text: str, form: str) -> str:
    """A configuration (`form`: toml or json) with its defaults, keys hidden, or RequestError. Opens nothing."""

@final
class Server:
    """An NVMe/TCP and NVMe/RDMA target that serves from its making on. `log`: text, json or off, on stderr."""

    def __new__(cls, text: str, form: str, log: str, warnings_only: bool) -> Server: ...
    def addresses(self) -> list[str]:
        """Where it listens over TCP, with the ports that were free."""

    def rdma_addresses(self) -> list[str]:
        """Those over RDMA."""

    def metrics_address(self) -> str | None: ...
    def stats(self) -> str:
        """What was counted since the start."""

    def reload(self, text: str, form: str) -> str:
        """Adds and removes namespaces until they are those of this configuration; what changed. RequestError where
        more than namespaces differs, and nothing has changed then."""

    def drain(self, timeout_s: float) -> bool:
        """Accepts nothing more, lets commands finish. True: nothing was cut off."""

    def stop(self) -> None:
        """Closes what is left, flushes what was written, waits for the threads."""

def snap_check(text: str, form: str) -> str:
    """A gateway's configuration (`form`: toml or json) with its defaults, or RequestError. Opens nothing."""

def snap_keep(words: list[str], log: str, warnings_only: bool) -> int:
    """Runs a gateway by `words`, and again whenever it is killed. Its exit code. RunError where one after the other ends at
    once."""

def snap_rpc(words: list[str]) -> str:
    """What `forebay snap rpc WORDS` prints: an answer as JSON, or help. RequestError, MachineError where no gateway
    listens, RunError where it ended or took too long."""

def snap_verbs() -> list[tuple[str, list[str]]]:
    """(verb, its flags) of each RPC."""

@final
class Gateway:
    """Drives that hosts may have, from its making on. `log`: text, json or off, on stderr. `rpc`: a path in place of the
    configuration's, or off. `take_over`: in the place of the gateway that runs there."""

    def __new__(
        cls, text: str, form: str, log: str, warnings_only: bool, rpc: str | None, take_over: bool
    ) -> Gateway: ...
    def has_left(self) -> bool:
        """Another process has taken over."""

    def rpc_path(self) -> str | None:
        """Where it takes RPCs."""

    def stats(self) -> str:
        """What was counted since the start."""

    def drain(self, timeout_s: float) -> bool:
        """Takes nothing more from hosts' queues, lets commands finish. True: nothing was cut off."""

    def stop(self) -> None:
        """Lets go of hosts and sources, waits for the threads."""

def merge(records: list[str]) -> str:
    """One record out of those of several hosts that ran together."""

def read_record(text: str) -> str:
    """A record of this or an older schema, brought up to date: fields that it lacks have their defaults, which `missing`
    says, and one without `warnings` is judged. RequestError for what is no record, or one of a newer schema."""

def buckets(histogram: str) -> list[tuple[int, int]]:
    """(ns, count) of each occupied bucket of a record's histogram."""

def schema() -> str:
    """The schema that this build writes."""

def features() -> str:
    """Version, commit, build features as JSON."""

@final
class Reader:
    """An open file. Addresses in, bytes there: forebay.reader checks buffers and keeps them alive."""

    def __new__(cls, path: str, way: str, direct: bool | None = None, once: bool = False) -> Reader:
        """`once`: for one reading, after which `close` lets go of it in the background."""

    def bytes(self) -> int:
        """The file's size now."""

    def start(
        self,
        ranges: Sequence[tuple[int, int, int | None, int]],
        hold: object,
        after: Sequence[tuple[int, int]],
    ) -> Pending:
        """Begins to read (offset, bytes, GPU or None for host memory, address) each. `hold` is let go of at the
        end. `after`: (GPU, stream) pairs whose work so far must end before a byte is written."""

    def gather(
        self,
        numbers: int,
        count: int,
        begin: int,
        step: int,
        size: int,
        gpu: int | None,
        at: int,
        hold: object,
        after: Sequence[tuple[int, int]],
    ) -> Pending:
        """As `start`, for `size` bytes from each of `count` numbers at address `numbers` (64 bits each; they are copied) × `step`
        + `begin`, one behind the other from `at` on. Where all bits of a number are set its place is left as it is."""

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
        """As `gather`, for numbers below `limit` in a GPU's memory, `count` integers of `bytes_each` that their `stream` has
        written by now, and which don't leave it. None where that can't be, or one of them is wrong."""

    def close(self) -> None:
        """Waits for what is being read, and lets go of the file."""

@final
class Pending:
    """A read under way. Dropping it waits for its end."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end; False where `timeout` seconds passed first. Honours signals."""

    def done(self) -> bool: ...
    def cancel(self) -> bool:
        """True if it had not ended; nothing is written once this has returned."""

    def report(self) -> tuple[int, int, int, int, int, float, int]:
        """After the end: (bytes, staged, mapped, direct, uncached, seconds, repeated). Raises what failed."""

    def order(self, gpu: int, stream: int, timeout: float | None = None) -> bool:
        """What is queued on the stream from now on sees the bytes; False where `timeout` seconds passed first."""

    def bell(self) -> int:
        """A descriptor that becomes readable at the end; the caller closes it."""

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
    """Begins to read `sizes[i]` bytes, the whole of `paths[i]`, to `addresses[i]` of GPU `gpus[i]` (one for all where
    there is one)."""

def device_bytes(gpu: int, stream: int, address: int, bytes: int) -> builtins.bytes:
    """So many bytes of a GPU's memory, once the work is done that its stream was given so far."""

def device_of(address: int) -> int | None:
    """The GPU that an address belongs to; None where CUDA doesn't know it. Raises MachineError without a GPU."""

def release() -> None:
    """Ends the crew of reading threads and gives back its pinned memory; the next read starts it anew."""

def safetensors_header(
    header: bytes, data_bytes: int
) -> tuple[list[tuple[str, str, list[int], int, int]], list[tuple[str, str]]]:
    """(name, dtype, shape, begin, end) of each tensor in the order of the data, and the metadata."""
