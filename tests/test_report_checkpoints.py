"""Checkpoints, queries of dependent reads and whole files on the page of `forebay report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed


def page_of(capsys: Any, *command: str) -> str:
    code, out, err = typed(capsys, *command, "--json")
    assert code == 0, err
    Path("run.json").write_text(out)
    assert typed(capsys, "report", "run.json", "-o", "page.html", "--no-charts")[0] == 0
    return Path("page.html").read_text()


@pytest.mark.promise("REP-13")
def test_checkpoints_are_shown_written_and_read_with_the_rules_that_do_not_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    page = page_of(
        capsys, "emulate", "checkpoint", "--workload", "llama3-8b", "--dir", "made", "--scale", "0.00001", "--ranks", "2",
        "--writes", "2", "--reads", "1", "--between", "0", "--path", "host",
    )  # fmt: skip
    assert "llama3-8b&#39;s checkpoints, 2 ranks, written at" in page.replace("Llama3", "llama3")
    assert "Checkpoints written and read" in page and "MLPerf-style, unverified" in page
    assert "checkpoint.scale" in page and "reads aren&#39;t flushed" in page
    assert "Sequential write" not in page, "its I/Os are no study of a job"


@pytest.mark.promise("REP-13")
def test_queries_and_whole_files_have_their_rates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    page = page_of(capsys, "bench", "model:d7-ps1010", "--pattern", "hops=3,beam=2,node=4k,segments=1", "--duration", "0.1")
    assert "Queries per second" in page and "24 KiB" in page and "Whole files per second" not in page
    for number in range(3):
        Path(f"{number}.bin").write_bytes(bytes(5000))
    page = page_of(capsys, "bench", ".", "--glob", "*.bin", "--whole-files", "--passes", "1", "--cache", "allow")
    assert "Whole files per second" in page and "Queries per second" not in page
