"""`forebay gdsio` as a user runs it: the real command, real files, what lands on stdout and which exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
import watched
from properties import parametrized

engine = pytest.importorskip("forebay._core", reason="the engine is not built: maturin develop")
if not hasattr(engine, "run"):
    pytest.skip("this build's engine runs no jobs", allow_module_level=True)

LINE = re.compile(
    r"IoType: (?P<op>\w+) XferType: (?P<label>\w+) Threads: (?P<threads>\d+) "
    r"DataSetSize: (?P<moved>\d+)/(?P<data>\d+)\(KiB\) IOSize: (?P<io>[\d.-]+)\(KiB\) "
    r"Throughput: (?P<rate>\d+\.\d{6}) GiB/sec, Avg_Latency: (?P<latency>\d+\.\d{6}) usecs "
    r"ops: (?P<ops>\d+) total_time (?P<seconds>\d+\.\d{6}) secs"
)
COMMAND = [*processes.FOREBAY, "gdsio"]


def gdsio(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    done = processes.run([*COMMAND, *words], env={**os.environ, **environment})
    assert "Traceback" not in done.stderr, done.stderr
    return done


def parsed(line: str) -> dict[str, str]:
    match = LINE.fullmatch(line)
    assert match, line
    return match.groupdict()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two files of 4 MiB that `gdsio -I 1 -V` wrote."""
    done = gdsio("-D", tmp_path, *"-w 2 -s 4M -i 64k -x 1 -I 1 -V".split())
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_a_write_makes_gdsios_files_and_counts_every_byte(tmp_path: Path) -> None:
    done = gdsio("-D", tmp_path, *"-w 2 -s 4M -i 64k -x 1 -I 1".split())
    assert done.returncode == 0, done.stderr
    assert {p.name: p.stat().st_size for p in tmp_path.glob("gdsio.*")} == {
        "gdsio.0": 4 << 20,
        "gdsio.1": 4 << 20,
    }
    line = parsed(done.stdout.strip())
    assert (line["op"], line["label"], line["threads"]) == ("WRITE", "CPUONLY", "2")
    assert (line["moved"], line["data"], line["io"], line["ops"]) == ("8192", "8192", "64", "128")
    rate = int(line["moved"]) / (1 << 20) / float(line["seconds"])
    assert float(line["rate"]) == pytest.approx(rate, rel=1e-3, abs=2e-6)


@parametrized(
    ("words", "op", "io"),
    [
        ("-I 0", "READ", "64"),
        ("-I 2", "RANDREAD", "64"),
        ("-I 0 -i 16k:64k:16k", "READ", "16-64-16"),
        ("-I 0 -O 1", "READ", "64"),
    ],
    kept=(2,),
)
def test_a_read_of_one_pass_moves_the_data_once(data: Path, words: str, op: str, io: str) -> None:
    done = gdsio("-D", data, *"-w 2 -s 4M -i 64k -x 1".split(), *words.split())
    assert done.returncode == 0, done.stderr
    line = parsed(done.stdout.strip())
    assert (line["op"], line["io"], line["data"]) == (op, io, "8192")
    assert int(line["moved"]) == pytest.approx(8192, abs=64)


@pytest.mark.promise("GIO-8")
def test_a_program_of_its_own_says_the_same(data: Path) -> None:
    """The entry point forebay-gdsio."""
    line = ["-x", "1", "-I", "0", "-D", data, "-w", "2", "-i", "64k", "--json"]
    done = processes.run([sys.executable, "-c", "from forebay import early; early.gdsio()", *line])
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["command"][:3] == ["forebay", "gdsio", "-x"] and record["result"]["ios"] > 0


@pytest.mark.long
def test_a_duration_is_kept(data: Path) -> None:
    line = parsed(gdsio("-D", data, *"-w 2 -s 4M -i 64k -x 1 -I 2 -T 1".split()).stdout.strip())
    assert 0.99 <= float(line["seconds"]) < 10


