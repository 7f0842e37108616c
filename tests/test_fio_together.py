"""Sections of a fio job file that run side by side: what they share, what follows on each, and which end others."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import processes
import pytest
from fio_support import bench, read  # noqa: F401 - fixtures
from forebay import fio
from forebay.bench.verb import Task, chains, groups
from forebay.errors import RequestError


def turns(made: list[fio.FioJob]) -> list[list[list[str]]]:
    """The names of the sections by turn, and in each by process."""
    tasks = [Task({}, j.name, [], j.waits, follows=j.follows) for j in made]
    return [[[task.name for task in chain] for chain in chains(group)] for group in groups(tasks)]


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        ("rate_min=1m numjobs=2", {"rate_min_gib_s": 2 / 1024, "workers": 2}),
        ("ratemin=1m,2m rw=write", {"rate_min_gib_s": 2 / 1024}),
        ("rate_iops_min=50", {"rate_min_iops": 50.0}),
        ("ss=iops:10% ss_dur=30s ss_ramp=10s", {"steady": "iops=10,window=30,skip=10", "interval_ms": 1000}),
        ("ss=lat_slope:0.5% ss_dur=1m ss_interval=5s", {"steady": "lat_slope=0.5,window=60,skip=0"}),
        ("rw=write atomic=1", {"atomic": True}),
        ("rw=write buffer_compress_percentage=50", {"content": "compress=50,chunk=512", "refill": True}),
        ("rw=write dedupe_percentage=30", {"content": "dedupe=30"}),
        ("ioengine=libaio prioclass=3 cmdprio_percentage=20 cmdprio_class=1", {"priority": "idle,20=rt/0"}),
        ("prio=6", {"priority": "be/6"}),
        ("numa_cpu_nodes=0-1 numa_mem_policy=interleave:0-1", {"cpus": "nodes:0-1", "numa_interleave": "0-1"}),
    ],
)
def test_each_key_of_an_end_or_of_others_reaches_its_field(read: Any, lines: str, fields: dict[str, Any]) -> None:
    (made,) = read("\n".join(["[job]", "filename=/data/f", "size=1g", *lines.split()]))
    assert made.job == {**made.job, **fields} and not made.unsupported


CHECKED = "[{0}]\nfilename=/{0}\nsize=1m\nrw=randwrite\nverify=crc32c\n"


@pytest.mark.promise("BEN-28")
def test_a_check_follows_on_its_section_while_others_run(read: Any) -> None:
    a, b = CHECKED.format("a"), CHECKED.format("b")
    assert turns(read(a + b)) == [[["a", "a verify"], ["b", "b verify"]]]
    assert turns(read(a + "[c]\nfilename=/c\n")) == [[["a", "a verify"], ["c"]]]
    # A turn of its own where nothing runs beside it.
    assert turns(read(a + b.replace("size", "stonewall\nsize"))) == [[["a"]], [["a verify"]], [["b"]], [["b verify"]]]


@pytest.mark.promise("BEN-29")
def test_one_sections_exitall_is_everyones_and_says_what_ends(read: Any) -> None:
    made = read("[global]\nfilename=/f\n[a]\nexitall\n[b]\nnew_group\nexit_what=all\nnumjobs=2\n[c]\n[d]\nstonewall\n")
    assert [(j.group, j.ends) for j in made] == [(0, "group"), (1, "group"), (1, "group"), (2, "group")]
    (a, b) = read("[global]\nfilename=/f\nexitall\n[a]\nexit_what=stonewall\n[b]\nexit_what=all\nnumjobs=2\n")
    assert (a.ends, b.ends) == ("stonewall", "all")
    # Of its own jobs the first ends the others.
    assert (a.job.get("until_first"), b.job.get("until_first")) == (None, True)
    assert [j.ends for j in read("[global]\nfilename=/f\n[a]\n[b]\nexit_what=all\n")] == ["", ""]
    with pytest.raises(RequestError, match="exit_what=some"):
        read("[a]\nfilename=/f\nexit_what=some\n")
    with pytest.raises(RequestError, match="exitall=1"):
        read(CHECKED.format("a") + "exitall\n")
    with pytest.raises(RequestError, match="exitall"):
        read("[global]\nfilename=/f\nexitall\n[a]\n[b]\nwait_for=a\n")


@pytest.mark.long
@pytest.mark.promise("BEN-28")
def test_sections_write_to_one_folder_at_the_same_time(bench: Any, tmp_path: Path) -> None:
    """Each to files of its own, or to the same: the folder's list has all of them afterwards."""
    text = "[global]\nbs=64k\nsize=1m\nthread\n[a]\nrw=write\n[b]\nrw=randwrite\nverify=md5\n[c]\nrw=read\n"
    done = bench(text + "[d]\nfilename=one\nrw=write\n[e]\nfilename=one\nrw=randwrite\nnorandommap\n", "--json")
    assert done.returncode == 0, done.stderr
    found = [(r["job"]["op"], r["result"]["bytes"], r["result"]["verified_bytes"]) for r in json.loads(done.stdout)]
    whole = 1 << 20
    assert found == [
        ("write", whole, 0), ("randwrite", whole, 0), ("randread", whole, whole), ("read", whole, 0), ("write", whole, 0),
        ("randwrite", whole, 0),
    ]  # fmt: skip
    files = json.loads((tmp_path / ".forebay.json").read_text())["files"]
    assert sorted(files) == ["a.0.0", "b.0.0", "c.0.0", "one"]
    # Which of two wrote a block last nobody knows.
    assert [files[name]["seed"] for name in sorted(files)] == [None, 7, 7, None]
    over = ("--op", "write", "--files", "1", "--file-name", "b.%d.0")
    again = processes.run([*processes.FOREBAY, "bench", ".", *over], cwd=tmp_path)
    assert again.returncode == 0, "its own files are Forebay's to overwrite\n" + again.stderr


