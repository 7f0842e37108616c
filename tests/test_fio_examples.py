"""bench/fio_examples.py: the table of fio's own examples names the command that makes it again."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import processes
import pytest

ROOT = Path(__file__).parent.parent
HEADING = "## fio's own examples"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("fio_examples")


def test_the_command_on_the_page_is_the_one_that_made_it(tool: Any) -> None:
    read = tool.Example("a.fio", 1, None, True)
    ran = tool.Example("b.fio", 2, None, True, "same bytes and I/Os")
    alone, both = tool.page([read], "fio-3.33", ""), tool.page([read, ran], "fio-3.33", "")
    assert "`python bench/fio_examples.py --examples DIR`," in alone and "Nothing was run." in alone
    assert "`python bench/fio_examples.py --examples DIR --beside`," in both and "1 were scaled down and run by both" in both


def test_the_column_of_offsets_names_fios_version_and_its_words_are_explained(tool: Any) -> None:
    same = tool.Example("a.fio", 1, None, True, "same bytes and I/Os", "same sequence")
    other = tool.Example("b.fio", 1, None, True, "same bytes and I/Os", "[b] I/O 1 is a read of 4096 at 0 of f in fio, none here")
    refused, alone = tool.Example("c.fio", 0, ("rw=trim", "no"), True), tool.Example("d.fio", 1, None, False)
    page = tool.page([same, other, refused, alone], "fio-3.33", "")
    assert "| example | known to fio-3.33 | here | offsets beside fio-3.33 |\n|---|---|---|---|\n" in page
    assert "2 were traced" in page and "In 1 of them the I/Os go where fio-3.33's go" in page and "- `same sequence`: " in page
    for row in ("| a.fio | yes | 1 job; same bytes and I/Os | same sequence |", "| c.fio | yes | refused: `rw=trim` no | – |"):
        assert row in page
    assert "offsets" not in tool.page([alone], "fio-3.33", "")


def test_what_runs_nothing_prints_that_command(tmp_path: Path) -> None:
    (tmp_path / "one.fio").write_text("[job]\nfilename=/data/f\n")
    command = [processes.FOREBAY[0], ROOT / "bench/fio_examples.py", "--examples", tmp_path, "--commit", ""]
    done = processes.run(command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{HEADING}\n\n`python bench/fio_examples.py --examples DIR`, ")
    assert "| one.fio | " in done.stdout and " | 1 job |" in done.stdout


def test_the_table_in_the_docs_names_a_command_that_runs_what_it_tells_of() -> None:
    page = (ROOT / "docs/fio.md").read_text()
    section = page[page.index(HEADING) :]
    assert ("--beside`" in section) == ("were scaled down and run by both" in section)
