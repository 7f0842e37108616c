"""The engine. JSON text in, JSON text out; see crates/model for the types."""

import builtins
from collections.abc import Callable, Sequence
from typing import final

__all__ = [
    "Pending",
    "Reader",
    "buckets",
    "check",
    "checksum",
    "crc32c",
    "crc32c_on_gpu",
    "device_of",
    "doctor",
    "emulate_check",
    "emulate_datagen",
    "emulate_run",
    "environment",
    "features",
    "files",
    "formats",
    "merge",
    "plan",
    "read_files",
    "read_record",
    "release",
    "run",
    "safetensors_header",
    "schema",
    "sizes_of",
    "stop",
]

def run(job: str, command: list[str], observer: Callable[[str], None] | None = None) -> str:
    """Runs a JobSpec; returns its RunRecord. Raises forebay.errors.*. The GIL is released while it runs;
    `observer` gets a JSON Progress about four times a second, on the calling thread. An exception from the
    observer (KeyboardInterrupt too) stops the run; the record of what was measured is returned with
    result.interrupted true."""

def stop() -> None:
    """Asks the run in progress to end; safe in a signal handler."""

def plan(job: str) -> str:
    """What `run` would do: resolved targets, engine, path, files to be made. Touches nothing."""

def check(job: str) -> str:
    """The job with its defaults, or RequestError."""

def doctor(source: str | None, cufile_json: str | None = None) -> str:
    """The doctor's findings."""

def environment(paths: list[str]) -> str:
    """The environment part of a record."""

def files(spec: str, id: str, observer: Callable[[str], None] | None = None) -> str:
    """Runs a FilesSpec (many-file metadata phases) in DIR/forebay-files-ID; returns its FilesRecord. A
    KeyboardInterrupt ends the run and cleans up, a second one ends the cleaning too."""

def emulate_run(spec: str, command: list[str], observer: Callable[[str], None] | None = None) -> str:
    """Runs an EmulateSpec (JSON); returns its RunRecord with the part `training`. As `run`; the observer gets
    {phase, epoch, epochs, step, steps, t_s, au_pct, gib_s, waiting_ranks, cores_busy}."""

def emulate_check(spec: str) -> str:
    """The spec with its defaults filled in. Raises RequestError for what is wrong with it on any machine."""

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

def merge(records: list[str]) -> str:
    """One record out of those of several hosts that ran together."""

def read_record(text: str) -> str:
    """A record of this or an older schema, brought up to date."""

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
        numbers: builtins.bytes,
        begin: int,
        step: int,
        size: int,
        gpu: int | None,
        at: int,
        hold: object,
        after: Sequence[tuple[int, int]],
    ) -> Pending:
        """As `start`, for `size` bytes from each of `numbers` (64 bits each, in the machine's order) × `step` + `begin`, one
        behind the other from `at` on."""

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

    def report(self) -> tuple[int, int, int, int, int, float]:
        """After the end: (bytes, staged, mapped, direct, uncached, seconds). Raises what failed."""

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

def device_of(address: int) -> int | None:
    """The GPU that an address belongs to; None where CUDA doesn't know it. Raises MachineError without a GPU."""

def release() -> None:
    """Ends the crew of reading threads and gives back its pinned memory; the next read starts it anew."""

def safetensors_header(
    header: bytes, data_bytes: int
) -> tuple[list[tuple[str, str, list[int], int, int]], list[tuple[str, str]]]:
    """(name, dtype, shape, begin, end) of each tensor in the order of the data, and the metadata."""
