"""The sections of a fio job file: which run at the same time, and what each moves when `forebay bench --fio` runs them."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import processes
import pytest
from fio_support import bench, read  # noqa: F401 - fixtures
from forebay.errors import RequestError
from properties import parametrized


def turns(read: Any, *sections: str) -> list[list[str]]:
    """The names of the sections that run at the same time, in the order of their turns."""
    from forebay.bench.verb import Task, groups

    made = read("[global]\nfilename=/f\n" + "\n".join(sections) + "\n")
    return [[task.name for task in group] for group in groups([Task({}, j.name, [], j.waits) for j in made])]


@pytest.mark.promise("BEN-10")
def test_sections_run_together_unless_one_waits(read: Any) -> None:
    assert turns(read, "[a]", "[b]", "[c]") == [["a", "b", "c"]]
    for apart in ("stonewall", "stonewall=1", "wait_for_previous", "wait_for=a"):
        assert turns(read, "[a]", "[b]", apart) == [["a"], ["b"]]
    assert turns(read, "[a]", "[b]", "new_group", "[c]", "stonewall", "[d]") == [["a", "b"], ["c", "d"]]
    # [a] has ended when [b] may start.
    assert turns(read, "[a]", "[b]", "stonewall", "[c]", "wait_for=a") == [["a"], ["b", "c"]]
    first, second = read("[global]\nfilename=/f\n[a]\n[b]\n")
    assert first.notes == () and "together with [a]" in second.messages()[0] and second.warnings() == []


@pytest.mark.parametrize(("awaited", "why"), [("a", "may outlast it"), ("c", "no section above"), ("", "no section above")])
def test_a_wait_that_would_be_another_is_refused(read: Any, awaited: str, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        read(f"[global]\nfilename=/f\n[a]\n[b]\n[c]\nwait_for={awaited}\n")


@pytest.mark.promise("BEN-10")
def test_a_job_that_would_be_another_ends_with_2_and_lenient_records_what_was_left_out(bench: Any) -> None:
    text = "[a]\nioengine=null\nsize=1m\nverify=crc32c\nwrite_bw_log=x\n[b]\nioengine=null\nsize=1m\n"
    refused = bench(text, "--json")
    assert refused.returncode == 2 and refused.stdout == ""
    for said in ("jobs.fio [a] verify=crc32c", "--fio-lenient"):
        assert said in refused.stderr
    done = bench(text, "--fio-lenient", "--json")
    assert done.returncode == 0, done.stderr
    assert "[a] not supported and left out: verify=crc32c" in done.stderr
    assert "[a] write_bw_log=x has no effect" in done.stderr
    left = [[w["text"] for w in r["warnings"] if w["id"] == "left_out"] for r in json.loads(done.stdout)]
    assert [len(each) for each in left] == [1, 0] and "verify=crc32c" in left[0][0]
    assert "[b] runs together with [a]" in done.stderr


@pytest.mark.promise("BEN-11")
def test_a_file_that_is_missing_is_named_as_fio_names_it(bench: Any) -> None:
    done = bench("[b]\nrw=read\nbs=4k\n", "--json")
    assert done.returncode == 2 and "there is no file called b.0.0 in it" in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.promise("BEN-10")
def test_sections_together_each_move_theirs(bench: Any, tmp_path: Path) -> None:
    text = "[global]\nbs=64k\n[a]\nfilename=fa\nsize=1m\n[b]\nfilename=fb\nsize=2m\n[c]\nstonewall\nfilename=fa\n"
    done = bench(text, "--json", "-o", "r.jsonl")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert [(r["job"]["source"], r["result"]["bytes"]) for r in records] == [("fa", 1 << 20), ("fb", 2 << 20), ("fa", 1 << 20)]
    beside = [[w["text"] for w in r["warnings"] if w["id"] == "together"] for r in records]
    assert "[b]" in beside[0][0] and "[a]" in beside[1][0] and beside[2] == []
    assert records[0]["command"][:2] == ["forebay", "bench"]
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 3


@pytest.mark.long
@pytest.mark.promise("BEN-10")
def test_they_run_at_the_same_time_and_a_signal_ends_them_all(tmp_path: Path) -> None:
    """Neither ends by itself, so that what both measured was measured at once."""
    (tmp_path / "two.fio").write_text("[global]\nioengine=null\nsize=1g\ntime_based\nruntime=1h\n[a]\n[b]\n")
    command = [*processes.FOREBAY, "bench", "--fio", "two.fio", "--json", "--metrics", "0"]
    with processes.running(command, cwd=tmp_path) as process:
        url = ""
        while not url:
            url = next(iter(re.findall(r"http://\S+", process.stderr.readline())), "")

        def both() -> bool:
            with urllib.request.urlopen(url, timeout=processes.PATIENCE_S) as answer:
                return 'worker="1"' in answer.read().decode()

        processes.wait_until(both, "both report", process)
        process.send_signal(signal.SIGINT)
        done = processes.finish(process)
    assert done.returncode == 130, done.stderr
    first, second = json.loads(done.stdout)
    assert first["result"]["interrupted"] and second["result"]["interrupted"]
    assert first["result"]["ios"] and second["result"]["ios"]


@pytest.mark.promise("BEN-10")
def test_one_that_breaks_takes_no_other_with_it_and_is_named(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(1 << 20))
    done = bench("[a]\nioengine=null\nsize=1m\n[b]\nfilename=none-there\n", "--json")
    assert done.returncode == 2 and "none-there" in done.stderr and done.stdout == "", "refused before anything runs"
    text = "[a]\nioengine=null\nsize=1m\n[b]\nfilename=short\nrw=write\nsize=1m\n"
    foreign = bench(text, "--json")
    assert foreign.returncode == 2 and "Forebay didn't create it" in foreign.stderr and foreign.stdout == ""


@pytest.mark.promise("BEN-10")
def test_clones_move_as_much_as_fios_and_a_size_counts_from_the_offset(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    clones = "[global]\nbs=64k\nstonewall\n[null]\nioengine=null\nsize=1m\nnumjobs=3\n"
    shared = "[shared]\nfilename=f\nrw=randread\nnumjobs=4\n[drawn]\nfilename=f\nrw=randread\nnorandommap\nnumjobs=2\n"
    done = bench(clones + shared + "[end]\nfilename=f\noffset=768k\nsize=256k\n", "--json")
    assert done.returncode == 0, done.stderr
    moved = [r["result"]["bytes"] for r in json.loads(done.stdout)]
    assert moved == [3 << 20, 4 << 20, 2 << 20, 256 << 10]


@pytest.mark.promise("BEN-7")
@parametrized("data", ["directory=.", "filename=f"], kept=(1,))
def test_a_dry_run_checks_files_that_a_section_before_is_to_write(bench: Any, tmp_path: Path, data: str) -> None:
    path = "./b.0.0" if data.startswith("directory") else "f"
    text = f"[b]\n{data}\nsize=1m\nbs=64k\nrw=write\nverify=crc32c\n[again]\nstonewall\n{data}\nsize=1m\nbs=64k\nrw=read\n"
    text = text.replace("[again]", "[b again]") if path == "f" else text.partition("[again]")[0]
    planned = bench(text, "--dry-run")
    assert planned.returncode == 0 and "%d" not in planned.stdout + planned.stderr, planned.stderr
    made, *behind = planned.stdout.split("[b ")
    assert f"target    {path}, 1 MiB, to be created\nmake      {path}\n" in made
    assert len(behind) == (1 if path != "f" else 2)
    for each in behind:
        assert f"target    {path}, 1 MiB, to be created by [b]\nmake      no file\n" in each
    assert [p.name for p in tmp_path.iterdir()] == ["jobs.fio"]
    documents = json.loads(bench(text, "--dry-run", "--json").stdout)
    assert [(d["files_to_make"], d["targets"][0].get("made_by")) for d in documents[:2]] == [([path], None), ([], "b")]
    assert [d["job"]["op"] for d in documents[:2]] == ["write", "read"]
    done = bench(text, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "exists, created by Forebay" in bench(text, "--dry-run").stdout


def test_a_dry_run_still_refuses_what_no_section_makes(bench: Any) -> None:
    text = "[b]\nfilename=f\nsize=1m\nrw=write\n[c]\nstonewall\nfilename=none-there\nallow_file_create=0\n"
    refused = bench(text, "--dry-run")
    assert refused.returncode == 2 and "none-there" in refused.stderr and refused.stdout == ""


def test_lenient_without_a_job_file_is_refused(tmp_path: Path) -> None:
    done = processes.run([*processes.FOREBAY, "bench", "nil:", "--fio-lenient"], cwd=tmp_path)
    assert done.returncode == 2 and "--fio-lenient" in done.stderr
