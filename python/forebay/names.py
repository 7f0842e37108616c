"""Names of files as the loader takes them. Sources by URI are for the commands: the loader reads what the kernel opens."""

from __future__ import annotations

import os
from typing import Union

from forebay.errors import RequestError
from forebay.uri import instead_of

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def file_name(name: Path) -> str:
    """The name as text. Raises RequestError for what can't be a name, and for a URI unless there is a file of that name."""
    try:
        text = os.fsdecode(name)
    except TypeError:
        found = f"its name is of type {type(name).__name__}"
        raise RequestError(f"open {str(name)[:80]}", found, "a path: a str, bytes or os.PathLike") from None
    if "\0" in text:
        raise RequestError(f"open {text!r}", "a name has no null character", "the name without it")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise RequestError(f"open {ascii(os.fsencode(text))[1:]}", "its name isn't UTF-8", "a link to it: ln -s OLD NEW")
    # Most names have no colon, and are not looked at twice.
    if ":" in text and not os.path.lexists(text) and (instead := instead_of(text)):
        found = "it is a URI, and forebay.open, read_files, Rows and safetensors take files and block devices"
        raise RequestError(f"open {text} to read", found, instead)
    return text
