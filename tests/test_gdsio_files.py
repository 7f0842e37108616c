"""What gdsio's front reads: cufile.json, the places of libcufile, job files."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

from pathlib import Path

import pytest
from forebay.errors import ForebayError, RequestError
from forebay.gdsio import cufile, flags, job_file, jobs
from forebay.gdsio.request import Group, Request
from gdsio_support import (  # noqa: F401
    GIB,
    Capture,
    Engine,
    asked,
    fake,
    gdsio,
    record,
    with_cufile,
    written,
)
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from properties import any_text, examples


def test_libcufile_is_found_where_the_wheel_puts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FOREBAY_LIBCUFILE", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(cufile, "CACHE", tmp_path / "none")
    monkeypatch.setattr(cufile, "TOOLKITS", tmp_path / "none")
    monkeypatch.setattr(cufile.sys, "path", [str(tmp_path)])
    assert cufile.library() is None
    library = tmp_path / "nvidia" / "cufile" / "lib" / "libcufile.so.0"
    library.parent.mkdir(parents=True)
    library.touch()
    assert cufile.library() == library


@pytest.mark.parametrize("where", ["cuda-13.0/targets/x86_64-linux/lib", "cuda/lib64"])
def test_libcufile_is_found_in_a_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str) -> None:
    monkeypatch.delenv("FOREBAY_LIBCUFILE", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(cufile, "CACHE", tmp_path / "none")
    monkeypatch.setattr(cufile, "TOOLKITS", tmp_path)
    library = tmp_path / where / "libcufile.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert cufile.library() == library


def test_libcufile_is_found_in_the_loaders_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FOREBAY_LIBCUFILE", raising=False)
    library = tmp_path / "libcufile.so.0"
    library.touch()
    (tmp_path / "cache").write_bytes(
        b"glibc-ld.so.cache1.1\0libcufile.so.0\0" + bytes(library) + b"\0/lib/libcufile_rdma.so.1\0"
    )
    monkeypatch.setattr(cufile, "CACHE", tmp_path / "cache")
    assert cufile.library() == library


@pytest.mark.promise("GIO-7")
@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"properties": {"allow_compat_mode": true}}', True),
        ('{"properties": {"allow_compat_mode": false}}', False),
        (
            '{\n  // comment with "quotes"\n  "properties": { "allow_compat_mode": false, /* more */ },\n}',
            False,
        ),
        ('{"logging": {"dir": "http://not.a/comment"}, "properties": {"allow_compat_mode": false}}', False),
        ('{"properties": {"allow_compat_mode": false, "force_compat_mode": true}}', True),
        ("{}", True),
        ('{"properties": 3}', True),
    ],
)
def test_cufile_json_decides_whether_falling_back_is_allowed(
    monkeypatch: pytest.MonkeyPatch, with_cufile: None, tmp_path: Path, text: str, allowed: bool
) -> None:
    (tmp_path / "cufile.json").write_text(text)
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", str(tmp_path / "cufile.json"))
    assert cufile.allows_compat() is allowed


def test_require_direct_overrides_cufile_json(
    fake: Engine, with_cufile: None, tmp_path: Path, capsys: Capture
) -> None:
    fake.answer = record(path={"ran": "gds", "destination": "gpu:0", "staged_bytes": 0})
    words = ["-D", written(tmp_path / "d", 1, 1 << 20), "-x", "0", "-s", "1M"]
    gdsio(capsys, *words)
    gdsio(capsys, *words, "--require-direct")
    assert [(j["allow_compat"], j["require_direct"]) for j in fake.jobs] == [(True, False), (False, True)]


@given(st.binary(max_size=300))
@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cufile_json_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "c.json").write_bytes(data)
    try:
        cufile.parse(tmp_path / "c.json")
    except RequestError:
        pass


# Job files

SAMPLE = """\
[global]
name=two_gpus
xfer_type=1
rw=randread
bs=4k
size=4G
runtime=60
do_verify=0
enable_nvlinks=0

[job1]
# GPU 0
numa_node=0
gpu_dev_id=0
num_threads=8
directory=/mnt/gpu0

