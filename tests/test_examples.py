"""The examples, small: with NumPy alone, and beside torch where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import processes
import pytest
from properties import parametrized

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SMALL = {
    "graph_features.py": ["--nodes", "3000", "--seeds", "50", "--batches", "2"],
    "embedding_table.py": ["--rows", "5000", "--batch", "64", "--batches", "2"],
    "parquet_columns.py": ["--rows", "5000", "--batches", "2"],
}
OF_ROWS = ["graph_features.py", "embedding_table.py"]


@pytest.mark.promise("PYT-20")
def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.mark.promise("PYT-20")
@pytest.mark.parametrize("name", OF_ROWS)
def test_an_example_reads_the_right_rows(name: str, tmp_path: Path) -> None:
    done = processes.run([sys.executable, EXAMPLES / name, "--dir", tmp_path, *SMALL[name]])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "forebay gather" in done.stdout and "numpy take" in done.stdout
    if importlib.util.find_spec("torch"):
        assert "torch index_select  " in done.stdout
    else:
        assert "torch isn't installed" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.promise("PYT-26")
@parametrized("cold", [[], ["--cold"]], kept=(1,))
def test_columns_of_parquet_are_the_same_over_a_file(tmp_path: Path, cold: list[str]) -> None:
    pytest.importorskip("pyarrow")
    name = "parquet_columns.py"
    done = processes.run([sys.executable, EXAMPLES / name, "--dir", tmp_path, *SMALL[name], *cold])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pyarrow over forebay" in done.stdout and ("cudf over forebay" in done.stdout or "cuDF isn't" in done.stdout)
    assert not list(tmp_path.iterdir())


@pytest.mark.promise("PYT-20")
@parametrized("name", SMALL, kept=(0,))
def test_flags_that_cannot_be_are_refused(name: str) -> None:
    done = processes.run([sys.executable, EXAMPLES / name, "--batches", "0"])
    assert done.returncode == 2 and "1 or more" in done.stderr
