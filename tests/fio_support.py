"""What tests of fio's job files share: a file read, and a file run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay import fio


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def reader(text: str, lenient: bool = False) -> list[fio.FioJob]:
        path = tmp_path / "jobs.fio"
        path.write_text(text)
        return fio.jobs(str(path), lenient)

    return reader


def one(read: Any, *settings_: str, lenient: bool = False) -> fio.FioJob:
    """The only job of a file with these settings, reading a named file."""
    return read("\n".join(["[job]", "filename=/data/f", *settings_]), lenient)[0]


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    def run(text: str, *flags: str) -> Any:
        (tmp_path / "jobs.fio").write_text(text)
        command = [*processes.FOREBAY, "bench", "--fio", "jobs.fio", *flags]
        return processes.run(command, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"})

    return run
