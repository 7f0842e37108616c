"""gdsio's flags as one table: the command line, the keys of `.gdsio` files and the help come from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from forebay.errors import RequestError
from forebay.gdsio.request import OPS, Group, Request
from forebay.gdsio.xfer import XFERS
from forebay.units import format_bytes, parse_bytes, parse_percent, parse_seconds

THREADS_MAX = 4096


def _whole(least: int, most: int, example: str) -> Callable[[str, str], int]:
    """Decimal always: gdsio's guide writes the seed as `-k 0308`."""

    def parse(text: str, spelled: str) -> int:
        if not re.fullmatch(r"[0-9]{1,20}", text) or not least <= int(text) <= most:
            raise RequestError(
                f"{spelled} {text}",
                f"is not a whole number from {least:,} to {most:,}",
                f"{spelled} {example}",
            )
        return int(text)

    return parse


def _op(text: str, spelled: str) -> str:
    if text in ("0", "1", "2", "3"):
        return OPS[int(text)]
    if text in OPS:
        return text
    raise RequestError(
        f"{spelled} {text}",
        "is not one of 0 (read), 1 (write), 2 (randread), 3 (randwrite)",
        f"{spelled} {'0' if spelled[0] == '-' else 'read'}",
    )


def _xfer(text: str, spelled: str) -> int:
    if not re.fullmatch(r"[0-7]", text):
        kinds = ", ".join(f"{x.number} {x.name}" for x in XFERS)
        raise RequestError(f"{spelled} {text}", f"is not one of {kinds}", f"{spelled} 0")
    return int(text)


def _sizes(text: str, spelled: str) -> tuple[int, ...]:
    """`64k`, or `MIN:MAX:STEP`; without STEP it is MIN."""
    parts = tuple(parse_bytes(p, spelled) for p in text.split(":"))
    if len(parts) > 3:
        raise RequestError(f"{spelled} {text}", "has more than three parts", f"{spelled} 16k:1M:16k")
    if 0 in parts:
        raise RequestError(f"{spelled} {text}", "holds a size of 0", f"{spelled} 1M")
    if len(parts) == 2:
        parts = (*parts, parts[0])
    if len(parts) == 3 and parts[1] < parts[0]:
        raise RequestError(
            f"{spelled} {text}",
            f"the largest, {format_bytes(parts[1])}, is below the smallest",
            f"{spelled} 16k:1M:16k",
        )
    return parts


def _size(text: str, spelled: str) -> int:
    return parse_bytes(text, spelled)


def _duration(text: str, spelled: str) -> float | None:
    """0 means one pass over the data, as if the flag were absent."""
    return parse_seconds(text, spelled) or None


def _percent(text: str, spelled: str) -> int:
    value = parse_percent(text, spelled)
    if not 0 <= value <= 100 or value != int(value):
        raise RequestError(f"{spelled} {text}", "is not a whole number from 0 to 100", f"{spelled} 70")
    return int(value)


def _switch(text: str, spelled: str) -> bool:
    if text.lower() not in ("0", "1", "yes", "no", "true", "false"):
        raise RequestError(f"{spelled} {text}", "is neither 0 nor 1", f"{spelled} 1")
    return text.lower() in ("1", "yes", "true")


@dataclass(frozen=True)
class Flag:
    """One of gdsio's flags. `field` is Request's or Group's name for it, `key` a job file's."""

    letter: str
    field: str
    key: str | None
    parse: Callable[[str, str], Any] | None
    metavar: str | None
    help: str
    per_group: bool = False


