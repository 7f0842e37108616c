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
import forebay.run
import processes
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


@pytest.mark.promise("CMD-24")
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


@pytest.mark.promise("CMD-24")
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


@pytest.mark.promise("CMD-24")
@pytest.mark.parametrize("command", ["report {} --no-charts --json", "export --csv {}", "bench --dry-run --json --fio {}"])
def test_a_pipe_of_the_shell_is_read(said: Said, command: str) -> None:
    content: Any = b"[job]\nfilename=run.json\nrw=read\nbs=512\n" if "--fio" in command else Path("run.json").read_bytes()
    with piped(content) as name:
        code, out, err = said(*command.format(name).split())
    assert code == 0 and out, err


@pytest.mark.promise("CMD-24")
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


@pytest.mark.promise("CMD-25")
@pytest.mark.parametrize(
    "command",
    [
        "bench nil: -o -",
        "files . -o -",
        "tune nil: -o -",
        "sweep rows . -o -",
        "plan whatif --drive D7-PS1010 --page -",
        "doctor --write-cufile-json -",
    ],
)
def test_a_dash_is_no_file_to_save_in(said: Said, tmp_path: Path, command: str) -> None:
    code, out, err = said(*command.split())
    assert code == 2 and not out and "-: stands for standard output" in err and "./- for a file of that name" in err
    assert not (tmp_path / "-").exists()


@pytest.mark.promise("CMD-25")
@pytest.mark.parametrize("output", ["-", "/dev/stdout", "/dev/fd/1"])
def test_a_page_and_a_table_go_to_standard_output(said: Said, output: str) -> None:
    code, out, err = said("report", "run.json", "--no-charts", "-o", output)
    assert code == 0 and out.startswith("<!DOCTYPE html>") and out.rstrip().endswith("</html>") and "1 runs, no charts" in err
    code, out, err = said("export", "run.json", "--csv", "-o", output)
    assert code == 0 and out.startswith("id,started,") and len(out.splitlines()) == 2 and "1 runs" in err
    code, _, err = said("report", "run.json", "-o", output, "--json")
    assert code == 2 and "both go to standard output" in err


@pytest.mark.promise("CMD-25")
def test_what_was_printed_before_a_record_stays_where_output_is_a_file(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `> log` and `3>> log` of a shell have it."""
    monkeypatch.setattr(forebay.run, "run", lambda job, **_: fake_engine.record())
    (tmp_path / "log").write_text("before\n")
    descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND)
    code, out, err = said("bench", "nil:", "-o", f"/dev/fd/{descriptor}")
    os.close(descriptor)
    assert code == 0 and "moved" in out, err
    before, line = (tmp_path / "log").read_text().splitlines()
    assert before == "before" and json.loads(line)["schema"] == "forebay.run/1"
    code, _, err = said("bench", "nil:", "-o", f"/dev/fd/{descriptor}")
    assert code == 2 and "isn't open" in err


@pytest.mark.promise("CMD-25")
@pytest.mark.parametrize("output", ["/dev/stdout", "/dev/null"])
def test_a_sweep_is_continued_from_a_regular_file(said: Said, output: str) -> None:
    code, out, err = said("sweep", "rows", ".", "-o", output)
    assert code == 2 and not out and "isn't a regular file" in err


@pytest.mark.promise("CMD-25")
@pytest.mark.parametrize("command", ["report - --no-charts --json", "export --csv -", "bench --dry-run --json --fio -"])
def test_a_dash_is_standard_input(command: str, tmp_path: Path) -> None:
    content = json.dumps(fake_engine.record())
    (tmp_path / "run.json").write_text(content)
    job = "[job]\nfilename=run.json\nrw=read\nbs=512\n"
    done = processes.run([*processes.FOREBAY, *command.split()], cwd=tmp_path, said=job if "--fio" in command else content)
    assert done.returncode == 0 and done.stdout, done.stderr
