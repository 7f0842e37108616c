"""What a command prints on: streams that are closed or full, encodings that lack characters, files whose place is gone."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
from faults_support import Run, refused, run  # noqa: F401 - a fixture
from properties import parametrized

BENCH = ("bench", "nil:", "--duration", "0.05", "--warmup", "0")


def started_without(number: int, cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command with one of its standard streams closed, as `>&-` of a shell does."""
    command = [sys.executable, "-m", "forebay.cli", *arguments]
    return processes.start(
        command,
        cwd=cwd,
        stdin=None if number == 0 else subprocess.DEVNULL,
        stdout=None if number == 1 else subprocess.PIPE,
        stderr=None if number == 2 else subprocess.PIPE,
        preexec_fn=lambda: os.close(number),
    )


@pytest.mark.promise("FLT-22")
@parametrized("number", [0, 1, 2], kept=(1,))
def test_a_closed_stream_changes_neither_the_code_nor_a_file(tmp_path: Path, number: int) -> None:
    process = started_without(number, tmp_path, *BENCH, "-o", "r.json")
    out, err = process.communicate(timeout=processes.PATIENCE_S)
    assert process.returncode == 0, (out, err)
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == "forebay.run/1"
    process = started_without(number, tmp_path, "bench", "nothing-here")
    process.communicate(timeout=processes.PATIENCE_S)
    assert process.returncode == 2


@pytest.mark.long
@pytest.mark.promise("FLT-22")
@pytest.mark.parametrize("encoding", ["ascii", *(pytest.param(e, marks=pytest.mark.long) for e in ("latin-1", "cp1252"))])
def test_an_encoding_that_lacks_a_character_is_no_obstacle(run: Run, encoding: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    (tmp_path / "d.bin").write_bytes(os.urandom(1 << 20))
    for arguments in (("bench", "d.bin", "--io-size", "64k", "--passes", "1"), ("plan", "run", "--drive", "D7-PS1010")):
        done = run(*arguments, env=environment, encoding="latin-1")
        assert done.returncode == 0 and done.stdout, done.stderr
    done = run("doctor", "d.bin", "--json", env=environment, encoding="latin-1")
    assert done.returncode == 0 and json.loads(done.stdout)["schema"] == "forebay.doctor/1"


@pytest.mark.promise("CMD-22")
@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "POSIX"},
        pytest.param({"LANG": "C"}, marks=pytest.mark.long),
        pytest.param({"LC_CTYPE": "C", "LANG": "de_DE.UTF-8"}, marks=pytest.mark.long),
    ],
)
def test_a_locale_of_c_gets_ascii(run: Run, locale: dict[str, str], tmp_path: Path) -> None:
    others = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "PYTHONIOENCODING")}
    (tmp_path / "ü.bin").write_bytes(os.urandom(1 << 16))
    done = run("bench", "./ü.bin", "--io-size", "64k", "--passes", "1", "-o", "r.json", env={**others, **locale})
    assert done.returncode == 0 and done.stdout.isascii() and done.stderr.isascii(), done.stderr
    # Microseconds are us; on a busy machine there may be none.
    assert re.search(r" - p99 [\d.,]+ (us|ms|s) - ", done.stdout) and r"\xfc.bin" in done.stdout, done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["job"]["source"].endswith("ü.bin"), "a record is as ever"
    wrong = run("bench", "nothing-here-é", env={**others, **locale})
    assert wrong.returncode == 2 and wrong.stderr.isascii()
    for utf8 in ({**locale, "PYTHONUTF8": "1"}, {"LC_ALL": "C.UTF-8"}):
        assert "·" in run("bench", "./ü.bin", "--passes", "1", env={**others, **utf8}).stdout


@pytest.mark.promise("CMD-22")
def test_every_character_that_we_print_has_a_stand_in() -> None:
    from forebay.plain import plain

    package = Path(__file__).parent.parent / "python/forebay"
    texts = {p.relative_to(package): p.read_text() for p in package.rglob("*.py") if p.name != "plain.py"}
    lacking = {f"{name}: {c}" for name, text in texts.items() for c in set(text) if not c.isascii() and "\\" in plain(c)}
    assert not lacking