FLAGS = (
    Flag(
        "D",
        "directory",
        "directory",
        None,
        "DIR",
        "Directory of files gdsio.0, gdsio.1 …: one per thread.",
        True,
    ),
    Flag("f", "file", "filename", None, "FILE", "One file, or block device, that all threads share.", True),
    Flag("d", "gpu", "gpu_dev_id", _whole(0, 1023, "0"), "GPU", "GPU, as nvidia-smi counts them.", True),
    Flag("n", "numa", "numa_node", _whole(0, 1023, "0"), "NODE", "NUMA node for threads and memory.", True),
    Flag(
        "w",
        "threads",
        "num_threads",
        _whole(1, THREADS_MAX, "8"),
        "N",
        "Threads; with -D also files. Each has one I/O in flight. Default 1.",
        True,
    ),
    Flag(
        "s",
        "size_bytes",
        "size",
        _size,
        "SIZE",
        "Size of the file (-f) or of each file (-D). Default for reads: as found.",
    ),
    Flag(
        "o", "start_bytes", "start_offset", _size, "SIZE", "Offset of the first byte in each file. Default 0."
    ),
    Flag("i", "io_bytes", "bs", _sizes, "SIZE", "Bytes per I/O, or MIN:MAX:STEP. Default 1M."),
    Flag(
        "x",
        "xfer_number",
        "xfer_type",
        _xfer,
        "0-7",
        "Transfer type: " + ", ".join(f"{x.number} {x.name}" for x in XFERS) + ". Default 0.",
    ),
    Flag("I", "op", "rw", _op, "0-3", "0 read, 1 write, 2 random read, 3 random write. Default 0."),
    Flag("T", "duration_s", "runtime", _duration, "SECONDS", "Duration. Default: one pass over the data."),
    Flag(
        "m",
        "memory",
        None,
        _whole(0, 4, "0"),
        "0-4",
        "Buffers: 0 cudaMalloc, 1 cuMem, 2 cudaMallocHost, 3 malloc, 4 mmap.",
    ),
    Flag("O", "buffered", None, _switch, "0|1", "1: don't use O_DIRECT. Default 0."),
    Flag("V", "verify", "do_verify", _switch, None, "Verify. A write is followed by a read that checks it."),
    Flag(
        "R",
        "random_fill",
        "fill_random",
        _switch,
        None,
        "Fill write buffers with random data (Forebay always does).",
    ),
    Flag("F", "refill", "refill_buffer", _switch, None, "Fill write buffers with new data for each write."),
    Flag(
        "k",
        "seed",
        "random_seed",
        _whole(0, (1 << 63) - 1, "3456"),
        "SEED",
        "Seed of random offsets and of the content.",
    ),
    Flag(
        "U",
        "unaligned",
        "unaligned_random",
        _switch,
        None,
        "Random offsets that need not be multiples of 4 KiB.",
    ),
    Flag(
        "a",
        "align_bytes",
        None,
        _size,
        "SIZE",
        "Alignment of random offsets. Default: the I/O size.",
    ),
    Flag("B", "batch", None, _whole(1, 4096, "8"), "N", "I/Os per batch, with -x 6 and 7."),
    Flag("M", "read_pct", None, _percent, "PCT", "Percentage of reads, with -x 6."),
    Flag("b", "skip_register", "skip_bufregister", _switch, None, "Do not register GPU buffers with cuFile."),
    Flag("p", "nvlink", "enable_nvlinks", _switch, None, "Allow cuFile to use NVLink."),
    Flag("P", "url", "url", None, "URL", "RDMA URL (refused: Forebay has no user-space RDMA)."),
    Flag("J", "per_job", None, _switch, None, "Print statistics of each target and thread on stderr."),
)
BY_FIELD = {f.field: f for f in FLAGS}
BY_KEY = {f.key: f for f in FLAGS if f.key}


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds gdsio's flags to a click command; values arrive as text, under the names of `Flag.field`."""
    for flag in reversed(FLAGS):
        if flag.metavar is None:
            option = click.option(f"-{flag.letter}", flag.field, is_flag=True, default=None, help=flag.help)
        else:
            option = click.option(
                f"-{flag.letter}", flag.field, metavar=flag.metavar, multiple=flag.per_group, help=flag.help
            )
        command = option(command)
    return command


def take(values: dict[str, Any]) -> dict[str, Any]:
    """Removes gdsio's flags that were given from click's `values` and returns them."""
    return {name: value for name in BY_FIELD if (value := values.pop(name, None)) not in (None, ())}


def request(given: dict[str, Any]) -> Request:
    """The request out of `given`, what `take` returned. Raises RequestError naming the flag."""
    fields = {
        name: _parsed(BY_FIELD[name], value) for name, value in given.items() if not BY_FIELD[name].per_group
    }
    refuse_url(given.get("url"), "-P")
    fields.pop("url", None)
    return Request(groups=_groups(given), **fields)


def refuse_url(url: str | None, spelled: str) -> None:
    if url is not None:
        raise RequestError(
            f"{spelled} {url}", "Forebay has no user-space RDMA", "-D DIR or -f FILE on a mounted file system"
        )


def _parsed(flag: Flag, value: Any) -> Any:
    if isinstance(value, bool) or flag.parse is None:
        return value
    return flag.parse(value, f"-{flag.letter}")


def _groups(given: dict[str, Any]) -> tuple[Group, ...]:
    """One group per -D (or -f). The other flags of a group stand once, for all, or once each, in order."""
    targets = [(t, True) for t in given.get("directory", ())] + [(t, False) for t in given.get("file", ())]
    columns: dict[str, list[Any]] = {}
    for name in ("gpu", "numa", "threads"):
        flag = BY_FIELD[name]
        column = [_parsed(flag, text) for text in given.get(name, ())]
        if targets and len(column) not in (0, 1, len(targets)):
            raise RequestError(
                f"-{flag.letter} given {len(column)} times",
                f"there {'is one target' if len(targets) == 1 else f'are {len(targets)} targets'} (-D or -f)",
                f"-{flag.letter} once for all, or once after each target",
            )
        columns[name] = column * len(targets) if len(column) == 1 else column
    return tuple(
        Group(target, is_directory, **{name: column[i] for name, column in columns.items() if column})
        for i, (target, is_directory) in enumerate(targets)
    )
