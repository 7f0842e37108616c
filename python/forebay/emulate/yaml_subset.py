"""The part of YAML that DLIO's workload files use, read strictly: what isn't part of it is refused by its line.

Mappings and lists by indentation, `[…]` and `{…}` on one line, plain and quoted scalars, comments. Not part of it: anchors,
aliases, tags, several documents, scalars over several lines. A key that stands twice is refused, too.
Scalars mean what YAML 1.1 says (yes, no, on, off are booleans), as DLIO reads them; 1e-3 is a number, as in DLIO.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from forebay.errors import RequestError

DEPTH_MAX = 32
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")
_INT = re.compile(r"[-+]?[0-9][0-9_]{0,40}$")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]{0,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?$")
_KEY = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|([^\s#\[\]{},&*!|>'"%@`:-][^:#]*?|-[^\s:#][^:#]*?))\s*:(?:\s+|$)""")
# What a quoted scalar may stand behind within brackets.
_OPENS = re.compile(r"""(?:[\[{,]|:\s|["']:)\s*$""")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/"}


@dataclass
class Document:
    """`values`: nested dicts, lists and scalars. `lines`: dotted path of each key → its line, from 1."""

    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Line:
    number: int
    indent: int
    text: str


def parse(text: str, origin: str) -> Document:
    """The mapping in `text`. RequestError names `origin`, the line and what isn't understood."""
    reader = _Reader(text, origin)
    values = reader.document()
    return Document(values, reader.keys)


