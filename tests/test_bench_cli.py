"""`forebay bench` as its users meet it: what it prints, saves and exits with."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import fake_engine
import forebay.fio
import forebay.run
import processes
import pytest
import watched
from forebay import cli, numbers
from forebay.bench import plan, progress, summary
from forebay.errors import MachineError, RunError
from forebay.fio import FioJob
from forebay.gdsio import output as gdsio_output
from properties import parametrized

HERE = Path(__file__).parent


@pytest.fixture
def bench(monkeypatch, tmp_path, capfd):
    """Runs `forebay bench …` in tmp_path against a given engine: code, out, err, and the jobs that ran."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, run=lambda job, **_: fake_engine.record()):
        jobs = []

        def remember(job, **kept):
            jobs.append(job)
            return run(job, **kept)

        monkeypatch.setattr(forebay.run, "run", remember)
        with pytest.raises(SystemExit) as ended:
            cli.main(["bench", *arguments])
        out, err = capfd.readouterr()
        return SimpleNamespace(code=ended.value.code, out=out, err=err, jobs=jobs)

    return call


@pytest.mark.promise("BEN-1")
def test_the_summary_says_what_ran_how_fast_at_what_cost(bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    done = bench("/data/t", "--io-size", "1m", "--depth", "32")
    assert done.code == 0
    assert done.jobs == [{"sources": ["/data/t"], "io_bytes": 1 << 20, "depth": 32}]
    for expected in (
        "testhost · Test CPU, 2 cores · 24 GiB · Debian 12, Linux 6.18.1 · in kvm",
        "host ran · engine io_uring (fixed_files, fixed_buffers) · into host memory",
        "2.00 GiB/s · 2,048 IOPS",
        "p50 480 µs",
        "p99.9 2.50 ms",
        "0.400 cores (user 0.100, system 0.300) · 0.200 CPU-s/GiB",
        "not measured: no RAPL in /sys/class/powercap, no NVML",
        "devices moved 4 GiB for 4 GiB",
        "measured for 2 s only → --duration 10",
    ):
        assert expected in done.out


@pytest.mark.parametrize(("columns", "longest"), [("60", 60), ("400", 400), ("", 120)])
def test_the_summary_is_wrapped_where_the_user_says(bench, monkeypatch, columns, longest):
    monkeypatch.setenv("COLUMNS", columns)
    # As in a terminal that is wider than lines should be.
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((300, 24)))
    done = bench("/data/t", "--io-size", "1m", "--depth", "32")
    found = max(len(line) for line in done.out.splitlines())
    assert longest - 40 < found <= longest if longest < 400 else found > 120, done.out


