"""The settings of one section, and the syntax of their values."""

from __future__ import annotations

import re
from typing import Any

from forebay.errors import RequestError
from forebay.fio import values

# fio's units of time in seconds.
SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "msec": 1e-3, "us": 1e-6, "usec": 1e-6}
# Units that people type and fio takes for others, without a word: `1sec` is 1 µs there.
_MEANT = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "hour": "h", "hours": "h"}


def _meant_time(text: str, unit: str) -> str:
    """A time as fio takes it that is likely meant by `text`: whole numbers, in fio's units."""
    match = re.fullmatch(r"([0-9]{0,9}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text.lower())
    known = match and _MEANT.get(match[2], match[2] or unit)
    if not match or not match[1] or known not in SECONDS:
        return "30s"
    microseconds = round(float(match[1]) * SECONDS[known] * 1e6)
    for name in ("d", "h", "m", "s", "ms"):
        if microseconds and microseconds % round(SECONDS[name] * 1e6) == 0:
            return f"{microseconds // round(SECONDS[name] * 1e6)}{name}"
    return f"{microseconds}us"


class Settings:
    """A section's settings that nobody took yet (`left`), and what was made of the others."""

    def __init__(self, name: str, settings: dict[str, str]) -> None:
        self.name, self.left = name, dict(settings)
        self.fields: dict[str, Any] = {}
        self.unsupported: list[str] = []
        self.notes: list[str] = []
        # What was typed of holes.
        self.hole = ""
        self.kb_base = self.number("kb_base", 1024)
        if self.kb_base not in (1000, 1024):
            raise self.wrong("kb_base", str(self.kb_base), "is neither 1000 nor 1024", "kb_base=1024")

    def leave_out(self, key: str, value: str, why: str) -> None:
        self.unsupported.append(f"{key}={value}: {why}")

    def wrong(self, key: str, value: str, found: str, next: str) -> RequestError:
        return RequestError(f"[{self.name}] {key}={value}", found, next)

    def number(self, key: str, default: int) -> int:
        text = self.left.pop(key, None)
        if text is None:
            return default
        exact = re.fullmatch(r"([0-9]{1,19})|0[xX]([0-9a-fA-F]{1,16})", text)
        value = (int(exact[1]) if exact[1] else int(exact[2], 16)) if exact else values.VALUE_MAX + 1
        if value > values.VALUE_MAX:
            raise self.wrong(key, text, *self.not_a("is not a whole number", key, text, str(default or 1)))
        return value

    def not_a(self, found: str, key: str, text: str, usual: str) -> tuple[str, str]:
        """(What is wrong, what to type): the value alone, where a remark stands behind it."""
        remarked = re.match(r"([0-9a-zA-Z.%:-]+)\s*(?://|/\*|;|#)", text)
        if remarked:
            return f"{found}: a remark has a line of its own, which begins with # or ;", f"{key}={remarked[1]}"
        return found, f"{key}={usual}"

    def flag(self, key: str, default: bool) -> bool:
        text = self.left.pop(key, None)
        if text is None:
            return default
        if text.lower() not in ("0", "1", "true", "false"):
            raise self.wrong(key, text, "is neither 0 nor 1", f"{key}=1")
        return text.lower() in ("1", "true")

    def size(self, key: str, text: str) -> int:
        try:
            return values.size(text, self.kb_base)
        except values.Malformed as error:
            usual = "1g" if "overflows" in str(error) else "128k"
            raise self.wrong(key, text, *self.not_a(str(error), key, text, usual)) from None

    def seconds(self, key: str, unit: str = "s") -> float | None:
        """A time; `unit` where the text names none."""
        text = self.left.pop(key, None)
        if text is None:
            return None
        match = re.fullmatch(r"([0-9]{1,12})(d|h|m|s|ms|msec|us|usec)?", text.lower())
        if not match:
            raise self.wrong(key, text, *self.not_a("is not a time", key, text, _meant_time(text, unit)))
        return int(match[1]) * SECONDS[match[2] or unit]

    def is_random(self) -> bool:
        return str(self.fields["op"]).startswith("rand")

    def is_write(self) -> bool:
        return str(self.fields["op"]).endswith("write")
