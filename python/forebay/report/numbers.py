"""Numbers as a reader wants them: few digits, one unit, '—' where there is none."""

from __future__ import annotations

from forebay.units import format_bytes, significant
from forebay.units import show_micros as micros

__all__ = ["DASH", "about_bytes", "count", "micros", "percent", "rate", "ratio", "significant", "size", "whole"]

DASH = "—"


def rate(value: float) -> str:
    """GiB/s: two decimals from 1 on, as the papers print it."""
    return f"{value:.2f}" if 1 <= abs(value) < 1000 else significant(value)


def count(value: float) -> str:
    """412345 → 412 k."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 10 or (unit != "k" and abs(value) >= size):
            return f"{significant(value / size)} {unit}"
    return f"{value:,.0f}" if value >= 100 else significant(value)


def whole(value: float) -> str:
    """Counts that are looked up rather than compared: 1,024."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """65536 → 64 KiB."""
    text = format_bytes(int(value))
    return f"{text[:-1]} {text[-1].upper()}iB" if text[-1].isalpha() else f"{text} B"


def about_bytes(value: float) -> str:
    """The nearest unit, three digits: 3221225472 → 3 GiB."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value >= 1 << shift:
            text = significant(value / (1 << shift))
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
    return f"{value:.0f} B"


def percent(share: float) -> str:
    """0.5 → 50 %."""
    return f"{share * 100:.0f} %" if share >= 0.1 or share == 0 else f"{significant(share * 100, 2)} %"


def ratio(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 100 else significant(value)