def test_power_that_is_not_there_takes_one_line(bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    why = {"result.power.nvml": "no NVIDIA driver's library here (libnvidia-ml.so.1: cannot open)", "result.power.rapl": "none"}
    absent = fake_engine.record()
    absent["missing"] = {"result.power": "no power meter answered", **why}
    done = bench("nil:", run=lambda job, **_: absent)
    [line] = [x for x in done.out.splitlines() if x.startswith("power")]
    assert line == "power     not measured: no meter here (nvml, rapl) → forebay doctor"
    absent["job"]["power"] = ["nvml"]
    asked = bench("nil:", "--power", "nvml", run=lambda job, **_: absent)
    assert "cannot open" in asked.out, "who asks for a meter is told why it isn't there"


@pytest.mark.promise("CMD-7")
def test_json_is_the_record_alone_on_stdout(bench):
    done = bench("nil:", "--json")
    assert json.loads(done.out) == fake_engine.RECORD
    assert "GiB/s" in done.err


@pytest.mark.promise("FLT-16")
def test_quiet_hides_no_failed_verification(bench):
    failed = fake_engine.record()
    failed["result"]["errors"].update(verify_failed=3, examples=["block 4096 of /data/t holds other bytes"])
    done = bench("nil:", "-q", run=lambda job, **_: failed)
    assert done.code == 1 and done.out == ""
    assert done.err == "forebay: I/Os: 3 failed verification: block 4096 of /data/t holds other bytes\n"


def test_quiet_json_says_nothing_else(bench):
    assert bench("nil:", "--json", "--quiet").err == ""


def test_no_source_is_a_bad_request(bench):
    done = bench()
    assert done.code == 2
    assert "no source was given" in done.err and "Traceback" not in done.err


def test_out_saves_the_record(bench, tmp_path):
    assert bench("nil:", "-o", "run.json").code == 0
    assert json.loads((tmp_path / "run.json").read_text()) == fake_engine.RECORD
    assert bench("nil:", "-o", "run.json").code == 0, "a record of ours may be replaced"


def test_a_file_that_is_not_a_record_survives(bench, tmp_path):
    precious = tmp_path / "thesis.json"
    precious.write_text('{"chapter": 1}')
    done = bench("nil:", "-o", "thesis.json")
    assert done.code == 2 and not done.jobs, "refused before anything ran"
    assert "isn't overwritten" in done.err
    assert precious.read_text() == '{"chapter": 1}'


@pytest.mark.parametrize("out", ["nowhere/run.json", "."])
def test_an_impossible_output_is_refused_before_the_run(bench, out):
    done = bench("nil:", "-o", out)
    assert done.code == 2 and not done.jobs


def test_nothing_is_saved_unless_asked(bench, tmp_path):
    bench("nil:")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("CMD-6")
@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ({"verify_failed": 3}, 1),
        ({"failed": 1}, 4),
        ({"timed_out": 1}, 4),
        ({"short": 5}, 0),
        ({"retried": 5}, 0),
    ],
)
def test_exit_codes_follow_what_went_wrong(bench, errors, code):
    made = fake_engine.record()
    made["result"]["errors"] = {**made["result"]["errors"], **errors}
    done = bench("nil:", run=lambda job, **_: made)
    assert done.code == code
    assert f"{next(iter(errors.values()))} " in done.out.split("errors")[1]


def broken(job, **_):
    error = RunError("reading /data/t", "I/O error at 1 MiB", "dmesg | tail")
    error.record = fake_engine.record()
    raise error


def test_a_broken_run_saves_what_was_measured_and_names_the_file(bench, tmp_path):
    done = bench("/data/t", run=broken)
    assert done.code == 4
    assert "forebay-00112233aabbccdd.json" in done.err and "I/O error at 1 MiB" in done.err
    assert json.loads((tmp_path / "forebay-00112233aabbccdd.json").read_text())["result"]["ios"] == 4096


def test_the_record_of_an_error_may_be_text(bench, tmp_path):
    def as_text(job, **_):
        error = RunError("a", "b")
        error.record = json.dumps(fake_engine.record())
        raise error

    assert bench("/data/t", run=as_text).code == 4
    assert len(list(tmp_path.glob("forebay-*.json"))) == 1


@pytest.mark.promise("CMD-6")
def test_a_machine_that_cannot_exits_3(bench):
    def cannot(job, **_):
        raise MachineError("--path gds", "libcufile isn't installed", "--path bounce")

    done = bench("nil:", "--path", "gds", run=cannot)
    assert done.code == 3 and "--path bounce" in done.err and done.out == ""


def test_an_interrupted_record_is_saved(bench, tmp_path):
    done = bench("nil:", run=lambda job, **_: fake_engine.record(interrupted=True))
    assert done.code == 130
    assert (tmp_path / "forebay-00112233aabbccdd.json").exists()
    assert "interrupted" in done.out


def test_a_foreign_file_in_the_rescue_place_is_left_alone(bench, tmp_path):
    taken = tmp_path / "forebay-00112233aabbccdd.json"
    taken.write_text("mine")
    done = bench("nil:", run=lambda job, **_: fake_engine.record(interrupted=True))
    assert taken.read_text() == "mine"
    named = Path(done.err.split("what was measured is in ")[1].split("\n")[0])
    assert named.name != taken.name and json.loads(named.read_text())["id"] == "00112233aabbccdd"


FAKE = "fake_engine.slow_run(3600, begun=begun)"
HANGS_UP = """import os, signal, forebay.early, forebay.cli as c
from forebay.bench.interrupt import Interrupt
def verb(**_):
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    return 4 if interrupt.requested else 0
forebay.early.listen()
c.forebay.main = verb
c.main([])
"""
STUCK = "lambda job, **_: (begun(), time.sleep(3600))"


