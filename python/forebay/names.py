"""Names of files, as readers take them, and URIs of sources, which `forebay.open` alone takes: others read the kernel's files."""

from __future__ import annotations

import os
from typing import NamedTuple, Union

from forebay.errors import RequestError
from forebay.uri import instead_of, is_made, known

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class Named(NamedTuple):
    """What `forebay.open` is to open: a file by its path, or a source by its URI."""

    text: str
    is_source: bool


def file_name(name: Path) -> str:
    """The name as text. Raises RequestError for what can't be a name, and for a URI unless there is a file of that name."""
    text = _as_text(name)
    if (instead := _instead_of(text)) is not None:
        found = "it is a URI, and lists of files, read_files, Rows, safetensors and feed take files and block devices"
        raise RequestError(f"open {text} to read", found, f"{instead}; forebay.open takes the URI of one source")
    return text


def opened(name: Path) -> Named:
    """A name, or the URI of a source unless there is a file of that name. Raises RequestError for what is neither."""
    text = _as_text(name)
    instead = _instead_of(text)
    if instead is None or is_made(text):
        return Named(text, instead is not None)
    # file: and a path; what begins as a URI of others' does is no source.
    uri = known(text)
    if uri is None or uri.path is None:
        raise RequestError(f"open {text} to read", "it is a URI, and not that of a source", instead)
    return Named(os.fspath(uri.path), False)


def _as_text(name: Path) -> str:
    try:
        text = os.fsdecode(name)
    except TypeError:
        found = f"its name is of type {type(name).__name__}"
        raise RequestError(f"open {str(name)[:80]}", found, "a path: a str, bytes or os.PathLike") from None
    if "\0" in text:
        raise RequestError(f"open {text!r}", "a name has no null character", "the name without it")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise RequestError(f"open {ascii(os.fsencode(text))[1:]}", "its name isn't UTF-8", "a link to it: ln -s OLD NEW")
    return text


def _instead_of(text: str) -> str | None:
    """What is read in place of a URI; None for a name of a file. Most names have no colon, and are not looked at twice."""
    return instead_of(text) if ":" in text and not os.path.lexists(text) else None
