"""Pipes and other streams as the files of a command.

A FIFO that has a name in a file system is refused: opening it waits for its other end, for ever where nobody has that open.
What the shell opened already (`<(…)`, /dev/stdin, /dev/fd/N) doesn't wait.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from pathlib import Path
from typing import IO

from forebay.errors import RequestError

_OPEN = re.compile(r"/dev/(?:stdin|stdout|stderr|fd/(\d+))|/proc/self/fd/(\d+)")
PIECE_BYTES = 64 << 10
STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
STDIN, STDOUT = "/dev/stdin", "/dev/stdout"


def is_fifo(path: str | Path) -> bool:
    """Returns whether it is a FIFO in a file system, itself or by links."""
    try:
        if not stat.S_ISFIFO(os.stat(path).st_mode) or _OPEN.fullmatch(os.path.normpath(path)):
            return False
        # Where /proc/self/fd leads to a pipe of the shell's, that is the name of nothing.
        return stat.S_ISFIFO(os.lstat(os.path.realpath(path)).st_mode)
    except (OSError, ValueError):
        return False


def refuse_to_read(path: str | Path, asked: str | None = None) -> None:
    """RequestError for a FIFO. `asked`: what names it in the message."""
    if is_fifo(path):
        found = "is a FIFO, and to open it would wait until something writes to it"
        raise RequestError(asked or str(path), found, f"a file; or cat {path} | forebay …, with /dev/stdin as the file")


def refuse_to_write(path: str | Path, asked: str) -> None:
    """Likewise for what is written, and for a link that leads nowhere: whoever made it meant another file than a new one."""
    if os.path.islink(path) and not os.path.exists(path):
        target = os.path.realpath(path)
        raise RequestError(asked, f"is a link to {target}, which doesn't exist", f"{target}, or rm {path}")
    if is_fifo(path):
        found = "is a FIFO, and to open it would wait until something reads from it"
        raise RequestError(asked, found, f"a file; or >(cat > {path}) in bash")


def readable(path: str) -> str:
    """`-` means standard input, as hands type it."""
    return STDIN if path == "-" else path


def up_to(file: IO[bytes], most: int) -> bytes:
    """The rest of an open file, of one that is longer than `most` bytes that many and one more.

    `read(most + 1)` would take memory for as many at once, whatever the file's length.
    """
    parts, left = [], most + 1
    expected = os.fstat(file.fileno()).st_size + 1
    while left > 0 and (part := file.read(min(left, max(expected, PIECE_BYTES)))):
        parts.append(part)
        left -= len(part)
        expected = 0
    return parts[0] if len(parts) == 1 else b"".join(parts)


def refuse_dash(path: str | Path, asked: str, next: str) -> None:
    """RequestError for `-` where a file is meant. `next`: how to get the same on standard output."""
    if str(path) == "-":
        found = "stands for standard output, and this is saved in a file"
        raise RequestError(asked, found, f"{next}; or ./- for a file of that name")


def descriptor_of(path: str | Path) -> int | None:
    """Returns the descriptor that a name of an open file stands for: /dev/stdout, /dev/fd/N."""
    name = os.path.normpath(path)
    found = _OPEN.fullmatch(name)
    if found is None:
        return None
    return STANDARD[name] if name in STANDARD else int(found[1] or found[2])


def write(descriptor: int, content: bytes) -> None:
    """To what is open: behind what has been printed there, and in place of nothing."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class Nowhere(io.TextIOWrapper):
    """Standard output in the place of a closed one: it takes what is printed, and knows that it was lost."""

    lost = False

    def write(self, text: str) -> int:
        self.lost = self.lost or bool(text)
        return super().write(text)


def nowhere() -> Nowhere:
    return Nowhere(open(os.devnull, "wb"), encoding="utf-8")  # noqa: SIM115 - for good
