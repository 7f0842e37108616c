"""The files that `-o` and its like name: what is added to, what is replaced, what survives."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import fake_engine
import forebay.run
import processes
import pytest
from forebay import cli
from forebay.bench import save
from forebay.errors import RequestError, RunError
from forebay.plan import explore

RUNS = [{"schema": "forebay.run/1", "id": str(n)} for n in range(3)]
SWEEP = '{"schema": "forebay.sweep/1", "name": "night"}\n{"schema": "forebay.point/1", "key": "a"}\n'
LOG = "".join(json.dumps(run) + "\n" for run in RUNS)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any) -> Any:
    """Types a command in tmp_path, with an engine that calls `meanwhile` within each run: code, stderr, runs."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, meanwhile: Any = lambda: None) -> tuple[int, str, int]:
        ran = []

        def run(job: dict[str, Any], **_: Any) -> dict[str, Any]:
            ran.append(job)
            meanwhile()
            return fake_engine.record()

        monkeypatch.setattr(forebay.run, "run", run)
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        return int(ended.value.code or 0), capfd.readouterr().err, len(ran)

    return call


@pytest.mark.promise("FLT-13")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("night.jsonl", SWEEP),
        ("night.json", SWEEP),
        ("log.json", LOG),
        ("spaced.txt", " " * 5000 + "a thesis"),
        ("blank.jsonl", "\n \n"),
        ("c.json", '{"schema": "forebay.compare/1"}'),
        ("indented.jsonl", json.dumps(RUNS[0], indent=1)),
        (".forebay.json", '{"schema": "forebay.files/1", "files": {}}'),
    ],
)
@pytest.mark.parametrize("command", [("bench", "nil:"), ("files", ".", "--files", "1", "--workers", "1")])
def test_what_is_of_another_kind_is_refused_before_anything_runs(
    typed: Any, tmp_path: Path, name: str, content: str, command: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(content)
    code, said, ran = typed(*command, "-o", name)
    assert (code, ran) == (2, 0) and f"-o {name}" in said
    assert (tmp_path / name).read_text() == content


@pytest.mark.promise("FLT-13")
def test_a_jsonl_keeps_what_it_holds_and_gets_a_line(typed: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(LOG + '{"schema": "forebay.r')  # cut off
    assert typed("bench", "nil:", "-o", log.name)[0] == 0
    assert typed("bench", "nil:", "-o", log.name)[0] == 0
    lines = log.read_text().splitlines()
    assert [json.loads(line) for line in lines[:3]] == RUNS and len(lines) == 6
    assert [json.loads(line) for line in lines[4:]] == [fake_engine.RECORD] * 2


@pytest.mark.promise("FLT-13")
@pytest.mark.parametrize("was_there", [True, False])
@pytest.mark.parametrize("name", ["run.json", "run.jsonl"])
def test_what_came_to_be_while_it_ran_survives_and_so_does_the_record(
    typed: Any, tmp_path: Path, name: str, was_there: bool
) -> None:
    target = tmp_path / name
    if was_there:
        target.write_text(json.dumps(RUNS[0]))
    code, said, _ = typed("bench", "nil:", "-o", name, meanwhile=lambda: target.write_text("a thesis"))
    assert code == 4 and target.read_text() == "a thesis", said
    saved = next(tmp_path.glob("forebay-*.json"))
    assert json.loads(saved.read_text()) == fake_engine.RECORD and saved.name in said


def test_a_record_that_came_to_be_while_it_ran_is_not_replaced(typed: Any, tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    others = json.dumps(RUNS[1])
    assert typed("bench", "nil:", "-o", "run.json", meanwhile=lambda: target.write_text(others))[0] == 4
    assert target.read_text() == others


def test_several_records_are_a_list_in_one_document_or_a_line_each(tmp_path: Path) -> None:
    for name in ("all.json", "all.jsonl"):
        output = save.Output(str(tmp_path / name), save.RUN)
        for n in range(1, 4):
            output.write(RUNS[:n])
    assert json.loads((tmp_path / "all.json").read_text()) == RUNS
    assert (tmp_path / "all.jsonl").read_text() == LOG
    save.Output(str(tmp_path / "all.json"), save.RUN).write(RUNS[:1])
    assert json.loads((tmp_path / "all.json").read_text()) == RUNS[0]


def test_a_link_stays_one_and_what_it_leads_to_is_what_is_looked_at(typed: Any, tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    kept.write_text("a thesis")
    link.symlink_to(kept)
    assert typed("bench", "nil:", "-o", "link.json")[0] == 2 and kept.read_text() == "a thesis"
    kept.write_text(json.dumps(RUNS[0]))
    assert typed("bench", "nil:", "-o", "link.json")[0] == 0
    assert link.is_symlink() and json.loads(kept.read_text()) == fake_engine.RECORD


def test_what_could_not_be_saved_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `files`, `compare` and `tune`, which run long too."""
    monkeypatch.chdir(tmp_path)
    output = save.Output("t.json", save.TUNE)
    (tmp_path / "t.json").write_text("a thesis")
    document = {"schema": "forebay.tune/1", "started": "now"}
    for kept in ("forebay-run.json", "forebay-run-2.json"):
        with pytest.raises(Exception, match=f"what was measured is in {kept}"):
            output.write([document])
        assert json.loads((tmp_path / kept).read_text()) == document
    assert (tmp_path / "t.json").read_text() == "a thesis"


@pytest.mark.promise("FLT-13")
@pytest.mark.parametrize("is_link", [True, False])
def test_manual_pages_replace_only_older_ones(typed: Any, tmp_path: Path, is_link: bool) -> None:
    assert typed("man", "bench", "--out", ".")[0] == 0
    assert typed("man", "bench", "--out", ".")[0] == 0, "an older page is replaced"
    page, precious = tmp_path / "forebay-bench.1", tmp_path / "precious"
    precious.write_bytes(page.read_bytes() if is_link else b"a thesis")
    before = precious.read_bytes()
    page.unlink()
    page.symlink_to(precious) if is_link else page.hardlink_to(precious)
    code, said, _ = typed("man", "bench", "--out", ".")
    assert code == 2 and "forebay-bench.1 exists" in said
    assert precious.read_bytes() == before and page.samefile(precious)


def test_a_disk_that_takes_no_more_leaves_no_empty_csv(tmp_path: Path) -> None:
    program = (
        "from types import SimpleNamespace; from forebay.report import export\n"
        "export.write([SimpleNamespace(id='a', csv='x\\r\\n' * 1000)], '.', False)"
    )

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))

    done = processes.run([sys.executable, "-c", program], cwd=tmp_path, preexec_fn=full)
    assert "RunError" in done.stderr and "--csv" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [(errno.EACCES, RequestError, "can write"), (errno.EDQUOT, RunError, "df -h"), (errno.EIO, RunError, "dmesg")],
)
def test_a_wrong_place_is_told_from_a_disk_that_fails(number: int, kind: type, advice: str) -> None:
    error = save.unwritable("-o x", OSError(number, os.strerror(number)), "folder")
    assert type(error) is kind and os.strerror(number) in error.found and advice in error.next


@pytest.mark.promise("FLT-2")
@pytest.mark.parametrize(
    ("number", "expected", "advice"), [(errno.EROFS, 2, "where you can write"), (errno.ENOSPC, 4, "df -h")]
)
@pytest.mark.parametrize(
    "command",
    [
        "report run.json --no-charts -o out",
        "export run.json --csv -o out",
        "man bench --out .",
        "plan whatif --drive D7-PS1010 --page out",
    ],
)
def test_the_same_fault_of_a_place_has_the_same_exit_code_on_every_verb(
    typed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, number: int, expected: int, advice: str
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(fake_engine.record()))

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(explore, "document", lambda *_: {})  # what a page says, which takes seconds, decides nothing here
    code, err, _ = typed(*command.split())
    assert code == expected and f"can't be written ({os.strerror(number)})" in err and advice in err
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
