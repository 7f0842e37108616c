"""The rules for documents: links resolve, and each promise names a test that exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from test_house import ROOT, files, name, text_of


def headings(path: Path) -> set[str]:
    """The anchors that a Markdown file offers, as GitHub makes them."""
    found: set[str] = set()
    for title in re.findall(
        r"^#{1,6} +(.+?) *#*$",
        re.sub(r"^```[\s\S]*?^```", "", text_of(path), flags=re.MULTILINE),
        re.MULTILINE,
    ):
        slug = re.sub(
            r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        ).replace(" ", "-")
        number = 0
        while (anchor := slug if not number else f"{slug}-{number}") in found:
            number += 1
        found.add(anchor)
    return found


def test_links_in_documents_resolve() -> None:
    broken = []
    for path in files(".md"):
        text = re.sub(r"^```[\s\S]*?^```|`[^`\n]*`", "", text_of(path), flags=re.MULTILINE)
        for target in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", text):
            if re.match(r"[a-z+]+:", target):
                continue
            file, _, anchor = target.partition("#")
            to = (path.parent / file).resolve() if file else path
            if not to.exists():
                broken.append(f"{name(path)}: {target}")
            elif anchor and to.suffix == ".md" and anchor not in headings(to):
                broken.append(f"{name(path)}: {target} (no such heading)")
    assert not broken, "\n".join(broken)


def test_each_table_in_a_document_has_the_row_that_makes_it_one() -> None:
    """Without |---| under its heads, and as many cells in it, GitHub shows lines of text."""
    broken = []
    for path in files(".md"):
        lines = re.sub(r"^```[\s\S]*?^```", "", text_of(path), flags=re.MULTILINE).splitlines()
        for before, head, below in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
            if not head.startswith("|") or before.startswith("|"):
                continue
            cells = re.sub(r"\\\||`[^`]*`", "", head).strip().strip("|").count("|")
            if not re.fullmatch(rf"\|(?: *:?-+:? *\|){{{cells + 1}}}", below.strip()):
                broken.append(f"{name(path)}: {head[:80]}")
    assert not broken, "\n".join(broken)


@functools.cache
def python_tests(path: Path) -> set[str]:
    tree = ast.parse(text_of(path))
    found = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for group in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        found |= {f"{group.name}::{n.name}" for n in group.body if isinstance(n, ast.FunctionDef)}
    return {f for f in found if f.split("::")[-1].startswith("test_")}


@functools.cache
def rust_tests(path: Path) -> set[str]:
    """Functions under #[test], also inside proptest!."""
    return set(re.findall(r"#\[test\]\s*(?:(?:#\[[^\]]*\]|//[^\n]*)\s*)*fn\s+(\w+)", text_of(path)))


def fault_of(reference: str) -> str | None:
    """What is wrong with one `held by` reference of SPECIFICATION.md; None if nothing is."""
    if re.match(r"pending: \S", reference):
        return None
    measured = re.fullmatch(r"(bench/\w+\.py) in (docs/benchmarks\.md#[\w-]+)", reference)
    if measured:
        file, _, anchor = measured[2].partition("#")
        there = (ROOT / measured[1]).is_file() and (ROOT / file).is_file() and anchor in headings(ROOT / file)
        return None if there else "no such command or result"
    file, colons, test = reference.partition("::")
    path = ROOT / file
    if not colons or not path.is_file():
        return (
            "no such file"
            if colons
            else "neither FILE::TEST, nor `bench/X.py in docs/benchmarks.md#heading`, nor `pending: reason`"
        )
    tests = python_tests(path) if path.suffix == ".py" else rust_tests(path)
    return None if test in tests else "no such test in that file"


def promises() -> list[tuple[str, str, list[str]]]:
    """(number, promise, references) of each row of SPECIFICATION.md."""
    rows = []
    for line in (ROOT / "SPECIFICATION.md").read_text().splitlines():
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and re.fullmatch(r"[A-Z]+-\d+", cells[0]):
            rows.append((cells[0], cells[1], [r.strip().replace("`", "") for r in cells[2].split(";")]))
    return rows


def test_every_promise_names_its_test_or_says_pending() -> None:
    rows = promises()
    assert len(rows) > 20, "SPECIFICATION.md lost its table"
    numbers = [n for n, _, _ in rows]
    wrong = [f"{n} stands twice" for n in sorted({n for n in numbers if numbers.count(n) > 1})]
    for number, promise, references in rows:
        if not promise:
            wrong.append(f"{number}: promises nothing")
        wrong += [f"{number}: {r}: {fault}" for r in references if (fault := fault_of(r))]
    assert not wrong, "\n".join(wrong)


def test_a_promise_with_a_made_up_test_is_caught() -> None:
    assert fault_of("pending: not yet built") is None
    assert fault_of(f"{name(Path(__file__))}::test_links_in_documents_resolve") is None
    assert fault_of("crates/model/src/units.rs::formatting_is_exact") is None
    for reference in (
        "",
        "pending",
        "pending:",
        "tests/test_house.py",
        "tests/test_house.py::test_no_such",
        "tests/nowhere.py::test_a",
        "crates/model/src/units.rs::parse_bytes",
        "bench/direct_read.py in docs/benchmarks.md#no-such",
    ):
        assert fault_of(reference), reference


def test_what_happens_when_something_goes_wrong_names_tests_that_exist() -> None:
    """Of the abbreviations, each section of docs/faults.md says where their tests are."""
    engine = ROOT / "crates/engine"
    short = {
        "remote": [engine / "tests/remote.rs"],
        "serve": [engine / "tests/serve.rs", *(engine / "tests/serve").glob("*.rs")],
        "front": list((engine / "src/front/tests").glob("*.rs")),
        "keep": [ROOT / "tests/test_snap_keep.py"],
        "": [ROOT / "tests/test_gpu_paths.py"],
        **{name: [engine / f"tests/gpu/{name}.rs"] for name in ("gds", "mapped", "driver")},
    }
    wrong, text = [], text_of(ROOT / "docs/faults.md")
    named = re.findall(r"`((?:[\w/.]*::)?\w+)`", text)
    for reference in (n for n in named if "::" in n or n.startswith("test_")):
        file, _, test = reference.rpartition("::")
        paths = short.get(file, [ROOT / file])
        if not any(test in (python_tests(p) if p.suffix == ".py" else rust_tests(p)) for p in paths if p.is_file()):
            wrong.append(reference)
    assert not wrong and len(named) > 100, f"docs/faults.md names tests that aren't there: {wrong}"
