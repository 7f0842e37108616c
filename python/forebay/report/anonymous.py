"""`forebay report --anonymous`: the same page without hosts, serial numbers, addresses and paths, to send on.

What a record names under keys that hold such names is replaced wherever it occurs, in warnings and commands, too; so are absolute
paths, addresses and NQNs in any text. Equal names stay equal: host 1, path 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from forebay.report.load import Loaded
from forebay.uri import is_made

# Keys whose whole value is a name, and what it becomes.
KEYS = {
    "host": "host", "hostname": "host", "serial": "serial", "uuid": "serial", "nqn": "nqn", "address": "address", "uri": "source",
    "source": "path", "sources": "path", "dir": "path", "folder": "path", "mount_point": "path", "device": "path", "file": "path",
    "target": "path",
}  # fmt: skip
HEX, UUID = "[0-9a-fA-F]{1,4}", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
PATTERNS = (
    ("nqn", re.compile(r"\bnqn\.[^\s,;&?'\"]+")),
    ("serial", re.compile(rf"\b{UUID}\b")),
    ("address", re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")),
    ("address", re.compile(rf"(?<![\w:.])(?:{HEX}:){{3,7}}{HEX}\b|(?<![\w:.])(?:{HEX}:){{1,6}}(?::{HEX}){{1,6}}\b")),
    # The host of a URI, and the path of one that has no host.
    ("address", re.compile(r"(?<=://)[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")),
    ("path", re.compile(r"(?:(?<![\w.:/])|(?<=[a-z]:))/(?!/)(?:[^\s,;:&?'\"<>()=]+)")),
)
# A word of a command that names a file: one in a folder, or with an ending.
FILE_WORD = re.compile(r"(?!-)[^\s:?]*(?:/[^\s:?]*|\.(?:jsonl?|csv|html?|toml|ya?ml|fio|bin|xml|log|pem|key|txt|dat|tar|npy|db))")
LEAST = 2


class Names:
    """Replacements by name, in the order in which names were met."""

    def __init__(self) -> None:
        self._by_name: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn(self, kind: str, name: str) -> None:
        if name and name not in self._by_name and len(name) >= LEAST:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._by_name[name] = f"{kind} {self._counts[kind]}"
            self._pattern = None

    def replace_in(self, text: str) -> str:
        if not self._by_name:
            return text
        if self._pattern is None:
            longest = sorted(self._by_name, key=len, reverse=True)
            self._pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest))
        return self._pattern.sub(lambda found: self._by_name[found[0]], text)


def anonymous(loaded: Loaded) -> Loaded:
    """The same runs, comparisons and tunings, without the names of a site."""
    names = Names()
    documents = [*(e.record for e in loaded.entries), *(e.point for e in loaded.entries), *loaded.comparisons, *loaded.tunings]
    for document in documents:
        for kind, name in _names(document, ""):
            names.learn(kind, name)
    for entry in loaded.entries:
        names.learn("runs", entry.file)
    return replace(
        loaded,
        entries=[
            replace(e, record=_scrubbed(e.record, names), point=_scrubbed(e.point, names), file=names.replace_in(e.file))
            for e in loaded.entries
        ],
        comparisons=[_scrubbed(d, names) for d in loaded.comparisons],
        tunings=[_scrubbed(d, names) for d in loaded.tunings],
        problems=[names.replace_in(text) for text in loaded.problems],
    )


def _names(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """All names in a document, with their kinds."""
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _names(part, str(inner))
    elif isinstance(value, list):
        for part in value:
            yield from _names(part, key)
        if key == "command":
            yield from _files_of(value)
    elif isinstance(value, str):
        kind = KEYS.get(key)
        # Of sources that say how they are made only what the patterns find is a name.
        if kind is not None and not is_made(value):
            yield kind, value
        for kind, pattern in PATTERNS:
            for found in pattern.finditer(value):
                yield kind, found[0]


def _files_of(command: list[Any]) -> Iterator[tuple[str, str]]:
    """Files that a command names, relative ones too. Its first two words are the program and the verb."""
    for word in command[2:]:
        name = str(word).rpartition("=")[2]
        if FILE_WORD.fullmatch(name):
            yield "path", name


def _scrubbed(value: Any, names: Names) -> Any:
    if isinstance(value, dict):
        return {key: _scrubbed(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [_scrubbed(part, names) for part in value]
    return names.replace_in(value) if isinstance(value, str) else value
