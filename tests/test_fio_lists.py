"""Lists of I/Os: what fio wrote is replayed here as fio replays it, and what is written here fio replays; both on a device that
keeps a trace of what it was asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from forebay import fio, run
from forebay.bench import summary
from forebay.errors import RequestError
from fuse_support import Device, serving

# Larger than a job file of fio's, which sources are looked into for.
SIZE = 2 << 20
Ios = list[tuple[bool, int, int]]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    if shutil.which("fio") is None:
        pytest.skip("fio isn't installed; apt install fio")
    with serving(tmp_path_factory.mktemp("lists") / "data", SIZE) as found:
        yield found


def traced(device: Device, command: list[str], folder: Path) -> Ios:
    device.begin(device.schedule)
    done = processes.run(command, 60, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(io.write, io.offset, io.size) for io in device.trace]


def theirs(**settings: object) -> list[str]:
    said = [f"--{key}={value}" for key, value in settings.items()]
    return ["fio", "--output=/dev/null", "--thread", "--name=x", "--direct=1", *said]


def ours(*words: str) -> list[str]:
    return [*processes.FOREBAY, "bench", "-q", *words]


@pytest.mark.long
@pytest.mark.promise("BEN-52")
def test_what_fio_wrote_is_replayed_as_fio_replays_it(device: Device, tmp_path: Path) -> None:
    where = str(device.path)
    drawn = theirs(filename=where, rw="randrw", bsrange="4k-16k", size="512k", fsync=5, write_iolog="log", randseed=7)
    made = traced(device, drawn, tmp_path)
    again = traced(device, theirs(read_iolog="log", replay_no_stall=1), tmp_path)
    job = [*processes.FOREBAY, "fio", "--name=x", "--direct=1", "--read_iolog=log", "--replay_no_stall=1", "--overwrite", where]
    assert traced(device, job, tmp_path) == again == made and len(made) > 30
    # Deeper, each I/O starts in its turn: none is left out and none comes twice.
    deep = traced(device, ours("--read-iolog", "log", "--depth", "4", "--engine", "pread", "--overwrite", where), tmp_path)
    assert sorted(deep) == sorted(made)


@pytest.mark.promise("BEN-53")
def test_what_is_written_here_fio_replays(device: Device, tmp_path: Path) -> None:
    where = str(device.path)
    words = (where, "--op", "randread", "--read-pct", "60", "--io-size", "4k:16k:4k", "--limit-ios", "80", "--engine", "inline")
    made = traced(device, ours(*words, "--overwrite", where, "--sync", "end", "--write-iolog", "log"), tmp_path)
    assert len(made) == 80 and traced(device, theirs(read_iolog="log", replay_no_stall=1), tmp_path) == made
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "fio version 3 iolog" and lines[1].split()[1:] == [where, "add"]
    assert lines[-1].split()[1:] == [where, "close"] and lines[-2].split()[2:] == ["datasync", "0", "0"]
    refused = processes.run(ours(*words, "--overwrite", where, "--write-iolog", "log"), 60, cwd=tmp_path)
    assert refused.returncode == 2 and "lists aren't overwritten" in refused.stderr


def listed(folder: Path, *lines: str, version: int = 2) -> str:
    data = folder / "data"
    if not data.exists():
        data.write_bytes(bytes(SIZE))
    begin = "" if version == 2 else "1 "
    files = [f"{begin}{data} add", f"{begin}{data} open"]
    text = [f"fio version {version} iolog", *files, *(line.format(data) for line in lines)]
    (folder / "log").write_text("\n".join(text) + "\n")
    return str(folder / "log")


def record_of(folder: Path, *words: str) -> dict:
    done = processes.run([*processes.FOREBAY, "bench", "--json", "--cache", "allow", *words], 60, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.promise("BEN-52")
def test_times_are_kept_scaled_or_left_out(tmp_path: Path) -> None:
    """Each I/O starts as long after the one before as it did; of waits the time since the beginning counts, as in fio."""
    log = listed(tmp_path, "10 {} read 0 512", "100010 {} read 512 512", "200010 {} read 0 4096", version=3)
    kept = record_of(tmp_path, "--read-iolog", log)
    assert summary.job(kept["job"]).startswith(f"replay of {log}: read of 512 to 4k from ")
    assert kept["result"]["ios"] == 3 and kept["result"]["seconds"] >= 0.2 and kept["job"]["pattern"] == "replayed"
    fast = record_of(tmp_path, "--read-iolog", log, "--replay-time-scale", "1000")
    free = record_of(tmp_path, "--read-iolog", log, "--replay-no-stall")
    assert free["result"]["seconds"] < 0.2 and 0.02 <= fast["result"]["seconds"]
    log = listed(tmp_path, "{} read 0 512", "{} wait 200 0", "{} wait 200 0", "{} read 512 512")
    assert 0.2 <= record_of(tmp_path, "--read-iolog", log)["result"]["seconds"] < 0.4


@pytest.mark.promise("BEN-52")
def test_only_consent_lets_a_list_write(tmp_path: Path) -> None:
    log = listed(tmp_path, "{} read 0 512", "{} write 4096 512", "{} sync 0 0", "{} trim 8192 4096")
    data = tmp_path / "data"
    data.write_bytes(b"x" * SIZE)
    refused = processes.run(ours("--cache", "allow", "--read-iolog", log), 60)
    assert refused.returncode == 2 and "--overwrite" in refused.stderr and data.read_bytes() == b"x" * SIZE
    left = record_of(tmp_path, "--read-iolog", log, "--replay-skip", "write,trim")
    assert left["result"]["write_bytes"] == 0 and data.read_bytes() == b"x" * SIZE
    record = record_of(tmp_path, "--read-iolog", log, "--refill", "--overwrite", str(data))
    result = record["result"]
    assert (result["read_bytes"], result["write_bytes"], result["errors"]["failed"]) == (512, 512, 0)
    found = data.read_bytes()
    assert found[8192:12288] == bytes(4096) and found[4096:4608] != b"x" * 512 and found[:4096] == b"x" * 4096


@pytest.mark.promise("BEN-52")
def test_a_list_goes_to_another_source_and_to_several_workers(tmp_path: Path) -> None:
    log = listed(tmp_path, "{} read 0 512", "{} read 8192 512")
    other = tmp_path / "other"
    other.write_bytes(bytes(SIZE))
    words = ("--read-iolog", f"{log}:{log}", "--workers", "2", "--passes", "3", "--replay-scale", "2", "--replay-align", "4k")
    record = record_of(tmp_path, str(other), *words, "--write-iolog", str(tmp_path / "made"), "--depth", "1")
    assert record["result"]["ios"] == 12 and record["job"]["sources"] == [str(other)]
    for worker in "12":
        lines = (tmp_path / f"made.{worker}").read_text().splitlines()
        reads = [line.split()[1:] for line in lines if " read " in line]
        assert reads == [[str(other), "read", "0", "512"], [str(other), "read", "4096", "512"]] * 3


@pytest.mark.promise("BEN-52")
@pytest.mark.parametrize(
    ("lines", "fields", "said"),
    [
        (("{} read 0 512", "{} read 0"), {}, "log line 5: is neither FILE ACTION OFFSET LENGTH"),
        (("{} read 0 1000000000000",), {}, "log line 4: has a length of"),
        (("{} read 2097152 512",), {}, "log line 4: an I/O ends at 2097664 bytes"),
        (("{} sync 0 0",), {}, "has no reads and no writes"),
        (("{} read 0 512",), {"rate_iops": 5.0}, "the list says which I/Os are done"),
        (("{} read 0 512",), {"path": "auto"}, "the list says which I/Os are done"),
        (("{} read 0 512",), {"workers": "auto"}, "the list says which I/Os are done"),
        (("{} read 0 512",), {"sources": ["a", "b"]}, "all I/Os go to one"),
        (("{} read 0 512",), {"replay_skip": "all"}, "read, write, trim or sync"),
        (("{} read 100 512",), {"cache": "bypass"}, "in steps of"),
    ],
)
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, lines: tuple[str, ...], fields: dict, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        run.plan({"cache": "allow", "read_iolog": listed(tmp_path, *lines), **fields})
    assert said in str(refused.value)


@pytest.mark.promise("BEN-52")
def test_a_list_on_a_model_in_virtual_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="virtual time"):
        run.run({"read_iolog": listed(tmp_path, "{} read 0 512"), "sources": ["model:gen4-ideal"]})


@pytest.mark.promise("BEN-52")
def test_settings_of_a_job_file_become_flags_or_are_refused(tmp_path: Path) -> None:
    keys = "rw=randread bs=8k read_iolog=log replay_redirect=/a replay_scale=2 replay_align=4k replay_skip=write number_ios=9"
    (tmp_path / "job.fio").write_text("[a]\n" + "\n".join(keys.split()) + "\n")
    [found] = fio.jobs(str(tmp_path / "job.fio"))
    fields = {"read_iolog": "log", "sources": ["/a"], "replay_scale": 2, "replay_align": 4096, "replay_skip": "write"}
    assert found.job.items() >= {**fields, "limit_ios": 9, "passes": 1, "depth": 1}.items()
    assert "rw, bs has no effect with read_iolog" in found.notes[0]
    (tmp_path / "job.fio").write_text("[a]\nread_iolog=log\nrate_iops=5\nloops=2\n")
    [left] = fio.jobs(str(tmp_path / "job.fio"), lenient=True)
    assert sorted(text.partition("=")[0] for text in left.unsupported) == ["loops", "rate_iops"]
