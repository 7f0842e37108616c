"""Pipes and other streams as the files of a command.

A FIFO that has a name in a file system is refused: opening it waits for its other end, for ever where nobody has that open.
What the shell opened already (`<(…)`, /dev/stdin, /dev/fd/N) doesn't wait.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from forebay.errors import RequestError

_OPEN = re.compile(r"/dev/(?:stdin|stdout|stderr|fd/\d+)|/proc/self/fd/\d+")


def is_fifo(path: str | Path) -> bool:
    """Whether it is a FIFO in a file system, itself or by links."""
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
    """Likewise for what is written."""
    if is_fifo(path):
        found = "is a FIFO, and to open it would wait until something reads from it"
        raise RequestError(asked, found, f"a file; or >(cat > {path}) in bash")
