"""Sizes, rates and times as people type and read them. Sizes are binary: 64k is 65,536 bytes."""

from __future__ import annotations

import math
import re

from forebay.errors import RequestError

# Bytes of one.
GIB = 1 << 30

# Thirty digits hold any size; Python refuses to convert thousands of them.
_SIZE = re.compile(r"^\s*([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})\s*([kmgtp]?)(?:i?b)?\s*$", re.IGNORECASE)
_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


def parse_bytes(text: str | int, what: str = "size") -> int:
    """`4096`, `64k`, `1MiB`, `1.5g` → bytes. Raises RequestError naming `what`."""
    match = _SIZE.match(str(text))
    if not match:
        raise RequestError(f"{what} {text}", "is not a size", "a number with k, m, g or t, e.g. 128k or 1GiB (binary units)")
    number, unit = match.groups()
    factor = 1 << _SHIFT[unit.lower()]
    value = int(number) * factor if number.isdigit() else int(float(number) * factor)
    if factor == 1 and not number.isdigit() and float(number) != value:
        raise RequestError(f"{what} {text}", "has a part of a byte", f"{what} {value}" if what.startswith("-") else str(value))
    if value >= 1 << 63:
        raise RequestError(f"{what} {text}", "overflows (more than 8 EiB)", "a smaller size")
    return value


def format_bytes(value: int) -> str:
    """The shortest exact binary form: 65536 → `64k`."""
    for unit, shift in (("t", 40), ("g", 30), ("m", 20), ("k", 10)):
        if value and value % (1 << shift) == 0:
            return f"{value >> shift}{unit}"
    return str(value)


_RATE = re.compile(
    r"^\s*(-?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE]-?[0-9]{1,2})?)\s*([KMGT]i?[Bb](?:it)?(?:/s|ps)|)\s*$"
)


def parse_gib_s(text: str, what: str = "rate") -> float:
    """`25` (GiB/s), `25GiB/s`, `100Gb/s` (bits), `12.5GB/s` (decimal) → GiB/s. Raises RequestError naming `what`."""
    match = _RATE.match(text)
    if not match:
        raise RequestError(f"{what} {text}", "is not a number of GiB/s", "25, 25GiB/s, 200Gb/s (bits) or 25GB/s (decimal)")
    number, unit = float(match[1]), match[2]
    if not unit:
        return number
    power = "KMGT".index(unit[0]) + 1
    bits = unit.removeprefix(unit[0]).removeprefix("i").startswith("b")
    return number * (1024.0 if unit[1] == "i" else 1000.0) ** power / (8 if bits else 1) / GIB


def parse_seconds(text: str | float, what: str = "duration") -> float:
    """`10`, `10s`, `2m`, `1h`, `500ms` → seconds."""
    match = re.match(r"^\s*([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})\s*(ms|s|m|h)?\s*$", str(text))
    if not match:
        written = re.match(r"^\s*[0-9.]{1,30}e[+]?[0-9]\s*s?\s*$", str(text), re.IGNORECASE)
        plain = _finite(str(text).strip().lower().removesuffix("s")) if written else math.nan
        next = f"{plain:.0f}" if plain >= 1 and plain == int(plain) else "seconds, or a number with ms, s, m or h"
        raise RequestError(f"{what} {text}", "is not a time", next)
    return float(match[1]) * {"ms": 1e-3, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def _finite(text: str) -> float:
    """The number, not a number for all else: Python's own spellings, as 1_000 and digits of other scripts, too."""
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def parse_percent(text: str | float, what: str = "percentage") -> float:
    """`2%` or `2` → 2.0."""
    value = _finite(str(text).strip().removesuffix("%"))
    if not math.isfinite(value):
        raise RequestError(f"{what} {text}", "is not a percentage", "a number, as 2%")
    return value


def spread(first: int, last: int, step: int, most: int) -> list[int]:
    """The numbers of a range as `--vary` writes them: 1:96 doubles and ends with 96, 8:32:8 goes by steps. `step` 0 doubles.
    More than `most` of them aren't made: one too many tells that there are."""
    values = [first]
    while len(values) <= most and (after := values[-1] + step if step else values[-1] * 2) <= last:
        values.append(after)
    if not step and values[-1] != last and len(values) <= most:
        values.append(last)
    return values
