"""gdsio's command line: from flags to a job, refusals, a run."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from forebay.errors import MachineError, RequestError, RunError
from forebay.gdsio import flags, jobs, machine, wording
from forebay.gdsio.request import Group
from forebay.gdsio.xfer import XFERS
from gdsio_support import (  # noqa: F401
    GIB,
    Capture,
    Engine,
    asked,
    fake,
    gdsio,
    no_cufile,
    no_gpu,
    record,
    with_cufile,
    written,
)


@pytest.mark.promise("GIO-1")
def test_the_papers_command_becomes_a_direct_read_of_one_file_per_thread() -> None:
    request = asked(*"-T 45 -s 512M -I 0 -x 0 -D /data -w 32 -d 0 -i 64k".split())
    assert jobs.job(request) == {
        "sources": ["/data"],
        "path": "gds",
        "op": "read",
        "io_bytes": 65536,
        "file_bytes": 512 << 20,
        "files": 32,
        "file_name": "gdsio.%d",
        "workers": 32,
        "depth": 1,
        "duration_s": 45.0,
        "warmup_s": 0.0,
        "start_bytes": 0,
        "cache": "bypass",
        "verify": False,
        "refill": False,
        "gpus": [0],
        "allow_compat": True,
        "require_direct": False,
        "cufile": "sync",
    }


@pytest.mark.promise("GIO-3")
@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (1, {"path": "host", "depth": 1, "cache": "bypass"}),
        (2, {"path": "bounce", "depth": 1, "cache": "bypass"}),
        (3, {"path": "bounce", "depth": 2, "cache": "bypass"}),
        (4, {"path": "bounce", "depth": 1, "cache": "allow"}),
        (5, {"path": "gds", "depth": 1, "cache": "bypass", "cufile": "stream"}),
        (6, {"path": "gds", "workers": 1, "depth": 1, "cufile": "batch", "cufile_batch": 1}),
        (7, {"path": "gds", "workers": 1, "depth": 1, "cufile": "batch-stream", "cufile_batch": 1}),
    ],
)
def test_each_type_has_its_path(number: int, fields: dict[str, Any]) -> None:
    job = jobs.job(asked("-f", "F", "-s", "1G", "-x", str(number)))
    assert fields.items() <= job.items()


@pytest.mark.promise("GIO-1")
@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("", {"passes": 1, "workers": 1, "io_bytes": 1 << 20, "op": "read", "file_bytes": GIB}),
        ("-T 0", {"passes": 1}),
        ("-T 120", {"duration_s": 120.0}),
        ("-k 0308", {"seed": 308}),
        ("-n 1", {"numa": 1}),
        ("-O 1", {"cache": "allow"}),
        ("-O 0", {"cache": "bypass"}),
        ("-i 4K:64K:4K", {"io_bytes": 4096, "io_bytes_max": 65536, "io_bytes_step": 4096}),
        ("-i4k -w8", {"io_bytes": 4096, "workers": 8}),
        ("-o 1G", {"start_bytes": GIB, "file_bytes": 2 * GIB}),
        ("-I 2 -U", {"align_bytes": 512}),
        ("-I 2 -a 8k", {"align_bytes": 8192}),
        ("-I 1 -F", {"refill": True}),
        ("-I 3 -V", {"verify": True, "no_repeat": True}),
        ("-s 64MB", {"file_bytes": 64 << 20}),
        ("-x 0 -x 1", {"path": "host"}),
        ("-f nil:", {"sources": ["F", "file:nil:"]}),
        ("-x 0 -b", {"cufile": "sync", "cufile_unregistered": True}),
        ("-x 0 -m 1", {"path": "gds"}),
        ("-x 6 -B 16 -w 4", {"workers": 4, "depth": 16, "cufile_batch": 16}),
        ("-x 6 -w 8", {"workers": 1, "depth": 8, "cufile_batch": 8}),
        ("-x 6 -M 70 -B 4", {"read_pct": 70, "cufile": "batch"}),
        ("-x 7 -B 8", {"cufile": "batch-stream", "cufile_batch": 8}),
    ],
)
def test_each_flag_reaches_its_field(words: str, fields: dict[str, Any]) -> None:
    job = jobs.job(asked("-f", "F", "-s", "1G", "-x", "1", *words.split()))
    assert fields.items() <= job.items()


def test_sequential_offsets_ignore_the_alignment_and_say_so() -> None:
    request = asked(
        "-f", "F", "-x", "1", "-U", "-a", "8k", "-b", "-p", "-m", "1", "-B", "4", "-M", "70", "-R"
    )
    assert "align_bytes" not in jobs.job(request)
    notes = jobs.without_effect(request)
    assert [n.split(" has")[0] for n in notes] == ["-B 4", "-M 70", "-b", "-p", "-m 1", "-U", "-a", "-R"]


def test_groups_pair_up_in_order_and_single_values_hold_for_all() -> None:
    request = asked(*"-D /a -d 0 -w 4 -D /b -d 1 -w 4 -n 1 -s 1G -x 0".split())
    assert request.groups == (Group("/a", True, 0, 1, 4), Group("/b", True, 1, 1, 4))
    job = jobs.job(request)
    assert (job["sources"], job["gpus"], job["workers"], job["files"], job["numa"]) == (
        ["/a", "/b"],
        [0, 1],
        8,
        4,
        1,
    )
    assert jobs.data_bytes(request) == 8 * GIB


def test_the_same_job_is_told_as_a_bench_command(capsys: Capture) -> None:
    code, out, _ = gdsio(capsys, *"-D /data -w 4 -s 512M -i 4k:64k:4k -x 1 -T 45 --dry-run".split())
    assert code == 0
    assert out.startswith(
        "forebay bench /data --path host --op read --io-size 4096:65536:4096 --file-size 536870912 --files 4"
    )


def test_the_bench_command_gives_the_same_job_back() -> None:
    import shlex

    import click
    from forebay.flags import job_from_flags, job_options

    @click.command()
    @click.argument("sources", nargs=-1)
    @job_options
    def bench(sources: tuple[str, ...], **values: Any) -> dict[str, Any]:
        return job_from_flags(sources, values)

    job = jobs.job(
        asked(*"-D /a -D /b -d 0 -d 1 -w 4 -s 512M -i 4k:64k:4k -x 2 -I 3 -V -n 0 -k 3 -T 45".split())
    )
    parsed = bench.main(shlex.split(jobs.as_bench(job))[2:], standalone_mode=False)
    assert {k: v for k, v in job.items() if v is not False} == parsed


# Refusals


@pytest.mark.promise("GIO-3")
@pytest.mark.parametrize(
    ("words", "named", "code"),
    [
        ("", "-D DIR or -f FILE", 2),
        ("-D a -f b", "-D with -f", 2),
        ("-f F -w 0", "-w 0", 2),
        ("-f F -w 5000", "-w 5000", 2),
        ("-f F -w many", "-w many", 2),
        ("-f F -x 8", "-x 8", 2),
        ("-f F -x -1", "-x -1", 2),
        ("-f F -I 4", "-I 4", 2),
        ("-f F -i 0", "-i 0", 2),
        ("-f F -i 64q", "-i 64q", 2),
        ("-f F -i 1:2:3:4", "more than three", 2),
        ("-f F -i 64k:4k:4k", "below the smallest", 2),
        ("-f F -s 0", "-s 0", 2),
        ("-f F -s 99999999999G", "-s 99999999999G", 2),
        ("-f F -I 1 -x 1", "-s 1G", 2),
        ("-f F -T soon", "-T soon", 2),
        ("-f F -k seven", "-k seven", 2),
        ("-f F -n -1", "-n -1", 2),
        ("-f F -m 5", "-m 5", 2),
        ("-f F -m 3 -x 1", "-m 3", 2),
        ("-f F -O 2", "-O 2", 2),
        ("-f F -M 101", "-M 101", 2),
        ("-f F -B 0", "-B 0", 2),
        ("-f F -I 2 -x 1 -a 0", "-a 0", 2),
        ("-f F -P rdma://host", "-P rdma://host", 2),
        ("-f F -t 3", "-t", 2),
        ("-f F -w", "-w", 2),
        ("-f a -f a -s 1G", "named twice", 2),
        ("-f a -d 0 -d 1", "-d given 2 times", 2),
        ("-f a -f b -f c -w 1 -w 2", "-w given 2 times", 2),
        ("-f a -f b -n 0 -n 1 -x 1", "-n 0, 1", 2),
        ("-f a -f b -w 1 -w 2 -x 1", "-w 1, 2", 2),
        ("-f F -x 0 -p", "-p", 3),
        ("-f F -x 0 -m 2", "-m 2", 3),
        ("-f F -x 6 -m 4", "-m 4", 3),
        ("job.gdsio -x 1", "job.gdsio with -x", 2),
        ("missing.gdsio", "missing.gdsio", 2),
        ("-f /nowhere/F -x 1", "write first with -I 1", 2),
        ("-D /nowhere -x 1 -s 1G -I 1", "mkdir -p /nowhere", 2),
        ("-f / -x 1 -s 1G", "-D /", 2),
        ("-f F -x 1 --record /nowhere/r.json", "--record /nowhere/r.json", 2),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    fake: Engine, with_cufile: None, capsys: Capture, words: str, named: str, code: int
) -> None:
    ended, out, err = gdsio(capsys, *words.split())
    assert (ended, out, fake.jobs) == (code, "", [])
    assert named in err


@pytest.mark.promise("CMD-9")
def test_no_command_is_suggested_that_would_be_refused(tmp_path: Path, capsys: Capture) -> None:
    """Past the page cache, where that is possible here; -O 1 reads from any offset."""
    line = f"-D {tmp_path} -w 1 -s 64K -i 4K -x 1 -I 0"
    code, _, err = gdsio(capsys, *line.split(), "-o", 3)
    assert code == 2 and ("-o 3" in err and "O_DIRECT needs a multiple" in err and "-I 1" not in err or " -o 3 " in err), err
    code, _, err = gdsio(capsys, *line.split(), "-o", 3, "-O", 1)
    assert code == 2 and " -o 3 -x 1 -I 1 -O 1" in err, err


@pytest.mark.promise("GIO-4")
def test_a_read_creates_nothing_and_says_how_to_write(fake: Engine, tmp_path: Path, capsys: Capture) -> None:
    code, out, err = gdsio(capsys, "-D", written(tmp_path / "d", 1, 1 << 20), *"-w 2 -s 1M -x 1 -I 0".split())
    assert (code, out, fake.jobs) == (2, "", [])
    assert "gdsio.1" in err and "-I 1" in err
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["gdsio.0"]


def test_a_file_too_short_for_the_read_is_refused(fake: Engine, tmp_path: Path, capsys: Capture) -> None:
    code, _, err = gdsio(capsys, "-D", written(tmp_path / "d", 2, 1 << 20), *"-w 2 -s 1M -o 4k -x 1".split())
    assert code == 2
    assert "holds 1m" in err and "1028k" in err


@pytest.mark.promise("GIO-3", "ENG-10")
def test_without_libcufile_it_exits_3_and_names_x_1(fake: Engine, no_cufile: None, capsys: Capture) -> None:
    code, out, err = gdsio(capsys, *"-T 45 -s 512M -I 0 -x 0 -D DIR -w 32 -d 0 -i 64k".split())
    assert (code, out, fake.jobs) == (3, "", [])
    assert "libcufile" in err and "-x 1" in err


def test_an_engine_without_the_path_is_an_exit_3_that_names_x_1(
    fake: Engine, with_cufile: None, tmp_path: Path, capsys: Capture
) -> None:
    fake.answer = MachineError("--path gds", "this build has no cuFile", "")
    code, out, err = gdsio(capsys, "-D", written(tmp_path / "d", 1, 1 << 20), "-x", "0", "-s", "1M")
    assert (code, out) == (3, "")
    assert "-x 1" in err


@pytest.mark.parametrize("library", ["", "/bin/true"])
def test_x_0_in_a_build_without_cufile_is_one_answer_whatever_the_machine_has(
    fake: Engine, monkeypatch: pytest.MonkeyPatch, capsys: Capture, library: str
) -> None:
    monkeypatch.setenv("FOREBAY_LIBCUFILE", library)
    monkeypatch.setattr(machine, "lacks_cufile", lambda: "this version doesn't have it yet")
    code, _, err = gdsio(capsys, *"-s 1M -x 0 -D DIR -d 0".split())
    assert (code, fake.jobs) == (3, [])
    assert err.startswith("forebay: -x 0 (GPU_DIRECT): this version doesn't have it yet\n") and "-x 1" in err


def test_a_gpu_of_a_copy_that_may_go_to_host_memory_is_needed_no_more(
    fake: Engine, no_gpu: None, tmp_path: Path, capsys: Capture
) -> None:
    fake.answer = record(path={"ran": "bounce"})
    words = ["-D", written(tmp_path / "d", 1, 1 << 20), *"-x 2 -s 1M -d 0 --allow-host-destination".split()]
    code, out, err = gdsio(capsys, *words)
    assert code == 0 and "XferType: CPU_HOST" in out
    assert fake.jobs[0]["gpus"] == [] and "-d has no effect: libcuda.so.1 was not found" in err


@pytest.mark.parametrize("number", [2, 3, 4])
def test_without_a_gpu_a_copy_is_refused_unless_host_memory_will_do(
    fake: Engine, no_gpu: None, tmp_path: Path, capsys: Capture, number: int
) -> None:
    words = ["-D", written(tmp_path / "d", 1, 1 << 20), "-x", number, "-s", "1M"]
    code, out, err = gdsio(capsys, *words)
    assert (code, out, fake.jobs) == (3, "", [])
    assert "-x 1" in err and "--allow-host-destination" in err
    fake.answer = record(path={"ran": "bounce"})
    code, out, _ = gdsio(capsys, *words, "--allow-host-destination")
    assert code == 0
    assert f"XferType: {XFERS[number].host_label} " in out


def test_a_copy_that_ended_in_host_memory_after_all_prints_no_line(
    fake: Engine, with_cufile: None, tmp_path: Path, capsys: Capture
) -> None:
    fake.answer = record(path={"ran": "bounce", "reason": "no context on GPU 0"})
    code, out, err = gdsio(capsys, "-D", written(tmp_path / "d", 1, 1 << 20), "-x", 2, "-s", "1M")
    assert (code, out) == (3, "")
    assert "no context on GPU 0" in err


def test_a_gpu_that_is_not_there_is_named(fake: Engine, with_cufile: None, capsys: Capture) -> None:
    code, _, err = gdsio(capsys, *"-f F -x 0 -d 2".split())
    assert code == 3
    assert "-d 2" in err and "2 GPUs" in err


# A run


@pytest.mark.promise("GIO-5")
def test_a_run_prints_one_line_and_nothing_else_on_stdout(
    fake: Engine, tmp_path: Path, capsys: Capture
) -> None:
    directory = written(tmp_path / "d", 8, 1 << 20)
    code, out, err = gdsio(capsys, "-D", directory, *"-w 8 -s 1M -i 1M -x 1 -J -b".split())
    assert code == 0
    assert re.fullmatch(
        r"IoType: READ XferType: CPUONLY Threads: 8 DataSetSize: 818796544/8192\(KiB\).* secs\n", out
    )
    assert "p99" in err and "target gdsio.0" in err and "-b has no effect" in err
    assert all(line.startswith("forebay: ") for line in err.splitlines())


@pytest.mark.promise("GIO-5")
def test_notes_come_before_the_line_where_both_streams_meet(fake: Engine, tmp_path: Path) -> None:
    """`2>&1 | tail -n 1` is how many scripts take the line."""
    from click.testing import CliRunner
    from forebay.gdsio import command

    directory = written(tmp_path / "d", 1, 1 << 20)
    result = CliRunner().invoke(command, ["-D", str(directory), "-s", "1M", "-x", "1"], standalone_mode=False)
    assert result.output.splitlines()[-1].startswith("IoType: ")
    assert len(result.output.splitlines()) > 1


def test_warnings_reach_stderr_with_what_to_do(fake: Engine, tmp_path: Path, capsys: Capture) -> None:
    fake.answer = {**record(), "warnings": [{"id": "too_short", "text": "ran 0.1 s", "next": "-T 10"}]}
    _, _, err = gdsio(capsys, "-D", written(tmp_path / "d", 1, 1 << 20), "-s", "1M", "-x", "1")
    assert "ran 0.1 s; -T 10" in err


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("--duration 30", "-T 30"),
        ("--io-size 1000 on f", "-i 1000 on f"),
        ("a multiple of 512, or --buffered", "a multiple of 512, or -O 1"),
        ("--cache allow", "-O 1"),
        ("--overwrite F to let it be", "--overwrite F to let it be"),
        ("--until-steady", "--until-steady (with forebay bench: --dry-run prints its command)"),
        ("a-b--c, 3 -- 4", "a-b--c, 3 -- 4"),
        ("a smaller ‹io_bytes› on ‹gpus› 1", "a smaller -i on -d 1"),
        ("‹passes› 1, or ‹cache› allow", "no -T, or -O 1"),
        ("‹depth› 4 on ‹mine›", "--depth 4 on ‹mine› (with forebay bench: --dry-run prints its command)"),
    ],
)
def test_the_engines_hints_name_gdsios_flags(text: str, spoken: str) -> None:
    assert wording.said(text) == spoken


def test_an_error_names_gdsios_flags_and_keeps_its_kind(
    fake: Engine, tmp_path: Path, capsys: Capture
) -> None:
    fake.answer = RequestError("--bs 1000", "O_DIRECT needs a multiple of 512", "--buffered")
    fake.answer.marked = ("‹io_bytes› 1000", "O_DIRECT needs a multiple of 512", "--buffered")
    code, _, err = gdsio(capsys, "-D", written(tmp_path / "d", 1, 1 << 20), "-s", "1M", "-x", "1")
    assert code == 2
    assert "-i 1000: O_DIRECT" in err and "-O 1" in err and "--" not in err


@pytest.mark.promise("CMD-7")
def test_json_gives_the_record_and_record_appends_it(fake: Engine, tmp_path: Path, capsys: Capture) -> None:
    words = [
        "-D",
        written(tmp_path / "d", 1, 1 << 20),
        "-s",
        "1M",
        "-x",
        "1",
        "--record",
        tmp_path / "runs.jsonl",
    ]
    code, out, _ = gdsio(capsys, *words, "--json")
    assert code == 0
    assert json.loads(out)["result"]["ios"] == 799606
    gdsio(capsys, *words)
    assert [json.loads(t)["path"]["ran"] for t in (tmp_path / "runs.jsonl").read_text().splitlines()] == [
        "host",
        "host",
    ]


def test_a_record_file_that_holds_something_else_is_left_alone(
    fake: Engine, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "notes").write_text("mine\n")
    words = ["-D", written(tmp_path / "d", 1, 1 << 20), "-s", "1M", "-x", "1", "--record", tmp_path / "notes"]
    code, _, err = gdsio(capsys, *words)
    assert (code, fake.jobs, (tmp_path / "notes").read_text()) == (2, [], "mine\n")
    assert "--record" in err


def test_a_run_that_breaks_keeps_what_was_measured(fake: Engine, tmp_path: Path, capsys: Capture) -> None:
    fake.answer = RunError("read gdsio.0", "the device stalled", "dmesg")
    fake.answer.record = json.dumps(record())  # type: ignore[attr-defined]
    words = ["-D", written(tmp_path / "d", 1, 1 << 20), "-s", "1M", "-x", "1"]
    code, out, err = gdsio(capsys, *words, "--record", tmp_path / "runs.jsonl")
    assert (code, out) == (4, "")
    assert "the device stalled" in err and "runs.jsonl" in err
    assert json.loads((tmp_path / "runs.jsonl").read_text())["schema"] == "forebay.run/1"


def test_a_verified_write_is_followed_by_a_read_that_checks(
    fake: Engine, tmp_path: Path, capsys: Capture
) -> None:
    code, out, _ = gdsio(capsys, "-D", tmp_path, *"-w 1 -s 8M -x 1 -I 1 -V".split())
    lines = out.splitlines()
    assert code == 0
    assert [lines[0][:13], lines[1].strip(), lines[2][:12]] == [
        "IoType: WRITE",
        "Verifying data",
        "IoType: READ",
    ]
    assert [(j["op"], j["verify"]) for j in fake.jobs] == [("write", True), ("read", True)]


def test_a_timed_verified_write_first_writes_every_block(
    fake: Engine, tmp_path: Path, capsys: Capture
) -> None:
    code, out, err = gdsio(capsys, "-D", tmp_path, *"-w 1 -s 8M -x 1 -I 3 -V -T 5 -U".split())
    assert (code, len(out.splitlines())) == (0, 3)
    assert [(j["op"], j.get("duration_s"), j.get("passes")) for j in fake.jobs] == [
        ("write", None, 1),
        ("randwrite", 5.0, None),
        ("randread", 5.0, None),
    ]
    assert "every block once" in err


def test_the_json_of_a_verified_write_is_one_document(fake: Engine, tmp_path: Path, capsys: Capture) -> None:
    _, out, _ = gdsio(capsys, "-D", tmp_path, *"-w 1 -s 8M -x 1 -I 3 -V --json".split())
    assert [r["job"]["op"] for r in json.loads(out)] == ["randwrite", "randread"]


def test_a_verification_that_fails_is_exit_1(fake: Engine, tmp_path: Path, capsys: Capture) -> None:
    fake.answer = record(result={"errors": {"verify_failed": 3}})
    code, out, err = gdsio(capsys, "-D", written(tmp_path / "d", 1, 1 << 20), *"-s 1M -x 1 -V".split())
    assert code == 1
    assert out.startswith("IoType: READ") and "3 reads returned other content" in err


def test_failed_ios_are_exit_4_and_shown(fake: Engine, tmp_path: Path, capsys: Capture) -> None:
    fake.answer = record(
        result={"errors": {"failed": 2, "verify_failed": 0, "examples": ["gdsio.0 at 4096: EIO"]}}
    )
    code, out, err = gdsio(capsys, "-D", written(tmp_path / "d", 1, 1 << 20), *"-s 1M -x 1".split())
    assert code == 4
    assert out.startswith("IoType: READ") and "gdsio.0 at 4096: EIO" in err


def test_an_interrupted_run_prints_what_was_measured_and_exits_130(
    fake: Engine, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fake.answer = record(result={"interrupted": True})
    code, out, err = gdsio(capsys, "-D", tmp_path, *"-w 1 -s 8M -x 1 -I 1 -V".split())
    assert code == 130
    assert len(out.splitlines()) == 1 and "interrupted" in err
    assert len(list(tmp_path.glob("forebay-*.json"))) == 1
    assert len(fake.jobs) == 1


def test_what_may_be_overwritten_is_named_by_file_or_by_directory(
    fake: Engine, tmp_path: Path, capsys: Capture
) -> None:
    directory = written(tmp_path / "d", 2, 4096)
    (directory / "gdsio.2").symlink_to(directory / "gdsio.0")
    (directory / "mine").touch()
    gdsio(capsys, "-D", directory, *"-w 4 -s 4k -x 1 -I 1 --overwrite".split(), directory)
    assert fake.jobs[0]["overwrite"] == [str(directory / "gdsio.0"), str(directory / "gdsio.1")]
    gdsio(capsys, "-f", directory / "mine", *"-s 4k -x 1 -I 1".split())
    assert "overwrite" not in fake.jobs[1]
    gdsio(capsys, "-f", "/dev/x", *"-s 4k -x 1 -I 1 --overwrite F --overwrite-device /dev/x".split())
    assert (fake.jobs[2]["overwrite"], fake.jobs[2]["overwrite_devices"]) == (["F"], ["/dev/x"])


# Documentation


def test_the_page_names_every_flag_type_and_key() -> None:
    page = (Path(__file__).parent.parent / "docs" / "gdsio.md").read_text()
    missing = [f"-{f.letter}" for f in flags.FLAGS if f"| `-{f.letter}" not in page]
    missing += [f.key for f in flags.FLAGS if f.key and f"`{f.key}`" not in page]
    missing += [x.label for x in XFERS if f"`{x.label}`" not in page]
    missing += [str(x.host_label) for x in XFERS if x.host_label and f"`{x.host_label}`" not in page]
    assert not missing


def test_help_names_every_flag(capsys: Capture) -> None:
    code, out, _ = gdsio(capsys, "-h")
    assert code == 0
    assert not [
        f.letter for f in flags.FLAGS if f"\n  -{f.letter} " not in out and f"\n  -{f.letter}\n" not in out
    ]
