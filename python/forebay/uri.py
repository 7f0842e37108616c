"""Sources as their URIs name them, read by the engine: this process knows no scheme."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.errors import RequestError


@dataclass(frozen=True)
class Uri:
    """Parts of a source's URI; None for what it doesn't name.

    path        file or folder
    host        machine across a network
    drive       modelled drive whose times it keeps, with `settings`; `real_time`: I/Os take these times
    bytes       size, where the text gives one
    chunk       bytes that go to each part in turn
    made_of     `file`, `card`, `elsewhere`, `parts`, `timed` (parts that it holds back) or `nothing`
    """

    scheme: str
    made_of: str
    path: Path | None
    host: str | None
    drive: str | None
    settings: dict[str, str]
    real_time: bool
    bytes: int | None
    chunk: int | None
    parts: tuple[Uri, ...]

    @property
    def connects(self) -> bool:
        """Its bytes come by a connection of this process."""
        return self.made_of in ("card", "elsewhere")

    @property
    def is_by_socket(self) -> bool:
        """This host's processors move its bytes across a network."""
        return self.host is not None and self.made_of == "elsewhere"

    @property
    def is_striped(self) -> bool:
        return self.made_of == "parts"

    @property
    def has_no_files(self) -> bool:
        """It moves no bytes, or only paces another source."""
        return self.made_of in ("nothing", "timed")

    @property
    def is_idle(self) -> bool:
        """An I/O completes at once: neither a drive nor a model of one takes part."""
        return self.made_of == "nothing" and self.drive is None

    def leaves(self) -> Iterator[Uri]:
        """Sources below that have no parts; itself, where it has none."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


def parsed(text: str) -> Uri:
    """Reads a source's URI, and looks at nothing. Raises RequestError."""
    from forebay import _core

    return _made(json.loads(_core.source(text)))


def _made(found: dict[str, Any]) -> Uri:
    own = {
        "path": None if found["path"] is None else Path(found["path"]),
        "settings": dict(found["settings"]),
        "parts": tuple(map(_made, found["parts"])),
    }
    return Uri(**{**found, **own})


def known(text: object) -> Uri | None:
    """A source that a record names, say; None for what is none."""
    try:
        return parsed(text) if isinstance(text, str) else None
    except RequestError:
        return None


def is_connection(text: str) -> bool:
    """Returns whether a text begins as a source does that this process connects to, whatever follows."""
    from forebay import _core

    return _core.source_kind(text)[1]


def is_made(text: str) -> bool:
    """Returns whether a text begins as a source does that isn't a file, whatever follows."""
    from forebay import _core

    return ":" in text and _core.source_kind(text)[0] != "file"


def instead_of(text: str) -> str | None:
    """Returns what is read in the place of a URI where only files are read; None for the name of a file."""
    from forebay import _core

    return _core.source_kind(text)[2]


def of_file(path: str) -> str:
    """The source that is this file, whatever its name looks like."""
    return f"file:{path}" if ":" in path else path
