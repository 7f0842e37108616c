"""`forebay fio`: fio's command line, job files, JSON and logs, beside what the installed fio says of the same job."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay.errors import RequestError
from forebay.fio import command_line
from forebay.fio import document as fio_document
from forebay.fio import logs as fio_logs
from forebay.fio import wording as fio_wording
from properties import parametrized

FIO = shutil.which("fio")
needs_fio = pytest.mark.skipif(FIO is None, reason="fio isn't installed; apt install fio")
# As many I/Os, of as many bytes, in both.
COUNTED = "--bs=4k --size=1m --direct=0 --group_reporting"


def ran(program: list[str], *words: str, cwd: Path) -> Any:
    return processes.run([*program, *words], cwd=cwd, env={**os.environ, "NO_COLOR": "1"})


def ours(*words: str, cwd: Path) -> Any:
    return ran([*processes.FOREBAY, "fio"], *words, cwd=cwd)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "F").write_bytes(bytes(1 << 20))
    return tmp_path


@pytest.mark.promise("BEN-46")
def test_the_usual_line_runs_at_once_and_prints_fios_document(data: Path) -> None:
    usual = (
        "--name=x --filename=F --direct=0 --rw=randread --bs=4k --iodepth=16 --runtime=1 --group_reporting --time_based "
        "--output-format=json"
    )
    done = ours(*usual.split(), cwd=data)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    job = document["jobs"][0]
    assert (job["jobname"], job["error"], job["job options"]["iodepth"]) == ("x", 0, "16")
    assert job["read"]["total_ios"] > 0 and job["read"]["io_bytes"] == 4096 * job["read"]["total_ios"]
    assert job["write"]["total_ios"] == 0 and job["read"]["runtime"] == pytest.approx(1000, abs=500)
    assert "iodepth=16 has no effect" in done.stderr and "summary" not in done.stdout


def shape(value: Any, at: str = "") -> dict[str, str]:
    """Each field by its path, with the kind of its value; buckets are counted and not listed."""
    if isinstance(value, dict):
        if at.endswith(".bins"):
            return {at: "bins"}
        found = [shape(part, f"{at}.{key}") for key, part in value.items()]
        return {path: kind for each in found for path, kind in each.items()}
    if isinstance(value, list):
        return shape(value[0], f"{at}[]") if value else {}
    return {at: "number" if isinstance(value, (int, float)) else "text"}


JOBS = {
    "read": "--rw=randread",
    "mix": "--rw=randrw --rwmixread=70",
    "write": "--rw=write --end_fsync=1",
    "all together": "--rw=randrw --unified_rw_reporting=1",
    "both ways": "--rw=rw --unified_rw_reporting=both",
    "other names": "--readwrite=randread --description=said --write_lat_log=L --rate_iops=100 --time_based --runtime=4 "
    "--ss=iops_slope:99% --ss_dur=3",
    "lists": "--rw=randread --lat_percentiles=1 --percentile_list=50:99.9",
}


@needs_fio
@pytest.mark.promise("BEN-47")
@parametrized("case", JOBS, kept=(1, 2, 5))
def test_each_field_of_fios_document_is_there_and_counts_the_same(case: str, data: Path) -> None:
    words = ["--name=x", "--filename=F", *COUNTED.split(), *JOBS[case].split(), "--output-format=json+"]
    theirs = ran([str(FIO)], *words, cwd=data)
    assert theirs.returncode == 0, theirs.stderr
    theirs = json.loads(theirs.stdout[theirs.stdout.index("{") :])
    done = ours("--overwrite", "F", *words, cwd=data)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Either lists the disks only if a run is long enough for a look at them.
    if not (theirs.get("disk_util") and found.get("disk_util")):
        theirs.pop("disk_util", None), found.pop("disk_util", None)
    missing = shape(theirs).items() - shape(found).items()
    # fio times submissions too.
    assert not {(path, kind) for path, kind in missing if "slat_ns" not in path}
    assert shape(found).keys() <= shape(theirs).keys()
    one, other = theirs["jobs"][0], found["jobs"][0]
    assert one["job options"] == other["job options"] and list(one) == list(other)
    for way in ("read", "write", "mixed"):
        if way not in one:
            assert way not in other
            continue
        a, b = one[way], other[way]
        if case not in ("mix", "both ways", "other names") or way == "mixed":
            assert (a["io_bytes"], a["io_kbytes"], a["total_ios"]) == (b["io_bytes"], b["io_kbytes"], b["total_ios"]), way
        assert b["bw_bytes"] == pytest.approx(1024 * b["bw"], abs=1024)
        assert set(a["clat_ns"].get("percentile", {})) == set(b["clat_ns"].get("percentile", {}))
        if b["total_ios"]:
            assert sum(b["clat_ns"]["bins"].values()) == b["clat_ns"]["N"]
            # Of a run that the clock ends, the I/Os in flight are timed and not counted.
            assert 0 <= b["clat_ns"]["N"] - b["total_ios"] <= (1 if "--time_based" in words else 0)
            assert b["clat_ns"]["min"] <= b["clat_ns"]["mean"] <= b["clat_ns"]["max"]
            assert 1000 * b["total_ios"] / b["iops"] == pytest.approx(b["runtime"], abs=1)
    assert sum(other[f"latency_{unit}"][bound] for unit in ("ns", "us", "ms") for bound in other[f"latency_{unit}"]) == (
        pytest.approx(100, abs=0.01)
    )


def test_advice_names_what_can_be_typed_with_fios_words() -> None:
    said = {
        "--duration 30": "--runtime=30",
        "--passes 5, or --duration 30": "--loops=5, or --runtime=30",
        "--pages auto": "forebay bench --fio FILE --pages auto",
        "--until-steady, or --repeat 5": "forebay bench --fio FILE --until-steady, or forebay bench --fio FILE --repeat 5",
        "files of 1 GiB (--create with --file-size 1g)": "files of 1 GiB (forebay bench --fio FILE --create with --size=1g)",
        "stop them, or --cpus to stay clear of them": "stop them, or --cpus_allowed to stay clear of them",
        "--cache warm to measure memory": "forebay bench --fio FILE --cache warm to measure memory",
        "docker run --memory SIZE": "docker run --memory SIZE",
        "without --fio-lenient such a job is refused": "without --fio-lenient such a job is refused",
    }
    assert {text: fio_wording.advice(text) for text in said} == said


@needs_fio
@pytest.mark.promise("BEN-47")
def test_buckets_are_fios(data: Path) -> None:
    """Every key of its histogram is the middle of one of ours."""
    words = ["--name=x", "--filename=F", *COUNTED.split(), "--rw=randread", "--output-format=json+"]
    theirs = json.loads(ran([str(FIO)], *words, cwd=data).stdout)
    bins = [int(ns) for ns in theirs["jobs"][0]["read"]["clat_ns"]["bins"]]
    assert bins and all(fio_document.bin_of(ns) == ns for ns in bins)


def test_a_bucket_is_the_middle_of_its_width() -> None:
    widths = {0: 0, 1: 1, 127: 127, 128: 129, 129: 129, 255: 255, 256: 258, 259: 258, 41_300: 41_216}
    assert {ns: fio_document.bin_of(ns) for ns in widths} == widths


@needs_fio
@pytest.mark.promise("BEN-47")
def test_sections_of_a_file_are_entries_by_group_as_in_fio(data: Path) -> None:
    text = "[global]\nbs=4k\nsize=256k\nfilename=F\n[a]\nrw=read\n[b]\nstonewall\nrw=randread\nnumjobs=2\ngroup_reporting\n"
    text += "[c]\nrw=read\ngroup_reporting\n"
    (data / "j.fio").write_text(text)
    theirs = json.loads(ran([str(FIO)], "--output-format=json", "--bs=8k", "j.fio", cwd=data).stdout)
    done = ours("--output-format=json", "--output=o.json", "--bs=8k", "j.fio", cwd=data)
    assert done.returncode == 0 and not done.stdout, done.stderr
    found = json.loads((data / "o.json").read_text())

    def reported(document: dict[str, Any]) -> list[Any]:
        return [(j["jobname"], j["groupid"], j["job options"], j["read"]["total_ios"]) for j in document["jobs"]]

    assert reported(found) == reported(theirs) and found["global options"] == theirs["global options"]
    assert ours("--output-format=json", "--output=o.json", "--section=a", "j.fio", cwd=data).returncode == 0
    assert [job["jobname"] for job in json.loads((data / "o.json").read_text())["jobs"]] == ["a"]


@needs_fio
@pytest.mark.promise("BEN-48")
@parametrized("every", ["", "--log_avg_msec=20"], kept=(0,))
def test_logs_are_fios(every: str, data: Path) -> None:
    """The same files, columns and counts; without averaging the I/Os in fio's order."""
    timed = "--time_based --runtime=1" if every else "--size=1m"
    words = f"--name=x --filename=F --rw=read --bs=4k --numjobs=2 {timed} {every} --log_offset={int(not every)} --thread".split()
    logs = [f"--write_{kind}_log=L" for kind in ("lat", "bw", "iops")]
    assert ran([str(FIO)], *words, *logs, "--output=o", cwd=data).returncode == 0
    names = sorted(p.name for p in data.glob("L_*"))
    theirs = {name: list(fio_logs.lines(data / name)) for name in names}
    done = ours(*words, *logs, cwd=data)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in data.glob("L_*")) == names and not list(data.glob(".forebay*"))
    for name in names:
        if "slat" in name:
            continue
        found = list(fio_logs.lines(data / name))
        assert {len(line) for line in found} == {len(line) for line in theirs[name]} and {line[2] for line in found} == {0}
        assert [line[0] for line in found] == sorted(line[0] for line in found)
        if every:
            assert {line[3:] for line in found} == {line[3:] for line in theirs[name]} == {(0, 0)}
            assert all(0 < line[0] <= 1100 and line[1] > 0 for line in found) and len(found) > 1
        else:
            assert [line[3:] for line in found] == [line[3:] for line in theirs[name]]
    if not every:
        lat, bw = (list(fio_logs.lines(data / f"L_{kind}.1.log")) for kind in ("lat", "bw"))
        assert [line[1] for line in bw] == [4096 * 1_000_000 // line[1] for line in lat]
        assert [line[1] for line in fio_logs.lines(data / "L_iops.2.log")] == [1] * 256


@pytest.mark.promise("BEN-48")
def test_averaged_logs_have_rates_and_means() -> None:
    logs = fio_logs.from_settings("x", {"write_lat_log": "1", "write_bw_log": "B", "write_iops_log": "I", "log_avg_msec": "100"})
    assert logs is not None and logs.prefixes == {"lat": "x", "clat": "x", "bw": "B", "iops": "I"}
    line = (200, 5000, 1, 1 << 20, 256)
    assert {kind: logs._line(kind, *line) for kind in logs.prefixes} == {
        "lat": "200, 5000, 1, 0, 0\n", "clat": "200, 5000, 1, 0, 0\n", "bw": "200, 10240, 1, 0, 0\n",
        "iops": "200, 2560, 1, 0, 0\n",
    }  # fmt: skip
    assert logs._line("iops", 250, 1, 0, 1, 5) == "250, 100, 0, 0, 0\n"


@pytest.mark.promise("BEN-46")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", "no job was given"),
        ("--name=x --filename=F --rw=trim", "is not one of read"),
        ("--name=x --filename=F --rw=read --iodepth_low=4", "each I/O is submitted as soon as another completes"),
        ("--name=x --filename=F --rw=read --no_such=4", "a key that Forebay doesn't know"),
        ("--name=x --filename=F --direct", "needs a value"),
        ("--output-format=terse --name=x --filename=F", "terse lines aren't written"),
        ("--client=host --name=x", "an option of fio's that Forebay doesn't have"),
        ("--name=x --filename=F --percentile_list=0:200", "is not up to 20 percentages"),
        ("--readonly --name=x --filename=new --size=1m --rw=write", "[x] writes"),
        ("--name=x --filename=F --rw=write", "Forebay didn't create it"),
        ("--name=x --filename=new --rw=randrw", "isn't there, and has no size"),
        ("--name=x --filename=F --output=notes.txt --output-format=json", "exists, and is no output of fio's"),
        ("--name=x --filename=F --write_lat_log=notes", "exists, and is no log of fio's"),
        ("--name=x --filename=F --write_lat_log=L --log_max_value=1", "a log has the mean of an interval"),
        ("--section=y --name=x --filename=F", "is not one of x"),
    ],
)
def test_what_changes_the_workload_or_would_lose_something_is_refused(words: str, found: str, data: Path) -> None:
    for name in ("notes.txt", "notes_lat.1.log"):
        (data / name).write_text("mine\n")
    done = ours(*words.split(), cwd=data)
    assert done.returncode == 2 and found in done.stderr and not done.stdout, done.stderr
    assert sorted(p.name for p in data.iterdir()) == ["F", "notes.txt", "notes_lat.1.log"]


@pytest.mark.promise("BEN-46")
def test_a_line_is_taken_apart_as_getopt_does() -> None:
    typed = "--bs=4k --time_based --name x -rw=read --name=y --direct=1 a.fio --output-format=normal,json"
    line = command_line.parse(typed.split())
    assert [(s.name, s.settings) for s in line.sections] == [
        ("global", (("bs", "4k"), ("time_based", "1"))),
        ("x", (("name", "x"), ("rw", "read"))),
        ("y", (("name", "y"), ("direct", "1"))),
    ]
    assert line.files == ["a.fio"] and line.formats == ("normal", "json")
    with pytest.raises(RequestError, match="--iodepth"):
        command_line.parse(["--iodeph"])
