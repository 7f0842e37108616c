"""What goes wrong under a run is named, counted and survived: the installed command over the real engine."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import processes
import pytest
import watched
from other_user import OtherUser, somebody  # noqa: F401

JSON = ("--json", "--quiet")


def start(*arguments: Any, cwd: Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return processes.start([*before, *processes.FOREBAY, "bench", *arguments, *JSON], cwd=cwd)


def bench(*arguments: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    return processes.finish(start(*arguments, cwd=cwd))


def under_way(witness: Path, *arguments: Any) -> AbstractContextManager[subprocess.Popen[str]]:
    """A run in the witness's folder that lasts until a test ends it."""
    return watched.running(witness, "bench", *arguments, "--duration", 3600, *JSON, cwd=witness.parent)


def interrupt(run: subprocess.Popen[str]) -> dict[str, Any]:
    """The record of a run that Ctrl-C ends."""
    run.send_signal(signal.SIGINT)
    done = processes.finish(run)
    assert done.returncode == 130, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.promise("FLT-3")
def test_a_file_cut_off_while_it_is_read_ends_the_run_and_keeps_what_was_measured(tmp_path: Path) -> None:
    target = tmp_path / "data"
    target.write_bytes(bytes(8 << 20))
    job = ("--cache", "allow", "--engine", "pread", "--rate-iops", 500, "--io-size", "4k", "--warmup", 0)
    witness = tmp_path / "witness"
    with under_way(witness, target, *job, "-o", "run.json") as run:
        watched.wait_until_measured(witness, run)
        target.write_bytes(b"")
        done = processes.finish(run)
    assert done.returncode == 4 and "data" in done.stderr, done.stderr
    saved = json.loads((tmp_path / "run.json").read_text())
    assert saved["result"]["ios"] > 0 and saved["result"]["errors"]["examples"]


@pytest.mark.promise("FLT-5")
def test_a_device_that_stalls_ends_in_a_named_time_out(tmp_path: Path) -> None:
    job = (
        "--faults",
        "seed=1,stall=0.01",
        "--timeout",
        0.5,
        "--rate-iops",
        500,
        "--duration",
        3600,
        "--warmup",
        0,
    )
    done = bench("nil:", *job, "-o", "run.json", cwd=tmp_path)
    assert done.returncode == 4 and "--timeout" in done.stderr, done.stderr
    result = json.loads((tmp_path / "run.json").read_text())["result"]
    assert result["errors"]["timed_out"] >= 1 and result["ios"] > 0


@pytest.mark.promise("BEN-18")
def test_what_never_comes_back_is_counted_with_its_wait(tmp_path: Path) -> None:
    job = ("--faults", "seed=1,stall=1", "--timeout", 0.2, "--depth", 4, "--duration", 0.1, "--warmup", 0)
    done = bench("nil:", *job, "-o", "run.json", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    record = json.loads((tmp_path / "run.json").read_text())
    result = record["result"]
    assert result["ios"] == 0 and result["unfinished"]["count"] == 4 and result["unfinished"]["oldest_s"] > 0.2
    assert result["latency_us"]["min"] > 200_000
    assert "--timeout" in next(w["next"] for w in record["warnings"] if w["id"] == "unfinished")


@pytest.mark.promise("FLT-4")
def test_an_injected_error_is_counted_and_named(tmp_path: Path) -> None:
    job = ("--faults", "seed=1,error=0.05", "--io-size", "4k", "--passes", 1, "--warmup", 0)
    done = bench("nil:?size=4m", *job, "-o", "run.json", cwd=tmp_path)
    errors = json.loads((tmp_path / "run.json").read_text())["result"]["errors"]
    assert done.returncode == 4 and errors["failed"] > 0
    assert "injected error at offset" in errors["examples"][0] and errors["examples"][0] in done.stderr


@pytest.mark.promise("FLT-10")
def test_two_runs_that_write_one_folder_are_kept_apart(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    job = ("--op", "write", "--cache", "allow")
    with under_way(witness, ".", "--file-size", "4m", "--io-size", "64k", "--rate", 0.005, *job) as first:
        watched.wait_until_measured(witness, first)
        second = bench(".", *job, "--duration", 0.2, cwd=tmp_path)
        assert second.returncode == 3 and "another Forebay run" in second.stderr
        assert interrupt(first)["result"]["errors"]["failed"] == 0


@pytest.mark.long
@pytest.mark.promise("FLT-10")
def test_two_runs_may_read_one_folder_at_once(tmp_path: Path) -> None:
    job = (".", "--create", "--file-size", "4m", "--cache", "allow", "--verify")
    assert bench(*job, "--passes", 1, cwd=tmp_path).returncode == 0
    witnesses = [tmp_path / name for name in ("one", "two")]
    slowly = ("--io-size", "64k", "--rate", 0.005)
    with under_way(witnesses[0], *job, *slowly) as one, under_way(witnesses[1], *job, *slowly) as two:
        for witness, run in zip(witnesses, (one, two), strict=True):
            watched.wait_until_measured(witness, run)
        for run in (one, two):
            assert interrupt(run)["result"]["verified_bytes"] > 0


@pytest.mark.promise("FLT-7")
@pytest.mark.root
def test_too_little_locked_memory_is_said_with_what_raises_it(somebody: OtherUser) -> None:  # noqa: F811
    if not shutil.which("prlimit"):
        pytest.skip("prlimit is absent; try: apt install util-linux")
    job = ("--create", "--file-size", "4m", "--passes", 1, "--cache", "allow", "--engine", "uring", "--json", "--quiet")
    # Root may lock what it likes; somebody else may not.
    done = somebody.run("bench", somebody.home, *job, before=("prlimit", "--memlock=65536"))
    if done.returncode != 0 and "io_uring" in done.stderr:
        pytest.skip(f"no io_uring: {done.stderr.strip()[:100]}")
    assert done.returncode == 0, done.stderr
    warnings = json.loads(done.stdout)["warnings"]
    assert any(w["id"] == "locked_memory" and "ulimit -l" in w["next"] for w in warnings), warnings


@pytest.mark.promise("REC-2")
def test_a_record_of_an_older_schema_is_read_and_others_are_refused_by_name(tmp_path: Path) -> None:
    from forebay import _core
    from forebay.errors import RequestError

    out = bench("nil:", "--duration", 0.1, cwd=tmp_path).stdout
    old = json.loads(out)
    rate = old["result"].pop("throughput_gib_s")
    old["result"]["gib_per_s"] = rate
    del old["missing"], old["warnings"]
    old["schema"] = "forebay.run/0"
    read = json.loads(_core.read_record(json.dumps(old)))
    assert read["schema"] == _core.schema() and read["result"]["throughput_gib_s"] == rate
    for text, named in [
        (out.replace("forebay.run/1", "forebay.run/99"), "forebay.run/99"),
        (out[: len(out) // 2], "EOF"),
        ("[]", "JSON object"),
        ("{}", "no schema"),
    ]:
        with pytest.raises(RequestError, match=named):
            _core.read_record(text)


@pytest.mark.long
def test_thousands_of_threads_can_be_interrupted_while_they_start(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    job = ("data", "--workers", 2000, "--cache", "allow", "--duration", 600)
    with processes.running([*processes.FOREBAY, "bench", *job, *JSON], cwd=tmp_path) as run:
        tasks = Path(f"/proc/{run.pid}/task")
        processes.wait_until(lambda: len(list(tasks.iterdir())) > 100, "threads", run)
        run.send_signal(signal.SIGINT)
        done = processes.finish(run)
    assert done.returncode == 130, done.stderr