def test_an_offset_and_a_size_inside_the_file(data: Path) -> None:
    line = parsed(gdsio("-f", data / "gdsio.0", *"-w 1 -o 1M -s 2M -i 64k -x 1".split()).stdout.strip())
    assert (line["moved"], line["data"], line["ops"]) == ("2048", "2048", "32")


def test_two_directories_make_one_line(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    done = gdsio("-D", tmp_path / "a", "-D", tmp_path / "b", *"-w 2 -s 1M -i 64k -x 1 -I 1".split())
    assert done.returncode == 0, done.stderr
    line = parsed(done.stdout.strip())
    assert (line["threads"], line["moved"], line["data"]) == ("4", "4096", "4096")
    assert len(list(tmp_path.glob("*/gdsio.*"))) == 4


def test_a_verified_write_prints_both_lines(tmp_path: Path) -> None:
    for op in ("1", "3"):
        done = gdsio("-D", tmp_path, *"-w 2 -s 1M -i 64k -x 1 -V".split(), "-I", op)
        assert done.returncode == 0, done.stderr
        first, between, second = done.stdout.splitlines()
        assert (parsed(first)["moved"], between.strip(), parsed(second)["moved"]) == (
            "2048",
            "Verifying data",
            "2048",
        )


def test_verifying_finds_a_changed_byte(data: Path) -> None:
    words = ["-D", data, *"-w 2 -s 4M -i 64k -x 1 -I 0 -V".split()]
    assert gdsio(*words).returncode == 0
    with open(data / "gdsio.1", "r+b") as file:
        file.seek(1 << 20)
        byte = file.read(1)[0]
        file.seek(1 << 20)
        file.write(bytes([byte ^ 1]))
    done = gdsio(*words)
    assert done.returncode == 1
    parsed(done.stdout.strip())


@pytest.mark.promise("GIO-4")
def test_a_read_of_what_is_not_there_creates_nothing(tmp_path: Path) -> None:
    done = gdsio("-D", tmp_path, *"-w 2 -s 4M -x 1 -I 0".split())
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "-I 1" in done.stderr


def test_a_file_of_the_users_is_not_overwritten_unasked(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"precious" * 8192)
    done = gdsio("-f", mine, *"-s 64k -i 64k -x 1 -I 1".split())
    assert (done.returncode, done.stdout) == (2, "")
    assert "--overwrite" in done.stderr
    assert mine.read_bytes() == b"precious" * 8192
    assert gdsio("-f", mine, *"-s 64k -i 64k -x 1 -I 1".split(), "--overwrite", mine).returncode == 0
    assert mine.read_bytes() != b"precious" * 8192


def test_a_file_called_as_gdsios_is_overwritten_only_where_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "gdsio.0").write_bytes(b"precious" * (1 << 17))
    write = ("-D", tmp_path, *"-w 2 -s 1M -i 64k -x 1 -I 1".split())
    done = gdsio(*write)
    assert done.returncode == 2 and f"--overwrite {tmp_path}/gdsio.0" in done.stderr
    assert (tmp_path / "gdsio.0").read_bytes() == b"precious" * (1 << 17)
    done = gdsio(*write, "--overwrite", tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"precious" not in (tmp_path / "gdsio.0").read_bytes()


@parametrized("flag", ["", "--json"], kept=(1,))
def test_a_full_output_costs_no_measurement(tmp_path: Path, flag: str) -> None:
    with open("/dev/full", "w") as full:
        command = [*processes.FOREBAY, "gdsio", "-D", tmp_path, *"-w 1 -s 1M -i 64k -x 1 -I 1".split(), *flag.split()]
        done = processes.run(command, cwd=tmp_path, stdout=full)
    (kept,) = tmp_path.glob("forebay-*.json")
    assert done.returncode == 4 and f"what was measured is in {kept.name}" in done.stderr
    assert json.loads(kept.read_text())["result"]["bytes"] == 1 << 20


def test_a_full_record_still_prints_the_line_and_says_where_the_record_is(tmp_path: Path) -> None:
    command = [*processes.FOREBAY, "gdsio", "-D", tmp_path, *"-w 1 -s 1M -i 64k -x 1 -I 1 --record /dev/full".split()]
    done = processes.run(command, cwd=tmp_path)
    (kept,) = tmp_path.glob("forebay-*.json")
    assert done.returncode == 4 and done.stdout.startswith("IoType: WRITE") and kept.name in done.stderr


def test_the_papers_command_without_libcufile_names_x_1(data: Path) -> None:
    words = f"-T 45 -s 512M -I 0 -x 0 -D {data} -w 32 -d 0 -i 64k".split()
    done = gdsio(*words, FOREBAY_LIBCUFILE="")
    assert (done.returncode, done.stdout) == (3, "")
    assert "-x 1" in done.stderr


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU")
@parametrized(
    ("number", "label"), [(2, "CPU_HOST"), (3, "CPU_ASYNC_HOST"), (4, "CPU_CACHED_HOST")],
    kept=(0,),
)
def test_a_rehearsal_without_a_gpu_says_host(data: Path, number: int, label: str) -> None:
    words = ["-D", data, *"-w 2 -s 4M -i 64k".split(), "-x", number]
    assert gdsio(*words).returncode == 3
    done = gdsio(*words, "--allow-host-destination")
    assert done.returncode == 0, done.stderr
    assert parsed(done.stdout.strip())["label"] == label


@pytest.mark.long
@parametrized("number", [signal.SIGINT, signal.SIGTERM], kept=(0,))
def test_an_interrupted_run_prints_what_was_measured(data: Path, number: signal.Signals) -> None:
    words = ["gdsio", "-D", data, *"-w 2 -s 4M -i 64k -x 1 -I 2 -T 3600".split()]
    witness = data / "witness"
    started = time.monotonic()
    with watched.running(witness, *words, cwd=data) as running:
        watched.wait_until_measured(witness, running)
        running.send_signal(number)
        done = processes.finish(running)
    assert done.returncode == 130, done.stderr
    line = parsed(done.stdout.strip())
    assert 0 < float(line["seconds"]) < time.monotonic() - started and int(line["ops"]) > 0


def test_a_job_file_runs(data: Path, tmp_path: Path) -> None:
    (tmp_path / "r.gdsio").write_text(
        f"[global]\nname=r\nxfer_type=1\nrw=randread\nbs=4k\nsize=4M\n[job1]\nnum_threads=2\ndirectory={data}\n"
    )
    done = gdsio(tmp_path / "r.gdsio")
    assert done.returncode == 0, done.stderr
    assert parsed(done.stdout.strip())["ops"] == "2048"


@pytest.mark.long
@pytest.mark.promise("FLT-16")
def test_a_seed_other_than_the_files_own_is_refused_by_name(data: Path) -> None:
    read = ("-D", data, *"-w 2 -s 4M -i 64k -x 1 -I 0 -V".split())
    done = gdsio(*read, "-k", 99)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"-k 99 with -V: {data}/gdsio.0 was written with -k 7" in done.stderr
    assert gdsio(*read, "-k", 7).returncode == 0 and gdsio(*read).returncode == 0


@pytest.mark.long
def test_what_was_written_without_v_is_not_read_with_it(tmp_path: Path) -> None:
    words = ("-D", tmp_path, *"-w 2 -s 4M -i 64k -x 1".split())
    assert gdsio(*words, "-I", 1).returncode == 0
    done = gdsio(*words, "-I", 0, "-V")
    assert (done.returncode, done.stdout) == (2, "")
    assert "without -V" in done.stderr and "-I 1 -V" in done.stderr and "--" not in done.stderr
    assert gdsio(*words, "-I", 1, "-V").returncode == 0
