"""Faults and bad input, as a user meets them: each ends soon, with its exit code, in words, and loses nothing.

docs/faults.md has the same as a table.
"""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from faults_support import (  # noqa: F401
    BENCH,
    LONG,
    LONG_S,
    MIB,
    Run,
    check_manners,
    content,
    made,
    refused,
    rescued,
    run,
    started,
    wait_for_progress,
)
from properties import parametrized

TARGET = Path(__file__).resolve().parent.parent / "target"
ENGINES = {
    "direct": ("--engine", "uring"),
    "pread": ("--engine", "pread"),
    "buffered": ("--buffered", "--engine", "uring"),
    "inline": ("--buffered", "--engine", "inline"),
    "mapped": ("--buffered", "--engine", "map"),
}


@pytest.fixture
def direct_home(tmp_path: Path) -> Iterator[Path]:
    """A directory where O_DIRECT means something, which the temporary one may lack."""
    kinds = {}
    for parent in (tmp_path, Path("/var/tmp"), TARGET):
        kinds[parent] = processes.run(["stat", "-f", "-c", "%T", parent]).stdout.strip()
        if kinds[parent] not in ("", "tmpfs", "ramfs", "overlayfs") and os.access(parent, os.W_OK):
            with tempfile.TemporaryDirectory(prefix="forebay-direct-", dir=parent) as home:
                yield Path(home)
            return
    pytest.skip(f"O_DIRECT has no meaning in any of {kinds}")


# Requests -------------------------------------------------------------------------------------------------


@pytest.mark.promise("FLT-1")
@parametrized(
    ("flags", "asked"),
    [
        (("--io-size", "1000"), "--io-size 1000"),
        (("--start", "100"), "--start 100"),
        (("--op", "randread", "--align", "100"), "--align 100"),
        (("--io-size", "4k:64k:100"), "--io-size in steps of 100"),
        (("--file-size", "1000001"), "--file-size 1000001"),
    ],
    kept=(0, 2, 4),
)
def test_what_o_direct_cannot_take_is_refused_with_the_alignment(
    run: Run, direct_home: Path, flags: tuple[str, ...], asked: str
) -> None:
    made(direct_home / "f")
    done = run(*BENCH, "f", *flags, cwd=direct_home)
    refused(done, 2, asked, "O_DIRECT needs a multiple of", "bytes here", "--buffered")
    assert run(*BENCH, "f", *flags, "--buffered", cwd=direct_home).returncode == 0


def test_a_file_that_ends_inside_a_block_is_read_to_its_end(run: Run, direct_home: Path) -> None:
    made(direct_home / "f", MIB + 777)
    for engine in ENGINES.values():
        flags = ("--passes", "1", "--io-size", "64k", "--json", *engine)
        done = run("bench", "-q", "f", *flags, cwd=direct_home)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["result"]["bytes"] == MIB + 777


