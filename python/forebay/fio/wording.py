"""Names a job's fields in the engine's messages by the keys of fio's job files, except those that a flag has set."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import Any

from forebay import run as engine
from forebay.command_line.spellings import SAME
from forebay.errors import ForebayError, RequestError
from forebay.flags import fields
from forebay.wording import reworded

# A field with its value, where it has one.
_SETTING = re.compile(r"‹([a-z_]+)›(?: ([^\s,;:(-][^\s,;:]*))?")

# A flag, with its value where one is advised and no word of the sentence follows.
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?: ([0-9][^\s,;:)]*|auto|thp|warm|bypass|drop|allow)(?![\w]))?")


def check(section: str, job: dict[str, Any], flags: Collection[str] = ()) -> None:
    """Raises RequestError for what can't be right on any machine. `flags`: the fields that were given as flags."""
    try:
        engine.check(job)
    except RequestError as error:
        raise in_fios_words(error, section, flags) from None


def in_fios_words(error: ForebayError, section: str, flags: Collection[str] = ()) -> ForebayError:
    def spoken(named: re.Match[str]) -> str:
        field, value = named[1], named[2]
        if field in flags or field not in _keys():
            return f"--{_flag(field)}" + (f" {value}" if value else "")
        return _keys()[field] + (f"={value}" if value else "")

    reported = reworded(error, lambda text: _SETTING.sub(spoken, text))
    reported.asked = f"[{section}] {reported.asked}"
    return reported


def advice(text: str) -> str:
    """Advice that names flags of a job, for a command of fio's: as its settings where it has them, else with the verb that
    takes them."""
    flags = {f.flag for f in fields()}

    def spoken(named: re.Match[str]) -> str:
        flag, value = named[1], named[2]
        if flag not in flags:
            return named[0]
        if flag in SAME:
            return SAME[flag][0] + (f"={value}" if value else "")
        return f"forebay bench --fio FILE --{flag}" + (f" {value}" if value else "")

    return _FLAG.sub(spoken, text)


@cache
def _keys() -> dict[str, str]:
    """A field → fio's key of the same meaning."""
    return {f.key: SAME[f.flag][0].removeprefix("--") for f in fields() if f.flag in SAME and f.flag != "gpu"}


def _flag(field: str) -> str:
    return next((f.flag for f in fields() if f.key == field), field)
