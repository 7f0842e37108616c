"""Names a job's fields in the engine's messages by gdsio's flags."""

from __future__ import annotations

import re
from functools import cache

from forebay.errors import ForebayError
from forebay.flags import fields
from forebay.wording import as_flag, reworded
from forebay.wording import said as with_words

# By the field's key.
FIELDS = {
    "duration_s": "-T",
    "io_bytes": "-i",
    "file_bytes": "-s",
    "workers": "-w",
    "start_bytes": "-o",
    "align_bytes": "-a",
    "seed": "-k",
    "numa": "-n",
    "gpus": "-d",
    "verify": "-V",
    "refill": "-F",
}
# What takes more than a field, as bench spells it.
PHRASES = {
    "--op write": "-I 1",
    "--buffered": "-O 1",
    "--direct": "-O 0",
    "--cache allow": "-O 1",
    "--cache bypass": "-O 0",
    "--passes 1": "no -T",
}
OURS = ("--overwrite", "--overwrite-device", "--require-direct", "--json", "--record", "--dry-run")
_WORD = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?: allow| bypass| write| 1\b)?")


@cache
def _spoken() -> dict[str, str]:
    return PHRASES | {as_flag(field): FIELDS[field.key] for field in fields() if field.key in FIELDS}


def said(text: str) -> str:
    """`text` with gdsio's flags for fields and for bench's flags; what gdsio lacks is marked as bench's."""
    foreign = False
    known = _spoken()

    def replace(match: re.Match[str]) -> str:
        nonlocal foreign
        flag, space, value = match[0].partition(" ")
        if match[0] in known:
            return known[match[0]]
        if flag in known:
            return known[flag] + space + value
        foreign |= flag not in OURS
        return match[0]

    spoken = _WORD.sub(replace, with_words(text, as_flag))
    return f"{spoken} (with forebay bench: --dry-run prints its command)" if foreign else spoken


def in_gdsios_words(error: ForebayError) -> ForebayError:
    """The same error, with the record that it may carry."""
    return reworded(error, said)
