"""Every verb that writes, with every file that it makes, beside what somebody else left under that name."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay import cli
from forebay.plan import explore
from properties import parametrized

SWEEP = 'title = "two depths"\n[job]\nduration = 0.05\n[[point]]\ndepth = [1, 2]\n'
# What is planted under a name; `precious` lies elsewhere, and stays as it is.
KINDS: dict[str, Callable[[Path, Path], Any]] = {
    "a file": lambda at, precious: at.write_text("a thesis"),
    "a link": lambda at, precious: at.symlink_to(precious),
    "a dangling link": lambda at, precious: at.symlink_to(precious.with_name("nothing")),
    "a second name": lambda at, precious: os.link(precious, at),
    "a folder": lambda at, precious: at.mkdir(),
    "a FIFO": lambda at, precious: os.mkfifo(at),
}
# `{given}` is a folder with what some of them read.
COMMANDS = [
    "bench data --create --file-size 64k --duration 0.05 --path host -o run.json -q",
    "bench nil: --duration 0.05 -o run.jsonl -q",
    "bench nil: --duration 0.05 --flow 1@flow -q",
    "bench here --create --op write --file-size 64k --files 2 --duration 0.05 --path host -q",
    "files . --files 4 --workers 1 -o files.json -q",
    "compare --a depth=1 --b depth=2 nil: --duration 0.05 --pairs-min 3 --pairs-max 3 -o compare.json",
    "sweep {given}/sweep.toml nil: -o sweep.jsonl",
    "gdsio -D here -w 1 -s 64k -i 4k -x 1 -I 1 -T 1 --record rec.jsonl",
    "emulate datagen --workload cosmoflow --data data --files 2",
    "emulate checkpoint --workload llama3-8b --ranks 1 --writes 1 --reads 1 --between 0 --dir ck --scale 0.00002 --keep "
    "-o ck.json -q",
    "emulate run --workload cosmoflow --accelerator h100 --data {given}/data --results res -o out.json --epochs 1 -q",
    "emulate search --workload cosmoflow --accelerator h100 --data {given}/data --results found --max 1 --confirm 1 "
    "--epochs 1 -q",
    "emulate matrix solidigm-mlperf --workload cosmoflow --count 1 --max 1 --results m",
    "emulate export {given}/results mlperf",
    "plan whatif --drive D7-PS1010 --vary drives=1:2 --page page.html",
    "export {given}/run.json --csv -o runs.csv",
    "report {given}/run.json --no-charts -o report.html",
    "man --out man",
    "doctor --write-cufile-json cufile.json",
]


def typed(command: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(command.split())
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    (folder / "sweep.toml").write_text(SWEEP)
    assert typed(f"bench nil: --duration 0.05 -o {folder}/run.json -q") == 0
    assert typed(f"emulate datagen --workload cosmoflow --data {folder}/data --files 8") == 0
    run = f"emulate run --workload cosmoflow --accelerator h100 --data {folder}/data --epochs 1 -q"
    # 1 where the machine is too busy for one accelerator.
    assert typed(f"{run} --results {folder}/results") in (0, 1)
    return folder


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "here").mkdir(parents=True)
    os.chdir(folder)


@pytest.mark.promise("FLT-13", "TRA-44")
@parametrized(
    "command", COMMANDS, ids=lambda command: " ".join(command.split()[:2]), kept=(2, 4, 6, 9, 16)
)
def test_what_is_there_stays_and_is_judged_before_anything_is_made(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(explore, "document", lambda *_: {})  # what a page says, which takes seconds, decides nothing here
    command, home = command.format(given=given), tmp_path / "home"
    precious = tmp_path / "precious"
    precious.write_text("a thesis")
    fresh(home)
    assert typed(command) in (0, 1)
    made = [Path(name) for name in listing(home) if Path(name).is_file()]
    assert made
    # Of many that are made alike, the first and the last.
    for name in made if len(made) <= 5 else [*made[:2], *made[-2:]]:
        for kind, plant in KINDS.items():
            fresh(home)
            name.parent.mkdir(parents=True, exist_ok=True)
            plant(name, precious)
            before, mode = listing(home), stat.S_IFMT(os.lstat(name).st_mode)
            code, said = typed(command), capfd.readouterr().err
            what = f"{name} is {kind}: exit code {code}: {said}"
            assert code in (0, 1, 2) and "Traceback" not in said, what
            assert precious.read_text() == "a thesis" and not precious.with_name("nothing").exists(), what
            assert stat.S_IFMT(os.lstat(name).st_mode) == mode, what
            if kind == "a file":
                assert name.read_text() == "a thesis", what
            if kind == "a second name":
                assert name.samefile(precious), what
            if code == 2:
                assert listing(home) == before and "forebay" in said, what


def test_a_results_file_that_is_a_link_is_mended_where_the_link_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(SWEEP)
    kept, link = Path("kept.jsonl"), Path("link.jsonl")
    assert typed(f"sweep sweep.toml nil: -o {kept}") == 0
    whole = kept.read_text()
    kept.write_text(whole + '{"schema": "forebay.point/1", "key"')
    link.symlink_to(kept)
    # The name for damaged lines is taken.
    Path("kept.jsonl.damaged").write_text("a thesis")
    assert typed(f"sweep sweep.toml nil: -o {link}") == 0
    assert link.is_symlink() and [json.loads(line) for line in kept.read_text().splitlines()]
    assert Path("kept.jsonl.damaged").read_text() == "a thesis"
    assert Path("kept.jsonl.damaged.1").read_text().startswith('{"schema": "forebay.point/1"')
