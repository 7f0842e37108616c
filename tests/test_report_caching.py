"""Runs of a KV cache on the page of `forebay report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed

RUN = ("emulate", "kvcache", "--option", "1", "--dir", "model:d7-ps1010", "--duration", "2", "--users", "2")


@pytest.mark.promise("KVC-42")
def test_a_kv_caches_window_and_what_is_published_stand_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = typed(capsys, *RUN, "--json")
    assert code == 0, err
    Path("run.json").write_text(out)
    assert typed(capsys, "report", "run.json", "-o", "page.html", "--no-charts")[0] == 0
    page = Path("page.html").read_text()
    assert "KV cache, option 1, 2 users, read" in page and "In the window: bytes that came within it" in page
    assert "As published" in page and "simulated" in page and "MLPerf-style, unverified" in page