@pytest.mark.promise("BEN-28")
def test_what_is_checked_is_written_by_one_section_alone(bench: Any, tmp_path: Path) -> None:
    done = bench("[global]\nfilename=f\nsize=1m\n[a]\nrw=write\nverify=md5\n[b]\nrw=write\n", "--json")
    assert done.returncode == 2 and "[a] verify" in done.stderr and "stonewall" in done.stderr
    assert os.listdir(tmp_path) == ["jobs.fio"]


@pytest.mark.long
@pytest.mark.promise("BEN-29")
def test_a_section_that_ends_ends_others_and_what_comes_later(bench: Any) -> None:
    """Nobody but [short] ends by itself, and [never] would be the next."""
    long = "ioengine=null\nsize=1g\ntime_based\nruntime=1h\n"
    text = f"[global]\nexitall\n[short]\nioengine=null\nsize=1m\nexit_what=all\n[long]\nnew_group\n{long}"
    done = bench(text + f"[never]\nstonewall\n{long}", "--json")
    assert done.returncode == 0, done.stderr
    short, long_one = json.loads(done.stdout)
    assert short["result"]["bytes"] == 1 << 20 and not long_one["result"]["interrupted"]
    ids = [{warning["id"] for warning in record["warnings"]} for record in (short, long_one)]
    assert "ended_by" not in ids[0] and "ended_by" in ids[1] and "interrupted" not in ids[1]


@pytest.mark.long
@pytest.mark.promise("BEN-31")
def test_sections_of_a_flow_keep_to_their_weights(read: Any, bench: Any) -> None:
    made = read("[global]\nfilename=/f\n[a]\nflow=1\n[b]\nflow=8\nflow_id=3\n[c]\nflow=8\n[d]\nstonewall\nflow=2\n")
    assert [job.job.get("flow") for job in made] == ["1@0", None, "8@0", None], "a share needs another's"
    with pytest.raises(RequestError, match="flow=2"):
        read("[a]\nfilename=/f\nnumjobs=2\nflow=2\n")
    done = bench("[global]\nioengine=null\nsize=1m\n[a]\nflow=1\n[b]\nflow=8\n", "--json")
    assert done.returncode == 0, done.stderr
    a, b = json.loads(done.stdout)
    assert a["result"]["bytes"] == b["result"]["bytes"] == 1 << 20
    files = [record["job"]["flow"].split("@")[1] for record in (a, b)]
    assert files[0] == files[1] and not os.path.exists(files[0])


def test_working_sets_that_jobs_share_are_as_large_as_all_of_theirs(read: Any) -> None:
    text = "[global]\nsize=1m\nbs=4k\nrw=write\ndedupe_percentage=30\ndedupe_mode=working_set\ndedupe_global\n"
    made = read(text + "dedupe_working_set_percentage=50\nbuffer_compress_percentage=25\n[a]\nnumjobs=2\n[b]\n")
    assert {job.job["content"] for job in made} == {"compress=25,chunk=512,dedupe=30,set=384"}
    assert all(job.job["refill"] for job in made)


@pytest.mark.promise("BEN-27")
def test_a_section_that_verifies_is_read_back_in_a_turn_of_its_own(read: Any) -> None:
    written = "[a]\nfilename=/f\nsize=1m\nrw=randwrite\nverify=crc32c\n"
    write, check = read(written)
    assert write.job["verify"] and write.job["op"] == "randwrite" and not write.waits
    assert (check.name, check.waits) == ("a verify", True)
    assert check.job == {**write.job, "op": "randread"}
    # What a section above wrote may be checked by another; of what fio wrote, not every checksum.
    later = "[c]\nstonewall\nfilename=/f\nrw=read\nverify=md5\n"
    *_, last = read(written + "do_verify=0\n" + later)
    assert last.name == "c" and last.job["verify"] and last.job["op"] == "read"
    with pytest.raises(RequestError, match="of fio's checksums"):
        read(later)
    with pytest.raises(RequestError, match="of fio's checksums"):
        read(later + written)
    assert [job.waits for job in read(written + "[b]\nwait_for=a\nfilename=/g\n")] == [False, True, True]


def test_a_job_may_start_later_than_those_beside_it(read: Any) -> None:
    first, second = read("[global]\nfilename=/f\n[a]\n[b]\nstartdelay=1500ms\n")
    assert (first.delay_s, second.delay_s) == (0.0, 1.5)
