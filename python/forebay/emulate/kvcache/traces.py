"""Traces of requests to serving engines: Mooncake's JSON lines, the reference's CSV and BurstGPT's, plain, gzip or zstd.

Each is read line by line; what can't be right is a RequestError with the line's number.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from forebay import pipes
from forebay.errors import MachineError, RequestError

LINE_BYTES_MAX = 16 << 20
# Tokens that an id of Mooncake's stands for.
BLOCK_TOKENS = 512
# No model's context is near this.
TOKENS_MAX = 100_000_000
REQUESTS_MAX = 20_000_000
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
REFERENCE = "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase"
BURST = "Timestamp,Model,Request tokens,Response tokens"


@dataclass(frozen=True)
class Request:
    """One request: its blocks in the order of its prompt, each an id (None: nobody else has it) and its size, in tokens or, where
    `in_bytes`, bytes. `reads` and `writes`: whether it looks for them, and leaves them behind."""

    line: int
    at_s: float
    blocks: tuple[tuple[Any, int], ...]
    in_bytes: bool = False
    reads: bool = True
    writes: bool = True


def read(path: str) -> tuple[str, Iterator[Request]]:
    """The kind of a trace (`mooncake`, `reference`, `burstgpt`) and its requests, in order of time."""
    lines = _Lines(path)
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        return "mooncake", lines.checked(_mooncake(lines, first))
    if first.startswith(REFERENCE):
        return "reference", lines.checked(_table(lines, 6, _reference))
    if first.startswith(BURST):
        return "burstgpt", lines.checked(_table(lines, None, _burst))
    found = "is empty" if not first.strip() else f"begins neither with {{ nor with {REFERENCE} or {BURST}"
    raise RequestError(f"trace {path}", found, "a trace of Mooncake's (JSON lines), of the reference's or of BurstGPT's (CSV)")


class _Lines:
    """The lines of a file as text, counted."""

    def __init__(self, path: str) -> None:
        self.path, self.number = path, 0
        path = pipes.readable(path)
        pipes.refuse_to_read(path, f"trace {path}")
        try:
            # Once: of a pipe, what was read is gone.
            self._file = self._unpacked(path, open(path, "rb"))
        except (OSError, ValueError) as error:
            raise RequestError(f"trace {path}", getattr(error, "strerror", None) or str(error), "a file that exists") from None

    def _unpacked(self, path: str, packed: io.BufferedReader) -> Any:
        begins = packed.peek(4)
        if begins.startswith(GZIP):
            return gzip.open(packed, "rb")
        if not begins.startswith(ZSTD):
            return packed
        try:
            return io.BufferedReader(_Frames(packed, importlib.import_module("zstandard")), _Frames.PIECE)
        except ModuleNotFoundError:
            reported = "is packed with zstd; that needs Python's module zstandard, which isn't installed"
            raise MachineError(f"trace {path}", reported, "pip install zstandard, or zstd -d") from None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.number += 1
        try:
            line = self._file.readline(LINE_BYTES_MAX + 1)
        except (OSError, EOFError, zlib.error) as error:
            whole = "gzip -t or zstd -t says what is there; fetch it again"
            raise RequestError(f"trace {self.path} line {self.number}", f"can't be unpacked: {error}", whole) from None
        if not line:
            self._file.close()
            raise StopIteration
        if len(line) > LINE_BYTES_MAX:
            raise self.wrong("is longer than 16 MiB")
        try:
            return line.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise self.wrong("isn't UTF-8 text") from None

    def wrong(self, found: str) -> RequestError:
        return RequestError(f"trace {self.path} line {self.number}", found, "a trace without it, or head and tail around it")

    def checked(self, requests: Iterator[Request]) -> Iterator[Request]:
        last = -math.inf
        for count, request in enumerate(requests, 1):
            if request.at_s < last:
                raise self.wrong(f"goes back in time, to {request.at_s:g} s after {last:g} s; sort the trace by its times")
            if count > REQUESTS_MAX:
                raise self.wrong(f"is beyond {REQUESTS_MAX:,} requests")
            last = request.at_s
            yield request

    def tokens(self, value: Any, what: str) -> int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 < value <= TOKENS_MAX:
            raise self.wrong(f"has {what} {str(value)[:40]}, not a whole number from 1 to {TOKENS_MAX:,}")
        return value

    def time(self, value: Any, unit_s: float) -> float:
        try:
            found = float(value) * unit_s if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not 0 <= found < 1e12:
            raise self.wrong(f"has the time {str(value)[:40]}")
        return found


class _Frames(io.RawIOBase):
    """What a zstd file holds: frames, one behind another. The module's own stream has no lines, ends with the first frame, and
    doesn't tell a file that was cut off from a whole one."""

    PIECE = 1 << 16

    def __init__(self, packed: io.BufferedReader, zstandard: Any) -> None:
        self._zstandard, self._file = zstandard, packed
        self._frame: Any = None
        self._packed, self._plain = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            # Little at a time: it may unpack to thirty thousand times as much.
            packed = self._packed or self._file.read(4096)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the file ends within a frame")
                return 0
            self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
            try:
                self._plain = memoryview(self._frame.decompress(packed))
            except self._zstandard.ZstdError as error:
                raise OSError(str(error)) from None
            self._packed = self._frame.unused_data
            self._frame = None if self._frame.eof else self._frame
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _mooncake(lines: _Lines, first: str) -> Iterator[Request]:
    line: str | None = first
    while line is not None:
        if line.strip():
            yield _mooncake_request(lines, line)
        line = next(lines, None)


