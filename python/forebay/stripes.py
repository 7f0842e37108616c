"""Stripes by the text of their URI, for those who read records and have no engine."""

from __future__ import annotations


def members(source: str) -> int:
    """Of a stripe, as its URI counts them; 0 for any other source."""
    if not source.startswith("stripe:"):
        return 0
    settings = source.removeprefix("stripe:").lstrip("?").split("&")
    return sum(setting.partition("=")[0] == "m" for setting in settings)
