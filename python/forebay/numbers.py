"""Numbers as people read them, in every table, summary and page: few digits, one unit, a dash for what wasn't measured.

`units` has the other direction, and sizes in the form in which they are typed.
"""

from __future__ import annotations

from forebay.units import format_bytes

# What stands for a value that wasn't measured.
DASH = "—"


def significant(value: float, digits: int = 3) -> str:
    """3.1416 → 3.14, 0.01234 → 0.0123, 12345 → 12,345: so many digits, no exponent above 1e-12."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    for power in range(digits - 1, -12, -1):
        if magnitude >= 10.0 ** (power - 1):
            return f"{value:.{min(digits - power, 9)}f}"
    return f"{value:.2g}"


def figure(value: float | None) -> str:
    """A measured or predicted value for a table: four digits, whole from 100 on; a dash for None."""
    if value is None:
        return DASH
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.3g}"


def rate(value: float) -> str:
    """GiB/s: two decimals from 1 on, as the papers print it."""
    return f"{value:.2f}" if 1 <= abs(value) < 1000 else significant(value)


def ratio(value: float) -> str:
    """A quotient of two figures: 1.07."""
    return f"{value:.2f}" if 0.1 <= value < 100 else significant(value)


def percent(share: float) -> str:
    """0.5 → 50 %."""
    return f"{share * 100:.0f} %" if share >= 0.1 or share == 0 else f"{significant(share * 100, 2)} %"


def short(value: float) -> str:
    """A large count by its order of magnitude: 412345 → 412 k."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 10 or (unit != "k" and abs(value) >= size):
            return f"{significant(value / size)} {unit}"
    return f"{value:,.0f}" if value >= 100 else significant(value)


def whole(value: float) -> str:
    """Counts that are looked up rather than compared: 1,024."""
    return f"{value:,.0f}"


def count(number: int, noun: str) -> str:
    """1 file, 1,024 files."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(value: float) -> str:
    """An exact size, as it was typed: 65536 → 64 KiB."""
    text = format_bytes(int(value))
    return f"{text[:-1]} {text[-1].upper()}iB" if text[-1].isalpha() else f"{text} B"


def bytes_(value: float) -> str:
    """A measured size to three digits: 31.2 GiB; exact where it is short: 64 KiB."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << shift:
            scaled = value / (1 << shift)
            return f"{scaled:.0f} {unit}" if scaled == int(scaled) else f"{significant(scaled)} {unit}"
    return f"{value:.0f} B"


def micros(value: float) -> str:
    """Microseconds in the unit that reads best: 0.5 → 500 ns, 1234 → 1.23 ms."""
    for below, factor, unit in ((1.0, 1e3, "ns"), (1e3, 1.0, "µs"), (1e6, 1e-3, "ms")):
        if value < below:
            return f"{significant(value * factor)} {unit}"
    return f"{significant(value / 1e6)} s"


def seconds(value: float) -> str:
    """A duration: 0.25 → 250 ms, 42 → 42.0 s, 5400 → 1 h 30 min."""
    if value < 0.9995:
        return micros(value * 1e6)
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