def interrupted(tmp_path, *numbers: int, engine: str = FAKE):
    """Runs the verb in a process of its own and signals it: (exit code, stdout, stderr).

    The first signal comes once the engine has begun, another once the one before it was answered."""
    script, begun, said = tmp_path / "driver.py", tmp_path / "begun", tmp_path / "stderr"
    script.write_text(
        f"import pathlib, sys, time; sys.path.insert(0, {str(HERE)!r})\n"
        "import fake_engine, forebay.run, forebay.cli\n"
        f"begun = pathlib.Path({str(begun)!r}).touch\n"
        f"forebay.run.run = {engine}\n"
        "forebay.cli.main(['bench', 'nil:'])\n"
    )
    with said.open("w") as err, processes.running([sys.executable, script], cwd=tmp_path, stderr=err) as started:
        processes.wait_until(begun.exists, "the engine began", started)
        for number in numbers[:-1]:
            started.send_signal(number)
            processes.wait_until(lambda: "interrupt again to abort" in said.read_text(), "an answer", started)
        started.send_signal(numbers[-1])
        done = processes.finish(started)
    return done.returncode, done.stdout, said.read_text()


@parametrized("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], kept=(0,))
def test_one_signal_stops_and_keeps_what_was_measured(tmp_path, number):
    code, out, err = interrupted(tmp_path, number)
    assert code == 130, err
    assert "interrupt again to abort" in err and "Traceback" not in err
    saved = json.loads(next(tmp_path.glob("forebay-*.json")).read_text())
    assert saved["result"]["interrupted"] is True


@pytest.mark.promise("CMD-10")
def test_a_hangup_by_the_kernel_and_one_by_the_shell_are_one(tmp_path):
    code, _, err = interrupted(tmp_path, signal.SIGHUP, signal.SIGHUP)
    assert code == 130, err
    assert json.loads(next(tmp_path.glob("forebay-*.json")).read_text())["result"]["interrupted"] is True


@pytest.mark.promise("CMD-10")
def test_under_nohup_a_hangup_ends_nothing(tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = processes.run([sys.executable, "-c", HANGS_UP], cwd=tmp_path)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.promise("CMD-10")
def test_a_second_signal_aborts_even_a_run_that_does_not_answer(tmp_path):
    code, _, err = interrupted(tmp_path, signal.SIGINT, signal.SIGINT, engine=STUCK)
    assert code == -signal.SIGINT, err


def test_dry_run_prints_the_plan_and_runs_nothing(bench, monkeypatch):
    found = {
        "job": {
            **fake_engine.RECORD["job"],
            "pages": "auto",
            "engine": "auto",
            "cache": "bypass",
            "repeat": 3,
        },
        "path": "host",
        "targets": [
            {"label": "/data/forebay.0", "bytes": 1 << 30, "kind": "file", "action": "make", "ours": True}
        ],
        "data_bytes": 1 << 30,
        "buffer_bytes": 8 << 20,
        "files_to_make": ["/data/forebay.0"],
        "files_to_overwrite": [],
        "virtual_time": False,
    }
    monkeypatch.setattr(forebay.run, "plan", lambda job: found)
    done = bench("/data", "--dry-run")
    assert done.code == 0 and done.jobs == []
    for expected in (
        "/data/forebay.0, 1 GiB, to be created",
        "8 MiB of buffers",
        "10.0 s, 3 times",
        plan.NOTHING,
    ):
        assert expected in done.out
    assert json.loads(bench("/data", "--dry-run", "--json").out) == found


@pytest.fixture
def fio_jobs(monkeypatch):
    def install(*jobs):
        found = [FioJob(n, j, tuple(u), waits=True) for n, j, u in jobs]
        monkeypatch.setattr(forebay.fio, "jobs", lambda path, lenient: found)

    return install


@pytest.mark.promise("BEN-10")
def test_fio_jobs_run_in_turn_and_unsupported_keys_are_named(bench, fio_jobs, tmp_path):
    fio_jobs(
        ("seq", {"sources": ["/a"], "op": "read"}, []),
        ("rand", {"sources": ["/a"], "op": "randread"}, ["zonemode"]),
    )
    done = bench("--fio", "x.fio", "--fio-lenient", "--json", "--depth", "4", "-o", "runs.jsonl")
    assert [j["op"] for j in done.jobs] == ["read", "randread"]
    assert all(j["depth"] == 4 and j["sources"] == ["/a"] for j in done.jobs)
    assert "[rand] not supported and left out: zonemode" in done.err
    first, second = json.loads(done.out)
    assert [w["id"] for r in (first, second) for w in r["warnings"] if w["id"] == "left_out"] == ["left_out"]
    assert "zonemode" in second["warnings"][-1]["text"]
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2


def test_a_failing_fio_job_does_not_stop_the_next(bench, fio_jobs):
    fio_jobs(("one", {"sources": ["/gone"]}, []), ("two", {"sources": ["/a"]}, []))

    def run(job, **_):
        if job["sources"] == ["/gone"]:
            raise MachineError("/gone", "isn't there")
        return fake_engine.record()

    done = bench("--fio", "x.fio", run=run)
    assert done.code == 3 and len(done.jobs) == 2 and "[two]" in done.out


@pytest.mark.promise("REC-1")
def test_every_null_of_the_summary_has_its_reason():
    made = fake_engine.record()
    made["cache"].update(resident_before=None, device_bytes=None)
    made["missing"] = {
        "cache.resident_before": "mincore is forbidden",
        "cache.device_bytes": "overlayfs hides it",
    }
    text = summary.text(made, 200)
    assert "residency not measured: mincore is forbidden" in text
    assert "device bytes not measured: overlayfs hides it" in text
    assert "power     not measured: no meter answered" in text


def test_repeats_show_their_spread():
    made = fake_engine.record(repeats=[{}, {}, {}])
    spread = {"throughput_gib_s_min": 1.9, "throughput_gib_s_max": 2.1, "throughput_gib_s_ci95": [1.85, 2.15]}
    made["result"]["summary"].update(spread)
    line = summary.rate(made["result"])
    assert "over 3 repeats: median 2.00, range 1.90–2.10, 95 % interval of the mean 1.85–2.15" in line


def test_the_ramp_leaves_warm_up_left_of_the_bar():
    (line,) = summary.ramp(fake_engine.RECORD["result"]["series"])
    bars, figures = line.split(" ", 1)
    warm, kept = bars.split("|")
    assert len(kept) > len(warm) > 0 and kept[-1] == "█"
    assert figures == "1.50–4.00 GiB/s; warm-up of 1.0 s left out"


def test_a_run_without_a_single_io_still_has_a_summary():
    made = fake_engine.record(bytes=0, ios=0, seconds=0.0, series=[], iops=0.0, throughput_gib_s=0.0)
    made["result"]["cpu"] = {
        **fake_engine.CPU,
        "cpu_s_per_gib": None,
        "ns_per_io": None,
        "others_cores_busy": None,
    }
    assert "not measured: no I/O finished" in summary.text(made)


def test_processor_time_that_no_meter_covered_is_said_and_shown_as_no_figure():
    why = "the meters started +0.000 s and stopped +0.300 s beside the measured 0.400 s"
    made = fake_engine.record()
    made["result"]["cpu"] = dict.fromkeys(fake_engine.CPU)
    made["missing"] = {f"result.cpu.{name}": why for name in fake_engine.CPU}
    assert f"not measured: {why}" in summary.cpu(made) and "0.0" not in summary.cpu(made).replace(why, "")
    assert "cores" not in summary.host({"host": "a", "cpu": made["result"]["cpu"]})
    assert "processor time not measured" in "".join(gdsio_output.notes(made))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "500 ns"), (12.34, "12.3 µs"), (4100, "4.10 ms"), (2.5e6, "2.50 s"), (0.0, "0 ns")],
)
def test_latency_reads_in_the_unit_that_fits(value, text):
    assert numbers.micros(value) == text


