"""Files that plans write: written completely or not at all, and replacing only an older one of the same kind."""

from __future__ import annotations

import os
import re
from pathlib import Path

from forebay import pipes
from forebay.errors import RequestError

# How the file of each kind begins, within its first bytes.
CALIBRATION = re.compile(rb'\s*\{\s*"schema"\s*:\s*"forebay\.calibration/')
TABLE = re.compile(rb"[^\n]*_p90,bottleneck\r?\n")
PAGE = re.compile(rb'(?s).*<meta name="generator" content="forebay plan">')
BACKTEST = re.compile(rb"# How good the planner is\n")
LOOKED_AT_BYTES = 64 << 10


def check(flag: str, path: str, kind: re.Pattern[bytes], inputs: tuple[str, ...] = ()) -> None:
    """Refuses, before anything is computed, a folder, an input, and a file that isn't of this kind.

    A device, a pipe or a link to one is written to. RequestError names `flag`.
    """
    target = Path(path)
    if target.is_dir():
        raise RequestError(f"{flag} {path}", "is a folder", f"{flag} {target / 'NAME'}")
    pipes.refuse_dash(path, f"{flag} {path}", f"{flag} {pipes.STDOUT}")
    pipes.refuse_to_write(path, f"{flag} {path}")
    if not target.is_file() or pipes.descriptor_of(path) is not None:
        return
    if any(os.path.exists(one) and target.samefile(one) for one in inputs):
        raise RequestError(f"{flag} {path}", "is one of the inputs", f"another {flag}")
    if not _is_of(target, kind):
        raise RequestError(
            f"{flag} {path}", "exists and wasn't written by this command, so it isn't replaced", f"another name, or: rm {path}"
        )


def write(flag: str, path: str, text: str, kind: re.Pattern[bytes], inputs: tuple[str, ...] = ()) -> None:
    """A reader never sees half a file. RequestError where `check` refuses, or where it can't be written."""
    # Not before there is a file to write: it brings all of bench, a fifth of a plan's start.
    from forebay.bench.save import unwritable, write_whole

    check(flag, path, kind, inputs)
    try:
        write_whole(path, text.encode(), lambda there: _is_of(there, kind))
    except OSError as error:
        raise unwritable(f"{flag} {path}", error) from None


def _is_of(target: Path, kind: re.Pattern[bytes]) -> bool:
    """An empty file is of any kind."""
    try:
        with target.open("rb") as file:
            head = file.read(LOOKED_AT_BYTES)
    except OSError:
        return False
    return not head or bool(kind.match(head))
