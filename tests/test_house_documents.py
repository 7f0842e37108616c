"""The rules for documents: links resolve, and each promise has a test."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import promises
import pytest
from test_house import ROOT, files, name, text_of, tree_of


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
    tree = tree_of(path)
    found = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for group in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        found |= {f"{group.name}::{n.name}" for n in group.body if isinstance(n, ast.FunctionDef)}
    return {f for f in found if f.split("::")[-1].startswith("test_")}


@functools.cache
def rust_tests(path: Path) -> set[str]:
    """Functions under #[test], also inside proptest!."""
    return set(re.findall(r"#\[test\]\s*(?:(?:#\[[^\]]*\]|//[^\n]*)\s*)*fn\s+(\w+)", text_of(path)))


def test_every_promise_has_a_test_or_a_reason_and_every_mark_a_promise() -> None:
    rows = promises.listed()
    assert len(rows) > 20, "SPECIFICATION.md lost its table"
    assert not (wrong := promises.faults(rows, list(promises.marks()))), "\n".join(wrong)


def test_a_promise_that_nothing_holds_and_a_mark_of_none_are_caught() -> None:
    python = '@pytest.mark.promise("ABC-1", "ABC-2")\ndef test_one(): pass\n@pytest.mark.promise("ABC-1")\ndef helper(): pass\n'
    rust = "// promise: ABC-1, ABC-9\n#[test]\n#[ignore]\nfn two() {}\n    // promise: ABC-2\nfn three() {}\n"
    held = [*promises.python_marks("a.py", python), *promises.rust_marks("b.rs", rust)]
    assert held == [
        ("ABC-1", "a.py::test_one"), ("ABC-2", "a.py::test_one"), ("ABC-1", ""),
        ("ABC-1", "b.rs::two"), ("ABC-9", "b.rs::two"), ("ABC-2", ""),
    ]  # fmt: skip
    good = [("ABC-1", "one"), ("ABC-2", "two"), ("ABC-9", "nine"), ("ABC-3", "three; pending: a machine with two nodes")]
    assert promises.faults(good, [h for h in held if h[1]]) == []
    for rows, marked, said in (
        (good, held, "above no test"),
        (good[1:], held[:1], "no such number"),
        ([*good, ("ABC-4", "four")], held[:2], "ABC-4: no test"),
        ([*good, ("ABC-4", "four; pending: ")], held[:2], "ABC-4: no test"),
        ([*good, good[0]], held[:2], "ABC-1 stands twice"),
        ([("ABC-1", "")], held[:1], "ABC-1: promises nothing"),
    ):
        assert any(said in fault for fault in promises.faults(rows, marked)), (said, promises.faults(rows, marked))


def opens_with_a_question(text: str) -> bool:
    return re.match(r"(What|Who|How|Whether|Where|Whose|Which)\b", text.strip()) is not None


def test_doc_comments_open_with_a_noun_or_a_verb() -> None:
    """At most 2 % open with a question word: those of verbs, which --help prints, ask what a user asks."""
    comments = [
        found[1]
        for path in files(".rs")
        for found in re.finditer(r"^(?!\s*//[/!]).*\n\s*//[/!] ?(.+)", "\n" + text_of(path), re.MULTILINE)
    ]
    docstrings = [
        found[1]
        for path in files(".py")
        if path.is_relative_to(ROOT / "python/forebay")
        for found in re.finditer(r'(?:\A|:\n +)r?"""\s*(\S.*)', text_of(path))
    ]
    for texts in (comments, docstrings):
        asking = [text for text in texts if opens_with_a_question(text)]
        assert len(texts) > 1000 and len(asking) < 0.02 * len(texts), asking[:20]
    assert opens_with_a_question("What a run costs.") and not opens_with_a_question("Whatever is left.")


def test_the_page_of_benchmarks_is_what_the_kept_results_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    import kept
    import publish

    results = kept.load()
    for result in results:
        assert result["date"] and result["commit"] and result["command"] and result["machine"]["cpu"], result["study"]
        assert any(publish.script_of(result) == part.script for q in publish.QUESTIONS for part in q.parts), result["command"]
    page = publish.PAGE.read_text()
    assert publish.page(results) == page, "docs/benchmarks.md isn't what bench/results gives; try: python bench/publish.py"
    assert page.count("\n") <= 300 and publish.METHOD.read_text().count("\n") <= 60


def test_what_happens_when_something_goes_wrong_names_tests_that_exist() -> None:
    """Of the abbreviations, each section of docs/faults.md says where their tests are."""
    serve, bench = ROOT / "crates/serve", ROOT / "crates/bench"
    short = {
        "remote": [serve / "tests/remote.rs"],
        "serve": [serve / "tests/serve.rs", *(serve / "tests/serve").glob("*.rs")],
        "front": list((serve / "src/gateway/tests").glob("*.rs")),
        "keep": [ROOT / "tests/test_snap_keep.py"],
        "": [ROOT / "tests/test_gpu_paths.py"],
        **{name: [bench / f"tests/gpu/{name}.rs"] for name in ("gds", "mapped")},
        "driver": [ROOT / "crates/io/tests/gpu/driver.rs"],
    }
    wrong, text = [], text_of(ROOT / "docs/faults.md")
    named = re.findall(r"`((?:[\w/.]*::)?\w+)`", text)
    for reference in (n for n in named if "::" in n or n.startswith("test_")):
        file, _, test = reference.rpartition("::")
        paths = short.get(file, [ROOT / file])
        if not any(test in (python_tests(p) if p.suffix == ".py" else rust_tests(p)) for p in paths if p.is_file()):
            wrong.append(reference)
    assert not wrong and len(named) > 100, f"docs/faults.md names tests that aren't there: {wrong}"
