"""A read measures what is there and makes nothing; files are made where that is asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from faults_support import BENCH, Run, content, made, refused, run  # noqa: F401
from forebay import own_files
from forebay.sweep.points import point_key

ROOT = Path(__file__).resolve().parent.parent
CACHED = (*BENCH, "--cache", "allow")
KIB = 1 << 10


def record(run: Run, *arguments: object) -> dict[str, Any]:  # noqa: F811
    done = run(*CACHED, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def targets(found: dict[str, Any]) -> list[str]:
    return [t["target"] for t in found["result"]["targets"]]


def nested(home: Path) -> dict[str, bytes]:
    """A data set one and two levels down; what it holds."""
    for name, size in {"b/2.bin": 96, "b/1.bin": 64, "a/x/deep.bin": 32}.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        made(home / name, size * KIB)
    return content(home)


@pytest.mark.promise("BEN-11")
def test_a_read_of_a_missing_path_makes_nothing_and_says_what_to_type(
    run: Run, tmp_path: Path  # noqa: F811
) -> None:
    done = run(*CACHED, "missing", "--file-size", "256k")
    refused(done, 2, "read missing", "there is no such file", "--create --file-size 256k")
    refused(run(*CACHED, "missing"), 2, "--create --file-size 1g")
    refused(run(*CACHED, "stripe:?chunk=64k&m=a&m=b", "--file-size", "256k"), 2, "read a", "--create")
    assert content(tmp_path) == {}
    found = record(run, "missing", "--create", "--file-size", "256k", "--verify")
    assert found["result"]["verified_bytes"] == 256 * KIB
    assert (tmp_path / "missing").stat().st_size == 256 * KIB


@pytest.mark.promise("BEN-11")
def test_a_write_to_a_missing_path_makes_it(run: Run, tmp_path: Path) -> None:  # noqa: F811
    record(run, "new", "--op", "write", "--file-size", "256k")
    assert (tmp_path / "new").stat().st_size == 256 * KIB
    (tmp_path / "d").mkdir()
    record(run, "d", "--op", "write", "--file-size", "64k", "--workers", "2")
    assert {p.name for p in (tmp_path / "d").glob("forebay.*")} == {"forebay.0", "forebay.1"}


@pytest.mark.promise("BEN-11")
@pytest.mark.parametrize("flags", [(), ("--workers", "3"), ("--file-size", "1g")])
def test_files_in_nested_folders_are_read_as_found(
    run: Run, tmp_path: Path, flags: tuple[str, ...]  # noqa: F811
) -> None:
    data = tmp_path / "data"
    before = nested(data)
    found = record(run, "data", *flags)
    assert targets(found) == ["data/a/x/deep.bin", "data/b/1.bin", "data/b/2.bin"]
    assert found["result"]["bytes"] == sum(map(len, before.values()))
    assert content(tmp_path) == before


@pytest.mark.promise("BEN-12")
def test_file_size_bounds_what_is_read_and_files_how_many(run: Run, tmp_path: Path) -> None:  # noqa: F811
    data = tmp_path / "data"
    before = nested(data)
    assert record(run, "data", "--file-size", "64k")["result"]["bytes"] == (32 + 64 + 64) * KIB
    assert targets(record(run, "data", "--files", "2")) == ["data/a/x/deep.bin", "data/b/1.bin"]
    done = run(*CACHED, "data", "--files", "200")
    refused(done, 2, "read 200 files of data", "there are 3", "--files 3", "--create")
    assert record(run, "data/b/2.bin", "--file-size", "64k")["result"]["bytes"] == 64 * KIB
    assert content(tmp_path) == before


@pytest.mark.promise("BEN-11")
def test_a_name_that_matches_nothing_makes_nothing(run: Run, tmp_path: Path) -> None:  # noqa: F811
    before = nested(tmp_path / "data")
    done = run(*CACHED, "data", "--file-name", "other.%d")
    refused(done, 2, "there is no file called other.0 in it", "--create --file-size 1g")
    (tmp_path / "none").mkdir()
    refused(run(*CACHED, "none"), 2, "read none", "no file with data", "--create --file-size 1g")
    assert content(tmp_path) == before


@pytest.mark.promise("BEN-11")
def test_what_was_made_in_a_folder_is_read_from_then_on(run: Run, tmp_path: Path) -> None:  # noqa: F811
    data = tmp_path / "data"
    nested(data)
    flags = ("--file-size", "128k", "--workers", "2")
    assert targets(record(run, "data", "--create", *flags)) == ["data/forebay.0", "data/forebay.1"]
    before = content(data)
    assert targets(record(run, "data", "--verify")) == ["data/forebay.0", "data/forebay.1"]
    done = run(*CACHED, "data/forebay.0", "--file-size", "192k")
    refused(done, 2, "it has 131072 bytes", "--create to have it made larger")
    assert content(data) == before
    record(run, "data/forebay.0", "--file-size", "192k", "--create", "--verify")
    assert (data / "forebay.0").stat().st_size == 192 * KIB


@pytest.mark.promise("BEN-12")
def test_a_number_of_files_of_what_is_no_directory_is_refused(run: Run, tmp_path: Path) -> None:  # noqa: F811
    made(tmp_path / "f", 64 * KIB)
    refused(run(*CACHED, "f", "--files", "200"), 2, "--files 200 of f", "it is one file", "no --files")
    refused(run(*CACHED, "d", "--files", "2", "--create"), 2, "no such directory", "mkdir -p d")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.long
@pytest.mark.promise("SWP-6")
def test_a_sweep_makes_its_files_in_a_folder_of_its_own(run: Run, tmp_path: Path) -> None:  # noqa: F811
    before = nested(tmp_path / "data")
    job = '[job]\npasses = 1\ncache = "allow"\nio-size = "64k"\nworkers = 2\n[matrix]\ndepth = [1, 2]\n'
    (tmp_path / "s.toml").write_text(job.replace("[job]", '[job]\nfile-size = "128k"'))
    done = run("sweep", "s.toml", "data", "-o", "o")
    assert done.returncode == 0, done.stderr
    assert "files are created in data/forebay-sweep: up to 256k" in done.stderr
    own = tmp_path / "data" / "forebay-sweep"
    assert sorted(p.name for p in own.iterdir()) == [".forebay.json", "forebay.0", "forebay.1"]
    assert {k: v for k, v in content(tmp_path / "data").items() if k in before} == before
    assert len(targets(record(run, "data"))) == 3, "they are no part of the data"
    # What gives no size reads what is there, and so does what says so.
    (tmp_path / "there.toml").write_text(job)
    for sweep, flags in (("there.toml", ()), ("s.toml", ("--set", "create=no"))):
        done = run("sweep", sweep, "data", "-o", f"{sweep}.out", *flags)
        assert done.returncode == 0, done.stderr
        points = [json.loads(x) for x in (tmp_path / f"{sweep}.out").read_text().splitlines()[1:]]
        assert all(len(targets(p["record"])) == 3 for p in points)


@pytest.mark.long
@pytest.mark.promise("SWP-6")
def test_tune_makes_its_files_in_a_folder_of_its_own(run: Run, tmp_path: Path) -> None:  # noqa: F811
    before = nested(tmp_path / "data")
    flags = ("--cache", "allow", "--fix", "io-size=64k workers=1 depth=1", "--max-time", "1s", "--json")
    done = run("tune", "data", "--file-size", "128k", "--files", "2", *flags)
    assert done.returncode == 0, done.stderr
    assert "data/forebay-tune" in json.loads(done.stdout)["bench"]
    own = tmp_path / "data" / "forebay-tune"
    assert sorted(p.name for p in own.iterdir()) == [".forebay.json", "forebay.0", "forebay.1"]
    done = run("tune", "data", "--fix", "create=no", *flags)
    assert done.returncode == 0 and " data " in json.loads(done.stdout)["bench"], done.stderr
    assert {k: v for k, v in content(tmp_path / "data").items() if k in before} == before


@pytest.mark.promise("SWP-6")
def test_a_folder_in_which_nothing_was_made_is_taken_away(run: Run, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "data").mkdir()
    (tmp_path / "s.toml").write_text('[job]\nfile-size = "4000p"\npasses = 1\ncache = "allow"\n')
    done = run("sweep", "s.toml", "data", "-o", "o")
    assert done.returncode == 3, done.stderr
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.promise("FLT-30")
def test_a_folder_that_took_the_place_of_ours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken away is the folder that was made, not what has its name by then."""
    home = tmp_path / own_files.TUNE

    def replaced(job: dict[str, Any], observer: object) -> dict[str, Any]:
        assert job["sources"] == [str(home)] and home.is_dir()
        home.rename(tmp_path / "aside")
        home.mkdir()
        return {}

    monkeypatch.setattr(own_files.engine, "run", replaced)
    job = {"sources": [str(tmp_path)], "files": 1, "file_bytes": KIB}
    own_files.run(job, own_files.TUNE)
    assert home.is_dir()
    # One that somebody else made is there before us, however late.
    monkeypatch.setattr(own_files.engine, "run", lambda job, observer: {})
    own_files.run(job, own_files.TUNE)
    assert home.is_dir()
    home.rmdir()
    own_files.run(job, own_files.TUNE)
    assert not home.exists(), "ours, and empty"