def test_a_file_whose_name_is_no_text_is_named_in_the_report(run: Run, tmp_path: Path) -> None:
    run(*BENCH, "-q", "-o", "a.json")
    os.rename(tmp_path / "a.json", os.fsencode(tmp_path) + b"/runs\xff.json")
    (tmp_path / "b.json").write_text("{")
    os.rename(tmp_path / "b.json", os.fsencode(tmp_path) + b"/damaged\xfe.json")
    done = run("report", ".", "--no-charts", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["records"] == 1, done.stderr
    assert "damaged" in (tmp_path / "report.html").read_text()


MEASURING = (
    ("tune", "nil:", "--max-time", "0.5s"),
    ("compare", "--a", "depth=1", "--b", "depth=2", "nil:", "--duration", "0.05", "--pairs-min", "3", "--pairs-max", "3"),
    ("files", ".", "--files", "20"),
)


@pytest.mark.promise("FLT-22")
@parametrized("arguments", MEASURING, ids=lambda a: " ".join(a[:2]), kept=(0, 2))
@parametrized("as_json", [(), ("--json",)], ids=["words", "json"], kept=(1,))
def test_what_a_full_output_does_not_take_is_kept_in_a_file(
    forebay: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, arguments: tuple[str, ...], as_json: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "forebay.cli", *arguments, *as_json]
    with open("/dev/full", "w") as full:
        done = processes.run(command, cwd=tmp_path, stdout=full)
    refused(done, 4, "No space left", "what was measured is in forebay-")
    (kept,) = tmp_path.glob("forebay-*.json")
    assert json.loads(kept.read_text())["schema"].startswith("forebay.")


@pytest.mark.promise("FLT-22")
@parametrized("arguments", [(*BENCH, "--json"), BENCH, ("files", ".", "--files", "20", "--json")], ids=" ".join, kept=(1,))
def test_what_a_closed_output_does_not_take_is_kept_in_a_file(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = processes.finish(started_without(1, tmp_path, *arguments))
    refused(done, 4, "standard output is closed", "what was measured is in forebay-")
    (kept,) = tmp_path.glob("forebay-*.json")
    assert json.loads(kept.read_text())["schema"].startswith("forebay.")


def test_a_closed_output_that_nothing_is_printed_on_is_no_fault(tmp_path: Path) -> None:
    done = processes.finish(started_without(1, tmp_path, *BENCH, "-q"))
    assert done.returncode == 0 and not list(tmp_path.iterdir()), done.stderr


def to_nobody(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Printed into a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return processes.run([sys.executable, "-m", "forebay.cli", *arguments], cwd=tmp_path, stdout=writer)
    finally:
        os.close(writer)


@parametrized("arguments", [("--help",), ("sweep", "--list"), ("man", "bench")], ids=" ".join, kept=(1,))
def test_where_nobody_reads_a_verb_ends_as_interrupted(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = to_nobody(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.promise("FLT-22")
def test_where_nobody_reads_what_was_measured_is_kept_or_saved_already(tmp_path: Path) -> None:
    assert to_nobody(tmp_path, *BENCH, "-o", "r.json").returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    refused(to_nobody(tmp_path, *BENCH, "--json"), 4, "Broken pipe; what was measured is in forebay-")


def test_a_list_is_printed_at_once(tmp_path: Path) -> None:
    """Or a reader such as head, which leaves after the first of it, would decide the exit code."""
    done = processes.run(["bash", "-c", f"{sys.executable} -m forebay.cli sweep --list | head -c 1; exit ${{PIPESTATUS[0]}}"])
    assert done.returncode == 0 and len(done.stdout) == 1, done.stderr


def test_what_an_output_file_does_not_take_is_kept_in_another(tmp_path: Path) -> None:
    """The folder goes while the files are made."""
    (tmp_path / "gone").mkdir()
    verb = ("files", ".", "--files", "200000", "--file-size", "0", "--phases", "create", "-o", "gone/x.json")
    command = [sys.executable, "-m", "forebay.cli", *verb]
    process = processes.start(command, cwd=tmp_path)
    processes.wait_until(lambda: list(tmp_path.glob("forebay-files-*")), "files are being made", process)
    shutil.rmtree(tmp_path / "gone")
    process.send_signal(signal.SIGINT)
    done = processes.finish(process)
    assert done.returncode == 4 and "-o gone/x.json" in done.stderr, done.stderr
    assert "what was measured is in forebay-" in done.stderr, done.stderr


def test_json_is_json_whatever_else_is_asked(run: Run, tmp_path: Path) -> None:
    done = run("doctor", ".", "--fix-udev", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["schema"] == "forebay.udev/1"
    done = run("gdsio", "-D", ".", "-w", "2", "-s", "4M", "-I", "1", "-x", "1", "--dry-run", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["bench"].startswith("forebay bench")


@pytest.mark.parametrize("flags", [("--direct", "--cache", "warm"), ("--buffered", "--cache", "bypass")])
def test_flags_that_contradict_each_other_are_refused(run: Run, flags: tuple[str, ...]) -> None:
    refused(run(*BENCH, *flags), 2, "contradict")


def test_a_share_is_whole_and_a_number_may_begin_with_a_zero(run: Run) -> None:
    refused(run(*BENCH, "--read-pct", "50.5"), 2, "--read-pct 50.5")
    done = run(*BENCH, "--workers", "02", "--json")
    assert json.loads(done.stdout)["job"]["workers"] == 2