def _mooncake_request(lines: _Lines, line: str) -> Request:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        half = "" if line.endswith("\n") else ": the trace ends within it"
        raise lines.wrong(f"is no JSON document{half}") from None
    if not isinstance(found, dict) or not {"timestamp", "input_length", "hash_ids"} <= found.keys():
        raise lines.wrong("is no object with timestamp, input_length and hash_ids")
    length, ids = lines.tokens(found["input_length"], "an input_length of"), found["hash_ids"]
    if not isinstance(ids, list) or not all(isinstance(each, (int, str)) for each in ids):
        raise lines.wrong("has hash_ids that are no list of numbers")
    blocks = -(-length // BLOCK_TOKENS)
    if len(ids) != blocks:
        raise lines.wrong(f"has {len(ids)} hash_ids for {length} tokens, which are {blocks} blocks of {BLOCK_TOKENS}")
    last = length - (blocks - 1) * BLOCK_TOKENS
    sizes = [BLOCK_TOKENS] * (blocks - 1) + [last]
    return Request(lines.number, lines.time(found["timestamp"], 1e-3), tuple(zip(ids, sizes, strict=True)))


def _table(lines: _Lines, width: int | None, made: Callable[[_Lines, list[str]], Request | None]) -> Iterator[Request]:
    for line in lines:
        if not line.strip():
            continue
        try:
            [cells] = csv.reader([line])
        except (csv.Error, ValueError) as error:
            raise lines.wrong(f"is no line of a table: {error}") from None
        if len(cells) < 4 or (width is not None and len(cells) != width):
            raise lines.wrong(f"has {len(cells)} columns" + ("" if width is None else f", not {width}"))
        request = made(lines, cells)
        if request is not None:
            yield request


def _reference(lines: _Lines, cells: list[str]) -> Request:
    """One entry that was read or written."""
    time, operation, size, _, key, _ = cells
    if operation not in ("Read", "Write"):
        raise lines.wrong(f"has the operation {operation[:40]}, not Read or Write")
    if not size.isdecimal() or not 0 < int(size) < 1 << 50:
        raise lines.wrong(f"has {size[:40]} bytes")
    is_read = operation == "Read"
    return Request(lines.number, lines.time(time, 1.0), ((key, int(size)),), True, is_read, not is_read)


def _burst(lines: _Lines, cells: list[str]) -> Request | None:
    """A prompt that nobody shares: the trace has no ids. One without tokens was a failure, and asks for nothing."""
    text = cells[2].strip().removesuffix(".0")
    if text == "0":
        return None
    length = lines.tokens(int(text) if text.isdecimal() and len(text) < 20 else text, "request tokens of")
    sizes = [BLOCK_TOKENS] * (length // BLOCK_TOKENS) + ([length % BLOCK_TOKENS] if length % BLOCK_TOKENS else [])
    return Request(lines.number, lines.time(cells[0], 1.0), tuple((None, size) for size in sizes))
