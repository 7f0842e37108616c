"""What a verb leaves that was killed while it wrote: the same verb knows it for its own, and goes on or removes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from faults_support import content
from forebay.demo import MARK, RESULTS, Tour

SMALL = "--workload llama3-8b --ranks 4 --scale 0.001 --writes 1 --reads 1 --between 0 --workers 2"
# command → a file of what it makes, at which it is killed; what removes or finishes that.
LEFT = {
    "checkpoint": (f"emulate checkpoint --dir out {SMALL}", "out/global_epoch1_step1/zero_pp_*", "--replace"),
    "datagen": ("emulate datagen --workload resnet50 --data out --files 3 --workers 1 -q", "out/train/*", ""),
    "files": ("files out --files 50000 --file-size 4k --workers 2", "out/forebay-files-*/d*/f*", "--clean"),
    "create": ("bench out --create --file-size 64m --files 4 --passes 1 -q", "out/forebay.*", ""),
    "kvcache": ("emulate kvcache --dir out --users 2 --duration 1 --model layers=2,kv_heads=1,head_dim=64,dtype=bf16",
                "out/forebay-kv-*/rank_0/*", ""),
}  # fmt: skip
EACH = [pytest.param(name, marks=[pytest.mark.long] * (name != "checkpoint")) for name in LEFT]


@pytest.mark.promise("FLT-33")
@pytest.mark.parametrize("name", EACH)
def test_the_same_verb_goes_on_with_what_a_killed_one_left_or_removes_it(tmp_path: Path, name: str) -> None:
    line, made, flag = LEFT[name]
    words = [*processes.FOREBAY, *line.split()]
    (tmp_path / "out").mkdir()
    with processes.running(words, cwd=tmp_path) as process:
        processes.wait_until(lambda: any(tmp_path.glob(made)), made, process)
        processes.kill(process)
    mine = tmp_path / "out/mine.txt"
    mine.write_text("mine")
    again = processes.run(words, cwd=tmp_path)
    if name == "checkpoint":
        assert again.returncode == 2 and "try: --replace" in again.stderr, again.stderr
    else:
        assert again.returncode == 0, again.stderr
    if flag:
        clean = [*processes.FOREBAY, "files", "out", "--clean"] if name == "files" else [*words, flag]
        again = processes.run(clean, cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert content(tmp_path / "out") == {"mine.txt": b"mine"}
    assert mine.read_text() == "mine"


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Tour]]:
    made: list[Tour] = []
    yield made
    for demo in made:
        demo.remove(keep=False)


@pytest.mark.promise("FLT-33")
def test_a_demo_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path, demos: list[Tour]) -> None:
    killed = Tour(tmp_path / "d", tmp_path / "o", 0.1, quiet=True)
    (killed.data / "forebay.0").write_bytes(bytes(100))
    (killed.results / RESULTS[0]).write_text("theirs")
    running = Tour(tmp_path / "d", tmp_path / "p", 0.1, quiet=True)
    demos.append(running)
    os.close(killed._held)  # as its end does
    (tmp_path / "d/data-mine").mkdir()
    demos.append(Tour(tmp_path / "d", tmp_path / "o", 0.1, quiet=True))
    assert not killed.data.exists() and (tmp_path / "d/data-mine").is_dir() and (running.data / MARK).is_file()
    assert demos[-1].results == tmp_path / "o-2" and (killed.results / RESULTS[0]).read_text() == "theirs"