[job2]
numa_node=0
gpu_dev_id=1
num_threads=8
directory=/mnt/gpu1
"""


def test_a_job_file_is_one_run_over_its_jobs(tmp_path: Path) -> None:
    (tmp_path / "a.gdsio").write_text(SAMPLE)
    request = job_file.read(str(tmp_path / "a.gdsio"))
    assert request == Request(
        (Group("/mnt/gpu0", True, 0, 0, 8), Group("/mnt/gpu1", True, 1, 0, 8)),
        xfer_number=1,
        op="randread",
        io_bytes=(4096,),
        size_bytes=4 * GIB,
        duration_s=60.0,
    )


@pytest.mark.promise("GIO-6")
def test_a_job_file_and_flags_that_say_the_same_make_the_same_job(tmp_path: Path) -> None:
    (tmp_path / "a.gdsio").write_text(
        "[global]\nxfer_type=2\nrw=write\nbs=1MB\nsize=20G\nruntime=60\ndo_verify=1\nskip_bufregister=0\nrandom_seed=9\nrefill_buffer=1\n"
        "fill_random=1\nunaligned_random=0\nstart_offset=4k\n[job0]\nnuma_node=1\ngpu_dev_id=0\nnum_threads=16\nfilename=/mnt/f\n"
    )
    by_flags = asked(*"-x 2 -I 1 -i 1M -s 20G -T 60 -V -k 9 -F -R -o 4k -n 1 -d 0 -w 16 -f /mnt/f".split())
    assert jobs.job(job_file.read(str(tmp_path / "a.gdsio"))) == jobs.job(by_flags)


@pytest.mark.promise("GIO-6")
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no job section"),
        ("[global]\nrw=read\n", "no job section"),
        ("rw=read\n", "before the first section"),
        ("[job\n", "not a section"),
        ("[j]\nspeed=3\n", "[j] speed"),
        ("[j]\nrw=sideways\n", "[j] rw sideways"),
        ("[j]\nbs=big\n", "[j] bs big"),
        ("[j]\nrw=read\n", "neither a directory nor a filename"),
        ("[j]\ndirectory=/a\nfilename=/b\n", "both a directory and a filename"),
        ("[j]\ndirectory=$HOME/x\n", "envsubst"),
        ("[j]\ndirectory=/a\nurl=rdma://x\n", "[j] url"),
        ("[a]\ndirectory=/a\nbs=4k\n[b]\ndirectory=/b\nbs=8k\n", "[b] bs"),
        ("[a]\ndirectory=/a\n[b]\nfilename=/b\n", "-D with -f"),
        ("[a]\ndo_verify=maybe\ndirectory=/a\n", "do_verify maybe"),
        ("[a]\ndirectory=/a\0b\n", "NUL"),
    ],
)
def test_a_wrong_job_file_is_refused_by_name(tmp_path: Path, capsys: Capture, text: str, named: str) -> None:
    (tmp_path / "a.gdsio").write_text(text)
    code, out, err = gdsio(capsys, tmp_path / "a.gdsio", "--dry-run")
    assert (code, out) == (2, "")
    assert named in err


@given(
    st.lists(
        st.sampled_from(
            [
                *SAMPLE.splitlines(),
                "[",
                "]",
                "[x]",
                "=",
                "bs=",
                "rw=9",
                "\0",
                "é",
                "num_threads=99999999999999999999",
            ]
        )
    )
)
@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_job_file_is_read_or_refused(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "f.gdsio").write_text("\n".join(lines))
    try:
        jobs.job(job_file.read(str(tmp_path / "f.gdsio")))
    except ForebayError:
        pass


@given(
    st.lists(
        st.one_of(
            st.sampled_from([f"-{f.letter}" for f in flags.FLAGS if f.letter != "h"]), any_text(max_size=12)
        )
    )
)
@examples(150)
def test_any_flags_are_understood_or_refused(words: list[str]) -> None:
    import click

    try:
        request = asked(*words)
        if not isinstance(request, int):  # what --help comes to, which a word may be
            jobs.job(request)
    except (ForebayError, click.UsageError, click.exceptions.Exit):
        pass
