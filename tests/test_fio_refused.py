"""fio's job files: what would be another workload, or is none, is refused by name; nothing else ends a reading."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fio_support import one, read  # noqa: F401 - fixtures
from forebay import fio
from forebay.errors import RequestError
from forebay.fio import keys
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from properties import any_text, examples

ANOTHER_WORKLOAD = [
    "verify=md5",
    "rw=write verify_pattern=0xdeadbeef",
    "rw=write verify_only",
    "rw=randread:8",
    "rw=rw:64k",
    "bs=8k size=20k rw=read:-4k",
    "bs=4k size=64k numjobs=2 offset_increment=64k rw=write:4k",
    "bsrange=4k-8k size=64k rw=read:-8k",
    "bs=8k size=64k io_size=12k rw=write:-16k",
    "rw=randread bs=4k size=64k blockalign=8k",
    "rw=rw loops=2",
    "rw=rw size=1m io_size=2m",
    "filename=/a:/b file_service_type=sequential rw=rw",
    "percentage_random=50",
    "rate=1m rate_process=odd",
    "rw=rw rate_min=1m",
    "zonemode=zbd",
    "rw=randread zonesize=256m zoneskip=1g",
    "zonesize=6k zoneskip=1g",
    "zonesize=256m zonerange=128m",
    "merge_blktrace_file=log",
    "read_iolog=log loops=2",
    "read_iolog=log verify=md5",
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
    "filesize=1m-2m",
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


@pytest.mark.promise("BEN-10")
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


@pytest.mark.parametrize("key", sorted(keys.REFUSED))
def test_a_refused_key_may_ask_for_what_holds_anyway(read: Any, key: str) -> None:
    op = "rw=write" if key in keys.OF_WRITES else "rw=read"
    for value in keys.HARMLESS[key]:
        assert one(read, op, f"{key}={value}").unsupported == ()
    with pytest.raises(RequestError, match=re.escape(f"[job] {key}=odd")):
        one(read, op, f"{key}=odd")
    assert one(read, op, f"{key}=odd", lenient=True).unsupported[0].startswith(f"{key}=odd: ")


@pytest.mark.parametrize("key", keys.OF_WRITES)
def test_how_writes_are_made_doesnt_concern_a_job_that_only_reads(read: Any, key: str) -> None:
    assert one(read, "rw=randread", f"{key}=1").unsupported == ()
    with pytest.raises(RequestError, match=re.escape(f"[job] {key}=odd")):
        one(read, "rw=randrw", f"{key}=odd")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no job section"),
        ("[global]\nbs=4k\n", "no job section"),
    ],
)
def test_a_file_without_a_section_is_refused(read: Any, text: str, named: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(text)
    assert named in str(refused.value)
    assert refused.value.next


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
    any_text(max_size=10),
    st.sampled_from(
        (
            "read randrw 4k 1Mi 0 1 -1 1e9 4k-64k 4k,8k 10s 99999999999999999999 9223372036854775807p libaio "
            "null mmap zipf:9 zipf:. 100% ${HOME} : iops:5% write"
        ).split()
    ),
)


@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=12), st.booleans())
@examples(500, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.fio").write_bytes(b"[a]\nsize=1g\n" + data)
    try:
        fio.jobs(str(tmp_path / "x.fio"))
    except RequestError:
        pass


@pytest.mark.parametrize(
    ("text", "said", "next"),
    [
        ("bssplit=512/10,1536/10,2560/10,7k/70", "separated by colons", "bssplit=512/10:1536/10:2560/10:7k/70"),
        ("numjobs=2  // note", "a remark has a line of its own", "numjobs=2"),
        ("rw=randtrim", "is not one of", "rw=randwrite"),
        ("rw=randraed", "is not one of", "rw=randread"),
        ("rw=randread // note", "a remark has a line of its own", "rw=randread"),
        ("bs=16k /* note */", "a remark has a line of its own", "bs=16k"),
        ("ioengine=MMAP", "is not one of", "ioengine=mmap"),
        ("ioengine=io_urnig", "is not one of", "ioengine=io_uring"),
        ("runtime=.5", "is not a time", "runtime=500ms"),
        ("runtime=0.25s", "is not a time", "runtime=250ms"),
        ("runtime=2min", "is not a time", "runtime=2m"),
        ("runtime=90 sec", "is not a time", "runtime=90s"),
        ("thinktime=1.5ms", "is not a time", "thinktime=1500us"),
        ("runtime=1e3", "is not a time", "runtime=30s"),
        ("filesize=2m-1m", "ends below its beginning", "filesize=2m"),
    ],
)
def test_what_to_type_instead_is_what_was_meant(read: Any, text: str, said: str, next: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        one(read, text)
    assert refused.value.next == next
    if "trim" not in text:
        one(read, next)


@pytest.mark.parametrize("range_", ["1m-1m", "1m:1m", "0x100000-1024k", "1m-1m,2m-2m"])
def test_a_range_of_one_file_size_is_that_size(read: Any, range_: str) -> None:
    assert one(read, f"filesize={range_}").job["file_bytes"] == 1 << 20


def test_a_range_of_file_sizes_says_what_to_type(read: Any) -> None:
    with pytest.raises(RequestError, match="fio draws a size for each file.*filesize=2m"):
        one(read, "filesize=1m-2m")
    assert one(read, "filesize=1m-2m", lenient=True).job["file_bytes"] == 2 << 20


@pytest.mark.parametrize("note", [" ; note", ";note", " # note", "#note", "\t; a # b"])
def test_a_comment_may_stand_behind_any_value(read: Any, note: str) -> None:
    plain = ("rw=randread", "bs=16k", "size=1m", "direct=1", "runtime=500msec", "ioengine=mmap", "fadvise_hint=0")
    assert one(read, *(line + note for line in plain)).job == one(read, *plain).job


@pytest.mark.parametrize("rw", ["write", "randwrite", "rw", "randrw"])
def test_a_mapping_is_only_read(read: Any, rw: str) -> None:
    assert one(read, "ioengine=mmap", "rw=randread").job["engine"] == "map"
    with pytest.raises(RequestError, match=r"\[job\] ioengine=mmap: .* only read") as refused:
        one(read, "ioengine=mmap", f"rw={rw}", "size=1m")
    assert refused.value.next == "ioengine=psync"
    assert one(read, refused.value.next, f"rw={rw}", "size=1m").job["engine"] == "inline"


@pytest.mark.parametrize("text", ["ioengine=aio", "ioengine=linuxaio"])
def test_fios_other_names_of_an_engine_are_taken(read: Any, text: str) -> None:
    job = one(read, "iodepth=4", text)
    assert job.job["engine"] == "uring" and job.job["depth"] == 4


def test_a_job_file_is_no_data_and_the_verb_that_runs_it_is_named(tmp_path: Path, capsys: Any) -> None:
    """A forgotten --fio would measure, or overwrite, the job file itself."""
    from fake_machine import typed

    job = tmp_path / "job.fio"
    job.write_text("; nightly\n[global]\nrw=randwrite\nbs=4k\nsize=1m\n\n[a]\nfilename=x.bin\n")
    code, _, err = typed(capsys, "bench", job, "--op", "randwrite", "--duration", "1")
    assert code == 2 and "is a job file of fio's" in err and f"forebay bench --fio {job}" in err
    others = ["tune", "validate", "compare --a depth=1 --b depth=2", "compare --a depth=1 --b source=JOB /dev/null",
              "sweep --vary depth=1:2 -o"]  # fmt: skip
    for words in others:
        line = [str(job) if word == "JOB" else word for word in words.replace("=JOB", f"={job}").split()]
        more = [tmp_path / "s.jsonl", job] if line[-1] == "-o" else [job]
        code, _, err = typed(capsys, *line, *more)
        assert code == 2 and "is a job file of fio's" in err, words
    assert not (tmp_path / "s.jsonl").exists()
    assert typed(capsys, "fio", job, "--parse-only")[0] == 0 and job.read_text().startswith("; nightly")
    results = tmp_path / "runs.jsonl"
    results.write_text('{"schema": "forebay.run/1", "id": "1"}\n')
    code, _, err = typed(capsys, "bench", results, "--dry-run")
    assert code == 2 and "holds results of Forebay's, and no data" in err and f"forebay report {results}" in err
    (tmp_path / "data.bin").write_bytes(b"[0, 1]\n" + bytes(5000))
    assert "job file" not in typed(capsys, "bench", tmp_path / "data.bin", "--dry-run")[2]
