"""Pipes as the files of a command: a FIFO is refused by name and never waited for, and what the shell opened is read."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from forebay import cli

Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Said:
    """Runs the command line in this process, in a folder with a FIFO in it: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("FIFO")
    os.mkfifo("FIFO.toml")
    os.symlink("FIFO", "link")
    Path("run.json").write_text(json.dumps(fake_engine.record()))

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@contextmanager
def piped(content: bytes) -> Iterator[str]:
    """The name of a pipe, as the shell's <(…) gives one."""
    reader, writer = os.pipe()

    def feed() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(content)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)
        feeding.join()


@pytest.mark.parametrize(
    "command",
    [
        "report FIFO",
        "report link",
        "export --csv FIFO",
        "compare FIFO run.json",
        "compare run.json FIFO",
        "checksum FIFO",
        "bench --fio FIFO",
        "gdsio FIFO",
        "sweep FIFO .",
        "plan run FIFO",
        "plan run --drive D7-PS1010 --runs FIFO",
        "plan run --drive D7-PS1010 --catalogue FIFO",
        "plan run --drive D7-PS1010 --calibration FIFO",
        "plan predict --query FIFO",
        "plan calibrate FIFO --drive D7-PS1010",
        "emulate run --dlio FIFO --data .",
        "emulate run --workload FIFO.toml --data .",
        "serve FIFO.toml",
        "snap FIFO.toml",
        "validate --check FIFO",
    ],
)
def test_a_fifo_is_refused_as_input(said: Said, command: str) -> None:
    code, out, err = said(*command.split())
    assert code == 2 and not out and "is a FIFO, and to open it would wait until something writes to it" in err


@pytest.mark.parametrize(
    "command",
    [
        "bench nil: -o FIFO",
        "bench nil: -o link",
        "tune nil: -o FIFO",
        "files . -o FIFO",
        "report run.json -o FIFO",
        "report run.json -o FIFO --force",
        "export --csv run.json -o FIFO",
        "sweep rows . -o FIFO",
    ],
)
def test_a_fifo_is_refused_as_output(said: Said, command: str, tmp_path: Path) -> None:
    code, out, err = said(*command.split())
    assert code == 2 and not out and "is a FIFO, and to open it would wait until something reads from it" in err
    assert (tmp_path / "FIFO").is_fifo()


@pytest.mark.parametrize("command", ["report {} --no-charts --json", "export --csv {}", "bench --dry-run --json --fio {}"])
def test_a_pipe_of_the_shell_is_read(said: Said, command: str) -> None:
    content: Any = b"[job]\nfilename=run.json\nrw=read\nbs=512\n" if "--fio" in command else Path("run.json").read_bytes()
    with piped(content) as name:
        code, out, err = said(*command.format(name).split())
    assert code == 0 and out, err


@pytest.mark.parametrize("lines", [1, 3])
def test_records_in_pipes_are_compared_as_those_in_files_are(said: Said, lines: int) -> None:
    records = [fake_engine.record() for _ in range(lines)]
    content = "".join(json.dumps(r) + "\n" for r in records) if lines > 1 else json.dumps(records[0], indent=1)
    Path("runs.jsonl").write_text(content)
    of_files = said("compare", "runs.jsonl", "runs.jsonl", "--json")
    with piped(content.encode()) as a, piped(content.encode()) as b:
        for files in (a, "runs.jsonl"), ("runs.jsonl", b):
            code, out, err = said("compare", *files, "--json")
            out, err = (text.replace(a, "runs.jsonl").replace(b, "runs.jsonl") for text in (out, err))
            assert (code, out, err) == of_files and "None" not in err


def test_a_pipe_without_a_record_is_refused_with_the_reason(said: Said) -> None:
    with piped(b"no record\n") as name:
        code, _, err = said("compare", name, "run.json")
    assert code == 2 and "holds no record of a finished run" in err and "None" not in err
