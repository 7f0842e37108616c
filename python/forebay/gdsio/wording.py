"""The engine names bench's flags; here they are said as gdsio's."""

from __future__ import annotations

import re

from forebay.errors import ForebayError

SAID = {
    "--duration": "-T",
    "--io-size": "-i",
    "--file-size": "-s",
    "--workers": "-w",
    "--start": "-o",
    "--align": "-a",
    "--seed": "-k",
    "--numa": "-n",
    "--gpu": "-d",
    "--op write": "-I 1",
    "--verify": "-V",
    "--refill": "-F",
    "--buffered": "-O 1",
    "--direct": "-O 0",
    "--cache allow": "-O 1",
    "--cache bypass": "-O 0",
    "--passes 1": "no -T",
}
OURS = ("--overwrite", "--overwrite-device", "--require-direct", "--json", "--record", "--dry-run")
_WORD = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?: allow| bypass| write| 1\b)?")


def said(text: str) -> str:
    """`text` with gdsio's flags for bench's; what gdsio lacks is marked as bench's."""
    foreign = False

    def replace(match: re.Match[str]) -> str:
        nonlocal foreign
        flag, space, value = match[0].partition(" ")
        if match[0] in SAID:
            return SAID[match[0]]
        if flag in SAID:
            return SAID[flag] + space + value
        foreign |= flag not in OURS
        return match[0]

    spoken = _WORD.sub(replace, text)
    return f"{spoken} (with forebay bench: --dry-run prints its command)" if foreign else spoken


def in_gdsios_words(error: ForebayError) -> ForebayError:
    """The same error, with the record that it may carry."""
    spoken = type(error)(said(error.asked), said(error.found), said(error.next))
    spoken.__dict__.update({k: v for k, v in vars(error).items() if k not in ("asked", "found", "next")})
    return spoken
