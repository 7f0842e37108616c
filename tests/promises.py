"""The promises of SPECIFICATION.md and the tests that hold them: `make promises` prints them.

A test carries the numbers of what it holds: `@pytest.mark.promise("BEN-9")` in Python, above a test or as the mark of rows
of a table, `// promise: BEN-9` above a `#[test]` in Rust, and `PROMISES = ("MSR-1",)` in a command of bench/ whose bounds
are promises.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = r"[A-Z]+-\d+"


def listed() -> list[tuple[str, str]]:
    """(number, sentence with its `pending: reason`) of each row of SPECIFICATION.md, in the page's order."""
    return re.findall(rf"^\| ({NUMBER}) \| *(.*?) *\|$", (ROOT / "SPECIFICATION.md").read_text(), re.MULTILINE)


def marks() -> Iterator[tuple[str, str]]:
    """(number, test) of each mark in the tree; the test is empty where a mark stands above none."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "promise" in (text := path.read_text()):
            yield from python_marks(str(path.relative_to(ROOT)), text)
    for path in sorted([*(ROOT / "crates").rglob("*.rs"), *(ROOT / "fuzz/tests").rglob("*.rs")]):
        if "// promise:" in (text := path.read_text()):
            yield from rust_marks(str(path.relative_to(ROOT)), text)
    for path in sorted((ROOT / "bench").glob("*.py")):
        for numbers in re.findall(r"^PROMISES = \(([^)]*)\)", path.read_text(), re.MULTILINE):
            yield from ((number, str(path.relative_to(ROOT))) for number in re.findall(NUMBER, numbers))


def python_marks(file: str, text: str) -> Iterator[tuple[str, str]]:
    lines = text.split("\n")
    # Walking through all of a tree takes longer than making it.
    marked = [part for part in ast.parse(text).body if "promise" in "\n".join(lines[first(part) - 1 : part.end_lineno])]
    nodes = [node for part in marked for node in ast.walk(part)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    holders = {id(mark): node for node in functions for mark in node.decorator_list}
    for mark in nodes:
        if not (isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr == "promise"):
            continue
        if ast.unparse(mark.func) != "pytest.mark.promise":
            continue
        holder = holders.get(id(mark))
        test = file if holder is None else f"{file}::{holder.name}" if holder.name.startswith("test_") else ""
        yield from ((a.value, test) for a in mark.args if isinstance(a, ast.Constant))


def first(statement: ast.stmt) -> int:
    """Number of its first line, that of its first decorator included."""
    return min((node.lineno for node in getattr(statement, "decorator_list", ())), default=statement.lineno)


def rust_marks(file: str, text: str) -> Iterator[tuple[str, str]]:
    below = r"\s*#\[test\]\s*(?:(?:#\[[^\]]*\]|//[^\n]*)\s*)*fn\s+(\w+)"
    for mark in re.finditer(rf"^[ \t]*// promise: (.*)\n(?:{below})?", text, re.MULTILINE):
        test = f"{file}::{mark[2]}" if mark[2] else ""
        yield from ((number, test) for number in mark[1].split(", "))


def faults(rows: list[tuple[str, str]], held: list[tuple[str, str]]) -> list[str]:
    """What is wrong with the page or the marks; empty if nothing is."""
    numbers = [number for number, _ in rows]
    known, tested = set(numbers), {number for number, _ in held}
    wrong = [f"{n} stands twice in SPECIFICATION.md" for n in sorted(known) if numbers.count(n) > 1]
    wrong += [f"{n}: no test is marked with it, and it says no `pending: reason`" for n, sentence in rows
              if n not in tested and not re.search(r"pending: \S", sentence)]
    wrong += [f"{n}: promises nothing" for n, sentence in rows if not sentence or sentence.startswith("pending:")]
    wrong += [f"{n}: {test} is marked with it, but SPECIFICATION.md has no such number" for n, test in held if n not in known]
    wrong += [f"{n}: a mark stands above no test" for n, test in held if not test]
    return wrong


def main() -> None:
    tests = defaultdict(list)
    for number, test in marks():
        tests[number].append(test)
    for number, sentence in listed():
        print(f"{number}: {sentence}")
        for test in tests[number]:
            print(f"    {test}")


if __name__ == "__main__":
    main()
