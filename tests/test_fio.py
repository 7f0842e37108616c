"""fio's job files: what each key becomes, what is without effect, what is refused by name."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import urllib.request
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay import fio, fio_keys
from forebay.errors import RequestError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def reader(text: str, lenient: bool = False) -> list[fio.FioJob]:
        path = tmp_path / "jobs.fio"
        path.write_text(text)
        return fio.jobs(str(path), lenient)

    return reader


def one(read: Any, *settings_: str, lenient: bool = False) -> fio.FioJob:
    """The only job of a file with these settings, reading a named file."""
    return read("\n".join(["[job]", "filename=/data/f", *settings_]), lenient)[0]


def test_a_typical_file_becomes_one_job_per_section(read: Any) -> None:
    first, second = read(
        """\
; a comment
[global]
ioengine=io_uring
direct=1
bs=128k        # another
iodepth=32
size=2g
time_based
runtime=45
group_reporting

[seq]
rw=read
filename=/data/a:/data/b
file_service_type=sequential

[rand]
stonewall
rw=randrw
rwmixread=70
bs=4k
numjobs=4
directory=/data
ramp_time=2s
norandommap
"""
    )
    assert first == fio.FioJob(
        "seq",
        {
            "workers": 1,
            "op": "read",
            "io_bytes": 131072,
            "engine": "uring",
            "depth": 32,
            "sources": ["/data/a", "/data/b"],
            "file_bytes": 1 << 30,
            "create": True,
            "duration_s": 45.0,
            "warmup_s": 0.0,
            "cache": "bypass",
        },
    )
    assert second.job == {
        "workers": 4,
        "op": "randread",
        "read_pct": 70,
        "io_bytes": 4096,
        "no_repeat": False,
        "engine": "uring",
        "depth": 32,
        "sources": ["/data"],
        "file_name": "rand.%d.0",
        "files": 4,
        "file_bytes": 2 << 30,
        "create": True,
        "duration_s": 45.0,
        "warmup_s": 2.0,
        "cache": "bypass",
    }
    assert (first.waits, second.waits) == (False, True)
    assert second.messages() == []


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (
            "",
            {
                "op": "read",
                "io_bytes": 4096,
                "depth": 1,
                "workers": 1,
                "engine": "inline",
                "cache": "drop",
                "passes": 1,
                "warmup_s": 0.0,
            },
        ),
        ("readwrite=randwrite", {"op": "randwrite", "no_repeat": True}),
        ("rw=rw", {"op": "read", "read_pct": 50}),
        ("rw=randrw rwmixwrite=20", {"op": "randread", "read_pct": 80}),
        ("blocksize=1m", {"io_bytes": 1 << 20}),
        ("bs=1MiB", {"io_bytes": 1000000}),
        ("bs=1MiB kb_base=1000", {"io_bytes": 1 << 20}),
        ("bs=1mb kb_base=1000", {"io_bytes": 1000000}),
        ("bs=4k,64k rw=write", {"io_bytes": 65536}),
        ("bs=4k,64k rw=randread", {"io_bytes": 4096}),
        ("bsrange=4k-64k", {"io_bytes": 4096, "io_bytes_max": 65536, "io_bytes_step": 4096}),
        ("rw=randread blockalign=512", {"align_bytes": 512}),
        ("rw=randread bssplit=4k/60:64k/40", {"io_mix": "4k=60,64k=40", "io_bytes": 4096, "no_repeat": True}),
        ("rw=randrw norandommap bssplit=4k/60:64k/:1m/,2k/:4k/0", {"io_mix": "4k=60,64k=20,1m=20/2k=100", "io_bytes": 2048}),
        ("rw=randwrite bssplit=4k/60:64k/40,512/100", {"io_mix": "512=100", "io_bytes": 512}),
        ("rw=rw bs=4k,8k", {"io_mix": "4k=1/8k=1", "io_bytes": 4096, "read_pct": 50}),
        ("rw=read:-8k", {"op": "read", "skip_bytes": -8192}),
        ("rw=write:112k", {"op": "write", "skip_bytes": 112 << 10}),
        ("rw=read zonemode=strided zonesize=256m zoneskip=2g", {"skip_bytes": 2 << 30, "skip_every_bytes": 256 << 20}),
        ("rw=read zonesize=1m zoneskip=1m", {"skip_bytes": 1 << 20, "skip_every_bytes": 1 << 20}),
        ("rw=randread random_distribution=zoned:50/5:30/15:20/", {"distribution": "zoned:50/5,30/15,20/80"}),
        ("rw=randread random_distribution=sequence:2,0,1", {"distribution": "list:2,0,1"}),
        ("rw=randread random_distribution=sequence:2,0 random_sequence_stride=1", {"distribution": "list+:2,0"}),
        ("rate_iops=100 rate_process=poisson", {"rate_iops": 100.0, "arrivals": "poisson"}),
        ("size=48k io_size=24k", {"limit_bytes": 24 << 10}),
        ("io_limit=1g number_ios=7", {"limit_bytes": 1 << 30, "limit_ios": 7}),
        ("number_ios=7", {"limit_ios": 7, "passes": 1}),
        ("thinktime=2000", {"think_s": 0.002, "think_ios": 1}),
        ("thinktime=5ms thinktime_blocks=4", {"think_s": 0.005, "think_ios": 4}),
        ("numjobs=4", {"workers": 4, "clones": True, "passes": 1}),
        (
            "numjobs=3 offset=1m offset_increment=1g size=4m",
            {"start_step_bytes": 1 << 30, "limit_bytes": 4 << 20, "file_bytes": (2 << 30) + (5 << 20)},
        ),
        ("offset_increment=1g", {"workers": 1}),
        ("allow_file_create=0 size=1g", {"file_bytes": 1 << 30}),
        (
            "ioengine=libblkio libblkio_driver=io_uring libblkio_path=/dev/x iodepth=4",
            {"engine": "uring", "sources": ["/dev/x"], "depth": 4},
        ),
        ("ioengine=cpp_null size=1g", {"sources": ["nil:"]}),
        ("time_based", {"passes": 1}),
        ("ioengine=libaio iodepth=64", {"engine": "uring", "depth": 64}),
        ("ioengine=psync iodepth=64", {"engine": "inline", "depth": 1}),
        ("ioengine=posixaio iodepth=8", {"engine": "pread", "depth": 8}),
        ("ioengine=mmap direct=1", {"engine": "map", "cache": "drop"}),
        ("ioengine=null iodepth=128", {"sources": ["nil:"], "depth": 128}),
        ("ioengine=libcufile gpu_dev_ids=0:1", {"path": "gds", "gpus": [0, 1]}),
        ("ioengine=libcufile cuda_io=posix", {"path": "bounce"}),
        ("direct=1", {"cache": "bypass"}),
        ("buffered=1 direct=1", {"cache": "drop"}),
        ("invalidate=0", {"cache": "allow"}),
        ("runtime=2m", {"duration_s": 120.0, "passes": 1}),
        ("runtime=2m time_based=1", {"duration_s": 120.0}),
        ("runtime=500ms time_based", {"duration_s": 0.5}),
        ("loops=3", {"passes": 3}),
        ("ramp_time=1", {"warmup_s": 1.0}),
        ("rw=randread rate=1m numjobs=4", {"rate_gib_s": 4 / 1024}),
        ("rw=randread rate_iops=1k numjobs=2", {"rate_iops": 2048.0}),
        ("rw=randread rate_iops=100,50", {"rate_iops": 100.0}),
        ("rw=randwrite rate_iops=100,50,7", {"rate_iops": 50.0}),
        ("rw=randwrite rate_iops=,50", {"rate_iops": 50.0}),
        ("rw=randrw rwmixread=80 rate_iops=100", {"rate_iops": 200.0, "read_pct": 50}),
        ("rw=randrw rate_iops=30,10 numjobs=2", {"rate_iops": 80.0, "read_pct": 75}),
        ("bs=1k size=(2*(1m+512k)/4-1k)", {"file_bytes": 767 << 10}),
        ("filesize=1g size=25%", {"file_bytes": 256 << 20}),
        ("filesize=1000k offset=10% bs=64k", {"start_bytes": 128 << 10}),
        ("filesize=1000k offset=10% bs=64k offset_align=4k", {"start_bytes": 100 << 10}),
        ("filesize=1m offset=75% size=50%", {"start_bytes": 768 << 10, "file_bytes": 1 << 20}),
        ("threads=1", {"workers": 1}),
        ("rate_iops=100 io_submit_mode=offload", {"rate_iops": 100.0}),
        ("randseed=9", {"seed": 9}),
        ("rw=randread random_distribution=zipf:1.2", {"distribution": "zipf:1.2"}),
        ("rw=randread random_distribution=zipf", {"distribution": "zipf:1.1"}),
        ("rw=randread norandommap=1", {"no_repeat": False}),
        ("fsync=1 rw=write", {"sync": "each"}),
        ("sync=dsync rw=write", {"sync": "each"}),
        ("end_fsync=1 rw=write", {"sync": "end"}),
        ("fsync_on_close=1 rw=write", {"sync": "end"}),
        ("offset=1g", {"start_bytes": 1 << 30}),
        ("size=2g filesize=2g", {"file_bytes": 2 << 30}),
        ("offset=1g size=1g", {"start_bytes": 1 << 30, "file_bytes": 2 << 30}),
        ("ioengine=null size=1g numjobs=3", {"file_bytes": 1 << 30, "clones": True, "passes": 1}),
        ("rw=randread numjobs=4", {"workers": 4, "no_repeat": True, "clones": True, "passes": 1}),
        ("rw=randread numjobs=4 norandommap loops=2", {"workers": 4, "no_repeat": False, "passes": 2}),
        ("rw=randread numjobs=3 norandommap filename=/a:/b", {"clones": True, "passes": 1}),
        ("rw=randread filename=/a:/b file_service_type=random", {"sources": ["/a", "/b"]}),
        ("filename=/a:/b file_service_type=sequential", {"sources": ["/a", "/b"]}),
        ("cpus_allowed=0-3 cpus_allowed_policy=split", {"cpus": "0-3"}),
        ("numa_cpu_nodes=1 numa_mem_policy=bind:1", {"numa": 1}),
        ("timeout=30", {"duration_s": 30.0}),
        ("size=0x100000", {}),
        ("size=100%", {}),
        ("cpus_allowed=0-3,8", {"cpus": "0-3,8"}),
        ("numa_cpu_nodes=1", {"numa": 1}),
        ("mem=mmaphuge", {"pages": "hugetlb"}),
        ("iomem=shmhuge:/dev/hugepages/x", {"pages": "hugetlb"}),
        ("mem=malloc", {"pages": "small"}),
        ("sqthread_poll hipri=1 registerfiles fixedbufs=1", {"sqpoll": True, "iopoll": True}),
        ("refill_buffers", {"refill": True}),
    ],
)
def test_each_key_reaches_its_field(read: Any, lines: str, fields: dict[str, Any]) -> None:
    if "0x" in lines:
        with pytest.raises(RequestError, match="size=0x"):
            one(read, *lines.split())
        return
    made = one(read, *lines.split())
    assert fields.items() <= made.job.items()
    assert made.unsupported == ()
    if "time_based" in lines and "runtime" in lines:
        assert "passes" not in made.job
    if "io_size" in lines or "io_limit" in lines:
        assert "passes" not in made.job
    if lines == "size=100%":
        assert "file_bytes" not in made.job


def test_files_are_called_as_fio_calls_them(read: Any) -> None:
    assert read("[a/b]\ndirectory=/d\nsize=1g\nnumjobs=3\n")[0].job["file_name"] == "a_b.%d.0"
    many = read("[j]\ndirectory=/d\nsize=1g\nnrfiles=4\nrw=randread\n")[0].job
    assert (many["file_name"], many["files"], many["file_bytes"]) == ("j.0.%d", 4, 1 << 28)
    assert read("[j]\nname=other\nsize=1g\n")[0].job["sources"] == ["."]


def test_names_with_colons_and_folders(read: Any) -> None:
    made = read("[j]\ndirectory=/d\nfilename=a\\:b:/dev/x:c\nsize=3g\nrw=randread\n")[0].job
    assert (made["sources"], made["file_bytes"]) == (["file:/d/a:b", "/dev/x", "/d/c"], 1 << 30)


def test_global_settings_hold_for_the_sections_below_them(read: Any) -> None:
    text = "[global]\nfilename=/f\nstonewall\nbs=4k\n[a]\n[global]\nbs=8k\n[b]\n[c]\nbs=16k\n"
    assert [j.job["io_bytes"] for j in read(text)] == [4096, 8192, 16384]


ANOTHER_WORKLOAD = [
    "verify=md5",
    "rw=write verify_pattern=0xdeadbeef",
    "rw=write verify_only",
    "rw=randread:8",
    "rw=rw:64k",
    "percentage_random=50",
    "rate=1m rate_process=odd",
    "rw=rw rate_min=1m",
    "zonemode=zbd",
    "rw=randread zonesize=256m zoneskip=1g",
    "zonesize=6k zoneskip=1g",
    "zonesize=256m zonerange=128m",
    "write_iolog=log",
    "read_iolog=log",
    "trim_percentage=10",
    "thinktime_spin=5 thinktime=10",
    "thinktime_iotime=5 thinktime=10",
    "ioengine=libaio iodepth=8 thinktime_blocks=4 thinktime=10",
    "fsync=32",
    "startdelay=5-10",
    "exitall_on_error",
    "numjobs=2 flow=2",
    "iodepth_batch_complete_min=8",
    "iodepth_low=4",
    "io_submit_mode=offload",
    "rw=randread numjobs=2 offset_increment=1g",
    "numjobs=2 offset_increment=5%",
    "io_size=50%",
    "io_size=1g loops=2",
    "rw=randrw bs=4k,8k",
    "rw=write allow_file_create=0",
    "rw=write verify=pattern",
    "rw=write verify_backlog=8 verify=md5",
    "rw=write runtime=5 verify=md5",
    "rw=randwrite norandommap verify=md5",
    "rw=randrw verify=md5",
    "nrfiles=4 directory=/data filename=",
    "filename=/a:/b",
    "rw=randread filename=/a:/b file_service_type=sequential",
    "size=1g filesize=2g",
    "directory=/a:/b filename=",
    "openfiles=1",
    "pre_read=1",
    "unlink_each_loop=1",
    "rw=write buffer_pattern=0xff",
    "rw=randrw zero_buffers",
    "rw=write fallocate=none",
    "rw=write dedupe_percentage=50 dedupe_mode=working_set",
    "cpus_allowed=0-3 cpus_allowed_policy=shared",
    "numa_mem_policy=prefer:1",
    "nice=10",
    "cmdprio_percentage=20",
    "ioscheduler=none",
    "hugepage-size=1g",
    "latency_target=10ms",
    "ss_dur=9 ss=iops:10",
    "ss_dur=9 numjobs=2 ss=iops:10%",
    "profile=tiobench",
    "wait_for=other",
    "made_up=yes",
    "bare_word",
]


def text_of(lines: str) -> str:
    """A job file of one section with these settings; the last of a kind holds, as in fio."""
    return "\n".join(["[job]", "filename=/data/f", "size=1g", *lines.split()])


@pytest.mark.parametrize("lines", ANOTHER_WORKLOAD)
def test_what_would_be_another_workload_is_refused_by_name(read: Any, lines: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(text_of(lines))
    key = "nrfiles" if "nrfiles" in lines else re.split("[ =]", lines.split()[-1])[0]
    for named in ("thinktime_spin", "thinktime_iotime", "thinktime_blocks", "zonesize"):
        key = named if named in lines else key
    if lines == "filename=/a:/b" or "nrfiles" in lines:
        key = "file_service_type"  # fio's default takes the files in turn
    elif lines.startswith("directory"):
        key = "directory"
    elif lines.startswith("size"):
        key = "size"
    assert f"[job] {key}" in refused.value.asked
    assert refused.value.exit_code == 2 and refused.value.next
    (lenient,) = read(text_of(lines), lenient=True)
    assert f"[job] not supported and left out: {key}" in lenient.messages()[0]
    (warning,) = lenient.warnings()
    assert warning["id"] == "left_out" and f"{key}=" in warning["text"] and "[job]" in warning["text"]


def test_all_that_stands_in_the_way_is_named_at_once(read: Any) -> None:
    with pytest.raises(RequestError) as refused:
        read(text_of("verify=md5 thinkcycles=5 max_latency=1 zonemode=zbd fsync=4 nice=3 made_up"))
    for key in ("verify=md5", "thinkcycles=5", "max_latency=1", "zonemode=zbd", "fsync=4", "and 2 more"):
        assert key in str(refused.value)


def turns(read: Any, *sections: str) -> list[list[str]]:
    """The names of the sections that run at the same time, in the order of their turns."""
    from forebay.bench.verb import Task, groups

    made = read("[global]\nfilename=/f\n" + "\n".join(sections) + "\n")
    return [[task.name for task in group] for group in groups([Task({}, j.name, [], j.waits) for j in made])]


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


@pytest.mark.parametrize("key", sorted(fio_keys.REFUSED))
def test_a_refused_key_may_ask_for_what_holds_anyway(read: Any, key: str) -> None:
    op = "rw=write" if key in fio_keys.OF_WRITES else "rw=read"
    for value in fio_keys.HARMLESS[key]:
        assert one(read, op, f"{key}={value}").unsupported == ()
    with pytest.raises(RequestError, match=re.escape(f"[job] {key}=odd")):
        one(read, op, f"{key}=odd")
    assert one(read, op, f"{key}=odd", lenient=True).unsupported[0].startswith(f"{key}=odd: ")


@pytest.mark.parametrize("key", fio_keys.OF_WRITES)
def test_how_writes_are_made_doesnt_concern_a_job_that_only_reads(read: Any, key: str) -> None:
    assert one(read, "rw=randread", f"{key}=1").unsupported == ()
    with pytest.raises(RequestError, match=re.escape(f"[job] {key}=odd")):
        one(read, "rw=randrw", f"{key}=odd")


def test_keys_without_effect_are_taken_and_those_with_an_output_told(read: Any) -> None:
    made = one(read, *(f"{key}=1" for key in fio_keys.HOLDS))
    assert made.messages() == [] and made.warnings() == []
    told = one(read, *(f"{key}=1" for key in fio_keys.TOLD))
    assert sorted(m.split()[1] for m in told.messages()) == sorted(f"{key}=1" for key in fio_keys.TOLD)
    assert told.warnings() == []


def test_each_key_stands_in_one_table() -> None:
    tables = (fio_keys.DONE, fio_keys.HOLDS, fio_keys.TOLD, fio_keys.REFUSED, fio_keys.ALIASES)
    keys = [key for table in tables for key in table]
    assert len(keys) == len(set(keys))
    assert set(fio_keys.ALIASES.values()) <= set(fio_keys.DONE)
    assert all(why for table in tables for why in table.values())


def test_no_key_of_fio_is_unknown() -> None:
    """Those of the fio that is installed, of the engines that run here too."""
    if shutil.which("fio") is None:
        pytest.skip("fio isn't installed; apt install fio")
    engines = [e for e in (*fio.ASYNC_ENGINES, *fio.SYNC_ENGINES) if e != "vsync"]
    listed = [processes.run(["fio", "--cmdhelp=all"])]
    listed += [processes.run(["fio", f"--enghelp={engine}"]) for engine in engines]
    found = {key for done in listed for key in re.findall(r"^ *([a-z][\w-]*) *: ", done.stdout, re.M)}
    assert len(found) > 150
    known = {*fio_keys.DONE, *fio_keys.HOLDS, *fio_keys.TOLD, *fio_keys.REFUSED, *fio_keys.ALIASES}
    assert sorted(found - known) == []


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    def run(text: str, *flags: str) -> Any:
        (tmp_path / "jobs.fio").write_text(text)
        command = [*processes.FOREBAY, "bench", "--fio", "jobs.fio", *flags]
        return processes.run(command, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"})

    return run


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


def test_one_that_breaks_takes_no_other_with_it_and_is_named(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(1 << 20))
    done = bench("[a]\nioengine=null\nsize=1m\n[b]\nfilename=none-there\n", "--json")
    assert done.returncode == 2 and "none-there" in done.stderr and done.stdout == "", "refused before anything runs"
    text = "[a]\nioengine=null\nsize=1m\n[b]\nfilename=short\nrw=write\nsize=1m\n"
    foreign = bench(text, "--json")
    assert foreign.returncode == 2 and "Forebay didn't create it" in foreign.stderr and foreign.stdout == ""


def test_clones_move_as_much_as_fios_and_a_size_counts_from_the_offset(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    clones = "[global]\nbs=64k\nstonewall\n[null]\nioengine=null\nsize=1m\nnumjobs=3\n"
    shared = "[shared]\nfilename=f\nrw=randread\nnumjobs=4\n[drawn]\nfilename=f\nrw=randread\nnorandommap\nnumjobs=2\n"
    done = bench(clones + shared + "[end]\nfilename=f\noffset=768k\nsize=256k\n", "--json")
    assert done.returncode == 0, done.stderr
    moved = [r["result"]["bytes"] for r in json.loads(done.stdout)]
    assert moved == [3 << 20, 4 << 20, 2 << 20, 256 << 10]


def test_lenient_without_a_job_file_is_refused(tmp_path: Path) -> None:
    done = processes.run([*processes.FOREBAY, "bench", "nil:", "--fio-lenient"], cwd=tmp_path)
    assert done.returncode == 2 and "--fio-lenient" in done.stderr


@pytest.mark.parametrize(
    ("setting", "noted"),
    [
        ("ioengine=libaio", "io_uring"),
        ("iodepth=4", "iodepth=4 has no effect"),
        ("time_based", "no effect without runtime"),
        ("rw=write verify=crc32c", "Forebay's own content"),
        ("rw=rw", "share one sequence"),
        ("cpus_allowed=0-1", "cpus_allowed_policy=split"),
        ("write_lat_log=x", "the record holds the time series"),
        ("rate=1m", "open loop"),
    ],
)
def test_what_differs_from_fio_is_noted(read: Any, setting: str, noted: str) -> None:
    made = one(read, *setting.split())
    assert any(noted in m for m in made.messages()) and made.warnings() == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no job section"),
        ("[global]\nbs=4k\n", "no job section"),
        ("bs=4k\n", "before the first section"),
        ("[]\n", "not a section"),
        ("[a\n", "not a section"),
        ("[a]\n=3\n", "not a setting"),
        ("[a]\nbs 4k\n", "not a setting"),
        ("[a]\ninclude other.fio\n", "include isn't supported"),
        ("[a]\nrw=trim\n", "[a] rw=trim"),
        ("[a]\nrw=readd\n", "[a] rw=readd"),
        ("[a]\nbs=4q\n", "[a] bs=4q"),
        ("[a]\nbs=4i\n", "[a] bs=4i"),
        ("[a]\nrw=rw\nbsrange=4k-8k,8k-16k\n", "different ranges"),
        ("[a]\nbssplit=4k/60:8k/60\n", "don't add up to 100"),
        ("[a]\nbssplit=4k/60\n", "don't add up to 100"),
        ("[a]\nbssplit=:\n", "1 to 64 sizes"),
        ("[a]\nrw=randread\nrandom_distribution=zoned:60/5:60/95\n", "don't add up to 100"),
        ("[a]\nrw=randread\nrandom_distribution=zoned:50/0:50/100\n", "an empty zone"),
        ("[a]\nrw=randread\nrandom_distribution=zoned:50/5:50/95,100/100\n", "is not one of"),
        ("[a]\nrw=randread\nrandom_distribution=sequence:a\n", "is not one of"),
        ("[a]\nbs=1,2,3,4\n", "more than three"),
        ("[a]\nsize=9999999999999999p\nfilename=f\n", "overflows"),
        ("[a]\nsize=50%\nfilename=f\n", "size=50%"),
        ("[a]\nsize=0\nfilename=f\n", "size=0"),
        ("[a]\nrw=write\n", "has no size"),
        ("[a]\noffset=10%\nfilename=f\n", "offset=10%"),
        ("[a]\nnumjobs=0\nfilename=f\n", "numjobs=0"),
        ("[a]\nnumjobs=some\nfilename=f\n", "numjobs=some"),
        ("[a]\nioengine=rados\nfilename=f\n", "ioengine=rados"),
        ("[a]\nioengine=libcufile\ncuda_io=odd\nfilename=f\n", "cuda_io=odd"),
        ("[a]\nioengine=libcufile\ngpu_dev_ids=a\nfilename=f\n", "gpu_dev_ids=a"),
        ("[a]\nruntime=soon\nfilename=f\n", "runtime=soon"),
        ("[a]\nrw=randread\nrandom_distribution=pareto:0.9\nfilename=f\n", "pareto"),
        ("[a]\nrw=randrw\nrwmixread=120\nfilename=f\n", "above 100"),
        ("[a]\nrw=rw\nrate=1m,2m\nfilename=f\n", "aren't whole percentages"),
        ("[a]\nrw=rw\nrate=1m,\nfilename=f\n", "only one of"),
        ("[a]\nrate=1m,2m,3m,4m\nfilename=f\n", "more than three"),
        ("[a]\nioengine=filestat\nfilename=f\n", "forebay files DIR"),
        ("[a]\nioengine=dircreate\nfilename=f\n", "--phases mkdir"),
        ("[a]\nioengine=http\nfilename=f\n", "object store"),
        ("[a]\nsize=(1k\nfilename=f\n", "closing bracket"),
        ("[a]\nsize=(1k/0)\nfilename=f\n", "divides by 0"),
        ("[a]\nsize=(1-2k)\nfilename=f\n", "below 0"),
        ("[a]\nsize=(1k+)\nfilename=f\n", "not an expression"),
        ("[a]\nsize=(1k;)\nfilename=f\n", "closing bracket"),
        ("[a]\nsize=2*1k\nfilename=f\n", "is not a size"),
        ("[a]\nsize=$ncpus/0\nfilename=f\n", "divides by 0"),
        ("[a]\nsize=" + "(" * 99 + "1\nfilename=f\n", "nested too deeply"),
        ("[a]\ndirect=perhaps\nfilename=f\n", "direct=perhaps"),
        ("[a]\nsync=perhaps\nfilename=f\n", "sync=perhaps"),
        ("[a]\nmem=cudamalloc\nfilename=f\n", "mem=cudamalloc"),
        ("[a]\ncpus_allowed=all\nfilename=f\n", "cpus_allowed=all"),
        ("[a]\nnuma_cpu_nodes=all\nfilename=f\n", "numa_cpu_nodes=all"),
        ("[a]\nkb_base=7\nfilename=f\n", "kb_base=7"),
        ("[a]\nfilename=:\n", "names no file"),
        ("[a]\nfilename=a\0b\n", "NUL"),
        ("[a]\nsize=${FOREBAY_TEST_UNSET}\n", "FOREBAY_TEST_UNSET is not set"),
        ("\n".join(f"[{n}]" for n in range(1002)), "more than 1000"),
    ],
)
def test_a_wrong_file_is_refused_by_name(read: Any, text: str, named: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(text)
    assert named in str(refused.value)
    assert refused.value.next


def test_keywords_are_this_machines_and_calculate(read: Any) -> None:
    page, cpus = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_NPROCESSORS_ONLN")
    made = one(read, "rw=randread", "bs=$pagesize", "size=8*1024*$pagesize", "numjobs=$ncpus", "norandommap")
    assert (made.job["io_bytes"], made.job["file_bytes"], made.job["workers"]) == (page, 8192 * page, cpus)
    memory = one(read, "size=5*1024*1024*$mb_memory/8").job["file_bytes"]
    assert memory == 5 * 1024 * 1024 * (os.sysconf("SC_PHYS_PAGES") * page >> 20) // 8
    assert read("[j]\nfilename=/data/$ncpus-a\n")[0].job["sources"] == [f"/data/{cpus}-a"]


def test_the_environment_fills_in_variables(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZE", "64m")
    assert one(read, "size=${SIZE}").job["file_bytes"] == 64 << 20


def test_what_is_no_job_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"\n" * (fio.FILE_BYTES_MAX + 1))
    (tmp_path / "binary").write_bytes(b"[a]\n\xff\xfe")
    for path, named in (
        (tmp_path / "large", "1 MiB"),
        (tmp_path / "binary", "not text"),
        (tmp_path, "directory"),
        (tmp_path / "no", "No such"),
    ):
        with pytest.raises(RequestError, match=named):
            fio.jobs(str(path))
    with pytest.raises(RequestError):
        fio.jobs("a\0b")


KEYS = (
    "rw bs bsrange ba size filesize nrfiles numjobs iodepth runtime time_based direct buffered ioengine "
    "ramp_time rate rate_iops loops randseed "
    "norandommap random_distribution invalidate fsync end_fsync sync offset filename directory name "
    "cpus_allowed numa_cpu_nodes mem kb_base "
    "cuda_io gpu_dev_ids sqthread_poll rwmixread rwmixwrite stonewall wait_for file_service_type cpus_allowed_policy "
    "bssplit zonemode zonesize zoneskip zonerange io_size number_ios startdelay thinktime thinktime_blocks rate_process "
    "offset_increment do_verify verify_backlog random_sequence_stride allow_file_create "
    "numa_mem_policy unlink hugepage-size verify made_up"
).split() + "ss ss_dur rate_min exitall exit_what flow prio prioclass cmdprio_percentage dedupe_percentage atomic".split()
VALUES = st.one_of(
    st.text(max_size=10),
    st.sampled_from(
        (
            "read randrw 4k 1Mi 0 1 -1 1e9 4k-64k 4k,8k 10s 99999999999999999999 9223372036854775807p libaio "
            "null mmap zipf:9 zipf:. 100% ${HOME} : iops:5% write"
        ).split()
    ),
)


@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=12), st.booleans())
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_settings_are_read_or_refused(read: Any, pairs: list[tuple[str, str]], lenient: bool) -> None:
    text = "[global]\nfilename=/f\n[job]\n" + "\n".join(f"{k}={v}" for k, v in pairs)
    try:
        made = read(text, lenient)
    except (RequestError, UnicodeEncodeError):
        return
    from forebay.flags import by_name

    names = {f.key for f in by_name().values()} | {"sources", "io_bytes_max", "io_bytes_step"}
    assert all(set(j.job) <= names for j in made)
    assert lenient or not any(j.unsupported or j.warnings() for j in made)


@given(st.binary(max_size=400))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.fio").write_bytes(b"[a]\nsize=1g\n" + data)
    try:
        fio.jobs(str(tmp_path / "x.fio"))
    except RequestError:
        pass


def test_the_page_names_every_key() -> None:
    page = (Path(__file__).parent.parent / "docs" / "fio.md").read_text()
    tables = (fio_keys.DONE, fio_keys.HOLDS, fio_keys.TOLD, fio_keys.REFUSED, fio_keys.ALIASES)
    assert not [key for table in tables for key in table if f"`{key}`" not in page]
    assert not [
        e for e in (*fio.ASYNC_ENGINES, *fio.SYNC_ENGINES, "null", "libcufile") if f"`{e}`" not in page
    ]
