"""CRC32C (Castagnoli): `forebay checksum` for files, `forebay.crc32c` for memory."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import click

from forebay import pipes
from forebay.buffers import memory_of
from forebay.errors import RequestError
from forebay.flags import _integer
from forebay.paths import abilities
from forebay.units import GIB

EXAMPLES = """\b
Examples:
  forebay checksum model-*.safetensors
  forebay checksum --path host data.bin --json"""

# Of host memory, what is handed to the engine at once.
PIECE_BYTES = 1 << 20


@click.command("checksum", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--gpu", metavar="N", help="Compute on this GPU. Default: the first GPU, or the host without one.")
@click.option(
    "--path",
    default="auto",
    metavar="PATH",
    help="auto, bounce (through pinned buffers into GPU memory, computed there) or host (no GPU).",
)
@click.option("--workers", metavar="N", help="Number of reading threads. Default: up to eight.")
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout.")
def command(files: tuple[str, ...], gpu: str | None, path: str, workers: str | None, as_json: bool) -> int:
    """What is the CRC32C of these files, computed where the data is going: on the GPU?

    Prints one line for each file: checksum, size, name.
    """
    record = run(spec_of(files, gpu, path, workers))
    if as_json:
        click.echo(json.dumps(record, indent=1))
        return 0
    for row in record["files"]:
        click.echo(f"{row['crc32c']}  {row['bytes']:>14}  {row['file']}")
    click.echo(summary(record), err=True)
    return 0


def spec_of(files: tuple[str, ...], gpu: str | None, path: str, workers: str | None) -> dict[str, Any]:
    """The flags as ChecksumSpec's fields; RequestError names a flag that doesn't fit."""
    can = abilities(path)
    if not can.reads_files or can.needs_gpu:
        raise RequestError(f"--path {path}", "is not one of auto, bounce and host", "--path auto")
    for file in files:
        pipes.refuse_to_read(file)
    spec: dict[str, Any] = {"files": list(files), "host": not can.reaches_gpu}
    if gpu is not None or not can.may_map and can.reaches_gpu:
        spec["gpu"] = natural(gpu or "0", "--gpu")
    if workers is not None:
        spec["workers"] = natural(workers, "--workers")
    return spec


def natural(value: str, flag: str) -> int:
    number = _integer(value, flag)
    if not 0 <= number < 1 << 32:
        raise RequestError(f"{flag} {value}", "is not between 0 and 4,294,967,295", f"{flag} 1")
    return number


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """The record `forebay.checksum/1` of a ChecksumSpec."""
    from forebay import _core

    record: dict[str, Any] = json.loads(_core.checksum(json.dumps(spec)))
    return record


def summary(record: dict[str, Any]) -> str:
    rate = record["throughput_gib_s"]
    pace = (
        ""
        if rate is None
        else f" · {rate:.2f} GiB/s · {record['cpu_s'] * GIB / record['bytes']:.3f} CPU-s/GiB"
    )
    why = f" ({record['reason']})" if record["reason"] else ""
    return f"{record['bytes']:,} bytes in {record['seconds']:.2f} s{pace} · computed on {record['computed_on']}{why}"


def crc32c(buffer: Any) -> int:
    """CRC32C of a buffer's bytes, in their order in memory.

    `buffer` is anything with the buffer protocol, or an array with `__cuda_array_interface__` or DLPack, in one run of
    bytes. What lies on a GPU is summed up there, after what its owner queued. Raises RequestError for what isn't one
    run of bytes, MachineError where the GPU's kernel can't be compiled.
    """
    from forebay import _core

    try:
        view = memoryview(buffer)
    except (TypeError, ValueError):
        memory = memory_of(buffer)
        if memory.gpu is not None:
            return _core.crc32c_on_gpu(memory.gpu, memory.address, memory.bytes, max(memory.stream, 0))
        view = (
            memoryview((ctypes.c_char * memory.bytes).from_address(memory.address))
            if memory.bytes
            else memoryview(b"")
        )
    if not view.c_contiguous:
        raise RequestError("forebay.crc32c", "the buffer is not contiguous", "numpy.ascontiguousarray of it")
    held = view.cast("B") if view.nbytes else memoryview(b"")
    total = 0
    for at in range(0, held.nbytes, PIECE_BYTES):
        total = _core.crc32c(bytes(held[at : at + PIECE_BYTES]), total)
    return total
