"""fio's job files: what each key becomes, what is named as left out, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forebay import fio
from forebay.errors import RequestError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def reader(text: str) -> list[fio.FioJob]:
        path = tmp_path / "jobs.fio"
        path.write_text(text)
        return fio.jobs(str(path))

    return reader


def one(read: Any, *settings_: str) -> fio.FioJob:
    """The only job of a file with these settings, reading a named file."""
    return read("\n".join(["[job]", "filename=/data/f", *settings_]))[0]


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
        ("rate=1m numjobs=4", {"rate_gib_s": 4 / 1024}),
        ("rate_iops=1k numjobs=2", {"rate_iops": 2048.0}),
        ("randseed=9", {"seed": 9}),
        ("rw=randread random_distribution=zipf:1.2", {"distribution": "zipf:1.2"}),
        ("rw=randread random_distribution=zipf", {"distribution": "zipf:1.1"}),
        ("rw=randread norandommap=1", {"no_repeat": False}),
        ("fsync=1 rw=write", {"sync": "each"}),
        ("sync=dsync rw=write", {"sync": "each"}),
        ("end_fsync=1 rw=write", {"sync": "end"}),
        ("fsync_on_close=1 rw=write", {"sync": "end"}),
        ("offset=1g", {"start_bytes": 1 << 30}),
        ("size=1g filesize=2g", {"file_bytes": 2 << 30}),
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
    if "time_based" in lines:
        assert "passes" not in made.job
    if lines == "size=100%":
        assert "file_bytes" not in made.job


def test_files_are_called_as_fio_calls_them(read: Any) -> None:
    assert read("[a/b]\ndirectory=/d\nsize=1g\nnumjobs=3\n")[0].job["file_name"] == "a_b.%d.0"
    many = read("[j]\ndirectory=/d\nsize=1g\nnrfiles=4\n")[0].job
    assert (many["file_name"], many["files"], many["file_bytes"]) == ("j.0.%d", 4, 1 << 28)
    assert read("[j]\nname=other\nsize=1g\n")[0].job["sources"] == ["."]


def test_names_with_colons_and_folders(read: Any) -> None:
    made = read("[j]\ndirectory=/d\nfilename=a\\:b:/dev/x:c\nsize=3g\n")[0].job
    assert (made["sources"], made["file_bytes"]) == (["file:/d/a:b", "/dev/x", "/d/c"], 1 << 30)


def test_global_settings_hold_for_the_sections_below_them(read: Any) -> None:
    text = "[global]\nfilename=/f\nbs=4k\n[a]\n[global]\nbs=8k\n[b]\n[c]\nbs=16k\n"
    assert [j.job["io_bytes"] for j in read(text)] == [4096, 8192, 16384]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("verify=crc32c", "verify=crc32c: fio's checksums"),
        ("thinktime=10", "thinktime=10"),
        ("fsync=32", "fsync=32"),
        ("rw=randread:8", "rw=randread:8"),
        ("made_up=yes", "made_up=yes: is not a key"),
        ("bare_word", "bare_word=1"),
        ("write_lat_log=x", "write_lat_log=x"),
    ],
)
def test_what_is_left_out_is_named(read: Any, setting: str, named: str) -> None:
    messages = one(read, setting).messages()
    assert any(m.startswith(f"[job] not supported and left out: {named}") for m in messages), messages


@pytest.mark.parametrize(
    ("setting", "noted"),
    [
        ("ioengine=libaio", "io_uring"),
        ("iodepth=4", "iodepth=4 has no effect"),
        ("numjobs=2", "share the file"),
        ("rate=1m", "open loop"),
    ],
)
def test_what_differs_from_fio_is_noted(read: Any, setting: str, noted: str) -> None:
    assert any(noted in m for m in one(read, setting).messages())


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
        ("[a]\ninclude other.fio\n", "not read in"),
        ("[a]\nrw=trim\n", "[a] rw=trim"),
        ("[a]\nrw=readd\n", "[a] rw=readd"),
        ("[a]\nbs=4q\n", "[a] bs=4q"),
        ("[a]\nbs=4i\n", "[a] bs=4i"),
        ("[a]\nrw=rw\nbs=4k,8k\n", "different sizes"),
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
        ("[a]\ntime_based\nfilename=f\n", "no runtime"),
        ("[a]\nrw=randread\nrandom_distribution=pareto:0.9\nfilename=f\n", "pareto"),
        ("[a]\nrw=randrw\nrwmixread=120\nfilename=f\n", "above 100"),
        ("[a]\nrate=1m,2m\nfilename=f\n", "different rates"),
        ("[a]\ndirect=perhaps\nfilename=f\n", "direct=perhaps"),
        ("[a]\nsync=perhaps\nfilename=f\n", "sync=perhaps"),
        ("[a]\nmem=cudamalloc\nfilename=f\n", "mem=cudamalloc"),
        ("[a]\ncpus_allowed=all\nfilename=f\n", "cpus_allowed=all"),
        ("[a]\nnuma_cpu_nodes=0-1\nfilename=f\n", "numa_cpu_nodes=0-1"),
        ("[a]\nkb_base=7\nfilename=f\n", "kb_base=7"),
        ("[a]\nfilename=:\n", "names no file"),
        ("[a]\nfilename=a\0b\n", "NUL"),
        ("[a]\nsize=${FOREBAY_TEST_UNSET}\n", "FOREBAY_TEST_UNSET is not set"),
        ("[a]\nbs=$pagesize\n", "keywords"),
        ("\n".join(f"[{n}]" for n in range(1002)), "more than 1000"),
    ],
)
def test_a_wrong_file_is_refused_by_name(read: Any, text: str, named: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(text)
    assert named in str(refused.value)
    assert refused.value.next


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
    "cuda_io gpu_dev_ids sqthread_poll rwmixread rwmixwrite stonewall verify made_up"
).split()
VALUES = st.one_of(
    st.text(max_size=10),
    st.sampled_from(
        (
            "read randrw 4k 1Mi 0 1 -1 1e9 4k-64k 4k,8k 10s 99999999999999999999 9223372036854775807p libaio "
            "null mmap zipf:9 zipf:. 100% ${HOME} :"
        ).split()
    ),
)


@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=12))
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_settings_are_read_or_refused(read: Any, pairs: list[tuple[str, str]]) -> None:
    text = "[global]\nfilename=/f\n[job]\n" + "\n".join(f"{k}={v}" for k, v in pairs)
    try:
        made = read(text)
    except (RequestError, UnicodeEncodeError):
        return
    from forebay.flags import BY_NAME

    names = {f.key for f in BY_NAME.values()} | {"sources", "io_bytes_max", "io_bytes_step"}
    assert all(set(j.job) <= names for j in made)


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
    known = [k for k in KEYS if k not in ("ba", "made_up")]
    assert not [k for k in (*known, *fio.ALIASES, *fio.WHY, *fio.WITHOUT_EFFECT) if f"`{k}`" not in page]
    assert not [
        e for e in (*fio.ASYNC_ENGINES, *fio.SYNC_ENGINES, "null", "libcufile") if f"`{e}`" not in page
    ]
