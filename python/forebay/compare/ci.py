"""A gate's cases for build servers: JUnit's XML, and GitHub's annotations."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from forebay import pipes
from forebay.bench import save
from forebay.compare.gate import FAILED, PASSED, UNDECIDED, Case, cases
from forebay.errors import RequestError
from forebay.numbers import count

_OURS = b'<testsuites name="forebay compare"'
_UNWRITABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_LEVELS = {FAILED: "error", UNDECIDED: "warning"}


def github(document: dict[str, Any], strict: bool) -> str:
    """A workflow command a line: what failed, what is undecided, and how many passed."""
    found = cases(document, strict)
    lines = []
    for case in found:
        if case.state != PASSED:
            level = "error" if strict else _LEVELS[case.state]
            lines.append(f"::{level} title={_property(f'forebay compare: {case.name}')}::{_data(case.text)}")
    passed = sum(case.state == PASSED for case in found)
    lines.append(f"::notice title=forebay compare::{passed} of {count(len(found), 'case')} passed")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


class JUnit:
    """The file that `--junit` names."""

    def __init__(self, path: str) -> None:
        """Refuses, before anything runs, a file that would be lost and a place that can't be written."""
        self.path, self.asked = path, f"--junit {path}"
        pipes.refuse_dash(path, self.asked, "--junit /dev/stdout")
        pipes.refuse_to_write(path, self.asked)
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise RequestError(self.asked, "is a directory", f"--junit {target / 'forebay.xml'}")
        if target.is_file() and not _is_ours(target):
            raise self._others()
        if not target.parent.is_dir():
            raise RequestError(self.asked, f"the directory {target.parent} doesn't exist", f"mkdir -p {target.parent}")

    def write(self, document: dict[str, Any], strict: bool) -> None:
        try:
            save.write_whole(self.path, xml(document, strict), _is_ours)
        except FileExistsError:
            raise self._others() from None
        except OSError as error:
            raise save.unwritable(self.asked, error) from error

    def _others(self) -> RequestError:
        found = "exists and isn't a JUnit file of forebay compare's, so it isn't overwritten"
        return RequestError(self.asked, found, "another file name")


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(512)
    return not head.strip() or _OURS in head


def xml(document: dict[str, Any], strict: bool) -> bytes:
    """A suite for each figure and limit; undecided is skipped, with `--strict` a failure."""
    found = cases(document, strict)
    root = ElementTree.Element("testsuites", {"name": "forebay compare", **_counts(found, strict)})
    for name in dict.fromkeys(case.suite for case in found):
        inside = [case for case in found if case.suite == name]
        suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(name), **_counts(inside, strict)})
        for case in inside:
            row = ElementTree.SubElement(
                suite, "testcase", {"classname": f"forebay.compare.{_clean(name)}", "name": _clean(case.name), "time": "0"}
            )
            if case.state == FAILED or (strict and case.state == UNDECIDED):
                ElementTree.SubElement(row, "failure", {"type": case.state, "message": _clean(case.text)})
            elif case.state == UNDECIDED:
                ElementTree.SubElement(row, "skipped", {"message": _clean(case.text)})
            ElementTree.SubElement(row, "system-out").text = _clean(case.text)
    ElementTree.indent(root)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode").encode() + b"\n"


def _counts(found: list[Case], strict: bool) -> dict[str, str]:
    undecided = sum(case.state == UNDECIDED for case in found)
    failed = sum(case.state == FAILED for case in found)
    return {
        "tests": str(len(found)), "failures": str(failed + undecided * strict), "errors": "0",
        "skipped": str(undecided * (not strict)),
    }  # fmt: skip


def _clean(text: str) -> str:
    """Without what XML has no way of writing."""
    return _UNWRITABLE.sub("?", text)