@pytest.mark.promise("FLT-6")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--workers", "0"), ("--workers 0", "1 to 4096")),
        (("--depth", "0"), ("--depth 0", "1 to 4096")),
        (("--depth", "5000"), ("--depth 5000", "1 to 4096")),
        (("--depth", "9" * 30), ("--depth", "whole number")),
        (("--seed", "-1"), ("--seed -1", "whole number")),
        (("--files", "99999999999"), ("--files 99999999999", "whole number")),
        (("--io-size", "2g"), ("--io-size 2g", "1 GiB")),
        (("--io-size", "0"), ("--io-size", "1 byte")),
        (("--io-size", "64k:4k"), ("--io-size", "less than the minimum")),
        (("--io-size", "99999999999p"), ("--io-size", "overflows")),
        (("--file-size", "7000p", "--files", "4000", "--workers", "4"), ("--file-size", "overflows")),
        (("--start", "7000p"), ("no data",)),
        (("--duration", "1e999"), ("--duration 1e999",)),
        (("--duration", "nan"), ("--duration nan",)),
        (("--timeout", "0"), ("--timeout 0", "0.001")),
        (("--rate", "0"), ("--rate 0", "above 0")),
        (("--read-pct", "300"), ("--read-pct 300", "0 to 100")),
        (("--distribution", "zipf:9"), ("--distribution zipf:9",)),
        (("--cpus", "0-99999999999"), ("--cpus 0-99999999999",)),
        (("--numa", "77"), ("--numa 77", "no such NUMA node")),
        (("--faults", "eror=0.1"), ("--faults eror=0.1", "not a known fault")),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_flag_and_value(
    run: Run, tmp_path: Path, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    made(tmp_path / "f", 65536)
    before = content(tmp_path)
    refused(run(*BENCH, "f", *flags), 2, *words)
    assert content(tmp_path) == before


@pytest.mark.promise("FLT-6")
def test_more_buffers_than_memory_are_refused_before_they_are_touched(run: Run, tmp_path: Path) -> None:
    made(tmp_path / "f", 65536)
    # The limit is for a build that doesn't refuse: it must not take the machine down.
    limited = ["prlimit", f"--as={64 << 30}", *processes.FOREBAY]
    # By an engine that keeps many in flight on any file system: what is in memory is read one at a time.
    flags = [*BENCH, "f", "--workers", "4096", "--depth", "4096", "--io-size", "64k", "--engine", "pread"]
    done = processes.run([*limited, *flags], cwd=tmp_path)
    check_manners(done)
    refused(done, 3, "--workers 4096 × --depth 4096", "1024.0 GiB of buffers", "of memory are free")


@pytest.mark.promise("FLT-2")
def test_sources_that_are_nothing_to_read_are_refused(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "l1").symlink_to("l2")
    (tmp_path / "l2").symlink_to("l1")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "up").symlink_to("..")
    made(tmp_path / "loop" / "f", 65536)
    refused(run(*BENCH, "nope"), 2, "read nope", "no such file", "--create --file-size 1g")
    refused(run(*BENCH, "no/where", "--create", "--file-size", "1m"), 2, "there is no directory no", "mkdir -p no")
    refused(run(*BENCH, "pipe"), 2, "neither a file, a directory nor a block device")
    refused(run(*BENCH, "/dev/full"), 2, "/dev/full", "neither a file")
    refused(run(*BENCH, "/dev/full", "--op", "write"), 2, "/dev/full", "neither a file")
    refused(run(*BENCH, "/dev/nosuchdrive", "--op", "write"), 2, "no such device", "lsblk")
    refused(run(*BENCH, "empty"), 2, "empty", "is empty")
    refused(run(*BENCH, "l1"), 2, "l1", "symbolic links")
    assert run(*BENCH, "loop").returncode == 0, "a directory that links to its parent is a directory of files"
    assert run(*BENCH, "loop/up/loop/up/loop/f").returncode == 0


def test_a_link_is_followed_for_reading_and_never_makes_a_file_elsewhere(run: Run, tmp_path: Path) -> None:
    made(tmp_path / "mine", 65536)
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert run(*BENCH, "link").returncode == 0
    before = content(tmp_path)
    refused(run(*BENCH, "link", "--op", "write"), 2, "write to link", "Forebay didn't create it")
    for op in ("read", "write"):
        done = run(*BENCH, "dangling", "--create", "--op", op, "--file-size", "1m")
        assert done.returncode in (2, 4) and "dangling" in done.stderr, done.stderr
    assert content(tmp_path) == before and not (tmp_path / "nowhere").exists()


# What is the user's ---------------------------------------------------------------------------------------


@pytest.mark.promise("FLT-11")
@pytest.mark.parametrize("op", ["write", "randwrite"])
def test_a_file_that_we_did_not_make_is_not_written_to_unless_named(
    run: Run, tmp_path: Path, op: str
) -> None:
    mine = made(tmp_path / "mine", MIB)
    before = mine.read_bytes()
    refused(run(*BENCH, "mine", "--op", op), 2, "write to mine", "Forebay didn't create it", "--overwrite mine")
    refused(run(*BENCH, "mine", "--read-pct", "70"), 2, "write to mine")
    other = made(tmp_path / "other", 65536)
    refused(run(*BENCH, "mine", "--op", op, "--overwrite", "other"), 2, "write to mine")
    refused(run(*BENCH, "stripe:?chunk=64k&m=other&m=mine", "--op", op, "--overwrite", "other"), 2, "mine")
    assert mine.read_bytes() == before
    kept = other.read_bytes()
    assert run(*BENCH, "mine", "--op", op, "--overwrite", tmp_path / "mine").returncode == 0
    assert mine.read_bytes() != before and other.read_bytes() == kept
    # Named once is not ours for ever.
    refused(run(*BENCH, "mine", "--op", op), 2, "write to mine")


