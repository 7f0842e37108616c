"""Output in ASCII, where the locale is C or POSIX: a terminal or log with such a locale may not accept UTF-8.

Python itself takes such a locale for UTF-8 (PEP 538, 540), and click rewraps a stream that calls itself ASCII. So the streams
stay UTF-8, and what is written to them as text gets a stand-in for each other character. Bytes (tables, reports) are left alone.
"""

from __future__ import annotations

import io
import os
import sys

STAND_INS = str.maketrans(
    {
        "·": "-", "→": "->", "←": "<-", "×": "x", "…": "...", "÷": "/", "–": "-", "—": "-", "−": "-", "≤": "<=", "≥": ">=",
        "≈": "~", "µ": "u", "±": "+/-", "²": "^2", "³": "^3", "Σ": "sum", "°": " deg", "“": '"', "”": '"', "’": "'", "é": "e",
        "▁": "_", "▂": ".", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "█": "#", "░": ".", "‹": "<", "›": ">",
        **dict.fromkeys("│┃║", "|"), **dict.fromkeys("─━═", "-"), **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛┡┩╇╈┳┻", "+"),
    }
)  # fmt: skip


def wanted() -> bool:
    """Returns whether the caller's locale is C or POSIX by name. One that isn't set says nothing; Python's own settings come
    first."""
    if os.environ.get("PYTHONIOENCODING") or os.environ.get("PYTHONUTF8"):
        return False
    names = [os.environ.get("LC_ALL"), _ctype_as_given(), os.environ.get("LANG")]
    return next((name for name in names if name), "") in ("C", "POSIX")


def _ctype_as_given() -> str | None:
    """LC_CTYPE as the process was started with it: Python may have set it since (PEP 538)."""
    known = os.environ.get("LC_CTYPE")
    if known not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return known
    try:
        with open("/proc/self/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return known
    return next((os.fsdecode(w).partition("=")[2] for w in words if w.startswith(b"LC_CTYPE=")), None)


def plain(text: str) -> str:
    """`text` in ASCII; a character without a stand-in, as in a file's name, is escaped."""
    return text if text.isascii() else text.translate(STAND_INS).encode("ascii", "backslashreplace").decode()


class Plain(io.TextIOWrapper):
    """A standard stream that takes any text and writes ASCII."""

    def write(self, text: str) -> int:
        super().write(plain(text))
        return len(text)


def streams() -> None:
    """Puts one in the place of stdout and stderr, over the same descriptors."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if not isinstance(old, io.TextIOWrapper):
            continue
        old.flush()
        raw = open(old.fileno(), "wb", closefd=False)  # noqa: SIM115 - for good
        setattr(sys, name, Plain(raw, encoding="utf-8", line_buffering=old.line_buffering, write_through=old.write_through))
