"""Job files with the same keys as those of fio's own examples that run here: all of them are read as jobs of the same meaning.

fio's files aren't part of this repository. Where FOREBAY_FIO_EXAMPLES names their folder, they are read themselves.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from forebay import fio
from forebay.errors import RequestError
from forebay.fio import file

PAGE = (Path(__file__).parent.parent / "docs/fio.md").read_text()
FOLDER = os.environ.get("FOREBAY_FIO_EXAMPLES", "")
# As many as docs/fio.md promises, of how many.
RUN, ALL = 38, 107
_GDS = "ioengine=libcufile directory=d gpu_dev_ids=0 cuda_io={} direct=1 bs=1m size=1m numjobs=2 thread rw={}"


def _with_gpus(way: str) -> tuple[str, ...]:
    kinds = ("read", "write", "randread", "randwrite", "write verify=md5", "randwrite verify=md5")
    return tuple(_GDS.format(way, kind) for kind in kinds)


_TIMED = "name=n filename=f direct=1 size=2g ioengine=libaio iodepth=8 time_based runtime=60 numjobs=2"
_ENDS = "filename=f filesize=8m blocksize=4k group_reporting exitall new_group"
_ONE_BY_ONE = f"{_ENDS} ioengine=sync numjobs=1 thinktime=1000 number_ios=100"
_SSD = "bs=4k ioengine=libaio iodepth=2 size=1g direct=1 runtime=9 directory=d filename=f stonewall"
_TIO = "direct=1 size=64m bsrange=8k-8k timeout=9 numjobs=2"
_WAITS = "threads=1 group_reporting filename=f filesize=8m bs=8k numjobs=2 runtime=3"
_FLOWS = "norandommap thread time_based runtime=3 direct=1 ioengine=libaio iodepth=8 size=1g bs=4k filename=f flow_sleep=9"
_BLKIO = "ioengine=libblkio libblkio_driver=io_uring libblkio_path=/dev/x rw=randread blocksize=8k direct=1 time_based runtime=3s"
_STEADY = "threads=1 group_reporting time_based size=8m numjobs=2 runtime=2m ss_dur=9s ss_ramp=2s"
_LISTED = "ioengine=null rw=randread bs=4k size=64k io_size=32k random_distribution=sequence:1,3,0"
# Name → its sections, with the settings of [global] in each; those that differ in nothing but a number once.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "1mbs_clients": ("size=8m rw=read directory=d rate=2000 ratemin=1000 startdelay=3",),
    "aio-read": ("ioengine=libaio buffered=0 rw=randread bs=64k size=8m directory=d iodepth=8",),
    "atomic-verify": (
        "rw=randwrite bs=8k direct=1 ioengine=libaio iodepth=8 verify=crc64 atomic=1 verify_write_sequence=0 numjobs=2 "
        "filename=f",
    ),
    "backwards-read": ("bs=8k rw=read:-16k filename=f size=8m",),
    "basic-verify": ("rw=randwrite bs=8k direct=1 ioengine=libaio iodepth=8 verify=crc32c filename=f",),
    "butterfly": ("filename=f bs=8k direct=1 flow=3 rw=read", "filename=f bs=8k direct=1 flow=3 rw=read:-16k"),
    "cmdprio-percentage": (
        "filename=f direct=1 write_lat_log=l log_prio=1 rw=randread bs=64k ioengine=libaio iodepth=4 prioclass=2 "
        "cmdprio_percentage=10 cmdprio_class=1",
    ),
    "cpp_null": ("bs=8k gtod_reduce=1 ioengine=cpp_null size=1g rw=randread norandommap time_based",),
    "dedupe-global": (
        "ioengine=libaio iodepth=8 size=8m dedupe_mode=working_set dedupe_global=1 dedupe_percentage=30 blocksize=4k rw=write "
        "buffer_compress_percentage=20 dedupe_working_set_percentage=40",
    ),
    "disk-zone-profile": (
        "bs=32k direct=1 rw=read ioengine=libaio iodepth=4 zonemode=strided zonesize=64m zoneskip=1g filename=f write_bw_log "
        "log_offset=1",
    ),
    "example_latency_steadystate": (
        "ioengine=libaio iodepth=8 bs=8k direct=1 rw=randread numjobs=1 time_based runtime=900 steadystate=lat:9% "
        "steadystate_duration=60 steadystate_ramp_time=9 steadystate_check_interval=5 write_lat_log=l log_avg_msec=1000 "
        "filename=f size=1g",
    ),
    "exitwhat": (
        f"{_ONE_BY_ONE} rw=read exit_what=stonewall",
        f"{_ENDS} rw=randrw numjobs=2 ioengine=libaio iodepth=8 rate=200,200,200",
        f"{_ONE_BY_ONE} rw=write exit_what=all stonewall",
    ),
    "fio-rand-RW": (f"{_TIMED} bs=8k rw=randrw rwmixread=70 rwmixwrite=30",),
    "fio-rand-read": (f"{_TIMED} bs=8k rw=randread",),
    "fio-rand-write": (f"{_TIMED} bs=8k rw=randwrite",),
    "fio-seq-RW": (f"{_TIMED} bs=64k rw=rw rwmixread=70 rwmixwrite=30",),
    "fio-seq-read": (f"{_TIMED} bs=64k rw=read",),
    "fio-seq-write": (f"{_TIMED} bs=64k rw=write",),
    "fixed-rate-submission": ("size=8m rw=read ioengine=libaio iodepth=8 direct=1 io_submit_mode=offload rate_iops=500",),
    "flow": (f"{_FLOWS} numjobs=1 rw=write flow=2", f"{_FLOWS} numjobs=1 rw=randread flow=5"),
    "fsx": ("ioengine=libaio iodepth=1 rw=randrw size=64k bs=8k norandommap direct=1 loops=1000",),
    "iometer-file-access-server": (
        "description=d bssplit=512/20:4k/50:32k/30 rw=randrw rwmixread=70 direct=1 size=8m ioengine=libaio iodepth=8",
    ),
    "jesd219": (
        "ioengine=libaio direct=1 rw=randrw norandommap randrepeat=0 rwmixread=30 rwmixwrite=70 iodepth=8 numjobs=2 "
        "bssplit=512/20:4k/50:32k/30 blockalign=8k random_distribution=zoned:60/10:40/90 filename=f group_reporting",
    ),
    "libblkio-io_uring": (_BLKIO, f"{_BLKIO} numjobs=2 thread=1"),
    "libcufile-cufile": _with_gpus("cufile"),
    "libcufile-posix": _with_gpus("posix"),
    "null": ("bs=8k gtod_reduce=1 ioengine=null size=1g rw=randread norandommap",),
    "numa": (
        "ioengine=libaio buffered=0 rw=randread bs=64k iodepth=8 size=8m filename=f numa_cpu_nodes=0 numa_mem_policy=bind:0",
    ),
    "poisson-rate-submission": (
        "size=8m rw=randread ioengine=libaio iodepth=8 direct=1 io_submit_mode=offload rate_iops=90 rate_process=poisson",
    ),
    "rand-zones": ("size=8m direct=1 bs=8k rw=randread norandommap random_distribution=zoned:60/10:20/20:20/",),
    "sequence-distribution": (f"{_LISTED} random_sequence_stride=0", f"{_LISTED} random_sequence_stride=1 stonewall"),
    "ssd-steadystate": (
        "ioengine=libaio direct=1 group_reporting filename=f description=d rw=write iodepth=8 bs=64k",
        "ioengine=libaio direct=1 group_reporting filename=f description=d rw=randwrite iodepth=8 bs=8k numjobs=2 stonewall "
        "write_bw_log=l",
    ),
    "ssd-test": tuple(f"{_SSD} rw={way}" for way in ("read", "randread", "write", "randwrite")),
    "steadystate": (
        f"{_STEADY} filename=/dev/null rw=write bs=64k ss=iops:5%",
        f"{_STEADY} filename=/dev/zero rw=randread bs=8k ss=bw_slope:2% new_group stonewall",
    ),
    "tiobench-example": (f"{_TIO} rw=write", *(f"{_TIO} rw={way} stonewall" for way in ("randwrite", "read", "randread"))),
    "waitfor": (
        f"{_WAITS} rw=write",
        f"{_WAITS} rw=randread new_group wait_for=s0",
        f"{_WAITS} rw=randwrite new_group wait_for=s1",
    ),
    "xnvme-compare": (
        "rw=randread size=1g iodepth=4 bs=8k direct=1 thread time_based runtime=3 ramp_time=1 norandommap allow_file_create=0",
    ),
    "zipf": ("ioengine=null rw=randread norandommap size=1g bs=8k random_distribution=zipf:0.7",),
}


def text_of(sections: tuple[str, ...]) -> str:
    return "".join(f"[s{n}]\n" + "\n".join(settings.split()) + "\n" for n, settings in enumerate(sections))


@pytest.mark.promise("BEN-34")
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_has_the_keys_of_an_example_means_what_fio_means(tmp_path: Path, name: str) -> None:
    (tmp_path / "jobs.fio").write_text(text_of(EXAMPLES[name]))
    found = fio.jobs(str(tmp_path / "jobs.fio"))
    assert len(found) >= len(EXAMPLES[name]) and not any(job.unsupported for job in found)


@pytest.mark.promise("BEN-34")
def test_the_page_lists_as_many_and_no_difference() -> None:
    rows = re.findall(r"^\| (\S+)\.fio \| (yes|no) \| (.*?) \| (.*?) \|$", PAGE, re.M)
    assert len(rows) == ALL
    runs = {name: offsets for name, _, said, offsets in rows if not said.startswith("refused: ")}
    assert set(runs) == set(EXAMPLES) and len(runs) >= RUN
    for name, known, said, offsets in rows:
        assert re.search(r"refused: `.+`|\d jobs?(; same bytes( and I/Os)?|; not run: .*)?$", said), name
        assert re.fullmatch("–|not traced: .*|(same sequence|each|drawn alike|read back).*", offsets), name
        assert (offsets == "–") == (known == "no" or name not in runs), name


def keys(path: Path) -> set[frozenset[str]]:
    """What each of the sections sets, by itself or in [global]."""
    shared: frozenset[str] = frozenset()
    found = set()
    for section in file.sections(str(path)):
        own = frozenset(key for key, _ in section.settings)
        if section.name == "global":
            shared |= own
        else:
            found.add(shared | own)
    return found


@pytest.mark.promise("BEN-34")
@pytest.mark.skipif(not FOLDER, reason="FOREBAY_FIO_EXAMPLES doesn't name the folder of fio's examples")
def test_fios_own_files_run_as_often_and_have_these_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIO_DIR", "GPU_DEV_IDS", "FIO_BS", "FIO_RW", "FIO_IODEPTH", "POOL", "CONT", "uri"):
        monkeypatch.setenv(name, {"FIO_RW": "randread", "FIO_BS": "4k"}.get(name, "1"))
    runs = set()
    for path in Path(FOLDER).glob("*.fio"):
        try:
            fio.jobs(str(path))
        except RequestError:
            continue
        runs.add(path.stem)
        (tmp_path / path.name).write_text(text_of(EXAMPLES.get(path.stem, ())))
        mine = {key for each in keys(tmp_path / path.name) for key in each}
        theirs = {key for each in keys(path) for key in each}
        assert mine == theirs, path.name
    assert runs == set(EXAMPLES) and len(runs) >= RUN
