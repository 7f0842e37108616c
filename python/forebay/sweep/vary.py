"""`--vary FIELD=VALUES`: axes of a sweep from the command line, over a sweep's own points or over a source alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from forebay.errors import RequestError
from forebay.flags import by_name, fields, set_field
from forebay.sweep.file import Setting, Sweep, load, presets
from forebay.units import format_bytes, parse_bytes, spread

NAME = "vary"
_RANGE = re.compile(r"([0-9][^:]*):([^:]+)(?::([^:]+))?")
_NUMBERS = ("integer", "whole", "workers", "share")
_SIZES = ("size", "sizes")
VALUES_MAX = 10_000


def axes(texts: Iterable[str]) -> list[list[Setting]]:
    """An axis for each text, the last changing fastest. RequestError for what is no field, no value or said twice."""
    found: dict[str, list[Setting]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        asked = f"--vary {text}"
        name = name.strip().lstrip("-")
        if name not in ("source", "sources") and name not in by_name():
            raise RequestError(asked, f"'{name}' is not a field of a job", f"one of {', '.join(f.flag for f in fields())}")
        if not equals or not values.strip():
            raise RequestError(asked, "has no values", f"--vary {name}=VALUE,VALUE, or FIRST:LAST")
        key = "sources" if name.startswith("source") else by_name()[name].key
        if key in found:
            raise RequestError(asked, f"{name} is varied twice", f"one --vary {name}=… with all its values")
        found[key] = [_setting(name, value) for part in values.split(",") for value in _spread(name, part.strip(), asked)]
    return list(found.values())


def _setting(name: str, value: str) -> Setting:
    setting: Setting = {}
    set_field(setting, name, value)
    return setting


def _spread(name: str, text: str, asked: str) -> list[str]:
    """The values of `1:96` (doubled, ending with 96) or `8:32:8` (by steps of 8); any other text is one value."""
    kind = by_name()[name].kind if name in by_name() else ""
    match = _RANGE.fullmatch(text)
    if match is None or kind not in (*_NUMBERS, *_SIZES):
        return [text]
    is_size = kind in _SIZES
    try:
        first, last = (parse_bytes(t) if is_size else int(t) for t in match.groups()[:2])
        step = 0 if match[3] is None else parse_bytes(match[3]) if is_size else int(match[3])
    except (RequestError, ValueError):
        raise RequestError(asked, f"{text} is not a range of whole numbers", f"--vary {name}=1:96, or 8:32:8") from None
    if last < first or (match[3] is not None and step < 1) or (step == 0 and first < 1):
        raise RequestError(asked, f"{text} is not a range from the least to the most", f"--vary {name}=1:96, or 8:32:8")
    values = spread(first, last, step, VALUES_MAX)
    if len(values) > VALUES_MAX:
        raise RequestError(asked, f"{text} has more than {VALUES_MAX:,} values", f"--vary {name}={match[1]}:{match[2]}")
    return [format_bytes(v) if is_size else str(v) for v in values]


def asked_for(name: str | None, sources: Sequence[str], vary: Sequence[str]) -> tuple[Sweep, tuple[str, ...]]:
    """The sweep and its sources. With `--vary`, a name that is no sweep's is the first source."""
    if name is None:
        known = ", ".join(presets())
        raise RequestError("sweep", "names no sweep", f"SOURCE --vary workers=1:96; a TOML file, or one of {known}")
    varied = axes(vary)
    if not vary or name in presets() or name.endswith(".toml"):
        return over(load(name), varied), tuple(sources)
    flags = " × ".join(text.partition("=")[0].strip().lstrip("-") for text in vary)
    return Sweep(NAME, "--vary", {}, varied, [], title=flags), (name, *sources)


def over(sweep: Sweep, varied: list[list[Setting]]) -> Sweep:
    """The sweep with these axes in place of its own values of the same fields."""
    if not varied:
        return sweep
    own = {key for axis in varied for key in axis[0]}
    kept = [axis for axis in sweep.matrix if not own & set().union(*axis)]
    return replace(sweep, matrix=[*kept, *varied])


def refuse_settled(settings: dict[str, Any], vary: Sequence[str]) -> None:
    """RequestError for a field that `--set` holds fixed and `--vary` varies."""
    for text in vary:
        name = text.partition("=")[0].strip().lstrip("-")
        if name in by_name() and by_name()[name].key in settings:
            raise RequestError(f"--set {name} with --vary {text}", "contradict each other", "one of them")