def test_a_file_that_took_the_name_of_one_of_ours_is_not_ours(run: Run, tmp_path: Path) -> None:
    assert run(*BENCH, "f", "--op", "write", "--file-size", "1m").returncode == 0
    assert run(*BENCH, "f", "--op", "write").returncode == 0
    (tmp_path / "mine").write_bytes(b"precious" * 8192)
    os.replace(tmp_path / "mine", tmp_path / "f")
    refused(run(*BENCH, "f", "--op", "write"), 2, "write to f", "Forebay didn't create it")
    assert (tmp_path / "f").read_bytes() == b"precious" * 8192


def test_a_damaged_list_of_our_files_is_named_and_left_alone(run: Run, tmp_path: Path) -> None:
    for text in ("{", '{"schema": "forebay.files/9", "files": {}}', "\0\0\0", "[]"):
        (tmp_path / ".forebay.json").write_text(text)
        refused(run(*BENCH, "f", "--create", "--file-size", "1m"), 2, ".forebay.json", "mv ")
        assert (tmp_path / ".forebay.json").read_text() == text
        assert not (tmp_path / "f").exists()


def unharmed(done: started) -> None:
    """It went on until it was interrupted, and none of its I/Os failed."""
    assert done.returncode == 130, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["interrupted"] and result["ios"] > 0 and result["errors"]["failed"] == 0


@pytest.mark.long
@pytest.mark.promise("FLT-10")
def test_two_writers_in_one_directory_exclude_each_other_and_two_readers_do_not(
    run: Run, tmp_path: Path
) -> None:
    assert run(*BENCH, ".", "--file-size", "1m", "--op", "write").returncode == 0
    with started(tmp_path, *LONG, ".", "--op", "write", "--json") as first:
        wait_for_progress(first)
        refused(run(*BENCH, ".", "--op", "write"), 3, "another Forebay run", "another directory")
        refused(run(*BENCH, "."), 3, "another Forebay run is writing")
        first.interrupt()
    unharmed(first)
    with started(tmp_path, *LONG, ".", "--json") as first:
        wait_for_progress(first)
        assert run(*BENCH, ".").returncode == 0
        refused(run(*BENCH, ".", "--op", "write"), 3, "another Forebay run")
        first.interrupt()
    unharmed(first)
    assert run(*BENCH, ".", "--op", "write").returncode == 0


# Faults of devices ----------------------------------------------------------------------------------------


@pytest.mark.promise("FLT-3")
@parametrized("engine", ENGINES, kept=(1,))
def test_a_file_truncated_while_it_is_read_fails_the_run_and_keeps_the_record(
    run: Run, tmp_path: Path, engine: str
) -> None:
    file = made(tmp_path / "f", 16 * MIB)
    with started(tmp_path, *LONG, "f", "--interval", "100", *ENGINES[engine]) as under_way:
        wait_for_progress(under_way)
        os.truncate(file, 64 * 1024 + 100)
    assert under_way.returncode == 4, under_way.stderr
    assert "f by host" in under_way.stderr and "I/Os failed" in under_way.stderr
    assert "shorter than" in under_way.stderr or "changed while it was read" in under_way.stderr
    record = rescued(tmp_path)
    assert record["result"]["errors"]["failed"] > 0 and record["result"]["bytes"] > 0
    assert record["result"]["seconds"] < LONG_S / 2, "the run went on although the data was gone"


@pytest.mark.promise("FLT-3")
@parametrized("engine", ENGINES, kept=(4,))
def test_a_file_removed_while_it_is_read_is_read_to_the_end_of_the_run(
    run: Run, tmp_path: Path, engine: str
) -> None:
    file = made(tmp_path / "f", 4 * MIB)
    with started(tmp_path, *LONG, "f", "--json", *ENGINES[engine]) as under_way:
        wait_for_progress(under_way)
        file.unlink()
        wait_for_progress(under_way)
        under_way.interrupt()
    unharmed(under_way)


@pytest.mark.promise("FLT-4")
@parametrized("path", ["host", "bounce"], kept=(0,))
@pytest.mark.parametrize("source", ["f", "stripe:?chunk=64k&m=f&m=g"])
def test_an_error_of_the_device_is_named_counted_and_the_rest_kept(
    run: Run, tmp_path: Path, path: str, source: str
) -> None:
    made(tmp_path / "f")
    made(tmp_path / "g")
    faults = ("--faults", "seed=3,error=0.05,short=0.1,reorder=1")
    done = run(*BENCH, source, "--path", path, *faults, "--json")
    refused(done, 4, "I/Os failed", "injected error at offset", "what was measured is in")
    record, saved = json.loads(done.stdout), rescued(tmp_path)
    assert saved["id"] == record["id"]
    errors = record["result"]["errors"]
    assert errors["failed"] > 0 and errors["short"] > 0 and errors["timed_out"] == 0
    assert record["result"]["ios"] > errors["failed"] and len(errors["examples"]) <= 5
    assert f"{errors['failed']} I/Os failed" in done.stderr