def test_lines_fit_the_terminal():
    text = summary.text(fake_engine.record(), 60)
    assert max(len(line) for line in text.splitlines()) <= 70  # the sparkline is never broken


def test_time_left_counts_the_repeats_to_come():
    assert progress.time_left(fake_engine.progress(t_s=4.0, duration_s=10.0, repeat=1, repeats=3)) == 16.0
    assert progress.time_left(fake_engine.progress(duration_s=None)) is None


def test_a_progress_line_fits_one_row(monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *a, **k: os.terminal_size((40, 24)))
    stream = io.StringIO()
    line = progress.Line(stream)
    line(fake_engine.progress())
    assert len(stream.getvalue().removeprefix("\r\x1b[K")) <= 39
    line.close()
    assert stream.getvalue().endswith("\r\x1b[K")


# The installed command over the real engine -----------------------------------------------------------------


def real(*arguments, cwd):
    return processes.run([*processes.FOREBAY, "bench", *arguments], cwd=cwd)


@pytest.mark.promise("CMD-6", "BEN-1", "REC-5")
def test_for_real_a_file_is_made_read_and_summarised(tmp_path):
    done = real(
        tmp_path, "--create", "--file-size", "8m", "--passes", "2", "--io-size", "128k", "--cache", "allow", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for line in (
        "machine",
        "path      host ran",
        "moved     16 MiB in 128 I/Os",
        "latency   p50",
        "cpu",
        "cache",
    ):
        assert line in done.stdout
    assert (tmp_path / "forebay.0").stat().st_size == 8 << 20


@pytest.mark.promise("BEN-7")
def test_for_real_a_dry_run_touches_nothing(tmp_path):
    done = real(tmp_path, "--create", "--file-size", "8m", "--workers", "2", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "forebay.1, 8 MiB, to be created" in done.stdout and plan.NOTHING in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("BEN-24")
@pytest.mark.parametrize(
    ("job", "memory"),
    [
        (("nil:", "--depth", "4"), "no buffers: no data is moved"),
        (("nil:", "--depth", "4", "--io-size", "5000", "--verify"), "at most 64 KiB of buffers"),
        (("FILE", "--depth", "4", "--io-size", "5000", "--cache", "allow"), "at most 64 KiB of buffers"),
    ],
)
def test_for_real_a_dry_run_names_the_memory_that_is_made(tmp_path, job, memory):
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    words = [str(tmp_path / "f") if word == "FILE" else word for word in job]
    done = real(*words, "--workers", "2", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0 and memory in done.stdout, done.stdout + done.stderr


@pytest.mark.promise("CMD-6")
def test_for_real_content_that_is_not_what_was_written_exits_1(tmp_path):
    job = (tmp_path / "t", "--passes", "1", "--verify", "--cache", "allow", "--io-size", "64k")
    assert real(*job, "--op", "write", "--file-size", "1m", cwd=tmp_path).returncode == 0
    with (tmp_path / "t").open("r+b") as file:
        file.seek(300_000)
        file.write(b"damage")
    done = real(*job, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed verification" in done.stdout


@pytest.mark.promise("CMD-6")
def test_for_real_a_failed_io_exits_4_and_keeps_the_record(tmp_path):
    done = real(
        "nil:?size=64m", "--passes", "1", "--io-size", "4k", "--faults", "seed=1,error=0.001", cwd=tmp_path
    )
    assert done.returncode == 4, done.stdout + done.stderr
    saved = json.loads(next(tmp_path.glob("forebay-*.json")).read_text())
    assert saved["result"]["errors"]["failed"] > 0 and saved["result"]["ios"] > 0


@pytest.mark.promise("CMD-6", "CMD-10")
@parametrized("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], kept=(0,))
def test_for_real_a_signal_keeps_what_was_measured(tmp_path, number):
    witness = tmp_path / "witness"
    job = ("bench", "nil:", "--duration", "3600", "--warmup", "0.1")
    with watched.running(witness, *job, cwd=tmp_path) as started:
        watched.wait_until_measured(witness, started)
        started.send_signal(number)
        done = processes.finish(started)
    assert done.returncode == 130, done.stderr
    result = json.loads(next(tmp_path.glob("forebay-*.json")).read_text())["result"]
    assert result["interrupted"] and 0 < result["seconds"] < 3600 and result["bytes"] > 0