@pytest.mark.promise("BEN-11")
def test_a_comparison_reads_what_is_there(run: Run, tmp_path: Path) -> None:  # noqa: F811
    job = ("compare", "--a", "depth=1", "--b", "depth=2", "missing", "--file-size", "64k", "--cache", "allow")
    refused(run(*job), 2, "read missing", "--create --file-size 64k")
    assert content(tmp_path) == {}


@pytest.mark.promise("BEN-11")
def test_a_fio_job_lays_out_its_files(run: Run, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "j.fio").write_text("[j]\nfilename=laid\nsize=256k\nbs=64k\nrw=read\n")
    done = run("bench", "-q", "--fio", "j.fio")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "laid").stat().st_size == 256 * KIB
    (tmp_path / "j.fio").write_text("[j]\nfilename=absent\nbs=64k\nrw=read\n")
    refused(run("bench", "-q", "--fio", "j.fio"), 2, "read absent", "there is no such file")


@pytest.mark.promise("SWP-6")
def test_a_run_that_made_its_files_is_the_work_of_one_that_found_them(
    run: Run, tmp_path: Path  # noqa: F811
) -> None:
    making, finding = (record(run, "f", "--file-size", "256k", *more)["job"] for more in (["--create"], []))
    assert making.pop("create") and not finding.pop("create") and making == finding
    assert point_key({**making, "create": True}) == point_key(finding)


@pytest.mark.promise("SWP-6")
def test_the_engine_leaves_out_the_folders_that_verbs_make() -> None:
    text = (ROOT / "crates/storage/src/opening/found.rs").read_text()
    listed = re.search(r"NOT_OF_THE_DATA: \[&str; \d+\] = \[(.*?)\]", text)
    assert listed and set(own_files.NAMES) <= set(re.findall(r'"(.*?)"', listed[1]))