class _Reader:
    def __init__(self, text: str, origin: str) -> None:
        self.origin = origin
        self.keys: dict[str, int] = {}
        self.lines = [line for line in map(self._line, enumerate(text.splitlines(), 1)) if line is not None]
        self.at = 0

    def document(self) -> dict[str, Any]:
        if self.lines and self.lines[0].text == "---":
            self.at = 1
        if self.at == len(self.lines):
            return {}
        if self.lines[self.at].text.startswith("{"):
            self.at += 1
            values = self._flow(self.lines[self.at - 1].text, self.lines[self.at - 1].number)
        else:
            values = self._block(self.lines[self.at].indent, "", 0)
        if self.at < len(self.lines):
            raise self._bad(self.lines[self.at].number, "is indented unlike the lines above")
        if not isinstance(values, dict):
            raise self._bad(self.lines[0].number, "is a list, where keys are expected")
        return values

    def _line(self, numbered: tuple[int, str]) -> _Line | None:
        number, raw = numbered
        body = raw.lstrip(" ")
        if body.startswith("\t"):
            raise self._bad(number, "is indented by a tab")
        text = self._without_comment(body, number).rstrip()
        return _Line(number, len(raw) - len(body), text) if text else None

    def _without_comment(self, text: str, number: int) -> str:
        """Cuts off `# …` that begins a line or stands behind a blank, outside of quotes."""
        quote, at = "", self._value_at(text)
        # Only where a value begins so, quotes and brackets mean something.
        flow, quotes = text[at : at + 1] in ("[", "{"), text[at : at + 1] in ('"', "'")
        while at < len(text):
            letter = text[at]
            if quote:
                # A quote within: "\\"" in the one kind, doubled in the other.
                if letter == "\\" and quote == '"' or text[at : at + 2] == "''" and quote == "'":
                    at += 1
                elif letter == quote:
                    quote = ""
            elif letter in "\"'" and (quotes or flow and _OPENS.search(text[:at])):
                quote, quotes = letter, False
            elif letter == "#" and (at == 0 or text[at - 1] in " \t"):
                return text[:at]
            at += 1
        if quote:
            raise self._bad(number, f"has no closing {quote}")
        return text

    def _value_at(self, text: str) -> int:
        """Returns the start of a line's value: behind its dashes and its key."""
        at = 0
        while text.startswith("- ", at):
            at += 2
            at += len(text) - at - len(text[at:].lstrip(" "))
        match = _KEY.match(text[at:]) if text[at : at + 1] not in ("[", "{") else None
        return at + match.end() if match else at

    def _block(self, indent: int, path: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._bad(self.lines[self.at].number, "is nested too deeply")
        if self._is_item(self.lines[self.at].text):
            return self._list(indent, path, depth)
        return self._mapping(indent, path, depth)

    @staticmethod
    def _is_item(text: str) -> bool:
        return text == "-" or text.startswith("- ")

    def _mapping(self, indent: int, path: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.at < len(self.lines) and self.lines[self.at].indent == indent:
            line = self.lines[self.at]
            if self._is_item(line.text):
                break
            match = _KEY.match(line.text)
            if match is None:
                raise self._bad(line.number, f"is not 'key: value': {line.text[:60]}")
            key = next(g for g in match.groups() if g is not None).strip()
            inner = f"{path}.{key}" if path else key
            if key in found:
                raise self._bad(line.number, f"sets '{inner}' a second time")
            self.keys.setdefault(inner, line.number)
            self.at += 1
            rest = line.text[match.end() :].strip()
            found[key] = self._flow(rest, line.number) if rest else self._nested(indent, inner, depth)
        self._refuse_stray(indent)
        return found

    def _nested(self, indent: int, path: str, depth: int) -> Any:
        """Parses the value below a key without one: a block, indented deeper (a list may stand right below); or nothing."""
        if self.at >= len(self.lines):
            return None
        line = self.lines[self.at]
        if line.indent > indent or (line.indent == indent and self._is_item(line.text)):
            return self._block(line.indent, path, depth + 1)
        return None

    def _list(self, indent: int, path: str, depth: int) -> list[Any]:
        found: list[Any] = []
        while self.at < len(self.lines) and self.lines[self.at].indent == indent and self._is_item(self.lines[self.at].text):
            line = self.lines[self.at]
            rest = line.text[1:].lstrip(" ")
            if not rest:
                self.at += 1
                found.append(self._nested(indent, f"{path}[{len(found)}]", depth))
            elif self._is_item(rest) or _KEY.match(rest) and not rest.startswith(("[", "{")):
                # The item's first key or own first item, as if it stood on a line of its own.
                inner = indent + len(line.text) - len(rest)
                self.lines[self.at] = _Line(line.number, inner, rest)
                found.append(self._block(inner, f"{path}[{len(found)}]", depth + 1))
            else:
                self.at += 1
                found.append(self._flow(rest, line.number))
        self._refuse_stray(indent)
        return found

    def _refuse_stray(self, indent: int) -> None:
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            raise self._bad(self.lines[self.at].number, "is indented deeper than its parent")

    def _flow(self, text: str, number: int) -> Any:
        """A value on one line."""
        value, rest = self._value(text, number, 0, "")
        if rest.strip():
            raise self._bad(number, f"has text after its value: {rest.strip()[:40]}")
        return value

    def _value(self, text: str, number: int, depth: int, ends: str) -> tuple[Any, str]:
        """(value, what stands behind it); a plain scalar ends at one of `ends`."""
        text = text.lstrip()
        if depth > DEPTH_MAX:
            raise self._bad(number, "is nested too deeply")
        if text[:1] in ("[", "{"):
            return self._collection(text, number, depth)
        if text[:1] in ('"', "'"):
            return self._quoted(text, number)
        if text[:1] in ("&", "*", "!", "|", ">", "%", "@", "`") or text.startswith(("? ", "- ")):
            raise self._bad(number, f"has a {text[:1]}, which isn't supported")
        cut = min((at for at in (text.find(e) for e in ends) if at >= 0), default=len(text))
        return self._scalar(text[:cut].strip(), number), text[cut:]

    def _collection(self, text: str, number: int, depth: int) -> tuple[Any, str]:
        opened, closes = text[0], "]" if text[0] == "[" else "}"
        found: Any = [] if opened == "[" else {}
        rest = text[1:].lstrip()
        while not rest.startswith(closes):
            if opened == "{":
                name, rest = self._value(rest, number, depth + 1, ":,}")
                if not rest.startswith(":") or not isinstance(name, str):
                    raise self._bad(number, "has a '{' without 'key: value'")
                if name in found:
                    raise self._bad(number, f"sets '{name}' a second time")
                rest = rest[1:]
            value, rest = self._value(rest, number, depth + 1, "," + closes)
            if opened == "{":
                found[name] = value
            else:
                found.append(value)
            rest = rest.lstrip()
            if rest.startswith(","):
                rest = rest[1:].lstrip()
            elif not rest.startswith(closes):
                raise self._bad(number, f"has no closing {closes}")
        return found, rest[1:]

    def _quoted(self, text: str, number: int) -> tuple[str, str]:
        quote, made, at = text[0], [], 1
        while at < len(text):
            letter = text[at]
            if letter == quote and quote == "'" and text[at + 1 : at + 2] == "'":
                made.append("'")
                at += 2
                continue
            if letter == quote:
                return "".join(made), text[at + 1 :]
            if letter == "\\" and quote == '"':
                at += 1
                if text[at : at + 1] not in _ESCAPES:
                    raise self._bad(number, f"has \\{text[at : at + 1]}, which isn't supported")
                letter = _ESCAPES[text[at]]
            made.append(letter)
            at += 1
        raise self._bad(number, f"has no closing {quote}")

    def _scalar(self, text: str, number: int) -> Any:
        if ": " in text or text.endswith(":"):
            raise self._bad(number, f"has a second ':' in '{text[:60]}'")
        low = text.lower()
        if low in ("", "~", "null"):
            return None
        if low in TRUE or low in FALSE:
            return low in TRUE
        if _INT.match(text):
            digits = text.replace("_", "")
            return int(digits)
        return float(text.replace("_", "")) if _FLOAT.match(text) else text

    def _bad(self, number: int, found: str) -> RequestError:
        return RequestError(f"{self.origin}:{number}", found, "a DLIO workload file")
