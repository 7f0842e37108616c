"""What `--dry-run` prints: the engine's plan, key by key, with sizes and lists made readable."""

from __future__ import annotations

from typing import Any

from forebay.bench.summary import bytes_

NOTHING = "nothing was touched (--dry-run)"


def text(plan: dict[str, Any]) -> str:
    """The plan as indented `key  value` lines; a key that ends in `_bytes` is shown as a size."""
    return "\n".join([*_mapping(plan, 0), NOTHING])


def _mapping(values: dict[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    indent = "  " * depth
    width = max((len(_heading(k)) for k in values), default=0) + 2
    for key, value in values.items():
        if value is None or value == {}:
            continue
        heading = indent + _heading(key)
        if isinstance(value, dict):
            lines += [heading, *_mapping(value, depth + 1)]
        elif isinstance(value, list):
            lines += _list(heading, value, depth, width + len(indent))
        else:
            lines.append(f"{heading.ljust(width + len(indent))}{_value(key, value)}")
    return lines


def _list(heading: str, values: list[Any], depth: int, width: int) -> list[str]:
    if not values:
        return [f"{heading.ljust(width)}none"]
    if not any(isinstance(v, (dict, list)) for v in values) and sum(len(str(v)) + 2 for v in values) < 80:
        return [f"{heading.ljust(width)}{', '.join(str(v) for v in values)}"]
    lines = [f"{heading} ({len(values)})"]
    for value in values[:20]:
        lines.append("  " * (depth + 1) + (_inline(value) if isinstance(value, dict) else str(value)))
    if len(values) > 20:
        lines.append("  " * (depth + 1) + f"… and {len(values) - 20} more")
    return lines


def _inline(values: dict[str, Any]) -> str:
    """One member of a list on one line: its first value, then `key value`."""
    shown = [(k, _value(k, v)) for k, v in values.items() if v is not None and v is not False]
    return ", ".join(v if i == 0 else f"{_heading(k)} {v}" for i, (k, v) in enumerate(shown))


def _heading(key: str) -> str:
    for unit in ("_bytes", "_s", "_ms", "_pct"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{bytes_(value)}"
    for unit, word in (("_ms", "ms"), ("_s", "s"), ("_pct", "%")):
        if key.endswith(unit) and isinstance(value, (int, float)):
            return f"{value:g} {word}"
    return str(value)
