"""fio's job files: what each key becomes, and what is without effect or said to differ."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import processes
import pytest
from fio_support import bench, one, read  # noqa: F401 - fixtures
from forebay import cli, fio
from forebay.fio import keys as fio_keys


def test_an_offset_by_share_is_of_the_file_that_is_there_whatever_the_size(read: Any, tmp_path: Path) -> None:
    """`size` counts from there; `filesize` says what the share is of where the file isn't there yet."""
    (tmp_path / "there").touch()
    os.truncate(tmp_path / "there", 8 << 20)
    (job,) = read(f"[a]\nrw=read\nbs=4k\nsize=1m\noffset=50%\nfilename={tmp_path}/there\n")
    assert (job.job["start_bytes"], job.job["file_bytes"], job.unsupported) == (4 << 20, 5 << 20, ())


@pytest.mark.parametrize(
    ("settings", "flags", "words"),
    [
        ("bs=2g", (), "[j] bs=2g: must be 1 byte to 1 GiB\n  try: bs=1m"),
        ("bs=4k", ("--io-size", "2g"), "[j] --io-size 2g: must be 1 byte to 1 GiB\n  try: --io-size 1m"),
        ("numjobs=9999", (), "[j] numjobs=9999: must be 1 to 4096\n  try: numjobs=4"),
        ("ioengine=libaio\niodepth=9999", (), "[j] iodepth=9999: must be 1 to 4096"),
    ],
)
def test_the_engine_names_keys_of_the_job_file_and_flags_that_were_given(
    tmp_path: Path, capsys: Any, settings: str, flags: tuple[str, ...], words: str
) -> None:
    (tmp_path / "j.fio").write_text(f"[j]\nfilename={tmp_path}/f\n{settings}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--fio", str(tmp_path / "j.fio"), *flags])
    assert ended.value.code == 2 and words in capsys.readouterr().err


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
            "cache": "bypass", "pages": fio.default_memory(),
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
        "cache": "bypass", "pages": fio.default_memory(),
    }
    assert (first.waits, second.waits) == (False, True)
    assert second.messages() == []


@pytest.mark.promise("BEN-37")
@pytest.mark.parametrize(
    ("setting", "pages"), [("always [madvise] never", "small"), ("[always] madvise never", "thp"), (None, "small")]
)
def test_memory_is_fios_unless_mem_says_otherwise(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, pages: str
) -> None:
    thp = tmp_path / "enabled"
    if setting is not None:
        thp.write_text(setting)
    monkeypatch.setattr(fio, "THP", thp)
    assert one(read, "direct=1").job["pages"] == pages
    assert one(read, "mem=mmaphuge").job["pages"] == "hugetlb"
    assert "pages" not in one(read, "ioengine=libcufile", "direct=1", "gpu_dev_ids=0").job


@pytest.mark.promise("BEN-37")
def test_the_record_says_what_memory_ran(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    done = bench("[j]\nfilename=f\nrw=read\nbs=64k\n", "--json")
    assert done.returncode == 0, done.stderr
    expected = ("small",) if fio.default_memory() == "small" else ("thp", "thp-partial")
    assert json.loads(done.stdout)[0]["path"]["slot_pages"] in expected


@pytest.mark.promise("BEN-10", "BEN-23")
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
        ("bs=0x4000", {"io_bytes": 16384}),
        ("bs=0X10k", {"io_bytes": 16384}),
        ("overwrite=1 rw=randread", {"op": "randread"}),
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
        ("size=0x100000", {"file_bytes": 1 << 20}),
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


def test_keys_without_effect_are_taken_and_those_with_an_output_told(read: Any) -> None:
    made = one(read, *(f"{key}=1" for key in fio_keys.HOLDS))
    assert made.messages() == [] and made.warnings() == []
    reported = one(read, *(f"{key}=1" for key in fio_keys.REPORTED))
    assert sorted(m.split()[1] for m in reported.messages()) == sorted(f"{key}=1" for key in fio_keys.REPORTED)
    assert reported.warnings() == []


def test_each_key_stands_in_one_table() -> None:
    tables = (fio_keys.DONE, fio_keys.HOLDS, fio_keys.REPORTED, fio_keys.REFUSED, fio_keys.ALIASES)
    keys = [key for table in tables for key in table]
    assert len(keys) == len(set(keys))
    assert set(fio_keys.ALIASES.values()) <= set(fio_keys.DONE)
    assert all(why for table in tables for why in table.values())


@pytest.mark.promise("BEN-10")
def test_no_key_of_fio_is_unknown() -> None:
    """Those of the fio that is installed, of the engines that run here too."""
    if shutil.which("fio") is None:
        pytest.skip("fio isn't installed; apt install fio")
    engines = [e for e in (*fio.ASYNC_ENGINES, *fio.SYNC_ENGINES) if e != "vsync"]
    listed = [processes.run(["fio", "--cmdhelp=all"])]
    listed += [processes.run(["fio", f"--enghelp={engine}"]) for engine in engines]
    found = {key for done in listed for key in re.findall(r"^ *([a-z][\w-]*) *: ", done.stdout, re.M)}
    assert len(found) > 150
    known = {*fio_keys.DONE, *fio_keys.HOLDS, *fio_keys.REPORTED, *fio_keys.REFUSED, *fio_keys.ALIASES}
    assert sorted(found - known) == []


@pytest.mark.parametrize(
    ("setting", "noted"),
    [
        ("ioengine=libaio", "io_uring"),
        ("iodepth=4", "iodepth=4 has no effect"),
        ("time_based", "no effect without runtime"),
        ("rw=write verify=crc32c", "Forebay's own content"),
        ("cpus_allowed=0-1", "cpus_allowed_policy=split"),
        ("write_lat_log=x", "the record holds the time series"),
        ("rate=1m", "open loop"),
    ],
)
def test_what_differs_from_fio_is_noted(read: Any, setting: str, noted: str) -> None:
    made = one(read, *setting.split())
    assert any(noted in m for m in made.messages()) and made.warnings() == []


@pytest.mark.promise("BEN-23")
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


def test_the_page_names_every_key() -> None:
    page = (Path(__file__).parent.parent / "docs" / "fio.md").read_text()
    tables = (fio_keys.DONE, fio_keys.HOLDS, fio_keys.REPORTED, fio_keys.REFUSED, fio_keys.ALIASES)
    assert not [key for table in tables for key in table if f"`{key}`" not in page]
    assert not [
        e for e in (*fio.ASYNC_ENGINES, *fio.SYNC_ENGINES, "null", "libcufile") if f"`{e}`" not in page
    ]
