"""Values in fio's job files: sizes, expressions, fio's keywords, and percentages of an existing file.

Only the meaning is shared with fio, out of its documentation and from what it does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fractions import Fraction

VALUE_MAX = (1 << 63) - 1
NO_WHOLE = "a percentage refers to filesize, or to a single existing filename"
_SIZE = re.compile(r"([0-9]{1,19})([kmgtp]?)(i?)b?", re.IGNORECASE)
_HEX = re.compile(r"0x([0-9a-f]{1,16})([kmgtp]?)(i?)b?", re.IGNORECASE)
_KEYWORD = re.compile(r"\$(pagesize|mb_memory|ncpus)(?![A-Za-z0-9_])")
_TOKEN = re.compile(r"\s*(?:([0-9]{1,19}(?:[kmgtp]i?)?b?)|([-+*/()]))", re.IGNORECASE)
_PATTERN = re.compile(r'"([^"]*)"|0[xX]([0-9a-fA-F]+?)(?=0[xX]|[^0-9a-fA-F]|$)|(-?[0-9]{1,10}?)(?=0[xX]|[^0-9]|$)')
_NESTING_MAX = 50
PATTERN_MAX = 512


class Malformed(ValueError):
    """The text is no value of its kind; says what is wrong with it."""


def size(text: str, kb_base: int) -> int:
    """Bytes of `128k`, of `0x20000`, or of an expression in brackets: `(4*1024k)`. Malformed where it is neither, or over
    8 EiB."""
    if text.startswith("("):
        exact = _calculated(text, lambda word: _plain(word, kb_base), Fraction.__truediv__)
        value = int(exact)
    else:
        value = _plain(text, kb_base)
    if value < 0:
        raise Malformed("is below 0")
    if value > VALUE_MAX:
        raise Malformed("overflows (more than 8 EiB)")
    return value


def _plain(text: str, kb_base: int) -> int:
    base = _HEX.fullmatch(text)
    match = base or _SIZE.fullmatch(text)
    if not match or (match[3] and not match[2]):
        raise Malformed("is not a size")
    other = 1000 if kb_base == 1024 else 1024
    value: int = int(match[1], 16 if base else 10) * (other if match[3] else kb_base) ** " kmgtp".index(match[2].lower() or " ")
    return value


def pattern(text: str) -> bytes | None:
    """Returns the bytes that fio's `verify_pattern` repeats: `0xdeadbeef`, `"text"`, whole numbers, or several of them. None
    where it is more."""
    found, rest = bytearray(), text
    while rest:
        part = _PATTERN.match(rest)
        if part is None:
            return None
        quoted, digits, number = part.groups()
        if quoted is not None:
            found += quoted.encode()
        elif digits is not None:
            found += bytes.fromhex("0" * (len(digits) % 2) + digits)
        elif not -(1 << 31) <= int(number) < 1 << 31:
            return None
        else:
            value = int(number) & 0xFFFF_FFFF
            found += value.to_bytes(max((value.bit_length() + 7) // 8, 1), "little")
        rest = rest[part.end() :]
    return bytes(found) if 0 < len(found) <= PATTERN_MAX else None


def keywords(text: str) -> str:
    """`text` with fio's keywords as numbers: $pagesize, $mb_memory (MiB), $ncpus. Around one, as in fio, `+ - * /` calculate
    in whole numbers, without units: `8*$pagesize`."""
    known = {
        "pagesize": lambda: os.sysconf("SC_PAGE_SIZE"),
        "mb_memory": lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        "ncpus": lambda: os.sysconf("SC_NPROCESSORS_ONLN"),
    }
    found = _KEYWORD.sub(lambda match: str(known[match[1]]()), text)
    if found == text or not re.fullmatch(r"[-0-9+*/() ]+", found) or found.isdigit():
        return found
    return str(int(_calculated(found, int, lambda a, b: Fraction(int(a / b)))))


def _calculated(text: str, value: Callable[[str], int], divide: Callable[[Fraction, Fraction], Fraction]) -> Fraction:
    """The value of an expression of `+ - * /` and brackets. Malformed where it is none."""
    tokens = _tokens(text)

    def taken(*wanted: str) -> str | None:
        return tokens.pop(0) if tokens and tokens[0] in wanted else None

    def sum_(depth: int) -> Fraction:
        total = product(depth)
        while sign := taken("+", "-"):
            following = product(depth)
            total = total + following if sign == "+" else total - following
        return total

    def product(depth: int) -> Fraction:
        total = factor(depth)
        while sign := taken("*", "/"):
            following = factor(depth)
            if sign == "/" and following == 0:
                raise Malformed("divides by 0")
            total = total * following if sign == "*" else divide(total, following)
        return total

    def factor(depth: int) -> Fraction:
        if depth > _NESTING_MAX:
            raise Malformed("is nested too deeply")
        if taken("-"):
            return -factor(depth + 1)
        if taken("("):
            inner = sum_(depth + 1)
            if not taken(")"):
                raise Malformed("lacks a closing bracket")
            return inner
        if not tokens or tokens[0] in "+*/)":
            raise Malformed("is not an expression")
        return Fraction(value(tokens.pop(0)))

    found = sum_(0)
    if tokens:
        raise Malformed("is not an expression")
    return found


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Malformed("is not an expression")
        found.append(match[1] or match[2])
        at = match.end()
    return found


def share(text: str) -> int | None:
    """Per cent of `25%`; None where it is no share."""
    match = re.fullmatch(r"([0-9]{1,3})%", text)
    return int(match[1]) if match and int(match[1]) <= 100 else None


def bytes_there(path: str) -> int | None:
    """Returns the bytes of a file or a block device that is there; None where it isn't, or can't be asked."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.seek(0, os.SEEK_END)
    except (OSError, ValueError):
        return None


def part_of(whole: int, size_pct: int, start: int, least: int) -> int:
    """Bytes of that share of a file which begins at `start`: whole I/Os of `least` bytes, and none behind its end."""
    wanted = min(whole * size_pct // 100, max(0, whole - start))
    return wanted - wanted % max(1, least)


def start_of(whole: int, offset_pct: int, align: int) -> int:
    """Returns the end of that share of a file, at the next boundary."""
    return -(-(whole * offset_pct // 100) // max(1, align)) * max(1, align)