def test_short_transfers_alone_are_finished_counted_and_verified(run: Run, tmp_path: Path) -> None:
    flags = ("--create", "--file-size", "4m", "--verify", "--faults", "short=0.5,reorder=1,delay_us=300", "--json")
    done = run(*BENCH, "f", *flags)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["errors"]["short"] > 0 and result["errors"]["failed"] == 0
    assert result["verified_bytes"] > 0 and result["errors"]["verify_failed"] == 0


@pytest.mark.promise("FLT-5")
@pytest.mark.parametrize("path", ["host", "bounce"])
@parametrized("engine", ENGINES, kept=(0, 3))
def test_a_device_that_stalls_ends_in_a_named_time_out_with_the_rest_kept(
    run: Run, tmp_path: Path, engine: str, path: str
) -> None:
    made(tmp_path / "f")
    flags = ("--faults", "stall=0.02", "--timeout", "1", "--path", path, "--json", *ENGINES[engine])
    done = run(*LONG, "f", *flags)
    refused(done, 4, "I/Os timed out", "unfinished after --timeout 1 s", "read of 65536 bytes at")
    result = json.loads(done.stdout)["result"]
    assert result["errors"]["timed_out"] > 0 and result["errors"]["failed"] == 0
    assert result["ios"] > 0 and result["seconds"] < LONG_S / 2
    assert rescued(tmp_path)["result"]["ios"] == result["ios"]


def test_ios_that_come_back_long_after_they_were_given_up_do_no_harm(run: Run, tmp_path: Path) -> None:
    made(tmp_path / "f")
    flags = ("--faults", "delay_us=8000000,short=0.3", "--timeout", "0.5", "--depth", "32", "--json")
    done = run(*LONG, "f", *flags)
    assert done.returncode == 4 and "timed out" in done.stderr, done.stderr


# Outputs --------------------------------------------------------------------------------------------------


def test_an_output_that_cannot_be_written_keeps_the_record_elsewhere(run: Run, tmp_path: Path) -> None:
    done = run("bench", "nil:", "--duration", "0.2", "--json", "-o", "/dev/full")
    refused(done, 4, "-o /dev/full", "No space left")
    assert rescued(tmp_path)["id"] == json.loads(done.stdout)["id"]


@pytest.mark.long
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_full_standard_output_keeps_the_record(tmp_path: Path, flags: tuple[str, ...]) -> None:
    command = [*processes.FOREBAY, "bench", "nil:?size=1g", "--passes", "1", *flags]
    with open("/dev/full", "w") as full:
        done = processes.run(command, stdout=full, cwd=tmp_path)
    check_manners(done)
    refused(done, 4, "writing the output", "No space left", "what was measured is in")
    assert rescued(tmp_path)["result"]["ios"] > 0


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("bench", "nil:", "--dry-run")])
def test_a_full_standard_output_is_never_a_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = processes.run([*processes.FOREBAY, *arguments], stdout=full, cwd=tmp_path)
    check_manners(done)
    refused(done, 4, "No space left")


# Sweeps ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "s.toml"
    file.write_text('[job]\nsource = "nil:"\nduration = 0.1\n[matrix]\nio-size = ["4k", "64k", "1m"]\n')
    yield file


def test_an_unknown_key_in_a_sweep_is_named_and_nothing_runs(run: Run, sweep_file: Path) -> None:
    sweep_file.write_text(sweep_file.read_text().replace("duration", "durration"))
    refused(run("sweep", sweep_file), 2, "durration", "s.toml")
    assert [p.name for p in sweep_file.parent.iterdir()] == ["s.toml"]


@pytest.mark.promise("FLT-8")
def test_a_damaged_line_of_a_sweep_is_run_again_and_the_others_kept(
    run: Run, sweep_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs.jsonl"
    assert run("sweep", sweep_file, "-o", out).returncode == 0
    lines = out.read_text().splitlines()
    out.write_text("\n".join([lines[0], lines[1][: len(lines[1]) // 2], lines[2]]) + "\n")
    done = run("sweep", sweep_file, "-o", out)
    assert done.returncode == 0 and "2" in done.stderr, done.stderr
    again = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(again) == len(lines)
    assert {lines[0], lines[2]} <= set(out.read_text().splitlines()), "a finished point was lost"
